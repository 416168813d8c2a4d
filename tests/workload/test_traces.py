"""Trace readers: the real Azure traces, the formats, and every way a file can be broken."""

import gzip
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.workload.generate import generate
from simserve.workload.spec import TraceSpec, WorkloadSpec
from simserve.workload.traces.formats import read_trace

AZURE = Path(__file__).resolve().parents[2] / "../shared/data/traces/azure2023"
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
CSV_HEADER = "arrival_time,prompt_tokens,output_tokens\n"


def replay(folder, content, trace_format="csv", **limits):
    """Write a trace and return its requests."""
    (folder / "trace").write_bytes(content if isinstance(content, bytes) else content.encode())
    spec = WorkloadSpec(trace=TraceSpec(path="trace", format=trace_format), **limits)
    return generate(spec, seed=1, base_path=folder)


@pytest.mark.parametrize(
    ("name", "num_requests", "prompt_mean", "output_mean", "span"),
    [("conv", 19_366, 1154.7, 211.1, 3501.7), ("code", 8_819, 2047.8, 27.9, 3435.9)],
)
def test_the_azure_traces_are_read_whole(name, num_requests, prompt_mean, output_mean, span):
    """Rows, means and span are those published with the data; no row is dropped."""
    file = AZURE / f"AzureLLMInferenceTrace_{name}.csv.gz"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    spec = WorkloadSpec(trace=TraceSpec(path=str(file), format="azure"))

    requests = generate(spec, seed=1)
    assert len(requests) == num_requests
    assert requests.prompt_tokens.mean() == pytest.approx(prompt_mean, abs=0.05)
    assert requests.output_tokens.mean() == pytest.approx(output_mean, abs=0.05)
    assert requests.arrival_time[0] == 0.0
    assert requests.arrival_time[-1] == pytest.approx(span, abs=0.1)
    assert requests.offered_rate == pytest.approx(num_requests / span, rel=1e-3)
    assert not requests.is_stationary


def test_twenty_thousand_rows_are_read_without_a_call_a_row(tmp_path):
    """Python calls hardly any function for further rows: they are read in columns."""
    rows = "".join(f"2023-11-16 18:{i // 400:02d}:{i % 400 * 0.14:010.7f},{i + 1},{i + 2}\n" for i in range(20_000))
    replay(tmp_path, gzip.compress((AZURE_HEADER + rows).encode(), 1), "azure")  # imports are no calls of rows

    calls = Counter()
    sys.setprofile(lambda frame, event, _: calls.update([event]))
    try:
        requests = replay(tmp_path, gzip.compress((AZURE_HEADER + rows).encode(), 1), "azure")
    finally:
        sys.setprofile(None)
    assert len(requests) == 20_000
    assert calls["call"] < 20_000


def test_azure_timestamps_become_seconds_from_the_first_row(tmp_path):
    """Seven fractional digits, a UTC suffix, a T, a date that changes, CRLF and no final newline."""
    rows = "2023-11-16 23:59:59.9000001,10,1\r\n2023-11-17T00:00:00.4Z,20,2\r\n2023-11-17 00:01:00+00:00,30,3"

    requests = replay(tmp_path, AZURE_HEADER.replace("\n", "\r\n") + rows, "azure")
    assert requests.arrival_time == pytest.approx([0.0, 0.4999999, 60.0999999], abs=1e-12)
    assert requests.prompt_tokens.tolist() == [10, 20, 30]
    assert requests.max_tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_csv_columns_are_found_by_name(tmp_path, compress):
    """The order of the columns does not matter, others are ignored, gzip and a byte-order mark are read."""
    text = "\ufeffoutput_tokens, user ,arrival_time,prompt_tokens,max_tokens\n5,x,0.5,7,9\n6,y,1e1,8,6\n\n"

    requests = replay(tmp_path, compress(text.encode()))
    assert requests.arrival_time.tolist() == [0.5, 10.0]
    assert requests.prompt_tokens.tolist() == [7, 8]
    assert requests.output_tokens.tolist() == [5, 6]
    assert requests.max_tokens.tolist() == [9, 6]


def test_max_tokens_of_the_workload_overrides_the_trace(tmp_path):
    """A number or the model's limit is what every client asks for."""
    text = "arrival_time,prompt_tokens,output_tokens,max_tokens\n0,7,5,9\n"

    assert replay(tmp_path, text, max_tokens=3).max_tokens.tolist() == [3]
    assert replay(tmp_path, text, max_tokens="model_limit").max_tokens.tolist() == [-1]


def test_a_trace_can_be_cut_by_number_or_by_time(tmp_path):
    """The first requests are kept; more than there are is refused."""
    text = CSV_HEADER + "".join(f"{i},5,5\n" for i in range(10))

    assert len(replay(tmp_path, text, num_requests=4)) == 4
    assert replay(tmp_path, text, duration="3 s").arrival_time.tolist() == [0, 1, 2, 3]
    with pytest.raises(TraceError, match="asks for 11 requests, the trace holds 10"):
        replay(tmp_path, text, num_requests=11)


def test_equal_arrival_times_are_accepted(tmp_path):
    """Several requests may arrive at once; the rate of a single instant is undefined."""
    requests = replay(tmp_path, CSV_HEADER + "2,5,5\n2,6,6\n")

    assert requests.arrival_time.tolist() == [2, 2]
    assert np.isnan(requests.offered_rate)


GOOD = "0,5,5\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace: is empty"),
        ("\n \n", "trace: is empty"),
        (CSV_HEADER, "trace: has a header but no rows; a trace needs at least one request"),
        (
            "time,prompt_tokens,output_tokens\n0,1,1\n",
            "arrival_time: is missing; the columns are time, prompt_tokens",
        ),
        (GOOD, "arrival_time: is missing; the columns are 0, 5, 5"),
        ("arrival_time,arrival_time,prompt_tokens,output_tokens\n0,0,1,1\n", "arrival_time: stands twice"),
        (CSV_HEADER + GOOD + "1,x,5\n", "row 3, prompt_tokens: 'x' is not a whole number"),
        (CSV_HEADER + GOOD + "1,5.5,5\n", "row 3, prompt_tokens: '5.5' is not a whole number"),
        (CSV_HEADER + GOOD + "1,,5\n", "row 3, prompt_tokens: '' is not a whole number"),
        (CSV_HEADER + GOOD + "1,1_0,5\n", "row 3, prompt_tokens: '1_0' is not a whole number"),
        (CSV_HEADER + GOOD + "1,nan,5\n", "row 3, prompt_tokens: 'nan' is not a whole number"),
        (
            CSV_HEADER + GOOD + "1,-5,5\n",
            "row 3, prompt_tokens: '-5' must be >= 1; correct the row or remove it",
        ),
        (
            CSV_HEADER + GOOD + "1,5,0\n",
            "row 3, output_tokens: '0' must be >= 1; correct the row or remove it",
        ),
        (CSV_HEADER + GOOD + "1,5,2000000000\n", "row 3, output_tokens: '2000000000' must be <= 1000000000"),
        (CSV_HEADER + GOOD + "\n\nsoon,5,5\n", "row 5, arrival_time: 'soon' is not a number of seconds"),
        (CSV_HEADER + GOOD + "inf,5,5\n", "row 3, arrival_time: 'inf' is not a number of seconds"),
        (CSV_HEADER + GOOD + "-1,5,5\n", "row 3, arrival_time: '-1' must be >= 0"),
        (
            CSV_HEADER + "1700000000,5,5\n",
            "row 2, arrival_time: '1700000000' must be in seconds from the start",
        ),
        (CSV_HEADER + GOOD + "1,5\n", "row 3: has 2 fields, the first row has 3"),
        (CSV_HEADER + GOOD + '1,"5,5\n2,5,5\n', "is not valid CSV"),
        (
            "arrival_time,prompt_tokens,output_tokens,max_tokens\n0,1,5,4\n",
            "row 2, output_tokens: '5' is above the row's",
        ),
        (CSV_HEADER.encode() + b"\xff\xfe\n", "is not UTF-8 text"),
        (gzip.compress(b"a,b\n" * 1000, mtime=0)[:-20], "is a truncated gzip file"),
        (gzip.compress(b"a,b\n" * 1000, mtime=0)[:-6] + b"123456", "is a damaged gzip file"),
        (b"\x1f\x8b" + b"garbage that is no gzip stream", "is a damaged gzip file"),
        (gzip.compress(b"", mtime=0), "is empty"),
    ],
)
def test_a_broken_trace_is_one_clear_line(tmp_path, text, message):
    """The file, the row as a line of the file, the column, the value and the rule are named."""
    with pytest.raises(TraceError) as caught:
        replay(tmp_path, text)

    assert str(caught.value).startswith(str(tmp_path / "trace"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 104


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16,5,5", "row 3, TIMESTAMP: '2023-11-16' is not a timestamp in UTC"),
        (
            "2023-13-16 18:17:03,5,5",
            "row 3, TIMESTAMP: '2023-13-16 18:17:03' is not a date and time that exists",
        ),
        ("2023-11-16 18:17:03+02:00,5,5", "is not a timestamp in UTC"),
        ("2023-11-16 18:17:03,5,0", "row 3, GeneratedTokens: '0' must be >= 1"),
        ("2023-11-16 18:17:03,-2,5", "row 3, ContextTokens: '-2' must be >= 1"),
    ],
)
def test_a_broken_azure_row_is_named(tmp_path, row, message):
    """Timestamps are checked as dates, and no request without tokens is dropped or rounded."""
    with pytest.raises(TraceError) as caught:
        replay(tmp_path, AZURE_HEADER + "2023-11-16 18:17:02,5,5\n" + row + "\n", "azure")

    assert message in str(caught.value)


def test_rows_out_of_order_are_sorted_by_their_times_and_it_is_said(tmp_path):
    """With everything that a row says; rows in order are left as they are, without a remark."""
    head, first, second = "arrival_time,prompt_tokens,output_tokens,max_tokens,session", "3,5,6,9,a", "2,7,8,8,b"
    (tmp_path / "mixed.csv").write_text(f"{head}\n{first}\n{second}\n", encoding="utf-8")
    (tmp_path / "plain.csv").write_text(f"{head}\n{second}\n{first}\n", encoding="utf-8")

    mixed, plain = (read_trace(tmp_path / name, "csv") for name in ("mixed.csv", "plain.csv"))

    assert mixed.remark == "the rows are sorted by arrival_time"
    assert plain.remark is None
    for name in ("arrival_time", "prompt_tokens", "output_tokens", "max_tokens"):
        assert getattr(mixed, name).tolist() == getattr(plain, name).tolist()
    assert mixed.session is not None
    assert mixed.session.tolist() == [1, 0]


def test_rows_of_azure_out_of_order_are_sorted_and_begin_at_the_earliest(tmp_path):
    """The first request arrives at 0."""
    rows = "2023-11-16 18:17:02,5,6\n2023-11-16 18:17:01,7,8\n"
    (tmp_path / "trace.csv").write_text(AZURE_HEADER + rows, encoding="utf-8")

    trace = read_trace(tmp_path / "trace.csv", "azure")

    assert (trace.arrival_time.tolist(), trace.prompt_tokens.tolist()) == ([0.0, 1.0], [7, 5])
    assert trace.remark == "the rows are sorted by TIMESTAMP"


def test_a_missing_trace_names_where_it_was_looked_for(tmp_path):
    """The scenario's folder comes first, then the working folder; an empty folder is no trace."""
    with pytest.raises(TraceError, match=r"no such file in the working folder or "):
        generate(WorkloadSpec(trace=TraceSpec(path="none.csv", format="csv")), seed=1, base_path=tmp_path)
    with pytest.raises(TraceError, match=r"is a folder without files that end in \.json"):
        generate(WorkloadSpec(trace=TraceSpec(path=".", format="csv")), seed=1, base_path=tmp_path)


def test_the_folder_of_the_scenario_comes_before_the_working_folder(tmp_path, monkeypatch):
    """A relative path is tried in both, in that order."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    (here / "trace").write_text(CSV_HEADER + "0,1,1\n")
    spec = WorkloadSpec(trace=TraceSpec(path="trace", format="csv"))

    assert generate(spec, seed=1, base_path=there).prompt_tokens.tolist() == [1]
    assert replay(there, CSV_HEADER + "0,2,2\n").prompt_tokens.tolist() == [2]


def test_a_trace_is_read_again_only_when_its_file_has_changed(tmp_path):
    """All runs on it share its columns, which nobody can write to."""
    file = tmp_path / "trace.csv"
    file.write_text("arrival_time,prompt_tokens,output_tokens\n0,5,5\n1,6,6\n", encoding="utf-8")
    first = read_trace(file)
    again = read_trace(file)
    file.write_text("arrival_time,prompt_tokens,output_tokens\n0,5,5\n1,6,6\n2,7,7\n", encoding="utf-8")

    assert again is first
    assert not first.prompt_tokens.flags.writeable
    assert len(read_trace(file).prompt_tokens) == 3


def test_a_file_that_swells_is_refused(tmp_path):
    """17 MB out of 17 kB: a hundred times its size is the most, and 16 MB whatever its size."""
    swollen = gzip.compress(CSV_HEADER.encode() + b"0,1,1\n" * 2_900_000, mtime=0)

    with pytest.raises(TraceError, match="decompresses to more than 100 times its size"):
        replay(tmp_path, swollen)


def test_a_trace_without_an_end_is_refused():
    """A device is no file, and is not opened."""
    with pytest.raises(TraceError, match="/dev/zero: is a device or a pipe, not a file"):
        generate(WorkloadSpec(trace=TraceSpec(path="/dev/zero", format="csv")), seed=1)
