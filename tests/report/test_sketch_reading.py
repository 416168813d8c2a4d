"""What the pointer reads in a picture, and the pictures that answer a plan."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import numpy as np

from simserve.report.answer_plots import plan_candidates, plan_waterfall
from simserve.report.axes import BLUE, GREY
from simserve.report.sketch import Axis, Box, Curve, Dots, Note, Sketch, Steps, log_time
from simserve.report.sketch_svg import MOST_PLACES, sketch_svg, spots


def test_a_place_along_a_curve_tells_every_line() -> None:
    """With the label of the axis and the unit of the values; a line that ends before says nothing."""
    whole = Curve(x=np.array([0.0, 10.0]), y=np.array([0.1, 0.3]), color=BLUE, label="TTFT")
    half = Steps(edges=np.array([0.0, 5.0]), values=np.array([0.2]), color=GREY, label="TPOT")

    axis, found = spots(Sketch(x=Axis(label="load", high=10.0), y=log_time([0.1, 1.0]), marks=[whole, half]))

    assert axis == "x"
    assert [each.words for each in found] == [
        "load: 0\nTTFT: 100 ms\nTPOT: 200 ms",
        "load: 5.00\nTTFT: 200 ms",
        "load: 10.0\nTTFT: 300 ms",
    ]


def test_a_long_curve_is_read_at_so_many_places() -> None:
    """The first and the last among them."""
    line = Curve(x=np.linspace(0, 1, 5000), y=np.linspace(0, 1, 5000), color=BLUE)

    _, found = spots(Sketch(marks=[line]))

    assert len(found) == MOST_PLACES
    assert (found[0].x, found[-1].x) == (0.0, 1.0)


def test_named_points_are_read_one_by_one_and_rows_by_their_name() -> None:
    """Whatever line goes through the points."""
    line = Curve(x=np.array([0.0, 1.0]), y=np.array([0.0, 1.0]), color=GREY)
    dots = Dots(x=[0.25, 0.75], y=[0.5, 0.1], color=BLUE, names=["one", "two"])
    rows = Axis(low=0.5, high=-0.5, ticks=[(0, "E2E p95")])

    axis, points = spots(Sketch(x=Axis(label="x"), y=Axis(label="y"), marks=[line, dots]))
    kind, boxes = spots(Sketch(y=rows, marks=[Box(left=0.0, right=0.5, y=0, thickness=0.6, color=BLUE)]))

    assert (axis, points[1].words) == ("both", "two\nx: 0.750\ny: 0.100")
    assert (kind, boxes[0].words.splitlines()[0]) == ("y", "E2E p95")


def test_the_svg_carries_what_the_pointer_reads() -> None:
    """As an attribute, escaped; a picture of nothing has none."""
    dots = Dots(x=[0.5], y=[0.5], color=BLUE, names=["<b>"])

    svg = sketch_svg(Sketch(marks=[dots]), "one", "a picture")

    stored = json.loads(unescape(re.findall(r'data-spots="([^"]*)"', svg)[0]))
    assert stored["spots"][0][2].startswith("<b>")
    assert "<b>" not in svg
    assert "data-spots" not in sketch_svg(Sketch(), "two", "nothing")


def fleet(**changes: Any) -> dict[str, Any]:
    """Return a fleet that was simulated."""
    own = {"label": "2 x a-gpu", "hardware": "a-gpu", "num_gpus": 2, "usd_per_month": 4e3, "p95_ttft_ms": 400.0}
    return {**own, "holds": True, **changes}


def test_the_front_of_a_plan_is_named_and_far_slower_fleets_are_not_drawn() -> None:
    """What no other fleet beats in dollars and TTFT carries its GPUs."""
    fast = fleet(num_gpus=8, usd_per_month=16e3, p95_ttft_ms=100.0)
    beaten = fleet(num_gpus=6, usd_per_month=17e3, p95_ttft_ms=200.0)
    slow = fleet(p95_ttft_ms=90_000.0, holds=False)

    sketch = plan_candidates({"candidates": [fleet(), fast, beaten, slow], "best": fleet()})

    assert sketch is not None
    texts = {mark.text for mark in sketch.marks if isinstance(mark, Note)}
    assert texts == {"8 x a-gpu", "the plan: 2 x a-gpu"}
    assert sketch.x.high < 10


def test_gpus_are_named_without_their_memory_beside_points() -> None:
    """Their full name covered the points beside it; the pointer reads it."""
    fast = fleet(num_gpus=8, usd_per_month=16e3, p95_ttft_ms=100.0, hardware="h200-sxm-141gb")
    best = fleet(hardware="rtx-pro-6000-96gb")

    sketch = plan_candidates({"candidates": [best, fast], "best": best})

    assert sketch is not None
    texts = {mark.text for mark in sketch.marks if isinstance(mark, Note)}
    assert texts == {"8 x h200", "the plan: 2 x rtx-pro-6000"}


def test_the_waterfall_ends_at_the_month_and_stands_beside_the_api() -> None:
    """Each step begins where the one before ends; the steps add up."""
    best = {"usd_per_month": 9e3, "replicas": 3, "replicas_needed": 2}
    month = {"self_host_usd_per_month": 11e3, "api": {"name": "an-api", "usd_per_month": 7e3}}

    sketch = plan_waterfall({"best": best, "month": month})

    assert sketch is not None
    boxes = [(mark.left, mark.right) for mark in sketch.marks if isinstance(mark, Box)]
    assert boxes == [(0, 3e3), (3e3, 6e3), (6e3, 9e3), (9e3, 11e3), (0, 11e3), (0, 7e3)]
    assert plan_waterfall({"best": {**best, "usd_per_month": None}, "month": None}) is None
