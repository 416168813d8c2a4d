"""Note how far off reports were before a change brought them nearer.

``python -m calibration.laboratory.first_replays BEFORE.csv AFTER.csv`` takes two tables of ``simserve validate --source
unseen --out FILE``. BEFORE is the replay before the change, and of a new report its first. The file
`calibration/first_replay.yaml` gets the errors of BEFORE that are smaller in AFTER and are not there yet; what is said
at its head has to name the changes.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

FILE = Path(__file__).resolve().parents[1] / "first_replay.yaml"
COLUMNS = {"tpot": "tpot_ms", "ttft": "ttft_ms", "throughput": "throughput_tok_s"}
_NEEDED = {"label", "shown_only"} | {
    f"{side}_{each}" for each in COLUMNS.values() for side in ("measured", "predicted")
}
NEARER = 0.01
"""The least by which a median error must have fallen to be noted."""

Errors = Mapping[tuple[str, str], float]
"""Report and metric -> median absolute relative error, below 0 if most predictions were too low."""


def errors_of(table: Path) -> Errors:
    """Return the errors of a table of ``simserve validate --source unseen --out FILE``.

    Raises:
        SystemExit: It is no such table.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    if not table.is_file():
        raise SystemExit(f"{table}: no such file")
    with table.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        if _NEEDED - set(rows.fieldnames or ()):
            raise SystemExit(f"{table}: is no table that simserve validate --source unseen --out FILE has written")
        for row in rows:
            report = row["label"].partition(":")[0]
            for metric, column in COLUMNS.items():
                measured, predicted = row[f"measured_{column}"], row[f"predicted_{column}"]
                if measured and predicted and metric not in row["shown_only"].split():
                    found[report, metric].append(float(predicted) / float(measured) - 1.0)
    return {key: math.copysign(median(abs(each) for each in errors), median(errors)) for key, errors in found.items()}


def noted(text: str, before: Errors, after: Errors) -> str:
    """Return the file with the errors of ``before`` that are smaller in ``after``; what stands there stays."""
    head, _, body = text.partition("reports:\n")
    entries = {name: dict(re.findall(r"(\w+): (-?[\d.]+)", own)) for name, own in re.findall(r"  (\S+): {(.*)}", body)}
    for (report, metric), error in before.items():
        if abs(error) - abs(after.get((report, metric), math.inf)) >= NEARER:
            entries.setdefault(report, {}).setdefault(metric, f"{error:.2f}")
    lines = []
    for report, own in sorted(entries.items()):
        ordered = ", ".join(f"{metric}: {own[metric]}" for metric in COLUMNS if metric in own)
        lines.append(f"  {report}: {{{ordered}}}\n")
    return f"{head}reports:\n{''.join(lines)}"


def main(words: Sequence[str]) -> None:
    """Write the file anew and print what it did not have."""
    if len(words) != 2:
        raise SystemExit("usage: python -m calibration.laboratory.first_replays BEFORE.csv AFTER.csv")
    before, after = words
    text = FILE.read_text(encoding="utf-8")
    new = noted(text, errors_of(Path(before)), errors_of(Path(after)))
    FILE.write_text(new, encoding="utf-8")
    known = set(text.splitlines())
    print("\n".join(line.strip() for line in new.splitlines() if line not in known) or "nothing new")


if __name__ == "__main__":
    main(sys.argv[1:])
