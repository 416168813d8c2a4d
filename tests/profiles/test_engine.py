"""Engine profiles: defaults by version and GPU, what the user sets, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simserve.documents import read_mapping
from simserve.errors import InputError, ProfileError, ScenarioError
from simserve.profiles import catalog
from simserve.profiles.engine import load_engine, resolve_engine
from simserve.profiles.engine_options import EngineOptions, StatePool, version_key
from simserve.profiles.engine_profile import Host, version_note
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.profiles.static_reserve import ServerTraits

GIB = 2.0**30
GPUS = {
    "rtx-4090-24gb": 24564 * 2.0**20,
    "a100-sxm-40gb": 40960 * 2.0**20,
    "l40s-48gb": 46068 * 2.0**20,
    "a100-sxm-80gb": 81920 * 2.0**20,
    "h100-sxm-80gb": 81559 * 2.0**20,
    "h200-sxm-141gb": 143771 * 2.0**20,
    "mi300x-192gb": 192e9,
    "gb10-128gb": 119.6 * 2.0**30,
}
ENGINES = [
    "fastertransformer",
    "llama.cpp",
    "lmdeploy",
    "ollama",
    "orca",
    "sglang",
    "tensorrt-llm",
    "tgi",
    "transformers",
    "vllm",
]
STATIC = {"batching": "static"}


DRAFTERS = ("draft_model", "ngram", "eagle", "mtp")


def resolve(
    name: str = "vllm",
    version: str | None = "0.12",
    gpu: str = "h100-sxm-80gb",
    model_max_len: int = 8192,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    drafter: str | None = None,
    model_family: str = "",
    only_prefills: bool = False,
    has_linear_layers: bool = False,
    vocab_size: int = 0,
    traits: ServerTraits | None = None,
    **overrides: Any,
) -> ResolvedEngine:
    """Resolve an engine on a GPU of the catalogue with the user's keys."""
    return resolve_engine(
        load_engine(name),
        version=version,
        gpu_memory_bytes=GPUS[gpu],
        gpu_name=gpu,
        model_max_len=model_max_len,
        options=EngineOptions(**overrides),
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        drafter=drafter,
        model_family=model_family,
        only_prefills=only_prefills,
        has_linear_layers=has_linear_layers,
        vocab_size=vocab_size,
        traits=traits,
    )


@pytest.mark.parametrize(
    ("version", "gpu", "budget", "seats", "share"),
    [
        ("0.2.7", "h100-sxm-80gb", 8192, 256, 0.90),
        ("0.5.5", "a100-sxm-80gb", 8192, 256, 0.90),
        ("0.6.6", "h100-sxm-80gb", 8192, 256, 0.90),
        ("0.8.0", "h100-sxm-80gb", 8192, 1024, 0.90),
        ("0.8.3", "h200-sxm-141gb", 8192, 1024, 0.90),
        ("0.8.3", "a100-sxm-80gb", 2048, 1024, 0.90),
        ("0.8.3", "rtx-4090-24gb", 2048, 1024, 0.90),
        ("0.8.4", "h200-sxm-141gb", 8192, 1024, 0.90),
        ("0.8.4", "a100-sxm-80gb", 2048, 256, 0.90),
        ("0.8.5", "h100-sxm-80gb", 8192, 1024, 0.90),
        ("0.8.5", "a100-sxm-80gb", 8192, 1024, 0.90),
        ("0.8.5", "rtx-4090-24gb", 2048, 256, 0.90),
        ("0.8.5", "gb10-128gb", 2048, 256, 0.90),
        ("0.9.1", "a100-sxm-80gb", 2048, 256, 0.90),
        ("0.10.2", "h200-sxm-141gb", 8192, 1024, 0.90),
        ("0.10.2", "a100-sxm-80gb", 2048, 256, 0.90),
        ("0.12", "h100-sxm-80gb", 8192, 1024, 0.90),
        ("0.12", "a100-sxm-80gb", 2048, 256, 0.90),
        ("0.12", "l40s-48gb", 2048, 256, 0.90),
        ("0.17", "h100-sxm-80gb", 8192, 1024, 0.90),
        ("0.20", "h100-sxm-80gb", 8192, 1024, 0.92),
        ("0.20", "mi300x-192gb", 8192, 1024, 0.92),
        ("0.20", "gb10-128gb", 2048, 256, 0.92),
        ("0.30", "gb10-128gb", 2048, 256, 0.92),
        ("0.33", "gb10-128gb", 2048, 256, 0.92),
        ("0.33", "h100-sxm-80gb", 8192, 1024, 0.92),
        ("0.33", "mi300x-192gb", 16384, 1024, 0.92),
        ("0.33", "a100-sxm-80gb", 2048, 256, 0.92),
    ],
)
def test_vllm_limits_follow_version_and_gpu(version: str, gpu: str, budget: int, seats: int, share: float) -> None:
    """Budget, seats and memory share are those of the version on that GPU; V0 covers the model length."""
    engine = resolve(version=version, gpu=gpu)

    assert engine.max_num_batched_tokens == budget
    assert engine.max_num_seqs == seats
    assert engine.gpu_memory_utilization == share
    assert engine.block_size == 16


@pytest.mark.parametrize(
    ("version", "scheduler", "is_chunked", "has_prefix_cache", "watermark", "is_async"),
    [
        ("0.2.7", "prefill_first", False, False, 0.01, False),
        ("0.6.6", "prefill_first", False, False, 0.01, False),
        ("0.8.0", "mixed", True, True, 0.0, False),
        ("0.8.5", "mixed", True, True, 0.0, False),
        ("0.12", "mixed", True, True, 0.0, False),
        ("0.17", "mixed", True, True, 0.0, True),
        ("0.33", "mixed", True, True, 0.0, True),
    ],
)
def test_vllm_scheduler_follows_version(
    version: str, scheduler: str, is_chunked: bool, has_prefix_cache: bool, watermark: float, is_async: bool
) -> None:
    """V0 runs whole prompts first and keeps a watermark; V1 mixes chunks; 0.17 overlaps the host."""
    engine = resolve(version=version)

    assert engine.scheduler == scheduler
    assert engine.enable_chunked_prefill is is_chunked
    assert engine.enable_prefix_caching is has_prefix_cache
    assert engine.watermark == watermark
    assert engine.async_scheduling is is_async
    assert (engine.host_overlap > 0) is is_async
    assert engine.admission == "on_demand"


@pytest.mark.parametrize(("version", "budget"), [("0.5.5", 512), ("0.6.6", 2048)])
def test_vllm_v0_chunks_long_models_by_default(version: str, budget: int) -> None:
    """Above 32k V0 splits prompts, mixes steps and shrinks the budget; below it covers the model length."""
    long, short = (
        resolve(version=version, model_max_len=131072),
        resolve(version=version, model_max_len=32768),
    )

    assert (long.enable_chunked_prefill, long.scheduler, long.max_num_batched_tokens) == (
        True,
        "mixed",
        budget,
    )
    assert (short.enable_chunked_prefill, short.max_num_batched_tokens) == (False, 32768)


@pytest.mark.parametrize(("version", "is_late"), [("0.5.5", False), ("0.6.0", True), ("0.7.3", True), ("0.8.5", False)])
def test_vllm_v0_processes_outputs_in_the_next_step(version: str, is_late: bool) -> None:
    """Asynchronous output processing came with 0.6.0 and went with V0."""
    assert resolve("vllm", version=version).async_output is is_late


def test_vllm_v0_with_chunking_asked_for_mixes_steps() -> None:
    """Chunked prefill turned on by the user changes scheduler and budget as V0 does."""
    engine = resolve(version="0.6.6", enable_chunked_prefill=True)

    assert (engine.scheduler, engine.max_num_batched_tokens) == ("mixed", 2048)
    assert engine.sources["enable_chunked_prefill"] == "scenario"


def test_vllm_v1_without_chunking_covers_the_model_length() -> None:
    """With chunking off the default budget is max(max_model_len, default)."""
    assert resolve(enable_chunked_prefill=False, model_max_len=131072).max_num_batched_tokens == 131072
    assert resolve(enable_chunked_prefill=False, model_max_len=4096).max_num_batched_tokens == 8192


def test_vllm_budgets_graph_memory_from_0_20() -> None:
    """CUDA graphs come out of the unused share until the version that budgets them."""
    counted = [resolve(version=version).counts_cuda_graphs for version in ("0.12", "0.19", "0.20", "0.33")]

    assert counted == [False, False, True, True]


def test_vllm_graph_sizes_are_capped_at_twice_the_seats() -> None:
    """Sizes are 1, 2, 4, then every 8 to 256 and every 16 to min(2 * max_num_seqs, 512)."""
    full, small = resolve(), resolve(max_num_seqs=20)

    assert len(full.cuda_graph_sizes) == 51
    assert full.cuda_graph_max_batch == 512
    assert small.cuda_graph_sizes == (1, 2, 4, 8, 16, 24, 32, 40)


def test_activation_inputs_reproduce_measured_peaks() -> None:
    """Sampling dominates vLLM 0.11's activation peak, the forward pass that of a long unsplit prompt."""
    hidden, vocabulary, intermediate = 4096, 128256, 14336
    engine = resolve(version="0.11", gpu="h100-sxm-80gb")
    sampling = engine.activation_logit_bytes * engine.max_num_seqs * vocabulary
    sampling += 2.6 * engine.max_num_batched_tokens * hidden
    older = resolve(version="0.6.6", gpu="rtx-4090-24gb", model_max_len=20000)
    forward = older.activation_token_bytes_factor * older.max_num_batched_tokens * (hidden + intermediate) * 2

    assert sampling == pytest.approx(4.76 * GIB, rel=0.01)
    assert forward == pytest.approx((17.06 - 14.99) * GIB, rel=0.01)


@pytest.mark.parametrize(
    ("version", "gpu", "tensor_parallel_size", "chunk", "largest_graph", "reserve_mib"),
    [
        ("0.5.0rc2", "rtx-4090-24gb", 1, 2048, 8, 2.9 * 1024),
        ("0.5.2", "l40s-48gb", 1, 8192, 160, 10 * 1024),
        ("0.5.2", "h100-sxm-80gb", 8, 8192, 160, 13.5 * 1024),
        ("0.5.2", "h200-sxm-141gb", 1, 8192, 256, 12.5 * 1024),
        ("0.5.2", "mi300x-192gb", 8, 16384, 512, 32 * 1024),
        ("0.5.3", "rtx-4090-24gb", 1, 2048, 16, 512 + 2048 * 1.5 + 16 * 2 + 128),
        ("0.5.9", "rtx-4090-24gb", 1, 2048, 24, 512 + 2048 * 1.5 + 24 * 2 + 128),
        ("0.5.9", "l40s-48gb", 1, 4096, 32, 512 + 4096 * 1.5 + 32 * 2 + 128),
        ("0.5.9", "h100-sxm-80gb", 1, 8192, 256, 512 + 8192 * 1.5 + 256 * 2 + 128),
        ("0.5.9", "h100-sxm-80gb", 8, 8192, 512, 512 + 8192 * 1.5 + 512 * 2 + 8 * 128),
        ("0.5.9", "h200-sxm-141gb", 1, 8192, 256, 512 + 8192 * 1.5 + 256 * 2 + 128),
        ("0.5.9", "mi300x-192gb", 1, 16384, 512, 512 + 16384 * 1.5 + 512 * 2 + 128),
        ("0.5.12", "h100-sxm-80gb", 1, 8192, 256, 512 + 8192 * 1.5 + 256 * 2 + 128 + 58 * 8),
        ("0.5.12", "rtx-4090-24gb", 1, 2048, 24, 512 + 2048 * 1.5 + 24 * 2 + 128 + 42 * 8),
        ("0.5.23", "rtx-4090-24gb", 1, 4096, 48, 512 + 4096 * 1.5 + 48 * 2 + 128 + 50 * 8),
        ("0.5.23", "rtx-4090-24gb", 4, 4096, 160, 512 + 4096 * 1.5 + 160 * 2 + 4 * 128 + 50 * 8),
    ],
)
def test_sglang_derives_chunk_and_static_share_from_memory(
    version: str, gpu: str, tensor_parallel_size: int, chunk: int, largest_graph: int, reserve_mib: float
) -> None:
    """Chunk, graphs and mem_fraction_static come from the GPU's memory, by the rule of the release."""
    engine = resolve("sglang", version, gpu, tensor_parallel_size=tensor_parallel_size)

    assert engine.max_num_batched_tokens == chunk
    assert engine.cuda_graph_max_batch == largest_graph
    assert engine.gpu_memory_utilization == round(1 - reserve_mib * 2**20 / GPUS[gpu], 3)
    assert engine.memory_rule == "static_fraction"


@pytest.mark.parametrize(
    ("version", "largest_graph", "groups_mib"),
    [("0.5.2", 160, 4 * 1024), ("0.5.9", 512, 8 * 512 * (3 + 1.5)), ("0.5.12", 512, 8 * 512 * (3 + 1.5) - 58 * 8)],
)
def test_sglang_reserves_more_for_groups_of_data_parallel_attention(
    version: str, largest_graph: int, groups_mib: float
) -> None:
    """Its tensor-parallel size counts the ranks of all groups, which share the chunk; no prompt runs on a graph."""
    together, grouped = (
        resolve("sglang", version, tensor_parallel_size=8 // groups, data_parallel_size=groups) for groups in (1, 8)
    )

    assert (together.max_num_batched_tokens, grouped.max_num_batched_tokens) == (8192, 1024)
    assert grouped.new_token_ratio_initial == pytest.approx(0.3 * together.new_token_ratio_initial)
    assert grouped.max_num_seqs == together.max_num_seqs
    assert grouped.cuda_graph_max_batch == largest_graph
    assert grouped.cuda_graph_max_batch == together.cuda_graph_max_batch
    lost = together.gpu_memory_utilization - grouped.gpu_memory_utilization
    assert lost == pytest.approx(groups_mib * 2**20 / GPUS["h100-sxm-80gb"], abs=0.0011)


@pytest.mark.parametrize(("version", "largest"), [("0.13", 32), ("0.14", 128), ("0.33", 128)])
def test_vllm_captures_every_batch_of_few_seats_with_drafts(version: str, largest: int) -> None:
    """Twice the tokens of max_num_seqs: config/vllm.py, max_num_seqs x decode_query_len x 2 (pull request 30330)."""
    drafting = resolve(
        version=version, max_num_seqs=16, drafter="mtp", traits=ServerTraits(drafter="mtp", tokens_per_decode=4)
    )
    alone = resolve(version=version, max_num_seqs=16)

    assert drafting.cuda_graph_max_batch == largest
    assert alone.cuda_graph_max_batch == 32


@pytest.mark.parametrize(
    ("version", "groups", "exchange", "limits"),
    [
        ("0.20", 8, "deepep_low_latency", (256, 256)),
        ("0.33", 8, "deepep_low_latency", (256, 256)),
        ("0.33", 8, "deepep_high_throughput", (1024, 8192)),
        ("0.33", 1, "deepep_low_latency", (1024, 8192)),
    ],
)
def test_vllm_takes_few_tokens_with_deepep_for_low_latency(
    version: str, groups: int, exchange: str, limits: tuple[int, int]
) -> None:
    """use_batched_dp_moe of config/parallel.py in 0.20.2, 0.32 and 0.33; the default seats are cut to the budget."""
    found = resolve(
        version=version, gpu="h200-sxm-141gb", data_parallel_size=groups, traits=ServerTraits(exchange=exchange)
    )

    assert (found.max_num_seqs, found.max_num_batched_tokens) == limits


@pytest.mark.parametrize(
    ("version", "drafter", "gib"),
    [
        ("0.4.7", "eagle", 0),
        ("0.5.2", "eagle", 2),
        ("0.5.9", "eagle", 2),
        ("0.5.9", "draft_model", 6),
        ("0.5.9", "ngram", 0),
        ("0.5.10", "mtp", 4),
        ("0.5.13", "eagle", 4),
        ("0.5.14", "eagle", 0),
    ],
)
def test_sglang_reserves_memory_for_drafts(version: str, drafter: str, gib: float) -> None:
    """Beyond the least reserve, for 0.5.10 to 0.5.13 twice as much as before (server_args.py of each)."""
    alone, drafting = (resolve("sglang", version, "h200-sxm-141gb", drafter=each) for each in (None, drafter))

    lost = alone.gpu_memory_utilization - drafting.gpu_memory_utilization
    assert lost == pytest.approx(gib * GIB / GPUS["h200-sxm-141gb"], abs=0.0011)


@pytest.mark.parametrize(
    ("version", "case", "mib"),
    [
        ("0.5.12", {}, 512 + 16384 * 1.5 + 512 * 2 + 1024 + 74 * 8),
        ("0.5.12", {"is_latent": True}, 512 + 16384 * 1.5 + 512 * 2 + 1024 + 1536),
        ("0.5.12", {"captures_prompts": False}, 512 + 16384 * 1.5 + 512 * 2 + 1024),
        ("0.5.14", {"captures_prompts": False, "role": "decode"}, 512 + 16384 * 1.5 + 512 * 2 + 1024),
        ("0.5.15", {"captures_prompts": False, "role": "decode"}, 10240),
        (
            "0.5.15",
            {"captures_prompts": False, "role": "decode", "tokens_per_decode": 16},
            512 + 8192 * 1.5 + 1024 + 1024,
        ),
        ("0.5.15", {"role": "prefill"}, 512 + 16384 * 1.5 + 1024 + 74 * 8),
        ("0.5.15", {"captures_prompts": False, "role": "decode", "exchange": "deepep_low_latency"}, 10240),
        ("0.5.16", {"captures_prompts": False, "role": "decode", "exchange": "deepep_low_latency"}, 10240 + 2048),
    ],
)
def test_sglang_reserves_for_what_a_server_does(version: str, case: dict[str, Any], mib: float) -> None:
    """Eight ranks of 180 GiB: its formula of 0.5.12, and of 0.5.15 and 0.5.16 by role (server_args.py of each)."""
    memory = 180 * GIB
    server = {
        "chunk_tokens": 16384,
        "graph_sequences": 512,
        "decode_sequences": 512,
        "ranks": 8,
        "captures_prompts": True,
    }

    share = (
        load_engine("sglang")
        .nearest_version(version)
        .memory.reserve(memory)
        .share(memory, ServerTraits(**server | case))
    )

    assert share == round(1 - mib * 2**20 / memory, 3)


def test_sglang_captures_more_small_batches_with_drafts() -> None:
    """0.5.3 to 0.5.23 server_args.py and cuda_graph_hook.py: every second batch up to 32, every fourth to 64."""
    alone, drafting = (resolve("sglang", "0.5.9", drafter=each).cuda_graph_sizes for each in (None, "eagle"))

    assert [size for size in alone if size < 40] == [1, 2, 4, 8, 12, 16, 24, 32]
    assert [size for size in drafting if size < 48] == [*range(1, 9), *range(10, 33, 2), 40, 44]
    assert max(alone) == max(drafting)


@pytest.mark.parametrize(("version", "largest", "gib"), [("0.5.21", 512, 0), ("0.5.22", 64, 8 * 4.5 * 448 / 1024)])
def test_sglang_captures_no_more_than_the_seats_that_are_set(version: str, largest: int, gib: float) -> None:
    """Those of all groups: memory_hook.py of 0.5.22 and 0.5.23, which then also reserves less; not of 0.5.21."""
    free, seated = (resolve("sglang", version, data_parallel_size=8, **each) for each in ({}, {"max_num_seqs": 8}))

    assert seated.cuda_graph_max_batch == largest
    gained = seated.gpu_memory_utilization - free.gpu_memory_utilization
    assert gained * GPUS["h100-sxm-80gb"] / GIB == pytest.approx(gib + (gib > 0) * 2 * 448 / 1024, rel=0.25, abs=0.1)


@pytest.mark.parametrize(
    ("family", "without", "since"),
    [
        ("qwen3_5_moe", "0.5.9", "0.5.10"),
        ("glm_moe_dsa", "0.5.10", "0.5.11"),
        ("nemotron_h", "0.5.13", "0.5.14"),
        ("deepseek_v4", "0.5.17", "0.5.18"),
    ],
)
def test_sglang_joins_all_reduce_and_norm_of_more_and_more_families(family: str, without: str, since: str) -> None:
    """enable_flashinfer_allreduce_fusion of server_args.py, then of arg_groups/overrides.py; none is taken back."""
    assert family not in resolve("sglang", without).all_reduce_norm_families
    assert family in resolve("sglang", since).all_reduce_norm_families
    assert family in resolve("sglang", "0.5.23").all_reduce_norm_families


@pytest.mark.parametrize(
    ("family", "kernels", "without", "since"),
    [("mimo_v2_flash", "fp8_block", "0.5.16", "0.5.17"), ("cohere2_moe", "bf16", "0.5.18", "0.5.19")],
)
def test_sglang_leaves_triton_for_more_families_of_experts(family: str, kernels: str, without: str, since: str) -> None:
    """flashinfer_trtllm on Blackwell, by arg_groups/overrides.py and model_overrides."""
    assert family not in resolve("sglang", without).own_experts[kernels]
    assert family in resolve("sglang", since).own_experts[kernels]
    assert family in resolve("sglang", "0.5.23").own_experts[kernels]


@pytest.mark.parametrize(
    ("engine", "kernels", "family", "before", "with_cutlass", "after"),
    [
        ("vllm", "fp8", "nemotron_h", "0.13", "0.17", "0.18"),
        ("sglang", "fp8", "nemotron_h", "0.5.5", "0.5.10", "0.5.11"),
        ("sglang", "nvfp4", "minimax_m2", "0.5.5", "0.5.10", "0.5.11"),
    ],
)
def test_experts_leave_cutlass_in_time(
    engine: str, kernels: str, family: str, before: str, with_cutlass: str, after: str
) -> None:
    """TensorRT-LLM's kernels on Blackwell come later to experts without a gate and to those nobody chose any for."""
    has = [family in resolve(engine, each).cutlass_experts.get(kernels, ()) for each in (before, with_cutlass, after)]

    assert has == [False, True, False]


@pytest.mark.parametrize("version", ["0.5.0rc2", "0.5.3", "0.5.23"])
def test_sglang_serves_mxfp4_since_gpt_oss(version: str) -> None:
    """From the release that brought gpt-oss on; 0.4 refuses it."""
    assert "mxfp4" in resolve("sglang", version).supported_quantizations
    assert "mxfp4" not in resolve("sglang", "0.4.9").supported_quantizations


def test_sglang_admits_by_a_decaying_estimate() -> None:
    """Ratio 0.7 falls to 0.7 x 0.14 over 600 steps; prefill goes first; pages hold one token."""
    engine = resolve("sglang", None)

    assert (engine.scheduler, engine.admission, engine.block_size) == ("prefill_first", "estimate", 1)
    assert engine.new_token_ratio_initial == 0.7
    assert engine.new_token_ratio_minimum == pytest.approx(0.098)
    assert engine.new_token_ratio_decay == pytest.approx(0.602 / 600)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "tensorrt-llm",
            {
                "scheduler": "mixed",
                "admission": "reserve",
                "max_num_batched_tokens": 8192,
                "max_num_seqs": 2048,
                "enable_chunked_prefill": False,
                "block_size": 32,
                "memory_rule": "free_after_load",
                "gpu_memory_utilization": 0.9,
            },
        ),
        (
            "tgi",
            {
                "scheduler": "prefill_first",
                "admission": "reserve",
                "max_num_batched_tokens": 4096,
                "block_size": 1,
            },
        ),
        (
            "llama.cpp",
            {
                "kv_allocation": "paged",
                "max_num_seqs": 4,
                "max_model_len": 8192,
                "enable_prefix_caching": False,
                "max_num_batched_tokens": 2048,
            },
        ),
        ("lmdeploy", {"scheduler": "mixed", "admission": "on_demand", "max_num_seqs": 1024, "block_size": 64}),
        ("ollama", {"kv_allocation": "static", "max_num_seqs": 1, "batching": "continuous"}),
        ("transformers", {"batching": "static", "static_batch_size": 8, "enable_prefix_caching": False}),
        ("fastertransformer", {"batching": "static", "kv_allocation": "static"}),
        ("orca", {"batching": "continuous", "kv_allocation": "static", "scheduler": "mixed"}),
    ],
)
def test_other_engines_resolve_their_family(name: str, expected: dict[str, Any]) -> None:
    """The newest version of each engine has the scheduler family and limits it is known for."""
    engine = resolve(name, None)

    assert {key: getattr(engine, key) for key in expected} == expected


def test_ollama_slots_and_context_follow_version_and_memory() -> None:
    """Four slots until 0.10, one since; the context grew to a size by memory, at most the model's."""
    old, new = (
        resolve("ollama", "0.5", model_max_len=131072),
        resolve("ollama", None, "rtx-4090-24gb", 131072),
    )

    assert (old.max_num_seqs, old.max_model_len) == (4, 2048)
    assert (new.max_num_seqs, new.max_model_len) == (1, 32768)
    assert resolve("ollama", None, model_max_len=131072).max_model_len == 131072


def test_ollama_runs_the_server_of_llama_cpp_since_0_30() -> None:
    """Its batches, checkpoints, windows and host times; what further sequences took was the old runner's."""
    old, new, server = resolve("ollama", "0.24"), resolve("ollama", None), resolve("llama.cpp", None)

    assert (old.max_num_batched_tokens, old.checkpoints(512), old.overlaps_chunks) == (2048, (), False)
    assert (new.max_num_batched_tokens, new.ubatch_size, new.overlaps_chunks) == (512, 512, True)
    assert new.checkpoints(512) == server.checkpoints(512) == (516, 4)
    assert new.state_ubatches == server.state_ubatches
    assert old.host_seconds_per_further_request > new.host_seconds_per_further_request == 0
    assert new.host_seconds_per_step == server.host_seconds_per_step


@pytest.mark.parametrize("name", ["llama.cpp", "ollama"])
def test_engines_that_sample_on_the_cpu_take_longer_for_more_tokens_of_a_vocabulary(name: str) -> None:
    """0.23 to 0.49 ms a sequence were measured for large ones (llama.cpp pull request 24843, issue 27050)."""
    times = [resolve(name, None, vocab_size=size).host_seconds_per_request for size in (32_000, 128_256, 151_936)]
    bare = resolve(name, None, vocab_size=151_936, sampling="none").host_seconds_per_request

    assert times == sorted(times)
    assert 0.23e-3 < times[2] < 0.49e-3
    assert (times[1] - bare) / (times[0] - bare) == pytest.approx(128_256 / 32_000)
    assert resolve("vllm", vocab_size=151_936).host_seconds_per_request == resolve("vllm").host_seconds_per_request


def test_llama_cpp_slots_share_the_context() -> None:
    """More slots mean a shorter context each, unless the user says how long."""
    assert resolve("llama.cpp", None, max_num_seqs=8).max_model_len == 1024
    assert resolve("llama.cpp", None, max_num_seqs=8, max_model_len=4096).max_model_len == 4096
    assert resolve("llama.cpp", None, max_num_seqs=8, kv_unified=True).max_model_len == 8192
    assert resolve("llama.cpp", "b4000").kv_allocation == "static"


def test_a_key_of_static_batching_says_how_it_is_left_out() -> None:
    """A bundled scenario's own key too, from the command line."""
    with pytest.raises(ScenarioError, match=r"--set deployment\.engine\.static_batch_size=null"):
        resolve("vllm", "0.12", batching="continuous", static_batch_size=8)


@pytest.mark.parametrize(
    ("requested", "used", "source"),
    [
        ("0.12", "0.12", "scenario"),
        ("0.12.0", "0.12", "scenario"),
        ("v0.8.5.post1", "0.8.5", "scenario"),
        ("0.9.1", "0.9.1", "scenario"),
        ("0.9.0.1", "0.9", "scenario, a patch release of 0.9"),
        ("0.11.2", "0.11.2", "scenario"),
        ("0.12.1", "0.12", "scenario, a patch release of 0.12"),
        ("0.10.1", "0.10", "scenario, a patch release of 0.10"),
        ("0.7.3", "0.7", "scenario, a patch release of 0.7"),
        ("0.8.4", "0.8.4", "scenario"),
        ("0.5.0", "0.4.3", "defaults of 0.4.3, the nearest older known"),
        ("0.40", "0.33", "defaults of 0.33, the nearest older known"),
        ("0.1.4", "0.2.1", "defaults of 0.2.1, the oldest known"),
        (None, "0.33", "newest known version"),
    ],
)
def test_version_resolves_to_the_nearest_older_known(requested: str | None, used: str, source: str) -> None:
    """Versions compare as numbers; what was asked for is kept beside what is used."""
    engine = resolve(version=requested)

    assert (engine.version, engine.requested_version) == (used, requested)
    assert engine.sources["version"] == source


@pytest.mark.parametrize(
    ("engine", "requested", "note"),
    [
        ("vllm", None, None),
        ("vllm", "0.19.1", None),
        ("sglang", "0.5.12.post1", None),
        ("sglang", "0.5.24", "sglang 0.5.24: defaults of 0.5.23, the nearest older known"),
        ("vllm", "0.5.0", "vllm 0.5.0: defaults of 0.4.3, the nearest older known"),
        ("tensorrt-llm", "0.4", "tensorrt-llm 0.4: defaults of 0.5, the oldest known"),
    ],
)
def test_a_version_that_is_not_known_has_a_note(engine: str, requested: str | None, note: str | None) -> None:
    """Known versions and their patch releases have none."""
    assert version_note(engine, requested, load_engine(engine).version_source(requested)) == note


@pytest.mark.parametrize(
    ("version", "budget", "largest_graph"), [("0.27", 8192, 512), ("0.28", 16384, 1024), ("0.33", 16384, 1024)]
)
def test_vllm_takes_more_on_gpus_of_160_gib_from_0_28(version: str, budget: int, largest_graph: int) -> None:
    """A budget of 16,384 tokens and graphs up to 1,024 on Blackwell; AMD's GPUs keep 512."""
    nvidia, amd = (
        resolve_engine(
            load_engine("vllm"),
            version=version,
            gpu_memory_bytes=178 * GIB,
            gpu_name=name,
            model_max_len=8192,
            options=EngineOptions(),
        )
        for name in ("b200-sxm-180gb", "mi300x-192gb")
    )

    assert (nvidia.max_num_batched_tokens, nvidia.cuda_graph_max_batch) == (budget, largest_graph)
    assert (amd.max_num_batched_tokens, amd.cuda_graph_max_batch) == (budget, 512)


def test_vllm_reserves_the_whole_prompt_from_0_19() -> None:
    """V0 did, V1 took it up again."""
    reserved = [resolve(version=version).reserve_full_prompt for version in ("0.6.6", "0.8.5", "0.18.1", "0.19")]

    assert reserved == [True, False, False, True]


def test_vllm_pads_lone_tokens_from_0_30() -> None:
    """Beside drafts; SGLang does not."""
    padding = [resolve(version=version).pads_lone_token for version in ("0.20.2", "0.29", "0.30", "0.33")]

    assert padding == [False, False, True, True]
    assert not resolve("sglang").pads_lone_token


def test_vllm_caches_what_drafts_have_filled_from_0_33() -> None:
    """At once, and with the token behind it; SGLang does not."""
    assert [resolve(version=version).caches_results for version in ("0.20.2", "0.32", "0.33")] == [False, False, True]
    assert not resolve("sglang").caches_results


def test_sglang_touches_what_those_who_wait_would_find_from_0_5_22() -> None:
    """The releases between 0.5.18 and that were read: none does."""
    assert [resolve("sglang", version).touches_waiting for version in ("0.5.21", "0.5.22", "0.5.23")] == [
        False,
        True,
        True,
    ]


def test_vllm_goes_on_behind_who_preempts_itself_from_0_33() -> None:
    """Up to 0.27 the pass misses another one, too; SGLang makes no such pass."""
    versions = ("0.9.2", "0.20.2", "0.27", "0.28", "0.32", "0.33")
    resolved = [resolve(version=version) for version in versions]

    assert [(each.ends_pass, each.misses_next) for each in resolved] == [
        *[(True, True)] * 3,
        *[(True, False)] * 2,
        (False, False),
    ]
    assert not resolve("sglang").ends_pass


def test_versions_compare_as_numbers() -> None:
    """0.10.2 is newer than 0.8.5, builds and trailing zeros are understood, words are refused."""
    assert version_key("0.10.2") > version_key("0.8.5")
    assert version_key("b8123") > version_key("b4000")
    assert version_key("1.1.0rc2.post2") == version_key("1.1")
    with pytest.raises(InputError, match=r"version: 'latest' is not a version number; known are 0\.2\.1"):
        resolve(version="latest")


def test_overrides_win_and_are_recorded() -> None:
    """A set key holds the user's value and says so; the others cite version and GPU."""
    engine = resolve(max_num_seqs=64, gpu_memory_utilization=0.8, frontend_latency="0 s", max_model_len=4096)

    assert (engine.max_num_seqs, engine.gpu_memory_utilization, engine.max_model_len) == (64, 0.8, 4096)
    assert engine.frontend_latency == 0.0
    for key in ("max_num_seqs", "gpu_memory_utilization", "frontend_latency", "max_model_len"):
        assert engine.sources[key] == "scenario"
    assert engine.sources["max_num_batched_tokens"] == "vllm 0.12 default on h100-sxm-80gb"


def test_a_key_that_is_none_counts_as_absent() -> None:
    """None resolves like an omitted key."""
    assert resolve(max_num_seqs=None, swap_space=None) == resolve()


def test_defaults_bend_around_what_is_set_and_say_so() -> None:
    """Seats shrink to a smaller budget, the budget grows to more seats, a context beyond the model's is said."""
    small, large = resolve(max_num_batched_tokens=512), resolve(max_num_seqs=10000)

    assert small.max_num_seqs == small.max_chunk_tokens == 512
    assert small.sources["max_num_seqs"].endswith("capped at max_num_batched_tokens")
    assert large.max_num_batched_tokens == 10000
    assert large.sources["max_num_batched_tokens"].endswith("raised to max_num_seqs")
    assert resolve(max_model_len=100000).max_model_len == 100000
    assert resolve(max_model_len=100000).sources["max_model_len"] == "scenario, beyond the model's 8192"


def test_admission_follows_a_kv_allocation_that_reserves() -> None:
    """SGLang and TensorRT-LLM with contiguous KV admit on demand: the allocation reserves by itself."""
    assert resolve("sglang", None, kv_allocation="static").admission == "on_demand"
    assert resolve("tensorrt-llm", None, kv_allocation="oracle").admission == "on_demand"


def test_static_batching_takes_its_size_from_the_seats_or_the_other_way_round() -> None:
    """Any engine can be run in static batches; one number is enough."""
    assert resolve(max_num_seqs=16, **STATIC).static_batch_size == 16
    assert resolve(static_batch_size=16, **STATIC).max_num_seqs == 16
    assert resolve("transformers", None, static_batch_size=32, static_max_wait="0.5 s").max_num_seqs == 32
    assert resolve("transformers", None, max_num_seqs=32).static_batch_size == 32


def test_asynchronous_scheduling_can_be_switched_where_it_exists() -> None:
    """vLLM 0.12 has it off by default; switched on it hides host time, switched off it hides none."""
    assert resolve(async_scheduling=True).host_overlap > 0.5
    assert resolve(version="0.33", async_scheduling=False).host_overlap == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"max_num_seqs": 512, "max_num_batched_tokens": 256},
            r"max_num_batched_tokens: 256 must be at least",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048},
            r"2048 must be at least max_model_len \(8192\) while chunked prefill is off",
        ),
        (
            {"version": "0.6.6", "max_num_batched_tokens": 2048},
            r"max_num_batched_tokens: 2048 must be at least max_model_len",
        ),
        ({"static_batch_size": 8}, r"static_batch_size: 8 needs batching static, not continuous"),
        ({"static_max_wait": "0.5 s"}, r"static_max_wait: 0.5 needs batching static, not continuous"),
        ({"static_batch_size": 8, "max_num_seqs": 4, **STATIC}, r"static_batch_size: 8 must be at most"),
        (
            {"static_batch_size": 8, "max_num_batched_tokens": 4, **STATIC},
            r"max_num_batched_tokens: 4 must be at least static_batch_size",
        ),
        (
            {"admission": "reserve", "kv_allocation": "static"},
            r"admission: 'reserve' needs kv_allocation paged",
        ),
        (
            {"admission": "estimate", "kv_allocation": "pow2"},
            r"admission: 'estimate' needs kv_allocation paged",
        ),
        ({"name": "orca", "version": None, "admission": "reserve"}, r"not this engine's static"),
        ({"scheduling_policy": "priority", **STATIC}, r"scheduling_policy: 'priority' needs continuous batching"),
        (
            {"scheduling_policy": "priority", "priority_preemption": True, "admission": "reserve"},
            r"priority_preemption: True needs admission on_demand",
        ),
        ({"enable_prefix_caching": True, **STATIC}, r"enable_prefix_caching: True needs continuous batching"),
        (
            {"enable_prefix_caching": True, "kv_allocation": "pow2"},
            r"enable_prefix_caching: True .* not kv_allocation pow2",
        ),
        ({"preemption_mode": "swap", "swap_space": "0 B"}, r"swap_space: '0 B' leaves nothing to swap to"),
        (
            {"preemption_mode": "swap", "admission": "reserve"},
            r"preemption_mode: 'swap' needs .* not reserve and paged",
        ),
        ({"preemption_mode": "swap", **STATIC}, r"preemption_mode: 'swap' needs .* not static batching"),
        (
            {"preemption_mode": "swap", "enable_prefix_caching": True},
            r"enable_prefix_caching: True is not simulated with preemption_mode swap",
        ),
        (
            {"version": "0.8.5", "async_scheduling": True},
            r"async_scheduling: True is not possible: version 0.8.5",
        ),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Each error names the key below deployment.engine, the value, the rule and the remedy."""
    with pytest.raises(InputError, match=r"^deployment\.engine\..*" + message):
        resolve(**arguments)


def test_tensorrt_llm_overlaps_its_schedule_where_it_has_a_pytorch_backend() -> None:
    """An option before 1.0, of 0.17 on; engines before that have none."""
    overlapped = resolve("tensorrt-llm", "0.21", async_scheduling=True)

    assert (overlapped.async_scheduling, overlapped.host_overlap) == (True, 0.9)
    assert resolve("tensorrt-llm", "0.21").host_overlap == 0.0
    with pytest.raises(InputError, match=r"async_scheduling: True is not possible: version 0.14"):
        resolve("tensorrt-llm", "0.14", async_scheduling=True)


def test_settings_at_their_bounds_are_accepted() -> None:
    """The values next to the refused ones pass."""
    engine = resolve(
        max_num_seqs=256,
        max_num_batched_tokens=256,
        gpu_memory_utilization=1,
        swap_space="0 B",
        scheduling_policy="fcfs",
        preemption_mode="recompute",
        admission="reserve",
        kv_allocation="paged",
    )

    assert engine.admission == "reserve"
    assert resolve(enable_chunked_prefill=False, max_num_batched_tokens=8192).max_num_batched_tokens == 8192


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("gpu", sorted(GPUS))
@pytest.mark.parametrize("model_max_len", [2048, 131072])
def test_every_version_of_every_engine_resolves(name: str, gpu: str, model_max_len: int) -> None:
    """On every GPU the resolved numbers are sane and every knob says where it came from."""
    for known in load_engine(name).versions:
        engine = resolve(name, known.version, gpu, model_max_len)

        assert 0 < engine.gpu_memory_utilization <= 1
        assert 1 <= engine.static_batch_size <= engine.max_num_seqs <= engine.max_num_batched_tokens
        assert engine.max_chunk_tokens <= engine.max_num_batched_tokens
        assert 1 <= engine.max_model_len <= model_max_len
        assert 0 < engine.frontend_latency < 0.1
        assert engine.host_seconds_per_step > 0
        assert engine.admission == "on_demand" or engine.kv_allocation == "paged"
        assert engine.cuda_graph_sizes == tuple(sorted(set(engine.cuda_graph_sizes)))
        assert "none" in engine.supported_quantizations
        assert vars(engine).keys() == ResolvedEngine.model_fields.keys()
        unsourced = vars(engine).keys() - engine.sources.keys()
        assert unsourced == {"name", "requested_version", "sources"}


def test_the_catalogue_holds_the_promised_engines() -> None:
    """Nine engines are bundled."""
    assert set(ENGINES) <= set(catalog.names("engine"))


@pytest.mark.parametrize("name", ENGINES)
def test_every_block_of_numbers_has_a_source(name: str) -> None:
    """Each block of the file, also one that states a change, says where its numbers come from."""
    document = read_mapping(catalog.find("engine", name))
    blocks = [*document["defaults"].values()]
    blocks += [value for version in document["versions"] for value in version.values() if isinstance(value, dict)]

    assert blocks
    assert all(block["source"].strip() for block in blocks)


def _write(folder: Path, old: str, new: str) -> Path:
    text = catalog.find("engine", "orca").read_text()
    assert old in text
    path = folder / "orca.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: orca", "name: orka", r"name: 'orka' must be the name of the file"),
        ("    block_size: 16", "    block_sise: 16", r"limits\.block_sise: is not a known key; did you mean"),
        ("    frontend_latency: 2 ms", "    frontend_latency: 2", r"host\.frontend_latency: 2 needs a unit"),
        ("    frontend_latency: 2 ms", "    frontend_latency: 0 ms", r"must be greater than 0"),
        ("    rule: free_after_load", "    rule: total\n    static_reserve: null\n    x: 1", r"memory\.x"),
        ("    gpu_memory_utilization: 0.95\n", "", r"needs either gpu_memory_utilization or static_reserve"),
        (
            '  - version: "2022"',
            '  - version: "2022"\n    limits: {block_size: 8}',
            r"limits\.source: is missing",
        ),
        ('  - version: "2022"', '  - version: "2022"\n  - version: "2021"', r"ascending order"),
        (
            '  - version: "2022"',
            '  - version: "2022"\n  - version: "2023"\n    kernels: {own_experts: {fp8: [mixtral]}, source: x}\n'
            '  - version: "2024"\n    kernels: {own_experts: {}, source: x}',
            r"versions\.2024\.kernels\.own_experts: is empty, .* null takes",
        ),
        (
            '  - version: "2022"',
            '  - version: "2022"\n  - version: "2023"\n    kernels: {own_expert: null, source: x}',
            r"versions\.2023\.kernels\.own_expert: takes away a key that no earlier version has",
        ),
        ("defaults:", "standards:", r"defaults: must be a mapping"),
    ],
)
def test_a_broken_profile_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """The error names the file, the key and the rule."""
    with pytest.raises(ProfileError, match=message) as caught:
        load_engine(str(_write(tmp_path, old, new)))

    assert "orca.yaml" in str(caught.value)


def test_a_profile_of_the_user_is_read_by_path(tmp_path: Path) -> None:
    """A file outside the catalogue works in the same place."""
    path = _write(tmp_path, "block_size: 16", "block_size: 32")

    assert load_engine(str(path)).versions[0].limits.block_size == 32


def test_a_version_changes_one_key_of_a_mapping_and_keeps_the_others(tmp_path: Path) -> None:
    """Two versions each state their own key of one mapping; null takes a key away, or the whole mapping."""
    pools = [
        "state_pool: {padding_limit: 1.5, exports: [mamba2]}",
        "state_pool: {holds_seats: true}",
        "state_pool: {exports: null, ends_chunks: true}",
        "state_pool: null",
    ]
    changes = [f'  - version: "{2022 + n}"\n    runtime_memory: {{{pool}, source: x}}' for n, pool in enumerate(pools)]
    path = _write(tmp_path, '  - version: "2022"', "\n".join(changes))

    first, second, third, fourth = (known.runtime_memory.state_pool for known in load_engine(str(path)).versions)

    assert first == StatePool(padding_limit=1.5, exports=("mamba2",))
    assert second == StatePool(padding_limit=1.5, exports=("mamba2",), holds_seats=True)
    assert third == StatePool(padding_limit=1.5, holds_seats=True, ends_chunks=True)
    assert fourth is None


@pytest.mark.parametrize(
    ("version", "milliseconds"), [("0.25", 0.27), ("0.26", 0.43), ("0.28.0", 0.43), ("0.33", 0.43)]
)
def test_since_0_26_vllm_takes_longer_to_launch_a_layer(version: str, milliseconds: float) -> None:
    """Servers of 0.26, 0.28 and 0.29 with enforce_eager say so; those of 0.8 to 0.11 do not."""
    assert resolve("vllm", version, enforce_eager=True).eager_seconds_per_layer == pytest.approx(1e-3 * milliseconds)


def test_enforce_eager_captures_nothing_and_launches_every_layer() -> None:
    """No graphs; layers that V1 compiles launch one kernel after another."""
    usual, eager = resolve("vllm", "0.12"), resolve("vllm", "0.12", enforce_eager=True)

    assert not usual.enforce_eager
    assert usual.cuda_graph_sizes
    assert (eager.cuda_graph_sizes, eager.cuda_graph_max_prompt_tokens, eager.cuda_graph_bytes) == ((), 0, 0.0)
    assert eager.eager_seconds_per_layer == pytest.approx(0.27e-3)
    assert eager.sources["enforce_eager"] == "scenario"


def test_without_padding_other_batches_have_no_graph() -> None:
    """TensorRT-LLM 1.0's enable_padding is off unless told: 1 to 32, 64, 128; its tuned files go further."""
    exact = resolve("tensorrt-llm", "1.2", cuda_graph_padding=False)
    wide = resolve("tensorrt-llm", "1.2", cuda_graph_padding=False, max_cudagraph_capture_size=300)
    few = resolve("tensorrt-llm", "1.2", cuda_graph_padding=False, max_num_seqs=48)

    assert exact.cuda_graph_sizes == (*range(1, 33), 64, 128)
    assert wide.cuda_graph_sizes[-4:] == (64, 128, 256, 300)
    assert few.cuda_graph_sizes == (*range(1, 33), 48)
    assert resolve("sglang", "0.5.9", cuda_graph_padding=False).cuda_graph_sizes == tuple(range(1, 257))
    assert exact.eager_seconds_per_layer == pytest.approx(0.27e-3)
    padded = resolve("tensorrt-llm", "1.2")
    assert exact.eager_prompt_seconds_per_layer == padded.eager_prompt_seconds_per_layer  # prompts run as with padding


def test_linear_attention_leaves_the_gpu_idle_for_less_where_prompts_run_on_graphs() -> None:
    """SGLang issue 35851: 0.59 ms a layer of gated delta rules; without graphs of prompts, or for Mamba, 1.7."""
    kinds = {"plain": (False, True), "captured": (True, True), "mamba": (True, False)}
    gaps = {
        name: resolve(
            "sglang", "0.5.16", traits=ServerTraits(captures_prompts=is_captured, has_delta_rule=has_delta_rule)
        ).eager_gap_seconds_per_linear_layer
        for name, (is_captured, has_delta_rule) in kinds.items()
    }
    plain = gaps["plain"]

    assert gaps == {"plain": pytest.approx(1.7e-3), "captured": pytest.approx(0.59e-3), "mamba": plain}
    assert resolve("sglang", "0.5.9").eager_gap_seconds_per_linear_layer == plain
    assert resolve("vllm", "0.28").eager_gap_seconds_per_linear_layer == 0.0


def test_prompts_are_captured_in_pieces_where_the_user_says_so() -> None:
    """TensorRT-LLM's documented list, in steps of 256 up to the user's largest, none beyond a step's budget."""
    few, many, all_tokens = (
        resolve("tensorrt-llm", "1.2", piecewise_cuda_graph_max_tokens=size) for size in (300, 5000, 9000)
    )

    assert few.piecewise_cuda_graph_sizes == (1, 2, 4, 8, 16, 32, 64, 128, 256, 300)
    assert many.piecewise_cuda_graph_sizes[-3:] == (4608, 4864, 5000)
    assert all_tokens.piecewise_cuda_graph_sizes[-2:] == (7936, 8192)
    assert resolve("tensorrt-llm", "1.2").piecewise_cuda_graph_sizes == ()
    with pytest.raises(ScenarioError, match="needs CUDA graphs"):
        resolve("tensorrt-llm", "1.2", piecewise_cuda_graph_max_tokens=300, enforce_eager=True)


@pytest.mark.parametrize(
    ("engine", "more", "message"),
    [
        ("vllm", {}, "this engine always pads"),
        ("tensorrt-llm", {"enforce_eager": True}, "no step runs on a CUDA graph"),
    ],
)
def test_what_has_no_graphs_to_pad_is_refused(engine: str, more: dict[str, Any], message: str) -> None:
    """An option without effect."""
    with pytest.raises(ScenarioError, match=message):
        resolve(engine, None, cuda_graph_padding=False, **more)


def test_the_largest_cuda_graph_is_the_users() -> None:
    """In place of twice the seats and 512; sizes go on as far apart as the engine's last ones."""
    usual, wide = (resolve("vllm", "0.18", max_num_seqs=8, max_cudagraph_capture_size=size) for size in (None, 2048))

    assert (usual.cuda_graph_max_batch, usual.max_cudagraph_capture_size) == (16, 16)
    assert (wide.cuda_graph_max_batch, wide.cuda_graph_max_prompt_tokens) == (2048, 2048)
    assert wide.cuda_graph_sizes[-3:] == (2016, 2032, 2048)
    assert resolve("vllm", "0.18", max_cudagraph_capture_size=100).cuda_graph_sizes[-2:] == (96, 100)


def test_tensorrt_llm_captures_the_batch_limit_and_steps_of_64_from_1_3_on() -> None:
    """Its list with padding: multiples of 8 up to 128, then powers of two, in 1.3 every 64th; the limit is the last."""
    old, new, odd = (
        resolve("tensorrt-llm", version, max_num_seqs=seats).cuda_graph_sizes
        for version, seats in (("1.2", 2048), ("1.3", 2048), ("1.2", 300))
    )

    assert old[:5] == new[:5] == (1, 2, 4, 8, 16)
    assert old[-5:] == (128, 256, 512, 1024, 2048)
    assert new[-3:] == (1920, 1984, 2048)
    assert odd[-3:] == (128, 256, 300)


@pytest.mark.parametrize(("version", "largest"), [("0.10.2", 1024), ("0.11", 992), ("0.12", 1024), ("0.18", 1024)])
def test_gpt_oss_has_larger_graphs_of_its_own(version: str, largest: int) -> None:
    """vLLM's model_executor/models/config.py raises them, whatever the seats; a user's own word still holds."""
    own = resolve("vllm", version, max_num_seqs=64, model_family="gpt_oss")
    told = resolve("vllm", version, model_family="gpt_oss", max_cudagraph_capture_size=100)

    assert own.cuda_graph_max_batch == largest
    assert resolve("vllm", version, max_num_seqs=64).cuda_graph_max_batch == 128
    assert told.cuda_graph_max_batch == 100


@pytest.mark.parametrize(
    ("version", "overrides", "why"),
    [("0.18", {"enforce_eager": True}, "enforce_eager is on"), ("0.2.1", {}, "captures none")],
)
def test_no_largest_cuda_graph_without_any(version: str, overrides: dict[str, Any], why: str) -> None:
    """Nothing is accepted that does nothing."""
    with pytest.raises(ScenarioError) as caught:
        resolve("vllm", version, max_cudagraph_capture_size=64, **overrides)

    assert why in str(caught.value)


@pytest.mark.parametrize("version", ["0.3", "0.4.3", "0.5.9"])
def test_sglang_without_graphs_launches_every_layer_from_python(version: str) -> None:
    """`--disable-cuda-graph`: as long a layer as under vLLM."""
    usual, eager = (resolve("sglang", version, enforce_eager=is_eager) for is_eager in (False, True))

    assert (usual.eager_seconds_per_layer, eager.cuda_graph_sizes) == (0.0, ())
    assert eager.eager_seconds_per_layer == pytest.approx(0.27e-3)


def test_engines_without_a_launch_time_of_their_own_lose_their_graphs_alone() -> None:
    """LMDeploy states none."""
    usual, eager = (resolve("lmdeploy", None, enforce_eager=is_eager) for is_eager in (False, True))

    assert eager.cuda_graph_sizes == ()
    assert eager.eager_seconds_per_layer == usual.eager_seconds_per_layer


@pytest.mark.parametrize(("version", "seconds"), [("0.14", 0.0), ("0.17", 0.27e-3), ("1.2", 0.27e-3)])
def test_tensorrt_llm_without_graphs_launches_every_layer_from_python(version: str, seconds: float) -> None:
    """From 0.17 on, which brought the PyTorch backend; an engine that is built ahead of time launches itself."""
    usual, eager = (resolve("tensorrt-llm", version, enforce_eager=is_eager) for is_eager in (False, True))

    assert usual.eager_seconds_per_layer == 0.0
    assert eager.eager_seconds_per_layer == pytest.approx(seconds)


@pytest.mark.parametrize(
    "option",
    [{"enforce_eager": True}, {"async_scheduling": True}, {"cuda_graph_padding": False}, {"cuda_graph_padding": True}],
    ids=str,
)
def test_tensorrt_llm_s_pytorch_backend_beside_engines_has_the_host_of_1_0(option: dict[str, bool]) -> None:
    """Its API server and what it launches; an option that engines have not says that it runs."""
    compiled, interpreted, later = (
        resolve("tensorrt-llm", version, **asked)
        for version, asked in (("0.20", {}), ("0.20", option), ("1.0", {"cuda_graph_padding": False}))
    )

    names = ("frontend_seconds_per_request", "eager_gap_seconds_per_layer")
    assert [getattr(compiled, name) for name in names] == [0.0, 0.0]
    assert [getattr(interpreted, name) for name in names] == [getattr(later, name) for name in names]
    assert interpreted.eager_prompt_seconds_per_layer == later.eager_prompt_seconds_per_layer == pytest.approx(0.27e-3)


@pytest.mark.parametrize(
    ("option", "largest", "seconds"),
    [
        ({}, 0, 0.0),  # an engine, which needs none
        ({"enforce_eager": True}, 0, 0.27e-3),
        ({"async_scheduling": True}, 0, 0.27e-3),  # nothing tells it to use graphs, which is its default
        ({"cuda_graph_padding": True}, 512, 0.0),
        ({"async_scheduling": True, "enforce_eager": False}, 512, 0.0),
        ({"async_scheduling": True, "cuda_graph_padding": True}, 512, 0.0),
        ({"async_scheduling": True, "max_cudagraph_capture_size": 64}, 64, 0.0),
        ({"async_scheduling": True, "cuda_graph_padding": False}, 128, 0.27e-3),
    ],
    ids=str,
)
def test_tensorrt_llm_s_pytorch_backend_beside_engines_uses_graphs_where_told(
    option: dict[str, Any], largest: int, seconds: float
) -> None:
    """`use_cuda_graph` is off before 1.0; padded graphs are those of 1.0, and what runs without them is launched."""
    found = resolve("tensorrt-llm", "0.21", max_num_seqs=512, **option)

    assert max(found.cuda_graph_sizes, default=0) == largest
    assert found.eager_seconds_per_layer == pytest.approx(seconds)
    if found.cuda_graph_padding and largest:
        assert found.cuda_graph_sizes == resolve("tensorrt-llm", "1.0", max_num_seqs=512, **option).cuda_graph_sizes


def test_a_backend_s_own_times_are_fields_of_the_host() -> None:
    """A misspelt name would change nothing, in silence."""
    known = {"seconds_per_step": "1 ms", "seconds_per_request": "1 us", "overlap": 0, "frontend_latency": "1 ms"}

    with pytest.raises(ValueError, match="no times of the host: seconds_per_layer"):
        Host.model_validate({**known, "source": "-", "interpreted": {"seconds_per_layer": "1 ms"}})


def test_vllm_schedules_ahead_from_0_14() -> None:
    """Until then asked for only."""
    assert [resolve("vllm", version).async_scheduling for version in ("0.13", "0.14")] == [False, True]


@pytest.mark.parametrize(
    ("version", "drafters"),
    [("0.13", set()), ("0.14", {"eagle", "mtp"}), ("0.20", {"eagle", "mtp"}), ("0.33", set(DRAFTERS))],
)
def test_vllm_schedules_ahead_beside_the_drafters_that_its_version_names(version: str, drafters: set[str]) -> None:
    """EAGLE and MTP from 0.14 on, all of them in 0.33; nothing is hidden behind the GPU beside the others."""
    engines = {drafter: resolve("vllm", version, drafter=drafter) for drafter in DRAFTERS}

    assert {drafter for drafter, engine in engines.items() if engine.async_scheduling} == drafters
    assert all((engine.host_overlap > 0.0) is engine.async_scheduling for engine in engines.values())
    assert all(engine.releases_late is engine.async_scheduling for engine in engines.values())


def test_vllm_0_14_does_not_schedule_ahead_with_pipeline_stages() -> None:
    """Later ones do, and the source of the default says why it is off."""
    old, new = (resolve("vllm", version, pipeline_parallel_size=2) for version in ("0.14", "0.15"))

    assert (old.async_scheduling, new.async_scheduling) == (False, True)
    assert old.sources["async_scheduling"].endswith("off with pipeline stages")


def test_asynchronous_scheduling_that_was_asked_for_stays_on_beside_any_drafter() -> None:
    """The rule moves a default, not a choice."""
    engine = resolve("vllm", "0.20", drafter="draft_model", async_scheduling=True)

    assert engine.async_scheduling
    assert engine.sources["async_scheduling"] == "scenario"


def test_a_slower_host_takes_longer_for_all_that_the_cpu_does() -> None:
    """As the scenario says, or else as the GPU's usual node; the sorting of logits is the GPU's."""
    usual, slow = (resolve("vllm", "0.7.3", host_slowdown=factor) for factor in (None, 2.0))
    keys = ("host_seconds_per_step", "host_seconds_per_request", "eager_seconds_per_layer", "frontend_latency")

    assert all(getattr(slow, key) == pytest.approx(2 * getattr(usual, key)) for key in keys)
    assert (usual.sources["host_slowdown"], slow.sources["host_slowdown"]) != ("scenario", "vllm 0.7.3")
    assert slow.sources["host_slowdown"] == "scenario"
    greedy, nucleus = (
        resolve("vllm", "0.12", sampling=name, host_slowdown=2.0).host_seconds_per_request
        for name in ("greedy", "nucleus")
    )
    assert nucleus - greedy == pytest.approx(50e-6)


def test_steps_with_prompts_launch_longer_in_vllm_of_2023() -> None:
    """Until then attention of prompts is launched from more Python; later versions take what they take for a decode."""
    old, new = (resolve("vllm", version) for version in ("0.2.1", "0.6.0"))

    assert old.eager_prompt_seconds_per_layer is not None
    assert old.eager_prompt_seconds_per_layer > old.eager_seconds_per_layer
    assert new.eager_prompt_seconds_per_layer is None


def test_sampling_by_top_p_sorts_the_logits_of_v1() -> None:
    """50 us a request and step, until a kernel of its own does it; greedy clients never pay."""
    versions = ("0.7.3", "0.12", "0.17")
    greedy, nucleus = (
        [resolve("vllm", version, sampling=sampling).host_seconds_per_request for version in versions]
        for sampling in ("greedy", "nucleus")
    )

    assert greedy == [resolve("vllm", version).host_seconds_per_request for version in versions]
    assert [after - before for before, after in zip(greedy, nucleus, strict=True)] == pytest.approx([0, 50e-6, 0])


def test_ranks_that_have_to_agree_lengthen_every_step() -> None:
    """TensorRT-LLM's C++ runtime; its PyTorch backend no more."""
    single, parallel = (
        resolve("tensorrt-llm", "0.14", tensor_parallel_size=size).host_seconds_per_step for size in (1, 2)
    )

    assert parallel == pytest.approx(single + 3e-3)
    assert resolve("tensorrt-llm", "1.0", tensor_parallel_size=2).host_seconds_per_step == pytest.approx(0.8e-3)


@pytest.mark.parametrize(
    ("name", "version", "since"),
    [
        ("vllm", "0.8.5", None),
        ("vllm", "0.10.2", "0.9.2"),
        ("vllm", "0.19", "0.12"),
        ("vllm", "v0.24.0", "0.22"),
        ("vllm", None, "0.29"),
        ("sglang", "0.5.7", None),
        ("sglang", "0.5.14", "0.5.12"),
        ("tensorrt-llm", None, None),
    ],
)
def test_windows_follow_the_version_asked_for(name: str, version: str | None, since: str | None) -> None:
    """The rules of the nearest older entry hold, whatever versions the profile knows besides; none before the first."""
    rules = load_engine(name).windows_of(version)

    assert (rules and rules.since) == since


def test_entries_of_windows_are_in_ascending_order() -> None:
    """The last that fits is the newest."""
    for name in ("vllm", "sglang"):
        keys = [version_key(entry.since) for entry in load_engine(name).windowed_kv]

        assert keys == sorted(set(keys))


def test_graphs_for_decodes_alone_leave_prompts_to_single_launches() -> None:
    """FULL_DECODE_ONLY keeps the decode graphs; NONE captures nothing."""
    usual, decodes, none = (resolve("vllm", "0.12", cudagraph_mode=mode) for mode in (None, "FULL_DECODE_ONLY", "NONE"))

    assert decodes.cuda_graph_sizes == usual.cuda_graph_sizes
    assert (usual.cuda_graph_max_prompt_tokens > 0, decodes.cuda_graph_max_prompt_tokens) == (True, 0)
    assert decodes.eager_gap_seconds_per_layer == pytest.approx(0.5e-3)
    assert none.cuda_graph_sizes == ()
    with pytest.raises(ScenarioError, match="enforce_eager"):
        resolve("vllm", "0.12", cudagraph_mode="FULL", enforce_eager=True)
    with pytest.raises(InputError, match="this engine can only keep prompts off its graphs; choose FULL_DECODE_ONLY"):
        resolve("sglang", "0.5.12", cudagraph_mode="FULL")


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_a_worker_that_only_prefills_may_not_reach_the_rate_of_its_kernels(name: str) -> None:
    """As DeepSeek's was measured with queues that never empty; its budget stays, and so do other models."""
    worker, server = (
        resolve(name, model_family="deepseek_v3", only_prefills=only_prefills) for only_prefills in (True, False)
    )
    other = resolve(name, model_family="llama", only_prefills=True)

    assert worker.compute_efficiency == pytest.approx(0.8 * server.compute_efficiency)
    assert worker.max_num_batched_tokens == server.max_num_batched_tokens
    assert other.compute_efficiency == server.compute_efficiency


@pytest.mark.parametrize(
    ("name", "asked", "family", "has_scales", "share"),
    [
        ("tensorrt-llm", {}, "deepseek_v3", True, 1.0),
        ("sglang", {}, "deepseek_v3", True, 0.8),
        ("sglang", {"fp8_gemm_backend": "flashinfer_trtllm"}, "deepseek_v3", True, 0.656),
        ("sglang", {"fp8_gemm_backend": "flashinfer_trtllm"}, "deepseek_v3", False, 0.8),
        ("sglang", {"fp8_gemm_backend": "flashinfer_trtllm"}, "qwen3", True, 1.0),
    ],
)
def test_prefill_workers_of_tensorrt_llm_reach_it_on_blackwell(
    name: str, asked: dict[str, Any], family: str, has_scales: bool, share: float
) -> None:
    """Its pools on B200 and GB200 take in as many prompts as tables say; SGLang's do not, FlashInfer's FP8 least."""
    worker, server = (
        resolve_engine(
            load_engine(name),
            version=None,
            gpu_memory_bytes=180e9,
            gpu_name="b200-sxm-180gb",
            model_max_len=8192,
            options=EngineOptions(**asked),
            compute_capability="10.0",
            model_family=family,
            only_prefills=only_prefills,
            has_block_scales=has_scales,
        )
        for only_prefills in (True, False)
    )

    assert worker.compute_efficiency == pytest.approx(share * server.compute_efficiency)


def test_sglang_admits_and_strikes_by_release() -> None:
    """What its batches do, in the releases whose wheels were read."""
    rules = [
        (
            each.reserves_page and each.keeps_ratio,
            each.evicts_missing,
            each.expects_max_tokens and each.skips_ended,
            each.strikes_at_once,
        )
        for each in (resolve("sglang", version) for version in ("0.5.10", "0.5.11", "0.5.17", "0.5.22", "0.5.23"))
    ]

    assert [rule.count(True) for rule in rules] == [0, 1, 2, 3, 4]
    assert [rule.index(False) for rule in rules[:-1]] == [0, 1, 2, 3]
    assert not resolve("sglang", "0.5.16").evicts_missing
    assert [resolve("sglang", version).keeps_bare_leaves for version in ("0.5.15", "0.5.16")] == [False, True]
    assert not resolve("sglang", "0.5.21").skips_ended


def test_sglang_overlaps_results_from_0_4_on_unless_it_is_told_not_to() -> None:
    """Its default loop; ``async_scheduling: false`` is ``--disable-overlap-schedule``."""
    normal = resolve("sglang", "0.5.9", async_scheduling=False)

    assert [resolve("sglang", version).overlaps_results for version in ("0.3", "0.4", "0.5.9")] == [False, True, True]
    assert not normal.overlaps_results


@pytest.mark.parametrize(("version", "budget"), [("0.6.0", 512), ("0.6.4", 512), ("0.6.5", 2048), ("0.7.3", 2048)])
def test_chunks_of_vllm_v0_grow_with_0_6_5(version: str, budget: int) -> None:
    """Config of each release: 512 tokens a step until 0.6.4.post1, then 2,048."""
    assert resolve(version=version, enable_chunked_prefill=True).max_num_batched_tokens == budget


@pytest.mark.parametrize(("version", "largest"), [("0.9.2", 512), ("0.10.0", 128), ("0.10.2", 128)])
def test_cuda_graphs_of_vllm_follow_the_seats_from_0_10_on(version: str, largest: int) -> None:
    """At most twice the seats are captured; 0.9.2 captures up to 512 whatever they are."""
    assert resolve(version=version, max_num_seqs=64).cuda_graph_max_batch == largest


@pytest.mark.parametrize(
    ("version", "gpu", "budget", "share", "largest"),
    [
        ("0.4.5", "h200-sxm-141gb", 8192, 0.88, 160),
        ("0.4.5", "rtx-4090-24gb", 2048, 0.88, 8),
        ("0.4.6", "h200-sxm-141gb", 8192, 0.907, 256),
        ("0.4.7", "h200-sxm-141gb", 8192, 0.872, 256),
        ("0.4.8", "h100-sxm-80gb", 8192, 0.874, 160),
        ("0.4.10", "h200-sxm-141gb", 8192, 0.911, 256),
    ],
)
def test_sglang_0_4_follows_its_releases(version: str, gpu: str, budget: int, share: float, largest: int) -> None:
    """Chunks, static share and largest CUDA graph, as each release sets them in its server_args.py."""
    engine = resolve("sglang", version, gpu=gpu)

    assert (engine.max_num_batched_tokens, engine.cuda_graph_max_batch) == (budget, largest)
    assert engine.gpu_memory_utilization == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(
    ("name", "version", "drafter", "caches", "is_async"),
    [
        ("vllm", "0.8.5", None, False, False),
        ("vllm", "0.27", None, False, True),
        ("vllm", "0.28", None, True, True),
        ("sglang", "0.5.3", None, False, True),
        ("sglang", "0.5.5", None, True, True),
        ("sglang", "0.5.9", None, True, False),
        ("sglang", "0.5.9", "mtp", False, False),
        ("sglang", "0.5.14", None, True, True),
    ],
)
def test_prefixes_of_states_are_cached_as_the_version_does(
    name: str, version: str, drafter: str | None, caches: bool, is_async: bool
) -> None:
    """Of Mamba and linear attention; SGLang gave up its overlapped loop for it, or it for drafts."""
    found = resolve(name, version, has_linear_layers=True, drafter=drafter)

    assert (found.enable_prefix_caching, found.async_scheduling) == (caches, is_async)
    assert resolve(name, version).enable_prefix_caching
    assert resolve(name, version, has_linear_layers=True, enable_prefix_caching=True).enable_prefix_caching


@pytest.mark.parametrize(
    ("version", "drafter", "is_async"),
    [("0.27", "draft_model", False), ("0.28", "draft_model", True), ("0.32", "ngram", False), ("0.33", "ngram", True)],
)
def test_vllm_overlaps_more_drafters_with_time(version: str, drafter: str, is_async: bool) -> None:
    """A model that drafts from 0.28 on, n-grams with the second runner of 0.33."""
    assert resolve(version=version, drafter=drafter).async_scheduling is is_async


def test_a_compiled_engine_is_built_for_whole_prompts_of_every_seat() -> None:
    """TensorRT-LLM up to 0.9, where a batch size is set and no budget: 1,024 tokens of input a seat."""
    built = resolve("tensorrt-llm", "0.9", max_num_seqs=40, max_model_len=2048)

    assert built.max_num_batched_tokens == 40 * 1024
    assert "max_num_seqs x 1,024" in built.sources["max_num_batched_tokens"]
    assert resolve("tensorrt-llm", "0.10", max_num_seqs=40, max_model_len=2048).max_num_batched_tokens == 8192
    assert resolve("tensorrt-llm", "0.9", max_num_seqs=40, max_num_batched_tokens=4096).max_num_batched_tokens == 4096


def test_compiled_engines_hold_two_hidden_vectors() -> None:
    """As a log of 0.8 shows; the PyTorch backend, the default from 1.0 on, three."""
    assert resolve("tensorrt-llm", "0.8").activation_hidden_share == pytest.approx(2 / 3, abs=0.001)
    assert resolve("tensorrt-llm", "1.0").activation_hidden_share == 1.0


def test_tensorrt_llm_frees_seats_late_with_its_overlap_scheduler_and_counts_found_tokens_before_1_3() -> None:
    """What the comparison with its own scheduler has brought, by version (tests/real_engines/README.md)."""
    versions = ("0.10", "0.14", "1.0", "1.2", "1.3")
    engines = [resolve("tensorrt-llm", version) for version in versions]

    assert [engine.releases_late for engine in engines] == [False, False, True, True, True]
    assert [engine.ignores_found for engine in engines] == [False, True, True, True, False]
    assert [engine.evicts_by_block for engine in engines] == [False, True, True, True, True]
    assert all(engine.aligns_chunks and engine.allocates_prompt for engine in engines)


def test_tensorrt_llm_suspends_requests_from_1_4_on_which_only_those_get_who_name_it() -> None:
    """Its second KV cache manager runs MAX_UTILIZATION; a scenario without a version stays with 1.3."""
    older, newer, unnamed = (resolve("tensorrt-llm", version) for version in ("1.3", "1.4.0rc1", None))

    assert (older.suspends, older.admission) == (False, "reserve")
    assert (newer.suspends, newer.admission, newer.max_used_share) == (True, "on_demand", 0.95)
    assert (newer.version, unnamed.version) == ("1.4", "1.3")
    assert load_engine("tensorrt-llm").newest.version == "1.3"
    assert load_engine("tensorrt-llm").versions[-1].version == "1.4"


def test_a_version_of_release_candidates_is_no_default() -> None:
    """Unless there is no other."""
    engine = load_engine("tensorrt-llm")
    candidates = engine.model_copy(update={"versions": engine.versions[-1:]})

    assert engine.nearest_version(None).version == "1.3"
    assert candidates.nearest_version(None).version == "1.4"


def test_ranks_of_one_stage_are_scheduled_ahead_and_stages_are_not_yet() -> None:
    """vLLM 0.14 schedules ahead by default, unless a pipeline has several stages."""
    ahead = [
        resolve(version="0.14", tensor_parallel_size=tensor, pipeline_parallel_size=stages).async_scheduling
        for tensor, stages in ((1, 1), (8, 1), (1, 2), (4, 2))
    ]

    assert ahead == [True, True, False, False]


def test_seats_of_a_server_with_drafts_are_dealt_to_its_groups() -> None:
    """48 under SGLang's drafters, of which each of eight groups has six, and of 64 at least one."""
    seats = [
        resolve("sglang", "0.5.9", drafter="eagle", data_parallel_size=groups).max_num_seqs for groups in (1, 8, 64)
    ]

    assert seats == [48, 6, 1]


def test_long_prompts_have_the_chunks_that_are_set() -> None:
    """``--long-prefill-token-threshold`` bounds a request's part of a step; the step's budget stays."""
    plain, bounded = resolve(), resolve(long_prefill_token_threshold=1024)

    assert plain.max_chunk_tokens == plain.max_num_batched_tokens
    assert (bounded.max_chunk_tokens, bounded.max_num_batched_tokens) == (1024, plain.max_num_batched_tokens)


def test_a_latency_of_the_front_that_is_set_includes_the_tokeniser() -> None:
    """Nothing is added to what was measured in front of a server."""
    usual, given = resolve(), resolve(frontend_latency="5 ms")

    assert usual.tokenization_per_token > 0
    assert (given.frontend_latency, given.tokenization_per_token) == (0.005, 0.0)


def test_verifying_takes_the_host_time_only_where_there_are_drafts() -> None:
    """35 us a token in SGLang's releases that state it."""
    version = next(each.version for each in load_engine("sglang").versions if each.host.seconds_per_verified_token)
    plain, drafted = (
        resolve("sglang", version, drafter=each, host_slowdown=1.0).host_seconds_per_request for each in (None, "eagle")
    )

    assert drafted - plain == pytest.approx(35e-6)


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        ("0.20.0", {"keeps_every_state", "keeps_last_state", "aligns_plainly"}),
        ("0.20.2", {"keeps_every_state", "keeps_last_state", "aligns_plainly", "logs_requests"}),
        ("0.25", {"keeps_every_state", "keeps_last_state", "aligns_plainly", "logs_requests"}),
        ("0.26", {"keeps_every_state", "keeps_last_state", "logs_requests"}),
        ("0.28", {"keeps_every_state", "keeps_last_state", "logs_requests"}),
        ("0.29", {"keeps_last_state", "logs_requests"}),
        ("0.31", {"keeps_last_state", "logs_requests"}),
        ("0.32", {"logs_requests"}),
        ("0.33", {"logs_requests"}),
    ],
)
def test_vllm_keeps_its_rules_of_states_from_release_to_release(version: str, rules: set[str]) -> None:
    """A release that states one of them anew states the others too; chunks end at states from 0.20 on."""
    pool = load_engine("vllm").nearest_version(version).runtime_memory.state_pool

    assert pool is not None
    assert (pool.padding_limit, pool.holds_seats, pool.ends_chunks) == (1.5, True, True)
    asked = ("keeps_every_state", "keeps_last_state", "aligns_plainly", "logs_requests")
    assert {each for each in asked if getattr(pool, each)} == rules


@pytest.mark.parametrize(
    ("family", "version", "seconds"),
    [
        ("kimi_k2", "0.5.9", 300e-6),
        ("kimi_k2", "0.5.10", 300e-6),
        ("kimi_linear", "0.5.10", 300e-6),
        ("kimi_k2", "0.5.11", 50e-6),
        ("kimi_k2", "0.5.23", 50e-6),
        ("deepseek_v3", "0.5.10", 50e-6),
    ],
)
def test_a_tokeniser_of_python_alone_takes_longer_for_a_token(family: str, version: str, seconds: float) -> None:
    """Kimi's under SGLang, until special tokens are looked up once."""
    engine = resolve("sglang", version, model_family=family, host_slowdown=1.0)

    assert engine.api_server_seconds_per_token == pytest.approx(seconds)
