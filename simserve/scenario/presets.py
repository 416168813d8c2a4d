"""Service-level objectives by use case, for `slo: chat`: limits that somebody published, each with its source.

A preset is a start for a deployment that has no objective of its own yet; keys beside it in the scenario come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from simserve.errors import nearest

UseCase = Literal["chat", "rag", "code-completion", "summarisation", "agents", "batch"]

_GUIDELLM = "GuideLLM, docs/guides/service_level_objectives.md (vllm-project/guidellm, 2026)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SLOPreset:
    """The objective of a use case.

    Attributes:
        limits: ``ttft tpot e2e`` -> time with its unit, those that the source states.
        attainment: Share of requests that must keep all of them.
        reason: Why these, in a few words.
        source: Who states them.
    """

    limits: dict[str, str]
    attainment: float
    reason: str
    source: str


SLO_PRESETS: dict[str, SLOPreset] = {
    "chat": SLOPreset(
        limits={"ttft": "200 ms", "tpot": "50 ms"},
        attainment=0.99,
        reason="an answer that starts at once and streams faster than it is read",
        source=_GUIDELLM,
    ),
    "rag": SLOPreset(
        limits={"ttft": "300 ms", "tpot": "100 ms", "e2e": "3 s"},
        attainment=0.99,
        reason="a short answer over long context; retrieval comes on top of it",
        source=_GUIDELLM,
    ),
    "code-completion": SLOPreset(
        limits={"e2e": "2 s"},
        attainment=0.99,
        reason="a suggestion is of use only whole, and before the next key",
        source=_GUIDELLM,
    ),
    "summarisation": SLOPreset(
        limits={"ttft": "15 s", "tpot": "150 ms"},
        attainment=0.9,
        reason="long prompts that nobody expects to be read at once",
        source="DistServe (Zhong et al., OSDI 2024), table 1: summarization with OPT-66B on LongBench, 90% attainment",
    ),
    "agents": SLOPreset(
        limits={"e2e": "5 s"},
        attainment=0.99,
        reason="the next call waits for the whole answer, so only its end counts",
        source=_GUIDELLM,
    ),
    "batch": SLOPreset(
        limits={"e2e": "1 d"},
        attainment=0.99,
        reason="nobody waits: done within a day",
        source="the completion window of hosted batch APIs: OpenAI's completion_window is 24h",
    ),
}


def with_preset(slo: object) -> object:
    """Return the keys of an ``slo`` block with those of its preset filled in; a name alone is a preset.

    Raises:
        ValueError: There is no such preset; a rule and a remedy, ready to stand behind ``slo``.
    """
    given = {"preset": slo} if isinstance(slo, str) else slo
    if not isinstance(given, dict) or given.get("preset") is None:
        return given
    name = given["preset"]
    preset = SLO_PRESETS.get(name) if isinstance(name, str) else None
    if preset is None:
        shown = "" if isinstance(slo, str) else f"{name!r} "
        raise ValueError(f"{shown}is not a preset; {nearest(str(name), get_args(UseCase))}")
    return {**preset.limits, "attainment": preset.attainment, **given}
