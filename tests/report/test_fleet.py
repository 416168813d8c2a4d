"""What stands in front of the replicas, in lines: only what is there, each with its numbers."""

from __future__ import annotations

import pytest

from simserve.report.facts import traffic
from simserve.report.fleet import front_lines, user_lines
from simserve.report.pages import RunResult
from simserve.scenario.load import load
from simserve.scenario.run import run

_FEW = "workload.num_requests=300"


def result(name: str, *overrides: str) -> RunResult:
    """Return a small run of a bundled scenario."""
    return run(load(name, [*overrides, _FEW]))


def test_a_plain_run_says_nothing_of_a_front() -> None:
    """No line, and figures that are null."""
    plain = result("chatbot")

    assert front_lines(plain) == user_lines(plain) == []
    assert set(plain.summary["simserve"]["response_cache"].values()) == {None}
    assert set(plain.summary["simserve"]["users"].values()) == {None}


def test_a_cache_an_api_and_second_answers_each_have_a_line() -> None:
    """With counts and shares, and by class for the cache."""
    lines = front_lines(result("halve-the-api-bill"))

    assert lines[0].startswith("response cache: ")
    assert "summaries 0%" in lines[0]
    assert lines[1].startswith("gpt-4o answered ")
    assert "an hour, p95 TTFT at the client " in lines[1]
    assert "asked again of a second pool" in lines[2]


def test_what_had_expired_is_told() -> None:
    """A cache that fills and forgets says how often a model was asked all the same."""
    lines = front_lines(result("response-cache", "deployment.response_cache.expiry=5 s"))

    assert "came for the first time" in lines[1]
    assert "had expired" in lines[1]


def test_a_rate_limit_is_told() -> None:
    """How many calls met it."""
    lines = front_lines(
        result("data-residency", "deployment.overflow.requests_per_minute=5", "deployment.overflow.always=[public]")
    )

    assert "met its rate limit (429)" in lines[0]


def test_users_are_told_as_what_they_come_to() -> None:
    """Clients, rate, how many wait; and what each of them does."""
    lines = user_lines(result("chatbot", "workload.arrivals={process: users, users: 100, active_share: 0.2}"))

    assert lines[0].startswith("100 users: 20 clients in a closed loop, ")
    assert "20 of them (20%) wait for an answer at any moment" in lines[0]
    assert lines[1].startswith("each asks ")


@pytest.mark.parametrize(
    ("name", "words"),
    [("fair-tenants", "arrivals by class"), ("chatbot", "poisson (rate"), ("ten-thousand-users", "users 10000")],
)
def test_traffic_is_named_for_what_it_is(name: str, words: str) -> None:
    """Arrivals of classes are no trace."""
    few = ["workload.duration=null", _FEW] if name == "fair-tenants" else [_FEW]

    assert words in traffic(run(load(name, few)))
