"""Scenario: what is deployed, what arrives, what is asked of it. Knows no profile and runs nothing.

The key paths are public API. A key that has no effect yet is unknown; a key of which only one value is
supported accepts that value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    field_validator,
    model_validator,
)

from simserve import units
from simserve.errors import InputError
from simserve.metrics.thresholds import ATTAINMENT, parse_threshold
from simserve.scenario.speculative import SpeculativeSpec
from simserve.units import Bytes, Seconds
from simserve.validation import FrozenModel
from simserve.workload.spec import WorkloadSpec

Quantization = Literal[
    "none",
    "fp32",
    "fp16",
    "bf16",
    "fp8",
    "int8",
    "int8-wo",
    "int4",
    "gptq-int4",
    "awq-int4",
    "gguf-q4_k_m",
    "gguf-q2_k",
    "mxfp4",
    "nvfp4",
]
KVCacheDtype = Literal["auto", "fp16", "bf16", "fp8", "int8", "int4"]
RoutingPolicy = Literal["round_robin", "least_outstanding"]

_HASH_LENGTH = 12


def _as_text(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'is a number, and a version is a text; put it in quotes: version: "{value}"')
    return value


def _only(supported: object, what: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if value != supported:
            raise ValueError(f"is not supported; {what}")
        return value

    return AfterValidator(check)


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("must be longer than 0 s")
    return value


PositiveSeconds = Annotated[Seconds, AfterValidator(_positive)]
MAX_REPLICAS = 10_000
"""Each replica has a scheduler of its own in memory."""


class EngineSpec(FrozenModel):
    """The serving engine: which one, which version, and the knobs that differ from its defaults.

    A knob that is absent resolves as that version sets it on that GPU; `simserve engines NAME` prints them.
    """

    name: str = "vllm"
    """Engine profile: a name that `simserve engines` lists, or the path of a profile file."""
    version: Annotated[str | None, BeforeValidator(_as_text)] = None
    """Version in quotes, such as "0.12"; the nearest older known one is used and named. Absent: newest."""
    batching: Literal["continuous", "static"] | None = None
    """`continuous` (requests join and leave at every step) or `static` (collect, pad, answer together)."""
    scheduler: Literal["mixed", "prefill_first"] | None = None
    """Who goes first in a step: `mixed` (decodes and prefill chunks share one budget) or `prefill_first`."""
    admission: Literal["on_demand", "estimate", "reserve"] | None = None
    """What admission requires blocks for: the next chunk, an estimate of the output, or all `max_tokens`."""
    scheduling_policy: Literal["fcfs"] | None = None
    """Order of the queue: first come, first served."""
    preemption_mode: Literal["recompute"] | None = None
    """What happens to a preempted request: its KV cache is dropped and computed again."""
    kv_allocation: Literal["paged", "static", "pow2", "oracle", "none"] | None = None
    """`paged` blocks on demand; `static`, `pow2`, `oracle` contiguous reservations; `none`: no KV cache."""
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    """Seats: the most requests that run at once on a replica."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Token budget of one step."""
    enable_chunked_prefill: bool | None = None
    """Whether a prompt may be split over several steps."""
    enable_prefix_caching: bool | None = None
    """Whether equal prefixes share KV blocks; a workload without shared prefixes shares nothing."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of GPU memory; of which memory is the engine's rule (total, free after load, static)."""
    block_size: Annotated[int, Field(ge=1)] | None = None
    """Tokens in one KV block."""
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    """Longest prompt plus output, tokens. Absent: the model's own limit."""
    async_scheduling: bool | None = None
    """Whether the host prepares the next step while the GPU works on this one."""
    frontend_latency: Seconds | None = None
    """Time from a request's arrival to the scheduler (HTTP, tokenisation)."""
    static_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Static batching: the most requests of one batch."""
    static_max_wait: Seconds | None = None
    """Static batching: the longest that the first request of a batch waits for others."""

    swap_space: (
        Annotated[Bytes, _only(0.0, 'KV is recomputed, never swapped; write "0 GiB" or leave it out')] | None
    ) = None
    """Host memory for swapped KV; only "0 GiB" is supported."""

    def overrides(self) -> dict[str, Any]:
        """Return the knobs that the scenario sets itself, in SI."""
        given = self.model_dump(exclude={"name", "version"})
        return {key: value for key, value in given.items() if value is not None}


class RoutingSpec(FrozenModel):
    """How requests are spread over the replicas."""

    policy: RoutingPolicy = "least_outstanding"
    """`round_robin`, or `least_outstanding`: the replica with the fewest unanswered requests."""


def _as_routing(value: object) -> object:
    return {"policy": value} if isinstance(value, str) else value


class DeploymentSpec(FrozenModel):
    """What serves: hardware, how the model is cut over it, number formats, engine, replicas."""

    hardware: str
    """GPU: a name that `simserve gpus` lists, or the path of a profile file."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Copies of the model, each with its own scheduler."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    """GPUs that share every layer."""
    pipeline_parallel_size: Annotated[int, Field(ge=1)] = 1
    """Groups of GPUs that hold consecutive layers."""
    data_parallel_size: Annotated[int, _only(1, "data-parallel attention is always 1 here; raise replicas instead")] = 1
    """Data-parallel attention inside a replica; only 1 is supported."""
    enable_expert_parallel: bool = False
    """Whether each routed expert lies whole on one of the `tensor_parallel_size` GPUs, instead of cut over all."""
    quantization: Quantization = "none"
    """Format of the linear weights. `none`: the model's own dtype. fp8 and int8 also compute in 8 bit; of
    gpt-oss every low-bit format covers the experts alone."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """Format of the KV cache. `auto`: the model's 16-bit format."""
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

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.replicas * self.gpus_per_replica


class SLOSpec(FrozenModel):
    """Service-level objective: limits of a request, and the share of requests that must keep them all."""

    ttft: PositiveSeconds | None = None
    """Longest time to first token."""
    tpot: PositiveSeconds | None = None
    """Longest time per output token after the first."""
    e2e: PositiveSeconds | None = None
    """Longest time from arrival to the last token."""
    attainment: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Share of submitted requests that must keep every limit."""

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        if self.ttft is None and self.tpot is None and self.e2e is None:
            raise ValueError('needs at least one limit: ttft, tpot or e2e, for example ttft: "1 s"')
        return self


class PricingSpec(FrozenModel):
    """What the deployment costs."""

    gpu_hour_usd: Annotated[float, Field(ge=0)] | None = None
    """Dollars a GPU-hour. Absent: the hardware profile's own price, named in the result."""


def _as_warmup(value: object) -> object:
    try:
        return value if value in ("auto", "none") else units.parse(value, "time")
    except ValueError as failure:
        raise ValueError(f"{failure}, or auto, or none") from None


def _warmup_text(value: str | float) -> str:
    return value if isinstance(value, str) else units.to_text(value, "time")


class RunSpec(FrozenModel):
    """How the simulation itself is run."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of every random stream; the same seed gives the same result files, byte for byte."""
    replications: Annotated[int, Field(ge=1)] = 1
    """Independent runs; two or more give 95 % confidence intervals."""
    warmup: Annotated[
        Literal["auto", "none"] | float,
        BeforeValidator(_as_warmup, json_schema_input_type=str),
        PlainSerializer(_warmup_text, when_used="json"),
    ] = "auto"
    """What is cut at the start: `auto` (MSER-5, under stationary open-loop arrivals), `none`, or a time."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a scenario was read from; no part of what it says.

    Attributes:
        file: The file, for messages.
        folder: Where its relative paths start; None: the working folder.
        overrides: Overridden key -> what set it, for messages.
    """

    file: str | None = None
    folder: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)

    def of(self, key: str) -> str | None:
        """Return what set ``key``: a flag, else the file."""
        labels = (label for each, label in self.overrides.items() if f"{key}.".startswith(f"{each}."))
        return next(labels, self.file)


class Scenario(FrozenModel):
    """One question to the simulator: a model on a deployment, under a workload, against objectives."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    """Name, used for the result folder: letters, digits, dot, dash and underscore."""
    model: str
    """Model: a name that `simserve models` lists, a profile file, or a Hugging Face config.json."""
    deployment: DeploymentSpec
    """What serves."""
    workload: WorkloadSpec
    """What arrives."""
    slo: SLOSpec | None = None
    """Service-level objective; absent: latencies are reported and nothing is judged."""
    thresholds: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(default_factory=dict)
    """Conditions on the result, exit code 99 if one fails: `{ttft_ms: ["p(95)<1000"]}`."""
    pricing: PricingSpec = PricingSpec()
    """What it costs."""
    run: RunSpec = RunSpec()
    """How it is simulated."""

    @field_validator("thresholds")
    @classmethod
    def _check_thresholds(cls, thresholds: dict[str, list[str]]) -> dict[str, list[str]]:
        for metric, expressions in thresholds.items():
            for expression in expressions:
                parse_threshold(metric, expression)
        return thresholds

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        if ATTAINMENT in self.thresholds and self.slo is None:
            raise ValueError(f"thresholds.{ATTAINMENT} needs an slo block: without limits nothing is attained")
        return self

    @model_validator(mode="after")
    def _check_replications(self) -> Self:
        if self.workload.trace is not None and self.run.replications > 1:
            raise ValueError(
                "run.replications must be 1 with a trace: nothing is drawn, so every replication would be the same"
            )
        return self

    _source: Source = PrivateAttr(default_factory=lambda: Source())

    @property
    def folder(self) -> Path | None:
        """Folder that relative paths (trace, model, profiles) start from; None: the working folder."""
        return self._source.folder

    def read_from(self, source: Source) -> Self:
        """Return the scenario with ``source`` as where it was read from."""
        copy = self.model_copy()
        copy._source = source
        return copy

    @contextmanager
    def blaming(self, key: str) -> Iterator[None]:
        """Give an `InputError` raised inside that names no file the place and the key that it came from.

        Args:
            key: Key of the scenario that is being looked at; where the error names a key of its own, a dotted
                one is kept, and a plain one stands below ``key``.
        """
        try:
            yield
        except InputError as failure:
            if failure.file is not None:
                raise
            exact = key
            if failure.key is not None:
                exact = failure.key if "." in failure.key else f"{key}.{failure.key}"
            origin = self._source.of(exact)
            raise type(failure)(
                failure.rule,
                file=origin,
                key=None if origin == self._source.overrides.get(exact, "") else exact,
                value=failure.value,
                remedy=failure.remedy,
            ) from None

    def as_mapping(self) -> dict[str, Any]:
        """Return the scenario with every default filled in, as a YAML file would hold it.

        Absent blocks are left out. Paths stand as they were written.
        """
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def hash(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of `as_mapping`, seed included."""
        canonical = json.dumps(self.as_mapping(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_LENGTH]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file; the descriptions are the docstrings of the fields."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(mode="validation"),
    }
    _drop_defaults_in_si(schema)
    return schema


def _drop_defaults_in_si(part: Any) -> None:
    """Remove defaults that are numbers in SI where the file takes a text with a unit."""
    if isinstance(part, list):
        for each in part:
            _drop_defaults_in_si(each)
    elif isinstance(part, dict):
        if part.get("type") == "string" and isinstance(part.get("default"), int | float):
            del part["default"]
        for each in part.values():
            _drop_defaults_in_si(each)
