"""The brief of an answer: whether it holds, what to do, latencies, load, dollars a month, trust. One for every medium.

The terminal, the page and the notebook show the same brief, each in its own form. Knows no width and no markup.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.metrics.result import RunResult
from simserve.metrics.summary import frozen
from simserve.planner.plan.explain import plan_command
from simserve.profiles.expected_errors import ALONE, CALIBRATED, QUEUED
from simserve.report import facts
from simserve.report.answer import (
    NO_WAY_OUT,
    Verdict,
    advice_lines,
    answer,
    fails,
    has_no_way_out,
    short_loop_caveat,
    statuses,
    steady_state_caveat,
    verdict,
    warning_lines,
)
from simserve.report.curves import num_holding
from simserve.report.kinds import round_text, task_text
from simserve.report.knobs import engine_name
from simserve.report.quantities import UNDEFINED, count, counted, dollars, latency_unit, number, share
from simserve.report.tables import LATENCY_LABELS
from simserve.scenario.formats import formats_line
from simserve.units import HOURS_PER_MONTH, format_seconds

if TYPE_CHECKING:
    from simserve.scenario.finishable import KnownFinishable
    from simserve.scenario.schema import Scenario

ASKED_FILES = ("film.html", "timeline.json", "timeline.json.gz", "metrics.prom")
"""Files of a result that are only written on request."""
STORED = ("scenario.resolved.yaml",)  # Arguments that name the scenario in the folder of a result.
NOW = "Now"
"""Name of the line that says whether a deployment can sustain its own traffic, in answers about more than that."""
SLO_MISSED = "SLO missed"  # Note after GPUs that are priced although they miss the SLO.
_NEARLY_NOTHING = 0.01  # Share of the other side's bill below which a bill is shown with more digits.
_LENGTHENS = " (--precision 5% lengthens it)"  # Note after a run that is too short, of the command that runs it.
FILES = "Files"  # Name of the line that says where the files of an answer are.
_TERMS = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2el_ms": "e2e"}
LOAD_KEYS = ("workload.arrivals.rate", "workload.arrivals.concurrency")  # Keys that scale the load of a scenario.
_MOST_MILLISECONDS = 10_000  # Longest time that is given in milliseconds beside shorter ones.
_SECONDS_FROM_MEAN = 1000.0  # Mean in milliseconds from which its line is in seconds.
_TOLD_AS_TIMES = 2.0
"""From this multiple of the self-hosting cost on, an API's cost is given as a multiple, not in percent."""
_TOKENS_STEP = 1024  # Tokens to which a context length is rounded up.


@dataclass(frozen=True, slots=True)
class Way:
    """What to do: a sentence and the command that does it."""

    told: str  # The sentence.
    command: str  # The command; empty where there is no room for it.
    instead: Way | None = None  # What is shown if there is no room for the command; None: that ``-v`` prints it.

    @property
    def shorter(self) -> Way:
        """The form to use if there is no room for the command."""
        return self.instead or Way(f"{self.told.rstrip(':')}: the command is long, -v prints it", "")


@dataclass(frozen=True, slots=True)
class LatencySeconds:
    """One latency in numbers: mean, 95th percentile, ends of the interval of real servers, limit of the SLO.

    The upper end is infinite if the slowest of them cannot keep up.
    """

    mean: float | None
    p95: float | None
    real_servers: tuple[float, float] | None
    limit: float | None


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """One latency: its mean with the interval of real servers, its tail, and how many requests are within its limit.

    As text; `seconds` holds the numbers.
    """

    label: str
    mean: str
    real_servers: str
    p95: str
    limit: str
    seconds: LatencySeconds

    @property
    def text(self) -> str:
        """The latency in one sentence."""
        real = f" ({self.real_servers})" if self.real_servers else ""
        return f"{self.mean} mean{real}, {self.p95} p95{'; ' if self.limit else ''}{self.limit}"


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a brief: its name and what it says."""

    label: str
    text: str
    is_extra: bool = False  # Whether it is dropped if there is no room for every line.
    is_whole: bool = False  # Whether all of its clauses are shown, however many lines they take.


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What to know about an answer before anything else."""

    verdict: Verdict  # ``holds``, ``missed`` or ``none``.
    answer: str  # Whether it holds, in one sentence.
    subject: str = ""  # What was asked about: model, GPUs, engine, traffic.
    warnings: Sequence[str] = ()  # Warnings before the answer, one line each.
    ways: Sequence[Way] = ()  # What to do, the best first.
    latencies: Sequence[LatencyLine] = ()  # TTFT, TPOT, ITL, E2E; empty if nothing was measured.
    facts: Sequence[Fact] = ()  # Cost, load, trust, in the order a reader asks.


def brief_of_run(result: RunResult, reference: Sequence[str] = STORED, folder: Path | None = None) -> Brief:
    """Return the brief of a run.

    Args:
        reference: Arguments that name the scenario of the run in a command of simserve.
        folder: Where its files are; None without files.
    """
    summary, completed = result.summary, result.summary["completed"]
    lengths = ""
    if completed:
        prompt, output = summary["total_input_tokens"] / completed, summary["total_output_tokens"] / completed
        lengths = f"; {number(prompt)} + {number(output)} tokens"
    formats = formats_line(summary["simserve"]["formats"])
    lines = [
        Fact(
            "Cost",
            cost_text(result.summary, facts.gpus_text(result, facts.num_gpus(result)), verdict(result)),
            is_whole=True,
        ),
        Fact("Load", _load(result)),
    ]
    for name, text in (("Tasks", task_text(result)), ("Rounds", round_text(result))):
        if text is not None:
            lines.insert(0, Fact(name, text))
    if completed:
        lines.append(Fact("Trust", trust_text(result)))
    if folder is not None:
        asked = "".join(f" {name}" for name in ASKED_FILES if (folder / name).exists())
        lines.append(Fact(FILES, f"{folder}/report.html{asked}"))
    return Brief(
        verdict="missed" if fails(result) else verdict(result),
        answer=answer(result),
        subject=f"{facts.fleet_title(result.scenario)}, {engine_name(result)}; {formats}{lengths}",
        warnings=warning_lines(result.summary["simserve"]),
        ways=_ways(result, reference),
        latencies=latency_lines(result) if completed else (),
        facts=lines if completed else [line for line in lines if line.label not in ("Cost", "Load")],
    )


def _ways(result: RunResult, reference: Sequence[str]) -> list[Way]:
    """Return what to do: what would meet the SLO if a run misses it, else where to look next; never empty."""
    words = reference or ("SCENARIO.yaml",)
    named = " ".join(shlex.quote(word) for word in words)
    summary, inner = result.summary, result.summary["simserve"]
    found = [Way(sentence, command) for sentence, command in advice_lines(summary)]
    if found:
        return found
    if result.simulation.was_interrupted:
        return [Way("It was interrupted. To run all of it:", f"simserve run {named}")]
    too_long = _longest_request(result)
    if not summary["completed"] and too_long is not None:
        return [_longer_context(result, words, too_long)]
    if has_no_way_out(result):
        return [Way(NO_WAY_OUT, plan_command(words, needs_more=True))]
    if fails(result):
        return [Way("To find a deployment that holds:", plan_command(words, needs_more=True))]
    if inner["stability"] == "overloaded":
        return [Way("It needs less traffic or more GPUs. To find how many:", plan_command(words, needs_more=True))]
    if result.slo is None:
        flag = "--slo 'ttft=1s,tpot=50ms'"
        short = Way(f"To judge it, set an SLO: add {flag}", "")
        return [Way("To judge it, set an SLO:", f"simserve run {named} {flag}", short)]
    if inner["slo"]["attainment"] is None:
        longer = 10 * max(int(inner["requests"]["submitted"]), 1)
        return [Way("The run is too short to be judged:", f"simserve run {named} --num-requests {longer}")]
    return [Way("Nothing has to change. To look for a cheaper deployment:", plan_command(words, takes_others=True))]


def _longer_context(result: RunResult, words: Sequence[str], longest: int) -> Way:
    """Return the remedy for prompts that are too long: split them, raise the limit that was set, or add memory."""
    engine, named = result.summary["simserve"]["engine_resolved"], " ".join(shlex.quote(word) for word in words)
    if longest <= engine["max_model_len"]:
        sentence = f"The prompts are longer than a step ({count(engine['max_num_batched_tokens'])} tokens). Split them:"
        return Way(sentence, f"simserve run {named} --set deployment.engine.enable_chunked_prefill=true")
    limit = count(engine["max_model_len"])
    if result.scenario["deployment"].get("engine", {}).get("max_model_len") is not None:
        sentence = f"The prompts are longer than max_model_len ({limit}). Raise it:"
        return Way(sentence, f"simserve run {named} --set deployment.engine.max_model_len={longest}")
    if any("max_model_len" in each for each in result.summary["simserve"].get("warnings", ())):
        sentence = (
            f"The prompts are longer than the KV cache has room for ({limit} tokens). To find GPUs that hold them:"
        )
        return Way(sentence, plan_command(words, needs_more=True))
    source = engine["sources"]["max_model_len"]
    if " default on " in source and "the model's" not in source:
        sentence = (
            f"The prompts are longer than what the engine leaves a request by default ({limit} tokens). Raise it:"
        )
        return Way(sentence, f"simserve run {named} --set deployment.engine.max_model_len={longest}")
    return Way(f"The prompts are longer than the model's context ({limit} tokens). Longer ones:", "simserve models")


def _longest_request(result: RunResult) -> int | None:
    """Return the context that the longest request needs if prompts were too long; None if none was."""
    if not result.summary["simserve"]["rejected"]["by_reason"].get("prompt_too_long"):
        return None
    records = result.simulation.records
    most = int(records.prompt_tokens.max() + max(records.output_tokens.max(), 1))
    return math.ceil(most / _TOKENS_STEP) * _TOKENS_STEP


def latency_lines(result: RunResult) -> list[LatencyLine]:
    """Return the four latencies, each with the interval of the mean on 9 of 10 real servers.

    A latency that no request has (such as TPOT, if answers arrive whole) is left out unless the SLO limits it. If
    requests think, the time to the first visible token follows TTFT.
    """
    summary, inner = result.summary, result.summary["simserve"]
    found = inner.get("prediction_interval") or {}
    known, queues = found.get("metrics") or {}, found.get("queues", False)
    lines = []
    for name, label in LATENCY_LABELS.items():
        figures = {each: summary[f"{each}_{name}"] for each in ("mean", "p95", "p99")}
        ends, is_open = known.get(f"mean_{name}"), queues and name in QUEUED
        lines.append(_latency_line(result, label, _TERMS.get(name), figures, ends, is_open=is_open))
        visible = (inner.get("reasoning") or {}).get("ttfvt_ms")
        if name == "ttft_ms" and visible is not None:
            ends = _visible_ends(summary, known, visible["mean"])
            lines.append(_latency_line(result, "TTFVT", "ttfvt", visible, ends, is_open=is_open))
    return [each for each in lines if each.seconds.mean is not None or each.limit] or lines


def _visible_ends(
    summary: Mapping[str, Any], known: Mapping[str, Any], mean: float | None
) -> tuple[float, float] | None:
    """Return the interval of the mean time to the first visible token: that of TTFT plus steps of thinking.

    Composed like that of E2E (`simserve.metrics.real_server`).
    """
    first, step = known.get("mean_ttft_ms"), known.get("mean_tpot_ms")
    if mean is None or not first or not step or not summary["mean_tpot_ms"]:
        return None
    thought = max(mean - summary["mean_ttft_ms"], 0.0) / summary["mean_tpot_ms"]
    return first[0] + thought * step[0], first[1] + thought * step[1]


def _latency_line(
    result: RunResult,
    label: str,
    term: str | None,
    figures: Mapping[str, float | None],
    ends: Sequence[float] | None,
    *,
    is_open: bool,
) -> LatencyLine:
    """Return the line of one latency; ``figures`` and ``ends`` in milliseconds."""
    unit, factor = latency_unit(figures["p99"])
    mean, tail = figures["mean"], figures["p95"]
    if (mean or 0.0) >= _SECONDS_FROM_MEAN:
        unit, factor = "s", 1000.0
    limit = None if result.slo is None or term is None else getattr(result.slo, term)
    met = None if term is None else result.summary["simserve"]["slo"]["by_metric"].get(term)
    return LatencyLine(
        label=label,
        mean=_in_unit(mean, unit, factor),
        real_servers=_real_servers(ends, unit, factor, is_open=is_open) if ends else "",
        p95=_in_unit(tail, unit, factor),
        seconds=LatencySeconds(
            mean=None if mean is None else mean / 1e3,
            p95=None if tail is None else tail / 1e3,
            real_servers=(ends[0] / 1e3, math.inf if is_open else ends[1] / 1e3) if ends else None,
            limit=limit,
        ),
        limit="" if limit is None or met is None else f"{share(met)} within {format_seconds(limit)}",
    )


def _real_servers(ends: Sequence[float], unit: str, factor: float, *, is_open: bool) -> str:
    """Return both ends of an interval in milliseconds, the high one in seconds if far larger; only the low if open."""
    low, high = ends
    if is_open:
        return f"from {_in_unit(low, unit, factor)}, may queue"
    if unit == "ms" and high >= _MOST_MILLISECONDS:
        return f"{number(low)} ms to {number(high / 1e3)} s"
    return f"{number(low / factor)} to {_in_unit(high, unit, factor)}"


def _in_unit(milliseconds: float | None, unit: str, factor: float) -> str:
    return UNDEFINED if milliseconds is None else f"{number(milliseconds / factor)} {unit}"


def _load(result: RunResult) -> str:
    """Return how the load compares with what can be sustained, up to which load the SLO holds, and the bottleneck."""
    inner = result.summary["simserve"]
    binding = inner["bottleneck"]["binding"]
    limits = "no bottleneck" if binding == "none" else f"bottleneck: {binding}"
    return "; ".join(part for part in (load_text(result), _slo_reach(result), limits) if part)


def load_text(result: RunResult) -> str:
    """Return the load, what the deployment can sustain, and output tokens a second.

    ``'5.50 requests/s, 44% of the 12.6 it can sustain; 1,137 output tokens/s'``.
    """
    inner, served = result.summary["simserve"], number(result.summary["request_throughput"])
    mean, peak, most = inner["load_ratio"], inner["peak_load_ratio"], inner["finishable_throughput"]
    if mean is None or most is None:
        how = {"closed": "a closed loop: clients wait for answers", "mixed": "part of it in a closed loop"}
        kind = how.get(inner["load"], "no steady rate, so no load ratio")
        return f"{served} requests/s, {_output_text(result)}; {kind}"
    highest = "" if peak is None else f", {_times(peak)} of it in the busiest five minutes"
    of = " of" if mean < 1 else ""
    load = f"{number(mean * most)} requests/s, {_times(mean)}{of} the {number(most)} {_sustained_by(result)}{highest}"
    return f"{load}; {number(result.summary['output_throughput'])} output tokens/s"


def _sustained_by(result: RunResult) -> str:
    """Return what can sustain the load of the comparison: with an autoscaler it is every replica that there may be."""
    deployment = result.scenario["deployment"]
    scaled = deployment.get("autoscaling")
    if scaled is not None and not deployment.get("pools"):
        return f"that all {scaled['max_replicas']} replicas can sustain"
    if any(pool.get("autoscaling") for pool in deployment.get("pools") or ()):
        return "that all replicas can sustain"
    return "it can sustain"


def _output_text(result: RunResult) -> str:
    """Return output tokens a second, with the interval of real servers: ``'3,240 output tokens/s (2,120 to 4,490)'``.

    For steady open arrivals, which are served as they come, the interval would carry no information.
    """
    text = f"{number(result.summary['output_throughput'])} output tokens/s"
    found = result.summary["simserve"].get("prediction_interval") or {}
    ends = (found.get("metrics") or {}).get("output_throughput")
    return text if not ends or found.get("queues") else f"{text} ({number(ends[0])} to {number(ends[1])})"


def _times(ratio: float) -> str:
    return f"{number(ratio)} times" if ratio >= 1 else share(ratio)


def _slo_reach(result: RunResult) -> str:
    """Return the highest load tried at which the SLO held, from runs at other loads or the advice; empty if none."""
    advised = [
        value
        for each in result.summary["simserve"].get("advice") or ()
        for key, value in each["changes"].items()
        if key in LOAD_KEYS and len(each["changes"]) == 1
    ]
    loads, slo = result.background.get("loads"), result.slo
    tried = loads["loads"][: num_holding(loads, slo.attainment)] if loads and slo is not None else ()
    reached = max([*advised, *tried], default=None)
    if reached is None:
        return ""
    is_closed = result.summary["simserve"]["load"] == "closed"
    return f"SLO held at {counted(round(reached), 'client') if is_closed else number(reached)} (one run)"


def cost_text(summary: Mapping[str, Any], gpus: str, held: Verdict) -> str:
    """Return dollars a month of the deployment, beside the cheapest API for the same weights or the one that is named.

    For GPUs that miss the SLO it does not say which of the two costs less: `simserve cost` prices those that meet it.

    Args:
        gpus: GPUs of its deployment, in words.
        held: Whether it meets the SLO.
    """
    inner = summary["simserve"]
    hourly, month = inner["cost"]["usd_per_hour"], inner.get("month")
    if hourly is None:
        return f"no price of the GPU is known: --set pricing.gpu_hour_usd=DOLLARS ({gpus})"
    own = hourly * HOURS_PER_MONTH if month is None else month["self_host_usd_per_month"]
    text = f"{dollars(own)} a month on {gpus}"
    if month is None:
        return text
    if held == "missed" and month["cheaper"] is not None:
        return f"{text}, {SLO_MISSED}; {asked_by(month['api'])}"
    return f"{text}; {api_text(month)}"


def api_text(month: Mapping[str, Any]) -> str:
    """Return what an API charges for a month of the same traffic, and which side costs less."""
    api, own = month["api"], month["self_host_usd_per_month"]
    if api is None:
        return "no API is known to serve these weights"
    asked = asked_by(api)
    if month["cheaper"] is None:
        return f"{asked} for all requests"
    if not own:
        return asked
    ratio = api["usd_per_month"] / own
    if ratio >= _TOLD_AS_TIMES:
        return f"{asked}, {ratio:.1f} times as much"
    # "100% less" would be nothing.
    differs = share(1 - ratio) if ratio < _NEARLY_NOTHING else f"{100 * abs(ratio - 1):.0f}%"
    return f"{asked}, {differs} {'more' if ratio > 1 else 'less'}"


def asked_by(api: Mapping[str, Any]) -> str:
    """Return what an API charges for a month: ``'deepinfra-qwen3-32b bills $2,333'``."""
    return f"{api['name']} bills {dollars(api['usd_per_month'])}"


def trust_text(result: RunResult) -> str:
    """Return the basis of the latencies, and what limits them to this run."""
    inner = result.summary["simserve"]
    found = inner.get("prediction_interval")
    parts = []
    if result.simulation.was_interrupted:
        parts.append("interrupted: only what was finished is counted")
    lost = statuses(inner)
    if lost and result.summary["completed"]:
        parts.append(f"of {counted(inner['requests']['submitted'], 'request')}, {lost}")
    caveat = steady_state_caveat(result)
    if caveat:
        parts.append(caveat)
    if inner["replications"]["precision"] is not None and not inner["replications"]["reached"]:
        parts.append(facts.precision_reached(inner["replications"]).removeprefix("; "))
    if inner["settled"] is False and not caveat:
        parts.append(f"too short a run to have settled{_LENGTHENS}")
    if short := short_loop_caveat(result):
        parts.append(short)
    if found is not None:
        parts += resting(f"ranges are for {found['level']:.0%} of real servers", found["basis"])
        if found.get("queues"):
            parts.append(facts.CANNOT_KEEP_UP)
    if inner["fidelity"] == "roofline":
        parts.append(ROOFLINE)
    return "; ".join(parts) or UNDEFINED


ROOFLINE = "step times are datasheet peaks, not measured"


def resting(told: str, basis: str) -> list[str]:
    """Return a claim and the measured servers that it is based on, as clauses, the most important first.

    If no server like it was measured, one clause says both that and what is based on others.

    Args:
        told: The claim.
        basis: The basis in ``prediction_interval``.
    """
    known, _, lacking = basis.partition("foreign: ")
    if lacking:
        unmeasured = lacking.replace("no measurement under", "servers under").removeprefix("no measurement of ")
        return [f"{told}, judging by other kinds: nobody has measured {unmeasured}"]
    number_of, like, which = known.partition(" servers of ")
    if known.startswith(CALIBRATED):
        return f"{told}, {known}".split("; ")
    if not like:
        return [f"{told}, from {known}"]
    figure, of, rest = which.rpartition(ALONE)
    if of and not rest:
        return [f"{told}, judging by the throughput of {number_of} measured ones like it", f"those run {figure}"]
    return [f"{told}, judging by {number_of} measured ones like it", f"those run {which}"]


def deployed_brief(scenario: Scenario, reference: Sequence[str] = STORED, *, is_whole: bool = False) -> Brief:
    """Return the brief of a scenario as it is: that of one run, for answers about more than that.

    Args:
        reference: Arguments that name the scenario in a command of simserve.
        is_whole: Whether a run that the user stops ends this, too; otherwise its part is shown.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: A profile or trace no longer exists.
        KeyboardInterrupt: The user stopped the run, and ``is_whole``.
    """
    from simserve.planner.cost.month import month
    from simserve.scenario.resolve import resolve
    from simserve.scenario.run import run

    once = scenario.run.model_copy(update={"replications": 1, "precision": None})
    resolved = resolve(scenario.model_copy(update={"run": once}))
    finishable: KnownFinishable = {}
    result = run(resolved, finishable=finishable)
    if is_whole and result.simulation.was_interrupted:
        raise KeyboardInterrupt
    inner = {**result.summary["simserve"], "month": month(resolved, result, finishable)}
    brief = brief_of_run(replace(result, summary=frozen({**result.summary, "simserve": inner})), reference)
    # Only `simserve run` has that flag with that meaning.
    return replace(brief, facts=[replace(each, text=each.text.replace(_LENGTHENS, "")) for each in brief.facts])


def about(
    deployed: Brief, answered: str, verdict: Verdict, *, more: Sequence[Fact] = (), ways: Sequence[Way] = ()
) -> Brief:
    """Return the brief of an answer about a deployment: the answer, then whether it holds as it is, cost, load, trust.

    Args:
        more: Further lines, directly below the one that says whether it holds.
    """
    return replace(
        deployed,
        verdict=verdict,
        answer=answered,
        ways=ways,
        facts=[Fact(NOW, deployed.answer.rstrip(".")), *more, *deployed.facts],
    )


def fact_text(brief: Brief, label: str) -> str:
    """Return the text of a brief under a label; empty if it has none."""
    return next((each.text for each in brief.facts if each.label == label), "")


def with_page(brief: Brief, page: Path | None, written: Path | None = None) -> Brief:
    """Return a brief whose last line says where the page of the answer is.

    Args:
        page: The file; None if none was asked for.
        written: Another file of the answer; None without one.
    """
    files = " ".join(str(each) for each in (written, page) if each is not None) or "none"
    where = files if page is not None else f"{files}; --html FILE writes a page"
    return replace(brief, facts=[*brief.facts, Fact(FILES, where)])
