"""What a search for a plan has found so far. A record without rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simserve.planner.overrides import Overrides
from simserve.planner.plan.fleet import Fleet
from simserve.planner.plan.infeasible import Miss
from simserve.planner.plan.levers import Lever
from simserve.planner.search.member import Goal, GroupResult, Member
from simserve.planner.search.trial import Trial
from simserve.planner.space.options import Choice
from simserve.scenario.schema import Scenario


@dataclass(kw_only=True)
class Findings:
    """What a search has found so far."""

    scenario: Scenario  # What was asked.
    planned: Scenario  # The same with the traffic of the headroom.
    goal: Goal  # What to minimize, and the limits.
    reference: tuple[str, ...]  # What follows ``simserve run`` to run the scenario.
    groups: list[GroupResult] = field(default_factory=list)  # The search on each kind of GPU.
    kept: tuple[str, ...] = ()  # Names of what is left unchanged.
    skipped: dict[str, str] = field(default_factory=dict)  # GPUs that were not searched, and why.
    options: dict[str, tuple[Choice, ...]] = field(default_factory=dict)
    """Option -> its choices, for those that were searched."""
    left_out: dict[str, str] = field(default_factory=dict)  # Option -> why it was not searched.
    fleet: Fleet | None = None  # Its fleet, once it is confirmed.
    confirmed: Trial | None = None  # The confirming run.
    member: Member | None = None  # The best deployment.
    group: GroupResult | None = None  # Its kind of GPU.
    confirmations: list[Trial] = field(default_factory=list)  # All confirming runs, including those that failed.
    sustained_traffic: float | None = None  # Largest traffic that it can sustain, as a multiple of the scenario's.
    fewer: Trial | None = None  # Its run with one replica lost.
    once_measured: Trial | None = None
    """A cheaper fleet that is as sure as asked once loads of a server have been measured."""
    roles: list[dict[str, Any]] = field(default_factory=list)
    """What breaks first in each role, for prefill and decode workers; else empty."""
    link: dict[str, Any] | None = None
    """The link assumed between them, and the effect of slower ones; None without roles."""
    month: Mapping[str, Any] | None = None
    """A month of the scenario's traffic on it, and at an API (`simserve.planner.cost.month`)."""
    sensitivity: list[tuple[str, float, Trial | str | None]] = field(default_factory=list)
    """Name of what changed, by which share, and the fleet that is then needed."""
    levers: list[tuple[Lever, Overrides, Trial | str | None]] = field(default_factory=list)
    """Lever, overrides, and the fleet that is then needed, or why there is none."""
    front_trials: list[Trial] = field(default_factory=list)  # Runs of other fleets.
    singles: dict[str, Any] | None = None
    """The effect of single changes on the scenario's own replica with a full queue; None: not determined."""
    miss: Miss | None = None  # The nearest miss, where nothing holds.
