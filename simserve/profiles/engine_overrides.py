"""What a user may set on an engine, what contradicts itself, and where each resolved value came from.

Knows one set of overrides at a time, no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import Field

from simserve.errors import InputError, ScenarioError
from simserve.validation import FrozenModel, validate

KEY_PREFIX = "deployment.engine."
_ValueT = TypeVar("_ValueT")


class EngineOverrides(FrozenModel):
    """The engine keys of a scenario in SI, all optional; what is absent resolves as the engine would."""

    batching: Literal["continuous", "static"] | None = None
    """`continuous` or `static`."""
    scheduler: Literal["mixed", "prefill_first"] | None = None
    """Who goes first in a step."""
    admission: Literal["on_demand", "estimate", "reserve"] | None = None
    """What admission requires."""
    scheduling_policy: Literal["fcfs", "priority", "shortest_first"] | None = None
    """Queue order."""
    priority_ageing: float | None = Field(default=None, gt=0)
    """Seconds of waiting that outweigh one level of priority."""
    priority_preemption: bool | None = None
    """Whether running requests make way for a better priority."""
    preemption_mode: Literal["recompute", "swap"] | None = None
    """What happens to the KV of a preempted request."""
    kv_allocation: Literal["paged", "static", "pow2", "oracle", "none"] | None = None
    """How KV memory is given out."""
    max_num_seqs: int | None = Field(default=None, ge=1)
    """Most requests that hold KV at once."""
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    """Token budget of a step."""
    enable_chunked_prefill: bool | None = None
    """Whether a prompt may be split over steps."""
    enable_prefix_caching: bool | None = None
    """Whether equal prefixes share KV blocks."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of GPU memory, of what the engine takes it of."""
    block_size: int | None = Field(default=None, ge=1)
    """Tokens a KV block."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt plus output, tokens."""
    swap_space: float | None = Field(default=None, ge=0)
    """Host memory for swapped KV, bytes."""
    async_scheduling: bool | None = None
    """Whether the host prepares the next step while the GPU computes."""
    attention_dp_timeout_iters: int | None = Field(default=None, ge=2)
    """Steps for which the prompts of data-parallel ranks wait for each other."""
    sampling: Literal["greedy", "nucleus"] | None = None
    """`greedy`, or `nucleus`: by top-k or top-p."""
    enforce_eager: bool | None = None
    """Whether nothing is captured in CUDA graphs."""
    max_cudagraph_capture_size: int | None = Field(default=None, ge=1)
    """Largest batch, in tokens, that is captured in a CUDA graph."""
    frontend_latency: float | None = Field(default=None, ge=0)
    """From arrival to the scheduler, seconds."""
    host_slowdown: float | None = Field(default=None, gt=0)
    """Times as long as usual that work on the CPU takes."""
    static_batch_size: int | None = Field(default=None, ge=1)
    """Most requests of a static batch."""
    static_max_wait: float | None = Field(default=None, ge=0)
    """Longest wait of a static batch's first request, seconds."""
    cpu_offload_gb: float | None = Field(default=None, ge=0)
    """Weights a GPU that stay in host memory, GiB."""
    n_gpu_layers: int | None = Field(default=None, ge=1)
    """Layers on the GPU under llama.cpp; the others run on the CPU."""
    num_gpu: int | None = Field(default=None, ge=1)
    """The same under Ollama."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Picks the user's value or the engine's default for one knob after another, and records which.

    Attributes:
        asked: What the user set.
        default_label: How a default is cited, ``vllm 0.12 default on h100-sxm-80gb``.
        sources: Knob -> where its value came from.
    """

    asked: EngineOverrides
    default_label: str
    sources: dict[str, str] = field(default_factory=dict)

    def is_set(self, key: str) -> bool:
        """Return whether the user set a knob."""
        return getattr(self.asked, key) is not None

    def pick(self, key: str, default: _ValueT, note: str = "") -> _ValueT:
        """Return the user's value of a knob, else ``default``; ``note`` says what moved the default."""
        value: _ValueT | None = getattr(self.asked, key)
        if value is not None:
            self.sources[key] = "scenario"
            return value
        return self.default(key, default, note)

    def default(self, key: str, value: _ValueT, note: str = "") -> _ValueT:
        """Return ``value``, recorded as the engine's default."""
        self.sources[key] = f"{self.default_label}, {note}" if note else self.default_label
        return value


def read_overrides(overrides: Mapping[str, Any]) -> EngineOverrides:
    """Return the user's engine keys, checked one by one and against each other.

    Raises:
        ScenarioError: A key is unknown, a value out of range or not supported, or two keys contradict.
    """
    try:
        asked = validate(EngineOverrides, overrides, error=ScenarioError)
    except InputError as failure:
        key = f"{KEY_PREFIX}{failure.key}"
        raise ScenarioError(failure.rule, key=key, value=failure.value, remedy=failure.remedy) from None
    _refuse_pairs(asked)
    return asked


def refuse(key: str, value: object, rule: str, remedy: str) -> ScenarioError:
    """Return the error that an engine key violates a rule."""
    return ScenarioError(rule, key=f"{KEY_PREFIX}{key}", value=value, remedy=remedy)


def _refuse_pairs(asked: EngineOverrides) -> None:
    if asked.swap_space == 0 and asked.preemption_mode == "swap":
        raise refuse("swap_space", "0 B", "leaves nothing to swap to", "give some, or use preemption_mode recompute")
    if asked.enable_prefix_caching and asked.preemption_mode == "swap":
        rule = "is not simulated with preemption_mode swap: swapped blocks would have to be shared"
        raise refuse("enable_prefix_caching", True, rule, "leave one of the two out")
    budget, seats = asked.max_num_batched_tokens, asked.max_num_seqs
    if budget is not None and seats is not None and budget < seats:
        rule = f"must be at least max_num_seqs ({seats}): every running request takes a token of each step"
        raise refuse("max_num_batched_tokens", budget, rule, "raise it or lower max_num_seqs")
    size = asked.static_batch_size
    if budget is not None and size is not None and budget < size:
        rule = f"must be at least static_batch_size ({size}): every sequence takes a token of each step"
        raise refuse("max_num_batched_tokens", budget, rule, "raise it or lower static_batch_size")
    if size is not None and seats is not None and size > seats:
        rule = f"must be at most max_num_seqs ({seats})"
        raise refuse("static_batch_size", size, rule, "lower it or leave max_num_seqs out")
    if asked.admission in ("estimate", "reserve") and asked.kv_allocation not in (None, "paged"):
        rule = f"needs kv_allocation paged, not {asked.kv_allocation}, which reserves by itself"
        raise refuse("admission", asked.admission, rule, "leave admission out or set kv_allocation to paged")


def refuse_static_keys(asked: EngineOverrides, batching: str) -> None:
    """Refuse the keys of static batching on a deployment that batches continuously.

    Raises:
        ScenarioError: ``static_batch_size`` or ``static_max_wait`` is set and ``batching`` is not static.
    """
    for key in ("static_batch_size", "static_max_wait"):
        value = getattr(asked, key)
        if value is not None and batching != "static":
            rule = f"needs batching static, not {batching}"
            raise refuse(key, value, rule, "set batching to static or leave it out")


def refuse_admission(asked: EngineOverrides, kv_allocation: str) -> None:
    """Refuse an admission rule that counts blocks where KV is not given out in blocks.

    Raises:
        ScenarioError: ``admission`` is set to ``estimate`` or ``reserve`` without paged KV.
    """
    if asked.admission in ("estimate", "reserve") and kv_allocation != "paged":
        rule = f"needs kv_allocation paged, not this engine's {kv_allocation}"
        raise refuse("admission", asked.admission, rule, "set kv_allocation to paged or leave admission out")


def refuse_sharing(asked: EngineOverrides, batching: str, kv_allocation: str) -> None:
    """Refuse prefix caching where requests hold no blocks that another could use.

    Raises:
        ScenarioError: ``enable_prefix_caching`` is set with static batching or without paged KV.
    """
    if asked.enable_prefix_caching and (batching != "continuous" or kv_allocation != "paged"):
        found = "static batching" if batching != "continuous" else f"kv_allocation {kv_allocation}"
        rule = f"needs continuous batching and kv_allocation paged, not {found}"
        raise refuse("enable_prefix_caching", True, rule, "leave it out or set it to false")


def refuse_order(asked: EngineOverrides, batching: str, kv_allocation: str, admission: str) -> None:
    """Refuse a queue order, or a kind of preemption, where nothing would follow from it or it is not simulated.

    Raises:
        ScenarioError: ``scheduling_policy`` with static batching; ``priority_preemption`` or swapping without blocks on
            demand.
    """
    if batching != "continuous" and asked.scheduling_policy not in (None, "fcfs"):
        rule = "needs continuous batching: a static batch takes whoever waits"
        raise refuse("scheduling_policy", asked.scheduling_policy, rule, "leave it out")
    if asked.preemption_mode == "swap" and (batching, kv_allocation, admission) != ("continuous", "paged", "on_demand"):
        found = "static batching" if batching != "continuous" else f"{admission} and {kv_allocation}"
        rule = f"needs continuous batching, admission on_demand and kv_allocation paged, not {found}"
        raise refuse("preemption_mode", "swap", rule, "leave it out or set those")
    if asked.priority_preemption and (kv_allocation, admission) != ("paged", "on_demand"):
        rule = f"needs admission on_demand and kv_allocation paged, not {admission} and {kv_allocation}"
        raise refuse("priority_preemption", True, rule, "leave it out or set the two")
