"""Pools of SGLang 0.5.22 and 0.5.23 for models with states: a slot a request, two to track, and those of its tree."""

from __future__ import annotations

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType

TRACKED = 4
"""Steps of the grid of prompts between two states of decodes: 256 tokens and 64 by default."""
COMPONENTS = (ComponentType.FULL, ComponentType.MAMBA)


def pool_of(case, seats, longest):
    """Return the pool of requests with their states, each of one number."""
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=1, n_groups=1, num_heads=1, head_dim=1, state_size=1, conv_kernel=2
    )
    return HybridReqToTokenPool(
        size=seats + 1,
        mamba_size=case["num_states"],
        mamba_spec_state_size=0,
        max_context_len=longest + 8,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=[0]),
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=case["state_grid"] > 0,
        enable_overlap_schedule=case["async_scheduling"],
    )


# There is no device whose copies would need it.
torch.Tensor.pin_memory = lambda tensor, *arguments: tensor
