"""What admission requires of growing KV memory: blocks for the next chunk, or SGLang's decaying estimate.

Knows the free blocks and what the running requests may still need, never the true output lengths.
"""

from __future__ import annotations

from simserve.engine.state import ESTIMATE_CLIP, Replica, RequestTable
from simserve.engine.windows import most_window_blocks


def estimate_of(requests: RequestTable, index: int) -> int:
    """Return the new tokens SGLang expects at most of a request that is not decoding yet."""
    return min(requests.max_tokens[index] - requests.generated_tokens[index], ESTIMATE_CLIP)


def estimated_room(replica: Replica, free: int, free_window: int) -> float:
    """Return the tokens that SGLang's estimate of those that its batch decodes, or still holds, leaves free.

    Args:
        replica: The replica.
        free: Blocks free.
        free_window: The same of the windows' own pool, where they have one.
    """
    if replica.keeps_windows:
        free //= replica.block_weight
        if replica.has_window_pool:
            free = min(free, free_window)
    expected = replica.estimate_sum + replica.left_estimate + replica.late_estimate
    ratio = 1.0 if replica.config.expects_max_tokens else replica.new_token_ratio
    return free * replica.block_size - ratio * expected


def page_reserve(replica: Replica) -> int:
    """Return the tokens that admission asks for beyond those of a request."""
    return replica.block_size if replica.config.reserves_page else 0


def has_room(
    replica: Replica,
    requests: RequestTable,
    index: int,
    need: int,
    free: int,
    free_window: int,
    uncommitted: int,
    cached: int = 0,
) -> bool:
    """Return whether the head of the queue may be admitted as far as blocks go.

    Args:
        replica: The replica; its free blocks are passed as ``free`` because this step has taken some.
        requests: The table.
        index: The head of the queue.
        need: Blocks of its first chunk, without those of the cached prefix that it shares.
        free: Blocks free after all that this step takes already, and after the cached prefix is in use.
        free_window: The same of the windows' own pool, where they have one.
        uncommitted: ``estimate``: tokens the prefilling requests may still take.
        cached: Tokens of its cached prefix.
    """
    config = replica.config
    if replica.uses_estimate:
        if need > free:
            return False
        if not (replica.num_running or replica.departing):
            return True
        target = requests.prompt_tokens[index] + requests.generated_tokens[index] - cached
        room = estimated_room(replica, free, free_window) - uncommitted
        return target + estimate_of(requests, index) + page_reserve(replica) < room
    if config.reserve_full_prompt:
        target = requests.prompt_tokens[index] + requests.generated_tokens[index] - cached
        whole = -(-target // config.block_size)
        if replica.keeps_windows:
            found = min(cached // config.block_size, replica.window_blocks)
            windowed = most_window_blocks(replica, whole + found)
            if replica.has_window_pool and windowed > free_window:
                return False
            need = max(need, replica.full_weight * whole + replica.window_weight * windowed)
        else:
            need = max(need, whole)
    return free - need >= (config.watermark_blocks if replica.num_running or replica.departing else 0)


def note_full(replica: Replica) -> None:
    """Note that the head of the queue was refused: SGLang asks nobody again until its batch has shrunk.

    Its ``batch_is_full`` (managers/scheduler.py, 0.4.6 to 0.5.18) is lost where nobody decodes, and where requests are
    preempted for others of a better priority.
    """
    if replica.keeps_full and (replica.num_decoding or replica.num_left or replica.departing):
        replica.is_full = True


def note_left(replica: Replica, requests: RequestTable, index: int) -> None:
    """Note that a request left off decoding: SGLang's batch holds it until it decodes again (``filter_batch``).

    With ``strikes_at_once`` it has left before the next step is scheduled, and the queue is asked again.
    """
    if replica.config.strikes_at_once:
        replica.is_full = False
    elif replica.keeps_full:
        replica.num_left += 1
        replica.left_estimate += estimate_of(requests, index)


def forget_left(replica: Replica, is_decode: bool) -> None:
    """Strike those who left off the batch: a step decodes. After one that only does, the queue is asked again."""
    replica.num_left = 0
    replica.left_estimate = 0
    if is_decode:
        replica.is_full = False
