"""What to do about a run that misses its SLO or thresholds: the smallest changes that hold, each simulated.

One change at a time: an engine knob (seats and a small token budget together), an existing number format, one more
replica, shard or GPU, another kind of GPU, and the load that the deployment can sustain as it is. Combinations are
searched by `simserve plan`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simserve.errors import InfeasibleError, InputError
from simserve.metrics.result import RunResult
from simserve.metrics.throughput import LIMITS
from simserve.planner.capacity.probe import own_traffic
from simserve.planner.capacity.search import highest_promised
from simserve.planner.overrides import ONCE, Overrides, value_of, with_overrides
from simserve.planner.plan.explain import command
from simserve.planner.plan.levers import MOST_TENSOR_PARALLEL, format_levers
from simserve.planner.plan.price import price_of
from simserve.planner.search.deciding_run import fresh_runs_of
from simserve.planner.search.trial import DOUBT, is_steady, request_limit, run_holds
from simserve.planner.space.formats import KV_KEY, WEIGHTS_KEY
from simserve.planner.space.makeup import POOLS_KEY, REPLICAS_KEY, SCALING_KEY, replicas_of, settings
from simserve.planner.space.space import BUDGET_KEY, EAGER_KEY, SEATS_KEY, default_hardware, other_hardware
from simserve.profiles.checkpoint import WIDE_FORMATS
from simserve.profiles.hardware import HardwareProfile, load_hardware
from simserve.scenario.combinations import lack_of
from simserve.scenario.finishable import Finishable, find_finishable, has_load_ratio
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.run import deploy, run
from simserve.scenario.schema import Scenario, objective
from simserve.sim.acceleration import Accelerate
from simserve.workload.arrival_spec import ClosedLoopArrivals

MOST_CHANGES = 3
"""Most changes that are named: the two cheapest of the deployment, and the load; or three of the deployment."""
BUDGET = 80_000  # Requests after which no further change is tried, unless three runs of the scenario take more.
MOST_OF_LOAD_RATIO = 5000
"""Most requests of a load ratio that count: for conversations it takes many, which would leave none for a second
change."""
FREE_SHARE = 0.5
"""Share of the budget that may go into changes that cost nothing: replicas and the load must get their turn."""
RUNS_WORTH = 3  # Runs of the scenario that the budget always covers.
FRESH_REQUESTS = 60_000
"""Requests of the fresh runs of one change above which there are fewer than eight: there are several changes."""
LOOK_REQUESTS = 2000
"""Requests of a first look, where the beginning of a run tells what the whole does; what holds is then run whole."""
MOST_REPLICAS = 8
"""Factor on the replicas up to which more are tried, unless the load alone takes more than half as many."""
MOST_REPLICAS_OF_CLIENTS = 32  # The same in a closed loop, whose load ratio is unknown; at most one replica a client.
MOST_MORE = 3  # Numbers of replicas, counted from the first that may hold, that are run whole and with fresh seeds.
READY_KEY = f"{SCALING_KEY}.min_replicas"
READY_FACTORS = (2, 4, 8)  # Factors on the fewest replicas of an autoscaled fleet that are tried.
MOST_HARDWARE = 3  # Most kinds of GPU that are tried.
MOST_SIZES = 6  # Most numbers of replicas, or loads, that are looked at.
LEAST_GAIN = 0.005  # Gain in attainment that doubling the replicas must bring for more to be tried.
LOAD_STEP = 0.05
"""Precision of the load that can be sustained, as a share of the scenario's load or of what can be finished of it."""
MOST_STEPS_DOWN = 8  # Most steps down from the highest load that holds in one run to one that holds in fresh runs.
LEAST_LOAD = 0.05  # Share of that load below which nothing is tried.
FEWEST_SEATS = 8
FEWEST_BATCHED_TOKENS = 512
SMALL_BUDGET = 2048
"""Tokens a step below which more seats may need more of them, too: the smallest default of vLLM with chunked prefill
(vllm/engine/arg_utils.py)."""
RATE_KEY = "workload.arrivals.rate"
CLIENTS_KEY = "workload.arrivals.concurrency"


def advise(
    asked: Scenario | ResolvedScenario,
    result: RunResult,
    *,
    reference: Sequence[str] = (),
    accelerate: Accelerate = "auto",
) -> list[dict[str, Any]] | None:
    """Return the smallest changes that make the SLO and the thresholds hold, cheapest first and the load last.

    Every change is one run of the scenario's own requests, seed and length (the first replication where several are
    asked for): what ``simserve run`` prints for its command. It is advised where fresh seeds hold too
    (`simserve.planner.search.deciding_run`), at no load above what `simserve capacity` would promise. Of changes at the
    same price, the one that changes the deployment least comes first. The work is counted in simulated requests
    (`BUDGET`, and the fresh runs of each change that holds), so it is the same on any machine.

    Args:
        reference: What follows ``simserve run`` to run it, for the commands.
        accelerate: Whether the kernel runs compiled.

    Returns:
        ``changes`` (dotted key -> value), ``attainment`` (None without an SLO), ``usd_per_hour`` (None without a price)
        and ``command`` of each. Empty where everything holds, nothing is asked, or no single change that was tried is
        enough; None where the run or the search was interrupted.

    Raises:
        InputError: A profile no longer exists.
    """
    scenario = asked if isinstance(asked, Scenario) else asked.scenario
    if result.simulation.was_interrupted:
        return None
    is_asked = objective(scenario) is not None or bool(scenario.thresholds)
    if not is_asked or run_holds(scenario, result.summary):
        return []
    try:
        found = _Advising(scenario, result, accelerate).find()
    except KeyboardInterrupt:
        return None
    return [
        {
            "changes": dict(each.changes),
            "attainment": each.attainment,
            "usd_per_hour": each.usd_per_hour,
            "command": command(_without(reference, each.changes), each.changes, keeps_layout=True),
        }
        for each in found
    ]


def _without(reference: Sequence[str], changes: Overrides) -> tuple[str, ...]:
    """Return the words of a command without what is set again."""
    kept: list[str] = []
    for word in reference:
        if kept and kept[-1] == "--set" and word.partition("=")[0] in changes:
            kept.pop()
        else:
            kept.append(word)
    return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A change, and the results of a run with it."""

    changes: Overrides  # Dotted key -> value.
    holds: bool  # Whether the run meets what is asked.
    may_hold: bool  # Whether a longer run might hold: true of a first look that nearly does.
    attainment: float | None  # Share of requests within the SLO; None without one.
    usd_per_hour: float | None  # What is paid; None without a price.
    finishable: Finishable | None = None  # What can be finished with the change, where that was determined.


@dataclass(slots=True)
class _Advising:
    """One search for changes: what has been spent, and what holds."""

    scenario: Scenario
    result: RunResult
    accelerate: Accelerate
    spent: int = 0
    held: list[_Tried] = field(default_factory=list)

    def find(self) -> list[_Tried]:
        """Return what holds: free changes are tried first, then replicas, the load, and other or more GPUs.

        Before them, replicas that are kept ready: where new ones start too late, nothing that is free helps.
        """
        has_ready = self._keep_ready()
        free = (*self._knobs(), *self._formats())
        if self._load_ratio >= 1:
            free = (*self._formats(), *self._knobs())  # a format raises what can be finished, a knob seldom does
        for changes in free:
            if self.spent < FREE_SHARE * self._budget:
                self._try_unless_enough(changes)
        if not self._has_enough and not has_ready:
            self._more_replicas()
        load = self._load()
        for changes in (*self._hardware(), *self._shards()):
            self._try_unless_enough(changes)
        kept = sorted(self.held, key=_dollars)[: MOST_CHANGES - (load is not None)]
        return [*kept, *([] if load is None else [load])]

    @property
    def _has_enough(self) -> bool:
        return len(self.held) >= MOST_CHANGES - 1

    def _try_unless_enough(self, changes: Overrides) -> None:
        if not self._has_enough:
            self._try(changes)

    @property
    def _load_ratio(self) -> float:
        """Offered over finishable load, in the busiest five minutes where rates vary; 0 where it is not known."""
        inner = self.result.summary["simserve"]
        return float(inner["peak_load_ratio"] or inner["load_ratio"] or 0.0)

    @property
    def _budget(self) -> int:
        return max(BUDGET, RUNS_WORTH * len(self.result.simulation.records))

    def _try(self, changes: Overrides) -> _Tried | None:
        """Look at a change and, if it may hold, run it whole; None where it cannot be made or afforded."""
        look = self._look(changes)
        if look is None or not look.may_hold:
            return look
        whole = self._whole(changes, look)
        if whole is not None and whole.holds:
            self.held.append(whole)
        return whole

    def _look(self, changes: Overrides) -> _Tried | None:
        """Return the result of the beginning of a run with a change, or of all of it where no part tells enough."""
        there = self._with(changes)
        if there is None:
            return None
        beginning = _beginning(there)
        return self._run(changes, beginning, is_part=beginning is not there)

    def _whole(self, changes: Overrides, look: _Tried | None = None) -> _Tried | None:
        """Return the result of `simserve run` for the scenario with a change, including the load ratio."""
        there = self._with(changes)
        if there is None:
            return None
        whole = look
        if look is None or has_load_ratio(there) or _beginning(there) is not there:
            whole = self._run(changes, there, knows_load=True)
        if whole is None or not whole.holds:
            return whole
        return replace(whole, holds=self._keeps_holding(there, whole.finishable))

    def _keeps_holding(self, there: Scenario, finishable: Finishable | None) -> bool:
        """Return whether runs that the search has not seen hold as well: all of them and, by a bound, one more.

        No run is made at a load so close to what can be finished that nothing is promised there.
        """
        if finishable is not None and is_steady(there):
            traffic = own_traffic(there)
            if traffic.is_stationary and traffic.offered_rate > highest_promised(finishable):
                return False
        most = FRESH_REQUESTS
        return fresh_runs_of(there, finishable, most_requests=most, accelerate=self.accelerate).holds

    def _with(self, changes: Overrides) -> Scenario | None:
        try:
            return with_overrides(self.scenario, {**changes, **ONCE})
        except InputError:
            return None

    def _run(
        self, changes: Overrides, there: Scenario, *, is_part: bool = False, knows_load: bool = False
    ) -> _Tried | None:
        if self.spent >= self._budget:
            return None
        try:
            resolved, finishable = resolve(there), None
            if knows_load:
                finishable = find_finishable(resolved, deploy(resolved))
                self.spent += 0 if finishable is None else min(finishable.requests, MOST_OF_LOAD_RATIO)
            found = run(resolved, explain=False, accelerate=self.accelerate, finishable=finishable)
        except (InputError, InfeasibleError):
            # It does not fit, or does not go with the rest: not a solution.
            return None
        if found.simulation.was_interrupted:
            raise KeyboardInterrupt
        self.spent += len(found.simulation.records)
        inner, holds = found.summary["simserve"], run_holds(there, found.summary)
        attainment, wanted = inner["slo"]["attainment"], objective(there)
        may_hold = wanted is not None and attainment is not None and attainment >= wanted.attainment - DOUBT
        return _Tried(
            changes=changes,
            holds=holds,
            may_hold=holds or (is_part and may_hold and inner["stability"] != "overloaded"),
            attainment=attainment,
            usd_per_hour=inner["cost"]["usd_per_hour"],
            finishable=finishable,
        )

    def _knobs(self) -> Iterator[Overrides]:
        """Yield changes of engine knobs that are suggested by what was missed, and by what requests waited for.

        A liveness probe that restarts busy replicas comes first: nothing else helps until it is changed.
        """
        timeline = self.result.simulation.timeline
        if timeline is not None and timeline.num_killed:
            yield {"deployment.liveness": None}
        if self.scenario.deployment.pools:
            return
        inner = self.result.summary["simserve"]
        engine, missed = inner["engine_resolved"], self._missed()
        seats, budget = int(engine["max_num_seqs"]), int(engine["max_num_batched_tokens"])
        if engine.get("batching") == "static" or engine.get("kv_allocation") == "none":
            return
        waits = inner["bottleneck"]["waiting_shares"]
        if self.scenario.deployment.engine.enforce_eager and not missed.isdisjoint(("tpot", "itl", "e2e")):
            yield {EAGER_KEY: False}
        if engine.get("enable_chunked_prefill") is False and lack_of(self.scenario, "chunked_prefill") is None:
            yield {"deployment.engine.enable_chunked_prefill": True}
        if "tpot" in missed:
            yield from ({BUDGET_KEY: budget // part} for part in (2, 4) if budget // part >= FEWEST_BATCHED_TOKENS)
            yield from ({SEATS_KEY: seats // part} for part in (2, 4) if seats // part >= FEWEST_SEATS)
        if inner["bottleneck"]["binding"] == LIMITS["seats"]:
            # As many times the seats as the load is of what can be finished: with fewer it cannot be.
            least = 2 ** max(math.ceil(math.log2(max(self._load_ratio, 1.0))), 1)
            factors = least, 2 * least, 4 * least
            yield from ({SEATS_KEY: seats * factor} for factor in factors)
            if budget < SMALL_BUDGET:  # it would be the next limit
                yield from ({SEATS_KEY: seats * factor, BUDGET_KEY: budget * factor} for factor in factors)
        if inner["bottleneck"]["binding"] == LIMITS["loras"]:
            yield from self._adapter_seats()
        if "ttft" in missed and (waits.get("budget") or 0.0) > 0:
            yield {BUDGET_KEY: 2 * budget}
        if engine.get("enable_prefix_caching") is False and _repeats_prefixes(self.scenario):
            yield {"deployment.engine.enable_prefix_caching": True}

    def _adapter_seats(self) -> Iterator[Overrides]:
        """Yield changes for requests that wait for a seat for their adapter: routing by adapter, and more seats."""
        deployment = self.scenario.deployment
        if deployment.routing.policy != "lora" and deployment.replicas > 1:
            yield {"deployment.routing": "lora"}
        for factor in (2, 4):
            seats = factor * (deployment.engine.max_loras or 1)
            kept = max(seats, deployment.engine.max_cpu_loras or 0)
            yield {"deployment.engine.max_loras": seats, "deployment.engine.max_cpu_loras": kept}

    def _missed(self) -> frozenset[str]:
        """Return the terms of the SLO that too many requests missed; all where only a class or threshold fails."""
        asked, by_metric = objective(self.scenario), self.result.summary["simserve"]["slo"]["by_metric"]
        if asked is None:
            return frozenset(by_metric)
        missed = {name for name, share in by_metric.items() if share is not None and share < asked.attainment}
        return frozenset(missed or by_metric)

    def _formats(self) -> Iterator[Overrides]:
        """Yield the number formats that exist for the model, and that the engine's version supports on this GPU."""
        formats = self.result.summary["simserve"]["formats"]
        there = {WEIGHTS_KEY: formats["weights"], KV_KEY: formats["kv_cache"]}
        for lever in format_levers(self.scenario):
            ((key, value),) = lever.changes
            is_there = value == there[key] or (value in WIDE_FORMATS and there[key] in WIDE_FORMATS)
            # ``auto`` is what the checkpoint says; changing to it never makes the cache smaller.
            if value != "auto" and not is_there:
                yield {key: value}

    def _keep_ready(self) -> bool:
        """Find how many more of an autoscaled fleet's replicas must always be ready; return whether a number holds."""
        deployment, scaling = self.scenario.deployment, self.scenario.deployment.autoscaling
        if scaling is None or deployment.pools:
            return False
        for factor in READY_FACTORS:
            count = min(max(scaling.min_replicas, 1) * factor, scaling.max_replicas)
            if count <= scaling.min_replicas:
                break
            tried = self._try({READY_KEY: count, REPLICAS_KEY: max(count, deployment.replicas)})
            if tried is not None and tried.holds:
                return True
        return False

    def _more_replicas(self) -> None:
        """Find the fewest additional replicas that hold."""
        deployment = self.scenario.deployment
        if deployment.pools:
            pools = deployment.pools
            alone = [{f"{POOLS_KEY}.{number}.replicas": each.replicas + 1} for number, each in enumerate(pools)]
            if any((tried := self._try(changes)) is not None and tried.holds for changes in alone):
                return
        there = replicas_of(deployment)
        low, count = there, max(there + 1, math.ceil(there * self._load_ratio))
        arrivals, most = self.scenario.workload.arrivals, max(MOST_REPLICAS * there, 2 * count)
        is_closed = isinstance(arrivals, ClosedLoopArrivals)
        if isinstance(arrivals, ClosedLoopArrivals):
            most = min(MOST_REPLICAS_OF_CLIENTS * there, arrivals.concurrency)
        if count > most:
            return
        high, before = None, self.result.summary["simserve"]["slo"]["attainment"] or 0.0
        for tries in range(MOST_SIZES):
            tried = self._look(settings(deployment, count))
            if tried is None:
                break
            if tried.may_hold:
                high = count
            else:
                reached = tried.attainment or 0.0
                # The first number only covers the load: latencies may need more.
                # In a closed loop, even twice the replicas may be too few for any client.
                if tries and not is_closed and count >= 2 * low and reached < before + LEAST_GAIN:
                    break
                low, before = count, max(before, reached)
            count = min(2 * low, most) if high is None else (low + high) // 2
            if count <= low or (high is not None and count >= high):
                break
        for more in range(MOST_MORE if high is not None else 0):
            whole = self._whole(settings(deployment, (high or 0) + more))
            if whole is not None and whole.holds:
                self.held.append(whole)
                return

    def _shards(self) -> Iterator[Overrides]:
        """Yield double the tensor parallel size, where all replicas have one kind of GPU."""
        size = 2 * self.scenario.deployment.tensor_parallel_size
        if not self.scenario.deployment.pools and size <= MOST_TENSOR_PARALLEL:
            yield {"deployment.tensor_parallel_size": size}

    def _hardware(self) -> Iterator[Overrides]:
        """Yield kinds of GPU with more bandwidth and arithmetic that cost less than what holds so far."""
        deployment = self.scenario.deployment
        if any(pool.hardware is not None for pool in deployment.pools):
            return
        own = load_hardware(deployment.hardware, self.scenario.folder)
        others = []
        for name in default_hardware(self.scenario)[1:]:
            price, other = price_of(self.scenario, name), load_hardware(name)
            is_faster = other.memory.bandwidth > own.memory.bandwidth and _peak(other) >= _peak(own)
            if price.usd is not None and is_faster and other.vendor == own.vendor:
                changes = {**other_hardware(self.scenario, name), **price.overrides}
                others.append((price.usd * deployment.num_gpus, name, changes))
        least = min((each.usd_per_hour for each in self.held if each.usd_per_hour is not None), default=math.inf)
        for usd, _, changes in sorted(others, key=lambda each: each[:2])[:MOST_HARDWARE]:
            if usd < least:
                yield changes

    def _load(self) -> _Tried | None:
        """Return the load that the deployment can sustain as it is, to 5 % of the load that it can finish."""
        arrivals = self.scenario.workload.arrivals
        key = CLIENTS_KEY if isinstance(arrivals, ClosedLoopArrivals) else RATE_KEY
        own = value_of(self.scenario, key)
        if not isinstance(own, int | float) or any(each.arrivals for each in self.scenario.workload.classes or ()):
            return None
        most, (low, high) = own / max(self._load_ratio, 1.0), (0, round(1 / LOAD_STEP))

        def at(steps: int) -> Overrides:
            load = most * steps * LOAD_STEP
            return {key: max(1, math.floor(load)) if key == CLIENTS_KEY else float(f"{load:.3g}")}

        for tries in range(MOST_SIZES):
            # Just below what it can finish first; latencies may allow much less.
            middle = (low + high) // 2 if tries else high - 2
            if not low < middle < high or middle * LOAD_STEP < LEAST_LOAD:
                break
            tried = self._look(at(middle))
            if tried is None:
                break
            low, high = (middle, high) if tried.holds else (low, middle)
        for steps in range(low, max(low - MOST_STEPS_DOWN, 0), -1):
            whole = self._whole(at(steps))
            if whole is None or whole.holds:
                return whole
        return None


def _beginning(scenario: Scenario) -> Scenario:
    """Return a scenario with fewer requests, where the beginning of its run tells what the whole does; else itself."""
    limit = request_limit(scenario, LOOK_REQUESTS)
    return scenario if limit is None else scenario.of_length(limit)


def _dollars(tried: _Tried) -> float:
    return math.inf if tried.usd_per_hour is None else tried.usd_per_hour


def _peak(hardware: HardwareProfile) -> float:
    """Return the 16-bit FLOP/s of a GPU."""
    return max(hardware.peak_flops(dtype) or 0.0 for dtype in ("bf16", "fp16"))


def _repeats_prefixes(scenario: Scenario) -> bool:
    """Return whether prompts share their beginnings: in conversations, or by shared prefixes."""
    workload = scenario.workload
    return workload.has_sessions or workload.has_shared_prefix or workload.trace is not None
