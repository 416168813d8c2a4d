"""Conversations and shared beginnings: contexts worked out by hand, and what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.validation import validate
from simserve.workload.arrival_spec import RampArrivals
from simserve.workload.conversations import Shape, contexts, slowed
from simserve.workload.generate import generate
from simserve.workload.prefixes import Beginnings, PrefixSegments
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec

POISSON = {"process": "poisson", "rate": 10.0}


def fixed(tokens: int) -> dict[str, Any]:
    """Return a length that is always the same."""
    return {"distribution": "fixed", "value": tokens}


def drawn(seed: int = 1, **changes: Any) -> RequestSpecs:
    """Return the requests of a workload of short turns."""
    workload = {
        "arrivals": POISSON,
        "prompt_tokens": fixed(10),
        "output_tokens": fixed(5),
        "num_requests": 600,
        "sessions": {"turns": fixed(3), "think_time": "4 s"},
    }
    workload.update(changes)
    return generate(validate(WorkloadSpec, {key: value for key, value in workload.items() if value}), seed=seed)


def path(prefixes: PrefixSegments, index: int) -> list[tuple[int, int]]:
    """Return the segments of a request and where they end."""
    entries = slice(int(prefixes.offsets[index]), int(prefixes.offsets[index + 1]))
    return list(zip(prefixes.segments[entries].tolist(), prefixes.ends[entries].tolist(), strict=True))


def one_system(tokens: int) -> Beginnings:
    """Return that one conversation begins with a system prompt of so many tokens."""
    return Beginnings(group=np.array([0]), tokens=np.array([tokens]), num_groups=1)


def columns(rows: list[tuple[int, int, int]]) -> Shape:
    """Return the shape of conversations given by rows of conversation, turn, call."""
    session, turn, call = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Shape(session=session, turn=turn, call=call)


def test_a_turn_holds_all_that_was_said_before() -> None:
    """Prompts 10, then 10 + 5 + 20, then 35 + 6 + 30; the next conversation starts anew."""
    shape = columns([(0, 1, 0), (0, 2, 0), (0, 3, 0), (1, 1, 0)])
    prompts, prefixes = contexts(shape, np.array([10, 20, 30, 8]), np.array([5, 6, 7, 9]), 1.0, None)

    assert prompts.tolist() == [10, 35, 71, 8]
    assert path(prefixes, 2) == [(0, 15), (1, 41), (2, 78)]
    assert path(prefixes, 3) == [(3, 17)]


def test_an_answer_kept_in_part_is_new_text() -> None:
    """Of 6 answer tokens 3 stay: the second prompt is 10 + 3 + 20, and shares the 10 alone."""
    shape = columns([(0, 1, 0), (0, 2, 0)])
    prompts, prefixes = contexts(shape, np.array([10, 20]), np.array([6, 6]), 0.5, None)

    assert prompts.tolist() == [10, 33]
    assert path(prefixes, 0) == [(0, 10), (2, 16)]
    assert path(prefixes, 1) == [(0, 10), (1, 33), (3, 39)]


def test_parallel_calls_share_the_context_and_come_back_as_text() -> None:
    """Two calls of 10 and 4 new tokens on a system prompt of 100: the next turn holds 100 + 10 + both answers."""
    shape = columns([(0, 1, 0), (0, 1, 1), (0, 2, 0)])
    prompts, prefixes = contexts(shape, np.array([10, 4, 20]), np.array([5, 7, 9]), 1.0, one_system(100))

    assert prompts.tolist() == [110, 104, 142]
    assert path(prefixes, 0) == [(0, 100), (1, 115)]
    assert path(prefixes, 1) == [(0, 100), (2, 111)]
    assert path(prefixes, 2) == [(0, 100), (1, 115), (3, 151)]


def test_arrivals_start_conversations_at_the_rate_of_their_requests() -> None:
    """10 requests/s in conversations of three: 3.3 begin a second, within four standard errors, by the same draws."""
    specs = drawn()
    starts = specs.arrival_time[specs.turn == 1]

    assert len(specs) == 600
    assert len(starts) == 200
    assert np.isnan(specs.arrival_time[specs.turn > 1]).all()
    assert len(starts) / starts[-1] == pytest.approx(10 / 3, rel=4 / 200**0.5)
    assert starts == pytest.approx(3 * drawn(sessions=None, num_requests=200).arrival_time, rel=1e-12)
    assert specs.offered_rate == 10.0


def test_the_last_conversation_is_cut_at_the_number_of_requests() -> None:
    """Seven requests are two conversations of three turns and the first turn of a third."""
    specs = drawn(num_requests=7)

    assert specs.session.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert specs.turn.tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_a_duration_ends_the_beginnings_alone() -> None:
    """Every conversation that began has all its turns."""
    specs = drawn(num_requests=None, duration="60 s")

    assert (np.bincount(specs.session) == 3).all()
    assert specs.arrival_time[specs.turn == 1].max() <= 60.0


def test_think_times_have_their_mean_and_spread() -> None:
    """Constant without a cv; with cv 1 exponential: mean and standard deviation of 4 s within four standard errors."""
    constant = drawn()
    spread = drawn(num_requests=9000, sessions={"turns": fixed(3), "think_time": "4 s", "think_time_cv": 1.0})
    times = spread.think_time[spread.turn > 1]

    assert set(constant.think_time[constant.turn > 1]) == {4.0}
    assert set(constant.think_time[constant.turn == 1]) == {0.0}
    assert times.mean() == pytest.approx(4.0, abs=4 * 4.0 / len(times) ** 0.5)
    assert times.std() == pytest.approx(4.0, rel=0.1)


def test_tools_answer_after_their_own_time() -> None:
    """A quarter of the turns wait 1 s for a tool, within four standard errors, the others 4 s for a person."""
    sessions = {"turns": fixed(5), "think_time": "4 s", "tool_share": 0.25, "tool_time": "1 s"}
    specs = drawn(num_requests=5000, sessions=sessions)
    times = specs.think_time[specs.turn > 1]

    assert set(times) == {1.0, 4.0}
    assert np.mean(times == 1.0) == pytest.approx(0.25, abs=4 * (0.1875 / len(times)) ** 0.5)


def test_requests_of_a_turn_are_drawn() -> None:
    """Two calls a turn: the calls of a turn share its context, and the turns are as many as without."""
    specs = drawn(sessions={"turns": fixed(3), "parallel_calls": fixed(2)})

    assert specs.session.tolist()[:6] == [0] * 6
    assert specs.turn.tolist()[:6] == [1, 1, 2, 2, 3, 3]
    assert specs.prompt_tokens.tolist()[:4] == [10, 10, 30, 30]


def test_a_cut_answer_is_what_the_next_turn_holds() -> None:
    """max_tokens 2 of answers of 5: the second prompt is 10 + 2 + 10."""
    specs = drawn(max_tokens=2)

    assert specs.prompt_tokens.tolist()[:2] == [10, 22]


def test_system_prompts_come_on_top() -> None:
    """Every prompt is 100 tokens longer, and all four groups are drawn about as often."""
    specs = drawn(sessions=None, num_requests=4000, shared_prefix={"num_groups": 4, "tokens": 100})

    assert set(specs.prompt_tokens) == {110}
    groups = [path(specs.prefixes, index)[0] for index in range(len(specs))]
    counts = np.bincount([group for group, _ in groups])
    assert counts.tolist() == pytest.approx([1000] * 4, abs=4 * (4000 * 3 / 16) ** 0.5)
    assert {end for _, end in groups} == {100}


def test_a_conversation_keeps_its_system_prompt() -> None:
    """It is drawn once a conversation."""
    specs = drawn(num_requests=30, shared_prefix={"num_groups": 3, "tokens": 100})

    for session in range(10):
        rows = np.flatnonzero(specs.session == session)
        assert len({path(specs.prefixes, int(row))[0] for row in rows}) == 1


def test_sessions_move_no_other_draws() -> None:
    """New text and answers are those of the same requests without conversations."""
    lengths = {"distribution": "geometric", "mean": 20}
    alone = drawn(sessions=None, output_tokens=lengths)
    together = drawn(output_tokens=lengths)

    assert together.output_tokens.tolist() == alone.output_tokens.tolist()


def test_a_conversation_has_one_class() -> None:
    """Shares are of conversations; each has the lengths and the priority of its class in every turn."""
    classes = [
        {"name": "chat", "share": 0.75, "priority": 0},
        {"name": "agent", "share": 0.25, "priority": 2, "prompt_tokens": fixed(100)},
    ]
    specs = drawn(num_requests=6000, classes=classes)
    per_session = specs.request_class[specs.turn == 1]

    assert (specs.request_class == per_session[specs.session]).all()
    assert np.mean(per_session) == pytest.approx(0.25, abs=4 * (0.1875 / 2000) ** 0.5)
    assert set(specs.prompt_tokens[(specs.turn == 2) & (specs.request_class == 1)]) == {205}
    assert set(specs.prompt_tokens[(specs.turn == 2) & (specs.request_class == 0)]) == {25}
    assert specs.priority.tolist() == (2 * specs.request_class).tolist()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sessions": {"turns": fixed(3), "tool_time": "1 s"}}, "tool_share"),
        ({"sessions": {"turns": fixed(3), "think_time_cv": 1.0}}, "think_time"),
        ({"sessions": {"turns": fixed(3), "think_time": "1 s", "think_time_cv": 0.01}}, "at least 0.05"),
        ({"sessions": {"turns": "three"}}, "mapping"),
        ({"classes": [{"name": "own", "arrivals": POISSON}]}, "no class has a share of them"),
        ({"trace": {"path": "t.csv"}, "arrivals": None, "prompt_tokens": None, "output_tokens": None}, "sessions"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], words: str) -> None:
    """One line says which key and why."""
    with pytest.raises(InputError, match=words):
        drawn(**changes)


def test_a_ramp_of_conversations_begins_and_ends_at_a_share_of_its_rates() -> None:
    """Two requests each: conversations begin half as often, from the start of the ramp on."""
    ramp = slowed(RampArrivals(start_rate=4.0, rate=10.0, ramp_duration="60 s"), 2.0)

    assert isinstance(ramp, RampArrivals)
    assert (ramp.start_rate, ramp.rate, ramp.ramp_duration) == (2.0, 5.0, 60.0)
