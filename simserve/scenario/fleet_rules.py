"""What goes together in a fleet that changes: autoscaling, faults, updates, on equal replicas or on pools."""

from __future__ import annotations

from simserve.scenario.objective import objective
from simserve.scenario.schema import Scenario
from simserve.sim.autoscaling_spec import HorizontalScaling
from simserve.sim.fault_spec import FaultSpec, LinkFault, NodeFault


def check_fleet(scenario: Scenario) -> None:
    """Do nothing where every option of a fleet that changes has its effect.

    Raises:
        ScenarioError: An option that would do nothing, or that names what is not there.
    """
    _check_autoscaling(scenario)
    _check_faults(scenario)
    _check_regions(scenario)
    for number, update in enumerate(scenario.deployment.updates):
        _check_pool(scenario, f"deployment.updates.{number}", update.pool)


def _check_autoscaling(scenario: Scenario) -> None:
    deployment = scenario.deployment
    encoders = deployment.encoder_disaggregation
    if encoders is not None and encoders.autoscaling is not None:
        key = "deployment.encoder_disaggregation"
        _check_scaling(scenario, encoders.autoscaling, f"{key}.autoscaling", key, encoders.replicas)
    if not deployment.pools:
        if deployment.autoscaling is not None:
            _check_scaling(
                scenario, deployment.autoscaling, "deployment.autoscaling", "deployment", deployment.replicas
            )
        return
    for number, pool in enumerate(deployment.pools):
        key = f"deployment.pools.{number}"
        if pool.autoscaling is not None:
            _check_scaling(scenario, pool.autoscaling, f"{key}.autoscaling", key, pool.replicas)
        elif deployment.autoscaling is not None:
            _check_scaling(scenario, deployment.autoscaling, "deployment.autoscaling", key, pool.replicas)
    if deployment.autoscaling is not None and all(pool.autoscaling is not None for pool in deployment.pools):
        rule = "has no effect: every pool has its own"
        scenario.refuse("deployment.autoscaling", rule, "leave it out, or let a pool go by it")


def _check_scaling(scenario: Scenario, rules: HorizontalScaling, key: str, owner: str, replicas: int) -> None:
    if not rules.min_replicas <= replicas <= rules.max_replicas:
        rule = f"must lie between min_replicas {rules.min_replicas} and max_replicas {rules.max_replicas}"
        scenario.refuse(f"{owner}.replicas", rule, "they are the replicas at the start", replicas)
    if rules.metric == "slo" and objective(scenario) is None:
        scenario.refuse(f"{key}.metric", "slo needs an objective", "add an slo block", "slo")


def _check_faults(scenario: Scenario) -> None:
    deployment = scenario.deployment
    for number, fault in enumerate(deployment.faults):
        key = f"deployment.faults.{number}"
        _check_pool(scenario, key, fault.pool)
        counts = _counts(scenario, fault)
        if not counts:
            if deployment.disaggregation is None:
                rule = "has no link to strike: KV caches cross one only with deployment.disaggregation"
            else:
                rule = "names a pool whose replicas send no KV caches"
            scenario.refuse(key, rule, "use slow for a bad link inside a replica")
        replica = getattr(fault, "replica", 0)
        if replica >= sum(counts) and not isinstance(fault, NodeFault):
            what = "the replicas it may strike" if deployment.pools else "deployment.replicas"
            rule = f"must be below {what}, {sum(counts)}: they count from 0"
            scenario.refuse(f"{key}.replica", rule, "only replicas that are there at the start can be named", replica)


def _counts(scenario: Scenario, fault: FaultSpec) -> list[int]:
    """Return how many replicas of each pool are there at the start for a fault to strike."""
    deployment = scenario.deployment
    if not deployment.pools:
        return [] if isinstance(fault, LinkFault) else [deployment.replicas]
    struck = [pool for pool in deployment.pools if fault.pool in (None, pool.name)]
    return [pool.replicas for pool in struck if pool.role == "prefill" or not isinstance(fault, LinkFault)]


def _check_regions(scenario: Scenario) -> None:
    deployment, classes = scenario.deployment, scenario.workload.classes or ()
    regions, pools, key = deployment.regions, deployment.pools, "deployment.regions"
    if regions is None:
        for number, pool in enumerate(pools):
            if pool.region is not None:
                rule = "has no effect: nothing says how far apart regions are"
                scenario.refuse(f"deployment.pools.{number}.region", rule, "add deployment.regions", pool.region)
        for number, each in enumerate(classes):
            if each.region is not None:
                rule = "has no effect without deployment.regions"
                scenario.refuse(f"workload.classes.{number}.region", rule, "add it, or leave this out", each.region)
        return
    if not pools:
        scenario.refuse(
            key, "has nothing to choose from: there are no pools", "add deployment.pools, each with a region"
        )
    for number, pool in enumerate(pools):
        if pool.region is None:
            scenario.refuse(f"deployment.pools.{number}", "has no region, and deployment.regions is set", "add region")
    if not regions.clients and not (classes and all(each.region is not None for each in classes)):
        rule = "says nothing of clients whose class has no region" if classes else "does not say where clients are"
        scenario.refuse(f"{key}.clients", rule, "give the share of each region, such as {eu: 0.4, us: 0.6}")
    homes = [*regions.clients, *(each.region for each in classes if each.region is not None)]
    for home in homes:
        for place in (pool.region for pool in pools):
            if regions.one_way(home, place or "") is None:
                rule = f"says nothing between {home} and {place}"
                scenario.refuse(f"{key}.latency", rule, f'add, such as {{{home}: {{{place}: "40 ms"}}}}')


def _check_pool(scenario: Scenario, key: str, name: str | None) -> None:
    names = [pool.name for pool in scenario.deployment.pools]
    if name is not None and name not in names:
        remedy = f"choose from {', '.join(names)}" if names else "deployment.pools has none; leave it out"
        scenario.refuse(f"{key}.pool", "names no pool", remedy, name)
