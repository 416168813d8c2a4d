"""Run TensorRT-LLM's own Python scheduler over workloads and print what it scheduled. Knows nothing of simserve.

Takes the folder of a checkout or of an unpacked wheel, and runs with any Python: of TensorRT-LLM it loads only
``_torch/pyexecutor/scheduler/scheduler.py`` and ``waiting_queue.py``. What these import is compiled, or imports torch,
and is replaced by stand-ins (`Request`, `tests.real_engines.trtllm_blocks`). Reads JSON from stdin and prints JSON as
`tests.real_engines.vllm_schedule` does. No model runs: a step takes ``step_seconds + token_seconds * its tokens``.
"""

from __future__ import annotations

import enum
import importlib.util
import json
import logging
import sys
import types
from collections import deque
from pathlib import Path
from types import SimpleNamespace

from trtllm_blocks import Blocks, PrefixReuse

PACKAGE = "tensorrt_llm._torch.pyexecutor"
MODULES = ("scheduler.scheduler", "scheduler.waiting_queue")


class State(enum.Enum):
    """States of a request, in the order that the scheduler counts on (``llmRequest.h``)."""

    ENCODER_INIT = 1
    DISAGG_CONTEXT_WAIT_SCHEDULER = 7
    DISAGG_GENERATION_INIT = 8
    DISAGG_GENERATION_TRANS_IN_PROGRESS = 9
    CONTEXT_INIT = 10
    GENERATION_IN_PROGRESS = 13
    GENERATION_TO_COMPLETE = 14
    GENERATION_COMPLETE = 20


class Policy(enum.Enum):
    """How capacity is given out (``llm_args.py``)."""

    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    STATIC_BATCH = "STATIC_BATCH"


class QueuePolicy(enum.Enum):
    """How requests wait (``llm_args.py``)."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Request:
    """A request as the scheduler sees it: stands in for the compiled ``LlmRequest``."""

    num_draft_tokens = 0
    lora_task_id = None
    is_encoder_init_state = is_disagg_generation_init_state = False

    def __init__(self, identity, prompt, output, max_tokens):
        self.request_id = self.py_request_id = identity
        self.tokens, self.prompt_len = list(prompt), len(prompt)
        self.output, self.max_new_tokens = output, max_tokens
        self.state = State.CONTEXT_INIT
        self.context_current_position = self.prepopulated = 0
        self.estimated_reusable_tokens = 0
        self.num_generated = 0
        self._chunk = 0

    @property
    def state_value(self):
        """The number of its state."""
        return self.state.value

    @property
    def is_context_init_state(self):
        """Whether its prompt is to be computed."""
        return self.state is State.CONTEXT_INIT

    @property
    def is_generation_in_progress_state(self):
        """Whether it decodes, or its last token is on its way."""
        return self.state in (State.GENERATION_IN_PROGRESS, State.GENERATION_TO_COMPLETE)

    @property
    def is_first_context_chunk(self):
        """Whether none of its prompt has been computed."""
        return self.is_context_init_state and self.context_current_position == self.prepopulated

    @property
    def context_remaining_length(self):
        """Tokens of its prompt that are still to be computed."""
        return self.prompt_len - self.context_current_position

    @property
    def context_chunk_size(self):
        """Tokens of its prompt in the next step."""
        return self._chunk

    @context_chunk_size.setter
    def context_chunk_size(self, size):
        self._chunk = min(size, self.context_remaining_length)

    @property
    def is_last_context_chunk(self):
        """Whether the next step completes its prompt."""
        return self.context_current_position + self._chunk == self.prompt_len

    def get_num_tokens(self, beam):
        """Return how many tokens it has."""
        return len(self.tokens)

    def get_unique_tokens(self, beam):
        """Return its tokens."""
        return self.tokens

    def get_beam_width_by_iter(self, for_next_iteration=False):
        """Return its beams."""
        return 1

    def has_draft_tokens(self):
        """Return whether it has drafts."""
        return False

    def set_prepopulated(self, num_tokens, block_size):
        """Skip what was found; a chunk that does not reach the end of the prompt ends with a block."""
        self.prepopulated = num_tokens
        if not num_tokens:
            return
        chunk = self._chunk
        if num_tokens + chunk < self.prompt_len:
            chunk = (num_tokens + chunk) // block_size * block_size - num_tokens
        self.context_current_position = num_tokens
        self.context_chunk_size = chunk

    def pause(self):
        """Lose the KV cache: what it has generated is computed again with the prompt."""
        self.max_new_tokens -= len(self.tokens) - self.prompt_len
        self.prompt_len = len(self.tokens)
        self.state = State.CONTEXT_INIT
        self.context_current_position = self.prepopulated = self._chunk = 0


def stand_in(name, **values):
    """Put a module in the place of one that is compiled, or that nobody needs."""
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(values)
    sys.modules[name] = module


def load(folder):
    """Load the scheduler's modules from a folder and return them; those around them stand in."""
    summary = SimpleNamespace(PrefixReuseSummary=PrefixReuse, PeftCacheManager=object)
    internal = SimpleNamespace(batch_manager=summary, algorithms=SimpleNamespace())
    for name in ("tensorrt_llm", "tensorrt_llm._torch", PACKAGE, f"{PACKAGE}.scheduler", "tensorrt_llm.llmapi"):
        stand_in(name)
    stand_in("tensorrt_llm.bindings", internal=internal)
    stand_in("tensorrt_llm.llmapi.llm_args", CapacitySchedulerPolicy=Policy, WaitingQueuePolicy=QueuePolicy)
    stand_in("tensorrt_llm.logger", logger=logging.getLogger("tensorrt_llm"))
    stand_in("tensorrt_llm.executor")
    stand_in("tensorrt_llm.executor.request", DEFAULT_REQUEST_PRIORITY=0.5)
    stand_in(f"{PACKAGE}.executor_request_queue", RequestQueueItem=SimpleNamespace)
    stand_in(
        f"{PACKAGE}.llm_request",
        LlmRequest=Request,
        LlmRequestState=State,
        get_multimodal_encoder_token_lengths=None,
        is_multimodal_encoder_ready=None,
    )
    if importlib.util.find_spec("strenum") is None:
        stand_in("strenum", StrEnum=enum.Enum)
    loaded = []
    for name in MODULES:
        path = Path(folder, *f"{PACKAGE}.{name}".split(".")).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(f"{PACKAGE}.{name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        loaded.append(module)
    return loaded


class Run:
    """One case on the scheduler, driven as its executor drives it."""

    def __init__(self, case, scheduling, queueing):
        self.case = case
        self.blocks = Blocks(
            case["num_blocks"],
            case["block_size"],
            enable_block_reuse=case["enable_prefix_caching"],
            credits_reuse=case.get("credits_reuse", True),
        )
        self.scheduler = scheduling.SimpleUnifiedScheduler(
            max_batch_size=case["max_num_seqs"],
            max_num_tokens=case["max_num_batched_tokens"],
            kv_cache_manager=self.blocks,
            peft_cache_manager=None,
            scheduler_policy=Policy[case["policy"]],
            # `py_executor_creator.py`: first come, first served, in units of a block.
            ctx_chunk_config=("FIRST_COME_FIRST_SERVED", case["block_size"])
            if case["enable_chunked_prefill"]
            else None,
        )
        self.waiting = queueing.create_waiting_queue(QueuePolicy(case["scheduling_policy"]))
        self.arrivals = deque(enumerate(case["requests"]))
        self.rows = [
            {"scheduled": None, "first_token": None, "finish": None, "preemptions": 0, "cached": None}
            for _ in case["requests"]
        ]
        self.steps = []
        self.active = []
        self.is_overlapped = case["async_scheduling"]

    def receive(self, now):
        """Take the requests that have arrived into the queue, and those that find a seat out of it."""
        while self.arrivals and self.arrivals[0][1]["arrival"] <= now:
            index, asked = self.arrivals.popleft()
            request = Request(index, asked["prompt"], asked["output"], asked.get("max_tokens", asked["output"]))
            # A larger number is served first.
            self.waiting.add_request(
                SimpleNamespace(id=index, request=SimpleNamespace(priority=-asked.get("priority", 0)), own=request)
            )
        while self.waiting and len(self.active) < self.case["max_num_seqs"]:
            self.active.append(self.waiting.pop_request().own)

    def schedule(self, now):
        """Launch a step and return its requests and its seconds; None where nothing runs."""
        out = self.scheduler.schedule_request(self.active, set())
        for request in out.paused_requests:
            self.blocks.remove_sequence(request)
            self.rows[request.request_id]["preemptions"] += 1
        beginning = [request for request in out.context_requests if request.is_first_context_chunk]
        for request, found in zip(beginning, self.blocks.add_sequences(beginning), strict=True):
            if not self.case["enable_chunked_prefill"]:
                request.context_chunk_size = request.prompt_len
            request.set_prepopulated(found, self.case["block_size"])
            row = self.rows[request.request_id]
            if row["scheduled"] is None:
                row["scheduled"], row["cached"] = now, request.prepopulated
        num_tokens = len(out.generation_requests) + sum(request.context_chunk_size for request in out.context_requests)
        for request in out.generation_requests:
            self.blocks.add_token(request)
        step = [*out.context_requests, *out.generation_requests]
        if not step:
            return None, out.paused_requests
        self.steps.append((now, len(out.generation_requests), num_tokens - len(out.generation_requests)))
        seconds = self.case["step_seconds"] + self.case["token_seconds"] * num_tokens
        return (out.context_requests, out.generation_requests, seconds), out.paused_requests

    def launch(self, contexts, decodes):
        """Move the prompts of a launched step on; return those that it completes, and all that it gives a token."""
        complete = []
        for request in contexts:
            request.context_current_position += request.context_chunk_size
            request.context_chunk_size = 0
            if not request.context_remaining_length:
                complete.append(request)
        return complete, [*complete, *decodes]

    def process(self, sampled, end):
        """Add the tokens of a step to its requests and return those that have got their last one."""
        finished = []
        for request in sampled:
            if request.state is State.GENERATION_COMPLETE:
                continue
            row = self.rows[request.request_id]
            request.tokens.append(10_000_000 + 10_000 * request.request_id + request.num_generated)
            request.num_generated += 1
            if row["first_token"] is None:
                row["first_token"] = end
            if request.num_generated == request.output:
                row["finish"] = end
                request.state = State.GENERATION_COMPLETE
                finished.append(request)
        return finished

    def move_on(self, sampled):
        """Let the requests of a launched step decode next, unless that step brings their last token by ``max_tokens``.

        Called when the results of the step before it are known (``will_complete_next_iteration``).
        """
        for request in sampled:
            if request.state is not State.GENERATION_COMPLETE:
                is_last = len(request.tokens) - request.prompt_len + 1 >= request.max_new_tokens
                is_last = is_last and self.is_overlapped
                request.state = State.GENERATION_TO_COMPLETE if is_last else State.GENERATION_IN_PROGRESS

    def conclude(self, complete, finished):
        """Store the prompts that a step has computed, and let go of the requests that it has finished."""
        for request in complete:
            if request.request_id in self.blocks.sequences:
                self.blocks.store(request, request.prompt_len)
        # `_handle_responses`, in the order of the active requests.
        for request in [request for request in self.active if request in finished]:
            self.blocks.remove_sequence(request)
            self.active.remove(request)

    def run(self):
        """Serve everything: a step at a time, or with the next one launched before the results of the last one.

        A scheduler that no longer schedules anybody leaves -1 in the rows of those that it has not served.
        """
        now = free_at = 0.0
        previous = None
        while self.arrivals or self.waiting or self.active:
            self.receive(now)
            step, paused = self.schedule(max(now, free_at))
            if step is None and previous is None and not paused:
                if not self.arrivals:
                    self.rows = [
                        {key: -1 if value is None else value for key, value in row.items()} for row in self.rows
                    ]
                    break
                now = max(now, self.arrivals[0][1]["arrival"])
                continue
            launched = None
            if step is not None:
                contexts, decodes, seconds = step
                free_at = max(now, free_at) + seconds
                launched = (*self.launch(contexts, decodes), free_at)
            due = previous if self.is_overlapped else launched
            finished = []
            if due is not None:
                complete, sampled, now = due
                finished = self.process(sampled, now)
            for request in paused:
                if request.state is not State.GENERATION_COMPLETE:
                    request.pause()
            if launched is not None:
                self.move_on(launched[1])
            if due is not None:
                self.conclude(complete, finished)
            previous = launched if self.is_overlapped else None
        return {"requests": self.rows, "steps": self.steps}


def main():
    """Serve the cases of stdin with the scheduler of a folder."""
    loaded = load(sys.argv[1])
    schedules = [Run(case, *loaded).run() for case in json.load(sys.stdin)]
    json.dump({"version": sys.argv[1], "schedules": schedules}, sys.stdout)


if __name__ == "__main__":
    main()
