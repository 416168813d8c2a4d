"""First visible tokens: when the answer of a request begins that thinks first, and hides what it thinks.

A request that joins the decoding ones knows at which step it generates that token, as it knows its last one. The heap
of those steps ends no leap: the time of a step inside a leap follows from the leap.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simserve.engine.progress import GRID
from simserve.engine.state import MASK, SHIFT, Replica, RequestTable


def expect_answer(replica: Replica, requests: RequestTable, index: int, generated: int) -> None:
    """Note at which step a request that decodes from the next step on shows its first token, if it still will.

    Args:
        replica: The replica, whose requests think.
        requests: The table.
        index: The request.
        generated: Its tokens so far.
    """
    missing = requests.thinking_tokens[index] + 1 - generated
    if missing <= 0 or requests.thinking_tokens[index] >= requests.output_tokens[index]:
        return
    steps = missing
    if replica.progress is not None:
        steps = -(-GRID * missing // requests.pace[index])
    answer_step = replica.step + steps
    requests.answer_step[index] = answer_step
    heappush(replica.answer_heap, answer_step << SHIFT | index)


def begin_answers(replica: Replica, requests: RequestTable, num_steps: int, free_at: float) -> None:
    """Note when answers began in the leap that has run; its steps are counted, and nobody has left since.

    Args:
        replica: The replica.
        requests: The table.
        num_steps: Steps of the leap.
        free_at: When the API server would have been free before it, seconds.
    """
    heap = replica.answer_heap
    start, first, increment = replica.start_time, replica.first_seconds, replica.increment_seconds
    sending = replica.api_token_seconds * replica.num_scheduled_decodes
    until = (replica.step + 1) << SHIFT
    while heap and heap[0] < until:
        entry = heappop(heap)
        index, step = entry & MASK, entry >> SHIFT
        if requests.answer_step[index] != step or requests.replica_id[index] != replica.identity:
            # It was preempted, or has left.
            continue
        if replica.config.data_parallel_size > 1 and requests.rank[index] != replica.rank:
            continue
        k = step - replica.step + num_steps
        if k >= num_steps:
            requests.answer_time[index] = max(replica.end_time, replica.api_free_at)
        else:
            sent = max(free_at, start) + sending * k
            requests.answer_time[index] = max(start + first * k + increment * (k * (k - 1) * 0.5), sent)
        requests.answer_step[index] = -1


def note_recomputed(replica: Replica, requests: RequestTable, index: int, generated: int) -> None:
    """Note that an answer begins with the token that follows from computing a preempted request again."""
    if generated == requests.thinking_tokens[index] + 1:
        requests.answer_time[index] = max(replica.end_time, replica.api_free_at)
