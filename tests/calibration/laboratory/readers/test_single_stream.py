"""Single streams and LMDeploy: what short rows leave out is assumed in one place, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration.laboratory.readers.lmdeploy import read_lmdeploy
from calibration.laboratory.readers.single_stream import (
    ITL_CONTEXTS,
    SHORT_PROMPT,
    TEXT_PROMPT,
    read_itl_fits,
    read_llama_cpp,
    read_single_stream,
)
from tests.planner.builders import write_csv


def _row(**changes: Any) -> dict[str, Any]:
    return {
        "hardware": "A100",
        "gpus": 2,
        "framework": "vLLM",
        "model": "Llama2-70B",
        "precision": "INT4 (multi NVIDIA GPU table)",
        "tp": 2,
        "isl": "short",
        "osl": 256,
        "load_value": 1,
        "throughput_tok_s": 20.0,
        "throughput_kind": "decode tok/s (single stream)",
        **changes,
    }


def test_a_stream_without_lengths_is_short(tmp_path: Path) -> None:
    """Decoding speed is the time of a token, which the assumed prompt hardly moves."""
    write_csv(tmp_path, "quantization_and_single_stream_tables.csv", [_row()])

    (point,) = read_single_stream(tmp_path)

    assert point.measured == {"tpot": pytest.approx(0.05)}
    assert point.scenario["workload"]["prompt_tokens"]["value"] == SHORT_PROMPT
    deployment = point.scenario["deployment"]
    assert (deployment["quantization"], deployment["tensor_parallel_size"]) == ("awq-int4", 2)
    assert deployment["engine"]["version"] == "0.2.1"


def test_a_batch_with_lengths_keeps_them(tmp_path: Path) -> None:
    """And is compared by its throughput."""
    row = _row(isl=2048, osl=128, load_value=8, precision="FP8", throughput_kind="output_per_system", version="0.15")
    write_csv(tmp_path, "quantization_and_single_stream_tables.csv", [{**row, "framework": "TensorRT-LLM"}])

    (point,) = read_single_stream(tmp_path)

    assert point.measured == {"throughput": 20.0}
    assert point.scenario["workload"]["prompt_tokens"]["value"] == 2048
    assert point.scenario["workload"]["num_requests"] == 8


def test_llama_cpp_deals_layers(tmp_path: Path) -> None:
    """Stages, not tensor ranks; decode rows give a time of a token, prompt rows one of 1,024 tokens."""
    base = {"framework": "llama.cpp", "hardware": "4090 24GB", "model": "LLaMA 3 8B", "precision": "Q4_K_M", "gpus": 4}
    prompt = _row(**base, isl=1024, osl=0, throughput_tok_s=4096, throughput_kind="prefill tok/s")
    write_csv(tmp_path, "llamacpp_xiongjiedai_llama3.csv", [_row(**base, osl=1024), prompt])

    decode, prefill = read_llama_cpp(tmp_path)

    assert decode.scenario["deployment"]["pipeline_parallel_size"] == 4
    assert decode.scenario["workload"]["prompt_tokens"]["value"] == TEXT_PROMPT
    assert decode.measured == {"tpot": pytest.approx(0.05)}
    assert prefill.measured == {"ttft": pytest.approx(0.25)}


def test_a_line_of_itl_is_compared_at_three_contexts(tmp_path: Path) -> None:
    """intercept + slope x context; the mean context of the replay is that one."""
    line = {"hardware": "H100", "model": "gpt-oss-20b", "precision": "BF16 weights, FP8 KV", "tp": 1}
    rows = [
        {**line, "itl_intercept_ms": "4.0..4.2", "itl_slope_ms_per_context_token": 1e-4},
        {**line, "itl_intercept_ms": "", "itl_slope_ms_per_context_token": 1e-4},
        {
            **line,
            "precision": "BF16 weights, FP8 KV skip-SW",
            "itl_intercept_ms": 4,
            "itl_slope_ms_per_context_token": 1,
        },
    ]
    write_csv(tmp_path, "vllm_itl_linear_fits.csv", rows)

    points = read_itl_fits(tmp_path)

    first = points[0]
    lengths = [first.scenario["workload"][key]["value"] for key in ("prompt_tokens", "output_tokens")]
    assert lengths[0] + lengths[1] // 2 == ITL_CONTEXTS[0]
    assert first.measured == {"tpot": pytest.approx(4.1e-3 + 1e-7 * ITL_CONTEXTS[0])}
    assert (first.scenario["deployment"]["kv_cache_dtype"], first.scenario["deployment"]["quantization"]) == (
        "fp8",
        "none",
    )
    assert [bool(point.reason) for point in points] == [False] * 3 + [True] * 6


def _lmdeploy_row(**changes: Any) -> dict[str, Any]:
    row = {"framework": "LMDeploy TurboMind", "version": "0.2.0", "hardware": "A100-80G", "model": "llama2-7b"}
    return _row(**{**row, "tp": 1, "gpus": 1, "precision": "FP16", "isl": 128, "osl": 64, "load_value": 16, **changes})


def test_static_batches_of_lmdeploy_are_closed_loops(tmp_path: Path) -> None:
    """The clients send again when they are answered."""
    write_csv(tmp_path, "lmdeploy_a100_4090.csv", [_lmdeploy_row()])

    (point,) = read_lmdeploy(tmp_path)

    assert point.scenario["workload"]["arrivals"] == {"process": "closed_loop", "concurrency": 16}
    assert point.scenario["deployment"]["engine"]["name"] == "lmdeploy"


def test_sharegpt_lengths_follow_from_a_rows_rates(tmp_path: Path) -> None:
    """3,000 of 5,000 tokens/s at 10 requests/s: prompts of 200 and answers of 300; KV in 8 bit where it says so."""
    offline = {"isl": "ShareGPT", "osl": "ShareGPT", "num_requests": 100, "req_per_s": 10.0}
    rows = [
        _lmdeploy_row(**offline, throughput_tok_s=3000, notes="total tok/s 5000.0"),
        _lmdeploy_row(**offline, throughput_tok_s="", precision="FP16 weights, KV int8", version="0.4 era"),
        _lmdeploy_row(**offline, load_value=""),
    ]
    write_csv(tmp_path, "lmdeploy_a100_4090.csv", rows)

    stated, implied, unsaid = read_lmdeploy(tmp_path)

    means = [stated.scenario["workload"][key]["mean"] for key in ("prompt_tokens", "output_tokens")]
    assert means == [200.0, 300.0]
    assert implied.measured == {"throughput": 2330.0}
    assert implied.scenario["deployment"]["kv_cache_dtype"] == "int8"
    assert "does not say" in unsaid.reason
