"""Micro-batches: what the stages of a pipeline have in flight at once, and what that makes of a step's prompts.

A step of p stages is a round: up to p micro-batches pass every stage once, and what occupies a stage longer than its
share of the round sets the round's length. vLLM's queue of batches (``v1/engine/core.py``, ``step_with_batch_queue``)
and SGLang's loop over them (``scheduler_pp_mixin.py``) count a chunk as computed when they hand it out: the next chunk
of the same prompt is in the next micro-batch, while the first is under way. Only the last one has to pass all stages
before the round ends. In other engines a chunk waits for the one before it.
"""

from __future__ import annotations

from simserve.engine.state import Replica, RequestTable


def lone_tokens(stages: int, limit: int, chunk: int, is_last: bool) -> tuple[int, int]:
    """Return the tokens that a round is priced for if it holds one chunk, and the micro-batches that this passes in.

    A chunk in one micro-batch has every stage to itself. Further micro-batches of a prompt follow it through the
    stages. The last one also has the later stages to pass, for as long as the first.

    Args:
        stages: Pipeline stages p.
        limit: Most tokens of a prompt in a micro-batch; 0: chunks do not overlap.
        chunk: Tokens of a prompt in the step.
        is_last: Whether they complete it.
    """
    first = min(chunk, limit) if limit else chunk
    return chunk + (stages - 1) * first if is_last else stages * first, -(-chunk // first)


def price_chunks(replica: Replica, requests: RequestTable, num_decodes: int, limit: int) -> tuple[int, float, float]:
    """Return x, P and C of StepTimes for the chunks of a step of several stages; ``limit`` is that of `lone_tokens`."""
    pairs = keys = largest_pairs = largest_keys = 0.0
    largest, stages = 0, replica.config.pipeline_parallel_size
    for position in range(len(replica.chunk_requests)):
        index, chunk = replica.chunk_requests[position], replica.chunk_tokens[position]
        done = requests.computed_tokens[index]
        is_last = done + chunk >= requests.prompt_tokens[index] + requests.generated_tokens[index]
        alone, passes = lone_tokens(stages, limit, chunk, is_last)
        own = chunk * done + chunk * (chunk + 1) * 0.5
        # Each micro-batch reads what has been computed before it.
        read = passes * done + limit * (passes * (passes - 1) // 2) + chunk
        pairs += own
        keys += read
        share = alone / (stages * chunk)
        largest = max(largest, alone)
        largest_pairs = max(largest_pairs, share * own)
        largest_keys = max(largest_keys, share * read)
    priced = num_decodes * replica.tokens_per_decode + replica.prefill_tokens
    return max(priced, largest), max(pairs / stages, largest_pairs), max(keys / stages, largest_keys)
