"""Measured separate prefill and decode workers, and their replay.

A scenario's pools do not draft with the model's own layers; measured ones do. Such a decode worker is replayed as one
that does not draft, with steps m times as short where one yields m tokens a request. Means are those of the real
worker; that the tokens of a step arrive together is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from simserve.engine.state import StepTimes
from simserve.perf.operators import PricedDeployment
from simserve.planner.validation.prediction import Pricer
from simserve.scenario.load import from_mapping
from simserve.scenario.replication import decoding
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario
from simserve.sim.control import Control, DisaggregationSpec, Role, RoutingSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.workload.acceptance import expected_tokens
from simserve.workload.generate import generate

Priced = Callable[[Scenario, Role], tuple[ResolvedScenario, PricedDeployment]]
"""Resolves a scenario whose replicas have a role, and prices its deployment."""
MAX_IN_TRANSFER = 1_000_000
"""Caches in transfer: no worker waits because of their number."""
MTP_ACCEPTANCE = (0.79, 0.61, 0.46)
"""Probability that each draft of a DeepSeek MTP layer is accepted when those before it were.

Acceptance lengths 1.79, 2.27 and 2.49 of DeepSeek-V4-Pro, the closest relative of R1 that was measured (InferenceX
golden_al_distribution, vLLM MTP, thinking on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPair:
    """Separate workers for prompts and for answers, each described on its own.

    Attributes:
        prefill: One prefill worker as in a scenario file, workload included.
        decode: One decode worker, likewise.
        num_prefills: Number of prefill workers.
        num_decodes: Number of decode workers.
        num_drafts: Drafts a step of the decode workers' MTP layer; 0: none.
        port_bandwidth: Bytes/s at which a KV cache leaves one GPU of a prefill worker for another node.
        kv_transfer_seconds: Seconds from the last byte of a cache to the scheduler of the decode worker.
    """

    prefill: Mapping[str, Any]
    decode: Mapping[str, Any]
    num_prefills: int
    num_decodes: int
    num_drafts: int = 0
    port_bandwidth: float = 25e9
    kv_transfer_seconds: float = 0.001

    @property
    def key(self) -> str:
        """Text that pairs share if their replays are the same: all but their names."""
        both = [{key: value for key, value in each.items() if key != "name"} for each in (self.prefill, self.decode)]
        others = [getattr(self, each.name) for each in fields(self) if each.name not in ("prefill", "decode")]
        return json.dumps([both, others], sort_keys=True)

    def replay(self, pricer: Pricer) -> tuple[Simulation, ResolvedScenario]:
        """Return the run of a closed loop on the workers, and the decode worker.

        Raises:
            InputError: A worker's profile is missing or not compatible with the rest, or the model does not fit.
        """
        return _simulated(self, pricer.of), pricer.of(from_mapping(self.decode))[0]


def _simulated(pair: PoolPair, priced: Priced) -> Simulation:
    """Return the run of a closed loop on the workers of a pair.

    Raises:
        InputError: A worker's profile is missing or not compatible with the rest, or the model does not fit.
    """
    scenario = from_mapping(pair.prefill)
    resolved, prefill = priced(scenario, "prefill")
    setups = (
        PoolSetup(
            name="prefill",
            # Dynamo's front end takes the requests, not a worker's API server.
            engine=replace(resolved.engine, frontend_seconds_per_request=0.0),
            step_times=prefill.step_times,
            priced=None,
            num_replicas=pair.num_prefills,
            role="prefill",
        ),
        _decode_setup(pair, priced),
    )
    shape = resolved.shape
    specs = generate(scenario.workload, seed=scenario.run.seed)
    cache_bytes = shape.model.kv_bytes_per_token(shape.kv_element_bytes) * float(np.mean(specs.prompt_tokens))
    control = Control(
        routing=RoutingSpec(policy="least_outstanding"),
        disaggregation=_links(pair, cache_bytes, resolved.engine.data_parallel_size),
        kv_bytes_per_token=shape.model.kv_bytes_per_token(shape.kv_element_bytes),
    )
    deployment = Deployment(
        num_replicas=pair.num_prefills, engine=setups[0].engine, priced=prefill, control=control, pools=setups
    )
    return simulate(deployment, specs)


def _links(pair: PoolPair, cache_bytes: float, ranks: int) -> DisaggregationSpec:
    """Return the links of prefill workers.

    Every GPU of a worker without ranks has the whole latent cache, and sends it to its counterpart. With ranks, only
    one GPU has it, and sends a copy to each GPU of a decode worker without ranks, while the other ranks send theirs.
    """
    copies = int(pair.decode["deployment"].get("tensor_parallel_size", 1)) if ranks > 1 else 1
    rest = (1.0 - 1.0 / ranks) * copies * cache_bytes / pair.port_bandwidth
    return DisaggregationSpec.model_validate(
        {
            "transfer_bandwidth": f"{ranks * pair.port_bandwidth / copies} B/s",
            "transfer_latency": f"{pair.kv_transfer_seconds + rest} s",
            "max_in_transfer": MAX_IN_TRANSFER,
        }
    )


def _decode_setup(pair: PoolPair, priced: Priced) -> PoolSetup:
    plain, found = priced(from_mapping(pair.decode), "decode")
    times, drafts = found.step_times, pair.num_drafts
    if drafts and plain.engine.data_parallel_size > 1:
        # Verification is priced as that many more sequences.
        seats = plain.engine.max_num_seqs * (drafts + 1)
        _, wide = priced(from_mapping(_with(pair.decode, max_num_seqs=seats)), "decode")
        times = _verifying(wide.step_times, drafts + 1)
    elif drafts:
        given = {"method": "mtp", "num_speculative_tokens": drafts, "acceptance_rate": MTP_ACCEPTANCE[0]}
        _, drafting = priced(from_mapping(_with(pair.decode, speculative=given)), "decode")
        times = drafting.step_times
    tokens = expected_tokens(MTP_ACCEPTANCE[:drafts]) if drafts else 1.0
    return PoolSetup(
        name="decode",
        # Dynamo takes the tokens from it (skip-tokenizer-init); it has no API server of its own that passes them on.
        engine=replace(decoding(plain), api_token_seconds=0.0),
        step_times=_scaled(times, 1.0 / tokens),
        priced=None,
        num_replicas=pair.num_decodes,
        role="decode",
    )


def _with(mapping: Mapping[str, Any], *, speculative: Any = None, max_num_seqs: int | None = None) -> dict[str, Any]:
    """Return a scenario with drafts, or with another number of seats."""
    deployment = dict(mapping["deployment"])
    if speculative is not None:
        deployment["speculative"] = speculative
    if max_num_seqs is not None:
        deployment["engine"] = {**deployment["engine"], "max_num_seqs": max_num_seqs}
    return {**mapping, "deployment": deployment}


def _verifying(times: StepTimes, width: int) -> StepTimes:
    """Return the step times of ranks that decode ``width`` tokens a sequence."""
    last = (len(times.decode_base) - 1) // width
    sequences = width * np.arange(last + 1)
    shared = np.asarray(times.shared_seconds)
    return replace(
        times,
        decode_base=np.asarray(times.decode_base)[sequences].tolist(),
        # The queries of a sequence read its keys once, but each takes its own products, the bottleneck.
        decode_slope=(width * np.asarray(times.decode_slope)[sequences]).tolist(),
        sequence_seconds=np.asarray(times.sequence_seconds)[sequences].tolist(),
        decode_attention_base=np.asarray(times.decode_attention_base)[sequences].tolist(),
        shared_seconds=shared[::width].tolist(),
        shared_seconds_beyond=width * times.shared_seconds_beyond,
    )


def _scaled(times: StepTimes, factor: float) -> StepTimes:
    if math.isclose(factor, 1.0):
        return times
    return replace(
        times,
        decode_base=[factor * each for each in times.decode_base],
        decode_slope=[factor * each for each in times.decode_slope],
        shared_seconds=[factor * each for each in times.shared_seconds],
        shared_seconds_beyond=factor * times.shared_seconds_beyond,
    )
