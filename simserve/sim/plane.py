"""Optional inputs of a run, built from a scenario as the records that the rules of `simserve.engine` use.

Conversations: what is sent after which answer. What requests share, for a replica's cache to look up, and a router's
affinity, which sends a request where its beginning has probably been kept; knows no cache. Rules, which choose
pools by class and length; which regions are near, and which requests are misclassified; knows no load. Chance: random
streams of numbers, filled up ahead of use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.engine import plane_state
from simserve.engine.config import EngineConfig
from simserve.engine.conversations import Conversations, next_beginning, start_limit
from simserve.engine.numbers import as_column
from simserve.engine.plane_state import Affinity
from simserve.engine.state import INFINITY, Uniforms, column, num_left
from simserve.sim.control import API_POOL, RegionsSpec, RuleSpec
from simserve.sim.pools import PoolSetup
from simserve.workload.dependencies import Dependencies
from simserve.workload.requests import RequestSpecs

if TYPE_CHECKING:
    from simserve.engine.cache_state import PrefixPaths
    from simserve.workload.prefixes import PrefixSegments

Kinds = NDArray[np.int16]
LEAST_EXCESS = 4
"""Least excess of requests over the least loaded replica for that of a session or adapter to be passed over."""
NEVER = -1
_SPARSE = 4  # Numbers are dense enough to be used as they are if there is at least one per this many values.


class Chance:
    """A random stream of a run, and the numbers drawn from it.

    Args:
        room: Numbers that may be requested at once.
    """

    _at_once = 1024
    """Numbers drawn together; each batch is used from its end."""

    def __init__(self, specs: RequestSpecs, name: str, room: int = 2) -> None:
        self._random = rng.stream(specs.seed, name, specs.replication)
        self.uniforms = Uniforms(room + self._at_once)

    def top_up(self, least: int) -> None:
        """If fewer than ``least`` numbers are left, draw as many as there is room for, in place."""
        uniforms = self.uniforms
        left = num_left(uniforms)
        if left >= least:
            return
        values, place = np.frombuffer(uniforms.values), uniforms.place
        values[:left] = values[place[0] : place[1]]
        drawn = self._draw((len(values) - left) // self._at_once)[:, ::-1]
        values[left : left + drawn.size] = drawn.ravel()
        place[0], place[1] = 0, left + drawn.size

    def _draw(self, num_batches: int) -> NDArray[np.float64]:
        """Return the next numbers of the stream, one row per batch."""
        return self._random.random((num_batches, self._at_once))


class LognormalChance(Chance):
    """Lognormal factors with mean 1 instead.

    Args:
        cv: Their standard deviation over their mean.
        room: Factors that may be requested at once.
    """

    _at_once = 256

    def __init__(self, specs: RequestSpecs, name: str, cv: float, room: int) -> None:
        super().__init__(specs, name, room)
        self._sigma = math.sqrt(math.log(1.0 + cv**2))

    def _draw(self, num_batches: int) -> NDArray[np.float64]:
        sigma, scores = self._sigma, self._random.standard_normal((num_batches, self._at_once))
        return np.array([math.exp(sigma * score - sigma**2 / 2) for score in scores.ravel().tolist()]).reshape(
            scores.shape
        )


def conversations_of(specs: RequestSpecs, arrival_time: NDArray[np.float64]) -> Conversations:
    """Return what is sent after which answer, if anything waits for answers.

    Args:
        specs: Requests; those of a conversation are adjacent, by turn. A closed loop of single requests is one of
            conversations of one turn. In tasks, the calls without parents come first.
        arrival_time: Receives when each request was sent, shape [N].
    """
    is_first = np.ones(len(specs), dtype=bool)
    begins = np.ones(len(specs), dtype=bool)
    if specs.turn is not None:
        assert specs.session is not None
        turn = specs.turn if specs.dependencies is None else np.minimum(specs.turn, 2)
        is_first[1:] = (np.diff(specs.session) != 0) | (np.diff(turn) != 0)
        begins = turn[is_first] == 1
    edges = np.append(np.flatnonzero(is_first), len(specs))
    unanswered = np.diff(edges)
    if specs.dependencies is not None:
        tasks = np.append(np.flatnonzero(begins), len(begins))
        unanswered[begins] = np.diff(edges[tasks])
    owner = specs.loop_of_each[is_first]
    ranges = [np.flatnonzero(owner == loop) for loop in range(len(specs.client_loops))]
    return Conversations(
        group=column(np.cumsum(is_first) - 1, np.int64),
        edges=column(edges, np.int64),
        unanswered=column(unanswered, np.int64),
        begins=column(np.append(begins, True), np.int8),
        loop=column(owner, np.int8),
        next_group=column(np.array([each[0] if len(each) else 0 for each in ranges]), np.int64),
        end_group=column(np.array([each[-1] + 1 if len(each) else 0 for each in ranges]), np.int64),
        num_begun=int(np.count_nonzero(specs.loop_of_each < 0)),
        closes_at=math.inf if specs.closes_at is None else specs.closes_at,
        think_time=column(specs.think_time, np.float64),
        arrival_time=_seen(arrival_time),
        last_answer=column(np.zeros(len(begins)), np.float64),
        **({} if specs.dependencies is None else _graph_of(specs.dependencies)),
        **({} if specs.time_limit is None else _limits_of(specs.time_limit[edges[:-1]])),
    )


def _graph_of(dependencies: Dependencies) -> dict[str, Any]:
    """Return the further fields of `Conversations` for tasks."""
    edges, children = dependencies.children()
    return {
        "children": column(children, np.int64),
        "child_edges": column(edges, np.int64),
        "num_parents": column(dependencies.num_parents, np.int64),
    }


def _limits_of(time_limit: NDArray[np.float64]) -> dict[str, Any]:
    """Return the further fields of `Conversations` for tasks with time limits."""
    return {
        "time_limit": column(time_limit, np.float64),
        "deadline": column(np.full(len(time_limit), math.inf), np.float64),
    }


def _seen(values: NDArray[Any]) -> Any:
    """Return values in a form that both Python and compiled code read and write in place."""
    return memoryview(cast(bytes, values))


def first_sent(conversations: Conversations, specs: RequestSpecs) -> Iterable[int]:
    """Begin the conversations: yield the first requests, whose ``arrival_time`` says when they are sent.

    In an open loop the first turn of every conversation, at its time, or the calls of a task that wait for no other,
    each at its own; in a closed loop its clients hold one conversation after another, and begin at 0 or over the
    ramp-up.
    """
    edges = conversations.edges
    of_request = np.asarray(conversations.group)
    is_open = (np.asarray(conversations.begins)[of_request] == 1) & (np.asarray(conversations.loop)[of_request] < 0)
    if is_open.any():
        indices = np.flatnonzero(is_open)
        sent_at = np.asarray(conversations.arrival_time)
        if not conversations.is_graph:
            sent_at[indices] = sent_at[np.asarray(edges)[np.asarray(conversations.group)[indices]]]
        if conversations.has_limits:
            _start_limits(conversations, indices)
        yield from indices.tolist()
    for number, clients in enumerate(specs.client_loops):
        for client in range(clients.concurrency):
            sent = clients.begins_at(client)
            group = next_beginning(conversations, number, sent, thinks=False)
            if group < 0:
                continue
            for index in range(edges[group], edges[group + 1]):
                conversations.arrival_time[index] = sent
                yield index
            if conversations.has_limits:
                start_limit(conversations, group)


def _start_limits(conversations: Conversations, indices: NDArray[np.intp]) -> None:
    """Set the deadlines of tasks that begin with these calls at times of their own; none is sent later."""
    group, sent_at = np.asarray(conversations.group)[indices], np.asarray(conversations.arrival_time)
    for each in np.unique(group).tolist():
        start_limit(conversations, each)
    deadline = np.asarray(conversations.deadline)[group]
    sent_at[indices] = np.minimum(sent_at[indices], deadline)


def prefix_paths(config: EngineConfig, specs: RequestSpecs, as_lists: bool = True) -> PrefixPaths:
    """Return what the requests have in blocks of a replica that caches them.

    Args:
        as_lists: Whether it is read from Python rather than from compiled code.
    """
    from simserve.engine.cache_state import KVTier, PrefixPaths
    from simserve.workload.prefixes import own_prefixes

    lengths = specs.prompt_tokens + specs.output_tokens
    # A tier behind the cache ages by segment, so finer segments come closer to its blocks.
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
        num_ahead=int(config.hashes_next_token),
    )


def _takes_turns(specs: RequestSpecs) -> bool:
    """Return whether requests of a conversation run one after another."""
    if specs.turn is None or specs.session is None or specs.dependencies is not None:
        return False
    return bool(((np.diff(specs.session) != 0) | (np.diff(specs.turn) != 0)).all())


def prefixes_of(specs: RequestSpecs) -> PrefixSegments | None:
    """Return what the requests share, with the turns of a conversation as one growing segment; None: nothing.

    Turns come one after another, so one that is used, kept or given up takes all before it along: for caches and
    routers both forms are the same, but a request has two or three segments instead of one per turn. Requests of a
    trace, of one turn and of a task may overlap, and keep theirs: of two that compute the same turn at once, one leaves
    it earlier than what is before it.
    """
    prefixes = specs.prefixes
    if prefixes is None or prefixes.is_recorded or prefixes.are_chained or not _takes_turns(specs):
        return prefixes
    return in_chains(prefixes)


def in_chains(prefixes: PrefixSegments) -> PrefixSegments:
    """Return the same with one segment for each chain of segments without branches."""
    from simserve.workload.prefixes import PrefixSegments

    segments, offsets = prefixes.segments, prefixes.offsets
    if not len(segments):
        return prefixes
    if segments.max() > _SPARSE * len(segments):
        # Few of a very large number of system prompts are drawn.
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


def session_affinity(sessions: Sequence[int] | NDArray[np.int64], as_lists: bool = True) -> Affinity:
    """Return an affinity that sends every request of a session where the one before it went.

    How long the kept part is, is unknown: it counts as `LEAST_EXCESS`.

    Args:
        sessions: Session of each request; negative: none.
        as_lists: Whether it is read from Python rather than from compiled code.
    """
    numbers = np.asarray(sessions, dtype=np.int64)
    has_session = numbers >= 0
    offsets = np.concatenate([[0], np.cumsum(has_session)])
    keys = numbers[has_session]
    return _affinity(offsets, keys, np.full(len(keys), LEAST_EXCESS), np.zeros(len(numbers)), as_lists)


def prefix_affinity(
    offsets: Sequence[int] | NDArray[np.int64],
    segments: Sequence[int] | NDArray[np.int64],
    ends: Sequence[int] | NDArray[np.int64],
    least: Sequence[float] | NDArray[np.floating],
    as_lists: bool = True,
) -> Affinity:
    """Return an affinity that sends a request where the longest part of its beginning was served last.

    Equal segment numbers mean equal tokens from the first one on, so one number stands for the whole path to it. A
    known part is worth the tokens that need not be computed. Too short a part is not worth a detour: a system prompt
    common to all requests would send all of them to one replica.

    Args:
        offsets: Request i has the entries ``offsets[i] .. offsets[i + 1] - 1``.
        segments: Number of each segment, in order within a request.
        ends: Token of the request before which it ends.
        least: Fewest tokens of each request that a replica must know.
        as_lists: Whether it is read from Python rather than from compiled code.
    """
    return _affinity(np.asarray(offsets), np.asarray(segments), np.asarray(ends), np.asarray(least), as_lists)


def _affinity(
    offsets: NDArray[np.int64],
    numbers: NDArray[np.int64],
    ends: NDArray[np.int64],
    least: NDArray[np.floating],
    as_lists: bool,
) -> Affinity:
    keys, num_keys = dense(numbers)
    starts, values, worth = (as_column(each, as_lists) for each in (offsets, keys, ends))
    return Affinity(starts, values, worth, as_column(least.astype(np.float64), as_lists), num_keys)


def dense(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return numbers from 0 up that are equal where ``numbers`` are, and the largest plus one."""
    if not len(numbers):
        return numbers, 0
    if numbers.min() >= 0 and numbers.max() < _SPARSE * len(numbers):
        return numbers, int(numbers.max()) + 1
    distinct, inverse = np.unique(numbers, return_inverse=True)
    return inverse.astype(np.int64), len(distinct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Where every request may go."""

    allowed: tuple[tuple[int, ...], ...]
    """Indices of the pools that take requests, by kind of request; empty: the API does."""
    kinds: Kinds  # Kind of each request, shape [N].
    second: Kinds  # Kind that a request becomes if its first answer is not good enough; -1: it is. Shape [N].
    asks_twice: bool  # Whether any rule misclassifies.

    def for_limits(self) -> tuple[tuple[tuple[int, ...], ...], Kinds]:
        """Return all pools that may serve a request, by kind, and those kinds: their length limits apply to it."""
        pairs, numbers = np.unique(np.stack([self.kinds, self.second]), axis=1, return_inverse=True)
        both = [
            tuple(sorted({*self.allowed[first], *(self.allowed[second] if second != NEVER else ())}))
            for first, second in pairs.T.tolist()
        ]
        return tuple(both), numbers.reshape(-1).astype(np.int16)


def rules_of(
    rules: Sequence[RuleSpec], allowed: Sequence[Sequence[int]], pools: Sequence[str], specs: RequestSpecs
) -> Rules | None:
    """Return where requests go under the rules of a router; None without rules.

    Args:
        rules: In order; the first that matches decides.
        allowed: Indices of pools by class; empty: all, for all. A class that is bound to a pool follows a rule only if
            the rule names it.
    """
    if not rules:
        return None
    count = len(specs)
    everywhere = tuple(range(len(pools)))
    by_class = [tuple(each) for each in allowed] or [everywhere] * max(len(specs.classes), 1)
    own = np.zeros(count, dtype=np.int16) if specs.request_class is None else specs.request_class
    known = list(by_class)
    kinds, second = own.astype(np.int16), np.full(count, NEVER, dtype=np.int16)
    uniforms = rng.stream(specs.seed, "misclassified", specs.replication).random(count)
    is_open = np.ones(count, dtype=bool)
    for rule in rules:
        fits = is_open & _fits(rule, specs, own, by_class, everywhere)
        is_open &= ~fits
        known.append(_places(rule.pool, pools))
        kinds[fits] = len(known) - 1
        if rule.misclassified is not None and rule.retry_pool is not None:
            known.append(_places(rule.retry_pool, pools))
            second[fits & (uniforms < rule.misclassified)] = len(known) - 1
    asks_twice = any(rule.misclassified is not None for rule in rules)
    return Rules(allowed=tuple(known), kinds=kinds, second=second, asks_twice=asks_twice)


def _places(name: str, pools: Sequence[str]) -> tuple[int, ...]:
    return () if name == API_POOL else (pools.index(name),)


def _fits(
    rule: RuleSpec, specs: RequestSpecs, own: Kinds, by_class: Sequence[tuple[int, ...]], everywhere: tuple[int, ...]
) -> NDArray[np.bool_]:
    """Return which requests a rule applies to."""
    fits = np.ones(len(specs), dtype=bool)
    if rule.min_prompt_tokens is not None:
        fits &= specs.prompt_tokens >= rule.min_prompt_tokens
    if rule.max_prompt_tokens is not None:
        fits &= specs.prompt_tokens <= rule.max_prompt_tokens
    names = [each.name for each in specs.classes]
    if rule.classes is not None:
        return fits & np.isin(own, [names.index(name) for name in rule.classes])
    bound = [number for number, each in enumerate(by_class) if each != everywhere]
    return fits & ~np.isin(own, bound)


class Regions:
    """The regions of a run.

    Args:
        spec: Where clients are, and how far apart regions are; covers all regions named.
        pools: All pools of the run, each with its region.
        specs: What arrives, for its seed and its classes.

    Attributes:
        names: The regions that clients are in.
        home: Index into ``names`` for each request, shape [N].
    """

    def __init__(self, spec: RegionsSpec, pools: Sequence[PoolSetup], specs: RequestSpecs) -> None:
        own = [each.region for each in specs.classes if each.region is not None]
        self.names = tuple(dict.fromkeys([*spec.clients, *own]))
        self.home = _homes(spec, self.names, specs)
        self._pools, self._spill_above = pools, spec.spill_above
        self._has_thinking = specs.thinking_tokens is not None
        self._places = places = list(dict.fromkeys(pool.region for pool in pools))
        self._seconds = [{place: spec.one_way(name, place) or 0.0 for place in places} for name in self.names]
        self._nearest = [sorted(places, key=seconds.__getitem__) for seconds in self._seconds]

    def on_plane(self, members: Sequence[Sequence[int]], *, is_streamed: bool) -> plane_state.Regions:
        """Return the regions in the plane's form.

        Args:
            is_streamed: Whether tokens travel one by one.
        """
        places, pools = self._places, self._pools
        place_of_pool = [places.index(each.region) for each in pools]
        return plane_state.Regions(
            home=column(self.home, np.int32),
            num_places=len(places),
            nearest=[places.index(place) for own in self._nearest for place in own],
            seconds=[own[place] for own in self._seconds for place in places],
            place_of_pool=[place for each, place in zip(pools, place_of_pool, strict=True) if each.role != "decode"],
            place_of=[place for place, numbers in zip(place_of_pool, members, strict=True) for _ in numbers],
            spill_above=INFINITY if self._spill_above is None else self._spill_above,
            is_streamed=is_streamed,
            has_thinking=self._has_thinking,
        )


def _homes(spec: RegionsSpec, names: tuple[str, ...], specs: RequestSpecs) -> NDArray[np.int16]:
    """Return the region of every client: its class's, or drawn by the shares."""
    count = len(specs)
    homes = np.zeros(count, dtype=np.int16)
    if spec.clients:
        generator = rng.stream(specs.seed, "regions", specs.replication)
        edges = np.cumsum(list(spec.clients.values()))[:-1]
        homes = np.searchsorted(edges, generator.random(count), side="right").astype(np.int16)
    if specs.request_class is not None:
        for number, each in enumerate(specs.classes):
            if each.region is not None:
                homes[specs.request_class == number] = names.index(each.region)
    return homes
