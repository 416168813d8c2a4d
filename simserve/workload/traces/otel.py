"""OpenTelemetry spans of LLM calls: JSON lines of spans, or of OTLP batches, with token usage in their attributes.

Attributes and operations are those of the semantic conventions for generative AI (opentelemetry.io, gen-ai-spans and
gen-ai-agent-spans).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.workload.traces.records import read_records
from simserve.workload.traces.table import MAX_TOKENS
from simserve.workload.traces.tasks import RecordedCall, RecordedTasks, tasks_by_time
from simserve.workload.traces.trace import Trace, numbered

_PROMPT_KEYS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_KEYS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
"""Names in the current and in earlier semantic conventions."""
_CONVERSATION_KEY = "gen_ai.conversation.id"
_OPERATION_KEY = "gen_ai.operation.name"
_AGENT_OPERATION = "invoke_agent"
_TRACE_KEYS = ("traceId", "trace_id")
_SPAN_KEYS = ("spanId", "span_id")
_PARENT_KEYS = ("parentSpanId", "parent_span_id", "parent_id")
_END_KEYS = ("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")
_START_KEYS = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
_VALUE_KEYS = ("intValue", "doubleValue", "stringValue")
_NANOSECONDS_ABOVE = 1e14  # Larger numbers are nanoseconds since 1970, smaller ones seconds.


_Key = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class _Span:
    line: int | str
    fields: Mapping[str, Any]

    def named(self, keys: tuple[str, ...]) -> str | None:
        """Return the first of some fields that is present, as text."""
        found = next((self.fields[key] for key in keys if self.fields.get(key)), None)
        return None if found is None else str(found)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call to a model: when it was sent (ns), its tokens, its conversation, and its span."""

    start: int
    prompt_tokens: int
    output_tokens: int
    conversation: str | None
    span: _Span


def read_otel(path: Path) -> Trace:
    """Return the LLM calls among the spans, in order of their start; the first one arrives at 0.

    Spans without token usage (tools, HTTP) are not calls. Calls without output tokens are left out and counted. If
    spans name their traces, each trace is a task: its agents are the ``invoke_agent`` spans (and the trace itself), and
    a call belongs to the innermost one that contains it.

    Raises:
        TraceError: The file cannot be read, or a call has no start or no whole number of tokens.
    """
    records = read_records(path)
    spans = [each for row, line in zip(records.rows, records.lines, strict=True) for each in _spans(row, line)]
    calls = [_call(span, attributes, path) for span in spans if _is_call(attributes := _attributes(span.fields))]
    served = sorted((call for call in calls if call.output_tokens >= 1), key=lambda call: call.start)
    if not served:
        rule = f"holds no span with {_PROMPT_KEYS[0]} and {_OUTPUT_KEYS[0]}"
        raise TraceError(rule, file=path, remedy="export the spans of the LLM client or server with token usage")
    starts = np.array([call.start for call in served], dtype=np.int64)
    return Trace(
        arrival_time=(starts - starts[0]) / 1e9,
        prompt_tokens=np.array([call.prompt_tokens for call in served], dtype=np.int64),
        output_tokens=np.array([call.output_tokens for call in served], dtype=np.int64),
        session=numbered([call.conversation for call in served]),
        tasks=_tasks(served, spans, path),
        num_unserved=len(calls) - len(served),
    )


def _tasks(calls: list[_Call], spans: list[_Span], path: Path) -> RecordedTasks | None:
    """Return the tasks of the calls; None if a call's span does not name its trace or its end."""
    if any(call.span.named(_TRACE_KEYS) is None or call.span.named(_END_KEYS) is None for call in calls):
        return None
    known = {(span.named(_TRACE_KEYS), span.named(_SPAN_KEYS)): span for span in spans}
    first = calls[0].start
    around: dict[_Key, tuple[str, ...]] = {}
    recorded = []
    for call in calls:
        task = call.span.named(_TRACE_KEYS)
        agents = _agents_around(call.span, known, around)
        recorded.append(
            RecordedCall(
                task=task,
                agent=agents[0],
                started_by=agents[1] if len(agents) > 1 else None,
                start=(call.start - first) / 1e9,
                end=(max(_time(call.span, _END_KEYS, path), call.start) - first) / 1e9,
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
            )
        )
    return tasks_by_time(recorded)


def _agents_around(span: _Span, known: Mapping[_Key, _Span], agents: dict[_Key, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the two innermost agents that contain a span; one of them may be the trace itself.

    Args:
        known: All spans, by trace and name.
        agents: The agents around the direct children of each span, as far as known; filled in.
    """
    trace, inner = span.named(_TRACE_KEYS), dict[_Key, None]()
    key = (trace, span.named(_PARENT_KEYS))
    while key in known and key not in agents and key not in inner:
        inner[key] = None
        key = (trace, known[key].named(_PARENT_KEYS))
    around = agents.get(key, ("",))
    for each in reversed(inner):
        if _attributes(known[each].fields).get(_OPERATION_KEY) == _AGENT_OPERATION:
            around = (str(each[1]), around[0])
        agents[each] = around
    return around


def _spans(row: Mapping[str, Any], line: int | str) -> Iterator[_Span]:
    """Yield the spans of a line: itself, or those of an OTLP batch."""
    batches = row.get("resourceSpans", row.get("resource_spans"))
    if not isinstance(batches, list):
        yield _Span(line, row)
        return
    for batch in _objects(batches):
        for scope in _objects(batch.get("scopeSpans", batch.get("scope_spans"))):
            for span in _objects(scope.get("spans")):
                yield _Span(line, span)


def _objects(listed: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list; anything that is not a list, or not an object in it, is ignored."""
    return [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes as a mapping; the file has a mapping, or OTLP's list of keys and typed values."""
    attributes = span.get("attributes") or {}
    if isinstance(attributes, Mapping):
        return dict(attributes)
    plain = {}
    for each in _objects(attributes):
        value = each.get("value")
        typed = value if isinstance(value, Mapping) else {}
        plain[str(each.get("key"))] = next((typed[kind] for kind in _VALUE_KEYS if kind in typed), None)
    return plain


def _is_call(attributes: Mapping[str, Any]) -> bool:
    """Return whether a span is a call; spans of agents are not, though they may have the sum of their calls' tokens."""
    if attributes.get(_OPERATION_KEY) == _AGENT_OPERATION:
        return False
    return any(key in attributes for key in _PROMPT_KEYS) and any(key in attributes for key in _OUTPUT_KEYS)


def _call(span: _Span, attributes: Mapping[str, Any], path: Path) -> _Call:
    prompt = _tokens(attributes, _PROMPT_KEYS, 1, span.line, path)
    conversation = attributes.get(_CONVERSATION_KEY)
    name = None if conversation is None else str(conversation)
    outputs = _tokens(attributes, _OUTPUT_KEYS, 0, span.line, path)
    return _Call(_time(span, _START_KEYS, path), prompt, outputs, name, span)


def _tokens(attributes: Mapping[str, Any], keys: tuple[str, ...], minimum: int, line: int | str, path: Path) -> int:
    key = next(each for each in keys if each in attributes)
    text = str(attributes[key])
    rule = None
    if not text.isdecimal() or float(text) < minimum:
        rule = f"is not a whole number >= {minimum}"
    elif float(text) > MAX_TOKENS:
        rule = f"must be <= {MAX_TOKENS}"
    if rule is not None:
        raise TraceError(rule, file=path, key=f"row {line}, {key}", value=attributes[key])
    return int(text)


def _time(span: _Span, keys: tuple[str, ...], path: Path) -> int:
    """Return a time of a span, ns since 1970."""
    key = next((each for each in keys if span.fields.get(each) is not None), None)
    if key is None:
        raise TraceError("is missing", file=path, key=f"row {span.line}, {keys[0]}")
    value = span.fields[key]
    try:
        if isinstance(value, str) and not value.isdecimal():
            date = value.removesuffix("Z").removesuffix("+00:00").replace(" ", "T")
            if not 0 <= int(np.datetime64(date, "s").astype(np.int64)) < 2**63 / 1e9:
                raise ValueError
            return int(np.datetime64(date, "ns").astype(np.int64))
        number = float(value)
        time = int(value) if number > _NANOSECONDS_ABOVE else round(number * 1e9)
        if not 0 <= time < 2**63:
            raise ValueError
        return time
    except (ValueError, TypeError, OverflowError):
        raise TraceError("is not a time", file=path, key=f"row {span.line}, {key}", value=value) from None
