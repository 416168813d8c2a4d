"""How long the random tests go on."""

from __future__ import annotations

import os

_QUICK = 1 / 3
"""Share of the examples in the quick tier: `make test-slow` tries all of every property."""
_TIMES = float(os.environ.get("FUZZ", _QUICK))


def examples(count: int) -> int:
    """Return how many examples to try: so many, times the environment's ``FUZZ``."""
    return max(1, round(count * _TIMES))
