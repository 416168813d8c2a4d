"""MLPerf: what the harness of a round sets, what a row says itself, and how its figures are taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.laboratory.protocol import LONG_RUN_WINDOW, Protocol
from calibration.laboratory.readers.mlperf import read_mlperf, read_official
from calibration.laboratory.readers.mlperf_harness import layout_of
from simserve.sim.records import RequestRecords
from tests.planner.builders import write_csv


def _log_row(**changes: Any) -> dict[str, Any]:
    return {
        "hardware": "NVIDIA H100-SXM-80GB",
        "gpus": 8,
        "framework": "TensorRT 10.2.0, CUDA 12.4",
        "version": "v4.1",
        "model": "llama2-70b-99",
        "osl": 290.0,
        "load_type": "offline_max",
        "load_value": "inf",
        "throughput_tok_s": 24000,
        "notes": "scenario=Offline",
        **changes,
    }


def _read_log(folder: Path, **changes: Any) -> Any:
    write_csv(folder, "mlperf_v4.1_v5.1_llm_logs.csv", [_log_row(**changes)])
    return read_mlperf(folder)[0]


def _read_official(folder: Path, **changes: Any) -> Any:
    row = _log_row(framework="NVIDIA", version="v5.0", load_type="mlperf_offline", osl="294.45 (reference)", **changes)
    write_csv(folder, "mlperf_official_v5.0_v5.1_v6.0_llm.csv", [row])
    return read_official(folder)[0]


def test_one_of_the_equal_replicas_is_replayed(tmp_path: Path) -> None:
    """Eight GPUs at TP 2 are four copies; the replay has one, with the harness's seats and max_util admission."""
    point = _read_log(tmp_path)

    deployment = point.scenario["deployment"]
    assert point.protocol.num_copies == 4
    assert "replicas" not in deployment
    assert (deployment["tensor_parallel_size"], deployment["engine"]["max_num_seqs"]) == (2, 896)
    assert deployment["engine"]["admission"] == "on_demand"
    assert (deployment["quantization"], deployment["kv_cache_dtype"]) == ("fp8", "fp8")


def test_a_row_overrides_the_usual_cut_and_seats(tmp_path: Path) -> None:
    """Logs of NVIDIA name tp, and the class that set the batch."""
    point = _read_log(tmp_path, tp=1, notes="config class X: gpu_batch_size={'llama2-70b': 300} qps=9")

    assert point.protocol.num_copies == 8
    assert point.scenario["deployment"]["engine"]["max_num_seqs"] == 300


def test_amds_servers_hold_an_fp8_kv_cache(tmp_path: Path) -> None:
    """Quark's checkpoints have one; vLLM on NVIDIA GPUs keeps 16 bit."""
    amd = _read_log(tmp_path, framework="vLLM 0.4.3+rocm614", hardware="AMD Instinct MI300X-NPS1-SPX-192GB-750W")
    nvidia = _read_log(tmp_path, framework="vLLM 0.5.2")

    assert (amd.version, amd.scenario["deployment"]["kv_cache_dtype"]) == ("0.6.6", "fp8")
    assert (nvidia.version, nvidia.scenario["deployment"].get("kv_cache_dtype", "auto")) == ("0.5.5", "auto")


def test_a_poisson_server_is_replayed_at_the_load_it_held(tmp_path: Path) -> None:
    """80 requests/s of 30 s each over 4 replicas: 600 in each (Little), and 40 more clients that pause 2 s between
    requests; throughput is then a prediction."""
    point = _read_log(tmp_path, load_type="rate_rps (Poisson)", load_value=80, e2e_ms=30000, tpot_ms=100)

    assert point.scenario["workload"]["arrivals"] == {
        "process": "closed_loop",
        "concurrency": 640,
        "think_time": "2 s",
        "think_time_cv": 1.0,
    }
    assert (point.load_kind, point.load) == ("concurrency", 600)
    assert not point.shown_only


def test_a_poisson_server_without_latencies_shows_its_offered_load(tmp_path: Path) -> None:
    """Official tables have throughput alone: the rate is an input, so it is not scored."""
    write_csv(
        tmp_path,
        "mlperf_official_v5.0_v5.1_v6.0_llm.csv",
        [_log_row(version="v5.0", load_type="mlperf_server", throughput_tok_s=29445)],
    )

    (point,) = read_official(tmp_path)

    assert point.scenario["workload"]["arrivals"]["rate"] == pytest.approx(100 / point.protocol.num_copies)
    assert point.shown_only == {"throughput"}


def test_version_5_0_cuts_llama_2_70b_into_stages_on_h100_alone(tmp_path: Path) -> None:
    """TP 1 x PP 2 on H100, one GPU on H200."""
    h100, h200 = _read_official(tmp_path), _read_official(tmp_path, hardware="NVIDIA H200-SXM-141GB")

    assert h100.scenario["deployment"]["pipeline_parallel_size"] == 2
    assert (h100.protocol.num_copies, h200.protocol.num_copies) == (4, 8)


def test_nodes_multiply_the_gpus(tmp_path: Path) -> None:
    """A table counts GPUs a node."""
    point = _read_official(tmp_path, hardware="NVIDIA H200-SXM-141GB", notes="system x; nodes 4; available")

    assert point.protocol.num_copies == 32


def test_beam_search_is_stood_in_for_and_not_scored(tmp_path: Path) -> None:
    """Four beams decode four times the tokens, of which a quarter is the answer."""
    point = _read_log(tmp_path, model="gptj-99", osl="", gpus=1)

    assert point.protocol.beam_width == 4
    assert point.scenario["workload"]["output_tokens"]["mean"] == 4 * 69
    assert point.shown_only == {"throughput"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "neuralmagic_Llama-2-7b"}, "no lengths"),
        ({"notes": "system=H200-SXM-141GBx1_TRT_DepthPruned"}, "pruned"),
        ({"framework": "Jetpack 6.0"}, "does not name the engine"),
        ({"version": "v7.0"}, "harness of round"),
        ({"gpus": ""}, "how the model was cut"),
        ({"load_type": "SingleStream"}, "single-stream"),
    ],
)
def test_what_cannot_be_replayed_says_why(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """Counted, not guessed."""
    assert words in _read_log(tmp_path, **changes).reason


def test_the_most_specific_layout_holds() -> None:
    """H100 NVL is not H100 SXM; a GPU that no one names takes the model's usual cut."""
    assert layout_of("v4.1", "llama2-70b", "h100-nvl-94gb").offline_seats == 1300
    assert layout_of("v4.1", "llama2-70b", "mi300x-192gb").tensor == 1


def _records(num_requests: int) -> RequestRecords:
    """Return requests of 10 tokens that finish one a second; the first and last ones took longer."""
    times = np.arange(num_requests, dtype=np.float64)
    edge = np.where((times < 0.3 * num_requests) | (times >= 0.9 * num_requests), 50.0, 5.0)
    zeros = np.zeros(num_requests)
    return RequestRecords(
        arrival_time=times,
        admitted_time=times,
        scheduled_time=times,
        first_token_time=times + 1.0,
        finish_time=times + edge,
        prompt_tokens=np.full(num_requests, 7),
        output_tokens=np.full(num_requests, 10),
        cached_tokens=zeros.astype(np.int64),
        num_preemptions=zeros.astype(np.int32),
        replica_id=zeros.astype(np.int32),
        itl_max=np.ones(num_requests),
        status=zeros.astype(np.int8),
        reason=zeros.astype(np.int8),
        is_truncated=zeros.astype(np.bool_),
    )


def test_a_long_run_is_judged_by_its_middle() -> None:
    """Neither the ramp nor the drain is in E2E."""
    records = _records(1000)

    assert LONG_RUN_WINDOW == (0.4, 0.8)
    assert Protocol(is_long_run=True).figures(records)["e2e"] == 5.0
    assert Protocol().figures(records)["e2e"] > 5.0


def test_throughput_counts_all_copies_and_one_beam() -> None:
    """Twice the replicas at a quarter of the tokens."""
    records, protocol = _records(1000), Protocol(is_long_run=True)

    alone = protocol.figures(records)["throughput"]

    assert replace(protocol, num_copies=2, beam_width=4).figures(records)["throughput"] == pytest.approx(alone / 2)


def test_later_rounds_are_run_as_the_harness_before_them(tmp_path: Path) -> None:
    """v5.1 has Llama-3.1-8B, of 128 tokens an answer, and DeepSeek-R1 over eight ranks; in NVFP4 on Blackwell."""
    rows = [
        _log_row(version="v5.1", load_type="mlperf_offline", hardware="NVIDIA B200-SXM-180GB", model=model, gpus=8)
        for model in ("llama3.1-8b", "deepseek-r1")
    ]
    write_csv(tmp_path, "mlperf_official_v5.0_v5.1_v6.0_llm.csv", rows)
    small, large = read_official(tmp_path)

    assert not small.reason
    assert small.scenario["workload"]["output_tokens"] == {"distribution": "fixed", "value": 128}
    assert small.protocol.num_copies == 8
    assert (large.protocol.num_copies, large.scenario["deployment"]["data_parallel_size"]) == (1, 8)
    assert {each.scenario["deployment"]["quantization"] for each in (small, large)} == {"nvfp4"}
