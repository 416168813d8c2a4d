"""What a replica is given for one run beyond its configuration: the queue and the cache that the requests call for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.engine.state import Replica, RequestTable

if TYPE_CHECKING:
    from simserve.engine.prefix_cache import PrefixPaths


def set_up(replica: Replica, requests: RequestTable, paths: PrefixPaths | None) -> None:
    """Give a new replica its queue and, where prompts share anything (``paths``), its prefix cache."""
    if replica.config.scheduling_policy != "fcfs":
        from simserve.engine.queue import OrderedQueue

        replica.is_ordered = True
        replica.waiting = OrderedQueue(replica.config, requests)
    if paths is not None:
        from simserve.engine.prefix_cache import PrefixCache

        config, tier = replica.config, None
        if config.num_offload_blocks:
            from simserve.engine.kv_tier import KVTier

            tier = KVTier(config.num_offload_blocks, config.offload_block_seconds, config.offload_latency)
        replica.cache = PrefixCache(paths, config, tier)
        replica.has_extras = True
