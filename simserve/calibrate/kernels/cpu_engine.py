"""The kernels that vLLM has on a CPU, where this environment holds one: paged attention, products and sampling.

They are called as vLLM 0.32 calls them (`v1/attention/backends/cpu_attn.py`, `_custom_ops.py`): keys and values lie in
blocks of 128 tokens in a layout of the kernel's own, and a step's metadata, which all layers share, is not timed. None
of it is copied; an interface of another shape counts as no vLLM.
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

BLOCK = 128
"""Tokens of a KV block, as vLLM takes on a CPU by default (`platforms/cpu.py`)."""

PRIMITIVES = 32
"""Shapes whose oneDNN primitives a layer keeps (`model_executor/layers/utils.py`)."""

_ATTENTION = ("cpu_attn_get_scheduler_metadata", "cpu_attn_reshape_and_cache", "cpu_attention_with_kv_cache")
_PRODUCTS = ("create_onednn_mm", "onednn_mm")
_ABSENT = (ImportError, AttributeError, RuntimeError, OSError)
"""What an import of a vLLM that is built for something else, or half there, raises."""


@dataclass(frozen=True, slots=True)
class Heads:
    """What a call of attention has beside its lengths: query heads, key-value heads, width of a head."""

    num_heads: int
    num_kv_heads: int
    width: int


@dataclass(frozen=True, slots=True)
class CpuEngine:
    """vLLM's kernels.

    Attributes:
        torch: PyTorch.
        name: ``vLLM`` and its version.
        operators: vLLM's ``_custom_ops``.
        backend: Its module of attention on CPUs.
        splits_keys: Whether long contexts are dealt to several threads.
    """

    torch: Any
    name: str
    operators: Any
    backend: Any
    splits_keys: bool = True

    @property
    def has_products(self) -> bool:
        """Whether it multiplies by oneDNN, with weights laid out once."""
        return bool(getattr(self.operators, "_supports_onednn", False)) and all(
            hasattr(self.operators, name) for name in _PRODUCTS
        )

    def laid_out(self, weight: Tensor) -> Any:
        """Return weights ``[n, k]`` as they stay in memory."""
        return self.operators.create_onednn_mm(weight.t(), PRIMITIVES)

    def multiply(self, x: Tensor, weight: Any) -> Tensor:
        """Return ``[m, n]`` of inputs ``[m, k]`` and weights laid out."""
        return self.operators.onednn_mm(weight, x, None)

    @property
    def has_sampling(self) -> bool:
        """Whether it draws tokens in a kernel of its own."""
        return hasattr(self.torch.ops._C, "fused_gumbel_argmax")

    def sample(self, logits: Tensor, seeds: Tensor) -> Tensor:
        """Return a token a row, drawn from logits in FP32 ``[rows, vocabulary]`` with a seed each."""
        return self.torch.ops._C.fused_gumbel_argmax(logits, seeds)

    def instructions(self, heads: Heads) -> str:
        """Return which of its kernels the engine takes here (``amx``, ``vec``, ...)."""
        return str(self.backend._get_attn_isa(self.torch.bfloat16, BLOCK, heads.width))

    def step(self, heads: Heads, queries: Sequence[int], contexts: Sequence[int], table: Tensor) -> Step:
        """Return a step of sequences: ``queries`` new tokens each, at the end of ``contexts``.

        Args:
            heads: Of the layer.
            queries: New tokens of each sequence.
            contexts: Tokens of each, the new ones included.
            table: Blocks of each, ``[sequences, blocks]``, int32.

        Raises:
            UnsupportedError: This vLLM has no kernel for such heads, or is called otherwise.
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
        """Return a `step` whose sequences lie in blocks of no order."""
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
    """A step of sequences, as `CpuEngine.step` made it ready.

    Attributes:
        engine: Whose kernels.
        heads: Of the layer.
        starts: First new token of each sequence, and the end.
        lengths: Tokens of each.
        table: Its blocks.
        slots: Place of each new token in the cache.
        metadata: How the kernel deals the work to its threads.
        instructions: Which of its kernels is taken.
    """

    engine: CpuEngine
    heads: Heads
    starts: Tensor
    lengths: Tensor
    table: Tensor
    slots: Tensor
    metadata: Any
    instructions: str

    @property
    def num_blocks(self) -> int:
        """Blocks that a cache needs."""
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
        """Return what the new tokens' queries, ``[tokens, heads, width]``, make of the cache; in ``output``."""
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
    """Return the shape of a cache: of each block and head its keys, then its values."""
    return num_blocks, heads.num_kv_heads, 2 * BLOCK, heads.width


def halves(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of a cache."""
    keys, values = cache.chunk(2, dim=2)
    return keys, values


def engine_kernels(torch: Any, kind: str, asked: str | None) -> CpuEngine | None:
    """Return the engine's kernels that a device is measured with; none: PyTorch's.

    Args:
        torch: PyTorch.
        kind: Of the device.
        asked: ``vllm``, ``none``, or None for what there is.

    Raises:
        UsageError: vLLM's are asked for, and this is no CPU, or the environment holds none.
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
    """Return vLLM's kernels of a CPU; none where this environment holds no vLLM that is built for CPUs."""
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
