"""Bucket: a rate limit that fills steadily up to a burst. Knows no request."""

from __future__ import annotations


class Bucket:
    """What a rate limit lets through.

    Args:
        rate: Units a second in the long run.
        burst: Units that an unused bucket holds.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._filled_at = burst, 0.0

    def holds(self, amount: float, now: float) -> bool:
        """Return whether so much may pass ``now``."""
        return self._fill(now) >= min(amount, self._burst)

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until so much may pass; more than the bucket ever holds passes when it is full."""
        return max(0.0, (min(amount, self._burst) - self._fill(now)) / self._rate)

    def take(self, amount: float) -> None:
        """Let so much pass; the bucket may be left with less than nothing."""
        self._level -= amount

    def _fill(self, now: float) -> float:
        self._level = min(self._burst, self._level + self._rate * (now - self._filled_at))
        self._filled_at = now
        return self._level
