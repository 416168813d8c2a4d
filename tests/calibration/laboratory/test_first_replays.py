"""First replays are noted for reports that came nearer, and for no others."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from calibration.laboratory.first_replays import COLUMNS, FILE, errors_of, main, noted

TEXT = """# Head.
reports:
  far: {tpot: 0.50}
"""


def table(path: Path, rows: list[tuple[str, str, float, float, str]]) -> Path:
    """Write a table of ``simserve validate --out``: label, metric, measured, predicted, shown only."""
    fields = [
        "label",
        "shown_only",
        *(f"{side}_{each}" for each in COLUMNS.values() for side in ("measured", "predicted")),
    ]
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, fields)
        writer.writeheader()
        for label, metric, measured, predicted, shown_only in rows:
            column = COLUMNS[metric]
            figures = {f"measured_{column}": measured, f"predicted_{column}": predicted}
            writer.writerow({"label": label, "shown_only": shown_only, **figures})
    return path


def test_errors_are_medians_below_zero_where_predictions_are_too_low(tmp_path: Path) -> None:
    """Of 10, 20 and 60 % too low; figures that are only shown do not count."""
    rows = [("one: a", "tpot", 100.0, predicted, "") for predicted in (90.0, 80.0, 40.0)]
    rows += [("one: a", "ttft", 1.0, 2.0, "throughput ttft"), ("two: b c", "throughput", 10.0, 11.5, "ttft")]

    errors = errors_of(table(tmp_path / "t.csv", rows))

    assert {key: round(error, 3) for key, error in errors.items()} == {
        ("one", "tpot"): -0.2,
        ("two", "throughput"): 0.15,
    }


def test_only_what_came_nearer_is_noted_and_what_stands_there_stays() -> None:
    """By at least a hundredth, either side of the measurement."""
    before = {("far", "tpot"): -0.3, ("far", "ttft"): 0.40, ("new", "throughput"): -0.125, ("same", "tpot"): 0.2}
    after = {("far", "tpot"): 0.1, ("far", "ttft"): -0.2, ("new", "throughput"): 0.05, ("same", "tpot"): -0.195}

    text = noted(TEXT, before, after)

    assert text == "# Head.\nreports:\n  far: {tpot: 0.50, ttft: 0.40}\n  new: {throughput: -0.12}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage: .* BEFORE.csv AFTER.csv"),
        (["there.csv", "none.csv"], "none.csv: no such file"),
        (["other.csv", "there.csv"], "other.csv: is no table that simserve validate"),
    ],
)
def test_what_is_no_table_ends_in_one_line_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    """Too few names, a file that is not there, and a table of something else."""
    table(tmp_path / "there.csv", [])
    (tmp_path / "other.csv").write_text("label,tpot\nx,1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    text = FILE.read_text(encoding="utf-8")

    with pytest.raises(SystemExit, match=message):
        main(words)
    assert FILE.read_text(encoding="utf-8") == text


def test_nothing_new_leaves_the_file_as_it_is() -> None:
    """Also that of the project."""
    text = FILE.read_text(encoding="utf-8")

    assert noted(text, {}, {}) == text
