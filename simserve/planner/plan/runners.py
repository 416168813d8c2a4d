"""The fleets besides the plan: what lost and why, and the Pareto front of dollars, TTFT and TPOT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from simserve.planner.overrides import Overrides
from simserve.planner.plan.explain import command, describe
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.fleet import trial_figures
from simserve.planner.scaling import steady_rate
from simserve.planner.search.explain import plain
from simserve.planner.search.member import Goal, GroupResult
from simserve.planner.search.search import Search
from simserve.planner.search.trial import TERMS, Trial, deployed, deployed_overrides, is_one_job, usd_per_month
from simserve.planner.space.space import PIPELINE_KEY, TENSOR_KEY, Space

Point = TypeVar("Point")
_MILLION = 1e6
LITTLE_MORE = 0.25  # Largest extra price of a faster fleet that is worth a line, as a share of the plan's price.
MUCH_FASTER = 2.0  # Least factor by which a latency must then be lower.
AS_FAST = 1.05  # Largest factor by which the other latency may then be higher.
FRONT_GROUPS = 3  # Kinds of GPU whose other sizes are tried for the front: those with the cheapest plans.


def runners_up(found: Findings) -> Iterator[dict[str, Any]]:
    """Yield the best fleet on every other kind of GPU, and why it lost."""
    for group in found.groups:
        if group is found.group:
            continue
        if group.best is None or group.best.trial is None:
            yield {"hardware": group.hardware, "label": None, "usd_per_month": None, "why": _why_none(group)}
            continue
        trial = group.best.trial
        whole = trial.with_spares(found.goal.spare_replicas)
        yield {
            "hardware": group.hardware,
            "label": describe(deployed(found.scenario, group.best.overrides, whole.replicas)),
            "usd_per_month": usd_per_month(whole),
            "usd_per_million_tokens": usd_per_million_tokens(found, whole),
            "watts": whole.watts,
            **trial_figures(trial),
            "command": command(
                found.reference, deployed_overrides(found.scenario, group.best.overrides, trial.replicas)
            ),
            "why": _why_lost(found, whole),
        }


def usd_per_million_tokens(found: Findings, fleet: Trial) -> float | None:
    """Return the dollars per million tokens of a fleet: of a month over the month's tokens, as `simserve cost` counts.

    The rate in a run is one draw around that of the scenario; a month has the scenario's. Where it has no steady rate,
    so that what is served depends on the fleet, it is what the run served; of one job, the dollars of the job.

    Args:
        fleet: A fleet, at the price of all that is bought.
    """
    usd = usd_per_month(fleet)
    if usd is None or found.month is None or steady_rate(found.scenario) is None:
        return fleet.usd_per_million_tokens
    return usd / float(found.month["tokens_per_month"]) * _MILLION


def _why_lost(found: Findings, trial: Trial) -> str:
    """Return why a fleet lost to the plan, both with the spare replicas."""
    if found.confirmed is None:
        return ""
    best = found.confirmed.with_spares(found.goal.spare_replicas)
    if found.goal.objective == "gpus":
        return f"{trial.num_gpus + trial.encoder_gpus:,} GPUs against {best.num_gpus + best.encoder_gpus:,}"
    if found.goal.objective == "energy":
        return f"{trial.watts:,.0f} W against {best.watts:,.0f} W"
    if found.goal.objective == "latency":
        return f"p95 E2E {trial.latencies['p95_e2el_ms']:,.0f} ms against {best.latencies['p95_e2el_ms']:,.0f} ms"
    if is_one_job(found.scenario):
        own, other = best.usd_per_million_tokens, trial.usd_per_million_tokens
        if own and other:
            return f"${other:,.3g} a million tokens against ${own:,.3g}"
    own, other = usd_per_month(best), usd_per_month(trial)
    if not own or not other:
        return "no price"
    if abs(other / own - 1) < 5e-4:
        return "the same cost, with less headroom, higher latencies or step times that are a bound"
    if other < own:
        return "cheaper in one run, but did not hold when it was confirmed"
    return f"costs {other / own - 1:.0%} more"


def _why_none(group: GroupResult) -> str:
    """Return why nothing on a kind of GPU holds: the reason of the deployment that came furthest."""
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


def pareto(found: Findings) -> list[dict[str, Any]]:
    """Return the Pareto front of fleets in dollars a month, p95 TTFT and p95 TPOT."""
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
    fleets = [(trial, trial.with_spares(found.goal.spare_replicas)) for trial in front(points)]
    return [
        {
            "label": describe(deployed(found.scenario, trial.overrides, whole.replicas)),
            "overrides": plain(deployed_overrides(found.scenario, trial.overrides, whole.replicas)),
            "num_gpus": whole.num_gpus,
            "usd_per_month": usd_per_month(whole),
            "usd_per_million_tokens": usd_per_million_tokens(found, whole),
            "p95_ttft_ms": trial.latencies["p95_ttft_ms"],
            "p95_tpot_ms": trial.latencies["p95_tpot_ms"],
        }
        for trial, whole in fleets
    ]


def faster(best: Mapping[str, Any], unbeaten: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the fleet that has a latency several times lower for little more money; None if there is none.

    Args:
        unbeaten: The fleets of `pareto`.
    """
    if not best["usd_per_month"]:
        return None
    found = []
    for one, other in (("p95_ttft_ms", "p95_tpot_ms"), ("p95_tpot_ms", "p95_ttft_ms")):
        for each in unbeaten:
            more = each["usd_per_month"] - best["usd_per_month"]
            if not 0 < more <= LITTLE_MORE * best["usd_per_month"] or not each[one] or not best[one]:
                continue
            times = best[one] / each[one]
            if times >= MUCH_FASTER and (each[other] or 0.0) <= AS_FAST * (best[other] or 0.0):
                line = {"label": each["label"], "overrides": each["overrides"], "usd_per_month_more": more}
                found.append(
                    (times, {**line, "latency": one, "times": times, "from_ms": best[one], "to_ms": each[one]})
                )
    return max(found, key=lambda each: each[0])[1] if found else None


def front_candidates(
    groups: Sequence[GroupResult], spaces: Sequence[Space], goal: Goal
) -> list[tuple[Space, Overrides]]:
    """Return deployments that may be faster for more money: the best on a kind of GPU, spread over more of them."""
    search = [Search(space, goal) for space in spaces]
    held = [
        (search[index].value(group.best.trial), index)
        for index, group in enumerate(groups)
        if group.best is not None and group.best.trial is not None
    ]
    found: list[tuple[Space, Overrides]] = []
    for _, index in sorted(held)[:FRONT_GROUPS]:
        space, best = spaces[index], groups[index].best
        if best is None:
            continue
        chosen = space.chosen(best.overrides)
        for size in space.dimensions.get(TENSOR_KEY, ()):
            wider = {**chosen, TENSOR_KEY: size, PIPELINE_KEY: 1} if PIPELINE_KEY in chosen else chosen
            if size > chosen[TENSOR_KEY] and size <= goal.max_gpus and space.is_plausible(wider):
                found.append((space, space.overrides(wider)))
    return found


def front(points: Iterable[tuple[tuple[float, ...], Point]]) -> list[Point]:
    """Return the Pareto front, less being better, ordered by the first coordinate; of equal points the first."""
    kept: list[tuple[tuple[float, ...], Point]] = []
    # In this order a point comes before those that it beats.
    for coordinates, each in sorted(points, key=lambda point: point[0]):
        if not any(all(a <= b for a, b in zip(other, coordinates, strict=True)) for other, _ in kept):
            kept.append((coordinates, each))
    return [each for _, each in kept]


def sized(space: Space, overrides: Overrides, goal: Goal) -> Trial | None:
    """Return the run of the smallest fleet of a deployment that holds; None if none does within the limits."""
    search = Search(space, goal)
    member = search.member(overrides)
    if member.status == "not_better":
        search.try_member(member)
    return member.trial if member.status == "holds" else None
