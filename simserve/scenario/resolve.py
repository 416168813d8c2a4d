"""From the names in a scenario to plain numbers: profiles, memory, engine, price. Simulates nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from simserve.engine.config import EngineConfig
from simserve.errors import InputError, ScenarioError, all_at_once
from simserve.metrics.cost import GpuHour, gpu_hour, with_link
from simserve.perf.attention import SHORT_WINDOW
from simserve.perf.cascade import can_cascade
from simserve.perf.collectives import All2AllBackend
from simserve.perf.context_parallel import with_context_blocks
from simserve.perf.kv_layout import exports_states, pools_states, with_state_blocks, with_windowed_kv
from simserve.perf.memory import MemoryPlan, plan_memory, plan_with_room, with_room_for_states
from simserve.perf.shape import Masks, ReplicaShape
from simserve.perf.tree_states import tree_fields
from simserve.profiles import catalog
from simserve.profiles.catalog import Itself, load_model
from simserve.profiles.cuda_graphs import PromptGraphs
from simserve.profiles.encoders import can_keep_tower_whole
from simserve.profiles.engine import load_engine, resolve_engine
from simserve.profiles.engine_options import TOWER_LAYERS, EngineOptions
from simserve.profiles.engine_profile import EngineProfile
from simserve.profiles.hardware import HardwareProfile, in_nodes, load_hardware
from simserve.profiles.model import ModelProfile
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.profiles.static_reserve import AttentionShare, ServerTraits
from simserve.scenario.combinations import (
    AskedFeature,
    check_combinations,
    check_engine,
    check_feature,
    check_features,
    check_model,
    check_rank_layout,
)
from simserve.scenario.cpu_layers import with_cpu_layers
from simserve.scenario.deployment_spec import DeploymentSpec, with_loras, with_tiers
from simserve.scenario.formats import formats_of, has_block_scaled_weights, with_formats
from simserve.scenario.load import LOADERS
from simserve.scenario.schema import Scenario, of_pool_alone
from simserve.scenario.slots import with_slots
from simserve.scenario.speculative import draft_fields, with_speculation
from simserve.sim.control import Role
from simserve.workload.arrival_spec import AllAtOnceArrivals
from simserve.workload.generate import decode_contexts
from simserve.workload.spec import ADVANCE_SECONDS

_LANGUAGE_ONLY = ("sglang",)
"""Engines whose replicas omit the vision tower when there is an encoder pool (SGLang's ``--language-only``); the others
are assumed to load it."""
_OF_ENGINE = [each.name for each in fields(EngineConfig) if each.name in ResolvedEngine.model_fields]
"""Fields of the scheduler's configuration that an engine has under the same name."""
_OF_STAGES = ("pipeline_parallel_size", "overlaps_chunks", "keeps_micro_batches", "samples_in_turn", "max_chunk_tokens")
"""Fields that a replica has, as they depend on its stages."""
_DEPTH_FAMILIES = ("qwen", "glm")
"""Families whose files call the layers of their vision tower ``depth``, which SGLang does not read."""
KEPT_ENGINES = 512
"""Resolved engines kept, about 10 kB each: those of the sizes and options that a search tries on some kinds of GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedScenario:
    """A scenario with everything that its names refer to."""

    scenario: Scenario  # The scenario as given.
    shape: ReplicaShape  # One replica: hardware, model, engine, parallel sizes, number formats.
    memory: MemoryPlan  # How a GPU's memory is used, and whether everything fits.
    engine: EngineConfig  # Limits and rules of one replica's scheduler.
    gpu_hour: GpuHour  # Price of a GPU-hour, and its source; with several pools, the mean.
    pools: tuple[ResolvedScenario, ...] = ()
    """Each pool as a scenario of its own; the shape, memory and engine above are then the first one's."""

    @property
    def gpu_hour_usd(self) -> float | None:
        """Dollars per GPU-hour; None if neither the scenario nor the profile has a price."""
        return self.gpu_hour.usd

    @property
    def gpu_hour_source(self) -> str:
        """Where the price comes from."""
        return self.gpu_hour.source

    @property
    def formats(self) -> dict[str, Any]:
        """The block ``formats`` of results: number formats of weights and KV cache, and where they come from.

        With several pools those of the first, and those of each by its name below ``pools``.
        """
        if not self.pools:
            return {**asdict(formats_of(self.shape, self.scenario.deployment.kv_cache_dtype)), "pools": {}}
        specs = self.scenario.deployment.pools
        each = {spec.name: pool.formats for spec, pool in zip(specs, self.pools, strict=True)}
        for formats in each.values():
            formats.pop("pools")
        return {**next(iter(each.values())), "pools": each}

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole deployment."""
        if self.pools:
            return sum(pool.num_gpus for pool in self.pools)
        return self.scenario.deployment.replicas * self.shape.num_gpus


def assumed_architectures(*scenarios: Scenario) -> list[str]:
    """Return which models of the scenarios have an assumed architecture, one warning each.

    Raises:
        ProfileError: A model is missing or invalid.
    """
    named = {}
    for scenario in scenarios:
        deployment = scenario.deployment
        drafts = None if deployment.speculative is None else deployment.speculative.draft_model
        for name in (scenario.model, *(pool.model for pool in deployment.pools), drafts):
            if name is not None:
                named[name] = load_model(name, scenario.folder).assumption
    return list(dict.fromkeys(each for each in named.values() if each is not None))


def resolve(
    scenario: Scenario | ResolvedScenario, connector: str | None = None, role: Role = "both"
) -> ResolvedScenario:
    """Return the scenario with its profiles loaded and its engine and memory resolved; a resolved one unchanged.

    Not fitting is a value: ``memory.fits`` is false, and `simserve.scenario.fit` says what would fit.

    Args:
        connector: For one pool of several: what moves KV caches between them, in words; None: nothing does.

    Raises:
        InputError: A profile is missing or invalid, or the model cannot be split or stored as requested.
    """
    if isinstance(scenario, ResolvedScenario):
        return scenario
    check_names(scenario)
    check_combinations(scenario)
    if scenario.deployment.pools:
        return _resolve_pools(scenario)
    memory = _memory(scenario, connector, role)
    shape = memory.shape
    with scenario.blaming("pricing"):
        price = gpu_hour(scenario.pricing, shape.hardware)
    asked, loras = scenario.deployment.engine, scenario.workload.loras
    with scenario.blaming("deployment"):
        engine = engine_config(shape, memory)
        if asked.kv_offload is not None or asked.kv_tiers:
            engine = with_tiers(engine, asked.kv_offload, asked.kv_tiers, shape, memory)
        if loras is None:
            engine = replace(engine, max_loras=0, max_cpu_loras=0)
        else:
            engine = with_loras(engine, loras, asked.lora_load, shape)
    if scenario.deployment.streaming is not None or isinstance(scenario.workload.arrivals, AllAtOnceArrivals):
        engine = replace(engine, api_token_seconds=0.0)  # sent as the block says, or not at all
    check_engine(scenario, engine)
    return ResolvedScenario(scenario=scenario, shape=shape, memory=memory, engine=engine, gpu_hour=price)


def resolve_like(scenario: Scenario, known: ResolvedScenario) -> ResolvedScenario:
    """Resolve a scenario that differs from a resolved one only in its replicas, number of requests and seed.

    Raises:
        InputError: Its parts are incompatible.
    """
    if scenario.deployment.pools and scenario.deployment != known.scenario.deployment:
        return resolve(scenario)
    check_combinations(scenario)
    pools = tuple(replace(pool, scenario=of_pool_alone(scenario, number)) for number, pool in enumerate(known.pools))
    for each in pools or (known,):
        check_engine(scenario, each.engine)
    return replace(known, scenario=scenario, pools=pools)


def check_names(scenario: Scenario) -> None:
    """Check that every profile named in a scenario, or by its pools, can be loaded.

    Raises:
        InputError: Some cannot; all are reported at once.
    """
    pools = range(len(scenario.deployment.pools))
    failures: dict[str, InputError] = {}
    for part in [of_pool_alone(scenario, number) for number in pools] or [scenario]:
        for key, loader in LOADERS.items():
            holder: Any = scenario if key.endswith(".api") else part  # an API is the whole deployment's
            name = reduce(lambda block, own: getattr(block, own, None), key.split("."), holder)
            try:
                with holder.blaming(key):
                    _ = name is None or loader(name, scenario.folder)
            except InputError as failure:
                failures[str(failure)] = failure
    if failures:
        raise all_at_once(list(failures.values()))


def _resolve_pools(scenario: Scenario) -> ResolvedScenario:
    pools = tuple(
        resolve(
            of_pool_alone(scenario, number), None if pool.role == "both" else "a KV connector between pools", pool.role
        )
        for number, pool in enumerate(scenario.deployment.pools)
    )
    if scenario.deployment.streaming is not None:
        pools = tuple(replace(pool, engine=replace(pool.engine, api_token_seconds=0.0)) for pool in pools)
    for pool in pools:
        check_engine(scenario, pool.engine)
    link = scenario.deployment.disaggregation
    if link is not None:
        _check_kv_transfer(scenario, pools)
        pools = tuple(
            replace(own, gpu_hour=with_link(own.gpu_hour, None if pool.role == "both" else link.usd_per_gpu_hour))
            for pool, own in zip(scenario.deployment.pools, pools, strict=True)
        )
    return replace(pools[0], scenario=scenario, gpu_hour=_mean_gpu_hour(scenario, pools), pools=pools)


def _mean_gpu_hour(scenario: Scenario, pools: Sequence[ResolvedScenario]) -> GpuHour:
    """Return the mean price over the GPUs of all pools; None if one of them has none."""
    prices = [pool.gpu_hour for pool in pools]
    if len({each.usd for each in prices}) == 1:
        return prices[0]
    names = [pool.name for pool in scenario.deployment.pools]
    words = "; ".join(f"{name}: {each.source}" for name, each in zip(names, prices, strict=True))
    pays = any(each.pays_electricity for each in prices)
    weighted = [pool.num_gpus * pool.gpu_hour.usd for pool in pools if pool.gpu_hour.usd is not None]
    if len(weighted) < len(pools):
        return GpuHour(None, words, pays)
    return GpuHour(sum(weighted) / sum(pool.num_gpus for pool in pools), f"mean over the pools; {words}", pays)


def _check_kv_transfer(scenario: Scenario, pools: Sequence[ResolvedScenario]) -> None:
    """Refuse pools whose engine cannot transfer KV caches, or without a counterpart of their model, format, region."""
    specs = scenario.deployment.pools
    for number, (pool, spec) in enumerate(zip(pools, specs, strict=True)):
        if spec.role != "both":
            engine, asked = pool.scenario.deployment, AskedFeature("kv_transfer", f"pools.{number}.role", spec.role)
            with scenario.blaming("deployment"):
                profile = load_engine(engine.engine.name, scenario.folder)
                check_feature(engine, profile, pool.shape.hardware, asked)
    keys = [
        (pool.shape.model.name, pool.shape.kv_cache_dtype, spec.region) for pool, spec in zip(pools, specs, strict=True)
    ]
    for number, (spec, key) in enumerate(zip(specs, keys, strict=True)):
        other = {"prefill": "decode", "decode": "prefill"}.get(spec.role)
        if other is None or any(each.role == other and its == key for each, its in zip(specs, keys, strict=True)):
            continue
        where = "" if spec.region is None else f" in the region {spec.region}"
        rule = f"{spec.role}s KV caches of {key[0]} in {key[1]}{where}, and no {other} pool has these"
        with scenario.blaming(f"deployment.pools.{number}"):
            raise ScenarioError(rule, remedy="give both roles one model, kv_cache_dtype and region")


def replica_shape(scenario: Scenario, role: Role = "both") -> ReplicaShape:
    """Return one replica of the scenario, checked, without pools beside it; ``role`` as in `resolve`.

    If the scenario sets no ``max_model_len`` and the engine's default does not fit, it is the longest that does.

    Raises:
        InputError: A profile is missing or invalid, or the model cannot be split or stored as requested.
    """
    return _memory(scenario, None, role).shape


def _memory(scenario: Scenario, connector: str | None, role: Role) -> MemoryPlan:
    """Return the memory plan of `replica_shape`."""
    shape = _shape_as_asked(scenario, connector, role)
    at = _with_options(scenario, connector, role, shape.engine.max_model_len)
    with scenario.blaming("deployment"):
        is_length_set = scenario.deployment.engine.max_model_len is not None
        plan = plan_memory(shape) if is_length_set else plan_with_room(shape, lambda most: at({"max_model_len": most}))
        if shape.engine.cpu_layers is None:
            return plan
        return with_cpu_layers(plan, lambda options: plan_memory(at(options)), is_length_set=is_length_set)


def _with_options(
    scenario: Scenario, connector: str | None, role: Role, started_with: int
) -> Callable[[Mapping[str, int]], ReplicaShape]:
    """Return what makes a replica with other options of the engine, of a server that was started with some context."""

    def shape(options: Mapping[str, int]) -> ReplicaShape:
        deployment = scenario.deployment
        engine = deployment.engine.model_copy(update=dict(options))
        changed = scenario.model_copy(update={"deployment": deployment.model_copy(update={"engine": engine})})
        return _shape_as_asked(changed, connector, role, started_with)

    return shape


def _shape_as_asked(
    scenario: Scenario, connector: str | None, role: Role, started_with: int | None = None
) -> ReplicaShape:
    """Return one replica at the length that the scenario or the engine sets, whether it fits or not.

    ``started_with``: context length with which the server starts, if requests have room for less.
    """
    deployment, folder = scenario.deployment, scenario.folder
    with scenario.blaming("deployment.hardware"):
        hardware = in_nodes(load_hardware(deployment.hardware, folder), deployment.gpus_per_node)
    with scenario.blaming("model"):
        model = load_model(scenario.model, folder)
    engine = resolved_engine(scenario, hardware, model, role, started_with)
    model = _with_state_format(model, engine)
    backend = _all2all_backend(deployment, hardware, model, engine.features)
    overlaps = deployment.enable_two_batch_overlap
    if overlaps is None:
        is_assumed = deployment.all2all_backend == "auto" and backend.startswith("deepep")
        overlaps = is_assumed and "two_batch_overlap" in engine.features
    windows = (layers.sliding_window or 0 for layers in model.attention_layers) if engine.attends_windows else ()
    has_long_windows = any(each > SHORT_WINDOW for each in windows)  # which are not always full
    partition = deployment.pipeline_layer_partition
    shape = ReplicaShape(
        hardware=hardware,
        model=model,
        engine=engine,
        tensor_parallel_size=deployment.tensor_parallel_size,
        pipeline_parallel_size=deployment.pipeline_parallel_size,
        decode_context_parallel_size=deployment.decode_context_parallel_size,
        data_parallel_size=deployment.data_parallel_size,
        pipeline_layer_partition=None if partition is None else tuple(partition),
        enable_expert_parallel=deployment.enable_expert_parallel,
        all2all_backend=backend,
        num_redundant_experts=deployment.num_redundant_experts,
        enable_two_batch_overlap=overlaps,
        operator_tables=_folder(deployment.operator_tables, folder),
        attention=deployment.attention,
        lora_target="all" if scenario.workload.loras is None else scenario.workload.loras.target_modules,
        masks=_masks(scenario, engine),
        encodes_images=_loads_encoder(scenario, engine, "images", is_asked=scenario.workload.has_images),
        encodes_audio=_loads_encoder(scenario, engine, "audio", is_asked=scenario.workload.has_audio),
        contexts=decode_contexts(scenario.workload, scenario.folder) if has_long_windows else None,
    )
    with scenario.blaming("deployment"):
        shape = with_formats(shape, deployment.quantization, deployment.kv_cache_dtype)
        check_rank_layout(shape)
        shared, has_drafts = scenario.workload.common_prefix_tokens, deployment.speculative is not None
        if shared and can_cascade(shape, has_drafts=has_drafts):
            contexts = decode_contexts(scenario.workload, scenario.folder)
            shape = replace(shape, common_prefix_tokens=shared, contexts=contexts)
        if shape.decode_context_parallel_size > 1:
            shape = with_context_blocks(shape)
        # A draft model takes its part of a pool that states share, but none of a pool that states have to themselves,
        # where drafts may have states of their own.
        shares = shape.model.has_states and pools_states(shape)
        has_later = shares or (deployment.speculative is not None and shape.engine.draft_states is not None)
        shape = with_state_blocks(shape) if shares else shape if has_later else with_room_for_states(shape)
        if deployment.speculative is not None:
            shape = with_speculation(shape, deployment.speculative, folder)
        if has_later:
            shape = with_room_for_states(shape)
        _check_encoder_cut(scenario, engine, shape.model)
        if not shape.model.num_sliding_layers:
            return shape
        rules = load_engine(deployment.engine.name, folder).windows_of(engine.requested_version)
        asked = deployment.engine
        mover = "kv_offload" if asked.kv_offload is not None else "kv_tiers" if asked.kv_tiers else connector
        return with_windowed_kv(shape, rules, mover)


def _loads_encoder(scenario: Scenario, engine: ResolvedEngine, kind: str, *, is_asked: bool) -> bool:
    """Return whether a replica loads an encoder: with the model, or because prompts need it.

    With a separate pool of encoders, only engines that always do.
    """
    if engine.language_model_only:
        if is_asked and scenario.deployment.encoder_disaggregation is None:
            key, rule = "deployment.engine.language_model_only", f"leaves out the encoder that workload.{kind} needs"
            scenario.refuse(key, rule, "leave it out")
        return False
    if scenario.deployment.encoder_disaggregation is not None and engine.name in _LANGUAGE_ONLY:
        return False
    return is_asked or engine.loads_encoders


def _check_encoder_cut(scenario: Scenario, engine: ResolvedEngine, model: ModelProfile) -> None:
    """Refuse to hold a tower whole on each rank if the engine splits this model's tower anyway, or there is none."""
    if engine.mm_encoder_tp_mode != "data":
        return
    rule = f"has no effect: {model.name} has no vision tower"
    if model.vision is not None:
        if can_keep_tower_whole(load_engine(engine.name, scenario.folder).base or engine.name, model.family):
            return
        rule = f"is not available for {model.name}: {engine.name} splits its vision tower over the GPUs in any case"
    scenario.refuse("deployment.engine.mm_encoder_tp_mode", rule, "leave it out")


def _masks(scenario: Scenario, engine: ResolvedEngine) -> Masks | None:
    """Return what the grammars of constrained answers cost per step; None: no answer is constrained."""
    structured = scenario.workload.structured_output
    if structured is None:
        return None
    return Masks(
        share=structured.share,
        mask_seconds=structured.cost.mask_time,
        advance_seconds=ADVANCE_SECONDS,
        is_overlapped="grammar_overlap" in engine.features,
    )


def _all2all_backend(
    deployment: DeploymentSpec, hardware: HardwareProfile, model: ModelProfile, features: Collection[str]
) -> All2AllBackend:
    """Return how tokens reach the ranks that hold their experts: as requested, or as such servers are run.

    TensorRT-LLM chooses an exchange over NVLink by itself if that joins several hosts: from 1.2 on the one-sided one,
    before that the two-sided one, if there are more ranks than experts per token (`select_alltoall_method_type` of its
    expert modules).
    """
    if deployment.all2all_backend != "auto":
        return deployment.all2all_backend
    has_ranks = deployment.enable_expert_parallel and deployment.data_parallel_size > 1
    num_gpus, link = deployment.tensor_parallel_size * deployment.data_parallel_size, hardware.intra_node
    is_wide = has_ranks and num_gpus > link.gpus_per_node
    if has_ranks and not is_wide and link.num_host_gpus < link.gpus_per_node and model.moe is not None:
        if "nvlink_one_sided" in features:
            return "nvlink_one_sided"
        if "nvlink_two_sided" in features and num_gpus > model.moe.num_experts_per_tok:
            return "nvlink_two_sided"
    return "deepep_low_latency" if is_wide and "deepep" in features else "allgather_reducescatter"


def _folder(asked: str | None, relative_to: Path | None) -> Path | None:
    """Return the folder of operator tables; a relative one is first looked for beside the scenario."""
    if asked is None:
        return None
    beside = (relative_to or Path()) / asked
    return beside if os.path.isdir(beside) else Path(asked).expanduser()


def _with_state_format(model: ModelProfile, engine: ResolvedEngine) -> ModelProfile:
    """Return the model with the states of its layers in the format that the engine is told to keep."""
    asked = engine.mamba_ssm_cache_dtype
    if asked is None and not engine.keeps_float32_states:
        return model
    num_bytes = 2.0 if asked in ("bfloat16", "float16") else 4.0
    names = ("mamba", "mamba1") if asked is None else ("linear_attention", "mamba", "mamba1")
    layers = {name: getattr(model, name) for name in names}
    kept = {"state_element_bytes": num_bytes}
    return model.model_copy(update={name: each and each.model_copy(update=kept) for name, each in layers.items()})


def _check_maker(profile: EngineProfile, hardware: HardwareProfile) -> None:
    """Check that an engine runs on a GPU; one of a maker that no profile names is the user's own, and accepted."""
    maker, capability = hardware.vendor, hardware.compute_capability
    own = profile.devices
    if own is None or not own.makers or own.runs_on(maker, capability):
        return
    devices = {name: load_engine(name).devices for name in catalog.names("engine")}
    able = [name for name, each in devices.items() if each is not None and each.runs_on(maker, capability)]
    if not able:
        return
    if maker in own.makers:
        rule = (
            f"takes CUDA compute capability {own.capability_at_least} and newer, and {hardware.name} has {capability}"
        )
        raise ScenarioError(rule, value=profile.name, remedy=f"choose from {', '.join(able)}")
    rule = f"does not run on {maker}'s devices ({hardware.name}), only on those of {', '.join(own.makers)}"
    raise ScenarioError(rule, value=profile.name, remedy=f"for {maker} choose from {', '.join(able)}")


def engine_of(scenario: Scenario) -> ResolvedEngine:
    """Return the engine of a scenario on its GPU, before number formats are resolved.

    Raises:
        InputError: A profile is missing or invalid, or the engine's version lacks a requested feature.
    """
    with scenario.blaming("deployment.hardware"):
        known = load_hardware(scenario.deployment.hardware, scenario.folder)
        hardware = in_nodes(known, scenario.deployment.gpus_per_node)
    with scenario.blaming("model"):
        model = load_model(scenario.model, scenario.folder)
    return resolved_engine(scenario, hardware, model, "both")


@lru_cache(maxsize=KEPT_ENGINES)
def _engine(profile: Itself[EngineProfile], **options: Any) -> ResolvedEngine:
    return resolve_engine(profile.value, **options)


def resolved_engine(
    scenario: Scenario, hardware: HardwareProfile, model: ModelProfile, role: Role, started_with: int | None = None
) -> ResolvedEngine:
    """Return every option of the scenario's engine, whether the model fits or not.

    ``started_with``: context length with which the server starts, if requests have room for less.

    Raises:
        InputError: The engine does not run there, or not this model, or an option contradicts another.
    """
    deployment = scenario.deployment
    with scenario.blaming("deployment.engine.name"):
        profile = load_engine(deployment.engine.name, scenario.folder)
        _check_maker(profile, hardware)
    with scenario.blaming("deployment"):
        check_model(deployment, profile, model, scenario.folder)
        check_features(deployment, profile, hardware)
    with scenario.blaming("deployment.engine"):
        engine = _engine(
            Itself(profile),
            version=deployment.engine.version,
            gpu_memory_bytes=hardware.memory.total,
            gpu_name=hardware.name,
            model_max_len=model.max_position_embeddings,
            options=_options_on(hardware, deployment.engine),
            compute_capability=hardware.compute_capability,
            tensor_parallel_size=deployment.tensor_parallel_size,
            pipeline_parallel_size=deployment.pipeline_parallel_size,
            data_parallel_size=deployment.data_parallel_size,
            host_slowdown=hardware.host_slowdown,
            drafter=None if deployment.speculative is None else deployment.speculative.method,
            model_family=model.family,
            only_prefills=role == "prefill",
            has_block_scales=deployment.engine.fp8_gemm_backend is not None and has_block_scaled_weights(scenario),
            has_linear_layers=model.num_linear_layers > 0,
            vocab_size=model.vocab_size,
            traits=server_traits(profile, scenario, hardware, model, role),
        )
    if hardware.is_cpu and deployment.engine.async_scheduling is None:
        engine = _with_knob(engine, "async_scheduling", engine.async_scheduling, f"{profile.name}, off on a CPU")
    if profile.devices is not None:
        keys = ("supported_quantizations", "quantises_on_load", "quantises_before_loading")
        known = {key: getattr(engine, key) for key in keys}
        engine = engine.model_copy(update=profile.devices.restricted(hardware.vendor, known))
    engine = _with_kernel_block(engine, profile, hardware, model)
    engine = _with_prompt_graphs(engine, profile, _prompt_graphs(profile, scenario, hardware, model, role), model)
    if _loads_encoder(scenario, engine, "images", is_asked=scenario.workload.has_images):
        engine = _beside_tower(engine, profile, model)
    rule = profile.nearest_version(engine.requested_version).memory.attention_share
    if rule is not None and (started_with or engine.max_model_len) > rule.model_len_above:
        engine = _under_attention(engine, rule, scenario, hardware, model)
    return _under_traffic(_in_role(engine, role), scenario)


def _in_role(engine: ResolvedEngine, role: Role) -> ResolvedEngine:
    """Return an engine as a server that only prefills, or only decodes, runs it."""
    if role != "both":
        # SGLang's prefill and decode servers run other loops.
        engine = engine.model_copy(update={"overlaps_results": False})
    if role == "decode":
        # SGLang ignores the delayer on decode servers (scheduler.py): what they admit has been prefilled.
        engine = engine.model_copy(update={"enable_prefill_delayer": False, "prefill_delayer_max_delay_passes": 0})
    return engine


def _under_traffic(engine: ResolvedEngine, scenario: Scenario) -> ResolvedEngine:
    """Return an engine with what depends on the requests that it is sent, and on how their answers leave."""
    if "similar_prompts" in engine.features:
        engine = with_slots(engine, scenario)
    if not scenario.workload.ignore_eos:
        engine = engine.model_copy(update={"expects_max_tokens": False})
    if isinstance(scenario.workload.arrivals, AllAtOnceArrivals):
        # No requests are served: no threads of an API server delay the engine's own in launching kernels.
        engine = engine.model_copy(update={"eager_gap_seconds_per_layer": 0.0})
        if engine.endpoint != "chat":
            latency = engine.frontend_latency - engine.tokenizer_wait
            fewer = {"frontend_seconds_per_request": 0.0, "frontend_latency": latency, "tokenizer_wait": 0.0}
            engine = engine.model_copy(update=fewer)
    streaming = scenario.deployment.streaming
    is_answering_late = streaming is not None and not streaming.stream
    if is_answering_late or isinstance(scenario.workload.arrivals, AllAtOnceArrivals):
        seconds = engine.host_seconds_per_request - engine.host_seconds_per_streamed_request
        fewer = {"host_seconds_per_request": seconds, "host_seconds_per_streamed_request": 0.0}
        engine = engine.model_copy(update=fewer)
    return engine


def _options_on(hardware: HardwareProfile, options: EngineOptions) -> EngineOptions:
    """Return an engine's options on this device.

    A CPU has no CUDA graphs, whatever the engine would capture, and vLLM on a CPU schedules a step only once the
    previous one has ended (`platforms/cpu.py` of 0.32); for other engines that is assumed.
    """
    if not hardware.is_cpu:
        return options
    known: dict[str, object] = {} if options.enforce_eager else {"cudagraph_mode": "NONE"}
    if options.async_scheduling is None:
        known["async_scheduling"] = False
    return options.model_copy(update=known)


def _with_knob(engine: ResolvedEngine, key: str, value: object, source: str) -> ResolvedEngine:
    """Return an engine with another value of a knob, and where it comes from."""
    return engine.model_copy(update={key: value, "sources": {**engine.sources, key: source}})


def _with_kernel_block(
    engine: ResolvedEngine, profile: EngineProfile, hardware: HardwareProfile, model: ModelProfile
) -> ResolvedEngine:
    """Return an engine with the KV block size that its attention kernel forces, unless the scenario sets it."""
    if engine.sources["block_size"] == "scenario" or model.mla is None or model.compressed_attention is not None:
        return engine
    version = engine.requested_version or engine.version
    kind, capability = "latent" if model.indexer is None else "sparse", hardware.compute_capability
    tokens = next((each.tokens for each in profile.kernel_blocks if each.holds(version, kind, capability)), None)
    if tokens is None or tokens > engine.max_model_len:
        return engine
    return _with_knob(engine, "block_size", tokens, f"forced by the kernel of {kind} attention")


def server_traits(
    profile: EngineProfile, scenario: Scenario, hardware: HardwareProfile, model: ModelProfile, role: Role
) -> ServerTraits:
    """Return what the engine's defaults depend on besides its GPU and options.

    An exchange that is assumed counts like one that is named, except in prefill servers, whose owners name another.
    """
    deployment = scenario.deployment
    drafts, exchange = deployment.speculative, deployment.all2all_backend
    if exchange != "auto" or role != "prefill":
        features = profile.features_of(deployment.engine.version, hardware.compute_capability)
        exchange = _all2all_backend(deployment, hardware, model, features)
    return ServerTraits(
        tokens_per_decode=1 if drafts is None else 1 + drafts.num_speculative_tokens,
        is_latent=model.mla is not None,
        has_experts=model.moe is not None,
        captures_prompts=_prompt_graphs(profile, scenario, hardware, model, role) is not None,
        has_delta_rule=model.linear_attention is not None,
        role=role,
        exchange=exchange,
        model_name=model.name.removesuffix("-FP8"),
        divides_contexts=deployment.decode_context_parallel_size > 1,
    )


def _prompt_graphs(
    profile: EngineProfile, scenario: Scenario, hardware: HardwareProfile, model: ModelProfile, role: Role
) -> PromptGraphs | None:
    """Return the graphs of prompts that a server captures by itself; None: it captures none."""
    graphs = profile.nearest_version(scenario.deployment.engine.version).cuda_graphs.prompts
    if graphs is None or hardware.vendor != "NVIDIA" or role == "decode" or model.family in graphs.off_for_families:
        return None
    deployment, options = scenario.deployment, scenario.deployment.engine
    if options.cudagraph_mode is not None:
        return None
    present = {
        "data_parallel": deployment.data_parallel_size > 1,
        "pipeline": deployment.pipeline_parallel_size > 1,
        "pools": role != "both",
        "drafts": deployment.speculative is not None,
        "loras": scenario.workload.loras is not None,
        "offload": bool(options.cpu_offload_gb or options.kv_offload is not None or options.kv_tiers),
        "redundant_experts": bool(deployment.num_redundant_experts),
        "gguf": str(deployment.quantization).startswith("gguf"),
        "pictures": model.vision is not None and model.family not in graphs.pictured_families,
        "latent": model.mla is not None and model.indexer is None,
        "sparse": model.indexer is not None,
        "exchange": deployment.all2all_backend not in ("auto", "allgather_reducescatter"),
        "two_batch_overlap": bool(deployment.enable_two_batch_overlap),
    }
    return None if any(present[each] for each in graphs.off_with) else graphs


def _with_prompt_graphs(
    engine: ResolvedEngine, profile: EngineProfile, graphs: PromptGraphs | None, model: ModelProfile
) -> ResolvedEngine:
    """Return an engine that runs the experts of prompts on the CUDA graphs that its release captures by itself."""
    if graphs is None or model.moe is None or not engine.cuda_graph_sizes:
        return engine
    chunk = engine.max_num_batched_tokens
    tokens = chunk if model.mla is None else min(chunk, graphs.latent_tokens)
    return _with_knob(engine, "cuda_graph_max_expert_tokens", tokens, f"{profile.name}, graphs of prompts")


def _under_attention(
    engine: ResolvedEngine, rule: AttentionShare, scenario: Scenario, hardware: HardwareProfile, model: ModelProfile
) -> ResolvedEngine:
    """Return an engine whose share of memory leaves what its kernels of attention need besides, whoever set it."""
    deployment, asked = scenario.deployment, scenario.deployment.engine.attention_backend
    heads = model.num_attention_heads // (deployment.tensor_parallel_size * deployment.data_parallel_size)
    is_usual = model.mla is None or (model.indexer is None and heads in rule.latent_heads)
    is_usual &= model.compressed_attention is None and model.family not in rule.except_families
    is_usual &= any(part in hardware.name for part in rule.gpus)
    if asked != rule.backend if asked is not None else not is_usual:
        return engine
    source = f"{engine.sources['gpu_memory_utilization']}, x {rule.factor:g} under {rule.backend} attention"
    return _with_knob(engine, "gpu_memory_utilization", engine.gpu_memory_utilization * rule.factor, source)


def _beside_tower(engine: ResolvedEngine, profile: EngineProfile, model: ModelProfile) -> ResolvedEngine:
    """Return an engine that sets aside memory for a vision tower, unless the scenario sets the share."""
    reserve = profile.nearest_version(engine.requested_version).runtime_memory.tower_reserve
    source = engine.sources["gpu_memory_utilization"]
    if reserve is None or model.vision is None or source == "scenario":
        return engine
    layers = TOWER_LAYERS if model.family.startswith(_DEPTH_FAMILIES) else model.vision.num_hidden_layers
    share = engine.gpu_memory_utilization * reserve.share(layers, model.vision.hidden_size)
    return _with_knob(engine, "gpu_memory_utilization", share, f"{source}, beside a vision tower")


def engine_config(shape: ReplicaShape, memory: MemoryPlan) -> EngineConfig:
    """Return the configuration of one replica's scheduler: the engine's fields of the same name, and derived ones."""
    engine, model = shape.engine, shape.model
    # One API server per node with data-parallel attention, an assumption: LMSYS measured 200,000 tokens/s from 72 ranks
    # on nine nodes, ten times what one of SGLang's sends.
    per_node = shape.hardware.intra_node.gpus_per_node
    api_servers = -(-shape.num_gpus // per_node) if shape.data_parallel_size > 1 and per_node else 1
    # The host launches the kernels of a step with prompts that no CUDA graph covers.
    layer = engine.eager_prompt_seconds_per_layer
    launching = model.num_hidden_layers * (engine.eager_seconds_per_layer if layer is None else layer)
    launching += model.num_moe_layers * engine.eager_seconds_per_expert_layer
    num_blocks = memory.num_kv_blocks if memory.windows is None else memory.windows.num_blocks
    derived = _window_fields(shape, memory) | _checkpoint_fields(shape)
    derived |= {name: getattr(shape, name) for name in _OF_STAGES}
    return EngineConfig(
        **({name: getattr(engine, name) for name in _OF_ENGINE} | derived),
        num_swap_blocks=int(engine.swap_space // (memory.kv_bytes_per_token * engine.block_size)),
        num_blocks=num_blocks,
        watermark_blocks=int(engine.watermark * num_blocks),
        max_used_blocks=int(engine.max_used_share * num_blocks),
        data_parallel_size=shape.data_parallel_size,
        transfer_step_seconds=engine.host_seconds_per_step,
        transfer_request_seconds=engine.host_seconds_per_request - engine.host_seconds_per_streamed_request,
        transfer_prompt_seconds=launching,
        num_speculative_tokens=shape.num_speculative_tokens,
        hashes_next_token=shape.hashes_next_token,
        api_token_seconds=engine.api_server_seconds_per_token / api_servers,
    )


def _window_fields(shape: ReplicaShape, memory: MemoryPlan) -> dict[str, int]:
    """Return the scheduler's fields if layers keep only their window, or a state."""
    layout = memory.windows
    if layout is None:
        return tree_fields(shape) if shape.model.num_linear_layers else _fields_ahead(shape)
    return {
        "full_groups": layout.full_groups,
        "window_groups": layout.window_groups,
        "window_blocks": layout.window_blocks,
        "num_window_blocks": layout.num_window_blocks,
        "keeps_states": layout.are_states,
    } | (_state_fields(shape) if layout.are_states else _windows_in_blocks(shape))


def _fields_ahead(shape: ReplicaShape) -> dict[str, int]:
    """Return what drafts hold and find where all layers see everything and blocks are counted one by one."""
    rules = shape.engine.state_pool
    if rules is None or shape.speculation is None:
        return {}
    return draft_fields(shape) | {"aligns_plainly": rules.aligns_plainly}


def _windows_in_blocks(shape: ReplicaShape) -> dict[str, int]:
    """Return how the blocks of windows are counted and cached, where the engine does so one by one."""
    rules, window = shape.windowed_kv, shape.model.sliding_window
    if rules is None or not rules.counts_blocks or window is None or shape.engine.scheduler != "mixed":
        return {}
    return {
        "window_tokens": window,
        "keeps_every_state": not rules.keeps_last_windows,
        "aligns_plainly": not rules.counts_steps_ahead,
    } | draft_fields(shape)


def _state_fields(shape: ReplicaShape) -> dict[str, int]:
    """Return where states are cached, if they share the pool."""
    rules = shape.engine.state_pool
    if rules is None or not rules.ends_chunks:
        return {}
    return {
        "caches_states": True,
        "keeps_every_state": rules.keeps_every_state,
        "keeps_last_state": rules.keeps_last_state,
        "aligns_plainly": rules.aligns_plainly,
        "exports_states": exports_states(shape),
        "state_block_size": shape.engine.block_size // shape.decode_context_parallel_size,
        "num_draft_states": shape.num_speculative_tokens,
    } | draft_fields(shape)


def _checkpoint_fields(shape: ReplicaShape) -> dict[str, int]:
    """Return where a prompt's chunks end if its cache cannot be cut at any point: windows or states (llama.cpp)."""
    engine = shape.engine
    offsets = [min(each, engine.max_num_batched_tokens) for each in engine.checkpoints(engine.ubatch_size)]
    if not offsets or (shape.windowed_kv is None and not shape.model.has_states):
        return {}
    return {"checkpoint_tokens": offsets[0], "last_checkpoint_tokens": offsets[-1]}
