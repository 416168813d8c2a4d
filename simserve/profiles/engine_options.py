"""The options of an engine, each declared once, and the rules by which its profile fills in those left unset.

Options: the keys of ``deployment.engine``, and which of them contradict each other; a resolved engine holds the same
names (`simserve.profiles.engine`). Rules, the blocks of a profile: versions written out, devices, kernels, memory kept
free besides weights and KV, KV of running requests, measured factors of one server. Knows no engine by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from simserve.errors import InputError, ScenarioError
from simserve.profiles.checkpoint import WIDE_FORMATS, WeightFormatName
from simserve.units import Bytes, PositiveSeconds, Seconds, WholeBytes
from simserve.validation import FrozenModel

KEY_PREFIX = "deployment.engine."

MAX_COUNT = 10**9  # Most tokens, requests or blocks that an option may name: beyond any engine.
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]

Batching = Literal["continuous", "static"]
Scheduler = Literal["mixed", "prefill_first"]
Admission = Literal["on_demand", "estimate", "reserve"]
SchedulingPolicy = Literal["fcfs", "priority", "shortest_first"]
PreemptionMode = Literal["recompute", "swap"]
KVAllocation = Literal["paged", "static", "pow2", "oracle", "none"]
Sampling = Literal["greedy", "nucleus", "none"]
Endpoint = Literal["completions", "chat"]
MoeBackend = Literal["aiter", "marlin", "triton"]
AttentionBackend = Literal["aiter", "triton"]
EncoderCut = Literal["weights", "data"]
StateDtype = Literal["float32", "bfloat16", "float16"]
Fp8GemmBackend = Literal["deep_gemm", "flashinfer_trtllm"]
CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]

FLASHINFER_GEMM_CAPABILITY = 10
"""Least CUDA compute capability (datacenter Blackwell) for FlashInfer's products by TensorRT-LLM's kernels."""

_VERSION = re.compile(r"[vb]?(\d+(?:\.\d+)*)")
KEPT_VERSIONS = 1024  # Version numbers kept after parsing: a search compares a few with each other in every trial.
MARLIN_MAKER = "NVIDIA"
"""Maker whose GPUs have kernels that unpack FP8 and NVFP4 weights where there is no arithmetic for them (Marlin)."""
FACTORS = ("gpu", "host", "prompts", "batch", "frontend")  # Names of the factors of `MeasuredFactors`.
TOWER_LAYERS, TOWER_WIDTH = 24, 1024
"""Layers and width of the tower that `TowerReserve` compares with (ViT-L/14). SGLang also assumes them if a file names
the size otherwise than expected: Qwen's has ``depth`` (server_args.py, adjust_mem_fraction_for_vlm)."""
TOWER_GROWTH, TOWER_LEAST, TOWER_MOST = 0.1, 0.8, 1.05
"""Decrease of the share for a tower of twice the weights, and the limits of the factor (the same place)."""


class EngineOptions(FrozenModel):
    """The options of an engine, in SI. An absent option resolves to the default of the engine's version on that GPU."""

    batching: Batching | None = None
    """`continuous` (requests join and leave at every step) or `static` (collect, pad, answer together)."""
    scheduler: Scheduler | None = None
    """Scheduling order in a step: `mixed` (decodes and prefill chunks share one budget) or `prefill_first`."""
    admission: Admission | None = None
    """What admission requires blocks for: `on_demand` the next chunk, `estimate` an estimate of the output, `reserve`
    all `max_tokens`. TensorRT-LLM's `capacity_scheduler_policy`: `reserve` is GUARANTEED_NO_EVICT, `on_demand`
    MAX_UTILIZATION, which requires blocks for the whole prompt and preempts the last to arrive."""
    scheduling_policy: SchedulingPolicy | None = None
    """Order of the queue: `fcfs`, first come, first served; `priority`: smaller numbers first, and the last in that
    order is preempted; `shortest_first`: smallest sum of prompt and `max_tokens` first."""
    priority_ageing: PositiveSeconds | None = None
    """`priority`: waiting this long outweighs one level. Absent: waiting changes nothing."""
    priority_preemption: bool | None = None
    """`priority`: whether running requests of a worse priority are preempted for one that finds no seat or no blocks.
    Absent: they are not, as in vLLM's V1."""
    preemption_mode: PreemptionMode | None = None
    """What happens to the KV cache of a preempted request. `recompute`: dropped and computed again; `swap`: copied to
    host memory and back, over the host link, in the steps that move it (vLLM before V1; without prefix caching)."""
    kv_allocation: KVAllocation | None = None
    """`paged` blocks on demand; `static`, `pow2`, `oracle` contiguous reservations; `none`: no KV cache."""
    max_num_seqs: Count | None = None
    """Seats: the most requests that run at once on a replica."""
    max_num_batched_tokens: Count | None = None
    """Token budget of one step."""
    enable_chunked_prefill: bool | None = None
    """Whether a prompt may be split over several steps."""
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = None
    """vLLM: the most tokens of one prompt in a step, which leaves budget for others beside a long one; with chunked
    prefill. 0 or absent: as many as the budget has left."""
    enable_prefix_caching: bool | None = None
    """Whether requests with the same beginning share KV blocks. Without `sessions`, `shared_prefix` or a trace that
    says what prompts share, a workload has nothing to share."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of GPU memory; the engine's rule decides of which memory (total, free after load, static)."""
    num_gpu_blocks_override: Count | None = None
    """KV blocks of a replica, instead of as many as memory holds: vLLM's name; SGLang's `max_total_tokens` and
    TensorRT-LLM's `max_tokens` of the KV cache, in blocks. `simserve import log` reads it from a server's own log."""
    kv_cache_memory_bytes: Annotated[WholeBytes, Field(ge=1)] | None = None
    """vLLM: bytes per GPU for the KV cache, 2000000000 or "2 GB"; `gpu_memory_utilization` is then ignored."""
    max_loras: Count | None = None
    """Most LoRA adapters in a batch, and slots for them on the GPU, which take memory from the KV cache: vLLM's
    `--max-loras`, SGLang's `--max-loras-per-batch`. A request whose adapter would exceed the limit is passed over.
    Absent: adapters are off."""
    max_lora_rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Largest rank of an adapter: slots have space for it, and kernels compute it whatever the actual rank. Absent: 16,
    vLLM's default."""
    max_cpu_loras: Count | None = None
    """Adapters kept in host memory, including those on the GPU (SGLang's `--max-loaded-loras`); others are read from
    disk again. Absent: `max_loras`, as in vLLM; with SGLang all."""
    swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """SGLang: tokens in the pool of layers with a sliding window, per token in that of the others, for models whose
    windows have a pool (`--swa-full-tokens-ratio`). Less leaves long requests more room and short ones less. Absent:
    0.8."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """Whether layers with a sliding window keep every token, as all others do: vLLM's name; SGLang's
    `--disable-hybrid-swa-memory`. Absent: they keep their window, where the engine's version can."""
    block_size: Count | None = None
    """Tokens per KV block."""
    max_model_len: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = None
    """Longest prompt plus output, tokens. Absent: the model's own limit."""
    async_scheduling: bool | None = None
    """Whether the host prepares the next step while the GPU works on this one."""
    attention_dp_timeout_iters: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = None
    """TensorRT-LLM with `data_parallel_size`: the most steps that prompts wait until every rank has one
    (attention_dp_config: enable_balance, timeout_iters), so that no rank prefills while the others idle. Absent: they
    do not wait."""
    schedule_conservativeness: Annotated[float, Field(gt=0, le=100)] | None = None
    """SGLang: factor on the share of `max_tokens` that a running request is first expected to generate, so that more
    than 1 admits fewer and less than 1 more; the share is at most 1. Ranks of data-parallel attention have 0.3 of it
    besides. Absent: 1."""
    enable_prefill_delayer: bool | None = None
    """SGLang with `data_parallel_size`: whether prompts wait until every rank has one and, from 0.5.10 on, as many free
    seats as the largest batch of prompts so far took. Absent: they do not."""
    prefill_delayer_max_delay_passes: Count | None = None
    """`enable_prefill_delayer`: prompts begin in this step of their wait at the latest, whoever else has one. Absent:
    30."""
    prefill_delayer_token_usage_low_watermark: Annotated[float, Field(gt=0, le=1)] | None = None
    """`enable_prefill_delayer`: prompts of a rank that uses less than this share of its KV memory do not wait. Absent:
    all wait."""
    sampling: Sampling | None = None
    """How clients ask for tokens. `greedy`; `nucleus`: by top-k or top-p, which a model's generation_config.json sets
    for clients that ask for nothing, and for which vLLM 0.8 to 0.13 sorts the logits; `none`: nobody samples, as in
    llama-bench and llama-batched-bench. Absent: greedy."""
    endpoint: Endpoint | None = None
    """What clients call: `completions` (/v1/completions) or `chat` (/v1/chat/completions). The API server works on
    requests one after another, so that many at once wait for one another: 1.75 ms each under vLLM, SGLang and
    TensorRT-LLM; vLLM 0.6.4 to 0.9.1 and 0.11.0 also parse the template of each chat anew, 7 and 12 ms. Requests that
    are all there at once (`all_at_once`) are a batch in the engine's own process unless they are chats. Absent:
    completions."""
    enforce_eager: bool | None = None
    """Whether to run without CUDA graphs and compilation: a step takes at least as long as its kernels' launches."""
    max_cudagraph_capture_size: Count | None = None
    """Largest batch, in tokens, that is captured in a CUDA graph; a larger step waits for the launches of its kernels.
    Absent: the default of the engine's version; vLLM from 0.10: twice `max_num_seqs`, at most 512."""
    cuda_graph_padding: bool | None = None
    """Whether a batch between two captured sizes is padded to the larger. Where not, SGLang captures every size, and
    TensorRT-LLM, unless told, 1 to 32, 64 and 128: others wait for launches. Absent: padded, as exports say."""
    piecewise_cuda_graph_max_tokens: Count | None = None
    """TensorRT-LLM: steps with prompts of up to so many tokens run on CUDA graphs in pieces, padded to the next
    captured size, and the host launches attention alone: the largest of `torch_compile_config.capture_num_tokens` with
    `enable_piecewise_cuda_graph` (3,072 if none is listed), from 1.4 on of `prefill_capture_num_tokens`. Captured are
    powers of two up to 128, multiples of 256, and this number, up to `max_num_batched_tokens`. Absent: none has one."""
    frontend_latency: Seconds | None = None
    """Time from a request's arrival to the scheduler (HTTP, tokenisation). If set it is all of that time, and requests
    do not wait for one another in the API server."""
    cudagraph_mode: CudagraphMode | None = None
    """Which steps run on CUDA graphs. `FULL_DECODE_ONLY`: those without prompts; a step with prompts waits for the
    launches of its kernels (SGLang from 0.5.10: `--disable-piecewise-cuda-graph`). vLLM alone: `NONE`: none;
    `PIECEWISE`, `FULL` and `FULL_AND_PIECEWISE`: those with prompts too; from 0.11 on `PIECEWISE` leaves attention to
    the host, also in steps that only decode, the other two are priced alike. Absent: as the release does (Llama 4 in
    vLLM: `PIECEWISE`)."""
    moe_backend: MoeBackend | None = None
    """vLLM and SGLang: whose kernels multiply experts in MXFP4, which sets their speed (H100 and H200 have both) and
    the tiles to which they are padded in memory. vLLM's `--moe-backend` from 0.17, before that
    `VLLM_MXFP4_USE_MARLIN`; SGLang's `--moe-runner-backend`, whose `triton_kernel` is `triton` here. Experts in NVFP4
    that Marlin multiplies have inputs in 16 bit, on GPUs with arithmetic in 4 bit too; dense layers keep theirs in 4.
    Absent: Triton's for gpt-oss on Hopper and B200, Marlin's for others; a wheel of vLLM up to 0.11.2 lacks Triton's
    and uses Marlin's. AMD GPUs: whose kernels multiply experts in BF16 and FP8, Triton's or AMD's, `aiter`
    (`VLLM_ROCM_USE_AITER`), and with them products in FP8 under vLLM. An MI300X has times of both, others one rate (an
    MI325X both in BF16 and of products with block scales); experts in INT4 are Triton's either way. Absent: AMD's where
    `attention_backend` is `aiter`, as one switch sets both, and otherwise Triton's."""
    language_model_only: bool | None = None
    """Leave out the encoders of images and audio, for whose weights and largest step a server otherwise reserves memory
    whatever its prompts contain: vLLM's and SGLang's `--language-model-only`. Absent: they are loaded too."""
    mm_encoder_tp_mode: EncoderCut | None = None
    """How a vision tower uses the tensor-parallel ranks: `weights` splits it as the language model is split; with
    `data` each rank holds all of it and encodes some of a request's images, without all-reduces. vLLM's name; SGLang's
    `--mm-enable-dp-encoder`. Absent: `weights`. Audio encoders are always split."""
    enable_nccl_nvls: bool | None = None
    """SGLang: whether NCCL reduces in the NVSwitch over eight GPUs and more (`--enable-nccl-nvls`, which
    `--enable-symm-mem` implies), so that all-reduces of long prompts take a quarter less. Absent: they do not."""
    fp8_gemm_backend: Fp8GemmBackend | None = None
    """SGLang on Blackwell: whose kernels multiply FP8 weights with block scales (`--fp8-gemm-backend`).
    `flashinfer_trtllm` starts sooner and takes six times as long for long prompts as `deep_gemm`. Absent: DeepGEMM."""
    attention_backend: AttentionBackend | None = None
    """SGLang, vLLM from 0.9: whose kernels run attention (`--attention-backend`). AMD GPUs: `triton` reads the KV cache
    at less than half the rate of AMD's own, `aiter`, which include vLLM's for ROCm; prompts take as long, but longer
    with heads of 129 to 256 (Qwen3.5, Gemma), and decodes of latent attention (MLA) compute at a tenth of the peak, at
    less for few sequences. Absent: AMD's, but Triton's under vLLM 0.9 to 0.18, which leave AITER off. NVIDIA GPUs: with
    `triton`, those decodes compute at 35 TFLOP/s, and at less for few sequences; nothing else changes."""
    mamba_ssm_cache_dtype: StateDtype | None = None
    """vLLM, SGLang: format of the states of Mamba and linear attention, vLLM's name; SGLang's `--mamba-ssm-dtype`.
    Sixteen bits halve their memory, and what a step moves of them, but not the arithmetic of linear attention. Absent:
    the checkpoint's."""
    mamba_full_memory_ratio: Annotated[float, Field(gt=0)] | None = None
    """SGLang: memory for states of Mamba and linear attention, per byte for keys and values
    (`--mamba-full-memory-ratio`). More: room for more seats and states of prefixes, for fewer tokens. Absent: 0.9."""
    max_mamba_cache_size: Count | None = None
    """SGLang: states of Mamba and linear attention in memory (`--max-mamba-cache-size`); with `data_parallel_size`, on
    each rank. Beside a prefix cache a seat takes three, or five where steps are scheduled ahead. Absent: as many as
    `mamba_full_memory_ratio` leaves room for; without a prefix cache one for each of the seats that are set."""
    disable_cascade_attn: bool | None = None
    """vLLM: whether each decode reads all its keys, also those of a system prompt that all requests of a step share
    (`--disable-cascade-attn`), instead of once for all. Absent: they do from 0.18 on."""
    flashinfer_sampler: bool | None = None
    """vLLM 0.8 to 0.16: whether FlashInfer's kernels sample where clients ask for top-k or top-p: nothing is sorted and
    the KV cache gets more memory. Absent: as in the official image (not in a wheel up to 0.11.0 without FlashInfer)."""
    host_slowdown: Annotated[float, Field(gt=0)] | None = None
    """Factor on the engine's CPU time (scheduling, launching kernels, handing over tokens) relative to the nodes on
    which its host times were measured (H100 nodes of 2024). Absent: as in the usual node of the GPU."""
    static_batch_size: Count | None = None
    """Static batching: the most requests of one batch."""
    static_max_wait: Seconds | None = None
    """Static batching: the longest wait of a batch's first request for others."""
    cpu_offload_gb: Annotated[float, Field(ge=0)] | None = None
    """vLLM and SGLang: GiB of weights per GPU that stay in host memory and cross the host link in every step."""
    n_gpu_layers: Count | None = None
    """llama.cpp: layers on the GPU; the CPU runs the others with their KV. Absent: all, from b7539 those that fit."""
    n_cpu_moe: Count | None = None
    """llama.cpp: the first layers whose routed experts stay in host memory and run on the CPU, while the GPU runs the
    rest of these layers and holds their KV (`--n-cpu-moe`, `--cpu-moe`: all). Absent: none, b7539: what it takes."""
    kv_unified: bool | None = None
    """llama.cpp: whether all slots share one KV buffer as long as `max_model_len`, of which each may take all.
    Otherwise each slot has `max_model_len` of its own, and only requests in consecutive slots are computed together.
    Absent: as the server does, shared unless `max_num_seqs` is set."""
    similar_prompts: bool | None = None
    """llama.cpp: whether prompts share more than 10 % of their beginning (`--slot-prompt-similarity`), so that requests
    reuse the slots of similar finished ones and busy slots stay adjacent. Absent: if all share a system prompt."""
    ubatch_size: Count | None = None
    """llama.cpp: the most tokens of a micro-batch, its `--ubatch-size`: a larger step runs all kernels, and reads all
    weights, once per micro-batch. At most `max_num_batched_tokens`. Absent: 512."""
    num_gpu: Count | None = None
    """Ollama: as `n_gpu_layers` in llama.cpp. Absent: as many as fit beside the context."""
    swap_space: Bytes | None = None
    """`swap`: host memory for swapped KV per GPU; once it is full, victims are computed again. Absent: vLLM's 4 GiB."""

    @property
    def shares_buffer(self) -> bool:
        """Whether all slots take what they need from one buffer, as long as the context that each may fill."""
        return bool(self.kv_unified) and self.kv_allocation == "paged"

    def overrides(self) -> dict[str, Any]:
        """Return the options that are set, in SI."""
        values = ((key, getattr(self, key)) for key in EngineOptions.model_fields)
        return {key: value for key, value in values if value is not None}


def refuse(key: str, value: object, rule: str, remedy: str) -> ScenarioError:
    """Return the error that an engine key violates a rule."""
    return ScenarioError(rule, key=f"{KEY_PREFIX}{key}", value=value, remedy=remedy)


def check_options(asked: EngineOptions) -> None:
    """Check that the options that are set are compatible, whatever the engine.

    Raises:
        ScenarioError: Two of them contradict each other.
    """
    if asked.swap_space == 0 and asked.preemption_mode == "swap":
        raise refuse("swap_space", "0 B", "leaves nothing to swap to", "give some, or use preemption_mode recompute")
    if asked.enable_prefix_caching and asked.preemption_mode == "swap":
        rule = "is not simulated with preemption_mode swap: swapped blocks would have to be shared"
        raise refuse("enable_prefix_caching", True, rule, "leave one of the two out")
    for key in ("max_lora_rank", "max_cpu_loras"):
        if getattr(asked, key) is not None and asked.max_loras is None:
            raise refuse(key, getattr(asked, key), "needs max_loras: without it adapters are off", "set max_loras too")
    if asked.max_cpu_loras is not None and asked.max_loras is not None and asked.max_cpu_loras < asked.max_loras:
        rule = f"must be at least max_loras ({asked.max_loras}): what is on the GPU is in host memory too"
        raise refuse("max_cpu_loras", asked.max_cpu_loras, rule, "raise it or leave it out")
    for key in ("prefill_delayer_max_delay_passes", "prefill_delayer_token_usage_low_watermark"):
        if getattr(asked, key) is not None and not asked.enable_prefill_delayer:
            rule = "needs enable_prefill_delayer: without it no prompt is delayed"
            raise refuse(key, getattr(asked, key), rule, "set enable_prefill_delayer too")
    if asked.enable_prefill_delayer and asked.async_scheduling is False:
        rule = "needs async_scheduling: SGLang does not start with --disable-overlap-schedule beside it"
        raise refuse("enable_prefill_delayer", True, rule, "leave one of the two out")
    budget, seats = asked.max_num_batched_tokens, asked.max_num_seqs
    if budget is not None and seats is not None and budget < seats:
        rule = f"must be at least max_num_seqs ({seats}): every running request takes a token of each step"
        raise refuse("max_num_batched_tokens", budget, rule, "raise it or lower max_num_seqs")
    if asked.enforce_eager and asked.cudagraph_mode not in (None, "NONE"):
        rule = "is not possible with enforce_eager, which captures no graphs"
        raise refuse("cudagraph_mode", asked.cudagraph_mode, rule, "leave one of the two out")
    size = asked.static_batch_size
    if budget is not None and size is not None and budget < size:
        rule = f"must be at least static_batch_size ({size}): every sequence takes a token of each step"
        raise refuse("max_num_batched_tokens", budget, rule, "raise it or lower static_batch_size")
    if size is not None and seats is not None and size > seats:
        rule = f"must be at most max_num_seqs ({seats})"
        raise refuse("static_batch_size", size, rule, "lower it or leave max_num_seqs out")
    for key in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if getattr(asked, key) is not None and asked.kv_allocation == "none":
            raise refuse(
                key, getattr(asked, key), "needs a KV cache, and kv_allocation is none", "leave one of the two out"
            )
    if asked.admission in ("estimate", "reserve") and asked.kv_allocation not in (None, "paged"):
        rule = f"needs kv_allocation paged, not {asked.kv_allocation}, which reserves by itself"
        raise refuse("admission", asked.admission, rule, "leave admission out or set kv_allocation to paged")


def refuse_static_keys(asked: EngineOptions, batching: str) -> None:
    """Refuse the keys of static batching on a deployment with continuous batching.

    Raises:
        ScenarioError: ``static_batch_size`` or ``static_max_wait`` is set and ``batching`` is not static.
    """
    for key in ("static_batch_size", "static_max_wait"):
        value = getattr(asked, key)
        if value is not None and batching != "static":
            rule = f"needs batching static, not {batching}"
            without = f"leave it out (--set {KEY_PREFIX}{key}=null)"
            raise refuse(key, value, rule, f"set batching to static or {without}")


def refuse_admission(asked: EngineOptions, kv_allocation: str) -> None:
    """Refuse an admission rule that counts blocks if KV is not allocated in blocks.

    Raises:
        ScenarioError: ``admission`` is set to ``estimate`` or ``reserve`` without paged KV.
    """
    if asked.admission in ("estimate", "reserve") and kv_allocation != "paged":
        rule = f"needs kv_allocation paged, not this engine's {kv_allocation}"
        raise refuse("admission", asked.admission, rule, "set kv_allocation to paged or leave admission out")


def refuse_expert_kernels(
    asked: EngineOptions, span: tuple[float, float] | None, compute_capability: str | None
) -> None:
    """Refuse expert kernels on GPUs on which a version does not run them; AMD's have no compute capability.

    Args:
        span: Compute capabilities of Triton's kernels, the last excluded; None: all.
        compute_capability: Of the GPU; None: another maker's.
    """
    rules = {"aiter": "takes AMD GPUs"}
    if span is not None and not span[0] <= float(compute_capability or span[0]) < span[1]:
        rule = f"takes compute capability {span[0]:g} to before {span[1]:g}, and the GPU has {compute_capability}"
        rules["triton"] = rule
    if compute_capability is not None and asked.moe_backend in rules:
        raise refuse("moe_backend", asked.moe_backend, rules[asked.moe_backend], "leave it out, or write marlin")


def refuse_sharing(asked: EngineOptions, batching: str, kv_allocation: str) -> None:
    """Refuse prefix caching if requests hold no blocks that another could use.

    Raises:
        ScenarioError: ``enable_prefix_caching`` is set with static batching or without paged KV.
    """
    if asked.enable_prefix_caching and (batching != "continuous" or kv_allocation != "paged"):
        found = "static batching" if batching != "continuous" else f"kv_allocation {kv_allocation}"
        rule = f"needs continuous batching and kv_allocation paged, not {found}"
        raise refuse("enable_prefix_caching", True, rule, "leave it out or set it to false")


def refuse_order(asked: EngineOptions, batching: str, kv_allocation: str, admission: str) -> None:
    """Refuse a queue order or a kind of preemption that would have no effect or is not simulated.

    Raises:
        ScenarioError: ``scheduling_policy`` with static batching; ``priority_preemption`` or swapping without blocks on
            demand; ``schedule_conservativeness`` without an estimate.
    """
    if batching != "continuous" and asked.scheduling_policy not in (None, "fcfs"):
        rule = "needs continuous batching: a static batch takes whoever waits"
        raise refuse("scheduling_policy", asked.scheduling_policy, rule, "leave it out")
    if asked.preemption_mode == "swap" and (batching, kv_allocation, admission) != ("continuous", "paged", "on_demand"):
        found = "static batching" if batching != "continuous" else f"{admission} and {kv_allocation}"
        rule = f"needs continuous batching, admission on_demand and kv_allocation paged, not {found}"
        raise refuse("preemption_mode", "swap", rule, "leave it out or set those")
    if asked.schedule_conservativeness is not None and (batching, admission) != ("continuous", "estimate"):
        found = "static batching" if batching != "continuous" else admission
        rule = f"needs continuous batching and admission estimate, not {found}"
        raise refuse("schedule_conservativeness", asked.schedule_conservativeness, rule, "leave it out")
    if asked.priority_preemption and (kv_allocation, admission) != ("paged", "on_demand"):
        rule = f"needs admission on_demand and kv_allocation paged, not {admission} and {kv_allocation}"
        raise refuse("priority_preemption", True, rule, "leave it out or set the two")


def refuse_threshold(asked: EngineOptions, batching: str, is_chunked: bool, max_model_len: int) -> None:
    """Refuse a limit on one request's prompt tokens if prompts are not split, or one beyond the longest request.

    Raises:
        ScenarioError: ``long_prefill_token_threshold`` is set so.
    """
    key, limit = "long_prefill_token_threshold", asked.long_prefill_token_threshold
    if not limit:
        return
    if batching == "static" or not is_chunked:
        raise refuse(key, limit, "needs continuous batching and chunked prefill", "leave it out")
    if limit > max_model_len:
        raise refuse(key, limit, f"must be at most max_model_len ({max_model_len})", "lower it or leave it out")


def block_scaled_kernels(
    asked: EngineOptions, compute_capability: str | None, makers: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Return whose products of FP8 weights with block scales replace the engine's own, by the names of the curves.

    Args:
        asked: The options.
        compute_capability: Of the GPU.
        makers: Maker of the GPU -> whose kernels the release runs unasked. AMD's own, once on, replace the engine's by
            Triton.

    Raises:
        ScenarioError: FlashInfer's is set on a GPU that does not run them (SGLang fp8_utils.py: SM100).
    """
    if "aiter" in (asked.attention_backend, asked.moe_backend) and makers.get("AMD") == "triton_own":
        return {"block_scaled_kernels": {}, "narrow_kernels": {}}
    if asked.fp8_gemm_backend != "flashinfer_trtllm":
        return {}
    if compute_capability is None or int(float(compute_capability)) != FLASHINFER_GEMM_CAPABILITY:
        rule = f"takes compute capability {FLASHINFER_GEMM_CAPABILITY}, and the GPU has {compute_capability or 'none'}"
        raise refuse("fp8_gemm_backend", asked.fp8_gemm_backend, rule, "leave it out")
    return {"block_scaled_kernels": {"NVIDIA": "flashinfer"}}


PREFILL_WORKER_EFFICIENCY = {"deepseek_v3": 0.8, "deepseek_v32": 0.8, "kimi_k2": 0.8}
"""Share of its kernels' rates that a worker running only prompts of these families reaches; others: all.

Fitted to DeepSeek-R1 under TensorRT-LLM on 8 H200 whose queues never emptied (InferenceX's separate pools, prompts of
8,192: 3.11 a second per worker; the tables give 3.9). Not fitted: prompts of 1,024 there (0.80), SGLang (0.73 to 0.92).
Llama and Mixtral reach the tables' rate (TensorRT-LLM offline, 2,048 tokens in and 128 out: -1 to +7 %)."""

FLASHINFER_PREFILL_EFFICIENCY = 0.82
"""Further factor for such a worker if FlashInfer multiplies FP8 weights with block scales. Fitted to DeepSeek-R1 and V3
under SGLang 0.5.8 on 8 B200 whose queues never emptied (InferenceX, prompts of 8,192: 2.9 to 3.4 a second per worker;
0.8 gives 3.4 to 4.6). Not fitted: prompts of 1,024 and shorter queues (calibration/LOG.md)."""


def prefill_worker_efficiency(asked: EngineOptions, model_family: str, has_block_scales: bool) -> float:
    """Return the share of its kernels' rates that a worker running only prompts reaches."""
    share = PREFILL_WORKER_EFFICIENCY.get(model_family, 1.0)
    is_flashinfer = asked.fp8_gemm_backend == "flashinfer_trtllm" and has_block_scales
    return share * FLASHINFER_PREFILL_EFFICIENCY if is_flashinfer and share < 1.0 else share


def version_key(version: str, known: list[str] | None = None) -> tuple[int, ...]:
    """Return a version as numbers that compare as versions do: ``"0.10.2"`` -> ``(0, 10, 2)``.

    Ignores a leading ``v`` or ``b`` (llama.cpp builds) and anything after the numbers (``rc2``).

    Raises:
        InputError: The text does not begin with a number.
    """
    numbers = _numbers_of(version)
    if numbers is None:
        remedy = f"known are {', '.join(known)}" if known else None
        raise InputError("is not a version number", key="deployment.engine.version", value=version, remedy=remedy)
    return numbers


@lru_cache(maxsize=KEPT_VERSIONS)
def _numbers_of(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version without trailing zeros; None if the text does not begin with a number."""
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


class Devices(FrozenModel):
    """The makers whose devices an engine runs on."""

    makers: Mapping[str, str]
    """Maker, as in hardware profiles -> the plug-in that provides the kernels; "": the engine's own."""
    formats: Mapping[str, tuple[WeightFormatName, ...]] = {}
    """Maker -> weight formats below 16 bit that run there; makers not named: all that the engine has."""
    capability_at_least: float | None = None
    """Least CUDA compute capability on which it runs; absent: every GPU of the catalogue."""
    source: str
    """Where this is stated."""

    def runs_on(self, maker: str, compute_capability: str | None) -> bool:
        """Return whether it runs on a GPU; the capability is None for makers other than NVIDIA."""
        return maker in self.makers and float(compute_capability or "inf") >= (self.capability_at_least or 0.0)

    def restricted(self, maker: str, engine: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts about an engine that differ on a maker's devices; none for a maker that is not named.

        Args:
            maker: As in hardware profiles.
            engine: Its `supported_quantizations`, `quantises_on_load` and `quantises_before_loading`.
        """
        if maker not in self.makers or maker == MARLIN_MAKER:
            return {}
        changed: dict[str, Any] = {"has_weight_only_floats": False, "plugin": self.makers[maker]}
        if self.makers[maker]:
            # Graphs are CUDA's and HIP's: plug-ins compile, and keep no memory pool for them.
            changed |= {"cuda_graph_bytes": 0.0}
        if maker in self.formats:
            run = {*WIDE_FORMATS, *self.formats[maker]}
            changed |= {key: tuple(each for each in known if each in run) for key, known in engine.items()}
        return changed


class KernelBlock(FrozenModel):
    """KV block size that an attention kernel forces if none is set."""

    since: str
    """First version that forces it."""
    until: str | None = None
    """First version that no longer does; absent: none."""
    attention: Literal["latent", "sparse"]
    """Kind of attention: latent attention that reads all keys, or attention whose indexer chooses them."""
    capability_at_least: float | None = Field(default=None, gt=0)
    """Least CUDA compute capability for which this holds; absent: any."""
    capability_below: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which this no longer holds; absent: none."""
    tokens: int = Field(ge=1)
    """Tokens per block."""
    source: str
    """Where this is stated."""

    def holds(self, version: str, attention: str | None, compute_capability: str | None) -> bool:
        """Return whether a version forces it for a kind of attention on a GPU; never on those of other makers."""
        if attention != self.attention or compute_capability is None:
            return False
        is_new = version_key(self.since) <= version_key(version)
        is_old = self.until is None or version_key(version) < version_key(self.until)
        least, below = self.capability_at_least or 0.0, self.capability_below or float("inf")
        return is_new and is_old and least <= float(compute_capability) < below


class MeasuredFactors(FrozenModel):
    """How far one server's times differ from the rest of the profile; `calibrate serving` fits the factors."""

    gpu: PositiveFloat = 1.0
    """Factor on the time that the GPU (or the CPU that computes) takes for every step."""
    host: PositiveFloat = 1.0
    """Factor on the host time per step and per request, and on the start-up time of kernels."""
    prompts: PositiveFloat = 1.0
    """Factor, besides `gpu`, on steps with prompts."""
    batch: PositiveFloat = 1.0
    """Factor, besides `gpu`, on the part of a decode step that exceeds one request without context."""
    frontend: PositiveFloat = 1.0
    """Factor on the time from a request's arrival to the scheduler; no effect if a scenario sets that time."""
    measured_on: str
    """Model, GPUs and engine of that server, and number of runs; results that use the factors name them."""
    date: str | None = None
    """Day of the measurements, according to their files or their owner."""
    model: str | None = None
    """Catalogue name of that server's model; expected errors of similar servers are based on its runs."""
    hardware: str | None = None
    """Catalogue name of its GPU."""
    gpus: PositiveInt | None = None
    """GPUs per replica of that server."""
    runs: PositiveInt | None = None
    """Number of measured loads."""
    own_errors: dict[Literal["ttft", "tpot", "throughput"], PositiveFloat] = Field(default_factory=dict)
    """Metric -> what holds 90 % of ``|log(simulated / measured)|`` at the measured loads with the factors; of up to ten
    loads the largest. Intervals of a run on that server are no narrower."""
    own_figures: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Figure of a benchmark (``mean_ttft``) -> the largest ratio of measured and simulated at the measured loads, up or
    down, minus 1; rounded up to two digits. ``calibrate check`` takes no figure for moved that is no farther off."""
    source: str
    """Files, and the result of the fit."""

    @property
    def values(self) -> dict[str, float]:
        """The factors by name."""
        return {name: getattr(self, name) for name in FACTORS}


class TowerReserve(FrozenModel):
    """Reduction of the share that SGLang computes itself for a model with a vision tower."""

    factor: float = Field(gt=0, le=1)
    """Factor on the share for a usual tower."""
    grows_with_tower: bool = False
    """Whether larger towers leave less."""

    def share(self, num_layers: int, width: int) -> float:
        """Return the factor on the share of GPU memory for a tower with that many layers and that width."""
        if not self.grows_with_tower:
            return self.factor
        size = num_layers * width**2 / (TOWER_LAYERS * TOWER_WIDTH**2)
        return self.factor * max(TOWER_LEAST, min(TOWER_MOST, 1.0 - TOWER_GROWTH * (size - 1.0)))


class SecondRunner(FrozenModel):
    """Servers that run on vLLM's second model runner, which verifies no drafts before it sizes the KV cache."""

    drafters: tuple[Literal["draft_model", "ngram", "eagle", "mtp"], ...] = ()
    """Drafters that run there."""
    families: tuple[str, ...] = ()
    """Model families that run there; empty: all."""
    except_experts: bool = False
    """Whether models with routed experts are excluded."""
    except_states: bool = False
    """Whether models with layers that keep a state, Mamba or linear attention, are excluded."""
    except_quantized: bool = False
    """Whether weights below 16 bit are excluded."""


class StatePool(FrozenModel):
    """How states of Mamba and linear attention take blocks of vLLM's KV pool; one of tokens is as long as a state."""

    padding_limit: float = Field(default=1.0, ge=1)
    """As `WindowedKV.padding_limit`, for the layers that keep states and those with full attention."""
    ends_chunks: bool = False
    """Whether a cached prefix is found only where its states are cached too, for which chunks of prompts end there."""
    keeps_every_state: bool = False
    """Whether a state is cached at every full block that ends a chunk, or only where another prompt may go on."""
    keeps_last_state: bool = False
    """Whether a prompt of full blocks ends with its last one, and not a block before it."""
    aligns_plainly: bool = False
    """Whether chunks are cut at a last block, and before it to whole blocks of their own; a state is given back
    once the step under way goes on from it; and no request's first chunk takes slots for drafts, without states too."""
    exports: tuple[Literal["mamba2", "gated_delta", "kimi_delta"], ...] = ()
    """Layers whose kernels write a state amid a chunk, so that the last chunk of a prompt need not be cut."""
    holds_seats: bool = False
    """Whether the engine refuses to start with more seats than the pool has blocks."""
    latent_tokens: int = Field(default=64, ge=1)
    """A block of latent attention that is made as long as a state holds a multiple of this number of tokens."""
    logs_requests: bool = False
    """As `WindowedKV.logs_requests`."""


class RuntimeMemory(FrozenModel):
    """Inputs of the rule for memory that is neither weights nor KV; `perf` computes the bytes."""

    non_torch_single: Bytes
    """CUDA context and libraries on a single GPU, bytes."""
    non_torch_parallel: Bytes
    """The same per GPU under tensor parallelism, with communication buffers, bytes."""
    non_torch_pcie: Bytes | None = None
    """The same if only PCIe joins the GPUs, without buffers for NVLink; absent: as `non_torch_parallel`."""
    activation_token_factor: float = Field(ge=0)
    """Peak activations: factor on `max_num_batched_tokens` x (hidden + intermediate / TP) x bytes per element."""
    activation_hidden_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the hidden vectors counted by `activation_token_factor` that exist at the same time."""
    activation_logit: Bytes
    """Peak of sampling: bytes per logit, times `max_num_seqs` x vocabulary."""
    flashinfer_sampler: bool = False
    """Whether the version's official image samples with FlashInfer's kernels."""
    flashinfer_activation_logit: Bytes | None = None
    """`activation_logit` with FlashInfer's kernels; absent: the version has no choice."""
    draft_activation_logit: Bytes = 0.0
    """The same if the dummy step also verifies a draft of every seat, with either sampler; 0: it never does."""
    second_runner: SecondRunner | None = None
    """Servers whose dummy step verifies no drafts; absent: none."""
    activation_base: Bytes = 0.0
    """Peak of sampling: bytes besides the logits, for any number of seats (workspaces of kernels and sampler)."""
    linear_states_per_cached_seat: int = Field(default=1, ge=1)
    """States of linear attention per seat with a prefix cache; without one, one state."""
    linear_states_to_overlap: int = Field(default=0, ge=0)
    """Further states per seat if steps are scheduled ahead, as a step under way still writes its states."""
    sizes_states_by_share: bool = False
    """Whether states have their share of memory with a prefix cache however few seats there are (SGLang)."""
    shares_uncached_states: bool = False
    """Whether they have it without a prefix cache too, unless `max_num_seqs` is set."""
    padding_states: int = Field(default=0, ge=0)
    """States kept for padded sequences of CUDA graphs, besides those of seats."""
    keeps_float32_states: bool = False
    """Whether states of Mamba are in 32 bit unless the engine is told otherwise, whatever the checkpoint says."""
    counts_whole_index_keys: bool = False
    """Whether each token counts as if it had an indexer's key of its own, where keys of several are pooled with
    weights."""
    keeps_unused_index_keys: bool = False
    """Whether layers that use another's choice of keys have a cache of indexers' keys too."""
    draft_states: Literal["first", "joint", "each"] | None = None
    """States for the tokens of a step that verifies drafts: out of all memory `first`, `joint`ly with those of
    the seats out of the states' share, or with `each` state of a prefix cache; absent: none."""
    state_pool: StatePool | None = None
    """How states share the KV pool; absent: they are outside it, with states for every seat."""
    relaid_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are rearranged on the GPU; their first matrices are then kept twice."""
    tower_reserve: TowerReserve | None = None
    """Reduction by a vision tower of a memory share that is not set; absent: none."""
    keeps_reduced: bool = False
    """Whether memory of sums over ranks is freed only at the end of a step, so that each layer takes new memory."""
    source: str
    """Where the figures come from."""

    def logit_bytes(self, flashinfer: bool) -> float:
        """Return the bytes per logit at the peak of sampling, with FlashInfer's kernels or without."""
        other = self.flashinfer_activation_logit
        return other if flashinfer and other is not None else self.activation_logit

    @property
    def between_pcie(self) -> float:
        """Bytes of a GPU for CUDA, libraries and buffers if only PCIe joins it to others."""
        return self.non_torch_parallel if self.non_torch_pcie is None else self.non_torch_pcie


class UbatchRules(FrozenModel):
    """How a server handles micro-batches, if it has them (llama.cpp)."""

    checkpoint_offsets: tuple[PositiveInt, ...] = Field(default=(), max_length=2)
    """Distances from the end of a prompt at which a chunk ends if the cache cannot be cut anywhere, descending."""
    checkpoint_beyond_ubatch: NonNegativeInt | None = None
    """Another such distance: this many tokens more than a micro-batch; absent: none."""
    state_ubatches: Literal["consecutive", "equal"] | None = None
    """Models with recurrent layers: a micro-batch has the same number of tokens from each slot, so that decodes run
    apart from prompts; with `consecutive` only adjacent slots, in one KV buffer too. Absent: as other models."""

    def checkpoints(self, ubatch_size: int | None) -> tuple[int, ...]:
        """Return the distances from the end of a prompt at which a chunk ends, tokens, descending."""
        if self.checkpoint_beyond_ubatch is None or ubatch_size is None:
            return self.checkpoint_offsets
        return (ubatch_size + self.checkpoint_beyond_ubatch, *self.checkpoint_offsets)


class WindowedKV(FrozenModel):
    """How an engine keeps only the window of a layer with a sliding window, and from which version.

    Three layouts: groups with equal numbers of layers that share one pool of blocks (vLLM), a separate pool for the
    layers with a window (SGLang), or a fixed number of tokens per slot in these layers (llama.cpp).
    """

    since: str
    """Version from which this holds, until the next entry."""
    own_pool_ratio: float | None = Field(default=None, gt=0, le=1)
    """Tokens in the pool of window layers per token of the other pool; absent: all share one pool."""
    counts_windows_twice: tuple[str, ...] = ()
    """Model families whose layers with a window the size of both pools counts as layers that keep everything, too."""
    sizes_by_seats: bool = False
    """Whether that pool holds what as many requests as `max_num_seqs` need at most, whatever the ratio, if that is set,
    no prefix is cached and nothing drafts."""
    padding_limit: float = Field(default=1.0, ge=1)
    """One pool: if one kind has fewer than this factor times the layers of the other, groups are as large as the larger
    kind and the smaller one is padded; otherwise they are as large as the smaller kind."""
    slot_multiple: PositiveInt | None = None
    """Slots: window plus micro-batch are rounded up to a multiple of this, tokens; absent: KV on demand."""
    recheck_windows: NonNegativeInt = 0
    """Growth of a request, in windows, after which the engine looks for tokens outside its window."""
    recheck_tokens: NonNegativeInt = 0
    """The same in tokens."""
    keeps_with_connector: bool = False
    """Whether this also holds if a KV connector moves caches between servers."""
    counts_steps_ahead: bool = False
    """Whether the start-up check also counts the chunk of a step that is scheduled ahead, and a request gives back what
    lies before its window only once the result of the step that passed it is known."""
    counts_blocks: bool = False
    """One pool: whether blocks are given back when a request is scheduled, and a prefix is found only where its last
    window is cached too."""
    keeps_last_windows: bool = False
    """``counts_blocks``: whether only the last window before the end of a prompt, and before where a request has found
    more, is cached; otherwise all windows are."""
    logs_requests: bool = False
    """One pool: whether the start-up log prints the tokens of as many requests of full length as there is room for,
    rather than those that every layer holds."""
    families: tuple[str, ...] = ()
    """Model families for which this holds, by the beginnings of their names; empty: all."""
    except_families: tuple[str, ...] = ()
    """Model families for which it does not."""
    below_capability: float | None = None
    """CUDA compute capability from which it is off; absent: none."""
    source: str
    """Where the rules come from."""

    def keeps(self, family: str) -> bool:
        """Return whether this holds for a model family."""
        is_named = not self.families or family.startswith(self.families)
        return is_named and not family.startswith(self.except_families or ("\0",))


class TransformersBackend(FrozenModel):
    """Text models without code of their own that an engine runs through transformers, and from which version."""

    since: str
    """First version of the engine that does so."""
    classes: Mapping[str, str]
    """Classes that it runs this way -> first version of transformers that has them."""
    source: str
    """Where the versions come from."""


class KVTransfer(FrozenModel):
    """How an engine sends KV caches from prefill servers to decode servers, and from which version."""

    since: str
    """Version from which this holds, until the next entry."""
    latency: Seconds = 0.001
    """From the last byte of a cache to the decode server's scheduler, seconds."""
    repeats_frontend: bool = False
    """Whether a request also passes the decode server's API server once its prompt is computed."""
    recomputes_last_token: bool = False
    """Whether the decode server computes the last prompt token again, and with it the first of the answer."""
    source: str
    """Where the rules come from."""


PLAIN_TRANSFER = KVTransfer(
    since="0", source="an assumption: the first token comes with the cache, 1 ms after its last byte"
)
"""For engines and versions of which nothing else is known."""
