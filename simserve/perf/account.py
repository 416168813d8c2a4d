"""The seconds of a run's steps by operator: the contents of its steps, priced again with operators kept apart.

Only what occurred is priced, and only on request: some milliseconds a run. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simserve.perf.efficiency import Array
from simserve.perf.operators import OPERATORS, OperatorSeconds, PricedDeployment
from simserve.perf.stage import stage_of
from simserve.perf.tables import tables_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Numbers of steps by their content, by the index of the tables of `simserve.perf.operators.StepParts`."""

    decode: Array  # Steps without a chunk, by sequences that decode.
    decode_attention: Array  # Steps with a chunk, likewise.
    sequence: Array  # Steps with a chunk, by sequences.
    token: Array  # Steps with a chunk, by tokens.
    tokens_beyond: float  # Tokens beyond that table, summed over steps.
    shared: Array  # Steps of ranks in lockstep, by the tokens of all ranks.


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The time of a run's steps, to be divided by operator."""

    priced: PricedDeployment  # Cost of a step.
    counts: StepCounts  # The steps.
    attended: float  # Seconds of contexts, keys, pairs and requests: attention besides the tables.
    factor: float = 1.0  # Actual time of the steps relative to the priced time.
    shared_factor: float = 1.0  # The same for what ranks do together.
    others: Mapping[str, float] = field(default_factory=dict)
    """Operator -> seconds that no table holds, such as copies and drafts."""

    def seconds_by_operator(self) -> dict[str, float]:
        """Return the seconds of each of `OPERATORS`, 0 if no step has it.

        They sum to the seconds by part: each entry of a table is divided in the proportions of its pricing.
        """
        found = dict.fromkeys(OPERATORS, 0.0) | dict(self.others)
        found["attention"] += self.factor * self.attended
        if self.priced.shape is None:
            return found
        counts, parts = self.counts, self.priced.parts
        tokens, together = (_occurring(each) for each in (counts.token, counts.shared))
        every = np.arange(parts.decode.shape[1])
        stage = replace(stage_of(self.priced.shape), splits_operators=True)
        tables = tables_of(stage, *(each.astype(np.float64) for each in (tokens, every, together)))
        for table, entries, seconds, steps in (
            (tables.decode, every, parts.decode, counts.decode),
            (tables.decode_attention, every, parts.decode_attention, counts.decode_attention),
            (tables.sequence, every, parts.sequence, counts.sequence),
            (tables.token, tokens, parts.token, counts.token),
        ):
            _deal(found, table, seconds[:, entries].sum(axis=0), self.factor * steps[entries])
        beyond = np.array([self.factor * counts.tokens_beyond])
        _deal(found, tables.token_beyond, np.array([parts.token_beyond.sum()]), beyond)
        if parts.shared.shape[1]:
            seconds = parts.shared[:, together].sum(axis=0)
            _deal(found, tables.shared, seconds, self.shared_factor * counts.shared[together])
        return found


def _occurring(counts: Array) -> NDArray[np.int64]:
    """Return the entries of a table that steps had; always 0 and 1, as an empty table cannot be priced."""
    return np.union1d([0, 1], np.flatnonzero(counts))


def _deal(found: dict[str, float], table: OperatorSeconds, seconds: Array, steps: Array) -> None:
    """Add the seconds of the steps of each entry to its operators, in the proportions of ``table``."""
    assert table.shares is not None
    priced = table.parts.sum(axis=0)
    weights = np.divide(steps * seconds, priced, out=np.zeros_like(priced), where=priced > 0)
    for operator, each in table.shares.items():
        found[operator] += float((each * weights).sum())
