"""Deliberate faults in the cluster's plane: which of them do the tests of plane against reference notice?

    python -m benchmarks.mutations [NAME ...] [--write]

Each fault of `tests/mutations/cluster.yaml` goes alone into a copy of package and tests, which then runs the tests
below, interpreted. ``--write`` writes the table, `benchmarks/MUTATIONS.md`, in which faults that are not named keep
what stands there. Ends with 1 where any fault survives. Some ten CPU seconds a fault; it measures no speed.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "tests" / "mutations" / "cluster.yaml"
PAGE = Path(__file__).with_name("MUTATIONS.md")
TESTS = tuple(f"tests/reference/test_{name}.py" for name in ("edges", "streaming", "rules", "cluster"))
"""The differential tests: hand-made cases, and drawn clusters, on the plane and on the reference."""
COPIED = ("simserve", "tests")
LONGEST_CPU_SECONDS = 120
"""A fault may keep a run from ending; the tests take a tenth of it."""
NOT_TRIED, SURVIVES = "not tried", "**nobody**"


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of right code, and what stands there instead."""

    name: str
    file: str
    old: str
    new: str

    def put_into(self, root: Path) -> str:
        """Put the fault into a tree; return the text of the file as it was.

        Raises:
            ValueError: The line is not there, or stands there more than once.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} stands there {text.count(self.old)} times, not once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return text


def all_faults() -> list[Fault]:
    """Return the faults of the list."""
    return [Fault(**each) for each in yaml.safe_load(FAULTS.read_text(encoding="utf-8"))]


def copy_of_tree(root: Path) -> None:
    """Copy what is changed, and what changes nothing by name."""
    for each in ROOT.iterdir():
        if each.name in COPIED:
            shutil.copytree(each, root / each.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif not each.name.startswith("."):
            (root / each.name).symlink_to(each)


def killed_by(fault: Fault, root: Path) -> str:
    """Return the test that notices a fault; `SURVIVES`: none does."""
    before = fault.put_into(root)
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS]
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False, preexec_fn=limit_time
        )
    finally:
        (root / fault.file).write_text(before, encoding="utf-8")
    if not run.returncode:
        return SURVIVES
    if run.returncode < 0:
        return "a run that does not end"
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split("::")[1].split(" ")[0].split("[")[0] if failed else "the tests cannot even begin"


def limit_time() -> None:
    """Bound the CPU seconds of the process at hand."""
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_CPU_SECONDS, LONGEST_CPU_SECONDS))


def found_before() -> dict[str, str]:
    """Return what the table says of each fault, by its name."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]
    return {row[1]: row[3] for row in rows}


def page_of(found: dict[Fault, str]) -> str:
    """Return the table."""
    tried = [test for test in found.values() if test != NOT_TRIED]
    killed = sum(test != SURVIVES for test in tried)
    lines = [
        "# Deliberate faults in the cluster's plane",
        "",
        f"Of {len(tried)} faults of one line each that were tried, the tests of plane against reference notice"
        f" {killed}."
        " `python -m benchmarks.mutations --write` makes this table again.",
        "",
        "| fault | where | noticed first by |",
        "|---|---|---|",
        *(f"| {fault.name} | `{fault.file}` | {test} |" for fault, test in found.items()),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Try the faults that are named, or all; print who notices each."""
    names = [each for each in arguments if each != "--write"]
    faults = [each for each in all_faults() if not names or each.name in names]
    found: dict[Fault, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy_of_tree(root)
        for fault in faults:
            found[fault] = killed_by(fault, root)
            print(f"{found[fault]:60s} {fault.name}", flush=True)
            if "--write" in arguments:
                before = found_before()
                kept = {each: found.get(each, before.get(each.name, NOT_TRIED)) for each in all_faults()}
                PAGE.write_text(page_of(kept), encoding="utf-8")
    return int(SURVIVES in found.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
