"""How the benchmarks of the laboratory's tables turned their requests into figures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simserve.metrics.latency import request_latencies
from simserve.planner.measured import point
from simserve.planner.measured.point import Metric
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Deployment

LONG_RUN_WINDOW = (0.4, 0.8)
"""Range of the requests of a long run, in order and as shares, that its figures are taken from: after the ramp, before
the drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(point.Protocol):
    """How a benchmark turned its requests into one figure.

    Attributes:
        is_token_weighted: TPOT is the decode time of all requests over all their generated tokens (first one
            included), not the mean of each request's (E2E - TTFT) / (tokens - 1).
        is_steady_throughput: Throughput is that of a closed loop whose every request takes the mean TTFT and TPOT,
            without the start and the end of the run (Little's law): the source gives only the two times.
        is_batch_time: TTFT is the prompt phase of the whole batch: the last request's, not the mean.
        is_long_run: The run was so long that its start and end hardly count: figures are taken from the middle of the
            replay.
        beam_width: Beams that a request decoded; the replay decodes them one after another, and only one of them
            is the answer.
        num_copies: Equal replicas, of which the replay runs one; throughput is that of all.
        cold_stall_seconds: How much longer the first answers of a cold server then took, while kernels were compiled
            for the prompts after theirs.
        front_seconds: Seconds between client and engine, both ways, beyond the engine's own.
        polled_tokens: Tokens that a request decodes between two looks of the engine's scheduler for new requests; an
            arrival during decodes waits for half of them on average.
        is_in_process: The client shares the engine's event loop, which sleeps while a step runs: where tokens are
            handed over in the next step (`simserve.engine.kernel`), the client hears of them when that step has ended.
    """

    is_token_weighted: bool = False
    is_steady_throughput: bool = False
    is_batch_time: bool = False
    is_long_run: bool = False
    beam_width: int = 1
    num_copies: int = 1
    cold_stall_seconds: float = 0.0
    front_seconds: float = 0.0
    polled_tokens: float = 0.0
    is_in_process: bool = False

    def figures(self, records: RequestRecords) -> dict[Metric, float]:
        """Return TPOT, TTFT, E2E (seconds) and throughput (tokens/s) of a run as the protocol defines them."""
        latencies = request_latencies(records)
        late = records.admitted_time - records.arrival_time if self.is_server_side else np.zeros(len(records))
        is_cold = records.arrival_time == np.nanmin(records.arrival_time)
        late = late - self.front_seconds - self.cold_seconds * is_cold
        late = late - self.polled_tokens / 2 * np.nan_to_num(latencies.tpot) * ~is_cold
        stall = self.cold_stall_seconds * is_cold
        counted = self._counted(len(records))
        ttft = (latencies.ttft - late)[counted]
        decode_time = records.finish_time - records.first_token_time
        tpot = self.average((latencies.tpot + stall / np.maximum(records.output_tokens - 1, 1))[counted])
        if self.is_token_weighted:
            tpot = float(decode_time.sum() / records.output_tokens.sum())
        first = float(np.nanmax(ttft)) if self.is_batch_time else self.average(ttft)
        e2e = (latencies.e2e - late + stall)[counted]
        throughput = self.throughput(records)
        if self.is_steady_throughput:
            throughput = closed_loop_throughput(int(is_cold.sum()), float(records.output_tokens.mean()), first, tpot)
        return {
            "tpot": tpot,
            "ttft": first,
            "e2e": float(np.nanmax(e2e)) if self.is_last_answer else self.average(e2e),
            "throughput": throughput * self.num_copies / self.beam_width,
        }

    def _counted(self, num_requests: int) -> slice:
        """Return the requests whose latencies count, in order of arrival: all, or the middle of a long run."""
        start, stop = LONG_RUN_WINDOW if self.is_long_run else (0.0, 1.0)
        return slice(int(start * num_requests), max(int(stop * num_requests), 1))

    def throughput(self, records: RequestRecords) -> float:
        """Return tokens/s of the run, or of the time in which the middle of a long run's requests finished."""
        if not self.is_long_run:
            return point.Protocol.throughput(self, records)
        tokens = records.output_tokens + (records.prompt_tokens if self.is_total_throughput else 0)
        start, end = np.nanquantile(records.finish_time, LONG_RUN_WINDOW)
        inside = (records.finish_time > start) & (records.finish_time <= end)
        return float(tokens[inside].sum() / (end - start)) if end > start else float("nan")

    def heard(self, deployment: Deployment) -> Deployment:
        """Return a deployment as the benchmark's client hears of it."""
        if not self.is_in_process:
            return deployment
        return replace(deployment, engine=replace(deployment.engine, transfer_step_seconds=np.inf))


def closed_loop_throughput(clients: int, output_tokens: float, ttft: float, tpot: float) -> float:
    """Return the output tokens/s of clients whose every request takes these times, in seconds (Little's law)."""
    return clients * output_tokens / (ttft + tpot * (output_tokens - 1.0))
