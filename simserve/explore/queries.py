"""The questions of the page: every input with its bounds, and the scenario that they stand for.

Models and GPUs are names of the catalogue, never paths. Bounds keep a run within a second or so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from simserve.errors import InputError, SimserveError
from simserve.metrics.result import RunResult
from simserve.profiles import catalog
from simserve.profiles.checkpoint import KVCacheDtype, Quantization
from simserve.scenario.load import from_mapping
from simserve.scenario.schema import Scenario
from simserve.validation import FrozenModel

MAX_REQUESTS = 4000  # Most requests of one run of the page.
Check = Callable[[int, int], None]  # Passed to a run as its progress: stops it when its time is up.


def _name_of(kind: catalog.Kind, *, may_be_empty: bool = False) -> AfterValidator:
    def check(name: str) -> str:
        if name not in catalog.names(kind) and (name or not may_be_empty):
            raise ValueError(f"is no {kind} of the catalogue")
        return name

    return AfterValidator(check)


Name = Annotated[str, Field(max_length=80)]
Model = Annotated[Name, _name_of("model")]
Hardware = Annotated[Name, _name_of("hardware")]
Framework = Annotated[Name, _name_of("engine")]
Count = Annotated[int, Field(ge=1, le=64)]


class DeploymentQuery(FrozenModel):
    """A model on GPUs."""

    model: Model = "llama-2-13b"
    """The model."""
    hardware: Hardware = "a100-sxm-80gb"
    """The GPU."""
    gpus: Count = 4
    """All GPUs: those of one replica share its layers, the others serve further replicas."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs that share every layer of a replica."""
    quantization: Quantization = "auto"
    """Format of the weights."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """Format of the KV cache."""
    max_model_len: Annotated[int, Field(ge=64, le=131_072)] = 4096
    """Longest prompt plus answer, tokens."""

    def deployment(self, engine: Mapping[str, Any]) -> dict[str, Any]:
        """Return the deployment of a scenario; GPUs left over from whole replicas are an error."""
        if self.gpus % self.tensor_parallel_size:
            raise ValueError(
                f"{self.gpus} GPUs are no whole number of replicas of {self.tensor_parallel_size}; "
                "change the number of GPUs or those of a replica"
            )
        return {
            "hardware": self.hardware,
            "replicas": self.gpus // self.tensor_parallel_size,
            "tensor_parallel_size": self.tensor_parallel_size,
            "quantization": self.quantization,
            "kv_cache_dtype": self.kv_cache_dtype,
            "engine": {"name": "vllm", "max_model_len": self.max_model_len, **engine},
        }


class SimulatorQuery(DeploymentQuery):
    """A deployment under traffic, with a switch for every optimisation."""

    rate: Annotated[float, Field(gt=0, le=2000)] = 10.0
    """Requests that arrive per second, at random (Poisson)."""
    prompt_tokens: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Mean tokens of a prompt."""
    output_tokens: Annotated[int, Field(ge=1, le=8000)] = 200
    """Mean tokens of an answer."""
    length_cv: Annotated[float, Field(ge=0, le=3)] = 1.0
    """How much lengths vary: standard deviation over mean; 0: all are equal."""
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=50_000)] = 0
    """Tokens of a system prompt at the start of every prompt; in addition to the prompt."""
    num_requests: Annotated[int, Field(ge=50, le=MAX_REQUESTS)] = 1000
    """Requests of the run."""
    max_num_seqs: Annotated[int, Field(ge=1, le=1024)] = 32
    """Batch limit: the most requests that run at once on a replica."""
    max_num_batched_tokens: Annotated[int, Field(ge=64, le=32_768)] = 2048
    """Most tokens of a step."""
    continuous_batching: bool = True
    """Requests join and leave at every step; off: batches are collected, padded and answered together."""
    paged_kv: bool = True
    """KV memory is allocated in blocks on demand; off: the longest sequence is reserved for every request."""
    kv_cache: bool = True
    """Keys and values are kept; off: every step recomputes its prefixes."""
    chunked_prefill: bool = True
    """Long prompts are spread over steps that also decode."""
    prefix_caching: bool = True
    """What prompts share is computed once; off: by each request. Without a shared beginning it gains nothing."""
    flash_attention: bool = True
    """Scores stay on the chip; off: they go through memory."""
    cuda_graphs: bool = True
    """Kernels are launched together; off: one by one."""
    async_scheduling: bool = True
    """The host prepares the next step while the GPU works."""
    speculative_decoding: bool = False
    """An extra layer drafts tokens ahead (EAGLE); the model verifies them together."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=8)] = 3
    """Drafts per step."""
    acceptance_rate: Annotated[float, Field(gt=0, lt=1)] = 0.75
    """Probability that a draft is accepted."""
    slo_ttft_ms: Annotated[float, Field(gt=0, le=1e6)] = 1000.0
    """Bound on the time to the first token, ms."""
    slo_tpot_ms: Annotated[float, Field(gt=0, le=1e5)] = 50.0
    """Bound on the time per further token, ms."""
    attainment: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95
    """Share of requests that must meet both bounds."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 1
    """Seed of the random arrivals and lengths."""

    def scenario(self) -> Scenario:
        """Return the question as a scenario, validated like every scenario.

        Raises:
            InputError: It is not a valid scenario.
            ValueError: The GPUs are not a whole number of replicas.
        """
        return from_mapping(self.mapping())

    def mapping(self) -> dict[str, Any]:
        """Return the content of a scenario file."""
        deployment = self.deployment(self._engine())
        if not self.flash_attention:
            deployment["attention"] = "standard"
        if self.speculative_decoding:
            deployment["speculative"] = {
                "method": "eagle",
                "num_speculative_tokens": self.num_speculative_tokens,
                "acceptance_rate": self.acceptance_rate,
            }
        arrivals = {"process": "poisson", "rate": self.rate}
        lengths = self._lengths(self.prompt_tokens), self._lengths(self.output_tokens)
        found = scenario_of(self.model, deployment, arrivals, lengths, self.num_requests, self.seed)
        if self.shared_prefix_tokens:
            found["workload"]["shared_prefix"] = {"num_groups": 1, "tokens": self.shared_prefix_tokens}
        run, limits = found.pop("run"), (f"{self.slo_ttft_ms:g} ms", f"{self.slo_tpot_ms:g} ms")
        return {**found, "slo": {"ttft": limits[0], "tpot": limits[1], "attainment": self.attainment}, "run": run}

    def _engine(self) -> dict[str, Any]:
        engine: dict[str, Any] = {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": max(self.max_num_batched_tokens, self.max_num_seqs),
            "enable_chunked_prefill": self.chunked_prefill,
            "enforce_eager": not self.cuda_graphs,
            "async_scheduling": self.async_scheduling,
        }
        if not self.chunked_prefill:
            engine["max_num_batched_tokens"] = max(engine["max_num_batched_tokens"], self.max_model_len)
        if not self.kv_cache:
            engine["kv_allocation"] = "none"
        elif not self.paged_kv:
            engine["kv_allocation"] = "static"
        if not self.prefix_caching:
            engine["enable_prefix_caching"] = False
        if not self.continuous_batching:
            engine |= {"batching": "static", "static_batch_size": self.max_num_seqs}
        return engine

    def _lengths(self, mean: int) -> dict[str, Any]:
        """Return lengths around a mean; at most half of the longest sequence, so that prompt and answer fit."""
        if not self.length_cv:
            return fixed(mean)
        room = (self.max_model_len - self.shared_prefix_tokens) // 2 - 1
        most = max(mean, min(10 * mean, room))
        return lognormal(mean, self.length_cv, most)


Against = Literal[
    "static batching",
    "reserved KV memory",
    "a quarter of the batch limit",
    "prompts in one piece",
    "no prefix caching",
    "drafts",
    "pipeline stages",
    "nothing",
]
"""What a film shows beside the run."""


class FilmQuery(SimulatorQuery):
    """A run to watch step by step, beside the same requests with one thing changed."""

    model: Model = "llama-3.1-8b"
    hardware: Hardware = "l40s-48gb"
    gpus: Count = 1
    rate: Annotated[float, Field(gt=0, le=2000)] = 4.0
    """Requests that arrive per second, at random (Poisson)."""
    num_requests: Annotated[int, Field(ge=20, le=1000)] = 300
    """Requests of the run."""
    pipeline: bool = False
    """The GPUs of a replica hold consecutive layers, as pipeline stages; off: they share every layer."""
    against: Against = "static batching"
    """What is different in the second film; the requests are the same."""

    def deployment(self, engine: Mapping[str, Any]) -> dict[str, Any]:
        """Return the deployment of a scenario, with the GPUs of a replica as stages if asked for."""
        found = super().deployment(engine)
        if self.pipeline:
            found |= {"tensor_parallel_size": 1, "pipeline_parallel_size": self.tensor_parallel_size}
        return found

    def other(self) -> FilmQuery | None:
        """Return the run to show beside this one; None without one.

        Raises:
            ValueError: One GPU is not a pipeline.
        """
        if self.against == "pipeline stages" and self.gpus == 1:
            raise ValueError("One GPU is no pipeline: set the number of GPUs to 2 or more.")
        stages = self.gpus if self.tensor_parallel_size == 1 else self.tensor_parallel_size
        changes: Mapping[str, dict[str, Any]] = {
            "static batching": {"continuous_batching": False},
            "reserved KV memory": {"paged_kv": False},
            "a quarter of the batch limit": {"max_num_seqs": max(self.max_num_seqs // 4, 1)},
            "prompts in one piece": {"chunked_prefill": False},
            "no prefix caching": {"prefix_caching": False},
            "drafts": {"speculative_decoding": True},
            "pipeline stages": {"pipeline": True, "tensor_parallel_size": stages},
        }
        return self.model_copy(update=changes[self.against]) if self.against in changes else None


Stop = Literal["decoding", "kv-cache", "batching", "paging", "formats", "fleet"]  # The stops of the tour, in order.


class TourQuery(FrozenModel):
    """One stop of the tour."""

    stop: Stop = "decoding"
    """Which stop."""


class MemoryQuery(DeploymentQuery):
    """A decode step and its memory."""

    billion_parameters: Annotated[float, Field(ge=0, le=500)] = 0.0
    """A size of your choice: a Llama 3 with as many layers as that takes replaces the model; 0: the model as it is."""
    gpus: Count = 1
    batch: Annotated[int, Field(ge=1, le=1024)] = 16
    """Sequences that decode together."""
    context_tokens: Annotated[int, Field(ge=1, le=131_072)] = 2048
    """Tokens of each sequence."""


class BatchingQuery(FrozenModel):
    """Answers of given lengths in the slots of one batch."""

    lengths: Annotated[tuple[Annotated[int, Field(ge=1, le=1000)], ...], Field(min_length=1, max_length=64)] = (
        *(10, 34, 6, 22, 8, 40, 12, 5),
        *(18, 7, 26, 9, 14, 38, 6, 11),
        *(20, 8, 30, 5, 16, 9, 12, 7),
    )
    """Tokens of each answer, in order of arrival; all requests arrive at once."""
    slots: Annotated[int, Field(ge=1, le=32)] = 8
    """Requests that run at once."""


class PagingQuery(DeploymentQuery):
    """Sequences in the KV memory of one GPU, reserved whole or in blocks."""

    model: Model = "llama-2-7b"
    quantization: Quantization = "auto"
    gpus: Count = 1
    prompt_tokens: Annotated[int, Field(ge=1, le=8000)] = 300
    """Mean tokens of a prompt."""
    output_tokens: Annotated[int, Field(ge=1, le=4000)] = 200
    """Mean tokens of an answer."""
    num_requests: Annotated[int, Field(ge=50, le=1000)] = 1000
    """Requests, which all arrive at once."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 1


class CostQuery(FrozenModel):
    """One model on several GPUs under several frameworks, its cost a month, and an API."""

    model: Model = "llama-3.1-8b"
    """The model."""
    hardware: Annotated[tuple[Hardware, ...], Field(min_length=1, max_length=8)] = (
        *("a100-sxm-80gb", "h100-sxm-80gb"),
        *("h200-sxm-141gb", "l40s-48gb"),
    )
    """GPUs to compare; of each kind as few as the model fits on."""
    frameworks: Annotated[tuple[Framework, ...], Field(min_length=1, max_length=6)] = (
        *("vllm", "sglang"),
        *("tensorrt-llm", "tgi"),
    )
    """Frameworks to compare, each in its newest known version."""
    quantization: Quantization = "auto"
    """Format of the weights."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 64
    """Requests in flight at a replica at all times (closed loop)."""
    prompt_tokens: Annotated[int, Field(ge=1, le=8000)] = 500
    """Mean tokens of a prompt."""
    output_tokens: Annotated[int, Field(ge=4, le=2000)] = 200
    """Mean tokens of an answer."""
    chosen: Annotated[str, Field(max_length=120)] = ""
    """What is compared with the API, ``FRAMEWORK on GPU``; empty: the cheapest."""
    requests_per_month: Annotated[float, Field(ge=1, le=1e10)] = 1e7
    """Requests a month."""
    utilization: Annotated[float, Field(ge=0.001, le=1)] = 0.4
    """Share of the GPUs' rate used over a month."""
    operations_usd: Annotated[float, Field(ge=0, le=1e7)] = 2000.0
    """Dollars a month for operations."""
    discount: Annotated[float, Field(ge=0, le=0.95)] = 0.0
    """Discount on the on-demand price of a GPU-hour."""
    api: Annotated[Name, _name_of("api")] = "together-llama-3.1-8b"
    """The API."""


Pools = Literal["whichever is better", "prefill and decode apart", "one kind of replica"]
"""What a fleet of the wizard may consist of."""
_EVEN = 1.2  # Peak over the mean up to which a day counts as level.
_DAY_REQUESTS = 40_000
"""Approximate requests of a simulated day: about fifty such days are run within the time limit of the page."""


class WizardQuery(FrozenModel):
    """Traffic and an SLO for which to find a deployment."""

    model: Model = "llama-3.1-8b"
    """The model."""
    hardware: Annotated[tuple[Hardware, ...], Field(min_length=1, max_length=4)] = ("h100-sxm-80gb", "l40s-48gb")
    """GPUs to choose from."""
    rate: Annotated[float, Field(gt=0, le=500)] = 10.0
    """Requests that arrive per second, at random (Poisson)."""
    peak_to_mean: Annotated[float, Field(ge=1, le=2)] = 1.0
    """Rate at the day's peak over the mean; 1: the same all day. Above 1.2 the plan looks for an autoscaler."""
    prompt_tokens: Annotated[int, Field(ge=1, le=16_000)] = 1000
    """Mean tokens of a prompt."""
    output_tokens: Annotated[int, Field(ge=1, le=4000)] = 200
    """Mean tokens of an answer."""
    slo_ttft_ms: Annotated[float, Field(gt=0, le=1e6)] = 1000.0
    """Bound on the time to the first token, ms."""
    slo_tpot_ms: Annotated[float, Field(gt=0, le=1e5)] = 50.0
    """Bound on the time per further token, ms."""
    max_gpus: Annotated[int, Field(ge=1, le=64)] = 32
    """Most GPUs of the fleet."""
    headroom: Annotated[float, Field(ge=0, le=2)] = 0.2
    """Extra traffic that the fleet must sustain, as a share."""
    spare_replicas: Annotated[int, Field(ge=0, le=4)] = 0
    """Replicas that may be lost; they are paid for."""
    throughput: bool = False
    """Find the most tokens a second that this many GPUs can do within the SLO; off: the cheapest fleet for the
    traffic."""
    pools: Pools = "whichever is better"
    """Prefill and decode on separate workers, each with its own layout, or both on every replica."""

    def mapping(self) -> dict[str, Any]:
        """Return the content of a scenario file, with one replica, or one worker of each role, on the first GPU."""
        longest = 4 * (self.prompt_tokens + self.output_tokens)
        deployment: dict[str, Any] = {
            "hardware": self.hardware[0],
            "engine": {"name": "vllm", "max_model_len": max(longest, 2048)},
        }
        if self.is_apart:
            workers = [{"name": role, "role": role, "replicas": 1} for role in ("prefill", "decode")]
            deployment |= {"pools": workers, "disaggregation": {}}
        return {
            "name": "explore",
            "model": self.model,
            "deployment": deployment,
            "workload": {
                **self._arrivals(),
                "prompt_tokens": lognormal(self.prompt_tokens, 0.8, 2 * self.prompt_tokens),
                "output_tokens": lognormal(self.output_tokens, 0.8, 2 * self.output_tokens),
            },
            "slo": {"ttft": f"{self.slo_ttft_ms:g} ms", "tpot": f"{self.slo_tpot_ms:g} ms", "attainment": 0.95},
        }

    def _arrivals(self) -> dict[str, Any]:
        if not self.is_scaled:
            return {"arrivals": {"process": "poisson", "rate": self.rate}, "num_requests": 800}
        length = f"{self.day_seconds:.0f} s"
        daily = {"process": "daily", "rate": self.rate, "peak_to_mean": self.peak_to_mean, "day": length}
        return {"arrivals": daily, "duration": length}

    @property
    def is_scaled(self) -> bool:
        """Whether the traffic varies enough over the day to look for an autoscaler."""
        return self.peak_to_mean > _EVEN and not self.throughput

    @property
    def day_seconds(self) -> float:
        """Length of the simulated day: a real day if there are few requests, else compressed, to one hour at least."""
        return min(max(_DAY_REQUESTS / self.rate, 3600.0), 86_400.0)

    @property
    def is_apart(self) -> bool:
        """Whether prefill and decode must have separate workers."""
        return self.pools == "prefill and decode apart"

    @property
    def keep(self) -> tuple[str, ...]:
        """What the plan does not change: the choice of pools, and what would take too long."""
        pools = {"prefill and decode apart": ("disaggregation",), "one kind of replica": ("pools",)}
        # Every deployment is sized at its own load: drafts and KV cache formats would each double their number.
        slow = ("drafts", "kv-cache") if self.throughput else ("drafts",) if self.is_apart else ()
        scaled = ("pools",) if self.is_scaled else ()  # autoscalers are only for equal replicas
        return tuple(dict.fromkeys((*pools.get(self.pools, ()), *scaled, *slow)))


class SpeculationQuery(DeploymentQuery):
    """Drafts ahead of a model, and the batch at which they stop paying."""

    model: Model = "llama-3.1-70b"
    hardware: Hardware = "h100-sxm-80gb"
    quantization: Quantization = "auto"
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 4
    acceptance_rate: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """Probability that a draft is accepted if those before it are."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=10)] = 4
    """Drafts a step, k."""
    draft_cost: Annotated[float, Field(ge=0, le=1)] = 0.07
    """Time of a draft over that of a step of the model; for the closed form."""
    context_tokens: Annotated[int, Field(ge=1, le=32_768)] = 1000
    """Tokens of each sequence."""


class ParallelQuery(DeploymentQuery):
    """Ways to lay out a model on GPUs."""

    model: Model = "llama-3.1-70b"
    hardware: Hardware = "h100-sxm-80gb"
    quantization: Quantization = "auto"
    gpus: Annotated[int, Field(ge=1, le=16)] = 8
    batch: Annotated[int, Field(ge=1, le=256)] = 16
    """Sequences that decode together on each replica."""
    context_tokens: Annotated[int, Field(ge=1, le=32_768)] = 1000
    """Tokens of each sequence."""
    prompt_tokens: Annotated[int, Field(ge=1, le=8192)] = 1000
    """Tokens of a prompt."""


class TwinQuery(FrozenModel):
    """Changes to a deployment that the twin watches; settings left as they are stay those of the scenario."""

    hardware: Annotated[Name, _name_of("hardware", may_be_empty=True)] = ""
    """The GPU; empty: as it is."""
    replicas: Annotated[int, Field(ge=0, le=1024)] = 0
    """Replicas; 0: as they are."""
    tensor_parallel_size: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs that share every layer of a replica; 0: as they are."""
    quantization: Quantization | Literal[""] = ""
    """Format of the weights; empty: as it is."""
    kv_cache_dtype: KVCacheDtype | Literal[""] = ""
    """Format of the KV cache; empty: as it is."""
    max_num_seqs: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Batch limit of a replica; 0: as it is."""

    def overrides(self) -> list[str]:
        """Return the changes, as ``--set`` takes them.

        Raises:
            InputError: There are none.
        """
        keys = {name: f"deployment.{name}" for name in type(self).model_fields}
        keys["max_num_seqs"] = "deployment.engine.max_num_seqs"
        changed = [f"{key}={getattr(self, name)}" for name, key in keys.items() if getattr(self, name)]
        if not changed:
            raise InputError("is the deployment as it is", key="what-if", remedy="change one of its settings")
        return changed


class TooLongError(SimserveError):
    """A run of the page exceeded its time limit."""


class BusyError(SimserveError):
    """A client, or the server, has as many open questions as allowed."""


def fixed(tokens: int) -> dict[str, Any]:
    """Return lengths that are all equal, as a scenario has them."""
    return {"distribution": "fixed", "value": tokens}


def lognormal(mean: float, cv: float, most: int) -> dict[str, Any]:
    """Return lengths around a mean, as a scenario has them."""
    return {"distribution": "lognormal", "mean": mean, "cv": cv, "max": most}


def scenario_of(
    model: str,
    deployment: Mapping[str, Any],
    arrivals: Mapping[str, Any],
    lengths: tuple[Mapping[str, Any], Mapping[str, Any]],
    num_requests: int,
    seed: int = 1,
) -> dict[str, Any]:
    """Return the content of a scenario file; ``lengths`` are those of prompts and of answers."""
    prompts, answers = lengths
    return {
        "name": "explore",
        "model": model,
        "deployment": deployment,
        "workload": {
            "arrivals": arrivals,
            "prompt_tokens": prompts,
            "output_tokens": answers,
            "num_requests": num_requests,
        },
        "run": {"seed": seed},
    }


def whole(result: RunResult) -> RunResult:
    """Return a result if its run was complete.

    Raises:
        KeyboardInterrupt: The run was interrupted by Ctrl-C, for example in an export: what it found by then is not an
            answer.
    """
    if result.simulation.was_interrupted:
        raise KeyboardInterrupt
    return result
