"""Run vLLM's own scheduler over workloads and print what it scheduled. Imports vLLM; knows nothing of simserve.

Runs in an environment of its own (``python -m tests.real_engines`` makes it and says how). Reads JSON from stdin, a
list of cases as `tests.real_engines.workloads` writes them, and prints a list of schedules: of every request the times
of its first step, first token and end, its preemptions and the tokens it found in the prefix cache; of every step its
start, decodes and prompt tokens. No model runs: a step takes ``step_seconds + token_seconds * its tokens``.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections import deque
from inspect import signature
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

try:
    from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups, get_kv_cache_groups
except ImportError:  # up to 0.32
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 1048576,
    "torch_dtype": "float16",
}


class Drafter:
    """What vLLM's scheduler asks of a ``SpeculativeConfig`` of an EAGLE or MTP layer."""

    method = "mtp"
    num_speculative_tokens_per_batch_size = None
    disable_eagle_block_drop = disable_lookahead_block_hashes = False
    max_num_new_slots_for_drafting = 0
    parallel_drafting = enable_adaptive_verification = use_heterogeneous_vocab = False
    draft_lm_head_quantization = None

    def __init__(self, num_speculative_tokens):
        self.num_speculative_tokens = num_speculative_tokens

    def yes(self):
        """It reads the hidden states of the model that it drafts for."""
        return True

    def no(self):
        """It is nothing else."""
        return False

    use_eagle = use_eagle_block_drop = needs_eagle_block_drop = yes
    use_dflash = use_dspark = uses_draft_model = use_multi_module_mtp = is_xpress = no


def make_scheduler(case, folder):
    """Return the scheduler of a case."""
    model = ModelConfig(
        model=folder, skip_tokenizer_init=True, dtype="float16", seed=0, max_model_len=case["max_model_len"]
    )
    settings = {
        "max_num_seqs": case["max_num_seqs"],
        "max_num_batched_tokens": case["max_num_batched_tokens"],
        "max_model_len": case["max_model_len"],
        "enable_chunked_prefill": case["enable_chunked_prefill"],
        "long_prefill_token_threshold": case["long_prefill_token_threshold"],
        "policy": case["scheduling_policy"],
        "is_encoder_decoder": False,
        "async_scheduling": case["async_scheduling"],
    }
    if case["watermark"]:
        settings["watermark"] = case["watermark"]
    cache = CacheConfig(
        block_size=case["block_size"],
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=case["enable_prefix_caching"],
    )
    config = VllmConfig(
        scheduler_config=SchedulerConfig(**settings),
        model_config=model,
        cache_config=cache,
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cpu"),
    )
    # The platform may have changed what was asked for: the case is about the scheduler.
    for name in ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold"):
        setattr(config.scheduler_config, name, settings[name])
    if hasattr(config.scheduler_config, "max_num_scheduled_tokens"):
        config.scheduler_config.max_num_scheduled_tokens = None
    cache.block_size = case["block_size"]
    cache.enable_prefix_caching = case["enable_prefix_caching"]
    cache.num_gpu_blocks = case["num_gpu_blocks"]
    kv = kv_cache_of(config, case)
    if case["num_lookahead_tokens"]:
        config.speculative_config = Drafter(case["num_speculative_tokens"])
    kind = AsyncScheduler if case["async_scheduling"] else Scheduler
    scheduler = kind(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=math.lcm(*(group.kv_cache_spec.block_size for group in kv.kv_cache_groups)),
        log_stats=False,
    )
    if not case["num_lookahead_tokens"]:
        # As with n-grams, which take no slots of KV memory beyond those of the drafts.
        scheduler.num_spec_tokens = case["num_speculative_tokens"]
        scheduler._spec_token_placeholders = [-1] * case["num_speculative_tokens"]
    return scheduler


def kv_cache_of(config, case):
    """Return the KV memory of a case: its groups of layers, and the blocks that they share."""
    shape = {"block_size": case["block_size"], "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    layers = {"layer": FullAttentionSpec(**shape)}
    if case["state_groups"]:
        return with_states(config, case, layers)
    groups = [KVCacheGroupSpec(["layer"], layers["layer"])]
    for number in range(case["window_groups"]):
        windowed = SlidingWindowSpec(**shape, sliding_window=case["sliding_window"])
        groups.append(KVCacheGroupSpec([f"windowed {number}"], windowed))
    sparse = {}
    if case["window_groups"] and "prefix_cache_retention_interval" in case:
        sparse["prefix_cache_retention_interval"] = case["prefix_cache_retention_interval"]
    return KVCacheConfig(num_blocks=case["num_gpu_blocks"], kv_cache_tensors=[], kv_cache_groups=groups, **sparse)


def with_states(config, case, layers):
    """Return vLLM's own layout of a layer with attention and layers with states that fill three quarters of a page."""
    cache, mode = config.cache_config, case["mamba_cache_mode"]
    # The platform of a host without a GPU may have disabled it.
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    cache.mamba_block_size = case["block_size"] if mode != "none" else case["max_model_len"]
    page = layers["layer"].page_size_bytes
    more = {}
    if hasattr(cache, "mamba_cache_mode"):
        cache.mamba_cache_mode = more["mamba_cache_mode"] = mode
    if "prefix_cache_retention_interval" in case:
        cache.prefix_cache_retention_interval = case["prefix_cache_retention_interval"]
    if case.get("exports_states"):
        more.update(num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)
    for number in range(case["state_groups"]):
        layers[f"state {number}"] = MambaSpec(
            block_size=cache.mamba_block_size,
            shapes=((page * 3 // 16,),),
            dtypes=(torch.float32,),
            page_size_padded=page,
            num_speculative_blocks=case["num_speculative_tokens"],
            **more,
        )
    if hasattr(cache, "kv_cache_layout"):
        cache.kv_cache_layout = "LBHNC"
    kv = get_kv_cache_config_from_groups(config, get_kv_cache_groups(config, layers), case["num_gpu_blocks"] * page)
    assert kv.num_blocks == case["num_gpu_blocks"]
    assert len(kv.kv_cache_groups) == 1 + case["state_groups"]
    return kv


class Run:
    """One case on the scheduler, driven as vLLM's engine core drives it."""

    def __init__(self, case, folder):
        self.case = case
        self.scheduler = make_scheduler(case, folder)
        self.arrivals = deque(enumerate(case["requests"]))
        self.rows = [
            {"scheduled": None, "first_token": None, "finish": None, "preemptions": 0, "cached": None}
            for _ in case["requests"]
        ]
        self.steps = []
        self.generated = [0] * len(self.rows)
        self.fractions = [0] * len(self.rows)
        ahead = getattr(self.scheduler, "num_hash_lookahead_tokens", 0)
        more = {"num_hash_lookahead_tokens": ahead} if ahead else {}
        self.hasher = get_request_block_hasher(case["block_size"], sha256, **more)

    def receive(self, now):
        """Hand over the requests that have arrived."""
        while self.arrivals and self.arrivals[0][1]["arrival"] <= now:
            index, asked = self.arrivals.popleft()
            # Only older releases want to be told that there is no token that ends an answer.
            older = {"eos_token_id": None} if "eos_token_id" in signature(Request).parameters else {}
            request = Request(
                request_id=str(index),
                prompt_token_ids=asked["prompt"],
                sampling_params=SamplingParams(max_tokens=asked["output"], ignore_eos=True),
                pooling_params=None,
                arrival_time=asked["arrival"],
                priority=asked.get("priority", 0),
                block_hasher=self.hasher,
                **older,
            )
            self.scheduler.add_request(request)

    def schedule(self, now):
        """Return a planned step, the requests that get a token in it, and its seconds; None where nothing runs."""
        known = {identity: request.num_output_placeholders for identity, request in self.scheduler.requests.items()}
        planned = self.scheduler.schedule()
        for request in self.scheduler.requests.values():
            index = int(request.request_id)
            if self.rows[index]["preemptions"] != request.num_preemptions:
                self.rows[index]["preemptions"], self.fractions[index] = request.num_preemptions, 0
        tokens = planned.num_scheduled_tokens
        if not planned.total_num_scheduled_tokens:
            return None
        decodes = prompt_tokens = 0
        drafts = self.case["num_speculative_tokens"]
        sampling = {}
        padded = {each.req_id for each in planned.scheduled_new_reqs}
        padded |= planned.scheduled_cached_reqs.resumed_req_ids
        for identity, count in tokens.items():
            request, row = self.scheduler.requests[identity], self.rows[int(identity)]
            if row["scheduled"] is None:
                row["scheduled"] = now
                row["cached"] = request.num_computed_tokens - count
            placeholders = request.num_output_placeholders
            if self.case["async_scheduling"]:
                is_sampling = placeholders > known[identity]
                before = request.num_tokens + placeholders - 1 if is_sampling else request.num_tokens
            else:
                is_sampling = request.num_computed_tokens >= request.num_tokens
                before = request.num_tokens
            if is_sampling:
                sampling[identity] = self.gain(planned, identity, padded)
            if is_sampling and count <= 1 + drafts and before > request.num_prompt_tokens:
                decodes += 1
            else:
                prompt_tokens += count
        seconds = self.case["step_seconds"] + self.case["token_seconds"] * planned.total_num_scheduled_tokens
        self.steps.append((now, decodes, prompt_tokens))
        return planned, sampling, seconds

    def gain(self, planned, identity, padded):
        """Return how many tokens a request gets in a step; of drafts that are only room for some, none holds."""
        index, gained = int(identity), 1
        if planned.scheduled_spec_decode_tokens.get(identity) and identity not in padded:
            gained, self.fractions[index] = divmod(self.fractions[index] + self.case["requests"][index]["pace"], 16)
        return gained

    def finish(self, planned, sampling, end):
        """Hand the tokens of a step to the scheduler, and note who has got what at its end."""
        identities = list(planned.num_scheduled_tokens)
        tokens = []
        for identity in identities:
            index = int(identity)
            if identity in sampling and identity in self.scheduler.requests:
                row, asked = self.rows[index], self.case["requests"][index]
                gained = min(sampling[identity], asked["output"] - self.generated[index])
                first = 10_000_000 + 10_000 * index + self.generated[index]
                tokens.append(list(range(first, first + gained)))
                self.generated[index] += gained
                if row["first_token"] is None:
                    row["first_token"] = end
                if self.generated[index] == asked["output"]:
                    row["finish"] = end
            else:
                tokens.append([])
        output = ModelRunnerOutput(
            req_ids=identities,
            req_id_to_index={identity: position for position, identity in enumerate(identities)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.scheduler.update_from_output(planned, output)
        drafts = self.case["num_speculative_tokens"]
        if drafts and not self.case["async_scheduling"]:
            going = [identity for identity in sampling if identity in self.scheduler.requests]
            self.scheduler.update_draft_token_ids(DraftTokenIds(going, [[7] * drafts for _ in going]))

    def run(self):
        """Serve everything, a step at a time, or a step ahead with asynchronous scheduling."""
        now = 0.0
        depth = 2 if self.case["async_scheduling"] else 1
        running = deque()
        free_at = 0.0
        while self.arrivals or self.scheduler.requests:
            self.receive(now)
            step = self.schedule(max(now, free_at)) if self.scheduler.has_requests() else None
            if step is None and not running and self.scheduler.has_requests():
                # The only one left has preempted itself and waits now: the engine core schedules again.
                step = self.schedule(max(now, free_at))
            if step is not None:
                planned, sampling, seconds = step
                free_at = max(now, free_at) + seconds
                running.append((planned, sampling, free_at))
                if len(running) < depth:
                    continue
            if running:
                planned, sampling, now = running.popleft()
                self.finish(planned, sampling, now)
            elif self.arrivals:
                now = max(now, self.arrivals[0][1]["arrival"])
            elif self.scheduler.requests:
                raise RuntimeError(f"stuck at {now} s")
        return {"requests": self.rows, "steps": self.steps}


def main():
    """Serve the cases of stdin."""
    cases = json.load(sys.stdin)
    init_none_hash(sha256)
    schedules = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        for case in cases:
            schedules.append(Run(case, folder).run())
    json.dump({"version": vllm.__version__, "schedules": schedules}, sys.stdout)


if __name__ == "__main__":
    main()
