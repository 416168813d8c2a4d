"""The API server behind a scheduler: one process that detokenises and sends every token, as a fluid queue.

Tokens of a step leave the engine together and pass the server one after another. Where they come faster than it sends
them it falls behind: clients see first and last tokens later by what is waiting, and send their next requests as much
later. The engine itself waits for nobody. Tokens of a leap come evenly here, so that a leap is one sum.
"""

from __future__ import annotations

from simserve.engine.state import Replica


def pass_on(replica: Replica, num_tokens: int) -> None:
    """Let the server work off what it has until the running leap ends, before that is completed.

    ``api_free_at`` is then when it will have sent all, no sooner than the end of the leap.

    Args:
        replica: Whose leap has run.
        num_tokens: Tokens of decoding requests that it has generated; first tokens are counted as they come.
    """
    start, end = replica.start_time, replica.end_time
    work = replica.api_token_seconds * num_tokens
    replica.api_free_at = max(max(replica.api_free_at, start) + work, end)
