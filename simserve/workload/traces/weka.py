"""Agentic coding traces of Weka's KV cache tester, replayed by AgentX: one JSON object per task, calls with block ids.

The fields are documented in AIPerf's "Replaying Agentic Coding Sessions with Weka Traces" (ai-dynamo/aiperf,
docs/tutorials/weka-trace.md). A capture may list the calls of several agents under the outer one. These agents are
separated by their prompts: an agent's prompt begins with its whole previous prompt, so calls of one list that do not
continue each other belong to several agents ("Flattened-Agent Detection" in the same document).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.fields import Fields
from simserve.workload.traces.records import read_records
from simserve.workload.traces.table import MAX_TOKENS, is_number
from simserve.workload.traces.tasks import RecordedCall
from simserve.workload.traces.trace import Trace, trace_of_calls

Blocks = NDArray[np.int64]
SUBAGENT = "subagent"
_MOST_NESTED = 50  # Most levels of nested sub-agents; captures have one or two.
MOST_CHAINS = 2_000
"""Most contexts of one agent that are separated; captures have some dozens. An agent with more is left unchanged."""
FEWEST_SUSPICIOUS, SUSPICIOUS_SHARE = 8, 0.5
"""An agent with at least this many contexts, of which more than this share have no beginning in common with another, is
left unchanged: its block ids, such as hashes over something new in each prompt, show nothing."""
_EPSILON = 1e-6  # Seconds by which two calls may overlap and still follow each other.


@dataclass(frozen=True, slots=True)
class _Entry:
    """A call, and where it is in the file."""

    request: Fields  # The call.
    agent: str  # Its agent.
    started_by: str | None  # The agent that started that one.
    markers: tuple[float, ...] = ()  # Times of the sub-agent entries that it is in, seconds, the outermost first.

    @property
    def time(self) -> float:
        """Its time in the file, seconds."""
        return self.request.number("t", "a number of seconds")


def read_weka(path: Path) -> Trace:
    """Return the calls of the tasks, task by task; the start times of tasks are unknown.

    A ``subagent`` entry is an agent that the enclosing one starts. Agents whose calls are listed among those of another
    are separated by the blocks of their prompts (`told_apart`). Block ids are valid within a task. Times of sub-agents'
    calls count from their entry in traces of kv-cache-tester, and from the task in those of AgentX. They are taken to
    count from the entry, in all tasks, if a call would otherwise be before its entry (AISimulate's rule).

    Raises:
        TraceError: The file cannot be read, or a call breaks a rule; with its place in the file.
    """
    records = read_records(path)
    tasks = [
        list(_entries(row.get("requests"), f"row {line}", "", None, (), path))
        for row, line in zip(records.rows, records.lines, strict=True)
    ]
    is_relative = any(entry.markers and entry.time < entry.markers[-1] for entries in tasks for entry in entries)
    calls: list[RecordedCall] = []
    models: list[str] = []
    known: dict[tuple[int, int], int] = {}
    sizes = {str(row.get("block_size")) for row in records.rows}
    num_unserved = 0
    for number, entries in enumerate(tasks):
        timed = [(each.time + (sum(each.markers) if is_relative else 0.0), each) for each in entries]
        for start, entry in sorted(timed, key=lambda one: one[0]):
            if not entry.request.values.get("out"):
                num_unserved += 1
                continue
            calls.append(_call(entry, start, number, known))
            models.append(str(entry.request.values.get("model")))
    if not calls:
        raise TraceError("holds no call with output tokens", file=path)
    size = sizes.pop() if len(sizes) == 1 else ""
    if not (size.isdecimal() and 1 <= int(size) <= MAX_TOKENS):
        raise TraceError("must be one whole number >= 1 in all tasks", file=path, key="block_size", value=size or None)
    calls = told_apart(calls, models)
    return trace_of_calls(calls, int(size), num_unserved=num_unserved, has_arrival_times=False)


def _entries(
    requests: object, place: str, agent: str, started_by: str | None, markers: tuple[float, ...], path: Path
) -> Iterator[_Entry]:
    """Yield the calls of an agent and of the sub-agents that it starts."""
    if not isinstance(requests, Sequence) or isinstance(requests, str):
        raise TraceError("is not a list of calls", file=path, key=f"{place}, requests")
    for position, request in enumerate(requests):
        own = f"{place}, requests[{position}]"
        if not isinstance(request, Mapping):
            raise TraceError("is not an object", file=path, key=own)
        if request.get("type") == SUBAGENT:
            if agent.count("/") >= _MOST_NESTED:
                rule = f"lies in more than {_MOST_NESTED} other sub-agents"
                raise TraceError(rule, file=path, key=f"row of {place[:30]}")
            at = request.get("t")
            inner = (*markers, float(at) if is_number(at) else 0.0)
            yield from _entries(request.get("requests"), own, f"{agent}/{position}", agent, inner, path)
        else:
            yield _Entry(Fields(request, str(path), own, separator=", "), agent, started_by, markers)


def _call(entry: _Entry, start: float, number: int, known: dict[tuple[int, int], int]) -> RecordedCall:
    request = entry.request
    seconds = request.optional("api_time", "a number of seconds") or 0.0
    ids = request.integers("hash_ids") if "hash_ids" in request else None
    return RecordedCall(
        task=number,
        agent=entry.agent,
        started_by=entry.started_by,
        start=start,
        end=start + max(seconds, 0.0),
        prompt_tokens=request.tokens("in"),
        output_tokens=request.tokens("out"),
        blocks=None if ids is None else [known.setdefault((number, each), len(known)) for each in ids],
    )


@dataclass(slots=True)
class _Chain:
    """Calls each of which continues the one before."""

    rows: list[int]  # The calls, in the order in which they were sent.
    tail: Blocks  # Blocks of the last call that names any.
    tail_row: int  # That call.
    fork: int = -1  # The call whose context its first call shares a beginning with; -1: none.
    depth: int = 0  # Number of blocks that both share.


def told_apart(calls: Sequence[RecordedCall], models: Sequence[Hashable]) -> list[RecordedCall]:
    """Return the calls, with separate agent names for the calls of flattened agents.

    A call continues an earlier, answered call if its prompt begins with all blocks of that call's prompt; of several
    such calls, the one with the most blocks. If it begins with only some blocks of another call, it continues that one
    after an edit of the context, provided that no other call does and it is the nearest candidate; otherwise it begins
    a new agent, which the agent of the list started with that context. An agent never changes its model. Calls without
    blocks are left unchanged.

    Args:
        calls: In any order.
        models: The model of each call.
    """
    found = list(calls)
    rows_of: dict[tuple[Hashable, Hashable], list[int]] = defaultdict(list)
    for row, call in enumerate(calls):
        rows_of[call.task, call.agent].append(row)
    for (_, agent), rows in rows_of.items():
        rows.sort(key=lambda row: (calls[row].start, row))
        for number, chain in enumerate(_agents(calls, models, rows)[1:], start=1):
            for row in chain.rows:
                found[row] = replace(calls[row], agent=f"{agent}~{number}", started_by=agent)
    return found


def _agents(calls: Sequence[RecordedCall], models: Sequence[Hashable], rows: Sequence[int]) -> list[_Chain]:
    """Return the agents in a list of calls, that of the first call first; only that one if blocks show nothing."""
    chains: list[_Chain] = []
    blocks = {row: np.asarray(calls[row].blocks or (), dtype=np.int64) for row in rows}
    by_first: dict[int, list[_Chain]] = defaultdict(list)
    forks: dict[int, list[_Chain]] = defaultdict(list)
    for row in rows:
        own = blocks[row]
        if not len(own):
            if not chains:
                chains.append(_Chain([], own, -1))
            chains[0].rows.append(row)
            continue
        alike = by_first[int(own[0])]
        chain = _extended(calls, models, alike, own, row)
        if chain is not None:
            chain.rows.append(row)
            chain.tail, chain.tail_row = own, row
            continue
        chain = _Chain([row], own, row)
        if alike:
            chain.depth, _, nearest = max(
                ((_shared(each.tail, own), len(each.tail), each) for each in alike), key=lambda found: found[:2]
            )
            chain.fork = nearest.tail_row
            forks[chain.fork].append(chain)
        chains.append(chain)
        alike.append(chain)
        if len(chains) > MOST_CHAINS:
            return chains[:1]
    num_apart = sum(chain.fork < 0 for chain in chains[1:])
    if len(chains) >= FEWEST_SUSPICIOUS and num_apart > SUSPICIOUS_SHARE * len(chains):
        return chains[:1]
    return _joined(calls, models, chains, forks)


def _extended(
    calls: Sequence[RecordedCall], models: Sequence[Hashable], chains: Sequence[_Chain], own: Blocks, row: int
) -> _Chain | None:
    """Return the chain with the longest last prompt that a call's prompt begins with; None: there is none."""
    found = [
        chain
        for chain in chains
        if len(chain.tail) <= len(own)
        and chain.tail[-1] == own[len(chain.tail) - 1]
        and models[chain.tail_row] == models[row]
        and calls[chain.tail_row].end <= calls[row].start + _EPSILON
        and _shared(chain.tail, own) == len(chain.tail)
    ]
    return max(found, key=lambda chain: len(chain.tail), default=None)


def _joined(
    calls: Sequence[RecordedCall], models: Sequence[Hashable], chains: list[_Chain], forks: dict[int, list[_Chain]]
) -> list[_Chain]:
    """Return the chains, joined if one continues another after an edit of its context."""
    owner = {row: chain for chain in chains for row in chain.rows}
    gone: set[int] = set()
    for row in sorted(forks, key=lambda row: (calls[row].start, row)):
        chain = owner[row]
        if chain.rows[-1] != row:
            continue
        later = [
            each
            for each in forks[row]
            if calls[each.rows[0]].start + _EPSILON >= calls[row].end and models[each.rows[0]] == models[row]
        ]
        if later:
            nearest = max(later, key=lambda each: (each.depth, -calls[each.rows[0]].start))
            chain.rows += nearest.rows
            owner |= dict.fromkeys(nearest.rows, chain)
            gone.add(id(nearest))
    return [chain for chain in chains if id(chain) not in gone]


def _shared(one: Blocks, other: Blocks) -> int:
    """Return how many leading blocks two prompts share."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
