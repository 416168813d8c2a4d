"""The records of what a replica caches: prefix blocks, SGLang's radix tree, tiers behind the GPU, LoRA adapters.

Nothing here decides: the rules are in `prefix_cache`, `radix_tree`, `kv_tier` and `loras`, over these columns.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import MutableSequence, Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import EngineConfig, KVTierConfig
from simserve.engine.numbers import as_column
from simserve.engine.slots import slotted

_SPARSE = 4
"""Segment numbers are compacted if fewer than one in this many is used."""
_SPAN = 16
"""Places of a segment whose windows are in one chain: those of decoded blocks are given back, and wait, one by one."""


@slotted
class PrefixPaths:
    """The tokens of every request, in blocks; row i of the table is request i.

    Attributes:
        block_size: Tokens per block.
        starts: Request i has the entries ``starts[i] .. starts[i + 1] - 1`` of the two lists.
        segments: Number of each segment.
        is_shared: 1 if another request, which may run at the same time, has that segment too.
        ends: Blocks of the request up to the end of the segment: a block belongs to the segment of its last token.
        pinned_until: While it runs: one past the last entry whose segment the request uses.
        shared_blocks: While it runs: its leading blocks that are in the cache.
        is_private: While it runs: 1 if the cache already holds its next block, from another request.
        cached_tokens: Tokens found in the cache, or loaded from behind it, when the request was first admitted.
        num_levels: Tiers behind the cache, including a store that replicas share.
        loaded_tokens: Cached tokens that came from each of them, ``num_levels`` entries per request.
        store: The store that all replicas share; None: there is none.
        promised_blocks: Leading blocks of the request that the store had when it came to its replica.
        next_state: With states in the cache: the block behind which the chunk being planned leaves a state that is
            kept; 0: none.
        junctions: Likewise: the blocks that a request found when it was looked up last, if it found fewer states; or 0.
        blocks_held: Likewise: the blocks with its tokens.
        tables: Likewise: what it has, as `PrefixCache` lists it; 0: nothing.
        tokens_under_way: Likewise: its tokens in the last step, if that computed a chunk of its prompt.
    """

    def __init__(
        self,
        offsets: NDArray[np.int64],
        segments: NDArray[np.int64],
        ends: NDArray[np.int64],
        block_size: int,
        as_lists: bool = True,
        num_levels: int = 0,
        store: KVTier | None = None,
        session: NDArray[np.int64] | None = None,
        num_ahead: int = 0,
    ) -> None:
        """Lay out the paths in blocks; segments that contain no end of a block are dropped.

        Args:
            offsets: Request i has the entries ``offsets[i] .. offsets[i + 1] - 1``, shape [N + 1].
            segments: Number of each segment.
            ends: Token of the request at which each ends, ascending within a request.
            block_size: Tokens per block.
            as_lists: Whether they are read from Python, which is fastest with lists.
            num_levels: Tiers behind the cache.
            store: The last of them, if replicas share it.
            session: For each request the conversation whose turns run one after another, shape [N]; None: any two
                requests may run at the same time.
            num_ahead: Tokens behind a block that belong to what it is found by (`EngineConfig.hashes_next_token`).
        """
        blocks = np.maximum(ends - num_ahead, 0) // block_size
        before = np.concatenate([[0], blocks[:-1]])
        firsts = offsets[:-1][np.diff(offsets) > 0]
        before[firsts] = 0
        is_kept = blocks > before
        num_requests = len(offsets) - 1
        starts = np.concatenate([[0], np.cumsum(is_kept)])[offsets]
        self.block_size = block_size
        self.starts: Sequence[int] = as_column(starts, as_lists)
        self.segments: Sequence[int] = as_column(segments[is_kept], as_lists)
        owner = np.arange(int(starts[-1])) if session is None else np.repeat(session, np.diff(starts))
        self.is_shared: Sequence[int] = as_column(_meet(segments[is_kept], owner).astype(np.int64), as_lists)
        self.ends: Sequence[int] = as_column(blocks[is_kept], as_lists)
        # Few entries differ at any time from the initial starts and zeros, objects that a list of them shares.
        self.pinned_until: MutableSequence[int]
        self.shared_blocks: MutableSequence[int]
        self.is_private: MutableSequence[int]
        if as_lists:
            self.pinned_until = list(self.starts[:-1])
            self.shared_blocks, self.is_private = [0] * num_requests, [0] * num_requests
        else:
            self.pinned_until = array("q", starts[:-1].astype(np.int64).tobytes())
            self.shared_blocks, self.is_private = array("q", bytes(8 * num_requests)), bytearray(num_requests)
        self.cached_tokens = array("q", bytes(8 * num_requests))
        self.next_state, self.junctions = (array("q", bytes(8 * num_requests)) for _ in range(2))
        self.tables = array("q", bytes(8 * num_requests))
        self.blocks_held, self.tokens_under_way = (array("q", bytes(8 * num_requests)) for _ in range(2))
        self.passed_blocks, self.last_reused = (array("q", bytes(8 * num_requests)) for _ in range(2))
        self.last_extended = array("q", bytes(8 * num_requests))
        self.num_levels, self.store = num_levels, store
        self.loaded_tokens = array("q", bytes(8 * num_requests * num_levels))
        self.promised_blocks = array("q", bytes(8 * num_requests if store is not None else 0))

    def forget(self, index: int) -> None:
        """Let a request use nothing: the replica that held its blocks is gone."""
        self.pinned_until[index] = self.starts[index]
        self.shared_blocks[index] = self.is_private[index] = self.blocks_held[index] = self.tables[index] = 0


def _meet(segments: NDArray[np.int64], owner: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each entry whether its segment, which is not negative, has several owners, shape [E]."""
    if segments.max(initial=0) > _SPARSE * len(segments):
        segments = np.unique(segments, return_inverse=True)[1]
    last = np.zeros(int(segments.max(initial=-1)) + 1, dtype=np.int64)
    last[segments] = owner
    return (np.bincount(segments, weights=last[segments] != owner) > 0)[segments]


@slotted
class PrefixCache:
    """The cached blocks of one replica.

    Segments with any blocks here have a slot, from 1 on; the lists are indexed by slot. Slot 0 stands for all others.

    Attributes:
        paths: What the requests share.
        slots: Segment -> its slot.
        segments: The segment in each slot.
        held: Its leading blocks in the cache.
        used: How many of those are used by a running request.
        users: How many requests use all of those.
        num_others: How many use fewer.
        reaches: Slot -> blocks that each of those uses; absent: there have been none.
        free_slots: Slots of segments that are gone.
        decoders: Segment that others have too -> the request that decodes it, plus one.
        num_decoders: Entries of that.
        contested: Requests that decode what another decodes too, or what the cache holds more of than they have: as
            each block fills it is decided which came first, so no leap passes that point (`settle_decoders`). Of the
            latter not those that already came second, whose copies are found once the cache holds no more.
        evicts_by_block, ages_empty: As in `EngineConfig`; the latter is ``ages_empty_blocks``.
        idle: Stretches of blocks without users, numbered from 1, the least recently given up first.
        shallowest: For each slot the stretch next to the blocks in use; 0: it has none.
        stretch_slot: Stretch -> its slot; 0: blocks that hold nothing to share; below 0: a state.
        stretch_start: Stretch -> the first of its blocks within the segment, which reaches to the next stretch or to
            the end of what is held; for slot 0, how many blocks it has.
        above, below: Stretch -> the previous and the next one in its segment; 0: none.
        free_stretches: Stretches that are gone.
        num_idle: Blocks of segments without users. They count as free, since they can be evicted.
        num_empty: Blocks in ``idle`` that hold nothing to share, or a copy of another block.
        num_fresh: Blocks before all of those that have never held anything.
        num_duplicates: Blocks of running requests, counted once for each of them, minus the number of distinct blocks.
        has_states: Whether prefixes are found only where a state is cached (`simserve.engine.state_cache`).
        state_weight: Blocks of the pool that a state takes.
        keeps_every_state: As in `EngineConfig`.
        has_windows: Whether those are windows, of which a request has a block at each place.
        keeps_any: Whether anything is cached.
        reach, most_admitted: As in `EngineConfig`.
        num_needed: How many blocks before the end of a prefix hold that.
        width: Groups of layers: those that see every token are group 0, those with states or windows follow.
        span: Places of a segment whose windows or states are in one chain; blocks of tokens are in one altogether.
        chains: Key of a segment, group and span of places -> the first cached run of blocks, numbered from 1, in the
            order in which they were cached (`simserve.engine.block_runs`). With states, runs take the place of
            stretches, and nothing from ``slots`` to ``stretch_start`` and of ``num_idle`` is used; ``num_empty`` counts
            blocks that hold nothing to share and are given out first.
        run_keys: Run -> that key; 0: nobody could find it.
        run_starts, run_ends: Run -> how many blocks of its group are before it in a request, and up to its end.
        run_users: Run -> how many running requests use all of its blocks; nobody uses only some.
        run_rests: Run -> the run that was cut off its beginning last.
        older, newer: Run -> the ones before and after it in its chain; before the first one is the last.
        earlier, later: Run without users -> those that are given out before and after it, from its last block to its
            first; 0 joins the two ends.
        free_runs: Runs that are gone.
        columns: Table of a request and group -> the last piece of what the request has; a table has ``width`` of them.
        free_tables: Tables that are gone.
        piece_runs: Piece -> the run that it ends with, which others may use; it goes on with ``run_rests``. 0: blocks
            that are not cached; -1: cached ones that only this request could find.
        piece_starts, piece_ends: Piece -> how many blocks are before it, and up to its end.
        piece_below: Piece -> the one before it; 0: none.
        free_pieces: Pieces that are gone.
        fresh_states: Keys of the states that the step being planned computes.
        found_runs, found_starts, found_ends: What the last request to be looked up found: group after group the runs,
            and from and up to which block.
        is_under_way: Whether the tokens of the last step are not known yet.
        tree: The tree that holds shared prefixes (`simserve.engine.radix_tree`), which leaves everything from ``slots``
            to ``num_fresh`` except ``num_idle`` unused; None: there is none.
        tiers: Where evicted blocks go, the nearest first (`simserve.engine.kv_tier`).
        num_tiers: Number of tiers.
        has_tiers: Whether there are any, or a store that replicas share (``paths.store``).
        has_choice: Whether any of them lets the request choose what it loads.
        token_seconds: Time to compute a token of a prompt, without attention.
        pair_seconds: Time that each query-key pair adds to that.
        num_loading: Blocks that the step being planned loads from the store.
        loading_seconds: Time that it takes for them.
    """

    def __init__(
        self,
        paths: PrefixPaths,
        config: EngineConfig,
        tiers: Sequence[KVTier] = (),
        token_seconds: float = 0.0,
        pair_seconds: float = 0.0,
    ) -> None:
        self.paths = paths
        self.tiers, self.num_tiers = tiers, len(tiers)
        self.has_tiers = bool(tiers) or paths.store is not None
        self.has_choice = any(each.has_choice for each in (*tiers, paths.store) if each is not None)
        self.token_seconds, self.pair_seconds = token_seconds, pair_seconds
        self.num_loading, self.loading_seconds = 0, 0.0
        self.evicts_by_block = config.evicts_by_block
        self.ages_empty = config.evicts_by_block and config.ages_empty_blocks
        self.ages_empty = self.ages_empty and not (config.has_radix_tree or config.has_suspension)
        self.tree = RadixTree(config) if config.has_radix_tree else None
        self.slots: dict[int, int] = {}
        self.segments = [-1]
        self.held = [0]
        self.used = [0]
        self.users = [0]
        self.num_others = [0]
        self.reaches: dict[int, list[int]] = {}
        self.free_slots: list[int] = []
        self.decoders: dict[int, int] = {}
        self.num_decoders = 0
        self.contested: list[int] = []
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.shallowest = [0]
        self.stretch_slot, self.stretch_start = [0], [0]
        self.above, self.below = [0], [0]
        self.free_stretches: list[int] = []
        self.num_idle = self.num_empty = 0
        self.num_fresh = config.num_blocks if self.ages_empty or config.has_state_cache else 0
        self.num_duplicates = 0
        self.has_states, self.state_weight = config.has_state_cache, config.state_groups
        self.num_ahead, self.num_drafts = config.num_slots_ahead, config.num_draft_states
        self.drops_last, self.num_hidden = config.drops_last_block, int(config.hashes_next_token)
        self.leaves_results, self.max_model_len = config.leaves_results, config.max_model_len
        self.looks_further, self.num_reused = config.drops_last_block and config.aligns_plainly, 0
        self.keeps_every_state, self.is_under_way = config.keeps_every_state, False
        self.has_windows, self.keeps_any, self.reach = (
            config.numbers_blocks,
            config.enable_prefix_caching,
            config.reach,
        )
        self.most_admitted = config.most_admitted
        self.num_needed = max(-(-config.reach // config.block_size), 1)
        self.width, self.span = config.state_groups + 1, _SPAN if config.numbers_blocks else 1
        self.chains: dict[int, int] = {}
        self.run_keys, self.run_starts, self.run_ends, self.run_users, self.run_rests = [0], [0], [0], [0], [0]
        self.older, self.newer, self.earlier, self.later = [0], [0], [0], [0]
        self.piece_runs, self.piece_starts, self.piece_ends, self.piece_below = [0], [0], [0], [0]
        self.columns = [0] * self.width
        self.free_runs: list[int] = []
        self.free_pieces: list[int] = []
        self.free_tables: list[int] = []
        self.fresh_states: list[int] = []
        self.found_runs: list[int] = []
        self.found_starts: list[int] = []
        self.found_ends: list[int] = []


@slotted
class RadixTree:
    """The nodes of a replica's cache, from 1 on; 0 is the root, which holds nothing.

    Attributes:
        entries: Node -> the entry of `simserve.engine.cache_state.PrefixPaths` that its first block belongs to, of some
            request that has the node.
        offsets: Node -> how far within that entry's segment the node begins, blocks.
        starts, ends: Node -> its first block, and the one after its last, counted from the beginning of a request; a
            node that is gone ends at 0.
        parents: Node -> its parent.
        users: Node -> how many running requests use it.
        free_nodes: Nodes that are gone.
        children: First block of a node -> the node.
        nodes: Running request -> the last node that it uses; absent: the root.
        idle: Nodes without users, the least recently used first. A node comes after its descendants.
        found: The node at which the last look-up or addition ended.
        num_looks: Looks at a queue that is not empty, if they are counted.
        num_states: States of the engine's pool; 0: a prefix is found without a state at its end.
        num_free_states: Those that neither a request nor a node has.
        state_grid: Tokens between the places of a prompt whose state a chunk can leave; 0: it leaves that at its end.
        states: Node -> 1 if the state at its end is kept.
        state_users: Node -> how many running requests go on from it.
        state_times: Node -> when its state was found or kept last.
        stateful: Nodes with a state.
        keeps_bare_leaves: As in `simserve.engine.config.EngineConfig`.
        num_children: Node -> how many nodes follow it, if the engine has states.
        times: Node -> when it was used last.
        clock: Times that a node was used, or a state was found or kept.
        begun: Running request -> its tokens before the chunk under way.
        answering: Running request -> tokens of its prompt, once that is computed.
        junction: Tokens that the tree holds for the last look-up beyond the state that it found; 0: no more.
        junctions: Running request -> the same; absent: no more.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.num_states = self.num_free_states = config.tree_states
        self.state_grid, self.keeps_bare_leaves = config.state_grid, config.keeps_bare_leaves
        self.states, self.state_users, self.state_times, self.num_children, self.times = [0], [0], [0], [0], [0]
        self.stateful: list[int] = []
        self.clock = self.junction = 0
        self.begun: dict[int, int] = {}
        self.answering: dict[int, int] = {}
        self.junctions: dict[int, int] = {}
        self.entries, self.offsets, self.starts, self.ends = [0], [0], [0], [0]
        self.parents, self.users = [0], [0]
        self.free_nodes: list[int] = []
        self.children: dict[int, int] = {}
        self.nodes: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.found = self.num_looks = 0


@slotted
class KVTier:
    """One tier of a replica, or the store that all replicas share.

    Segments with any blocks here have a slot, from 1 on; the lists are indexed by slot. Slot 0 stands for all others.

    Attributes:
        num_blocks: KV blocks that it can hold.
        block_seconds: Seconds that a replica takes to load one.
        latency: Additional seconds of a step with loads.
        store_block_seconds: Seconds for which a block occupies the bandwidth that replicas share; 0: none is shared.
        has_choice: Whether a block is loaded only if that is faster than computing it.
        overlaps: Whether loads run beside the step.
        free_at: When everything that replicas have requested of a store is loaded, seconds.
        slots: Segment -> its slot.
        segments: The segment in each slot.
        held: Its blocks here.
        free_slots: Slots of segments that are gone.
        order: Slots in use; the least recently added first.
        num_stored: Blocks here.
        loading_seconds: Load time of the step being planned; for a store, the replica's cache has it.
        num_loaded: Blocks loaded so far.
        num_written: Blocks written here so far.
        num_declined: Blocks found here so far but computed, as that was faster.
        peak: Most blocks here at any time.
        load_seconds: Seconds that steps have waited for loads so far.
    """

    def __init__(self, config: KVTierConfig) -> None:
        self.num_blocks, self.block_seconds, self.latency = config.num_blocks, config.block_seconds, config.latency
        self.store_block_seconds = config.store_block_seconds
        self.has_choice, self.overlaps = config.has_choice, config.overlaps
        self.slots: dict[int, int] = {}
        self.segments, self.held = [-1], [0]
        self.free_slots: list[int] = []
        self.order: OrderedDict[int, None] = OrderedDict()
        self.num_stored = self.num_loaded = self.num_written = self.num_declined = self.peak = 0
        self.loading_seconds = self.load_seconds = self.free_at = 0.0


@slotted
class Loras:
    """The adapters of one replica.

    Args:
        config: Slots, host memory and seconds of a load.
        adapters: Adapter of every request, from 0; -1: none.

    Attributes:
        places: Where each adapter is.
        users: Requests of each that are in the batch.
        waiting: Requests of each that wait.
        idle: Adapters on the GPU without users, plus 1; the one whose last user left first comes first.
        in_host: Adapters only in host memory, plus 1; the one that left the GPU first comes first.
        num_active: Adapters with users.
        num_on_gpu: Slots taken.
        num_in_host: Adapters in ``in_host``.
        num_decoding: Decoding requests with an adapter.
        num_eligible: Requests that wait for no adapter: those without one, and those whose adapter is in the batch.
        skipped: Requests passed over while a step was scheduled; empty between two steps.
        marks, mark: Adapters that a count has already met, by the number of the count.
        loading_seconds: Time that the step being planned waits for its adapters.
        num_asked: Admissions of requests with an adapter so far.
        num_hits: Those that found it on the GPU.
        num_swaps: Adapters loaded into a slot so far.
        num_disk_loads: Those that came from disk.
        load_seconds: Seconds that steps have waited for them.
    """

    def __init__(self, config: EngineConfig, adapters: Sequence[int]) -> None:
        self.adapters = adapters
        self.max_loras, self.max_cpu_loras = config.max_loras, config.max_cpu_loras
        count = int(np.asarray(adapters).max(initial=-1)) + 1
        self.places, self.marks = [ON_DISK] * count, [0] * count
        self.users, self.waiting, self.num_eligible = [0] * count, [0] * count, 0
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.in_host: OrderedDict[int, None] = OrderedDict()
        self.num_active = self.num_on_gpu = self.num_in_host = self.num_decoding = self.mark = 0
        self.skipped: list[int] = []
        self.num_asked = self.num_hits = self.num_swaps = self.num_disk_loads = 0
        self.loading_seconds = self.load_seconds = 0.0


ON_DISK, IN_HOST, ON_GPU = range(3)
"""Where an adapter is: the fastest place that holds it."""
