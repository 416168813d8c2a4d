"""InferenceX and NVIDIA's own sweeps: closed-loop clients, TTFT and TPOT against concurrency.

Server settings by family are those of the public InferenceX launch scripts (`recipes`); what a script omits resolves to
the default of the engine's version.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibration.laboratory.pools import MTP_ACCEPTANCE
from calibration.laboratory.protocol import Protocol
from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import (
    engine_name,
    hardware_name,
    model_name,
    quantization_name,
    version_number,
)
from calibration.laboratory.readers.recipes import (
    BALANCE_STEPS,
    DEFAULT_BALANCE_STEPS,
    GPT_OSS_EXCHANGE,
    Recipe,
    drafting_recipe,
    fp4_recipe,
    front_seconds,
    has_pieces,
    is_data_parallel,
    recipe_of,
)
from calibration.laboratory.readers.table import Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import MeasuredPoint, Metric
from simserve.workload.acceptance import expected_tokens

SHORTEST_SHARE = 0.8
"""InferenceX draws lengths uniformly in [0.8 L, L] (random_range_ratio 0.8)."""

INHOUSE_SPREAD = 0.1
"""Spread of the answers' lengths in NVIDIA's own sweeps, which do not state it: with equal lengths all clients would
finish, send and prefill together forever, and wait for all prompts at once, for two to five times the measured TTFT.
0.1 and 0.3 give the same figures."""

RARELY_POLLED_FROM, RARELY_POLLED = 16, 3
"""Clients from which InferenceX's scripts for SGLang on B200 make the scheduler poll for requests a third as often
(`--scheduler-recv-interval` 10 and 30)."""

_VERSION_IN_USE = {
    ("vllm", "2025"): "0.11.0",
    ("tensorrt-llm", "2025"): "1.1.0",
    ("tensorrt-llm", "2026"): "1.2.0",
    ("sglang", "2025"): "0.5.5",
    ("sglang", "2026"): "0.5.9",
}
"""Engine and year of measurement -> release assumed to be in use if a row names none."""

_FIRST_SGLANG, _FIRST_SGLANG_UNTIL = "0.5.3", "2025-11-10"
"""SGLang's release in nvidia-master.yaml (v0.5.3rc1-cu129-b200), and the last day of rows without placed experts: the
change to 0.5.5 placed them everywhere (InferenceX pull request 204, perf-changelog.yaml)."""

_COPIED_RUNS = "source_file=qwen3.5-397b-gap-analysis.csv"

_MIXED_EXPERTS = "experts both split and placed (expert- and tensor-parallel at once) cannot be simulated"


def read_inferencex(folder: Path) -> list[MeasuredPoint]:
    """Return the points of ``inferencex_agg.csv``, scored in TTFT and TPOT (means)."""
    return [_point(row, "inferencex_agg", is_public=True) for row in read_rows(folder / "inferencex_agg.csv")]


def read_inferencex_blackwell(folder: Path) -> list[MeasuredPoint]:
    """Return the points of ``inferencex_agg_blackwell.csv``: B200, scored the same way, by public recipes."""
    file = "inferencex_agg_blackwell"
    return [_point(row, file, is_public=True) for row in read_rows(folder / f"{file}.csv")]


def read_inhouse(folder: Path) -> list[MeasuredPoint]:
    """Return the points of ``nvidia_aic_inhouse_agg.csv``: fixed lengths; TTFT is shown, not scored.

    Their TTFT has warm-up artefacts: it falls with concurrency and grows with output length.
    """
    rows = read_rows(folder / "nvidia_aic_inhouse_agg.csv")
    points = [_point(row, "nvidia_aic_inhouse_agg", is_public=_is_copied(row)) for row in rows]
    return [replace(point, shown_only=point.shown_only | {"ttft"}) for point in points]


def _is_copied(row: Row) -> bool:
    """Return whether a row of NVIDIA's own sweeps copies an InferenceX run: one of its files has the same figures."""
    return _COPIED_RUNS in row.text("commit_or_date")


def engine_version(row: Row, engine: str) -> str:
    """Return the version that a row names, else the release in use in the year of measurement, else ""."""
    named = version_number(row.text("version"))
    if not named and engine == "sglang" and _date(row) <= _FIRST_SGLANG_UNTIL:
        return _FIRST_SGLANG
    return named or _VERSION_IN_USE.get((engine, _year(row)), "")


def _year(row: Row) -> str:
    return _date(row)[:4]


def _date(row: Row) -> str:
    return row.text("commit_or_date").removeprefix("measured ")[:10]


def _point(row: Row, source: str, *, is_public: bool) -> MeasuredPoint:
    engine = engine_name(row.text("framework"))
    model, hardware = model_name(row.text("model")), hardware_name(row.text("hardware"))
    version = engine_version(row, engine)
    prompt, output = row.count("isl", 0), row.count("osl", 0)
    clients = row.count("load_value", 1)
    lengths = _lengths(prompt, output, is_public=is_public)
    has_script = is_public and not _is_dynamo(row)
    recipe = recipe_of(engine, version, model, hardware, _date(row)) if has_script else Recipe()
    tensor, expert, ranks = _parallel_sizes(row, is_blackwell=hardware.startswith("b200"))
    if has_script and row.text("precision") == "fp8":
        recipe = drafting_recipe(engine, model, hardware, tensor * ranks, expert, row.note("id")) or recipe
    elif has_script and row.text("precision") == "fp4":
        recipe = fp4_recipe(engine, model, hardware) or recipe
    workload = build.closed_loop(clients, *lengths, clients * recipe.prompts)
    balance = None
    if has_script and is_data_parallel(engine, model, hardware, clients, prompt):
        tensor, expert, ranks = 1, tensor, tensor
    if has_script and engine == "tensorrt-llm" and ranks > 1:
        balance = BALANCE_STEPS if model.startswith("deepseek") else DEFAULT_BALANCE_STEPS
    if recipe.places_experts or _must_place_experts(engine, model, tensor):
        expert = tensor * ranks
    elif recipe.places_experts is False:
        expert = 1
    knobs = _knobs(engine, recipe, clients // ranks, prompt, seats_all=hardware.startswith("b200"))
    tells_pieces = engine == "tensorrt-llm" and model.startswith("deepseek") and hardware.startswith("b200")
    if has_script and tells_pieces and version.startswith("1.2"):
        is_captured = has_pieces(recipe, row.text("precision"), (prompt, output), clients, (tensor, expert))
        knobs["piecewise_cuda_graph_max_tokens"] = knobs["max_num_batched_tokens"] if is_captured else None
    deployed = blocks.deployment(
        hardware,
        engine={
            "name": engine,
            "version": version,
            "enable_prefix_caching": False,
            "max_model_len": prompt + lengths[1].get("max", output) + blocks.LENGTH_SLACK,
            "attention_dp_timeout_iters": balance,
            "sampling": None if is_public else "nucleus",
            **knobs,
        },
        tensor_parallel_size=tensor,
        pipeline_parallel_size=row.count("pp", 1),
        data_parallel_size=ranks,
        expert_parallel_size=expert,
        quantization=_weight_format(row, model, hardware),
        kv_cache_dtype=_kv_dtype(row, recipe, model, hardware),
    )
    if has_script and engine == "tensorrt-llm" and model.startswith("gpt-oss") and ranks > 1 and expert > 1:
        deployed["all2all_backend"] = GPT_OSS_EXCHANGE
    if recipe.drafts:
        deployed["speculative"] = _drafting(1 if ranks > 1 else recipe.drafts)
    is_mixed = expert > 1 and row.note("moe_tp") not in ("", "1") and expert != tensor * ranks
    return MeasuredPoint(
        source=source,
        label=row.label,
        engine=engine,
        version=version,
        hardware=hardware,
        model=model,
        load_kind="concurrency",
        load=clients,
        scenario=build.scenario(row.label, model, deployed, workload),
        measured=row.latencies("tpot", "ttft"),
        shown_only=_shown_only(row),
        protocol=_protocol(recipe, clients, front_seconds(hardware) if is_public and not recipe.cold_seconds else 0.0),
        reason=_MIXED_EXPERTS if is_mixed else "",
    )


def _drafting(num_drafts: int) -> dict[str, Any]:
    """Return speculative decoding with the model's MTP layer."""
    accepted = np.cumprod(MTP_ACCEPTANCE[:num_drafts]).round(4).tolist()
    return {"method": "mtp", "num_speculative_tokens": num_drafts, "acceptance_per_position": accepted}


def _protocol(recipe: Recipe, clients: int, front: float) -> Protocol:
    """Return how the figures were measured: in a burst of prompts, each waits on average for half of them."""
    burst = clients * recipe.cold_seconds_per_client
    polled = recipe.polled_steps * (1 if clients < RARELY_POLLED_FROM else RARELY_POLLED)
    tokens = expected_tokens(MTP_ACCEPTANCE[: recipe.drafts]) if recipe.drafts else 1.0
    return Protocol(
        cold_seconds=recipe.cold_seconds + burst,
        cold_stall_seconds=burst,
        front_seconds=front,
        polled_tokens=polled * tokens,
    )


def _parallel_sizes(row: Row, *, is_blackwell: bool) -> tuple[int, int, int]:
    """Return tensor-, expert- and data-parallel size.

    Runs whose name says ``tp4_ep4`` and whose columns say 16 GPUs are one replica of 4: they run out of KV where that
    does, at the same TPOT. Rows of Blackwell count ranks of data-parallel attention twice: one run of gpt-oss is listed
    there as `tp` 1, `ep` 2, `dp` 2 and as 2, 2, 4.
    """
    tensor, expert, ranks = row.count("tp", 1), row.count("ep", 1), row.count("dp", 1)
    if is_blackwell and tensor > 1 and ranks in (tensor, tensor**2):
        return 1, tensor, tensor
    if ranks > 1 and f"_tp{tensor}_ep{tensor}_" in row.note("id"):
        return tensor, tensor, 1
    return tensor, expert, ranks


def _lengths(prompt: int, output: int, *, is_public: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the lengths of prompts and answers."""
    if is_public:
        return blocks.uniform_below(prompt, SHORTEST_SHARE), blocks.uniform_below(output, SHORTEST_SHARE)
    return blocks.uniform_below(prompt, 1.0), blocks.uniform_around(output, INHOUSE_SPREAD)


def _is_dynamo(row: Row) -> bool:
    """Return whether NVIDIA Dynamo served: by another recipe than the launch scripts, with uncounted workers."""
    return "ai-dynamo" in row.text("notes")


def _shown_only(row: Row) -> frozenset[Metric]:
    # The number of Dynamo's workers that shared the clients is not stated.
    return frozenset({"ttft", "tpot"} if _is_dynamo(row) else ())


def _weight_format(row: Row, model: str, hardware: str) -> str:
    """Return the weight format; gpt-oss is published only in mxfp4, whatever arithmetic a row names."""
    return "mxfp4" if model.startswith("gpt-oss") else quantization_name(row.text("precision"), hardware)


def _must_place_experts(engine: str, model: str, tensor: int) -> bool:
    """Return whether only expert parallelism can run, whatever a row says.

    vLLM refuses slices of MiniMax's experts that are not a multiple of the FP8 block of 128: 1536 / 8 (vLLM recipe of
    MiniMax-M2: TP4, or TP8 with expert parallelism).
    """
    return (engine, model) == ("vllm", "minimax-m2") and tensor == 8


def _knobs(engine: str, recipe: Recipe, clients: int, prompt: int, *, seats_all: bool) -> dict[str, Any]:
    """Return the engine options.

    Args:
        engine: The engine.
        recipe: Settings of its script.
        clients: Clients of one rank.
        prompt: Prompt tokens.
        seats_all: Whether every client has a seat, if the seats of the script are those of another GPU.
    """
    budget, seats = recipe.max_num_batched_tokens, recipe.seats
    if seats is not None and seats_all:
        seats = max(seats, clients)
    if engine == "tensorrt-llm" and budget is None:
        # As in the launch script: the tokens of a step of every request plus a whole prompt, in steps of 64.
        budget = max(recipe.least_budget, -(-((1 + recipe.drafts) * clients + prompt + 64) // 64) * 64)
    return {
        "max_num_seqs": clients if recipe.is_seated_by_client else seats,
        "max_num_batched_tokens": budget,
        "gpu_memory_utilization": recipe.share,
        "async_scheduling": recipe.is_async,
        "max_cudagraph_capture_size": recipe.max_cudagraph_capture_size,
        "cudagraph_mode": recipe.cudagraph_mode,
        "moe_backend": recipe.moe_backend,
        "fp8_gemm_backend": recipe.fp8_gemm_backend,
        "enable_nccl_nvls": recipe.has_symmetric_memory or None,
        "mamba_ssm_cache_dtype": recipe.state_dtype,
    }


def _kv_dtype(row: Row, recipe: Recipe, model: str, hardware: str) -> str:
    if model == "llama-3.1-70b":
        # Points short of KV memory imply FP8 on H200 and 16 bit on H100; vLLM's scripts for B200 use FP8
        # (70b_fp8_b200).
        return "fp8" if hardware.startswith(("h200", "b200")) else "auto"
    if row.text("framework") == "trtllm" and row.note("gemm") == "fp8":
        # ModelOpt's FP8 checkpoints specify an FP8 KV cache (hf_quant_config.json, kv_cache_quant_algo), which
        # TensorRT-LLM follows; with 16 bit the points short of KV memory would wait 3 to 6 times as long as measured.
        return "fp8"
    return recipe.kv_cache_dtype or "auto"
