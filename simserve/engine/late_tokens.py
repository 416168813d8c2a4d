"""First tokens that are handed over late: asynchronous output processing, as vLLM V0 has it from 0.6.

The tokens of a step go to their clients while the next step runs: when the host has scheduled it and launched its
kernels. Every token waits alike, so that gaps between tokens stay what they are, and what shows is the wait of the
first one. A last token waits for the host of a step too, which is left out: the end of a request is the end of its
step.
"""

from __future__ import annotations

from simserve.engine.state import UNFINISHED, Replica, RequestTable


def hand_over(replica: Replica, requests: RequestTable) -> None:
    """Hand over the first tokens of the step before the one that has run, before that one is completed.

    The host takes ``transfer_step_seconds`` for a step, ``transfer_request_seconds`` for a sequence in it, and
    ``transfer_prompt_seconds`` for launching prompts; no longer than the step.
    """
    config, num_prompts = replica.config, len(replica.chunk_requests)
    wait = config.transfer_step_seconds
    wait += config.transfer_request_seconds * (replica.num_scheduled_decodes + num_prompts)
    if num_prompts:
        wait += config.transfer_prompt_seconds
    if wait > replica.first_seconds:
        wait = replica.first_seconds
    late = replica.late_tokens
    for position in range(len(late)):
        index = late[position]
        if requests.status[index] == UNFINISHED:
            requests.first_token_time[index] = replica.start_time + wait
    late.clear()
