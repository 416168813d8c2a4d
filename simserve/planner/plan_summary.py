"""The plan in plain values: exactly what `simserve plan --json` prints. Simulates nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simserve.planner.advice import Lever
from simserve.planner.plan_fleet import CONFIRMING_REPLICATIONS, Fleet, trial_figures
from simserve.planner.plan_front import front
from simserve.planner.plan_miss import Miss
from simserve.planner.plan_price import Market, price_of
from simserve.planner.search import Goal, GroupResult, Member, plain
from simserve.planner.search_trial import HOURS_PER_MONTH, TERMS, Trial, is_one_job, usd_per_month
from simserve.planner.space import REPLICAS_KEY, Overrides, with_overrides
from simserve.scenario.schema import Scenario

PRICE_CHANGE = 0.2


@dataclass(kw_only=True)
class Findings:
    """What a search has found so far.

    Attributes:
        scenario: What was asked.
        borne: The same with the headroom's traffic.
        goal: What is to be small.
        reference: What stands after ``simserve run`` to run the scenario.
        groups: The search on each kind of GPU.
        skipped: GPUs that were not searched, and why.
        fleet: The best, confirmed.
        confirmed: Its confirming run.
        member: Its deployment.
        group: Its kind of GPU.
        confirmations: All confirming runs, those that failed too.
        borne_traffic: Largest traffic it bears, as a multiple of the scenario's.
        fewer: Its run with one replica lost.
        sensitivity: Name of what changed, by which share, the fleet that is then needed.
        levers: Lever, overrides, and the fleet that is then needed, or why there is none.
        front_trials: Runs of other fleets.
        miss: What came nearest, where nothing holds.
    """

    scenario: Scenario
    borne: Scenario
    goal: Goal
    reference: tuple[str, ...]
    groups: list[GroupResult] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    fleet: Fleet | None = None
    confirmed: Trial | None = None
    member: Member | None = None
    group: GroupResult | None = None
    confirmations: list[Trial] = field(default_factory=list)
    borne_traffic: float | None = None
    fewer: Trial | None = None
    sensitivity: list[tuple[str, float, Trial | None]] = field(default_factory=list)
    levers: list[tuple[Lever, Overrides, Trial | str | None]] = field(default_factory=list)
    front_trials: list[Trial] = field(default_factory=list)
    miss: Miss | None = None


def summary_of(found: Findings, *, headroom: float, market: Market) -> dict[str, Any]:
    """Return everything a plan says, as plain values.

    Args:
        found: What the search found.
        headroom: Share of traffic asked for beyond the scenario's.
        market: Where GPUs are bought.
    """
    best = _best(found)
    return {
        "feasible": best is not None,
        "scenario": found.scenario.name,
        "seed": found.scenario.run.seed,
        "objective": found.goal.objective,
        "slo": None if found.scenario.slo is None else found.scenario.as_mapping()["slo"],
        "max_gpus": found.goal.max_gpus,
        "headroom": headroom,
        "spare_replicas": found.goal.spare_replicas,
        "market": market,
        "best": best,
        "binding": _binding(found),
        "candidates": [_candidate(found, group, member) for group in found.groups for member in group.members],
        "runners_up": list(_runners_up(found)),
        "pareto": _pareto(found),
        "nearest_miss": None if found.miss is None else _miss(found, found.miss),
        "sensitivity": list(_sensitivity(found)),
        "advice": list(_advice(found)),
        "search": _search(found),
    }


def describe(scenario: Scenario) -> str:
    """Return a fleet in words: ``2 x (TP 2 on h100-sxm-80gb, fp8, KV fp8)``."""
    deployment = scenario.deployment
    parts = []
    if deployment.gpus_per_replica > 1:
        sizes = [f"TP {deployment.tensor_parallel_size}"] if deployment.tensor_parallel_size > 1 else []
        if deployment.pipeline_parallel_size > 1:
            sizes.append(f"PP {deployment.pipeline_parallel_size}")
        parts.append(" x ".join(sizes))
    if deployment.enable_expert_parallel:
        parts.append("EP")
    parts.append("16-bit" if deployment.quantization == "none" else deployment.quantization)
    if deployment.kv_cache_dtype != "auto":
        parts.append(f"KV {deployment.kv_cache_dtype}")
    hardware = f"{deployment.gpus_per_replica} x {deployment.hardware}"
    inner = f"{hardware}, {', '.join(parts)}"
    return f"{deployment.replicas} x ({inner})" if deployment.replicas > 1 else inner


def command(reference: Sequence[str], overrides: Overrides, replicas: int | None) -> str:
    """Return the command that runs a fleet."""
    changes = dict(overrides) if replicas is None else {**overrides, REPLICAS_KEY: replicas}
    words = [*(reference or ("SCENARIO.yaml",)), *(_set(key, changes[key]) for key in sorted(changes))]
    return " ".join(["simserve run", *words])


def _set(key: str, value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"--set {key}={text}" if all(each not in text for each in " ,{}'\"") else f"--set '{key}={text}'"


def _deployed(found: Findings, overrides: Overrides, replicas: int) -> Scenario:
    return with_overrides(found.scenario, {**overrides, REPLICAS_KEY: replicas})


def _best(found: Findings) -> dict[str, Any] | None:
    member, trial = found.member, found.confirmed
    is_confirmed = trial is not None
    if member is None or trial is None:
        # Interrupted before anything was confirmed: the first best will do.
        best = next((group.best for group in found.groups if group.best is not None), None)
        if best is None or best.trial is None or found.miss is not None:
            return None
        member, trial = best, best.trial
    spare = found.goal.spare_replicas
    bought = trial.replicas + spare
    deployed = _deployed(found, member.overrides, bought)
    share = bought / trial.replicas
    hourly = None if trial.usd_per_hour is None else trial.usd_per_hour * share
    changes = plain({**member.overrides, REPLICAS_KEY: bought})
    return {
        "label": describe(deployed),
        "hardware": deployed.deployment.hardware,
        "deployment": deployed.as_mapping()["deployment"],
        "overrides": changes,
        "command": command(found.reference, member.overrides, bought),
        **trial_figures(trial),
        "replicas": bought,
        "replicas_needed": trial.replicas,
        "num_gpus": deployed.deployment.num_gpus,
        "usd_per_hour": hourly,
        "usd_per_month": None if hourly is None else hourly * HOURS_PER_MONTH,
        "usd_per_gpu_hour": member.usd_per_gpu_hour,
        "usd_per_million_tokens": None
        if trial.usd_per_million_tokens is None
        else trial.usd_per_million_tokens * share,
        "watts": trial.watts * share,
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
        "traffic_borne": found.borne_traffic,
        "lost_replica": _lost(found, hourly, bought),
        "spot": _spot(found, deployed),
        "arithmetic": list(_arithmetic(found, member, trial)),
    }


def _bound(member: Member) -> dict[str, float]:
    return {
        "least_replicas": member.bound.least_replicas,
        **{f"{term}_ms": member.bound.of(term) * 1e3 for term in TERMS},
    }


def _lost(found: Findings, hourly: float | None, bought: int) -> dict[str, Any]:
    """Return what one lost replica does, and what a spare one costs."""
    spare = None if hourly is None else hourly / bought
    fewer = found.fewer
    return {
        "still_holds": found.goal.spare_replicas > 0 or (fewer is not None and fewer.holds),
        "without_spares": None if fewer is None else trial_figures(fewer),
        "spare_usd_per_month": None if spare is None else spare * HOURS_PER_MONTH,
    }


def _spot(found: Findings, deployed: Scenario) -> dict[str, float] | None:
    price = price_of(found.scenario, deployed.deployment.hardware, "spot").usd
    if price is None:
        return None
    hourly = price * deployed.deployment.num_gpus
    return {"usd_per_gpu_hour": price, "usd_per_hour": hourly, "usd_per_month": hourly * HOURS_PER_MONTH}


def _arithmetic(found: Findings, member: Member, trial: Trial) -> Iterator[str]:
    """Yield why it takes this many GPUs, line by line."""
    completed = trial.figures["completed"] or 0
    rate = getattr(found.borne.workload.arrivals, "rate", None)
    if completed:
        prompt = (trial.figures["total_input_tokens"] or 0) / completed
        output = (trial.figures["total_output_tokens"] or 0) / completed
        if rate is not None:
            yield (
                f"{rate:,.4g} requests/s x {prompt:,.0f} prompt and {output:,.0f} output tokens = "
                f"{rate * prompt:,.0f} prompt and {rate * output:,.0f} output tokens/s"
            )
    multiple = found.borne_traffic
    asked = getattr(found.scenario.workload.arrivals, "rate", None)
    if multiple is not None and asked is not None:
        capacity = asked * multiple / trial.replicas
        at_least = "at least " if multiple >= 4 else ""
        yield (
            f"one replica bears {at_least}{capacity:,.3g} requests/s within the SLO (simulated, to 5%): "
            f"{rate:,.4g} / {capacity:,.3g} = {rate / capacity:,.2f}, so "
            f"{_counted(trial.replicas, 'replica')}"
        )
    if member.bound.least_replicas > 1:
        yield f"fewer than {member.bound.least_replicas} replicas cannot do the work in time (bound)"
    bought = trial.replicas + found.goal.spare_replicas
    if member.usd_per_gpu_hour is not None:
        gpus = bought * member.num_gpus
        hourly = gpus * member.usd_per_gpu_hour
        bought_words = f"{_counted(bought, 'replica')} x {_counted(member.num_gpus, 'GPU')}"
        yield (
            f"{bought_words} x ${member.usd_per_gpu_hour:,.4g} an hour = ${hourly:,.2f} an hour = "
            f"${hourly * HOURS_PER_MONTH:,.0f} a month of 30 days"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _binding(found: Findings) -> str | None:
    """Return what keeps the plan from being smaller: the SLO term that fails first, else the bottleneck."""
    if found.miss is not None:
        return found.miss.metric
    failing = found.fewer if found.fewer is not None and not found.fewer.holds else found.confirmed
    if failing is None:
        return None
    shares = {term: share for term, share in failing.by_metric.items() if share is not None and share < 1}
    return min(shares, key=lambda term: shares[term]) if shares else failing.binding


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
        entry["label"] = describe(_deployed(found, member.overrides, member.trial.replicas))
        entry["usd_per_month"] = usd_per_month(member.trial)
        entry["watts"] = member.trial.watts
        entry |= trial_figures(member.trial)
    return entry


def _runners_up(found: Findings) -> Iterator[dict[str, Any]]:
    """Yield the best fleet on every other kind of GPU, and why it lost."""
    for group in found.groups:
        if group is found.group:
            continue
        if group.best is None or group.best.trial is None:
            yield {"hardware": group.hardware, "label": None, "usd_per_month": None, "why": _why_none(group)}
            continue
        trial = group.best.trial
        share = (trial.replicas + found.goal.spare_replicas) / trial.replicas
        dollars = usd_per_month(trial)
        yield {
            "hardware": group.hardware,
            "label": describe(_deployed(found, group.best.overrides, trial.replicas + found.goal.spare_replicas)),
            "usd_per_month": None if dollars is None else dollars * share,
            "usd_per_million_tokens": trial.usd_per_million_tokens,
            "watts": trial.watts * share,
            **trial_figures(trial),
            "command": command(found.reference, group.best.overrides, trial.replicas),
            "why": _why_lost(found, trial, share),
        }


def _why_lost(found: Findings, trial: Trial, share: float) -> str:
    best = found.confirmed
    if best is None:
        return ""
    own_share = (best.replicas + found.goal.spare_replicas) / best.replicas
    if found.goal.objective == "gpus":
        return f"{trial.num_gpus * share:,.0f} GPUs against {best.num_gpus * own_share:,.0f}"
    if found.goal.objective == "energy":
        return f"{trial.watts * share:,.0f} W against {best.watts * own_share:,.0f} W"
    if found.goal.objective == "latency":
        return f"p95 E2E {trial.latencies['p95_e2el_ms']:,.0f} ms against {best.latencies['p95_e2el_ms']:,.0f} ms"
    if is_one_job(found.scenario):
        own, other = best.usd_per_million_tokens, trial.usd_per_million_tokens
        if own and other:
            return f"${other:,.3g} a million tokens against ${own:,.3g}"
    own, other = usd_per_month(best), usd_per_month(trial)
    if not own or not other:
        return "no price"
    own, other = own * own_share, other * share
    if abs(other / own - 1) < 5e-4:
        return "as dear, with more GPUs or more changes"
    if other < own:
        return "cheaper in one run, but did not hold when it was confirmed"
    return f"costs {other / own - 1:.0%} more"


def _why_none(group: GroupResult) -> str:
    """Return why nothing on a kind of GPU holds: the reason of whatever came furthest."""
    for status in ("misses", "out_of_reach", "too_many_gpus", "does_not_fit", "invalid"):
        reasons = [member.reason for member in group.members if member.status == status]
        if reasons:
            return reasons[0] if status != "out_of_reach" else _mildest(group)
    return "nothing to try"


def _mildest(group: GroupResult) -> str:
    """Return the reason of the deployment whose bound is least above its limit."""
    missing = [member for member in group.members if member.status == "out_of_reach"]
    term = missing[0].bound.out_of_reach
    same = [member for member in missing if member.bound.out_of_reach == term and term in TERMS]
    return min(same, key=lambda each: each.bound.of(str(term))).reason if same else missing[0].reason


def _pareto(found: Findings) -> list[dict[str, Any]]:
    """Return the fleets that no other beats in dollars a month, p95 TTFT and p95 TPOT at once."""
    trials = [trial for group in found.groups for trial in group.trials if trial.holds] + found.front_trials
    if found.confirmed is not None:
        trials.append(found.confirmed)
    points = []
    for trial in trials:
        dollars, ttft, tpot = usd_per_month(trial), trial.latencies["p95_ttft_ms"], trial.latencies["p95_tpot_ms"]
        if dollars is None or ttft is None:
            continue
        first = trial.usd_per_million_tokens if is_one_job(found.scenario) else dollars
        points.append(((first or dollars, ttft, tpot or 0.0), trial))
    spare = found.goal.spare_replicas
    return [
        {
            "label": describe(_deployed(found, trial.overrides, trial.replicas + spare)),
            "overrides": plain({**trial.overrides, REPLICAS_KEY: trial.replicas + spare}),
            "num_gpus": trial.num_gpus // trial.replicas * (trial.replicas + spare),
            "usd_per_month": (usd_per_month(trial) or 0.0) * (trial.replicas + spare) / trial.replicas,
            "usd_per_million_tokens": trial.usd_per_million_tokens,
            "p95_ttft_ms": trial.latencies["p95_ttft_ms"],
            "p95_tpot_ms": trial.latencies["p95_tpot_ms"],
        }
        for trial in front(points)
    ]


def _miss(found: Findings, miss: Miss) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "metric": miss.metric,
        "asked": miss.limit,
        "reached": miss.reached,
        "is_bound": miss.is_bound,
        "missed_by": None if miss.limit is None or miss.reached is None else miss.reached - miss.limit,
        "relax": miss.relax,
        "unreachable": list(miss.relaxed_terms),
        "relaxed_plan": miss.relaxed_plan,
    }
    if miss.member is not None:
        replicas = miss.trial.replicas if miss.trial is not None else miss.member.bound.least_replicas
        entry["label"] = describe(_deployed(found, miss.member.overrides, replicas))
        entry["overrides"] = plain({**miss.member.overrides, REPLICAS_KEY: replicas})
        entry["bound"] = _bound(miss.member)
        if miss.trial is not None:
            entry |= trial_figures(miss.trial)
    return entry


def _sensitivity(found: Findings) -> Iterator[dict[str, Any]]:
    if found.confirmed is None:
        return
    for name, change, trial in found.sensitivity:
        yield {
            "what": name,
            "change": change,
            "replicas": None if trial is None else trial.replicas,
            "num_gpus": None if trial is None else trial.num_gpus,
            "usd_per_month": None if trial is None else usd_per_month(trial),
        }
    dollars = usd_per_month(found.confirmed)
    for change in (-PRICE_CHANGE, PRICE_CHANGE):
        yield {
            "what": "price",
            "change": change,
            "replicas": found.confirmed.replicas,
            "num_gpus": found.confirmed.num_gpus,
            "usd_per_month": None if dollars is None else dollars * (1 + change),
        }


def _advice(found: Findings) -> Iterator[dict[str, Any]]:
    """Yield for each lever the fleet it would take, against the plan's."""
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
        "methods": {group.hardware: group.method for group in found.groups},
    }
