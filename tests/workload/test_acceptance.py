"""Acceptance: its forms, how many tokens a step brings, and how many steps an answer takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import rng
from simserve.workload.acceptance import (
    EXACT_TOKENS,
    conditional_acceptance,
    decaying_acceptance,
    draw_paces,
    expected_tokens,
    num_decode_steps,
    token_shares,
)

GRID = 16
ANY = st.lists(st.floats(0, 1), min_size=1, max_size=8).map(tuple)


def steps_of(tokens: int, pace: int) -> int:
    """Return the steps that a pace takes for an answer."""
    return -(-GRID * tokens // pace)


def test_shares_of_steps_are_products_of_conditional_probabilities() -> None:
    """0.8, then 0.8 x 0.5; a position that is never reached has no probability of its own."""
    assert conditional_acceptance((0.8, 0.4)) == (0.8, 0.5)
    assert conditional_acceptance((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)


def test_decay_makes_each_draft_worse_than_the_one_before() -> None:
    """0.8, 0.4, 0.2; without decay all are alike."""
    assert decaying_acceptance(0.8, 0.5, 3) == pytest.approx((0.8, 0.4, 0.2))
    assert decaying_acceptance(0.8, 1.0, 3) == (0.8, 0.8, 0.8)


@given(ANY)
def test_the_shares_of_tokens_are_a_distribution(conditional: tuple[float, ...]) -> None:
    """They sum to one, and their mean is what `expected_tokens` says."""
    shares = token_shares(conditional)

    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)
    assert shares @ np.arange(1, len(shares) + 1) == pytest.approx(expected_tokens(conditional))


@pytest.mark.parametrize("tokens", [1, 7, 120, EXACT_TOKENS, EXACT_TOKENS + 1, 3000])
def test_steps_are_distributed_as_drawn_one_by_one(tokens: int) -> None:
    """Mean and spread are those of steps that are drawn until the answer is whole, short and long."""
    conditional = decaying_acceptance(0.75, 0.9, 4)
    generator = rng.stream(3, "test")
    count = 4000
    steps = num_decode_steps(np.full(count, tokens), conditional, generator.random(count))
    lengths = generator.choice(np.arange(1, 6), p=token_shares(conditional), size=(1000, tokens))
    drawn = (np.cumsum(lengths, axis=1) < tokens).sum(axis=1) + 1

    spread = np.sqrt(drawn.var() / 1000 + steps.var() / count)
    assert abs(steps.mean() - drawn.mean()) <= 4 * spread
    assert steps.std() == pytest.approx(drawn.std(), rel=0.1)


@given(ANY, st.lists(st.integers(0, 60), min_size=1, max_size=9), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_paces_are_possible(conditional: tuple[float, ...], tokens: list[int], seed: int) -> None:
    """Between one token a step and all of them; each takes what was drawn, give or take a step on the grid."""
    outputs = np.array(tokens) + 1
    paces = draw_paces(outputs, conditional, rng.stream(seed, "speculation"), GRID)
    drawn = num_decode_steps(outputs - 1, conditional, rng.stream(seed, "speculation").random((len(outputs), 2))[:, 0])

    assert paces.min() >= GRID
    assert paces.max() <= GRID * (len(conditional) + 1)
    for count, pace, steps in zip(tokens, paces.tolist(), drawn.tolist(), strict=True):
        assert abs(steps_of(count, pace) - steps) <= 1 + steps / GRID


def test_paces_keep_the_mean_number_of_steps() -> None:
    """The grid costs nothing on average: 20,000 answers take as many steps as were drawn, to 0.1 %."""
    conditional = decaying_acceptance(0.7, 1.0, 5)
    outputs = np.clip(rng.stream(1, "lengths").lognormal(5, 0.8, 20_000), 1, 2000).astype(np.int64)
    paces = draw_paces(outputs, conditional, rng.stream(1, "speculation"), GRID)
    drawn = num_decode_steps(outputs - 1, conditional, rng.stream(1, "speculation").random((len(outputs), 2))[:, 0])

    assert (-(-GRID * (outputs - 1) // paces)).sum() == pytest.approx(drawn.sum(), rel=1e-3)


def test_certain_and_hopeless_drafts() -> None:
    """Accepted drafts bring k + 1 tokens a step, refused ones a single token."""
    outputs = np.full(100, 301)

    assert set(draw_paces(outputs, (1.0, 1.0), rng.stream(1, "speculation"), GRID)) == {3 * GRID}
    assert set(draw_paces(outputs, (0.0, 0.0), rng.stream(1, "speculation"), GRID)) == {GRID}


def test_later_requests_move_no_earlier_draw() -> None:
    """Every request has a uniform of its own, so the first ten fare alike in a longer run."""
    outputs = np.arange(20, 120)
    few, many = (draw_paces(outputs[:count], (0.7, 0.6), rng.stream(5, "speculation"), GRID) for count in (10, 100))

    assert few.tolist() == many[:10].tolist()


def test_better_drafts_never_cost_a_step() -> None:
    """Under common random numbers a higher acceptance leaves no answer with more steps."""
    tokens, uniforms = np.arange(1, 400), rng.stream(2, "test").random(399)
    worse, better = (num_decode_steps(tokens, decaying_acceptance(rate, 1.0, 4), uniforms) for rate in (0.5, 0.7))

    assert (better <= worse).all()
    assert better.sum() < worse.sum()


def test_long_answers_go_on_where_exact_ones_end() -> None:
    """A token more takes 1 / 2.94 of a step more, though its steps come from the normal limit (renewal theory)."""
    conditional = decaying_acceptance(0.7, 1.0, 5)
    uniforms = (np.arange(20_000) + 0.5) / 20_000
    exact, limit = (
        num_decode_steps(np.full(20_000, EXACT_TOKENS + more), conditional, uniforms).mean() for more in (0, 1)
    )

    assert limit - exact == pytest.approx(1 / expected_tokens(conditional), abs=0.1)
