"""Trace: what every reader returns, for single requests and for calls that wait for each other. Knows no format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.workload.traces.media import RecordedMedia
from simserve.workload.traces.tasks import RecordedCall, RecordedTasks, tasks_by_time


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBlocks:
    """The blocks of tokens that prompts begin with; equal ids mean equal tokens up to the block's end."""

    block_tokens: int  # Tokens of a block; the last one of a prompt may be shorter.
    ids: NDArray[np.int64]  # The ids of all requests, one request after another, int64.
    counts: NDArray[np.int64]  # Blocks of each request, int64.

    @classmethod
    def of(cls, block_tokens: int, lists: Sequence[Sequence[int]]) -> PrefixBlocks:
        """Return the blocks of requests, given the ids of each."""
        ids = np.array([each for own in lists for each in own], dtype=np.int64)
        return cls(block_tokens=block_tokens, ids=ids, counts=np.array([len(own) for own in lists], dtype=np.int64))

    @property
    def num_distinct(self) -> int:
        """Number of distinct blocks."""
        return len(np.unique(self.ids))

    @property
    def reuse(self) -> float:
        """Share of the blocks that an earlier request had too: the hit rate of an infinite cache."""
        return 1.0 - self.num_distinct / len(self.ids) if len(self.ids) else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Recorded requests in order of arrival; row i is request i."""

    arrival_time: NDArray[np.float64]
    """Seconds from the start of the run, ascending, float64; all NaN if the format has none."""
    prompt_tokens: NDArray[np.int64]  # >= 1, int64.
    output_tokens: NDArray[np.int64]  # >= 1, int64.
    max_tokens: NDArray[np.int64] | None = None
    """Most tokens that clients asked for, >= output_tokens, int64; None if the trace does not say."""
    prefix_blocks: PrefixBlocks | None = None  # What prompts share; None if the trace does not say.
    session: NDArray[np.int64] | None = None
    """Number of the conversation of each request, negative: none, int64; None if no row says."""
    tasks: RecordedTasks | None = None
    """Which requests are calls of agents' tasks, and what they waited for; None if the trace does not say."""
    images: RecordedMedia | None = None  # Images of each request; None if the trace does not say.
    audio: RecordedMedia | None = None  # Recordings of each request; None if the trace does not say.
    counts_media: bool = False  # Whether ``prompt_tokens`` include the tokens of images and recordings.
    num_unserved: int = 0  # Rows left out because nothing was served.
    remark: str | None = None  # A caution about the figures, for example that lengths are estimated.

    def blocks_of(self, block_tokens: int | None) -> PrefixBlocks | None:
        """Return what prompts share, in blocks of ``block_tokens``; None: the block size of the format."""
        blocks = self.prefix_blocks
        return blocks if blocks is None or block_tokens is None else replace(blocks, block_tokens=block_tokens)

    @property
    def has_arrival_times(self) -> bool:
        """Whether the format says when requests arrive."""
        return not bool(np.isnan(self.arrival_time).any())

    def frozen(self) -> Trace:
        """Return the trace with read-only arrays."""
        blocks = () if self.prefix_blocks is None else (self.prefix_blocks.ids, self.prefix_blocks.counts)
        lengths = (self.prompt_tokens, self.output_tokens, self.max_tokens)
        for column in (self.arrival_time, *lengths, self.session, *blocks):
            if column is not None:
                column.flags.writeable = False
        for media in (self.images, self.audio):
            if media is not None:
                media.frozen()
        return self

    def scaled(self, *, time: float = 1.0, prompt: float = 1.0, output: float = 1.0) -> Trace:
        """Return the trace with its times and lengths multiplied; lengths are rounded, and at least one token."""
        return replace(
            self,
            arrival_time=self.arrival_time * time,
            prompt_tokens=_scaled(self.prompt_tokens, prompt),
            output_tokens=_scaled(self.output_tokens, output),
            max_tokens=None if self.max_tokens is None else _scaled(self.max_tokens, output),
        )


def numbered(names: Sequence[object]) -> NDArray[np.int64] | None:
    """Return a number for each name, equal for equal names, negative without a name; None if no row has a name."""
    numbers: dict[str, int] = {}
    found = [
        -1 - row if name is None else numbers.setdefault(str(name), len(numbers)) for row, name in enumerate(names)
    ]
    return np.array(found, dtype=np.int64) if numbers else None


def _scaled(lengths: NDArray[np.int64], factor: float) -> NDArray[np.int64]:
    if factor == 1.0:
        return lengths
    scaled: NDArray[np.int64] = np.maximum(np.rint(lengths * factor), 1).astype(np.int64)
    return scaled


def trace_of_calls(
    calls: Sequence[RecordedCall], block_tokens: int | None, *, num_unserved: int, has_arrival_times: bool
) -> Trace:
    """Return the trace of some calls.

    Args:
        calls: The calls; with ``has_arrival_times`` on one clock, else ordered by task.
        block_tokens: Tokens of a block, if all calls name the blocks they begin with; None: they do not.
        has_arrival_times: Whether the recording says when tasks begin.
    """
    if has_arrival_times:
        calls = sorted(calls, key=lambda call: call.start)
    starts = np.array([call.start for call in calls], dtype=np.float64)
    tasks = tasks_by_time(calls)
    blocks = None
    if block_tokens is not None and all(call.blocks is not None for call in calls):
        blocks = PrefixBlocks.of(block_tokens, [call.blocks or () for call in calls])
    return Trace(
        arrival_time=starts - starts[0] if has_arrival_times else np.full(len(calls), np.nan),
        prompt_tokens=np.array([call.prompt_tokens for call in calls], dtype=np.int64),
        output_tokens=np.array([call.output_tokens for call in calls], dtype=np.int64),
        prefix_blocks=blocks,
        session=tasks.task if (tasks.task >= 0).any() else None,
        tasks=tasks if (tasks.task >= 0).any() else None,
        num_unserved=num_unserved,
    )
