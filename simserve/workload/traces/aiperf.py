"""AIPerf's texts: rows with `messages` (`mooncake_trace`), and conversations that branch (`dag_jsonl`, `multi_turn`).

Documented in AIPerf's "Trace Replay with Mooncake Traces", "DAG Benchmarks: Branching Conversations" and "Custom
Dataset Guide" (ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md, dag.md and docs/tutorials/custom-dataset.md).
Texts have no token counts: tokens are estimated from characters, without those of a chat template, and every answer has
its maximum length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.workload.dependencies import dependencies_of
from simserve.workload.traces.media import RecordedMedia
from simserve.workload.traces.mooncake import SESSION_FIELD, WAIT_FIELD, trace_of_rows
from simserve.workload.traces.records import Records, read_records
from simserve.workload.traces.table import LATEST, is_number
from simserve.workload.traces.tasks import RecordedTasks
from simserve.workload.traces.texts import BLOCK_TOKENS, REMARK, Context, Contexts, History, TooLongError, blocks_of
from simserve.workload.traces.trace import Trace

TEXT_FIELDS = ("messages", "text_input", "text")
MOST_CALLS = 1_000_000  # Most calls of a file of conversations; a conversation may be started repeatedly.
MOST_NESTED = 200  # Most levels of conversations that start others.
MOST_ANSWER_TOKENS = 1_000_000  # Most tokens of an answer: more than any model's context.
_ISOLATED = "message_array_with_responses"
_MILLISECOND = 1e-3


def read_aiperf_messages(path: Path) -> Trace:
    """Return rows with prompts as text, and ``timestamp``, ``delay`` and ``session_id`` as in AIPerf's traces.

    A row contains the whole conversation so far. In a session whose rows say ``message_mode: delta`` it contains only
    what is new; the prompt then also includes what came before, with the answers.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    records = read_records(path)
    contexts, sessions = Contexts(), _Sessions()
    rows: list[dict[str, Any]] = []
    prompts: list[tuple[Context, Context | None]] = []
    for index, row in enumerate(records.rows):
        answer = _answer_tokens(row, lambda rule, name, index=index: records.error(index, name, rule))
        try:
            prompt, before = sessions.prompt(contexts, records, index, answer)
        except TooLongError:
            raise _too_long(path) from None
        prompts.append((prompt, before))
        lengths = {"input_length": max(prompt.tokens, 1), "output_length": answer, "hash_ids": list(prompt.blocks)}
        rows.append({**row, **lengths})
    filled = Records(path, rows, records.lines)
    trace, order = trace_of_rows(filled, block_tokens=BLOCK_TOKENS)
    if not any(row.get(SESSION_FIELD) is not None or row.get(WAIT_FIELD) for row in rows):
        trace = replace(trace, session=None, tasks=None)
    return _with_media(replace(trace, remark=REMARK), [prompts[row] for row in order])


@dataclass(slots=True)
class _Sessions:
    """The conversations of the rows so far: the last prompt of each, and what its next prompt begins with."""

    last: dict[str, Context] = field(default_factory=dict)
    going_on: dict[str, History] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)

    def prompt(self, contexts: Contexts, records: Records, index: int, answer: int) -> tuple[Context, Context | None]:
        """Return the prompt of a row, and the previous prompt of its session."""
        row = records.rows[index]
        name = next((each for each in TEXT_FIELDS if row.get(each) is not None), "messages")
        where = f"row {records.lines[index]}, {name}"
        messages = _messages(row.get(name), lambda rule: TraceError(rule, file=records.file, key=where))
        session, mode = row.get(SESSION_FIELD), row.get("message_mode") or "history"
        key = str(session)
        if mode not in ("history", "delta"):
            raise records.error(index, "message_mode", 'is neither "history" nor "delta"')
        if session is not None and self.modes.setdefault(key, mode) != mode:
            rule = "is not that of the session's rows before"
            raise records.error(index, "message_mode", rule, "say it in every row of a session, or in none")
        is_delta = mode == "delta" and session is not None
        history = self.going_on.get(key, History.new(contexts)) if is_delta else History.new(contexts)
        history = history.with_tools(row.get("tools")).with_piece(messages)
        before = self.last.get(key) if session is not None else None
        if session is not None:
            self.last[key] = history.context
        if is_delta:
            self.going_on[key] = history.with_piece((index, answer))
        return history.context, before


def _messages(value: object, error: Any) -> list[Mapping[str, object]]:
    """Return the messages of a prompt, which may be a single text."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(each, Mapping) and each.get("role") for each in value)
    ):
        raise error("is neither a text nor a list of messages, each with a role")
    return value


def _answer_tokens(fields: Mapping[str, Any], error: Any) -> int:
    name = next((each for each in ("output_length", "max_tokens") if fields.get(each) is not None), None)
    if name is None:
        raise error("is missing: nothing says how long the answer is", "output_length or max_tokens")
    if type(fields[name]) is not int or not 1 <= fields[name] <= MOST_ANSWER_TOKENS:
        raise error(f"is not a whole number from 1 to {MOST_ANSWER_TOKENS:,}", name)
    return int(fields[name])


def _too_long(path: Path) -> TraceError:
    rule = "has prompts of more than 320 million tokens together"
    return TraceError(rule, file=path, remedy="cut it: every prompt counts the conversation before it")


def _with_media(trace: Trace, prompts: Sequence[tuple[Context, Context | None]]) -> Trace:
    """Return a trace with the images and recordings that are new in each prompt, if there are any."""
    images = _new([(now.images, 0 if before is None else before.images) for now, before in prompts])
    audio = _new([(now.recordings, 0 if before is None else before.recordings) for now, before in prompts])
    return replace(trace, images=images, audio=audio)


def _new(counts: Sequence[tuple[int, int]]) -> RecordedMedia | None:
    found = np.array([now - before if now >= before else now for now, before in counts], dtype=np.int64)
    return RecordedMedia(found) if found.any() else None


# Conversations that branch.


@dataclass(slots=True)
class _Turn:
    messages: list[Mapping[str, object]]
    answer: int
    delay: float
    tools: object
    forks: list[str]
    spawns: list[tuple[list[str], int | None]]


@dataclass(slots=True)
class _Conversation:
    """A line of the file; a conversation that sends nothing itself has ``rounds``: whom each starts, and its pause."""

    line: int | str
    turns: list[_Turn]
    is_isolated: bool
    begins_with: list[str]
    rounds: list[tuple[list[str], float]] = field(default_factory=list)

    def children(self) -> list[str]:
        """Return the conversations that it starts."""
        of_turns = [
            each for turn in self.turns for each in (*turn.forks, *(one for own, _ in turn.spawns for one in own))
        ]
        return [*self.begins_with, *of_turns, *(each for names, _ in self.rounds for each in names)]


def read_aiperf_conversations(path: Path) -> Trace:
    """Return the calls of conversations, task by task; a task is a conversation with all that it starts.

    The start times of tasks are unknown. A turn waits for the one before it and for its ``delay``; the first turn of a
    forked or spawned conversation waits for the turn that starts it; a turn at which spawned conversations join also
    waits for their last turns. Forks continue from the context of the turn that starts them, including its answer;
    spawned conversations begin with an empty context.

    Raises:
        TraceError: The file cannot be read, or a conversation breaks a rule; with its line in the file.
    """
    known = _conversations(read_records(path))
    started = {child for each in known.values() for child in each.children()}
    roots = [name for name in known if name not in started]
    if not roots:
        rule = "has no conversation that no other starts"
        raise TraceError(rule, file=path, remedy="they start each other in a circle")
    calls = _Calls(path, known)
    for number, root in enumerate(roots):
        calls.task = number
        try:
            calls.begin(root, [], 0.0, None, ())
        except TooLongError:
            raise _too_long(path) from None
    if not calls.prompts:
        raise TraceError("holds no turn that sends a request", file=path)
    contexts = [prompt for prompt, _ in calls.prompts]
    trace = Trace(
        arrival_time=np.full(len(contexts), np.nan),
        prompt_tokens=np.array([max(each.tokens, 1) for each in contexts], dtype=np.int64),
        output_tokens=np.array(calls.answers, dtype=np.int64),
        prefix_blocks=blocks_of(contexts),
        session=np.array(calls.tasks, dtype=np.int64),
        tasks=RecordedTasks(
            task=np.array(calls.tasks, dtype=np.int64),
            agent=np.array(calls.agents, dtype=np.int64),
            dependencies=dependencies_of(calls.parents),
            tool_time=np.array(calls.pauses),
            offset=np.array(calls.offsets),
        ),
        remark=REMARK,
    )
    return _with_media(trace, calls.prompts)


class _Calls:
    """The calls of all tasks, parents before children, one list per column."""

    def __init__(self, path: Path, known: Mapping[str, _Conversation]) -> None:
        self._path, self._known = path, known
        self._contexts = Contexts()
        self.task = self._num_agents = self._num_begun = 0
        self.prompts: list[tuple[Context, Context | None]] = []
        self.answers: list[int] = []
        self.tasks: list[int] = []
        self.agents: list[int] = []
        self.parents: list[list[int]] = []
        self.pauses: list[float] = []
        self.offsets: list[float] = []

    def begin(
        self, name: str, parents: list[int], pause: float, seed: History | None, above: tuple[str, ...]
    ) -> list[int]:
        """Add the calls of a conversation, and of those that it starts.

        Args:
            name: Name of the conversation.
            parents: The calls that its first call waits for.
            pause: Seconds after these, in addition to its own delay.
            seed: The history it continues; None: it begins with an empty one.
            above: Conversations that started it, from the root down.

        Returns:
            The calls that must be answered for the conversation to have ended.
        """
        conversation = self._known[name]
        if name in above or len(above) >= MOST_NESTED:
            rule = "starts itself again" if name in above else f"lies in more than {MOST_NESTED} others"
            raise TraceError(rule, file=self._path, key=f"row {conversation.line}, session_id", value=name)
        above = (*above, name)
        self._num_begun += 1
        if self._num_begun > MOST_CALLS:
            raise self._too_many()
        for child in conversation.begins_with:
            self.begin(child, parents, pause, None, above)
        for names, think_time in conversation.rounds:  # each waits for all of the one before
            ends = [end for each in names for end in self.begin(each, parents, pause + think_time, None, above)]
            parents, pause = sorted(set(ends)), 0.0
        if conversation.rounds:
            return parents
        agent, self._num_agents = self._num_agents, self._num_agents + 1
        history = seed or History.new(self._contexts)
        joined: dict[int, list[int]] = {}
        last, before = parents, None
        for number, turn in enumerate(conversation.turns):
            if conversation.is_isolated:
                history = History.new(self._contexts)
            history = history.with_tools(turn.tools).with_piece(turn.messages)
            prompt = history.context
            awaited = sorted({*last, *joined.get(number, ())})
            call = self._add(prompt, before, turn, agent, awaited, turn.delay + (0.0 if number else pause))
            before, last = prompt, [call]
            history = history.with_piece((call, turn.answer))
            for child in turn.forks:
                self.begin(child, [call], 0.0, history, above)
            for children, join_at in turn.spawns:
                for child in children:
                    ends = self.begin(child, [call], 0.0, None, above)
                    joined.setdefault(number + 1 if join_at is None else join_at, []).extend(ends)
        return last

    def _add(
        self, prompt: Context, before: Context | None, turn: _Turn, agent: int, parents: list[int], pause: float
    ) -> int:
        if len(self.answers) >= MOST_CALLS:
            raise self._too_many()
        self.prompts.append((prompt, before))
        self.answers.append(turn.answer)
        self.tasks.append(self.task)
        self.agents.append(agent)
        self.parents.append(parents)
        self.pauses.append(pause if parents else 0.0)
        self.offsets.append(0.0 if parents else pause)
        return len(self.answers) - 1

    def _too_many(self) -> TraceError:
        rule = f"has more than {MOST_CALLS:,} calls, with those of conversations that are started again"
        return TraceError(rule, file=self._path, remedy="cut it")


def _conversations(records: Records) -> dict[str, _Conversation]:
    found: dict[str, _Conversation] = {}
    for index, row in enumerate(records.rows):
        name = row.get(SESSION_FIELD)
        if not isinstance(name, str) or not name:
            raise records.error(index, SESSION_FIELD, "is missing, or is not a text")
        if name in found:
            raise records.error(index, SESSION_FIELD, "is that of a conversation above")
        found[name] = _conversation(records, index)
    forked: set[str] = set()
    for index, (name, each) in enumerate(found.items()):
        for child in each.children():
            if child not in found:
                raise records.error(index, SESSION_FIELD, f"starts {child!r}, which no line has as its session_id")
        for child in (one for turn in each.turns for one in turn.forks):
            if child in forked:
                rule = f"forks {child!r}, which another turn forks too: it can go on from one context alone"
                raise records.error(index, SESSION_FIELD, rule)
            forked.add(child)
        if each.turns and each.turns[-1].spawns and any(to is not None for _, to in each.turns[-1].spawns):
            raise records.error(index, "spawns", f"of the last turn of {name!r} is joined at a turn that is not there")
    return found


def _conversation(records: Records, index: int) -> _Conversation:
    row, line = records.rows[index], records.lines[index]
    begins_with = _names(records, index, row, "pre_session_spawns")
    if row.get("orchestrator"):
        return _Conversation(line, [], False, begins_with, _rounds_of(records, index))
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(each, Mapping) for each in turns):
        raise records.error(index, "turns", "is not a list of turns")
    head: list[Mapping[str, object]] = []
    if len(turns) > 1 and turns[0].get("role") == "system" and "messages" not in turns[0]:
        # A leading system entry is part of every prompt, not a turn.
        head, turns = [{"role": "system", "content": turns[0].get("text")}], turns[1:]
    read = [_turn(records, index, place, each, len(turns)) for place, each in enumerate(turns)]
    read[0].messages = [*head, *read[0].messages]
    return _Conversation(line, read, row.get("context_mode") == _ISOLATED, begins_with)


def _turn(records: Records, index: int, place: int, turn: Mapping[str, Any], num_turns: int) -> _Turn:
    def error(rule: str, name: str) -> TraceError:
        return TraceError(rule, file=records.file, key=f"row {records.lines[index]}, turns[{place}], {name}")

    name = next((each for each in TEXT_FIELDS if turn.get(each) is not None), "messages")
    messages = _messages(turn.get(name), lambda rule: error(rule, name))
    forks, spawns = turn.get("forks") or [], turn.get("spawns") or []
    if not isinstance(forks, list) or not isinstance(spawns, list):
        raise error("is not a list", "forks or spawns")
    forked: list[Any] = [each.get("child") if isinstance(each, Mapping) else each for each in forks]
    spawned: list[tuple[Any, Any]] = [
        (each.get("children"), each.get("join_at")) if isinstance(each, Mapping) else ([each], None) for each in spawns
    ]
    own = [each for names, _ in spawned for each in (names if isinstance(names, list) else [None])]
    if not all(isinstance(each, str) for each in (*forked, *own)):
        raise error("is not a list of session_ids", "forks or spawns")
    for _, join_at in spawned:
        if join_at is not None and (type(join_at) is not int or not place < join_at < num_turns):
            raise error(f"is not a later turn of the {num_turns} that there are, counted from 0", "join_at")
    delay = turn.get("delay") or 0.0
    if not is_number(delay, 0, LATEST / _MILLISECOND):
        raise error("is not a number of milliseconds >= 0", "delay")
    answer = _answer_tokens(turn, error)
    return _Turn(messages, answer, float(delay) * _MILLISECOND, turn.get("tools"), forked, spawned)


def _rounds_of(records: Records, index: int) -> list[tuple[list[str], float]]:
    """Return, for each round of a conversation that sends nothing itself, whom it starts and its pause, seconds."""
    row = records.rows[index]
    rounds = row.get("rounds")
    if type(rounds) is int and not 1 <= rounds <= MOST_CALLS:
        raise records.error(index, "rounds", f"is not a whole number from 1 to {MOST_CALLS:,}, nor a list")
    if rounds is None or type(rounds) is int:
        whole = [row] * (rounds or 1)
    else:
        whole = rounds if isinstance(rounds, list) else []
    if not whole or not all(isinstance(each, Mapping) for each in whole):
        raise records.error(index, "rounds", "is neither a number of rounds nor a list of them")
    found = []
    for each in whole:
        names = _names(records, index, each, "spawns")
        pause = each.get("think_time_ms", row.get("think_time_ms")) or 0.0
        if not names:
            raise records.error(index, "spawns", "is missing: whoever sends nothing itself starts others")
        if not is_number(pause, 0, LATEST / _MILLISECOND):
            raise records.error(index, "think_time_ms", "is not a number of milliseconds >= 0")
        found.append((names, float(pause) * _MILLISECOND))
    return found


def _names(records: Records, index: int, fields: Mapping[str, Any], name: str) -> list[str]:
    value = fields.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise records.error(index, name, "is not a list of session_ids")
    return value
