"""SGLang 0.5.9's scheduler without processes, sockets and model, for `tests.real_engines.sglang_schedule`."""

from __future__ import annotations

from unittest.mock import MagicMock

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


class Bare(Scheduler):
    """The scheduler of a case."""

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

    def next_batch(self, launched):
        """Return the batch that runs next."""
        return self.get_next_batch_to_run()

    def process(self, batch, tokens):
        """Process the results of a batch."""
        result = MagicMock(copy_done=None, next_token_ids=torch.tensor(tokens), can_run_cuda_graph=False)
        if batch.forward_mode.is_extend():
            self.process_batch_result_prefill(batch, result)
        else:
            self.process_batch_result_decode(batch, result)

    def observe_memory(self):
        """Let the delayer know how much memory is in use: this release asks the scheduler."""

    def begin_anew(self):
        """Note that nothing runs."""
        self.new_token_ratio = self.init_new_token_ratio

    def maybe_prepare_mlp_sync_batch(self, batch, need_sync=None):
        """Return the batch: there are no other ranks."""
        return batch

    def _add_request_to_queue(self, req, is_retracted=False):
        self.num_retracted[req.rid] = self.num_retracted.get(req.rid, 0) + is_retracted
        req.time_stats.wait_queue_entry_time = self.now
        self.waiting_queue.append(req)


def request_of(rid, prompt, sampling):
    """Return a request as this release takes it."""
    asked = SamplingParams(**sampling)
    asked.normalize(None)
    return Req(rid=rid, origin_input_text="", origin_input_ids=prompt, sampling_params=asked, vocab_size=1 << 30)
