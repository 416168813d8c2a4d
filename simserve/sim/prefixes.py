"""From what the requests of a run share to what a replica's cache looks up. Knows no cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import finds_itself
from simserve.workload.requests import RequestSpecs

if TYPE_CHECKING:
    from simserve.engine.cache_state import PrefixPaths
    from simserve.engine.config import EngineConfig
    from simserve.engine.state import RequestTable
    from simserve.workload.prefixes import PrefixSegments

_SPARSE = 4
"""Numbers of segments are put one after another where fewer than one in so many is used."""


class CameAgain(Exception):
    """A request was preempted, or sent again, in a run that took it that none is."""


@dataclass(frozen=True, slots=True)
class OwnBlocks:
    """Whether requests that share nothing may find what they had computed themselves, and what a run does about it.

    Where nobody is preempted and nobody comes again, nobody looks for it, and a run without it is the same, in half of
    the time. Whether somebody does shows as it runs: it is then run again with it.

    Attributes:
        are_kept: Whether they are, from the first request on.
        is_assumed: Whether the run takes it that nobody is preempted or sent again.
    """

    are_kept: bool
    is_assumed: bool = False

    @classmethod
    def of(cls, configs: Iterable[EngineConfig], specs: RequestSpecs, *, may_return: bool) -> OwnBlocks:
        """Return what a run begins with.

        Args:
            configs: The engines.
            specs: What arrives.
            may_return: Whether a request may reach a replica again that has not preempted it, and whose client has
                not sent it again.
        """
        caching = [each for each in configs if each.enable_prefix_caching]
        if specs.prefixes is not None or not caching or may_return:
            return cls(are_kept=True)
        lengths = specs.prompt_tokens + specs.output_tokens
        is_sent_again = any(each.retries is not None for each in specs.classes)
        may_look = is_sent_again or any(finds_itself(each, lengths) for each in caching)
        # What tiers behind the cache are given counts in a result, whoever looks for it.
        is_assumed = may_look and not any(each.kv_tiers for each in caching)
        return cls(are_kept=may_look and not is_assumed, is_assumed=is_assumed)

    @property
    def settled(self) -> OwnBlocks:
        """The same where nothing is assumed."""
        return OwnBlocks(are_kept=self.are_kept or self.is_assumed)

    def check(self, requests: RequestTable, tries: NDArray[np.int32] | None = None) -> None:
        """See whether the run may go on.

        Args:
            requests: The table.
            tries: How often each has been sent again, shape [N]; None: nobody sends again.

        Raises:
            CameAgain: It may not: it took it that nobody would.
        """
        if not self.is_assumed:
            return
        if np.frombuffer(requests.num_preemptions, dtype=np.int32).any() or (tries is not None and tries.any()):
            raise CameAgain


KEPT = OwnBlocks(are_kept=True)
"""Of whoever is not asked."""


def prefix_paths(
    config: EngineConfig, specs: RequestSpecs, as_lists: bool = True, *, own: OwnBlocks
) -> PrefixPaths | None:
    """Return what the requests have in blocks of a replica; None where nobody finds any, or where it is not cached.

    Args:
        config: The engine.
        specs: What arrives.
        as_lists: Whether it is read from Python, not from compiled code.
        own: Whether those that share nothing find what they had computed themselves before.
    """
    if not config.enable_prefix_caching or (specs.prefixes is None and not own.are_kept):
        return None
    from simserve.engine.cache_state import KVTier, PrefixPaths
    from simserve.workload.prefixes import own_prefixes

    lengths = specs.prompt_tokens + specs.output_tokens
    # A tier behind the cache ages by segment, so that finer ones are nearer to its blocks.
    prefixes = (specs.prefixes if config.kv_tiers else prefixes_of(specs)) or own_prefixes(lengths)
    store = next((KVTier(each) for each in config.kv_tiers if each.is_shared), None)
    return PrefixPaths(
        prefixes.offsets,
        prefixes.segments,
        prefixes.ends,
        config.block_size,
        as_lists,
        len(config.kv_tiers),
        store,
        session=specs.session if _takes_turns(specs) else None,
    )


def _takes_turns(specs: RequestSpecs) -> bool:
    """Return whether requests of a conversation run one after another."""
    if specs.turn is None or specs.session is None or specs.dependencies is not None:
        return False
    return bool(((np.diff(specs.session) != 0) | (np.diff(specs.turn) != 0)).all())


def prefixes_of(specs: RequestSpecs) -> PrefixSegments | None:
    """Return what the requests share, with the turns of a conversation as one segment that grows; None: nothing.

    Turns come one after another, so that whoever uses one uses, keeps and gives up all before it at the same time: for
    caches and routers the two are the same, but a request has two or three segments instead of one a turn. Requests of
    a trace may meet, and keep theirs.
    """
    prefixes = specs.prefixes
    if prefixes is None or specs.turn is None or prefixes.is_recorded or prefixes.are_chained:
        return prefixes
    return in_chains(prefixes)


def in_chains(prefixes: PrefixSegments) -> PrefixSegments:
    """Return the same with one segment for each chain of segments that nothing else follows on than the next."""
    from simserve.workload.prefixes import PrefixSegments

    segments, offsets = prefixes.segments, prefixes.offsets
    if not len(segments):
        return prefixes
    if segments.max() > _SPARSE * len(segments):
        # Of very many system prompts few are drawn.
        segments = np.unique(segments, return_inverse=True)[1].astype(np.int64)
    is_first = np.zeros(len(segments), dtype=bool)
    is_first[offsets[:-1][np.diff(offsets) > 0]] = True
    kind = np.int32 if max(len(segments), int(segments.max())) < 2**31 - 1 else np.int64
    before: NDArray[np.integer] = np.full(int(segments.max()) + 1, -1, dtype=kind)
    before[segments[1:]] = segments[:-1]
    before[segments[is_first]] = -1
    num_behind = np.bincount(before[before >= 0], minlength=len(before))
    is_next = (before >= 0) & (num_behind[before] == 1)
    heads = np.where(is_next, before, np.arange(len(before), dtype=kind))
    while True:
        further = heads[heads]
        if np.array_equal(further, heads):
            break
        heads = further
    numbers = heads[segments]
    is_last = np.ones(len(segments), dtype=bool)
    np.not_equal(numbers[1:], numbers[:-1], out=is_last[:-1])
    is_last[:-1] |= is_first[1:]
    counts = np.concatenate([np.zeros(1, dtype=kind), np.cumsum(is_last, dtype=kind)])
    return PrefixSegments(
        offsets=counts[offsets].astype(np.int64),
        segments=numbers[is_last].astype(np.int64),
        ends=prefixes.ends[is_last],
        are_chained=True,
    )
