"""All-reduce and point-to-point between the GPUs of a node: one process per GPU, NCCL (Gloo between CPU processes).

Every rank starts from random values that all ranks can draw, so that each knows the true result. On a GPU the calls
are queued behind a kernel that waits and an untimed call, so that the time between two events includes no host launch
and no wait for a late rank. The time is that of the slowest rank.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.calibrate.kernels.kernel import relative_error
from simserve.calibrate.kernels.points import ALL_REDUCE, Point, Size
from simserve.calibrate.kernels.timing import Timing, summarise
from simserve.calibrate.kernels.torch_device import Tensor, import_torch

CALLS_OF_A_SAMPLE = 10
"""Calls that are timed together; with the untimed one, 8 ranks make the values of a sum 10^10 times as large."""

WAIT_CYCLES = 2_000_000  # Cycles that the GPU waits while calls are queued: about a millisecond.
MAX_SAMPLES = 30
TOLERANCE = 0.02
STARTING_SECONDS = 60.0  # Seconds beyond the budget for processes and NCCL to connect and to end.


@dataclass(frozen=True, slots=True)
class _World:
    """The work of the processes for one number of ranks."""

    ranks: int  # Number of processes.
    backend: str  # ``nccl`` or ``gloo``.
    folder: str  # Folder through which they connect, and where rank 0 writes its rows.
    tasks: Sequence[tuple[str, Mapping[str, Size]]]  # Table and sizes of each call.
    target: float  # Seconds of samples per call.
    end: float  # When to stop, on the clock of `time.time`.


def measure_collectives(
    points: Sequence[Point], *, backend: str, target: float, seconds: float
) -> list[tuple[Point, dict[str, Any]]]:
    """Return points with their rows: ``seconds low high num error``, or ``reason``; without points past the time limit.

    Args:
        points: Calls; the processes for each ``num_gpus`` are started once.
        backend: ``nccl`` or ``gloo``.
        target: Seconds of samples per call.
        seconds: Time limit.
    """
    found: list[tuple[Point, dict[str, Any]]] = []
    end = time.time() + seconds
    for ranks in sorted({int(point.sizes["num_gpus"]) for point in points}):
        chosen = [point for point in points if point.sizes["num_gpus"] == ranks]
        if time.time() >= end:
            break
        with tempfile.TemporaryDirectory() as folder:
            tasks = [(point.table, dict(point.sizes)) for point in chosen]
            trouble = _run(_World(ranks, backend, folder, tasks, target, end))
            rows = _rows(Path(folder))
        found += [(chosen[row["task"]], row) for row in rows]
        if trouble and not rows:
            found += [(point, {"reason": trouble}) for point in chosen]
    return found


def _run(world: _World) -> str:
    """Run the processes of a world to their end and return what went wrong; empty if nothing did."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, args=(rank, world), daemon=True) for rank in range(world.ranks)]
    for process in processes:
        process.start()
    last = max(world.end, time.time()) + STARTING_SECONDS
    for process in processes:
        process.join(max(last - time.time(), 0.0))
    stuck = [process for process in processes if process.is_alive()]
    for process in stuck:
        process.terminate()
        process.join(5.0)
    if stuck:
        return f"{len(stuck)} of {world.ranks} processes did not end"
    failed = [process.exitcode for process in processes if process.exitcode]
    return f"a process of {world.ranks} ended with {failed[0]}" if failed else ""


def _rows(folder: Path) -> list[dict[str, Any]]:
    file = folder / "rows.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _work(rank: int, world: _World) -> None:
    """Make all calls of a world as one rank; rank 0 writes one row per call."""
    torch = import_torch()
    distributed = torch.distributed
    is_cuda = world.backend == "nccl"
    where = f"cuda:{rank}" if is_cuda else "cpu"
    if is_cuda:
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        world.backend,
        init_method=f"file://{world.folder}/meeting",
        rank=rank,
        world_size=world.ranks,
        timeout=datetime.timedelta(seconds=STARTING_SECONDS),
    )
    try:
        for task, (table, sizes) in enumerate(world.tasks):
            goes_on = torch.tensor([int(time.time() < world.end)], device=where)
            distributed.broadcast(goes_on, 0)
            if not int(goes_on.item()):
                break
            row = _measure(torch, rank, world, table, int(sizes["message_size"]), where)
            if rank == 0:
                with Path(world.folder, "rows.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"task": task, **row}) + "\n")
    finally:
        distributed.destroy_process_group()


def _measure(torch: Any, rank: int, world: _World, table: str, elements: int, where: str) -> dict[str, Any]:
    distributed = torch.distributed
    sources = [_drawn(torch, elements, each, where) for each in range(world.ranks)]
    source = sources[rank]
    buffer = source.clone()
    if table == ALL_REDUCE:
        truth = sum(each.double() for each in sources)

        def call() -> None:
            distributed.all_reduce(buffer)
    else:
        truth = sources[0].double()

        def call() -> None:
            if rank == 0:
                distributed.send(buffer, 1)
            elif rank == 1:
                distributed.recv(buffer, 0)

    del sources
    call()
    error = torch.tensor([relative_error(buffer, truth)], dtype=torch.float32, device=where)
    distributed.all_reduce(error, op=distributed.ReduceOp.MAX)
    worst = float(error.item())
    if not worst <= TOLERANCE:
        return {"reason": f"wrong result: {worst:.2g} off float64, at most {TOLERANCE} is taken"}
    del truth
    timing = _timed(torch, call, buffer, source, world)
    return {
        "seconds": timing.seconds,
        "low": timing.low,
        "high": timing.high,
        "num": timing.num_samples,
        "error": worst,
    }


def _drawn(torch: Any, elements: int, rank: int, where: str) -> Tensor:
    generator = torch.Generator(device=where).manual_seed(1000 + rank)
    return torch.randn(elements, generator=generator, device=where).to(torch.bfloat16)


def _timed(torch: Any, call: Callable[[], None], buffer: Tensor, source: Tensor, world: _World) -> Timing:
    """Return the time of a call; all ranks take as many samples as rank 0 decides."""
    distributed, is_cuda = torch.distributed, world.backend == "nccl"
    sample = _sample_on_gpu if is_cuda else _sample_on_cpu
    first = sample(torch, call, buffer, source)
    count = torch.tensor([min(max(int(world.target / max(first * CALLS_OF_A_SAMPLE, 1e-6)), 3), MAX_SAMPLES)])
    count = count.to(buffer.device)
    distributed.broadcast(count, 0)
    own = [sample(torch, call, buffer, source) for _ in range(int(count.item()))]
    samples = torch.tensor(own, dtype=torch.float64, device=buffer.device)
    distributed.all_reduce(samples, op=distributed.ReduceOp.MAX)  # the sender of a short message does not wait
    return summarise(samples.tolist(), "events" if is_cuda else "clock")


def _sample_on_gpu(torch: Any, call: Callable[[], None], buffer: Tensor, source: Tensor) -> float:
    buffer.copy_(source)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.distributed.barrier()
    torch.cuda.synchronize()
    if hasattr(torch.cuda, "_sleep"):
        torch.cuda._sleep(WAIT_CYCLES)
    call()
    before.record()
    for _ in range(CALLS_OF_A_SAMPLE):
        call()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) * 1e-3 / CALLS_OF_A_SAMPLE


def _sample_on_cpu(torch: Any, call: Callable[[], None], buffer: Tensor, source: Tensor) -> float:
    buffer.copy_(source)
    torch.distributed.barrier()
    call()
    start = time.perf_counter()
    for _ in range(CALLS_OF_A_SAMPLE):
        call()
    return (time.perf_counter() - start) / CALLS_OF_A_SAMPLE
