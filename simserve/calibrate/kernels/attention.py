"""Attention over prompts and over the KV cache of decode steps, as PyTorch has it."""

from __future__ import annotations

import random
from typing import Any

from simserve.calibrate.kernels.kernel import Kernel, UnsupportedError, relative_error, spread_indices
from simserve.calibrate.kernels.points import Point
from simserve.calibrate.kernels.torch_device import Tensor, TorchDevice

TOLERANCE = 0.03
"""Scores and probabilities are rounded to BF16."""

PAGE = 256
"""Tokens of a page of the KV cache: what flash attention's paged kernels take on every GPU."""

SHORTEST_SHARE = 0.5
"""Shortest context of a ragged batch over the longest."""

CHECKED_HEADS = 4


def prompts(point: Point, device: TorchDevice) -> Kernel:
    """Return causal attention of several prompts of one length (SDPA: flash attention on a GPU)."""
    torch = device.torch
    batch, tokens, heads, kv_heads, width = _sizes(point, "isl")
    copies = min(device.num_copies(point.num_bytes), 16)
    query_shape, key_shape = (batch, heads, tokens, width), (batch, kv_heads, tokens, width)
    attend = torch.nn.functional.scaled_dot_product_attention
    is_grouped = heads != kv_heads

    def inputs(copy: int) -> list[Tensor]:
        shapes = (query_shape, key_shape, key_shape)
        return [device.random(torch.bfloat16, shape, 3 * copy + n) for n, shape in enumerate(shapes)]

    def call(copy: int) -> Tensor:
        query, key, value = inputs(copy)
        return attend(query, key, value, is_causal=True, enable_gqa=is_grouped)

    def error() -> float:
        result = call(0)
        query, key, value = inputs(0)
        last = batch - 1
        errors = []
        for head in spread_indices(heads, CHECKED_HEADS):
            kv_head = head * kv_heads // heads
            for row in spread_indices(tokens, 3):
                truth = _attended(
                    query[last, head, row], key[last, kv_head, : row + 1], value[last, kv_head, : row + 1]
                )
                errors.append(relative_error(result[last, head, row], truth))
        return max(errors)

    return Kernel(call=call, copies=copies, error=error, tolerance=TOLERANCE, source="torch SDPA")


def decodes(point: Point, device: TorchDevice) -> Kernel:
    """Return one decode step: paged KV with ragged contexts on a GPU that has the kernel, else padded KV and a mask.

    Paged contexts are ragged around the mean ``step + 1``. A padded kernel reads the padding too, so that there
    ``step + 1`` is the longest.
    """
    if device.is_cuda:
        try:
            return _paged(point, device)
        except UnsupportedError:
            pass
    return _padded(point, device)


def ragged_lengths(batch: int, mean: int) -> list[int]:
    """Return contexts of a batch, drawn around a mean that they keep; one alone has the mean."""
    generator = random.Random(batch * 1_000_003 + mean)
    spread = int(mean * (1.0 - SHORTEST_SHARE))
    drawn = [generator.randint(-spread, spread) for _ in range(batch // 2)]
    middle = [0] * (batch % 2)
    return [mean + each for each in (*drawn, *middle, *(-each for each in drawn))]


def _padded(point: Point, device: TorchDevice) -> Kernel:
    """A query row for every query head of a key-value head, so that keys are read once."""
    torch = device.torch
    batch, context, heads, kv_heads, width = _sizes(point, "step")
    copies = device.num_copies(point.num_bytes)
    key_shape = (batch, kv_heads, context, width)
    query = device.fresh(torch.bfloat16, (batch, kv_heads, heads // kv_heads, width))
    generator = random.Random(batch * 1_000_003 + context)
    lengths = [context] + [generator.randint(max(int(context * SHORTEST_SHARE), 1), context) for _ in range(batch - 1)]
    places = torch.arange(context, device=device.kind)
    mask = places[None, :] < torch.tensor(lengths, device=device.kind)[:, None]
    mask = mask[:, None, None, :].expand(batch, 1, heads // kv_heads, context)

    def call(copy: int) -> Tensor:
        key, value = (device.random(torch.bfloat16, key_shape, 2 * copy + n) for n in range(2))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def error() -> float:
        result = call(0)
        key, value = (device.random(torch.bfloat16, key_shape, n) for n in range(2))
        errors = []
        for row in spread_indices(batch, 3):
            for kv_head in spread_indices(kv_heads, 2):
                seen = slice(0, lengths[row])
                truth = _attended(query[row, kv_head, 0], key[row, kv_head, seen], value[row, kv_head, seen])
                errors.append(relative_error(result[row, kv_head, 0], truth))
        return max(errors)

    return Kernel(call=call, copies=copies, error=error, tolerance=TOLERANCE, source="torch SDPA, padded KV and mask")


def _paged(point: Point, device: TorchDevice) -> Kernel:
    """Flash attention over a block table (`torch.nn.attention.varlen`), contexts ragged."""
    torch = device.torch
    varlen_attn = _varlen(torch)
    batch, context, heads, kv_heads, width = _sizes(point, "step")
    lengths = ragged_lengths(batch, context)
    longest = max(lengths)
    pages_each = -(-longest // PAGE)
    num_pages = batch * pages_each
    page_shape = (num_pages, PAGE, kv_heads, width)
    copies = device.num_copies(point.num_bytes)
    query = device.fresh(torch.bfloat16, (batch, heads, width))
    generator = torch.Generator(device="cpu").manual_seed(context)
    table = torch.randperm(num_pages, generator=generator).to(torch.int32).view(batch, pages_each).to(device.kind)
    ends = torch.arange(batch + 1, dtype=torch.int32, device=device.kind)
    used = torch.tensor(lengths, dtype=torch.int32, device=device.kind)

    def call(copy: int) -> Tensor:
        key, value = (device.random(torch.bfloat16, page_shape, 2 * copy + n) for n in range(2))
        return varlen_attn(
            query, key, value, ends, None, 1, longest, seqused_k=used, block_table=table, enable_gqa=heads != kv_heads
        )

    def error() -> float:
        result = call(0)
        keys, values = (device.random(torch.bfloat16, page_shape, n) for n in range(2))
        errors = []
        for row in spread_indices(batch, 3):
            pages = table[row].long()
            key, value = (each[pages].reshape(-1, kv_heads, width)[: lengths[row]] for each in (keys, values))
            for head in spread_indices(heads, CHECKED_HEADS):
                kv_head = head * kv_heads // heads
                truth = _attended(query[row, head], key[:, kv_head], value[:, kv_head])
                errors.append(relative_error(result[row, head], truth))
        return max(errors)

    kernel = Kernel(call=call, copies=copies, error=error, tolerance=TOLERANCE, source="torch varlen_attn, paged KV")
    _try(kernel, device)
    return kernel


def _varlen(torch: Any) -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        raise UnsupportedError("this PyTorch has no varlen_attn") from None
    del torch
    return varlen_attn


def _try(kernel: Kernel, device: TorchDevice) -> None:
    """Run a kernel once, so that one which this GPU does not have gives way to another."""
    try:
        kernel.call(0)
        device.synchronize()
    except device.torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, NotImplementedError) as failure:
        raise UnsupportedError(str(failure).splitlines()[0]) from None


def _attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return one query's weighted values, in float64."""
    scores = key.double() @ query.double() / float(query.shape[-1]) ** 0.5
    return scores.softmax(dim=0) @ value.double()


def _sizes(point: Point, length: str) -> tuple[int, int, int, int, int]:
    """Return batch, length (keys of a decode step), heads, key-value heads and width of a call."""
    sizes = point.sizes
    tokens = int(sizes[length]) + (1 if length == "step" else 0)
    return (
        int(sizes["batch_size"]),
        tokens,
        int(sizes["num_heads"]),
        int(sizes["num_key_value_heads"]),
        int(sizes["head_dim"]),
    )
