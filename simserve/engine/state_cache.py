"""Blocks one by one, beside states of linear attention and Mamba, or windows: what is kept, and where chunks end.

A prompt can go on behind a cached prefix only where its states are cached too. vLLM (``mamba_cache_mode: align``) keeps
a layer's state where a chunk of a prompt ends with a full block, so that chunks end there: the last one begins with the
prompt's last block. From 0.29 on it keeps only those behind which another prompt can go on: at the last full block of a
prompt that leaves a token to compute, and where a request has found a longer prefix than its states
(``_mamba_block_aligned_split`` of v1/core/sched/scheduler.py, ``reachable_block_mask`` of
v1/core/single_type_kv_cache_manager.py). Kernels that can write a state amid a chunk spare the last cut.

Where ranks divide the tokens of a block among them (decode context parallelism), chunks end at the blocks of one rank
(``cache_config.block_size``), of which a block of tokens spans several. Requests find prefixes in whole blocks of
tokens; up to 0.28 a state elsewhere is found by nobody, later ones stand for the block before them.

A state takes a block of every group of layers that keep states. Up to 0.28, those at the ends of blocks that are
decoded are kept too. In the step that computes a state no other request can go on behind it.

Blocks are counted in runs (`simserve.engine.block_runs`), with the outcome of counting each alone. Those that are
computed once more are kept beside the copies that there are, and the oldest copy is found. When a request is looked at
(`simserve.engine.seats`), it gives back the states behind which its known tokens go on, and takes what it opens at once
(``allocate_slots``, ``MambaManager`` and ``BlockPool`` of vLLM). Blocks that hold nothing to share are given out first,
or in their turn among the cached ones (`EngineConfig.ages_empty_blocks`).

Layers with a window (`EngineConfig.window_tokens`) have a block for each place in the window of a request, as a state
has one for the last place: both are called a state here. A request gives back those before its window when it is looked
at, and chunks end anywhere. Of a cached prefix it needs the last window. Up to 0.28 all full blocks of a window are
kept, later ones only those of the last window before the end of a prompt and before where a request has found more
blocks than windows (``SlidingWindowManager``). Blocks are counted like this without a prefix cache too. Drafts of a
layer beside attention alone are the case without any group of windows (`EngineConfig.numbers_blocks`).

Drafts of a layer of the model's own (EAGLE, MTP) take slots for the next ones too (``num_lookahead_tokens``), and in
each group of layers a state for each draft, which nobody finds (``num_speculative_blocks``). Up to 0.32 the last block
that is found is computed again; 0.33 tells blocks by the token behind them (``num_hash_lookahead_tokens``).

Not modelled: slots for drafts of a step under way that will not hold, where steps are scheduled ahead; 0.24 and 0.25
also end the first chunk where a request has found more blocks than states.
"""

from __future__ import annotations

from simserve.engine.block_runs import (
    OPEN,
    add_open,
    add_state,
    cut_piece,
    drop_pieces,
    drop_unseen,
    find_run,
    keep_open,
    keep_piece,
    key_of,
    new_table,
    reach_down,
    take,
    use_run,
)
from simserve.engine.cache_state import PrefixCache
from simserve.engine.progress import GRID
from simserve.engine.state import BLOCKED_BY_SEATS, UNFINISHED, Replica, RequestTable, sum_around
from simserve.errors import InvariantError

_NOT_YET = 1 << 40
"""Blocks that nobody finds: a state that is being computed."""


def to_state(replica: Replica, requests: RequestTable, index: int, remaining: int, chunk: int) -> int:
    """Return a chunk of a prompt that has ``remaining`` tokens left, cut where a state is to be kept."""
    config, cache, wide = replica.config, replica.cache, replica.block_size
    block_size = config.state_block_size if config.state_block_size else wide
    prompt = requests.prompt_tokens[index]
    known = prompt + requests.generated_tokens[index]
    start = known - remaining
    junction = 0
    replica.exported_states = 0
    if cache is not None:
        if cache.has_windows or not cache.keeps_any:
            return chunk
        cache.paths.next_state[index] = 0
        junction = cache.paths.junctions[index] * wide
    # A preempted request computes all but its last token again as a prompt.
    prefill_end = max(prompt, known - 1)
    if start >= prefill_end:
        return chunk
    end = start + chunk
    drops = int(config.drops_last_block)
    kept = ((prompt - 1) // block_size - drops) * block_size
    extended = (prompt // block_size - 1) * block_size if drops else kept
    last = (known if config.keeps_last_state else known - 1) // block_size * block_size
    if config.drops_last_block:
        last = max(known // block_size - 1, 0) * block_size
    if _exports(replica, start, end, prefill_end, prefill_end):
        last = 0
    if config.aligns_plainly:
        junction = 0
        if end < last and block_size <= config.max_chunk_tokens:
            end = start + chunk // block_size * block_size
    elif end < prefill_end:
        aligned = end // block_size * block_size
        if aligned > start or block_size <= config.max_chunk_tokens:
            end = aligned
    stop = end
    boundary = (start // block_size + 1) * block_size
    if start % block_size and boundary < stop and not config.aligns_plainly:
        stop = boundary
    if start < last < stop:
        stop = last
    if start < junction < end and start < start + (junction - start) // block_size * block_size < stop:
        stop = start + (junction - start) // block_size * block_size
    # A chunk that is cut in spite of it may still end with the prompt, and write one before its last block.
    replica.exported_states = int(_exports(replica, start, stop, prefill_end, stop))
    place = stop
    for _ in range(1 + replica.exported_states):
        is_kept = place in (kept, extended, junction)
        if config.keeps_every_state:
            is_kept = place % wide == 0
        if cache is not None and is_kept and not cache.paths.next_state[index]:
            cache.paths.next_state[index] = place // wide
        place = (stop - 1) // block_size * block_size
    return stop - start


def _exports(replica: Replica, start: int, end: int, prefill_end: int, last: int) -> bool:
    """Return whether a chunk that ends a prompt writes a state amid it: where the last block before ``last`` ends."""
    config = replica.config
    size = config.state_block_size if config.state_block_size else replica.block_size
    if not (config.exports_states and config.enable_prefix_caching) or end < prefill_end or start % size:
        return False
    return start + size <= (last - 1) // size * size and -(-end // size) - 2 > (start - 1) // size


def find_state(cache: PrefixCache, index: int, tokens: int) -> tuple[int, int]:
    """Look up a request that has ``tokens`` to compute, as `find_prefix` does: up to its last cached state or window.

    Notes where the request will keep a state if it finds more blocks than states.
    """
    paths = cache.paths
    limit = (tokens - 1) // paths.block_size
    first, found = paths.starts[index], 0
    entry, until = first, paths.starts[index + 1]
    cache.found_runs.clear()
    cache.found_starts.clear()
    cache.found_ends.clear()
    while entry < until and found < limit:
        end = min(paths.ends[entry], limit)
        found = _note_found(cache, paths.segments[entry], 0, found, end)
        if found < end:
            break
        entry += 1
    # The last place that has all that it needs before it, or as much as there are blocks.
    entry, place, num_needed = min(entry, until - 1), found, cache.num_needed
    if cache.drops_last:
        found = max(found - 1, 0)
        if cache.has_windows:
            num_needed += 1
        else:
            # Up to 0.25 a state is looked for one block further, whether or not its block is used.
            place = found + (cache.looks_further and limit > 0 and first < until)
    lowest = place
    while lowest > 0 and place - lowest < num_needed:
        while entry > first and paths.ends[entry - 1] >= lowest:
            entry -= 1
        low = max(paths.ends[entry - 1] if entry > first else 0, place - num_needed)
        has_all = True
        for group in range(1, cache.width):
            has_all, start = reach_down(cache, key_of(cache, paths.segments[entry], lowest, group), lowest)
            low = max(low, start)
            if not has_all:
                place = low
                break
        lowest = low
    place = max(place - num_needed + cache.num_needed, 0)
    paths.junctions[index], cache.num_reused = found if found > place else 0, min(found, place)
    while cache.found_runs and cache.found_starts[-1] >= cache.num_reused:
        cache.found_runs.pop()
        cache.found_starts.pop()
        cache.found_ends.pop()
    if not place:
        return 0, 0
    if cache.found_runs:
        cache.found_ends[-1] = min(cache.found_ends[-1], cache.num_reused)
    if cache.fresh_states and key_of(cache, paths.segments[entry], place, 1) in cache.fresh_states:
        return place, _NOT_YET
    for group in range(1, cache.width):
        start, position = lowest, entry
        while start < place:
            end = min(paths.ends[position], place, (start // cache.span + 1) * cache.span)
            start = _note_found(cache, paths.segments[position], group, start, end)
            position += start == paths.ends[position]
    idle = 0
    for position in range(len(cache.found_runs)):
        if not cache.run_users[cache.found_runs[position]]:
            idle += cache.found_ends[position] - cache.found_starts[position]
    return place, idle


def _note_found(cache: PrefixCache, segment: int, group: int, start: int, end: int) -> int:
    """Note the runs in which blocks of a segment are found from one place on; return up to where they are found."""
    key = key_of(cache, segment, start + 1, group)
    while start < end:
        run, until = find_run(cache, key, start + 1)
        if not run:
            break
        until = min(until, end)
        cache.found_runs.append(run)
        cache.found_starts.append(start)
        cache.found_ends.append(until)
        start = until
    return start


def has_room_for_state(replica: Replica, requests: RequestTable, index: int, found: int, idle: int, chunk: int) -> bool:
    """Return whether the blocks suffice to admit the head of the queue with a chunk, and for its whole prompt.

    It has found ``found`` blocks, and would take ``idle`` of those free by using them and the state behind them.
    """
    config, cache, block_size = replica.config, replica.cache, replica.block_size
    assert cache is not None
    start = found * block_size
    known = requests.prompt_tokens[index] + requests.generated_tokens[index]
    until, whole = _blocks_until(replica, start + chunk, first_ahead(replica)), -(-known // block_size)
    states = until - found if cache.has_windows else 1 + replica.exported_states + cache.num_drafts
    need = until + cache.state_weight * states
    if config.reserve_full_prompt:
        states = 1 + _exports(replica, start, known, known, known) + cache.num_drafts
        if cache.has_windows:
            states = max(min(whole, cache.most_admitted) - found, 0)
        need = max(need, whole + cache.state_weight * states)
    need += idle - cache.num_reused
    return need + (config.watermark_blocks if replica.num_running or replica.departing else 0) <= replica.free_blocks


def first_ahead(replica: Replica) -> int:
    """Return the slots beyond its tokens that the first chunk of a request takes: up to 0.24 none."""
    return 0 if replica.config.aligns_plainly or replica.cache is None else replica.cache.num_ahead


def _blocks_until(replica: Replica, tokens: int, num_ahead: int) -> int:
    """Return the blocks that hold tokens and ``num_ahead`` slots beyond them, at most those of the longest request."""
    return -(-min(tokens + num_ahead, max(replica.config.max_model_len, tokens)) // replica.block_size)


def enter_pool(replica: Replica, requests: RequestTable, index: int, found: int, tokens: int) -> None:
    """Let a request that has just been looked up use the ``found`` blocks it finds, and take what ``tokens`` need."""
    cache = replica.cache
    assert cache is not None
    paths = cache.paths
    paths.passed_blocks[index] = max(found - cache.num_needed, 0)
    paths.last_reused[index] = paths.last_extended[index] = (requests.prompt_tokens[index] - 1) // replica.block_size
    if cache.drops_last:
        # Of whole blocks, it is found by itself up to one, and by longer prompts up to the next.
        paths.last_reused[index] = max(paths.last_reused[index] - 1, 0)
        paths.last_extended[index] = max(requests.prompt_tokens[index] // replica.block_size - 1, 0)
    reused = cache.num_reused
    paths.blocks_held[index], paths.shared_blocks[index], paths.tokens_under_way[index] = reused, reused, 0
    paths.tables[index] = new_table(cache)
    first = paths.tables[index] * cache.width
    column = first + (reused == 0)
    for position in range(len(cache.found_runs)):
        run, start, end = cache.found_runs[position], cache.found_starts[position], cache.found_ends[position]
        if column == first and cache.run_users[run]:
            cache.num_duplicates += end - start
        use_run(replica, cache, column, run, start, end)
        # Group after group, each up to the same place; but blocks that are dropped.
        column += end == (reused if column == first else found)
    num_drafts = cache.num_drafts * cache.state_weight
    if num_drafts > replica.free_blocks:
        report_lack(replica, index)
    take(replica, cache, num_drafts)
    if not take_blocks_for(replica, index, tokens, first_ahead(replica)):
        report_lack(replica, index)


def report_lack(replica: Replica, index: int) -> None:
    """Raise: a request has been promised blocks that are not there."""
    raise InvariantError(f"request {index} needs more blocks than the {replica.free_blocks} that are free")


def take_blocks_for(replica: Replica, index: int, tokens: int, num_ahead: int) -> bool:
    """Give a request blocks for ``tokens`` tokens, its last state and one written amid a chunk; False: they lack.

    Blocks with tokens also for ``num_ahead`` slots beyond.
    """
    cache = replica.cache
    assert cache is not None
    paths = cache.paths
    held, place, column = paths.blocks_held[index], -(-tokens // replica.block_size), paths.tables[index] * cache.width
    until = _blocks_until(replica, tokens, num_ahead) if num_ahead else place
    num_blocks = max(until - held, 0)
    if cache.has_windows:
        if cache.width * num_blocks > replica.free_blocks:
            return False
        if num_blocks:
            take(replica, cache, cache.width * num_blocks)
            for group in range(cache.width):
                add_open(cache, column + group, held, until)
            paths.blocks_held[index] = until
        return True
    last = cache.columns[column + 1]
    # Where none is cached, a request has one for good.
    has_state = int(not last or (cache.keeps_any and place > cache.piece_ends[last]))
    has_earlier = replica.exported_states
    needed = num_blocks + cache.state_weight * (has_state + has_earlier)
    if needed > replica.free_blocks:
        return False
    take(replica, cache, needed)
    if num_blocks:
        add_open(cache, column, held, until)
        paths.blocks_held[index] = until
    for earlier in range(has_earlier, -has_state, -1):
        for group in range(1, cache.width):
            add_state(cache, column + group, place - earlier)
    return True


def pass_states(replica: Replica, index: int, known: int) -> None:
    """Let a request give back the states behind which its ``known`` tokens go on, except its last one.

    Or the blocks before the window of those tokens.
    """
    cache = replica.cache
    assert cache is not None
    if cache.width == 1:
        return
    column = cache.paths.tables[index] * cache.width
    kept = cache.columns[column + 1]
    if not cache.piece_below[kept] and cache.piece_ends[kept] - cache.piece_starts[kept] <= 1:
        return
    if replica.config.aligns_plainly:
        # As if none of the drafts under way held.
        known -= cache.num_drafts
    last = (known - cache.reach) // replica.block_size
    if cache.has_windows:
        if last <= cache.paths.passed_blocks[index]:
            return
        cache.paths.passed_blocks[index] = last
        last = min(last, cache.piece_ends[kept] - 1)
    for group in range(1, cache.width):
        kept = cache.columns[column + group]
        if cache.has_windows and cache.piece_starts[kept] < last:
            cut_piece(cache, kept, last)
        passed = cache.piece_below[kept]
        while passed and cache.piece_starts[passed] >= last:
            kept, passed = passed, cache.piece_below[passed]
        if passed and cache.piece_ends[passed] > last:
            kept, passed = passed, cut_piece(cache, passed, last)
        cache.piece_below[kept] = 0
        drop_pieces(replica, cache, passed)


def keep_blocks(cache: PrefixCache, index: int, tokens: int) -> None:
    """Cache the full blocks of the first ``tokens`` tokens of a request, and the states that are kept."""
    paths = cache.paths
    before, until, noted = paths.shared_blocks[index], tokens // paths.block_size, paths.next_state[index]
    paths.next_state[index] = 0
    if until <= before and not noted:
        return
    paths.shared_blocks[index] = max(before, until)
    if not cache.keeps_any:
        return
    keep_open(cache, index, 0, before, until)
    for group in range(1, cache.width):
        if cache.has_windows and cache.keeps_every_state:
            keep_open(cache, index, group, before, until)
        elif cache.has_windows:
            # Those of the last one before the end of the prompt, and where prompts part.
            last, junction = paths.last_reused[index], paths.junctions[index]
            for end in (last, paths.last_extended[index], junction if junction else last):
                low, high = max(end - cache.num_needed, before), min(end + cache.drops_last, until)
                if low < high:
                    keep_open(cache, index, group, low, high)
        else:
            _keep_states(cache, index, group, before, until, noted)


def _keep_states(cache: PrefixCache, index: int, group: int, before: int, until: int, noted: int) -> None:
    """Cache the states of a group of layers that are kept; in the step that computes them nobody finds them."""
    piece = cache.columns[cache.paths.tables[index] * cache.width + group]
    while piece:
        place, below = cache.piece_ends[piece], cache.piece_below[piece]
        is_kept = place == noted or (cache.keeps_every_state and before < place <= until)
        if is_kept and cache.piece_runs[piece] == OPEN:
            keep_piece(cache, index, piece, group)
            run = cache.piece_runs[piece]
            if group == 1 and run > 0:
                cache.fresh_states.append(cache.run_keys[run])
        piece = below


def leave_pool(replica: Replica, index: int) -> None:
    """Take everything from a request: the blocks with its tokens, from the last to the first, and then its states."""
    cache = replica.cache
    assert cache is not None
    paths = cache.paths
    table = paths.tables[index]
    if table:
        for group in range(cache.width):
            column = table * cache.width + group
            drop_unseen(replica, cache, cache.num_drafts if group else 0)
            num_used = drop_pieces(replica, cache, cache.columns[column])
            cache.num_duplicates -= 0 if group else num_used
            cache.columns[column] = 0
        cache.free_tables.append(table)
    paths.tables[index] = paths.blocks_held[index] = paths.shared_blocks[index] = 0


def note_step(replica: Replica, cache: PrefixCache) -> None:
    """Note what the tokens are of the step that has run: scheduled ahead, they are known once the next one is."""
    under_way = cache.paths.tokens_under_way
    cache.is_under_way = replica.config.async_scheduling and not replica.config.aligns_plainly
    for position in range(len(replica.prefilling)):
        under_way[replica.prefilling[position]] = 0
    for position in range(len(replica.passed_over)):
        under_way[replica.passed_over[position]] = 0
    for position in range(len(replica.chunk_requests)):
        under_way[replica.chunk_requests[position]] = replica.chunk_tokens[position]


def context_of(replica: Replica, requests: RequestTable, index: int, step: int) -> int:
    """Return the tokens in the KV cache of a decoding request before a step."""
    if replica.progress is None:
        return requests.context_base[index] + step
    return (requests.context_base[index] + requests.pace[index] * step) // GRID


def assumed_context(replica: Replica, requests: RequestTable, index: int, step: int) -> int:
    """Return `context_of` as it is scheduled ahead: all drafts of the step under way count as if they held."""
    if replica.assumes_drafts and requests.joined_step[index] != step:
        return context_of(replica, requests, index, step - 1) + replica.tokens_per_decode
    return context_of(replica, requests, index, step)


def known_context(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return how many tokens of a running request are known as the next step is scheduled."""
    cache, done = replica.cache, requests.computed_tokens[index]
    assert cache is not None
    if not done:
        done = assumed_context(replica, requests, index, replica.step)
        if cache.is_under_way and requests.joined_leap[index] != replica.leap_index:
            return context_of(replica, requests, index, replica.step - 1)
    return done - cache.paths.tokens_under_way[index] if cache.is_under_way else done


def known_beyond(replica: Replica, requests: RequestTable, index: int, until: int) -> int:
    """Return `known_context` of a finished request that computes up to ``until`` tokens in a step more."""
    cache, done = replica.cache, until - replica.tokens_per_decode
    assert cache is not None
    if not cache.is_under_way:
        return done
    is_decode = requests.finish_step[index] == replica.step
    return done - (replica.tokens_per_decode if is_decode else cache.paths.tokens_under_way[index])


def is_settled(cache: PrefixCache, index: int, tokens: int) -> bool:
    """Return whether a decoding request that computes up to ``tokens`` tokens takes, gives back and caches nothing."""
    paths = cache.paths
    size = paths.block_size
    has_kept = True
    if cache.has_windows and cache.width > 1:
        # As many tokens as it computes are known at most.
        has_kept = (tokens - cache.reach) // size <= paths.passed_blocks[index]
    elif not cache.has_windows:
        last = cache.columns[paths.tables[index] * cache.width + 1]
        has_kept = not cache.piece_below[last]
        if cache.keeps_any and tokens > cache.piece_ends[last] * size:
            return False
    tokens_held = paths.blocks_held[index] * size
    return has_kept and tokens // size <= paths.shared_blocks[index] and tokens + cache.num_ahead <= tokens_held


def keep_decoded(replica: Replica, requests: RequestTable, index: int, step: int) -> None:
    """Cache the blocks that a decoding request fills in a step; scheduled ahead, as far as tokens are known."""
    cache = replica.cache
    assert cache is not None
    known = context_of(replica, requests, index, step - replica.config.async_scheduling) + 1
    keep_blocks(cache, index, known - cache.num_hidden)


def learn(replica: Replica, requests: RequestTable, step: int, num_seats: int) -> None:
    """Cache what the decoding requests of the first seats had before a step that is scheduled ahead.

    The result of the step before is known then. Without drafts, only for those passed over is anything new.
    """
    cache = replica.cache
    assert cache is not None
    if not replica.config.async_scheduling or (replica.progress is None and not len(replica.passed_over)):
        return
    for seat in range(num_seats):
        index = replica.running[seat]
        if requests.status[index] != UNFINISHED:
            continue
        if not requests.computed_tokens[index]:
            keep_blocks(cache, index, context_of(replica, requests, index, step))
        elif index in replica.passed_over:
            keep_blocks(cache, index, requests.computed_tokens[index])


def asks_again(replica: Replica) -> bool:
    """Return whether the head of the queue is asked at every step: no leap passes what others give back, or fill."""
    return len(replica.waiting) > 0 and replica.blocked_by != BLOCKED_BY_SEATS


def steps_in_pool(replica: Replica, num_steps: int) -> int:
    """Return how many steps, at most ``num_steps``, a leap may last; the first has its blocks already."""
    cache = replica.cache
    assert cache is not None
    # States are opened by tokens, blocks by the slots beyond them, at most one of a request apart.
    spare = 0 if cache.has_windows or not cache.num_ahead else cache.state_weight * replica.num_decoding
    if replica.assumes_drafts:
        # Both as if the drafts under way held.
        apart = replica.num_decoding * (1 + replica.tokens_per_decode // replica.block_size)
        spare = (1 + cache.state_weight) * apart
    low, high = 1, num_steps
    while low < high:
        middle = (low + high + 1) // 2
        if spare + (1 + cache.state_weight) * _opened(replica, middle - 1) <= replica.free_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def _opened(replica: Replica, num_steps: int) -> int:
    """Return how many blocks of tokens the decodes open in the steps after the next one."""
    if replica.progress is not None:
        return replica.progress.growth(replica.step + 1, num_steps)
    cycles, rest = divmod(num_steps, replica.block_size)
    opened = cycles * replica.num_decoding
    if rest:
        opened += sum_around(replica.residues, (replica.step + 1) % replica.block_size, rest)
    return opened


def pass_leap(replica: Replica, requests: RequestTable, num_steps: int) -> int:
    """Let the steps of a leap after its first one be looked at seat by seat; return the blocks that they have taken."""
    free_blocks, replica.exported_states = replica.free_blocks, 0
    cache, running, size, residues = replica.cache, replica.running, replica.block_size, replica.residues
    assert cache is not None
    late = replica.config.async_scheduling and not replica.config.aligns_plainly
    for step in range(replica.step + 1, replica.step + num_steps):
        if step > replica.step + 1 and replica.progress is None:
            # Nobody fills or opens a block, or has done so in the last two steps.
            near = residues[(step + 1) % size] + residues[step % size] + residues[(step - 1) % size]
            near += residues[(step - 2) % size]
            if cache.has_windows:
                near += residues[(step - cache.reach) % size] + residues[(step - cache.reach - 1) % size]
            if not near:
                continue
        for seat in range(len(running)):
            index = running[seat]
            if requests.status[index] != UNFINISHED or requests.computed_tokens[index]:
                continue
            tokens = assumed_context(replica, requests, index, step) + replica.tokens_per_decode
            if is_settled(cache, index, tokens):
                continue
            known = context_of(replica, requests, index, step - 1) if late else tokens - replica.tokens_per_decode
            pass_states(replica, index, known)
            if not take_blocks_for(replica, index, tokens, cache.num_ahead):
                report_lack(replica, index)
            keep_decoded(replica, requests, index, step)
        learn(replica, requests, step, len(running))
    taken, replica.free_blocks = free_blocks - replica.free_blocks, free_blocks
    return taken
