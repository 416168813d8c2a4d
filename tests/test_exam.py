"""The open exam: scores by hand on rows that a hand can follow."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.exam.__main__ import main, render
from benchmarks.exam.rows import FILES, Key, Prediction, Row, read_predictions, read_rows
from benchmarks.exam.scores import scores, throughput
from simserve.errors import InputError

PLAIN = Row(
    file=FILES[0],
    id="a",
    model="m",
    hardware="h100",
    engine="vllm",
    precision="fp8",
    layout="8/1/1/1",
    gpus=8,
    prompt=1000,
    output=1000,
    clients=64,
    ttft=500.0,
    tpot=20.0,
)


def row(name: str, **changes: Any) -> Row:
    """Return a row like the others but for some columns."""
    return replace(PLAIN, id=name, **changes)


def said(ttft: float, tpot: float, **ranges: tuple[float, float]) -> Prediction:
    """Return a prediction."""
    return Prediction(ttft=ttft, tpot=tpot, **ranges)


def keyed(*rows: Row) -> dict[Key, Row]:
    """Return rows by name."""
    return {(each.file, each.id): each for each in rows}


def test_errors_and_coverage_are_those_of_a_hand() -> None:
    """Of two rows 10 and 30 % off; a range that holds one of them."""
    rows = keyed(PLAIN, row("b", tpot=10.0))
    mine = {
        (FILES[0], "a"): said(500, 22.0, tpot_range=(19.0, 25.0)),
        (FILES[0], "b"): said(500, 7.0, tpot_range=(6.0, 8.0)),
    }
    found = scores(rows, mine, rows)

    assert found.errors["tpot"][0] == pytest.approx(0.2)
    assert found.errors["tpot"][3] == pytest.approx(-0.1)
    assert found.errors["ttft"][0] == 0
    assert (found.coverage["tpot"], found.coverage["ttft"]) == (0.5, None)


def test_engines_are_put_in_order_by_tokens_a_gpu() -> None:
    """One pair right, one wrong; a pair that measures alike does not count."""
    rows = keyed(PLAIN, row("b", engine="sglang", tpot=10.0), row("c", engine="trtllm", tpot=20.1))
    mine = {(FILES[0], "a"): said(500, 15.0), (FILES[0], "b"): said(500, 14.0), (FILES[0], "c"): said(500, 13.0)}
    found = scores(rows, mine, rows)

    assert found.engines == (0.5, 2)
    assert found.layouts == (None, 0)


def test_a_choice_that_breaks_its_limit_counts_with_what_holds() -> None:
    """Under 15 ms it takes b, which measures 16: of b's layout nothing holds, so nothing is kept."""
    rows = keyed(row("a", tpot=14.0), row("b", engine="sglang", tpot=16.0))
    mine = {(FILES[0], "a"): said(500, 14.0), (FILES[0], "b"): said(500, 12.0)}
    found = scores(rows, mine, rows)
    best = {
        limit: max(throughput(each, each.ttft, each.tpot) for each in rows.values() if each.tpot <= limit)
        for limit in (15.0, 25.0)
    }
    b = throughput(rows[(FILES[0], "b")], 500, 16.0)

    assert found.kept == (pytest.approx((0 + 3 * b / best[25.0]) / 4), 4)
    assert found.broken == 0.25


def test_only_rows_of_everybody_count() -> None:
    """A simulator that refuses a row takes it away from all, and its own table stands below."""
    rows = keyed(PLAIN, row("b"), row("c"))
    mine = {key: said(500, 20.0) for key in rows}
    page = render(rows, {"simserve": mine, "rival": dict(list(mine.items())[:2])}, {"simserve": 12.0})

    assert "2 of 3 rows" in page
    assert "on all 3 rows" in page
    assert "simserve 12 s" in page


def test_files_are_read_by_their_ids(tmp_path: Path) -> None:
    """Rows by the id in their notes, predictions by file and id; an empty cell is no figure."""
    head = "hardware,gpus,framework,model,precision,tp,pp,ep,dp,isl,osl,load_value,ttft_ms,tpot_ms,notes"
    for file in FILES:
        lines = [
            head,
            "h100,8,vllm,m,fp8,8,1,1,,1000,1000,64,500,20,id=one; gemm=fp8",
            "h100,8,vllm,m,fp8,8,,,,1,1,1,,2,id=two",
        ]
        (tmp_path / f"{file}.csv").write_text("\n".join(lines))
    own = tmp_path / "own.csv"
    own.write_text(f"file,id,predicted_ttft_ms,predicted_tpot_ms,low_tpot_ms,high_tpot_ms\n{FILES[0]},one,,21,19,23\n")

    assert list(read_rows(tmp_path)) == [(file, "one") for file in FILES]
    assert read_rows(tmp_path)[(FILES[0], "one")] == replace(PLAIN, id="one")
    (found,) = read_predictions(own).said.values()
    assert math.isnan(found.ttft)
    assert (found.tpot, found.tpot_range) == (21.0, (19.0, 23.0))


def handed_in(folder: Path, text: str) -> Path:
    """Return a file of predictions."""
    path = folder / "mine.csv"
    path.write_text(text)
    return path


HEAD = "file,id,predicted_ttft_ms,predicted_tpot_ms,cpu_seconds\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("file,id,predicted_ttft_ms\n", "has no column predicted_tpot_ms"),
        (HEAD + "inferencex_agg,one,fast,20,\n", "line 2, predicted_ttft_ms: fast must be a number above 0"),
        (HEAD + "inferencex_agg,one,500,-1,\n", "line 2, predicted_tpot_ms: -1 must be a number above 0"),
        (HEAD + "inferencex_agg,one,500,20,\ninferencex_agg,one,500,20,\n", "line 3: one is predicted twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_line(tmp_path: Path, text: str, word: str) -> None:
    """File, line, value and rule."""
    with pytest.raises(InputError) as caught:
        read_predictions(handed_in(tmp_path, text))

    assert word in str(caught.value).replace("'", "")


def test_seconds_are_added_up_where_every_line_has_them(tmp_path: Path) -> None:
    """One without says nothing about the whole."""
    whole = read_predictions(handed_in(tmp_path, HEAD + "a,one,500,20,1.5\na,two,500,20,2.5\n"))
    part = read_predictions(handed_in(tmp_path, HEAD + "a,one,500,20,1.5\na,two,500,20,\n"))

    assert whole.seconds == 4.0
    assert part.seconds is None


@pytest.mark.parametrize("text", ["mine.csv", "=mine.csv", "mine=", "simserve=mine.csv"])
def test_a_simulator_is_handed_in_by_name(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one, or under ours, it is refused in a line, and no page is written."""
    monkeypatch.setattr("benchmarks.exam.__main__.read_rows", lambda data: {})
    monkeypatch.setattr("benchmarks.exam.__main__.own_predictions", lambda table, data: {})
    page, own = tmp_path / "page.md", tmp_path / "own.parquet"
    own.touch()
    monkeypatch.setattr("sys.argv", ["exam", "--own", str(own), "--predictions", text, "--out", str(page)])

    assert main() == 2
    assert "must be NAME=FILE" in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.parametrize(("flag", "word"), [("--data", "has no inferencex_agg.csv"), ("--own", "is no file")])
def test_what_is_not_there_is_said_in_a_line(
    flag: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measurements or our own table: before anything is run."""
    monkeypatch.setattr("sys.argv", ["exam", flag, str(tmp_path / "none"), "--out", str(tmp_path / "page.md")])

    assert main() == 2
    assert word in capsys.readouterr().err
