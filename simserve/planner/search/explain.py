"""Explains in words why a deployment is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.errors import InputError
from simserve.perf.memory import is_context_cut, is_left_to_cpu
from simserve.planner.search.bound import Bound, loosest_limits
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario
from simserve.units import format_bytes
from simserve.workload.requests import RequestSpecs


def bound_reason(bound: Bound, scenario: Scenario) -> str:
    """Return in words which limit no fleet of a deployment can meet."""
    term, slo = bound.out_of_reach, loosest_limits(scenario)
    if term is None or slo is None:
        return ""
    if term == "slo":
        return "no schedule meets all limits at once for enough requests (bound)"
    limit = getattr(slo, term)
    if bound.of(term) <= limit:
        return f"too many requests cannot meet {term.upper()} at all (bound, or prompts that are too long)"
    return (
        f"{term.upper()} of p{100 * slo.attainment:g} is at least {bound.of(term) * 1e3:,.0f} ms (bound), "
        f"asked {limit * 1e3:,.0f} ms"
    )


def is_short(resolved: ResolvedScenario) -> bool:
    """Return whether a deployment does not fit whole: what an engine leaves to the CPU by itself is no plan."""
    memory = resolved.memory
    return not memory.fits or memory.shortage_bytes > 0 or is_left_to_cpu(resolved.shape.engine)


def shortage(resolved: ResolvedScenario) -> str:
    """Return what a deployment that does not fit lacks."""
    memory = resolved.memory
    if is_left_to_cpu(resolved.shape.engine):
        return f"does not fit: {resolved.shape.engine.name} would leave a part of the model to the CPU"
    if memory.shortage_bytes:
        return f"does not quite fit: {format_bytes(memory.shortage_bytes)} lack on each GPU"
    if memory.longest_sequence == 0:
        return f"does not fit: {memory.arithmetic[-2] if len(memory.arithmetic) > 1 else memory.arithmetic[-1]}"
    return (
        f"does not fit: KV memory for {memory.longest_sequence:,} of the {memory.max_model_len:,} tokens of one request"
    )


def context_shortage(resolved: ResolvedScenario, specs: RequestSpecs) -> str | None:
    """Return what is missing if the engine cut the context to its KV cache and requests are longer; else None."""
    if not is_context_cut(resolved.shape.engine):
        return None
    answers = np.where(specs.max_tokens < 0, specs.output_tokens, np.minimum(specs.output_tokens, specs.max_tokens))
    longest = int((specs.prompt_tokens + answers).max())
    if longest <= resolved.memory.max_model_len:
        return None
    return f"does not fit: KV memory for {resolved.memory.max_model_len:,} of the {longest:,} tokens of one request"


def clause(refusal: InputError) -> str:
    """Return why a deployment is refused, without the location and the remedy."""
    where = f"{refusal.key} " if refusal.key else ""
    value = "" if refusal.value is None else f"{refusal.value} "
    return f"{where}{value}{refusal.rule}"


def plain(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides as plain values, in the order of their keys."""
    return {key: overrides[key] for key in sorted(overrides)}
