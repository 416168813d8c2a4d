"""What a killed process leaves behind is removed by the next one, and the work of a living one is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from simserve.unfinished import remove_abandoned, unfinished

_KILLED = """
import sys, time
from pathlib import Path
from simserve.unfinished import unfinished

target = Path(sys.argv[1])
unfinished(target / "table.parquet").write_text("half")
unfinished(target / "result").mkdir()
(unfinished(target / "result") / "result.json").write_text("half")
print("written", flush=True)
time.sleep(60)
"""


def hidden(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(each.name for each in folder.iterdir())


def test_what_a_killed_process_leaves_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """Files and folders; not those of a process that lives, nor anybody's own hidden files."""
    (tmp_path / ".mine.unfinished").write_text("kept")
    unfinished(tmp_path / "own").write_text("kept")
    kept = hidden(tmp_path)
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        remove_abandoned(tmp_path)
        while_it_lives = hidden(tmp_path)
        os.kill(process.pid, signal.SIGKILL)

    remove_abandoned(tmp_path)

    assert len(while_it_lives) == len(kept) + 2
    assert hidden(tmp_path) == kept


def test_what_another_machine_writes_is_left_alone(tmp_path: Path) -> None:
    """Its processes cannot be asked whether they live."""
    (tmp_path / ".x.elsewhere-1.unfinished").write_text("kept")

    remove_abandoned(tmp_path)

    assert hidden(tmp_path) == [".x.elsewhere-1.unfinished"]
