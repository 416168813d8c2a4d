"""Attention over prompts and over the KV cache of decode steps, by PyTorch or, on a CPU, by its engine."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from simserve.calibrate.kernels.cpu_engine import CpuEngine, Heads, cache_shape
from simserve.calibrate.kernels.kernel import Kernel, UnsupportedError, relative_error, spread_indices
from simserve.calibrate.kernels.points import Point
from simserve.calibrate.kernels.torch_device import Tensor, TorchDevice

TOLERANCE = 0.03  # Scores and probabilities are rounded to BF16.
PAGE = 256  # Tokens per page of the KV cache: a size that flash attention's paged kernels take on every GPU.
SHORTEST_SHARE = 0.5  # Shortest context of a ragged batch divided by the longest.
CHECKED_HEADS = 4

_BACKENDS = {0: "math", 2: "memory-efficient", 3: "cuDNN"}
"""Numbers of `torch.nn.attention.SDPBackend`, except flash attention, which may be PyTorch's own or a newer one."""


def prompts(point: Point, device: TorchDevice) -> Kernel:
    """Return causal attention of several prompts of one length (SDPA: flash attention on a GPU), or the engine's."""
    if device.engine is not None:
        try:
            return _engine_prompts(point, device, device.engine)
        except UnsupportedError:
            pass
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

    def checked() -> Iterator[Checked]:
        result, (query, key, value) = call(0)[-1], (each[-1] for each in inputs(0))
        for row in spread_indices(tokens, 3):
            keys, values = (each[:, : row + 1].transpose(0, 1) for each in (key, value))
            yield result[:, row], query[:, row], keys, values

    source = _sdpa_source(device, inputs(0), is_causal=True, enable_gqa=is_grouped)
    return _kernel(call, copies, checked, source)


def _sdpa_source(device: TorchDevice, inputs: Sequence[Tensor], *, is_causal: bool, enable_gqa: bool) -> str:
    """Return whose kernel PyTorch chooses for attention: a GPU has several, of different speeds."""
    if not device.is_cuda:
        return "torch SDPA"
    torch = device.torch
    number = torch._fused_sdp_choice(*inputs, None, 0.0, is_causal, scale=None, enable_gqa=enable_gqa)
    return f"torch SDPA ({_BACKENDS.get(int(number)) or device.flash_attention})"


def decodes(point: Point, device: TorchDevice) -> Kernel:
    """Return one decode step: the engine's, or the first of paged, packed and padded KV that has a kernel.

    Paged and packed contexts are ragged around the mean ``step + 1``. Padded ones have that length; on a CPU they are
    masked, and the kernel reads the padding too.
    """
    if device.engine is not None:
        try:
            return _engine_decodes(point, device, device.engine)
        except UnsupportedError:
            pass
    if not device.is_cuda:
        return _masked(point, device)
    for build in (_paged, _packed):
        try:
            return build(point, device)
        except UnsupportedError:
            continue
    batch, context, *_ = _sizes(point, "step")
    return _in_rows(point, device, [context] * batch, None)


def _engine_prompts(point: Point, device: TorchDevice, engine: CpuEngine) -> Kernel:
    """Prompts whose keys and values are written to the blocks of the engine's cache and read from there."""
    torch = device.torch
    batch, tokens, num_heads, num_kv_heads, width = _sizes(point, "isl")
    heads = Heads(num_heads, num_kv_heads, width)
    step = engine.step_over(heads, [tokens] * batch, [tokens] * batch)
    copies = min(device.num_copies(point.num_bytes), 16)
    shapes = ((batch * tokens, num_heads, width), *[(batch * tokens, num_kv_heads, width)] * 2)
    caches = [torch.zeros(cache_shape(step.num_blocks, heads), dtype=torch.bfloat16) for _ in range(copies)]
    output = torch.empty(shapes[0], dtype=torch.bfloat16)

    def inputs(copy: int) -> list[Tensor]:
        return [device.random(torch.bfloat16, shape, 3 * copy + n) for n, shape in enumerate(shapes)]

    def call(copy: int) -> Tensor:
        query, key, value = inputs(copy)
        step.write(caches[copy], key, value)
        return step.attend(query, caches[copy], output)

    def checked() -> Iterator[Checked]:
        result, (query, key, value) = call(0), inputs(0)
        first = (batch - 1) * tokens
        for row in spread_indices(tokens, 3):
            seen, last = slice(first, first + row + 1), first + row
            yield result[last], query[last], key[seen], value[seen]

    return _kernel(call, copies, checked, step.source)


def _engine_decodes(point: Point, device: TorchDevice, engine: CpuEngine) -> Kernel:
    """One token of each sequence: written, and its ragged context read from the blocks of the engine's cache.

    The values read are random bits, as the layout is the kernel's own; the new tokens go to other blocks. The check
    lets the engine write the contexts of some sequences before it reads them.
    """
    torch = device.torch
    batch, context, num_heads, num_kv_heads, width = _sizes(point, "step")
    heads = Heads(num_heads, num_kv_heads, width)
    lengths = ragged_lengths(batch, context)
    step = engine.step_over(heads, [1] * batch, lengths, seed=context)
    beside = engine.step_over(heads, [1] * batch, [1] * batch)
    shape = cache_shape(step.num_blocks, heads)
    copies = device.num_copies(point.num_bytes)
    device.random(torch.bfloat16, shape)  # raises if it is too large
    written = torch.zeros(cache_shape(beside.num_blocks, heads), dtype=torch.bfloat16)
    query = device.fresh(torch.bfloat16, (batch, num_heads, width))
    new = device.fresh(torch.bfloat16, (batch, num_kv_heads, width))
    output = torch.empty_like(query)

    def call(copy: int) -> Tensor:
        beside.write(written, new, new)
        return step.attend(query, device.random(torch.bfloat16, shape, copy), output)

    def checked() -> Iterator[Checked]:
        chosen = [lengths[row] for row in spread_indices(batch, 3)]
        filled = engine.step_over(heads, chosen, chosen, seed=context)
        checked = engine.step(heads, [1] * len(chosen), chosen, filled.table)
        cache = torch.zeros(cache_shape(filled.num_blocks, heads), dtype=torch.bfloat16)
        key, value = device.keys_and_values(torch.bfloat16, (sum(chosen), num_kv_heads, width))
        filled.write(cache, key, value)
        result = checked.attend(query[: len(chosen)], cache, torch.empty_like(query[: len(chosen)]))
        yield from zip(result, query, key.split(chosen), value.split(chosen), strict=False)

    return _kernel(call, copies, checked, step.source)


def ragged_lengths(batch: int, mean: int) -> list[int]:
    """Return the contexts of a batch, drawn with exactly the given mean; a single context is the mean."""
    generator = random.Random(batch * 1_000_003 + mean)
    spread = int(mean * (1.0 - SHORTEST_SHARE))
    drawn = [generator.randint(-spread, spread) for _ in range(batch // 2)]
    middle = [0] * (batch % 2)
    return [mean + each for each in (*drawn, *middle, *(-each for each in drawn))]


def _masked(point: Point, device: TorchDevice) -> Kernel:
    """Ragged contexts behind a mask, the longest of them ``step + 1``."""
    torch = device.torch
    batch, context, heads, kv_heads, _ = _sizes(point, "step")
    generator = random.Random(batch * 1_000_003 + context)
    lengths = [context] + [generator.randint(max(int(context * SHORTEST_SHARE), 1), context) for _ in range(batch - 1)]
    places = torch.arange(context, device=device.kind)
    mask = places[None, :] < torch.tensor(lengths, device=device.kind)[:, None]
    mask = mask[:, None, None, :].expand(batch, 1, heads // kv_heads, context)
    return _in_rows(point, device, lengths, mask)


def _in_rows(point: Point, device: TorchDevice, lengths: list[int], mask: Tensor | None) -> Kernel:
    """One query row for every query head of a key-value head, so that keys are read once."""
    torch = device.torch
    batch, context, heads, kv_heads, width = _sizes(point, "step")
    copies = device.num_copies(point.num_bytes)
    key_shape = (batch, kv_heads, context, width)
    query = device.fresh(torch.bfloat16, (batch, kv_heads, heads // kv_heads, width))

    def call(copy: int) -> Tensor:
        key, value = device.keys_and_values(torch.bfloat16, key_shape, copy)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def checked() -> Iterator[Checked]:
        result = call(0)
        key, value = device.keys_and_values(torch.bfloat16, key_shape)
        for row in spread_indices(batch, 3):
            keys, values = (each[row, :, : lengths[row]].transpose(0, 1) for each in (key, value))
            yield result[row, :, 0], query[row, :, 0], keys, values

    seen = (query, *device.keys_and_values(torch.bfloat16, key_shape))
    source = _sdpa_source(device, seen, is_causal=False, enable_gqa=False) + ", padded KV"
    source += "" if mask is None else " and mask"
    return _kernel(call, copies, checked, source)


def _paged(point: Point, device: TorchDevice) -> Kernel:
    """Flash attention over a block table (`torch.nn.attention.varlen`), contexts ragged."""
    torch = device.torch
    varlen_attn = packed_attention()
    batch, context, heads, kv_heads, width = _sizes(point, "step")
    lengths = ragged_lengths(batch, context)
    longest = max(lengths)
    pages = [-(-length // PAGE) for length in lengths]
    page_shape = (sum(pages), PAGE, kv_heads, width)
    copies = device.num_copies(point.num_bytes)
    query = device.fresh(torch.bfloat16, (batch, heads, width))
    generator = torch.Generator(device="cpu").manual_seed(context)
    table = torch.zeros((batch, max(pages)), dtype=torch.int32)
    for row, own in enumerate(torch.randperm(sum(pages), generator=generator).to(torch.int32).split(pages)):
        table[row, : len(own)] = own
    table = device.placed(table)
    ends = torch.arange(batch + 1, dtype=torch.int32, device=device.kind)
    used = device.placed(torch.tensor(lengths, dtype=torch.int32))

    def call(copy: int) -> Tensor:
        key, value = device.keys_and_values(torch.bfloat16, page_shape, copy)
        return varlen_attn(
            query, key, value, ends, None, 1, longest, seqused_k=used, block_table=table, enable_gqa=heads != kv_heads
        )

    def checked() -> Iterator[Checked]:
        result = call(0)
        keys, values = device.keys_and_values(torch.bfloat16, page_shape)
        for row in spread_indices(batch, 3):
            own = table[row, : pages[row]].long()
            key, value = (each[own].reshape(-1, kv_heads, width)[: lengths[row]] for each in (keys, values))
            yield result[row], query[row], key, value

    return _tried(_kernel(call, copies, checked, f"torch varlen_attn ({device.flash_attention}), paged KV"), device)


def _packed(point: Point, device: TorchDevice) -> Kernel:
    """Flash attention over concatenated ragged contexts (`torch.nn.attention.varlen`), without pages."""
    torch = device.torch
    varlen_attn = packed_attention()
    batch, context, heads, kv_heads, width = _sizes(point, "step")
    lengths = ragged_lengths(batch, context)
    key_shape = (sum(lengths), kv_heads, width)
    copies = device.num_copies(point.num_bytes)
    query = device.fresh(torch.bfloat16, (batch, heads, width))
    ends = torch.arange(batch + 1, dtype=torch.int32, device=device.kind)
    starts = [sum(lengths[:row]) for row in range(batch + 1)]
    key_ends = device.placed(torch.tensor(starts, dtype=torch.int32))

    def call(copy: int) -> Tensor:
        key, value = device.keys_and_values(torch.bfloat16, key_shape, copy)
        return varlen_attn(query, key, value, ends, key_ends, 1, max(lengths), enable_gqa=heads != kv_heads)

    def checked() -> Iterator[Checked]:
        result = call(0)
        keys, values = device.keys_and_values(torch.bfloat16, key_shape)
        for row in spread_indices(batch, 3):
            own = slice(starts[row], starts[row + 1])
            yield result[row], query[row], keys[own], values[own]

    return _tried(_kernel(call, copies, checked, f"torch varlen_attn ({device.flash_attention}), packed KV"), device)


@functools.cache
def packed_attention() -> Any:
    """Return PyTorch's ``varlen_attn``; up to 2.11 it has no ``enable_gqa`` and always accepts grouped heads.

    Raises:
        UnsupportedError: This PyTorch has none.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        raise UnsupportedError("this PyTorch has no varlen_attn") from None
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        return varlen_attn

    def without_flag(*inputs: Any, enable_gqa: bool = False, **rest: Any) -> Any:
        del enable_gqa
        return varlen_attn(*inputs, **rest)

    return without_flag


def _tried(kernel: Kernel, device: TorchDevice) -> Kernel:
    """Return a kernel that has run once, so that one that this GPU does not support is replaced by another."""
    try:
        kernel.call(0)
        device.synchronize()
    except device.torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, NotImplementedError) as failure:
        raise UnsupportedError(str(failure).splitlines()[0]) from None
    return kernel


Checked = tuple[Tensor, Tensor, Tensor, Tensor]
"""Results of one position ``[heads, width]``, its queries, and keys and values it sees ``[tokens, heads, width]``."""


def _kernel(
    call: Callable[[int], Tensor], copies: int, checked: Callable[[], Iterable[Checked]], source: str
) -> Kernel:
    """Return a kernel with its check: some heads of some positions, in float64."""

    def error() -> float:
        errors = []
        for result, query, key, value in checked():
            heads, kv_heads = len(query), key.shape[1]
            for head in spread_indices(heads, CHECKED_HEADS):
                own = head * kv_heads // heads
                errors.append(relative_error(result[head], _attended(query[head], key[:, own], value[:, own])))
        return max(errors)

    return Kernel(call=call, copies=copies, error=error, tolerance=TOLERANCE, source=source)


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
