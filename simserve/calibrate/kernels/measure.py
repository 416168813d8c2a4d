"""The measurement itself: point by point within a budget, each checked before it is timed. Knows no terminal."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simserve.calibrate.kernels import attention, elementwise, layer, points, products
from simserve.calibrate.kernels.collectives import measure_collectives
from simserve.calibrate.kernels.kernel import Kernel, UnsupportedError
from simserve.calibrate.kernels.points import Point
from simserve.calibrate.kernels.timing import Timing, time_call
from simserve.calibrate.kernels.torch_device import SAFE_SHARE, TooLargeError, TorchDevice, describe, read_clocks
from simserve.calibrate.run_folder import FORMAT_VERSION, MAX_DEATHS, Log, open_run, write_provenance, write_tables
from simserve.errors import SimserveError, UsageError, nearest
from simserve.profiles.model import ModelProfile
from simserve.version import __version__

SAMPLE_SECONDS = {"cuda": 0.03, "cpu": 0.12}  # Seconds of samples per point.
ROUNDS = ((True, 0.02), (True, 0.1), (False, 0.02), (False, 0.1), (True, 1.0), (False, 1.0))
"""Rounds of a measurement: whether the first points of every kind are measured or the rest, and the share of the time
left that one point may take. Long points come after all others, and only if no other point is lost to them."""

COLLECTIVE_SHARE = 0.3  # Least share of the budget for collectives, where there is more than one GPU.
COLLECTIVES_START = 5.0  # Seconds that the processes of collectives take to start.
LEAST_SAMPLES = 0.2  # Least share of `SAMPLE_SECONDS` for a point when the budget is too short for all.
SAVED_EVERY = 20.0
LOAD_SECONDS = 0.3
"""Seconds of work for a GPU while its clocks are read, as they fall when it is idle; more than nvidia-smi is assumed
to take."""

CLOCKS_EVERY = 5.0

FORMATS_OF = {"cuda": tuple(points.FORMATS), "cpu": ("bfloat16",)}
"""Number formats measured by default; most CPUs emulate the narrow ones."""

OUT_OF_MEMORY = "out of memory"

Tell = Callable[[int, int, str], None]
"""Called with the number of points done, the number of all points, and the current one."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a call of `measure` did."""

    folder: Path  # The run.
    provenance: Mapping[str, Any]  # As written.
    log: Log  # All points, including those of earlier calls.


def measure(
    folder: Path,
    device: TorchDevice,
    models: Sequence[ModelProfile],
    *,
    deadline: float,
    formats: Sequence[str] | None = None,
    command: str = "",
    date: str | None = None,
    force: bool = False,
    tell: Tell | None = None,
) -> Measurement:
    """Measure kernels until all points are done or the budget is spent, and return the results so far.

    Points already measured in the same folder are kept and not measured again.

    Args:
        models: Models whose layer shapes are measured.
        deadline: When to stop, on the clock of `time.monotonic`.
        formats: Number formats of the products; None: those of the device in `FORMATS_OF`.
        date: Date recorded in the provenance; None: today.
        force: Whether to replace a run of another device or other models.

    Raises:
        UsageError: The folder cannot be used.
        SimserveError: The device failed and takes no more work; points done so far are kept.
        KeyboardInterrupt: The user stopped it; points done so far are kept.
    """
    facts = describe(device)
    identity = {
        "device_name": device.name,
        "num_multiprocessors": device.num_multiprocessors,
        "torch": facts["torch"],
        "models": [model.name for model in models],
        "engine": None if device.engine is None else device.engine.name,
    }
    log = open_run(folder, identity, force=force)
    planned = points.plan_points(
        models,
        formats=formats or FORMATS_OF[device.kind],
        num_devices=int(facts.get("num_devices", 1)),
        has_graphs=device.is_cuda,
    )
    session = _Session(folder, device, {model.name: model for model in models}, log, planned, deadline, tell)
    session.provenance = {
        "format": FORMAT_VERSION,
        **identity,
        "simserve": __version__,
        "device": facts,
        "date": date or datetime.date.today().isoformat(),
        "command": command,
    }
    return session.run()


@dataclass(slots=True)
class _Session:
    folder: Path
    device: TorchDevice
    models: Mapping[str, ModelProfile]
    log: Log
    planned: Sequence[Point]
    deadline: float
    tell: Tell | None
    provenance: dict[str, Any] = field(default_factory=dict)
    target: float = field(init=False)
    pace: Pace = field(init=False)
    clocks: list[dict[str, str]] = field(default_factory=list)
    budget: float = field(init=False)
    has_met: bool = False
    _saved: float = 0.0
    _clocked: float = 0.0

    def __post_init__(self) -> None:
        usual = SAMPLE_SECONDS[self.device.kind]
        self.budget = self.deadline - time.monotonic()
        each = self.budget / (2.0 * max(len(self.planned), 1))
        self.target = min(max(each, LEAST_SAMPLES * usual), usual)
        self.pace = Pace(self.device.kind, self.target)

    def run(self) -> Measurement:
        """Measure the remaining points and record how the measurement ended."""
        ended = "killed"
        for key in self._short_of_memory():
            del self.log.skipped[key]
        self._save(ended)
        try:
            ended = self._measure_all()
        except KeyboardInterrupt:
            ended = "interrupted"
            raise
        except SimserveError:
            ended = "device failed"
            raise
        finally:
            self._save(ended)
        return Measurement(self.folder, self.provenance, self.log)

    def _measure_all(self) -> str:
        """Measure all points that fit the budget, those that would take much of it last."""
        for is_first, share in ROUNDS:
            for point in self._left():
                left = self.deadline - time.monotonic()
                if point.is_first != is_first:
                    continue
                if left <= 0:
                    return "budget"
                if point.table not in points.COLLECTIVES and self.pace.seconds(point) <= share * left:
                    self._measure(point)
                    now = time.monotonic()
                    if now - self._clocked > CLOCKS_EVERY:
                        self._note_clocks(now)
                    if now - self._saved > SAVED_EVERY:
                        self._save("killed")
                if left < COLLECTIVE_SHARE * self.budget:
                    self._measure_collectives()
        self._measure_collectives()
        if self._left():
            return "budget"
        return OUT_OF_MEMORY if self._short_of_memory() else "complete"

    def _measure_collectives(self) -> None:
        """Measure the links between GPUs, once, in separate processes."""
        chosen = [point for point in self._left() if point.table in points.COLLECTIVES]
        left = self.deadline - time.monotonic() - COLLECTIVES_START
        if self.has_met or not chosen or left <= 0:
            return
        self.has_met = True
        if self.tell is not None:
            self.tell(len(self.log.rows) + len(self.log.skipped), len(self.planned), "collectives")
        self.device.release()
        for point, row in measure_collectives(chosen, backend=self.backend, target=self.target, seconds=left):
            if "reason" in row:
                self.log.skip(point.table, point.sizes, str(row["reason"]))
                continue
            timing = Timing(
                seconds=row["seconds"],
                low=row["low"],
                high=row["high"],
                num_samples=row["num"],
                mode="events" if self.backend == "nccl" else "clock",
            )
            self._keep(point, timing, row["error"], f"torch.distributed {self.backend}")

    @property
    def backend(self) -> str:
        """The library that runs collectives."""
        return "nccl" if self.device.is_cuda else "gloo"

    def _short_of_memory(self) -> list[str]:
        """Return the points that did not fit into free memory; a later run tries them again."""
        return [key for key, row in self.log.skipped.items() if str(row["reason"]).startswith(OUT_OF_MEMORY)]

    def _left(self) -> list[Point]:
        """Return the points without a result; those that killed the process come last, or not at all."""
        left = []
        for point in self.planned:
            deaths = self.log.starts.get(point.key, 0)
            if point.key in self.log.rows or point.key in self.log.skipped:
                continue
            if deaths >= MAX_DEATHS:
                self.log.skip(point.table, point.sizes, f"the process died on it {deaths} times")
                continue
            left.append(point)
        return sorted(left, key=lambda point: self.log.starts.get(point.key, 0))

    def _measure(self, point: Point) -> None:
        if self.tell is not None:
            self.tell(len(self.log.rows) + len(self.log.skipped), len(self.planned), _words(point))
        total, free = self.device.total_memory * SAFE_SHARE, self.device.free_memory() * SAFE_SHARE
        if point.memory > total:
            self.log.skip(point.table, point.sizes, f"needs more memory than the {total / 1e9:.0f} GB that can be used")
            return
        if point.memory > free:
            reason = f"{OUT_OF_MEMORY}: needs {point.memory / 1e9:.2f} GB, {free / 1e9:.2f} GB can be used"
            self.log.skip(point.table, point.sizes, reason)
            return
        self.log.start(point.key)
        try:
            self._time(point)
        except KeyboardInterrupt:
            self.log.withdraw(point.key)
            raise
        except (UnsupportedError, TooLargeError) as reason:
            self.log.skip(point.table, point.sizes, str(reason))
        except MemoryError as failure:
            self.log.skip(point.table, point.sizes, f"{OUT_OF_MEMORY}: {failure}".rstrip(": "))
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as failure:
            self._failed(point, failure)

    def _failed(self, point: Point, failure: Exception) -> None:
        """Record why a kernel does not run, unless the device has failed too."""
        text = (str(failure).strip() or type(failure).__name__).splitlines()[0]
        if "out of memory" in str(failure).lower() or "not enough memory" in str(failure).lower():
            self.log.skip(point.table, point.sizes, f"{OUT_OF_MEMORY}: {text}"[:300])
            failure.__traceback__ = None  # it holds the frames, which hold the tensors that did fit
            self.device.release()
            return
        try:
            self.device.synchronize()
        except RuntimeError:
            rule = f"the device failed on {_words(point)}: {text}"
            raise SimserveError(rule, remedy="run the same command again; it goes on with the other points") from None
        self.log.skip(point.table, point.sizes, text[:300])

    def _time(self, point: Point) -> None:
        target = self.target
        with self.device.torch.inference_mode():
            if point.table == points.LAUNCH:
                self._keep(point, layer.launch_seconds(point, self.device, target), 0.0, "torch mul_")
                return
            kernel = self._kernel(point)
            error = kernel.error()
            self.device.synchronize()
            if not error <= kernel.tolerance:
                reason = (
                    f"wrong result: {error:.2g} off float64, at most {kernel.tolerance:g} is taken ({kernel.source})"
                )
                self.log.skip(point.table, point.sizes, reason)
                return
            timing = time_call(kernel.call, kernel.copies, self.device, target, self.deadline, mode=kernel.mode)
        if point.sizes.get("mode") == "graph" and timing.mode != "graph":
            self.log.skip(point.table, point.sizes, "cannot be captured in a CUDA graph")
            return
        self._keep(point, timing, error, kernel.source)
        self.pace.learn(point, timing.seconds)

    def _kernel(self, point: Point) -> Kernel:
        if point.table == points.LAYER:
            return layer.layer(point, self.device, self.models[str(point.sizes["model"])])
        return _KERNELS[point.table](point, self.device)

    def _keep(self, point: Point, timing: Timing, error: float, source: str) -> None:
        measured = {
            "latency": timing.seconds * 1e3,
            "latency_p10": timing.low * 1e3,
            "latency_p90": timing.high * 1e3,
            "num_samples": timing.num_samples,
            "relative_error": error,
            "kernel_source": source,
            "timing": timing.mode,
        }
        self.log.add(point.table, point.sizes, measured)

    def _note_clocks(self, now: float) -> None:
        self._clocked = now
        if not self.device.is_cuda:
            return
        self.device.occupy(LOAD_SECONDS)
        clocks = read_clocks(self.device.smi_id)
        self.device.synchronize()
        if clocks is not None:
            self.clocks.append(clocks)

    def _save(self, ended: str) -> None:
        """Write tables and provenance; before the end they say that the process was killed, in case it is."""
        self._saved = time.monotonic()
        known = {point.key for point in self.planned}
        reasons = Counter(_reason(row) for row in self.log.skipped.values())
        self.provenance |= {
            "ended": ended,
            "is_complete": ended == "complete",
            "planned_points": len(known),
            "measured_points": len(known & self.log.rows.keys()),
            "skipped_points": len(known & self.log.skipped.keys()),
            "tables": write_tables(self.folder, self.log),
            "skipped": [{"what": what, "reason": why, "points": n} for (what, why), n in sorted(reasons.items())],
            "clocks": self.clocks,
        }
        write_provenance(self.folder, self.provenance)


def _reason(row: Mapping[str, Any]) -> tuple[str, str]:
    sizes = row["sizes"]
    kind = sizes.get("gemm_dtype") or sizes.get("op_name") or sizes.get("phase") or sizes.get("mode") or ""
    return f"{row['table']} {kind}".strip(), str(row["reason"])


def _words(point: Point) -> str:
    sizes = {name: value for name, value in point.sizes.items() if name not in _SILENT}
    return f"{point.table.removesuffix('_perf')} " + ", ".join(f"{name} {value}" for name, value in sizes.items())


_SILENT = ("window_size", "kv_cache_dtype", "moe_tp_size", "moe_ep_size", "distribution", "kernels", "head_dim")

_KERNELS: Mapping[str, Callable[[Point, TorchDevice], Kernel]] = {
    points.GEMM: products.product,
    points.MOE: products.experts,
    points.PREFILL: attention.prompts,
    points.DECODE: attention.decodes,
    points.ELEMENTWISE: elementwise.elementwise,
    points.COPY: elementwise.copy,
}


def check_choices(models: Sequence[ModelProfile], formats: Sequence[str]) -> None:
    """Refuse a model named twice and an unknown number format.

    Raises:
        UsageError: There is one.
    """
    names = [model.name for model in models]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError("is given twice", key="--model", value=twice[0])
    unknown = [name for name in formats if name not in points.FORMATS]
    if unknown:
        raise UsageError(
            "is no number format", key="--format", value=unknown[0], remedy=nearest(unknown[0], points.FORMATS)
        )


FIRST_RATES = {"cuda": (2e13, 3e11), "cpu": (2e10, 3e9)}
"""FLOP/s and bytes/s assumed, on the low side, to estimate how long a first point takes."""

CALLS_OF_A_POINT = 10.0  # Calls for a slow point, warm-up and check included.
SETUP_SECONDS = {"cuda": 0.05, "cpu": 0.02}


@dataclass(slots=True)
class Pace:
    """How fast points run on this device, which decides whether one still fits the budget."""

    kind: str
    samples: float
    slowest: dict[str, float] = field(default_factory=dict)

    def seconds(self, point: Point) -> float:
        """Return the seconds that a point is expected to take, set-up and check included."""
        flops, bandwidth = FIRST_RATES[self.kind]
        call = max(point.flops / flops, point.num_bytes / bandwidth)
        call *= self.slowest.get(_operator(point), 1.0)
        return SETUP_SECONDS[self.kind] + self.samples + CALLS_OF_A_POINT * call

    def learn(self, point: Point, seconds: float) -> None:
        """Update the pace with the time that a point took."""
        flops, bandwidth = FIRST_RATES[self.kind]
        guess = max(point.flops / flops, point.num_bytes / bandwidth)
        if guess > 1e-5:
            known = self.slowest.get(_operator(point))
            ratio = seconds / guess
            self.slowest[_operator(point)] = ratio if known is None else max(0.5 * known, ratio)


def _operator(point: Point) -> str:
    return f"{point.table} {point.sizes.get('gemm_dtype', '')}"
