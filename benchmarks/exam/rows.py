"""The rows of the exam: public closed-loop measurements by name, and what was predicted for them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

from simserve.errors import InputError, UsageError

FILES = ("inferencex_agg", "inferencex_agg_blackwell")
"""Of ``measured/``: InferenceX, on Hopper and on Blackwell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measurement.

    Attributes:
        file: Where it stands.
        id: Its name there.
        model: As the file names it.
        hardware: Likewise.
        engine: Likewise.
        precision: Likewise.
        layout: Parallel sizes, as words.
        gpus: GPUs of the server.
        prompt: Tokens of a prompt.
        output: Tokens of an answer.
        clients: Requests in hand.
        ttft: Milliseconds.
        tpot: Milliseconds.
    """

    file: str
    id: str
    model: str
    hardware: str
    engine: str
    precision: str
    layout: str
    gpus: int
    prompt: int
    output: int
    clients: int
    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a simulator says of a row: milliseconds; NaN where it says nothing.

    Attributes:
        ttft: Its figure.
        tpot: Its figure.
        ttft_range: Where it says that 90 % of real servers lie; NaN: it does not say.
        tpot_range: Likewise.
    """

    ttft: float
    tpot: float
    ttft_range: tuple[float, float] = (math.nan, math.nan)
    tpot_range: tuple[float, float] = (math.nan, math.nan)


Key = tuple[str, str]
"""File and id."""


def read_rows(data: Path) -> dict[Key, Row]:
    """Return the rows that have both figures, by file and id.

    Args:
        data: Folder of measurements, or one that holds them below ``measured``.

    Raises:
        UsageError: It lacks one of their files.
    """
    folder = data / "measured" if (data / "measured").is_dir() else data
    found = {}
    for file in FILES:
        if not (folder / f"{file}.csv").is_file():
            raise UsageError(f"has no {file}.csv", file=data, key="--data", remedy="name the folder of measurements")
        with (folder / f"{file}.csv").open(encoding="utf-8", newline="") as lines:
            for line in csv.DictReader(lines):
                name = re.search(r"(?:^|; )id=([^;]+)", line["notes"])
                if name is None or not line["ttft_ms"] or not line["tpot_ms"]:
                    continue
                row = Row(
                    file=file,
                    id=name[1].strip(),
                    model=line["model"],
                    hardware=line["hardware"],
                    engine=line["framework"],
                    precision=line["precision"],
                    layout="/".join(line[size] or "1" for size in ("tp", "pp", "ep", "dp")),
                    gpus=int(line["gpus"] or 1),
                    prompt=int(line["isl"]),
                    output=int(line["osl"]),
                    clients=int(float(line["load_value"])),
                    ttft=float(line["ttft_ms"]),
                    tpot=float(line["tpot_ms"]),
                )
                found[(row.file, row.id)] = row
    return found


NEEDED = ("file", "id", "predicted_ttft_ms", "predicted_tpot_ms")
RANGES = ("low_ttft_ms", "high_ttft_ms", "low_tpot_ms", "high_tpot_ms")
SECONDS = "cpu_seconds"
"""Column of what a row took to predict; a file may have it, as it may have the ranges."""


@dataclass(frozen=True, slots=True)
class HandedIn:
    """What a file of predictions holds.

    Attributes:
        said: Its predictions.
        seconds: CPU seconds of all its lines; None: it does not say.
    """

    said: dict[Key, Prediction]
    seconds: float | None


def read_predictions(path: Path) -> HandedIn:
    """Return what a file says: ``file, id, predicted_ttft_ms, predicted_tpot_ms``, and ``low_``, ``high_``, seconds.

    Raises:
        InputError: It cannot be read, lacks a column, names a row twice, or has a figure that is no time.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            columns, table = reader.fieldnames or (), list(reader)
    except (OSError, UnicodeDecodeError) as failure:
        raise InputError(f"cannot be read ({failure})", file=path, remedy="name a CSV file in UTF-8") from failure
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(f"has no column {', '.join(missing)}", file=path, remedy=f"write {', '.join(NEEDED)}")
    said: dict[Key, Prediction] = {}
    for number, line in enumerate(table, start=2):
        key = (line["file"], line["id"])
        if key in said:
            raise InputError(
                "is predicted twice", file=path, key=f"line {number}", value=line["id"], remedy="leave one"
            )
        ttft, tpot, *ranges = (_time(path, number, line, name) for name in (*NEEDED[2:], *RANGES))
        said[key] = Prediction(
            ttft=ttft, tpot=tpot, ttft_range=(ranges[0], ranges[1]), tpot_range=(ranges[2], ranges[3])
        )
    times = [_time(path, number, line, SECONDS) for number, line in enumerate(table, start=2)]
    return HandedIn(said, sum(times) if SECONDS in columns and not any(map(math.isnan, times)) else None)


def _time(path: Path, number: int, line: dict[str, str], name: str) -> float:
    """Return a cell, NaN where it is empty or absent."""
    text = (line.get(name) or "").strip()
    try:
        value = float(text or math.nan)
    except ValueError:
        value = -math.inf
    if value <= 0.0 or math.isinf(value):
        rule = "must be a number above 0, or empty where there is no figure"
        raise InputError(rule, file=path, key=f"line {number}, {name}", value=text, remedy="mend the line")
    return value


def own_predictions(table: Path, data: Path) -> dict[Key, Prediction]:
    """Return what ``simserve validate --out`` wrote: its labels name the lines of the files."""
    ids = {(file, line): name for file in FILES for line, name in _ids(data, file)}
    columns = "source, label, " + ", ".join(
        f"{kind}_{figure}_ms" for figure in ("ttft", "tpot") for kind in ("predicted", "low", "high")
    )
    found = {}
    for source, label, *figures in duckdb.sql(f"SELECT {columns} FROM '{table}'").fetchall():
        line = re.search(r"row (\d+)$", label)
        name = None if line is None else ids.get((source, int(line[1])))
        if name is not None:
            values = [math.nan if each is None else float(each) for each in figures]
            found[(source, name)] = Prediction(
                ttft=values[0], ttft_range=(values[1], values[2]), tpot=values[3], tpot_range=(values[4], values[5])
            )
    return found


def _ids(data: Path, file: str) -> Iterator[tuple[int, str]]:
    folder = data / "measured" if (data / "measured").is_dir() else data
    with (folder / f"{file}.csv").open(encoding="utf-8", newline="") as lines:
        for number, line in enumerate(csv.DictReader(lines), start=1):
            name = re.search(r"(?:^|; )id=([^;]+)", line["notes"])
            if name is not None:
                yield number, name[1].strip()
