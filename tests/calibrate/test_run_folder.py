"""Nothing that ends a measurement loses what was done, and no folder is taken for another."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import duckdb
import pytest

from simserve.calibrate.run_folder import (
    LOG_FILE,
    Log,
    open_run,
    read_log,
    read_provenance,
    read_run,
    write_provenance,
    write_tables,
)
from simserve.errors import InputError, UsageError
from simserve.perf.measured import measured_operators
from simserve.perf.tables import price
from tests.calibrate.synthetic_run import calls_of, measured_row, provenance, write_run
from tests.perf.shapes import make_shape

SIZES = {"gemm_dtype": "bfloat16", "m": 8, "n": 4096, "k": 4096}
BOTH = ("element-wise", "copies")
FACTS = {"device_name": "NVIDIA X1000", "torch": "2.13.0"}


def measured(seconds: float = 1e-5) -> dict[str, object]:
    """Return what is measured of a call."""
    row = measured_row("gemm_perf", SIZES, seconds)
    return {name: value for name, value in row.items() if name not in ("table", "sizes", "event")}


def test_a_log_reads_back(tmp_path: Path) -> None:
    """Times, reasons, and calls that began and did not end."""
    log = Log(tmp_path / LOG_FILE)
    log.start("first")
    log.add("gemm_perf", SIZES, measured())
    log.skip("gemm_perf", SIZES | {"m": 16}, "not supported")

    again = read_log(tmp_path)

    assert (again.rows, again.skipped, again.starts) == (log.rows, log.skipped, log.starts)
    assert len(again.rows) == len(again.skipped) == again.starts["first"] == 1


def test_a_call_that_the_user_stopped_has_not_killed_anything(tmp_path: Path) -> None:
    """It is as if it had never begun; another that did begin still counts."""
    log = Log(tmp_path / LOG_FILE)
    for key in ("stopped", "dead", "dead"):
        log.start(key)
    log.withdraw("stopped")

    assert log.starts == read_log(tmp_path).starts == {"dead": 2}


def test_a_line_cut_short_is_dropped_and_the_next_stands_alone(tmp_path: Path) -> None:
    """A crash in the middle of a write costs one call."""
    log = Log(tmp_path / LOG_FILE)
    log.add("gemm_perf", SIZES, measured())
    with log.file.open("ab") as file:
        file.write(b'{"event": "measu')

    before = log.file.read_bytes()
    assert len(read_log(tmp_path).rows) == 1
    assert log.file.read_bytes() == before, "who only reads changes nothing"

    read_log(tmp_path, is_to_grow=True).add("gemm_perf", SIZES | {"m": 16}, measured())

    assert len(read_log(tmp_path).rows) == 2


@pytest.mark.parametrize("line", ["{", "[]", '{"event": "measured"}', "3"])
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    """Somebody edited the file: file and line are said."""
    (tmp_path / LOG_FILE).write_text(f"{line}\n" + json.dumps({"event": "start", "key": "x"}) + "\n", encoding="utf-8")

    with pytest.raises(InputError, match=r"points\.jsonl: line 1: is not a row"):
        read_log(tmp_path)


def test_tables_are_what_deployments_read(tmp_path: Path) -> None:
    """A run is a folder for deployment.operator_tables: products and attention of its model are measured then."""
    folder = write_run(tmp_path / "run", noise=0.0)

    measured_ = price(dataclasses.replace(make_shape(), operator_tables=folder))

    assert {name: measured_.operators[name] for name in ("gemm", "lm_head", "attention")} == {
        "gemm": "measured",
        "lm_head": "measured",
        "attention": "measured",
    }
    line = measured_operators(folder, "vllm").gemm(make_shape().precision, make_shape().model.mlp_gemms(0, 1)[1])
    assert line is not None
    assert {1.0, 8.0, 32768.0} <= set(line.size)


def test_calls_of_the_log_that_no_table_holds_are_read_too(tmp_path: Path) -> None:
    """A killed measurement had no time to write its tables."""
    whole = read_run(write_run(tmp_path / "whole", kinds=BOTH))
    killed = write_run(tmp_path / "killed", kinds=BOTH, is_logged=True, ended="killed")

    assert not list(killed.glob("*.parquet"))
    assert read_run(killed).num_points == whole.num_points
    half = read_log(killed)
    for key in list(half.rows)[::2]:
        del half.rows[key]
    write_tables(killed, half)
    again = read_run(killed)
    assert again.num_points == whole.num_points
    for name, table in whole.tables.items():
        assert sorted(again.tables[name]["seconds"]) == pytest.approx(sorted(table["seconds"]))


def test_a_table_counts_before_the_log(tmp_path: Path) -> None:
    """Whoever changes a table changes the run."""
    folder = write_run(tmp_path / "run", kinds=BOTH, is_logged=True)
    write_tables(folder, read_log(folder))
    file = folder / "elementwise_perf.parquet"
    table = duckdb.read_parquet(str(file)).df()
    duckdb.from_df(table.assign(latency=2.0 * table["latency"])).write_parquet(str(file))

    changed = read_run(folder).tables["elementwise_perf"]

    assert len(changed) == len(table) == len(calls_of("element-wise"))
    assert changed["seconds"].to_numpy() == pytest.approx(2e-3 * table["latency"].to_numpy())


def test_a_run_of_another_device_is_not_taken_up(tmp_path: Path) -> None:
    """It says which and what it has now; --force starts anew."""
    folder = write_run(tmp_path / "run", kinds=BOTH, is_logged=True)
    assert open_run(folder, FACTS, force=False).rows

    with pytest.raises(UsageError, match=r"whose device_name is 'NVIDIA X1000', not 'NVIDIA Y'; .*--force"):
        open_run(folder, FACTS | {"device_name": "NVIDIA Y"}, force=False)

    assert not open_run(folder, FACTS | {"device_name": "NVIDIA Y"}, force=True).rows
    assert not (folder / "provenance.json").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    (tmp_path / "run").write_text("mine", encoding="utf-8")

    with pytest.raises(UsageError, match="is no folder"):
        open_run(tmp_path / "run", FACTS, force=True)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "no such file"), ("{", "cannot be read"), ("[]", "must hold format 1"), ('{"format": 7}', "format 1")],
)
def test_a_folder_without_provenance_is_no_run(tmp_path: Path, content: str | None, complaint: str) -> None:
    """Fits do not guess what a table was measured on."""
    if content is not None:
        (tmp_path / "provenance.json").write_text(content, encoding="utf-8")

    with pytest.raises(InputError, match=complaint):
        read_provenance(tmp_path)


def test_a_latency_of_nothing_is_refused(tmp_path: Path) -> None:
    """Times are above 0."""
    write_provenance(tmp_path, provenance(Log(tmp_path / LOG_FILE)))
    duckdb.sql("select 64 as bytes, 0.0 as latency").write_parquet(str(tmp_path / "copy_perf.parquet"))

    with pytest.raises(InputError, match=r"copy_perf\.parquet: latency: must be above 0 ms"):
        read_run(tmp_path)
