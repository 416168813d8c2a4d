"""Taking in a request whose prompt was computed elsewhere: its KV cache comes with it, and it decodes at once."""

from __future__ import annotations

from simserve.engine.decoding import growth_of_step, join_decoding
from simserve.engine.departing import release_departing
from simserve.engine.gaps import add_stall
from simserve.engine.kv import take_fixed
from simserve.engine.numbers import remove_all
from simserve.engine.state import ADMITTED, Replica, RequestTable
from simserve.engine.windows import pool_blocks, take_blocks, window_growth_of_step


def strike(replica: Replica, index: int) -> None:
    """Strike a request off the list of those that could be preempted: it lives on, on another replica."""
    remove_all(replica.running, index)


def take_in(replica: Replica, requests: RequestTable, index: int, now: float) -> bool:
    """Let a request with its prompt's KV cache and its first token decode from the next step on.

    Between `complete` and `plan` only. Requests that were preempted here go first; blocks must be free for the cache
    and for the growth of the next step.

    Returns:
        False, with nothing changed, if there is no seat or not enough memory.
    """
    if replica.departing and not replica.num_running:
        # Nobody else runs: the next step is scheduled when they are gone.
        release_departing(replica, requests)
    if replica.num_running + len(replica.departing) >= replica.max_num_seqs or replica.waiting:
        return False
    prompt, block_size = requests.prompt_tokens[index], replica.block_size
    if replica.grows:
        blocks = -(-prompt // block_size)
        grown = growth_of_step(replica) if replica.num_decoding else 0
        need = pool_blocks(replica, blocks + (prompt % block_size == 0))
        if need + grown > replica.free_blocks:
            return False
        if replica.has_window_pool:
            grown = window_growth_of_step(replica) if replica.num_decoding else 0
            if min(blocks + 1, replica.window_blocks) + grown > replica.free_window_blocks:
                return False
        take_blocks(replica, blocks)
        replica.running.append(index)
    elif not take_fixed(replica, requests, index):
        return False
    replica.num_running += 1
    replica.num_outstanding += 1
    requests.generated_tokens[index] = 1
    requests.first_token_time[index] = now
    requests.replica_id[index] = replica.identity
    replica.end_time = now
    if replica.batch_log is not None:
        replica.batch_log.extend((index, now, ADMITTED))
    join_decoding(replica, requests, index, prompt, 1)
    if replica.stall_step_runs:
        add_stall(replica, replica.leap_index, now, 1)
    elif replica.num_decoding == 1:
        # Prompts of others may be computed before its next token.
        replica.last_decode_time = now
    return True
