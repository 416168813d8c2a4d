"""KV blocks as TensorRT-LLM's scheduler asks for them: stands in for its compiled cache manager. Knows no scheduler.

Written from what `cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp` and `evictionPolicy.cpp` do: one window, a single
beam, no tiers, no drafts, no reuse of parts of blocks.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace

CONTEXT, GENERATION = "context", "generation"


@dataclass(eq=False)
class Block:
    """A block of the pool.

    Attributes:
        key: The tokens from the beginning of a sequence to the end of the block, if others can find it.
        users: Sequences that hold it.
    """

    identity: int
    key: tuple[int, ...] | None = None
    users: int = 0


@dataclass(frozen=True)
class PrefixReuse:
    """What a sequence would find: blocks, those of them that are in use, and the first full one that is missing."""

    reusable_blocks_all: int = 0
    reusable_blocks_allocated: int = 0
    first_new_block: tuple[int, ...] | None = None


class Blocks:
    """The pool, the blocks of every sequence, and what can be found.

    Attributes:
        credits_reuse: Whether blocks that others use count as had, and found tokens as computed (1.3; before that, a
            request is admitted as if it found nothing).
    """

    is_variable_window = False

    def __init__(self, num_blocks, block_size, *, enable_block_reuse, credits_reuse):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.enable_block_reuse, self.credits_reuse = enable_block_reuse, credits_reuse
        self.window = 1 << 30
        self.max_attention_window_vec = [self.window]
        counter = itertools.count()
        # In the order in which they are taken.
        self.free = OrderedDict((each.identity, each) for each in (Block(next(counter)) for _ in range(num_blocks)))
        self.findable = {}
        self.sequences = {}
        self.num_tokens = {}
        self.trial = {}

    # What the scheduler asks.

    def get_kv_cache_stats(self):
        """Return how many blocks are free."""
        return SimpleNamespace(num_free_blocks_per_window_size={self.window: len(self.free)})

    def analyze_prefix_reuse(self, tokens, request):
        """Return what a sequence would find, by its full blocks."""
        found = in_use = 0
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            block = self.findable.get(tuple(tokens[:end]))
            if block is None:
                return PrefixReuse(found, in_use, tuple(tokens[:end]))
            found += 1
            in_use += block.users > 0
        return PrefixReuse(found, in_use)

    def get_remaining_blocks_to_completion(self, request, window, cached_summary=None):
        """Return how many blocks a request still takes until it has all of its tokens."""
        context = request.prompt_len // self.block_size
        total = -(-(request.prompt_len + request.max_new_tokens) // self.block_size)
        has = len(self.sequences.get(request.request_id, ()))
        request.estimated_reusable_tokens = 0
        shared = 0
        if self.credits_reuse and self.enable_block_reuse and request.is_first_context_chunk and not has:
            summary = cached_summary or self.analyze_prefix_reuse(request.get_unique_tokens(0), request)
            shared = min(summary.reusable_blocks_allocated, context)
            request.estimated_reusable_tokens = min(summary.reusable_blocks_all, context) * self.block_size
        return total - shared - has

    def get_needed_blocks_one_step(self, request, two_steps_look_ahead, window, cached_summary=None):
        """Return how many blocks a request takes in the next step: those of its prompt, or of its next token."""
        request.estimated_reusable_tokens = 0
        if request.is_first_context_chunk:
            whole = -(-request.prompt_len // self.block_size)
            if not (self.credits_reuse and self.enable_block_reuse):
                return whole
            summary = cached_summary or self.analyze_prefix_reuse(request.get_unique_tokens(0), request)
            full = request.prompt_len // self.block_size
            request.estimated_reusable_tokens = min(summary.reusable_blocks_all, full) * self.block_size
            return whole - min(summary.reusable_blocks_allocated, full)
        if request.is_generation_in_progress_state:
            now = self.num_tokens[request.request_id]
            coming = min(2 if two_steps_look_ahead else 1, request.max_new_tokens - (now - request.prompt_len))
            return -(-(now + coming) // self.block_size) + (-now // self.block_size)
        return 0

    def start_scheduling(self):
        """Begin to try what could be paused."""
        self.trial = {block.identity: block.users for blocks in self.sequences.values() for block in blocks}
        self.trial_free = len(self.free)

    def scheduling_has_free_blocks(self, num_blocks, window):
        """Return whether that many blocks would be free."""
        return num_blocks <= self.trial_free

    def scheduling_remove_sequence(self, identity):
        """Count the blocks of a sequence as free that no other uses."""
        for block in self.sequences.get(identity, ()):
            self.trial[block.identity] -= 1
            self.trial_free += self.trial[block.identity] == 0

    # What the executor does.

    def add_sequences(self, requests):
        """Give requests the blocks of their prompts; return how many tokens each finds, never its last one.

        First all take what they find, then each what it lacks (``addSequenceBatch``).
        """
        for request in requests:
            blocks = self.sequences[request.request_id] = []
            tokens = request.get_unique_tokens(0)
            ends = range(self.block_size, request.prompt_len, self.block_size) if self.enable_block_reuse else ()
            for end in ends:
                block = self.findable.get(tuple(tokens[:end]))
                if block is None:
                    break
                self.free.pop(block.identity, None)
                block.users += 1
                blocks.append(block)
        found = [len(self.sequences[request.request_id]) * self.block_size for request in requests]
        for request in requests:
            blocks = self.sequences[request.request_id]
            while len(blocks) * self.block_size < request.prompt_len:
                blocks.append(self.take())
            self.num_tokens[request.request_id] = request.prompt_len
        return found

    def add_token(self, request):
        """Make room for the next token of a request."""
        self.num_tokens[request.request_id] += 1
        blocks = self.sequences[request.request_id]
        if len(blocks) * self.block_size < self.num_tokens[request.request_id]:
            blocks.append(self.take())

    def take(self):
        """Return the block that has been free for longest; what is found only behind it can be found no more."""
        _, block = self.free.popitem(last=False)
        self.forget(block)
        block.users = 1
        return block

    def forget(self, block):
        """Let nobody find a block, nor those that follow it."""
        if block.key is None:
            return
        size = len(block.key)
        for key in [key for key in self.findable if key[:size] == block.key]:
            self.findable.pop(key).key = None

    def store(self, request, num_tokens):
        """Let others find the full blocks of a request's first tokens, where they do not find another's already."""
        if not self.enable_block_reuse:
            return
        tokens, blocks = request.tokens, self.sequences[request.request_id]
        matches = True
        for position in range(num_tokens // self.block_size):
            key = tuple(tokens[: (position + 1) * self.block_size])
            if matches and key in self.findable:
                continue
            matches = False
            block = blocks[position]
            if block.key is not None and block.key != key:
                self.forget(block)
            self.findable[key], block.key = block, key

    def remove_sequence(self, request):
        """Store what a request has computed and give up its blocks, the last one first."""
        if request.request_id not in self.sequences:
            return
        self.store(request, len(request.tokens) - 1)
        for block in reversed(self.sequences.pop(request.request_id)):
            block.users -= 1
            if not block.users:
                self.free[block.identity] = block
        del self.num_tokens[request.request_id]
