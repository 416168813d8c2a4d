"""PrefixSegments: the contents of every request's tokens, so that a cache can tell which prompts share a prefix.

The tokens of a request, prompt and answer, are divided into segments; equal segment numbers mean equal tokens from the
first one on. Knows no blocks and no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.workload.dependencies import ranges

if TYPE_CHECKING:
    from simserve.workload.traces.trace import PrefixBlocks

NONE = -1
_SPARSE = 4  # Segments are renumbered without gaps if fewer than one number in this many is used.


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSegments:
    """The segments of all requests, one after another."""

    offsets: NDArray[np.int64]
    """Request i has the entries ``offsets[i] .. offsets[i + 1] - 1``, int64, shape [N + 1]."""
    segments: NDArray[np.int64]
    """Number of each segment, int64. It always follows the same segment, and starts at the same token."""
    ends: NDArray[np.int64]
    """Token of the request before which it ends, ascending within a request, int64; the last is the end of the
    answer."""
    is_recorded: bool = False
    """Whether requests may share segments without one waiting for the other's answer, as in a trace."""
    are_chained: bool = False
    """Whether chains of segments without branches are already merged (`simserve.sim.plane`)."""

    def first(self, num_requests: int) -> PrefixSegments:
        """Return those of the first requests only."""
        offsets = self.offsets[: num_requests + 1]
        return replace(self, offsets=offsets, segments=self.segments[: offsets[-1]], ends=self.ends[: offsets[-1]])

    def of_rows(self, rows: NDArray[np.int64]) -> PrefixSegments:
        """Return those of some requests, in that order."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        entries = ranges(self.offsets[:-1][rows], counts)
        return replace(self, offsets=offsets, segments=self.segments[entries], ends=self.ends[entries])


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginnings:
    """The shared texts that requests, or conversations, begin with."""

    group: NDArray[np.int64]  # Number of the text of each; `NONE`: it begins with none; shape [N].
    tokens: NDArray[np.int64]  # Length of that text, 0 for none, shape [N].
    num_groups: int  # Total number of texts; those of the workload come first, then those of each class.

    def of_rows(self, rows: NDArray[np.int64]) -> Beginnings:
        """Return those of some rows, in that order."""
        return replace(self, group=self.group[rows], tokens=self.tokens[rows])


def chained_prefixes(
    prompts: NDArray[np.int64],
    ends: NDArray[np.int64],
    beginnings: Beginnings | None,
    *,
    earlier: NDArray[np.int64],
    counts: NDArray[np.int64],
    is_whole: bool = True,
) -> PrefixSegments:
    """Return the segments of requests whose contexts contain the texts they begin with, and earlier requests.

    The segments of a request are that text, the earlier requests, and itself. If only part of an answer is kept, or it
    follows thinking, a request's segment ends with its prompt, and its answer is a separate segment.

    Args:
        prompts: Prompt tokens, shape [N].
        ends: Tokens of each request, prompt and answer together, shape [N].
        beginnings: The text of each request; None: there are none.
        earlier: Rows of the earlier requests in the context of each, one list after another.
        counts: Number of these, shape [N].
        is_whole: Whether contexts contain whole answers.
    """
    row = np.arange(len(prompts))
    if beginnings is None:
        beginnings = Beginnings(group=np.full(len(row), NONE), tokens=np.zeros(len(row), np.int64), num_groups=0)
    begins = beginnings.group >= 0
    offsets = np.concatenate([[0], np.cumsum(begins + counts + 1 + (not is_whole))]).astype(np.int64)
    segments, segment_ends = (np.empty(offsets[-1], dtype=np.int64) for _ in range(2))
    first, main_ends = offsets[:-1] + begins, ends if is_whole else prompts
    at, own = ranges(first, counts), first + counts
    segments[at], segment_ends[at] = beginnings.num_groups + earlier, main_ends[earlier]
    segments[own], segment_ends[own] = beginnings.num_groups + row, main_ends
    if not is_whole:
        segments[own + 1], segment_ends[own + 1] = beginnings.num_groups + len(row) + row, ends
    at = offsets[:-1][begins]
    segments[at], segment_ends[at] = beginnings.group[begins], beginnings.tokens[begins]
    return PrefixSegments(offsets=offsets, segments=segments, ends=segment_ends)


def system_prompts(
    groups: NDArray[np.int64], num_groups: int, tokens: NDArray[np.int64], lengths: NDArray[np.int64]
) -> PrefixSegments:
    """Return the segments of requests that begin with the system prompt of their group, and share nothing else.

    Args:
        groups: Group of each request, negative: none, shape [N].
        num_groups: Number of groups.
        tokens: Length of its system prompt, shape [N].
        lengths: Tokens of each request, system prompt, rest of the prompt and answer together, shape [N].
    """
    beginnings, none = Beginnings(group=groups, tokens=tokens, num_groups=num_groups), np.zeros(len(groups), np.int64)
    return chained_prefixes(lengths, lengths, beginnings, earlier=none[:0], counts=none)


def own_prefixes(lengths: NDArray[np.int64], num_shared: int = 0) -> PrefixSegments:
    """Return the segments of requests that share nothing: one each, which only the request itself can find again.

    Args:
        lengths: Tokens of each request, prompt and answer together, shape [N].
        num_shared: Number of the first segment.
    """
    numbers = np.arange(len(lengths) + 1, dtype=np.int64)
    return PrefixSegments(offsets=numbers, segments=num_shared + numbers[:-1], ends=np.asarray(lengths, dtype=np.int64))


def joined(parts: Sequence[PrefixSegments], num_shared: int) -> PrefixSegments:
    """Return the segments of several lists of requests, one list after another.

    Args:
        parts: Segments of each list. Those below ``num_shared`` are the same in all lists, others belong to one list.
        num_shared: Most segments that lists share.
    """
    segments, offsets = [], [np.zeros(1, dtype=np.int64)]
    used, rows = 0, 0
    for part in parts:
        segments.append(np.where(part.segments < num_shared, part.segments, part.segments + used))
        offsets.append(part.offsets[1:] + rows)
        used += max(int(part.segments.max(initial=-1)) + 1 - num_shared, 0)
        rows += int(part.offsets[-1])
    numbers = np.concatenate(segments)
    if len(numbers) and numbers.max() > _SPARSE * len(numbers):
        numbers = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
    return PrefixSegments(
        offsets=np.concatenate(offsets), segments=numbers, ends=np.concatenate([part.ends for part in parts])
    )


def recorded_prefixes(
    blocks: PrefixBlocks, prompts: NDArray[np.int64], outputs: NDArray[np.int64], scale: float = 1.0
) -> PrefixSegments:
    """Return the segments of requests whose blocks of tokens a trace names; no two share an answer.

    Consecutive blocks that the same requests share become one segment.

    Args:
        blocks: The blocks of at least as many requests.
        prompts: Prompt tokens, shape [N].
        outputs: Answer tokens, shape [N].
        scale: Factor by which the prompts were multiplied.
    """
    num_requests = len(prompts)
    counts = blocks.counts[:num_requests]
    nodes = _nodes(blocks.ids[: int(counts.sum())], counts)
    row = np.repeat(np.arange(num_requests), counts)
    position = np.arange(len(nodes)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.minimum(np.rint((position + 1) * (blocks.block_tokens * scale)).astype(np.int64), prompts[row])
    uses = np.bincount(nodes)[nodes] if len(nodes) else nodes
    is_first = np.ones(len(nodes), dtype=bool)
    is_first[1:] = (uses[1:] != uses[:-1]) | (row[1:] != row[:-1])
    is_last = np.append(is_first[1:], True)[: len(nodes)]
    # From its first block that no other request has, a request has one segment of its own, up to the end of its answer.
    shared = is_first & (uses > 1)
    num_shared = np.bincount(row[shared], minlength=num_requests).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(num_shared + 1)])
    segments = np.empty(offsets[-1], dtype=np.int64)
    segment_ends = np.empty(offsets[-1], dtype=np.int64)
    own = offsets[1:] - 1
    is_shared = np.ones(offsets[-1], dtype=bool)
    is_shared[own] = False
    segments[is_shared] = nodes[shared]
    segment_ends[is_shared] = ends[is_last & (uses > 1)]
    segments[own] = (int(nodes.max()) + 1 if len(nodes) else 0) + np.arange(num_requests)
    segment_ends[own] = prompts + outputs
    return PrefixSegments(offsets=offsets, segments=segments, ends=segment_ends, is_recorded=True)


def _nodes(ids: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers of blocks that are equal only if all blocks before are equal too, in the shape of ``ids``."""
    nodes = np.empty(len(ids), dtype=np.int64)
    starts = np.cumsum(counts) - counts
    before = np.zeros(len(counts), dtype=np.int64)
    known = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    width = int(known.max()) + 1 if len(known) else 1
    first_number = 0
    for position in range(int(counts.max()) if len(counts) else 0):
        rows = np.flatnonzero(counts > position)
        keys = before[rows] * width + known[starts[rows] + position]
        distinct, inverse = np.unique(keys, return_inverse=True)
        nodes[starts[rows] + position] = before[rows] = first_number + inverse
        first_number += len(distinct)
    return nodes
