"""The twin beside the page: what was looked at last, what does not answer, and when the next look comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("starlette", reason="the page needs simserve[explore]")
pytest.importorskip("httpx2", reason="starlette's test client needs it")

from starlette.testclient import TestClient

from simserve.errors import InputError
from simserve.explore.app import create_app
from simserve.explore.twin import TwinFeed
from simserve.planner.twin.answer import Twin

HOST = "http://localhost"


def answers(*numbers: float) -> list[Twin]:
    """Return twins that differ in one figure."""
    return [Twin({"observed": {"rate": number}}, has_drifted=False) for number in numbers]


def test_a_page_without_a_deployment_says_so() -> None:
    """No source, no summary."""
    with TestClient(create_app(), base_url=HOST) as client:
        assert client.get("/api/twin").json() == {"source": None}


def test_saved_metrics_are_looked_at_once() -> None:
    """The page gets the answer, and that no other will come."""
    feed = TwinFeed(lambda _tell: iter(answers(1.5)), source="a.prom", scenario="chat", every=None)
    with TestClient(create_app(feed=feed), base_url=HOST) as client:
        before = client.get("/api/twin").json()
        feed.look()
        after = client.get("/api/twin").json()

    assert before == {
        "source": "a.prom", "scenario": "chat", "every_s": None, "summary": None, "error": None, "count": 0,
        "due_s": None,
    }  # fmt: skip
    assert after["summary"] == {"observed": {"rate": 1.5}}
    assert after["count"] == 1


def test_a_source_that_stops_answering_leaves_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason beside it; the feed looks again after its time."""
    slept: list[float] = []

    def looks(tell: Callable[[str], None]) -> Iterator[Twin]:
        yield answers(1.0)[0]
        tell("has not ended its answer")
        if not slept:
            raise InputError("does not answer", file="http://x/metrics")
        yield answers(2.0)[0]
        raise KeyboardInterrupt

    monkeypatch.setattr("simserve.explore.twin.time.sleep", slept.append)
    feed = TwinFeed(looks, source="http://x", scenario="chat", every=300.0)
    states = []
    monkeypatch.setattr(feed, "_keep", lambda *found: (TwinFeed._keep(feed, *found), states.append(feed.state()))[0])
    with pytest.raises(KeyboardInterrupt):
        feed.look()

    assert slept == [300.0]
    assert [state["error"] for state in states[1:3]] == [
        "has not ended its answer",
        "http://x/metrics: does not answer",
    ]
    assert states[1]["summary"] == states[2]["summary"] == {"observed": {"rate": 1.0}}
    assert states[-1]["error"] is None
    assert states[-1]["summary"] == {"observed": {"rate": 2.0}}
    assert states[-1]["due_s"] is not None
