"""The model of the reference server: a Llama of any size with random weights and a paged KV cache, in PyTorch.

Every product has the shape of a real layer. Attention is plain PyTorch: a decode step gathers the blocks of its
requests, padded to the longest context, so that it costs the longest where a paged kernel costs the sum; prompts run
through ``scaled_dot_product_attention``. On CUDA, steps that only decode run as CUDA graphs, captured before the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from calibration.reference_server.scheduler import Request, Step
from simserve.profiles.model import ModelProfile

ROPE_BASE = 500_000.0
"""Base of the rotary embedding (Llama 3)."""

NORM_EPS = 1e-5
INITIAL_STD = 0.02
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GRAPH_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Decode batches that are captured; a batch runs as the next of them."""

GRAPH_WIDTHS = 8
"""Lengths of block tables that are captured, at most: a table is padded by an eighth of the longest at most."""

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
        self.dtype = DTYPES[dtype or ("fp32" if device == "cpu" else "bf16")]
        generator = torch.Generator(self.device).manual_seed(seed)

        def weight(rows: int, columns: int) -> Tensor:
            shape = (rows, columns)
            drawn = torch.randn(shape, generator=generator, device=self.device, dtype=self.dtype)
            return drawn * INITIAL_STD

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
            weight(profile.vocab_size, hidden),
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
        if (batch, inputs["tables"].shape[1]) not in self._graphs:
            return self._decode_forward(**inputs)[:count]
        return self._replay(inputs)[:count]

    def _decode_inputs(self, requests: Sequence[Request], batch: int) -> dict[str, Tensor]:
        """Return tokens, positions, slots and block tables of a decode step, padded to ``batch`` on a spare block."""
        longest = max(request.num_computed_tokens for request in requests) + 1
        width = -(-longest // self.block_size)
        if self.uses_graphs:
            width = next((each for each in self.graph_widths() if each >= width), width)
        spare = self.spare_block
        tables = [request.block_table + [spare] * (width - len(request.block_table)) for request in requests]
        padding = batch - len(requests)
        positions = [request.num_computed_tokens for request in requests] + [0] * padding
        slots = [self._slots(each, each.num_computed_tokens, each.num_computed_tokens + 1)[0] for each in requests]
        ids = [each.token_ids[each.num_computed_tokens] for each in requests] + [0] * padding
        return {
            "ids": self._tensor(ids),
            "positions": self._tensor(positions),
            "slots": self._tensor(slots + [spare * self.block_size] * padding),
            "tables": self._tensor(tables + [[spare] * width] * padding),
        }

    def _tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(self.device, non_blocking=True)

    def graph_widths(self) -> list[int]:
        """Return the lengths of block tables that decode steps are padded to on CUDA, ascending."""
        step = -(-self.max_blocks // GRAPH_WIDTHS)
        return list(range(step, self.max_blocks + step, step))

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

    def _spare_inputs(self, batch: int, width: int) -> dict[str, Tensor]:
        """Return the inputs of a decode step that reads and writes the spare block alone."""
        zeros = torch.zeros(batch, dtype=torch.long, device=self.device)
        slots = zeros + self.spare_block * self.block_size
        tables = torch.full((batch, width), self.spare_block, dtype=torch.long, device=self.device)
        return {"ids": zeros, "positions": zeros.clone(), "slots": slots, "tables": tables}

    def _captured(self, batch: int, width: int, pool: tuple[int, int]) -> Graph:
        """Return a captured decode step of a shape."""
        static = self._spare_inputs(batch, width)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._decode_forward(**static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = self._decode_forward(**static)
        return graph, static, result

    def _replay(self, inputs: dict[str, Tensor]) -> Tensor:
        """Run a captured decode step; its result holds until the next."""
        graph, static, result = self._graphs[len(inputs["ids"]), inputs["tables"].shape[1]]
        for name, each in inputs.items():
            static[name].copy_(each)
        graph.replay()
        return result

    def _decode_forward(self, ids: Tensor, positions: Tensor, slots: Tensor, tables: Tensor) -> Tensor:
        places = self._places(tables, positions)
        hidden = self.embedding[ids]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            query = self._write(layer, cache, hidden, positions, slots)
            attended = self._attend_decodes(query, cache, *places)
            hidden = self._rest(layer, hidden, attended)
        return self._sample(hidden)

    def _places(self, tables: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slots of all blocks of each decoding request, and which of them hold no token of it."""
        batch, width = tables.shape
        offsets = torch.arange(self.block_size, device=self.device)
        gathered = (tables.unsqueeze(-1) * self.block_size + offsets).reshape(batch, width * self.block_size)
        return gathered, torch.arange(width * self.block_size, device=self.device) > positions.unsqueeze(1)

    def _attend_decodes(self, query: Tensor, cache: tuple[Tensor, Tensor], gathered: Tensor, unseen: Tensor) -> Tensor:
        """Return attention of one token a request, ``[requests, heads x width]``; query heads share their keys."""
        keys, values = (each[gathered] for each in cache)
        grouped = query.view(len(query), self.profile.num_key_value_heads, -1, self.profile.head_dim)
        scores = torch.einsum("bkgd,bskd->bkgs", grouped, keys) * self.profile.head_dim**-0.5
        scores = scores.masked_fill(unseen[:, None, None, :], float("-inf"))
        return torch.einsum("bkgs,bskd->bkgd", scores.softmax(dim=-1), values).reshape(len(query), -1)

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
        places = None
        if decodes:
            inputs = self._decode_inputs(decodes, num_decodes)
            places = self._places(inputs["tables"], inputs["positions"])
        tensors = self._tensor(ids), self._tensor(positions), self._tensor(slots)
        hidden = self.embedding[tensors[0]]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            query = self._write(layer, cache, hidden, *tensors[1:])
            attended = torch.empty((len(ids), query.shape[1] * query.shape[2]), device=self.device, dtype=self.dtype)
            if places is not None:
                attended[:num_decodes] = self._attend_decodes(query[:num_decodes], cache, *places)
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
        projected = F.linear(self._normed(hidden, layer.input_norm), layer.qkv).view(len(hidden), -1, width)
        query, key, value = projected.split((heads, kv_heads, kv_heads), dim=1)
        cos, sin = (each[positions].unsqueeze(1) for each in self.rotation)
        cache[0].index_copy_(0, slots, _rotated(key, cos, sin))
        cache[1].index_copy_(0, slots, value.contiguous())
        return _rotated(query, cos, sin)

    def _rest(self, layer: Layer, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = hidden + F.linear(attended, layer.output)
        gate, up = F.linear(self._normed(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return hidden + F.linear(F.silu(gate) * up, layer.down)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, NORM_EPS)

    def _sample(self, hidden: Tensor) -> Tensor:
        return F.linear(self._normed(hidden, self.norm), self.head).float().argmax(dim=-1)

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


def _rotated(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cos + torch.cat((-second, first), dim=-1) * sin
