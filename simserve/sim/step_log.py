"""StepLog: every step of a run, for timelines. Kept beside the run, a row a leap; a run without it costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.engine.leaps import LEAP_FIELDS
from simserve.engine.state import Replica

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one scheduler, in order; all arrays have one entry a step.

    Attributes:
        start_time: Seconds.
        end_time: Seconds.
        num_decoding: Sequences that decode.
        num_prefilling: Requests with a chunk.
        prefill_tokens: Tokens of the chunks.
        context_tokens: Tokens of the decoding sequences in the KV cache.
    """

    start_time: Floats
    end_time: Floats
    num_decoding: NDArray[np.int64]
    num_prefilling: NDArray[np.int64]
    prefill_tokens: NDArray[np.int64]
    context_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.start_time)


@dataclass(slots=True)
class StepLog:
    """The leaps and preemptions of every scheduler of a run.

    Attributes:
        replicas: The schedulers: replicas, or ranks of data-parallel attention.
    """

    replicas: list[Replica] = field(default_factory=list)
    _leaps: dict[int, list[Floats]] = field(default_factory=dict)

    def watch(self, replicas: Sequence[Replica]) -> None:
        """Follow these schedulers too, from now on."""
        self.replicas += replicas
        for replica in replicas:
            replica.evictions = []

    def add(self, replica: Replica, rows: Floats) -> None:
        """Keep leaps, shape [fields, leaps]."""
        self._leaps.setdefault(id(replica), []).append(rows)

    def leaps(self, replica: Replica) -> Floats:
        """Return the leaps of a scheduler in order, shape [fields, leaps]: rows are `LEAP_FIELDS`."""
        blocks = self._leaps.get(id(replica), [])
        return np.concatenate(blocks, axis=1) if blocks else np.zeros((len(LEAP_FIELDS), 0))

    def steps(self, replica: Replica, until: float = np.inf) -> Steps:
        """Return the steps of a scheduler that begin before ``until``, leaps taken apart."""
        rows = dict(zip(LEAP_FIELDS, self.leaps(replica), strict=True))
        kept = rows["start_time"] < until
        rows = {name: row[kept] for name, row in rows.items()}
        counts = rows["num_steps"].astype(np.int64)
        leap = np.repeat(np.arange(len(counts)), counts)
        step = np.arange(len(leap)) - np.repeat(np.cumsum(counts) - counts, counts)
        start, first, increment = (rows[name][leap] for name in ("start_time", "first_seconds", "increment_seconds"))
        begin = start + first * step + increment * (step * (step - 1) * 0.5)
        after = step + 1
        end = start + first * after + increment * (after * (after - 1) * 0.5)
        in_time = begin < until
        decoding = rows["num_decoding"][leap]
        return Steps(
            begin[in_time],
            end[in_time],
            *(
                np.asarray(column[in_time], dtype=np.int64)
                for column in (
                    decoding,
                    rows["num_prefilling"][leap],
                    rows["prefill_tokens"][leap],
                    rows["context_tokens"][leap] + decoding * step,
                )
            ),
        )

    def evictions(self, replica: Replica) -> Floats:
        """Return (request, seconds, what) of each preemption and what followed it, shape [events, 3]."""
        return np.array(replica.evictions or (), dtype=np.float64).reshape(-1, 3)
