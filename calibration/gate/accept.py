"""Take the model's present figures as the calibrated ones: ``python -m calibration.gate.accept``.

Rewrites the figures of ``serving/*.csv`` and ``kernels/*/*.csv``, loads and sizes stay, and prints what moved as
``old -> new``: the lines for the changelog. ``simserve calibrate check`` compares with these files.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from simserve.calibrate.drift import read_tables
from simserve.calibrate.kernel_prediction import predicted
from simserve.calibrate.simulated import ServingModel, replay_of
from simserve.profiles.hardware import load_hardware
from simserve.scenario.load import load
from simserve.workload.benchmarks.reading import read_results
from simserve.workload.benchmarks.table import LATENCY_COLUMNS

GATE = Path(__file__).resolve().parent
DIGITS = 6
ENGINE = "vllm"
"""Whose kernels the gate of a GPU looks at."""


def serving_files() -> Iterator[tuple[Path, Path]]:
    """Yield each scenario of the gate with the figures of its deployment."""
    for scenario in sorted((GATE / "serving").glob("*.yaml")):
        yield scenario, scenario.with_suffix(".csv")


def kernel_folders() -> list[Path]:
    """Return the folders of single calls, each named for its hardware profile."""
    return sorted(path for path in (GATE / "kernels").iterdir() if path.is_dir())


def accept(file: Path, figures: list[Mapping[str, float]]) -> list[str]:
    """Write figures over those of a CSV and return what moved."""
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    moved = []
    for row, found in zip(rows, figures, strict=True):
        for column, value in found.items():
            new = f"{value:.{DIGITS}g}"
            if row[column] != new:
                name = ", ".join(text for key, text in row.items() if key not in found and text)
                moved.append(f"{file.relative_to(GATE)}: {name}: {column} {row[column]} -> {new}")
                row[column] = new
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    file.write_text(text.getvalue(), encoding="utf-8")
    return moved


def accept_serving(scenario: Path, file: Path) -> list[str]:
    """Simulate the runs of a CSV and write their figures into it; return what moved."""
    loaded = load(str(scenario))
    model, figures = ServingModel(loaded), []
    names = {**LATENCY_COLUMNS, "output_throughput": "output_throughput"}
    columns = file.read_text(encoding="utf-8").splitlines()[0].split(",")
    for result in read_results([file]):
        simulated = model.predict(replay_of(result, loaded))
        figures.append(
            {
                column: simulated[names[column]] * (1e3 if column.endswith("_ms") else 1.0)
                for column in columns
                if column in names
            }
        )
    return accept(file, figures)


def accept_kernels(folder: Path) -> list[str]:
    """Price the calls of a folder by its hardware profile and write them; return what moved."""
    hardware, moved = load_hardware(folder.name), []
    for table, columns in read_tables(folder, ENGINE).items():
        seconds = predicted(table, columns, hardware, ENGINE)
        moved += accept(folder / f"{table}.csv", [{"latency": float(each) * 1e3} for each in seconds])
    return moved


def main() -> int:
    """Rewrite the gate and print what moved."""
    moved = [line for scenario, file in serving_files() for line in accept_serving(scenario, file)]
    moved += [line for folder in kernel_folders() for line in accept_kernels(folder)]
    print("\n".join(moved) if moved else "nothing moved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
