"""What a sweep says of its keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from simserve.report import sweep

ROUTING, REPLICAS = "deployment.routing", "deployment.replicas"


def idle(*times: tuple[str, int, float]) -> list[str]:
    """Return the line on keys that change nothing, of points with a routing, replicas and a figure."""
    rows = [
        {"status": "ok", "values": {ROUTING: routing, REPLICAS: replicas}, sweep._FIGURES[0]: figure}
        for routing, replicas, figure in times
    ]
    answer: Any = SimpleNamespace(keys=(ROUTING, REPLICAS), rows=rows)
    return sweep._idle_lines(answer)


def test_a_key_is_idle_only_if_it_changes_nothing_at_any_point() -> None:
    """Routing means nothing to one replica, and something to two."""
    alone = [("round_robin", 1, 5.0), ("prefix", 1, 5.0)]

    assert idle(*alone, ("round_robin", 2, 4.0), ("prefix", 2, 4.0)) == ["No figure depends on routing here."]
    assert idle(*alone, ("round_robin", 2, 4.0), ("prefix", 2, 3.0)) == []


def test_the_cheapest_point_that_holds_opens_a_long_table() -> None:
    """It was named above the table, and left out of it: dearer points at which a few more requests met the SLO."""
    dearer = [(1.0, 5.0 + place) for place in range(30)]
    rows = [
        {
            "status": "ok",
            "values": {REPLICAS: place},
            "slo_attainment": attained,
            "stability": "stable",
            "usd_per_million_output_tokens": price,
        }
        for place, (attained, price) in enumerate([*dearer, (0.96, 2.0), (0.9, 1.0)])
    ]
    answer: Any = SimpleNamespace(keys=(REPLICAS,), rows=rows, asked=(0.95,) * len(rows))

    shown = [row[0] for row in sweep._shown_rows(answer)]

    assert shown == ["30", *map(str, range(19))]
    assert "31 of 32 points; the cheapest of those is replicas 30" in sweep._found_lines(answer)[0]
