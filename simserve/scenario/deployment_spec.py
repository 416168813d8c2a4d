"""What serves: the deployment part of a scenario, with its engine and router, LoRA adapters and KV tiers.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from simserve.engine.config import EngineConfig, KVTierConfig
from simserve.errors import ScenarioError
from simserve.perf.collectives import All2AllBackend
from simserve.perf.loras import DISK_BANDWIDTH, adapter_bytes, slot_bytes, stored_adapter_bytes
from simserve.perf.memory import MemoryPlan
from simserve.perf.offload import link_bandwidth
from simserve.perf.shape import ReplicaShape
from simserve.profiles.engine_options import EngineOptions
from simserve.profiles.hardware import HardwareProfile, hardware_name, in_nodes, load_hardware
from simserve.profiles.model_names import AskedKVCacheDtype, AskedQuantization
from simserve.scenario.speculative import SpeculativeSpec
from simserve.sim.control import (
    AdmissionSpec,
    AutoscalingSpec,
    DisaggregationSpec,
    EncoderAutoscalingSpec,
    FairnessSpec,
    FaultSpec,
    LivenessSpec,
    OverflowSpec,
    RegionsSpec,
    ResponseCacheSpec,
    Role,
    RoutingPolicy,
    RoutingSpec,
    StreamingSpec,
    UpdateSpec,
)
from simserve.units import GIB, PositiveBytes, PositiveBytesPerSecond, Seconds, format_bytes, format_seconds, to_text
from simserve.validation import NAME_PATTERN, FrozenModel
from simserve.workload.spec import LorasSpec

TierName = Literal["host", "disk", "remote"]
HardwareName = Annotated[str, AfterValidator(hardware_name)]
"""Name of a GPU; a short name is expanded to the full one, which results carry."""
_ORDER: tuple[TierName, ...] = ("host", "disk", "remote")
_COUNTS_BASE = ("sglang",)
"""Engines whose limit of adapters per batch counts requests without an adapter as one more ("including base-only
request", SGLang's help of ``--max-loras-per-batch``)."""
_KEEPS_ALL = ("sglang",)  # Engines that keep every adapter in host memory by default (``--max-loaded-loras``).
MAX_REPLICAS = 10_000  # Each replica has a scheduler of its own in memory.
_OF_POOL = (
    "hardware",
    "gpus_per_node",
    "replicas",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "all2all_backend",
    "num_redundant_experts",
    "enable_two_batch_overlap",
    "quantization",
    "kv_cache_dtype",
    "engine",
    "speculative",
)
"""Keys of a pool that are also keys of a deployment."""


class KVOffloadSpec(FrozenModel):
    """Host memory, or a disk, behind the prefix cache. Blocks evicted from the GPU go there, and a request that finds
    its prefix there loads it instead of computing it (vLLM's offloading connector, LMCache, SGLang's HiCache).

    The step that admits such a request waits for the copy, as is LMCache's default. Copies to the tier run beside the
    steps.
    """

    size: PositiveBytes
    """Size of the tier in bytes, of one replica over all its GPUs (vLLM's `--kv-offloading-size`)."""
    bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth at which one GPU loads; all GPUs of a replica load their parts at once. For a disk that they share: its
    bandwidth divided by their number. Absent: the share of the GPU's host link that copies reach."""
    latency: Seconds = 0.0
    """Additional time of a step with loads, such as the latency of a disk."""


class KVTierSpec(FrozenModel):
    """A tier behind the prefix cache, as in LMCache, Mooncake's store, SGLang's HiCache and Dynamo (G2 to G4).

    Blocks evicted from the GPU go to the first tier that is not shared, and from there to the next, the least recently
    used first. A shared store gets a copy of every prompt when it has been computed, and of the answer when it is
    complete; all replicas read it. A request takes the blocks of its prefix from the nearest tier that has them. Copies
    to a tier run beside the steps and take no time.
    """

    tier: TierName
    """Where the tier is. Tiers are given in this order, each at most once: `host`, `disk`, `remote`."""
    capacity: PositiveBytes
    """Size in bytes: of one replica over all its GPUs, or of the whole store if it is `shared`."""
    bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth at which a replica loads, all its GPUs together. Absent (`host` only): the share of its GPUs' host
    links that copies reach."""
    latency: Seconds = 0.0
    """Additional time of a step that loads from the tier."""
    shared: bool = False
    """Whether it is one store of all replicas (of a pool): what one writes, the others can load. Only the last tier."""
    total_bandwidth: PositiveBytesPerSecond | None = None
    """For a `shared` tier: bandwidth of all replicas together, which load one after the other. Absent: each replica has
    its own."""
    fetch: Literal["if_faster", "always"] = "if_faster"
    """`if_faster`: a request loads as much of what it finds as brings its first token sooner than computing would, so
    that a tier that is too slow is not used. `always`: it loads all that it finds, as LMCache and HiCache do."""
    overlap: bool = False
    """Whether blocks are loaded layer by layer while the step computes; the step then waits only for whichever takes
    longer (HiCache, LMCache's layerwise mode). Otherwise the step waits for the copies."""
    usd_per_gib_hour: Annotated[float, Field(ge=0)] = 0.0
    """Price per GiB and hour, added to that of the GPUs; 0: included in their price."""


def _check_tiers(tiers: Sequence[KVTierSpec]) -> None:
    """Check that tiers can be combined.

    Raises:
        ValueError: They cannot; the message is a rule and a remedy, ready to follow a key path.
    """
    names = [each.tier for each in tiers]
    if names != sorted(set(names), key=_ORDER.index):
        raise ValueError(f"has the tiers {', '.join(names)}; write each once, the nearest first: {', '.join(_ORDER)}")
    for each in tiers:
        if each.shared and each is not tiers[-1]:
            raise ValueError(f"has a shared tier before another ({each.tier}); only the last may be shared")
        if each.total_bandwidth is not None and not each.shared:
            raise ValueError(f"has a total_bandwidth for {each.tier}, which is not shared; write bandwidth")
        if each.bandwidth is None and each.tier != "host":
            raise ValueError(f'needs the bandwidth of {each.tier}; write for example bandwidth: "5 GB/s"')


def with_tiers(
    config: EngineConfig,
    offload: KVOffloadSpec | None,
    tiers: Sequence[KVTierSpec] | None,
    shape: ReplicaShape,
    memory: MemoryPlan,
) -> EngineConfig:
    """Return the scheduler's configuration with these tiers behind the cache.

    Raises:
        ScenarioError: There is no prefix cache for them to stand behind, or one holds no block.
    """
    key = "engine.kv_tiers" if offload is None else "engine.kv_offload"
    if not config.enable_prefix_caching:
        rule = "stands behind the prefix cache, and that is off"
        remedy = "set deployment.engine.enable_prefix_caching to true, or leave it out"
        raise ScenarioError(rule, key=key, remedy=remedy)
    if shape.data_parallel_size > 1:
        rule = f"must be 1 with {key}: ranks that step together would wait for each other's loads"
        raise ScenarioError(rule, key="data_parallel_size", value=shape.data_parallel_size)
    gpu_block = memory.kv_bytes_per_token * config.block_size
    if offload is not None:
        return replace(config, kv_tiers=(_offloaded(offload, gpu_block, shape, f"{key}.size"),))
    found = [_tier(each, gpu_block, shape, f"{key}.{number}.capacity") for number, each in enumerate(tiers or ())]
    return replace(config, kv_tiers=tuple(found))


def _offloaded(spec: KVOffloadSpec, gpu_block: float, shape: ReplicaShape, key: str) -> KVTierConfig:
    bandwidth = link_bandwidth(shape) if spec.bandwidth is None else spec.bandwidth
    return KVTierConfig(
        name="host",
        num_blocks=_blocks(spec.size, gpu_block * shape.num_gpus, key),
        block_seconds=gpu_block / bandwidth,
        latency=spec.latency,
    )


def _tier(spec: KVTierSpec, gpu_block: float, shape: ReplicaShape, key: str) -> KVTierConfig:
    block = gpu_block * shape.num_gpus
    bandwidth = link_bandwidth(shape) * shape.num_gpus if spec.bandwidth is None else spec.bandwidth
    return KVTierConfig(
        name=spec.tier,
        num_blocks=_blocks(spec.capacity, block, key),
        block_seconds=block / bandwidth,
        latency=spec.latency,
        is_shared=spec.shared,
        store_block_seconds=0.0 if spec.total_bandwidth is None else block / spec.total_bandwidth,
        has_choice=spec.fetch == "if_faster",
        overlaps=spec.overlap,
    )


def _blocks(size: float, block_bytes: float, key: str) -> int:
    """Return the number of blocks that ``size`` bytes hold."""
    num_blocks = int(size // block_bytes)
    if not num_blocks:
        rule = f"holds no KV block, {to_text(block_bytes, 'bytes')} over all GPUs"
        raise ScenarioError(rule, key=key, value=to_text(size, "bytes"), remedy="give it more")
    return num_blocks


def tiers_usd_per_hour(tiers: Sequence[KVTierSpec], count: int, *, is_shared: bool) -> float:
    """Return the price of ``count`` of each tier per hour: of the tiers that replicas share, or of the others."""
    return count * sum(each.capacity / GIB * each.usd_per_gib_hour for each in tiers if each.shared == is_shared)


def tier_lines(config: EngineConfig, bytes_per_token: float) -> list[str]:
    """Return what each tier holds and how long a block takes to load, as lines for a person to check; none without
    tiers.

    Args:
        bytes_per_token: KV bytes per token over all GPUs of a replica.
    """
    size = config.block_size
    lines = []
    for tier in config.kv_tiers:
        total = format_bytes(tier.num_blocks * size * bytes_per_token)
        name = f"{tier.name} tier, shared by the replicas" if tier.is_shared else f"{tier.name} tier"
        if config.kv_tiers == (tier,) and not tier.has_choice:
            name = "second KV tier"
        lines.append(
            f"{name}: {total} / ({bytes_per_token:,.0f} B a token x {size} tokens a block) = {tier.num_blocks:,} "
            f"blocks = {tier.num_blocks * size:,} tokens behind the prefix cache; loading a token takes "
            f"{format_seconds(tier.block_seconds / size)}"
        )
    return lines


class LoraLoadSpec(FrozenModel):
    """How adapters reach the GPU. The step that admits a request whose adapter has no slot waits for it, as in vLLM."""

    disk_bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth from disk, or a network, to host memory; absent: 2.7 GB/s, as measured for safetensors on NVMe
    (ServerlessLLM, OSDI 2024)."""
    latency: Seconds = 0.0
    """Additional time of a load from there, such as the first byte of a download."""
    host_bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth from host memory to a GPU; absent: the share of its host link that copies reach."""


def with_loras(config: EngineConfig, loras: LorasSpec, load: LoraLoadSpec | None, shape: ReplicaShape) -> EngineConfig:
    """Return the scheduler's configuration for requests with adapters.

    Raises:
        ScenarioError: The adapters do not fit the engine's options, or their combination with another option is not
            simulated.
    """
    _check_options(config, loras, shape)
    seats = config.max_loras - (shape.engine.name in _COUNTS_BASE and loras.base_share > 0)
    load = load or LoraLoadSpec()
    kept = loras.num_adapters if shape.engine.name in _KEEPS_ALL else shape.engine.max_loras
    stored = stored_adapter_bytes(shape, loras.rank, loras.target_modules)
    held = adapter_bytes(shape, loras.rank, loras.target_modules)
    return replace(
        config,
        max_loras=seats,
        max_cpu_loras=max(config.max_cpu_loras or kept, config.max_loras),
        lora_host_seconds=held / (load.host_bandwidth or link_bandwidth(shape)),
        lora_disk_seconds=load.latency + stored / (load.disk_bandwidth or DISK_BANDWIDTH),
    )


def _check_options(config: EngineConfig, loras: LorasSpec, shape: ReplicaShape) -> None:
    engine = shape.engine
    if not engine.max_loras:
        rule = "is not set, and requests have adapters (workload.loras)"
        remedy = "give the adapters that a batch may hold, such as 4 (vLLM's default is 1, SGLang's 8)"
        raise ScenarioError(rule, key="engine.max_loras", remedy=remedy)
    if loras.rank > engine.max_lora_rank:
        rule = f"must be at least the adapters' rank, {loras.rank} (workload.loras.rank)"
        raise ScenarioError(rule, key="engine.max_lora_rank", value=engine.max_lora_rank, remedy="raise it")
    if engine.name in _COUNTS_BASE and loras.base_share > 0 and engine.max_loras < 2:
        rule = f"must be at least 2: {engine.name} counts requests without an adapter as one more"
        raise ScenarioError(rule, key="engine.max_loras", value=engine.max_loras, remedy="raise it")
    others = {
        "engine.batching": config.batching != "continuous",
        "engine.kv_allocation": config.kv_allocation not in ("paged", "static"),
        "engine.preemption_mode": config.preemption_mode == "swap",
        "engine.priority_preemption": config.priority_preemption,
    }
    for key, applies in others.items():
        if applies:
            rule = "is not simulated with adapters (workload.loras)"
            value = getattr(config, key.removeprefix("engine."))
            raise ScenarioError(rule, key=key, value=value, remedy="leave one of the two out")


def lora_lines(config: EngineConfig, shape: ReplicaShape, loras: LorasSpec | None) -> list[str]:
    """Return the memory of adapter slots and the time of loads, as lines for a person to check; none without slots."""
    engine, size = shape.engine, slot_bytes(shape)
    if not size:
        return []
    total = format_bytes(engine.max_loras * size)
    lines = [f"adapters: {engine.max_loras} slots x {format_bytes(size)} at rank {engine.max_lora_rank} = {total}"]
    if loras is not None:
        stored = format_bytes(stored_adapter_bytes(shape, loras.rank, loras.target_modules))
        lines.append(
            f"loading an adapter of {stored} takes {format_seconds(config.lora_host_seconds)} from host memory, "
            f"{format_seconds(config.lora_disk_seconds)} more from disk"
        )
    return lines


def _as_text(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # An unquoted 0.10 has already lost its zero.
        meant = f' or "{value}0"' if isinstance(value, float) and len(str(value).partition(".")[2]) == 1 else ""
        raise ValueError(f'is a number, and a version is a text; put it in quotes: version: "{value}"{meant}')
    return value


class EngineChoice(FrozenModel):
    """Which engine, and which version of it."""

    name: str = "vllm"
    """Engine profile: a name that `simserve engines` lists, or the path of a profile file."""
    version: Annotated[str | None, BeforeValidator(_as_text)] = None
    """Version in quotes, such as "0.12"; if unknown, the nearest older known one is used and named. Absent: newest."""


class EngineSpec(EngineOptions, EngineChoice):
    """The serving engine: which one, which version, and the options that differ from its defaults.

    An absent option takes the default of that version on that GPU; `simserve engines NAME` prints the defaults.
    """

    kv_offload: KVOffloadSpec | None = None
    """A second tier behind the prefix cache, in host memory or on disk; absent: evicted blocks are computed again."""
    lora_load: LoraLoadSpec | None = None
    """How LoRA adapters reach the GPU, with `max_loras`; absent: from NVMe and over the GPU's host link."""
    kv_tiers: tuple[KVTierSpec, ...] | None = None
    """Several tiers behind the prefix cache, the nearest first: host memory, a disk, a remote store; instead of
    `kv_offload`. Absent: none."""

    @model_validator(mode="after")
    def _tiers_go_together(self) -> Self:
        if self.kv_offload is not None and self.kv_tiers:
            raise ValueError("has kv_offload and also kv_tiers; keep one of the two")
        _check_tiers(self.kv_tiers or ())
        return self


class PoolSpec(FrozenModel):
    """Identical replicas. Keys that a pool omits are taken from the deployment."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
    """Name in the results, and in the key `pool` of a class of requests."""
    role: Role = "both"
    """`both`, or, with `deployment.disaggregation`, `prefill` or `decode`."""
    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Copies of the model, each with its own scheduler."""
    hardware: HardwareName | None = None
    """GPU, as `deployment.hardware`."""
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    """GPUs of a node, as `deployment.gpus_per_node`; absent with a GPU of its own: as in the GPU's profile."""
    model: str | None = None
    """Model, as `model`."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    """GPUs that share every layer."""
    pipeline_parallel_size: Annotated[int, Field(ge=1)] | None = None
    """Groups of GPUs that hold consecutive layers."""
    decode_context_parallel_size: Annotated[int, Field(ge=1)] | None = None
    """GPUs that divide the tokens of each request, as `deployment.decode_context_parallel_size`."""
    data_parallel_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Data-parallel attention inside a replica, as `deployment.data_parallel_size`."""
    enable_expert_parallel: bool | None = None
    """Whether each routed expert lies whole on one GPU."""
    all2all_backend: Literal["auto"] | All2AllBackend | None = None
    """How tokens reach the GPUs that hold their experts."""
    num_redundant_experts: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Additional copies of the most popular experts in each layer."""
    enable_two_batch_overlap: bool | None = None
    """Whether a step runs as two halves, as `deployment.enable_two_batch_overlap`."""
    quantization: AskedQuantization | None = None
    """Format of the linear weights."""
    kv_cache_dtype: AskedKVCacheDtype | None = None
    """Format of the KV cache."""
    engine: EngineSpec | None = None
    """The serving engine and all its options: none are then taken from `deployment.engine`."""
    speculative: SpeculativeSpec | None = None
    """Speculative decoding on this pool; absent: as in `deployment.speculative`."""
    autoscaling: AutoscalingSpec | None = None
    """How the number of its replicas follows its load; absent: as in `deployment.autoscaling`."""
    region: str | None = None
    """Where it is, with `deployment.regions`."""


def _as_routing(value: object) -> object:
    return {"policy": value} if isinstance(value, str) else value


def _with_start(owner: object, scaling: object) -> object:
    """Return a deployment or pool that starts with at least the fewest replicas that its autoscaling allows."""
    least = scaling.get("min_replicas") if isinstance(scaling, Mapping) else getattr(scaling, "min_replicas", None)
    if not isinstance(owner, Mapping) or not isinstance(least, int):
        return owner
    replicas = owner.get("replicas", 1)
    return {**owner, "replicas": least} if isinstance(replicas, int) and 1 <= replicas < least else owner


class EncoderDisaggregationSpec(FrozenModel):
    """Images and audio are encoded by a separate pool of GPUs before the router sees the request (vLLM's
    `--ec-transfer-config`, SGLang's `--encoder-only`, the encode worker of Dynamo).

    A worker is one GPU, which encodes in order of arrival. The images and recordings of a request are split equally
    over as many workers as it has of them, those that are free soonest. When the last part is done, the embeddings
    cross the link in 16 bit, and the request goes on to the router. The pool keeps what it has encoded: neither a retry
    nor a later turn of a conversation encodes an image again.
    """

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Number of workers; with `autoscaling` the number at the start, at least its `min_replicas`."""
    hardware: HardwareName | None = None
    """GPU of each; absent: `deployment.hardware`."""
    transfer_bandwidth: PositiveBytesPerSecond = 25e9
    """Bandwidth at which the embeddings of a request reach its replica; requests do not slow each other down."""
    transfer_latency: Seconds = 0.001
    """Additional latency of the link."""
    autoscaling: EncoderAutoscalingSpec | None = None
    """How the number of workers follows their load; absent: it is fixed."""

    @model_validator(mode="before")
    @classmethod
    def _start_scaled(cls, given: object) -> object:
        return _with_start(given, given.get("autoscaling")) if isinstance(given, Mapping) else given

    @property
    def max_workers(self) -> int:
        """The largest number of workers."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @property
    def min_workers(self) -> int:
        """The smallest number of workers."""
        return self.replicas if self.autoscaling is None else self.autoscaling.min_replicas


class DeploymentSpec(FrozenModel):
    """What serves: hardware, how the model is split over it, number formats, engine, replicas."""

    hardware: HardwareName
    """GPU: a name that `simserve gpus` lists, a short one such as `h100` or `m4-max-64gb` in any case, or the path of a
    profile file."""
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    """GPUs of one node, where nodes have fewer than the GPU's profile says: 4 for boxes with four H100. A replica with
    more GPUs spans several nodes, which the network joins. Absent: as in the profile, which `simserve gpus NAME
    --profile` prints."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Copies of the model, each with its own scheduler."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    """GPUs that share every layer."""
    pipeline_parallel_size: Annotated[int, Field(ge=1)] = 1
    """Groups of GPUs that hold consecutive layers."""
    pipeline_layer_partition: list[Annotated[int, Field(ge=1)]] | None = None
    """Layers of each pipeline stage, first to last (vLLM's VLLM_PP_LAYER_PARTITION). Absent: as in vLLM."""
    decode_context_parallel_size: Annotated[int, Field(ge=1)] = 1
    """Of the tensor-parallel GPUs, as many divide the tokens of each request's KV cache among them instead of holding
    copies of it (vLLM's `--decode-context-parallel-size`, SGLang's `--dcp-size`): of latent attention (MLA), or of
    key-value heads that GPUs outnumber. The cache holds as many times more tokens, in blocks as many times longer;
    every step that decodes exchanges queries and partial outputs in every layer."""
    data_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """Data-parallel attention inside a replica, for models with experts: the number of groups of `tensor_parallel_size`
    GPUs. Each group has its own attention, scheduler and KV cache (limits such as `max_num_seqs` apply to one group);
    all share the routed experts and step together, at the pace of the slowest."""
    enable_expert_parallel: bool = False
    """Whether each routed expert is held whole by one of the GPUs that share the experts, instead of split over all."""
    all2all_backend: Literal["auto"] | All2AllBackend = "auto"
    """How tokens reach the GPUs that hold their experts, with `data_parallel_size` above 1 and
    `enable_expert_parallel`. Either every GPU gets the tokens of all, or each token is sent only where its experts are:
    by DeepEP, `deepep_low_latency` for decoding, `deepep_high_throughput` for prompts, or over the NVLink that joins
    hosts, as TensorRT-LLM does (`nvlink_one_sided`; `nvlink_two_sided` with its WIDEEP experts and before 1.2). `auto`:
    DeepEP's for decoding if the experts are on several nodes and the engine has it, as such servers are run (engines
    start without it); what TensorRT-LLM chooses by itself if NVLink joins several hosts."""
    num_redundant_experts: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Additional copies of the most popular experts in each layer, with `enable_expert_parallel`: experts are placed so
    that all GPUs have about the same load (EPLB). Absent: experts stay in their order."""
    enable_two_batch_overlap: bool | None = None
    """Whether a step of 32 or more tokens per GPU runs as two halves, one of which computes while the tokens of the
    other travel to their experts (SGLang's two-batch overlap, vLLM's DBO); with an `all2all_backend` of DeepEP. Absent:
    on if `all2all_backend: auto` is DeepEP and the engine has it."""
    quantization: AskedQuantization = "auto"
    """Format of the linear weights. `auto`: as the checkpoint is stored, according to its profile, its `config.json` or
    `hf_quant_config.json`. `none`: 16 bit; for a checkpoint with fewer bits, a dequantised one. fp8 and int8 also
    compute in 8 bit. Weights that a checkpoint of the format keeps in 16 bit stay so: for gpt-oss, all but the
    experts."""
    kv_cache_dtype: AskedKVCacheDtype = "auto"
    """Format of the KV cache. `auto`: what this engine and version uses for this checkpoint: 16 bit, or FP8 if the
    checkpoint asks for it and the engine follows it (ModelOpt's under TensorRT-LLM)."""
    operator_tables: str | None = None
    """Folder of your own measured operator tables (NVIDIA AIConfigurator's layout, latency in ms). Operators that they
    cover are read from them, within the measured sizes; for the rest, curves are used."""
    attention: Literal["flash", "standard"] = "flash"
    """Attention kernel: `flash`, or `standard`, which writes and reads the score matrix."""
    engine: EngineSpec = EngineSpec()
    """The serving engine and its options."""
    speculative: SpeculativeSpec | None = None
    """Speculative decoding; absent: one token per step."""
    routing: Annotated[
        RoutingSpec, BeforeValidator(_as_routing, json_schema_input_type=RoutingPolicy | RoutingSpec)
    ] = RoutingSpec()
    """Routing policy over the replicas: its name alone, or a mapping with `policy`."""
    admission: AdmissionSpec | None = None
    """Admission control: which requests are refused; absent: none."""
    autoscaling: AutoscalingSpec | None = None
    """How the number of replicas follows the load; absent: it is fixed. `replicas` is the number at the start, at least
    its `min_replicas`."""
    faults: tuple[FaultSpec, ...] = ()
    """What fails, and when."""
    liveness: LivenessSpec | None = None
    """The probe that restarts replicas which answer too late; absent: slow replicas are not restarted."""
    updates: tuple[UpdateSpec, ...] = ()
    """Rolling updates: when replicas are replaced, a few at a time."""
    regions: RegionsSpec | None = None
    """Where clients and pools are, and the latencies between them; absent: the network is not modelled."""
    streaming: StreamingSpec | None = None
    """How tokens reach the client; absent: immediately, as the engine produces them."""
    overflow: OverflowSpec | None = None
    """Requests that an API serves instead of the replicas; absent: they wait."""
    response_cache: ResponseCacheSpec | None = None
    """Cached answers that are returned without asking a model; absent: every request is computed."""
    fairness: FairnessSpec | None = None
    """Whose turn it is when classes are tenants; absent: in order of arrival, at each replica."""
    pools: Annotated[tuple[PoolSpec, ...], Field(max_length=100)] = ()
    """Replicas of several kinds behind one router, instead of `replicas` identical ones; the keys above apply where a
    pool omits them."""
    disaggregation: DisaggregationSpec | None = None
    """How KV caches get from prefill to decode pools; absent: every replica prefills and decodes."""
    encoder_disaggregation: EncoderDisaggregationSpec | None = None
    """GPUs that encode images and audio, with `workload.images` or `workload.audio`; absent: the replicas encode them,
    in their steps."""

    @model_validator(mode="before")
    @classmethod
    def _start_scaled(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        scaling, pools = given.get("autoscaling"), given.get("pools")
        if not isinstance(pools, list | tuple) or not pools:
            return _with_start(given, scaling)
        own = (each.get("autoscaling") if isinstance(each, Mapping) else None for each in pools)
        started = [_with_start(each, rules or scaling) for each, rules in zip(pools, own, strict=True)]
        return {**given, "pools": started}

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole deployment."""
        if self.pools:
            return sum(self.of_pool(pool).num_gpus for pool in self.pools)
        return self.replicas * self.gpus_per_replica

    def profile_of(self, hardware: str, folder: Path | None) -> HardwareProfile:
        """Return the profile of a GPU: of its own one with nodes as they are here, of others with their usual ones.

        Raises:
            InputError: There is no such GPU, or no such node of it.
        """
        profile = load_hardware(hardware, folder)
        return in_nodes(profile, self.gpus_per_node) if hardware == self.hardware else profile

    def of_pool(self, pool: PoolSpec) -> DeploymentSpec:
        """Return a deployment of one pool alone: its own keys, and where it omits one, that of this deployment."""
        own = {key: value for key in _OF_POOL if (value := getattr(pool, key)) is not None}
        if pool.hardware not in (None, self.hardware):
            own["gpus_per_node"] = pool.gpus_per_node
        front = ("admission", "overflow", "response_cache", "fairness")
        alone = {
            **dict.fromkeys((*front, "disaggregation", "autoscaling", "liveness", "streaming", "regions")),
            **dict.fromkeys(("pools", "faults", "updates"), ()),
            "routing": RoutingSpec(),
        }
        return self.model_copy(update={**own, **alone})
