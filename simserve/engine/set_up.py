"""What a replica is given for one run beyond its configuration: the queue and the cache that the requests call for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.engine.state import Replica, RequestTable

if TYPE_CHECKING:
    from simserve.engine.prefix_cache import PrefixPaths


def set_up(replica: Replica, requests: RequestTable, paths: PrefixPaths | None) -> None:
    """Give a new replica its queue and, where prompts share anything (``paths``), its prefix cache."""
    replica.has_thinking = len(requests.thinking_tokens) > 0
    replica.has_encoder = len(requests.encoder_seconds) > 0
    if replica.config.scheduling_policy != "fcfs":
        from simserve.engine.queue import OrderedQueue

        replica.is_ordered = True
        replica.waiting = OrderedQueue(replica.config, requests)
    if replica.config.max_loras and len(requests.adapter):
        from simserve.engine.loras import Loras

        replica.loras = Loras(replica.config, requests.adapter)
    if paths is not None:
        from simserve.engine.kv_tier import KVTier
        from simserve.engine.prefix_cache import PrefixCache

        tiers = [KVTier(each) for each in replica.config.kv_tiers if not each.is_shared]
        seconds, chunk = replica.times.token_seconds, replica.config.max_chunk_tokens
        chunk = min(chunk, len(seconds) - 1)
        replica.cache = PrefixCache(
            paths, replica.config, tiers, seconds[chunk] / chunk, replica.times.prefill_pair_seconds
        )
        replica.has_extras = True
