"""Preemption by recompute: who has to go when the free blocks do not cover the next step, and what it costs.

The victim keeps its generated tokens and prefills them again with its prompt. Swap comes later; `preempt` is its seam.
"""

from __future__ import annotations

from heapq import heapify

from simserve.engine.decoding import generated_by_now, growth_of_step, leave_decoding
from simserve.engine.gaps import keep_largest_gap, leave_stall
from simserve.engine.paces import leave_at_pace
from simserve.engine.prefix_cache import leave_prefix
from simserve.engine.state import EVICTED, MASK, SHIFT, UNFINISHED, Replica, RequestTable

RETRACT_DECODE_STEPS = 20
"""Steps of head-room in SGLang's new-token ratio after a retraction (``SGLANG_RETRACT_DECODE_STEPS``)."""


def make_room(replica: Replica, requests: RequestTable) -> bool:
    """Preempt until the next step's decodes have their blocks; return whether anyone had to go."""
    has_preempted = False
    while growth_of_step(replica) > replica.free_blocks:
        preempt(replica, requests)
        has_preempted = True
    return has_preempted


def preempt(replica: Replica, requests: RequestTable) -> int:
    """Send the victim back to the queue without its KV cache (recompute); return it."""
    index = _victim(replica, requests)
    if index in replica.prefilling:
        computed = done = requests.computed_tokens[index]
        replica.prefilling.remove(index)
        replica.prefilled_tokens -= done
        replica.free_blocks += -(-done // replica.block_size)
        requests.computed_tokens[index] = 0
    else:
        finish_step = requests.finish_step[index]
        generated = generated_by_now(replica, requests, index)
        keep_largest_gap(replica, requests, index)
        leave_stall(replica, requests.joined_leap[index])
        if replica.progress is not None:
            leave_at_pace(replica, requests, replica.progress, index)
        else:
            leave_decoding(replica, requests, index, requests.context_base[index] + replica.step, generated)
        replica.finish_heap.remove(finish_step << SHIFT | index)
        heapify(replica.finish_heap)
        requests.last_token_time[index] = max(requests.last_token_time[index], replica.last_decode_time)
        requests.generated_tokens[index] = generated
        computed = requests.prompt_tokens[index] + generated - 1
    if replica.cache is not None:
        leave_prefix(replica, index, computed)
    requests.num_preemptions[index] += 1
    if replica.evictions is not None:
        replica.evictions.extend((index, replica.start_time, EVICTED))
    replica.num_running -= 1
    if replica.uses_estimate:
        replica.waiting.append(index)
        _raise_ratio(replica, requests)
    else:
        replica.waiting.appendleft(index)
    return index


def _victim(replica: Replica, requests: RequestTable) -> int:
    """Return who is preempted: vLLM's last admitted, or SGLang's shortest output (ties: longest prompt, last in)."""
    running = replica.running
    running[:] = [index for index in running if requests.status[index] == UNFINISHED]
    if not replica.uses_estimate or not replica.num_decoding:
        return running.pop()
    position = -1
    best: tuple[int, int] | None = None
    for candidate, index in enumerate(running):
        if index in replica.prefilling:
            continue
        generated = generated_by_now(replica, requests, index)
        key = (generated, -requests.prompt_tokens[index])
        if best is None or key <= best:
            best, position = key, candidate
    return running.pop(position)


def _raise_ratio(replica: Replica, requests: RequestTable) -> None:
    """SGLang's new-token ratio after a retraction, from the decoding requests that are left."""
    num_left = replica.num_decoding
    replica.ratio_steps_skipped = 1
    if not num_left:
        return
    most = generated = 0
    for entry in replica.finish_heap:
        index = entry & MASK
        most += requests.max_tokens[index]
        generated += generated_by_now(replica, requests, index)
    replica.new_token_ratio = min(1.0, (generated + RETRACT_DECODE_STEPS * num_left) / (most + 1))


def decay_ratio(replica: Replica, num_steps: int) -> None:
    """Let SGLang's new-token ratio fall over ``num_steps`` decode steps; the step of a retraction does not count."""
    config = replica.config
    decayed = replica.new_token_ratio - config.new_token_ratio_decay * (num_steps - replica.ratio_steps_skipped)
    replica.new_token_ratio = max(config.new_token_ratio_minimum, decayed)
