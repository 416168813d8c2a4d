"""Loras: the LoRA adapters of one replica, which of them are on its GPU and in its host memory, and which requests use
them.

vLLM's rules (v1/core/sched/scheduler.py and lora/worker_manager.py, 0.8 to 0.20): a batch holds at most ``max_loras``
adapters. A waiting request whose adapter would be one too many is passed over: those after it are still tried, and it
keeps its place. An adapter without a slot on the GPU replaces the least recently used one; host memory keeps
``max_cpu_loras``, including those on the GPU, by the same rule. The step that admits the request waits until its
adapter is loaded, as vLLM loads in the step itself. A decode replica loads it too, for the first step with the KV cache
that a prefill replica has sent; a cache whose adapter has no seat waits. Each rank of data-parallel attention has its
own slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.engine.cache_state import IN_HOST, ON_DISK, ON_GPU, Loras
from simserve.engine.kv_tier import give_up, least_recent

if TYPE_CHECKING:
    from simserve.engine.state import Replica


def has_lora_seat(loras: Loras, index: int) -> bool:
    """Return whether the adapter of a request may be in the batch: it already is, or there is a free seat for one."""
    adapter = loras.adapters[index]
    return adapter < 0 or loras.users[adapter] > 0 or loras.num_active < loras.max_loras


def count_waiting(loras: Loras, index: int, change: int) -> None:
    """Record that a request joins the queue (1), or leaves it (-1)."""
    adapter = loras.adapters[index]
    if adapter < 0:
        loras.num_eligible += change
        return
    loras.waiting[adapter] += change
    if loras.users[adapter]:
        loras.num_eligible += change


def is_shut(loras: Loras) -> bool:
    """Return whether every waiting request needs an adapter for which the batch has no seat."""
    return loras.num_active == loras.max_loras and not loras.num_eligible


def skip_waiting(replica: Replica, loras: Loras) -> None:
    """Pass over the head of the queue, until `restore_skipped`."""
    loras.skipped.append(replica.waiting.popleft())


def restore_skipped(replica: Replica, loras: Loras) -> None:
    """Put the requests that were passed over back at the head of the queue, in their order."""
    while loras.skipped:
        replica.waiting.appendleft(loras.skipped.pop())


def use_adapter(replica: Replica, loras: Loras, index: int) -> None:
    """Let a request leave the queue and use its adapter."""
    count_waiting(loras, index, -1)
    take_adapter(replica, loras, index)


def take_adapter(replica: Replica, loras: Loras, index: int) -> None:
    """Let a request that joins the batch use its adapter; load the adapter if it has no slot."""
    adapter = loras.adapters[index]
    if adapter < 0:
        return
    loras.num_asked += 1
    if loras.places[adapter] == ON_GPU:
        loras.num_hits += 1
        if not loras.users[adapter]:
            del loras.idle[adapter + 1]
    else:
        _load(replica, loras, adapter)
    if not loras.users[adapter]:
        loras.num_active += 1
        loras.num_eligible += loras.waiting[adapter]
    loras.users[adapter] += 1


def _load(replica: Replica, loras: Loras, adapter: int) -> None:
    """Load an adapter into a slot, which the least recently used one may have to give up."""
    if loras.num_on_gpu == loras.max_loras:
        oldest = least_recent(loras.idle)
        del loras.idle[oldest]
        loras.places[oldest - 1] = IN_HOST
        loras.num_in_host += 1
        give_up(loras.in_host, oldest)
    else:
        loras.num_on_gpu += 1
    loras.num_swaps += 1
    loras.loading_seconds += replica.config.lora_host_seconds
    if loras.places[adapter] == IN_HOST:
        del loras.in_host[adapter + 1]
        loras.num_in_host -= 1
    else:
        loras.num_disk_loads += 1
        loras.loading_seconds += replica.config.lora_disk_seconds
    loras.places[adapter] = ON_GPU
    if loras.num_in_host + loras.num_on_gpu > loras.max_cpu_loras:
        forgotten = least_recent(loras.in_host)
        del loras.in_host[forgotten]
        loras.places[forgotten - 1] = ON_DISK
        loras.num_in_host -= 1


def leave_adapter(loras: Loras, index: int) -> None:
    """Let a request that leaves the batch release its adapter, which stays in its slot until that is needed."""
    adapter = loras.adapters[index]
    if adapter < 0:
        return
    loras.users[adapter] -= 1
    if not loras.users[adapter]:
        loras.num_active -= 1
        loras.num_eligible -= loras.waiting[adapter]
        give_up(loras.idle, adapter + 1)


def count_decoding(loras: Loras, index: int, change: int) -> None:
    """Record that a request begins to decode (1), or no longer does (-1)."""
    if loras.adapters[index] >= 0:
        loras.num_decoding += change


def lora_seconds(replica: Replica, loras: Loras, num_decodes: int) -> float:
    """Return the time that adapters add to each step with the scheduled chunks and ``num_decodes`` decodes.

    It consists of kernel starts, the adapters that are read, and the tokens that pass through them
    (`simserve.perf.loras`). Adapters of the whole batch are read, or in a step of prompts only those of the prompts.
    """
    adapters, chunks = loras.adapters, replica.chunk_requests
    tokens = count = 0
    if num_decodes:
        tokens = loras.num_decoding * replica.tokens_per_decode
    loras.mark += 1
    for position in range(len(chunks)):
        adapter = adapters[chunks[position]]
        if adapter >= 0:
            tokens += replica.chunk_tokens[position]
            if loras.marks[adapter] != loras.mark:
                loras.marks[adapter] = loras.mark
                count += 1
    if not tokens:
        return 0.0
    if not replica.is_prefill_first or num_decodes:
        count = loras.num_active
    times = replica.times
    return times.lora_step_seconds + times.lora_adapter_seconds * count + times.lora_token_seconds * tokens


def take_lora_loading(loras: Loras) -> float:
    """Return how long the planned step waits for its adapters, and count it."""
    seconds = loras.loading_seconds
    loras.loading_seconds = 0.0
    loras.load_seconds += seconds
    return seconds
