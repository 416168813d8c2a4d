"""Which link a fleet of prefill and decode workers was assumed to have, and what breaks over slower ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simserve.planner.plan.fleet import Fleet
from simserve.planner.search.deciding_run import deciding_run, promise_of
from simserve.planner.search.trial import Trial, deployed
from simserve.planner.space.links import SLOWER, Link, Side, links_between
from simserve.planner.space.roles import KNOBS, LINK_KEY
from simserve.profiles.hardware import load_hardware
from simserve.scenario.schema import Scenario
from simserve.sim.control import DisaggregationSpec
from simserve.units import format_bandwidth

ALIKE = 0.01
"""Relative difference within which a bandwidth counts as that of a known link."""


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
        overrides = {**fleet.overrides, LINK_KEY: _over(there, link)}
        trial = deciding_run(fleet.scenario, overrides, fleet.replicas)
        holds = trial.holds and promise_of(fleet.scenario, overrides, fleet.replicas).holds
        breaks = None if holds else _first_term(trial)
        slower.append({**_named(link), "holds": holds, "attainment": trial.attainment, "breaks": breaks})
        if not holds:
            break
    return {**_named(assumed), "slower": slower}


def _named(link: Link) -> dict[str, Any]:
    return {"name": link.name, "bytes_per_second": link.bandwidth}


def _first_term(trial: Trial) -> str:
    """Return the SLO term that most requests miss; ``queue`` where the queue grows."""
    shares = {term: share for term, share in trial.by_metric.items() if share is not None}
    if trial.stability == "overloaded" or not shares:
        return "queue"
    return min(shares, key=lambda term: shares[term])


def _sides(there: Scenario) -> Iterator[Side]:
    for pool in there.deployment.pools:
        worker = there.deployment.of_pool(pool)
        yield Side(load_hardware(worker.hardware, there.folder), worker.gpus_per_replica, pool.replicas)


def _assumed(spec: DisaggregationSpec, known: list[Link]) -> Link:
    """Return the link of a deployment, by name where it is one that its GPUs have."""
    for link in known:
        if abs(link.bandwidth - spec.transfer_bandwidth) <= ALIKE * spec.transfer_bandwidth:
            return link
    return Link("the link of the scenario", spec.transfer_bandwidth)


def _over(there: Scenario, link: Link) -> dict[str, Any]:
    """Return `deployment.disaggregation` with another link, otherwise unchanged."""
    own = there.deployment.disaggregation
    rest = {} if own is None else own.model_dump(mode="json", exclude_none=True, exclude={"transfer_bandwidth"})
    return {**rest, **link.spec}


def link_line(found: Mapping[str, Any]) -> str:
    """Return in one line which link was assumed, and what the next slower ones do."""
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
