"""Which loads of a server are worth measuring: two that represent all loads it may have.

Two runs at equal loads differ by about 2 %; a run and its simulation by about 6 %, even with the best factors
(`simserve.calibrate.factors`). So the choice of loads must protect less from noise than from model errors that differ
between loads, most of all at saturation. Then the measured loads should have the mean and the variance of the loads of
interest; the extreme loads have too much variance (G. E. P. Box and N. R. Draper, "A basis for the selection of a
response surface design", JASA 54, 1959: where noise and such errors occur together, the best design is nearly the one
that disregards the noise). Knows a deployment, its traffic and how far servers are from their profiles.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.calibrate.factors import FactorSearch, Linear, Priors, priors_on
from simserve.calibrate.serving_search import Progress
from simserve.calibrate.simulated import Replay, ServingModel, figures, replay_of
from simserve.errors import ScenarioError
from simserve.metrics.throughput import conditions
from simserve.profiles.engine_options import FACTORS
from simserve.profiles.expected_errors import Expectation
from simserve.scenario.replication import traffic
from simserve.scenario.run import expectations_of
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.workload.benchmarks.result import BenchResult
from simserve.workload.requests import RequestSpecs

MOST_CLIENTS = 256  # Number of clients of the largest proposed load.
STEP = 4  # Ratio between successive numbers of clients considered as a further load.
FEWEST_OF_RANGE = 4
"""Least number of clients of the highest load of interest: below it, there are no two loads to measure."""
REQUESTS_A_CLIENT = 4  # Requests per client of a proposed load ...
TRIED_A_CLIENT = 2  # ... and of a load simulated to find it: slopes need fewer.
FEWEST_REQUESTS = 16
MOST_REQUESTS = 2000
"""Most requests of the scenario's traffic that are simulated to find how many it has in flight at once."""
FIGURES = {"tpot": "median_tpot", "ttft": "median_ttft"}
"""Metric -> figure of a benchmark; answers of one token have no TPOT."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedLoad:
    """A load that is worth measuring."""

    num_clients: int  # Clients that each send one request after another.
    deviations: Mapping[str, float]
    """``tpot`` and ``ttft`` -> standard deviation of the prediction from the factors, as a share."""
    command: str  # Command that measures it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The loads of a server to measure, and what is gained."""

    most_clients: int  # Clients of the highest load that they represent; the lowest is one client.
    loads: Sequence[ProposedLoad]
    """The more informative one first; each with what remains uncertain once it and those before it are known."""
    open_before: Mapping[str, float]
    """``tpot`` and ``ttft`` -> standard deviation of the scenario's own figures from the factors alone."""
    expected: Expectation  # Errors to expect for the server without calibration.
    calibrated: Expectation  # Errors to expect after `calibrate serving` with the loads.


def inner_clients(most: int) -> tuple[int, int]:
    """Return the two loads with the mean and the variance of all from one client to ``most``, logarithmically.

    2 and 15 of 32.
    """
    span, deviation = math.log(max(most, FEWEST_OF_RANGE)), 1.0 / math.sqrt(12.0)
    low, high = (round(math.exp(span * (0.5 + sign * deviation))) for sign in (-1.0, 1.0))
    return low, high


def client_counts(model: ServingModel) -> list[int]:
    """Return the possible numbers of clients of a further load: powers of `STEP` up to the seats of the engine."""
    most = min(model.resolved.engine.max_num_seqs, MOST_CLIENTS)
    return [STEP**power for power in range(most.bit_length()) if STEP**power <= most]


def closed_loop(model: ServingModel, specs: RequestSpecs, num_clients: int) -> Replay:
    """Return requests as long as those of ``specs``, sent by ``num_clients`` clients."""
    count = max(TRIED_A_CLIENT * num_clients, FEWEST_REQUESTS)
    asked = BenchResult(
        label="next",
        file="",
        tool="",
        arrivals={"process": "closed_loop", "concurrency": num_clients},
        num_requests=count,
        prompt_tokens=np.resize(specs.prompt_tokens, count).astype(np.float64),
        output_tokens=np.resize(specs.output_tokens, count).astype(np.float64),
        measured={},
    )
    return replay_of(asked, model.scenario)


def benchmark_command(model_id: str, specs: RequestSpecs, num_clients: int) -> str:
    """Return the command of vLLM's client for a load with requests as long as those of ``specs``."""
    prompts, outputs = specs.prompt_tokens, specs.output_tokens
    # Uniform lengths of mean m reach m (1 +- r) and have the standard deviation r m / sqrt(3).
    ratio = min(max(float(np.sqrt(3.0) * each.std() / each.mean()) for each in (prompts, outputs)), 0.95)
    num_requests = max(REQUESTS_A_CLIENT * num_clients, FEWEST_REQUESTS)
    return (
        f"vllm bench serve --model {shlex.quote(model_id)} --dataset-name random "
        f"--random-input-len {round(float(prompts.mean()))} --random-output-len {round(float(outputs.mean()))} "
        f"--random-range-ratio {ratio:.2f} --ignore-eos --max-concurrency {num_clients} "
        f"--num-prompts {num_requests} --seed {num_clients} --save-result --save-detailed "
        f"--result-filename clients-{num_clients}.json"
    )


def model_id(model: ServingModel) -> str:
    """Return the name that a server is likely to use for the model."""
    return model.resolved.shape.model.huggingface_id or model.scenario.model


def propose(model: ServingModel, progress: Progress | None = None) -> Proposal:
    """Return the two loads that represent all from one client to as many requests as the scenario has in flight.

    Each load is simulated slightly faster and slower by every factor; the one that leaves less variance of the
    scenario's own TPOT and TTFT comes first. A load is a number of clients, as anyone can run such a benchmark of a
    server that nothing else uses.

    Raises:
        ScenarioError: The deployment has pools, which `calibrate serving` does not fit.
        InfeasibleError: It cannot serve requests as long as its own.
    """
    own, specs = _own_run(model)
    found = conditions(own.records, own.totals, own.num_replicas)
    seats = min(model.resolved.engine.max_num_seqs, MOST_CLIENTS)
    in_flight = min(max(round(found.in_flight), 1), seats)
    most = max(min(round(_most_in_flight(own)), seats), min(FEWEST_OF_RANGE, seats))
    simulated = figures(own.records, own.totals.itl)
    asked = {metric: figure for metric, figure in FIGURES.items() if figure in simulated}
    model = model.of_one_replica()
    priors = priors_on(is_cpu=model.resolved.shape.hardware.is_cpu)
    counts = sorted({min(each, seats) for each in inner_clients(most)})
    replays = [closed_loop(model, specs, count) for count in (*counts, in_flight)]
    linear = slopes_of(model, replays, tuple(asked.values()), priors, progress=progress)
    target = linear.slopes[linear.runs == len(counts)]
    covariance, loads = priors.covariance(), list[ProposedLoad]()
    open_before = deviations(asked, target, covariance)
    for _ in counts:
        taken = {each.num_clients for each in loads}
        known: dict[int, Array] = {}  # the covariance of the factors once a load is known
        for run in (run for run, count in enumerate(counts) if count not in taken):
            load = linear.of(linear.runs == run)
            slopes = load.slopes / load.noise(priors)[:, None]
            known[run] = np.asarray(np.linalg.inv(slopes.T @ slopes + np.linalg.inv(covariance)))
        best = min(known, key=lambda run: sum(value**2 for value in deviations(asked, target, known[run]).values()))
        covariance = known[best]
        command = benchmark_command(model_id(model), specs, counts[best])
        left = deviations(asked, target, covariance)
        loads.append(ProposedLoad(num_clients=counts[best], deviations=left, command=command))
    expected, calibrated = expectations_of(model.resolved, own, found)
    return Proposal(most_clients=most, loads=loads, open_before=open_before, expected=expected, calibrated=calibrated)


def _most_in_flight(own: Simulation) -> float:
    """Return the most requests in flight at any time, divided by the number of replicas."""
    records = own.records
    is_done = np.isfinite(records.finish_time)
    changes = [(records.arrival_time[is_done], 1), (records.finish_time[is_done], -1)]
    times = np.concatenate([each for each, _ in changes])
    steps = np.concatenate([np.full(len(each), step) for each, step in changes])
    order = np.lexsort((steps, times))  # at one instant, leaving counts before arriving
    return float(np.max(np.cumsum(steps[order]), initial=0)) / own.num_replicas


def _own_run(model: ServingModel) -> tuple[Simulation, RequestSpecs]:
    """Return a run of the scenario's own traffic, without its gateway, and its requests."""
    scenario = model.scenario
    if scenario.deployment.pools:
        raise ScenarioError("is not calibrated as a whole", key="deployment.pools", remedy="name one pool's deployment")
    specs = traffic(scenario, 0)
    specs = specs.first(min(len(specs), MOST_REQUESTS))
    deployment = Deployment(
        num_replicas=scenario.deployment.replicas, engine=model.resolved.engine, priced=model.priced
    )
    return simulate(deployment, specs), specs


def slopes_of(
    model: ServingModel,
    replays: Sequence[Replay],
    asked: Sequence[str],
    priors: Priors,
    log_factors: Array | None = None,
    *,
    progress: Progress | None = None,
) -> Linear:
    """Return how the figures of some loads change with the factors, around some (None: the profile's)."""
    num_simulated = itertools.count(1)

    def predicted(run: int, factors: Mapping[str, float]) -> Mapping[str, float]:
        simulated = model.predict_slowed(replays[run], factors)
        if progress is not None:
            progress(next(num_simulated), None, "simulating loads")
        return simulated

    measured = [dict.fromkeys(asked, 1.0) for _ in replays]
    place = np.zeros(len(FACTORS)) if log_factors is None else log_factors
    return FactorSearch(measured, predicted, priors).linear_at(place)


def deviations(metrics: Iterable[str], slopes: Array, covariance: Array) -> dict[str, float]:
    """Return the standard deviation of each metric, from its slopes and the covariance of the factors."""
    variances = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    return dict(zip(metrics, np.sqrt(variances).tolist(), strict=True))


def as_mapping(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as plain values."""
    return {
        "most_clients": proposal.most_clients,
        "open_before": dict(proposal.open_before),
        "loads": [
            {"num_clients": each.num_clients, "open_after": dict(each.deviations), "command": each.command}
            for each in proposal.loads
        ],
        "expected_error": proposal.expected.shares,
        "expected_error_calibrated": proposal.calibrated.shares,
    }
