"""From a fit of an engine's constants to an engine profile that ``deployment.engine.name`` accepts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from simserve.calibrate.serving import Explained, ServingFit
from simserve.calibrate.serving_factors import ServerFactors, as_written
from simserve.calibrate.serving_search import shown
from simserve.documents import read_mapping, yaml_text
from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.engine_options import FACTORS
from simserve.profiles.engine_profile import EngineProfile, complete_versions, load_engine
from simserve.profiles.hardware import load_hardware
from simserve.scenario.schema import Scenario

LEAST_ERROR = 1e-4  # Error in logarithms that a profile states for figures which the factors meet to the digit.

_HOST_KEYS = {
    "host_seconds_per_step": ("seconds_per_step", 1e3, "ms"),
    "host_seconds_per_request": ("seconds_per_request", 1e6, "us"),
    "frontend_latency": ("frontend_latency", 1e3, "ms"),
}


def profile_text(fit: ServingFit, scenario: Scenario, name: str) -> str:
    """Return the YAML of the scenario's engine, in the one version that was fitted, with the fitted constants.

    Args:
        scenario: Scenario of the engine and version.
        name: Name of the profile, which must also be its file's name.

    Raises:
        ProfileError: The scenario's engine has no profile.
    """
    base, version, blocks = _base_of(scenario)
    source = _source(fit, scenario)
    host: dict[str, Any] = dict(blocks["host"])
    for parameter, (key, scale, unit) in _HOST_KEYS.items():
        if parameter in fit.fitted_names:
            host[key] = f"{fit.parameters[parameter].value * scale:.6g} {unit}"
    if set(fit.fitted_names) & set(_HOST_KEYS):
        blocks["host"] = host | {"source": f"{source}; the rest: {host['source']}"}
    if "compute_efficiency" in fit.fitted_names:
        kernels = dict(blocks["kernels"])
        kernels["compute_efficiency"] = float(f"{fit.parameters['compute_efficiency'].value:.6g}")
        blocks["kernels"] = kernels | {"source": f"efficiency: {source}; formats: {kernels['source']}"}
    return _document(base, version, blocks, name, "constants fitted to end-to-end results")


def factors_text(server: ServerFactors, scenario: Scenario, name: str, date: str = "") -> str:
    """Return the YAML of the scenario's engine, in its one version, with the factors of a server.

    Args:
        server: The factors, and the runs that they were fitted to.
        scenario: Scenario of the engine and version.
        name: Name of the profile, which must also be its file's name.
        date: Day of the measurements; empty: the latest in the files.

    Raises:
        ProfileError: The scenario's engine has no profile.
    """
    base, version, blocks = _base_of(scenario)
    former = dict(blocks.get("measured_factors") or {})
    deployment, runs = scenario.deployment, server.runs
    factors = {each: as_written(float(former.get(each, 1.0)) * value) for each, value in server.fit.factors.items()}
    if server.frontend_is_set:
        factors["frontend"] = float(former.get("frontend", 1.0))
    day = date or max((run.replay.result.date for run in runs), default="")
    gpus = deployment.tensor_parallel_size * deployment.pipeline_parallel_size * deployment.data_parallel_size
    blocks["measured_factors"] = {
        **factors,
        "measured_on": f"{scenario.model} on {gpus} x {deployment.hardware}, {base.base or base.name} {version}, "
        f"{len(runs)} run{'s' if len(runs) != 1 else ''}",
        **({"date": day} if day else {}),
        "model": load_model(scenario.model, scenario.folder).catalogue_name,
        "hardware": load_hardware(deployment.hardware, scenario.folder).name,
        "gpus": gpus,
        "runs": len(runs),
        "own_errors": {name: float(f"{max(each, LEAST_ERROR):.4g}") for name, each in server.own_errors.items()},
        "own_figures": {name: _rounded_up(max(each, LEAST_ERROR)) for name, each in server.own_figures.items()},
        "source": _source_of_factors(server, scenario, is_again=bool(former)),
    }
    return _document(base, version, blocks, name, "factors of a measured server")


def _rounded_up(share: float) -> float:
    """Return a share rounded up to two digits, so that it is no less for the same figures computed again."""
    unit = 10.0 ** (math.floor(math.log10(share)) - 1)
    return float(f"{math.ceil(share / unit) * unit:.2g}")


def _source_of_factors(server: ServerFactors, scenario: Scenario, *, is_again: bool) -> str:
    files = sorted({Path(run.replay.result.file).name for run in server.runs})
    intervals = ", ".join(
        f"{name} {server.fit.factors[name]:.3f} ({low:.3f} to {high:.3f})"
        for name in FACTORS
        for low, high in [server.fit.interval(name)]
    )
    before = "; times the factors that the profile had" if is_again else ""
    return (
        f"maximum a posteriori of {len(server.runs)} runs in {', '.join(files)} with scenario {scenario.name}: "
        f"{intervals} (95 %){before}; median error {', '.join(_errors(server))}"
    )


def _base_of(scenario: Scenario) -> tuple[EngineProfile, str, dict[str, Any]]:
    """Return the scenario's engine profile, the version that it runs, and that version's blocks as written."""
    engine = scenario.deployment.engine
    base = load_engine(engine.name, scenario.folder)
    version, file = base.nearest_version(engine.version).version, catalog.find("engine", engine.name, scenario.folder)
    every = complete_versions(read_mapping(file, ProfileError), file)
    blocks = dict(next(each for each in every if str(each["version"]) == version))
    del blocks["version"]
    return base, version, blocks


def _document(base: EngineProfile, version: str, blocks: dict[str, Any], name: str, what: str) -> str:
    document = {
        "name": name,
        "base": base.base or base.name,
        "description": f"{base.name} {version} with {what}. {base.description}",
        "defaults": blocks,
        "versions": [{"version": version}],
    }
    header = f"# {base.name} {version}, calibrated by simserve calibrate serving. In a scenario:\n"
    header += f"# deployment: {{engine: {{name: {name}.yaml}}}}\n"
    return header + yaml_text(document, width=110, allow_unicode=True)


def _source(fit: ServingFit, scenario: Scenario) -> str:
    files = sorted({Path(run.replay.result.file).name for run in fit.runs})
    fitted = ", ".join(
        f"{name} {shown(name, each.value)} +- {shown(name, each.half_width)}"
        for name, each in fit.parameters.items()
        if each.half_width is not None
    )
    return (
        f"fit to {len(fit.runs)} runs in {', '.join(files)} with scenario {scenario.name} ({scenario.model} on "
        f"{scenario.deployment.hardware}): {fitted} (95 %); median error {', '.join(_errors(fit))}"
    )


def _errors(fit: Explained) -> list[str]:
    return [
        f"{latency.upper()} {_percent(fit.median_error('before', latency))} -> "
        f"{_percent(fit.median_error('after', latency))}{_held_out(fit, latency)}"
        for latency in ("ttft", "tpot")
        if fit.median_error("after", latency) is not None
    ]


def _held_out(fit: Explained, latency: str) -> str:
    error = fit.median_error("held_out", latency)
    return "" if error is None else f" ({_percent(error)} with the file left out)"


def _percent(error: float | None) -> str:
    return "unknown" if error is None else f"{error:.1%}"
