"""Everything `make bench` measures, in one page: throughput, features, scaling, start-up, answers, profile.

    python benchmarks/bench.py --write benchmarks/RESULTS.md     and `scaling.svg` beside it
    python benchmarks/bench.py --quick                           small sizes, to see that it runs

About six minutes on two quiet cores. Figures are user CPU seconds and ratios; nothing here is a test.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import answers, features, scaling, start_up, where_time_goes

HERE = Path(__file__).resolve().parent
DRAWING = "scaling.svg"


def main() -> None:
    """Print the page as it grows, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="also write the page to this Markdown file")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drawing = Path(folder) / DRAWING
        lines = []
        for line in page(drawing, quick=arguments.quick):
            print(line, flush=True)
            lines.append(line)
        if arguments.write:
            arguments.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
            arguments.write.with_name(DRAWING).write_text(drawing.read_text(encoding="utf-8"), encoding="utf-8")


def page(drawing: Path, *, quick: bool) -> Iterator[str]:
    """Yield the lines of the page, and leave its picture in ``drawing``."""
    yield from _throughput(drawing.parent, quick=quick)
    for title, lines in features.tables(quick=quick):
        yield from ("", f"## {title}", "")
        yield from lines
    yield from ("", "## Size, and a walker for comparison", "")
    points = scaling.measure(quick=quick)
    drawing.write_text(scaling.drawing(points), encoding="utf-8")
    yield from (scaling.summary(points), "", f"![User CPU seconds and peak memory by requests]({DRAWING})", "")
    yield from scaling.table(points)
    yield from ("", "## Whole commands, start-up included", "")
    yield from start_up.table(quick=quick)
    yield from ("", "## How long an answer takes", "")
    yield from answers.lines(quick=quick)
    yield from ("", "## Where the time goes", "")
    yield from where_time_goes.lines(quick=quick)


def _throughput(folder: Path, *, quick: bool) -> list[str]:
    """Return the lines of `throughput.py`'s page."""
    written = folder / "throughput.md"
    command = [sys.executable, str(HERE / "throughput.py"), "--write", str(written), *(["--quick"] if quick else [])]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return written.read_text(encoding="utf-8").rstrip().splitlines()


if __name__ == "__main__":
    main()
