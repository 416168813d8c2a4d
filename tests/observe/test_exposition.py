"""Pages of metrics: what stands there is read, what is none is left out."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from simserve.observe.scrapes import LONGEST_LINE, MOST_SAMPLES, Sample, samples_of


def test_names_labels_and_figures_are_read() -> None:
    """As Prometheus' text format writes them: comments, labels or none, a time at the end or none."""
    page = '# TYPE a gauge\na 1\nb:c{x="1",y="two"} 2.5e3\nd{} 4 1700000000000\n'

    assert samples_of(page) == [
        Sample("a", {}, 1.0),
        Sample("b:c", {"x": "1", "y": "two"}, 2500.0),
        Sample("d", {}, 4, 1_700_000_000.0),
    ]


def test_openmetrics_is_read_too() -> None:
    """Its times are seconds, its exemplars nothing of the sample."""
    page = 'a{le="1"} 5 # {trace_id="x # y"} 0.7 1700000000.1\nb 6 1700000000.25\nc 7 1700000000\n# EOF\n'

    assert samples_of(page) == [
        Sample("a", {"le": "1"}, 5.0),
        Sample("b", {}, 6.0, 1_700_000_000.25),
        Sample("c", {}, 7.0, 1_700_000_000.0),
    ]


def test_signs_in_labels_are_read_as_they_were_meant() -> None:
    """Quotes, backslashes and line ends are escaped; a brace or a comma within quotes is none."""
    (sample,) = samples_of(r'a{path="C:\\x \"y\" {z}, w",line="one\ntwo"} 1')

    assert sample.labels == {"path": 'C:\\x "y" {z}, w', "line": "one\ntwo"}


def test_an_infinite_bucket_is_read_and_what_is_no_number_is_left_out() -> None:
    """Histograms end with ``+Inf``; NaN says nothing."""
    found = samples_of('a_bucket{le="+Inf"} 7\nb NaN\nc one\nd +Inf\n{} 1\nnothing\n')

    assert [(each.name, each.value) for each in found] == [("a_bucket", 7.0), ("d", math.inf)]


def test_a_page_without_end_is_read_within_bounds() -> None:
    """Lines that are too long are left out, and no more samples are read than there may be."""
    found = samples_of("a " + "1" * (2 * LONGEST_LINE) + "\n" + "b 1\n" * (MOST_SAMPLES + 10))

    assert len(found) == MOST_SAMPLES
    assert {each.name for each in found} == {"b"}


@given(st.text(alphabet='a{}="\\,\n 1.e+-#é', max_size=200))
def test_any_text_gives_samples_or_none(text: str) -> None:
    """Nothing that a server writes is an error of the reader, and no figure is NaN."""
    assert not any(math.isnan(each.value) for each in samples_of(text))
