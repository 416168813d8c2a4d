"""Community runs: AccelMark on many GPUs, KAITO's Poisson sweep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simserve.planner.measured import build
from simserve.planner.measured.names import hardware_name, model_name, quantization_name, version_number
from simserve.planner.measured.point import LoadKind, MeasuredPoint, Metric, Protocol
from simserve.planner.measured.table import MS, Row, read_rows

_PROMPT_FILES = {"standard": "accelmark_sharegpt_standard_v1_inputs", "edge": "accelmark_sharegpt_edge_v1_inputs"}
_OUTPUT_LIMIT = {"standard": 512, "edge": 256, "longctx": 256}
_USUAL_OUTPUT = {"standard": 345.0, "edge": 208.0, "longctx": 255.0}
"""Mean output of the offline rows (elapsed time times throughput over requests): natural stops, most near the
limit; for rows that do not say theirs."""
_LONG_PROMPT = 28650
"""Median prompt of the long-context suite (its 99th percentile is 29,932)."""
_EAGER = '"enforce_eager": true'
OUTPUT_CV = 0.6
"""Coefficient of variation of natural answers before they are cut at the limit: an assumption, as ShareGPT's."""
SUSTAINED_REQUESTS = 20
"""Requests a client in the sustained suites, whose number is not recorded: enough for a steady state."""


def read_accelmark(folder: Path) -> list[MeasuredPoint]:
    """Return AccelMark's runs: medians of TTFT and TPOT, output tokens/s."""
    lengths = folder.parent / "traces" / "length_distributions"
    return [_accelmark_point(row, lengths) for row in read_rows(folder / "accelmark_results.csv")]


def _accelmark_point(row: Row, lengths: Path) -> MeasuredPoint:
    model, hardware = model_name(row.text("model")), hardware_name(row.text("hardware"))
    version = version_number(row.text("version"))
    notes = row.text("notes")
    seats = re.search(r'"max_num_seqs": (\d+)', notes)
    share = re.search(r'"gpu_memory_utilization": ([\d.]+)', notes)
    suite = _suite(row)
    deployed = build.deployment(
        hardware,
        engine={
            "name": "vllm",
            "version": version,
            "max_num_seqs": int(seats.group(1)) if seats else None,
            "gpu_memory_utilization": float(share.group(1)) if share else None,
            "enable_prefix_caching": False,
            "max_model_len": 32768 if suite == "longctx" else 4096,
            "enforce_eager": True if _EAGER in notes else None,
        },
        tensor_parallel_size=row.count("tp", 1),
        quantization=quantization_name(row.text("precision")),
    )
    workload, kind = _accelmark_load(row, suite, lengths)
    throughput = row.number_of("throughput_tok_s")
    measured = row.latencies("tpot", "ttft")
    if throughput > 0:
        measured["throughput"] = throughput
    return MeasuredPoint(
        source="accelmark",
        label=row.label,
        engine="vllm",
        version=version,
        hardware=hardware,
        model=model,
        load_kind=kind,
        load=row.number_of("load_value"),
        scenario=build.scenario(row.label, model, deployed, workload) if workload else {},
        measured=measured,
        protocol=Protocol(statistic="median"),
        reason=_accelmark_reason(notes, workload, row),
    )


def _suite(row: Row) -> str:
    kind = row.text("len_kind")
    return next((suite for suite in ("edge", "longctx") if suite in kind), "standard")


def _accelmark_load(row: Row, suite: str, lengths: Path) -> tuple[dict[str, Any], LoadKind]:
    found = re.search(r"mean output tokens about ([\d.]+)", row.text("notes"))
    limit = _OUTPUT_LIMIT[suite]
    mean = min(float(found.group(1)) if found else _USUAL_OUTPUT[suite], limit - 1.0)
    output = build.fixed(limit) if mean > 0.95 * limit else build.around(mean, OUTPUT_CV, limit)
    prompt = build.fixed(_LONG_PROMPT)
    if suite in _PROMPT_FILES:
        file = lengths / f"{_PROMPT_FILES[suite]}.csv.gz"
        prompt = {"distribution": "empirical", "path": str(file), "column": "input_tokens"}
    load, count = row.text("load_type"), row.count("num_requests", 0)
    value = row.number_of("load_value")
    if load.startswith("offline"):
        return build.all_at_once(count or 100, prompt, output), "offline"
    if load.startswith("concurrency") and value >= 1:
        clients = round(value)
        return build.closed_loop(clients, prompt, output, count or SUSTAINED_REQUESTS * clients), "concurrency"
    if load == "rate_rps" and value > 0:
        return build.poisson(value, count or 300, prompt, output), "rate"
    return {}, "rate"


def _accelmark_reason(notes: str, workload: dict[str, Any], row: Row) -> str:
    if "scenario=speculative" in notes:
        return "decodes speculatively, and the row does not say what drafts, how many tokens, or how many are accepted"
    if not workload:
        return "its figures are of steady and of burst requests apart, which a replay does not tell apart"
    return "" if row.text("tp") else "the row does not say how the model was cut"


KAITO_NETWORK = 0.270
"""Seconds of network and ingress in KAITO's TTFT, constant over load (its notes, 270 to 285 ms)."""

KAITO_VERSION = "0.10.0"
"""The release in use in August 2025; the source does not say."""


def read_kaito(folder: Path) -> list[MeasuredPoint]:
    """Return KAITO's sweep: TPOT and E2E are scored; TTFT, of which the network is taken off, is shown."""
    return [_kaito_point(row) for row in read_rows(folder / "kaito_a10_a100_phi4mini.csv")]


def _kaito_point(row: Row) -> MeasuredPoint:
    model, hardware = model_name(row.text("model")), hardware_name(row.text("hardware"))
    deployed = build.deployment(
        hardware,
        engine={"name": "vllm", "version": KAITO_VERSION, "max_model_len": 4096, "enable_prefix_caching": False},
    )
    lengths = build.fixed(row.count("isl", 200)), build.fixed(row.count("osl", 200))
    rate, count = row.number_of("load_value"), row.count("num_requests", 1000)
    is_rate = row.text("load_type").startswith("rate")
    workload = build.poisson(rate, count, *lengths) if is_rate else build.closed_loop(round(rate), *lengths)
    measured: dict[Metric, float] = row.latencies("tpot")
    for metric in ("ttft", "e2e"):
        seconds = row.number_of(f"{metric}_ms") * MS - KAITO_NETWORK
        if seconds > 0:
            measured[metric] = seconds
    return MeasuredPoint(
        source="kaito",
        label=row.label,
        engine="vllm",
        version=KAITO_VERSION,
        hardware=hardware,
        model=model,
        load_kind="rate" if is_rate else "concurrency",
        load=rate,
        scenario=build.scenario(row.label, model, deployed, workload),
        measured=measured,
        shown_only=frozenset({"ttft"}),
    )
