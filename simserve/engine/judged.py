"""Decisions by a user's own functions in a run, each in place of the plane's own rule. Interpreted only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simserve.engine.plane_state import ClientState, Router
    from simserve.engine.state import DataParallelReplica


def judged_choice(router: Router, index: int, ready: Sequence[int]) -> int:
    """Return the replica that a user's own router chooses."""
    assert router.judge is not None
    return router.judge.choice(index, ready)


def judged_refusal(client_state: ClientState, index: int, now: float) -> int:
    """Return why a user's own admission control refuses a request."""
    assert client_state.judge is not None
    return client_state.judge.refusal(index, now)


def take_judged_seconds(client_state: ClientState, replica: DataParallelReplica) -> None:
    """Let the planned step take the seconds of a user's own function; it is then alone in its leap."""
    assert client_state.judge is not None
    (rank,) = replica.ranks
    if not rank.num_steps:
        return
    prompt = rank.prefill_tokens if rank.chunk_requests else 0
    decodes = rank.num_scheduled_decodes
    context = rank.context_sum if decodes else 0.0
    seconds = client_state.judge.step_seconds(prompt, decodes * rank.tokens_per_decode, context, rank.start_time)
    seconds += rank.times.swap_block_seconds * rank.moved_blocks
    rank.num_steps, rank.first_seconds, rank.increment_seconds = 1, seconds, 0.0
    replica.end_time = rank.end_time = rank.start_time + seconds
