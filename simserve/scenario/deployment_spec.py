"""What serves: the deployment part of a scenario, with its engine and router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from simserve.perf.expert_exchange import All2AllBackend
from simserve.profiles.checkpoint import KVCacheDtype, Quantization
from simserve.profiles.engine_options import EngineOptions
from simserve.profiles.hardware import hardware_name
from simserve.scenario.kv_tiers import KVOffloadSpec, KVTierSpec, check_tiers
from simserve.scenario.loras import LoraLoadSpec
from simserve.scenario.speculative import SpeculativeSpec
from simserve.sim.admission_spec import AdmissionSpec
from simserve.sim.autoscaling_spec import AutoscalingSpec, EncoderAutoscalingSpec
from simserve.sim.fairness_spec import FairnessSpec
from simserve.sim.fault_spec import FaultSpec
from simserve.sim.liveness_spec import LivenessSpec
from simserve.sim.overflow_spec import OverflowSpec
from simserve.sim.pool_spec import DisaggregationSpec, Role
from simserve.sim.region_spec import RegionsSpec
from simserve.sim.response_cache_spec import ResponseCacheSpec
from simserve.sim.routing_spec import RoutingPolicy, RoutingSpec
from simserve.sim.streaming_spec import StreamingSpec
from simserve.sim.update_spec import UpdateSpec
from simserve.units import PositiveBytesPerSecond, Seconds
from simserve.validation import NAME_PATTERN, FrozenModel

MAX_REPLICAS = 10_000
"""Each replica has a scheduler of its own in memory."""


def _as_text(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # An unquoted 0.10 has lost its zero by now.
        meant = f' or "{value}0"' if isinstance(value, float) and len(str(value).partition(".")[2]) == 1 else ""
        raise ValueError(f'is a number, and a version is a text; put it in quotes: version: "{value}"{meant}')
    return value


class EngineChoice(FrozenModel):
    """Which engine, and which version of it."""

    name: str = "vllm"
    """Engine profile: a name that `simserve engines` lists, or the path of a profile file."""
    version: Annotated[str | None, BeforeValidator(_as_text)] = None
    """Version in quotes, such as "0.12"; the nearest older known one is used and named. Absent: newest."""


class EngineSpec(EngineOptions, EngineChoice):
    """The serving engine: which one, which version, and the options that differ from its defaults.

    An option that is absent resolves as that version sets it on that GPU; `simserve engines NAME` prints them.
    """

    kv_offload: KVOffloadSpec | None = None
    """A second tier behind the prefix cache, in host memory or on disk; absent: what gives way is computed again."""
    lora_load: LoraLoadSpec | None = None
    """How LoRA adapters reach the GPU, with `max_loras`; absent: from NVMe and over the GPU's host link."""
    kv_tiers: tuple[KVTierSpec, ...] | None = None
    """Several tiers behind the prefix cache, the nearest first: host memory, a disk, a remote store; instead of
    `kv_offload`. Absent: none."""

    @model_validator(mode="after")
    def _tiers_go_together(self) -> Self:
        if self.kv_offload is not None and self.kv_tiers:
            raise ValueError("has kv_offload and also kv_tiers; keep one of the two")
        check_tiers(self.kv_tiers or ())
        return self


HardwareName = Annotated[str, AfterValidator(hardware_name)]
"""Name of a GPU: a short one becomes the full name that results carry."""


class PoolSpec(FrozenModel):
    """Equal replicas. What a pool leaves out is the deployment's."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
    """Name in the results, and of `pool` in a class of requests."""
    role: Role = "both"
    """`both`, or, with `deployment.disaggregation`, `prefill` or `decode`."""
    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Copies of the model, each with its own scheduler."""
    hardware: HardwareName | None = None
    """GPU, as `deployment.hardware`."""
    model: str | None = None
    """Model, as `model`."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    """GPUs that share every layer."""
    pipeline_parallel_size: Annotated[int, Field(ge=1)] | None = None
    """Groups of GPUs that hold consecutive layers."""
    data_parallel_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Data-parallel attention inside a replica, as `deployment.data_parallel_size`."""
    enable_expert_parallel: bool | None = None
    """Whether each routed expert lies whole on one GPU."""
    all2all_backend: Literal["auto"] | All2AllBackend | None = None
    """How tokens reach the GPUs that hold their experts."""
    num_redundant_experts: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Further copies of the most popular experts in each layer."""
    enable_two_batch_overlap: bool | None = None
    """Whether a step runs as two halves, as `deployment.enable_two_batch_overlap`."""
    quantization: Quantization | None = None
    """Format of the linear weights."""
    kv_cache_dtype: KVCacheDtype | None = None
    """Format of the KV cache."""
    engine: EngineSpec | None = None
    """The serving engine and its knobs, all of them: nothing is taken from `deployment.engine` then."""
    speculative: SpeculativeSpec | None = None
    """Speculative decoding on this pool; absent: as `deployment.speculative` says."""
    autoscaling: AutoscalingSpec | None = None
    """How the number of its replicas follows its load; absent: as `deployment.autoscaling` says."""
    region: str | None = None
    """Where it is, with `deployment.regions`."""


_OF_POOL = (
    "hardware",
    "replicas",
    "tensor_parallel_size",
    "pipeline_parallel_size",
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
"""Keys of a pool that are keys of a deployment."""


def _as_routing(value: object) -> object:
    return {"policy": value} if isinstance(value, str) else value


def _with_start(owner: object, scaling: object) -> object:
    """Return a deployment or pool that starts with the least replicas its autoscaling allows at least."""
    least = scaling.get("min_replicas") if isinstance(scaling, Mapping) else getattr(scaling, "min_replicas", None)
    if not isinstance(owner, Mapping) or not isinstance(least, int):
        return owner
    replicas = owner.get("replicas", 1)
    return {**owner, "replicas": least} if isinstance(replicas, int) and 1 <= replicas < least else owner


class EncoderDisaggregationSpec(FrozenModel):
    """Images and audio are encoded by a pool of GPUs of its own before the router sees the request (vLLM's
    `--ec-transfer-config`, SGLang's `--encoder-only`, the encode worker of Dynamo).

    A worker is one GPU, which encodes first what comes first. The images and recordings of a request go in equal parts
    to as many workers as it has of them, those that are free soonest; when the last part is done, the embeddings cross
    the link in 16 bit, and the request goes on to the router. The pool keeps what it has encoded: neither a further try
    nor a later turn of a conversation encodes an image again.
    """

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """How many workers; with `autoscaling` those at the start, its `min_replicas` at least."""
    hardware: HardwareName | None = None
    """GPU of each; absent: `deployment.hardware`."""
    transfer_bandwidth: PositiveBytesPerSecond = 25e9
    """At which the embeddings of a request reach its replica; requests do not slow each other down on that way."""
    transfer_latency: Seconds = 0.001
    """What that way takes besides."""
    autoscaling: EncoderAutoscalingSpec | None = None
    """How the number of workers follows their load; absent: it does not."""

    @model_validator(mode="before")
    @classmethod
    def _start_scaled(cls, given: object) -> object:
        return _with_start(given, given.get("autoscaling")) if isinstance(given, Mapping) else given

    @property
    def max_workers(self) -> int:
        """The most workers there may be."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @property
    def min_workers(self) -> int:
        """The fewest workers there may be."""
        return self.replicas if self.autoscaling is None else self.autoscaling.min_replicas


class DeploymentSpec(FrozenModel):
    """What serves: hardware, how the model is cut over it, number formats, engine, replicas."""

    hardware: HardwareName
    """GPU: a name that `simserve gpus` lists, a short one such as `h100` or `m4-max-64gb` in any case, or the path of a
    profile file."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Copies of the model, each with its own scheduler."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    """GPUs that share every layer."""
    pipeline_parallel_size: Annotated[int, Field(ge=1)] = 1
    """Groups of GPUs that hold consecutive layers."""
    pipeline_layer_partition: list[Annotated[int, Field(ge=1)]] | None = None
    """Layers of each pipeline stage, first to last (vLLM's VLLM_PP_LAYER_PARTITION). Absent: as vLLM deals them."""
    data_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """Data-parallel attention inside a replica, for models with experts: so many groups of `tensor_parallel_size` GPUs,
    each with attention, a scheduler and a KV cache of its own (limits such as `max_num_seqs` are of one group), share
    the routed experts and step together, at the pace of the slowest."""
    enable_expert_parallel: bool = False
    """Whether each routed expert lies whole on one of the GPUs that share the experts, instead of cut over all."""
    all2all_backend: Literal["auto"] | All2AllBackend = "auto"
    """How tokens reach the GPUs that hold their experts, with `data_parallel_size` above 1 and
    `enable_expert_parallel`: every GPU gets the tokens of all, or each is sent only where its experts are, by DeepEP,
    `deepep_low_latency` for decoding, `deepep_high_throughput` for prompts, or over the NVLink that joins hosts, as
    TensorRT-LLM does (`nvlink_one_sided`; `nvlink_two_sided` with its WIDEEP experts and before 1.2). `auto`: DeepEP's
    for decoding where the experts lie on several nodes and the engine has it, as such servers are run (engines start
    without); what TensorRT-LLM takes by itself where NVLink joins several hosts."""
    num_redundant_experts: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Further copies of the most popular experts in each layer, with `enable_expert_parallel`: experts are placed so
    that all GPUs have about the same load (EPLB). Absent: experts lie in their order."""
    enable_two_batch_overlap: bool | None = None
    """Whether a step of 32 tokens a GPU and more runs as two halves, one of which computes while the tokens of the
    other travel to their experts (SGLang's two-batch overlap, vLLM's DBO); with an `all2all_backend` of DeepEP. Absent:
    where `all2all_backend: auto` is DeepEP and the engine has it."""
    quantization: Quantization = "auto"
    """Format of the linear weights. `auto`: as the checkpoint is stored, which its profile, its `config.json` or
    `hf_quant_config.json` says. `none`: 16 bit, of a checkpoint with fewer bits a dequantised one. fp8 and int8 also
    compute in 8 bit. What a checkpoint of the format keeps in 16 bit stays so: of gpt-oss all but the experts."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """Format of the KV cache. `auto`: what this engine and version makes of this checkpoint: 16 bit, or FP8 where the
    checkpoint asks for it and the engine heeds it (ModelOpt's under TensorRT-LLM)."""
    operator_tables: str | None = None
    """Folder of your own measured operator tables (NVIDIA AIConfigurator's layout, latency in ms). What they cover is
    read from them, inside the measured sizes; the rest stays a curve."""
    attention: Literal["flash", "standard"] = "flash"
    """Attention kernel: `flash`, or `standard`, which writes and reads the score matrix."""
    engine: EngineSpec = EngineSpec()
    """The serving engine and its knobs."""
    speculative: SpeculativeSpec | None = None
    """Speculative decoding; absent: one token a step."""
    routing: Annotated[
        RoutingSpec, BeforeValidator(_as_routing, json_schema_input_type=RoutingPolicy | RoutingSpec)
    ] = RoutingSpec()
    """Routing policy over the replicas: its name alone, or a mapping with `policy`."""
    admission: AdmissionSpec | None = None
    """Admission control: which requests are refused; absent: none."""
    autoscaling: AutoscalingSpec | None = None
    """How the number of replicas follows the load; absent: it does not. `replicas` are those at the start, its
    `min_replicas` at least."""
    faults: tuple[FaultSpec, ...] = ()
    """What goes wrong, and when."""
    liveness: LivenessSpec | None = None
    """The probe that restarts replicas which answer too late; absent: nothing is restarted for being slow."""
    updates: tuple[UpdateSpec, ...] = ()
    """Rolling updates: when replicas are replaced, a few at a time."""
    regions: RegionsSpec | None = None
    """Where clients and pools are, and how far apart; absent: the network is not looked at."""
    streaming: StreamingSpec | None = None
    """How tokens reach the client; absent: at once, as the engine has them."""
    overflow: OverflowSpec | None = None
    """Requests that an API serves instead of the replicas; absent: they wait."""
    response_cache: ResponseCacheSpec | None = None
    """Answers that are given again without asking a model; absent: every request is computed."""
    fairness: FairnessSpec | None = None
    """Whose turn it is where classes are tenants; absent: who comes first, at each replica."""
    pools: Annotated[tuple[PoolSpec, ...], Field(max_length=100)] = ()
    """Replicas of several kinds behind one router, instead of `replicas` equal ones; the keys above are what a pool
    leaves out."""
    disaggregation: DisaggregationSpec | None = None
    """How KV caches get from prefill to decode pools; absent: every replica prefills and decodes."""
    encoder_disaggregation: EncoderDisaggregationSpec | None = None
    """GPUs that encode images and audio, with `workload.images` or `workload.audio`; absent: the replicas do, in their
    steps."""

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

    def of_pool(self, pool: PoolSpec) -> DeploymentSpec:
        """Return a deployment of one pool alone: what it says, and where it says nothing, what this one says."""
        own = {key: value for key in _OF_POOL if (value := getattr(pool, key)) is not None}
        front = ("admission", "overflow", "response_cache", "fairness")
        alone = {
            **dict.fromkeys((*front, "disaggregation", "autoscaling", "liveness", "streaming", "regions")),
            **dict.fromkeys(("pools", "faults", "updates"), ()),
            "routing": RoutingSpec(),
        }
        return self.model_copy(update={**own, **alone})
