"""Every kernel of a GPU on tensors without memory: shapes, dtypes and strides are checked by PyTorch's own rules.

PyTorch's fake tensors run each operator's checks as it registers them for CUDA, on a build for CPUs too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simserve.calibrate.kernels import attention, layer, points, products
from simserve.calibrate.kernels.kernel import Kernel, UnsupportedError
from simserve.calibrate.kernels.measure import _KERNELS
from simserve.calibrate.kernels.points import Point, plan_points
from simserve.calibrate.kernels.torch_device import TooLargeError, TorchDevice
from simserve.profiles.catalog import load_model

H200_BYTES = 150e9


@pytest.fixture
def gpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchDevice]:
    """Return an H200 whose tensors have no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def drawn(_: TorchDevice, dtype: Any, count: int) -> Any:
        return torch.empty(count, dtype=dtype, device="cuda")

    def integers(_: TorchDevice, __: int, shape: tuple[int, ...], seed: int) -> Any:
        return torch.empty(shape, dtype=torch.int32, device="cuda")

    monkeypatch.setattr(TorchDevice, "_drawn", drawn)
    monkeypatch.setattr(TorchDevice, "integers", integers)

    def placed(_: TorchDevice, values: Any) -> Any:
        return torch.empty(values.shape, dtype=values.dtype, device="cuda")

    monkeypatch.setattr(TorchDevice, "placed", placed)
    monkeypatch.setattr(TorchDevice, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **__: 1)
    device = TorchDevice(torch, "cuda", "NVIDIA H200", 50e6, H200_BYTES, 132, "9.0", "FA3")
    with FakeTensorMode():
        yield device


def built(point: Point, device: TorchDevice) -> Kernel:
    """Return a kernel."""
    if point.table == points.LAYER:
        return layer.layer(point, device, load_model(str(point.sizes["model"])))
    return _KERNELS[point.table](point, device)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_every_planned_call_passes_the_checks_of_its_operator(gpu: TorchDevice, name: str) -> None:
    """Both ends of every kind and format, and some between; the result has the shape of the call on the GPU."""
    skipped: dict[str, str] = {}
    kinds: set[str] = set()
    for point in some(plan_points([load_model(name)])):
        kind = f"{point.table} {point.sizes.get('gemm_dtype', '')}".strip()
        try:
            kernel = built(point, gpu)
            result = kernel.call(kernel.copies - 1)
        except (UnsupportedError, TooLargeError) as reason:
            skipped[str(reason)] = kind
            continue
        kinds.add(kind)
        found = result.values if hasattr(result, "values") and not hasattr(result, "device") else result
        assert found.device.type == "cuda"
        assert found.shape[0] == rows_of(point), point
        if point.table == points.GEMM:
            assert found.shape[1] == point.sizes["n"]
            assert found.dtype == (gpu.torch.int32 if point.sizes["gemm_dtype"] == "sq" else gpu.torch.bfloat16)

    assert {"gemm_perf bfloat16", "gemm_perf fp8", "gemm_perf sq", "gemm_perf int4_wo"} <= kinds
    assert {points.PREFILL, points.DECODE, points.ELEMENTWISE} <= kinds
    assert (points.MOE in kinds) == (load_model(name).moe is not None)
    assert all("plain loop on a GPU" in why or "multiples of 16" in why or "n in 16" in why for why in skipped)
    assert "gemm_perf int8_wo" not in kinds


def some(planned: list[Point]) -> list[Point]:
    """Return the first calls of every table and format, which span its sizes, and the last."""
    chosen: dict[tuple[Any, ...], list[Point]] = {}
    for point in planned:
        if point.table not in (points.COPY, points.LAUNCH, *points.COLLECTIVES):  # copy_ wants a real device
            sizes = point.sizes
            kind = (point.table, sizes.get("gemm_dtype"), sizes.get("op_name"), sizes.get("phase"))
            chosen.setdefault(kind, []).append(point)
    return [point for group in chosen.values() for point in (*group[:4], group[-1])]


def rows_of(point: Point) -> int:
    """Return the length of the first dimension of a result."""
    sizes = point.sizes
    if point.table == points.LAYER:
        return int(sizes["batch_size"] if sizes["phase"] == "decode" else sizes["length"])
    return int(next(sizes[name] for name in ("m", "batch_size", "num_tokens", "bytes") if name in sizes))


def test_pages_are_taken_first(gpu: TorchDevice) -> None:
    """FlashAttention-3 over a block table, with keys and values apart."""
    point = next(point for point in plan_points([load_model("llama-3.1-8b")]) if point.table == points.DECODE)

    assert attention.decodes(point, gpu).source == "torch varlen_attn (FA3), paged KV"


def test_weights_of_experts_share_no_memory_and_rotate(gpu: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second product reads what the first left alone; a call of few experts is followed by one of others."""
    seen: list[int] = []
    drawn = TorchDevice.random

    def watched(device: TorchDevice, dtype: Any, shape: tuple[int, ...], copy: int = 0) -> Any:
        found = drawn(device, dtype, shape, copy)
        seen.extend((found.storage_offset(), found.storage_offset() + found.numel()))
        return found

    monkeypatch.setattr(TorchDevice, "random", watched)
    planned = plan_points([load_model("qwen3-30b-a3b")])
    point = next(
        point
        for point in planned
        if point.table == points.MOE and point.sizes["num_tokens"] == 1 and point.sizes["num_experts"] == 128
    )

    kernel = products.experts(point, gpu)

    first, second = sorted([(seen[0], seen[1]), (seen[2], seen[3])])
    assert first[1] <= second[0]
    assert kernel.copies > 1


def test_attention_over_packed_contexts_runs_without_a_flag_that_older_pytorch_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch 2.11 takes grouped heads without ``enable_gqa``."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    asked: list[dict[str, Any]] = []

    def older(query: Any, key: Any, value: Any, *ends: Any, scale: float | None = None) -> str:
        del key, value, ends
        asked.append({"scale": scale})
        return f"{query} attended"

    monkeypatch.setattr(varlen, "varlen_attn", older)
    attention.packed_attention.cache_clear()
    try:
        assert attention.packed_attention()("q", "k", "v", 0, 0, 1, 8, enable_gqa=True) == "q attended"
    finally:
        attention.packed_attention.cache_clear()
    assert asked == [{"scale": None}]
