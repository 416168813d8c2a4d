"""How requests take the slots of llama.cpp's server, which computes only consecutive ones together."""

from __future__ import annotations

from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.scenario.schema import Scenario
from simserve.workload.distributions import length_distribution
from simserve.workload.length_spec import FixedLength

SLOT_PROMPT_SIMILARITY = 0.1
"""Share of a prompt that a slot of llama.cpp must hold to be chosen for it (--slot-prompt-similarity)."""


def with_slots(engine: ResolvedEngine, scenario: Scenario) -> ResolvedEngine:
    """Return an engine that knows in which of its slots the requests of a scenario lie."""
    if engine.similar_prompts is None and _begin_alike(scenario):
        engine = engine.model_copy(update={"similar_prompts": True})
    return engine.model_copy(update={"equal_answers": True}) if _answers_alike(scenario) else engine


def _begin_alike(scenario: Scenario) -> bool:
    """Return whether a system prompt that all requests share is more than that share of a prompt.

    Turns of a conversation return to the slot of the previous turn, wherever that is.
    """
    workload = scenario.workload
    shared, own = workload.shared_prefix, workload.prompt_tokens
    if shared is None or shared.num_groups > 1 or own is None or workload.sessions or workload.agents:
        return False
    mean = length_distribution(own, scenario.folder).mean
    return shared.tokens > SLOT_PROMPT_SIMILARITY * (shared.tokens + mean)


def _answers_alike(scenario: Scenario) -> bool:
    """Return whether all answers take equally many steps, so that requests end in the order in which they began."""
    workload = scenario.workload
    if workload.sessions or workload.agents or workload.classes or workload.thinking_tokens is not None:
        return False
    return isinstance(workload.output_tokens, FixedLength) and scenario.deployment.speculative is None
