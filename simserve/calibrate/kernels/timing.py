"""How long a call takes: CUDA graphs and events on a GPU, the process clock on a CPU. Knows no kernel.

A kernel is called with the index of a copy of its inputs, so that no call finds in the cache what the last one left
there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.calibrate.kernels.torch_device import TorchDevice

MIN_SAMPLES = 5
MAX_SAMPLES = 200
SHORT_CALL = 20e-6  # CPU calls shorter than this are timed several at once: reading the clock takes 50 to 100 ns.
GRAPH_SECONDS = 400e-6
MAX_CALLS_IN_GRAPH = 128
WARM_UP_CALLS = 3
PROBED_CALLS = 4
"""Calls in the graph whose replay determines the size of the final one: launched singly, short calls wait for the
host."""
WARM_SECONDS = 0.03
"""Seconds of work before the first sample, so that an idle GPU's clocks rise; assumed, not yet checked on a GPU."""

Call = Callable[[int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time of a call."""

    seconds: float  # Median of the samples.
    low: float  # 10th percentile.
    high: float  # 90th percentile.
    num_samples: int  # Number of samples.
    mode: str  # ``graph`` (CUDA graph replay), ``events`` (launched one by one) or ``clock`` (CPU).


def time_call(
    call: Call, copies: int, device: TorchDevice, target: float, deadline: float, *, mode: str | None = None
) -> Timing:
    """Return the time of a call.

    Args:
        copies: Number of copies to rotate through.
        target: Seconds for all samples together; at least three are taken.
        deadline: When to stop sampling, on the clock of `time.monotonic`.
        mode: ``events`` keeps a GPU from using graphs.
    """
    if not device.is_cuda:
        return _on_cpu(call, copies, target, deadline)
    if mode != "events":
        captured = _captured(call, copies, device)
        if captured is not None:
            graph, num_calls = captured
            return _events(graph.replay, num_calls, device, target, "graph")
    return _eager(call, copies, device, target)


def summarise(samples: Sequence[float], mode: str) -> Timing:
    """Return median and spread of samples."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timing(
        seconds=statistics.median(ordered),
        low=ordered[round(0.1 * last)],
        high=ordered[round(0.9 * last)],
        num_samples=len(ordered),
        mode=mode,
    )


def _on_cpu(call: Call, copies: int, target: float, deadline: float) -> Timing:
    start = time.perf_counter()
    call(0)
    first = time.perf_counter() - start
    if first < target:
        start = time.perf_counter()
        call(1 % copies)
        first = time.perf_counter() - start
    group = max(int(SHORT_CALL / max(first, 1e-9)), 1)
    samples: list[float] = []
    begin, number = time.perf_counter(), 2
    while len(samples) < MAX_SAMPLES:
        start = time.perf_counter()
        for _ in range(group):
            call(number % copies)
            number += 1
        end = time.perf_counter()
        samples.append((end - start) / group)
        spent = end - begin
        if spent > target and (len(samples) >= MIN_SAMPLES or (len(samples) >= 3 and spent > 2.0 * target)):
            break
        if time.monotonic() > deadline:
            break
    return summarise(samples, "clock")


def _captured(call: Call, copies: int, device: TorchDevice) -> tuple[Any, int] | None:
    """Return a graph of several calls and their number, or None if the kernel cannot be captured."""
    torch = device.torch
    side, stream = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        for number in range(WARM_UP_CALLS):
            call(number % copies)
    stream.wait_stream(side)
    torch.cuda.synchronize()
    probed = min(copies, PROBED_CALLS)
    graph = _graph_of(call, copies, probed, device)
    if graph is None:
        return None
    once = max(_elapsed(graph.replay, torch) / probed, 1e-6)
    if once > 10 * GRAPH_SECONDS:
        return graph, probed
    num_calls = min(max(int(GRAPH_SECONDS / once), copies), MAX_CALLS_IN_GRAPH)
    longer = _graph_of(call, copies, num_calls, device)
    return None if longer is None else (longer, num_calls)


def _graph_of(call: Call, copies: int, num_calls: int, device: TorchDevice) -> Any | None:
    """Return a graph of ``num_calls`` calls, replayed once, or None if the kernel cannot be captured."""
    torch = device.torch
    stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for number in range(num_calls):
                call(number % copies)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.set_stream(stream)
        raise
    except RuntimeError:
        torch.cuda.set_stream(stream)  # if ending a capture fails, PyTorch leaves its stream the current one
        torch.cuda.synchronize()
        return None
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _elapsed(run: Callable[[], Any], torch: Any) -> float:
    """Return the seconds that the GPU takes for ``run``."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) * 1e-3


def _eager(call: Call, copies: int, device: TorchDevice, target: float) -> Timing:
    """Return the time of calls launched one after another, several between two events."""
    torch = device.torch
    for number in range(WARM_UP_CALLS):
        call(number % copies)
    torch.cuda.synchronize()
    num_calls = max(min(copies, 16), 4)

    def several() -> None:
        for number in range(num_calls):
            call(number % copies)

    return _events(several, num_calls, device, target, "events")


def _events(run: Callable[[], Any], num_calls: int, device: TorchDevice, target: float, mode: str) -> Timing:
    """Return the time of one of ``num_calls`` calls that ``run`` makes, between CUDA events."""
    torch = device.torch
    pairs: list[tuple[Any, Any]] = []
    warm = time.perf_counter() + min(WARM_SECONDS, target)
    once = max(_elapsed(run, torch), 1e-6)
    while time.perf_counter() < warm:
        run()
        torch.cuda.synchronize()
    begin = time.perf_counter()
    wanted = min(max(int(target / once), MIN_SAMPLES), MAX_SAMPLES)
    for _ in range(wanted):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        run()
        after.record()
        pairs.append((before, after))
        if len(pairs) >= 3 and time.perf_counter() - begin > 4.0 * target:
            break
    torch.cuda.synchronize()
    return summarise([before.elapsed_time(after) * 1e-3 / num_calls for before, after in pairs], mode)
