"""What a user may set on an engine, each option once, and the rules by which its profile fills in what nobody set.

Options: the keys of ``deployment.engine``, and what contradicts itself; a resolved engine holds the same names
(`simserve.profiles.engine`). Rules, the blocks of a profile: versions written out, devices, kernels, what is kept free
of memory besides weights and KV, and of KV for requests that run, how one server differs. Knows no engine by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from simserve.errors import InputError, ProfileError, ScenarioError
from simserve.profiles.model import WIDE_FORMATS, WeightFormatName
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
Sampling = Literal["greedy", "nucleus", "none"]
Endpoint = Literal["completions", "chat"]
MoeBackend = Literal["aiter", "marlin", "triton"]
AttentionBackend = Literal["aiter", "triton"]
EncoderCut = Literal["weights", "data"]
Fp8GemmBackend = Literal["deep_gemm", "flashinfer_trtllm"]
CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]

FLASHINFER_GEMM_CAPABILITY = 10
"""CUDA compute capability (datacenter Blackwell) that FlashInfer's products by TensorRT-LLM's kernels run on."""

_VERSION = re.compile(r"[vb]?(\d+(?:\.\d+)*)")
KEPT_VERSIONS = 1024
"""Version numbers that are read once: a search compares a few with each other in every trial."""
MARLIN_MAKER = "NVIDIA"
"""Whose GPUs have kernels that unpack weights in FP8 and NVFP4 where there is no arithmetic for them (Marlin)."""
FACTORS = ("gpu", "host", "prompts", "batch", "frontend")
"""Names of the factors of `MeasuredFactors`."""
TOWER_LAYERS, TOWER_WIDTH = 24, 1024
"""Layers and width of the tower that `TowerReserve` compares with (ViT-L/14), which SGLang also takes for a size that a
file does not name as it expects: Qwen's call the layers ``depth`` (server_args.py, adjust_mem_fraction_for_vlm)."""
TOWER_GROWTH, TOWER_LEAST, TOWER_MOST = 0.1, 0.8, 1.05
"""What a tower of twice the weights takes off the share, and the limits of it (the same place)."""


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
    of clients that ask for nothing; vLLM 0.8 to 0.13 sorts the logits for it. `none`: nobody samples, as in llama-bench
    and llama-batched-bench. Absent: greedy."""
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
    gpt-oss on Hopper and B200, Marlin's for others; a wheel up to 0.11.2 lacks Triton's and takes Marlin's. AMD GPUs:
    whose kernels multiply experts in BF16 and FP8, Triton's or AMD's, `aiter` (`VLLM_ROCM_USE_AITER`); an MI300X has
    times of both, others one rate, and experts in INT4 are Triton's with either. Absent: AMD's where
    `attention_backend` is `aiter`, as one switch has it, and otherwise Triton's."""
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
    """SGLang, vLLM from 0.9 on: whose kernels run attention (`--attention-backend`). AMD GPUs: `triton` reads the KV
    cache at less than half the rate of AMD's own, `aiter`, among which vLLM's for ROCm count; prompts take as long.
    Absent: AMD's, but Triton's under vLLM 0.9 to 0.18, which leave AITER off. NVIDIA GPUs: with `triton` decodes of
    latent attention (MLA) compute at 35 TFLOP/s, and at less for few sequences; the rest is as without."""
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
    """llama.cpp: whether all slots share one KV buffer, which is as long as `max_model_len` and of which each may take
    all. Otherwise each slot has `max_model_len` of its own, and only requests in consecutive slots are computed
    together. Absent: as the server does, shared unless `max_num_seqs` is set."""
    similar_prompts: bool | None = None
    """llama.cpp: whether prompts begin alike by more than a tenth (`--slot-prompt-similarity`), so that a request takes
    the slot that a like one has left and busy slots stay side by side. Absent: where all share one system prompt."""
    ubatch_size: Count | None = None
    """llama.cpp: the most tokens of a micro-batch, its `--ubatch-size`: a step with more runs all kernels, and reads
    all weights, once for each. No more than `max_num_batched_tokens`. Absent: 512."""
    num_gpu: Count | None = None
    """Ollama: as `n_gpu_layers` of llama.cpp. Absent: all."""
    swap_space: Bytes | None = None
    """`swap`: host memory for swapped KV, a GPU; where it is full, victims are computed again. Absent: vLLM's 4 GiB."""

    @property
    def shares_buffer(self) -> bool:
        """Whether all slots take what they need of one buffer, as long as the context that each may fill."""
        return bool(self.kv_unified) and self.kv_allocation == "paged"

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
            without = f"leave it out (--set {KEY_PREFIX}{key}=null)"
            raise refuse(key, value, rule, f"set batching to static or {without}")


def refuse_admission(asked: EngineOptions, kv_allocation: str) -> None:
    """Refuse an admission rule that counts blocks where KV is not given out in blocks.

    Raises:
        ScenarioError: ``admission`` is set to ``estimate`` or ``reserve`` without paged KV.
    """
    if asked.admission in ("estimate", "reserve") and kv_allocation != "paged":
        rule = f"needs kv_allocation paged, not this engine's {kv_allocation}"
        raise refuse("admission", asked.admission, rule, "set kv_allocation to paged or leave admission out")


def refuse_expert_kernels(
    asked: EngineOptions, span: tuple[float, float] | None, compute_capability: str | None
) -> None:
    """Refuse kernels of experts on GPUs on which a version does not run them; AMD's have no compute capability.

    Args:
        asked: What the user set.
        span: Compute capabilities of Triton's kernels, the last excluded; None: all.
        compute_capability: Of the GPU; None: of another maker.
    """
    rules = {"aiter": "takes AMD GPUs"}
    if span is not None and not span[0] <= float(compute_capability or span[0]) < span[1]:
        rule = f"takes compute capability {span[0]:g} to before {span[1]:g}, and the GPU has {compute_capability}"
        rules["triton"] = rule
    if compute_capability is not None and asked.moe_backend in rules:
        raise refuse("moe_backend", asked.moe_backend, rules[asked.moe_backend], "leave it out, or write marlin")


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


def block_scaled_kernels(asked: EngineOptions, compute_capability: str | None) -> dict[str, dict[str, str]]:
    """Return whose products of FP8 weights with scales by blocks run in place of the engine's own, as curves name them.

    Raises:
        ScenarioError: FlashInfer's on a GPU that they do not run on (SGLang fp8_utils.py: SM100).
    """
    if asked.fp8_gemm_backend != "flashinfer_trtllm":
        return {}
    if compute_capability is None or int(float(compute_capability)) != FLASHINFER_GEMM_CAPABILITY:
        rule = f"takes compute capability {FLASHINFER_GEMM_CAPABILITY}, and the GPU has {compute_capability or 'none'}"
        raise refuse("fp8_gemm_backend", asked.fp8_gemm_backend, rule, "leave it out")
    return {"block_scaled_kernels": {"NVIDIA": "flashinfer"}}


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


def complete_versions(document: Mapping[str, Any], file: Path) -> list[dict[str, Any]]:
    """Return every block of each version, oldest first, as the file writes them: units and sources included.

    Args:
        document: What the file holds: ``defaults``, and ``versions`` with the keys that changed since the one before.
        file: Named in errors.

    Raises:
        ProfileError: A part is missing, or a changed block says no ``source``.
    """
    blocks = document.get("defaults")
    changes = document.get("versions")
    if not isinstance(blocks, dict):
        raise ProfileError("must be a mapping of blocks", file=file, key="defaults")
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise ProfileError("must be a list of mappings", file=file, key="versions")
    complete: list[dict[str, Any]] = []
    for change in changes:
        merged = dict(blocks)
        for block, values in change.items():
            if isinstance(values, dict):
                if "source" not in values:
                    key = f"versions.{change.get('version')}.{block}.source"
                    raise ProfileError("is missing", file=file, key=key, remedy="say where the numbers come from")
                merged[block] = {**merged.get(block, {}), **values}
            else:
                merged[block] = values
        complete.append(merged)
        blocks = {block: values for block, values in merged.items() if block != "version"}
    return complete


def version_key(version: str, known: list[str] | None = None) -> tuple[int, ...]:
    """Return a version as numbers that compare as versions do: ``"0.10.2"`` -> ``(0, 10, 2)``.

    A leading ``v`` or ``b`` (llama.cpp builds) and what follows the numbers (``rc2``) are ignored.

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
    """Return the numbers of a version without zeros at its end; None where the text does not begin with one."""
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


class Devices(FrozenModel):
    """Whose devices an engine runs on."""

    makers: Mapping[str, str]
    """Maker, as hardware profiles name it -> the plug-in that brings the kernels; "": they are the engine's own."""
    formats: Mapping[str, tuple[WeightFormatName, ...]] = {}
    """Maker -> weight formats below 16 bit that run there; of makers that are not named, all that the engine has."""
    capability_at_least: float | None = None
    """CUDA compute capability from which it runs; absent: from that of every GPU of the catalogue."""
    source: str
    """Where that is said."""

    def runs_on(self, maker: str, compute_capability: str | None) -> bool:
        """Return whether it runs on a GPU; the capability is None of other makers than NVIDIA."""
        return maker in self.makers and float(compute_capability or "inf") >= (self.capability_at_least or 0.0)

    def restricted(self, maker: str, engine: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of an engine's facts is other on a maker's devices; of a maker that is not named nothing.

        Args:
            maker: As hardware profiles name it.
            engine: Its `supported_quantizations`, `quantises_on_load` and `quantises_before_loading`.
        """
        if maker not in self.makers or maker == MARLIN_MAKER:
            return {}
        changed: dict[str, Any] = {"has_weight_only_floats": False, "plugin": self.makers[maker]}
        if self.makers[maker]:
            # Graphs are CUDA's and HIP's: plug-ins compile, and keep no pool for them.
            changed |= {"cuda_graph_bytes": 0.0}
        if maker in self.formats:
            run = {*WIDE_FORMATS, *self.formats[maker]}
            changed |= {key: tuple(each for each in known if each in run) for key, known in engine.items()}
        return changed


class KernelBlock(FrozenModel):
    """Tokens of a KV block that an attention kernel forces, where nobody sets them."""

    since: str
    """First version that forces them."""
    until: str | None = None
    """First version that does not; absent: there is none."""
    attention: Literal["latent", "sparse"]
    """Whose: latent attention that reads all keys, or attention whose indexer chooses them."""
    capability_at_least: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which it is so; absent: from any."""
    capability_below: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which it is so no more; absent: at none."""
    tokens: int = Field(ge=1)
    """Tokens a block."""
    source: str
    """Where that is said."""

    def holds(self, version: str, attention: str | None, compute_capability: str | None) -> bool:
        """Return whether a version forces it for a kind of attention on a GPU; never on those of other makers."""
        if attention != self.attention or compute_capability is None:
            return False
        is_new = version_key(self.since) <= version_key(version)
        is_old = self.until is None or version_key(version) < version_key(self.until)
        least, below = self.capability_at_least or 0.0, self.capability_below or float("inf")
        return is_new and is_old and least <= float(compute_capability) < below


class MeasuredFactors(FrozenModel):
    """How much longer or shorter one server takes than the rest of the profile says; `calibrate serving` fits them."""

    gpu: PositiveFloat = 1.0
    """Times as long as priced that the GPU (or the CPU that computes) takes for every step."""
    host: PositiveFloat = 1.0
    """Times as long that the host takes for a step and a request, and that kernels take to start."""
    prompts: PositiveFloat = 1.0
    """Times as long, beside `gpu`, that steps take which hold prompts."""
    batch: PositiveFloat = 1.0
    """Times as long, beside `gpu`, that a decode step takes for what it takes beyond one request without context."""
    frontend: PositiveFloat = 1.0
    """Times as long that a request takes from arrival to the scheduler; without effect where a scenario sets that."""
    measured_on: str
    """Model, GPUs and engine of that server, and how many runs: results that use the factors say so."""
    date: str | None = None
    """Day of the measurements, as their files or their owner say."""
    model: str | None = None
    """The model of that server, as the catalogue names it: what is expected of a server like it rests on its runs."""
    hardware: str | None = None
    """Its GPU, likewise."""
    gpus: PositiveInt | None = None
    """GPUs of a replica of it."""
    runs: PositiveInt | None = None
    """Loads that were measured."""
    source: str
    """Files, and what the fit found."""

    @property
    def values(self) -> dict[str, float]:
        """The factors by name."""
        return {name: getattr(self, name) for name in FACTORS}


class SizeRange(FrozenModel):
    """Equally spaced sizes, both ends included."""

    start: int = Field(alias="from", ge=1)
    """First size."""
    stop: int = Field(alias="to", ge=1)
    """Last size."""
    step: int = Field(ge=1)
    """Distance."""

    @property
    def sizes(self) -> range:
        """The captured sizes of the range."""
        return range(self.start, self.stop + 1, self.step)


class StaticReserve(FrozenModel):
    """SGLang's estimate of what must stay free besides weights and KV; the rest is the static share."""

    memory_at_least: Bytes = 0.0
    """GPU memory from which this estimate holds, bytes."""
    base: Bytes
    """Bytes for metadata, or for everything where no other term is given."""
    chunk_token: Bytes = 0.0
    """Bytes a token of the prefill chunk."""
    minimum_chunk_tokens: int = 0
    """The chunk is taken to be at least this long, tokens."""
    graph_sequence: Bytes = 0.0
    """Bytes a sequence of the largest captured CUDA graph."""
    prompt_graph: Bytes = 0.0
    """Bytes a captured graph of prompts; none are captured under data-parallel attention."""
    prompt_graph_sizes: tuple[SizeRange, ...] = ()
    """Tokens of the graphs of prompts; those up to the chunk are captured."""
    rank: Bytes = 0.0
    """Bytes a rank (tensor x pipeline)."""
    group_sequence: Bytes = 0.0
    """Bytes a sequence of the largest CUDA graph and group of data-parallel attention, where there are several."""
    large_group_sequence: Bytes = 0.0
    """What that is more where the largest graph holds more sequences than `large_graph`."""
    large_graph: int = 0
    """Sequences of the largest graph above which that holds."""
    minimum: Bytes = 0.0
    """Least reserve, bytes, on GPUs above `minimum_above`."""
    minimum_above: Bytes = 0.0
    """GPU memory above which `minimum` holds, bytes."""

    def share(
        self, gpu_memory_bytes: float, chunk_tokens: int, graph_sequences: int, ranks: int, groups: int = 1
    ) -> float:
        """Return the share of GPU memory for weights and KV, rounded to 0.001 as SGLang does.

        ``ranks`` counts those of all ``groups`` of data-parallel attention.
        """
        reserved = self.base + self.chunk_token * max(chunk_tokens, self.minimum_chunk_tokens)
        reserved += self.graph_sequence * graph_sequences + self.rank * ranks
        if groups > 1:
            is_large = graph_sequences > self.large_graph
            each = self.group_sequence + (self.large_group_sequence if is_large else 0.0)
            reserved += each * graph_sequences * groups
        else:
            captured = (
                range(each.start, min(each.stop, chunk_tokens) + 1, each.step) for each in self.prompt_graph_sizes
            )
            reserved += self.prompt_graph * sum(map(len, captured))
        if gpu_memory_bytes > self.minimum_above:
            reserved = max(reserved, self.minimum)
        return round((gpu_memory_bytes - reserved) / gpu_memory_bytes, 3)


class TowerReserve(FrozenModel):
    """What SGLang takes off the share that it computes itself for a model with a vision tower."""

    factor: float = Field(gt=0, le=1)
    """Of the share, what is left with a usual tower."""
    grows_with_tower: bool = False
    """Whether larger towers leave less."""

    def share(self, num_layers: int, width: int) -> float:
        """Return the factor on the share of GPU memory for a tower of that many layers and that width."""
        if not self.grows_with_tower:
            return self.factor
        size = num_layers * width**2 / (TOWER_LAYERS * TOWER_WIDTH**2)
        return self.factor * max(TOWER_LEAST, min(TOWER_MOST, 1.0 - TOWER_GROWTH * (size - 1.0)))


class SecondRunner(FrozenModel):
    """Which servers run on vLLM's second model runner, which verifies no drafts before it sizes the KV cache."""

    drafters: tuple[Literal["draft_model", "ngram", "eagle", "mtp"], ...] = ()
    """Who may draft there."""
    families: tuple[str, ...] = ()
    """Families of models that alone run there; empty: all."""
    except_experts: bool = False
    """Whether models with routed experts do not."""
    except_states: bool = False
    """Whether models with layers that keep a state, Mamba or linear attention, do not."""
    except_quantized: bool = False
    """Whether weights of less than 16 bit do not."""


class StatePool(FrozenModel):
    """How states of Mamba and linear attention take blocks of the one KV pool (vLLM's hybrid KV cache manager).

    A block of tokens is made as long as a state takes; a request holds a few blocks of states whatever its length.
    """

    padding_limit: float = Field(default=1.0, ge=1)
    """As `WindowedKV.padding_limit`, of the layers that keep states and of those that see everything."""
    holds_seats: bool = False
    """Whether the engine starts with no more seats than the pool has blocks."""


class RuntimeMemory(FrozenModel):
    """Inputs of the rule for memory that is neither weights nor KV; `perf` computes the bytes."""

    non_torch_single: Bytes
    """CUDA context and libraries on one GPU, bytes."""
    non_torch_parallel: Bytes
    """The same a GPU under tensor parallelism, with communication buffers, bytes."""
    non_torch_pcie: Bytes | None = None
    """That between GPUs that PCIe alone joins, where buffers for NVLink are not made; absent: the same."""
    activation_token_factor: float = Field(ge=0)
    """Peak activations: times `max_num_batched_tokens` x (hidden + intermediate / TP) x bytes an element."""
    activation_hidden_share: float = Field(default=1.0, ge=0, le=1)
    """Of the hidden vectors that `activation_token_factor` counts, those that are there at once."""
    activation_logit: Bytes
    """Peak of sampling: bytes a logit, times `max_num_seqs` x vocabulary."""
    flashinfer_sampler: bool = False
    """Whether the official image of the version samples with FlashInfer's kernels."""
    flashinfer_activation_logit: Bytes | None = None
    """The same with FlashInfer's kernels; absent: the version has no choice."""
    draft_activation_logit: Bytes = 0.0
    """The same where the dummy step verifies a draft of every seat too, with either sampler; 0: it never does."""
    second_runner: SecondRunner | None = None
    """Servers whose dummy step does not; absent: none."""
    activation_base: Bytes = 0.0
    """Peak of sampling: bytes beside the logits, however many seats (workspaces of kernels and of the sampler)."""
    linear_states_per_cached_seat: int = Field(default=1, ge=1)
    """States of linear attention that a seat holds beside a prefix cache; one without."""
    linear_states_to_overlap: int = Field(default=0, ge=0)
    """As many more where steps are scheduled ahead, for states that a step under way still writes."""
    state_pool: StatePool | None = None
    """How states share the KV pool; absent: they lie beside it, those of every seat."""
    relaid_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are laid out anew on the GPU, where their first matrices then stay twice."""
    tower_reserve: TowerReserve | None = None
    """What a vision tower takes off a share of memory that nobody set; absent: nothing."""
    keeps_reduced: bool = False
    """Whether nothing that ranks have summed is free again before a step ends, so that each layer takes new memory."""
    source: str
    """Where the figures come from."""

    def logit_bytes(self, flashinfer: bool) -> float:
        """Return the bytes a logit at the peak of sampling, with FlashInfer's kernels or without."""
        other = self.flashinfer_activation_logit
        return other if flashinfer and other is not None else self.activation_logit

    @property
    def between_pcie(self) -> float:
        """What CUDA, libraries and buffers take of a GPU that PCIe alone joins to others, bytes."""
        return self.non_torch_parallel if self.non_torch_pcie is None else self.non_torch_pcie


class UbatchRules(FrozenModel):
    """How a server deals with micro-batches, where it has them (llama.cpp)."""

    checkpoint_offsets: tuple[PositiveInt, ...] = Field(default=(), max_length=2)
    """Tokens before the end of a prompt at which a chunk ends where a cache cannot be cut anywhere, the most first."""
    checkpoint_beyond_ubatch: NonNegativeInt | None = None
    """Another such place, so many tokens further from the end than a micro-batch has; absent: none."""
    state_ubatches: Literal["consecutive", "equal"] | None = None
    """Models with recurrent layers: a micro-batch has equally many tokens of each slot, so that decodes are computed
    apart from prompts, and in one KV buffer, too, of `consecutive` slots alone; absent: it is as other models'."""

    def checkpoints(self, ubatch_size: int | None) -> tuple[int, ...]:
        """Return the tokens before the end of a prompt at which a chunk ends, the most first."""
        if self.checkpoint_beyond_ubatch is None or ubatch_size is None:
            return self.checkpoint_offsets
        return (ubatch_size + self.checkpoint_beyond_ubatch, *self.checkpoint_offsets)


class WindowedKV(FrozenModel):
    """From which version on an engine keeps no more of a layer with a sliding window than the window, and how.

    Three layouts: groups of equally many layers that share one pool of blocks (vLLM), a pool of its own for the layers
    with a window (SGLang), or so many tokens of every slot in these (llama.cpp).
    """

    since: str
    """Version from which this holds, until the next entry."""
    own_pool_ratio: float | None = Field(default=None, gt=0, le=1)
    """Tokens of the pool of layers with a window for each of the other pool; absent: all share one pool."""
    padding_limit: float = Field(default=1.0, ge=1)
    """One pool: where one kind has fewer times this as many layers as the other, groups are as large as the larger kind
    and the smaller one is padded; otherwise as large as the smaller kind."""
    slot_multiple: PositiveInt | None = None
    """Slots: what their window and a micro-batch are rounded up to, tokens; absent: KV is taken on demand."""
    recheck_windows: NonNegativeInt = 0
    """Windows that a request grows by before the engine looks for tokens that have left its window."""
    recheck_tokens: NonNegativeInt = 0
    """The same in tokens."""
    keeps_with_connector: bool = False
    """Whether it does so too where a KV connector moves caches between servers."""
    counts_steps_ahead: bool = False
    """Whether the start-up check also counts the chunk of a step that is scheduled ahead."""
    families: tuple[str, ...] = ()
    """Families of models, by the beginnings of their names, that alone are kept so; empty: all."""
    except_families: tuple[str, ...] = ()
    """Families that are not."""
    below_capability: float | None = None
    """CUDA compute capability from which on it is off; absent: none."""
    source: str
    """Where the rules come from."""

    def keeps(self, family: str) -> bool:
        """Return whether models of a family are kept so."""
        is_named = not self.families or family.startswith(self.families)
        return is_named and not family.startswith(self.except_families or ("\0",))


class TransformersBackend(FrozenModel):
    """From when on an engine runs models of text that it has no code for through the library transformers."""

    since: str
    """First version of the engine that does so."""
    classes: Mapping[str, str]
    """Classes that it runs so -> first version of transformers that has them."""
    source: str
    """Where the versions are from."""


class KVTransfer(FrozenModel):
    """From which version on an engine hands KV caches from prefill servers to decode servers, and how."""

    since: str
    """Version from which this holds, until the next entry."""
    latency: Seconds = 0.001
    """From the last byte of a cache to the decode server's scheduler, seconds."""
    repeats_frontend: bool = False
    """Whether a request passes the API server of the decode server too, once its prompt is computed."""
    recomputes_last_token: bool = False
    """Whether the decode server computes the last token of the prompt again, and with it the first of the answer."""
    source: str
    """Where the rules come from."""


PLAIN_TRANSFER = KVTransfer(
    since="0", source="an assumption: the first token comes with the cache, 1 ms after its last byte"
)
"""Of engines, and versions, of which nothing else is known."""


class NewTokenRatio(FrozenModel):
    """SGLang's decaying share of `max_tokens` that a running request is expected to still need."""

    initial: float = Field(ge=0, le=1)
    """Share at first."""
    minimum_factor: float = Field(ge=0, le=1)
    """The share stops decaying at this factor of `initial`."""
    decay_steps: int = Field(ge=1)
    """Decode steps from `initial` to the minimum."""
    groups_factor: float = Field(default=1.0, gt=0, le=1)
    """What `initial` is times, where there are several groups of data-parallel attention."""
    source: str
    """Where the constants come from."""

    def first(self, groups: int) -> float:
        """Return the share at first, of that many groups of data-parallel attention."""
        return self.initial * (self.groups_factor if groups > 1 else 1.0)
