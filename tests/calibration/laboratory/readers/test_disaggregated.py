"""Separate prefill and decode pools that were measured: which recipe a row ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibration.laboratory.readers.disaggregated import read_disaggregated
from simserve.planner.measured.point import NO_RECIPE, MeasuredPoint
from simserve.planner.validation.prediction import Pricer, predict
from tests.planner.builders import agg_row, write_csv


def pool_row(**changes: Any) -> dict[str, Any]:
    """Return a row of DeepSeek-R1 with prefill and decode workers of 8 H200 each, experts placed whole."""
    sizes = {f"{role}_{size}": 8 for role in ("prefill", "decode") for size in ("tp_size", "moe_ep_size")}
    given = {"framework": "trtllm", "model": "deepseek-ai/DeepSeek-R1", "hardware": "h200_sxm", "precision": "fp8"}
    return agg_row(**given, isl=1024, osl=1024) | {"load_value": 36} | sizes | changes


def read(folder: Path, **changes: Any) -> MeasuredPoint:
    """Return the point of one row."""
    write_csv(folder, "inferencex_disagg.csv", [pool_row(**changes)])
    return read_disaggregated(folder)[0]


def test_a_row_runs_the_recipe_that_has_its_clients(tmp_path: Path) -> None:
    """36 clients of TensorRT-LLM on H200: 1 prefill and 9 decode workers without drafts; TTFT is shown."""
    found = read(tmp_path)

    (only,) = found.pools
    assert (only.num_prefills, only.num_decodes, only.num_drafts) == (1, 9, 0)
    assert only.decode["deployment"]["tensor_parallel_size"] == 8
    assert only.decode["deployment"]["enable_expert_parallel"] is True
    assert only.decode["workload"]["arrivals"] == {"process": "closed_loop", "concurrency": 36}
    assert found.shown_only == {"ttft"}
    assert not found.reason


def test_data_parallel_workers_and_drafts_come_from_the_recipe(tmp_path: Path) -> None:
    """896 clients: 7 decode workers of 8 ranks, 3 drafts a step."""
    (only,) = read(tmp_path, load_value=896).pools

    assert (only.num_decodes, only.num_drafts) == (7, 3)
    assert only.decode["deployment"]["data_parallel_size"] == 8
    assert only.decode["deployment"].get("tensor_parallel_size", 1) == 1


def test_clients_of_several_recipes_leave_tpot_unscored(tmp_path: Path) -> None:
    """144 clients were served with and without drafts, and the row does not say."""
    found = read(tmp_path, load_value=144)

    assert [each.num_drafts for each in found.pools] == [0, 3]
    assert found.shown_only == {"tpot", "ttft"}


def test_experts_that_are_cut_belong_to_other_recipes(tmp_path: Path) -> None:
    """SGLang's workers with experts cut over all GPUs, and those with experts placed whole."""
    cut = {"prefill_moe_ep_size": 1, "decode_moe_ep_size": 1}

    low = read(tmp_path, framework="sglang", load_value=128, **cut)
    high = read(tmp_path, framework="sglang", load_value=128)

    assert {each.num_decodes for each in low.pools} == {9}
    assert {each.num_decodes for each in high.pools} == {6}


def test_clients_without_a_recipe_have_a_reason(tmp_path: Path) -> None:
    """They are counted, not guessed."""
    found = read(tmp_path, load_value=37)

    assert found.reason == NO_RECIPE
    assert predict(found, Pricer()).reason == NO_RECIPE


def test_prefill_workers_of_tensorrt_llm_have_data_parallel_attention(tmp_path: Path) -> None:
    """In every recipe, whatever the decode workers have; SGLang's have not."""
    (ours,) = read(tmp_path).pools
    (theirs, *_) = read(tmp_path, framework="sglang", load_value=128).pools

    assert ours.prefill["deployment"]["data_parallel_size"] == 8
    assert ours.decode["deployment"].get("data_parallel_size", 1) == 1
    assert theirs.prefill["deployment"].get("data_parallel_size", 1) == 1
