"""Link: the way out of one prefill replica, which sends one KV cache after the other, at a pace that may change."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Crossing:
    """A KV cache on its way.

    Attributes:
        index: The request.
        queued_at: When it was ready to be sent, seconds.
        start: When its first byte is sent, seconds; inf while the link is down.
        end: When its last one is; inf likewise.
        left: Seconds at full speed that were left of it when the link went down.
        has_begun: Whether some of it had crossed by then.
    """

    index: int
    queued_at: float
    start: float
    end: float
    left: float = 0.0
    has_begun: bool = False


class Link:
    """Sends in the order of coming, at full bandwidth each.

    Attributes:
        pace: How many times as long a transfer takes as at full speed; inf: the link is down.
        seconds: Seconds of transfers.
        waited: Seconds that caches waited for the link.
    """

    __slots__ = ("_crossings", "_down_since", "_free_at", "pace", "seconds", "waited")

    def __init__(self) -> None:
        self.pace = 1.0
        self.seconds = self.waited = 0.0
        self._free_at = self._down_since = 0.0
        self._crossings: deque[Crossing] = deque()

    def send(self, index: int, seconds: float, now: float) -> Crossing:
        """Put a cache that takes ``seconds`` at full speed behind the others."""
        crossings = self._crossings
        while crossings and crossings[0].end <= now:
            crossings.popleft()
        if self.pace == inf:
            crossing = Crossing(index, now, inf, inf, seconds)
        else:
            start = max(now, self._free_at)
            crossing = Crossing(index, now, start, start + seconds * self.pace)
            self._free_at = crossing.end
            self.seconds += crossing.end - start
            self.waited += start - now
        crossings.append(crossing)
        return crossing

    def set_pace(self, pace: float, now: float) -> list[Crossing]:
        """Go on at another pace; return what is on its way, with its new times."""
        self._stop(now)
        self.pace, self._down_since = pace, now
        if pace == inf:
            for crossing in self._crossings:
                crossing.start = crossing.end = inf
            return list(self._crossings)
        time = now
        for crossing in self._crossings:
            crossing.start, crossing.end = time, time + crossing.left * pace
            self.seconds += crossing.end - time
            if not crossing.has_begun:
                self.waited += time - now
            time = crossing.end
        self._free_at = time
        return list(self._crossings)

    def clear(self, now: float) -> None:
        """Forget what is on its way: its sender is gone."""
        self._stop(now)
        self._crossings.clear()
        self._free_at = now

    def _stop(self, now: float) -> None:
        """Note what is left of everything on its way, as if all stood still from now on."""
        kept: deque[Crossing] = deque()
        for crossing in self._crossings:
            if crossing.end <= now:
                continue
            if self.pace < inf:
                crossing.has_begun = crossing.has_begun or crossing.start < now
                unsent = crossing.end - max(crossing.start, now)
                crossing.left = unsent / self.pace
                self.seconds -= unsent
                self.waited -= max(crossing.start - now, 0.0)
            elif not crossing.has_begun:
                self.waited += now - max(self._down_since, crossing.queued_at)
            kept.append(crossing)
        self._crossings = kept
