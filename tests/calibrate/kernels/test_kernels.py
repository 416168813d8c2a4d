"""Every kernel gives the result of its float64 reference, and one that does not is caught."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from simserve.calibrate.kernels import attention, elementwise, layer, points, products
from simserve.calibrate.kernels.kernel import Kernel, UnsupportedError, relative_error, spread_indices
from simserve.calibrate.kernels.points import Point, plan_points
from simserve.calibrate.kernels.timing import time_call
from simserve.calibrate.kernels.torch_device import TooLargeError, TorchDevice
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile

SMALL = load_model("qwen2.5-0.5b")
SPARSE = load_model("qwen3-30b-a3b")


def small(model: ModelProfile, table: str, **columns: Any) -> Point:
    """Return the first planned point of a table with these columns."""
    for point in plan_points([model]):
        if point.table == table and all(point.sizes.get(name) == value for name, value in columns.items()):
            return point
    raise AssertionError(columns)


def narrowed(model: ModelProfile) -> ModelProfile:
    """Return a model of the same kind, small enough for a test."""
    changed: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000}
    changed |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    if model.moe is not None:
        moe = model.moe.model_copy(update={"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64})
        changed["moe"] = moe
    return model.model_copy(update=changed)


@pytest.mark.parametrize("m", [1, 32])
@pytest.mark.parametrize("dtype", list(points.FORMATS))
def test_products_are_right_in_every_format(cpu: TorchDevice, dtype: str, m: int) -> None:
    """Against dot products in float64 of the numbers as they were rounded."""
    kernel = products.product(Point(table=points.GEMM, sizes=_product(dtype, m), flops=0.0, num_bytes=0.0), cpu)

    assert 0.0 <= kernel.error() <= kernel.tolerance
    assert kernel.call(1 % kernel.copies).shape == (m, 256)


def test_a_cpu_multiplies_by_weights_that_were_laid_out_once(cpu: TorchDevice) -> None:
    """As engines do: the layout is oneDNN's own, and the product that of the plain weights."""
    torch = cpu.torch
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no products in BF16")
    linear, plain = (products.linear_of(torch, is_plain=is_plain) for is_plain in (False, True))
    x, weight = (cpu.random(torch.bfloat16, shape) for shape in ((8, 512), (256, 512)))
    laid_out = linear.laid_out(weight)

    result = linear.multiply(x, laid_out)

    assert laid_out.is_mkldnn
    assert linear.source != plain.source
    assert plain.laid_out(weight) is weight
    assert relative_error(result, plain.multiply(x, weight)) < products.TOLERANCE["bfloat16"]


def _product(dtype: str, m: int) -> dict[str, Any]:
    return {"gemm_dtype": dtype, "m": m, "n": 256, "k": 512}


@pytest.mark.parametrize(
    ("fast", "exact", "is_right"),
    [(0.95, 1.0, True), (0.8, 1.0, False), (1.9, 2.0, False), (0.95, 0.95, False)],
    ids=["fewer bits", "too few", "wrong scale", "wrong though exact"],
)
def test_fast_accumulation_is_allowed_for_and_nothing_else(
    cpu: TorchDevice, monkeypatch: pytest.MonkeyPatch, fast: float, exact: float, is_right: bool
) -> None:
    """What cuBLAS was off on an H200 for 4,096 values counts as right, where the product summed exactly is."""
    real = cpu.torch._scaled_mm

    def hopper(*inputs: Any, use_fast_accum: bool, **rest: Any) -> Any:
        return real(*inputs, use_fast_accum=False, **rest) * (fast if use_fast_accum else exact)

    monkeypatch.setattr(cpu.torch, "_scaled_mm", hopper)
    monkeypatch.setattr(TorchDevice, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(products, "_need_capability", lambda *_: None)
    sizes = {"gemm_dtype": "fp8", "m": 4, "n": 64, "k": 4096}
    kernel = products.product(Point(table=points.GEMM, sizes=sizes, flops=0.0, num_bytes=0.0), cpu)

    assert (kernel.error() <= kernel.tolerance) == is_right


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("table", "length", "build"),
    [(points.PREFILL, {"isl": 40}, attention.prompts), (points.DECODE, {"step": 39}, attention.decodes)],
)
def test_attention_is_right(cpu: TorchDevice, table: str, length: dict[str, int], build: Any, batch: int) -> None:
    """Causal, grouped heads, ragged contexts behind a mask."""
    heads = {"num_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "window_size": 0, "kv_cache_dtype": "bfloat16"}
    kernel = build(Point(table=table, sizes={"batch_size": batch, **length, **heads}, flops=0, num_bytes=1e4), cpu)

    assert 0.0 < kernel.error() <= kernel.tolerance


HEADS = {"num_heads": 6, "num_key_value_heads": 2, "head_dim": 32}


def attended(torch: Any, query: Any, keys: Any, values: Any) -> Any:
    """Return what one query of each head makes of keys and values, ``[tokens, heads, width]``."""
    turned = (each.transpose(0, 1)[None] for each in (keys, values))
    result = torch.nn.functional.scaled_dot_product_attention(query[None, :, None], *turned, enable_gqa=True)
    return result[0, :, 0]


@pytest.mark.parametrize("batch", [1, 5])
def test_paged_attention_reads_the_pages_of_its_table(
    cpu: TorchDevice, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Ragged contexts over shuffled pages, against a kernel that gathers them."""
    torch = cpu.torch

    def gathering(
        query: Any, key: Any, value: Any, *given: Any, seqused_k: Any, block_table: Any, enable_gqa: bool
    ) -> Any:
        ends, no_keys, one, longest = given
        assert (no_keys, one, enable_gqa, longest) == (None, 1, True, int(seqused_k.max()))
        assert ends.tolist() == list(range(batch + 1))
        rows = []
        for row, used in enumerate(seqused_k.tolist()):
            pages = (each[block_table[row].long()].flatten(0, 1)[:used] for each in (key, value))
            rows.append(attended(torch, query[row], *pages))
        return torch.stack(rows)

    monkeypatch.setattr(attention, "packed_attention", lambda: gathering)
    point = Point(table=points.DECODE, sizes={"batch_size": batch, "step": 399, **HEADS}, flops=0, num_bytes=1e6)

    kernel = attention._paged(point, cpu)

    assert kernel.call(0).shape == (batch, 6, 32)
    assert 0.0 < kernel.error() <= kernel.tolerance


@pytest.mark.parametrize("batch", [1, 5])
def test_packed_attention_reads_the_contexts_between_its_ends(
    cpu: TorchDevice, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Ragged contexts one after another, against a kernel that slices them."""
    torch = cpu.torch

    def slicing(query: Any, key: Any, value: Any, *given: Any, enable_gqa: bool) -> Any:
        ends, key_ends, one, longest = given
        lengths = key_ends.diff().tolist()
        assert (one, enable_gqa, longest, sum(lengths)) == (1, True, max(lengths), 400 * batch)
        assert ends.tolist() == list(range(batch + 1))
        parts = zip(key.split(lengths), value.split(lengths), strict=True)
        return torch.stack([attended(torch, query[row], *part) for row, part in enumerate(parts)])

    monkeypatch.setattr(attention, "packed_attention", lambda: slicing)
    point = Point(table=points.DECODE, sizes={"batch_size": batch, "step": 399, **HEADS}, flops=0, num_bytes=1e6)

    kernel = attention._packed(point, cpu)

    assert 0.0 < kernel.error() <= kernel.tolerance


def test_a_gpu_takes_the_first_kernel_that_it_has(cpu: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paged, packed, padded: each is tried with one call."""
    point = Point(table=points.DECODE, sizes={"batch_size": 2, "step": 39, **HEADS}, flops=0, num_bytes=1e4)
    monkeypatch.setattr(TorchDevice, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(TorchDevice, "synchronize", lambda _: None)

    def refusing(*_: Any, **given: Any) -> Any:
        raise RuntimeError("paged KV requires FA3" if "block_table" in given else "no such kernel")

    monkeypatch.setattr(attention, "packed_attention", lambda: refusing)
    padded = attention.decodes(point, cpu)

    assert padded.source == "torch SDPA (FA2), padded KV"
    assert 0.0 < padded.error() <= padded.tolerance


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("name", list(points.LAUNCHES))
def test_memory_bound_kernels_are_right(cpu: TorchDevice, name: str, rows: int) -> None:
    """Norm, rotary embedding, activation, sampling."""
    point = small(narrowed(SMALL), points.ELEMENTWISE, op_name=name, m=rows)

    kernel = elementwise.elementwise(point, cpu)

    assert 0.0 < kernel.error() <= kernel.tolerance


def test_a_copy_is_a_copy(cpu: TorchDevice) -> None:
    """To the byte."""
    assert elementwise.copy(small(SMALL, points.COPY, bytes=4096), cpu).error() == 0.0


@pytest.mark.parametrize(("phase", "batch", "length"), [("decode", 8, 512), ("prefill", 1, 128)])
def test_a_layer_is_right(cpu: TorchDevice, phase: str, batch: int, length: int) -> None:
    """The whole of it, against the same layer in float64."""
    model = narrowed(SMALL)
    point = small(model, points.LAYER, phase=phase, batch_size=batch, length=length)

    kernel = layer.layer(point, cpu, model)

    assert 0.0 < kernel.error() <= kernel.tolerance


@pytest.mark.parametrize("tokens", [1, 16])
def test_routed_experts_are_right(cpu: TorchDevice, tokens: int) -> None:
    """Sorting, grouped products, activation, weighted sum, against a loop over experts."""
    point = small(narrowed(SPARSE), points.MOE, num_tokens=tokens)

    kernel = products.experts(point, cpu)

    assert 0.0 < kernel.error() <= kernel.tolerance


def test_a_missing_kernel_has_a_reason(cpu: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older PyTorch."""
    monkeypatch.delattr(cpu.torch, "_int_mm")

    with pytest.raises(UnsupportedError, match="no _int_mm"):
        products.product(Point(table=points.GEMM, sizes=_product("sq", 8), flops=0.0, num_bytes=0.0), cpu)


def test_copies_of_inputs_lie_apart_and_are_never_zero(cpu: TorchDevice) -> None:
    """So many that they outgrow the cache twice; the weights of each differ in address."""
    dtype = cpu.torch.bfloat16
    size = 64 * 1024

    count = cpu.num_copies(2.0 * size)
    addresses = {cpu.random(dtype, (64, 1024), copy).data_ptr() for copy in range(count)}

    assert count * 2 * size >= 2 * cpu.cache_bytes
    assert len(addresses) == count
    assert all(cpu.random(dtype, (64, 1024), copy).abs().sum() > 0 for copy in range(count))


def test_an_input_larger_than_the_pool_is_refused(cpu: TorchDevice) -> None:
    """And keys and values that could only share their memory."""
    held = int(cpu.pool_bytes // 2)

    with pytest.raises(TooLargeError, match="more than the pool"):
        cpu.random(cpu.torch.bfloat16, (held + 1,))
    with pytest.raises(TooLargeError, match="more than the pool"):
        cpu.keys_and_values(cpu.torch.bfloat16, (held // 2 + 1,))
    key, value = cpu.keys_and_values(cpu.torch.bfloat16, (1024,), copy=3)
    assert abs(key.data_ptr() - value.data_ptr()) >= 2048


def test_errors_are_relative_to_the_largest_value(torch: Any) -> None:
    """And infinite where a result is none."""
    truth = torch.tensor([1.0, -4.0])

    assert relative_error(torch.tensor([1.0, -4.4]), truth) == pytest.approx(0.1)
    assert relative_error(torch.tensor([1.0, math.nan]), truth) == math.inf
    assert spread_indices(100, 3) == [0, 50, 99]
    assert spread_indices(2, 3) == [0, 1]


def test_a_timing_is_of_one_call(cpu: TorchDevice) -> None:
    """Every copy is used in turn, and short calls are timed several at once."""
    seen: list[int] = []

    timing = time_call(seen.append, 3, cpu, target=0.002, deadline=math.inf)

    assert seen[:7] == [0, 1, 2, 0, 1, 2, 0]
    assert 0 < timing.low <= timing.seconds <= timing.high < 1e-3
    assert timing.mode == "clock"


def test_ragged_contexts_keep_their_mean() -> None:
    """So that a row says how many keys are read."""
    lengths = attention.ragged_lengths(9, 1000)

    assert sum(lengths) == 9000
    assert min(lengths) >= 500
    assert max(lengths) <= 1500
    assert len(set(lengths)) > 5
    assert attention.ragged_lengths(1, 7) == [7]


def test_a_kernel_keeps_what_it_was_built_with(cpu: TorchDevice) -> None:
    """Frozen, so that what was checked is what is timed."""
    kernel = elementwise.copy(small(SMALL, points.COPY, bytes=4096), cpu)

    assert isinstance(kernel, Kernel)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.copies = 3  # type: ignore[misc]
