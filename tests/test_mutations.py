"""The list of deliberate faults is one of the code as it is; `python -m benchmarks.mutations` tries them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutations import ROOT, Fault, all_faults, found_before


@pytest.mark.parametrize("fault", all_faults(), ids=lambda each: each.name)
def test_the_line_of_a_fault_stands_once_in_its_file(fault: Fault) -> None:
    """Else the fault could not be put in, or would be several."""
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.new != fault.old


def test_a_fault_changes_its_line_and_nothing_else(tmp_path: Path) -> None:
    """What the file was comes back, to be written again."""
    (tmp_path / "one.py").write_text("a = 1\nb = 2\n", encoding="utf-8")

    before = Fault("b is three", "one.py", "b = 2", "b = 3").put_into(tmp_path)

    assert (tmp_path / "one.py").read_text(encoding="utf-8") == "a = 1\nb = 3\n"
    assert before == "a = 1\nb = 2\n"


def test_the_table_says_of_every_fault_what_is_known() -> None:
    """A row for each, and no more: who notices it, nobody, or that it was not tried."""
    assert set(found_before()) - {"fault"} == {fault.name for fault in all_faults()}
