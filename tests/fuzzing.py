"""How long the random tests go on."""

from __future__ import annotations

import os

_TIMES = int(os.environ.get("FUZZ", "1"))


def examples(count: int) -> int:
    """Return how many examples to try: so many, times the environment's ``FUZZ``."""
    return count * _TIMES
