"""What InferenceX's launch scripts set, by engine, model and time. Reads no row, and knows no scenario.

The scripts are public (github.com/SemiAnalysisAI/InferenceX, benchmarks/ and .github/configs/nvidia-master.yaml; before
2026 InferenceMAX); what a script leaves out resolves as the engine's version sets it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.planner.measured.build import PROMPTS_PER_CLIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a launch script sets; None: it leaves the engine's default.

    Attributes:
        seats: `max_num_seqs` of the server.
        is_seated_by_client: One seat a client instead.
        max_num_batched_tokens: Token budget of a step.
        least_budget: TensorRT-LLM without a budget of its own takes what its clients and a prompt need, at least this.
        share: `gpu_memory_utilization`.
        kv_cache_dtype: Format of the KV cache; None: the row's.
        is_async: `async_scheduling`.
        max_cudagraph_capture_size: Tokens of the largest step on CUDA graphs.
        prompts: Prompts a client.
        places_experts: Expert parallelism, whatever a row says; None: as the row says.
        drafts: Drafts a step of the model's MTP layer; one where attention is data-parallel.
        cudagraph_mode: Which steps run on CUDA graphs.
        moe_backend: Whose kernels run experts in MXFP4.
        fp8_gemm_backend: Under SGLang, whose products of FP8 weights by blocks.
        polled_steps: Under SGLang, decode steps between two looks for new requests, with fewer than 16 clients; else
        3 times
            as many.
        cold_seconds: How long the first prompts of the fresh server waited for what it does once.
        cold_seconds_per_client: What each client, whose prompt was one of them, adds to that.
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
    polled_steps: int = 0
    cold_seconds: float = 0.0
    cold_seconds_per_client: float = 0.0


SGLANG_COLD_SECONDS = 1.1
"""Fitted to the TTFT of DeepSeek-R1 with prompts of 1,024 (6 servers of SGLang 0.5.9): 110 ms above the replay at 4 to
64 clients alike, which a wait of the first tenth of the requests explains; tested on prompts of 8,192, DeepSeek-V3 and
GLM-5. A constant latency of every request would look the same where each client sends 10 prompts."""

TENSORRT_COLD_SECONDS, TENSORRT_COLD_PER_CLIENT = 1.4, 0.08
"""The same of TensorRT-LLM 1.1 with DeepSeek, and what each client adds: FP8 products by blocks are compiled for every
shape when it first comes (DeepGEMM), and each prompt of the first burst is a step of another size. Fitted to R1 (5
servers of 4 to 64 clients: 2 to 6 s a client of the burst), tested on V3."""

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
        places_experts=False,
        cold_seconds=SGLANG_COLD_SECONDS,
    ),
    ("sglang", "glm-5"): Recipe(share=0.85, prompts=5, cold_seconds=SGLANG_COLD_SECONDS),
}
_B200_TENSORRT_DEEPSEEK = replace(
    _TENSORRT_DEEPSEEK, share=0.8, places_experts=None, cold_seconds=0.0, cold_seconds_per_client=0.0
)
FLASHINFER_GEMM = "flashinfer_trtllm"
"""SGLang's products of FP8 weights by blocks in the scripts and recipes of Blackwell (SGLANG_ENABLE_JIT_DEEPGEMM false;
SGLANG_ENABLE_FLASHINFER_GEMM true, which 0.5.8 takes by itself where DeepGEMM is off: pull request 13608)."""

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
"""Where the scripts of B200 say otherwise than those of Hopper."""

_B200_SGLANG_FP4 = replace(
    _B200_SGLANG_DEEPSEEK, seats=256, max_num_batched_tokens=16384, share=0.85, fp8_gemm_backend=None
)
"""dsr1_fp4_b200 (1fc5d73): DeepSeek in NVFP4, whose attention is in 16 bit."""

_B200_SGLANG_DRAFTS = {
    # dsr1_fp8_b200_mtp and qwen3.5_fp8_b200_mtp (285b662, 2ecc5ce)
    "deepseek-r1": replace(_B200_RECIPES["sglang", "deepseek-r1"], max_num_batched_tokens=16384, drafts=2),
    "qwen3.5-397b-a17b": replace(_B200_RECIPES["sglang", "qwen3.5-397b-a17b"], share=0.8, drafts=3),
}
"""SGLang's scripts with drafts of the model's MTP layer, FP8 on B200."""

_DRAFTING_DAYS = ("2026-01-14", "2026-02-05", "2026-02-06")
"""Days on which the runs of DeepSeek-R1 under TensorRT-LLM on B200 were those of the scripts with MTP
(`dsr1_fp4_b200_trt_mtp`, `dsr1_fp8_b200_trt_mtp`), which no column says: on 2026-01-29 and 2026-02-03 the same
servers took
1.5 to 2 times as long a token at the same loads, and only the container with drafts was rc6.post3."""

_MINIMAX_H100 = Recipe(seats=256, share=0.90)
_MINIMAX_H200 = Recipe(seats=512, max_num_batched_tokens=32768, share=0.95, kv_cache_dtype="fp8")
_EARLY_MINIMAX_H200 = Recipe(share=0.95, places_experts=True)
"""Before vLLM 0.18: the scripts of H200 and B200 asked for expert parallelism wherever the size of 1 was "at least 1",
for 16-bit KV, and left seats and budget alone."""

LONG_PROMPT = 4096
"""Tokens of a nominal prompt above which DeepSeek's script for TensorRT-LLM goes data-parallel earlier."""

DATA_PARALLEL_ABOVE = {False: 64, True: 32}
"""Whether prompts are long -> clients above which it does (InferenceX, dsr1_fp8_h200_trt)."""


def recipe_of(engine: str, version: str, model: str, hardware: str, date: str) -> Recipe:
    """Return what the launch script of a server sets; nothing where none is known.

    Args:
        engine: As the catalogue names it.
        version: Its version.
        model: As the catalogue names it.
        hardware: As the catalogue names it.
        date: Of the measurement.
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
            recipe = replace(recipe, drafts=3)
    if engine == "tensorrt-llm" and model.startswith("deepseek") and (date < "2026" or _numbers(version) < (1, 2)):
        # Scripts of 1.1 gave a step room for every running request and one prompt, whatever that came to.
        return replace(recipe, least_budget=0)
    return recipe


def fp4_recipe(engine: str, model: str, hardware: str) -> Recipe | None:
    """Return what the script of a model in NVFP4 sets; None: what that of its FP8 weights does."""
    is_other = engine == "sglang" and model.startswith("deepseek") and hardware.startswith("b200")
    return _B200_SGLANG_FP4 if is_other else None


def drafting_recipe(engine: str, model: str, hardware: str, tensor: int, expert: int, run: str) -> Recipe | None:
    """Return the script with drafts that a server in FP8 under SGLang on B200 ran; None: it did not draft.

    No column says so. Of Qwen3.5 nvidia-master.yaml has 4 GPUs without expert parallelism with drafts alone. Of
    DeepSeek-R1 it has 256 and 512 clients, and prompts of 8,192 above 4 clients on 8 GPUs, with drafts alone (at
    48f302c); these stand in the sweep whose names begin with a day, whose 8 GPUs take 5.8 ms a token where the server
    that is named by its configuration takes 8.6 at the same load.

    Args:
        engine: As the catalogue names it.
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
"""What InferenceX's H200 nodes take longer from a client to the engine and back than its H100 nodes: fitted to the TTFT
of Llama-3.1-70B over 1 to 4 GPUs (4 to 16 clients: 1 to 13 ms late, 7.4 on average; H100 -6 to 9, 0 on average), tested
on gpt-oss-120b under vLLM and TensorRT-LLM (4 clients: 8 to 16 ms late over 1 to 8 GPUs) and MiniMax-M2, and, not
fitted, on its B200 nodes (gpt-oss-120b under vLLM at 4 to 16 clients: 9 to 16 ms late over 1 to 8 GPUs, under
TensorRT-LLM 3 to 13)."""


def front_seconds(hardware: str) -> float:
    """Return how much later than the engine says the first tokens of InferenceX's servers came to their clients.

    Servers whose first prompts wait for a fresh engine have it in the constant that was fitted to them.
    """
    return FRONT_SECONDS if hardware.startswith(("h200", "b200")) else 0.0


def is_data_parallel(engine: str, model: str, hardware: str, clients: int, prompt: int) -> bool:
    """Return whether a launch script makes attention data-parallel over the GPUs that a row calls tensor-parallel;
    rows of Blackwell say it."""
    is_deepseek = engine == "tensorrt-llm" and model.startswith("deepseek")
    return is_deepseek and not hardware.startswith("b200") and clients > DATA_PARALLEL_ABOVE[prompt > LONG_PROMPT]


BALANCE_STEPS = 60
"""`attention_dp_config.timeout_iters` of that script, with `enable_balance` (both at 2e46dba)."""

DEFAULT_BALANCE_STEPS = 50
"""The engine's own, which `gptoss_fp4_b200_trt` leaves as it is (TensorRT-LLM llm_args.py, AttentionDpConfig)."""

GPT_OSS_EXCHANGE = "nvlink_one_sided"
"""`TRTLLM_MOE_ALLTOALL_BACKEND` of that script with ranks of data-parallel attention and experts placed:
mnnvlthroughput, also on the eight GPUs of a B200 node."""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
