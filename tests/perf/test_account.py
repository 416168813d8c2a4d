"""The seconds of a run by operator: every operator enumerated once, and all of them the seconds of its steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.metrics.result import RunResult
from simserve.perf.operators import OPERATORS
from simserve.perf.stage import stage_blocks, stage_of, stage_parts
from simserve.perf.tables import Tables, tables_of
from simserve.scenario.resolve import resolve

pytestmark = pytest.mark.usefixtures("run_alone")

SMALL = ["workload.num_requests=150"]
BESIDE_THE_TABLES = {"rank_wait", "kv_copies", "lora", "image_encoder", "draft"}
"""Operators of a run that no table of a step holds."""
TWO_STAGES = ["deployment.tensor_parallel_size=2", "deployment.pipeline_parallel_size=2"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "tensor parallel, FP8": ("chatbot", []),
    "two stages": ("chatbot", [*TWO_STAGES, 'deployment.engine.version="0.33"']),
    "two stages, in turn": ("chatbot", [*TWO_STAGES, 'deployment.engine.version="0.20"']),
    "two stages, together": ("chatbot", TWO_STAGES),
    "experts": ("chatbot", ["model=gpt-oss-120b", "deployment.quantization=auto", "deployment.kv_cache_dtype=auto"]),
    "linear attention": ("chatbot", ["model=qwen3-next-80b-a3b"]),
    "states of prefixes": (
        "chatbot",
        [
            "model=nemotron-3-nano-30b-a3b",
            "deployment.quantization=auto",
            "deployment.kv_cache_dtype=auto",
            "deployment.tensor_parallel_size=1",
            "deployment.engine={name: vllm, version: '0.33', enable_prefix_caching: true}",
        ],
    ),
    "ranks in lockstep": (
        "chatbot",
        [
            "model=qwen3-30b-a3b",
            "deployment.tensor_parallel_size=1",
            "deployment.data_parallel_size=4",
            "deployment.enable_expert_parallel=true",
        ],
    ),
    "drafts": ("speculative-decoding", []),
    "swaps": ("swap-or-recompute", []),
    "prefill and decode": ("disaggregation", []),
    "images": ("images", []),
    "adapters": ("hundred-tenants", []),
    "a slow replica": ("chatbot", ["deployment.faults=[{kind: slow, at: '1 s', duration: '10 s', factor: 2}]"]),
    "layers on the CPU": (
        "chatbot",
        [
            "model=llama-3.1-8b",
            "deployment.tensor_parallel_size=1",
            "deployment.engine={name: vllm, cpu_offload_gb: 4}",
        ],
    ),
}


def run_of(name: str, changes: list[str], **options: Any) -> RunResult:
    """Return a small run of a bundled scenario."""
    return ss.run(ss.load(name, [*SMALL, *changes]), advise=False, **options)


@cache
def ran(case: str) -> RunResult:
    """Return one of these runs with its steps: one for all tests."""
    return run_of(*RUNS[case], steps=True)


def operators_of(result: RunResult) -> dict[str, float]:
    """Return what `result.json` says."""
    found: dict[str, float] = result.summary["simserve"]["steps"]["seconds_by_operator"]
    return found


def tables_by_operator(result_of: str, changes: list[str]) -> Tables:
    """Return the tables of a scenario's deployment with operators kept apart, for every entry."""
    shape = resolve(ss.load(result_of, [*SMALL, *changes])).shape
    stage = replace(stage_of(shape), splits_operators=True)
    every = np.arange(shape.engine.max_num_batched_tokens + 1.0)
    return tables_of(stage, every, np.arange(shape.engine.max_num_seqs + 1.0), every)


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_operators_sum_to_the_busy_seconds(case: str) -> None:
    """To 1e-9, against the step log, which knows no operator; nothing is negative, every name is there.

    Of ranks in lockstep the log has a row for all, while each of them is busy.
    """
    result = ran(case)
    found = operators_of(result)
    busy = float(result.steps["seconds"].sum())
    if case == "ranks in lockstep":
        busy = result.simulation.totals.busy_seconds

    assert sum(found.values()) == pytest.approx(busy, rel=1e-9)
    assert list(found) == list(OPERATORS)
    assert min(found.values()) >= 0.0


@pytest.mark.parametrize("case", ["tensor parallel, FP8", "experts", "linear attention", "states of prefixes"])
@pytest.mark.parametrize("mode", [[], ["deployment.engine.cudagraph_mode=FULL"]])
def test_each_operator_is_the_sum_over_the_log(case: str, mode: list[str]) -> None:
    """Step by step from the log's batches, each operator but two: contexts, and waits for launches, are in no table.

    One graph for a whole step waits for no launch, so that contexts are all that is left.
    """
    scenario, changes = RUNS[case]
    result = run_of(scenario, [*changes, *mode], steps=True)
    tables = tables_by_operator(scenario, [*changes, *mode])
    log, expected = result.steps, dict.fromkeys(OPERATORS, 0.0)
    for decoding, prompt, sequences in zip(
        log["decode_tokens"], log["prompt_tokens"], log["num_sequences"], strict=True
    ):
        entries = [(tables.decode, decoding)]
        if prompt:
            entries = [
                (tables.token, decoding + prompt),
                (tables.sequence, sequences),
                (tables.decode_attention, decoding),
            ]
        for table, entry in entries:
            for operator, seconds in (table.shares or {}).items():
                expected[operator] += float(seconds[entry])
    found = operators_of(result)
    untold = float(log["seconds"].sum()) - sum(expected.values())
    for operator in ("attention",) if mode else ("attention", "host"):
        assert found[operator] >= expected[operator]
        untold -= found[operator] - expected.pop(operator)

    assert untold == pytest.approx(0.0, abs=1e-6)
    assert {operator: found[operator] for operator in expected} == pytest.approx(expected, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("case", ["tensor parallel, FP8", "prefill and decode", "swaps"])
def test_kernels_agree(case: str) -> None:
    """Interpreted and compiled, the same seconds; twice interpreted, the same bytes."""
    pytest.importorskip("numba")
    interpreted, again = (operators_of(run_of(*RUNS[case], accelerate="off")) for _ in range(2))
    compiled = operators_of(run_of(*RUNS[case], accelerate="on"))

    assert interpreted == again
    assert compiled == pytest.approx(interpreted, rel=1e-12, abs=1e-12)


def test_what_no_table_holds_is_told() -> None:
    """Drafts, swaps, images and adapters have names of their own; ranks wait for the fullest."""
    found = {case: operators_of(ran(case)) for case in RUNS}

    assert found["drafts"]["draft"] > 0
    assert found["swaps"]["kv_copies"] > 0
    assert found["images"]["image_encoder"] > 0
    assert found["adapters"]["lora"] > 0
    assert found["ranks in lockstep"]["rank_wait"] > 0
    assert found["ranks in lockstep"]["all_to_all"] > 0
    assert found["two stages"]["pipeline_transfer"] > 0
    assert found["layers on the CPU"]["offload"] > 0


@pytest.mark.slow
def test_every_operator_is_enumerated_once() -> None:
    """The calls of all runs' layers with what their tables add are the whole list, and each call is one of them."""
    named: set[str] = set()
    for name, changes in RUNS.values():
        resolved = resolve(ss.load(name, [*SMALL, *changes]))
        for each in resolved.pools or (resolved,):
            stage = stage_of(each.shape)
            calls = [call.operator for block in stage_blocks(stage) for call in block.calls]
            assert set(calls) <= set(OPERATORS)
        tables = tables_by_operator(name, changes)
        for table in (tables.decode, tables.token, tables.sequence, tables.shared):
            named |= set(table.shares or {})

    assert named | BESIDE_THE_TABLES == set(OPERATORS)
    assert not named & BESIDE_THE_TABLES


@pytest.mark.parametrize("case", RUNS)
def test_shares_sum_to_the_parts(case: str) -> None:
    """In every table, for every entry; and keeping operators apart moves no second by a bit."""
    tables = tables_by_operator(*RUNS[case])
    stage = stage_of(resolve(ss.load(RUNS[case][0], [*SMALL, *RUNS[case][1]])).shape)
    tokens = np.arange(1.0, 65.0)

    for table in (tables.decode, tables.token, tables.token_beyond, tables.sequence, tables.decode_attention):
        assert table.shares is not None
        assert sum(table.shares.values()) == pytest.approx(table.parts.sum(axis=0), rel=1e-9, abs=1e-15)
    apart = stage_parts(replace(stage, splits_operators=True), tokens)
    assert np.array_equal(apart, stage_parts(stage, tokens))


def test_a_fidelity_is_of_an_operator() -> None:
    """What `fidelity_by_operator` names is in the one list."""
    named = {name for case in RUNS for name in ran(case).summary["simserve"]["fidelity_by_operator"]}

    assert named <= set(OPERATORS)


def test_micro_batches_do_not_change_the_arithmetic_that_is_done() -> None:
    """Requests that stay together are priced like more of them, and compute what those compute that are spread.

    But for the tokens of finished requests in steps that are scheduled ahead, which the newer release has.
    """
    together, spread = ran("two stages, together").simulation.totals, ran("two stages").simulation.totals

    assert together.flops == pytest.approx(spread.flops, rel=2e-4)
