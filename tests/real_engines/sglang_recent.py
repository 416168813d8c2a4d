"""SGLang 0.5.22 and 0.5.23 without processes, sockets and model, for `tests.real_engines.sglang_schedule`."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import torch
from sglang.srt import runtime_context
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.prefill_delayer import RecentPrefillBatchSizeTracker
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker
from sglang.srt.managers.scheduler_components.pool_stats_observer import SchedulerPoolStatsObserver
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang_states import COMPONENTS, TRACKED, pool_of


def publish(grid):
    """Make the arguments of a server known, anew where states are tracked at multiples of ``grid`` tokens."""
    tracked = {"mamba_radix_cache_strategy": "extra_buffer", "mamba_track_interval": TRACKED * grid} if grid else {}
    arguments = ServerArgs(model_path="dummy", device="cpu", page_size=1, **tracked)
    arguments._mamba_cache_chunk_size = grid or 1
    runtime_context.reset_context()
    runtime_context.publish(arguments, role="scheduler")


publish(0)


class Silent:
    """What scheduling tells of itself: nobody listens."""

    def __init__(self, **known):
        self.__dict__.update(known)

    def __getattr__(self, name):
        """Return itself, whatever is asked for."""
        return self

    def __call__(self, *arguments, **named):
        """Return itself, whatever is to be done."""
        return self


class Bare(Scheduler):
    """The scheduler of a case."""

    def __init__(self, case):
        longest, seats = case["max_model_len"], case["max_num_seqs"]
        has_states, is_tracked = case["num_states"] > 0, case["state_grid"] > 0
        publish(case["state_grid"])
        runtime_context.get_context().override("case", pp_max_micro_batch_size=seats)
        if has_states:
            self.req_to_token_pool = pool_of(case, seats, longest)
        else:
            self.req_to_token_pool = ReqToTokenPool(
                size=seats + 1, max_context_len=longest + 8, device="cpu", enable_memory_saver=False
            )
        self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(
            case["num_tokens"], dtype=torch.float16, device="cpu", kvcache=Silent(), need_sort=False
        )
        self.tree_cache = UnifiedRadixCache(
            CacheInitParams(
                disable=not case["enable_prefix_caching"],
                req_to_token_pool=self.req_to_token_pool,
                token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
                page_size=1,
                enable_mamba_extra_buffer=is_tracked,
                tree_components=COMPONENTS if has_states else (ComponentType.FULL,),
            )
        )
        self.page_size = self.pp_size = 1
        self.waiting_queue, self.running_batch = [], ScheduleBatch(reqs=[], batch_is_full=False)
        self.last_batch = self.chunked_req = self.dllm_config = self.prefill_delayer = None
        self._pending_chunked_abort_req = self.min_free_slots_delayer = self.dynamic_chunk_sizer = None
        self.model_config = Silent(
            is_encoder_decoder=False,
            is_matryoshka=False,
            vocab_size=1 << 30,
            self_opened_think_start_ids=(),
            hf_text_config=SimpleNamespace(),
        )
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.disaggregation_mode = DisaggregationMode.NULL
        self.policy = SchedulePolicy("fcfs", self.tree_cache, False, case["scheduling_policy"] == "priority", True)
        self.max_prefill_tokens, self.chunked_prefill_size = case["max_prefill_tokens"], case["chunked_prefill_size"]
        self.new_token_ratio_tracker = NewTokenRatioTracker(
            init=case["new_token_ratio_initial"],
            min=case["new_token_ratio_minimum"],
            decay=case["new_token_ratio_decay"],
            current=case["new_token_ratio_initial"],
        )
        self.grammar_manager = Silent(has_waiting_grammars=lambda: False)
        self.beam_coordinator = Silent(pending_member_rows=lambda batch: 0, commit_decode=lambda batch: set())
        self.dp_attn_adapter = Silent(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=None: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        )
        self.ngram_embedding_manager = Silent(prepare_for_forward=lambda batch, chunked_req=None: batch)
        self.tp_worker = Silent()
        self.tp_worker.model_runner.prefill_aware_swa = False
        self.tp_worker.model_runner.attn_backend = object()
        self.load_inquirer = Silent(_get_num_pending_tokens=lambda chunk_deduct=0: 0)
        self.metrics_reporter = Silent(num_generated_tokens=0, forward_ct_decode=0, enable_metrics=False)
        for name in (
            *(
                "enable_lora",
                "enable_hierarchical_cache",
                "enable_hicache_storage",
                "enable_lmcache",
                "enable_hisparse",
            ),
            *("enable_unified_cache_external_linker", "enable_priority_preemption", "is_hybrid_swa", "is_mixed_chunk"),
            *("require_mlp_sync", "enable_priority_scheduling", "abort_on_priority_when_disabled", "enable_fpm"),
        ):
            setattr(self, name, False)
        self.hisparse_coordinator = self.truncation_align_size = self.decode_offload_manager = None
        # A batch in its overlapped loop passes over those whose last token is on its way.
        self.enable_overlap = self.enable_skip_finishing_decode = case["async_scheduling"]
        self.is_generation = True
        self.priority_scheduling_preemption_threshold = self.max_prefill_bs = 0
        self.prefill_decode_interval = self._prefill_decode_interval_remaining = 0
        self.max_running_requests = seats
        self.processed_tokens_counter = self.forward_ct = 0
        self.scheduler_stage_metrics = None
        self.results = SchedulerBatchResultProcessor(
            is_generation=True,
            disaggregation_mode=DisaggregationMode.NULL,
            enable_overlap=self.enable_overlap,
            enable_overlap_mlx=False,
            model_config=self.model_config,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            tree_cache=self.tree_cache,
            hisparse_coordinator=None,
            req_to_token_pool=self.req_to_token_pool,
            decode_offload_manager=None,
            metrics_collector=Silent(),
            metrics_reporter=self.metrics_reporter,
            draft_worker=None,
            model_worker=object(),
            logprob_result_processor=Silent(),
            output_streamer=Silent(),
            beam_coordinator=self.beam_coordinator,
            abort_request=None,
        )
        self.num_retracted, self.now = {}, 0.0

    def _add_request_to_queue(self, req, is_retracted=False):
        self.num_retracted[req.rid] = self.num_retracted.get(req.rid, 0) + is_retracted
        req.time_stats.wait_queue_entry_time = self.now
        self.waiting_queue.append(req)

    def next_batch(self, launched):
        """Return the batch that runs next; ``launched``: those whose results are not processed yet."""
        self.result_queue = launched
        plan = self.get_next_batch_to_run(running_batch=self.running_batch, last_batch=self.last_batch)
        self.running_batch = plan.running_batch
        return plan.batch_to_run

    def process(self, batch, tokens):
        """Process the results of a batch."""
        result = SimpleNamespace(
            copy_done=None,
            next_token_ids=torch.tensor(tokens),
            can_run_cuda_graph=False,
            get_num_generated_tokens=lambda num_requests: num_requests,
            logits_output=None,
            auxiliary_host_output=None,
            routed_experts_output=None,
            extend_input_len_per_req=None,
            extend_logprob_start_len_per_req=None,
            num_correct_drafts_per_req_cpu=None,
            indexer_topk_output=None,
        )
        if batch.forward_mode.is_extend():
            self.results.process_batch_result_prefill(batch, result)
        else:
            self.results.process_batch_result_decode(batch, result)

    def observe_memory(self):
        """Let the delayer know how much memory is in use, and the batches of prompts that were tried."""
        self.prefill_bs_tracker = RecentPrefillBatchSizeTracker()
        self.pool_stats_observer = SchedulerPoolStatsObserver(
            tree_cache=self.tree_cache,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            req_to_token_pool=self.req_to_token_pool,
            session_controller=None,
            hisparse_coordinator=None,
            is_hybrid_swa=False,
            is_hybrid_ssm=False,
            enable_hisparse=False,
            full_tokens_per_layer=None,
            swa_tokens_per_layer=None,
            max_total_num_tokens=self.max_total_num_tokens,
        )

    def begin_anew(self):
        """Note that nothing runs."""
        if not self.waiting_queue and self.running_batch.is_empty():
            self.new_token_ratio_tracker.reset()


def request_of(rid, prompt, sampling):
    """Return a request as this release takes it."""
    asked = SamplingParams(**sampling)
    asked.normalize(None)
    return Req(
        rid=rid, origin_input_text="", origin_input_ids=array("q", prompt), sampling_params=asked, vocab_size=1 << 30
    )
