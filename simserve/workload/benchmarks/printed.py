"""The tables that ``vllm bench serve`` and SGLang's bench_serving print, as results under the keys of their JSON.

Both tools print the same table, with a few different labels; the text around it (the command, its options) gives the
model and how requests were sent. Knows the labels, not how results are used.
"""

from __future__ import annotations

import re
from typing import Any

TITLE = "Serving Benchmark Result"
_END = re.compile(r"^={20,}\s*$", re.MULTILINE)
_NUMBER = r"(\d[\d.eE+-]*)"
_FIGURES = {
    "completed": r"Successful requests",
    "failed": r"Failed requests",
    "duration": r"Benchmark duration \(s\)",
    "total_input_tokens": r"Total input tokens",
    "total_output_tokens": r"Total generated tokens",
    "request_throughput": r"Request throughput \(req/s\)",
    "output_throughput": r"Output token throughput \(tok/s\)",
    "total_token_throughput": r"Total [Tt]oken throughput \(tok/s\)",
    "accept_length": r"Accept length",
} | {
    f"{kind}_{metric}_ms": rf"{kind.title()} {label} \(ms\)"
    for kind in ("mean", "median", "p90", "p95", "p99")
    for metric, label in (
        ("ttft", "TTFT"),
        ("tpot", "TPOT"),
        ("itl", "ITL"),
        ("e2el", "E2EL"),
        ("e2e_latency", "E2E Latency"),
    )
}
_OPTIONS = {
    "request_rate": (r"(?:Traffic request rate|Request rate configured \(RPS\)):\s+", r"\brequest_rate="),
    "max_concurrency": (r"Max(?:imum)? req\w+ concurrency:\s+", r"\bmax_concurrency="),
    "burstiness": (r"Burstiness factor:\s+", r"\bburstiness="),
    "model_id": (r"\bmodel(?:_path|_id)?=", r"--model(?:-path)?[= ]\s*"),
    "backend": (r"Backend:\s+", r"\bbackend="),
}
_TEXTS = ("model_id", "backend")
_UNSET = ("None", "not", "")


def printed_results(text: str) -> list[dict[str, Any]]:
    """Return every result in a text, in order; what a table does not say is taken from the text before it."""
    before, *parts = text.split(TITLE)
    results = []
    for part in parts:
        end = _END.search(part)
        table, after = (part, "") if end is None else (part[: end.start()], part[end.end() :])
        results.append(_result(table, before))
        before += table + after
    return results


def _result(table: str, before: str) -> dict[str, Any]:
    result: dict[str, Any] = {"completed": None}
    for key, label in _FIGURES.items():
        if found := re.search(rf"\b{label}:\s+{_NUMBER}", table):
            result[key] = _value(found[1])
    for key, beginnings in _OPTIONS.items():
        value = next(filter(None, (_option(begin, table, before) for begin in beginnings)), None)
        if value is not None:
            result[key] = value if key in _TEXTS else _value(value)
    return result


def _option(begin: str, table: str, before: str) -> str | None:
    """Return the value of an option: its last value in the table, else in the text before it; None: there is none."""
    for text in (table, before):
        values: list[str] = [value.rstrip("/") for value in re.findall(begin + r"""["']?([^\s"',)]+)""", text)]
        values = [value for value in values if value not in _UNSET and not value.startswith("$")]
        if values:
            return values[-1]
    return None


def _value(text: str) -> float | str:
    """Return a number; other text is returned unchanged, and refused by its key where a number is needed."""
    try:
        return "inf" if text == "inf" else float(text)
    except ValueError:
        return text
