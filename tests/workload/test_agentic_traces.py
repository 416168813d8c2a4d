"""Traces of agents' tasks: what each reader takes a call to wait for, and how the calls are replayed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec
from simserve.workload.traces.formats import detect, read_trace
from simserve.workload.traces.statistics import task_statistics
from simserve.workload.traces.tasks import RecordedCall, tasks_by_time
from simserve.workload.traces.trace import Trace


def lines(*rows: dict[str, Any]) -> str:
    """Return JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


AGENTIC_MOONCAKE = lines(
    {"request_id": "a", "timestamp": 1000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
    {"request_id": "b", "wait_for": ["a"], "delay": 100, "tool_wait_ms": 400, "input_length": 1030, "output_length": 6}
    | {"hash_ids": [0, 1, 2]},
    {"request_id": "c", "wait_for": ["a"], "tool_wait_ms": 50, "input_length": 700, "output_length": 7}
    | {"hash_ids": [0, 3]},
    {"request_id": "x", "timestamp": 1200, "input_length": 300, "output_length": 2, "hash_ids": [9]},
    {"request_id": "d", "wait_for": ["b", "c"], "input_length": 1600, "output_length": 8, "hash_ids": [0, 1, 2, 4]},
)
SESSIONS = lines(
    {"session_id": "s", "timestamp": 0, "input_length": 100, "output_length": 5, "wait_for": []},
    {"session_id": "s", "delay": 250, "input_length": 160, "output_length": 6},
    {"session_id": "s", "timestamp": 900, "input_length": 200, "output_length": 6},
)


def dynamo(
    name: str, start: int, seconds: float, agent: str | None, parent: str | None, *hashes: int
) -> dict[str, Any]:
    """Return a record of Dynamo: received at ``start`` ms, with a prompt of 64 tokens a hash."""
    context = {"session_id": agent} | ({} if parent is None else {"parent_session_id": parent})
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": start + round(1000 * seconds),
        **({} if agent is None else {"agent_context": context}),
        "request": {
            "request_id": name,
            "request_received_ms": start,
            "output_tokens": 16,
            "replay": {"trace_block_size": 64, "input_length": 64 * len(hashes), "input_sequence_hashes": list(hashes)},
        },
    }


TOOL = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 3, "tool": {}}
DYNAMO = lines(
    TOOL,
    dynamo("plan", 10_000, 1.0, "main", None, 2**63 + 5, 7),
    dynamo("search", 11_500, 2.0, "sub", "main", 2**63 + 5, 7, 8),
    dynamo("alone", 12_000, 1.0, None, None, 30),
    dynamo("report", 14_000, 0.5, "main", None, 2**63 + 5, 7, 9),
)


def weka(*requests: dict[str, Any], block_size: int = 64) -> dict[str, Any]:
    """Return a task in Weka's format."""
    return {"id": "t", "models": ["m"], "block_size": block_size, "hash_id_scope": "local", "requests": list(requests)}


def call(t: float, seconds: float, *hashes: int, out: int = 5) -> dict[str, Any]:
    """Return a call in Weka's format."""
    return {"t": t, "type": "s", "in": 64 * len(hashes), "out": out, "hash_ids": list(hashes), "api_time": seconds}


SUBAGENT = {"t": 2.0, "type": "subagent", "agent_id": "x", "requests": [call(2.0, 1.0, 8), call(3.5, 1.0, 8, 9)]}
WEKA = lines(
    weka(call(0.0, 1.5, 1, 2), SUBAGENT, call(6.0, 1.0, 1, 2, 3), call(8.0, 1.0, 4, out=0)),
    weka(call(0.5, 1.0, 1), call(0.75, 2.0, 1, 2), call(4.0, 1.0, 1, 2, 3)),
)


def span(name: str, parent: str | None, start: float, end: float, *, operation: str, tokens: int = 0) -> dict[str, Any]:
    """Return a span of OpenTelemetry, with token usage where there is some."""
    usage = {"gen_ai.usage.input_tokens": tokens, "gen_ai.usage.output_tokens": 4} if tokens else {}
    return {
        "name": name,
        "traceId": "t1",
        "spanId": name,
        **({} if parent is None else {"parentSpanId": parent}),
        "startTimeUnixNano": round((1e9 + start) * 1e9),
        "endTimeUnixNano": round((1e9 + end) * 1e9),
        "attributes": {"gen_ai.operation.name": operation, **usage},
    }


OTEL = lines(
    span("root", None, 0.0, 9.0, operation="invoke_agent", tokens=999),
    span("plan", "root", 0.0, 1.0, operation="chat", tokens=100),
    span("tool", "root", 1.0, 6.0, operation="execute_tool"),
    span("sub", "tool", 1.5, 6.0, operation="invoke_agent"),
    span("read", "sub", 2.0, 3.0, operation="chat", tokens=50),
    span("write", "sub", 4.0, 5.5, operation="chat", tokens=90),
    span("answer", "root", 6.5, 8.0, operation="chat", tokens=150),
)
TEXTS = {"agentic-mooncake": AGENTIC_MOONCAKE, "dynamo": DYNAMO, "weka": WEKA, "otel": OTEL}


def read(folder: Path, text: str) -> Trace:
    """Return the trace that a text is."""
    path = folder / "trace.jsonl"
    path.write_text(text, encoding="utf-8")
    return read_trace(path)


def parents(trace: Trace) -> list[list[int]]:
    """Return the rows that each call waits for."""
    assert trace.tasks is not None
    graph = trace.tasks.dependencies
    return [graph.parents[first:last].tolist() for first, last in zip(graph.offsets, graph.offsets[1:], strict=False)]


def replayed(folder: Path, text: str, **workload: Any) -> RequestSpecs:
    """Return the requests of a replay as tasks."""
    path = folder / "trace.jsonl"
    path.write_text(text, encoding="utf-8")
    return generate(WorkloadSpec.model_validate({"trace": {"path": str(path)}, "agents": {}, **workload}), seed=1)


@pytest.mark.parametrize("name", TEXTS)
def test_a_format_is_told_by_its_first_row(tmp_path: Path, name: str) -> None:
    """Without being named."""
    path = tmp_path / "trace.jsonl"
    path.write_text(TEXTS[name], encoding="utf-8")

    assert detect(path) == name


@pytest.mark.parametrize("field", ["delay", "delay_ms"])
def test_sessions_of_aiperf_are_told_by_the_delay_of_a_later_row(tmp_path: Path, field: str) -> None:
    """Their first row is one of Mooncake's; the next ones have no time of their own."""
    first = {"session_id": "s", "timestamp": 0, "input_length": 100, "output_length": 5}
    path = tmp_path / "trace.jsonl"
    path.write_text(lines(first, {"session_id": "s", field: 250, "input_length": 160, "output_length": 6}))

    assert detect(path) == "agentic-mooncake"


def test_a_weka_task_without_a_scope_of_its_hashes_is_told(tmp_path: Path) -> None:
    """The reader needs the block size alone."""
    task = weka(call(0.0, 1.5, 1, 2))
    del task["hash_id_scope"]
    path = tmp_path / "trace.jsonl"
    path.write_text(lines(task))

    assert detect(path) == "weka"


def test_agentic_mooncake_waits_for_what_it_names(tmp_path: Path) -> None:
    """Pauses are delay and tool_wait_ms together; rows that hang together are a task."""
    trace = read(tmp_path, AGENTIC_MOONCAKE)

    assert trace.prompt_tokens.tolist() == [1000, 700, 300, 1030, 1600]
    assert parents(trace) == [[], [0], [], [0], [1, 3]]
    assert trace.tasks is not None
    assert trace.tasks.tool_time.tolist() == [0.0, 0.05, 0.0, 0.5, 0.0]
    assert trace.tasks.task.tolist() == [0, 0, 1, 0, 0]


def test_sessions_of_aiperf_wait_for_their_turn_before(tmp_path: Path) -> None:
    """After the delay, else as much later as timestamps are apart."""
    trace = read(tmp_path, SESSIONS)

    assert parents(trace) == [[], [0], [1]]
    assert trace.tasks is not None
    assert trace.tasks.tool_time.tolist() == [0.0, 0.25, 0.65]


def test_dynamo_tells_agents_apart_and_who_started_them(tmp_path: Path) -> None:
    """The sub-agent waits for the plan, the report for it; a request without a context stands alone."""
    trace = read(tmp_path, DYNAMO)

    assert parents(trace) == [[], [0], [], [0, 1]]
    assert trace.tasks is not None
    assert trace.tasks.tool_time.tolist() == pytest.approx([0.0, 0.5, 0.0, 0.5])
    assert trace.tasks.task.tolist() == [0, 0, -3, 0]
    assert trace.arrival_time.tolist() == [0.0, 1.5, 2.0, 4.0]
    assert trace.prefix_blocks is not None
    assert trace.prefix_blocks.ids.tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 4]


def test_weka_starts_sub_agents_and_runs_calls_that_overlap_side_by_side(tmp_path: Path) -> None:
    """The block ids of two tasks are not the same; nothing says when tasks begin; nothing was served: left out."""
    trace = read(tmp_path, WEKA)

    assert trace.num_unserved == 1
    assert not trace.has_arrival_times
    # The second task's last two calls share a context that its first, which they overlap, has not.
    assert [set(own) for own in parents(trace)] == [set(), {0}, {1}, {0, 2}, set(), set(), {5}]
    assert trace.tasks is not None
    assert trace.tasks.agent.tolist()[4:] == [2, 3, 3]
    assert trace.tasks.tool_time.tolist() == [0.0, 0.5, 0.5, 1.5, 0.0, 0.0, 1.25]
    assert trace.tasks.offset.tolist()[4:6] == [0.0, 0.25]
    assert trace.prefix_blocks is not None
    assert trace.prefix_blocks.ids.tolist()[:2] == [0, 1]
    assert trace.prefix_blocks.ids.tolist()[-3:] != [0, 1, 2]


def test_times_of_wekas_sub_agents_are_the_tasks_or_their_own(tmp_path: Path) -> None:
    """One call before its entry says for all of them that they are counted from the entry on."""
    own = {**SUBAGENT, "requests": [call(0.0, 1.0, 8), call(1.5, 1.0, 8, 9)]}
    later = {**SUBAGENT, "t": 0.5, "requests": [call(0.75, 1.0, 8)]}
    both = [weka(call(0.0, 1.5, 1, 2), own, call(6.0, 1.0, 1, 2, 3)), weka(call(0.0, 0.25, 1), later)]

    trace, absolute = read(tmp_path, lines(*both)), read(tmp_path, lines(both[1]))

    assert trace.tasks is not None
    assert absolute.tasks is not None
    assert trace.tasks.offset.tolist() == [0.0, 2.0, 3.5, 6.0, 0.0, 1.25]
    assert trace.tasks.tool_time.tolist()[:4] == [0.0, 0.5, 0.5, 1.5]
    assert absolute.tasks.offset.tolist() == [0.0, 0.75]


def test_spans_with_parents_are_agents_and_their_calls(tmp_path: Path) -> None:
    """The span of an agent is no call, though it sums up its tokens; the answer waits for the sub-agent's last call."""
    trace = read(tmp_path, OTEL)

    assert trace.prompt_tokens.tolist() == [100, 50, 90, 150]
    assert [set(own) for own in parents(trace)] == [set(), {0}, {1}, {0, 2}]
    assert trace.tasks is not None
    assert trace.tasks.tool_time.tolist() == pytest.approx([0.0, 1.0, 1.0, 1.0])


def test_what_is_under_way_is_not_waited_for() -> None:
    """Two calls overlap; the third waits for both, the fourth, sent while it runs, for whom was answered last."""
    times = [(0.0, 2.0), (1.0, 3.0), (3.5, 6.0), (4.0, 5.0)]
    calls = [
        RecordedCall(task=1, agent="", started_by=None, start=start, end=end, prompt_tokens=1, output_tokens=1)
        for start, end in times
    ]

    found = tasks_by_time(calls)

    assert found.dependencies.parents.tolist() == [0, 1, 1]
    assert found.dependencies.num_parents.tolist() == [0, 0, 2, 1]
    assert found.tool_time.tolist() == [0.0, 0.0, 0.5, 1.0]


def test_a_replay_sends_what_was_waited_for_first(tmp_path: Path) -> None:
    """Rows stand by task, those that wait for none first; only these have a time."""
    specs = replayed(tmp_path, AGENTIC_MOONCAKE)

    assert specs.prompt_tokens.tolist() == [1000, 700, 1030, 1600, 300]
    assert specs.dependencies is not None
    assert specs.dependencies.parents.tolist() == [0, 0, 1, 2]
    np.testing.assert_allclose(specs.arrival_time, [0.0, np.nan, np.nan, np.nan, 0.2])
    assert specs.turn is not None
    assert specs.turn.tolist() == [1, 2, 2, 3, 1]


def test_tasks_without_times_take_arrivals(tmp_path: Path) -> None:
    """Each begins when its first row would arrive; what overlapped in it still does."""
    specs = replayed(tmp_path, WEKA, arrivals={"process": "constant", "rate": 1.0})

    begins = specs.arrival_time[~np.isnan(specs.arrival_time)]
    assert begins.tolist() == [1.0, 5.0, 5.25]
    with pytest.raises(TraceError, match="holds no arrival times"):
        replayed(tmp_path, WEKA)


def test_without_agents_calls_come_at_their_recorded_times(tmp_path: Path) -> None:
    """Nothing waits for answers that the scenario does not ask to wait."""
    path = tmp_path / "trace.jsonl"
    path.write_text(DYNAMO, encoding="utf-8")

    specs = generate(WorkloadSpec.model_validate({"trace": {"path": str(path)}}), seed=1)

    assert specs.dependencies is None
    assert specs.arrival_time.tolist() == [0.0, 1.5, 2.0, 4.0]


def test_statistics_say_what_the_generator_asks(tmp_path: Path) -> None:
    """Calls, sub-agents, forks, tools, new text."""
    found = task_statistics(read(tmp_path, DYNAMO))
    sessions = task_statistics(read(tmp_path, SESSIONS))

    assert found is not None
    assert found.num_tasks == 2
    assert found.calls.tolist() == [2, 1]
    assert (found.subagent_calls.tolist(), found.fan_out.tolist()) == ([1], [1])
    assert (found.subagent_share, found.fork_share) == (1.0, 1.0)
    assert found.tool_time.tolist() == []
    assert found.new_tokens.tolist() == []
    assert sessions is not None
    assert sessions.new_tokens.tolist() == [55, 34]
    assert sessions.tool_time.tolist() == [0.25, 0.65]


@pytest.mark.parametrize(
    ("text", "workload", "message"),
    [
        (AGENTIC_MOONCAKE.replace('["b", "c"]', '["b", "q"]'), {}, "names 'q', which no row above has"),
        (AGENTIC_MOONCAKE.replace('"timestamp": 1200, ', ""), {}, "row 4, timestamp: is missing"),
        (AGENTIC_MOONCAKE.replace('"delay": 100', '"delay": -1'), {}, "row 2, delay: -1 is not a number of milli"),
        (DYNAMO.replace('"request_received_ms": 12000, ', ""), {}, "row 4, request.request_received_ms: is missing"),
        (DYNAMO.replace('"trace_block_size": 64', '"trace_block_size": 32', 1), {}, "requests of several sizes"),
        (DYNAMO.replace("[30]", '"x"'), {}, "row 4, request.replay.input_sequence_hashes: 'x' is not a list of whole"),
        (
            DYNAMO.replace('{"session_id": "sub", "parent_session_id": "main"}', "7"),
            {},
            "row 3, agent_context: 7 is not a mapping",
        ),
        (WEKA.replace('"t": 3.5', '"t": NaN'), {}, "t: nan is not a number of seconds"),
        (WEKA.replace('"t": 3.5, ', ""), {}, r"row 1, requests\[1\], requests\[1\], t: is missing"),
        (WEKA.replace('"in": 64', '"in": "64"'), {}, "in: '64' is not a number"),
        (WEKA.replace('"block_size": 64', '"block_size": 32', 1), {}, "must be one whole number >= 1 in all tasks"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 5}\n', {}, "does not say which call waited for which"),
    ],
)
def test_a_broken_trace_is_named(tmp_path: Path, text: str, workload: dict[str, Any], message: str) -> None:
    """With its row and field."""
    with pytest.raises(TraceError, match=message):
        replayed(tmp_path, text, **workload)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (AGENTIC_MOONCAKE.replace('"timestamp": 1000', f'"timestamp": {10**400}', 1), "timestamp"),
        (WEKA.replace('"t": 0.0', f'"t": {10**400}', 1), "is not a number of seconds"),
        (lines({"resourceSpans": [7, {"scopeSpans": ["x", {"spans": [3]}]}]}), "holds no span"),
    ],
)
def test_what_no_tool_writes_is_a_line(tmp_path: Path, text: str, says: str) -> None:
    """Never a traceback."""
    with pytest.raises(TraceError, match=says) as refused:
        read(tmp_path, text)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("attributes", ["7", "[[1]]", "[7]", '[{"key": "gen_ai.usage.input_tokens", "value": 5}]'])
def test_spans_whose_attributes_are_none_are_no_calls(tmp_path: Path, attributes: str) -> None:
    """The others are read."""
    whole = read(tmp_path, OTEL)
    broken = OTEL.splitlines()
    broken[1] = broken[1].replace('"attributes": {', f'"attributes": {attributes}, "other": {{', 1)

    trace = read(tmp_path, "\n".join(broken) + "\n")

    assert len(trace.prompt_tokens) == len(whole.prompt_tokens) - 1


@pytest.mark.parametrize("time", [10**25, -1, float("inf"), "10000-01-01T00:00:00"])
def test_spans_of_no_time_are_named(tmp_path: Path, time: object) -> None:
    """Times that no clock shows."""
    row = json.loads(OTEL.splitlines()[1])
    key = next(each for each in row if "start" in each.lower())

    with pytest.raises(TraceError, match="is not a time"):
        read(tmp_path, lines(row | {key: time}))


def test_block_ids_of_sixty_four_bits_are_names(tmp_path: Path) -> None:
    """Dynamo's hashes have no sign; more bits are refused."""
    rows = [json.loads(line) for line in AGENTIC_MOONCAKE.splitlines()]
    high = [row | {"hash_ids": [each + 2**64 - 100 for each in row["hash_ids"]]} for row in rows]

    plain, moved = read(tmp_path, lines(*rows)).prefix_blocks, read(tmp_path, lines(*high)).prefix_blocks

    assert plain is not None
    assert moved is not None
    assert [list(np.unique(each.ids, return_inverse=True)[1]) for each in (plain,)] == [
        list(np.unique(each.ids, return_inverse=True)[1]) for each in (moved,)
    ]
    with pytest.raises(TraceError, match="more than 64 bits"):
        read(tmp_path, lines(*(row | {"hash_ids": [2**64]} for row in rows)))


def test_a_deep_chain_of_spans_is_walked_once(tmp_path: Path) -> None:
    """Twenty thousand agents within each other, with a call in each thousandth."""
    rows = []
    for number in range(20_000):
        parent = f"s{number - 1}" if number else None
        rows.append(span(f"s{number}", parent, number, 1e5, operation="invoke_agent"))
        if not number % 1000:
            rows.append(span(f"c{number}", f"s{number}", number + 0.1, number + 0.5, operation="chat", tokens=9))

    trace = read(tmp_path, lines(*rows))

    assert len(trace.prompt_tokens) == 20


def test_a_trace_says_what_its_tasks_are_like() -> None:
    """The block beside it is empty; without a trace it says how many calls there are."""
    for block, message in (({"calls": 3}, "write agents: {}"), ({"tool_time": "1 s"}, "agents.tool_time")):
        with pytest.raises(ValueError, match=message):
            WorkloadSpec.model_validate({"trace": {"path": "a"}, "agents": block})
    with pytest.raises(ValueError, match="agents without calls"):
        WorkloadSpec.model_validate(
            {"arrivals": {"process": "poisson", "rate": 1}, "prompt_tokens": 1, "output_tokens": 1, "agents": {}}
        )


def _dynamo(number: int, session: str, time: int, *, wrapped: bool) -> str:
    record = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": time + 900,
        "agent_context": {"session_id": session},
        "request": {
            "request_id": f"r{number}",
            "output_tokens": 20,
            "request_received_ms": time,
            "total_time_ms": 900.5,
            "replay": {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": [2**64 - 1, number]},
        },
    }
    return json.dumps({"timestamp": time, "event": record} if wrapped else record)


def test_dynamos_shards_are_one_trace(tmp_path: Path) -> None:
    """A folder of them, compressed and within what its sink puts around them, is the trace that one file is."""
    shards = tmp_path / "shards"
    shards.mkdir()
    rows = [(number, f"s{number % 2}", 1_790_000_000_000 + 4_000 * number) for number in range(6)]
    (tmp_path / "whole.jsonl").write_text("\n".join(_dynamo(*row, wrapped=False) for row in rows), encoding="utf-8")
    for shard in range(2):
        with gzip.open(shards / f"dynamo-request-trace.{shard:06}.jsonl.gz", "wt") as file:
            file.write("\n".join(_dynamo(*row, wrapped=True) for row in rows[3 * shard : 3 * shard + 3]))
    (shards / "notes.txt").write_text("not of the trace", encoding="utf-8")
    apart, whole = read_trace(shards), read_trace(tmp_path / "whole.jsonl")
    assert apart.tasks is not None
    assert whole.tasks is not None

    assert apart.arrival_time.tolist() == whole.arrival_time.tolist() == [0, 4, 8, 12, 16, 20]
    assert apart.tasks.task.tolist() == whole.tasks.task.tolist()
    assert apart.prefix_blocks is not None
    assert apart.prefix_blocks.num_distinct == 7


def test_a_folder_of_wekas_tasks_is_read_by_name(tmp_path: Path) -> None:
    """One file a task, pretty-printed; a broken one is named with its row."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for number, tokens in enumerate((300, 200)):
        task = {"block_size": 64, "requests": [{"t": 0.0, "type": "s", "in": tokens, "out": 5, "hash_ids": [1]}]}
        (folder / f"trace_{number:04}.json").write_text(json.dumps(task, indent=1), encoding="utf-8")

    assert read_trace(folder).prompt_tokens.tolist() == [300, 200]
    (folder / "trace_0002.json").write_text('{"block_size": 64, "requests": [{"t": 0, "in": -1, "out": 2}]}')
    with pytest.raises(TraceError, match=r"row 1 of trace_0002.json, requests\[0\], in: -1 must be >= 1"):
        read_trace(folder)


def test_a_folder_without_traces_is_one_line(tmp_path: Path) -> None:
    """With what its files should end in."""
    with pytest.raises(TraceError, match=r"is a folder without files that end in \.json, \.jsonl, \.ndjson, \.gz"):
        read_trace(tmp_path)


def test_aiperfs_sessions_for_a_closed_loop_have_no_times(tmp_path: Path) -> None:
    """Their turns wait for each other and pause; when they begin is the scenario's, which has to say it."""
    path = tmp_path / "sessions.jsonl"
    rows = [
        {"session_id": name, "input_length": 500 + 200 * turn, "output_length": 50, **({"delay": 1000} if turn else {})}
        for name in ("a", "b")
        for turn in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    trace = read_trace(path)
    assert trace.tasks is not None
    block = {"trace": {"path": str(path)}, "agents": {}}

    assert not trace.has_arrival_times
    assert trace.tasks.task.tolist() == [0, 0, 0, 1, 1, 1]
    assert trace.tasks.tool_time.tolist() == [0, 1, 1, 0, 1, 1]
    with pytest.raises(TraceError, match="holds no arrival times"):
        generate(WorkloadSpec.model_validate(block), seed=1)
    specs = generate(
        WorkloadSpec.model_validate({**block, "arrivals": {"process": "closed_loop", "concurrency": 1}}), seed=1
    )
    assert specs.turn is not None
    assert specs.turn.tolist() == [1, 2, 3, 1, 2, 3]
    path.write_text("\n".join(map(json.dumps, [*rows, {**rows[0], "session_id": "c", "timestamp": 5}])))
    with pytest.raises(TraceError, match="timestamp: is missing, and the row waits for no other"):
        read_trace(path)
