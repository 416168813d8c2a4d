"""A whole transformer layer, and the host's time to launch a kernel: how far operators add up to a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simserve.calibrate.kernels.elementwise import rotary_angles, rotated
from simserve.calibrate.kernels.kernel import Kernel, relative_error, spread_indices
from simserve.calibrate.kernels.points import Point
from simserve.calibrate.kernels.products import linear_of
from simserve.calibrate.kernels.timing import Timing, summarise
from simserve.calibrate.kernels.torch_device import Tensor, TorchDevice
from simserve.profiles.model import ModelProfile

EPSILON = 1e-5
TOLERANCE = 0.05  # Four products, each rounded to BF16.
LAUNCHES = 500  # Launches that are timed together; a GPU queues about a thousand before the host waits.


@dataclass(frozen=True, slots=True)
class _Weights:
    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


def layer(point: Point, device: TorchDevice, model: ModelProfile) -> Kernel:
    """Return one dense layer (pre-norm, rotary embedding, attention, MLP): a decode step of a batch, or one prompt.

    The weights of the norms are small, so that products of normal values stay in attention's range.
    """
    torch, sizes = device.torch, point.sizes
    batch, length, is_decode = int(sizes["batch_size"]), int(sizes["length"]), sizes["phase"] == "decode"
    tokens = batch if is_decode else length
    hidden, heads, kv_heads, width = (
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
    )
    inner, ups = model.intermediate_size, 2 if model.is_gated_mlp else 1
    wide = heads * width
    functional = torch.nn.functional
    x = device.fresh(torch.bfloat16, (tokens, hidden))
    norms = torch.full((hidden,), hidden**-0.5, dtype=torch.bfloat16, device=device.kind)
    cosine, sine = rotary_angles(device, tokens, width)
    shapes = (((heads + 2 * kv_heads) * width, hidden), (hidden, wide), (ups * inner, hidden), (hidden, inner))
    copies = device.num_copies(2.0 * sum(rows * columns for rows, columns in shapes))
    cache = device.keys_and_values(torch.bfloat16, (batch, kv_heads, length, width)) if is_decode else ()

    linear = linear_of(torch, is_plain=device.is_cuda)

    def weights(copy: int, laid_out: Callable[[Tensor], Tensor]) -> _Weights:
        return _Weights(*(laid_out(device.random(torch.bfloat16, shape, copy)) for shape in shapes))

    kept = [weights(copy, linear.laid_out) for copy in range(copies)]

    def attended(qkv: Tensor) -> Tensor:
        turned, value = qkv.split((wide + kv_heads * width, kv_heads * width), dim=-1)
        heads_of = turned.reshape(tokens, -1, width)
        turned = rotated(device, heads_of, cosine.to(qkv.dtype), sine.to(qkv.dtype)).view(tokens, -1)
        query, key = turned.split((wide, kv_heads * width), dim=-1)
        if is_decode:
            grouped = query.reshape(batch, kv_heads, heads // kv_heads, width)
            keys, values = (each.to(qkv.dtype) for each in cache)
            return functional.scaled_dot_product_attention(grouped, keys, values).reshape(batch, wide)
        query, key, value = (each.reshape(1, tokens, -1, width).transpose(1, 2) for each in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=heads != kv_heads)
        return mixed.transpose(1, 2).reshape(tokens, wide)

    def through(given: Tensor, w: _Weights, norm: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        state = functional.rms_norm(given, (hidden,), norm, EPSILON)
        qkv = multiply(state, w.qkv)
        given = given + multiply(attended(qkv), w.output)
        state = multiply(functional.rms_norm(given, (hidden,), norm, EPSILON), w.gate_up)
        if ups == 2:
            gate, up = state.chunk(2, dim=-1)
            state = functional.silu(gate) * up
        else:
            state = functional.gelu(state)
        return given + multiply(state, w.down)

    def call(copy: int) -> Tensor:
        return through(x, kept[copy], norms, linear.multiply)

    def error() -> float:
        wide = weights(0, lambda value: value.double())
        truth = through(x.double(), wide, norms.double(), functional.linear)
        rows = spread_indices(tokens, 8)
        return relative_error(call(0)[rows], truth[rows])

    mode = None if sizes["mode"] == "graph" else "events"
    return Kernel(call=call, copies=copies, error=error, tolerance=TOLERANCE, source="torch layer", mode=mode)


def launch_seconds(point: Point, device: TorchDevice, target: float) -> Timing:
    """Return the host's seconds for one launch: of a small kernel, or of a CUDA graph with one kernel."""
    value = device.fresh(device.torch.bfloat16, (16,))

    def eager() -> Tensor:
        return value.mul_(-1.0)

    run: Callable[[], Any] = _graph_of(eager, device).replay if point.sizes["mode"] == "graph" else eager
    for _ in range(10):
        run()
    device.synchronize()
    samples: list[float] = []
    begin = time.perf_counter()
    while len(samples) < 3 or (time.perf_counter() - begin < target and len(samples) < 50):
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            run()
        samples.append((time.perf_counter() - start) / LAUNCHES)
        device.synchronize()
    return summarise(samples, "clock")


def _graph_of(launch: Callable[[], Any], device: TorchDevice) -> Any:
    torch = device.torch
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph
