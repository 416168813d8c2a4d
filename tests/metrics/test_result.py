"""Tests of RunResult."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from simserve.metrics.result import RunResult
from simserve.metrics.summary import frozen, summarize
from simserve.sim.records import FAILED
from tests.metrics.builders import make_facts, make_records, make_simulation, make_slo


def make_result(**facts: Any) -> RunResult:
    """Return the result of two requests, one of which failed."""
    slo = make_slo(ttft=1.0)
    simulation = make_simulation(make_records([0.0, 1.0], e2e=[3.0, float("nan")], status=[0, FAILED]))
    summary = summarize(simulation, make_facts(slo=slo, **facts))
    return RunResult(summary=frozen(summary), scenario={"name": "test"}, simulation=simulation, slo=slo)


def test_the_summary_cannot_be_changed() -> None:
    """At any level, by any method."""
    summary: Any = make_result().summary

    for change in (
        lambda: summary.update(completed=5),
        lambda: summary["simserve"].__setitem__("seed", 2),
        lambda: summary["simserve"]["slo"].pop("attainment"),
        lambda: summary.__ior__({"completed": 5}),
        lambda: summary.clear(),
    ):
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert isinstance(summary["simserve"]["thresholds"], tuple)


def test_the_summary_is_a_dictionary_all_the_same() -> None:
    """JSON writes it, pickle carries it to another process, a deep copy is free to change."""
    summary: Any = make_result(thresholds={"ttft_ms": ["avg<5"]}).summary

    plain = copy.deepcopy(summary)
    plain["simserve"]["seed"] = 2

    assert json.loads(json.dumps(summary)) != plain
    assert pickle.loads(pickle.dumps(summary)) == summary
    assert summary["simserve"]["seed"] == 1


def test_failed_thresholds_are_told_with_their_value() -> None:
    """Those that hold are not."""
    result = make_result(thresholds={"ttft_ms": ["p(95)<500", "max<5000"], "tpot_ms": ["avg<1"]})

    assert result.threshold_failures == ["ttft_ms p(95)<500: 1000", "tpot_ms avg<1: 500"]


def test_requests_are_a_table() -> None:
    """One row a request, the columns of `requests.parquet`."""
    requests = make_result().requests

    names = (
        "request_id class session_id turn replica_id status arrival_s admitted_s scheduled_s first_token_s "
        "finish_s prompt_tokens cached_tokens output_tokens ttft_ms tpot_ms itl_max_ms "
        "e2el_ms num_preemptions slo_ok served_by"
    )
    assert list(requests.columns) == names.split()
    assert requests["status"].tolist() == ["completed", "failed"]
    assert requests["e2el_ms"].iloc[0] == 3000.0
    assert requests["slo_ok"].tolist() == [True, False]
    assert requests["class"].isna().all()


def test_the_time_series_is_a_table() -> None:
    """One row a bin."""
    series = make_result().timeseries

    assert series["start_s"].tolist() == [0.0, 1.0, 2.0]
    assert series["end_s"].tolist() == [1.0, 2.0, 3.0]
    assert {"running", "waiting", "kv_usage", "busy"} < set(series.columns)


@pytest.mark.slow
def test_figures_need_no_heavy_import() -> None:
    """A run on the terminal pays for neither pandas nor scipy nor duckdb."""
    program = (
        "import sys, simserve.metrics.files, simserve.metrics.replications, simserve.metrics.summary\n"
        "print(sorted({'pandas', 'scipy', 'duckdb', 'simpy', 'matplotlib'} & set(sys.modules)))"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert output.strip() == "[]"
