"""The path of a GPU, on one that is made up: what is captured, replayed and divided. Needs no PyTorch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simserve.calibrate.kernels import torch_device
from simserve.calibrate.kernels.timing import GRAPH_SECONDS, time_call
from simserve.calibrate.kernels.torch_device import TorchDevice, describe, open_device, read_clocks

CALL_MS = 0.25


class OutOfMemoryError(RuntimeError):
    """As PyTorch has it."""


class MadeUpGpu:
    """A clock that moves by `CALL_MS` with every call, and graphs that repeat what was captured."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.milliseconds = 0.0
        self.captured: list[Callable[[], None]] | None = None
        self.num_captured: list[int] = []
        self.num_replays = 0
        self.failure = failure
        self.stream: object = None
        self.torch = SimpleNamespace(cuda=self._cuda())

    def launch(self, _: int) -> None:
        """Run, or record, a kernel."""
        if self.captured is not None:
            if self.failure is not None:
                raise self.failure
            self.captured.append(lambda: None)
        else:
            self.milliseconds += CALL_MS

    def _cuda(self) -> SimpleNamespace:
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.milliseconds

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        class Graph:
            num_calls = 0

            def replay(self) -> None:
                gpu.num_replays += 1
                gpu.milliseconds += CALL_MS * self.num_calls

        @contextmanager
        def graph(target: Graph) -> Iterator[None]:
            gpu.captured = []
            try:
                yield
                target.num_calls = len(gpu.captured)
                gpu.num_captured.append(target.num_calls)
            finally:
                gpu.captured = None

        @contextmanager
        def stream(_: object) -> Iterator[None]:
            yield

        waiting = SimpleNamespace(wait_stream=lambda _: None)

        def set_stream(chosen: object) -> None:
            gpu.stream = chosen

        return SimpleNamespace(
            set_stream=set_stream,
            Event=Event,
            CUDAGraph=Graph,
            graph=graph,
            stream=stream,
            Stream=lambda: waiting,
            current_stream=lambda: waiting,
            synchronize=lambda: None,
            OutOfMemoryError=OutOfMemoryError,
        )

    def device(self) -> TorchDevice:
        """Return it as a device to measure."""
        return TorchDevice(self.torch, "cuda", "NVIDIA X1000", 50e6, 80e9, 132)


def test_calls_are_replayed_from_a_graph_and_divided() -> None:
    """A replay of many calls is timed as one, after a replay that is not."""
    gpu = MadeUpGpu()

    timing = time_call(gpu.launch, 7, gpu.device(), target=0.03, deadline=math.inf)

    assert timing.mode == "graph"
    assert timing.seconds == pytest.approx(CALL_MS * 1e-3)
    assert timing.low == timing.high == pytest.approx(timing.seconds)
    assert gpu.num_captured == [4, 7]
    assert gpu.num_replays > timing.num_samples


def test_the_length_of_a_graph_comes_from_a_replay() -> None:
    """Launches that wait for the host, as those of short kernels do, make the graph no shorter."""
    gpu = MadeUpGpu()

    def launch(number: int) -> None:
        time.sleep(0.0 if gpu.captured is not None else 2e-3)
        gpu.launch(number)

    time_call(launch, 1, gpu.device(), target=0.01, deadline=math.inf)

    assert gpu.num_captured == [1, int(GRAPH_SECONDS / CALL_MS * 1e3)]


def test_clocks_are_read_while_the_gpu_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is queued for at least as long as was asked, and none of it is waited for."""
    gpu, waited = MadeUpGpu(), []
    gpu.torch.bfloat16 = "bfloat16"
    gpu.torch.mm = lambda *_, **__: gpu.launch(0)
    gpu.torch.cuda.synchronize = lambda: waited.append(gpu.milliseconds)
    monkeypatch.setattr(TorchDevice, "random", lambda *_: None)

    gpu.device().occupy(0.1)

    assert gpu.milliseconds - waited[-1] >= 100.0


def test_what_cannot_be_captured_is_launched() -> None:
    """With the same time a call."""
    gpu = MadeUpGpu(RuntimeError("operation not permitted when stream is capturing"))

    timing = time_call(gpu.launch, 3, gpu.device(), target=0.03, deadline=math.inf)

    assert (timing.mode, gpu.num_replays) == ("events", 0)
    assert timing.seconds == pytest.approx(CALL_MS * 1e-3)


def test_events_are_asked_for_where_launches_are_to_show() -> None:
    """Nothing is captured then."""
    gpu = MadeUpGpu()

    timing = time_call(gpu.launch, 3, gpu.device(), target=0.03, deadline=math.inf, mode="events")

    assert (timing.mode, gpu.num_captured) == ("events", [])


def test_a_full_memory_in_a_capture_is_no_missing_kernel() -> None:
    """It ends the point."""
    gpu = MadeUpGpu(OutOfMemoryError("CUDA out of memory"))

    with pytest.raises(OutOfMemoryError):
        time_call(gpu.launch, 3, gpu.device(), target=0.03, deadline=math.inf)


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Name, multiprocessors, cache, memory from PyTorch; driver, clocks and power from nvidia-smi."""
    properties = SimpleNamespace(
        name="NVIDIA H200", L2_cache_size=52428800, total_memory=150e9, multi_processor_count=132, major=9, minor=0
    )
    cuda = SimpleNamespace(
        is_available=lambda: True, get_device_properties=lambda _: properties, device_count=lambda: 2
    )
    torch = SimpleNamespace(
        cuda=cuda,
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True))),
        version=SimpleNamespace(cuda="13.0", hip=None),
        __version__="2.13.0+cu130",
    )
    monkeypatch.setattr(torch_device, "import_torch", lambda: torch)
    program = tmp_path / "nvidia-smi"
    program.write_text(_NVIDIA_SMI, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    device = open_device(None)
    facts = describe(device)

    assert (device.kind, device.cache_bytes, device.compute_capability) == ("cuda", 52428800.0, "9.0")
    assert facts["flash_attention"] == "FA2", "no newer one is installed where the tests run"
    assert (facts["driver"], facts["power_limit_w"], facts["num_devices"]) == ("600.11", "700.00", 2)
    assert read_clocks() == {
        "clocks.sm": "1980",
        "clocks.mem": "3201",
        "temperature.gpu": "44",
        "power.draw": "120.50",
        "reasons": "0x0000000000000004",
    }


_NVIDIA_SMI = """#!/bin/sh
case "$1" in
  --query-gpu=driver_version) echo 600.11 ;;
  --query-gpu=power.limit) echo 700.00 ;;
  *clocks_event_reasons*) echo "no such field"; exit 2 ;;
  *clocks_throttle_reasons*) echo "1980, 3201, 44, 120.50, 0x0000000000000004" ;;
esac
"""


def test_without_nvidia_smi_there_are_no_clocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AMD, or a container without it."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert read_clocks() is None


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to ask for."""
    from simserve.errors import UsageError

    torch: Any = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setattr(torch_device, "import_torch", lambda: torch)

    with pytest.raises(UsageError, match=r"PyTorch sees no GPU; try --device cpu"):
        open_device("cuda")


@pytest.mark.parametrize(
    ("uuid", "name"),
    [("60fe3ce0-aa5c-4c3b-8d5c-0123456789ab", "GPU-60fe3ce0-aa5c-4c3b-8d5c-0123456789ab"), ("", "0"), ("?", "0")],
)
def test_nvidia_smi_is_asked_for_the_gpu_that_is_measured(uuid: str, name: str) -> None:
    """It counts those that CUDA_VISIBLE_DEVICES hides too: by its identifier, where PyTorch knows that."""
    assert torch_device._smi_id(uuid) == name


def test_a_failed_capture_leaves_the_stream_as_it_was() -> None:
    """PyTorch's context manager does not, where its end fails too."""
    gpu = MadeUpGpu(RuntimeError("operation not permitted when stream is capturing"))
    device = gpu.device()

    time_call(gpu.launch, 3, device, target=0.03, deadline=math.inf)

    assert gpu.stream is gpu.torch.cuda.current_stream()
