"""Requests that a step passes over: with priorities, vLLM up to 0.32 does not always look at all that run.

It looks at them in the order of their admission. Who needs a block, and would itself be the next to give one up, is
preempted and ends the pass: those behind it keep their blocks and compute nothing in that step (``ends_pass``). Up to
0.27, where a request that is done, before it in the order, gives up its blocks instead, the pass loses count by one and
misses the request behind the one that needed them (``misses_next``; pull request 49206).

A request that decodes and is passed over leaves the aggregates of those that decode for one step.
"""

from __future__ import annotations

from heapq import heapify, heappush

from simserve.engine.answers import expect_answer
from simserve.engine.decoding import generated_by_now
from simserve.engine.gaps import keep_largest_gap
from simserve.engine.loras import count_decoding
from simserve.engine.numbers import remove_all
from simserve.engine.state import SHIFT, Replica, RequestTable
from simserve.engine.windows import join_window, leave_window


def blocks_of_next(replica: Replica, requests: RequestTable, index: int) -> tuple[int, int]:
    """Return what the next step of a decoding request takes: blocks of the pool, and of the windows' own pool."""
    context = requests.context_base[index] + replica.step
    if context % replica.block_size:
        return 0, 0
    window = int(replica.keeps_windows and context < replica.window_context)
    return replica.full_weight + replica.window_weight * window, window


def pass_over(replica: Replica, requests: RequestTable) -> None:
    """Take those of ``passed_over`` that decode out of the step that is being planned."""
    for position in range(len(replica.passed_over)):
        index = replica.passed_over[position]
        if index not in replica.prefilling:
            _leave(replica, requests, index)


def _leave(replica: Replica, requests: RequestTable, index: int) -> None:
    step = replica.step
    context = requests.context_base[index] + step
    requests.generated_tokens[index] = generated_by_now(replica, requests, index)
    if index in replica.swapped_in:
        # It has not decoded since it was passed over before.
        replica.swapped_in.remove(index)
    else:
        keep_largest_gap(replica, requests, index)
        requests.last_token_time[index] = max(requests.last_token_time[index], replica.last_decode_time)
    if replica.has_thinking:
        requests.answer_step[index] = -1
    if replica.loras is not None:
        count_decoding(replica.loras, index, -1)
    replica.num_decoding -= 1
    replica.context_sum -= context
    replica.residues[(step - context) % replica.block_size] -= 1
    if replica.keeps_windows:
        free_blocks, free_window_blocks = replica.free_blocks, replica.free_window_blocks
        leave_window(replica, requests, index, -(-context // replica.block_size))
        replica.free_blocks, replica.free_window_blocks = free_blocks, free_window_blocks
    replica.finish_heap.remove(requests.finish_step[index] << SHIFT | index)
    heapify(replica.finish_heap)
    # Its tokens stay in the KV cache, and are those that it has when the step ends.
    requests.computed_tokens[index] = context
    replica.prefilled_tokens += context
    requests.context_base[index] = context - step - 1


def take_back(replica: Replica, requests: RequestTable, index: int) -> None:
    """Let one of those passed over be as before, since it has to go: it is preempted in the same step."""
    remove_all(replica.passed_over, index)
    if index not in replica.prefilling:
        _rejoin(replica, requests, index)


def resume(replica: Replica, requests: RequestTable) -> None:
    """Let those that were passed over decode from the next step on; theirs is the gap since their last token."""
    for position in range(len(replica.passed_over)):
        index = replica.passed_over[position]
        if index not in replica.prefilling:
            _rejoin(replica, requests, index)
            requests.joined_leap[index] = replica.leap_index
    replica.passed_over.clear()


def _rejoin(replica: Replica, requests: RequestTable, index: int) -> None:
    context, generated, step = requests.computed_tokens[index], requests.generated_tokens[index], replica.step
    requests.computed_tokens[index] = 0
    replica.prefilled_tokens -= context
    requests.context_base[index] = context - step
    requests.finish_step[index] = step + requests.output_tokens[index] - generated
    heappush(replica.finish_heap, requests.finish_step[index] << SHIFT | index)
    if replica.has_thinking:
        expect_answer(replica, requests, index, generated)
    if replica.loras is not None:
        count_decoding(replica.loras, index, 1)
    replica.num_decoding += 1
    replica.context_sum += context
    replica.residues[(step - context) % replica.block_size] += 1
    if replica.keeps_windows:
        join_window(replica, requests, index, context)
    replica.swapped_in.append(index)
