"""The memory of each pool of a scenario, and where its keys are said to stand."""

from __future__ import annotations

import json

import pytest

from simserve.api import run
from simserve.report.facts import memory_lines
from simserve.report.html import render_report
from simserve.scenario.load import load
from tests.cli.conftest import Simserve

POOLS = "halve-the-api-bill"
LARGE = "deployment.pools.1"


def test_each_pool_has_a_plan_of_its_own(simserve: Simserve) -> None:
    """By name, with its role; the figures above are the first one's, GPUs those of the whole fleet."""
    report = json.loads(simserve("memory", POOLS, "--json").stdout)
    told = simserve("memory", "disaggregation").stdout

    small, large = report["pools"]["small"], report["pools"]["large"]
    assert (small["model"], large["model"]) == ("llama-3.1-8b", "llama-3.1-70b")
    assert report["num_gpus"] == small["num_gpus"] + large["num_gpus"] == 12
    assert report["num_kv_blocks"] == small["num_kv_blocks"] != large["num_kv_blocks"]
    assert large["weights_bytes"] * 2 == pytest.approx(72.66e9, rel=1e-3)
    assert "pool prefill (prefill), 2 replicas: llama-3.1-8b on 2 x h100-sxm-80gb: fits" in told
    assert "pool decode (decode), 2 replicas: " in told


def test_a_pool_that_does_not_fit_is_named_with_its_remedy(simserve: Simserve) -> None:
    """The first one fits; what is offered is a key of the pool where the pool has it."""
    outcome = simserve("memory", POOLS, "--set", f"{LARGE}.tensor_parallel_size=1")

    assert outcome.code == 3
    assert "pool large, 4 replicas: llama-3.1-70b on 4 x h100-sxm-80gb: does not fit" in outcome.stdout
    assert outcome.error_line.startswith("pool large: KV cache smaller than one full-length request")
    change = f"{LARGE}.tensor_parallel_size=2"
    assert f"--set {change}" in outcome.error_line
    assert simserve("memory", POOLS, "--set", change).code == 0


@pytest.mark.parametrize(
    ("key", "value", "blamed"),
    [
        (f"{LARGE}.tensor_parallel_size", "3", f"--set {LARGE}.tensor_parallel_size: 3 must divide"),
        (f"{LARGE}.hardware", "h2020", f"--set {LARGE}.hardware: 'h2020' is not a known hardware"),
        (f"{LARGE}.model", "llama-9", f"--set {LARGE}.model: 'llama-9' is not a known model"),
        ("deployment.tensor_parallel_size", "3", "--set deployment.tensor_parallel_size: 3 must divide"),
    ],
)
def test_a_fault_is_blamed_on_the_key_of_the_pool(simserve: Simserve, key: str, value: str, blamed: str) -> None:
    """Or on the deployment's, which a pool without its own takes."""
    assert simserve("memory", POOLS, "--set", f"{key}={value}").error_line.startswith(blamed)


def test_a_file_s_pool_is_blamed_by_its_place(simserve: Simserve) -> None:
    """File, key and rule, as for any other key; keys in the rule and the remedy stand at the pool too."""
    scenario = load(POOLS, [f"{LARGE}.quantization=mxfp4"])

    alone = scenario.cut_down_to(1)

    assert alone.pool_alone == "large"
    assert alone.with_keys_placed("--set deployment.quantization=fp8") == f"--set {LARGE}.quantization=fp8"
    assert alone.with_keys_placed("deployment.engine.version") == "deployment.engine.version"
    assert scenario.with_keys_placed("--set deployment.quantization=fp8") == "--set deployment.quantization=fp8"
    told = simserve("memory", POOLS, "--set", f"{LARGE}.quantization=mxfp4").stdout
    assert f"--set {LARGE}.quantization=" in told.partition("pool small")[0]


def test_the_memory_of_every_pool_is_in_the_result() -> None:
    """In JSON, in the lines of a run and on its page."""
    result = run(load(POOLS, ["workload.num_requests=30"]))

    pools, lines = result.summary["simserve"]["pools"], memory_lines(result)
    assert pools["small"]["memory"] == result.summary["simserve"]["memory"]
    assert pools["large"]["memory"]["weights_bytes"] > pools["small"]["memory"]["weights_bytes"]
    assert lines[0].startswith("a replica of the pool small: weights 16.06 GB")
    (large,) = [line for line in lines if line.startswith("a replica of the pool large: weights 36.33 GB")]
    page = render_report(result)
    assert large.partition(";")[0] in page
    assert "Memory of one GPU, pool small" in page
