"""The model of the reference server: a Llama of any size with random weights and a paged KV cache, in PyTorch.

Every product has the shape of a real layer. A decode step gathers the keys and values of its requests one after
another, so that it costs the sum of their contexts as a paged kernel does, and attends with PyTorch's ``varlen_attn``
on CUDA, request by request on a CPU; prompts run through ``scaled_dot_product_attention``. On CUDA, steps that only
decode run as CUDA graphs, captured before the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from calibration.reference_server.scheduler import Request, Step
from simserve.calibrate.kernels.attention import packed_attention
from simserve.calibrate.kernels.products import linear_of
from simserve.profiles.model import ModelProfile

ROPE_BASE = 500_000.0
"""Base of the rotary embedding (Llama 3)."""

NORM_EPS = 1e-5
INITIAL_STD = 0.02
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GRAPH_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Decode batches that are captured; a batch runs as the next of them."""

GRAPH_WIDTHS = 12
"""Mean contexts that are captured, at most: as many tokens are gathered, a twelfth of the longest context too many at
most."""

WARM_UPS = 2
"""Runs of a decode step before it is captured."""

Graph = tuple[torch.cuda.CUDAGraph, dict[str, Tensor], Tensor]
"""A captured decode step, the tensors that it reads, and the one that it writes."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer."""

    input_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class PagedModel:
    """A transformer that computes steps of the scheduler.

    Args:
        profile: Layer shapes; a dense gated model without latent attention.
        num_blocks: KV blocks; one more is kept for the padding of captured batches.
        block_size: Tokens a block.
        device: ``cpu`` or ``cuda``.
        max_model_len: Longest context.
        dtype: ``fp32`` or ``bf16``; None: 32 bit on a CPU, 16 bit on a GPU.
        seed: Of the weights.

    Raises:
        ValueError: The architecture is another.
    """

    def __init__(
        self,
        profile: ModelProfile,
        *,
        num_blocks: int,
        block_size: int,
        device: str,
        max_model_len: int,
        dtype: str | None = None,
        seed: int = 0,
    ) -> None:
        if profile.moe is not None or profile.mla is not None or not profile.is_gated_mlp:
            raise ValueError(f"{profile.name}: the reference server has dense gated layers of plain attention only")
        self.profile, self.block_size, self.device = profile, block_size, torch.device(device)
        self.uses_graphs = self.device.type == "cuda"
        if self.uses_graphs:
            # cuDNN's attention is compiled for each length of a prompt anew (PyTorch pull request 155958).
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.attend = _varlen if self.uses_graphs else _one_by_one
        self.max_model_len = max_model_len
        self.dtype = DTYPES[dtype or ("fp32" if device == "cpu" else "bf16")]
        # What `calibrate kernels` measures in 16 bit is what is served; it measures no 32 bit.
        linear = linear_of(torch, is_plain=self.uses_graphs or self.dtype == torch.float32)
        self._multiply = linear.multiply
        generator = torch.Generator(self.device).manual_seed(seed)

        def drawn(rows: int, columns: int) -> Tensor:
            values = torch.randn((rows, columns), generator=generator, device=self.device, dtype=self.dtype)
            return values * INITIAL_STD

        def weight(rows: int, columns: int) -> Tensor:
            return linear.laid_out(drawn(rows, columns))

        hidden, width = profile.hidden_size, profile.num_attention_heads * profile.head_dim
        kv_width = profile.num_key_value_heads * profile.head_dim
        ones = torch.ones(hidden, device=self.device, dtype=self.dtype)
        self.layers = [
            Layer(
                ones,
                weight(width + 2 * kv_width, hidden),
                weight(hidden, width),
                ones,
                weight(2 * profile.intermediate_size, hidden),
                weight(hidden, profile.intermediate_size),
            )
            for _ in range(profile.num_hidden_layers)
        ]
        self.embedding, self.head, self.norm = (
            drawn(profile.vocab_size, hidden),
            weight(profile.vocab_size, hidden),
            ones,
        )
        shape = ((num_blocks + 1) * block_size, profile.num_key_value_heads, profile.head_dim)
        self.caches: list[tuple[Tensor, Tensor]] = [
            tuple(torch.zeros(shape, device=self.device, dtype=self.dtype) for _ in range(2))  # type: ignore[misc]
            for _ in self.layers
        ]
        self.spare_block = num_blocks
        self.rotation = self._rotation(max_model_len)
        self.max_blocks = -(-max_model_len // block_size)
        self._graphs: dict[tuple[int, int], Graph] = {}

    def _rotation(self, length: int) -> tuple[Tensor, Tensor]:
        half = self.profile.head_dim // 2
        steps = torch.arange(half, dtype=torch.float32) / half
        angles = torch.outer(torch.arange(length, dtype=torch.float32), ROPE_BASE**-steps)
        both = torch.cat((angles, angles), dim=1)
        return both.cos().to(self.device, self.dtype), both.sin().to(self.device, self.dtype)

    @torch.inference_mode()
    def compute(self, step: Step) -> None:
        """Compute a step and append the token that each of its requests got."""
        tokens = self._decode(step.decodes).tolist() if not step.chunks else self._mixed(step).tolist()
        requests = [*step.decodes, *(request for request, _ in step.chunks)]
        sizes = [1] * len(step.decodes) + [size for _, size in step.chunks]
        for request, size, token in zip(requests, sizes, tokens, strict=True):
            if request.num_computed_tokens + size == len(request.token_ids):
                request.token_ids.append(token)

    def _slots(self, request: Request, start: int, end: int) -> list[int]:
        """Return where the tokens from ``start`` to ``end`` of a request lie in the cache."""
        size, table = self.block_size, request.block_table
        return [table[position // size] * size + position % size for position in range(start, end)]

    def _decode(self, requests: Sequence[Request]) -> Tensor:
        """Return the next token of requests that decode, by a captured graph where there is one."""
        count = len(requests)
        batch = next((size for size in GRAPH_BATCHES if size >= count), count) if self._graphs else count
        inputs = self._decode_inputs(requests, batch)
        total = sum(request.num_computed_tokens + 1 for request in requests) + batch - count
        width = next((each for each in self.graph_widths() if each * batch >= total), 0)
        if (batch, width) not in self._graphs:
            return self._decode_forward(**inputs, total=total)[:count]
        return self._replay(batch, width, inputs)[:count]

    def _decode_inputs(self, requests: Sequence[Request], batch: int) -> dict[str, Tensor]:
        """Return tokens, positions, slots, block tables and ends of a decode step, padded by a spare block.

        Contexts lie one after another, to their ends; a request of the padding has one token.
        """
        spare, padding = self.spare_block, batch - len(requests)
        width = self.max_blocks if self._graphs else max(len(request.block_table) for request in requests)
        tables = [request.block_table + [spare] * (width - len(request.block_table)) for request in requests]
        lengths = [request.num_computed_tokens + 1 for request in requests] + [1] * padding
        positions = [request.num_computed_tokens for request in requests] + [0] * padding
        slots = [self._slots(each, each.num_computed_tokens, each.num_computed_tokens + 1)[0] for each in requests]
        ids = [each.token_ids[each.num_computed_tokens] for each in requests] + [0] * padding
        return {
            "ids": self._tensor(ids),
            "positions": self._tensor(positions),
            "slots": self._tensor(slots + [spare * self.block_size] * padding),
            "tables": self._tensor(tables + [[spare] * width] * padding),
            "ends": self._tensor([0, *itertools.accumulate(lengths)]).to(torch.int32),
        }

    def _tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(self.device, non_blocking=True)

    def graph_widths(self) -> list[int]:
        """Return the mean contexts of a batch up to which captured decode steps gather, ascending."""
        step = -(-self.max_model_len // GRAPH_WIDTHS)
        return list(range(step, self.max_model_len + step, step))

    @torch.inference_mode()
    def capture(self, max_num_seqs: int) -> int:
        """Capture every decode step that may come on CUDA, and return how many: none is captured while serving.

        The largest comes first; the others find room in the memory that it leaves, since no two run at once.
        """
        if not self.uses_graphs:
            return 0
        pool = torch.cuda.graph_pool_handle()
        most = next((size for size in GRAPH_BATCHES if size >= max_num_seqs), GRAPH_BATCHES[-1])
        for batch in reversed([size for size in GRAPH_BATCHES if size <= most]):
            for width in reversed(self.graph_widths()):
                self._graphs[batch, width] = self._captured(batch, width, pool)
        torch.cuda.synchronize()
        return len(self._graphs)

    def _spare_inputs(self, batch: int) -> dict[str, Tensor]:
        """Return the inputs of a decode step that reads and writes the spare block alone."""
        zeros = torch.zeros(batch, dtype=torch.long, device=self.device)
        slots = zeros + self.spare_block * self.block_size
        tables = torch.full((batch, self.max_blocks), self.spare_block, dtype=torch.long, device=self.device)
        ends = torch.arange(batch + 1, dtype=torch.int32, device=self.device)
        return {"ids": zeros, "positions": zeros.clone(), "slots": slots, "tables": tables, "ends": ends}

    def _captured(self, batch: int, width: int, pool: tuple[int, int]) -> Graph:
        """Return a captured decode step of a shape."""
        static = self._spare_inputs(batch)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._decode_forward(**static, total=batch * width)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = self._decode_forward(**static, total=batch * width)
        return graph, static, result

    def _replay(self, batch: int, width: int, inputs: dict[str, Tensor]) -> Tensor:
        """Run a captured decode step; its result holds until the next."""
        graph, static, result = self._graphs[batch, width]
        for name, each in inputs.items():
            static[name].copy_(each)
        graph.replay()
        return result

    def _decode_forward(
        self, ids: Tensor, positions: Tensor, slots: Tensor, tables: Tensor, ends: Tensor, total: int
    ) -> Tensor:
        gathered = self._gathered(tables, ends, total)
        hidden = self.embedding[ids]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            query = self._write(layer, cache, hidden, positions, slots)
            attended = self._attend_decodes(query, cache, gathered, ends)
            hidden = self._rest(layer, hidden, attended)
        return self._sample(hidden)

    def _gathered(self, tables: Tensor, ends: Tensor, total: int) -> Tensor:
        """Return the slots of all contexts one after another, ``total`` of them; those beyond the last end are any."""
        places = torch.arange(total, dtype=torch.int32, device=self.device)
        rows = torch.searchsorted(ends[1:], places, right=True).clamp(max=len(tables) - 1)
        offsets = (places - ends[rows]).clamp(max=tables.shape[1] * self.block_size - 1)
        return tables[rows, offsets // self.block_size] * self.block_size + offsets % self.block_size

    def _attend_decodes(self, query: Tensor, cache: tuple[Tensor, Tensor], gathered: Tensor, ends: Tensor) -> Tensor:
        """Return attention of one token a request, ``[requests, heads x width]``."""
        keys, values = (each.index_select(0, gathered) for each in cache)
        return self.attend(query, keys, values, ends, self.max_model_len).reshape(len(query), -1)

    def _mixed(self, step: Step) -> Tensor:
        """Return the next token of every request of a step that prefills: decodes first, then chunks."""
        decodes, num_decodes = step.decodes, len(step.decodes)
        pieces = [(request, request.num_computed_tokens, 1) for request in decodes]
        pieces += [(request, request.num_computed_tokens, size) for request, size in step.chunks]
        ids, positions, slots = [], [], []
        for request, done, size in pieces:
            ids += request.token_ids[done : done + size]
            positions += range(done, done + size)
            slots += self._slots(request, done, done + size)
        chunks = [
            (done, size, self._tensor(self._slots(request, 0, done + size)))
            for request, done, size in pieces[num_decodes:]
        ]
        places = ends = None
        if decodes:
            inputs = self._decode_inputs(decodes, num_decodes)
            ends = inputs["ends"]
            places = self._gathered(inputs["tables"], ends, sum(done + 1 for _, done, _ in pieces[:num_decodes]))
        tensors = self._tensor(ids), self._tensor(positions), self._tensor(slots)
        hidden = self.embedding[tensors[0]]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            query = self._write(layer, cache, hidden, *tensors[1:])
            attended = torch.empty((len(ids), query.shape[1] * query.shape[2]), device=self.device, dtype=self.dtype)
            if places is not None and ends is not None:
                attended[:num_decodes] = self._attend_decodes(query[:num_decodes], cache, places, ends)
            start = num_decodes
            for done, size, context in chunks:
                found = self._attend_chunk(query[start : start + size], cache, context, done)
                attended[start : start + size] = found
                start += size
            hidden = self._rest(layer, hidden, attended)
        last = torch.tensor([size for _, _, size in pieces]).cumsum(0).to(self.device) - 1
        return self._sample(hidden[last])

    def _attend_chunk(self, query: Tensor, cache: tuple[Tensor, Tensor], context: Tensor, done: int) -> Tensor:
        """Return causal attention of a chunk behind ``done`` tokens, ``[tokens, heads x width]``."""
        size = len(query)
        keys, values = (each[context].transpose(0, 1).unsqueeze(0) for each in cache)
        mask: Tensor | None = None
        if done and size > 1:
            mask = causal_lower_right(size, done + size)  # what flash attention on CUDA knows, unlike other masks
        found = F.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            attn_mask=mask,
            is_causal=not done and size > 1,
            enable_gqa=True,
        )
        return found[0].transpose(0, 1).reshape(size, -1)

    def _write(
        self, layer: Layer, cache: tuple[Tensor, Tensor], hidden: Tensor, positions: Tensor, slots: Tensor
    ) -> Tensor:
        """Return the queries ``[tokens, heads, width]``, keys and values written to the cache."""
        heads, kv_heads, width = (
            self.profile.num_attention_heads,
            self.profile.num_key_value_heads,
            self.profile.head_dim,
        )
        projected = self._multiply(self._normed(hidden, layer.input_norm), layer.qkv).view(len(hidden), -1, width)
        query, key, value = projected.split((heads, kv_heads, kv_heads), dim=1)
        cos, sin = (each[positions].unsqueeze(1) for each in self.rotation)
        cache[0].index_copy_(0, slots, _rotated(key, cos, sin))
        cache[1].index_copy_(0, slots, value.contiguous())
        return _rotated(query, cos, sin)

    def _rest(self, layer: Layer, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = hidden + self._multiply(attended, layer.output)
        gate, up = self._multiply(self._normed(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return hidden + self._multiply(F.silu(gate) * up, layer.down)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, NORM_EPS)

    def _sample(self, hidden: Tensor) -> Tensor:
        return self._multiply(self._normed(hidden, self.norm), self.head).float().argmax(dim=-1)

    def reference(self, token_ids: Sequence[int]) -> int:
        """Return the next token of a whole prompt, computed at once without cache or blocks: for tests."""
        with torch.inference_mode():
            hidden = self.embedding[self._tensor(list(token_ids))]
            positions = torch.arange(len(token_ids), device=self.device)
            for layer in self.layers:
                scratch = tuple(torch.zeros_like(self.caches[0][0][: len(token_ids)]) for _ in range(2))
                query = self._write(layer, (scratch[0], scratch[1]), hidden, positions, positions)
                keys, values = (each.transpose(0, 1).unsqueeze(0) for each in scratch)
                asked = query.transpose(0, 1).unsqueeze(0)
                found = F.scaled_dot_product_attention(asked, keys, values, is_causal=True, enable_gqa=True)
                hidden = self._rest(layer, hidden, found[0].transpose(0, 1).reshape(len(token_ids), -1))
            return int(self._sample(hidden[-1:])[0])


def _varlen(query: Tensor, keys: Tensor, values: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Return attention of a query row a request over its own keys, by flash attention over packed contexts."""
    starts = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
    shared = query.shape[1] != keys.shape[1]
    return packed_attention()(query, keys, values, starts, ends, 1, longest, enable_gqa=shared)


def _one_by_one(query: Tensor, keys: Tensor, values: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Return the same, request by request."""
    del longest
    bounds = ends.tolist()
    rows = []
    for row, (start, end) in enumerate(itertools.pairwise(bounds)):
        own = (each[start:end].transpose(0, 1).unsqueeze(0) for each in (keys, values))
        rows.append(F.scaled_dot_product_attention(query[row, None, :, None], *own, enable_gqa=True)[0, :, 0])
    return torch.stack(rows)


def _rotated(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cos + torch.cat((-second, first), dim=-1) * sin
