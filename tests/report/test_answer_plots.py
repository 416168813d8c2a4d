"""Pictures of many runs: what they show, and that page and notebook show the same."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from simserve.report.answer_plots import (
    break_even,
    differences,
    goodput_against_load,
    latency_against_load,
    plan_candidates,
    sweep_curves,
    tornado,
)
from simserve.report.sketch import (
    Box,
    Curve,
    Dots,
    Level,
    Note,
    Rule,
    Sketch,
    Whiskers,
    around,
    log_time,
    spaced,
    text_width,
)
from simserve.report.sketch_figure import sketch_figure
from simserve.report.sketch_svg import sketch_svg
from simserve.report.validation import scatter
from tests.report.test_sketch import texts_of

LOADS = [1.0, 2.0, 4.0]
NAN = float("nan")


class Named:
    """Attributes by name, in place of an answer that takes seconds to find."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def comparison() -> Sketch:
    """Return a variant whose TTFT is shown to differ and whose throughput is not."""
    nothing = Named(base=NAN, mean=NAN, half_width=NAN, is_shown=False, relative_interval=None)
    found = dict.fromkeys(("p95_tpot_ms", "p95_e2el_ms", "usd_per_million_output_tokens"), nothing)
    found |= {
        "p95_ttft_ms": Named(base=100.0, mean=50.0, half_width=9.0, is_shown=True, relative_interval=(0.46, 0.56)),
        "output_throughput": Named(base=100.0, mean=1.0, half_width=4.0, is_shown=False, relative_interval=None),
    }
    return differences(Named(base=Named(name="base"), variants=[Named(name="bf16", differences=found)]))  # type: ignore[arg-type]


def sweep(num_lines: int) -> Sketch:
    """Return p95 TTFT over two rates, one line a size."""
    rows = [
        {"values": {"rate": rate, "deployment.tensor_parallel_size": size}, "p95_ttft_ms": 10.0 * rate / (size + 1)}
        for rate in (1, 2)
        for size in range(num_lines)
    ]
    sketch = sweep_curves(
        Named(keys=["rate", "deployment.tensor_parallel_size"], rows=rows),  # type: ignore[arg-type]
        "p95_ttft_ms",
    )
    assert sketch is not None
    return sketch


def cost() -> dict[str, Any]:
    """Return a cost comparison that breaks even at two million requests."""
    return {
        "self_host": {"usd_per_month": 2000.0},
        "api": {"name": "an-api", "usd_per_request": 0.001},
        "break_even": {"requests_per_month": 2e6},
        "day": {"requests_per_month": 5e6},
        "saving_usd_per_month": 3000.0,
        "sensitivity": [
            {
                "parameter": "API, $ a request",
                "saving_usd_per_month_low": -1000.0,
                "saving_usd_per_month_high": 7000.0,
                "changes_the_answer": True,
            }
        ],
    }


def plan() -> Sketch:
    """Return two fleets, one of which holds and is the plan."""
    named = {"label": "4 x a-gpu, TP 4", "num_gpus": 4, "hardware": "a-gpu"}
    holds = {**named, "usd_per_month": 1e4, "p95_ttft_ms": 300.0, "holds": True}
    sketch = plan_candidates({"candidates": [holds, {**holds, "p95_ttft_ms": 500.0, "holds": False}], "best": holds})
    assert sketch is not None
    return sketch


PICTURES = {
    "latency": lambda: latency_against_load(LOADS, [0.1, 0.2, 2.0], [NAN, 0.02, 0.03], (1.0, None), "load", []),
    "goodput": lambda: goodput_against_load(LOADS, LOADS, [1.0, 2.0, 0.1], (2.0, 2.0), "load", []),
    "differences": comparison,
    "sweep": lambda: sweep(7),
    "plan": plan,
    "break-even": lambda: break_even(cost()),
    "tornado": lambda: tornado(cost()),
    "scatter": lambda: scatter({"vllm": ([1.0, 10.0], [1.1, 9.0]), "not scored": ([2.0], [3.0])}, "ms"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_both_drawings_hold_the_same_words(name: str) -> None:
    """Ticks, axes, notes and key, on the page and in a notebook."""
    sketch = PICTURES[name]()
    assert sketch is not None
    figure = sketch_figure(sketch)
    figure.canvas.draw()
    axes = figure.axes[0]
    drawn = [*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts, axes.xaxis.label, axes.yaxis.label]
    drawn += [text for key in figure.legends for text in key.get_texts()]
    words = [text.get_text() for text in drawn] + [axes.get_title(loc="left")]

    assert sorted(texts_of(sketch_svg(sketch, "one", "Words"))) == sorted(filter(None, words))
    assert sketch.x.label
    assert sketch.y.label or sketch.y.ticks


def test_bounds_stand_where_they_are_and_undefined_loads_are_left_out() -> None:
    """Of the SLO; without a bound there is no line."""
    marks = PICTURES["latency"]().marks

    assert [(mark.y, mark.color) for mark in marks if isinstance(mark, Level)] == [(1.0, marks[0].color)]
    assert [list(mark.x) for mark in marks if isinstance(mark, Curve)] == [LOADS, LOADS[1:]]


def test_the_knee_is_circled_and_named() -> None:
    """Where most requests are within the objective."""
    marks = PICTURES["goodput"]().marks

    assert [(list(mark.x), list(mark.y)) for mark in marks if isinstance(mark, Dots)] == [([2.0], [2.0])]
    assert [mark.text for mark in marks if isinstance(mark, Note)] == ["knee at 2"]


def test_what_is_within_the_objective_is_answered() -> None:
    """Whatever the two rates of a short run say."""
    sketch = goodput_against_load(LOADS, [0.9, 1.8, NAN], [1.0, 1.5, 0.1], None, "load", [])

    answered, good = ([*mark.y] for mark in sketch.marks if isinstance(mark, Curve))
    assert answered == [1.0, 1.8]
    assert good == [1.0, 1.5, 0.1]


def test_words_of_close_ticks_do_not_overlap() -> None:
    """Within a decade, even steps lie close at the upper end."""
    axis = log_time([0.011, 0.055])

    places = [axis.share(value) for value, _ in axis.marked]
    assert len(places) >= 3
    assert min(after - before for before, after in pairwise(places)) >= 0.15


def test_no_two_ticks_say_the_same() -> None:
    """Seconds within a decade keep the digit that tells them apart."""
    words = [text for _, text in log_time([0.32, 1.6]).marked]

    assert "1.2 s" in words
    assert len(set(words)) == len(words)


def test_what_is_not_shown_to_differ_is_hollow_and_named_once() -> None:
    """With the interval that covers zero."""
    sketch = comparison()

    points = {mark.is_hollow: list(mark.x) for mark in sketch.marks if isinstance(mark, Dots)}
    assert points == {False: [50.0], True: [1.0]}
    reaches = [list(mark.reach) for mark in sketch.marks if isinstance(mark, Whiskers)]
    assert reaches == [[pytest.approx(5.0)], [4.0]]
    assert [mark.label for mark in sketch.named] == ["bf16"]


def test_long_words_of_ticks_have_room() -> None:
    """Fewer of them, 0 among them."""
    axis = spaced(around("change", [-4000.0, 23000.0], lambda value: f"{value:+,.0f}%"), 220.0)

    words = [text for _, text in axis.marked]
    assert any(value == 0 for value, _ in axis.marked)
    assert 2 <= len(words) < len(around("change", [-4000.0, 23000.0]).marked)
    assert sum(text_width(text, 9.0) for text in words) < 220.0


def test_a_long_key_takes_more_lines_and_the_picture_grows_upwards() -> None:
    """The axes stay as large as they were."""
    one, seven = sketch_svg(sweep(2), "a", "Two"), sketch_svg(sweep(7), "a", "Seven")
    boxes = [[float(each) for each in re.findall(r'viewBox="([^"]+)"', svg)[0].split()] for svg in (one, seven)]

    assert boxes[0][1] == 0
    assert boxes[1][1] < 0
    assert boxes[1][1] + boxes[1][3] == pytest.approx(boxes[0][3])
    assert "5 of 7 combinations" in texts_of(seven)


def test_the_two_sides_meet_at_the_break_even() -> None:
    """A point on both lines, the traffic a rule."""
    sketch = break_even(cost())
    assert sketch is not None

    point = next(mark for mark in sketch.marks if isinstance(mark, Dots))
    assert (point.x[0] * 1e6 * 0.001, point.y[0]) == (2000.0, 2000.0)
    assert [mark.x for mark in sketch.marks if isinstance(mark, Rule)] == [5.0]
    assert break_even({**cost(), "api": {"name": "x", "usd_per_request": None}}) is None


def test_inputs_reach_from_their_low_to_their_high() -> None:
    """A box an input, its name wholly inside the picture."""
    sketch = tornado(cost())
    assert sketch is not None

    assert [(mark.left, mark.right) for mark in sketch.marks if isinstance(mark, Box)] == [(-1000.0, 7000.0)]
    assert sketch.left * 4.6 * 72 > 60
    assert tornado({**cost(), "sensitivity": []}) is None


def fleets(seed: int) -> list[dict[str, Any]]:
    """Return fleets of few prices and many TTFTs, as a plan simulates them."""
    drawn = np.random.default_rng(seed)
    return [
        {
            "label": f"fleet {number}",
            "hardware": "h100-sxm-80gb",
            "num_gpus": int(gpus),
            "usd_per_month": 2253.0 * gpus * drawn.choice([1.0, 1.01]),
            "p95_ttft_ms": float(drawn.uniform(200, 1500)),
            "holds": bool(drawn.random() < 0.5),
        }
        for number, gpus in enumerate(drawn.choice([2, 3, 4, 6, 8], 25))
    ]


@pytest.mark.parametrize("seed", range(8))
def test_names_of_fleets_neither_cover_each_other_nor_leave_the_picture(seed: int) -> None:
    """As Matplotlib draws them; the plan, which has the most places, is always named."""
    candidates = fleets(seed)
    best = min((each for each in candidates if each["holds"]), key=lambda each: each["usd_per_month"])

    sketch = plan_candidates({"candidates": candidates, "best": best})

    assert sketch is not None
    figure = sketch_figure(sketch)
    figure.canvas.draw()
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert any(text.get_text().startswith("the plan: ") for text in axes.texts)
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
    assert [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)] == []


def test_the_name_of_a_plan_goes_where_no_point_is() -> None:
    """Fleets of a fifth less stand below the plan, where its name used to be; it covers none of them."""
    own = {"label": "a fleet", "hardware": "h100-sxm-80gb", "num_gpus": 4, "holds": True}
    best = {**own, "usd_per_month": 9014.0, "p95_ttft_ms": 370.0}
    others = [
        {**own, "usd_per_month": usd, "p95_ttft_ms": ttft, "holds": usd > 9000 and ttft < 1000}
        for usd, many in {
            4507.0: (600.0, 950.0),
            7200.0: (390.0, 450.0, 520.0, 600.0, 700.0, 800.0, 900.0),
            9014.0: (270.0, 300.0, 640.0, 700.0),
            22535.0: (1100.0,),
        }.items()
        for ttft in many
    ]

    sketch = plan_candidates({"candidates": [best, *others], "best": best})

    assert sketch is not None
    figure = sketch_figure(sketch)
    figure.canvas.draw()
    axes = figure.axes[0]
    name = next(text for text in axes.texts if text.get_text().startswith("the plan"))
    box = name.get_window_extent().padded(2.5 * figure.dpi / 72)  # the reach of a point, and of the rim around words
    points = axes.transData.transform([(each["p95_ttft_ms"] / 1e3, each["usd_per_month"]) for each in others])
    assert [point for point in points if box.contains(*point)] == []
