"""Agents whose calls a capture has written down as those of the agent around them, told apart by their prompts.

An agent's prompt begins with all of its prompt before. Calls of one list that do not go on from each other are those of
several agents (the rule of AIPerf's "Flattened-Agent Detection", docs/tutorials/weka-trace.md). Knows no format.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.workload.traces.tasks import RecordedCall

MOST_CHAINS = 2_000
"""Contexts of one agent that are told apart; captures have some dozens. An agent with more stays as it is."""
FEWEST_SUSPICIOUS, SUSPICIOUS_SHARE = 8, 0.5
"""So many contexts, of which more than this share begin with nothing of another: ids that no two prompts share, such as
hashes over something new in each, tell nothing, and the agent stays as it is."""
_EPSILON = 1e-6

Blocks = NDArray[np.int64]


@dataclass(slots=True)
class _Chain:
    """Calls of which each goes on from the one before.

    Attributes:
        rows: They, in the order of their sending.
        tail: Blocks of the last of them that says any.
        tail_row: That call.
        fork: The call whose context its first call begins with in part; -1: none.
        depth: Blocks that both share.
    """

    rows: list[int]
    tail: Blocks
    tail_row: int
    fork: int = -1
    depth: int = 0


def told_apart(calls: Sequence[RecordedCall], models: Sequence[Hashable]) -> list[RecordedCall]:
    """Return the calls, those of agents that were flattened with names of their own.

    A call goes on from another that was answered before it and whose blocks it begins with, all of them, the most of
    these. Where it begins with some of another's alone, it goes on from that one after its context was edited, if
    nothing else does and it is the nearest that could; otherwise its agent was started with that context by the agent
    whose list this is. Models are never changed within an agent. Calls without blocks stay.

    Args:
        calls: In any order.
        models: The model of each.
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
    """Return the agents in a list of calls, first that of the first call; that one alone where they tell nothing."""
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
    """Return the chain whose last prompt is all in a call's own, the longest; None: there is none."""
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
    calls: Sequence[RecordedCall],
    models: Sequence[Hashable],
    chains: list[_Chain],
    forks: dict[int, list[_Chain]],
) -> list[_Chain]:
    """Return the chains, those together whose context was edited and went on."""
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
    """Return how many of their first blocks two prompts share."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
