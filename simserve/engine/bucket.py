"""Bucket: a rate limit that fills steadily up to a burst. Knows no request."""

from __future__ import annotations


class Bucket:
    """What a rate limit lets through.

    Args:
        rate: Units a second in the long run.
        burst: Units that an unused bucket holds.

    Attributes:
        level: Units that it held at its last look at the clock; may be less than none.
        filled_at: When that was, seconds.
    """

    __slots__ = ("burst", "filled_at", "level", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.level, self.filled_at = burst, 0.0


def fill(bucket: Bucket, now: float) -> float:
    """Return what a bucket holds ``now``."""
    level = min(bucket.burst, bucket.level + bucket.rate * (now - bucket.filled_at))
    bucket.level, bucket.filled_at = level, now
    return level


def holds(bucket: Bucket, amount: float, now: float) -> bool:
    """Return whether so much may pass ``now``; more than the bucket ever holds passes when it is full."""
    return fill(bucket, now) >= min(amount, bucket.burst)


def wait(bucket: Bucket, amount: float, now: float) -> float:
    """Return the seconds until so much may pass, by the rule of `holds`."""
    return max(0.0, (min(amount, bucket.burst) - fill(bucket, now)) / bucket.rate)


def take(bucket: Bucket, amount: float) -> None:
    """Let so much pass; the bucket may be left with less than nothing."""
    bucket.level -= amount
