"""Readers: rows written by hand become the scenarios that the protocols describe."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.laboratory.readers.community import read_accelmark
from calibration.laboratory.readers.inferencex import read_inferencex, read_inferencex_blackwell, read_inhouse
from calibration.laboratory.readers.names import hardware_name, model_name, quantization_name, version_number
from calibration.laboratory.readers.recipes import FRONT_SECONDS
from calibration.laboratory.readers.replays import read_apex, read_llmservingsim
from calibration.laboratory.readers.splitwise import read_splitwise
from calibration.laboratory.readers.table import read_rows
from calibration.laboratory.readers.tensorrt_llm import read_offline, read_online, read_static
from calibration.laboratory.sources import read_points, source_names
from simserve.errors import InputError, TraceError, UsageError
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec
from tests.planner.builders import agg_row, write_csv


def test_inferencex_is_a_closed_loop_with_lengths_below_nominal(tmp_path: Path) -> None:
    """C clients, 10 C prompts, [0.8 L, L], C seats, no prefix caching, 16-bit KV on H100."""
    write_csv(tmp_path, "inferencex_agg.csv", [agg_row()])

    (point,) = read_inferencex(tmp_path)

    assert (point.engine, point.version, point.hardware, point.model) == (
        "vllm",
        "0.11.0",
        "h100-sxm-80gb",
        "llama-3.1-70b",
    )
    assert point.measured == pytest.approx({"tpot": 0.020, "ttft": 0.050})
    workload, deployment = point.scenario["workload"], point.scenario["deployment"]
    assert workload["arrivals"] == {"process": "closed_loop", "concurrency": 4}
    assert workload["num_requests"] == 40
    assert workload["prompt_tokens"] == {"distribution": "uniform", "min": 80, "max": 100}
    assert deployment["tensor_parallel_size"] == 2
    assert deployment["kv_cache_dtype"] == "auto"
    engine = deployment["engine"]
    assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (4, 8192)
    assert engine["enable_prefix_caching"] is False
    assert engine["max_model_len"] > 120


@pytest.mark.parametrize(("clients", "seats"), [(64, 128), (256, 256)])
def test_on_b200_everybody_has_a_seat(tmp_path: Path, clients: int, seats: int) -> None:
    """The 128 seats of SGLang's Qwen3.5 are those of its script on Hopper; 256 clients waited 2 s, not minutes."""
    row = agg_row(
        hardware="b200_sxm", framework="sglang", model="Qwen/Qwen3.5-397B-A17B", precision="fp8", load_value=clients
    )
    write_csv(tmp_path, "inferencex_agg_blackwell.csv", [row])

    (point,) = read_inferencex_blackwell(tmp_path)

    assert point.scenario["deployment"]["engine"]["max_num_seqs"] == seats


@pytest.mark.parametrize(("expert", "backend"), [(2, "nvlink_one_sided"), (1, None)])
def test_ranks_of_gpt_oss_under_tensorrt_llm_on_b200_run_their_script(
    tmp_path: Path, expert: int, backend: str | None
) -> None:
    """Prompts wait for those of the other rank for the engine's own 50 steps; an exchange where experts are placed."""
    row = agg_row(
        hardware="b200_sxm", framework="trtllm", model="openai/gpt-oss-120b", precision="fp4", tp=1, ep=expert, dp=2
    )
    write_csv(tmp_path, "inferencex_agg_blackwell.csv", [row])

    (point,) = read_inferencex_blackwell(tmp_path)

    deployed = point.scenario["deployment"]
    assert deployed["engine"]["attention_dp_timeout_iters"] == 50
    assert deployed.get("all2all_backend") == backend


B200_RUN = "2026_03_25_deepseek_r1_b200_sxm_sglang_fp8_agg_1024x8192_c4_tp8_0_ep1_0_251"
B200_PLAIN = "dsr1_b200_sglang_fp8_agg_8192x1024_c4_cfg271"


@pytest.mark.parametrize(
    ("model", "tensor", "expert", "precision", "run", "drafts"),
    [
        ("deepseek-ai/DeepSeek-R1", 8, 1, "fp8", B200_RUN, 2),
        ("deepseek-ai/DeepSeek-R1", 8, 1, "fp8", B200_PLAIN, 0),
        ("deepseek-ai/DeepSeek-R1", 8, 1, "fp4", B200_RUN, 0),
        ("Qwen/Qwen3.5-397B-A17B", 4, 1, "fp8", "any", 3),
        ("Qwen/Qwen3.5-397B-A17B", 4, 4, "fp8", "any", 0),
        ("Qwen/Qwen3.5-397B-A17B", 8, 1, "fp8", "any", 0),
    ],
)
def test_sglang_on_b200_drafts_where_its_public_matrix_does(
    tmp_path: Path, model: str, tensor: int, expert: int, precision: str, run: str, drafts: int
) -> None:
    """What no column says follows from the layouts and loads that InferenceX runs with drafts alone."""
    row = agg_row(
        hardware="b200_sxm",
        framework="sglang",
        model=model,
        precision=precision,
        tp=tensor,
        ep=expert,
        notes=f"id={run}",
    )
    write_csv(tmp_path, "inferencex_agg_blackwell.csv", [row])

    (point,) = read_inferencex_blackwell(tmp_path)

    speculative = point.scenario["deployment"].get("speculative")
    assert (speculative or {}).get("num_speculative_tokens", 0) == drafts


@pytest.mark.parametrize(
    ("precision", "date", "clients", "layout", "lengths", "pieces", "budget"),
    [
        ("fp8", "2026-01-29", 128, (8, 1, 1), (1024, 8192), 8192, 8192),
        ("fp8", "2026-01-29", 64, (8, 1, 1), (1024, 8192), None, 8192),
        ("fp8", "2026-01-29", 256, (8, 1, 1), (8192, 1024), 8512, 8512),
        ("fp4", "2026-02-03", 64, (8, 8, 1), (1024, 1024), 8192, 8192),
        ("fp4", "2026-02-03", 16, (4, 1, 1), (1024, 1024), None, 8192),
        ("fp8", "2026-02-05", 128, (8, 1, 1), (8192, 1024), 8768, 8768),
        ("fp8", "2026-02-05", 4, (8, 1, 1), (8192, 1024), None, 8320),
        ("fp4", "2026-02-06", 64, (8, 1, 1), (1024, 8192), 1344, 1344),
        ("fp4", "2026-02-06", 16, (8, 1, 1), (1024, 8192), None, 1152),
    ],
)
def test_deepseek_under_tensorrt_llm_on_b200_runs_its_scripts(
    tmp_path: Path,
    precision: str,
    date: str,
    clients: int,
    layout: tuple[int, int, int],
    lengths: tuple[int, int],
    pieces: int | None,
    budget: int,
) -> None:
    """Which prompts run on graphs in pieces, and a step that has room for drafts of all and one prompt."""
    row = agg_row(
        hardware="b200_sxm",
        framework="trtllm",
        version="1.2.0rc6.post3",
        model="deepseek-ai/DeepSeek-R1",
        precision=precision,
        commit_or_date=f"measured {date}",
        load_value=clients,
        tp=layout[0],
        ep=layout[1],
        dp=layout[2],
        isl=lengths[0],
        osl=lengths[1],
    )
    write_csv(tmp_path, "inferencex_agg_blackwell.csv", [row])

    (point,) = read_inferencex_blackwell(tmp_path)

    engine = point.scenario["deployment"]["engine"]
    assert (engine.get("piecewise_cuda_graph_max_tokens"), engine["max_num_batched_tokens"]) == (pieces, budget)


def test_a_look_for_requests_is_counted_in_tokens_of_a_request(tmp_path: Path) -> None:
    """Ten steps below 16 clients; with two drafts a step brings 1 + 0.79 + 0.79 x 0.61 tokens."""
    rows = [
        agg_row(
            hardware="b200_sxm",
            framework="sglang",
            model="deepseek-ai/DeepSeek-R1",
            precision="fp8",
            tp=8,
            ep=1,
            notes=f"id={run}",
        )
        for run in (B200_PLAIN, B200_RUN)
    ]
    write_csv(tmp_path, "inferencex_agg_blackwell.csv", rows)

    polled = [point.protocol.polled_tokens for point in read_inferencex_blackwell(tmp_path)]

    assert polled == pytest.approx([10.0, 10.0 * (1 + 0.79 + 0.79 * 0.61)])


def test_the_kv_cache_of_the_70b_is_fp8_on_h200_only(tmp_path: Path) -> None:
    """The KV-starved points say so."""
    write_csv(tmp_path, "inferencex_agg.csv", [agg_row(hardware="h200_sxm")])

    assert read_inferencex(tmp_path)[0].scenario["deployment"]["kv_cache_dtype"] == "fp8"


def test_the_budget_of_tensorrt_llm_holds_all_clients_and_a_prompt(tmp_path: Path) -> None:
    """max(8192, C + prompt + 64 rounded up to 64); 0.75 of what is free; FP8 KV."""
    row = agg_row(framework="trtllm", model="deepseek-ai/DeepSeek-R1", hardware="h200_sxm", isl=8192, load_value=8)
    write_csv(tmp_path, "inferencex_agg.csv", [row])

    deployment = read_inferencex(tmp_path)[0].scenario["deployment"]

    assert deployment["engine"]["max_num_batched_tokens"] == 8320
    assert deployment["engine"]["gpu_memory_utilization"] == 0.75
    assert deployment["kv_cache_dtype"] == "fp8"


def test_deepseek_under_tensorrt_llm_runs_as_its_script_of_the_time_says(tmp_path: Path) -> None:
    """2025: room for the clients and one prompt a step; experts on all GPUs; data-parallel above 64 or 32 clients."""
    given = {"framework": "trtllm", "model": "deepseek-ai/DeepSeek-R1", "hardware": "h200_sxm", "tp": 8}
    given["commit_or_date"] = "measured 2025-11-02; 1"
    rows = [agg_row(**given, isl=isl, load_value=clients) for isl, clients in ((1024, 32), (1024, 128), (8192, 64))]
    write_csv(tmp_path, "inferencex_agg.csv", rows)

    deployments = [point.scenario["deployment"] for point in read_inferencex(tmp_path)]

    assert [each["engine"]["max_num_batched_tokens"] for each in deployments] == [1152, 1152, 8320]
    assert [each["engine"]["max_num_seqs"] for each in deployments] == [32, 16, 8]
    assert [each.get("data_parallel_size", 1) for each in deployments] == [1, 8, 8]
    assert [each.get("tensor_parallel_size", 1) for each in deployments] == [8, 1, 1]
    assert all(each["enable_expert_parallel"] for each in deployments)


def test_minimax_on_h200_ran_under_two_scripts(tmp_path: Path) -> None:
    """Before vLLM 0.18 with experts placed whole, a 16-bit KV cache and the engine's own budget."""
    given = {"model": "MiniMaxAI/MiniMax-M2.5", "hardware": "h200_sxm", "tp": 4}
    write_csv(tmp_path, "inferencex_agg.csv", [agg_row(**given, version=version) for version in ("0.16.0", "0.18.0")])

    first, second = (point.scenario["deployment"] for point in read_inferencex(tmp_path))

    assert (first["enable_expert_parallel"], first["kv_cache_dtype"]) == (True, "auto")
    assert "max_num_batched_tokens" not in first["engine"]
    assert ("enable_expert_parallel" in second, second["kv_cache_dtype"]) == (False, "fp8")
    assert second["engine"]["max_num_batched_tokens"] == 32768


def test_experts_split_and_placed_at_once_have_a_reason(tmp_path: Path) -> None:
    """They are counted, not guessed."""
    row = agg_row(model="Qwen/Qwen3-235B-A22B-FP8", tp=4, ep=2, notes="moe_tp=2")
    write_csv(tmp_path, "inferencex_agg.csv", [row])

    assert "experts" in read_inferencex(tmp_path)[0].reason


def test_experts_are_placed_whole_where_a_row_says_so(tmp_path: Path) -> None:
    """ep = tp; and where vLLM runs nothing else, MiniMax on 8 ranks."""
    rows = [
        agg_row(model="deepseek-ai/DeepSeek-V3", framework="trtllm", tp=8, ep=8, notes="moe_tp=1"),
        agg_row(model="MiniMaxAI/MiniMax-M2.5", tp=8, ep=1),
        agg_row(model="MiniMaxAI/MiniMax-M2.5", tp=4, ep=1),
    ]
    write_csv(tmp_path, "inferencex_agg.csv", rows)

    deployments = [point.scenario["deployment"] for point in read_inferencex(tmp_path)]

    assert [each.get("enable_expert_parallel", False) for each in deployments] == [True, True, False]


def test_inhouse_sweeps_have_fixed_prompts_and_an_unscored_ttft(tmp_path: Path) -> None:
    """Their TTFT carries warm-up artefacts; answers spread a little, so that clients drift apart."""
    write_csv(tmp_path, "nvidia_aic_inhouse_agg.csv", [agg_row(osl=200)])

    (point,) = read_inhouse(tmp_path)

    assert point.shown_only == {"ttft"}
    assert point.scenario["workload"]["prompt_tokens"]["min"] == 100
    answers = point.scenario["workload"]["output_tokens"]
    assert (answers["min"], answers["max"]) == (180, 220)
    assert point.scenario["deployment"]["engine"]["max_model_len"] >= 100 + 220


def test_a_run_named_for_one_replica_is_one(tmp_path: Path) -> None:
    """MiniMax on H100: the columns multiply its ranks by data-parallel ones that did not run."""
    rows = [
        agg_row(model="MiniMaxAI/MiniMax-M2.5", tp=4, ep=16, dp=4, notes=f"id=run_c8_{name}_1; moe_tp=1")
        for name in ("tp4_ep4", "tp4_ep16_dpa")
    ]
    write_csv(tmp_path, "inferencex_agg.csv", rows)

    sizes = [point.scenario["deployment"].get("data_parallel_size", 1) for point in read_inferencex(tmp_path)]

    assert sizes == [1, 4]


def test_servers_that_start_cold_say_for_how_long(tmp_path: Path) -> None:
    """Every one of SGLang, and DeepSeek under TensorRT-LLM; NVIDIA's own sweeps say nothing."""
    servers = [
        ("sglang", "Qwen/Qwen3-32B"),
        ("trtllm", "deepseek-ai/DeepSeek-R1"),
        ("trtllm", "openai/gpt-oss-120b"),
        ("vllm", "openai/gpt-oss-120b"),
    ]
    rows = [agg_row(framework=framework, model=model) for framework, model in servers]
    write_csv(tmp_path, "inferencex_agg.csv", rows)
    write_csv(tmp_path, "nvidia_aic_inhouse_agg.csv", rows)

    assert [point.protocol.cold_seconds > 0 for point in read_inferencex(tmp_path)] == [True, True, False, False]
    assert not any(point.protocol.cold_seconds for point in read_inhouse(tmp_path))
    assert [point.protocol.cold_stall_seconds > 0 for point in read_inferencex(tmp_path)] == [False, True, False, False]


def test_a_script_that_sends_fewer_prompts_says_so(tmp_path: Path) -> None:
    """GLM-5's sends 5 a client and leaves SGLang 0.85 of the memory."""
    write_csv(tmp_path, "inferencex_agg.csv", [agg_row(framework="sglang", model="zai-org/GLM-5")])

    scenario = read_inferencex(tmp_path)[0].scenario

    assert scenario["workload"]["num_requests"] == 20
    assert scenario["deployment"]["engine"]["gpu_memory_utilization"] == 0.85


def test_checkpoints_of_modelopt_hold_an_fp8_kv_cache(tmp_path: Path) -> None:
    """TensorRT-LLM follows the checkpoint; blocks of 128 are the model's own, with a cache of 16 bit."""
    both = ("fp8", "fp8_block")
    rows = [agg_row(framework="trtllm", model="Qwen/Qwen3-32B", precision="fp8", notes=f"gemm={gemm}") for gemm in both]
    write_csv(tmp_path, "nvidia_aic_inhouse_agg.csv", rows)

    caches = [point.scenario["deployment"]["kv_cache_dtype"] for point in read_inhouse(tmp_path)]

    assert caches == ["fp8", "auto"]


def test_launch_scripts_that_schedule_ahead_say_so(tmp_path: Path) -> None:
    """vLLM's of Llama-3.1-70B and gpt-oss ask for it; other models take the version's default."""
    rows = [agg_row(model="meta-llama/Llama-3.1-70B"), agg_row(model="MiniMaxAI/MiniMax-M2.5")]
    write_csv(tmp_path, "inferencex_agg.csv", rows)

    engines = [point.scenario["deployment"]["engine"] for point in read_inferencex(tmp_path)]

    assert [each.get("async_scheduling") for each in engines] == [True, None]


def test_launch_scripts_name_seats_and_the_largest_graph(tmp_path: Path) -> None:
    """gpt-oss up to 2,048 tokens; MiniMax-M2 on H100 with 256 seats."""
    rows = [agg_row(model="openai/gpt-oss-120b"), agg_row(model="MiniMaxAI/MiniMax-M2.5")]
    write_csv(tmp_path, "inferencex_agg.csv", rows)

    engines = [point.scenario["deployment"]["engine"] for point in read_inferencex(tmp_path)]

    assert [each.get("max_cudagraph_capture_size") for each in engines] == [2048, None]
    assert [each["max_num_seqs"] for each in engines] == [4, 256]


@pytest.mark.parametrize("version", ["1.1.0rc2.post2", "1.2.0rc6.post2"])
def test_first_prompts_of_tensorrt_llm_wait_for_launches_alone_on_b200(tmp_path: Path, version: str) -> None:
    """On Hopper they wait for a cold server under 1.1."""
    row = agg_row(
        hardware="b200_sxm", framework="trtllm", model="deepseek-ai/DeepSeek-V3", version=version, load_value=32
    )
    write_csv(tmp_path, "inferencex_agg_blackwell.csv", [row])

    (point,) = read_inferencex_blackwell(tmp_path)

    assert point.protocol.cold_seconds == 0.0


def test_h200_nodes_are_further_from_their_clients(tmp_path: Path) -> None:
    """Not in NVIDIA's own sweeps, nor where a cold start was fitted with it."""
    rows = [
        agg_row(hardware=hardware, framework=framework)
        for hardware, framework in (("h100_sxm", "vllm"), ("h200_sxm", "vllm"), ("h200_sxm", "sglang"))
    ]
    write_csv(tmp_path, "inferencex_agg.csv", rows)
    write_csv(tmp_path, "nvidia_aic_inhouse_agg.csv", rows)

    assert [point.protocol.front_seconds for point in read_inferencex(tmp_path)] == [0.0, FRONT_SECONDS, 0.0]
    assert not any(point.protocol.front_seconds for point in read_inhouse(tmp_path))


def _apex_files(folder: Path, **changes: object) -> None:
    row = agg_row(version="0.6.0", precision="BF16", run_id="a", e2e_ms=900, tpot_ms=20.8, **changes)
    write_csv(folder, "apex_plus_vllm_sglang_h100.csv", [row])
    text = "run_id,arrival_offset_s,input_tokens_actual,output_tokens_actual\na,1.5,30,7\nb,2.0,1,1\na,2.5,40,9\n"
    (folder / "apex_plus_replay_requests.csv.gz").write_bytes(gzip.compress(text.encode()))


def test_apex_replays_the_requests_of_its_run(tmp_path: Path) -> None:
    """Server-side, TPOT over generated tokens, no chunked prefill, 0.97 of the memory."""
    _apex_files(tmp_path)

    (point,) = read_apex(tmp_path)

    assert point.requests is not None
    assert np.array_equal(point.requests.arrival_time, [1.5, 2.5])
    assert np.array_equal(point.requests.output_tokens, [7, 9])
    assert point.protocol.is_server_side
    assert point.protocol.is_token_weighted
    assert point.scenario["deployment"]["engine"]["enable_chunked_prefill"] is False


def test_corrected_columns_are_used_where_filled(tmp_path: Path) -> None:
    """And the others where they are not."""
    _apex_files(tmp_path, tpot_ms_corr=19.0, ttft_ms_corr="")

    assert read_apex(tmp_path)[0].measured == pytest.approx({"tpot": 0.019, "ttft": 0.050, "e2e": 0.9})


def test_llmservingsim_counts_from_the_queue(tmp_path: Path) -> None:
    """Arrivals are queue times, in their order, from the first; limits stand in the notes."""
    notes = "max_num_seqs=128 max_num_batched_tokens=2048 max_model_len=None"
    row = agg_row(
        hardware="RTX4090", model="meta-llama/Llama-3.1-8B", version="0.19.0", throughput_tok_s=9, notes=notes
    )
    write_csv(tmp_path, "llmservingsim_vllm_summary.csv", [row])
    requests = [
        {"queued_ts": 12.0, "input_toks": 5, "output_toks": 6},
        {"queued_ts": 10.0, "input_toks": 7, "output_toks": 8},
    ]
    write_csv(tmp_path, "llmservingsim_vllm_requests_RTX4090_Llama-3.1-8B.csv", requests)

    (point,) = read_llmservingsim(tmp_path)

    assert point.requests is not None
    assert np.array_equal(point.requests.arrival_time, [0.0, 2.0])
    assert np.array_equal(point.requests.prompt_tokens, [7, 5])
    assert point.scenario["deployment"]["engine"]["max_num_seqs"] == 128
    assert "max_model_len" not in point.scenario["deployment"]["engine"]


def test_throughput_of_a_gpu_is_that_of_the_system(tmp_path: Path) -> None:
    """Tables say one or the other."""
    row = agg_row(framework="TensorRT-LLM", version="0.8.0", load_type="static_batch", gpus=2, throughput_tok_s=100)
    row["ttft_ms"] = ""
    rows = [{**row, "throughput_kind": kind} for kind in ("output_per_gpu", "output_per_system")]
    write_csv(tmp_path, "trtllm_static_batch_v0.5-0.9.csv", rows)

    points = read_static(tmp_path)

    assert [point.measured["throughput"] for point in points] == [200.0, 100.0]
    assert points[0].scenario["deployment"]["engine"]["batching"] == "static"


def test_the_first_token_of_a_static_batch_is_that_of_one_output_token(tmp_path: Path) -> None:
    """A static batch answers when it is done: a row with throughput and first token is two points."""
    row = agg_row(version="0.5.0", load_type="static_batch", osl=128, throughput_tok_s=100, ttft_ms=102)
    write_csv(tmp_path, "trtllm_static_batch_v0.5-0.9.csv", [row])

    points = read_static(tmp_path)

    assert [list(point.measured) for point in points] == [["throughput"], ["ttft"]]
    assert [point.scenario["workload"]["output_tokens"]["value"] for point in points] == [128, 1]


def test_offline_points_queue_everything_at_once(tmp_path: Path) -> None:
    """With an FP8 KV cache where weights are FP8, and a budget that holds a prompt beside the decodes."""
    row = agg_row(precision="FP8", isl=20000, num_requests=50, throughput_tok_s=10, throughput_kind="output_per_system")
    write_csv(tmp_path, "trtllm_perf_overview_throughput.csv", [row])

    (point,) = read_offline(tmp_path)

    assert point.scenario["workload"]["arrivals"] == {"process": "all_at_once"}
    assert point.scenario["deployment"]["kv_cache_dtype"] == "fp8"
    assert point.scenario["deployment"]["engine"]["max_num_batched_tokens"] == 22048


def test_an_infinite_rate_is_all_at_once(tmp_path: Path) -> None:
    """A finite one is Poisson."""
    rows = [agg_row(load_value=value, itl_ms=20, num_requests=50) for value in ("inf", 8)]
    write_csv(tmp_path, "trtllm_online_serving_v0.14.csv", rows)

    processes = [point.scenario["workload"]["arrivals"]["process"] for point in read_online(tmp_path)]

    assert processes == ["all_at_once", "poisson"]


def test_an_end_to_end_time_that_its_parts_contradict_is_shown_only(tmp_path: Path) -> None:
    """Answers ended early (E2E too short), or the batch ran in parts (too long)."""
    rows = [agg_row(ttft_ms=100, tpot_ms=10, osl=11, e2e_ms=e2e) for e2e in (200, 100, 400)]
    write_csv(tmp_path, "splitwise_iteration_times.csv", rows)

    shown = [point.shown_only for point in read_splitwise(tmp_path)]

    assert shown == [frozenset(), {"e2e"}, {"e2e", "ttft", "tpot"}]


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        ("h100_sxm", "h100-sxm-80gb"),
        ("NVIDIA H200-SXM-141GB", "h200-sxm-141gb"),
        ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("RTXPRO6000", "rtx-pro-6000-96gb"),
        ("Abacus", "abacus"),
    ],
)
def test_hardware_names(hardware: str, name: str) -> None:
    """Sources write one GPU in many ways."""
    assert hardware_name(hardware) == name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("LLaMA v3.1 8B", "llama-3.1-8b"),
        ("Llama 3.3 70B", "llama-3.3-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("LLaMA 70B", "llama-2-70b"),
        ("llama2-13b", "llama-2-13b"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2"),
    ],
)
def test_model_names(model: str, name: str) -> None:
    """And one model too."""
    assert model_name(model) == name


def test_formats_and_versions() -> None:
    """FP4 on Hopper is mxfp4; a release candidate is its release."""
    assert [quantization_name(text) for text in ("", "FP8", "fp4", "W8A16")] == ["none", "fp8", "mxfp4", "int8-wo"]
    assert [version_number(text) for text in ("1.2.0rc6.post1", "glm5-hopper", "0.20.1+x")] == ["1.2.0", "", "0.20.1"]


def test_without_a_folder_only_the_published_figures_are_read() -> None:
    """They ship."""
    points = read_points(None)

    assert {point.source for point in points} == {"published"}
    assert all(point.measured for point in points)


def test_an_unknown_source_names_the_known() -> None:
    """A wrong flag."""
    with pytest.raises(UsageError, match="inferencex_agg"):
        read_points(None, ["inferencex"])


def test_a_source_without_its_files_says_which(tmp_path: Path) -> None:
    """Asked for by name it must be there."""
    with pytest.raises(InputError, match=r"inferencex_agg\.csv"):
        read_points(tmp_path, ["inferencex_agg"])


def test_sources_that_are_not_there_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    """A folder may hold some of them, also below `measured`."""
    (tmp_path / "measured").mkdir()
    write_csv(tmp_path / "measured", "inferencex_agg.csv", [agg_row()])

    assert {point.source for point in read_points(tmp_path)} == {"published", "inferencex_agg"}
    assert "inferencex_agg" in source_names()


def test_a_folder_that_is_not_there_is_a_wrong_flag(tmp_path: Path) -> None:
    """Known before anything runs."""
    with pytest.raises(UsageError, match="not a folder"):
        read_points(tmp_path / "nowhere")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """With its path."""
    (tmp_path / "x.csv.gz").write_bytes(b"\x1f\x8bno gzip")

    with pytest.raises(TraceError, match=r"x\.csv\.gz"):
        read_rows(tmp_path / "x.csv.gz")


def test_rows_that_splitwise_computed_are_not_run(tmp_path: Path) -> None:
    """Its power-capped times are the uncapped ones times 1.3 and 1."""
    rows = [agg_row(hardware=name, ttft_ms=100, tpot_ms=10, osl=11) for name in ("h100-80gb", "h100-80gb-pcap")]
    write_csv(tmp_path, "splitwise_iteration_times.csv", rows)

    measured, computed = read_splitwise(tmp_path)

    assert not measured.reason
    assert "nothing was measured" in computed.reason


def _accelmark(folder: Path, **changes: object) -> dict[str, Any]:
    usual = {
        "hardware": "NVIDIA A100-SXM4-80GB",
        "framework": "vLLM",
        "version": "0.7.3",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "precision": "W4A16",
        "tp": 1,
        "len_kind": "suite C dataset sharegpt_standard_v1",
        "load_type": "rate_rps",
        "load_value": 25,
        "num_requests": 300,
        "tpot_ms": 60,
        "ttft_ms": 100,
        "notes": 'extra_config={"max_num_seqs": 512}; quant=gptq; mean output tokens about 350',
    }
    write_csv(folder, "accelmark_results.csv", [{**usual, **changes}])
    (point,) = read_accelmark(folder)
    return dict(point.scenario)


def test_accelmark_hands_its_seats_and_kernels_to_offline_runs_alone(tmp_path: Path) -> None:
    """AsyncLLMEngine keeps vLLM's defaults: V0's server's, but 128 seats and 2,048 tokens in V1."""
    offline = _accelmark(tmp_path, load_type="offline_batch (all requests queued)")["deployment"]
    online = _accelmark(tmp_path)["deployment"]
    newer = _accelmark(tmp_path, version="0.20.1+transformers-5.8.1")["deployment"]

    assert (offline["engine"]["max_num_seqs"], offline["quantization"]) == (512, "gptq-int4-exllama")
    assert ("max_num_seqs" in online["engine"], online["quantization"]) == (False, "gptq-int4")
    assert (newer["engine"]["max_num_seqs"], newer["engine"]["max_num_batched_tokens"]) == (128, 2048)


def test_accelmark_answers_have_their_mean_after_the_limit_cut_them(tmp_path: Path) -> None:
    """Natural stops beyond 512 tokens end there; below, one length is as likely as another."""
    workload = _accelmark(tmp_path)["workload"] | {"prompt_tokens": {"distribution": "fixed", "value": 200}}
    spec = WorkloadSpec.model_validate({**workload, "num_requests": 20_000})

    drawn = generate(spec, seed=1)

    cut = np.minimum(drawn.output_tokens, drawn.max_tokens)
    assert cut.mean() == pytest.approx(350, rel=0.02)
    assert 0.3 < (cut == 512).mean() < 0.4
    assert (cut <= 128).mean() == pytest.approx((cut <= 256).mean() / 2, rel=0.1)


def test_accelmark_runs_in_the_engines_process(tmp_path: Path) -> None:
    """No HTTP, in V1 neither, and tokens of V0 come when the next step has ended; how slow a node is, is its own."""
    latency = _accelmark(tmp_path)["deployment"]["engine"]["frontend_latency"]
    (point,) = read_accelmark(tmp_path)

    assert latency == "2.0 ms"
    assert point.protocol.is_in_process
    assert _accelmark(tmp_path, version="0.20.1")["deployment"]["engine"]["frontend_latency"] == latency


def test_accelmarks_slow_node_is_less_slow_where_nobody_is_served(tmp_path: Path) -> None:
    """The RTX 4090's; others take as long either way."""
    kinds = ("rate_rps", "offline_batch (all requests queued)")

    def slowdowns(hardware: str) -> list[float]:
        scenarios = [_accelmark(tmp_path, hardware=hardware, load_type=kind) for kind in kinds]
        return [each["deployment"]["engine"]["host_slowdown"] for each in scenarios]

    assert slowdowns("NVIDIA GeForce RTX 4090") == [3.0, 1.7]
    assert slowdowns("NVIDIA A100-SXM4-80GB") == [2.0, 2.0]


def test_accelmarks_long_contexts(tmp_path: Path) -> None:
    """100 requests a run, 30,208 tokens at most, and beyond V0's CUDA graphs."""
    suite = {"len_kind": "suite D dataset sharegpt_longctx_v1", "precision": "BF16", "notes": "", "num_requests": 200}
    scenario, newer = (_accelmark(tmp_path, version=each, **suite) for each in ("0.7.3", "0.20.1"))

    assert scenario["workload"]["num_requests"] == 100
    assert scenario["deployment"]["engine"]["max_model_len"] == 30208
    assert scenario["deployment"]["engine"]["enforce_eager"] is True
    assert "enforce_eager" not in newer["deployment"]["engine"]


def test_tensorrt_llm_places_the_experts_of_gpt_oss_whatever_a_row_says(tmp_path: Path) -> None:
    """Its script has expert-parallel size = tensor-parallel size; vLLM's has not."""
    rows = [agg_row(framework=name, model="openai/gpt-oss-120b", tp=2, ep=1) for name in ("trtllm", "vllm")]
    write_csv(tmp_path, "inferencex_agg.csv", rows)

    placed = [point.scenario["deployment"].get("enable_expert_parallel") for point in read_inferencex(tmp_path)]

    assert placed == [True, None]


def test_names_of_blackwell_and_of_superchips() -> None:
    """GH200 and GB200 hold the letters of H200 and B200; FP4 there is NVFP4."""
    names = ("GH200 480GB", "GH200 120GB", "H200 141GB HBM3", "H20", "B200", "GB200 NVL72")
    names += ("RTX 6000 Pro Blackwell Server Edition",)

    assert [hardware_name(name) for name in names] == [
        "gh200-96gb",
        "gh200-nvl4-96gb",
        "h200-sxm-141gb",
        "h20-96gb",
        "b200-sxm-180gb",
        "gb200-186gb",
        "rtx-pro-6000-96gb",
    ]
    assert quantization_name("FP4", "b200-sxm-180gb") == "nvfp4"


def test_experts_of_perf_overview_have_data_parallel_attention_from_1_0_on(tmp_path: Path) -> None:
    """Qwen3's ranks have attention of their own and whole experts; Llama 4 Scout's and older releases' do not."""
    head = "hardware,gpus,framework,version,model,precision,tp,pp,isl,osl,num_requests,throughput_tok_s,throughput_kind"
    rows = [
        "B200,8,TensorRT-LLM,1.0,Qwen3-235B-A22B,FP4,8,1,1000,1000,3000,42391,output_per_system",
        "H200,4,TensorRT-LLM,1.0,Llama 4 Scout,FP8,4,1,1000,1000,3000,21636,output_per_system",
        "H100,2,TensorRT-LLM,0.17,Mixtral 8x7B,FP8,2,1,1000,1000,3000,20000,output_per_system",
    ]
    (tmp_path / "trtllm_perf_overview_throughput.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    first, second, third = (point.scenario["deployment"] for point in read_offline(tmp_path))

    assert (first["data_parallel_size"], first["enable_expert_parallel"]) == (8, True)
    assert (first["quantization"], first["kv_cache_dtype"]) == ("nvfp4", "fp8")
    assert [each["tensor_parallel_size"] for each in (second, third)] == [4, 2]
