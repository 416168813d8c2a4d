"""Settings of InferenceX's launch scripts, by engine, model and time. Reads no rows, and knows no scenarios.

The scripts are public (github.com/SemiAnalysisAI/InferenceX, benchmarks/ and .github/configs/nvidia-master.yaml; before
2026 InferenceMAX); what a script omits resolves to the default of the engine's version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.planner.measured.build import PROMPTS_PER_CLIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a launch script; None: the engine's default.

    Attributes:
        seats: `max_num_seqs` of the server.
        is_seated_by_client: One seat per client instead.
        max_num_batched_tokens: Token budget of a step.
        least_budget: Least budget for TensorRT-LLM without a set one, which takes what its clients and a prompt need.
        share: `gpu_memory_utilization`.
        kv_cache_dtype: Format of the KV cache; None: the row's.
        is_async: `async_scheduling`.
        max_cudagraph_capture_size: Tokens of the largest step on CUDA graphs.
        prompts: Prompts per client.
        places_experts: Expert parallelism, whatever a row says; None: as the row says.
        drafts: Drafts per step of the model's MTP layer; one if attention is data-parallel.
        cudagraph_mode: Which steps run on CUDA graphs.
        moe_backend: Whose kernels run experts in MXFP4.
        fp8_gemm_backend: Under SGLang, whose products of FP8 weights with block scales run.
        has_symmetric_memory: Under SGLang, ``--enable-symm-mem``, with which NCCL reduces in the NVSwitch.
        state_dtype: Format of the states of linear attention (``--mamba-ssm-dtype``).
        polled_steps: Under SGLang, decode steps between two polls for new requests with fewer than 16 clients;
            otherwise 3 times as many.
        cold_seconds: Time that the first prompts of a new server waited for its one-time work.
        cold_seconds_per_client: Further time per client, as its prompt was one of them.
    """

    seats: int | None = None
    is_seated_by_client: bool = False
    max_num_batched_tokens: int | None = None
    least_budget: int = 8192
    share: float | None = None
    kv_cache_dtype: str | None = None
    is_async: bool | None = None
    max_cudagraph_capture_size: int | None = None
    prompts: int = PROMPTS_PER_CLIENT
    places_experts: bool | None = None
    drafts: int = 0
    cudagraph_mode: str | None = None
    moe_backend: str | None = None
    fp8_gemm_backend: str | None = None
    has_symmetric_memory: bool = False
    state_dtype: str | None = None
    polled_steps: int = 0
    cold_seconds: float = 0.0
    cold_seconds_per_client: float = 0.0


SGLANG_COLD_SECONDS = 1.0
"""Fitted to the TTFT of DeepSeek-R1 with prompts of 1,024 (6 servers of SGLang 0.5.9): 100 ms above the replay at 4 to
64 clients alike, which a wait of the first 10 % of the requests explains; tested on prompts of 8,192, DeepSeek-V3 and
GLM-5. A constant latency of every request would look the same, as each client sends 10 prompts."""

TENSORRT_COLD_SECONDS, TENSORRT_COLD_PER_CLIENT = 1.4, 0.08
"""The same for TensorRT-LLM 1.1 with DeepSeek, and the further time per client: block-scaled FP8 products are compiled
for every shape when it first occurs (DeepGEMM), and each prompt of the first burst is a step of another size. Fitted to
R1 (5 servers of 4 to 64 clients: 2 to 6 s a client of the burst), tested on V3."""

_BY_CLIENT = Recipe(is_seated_by_client=True)
_SGLANG_DEEPSEEK = Recipe(seats=512, max_num_batched_tokens=32768, share=0.82, cold_seconds=SGLANG_COLD_SECONDS)
_TENSORRT_DEEPSEEK = Recipe(
    is_seated_by_client=True,
    share=0.75,
    kv_cache_dtype="fp8",
    places_experts=True,
    cold_seconds=TENSORRT_COLD_SECONDS,
    cold_seconds_per_client=TENSORRT_COLD_PER_CLIENT,
)
_RECIPES = {
    ("vllm", "llama-3.1-70b"): replace(_BY_CLIENT, max_num_batched_tokens=8192, share=0.90, is_async=True),
    # gptoss_fp4_h200 sets VLLM_MXFP4_USE_MARLIN
    ("vllm", "gpt-oss-120b"): replace(
        _BY_CLIENT,
        max_num_batched_tokens=8192,
        share=0.90,
        is_async=True,
        max_cudagraph_capture_size=2048,
        moe_backend="marlin",
    ),
    # "For all sequence lengths, EP=TP" (nvidia-master.yaml at 48f302c); runs whose columns say otherwise took as long.
    ("tensorrt-llm", "gpt-oss-120b"): replace(
        _BY_CLIENT, max_num_batched_tokens=20000, share=0.85, places_experts=True
    ),
    ("sglang", "deepseek-r1"): _SGLANG_DEEPSEEK,
    ("sglang", "deepseek-v3"): _SGLANG_DEEPSEEK,
    ("tensorrt-llm", "deepseek-r1"): _TENSORRT_DEEPSEEK,
    ("tensorrt-llm", "deepseek-v3"): _TENSORRT_DEEPSEEK,
    ("vllm", "kimi-k2"): Recipe(share=0.95),
    ("sglang", "qwen3.5-397b-a17b"): Recipe(
        seats=128,
        max_num_batched_tokens=16384,
        share=0.8,
        kv_cache_dtype="fp8",
        state_dtype="bfloat16",  # qwen3.5_fp8_h200 (2116fc4)
        places_experts=False,
        cold_seconds=SGLANG_COLD_SECONDS,
    ),
    ("sglang", "glm-5"): Recipe(share=0.85, prompts=5, cold_seconds=SGLANG_COLD_SECONDS),
}
_B200_TENSORRT_DEEPSEEK = replace(
    _TENSORRT_DEEPSEEK, share=0.8, places_experts=None, cold_seconds=0.0, cold_seconds_per_client=0.0
)
FLASHINFER_GEMM = "flashinfer_trtllm"
"""SGLang's products of FP8 weights with block scales in the scripts and recipes of Blackwell
(SGLANG_ENABLE_JIT_DEEPGEMM false; SGLANG_ENABLE_FLASHINFER_GEMM true, which 0.5.8 chooses itself if DeepGEMM is off:
pull request 13608)."""

_B200_SGLANG_DEEPSEEK = replace(
    _SGLANG_DEEPSEEK, kv_cache_dtype="fp8", polled_steps=10, fp8_gemm_backend=FLASHINFER_GEMM
)
_B200_RECIPES = {
    # 70b_fp8_b200_docker and 70b_fp4_b200_docker (bb4c7f9)
    ("vllm", "llama-3.1-70b"): Recipe(
        seats=512,
        max_num_batched_tokens=8192,
        share=0.90,
        kv_cache_dtype="fp8",
        is_async=True,
        cudagraph_mode="FULL_DECODE_ONLY",
    ),
    # gptoss_fp4_b200 (1fc5d73)
    ("vllm", "gpt-oss-120b"): Recipe(
        seats=512,
        max_num_batched_tokens=8192,
        share=0.90,
        kv_cache_dtype="fp8",
        is_async=True,
        max_cudagraph_capture_size=2048,
    ),
    # gptoss_fp4_b200_trt (1825e7f)
    ("tensorrt-llm", "gpt-oss-120b"): Recipe(seats=512, max_num_batched_tokens=20000, share=0.85, kv_cache_dtype="fp8"),
    # dsr1_fp8_b200 and dsr1_fp4_b200 (1fc5d73)
    ("sglang", "deepseek-r1"): _B200_SGLANG_DEEPSEEK,
    ("sglang", "deepseek-v3"): _B200_SGLANG_DEEPSEEK,
    # dsr1_fp4_b200_trt and its kin
    ("tensorrt-llm", "deepseek-r1"): _B200_TENSORRT_DEEPSEEK,
    ("tensorrt-llm", "deepseek-v3"): _B200_TENSORRT_DEEPSEEK,
    # qwen3.5_fp8_b200 (3e2ebc0)
    ("sglang", "qwen3.5-397b-a17b"): Recipe(
        seats=128,
        max_num_batched_tokens=32768,
        share=0.82,
        kv_cache_dtype="fp8",
        fp8_gemm_backend=FLASHINFER_GEMM,
        polled_steps=10,
        cold_seconds=SGLANG_COLD_SECONDS,
    ),
}
"""Scripts of B200 that differ from those of Hopper."""

_B200_SGLANG_FP4 = replace(
    _B200_SGLANG_DEEPSEEK,
    seats=256,
    max_num_batched_tokens=16384,
    share=0.85,
    fp8_gemm_backend=None,
    has_symmetric_memory=True,
)
"""dsr1_fp4_b200 (1fc5d73): DeepSeek in NVFP4, with attention in 16 bit."""

_B200_SGLANG_DRAFTS = {
    # dsr1_fp8_b200_mtp and qwen3.5_fp8_b200_mtp (285b662, 2ecc5ce)
    "deepseek-r1": replace(_B200_RECIPES["sglang", "deepseek-r1"], max_num_batched_tokens=16384, drafts=2),
    "qwen3.5-397b-a17b": replace(
        _B200_RECIPES["sglang", "qwen3.5-397b-a17b"], share=0.8, drafts=3, state_dtype="bfloat16"
    ),
}
"""SGLang's scripts with drafts of the model's MTP layer, FP8 on B200."""

_DRAFTING_DAYS = ("2026-01-14", "2026-02-05", "2026-02-06")
"""Days on which the runs of DeepSeek-R1 under TensorRT-LLM on B200 used the scripts with MTP (`dsr1_fp4_b200_trt_mtp`,
`dsr1_fp8_b200_trt_mtp`), which no column states: on 2026-01-29 and 2026-02-03 the same servers took 1.5 to 2 times as
long a token at the same loads, and only the container with drafts was rc6.post3."""

_MINIMAX_H100 = Recipe(seats=256, share=0.90)
_MINIMAX_H200 = Recipe(seats=512, max_num_batched_tokens=32768, share=0.95, kv_cache_dtype="fp8")
_EARLY_MINIMAX_H200 = Recipe(share=0.95, places_experts=True)
"""Before vLLM 0.18: the scripts of H200 and B200 asked for expert parallelism whenever its size of 1 was "at least 1",
for 16-bit KV, and did not set seats and budget."""

LONG_PROMPT = 4096
"""Nominal prompt tokens above which DeepSeek's script for TensorRT-LLM goes data-parallel earlier."""

DATA_PARALLEL_ABOVE = {False: 64, True: 32}
"""Whether prompts are long -> clients above which it goes data-parallel (InferenceX, dsr1_fp8_h200_trt)."""


def recipe_of(engine: str, version: str, model: str, hardware: str, date: str) -> Recipe:
    """Return the settings of a server's launch script; nothing if none is known.

    Args:
        engine: Catalogue name.
        version: Its version.
        model: Catalogue name.
        hardware: Catalogue name.
        date: Date of the measurement.
    """
    if (engine, model) == ("vllm", "minimax-m2"):
        if not hardware.startswith(("h200", "b200")):
            return _MINIMAX_H100
        return _EARLY_MINIMAX_H200 if _numbers(version) < (0, 18) else _MINIMAX_H200
    other = Recipe(cold_seconds=SGLANG_COLD_SECONDS) if engine == "sglang" else Recipe()
    recipe = _RECIPES.get((engine, model), other)
    if hardware.startswith("b200"):
        recipe = _B200_RECIPES.get((engine, model), recipe)
        if (engine, model) == ("tensorrt-llm", "deepseek-r1") and date in _DRAFTING_DAYS:
            recipe = replace(recipe, drafts=3, least_budget=0)
    if engine == "tensorrt-llm" and model.startswith("deepseek") and (date < "2026" or _numbers(version) < (1, 2)):
        # Scripts of 1.1 gave a step a token per running request and one prompt, whatever the sum.
        return replace(recipe, least_budget=0)
    return recipe


def fp4_recipe(engine: str, model: str, hardware: str) -> Recipe | None:
    """Return the settings of the script of a model in NVFP4; None: as for its FP8 weights."""
    is_other = engine == "sglang" and model.startswith("deepseek") and hardware.startswith("b200")
    return _B200_SGLANG_FP4 if is_other else None


def drafting_recipe(engine: str, model: str, hardware: str, tensor: int, expert: int, run: str) -> Recipe | None:
    """Return the script with drafts that a server in FP8 under SGLang on B200 ran; None: it did not draft.

    No column states this. For Qwen3.5, nvidia-master.yaml has 4 GPUs without expert parallelism only with drafts. For
    DeepSeek-R1 it has 256 and 512 clients, and prompts of 8,192 above 4 clients on 8 GPUs, only with drafts (at
    48f302c); these are in the sweep whose names begin with a day, whose 8 GPUs take 5.8 ms a token where the server
    named by its configuration takes 8.6 at the same load.

    Args:
        engine: Catalogue name.
        model: Likewise.
        hardware: Likewise.
        tensor: GPUs of the server.
        expert: Groups of experts.
        run: Name of the measurement.
    """
    if engine != "sglang" or not hardware.startswith("b200"):
        return None
    is_drafting = {"deepseek-r1": tensor == 8 and run.startswith("20"), "qwen3.5-397b-a17b": tensor == 4}
    return _B200_SGLANG_DRAFTS[model] if expert == 1 and is_drafting.get(model) else None


FRONT_SECONDS = 0.008
"""Additional time on InferenceX's H200 nodes from a client to the engine and back, compared with its H100 nodes: fitted
to the TTFT of Llama-3.1-70B over 1 to 4 GPUs (4 to 16 clients: 1 to 13 ms late, 7.4 on average; H100 -6 to 9, 0 on
average), tested on gpt-oss-120b under vLLM and TensorRT-LLM (4 clients: 8 to 16 ms late over 1 to 8 GPUs) and
MiniMax-M2, and, not fitted, on its B200 nodes (gpt-oss-120b under vLLM at 4 to 16 clients: 9 to 16 ms late over 1 to 8
GPUs, under TensorRT-LLM 3 to 13)."""


def front_seconds(hardware: str) -> float:
    """Return how much later than in the engine the first tokens of InferenceX's servers reached their clients.

    For servers whose first prompts wait for a new engine, the fitted constant includes it.
    """
    return FRONT_SECONDS if hardware.startswith(("h200", "b200")) else 0.0


def is_data_parallel(engine: str, model: str, hardware: str, clients: int, prompt: int) -> bool:
    """Return whether a launch script makes attention data-parallel over the GPUs that a row calls tensor-parallel; rows
    of Blackwell state it."""
    is_deepseek = engine == "tensorrt-llm" and model.startswith("deepseek")
    return is_deepseek and not hardware.startswith("b200") and clients > DATA_PARALLEL_ABOVE[prompt > LONG_PROMPT]


def has_pieces(recipe: Recipe, precision: str, lengths: tuple[int, int], clients: int, sizes: tuple[int, int]) -> bool:
    """Return whether prompts of DeepSeek under TensorRT-LLM 1.2 on B200 run on graphs in pieces, up to a whole step.

    The scripts of InferenceX's pull requests 594, 620, 632 and 642 (January and February 2026): dsr1_fp8_b200_trt,
    dsr1_fp4_b200_trt and those with drafts.

    Args:
        recipe: Settings of the script.
        precision: Weight format as the row has it.
        lengths: Nominal tokens of a prompt and an answer.
        clients: Clients of the server.
        sizes: GPUs with parts of attention, and groups of experts; (1, ...) with data-parallel attention.
    """
    is_long = lengths == (1024, 8192)
    if precision == "fp4" and not recipe.drafts:
        return lengths == (1024, 1024) and sizes[1] == NODE_GPUS
    if precision == "fp4":
        return clients == 64 if is_long else lengths == (1024, 1024) and clients in (32, 64, 128)
    if recipe.drafts:
        fewest = {(1024, 1024): 4, (1024, 8192): 8}.get(lengths, 16)
        return sizes[0] > 1 and clients > fewest
    if is_long or lengths == (1024, 1024):
        return (128 if is_long else 64) <= clients < 256
    return clients >= 64


NODE_GPUS = 8  # GPUs of a node.
BALANCE_STEPS = 60
"""`attention_dp_config.timeout_iters` of that script, with `enable_balance` (both at 2e46dba)."""

DEFAULT_BALANCE_STEPS = 50
"""The engine's default, which `gptoss_fp4_b200_trt` keeps (TensorRT-LLM llm_args.py, AttentionDpConfig)."""

GPT_OSS_EXCHANGE = "nvlink_one_sided"
"""`TRTLLM_MOE_ALLTOALL_BACKEND` of that script with data-parallel attention and placed experts: mnnvlthroughput, also
on the eight GPUs of a B200 node."""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
