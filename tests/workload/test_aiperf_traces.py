"""AIPerf's written-out prompts: rows with messages, and conversations that branch."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.scenario.verify import verify
from simserve.workload.traces import aiperf, texts
from simserve.workload.traces.formats import detect, read_trace
from simserve.workload.traces.trace import Trace

LONG = "x" * 640
"""Ten blocks of sixteen tokens, four characters each."""


def user(text: str) -> dict[str, Any]:
    """Return a message."""
    return {"role": "user", "content": text}


def turn(text: str, answer: int = 8, **fields: Any) -> dict[str, Any]:
    """Return a turn of a conversation."""
    return {"messages": [user(text)], "max_tokens": answer, **fields}


def written(folder: Path, *rows: Any) -> Path:
    """Return a file of JSON lines."""
    path = folder / "trace.jsonl"
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in rows), encoding="utf-8")
    return path


def parents(trace: Trace) -> list[list[int]]:
    """Return what each call waits for."""
    assert trace.tasks is not None
    edges, found = trace.tasks.dependencies.offsets.tolist(), trace.tasks.dependencies.parents.tolist()
    return [found[start:end] for start, end in itertools.pairwise(edges)]


def shared(trace: Trace, one: int, other: int) -> int:
    """Return the blocks that two prompts begin with in common."""
    assert trace.prefix_blocks is not None
    edges = np.concatenate([[0], np.cumsum(trace.prefix_blocks.counts)])
    first, second = (trace.prefix_blocks.ids[edges[each] : edges[each + 1]].tolist() for each in (one, other))
    same = [left == right for left, right in zip(first, second, strict=False)]
    return same.index(False) if False in same else len(same)


def test_forks_go_on_from_the_context_of_their_turn(tmp_path: Path) -> None:
    """Both prompts hold the root's 160 tokens and its answer of 32, in twelve blocks, and wait for it."""
    path = written(
        tmp_path,
        {"session_id": "root", "turns": [turn(LONG, 32, forks=["a", "b"])]},
        {"session_id": "a", "turns": [turn("y" * 40), turn("w" * 40)]},
        {"session_id": "b", "turns": [turn("z" * 80)]},
    )

    trace = read_trace(path)

    assert detect(path) == "aiperf-conversations"
    assert trace.prompt_tokens.tolist() == [160, 202, 220, 212]
    assert trace.output_tokens.tolist() == [32, 8, 8, 8]
    assert parents(trace) == [[], [0], [1], [0]]
    assert (shared(trace, 0, 1), shared(trace, 1, 3), shared(trace, 1, 2)) == (10, 12, 12)
    assert trace.tasks is not None
    assert trace.tasks.agent.tolist() == [0, 1, 1, 2]
    assert not trace.has_arrival_times
    assert "estimated" in str(trace.remark)


def test_spawned_conversations_begin_anew_and_are_joined_where_it_says(tmp_path: Path) -> None:
    """One by the next turn, one by the last; a fork in the background by nobody; what comes first waits for none."""
    spawns = ["next", {"children": ["late"], "join_at": 2}]
    turns = [turn(LONG, spawns=spawns, forks=[{"child": "side", "background": True}]), turn("b", delay=250), turn("c")]
    path = written(
        tmp_path,
        {"session_id": "root", "turns": turns, "pre_session_spawns": ["early"]},
        *({"session_id": name, "turns": [turn("d" * 64)]} for name in ("next", "late", "side", "early")),
    )

    trace = read_trace(path)

    early, first, side, following, late, second, third = range(7)
    expected = [[], [], [first], [first], [first], [first, following], [late, second]]
    assert parents(trace) == expected
    assert trace.prompt_tokens[[early, following, late]].tolist() == [16] * 3
    assert trace.prompt_tokens[side] == 160 + 8 + 16
    assert trace.tasks is not None
    assert trace.tasks.tool_time[[second, third]].tolist() == [0.25, 0.0]
    assert set(trace.tasks.task.tolist()) == {0}


def test_rounds_wait_for_each_other(tmp_path: Path) -> None:
    """Whoever sends nothing itself starts two, waits for both, pauses and starts one of them again."""
    rounds = [{"spawns": ["a", "b"], "think_time_ms": 1000}, {"spawns": ["a"], "think_time_ms": 3000}]
    conversations = [{"session_id": name, "turns": [turn("d" * 64)]} for name in ("a", "b")]
    path = written(tmp_path, {"session_id": "spine", "orchestrator": True, "rounds": rounds}, *conversations)
    again = {"session_id": "spine", "orchestrator": True, "rounds": 3, "think_time_ms": 500, "spawns": ["a"]}

    trace = read_trace(path)

    assert parents(trace) == [[], [], [0, 1]]
    assert trace.tasks is not None
    assert trace.tasks.offset.tolist() == [1.0, 1.0, 0.0]
    assert trace.tasks.tool_time.tolist() == [0.0, 0.0, 3.0]
    repeated = read_trace(written(tmp_path, again, conversations[0]))
    assert parents(repeated) == [[], [0], [1]]
    assert repeated.prompt_tokens.tolist() == [16] * 3


def test_each_turn_may_be_a_prompt_of_its_own(tmp_path: Path) -> None:
    """With that context mode nothing of the turns before is in a prompt; tools are, in front of all."""
    tools = [{"type": "function", "function": {"name": "look"}}]
    rows = [
        {"session_id": "a", "context_mode": "message_array_with_responses", "turns": [turn(LONG), turn("d" * 64)]},
        {"session_id": "b", "turns": [turn("d" * 64, tools=tools), turn("e" * 64)]},
    ]

    trace = read_trace(written(tmp_path, *rows))

    with_tools = len(json.dumps(tools, sort_keys=True)) / 4
    assert trace.prompt_tokens[:2].tolist() == [160, 16]
    assert trace.prompt_tokens[2:].tolist() == [np.ceil(with_tools) + 16, np.ceil(with_tools) + 16 + 8 + 16]


def test_conversations_of_plain_texts_are_read(tmp_path: Path) -> None:
    """AIPerf's multi_turn: a leading system prompt is of every turn, and no turn."""
    turns = [
        {"role": "system", "text": LONG},
        {"text": "a" * 64, "output_length": 16},
        {"text": "b", "output_length": 4},
    ]

    trace = read_trace(written(tmp_path, {"session_id": "chat", "turns": turns}))

    assert trace.prompt_tokens.tolist() == [176, 193]
    assert trace.output_tokens.tolist() == [16, 4]
    assert parents(trace) == [[], [0]]


@pytest.mark.parametrize("mode", ["history", "delta"])
def test_rows_with_messages_hold_or_carry_on_their_session(tmp_path: Path, mode: str) -> None:
    """As history each row is whole; as delta it holds the answer before too. The pause is as it was recorded."""
    second = (
        [user("b" * 64)] if mode == "delta" else [user(LONG), {"role": "assistant", "content": "c" * 64}, user("d")]
    )
    session = {"session_id": "s", "message_mode": mode}
    path = written(
        tmp_path,
        {**session, "messages": [user(LONG)], "output_length": 32, "timestamp": 0},
        {**session, "messages": second, "output_length": 8, "delay": 2000},
    )

    trace = read_trace(path)

    assert detect(path) == "aiperf-messages"
    assert trace.prompt_tokens.tolist() == [160, 160 + (32 + 16 if mode == "delta" else 16 + 1)]
    assert shared(trace, 0, 1) == 10
    assert parents(trace) == [[], [0]]
    assert trace.tasks is not None
    assert trace.tasks.tool_time.tolist() == [0.0, 2.0]


def test_rows_that_belong_to_no_session_arrive_when_they_say(tmp_path: Path) -> None:
    """They are no tasks; images in their messages count, where they are new; a text alone is a message."""
    content = [{"type": "text", "text": "a" * 40}, {"type": "image_url", "image_url": {"url": "x.png"}}]
    path = written(
        tmp_path,
        {"messages": [{"role": "user", "content": content}], "output_length": 5, "timestamp": 4000},
        {"text_input": "b" * 40, "output_length": 6, "timestamp": 1000},
    )

    trace = read_trace(path)

    assert (trace.tasks, trace.session) == (None, None)
    assert trace.arrival_time.tolist() == [0.0, 3.0]
    assert trace.output_tokens.tolist() == [6, 5]
    assert trace.images is not None
    assert trace.images.counts.tolist() == [0, 1]


def test_a_trace_of_conversations_runs_and_its_forks_are_paid_once(tmp_path: Path) -> None:
    """The forks find the root's prompt in the cache; each call is sent when its parents are answered; both agree."""
    path = written(
        tmp_path,
        {"session_id": "root", "turns": [turn(LONG, 32, forks=["a", "b"])]},
        {"session_id": "a", "turns": [turn("y" * 40), turn("w" * 40, delay=500)]},
        {"session_id": "b", "turns": [turn("z" * 80)]},
    )
    scenario = from_mapping(
        {
            "name": "branches",
            "model": "llama-3.1-8b",
            "deployment": {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.20"}},
            "workload": {"trace": {"path": str(path)}, "agents": {}, "arrivals": {"process": "poisson", "rate": 1}},
        }
    )

    result = run(scenario)

    table = result.requests.sort_values("arrival_s").reset_index(drop=True)
    assert verify(scenario, accelerate="off").differing == {}
    assert result.summary["simserve"]["tasks"]["finished"] == 1
    assert table.cached_tokens[0] == 0
    assert (table.cached_tokens[1:] >= 160).all()
    assert (table.arrival_s[1:3] >= table.finish_s[0]).all()


ROOT = {"session_id": "a", "turns": [turn("b")]}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"session_id": "a", "turns": []}], "turns"),
        ([{"session_id": "a", "turns": [{"max_tokens": 4}]}], "messages"),
        ([{"session_id": "a", "turns": [{"messages": [{"content": "no role"}], "max_tokens": 4}]}], "each with a role"),
        ([{"session_id": "a", "turns": [{"messages": [user("b")]}]}], "nothing says how long the answer is"),
        ([{"session_id": "a", "turns": [turn("b", True)]}], "is not a whole number from 1 to 1,000,000"),
        ([{"session_id": "a", "turns": [turn("b", 10**9)]}], "is not a whole number from 1 to 1,000,000"),
        ([{"session_id": "a", "turns": [turn("b", delay=-1)]}], "milliseconds"),
        (
            ['{"session_id": "a", "turns": [{"messages": [{"role": "user"}], "max_tokens": 4, "delay": NaN}]}'],
            "milliseconds",
        ),
        ([ROOT, ROOT], "is that of a conversation above"),
        ([{"session_id": 5, "turns": [turn("b")]}], "session_id"),
        ([{"session_id": "a", "turns": [turn("b", forks=["c"])]}], "starts 'c', which no line has"),
        ([{"session_id": "a", "turns": [turn("b", forks=["a"])]}], "in a circle"),
        (
            [
                ROOT,
                {"session_id": "c", "turns": [turn("b", spawns=["d"])]},
                {"session_id": "d", "turns": [turn("b", spawns=["c"])]},
            ],
            None,
        ),
        ([{"session_id": "a", "turns": [turn("b", spawns=[{"children": ["a"], "join_at": 7}])]}], "join_at"),
        ([{"session_id": "a", "turns": [turn("b", spawns=[{"children": 3}])]}], "is not a list of session_ids"),
        ([{"session_id": "a", "orchestrator": True}], "starts others"),
        (
            [{"session_id": "a", "orchestrator": True, "spawns": ["b"], "rounds": 10**12}, {**ROOT, "session_id": "b"}],
            "rounds",
        ),
        ([{"messages": [], "output_length": 4, "timestamp": 0}], "list of messages"),
        ([{"messages": [user("b")], "timestamp": 0}], "nothing says how long the answer is"),
        (
            [
                {
                    "messages": [user("b")],
                    "output_length": 4,
                    "session_id": "s",
                    "message_mode": "delta",
                    "timestamp": 0,
                },
                {"messages": [user("b")], "output_length": 4, "session_id": "s", "timestamp": 1},
            ],
            "say it in every row of a session, or in none",
        ),
    ],
)
def test_broken_files_are_refused_in_a_line(tmp_path: Path, rows: list[Any], said: str | None) -> None:
    """With the row and what is wrong; conversations that nobody starts but each other are left out with the circle."""
    path = written(tmp_path, *rows)

    if said is None:
        assert len(read_trace(path).prompt_tokens) == 1
        return
    with pytest.raises(TraceError) as caught:
        read_trace(path)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_file_that_grows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty that start the next twice would make a billion calls, many turns the square of their blocks."""
    monkeypatch.setattr(aiperf, "MOST_CALLS", 2_000)
    monkeypatch.setattr(texts, "MOST_BLOCKS", 50_000)
    twice = [{"session_id": f"c{each}", "orchestrator": True, "spawns": [f"c{each + 1}"] * 2} for each in range(30)]
    deep = [{"session_id": f"c{each}", "turns": [turn("a", forks=[f"c{each + 1}"])]} for each in range(300)]

    for rows, said in (
        ([*twice, {"session_id": "c30", "turns": [turn("b")]}], "more than 2,000 calls"),
        ([*deep, {"session_id": "c300", "turns": [turn("b")]}], "lies in more than 200 others"),
        ([{"session_id": "a", "turns": [turn("b" * 40)] * 600}], "cut it"),
        ([{"session_id": "a", "turns": [turn("", tools=[{"n": each % 2}]) for each in range(400)]}], "cut it"),
    ):
        with pytest.raises(TraceError) as caught:
            read_trace(written(tmp_path, *rows))
        assert said in str(caught.value)
