"""What the kernel reads and writes: a Replica of a few integers, a RequestTable of columns, and step times.

The state is flat (integers, floats, lists and typed arrays) so that the same kernel source can be compiled. It knows no
clock; callers pass the time. Step times are arrays of seconds: `perf` fills them, and the engine does not know where
they come from. Every entry is the seconds of one step of one replica (all its tensor- and pipeline-parallel ranks
together).

The kernel records leaps one row each: packed into bytes in Python, as numbers in compiled code. A packed row takes a
fifth of the memory of eighteen Python numbers, and becomes an array without visiting each of them.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import limited
from simserve.engine.progress import Progress
from simserve.engine.slots import slotted
from simserve.errors import InvariantError

if TYPE_CHECKING:
    from simserve.engine.cache_state import Loras, PrefixCache
    from simserve.engine.config import EngineConfig
    from simserve.engine.queue import OrderedQueue

UNFINISHED, COMPLETED, FAILED = 4, 0, 3
PROMPT_TOO_LONG = 1
INFINITY = math.inf
CONTIGUOUS = ("pow2", "oracle")
"""KV allocations that give a request one range."""
LONGEST = 2**31 - 1
"""Largest number of prompt tokens that the table can hold; no model accepts this many."""
LATE_NOTHING, LATE_DECODE, LATE_PROMPTS = range(3)
"""What the step did whose results the scheduler does not know yet (`simserve.engine.overlap`)."""
ESTIMATE_CLIP = 4096
"""Most new tokens that SGLang's admission expects of one request (``CLIP_MAX_NEW_TOKENS``)."""
CONTINUOUS, STATIC, UNCACHED = range(3)
"""How a replica batches. The hot path of the kernel is the first."""
BLOCKED_BY_NOTHING, BLOCKED_BY_SEATS, BLOCKED_BY_BLOCKS, BLOCKED_BY_BUDGET, BLOCKED_BY_SCATTER = range(5)
BLOCKED_BY_LORAS, BLOCKED_BY_PREFIX = 5, 6
"""Why the head of the queue is not admitted. Scatter: enough KV memory is free, but no range is long enough. LoRAs: the
batch has as many adapters as it may, and every waiting request needs another one. Prefix: other requests are computing
the prefix of every waiting request."""
EVICTED, READMITTED, RECOMPUTED, RETURNED, ADMITTED, FINISHED = range(6)
"""What happens to a request in a batch: it loses its KV cache, gets a seat again, has its KV cache again; comes back
with it from host memory; gets a seat for the first time; has all its tokens."""
SHIFT = 32
"""An entry of the finish heap is ``finish_step << SHIFT | index``: one integer sorts by step, then by request."""
MASK = (1 << SHIFT) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of a step by its contents.

    A step that only decodes ``n`` sequences, which have ``S`` tokens in the KV cache in total, takes::

        decode_base[n] + decode_slope[n] * S

    spread over ``p`` stages; with m > 1 in one micro-batch as ``p * m`` with ``S * p * m / n``, also beside prompts.
    A step with ``c`` prefill tokens of ``r`` requests and ``n`` decoding sequences (``n`` may be 0) takes::

        token_seconds(x) + sequence_seconds[n + r] + decode_attention_base[n]
          + decode_slope[n] * mixed_decode_factor * S
          + prefill_request_seconds * r + prefill_pair_seconds * P + prefill_context_seconds * C

    ``x = max(n + c, p * largest chunk)`` with ``p`` the pipeline size (for ``p = 1`` that is ``n + c``); less for a
    chunk whose micro-batches overlap (`simserve.engine.micro_batches.lone_tokens`).
    ``P`` sums the attended pairs of the chunks, ``c_i * done_i + c_i * (c_i + 1) / 2``; ``C`` sums the keys they read,
    ``done_i + c_i``; ``done_i`` are the tokens of request i computed before. With ``p > 1``, P and C are
    ``max(sum / p, largest of one chunk)``, that of a chunk by the same share of it.

    If the batch has requests with LoRA adapters, a step additionally takes::

        lora_step_seconds + lora_adapter_seconds * a + lora_token_seconds * t

    ``a`` is the number of adapters in the batch (in a step of prompts only: among those prompts), ``t`` the tokens of
    the step that belong to requests with an adapter.

    Ranks that step together (`simserve.engine.data_parallel`) each take that long, and additionally share
    ``shared_seconds`` at the sum of x over all ranks.

    A step with prompts of x <= ``launch_max_tokens`` takes at least ``launch_seconds``, less by how long before it the
    host began to launch it (`simserve.engine.kernel`).

    Attributes:
        decode_base: Index n = 0..max_num_seqs, or ``p`` times that with micro-batches; ``decode_base[0] == 0``.
        decode_slope: Index n = 0..max_num_seqs; seconds per context token.
        token_seconds: Index x = 0..len-1, everything that depends on the tokens of a step, including host time; beyond
            the last entry, ``token_seconds[-1] + token_seconds_beyond * (x - (len - 1))``.
        token_seconds_beyond: Seconds per token beyond the table.
        sequence_seconds: Index 0..max_num_seqs, LM head, sampling, host time per request.
        decode_attention_base: Index n = 0..max_num_seqs; the part of decode attention that does not depend
            on the contexts; 0 at n = 0.
        mixed_decode_factor: Factor on the time of a context token in a step that also prefills.
        prefill_request_seconds: Seconds per prefilling request in the step.
        prefill_pair_seconds: Seconds per attended pair.
        prefill_context_seconds: Seconds per key read.
        swap_block_seconds: Seconds that copying a KV block to or from host memory adds to the step that does it.
        lora_step_seconds: Seconds that a step with any adapters takes longer.
        lora_adapter_seconds: Seconds per adapter.
        lora_token_seconds: Seconds per token that passes through an adapter.
        shared_seconds: Index x = 0..len-1, what ranks in lockstep do together: routed experts and the collectives
            around them; empty without such ranks.
        shared_seconds_beyond: Seconds per token beyond that table.
        launch_seconds: Host time of a step with prompts on piecewise graphs, 0: not more than is in the tables.
        launch_max_tokens: Most tokens of such a step.
    """

    decode_base: Sequence[float]
    decode_slope: Sequence[float]
    token_seconds: Sequence[float]
    token_seconds_beyond: float
    sequence_seconds: Sequence[float]
    decode_attention_base: Sequence[float]
    prefill_request_seconds: float
    prefill_pair_seconds: float
    prefill_context_seconds: float
    mixed_decode_factor: float = 1.0
    swap_block_seconds: float = 0.0
    lora_step_seconds: float = 0.0
    lora_adapter_seconds: float = 0.0
    lora_token_seconds: float = 0.0
    shared_seconds: Sequence[float] = ()
    shared_seconds_beyond: float = 0.0
    launch_seconds: float = 0.0
    launch_max_tokens: float = 0.0

    def as_lists(self) -> StepTimes:
        """Return the same times as plain lists of floats, which the interpreted kernel reads fastest."""
        return replace(
            self,
            decode_base=_plain_floats(self.decode_base),
            decode_slope=_plain_floats(self.decode_slope),
            token_seconds=_plain_floats(self.token_seconds),
            sequence_seconds=_plain_floats(self.sequence_seconds),
            decode_attention_base=_plain_floats(self.decode_attention_base),
            shared_seconds=_plain_floats(self.shared_seconds),
        )


def _plain_floats(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values]


@slotted
class RequestTable:
    """Columns of all requests of a run; row i is request i.

    =================  =====  ==============================================================================
    prompt_tokens      int    the prompt
    output_tokens      int    tokens it generates, after the length limits; read only to detect that it is finished
    max_tokens         int    tokens it may generate, after the length limits; what admission sees
    priority           int    the smallest goes first
    is_truncated       0/1    the model's length limit shortened the request
    ready_time         s      when it reaches the scheduler
    scheduled_time     s      start of its first step
    first_token_time   s
    finish_time        s
    itl_max            s      largest gap between two of its tokens; negative: none yet
    micro_batch        int    while it decodes: its micro-batch, where a pipeline keeps them; else empty
    last_token_time    s      when it joined the decoding requests, or was preempted
    generated_tokens   int    when it was last admitted, preempted or finished
    computed_tokens    int    KV tokens computed while it prefills
    context_base       int    while it decodes: its KV tokens minus the replica's step counter (speculative: in parts
                              of a token, and minus ``pace`` times the counter)
    finish_step        int    while it decodes: the step counter at which it finishes
    joined_leap        int    first leap that counts towards its largest gap
    joined_step        int    speculative: the step counter at which it began to decode; else empty
    pace               int    speculative: parts (`Progress`) of a token that it gains per step; else empty
    range_start        int    contiguous KV allocation: first token of its range
    num_preemptions    int
    swapped_tokens     int    its KV tokens in host memory while it waits; 0: none
    thinking_tokens    int    tokens that it generates before the answer; empty, like the next two, if no request thinks
    answer_step        int    while it thinks and decodes: the step counter at which its answer begins; else -1
    encoder_seconds    s      time that encoding its images adds to its first step; empty if no request has images
    earlier_images     int    the nearest request with images whose prompt its own begins with, -1: none; empty likewise
    image_ends         int    token of its prompt at which its images end; empty likewise
    answer_time        s      time of the first token of its answer, if that is not its first token
    replica_id         int    -1: none
    adapter            int    LoRA adapter, -1: none; empty if no request has one
    rank               int    the scheduler of its replica that has it, if there are several; else 0, or empty
    status, reason     int
    =================  =====  ==============================================================================
    """

    def __init__(
        self,
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        max_tokens: NDArray[np.int64],
        config: EngineConfig,
        pace: NDArray[np.int64] | None = None,
        priority: NDArray[np.int64] | None = None,
        is_lean: bool = False,
        adapter: NDArray[np.int64] | None = None,
        thinking_tokens: NDArray[np.int64] | None = None,
        encoder_seconds: NDArray[np.float64] | None = None,
        earlier_images: NDArray[np.int64] | None = None,
        image_ends: NDArray[np.int64] | None = None,
    ) -> None:
        """Apply the length limits of ``config`` and lay out the columns.

        Args:
            prompt_tokens: >= 1, shape [N].
            output_tokens: >= 1, shape [N].
            max_tokens: >= 1, or -1 for the model's limit, shape [N].
            config: The engine that serves them all.
            pace: With speculative decoding, parts of a token per decode step, shape [N]; None: not drawn.
            priority: The smallest goes first, shape [N]; None: all equal.
            adapter: LoRA adapter of each, from 0, -1: none, shape [N]; None: no request has one.
            is_lean: Whether columns that ``config`` never reads stay empty: no other engine serves these requests.
            thinking_tokens: The part of ``output_tokens`` before the answer, shape [N]; None: no request thinks.
            encoder_seconds: Time to encode its images, shape [N]; None: no request has images.
            image_ends: Token of each prompt at which its images end, shape [N]; None: at the end of the prompt.
            earlier_images: The nearest request with images whose prompt its own begins with, -1: none, shape [N]; None:
                none for any request.
        Raises:
            InvariantError: The engine speculates, but no paces were drawn.
        """
        if config.num_speculative_tokens and pace is None:
            raise InvariantError(f"{config.num_speculative_tokens} speculative tokens, and no pace was drawn")
        left = limited(prompt_tokens, output_tokens, max_tokens, config)
        self.prompt_tokens = _whole("i", np.minimum(prompt_tokens, LONGEST))
        self.output_tokens = _whole("i", left.output_tokens)
        self.max_tokens = _whole("i", left.max_tokens)
        self.is_truncated = _whole("b", left.is_truncated)
        self.status = _whole("b", np.where(left.is_too_long, np.int8(FAILED), np.int8(UNFINISHED)))
        self.reason = _whole("b", np.where(left.is_too_long, np.int8(PROMPT_TOO_LONG), np.int8(0)))
        num_requests = len(prompt_tokens)
        self.ready_time = _floats(num_requests, math.nan)
        self.scheduled_time = _floats(num_requests, math.nan)
        self.first_token_time = _floats(num_requests, math.nan)
        self.finish_time = _floats(num_requests, math.nan)
        self.itl_max = _floats(num_requests, -1.0)
        self.last_token_time = _floats(num_requests, math.nan)
        self.generated_tokens = _zeros("q", num_requests)
        self.computed_tokens = _zeros("i", num_requests)
        self.context_base = _zeros("q", num_requests)
        self.finish_step = _zeros("q", num_requests)
        self.joined_leap = _zeros("q", num_requests)
        self.pace = _whole("q", np.zeros(0) if pace is None else pace)
        self.joined_step = _zeros("q", len(self.pace))
        self.micro_batch = _zeros("q", 0 if is_lean and not config.keeps_micro_batches else num_requests)
        self.num_preemptions = _zeros("i", num_requests)
        self.replica_id = _whole("i", np.full(num_requests, -1, dtype=np.int32))
        self.rank = _zeros("i", 0 if is_lean and config.data_parallel_size == 1 else num_requests)
        has_priorities = not is_lean or config.scheduling_policy == "priority"
        self.priority = _zeros("q", num_requests if has_priorities else 0)
        if priority is not None:
            self.priority = _whole("q", priority)
        self.range_start = _zeros("q", 0 if is_lean and config.kv_allocation not in CONTIGUOUS else num_requests)
        self.adapter = _whole("i", np.zeros(0) if adapter is None else adapter)
        self.swapped_tokens = _zeros(
            "q", 0 if is_lean and not (config.suspends or config.preemption_mode == "swap") else num_requests
        )
        self.thinking_tokens = _whole("q", np.zeros(0) if thinking_tokens is None else thinking_tokens)
        self.answer_step = _whole("q", np.full(len(self.thinking_tokens), -1))
        self.answer_time = _floats(len(self.thinking_tokens), math.nan)
        self.encoder_seconds = _floats(0 if encoder_seconds is None else num_requests, 0.0)
        if encoder_seconds is not None:
            np.frombuffer(self.encoder_seconds)[:] = encoder_seconds
        none = np.full(len(self.encoder_seconds), -1)
        self.earlier_images = _whole("q", none if earlier_images is None else earlier_images)
        ends = prompt_tokens if image_ends is None else image_ends
        self.image_ends = _whole("q", ends[: len(self.encoder_seconds)])


@slotted
class Replica:
    """Scheduler state of one replica.

    The *plan* is the running leap: ``num_steps`` steps from ``start_time`` to ``end_time``; step k ends at
    ``start_time + first_seconds * k + increment_seconds * k * (k - 1) / 2``. ``num_steps == 0`` with a finite
    ``end_time`` means a plan is due then; ``end_time == inf`` means idle.
    """

    def __init__(self, identity: int, config: EngineConfig, times: StepTimes, rank: int = 0) -> None:
        # The number of the replica, and the number of this scheduler within it.
        self.identity, self.rank = identity, rank
        # Set by the builder of the replica if prompts share anything.
        self.cache: PrefixCache | None = None
        self.loras: Loras | None = None
        self.config = config
        self.times = times
        self.max_num_seqs = config.max_num_seqs
        self.token_budget = config.max_num_batched_tokens * config.pipeline_parallel_size
        self.micro_batches = [0] * config.pipeline_parallel_size if config.keeps_micro_batches else []
        self.open_batch, self.open_turn, self.micro_chunk, self.round_tokens = 0, -1, 0, self.token_budget
        self.block_size, self.samples_in_turn = config.block_size, config.samples_in_turn
        self.mode = CONTINUOUS
        if config.batching == "static":
            self.mode = STATIC
        elif config.kv_allocation == "none":
            self.mode = UNCACHED
        self.is_prefill_first = config.scheduler == "prefill_first"
        self.has_slots = config.kv_allocation == "static"
        self.is_contiguous = config.kv_allocation in CONTIGUOUS
        self.grows = config.kv_allocation == "paged" and config.admission != "reserve"
        self.has_plain_admission = (
            config.admission == "on_demand" and not config.reserve_full_prompt and config.watermark_blocks == 0
        )
        self.has_priorities = config.scheduling_policy == "priority"
        self.has_ordered_pass = config.has_ordered_pass
        self.has_late_tokens = config.async_output and config.data_parallel_size == 1
        self.api_token_seconds, self.api_free_at = config.api_token_seconds * config.data_parallel_size, 0.0
        self.uses_estimate = self.grows and config.admission == "estimate"
        self.tokens_per_decode = 1 + config.num_speculative_tokens
        self.has_padding = config.has_padding
        self.progress: Progress | None = None
        self.decodes_beyond = self.assumes_drafts = False
        if config.num_speculative_tokens:
            self.decodes_beyond, self.assumes_drafts = config.decodes_beyond, config.assumes_drafts
            is_ahead, width = self.assumes_drafts and not config.has_state_cache, config.num_speculative_tokens
            self.progress = Progress(width + config.num_slots_ahead, config.block_size, is_ahead)
        self.decode_base, self.decode_slope = times.decode_base, times.decode_slope
        self.token_seconds = times.token_seconds
        self.sequence_seconds = times.sequence_seconds
        self.decode_attention_base = times.decode_attention_base
        self.shared_seconds = times.shared_seconds

        # The queue, in the order of the scheduling policy (`simserve.sim.cluster`).
        self.waiting: deque[int] | OrderedQueue = deque()
        self.is_ordered = False
        # Requests hidden from the queue while a plan is made, and batches of prompts (`simserve.engine.data_parallel`).
        self.held_back: deque[int] = deque()
        self.recent_batches: list[int] = []
        self.running: list[int] = []
        self.prefilling: list[int] = []
        self.num_running = self.num_outstanding = self.num_tried = 0
        # Requests waiting when the plan was made, and the sum of the times at which others have joined them since.
        self.num_queued, self.late_arrivals_sum = 0, 0.0

        self.num_decoding = 0
        self.context_sum = 0.0
        self.context_squares = self.prefilled_tokens = self.step = 0
        self.finish_heap: list[int] = []
        # Whether requests think before they answer, and those that now do, in the form of the finish heap.
        self.has_thinking = False
        self.answer_heap: list[int] = []

        capacity = config.num_blocks * config.block_size
        self.num_blocks = capacity // config.max_model_len if config.kv_allocation == "static" else config.num_blocks
        self.free_blocks = self.num_blocks
        self.residues = [0] * config.block_size
        # Layers with a window (`simserve.engine.windows`): a block's weight in the pool, and when the window is full.
        is_ahead = config.num_lookahead_tokens > 0 and config.has_state_cache
        self.keeps_windows = self.grows and (config.window_blocks > 0 or is_ahead)
        self.full_weight = config.full_groups if self.keeps_windows else 1
        self.window_weight = config.window_groups if self.keeps_windows else 0
        self.block_weight = self.full_weight + self.window_weight
        self.window_blocks, self.free_window_blocks = config.window_blocks, config.num_window_blocks
        self.window_context = (config.window_blocks - 1) * config.block_size + 1
        self.has_window_pool = self.keeps_windows and config.num_window_blocks > 0
        self.keeps_states = self.keeps_windows and config.keeps_states
        # Whether blocks are counted one by one, and states that a chunk writes before its end.
        self.has_state_cache, self.exported_states = self.keeps_windows and config.has_state_cache, 0
        self.plans_again = self.has_state_cache or config.has_whole_prompts
        # Decoding requests whose windows are not full yet; tokens in the windows of all decoding requests.
        self.num_growing_windows = 0
        self.window_residues = [0] * config.block_size
        self.window_sum: float = 0
        self.crossing_heap: list[int] = []
        self.window_progress: Progress | None = None
        if self.keeps_windows and config.num_speculative_tokens:
            self.window_progress = Progress(config.num_speculative_tokens, config.block_size)
        # Finished requests that hold seat and blocks until the next step is scheduled (`simserve.engine.decoding`).
        self.has_overlap = config.has_overlap
        self.releases_late = config.releases_late and config.async_scheduling and self.mode == CONTINUOUS
        self.releases_late = self.releases_late or self.has_overlap
        self.departing: list[int] = []
        self.departing_tokens: list[int] = []
        self.departing_blocks: list[int] = []
        self.departing_window_blocks: list[int] = []
        # Tokens for which each needs slots in a step more, 0: it computes none; the blocks that all those take.
        self.departing_until: list[int] = []
        # Where results are known late (`simserve.engine.overlap`): what the step that has ended did, the requests whose
        # prompts it completed, what is expected of its requests because their last tokens are not known yet, when it
        # began, whether memory ran out for the step after it; finished requests that decode once more, KV tokens.
        self.late_results = LATE_NOTHING
        self.late_prompts: list[int] = []
        self.late_estimate: float = 0
        self.late_start, self.has_retracted = 0.0, False
        self.num_beyond = self.beyond_tokens = self.growth_beyond = 0
        self.swaps = config.preemption_mode == "swap"
        # A prefix cache, swapping or requests that a step passes over: one test on the hot path instead of several.
        self.has_late_first_token = config.has_late_first_token
        self.has_extras = self.swaps or self.has_ordered_pass or self.has_late_first_token or config.has_suspension
        self.free_swap_blocks = config.num_swap_blocks
        # Blocks that the planned step copies, and the requests that come back in it, or come with their KV caches.
        self.moved_blocks = self.num_swapped_blocks = 0
        self.swapped_in: list[int] = []
        # Running requests that compute nothing in the planned step (`simserve.engine.preemption`).
        self.passed_over: list[int] = []
        # Whether requests wait for prefixes that others compute (`simserve.engine.prefix_cache`): the first blocks that
        # those lack, by segment and place; the requests passed over for it while a step was planned; the requests whose
        # prompts others will find in the step after next, and how many tokens of them.
        self.has_aligned_chunks = config.has_aligned_chunks
        self.has_prefix_waits = config.enable_prefix_caching and config.has_prefix_waits
        self.has_whole_prompts = config.has_whole_prompts
        # `simserve.engine.suspension`; the last one is that of the step that is being planned, -1: none.
        self.has_suspension, self.num_suspended, self.last_suspended = config.has_suspension, 0, -1
        self.takes_lazily = config.enable_prefix_caching and config.takes_lazily
        self.contributed: list[int] = []
        self.claimed: list[int] = []
        self.deferred: list[int] = []
        self.late_prefixes: list[int] = []
        self.late_prefix_tokens: list[int] = []
        self.free_ranges: list[tuple[int, int]] = [(0, capacity)]

        self.estimate_sum: float = 0
        self.estimate_shrinking: float = 0
        self.new_token_ratio = config.new_token_ratio_initial
        self.ratio_steps_skipped = 0
        # SGLang's ``batch_is_full``: after a refusal no request is tried until the batch has shrunk.
        is_vllm = self.releases_late and not self.has_overlap
        self.keeps_full = self.uses_estimate and not (config.priority_preemption or is_vllm)
        self.is_full = False
        # Requests that ended keep their seats until the next step; and what was expected of them (``filter_batch``).
        self.num_left = 0
        self.left_estimate: float = 0

        self.start_time = self.first_seconds = self.increment_seconds = 0.0
        self.num_steps, self.end_time = 0, INFINITY
        self.is_open, self.blocked_by = False, BLOCKED_BY_NOTHING
        self.num_scheduled_decodes = 0
        self.chunk_requests: list[int] = []
        self.chunk_tokens: list[int] = []
        self.prefill_tokens = 0
        # Blocks that the chunks take in one step; -1: not counted yet.
        self.scheduled_blocks = 0
        self.priced_tokens = self.priced_decodes = 0
        self.attended_pairs = self.attended_keys = 0.0

        # Whether requests have images, and the seconds to encode those of the requests just admitted.
        self.has_encoder, self.encoder_seconds = False, 0.0

        self.leap_index = 0
        self.gap_step_runs: list[int] = []
        self.gap_values: list[float] = []
        # Groups of decoding requests that a prefill delays: leap before it, last token, how many.
        self.stall_step_runs: list[int] = []
        self.stall_times: list[float] = []
        self.stall_counts: list[int] = []
        self.last_decode_time = self.last_requeue_time = 0.0
        # Seconds from the start of the planned step until it is launched; when the last step ended, and how long before
        # that the host was free to launch the next one.
        self.late_launch, self.ahead_until, self.lead = 0.0, -1.0, 0.0
        # Requests whose first token the last step computed, to be delivered in the next.
        self.late_tokens: list[int] = []
        self.step_runs = bytearray()
        # Speculative decoding: tokens that a step of each leap with decodes adds to the contexts.
        self.advances: list[float] = []
        # Static batching: the leaps of the running batch, recorded when it ends.
        self.batch_rows: list[tuple[float, ...]] = []
        self.irregular_gaps: list[float] = []
        self.finished: list[int] | None = None
        # For the step log: (request, seconds, what) of each that enters or leaves the batch; None: not logged.
        self.batch_log: list[float] | None = None


@slotted
class DataParallelReplica:
    """The schedulers of one replica: one, or the ranks of data-parallel attention (`simserve.engine.data_parallel`).

    Attributes:
        ranks: One or more, all with the same configuration.
        num_ranks: How many.
        next_rank: Where requests go in turn, the one that gets the next.
        end_time: End of the common leap, or when a plan is due; inf: every rank is idle. With one rank, its own.
        timeout_steps: Steps after which prompts no longer wait for other ranks; 0: they never wait.
        held_steps: Steps since they could last begin; SGLang: for which they have waited, -1: they do not.
        alike_steps: Most steps of the planned leap for which they go on waiting, or not; 0: any number.
        largest_batch: SGLang: most prompts of a rank in a step so far.
        has_passed: SGLang: whether prompts once began although the fullest rank had too few seats.
    """

    def __init__(self, ranks: list[Replica]) -> None:
        self.ranks, self.num_ranks, self.next_rank, self.end_time = ranks, len(ranks), 0, INFINITY
        config = ranks[0].config
        timeout = config.attention_dp_timeout_iters or config.prefill_delayer_max_delay_passes
        self.timeout_steps = timeout if len(ranks) > 1 else 0
        self.held_steps, self.alike_steps, self.largest_batch, self.has_passed = 0, 0, 0.0, False


@slotted
class Finishes:
    """How fast a replica finishes requests.

    Attributes:
        last: When a request last finished here, or the first one after a pause arrived, seconds.
        is_warm: Whether a request has finished since that pause.
        interval: Running mean of the seconds between two finishes; 0: none yet.
    """

    def __init__(self, now: float) -> None:
        self.last, self.interval, self.is_warm = now, 0.0, False


@slotted
class Uniforms:
    """Numbers from [0, 1).

    Attributes:
        values: The numbers.
        place: Position of the next number, and how many there are: two entries, which whoever adds numbers resets.
    """

    def __init__(self, room: int) -> None:
        """Allocate space for ``room`` numbers, none of them drawn yet."""
        self.values = array("d", [0.0]) * room
        self.place = array("q", [0, 0])


_Code = Literal["b", "i", "q"]


def _whole(code: _Code, values: NDArray[np.generic]) -> memoryview[int]:
    """Return a column of whole numbers. Python sets an entry of a view in half the time of an array."""
    return memoryview(cast(bytes, np.array(values, dtype=np.dtype(code))))


def _zeros(code: _Code, count: int) -> memoryview[int]:
    return memoryview(cast(bytes, np.zeros(count, dtype=np.dtype(code))))


def _floats(count: int, value: float) -> array[float]:
    """Return a column of floats, also a view: numpy's type stubs have no views of floats."""
    return cast("array[float]", memoryview(cast(bytes, np.full(count, value))))


def column(values: Any, kind: type[np.generic] = np.float64) -> Any:
    """Return a copy of numbers in the form that both Python and compiled code read and write."""
    return memoryview(cast(bytes, np.array(values, dtype=kind)))


def num_left(uniforms: Uniforms) -> int:
    """Return how many numbers have not been taken."""
    return uniforms.place[1] - uniforms.place[0]


def take_uniform(uniforms: Uniforms) -> float:
    """Return the next number; at least one must be left."""
    place = uniforms.place[0]
    uniforms.place[0] = place + 1
    return uniforms.values[place]


def sum_around(values: list[int], start: int, count: int) -> int:
    """Return the sum of ``count`` values from a position on, wrapping around at the end; ``count`` < their number."""
    stop = start + count
    around = stop - len(values)
    return sum(values[start:stop]) if around <= 0 else sum(values[start:]) + sum(values[:around])


def use_times(replica: Replica, times: StepTimes) -> None:
    """Let the steps of a replica take ``times`` from the next step on; call only between `complete` and `plan`."""
    replica.times = times
    replica.decode_base = times.decode_base
    replica.decode_slope = times.decode_slope
    replica.token_seconds = times.token_seconds
    replica.sequence_seconds = times.sequence_seconds
    replica.decode_attention_base = times.decode_attention_base
    replica.shared_seconds = times.shared_seconds


LEAP_FIELDS = (
    "start_time",  # seconds
    "num_steps",
    "first_seconds",  # duration of the first step
    "increment_seconds",  # by how much each further step takes longer
    "num_decoding",  # sequences that decode in the step
    "context_tokens",  # their tokens in the KV cache, at the first step
    "prefill_tokens",  # per step
    "num_prefilling",  # requests with a chunk in the step
    "priced_tokens",  # x of StepTimes
    "priced_decodes",  # sequences as which several stages take those that decode; of one stage not set
    "attended_pairs",  # P of StepTimes, at the first step
    "attended_keys",  # C of StepTimes, at the first step
    "first_gaps",  # requests whose inter-token gap is the first step
    "further_gaps",  # requests whose inter-token gap is each further step
    "held_tokens",  # tokens in the KV cache before the leap
    "used_before",  # KV tokens reserved before the leap
    "used_after",  # KV tokens reserved in its last step
    "waiting_seconds",  # requests waiting, summed over the seconds of the leap
    "blocked_by",  # why the head of the queue was not admitted
)
LEAP_WIDTH = len(LEAP_FIELDS)
_ROW = Struct("dqddqdqqqqddqqdqqdq")
"""Floats and integers stored as themselves, without conversion."""
_END = Struct("dq")
_WHOLE = [position for position, code in enumerate(_ROW.format) if code == "q"]
LEAP_BYTES = _ROW.size
_BLOCK = 256
"""Rows transposed at a time: as many as fit in the processor's first-level cache."""
leap_row = _ROW.pack
"""Pack a leap, its fields given in order, as `take_step_runs` reads it."""


def end_row(step_runs: bytearray, waiting_seconds: float, blocked_by: int) -> None:
    """Overwrite the last two fields of the last leap."""
    _END.pack_into(step_runs, len(step_runs) - _END.size, waiting_seconds, blocked_by)


def take_step_runs(step_runs: bytearray, rows: NDArray[np.float64]) -> None:
    """Copy leaps into ``rows``, shape [fields, leaps], and clear them."""
    turn_into(rows, np.frombuffer(step_runs).reshape(-1, LEAP_WIDTH))
    step_runs.clear()
    for position in _WHOLE:
        rows[position] = rows[position].view(np.int64)


def turn_into(columns: NDArray[np.float64], rows: NDArray[np.float64]) -> None:
    """Write a table, shape [leaps, fields], row by row into columns, shape [fields, leaps]."""
    for start in range(0, len(rows), _BLOCK):
        columns[:, start : start + _BLOCK] = rows[start : start + _BLOCK].T
