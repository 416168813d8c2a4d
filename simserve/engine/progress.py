"""Progress: decoding requests that gain several tokens per step, each at its own pace, and the blocks they take.

A pace is drawn beforehand in units of 1 / `GRID` token, so that sums are exact integers and a leap over steps stays in
closed form. It knows numbers, no request and no replica.
"""

from __future__ import annotations

GRID = 16
"""Parts of a token in which paces are counted."""


class Progress:
    """Totals of the decoding requests of a replica under speculative decoding.

    A decoding request with ``c`` whole tokens in the KV cache holds ``ceil((c + lookahead) / block_size)`` blocks in
    its step: every draft and the token after them has a slot, accepted or not. Its context, in `GRID` parts, is ``base
    + pace * step``; hence its blocks in step s are ``(base + pace * s + offset) // period``, and how many more n steps
    take depends only on the remainder. Requests of one pace are counted by that remainder, twice in a row, so that a
    cycle is one slice.

    Scheduled ahead, all drafts of the step under way count as if they held: but in its first step, a request holds
    blocks for its tokens before the last step and those of two.

    Attributes:
        total: Sum of the paces: what a step adds to the contexts, in `GRID` parts.
        pending_blocks: Blocks that requests which joined since the last decode step take beyond their regular growth.
        late_blocks: Likewise in the step after that.
    """

    __slots__ = (
        *("_block_size", "_first_offset", "_groups", "_known", "_lag", "_offset", "_period"),
        *("late_blocks", "pending_blocks", "total"),
    )

    def __init__(self, num_speculative_tokens: int, block_size: int, is_ahead: bool = False) -> None:
        """Start without requests.

        Args:
            num_speculative_tokens: Drafts per step; a step needs one slot more.
            block_size: Tokens per block.
            is_ahead: Whether drafts of the step under way count as if they held.
        """
        self.total = 0
        self.pending_blocks = self.late_blocks = 0
        self._block_size = block_size
        self._period = GRID * block_size
        self._lag = int(is_ahead)
        self._first_offset = GRID * (num_speculative_tokens + block_size)
        self._offset = self._first_offset + self._lag * GRID * (1 + num_speculative_tokens)
        self._groups: dict[int, tuple[list[int], list[int]]] = {}
        # First step, number of steps and growth (without pending blocks) of the last query.
        self._known = (0, 0, 0)

    def join(self, base: int, pace: int, step: int) -> None:
        """Count a request that decodes from ``step`` on; its blocks are those of its prefill."""
        self.total += pace
        late = self._late_growth(base, pace, step)
        self.pending_blocks += self._first_growth(base, pace, step) - late
        self.late_blocks += late
        self._count(base, pace, 1)

    def leave(self, base: int, pace: int, step: int, joined_step: int) -> int:
        """Remove a request before ``step`` runs; return the blocks that it held."""
        self.total -= pace
        self._count(base, pace, -1)
        if joined_step == step:
            late = self._late_growth(base, pace, step)
            self.pending_blocks -= self._first_growth(base, pace, step) - late
            self.late_blocks -= late
            return -(-(base + pace * step) // self._period)
        held = (base + pace * (step - 1 - self._lag) + self._offset) // self._period
        if self._lag and joined_step == step - 1:
            late = self._late_growth(base, pace, joined_step)
            self.pending_blocks -= late
            held -= late
        return held

    def growth(self, step: int, num_steps: int) -> int:
        """Return the blocks that ``num_steps`` steps take, the first of them ``step``."""
        known_step, known_steps, taken = self._known
        if known_step != step or known_steps != num_steps:
            period = self._period
            taken = 0
            for pace, (count, remainders) in self._groups.items():
                rest = pace * num_steps
                if rest >= period:
                    taken += rest // period * count[0]
                    rest %= period
                start = (-rest - pace * (step - 1 - self._lag)) % period
                taken += sum(remainders[start : start + rest])
            self._known = step, num_steps, taken
        return self.pending_blocks + (self.late_blocks if num_steps > 1 else 0) + taken

    def most_growth(self, num_steps: int) -> int:
        """Return the most blocks that ``num_steps`` steps take: each request may be about to need another one."""
        return self.pending_blocks + self.late_blocks + self.total * num_steps // self._period + self.num_requests()

    def take(self, step: int, num_steps: int) -> int:
        """Return `growth`; requests that have joined count as regular from now on."""
        taken = self.growth(step, num_steps)
        self.pending_blocks = self.late_blocks if num_steps == 1 else 0
        self.late_blocks = 0
        return taken

    def affordable_steps(self, step: int, num_steps: int, free_blocks: int) -> int:
        """Return how many steps, at most ``num_steps``, the free blocks last; the first is affordable."""
        if self.most_growth(num_steps) <= free_blocks or self.growth(step, num_steps) <= free_blocks:
            return num_steps
        low, high = 1, num_steps
        while high - low > 1:
            middle = (low + high) // 2
            if self.growth(step, middle) <= free_blocks:
                low = middle
            else:
                high = middle
        return low

    def steps_to_hold(self, base: int, pace: int, step: int, blocks: int) -> int:
        """Return the steps, at least one, the first of them ``step``, until a request holds ``blocks`` blocks."""
        return max(-((base + pace * step + self._offset - blocks * self._period) // pace), 0) + 1

    def num_requests(self) -> int:
        """Return how many requests are counted."""
        return sum(count[0] for count, _ in self._groups.values())

    def _first_growth(self, base: int, pace: int, step: int) -> int:
        """Return how many fewer blocks a prefill took than a request of this pace would hold by now."""
        regular = (base + pace * (step - 1 - self._lag) + self._offset) // self._period
        return regular + (-(base + pace * step) // self._period)

    def _late_growth(self, base: int, pace: int, step: int) -> int:
        """Return how many more blocks a request that has run before would hold in its first step."""
        regular = (base + pace * (step - self._lag) + self._offset) // self._period
        return regular - (base + pace * step + self._first_offset) // self._period

    def _count(self, base: int, pace: int, change: int) -> None:
        self._known = (0, 0, 0)
        group = self._groups.get(pace)
        if group is None:
            group = self._groups[pace] = ([0], [0] * (2 * self._period))
        count, remainders = group
        count[0] += change
        if not count[0]:
            del self._groups[pace]
            return
        remainder = (base + self._offset) % self._period
        remainders[remainder] += change
        remainders[remainder + self._period] += change
