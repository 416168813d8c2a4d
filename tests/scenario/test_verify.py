"""Which requests `verify` compares of a run that is too long for the reference."""

from __future__ import annotations

import numpy as np

import simserve as ss
from simserve.scenario.replication import traffic
from simserve.scenario.verify import MOST_REQUESTS, MOST_TOKENS, affordable, beginning
from tests.builders import make_specs


def test_what_is_affordable_is_bounded_by_requests_and_by_tokens() -> None:
    """Short answers: 500 requests; long ones: as many as generate 50,000 tokens, at least 20."""
    some = [make_specs([float(each) for each in range(600)], 8, tokens) for tokens in (1, 500, 40_000)]

    assert [affordable(specs) for specs in some] == [MOST_REQUESTS, MOST_TOKENS // 500, 20]


def test_the_beginning_holds_whole_conversations() -> None:
    """Every conversation that is there has all its turns, and the first ones are there."""
    drawn = traffic(ss.load("multi-turn"), 0)
    kept = beginning(drawn, 50)
    assert drawn.session is not None
    assert kept.session is not None
    turns = {number: int((drawn.session == number).sum()) for number in np.unique(kept.session).tolist()}

    assert {number: int((kept.session == number).sum()) for number in turns} == turns
    assert 40 <= len(kept) <= 70
    assert kept.session[0] == drawn.session[0]


def test_the_beginning_of_a_mixture_has_a_part_of_each_kind_of_client() -> None:
    """People, agents and documents, in the proportions that were drawn; one after another, not a whole batch."""
    drawn = traffic(ss.load("mixed-traffic"), 0)
    kept = beginning(drawn, 200)
    assert drawn.request_class is not None
    assert kept.request_class is not None
    shares = [np.bincount(specs.request_class, minlength=3) / len(specs) for specs in (drawn, kept)]  # type: ignore[arg-type]

    assert 150 <= len(kept) <= 250
    np.testing.assert_allclose(shares[1], shares[0], atol=0.05)
