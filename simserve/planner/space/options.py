"""Deployment options besides the shape and the engine's knobs: drafts, routing, scaling, pools, overflow, admission.

Each is a dimension of the search with a few choices, and enters only if the traffic could profit; the reason for
leaving one out is recorded. The first choice is the plain one, without the mechanism: shapes are searched with it, as
bounds are proven for it. A new deployment option becomes searchable with one more function in `_OPTIONS`. Simulates
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from simserve.errors import InputError
from simserve.planner.space.links import Side, network_of
from simserve.planner.space.makeup import POOLS_KEY, REPLICAS_KEY, SCALING_KEY
from simserve.planner.space.roles import DECODE, LINK_KEY, PREFILL
from simserve.planner.space.traffic import Traffic
from simserve.profiles import catalog
from simserve.profiles.api import load_api
from simserve.profiles.catalog import load_model, weights_name
from simserve.profiles.hardware import load_hardware
from simserve.profiles.model import ModelProfile
from simserve.scenario.combinations import lack_of
from simserve.scenario.deployment_spec import KVTierSpec
from simserve.scenario.resolve import replica_shape
from simserve.scenario.schema import Scenario, objective
from simserve.units import to_text

LeftOut = str  # Why an option does not enter; empty if no reason is needed.
LONG_PROMPT_TOKENS = 1000.0
"""Mean prompt above which prefill delays decoding noticeably, so that separate pools may pay off."""
MOST_CLASS_POOLS = 4
_WEIGHTS = 10  # Weights of the pools of classes are in steps of one over this.
DRAFT_SHARE = 0.2
"""Most active parameters of a draft model as a share of its target's: beyond that, drafting costs what it saves."""
DRAFT_TOKENS = 3
DRAFT_ACCEPTANCE = 0.6
"""Acceptance of a small model of the same family: 2.2 tokens per step with three drafts. Spec-Bench measured 2.0 to 2.3
for small draft models, over all its tasks (calibration/speculation.md)."""
OFFLOAD_SIZE = "64 GiB"  # Host memory per replica: what a node of these GPUs has to spare.
TIERS_KEY = "deployment.engine.kv_tiers"
TIER_SIZES = (0.5, 1.0, 2.0, 4.0)  # Multiples of the capacity of a scenario's first KV tier that a plan tries.
MTP_ACCEPTANCE = (0.88, 0.87)
"""Acceptance rate and decay: means of MTP layers on coding prompts (calibration/speculation.md)."""
SCALINGS: tuple[tuple[str, float, int], ...] = (
    ("queue_depth", 2.0, 4),
    ("queue_depth", 2.0, 2),
    ("kv_usage", 0.5, 4),
    ("kv_usage", 0.5, 2),
)
"""Metric, target, and ratio of most to fewest replicas of autoscaled fleets."""
QUEUES = (8, 32)  # Requests that may wait at a replica before one is refused, or goes to an API.
_STATIC_KEYS = ("batching", "static_batch_size", "static_max_wait")
"""Keys of the engine that only static batching has."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of an option."""

    label: str  # The choice in words.
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key -> value, including what is needed to make room for it."""
    family: str = ""  # Choices of one family differ only in a proportion; of these, advice measures the first.


@dataclass(frozen=True, slots=True)
class Option:
    """A dimension of the search whose values set several keys at once."""

    name: str  # What is chosen.
    choices: tuple[Choice, ...]  # The plain one first.
    own: int = 0  # Index of the scenario's own choice.


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What choices depend on."""

    scenario: Scenario  # The scenario on the GPU in question.
    traffic: Traffic  # Its traffic.
    wants_latency: bool = False  # Whether latency itself is minimised.
    has_spares: bool = False  # Whether spare replicas are required.

    def has_limit(self, *terms: str) -> bool:
        """Return whether any request has a limit on one of these latencies."""
        asked = objective(self.scenario)
        return asked is not None and any(asked.has_bound(term) for term in terms)


def _pool_option(setting: Setting) -> Option | LeftOut:
    """Offer prefill and decode pools, or a pool for each class, including the scenario's own pools."""
    scenario = setting.scenario
    deployment = scenario.deployment
    if setting.has_spares:
        return "spare replicas are of one kind"
    if deployment.pools and (not _are_alike(scenario) or deployment.regions or deployment.routing.rules):
        # No plainer choice serves the same classes.
        own, *others = _own_pools(scenario)
        return Option("pool", (Choice(own.label), *others))
    if deployment.faults or deployment.updates or deployment.speculative is not None:
        return "pools are not simulated with faults, updates or drafts"
    together = Choice("one kind of replica", _together(scenario) if deployment.pools else {})
    choices: list[Choice] = list(_own_pools(scenario)) if deployment.pools else []
    lack = lack_of(scenario, "kv_transfer") if _has_long_prompts(setting) else None
    if deployment.disaggregation is not None or (_has_long_prompts(setting) and lack is None):
        choices.append(_disaggregated(scenario))
    if not deployment.disaggregation:
        choices += _by_class(setting)
    choices = _distinct(choices)
    if not choices:
        if lack is not None:
            return lack
        return "prompts are short, or TPOT has no limit; and classes ask for the same, or there are none"
    return Option("pool", (together, *choices), own=1 if deployment.pools else 0)


def _has_long_prompts(setting: Setting) -> bool:
    is_long = setting.traffic.mean_prompt_tokens >= LONG_PROMPT_TOKENS
    return is_long and setting.has_limit("tpot") and setting.traffic.is_open


def _are_alike(scenario: Scenario) -> bool:
    """Return whether the pools differ only in name, role and number."""
    keys_set = {key for pool in scenario.deployment.pools for key in pool.model_dump(exclude_none=True)}
    return keys_set <= {"name", "role", "replicas"}


def _together(scenario: Scenario) -> dict[str, Any]:
    """Return the changes that replace a scenario's pools by one kind of replica."""
    classes = scenario.workload.classes or ()
    return {
        POOLS_KEY: [],
        "deployment.disaggregation": None,
        "deployment.routing.weights": None,
        **{f"workload.classes.{number}.pool": None for number, each in enumerate(classes) if each.pool is not None},
    }


def _own_pools(scenario: Scenario) -> Iterator[Choice]:
    """Yield the scenario's own pools, in its own proportions and with each pool doubled in turn."""
    mapping = scenario.as_mapping()["deployment"]
    pools, rest = mapping["pools"], {}
    if "disaggregation" in mapping:
        rest = {"deployment.disaggregation": mapping["disaggregation"]}
    weights = [pool["replicas"] for pool in pools]
    proportions = [weights]
    for doubled in range(len(weights)):
        proportions.append([2 * weight if place == doubled else weight for place, weight in enumerate(weights)])
    for counts in proportions:
        there = [{**pool, "replicas": count} for pool, count in zip(pools, counts, strict=True)]
        parts = " : ".join(f"{count} {pool['name']}" for pool, count in zip(pools, counts, strict=True))
        yield Choice(parts, {POOLS_KEY: there, **rest}, family="own pools")


def _disaggregated(scenario: Scenario) -> Choice:
    """Return one prefill worker per decode worker; shapes and other numbers are searched as roles."""
    deployment, own = scenario.deployment, scenario.deployment.disaggregation
    network = network_of([Side(load_hardware(deployment.hardware, scenario.folder), 1, 1)])
    link = {} if network is None else network.spec
    if own is not None:
        link = _dumped(own)
    pools = [{"name": role, "role": role, "replicas": 1} for role in (PREFILL, DECODE)]
    return Choice("1 prefill : 1 decode", {POOLS_KEY: pools, LINK_KEY: link, REPLICAS_KEY: 1}, family="disaggregated")


def has_roles(setting: Setting) -> bool:
    """Return whether separate shapes of prefill and decode workers are searched.

    This needs long prompts, a limit on TPOT and an engine with KV transfer; or a scenario that disaggregates itself.
    """
    scenario, deployment = setting.scenario, setting.scenario.deployment
    if setting.has_spares or deployment.faults or deployment.updates or deployment.autoscaling or deployment.regions:
        return False
    if deployment.disaggregation is not None:
        return setting.traffic.is_open
    return _has_long_prompts(setting) and not deployment.pools and lack_of(scenario, "kv_transfer") is None


def _by_class(setting: Setting) -> Iterator[Choice]:
    """Offer a pool for each class of a scenario whose classes have different limits, and priorities among them."""
    classes, policy = setting.scenario.workload.classes or (), "deployment.engine.scheduling_policy"
    limits = [None if each.slo is None else each.slo.model_dump(exclude={"attainment"}) for each in classes]
    if not 2 <= len(classes) <= MOST_CLASS_POOLS or all(each == limits[0] for each in limits):
        return
    if not any(each.pool for each in classes):
        shares = setting.traffic.work_by_class
        weights = [max(1, round(_WEIGHTS * share)) for share in shares]
        pools = [{"name": each.name, "replicas": weight} for each, weight in zip(classes, weights, strict=True)]
        own = {f"workload.classes.{number}.pool": each.name for number, each in enumerate(classes)}
        yield Choice("a pool for each class", {POOLS_KEY: pools, REPLICAS_KEY: 1, **own})
    if lack_of(setting.scenario, "priority_scheduling") is not None:
        return
    if all(each.priority is None for each in classes) and setting.scenario.deployment.engine.scheduling_policy is None:
        order = sorted(range(len(classes)), key=lambda each: (_tightest(classes[each].slo), each))
        ranks = {f"workload.classes.{number}.priority": order.index(number) for number in range(len(classes))}
        yield Choice("priority to the class with the tighter TTFT", {policy: "priority", **ranks})


def _tightest(slo: Any) -> float:
    limits = [] if slo is None else [limit for limit in (slo.ttft, slo.e2e) if limit is not None]
    return float(min(limits, default=float("inf")))


def _distinct(choices: list[Choice]) -> list[Choice]:
    found: list[Choice] = []
    for each in choices:
        if all(each.label != other.label for other in found):
            found.append(each)
    return found


def options_of(setting: Setting, taken: frozenset[str] = frozenset()) -> tuple[tuple[Option, ...], dict[str, LeftOut]]:
    """Return the options that enter the search, and for the others name -> why not.

    Args:
        taken: Keys for which the user set values: an option that sets one of them, or a key below it, stays out.
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
        mapping = _dumped(own)
        choices = [Choice("no drafts", {key: None}), Choice(_drafts_label(mapping), {key: mapping})]
        if own.acceptance_rate is not None:
            others = (max(own.num_speculative_tokens // 2, 1), own.num_speculative_tokens + 3)
            for tokens in (each for each in others if each != own.num_speculative_tokens and each <= 16):
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
    """Return the drafts that the catalogue knows for a model: its own layer, else the smallest model of its family.

    Not one whose layers have a state: rejected drafts cannot be removed from a state as they can from a KV cache.
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


def _drafts_label(drafts: Mapping[str, Any]) -> str:
    layers = {"mtp": "its MTP layer", "eagle": "an EAGLE layer", "ngram": "n-grams"}
    by = drafts.get("draft_model") or layers[drafts["method"]]
    return f"{drafts['num_speculative_tokens']} drafts a step by {by}"


def _route(setting: Setting) -> Option | LeftOut:
    own, traffic, key = setting.scenario.deployment.routing, setting.traffic, "deployment.routing"
    is_shared = traffic.has_prefixes or traffic.has_sessions
    has_adapters = setting.scenario.workload.loras is not None
    if not is_shared and not own.update_interval and not has_adapters:
        return "no prompt begins like another, and the router's view is up to date"
    base = _dumped(own)
    own_choice = Choice(f"routing {own.policy}", {})
    names: list[str] = []
    for policies, has_use in (
        (("least_outstanding",), is_shared or has_adapters),
        (("prefix",), traffic.has_prefixes),
        (("session",), traffic.has_sessions),
        (("lora",), has_adapters),
        (("power_of_two", "round_robin"), own.update_interval),
    ):
        names += policies if has_use else ()
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
    own, other = f"prefix caching {'on' if is_on else 'off'}", f"prefix caching {'off' if is_on else 'on'}"
    lack = None if is_on else lack_of(setting.scenario, "prefix_caching")
    if lack is not None:
        return lack
    return Option("cache", (Choice(own), Choice(other, {"deployment.engine.enable_prefix_caching": not is_on})))


def _offload(setting: Setting) -> Option | LeftOut:
    """Offer a second tier behind the prefix cache: host memory that a node has anyway, so the GPU's price includes it.

    The scenario's own tiers are sized, at their own price.
    """
    if setting.scenario.deployment.engine.kv_tiers:
        return _sizes(setting.scenario.deployment.engine.kv_tiers)
    own, key = setting.scenario.deployment.engine.kv_offload, "deployment.engine.kv_offload"
    if own is not None:
        return _with_or_without("offload", key, own, "no second tier", "its second tier")
    if not setting.traffic.has_prefixes:
        return "no prompt begins like another"
    lack = lack_of(setting.scenario, "kv_offload")
    if lack is not None:
        return lack
    offered = Choice(f"{OFFLOAD_SIZE} of host memory behind the prefix cache", {key: {"size": OFFLOAD_SIZE}})
    return Option("offload", (Choice("no second tier"), offered))


def _sizes(tiers: Sequence[KVTierSpec]) -> Option:
    """Return the tiers of a scenario with the first one smaller and larger, and without tiers."""
    choices = [Choice("no KV tiers", {TIERS_KEY: None})]
    for factor in TIER_SIZES:
        capacity = to_text(tiers[0].capacity * factor, "bytes")
        changed = [_dumped(tiers[0]) | {"capacity": capacity}, *map(_dumped, tiers[1:])]
        label = f"{capacity} of {tiers[0].tier} memory behind the prefix cache"
        if tiers[0].tier != "host":
            label = f"{capacity} of a {tiers[0].tier} store behind the prefix cache"
        choices.append(Choice(label, {TIERS_KEY: changed}, "" if factor == 1.0 else "tier size"))
    return Option("offload", tuple(choices), own=1 + TIER_SIZES.index(1.0))


def _with_or_without(name: str, key: str, own: BaseModel, without: str, with_it: str) -> Option:
    """Return the choice between what a scenario has at a key and nothing there."""
    return Option(name, (Choice(without, {key: None}), Choice(with_it, {key: _dumped(own)})), own=1)


def _dumped(spec: BaseModel) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_none=True)


def _answers(setting: Setting) -> Option | LeftOut:
    own, key = setting.scenario.deployment.response_cache, "deployment.response_cache"
    if own is None:
        return "how often a question comes again is not known: give deployment.response_cache"
    return _with_or_without("answers", key, own, "no response cache", "its response cache")


def _scale(setting: Setting) -> Option | LeftOut:
    scenario, own = setting.scenario, setting.scenario.deployment.autoscaling
    fixed = Choice("a fixed fleet", {} if own is None else {SCALING_KEY: None})
    if own is not None:
        mapping = _dumped(own)
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
    return f"scaled on {names[scaling['metric']]} {scaling['target']:g}, {fewest} to {most} replicas"


def _overflow(setting: Setting) -> Option | LeftOut:
    scenario, key = setting.scenario, "deployment.overflow"
    own = scenario.deployment.overflow
    plain = Choice("no overflow", {} if own is None else {key: None})
    if own is not None:
        mapping = _dumped(own)
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
    if own is not None:
        return _with_or_without("admit", key, own, "nobody refused", "its admission rules")
    if objective(scenario) is None:
        return "without an SLO nothing is gained by refusing"
    if not setting.traffic.is_open or not setting.traffic.is_bursty:
        return "there are no bursts: a fleet that refuses steadily is too small"
    choices = [Choice(f"503 beyond {queue} waiting", {key: {"max_queue": queue}}) for queue in QUEUES]
    return Option("admit", (Choice("nobody refused"), *choices))


def _batch(setting: Setting) -> Option | LeftOut:
    engine = setting.scenario.deployment.engine
    if engine.batching != "static":
        return ""
    own = {f"deployment.engine.{key}": getattr(engine, key) for key in _STATIC_KEYS}
    others = {**dict.fromkeys(own), "deployment.engine.batching": "continuous"}
    return Option("static", (Choice("continuous batching", others), Choice("static batches")), own=1)


_OPTIONS: Mapping[str, Callable[[Setting], Option | LeftOut]] = {
    "speculate": _speculate,
    "route": _route,
    "cache": _cache,
    "offload": _offload,
    "answers": _answers,
    "scale": _scale,
    "pool": _pool_option,
    "overflow": _overflow,
    "admit": _admit,
    "static": _batch,
}
"""Name -> function that returns the option, or why it stays out."""
