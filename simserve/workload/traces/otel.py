"""OpenTelemetry spans of LLM calls: JSON lines of spans, or of OTLP batches, with token usage in their attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.workload.traces.records import read_records
from simserve.workload.traces.trace import Trace, numbered

_PROMPT_KEYS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_KEYS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
"""Names of today's and of earlier semantic conventions."""
_CONVERSATION_KEY = "gen_ai.conversation.id"
_START_KEYS = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
_VALUE_KEYS = ("intValue", "doubleValue", "stringValue")
_NANOSECONDS_ABOVE = 1e14
"""A number above is nanoseconds since 1970, below it seconds."""


@dataclass(frozen=True, slots=True)
class _Span:
    line: int
    fields: Mapping[str, Any]


def read_otel(path: Path) -> Trace:
    """Return the LLM calls among the spans, in order of their start; the first one arrives at 0.

    Spans without token usage (tools, HTTP) are none. Calls without output tokens are left out and counted.

    Raises:
        TraceError: The file cannot be read, or a call has no start or no whole number of tokens.
    """
    records = read_records(path)
    spans = [each for row, line in zip(records.rows, records.lines, strict=True) for each in _spans(row, line)]
    calls = [_call(span, attributes, path) for span in spans if _is_call(attributes := _attributes(span.fields))]
    served = sorted((call for call in calls if call[2] >= 1), key=lambda call: call[0])
    if not served:
        rule = f"holds no span with {_PROMPT_KEYS[0]} and {_OUTPUT_KEYS[0]}"
        raise TraceError(rule, file=path, remedy="export the spans of the LLM client or server with token usage")
    starts = np.array([call[0] for call in served], dtype=np.int64)
    return Trace(
        arrival_time=(starts - starts[0]) / 1e9,
        prompt_tokens=np.array([call[1] for call in served], dtype=np.int64),
        output_tokens=np.array([call[2] for call in served], dtype=np.int64),
        session=numbered([call[3] for call in served]),
        num_unserved=len(calls) - len(served),
    )


def _spans(row: Mapping[str, Any], line: int) -> Iterator[_Span]:
    """Yield the spans of a line: itself, or those of an OTLP batch."""
    batches = row.get("resourceSpans", row.get("resource_spans"))
    if not isinstance(batches, list):
        yield _Span(line, row)
        return
    for batch in batches:
        for scope in batch.get("scopeSpans", batch.get("scope_spans", ())):
            for span in scope.get("spans", ()):
                yield _Span(line, span)


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes as a mapping: they are one, or OTLP's list of keys and typed values."""
    attributes = span.get("attributes") or {}
    if isinstance(attributes, Mapping):
        return dict(attributes)
    plain = {}
    for each in attributes:
        value = each.get("value", {})
        plain[each.get("key")] = next((value[kind] for kind in _VALUE_KEYS if kind in value), None)
    return plain


def _is_call(attributes: Mapping[str, Any]) -> bool:
    return any(key in attributes for key in _PROMPT_KEYS) and any(key in attributes for key in _OUTPUT_KEYS)


def _call(span: _Span, attributes: Mapping[str, Any], path: Path) -> tuple[int, int, int, str | None]:
    """Return start in ns, prompt tokens, output tokens and conversation of a call."""
    prompt = _tokens(attributes, _PROMPT_KEYS, 1, span.line, path)
    conversation = attributes.get(_CONVERSATION_KEY)
    name = None if conversation is None else str(conversation)
    return _start(span, path), prompt, _tokens(attributes, _OUTPUT_KEYS, 0, span.line, path), name


def _tokens(attributes: Mapping[str, Any], keys: tuple[str, ...], minimum: int, line: int, path: Path) -> int:
    key = next(each for each in keys if each in attributes)
    text = str(attributes[key])
    if not text.isdecimal() or int(text) < minimum:
        rule = f"is not a whole number >= {minimum}"
        raise TraceError(rule, file=path, key=f"row {line}, {key}", value=attributes[key])
    return int(text)


def _start(span: _Span, path: Path) -> int:
    key = next((each for each in _START_KEYS if span.fields.get(each) is not None), None)
    if key is None:
        raise TraceError("is missing", file=path, key=f"row {span.line}, {_START_KEYS[0]}")
    value = span.fields[key]
    try:
        if isinstance(value, str) and not value.isdecimal():
            return int(
                np.datetime64(value.removesuffix("Z").removesuffix("+00:00").replace(" ", "T"), "ns").astype(np.int64)
            )
        number = float(value)
        return int(value) if number > _NANOSECONDS_ABOVE else round(number * 1e9)
    except (ValueError, TypeError):
        raise TraceError("is not a time", file=path, key=f"row {span.line}, {key}", value=value) from None
