"""PyTorch's matrix products and routed experts, in the number formats of the operator tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from simserve.calibrate.kernels.kernel import (
    CHECKED_COLUMNS,
    CHECKED_ROWS,
    Kernel,
    UnsupportedError,
    relative_error,
    spread_indices,
)
from simserve.calibrate.kernels.points import Point
from simserve.calibrate.kernels.torch_device import Tensor, TorchDevice

GROUP_SIZE = 128  # 4-bit weights that share a scale.
INNER_TILES = 8  # Tiles of 16 along k that the 4-bit kernel of PyTorch packs together.
SCALE = 0.01  # Scale of 4-bit and 8-bit weights.
FP8_MULTIPLE = 16  # Columns and reduction of an FP8 product must be multiples of this.
MIN_FP8_CAPABILITY = (8, 9)
MIN_INT4_CAPABILITY = (8, 0)

TOLERANCE = {"bfloat16": 0.02, "fp8": 0.03, "sq": 0.0, "int8_wo": 0.03, "int4_wo": 0.03}
"""Rounding of the result to BF16 is 0.4 %; FP8 may be accumulated in fewer bits, INT8 is exact."""

FP8_ACCUMULATION = 1.5e-5
"""Additional error allowed to an FP8 product on a GPU for each value in a fast sum: Hopper truncates its partial sums
to about 14 bits (DeepSeek-V3, arXiv 2412.19437, section 3.3.2). cuBLAS on an H200 was 0.022 off at 2,048 values, 0.048
at 4,096, 0.09 to 0.18 at 14,336. Layout and scale are checked on the same product summed exactly, without this."""


def product(point: Point, device: TorchDevice) -> Kernel:
    """Return a product ``y[m, n] = x[m, k] W[k, n]`` ready to run.

    Raises:
        UnsupportedError: The device or PyTorch has no such product.
    """
    sizes = point.sizes
    m, n, k = (int(sizes[name]) for name in ("m", "n", "k"))
    return _PRODUCTS[str(sizes["gemm_dtype"])](device, m, n, k)


def _bfloat16(device: TorchDevice, m: int, n: int, k: int) -> Kernel:
    torch = device.torch
    x = device.fresh(torch.bfloat16, (m, k))
    copies = device.num_copies(2.0 * n * k)
    linear = _engine_linear(device) or linear_of(torch, is_plain=device.is_cuda)
    weights = [linear.laid_out(device.random(torch.bfloat16, (n, k), copy)) for copy in range(copies)]

    def call(copy: int) -> Tensor:
        return linear.multiply(x, weights[copy])

    return _kernel(call, copies, lambda: (x, device.random(torch.bfloat16, (n, k))), "bfloat16", linear.source)


@dataclass(frozen=True, slots=True)
class Linear:
    """How a device multiplies by BF16 weights."""

    laid_out: Callable[[Tensor], Tensor]
    """Weights ``[n, k]`` -> the same in their memory layout; once, before anything is timed."""
    multiply: Callable[[Tensor, Tensor], Tensor]  # Inputs ``[m, k]`` and weights in that layout -> ``[m, n]``.
    source: str  # Whose kernel.


def linear_of(torch: Any, *, is_plain: bool) -> Linear:
    """Return how engines multiply: on a CPU by weights that oneDNN has packed once.

    PyTorch's own ``linear`` packs them in each call, which costs a short product more than its arithmetic. vLLM packs
    them once at the start (0.32 ``model_executor/layers/utils.py``, ``create_onednn_mm``), as PyTorch's compiler does
    with frozen weights, whose operators are used here.

    Args:
        is_plain: Whether weights keep their layout: on a GPU, and in 32 bits.
    """
    if is_plain or not _has_laid_out_weights(torch):
        return Linear(lambda weight: weight, torch.nn.functional.linear, "torch linear")

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    return Linear(torch.ops.mkldnn._reorder_linear_weight, multiply, "torch linear, weights laid out once")


def _engine_linear(device: TorchDevice) -> Linear | None:
    """Return how the engine of the device multiplies, or None if there is no engine or it has no such products."""
    engine = device.engine
    if engine is None or not engine.has_products:
        return None
    return Linear(engine.laid_out, engine.multiply, f"{engine.name} onednn_mm, weights laid out once")


def _has_laid_out_weights(torch: Any) -> bool:
    operators = torch.ops.mkldnn
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    return bool(
        torch.backends.mkldnn.is_available()
        and all(hasattr(operators, name) for name in names)
        and operators._is_mkldnn_bf16_supported()
    )


def _fp8(device: TorchDevice, m: int, n: int, k: int) -> Kernel:
    """FP8 with one scale per tensor; the rounding of the inputs is timed too, as in the operator tables.

    Values are drawn so that their scale is 1: the cast moves as many bytes as a scaled one would. It uses Hopper's fast
    accumulation, as the CUTLASS kernels of engines do; the same product is first checked with the exact one.
    """
    torch = device.torch
    _need_capability(device, MIN_FP8_CAPABILITY, "FP8 products")
    if not hasattr(torch, "_scaled_mm"):
        raise UnsupportedError("this PyTorch has no _scaled_mm")
    if n % FP8_MULTIPLE or k % FP8_MULTIPLE:
        raise UnsupportedError(f"FP8 products need widths in multiples of {FP8_MULTIPLE}")
    x = device.fresh(torch.bfloat16, (m, k))
    one = torch.ones((), dtype=torch.float32, device=device.kind)
    copies = device.num_copies(1.0 * n * k)
    narrow = torch.float8_e4m3fn

    def product_of(copy: int, *, is_fast: bool) -> Tensor:
        weight = device.random(narrow, (n, k), copy).t()
        given = x.to(narrow)
        return torch._scaled_mm(
            given, weight, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=is_fast
        )

    def kernel(*, is_fast: bool) -> Kernel:
        call = partial(product_of, is_fast=is_fast)
        return _kernel(call, copies, lambda: (x.to(narrow), device.random(narrow, (n, k))), "fp8", "torch _scaled_mm")

    exact = kernel(is_fast=False)
    if not device.is_cuda:
        return exact
    fast = kernel(is_fast=True)
    return replace(fast, error=lambda: max(exact.error(), fast.error() - FP8_ACCUMULATION * k))


def _int8(device: TorchDevice, m: int, n: int, k: int) -> Kernel:
    torch = device.torch
    if not hasattr(torch, "_int_mm"):
        raise UnsupportedError("this PyTorch has no _int_mm")
    x = device.fresh(torch.int8, (m, k))
    copies = device.num_copies(1.0 * n * k)

    def call(copy: int) -> Tensor:
        return torch._int_mm(x, device.random(torch.int8, (n, k), copy).t())

    return _kernel(call, copies, lambda: (x, device.random(torch.int8, (n, k))), "sq", "torch _int_mm")


def _int8_weights(device: TorchDevice, m: int, n: int, k: int) -> Kernel:
    torch = device.torch
    if device.is_cuda:
        raise UnsupportedError("PyTorch's kernel of 8-bit weights is a plain loop on a GPU, as no engine runs")
    if not hasattr(torch.ops.aten, "_weight_int8pack_mm"):
        raise UnsupportedError("this PyTorch has no _weight_int8pack_mm")
    x = device.fresh(torch.bfloat16, (m, k))
    scales = torch.full((n,), SCALE, dtype=torch.bfloat16, device=device.kind)
    copies = device.num_copies(1.0 * n * k)

    def call(copy: int) -> Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, device.random(torch.int8, (n, k), copy), scales)

    def inputs() -> tuple[Tensor, Tensor]:
        return x, device.random(torch.int8, (n, k)).double() * scales[0].double()

    return _kernel(call, copies, inputs, "int8_wo", "torch _weight_int8pack_mm")


def _int4_weights(device: TorchDevice, m: int, n: int, k: int) -> Kernel:
    """4-bit weights in groups of 128 that the kernel unpacks to BF16 ("tinygemm")."""
    torch = device.torch
    _need_capability(device, MIN_INT4_CAPABILITY, "4-bit products")
    if k % GROUP_SIZE or n % 16:
        raise UnsupportedError(f"the 4-bit kernel needs k in whole groups of {GROUP_SIZE} and n in 16")
    x = device.fresh(torch.bfloat16, (m, k))
    codes = device.integers(16, (n, k), seed=4)
    packed, multiply, source = _packed(device, codes)
    scales = torch.full((k // GROUP_SIZE, n, 2), SCALE, dtype=torch.bfloat16, device=device.kind)
    copies = min(device.num_copies(0.5 * n * k), 32)
    weights = [packed.clone() for _ in range(copies)]

    def call(copy: int) -> Tensor:
        return multiply(x, weights[copy], GROUP_SIZE, scales)

    def inputs() -> tuple[Tensor, Tensor]:
        rows = torch.tensor(spread_indices(n, CHECKED_COLUMNS), device=device.kind)
        scale = scales[0, 0, 0].double()
        return x, (rows, (codes[rows].double() - 8.0) * scale + scale)

    return _kernel(call, copies, inputs, "int4_wo", source)


def _packed(device: TorchDevice, codes: Tensor) -> tuple[Tensor, Callable[..., Tensor], str]:
    """Return 4-bit codes in the layout of the device's kernel, the kernel and its name."""
    aten = device.torch.ops.aten
    if not device.is_cuda:
        if not hasattr(aten, "_weight_int4pack_mm_for_cpu"):
            raise UnsupportedError("this PyTorch has no _weight_int4pack_mm_for_cpu")
        packed = aten._convert_weight_to_int4pack_for_cpu(codes, INNER_TILES)
        return packed, aten._weight_int4pack_mm_for_cpu, "torch _weight_int4pack_mm_for_cpu"
    if not hasattr(aten, "_weight_int4pack_mm"):
        raise UnsupportedError("this PyTorch has no _weight_int4pack_mm")
    high, low = codes.unflatten(-1, (-1, 2)).unbind(-1)
    pairs = (high << 4 | low).to(device.torch.uint8)
    return aten._convert_weight_to_int4pack(pairs, INNER_TILES), aten._weight_int4pack_mm, "torch _weight_int4pack_mm"


def _need_capability(device: TorchDevice, least: tuple[int, int], what: str) -> None:
    if device.is_cuda and device.torch.cuda.get_device_capability(0) < least:
        raise UnsupportedError(f"{what} need compute capability {least[0]}.{least[1]}")


def _kernel(
    call: Callable[[int], Tensor], copies: int, inputs: Callable[[], tuple[Tensor, Any]], dtype: str, source: str
) -> Kernel:
    """Return the kernel with its check: some rows and columns of the result, summed in float64.

    ``inputs`` returns x and the weights, or x and a pair: the row indices of the weights to check, and those rows.
    """

    def error() -> float:
        result = call(0)
        x, weights = inputs()
        if isinstance(weights, tuple):
            columns, picked = weights
        else:
            columns = spread_indices(weights.shape[0], CHECKED_COLUMNS)
            picked = weights[columns]
        rows = spread_indices(x.shape[0], CHECKED_ROWS)
        truth = x[rows].double() @ picked.double().t()
        return relative_error(result[rows][:, columns], truth)

    return Kernel(call=call, copies=copies, error=error, tolerance=TOLERANCE[dtype], source=source)


_PRODUCTS: dict[str, Callable[[TorchDevice, int, int, int], Kernel]] = {
    "bfloat16": _bfloat16,
    "fp8": _fp8,
    "sq": _int8,
    "int8_wo": _int8_weights,
    "int4_wo": _int4_weights,
}


def experts(point: Point, device: TorchDevice) -> Kernel:
    """Return the routed experts of one layer: sorting, both grouped products, activation, weighted sum.

    Tokens are spread evenly over the experts, in random order (``distribution: balanced``); where they do not need all
    experts, the next call takes the next ones, whose weights are in no cache.

    Raises:
        UnsupportedError: This PyTorch has no grouped product.
    """
    torch, sizes = device.torch, point.sizes
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if grouped is None:
        raise UnsupportedError("this PyTorch has no grouped_mm")
    tokens, hidden, width, topk, count, ups = (
        int(sizes[name])
        for name in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "up_projections")
    )
    x = device.fresh(torch.bfloat16, (tokens, hidden))
    up = device.random(torch.bfloat16, (count, hidden, ups * width), 0)
    down = device.random(torch.bfloat16, (count, width, hidden), ups)  # beyond the other weights
    generator = torch.Generator(device="cpu").manual_seed(tokens)
    order = torch.randperm(count, generator=generator)
    copies = min(device.num_copies(point.num_bytes), max(count // (tokens * topk), 1))
    places_of = torch.arange(copies * tokens * topk).view(copies, tokens, topk)
    chosen = device.placed(order[places_of % count])
    share = torch.full((tokens, topk), 1.0 / topk, dtype=torch.bfloat16, device=device.kind)

    ones = torch.ones(tokens * topk, dtype=torch.int32, device=device.kind)

    def activated(value: Tensor) -> Tensor:
        if ups == 1:
            return torch.nn.functional.silu(value)
        gate, other = value.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * other

    def call(copy: int) -> Tensor:
        flat = chosen.select(0, copy).reshape(-1)
        places = torch.argsort(flat, stable=True)
        used = torch.zeros(count, dtype=torch.int32, device=device.kind).scatter_add_(0, flat, ones)
        ends = torch.cumsum(used, 0, dtype=torch.int32)
        inner = activated(grouped(x.index_select(0, places // topk) * (1.0 / hidden**0.5), up, offs=ends))
        result = torch.empty((tokens * topk, hidden), dtype=torch.bfloat16, device=device.kind)
        result.index_copy_(0, places, grouped(inner * (1.0 / width**0.5), down, offs=ends))
        return (result.view(tokens, topk, hidden) * share.unsqueeze(-1)).sum(dim=1)

    def error() -> float:
        rows = spread_indices(tokens, 2)
        truth = torch.zeros((len(rows), hidden), dtype=torch.float64, device=device.kind)
        for place, row in enumerate(rows):
            for expert in chosen[0, row].tolist():
                inner = activated((x[row].double() / hidden**0.5) @ up[expert].double())
                truth[place] += (inner / width**0.5) @ down[expert].double() / topk
        return relative_error(call(0)[rows], truth)

    return Kernel(call=call, copies=copies, error=error, tolerance=0.05, source="torch grouped_mm")
