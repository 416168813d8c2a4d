"""How long the random tests go on, and which of many cases are quick."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

_QUICK = 1 / 3
"""Share of the examples in the quick tier: `make test-slow` tries all of every property."""
FEW = 1 / 5
"""The same of the dearest: the kernel beside the walker in sixteen kinds of cases, and whole clusters."""


def examples(count: int, quick: float = _QUICK) -> int:
    """Return how many examples to try: so many, times the environment's ``FUZZ``; ``quick``: where that is not set."""
    return max(1, round(count * float(os.environ.get("FUZZ", quick))))


def every_third(values: Iterable[Any]) -> list[Any]:
    """Return parameters of which every third one is quick, and the others are slow."""
    return [pytest.param(each, marks=[pytest.mark.slow] if index % 3 else []) for index, each in enumerate(values)]
