"""Community runs: AccelMark on many GPUs, KAITO's Poisson sweep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from calibration.laboratory.protocol import Protocol
from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import hardware_name, model_name, quantization_name, version_number
from calibration.laboratory.readers.table import MS, Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import LoadKind, MeasuredPoint, Metric
from simserve.profiles.engine_options import version_key

_PROMPT_FILES = {"standard": "accelmark_sharegpt_standard_v1_inputs", "edge": "accelmark_sharegpt_edge_v1_inputs"}
_OUTPUT_LIMIT = {"standard": 512, "edge": 256, "longctx": 256}
_USUAL_OUTPUT = {"standard": 345.0, "edge": 208.0, "longctx": 255.0}
"""Mean output of the offline rows (elapsed time times throughput over requests), for rows that do not state theirs:
natural stops, most near the limit."""
_LONG_PROMPT = 28650
"""Median prompt of the long-context suite (its 99th percentile is 29,932)."""
_EAGER = '"enforce_eager": true'
"""Long contexts run this way under V0 too, whose graphs end at 8,192 tokens (``max_seq_len_to_capture``)."""
_CONTEXT = {"A": 8192, "B": 8192, "E": 8192, "C": 4096, "G": 4096, "F": 2048, "D": 30208}
"""Suite -> max_model_len: from its suite.json, or the model's if it has none; for D, the README of its prompts."""
_LONG_REQUESTS = 100
"""Requests of a long-context run at a rate: what the H100 served in the 204 s of its run at 0.5 requests/s. Its rows
say 200, the total of both its runs."""

_HOST_SLOWDOWN = {"a100-sxm-80gb": 2.0, "rtx-4090-24gb": 3.0, "v100s-32gb": 2.0, "l4-24gb": 1.5}
"""Node -> factor on CPU time relative to its H100 node (AMD EPYC 7532 in an A100 node)."""

_OFFLINE_SLOWDOWN = {"rtx-4090-24gb": 1.7}
"""The same without a server, where one thread does all the work: only from the offline rows of its 0.5B, whose steps
are host time; those of 8B, 70B and Mixtral were not fitted. Other nodes do not differ."""

_FIRST_V1 = "0.8"
_FRONTEND_MS = 1.0
"""From a call in the engine's own process to its scheduler, on the H100 node: a prompt's tokens, without HTTP. Fitted
to V0; V1 does the same and hands the tokens to another process (v1/engine/async_llm.py of 0.20.2, add_request)."""
_OFFLINE_SEATS = 512
"""Seats that the runner asks for if a row does not state them."""
_V1_SEATS, _V1_BUDGET = 128, 2048
"""Seats and budget of AsyncLLM outside a server: vLLM's SchedulerConfig.DEFAULT_MAX_NUM_SEQS and
DEFAULT_MAX_NUM_BATCHED_TOKENS. V0 has one default, 256 seats."""
_V1_OFFLINE_BUDGET = 8192
"""Of the LLM class on GPUs other than Hopper with 70 GiB (vLLM 0.20 engine/arg_utils.py, UsageContext.LLM_CLASS)."""

SUSTAINED_REQUESTS = 20
"""Requests per client in the sustained suites, whose number is not recorded: enough for a steady state."""


def read_accelmark(folder: Path) -> list[MeasuredPoint]:
    """Return AccelMark's runs: medians of TTFT and TPOT, output tokens/s."""
    lengths = folder.parent / "traces" / "length_distributions"
    return [_accelmark_point(row, lengths) for row in read_rows(folder / "accelmark_results.csv")]


def _accelmark_point(row: Row, lengths: Path) -> MeasuredPoint:
    model, hardware = model_name(row.text("model")), hardware_name(row.text("hardware"))
    version, notes, suite = version_number(row.text("version")), row.text("notes"), _suite(row)
    is_offline = row.text("load_type").startswith("offline")
    deployed = blocks.deployment(
        hardware,
        engine={"name": "vllm", "version": version, **_accelmark_engine(row, hardware, is_offline=is_offline)},
        tensor_parallel_size=row.count("tp", 1),
        quantization=_accelmark_quantization(row, is_offline=is_offline),
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
        protocol=Protocol(statistic="median", is_in_process=True),
        reason=_accelmark_reason(notes, workload, row),
    )


def _accelmark_engine(row: Row, hardware: str, *, is_offline: bool) -> dict[str, Any]:
    """Return the engine's limits: the runner's configuration offline, the defaults of AsyncLLMEngine online.

    The runner passes ``max_num_seqs`` and ``quantization`` only to the LLM class
    (github.com/FreedomIntelligence/AccelMark, runners/nvidia_vllm_47f5d58e and nvidia_vllm020_0f6c56e4).
    """
    notes, version = row.text("notes"), version_number(row.text("version"))
    seats = re.search(r'"max_num_seqs": (\d+)', notes)
    share = re.search(r'"gpu_memory_utilization": ([\d.]+)', notes)
    is_v1 = version_key(version or "0") >= version_key(_FIRST_V1)
    limits: dict[str, Any] = {"max_num_seqs": int(seats.group(1)) if seats else _OFFLINE_SEATS}
    if is_v1:
        limits["max_num_batched_tokens"] = _V1_OFFLINE_BUDGET
    if not is_offline:
        limits = {"max_num_seqs": _V1_SEATS, "max_num_batched_tokens": _V1_BUDGET} if is_v1 else {}
        limits["frontend_latency"] = f"{_FRONTEND_MS * _HOST_SLOWDOWN.get(hardware, 1.0)} ms"
    return {
        **limits,
        "gpu_memory_utilization": float(share.group(1)) if share else None,
        "enable_prefix_caching": False,
        "max_model_len": _CONTEXT.get(_suite_letter(row), 4096),
        "enforce_eager": True if _EAGER in notes or (_suite(row) == "longctx" and not is_v1) else None,
        "host_slowdown": (_HOST_SLOWDOWN | (_OFFLINE_SLOWDOWN if is_offline else {})).get(hardware),
    }


def _accelmark_quantization(row: Row, *, is_offline: bool) -> str:
    """Return the weight format; ``quantization="gptq"``, which only offline runs ask for, excludes Marlin."""
    is_forced = is_offline and "quant=gptq;" in row.text("notes")
    return "gptq-int4-exllama" if is_forced else quantization_name(row.text("precision"))


def _suite_letter(row: Row) -> str:
    words = row.text("len_kind").split()
    return words[1] if len(words) > 1 else ""


def _suite(row: Row) -> str:
    kind = row.text("len_kind")
    return next((suite for suite in ("edge", "longctx") if suite in kind), "standard")


def _accelmark_load(row: Row, suite: str, lengths: Path) -> tuple[dict[str, Any], LoadKind]:
    found = re.search(r"mean output tokens about ([\d.]+)", row.text("notes"))
    limit = _OUTPUT_LIMIT[suite]
    mean = min(float(found.group(1)) if found else _USUAL_OUTPUT[suite], limit - 1.0)
    output = build.fixed(limit) if mean > 0.95 * limit else blocks.cut(mean, limit)
    prompt = build.fixed(_LONG_PROMPT)
    if suite in _PROMPT_FILES:
        file = lengths / f"{_PROMPT_FILES[suite]}.csv.gz"
        prompt = {"distribution": "empirical", "path": str(file), "column": "input_tokens"}
    load, count = row.text("load_type"), row.count("num_requests", 0)
    if suite == "longctx" and load == "rate_rps":
        count = min(count, _LONG_REQUESTS)
    value = row.number_of("load_value")
    cut = {"max_tokens": limit}
    if load.startswith("offline"):
        return build.all_at_once(count or 100, prompt, output) | cut, "offline"
    if load.startswith("concurrency") and value >= 1:
        clients = round(value)
        return build.closed_loop(clients, prompt, output, count or SUSTAINED_REQUESTS * clients) | cut, "concurrency"
    if load == "rate_rps" and value > 0:
        return build.poisson(value, count or 300, prompt, output) | cut, "rate"
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
    """Return KAITO's sweep: TPOT and E2E are scored; TTFT, minus the network, is shown."""
    return [_kaito_point(row) for row in read_rows(folder / "kaito_a10_a100_phi4mini.csv")]


def _kaito_point(row: Row) -> MeasuredPoint:
    model, hardware = model_name(row.text("model")), hardware_name(row.text("hardware"))
    deployed = blocks.deployment(
        hardware,
        engine={
            "name": "vllm",
            "version": KAITO_VERSION,
            "max_model_len": 4096,
            "enable_prefix_caching": False,
            "sampling": "nucleus",  # GuideLLM sets no temperature: tokens are drawn at random
            "flashinfer_sampler": False,  # only the wheel in an image of its own; its steps show the sort
        },
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
