"""What a replica is given for one run beyond its configuration: the queue and the cache that the requests call for."""

from __future__ import annotations

from simserve.engine.kv_tier import KVTier
from simserve.engine.prefix_cache import PrefixCache, PrefixPaths
from simserve.engine.queue import OrderedQueue
from simserve.engine.state import Replica, RequestTable


def set_up(replica: Replica, requests: RequestTable, paths: PrefixPaths | None) -> None:
    """Give a new replica its queue and, where prompts share anything (``paths``), its prefix cache."""
    if replica.config.scheduling_policy != "fcfs":
        replica.is_ordered = True
        replica.waiting = OrderedQueue(replica.config, requests)
    if paths is not None:
        config, tier = replica.config, None
        if config.num_offload_blocks:
            tier = KVTier(config.num_offload_blocks, config.offload_block_seconds, config.offload_latency)
        replica.cache = PrefixCache(paths, tier)
        replica.has_extras = True
