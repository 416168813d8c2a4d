"""Paces of speculative decoding where pools differ: what a decode step brings each request, by the pool it is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simserve import rng
from simserve.engine.progress import GRID
from simserve.sim.pools import PoolSetup
from simserve.workload.acceptance import draw_paces
from simserve.workload.requests import RequestSpecs


def pool_paces(setups: Sequence[PoolSetup], specs: RequestSpecs) -> list[list[int] | None]:
    """Return the pace of every request on each pool, in parts of a token; None: no pool has drafts of its own.

    One token a step where a pool does not draft. All others are drawn from the same uniforms: a request that is lucky
    on one pool is lucky on the others.
    """
    asked = np.where(specs.max_tokens > 0, specs.max_tokens, specs.output_tokens)
    tokens = np.minimum(specs.output_tokens, asked)
    found: list[list[int] | None] = []
    for setup in setups:
        if not setup.acceptance:
            found.append([GRID] * len(specs) if any(each.acceptance for each in setups) else None)
            continue
        generator = rng.stream(specs.seed, "speculation", specs.replication)
        found.append(draw_paces(tokens, setup.acceptance, generator, GRID).tolist())
    return found


def with_any_pace(specs: RequestSpecs, paces: Sequence[list[int] | None]) -> RequestSpecs:
    """Return the requests with room for a pace each; which one holds is written where a request joins a pool."""
    drawn = next((each for each in paces if each is not None), None)
    return specs if drawn is None else replace(specs, pace=np.array(drawn, dtype=np.int64))
