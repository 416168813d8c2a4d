"""Records in flat memory, as Python lays them out and reads them back."""

from __future__ import annotations

from simserve.engine.compiled.layout import FLOAT, INTEGER, Items, Memory, Record

RECORD = Record("pair", {"count": INTEGER, "seconds": FLOAT, "times": Items("d"), "pairs": Items("dq")})


def test_numbers_and_lists_of_several_records() -> None:
    """Each record has its own; a list that is absent is as long as one without entries."""
    memory = Memory(RECORD, 2)
    memory.put("count", 3, 1)
    memory.put("seconds", 0.25)
    memory.put("times", [1.5, 2.5], 1)
    memory.put("pairs", [(0.5, 7)])

    assert [memory.get("count", number) for number in (0, 1)] == [0, 3]
    assert memory.numbers("count").tolist() == [0, 3]
    assert memory.get("seconds") == 0.25
    assert memory.lengths("times").tolist() == [0, 2]
    assert memory.entries("pairs") == [(0.5, 7)]


def test_a_list_is_seen_where_it_lies_and_drained() -> None:
    """What is taken out stays what it was."""
    memory = Memory(RECORD)
    memory.put("times", [1.5, 2.5])

    seen, taken = memory.peek("times").tolist(), memory.drain("times")
    memory.put("count", 1)

    assert seen == taken.tolist() == [1.5, 2.5]
    assert memory.length("times") == 0
    assert memory.peek("times").tolist() == []


def test_a_list_that_is_put_anew_is_as_long_as_what_it_holds() -> None:
    """Without entries too: nothing of what was there is read again."""
    memory = Memory(RECORD)
    memory.put("times", [1.5, 2.5, 3.5])

    memory.replace("times", [])

    assert memory.length("times") == 0
    memory.replace("times", [4.5])
    assert memory.peek("times").tolist() == [4.5]
