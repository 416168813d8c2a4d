"""States of linear attention and Mamba beside a radix tree: how many, and where prompts and answers leave them.

Knows SGLang's pools (`simserve.perf.memory`), not which states are found: that is `simserve.engine.radix_tree`.
"""

from __future__ import annotations

import math

from simserve.perf.memory import kept_states
from simserve.perf.shape import ReplicaShape

STATE_CHUNK = 64
"""Tokens of a chunk of the kernels of linear attention (``FLA_CHUNK_SIZE`` of SGLang's chunk_delta_h.py)."""
ANSWER_STATES = 256
"""Tokens of an answer between two states (SGLang's ``mamba_track_interval``)."""


def tree_fields(shape: ReplicaShape) -> dict[str, int]:
    """Return the scheduler's fields for a model's states in a radix tree (SGLang); without such a tree, none.

    A prompt leaves states at chunks of its kernels: 64 tokens, or as the model's Mamba layers have it; an answer every
    256. A request has a state, and where steps are scheduled ahead two more that are written in turn.
    """
    engine, model = shape.engine, shape.model
    if not (engine.keeps_radix_tree and engine.enable_prefix_caching):
        return {}
    fields = {"tree_states": kept_states(shape)}
    if not engine.linear_states_to_overlap or not (engine.async_scheduling or engine.block_size > 1):
        return fields
    grid = math.lcm(STATE_CHUNK if model.mamba is None else model.mamba.chunk_size, engine.block_size)
    tracked = engine.linear_states_to_overlap if engine.async_scheduling else 1
    return fields | {
        "seat_states": 1 + tracked,
        "state_grid": grid,
        "state_interval": math.lcm(grid, ANSWER_STATES),
    }
