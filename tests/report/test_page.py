"""A table as HTML, for a notebook whose own style would have every cell flush right."""

from __future__ import annotations

from simserve.report.page import html_cells


def test_words_stand_left_and_figures_right_on_one_line() -> None:
    """Whatever the style of the page around it; what is shown is escaped."""
    text = html_cells(("", "why", "$/month"), [("a <b>", "dear", "$11"), ("c", "4 GPUs", "same")])

    assert text.count('<td style="text-align:left">') == 4
    assert text.count('<td style="text-align:right;white-space:nowrap">') == 2
    assert "a &lt;b&gt;" in text
    assert "<thead><tr><th" in text


def test_a_table_of_no_rows_keeps_its_titles() -> None:
    """Nothing is known of its columns."""
    assert html_cells(("a", "b"), []).count("<th ") == 2
