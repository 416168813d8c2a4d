"""Write the README's figures anew: ``python docs/write_readme.py``, after the pages that they come from.

What its commands print is put in place of what it shows, line for line. Figures in sentences and in the table of
intervals come from `calibration/ACCURACY.md`, `calibration/unseen/README.md`, `calibration/expected_errors.json` and
`benchmarks/exam/RESULTS.md`. Sentences themselves stay: read them again. `tests/test_readme.py` holds all of it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
LEFT_OUT = "..."


def printed(command: str, folder: Path) -> list[str]:
    """Return what a ``simserve`` command prints in 80 columns."""
    words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "simserve", *words[1:]],
        cwd=folder,
        env=os.environ | {"COLUMNS": "80"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [line.rstrip() for line in done.stdout.splitlines()]


def alike(one: str, other: str) -> float:
    """Return how alike two lines are, from 0 to 1, whatever their digits."""
    first, second = (re.sub(r"\d", "0", line) for line in (one, other))
    return SequenceMatcher(None, first, second, autojunk=False).ratio()


def matched(shown: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return for each shown line the printed one that it has become; `...` stays, and the order."""
    wanted = [line for line in shown if line != LEFT_OUT]
    best = [[0.0] * (len(lines) + 1) for _ in range(len(wanted) + 1)]
    for row, line in enumerate(wanted):
        for column, other in enumerate(lines):
            best[row + 1][column + 1] = max(
                best[row + 1][column], best[row][column + 1], best[row][column] + alike(line, other)
            )
    found: dict[int, str] = {}
    row, column = len(wanted), len(lines)
    while row and column:
        if best[row][column] == best[row][column - 1]:
            column -= 1
        elif best[row][column] == best[row - 1][column]:
            row -= 1
        else:
            row, column = row - 1, column - 1
            found[row] = lines[column]
    numbers = iter(range(len(wanted)))
    return [line if line == LEFT_OUT else found.get(next(numbers), line) for line in shown]


def with_commands(text: str) -> str:
    """Return the README with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        result: list[str] = []
        for part in re.split(r"^(?=\$ )", found[1], flags=re.M)[1:]:
            title, *shown = part.splitlines()
            command = title.removeprefix("$ ")
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "scenarios").symlink_to(ROOT / "scenarios")
                is_run = bool(shown) and command.startswith("simserve ")
                result += [title, *(matched(shown, printed(command, Path(folder))) if is_run else shown)]
        return "```console\n" + "\n".join(result) + "\n```"

    return re.sub(r"^```console\n(.*?)^```", block, text, flags=re.M | re.S)


def filled(text: str, sentence: str, *figures: str) -> str:
    """Return a text with new figures at the `#` of a sentence, which stands in it once, broken anyhow into lines."""
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in sentence.split("#")]
    pattern = r"([\d.,]*\d)".join(parts)
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise SystemExit(f"README.md: {len(found)} times in it, not once: {sentence!r}")
    for number, figure in reversed(list(enumerate(figures, start=1))):
        begin, end = found[0].span(number)
        text = text[:begin] + figure + text[end:]
    return text


def cells_of(line: str) -> list[str]:
    """Return the cells of a row of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows_of(page: Path, title: str = "", heading: str = "") -> list[dict[str, str]]:
    """Return the first table behind a heading whose first cell has a title, a row by its columns' names."""
    text = page.read_text(encoding="utf-8")
    lines = (text.partition(heading)[2] if heading else text).splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith(f"| {title}"))
    names, rows = cells_of(lines[begin]), []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(names, cells_of(line), strict=True)))
    return rows


def with_unseen(text: str) -> str:
    """Return the README with the errors of the unseen reports, and their number."""
    page = ROOT / "calibration/unseen/README.md"
    row = rows_of(page, heading="## All")[0]
    tpot, ttft, throughput = (row[key].split()[0] for key in ("tpot", "ttft", "throughput"))
    count = len(rows_of(page, heading="## By report"))
    text = filled(text, "other people's servers are # % off in the time per token in the median", tpot)
    text = filled(text, "other people are # % off in TPOT, # % in TTFT and # % in throughput", tpot, ttft, throughput)
    return filled(text, "(# in # today)", f"{int(row['run']):,}", str(count))


def with_sources(text: str) -> str:
    """Return the README with the number of sources that the intervals are learnt from."""
    sources = json.loads((ROOT / "calibration/expected_errors.json").read_text(encoding="utf-8"))["without"]
    unseen = sum(name.startswith("unseen/") for name in sources)
    text = filled(text, "learnt from # public sources", str(len(sources)))
    return filled(text, "errors on # sources, # of them laboratories", str(len(sources)), str(unseen))


def with_intervals(text: str) -> str:
    """Return the README with the table of intervals."""
    coverage = {
        (row["metric"], row["server"]): row for row in rows_of(ROOT / "calibration/ACCURACY.md", "metric | server")
    }
    there: list[list[str]] = []
    for name in ("TPOT", "TTFT", "throughput"):
        known, unseen = (coverage[name.lower(), servers] for servers in ("all", "unseen reports"))
        width, constant = re.findall(r"[\d.]+", known["log width"])[:2]
        count = f"{int(known['figures']):,}"
        sources = f"{known['sources']} sources" if name == "TPOT" else known["sources"]
        inside = [known["in 90 %"].partition(" (")[0], known["in 50 %"]]
        row = f"| {name} ({count}, {sources}) | {' | '.join([*inside, width, constant])} |"
        text = re.sub(rf"^\| {name} \(.*$", row, text, count=1, flags=re.M)
        wide, one = re.findall(r"[\d.]+", unseen["log width"])[:2]
        there.append([unseen["in 90 %"].split()[0], unseen["in 50 %"].split()[0], wide, one])
    columns = [", ".join(column) for column in zip(*there, strict=True)]
    title = "the unseen reports alone: TPOT, TTFT, throughput"
    row = f"| {title} | {columns[0]} % | {columns[1]} % | {columns[2]} | {columns[3]} |"
    return re.sub(r"^\| the unseen reports alone.*$", row, text, count=1, flags=re.M)


def with_exam(text: str) -> str:
    """Return the README with the exam's errors, coverage and order."""
    page = ROOT / "benchmarks/exam/RESULTS.md"
    figures = []
    for gpus in ("## Blackwell", "## Hopper"):
        own = rows_of(page, "simulator", gpus)[0]
        names = ("TPOT inside", "TTFT inside", "engines in order")
        inside = [f"{float(own[name].partition('%')[0]):.0f}" for name in names]
        errors = [own[f"{name} error, median"].rstrip("%") for name in ("TPOT", "TTFT")]
        figures.append((own["rows"], errors, inside))
    rows, (tpot, ttft), inside = figures[0]
    text = filled(
        text, "On # rows of B200 simserve is # % off in TPOT and # % in TTFT", rows, tpot, f"{float(ttft):.0f}"
    )
    text = filled(
        text, "ranges contain # % of TPOT and # % of TTFT, and it orders engines correctly in # % of", *inside
    )
    rows, errors, inside = figures[1]
    text = filled(text, "On # rows of H100 and H200 the errors are # and # %", rows, *errors)
    return filled(text, "the ranges contain # and # %, and # % of pairs are in order", *inside)


def main() -> None:
    """Write `README.md` in place."""
    text = README.read_text(encoding="utf-8")
    for write in (with_commands, with_unseen, with_sources, with_intervals, with_exam):
        text = write(text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
