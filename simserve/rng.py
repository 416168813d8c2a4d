"""Named random streams: every source of randomness has its own, so that adding one changes no other.

This module knows no distribution and no scenario.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, name: str, replication: int = 0) -> np.random.Generator:
    """Return the generator of one named stream.

    The same three arguments give the same numbers on every platform; different names or replications give
    independent streams (numpy ``SeedSequence`` spawn keys).

    Args:
        seed: Seed of the run, >= 0.
        name: What the stream is for, for example ``"arrivals"``.
        replication: Index of the replication, >= 0.
    """
    digest = hashlib.sha256(name.encode()).digest()
    key = (int.from_bytes(digest[:8], "big"), replication)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))
