"""Exports of usage: sums by hour or by day, which are no trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.errors import TraceError
from simserve.workload.traces.columns import header_of
from simserve.workload.traces.formats import detect
from simserve.workload.traces.usage import is_usage, read_buckets, read_usage, usage_columns


def written(folder: Path, text: str) -> tuple[Path, list[str]]:
    """Return a file with a text, and the names in its first line."""
    file = folder / "usage.csv"
    file.write_text(text, encoding="utf-8")
    return file, header_of(text)


def test_hours_add_up_to_a_day_and_days_to_a_month(tmp_path: Path) -> None:
    """Two days with requests at 9 and at 17 o'clock; a month is 30 of them."""
    rows = "2026-10-01,9,100,1000,200\n2026-10-01,17,300,6000,600\n2026-10-02,9,200,2000,400\n2026-10-02,17,0,0,0\n"
    file, names = written(tmp_path, f"date,hour,requests,input_tokens,output_tokens\n{rows}")
    columns = usage_columns(names)
    assert columns is not None

    found = read_usage(file, columns)

    assert (found.rows, found.requests, found.days, found.requests_per_month) == (4, 600, 2, 9000)
    assert (found.mean_prompt_tokens, found.mean_output_tokens) == (15.0, 2.0)
    assert found.hourly is not None
    assert {hour: each for hour, each in enumerate(found.hourly) if each} == {9: 150.0, 17: 150.0}


@pytest.mark.parametrize(
    ("text", "days", "has_hours"),
    [
        (
            "date,n_requests,n_context_tokens_total,n_generated_tokens_total\n2026-10-01,5,50,5\n2026-10-02,5,50,5",
            2,
            False,
        ),
        ("start_time,num_model_requests,input_tokens,output_tokens\n1790812800,5,50,5\n1790816400,7,70,7", 1, True),
        ("requests,Input Tokens,Output Tokens\n5,50,5", None, False),
        ("hour,requests,input_tokens,output_tokens\n2026-10-01T05:00:00Z,5,50,5\n2026-10-02 06:00,7,70,7", 2, True),
        ("day,hour,requests,input_tokens,output_tokens\nThu,2026-10-01T05:00:00Z,5,50,5", 1, True),
        ("date,hour,requests,input_tokens,output_tokens\n2026-10-01,05:00,5,50,5", 1, True),
    ],
)
def test_exports_of_several_kinds_are_read(tmp_path: Path, text: str, days: int | None, has_hours: bool) -> None:
    """OpenAI's older one by day, its usage API by epoch seconds, totals alone, and hours that are whole instants."""
    file, names = written(tmp_path, text)
    columns = usage_columns(names)
    assert columns is not None

    found = read_usage(file, columns)

    assert (found.days, found.hourly is not None) == (days, has_hours)
    assert (found.requests_per_month is None) == (days is None)


def test_pages_of_the_usage_api_are_read(tmp_path: Path) -> None:
    """Buckets of hours, one of two models and one without requests."""
    result = {"object": "organization.usage.completions.result", "input_tokens": 1000, "output_tokens": 200}
    starts = (1790812800, 1790816400, 1790899200)
    results = ([{**result, "num_model_requests": 30}, {**result, "num_model_requests": 10}], [], [])
    buckets = [
        {"object": "bucket", "start_time": start, "end_time": start + 3600, "results": each}
        for start, each in zip(starts, results, strict=True)
    ]
    file = tmp_path / "usage.json"
    file.write_text(json.dumps({"object": "page", "data": buckets, "has_more": False}, indent=1))

    found = read_buckets(file)

    assert found is not None
    assert (found.requests, found.prompt_tokens, found.output_tokens, found.days) == (40, 2000, 400, 2)
    assert found.hourly is not None
    assert sum(found.hourly) == pytest.approx(20)
    with pytest.raises(TraceError, match="a row stands for several requests"):
        detect(file)


def test_objects_that_are_no_buckets_are_no_usage(tmp_path: Path) -> None:
    """Whatever else is called results; a sum that is no number is named."""
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"data": [{"results": 3}], "results": []}))
    assert read_buckets(file) is None

    file.write_text(json.dumps({"data": [{"start_time": 0, "results": [{"num_model_requests": "3"}]}]}))
    with pytest.raises(TraceError, match="num_model_requests: '3' is not a number"):
        read_buckets(file)


def test_an_export_is_no_trace(tmp_path: Path) -> None:
    """Sums were taken for requests of hundreds of thousands of tokens; single requests that are counted are a trace."""
    sums, names = written(tmp_path, "timestamp,requests,input_tokens,output_tokens\n0,1,100,10\n60,900,90000,9000\n")
    with pytest.raises(TraceError, match="a row stands for several requests"):
        detect(sums)

    single, names = written(tmp_path, "timestamp,requests,input_tokens,output_tokens\n0,1,100,10\n60,1,90,9\n")
    assert not is_usage(single, names)
    assert detect(single) == "columns"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2026-10-01,24,5,50,5", "is not an hour"),
        ("1 Oct,1,5,50,5", "is not a date"),
        ("2026-10-01,1,many,50,5", "number"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, row: str, said: str) -> None:
    """With its row and column."""
    file, names = written(tmp_path, f"date,hour,requests,input_tokens,output_tokens\n{row}\n")
    columns = usage_columns(names)
    assert columns is not None

    with pytest.raises(TraceError, match=rf"row 2, .*{said}"):
        read_usage(file, columns)
