"""``python -m benchmarks.exam --data ../shared/data --predictions NAME=FILE.csv``: the open exam.

Runs ``simserve validate`` on the public rows, reads what other simulators predict for the same rows, and scores all of
them alike: errors of TPOT and TTFT, coverage of 90 % ranges, the order of engines and layouts, the regret of the best
choice under a limit on TPOT, and seconds. Writes ``benchmarks/exam/RESULTS.md``.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.exam.rows import FILES, Key, Prediction, Row, own_predictions, read_predictions, read_rows
from benchmarks.exam.scores import Scores, scores
from simserve.errors import SimserveError, UsageError

PAGE = Path(__file__).with_name("RESULTS.md")
_ABOUT = """# The open exam

Public closed-loop measurements of real servers (SemiAnalysis InferenceX), and what simulators predict for them.
Each table counts only the rows for which all simulators in it have a figure, so that nobody gains by refusing rows.

{command}

To submit another simulator:

1. Write a CSV with the columns `file, id, predicted_ttft_ms, predicted_tpot_ms`. If the simulator gives them, add
   `low_ttft_ms, high_ttft_ms, low_tpot_ms, high_tpot_ms` of a 90 % range and `cpu_seconds` of the line.
2. Write one line per row of the measurements, identified by the `id` in its notes and the name of its file. Leave
   empty what the simulator has no figure for.
3. Run the command with `--predictions NAME=FILE.csv` and `--out PAGE.md`, and send both files.

Nothing may be fitted to the rows; if something was, say so. simserve's ranges are made without the row's own source.
Its constants were fitted on other families and on part of the rows of Hopper (`calibration/ACCURACY.md` says which).
Launch settings and curves of Blackwell were chosen with its rows in view, and constants fitted to 53 of them
(`calibration/LOG.md`).

*in order*: of pairs of rows that are alike except for the engine (or the parallel layout), and whose measured
tokens/s a GPU are at least 3 % apart, the share for which the faster one is predicted rightly.

*kept*: of all rows of a model, GPU, format and length, the one with the most predicted tokens/s a GPU within a limit
on TPOT (15, 25, 40, 60 ms) is chosen. Its measured tokens/s a GPU are divided by those of the best row that holds the
limit. If the chosen row breaks the limit, the best row of its own layout that holds it counts instead.
"""


def main() -> int:
    """Score everybody and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the measurements")
    parser.add_argument("--predictions", action="append", default=[], metavar="NAME=FILE", help="another simulator's")
    parser.add_argument("--own", type=Path, help="a table of simserve validate --out; else it is run")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    try:
        return _score(arguments)
    except SimserveError as failure:
        print(f"exam: error: {failure}", file=sys.stderr)
        return failure.exit_code


def _score(arguments: argparse.Namespace) -> int:
    if arguments.own is not None and not arguments.own.is_file():
        rule = "is no file"
        raise UsageError(rule, key="--own", value=str(arguments.own), remedy="name a table of simserve validate --out")
    rows = read_rows(arguments.data)
    said: dict[str, Mapping[Key, Prediction]] = {}
    seconds: dict[str, float] = {}
    if arguments.own is not None:
        said["simserve"] = own_predictions(arguments.own, arguments.data)
    else:
        said["simserve"], seconds["simserve"] = _run(arguments.data)
    for text in arguments.predictions:
        name, _, file = text.partition("=")
        if not name or not file or name in said:
            rule = "must be NAME=FILE with a name of its own"
            raise UsageError(rule, key="--predictions", value=text, remedy="write mine=predictions.csv")
        handed = read_predictions(Path(file))
        said[name] = handed.said
        if handed.seconds is not None:
            seconds[name] = handed.seconds
        unknown = [each for each in handed.said if each not in rows]
        if unknown:
            first = "/".join(unknown[0])
            print(f"exam: {len(unknown)} lines of {file} name no row that was measured: {first} first", file=sys.stderr)
    page = render(rows, said, seconds)
    arguments.out.write_text(page, encoding="utf-8")
    print(page)
    return 0


def render(rows: Mapping[Key, Row], said: Mapping[str, Mapping[Key, Prediction]], seconds: Mapping[str, float]) -> str:
    """Return the page."""
    others = "".join(f" --predictions {name}=FILE.csv" for name in said if name != "simserve")
    lines = [_ABOUT.format(command=f"```\npython -m benchmarks.exam --data ../shared/data{others}\n```")]
    for title, files in (("Hopper (H100, H200)", FILES[:1]), ("Blackwell (B200)", FILES[1:])):
        keys = [key for key in rows if key[0] in files and all(_has(each, key) for each in said.values())]
        own = [key for key in rows if key[0] in files and _has(said["simserve"], key)]
        total = sum(key[0] in files for key in rows)
        lines += [f"## {title}", "", f"{len(keys)} of {total} rows have a figure from every simulator.", ""]
        lines += _table({name: scores(rows, each, keys) for name, each in said.items()})
        if len(own) > len(keys):
            lines += ["", f"simserve alone, on all {len(own)} rows for which it has a figure:", ""]
            lines += _table({"simserve": scores(rows, said["simserve"], own)})
        lines.append("")
    if seconds:
        times = ", ".join(f"{name} {each:.0f} s" for name, each in seconds.items())
        lines += [f"CPU seconds for all rows: {times}.", ""]
    return "\n".join(lines)


def _has(said: Mapping[Key, Prediction], key: Key) -> bool:
    found = said.get(key)
    return found is not None and not math.isnan(found.ttft) and not math.isnan(found.tpot)


def _table(found: Mapping[str, Scores]) -> list[str]:
    header = ["simulator", "rows", "TPOT error, median", "90th", "bias", "TTFT error, median", "90th", "bias"]
    header += ["TPOT inside", "TTFT inside", "engines in order", "layouts in order", "kept", "limits broken"]
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    for name, each in found.items():
        cells = [name, str(each.rows)]
        for figure in ("tpot", "ttft"):
            middle, _, far, bias = each.errors[figure]
            cells += [f"{middle:.1%}", f"{far:.1%}", f"{bias:+.1%}"]
        cells += [_share(each.coverage[figure]) for figure in ("tpot", "ttft")]
        cells += [f"{_share(share)} of {count}" for share, count in (each.engines, each.layouts, each.kept)]
        lines.append("| " + " | ".join([*cells, _share(each.broken)]) + " |")
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _run(data: Path) -> tuple[dict[Key, Prediction], float]:
    """Return simserve's predictions and the CPU seconds that they took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "own.parquet"
        sources: Sequence[str] = [word for file in FILES for word in ("--source", file)]
        command = [
            sys.executable,
            "-m",
            "simserve",
            "validate",
            "--data",
            str(data),
            *sources,
            "--out",
            str(table),
            "-q",
        ]
        subprocess.run(command, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own_predictions(table, data), after.ru_utime - before.ru_utime


if __name__ == "__main__":
    sys.exit(main())
