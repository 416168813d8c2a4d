"""Results in a CSV with one run per row, for tools that have no reader.

=========================================  ====================================================================
request_rate, or max_concurrency           requests/s of a Poisson client, or clients in a closed loop; one of them
num_requests                               requests answered
input_len, output_len                      mean tokens
{mean,median,p90,p95,p99}_ttft_ms          first token - sending
..._tpot_ms                                (last - first token) / (output tokens - 1) per request: no first token
..._ntpot_ms                               (last token - sending) / output tokens per request: with the first token
..._itl_ms                                 every gap between tokens, pooled over requests
..._e2el_ms                                last token - sending
output_throughput, request_throughput      tokens/s, requests/s over the whole run
label, notes                               text
=========================================  ====================================================================

An empty field was not measured. Other columns are refused: a name that is not listed here has no definition.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from simserve.documents import read_text
from simserve.errors import TraceError, nearest
from simserve.workload.benchmarks.result import RATES, STATISTICS, BenchResult

LATENCY_COLUMNS = {
    f"{statistic}_{theirs}_ms": f"{statistic}_{ours}"
    for statistic in STATISTICS
    for theirs, ours in (("ttft", "ttft"), ("tpot", "tpot"), ("ntpot", "ntpot"), ("itl", "itl"), ("e2el", "e2e"))
}
LOAD_COLUMNS = ("request_rate", "max_concurrency")
LENGTH_COLUMNS = ("num_requests", "input_len", "output_len")
COLUMNS = (*LOAD_COLUMNS, *LENGTH_COLUMNS, *LATENCY_COLUMNS, *RATES, "label", "notes")
DEFINITIONS = {
    "ttft": "ttft: first token - sending",
    "tpot": "tpot: (last - first token) / (output tokens - 1) a request",
    "ntpot": "ntpot: (last token - sending) / output tokens a request",
    "itl": "itl: gaps between tokens, pooled over requests",
    "e2e": "e2el: last token - sending",
}


def read_table(path: Path) -> list[BenchResult]:
    """Return the runs of a CSV.

    Raises:
        TraceError: A column is unknown or missing, or a field is not a number.
    """
    reader = csv.DictReader(io.StringIO(read_text(path, TraceError)))
    columns = [name.strip() for name in reader.fieldnames or ()]
    if not columns:
        raise TraceError("is empty", file=path)
    unknown = next((name for name in columns if name not in COLUMNS), None)
    if unknown is not None:
        raise TraceError("is not a documented column", file=path, key=unknown, remedy=nearest(unknown, COLUMNS))
    missing = [name for name in LENGTH_COLUMNS if name not in columns]
    if missing or not set(LOAD_COLUMNS) & set(columns):
        wanted = missing or ["request_rate or max_concurrency"]
        raise TraceError("is missing: a column is expected", file=path, key=", ".join(wanted))
    rows = [_row(row, path, line) for line, row in enumerate(reader, 2) if any(row.values())]
    if not rows:
        raise TraceError("holds no row", file=path, remedy="one run a row")
    return rows


def _row(row: dict[str, Any], path: Path, line: int) -> BenchResult:
    values = {str(key).strip(): (value or "").strip() for key, value in row.items() if isinstance(value, str)}

    def number(name: str) -> float:
        try:
            value = float(values.get(name, ""))
        except ValueError:
            value = float("nan")
        if not np.isfinite(value) or value <= 0:
            raise TraceError("must be a number above 0", file=path, key=f"row {line}, {name}", value=values.get(name))
        return value

    given = [name for name in LOAD_COLUMNS if values.get(name)]
    if len(given) != 1:
        raise TraceError("one of both is expected", file=path, key=f"row {line}, {' and '.join(LOAD_COLUMNS)}")
    load = number(given[0])
    arrivals = (
        {"process": "poisson", "rate": load}
        if given[0] == "request_rate"
        else {"process": "closed_loop", "concurrency": round(load)}
    )
    measured = {ours: number(theirs) * 1e-3 for theirs, ours in LATENCY_COLUMNS.items() if values.get(theirs)}
    measured |= {rate: number(rate) for rate in RATES if values.get(rate)}
    return BenchResult(
        label=values.get("label") or f"{path.name} row {line}",
        file=str(path),
        tool="CSV",
        arrivals=arrivals,
        num_requests=round(number("num_requests")),
        prompt_tokens=np.array([number("input_len")]),
        output_tokens=np.array([number("output_len")]),
        measured=measured,
        definitions=DEFINITIONS,
    )
