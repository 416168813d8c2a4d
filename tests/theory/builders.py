"""Small builders of queues: seats that serve a step at a time, random requests, deployments without a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.engine.state import StepTimes
from simserve.perf.operators import COMMUNICATION, COMPUTE, HOST, KV, PART_NAMES, WEIGHTS, PricedDeployment, StepParts
from simserve.sim.acceleration import Accelerate
from simserve.sim.cluster import Routing
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Deployment, replay, simulate
from tests.builders import constant_step_times, make_config, make_specs
from tests.theory.recursions import Floats, Integers


@dataclass(frozen=True, kw_only=True)
class Service:
    """A distribution of output lengths; a prompt of one token and n output tokens take n steps.

    Attributes:
        sample: Draws lengths in tokens, from a generator and a shape.
        mean: Exact mean, steps.
        second_moment: Exact second moment, steps^2.
    """

    sample: Callable[[np.random.Generator, tuple[int, ...]], Integers]
    mean: float
    second_moment: float


def fixed_steps(steps: int) -> Service:
    """Return a service of always ``steps`` steps."""
    return Service(sample=lambda generator, shape: np.full(shape, steps), mean=steps, second_moment=float(steps**2))


def geometric_steps(mean: float) -> Service:
    """Return geometric steps from 1 on; cv^2 is ``1 - 1 / mean``, almost exponential for large means."""
    return Service(
        sample=lambda generator, shape: generator.geometric(1 / mean, shape),
        mean=mean,
        second_moment=mean * (2 * mean - 1),
    )


def two_point_steps(short: int, long: int, share_of_long: float) -> Service:
    """Return ``long`` steps with probability ``share_of_long``, else ``short``."""

    def sample(generator: np.random.Generator, shape: tuple[int, ...]) -> Integers:
        return np.where(generator.random(shape) < share_of_long, long, short)

    return Service(
        sample=sample,
        mean=short + share_of_long * (long - short),
        second_moment=short**2 + share_of_long * (long**2 - short**2),
    )


def uniform_steps(low: int, high: int) -> Service:
    """Return steps that are uniform over ``low .. high``."""
    values = np.arange(low, high + 1, dtype=np.float64)
    return Service(
        sample=lambda generator, shape: generator.integers(low, high + 1, shape),
        mean=float(values.mean()),
        second_moment=float((values**2).mean()),
    )


def seats(max_num_seqs: int = 1, **overrides: Any) -> EngineConfig:
    """Return a replica on which seats are all that binds."""
    ample = {"max_model_len": 2**24, "num_blocks": 2**40, "block_size": 16}
    return make_config(max_num_seqs=max_num_seqs, **(ample | overrides))


def served(
    arrival_time: Floats,
    num_steps: Integers,
    step_seconds: float,
    *,
    max_num_seqs: int = 1,
    num_replicas: int = 1,
    routing: Routing = "round_robin",
    accelerate: Accelerate = "auto",
) -> RequestRecords:
    """Return the records of prompts of one token in steps of constant length, all arrays ``[num_requests]``."""
    specs = make_specs(arrival_time.tolist(), 1, num_steps.tolist())
    config, times = seats(max_num_seqs), constant_step_times(step_seconds, max_num_seqs)
    if num_replicas == 1:
        return replay(config, times, specs, accelerate=accelerate).records
    return simulate(make_deployment(config, times, num_replicas, routing), specs, accelerate=accelerate).records


def waits(records: RequestRecords) -> Floats:
    """Return seconds from arrival to the start of the first step."""
    return np.asarray(records.scheduled_time - records.arrival_time)


def make_deployment(
    config: EngineConfig,
    step_times: StepTimes,
    num_replicas: int = 2,
    routing: Routing = "round_robin",
    **work: Any,
) -> Deployment:
    """Return equal replicas whose step times are given; ``work`` are flops and bytes of `StepParts`."""
    return Deployment(
        num_replicas=num_replicas,
        engine=config,
        priced=PricedDeployment(step_times=step_times, parts=split_parts(step_times, **work), fidelity="roofline"),
        routing=routing,
    )


def split_parts(step_times: StepTimes, **work: Any) -> StepParts:
    """Return parts that sum to ``step_times``: each table is split 4 : 3 : 2 : 1 over all but KV.

    The attention bases are KV alone. Without ``work`` nothing is computed and nothing moves.
    """
    shares = np.zeros((len(PART_NAMES), 1))
    shares[[WEIGHTS, COMPUTE, COMMUNICATION, HOST], 0] = 0.4, 0.3, 0.2, 0.1
    only_kv = np.zeros((len(PART_NAMES), 1))
    only_kv[KV] = 1.0
    amounts: dict[str, Any] = {
        "token_flops": 0.0,
        "sequence_flops": 0.0,
        "pair_flops": 0.0,
        "weight_bytes": np.zeros(len(step_times.token_seconds)),
        "token_bytes": 0.0,
        "kv_bytes_per_token": 0.0,
        "peak_flops": 1.0,
        "peak_bandwidth": 1.0,
    }
    return StepParts(
        decode=shares * np.asarray(step_times.decode_base),
        token=shares * np.asarray(step_times.token_seconds),
        token_beyond=shares[:, 0] * step_times.token_seconds_beyond,
        sequence=shares * np.asarray(step_times.sequence_seconds),
        decode_attention=only_kv * np.asarray(step_times.decode_attention_base),
        **(amounts | work),
    )
