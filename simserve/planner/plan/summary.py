"""The plan in plain values: exactly what `simserve plan --json` prints. Simulates nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from simserve.planner.capacity.probe import ramp_of
from simserve.planner.capacity.search import FRESH_CONFIDENCE
from simserve.planner.cost.month import fixed_usd_per_month
from simserve.planner.plan.explain import command, counted, describe
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.fleet import CONFIRMING_REPLICATIONS, MOST_TRAFFIC, trial_figures
from simserve.planner.plan.infeasible import Miss
from simserve.planner.plan.price import Market, price_of
from simserve.planner.plan.roles import link_line, role_lines
from simserve.planner.plan.runners import faster, pareto, runners_up, usd_per_million_tokens
from simserve.planner.search.deciding_run import further_run
from simserve.planner.search.explain import plain
from simserve.planner.search.member import GroupResult, Member
from simserve.planner.search.trial import TERMS, Trial, deployed, deployed_overrides, usd_per_month
from simserve.planner.space.space import VERSIONS_NAME
from simserve.scenario.deployment_spec import tiers_usd_per_hour
from simserve.scenario.fit import leading_warnings
from simserve.scenario.media import encoders_usd_per_hour
from simserve.scenario.resolve import assumed_architectures, resolve
from simserve.scenario.schema import Scenario, objective, objective_mapping
from simserve.units import HOURS_PER_MONTH
from simserve.workload.generate import generate

PRICE_CHANGE = 0.2
_PER_UNIT = ("self_host_usd_per_request", "self_host_usd_per_million_tokens")
ENOUGH_OF_RATE = 0.9
"""Share of the requested rate that conversations must have reached, on average over what was measured."""


def summary_of(found: Findings, *, headroom: float, market: Market) -> dict[str, Any]:
    """Return everything a plan says, as plain values.

    Args:
        headroom: Extra share of traffic asked for, beyond the scenario's.
    """
    best, unbeaten = _best(found), pareto(found)
    return {
        "warnings": _warnings(found),
        "feasible": best is not None,
        "scenario": found.scenario.name,
        "seed": found.scenario.run.seed,
        "objective": found.goal.objective,
        "slo": objective_mapping(found.scenario),
        "max_gpus": found.goal.max_gpus,
        "headroom": headroom,
        "spare_replicas": found.goal.spare_replicas,
        "market": market,
        "confidence": found.goal.confidence,
        "kept": list(found.kept),
        "best": best,
        "binding": _binding(found),
        "roles": found.roles,
        "candidates": [_candidate(found, group, member) for group in found.groups for member in group.members],
        "runners_up": list(runners_up(found)),
        "pareto": unbeaten,
        "faster": None if best is None else faster(best, unbeaten),
        "nearest_miss": None if found.miss is None else _miss(found, found.miss),
        "sensitivity": list(_sensitivity(found)),
        "changes": list(_changes(found)),
        "month": None if best is None else _month(found, best),
        "single_changes": found.singles,
        "search": _search(found),
    }


def _warnings(found: Findings) -> list[str]:
    """Return the warnings that lead the answer: versions left out, assumed architectures, what fits only with less."""
    too_old = found.left_out.get(VERSIONS_NAME)
    left_out = [f"left out: {too_old}"] if too_old else []
    if found.member is None:
        return [*left_out, *assumed_architectures(found.scenario)]
    return [*left_out, *leading_warnings(deployed(found.scenario, found.member.overrides, 1))]


def _best(found: Findings) -> dict[str, Any] | None:
    member, trial = found.member, found.confirmed
    is_confirmed = trial is not None
    if member is None:
        return None
    trial = trial or member.trial
    if trial is None:
        return None
    whole = trial.with_spares(found.goal.spare_replicas)
    bought = whole.replicas
    there = deployed(found.scenario, member.overrides, bought)
    changes = plain(deployed_overrides(found.scenario, member.overrides, bought))
    return {
        "label": describe(there),
        "formats": _formats(found, there),
        "hardware": there.deployment.hardware,
        "deployment": there.as_mapping()["deployment"],
        "overrides": changes,
        "command": command(found.reference, changes),
        **trial_figures(trial),
        "probability_basis": trial.error_basis or None,
        "measurement": _measurement(found, trial, changes),
        "replicas": bought,
        "replicas_needed": trial.replicas,
        "num_gpus": whole.num_gpus,
        "encoder_gpus": trial.encoder_gpus,
        "mean_gpus": whole.mean_gpus,
        "usd_per_hour": whole.usd_per_hour,
        "usd_per_month": usd_per_month(whole),
        "usd_per_gpu_hour": member.usd_per_gpu_hour,
        "usd_per_million_tokens": usd_per_million_tokens(found, whole),
        "watts": whole.watts,
        "assumes": _assumed(found, there),
        "busy": trial.busy,
        "mean_batch": trial.figures["mean_batch"],
        "duration_s": trial.duration,
        "bottleneck": trial.binding,
        "fidelity": trial.fidelity,
        "confirmed": {
            "is_confirmed": is_confirmed,
            "replications": CONFIRMING_REPLICATIONS if is_confirmed and found.scenario.workload.trace is None else 1,
            "requests": trial.requests,
        },
        "bound": _bound(member),
        "attainment_interval": _attainment_interval(found),
        "traffic_sustained": found.sustained_traffic,
        "lost_replica": _lost(found, whole),
        "spot": _spot(found, there, whole.mean_gpus),
        "link": found.link,
        "arithmetic": list(_arithmetic(found, member, trial)),
    }


def _month(found: Findings, best: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the month of the plan; a scaled fleet is priced by its confirming runs, like the plan."""
    month, usd = found.month, best["usd_per_month"]
    if month is None or usd is None or math.isclose(best["mean_gpus"], best["num_gpus"], rel_tol=1e-3):
        return month
    own = usd + fixed_usd_per_month(found.scenario)
    cheaper = month["cheaper"]
    if cheaper is not None:
        cheaper = "self_host" if own < month["api"]["usd_per_month"] else "api"
    per = {name: month[name] * own / month["self_host_usd_per_month"] for name in _PER_UNIT}
    return {**month, **per, "self_host_usd_per_month": own, "cheaper": cheaper}


def _attainment_interval(found: Findings) -> dict[str, float] | None:
    """Return the expected range of attainment in one more run, from fresh runs; None without any."""
    promise = None if found.fleet is None else found.fleet.promise
    if promise is None or len(promise.attainments) < 2:
        return None
    low, high = further_run(promise.attainments)
    return {"low": low, "high": high, "confidence": FRESH_CONFIDENCE, "runs": len(promise.attainments)}


def _measurement(found: Findings, trial: Trial, changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what measuring one replica would gain if it performs as predicted; None if nothing.

    It raises the probability that the SLO holds; with a confidence, a cheaper fleet may then be sure enough.
    """
    after, spare = found.once_measured, found.goal.spare_replicas
    if after is not None:
        changes = plain(deployed_overrides(found.scenario, after.overrides, after.replicas + spare))
    elif trial.probability_measured == trial.probability:
        return None
    now, then = (each.with_spares(spare) for each in (trial, after or trial))
    return {
        "command": command(found.reference, changes, "calibrate loads"),
        "label": describe(deployed(found.scenario, then.overrides, then.replicas)),
        "probability": then.probability_measured,
        "num_gpus": then.num_gpus,
        "saves_gpus": now.num_gpus - then.num_gpus,
        "saves_usd_per_month": None
        if now.usd_per_hour is None
        else (now.usd_per_hour - (then.usd_per_hour or 0.0)) * HOURS_PER_MONTH,
    }


def _formats(found: Findings, there: Scenario) -> dict[str, Any]:
    """Return the formats of the plan; for a KV format that the scenario does not name, that the plan chose it."""
    formats = resolve(there).formats
    if there.deployment.kv_cache_dtype != found.scenario.deployment.kv_cache_dtype:
        for each in (formats, *formats["pools"].values()):
            if each["kv_cache_source"] == "as asked":
                each["kv_cache_source"] = "chosen by the plan"
    return formats


def _assumed(found: Findings, there: Scenario) -> list[str]:
    """Return in words which figures of a plan are assumptions."""
    return [*drafts_assumed(found.scenario, there), *_still_beginning(found)]


def _still_beginning(found: Findings) -> list[str]:
    """Return a note if conversations or tasks have not reached their rate when the scenario's run ends."""
    workload, trial = found.planned.workload, found.confirmed
    rate = getattr(workload.arrivals, "rate", None)
    reached = None if trial is None else trial.figures["request_throughput"]
    has_followers = workload.sessions is not None or workload.agents is not None
    if not has_followers or workload.trace is not None or rate is None or not reached:
        return []
    if reached >= ENOUGH_OF_RATE * rate:
        return []
    ramp = ramp_of(generate(workload, seed=found.planned.run.seed, base_path=found.planned.folder))
    if ramp is None:
        return []
    enough = round(2 * rate * ramp.seconds(0.0), -3)
    kind = "conversations" if workload.agents is None else "tasks"
    return [
        f"{reached:.3g} requests come a second, not {rate:g}: {kind} are still beginning when the run ends; the "
        f"fleet for {rate:g} is planned with --set workload.num_requests={max(enough, 1000):.0f}"
    ]


def drafts_assumed(scenario: Scenario, there: Scenario) -> list[str]:
    """Return in words what is assumed of drafts that a plan adds to a scenario; empty where it adds none."""
    drafts = there.deployment.speculative
    if drafts is None or scenario.deployment.speculative is not None:
        return []
    rate = "" if drafts.acceptance_rate is None else f" {drafts.acceptance_rate:g} of the time"
    decay = "" if drafts.acceptance_decay is None else f", {drafts.acceptance_decay:g} times that from draft to draft"
    return [
        f"a draft is accepted{rate}{decay}; measure it on your prompts and set deployment.speculative "
        "(calibration/speculation.md says how it differs between prompts)"
    ]


def _bound(member: Member) -> dict[str, float]:
    return {
        "least_replicas": member.bound.least_replicas,
        **{f"{term}_ms": member.bound.of(term) * 1e3 for term in TERMS},
    }


def _lost(found: Findings, bought: Trial) -> dict[str, Any]:
    """Return what losing one replica does, and what a spare one costs."""
    hourly, fewer = bought.usd_per_hour, found.fewer
    return {
        "still_holds": found.goal.spare_replicas > 0 or (fewer is not None and fewer.holds),
        "without_spares": None if fewer is None else trial_figures(fewer),
        "spare_usd_per_month": None if hourly is None else hourly / bought.replicas * HOURS_PER_MONTH,
    }


def _spot(found: Findings, there: Scenario, num_gpus: float) -> dict[str, float] | None:
    price = price_of(found.scenario, there.deployment.hardware, "spot").usd
    if price is None or any(pool.hardware is not None for pool in there.deployment.pools):
        return None
    hourly = price * num_gpus
    return {"usd_per_gpu_hour": price, "usd_per_hour": hourly, "usd_per_month": hourly * HOURS_PER_MONTH}


_WHY_MORE = ("fewer have not held in every run", "some are spare")
"""Whether replicas are spare -> why there are more than the arithmetic asks for."""


def _arithmetic(found: Findings, member: Member, trial: Trial) -> Iterator[str]:
    """Yield, line by line, why this many GPUs are needed."""
    completed = trial.figures["completed"] or 0
    rate = getattr(found.planned.workload.arrivals, "rate", None)
    if completed:
        prompt = (trial.figures["total_input_tokens"] or 0) / completed
        output = (trial.figures["total_output_tokens"] or 0) / completed
        if rate is not None:
            yield (
                f"{rate:,.4g} requests/s x {prompt:,.0f} prompt and {output:,.0f} output tokens = "
                f"{rate * prompt:,.0f} prompt and {rate * output:,.0f} output tokens/s"
            )
    multiple = found.sustained_traffic
    asked = getattr(found.scenario.workload.arrivals, "rate", None)
    if found.roles:
        yield from role_lines(found.roles, rate)
        if found.link is not None:
            yield link_line(found.link)
    elif multiple is not None and asked is not None:
        capacity = asked * multiple / trial.replicas
        at_least = "at least " if multiple >= MOST_TRAFFIC else ""
        share = f"{rate:,.4g} / {capacity:,.3g} = {rate / capacity:,.2f}"
        needed = f"{share}, so {counted(trial.replicas, 'replica')}"
        if math.ceil(rate / capacity) < trial.replicas:
            needed = f"{share}; {counted(trial.replicas, 'replica')}, as {_WHY_MORE[found.goal.spare_replicas > 0]}"
        if multiple < 1:
            all_of_them = f"{counted(trial.replicas, 'replica')} {asked * multiple:,.3g} of {asked:,.4g}"
            needed = f"{all_of_them}, which conversations have not reached when the run ends"
        within = "" if objective(found.scenario) is None else " within the SLO"
        yield f"one replica can sustain {at_least}{capacity:,.3g} requests/s{within} (simulated): {needed}"
    if member.bound.least_replicas > 1:
        yield f"fewer than {member.bound.least_replicas} replicas cannot do the work in time (bound)"
    yield from _unconfirmed(found)
    yield from _price(found, member, trial)
    yield from _sellers(found, member, trial)


def _unconfirmed(found: Findings) -> Iterator[str]:
    """Yield the fleets ranked before the plan that failed to be confirmed."""
    failed = [each for each in found.confirmations if not each.holds]
    if not failed or found.confirmed is None:
        return
    label = describe(deployed(found.scenario, failed[0].overrides, failed[0].replicas))
    kept = found.confirmed
    if label == describe(deployed(found.scenario, kept.overrides, kept.replicas)):
        label = "the same fleet with other engine settings"
    others = f"; nor did {counted(len(failed) - 1, 'other fleet')}" if len(failed) > 1 else ""
    yield f"{label} held in the search, but not in the runs that confirm{others}"


def _price(found: Findings, member: Member, trial: Trial) -> Iterator[str]:
    """Yield what the fleet costs: whole GPUs at a price, or the bill of a fleet that changes size."""
    bought = trial.replicas + found.goal.spare_replicas
    month = None if trial.usd_per_hour is None else trial.usd_per_hour * HOURS_PER_MONTH
    whole = deployed(found.scenario, member.overrides, bought)
    deployment = whole.deployment
    if deployment.autoscaling is not None and month is not None and member.usd_per_gpu_hour is not None:
        yield (
            f"{trial.mean_gpus:,.3g} GPUs are paid for on average, {trial.num_gpus} at most: x "
            f"${member.usd_per_gpu_hour:,.4g} an hour = ${trial.usd_per_hour:,.2f} an hour = ${month:,.0f} a month of "
            f"30 days; a fixed fleet of {trial.num_gpus} would cost "
            f"${trial.num_gpus * member.usd_per_gpu_hour * HOURS_PER_MONTH:,.0f}"
        )
    elif deployment.pools and member.makeup is not None and trial.usd_per_hour is not None and month is not None:
        makeup = member.makeup
        counts = makeup.counts(trial.replicas)
        parts = [
            f"{count * gpus} x ${usd or 0.0:,.4g} ({pool.name})"
            for count, gpus, usd, pool in zip(
                counts, makeup.gpus, makeup.usd_per_gpu_hour, deployment.pools, strict=True
            )
        ]
        yield f"{' + '.join(parts)} an hour = ${trial.usd_per_hour:,.2f} an hour = ${month:,.0f} a month of 30 days"
    elif member.usd_per_gpu_hour is not None:
        gpus = bought * member.num_gpus
        hourly = gpus * member.usd_per_gpu_hour
        bought_words = f"{counted(bought, 'replica')} x {counted(member.num_gpus, 'GPU')}"
        yield (
            f"{bought_words} x ${member.usd_per_gpu_hour:,.4g} an hour = ${hourly:,.2f} an hour = "
            f"${hourly * HOURS_PER_MONTH:,.0f} a month of 30 days"
        )
        tiers = deployment.engine.kv_tiers or ()
        own = tiers_usd_per_hour(tiers, bought, is_shared=False) + tiers_usd_per_hour(tiers, 1, is_shared=True)
        if own:
            yield f"and KV tiers take ${own:,.2f} an hour = ${own * HOURS_PER_MONTH:,.0f} a month"
        if deployment.encoder_disaggregation is not None:
            encoders = encoders_usd_per_hour(resolve(whole))
            count = counted(deployment.encoder_disaggregation.replicas, "encoder worker")
            if deployment.encoder_disaggregation.autoscaling is not None and trial.usd_per_hour is not None:
                # An encoder pool has no API beside it: the rest of the run's dollars is the pool's.
                encoders = trial.usd_per_hour - trial.num_gpus * member.usd_per_gpu_hour - own
                count = f"{deployment.encoder_disaggregation.max_workers} encoder workers at most, on average"
            own += encoders
            yield f"and {count} ${encoders:,.2f} an hour = ${encoders * HOURS_PER_MONTH:,.0f} a month"
        if deployment.overflow is not None and trial.usd_per_hour is not None:
            api = trial.usd_per_hour - trial.num_gpus * member.usd_per_gpu_hour - own
            yield f"and {deployment.overflow.api} takes ${api:,.2f} an hour = ${api * HOURS_PER_MONTH:,.0f} a month"


def _sellers(found: Findings, member: Member, trial: Trial) -> Iterator[str]:
    """Yield the seller and the date of each GPU price, unless the scenario states the price."""
    resolved = resolve(deployed(found.scenario, member.overrides, trial.replicas))
    prices = {each.gpu_hour for each in resolved.pools or (resolved,)}
    for price in sorted(prices, key=lambda each: each.source):
        if price.usd is not None and price.date is not None:
            yield f"${price.usd:,.4g} an hour: {price.source}"


def _binding(found: Findings) -> str | None:
    """Return what prevents a smaller plan: the SLO term that fails first, else the bottleneck."""
    if found.miss is not None:
        return found.miss.metric
    if found.goal.confidence is not None and found.fewer is not None and found.fewer.holds:
        return "confidence"
    failing = found.fewer if found.fewer is not None and not found.fewer.holds else found.confirmed
    if failing is None:
        return None
    term = failing.most_missed
    return term if term is not None and (failing.by_metric[term] or 0.0) < 1 else failing.binding


def _candidate(found: Findings, group: GroupResult, member: Member) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "hardware": group.hardware,
        "overrides": plain(member.overrides),
        "status": "best" if member is found.member else member.status,
        "reason": member.reason,
        "gpus_per_replica": member.num_gpus or None,
        "bound": _bound(member) if member.num_gpus else None,
    }
    if member.trial is not None:
        entry["label"] = describe(deployed(found.scenario, member.overrides, member.trial.replicas))
        entry["usd_per_month"] = usd_per_month(member.trial)
        entry["watts"] = member.trial.watts
        entry |= trial_figures(member.trial)
    return entry


def _miss(found: Findings, miss: Miss) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "metric": miss.metric,
        "asked": miss.limit,
        "reached": miss.reached,
        "is_bound": miss.is_bound,
        "missed_by": None if miss.limit is None or miss.reached is None else miss.reached - miss.limit,
        "relax": miss.relax,
        "highest_probability": miss.highest_probability,
        "unreachable": list(miss.relaxed_terms),
        "relaxed_plan": miss.relaxed_plan,
    }
    if miss.member is not None:
        replicas = miss.trial.replicas if miss.trial is not None else miss.member.bound.least_replicas
        entry["label"] = describe(deployed(found.scenario, miss.member.overrides, replicas))
        entry["overrides"] = plain(deployed_overrides(found.scenario, miss.member.overrides, replicas))
        entry["bound"] = _bound(miss.member)
        if miss.trial is not None:
            entry |= trial_figures(miss.trial)
    if miss.drafted is not None:
        there = deployed(found.scenario, miss.drafted.overrides, miss.drafted.replicas)
        entry["with_drafts"] = {
            "label": describe(there),
            "overrides": plain(deployed_overrides(found.scenario, miss.drafted.overrides, miss.drafted.replicas)),
            "assumes": _assumed(found, there),
            **trial_figures(miss.drafted),
        }
    return entry


def _sensitivity(found: Findings) -> Iterator[dict[str, Any]]:
    if found.confirmed is None:
        return
    prices = (("price", change, found.confirmed) for change in (-PRICE_CHANGE, PRICE_CHANGE))
    for what, change, trial in (*found.sensitivity, *prices):
        refusal, sized = (trial, None) if isinstance(trial, str) else (None, trial)
        dollars = None if sized is None else usd_per_month(sized)
        yield {
            "what": what,
            "change": change,
            "replicas": None if sized is None else sized.replicas,
            "num_gpus": None if sized is None else sized.num_gpus,
            "usd_per_month": dollars * (1 + change) if dollars is not None and what == "price" else dollars,
            "reason": refusal,
        }


def _changes(found: Findings) -> Iterator[dict[str, Any]]:
    """Yield, for each lever, the fleet that it would need, compared with the plan's."""
    if found.confirmed is None:
        return
    own = usd_per_month(found.confirmed)
    for lever, overrides, trial in found.levers:
        entry: dict[str, Any] = {"lever": lever.name, "variant": lever.label, "overrides": plain(overrides)}
        if isinstance(trial, str) or trial is None:
            reason = trial if isinstance(trial, str) else "does not hold with four times the replicas"
            yield {**entry, "replicas": None, "usd_per_month": None, "usd_per_month_more": None, "reason": reason}
            continue
        dollars = usd_per_month(trial)
        more = None if dollars is None or own is None else dollars - own
        yield {
            **entry,
            "replicas": trial.replicas,
            "num_gpus": trial.num_gpus,
            "usd_per_month": dollars,
            "usd_per_month_more": more,
            "reason": "",
            "p95_ttft_ms": trial.latencies["p95_ttft_ms"],
            "p95_tpot_ms": trial.latencies["p95_tpot_ms"],
            "usd_per_million_tokens": usd_per_million_tokens(found, trial),
        }


def _search(found: Findings) -> dict[str, Any]:
    statuses = [member.status for group in found.groups for member in group.members]
    counts: Mapping[str, int] = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    return {
        "combinations": sum(group.size for group in found.groups),
        "looked_at": len(statuses),
        "by_status": dict(counts),
        "simulations": sum(len(group.trials) for group in found.groups),
        "hardware": [group.hardware for group in found.groups],
        "skipped": dict(found.skipped),
        "options": {name: [choice.label for choice in choices] for name, choices in found.options.items()},
        "left_out": dict(found.left_out),
        "methods": {group.hardware: group.method for group in found.groups},
    }
