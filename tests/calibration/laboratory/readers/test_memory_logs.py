"""Measured KV rooms: how logs become deployments, and the plan against every log that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration.laboratory.readers.memory_logs import PLANNER_FILE, REPLAYS_FILE, read_memory
from calibration.laboratory.scoring.accuracy import accuracy_page
from calibration.laboratory.sources import read_memory_logs
from simserve.errors import InputError
from simserve.planner.validation.scoring import OF_GPU, OF_KV, compare_memory
from simserve.planner.validation.validate import validate
from simserve.units import GIB
from tests.planner.builders import agg_row, write_csv

DATA = Path(__file__).resolve().parents[5] / "shared" / "data" / "measured"


def _planner_row(**changes: Any) -> dict[str, Any]:
    return {
        "hardware": "H100 80GB (79.18 GiB)",
        "framework": "vLLM",
        "model": "Llama-3.1-8B",
        "weights_gib": 14.99,
        "activation_peak_gib": 4.76,
        "non_torch_gib": 0.13,
        "kv_cache_gib": 51.38,
        "tp": 1,
        "gpu_memory_utilization": 0.9,
        "max_model_len": 16000,
        **changes,
    }


def test_the_kv_of_llama_8b_is_what_vllm_logged(tmp_path: Path) -> None:
    """51.38 GiB on an H100 at 0.9: llm-d-planner's table."""
    write_csv(tmp_path, PLANNER_FILE, [_planner_row()])

    (compared,) = compare_memory(read_memory(tmp_path))

    assert compared.predicted_bytes / GIB == pytest.approx(51.38, rel=OF_KV)
    assert compared.is_within


def test_a_share_that_the_parts_contradict_is_theirs(tmp_path: Path) -> None:
    """64.38 + 7.38 + 0.13 + 3.33 are 0.95 of 79.18 GiB, not 0.9."""
    parts = {"weights_gib": 64.38, "activation_peak_gib": 7.38, "kv_cache_gib": 3.33}
    write_csv(tmp_path, PLANNER_FILE, [_planner_row(), _planner_row(model="gpt-oss-120b (MoE)", **parts)])

    engines = [each.scenario["deployment"]["engine"] for each in read_memory(tmp_path)]

    assert [each["gpu_memory_utilization"] for each in engines] == [0.9, 0.95]


def test_a_log_in_tokens_is_compared_in_whole_blocks(tmp_path: Path) -> None:
    """1,000 tokens of 131,072 B; a replay without the figure is left out."""
    note = "max_num_seqs=256 max_num_batched_tokens=2048; kv_cache=1000 tokens"
    row = agg_row(hardware="RTX4090", model="meta-llama/Llama-3.1-8B", version="0.19.0", precision="bfloat16", tp=1)
    rows = [{**row, "notes": notes} for notes in (note, "kv_cache= tokens")]
    write_csv(tmp_path, REPLAYS_FILE, rows)

    (compared,) = compare_memory(read_memory(tmp_path))

    assert compared.measured_bytes == 1000 * 131072
    assert compared.predicted_bytes % (16 * 131072) == 0


def test_validate_shows_the_memory(tmp_path: Path) -> None:
    """In the summary and on the page; asked for alone it replays nothing."""
    write_csv(tmp_path, PLANNER_FILE, [_planner_row()])

    validation = validate(tmp_path, ["memory"])

    assert not validation.predictions
    (row,) = validation.summary["memory"]
    assert (row["model"], row["measured_kv_gib"]) == ("llama-3.1-8b", pytest.approx(51.38))
    assert "1 of 1 are within" in accuracy_page(validation, "2026-11-30")


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/measured")
def test_every_logged_room_is_within() -> None:
    """KV within 1 % of the GPU's memory, and 3 % of the KV where it exceeds a third; on H100 half of that."""
    compared = compare_memory(read_memory(DATA))

    assert len(compared) == 5
    assert [each.summary for each in compared if not each.is_within] == []
    h100 = [each for each in compared if each.measured.hardware.startswith("h100")]
    assert all(abs(each.error_of_gpu) <= OF_GPU / 2 for each in h100)


def test_logs_that_are_asked_for_must_be_there(tmp_path: Path) -> None:
    """By name, with and without a folder; otherwise there are none."""
    for folder in (None, tmp_path):
        with pytest.raises(InputError, match="needs memory_kv_capacity"):
            read_memory_logs(folder, ["memory"])

    assert read_memory_logs(tmp_path) == []
