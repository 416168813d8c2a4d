"""Micro-batches: what the stages of a pipeline have in flight at once, and what that makes of a step's prompts.

A step of p stages is a round: up to p micro-batches pass every stage once, and what occupies a stage longer than its
share of the round sets the round's length. vLLM's queue of batches (``v1/engine/core.py``, ``step_with_batch_queue``)
and SGLang's loop over them (``scheduler_pp_mixin.py``) count a chunk as computed when they hand it out: the next chunk
of the same prompt is in the next micro-batch, while the first is under way. Only the last one has to pass all stages
before the round ends. In other engines a chunk waits for the one before it.

Which micro-batch a decoding request is in. It can be handed out again once its last token is back, so it stays with
those that it was handed out with. vLLM waits for the oldest micro-batch in flight before it looks at new requests, and
SGLang comes to an empty place in its loop and goes on: a new request joins one that is there, and only what exceeds its
budget of tokens starts another. With asynchronous scheduling, vLLM's first model runner sends every sampled token from
the last stage to all others, which wait for it (``_pp_receive_prev_sampled_token_ids_to_input_batch``): one micro-batch
is in flight, except for chunks that complete no prompt. Its second one spaces the steps of a request p apart
(``next_decode_eligible_step``), and requests are spread.
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


def price_chunks(replica: Replica, requests: RequestTable, num_decodes: int) -> tuple[int, float, float]:
    """Return x, P and C of StepTimes for the chunks of a step of several stages."""
    pairs = keys = largest_pairs = largest_keys = 0.0
    largest, stages, limit = 0, replica.config.pipeline_parallel_size, replica.micro_chunk
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
    if replica.round_tokens < replica.token_budget:
        return stages * priced, pairs, keys
    return max(priced, largest), max(pairs / stages, largest_pairs), max(keys / stages, largest_keys)


def price_decodes(replica: Replica, num_decodes: int) -> int:
    """Set and return how many sequences, spread evenly over the stages, take as long as the decodes of a step."""
    largest = num_decodes if replica.samples_in_turn else 1
    for place in range(len(replica.micro_batches)):
        largest = max(largest, replica.micro_batches[place])
    replica.priced_decodes = replica.config.pipeline_parallel_size * largest if largest > 1 else num_decodes
    return replica.priced_decodes


def open_micro_batch(replica: Replica, position: int) -> None:
    """Choose the micro-batch of requests that begin to decode.

    Those handed out together stay together: the first join the smallest that there is, each further one is the smallest
    of all places.

    Args:
        replica: The scheduler, which keeps micro-batches.
        position: The place of the request's chunk in the step that has ended; -1: its prompt comes from elsewhere.
    """
    number = 0
    if position >= 0:
        handed_out = 0
        for each in range(position + 1):
            handed_out += replica.chunk_tokens[each]
        number = (handed_out - 1) // replica.config.max_num_batched_tokens
    turn = replica.leap_index * (len(replica.micro_batches) + 1) + number
    if position >= 0 and turn == replica.open_turn:
        return
    replica.open_turn = turn if position >= 0 else -1
    best = -1
    for place in range(len(replica.micro_batches)):
        size = replica.micro_batches[place]
        if (size or number) and (best < 0 or size < replica.micro_batches[best]):
            best = place
    replica.open_batch = max(best, 0)


def join_micro_batch(replica: Replica, requests: RequestTable, index: int) -> None:
    """Count a request with the micro-batch that is open."""
    requests.micro_batch[index] = replica.open_batch
    replica.micro_batches[replica.open_batch] += 1


def leave_micro_batch(replica: Replica, requests: RequestTable, index: int) -> None:
    """Remove a request from its micro-batch."""
    replica.micro_batches[requests.micro_batch[index]] -= 1
