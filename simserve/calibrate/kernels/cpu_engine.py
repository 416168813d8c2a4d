"""vLLM's kernels for CPUs, where this environment has them: paged attention, products and sampling.

They are called as vLLM 0.32 calls them (`v1/attention/backends/cpu_attn.py`, `_custom_ops.py`): keys and values lie in
blocks of 128 tokens in the kernel's own layout, and a step's metadata, which all layers share, is not timed. No code of
vLLM is copied; a vLLM with another interface counts as missing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simserve.calibrate.kernels.kernel import UnsupportedError
from simserve.calibrate.kernels.torch_device import Tensor
from simserve.errors import UsageError

BLOCK = 128  # Tokens of a KV block: vLLM's default on a CPU (`platforms/cpu.py`).
PRIMITIVES = 32  # Number of shapes whose oneDNN primitives a layer keeps (`model_executor/layers/utils.py`).
_ATTENTION = ("cpu_attn_get_scheduler_metadata", "cpu_attn_reshape_and_cache", "cpu_attention_with_kv_cache")
_PRODUCTS = ("create_onednn_mm", "onednn_mm")
_ABSENT = (ImportError, AttributeError, RuntimeError, OSError)
"""Errors raised by importing a vLLM that is built for another platform or is incomplete."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Shape of an attention call apart from lengths: query heads, key-value heads, width of a head."""

    num_heads: int
    num_kv_heads: int
    width: int


@dataclass(frozen=True, slots=True)
class CpuEngine:
    """vLLM's kernels."""

    torch: Any  # PyTorch.
    name: str  # ``vLLM`` and its version.
    operators: Any  # vLLM's ``_custom_ops``.
    backend: Any  # Its module of attention on CPUs.
    splits_keys: bool = True  # Whether long contexts are split between threads.

    @property
    def has_products(self) -> bool:
        """Whether it multiplies by oneDNN, with weights packed once."""
        return bool(getattr(self.operators, "_supports_onednn", False)) and all(
            hasattr(self.operators, name) for name in _PRODUCTS
        )

    def laid_out(self, weight: Tensor) -> Any:
        """Return weights ``[n, k]`` in their memory layout."""
        return self.operators.create_onednn_mm(weight.t(), PRIMITIVES)

    def multiply(self, x: Tensor, weight: Any) -> Tensor:
        """Return ``[m, n]`` of inputs ``[m, k]`` and packed weights."""
        return self.operators.onednn_mm(weight, x, None)

    @property
    def has_sampling(self) -> bool:
        """Whether it has its own kernel to draw tokens."""
        return hasattr(self.torch.ops._C, "fused_gumbel_argmax")

    def sample(self, logits: Tensor, seeds: Tensor) -> Tensor:
        """Return one token per row, drawn from FP32 logits ``[rows, vocabulary]`` with one seed per row."""
        return self.torch.ops._C.fused_gumbel_argmax(logits, seeds)

    def instructions(self, heads: Heads) -> str:
        """Return which of its kernels the engine uses here (``amx``, ``vec``, ...)."""
        return str(self.backend._get_attn_isa(self.torch.bfloat16, BLOCK, heads.width))

    def step(self, heads: Heads, queries: Sequence[int], contexts: Sequence[int], table: Tensor) -> Step:
        """Return a step of sequences: ``queries`` new tokens each, at the end of ``contexts``.

        Args:
            queries: New tokens of each sequence.
            contexts: Tokens of each, including the new ones.
            table: Blocks of each, ``[sequences, blocks]``, int32.

        Raises:
            UnsupportedError: This vLLM has no kernel for such heads, or has another interface.
        """
        torch = self.torch
        starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        lengths = torch.tensor(list(contexts), dtype=torch.int32)
        places = [torch.arange(length - new, length) for new, length in zip(queries, contexts, strict=True)]
        slots = [table[row, each // BLOCK] * BLOCK + each % BLOCK for row, each in enumerate(places)]
        try:
            instructions = self.instructions(heads)
            metadata = self.operators.cpu_attn_get_scheduler_metadata(
                num_reqs=len(lengths),
                num_heads=heads.num_heads,
                num_kv_heads=heads.num_kv_heads,
                head_dim=heads.width,
                seq_lens=lengths,
                dtype=torch.bfloat16,
                query_start_loc=starts,
                causal=True,
                sliding_window_size=-1,
                isa=instructions,
                enable_kv_split=self.splits_keys,
            )
        except (*_ABSENT, TypeError, ValueError, NotImplementedError) as failure:
            raise UnsupportedError(f"{self.name}: {(str(failure).splitlines() or ['no attention'])[0]}") from None
        return Step(self, heads, starts, lengths, table, torch.cat(slots).long(), metadata, instructions)

    def step_over(self, heads: Heads, queries: Sequence[int], contexts: Sequence[int], seed: int = 0) -> Step:
        """Return a `step` whose sequences lie in randomly ordered blocks."""
        torch = self.torch
        blocks = [-(-context // BLOCK) for context in contexts]
        generator = torch.Generator().manual_seed(seed)
        own = torch.randperm(sum(blocks), generator=generator).to(torch.int32).split(blocks)
        table = torch.zeros((len(blocks), max(blocks)), dtype=torch.int32)
        for row, each in enumerate(own):
            table[row, : len(each)] = each
        return self.step(heads, queries, contexts, table)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of sequences, prepared by `CpuEngine.step`."""

    engine: CpuEngine  # Whose kernels.
    heads: Heads  # Of the layer.
    starts: Tensor  # First new token of each sequence, and the end.
    lengths: Tensor  # Tokens of each sequence.
    table: Tensor  # Blocks of each sequence.
    slots: Tensor  # Slot of each new token in the cache.
    metadata: Any  # How the kernel splits the work between its threads.
    instructions: str  # Which of the engine's kernels is used.

    @property
    def num_blocks(self) -> int:
        """Number of blocks that a cache needs."""
        return int(self.table.max()) + 1

    @property
    def source(self) -> str:
        """Whose kernel it is."""
        return f"{self.engine.name} CPU attention ({self.instructions}), paged KV, written and read"

    def write(self, cache: Tensor, key: Tensor, value: Tensor) -> None:
        """Write keys and values of the new tokens, ``[tokens, heads, width]``, into a cache of `cache_shape`."""
        keys, values = halves(cache)
        self.engine.operators.cpu_attn_reshape_and_cache(key, value, keys, values, self.slots, self.instructions)

    def attend(self, query: Tensor, cache: Tensor, output: Tensor) -> Tensor:
        """Return the attention of the new tokens' queries, ``[tokens, heads, width]``, to the cache, in ``output``."""
        keys, values = halves(cache)
        self.engine.operators.cpu_attention_with_kv_cache(
            query=query,
            key_cache=keys,
            value_cache=values,
            output=output,
            query_start_loc=self.starts,
            seq_lens=self.lengths,
            scale=float(self.heads.width) ** -0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=self.table,
            softcap=0.0,
            scheduler_metadata=self.metadata,
            s_aux=None,
        )
        return output


def cache_shape(num_blocks: int, heads: Heads) -> tuple[int, int, int, int]:
    """Return the shape of a cache: for each block and head, its keys, then its values."""
    return num_blocks, heads.num_kv_heads, 2 * BLOCK, heads.width


def halves(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of a cache."""
    keys, values = cache.chunk(2, dim=2)
    return keys, values


def engine_kernels(torch: Any, kind: str, asked: str | None) -> CpuEngine | None:
    """Return the engine's kernels that a device is measured with, or None for PyTorch's.

    Args:
        asked: ``vllm``, ``none``, or None for whichever is available.

    Raises:
        UsageError: vLLM's are requested, but the device is not a CPU or the environment has no vLLM.
    """
    if asked == "none" or (kind != "cpu" and asked is None):
        return None
    found = find_engine(torch) if kind == "cpu" else None
    if asked is not None and found is None:
        raise UsageError(
            "has no kernels of a CPU that can be called here",
            key="--engine",
            value=asked,
            remedy="run this on a CPU, in the environment of a vLLM built for CPUs, or leave --engine out",
        )
    return found


def find_engine(torch: Any) -> CpuEngine | None:
    """Return vLLM's kernels for CPUs, or None where this environment has no vLLM built for CPUs."""
    try:
        version = importlib.metadata.version("vllm")
        operators = importlib.import_module("vllm._custom_ops")
        backend = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
        splits = bool(getattr(importlib.import_module("vllm.envs"), "VLLM_CPU_ATTN_SPLIT_KV", True))
        native = torch.ops._C
        is_there = all(hasattr(operators, name) for name in _ATTENTION) and hasattr(backend, "_get_attn_isa")
        is_there = is_there and hasattr(native, "cpu_attention_with_kv_cache")
    except (*_ABSENT, importlib.metadata.PackageNotFoundError):
        return None
    return CpuEngine(torch, f"vLLM {version.split('+')[0]}", operators, backend, splits) if is_there else None
