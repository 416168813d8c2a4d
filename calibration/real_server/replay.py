"""The measured loads simulated: by the measured kernels alone, and with five factors fitted to two of the loads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from calibration.real_server.campaign import REPEATS, Load, Server
from calibration.real_server.environment import VERSION
from simserve.calibrate.simulated import figures, replay_of
from simserve.perf.tables import price
from simserve.planner.importers.engine_log import read_engine_log
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.sim.simulate import Deployment, simulate
from simserve.workload.benchmarks.reading import read_results
from simserve.workload.prefixes import system_prompts
from simserve.workload.requests import RequestSpecs

FITTED = ("clients-02", "clients-16")
"""Loads of the plain server that the factors are fitted to, all runs of each; all others are held out."""
PRODUCTS = "gemm_perf.parquet"
BLOCK_SIZE = 128
"""Tokens of a KV block on a CPU, as `cache_config_info` of its metrics says."""
COMPARED = {"mean_tpot": "TPOT", "mean_ttft": "TTFT", "output_throughput": "tokens/s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load of one server.

    Attributes:
        server: Its name.
        load: The load's.
        is_fitted: Whether the factors were fitted to it.
        is_open: Whether requests come at a rate.
        measured: Figure -> the mean of the repeats, seconds or tokens/s.
        spread: Figure -> how far the repeats are apart, as a share; 0 of one.
        kernels: Figure -> simulated with the measured kernels alone.
        fitted: Figure -> with the factors.
        counts: ``preemptions`` and ``prefix_hit_rate`` as (the server's, simulated), where the load has them.
    """

    server: str
    load: str
    is_fitted: bool
    is_open: bool
    measured: Mapping[str, float]
    spread: Mapping[str, float]
    kernels: Mapping[str, float]
    fitted: Mapping[str, float]
    counts: Mapping[str, tuple[float, float]]

    def error(self, which: str, figure: str) -> float:
        """Return simulated over measured minus 1."""
        simulated: Mapping[str, float] = getattr(self, which)
        return simulated[figure] / self.measured[figure] - 1.0


def scenario_of(out: Path, server: Server, engine: str, acceptance: Sequence[float] = ()) -> Scenario:
    """Return what served a load: the machine as its kernels were measured, the engine as its log and flags say."""
    log = read_engine_log(out / server.name / "server.log", VERSION)
    options: dict[str, Any] = {
        "name": engine,
        "version": VERSION,
        "async_scheduling": False,
        "block_size": BLOCK_SIZE,
        "max_model_len": 4096,
        "num_gpu_blocks_override": (log.kv.tokens or 0) // BLOCK_SIZE,
        **limits(out / server.name / "server.log"),
    }
    deployment: dict[str, Any] = {
        "hardware": str(out / "kernels" / "profile.yaml"),
        "operator_tables": str(_products(out)),
        "engine": options,
    }
    for key, value in server.options.items():
        if key == "speculative":
            deployment[key] = {**dict(value), "acceptance_per_position": list(acceptance)}  # type: ignore[call-overload]
        else:
            options[key] = value
    mapping = {
        "name": "real-server",
        "model": str(out / "model" / "config.json"),
        "deployment": deployment,
        "workload": {
            "arrivals": {"process": "poisson", "rate": 1},
            "prompt_tokens": 256,
            "output_tokens": 64,
            "num_requests": 50,
        },
    }
    (out / server.name / "scenario.yaml").write_text(yaml.safe_dump(mapping, sort_keys=False), encoding="utf-8")
    return from_mapping(mapping)


def _products(out: Path) -> Path:
    """Return a folder with the measured products alone: of attention the profile's fitted curves follow the calls."""
    folder = out / "products"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(out / "kernels" / PRODUCTS, folder / PRODUCTS)
    return folder


def limits(log: Path) -> dict[str, int]:
    """Return the limits of a step that the server chose for itself, as its log says them."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = {}
    for key in ("max_num_batched_tokens", "max_num_seqs"):
        match = re.search(rf"{key}[=:'\" ]+(\d+)", text)
        if match is not None:
            found[key] = int(match[1])
    return found


def fit(out: Path, server: Server) -> Path:
    """Fit the factors by the command that users have, and return the engine's profile."""
    profile = out / "engine.yaml"
    files = [str(each) for name in FITTED for each in _runs(out, server, name)]
    command = [sys.executable, "-m", "simserve", "calibrate", "serving", *files, "--out", str(profile), "--force"]
    command += ["--scenario", str(out / server.name / "scenario.yaml"), "--statistic", "mean"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (out / "calibrate-serving.txt").write_text(done.stdout, encoding="utf-8")
    return profile


def _runs(out: Path, server: Server, load: str) -> list[Path]:
    """Return the files of a load: both of them, or the one that was measured."""
    files = (out / server.name / f"{load}-{turn}.json" for turn in range(REPEATS))
    return [each for each in files if each.is_file()]


def rows(out: Path, servers: Sequence[Server]) -> list[Row]:
    """Return all loads that were measured, simulated both ways."""
    plain = servers[0]
    scenario_of(out, plain, "vllm")
    profile = fit(out, plain)
    found = []
    for server in servers:
        for load in server.loads:
            files = _runs(out, server, load.name)
            if files:
                found.append(_row(out, server, load, files, profile))
    return found


def _row(out: Path, server: Server, load: Load, files: Sequence[Path], profile: Path) -> Row:
    counted = [_counted(each) for each in files]
    runs: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {}
    results = read_results(files)
    acceptance = np.mean([each["acceptance"] for each in counted], axis=0).tolist() if counted[0]["acceptance"] else ()
    for which, engine in (("kernels", "vllm"), ("fitted", str(profile))):
        scenario = scenario_of(out, server, engine, acceptance)
        runs[which] = [_simulated(scenario, load, replay_of(each, scenario).specs) for each in results]
    measured = [{key: each.measured[key] for key in COMPARED} for each in results]
    counts = {}
    for key in ("preemptions", "prefix_hit_rate"):
        seen, simulated = _mean(counted, key), _mean([each[1] for each in runs["fitted"]], key)
        if seen or simulated > 0.01:
            counts[key] = (seen, simulated)
    return Row(
        server=server.name,
        load=load.name,
        is_fitted=server.name == "plain" and load.name in FITTED,
        is_open=bool(load.rate),
        measured={key: _mean(measured, key) for key in COMPARED},
        spread={key: float(np.ptp([each[key] for each in measured])) / _mean(measured, key) for key in COMPARED},
        kernels={key: _mean([each[0] for each in runs["kernels"]], key) for key in COMPARED},
        fitted={key: _mean([each[0] for each in runs["fitted"]], key) for key in COMPARED},
        counts=counts,
    )


def _simulated(scenario: Scenario, load: Load, specs: RequestSpecs) -> tuple[dict[str, float], dict[str, float]]:
    """Return the figures of a run of these requests, and how often the cache ran short or helped."""
    if load.num_prefixes:
        count = len(specs)
        groups = np.random.default_rng(0).permutation(np.arange(count) % load.num_prefixes).astype(np.int64)
        shared = np.full(count, load.prompt_tokens - load.prompt_tokens // 4, dtype=np.int64)
        lengths = np.asarray(specs.prompt_tokens + specs.output_tokens, dtype=np.int64)
        specs = replace(specs, prefixes=system_prompts(groups, load.num_prefixes, shared, lengths))
    resolved = resolve(scenario)
    deployment = Deployment(num_replicas=1, engine=resolved.engine, priced=price(resolved.shape))
    simulation = simulate(deployment, specs)
    records = simulation.records
    found = figures(records, simulation.totals.itl)
    hits = float(records.cached_tokens.sum() / records.prompt_tokens.sum())
    return found, {"preemptions": float(records.num_preemptions.sum()), "prefix_hit_rate": hits}


def _counted(file: Path) -> dict[str, Any]:
    """Return what the server counted during a load."""
    pages = json.loads(file.with_suffix(".metrics.json").read_text(encoding="utf-8"))
    before, after = (_totals(pages[key]) for key in ("before", "after"))

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    queries, drafts = grown("vllm:prefix_cache_queries_total"), grown("vllm:spec_decode_num_drafts_total")
    places = sorted(name for name in after if name.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total"))
    return {
        "preemptions": grown("vllm:num_preemptions_total"),
        "prefix_hit_rate": grown("vllm:prefix_cache_hits_total") / queries if queries else 0.0,
        "acceptance": [grown(name) / drafts for name in places] if drafts else [],
    }


def _totals(page: str) -> dict[str, float]:
    """Return the counters of a page of metrics; those of each position of a draft under names of their own."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        match = re.match(r"(vllm:\w+)(?:\{(.*)\})? (\S+)$", line)
        if match is not None:
            position = re.search(r'position="(\d+)"', match[2] or "")
            name = match[1] + (f"[{position[1]}]" if position else "")
            found[name] = found.get(name, 0.0) + float(match[3])
    return found


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))
