"""Classes of several kinds in one workload: what each of them draws, and how their rows stand together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.validation import validate
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec


def fixed(tokens: int) -> dict[str, Any]:
    """Return a length that is always the same."""
    return {"distribution": "fixed", "value": tokens}


CHAT = {"name": "chat", "share": 1.0}
BATCH = {"name": "batch", "arrivals": {"process": "poisson", "rate": 4.0}}
AGENTS = {
    "name": "agents",
    "arrivals": {"process": "closed_loop", "concurrency": 3, "think_time": "2 s"},
    "sessions": {"turns": fixed(4)},
}
TASKS = {
    "name": "tasks",
    "arrivals": {"process": "poisson", "rate": 6.0},
    "agents": {"calls": fixed(4), "tool_time": "1 s", "subagent_share": 0.5, "subagent_calls": fixed(2)},
}
TALKS = {"turns": fixed(3), "think_time": "1 s"}


def drawn(*classes: dict[str, Any], seed: int = 1, **changes: Any) -> RequestSpecs:
    """Return the requests of classes, some of which share six conversations a second of three turns."""
    workload: dict[str, Any] = {
        "arrivals": {"process": "poisson", "rate": 18.0},
        "sessions": TALKS,
        "prompt_tokens": fixed(10),
        "output_tokens": fixed(5),
        "duration": "300 s",
        "classes": list(classes),
    }
    workload |= changes
    return generate(validate(WorkloadSpec, {key: value for key, value in workload.items() if value}), seed=seed)


def test_conversations_and_single_requests_each_come_at_their_rate() -> None:
    """18 requests a second in conversations, 4 alone, within four standard errors; only the former have later turns."""
    specs = drawn(CHAT, BATCH)
    assert specs.request_class is not None
    assert specs.turn is not None
    assert specs.session is not None
    is_chat = specs.request_class == 0

    assert np.count_nonzero(is_chat & (specs.turn == 1)) == pytest.approx(6 * 300, abs=4 * np.sqrt(6 * 300))
    assert np.count_nonzero(~is_chat) == pytest.approx(4 * 300, abs=4 * np.sqrt(4 * 300))
    assert set(specs.turn[~is_chat].tolist()) == {1}
    assert set(np.bincount(specs.session[is_chat]).tolist()) == {3}
    assert (specs.session[~is_chat] < 0).all()
    assert len(np.unique(specs.session[~is_chat])) == np.count_nonzero(~is_chat)
    assert specs.is_stationary
    assert specs.offered_rate == 22.0


def test_rows_stand_by_beginning_and_conversations_together() -> None:
    """Whatever class they are of; turns follow each other."""
    specs = drawn(CHAT, BATCH)
    assert specs.turn is not None
    assert specs.session is not None
    begins = specs.arrival_time[specs.turn == 1]

    assert (np.diff(begins) >= 0).all()
    assert np.count_nonzero(np.diff(specs.session)) == len(np.unique(specs.session)) - 1


def test_a_number_of_requests_takes_those_that_begin_first() -> None:
    """Six conversations and four single requests begin a second: 1,100 requests begin in about 50 s."""
    specs, more = (drawn(CHAT, BATCH, duration=None, num_requests=count) for count in (1100, 1500))

    assert len(specs) == 1100
    assert specs.arrival_time.tolist() == pytest.approx(more.arrival_time[:1100].tolist(), nan_ok=True)
    assert np.nanmax(specs.arrival_time) == pytest.approx(50.0, rel=0.15)


def test_a_class_beside_conversations_moves_none_of_their_draws() -> None:
    """What chat sends is the same without the batch."""
    mixed = drawn(CHAT, BATCH)
    alone = drawn(CHAT)
    assert mixed.request_class is not None
    is_chat = mixed.request_class == 0

    for name in ("arrival_time", "prompt_tokens", "output_tokens", "think_time"):
        np.testing.assert_array_equal(getattr(mixed, name)[is_chat], getattr(alone, name))


def test_every_closed_loop_has_clients_of_its_own() -> None:
    """Agents hold conversations of four turns; the clients of benches send single requests; neither has a time."""
    benches = {"name": "benches", "arrivals": {"process": "closed_loop", "concurrency": 5, "ramp_up": "10 s"}}
    specs = drawn(AGENTS, BATCH, benches, arrivals=None, sessions=None)
    assert specs.loop is not None
    assert specs.turn is not None
    assert specs.request_class is not None

    assert [loop.concurrency for loop in specs.client_loops] == [3, 5]
    assert [loop.ramp_up for loop in specs.client_loops] == [None, 10.0]
    assert specs.concurrency == 8
    assert specs.closes_at == 300.0
    assert np.isnan(specs.arrival_time[specs.loop >= 0]).all()
    assert [set(specs.request_class[specs.loop == loop].tolist()) for loop in (-1, 0, 1)] == [{1}, {0}, {2}]
    assert [int(specs.turn[specs.loop == loop].max()) for loop in (-1, 0, 1)] == [1, 4, 1]
    assert specs.has_open_arrivals
    assert np.isnan(specs.offered_rate)


def test_clients_of_a_class_think_by_its_own_stream() -> None:
    """Two classes that are alike but for their names think for other times."""
    arrivals = {"process": "closed_loop", "concurrency": 4, "think_time": "5 s", "think_time_cv": 1.0}
    specs = drawn(CHAT, *({"name": name, "arrivals": arrivals} for name in ("readers", "writers")))
    assert specs.request_class is not None

    readers, writers = (specs.think_time[specs.request_class == number] for number in (1, 2))
    assert len(np.intersect1d(readers, writers)) == 0


def test_a_batch_is_there_at_once() -> None:
    """Beside what comes at a rate, and counted as it says."""
    batch = {"name": "batch", "arrivals": {"process": "all_at_once"}, "num_requests": 40}
    for sessions in (TALKS, None):
        specs = drawn(CHAT, batch, sessions=sessions)
        assert specs.request_class is not None

        assert np.count_nonzero(specs.request_class == 1) == 40
        assert not specs.arrival_time[specs.request_class == 1].any()
        assert not specs.is_stationary


def test_classes_begin_with_texts_of_their_own() -> None:
    """Chat with the workload's system prompt, documents with one of ten, code with the system prompt again."""
    documents = {**BATCH, "name": "documents", "shared_prefix": {"num_groups": 10, "tokens": 700}}
    code = {**BATCH, "name": "code"}
    system = {"num_groups": 1, "tokens": 100}
    for sessions in (TALKS, None):
        specs = drawn(CHAT, documents, code, sessions=sessions, shared_prefix=system)
        prefixes = specs.prefixes
        assert prefixes is not None
        assert specs.request_class is not None
        assert specs.turn is None or specs.turn[0] == 1
        is_first = np.ones(len(specs), dtype=bool) if specs.turn is None else specs.turn == 1
        first, end = prefixes.segments[prefixes.offsets[:-1]], prefixes.ends[prefixes.offsets[:-1]]
        own = [is_first & (specs.request_class == number) for number in range(3)]

        assert [len(np.unique(first[rows])) for rows in own] == [1, 10, 1]
        assert set(first[own[0]]) == set(first[own[2]])
        assert not set(first[own[0]]) & set(first[own[1]])
        assert [set(end[rows].tolist()) for rows in own] == [{100}, {700}, {100}]
        assert [set(specs.prompt_tokens[rows].tolist()) for rows in own] == [{110}, {710}, {110}]
        # What follows on it is each request's own.
        assert len(np.unique(prefixes.segments[prefixes.offsets[1:] - 1])) == len(specs)


def test_some_classes_may_share_nothing() -> None:
    """A request that begins like no other has one segment, from its first token to its last."""
    documents = {**BATCH, "name": "documents", "shared_prefix": {"num_groups": 10**9, "tokens": 700}}
    specs = drawn({**BATCH, "name": "plain"}, documents, arrivals=None, sessions=None)
    prefixes = specs.prefixes
    assert prefixes is not None
    assert specs.request_class is not None

    assert np.diff(prefixes.offsets).tolist() == (1 + specs.request_class).tolist()


def test_tasks_stand_beside_single_requests() -> None:
    """A call has the parents that it has alone, single requests none; streams of the others do not move."""
    alone, specs = drawn(TASKS, arrivals=None, sessions=None), drawn(BATCH, TASKS, arrivals=None, sessions=None)
    assert specs.request_class is not None
    assert specs.dependencies is not None
    assert alone.dependencies is not None
    assert specs.task is not None
    is_call = specs.request_class == 1

    assert specs.dependencies.num_parents[~is_call].max() == 0
    assert specs.dependencies.num_parents[is_call].tolist() == alone.dependencies.num_parents.tolist()
    owner = np.repeat(np.arange(len(specs)), specs.dependencies.num_parents)
    assert (specs.task[owner] == specs.task[specs.dependencies.parents]).all()
    assert (specs.task[~is_call] < 0).all()
    assert specs.prompt_tokens[is_call].tolist() == alone.prompt_tokens.tolist()
    assert np.count_nonzero(is_call) == pytest.approx(6 * 300, rel=0.2)


@pytest.mark.parametrize(
    ("classes", "changes", "words"),
    [
        ([CHAT, AGENTS], {"duration": None, "num_requests": 50}, "give duration"),
        ([AGENTS, BATCH], {"sessions": None}, "no class has a share of"),
        ([CHAT, TASKS], {}, "agents and also sessions"),
        ([{**TASKS, "output_tokens": 0}], {"arrivals": None, "sessions": None}, "calls without an answer"),
        ([{**TASKS, "arrivals": None, "share": 1.0}], {"sessions": None}, "give it arrivals of its own"),
        ([{**TASKS, "agents": {"tool_time": "1 s"}}], {"arrivals": None, "sessions": None}, "agents without calls"),
        ([{**BATCH, "shared_prefix": {"num_groups": 1}}], {"arrivals": None}, "tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(classes: list[dict[str, Any]], changes: dict[str, Any], words: str) -> None:
    """One line says what is wrong."""
    with pytest.raises(InputError, match=words):
        drawn(*classes, **changes)


def test_single_requests_of_several_classes_are_conversations_of_their_own() -> None:
    """None has the number of another, whatever class it is of: turns of one number would be sent together."""
    specs = drawn(CHAT, BATCH, {**BATCH, "name": "nightly"}, TASKS, sessions=None)
    assert specs.session is not None
    single = specs.session[specs.session < 0]

    assert len(single) > 1000
    assert len(np.unique(single)) == len(single)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_time_of_tasks_is_limited_beside_others(is_first: bool) -> None:
    """Wherever their class stands: 30 s for each of their calls, no limit for single requests."""
    limited = {**TASKS, "agents": {**TASKS["agents"], "max_execution_time": "30 s"}}
    classes = [limited, BATCH] if is_first else [BATCH, limited]

    specs = drawn(*classes, arrivals=None, sessions=None)

    assert specs.request_class is not None
    assert specs.time_limit is not None
    is_task = specs.request_class == (0 if is_first else 1)
    assert set(specs.time_limit[is_task]) == {30.0}
    assert set(specs.time_limit[~is_task]) == {np.inf}
