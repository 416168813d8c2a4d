"""A table as HTML, for a notebook whose own style would have every cell flush right."""

from __future__ import annotations

import pytest

from simserve.report.page import begun, html_cells, marked


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


def test_commands_and_options_in_prose_stand_as_code() -> None:
    """A command from its colon to its end, an option with its number; the rest is prose, escaped."""
    command = marked("To see it: simserve run chatbot --set a=1")
    option = marked("<42% hold it (--confidence 90% for more), a one-in-ten chance")

    assert command == "To see it: <code>simserve run chatbot <span>--set</span> a=1</code>"
    assert option == '&lt;42% hold it (<code class="option">--confidence 90%</code> for more), a one-in-ten chance'


def test_what_an_option_is_set_to_stands_in_its_code() -> None:
    """A share a month, and names with their values up to the next clause."""
    decline = marked("cheaper; set yours with --price-decline 2%/month; the rest is assumed")
    terms = marked("by 30 %; set yours with --commitments 1y=30%,3y=50%; the rest is assumed")
    taken = marked("set yours with --interruptions mtbf=24h,mttr=10min")

    assert 'with <code class="option">--commitments 1y=30%,3y=50%</code>; the rest' in terms
    assert (
        decline == 'cheaper; set yours with <code class="option">--price-decline 2%/month</code>; the rest is assumed'
    )
    assert taken == 'set yours with <code class="option">--interruptions mtbf=24h,mttr=10min</code>'


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        ("nebius-llama-3.3-70b bills $1,419", "nebius-llama-3.3-70b bills"),
        ("vllm runs it", "vllm runs"),
        ("ranges are wide", "Ranges are"),
        ("tensor-parallel ranks", "Tensor-parallel ranks"),
    ],
)
def test_a_name_keeps_its_spelling_at_the_start_of_a_line(line: str, begins: str) -> None:
    """The page told of "Nebius-llama-3.3-70b", which no flag takes."""
    assert begun(line).startswith(begins)
