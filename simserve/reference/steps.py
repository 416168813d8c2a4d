"""Step: the requests of one engine step, and its seconds, written out from the formulas in StepTimes' docstring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simserve.reference.request import Request

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.engine.state import StepTimes


@dataclass(frozen=True)
class Passing:
    """How the requests of a step pass the stages of a pipeline.

    ``limit`` is the most tokens of a prompt in a micro-batch if its chunks overlap in the stages, otherwise 0, and
    ``completed`` says for each chunk whether it completes its prompt; ``largest`` is the number of decoding requests in
    the largest micro-batch, 0 if they are spread evenly; ``in_turn`` whether there is only one micro-batch.
    """

    limit: int = 0
    completed: Sequence[bool] = ()
    largest: int = 0
    in_turn: bool = False


EVENLY = Passing()


@dataclass
class Step:
    """The content of one step; ``chunks`` pairs a prefilling request with its tokens.

    ``beyond`` are requests that are done but decode once more, as that is not known yet; ``passed_over`` are requests
    that the scheduler did not look at and that compute nothing; ``longest_chunk`` is a request's share of the budget.
    ``blocked_by`` says what keeps the head of the queue out: ``seats``, ``budget``, ``blocks``, ``scatter`` or, if all
    waiting requests need an adapter that the batch has no seat for, ``loras``, or wait for a prefix, ``prefix``.
    ``deferred`` are requests that wait for the first block of a prompt in ``contributed``, which others compute, or
    that the budget leaves less than a block of tokens (`is_cut`).
    """

    start: float
    budget: int = 0
    longest_chunk: int = 0
    decoding: list[Request] = field(default_factory=list)
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    beyond: list[Request] = field(default_factory=list)
    passed_over: list[Request] = field(default_factory=list)
    has_preempted: bool = False
    moved_blocks: int = 0
    loaded_adapters: int = 0
    adapters_from_disk: int = 0
    loaded_blocks: dict[str, int] = field(default_factory=dict)
    encoder_seconds: float = 0.0
    seconds: float = 0.0
    late_launch: float = 0.0
    blocked_by: str = ""
    contributed: set[tuple[int, int]] | None = None
    deferred: list[Request] = field(default_factory=list)
    in_use: set[tuple[int, int]] = field(default_factory=set)
    """Cached blocks that were in use before the step admitted anybody."""
    in_turn: bool = False
    """Whether it is one micro-batch of several stages."""
    set_aside: int = 0
    """Blocks that the admission of some kept from others."""
    paused: Request | None = None
    """The last request that was preempted so that one before it finds room."""
    is_cut: bool = False
    """Whether the budget leaves some of them less than a block."""
    lacks_blocks: bool = False
    """Whether some of them found no blocks."""
    num_admitted: int = 0
    asks_nobody: bool = False
    """Whether the head of the queue is not even tried."""
    num_steps: int = 1
    parts: list[Step] = field(default_factory=list)
    """The step of each rank, for ranks that step together."""

    @property
    def passed_for(self) -> str:
        """Why requests were passed over."""
        if self.lacks_blocks:
            return "blocks"
        return "budget" if self.is_cut else "prefix" if self.deferred else "loras"

    @property
    def requests(self) -> list[Request]:
        """The requests that take part in the step."""
        return self.decoding + [request for request, _ in self.chunks]

    @property
    def is_empty(self) -> bool:
        """Whether nobody takes part in it."""
        return not (self.requests or self.beyond)

    def passing(self, config: EngineConfig) -> Passing:
        """Return how its requests pass the stages."""
        limit = self.longest_chunk // config.pipeline_parallel_size if config.overlaps_chunks else 0
        completed = [request.computed + chunk >= request.target for request, chunk in self.chunks]
        places = [request.micro_batch for request in self.decoding] if config.keeps_micro_batches else []
        largest = len(self.decoding) if config.samples_in_turn else max(map(places.count, places), default=0)
        return Passing(limit, completed, largest, self.in_turn)


class Launches:
    """When the host launches steps with prompts whose attention is between piecewise graphs.

    With asynchronous scheduling it launches the next step once it has launched one and the GPU has begun with that.

    Attributes:
        config: The engine.
        free_at: When the host had launched the last step, and the GPU had begun with it.
        step_end: When that step ended.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config, self.free_at, self.step_end = config, 0.0, math.nan

    def begin(self, step: Step, times: StepTimes, chunks: list[tuple[int, int]], decoded: int) -> None:
        """Note how long after the start of a planned step its launching ends; last arguments as of `priced_chunks`."""
        config = self.config
        began = self.free_at if config.async_scheduling and step.start == self.step_end else step.start
        if chunks:
            tokens, _, _ = priced_chunks(chunks, config.pipeline_parallel_size, decoded, step.passing(config))
            if tokens <= times.launch_max_tokens:
                step.late_launch = max(began + times.launch_seconds - step.start, 0.0)

    def end(self, step: Step, end: float) -> None:
        """Note that a step has run."""
        self.free_at, self.step_end = step.start + step.late_launch, end


def to_checkpoint(config: EngineConfig, missing: int) -> int:
    """Return the tokens to where the chunk of a prompt that lacks ``missing`` must end: a checkpoint or its end."""
    left = [each for each in (config.checkpoint_tokens, config.last_checkpoint_tokens) if each < missing]
    return missing - max(left, default=0)


def hand_over(config: EngineConfig, requests: Sequence[Request], step: Step, end: float) -> None:
    """Hand over the first tokens of the previous step, where that waits for the host of this one."""
    if not config.async_output or config.kv_allocation == "none" or config.data_parallel_size > 1:
        return
    num_computed = len(step.requests) + len(step.beyond)
    wait = config.transfer_step_seconds + config.transfer_request_seconds * num_computed
    wait += config.transfer_prompt_seconds if step.chunks else 0.0
    for request in requests:
        if len(request.token_times) == 1 and math.isnan(request.handed_over):
            request.handed_over = step.start + min(wait, end - step.start)


def mixed_seconds(
    times: StepTimes,
    contexts: Sequence[float],
    chunks: list[tuple[int, int]],
    pipeline: int,
    tokens_per_decode: int = 1,
    passing: Passing = EVENLY,
) -> float:
    """Return the seconds of a step.

    Args:
        times: The tables.
        contexts: Tokens in the KV cache of each decoding request.
        chunks: For each prefilling request, the tokens computed before and the tokens of this step.
        pipeline: Pipeline-parallel size.
        tokens_per_decode: Number of tokens that a decoding request computes: drafts and the newest one.
        passing: How they pass the stages.
    """
    decoding, context = len(contexts), sum(contexts)
    alike = decoding
    if passing.largest > 1:
        # As if every micro-batch were as large, with contexts as long.
        alike = pipeline * passing.largest
        context *= alike / decoding
    if not chunks:
        return times.decode_base[alike] + times.decode_slope[alike] * context
    tokens, pairs, keys = priced_chunks(chunks, pipeline, tokens_per_decode * decoding, passing)
    return (
        token_seconds(times, tokens)
        + times.sequence_seconds[decoding + len(chunks)]
        + times.decode_attention_base[alike]
        + times.decode_slope[alike] * times.mixed_decode_factor * context
        + times.prefill_request_seconds * len(chunks)
        + times.prefill_pair_seconds * pairs
        + times.prefill_context_seconds * keys
    )


def priced_chunks(
    chunks: list[tuple[int, int]], pipeline: int, decoded: int, passing: Passing = EVENLY
) -> tuple[int, float, float]:
    """Return the tokens, attended pairs and keys that a step with chunks is priced for.

    Each chunk is cut into micro-batches. In a round a stage computes all of one request one after another; the last
    one of a prompt then has the later stages before it, others only the rest of the round. Arguments: `mixed_seconds`;
    ``decoded`` are the tokens of decoding requests.
    """
    tokens, pairs, keys, limit = decoded + sum(chunk for _, chunk in chunks), 0.0, 0.0, passing.limit
    if passing.in_turn:
        pairs = sum(chunk * done + chunk * (chunk + 1) / 2 for done, chunk in chunks)
        return pipeline * tokens, pairs, float(sum(done + chunk for done, chunk in chunks))
    largest_pairs = largest_keys = 0.0
    for position, (done, chunk) in enumerate(chunks):
        ends = [*range(limit, chunk, limit), chunk] if limit else [chunk]
        stage_times = chunk + (pipeline - 1) * ends[0]
        if limit and not passing.completed[position]:
            stage_times = pipeline * ends[0]
        own_pairs = chunk * done + chunk * (chunk + 1) / 2
        own_keys = float(sum(done + end for end in ends))
        tokens, share = max(tokens, stage_times), stage_times / (pipeline * chunk)
        pairs, keys = pairs + own_pairs, keys + own_keys
        largest_pairs, largest_keys = max(largest_pairs, share * own_pairs), max(largest_keys, share * own_keys)
    return tokens, max(pairs / pipeline, largest_pairs), max(keys / pipeline, largest_keys)


def uncached_seconds(times: StepTimes, lengths: list[int]) -> float:
    """Return the seconds of a step without a KV cache, in which every sequence is computed again."""
    return (
        token_seconds(times, sum(lengths))
        + times.sequence_seconds[len(lengths)]
        + times.prefill_request_seconds * len(lengths)
        + times.prefill_pair_seconds * sum(length * (length + 1) / 2 for length in lengths)
        + times.prefill_context_seconds * sum(lengths)
    )


def token_seconds(times: StepTimes, tokens: int) -> float:
    """Return the seconds that depend on the tokens of a step, extrapolated beyond the table."""
    last = len(times.token_seconds) - 1
    return times.token_seconds[min(tokens, last)] + times.token_seconds_beyond * max(0, tokens - last)
