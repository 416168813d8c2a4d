"""The drift gate on runs of kernels: passes on the same, fails on slower and on faster copies, names what it skips."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

from simserve.calibrate.drift import Comparison, check_kernels, markdown
from simserve.calibrate.kernel_prediction import PREDICTORS, predicted, without_cache
from simserve.errors import InputError
from simserve.profiles.hardware import load_hardware

H100 = "h100-sxm-80gb"
SIZES: Mapping[str, Mapping[str, list[Any]]] = {
    "gemm_perf": {
        "gemm_dtype": ["bfloat16", "bfloat16", "fp8", "fp8", "int4_wo"],
        "m": [1, 1024, 16, 4096, 8],
        "n": [4096] * 5,
        "k": [4096] * 5,
    },
    "context_attention_perf": {
        "batch_size": [1, 2],
        "isl": [512, 4096],
        "num_heads": [32, 32],
        "num_key_value_heads": [8, 8],
        "head_dim": [128, 128],
        "window_size": [0, 0],
        "kv_cache_dtype": ["bfloat16", "fp8"],
    },
    "generation_attention_perf": {
        "batch_size": [1, 64],
        "step": [511, 4095],
        "num_heads": [32, 32],
        "num_key_value_heads": [8, 8],
        "head_dim": [128, 128],
        "window_size": [0, 128],
        "kv_cache_dtype": ["bfloat16", "bfloat16"],
    },
    "moe_perf": {
        "moe_dtype": ["bfloat16", "w4a16_mxfp4"],
        "num_tokens": [64, 64],
        "hidden_size": [4096, 4096],
        "inter_size": [1536, 1536],
        "topk": [8, 8],
        "num_experts": [128, 128],
        "moe_tp_size": [1, 1],
        "moe_ep_size": [1, 1],
        "distribution": ["balanced", "balanced"],
    },
    "custom_allreduce_perf": {
        "allreduce_dtype": ["float16", "float16"],
        "num_gpus": [2, 8],
        "message_size": [4096, 1 << 20],
    },
}


def write_run(folder: Path, factor: float = 1.0, rise: float = 0.0) -> Path:
    """Write tables that an H100 would give whose every call takes ``factor`` times as long as its profile says.

    The first call of a table does, and each behind it takes ``rise`` times as long as the profile says besides.
    """
    folder.mkdir()
    hardware = load_hardware(H100)
    for table, sizes in SIZES.items():
        columns = {name: np.array(values) for name, values in sizes.items()}
        seconds = predicted(table, columns, hardware, "vllm")
        rows = pd.DataFrame(sizes).assign(latency=np.where(np.isfinite(seconds), seconds, 1e-3) * 1e3 * factor)
        rows["latency"] *= 1.0 + rise / factor * np.arange(len(rows))
        with duckdb.connect() as connection:
            connection.register("rows_of_table", rows)
            connection.execute(f"COPY rows_of_table TO '{folder / table}.parquet' (FORMAT parquet)")
    return folder


def test_the_same_run_passes(tmp_path: Path) -> None:
    """Every operator class is compared; what the profile says nothing of is named."""
    drift = check_kernels(load_hardware(H100), write_run(tmp_path / "run"), "vllm", 0.05, H100)

    assert drift.passed
    assert {each.name for each in drift.comparisons} == {
        "products, bfloat16",
        "products, fp8",
        "products, int4_wo",
        "prefill attention, bfloat16 KV",
        "prefill attention, fp8 KV",
        "decode attention, bfloat16 KV",
        "routed experts, bfloat16",
        "all-reduce",
    }
    assert drift.left_out == ["routed experts, w4a16_mxfp4: the profile says nothing of these calls"]
    assert {each.name: each.count for each in drift.comparisons}["decode attention, bfloat16 KV"] == 1


def test_the_change_is_that_of_the_call_that_is_shown(tmp_path: Path) -> None:
    """Of an even number of calls too: the one of the two in the middle that has moved more."""
    drift = check_kernels(load_hardware(H100), write_run(tmp_path / "run", rise=0.1), "vllm", 0.05, H100)

    assert {each.count % 2 for each in drift.comparisons} == {0, 1}
    for each in drift.comparisons:
        assert each.ratio == pytest.approx(each.found / each.expected)
    pair = next(each for each in drift.comparisons if each.name == "products, bfloat16")
    assert (pair.count, pair.ratio) == (2, pytest.approx(1.1))


@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "slower"), (0.9, "faster")])
def test_a_tenth_slower_and_a_tenth_faster_fail(factor: float, verdict: str, tmp_path: Path) -> None:
    """Two-sided: a faster machine is as little the calibrated one."""
    drift = check_kernels(load_hardware(H100), write_run(tmp_path / "run", factor), "vllm", 0.05, H100)

    assert not drift.passed
    assert {each.verdict for each in drift.comparisons} == {verdict}
    assert len(drift.moved) == len(drift.comparisons)


def test_calls_that_were_kept_out_of_caches_are_compared_so(tmp_path: Path) -> None:
    """A run of `calibrate kernels` has its provenance beside it: its keys come from memory, and take longer."""
    folder, hardware = write_run(tmp_path / "run"), load_hardware(H100)
    warm = check_kernels(hardware, folder, "vllm", 0.05, H100)
    (folder / "provenance.json").write_text("{}", encoding="utf-8")

    cold = check_kernels(hardware, folder, "vllm", 0.05, H100)

    name = "decode attention, bfloat16 KV"
    before, after = (next(each for each in drift.comparisons if each.name == name) for drift in (warm, cold))
    assert after.expected > before.expected
    assert check_kernels(without_cache(hardware), folder, "vllm", 0.05, H100).comparisons == cold.comparisons


def test_other_tables_of_a_run_are_named(tmp_path: Path) -> None:
    """Copies, layers and launches stand in a run, and no profile says what one takes."""
    folder = write_run(tmp_path / "run")
    (folder / "copy_perf.parquet").write_bytes((folder / "gemm_perf.parquet").read_bytes())

    drift = check_kernels(load_hardware(H100), folder, "vllm", 0.05, H100)

    assert "copy: a profile says nothing of single calls of it" in drift.left_out


def test_a_profile_without_curves_is_compared_by_its_class_efficiencies(tmp_path: Path) -> None:
    """An L4 is not an H100: it would take longer, so that the run looks faster."""
    drift = check_kernels(load_hardware("l4-24gb"), write_run(tmp_path / "run"), "vllm", 0.05, "l4-24gb")

    by_name = {each.name: each.verdict for each in drift.comparisons}
    assert by_name["products, bfloat16"] == by_name["decode attention, bfloat16 KV"] == "faster"


def test_throughput_above_the_profile_is_faster() -> None:
    """More tokens a second is faster, more seconds slower."""
    values: dict[str, Any] = {"name": "", "expected": 1.0, "found": 1.2, "count": 1, "tolerance": 0.05, "ratio": 1.2}

    assert Comparison(**values, unit="/s").verdict == "faster"
    assert Comparison(**values, unit="s").verdict == "slower"


def test_the_markdown_shows_what_moved_first(tmp_path: Path) -> None:
    """Headline, table of what moved, and the rest folded away."""
    folder = write_run(tmp_path / "run")
    slow = write_run(tmp_path / "slow", 1.2)
    (folder / "gemm_perf.parquet").write_bytes((slow / "gemm_perf.parquet").read_bytes())

    text = markdown(check_kernels(load_hardware(H100), folder, "vllm", 0.05, H100))

    assert text.startswith("### Calibration of h100-sxm-80gb: **3 of 8 moved**\n")
    assert "| products, bfloat16 | 2 |" in text
    assert "| +20.0% | 5.0% | slower |" in text
    assert "<summary>5 within the tolerance</summary>" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gemm_dtype,m,n,k\nbfloat16,1,1,1\n", "gemm_perf.csv: lacks the column latency"),
        ("gemm_dtype,m,n,k,latency\nbfloat16,1,1,1,0\n", "gemm_perf.csv: latency: must be above 0 ms"),
        ("gemm_dtype,m,n,k,latency\nw2a2,1,1,1,1\n", "--against: holds no call that the profile says anything of"),
    ],
)
def test_a_table_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """Tables may be CSV; what they lack is said with the file."""
    (tmp_path / "gemm_perf.csv").write_text(text, encoding="utf-8")

    with pytest.raises(InputError, match=message):
        check_kernels(load_hardware(H100), tmp_path, "vllm", 0.05, H100)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    """With what belongs there."""
    with pytest.raises(InputError, match=r"--against: .* holds none of gemm_perf\.parquet"):
        check_kernels(load_hardware(H100), tmp_path, "vllm", 0.05, H100)


def test_all_reduces_on_pcie_are_predicted_as_a_replica_has_them() -> None:
    """A hop more for every rank, 8 beside 4 of them, where a tree has as many; and the wait for the last rank."""
    hardware = load_hardware("l40s-48gb")
    columns = {
        "message_size": np.full(3, 64),
        "num_gpus": np.array([2, 4, 8]),
    }
    two, four, eight = PREDICTORS["custom_allreduce_perf"](columns, hardware, "vllm")

    assert 1.6 < (eight - four) / (four - two) < 2.0
