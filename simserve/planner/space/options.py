"""Ways to deploy beside the shape and the engine's knobs: drafts, routing, scaling, pools, overflow, admission.

Each is a dimension of the search with a few choices, and enters only where the traffic could profit; why one stays out
is said. The first choice is the plain one, without the mechanism: the shapes are searched with it, as bounds are proven
for it. A new deployment option becomes searchable with one more function in `_OPTIONS`. Simulates nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from simserve.errors import InputError
from simserve.planner.space.choices import Choice, LeftOut, Option, Setting
from simserve.planner.space.makeup import SCALING_KEY
from simserve.planner.space.pools import pool_option
from simserve.profiles import catalog
from simserve.profiles.api import load_api
from simserve.profiles.model import ModelProfile, load_model, weights_name
from simserve.scenario.features import lack_of
from simserve.scenario.kv_tiers import KVTierSpec
from simserve.scenario.objective import objective
from simserve.scenario.resolve import replica_shape
from simserve.units import to_text

DRAFT_SHARE = 0.2
"""Active parameters of a draft model over its target's, at most: beyond, drafting eats what it saves."""
DRAFT_TOKENS = 3
DRAFT_ACCEPTANCE = 0.6
"""Of a small model of the same family: 2.2 tokens a step with three drafts. Spec-Bench measured 2.0 to 2.3 for small
draft models, over all its tasks (calibration/speculation.md)."""
OFFLOAD_SIZE = "64 GiB"
"""Of a replica: what a node of these GPUs has to spare."""
TIERS_KEY = "deployment.engine.kv_tiers"
TIER_SIZES = (0.5, 1.0, 2.0, 4.0)
"""Times the capacity of a scenario's first KV tier that a plan tries."""
MTP_ACCEPTANCE = (0.88, 0.87)
"""Rate and decay, the means of MTP layers on coding prompts (calibration/speculation.md)."""
SCALINGS: tuple[tuple[str, float, int], ...] = (
    ("queue_depth", 2.0, 4),
    ("queue_depth", 2.0, 2),
    ("kv_usage", 0.5, 4),
    ("kv_usage", 0.5, 2),
)
"""Metric, target and most over fewest replicas of autoscaled fleets."""
QUEUES = (8, 32)
"""Requests that may wait at a replica before one is refused, or goes to an API."""


def options_of(setting: Setting, taken: frozenset[str] = frozenset()) -> tuple[tuple[Option, ...], dict[str, LeftOut]]:
    """Return the options that enter the search, and name -> why not of the others.

    Args:
        setting: What they depend on.
        taken: Keys that the user set values for: an option that sets one of them, or something below it, stays out.
    """
    found: list[Option] = []
    left_out: dict[str, LeftOut] = {}
    for name, offer in _OPTIONS.items():
        offered = offer(setting)
        if isinstance(offered, str):
            if offered:
                left_out[name] = offered
            continue
        keys = {key for choice in offered.choices for key in choice.changes}
        if any(
            f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.") for one in keys for other in taken
        ):
            left_out[name] = "set by --over"
        else:
            found.append(offered)
    return tuple(found), left_out


def _speculate(setting: Setting) -> Option | LeftOut:
    scenario, own = setting.scenario, setting.scenario.deployment.speculative
    key = "deployment.speculative"
    if own is not None:
        mapping = own.model_dump(mode="json", exclude_none=True)
        choices = [Choice("no drafts", {key: None}), Choice(_drafts_label(mapping), {key: mapping})]
        if own.acceptance_rate is not None:
            for tokens in _other_lengths(own.num_speculative_tokens):
                changed = {**mapping, "num_speculative_tokens": tokens}
                choices.append(Choice(_drafts_label(changed), {key: changed}))
        return Option("speculate", tuple(choices), own=1)
    if not setting.wants_latency and not setting.has_limit("tpot", "e2e"):
        return "drafts shorten TPOT, and nothing asks for that"
    deployment = scenario.deployment
    if deployment.engine.batching == "static":
        return "static batches run no drafts"
    drafts = _known_drafts(load_model(scenario.model, scenario.folder))
    if drafts is None:
        return f"no draft is known for {scenario.model}: give deployment.speculative"
    lack = lack_of(scenario, drafts["method"])
    if lack is not None:
        return lack
    return Option("speculate", (Choice("no drafts"), Choice(_drafts_label(drafts), {key: drafts})))


def _known_drafts(model: ModelProfile) -> dict[str, Any] | None:
    """Return the drafts that the catalogue knows for a model: its own layer, else the smallest of its family.

    Not one whose layers have a state: what it drafted in vain cannot be taken out of a state, as it can of a KV cache.
    """
    if model.num_mtp_layers:
        rate, decay = MTP_ACCEPTANCE
        return {"method": "mtp", "num_speculative_tokens": 2, "acceptance_rate": rate, "acceptance_decay": decay}
    family = _family(model.catalogue_name)
    candidates = [
        each
        for each in map(load_model, (name for name in catalog.names("model") if _family(name) == family))
        if each.vocab_size == model.vocab_size
        and not each.has_states
        and each.num_active_parameters <= DRAFT_SHARE * model.num_active_parameters
    ]
    if not candidates:
        return None
    smallest = min(candidates, key=lambda each: (each.num_active_parameters, each.name))
    return {
        "method": "draft_model",
        "draft_model": smallest.name,
        "num_speculative_tokens": DRAFT_TOKENS,
        "acceptance_rate": DRAFT_ACCEPTANCE,
    }


def _family(name: str) -> str:
    """Return the maker's line and generation of a model: ``llama-3`` of ``llama-3.1-70b``."""
    found = re.match(r"[a-z]+-?\d+", name)
    return found.group() if found else name


def _other_lengths(own: int) -> Iterator[int]:
    yield from (tokens for tokens in (max(own // 2, 1), own + 3) if tokens != own and tokens <= 16)


def _drafts_label(drafts: Mapping[str, Any]) -> str:
    by = (
        drafts.get("draft_model")
        or {"mtp": "its MTP layer", "eagle": "an EAGLE layer", "ngram": "n-grams"}[drafts["method"]]
    )
    return f"{drafts['num_speculative_tokens']} drafts a step by {by}"


def _route(setting: Setting) -> Option | LeftOut:
    own, traffic, key = setting.scenario.deployment.routing, setting.traffic, "deployment.routing"
    is_shared = traffic.has_prefixes or traffic.has_sessions
    has_adapters = setting.scenario.workload.loras is not None
    if not is_shared and not own.update_interval and not has_adapters:
        return "no prompt begins like another, and the router's view is up to date"
    base = own.model_dump(mode="json", exclude_none=True)
    own_choice = Choice(f"routing {own.policy}", {})
    names: list[str] = []
    if is_shared:
        names += [
            "least_outstanding",
            *(["prefix"] if traffic.has_prefixes else []),
            *(["session"] if traffic.has_sessions else []),
        ]
    if has_adapters:
        names += [*([] if is_shared else ["least_outstanding"]), "lora"]
    if own.update_interval:
        names += ["power_of_two", "round_robin"]
    choices = [own_choice]
    for name in names:
        if name == own.policy:
            continue
        changed = {**base, "policy": name}
        if name not in ("prefix", "session", "lora"):
            changed.pop("imbalance_guard", None)
        if name == "round_robin":
            changed.pop("update_interval", None)
        choices.append(Choice(f"routing {name}", {key: changed}))
    return Option("route", tuple(choices))


def _cache(setting: Setting) -> Option | LeftOut:
    if not setting.traffic.has_prefixes:
        return "no prompt begins like another"
    try:
        is_on = replica_shape(setting.scenario).engine.enable_prefix_caching
    except InputError:
        is_on = True
    other = "prefix caching off" if is_on else "prefix caching on"
    own = "prefix caching on" if is_on else "prefix caching off"
    lack = None if is_on else lack_of(setting.scenario, "prefix_caching")
    if lack is not None:
        return lack
    return Option("cache", (Choice(own), Choice(other, {"deployment.engine.enable_prefix_caching": not is_on})))


def _offload(setting: Setting) -> Option | LeftOut:
    """Offer a second tier behind the prefix cache: host memory that a node has anyway, so it is in the GPU's price.

    Tiers that the scenario has are sized, at their own price.
    """
    if setting.scenario.deployment.engine.kv_tiers:
        return _sizes(setting.scenario.deployment.engine.kv_tiers)
    own, key = setting.scenario.deployment.engine.kv_offload, "deployment.engine.kv_offload"
    if own is not None:
        mapping = own.model_dump(mode="json", exclude_none=True)
        return Option(
            "offload", (Choice("no second tier", {key: None}), Choice("its second tier", {key: mapping})), own=1
        )
    if not setting.traffic.has_prefixes:
        return "no prompt begins like another"
    lack = lack_of(setting.scenario, "kv_offload")
    if lack is not None:
        return lack
    offered = Choice(f"{OFFLOAD_SIZE} of host memory behind the prefix cache", {key: {"size": OFFLOAD_SIZE}})
    return Option("offload", (Choice("no second tier"), offered))


def _sizes(tiers: Sequence[KVTierSpec]) -> Option:
    """Return the tiers of a scenario with the first of them smaller and larger, and none at all."""
    choices = [Choice("no KV tiers", {TIERS_KEY: None})]
    for factor in TIER_SIZES:
        capacity = to_text(tiers[0].capacity * factor, "bytes")
        changed = (tiers[0].model_dump(mode="json", exclude_none=True) | {"capacity": capacity}, *_dumped(tiers[1:]))
        label = f"{capacity} of {tiers[0].tier} memory behind the prefix cache"
        if tiers[0].tier != "host":
            label = f"{capacity} of a {tiers[0].tier} store behind the prefix cache"
        choices.append(Choice(label, {TIERS_KEY: list(changed)}, "" if factor == 1.0 else "tier size"))
    return Option("offload", tuple(choices), own=1 + TIER_SIZES.index(1.0))


def _dumped(tiers: Sequence[KVTierSpec]) -> list[dict[str, Any]]:
    return [each.model_dump(mode="json", exclude_none=True) for each in tiers]


def _answers(setting: Setting) -> Option | LeftOut:
    own, key = setting.scenario.deployment.response_cache, "deployment.response_cache"
    if own is None:
        return "how often a question comes again is not known: give deployment.response_cache"
    mapping = own.model_dump(mode="json", exclude_none=True)
    return Option(
        "answers", (Choice("no response cache", {key: None}), Choice("its response cache", {key: mapping})), own=1
    )


def _scale(setting: Setting) -> Option | LeftOut:
    scenario, own = setting.scenario, setting.scenario.deployment.autoscaling
    fixed = Choice("a fixed fleet", {} if own is None else {SCALING_KEY: None})
    if own is not None:
        mapping = own.model_dump(mode="json", exclude_none=True)
        most = own.max_replicas
        sooner = {**mapping, "target": own.target / 2}
        higher = {**mapping, "min_replicas": max(own.min_replicas, -(-most // 2))}
        choices = [fixed, *(Choice(_scaling_label(each), {SCALING_KEY: each}) for each in (mapping, sooner, higher))]
        return Option("scale", tuple(choices), own=1)
    if scenario.deployment.pools:
        return "pools are not scaled"
    if not setting.traffic.is_open:
        return "clients wait for their answers: the load follows the fleet"
    if not setting.traffic.is_uneven:
        return "the load is level over the minutes that a replica takes to start"
    choices = [fixed]
    for metric, target, most in SCALINGS:
        scaling = {"metric": metric, "target": target, "min_replicas": 1, "max_replicas": most}
        choices.append(Choice(_scaling_label(scaling), {SCALING_KEY: scaling}))
    return Option("scale", tuple(choices))


def _scaling_label(scaling: Mapping[str, Any]) -> str:
    names = {
        "queue_depth": "queue",
        "running": "running requests",
        "kv_usage": "KV use",
        "busy": "busy share",
        "slo": "SLO",
    }
    fewest, most = scaling["min_replicas"], scaling["max_replicas"]
    return f"scaled on {names[scaling['metric']]} {scaling['target']:g}, {fewest} to {most} parts"


def _overflow(setting: Setting) -> Option | LeftOut:
    scenario, key = setting.scenario, "deployment.overflow"
    own = scenario.deployment.overflow
    plain = Choice("no overflow", {} if own is None else {key: None})
    if own is not None:
        mapping = own.model_dump(mode="json", exclude_none=True)
        limit = own.max_queue
        others = [] if limit is None else [queue for queue in (limit // 4, limit * 4) if queue != limit]
        choices = [mapping, *({**mapping, "max_queue": queue} for queue in others)]
        return Option("overflow", (plain, *(Choice(_overflow_label(each), {key: each}) for each in choices)), own=1)
    api = scenario.pricing.api
    if api is None:
        return "no API is named (pricing.api): sending requests to a third party is yours to decide"
    try:
        weights = load_api(api, scenario.folder).weights
    except InputError:
        weights = None
    if weights != weights_name(scenario.model, scenario.folder):
        return f"{api} does not serve {scenario.model}"
    if not setting.traffic.is_open:
        return "clients wait for their answers: there are no peaks to send away"
    mappings = [{"api": api, "max_queue": queue} for queue in QUEUES]
    return Option("overflow", (plain, *(Choice(_overflow_label(each), {key: each}) for each in mappings)))


def _overflow_label(overflow: Mapping[str, Any]) -> str:
    limit = overflow.get("max_queue")
    return f"some to {overflow['api']}" if limit is None else f"beyond {limit} waiting to {overflow['api']}"


def _admit(setting: Setting) -> Option | LeftOut:
    scenario, key = setting.scenario, "deployment.admission"
    own = scenario.deployment.admission
    plain = Choice("nobody refused", {} if own is None else {key: None})
    if own is not None:
        return Option(
            "admit",
            (plain, Choice("its admission rules", {key: own.model_dump(mode="json", exclude_none=True)})),
            own=1,
        )
    if objective(scenario) is None:
        return "without an SLO nothing is gained by refusing"
    if not setting.traffic.is_open or not setting.traffic.is_bursty:
        return "there are no bursts: a fleet that refuses steadily is too small"
    choices = [Choice(f"503 beyond {queue} waiting", {key: {"max_queue": queue}}) for queue in QUEUES]
    return Option("admit", (plain, *choices))


def _batch(setting: Setting) -> Option | LeftOut:
    engine = setting.scenario.deployment.engine
    if engine.batching != "static":
        return ""
    own = {f"deployment.engine.{key}": getattr(engine, key) for key in _STATIC_KEYS}
    others = {**dict.fromkeys(own), "deployment.engine.batching": "continuous"}
    return Option("static", (Choice("continuous batching", others), Choice("static batches")), own=1)


_STATIC_KEYS = ("batching", "static_batch_size", "static_max_wait")
"""Keys of the engine that only static batching has."""
_OPTIONS: Mapping[str, Callable[[Setting], Option | LeftOut]] = {
    "speculate": _speculate,
    "route": _route,
    "cache": _cache,
    "offload": _offload,
    "answers": _answers,
    "scale": _scale,
    "pool": pool_option,
    "overflow": _overflow,
    "admit": _admit,
    "static": _batch,
}
"""Name -> what may be chosen, or why it stays out."""
