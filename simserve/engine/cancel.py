"""Cancelling a request between two steps. Continuous batching with a KV cache.

A client that hangs up, a drain and a replacement all come down to `cancel`: whatever the request holds is free for
the next step. It takes effect at the end of the step that runs, as an engine's scheduler sees an abort.
"""

from __future__ import annotations

from heapq import heapify

from simserve.engine.admission import note_left
from simserve.engine.decoding import generated_by_now, leave_decoding
from simserve.engine.gaps import keep_largest_gap, leave_stall
from simserve.engine.kv import release_fixed
from simserve.engine.loras import count_decoding, count_waiting, leave_adapter
from simserve.engine.numbers import remove_all
from simserve.engine.paces import leave_at_pace
from simserve.engine.prefix_cache import leave_prefix
from simserve.engine.state import SHIFT, Replica, RequestTable
from simserve.engine.swap import forget_swap
from simserve.engine.windows import give_back


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
        note_left(replica, requests, index)
    else:
        replica.waiting.remove(index)
        if replica.loras is not None:
            count_waiting(replica.loras, index, -1)
        replica.num_outstanding -= 1
        if requests.swapped_tokens[index]:
            forget_swap(replica, requests, index)
        return
    remove_all(replica.running, index)
    replica.num_running -= 1
    replica.num_outstanding -= 1
    if replica.loras is not None:
        leave_adapter(replica.loras, index)


def _leave_prefill(replica: Replica, requests: RequestTable, index: int) -> None:
    done = requests.computed_tokens[index]
    replica.prefilling.remove(index)
    replica.prefilled_tokens -= done
    free_blocks = replica.free_blocks
    if replica.grows:
        give_back(replica, -(-done // replica.block_size))
    else:
        release_fixed(replica, requests, index)
    leave_prefix(replica, index, done, replica.free_blocks - free_blocks)
    requests.computed_tokens[index] = 0


def _leave_decode(replica: Replica, requests: RequestTable, index: int, entry: int) -> None:
    generated, free_blocks = generated_by_now(replica, requests, index), replica.free_blocks
    keep_largest_gap(replica, requests, index)
    leave_stall(replica, requests.joined_leap[index])
    if replica.loras is not None:
        count_decoding(replica.loras, index, -1)
    if replica.progress is not None:
        leave_at_pace(replica, requests, replica.progress, index)
    else:
        leave_decoding(replica, requests, index, requests.context_base[index] + replica.step, generated)
    remove_all(replica.late_tokens, index)
    remove_all(replica.late_prompts, index)
    remove_all(replica.swapped_in, index)
    replica.finish_heap.remove(entry)
    heapify(replica.finish_heap)
    if not replica.grows:
        release_fixed(replica, requests, index)
    tokens = requests.prompt_tokens[index] + generated - 1
    leave_prefix(replica, index, tokens, replica.free_blocks - free_blocks)
    requests.generated_tokens[index] = generated
