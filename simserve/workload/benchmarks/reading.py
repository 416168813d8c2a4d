"""Detects which tool wrote a file of results, and reads its runs. Knows the readers, no definitions of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from simserve.documents import read_mapping
from simserve.errors import TraceError
from simserve.workload.benchmarks.aiperf import SUMMARY, is_aiperf, is_aiperf_record, read_aiperf, read_aiperf_records
from simserve.workload.benchmarks.guidellm import is_guidellm, read_guidellm
from simserve.workload.benchmarks.inference_perf import is_inference_perf, is_inference_perf_record, read_inference_perf
from simserve.workload.benchmarks.llm_d import is_llm_d, read_llm_d
from simserve.workload.benchmarks.printed import TITLE, printed_results
from simserve.workload.benchmarks.result import BenchResult, checked
from simserve.workload.benchmarks.sglang import is_sglang, read_sglang
from simserve.workload.benchmarks.table import read_table
from simserve.workload.benchmarks.vllm import is_vllm, read_vllm
from simserve.workload.fields import Fields
from simserve.workload.traces.records import read_records
from simserve.workload.traces.table import read_text

KNOWN = "vllm bench serve, SGLang bench_serving, GuideLLM, AIPerf, inference-perf, an llm-d report, or a documented CSV"

_IN_FOLDERS = (SUMMARY, "benchmarks.json", "stage_*_lifecycle_metrics.json", "benchmark_report*.yaml", "*.jsonl")
"""Names of result files in the folders that tools write."""
_NAMED = 4  # Most files of a folder that an error names.
_ONE_RUN = (
    (is_sglang, read_sglang),
    (is_vllm, read_vllm),
    (is_aiperf, read_aiperf),
    (is_inference_perf, read_inference_perf),
    (is_llm_d, read_llm_d),
)


def read_results(paths: Sequence[Path]) -> list[BenchResult]:
    """Return every run in the files, in order.

    Raises:
        TraceError: A file is missing or of no known tool, or one of its figures cannot be what its name says; names
            file, key and what was expected.
    """
    return [checked(result) for path in paths for result in _read(path)]


def _read(path: Path) -> list[BenchResult]:
    if path.is_dir():
        found = [file.name for pattern in _IN_FOLDERS for file in sorted(path.glob(pattern))]
        remedy = f"name a file in it: {', '.join(found[:_NAMED])}" if found else "name the file of the result"
        raise TraceError("is a folder, not a file", file=path, remedy=remedy)
    if path.suffix == ".csv":
        return read_table(path)
    if path.suffix in (".yaml", ".yml"):
        return _one(Fields(read_mapping(path, TraceError), str(path)), path.name)
    text = read_text(path)
    printed = printed_results(text) if TITLE in text else None
    rows = [Fields(row, str(path)) for row in (read_records(path).rows if printed is None else printed)]
    if all(is_aiperf_record(row.values) for row in rows):
        return [read_aiperf_records(rows, path.name)]
    if is_inference_perf_record(rows[0].values):
        remedy = "read stage_0_lifecycle_metrics.json beside it, and so on"
        raise TraceError("lists requests of inference-perf without their latencies", file=path, remedy=remedy)
    several, part = len(rows) > 1, "line" if printed is None else "table"
    return [
        result
        for index, row in enumerate(rows, 1)
        for result in _one(row, f"{path.name} {part} {index}" if several else path.name)
    ]


def _one(fields: Fields, label: str) -> list[BenchResult]:
    if isinstance(fields.values.get("simserve"), Mapping):
        rule = "is the result of a simulation, and no measurement of a server"
        raise TraceError(rule, file=fields.file, remedy="simserve diff compares two simulations")
    if is_guidellm(fields.values):
        return read_guidellm(fields, label)
    for is_of_tool, read in _ONE_RUN:
        if is_of_tool(fields.values):
            return [read(fields, label)]
    raise TraceError(f"is not a result of a known tool: {KNOWN}", file=fields.file)
