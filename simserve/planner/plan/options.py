"""What a plan is asked: what is searched, and for what. Searches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simserve.errors import UsageError
from simserve.planner.plan.horizon import Horizon
from simserve.planner.plan.price import Market
from simserve.planner.search.member import OBJECTIVES, Objective

DEFAULT_TRIALS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What is searched, and for what.

    Attributes:
        hardware: GPUs; empty: the scenario's own and those of the catalogue that have an on-demand price.
        max_gpus: GPUs of the fleet at most; None: 256, and for ``latency`` and ``throughput`` those of the scenario.
        gpus_by_kind: GPU -> how many of it, where fixed GPUs are of several kinds (``throughput``).
        objective: What is to be small: ``cost``, ``gpus``, ``latency`` (p95 of E2E) or ``energy`` (watts); or
            ``throughput``: what ``max_gpus`` GPUs can do is to be large, whatever load the scenario has.
        headroom: Share of traffic that the plan must bear beyond the scenario's.
        spare_replicas: Replicas that may be lost.
        choices: Dotted key -> values to be searched instead of the default ones.
        market: ``on_demand`` or ``spot``.
        trials: Settings of engine knobs and options that are tried on a shape where the space is too large to look at
            each; 0: the scenario's own alone.
        keep: Names of what stays as it is (`simserve.planner.space.keep.KEEPABLE`).
        confidence: Share of real servers on which the SLO must hold, by the errors to expect; None: it must hold where
            it is simulated.
        horizon: What the purchase looks ahead to; None: nothing is bought.
        autoscaler: Whether thresholds of an autoscaler are sought for the plan's deployment.
        jobs: Worker processes; the result is the same with any number.
    """

    hardware: tuple[str, ...] = ()
    max_gpus: int | None = None
    gpus_by_kind: Mapping[str, int] = field(default_factory=dict)
    objective: Objective = "cost"
    headroom: float = 0.0
    spare_replicas: int = 0
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    market: Market = "on_demand"
    trials: int = DEFAULT_TRIALS
    keep: tuple[str, ...] = ()
    confidence: float | None = None
    horizon: Horizon | None = None
    autoscaler: bool = False
    jobs: int = 1


def check_options(options: PlanOptions) -> None:
    """Do nothing where every option is in its range.

    Raises:
        UsageError: One is not.
    """
    if options.objective not in OBJECTIVES:
        remedy = "choose from " + ", ".join(OBJECTIVES)
        raise UsageError("is no objective", key="--objective", value=options.objective, remedy=remedy)
    for key, value, least in (
        ("--max-gpus", options.max_gpus, 1),
        ("--spare-replicas", options.spare_replicas, 0),
        ("--trials", options.trials, 0),
        ("--jobs", options.jobs, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"must be >= {least}", key=key, value=value)
    if options.gpus_by_kind and options.objective != "throughput":
        rule = "names GPUs of several kinds that are all there, which only --objective throughput asks about"
        given = " + ".join(f"{count}x{name}" for name, count in options.gpus_by_kind.items())
        remedy = "name those to choose from with --hardware, and the most with --max-gpus"
        raise UsageError(rule, key="--gpus", value=given, remedy=remedy)
    if options.confidence is not None and not 0 < options.confidence < 1:
        raise UsageError("must be a share between 0 and 1", key="--confidence", value=options.confidence)
    if options.objective == "throughput" and options.headroom:
        rule = "has no meaning with --objective throughput, which looks for the load itself"
        raise UsageError(rule, key="--headroom", remedy="leave it away, or use --confidence 0.9")
    if options.objective == "throughput" and options.horizon is not None:
        rule = "has no meaning with --objective throughput, whose GPUs are there"
        raise UsageError(rule, key="--horizon", remedy="leave it away, or plan for dollars")
    if options.objective == "throughput" and options.autoscaler:
        rule = "has no meaning with --objective throughput, which looks for one load"
        raise UsageError(rule, key="--autoscaler", remedy="leave it away, or plan for dollars")
    for name, is_asked in (
        ("--spare-replicas", options.spare_replicas > 0),
        ("--confidence", options.confidence is not None),
    ):
        if options.autoscaler and is_asked:
            rule = f"does not go with {name}: its thresholds are those that hold as simulated, with all replicas"
            raise UsageError(rule, key="--autoscaler", remedy="leave one of the two away")
    if not 0 <= options.headroom <= 10:
        raise UsageError("must be between 0 and 10 times the traffic", key="--headroom", value=options.headroom)
