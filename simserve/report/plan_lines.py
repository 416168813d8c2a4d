"""A plan in sentences and tables. Knows only the summary of a plan, not how it was made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simserve.planner.plan.fleet import MOST_TRAFFIC
from simserve.planner.search.trial import LATENCIES
from simserve.report.answer import share_asked
from simserve.report.page import Section
from simserve.report.quantities import UNDEFINED, capital, count, counted, dollars, latency, listed, number, share
from simserve.report.tables import TERM_LABELS
from simserve.scenario.formats import formats_line

Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # Titles of the columns, and cells.
RUNNERS_UP = "Runners-up, the best of each kind of GPU"
_NO_GAIN = 1.05  # Least factor on throughput for a change to be called a gain.
_FIDELITY = {
    "fitted": "curves fitted to measured kernels of this GPU",
    "roofline": "a roofline of the data sheet, not measured on this GPU; check with a trial before buying",
}
LEVERS = {
    "quantise": "Quantise weights",
    "quantise_kv": "Quantise the KV cache",
    "batch": "Batch",
    "chunk": "Chunk prompts",
    "shard": "Shard",
    "data_parallel": "Share experts among data-parallel ranks",
    "expert_parallel": "Keep experts whole",
    "speculate": "Speculate",
    "route": "Route",
    "cache": "Cache prefixes",
    "offload": "Keep prefixes in host memory",
    "answers": "Cache whole answers",
    "scale": "Scale with the load",
    "pool": "Separate pools, or priorities",
    "overflow": "Send peaks to an API",
    "admit": "Refuse some requests",
    "static": "Batch continuously",
    "version": "Other versions of the engine",
}
"""Name of a lever in the summary -> what it does."""
CHANGED = {"traffic": "Traffic", "prompt_tokens": "Prompts", "output_tokens": "Answers", "price": "GPU price"}
"""Name of an input that may change, in the summary -> how it is written."""
IDLE_BATCH = 2.0  # Mean number of requests in a step below which a GPU mostly serves one user at a time.
FEW_TOKENS = 1e9  # Tokens a month below which the people around a fleet usually cost more than an API.
SURE = 0.9  # Probability below which a plan says how to be surer.
UNLIKELY = 0.5
"""Probability below which the first line of a plan says it: more real servers miss the SLO than hold it."""
MISS_PERCENTILE = 95  # Percentile at which a near miss is shown.
_MOST_RUNNERS_UP = 8
_MOST_FRONT = 8
_SAME_PRICE = 0.005  # Dollars a month by which two prices may differ and still be printed the same.
_SAME_GPUS = 0.005  # Relative difference up to which the mean number of GPUs is that of a fleet that does not change.


def gpus_of(best: Mapping[str, Any]) -> str:
    """Return the GPUs of a plan in words, with those of an encoder pool; of a fleet that is scaled their mean."""
    pool = best["deployment"].get("encoder_disaggregation")
    mean = best.get("mean_gpus", best["num_gpus"])
    has_pools = bool(best["deployment"].get("pools"))  # with autoscalers of their own
    if not math.isclose(mean, best["num_gpus"], rel_tol=_SAME_GPUS):
        return f"{number(mean)} GPUs on average ({best['num_gpus']} {'at first' if has_pools else 'at most'})"
    return counted(best["num_gpus"], "GPU") + (f" and {pool['replicas']} that encode" if pool else "")


def answer_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the answer and the arithmetic behind it."""
    best, scaled = summary["best"], worth_scaling(summary.get("autoscaling"))
    price = f" for {dollars(best['usd_per_month'])} a month" if best["usd_per_month"] is not None else ""
    bound = "; its step times are a roofline bound, not measured" if best["fidelity"] == "roofline" else ""
    lines = [f"Deploy {best['label']}: {gpus_of(best)}{price}{bound}."]
    if scaled is not None:
        month = "" if scaled["usd_per_month"] is None else f" for {dollars(scaled['usd_per_month'])} a month"
        gpus = f"{number(scaled['mean_gpus'])} GPUs on average"
        lines = [f"Deploy {scaled['label']}: {gpus}{month}{bound}."]
    lines += [f"{capital(formats_line(best['formats']))}."]
    if scaled is not None:
        lines += [
            scaled_met_line(scaled),
            f"Without that autoscaler it would be {best['label']}: {gpus_of(best)}{price}.",
        ]
    lines += [met_line(summary), *probability_lines(summary)]
    lines += [f"  {line}" for line in best["arithmetic"]]
    lines += [f"  it assumes that {each}" for each in best["assumes"]]
    lines += [f"  {line}" for line in _cheaper_api_lines(summary)]
    if best["attainment"] is None:
        if best["usd_per_million_tokens"] is not None:
            lines.append(f"  {dollars(best['usd_per_million_tokens'])} a million tokens, prompts and answers together")
        lines.append(f"  the bottleneck of its steps is {best['bottleneck']}")
    elif summary["binding"]:
        lines.append(
            f"  {term(summary['binding'])} is what keeps it from being smaller; "
            f"the bottleneck of its steps is {best['bottleneck']}"
        )
    if summary.get("faster"):
        each = summary["faster"]
        name, times = {"p95_ttft_ms": "TTFT", "p95_tpot_ms": "TPOT"}[each["latency"]], number(each["times"])
        lines.append(
            f"{dollars(each['usd_per_month_more'])} a month more buys {times}x lower {name} "
            f"(p95 {latency(each['from_ms'])} to {latency(each['to_ms'])}): {each['label']}."
        )
    if summary.get("kept"):
        lines.append(f"Kept as in the scenario: {listed(summary['kept'])}.")
    return lines


def worth_scaling(autoscaling: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the setting that meets the SLO on every fresh seed and takes less than the fixed fleet, or None."""
    best = None if autoscaling is None else autoscaling["best"]
    return best if best is not None and best["holds"] and best["of_fixed"] < 1 else None


def scaled_met_line(scaled: Mapping[str, Any]) -> str:
    """Return the share of requests that meet the SLO with a scaled fleet, and from how many fresh runs."""
    met, seeds = scaled["attainment"], counted(len(scaled["fresh_seeds"]), "fresh seed")
    return f"{share(met['least'])} of requests or more meet the SLO ({share_asked(met['asked'])} asked; {seeds})."


def probability_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the share of real servers on which the SLO holds, and what that is based on; empty without an SLO."""
    best, asked = summary["best"], summary.get("confidence")
    if best.get("probability") is None:
        return []
    wanted = "" if best["probability"] >= SURE else f"; --confidence {SURE:g} sizes for {share(SURE)}"
    wanted = wanted if asked is None else f"; {share(asked)} asked"
    lines = [
        f"On a real server the SLO holds with a probability of {share(best['probability'])} "
        f"({best['probability_basis'].removeprefix('foreign: ')}){wanted}."
    ]
    after = best.get("measurement")
    if after is None:
        return lines
    # What measuring a replica at two loads would gain.
    money, sure = after["saves_usd_per_month"], share(after["probability"])
    brings = f"that probability rises to {sure}"
    if after["saves_gpus"] > 0 or (money or 0.0) > 0:
        less = counted(after["saves_gpus"], "GPU") if money is None else f"{dollars(money)} a month"
        brings = f"{after['label']} would do, {sure} sure, for {less} less"
    measure = "  Measure one replica at two loads; if it behaves as predicted"
    return [*lines, f"{measure}, {brings}: {after['command']}"]


def term(name: str) -> str:
    """Return a term of an SLO in words."""
    return TERM_LABELS.get(name, name)


def met_line(summary: Mapping[str, Any], *, with_latencies: bool = True) -> str:
    """Return the share of requests that meet the SLO, its bounds, and from how many runs."""
    best = summary["best"]
    spared = summary["spare_replicas"]
    extra = [f"{share(summary['headroom'])} more traffic"] if summary["headroom"] else []
    extra += [f"{counted(spared, 'replica')} lost"] if spared else []
    under = f" with {listed(extra)}" if extra else ""
    confirmed = best["confirmed"]
    runs = counted(confirmed["replications"], "run")
    proof = f"{runs}, {count(confirmed['requests'])} requests" if confirmed["is_confirmed"] else "not confirmed"
    latencies = ", ".join(
        f"{name} {latency(best[f'p95_{key}_ms'])}"
        for key, name in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E"))
        if best[f"p95_{key}_ms"] is not None
    )
    tail = f"p95: {latencies}; {proof}" if with_latencies else proof
    if best["attainment"] is None:
        return f"It serves everything{under} ({tail})."
    asked = summary["slo"]["attainment"]
    met = f"{share(best['attainment'])} of requests meet the SLO{under}"
    return f"{met} ({share_asked(asked)} asked; {tail})."


def robustness_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the effect of more traffic, a lost replica and spot prices on the plan."""
    best, lines = summary["best"], []
    sustained = best["traffic_sustained"]
    if sustained is not None:
        most = f"at least {MOST_TRAFFIC:g} times the traffic"
        more = most if sustained >= MOST_TRAFFIC else f"{share(sustained - 1)} more traffic"
        breaks = "its queue grows without end" if best["attainment"] is None else "the SLO breaks"
        if sustained < 1:
            more = f"only {share(sustained)} of the traffic once all conversations are under way"
            lines.append(f"It can sustain {more}; the run ends before.")
        elif sustained > 1.01:
            lines.append(f"It can sustain {more} before {breaks}.")
        else:
            lines.append("It has no headroom: more traffic breaks the SLO.")
    lost = best["lost_replica"]
    without = lost["without_spares"]
    spare = lost["spare_usd_per_month"]
    price = "; --spare-replicas 1 plans a spare one"
    if spare is not None:
        price = f"; a spare one costs {dollars(spare)} a month (--spare-replicas 1)"
    if summary["spare_replicas"]:
        spares = counted(summary["spare_replicas"], "replica")
        lines.append(f"It holds with {spares} lost: the spares are in the price.")
    elif best["replicas"] == 1:
        lines.append(f"One replica: while it is down, nothing answers{price}.")
    elif without is not None:
        reached = "" if without["attainment"] is None else f", {share(without['attainment'])} of requests in the SLO"
        verdict = "still holds" if without["holds"] else "does not hold"
        lines.append(f"With one replica lost it {verdict} ({without['stability']}{reached}){price}.")
    if best["spot"] is not None and summary["market"] == "on_demand":
        spot = best["spot"]
        lines.append(
            f"On spot ({dollars(spot['usd_per_gpu_hour'])} a GPU-hour) the same GPUs cost "
            f"{dollars(spot['usd_per_month'])} a month; they may be taken away at any time."
        )
    lines.append(f"Step times: {_FIDELITY.get(best['fidelity'], best['fidelity'])}.")
    return lines


def miss_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return why nothing meets the SLO, what came closest and what to relax."""
    miss, is_stopped = summary["nearest_miss"], summary.get("interrupted", False)
    if miss is None:
        return ["Nothing was found before the search was stopped."]
    name = term(miss["metric"])
    if miss["metric"] == "gpus":
        head = (
            f"No plan: at least {count(miss['reached'])} GPUs are needed (bound), {count(miss['asked'])} are allowed."
        )
    elif miss["metric"] == "memory":
        head = "No plan: the model fits on none of these."
    elif miss["metric"] == "confidence":
        head = (
            f"No plan is sure enough: the SLO holds on {share(miss['reached'])} of real servers at most, "
            f"{share(miss['asked'])} asked."
        )
    elif miss["is_bound"]:
        head = (
            f"No plan: no deployment here can keep {name} within {_time(miss['asked'])}; the lowest possible is "
            f"{_time(miss['reached'])} (bound)."
        )
    else:
        head = "Nothing held until the search was stopped." if is_stopped else "No plan holds."
        if miss["reached"] is not None and miss["asked"] is not None:
            near = f"{_time(miss['reached'])}, asked {_time(miss['asked'])}."
            head += f" {name} comes nearest to its limit: {near}"
    lines = [head]
    if miss.get("label"):
        known = [(term(each), miss["bound"][f"{each}_ms"]) for each in ("ttft", "tpot", "e2e")]
        bounds = [f"{each} {latency(value)}" for each, value in known if value]
        if bounds:
            bounds[0] = bounds[0].replace(" ", " at least ", 1)
        least = f" On it, whatever the number of replicas: {', '.join(bounds)} (bounds)." if bounds else ""
        lines.append(f"Nearest: {miss['label']}.{least}")
        if miss.get("attainment") is not None:
            values = ", ".join(
                f"{term(each)} {number(miss[f'p95_{LATENCIES[each]}_ms'])} ms"
                for each in LATENCIES
                if miss[f"p95_{LATENCIES[each]}_ms"] is not None
            )
            lines.append(f"  simulated: {share(miss['attainment'])} of requests meet the SLO; p95: {values}")
    lines.append(f"{capital(miss['relax'])}." if is_stopped else f"To relax: {miss['relax']}.")
    drafted = miss.get("with_drafts")
    if drafted is not None:
        key = f"p{MISS_PERCENTILE}_{LATENCIES[miss['metric']]}_ms"
        outcome = "would hold" if drafted["holds"] else "would not hold either"
        lines.append(
            f"With drafts it {outcome}: {drafted['label']}: {name} {number(drafted[key])} ms (p{MISS_PERCENTILE}), if "
            f"{listed(drafted['assumes'])}."
        )
    return lines


def _time(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds >= 1 else f"{number(seconds * 1e3)} ms"


def _beside_api(month: Mapping[str, Any] | None) -> list[str]:
    """Return what the listed API with the same weights, or the one named in the scenario, charges for the traffic."""
    if month is None or month["api"] is None:
        return []
    api, even = month["api"], month["break_even_requests_per_month"]
    which = "the API that the scenario names" if api["is_named"] else "the cheapest listed API with the same weights"
    own, asked = month["self_host_usd_per_month"], api["usd_per_month"]
    bills, but = ("is cheaper:", "") if month["cheaper"] == "api" else ("bills", ",")
    text = f"{api['name']}, {which}, {bills} {dollars(asked)} a month for this traffic{but} against {dollars(own)}"
    same = "" if even is None else f"; both cost the same at {number(even / 1e6)} million requests a month"
    if month["why_never"] is not None:
        same = f"; the plan never costs less: {month['why_never']}"
    return [f"{text}{same} (prices of {api['date']})."]


def _cheaper_api_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a note, for the top of an answer, that an API serves the traffic for less; empty if none does."""
    month = deployed_month(summary)
    return _beside_api(month) if month is not None and month["cheaper"] == "api" else []


def deployed_month(summary: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a month of the plan beside an API, with an autoscaler if there is one: then no break-even is known."""
    month: Mapping[str, Any] | None = summary["month"]
    scaled = worth_scaling(summary.get("autoscaling"))
    if month is None or scaled is None or scaled["usd_per_month"] is None:
        return month
    usd, cheaper = scaled["usd_per_month"], month["cheaper"]
    if cheaper is not None:
        cheaper = "self_host" if usd < month["api"]["usd_per_month"] else "api"
    unknown = {"break_even_requests_per_month": None, "why_never": None}
    return {**month, **unknown, "self_host_usd_per_month": usd, "cheaper": cheaper}


def self_host_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the API price above which the plan pays, and the cases in which it does not pay."""
    best, scaled = summary["best"], worth_scaling(summary.get("autoscaling"))
    if best["usd_per_million_tokens"] is None:
        return ["Without a price of the GPU, nothing can be said about an API."]
    paid = scaled["usd_per_month"] / best["usd_per_month"] if scaled and scaled["usd_per_month"] else 1.0
    usd = dollars(best["usd_per_million_tokens"] * paid)
    lines = [
        f"The plan costs {usd} a million tokens, prompts and answers together, at this "
        f"traffic, without people: an API that asks less is cheaper."
    ]
    lines += [] if _cheaper_api_lines(summary) else _beside_api(deployed_month(summary))
    batch = best["mean_batch"]
    if batch is not None and batch < IDLE_BATCH:
        lines.append(
            f"A step serves {number(batch)} requests on average: one user does not fill a GPU; an API would share it."
        )
    tokens = best["usd_per_month"] / best["usd_per_million_tokens"] * 1e6 if best["usd_per_million_tokens"] else 0.0
    if tokens and tokens < FEW_TOKENS:
        lines.append(f"{tokens / 1e6:,.0f} M tokens a month are few: the people who run it cost more than its GPUs.")
    lines.append("Not in the price: people on call, a second site, evaluation of quantised weights.")
    return lines


def part(title: str, lines: Sequence[str], table: Table | None = None) -> Section:
    """Return a part of a plan."""
    header, rows = table or ((), ())
    return Section(title=title, lines=lines, header=header, rows=rows)


def runners_up(summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the best of each losing kind of GPU and why it lost, with a line on those left out; nothing without any."""
    if not summary["runners_up"]:
        return
    ordered = sorted(
        summary["runners_up"], key=lambda each: (each["usd_per_month"] is None, each["usd_per_month"] or 0.0)
    )
    rows = [
        (
            each["label"] or each["hardware"],
            dollars(each["usd_per_month"]),
            latency(each.get("p95_ttft_ms")),
            latency(each.get("p95_tpot_ms")),
            each["why"],
        )
        for each in ordered[:_MOST_RUNNERS_UP]
    ]
    left = len(ordered) - len(rows)
    notes = [f"and {counted(left, 'more kind')} of GPU (--json lists them)"] if left > 0 else []
    title = RUNNERS_UP if summary["feasible"] else "The best of each kind of GPU"
    yield part(title, notes, (("", "$/month", "p95 TTFT", "p95 TPOT", "why"), rows))


def front(summary: Mapping[str, Any]) -> Section:
    """Return the Pareto front of fleets in dollars, TTFT and TPOT."""
    shown, rows = summary["pareto"][:_MOST_FRONT], []
    for each in shown:
        # Fleets with the same label are distinguished by the settings in which they differ.
        alike = [other["overrides"] for other in shown if other["label"] == each["label"]]
        keys = {key for own in alike for key in own if any(other.get(key) != own[key] for other in alike)}
        named = [(key.rpartition(".")[2], each["overrides"].get(key)) for key in sorted(keys)]
        apart = "".join(f", default {name}" if value is None else f", {name} {value}" for name, value in named)
        figures = (dollars(each["usd_per_month"]), latency(each["p95_ttft_ms"]), latency(each["p95_tpot_ms"]))
        rows.append((f"{each['label']}{apart}", str(each["num_gpus"]), *figures))
    title = "Faster for more money (the best trade-offs of dollars, TTFT and TPOT)"
    return part(title, [], (("", "GPUs", "$/month", "p95 TTFT", "p95 TPOT"), rows))


def sensitivity(summary: Mapping[str, Any]) -> Section:
    """Return a row for each input that may change: the GPUs and dollars needed with less and with more of it."""
    changes = sorted({each["change"] for each in summary["sensitivity"]})
    found = {(each["what"], each["change"]): each for each in summary["sensitivity"]}
    rows = [
        (CHANGED[what], *(_needed(found.get((what, change))) for change in changes))
        for what in dict.fromkeys(each["what"] for each in summary["sensitivity"])
    ]
    return part("If something changes", [], (("", *(f"{change:+.0%}" for change in changes)), rows))


def _needed(each: Mapping[str, Any] | None) -> str:
    if each is None:
        return UNDEFINED
    if each["replicas"] is None:
        return each["reason"] or "no fleet of four times the size holds"
    price = "" if each["usd_per_month"] is None else f", {dollars(each['usd_per_month'])}"
    return f"{counted(each['num_gpus'], 'GPU')}{price}"


def changes(summary: Mapping[str, Any]) -> Section:
    """Return the plan and a row for each variant of it: its cost, and its latencies or dollars a token."""
    best = summary["best"]
    rows = [("The plan", "", dollars(best["usd_per_month"]), *_figures(best, best))]
    named = ""
    for each in summary["changes"]:
        lever = LEVERS[each["lever"]]
        instead, reason = each["variant"], each["reason"]
        if each["replicas"] is None:
            instead += f": {reason}" if reason.startswith("does") else f": not possible, {reason}"
        rows.append(("" if lever == named else lever, instead, _price(each), *_figures(best, each)))
        named = lever
    figures = ("$/M tokens",) if _is_without_slo(best) else ("p95 TTFT", "p95 TPOT")
    title = "What each technique brings here (the plan with one change, on the GPUs that it then takes)"
    return part(title, [], (("", "instead", "$/month", *figures), rows))


def _price(each: Mapping[str, Any]) -> str:
    if each["replicas"] is None:
        return UNDEFINED
    more = each["usd_per_month_more"]
    if more is None:
        return counted(each["num_gpus"], "GPU")
    return "same" if abs(more) < _SAME_PRICE else dollars(each["usd_per_month"])


def _figures(best: Mapping[str, Any], each: Mapping[str, Any]) -> Iterator[str]:
    """Yield dollars a token if there is no SLO, else latencies."""
    if _is_without_slo(best):
        yield dollars(each.get("usd_per_million_tokens"))
    else:
        yield latency(each.get("p95_ttft_ms"))
        yield latency(each.get("p95_tpot_ms"))


def _is_without_slo(best: Mapping[str, Any]) -> bool:
    return best["attainment"] is None and best["usd_per_million_tokens"] is not None


def single_changes(summary: Mapping[str, Any]) -> Section:
    """Return the throughput of the deployment as it is, and the effect of each single change on it, the best first."""
    single = summary["single_changes"]
    own = f"As it is, a replica makes {number(single['output_throughput'])} output tokens/s"
    possible = [each for each in single["changes"] if each["times"] is not None]
    if not possible:
        sentence = f"{own}; no single change is possible here."
    elif possible[0]["times"] < _NO_GAIN:
        sentence = f"{own}, and no single change adds 5% or more."
    else:
        best = possible[0]
        sentence = f"{own}. The change that brings most is {best['variant']}: {best['times']:.2g} times that."
    title = "What one change does to the deployment as it is (its queue never empty, latency ignored)"
    return part(
        title, [sentence], (("", "output tokens/s"), [(each["variant"], _times(each["times"])) for each in possible])
    )


def _times(times: float) -> str:
    """Return a factor in words: ``'2.3 times'``, ``'+12%'``, ``'-7.3%'``."""
    return f"{times:.2g} times" if times >= 2 else f"{'+' if times >= 1 else '-'}{share(abs(times - 1))}"


def left_out(summary: Mapping[str, Any]) -> Section:
    """Return which options were not searched, and why."""
    rows = [(LEVERS[name], why) for name, why in summary["search"]["left_out"].items()]
    return part("Not searched", [], (("", "why"), rows))
