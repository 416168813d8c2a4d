"""A result read back from its folder."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import duckdb
import numpy as np
import pytest

from simserve import api
from simserve.errors import InputError
from simserve.metrics.files import _database, _read_table, _write_table, read_result, write_result, write_table
from simserve.metrics.result import Column, RunResult

_UNTOLD = ("reason", "is_truncated", "itl_max")


@pytest.fixture(scope="module")
def result() -> RunResult:
    """Return a run with preemptions and an SLO."""
    overrides = ["workload.num_requests=120", "deployment.engine.max_num_seqs=64", 'slo={ttft: "9 s", attainment: 0.9}']
    return api.run(api.load("batch-size-sweet-spot", overrides))


def test_what_was_written_is_what_is_read(result: RunResult, tmp_path: Path) -> None:
    """Summary, scenario, every column, every total, the gaps between tokens, what pictures need."""
    write_result(result, tmp_path)

    again = read_result(tmp_path)

    assert json.loads(json.dumps(again.summary)) == json.loads(json.dumps(result.summary))
    assert (again.scenario, again.slo) == (result.scenario, result.slo)
    assert json.loads(json.dumps(again.background)) == json.loads(json.dumps(result.background))
    for each in fields(result.simulation.records):
        one, other = (getattr(found.simulation.records, each.name) for found in (result, again))
        if each.name not in _UNTOLD and isinstance(one, np.ndarray):
            assert np.array_equal(one, other, equal_nan=True), each.name
    for each in fields(result.simulation.totals):
        one, other = (getattr(found.simulation.totals, each.name) for found in (result, again))
        if each.name not in ("itl", "series", "accounts"):
            assert one == other, each.name
    assert np.array_equal(again.simulation.totals.itl.counts, result.simulation.totals.itl.counts)
    assert again.simulation.totals.itl.percentile(99) == result.simulation.totals.itl.percentile(99)
    for each in fields(result.simulation.totals.series):
        one, other = (getattr(found.simulation.totals.series, each.name) for found in (result, again))
        assert np.array_equal(one, other), each.name


def test_requests_of_a_stored_result_are_those_of_the_run(result: RunResult, tmp_path: Path) -> None:
    """The same table, status and verdict included."""
    write_result(result, tmp_path)

    again = read_result(tmp_path).requests

    assert again.drop(columns="itl_max_ms").equals(result.requests.drop(columns="itl_max_ms"))
    assert np.allclose(again["itl_max_ms"], result.requests["itl_max_ms"], rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["result.json", "requests.parquet", "timeseries.parquet", "scenario.resolved.yaml"])
def test_a_missing_file_is_named(result: RunResult, tmp_path: Path, name: str) -> None:
    """And that a run writes it."""
    write_result(result, tmp_path)
    (tmp_path / name).unlink()

    with pytest.raises(InputError, match=f"holds no {name}"):
        read_result(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"simserve": 1}', '{"simserve": {"scenario_hash": null}}'])
def test_another_json_is_no_result(result: RunResult, tmp_path: Path, text: str) -> None:
    """Whatever it holds."""
    write_result(result, tmp_path)
    (tmp_path / "result.json").write_text(text)

    with pytest.raises(InputError, match="is no result of simserve"):
        read_result(tmp_path)


def test_a_broken_table_is_an_error(result: RunResult, tmp_path: Path) -> None:
    """In one line, with the file."""
    write_result(result, tmp_path)
    (tmp_path / "requests.parquet").write_bytes(b"PAR1 no table")

    with pytest.raises(InputError, match=r"requests.parquet: cannot be read"):
        read_result(tmp_path)


def test_a_table_of_an_earlier_version_says_what_to_do(result: RunResult, tmp_path: Path) -> None:
    """One without the metadata."""
    write_result(result, tmp_path)
    (tmp_path / "timeseries.parquet").replace(tmp_path / "requests.parquet")
    write_result(result, tmp_path / "other")
    (tmp_path / "other" / "timeseries.parquet").replace(tmp_path / "timeseries.parquet")

    with pytest.raises(InputError, match="run the scenario again"):
        read_result(tmp_path)


@pytest.mark.parametrize("name", ["result.json", "scenario.resolved.yaml"])
def test_figures_that_no_run_gave_are_refused(result: RunResult, tmp_path: Path, name: str) -> None:
    """A changed digit is told, whichever file it stands in."""
    write_result(result, tmp_path)
    text = (tmp_path / name).read_text()
    changed = next(place for place, letter in enumerate(text) if letter.isdigit())
    (tmp_path / name).write_text(f"{text[:changed]}{(int(text[changed]) + 1) % 10}{text[changed + 1 :]}")

    with pytest.raises(InputError, match="is not what the run wrote; run the scenario again"):
        read_result(tmp_path)


@pytest.mark.parametrize("name", ["requests.parquet", "timeseries.parquet"])
def test_a_table_without_a_column_is_refused(result: RunResult, tmp_path: Path, name: str) -> None:
    """In one line, not as a defect."""
    write_result(result, tmp_path)
    metadata = _read_table(tmp_path / name)[1]
    with _database() as database:
        _write_table(database, tmp_path / name, [Column("mine", np.zeros(3), "DOUBLE")], metadata)

    with pytest.raises(InputError, match=r"requests\.parquet or timeseries\.parquet that is not what the run wrote"):
        read_result(tmp_path)


def test_a_table_is_read_as_it_is_now(tmp_path: Path) -> None:
    """The database that reads it stays, and remembers nothing of a file: not even one as large, just replaced."""
    path = tmp_path / "again.parquet"
    found = []
    for number in range(5):
        write_table(path, [Column("mine", np.arange(1000.0) + number, "DOUBLE")])
        found.append(float(_read_table(path)[0]["mine"][0]))

    assert found == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_results_are_written_and_read_by_one_database(
    result: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening one takes as long as writing a short run's tables; each writer has a connection of its own."""
    write_result(result, tmp_path)

    monkeypatch.setattr(duckdb, "connect", lambda *_, **__: pytest.fail("opens another"))
    write_result(result, tmp_path)
    read_result(tmp_path)

    with _database() as one, _database() as other:
        one.register("mine", {"a": np.zeros(3)})
        with pytest.raises(duckdb.CatalogException):
            other.execute("SELECT * FROM mine")
