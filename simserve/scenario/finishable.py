"""What a deployment finishes if its queue is never empty, and how the traffic compares with it: the load ratio.

Clients of a closed loop, more than the deployment can hold, send the scenario's own requests one after another. The
rate at which they are answered in the steady state is the highest rate at which open arrivals can ever be answered (the
saturation rule: Baccelli and Foss, "On the saturation rule for the stability of queues", J. Appl. Prob. 1995).

That rule requires a server that a longer queue does not slow down. Conversations with a prefix cache break it: the
longer their answers take, the more prefixes of others come between two turns, and the fewer are still cached. Up to
some load the cache stays warm; once a queue has formed it does not, and less is finished. In between, a deployment
keeps up until a random peak from which it does not recover. Open runs that begin empty, as a deployment does, and meet
such a peak find the highest load after which the queue does not grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.engine.config import EngineConfig
from simserve.metrics.statistics import t_quantile
from simserve.metrics.throughput import Offered
from simserve.scenario.replication import as_sent
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario
from simserve.sim.control import Control, Limits, OverflowSpec
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.workload.arrival_spec import AllAtOnceArrivals, BurstArrivals, PoissonArrivals
from simserve.workload.distributions import RenewalArrivals
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec

REPLICATION = 2**20  # Index of the draws; no replication of a run uses it.
FEWEST_REQUESTS = 4000  # Fewest requests of the run that measures throughput.
MOST_REQUESTS = 32_000  # Most requests of one run, unless there are more clients.
CANDIDATES = 8
"""Requests, or conversations, drawn for each one that is sent, so that those sent have the traffic's mean work."""
ROUNDS = 8
"""Fewest requests of each client: two until all are well under way, one at the end; the others are measured."""
SPARE_CLIENTS = 1.3  # Clients, relative to the requests that a deployment can hold.
SPARE_CLIENTS_OF_BATCHES = 2.1
"""The same if a batch is answered as a whole: when it ends, a full one must be waiting before its clients return."""
MOST_AT_FIRST = 512
"""Most concurrent requests of one scheduler in the first try; more are tried only if they bring throughput."""
MORE_CLIENTS = 1.5  # Factor on the clients when too few of them wait.
MORE_CLIENTS_OF_ADAPTERS = 3.5
"""The same with many adapters: while batches still fill up, each increase must bring more than the noise of a run. For
`hundred-tenants` the last queue is then about as long as in runs of 400,000 requests near the limit."""
FEWEST_WAITING = 0.02
"""Fewest requests that must wait in the queue on average, relative to those that a deployment can hold."""
HALF_WIDTH = 0.03
"""Largest half-width of the interval by batch means, relative to the throughput, of a run that is long enough. Requests
of balanced work are more precise than batches show: in 24 draws of three scenarios, 1.5 % stood for a standard
deviation of 0.55 %."""
MORE_THROUGHPUT = 1.01  # Largest factor on the throughput with fewer clients at which more clients count as no gain.
NUM_BATCHES = 20
OPEN_REQUESTS, OPEN_REQUESTS_OF_AGENTS = 12_000, 20_000
"""Fewest requests of an open run that tells whether the deployment keeps up; more for agents, whose tasks are few."""
MOST_OPEN_REQUESTS = 320_000
NEARLY_FULL = 0.9
"""Clients of the closed run that finds the starting load, relative to what a deployment holds: none waits long."""
OPEN_STAYS = 12.0
"""Shortest open run, in mean lengths of a conversation; if a fleet needs more than `MOST_OPEN_REQUESTS` for that, the
backlogged run decides."""
OPEN_STEP, LEAST_OPEN_STEP, MOST_OPEN_STEP = 1.05, 1.03, 1.12
"""Factors between loads while the deployment keeps up with none, or with all: the first one, squared each time, and the
bounds of a guess from the observed growth."""
GROWTH_PER_LOAD = 0.12
"""Growth (see `_OpenLoad`) of a load beyond the limit, divided by the logarithm of its ratio to the limit; used until
two loads determine it: 0.10 to 0.15 for `multi-turn`, `kv-tiers`, `kv-offload` and `prefix-routing`."""
LEAST_CAME = 0.85
"""Share of the requested rate that arrives, below which a growing queue says nothing about how far the limit is."""
OPEN_REACH, OPEN_REACH_OF_FALL = 1.04, 1.02
"""Largest factors between the highest load kept up with and the lowest that is not: if as much is answered beyond the
limit, so that it can be interpolated, and if less is."""
LEAST_GROWTH_APART = 0.0015  # Growth of a load that counts as none: 1 % of the load, by `GROWTH_PER_LOAD`.
MOST_OPEN_RUNS = 10  # Open runs after which the result of a backlogged run is used.
OPEN_HALF_WIDTH = 0.03
"""Half the interval relative to the load: twice the root mean square of the errors against runs of 400,000 requests,
which is 0.4 to 1.5 % in `multi-turn`, `kv-offload`, `kv-tiers` and `prefix-routing` (docs/promises.md)."""
EVEN_BEGINNINGS = 100
"""Successive conversation starts that together take exactly as long as the rate says; among themselves at random."""
PEAK_DEVIATIONS = 5.0
"""Conversations that a peak adds to those under way, in standard deviations of the work under way. Chosen on
`multi-turn` and `coding-agents`, and tried on others (docs/promises.md): what runs of 400,000 requests meet."""
PEAK_FROM = 0.35
"""Share of the conversations that have begun when the peak comes: the rate is steady by then, and caches are full."""
OPEN_WINDOW = 0.15
"""Share of an open run, after the peak and again at the end, over which the requests in the system are averaged."""
OPEN_POINTS = 60
LEAST_OPEN_GROWTH = 0.003  # Share of the requests arriving meanwhile that a growing queue keeps.
AT_ONCE = 1e-6  # Seconds per answer, and per token, of an API that keeps no client waiting.
KEPT_DRAWS, MOST_KEPT_REQUESTS = 10, 200_000
"""Draws of requests that are kept, and the most requests in one: a search reuses them for one fleet after another."""
PEAK_SECONDS = 300.0  # If the rate varies, its highest five minutes count besides the mean.


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishable:
    """What a deployment finishes of a traffic if its queue is never empty."""

    rate: float  # Requests per second.
    half_width: float  # Half the 95 % interval of it, requests per second.
    requests: int  # Requests that were simulated for it.


KnownFinishable = dict[tuple[int, ...], Finishable | None]
"""Numbers of replicas that were simulated, also by pool -> what they finish."""


def has_load_ratio(scenario: Scenario) -> bool:
    """Return whether the traffic has an arrival rate of its own: no batch, burst, trace or closed loop."""
    workload = scenario.workload
    sources = [workload.arrivals, *(each.arrivals for each in workload.classes or ())]
    given = [each for each in sources if each is not None]
    if workload.has_clients or not given or (workload.trace is not None and workload.arrivals is None):
        return False
    return not any(isinstance(each, AllAtOnceArrivals | BurstArrivals) for each in given)


def offered_load(specs: RequestSpecs, finishable: Finishable) -> Offered:
    """Return what the requests of a run ask of a deployment, compared with what it finishes.

    A steady rate is the scenario's own; if it varies, the mean over the arrivals and the highest five minutes.
    """
    if specs.is_stationary:
        return Offered(mean=specs.offered_rate / finishable.rate, peak=None)
    times = np.sort(specs.arrival_time[np.isfinite(specs.arrival_time)])
    per_beginning = len(specs) / len(times)
    mean = specs.offered_rate / finishable.rate
    seconds = min(PEAK_SECONDS, float(times[-1]))
    most = int((np.searchsorted(times, times + seconds, side="left") - np.arange(len(times))).max())
    return Offered(mean=mean, peak=max(most * per_beginning / seconds / finishable.rate, mean))


def find_finishable(
    resolved: ResolvedScenario, deployment: Deployment, known: KnownFinishable | None = None
) -> Finishable | None:
    """Return what the deployment finishes of the scenario's traffic; None if it has no load ratio, or nothing can be
    served.

    A first, short run gives the time a request stays, over which the clients of the second run start, and how many
    clients are needed if users think between their turns. Conversations with a prefix cache are then sent in open runs.
    All runs are compiled if possible, whatever the run itself asks for: the figures are the same to the bit.

    Args:
        resolved: The scenario.
        deployment: Its deployment.
        known: What was found for the same deployment and traffic, by number of replicas; new results are added; None:
            nothing is kept. The result for one of several identical replicas is multiplied by their number.
        InputError: The traffic cannot be drawn.
    """
    scenario = resolved.scenario
    if not has_load_ratio(scenario):
        return None
    relaxed, share = _relaxed(scenario, deployment)
    known = {} if known is None else known
    key = relaxed.num_replicas, *(pool.num_replicas for pool in relaxed.pools)
    if key not in known:
        known[key] = _kept_up_with(scenario, relaxed) or _found(scenario, relaxed)
    found = known[key]
    if found is None:
        return None
    rate, encoded = found.rate / share, _encoded_rate(scenario)
    if encoded < rate:
        return replace(found, rate=encoded, half_width=0.0)
    return replace(found, rate=rate, half_width=found.half_width / share)


def _encoded_rate(scenario: Scenario) -> float:
    """Return the requests per second whose images the encoder pool encodes if it never idles; inf: there is no pool."""
    if scenario.deployment.encoder_disaggregation is None:
        return math.inf
    pool = _drawn(scenario, FEWEST_REQUESTS).encoder_pool
    if pool is None or not pool.seconds.any():
        return math.inf
    return (pool.max_workers or pool.num_workers) / float(pool.seconds.mean())


def _found(scenario: Scenario, relaxed: Deployment) -> Finishable | None:
    """Return what a deployment that refuses no request finishes."""
    sample = _drawn(scenario, FEWEST_REQUESTS)
    held, thinking = _held(relaxed, sample), _mean_pause(sample)
    spare = SPARE_CLIENTS
    if any(engine.batching == "static" for engine, _ in _engines(relaxed)):
        spare = SPARE_CLIENTS_OF_BATCHES
    clients = math.ceil(spare * min(held, MOST_AT_FIRST * _num_schedulers(relaxed)))
    hurried = _run(scenario, relaxed, clients, 2 * clients, 0.0, is_hurried=True)
    spent, is_finite = hurried.requests, scenario.workload.trace is not None
    rate, stay = hurried.rate, clients / hurried.rate if hurried.rate else 0.0
    clients += math.ceil(rate * thinking)
    has_adapters = scenario.workload.loras is not None
    more_clients = MORE_CLIENTS_OF_ADAPTERS if has_adapters else MORE_CLIENTS
    requests, fewer_clients_rate = max(FEWEST_REQUESTS, ROUNDS * clients), 0.0
    while True:
        seen = _run(scenario, relaxed, clients, requests, stay + thinking)
        spent += seen.requests
        # A server may hold every client without getting faster; then none waits. With many adapters a longer queue
        # fills the batches better, so that the number of waiting requests alone never suffices.
        has_queue = not has_adapters and seen.waiting >= FEWEST_WAITING * held
        has_queue = has_queue or seen.rate <= MORE_THROUGHPUT * fewer_clients_rate
        is_known = has_queue and seen.half_width <= HALF_WIDTH * seen.rate
        if not seen.rate:
            return None  # nothing is served at all: every prompt is too long
        if is_known or requests >= MOST_REQUESTS or (is_finite and seen.requests < requests):
            return Finishable(rate=seen.rate, half_width=seen.half_width, requests=spent)
        stay = clients / seen.rate
        if not has_queue:
            clients, fewer_clients_rate = math.ceil(more_clients * clients), seen.rate
        requests = max(2 * requests, ROUNDS * clients)


def _kept_up_with(scenario: Scenario, relaxed: Deployment) -> Finishable | None:
    """Return the highest load at which a queue that begins empty does not grow, if throughput depends on its length.

    None if it does not, or if open runs give no answer: a backlogged run then says what is finished.
    """
    workload = scenario.workload
    caches = any(engine.enable_prefix_caching for engine, _ in _engines(relaxed))
    if workload.trace is not None or not workload.has_sessions or not caches:
        return None
    sample = _drawn(scenario, FEWEST_REQUESTS)
    if not sample.is_stationary:
        return None
    start, spent = _full_rate(scenario, relaxed, sample)
    requests = _open_requests(relaxed, sample, start) if start else None
    if requests is None:
        return None
    traffic = _OpenTraffic.of(scenario, relaxed, requests, start)
    if traffic.last_beginning - traffic.peak_end < 2 * OPEN_WINDOW * traffic.last_beginning:
        return None  # Few conversations, or very uneven ones: too few follow the peak.
    rate = traffic.limit(start)
    if rate is None:
        return None
    return Finishable(rate=rate, half_width=OPEN_HALF_WIDTH * rate, requests=spent + traffic.simulated)


def _full_rate(scenario: Scenario, relaxed: Deployment, sample: RequestSpecs) -> tuple[float, int]:
    """Return roughly what a deployment finishes when nearly full, requests/s, and the requests simulated for it.

    A run without thinking tells how many clients are needed with it.
    """
    held = math.ceil(NEARLY_FULL * min(_held(relaxed, sample), MOST_AT_FIRST * _num_schedulers(relaxed)))
    hurried = _run(scenario, relaxed, held, 2 * held, 0.0, is_hurried=True)
    if not hurried.rate:
        return 0.0, hurried.requests
    thinking = _mean_pause(sample)
    clients = math.ceil(held + hurried.rate * thinking)
    requests = max(FEWEST_REQUESTS, ROUNDS * clients)
    seen = _run(scenario, relaxed, clients, requests, held / hurried.rate + thinking)
    return seen.rate, hurried.requests + seen.requests


def _open_requests(relaxed: Deployment, sample: RequestSpecs, rate: float) -> int | None:
    """Return the requests of an open run that outlasts its conversations; None if they are too many."""
    conversation = (_held(relaxed, sample) / rate + _mean_pause(sample)) * len(sample) / (len(_edges(sample)) - 1)
    least = OPEN_REQUESTS if sample.dependencies is None else OPEN_REQUESTS_OF_AGENTS
    requests = max(least, math.ceil(OPEN_STAYS * rate * conversation))
    return requests if requests <= MOST_OPEN_REQUESTS else None


@dataclass(frozen=True, slots=True)
class _OpenLoad:
    """What an open run shows at one load."""

    rate: float  # Requested rate, requests/s.
    came: float
    """Requests/s that arrived after the peak: fewer if conversations wait for answers, once a queue grows."""
    growth: float
    """Increase of the requests in the system from the peak to the end, relative to the arrivals meanwhile, minus
    `LEAST_OPEN_GROWTH`. It rises smoothly with the load, since all loads get the same conversations, except for a
    jump where a cache tips."""

    @property
    def is_kept_up_with(self) -> bool:
        """Whether the queue does not grow."""
        return self.growth <= 0


@dataclass(slots=True)
class _OpenTraffic:
    """One draw of steady open traffic of balanced work with one peak, which can be sent at any rate."""

    deployment: Deployment  # A deployment that refuses no request.
    specs: RequestSpecs  # The requests.
    peak_end: float  # When the last conversation of the peak begins, seconds.
    last_beginning: float  # When the last conversation begins, seconds.
    simulated: int = 0  # Requests that were simulated.

    @classmethod
    def of(cls, scenario: Scenario, deployment: Deployment, num_requests: int, rate: float) -> _OpenTraffic:
        """Return about ``num_requests`` requests of the scenario, which arrive at one rate.

        Args:
            deployment: A deployment that refuses no request.
            rate: About the rate that the deployment finishes, requests/s.
        """
        specs = _drawn(scenario, CANDIDATES * num_requests)
        edges = _edges(specs)
        begins, lengths = edges[:-1], np.diff(edges)
        work = np.add.reduceat(_work(deployment, specs), begins)
        under_way = math.ceil(_held(deployment, specs) + rate * _mean_pause(specs))
        chosen = _balanced(work, under_way, scenario.run.seed)
        rows = np.concatenate([np.arange(edges[each], edges[each + 1]) for each in chosen])
        began = specs.arrival_time[begins]
        later = specs.arrival_time - np.repeat(began, lengths)
        # For a renewal process, the squared variation of the gaps gives the variance of the number of arrivals; that of
        # the work adds to it.
        deviation = math.sqrt(under_way * (_squared_variation(np.diff(began)) + _squared_variation(work)))
        more = math.ceil(PEAK_DEVIATIONS * deviation)
        times, peak_end = _with_peak(_evened(began[: len(chosen)]), under_way, more)
        arrival_time = np.repeat(times, lengths[chosen]) + later[rows]
        moved = replace(specs.of_rows(rows), arrival_time=arrival_time, encoder_pool=None)
        return cls(deployment, moved, peak_end, float(times[-1]))

    def limit(self, start: float) -> float | None:
        """Return the highest rate, requests/s, that the deployment keeps up with; None if it is not found."""
        low: _OpenLoad | None = None
        high: _OpenLoad | None = None
        rate, step = start, OPEN_STEP
        for _ in range(MOST_OPEN_RUNS):
            seen = self.load(rate)
            low, high = (seen, high) if seen.is_kept_up_with else (low, seen)
            if low is None or high is None:
                if not seen.is_kept_up_with and seen.came >= LEAST_CAME * rate:
                    step = min(max(1 + seen.growth / GROWTH_PER_LOAD, LEAST_OPEN_STEP), MOST_OPEN_STEP)
                rate, step = (rate * step if seen.is_kept_up_with else rate / step), min(step**2, MOST_OPEN_STEP**2)
                continue
            share = low.growth / (low.growth - high.growth)
            if high.came < low.came:  # The cache has tipped: growth does not locate the limit.
                if high.rate <= OPEN_REACH_OF_FALL * low.rate:
                    return low.came
                rate = math.sqrt(low.rate * high.rate)
            elif high.rate <= OPEN_REACH * low.rate or min(-low.growth, high.growth) <= LEAST_GROWTH_APART:
                return low.came + share * (high.came - low.came)
            else:
                rate = low.rate + share * (high.rate - low.rate)
        return None

    def load(self, rate: float) -> _OpenLoad:
        """Return what a run at this rate shows."""
        stretch = self.specs.offered_rate / rate
        sent = replace(self.specs, arrival_time=self.specs.arrival_time * stretch, offered_rate=rate)
        simulation = simulate(self.deployment, sent)
        if simulation.was_interrupted:
            raise KeyboardInterrupt
        self.simulated += len(sent)
        records = simulation.records
        is_served = np.isfinite(records.finish_time)  # prompts that are too long never are
        arrived, finished = np.sort(records.arrival_time[is_served]), np.sort(records.finish_time[is_served])
        begin, end = self.peak_end * stretch, self.last_beginning * stretch
        window = OPEN_WINDOW * end

        def inside(start: float) -> float:
            times = np.linspace(start, start + window, OPEN_POINTS)
            return float(np.mean(np.searchsorted(arrived, times) - np.searchsorted(finished, times)))

        came = np.count_nonzero((records.arrival_time >= begin + window) & (records.arrival_time < end))
        growth = (inside(end - window) - inside(begin)) / max(int(came), 1) - LEAST_OPEN_GROWTH
        return _OpenLoad(rate=rate, came=float(came / (end - begin - window)), growth=growth)


def _squared_variation(values: NDArray[np.float64]) -> float:
    """Return the variance over the square of the mean."""
    return float(values.var() / values.mean() ** 2)


def _evened(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return starts of which every `EVEN_BEGINNINGS` take equally long, so that short runs have one load."""
    ends = np.append(np.arange(0, len(times) - 1, EVEN_BEGINNINGS), len(times) - 1)
    evened: NDArray[np.float64] = np.interp(times, times[ends], ends * (times[-1] / max(len(times) - 1, 1)))
    return evened


def _with_peak(times: NDArray[np.float64], under_way: int, more: int) -> tuple[NDArray[np.float64], float]:
    """Return starts with ``more`` extra ones within the time of ``under_way`` others, and when that peak ends."""
    first = int(PEAK_FROM * len(times))
    last = min(first + under_way + more, len(times) - 1)
    share = under_way / (under_way + more)
    moved = times.copy()
    moved[first:last] = times[first] + share * (times[first:last] - times[first])
    moved[last:] -= (1 - share) * (times[last] - times[first])
    return moved, float(moved[last])


@dataclass(frozen=True, slots=True)
class _Backlog:
    """What a run whose queue is never empty shows."""

    rate: float  # Requests answered per second.
    half_width: float  # Half the 95 % interval of it.
    waiting: float  # Requests in the queue on average.
    requests: int  # Requests that were simulated.


def _run(
    scenario: Scenario, deployment: Deployment, clients: int, requests: int, ramp_up: float, *, is_hurried: bool = False
) -> _Backlog:
    """Return what ``clients`` show that send ``requests`` in all, and with ``is_hurried`` never think."""
    specs = _sent(scenario, deployment, requests, clients)
    thinking = np.zeros(len(specs)) if is_hurried else specs.think_time
    simulation = simulate(deployment, replace(specs, ramp_up=ramp_up or None, think_time=thinking))
    if simulation.was_interrupted:
        raise KeyboardInterrupt
    return _measured(simulation, clients)


def _measured(simulation: Simulation, clients: int) -> _Backlog:
    """Return throughput and queue in the window in which all clients are under way.

    A request counts by the part of its service in the window. The window ends one mean time in the system before a
    client starts for the last time: requests in service then must not gain from the emptier batches at the end.
    """
    records = simulation.records
    sent = np.sort(records.arrival_time)
    finish = np.fmax(records.finish_time, records.arrival_time)
    begins = records.arrival_time if records.turn is None else records.arrival_time[records.turn == 1]
    begin = float(sent[min(2 * clients, len(sent) // 3)])
    end = float(begins.max()) - float(np.mean(finish - records.arrival_time))
    if not end > begin:
        begin, end = 0.0, max(simulation.end_time, 1e-9)
    start = np.where(np.isnan(records.scheduled_time), records.arrival_time, records.scheduled_time)
    seconds = np.maximum(finish - start, 1e-9)
    edges = np.linspace(begin, end, NUM_BATCHES + 1)
    low, high = edges[:-1, None], edges[1:, None]
    parts = np.clip(np.minimum(finish, high) - np.maximum(start, low), 0.0, None) / seconds
    batches = parts.sum(axis=1) * NUM_BATCHES / (end - begin)
    rate = float(batches.mean())
    half_width = t_quantile(NUM_BATCHES - 1, 0.95) * float(batches.std(ddof=1)) / math.sqrt(NUM_BATCHES)
    waits = np.clip(np.minimum(start, end) - np.maximum(records.admitted_time, begin), 0.0, None)
    return _Backlog(rate, half_width, float(np.nansum(waits)) / (end - begin), len(records))


def _relaxed(scenario: Scenario, deployment: Deployment) -> tuple[Deployment, float]:
    """Return the deployment at full size, refusing no request, and the share of it that needs to be simulated."""
    control = deployment.control or Control()
    scaling = control.autoscaling
    replicas = deployment.num_replicas if scaling is None else scaling.max_replicas
    pools = tuple(
        replace(
            pool,
            num_replicas=pool.num_replicas if pool.autoscaling is None else pool.autoscaling.max_replicas,
            autoscaling=None,
        )
        for pool in deployment.pools
    )
    kept = replace(
        control,
        admission=None,
        autoscaling=None,
        faults=(),
        liveness=None,
        updates=(),
        overflow=_only_always(control),
        limits=tuple(Limits() for _ in control.limits),
        task_limit=None,
    )
    is_uniform = (
        not pools
        and not kept.has_gateway
        and kept.regions is None
        and scenario.workload.loras is None  # a replica of a fleet serves fewer adapters than one alone
        and not _shares_prefixes(scenario, deployment)
    )
    share = 1.0 / replicas if is_uniform else 1.0
    full = replace(deployment, num_replicas=1 if is_uniform else replicas, pools=pools, control=kept)
    return full, share


def _only_always(control: Control) -> OverflowSpec | None:
    """Return the API if some requests always go to it, answering at once so that no client waits.

    How many it takes does not depend on the replicas, and these requests do not count as what the replicas can finish.
    """
    api = control.overflow
    if api is None or not (api.always or control.routing.rules):
        return None
    limits = ("max_queue", "above_rate", "requests_per_minute", "tokens_per_minute", "when_limited")
    at_once = {"ttft": AT_ONCE, "ttft_cv": 0.0, "tokens_per_second": 1 / AT_ONCE, "tokens_per_second_cv": 0.0}
    return api.model_copy(update=dict.fromkeys(limits) | at_once)


def _shares_prefixes(scenario: Scenario, deployment: Deployment) -> bool:
    """Return whether it matters which replica serves a request."""
    if not deployment.engine.enable_prefix_caching:
        return False
    workload = scenario.workload
    if workload.has_sessions or workload.has_shared_prefix:
        return True
    return workload.trace is not None and not _are_independent(_drawn(scenario, FEWEST_REQUESTS))


def _drawn(scenario: Scenario, num_requests: int, *, is_timed: bool = True) -> RequestSpecs:
    """Return requests of the scenario's traffic that are never abandoned; without ``is_timed``, at arbitrary times."""
    workload = scenario.workload
    changes: dict[str, object] = {}
    if workload.trace is None:
        changes = {"num_requests": num_requests, "duration": None}
    if not is_timed and isinstance(workload.arrivals, RenewalArrivals):
        changes["arrivals"] = PoissonArrivals(process="poisson", rate=workload.arrivals.rate)  # the quickest to draw
    classes = tuple(each.model_copy(update={"timeout": None, "retries": None}) for each in workload.classes or ())
    changes["classes"] = classes or None
    with scenario.blaming("workload"):
        asked = WorkloadSpec.model_copy(workload, update=changes)
        reads_files = '"path":' in asked.model_dump_json(exclude_none=True)  # whose content may change
        is_kept = num_requests <= MOST_KEPT_REQUESTS and not reads_files
        draw = _generated if is_kept else _generated.__wrapped__
        specs = draw(asked, scenario.run.seed, scenario.folder)
    return replace(as_sent(specs, scenario, REPLICATION), time_limit=None)


@lru_cache(KEPT_DRAWS)
def _generated(workload: WorkloadSpec, seed: int, folder: Path | None) -> RequestSpecs:
    """Return the requests of a workload, drawn once for all deployments that are compared on it."""
    return generate(workload, seed=seed, replication=REPLICATION, base_path=folder)


def _sent(scenario: Scenario, deployment: Deployment, num_requests: int, clients: int) -> RequestSpecs:
    """Return the requests that the clients send one after another."""
    workload, count = scenario.workload, CANDIDATES * num_requests
    specs = None if workload.has_sessions else _drawn(scenario, count, is_timed=False)
    if specs is not None and workload.trace is not None:
        # Rows that share nothing may come again, or be left out: a short trace says as much as a long one.
        specs = specs.of_rows(_repeated(len(specs), count, scenario.run.seed)) if _are_independent(specs) else None
    if specs is not None:
        specs = specs.of_rows(_balanced(_work(deployment, specs), clients, scenario.run.seed))
    else:
        specs = _of_conversations(scenario, deployment, num_requests, clients)
    thinking = specs.think_time.copy() if len(specs.think_time) else np.zeros(len(specs))
    if specs.turn is not None:
        thinking[specs.turn == 1] = 0.0
    return replace(
        specs,
        arrival_time=np.full(len(specs), np.nan),
        think_time=thinking,
        concurrency=clients,
        loop=None,
        loops=(),
        own_wait=None,
        encoder_pool=None,
        is_stationary=False,
        offered_rate=math.nan,
        closes_at=None,
    )


def _are_independent(specs: RequestSpecs) -> bool:
    """Return whether no request continues another or shares tokens or images with it."""
    shared = specs.prefixes, specs.session, specs.turn, specs.dependencies, specs.earlier_images
    return all(each is None for each in shared)


def _repeated(num_rows: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return ``count`` rows of ``num_rows``, each as often as the others, or once less, in random order."""
    order = rng.stream(seed, "finishable_rows", REPLICATION).permutation(num_rows)
    rows: NDArray[np.int64] = np.resize(order, count).astype(np.int64)
    return rows


def _of_conversations(scenario: Scenario, deployment: Deployment, num_requests: int, clients: int) -> RequestSpecs:
    """Return conversations: first one that is already under way for each client, then whole ones.

    Those under way come from a draw of their own: they tend to be long, and if they were taken from those that follow,
    short ones would be left. Both are chosen among many more, so that work is balanced.
    """
    # The earlier turns of a conversation that is under way at the start are not sent.
    specs = _drawn(scenario, num_requests)
    if specs.turn is None or specs.session is None:
        return specs
    count = len(_edges(specs)) - 1
    candidates = count // 2
    whole = np.arange(candidates, count)
    if scenario.workload.trace is None:
        specs = _drawn(scenario, math.ceil(CANDIDATES * (1 + clients / count) * num_requests))
        edges = _edges(specs)
        candidates = max(len(edges) - 1 - CANDIDATES * count, 1)
        work = np.add.reduceat(_work(deployment, specs), edges[:-1])
        whole = candidates + _balanced(work[candidates:], clients, scenario.run.seed)
    return _under_way(specs, candidates, whole, clients, scenario.run.seed)


def _edges(specs: RequestSpecs) -> NDArray[np.int64]:
    """Return where each conversation begins, and the end of the last one."""
    assert specs.session is not None  # conversations
    return np.append(np.flatnonzero(np.append(True, np.diff(specs.session) != 0)), len(specs))


def _under_way(specs: RequestSpecs, candidates: int, whole: NDArray[np.int64], clients: int, seed: int) -> RequestSpecs:
    """Return the ``whole`` conversations, preceded by the last turns of ``clients`` of the first ``candidates``.

    The first turn kept is drawn at random, so that long conversations are as frequent as in traffic. Otherwise all
    contexts would be short at first, and grow together.
    """
    edges = _edges(specs)
    stream = rng.stream(seed, "finishable_turns", REPLICATION)
    number = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    begun_at = stream.permutation(int(edges[candidates]))
    _, first = np.unique(number[begun_at], return_index=True)
    chosen = begun_at[np.sort(first)][:clients]  # one row of each of these conversations, in the order of the draw
    begun = [np.arange(row, edges[number[row] + 1]) for row in chosen]
    assert specs.turn is not None  # conversations
    dropped = [np.full(len(rows), specs.turn[rows[0]] - 1) for rows in begun]
    rows = [*begun, *(np.arange(edges[each], edges[each + 1]) for each in whole)]
    moved = specs.of_rows(np.concatenate(rows))
    assert moved.turn is not None  # conversations
    if moved.dependencies is not None:
        return moved.with_roots_first()
    late = np.zeros(len(moved), dtype=np.int64)
    late[: sum(map(len, dropped))] = np.concatenate(dropped)
    return replace(moved, turn=moved.turn - late)


def _mean_pause(specs: RequestSpecs) -> float:
    """Return how long a client thinks before a request, seconds on average."""
    if specs.turn is None or not len(specs.think_time):
        return 0.0
    return float(np.where(specs.turn > 1, specs.think_time, 0.0).mean())


def _work(deployment: Deployment, specs: RequestSpecs) -> NDArray[np.float64]:
    """Return roughly how long each request keeps a replica busy, in seconds of full steps."""
    engine, times = deployment.engine, deployment.priced.step_times
    budget = min(engine.max_num_batched_tokens, len(times.token_seconds) - 1)
    seats = min(engine.max_num_seqs, len(times.decode_base) - 1)
    a_prompt_token = float(times.token_seconds[budget]) / budget
    tokens = specs.prompt_tokens + specs.output_tokens / 2
    an_output_token = float(times.decode_base[seats]) / seats + float(times.decode_slope[seats]) * tokens
    return specs.prompt_tokens * a_prompt_token + specs.output_tokens * an_output_token


def _balanced(work: NDArray[np.float64], clients: int, seed: int) -> NDArray[np.int64]:
    """Return one row out of each `CANDIDATES` of similar work, in an order in which every stretch has all sizes of
    work.

    The golden ratio spreads them; within stretches of two rounds of the clients the order is random, so that what is
    served together is as uneven as in the traffic itself.
    """
    stream = rng.stream(seed, "finishable", REPLICATION)
    by_work = np.argsort(work, kind="stable")
    count = len(work) // CANDIDATES
    chosen = by_work[: count * CANDIDATES].reshape(count, CANDIDATES)
    rows = chosen[np.arange(count), stream.integers(0, CANDIDATES, count)]
    dealt = rows[_golden_order(count)]
    for begin in range(0, count, 2 * clients):
        stream.shuffle(dealt[begin : begin + 2 * clients])
    balanced: NDArray[np.int64] = dealt.astype(np.int64)
    return balanced


@lru_cache(KEPT_DRAWS)
def _golden_order(count: int) -> NDArray[np.int64]:
    """Return the ranks of the multiples of the golden ratio, modulo 1: every stretch of them has all sizes."""
    multiples = (np.arange(count) * ((math.sqrt(5) - 1) / 2)) % 1.0
    return np.argsort(np.argsort(multiples, kind="stable"), kind="stable")


def _engines(deployment: Deployment) -> list[tuple[EngineConfig, int]]:
    """Return the engine and the number of replicas of each pool, or of a deployment without pools."""
    pools = [(pool.engine, pool.num_replicas) for pool in deployment.pools]
    return pools or [(deployment.engine, deployment.num_replicas)]


def _num_schedulers(deployment: Deployment) -> int:
    return sum(replicas * engine.data_parallel_size for engine, replicas in _engines(deployment))


def _held(deployment: Deployment, specs: RequestSpecs) -> float:
    """Return how many requests the seats and KV caches of a deployment hold at once, without sharing prefixes."""
    kept = float(np.mean(specs.prompt_tokens + specs.output_tokens / 2))
    held = 0.0
    for engine, replicas in _engines(deployment):
        seats = engine.static_batch_size if engine.batching == "static" else engine.max_num_seqs
        room = math.inf if engine.kv_allocation == "none" else engine.num_blocks * engine.block_size / kept
        held += replicas * engine.data_parallel_size * max(min(seats, room), 1.0)
    return held
