"""A measurement ends within its budget, outlives what kills it, and times nothing that is wrong."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from simserve.calibrate.kernel_fit import KernelFit
from simserve.calibrate.kernels import measure as measuring
from simserve.calibrate.kernels.kernel import Kernel
from simserve.calibrate.kernels.measure import measure
from simserve.calibrate.kernels.points import COPY, ELEMENTWISE, GEMM, Point
from simserve.calibrate.kernels.torch_device import TorchDevice
from simserve.calibrate.run_folder import read_log, read_run
from simserve.calibrate.run_report import ending_line
from simserve.cli.main import main
from simserve.errors import SimserveError, UsageError
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile

TINY = load_model("qwen2.5-0.5b")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan few and short points, with few samples."""
    monkeypatch.setattr(measuring.points, "plan_points", lambda *_, **__: planned())
    monkeypatch.setitem(measuring.SAMPLE_SECONDS, "cpu", 0.001)
    monkeypatch.setitem(measuring.SETUP_SECONDS, "cpu", 0.0)


def planned() -> list[Point]:
    """Return twelve copies and twelve products."""
    copies = [
        Point(table=COPY, sizes={"bytes": 1 << power}, flops=0, num_bytes=2.0 * (1 << power)) for power in range(12)
    ]
    products = [
        Point(
            table=GEMM,
            sizes={"gemm_dtype": "bfloat16", "m": m, "n": 64, "k": 64},
            flops=2.0 * 64 * 64 * m,
            num_bytes=2.0 * 64 * (64 + 2 * m),
        )
        for m in range(1, 13)
    ]
    return [point for pair in zip(copies, products, strict=True) for point in pair]


def run(
    folder: Path, device: TorchDevice, seconds: float = math.inf, models: tuple[ModelProfile, ...] = (TINY,)
) -> Any:
    """Measure into a folder."""
    return measure(folder, device, models, deadline=time.monotonic() + seconds, date="2026-11-21", command="test")


def failing_at(place: int, failure: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the call of one point raise."""
    built = measuring._KERNELS[GEMM]
    count = iter(range(1000))

    def build(point: Point, device: TorchDevice) -> Kernel:
        if next(count) == place:
            raise failure
        return built(point, device)

    monkeypatch.setitem(measuring._KERNELS, GEMM, build)


@pytest.mark.slow
def test_a_whole_measurement_is_complete(cpu: TorchDevice, tmp_path: Path) -> None:
    """Every point has a row with its spread and its error; provenance says what it was made with."""
    measured = run(tmp_path / "run", cpu)

    found = read_run(tmp_path / "run")
    assert (found.is_complete, found.num_points) == (True, 24)
    assert ending_line(found) == "complete: 24 of 24 calls"
    assert measured.provenance["tables"] == {GEMM: 12, COPY: 12}
    products = found.tables[GEMM]
    assert (products["latency_p10"] <= products["latency"]).all()
    assert (products["latency"] <= products["latency_p90"]).all()
    assert products["relative_error"].between(0.0, 0.02).all()
    written = json.loads((tmp_path / "run/provenance.json").read_text(encoding="utf-8"))
    assert written["device"]["torch"] == str(cpu.torch.__version__)
    assert (written["date"], written["command"], written["ended"]) == ("2026-11-21", "test", "complete")


@pytest.mark.slow
def test_it_ends_within_its_budget_and_goes_on_from_there(cpu: TorchDevice, tmp_path: Path) -> None:
    """A second run measures the rest only."""
    run(tmp_path / "run", cpu, seconds=-1.0)
    none = read_log(tmp_path / "run")
    ended = read_run(tmp_path / "run").provenance["ended"]

    run(tmp_path / "run", cpu)

    assert (len(none.rows), ended) == (0, "budget")
    assert read_run(tmp_path / "run").is_complete


def test_points_too_long_for_what_is_left_are_put_off(
    cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter ones are done instead, and the run is not complete."""
    monkeypatch.setitem(measuring.FIRST_RATES, "cpu", (1.0, 3e9))

    run(tmp_path / "run", cpu, seconds=60.0)

    found = read_run(tmp_path / "run")
    assert set(found.tables) == {COPY}
    assert found.provenance["ended"] == "budget"


@pytest.mark.slow
def test_an_interrupted_measurement_resumes(cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done is kept, also in the tables; nothing is measured twice."""
    with monkeypatch.context() as patch:
        failing_at(5, KeyboardInterrupt(), patch)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", cpu)
    half = read_run(tmp_path / "run")
    before, starts = read_log(tmp_path / "run").rows, read_log(tmp_path / "run").starts

    run(tmp_path / "run", cpu)

    assert (half.num_points, half.provenance["ended"], half.is_complete) == (11, "interrupted", False)
    assert starts == {}, "a call that the user stopped is not one that killed the process"
    after = read_log(tmp_path / "run").rows
    assert read_run(tmp_path / "run").is_complete
    assert {key: after[key] for key in before} == before


@pytest.mark.slow
def test_a_fit_on_half_of_it_says_so(
    cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """The measurement was stopped after eleven of twelve calls of a kind."""
    failing_at(11, KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", cpu)

    code = main(["calibrate", "fit", str(tmp_path / "run")])

    assert code == 0
    assert "WARNING: the run is INCOMPLETE, it was interrupted: 23 of 24 calls" in capfd.readouterr().out
    assert "INCOMPLETE" in (tmp_path / "run/profile.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("failure", [MemoryError("2 TB"), RuntimeError("CUDA out of memory. Tried to allocate")])
def test_a_point_out_of_memory_is_tried_again_another_time(
    cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The run goes on without it and says that it is not complete."""
    with monkeypatch.context() as patch:
        failing_at(3, failure, patch)
        run(tmp_path / "run", cpu)
    short = read_run(tmp_path / "run")

    run(tmp_path / "run", cpu)

    assert (short.num_points, short.provenance["ended"], short.is_complete) == (23, "out of memory", False)
    assert short.provenance["skipped"][0]["reason"].startswith("out of memory")
    assert read_run(tmp_path / "run").is_complete


@pytest.mark.slow
def test_a_process_killed_in_a_call_leaves_a_run(
    cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cleaned up; the point comes last the next time, and is left out the time after."""

    class Killed(BaseException):
        """What no handler expects."""

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(measuring._Session, "_save", lambda *_: None)
            poisoned = planned()[7].key

            def build(point: Point, device: TorchDevice, poison: str = poisoned) -> Kernel:
                if point.key == poison:
                    raise Killed
                return measuring.products.product(point, device)

            patch.setitem(measuring._KERNELS, GEMM, build)
            with pytest.raises(Killed):
                run(tmp_path / "run", cpu)
    rows = len(read_log(tmp_path / "run").rows)

    run(tmp_path / "run", cpu)

    found = read_run(tmp_path / "run")
    assert rows == 23
    assert found.provenance["skipped"] == [
        {"what": "gemm_perf bfloat16", "reason": "the process died on it 2 times", "points": 1}
    ]


@pytest.mark.slow
def test_a_wrong_kernel_is_not_timed(cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands under what was skipped, with its error."""
    built = measuring._KERNELS[COPY]

    def wrong(point: Point, device: TorchDevice) -> Kernel:
        kernel = built(point, device)
        return Kernel(call=kernel.call, copies=1, error=lambda: 0.5, tolerance=0.02, source="made wrong")

    monkeypatch.setitem(measuring._KERNELS, COPY, wrong)
    run(tmp_path / "run", cpu)

    found = read_run(tmp_path / "run")
    assert set(found.tables) == {GEMM}
    assert found.provenance["skipped"] == [
        {
            "what": "copy_perf",
            "reason": "wrong result: 0.5 off float64, at most 0.02 is taken (made wrong)",
            "points": 12,
        }
    ]


@pytest.mark.slow
def test_an_unsupported_kernel_is_skipped_with_its_reason(
    cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own first line; the others are measured."""
    failing_at(2, RuntimeError("self.size(0) needs to be greater than 16, but got 8\nmore"), monkeypatch)

    run(tmp_path / "run", cpu)

    skipped = read_run(tmp_path / "run").provenance["skipped"]
    assert [each["reason"] for each in skipped] == ["self.size(0) needs to be greater than 16, but got 8"]
    assert read_run(tmp_path / "run").is_complete


def test_a_device_that_is_lost_ends_the_measurement(
    cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access nothing runs in this process any more: it says how to go on."""
    failing_at(4, RuntimeError("CUDA error: an illegal memory access was encountered"), monkeypatch)

    def lost(_: TorchDevice) -> None:
        raise RuntimeError("CUDA error")

    built = measuring._Session._failed

    def failed(session: Any, point: Point, failure: Exception) -> None:
        monkeypatch.setattr(TorchDevice, "synchronize", lost)
        built(session, point, failure)

    monkeypatch.setattr(measuring._Session, "_failed", failed)
    with pytest.raises(SimserveError, match=r"the device failed on gemm .* run the same command again"):
        run(tmp_path / "run", cpu)

    assert read_run(tmp_path / "run").provenance["ended"] == "device failed"


def test_a_point_larger_than_the_memory_is_left_out(
    cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For good: no later run can do it."""
    huge = Point(table=ELEMENTWISE, sizes={"op_name": "rms_norm"}, flops=0, num_bytes=1.0, memory=1e15)
    monkeypatch.setattr(measuring.points, "plan_points", lambda *_, **__: [*planned()[:2], huge])

    run(tmp_path / "run", cpu)

    found = read_run(tmp_path / "run")
    assert found.is_complete
    assert "needs more memory than" in found.provenance["skipped"][0]["reason"]


@pytest.mark.slow
def test_what_was_measured_can_be_fitted(cpu: TorchDevice, tmp_path: Path) -> None:
    """A dozen calls of each kind are enough."""
    run(tmp_path / "run", cpu)

    assert set(KernelFit().fit(read_run(tmp_path / "run")).kinds_) == {"products bfloat16", "copies"}


@pytest.mark.slow
def test_another_number_of_threads_is_another_device(cpu: TorchDevice, tmp_path: Path) -> None:
    """Calls of one thread and of two do not belong into one table."""
    run(tmp_path / "run", cpu)
    cpu.num_multiprocessors += 1

    with pytest.raises(UsageError, match=r"holds a run whose num_multiprocessors is \d+, not \d+"):
        run(tmp_path / "run", cpu)
