"""Attributes of the kernel's records have slots."""

from __future__ import annotations

import pytest

from simserve.engine.admission_control import Bucket
from simserve.engine.slots import slotted
from simserve.engine.state import Replica


@slotted
class Counter:
    """Counts, and has a property and a method."""

    def __init__(self, start: int) -> None:
        self.count, self.steps = start, 0
        self.seen: list[int] = []
        start += 1

    @property
    def last(self) -> int:
        """The last number."""
        return self.seen[-1]

    def add(self, number: int) -> None:
        """Count a number."""
        self.seen.append(number)
        self.count += number


def test_the_slots_are_what_init_sets_however_it_is_written() -> None:
    """In a tuple, with an annotation, by itself; not local names."""
    counter = Counter(2)
    counter.add(3)

    assert Counter.__slots__ == ("count", "seen", "steps")
    assert (counter.count, counter.last, counter.steps) == (5, 3, 0)
    assert not hasattr(counter, "__dict__")
    assert Counter.__doc__ == "Counts, and has a property and a method."


def test_no_other_attribute_can_be_set() -> None:
    """A misspelt name is an error, not a new attribute."""
    bucket = Bucket(1.0, 2.0)

    with pytest.raises(AttributeError, match="levle"):
        bucket.levle = 1.0  # type: ignore[attr-defined]


def test_every_attribute_of_a_replica_has_one_slot() -> None:
    """None twice."""
    assert len(set(Replica.__slots__)) == len(Replica.__slots__) > 100
