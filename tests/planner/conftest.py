"""What the tests of plans share."""

from __future__ import annotations

import pytest

from simserve.planner.plan import plan


@pytest.fixture
def best_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan without what stands around the best in the answer: levers, sensitivity, front and headroom.

    They are sized once the best is found, do not change it, and take three quarters of a small plan's time.
    """
    monkeypatch.setattr(plan._Planning, "_look_around", lambda *_: None)
