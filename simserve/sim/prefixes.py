"""From what the requests of a run share to what a replica's cache looks up. Knows no cache."""

from __future__ import annotations

from simserve.engine.config import EngineConfig
from simserve.engine.prefix_cache import PrefixPaths
from simserve.workload.requests import RequestSpecs


def prefix_paths(config: EngineConfig, specs: RequestSpecs, as_lists: bool = True) -> PrefixPaths | None:
    """Return what the requests share in blocks of a replica; None where nothing is, or where it is not cached.

    Args:
        config: The engine.
        specs: What arrives.
        as_lists: Whether it is read from Python, not from compiled code.
    """
    prefixes = specs.prefixes
    if prefixes is None or not config.enable_prefix_caching:
        return None
    return PrefixPaths(prefixes.offsets, prefixes.segments, prefixes.ends, config.block_size, as_lists)
