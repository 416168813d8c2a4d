"""Reasoning in figures: the first visible token, the share that is hidden, and an objective on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.metrics.features import REASONING_KEYS, reasoning_figures
from simserve.metrics.latency import SLO, attainment, request_latencies
from simserve.metrics.result import request_columns
from simserve.metrics.summary import summarize
from tests.metrics.builders import make_facts, make_records, make_simulation

PLAIN = make_records([0.0, 1.0, 2.0, 3.0])
THINKING = replace(PLAIN, thinking_tokens=np.array([2, 4, 0, 5]), answer_time=np.array([2.0, 4.0, 3.0, np.nan]))
"""Four requests of 5 tokens each; the last one thinks until its tokens are used up."""
ALL = np.ones(4, dtype=bool)


def test_figures_count_what_is_hidden() -> None:
    """11 of 20 tokens are thinking; times are over the three requests that answer."""
    figures = reasoning_figures(THINKING, THINKING.thinking_tokens, request_latencies(THINKING), ALL, 9.0)

    assert list(figures) == list(REASONING_KEYS)
    assert figures["ttfvt_ms"]["mean"] == pytest.approx(2000.0)
    assert figures["ttfvt_ms"]["p50"] == pytest.approx(2000.0)
    assert (figures["thinking_tokens"], figures["visible_tokens"]) == (11, 9)
    assert figures["thinking_share"] == pytest.approx(0.55)
    assert figures["num_without_answer"] == 1
    assert figures["usd_per_million_visible_tokens"] == pytest.approx(20.0)


def test_without_thinking_nothing_is_said() -> None:
    """Every key is there, and null; no column is added to the requests."""
    figures = summarize(make_simulation(PLAIN), make_facts())["simserve"]["reasoning"]

    assert figures == dict.fromkeys(REASONING_KEYS)
    assert not {"thinking_tokens", "answer_s", "ttfvt_ms"} & {each.name for each in request_columns(PLAIN, None)}


def test_requests_have_the_time_of_their_answer() -> None:
    """The table of requests says what each thought, and when its answer began."""
    columns = {each.name: each.cells for each in request_columns(THINKING, None)}

    assert columns["thinking_tokens"] is not None
    assert columns["thinking_tokens"].tolist() == [2, 4, 0, 5]
    np.testing.assert_allclose(columns["ttfvt_ms"], [2000.0, 3000.0, 1000.0, np.nan])


def test_an_objective_on_the_answer_is_missed_without_one() -> None:
    """Of four requests two answer within 2.5 s; one is late, one never answers."""
    bound = SLO(ttft=None, tpot=None, e2e=None, attainment=0.9, ttfvt=2.5)

    shares = attainment(request_latencies(THINKING), bound, ALL)

    assert shares.all_terms == 0.5
    assert shares.by_metric["ttfvt"] == 0.5


def test_where_nothing_is_hidden_the_first_token_is_visible() -> None:
    """Beside thinking requests of another run, the bound falls on TTFT."""
    bound = SLO(ttft=None, tpot=None, e2e=None, attainment=0.9, ttfvt=1.0)

    assert attainment(request_latencies(PLAIN), bound, ALL).all_terms == 1.0
