"""Requests in the order of their arrival, whoever was admitted first: TensorRT-LLM's order. Knows no blocks.

Its executor keeps all requests that have a seat in one list, and looks at them in this order in every step, those that
wait and those that run (``active_requests``, ``_fetch_new_requests`` in its ``py_executor.py``).
"""

from __future__ import annotations

from simserve.engine.state import Replica, RequestTable


def is_before(requests: RequestTable, index: int, other: int) -> bool:
    """Return whether a request reached the scheduler before another, or with it and has the smaller number."""
    ready_time = requests.ready_time
    return ready_time[index] < ready_time[other] or (ready_time[index] == ready_time[other] and index < other)


def queue_by_arrival(replica: Replica, requests: RequestTable, index: int) -> None:
    """Put a request back into the queue, after those that arrived before it."""
    waiting, passed = replica.waiting, replica.deferred
    num_passed = len(passed)
    while waiting and is_before(requests, waiting[0], index):
        passed.append(waiting.popleft())
    waiting.appendleft(index)
    while len(passed) > num_passed:
        waiting.appendleft(passed.pop())


def seat_by_arrival(requests: RequestTable, seated: list[int], index: int) -> None:
    """Add a request to those that run, which are in the order of arrival."""
    seated.append(index)
    place = len(seated) - 1
    while place and is_before(requests, index, seated[place - 1]):
        seated[place] = seated[place - 1]
        seated[place - 1] = index
        place -= 1


def continue_prompts(
    replica: Replica, requests: RequestTable, position: int, until: int, max_chunk: int, budget: int
) -> tuple[int, int]:
    """Give chunks to the running prompts from a position on, whose blocks are reserved, in the order of arrival.

    Args:
        replica: The replica.
        requests: The table.
        position: In ``prefilling``.
        until: The request before which they arrived; -1: all.
        max_chunk: Most tokens that each gets.
        budget: Tokens left of the step.

    Returns:
        The position of the next one, and the tokens left.
    """
    prefilling, block_size = replica.prefilling, replica.block_size
    while position < len(prefilling) and (until < 0 or not is_before(requests, until, prefilling[position])):
        index = prefilling[position]
        position += 1
        remaining = requests.prompt_tokens[index] + requests.generated_tokens[index] - requests.computed_tokens[index]
        chunk = min(remaining, max_chunk, budget)
        if replica.has_aligned_chunks and chunk < remaining:
            chunk -= chunk % block_size
        if chunk > 0:
            replica.chunk_requests.append(index)
            replica.chunk_tokens.append(chunk)
            budget -= chunk
    return position, budget
