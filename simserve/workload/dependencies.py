"""Dependencies: which calls of an agent's task wait for the answers to which others. Knows no times and no tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def ranges(starts: Integers, counts: Integers) -> Integers:
    """Return ``start .. start + count - 1`` of each start and count, one after another."""
    return np.arange(int(counts.sum())) + np.repeat(starts - np.cumsum(counts) + counts, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The parents of every call, one list after another; rows of a task are adjacent, parents before children."""

    offsets: Integers  # Call i waits for the entries ``offsets[i] .. offsets[i + 1] - 1``, int64, shape [N + 1].
    parents: Integers  # Rows of the calls that must be answered first, int64.

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.offsets) - 1

    @property
    def num_parents(self) -> Integers:
        """Number of parents of each call, shape [N]."""
        return np.diff(self.offsets)

    def of_rows(self, rows: Integers) -> Dependencies:
        """Return those of some calls, in that order; parents that are not among them are dropped."""
        place = np.full(len(self), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        counts = self.num_parents[rows]
        parents = place[self.parents[ranges(self.offsets[:-1][rows], counts)]]
        is_there = parents >= 0
        owner = np.repeat(np.arange(len(rows)), counts)[is_there]
        return from_counts(np.bincount(owner, minlength=len(rows)), parents[is_there])

    def children(self) -> tuple[Integers, Integers]:
        """Return where the children of each call begin, shape [N + 1], and all children, one list after another."""
        edges = np.concatenate([[0], np.cumsum(np.bincount(self.parents, minlength=len(self)))]).astype(np.int64)
        owner = np.repeat(np.arange(len(self)), self.num_parents)
        return edges, owner[np.argsort(self.parents, kind="stable")]

    def depths(self) -> Integers:
        """Return the number of calls on the longest path from a task's start to each call, inclusive, shape [N]."""
        return self.longest(np.ones(len(self))).astype(np.int64)

    def longest(self, lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the length of the longest path to each call, if each adds its own of ``lengths``, shape [N]."""
        edges, children = self.children()
        way, before, left = lengths.copy(), np.zeros(len(lengths)), self.num_parents.copy()
        known = np.flatnonzero(left == 0)
        while len(known):
            counts = edges[known + 1] - edges[known]
            child = children[ranges(edges[known], counts)]
            np.maximum.at(before, child, np.repeat(way[known], counts))
            np.subtract.at(left, child, 1)
            known = np.unique(child[left[child] == 0])
            way[known] += before[known]
        return way


def dependencies_of(parents: Sequence[Sequence[int]]) -> Dependencies:
    """Return the dependencies of calls, given the rows of each one's parents."""
    flat = [each for own in parents for each in own]
    return from_counts(np.array([len(own) for own in parents], dtype=np.int64), np.array(flat, dtype=np.int64))


def from_counts(counts: Integers, parents: Integers) -> Dependencies:
    """Return the dependencies of calls, given their numbers of parents and all parents, one list after another."""
    return Dependencies(offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), parents=parents)
