"""Traces of any table: columns by their usual names or as they are named, times as people write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import duckdb
import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.workload.traces.columns import read_columns, told_columns
from simserve.workload.traces.formats import detect, read_trace

ROWS = [(0.0, 500, 50), (1.5, 600, 60), (4.0, 700, 70)]


def write(path: Path, header: str, rows: list[tuple[object, ...]], sign: str = ",") -> Path:
    """Write a table."""
    lines = [header, *(sign.join(str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "header",
    [
        "timestamp,prompt,completion",
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        "Arrival Time,Input Tokens,Output Tokens",
        "ts,isl,osl",
        "request_time,promptLength,outputLength",
    ],
)
def test_usual_names_are_found_by_themselves(tmp_path: Path, header: str) -> None:
    """Case, spaces and underscores do not count."""
    file = write(tmp_path / "t.csv", header, list(ROWS))

    trace = read_trace(file)

    assert detect(file) == "columns"
    assert trace.arrival_time.tolist() == [0.0, 1.5, 4.0]
    assert trace.prompt_tokens.tolist() == [500, 600, 700]
    assert trace.output_tokens.tolist() == [50, 60, 70]


def test_named_columns_go_before_usual_names(tmp_path: Path) -> None:
    """What is asked for is read, whatever else there is."""
    file = write(tmp_path / "t.csv", "timestamp,sent,prompt,completion", [(9, 0, 5, 6), (9, 2, 7, 8)])

    trace = read_trace(file, columns={"arrival_time": "sent"})

    assert trace.arrival_time.tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("header", "times", "seconds"),
    [
        ("timestamp", ["2026-11-20T10:00:00Z", "2026-11-20T10:00:01.5Z"], [0.0, 1.5]),
        ("timestamp", ["2026-11-20 10:00:00.1234567", "2026-11-20 10:00:02.1234567"], [0.0, 2.0]),
        ("timestamp", ["2026-11-20T10:00:00+02:00", "2026-11-20T08:00:03+00:00"], [0.0, 3.0]),
        ("timestamp", ["1763632800", "1763632801.5"], [0.0, 1.5]),
        ("timestamp", ["1763632800000", "1763632801500"], [0.0, 1.5]),
        ("timestamp", ["2026-11-20 10:00:00.250 +0100", "2026-11-20 09:00:02.250 +0000"], [0.0, 2.0]),
        ("timestamp", ["2026-11-20T10:00:00.123456789Z", "2026-11-20 10:00:01.123456789 UTC"], [0.0, 1.0]),
        ("timestamp_ms", ["500", "2000"], [0.5, 2.0]),
        ("time (s)", ["5", "7"], [5.0, 7.0]),
    ],
)
def test_times_are_read_as_they_are_written(
    tmp_path: Path, header: str, times: list[str], seconds: list[float]
) -> None:
    """Dates count from the first request; plain numbers are seconds, or what the column's name says."""
    file = write(tmp_path / "t.csv", f"{header},prompt,completion", [(time, 5, 6) for time in times])

    assert read_trace(file).arrival_time == pytest.approx(seconds)


def test_json_lines_and_gzip_and_other_separators_are_read(tmp_path: Path) -> None:
    """The same requests, however they are stored."""
    lines = "\n".join(json.dumps({"arrived_at": a, "prompt": p, "completion": o}) for a, p, o in ROWS)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    tabs = write(tmp_path / "t.tsv", "arrived_at\tprompt\tcompletion", list(ROWS), "\t")
    semicolons = write(tmp_path / "s.csv", "arrived_at;prompt;completion", list(ROWS), ";")

    traces = [read_trace(each) for each in (tmp_path / "t.jsonl.gz", tabs, semicolons)]

    assert all(trace.arrival_time.tolist() == [0.0, 1.5, 4.0] for trace in traces)
    assert all(trace.output_tokens.tolist() == [50, 60, 70] for trace in traces)


def test_rows_that_were_not_served_are_left_out_and_counted(tmp_path: Path) -> None:
    """An answer of 0 tokens is none."""
    trace = read_columns(write(tmp_path / "t.csv", "time,prompt,completion", [(0, 5, 6), (1, 5, 0), (2, 5.0, 7)]))

    assert trace.num_unserved == 1
    assert trace.arrival_time.tolist() == [0.0, 2.0]


def test_without_times_the_trace_has_none(tmp_path: Path) -> None:
    """The scenario's own arrivals are needed then."""
    trace = read_columns(write(tmp_path / "t.csv", "prompt,completion", [(5, 6)]))

    assert np.isnan(trace.arrival_time).all()


@pytest.mark.parametrize(
    ("header", "row", "columns", "said"),
    [
        ("time,question,completion", (0, 5, 6), None, "no column that is known to hold prompt_tokens"),
        ("time,prompt,completion", (0, "Hello", 6), None, "row 2, prompt: 'Hello' is not a whole number of tokens"),
        ("time,prompt,completion", ("noon", 5, 6), None, "row 2, time: 'noon' is not a time"),
        (
            "time,prompt,completion",
            (0, 5, 6),
            {"prompt_tokens": "promt"},
            "no column 'promt' for prompt_tokens; did you",
        ),
        ("time,prompt,completion", (0, 5, 0), None, "no request that was served"),
    ],
)
def test_what_is_wrong_is_said_with_the_row_and_the_column(
    tmp_path: Path, header: str, row: tuple[object, ...], columns: dict[str, str] | None, said: str
) -> None:
    """And what there is to choose from."""
    with pytest.raises(TraceError, match=said.replace("(", r"\(")):
        read_columns(write(tmp_path / "t.csv", header, [row]), columns)


def test_rows_newest_first_are_sorted_and_it_is_said(tmp_path: Path) -> None:
    """As dashboards export them, or as gateways write them: when a request ends."""
    rows = [("2026-11-20T10:00:05Z", 7, 70), ("2026-11-20T10:00:02Z", 0, 0), ("2026-11-20T10:00:01Z", 5, 50)]
    newest_first = read_columns(write(tmp_path / "t.csv", "time,prompt_tokens,completion_tokens", list(rows)))
    ascending = read_columns(write(tmp_path / "s.csv", "time,prompt_tokens,completion_tokens", rows[::-1]))

    assert newest_first.arrival_time.tolist() == ascending.arrival_time.tolist() == [0.0, 4.0]
    assert newest_first.prompt_tokens.tolist() == ascending.prompt_tokens.tolist() == [5, 7]
    assert newest_first.num_unserved == ascending.num_unserved == 1
    assert "the rows are sorted by time" in (newest_first.remark or "")
    assert "sorted" not in (ascending.remark or "")


def test_sessions_and_limits_stay_with_their_rows_where_rows_are_sorted(tmp_path: Path) -> None:
    """The last row is the first request."""
    rows = [(9, 7, 70, "b", 700), (5, 5, 0, "c", 500), (1, 5, 50, "a", 500)]

    trace = read_columns(write(tmp_path / "t.csv", "time,prompt,completion,session_id,max_tokens", list(rows)))

    assert trace.session is not None
    assert trace.max_tokens is not None
    assert (trace.session.tolist(), trace.max_tokens.tolist()) == ([0, 1], [500, 700])


def test_images_and_audio_stay_with_their_rows_where_rows_are_sorted(tmp_path: Path) -> None:
    """Of three requests newest first, the one in the middle failed."""
    rows = [(9, 7, 70, 3, 30.5), (5, 5, 0, 2, 20.5), (1, 5, 50, 1, 10.5)]

    trace = read_columns(write(tmp_path / "t.csv", "time,prompt,completion,num_images,audio_seconds", list(rows)))

    assert trace.images is not None
    assert trace.audio is not None
    assert (trace.images.counts.tolist(), trace.audio.counts.tolist()) == ([1, 3], [1, 1])
    assert trace.audio.sizes is not None
    assert trace.audio.sizes.tolist() == [[10.5], [30.5]]


def test_a_wrong_answer_is_told_by_its_own_row(tmp_path: Path) -> None:
    """The third line of the file holds the first request that was served."""
    file = write(tmp_path / "t.csv", "time,prompt,completion,max_tokens", [(5, 5, 0, 9), (1, 5, 50, 9), (7, 5, 5, 9)])

    with pytest.raises(TraceError, match=r"row 3, completion: '50' is above the row's max_tokens 9"):
        read_columns(file)


def test_a_field_of_its_own_goes_before_one_within_another() -> None:
    """Whichever of their names is the likelier one."""
    told = told_columns({"usage.prompt_tokens": 5, "usage.completion_tokens": 6, "input": 7, "osl": 8})

    assert told == {"prompt_tokens": "input", "output_tokens": "osl"}


@pytest.mark.parametrize("empty", ["", "null", "NaN", "-"])
def test_requests_that_failed_have_no_counts_and_are_left_out(tmp_path: Path, empty: str) -> None:
    """Gateways log them with their status and without usage."""
    rows = [(0, 5, 6), (1, empty, empty), (2, 5, 7)]

    trace = read_columns(write(tmp_path / "t.csv", "time,prompt,completion", rows))

    assert (trace.num_unserved, trace.arrival_time.tolist()) == (1, [0.0, 2.0])


def test_limits_that_some_requests_lack_are_not_used(tmp_path: Path) -> None:
    """A limit of 0 was above no answer, and the file refused."""
    trace = read_columns(write(tmp_path / "t.csv", "time,prompt,completion,max_tokens", [(0, 5, 6, 9), (1, 5, 7, "")]))

    assert trace.max_tokens is None
    assert "max_tokens is not used: some requests have none" in (trace.remark or "")


@pytest.mark.parametrize(
    "row",
    [
        {"@timestamp": "T", "usage": {"prompt_tokens": 5, "completion_tokens": 6}},
        {"startTime": "T", "input": [{"role": "user"}], "output": "text", "usageDetails": {"input": 5, "output": 6}},
        {"request": {"created_at": "T"}, "response": {"usage": {"input_tokens": 5, "output_tokens": 6}}},
        {"received_at": "T", "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 6}},
        {"time_received": "T", "prompt": "text", "cost": {"input": 0.1, "output": 0.2}, "tokens": {"in": 1}}
        | {"tokens_in": 5, "tokens_out": 6},
    ],
)
def test_fields_within_fields_are_found(tmp_path: Path, row: dict[str, object]) -> None:
    """Gateways nest the counts; texts and dollars of the same names are none. The first request may have failed."""
    file = tmp_path / "log.jsonl"
    failed = {name: value for name, value in row.items() if not isinstance(value, dict)}
    times = ("2026-11-20T10:00:00Z", "2026-11-20T10:00:01.5Z", "2026-11-20T10:00:03Z")
    lines = [json.dumps(failed if index == 0 and "request" not in row else row) for index in range(len(times))]
    file.write_text("\n".join(line.replace('"T"', f'"{time}"') for line, time in zip(lines, times, strict=True)))

    trace = read_trace(file)

    assert detect(file) == "columns"
    assert trace.arrival_time[-1] - trace.arrival_time[-2] == pytest.approx(1.5)
    assert (trace.prompt_tokens[-1], trace.output_tokens[-1]) == (5, 6)


def test_columns_within_fields_can_be_named(tmp_path: Path) -> None:
    """A dotted name says where a count lies; a wrong cell is told by it."""
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps({"ts": 3, "llm": {"n": {"sent": 5}, "got": 6}}))
    named = {"prompt_tokens": "llm.n.sent", "output_tokens": "llm.got"}

    assert read_trace(file, columns=named).prompt_tokens.tolist() == [5]

    file.write_text(json.dumps({"ts": 3, "llm": {"n": {"sent": "many"}, "got": 6}}))
    with pytest.raises(TraceError, match=r"row 1, llm\.n\.sent: 'many' is not a whole number of tokens"):
        read_trace(file, columns=named)


def test_a_log_of_several_models_is_told(tmp_path: Path) -> None:
    """One server would be asked to serve them all."""
    rows = [(0, 5, 6, "large"), (1, 5, 6, "large"), (2, 5, 6, "small"), (3, 5, 0, "none")]
    several = read_columns(write(tmp_path / "t.csv", "time,prompt,completion,model", list(rows)))
    single = read_columns(write(tmp_path / "s.csv", "time,prompt,completion,model", list(rows[:2])))

    assert "model names 2 models (large 67%, small 33%)" in (several.remark or "")
    assert "models" not in (single.remark or "")


def test_the_first_of_several_usual_columns_is_taken() -> None:
    """A timestamp goes before a plain time."""
    assert told_columns(dict.fromkeys(["time", "timestamp", "prompt", "prompt_tokens"])) == {
        "arrival_time": "timestamp",
        "prompt_tokens": "prompt_tokens",
    }


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_text_is_read_as_windows_writes_it(tmp_path: Path, coding: str) -> None:
    """With a mark at its beginning, and UTF-16 from PowerShell's redirection."""
    plain = write(tmp_path / "t.csv", "timestamp,prompt,completion", list(ROWS)).read_text(encoding="utf-8")
    mark = "\ufeff" if coding == "utf-16-be" else ""
    (tmp_path / "t.csv").write_bytes((mark + plain.replace("\n", "\r\n")).encode(coding))

    assert list(read_trace(tmp_path / "t.csv").prompt_tokens) == [500, 600, 700]


def test_text_in_another_coding_says_how_to_save_it(tmp_path: Path) -> None:
    """And the line where it is not UTF-8."""
    file = tmp_path / "my trace.csv"
    file.write_bytes("timestamp,prompt,completion,user\n0,5,5,J\xfcrgen\n".encode("latin-1"))

    with pytest.raises(TraceError, match=r"line 2: is not UTF-8 text; save it as UTF-8, .* 'my trace.csv' > "):
        read_trace(file)


def test_decimal_commas_of_a_spreadsheet_are_times(tmp_path: Path) -> None:
    """In a table that semicolons separate."""
    rows = [("0,25", 500, 50), ("1,75", 600, 60)]
    file = write(tmp_path / "t.csv", "timestamp;prompt;completion", rows, sign=";")

    assert list(read_trace(file).arrival_time) == [0.25, 1.75]


def test_a_spreadsheet_that_begins_at_zero_writes_it_without_a_comma(tmp_path: Path) -> None:
    """Whole numbers stand between those with a comma."""
    rows = [("0", 500, 50), ("1,5", 600, 60), ("3", 700, 70)]
    file = write(tmp_path / "t.csv", "timestamp;prompt;completion", rows, sign=";")

    assert list(read_trace(file).arrival_time) == [0.0, 1.5, 3.0]


def test_a_comma_in_a_table_of_commas_is_no_decimal_point(tmp_path: Path) -> None:
    """There it may separate thousands: 1,500 seconds would be read as 1.5."""
    file = tmp_path / "t.csv"
    file.write_text('timestamp,prompt,completion\n"1,500",500,50\n"2,500",600,60\n', encoding="utf-8")

    with pytest.raises(TraceError, match="is not a time"):
        read_trace(file)


def parquet(path: Path, query: str) -> Path:
    """Write the rows of a query."""
    duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


def test_a_parquet_table_is_read_as_its_text_would_be(tmp_path: Path) -> None:
    """Here Azure's columns, with times as such."""
    columns = "TIMESTAMP '2023-11-16 18:00:00' + to_milliseconds(n * 1500) AS \"TIMESTAMP\", "
    columns += "(500 + n) AS ContextTokens, 50::UTINYINT AS GeneratedTokens"
    file = parquet(tmp_path / "t.parquet", f"SELECT {columns} FROM range(3) AS rows(n)")

    trace = read_trace(file)

    assert detect(file) == "azure"
    assert [*map(float, trace.arrival_time)] == [0.0, 1.5, 3.0]
    assert list(trace.prompt_tokens) == [500, 501, 502]


def test_a_parquet_table_that_repeats_itself_is_counted_as_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few kilobytes may hold any number of equal rows."""
    query = "SELECT n * 0.5 AS timestamp, 100 AS prompt_tokens, 20 AS output_tokens, repeat('x', 999) AS text"
    file = parquet(tmp_path / "t.parquet", f"{query} FROM range(9000) AS rows(n)")
    monkeypatch.setattr("simserve.workload.traces.table.MAX_TRACE_BYTES", 8 * 1000 * 1000)
    assert file.stat().st_size < 1_000_000

    with pytest.raises(TraceError, match="holds more than 8 MB; cut it"):
        read_trace(file)


def test_a_column_of_a_parquet_table_may_be_called_rows(tmp_path: Path) -> None:
    """Beside lists, for which rows are read as JSON."""
    query = "SELECT n * 0.5 AS timestamp, [n] AS rows, 100 AS prompt_tokens, 20 AS output_tokens FROM range(3) AS t(n)"

    assert list(read_trace(parquet(tmp_path / "t.parquet", query)).arrival_time) == [0.0, 0.5, 1.0]


def test_packed_text_in_another_coding_is_unpacked_first(tmp_path: Path) -> None:
    """The remedy works as it stands."""
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress("timestamp,prompt,completion,nom\n0,5,6,Zoé\n".encode("latin-1")))

    with pytest.raises(TraceError, match=r"gzip -dc t.csv.gz \| iconv -f ISO-8859-1 -t UTF-8 > t-utf8.csv"):
        read_trace(file)


def test_lists_in_a_parquet_table_are_read_as_json(tmp_path: Path) -> None:
    """Mooncake's prefix blocks."""
    columns = "(n * 1000) AS timestamp, 1000 AS input_length, 20 AS output_length, [7, 8 + n] AS hash_ids"
    file = parquet(tmp_path / "t.parquet", f"SELECT {columns} FROM range(3) AS rows(n)")

    assert detect(file) == "mooncake"
    assert [*map(float, read_trace(file).arrival_time)] == [0.0, 1.0, 2.0]


def test_a_broken_parquet_file_is_refused_in_a_line(tmp_path: Path) -> None:
    """Without the bytes of it."""
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(100))

    with pytest.raises(TraceError, match="is a damaged Parquet file; copy or download it again"):
        read_trace(tmp_path / "t.parquet")
