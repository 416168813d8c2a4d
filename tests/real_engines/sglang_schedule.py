"""Run SGLang's own scheduler over workloads and print what it scheduled. Imports SGLang; knows nothing of simserve.

As `tests.real_engines.vllm_schedule`, with `Scheduler.get_next_batch_to_run`, `PrefillAdder` and `ScheduleBatch` of the
wheel: its normal loop and its overlapped one, on token pools in host memory, with a radix cache where prompts share
tokens.
Modules that its imports ask for and nobody has installed, GPU kernels all of them, are empty: no scheduling calls them.
"""

# What the imports below ask for must be there before them.
# ruff: noqa: E402

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections import deque
from unittest.mock import MagicMock


class Anything(type):
    """A class of a module that is not there."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Absent(types.ModuleType):
    """A module that is not there, with whatever is asked of it."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (object,), {}) if name[:1].isupper() else MagicMock(name=name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what SGLang imports and nobody has installed."""

    def __init__(self):
        self.absent = set()

    def find_spec(self, name, path, target=None):
        """Return an empty module where SGLang itself asks for one."""
        top = name.split(".")[0]
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        is_asked = "/sglang/" in frame.f_code.co_filename
        if top in sys.stdlib_module_names or top == "sglang" or not (is_asked or top in self.absent):
            return None
        if path is not None and top not in self.absent:
            return None
        self.absent.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        """Return an empty module."""
        return Absent(spec.name)

    def exec_module(self, module):
        """Do nothing."""


sys.meta_path.append(Finder())

import sglang
import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

STOP = 0
ANSWERS, SPAN = 10_000_000, 10_000
"""Tokens of answers, as `tests.real_engines.workloads` draws what follows them."""


class Bare(Scheduler):
    """The scheduler without processes, sockets and model."""

    def __init__(self, case):
        arguments = ServerArgs.__new__(ServerArgs)
        for name, value in ServerArgs.__dataclass_fields__.items():
            setattr(arguments, name, value.default)
        arguments.attention_backend = "torch_native"
        arguments.device = "cpu"
        arguments.page_size = 1
        arguments.pp_max_micro_batch_size = case["max_num_seqs"]
        set_global_server_args_for_scheduler(arguments)
        self.server_args = arguments
        longest, seats = case["max_model_len"], case["max_num_seqs"]
        self.req_to_token_pool = ReqToTokenPool(
            size=seats + 1, max_context_len=longest + 8, device="cpu", enable_memory_saver=False
        )
        self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(
            case["num_tokens"], dtype=torch.float16, device="cpu", kvcache=MagicMock(), need_sort=False
        )
        is_caching, is_ordered = case["enable_prefix_caching"], case["scheduling_policy"] == "priority"
        self.tree_cache = (RadixCache if is_caching else ChunkCache)(
            CacheInitParams(
                disable=not is_caching,
                req_to_token_pool=self.req_to_token_pool,
                token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
                page_size=1,
            )
        )
        self.page_size = self.pp_size = 1
        self.waiting_queue, self.running_batch = [], ScheduleBatch(reqs=[], batch_is_full=False)
        self.last_batch = self.chunked_req = self.dllm_config = self.prefill_delayer = None
        self.model_config = MagicMock(is_encoder_decoder=False, is_matryoshka=False, vocab_size=1 << 30)
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.disaggregation_mode = DisaggregationMode.NULL
        self.policy = SchedulePolicy("fcfs", self.tree_cache, False, is_ordered, True)
        self.max_prefill_tokens, self.chunked_prefill_size = case["max_prefill_tokens"], case["chunked_prefill_size"]
        self.new_token_ratio = self.init_new_token_ratio = case["new_token_ratio_initial"]
        self.min_new_token_ratio = case["new_token_ratio_minimum"]
        self.new_token_ratio_decay = case["new_token_ratio_decay"]
        self.grammar_manager = MagicMock(has_waiting_grammars=lambda: False)
        for name in (
            *("enable_lora", "enable_hierarchical_cache", "enable_hicache_storage", "enable_metrics", "try_preemption"),
            *("is_mixed_chunk", "enable_overlap", "require_mlp_sync", "enable_dynamic_chunking"),
            *("enable_priority_scheduling", "current_scheduler_metrics_enabled", "enable_metrics_for_all_schedulers"),
        ):
            setattr(self, name, False)
        self.enable_overlap = case["async_scheduling"]
        self.is_generation, self.truncation_align_size = True, None
        self.priority_scheduling_preemption_threshold = 0
        self.num_generated_tokens = self.forward_ct_decode = self.forward_ct = 0
        self.num_retracted, self.now = {}, 0.0

    def _abort_on_waiting_timeout(self):
        """Nobody waits too long."""

    _abort_on_running_timeout = _abort_on_waiting_timeout

    def stream_output(self, *arguments, **named):
        """Nobody listens."""

    log_prefill_stats = log_decode_stats = maybe_collect_routed_experts = stream_output
    maybe_collect_customized_info = _mamba_prefix_cache_update = stream_output

    def maybe_prepare_mlp_sync_batch(self, batch, need_sync=None):
        """Return the batch: there are no other ranks."""
        return batch

    def _add_request_to_queue(self, req, is_retracted=False):
        self.num_retracted[req.rid] = self.num_retracted.get(req.rid, 0) + is_retracted
        req.time_stats.wait_queue_entry_time = self.now
        self.waiting_queue.append(req)


def ask(index, asked):
    """Return a request as its scheduler takes it."""
    sampling = SamplingParams(max_new_tokens=asked.get("max_tokens", asked["output"]), stop_token_ids=[STOP])
    sampling.normalize(None)
    request = Req(
        rid=str(index),
        origin_input_text="",
        origin_input_ids=list(asked["prompt"]),
        sampling_params=sampling,
        vocab_size=1 << 30,
    )
    request.tokenizer = None
    request.priority = asked.get("priority", 0)
    return request


def next_token(case, request):
    """Return the token that a request generates next; one that stops it, where it may generate more."""
    index, position = int(request.rid), len(request.output_ids)
    asked = case["requests"][index]
    is_last = position + 1 == asked["output"] < asked.get("max_tokens", 0)
    return STOP if is_last else ANSWERS + SPAN * index + position


class Served:
    """A case on the scheduler, in its normal loop or, with ``async_scheduling``, in its overlapped one."""

    def __init__(self, case):
        self.case, self.scheduler = case, Bare(case)
        self.arrivals = deque(enumerate(case["requests"]))
        self.rows = [
            {"scheduled": None, "first_token": None, "finish": None, "preemptions": 0, "cached": 0}
            for _ in case["requests"]
        ]
        self.num_left = len(self.rows)
        self.now = self.free_at = 0.0

    def receive(self):
        """Hand over the requests that have arrived."""
        while self.arrivals and self.arrivals[0][1]["arrival"] <= self.now:
            index, asked = self.arrivals.popleft()
            self.scheduler.now = asked["arrival"]
            self.scheduler._add_request_to_queue(ask(index, asked))
        self.scheduler.now = self.now

    def launch(self, batch):
        """Return a batch as it is now, and when it has run: behind the one before it."""
        start = max(self.now, self.free_at)
        tokens = batch.extend_num_tokens if batch.forward_mode.is_extend() else len(batch.reqs)
        for request in batch.reqs:
            row = self.rows[int(request.rid)]
            if row["scheduled"] is None:
                row["scheduled"], row["cached"] = start, request.cached_tokens
        self.free_at = start + self.case["step_seconds"] + self.case["token_seconds"] * tokens
        # What it will have generated is known later; nothing reads these.
        batch.output_ids = torch.zeros(len(batch.reqs), dtype=torch.int64)
        return batch.copy(), self.free_at

    def process(self, batch, end):
        """Hand the tokens of a batch to the scheduler, and note who has got what at its end."""
        self.now, scheduler = max(self.now, end), self.scheduler
        tokens = torch.tensor([next_token(self.case, request) for request in batch.reqs])
        result = MagicMock(copy_done=None, next_token_ids=tokens, can_run_cuda_graph=False)
        if batch.forward_mode.is_extend():
            scheduler.process_batch_result_prefill(batch, result)
        else:
            scheduler.process_batch_result_decode(batch, result)
        for request in batch.reqs:
            row = self.rows[int(request.rid)]
            if request.output_ids and row["first_token"] is None:
                row["first_token"] = self.now
            if request.finished() and row["finish"] is None:
                row["finish"] = self.now
                row["preemptions"] = scheduler.num_retracted.get(request.rid, 0)
                self.num_left -= 1

    def run(self):
        """Serve everything; overlapped, a batch is launched before the one before it is processed."""
        scheduler, is_overlapped, num_idle = self.scheduler, self.case["async_scheduling"], 0
        launched = deque()
        while self.num_left or launched:
            self.receive()
            batch = scheduler.get_next_batch_to_run()
            if batch is not None:
                launched.append(self.launch(batch))
            if launched and (len(launched) > is_overlapped or batch is None):
                self.process(*launched.popleft())
                num_idle = 0
            elif batch is None:
                # Its loop goes round: the batch may only now be known to be empty.
                scheduler.new_token_ratio = scheduler.init_new_token_ratio
                num_idle += 1
                if num_idle == 3 or not scheduler.waiting_queue:
                    if not self.arrivals:
                        raise RuntimeError(f"stuck at {self.now} s")
                    self.now, num_idle = max(self.now, self.arrivals[0][1]["arrival"]), 0
            scheduler.last_batch = batch
        return {"requests": self.rows}


def main():
    """Serve the cases of stdin."""
    cases = json.load(sys.stdin)
    json.dump({"version": sglang.__version__, "schedules": [Served(case).run() for case in cases]}, sys.stdout)


if __name__ == "__main__":
    main()
