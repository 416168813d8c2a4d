"""Tests of the result files."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import yaml

from simserve.metrics.files import _write_table, write_result
from simserve.metrics.latency import SLO
from simserve.metrics.result import Column, RunResult
from simserve.metrics.summary import frozen, summarize
from tests.metrics.builders import make_facts, make_simulation, make_slo, single_server_queue


def make_result(num_requests: int = 5000, slo: SLO | None = None) -> RunResult:
    """Return the result of an M/M/1 queue."""
    simulation = make_simulation(single_server_queue(load=0.8, num_requests=num_requests, seed=1))
    return RunResult(
        summary=frozen(summarize(simulation, make_facts(slo=slo))),
        scenario={"name": "test", "workload": {"num_requests": num_requests, "note": "é"}},
        simulation=simulation,
        slo=slo,
    )


def rows(path: Path, query: str = "SELECT *") -> list[Any]:
    """Return the rows of a query on a file."""
    with duckdb.connect(":memory:") as connection:
        return connection.execute(f"{query} FROM '{path}'").fetchall()


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    """No date, no path, no order of threads."""
    result = make_result(slo=make_slo(ttft=2.0))

    first, second = write_result(result, tmp_path / "a"), write_result(result, tmp_path / "deeper" / "b")

    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_files_say_what_the_result_says(tmp_path: Path) -> None:
    """Every row and every figure, in order."""
    result = make_result(slo=make_slo(ttft=2.0))

    write_result(result, tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "requests.parquet",
        "result.json",
        "scenario.resolved.yaml",
        "timeseries.parquet",
    ]
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(result.summary))
    assert yaml.safe_load((tmp_path / "scenario.resolved.yaml").read_text(encoding="utf-8")) == result.scenario
    table = rows(tmp_path / "requests.parquet", "SELECT request_id, status, e2el_ms, slo_ok, class")
    assert [row[0] for row in table] == list(range(5000))
    assert {row[1] for row in table} == {"completed"}
    assert [row[2] for row in table] == result.requests["e2el_ms"].tolist()
    assert np.mean([row[3] for row in table]) == result.requests["slo_ok"].mean()
    assert {row[4] for row in table} == {None}
    assert len(rows(tmp_path / "timeseries.parquet")) == 3


def test_the_columns_of_a_table_have_one_type_whatever_is_in_them(tmp_path: Path) -> None:
    """Nulls throughout, as without an SLO, change no type."""
    write_result(make_result(10), tmp_path / "without")
    write_result(make_result(10, slo=make_slo(ttft=1.0)), tmp_path / "with")

    described = [rows(tmp_path / name / "requests.parquet", "DESCRIBE SELECT *") for name in ("without", "with")]

    assert described[0] == described[1]
    assert ("slo_ok", "BOOLEAN") in [row[:2] for row in described[0]]


def test_undefined_is_null(tmp_path: Path) -> None:
    """In JSON and in Parquet; not NaN."""
    result = make_result(0)

    write_result(result, tmp_path)

    assert json.loads((tmp_path / "result.json").read_text())["mean_ttft_ms"] is None
    assert rows(tmp_path / "requests.parquet") == []


def test_a_table_written_by_this_path_keeps_its_name(tmp_path: Path) -> None:
    """A quote in a folder's name is a character like any other."""
    folder = tmp_path / "it's here"

    write_result(make_result(3), folder)

    assert (folder / "requests.parquet").exists()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """Where a folder stands in the way of a file, the error says so and no half of it stays."""
    (tmp_path / "requests.parquet").mkdir()

    with pytest.raises(OSError, match=r"requests\.parquet"):
        write_result(make_result(3), tmp_path)

    assert not (tmp_path / "result.json").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_said_in_four_words(tmp_path: Path) -> None:
    """Not by the range and the JSON of DuckDB's message."""

    class Full:
        """A database whose disk is full."""

        def register(self, *_: object) -> None:
            """Take a table."""

        unregister = register

        def execute(self, _: str) -> None:
            """Fail as DuckDB does."""
            raise duckdb.IOException('Async write failed for range [..]: {"message":"No space left on device"}')

    with pytest.raises(OSError, match="No space left on device") as caught:
        _write_table(Full(), tmp_path / "t.parquet", [Column("a", np.array([1]), "BIGINT")])

    assert (caught.value.errno, caught.value.strerror) == (errno.ENOSPC, "No space left on device")
