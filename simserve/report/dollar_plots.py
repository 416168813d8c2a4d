"""Pictures of what self-hosting and an API cost, as sketches: where they break even, and which input matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simserve.report.axes import BLUE, GREY, INK, SKY, TEXT_POINTS, VERMILION, WIDTH_INCHES
from simserve.report.quantities import number
from simserve.report.sketch import (
    DASHED,
    DOTTED,
    POINTS_AN_INCH,
    SOLID,
    Axis,
    Box,
    Curve,
    Dots,
    Mark,
    Note,
    Rule,
    Sketch,
    around,
    dollar_words,
    from_zero,
    spaced,
    text_width,
)

_MILLION = 1e6
_MOST_INPUTS = 8
_RIGHT_EDGE = 0.96
"""Share of the width at which the axes of what matters most end."""
_RIGHT_END = 0.7
"""Share of the axis from which on words stand left of their point."""


def break_even(summary: Mapping[str, Any]) -> Sketch | None:
    """Return dollars a month of self-hosting and of the API against the requests of a month.

    Self-hosting is drawn for the fleet of the answer: beyond what it holds another replica is needed.

    Args:
        summary: Of `simserve cost`.

    Returns:
        None where one of the two sides is unknown.
    """
    own, api, even = summary["self_host"], summary["api"], summary["break_even"]["requests_per_month"]
    asked = (summary.get("day") or summary.get("terms") or {}).get("requests_per_month")
    if own["usd_per_month"] is None or api["usd_per_request"] is None or not any((asked, even)):
        return None
    return against_requests(
        str(api["name"]),
        api["usd_per_request"],
        ("self-hosting, this fleet", own["usd_per_month"]),
        even=even,
        asked=("this traffic", asked) if asked else None,
        most=1.2 * max(value for value in (asked, even) if value),
    )


def against_requests(
    api: str,
    usd_per_request: float,
    own: tuple[str, float],
    *,
    even: float | None,
    asked: tuple[str, float] | None,
    most: float,
    label: str = "million requests a month",
) -> Sketch:
    """Return what a month costs at an API and on a fleet, over the requests of the month.

    Args:
        api: Its name.
        usd_per_request: At the API.
        own: Name and dollars a month of the fleet.
        even: Requests a month at which both cost the same; not drawn beyond ``most``.
        asked: Name and number of the requests in question.
        most: Requests at the end of the axis.
        label: Of the requests.
    """
    end = most / _MILLION
    marks: list[Mark] = [
        Curve(x=np.array([0.0, end]), y=np.array([0.0, most * usd_per_request]), color=VERMILION, label=api),
        Curve(x=np.array([0.0, end]), y=np.full(2, own[1]), color=BLUE, dashes=DASHED, label=own[0]),
    ]
    if even is not None and even <= most:
        marks.append(Dots(x=[even / _MILLION], y=[own[1]], color=INK))
        marks.append(_beside(f"break-even {number(even / _MILLION)} M", even / _MILLION, own[1], end))
    if asked is not None:
        at = asked[1] / _MILLION
        marks.append(Rule(x=at, color=GREY, dashes=DOTTED))
        marks.append(Note(text=asked[0], x=at, y=None, right=-3, up=3, is_left_of=True))
    return Sketch(
        left=0.2,
        x=Axis(label=label, high=end),
        y=from_zero("dollars a month", [own[1], most * usd_per_request], dollar_words),
        marks=marks,
    )


def _beside(text: str, x: float, y: float, end: float) -> Note:
    is_left_of = x > _RIGHT_END * end
    return Note(text=text, x=x, y=y, right=-6 if is_left_of else 6, up=5 if is_left_of else -12, is_left_of=is_left_of)


def tornado(summary: Mapping[str, Any]) -> Sketch | None:
    """Return by how much each input moves the saving of self-hosting; None where there is none.

    Args:
        summary: Of `simserve cost`.
    """
    rows: Sequence[Mapping[str, Any]] = summary["sensitivity"][:_MOST_INPUTS]
    if not rows:
        return None
    marks: list[Mark] = []
    ends = [0.0]
    for place, row in enumerate(rows):
        low, high = row["saving_usd_per_month_low"], row["saving_usd_per_month_high"]
        ends += [low, high]
        color = SKY if row["changes_the_answer"] else GREY
        marks.append(Box(left=low, right=high, y=place, thickness=0.6, color=color))
    marks.append(Rule(x=0.0, color=INK, dashes=SOLID))
    saving = summary["saving_usd_per_month"]
    if saving is not None:
        marks.append(Rule(x=saving, color=VERMILION, dashes=DASHED))
        marks.append(Note(text="as it is", x=saving, y=None, right=3, up=3))
    height = 1.1 + 0.32 * len(rows)
    width = WIDTH_INCHES * POINTS_AN_INCH
    left = (18.0 + 1.12 * max(text_width(row["parameter"], TEXT_POINTS) for row in rows)) / width
    saved = around("dollars a month saved by self-hosting", ends, dollar_words)
    return Sketch(
        height=height,
        left=left,
        right=_RIGHT_EDGE,
        bottom=0.55 / height,
        top=1 - 0.25 / height,
        x=spaced(saved, (_RIGHT_EDGE - left) * width),
        y=Axis(low=len(rows) - 0.5, high=-0.5, ticks=[(place, row["parameter"]) for place, row in enumerate(rows)]),
        marks=marks,
    )
