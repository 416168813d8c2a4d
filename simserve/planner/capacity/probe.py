"""From a scenario to runs of it at any load: priced and drawn once, stretched to each load. Searches nothing.

Traffic of conversations grows to its rate: the first turns come at once, the tenth after nine pauses. A run that ends
before the longest conversations are over has not seen the rate asked for: with turns 20 s apart, five on average,
30 requests a second begin as 6 a second and reach 27 after some four minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError
from simserve.metrics.latency import SLO, TASK, TERMS, RequestLatencies, attainment, percentiles, requests_meeting
from simserve.metrics.real_server import evidence_of
from simserve.metrics.summary import measure, settled
from simserve.metrics.throughput import Offered, throughput
from simserve.planner.capacity.level import SOJOURNS_PER_RUN, Trial
from simserve.planner.scaling import has_own_clock, scaled_traffic
from simserve.profiles.expected_errors import Expectation
from simserve.scenario.finishable import Finishable, find_finishable, offered_load
from simserve.scenario.replication import as_sent
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.run import deploy, expectation_of
from simserve.scenario.schema import Scenario, objective
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.workload.arrival_spec import AllAtOnceArrivals, ClosedLoopArrivals
from simserve.workload.dependencies import Dependencies
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec

Draw = Callable[[int, int], RequestSpecs]
"""Maps the index of a replication and a number of requests to a run's requests, at the scenario's own load."""
REACHED = 0.995
"""Share of the rate from which a run is measured. It is this high because prefix caches fill with the long
conversations: measured from 90 % on, `scenarios/prefix-routing.yaml` sustains a fifth more than in the long run."""
DRAWN_AT_ONCE = 4096
"""Least requests that are drawn: making the tables of lengths takes longer than drawing from them."""
JUDGED_RUNS = 2  # Replications of a load whose probability on a real server is computed: more of them say the same.
SOJOURNS_PER_OPEN_RUN = 5  # Least duration of an open run, in mean stays of a request.
RATE_STEPS = 3  # Corrections of the rate at which conversations begin, until requests come at the rate asked for.
_LEAST_MAY_MISS = 1e-6  # Share that may miss if all must meet a bound: a single miss is then too many.
REMEDY = "add one, for example --slo 'ttft=1s,tpot=50ms'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Arrivals of the requests of a conversation, counted from its first."""

    thinking: NDArray[np.float64]  # Pauses of its client, or tools, before each request, in seconds, shape [R].
    answers: NDArray[np.float64]  # Number of answers that it waits for first, shape [R].
    conversation_seconds: float  # Seconds of the pauses of a mean conversation, or task.
    conversation_turns: float  # Turns of a mean conversation, or task.

    def seconds(self, stay: float) -> float:
        """Return the time until `REACHED` of the rate is reached, if an answer takes ``stay`` seconds."""
        return float(np.quantile(self.offsets(stay), REACHED))

    def window(self, stay: float) -> float:
        """Return the shortest time to measure from then on: a mean conversation."""
        return self.conversation_seconds + self.conversation_turns * stay

    def offsets(self, stay: float) -> NDArray[np.float64]:
        """Return when each request arrives, in seconds after the first, if an answer takes ``stay`` seconds."""
        return self.thinking + stay * self.answers


def mean_rate(arrival_time: NDArray[np.float64], offsets: NDArray[np.float64], start: float) -> float:
    """Return the requests a second from ``start`` until the last conversation begins.

    Args:
        arrival_time: Seconds of the first request of each conversation, NaN of the others, shape [R].
        offsets: Seconds from the first request of its conversation to each (`Ramp.offsets`), shape [R].
        start: Seconds.
    """
    begins = np.maximum.accumulate(np.nan_to_num(arrival_time, nan=0.0))
    end = float(begins[-1])
    if not end > start:
        return 0.0
    arrivals = begins + offsets
    return float(np.count_nonzero((arrivals >= start) & (arrivals <= end))) / (end - start)


def ramp_of(specs: RequestSpecs) -> Ramp | None:
    """Return how the traffic grows; None without conversations, or where clients hold them in a closed loop."""
    if specs.session is None or specs.turn is None or specs.concurrency is not None or not len(specs):
        return None
    if specs.dependencies is not None:
        return _ramp_of_tasks(specs, specs.dependencies)
    begins = np.flatnonzero(np.diff(specs.session, prepend=specs.session[0] - 1))
    is_turn = np.diff(specs.turn, prepend=0) != 0
    is_turn[begins] = True
    pauses = np.cumsum(np.where(is_turn, specs.think_time, 0.0))
    of_row = np.repeat(begins, np.diff(begins, append=len(specs)))
    lengths = np.diff(begins, append=len(specs))
    last = begins + lengths - 1
    # The last conversation may be cut off by the number of requests: if it is the only one, it has to do.
    whole = slice(None, -1) if len(begins) > 1 else slice(None)
    return Ramp(
        thinking=pauses - pauses[of_row],
        answers=(specs.turn - 1).astype(np.float64),
        conversation_seconds=float(np.mean((pauses[last] - pauses[begins])[whole])),
        conversation_turns=float(np.mean(specs.turn[last][whole])),
    )


def _ramp_of_tasks(specs: RequestSpecs, graph: Dependencies) -> Ramp:
    """Return how the traffic of tasks grows: along the longest path to each call."""
    assert specs.session is not None
    begins = np.flatnonzero(np.diff(specs.session, prepend=specs.session[0] - 1))
    thinking = graph.longest(np.where(graph.num_parents > 0, specs.think_time, 0.0))
    answers = (graph.depths() - 1).astype(np.float64)
    whole = slice(None, -1) if len(begins) > 1 else slice(None)
    return Ramp(
        thinking=thinking,
        answers=answers,
        conversation_seconds=float(np.mean(np.maximum.reduceat(thinking, begins)[whole])),
        conversation_turns=float(np.mean(np.maximum.reduceat(answers, begins)[whole])) + 1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProbe:
    """Runs one deployment at any load: `simserve.planner.capacity.search.Prober`."""

    deployment: Deployment  # The deployment that serves.
    slo: SLO  # The objective.
    draw: Draw  # The traffic.
    warmup: str | float = "auto"  # ``auto``, ``none`` or seconds.
    is_closed_loop: bool = False  # Whether load is a number of clients, who all start at once.
    ramp: Ramp | None = None  # How conversations grow to their rate; None without any.
    draw_whole: Callable[[float, int], RequestSpecs] | None = None
    """Maps a load and the index of a replication to all requests of it, where a run must last as long as the scenario
    says (`simserve.planner.scaling.has_own_clock`); None: any part of it is like the rest."""
    finishable: Finishable | None = None
    """What the deployment finishes with its queue never empty; None where the traffic has no load ratio."""
    is_steady: bool = False
    """Whether arrivals are open and at one rate throughout, so that a run may have any length."""
    watch: Callable[[int, int], None] | None = None
    """Called now and then in a run; if it raises KeyboardInterrupt, the run ends."""
    expects: Callable[[Simulation], Expectation] | None = None
    """Maps a run to the errors to expect of a real server; None: no probability is computed."""
    _drawn: dict[int, RequestSpecs] = field(default_factory=dict)
    _ramps: dict[int, Ramp] = field(default_factory=dict)
    _sojourns: dict[float, float] = field(default_factory=dict)

    def __call__(self, load: float, replication: int, num_requests: int) -> Trial:
        """Return what a run at ``load`` (requests/s, or clients of a closed loop) measured.

        Raises:
            KeyboardInterrupt: The user stopped it: part of a run is not a measurement.
        """
        warmup = self.warmup
        if self.draw_whole is not None:
            specs = self.draw_whole(load, replication)
        elif self.ramp is not None:
            specs, warmup = self._grown(self.ramp, load, replication, num_requests)
        else:
            specs = at_load(self._first(replication, self._length(load, num_requests)), load)
        simulation = simulate(self.deployment, specs, progress=self.watch)
        if simulation.was_interrupted:
            raise KeyboardInterrupt
        offered = None if self.finishable is None else offered_load(specs, self.finishable)
        expected = None if self.expects is None or replication >= JUDGED_RUNS else self.expects(simulation)
        found = trial(simulation, self.slo, warmup, offered, expected)
        if load not in self._sojourns and found.throughput > 0 and found.stability != "overloaded":
            self._sojourns[load] = found.in_flight / found.throughput
        return found

    def num_simulated(self, load: float, num_requests: int) -> int:
        """Return how many requests a run at ``load`` would take, by what is known from the nearest other load."""
        if self.ramp is not None:
            return ceil(load * self._grown_seconds(self.ramp, load, num_requests)[1])
        return self._length(load, num_requests)

    def _grown(self, ramp: Ramp, load: float, replication: int, num_requests: int) -> tuple[RequestSpecs, float]:
        """Return conversations whose requests come at ``load`` on average after a warm-up, and its seconds."""

        stay = self._stay(load)
        start, end = self._grown_seconds(ramp, load, num_requests)
        nominal = load / REACHED
        for _ in range(RATE_STEPS):
            first, count = nominal, ceil(nominal * end)
            drawn = self._at_least(replication, count)
            begins = drawn.arrival_time[:count] * (drawn.offered_rate / first)
            offsets = self._ramps[replication].offsets(stay)[:count]
            nominal *= load / max(mean_rate(begins, offsets, start), load / 4)
        specs = at_load(at_load(drawn.first(count), first), nominal)
        return replace(specs, offered_rate=load), start

    def _grown_seconds(self, ramp: Ramp, load: float, num_requests: int) -> tuple[float, float]:
        """Return when conversations have grown to their rate, and when the run ends."""
        stay = self._stay(load)
        start = ramp.seconds(stay)
        if not isinstance(self.warmup, str):
            start = max(start, self.warmup)
        return start, start + max(ramp.window(stay), SOJOURNS_PER_OPEN_RUN * stay, num_requests / load)

    def _stay(self, load: float) -> float:
        """Return how long a request stayed at the nearest other load that was tried; 0 if there is none."""
        others = [tried for tried, stay in self._sojourns.items() if tried != load and np.isfinite(stay)]
        nearest = min(others, key=lambda tried: (abs(np.log(tried / load)), tried), default=None)
        return 0.0 if nearest is None else self._sojourns[nearest]

    def _first(self, replication: int, num_requests: int) -> RequestSpecs:
        """Return the first requests of a replication; a trace may have fewer."""
        return self._at_least(replication, num_requests).first(num_requests)

    def _at_least(self, replication: int, num_requests: int) -> RequestSpecs:
        """Return as many requests of a replication or more; a trace may have fewer."""
        if replication not in self._drawn or len(self._drawn[replication]) < num_requests:
            drawn = self.draw(replication, max(num_requests, DRAWN_AT_ONCE))
            ramp = None if self.ramp is None else ramp_of(drawn)
            self._drawn[replication] = drawn
            if ramp is not None:
                self._ramps[replication] = ramp
        return self._drawn[replication]

    def _length(self, load: float, num_requests: int) -> int:
        """Return enough requests for the warm-up, or a start of all clients at once, to be a small part of a run.

        An open run lasts several times as long as a request stays (at the nearest load that was tried): a shorter one
        is over before the queue of an overload has grown.
        """
        if self.is_closed_loop:
            return max(num_requests, SOJOURNS_PER_RUN * round(load))
        num_requests = max(num_requests, ceil(SOJOURNS_PER_OPEN_RUN * self._stay(load) * load))
        return num_requests if isinstance(self.warmup, str) else max(num_requests, ceil(3 * self.warmup * load))


def at_load(specs: RequestSpecs, load: float) -> RequestSpecs:
    """Return the same requests at another load: with gaps stretched to the rate, or from another number of clients."""
    if specs.concurrency is not None:
        return replace(specs, concurrency=round(load))
    stretch = specs.offered_rate / load
    return replace(specs, arrival_time=specs.arrival_time * stretch, offered_rate=load)


def trial(
    simulation: Simulation,
    slo: SLO,
    warmup: str | float,
    offered: Offered | None = None,
    expected: Expectation | None = None,
) -> Trial:
    """Return what a search needs to know about a run.

    Args:
        warmup: ``auto``, ``none`` or seconds.
        offered: Decides whether the run is overloaded, where it is known.
        expected: Errors to expect of a real server; None: no probability is computed.
    """
    measured = measure(simulation, slo=slo, warmup=warmup, offered=offered)
    records, window, latencies = simulation.records, measured.window, measured.latencies
    shares, asked = attainment(latencies, slo, window.has_arrived), _asked(latencies, slo, window.has_arrived)
    rates = throughput(records, window, measured.meets_slo)
    counted = window.has_arrived & latencies.is_completed
    is_open = simulation.is_open_loop and np.isfinite(simulation.offered_rate)
    probability = np.nan
    if expected is not None:
        evidence = evidence_of(records, latencies, window.has_arrived, slo, simulation.totals, expected)
        probability = evidence.probability(None if offered is None else offered.mean)
    return Trial(
        attainment=asked.attainment,
        by_metric=asked.by_metric,
        stability=measured.verdict,
        p95_ttft=_p95(latencies.ttft[counted]),
        p95_tpot=_p95(latencies.tpot[counted]),
        mean_tpot=_mean(latencies.tpot[counted]),
        goodput=shares.all_terms * simulation.offered_rate if is_open else rates.good_requests,
        throughput=rates.requests,
        output_throughput=rates.output_tokens,
        in_flight=float(np.mean(measured.sojourns.num_in_system_at_arrivals())) if len(measured.sojourns) else np.nan,
        met=asked.met,
        has_settled=settled(measured, offered),
        num_simulated=len(records),
        lost=_mean((~latencies.is_completed[window.has_arrived]).astype(np.float64)),
        probability=probability,
        error_basis="" if expected is None else expected.basis,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How a run met its objective, as in the fields of `Trial`."""

    attainment: float
    by_metric: dict[str, float]
    met: NDArray[np.bool_ | np.float64]


def _asked(latencies: RequestLatencies, slo: SLO, submitted: NDArray[np.bool_]) -> _Asked:
    """Return what all requests met, or a class with an objective of its own that is nearer to missing it.

    Where a class asks for another share than all requests do, its misses are weighted by the ratio of what may miss.
    """
    shares = attainment(latencies, slo, submitted)
    terms = [term for term in (*TERMS, TASK) if term in shares.by_metric and not np.isnan(shares.by_metric[term])]
    worst = _Asked(
        attainment=shares.all_terms, by_metric={term: shares.by_metric[term] for term in terms}, met=shares.met
    )
    if latencies.request_class is None or slo.task is not None:
        return worst
    for index, name in enumerate(latencies.class_names):
        own, of_class = slo.by_class.get(name), submitted & (latencies.request_class == index)
        if own is None or not of_class.any():
            continue
        within = {term: float(np.mean(requests_meeting(latencies, slo, (term,))[of_class])) for term in terms}
        met: NDArray[np.bool_ | np.float64] = requests_meeting(latencies, slo)[of_class]
        if own.attainment != slo.attainment:
            met = np.where(met, 1.0, 1.0 - (1 - slo.attainment) / max(1 - own.attainment, _LEAST_MAY_MISS))
        share = max(float(np.mean(met)), 0.0)
        if share < worst.attainment:
            worst = _Asked(attainment=share, by_metric=within, met=met)
    return worst


def probe_of(asked: Scenario | ResolvedScenario, finishable: Finishable | None = None) -> LoadProbe:
    """Return a probe that runs a scenario, resolved or not, at any load.

    Args:
        asked: What is deployed, what arrives and what is asked.
        finishable: What the deployment finishes with its queue never empty, if known; None: it is found.

    Raises:
        ScenarioError: There is no objective, or no load that could be raised.
        InfeasibleError: The model does not fit.
        InputError: A profile or a trace is missing or invalid.
    """
    scenario = asked if isinstance(asked, Scenario) else asked.scenario
    check_load(scenario)
    resolved = resolve(asked)
    deployment = deploy(resolved)
    known = finishable or find_finishable(resolved, deployment)
    has_clock, has_trace = has_own_clock(scenario), scenario.workload.trace is not None
    slo, ramp = objective(scenario), None
    assert slo is not None  # check_load
    if scenario.workload.has_sessions and not has_clock and not has_trace:
        ramp = ramp_of(_draw(scenario, 0, DRAWN_AT_ONCE))
    return LoadProbe(
        deployment=deployment,
        slo=slo,
        draw=lambda replication, num_requests: _draw(scenario, replication, num_requests),
        warmup=scenario.run.warmup,
        is_closed_loop=is_closed_loop(scenario),
        ramp=ramp,
        finishable=known,
        expects=lambda simulation: expectation_of(resolved, simulation),
        is_steady=known is not None and not has_clock and not has_trace and scenario.deployment.liveness is None,
        draw_whole=None if not has_clock else lambda load, replication: _whole(scenario, load, replication),
    )


def _whole(scenario: Scenario, load: float, replication: int) -> RequestSpecs:
    """Return all requests of a run as long as the scenario says, with rates scaled to a mean of ``load``."""
    own = whole_traffic(scenario, replication)
    scaled = scaled_traffic(scenario, load / own.offered_rate)
    assert scaled is not None  # check_load
    seconds = scenario.workload.duration or float(np.nanmax(own.arrival_time))
    workload = scaled.workload.model_copy(update={"duration": seconds, "num_requests": None})
    return _generated(scenario, workload, replication)


def whole_traffic(scenario: Scenario, replication: int = 0) -> RequestSpecs:
    """Return all requests of a replication, as the scenario says."""
    return _generated(scenario, scenario.workload, replication)


def _generated(scenario: Scenario, workload: WorkloadSpec, replication: int) -> RequestSpecs:
    """Return the requests of a workload, with the drafting pace of each drawn where the deployment drafts."""
    seed = scenario.run.seed
    with scenario.blaming("workload"):
        specs = generate(workload, seed=seed, replication=replication, base_path=scenario.folder)
    return as_sent(specs, scenario, replication)


def check_load(scenario: Scenario) -> None:
    """Check that a scenario has an objective and a load that can be raised.

    Raises:
        ScenarioError: Names what is missing, and what to add.
    """
    with scenario.blaming("slo"):
        if objective(scenario) is None:
            raise ScenarioError("is missing: without one no load is too much", remedy=REMEDY)
    if has_two_loads(scenario):
        with scenario.blaming("workload"):
            rule = "has clients in a closed loop beside arrivals at a rate: which of the two is the load is not said"
            remedy = "leave one of them out, or sweep the one that is meant: simserve sweep --grid KEY=..."
            raise ScenarioError(rule, key="classes", remedy=remedy)
    if isinstance(scenario.workload.arrivals, AllAtOnceArrivals):
        with scenario.blaming("workload.arrivals"):
            rule = "has no load that could be raised: all requests come at once"
            remedy = "write arrivals: {process: poisson, rate: 1.0}"
            raise ScenarioError(rule, key="process", value="all_at_once", remedy=remedy)


def own_traffic(scenario: Scenario) -> RequestSpecs:
    """Return the requests of a trace or a pattern, else the first two that would be drawn: they tell the load."""
    return whole_traffic(scenario) if has_own_clock(scenario) else _draw(scenario, 0, 2)


def load_of(scenario: Scenario, specs: RequestSpecs) -> float:
    """Return the scenario's own load: requests/s, or clients of a closed loop.

    Raises:
        ScenarioError: All requests of a trace arrive at once.
    """
    if specs.concurrency is not None:
        return float(specs.concurrency)
    if not np.isfinite(specs.offered_rate):
        with scenario.blaming("workload"):
            raise ScenarioError("has no load that could be raised: nothing arrives after the start", key="trace")
    return float(specs.offered_rate)


def has_two_loads(scenario: Scenario) -> bool:
    """Return whether the load is a number of clients and, in addition, a rate."""
    return scenario.workload.is_mixed and scenario.workload.has_clients


def is_closed_loop(scenario: Scenario) -> bool:
    """Return whether clients wait for their answers, so that the load is their number."""
    return isinstance(scenario.workload.arrivals, ClosedLoopArrivals) and not scenario.workload.is_mixed


def _draw(scenario: Scenario, replication: int, num_requests: int) -> RequestSpecs:
    """Return the requests of a replication; a trace keeps its own, whatever number is asked for."""
    workload = scenario.workload
    if workload.trace is None:
        workload = workload.of_length(num_requests)
    return _generated(scenario, workload, replication)


def _p95(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return percentiles(defined, [95])[0] if len(defined) else np.nan


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else np.nan
