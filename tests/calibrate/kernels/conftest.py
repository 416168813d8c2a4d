"""The CPU as a device with few random data, so that a test takes moments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simserve.calibrate.kernels import torch_device


@pytest.fixture(scope="session")
def torch() -> Iterator[Any]:
    """Return PyTorch on one thread; tests skip without it."""
    module = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'simserve[calibrate]'")
    threads = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(threads)


@pytest.fixture
def cpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> torch_device.TorchDevice:
    """Return the CPU with a small pool and a small cache."""
    monkeypatch.setitem(torch_device.MAX_POOL_BYTES, "cpu", 64e6)
    device = torch_device.open_device("cpu")
    device.cache_bytes = 2e6
    return device
