"""Which kernels are measured, at which sizes, in which order. Knows models and sizes, no device and no PyTorch.

The order is coarse to fine: the first points of every operator span its sizes, later ones halve the gaps, and the
operators take turns. Wherever a measurement stops, its points are spread over all of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simserve.profiles.model import ModelProfile

GEMM, PREFILL, DECODE, MOE = "gemm_perf", "context_attention_perf", "generation_attention_perf", "moe_perf"
ELEMENTWISE, COPY, LAYER, LAUNCH = "elementwise_perf", "copy_perf", "layer_perf", "launch_perf"
ALL_REDUCE, POINT_TO_POINT = "custom_allreduce_perf", "point_to_point_perf"
COLLECTIVES = (ALL_REDUCE, POINT_TO_POINT)
TABLES = (GEMM, PREFILL, DECODE, MOE, ELEMENTWISE, COPY, LAYER, LAUNCH, *COLLECTIVES)
"""Tables of a run; `simserve.perf.measured` defines which of them a deployment reads."""

FORMATS: Mapping[str, tuple[float, float]] = {
    "bfloat16": (2.0, 2.0),
    "fp8": (1.0, 1.0),
    "sq": (1.0, 1.0),
    "int8_wo": (1.0, 2.0),
    "int4_wo": (4.125 / 8.0, 2.0),
}
"""Number format of a product, as operator tables name it -> bytes of a weight and of an input element."""

DECODE_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
CPU_ROWS = (3, 6, 12)  # Additional rows on a CPU, where no CUDA graph pads decode steps to a captured size.
CHUNK_ROWS = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384, 32768)
TOKENS = DECODE_ROWS + CHUNK_ROWS  # Rows of the products: decode steps, chunks and whole prompts.
CPU_TOKENS = tuple(sorted(CPU_ROWS + TOKENS))

SMALL_PRODUCTS = tuple((size, m) for size in (128, 256, 512, 1024) for m in (1, 4, 16, 64))
"""Square products, width and rows: so small that they show the fixed time of a call."""

MAX_SAMPLED_ROWS = 1024  # Most rows of the LM head and of sampling: sequences of a step, not tokens.
PROMPTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PROMPT_BATCHES = (1, 2, 4, 8, 16, 64, 128)
MAX_PROMPT_TOKENS = 32768

CONTEXTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
DECODE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MAX_DECODE_KEYS = 1 << 20

ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
ELEMENTWISE_BYTES: Mapping[str, float] = {
    "rms_norm": 4.0,
    "rotary": 20.0,
    "add": 6.0,
    "silu_and_mul": 10.0,
    "sampling": 18.0,
}
"""Memory-bound operator -> bytes it moves for each element of its width, summed over PyTorch's launches.

A norm reads and writes 16 bits; a residual reads two values and writes one. Rotary embedding is a product, a negation
of half, a concatenation, a product and a sum. Activation reads and writes, then reads both and writes. Sampling
widens to FP32, then takes the softmax and the maximum.
"""

LAUNCHES: Mapping[str, int] = {"rms_norm": 1, "rotary": 5, "add": 1, "silu_and_mul": 2, "sampling": 3}
"""Memory-bound operator -> number of launches."""

SAMPLING = "sampling"
SAMPLED_ROWS = tuple(1 << power for power in range(11))

COPY_BYTES = tuple(1 << power for power in range(12, 31))
SMALL_EXPERTS: Mapping[str, int] = {
    "hidden_size": 512,
    "inter_size": 128,
    "topk": 2,
    "num_experts": 16,
    "up_projections": 2,
}
MAX_SMALL_TOKENS = 64

MESSAGE_ELEMENTS = tuple(1 << power for power in range(9, 29))
FEW_TOKENS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 1024)
MANY_TOKENS = (2048, 3072, 4096, 5120, 6144, 7168, 8192, 9216, 10240, 12288, 14336, 16384, 18432, 20480)
EXPERT_TOKENS = FEW_TOKENS + MANY_TOKENS


FIRST = 20  # Points of every group that are measured before the rest of any group.
Size = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One call to measure."""

    table: str  # Table of the run that its row goes to.
    sizes: Mapping[str, Size]  # Columns that identify the call.
    flops: float  # Its floating point operations.
    num_bytes: float  # Least bytes it moves, read and written.
    memory: float = 0.0  # Bytes it needs on the device in addition to the shared pool.
    is_first: bool = False  # Whether a fit of its kind needs it; such points come before all others.

    @property
    def key(self) -> str:
        """Text that identifies the call."""
        return key_of(self.table, self.sizes)


def key_of(table: str, sizes: Mapping[str, Size]) -> str:
    """Return the text that identifies a call in a table."""
    return f"{table} {json.dumps(dict(sizes), sort_keys=True)}"


def plan_points(
    models: Sequence[ModelProfile],
    *,
    formats: Sequence[str] = tuple(FORMATS),
    num_devices: int = 1,
    has_graphs: bool = True,
) -> list[Point]:
    """Return every point of a measurement, coarse to fine.

    Args:
        models: Models whose layer shapes are measured, each unsharded on one rank.
        formats: Number formats of the products, of `FORMATS`.
        num_devices: GPUs; collectives need two.
        has_graphs: Whether whole layers are also captured in CUDA graphs, and batches padded to their sizes.
    """
    modes = ("eager", "graph") if has_graphs else ("eager",)
    copies = [
        Point(table=COPY, sizes={"bytes": size}, flops=0.0, num_bytes=2.0 * size, memory=2.0 * size)
        for size in COPY_BYTES
    ]
    groups = [copies, [Point(table=LAUNCH, sizes={"mode": mode}, flops=0.0, num_bytes=0.0) for mode in modes]]
    for model in models:
        groups += [_products(model, name, TOKENS if has_graphs else CPU_TOKENS) for name in formats]
        groups += [_prompts(model), _decodes(model), _elementwise(model), _layers(model, modes)]
        groups += [_experts(model)] if model.moe is not None else []
    if num_devices > 1:
        groups.append(_collectives(num_devices))
    return list(_once(_in_turn([[group[index] for index in refinement(len(group))] for group in groups])))


def _once(points: Iterable[Point]) -> Iterator[Point]:
    seen: set[str] = set()
    for point in points:
        if point.key not in seen:
            seen.add(point.key)
            yield point


def _in_turn(groups: Sequence[Sequence[Point]]) -> Iterator[Point]:
    """Yield the first points of every group in turn, as many as a fit needs, then the rest in proportion to length."""
    places = [
        (place if place < FIRST else FIRST + place / len(group), number, point)
        for number, group in enumerate(groups)
        for place, point in enumerate(group)
    ]
    for place, _, point in sorted(places, key=lambda each: each[:2]):
        yield replace(point, is_first=place < FIRST)


def refinement(count: int) -> list[int]:
    """Return 0..count-1 with the ends first, then the middle, then the middles of the remaining gaps, and so on.

    >>> refinement(5)
    [0, 4, 2, 1, 3]
    """
    if count <= 2:
        return list(range(count))
    order, gaps = [0, count - 1], [(0, count - 1)]
    while gaps:
        halves = []
        for low, high in gaps:
            if high - low > 1:
                middle = (low + high) // 2
                order.append(middle)
                halves += [(low, middle), (middle, high)]
        gaps = halves
    return order


def product_shapes(model: ModelProfile) -> list[tuple[int, int]]:
    """Return columns and reduction of the distinct products of a layer; the LM head last."""
    layers = {model.is_moe_layer(layer): layer for layer in range(model.num_hidden_layers)}
    gemms = list(model.attention_gemms(1))
    for layer in layers.values():
        gemms += model.mlp_gemms(layer, 1)
    shapes = dict.fromkeys((gemm.out_features, gemm.in_features) for gemm in gemms)
    return [*shapes, (model.lm_head_gemm(1).out_features, model.lm_head_gemm(1).in_features)]


def _products(model: ModelProfile, name: str, counts: Sequence[int]) -> list[Point]:
    shapes = product_shapes(model)
    head = [shapes[-1]] if name == "bfloat16" else []
    small = [_product(name, rows, size, size) for size, rows in SMALL_PRODUCTS]
    return small + [
        _product(name, tokens, n, k)
        for tokens in counts
        for n, k in [*shapes[:-1], *(head if tokens <= MAX_SAMPLED_ROWS else [])]
    ]


def work_of(table: str, sizes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the floating point operations of a call, and the least bytes that it moves, read and written.

    Args:
        table: Products, attention or experts.
        sizes: Columns that identify it: of one call, or of many as arrays.
    """
    if table == GEMM:
        m, n, k = (sizes[name] for name in ("m", "n", "k"))
        weight, element = FORMATS[str(sizes["gemm_dtype"])]
        return 2.0 * m * n * k, n * k * weight + m * (k * element + n * 2.0)
    if table == MOE:
        pairs, hidden = sizes["num_tokens"] * sizes["topk"], sizes["hidden_size"]
        weights = (sizes["up_projections"] + 1.0) * hidden * sizes["inter_size"]
        return 2.0 * pairs * weights, 2.0 * np.minimum(pairs, sizes["num_experts"]) * weights + 4.0 * pairs * hidden
    batch, heads, kv_heads, width = (
        sizes[name] for name in ("batch_size", "num_heads", "num_key_value_heads", "head_dim")
    )
    if table == DECODE:
        keys = batch * (sizes["step"] + 1.0)
        return 4.0 * heads * width * keys, 4.0 * kv_heads * width * keys + 4.0 * batch * heads * width
    rows = batch * sizes["isl"]
    return 2.0 * heads * width * rows * (sizes["isl"] + 1.0), 4.0 * rows * width * (heads + kv_heads)


def _product(name: str, m: int, n: int, k: int) -> Point:
    sizes: dict[str, Size] = {"gemm_dtype": name, "m": m, "n": n, "k": k}
    return _call(GEMM, sizes, work_of(GEMM, sizes)[1] + (2.0 if name == "bfloat16" else 12.0) * n * k)


def _call(table: str, sizes: Mapping[str, Size], memory: float) -> Point:
    flops, num_bytes = work_of(table, sizes)
    return Point(table=table, sizes=sizes, flops=flops, num_bytes=float(num_bytes), memory=memory)


def _heads(model: ModelProfile) -> dict[str, Size]:
    return {
        "num_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "window_size": 0,
        "kv_cache_dtype": "bfloat16",
    }


def _prompts(model: ModelProfile) -> list[Point]:
    if model.mla is not None:
        return []
    points = []
    for tokens, batch in itertools.product(PROMPTS, PROMPT_BATCHES):
        if batch * tokens <= MAX_PROMPT_TOKENS:
            sizes: dict[str, Size] = {"batch_size": batch, "isl": tokens, **_heads(model)}
            points.append(_call(PREFILL, sizes, 3.0 * work_of(PREFILL, sizes)[1]))
    return _by_work(points)


def _decodes(model: ModelProfile) -> list[Point]:
    if model.mla is not None:
        return []
    points = []
    for context, batch in itertools.product(CONTEXTS, DECODE_BATCHES):
        if batch * context <= MAX_DECODE_KEYS:
            sizes: dict[str, Size] = {"batch_size": batch, "step": context - 1, **_heads(model)}
            points.append(_call(DECODE, sizes, 8.0 * batch * context * model.num_key_value_heads * model.head_dim))
    return _by_work(points)


def _by_work(points: list[Point]) -> list[Point]:
    return sorted(points, key=lambda point: (point.flops, point.num_bytes))


def _elementwise(model: ModelProfile) -> list[Point]:
    """Return norms, rotary embedding, activation and sampling; ``kernels`` is the number of launches per call."""
    hidden = model.hidden_size
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    width = model.moe.moe_intermediate_size if model.moe is not None else model.intermediate_size
    widths = {
        "rms_norm": hidden,
        "add": hidden,
        "rotary": queries + keys,
        "silu_and_mul": width,
        SAMPLING: model.vocab_size,
    }
    points = [
        Point(
            table=ELEMENTWISE,
            sizes={"op_name": name, "m": rows, "width": wide, "head_dim": model.head_dim, "kernels": LAUNCHES[name]},
            flops=0.0,
            num_bytes=rows * wide * ELEMENTWISE_BYTES[name],
            memory=2.0 * rows * wide * ELEMENTWISE_BYTES[name],
        )
        for name, wide in widths.items()
        for rows in (SAMPLED_ROWS if name == SAMPLING else ROWS)
    ]
    return sorted(points, key=lambda point: point.num_bytes)


def _layers(model: ModelProfile, modes: Sequence[str]) -> list[Point]:
    """Return whole dense layers: they check that the operators add up and are not fitted."""
    if model.mla is not None or model.num_dense_layers == 0:
        return []
    layer = next(layer for layer in range(model.num_hidden_layers) if not model.is_moe_layer(layer))
    weights = sum(gemm.num_weights for gemm in (*model.attention_gemms(1), *model.mlp_gemms(layer, 1)))
    kv = 2.0 * model.num_key_value_heads * model.head_dim
    calls = [("decode", batch, context) for context in (512, 2048) for batch in (1, 8, 32, 128)]
    calls += [("prefill", 1, tokens) for tokens in (128, 512, 2048)]
    points = []
    for phase, batch, length in calls:
        tokens = batch if phase == "decode" else length
        pairs = batch * length if phase == "decode" else length * (length + 1) / 2.0
        activations = tokens * (4.0 * model.hidden_size + 3.0 * model.intermediate_size) * 2.0
        for mode in modes:
            points.append(
                Point(
                    table=LAYER,
                    sizes={"model": model.name, "phase": phase, "batch_size": batch, "length": length, "mode": mode},
                    flops=2.0 * tokens * weights + 4.0 * model.num_attention_heads * model.head_dim * pairs,
                    num_bytes=2.0 * weights + 2.0 * kv * batch * length + activations,
                    memory=10.0 * (weights + kv * batch * length) + 4.0 * activations,
                )
            )
    return _by_work(points)


def _experts(model: ModelProfile) -> list[Point]:
    """Return the routed experts of a model, and of a layer so small that its fixed time shows."""
    assert model.moe is not None
    moe = model.moe
    up, down = model.expert_gemms(1)
    sizes: dict[str, Size] = {
        "hidden_size": model.hidden_size,
        "inter_size": moe.moe_intermediate_size,
        "topk": moe.num_experts_per_tok,
        "num_experts": moe.num_experts,
        "up_projections": up.out_features // down.in_features,
    }
    small = [_routed(SMALL_EXPERTS, tokens) for tokens in EXPERT_TOKENS if tokens <= MAX_SMALL_TOKENS]
    return small + [_routed(sizes, tokens) for tokens in EXPERT_TOKENS]


def _routed(layer: Mapping[str, Size], tokens: int) -> Point:
    hidden, width, topk, count, ups = (
        int(layer[name]) for name in ("hidden_size", "inter_size", "topk", "num_experts", "up_projections")
    )
    weights, pairs = (ups + 1) * hidden * width, tokens * topk
    ranks: dict[str, Size] = {"moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced"}
    sizes: dict[str, Size] = {"moe_dtype": "bfloat16", "num_tokens": tokens, **layer, **ranks}
    return _call(MOE, sizes, 2.0 * count * weights + 12.0 * pairs * (hidden + ups * width))


def _collectives(num_devices: int) -> list[Point]:
    points = []
    for elements in MESSAGE_ELEMENTS:
        size = 2.0 * elements
        for ranks in (2**power for power in range(1, num_devices.bit_length()) if 2**power <= num_devices):
            sizes = {"allreduce_dtype": "bfloat16", "num_gpus": ranks, "message_size": elements}
            points.append(Point(table=ALL_REDUCE, sizes=sizes, flops=0.0, num_bytes=2.0 * size, memory=size))
        sizes = {"dtype": "bfloat16", "num_gpus": 2, "message_size": elements}
        points.append(Point(table=POINT_TO_POINT, sizes=sizes, flops=0.0, num_bytes=2.0 * size, memory=size))
    return points
