"""StepLog: every step of a run, for timelines and tables. Kept beside the run, one row per leap; free if not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.engine.progress import GRID
from simserve.engine.state import (
    ADMITTED,
    EVICTED,
    FINISHED,
    LEAP_FIELDS,
    READMITTED,
    RECOMPUTED,
    RETURNED,
    Replica,
    RequestTable,
)

MOST_STEPS = 2_000_000
"""Steps that a log keeps, the first of all replicas: some 200 MB as a table, and at most 700 MB of leaps and changes of
batches during the run."""

_ROUNDING = 1e-12
_HALVINGS = 60

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one scheduler, in order; all arrays have one entry per step."""

    start_time: Floats  # Seconds.
    end_time: Floats  # Seconds.
    num_decoding: Integers  # Sequences that decode.
    num_prefilling: Integers  # Requests with a prefill chunk.
    prefill_tokens: Integers  # Tokens of the chunks.
    context_tokens: Integers  # Tokens of the decoding sequences in the KV cache.
    seconds: Floats  # Duration.
    gained_tokens: Floats  # Tokens that the decoding sequences gain: one each, plus accepted drafts.
    priced_tokens: Integers  # Tokens that a step with prompts is priced for (x of `simserve.engine.state.StepTimes`).

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.start_time)

    def between(self, since: float, until: float) -> Steps:
        """Return the steps that run at some time between two times."""
        kept = (self.end_time > since) & (self.start_time < until)
        return Steps(**{each.name: getattr(self, each.name)[kept] for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """The steps of a run in order of their start, one entry each; ranks that step together are one step."""

    replica_id: Integers  # The replica that takes the step.
    start_s: Floats  # When it begins, seconds.
    seconds: Floats  # How long it takes.
    prompt_tokens: Integers  # Prompt tokens that it computes, including those of preempted requests computed again.
    decode_tokens: Integers
    """Tokens that it computes for decoding sequences: one each, and with speculative decoding the drafts that are
    verified."""
    context_tokens: Integers  # Tokens of the decoding sequences in the KV cache when it begins.
    num_sequences: Integers  # Sequences that take part.
    num_admitted: Integers  # Requests that take a seat in it, including those that return after a preemption.
    num_preempted: Integers  # Requests that lose their KV cache so that it can run.
    num_finished: Integers
    """Requests that have all their tokens at its end; at a replica that only prefills, the first one."""
    num_steps_of_run: int  # Steps of the run; more than the entries if there were more than `MOST_STEPS`.

    @classmethod
    def of(cls, rows: Sequence[Floats], num_steps_of_run: int) -> StepTable:
        """Return the table of the steps of several schedulers, cut to `MOST_STEPS`.

        Args:
            rows: For each scheduler, the columns in the order of the attributes, shape [10, steps].
            num_steps_of_run: Steps of all schedulers.
        """
        table = np.concatenate([np.zeros((len(COLUMNS), 0)), *rows], axis=1)
        table = table[:, np.lexsort((table[0], table[1]))][:, :MOST_STEPS]
        # Ranks of one replica step together.
        is_new = np.append(True, (np.diff(table[0]) != 0) | (np.diff(table[1]) != 0))[: table.shape[1]]
        firsts = np.flatnonzero(is_new)
        own = {}
        for position, name in enumerate(COLUMNS):
            if name in ("replica_id", "start_s"):
                own[name] = table[position, firsts]
            elif name == "seconds":
                own[name] = np.maximum.reduceat(table[position], firsts) if len(firsts) else table[position]
            else:
                own[name] = np.add.reduceat(table[position], firsts) if len(firsts) else table[position]
            if name not in ("start_s", "seconds"):
                own[name] = np.rint(own[name]).astype(np.int64)
        is_whole = num_steps_of_run <= MOST_STEPS
        return cls(**own, num_steps_of_run=len(firsts) if is_whole else num_steps_of_run)

    @property
    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Every column by its name."""
        return {name: getattr(self, name) for name in COLUMNS}


class KeptSteps(Protocol):
    """Anything that kept the steps of a run."""

    def table(self) -> StepTable:
        """Return the steps."""


COLUMNS = (
    *("replica_id", "start_s", "seconds", "prompt_tokens", "decode_tokens"),
    *("context_tokens", "num_sequences", "num_admitted", "num_preempted", "num_finished"),
)


@dataclass(slots=True)
class StepLog:
    """The leaps of every scheduler of a run, and who entered and left its batch."""

    replicas: list[Replica] = field(default_factory=list)
    """The schedulers: replicas, or ranks of data-parallel attention."""
    num_steps: int = 0  # Steps so far, kept or not.
    until: float = np.inf  # Steps that begin later are no longer kept, seconds.
    paces: Floats | None = None
    """Tokens per decode step that each request gains, in the order of the records; None: one."""
    _step_runs: dict[int, list[Floats]] = field(default_factory=dict)
    _advances: dict[int, list[Floats]] = field(default_factory=dict)
    _changes: dict[int, list[Floats]] = field(default_factory=dict)
    _num_kept: int = 0

    def watch(self, replicas: Sequence[Replica]) -> None:
        """Log these schedulers too, from now on."""
        self.replicas += replicas
        for replica in replicas:
            replica.batch_log = []

    def keep_paces(self, requests: RequestTable) -> None:
        """Keep the pace of each request; after the run."""
        if len(requests.pace):
            self.paces = np.frombuffer(requests.pace, dtype=np.int64) / GRID

    def renumber(self, order: NDArray[np.intp]) -> None:
        """Renumber requests by their places in ``order``, as in the records; those not in it are dropped."""
        self.paces = None if self.paces is None else self.paces[order]
        for number, blocks in self._changes.items():
            changes = np.concatenate(blocks)
            places = np.full(int(max(changes[:, 0].max(initial=-1), order.max(initial=-1))) + 1, -1)
            places[order] = np.arange(len(order))
            changes[:, 0] = places[changes[:, 0].astype(np.int64)]
            self._changes[number] = [changes[changes[:, 0] >= 0]]

    def add(self, replica: Replica, rows: Floats, advances: Floats, changes: Floats) -> None:
        """Keep leaps of a scheduler.

        Args:
            rows: Its leaps, shape [fields, leaps].
            advances: The tokens that a step of each leap adds to the contexts.
            changes: Requests that entered or left its batch, shape [3 * entries]: request, seconds, kind of change.
        """
        self.num_steps += int(rows[1].sum())
        in_time, changes = rows[0] <= self.until, changes.reshape(-1, 3)
        self._step_runs.setdefault(id(replica), []).append(rows[:, in_time])
        self._advances.setdefault(id(replica), []).append(advances[in_time])
        self._changes.setdefault(id(replica), []).append(changes[changes[:, 1] <= self.until])
        self._num_kept += int(in_time.sum())
        if self._num_kept > 2 * MOST_STEPS:
            self._shorten()

    def _shorten(self) -> None:
        """Drop all leaps after the first `MOST_STEPS`, which hold at least that many steps."""
        starts = np.concatenate([rows[0] for blocks in self._step_runs.values() for rows in blocks])
        self.until = float(np.partition(starts, MOST_STEPS)[MOST_STEPS])
        self._num_kept = 0
        for number, blocks in self._step_runs.items():
            step_runs, advances = np.concatenate(blocks, axis=1), np.concatenate(self._advances[number])
            changes, in_time = np.concatenate(self._changes[number]), step_runs[0] <= self.until
            self._step_runs[number], self._advances[number] = [step_runs[:, in_time]], [advances[in_time]]
            self._changes[number] = [changes[changes[:, 1] <= self.until]]
            self._num_kept += int(in_time.sum())

    def step_runs(self, replica: Replica) -> Floats:
        """Return the leaps of a scheduler in order, shape [fields, leaps]; the fields are `LEAP_FIELDS`."""
        blocks = self._step_runs.get(id(replica), [])
        return np.concatenate(blocks, axis=1) if blocks else np.zeros((len(LEAP_FIELDS), 0))

    def steps(self, replica: Replica, until: float = np.inf) -> Steps:
        """Return the steps of a scheduler that begin before ``until``, each leap split into its steps."""
        rows = dict(zip(LEAP_FIELDS, self.step_runs(replica), strict=True))
        advances = np.concatenate(self._advances.get(id(replica), [np.zeros(0)]))
        kept = rows["start_time"] < until
        rows, advances = {name: row[kept] for name, row in rows.items()}, advances[kept]
        counts = rows["num_steps"].astype(np.int64)
        leap = np.repeat(np.arange(len(counts)), counts)
        step = np.arange(len(leap)) - np.repeat(np.cumsum(counts) - counts, counts)
        start, first, increment = (rows[name][leap] for name in ("start_time", "first_seconds", "increment_seconds"))
        begin = start + first * step + increment * (step * (step - 1) * 0.5)
        after = step + 1
        end = start + first * after + increment * (after * (after - 1) * 0.5)
        in_time = begin < until
        context = rows["context_tokens"][leap] + advances[leap] * step
        whole = {
            name: rows[name][leap] for name in ("num_decoding", "num_prefilling", "prefill_tokens", "priced_tokens")
        }
        whole["context_tokens"] = context
        return Steps(
            start_time=begin[in_time],
            end_time=end[in_time],
            seconds=(first + increment * step)[in_time],
            gained_tokens=advances[leap][in_time],
            **{name: np.asarray(np.rint(column[in_time]), dtype=np.int64) for name, column in whole.items()},
        )

    def table(self) -> StepTable:
        """Return every step of all schedulers, with the number of requests that entered and left the batch."""
        until = self._limit()
        return StepTable.of([self._columns(replica, until) for replica in self.replicas], self.num_steps)

    def _limit(self) -> float:
        """Return a time before which `MOST_STEPS` steps begin, and few more, all kept; inf if there are no more.

        The steps of a leap never get shorter, so at any time at least as many have begun as if all were equally long.
        """
        if self.num_steps <= MOST_STEPS:
            return np.inf
        rows = np.concatenate([self.step_runs(replica) for replica in self.replicas], axis=1)
        start, count, first, increment = rows[:4]
        mean = first + increment * (count - 1.0) * 0.5
        earliest, latest = 0.0, min(self.until, float((start + mean * count).max()))
        for _ in range(_HALVINGS):
            middle = 0.5 * (earliest + latest)
            if np.clip(np.ceil((middle - start) / mean), 0.0, count).sum() < MOST_STEPS:
                earliest = middle
            else:
                latest = middle
        return float(np.nextafter(latest, np.inf))

    def _columns(self, replica: Replica, until: float) -> Floats:
        steps, changes = self.steps(replica, until), self._changes_of(replica)
        columns = np.empty((len(COLUMNS), len(steps)))
        columns[0], columns[1], columns[2] = replica.identity, steps.start_time, steps.seconds
        columns[3], columns[5] = steps.prefill_tokens, steps.context_tokens
        columns[4] = steps.num_decoding * replica.tokens_per_decode
        columns[6] = steps.num_decoding + steps.num_prefilling
        for position, kinds in enumerate(((ADMITTED, READMITTED, RETURNED), (EVICTED,), (FINISHED,)), start=7):
            times = changes[np.isin(changes[:, 2], kinds), 1]
            # Requests finish when a step ends, and enter when one begins: the end of a step is the start of the next.
            if FINISHED in kinds and len(steps):
                times = times[times <= steps.end_time[-1] * (1.0 + _ROUNDING)]
            own = np.searchsorted(steps.start_time, times, side="left") - (FINISHED in kinds)
            own = own[(own >= 0) & (own < len(steps))]
            columns[position] = np.bincount(own, minlength=len(steps))
        return columns

    def _changes_of(self, replica: Replica) -> Floats:
        return np.concatenate(self._changes.get(id(replica), [np.zeros((0, 3))]))

    def evictions(self, replica: Replica) -> Floats:
        """Return (request, seconds, kind) of each preemption and of what followed it, shape [events, 3]."""
        changes = self._changes_of(replica)
        return changes[np.isin(changes[:, 2], (EVICTED, READMITTED, RECOMPUTED, RETURNED))]
