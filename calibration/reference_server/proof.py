"""The end-to-end proof: measure steps, fit, simulate, serve, compare.

Steps are measured before and after every load, since clocks and neighbours change: on batches that are all there at
once, and on Poisson loads at other rates than those that are compared, where caches are as cold as in service. What is
compared came into no fit: a closed loop that keeps every seat busy, and Poisson arrivals at shares of the throughput
that it reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibration.reference_server.clients import LiveClients
from calibration.reference_server.results import detailed_result
from calibration.reference_server.scheduler import Limits, Request, Scheduler, Step
from calibration.reference_server.serving import (
    Clients,
    Clock,
    ProcessorClock,
    RealClock,
    ScheduledClients,
    StepRecord,
    serve,
)
from calibration.reference_server.steps import StepFit, fit_steps
from simserve.calibrate.simulated import figures
from simserve.engine.config import EngineConfig
from simserve.engine.state import StepTimes
from simserve.sim.simulate import replay
from simserve.workload.requests import RequestSpecs

LOADS = (0.3, 0.6, 0.9)
"""Poisson rates as shares of the requests/s that the closed loop reached."""

FRONTEND_SECONDS = 1e-4
"""From one thread to the other, in the simulation."""

COMPARED = ("mean_ttft", "median_ttft", "mean_tpot", "median_tpot", "mean_e2e", "output_throughput")

MEASURED_OUTPUTS = 12
"""Tokens that each request of a measured batch generates, at most."""

MIXED_BATCHES = 2
"""Measured batches of unequal requests, more than there are seats."""

MEASURED_LOADS = (0.2, 0.45, 0.75)
"""Poisson rates of the measured loads, as shares of the requests/s of the last of those batches."""

Compute = Callable[[Step], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Lengths of the requests of a run: uniform from the first to the second number, both included.

    Attributes:
        prompts: Tokens.
        outputs: Tokens.
        num_requests: How many.
        vocab_size: Prompts are random tokens of it.
    """

    prompts: tuple[int, int]
    outputs: tuple[int, int]
    num_requests: int
    vocab_size: int

    def requests(self, seed: int, count: int | None = None) -> list[Request]:
        """Draw requests."""
        chance, number = np.random.default_rng(seed), count or self.num_requests
        prompts = chance.integers(self.prompts[0], self.prompts[1] + 1, number).tolist()
        outputs = chance.integers(self.outputs[0], self.outputs[1] + 1, number).tolist()
        return [self._request(chance, *each) for each in zip(range(number), prompts, outputs, strict=True)]

    def _request(self, chance: np.random.Generator, index: int, prompt: int, output: int) -> Request:
        return Request(index, prompt, output, token_ids=chance.integers(0, self.vocab_size, prompt).tolist())

    def fixed(self, count: int, prompt: int, output: int, seed: int) -> list[Request]:
        """Return requests of one length."""
        chance = np.random.default_rng(seed)
        return [self._request(chance, index, prompt, output) for index in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests are sent.

    Attributes:
        name: What it is called.
        rate: Poisson requests/s; None: a closed loop.
        concurrency: Requests in flight of a closed loop.
    """

    name: str
    rate: float | None = None
    concurrency: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """What serves.

    Attributes:
        limits: Of the scheduler.
        compute: The model.
        is_wall_clock: Time passes on the wall, with clients in a thread of their own; else it is the processor time
            of the serving thread (`ProcessorClock`).
    """

    limits: Limits
    compute: Compute
    is_wall_clock: bool = True

    def clock(self) -> Clock:
        """Return a clock that starts."""
        return RealClock() if self.is_wall_clock else ProcessorClock()


def measure(server: Server, traffic: Traffic) -> list[list[StepRecord]]:
    """Return the steps of batches of every size, each all there at once, and of mixed ones."""
    limits = server.limits
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size <= limits.max_num_seqs]
    prompts = sorted(set(traffic.prompts))
    plans = [(size, prompt) for size in sizes for prompt in prompts]
    outputs = min(MEASURED_OUTPUTS, traffic.outputs[1])
    batches = [
        _all_at_once(server, traffic.fixed(size, prompt, outputs, seed=number))
        for number, (size, prompt) in enumerate(plans)
    ]
    count = min(3 * limits.max_num_seqs, traffic.num_requests)
    batches += [_all_at_once(server, traffic.requests(1000 + number, count)) for number in range(MIXED_BATCHES)]
    capacity = count / (batches[-1][-1].start - batches[-1][0].start)
    some = replace(traffic, num_requests=max(traffic.num_requests // 4, 1))
    for number, share in enumerate(MEASURED_LOADS):
        load = Load(name="measured", rate=share * capacity)
        batches.append(serve_load(server, some, load, 2000 + 10 * number)[1])
    return batches


def _all_at_once(server: Server, requests: Sequence[Request]) -> list[StepRecord]:
    clock = server.clock()
    clients = ScheduledClients(requests, [clock.now()] * len(requests))
    return serve(Scheduler(server.limits), clients, clock, server.compute)


def serve_load(server: Server, traffic: Traffic, load: Load, seed: int) -> tuple[list[Request], list[StepRecord]]:
    """Serve one load."""
    requests, clock = traffic.requests(seed), server.clock()
    offsets = None
    if load.rate is not None:
        gaps = np.random.default_rng(seed + 1).exponential(1.0 / load.rate, len(requests))
        offsets = (np.cumsum(gaps) - gaps[0]).tolist()
    clients: Clients
    if server.is_wall_clock:
        live = clients = LiveClients(requests, offsets, load.concurrency)
        live.start()
    else:
        clients = ScheduledClients(requests, offsets, load.concurrency, FRONTEND_SECONDS)
    return requests, serve(Scheduler(server.limits), clients, clock, server.compute)


def simulate_load(limits: Limits, times: StepTimes, load: Load, requests: Sequence[Request]) -> dict[str, float]:
    """Return the simulator's figures of the requests that were served, at the times at which they were sent."""
    first = min(request.sent for request in requests)
    is_closed = load.rate is None
    outputs = np.array([request.num_output_tokens for request in requests], dtype=np.int64)
    specs = RequestSpecs(
        arrival_time=np.array([np.nan if is_closed else request.sent - first for request in requests]),
        prompt_tokens=np.array([request.num_prompt_tokens for request in requests], dtype=np.int64),
        output_tokens=outputs,
        max_tokens=outputs,
        think_time=np.zeros(len(requests) if is_closed else 0),
        concurrency=load.concurrency if is_closed else None,
        is_stationary=False,
        offered_rate=float("nan"),
    )
    done = replay(engine_config(limits), times, specs)
    return figures(done.records, done.totals.itl)


def engine_config(limits: Limits) -> EngineConfig:
    """Return the same limits for the simulator's engine."""
    return EngineConfig(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_chunk_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.num_blocks * limits.block_size,
        enable_chunked_prefill=limits.enable_chunked_prefill,
        reserve_full_prompt=limits.reserve_full_prompt,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        frontend_latency=FRONTEND_SECONDS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One load, served and simulated.

    Attributes:
        load: How requests were sent.
        document: The run as ``vllm bench serve`` writes it.
        measured: Figure -> seconds, or tokens a second.
        simulated: The same.
        preemptions: How often a request lost its blocks in the run.
        decode_batch: Mean decoding requests of a step of the run.
    """

    load: Load
    document: dict[str, Any]
    measured: dict[str, float]
    simulated: dict[str, float]
    preemptions: int
    decode_batch: float

    def error(self, figure: str) -> float:
        """Return simulated over measured minus 1."""
        return self.simulated[figure] / self.measured[figure] - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What is proven, on which server.

    Attributes:
        server: The server.
        traffic: Lengths.
        model: Name of the model, for the files.
        date: ``YYYYMMDD-HHMMSS``, for the files.
        seed: Of the traffic that is compared.
        say: Told how far it is.
        keep: Given what there is after each load.
    """

    server: Server
    traffic: Traffic
    model: str
    date: str
    seed: int
    say: Callable[[str], None]
    keep: Callable[[StepFit, list[Comparison]], None]

    def run(self) -> tuple[StepFit, list[Comparison]]:
        """Measure, fit, serve, simulate, and return the fit of all measured steps and what came of every load."""
        limits = self.server.limits
        measure(self.server, self.traffic)  # kernels are chosen and graphs captured at first sight
        self.say("kernels are warm")
        before = measure(self.server, self.traffic)
        batches, comparisons, capacity = [*before], [], 0.0
        for number, share in enumerate((None, *LOADS)):
            load = Load(name="closed", concurrency=limits.max_num_seqs)
            if share is not None:
                load = Load(name=f"poisson-{share:.0%}".rstrip("%"), rate=float(f"{share * capacity:.3g}"))
            requests, records = serve_load(self.server, self.traffic, load, self.seed + 10 * number)
            after = measure(self.server, self.traffic)
            found = self.compare(load, requests, records, fit_steps([*before, *after], limits))
            capacity = capacity or found.document["request_throughput"]
            comparisons.append(found)
            batches, before = [*batches, *after], after
            self.keep(fit_steps(batches, limits), comparisons)
        return fit_steps(batches, limits), comparisons

    def compare(
        self, load: Load, requests: Sequence[Request], records: Sequence[StepRecord], fit: StepFit
    ) -> Comparison:
        """Simulate a load that was served, with the steps measured around it."""
        document = detailed_result(
            requests,
            model=self.model,
            request_rate="inf" if load.rate is None else load.rate,
            max_concurrency=load.concurrency if load.rate is None else None,
            date=self.date,
        )
        simulated = simulate_load(self.server.limits, fit.times, load, requests)
        found = Comparison(
            load=load,
            document=document,
            measured=measured_figures(document),
            simulated={name: simulated[name] for name in COMPARED},
            preemptions=sum(request.num_preemptions for request in requests),
            decode_batch=float(np.mean([len(record.decodes) for record in records])),
        )
        self.say(f"{load.name}: TTFT {found.error('median_ttft'):+.1%}, TPOT {found.error('median_tpot'):+.1%}")
        return found


def measured_figures(document: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a run under the simulator's names, seconds."""
    names = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
    found = {
        f"{statistic}_{ours}": document[f"{statistic}_{theirs}_ms"] * 1e-3
        for ours, theirs in names.items()
        for statistic in ("mean", "median")
    }
    found["output_throughput"] = document["output_throughput"]
    return {name: found[name] for name in COMPARED}
