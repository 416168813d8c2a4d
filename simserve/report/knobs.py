"""The resolved engine: its version, the knobs that the scenario set, and the defaults of that version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simserve.metrics.result import RunResult
from simserve.profiles.engine_options import version_key

_CONTINUOUS = (
    *("batching", "scheduler", "admission", "kv_allocation", "max_num_seqs"),
    *("max_num_batched_tokens", "max_model_len", "block_size", "gpu_memory_utilization"),
    *("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling", "enforce_eager"),
)
_STATIC = (
    *("batching", "static_batch_size", "static_max_wait", "kv_allocation"),
    *("max_model_len", "block_size", "gpu_memory_utilization"),
)
_NOT_KNOBS = ("name", "version", "requested_version", "sources", "notes")
_SCENARIO = "scenario"
_LONGEST_LIST = 8


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting of the engine."""

    name: str  # vLLM's name.
    text: str  # Its value.
    source: str  # ``scenario``, or where the default comes from.

    @property
    def is_asked(self) -> bool:
        """Whether the scenario set it."""
        return self.source == _SCENARIO


def engine_name(result: RunResult) -> str:
    """Return the engine and the version whose defaults apply, and the version asked for if it differs."""
    resolved = result.summary["simserve"]["engine_resolved"]
    known, asked = resolved.get("version"), resolved.get("requested_version")
    name = f"{resolved['name']} {known}" if known else str(resolved["name"])
    is_same = asked is None or (known is not None and version_key(asked) == version_key(known))
    return name if is_same else f"{name} (nearest known to {asked})"


def important_knobs(result: RunResult) -> list[Knob]:
    """Return the knobs that decide how requests are served under this kind of batching, and those that are set."""
    resolved = result.summary["simserve"]["engine_resolved"]
    names = _STATIC if resolved.get("batching") == "static" else _CONTINUOUS
    asked = [knob for knob in all_knobs(result) if knob.is_asked and knob.name not in names]
    return [*(_knob(resolved, name) for name in names if name in resolved), *asked]


def all_knobs(result: RunResult) -> list[Knob]:
    """Return every knob, in the order of the engine profile."""
    resolved = result.summary["simserve"]["engine_resolved"]
    return [_knob(resolved, name) for name in resolved if name not in _NOT_KNOBS]


def engine_lines(result: RunResult) -> list[str]:
    """Return the engine, what the scenario set, and the defaults that matter."""
    knobs = important_knobs(result)
    lines = [engine_name(result)]
    for label, is_asked in (("set by the scenario", True), ("defaults", False)):
        chosen = [f"{knob.name} {knob.text}" for knob in knobs if knob.is_asked == is_asked]
        if chosen:
            lines.append(f"{label}: {', '.join(chosen)}")
    return lines


def _knob(resolved: Any, name: str) -> Knob:
    return Knob(name, _text(resolved[name]), resolved.get("sources", {}).get(name, ""))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        texts = [str(each) for each in value]
        is_long = len(texts) > _LONGEST_LIST
        return f"{', '.join(texts[:4])}, ... {texts[-1]} ({len(texts)} in all)" if is_long else ", ".join(texts)
    if isinstance(value, float) and value != int(value):
        return f"{value:.6g}"
    return str(int(value)) if isinstance(value, float) else str(value)
