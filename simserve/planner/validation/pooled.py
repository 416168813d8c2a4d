"""What the simulator says of separate prefill and decode workers that were measured.

Of all others `simserve.planner.validation.prediction` says it.

A scenario's pools neither draft nor have data-parallel attention; measured ones do. Their decode workers are replayed
as plain ones that step as those do: a rank of data-parallel attention as a worker of its own whose partners hold as
many requests as it does, and a step that yields m tokens a request as m steps of an m-th of the time. Means are those
of the real ones; how far ranks drift apart, and that a step's tokens arrive together, is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import EngineConfig
from simserve.engine.tables import StepTimes
from simserve.perf.parts import PricedDeployment
from simserve.planner.measured.point import PoolPair
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario
from simserve.sim.control import Control
from simserve.sim.pool_spec import DisaggregationSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.routing_spec import RoutingSpec
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.workload.acceptance import expected_tokens
from simserve.workload.generate import generate

TRANSFER_BANDWIDTH = "200 GB/s"
"""Between two nodes: 8 InfiniBand ports of 400 Gbit/s at half their rate; a cache crosses in milliseconds, and
the figure decides nothing."""

MAX_IN_TRANSFER = 1_000_000
"""Caches on their way: no worker waits for their number."""

MTP_ACCEPTANCE = (0.79, 0.61, 0.46)
"""Probability that each draft of a DeepSeek MTP layer is accepted when those before it were.

Acceptance lengths 1.79, 2.27 and 2.49 of DeepSeek-V4-Pro, the nearest relative of R1 that was measured (InferenceX
golden_al_distribution, vLLM MTP, thinking on)."""

Priced = Callable[[Scenario], tuple[ResolvedScenario, PricedDeployment]]
"""Resolves a scenario and prices its deployment."""


def replay_pools(pair: PoolPair, priced: Priced) -> Simulation:
    """Return the run of a closed loop over the workers of a pair.

    Raises:
        InputError: A worker's profile is missing or does not go with the rest, or the model does not fit.
    """
    scenario = from_mapping(pair.prefill)
    resolved, prefill = priced(scenario)
    ranks = resolved.engine.data_parallel_size
    engine: EngineConfig = replace(resolved.engine, data_parallel_size=1)
    num_replicas = pair.num_prefills * ranks
    setups = (
        PoolSetup(
            name="prefill",
            engine=engine,
            step_times=_prompts_of_one_rank(prefill.step_times, ranks),
            priced=None,
            num_replicas=num_replicas,
            role="prefill",
        ),
        _decode_setup(pair, priced),
    )
    shape = resolved.shape
    control = Control(
        routing=RoutingSpec(policy="least_outstanding"),
        disaggregation=DisaggregationSpec.model_validate(
            {"transfer_bandwidth": TRANSFER_BANDWIDTH, "max_in_transfer": MAX_IN_TRANSFER}
        ),
        kv_bytes_per_token=shape.model.kv_bytes_per_token(shape.kv_element_bytes),
    )
    deployment = Deployment(num_replicas=num_replicas, engine=engine, priced=prefill, control=control, pools=setups)
    return simulate(deployment, generate(scenario.workload, seed=scenario.run.seed))


def pools_key(pair: PoolPair) -> str:
    """Return what two pairs share whose replays are the same: all but their names."""
    both = [{key: value for key, value in each.items() if key != "name"} for each in (pair.prefill, pair.decode)]
    return json.dumps([both, pair.num_prefills, pair.num_decodes, pair.num_drafts], sort_keys=True)


def _decode_setup(pair: PoolPair, priced: Priced) -> PoolSetup:
    plain, _ = priced(from_mapping(pair.decode))
    ranks, drafts = plain.engine.data_parallel_size, pair.num_drafts
    if ranks > 1 or not drafts:
        # Verifying is priced as that many more sequences.
        seats = plain.engine.max_num_seqs * (drafts + 1)
        _, wide = priced(from_mapping(_with(pair.decode, max_num_seqs=seats)))
        times = _as_one_rank(wide.step_times, ranks, drafts + 1)
    else:
        given = {"method": "mtp", "num_speculative_tokens": drafts, "acceptance_rate": MTP_ACCEPTANCE[0]}
        _, drafting = priced(from_mapping(_with(pair.decode, speculative=given)))
        times = drafting.step_times
    tokens = expected_tokens(MTP_ACCEPTANCE[:drafts]) if drafts else 1.0
    engine: EngineConfig = replace(plain.engine, data_parallel_size=1)
    return PoolSetup(
        name="decode",
        engine=engine,
        step_times=_scaled(times, 1.0 / tokens),
        priced=None,
        num_replicas=pair.num_decodes * ranks,
        role="decode",
    )


def _with(mapping: Mapping[str, Any], *, speculative: Any = None, max_num_seqs: int | None = None) -> dict[str, Any]:
    """Return a scenario with drafts, or with other seats."""
    deployment = dict(mapping["deployment"])
    if speculative is not None:
        deployment["speculative"] = speculative
    if max_num_seqs is not None:
        deployment["engine"] = {**deployment["engine"], "max_num_seqs": max_num_seqs}
    return {**mapping, "deployment": deployment}


def _prompts_of_one_rank(times: StepTimes, ranks: int) -> StepTimes:
    """Return the seconds of a rank that computes prompts beside others that compute as many tokens."""
    if ranks == 1:
        return times
    tokens = np.arange(len(times.token_seconds))
    return replace(
        times,
        token_seconds=(np.asarray(times.token_seconds) + _shared_seconds(times, ranks * tokens)).tolist(),
        token_seconds_beyond=times.token_seconds_beyond + ranks * times.shared_seconds_beyond,
        shared_seconds=(),
        shared_seconds_beyond=0.0,
    )


def _shared_seconds(times: StepTimes, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what ranks do together, by the tokens of all of them."""
    shared = np.asarray(times.shared_seconds)
    together = np.minimum(tokens, len(shared) - 1)
    return np.asarray(shared[together] + times.shared_seconds_beyond * (tokens - together))


def _as_one_rank(times: StepTimes, ranks: int, width: int) -> StepTimes:
    """Return the seconds of a rank that decodes ``width`` tokens a sequence, beside others that hold as many."""
    if ranks == 1 and width == 1:
        return times
    last = (len(times.decode_base) - 1) // width
    sequences = np.arange(last + 1)
    base = np.asarray(times.decode_base)[width * sequences]
    if len(times.shared_seconds):
        base = base + _shared_seconds(times, ranks * width * sequences)
    # Queries of a sequence read its keys once, and each takes its own products, which bind.
    slope = width * np.asarray(times.decode_slope)[width * sequences]
    return replace(
        times,
        decode_base=base.tolist(),
        decode_slope=slope.tolist(),
        sequence_seconds=np.asarray(times.sequence_seconds)[width * sequences].tolist(),
        decode_attention_base=np.asarray(times.decode_attention_base)[width * sequences].tolist(),
        shared_seconds=(),
        shared_seconds_beyond=0.0,
    )


def _scaled(times: StepTimes, factor: float) -> StepTimes:
    if math.isclose(factor, 1.0):
        return times
    return replace(
        times,
        decode_base=[factor * each for each in times.decode_base],
        decode_slope=[factor * each for each in times.decode_slope],
    )
