"""The measured loads simulated: by the measured kernels, with factors fitted to two loads, and at a server's pace."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from calibration.real_server.campaign import KV_BLOCK, MAX_TOKENS, MOST_REPEATS, PACE, Load, Server
from calibration.real_server.conversations import bounds
from calibration.real_server.environment import VERSION
from simserve.calibrate.simulated import figures, replay_of, slowed
from simserve.perf.tables import price
from simserve.planner.importers.engine_log import read_engine_log
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.sim.simulate import Deployment, simulate
from simserve.workload.benchmarks.reading import read_results
from simserve.workload.generate import generate
from simserve.workload.prefixes import system_prompts
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec

FITTED = ("clients-02", "clients-16")
"""Loads of the plain server that the factors are fitted to, all runs of each; all others are held out."""
PRODUCTS = "gemm_perf.parquet"
CONVERSING = 8
"""Draws of conversations, whose mean is compared."""
Clients = NDArray[np.intp]
COMPUTING = ("gpu", "host", "frontend")
"""Factors that a pace is: all that one core computes."""
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
        pace: TPOT of `PACE` on this server over that on the plain one, which the factors were fitted to: how much
            slower the machine, or this kind of server, was by then; None: not measured.
        paced: Figure -> with the factors, and all times multiplied by the pace, which `PACE` was given to; empty: none.
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
    pace: float | None = None
    paced: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_given(self) -> bool:
        """Whether the paced times were fitted to it."""
        return self.is_fitted or self.load == PACE

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
        "block_size": KV_BLOCK,
        "max_model_len": MAX_TOKENS,
        "num_gpu_blocks_override": (log.kv.tokens or 0) // KV_BLOCK,
        **limits(out / server.name / "server.log"),
    }
    deployment: dict[str, Any] = {
        "hardware": str(out / "kernels" / "profile.yaml"),
        "operator_tables": str(_products(out)),
        "engine": options,
    }
    for key, value in server.options.items():
        if key == "speculative":
            if not acceptance:
                continue  # n-grams that were never found again: nothing was drafted
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
    """Return the files of a load, one for each time that it was measured."""
    files = (out / server.name / f"{load}-{turn}.json" for turn in range(MOST_REPEATS))
    return [each for each in files if each.is_file()]


def rows(out: Path, servers: Sequence[Server]) -> list[Row]:
    """Return all loads that were measured, simulated both ways."""
    plain = servers[0]
    scenario_of(out, plain, "vllm")
    profile = fit(out, plain)
    paces = _paces(out, servers)
    return [
        row
        for server in servers
        for load in server.loads
        for row in _rows(out, server, load, profile, paces.get(server.name))
    ]


def _paces(out: Path, servers: Sequence[Server]) -> dict[str, float]:
    """Return how much slower each server was than the first one, by the load that all were sent."""
    measured = {}
    for server in servers:
        if runs := _runs(out, server, PACE):
            measured[server.name] = _mean([each.measured for each in read_results(runs)], "mean_tpot")
    own = measured.get(servers[0].name)
    return {} if own is None else {name: each / own for name, each in measured.items()}


def _rows(out: Path, server: Server, load: Load, profile: Path, pace: float | None) -> list[Row]:
    """Return a row for each client of a load; none where it was not measured."""
    folder = out / server.name
    turns = [[folder / f"{part.name}-{turn}.json" for part in load.parts] for turn in range(MOST_REPEATS)]
    turns = [files for files in turns if all(each.is_file() for each in files)]
    if not turns:
        return []
    counted = [_counted(files[0]) for files in turns]
    results = [read_results(files) for files in turns]
    acceptance = np.mean([each["acceptance"] for each in counted], axis=0).tolist() if counted[0]["acceptance"] else ()
    runs: dict[str, list[tuple[list[dict[str, float]], dict[str, float]]]] = {}
    ways = {"kernels": ("vllm", 1.0), "fitted": (str(profile), 1.0)}
    if pace is not None:
        ways["paced"] = (str(profile), pace)
    for which, (engine, slower) in ways.items():
        scenario = scenario_of(out, server, engine, acceptance)
        if load.turns > 1:
            runs[which] = [
                _simulated(scenario, load, *_conversations(load, seed), slower) for seed in range(CONVERSING)
            ]
            continue
        specs = [[replay_of(each, scenario).specs for each in parts] for parts in results]
        sent = [sent_at_once(load, files, parts) for files, parts in zip(turns, specs, strict=True)]
        runs[which] = [_simulated(scenario, load, *each, slower) for each in sent]
    found = []
    for part, sent_by in enumerate(load.parts):
        measured = [{key: parts[part].measured[key] for key in COMPARED} for parts in results]
        means = {which: [figures_of[part] for figures_of, _ in turns_of] for which, turns_of in runs.items()}
        found.append(
            Row(
                server=server.name,
                load=sent_by.name,
                is_fitted=server.name == "plain" and sent_by.name in FITTED,
                is_open=bool(sent_by.rate),
                measured=_means(measured),
                spread={
                    key: float(np.ptp([each[key] for each in measured])) / _mean(measured, key) for key in COMPARED
                },
                kernels=_means(means["kernels"]),
                fitted=_means(means["fitted"]),
                counts={} if part else _counts(counted, [counts for _, counts in runs["fitted"]]),
                pace=pace,
                paced=_means(means["paced"]) if pace is not None else {},
            )
        )
    return found


def _counts(
    counted: Sequence[Mapping[str, Any]], simulated: Sequence[Mapping[str, float]]
) -> dict[str, tuple[float, float]]:
    """Return what was counted of the KV cache, by the server and simulated, where there was anything."""
    both = {key: (_mean(counted, key), _mean(simulated, key)) for key in ("preemptions", "prefix_hit_rate")}
    return {key: (seen, ours) for key, (seen, ours) in both.items() if seen or ours > 0.01}


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: _mean(rows, key) for key in COMPARED}


def sent_at_once(load: Load, files: Sequence[Path], parts: Sequence[RequestSpecs]) -> tuple[RequestSpecs, Clients]:
    """Return the requests of all clients by arrival, with their priorities, and which client sent each, shape [N]."""
    client = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
    if len(parts) == 1:
        return parts[0], client
    begun = [min(json.loads(file.read_text(encoding="utf-8"))["start_times"]) for file in files]  # one clock for all
    arrival = np.concatenate([each.arrival_time + start - min(begun) for each, start in zip(parts, begun, strict=True)])
    order = np.argsort(arrival, kind="stable")
    joined = {
        name: np.concatenate([getattr(each, name) for each in parts])[order]
        for name in ("prompt_tokens", "output_tokens", "max_tokens")
    }
    priority = np.array([each.priority or 0 for each in load.parts], dtype=np.int64)[client]
    specs = replace(parts[0], arrival_time=arrival[order], priority=priority[order], **joined)
    return specs, client[order]


def _conversations(load: Load, seed: int) -> tuple[RequestSpecs, Clients]:
    """Return conversations with lengths like those sent: which turn follows which is in no file of results."""
    (fewest, most), (shortest, longest) = bounds(load.prompt_tokens), bounds(load.output_tokens)
    workload = WorkloadSpec.model_validate(
        {
            "arrivals": {"process": "closed_loop", "concurrency": load.clients},
            "prompt_tokens": {"distribution": "uniform", "min": fewest, "max": most},
            "output_tokens": {"distribution": "uniform", "min": shortest, "max": longest},
            "sessions": {"turns": load.turns},
            "num_requests": load.num_prompts,
        }
    )
    specs = generate(workload, seed=seed)
    return specs, np.zeros(len(specs), dtype=np.intp)


def _simulated(
    scenario: Scenario, load: Load, specs: RequestSpecs, client: Clients, pace: float
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return the figures of each client's requests, and how often the cache ran short or helped.

    Args:
        scenario: What served them.
        load: What was sent.
        specs: Its requests.
        client: Which client sent each, shape [N].
        pace: Factor on all times.
    """
    if load.num_prefixes:
        count = len(specs)
        groups = np.random.default_rng(0).permutation(np.arange(count) % load.num_prefixes).astype(np.int64)
        shared = np.full(count, load.prompt_tokens - load.prompt_tokens // 4, dtype=np.int64)
        lengths = np.asarray(specs.prompt_tokens + specs.output_tokens, dtype=np.int64)
        specs = replace(specs, prefixes=system_prompts(groups, load.num_prefixes, shared, lengths))
    resolved = slowed(resolve(scenario), dict.fromkeys(COMPUTING, pace))
    deployment = Deployment(num_replicas=1, engine=resolved.engine, priced=price(resolved.shape))
    simulation = simulate(deployment, specs)
    records = simulation.records
    found = [
        figures(records.rows(np.flatnonzero(client == part)), simulation.totals.itl) for part in range(len(load.parts))
    ]
    hits = float(records.cached_tokens.sum() / records.prompt_tokens.sum())
    return found, {"preemptions": float(records.num_preemptions.sum()), "prefix_hit_rate": hits}


def _counted(file: Path) -> dict[str, Any]:
    """Return what the server counted during a load."""
    pages = json.loads(file.with_suffix(".metrics.json").read_text(encoding="utf-8"))
    before, after = (_totals(pages[key]) for key in ("before", "after"))

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    queries = grown("vllm:prefix_cache_queries_total")
    places = sorted(name for name in after if name.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total"))
    accepted = [grown(name) for name in places]
    steps = grown("vllm:generation_tokens_total") - grown("vllm:request_success_total") - sum(accepted)  # no prompts
    return {
        "preemptions": grown("vllm:num_preemptions_total"),
        "prefix_hit_rate": grown("vllm:prefix_cache_hits_total") / queries if queries else 0.0,
        "acceptance": [each / steps for each in accepted] if any(accepted) else [],
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
