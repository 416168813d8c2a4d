"""Cancelling a request between two steps, and reading a replica inside a leap. Continuous batching with a KV cache.

A client that hangs up, a drain and a replacement all come down to `cancel`: whatever the request holds is free for
the next step. It takes effect at the end of the step that runs, as an engine's scheduler sees an abort.
"""

from __future__ import annotations

from heapq import heapify

from simserve.engine.decoding import generated_by_now, leave_decoding
from simserve.engine.gaps import keep_largest_gap, leave_stall
from simserve.engine.kernel import cut
from simserve.engine.kv import release_fixed, used_tokens
from simserve.engine.paces import leave_at_pace
from simserve.engine.prefix_cache import leave_prefix
from simserve.engine.state import SHIFT, Replica, RequestTable
from simserve.engine.swap import forget_swap


def end_leap(replica: Replica, now: float) -> bool:
    """Let the leap end with the step that runs at ``now``; return whether one runs at all."""
    if not replica.num_steps:
        return False
    if replica.num_steps > 1:
        cut(replica, now)
    return True


def cancel(replica: Replica, requests: RequestTable, index: int) -> None:
    """Take an unfinished request out of a replica: from its queue, or with its KV memory from its batch.

    Between `complete` and `plan` only: no step runs. The row keeps what was generated; its status is the caller's.

    Raises:
        ValueError: The replica does not hold the request.
    """
    entry = requests.finish_step[index] << SHIFT | index
    if index in replica.prefilling:
        _leave_prefill(replica, requests, index)
    elif entry in replica.finish_heap:
        _leave_decode(replica, requests, index, entry)
    else:
        replica.waiting.remove(index)
        replica.num_outstanding -= 1
        if requests.swapped_tokens[index]:
            forget_swap(replica, requests, index)
        return
    replica.running[:] = [each for each in replica.running if each != index]
    replica.num_running -= 1
    replica.num_outstanding -= 1
    if not replica.grows:
        release_fixed(replica, requests, index)


def _leave_prefill(replica: Replica, requests: RequestTable, index: int) -> None:
    done = requests.computed_tokens[index]
    replica.prefilling.remove(index)
    replica.prefilled_tokens -= done
    if replica.grows:
        replica.free_blocks += -(-done // replica.block_size)
    leave_prefix(replica, index, done)
    requests.computed_tokens[index] = 0


def _leave_decode(replica: Replica, requests: RequestTable, index: int, entry: int) -> None:
    generated = generated_by_now(replica, requests, index)
    keep_largest_gap(replica, requests, index)
    leave_stall(replica, requests.joined_leap[index])
    if replica.progress is not None:
        leave_at_pace(replica, requests, replica.progress, index)
    else:
        leave_decoding(replica, requests, index, requests.context_base[index] + replica.step, generated)
    if index in replica.late_tokens:
        replica.late_tokens.remove(index)
    replica.finish_heap.remove(entry)
    heapify(replica.finish_heap)
    leave_prefix(replica, index, requests.prompt_tokens[index] + generated - 1)
    requests.generated_tokens[index] = generated


def kv_share(replica: Replica, now: float) -> float:
    """Return the share of KV memory that is reserved at ``now``, inside a leap too; 0 without a KV cache.

    Inside a leap the blocks that its decodes take are counted in proportion to the time that has passed.
    """
    config = replica.config
    capacity = config.num_blocks * config.block_size
    if config.kv_allocation == "none" or not capacity:
        return 0.0
    used = float(used_tokens(replica))
    if replica.grows and replica.num_steps:
        passed = (now - replica.start_time) / (replica.end_time - replica.start_time)
        steps = replica.num_steps * min(max(passed, 0.0), 1.0)
        used += replica.num_scheduled_decodes * steps
        if replica.chunk_requests:
            used += replica.prefill_tokens * max(steps, 1.0)
    return min(used / capacity, 1.0)
