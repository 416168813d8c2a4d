"""The answer and the page of a validation: figures of the summary, a mark a point, self-contained, the same bytes."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from simserve.planner.validation.validate import Validation
from simserve.report.validation import Validation as ShownValidation
from simserve.report.validation import (
    engine_kind,
    error_tables,
    not_run_lines,
    render_validation,
    validation_lines,
    validation_page,
    write_validation_page,
)
from tests.planner.builders import make_prediction
from tests.report.builders import Page


def _validation() -> Validation:
    """Return four points run of three engines, one of them only shown, and two that were not."""
    return Validation(
        predictions=(
            make_prediction({"tpot": 0.012}),
            make_prediction({"tpot": 0.009}, engine="sglang", hardware="h200-sxm-141gb"),
            make_prediction({"tpot": 0.010, "ttft": 0.2}, engine="tgi", measured={"tpot": 0.01, "ttft": 0.1}),
            make_prediction({"tpot": 0.05}, shown_only=frozenset({"tpot"})),
            make_prediction({}, reason="no <profile>", source="elsewhere"),
            make_prediction({}, reason="no <profile>", source="elsewhere"),
        )
    )


def test_the_answer_is_the_error_over_all_scored_points() -> None:
    """10 % is the median of 20, 10 and 0 %; the point that is only shown is in none."""
    lines = validation_lines(_validation().summary)

    assert lines[0] == "Median error: TPOT 10.0% (3 points) and TTFT 100.0% (1 point)."
    assert lines[1].startswith("4 of 6 points were run.")


def test_metrics_without_a_figure_are_named() -> None:
    """A column that is left out is not taken for one without an error."""
    assert "No point that was run has a figure to compare in E2E and throughput." in validation_lines(
        _validation().summary
    )


def test_the_intervals_say_what_their_columns_mean() -> None:
    """Widths are the upper end over the lower, on the page as on the terminal."""
    row = {"metric": "tpot", "group": "all", "sources": 3, "figures": 9, "coverage_90": 0.9, "coverage_50": 0.5}
    widths = {"log_width": math.log(2.5), "interval_score": 1.0, "constant_log_width": math.log(3.0)}
    summary = {**_validation().summary, "intervals": [{**row, **widths, "constant_interval_score": 1.2}]}
    out = io.StringIO()

    render_validation(summary, Console(file=out, width=200))

    (table,) = (each for each in error_tables(summary) if each.title == "Prediction intervals")
    assert table.rows[0][6:] == ("2.5x", "1.00", "3.0x", "1.20")
    for title in table.header[4:9]:
        assert title.lower() in table.caption.lower(), title
    assert table.caption in out.getvalue().replace("\n", " ").replace("  ", " ")


def test_the_tables_are_by_source_load_and_model() -> None:
    """Columns of metrics that nobody measured are left out; what is only shown carries a star."""
    tables = {table.title: table for table in error_tables(_validation().summary)}

    assert list(tables) == ["By source", "By concurrency or kind of load", "By engine, GPU and model"]
    assert tables["By source"].header == ("source", "points", "run", "TPOT", "TTFT")
    by_model = tables["By engine, GPU and model"]
    assert ("made_up", "sglang", "h200-sxm-141gb", "llama-3.2-1b", "1", "1", "10.0% (-10.0%)", "") in by_model.rows
    assert tables["By source"].rows[1] == ("elsewhere", "2", "0", "", "")


def test_columns_that_say_nothing_are_left_out() -> None:
    """One source is no column, nor are points run where all of them were; a name in words stays on one line."""
    validation = Validation(predictions=(make_prediction({"tpot": 0.012}),))
    out = io.StringIO()

    (by_load, by_model) = error_tables(validation.summary)
    render_validation(validation.summary, Console(file=out, width=80, highlight=False))

    assert by_load.header == ("engine", "concurrency", "points", "TPOT")
    assert by_model.header == ("engine", "GPU", "model", "points", "TPOT")
    assert ", ".join(by_model.rows[0][:3]) in out.getvalue()


def test_a_figure_that_is_only_shown_carries_a_star() -> None:
    """Where no other point of the group is scored."""
    shown = Validation(predictions=(make_prediction({"tpot": 0.05}, shown_only=frozenset({"tpot"})),))

    (row,) = error_tables(shown.summary)[0].rows

    assert row[-1] == "400.0% (+400.0%)*"


def test_reasons_beyond_the_most_frequent_are_counted() -> None:
    """So that nothing is hidden."""
    summary = _validation().summary

    assert not_run_lines(summary) == ["2 of elsewhere: no <profile>"]
    assert not_run_lines(summary, most=0) == ["2 for other reasons (--json lists them)"]


def test_a_terminal_gets_the_answer_first_and_the_reasons_last() -> None:
    """Text of the data is never read as markup."""
    out = io.StringIO()
    bracketed = make_prediction({}, reason="needs [one]")

    render_validation(
        Validation(predictions=(*_validation().predictions, bracketed)).summary,
        Console(file=out, width=200, highlight=False),
    )

    printed = out.getvalue()
    assert printed.startswith("Median error: TPOT 10.0%")
    assert "needs [one]" in printed.rpartition("What could not be run")[2]


def test_the_page_is_balanced_and_fetches_nothing() -> None:
    """A picture a metric; text of the data is escaped."""
    text = validation_page(_validation())

    page = Page(text)
    assert page.open == []
    assert len(re.findall("<svg ", text)) == 2
    assert "no &lt;profile&gt;" in text
    assert not re.search(r"(https?:)?//[a-z0-9]", text, re.IGNORECASE)


def test_more_points_draw_more_marks() -> None:
    """One mark a point: ten more points are ten more."""
    few = validation_page(Validation(predictions=(make_prediction({"tpot": 0.012}),)))
    many = validation_page(Validation(predictions=(make_prediction({"tpot": 0.012}),) * 11))

    assert many.count("<circle") - few.count("<circle") == 10


def test_the_page_is_the_same_every_time(tmp_path: Path) -> None:
    """Ids of the pictures follow their contents; the command names the flag that was used."""
    write_validation_page(_validation(), tmp_path / "a.html", asked="--data DIR")
    write_validation_page(_validation(), tmp_path / "b.html", asked="--data DIR")

    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.html").read_text(encoding="utf-8")
    assert "--data DIR --report" in text
    assert "--data DIR" not in validation_page(_validation())


@pytest.mark.parametrize(("engine", "kind"), [("vllm", "vllm"), ("llama.cpp", "others"), ("not scored", "not scored")])
def test_engines_without_a_colour_share_one(engine: str, kind: str) -> None:
    """Named others."""
    assert engine_kind(engine) == kind


def test_rooms_for_kv_are_answered_beside_the_points_or_alone() -> None:
    """How many are within both limits, and the largest miss."""
    served = {"model": "llama-3.1-8b", "hardware": "h100-sxm-80gb", "is_own_count": False}
    row = {"is_within": True, "error_of_gpu": 0.002, "error_of_kv": 0.01, **served}
    rows = [row, {**row, "is_within": False, "error_of_gpu": -0.02}]

    (alone,) = validation_lines({**Validation(predictions=()).summary, "memory": rows})
    beside = validation_lines({**_validation().summary, "memory": rows})

    assert alone.startswith("KV cache size: 1 of 2 logged deployments within 1% of the GPU's memory")
    assert alone.endswith("the largest error is 2.00% of the GPU (llama-3.1-8b on h100-sxm-80gb).")
    assert beside[-1] == alone
    assert validation_lines(Validation(predictions=()).summary) == ["No measurement was found."]


def test_rooms_in_tokens_that_each_release_counts_in_its_own_way_are_told_apart() -> None:
    """A log of 198,000 tokens of a model with windows is no error of 224 % of a GPU among others of 2 %."""
    plain = {"is_within": False, "error_of_gpu": -0.02, "model": "llama-3.1-8b", "hardware": "h100-sxm-80gb"}
    windowed = {"is_within": False, "error_of_gpu": -2.24, "model": "gemma-4-31b", "hardware": "r9700-32gb"}
    rows = [plain | {"is_own_count": False}, windowed | {"is_own_count": True}]

    first, second = validation_lines({**Validation(predictions=()).summary, "memory": rows})

    assert first.endswith("the largest error is 2.00% of the GPU (llama-3.1-8b on h100-sxm-80gb).")
    assert second.startswith("One of them logs tokens of layers with windows, states or a compressed cache")
    assert second.endswith("there the largest error is 224.00% of the GPU (gemma-4-31b on r9700-32gb).")


def test_points_that_constants_were_fitted_to_are_counted() -> None:
    """Their errors are no test; nothing is said where there are none."""
    summary = _validation().summary

    told = validation_lines({**summary, "points": 146, "fitted": 24})

    assert "Constants were fitted to 24 of these points, not to the other 122." in told
    assert not any("fitted" in line for line in validation_lines(summary))


def test_a_validation_shows_itself_in_a_notebook() -> None:
    """The answer and a row a source; a scatter of what has points, nothing of what has none."""
    found = _validation()
    shown = ShownValidation(predictions=found.predictions)

    text = shown._repr_html_()
    figure = shown.plot.scatter("tpot")

    assert "Median error: TPOT 10.0%" in text
    assert text.count("<tr>") == 1 + len(error_tables(found.summary)[0].rows)
    assert figure is not None
    assert figure.axes[0].get_xlabel() == "measured, TPOT in ms"
    assert shown.plot.scatter("e2e") is None
    assert shown.summary == found.summary


def test_a_validation_shows_itself_in_a_line() -> None:
    """Not by the thousands of numbers of its points."""
    shown = repr(ShownValidation(predictions=_validation().predictions))

    assert re.fullmatch(r"<Validation: Median error: TPOT [\d.]+% .*>", shown)
