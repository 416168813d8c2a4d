"""The highest load that a scenario's deployment can sustain within its objective, and what breaks first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from simserve.errors import UsageError
from simserve.metrics.latency import MS
from simserve.metrics.summary import or_null
from simserve.planner.capacity.fresh import hold_in_fresh_runs
from simserve.planner.capacity.level import Found, Level, Prober, Trial
from simserve.planner.capacity.probe import LoadProbe, is_closed_loop, load_of, own_traffic, probe_of
from simserve.planner.capacity.search import FIRST_FRESH, Effort, find_capacity
from simserve.planner.scaling import clock_of, has_own_clock
from simserve.scenario.fit import leading_warnings
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario, objective, objective_mapping
from simserve.sim.control import API_POOL
from simserve.version import __version__
from simserve.workload.requests import RequestSpecs

Progress = Callable[[int, float], None]  # Called before each run with the number of runs so far and the load.
Tried = Callable[[float, int, bool], None]
"""Called after each run with its load, the requests asked of it, and whether it met the objective."""
CONFIDENCE = 0.9  # Share of real servers on which the objective holds.
MOST_RUNS = 2  # Further runs after those of the search, where one of its loads holds with that confidence.
MOST_RUNS_BELOW = 4  # The same if none does.
CLOSE = 1.02  # Ratio of a load that fails to one that holds at which nothing further is tried.
BELOW = 0.995  # Factor on the load that interpolation predicts, which is tried.
_SUREST = 0.999
_STEEPEST, _FLATTEST = 0.98, 0.25  # Largest and smallest ratio of the next load to the lowest one so far.
NOTED_BELOW = 0.05
"""Share by which the promised load must be below the mean capacity for a note to say so (docs/promises.md)."""
WHOLE_REPLICATIONS = 3
"""Runs at each load where every run lasts as long as the scenario says, unless more are asked for."""
CONVERSATION_REPLICATIONS = 3
CONVERSATION_TOLERANCE = 0.02
"""Runs at each load, and tolerance, where each run lasts until the longest conversations are over."""
THOROUGH_REQUESTS = 1_000_000  # Most requests of all runs at one load where a precision is asked for.
THOROUGH_FRESH_REQUESTS = 4_000_000  # The same for steady open traffic.


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The answer.

    Its ``summary`` holds the keys of `simserve capacity --json`. For steady open traffic:

    - ``max_rate`` is the rate at which fresh runs of ``requests.per_run`` requests hold, 95 % of them and more.
    - ``max_rate_90`` (in a closed loop ``max_concurrency_90``) is the load that nine in ten real servers can sustain,
      by the errors to expect.
    - ``mean_capacity`` is the rate at which their mean is what is asked, and ``confidence_interval`` that of the rate
      at which a run without end is.
    - ``finishable`` is what the deployment finishes with its queue never empty, and half the interval of that.
    - ``requests.settled`` says whether the halves of the runs agree.

    For other traffic, fresh runs are as long as the scenario says, or ``requests.per_run`` requests, and ``finishable``
    and ``requests.settled`` are null. For a trace, which has no other runs, ``max_rate`` is the largest that was seen
    to hold, and ``mean_capacity`` is null, too.

    Attributes:
        scenario: What was asked about, at its own load.
        found: What the search found.
        is_closed_loop: Whether load is a number of clients.
        sustained: What nine in ten real servers can sustain; None where that was not sought.
    """

    scenario: Scenario
    found: Found
    is_closed_loop: bool
    sustained: Sustained | None = None

    @property
    def load_key(self) -> str:
        """The name of the load: ``rate`` (requests/s) or ``concurrency``."""
        return "concurrency" if self.is_closed_loop else "rate"

    @property
    def asked(self) -> float:
        """Share of requests that must meet every bound."""
        asked = objective(self.scenario)
        assert asked is not None  # as the search required
        return asked.attainment

    @property
    def binding(self) -> str | None:
        """What breaks first: ``ttft``, ``tpot``, ``e2e``, ``lost`` requests or ``overload``; None if nothing did."""
        return self.found.binding(self.asked)

    @property
    def summary(self) -> dict[str, Any]:
        """What `simserve capacity --json` prints; None where undefined."""
        found, knee, sustained = self.found, self.found.knee, self.sustained
        held, finishable, interval = found.level(found.largest.value), None, None
        if found.finishable is not None:
            finishable = {"rate": found.finishable.rate, "half_width": found.finishable.half_width}
        if found.interval is not None:
            low, high = map(self._load, found.interval)
            interval = {"low": low, "high": high, "confidence": 0.95, "method": found.interval_method}
        return {
            "warnings": leading_warnings(self.scenario),
            f"max_{self.load_key}": self._load(found.largest.value),
            f"max_{self.load_key}_90": None if sustained is None else self._load(sustained.load),
            f"max_{self.load_key}_90_basis": None if sustained is None else sustained.basis,
            "binding": self.binding,
            "confidence_interval": interval,
            "mean_capacity": or_null(math.nan if found.capacity is None else found.capacity),
            "finishable": finishable,
            "fails_at": self._load(found.largest.fails_at),
            "attainment": None if held is None else or_null(held.attainment),
            "asked": self.asked,
            "formats": resolve(self.scenario).formats,
            "slo": objective_mapping(self.scenario),
            "load": "closed" if self.is_closed_loop else "open",
            "knee": knee and {self.load_key: self._load(knee.load), "goodput": or_null(knee.mean("goodput"))},
            "probes": [self._probe(level) for level in found.levels],
            "requests": {
                "per_run": found.num_requests,
                "replications": 0 if self._decisive is None else len(self._decisive.trials),
                "measured": self._num_measured(),
                "needed": or_null(found.needed_requests),
                "enough": self._num_measured() >= found.needed_requests,
                "settled": found.has_settled,
            },
            "notes": self.notes,
            "interrupted": self.was_interrupted,
            "version": __version__,
            "seed": self.scenario.run.seed,
            "scenario_name": self.scenario.name,
            "scenario_hash": self.scenario.hash,
        }

    @property
    def was_interrupted(self) -> bool:
        """Whether the user stopped the search; the answer is then what the runs so far have shown."""
        return self.found.was_interrupted

    @property
    def notes(self) -> list[str]:
        """What limits the answer, one sentence each."""
        notes = []
        found = self.found
        measured = self._num_measured()
        if not math.isfinite(found.needed_requests):
            notes.append(f"an attainment of 100% cannot be shown by counting: none of {measured:,} requests missed")
        elif measured < found.needed_requests:
            notes.append(
                f"{100 * self.asked:.10g}% rests on {measured:,} requests; {found.needed_requests:,} are needed for "
                "ten to lie beyond it"
            )
        if self.was_interrupted and found.is_complete:
            notes.append("interrupted once that was found: the loads around it, or those of real servers, are missing")
        elif self.was_interrupted:
            notes.append("interrupted: this is what the runs until then have shown, and it was not closed in on")
        if found.has_settled is False:
            notes.append(
                f"runs of {found.num_requests:,} requests have not settled: what is promised holds for such runs, and "
                "longer ones may show less"
            )
        promised, capacity = found.largest.value, found.capacity
        if promised and capacity and 1 - promised / capacity > NOTED_BELOW:
            longer = "--requests" if self.is_closed_loop else "--precision"
            differ = "runs as long as this differ" if self.lasts_as_said else f"runs differ; {longer} lengthens them"
            below = f"{1 - promised / capacity:.0%} below the mean capacity of {capacity:.3g}"
            notes.append(f"what is promised is {below}, as {differ}")
        scaling = self.scenario.deployment.autoscaling
        if scaling is not None:
            most = scaling.max_replicas
            notes.append(
                f"replicas start and stop as the autoscaler says, {scaling.min_replicas} to {most}: the load of a run "
                f"is compared with what all {most} can sustain"
            )
        if any(each.slo is not None for each in self.scenario.workload.classes or ()):
            notes.append("shares are those of the class that is nearest to missing its own objective, if one is")
        overflow = self.scenario.deployment.overflow
        if overflow is not None:
            has_rules = _keeps_api(self.scenario)
            rest = "takes what rules send it, and nothing more" if has_rules else "takes what is too much"
            notes.append(f"this is what the replicas can sustain alone: {overflow.api} {rest}, at any load")
        if found.largest.value and found.largest.fails_at is None:
            notes.append(self._open_end)
        return notes

    @property
    def lasts_as_said(self) -> bool:
        """Whether a run lasts as long as the scenario says, with as many requests as arrive in that time."""
        return has_own_clock(self.scenario)

    @property
    def _open_end(self) -> str:
        """Return the notes of a search whose highest load holds."""
        if self.is_closed_loop and self.scenario.workload.trace is not None:
            clients = round(self.found.largest.value)
            if clients == self.found.num_requests:
                return f"all {clients:,} requests of the trace at once hold: more clients would find none left"
        return "the highest load that was tried holds; the capacity is at least that"

    @property
    def _decisive(self) -> Level | None:
        """The runs behind the answer: at the load that holds, or if none does, at the one that fails."""
        return self.found.level(self.found.largest.value) or self.found.level(self.found.largest.fails_at)

    def _num_measured(self) -> int:
        return 0 if self._decisive is None else self._decisive.num_measured

    def _load(self, load: float | None) -> float | None:
        return load if load is None or not self.is_closed_loop else round(load)

    def _probe(self, level: Level) -> dict[str, Any]:
        return {
            self.load_key: self._load(level.load),
            "attainment": or_null(level.attainment),
            "by_metric": {name: or_null(value) for name, value in level.by_metric.items()},
            "holds": level.holds(self.asked),
            "probability": or_null(level.mean("probability")),
            "stability": level.stability,
            "p95_ttft_ms": or_null(MS * level.mean("p95_ttft")),
            "p95_tpot_ms": or_null(MS * level.mean("p95_tpot")),
            "goodput": or_null(level.mean("goodput")),
            "request_throughput": or_null(level.mean("throughput")),
            "output_throughput": or_null(level.mean("output_throughput")),
            "in_flight": or_null(level.mean("in_flight")),
            "replications": len(level.trials),
            "requests": level.num_measured,
        }


def capacity(
    scenario: Scenario,
    *,
    highest: float | None = None,
    precision: float | None = None,
    replications: int | None = None,
    num_requests: int | None = None,
    confidence: float | None = None,
    progress: Progress | None = None,
    tried: Tried | None = None,
) -> Capacity:
    """Return the largest rate, or number of clients in a closed loop, at which the scenario's objective holds.

    If the overflow of a deployment goes to an API, it is what the replicas alone can sustain, since an API takes any
    excess. Classes and rules that always send requests there still do.

    Args:
        highest: Nothing above it is tried.
        precision: Half width of the interval over the capacity: requests are added until it is reached; None: aims at
            2 % within the time of a short search.
        replications: Runs at each load, at least 2; None: 8 for steady open traffic, else 6. A trace has one.
        num_requests: Requests of one run; None: for steady open traffic 30,000 and more, until the halves of a run
            agree, whatever the scenario says; else as many as the percentile, the requests in flight and the precision
            ask for, and in a closed loop what the scenario says.
        confidence: Share of real servers for which ``sustained`` is found; None: 0.9.
        progress: Called before each run.
        tried: Called after each run of the search.

    Raises:
        ScenarioError: There is no objective, or no load that could be raised.
        UsageError: ``num_requests`` is given for a trace, which has its own, or ``highest`` leaves nothing to try.
        InfeasibleError: The model does not fit.
        InputError: A profile or a trace is missing or invalid.
    """
    is_closed = is_closed_loop(scenario)
    limit = _highest_allowed(highest, is_closed=is_closed)
    asked, scenario = scenario, _without_api(scenario)
    probe, traffic = probe_of(scenario), own_traffic(scenario)
    effort = _effort(scenario, traffic, precision, replications, num_requests, is_steady=probe.is_steady)
    slo = objective(scenario)
    assert slo is not None  # probe_of
    if is_closed and scenario.workload.trace is not None:
        limit = min(limit, len(traffic))  # more clients would find no requests left
    watched = probe if progress is None and tried is None else _watched(probe, slo.attainment, progress, tried)
    found = find_capacity(
        watched,
        asked=slo.attainment,
        start=load_of(scenario, traffic),
        effort=effort,
        highest=limit,
        is_whole=is_closed,
        finishable=probe.finishable if probe.is_steady else None,
    )
    at_confidence: Sustained | None = None
    if not found.was_interrupted:
        try:
            if not probe.is_steady and scenario.workload.trace is None and found.largest.value:
                found = replace(found, is_complete=False)  # until fresh runs hold
                found = hold_in_fresh_runs(watched, found, asked=slo.attainment, effort=effort, is_whole=is_closed)
                found = replace(found, is_complete=True)
            at_confidence = sustained(probe, found, is_whole=is_closed, confidence=confidence or CONFIDENCE)
        except KeyboardInterrupt:
            found = replace(found, was_interrupted=True)
    return Capacity(scenario=asked, found=found, is_closed_loop=is_closed, sustained=at_confidence)


def _highest_allowed(highest: float | None, *, is_closed: bool) -> float:
    """Return the highest load that may be tried."""
    if highest is None:
        return math.inf
    if not highest > 0:
        raise UsageError("must be above 0", key="--max", value=highest)
    if is_closed and highest < 1:
        raise UsageError("must be at least 1 client", key="--max", value=highest)
    return highest


def _without_api(scenario: Scenario) -> Scenario:
    """Return the scenario without the overflow that goes to an API; what always goes there still does."""
    overflow = scenario.deployment.overflow
    if overflow is not None:
        overflow = overflow.model_copy(update={"max_queue": None, "above_rate": None}) if _keeps_api(scenario) else None
    deployment = scenario.deployment.model_copy(update={"overflow": overflow})
    return scenario.model_copy(update={"deployment": deployment})


def _keeps_api(scenario: Scenario) -> bool:
    """Return whether classes, or a routing rule, send requests to the API at any load."""
    deployment = scenario.deployment
    assert deployment.overflow is not None  # as the caller says
    named = any(API_POOL in (rule.pool, rule.retry_pool) for rule in deployment.routing.rules or ())
    return named or bool(deployment.overflow.always)


def _effort(
    scenario: Scenario,
    traffic: RequestSpecs,
    precision: float | None,
    replications: int | None,
    num_requests: int | None,
    *,
    is_steady: bool,
) -> Effort:
    effort = Effort(num_requests=num_requests)
    if precision is not None:
        effort = replace(
            effort,
            precision=precision,
            tolerance=min(effort.tolerance, precision / 2),
            most_requests=THOROUGH_REQUESTS,
            most_fresh_requests=THOROUGH_FRESH_REQUESTS,
        )
    if replications is not None:
        effort = replace(effort, replications=replications, fresh_runs=replications)
    if is_steady:
        return effort
    if scenario.workload.trace is not None:
        if num_requests is not None or (replications or 1) > 1:
            flag = "--requests" if num_requests is not None else "--replications"
            raise UsageError("has no meaning for a trace: its requests are what they are", key=flag)
        effort = replace(effort, replications=1, num_requests=len(traffic))
    elif (clock := clock_of(scenario)) is not None:
        if num_requests is not None:
            rule = f"has no effect: {clock}, so every run lasts as long as the scenario's own"
            remedy = f"for another length --set workload.num_requests={num_requests}, which is that at its own rate"
            raise UsageError(rule, key="--requests", value=num_requests, remedy=remedy)
        fewer = min(effort.replications, WHOLE_REPLICATIONS) if replications is None else effort.replications
        effort = replace(effort, num_requests=len(traffic), replications=fewer)
    elif scenario.workload.has_sessions and replications is None and not is_closed_loop(scenario):
        effort = replace(effort, replications=CONVERSATION_REPLICATIONS)
        if precision is None:
            effort = replace(effort, tolerance=CONVERSATION_TOLERANCE, most_requests=0)
    elif is_closed_loop(scenario) and num_requests is None:
        effort = replace(effort, num_requests=scenario.workload.num_requests)
        has_followers = scenario.workload.sessions is not None or scenario.workload.agents is not None
        if has_followers and replications is None:
            effort = replace(effort, replications=CONVERSATION_REPLICATIONS)
    return effort


def _watched(
    probe: LoadProbe, asked: float, progress: Progress | None, tried: Tried | None
) -> Callable[[float, int, int], Trial]:
    done = 0

    def run(load: float, replication: int, num_requests: int) -> Trial:
        nonlocal done
        if progress is not None:
            progress(done, load)
        done += 1
        found = probe(load, replication, num_requests)
        if tried is not None:
            tried(load, num_requests, found.stability != "overloaded" and found.attainment >= asked)
        return found

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """The load that most real servers can sustain."""

    load: float | None
    """The highest load at which the objective was seen to hold on `CONFIDENCE` of them, by the errors to expect;
    never above what holds as simulated. None where it held at no load."""
    lowest: float  # The lowest load that was tried.
    basis: str  # What the errors are based on, in words.
    trial: Trial | None = None  # The run at that load; None without one.


def sustained(probe: Prober, found: Found, *, is_whole: bool, confidence: float = CONFIDENCE) -> Sustained | None:
    """Return the load that nine in ten real servers can sustain; None if the objective holds at no load as simulated.

    The probability at each load is that of a run there. Between two loads it is taken to fall evenly, in quantiles of a
    normal distribution over the logarithm of the load, and one or two runs settle it.

    Args:
        confidence: Share of real servers that must sustain it.

    Raises:
        KeyboardInterrupt: The user stopped it.
    """
    most = found.largest.value
    seen = {level.load: _judged(level.trials) for level in found.levels if 0 < level.load <= most}
    trials = {load: trial for load, trial in seen.items() if trial is not None}
    if not most or not trials:
        return None
    if most not in trials:
        trials[most] = probe(most, FIRST_FRESH, found.num_requests)
    known = {load: trial.probability for load, trial in trials.items()}
    for _ in range(MOST_RUNS_BELOW if _held(known, confidence) is None else MOST_RUNS):
        load = _next(known, confidence, is_whole=is_whole)
        if load is None:
            break
        trials[load] = probe(load, FIRST_FRESH, found.num_requests)
        known[load] = trials[load].probability
    held = _held(known, confidence)
    basis = next(iter(trials.values())).error_basis
    return Sustained(load=held, lowest=min(known), basis=basis, trial=None if held is None else trials[held])


def _judged(trials: Sequence[Trial]) -> Trial | None:
    return next((trial for trial in trials if not math.isnan(trial.probability)), None)


def _held(known: Mapping[float, float], confidence: float) -> float | None:
    """Return the highest load that holds, as does every lower one; None if none does."""
    held = None
    for load in sorted(known):
        if known[load] < confidence:
            break
        held = load
    return held


def _next(known: Mapping[float, float], confidence: float, *, is_whole: bool) -> float | None:
    """Return the next load to try; None if the known ones are close enough."""
    held = _held(known, confidence)
    above = [load for load in sorted(known) if held is None or load > held]
    if not above:
        return None
    failed = above[0]
    if held is not None:
        if failed <= CLOSE * held or (is_whole and failed - held <= 1):
            return None
        high, low = quantile(known[held]), quantile(known[failed])
        part = (high - quantile(confidence)) / (high - low) if high > low else 0.5
        load = min(max(BELOW * held * (failed / held) ** part, held * math.sqrt(CLOSE)), failed / math.sqrt(CLOSE))
        return float(min(max(math.floor(load), held + 1), failed - 1)) if is_whole else load
    factor = _FLATTEST
    if len(above) > 1:
        fall = (quantile(known[failed]) - quantile(known[above[1]])) / math.log(above[1] / failed)
        gap = quantile(confidence) - quantile(known[failed])
        factor = BELOW * math.exp(-gap / fall) if fall > 0 else _FLATTEST
    load = failed * min(max(factor, _FLATTEST), _STEEPEST)
    if is_whole:
        load = float(math.floor(load))
        return load if load >= 1 else None
    return load


def quantile(probability: float) -> float:
    """Return the quantile of a normal distribution at a probability, which is kept off 0 and 1."""
    return NormalDist().inv_cdf(min(max(probability, 1 - _SUREST), _SUREST))
