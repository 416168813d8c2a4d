"""What breaks first in a fleet of prefill and decode workers: in each role, and over slower links. Knows no search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simserve.errors import InputError
from simserve.planner.capacity.probe import own_traffic
from simserve.planner.plan.explain import counted, describe_worker
from simserve.planner.plan.fleet import Fleet
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.deciding_run import deciding_run, promise_of
from simserve.planner.search.order import smallest_integer
from simserve.planner.search.trial import Trial, deployed, fleet_of
from simserve.planner.space.links import SLOWER, Link, Side, links_between
from simserve.planner.space.makeup import POOLS_KEY, merged
from simserve.planner.space.roles import KNOBS, LINK_KEY
from simserve.scenario.finishable import find_finishable
from simserve.scenario.run import deploy
from simserve.scenario.schema import Scenario, objective
from simserve.sim.control import DisaggregationSpec
from simserve.units import format_bandwidth

AMPLE = 3  # Factor on the workers of the other role while one role is looked at.
STEP = 0.05  # Step by which the traffic is raised until a role breaks, as a share of it.
MOST_STEPS = 60
ALIKE = 0.01  # Relative difference within which a bandwidth counts as that of a known link.


def role_limits(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the limits of each role of a fleet, looked at with three times the workers of the other; empty without.

    Plain values: ``role worker workers``; ``finishes``, the most requests a second (None where traffic has no rate of
    its own); ``can_scale``, whether other traffic was tried (not of a trace); ``breaks_at``, the least multiple of the
    traffic, to `STEP`, at which the SLO breaks (None: it holds up to four times it, if that was tried), and
    ``breaks_first``, the SLO term that fails first there, or ``queue`` where the queue grows;
    ``one_fewer``, the run with one worker fewer in this role and the other as it is (None where none would be left).
    """
    there = deployed(fleet.scenario, fleet.overrides, fleet.replicas)
    if not all(pool.role in KNOBS for pool in there.deployment.pools):
        return []
    return [_limit_of(fleet, there, place) for place in range(len(there.deployment.pools))]


def _limit_of(fleet: Fleet, there: Scenario, place: int) -> dict[str, Any]:
    deployment = there.deployment
    pool, counts = deployment.pools[place], [each.replicas for each in deployment.pools]
    ample = [count * (1 if number == place else AMPLE) for number, count in enumerate(counts)]
    step, term = _breaking(fleet, ample)
    fewer = None
    if pool.replicas > 1:
        less = [count - (number == place) for number, count in enumerate(counts)]
        trial = deciding_run(fleet.scenario, _with_counts(fleet, less), sum(less))
        fewer = {"holds": trial.holds, "attainment": trial.attainment, "by_metric": dict(trial.by_metric)}
    resolved = fleet_of(fleet.scenario, _with_counts(fleet, ample), sum(ample))
    found = find_finishable(resolved, deploy(resolved)) if own_traffic(resolved.scenario).is_stationary else None
    return {
        "role": pool.role,
        "worker": describe_worker(deployment.of_pool(pool)),
        "workers": pool.replicas,
        "finishes": None if found is None else found.rate,
        "can_scale": scaled_traffic(fleet.scenario, 1.0) is not None,
        "breaks_at": None if step is None else 1 + step * STEP,
        "breaks_first": term,
        "one_fewer": fewer,
    }


def _with_counts(fleet: Fleet, counts: list[int]) -> dict[str, Any]:
    return merged(fleet.overrides, {f"{POOLS_KEY}.{number}.replicas": count for number, count in enumerate(counts)})


def _breaking(fleet: Fleet, counts: list[int]) -> tuple[int | None, str | None]:
    """Return the steps of traffic at which a fleet breaks, and the term missed most; None, None if it does not."""
    missed: dict[int, str] = {}
    overrides = _with_counts(fleet, counts)

    def breaks(step: int) -> bool:
        busier = scaled_traffic(fleet.scenario, 1 + step * STEP)
        if busier is None:
            return True
        try:
            trial = deciding_run(busier, overrides, sum(counts))
        except InputError:
            return True
        if not trial.holds:
            missed[step] = _missed_most(busier, trial)
        return not trial.holds

    if scaled_traffic(fleet.scenario, 1.0) is None:
        return None, None
    first = smallest_integer(breaks, 1, MOST_STEPS)
    return first, None if first is None else missed.get(first)


def _missed_most(scenario: Scenario, trial: Trial) -> str:
    """Return the term that most requests miss where too many do; ``queue`` where only the queue grows."""
    asked, term = objective(scenario), trial.most_missed
    if asked is None or term is None or (trial.by_metric[term] or 0.0) >= asked.attainment:
        return "queue" if trial.stability == "overloaded" else "slo"
    return term


def role_lines(roles: Sequence[Mapping[str, Any]], rate: float | None) -> Iterator[str]:
    """Yield a line for each role: why it has that many workers, and what breaks first.

    Args:
        roles: As returned by `role_limits`.
        rate: Requests a second that are offered; None: there is no such rate.
    """
    for each in roles:
        head = f"{counted(each['workers'], each['role'] + ' worker')} ({each['worker']})"
        does = "" if each["finishes"] is None else f" can finish {each['finishes']:,.3g} requests/s (simulated)"
        asked = "" if rate is None or not does else f", {rate:,.4g} asked"
        fewer = each["one_fewer"]
        less = "one is the fewest" if fewer is None else f"with one fewer {_reached(fewer)}"
        first = each["breaks_first"]
        if not each["can_scale"]:
            breaks = "other traffic was not tried"
        elif each["breaks_at"] is None:
            breaks = "nothing breaks here up to four times the traffic"
        else:
            what = {"queue": "the queue, which then grows", "slo": "the SLO", None: "the run"}.get(
                first, str(first).upper()
            )
            breaks = f"what breaks first is {what}, at {each['breaks_at']:.2f} times the traffic"
        yield f"{head}{does}{asked}: {less}; {breaks}"


def _reached(fewer: Mapping[str, Any]) -> str:
    share = "" if fewer["attainment"] is None else f" ({100 * fewer['attainment']:.3g}% of requests in the SLO)"
    return f"the SLO {'still holds' if fewer['holds'] else 'breaks'}{share}"


def link_limits(fleet: Fleet) -> dict[str, Any] | None:
    """Return the link that a fleet was planned with, and the slower ones that its GPUs have, fastest first.

    The last is the first over which the SLO breaks, or the slowest. Each says whether the SLO ``holds`` over it in 95 %
    of fresh runs, and if not, which term ``breaks``: the one that most requests miss, or ``queue``. None where the
    fleet has no roles.
    """
    there = deployed(fleet.scenario, fleet.overrides, fleet.replicas)
    if not there.deployment.pools or not all(pool.role in KNOBS for pool in there.deployment.pools):
        return None
    known = links_between(list(_sides(there)))
    assumed = _assumed(there.deployment.disaggregation or DisaggregationSpec(), known)
    slower = []
    for link in known:
        if link.bandwidth >= SLOWER * assumed.bandwidth:
            continue
        own = there.deployment.disaggregation
        rest = {} if own is None else own.model_dump(mode="json", exclude_none=True, exclude={"transfer_bandwidth"})
        overrides = {**fleet.overrides, LINK_KEY: {**rest, **link.spec}}
        trial = deciding_run(fleet.scenario, overrides, fleet.replicas)
        holds = trial.holds and promise_of(fleet.scenario, overrides, fleet.replicas).holds
        term = "queue" if trial.stability == "overloaded" else trial.most_missed or "queue"
        breaks = None if holds else term
        slower.append({**_named(link), "holds": holds, "attainment": trial.attainment, "breaks": breaks})
        if not holds:
            break
    return {**_named(assumed), "slower": slower}


def _named(link: Link) -> dict[str, Any]:
    return {"name": link.name, "bytes_per_second": link.bandwidth}


def _sides(there: Scenario) -> Iterator[Side]:
    for pool in there.deployment.pools:
        worker = there.deployment.of_pool(pool)
        yield Side(worker.profile_of(worker.hardware, there.folder), worker.gpus_per_replica, pool.replicas)


def _assumed(spec: DisaggregationSpec, known: list[Link]) -> Link:
    """Return the link of a deployment, by name where it is one that its GPUs have."""
    for link in known:
        if abs(link.bandwidth - spec.transfer_bandwidth) <= ALIKE * spec.transfer_bandwidth:
            return link
    return Link("the link of the scenario", spec.transfer_bandwidth)


def link_line(found: Mapping[str, Any]) -> str:
    """Return in one line which link was assumed, and the effect of the next slower ones."""
    head = f"KV caches cross {found['name']} ({format_bandwidth(found['bytes_per_second'])} a prefill worker)"
    if not found["slower"]:
        return f"{head}; no slower link of these GPUs is known"
    return f"{head}; {'; '.join(_slower(each) for each in found['slower'])}"


def _slower(each: Mapping[str, Any]) -> str:
    where = f"over {each['name']} ({format_bandwidth(each['bytes_per_second'])})"
    share = "" if each["attainment"] is None else f" ({100 * each['attainment']:.3g}% of requests in the SLO, one run)"
    if each["holds"]:
        return f"{where} the SLO still holds{share}"
    what = "the queue, which then grows" if each["breaks"] == "queue" else str(each["breaks"]).upper()
    return f"{where} what breaks is {what}{share}"
