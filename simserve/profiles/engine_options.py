"""What a user may set on an engine, each option once: the keys of ``deployment.engine``, and what contradicts itself.

A resolved engine holds the same names (`simserve.profiles.engine`); knows no engine and no version.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from simserve.errors import ScenarioError
from simserve.units import Bytes, PositiveSeconds, Seconds, WholeBytes
from simserve.validation import FrozenModel

KEY_PREFIX = "deployment.engine."

MAX_COUNT = 10**9
"""Tokens, requests or blocks that an option may name at most: beyond any engine."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]

Batching = Literal["continuous", "static"]
Scheduler = Literal["mixed", "prefill_first"]
Admission = Literal["on_demand", "estimate", "reserve"]
SchedulingPolicy = Literal["fcfs", "priority", "shortest_first"]
PreemptionMode = Literal["recompute", "swap"]
KVAllocation = Literal["paged", "static", "pow2", "oracle", "none"]
Sampling = Literal["greedy", "nucleus"]
Endpoint = Literal["completions", "chat"]
MoeBackend = Literal["marlin", "triton"]
AttentionBackend = Literal["aiter", "triton"]
EncoderCut = Literal["weights", "data"]
Fp8GemmBackend = Literal["deep_gemm", "flashinfer_trtllm"]
CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]

FLASHINFER_GEMM_CAPABILITY = 10
"""CUDA compute capability (datacenter Blackwell) that FlashInfer's products by TensorRT-LLM's kernels run on."""


class EngineOptions(FrozenModel):
    """The options of an engine, in SI; what is absent resolves as the engine's version has it on that GPU."""

    batching: Batching | None = None
    """`continuous` (requests join and leave at every step) or `static` (collect, pad, answer together)."""
    scheduler: Scheduler | None = None
    """Who goes first in a step: `mixed` (decodes and prefill chunks share one budget) or `prefill_first`."""
    admission: Admission | None = None
    """What admission requires blocks for: the next chunk, an estimate of the output, or all `max_tokens`."""
    scheduling_policy: SchedulingPolicy | None = None
    """Order of the queue: first come, first served; `priority`: classes with the smaller number first, and who is
    preempted is the last in that order; `shortest_first`: prompt plus `max_tokens`, the fewest first."""
    priority_ageing: PositiveSeconds | None = None
    """`priority`: waiting so long outweighs one level. Absent: waiting changes nothing."""
    priority_preemption: bool | None = None
    """`priority`: whether running requests of a worse priority make way for one that finds no seat or no blocks.
    Absent: they do not, as in vLLM's V1."""
    preemption_mode: PreemptionMode | None = None
    """What happens to the KV cache of a preempted request: `recompute`: dropped and computed again; `swap`: copied to
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
    """vLLM: the most tokens of one prompt in a step, so that others find room beside a long one; with chunked prefill.
    0 or absent: as many as the budget has left."""
    enable_prefix_caching: bool | None = None
    """Whether requests that begin alike share KV blocks; a workload without `sessions`, `shared_prefix` or a trace that
    says what prompts share has nothing to share."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of GPU memory; of which memory is the engine's rule (total, free after load, static)."""
    num_gpu_blocks_override: Count | None = None
    """KV blocks of a replica, in place of what the memory would hold: vLLM's name; SGLang's `max_total_tokens` and
    TensorRT-LLM's `max_tokens` of the KV cache, in blocks. `simserve import log` reads it from a server's own log."""
    kv_cache_memory_bytes: Annotated[WholeBytes, Field(ge=1)] | None = None
    """vLLM: bytes of a GPU for the KV cache, 2000000000 or "2 GB"; `gpu_memory_utilization` is then not looked at."""
    max_loras: Count | None = None
    """LoRA adapters in a batch at most, and slots for them on the GPU, which take memory from the KV cache: vLLM's
    `--max-loras`, SGLang's `--max-loras-per-batch`. A request whose adapter would be one more is passed over. Absent:
    adapters are off."""
    max_lora_rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Largest rank of an adapter: slots have room for it, and kernels compute it whatever the rank. Absent: 16, vLLM's
    default."""
    max_cpu_loras: Count | None = None
    """Adapters that host memory keeps, those on the GPU among them (SGLang's `--max-loaded-loras`); others are read
    from disk again. Absent: `max_loras`, as in vLLM; with SGLang all."""
    block_size: Count | None = None
    """Tokens in one KV block."""
    max_model_len: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = None
    """Longest prompt plus output, tokens. Absent: the model's own limit."""
    async_scheduling: bool | None = None
    """Whether the host prepares the next step while the GPU works on this one."""
    attention_dp_timeout_iters: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = None
    """TensorRT-LLM with `data_parallel_size`: prompts wait until every rank has one, at most so many steps
    (attention_dp_config: enable_balance, timeout_iters), so that none is computed while the other ranks idle. Absent:
    they do not wait."""
    sampling: Sampling | None = None
    """How clients ask for tokens: `greedy`, or `nucleus`, by top-k or top-p, as a model's generation_config.json makes
    of clients that ask for nothing; vLLM 0.8 to 0.13 sorts the logits for it. Absent: greedy."""
    endpoint: Endpoint | None = None
    """What clients call: `completions` (/v1/completions), or `chat` (/v1/chat/completions), on whose requests the API
    server works one after another, so that many at once wait for one another: 1.75 ms each under vLLM, SGLang and
    TensorRT-LLM; vLLM 0.6.4 to 0.9.1 and 0.11.0 also parse the template anew for each, 7 and 12 ms. Absent:
    completions."""
    enforce_eager: bool | None = None
    """Whether to run without CUDA graphs and compilation: a step takes at least the time to launch its kernels."""
    max_cudagraph_capture_size: Count | None = None
    """Largest batch, in tokens, that is captured in a CUDA graph; a larger step waits for the launches of its kernels.
    Absent: as the engine's version has it, vLLM from 0.10 twice `max_num_seqs` and at most 512."""
    frontend_latency: Seconds | None = None
    """Time from a request's arrival to the scheduler (HTTP, tokenisation)."""
    cudagraph_mode: CudagraphMode | None = None
    """vLLM: which steps run on CUDA graphs. `FULL_DECODE_ONLY`: those without prompts; a step with prompts waits for
    the launches of its kernels, as with `enforce_eager`. `NONE`: none. `PIECEWISE`, `FULL` and `FULL_AND_PIECEWISE`:
    those with prompts too, and are priced alike. Absent: as the engine's version has it."""
    moe_backend: MoeBackend | None = None
    """vLLM: whose kernels multiply experts in MXFP4, at whose pace (H100 and H200 have both) and to whose tiles they
    are padded in memory. `--moe-backend` from 0.17 on, before that `VLLM_MXFP4_USE_MARLIN`. Absent: Triton's for
    gpt-oss on Hopper and B200, Marlin's for others; a wheel up to 0.11.2 lacks Triton's and takes Marlin's."""
    language_model_only: bool | None = None
    """Leave out the encoders of images and audio, whose weights and largest step a server otherwise keeps room for,
    whatever its prompts have: vLLM's and SGLang's `--language-model-only`. Absent: they are loaded with the model."""
    mm_encoder_tp_mode: EncoderCut | None = None
    """How a tower of images uses the tensor-parallel ranks: `weights` cuts it as the language model is cut; with `data`
    each rank holds all of it and encodes some of a request's images, without all-reduces. vLLM's name; SGLang's
    `--mm-enable-dp-encoder`. Absent: `weights`. Audio encoders are cut all the same."""
    fp8_gemm_backend: Fp8GemmBackend | None = None
    """SGLang on Blackwell: whose kernels multiply FP8 weights with scales by blocks (`--fp8-gemm-backend`).
    `flashinfer_trtllm` starts sooner and takes six times as long for long prompts as `deep_gemm`. Absent: DeepGEMM."""
    attention_backend: AttentionBackend | None = None
    """SGLang, vLLM from 0.9 on, AMD GPUs: whose kernels run attention (`--attention-backend`). `triton` reads the KV
    cache at less than half the rate of AMD's own, `aiter`, among which vLLM's for ROCm count; prompts take as long.
    Absent: AMD's, but Triton's under vLLM 0.9 to 0.18, which leave AITER off."""
    flashinfer_sampler: bool | None = None
    """vLLM 0.8 to 0.16: whether FlashInfer's kernels sample where clients ask for top-k or top-p: nothing is sorted and
    the KV cache gets more memory. Absent: as the version's official image does; a wheel up to 0.11.0 with no FlashInfer
    beside it does not."""
    host_slowdown: Annotated[float, Field(gt=0)] | None = None
    """Times as long as on the nodes that the engine's host times were measured on (H100 nodes of 2024) its work on the
    CPU takes here: scheduling, launching kernels, handing over tokens. Absent: as in the usual node of the GPU."""
    static_batch_size: Count | None = None
    """Static batching: the most requests of one batch."""
    static_max_wait: Seconds | None = None
    """Static batching: the longest that the first request of a batch waits for others."""
    cpu_offload_gb: Annotated[float, Field(ge=0)] | None = None
    """vLLM and SGLang: GiB of weights a GPU that stay in host memory and cross the host link in every step."""
    n_gpu_layers: Count | None = None
    """llama.cpp: layers on the GPU; the others, and their KV cache, are the CPU's. Absent: all."""
    kv_unified: bool | None = None
    """llama.cpp: whether all slots share one KV buffer. Otherwise only requests in consecutive slots are computed
    together. Absent: as the server does, shared unless `max_num_seqs` is set."""
    num_gpu: Count | None = None
    """Ollama: as `n_gpu_layers` of llama.cpp. Absent: all."""
    swap_space: Bytes | None = None
    """`swap`: host memory for swapped KV, a GPU; where it is full, victims are computed again. Absent: vLLM's 4 GiB."""

    def overrides(self) -> dict[str, Any]:
        """Return the options that are set, in SI."""
        values = ((key, getattr(self, key)) for key in EngineOptions.model_fields)
        return {key: value for key, value in values if value is not None}


def refuse(key: str, value: object, rule: str, remedy: str) -> ScenarioError:
    """Return the error that an engine key violates a rule."""
    return ScenarioError(rule, key=f"{KEY_PREFIX}{key}", value=value, remedy=remedy)


def check_options(asked: EngineOptions) -> None:
    """Do nothing where the options that are set go together, whatever the engine.

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
    """Refuse the keys of static batching on a deployment that batches continuously.

    Raises:
        ScenarioError: ``static_batch_size`` or ``static_max_wait`` is set and ``batching`` is not static.
    """
    for key in ("static_batch_size", "static_max_wait"):
        value = getattr(asked, key)
        if value is not None and batching != "static":
            rule = f"needs batching static, not {batching}"
            raise refuse(key, value, rule, "set batching to static or leave it out")


def refuse_admission(asked: EngineOptions, kv_allocation: str) -> None:
    """Refuse an admission rule that counts blocks where KV is not given out in blocks.

    Raises:
        ScenarioError: ``admission`` is set to ``estimate`` or ``reserve`` without paged KV.
    """
    if asked.admission in ("estimate", "reserve") and kv_allocation != "paged":
        rule = f"needs kv_allocation paged, not this engine's {kv_allocation}"
        raise refuse("admission", asked.admission, rule, "set kv_allocation to paged or leave admission out")


def refuse_sharing(asked: EngineOptions, batching: str, kv_allocation: str) -> None:
    """Refuse prefix caching where requests hold no blocks that another could use.

    Raises:
        ScenarioError: ``enable_prefix_caching`` is set with static batching or without paged KV.
    """
    if asked.enable_prefix_caching and (batching != "continuous" or kv_allocation != "paged"):
        found = "static batching" if batching != "continuous" else f"kv_allocation {kv_allocation}"
        rule = f"needs continuous batching and kv_allocation paged, not {found}"
        raise refuse("enable_prefix_caching", True, rule, "leave it out or set it to false")


def refuse_order(asked: EngineOptions, batching: str, kv_allocation: str, admission: str) -> None:
    """Refuse a queue order, or a kind of preemption, where nothing would follow from it or it is not simulated.

    Raises:
        ScenarioError: ``scheduling_policy`` with static batching; ``priority_preemption`` or swapping without blocks on
            demand.
    """
    if batching != "continuous" and asked.scheduling_policy not in (None, "fcfs"):
        rule = "needs continuous batching: a static batch takes whoever waits"
        raise refuse("scheduling_policy", asked.scheduling_policy, rule, "leave it out")
    if asked.preemption_mode == "swap" and (batching, kv_allocation, admission) != ("continuous", "paged", "on_demand"):
        found = "static batching" if batching != "continuous" else f"{admission} and {kv_allocation}"
        rule = f"needs continuous batching, admission on_demand and kv_allocation paged, not {found}"
        raise refuse("preemption_mode", "swap", rule, "leave it out or set those")
    if asked.priority_preemption and (kv_allocation, admission) != ("paged", "on_demand"):
        rule = f"needs admission on_demand and kv_allocation paged, not {admission} and {kv_allocation}"
        raise refuse("priority_preemption", True, rule, "leave it out or set the two")


def refuse_threshold(asked: EngineOptions, batching: str, is_chunked: bool, max_model_len: int) -> None:
    """Refuse a limit on the prompt tokens of one request where prompts are not split, or beyond the longest request.

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


def block_scaled_kernels(asked: EngineOptions, compute_capability: str | None) -> dict[str, str]:
    """Return whose products of FP8 weights with scales by blocks run in place of the engine's own, as curves name them.

    Raises:
        ScenarioError: FlashInfer's on a GPU that they do not run on (SGLang fp8_utils.py: SM100).
    """
    if asked.fp8_gemm_backend != "flashinfer_trtllm":
        return {}
    if compute_capability is None or int(float(compute_capability)) != FLASHINFER_GEMM_CAPABILITY:
        rule = f"takes compute capability {FLASHINFER_GEMM_CAPABILITY}, and the GPU has {compute_capability or 'none'}"
        raise refuse("fp8_gemm_backend", asked.fp8_gemm_backend, rule, "leave it out")
    return {"block_scaled_kernels": "flashinfer"}


PREFILL_WORKER_EFFICIENCY = {"deepseek_v3": 0.8, "deepseek_v32": 0.8, "kimi_k2": 0.8}
"""What a worker that does nothing but prompts of these families reaches of its kernels' rates; others: all.

Fitted to DeepSeek-R1 under TensorRT-LLM on 8 H200 whose queues never emptied (InferenceX's separate pools, prompts of
8,192: 3.11 a second and worker where the tables make 3.9). Not fitted: prompts of 1,024 there (0.80), SGLang (0.73 to
0.92). Llama and Mixtral keep up the tables' rate (TensorRT-LLM offline, 2,048 tokens in and 128 out: -1 to +7 %)."""

FLASHINFER_PREFILL_EFFICIENCY = 0.82
"""What such a worker reaches of that where FlashInfer multiplies FP8 weights with scales by blocks. Fitted to
DeepSeek-R1 and V3 under SGLang 0.5.8 on 8 B200 whose queues never emptied (InferenceX, prompts of 8,192: 2.9 to 3.4 a
second and worker where 0.8 makes 3.4 to 4.6). Not fitted: prompts of 1,024 and shorter queues (calibration/LOG.md)."""


def prefill_worker_efficiency(asked: EngineOptions, model_family: str, has_block_scales: bool) -> float:
    """Return what a worker that does nothing but prompts reaches of its kernels' rates."""
    share = PREFILL_WORKER_EFFICIENCY.get(model_family, 1.0)
    is_flashinfer = asked.fp8_gemm_backend == "flashinfer_trtllm" and has_block_scales
    return share * FLASHINFER_PREFILL_EFFICIENCY if is_flashinfer and share < 1.0 else share
