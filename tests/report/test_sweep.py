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
