"""A deployment and its run as the model of errors sees them, and what that expects."""

from __future__ import annotations

from dataclasses import replace

from simserve.metrics.real_server import Conditions, conditions
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.expected_errors import (
    FEWEST_CALIBRATED_RUNS,
    SPECULATION,
    Expectation,
    Server,
    expect,
    generation_of,
    load_error_model,
)
from simserve.scenario.resolve import ResolvedScenario
from simserve.sim.simulate import Simulation
from simserve.workload.arrival_spec import AllAtOnceArrivals


def server_of(resolved: ResolvedScenario, found: Conditions, *, has_pools: bool = False) -> Server:
    """Return what is asked of the model of errors.

    Args:
        resolved: The deployment; of separate workers that were measured, a decode worker.
        found: The conditions of the run.
        has_pools: Whether prompts and answers have replicas of their own.
    """
    shape = resolved.shape
    version = shape.engine.requested_version or shape.engine.version
    calibration = _calibration(resolved)
    return Server(
        generation=generation_of(shape.engine.name, version),
        hardware=shape.hardware.name,
        has_experts=shape.model.moe is not None,
        num_gpus=shape.num_gpus,
        is_served=not isinstance(resolved.scenario.workload.arrivals, AllAtOnceArrivals),
        has_pools=has_pools,
        in_flight=found.in_flight,
        at_once=found.at_once,
        host=found.host,
        mechanism=_mechanism(resolved),
        calibrated_runs=calibration[0],
        calibrated_date=calibration[1],
    )


def expectation_of(resolved: ResolvedScenario, simulation: Simulation, found: Conditions | None = None) -> Expectation:
    """Return the errors to expect of a real server in place of a run; ``found``: its conditions, where known."""
    return expectations_of(resolved, simulation, found)[0]


def expectations_of(
    resolved: ResolvedScenario, simulation: Simulation, found: Conditions | None = None
) -> tuple[Expectation, Expectation]:
    """Return the same, and those to expect once `FEWEST_CALIBRATED_RUNS` loads of the server have been measured."""
    found = found or conditions(simulation.records, simulation.totals, simulation.num_replicas)
    server, errors = server_of(resolved, found), load_error_model()
    measured = replace(server, calibrated_runs=max(server.calibrated_runs, FEWEST_CALIBRATED_RUNS))
    # Separate workers are not calibrated as a whole.
    return expect(errors, server), expect(errors, server if resolved.pools else measured)


def _calibration(resolved: ResolvedScenario) -> tuple[int, str]:
    """Return how many loads of this very deployment its engine profile was calibrated on, and when; 0: of another."""
    shape, engine = resolved.shape, resolved.scenario.deployment.engine
    measured = load_engine(engine.name, resolved.scenario.folder).nearest_version(engine.version).measured_factors
    if measured is None or resolved.pools:
        return 0, ""
    served = measured.model, measured.hardware, measured.gpus
    if served != (shape.model.catalogue_name, shape.hardware.name, shape.num_gpus):
        return 0, ""
    return measured.runs or 0, measured.date or ""


def _mechanism(resolved: ResolvedScenario) -> str:
    """Return what few servers do and most do not, in words; empty: nothing of the kind."""
    if resolved.shape.speculation is not None:
        return SPECULATION
    models = [pool.shape.model for pool in resolved.pools] or [resolved.shape.model]
    return next((model.rare_layers for model in models if model.rare_layers), "")
