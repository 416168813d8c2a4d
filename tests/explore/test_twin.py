"""The twin beside the page: what was looked at last, what does not answer, and when the next look comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the page needs simserve[explore]")
pytest.importorskip("httpx2", reason="starlette's test client needs it")

from starlette.testclient import TestClient

from simserve.cli.explore import _feed
from simserve.errors import InputError
from simserve.explore.app import create_app
from simserve.explore.pages import ANSWERS, recorded_example, write_pages
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


@pytest.fixture(scope="module")
def recorded() -> TwinFeed:
    """Return the twin of the real server that is recorded, looked at once, calibrated with its first five minutes."""
    metrics, deployed = recorded_example()
    feed = _feed(str(metrics), str(deployed), None, None, None, "5min", shown="recorded")
    feed.look()
    return feed


def test_what_if_another_deployment_had_served_the_traffic(recorded: TwinFeed) -> None:
    """What was seen stays as it is, what is predicted changes, and this server's own factors are kept."""
    with TestClient(create_app(feed=recorded), base_url=HOST) as client:
        as_it_is = client.get("/api/twin").json()["summary"]
        answer = client.post("/api/twin/what-if", json={"hardware": "l40s-48gb", "max_num_seqs": 2})
    other = answer.json()

    assert answer.status_code == 200
    assert other["changes"] == ["deployment.hardware=l40s-48gb", "deployment.engine.max_num_seqs=2"]
    assert other["summary"]["observed"] == as_it_is["observed"]
    assert other["summary"]["calibration"] == as_it_is["calibration"]
    assert other["summary"]["predicted"]["rate"] == as_it_is["predicted"]["rate"]
    assert other["summary"]["predicted"]["tpot_ms"] < as_it_is["predicted"]["tpot_ms"] / 5


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({}, 422, "is the deployment as it is; change one of its settings"),
        ({"hardware": "/etc/passwd"}, 422, "is no hardware of the catalogue"),
        ({"hardware": "../../profile.yaml"}, 422, "is no hardware of the catalogue"),
        ({"replicas": -1}, 422, "replicas"),
        ({"model": "llama-3.1-8b"}, 422, "model"),
        ({"tensor_parallel_size": 2}, 422, "2 needs 2 GPUs"),
    ],
)
def test_what_may_not_be_asked_is_one_line(
    recorded: TwinFeed, asked: dict[str, object], status: int, said: str
) -> None:
    """Names of the catalogue alone, and no path: nobody who sees the page points it at a file."""
    with TestClient(create_app(feed=recorded), base_url=HOST) as client:
        answer = client.post("/api/twin/what-if", json=asked)

    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_nothing_is_asked_where_nothing_is_watched() -> None:
    """Without a deployment, and before the first look."""
    waiting = TwinFeed(lambda _tell: iter(()), source="a", scenario="b", every=None)
    for feed, status, said in (
        (None, 404, "no deployment is being watched"),
        (waiting, 422, "wait for the first look"),
    ):
        with TestClient(create_app(feed=feed), base_url=HOST) as client:
            answer = client.post("/api/twin/what-if", json={"replicas": 2})
        assert answer.status_code == status
        assert said in answer.json()["error"]


def test_a_page_without_python_holds_the_recorded_twin(recorded: TwinFeed, tmp_path: Path) -> None:
    """The whole look, no path of this machine, and the same bytes again."""
    written = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        write_pages(folder, grids={}, twin=recorded.state())
        written.append((folder / ANSWERS).read_text(encoding="utf-8"))
    told = json.loads(written[0].removeprefix("window.SIMSERVE=").removesuffix(";\n"))["twin"]

    assert written[0] == written[1]
    assert str(recorded_example()[0].parent) not in written[0]
    assert told["source"] == "recorded"
    assert told["summary"]["drift"]["rate"]["inside"] is False
