"""What a search for a plan has found so far. Holds it, nothing more."""

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
    """What a search has found so far.

    Attributes:
        scenario: What was asked.
        planned: The same with the traffic of the headroom.
        goal: What to minimize, and the limits.
        reference: What follows ``simserve run`` to run the scenario.
        groups: The search on each kind of GPU.
        kept: Names of what is left unchanged.
        skipped: GPUs that were not searched, and why.
        options: Option -> its choices, for those that were searched.
        left_out: Option -> why it was not searched.
        member: The best deployment.
        fleet: Its fleet, once it is confirmed.
        confirmed: The confirming run.
        group: Its kind of GPU.
        confirmations: All confirming runs, including those that failed.
        sustained_traffic: Largest traffic that it can sustain, as a multiple of the scenario's.
        fewer: Its run with one replica lost.
        once_measured: A cheaper fleet that is as sure as asked once loads of a server have been measured.
        roles: What breaks first in each role of its prefill and decode workers; empty without any.
        link: The link that they were assumed to have, and what slower ones do; None without any.
        month: A month of the scenario's traffic on it, and at an API (`simserve.planner.cost.month`).
        sensitivity: Name of what changed, by which share, and the fleet that is then needed.
        levers: Lever, overrides, and the fleet that is then needed, or why there is none.
        front_trials: Runs of other fleets.
        singles: What single changes make of the scenario's own replica with a full queue; None: not determined.
        miss: The nearest miss, where nothing holds.
    """

    scenario: Scenario
    planned: Scenario
    goal: Goal
    reference: tuple[str, ...]
    groups: list[GroupResult] = field(default_factory=list)
    kept: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    options: dict[str, tuple[Choice, ...]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    fleet: Fleet | None = None
    confirmed: Trial | None = None
    member: Member | None = None
    group: GroupResult | None = None
    confirmations: list[Trial] = field(default_factory=list)
    sustained_traffic: float | None = None
    fewer: Trial | None = None
    once_measured: Trial | None = None
    roles: list[dict[str, Any]] = field(default_factory=list)
    link: dict[str, Any] | None = None
    month: Mapping[str, Any] | None = None
    sensitivity: list[tuple[str, float, Trial | str | None]] = field(default_factory=list)
    levers: list[tuple[Lever, Overrides, Trial | str | None]] = field(default_factory=list)
    front_trials: list[Trial] = field(default_factory=list)
    singles: dict[str, Any] | None = None
    miss: Miss | None = None
