"""Recorded conversations: rows of a trace as turns, what their prompts share, and when they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.sim.simulate import replay
from simserve.validation import validate
from simserve.workload.generate import generate
from simserve.workload.prefixes import Beginnings, PrefixSegments
from simserve.workload.recorded import session_prefixes
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec
from simserve.workload.traces.formats import read_trace
from tests.builders import constant_step_times, make_config

ROWS = """arrival_time,prompt_tokens,output_tokens,session
0,10,5,ann
1,20,2,bob
2,8,3,
4,30,5,ann
9,40,2,bob
"""


def path(prefixes: PrefixSegments, index: int) -> list[tuple[int, int]]:
    """Return the segments of a request and where they end."""
    entries = slice(int(prefixes.offsets[index]), int(prefixes.offsets[index + 1]))
    return list(zip(prefixes.segments[entries].tolist(), prefixes.ends[entries].tolist(), strict=True))


def drawn(tmp_path: Path, text: str = ROWS, name: str = "rows.csv", **workload: Any) -> RequestSpecs:
    """Return the requests of a trace."""
    (tmp_path / name).write_text(text)
    return generate(validate(WorkloadSpec, {"trace": {"path": str(tmp_path / name)}, **workload}), seed=1)


def sent(specs: RequestSpecs, seconds: float) -> dict[tuple[int, int], float]:
    """Return when every turn was sent to a replica whose steps take so long."""
    records = replay(
        make_config(max_num_seqs=8, num_blocks=4000, max_num_batched_tokens=200), constant_step_times(seconds), specs
    ).records
    assert records.session is not None
    assert records.turn is not None
    keys = zip(records.session.tolist(), records.turn.tolist(), strict=True)
    return dict(zip(keys, records.arrival_time.tolist(), strict=True))


def test_without_sessions_rows_keep_their_times(tmp_path: Path) -> None:
    """Conversations are told apart for the router, and nobody waits for an answer."""
    specs = drawn(tmp_path)
    assert specs.session is not None

    assert specs.turn is None
    assert specs.session.tolist() == [0, 1, -3, 0, 1]
    assert specs.arrival_time.tolist() == [0, 1, 2, 4, 9]


def test_rows_become_turns(tmp_path: Path) -> None:
    """By conversation, in order of their first row; who is of none stands alone."""
    specs = drawn(tmp_path, sessions={"think_time": "3 s"})
    assert specs.session is not None
    assert specs.turn is not None

    assert specs.session.tolist() == [0, 0, 1, 1, -3]
    assert specs.turn.tolist() == [1, 2, 1, 2, 1]
    assert specs.prompt_tokens.tolist() == [10, 30, 20, 40, 8]
    assert specs.arrival_time.tolist() == pytest.approx([0, np.nan, 1, np.nan, 2], nan_ok=True)
    assert specs.think_time.tolist() == [0, 3, 0, 3, 0]


def test_a_turn_is_sent_at_its_recorded_time_or_with_the_answer(tmp_path: Path) -> None:
    """Steps of 2 s answer ann's first turn at 10 s, later than its next turn was recorded; bob's comes at its time."""
    specs = drawn(tmp_path, sessions={})

    assert sent(specs, 0.1) == {(0, 1): 0.0, (0, 2): 4.0, (1, 1): 1.0, (1, 2): 9.0, (-3, 1): 2.0}
    late = sent(specs, 2.0)
    assert late[0, 2] == pytest.approx(10.0)
    assert late[1, 2] == 9.0


def test_with_a_time_to_think_recorded_times_do_not_matter(tmp_path: Path) -> None:
    """Ann's answer of five steps of 0.1 s is read for 3 s, whenever her next turn was recorded."""
    assert sent(drawn(tmp_path, sessions={"think_time": "3 s"}), 0.1)[0, 2] == pytest.approx(3.5)


def test_clients_hold_recorded_conversations(tmp_path: Path) -> None:
    """One client in a closed loop: the second conversation begins when the first is over."""
    specs = drawn(tmp_path, sessions={}, arrivals={"process": "closed_loop", "concurrency": 1})
    times = sent(specs, 1.0)

    # Answers take 5, 5, 2 and 2 steps.
    assert [times[key] for key in ((0, 1), (0, 2), (1, 1), (1, 2), (-3, 1))] == [0.0, 5.0, 10.0, 12.0, 14.0]


def test_a_prompt_begins_with_the_turns_that_it_is_long_enough_for() -> None:
    """15, then 35 tokens; the third prompt, of 20, has room for the first turn alone, the fourth for both."""
    session = np.zeros(4, dtype=np.int64)
    prefixes = session_prefixes(session, np.array([10, 30, 20, 50]), np.array([5, 5, 5, 5]), 1.0, None)

    assert path(prefixes, 1) == [(0, 15), (1, 35)]
    assert path(prefixes, 2) == [(0, 15), (2, 25)]
    assert path(prefixes, 3) == [(0, 15), (2, 25), (3, 55)]


def test_answers_that_are_not_kept_whole_come_back_as_text() -> None:
    """The next prompt shares the first prompt alone."""
    session = np.array([0, 0, -1], dtype=np.int64)
    system = Beginnings(group=np.array([0, 0, -1]), tokens=np.array([4, 4, 0]), num_groups=1)
    prefixes = session_prefixes(session, np.array([10, 30, 9]), np.array([5, 5, 5]), 0.5, system)

    assert path(prefixes, 0) == [(0, 4), (1, 10), (4, 15)]
    assert path(prefixes, 1) == [(0, 4), (1, 10), (2, 30), (5, 35)]
    assert path(prefixes, 2) == [(3, 9), (6, 14)]


def test_recorded_prompts_hold_the_system_prompt_already(tmp_path: Path) -> None:
    """Their lengths stay; of 12 tokens a prompt of 10 holds 10."""
    for sessions in (None, {}):
        block = {} if sessions is None else {"sessions": sessions}
        specs = drawn(tmp_path, shared_prefix={"num_groups": 1, "tokens": 12}, **block)
        assert specs.prefixes is not None
        longest = int(np.argmax(specs.prompt_tokens))

        assert sorted(specs.prompt_tokens.tolist()) == [8, 10, 20, 30, 40]
        assert path(specs.prefixes, longest)[0] == (0, 12)
        assert {end for index in range(5) for number, end in path(specs.prefixes, index)[:1] if number == 0} <= {
            8,
            10,
            12,
        }


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"sessions": {"turns": {"distribution": "fixed", "value": 3}}}, "the trace says which requests"),
        ({"sessions": {"tool_share": 0.5, "tool_time": "1 s"}}, "tool_share without think_time"),
    ],
)
def test_what_a_trace_says_itself_is_refused(tmp_path: Path, workload: dict[str, Any], words: str) -> None:
    """One line."""
    with pytest.raises(InputError, match=words):
        drawn(tmp_path, **workload)


def test_what_a_trace_does_not_say_is_refused(tmp_path: Path) -> None:
    """No conversations, or blocks that say it all."""
    plain = "arrival_time,prompt_tokens,output_tokens\n0,10,5\n"
    blocks = '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1], "session_id": "a"}\n'

    with pytest.raises(InputError, match="tells no conversations apart"):
        drawn(tmp_path, plain, sessions={})
    with pytest.raises(InputError, match="system prompts included"):
        drawn(tmp_path, blocks, "rows.jsonl", shared_prefix={"num_groups": 1, "tokens": 5})
    with pytest.raises(InputError, match="context_growth"):
        drawn(tmp_path, blocks, "rows.jsonl", sessions={"context_growth": 0.5})


def test_the_formats_say_which_rows_are_a_conversation(tmp_path: Path) -> None:
    """Mooncake's with AIPerf's field, newer BurstGPT, and spans of OpenTelemetry; a row may be of none."""
    mooncake = "\n".join(
        f'{{"timestamp": {row}, "input_length": 600, "output_length": 5{extra}}}'
        for row, extra in enumerate((', "session_id": "a"', "", ', "session_id": "b"', ', "session_id": "a"'))
    )
    burst = "Timestamp,Session ID,Model,Request tokens,Response tokens\n0,7,x,5,5\n1,8,x,5,0\n2,7,x,5,5\n3,9,x,5,5\n"
    spans = "\n".join(
        f'{{"start_time": {row}, "attributes": {{"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 5, '
        f'"gen_ai.conversation.id": "{name}"}}}}'
        for row, name in enumerate("aba")
    )
    found = []
    for name, text in (("m.jsonl", mooncake), ("b.csv", burst), ("o.jsonl", spans)):
        (tmp_path / name).write_text(text)
        session = read_trace(tmp_path / name).session
        assert session is not None
        found.append(session.tolist())

    assert found == [[0, -2, 1, 0], [0, 0, 1], [0, 1, 0]]
