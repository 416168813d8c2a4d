"""Separate prefill and decode pools that were measured: which recipe a row ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration.laboratory.readers.disaggregated import (
    read_disaggregated,
    read_disaggregated_blackwell,
)
from calibration.laboratory.readers.disaggregated_recipes import _RECIPES, prefill_of, recipes_of
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
    """36 clients of TensorRT-LLM on H200: 1 prefill and 9 decode workers without drafts."""
    found = read(tmp_path)

    (only,) = found.pools
    assert (only.num_prefills, only.num_decodes, only.num_drafts) == (1, 9, 0)
    assert only.decode["deployment"]["tensor_parallel_size"] == 8
    assert only.decode["deployment"]["enable_expert_parallel"] is True
    assert only.decode["workload"]["arrivals"] == {"process": "closed_loop", "concurrency": 36}
    assert found.shown_only == {"ttft", "throughput"}
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
    assert found.shown_only == {"tpot", "ttft", "throughput"}


def test_experts_that_are_cut_belong_to_other_recipes(tmp_path: Path) -> None:
    """SGLang's prefill workers with experts cut over all GPUs, and those with experts placed whole."""
    cut = {"prefill_moe_ep_size": 1, "decode_moe_ep_size": 1}

    low = read(tmp_path, framework="sglang", load_value=128, **cut)
    high = read(tmp_path, framework="sglang", load_value=128)

    assert {each.num_decodes for each in low.pools} == {9}
    assert {each.num_decodes for each in high.pools} == {6}


def test_what_a_row_says_of_decode_workers_is_not_believed(tmp_path: Path) -> None:
    """It repeats the prefill workers: behind experts that are cut, SGLang's ranks with placed ones decode as well."""
    cut = {"prefill_moe_ep_size": 1, "decode_moe_ep_size": 1}

    found = read(tmp_path, framework="sglang", isl=8192, load_value=256, **cut).pools

    assert [(each.num_prefills, each.num_decodes, each.num_drafts) for each in found] == [(1, 1, 0), (1, 1, 2)]
    assert {each.decode["deployment"]["data_parallel_size"] for each in found} == {8}


def test_caches_leave_slowly_where_they_pass_through_the_host(tmp_path: Path) -> None:
    """TensorRT-LLM's on H200; SGLang's decode worker is told of a prompt later."""
    (ours,) = read(tmp_path).pools
    (theirs, *_) = read(tmp_path, framework="sglang", load_value=128).pools

    assert ours.port_bandwidth < theirs.port_bandwidth
    assert ours.kv_transfer_seconds < theirs.kv_transfer_seconds


def test_clients_without_a_recipe_have_a_reason(tmp_path: Path) -> None:
    """They are counted, not guessed."""
    found = read(tmp_path, load_value=37)

    assert found.reason == NO_RECIPE
    assert predict(found, Pricer()).reason == NO_RECIPE


def test_prefill_workers_are_the_recipes_own(tmp_path: Path) -> None:
    """TensorRT-LLM's on H200 compute short prompts in ranks, 8 a step, and long ones together, 2 a step; SGLang's
    together wherever what decodes behind them does."""
    (short,) = read(tmp_path).pools
    (long,) = read(tmp_path, isl=8192, load_value=768).pools
    (theirs, *_) = read(tmp_path, framework="sglang", load_value=128, prefill_moe_ep_size=1).pools

    assert short.prefill["deployment"]["data_parallel_size"] == 8
    assert short.prefill["deployment"]["engine"]["max_num_seqs"] == 8
    assert short.decode["deployment"].get("data_parallel_size", 1) == 1
    assert long.prefill["deployment"]["tensor_parallel_size"] == 8
    assert long.prefill["deployment"]["engine"]["max_num_seqs"] == 2
    assert theirs.prefill["deployment"].get("data_parallel_size", 1) == 1


def test_decode_workers_have_the_seats_of_the_recipe(tmp_path: Path) -> None:
    """6 clients share 3 workers of 16 H100 that take one request each, 924 three of 16 ranks that take 16."""
    gpus = dict.fromkeys(("prefill_tp_size", "prefill_moe_ep_size", "decode_tp_size", "decode_moe_ep_size"), 16)

    (few, _), (many,) = (read(tmp_path, hardware="h100_sxm", load_value=clients, **gpus).pools for clients in (6, 924))

    assert (few.num_decodes, few.decode["deployment"]["engine"]["max_num_seqs"]) == (3, 1)
    assert (many.num_decodes, many.decode["deployment"]["engine"]["max_num_seqs"]) == (3, 16)
    assert many.decode["deployment"]["data_parallel_size"] == 16


def test_clients_without_a_seat_wait_for_one(tmp_path: Path) -> None:
    """Where 6 clients share 3 seats, half of their time passes before the first token."""
    gpus = dict.fromkeys(("prefill_tp_size", "prefill_moe_ep_size", "decode_tp_size", "decode_moe_ep_size"), 16)
    found = predict(read(tmp_path, hardware="h100_sxm", load_value=6, **gpus), Pricer()).predicted

    assert 0.8 < found["ttft"] / (found["tpot"] * 921) < 1.2


def test_throughput_is_that_of_the_closed_loop(tmp_path: Path) -> None:
    """36 clients, 921.6 tokens an answer, 50 ms and 20 ms a token; of the replay likewise, without ramp and drain."""
    found = read(tmp_path)
    said = predict(found, Pricer()).predicted

    assert found.measured["throughput"] == pytest.approx(36 * 921.6 / (0.05 + 0.02 * 920.6))
    assert said["throughput"] == pytest.approx(36 * 921.6 / (said["ttft"] + said["tpot"] * 920.6), rel=0.02)


def blackwell(folder: Path, **changes: Any) -> MeasuredPoint:
    """Return the point of one row of GB200 in NVFP4 under TensorRT-LLM."""
    given = {"hardware": "gb200", "precision": "fp4", "version": "0.8.1.post2", "load_value": 666}
    write_csv(folder, "inferencex_disagg_blackwell.csv", [pool_row(**(given | changes))])
    return read_disaggregated_blackwell(folder)[0]


def test_blackwell_rows_run_recipes_of_their_own(tmp_path: Path) -> None:
    """32 ranks of GB200 take 16 requests each, weights are NVFP4; containers before 0.8.1 ran older recipes."""
    (only,) = blackwell(tmp_path).pools
    old = blackwell(tmp_path, version="0.5.1-rc0.pre3")

    assert only.decode["deployment"]["data_parallel_size"] == 32
    assert only.decode["deployment"]["engine"]["max_num_seqs"] == 16
    assert only.decode["deployment"]["quantization"] == "nvfp4"
    assert old.reason == NO_RECIPE


def test_wide_experts_of_tensorrt_llm_on_gb200_agree_with_both_sides(tmp_path: Path) -> None:
    """WIDEEP's exchange from 16 ranks on; fewer take the engine's own."""
    (wide,) = blackwell(tmp_path).pools
    (narrow, *_) = blackwell(tmp_path, load_value=6144).pools

    assert wide.decode["deployment"]["all2all_backend"] == "nvlink_two_sided"
    assert narrow.decode["deployment"]["data_parallel_size"] == 4
    assert "all2all_backend" not in narrow.decode["deployment"]


def test_wide_experts_of_sglang_on_gb200_exchange_tokens_by_deepep(tmp_path: Path) -> None:
    """Low latency where they decode, high throughput where they prefill, 32 redundant experts."""
    found = blackwell(tmp_path, framework="sglang", version="0.5.8", precision="fp8", load_value=6144)

    (only,) = found.pools
    assert only.decode["deployment"]["all2all_backend"] == "deepep_low_latency"
    assert only.prefill["deployment"]["all2all_backend"] == "deepep_high_throughput"
    assert only.decode["deployment"]["num_redundant_experts"] == 32


@pytest.mark.parametrize(("precision", "clients", "ranks", "budget"), [("fp8", 1024, 8, 4096), ("fp4", 64, 4, 8192)])
def test_ranks_of_sglang_on_b200_share_a_chunk(
    tmp_path: Path, precision: str, clients: int, ranks: int, budget: int
) -> None:
    """32,768 tokens a step for all ranks of a prefill worker, and 128 requests each; without ranks one has them all."""
    asked = {"hardware": "b200_sxm", "framework": "sglang", "version": "0.5.8"}
    (found, *_) = blackwell(tmp_path, **asked, precision=precision, load_value=clients, prefill_tp_size=ranks).pools
    (alone, *_) = blackwell(tmp_path, **asked, precision="fp8", load_value=64).pools

    engine = found.prefill["deployment"]["engine"]
    assert found.prefill["deployment"]["data_parallel_size"] == ranks
    assert (engine["max_num_batched_tokens"], engine["max_num_seqs"]) == (budget, 128)
    assert alone.prefill["deployment"]["engine"]["max_num_batched_tokens"] == 32768


@pytest.mark.parametrize(
    ("precision", "prompt", "clients", "seats", "budget"),
    [("fp4", 1024, 32, 8, 8192), ("fp4", 8192, 8, 4, 24576), ("fp8", 8192, 16, 4, 24576)],
)
def test_workers_of_sglang_on_gb200_without_ranks_hold_few_prompts(
    tmp_path: Path, precision: str, prompt: int, clients: int, seats: int, budget: int
) -> None:
    """Recipes say the tokens that a prefill worker holds; decode workers look for requests every 10 steps."""
    asked = {"framework": "sglang", "version": "0.5.8", "isl": prompt}
    low = blackwell(tmp_path, **asked, precision=precision, load_value=clients)
    wide = blackwell(tmp_path, **asked, precision="fp4", load_value=2048)

    engine = low.pools[0].prefill["deployment"]["engine"]
    assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (seats, budget)
    assert (low.protocol.polled_tokens, wide.protocol.polled_tokens) == (10.0, 0.0)


@pytest.mark.parametrize(("precision", "clients", "backend"), [("fp8", 64, "flashinfer_trtllm"), ("fp4", 64, None)])
def test_only_fp8_weights_choose_products_of_fp8(
    tmp_path: Path, precision: str, clients: int, backend: str | None
) -> None:
    """NVFP4 checkpoints have no weights with scales by blocks."""
    asked = {"hardware": "b200_sxm", "framework": "sglang", "version": "0.5.8"}
    (found, *_) = blackwell(tmp_path, **asked, precision=precision, load_value=clients).pools

    assert found.prefill["deployment"]["engine"].get("fp8_gemm_backend") == backend


def test_every_recipe_can_be_read() -> None:
    """Names follow one pattern, and each has a prefill worker."""
    for key, rows in _RECIPES.items():
        for clients, name in rows:
            found = [each for count in clients for each in recipes_of(key, count, None)]

            assert found, name
            assert all(prefill_of(key, each.layout).seats > 0 for each in found)
