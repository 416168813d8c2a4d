"""Processes that meet, sum the same values, and say how long it took."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from simserve.calibrate.kernels import measure as measuring
from simserve.calibrate.kernels.measure import measure
from simserve.calibrate.kernels.points import ALL_REDUCE, COPY, POINT_TO_POINT, Point
from simserve.calibrate.kernels.torch_device import TorchDevice
from simserve.calibrate.run_folder import read_run
from simserve.profiles.catalog import load_model


def planned(*_: Any, **__: Any) -> list[Point]:
    """Return one call of each kind between two ranks, and a copy."""
    reduce = {"allreduce_dtype": "bfloat16", "num_gpus": 2, "message_size": 4096}
    send = {"dtype": "bfloat16", "num_gpus": 2, "message_size": 4096}
    return [
        Point(table=ALL_REDUCE, sizes=reduce, flops=0.0, num_bytes=16384.0),
        Point(table=POINT_TO_POINT, sizes=send, flops=0.0, num_bytes=16384.0),
        Point(table=COPY, sizes={"bytes": 64}, flops=0.0, num_bytes=128.0),
    ]


@pytest.mark.slow
def test_two_ranks_reduce_and_send(cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over Gloo between two processes; over NCCL it is the same code."""
    monkeypatch.setattr(measuring.points, "plan_points", planned)

    measure(tmp_path / "run", cpu, [load_model("qwen2.5-0.5b")], deadline=time.monotonic() + 60.0)

    run = read_run(tmp_path / "run")
    assert run.is_complete
    reduced, sent = (run.tables[table].iloc[0] for table in (ALL_REDUCE, POINT_TO_POINT))
    assert reduced["kernel_source"] == "torch.distributed gloo"
    assert 0.0 < reduced["relative_error"] < 0.02
    assert sent["relative_error"] == 0.0
    assert 0.0 < reduced["seconds"] < 1.0


@pytest.mark.slow
def test_processes_that_fail_are_a_reason(cpu: TorchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that is not there ends the processes, not the measurement."""
    monkeypatch.setattr(measuring.points, "plan_points", planned)
    monkeypatch.setattr(measuring._Session, "backend", "mpi-of-nowhere")

    measure(tmp_path / "run", cpu, [load_model("qwen2.5-0.5b")], deadline=time.monotonic() + 60.0)

    run = read_run(tmp_path / "run")
    assert set(run.tables) == {COPY}
    assert {each["what"].split()[0] for each in run.provenance["skipped"]} == {ALL_REDUCE, POINT_TO_POINT}
    assert "a process of 2 ended with 1" in run.provenance["skipped"][0]["reason"]
