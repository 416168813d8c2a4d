"""The reserve of spot replicas that holds the SLO although some are taken back, found by simulation.

Replicas that suffice without interruptions are run with spot faults that come more often than in reality, so that a
short run sees several; the requests that each interruption costs are then scaled to its real frequency. Interruptions
overlap more often than in reality, so the reserve is rather too large.

Interruptions strike replicas one by one; hours without any spot GPUs on offer are not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simserve.errors import InfeasibleError
from simserve.planner.plan.fleet import Fleet
from simserve.planner.plan.options import Interruptions
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.trial import deployed, fleet_of, try_fleet
from simserve.scenario.replication import replica_weights_bytes, startup_seconds
from simserve.scenario.schema import Scenario, objective
from simserve.units import to_text

FAULTS_KEY = "deployment.faults"
SIZES = (1, 2, 4, 8)  # Spot replicas whose reserve is simulated; of more of them, each group of eight has its own.
AWAY = 0.2  # Mean number of replicas that are away at a time in such a run, where interruptions are rarer than that.
EPISODES = 8  # Approximate number of interruptions in such a run.
FEWEST_REQUESTS, MOST_REQUESTS = 5_000, 300_000  # Least and most requests of such a run.
MOST_RESERVE = 2  # Largest reserve that is tried, over the replicas that serve.
ALONE = ("pools", "autoscaling", "faults", "updates", "overflow", "liveness", "admission")
"""What a fleet must not have for its reserve to be simulated: its replicas are alike and always there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A number of spot replicas that serve, and their reserve."""

    replicas: int  # Replicas that are enough if none is ever taken back.
    reserve: int  # Further replicas, with which the SLO holds.
    asked: float  # Share of requests within the SLO that must be reached.
    without: float  # Share that is reached without a reserve.
    attainment: float  # Share that is reached with it.


def reserve_table(sizes: Sequence[Reserved]) -> tuple[int, ...]:
    """Return the reserve of 0, 1, 2 ... replicas up to the largest size; between sizes, that of the next larger one."""
    counts = range(1, sizes[-1].replicas + 1)
    return 0, *(next(each.reserve for each in sizes if each.replicas >= count) for count in counts)


def cannot_be_spot(scenario: Scenario, fleet: Fleet | None) -> str | None:
    """Return why the replicas of a plan are not offered as spot replicas; None where they are."""
    if objective(scenario) is None or fleet is None:
        return "without an SLO there is no reserve that holds it"
    deployment = deployed(scenario, fleet.overrides, fleet.replicas).deployment
    for name in ALONE:
        if getattr(deployment, name):
            return f"interruptions are simulated for replicas that are alike and there all the time, without {name}"
    return None


def simulated_reserve(
    fleet: Fleet, rate: float, capacity: float, most: int, interruptions: Interruptions
) -> list[Reserved]:
    """Return the reserves that spot replicas of a fleet need, ascending, by simulation of up to ``most`` of them.

    Args:
        rate: Requests/s of its scenario.
        capacity: Requests/s that each replica must serve.
        most: Most spot replicas that may be needed.
        interruptions: How often they are taken back, and for how long.

    Raises:
        InputError: The deployment cannot be run with faults.
    """
    away = interruptions.notice + (interruptions.mttr or start_up(fleet))
    slo = objective(fleet.scenario)
    assert slo is not None  # as `cannot_be_spot` says
    found: list[Reserved] = []
    for size in SIZES:
        traffic = scaled_traffic(fleet.scenario, capacity * size / rate)
        assert traffic is not None  # it has a rate
        spot = partial(_spot, replace(fleet, scenario=traffic), capacity * size, interruptions, away)
        found.append(_reserved(spot, slo.attainment, size))
        if size >= most:
            break
    return found


def start_up(fleet: Fleet) -> float:
    """Return the seconds from the launch of a replica until it takes requests, as its autoscaler has or would have."""
    resolved = fleet_of(fleet.scenario, fleet.overrides, fleet.replicas)
    return startup_seconds(resolved.scenario.deployment.autoscaling, replica_weights_bytes(resolved))


def _spot(fleet: Fleet, rate: float, interruptions: Interruptions, away: float, replicas: int) -> tuple[float, float]:
    """Return the share of requests within the SLO on spot replicas, and on replicas that are never taken back.

    Args:
        fleet: The deployment, under the traffic of all replicas.
        rate: Requests/s of that.
        away: Seconds that one is away, including its notice.
        replicas: How many there are.
    """
    seldom = interruptions.mtbf + away
    between = min(replicas * away / AWAY, seldom)
    requests = round(min(max(rate * EPISODES * between / replicas, FEWEST_REQUESTS), MOST_REQUESTS))
    fault = {
        "kind": "spot",
        "mtbf": to_text(between - away, "time"),
        "mttr": to_text(away - interruptions.notice, "time"),
        "notice": to_text(interruptions.notice, "time"),
    }
    firm, often = (
        try_fleet(fleet.scenario, {**fleet.overrides, **changes}, replicas, requests).attainment or 0.0
        for changes in ({}, {FAULTS_KEY: [fault]})
    )
    return firm - max(firm - often, 0.0) * between / seldom, firm


def _reserved(spot: Callable[[int], tuple[float, float]], attainment: float, size: int) -> Reserved:
    """Return the smallest reserve with which replicas reach the required share.

    If they miss it even when never taken back, as a few may at the load of many, the share they reach then is required.
    """
    without, firm = spot(size)
    asked = min(attainment, firm)
    for reserve in range(MOST_RESERVE * size + 1):
        reached = without if not reserve else spot(size + reserve)[0]
        if reached >= asked:
            return Reserved(replicas=size, reserve=reserve, asked=asked, without=without, attainment=reached)
    raise InfeasibleError(f"no reserve of up to {MOST_RESERVE * size} spot replicas holds the SLO")
