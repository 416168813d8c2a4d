"""What a chunk of a prompt does with the latent keys of the tokens before it. Knows a stage, and no step.

A prompt attends to full keys and values. Of the tokens before a chunk, computed in earlier steps or found in a cache,
only latent keys are stored. So every chunk gathers them, multiplies them by ``kv_b`` again and copies rotary parts
behind the keys of all heads (vLLM ``_compute_prefill_context``; SGLang
``forward_normal_chunked_kv_core`` in models/deepseek_v2.py; TensorRT-LLM ``forward_context_with_cached_kv`` in
_torch/modules/attention.py). Sparse attention reads latent keys as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simserve.perf.efficiency import Array, memory_efficiency
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import COMPUTE, OperatorSeconds
from simserve.perf.stage import Stage, StageAttention, stage_blocks

EXPANDING: Final = ("vllm", "sglang", "tensorrt-llm")  # Engines whose prompts attend to full keys.
MANY_TOKENS: Final = 16384.0  # Rows from which a product's time grows in proportion.
FEW_TOKENS: Final = 512
"""Tokens of a step whose own product is still one pass over its weights, so that fewer cost no less."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Seconds for each latent key, in all layers of a stage."""

    product: float  # Its keys and values without rotary part.
    copies: float  # Gathering it, and the keys of all heads with rotary parts.

    @property
    def seconds(self) -> float:
        """Both."""
        return self.product + self.copies

    def take_own(self, seconds: OperatorSeconds, tokens: Array) -> None:
        """Take off what a chunk's own tokens do without, as each is counted among the keys that it reads.

        Where the host sets the pace of a step, they stay counted.

        Args:
            seconds: Of the GPU in steps; changed.
            tokens: Of the steps.
        """
        own = np.maximum(tokens - FEW_TOKENS, 0.0)
        seconds.add_row("gemm", COMPUTE, -self.product * own)
        seconds.add_row("elementwise", COMPUTE, -self.copies * own)


def expansion_of(stage: Stage) -> Expansion:
    """Return what expanding a latent key takes; nothing without latent attention, or where engines do not expand."""
    expanding = [each for each in stage.attentions if each.layers.mla is not None and each.layers.topk is None]
    if not expanding or stage.shape.engine.name not in EXPANDING:
        return Expansion(0.0, 0.0)
    product = copies = 0.0
    for each, block in zip(stage.attentions, stage_blocks(stage), strict=False):
        if each not in expanding:
            continue
        sizes = np.array([MANY_TOKENS, 2.0 * MANY_TOKENS])
        for call in block.calls:
            if call.gemm is not None and call.gemm.name == "kv_b":
                priced = call.parts(sizes)
                total = (priced.parts if isinstance(priced, OperatorSeconds) else priced).sum(axis=0)
                product += block.count * float(total[1] - total[0]) / MANY_TOKENS
        moved = _copied_bytes(stage, each)
        rate = stage.machine.bandwidth * memory_efficiency(stage.machine, "elementwise")
        copies += block.count * moved / rate
    return Expansion(product, copies)


def _copied_bytes(stage: Stage, attention: StageAttention) -> float:
    """Return the bytes of one key in one layer: read from the cache, written in 16 bit, and copied for each head."""
    mla, shape = attention.layers.mla, stage.shape
    assert mla is not None
    heads = attention.layers.num_heads / shape.tensor_parallel_size
    stored = attention.layers.kv_bytes_per_token(shape.kv_element_bytes, shape.tensor_parallel_size)
    copied = heads * (2 * mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    return stored + ACTIVATION_BYTES * (mla.kv_lora_rank + mla.qk_rope_head_dim + copied)
