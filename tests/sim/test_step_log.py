"""The step log: the same rows whoever serves the requests, and none of it where nobody asks."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pandas as pd
import pytest

import simserve as ss
from simserve.errors import UsageError
from simserve.sim import step_log
from simserve.sim.step_log import COLUMNS

pytestmark = pytest.mark.usefixtures("run_alone")

CASES: dict[str, dict[str, Any]] = {
    "chatbot": {"deployment.replicas": 2},
    "preempted": {"deployment.engine.num_gpu_blocks_override": 300, "deployment.engine.max_model_len": 4000},
    "admitted": {"deployment.admission": {"max_queue": 4}, "workload.arrivals.rate": 60.0},
    "cached": {"workload.shared_prefix": {"num_groups": 3, "tokens": 512}},
}
RANKS = {"model": "deepseek-v3", "deployment.hardware": "h200-sxm-141gb", "deployment.data_parallel_size": 8}


def scenario(changes: dict[str, Any], num_requests: int = 600) -> ss.Scenario:
    """Return the chatbot with changes."""
    return ss.load("chatbot", {"workload.num_requests": num_requests, **changes})


def steps(changes: dict[str, Any], num_requests: int = 600, **how: Any) -> tuple[ss.RunResult, pd.DataFrame]:
    """Return a run, and its steps."""
    result = ss.run(scenario(changes, num_requests), steps=True, **how)
    return result, result.steps


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize("case", CASES)
def test_the_compiled_kernel_keeps_the_same_steps(case: str) -> None:
    """To the bit, whatever the scheduler does."""
    _, interpreted = steps(CASES[case], accelerate="off")
    _, compiled = steps(CASES[case], accelerate="on")

    pd.testing.assert_frame_equal(compiled, interpreted, check_exact=True)


@pytest.mark.parametrize("case", CASES)
def test_the_reference_keeps_the_same_steps(case: str) -> None:
    """Whole numbers are equal, and seconds to the rounding of sums."""
    _, plane = steps(CASES[case], 25)
    _, reference = steps(CASES[case], 25, by_reference=True)

    pd.testing.assert_frame_equal(reference, plane, check_exact=False, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_steps_add_up_to_the_run(case: str) -> None:
    """Steps, their seconds, who came and who went, and the tokens that were computed."""
    result, table = steps(CASES[case])
    totals, records = result.simulation.totals, result.simulation.records
    completed = result.summary["completed"]

    assert len(table) == totals.num_steps == table.attrs["num_steps_of_run"]
    assert table["seconds"].sum() == pytest.approx(totals.busy_seconds)
    assert table["num_finished"].sum() == completed
    assert table["num_admitted"].sum() - table["num_preempted"].sum() == completed
    assert table["num_preempted"].sum() == records.num_preemptions.sum()
    assert (case == "preempted") == (table["num_preempted"].sum() > 0)
    if case == "chatbot":
        assert table["prompt_tokens"].sum() + records.cached_tokens.sum() == records.prompt_tokens.sum()
        assert table["decode_tokens"].sum() == (records.output_tokens - 1).sum()


def test_the_context_is_what_the_sequences_have() -> None:
    """In a step that decodes alone behind another one, it has grown by a token a sequence that stays."""
    _, table = steps({}, 40)
    own = table[table["replica_id"] == 0].reset_index(drop=True)
    now, before = own.iloc[1:].reset_index(drop=True), own.iloc[:-1]
    is_steady = (
        (now["prompt_tokens"] == 0)
        & (before["prompt_tokens"] == 0)
        & (before["num_finished"] == 0)
        & (now["num_admitted"] == 0)
        & (now["decode_tokens"] == before["decode_tokens"])
    )
    grown = now["context_tokens"] - before["context_tokens"]

    assert is_steady.sum() > 100
    assert (grown[is_steady] == now["decode_tokens"][is_steady]).all()


def test_ranks_that_step_together_are_one_row() -> None:
    """Of a replica with data-parallel attention, at every instant one."""
    changes = {**RANKS, "deployment.tensor_parallel_size": 1, "deployment.quantization": "fp8"}
    result, table = steps(changes, 60)

    assert not table.duplicated(["replica_id", "start_s"]).any()
    assert table["num_finished"].sum() == result.summary["completed"]
    assert table["num_sequences"].max() > 1


def test_a_long_run_keeps_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is bounded, and says how many steps there were."""
    _, whole = steps({"deployment.replicas": 2}, 200, accelerate="off")
    monkeypatch.setattr(step_log, "MOST_STEPS", 100)
    monkeypatch.setattr("simserve.sim.recorder.FLUSH_ROWS", 16)
    monkeypatch.setattr("simserve.sim.recorder.FLUSH_ROWS_EACH", 8)
    result, table = steps({"deployment.replicas": 2}, 200, accelerate="off")

    assert len(table) == 100
    assert table.attrs["num_steps_of_run"] == len(whole) == result.summary["simserve"]["steps"]["count"]
    pd.testing.assert_frame_equal(table, whole.iloc[:100], check_exact=True)


def test_a_run_says_the_same_whether_or_not_it_keeps_its_steps() -> None:
    """Keeping them changes no figure."""
    kept, _ = steps({})
    plain = ss.run(scenario({}))

    assert kept.summary == plain.summary
    assert np.array_equal(kept.simulation.records.finish_time, plain.simulation.records.finish_time)


def test_a_run_without_steps_says_how_to_get_them() -> None:
    """In one line."""
    with pytest.raises(UsageError, match="steps: were not kept by this run; run it with steps=True"):
        ss.run(scenario({}, 20)).steps  # noqa: B018


def test_the_columns_are_these() -> None:
    """They are public: a new one is a decision."""
    _, table = steps({}, 20)

    assert tuple(table.columns) == COLUMNS
    assert str(table["start_s"].dtype) == "float64"
    assert str(table["num_finished"].dtype) == "int64"
