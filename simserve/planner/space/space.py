"""What else can be deployed: every dimension of the search, how it is listed and how it is set.

A dimension is one dotted key of the scenario and its possible values, or an option whose choices set several keys
(`simserve.planner.space.options`); setting it is an override. Simulates nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from simserve.errors import InputError, ScenarioError, UsageError
from simserve.planner.overrides import Overrides, split_values, value_of, with_overrides
from simserve.planner.space.formats import KV_KEY, WEIGHTS_KEY, SearchedFormats, searched_formats
from simserve.planner.space.makeup import POOLS_KEY, REPLICAS_KEY
from simserve.planner.space.options import Choice, Option, Setting, has_roles, options_of
from simserve.planner.space.roles import SIZE_KEYS, Roles, is_plausible, roles_of
from simserve.planner.space.traffic import Traffic
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.hardware import HardwareProfile, load_hardware
from simserve.scenario.combinations import lack_of, model_lack_of
from simserve.scenario.resolve import replica_shape
from simserve.scenario.schema import Scenario

Kind = Literal["shape", "knob", "option"]
"""``shape``: what is bought and how the model is placed on it; ``knob``: a setting of the engine; ``option``: any other
choice of deployment."""
HARDWARE_KEY = "deployment.hardware"
NODE_KEY = "deployment.gpus_per_node"
PRICE_KEY = "pricing.gpu_hour_usd"
SEATS_KEY = "deployment.engine.max_num_seqs"
BUDGET_KEY = "deployment.engine.max_num_batched_tokens"
DRAFTS_NAME = "speculate"
"""The option of drafts: like a shape it decides what a replica can do, and is never sampled."""
POOL_NAME = "pool"  # The option of pools, with which shapes of prefill and decode workers are searched.
VERSION_KEY = "deployment.engine.version"
VERSIONS_NAME = "version"  # Name of the versions that are left out because they do not support the model.
SPLIT_NAME = "split"  # Name that keeps prefill and decode on separate workers of any number and shape.
ROUTE_NAME = "route"
TENSOR_KEY = "deployment.tensor_parallel_size"
EAGER_KEY = "deployment.engine.enforce_eager"
"""Searched where the scenario forgoes CUDA graphs; as a shape, since without them a shape that holds may not."""
PIPELINE_KEY = "deployment.pipeline_parallel_size"
DATA_KEY = "deployment.data_parallel_size"
EXPERTS_KEY = "deployment.enable_expert_parallel"
CONSUMER_MARK = "GeForce"
"""In the description of GPUs that are left out by default: their driver's licence bars data centres (NVIDIA GeForce
software licence, section 2.1.3)."""
NODE_GPUS = 8  # Most GPUs of a replica, unless the model needs more or a node is larger.
LARGEST_REPLICA = 32
WIDE_PARTS = 4
"""A mixture of experts must need more than one over this of a node for replicas of two nodes to be tried."""
TENSOR_SIZES = (1, 2, 4, 8)
PIPELINE_SIZES = (1, 2, 4)
DATA_SIZES = (1, 2, 4, 8, 16)
SEATS = (64, 256, 1024)
TOKEN_BUDGETS = (2048, 8192, 16384)
FEWEST_BITS = 4.0
GPUS, REPLICAS = "gpus", "replicas"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One key that may be set."""

    key: str  # Dotted key of the scenario.
    kind: Kind  # Whether it is part of the shape, or a knob of the engine.
    values: Callable[[Scenario], Sequence[Any]]
    """Values worth trying besides the own ones of the scenario on the GPU in question."""
    feature: str = ""  # Engine feature that they need; "": none.
    lever: str = ""  # Their name in messages if the engine lacks it.


def _hardware_of(scenario: Scenario) -> HardwareProfile:
    return scenario.deployment.profile_of(scenario.deployment.hardware, scenario.folder)


def _tensor_sizes(scenario: Scenario) -> Sequence[int]:
    return [size for size in TENSOR_SIZES if size <= max(_hardware_of(scenario).intra_node.gpus_per_node, 1)]


def _with_experts(values: Sequence[Any]) -> Callable[[Scenario], Sequence[Any]]:
    """Return a function that offers values to models with experts: ranks of data-parallel attention share these."""
    return lambda scenario: values if load_model(scenario.model, scenario.folder).moe is not None else ()


def _searched(scenario: Scenario) -> SearchedFormats:
    """Return the formats worth trying; only the scenario's own if the engine does not support the GPU."""
    try:
        return searched_formats(scenario)
    except InputError:
        return SearchedFormats(weights=(), kv_cache=("auto",), why_no_weights="")


DIMENSIONS = (
    Dimension(TENSOR_KEY, "shape", _tensor_sizes),
    Dimension(PIPELINE_KEY, "shape", lambda _: PIPELINE_SIZES),
    Dimension(DATA_KEY, "shape", _with_experts(DATA_SIZES), "data_parallel_attention", "data_parallel"),
    Dimension(
        "deployment.enable_expert_parallel", "shape", _with_experts((False, True)), "expert_parallel", "expert_parallel"
    ),
    Dimension(WEIGHTS_KEY, "shape", lambda scenario: [each.format for each in _searched(scenario).weights]),
    Dimension(KV_KEY, "shape", lambda scenario: _searched(scenario).kv_cache, "kv_cache_fp8", "quantise_kv"),
    Dimension(EAGER_KEY, "shape", lambda scenario: (True, False) if scenario.deployment.engine.enforce_eager else ()),
    Dimension(SEATS_KEY, "knob", lambda _: SEATS),
    Dimension(BUDGET_KEY, "knob", lambda _: TOKEN_BUDGETS),
    Dimension("deployment.engine.enable_chunked_prefill", "knob", lambda _: (True, False), "chunked_prefill", "chunk"),
)
"""The searched dimensions, besides the GPU, its price, the number of replicas and the options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The deployments on one kind of GPU."""

    scenario: Scenario  # The scenario on this GPU, otherwise unchanged.
    dimensions: Mapping[str, tuple[Any, ...]]
    """Key -> values, the scenario's own first unless the user chose others; or name of an option -> its choices, the
    plain one first."""
    own: Mapping[str, Any]
    """Key (including those that options set) -> the scenario's own value, None if it sets none."""
    kinds: Mapping[str, Kind]  # Key -> kind.
    largest_replica: int  # Most GPUs of one replica.
    base: Overrides  # Overrides of every member: the GPU, and its price if that is not the default.
    left_out: Mapping[str, str] = field(default_factory=dict)  # Option -> why it does not enter.
    roles: Roles | None = None  # Shapes of prefill and decode workers; None if they are not searched.

    @property
    def size(self) -> int:
        """Number of combinations."""
        return math.prod(len(values) for values in self.dimensions.values())

    @property
    def options(self) -> dict[str, tuple[Choice, ...]]:
        """Name -> choices of the options that enter."""
        return {key: values for key, values in self.dimensions.items() if self.kinds[key] == "option"}

    @property
    def has_own_options(self) -> bool:
        """Whether the scenario has another choice than the plain one for some option."""
        return any(self.own[name] is not choices[0] for name, choices in self.options.items())

    @property
    def shape_keys(self) -> tuple[str, ...]:
        """What is bought, how the model is placed on it, and drafts: the dimensions that are never sampled."""
        return tuple(key for key in self.dimensions if self.kinds[key] == "shape" or key == DRAFTS_NAME)

    def members(
        self, keys: Sequence[str] | None = None, fixed: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the combinations of some dimensions, as the overrides that differ from the scenario, its own first.

        Args:
            keys: Dimensions that vary, by default all; the others stay at their `start`.
            fixed: Key -> value of dimensions that do not vary.
        """
        held = {**self.start, **(fixed or {})}
        keys = [key for key in (self.dimensions if keys is None else keys) if key not in (fixed or {})]
        for values in itertools.product(*(self.dimensions[key] for key in keys)):
            chosen = {**held, **dict(zip(keys, values, strict=True))}
            if self.is_plausible(chosen):
                yield self.overrides(chosen)

    def overrides(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the overrides that set ``chosen``, without those that change nothing."""
        found = dict(self.base)
        for key, value in chosen.items():
            if self.kinds[key] != "option" and value != self.own[key]:
                found[key] = value
        for name, choices in self.options.items():
            for key, value in chosen.get(name, choices[0]).changes.items():
                if value != self.own[key]:
                    found[key] = value
        return found

    @property
    def start(self) -> dict[str, Any]:
        """Every dimension at the scenario's own value, or at the first one if that is not searched."""
        return {
            key: self.own[key] if self.kinds[key] != "option" and self.own[key] in values else values[0]
            for key, values in self.dimensions.items()
        }

    @property
    def plain(self) -> dict[str, Any]:
        """The overrides of the scenario's own shape and knobs, with all options plain."""
        return self.overrides(self.start)

    def chosen(self, overrides: Overrides) -> dict[str, Any]:
        """Return the value of every dimension with some overrides."""
        found: dict[str, Any] = {}
        for key, values in self.dimensions.items():
            if self.kinds[key] == "option":
                found[key] = next((each for each in values if self._is_chosen(each, overrides, values)), values[0])
            else:
                value = overrides.get(key, self.own[key])
                found[key] = value if value in values else values[0]
        return found

    def _is_chosen(self, choice: Choice, overrides: Overrides, choices: Sequence[Choice]) -> bool:
        keys = {key for each in choices for key in each.changes}
        return all(overrides.get(key, self.own[key]) == choice.changes.get(key, self.own[key]) for key in keys)

    def is_plausible(self, chosen: Mapping[str, Any]) -> bool:
        """Return whether a replica of these sizes is worth trying."""
        deployment = self.scenario.deployment
        own = {key: chosen.get(f"deployment.{key}", getattr(deployment, key)) for key in SIZE_KEYS}
        if all(own[key] == getattr(deployment, key) for key in SIZE_KEYS):
            return gpus_of(self.scenario, chosen) <= self.largest_replica
        return is_plausible(own, self.largest_replica)

    def apply(self, overrides: Overrides) -> Scenario:
        """Return the scenario with overrides.

        Raises:
            InputError: They do not go together.
        """
        return with_overrides(self.scenario, overrides)


def gpus_of(scenario: Scenario, chosen: Mapping[str, Any]) -> int:
    """Return the GPUs of one replica with chosen sizes."""
    deployment = scenario.deployment
    tensor = chosen.get(TENSOR_KEY, deployment.tensor_parallel_size)
    stages = chosen.get(PIPELINE_KEY, deployment.pipeline_parallel_size)
    return int(tensor) * int(stages) * int(chosen.get(DATA_KEY, deployment.data_parallel_size))


def other_hardware(scenario: Scenario, hardware: str) -> Overrides:
    """Return what puts a scenario on a kind of GPU: nothing for its own, else that GPU in its usual nodes."""
    deployment = scenario.deployment
    if hardware == deployment.hardware:
        return {}
    return {HARDWARE_KEY: hardware, **({} if deployment.gpus_per_node is None else {NODE_KEY: None})}


def default_hardware(scenario: Scenario) -> list[str]:
    """Return the GPUs that are searched by default: the scenario's own first, then by name.

    Those of the catalogue that have an on-demand price and are licensed for data centres.
    """
    own = scenario.deployment.hardware
    others = [name for name in catalog.names("hardware") if name != own and _is_offered(name)]
    return [own, *others]


def _is_offered(name: str) -> bool:
    try:
        profile = load_hardware(name)
    except InputError:
        # A folder in SIMSERVE_PROFILE_PATH offers its files under every kind.
        return False
    return profile.default_price is not None and CONSUMER_MARK not in profile.description


def space_on(
    scenario: Scenario,
    hardware: str,
    price: Overrides,
    own_choices: Mapping[str, Sequence[Any]],
    traffic: Traffic,
    *,
    wants_latency: bool = False,
    has_spares: bool = False,
    kept: frozenset[str] = frozenset(),
) -> Space:
    """Return the deployments of a scenario on one kind of GPU.

    Args:
        own_choices: Key -> values that the user wants to search instead of the default ones.
        kept: Dotted keys and options that stay as in the scenario.

    Raises:
        InputError: The GPU or the model is unknown, or there is nothing to keep.
    """
    base = {**price, **other_hardware(scenario, hardware)}
    there = with_overrides(scenario, base)
    kinds: dict[str, Kind] = {each.key: each.kind for each in DIMENSIONS}
    kinds.update({key: "shape" for key in own_choices if key not in kinds})
    values, lacking = _values_of(there, own_choices, kept)
    own = {key: value_of(there, key) for key in values}
    setting = Setting(scenario=there, traffic=traffic, wants_latency=wants_latency, has_spares=has_spares)
    options, left_out = options_of(setting, frozenset(own_choices))
    if SPLIT_NAME in kept:
        options = _kept_apart(there, options, left_out.get(POOL_NAME))
    for option in options:
        own[option.name] = option.choices[option.own]
        values[option.name] = (own[option.name],) if option.name in kept else option.choices
        kinds[option.name] = "option"
        own |= {key: value_of(there, key) for choice in option.choices for key in choice.changes}
    if WEIGHTS_KEY not in own_choices and WEIGHTS_KEY not in kept:
        searched = _searched(there)
        why_no_format = "; ".join(filter(None, (searched.why_not_own, searched.why_no_weights)))
        if why_no_format:
            lacking["quantise"] = why_no_format
    largest = _largest_replica(there)
    is_split = POOL_NAME not in kept and POOL_NAME not in lacking | left_out and has_roles(setting)
    return Space(
        scenario=there,
        dimensions=values,
        own=own,
        kinds=kinds,
        largest_replica=largest,
        roles=roles_of(there, values, largest) if is_split else None,
        base=base,
        left_out=lacking | left_out,
    )


def _values_of(
    there: Scenario, own_choices: Mapping[str, Sequence[Any]], kept: frozenset[str]
) -> tuple[dict[str, tuple[Any, ...]], dict[str, str]]:
    """Return the values of each key to search, the scenario's own first, and why levers are left out."""
    values: dict[str, tuple[Any, ...]] = {}
    lacking: dict[str, str] = {}
    for each in DIMENSIONS:
        if each.key not in own_choices:
            own, default = value_of(there, each.key), _default_of(there, each)
            others = [value for value in each.values(there) if value not in (own, default)]
            lack = lack_of(there, each.feature) if each.feature and others else None
            if lack is not None:
                others, lacking[each.lever] = [], lack
            is_own_out = each.key == WEIGHTS_KEY and _searched(there).why_not_own
            values[each.key] = tuple(others) if is_own_out else (own, *others)
    values |= {key: tuple(asked) for key, asked in own_choices.items()}
    if VERSION_KEY in own_choices:
        values[VERSION_KEY], too_old = _versions_that_run(there, own_choices[VERSION_KEY])
        lacking |= {VERSIONS_NAME: too_old} if too_old else {}
    for key in kept & values.keys():
        values[key] = (value_of(there, key),)
        lacking.pop(next((each.lever for each in DIMENSIONS if each.key == key), ""), None)
    return values, lacking


def _versions_that_run(scenario: Scenario, asked: Sequence[Any]) -> tuple[tuple[Any, ...], str]:
    """Return the requested engine versions that run a scenario's model, and a clause that names the others."""
    lacks = [model_lack_of(scenario, version) for version in asked]
    kept = tuple(version for version, lack in zip(asked, lacks, strict=True) if lack is None)
    found = [lack for lack in lacks if lack is not None]
    if not kept:
        raise ScenarioError("; ".join(found), key=VERSION_KEY, value=list(asked), remedy="choose others")
    return kept, "; ".join(found)


def _kept_apart(scenario: Scenario, options: Sequence[Option], left_out: str | None) -> tuple[Option, ...]:
    """Return the options with prefill and decode on separate workers, without the choices that lack them."""
    if scenario.deployment.disaggregation is None:
        remedy = "set deployment.pools and deployment.disaggregation"
        raise ScenarioError("is not there to be kept", key="deployment.disaggregation", value=None, remedy=remedy)
    if left_out is not None:
        raise ScenarioError(f"cannot be kept: {left_out}", key="deployment.disaggregation", value={})
    kept = []
    for option in options:
        own = option.choices[option.own]
        apart = tuple(each for each in option.choices if each is own or each.changes.get(POOLS_KEY) != [])
        kept.append(Option(option.name, apart, own=apart.index(own)) if option.name == POOL_NAME else option)
    return tuple(kept)


def _default_of(scenario: Scenario, dimension: Dimension) -> Any:
    """Return the engine's default for a knob that the scenario does not set; None if it sets it."""
    if dimension.kind != "knob" or value_of(scenario, dimension.key) is not None:
        return None
    try:
        engine = replica_shape(scenario).engine
    except InputError:
        # The scenario's own layout does not fit this GPU: the default is unknown.
        return None
    return getattr(engine, dimension.key.rpartition(".")[2], None)


def _largest_replica(scenario: Scenario) -> int:
    """Return the most GPUs of a replica: a node's, or more if the model needs them or has many experts.

    The scenario's own number is always allowed.
    """
    hardware, model = _hardware_of(scenario), load_model(scenario.model, scenario.folder)
    node = max(hardware.intra_node.num_host_gpus, NODE_GPUS)
    needed = model.num_parameters * FEWEST_BITS / 8 / hardware.memory.total
    own = scenario.deployment.gpus_per_replica
    if needed < node / 2:
        # Experts of a large model may be spread over two nodes, so that each GPU reads fewer of them.
        is_wide = model.moe is not None and needed * WIDE_PARTS > node
        return max(own, 2 * node if is_wide else node)
    return max(own, LARGEST_REPLICA)


def parse_choices(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return key -> values of ``KEY=V1,V2`` texts, each value read as YAML.

    Raises:
        UsageError: A text is not of this form, or names a key that has a separate option.
    """
    from simserve.documents import parse_yaml

    parsed: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")) or not values.strip():
            remedy = "deployment.quantization=none,fp8"
            raise UsageError("must be KEY=VALUE,VALUE", key="--over", value=text, remedy=remedy)
        if key in (HARDWARE_KEY, REPLICAS_KEY):
            remedy = "use --hardware" if key == HARDWARE_KEY else "the number of replicas is what is searched for"
            raise UsageError("is not for --over", key=key, remedy=remedy)
        parsed[key] = [_as_written(key, each, parse_yaml) for each in split_values(values)]
    return parsed


def _as_written(key: str, text: str, parse: Callable[..., Any]) -> Any:
    return text.strip() if key.endswith(".version") else parse(text, f"--over {key}", UsageError)


KEEPABLE: Mapping[str, tuple[str, ...]] = {
    GPUS: (),
    REPLICAS: (),
    "weights": (WEIGHTS_KEY,),
    "kv-cache": (KV_KEY,),
    "tensor-parallel": (TENSOR_KEY,),
    "pipeline-parallel": (PIPELINE_KEY,),
    "data-parallel": (DATA_KEY,),
    "expert-parallel": (EXPERTS_KEY,),
    "engine": (EAGER_KEY, *(each.key for each in DIMENSIONS if each.kind == "knob"), "cache", "static"),
    "drafts": (DRAFTS_NAME,),
    "routing": ("route",),
    "pools": ("pool",),
    "disaggregation": (SPLIT_NAME,),
    "autoscaling": ("scale",),
    "offload": ("offload",),
    "response-cache": ("answers",),
    "overflow": ("overflow",),
    "admission": ("admit",),
}
"""Name -> dotted keys and names of options that it stands for. GPUs are the kind of GPU; that and replicas are not
dimensions of a space. With disaggregation kept, prefill and decode workers are sized and no alternative to them is
offered; with pools kept they stay as they are."""


def kept_of(names: Iterable[str], hardware: Sequence[str], choices: Mapping[str, Sequence[Any]]) -> frozenset[str]:
    """Return the keys and options that some names stand for.

    Args:
        hardware: GPUs that the user wants to search.
        choices: Dotted key -> values that the user wants to search.

    Raises:
        UsageError: A name is unknown, or what it keeps is also to be searched.
    """
    found: set[str] = set()
    for name in names:
        if name not in KEEPABLE:
            remedy = "choose from " + ", ".join(KEEPABLE)
            raise UsageError("is nothing that can be kept", key="--keep", value=name, remedy=remedy)
        if name == GPUS and hardware:
            raise UsageError("does not go with --hardware", key="--keep", value=name, remedy="leave one of them away")
        for key in KEEPABLE[name]:
            if key in choices:
                raise UsageError(f"does not go with --over {key}", key="--keep", value=name, remedy="leave one away")
        found.update(KEEPABLE[name])
    return frozenset(found)
