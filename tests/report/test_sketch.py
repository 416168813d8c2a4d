"""Sketches: what stands in the SVG is what Matplotlib draws, at the same places."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from simserve.report.axes import BLUE, TEXT_POINTS, VERMILION
from simserve.report.plots import kv_over_time, memory_bar, request_latency, requests_over_time, step_time
from simserve.report.sketch import Axis, Curve, Dots, Note, Rule, Sketch, Steps, dollar_words, linear_ticks, text_width
from simserve.report.sketch_figure import sketch_figure
from simserve.report.sketch_svg import sketch_svg
from tests.report.builders import run

PICTURES = {
    "latency": lambda: request_latency(run("stable")),
    "requests": lambda: requests_over_time(run("overloaded")),
    "kv": lambda: kv_over_time(run("stable")),
    "steps": lambda: step_time(run("stable")),
    "memory": lambda: memory_bar(run("stable").summary),
}


def texts_of(svg: str) -> list[str]:
    """Return the words of an SVG, in order."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


@pytest.mark.parametrize("name", PICTURES)
def test_both_drawings_hold_the_same_words(name: str) -> None:
    """Ticks, axes, notes and key."""
    sketch = PICTURES[name]()
    figure = sketch_figure(sketch)
    figure.canvas.draw()
    axes = figure.axes[0]
    drawn = [*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts, axes.xaxis.label, axes.yaxis.label]
    drawn += [text for key in figure.legends for text in key.get_texts()]

    assert sorted(texts_of(sketch_svg(sketch, "one", "Words"))) == sorted(
        text.get_text() for text in drawn if text.get_text()
    )


def test_a_curve_ends_where_its_values_say() -> None:
    """Linear and logarithmic: the ends of the axes are the ends of the frame."""
    line = Curve(x=np.array([1.0, 10.0, 100.0]), y=np.array([0.0, 5.0, 10.0]), color=BLUE)
    sketch = Sketch(x=Axis(low=1.0, high=100.0, is_log=True), y=Axis(high=10.0), marks=[line], has_grid=False)
    svg = sketch_svg(sketch, "one", "A curve")

    path = re.search(r'<path d="M([\d. ]+)L([\d. ]+)L([\d. ]+)" fill="none"', svg)

    assert path is not None
    points = [tuple(map(float, point.split())) for point in path.groups()]
    width, height = 4.6 * 72, 3.1 * 72
    assert points[0] == pytest.approx((0.17 * width, 0.84 * height), abs=0.01)
    assert points[2] == pytest.approx((0.96 * width, 0.14 * height), abs=0.01)
    assert points[1][0] == pytest.approx((points[0][0] + points[2][0]) / 2, abs=0.01)


def test_steps_are_flat_between_their_edges() -> None:
    """Two bins: over, up, over; an area ends on the ground."""
    steps = Steps(edges=np.array([0.0, 1.0, 2.0]), values=np.array([1.0, 2.0]), color=BLUE)
    area = Steps(edges=steps.edges, values=steps.values, color=BLUE, is_filled=True)
    sketch = Sketch(x=Axis(high=2.0), y=Axis(high=4.0), marks=[area, steps], has_grid=False)

    paths = re.findall(r'<path d="M([^"z]+)z?" fill', sketch_svg(sketch, "one", "Steps"))

    assert [path.count("L") for path in paths] == [5, 3]
    heights = [float(point.split()[1]) for point in paths[1].split("L")]
    assert heights[0] == heights[1] > heights[2] == heights[3]


def test_words_are_escaped_and_ids_are_its_own() -> None:
    """Whatever a model is called."""
    marks = [Dots(x=[0.5], y=[0.5], color=VERMILION, label='<b>&"'), Rule(x=0.2, color=BLUE, dashes=(1.0, 2.0))]
    sketch = Sketch(marks=[*marks, Note(text="a < b", x=0.5, y=None, right=1, up=1)])

    svg = sketch_svg(sketch, "mine", '"quoted"')

    assert {'<b>&"', "a < b"} <= set(texts_of(svg))
    assert set(re.findall(r'id="([^"]+)"', svg)) == {"mine-axes"}
    assert 'stroke-dasharray="1 2"' in svg


def test_a_sketch_of_nothing_says_so() -> None:
    """In words, by both."""
    sketch = Sketch(instead="nothing was recorded")

    assert texts_of(sketch_svg(sketch, "one", "Nothing")) == ["nothing was recorded"]
    assert [text.get_text() for text in sketch_figure(sketch).axes[0].texts] == ["nothing was recorded"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 19.0, [0, 5, 10, 15]), (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-0.3, 0.7, [-0.2, 0, 0.2, 0.4, 0.6])],
)
def test_linear_ticks_are_round_and_inside(low: float, high: float, ticks: list[float]) -> None:
    """At most seven."""
    assert linear_ticks(low, high) == pytest.approx(ticks)


def test_counts_have_whole_ticks() -> None:
    """No half requests."""
    assert linear_ticks(0.0, 2.0, is_whole=True) == [0, 1, 2]


def test_words_at_the_end_of_an_axis_stay_inside_the_picture() -> None:
    """A tick at the right end has its word left of the picture's edge."""
    x = Axis(high=500.0, ticks=((0.0, "0 ms"), (500.0, "500,000 ms")))
    sketch = Sketch(x=x, y=Axis(high=1.0), marks=[], right=1.0)
    root = ElementTree.fromstring(sketch_svg(sketch, "a", "b"))

    word = next(each for each in root.iter() if each.text == "500,000 ms")
    width = float(root.attrib["viewBox"].split()[2])
    assert float(word.attrib["x"]) + text_width("500,000 ms", TEXT_POINTS) / 2 <= width + 0.1


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "$0"), (200.0, "$200"), (1500.0, "$1,500"), (0.25, "$0.250"), (-200.0, "-$200"), (2.5, "$2.50")],
)
def test_whole_dollars_at_a_tick_have_no_cents(value: float, words: str) -> None:
    """All ticks of an axis in one form."""
    assert dollar_words(value) == words
