"""The figures of a run as lines of text, the same on the terminal and on the page: each names its denominator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.metrics.kv_room import requests_in_kv
from simserve.metrics.result import RunResult
from simserve.report.quantities import UNDEFINED, count, counted, dollars, number, share
from simserve.units import format_bytes, format_seconds

PART_LABELS = {
    "compute": "compute",
    "weights": "reading weights",
    "kv": "reading KV",
    "communication": "communication",
    "host": "host and kernel starts",
    "draft": "drafting",
}
WAIT_LABELS = {
    "seats": "a seat (max_num_seqs)",
    "blocks": "KV memory",
    "budget": "the step's token budget",
    "step": "the running step to end",
}
_WHOLE = 0.999
"""A window of this share of the run is all of it: no warm-up was cut."""
_SHORT = ("tpot", "ttft")
_FIDELITY = {
    "roofline": "roofline, from datasheet peaks and typical efficiencies",
    "fitted": "curves fitted to measurements",
    "measured": "measured operator by operator",
}


def title(result: RunResult) -> str:
    """Return what was run on what: ``'llama-3.1-70b (fp8) on 4 x h100-sxm-80gb'``."""
    deployment = result.scenario["deployment"]
    number_format = deployment.get("quantization", "none")
    suffix = "" if number_format == "none" else f" ({number_format})"
    replicas = deployment.get("replicas", 1)
    fleet = f", {replicas} replicas" if replicas > 1 else ""
    return f"{result.scenario['model']}{suffix} on {num_gpus(result)} x {deployment['hardware']}{fleet}"


def traffic(result: RunResult) -> str:
    """Return what arrived: ``'5,000 requests, poisson (rate 5.5)'``, and their mean lengths."""
    workload, summary = result.scenario["workload"], result.summary
    arrivals = dict(workload.get("arrivals") or {})
    process = str(arrivals.pop("process", "trace")).replace("_", " ")
    settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in arrivals.items())
    sent = counted(summary["simserve"]["requests"]["submitted"], "request")
    text = f"{sent}, {process} ({settings})" if settings else f"{sent}, {process}"
    completed = summary["completed"]
    if not completed:
        return text
    prompt, output = summary["total_input_tokens"] / completed, summary["total_output_tokens"] / completed
    return f"{text}; {number(prompt)} prompt and {number(output)} output tokens on average"


def num_gpus(result: RunResult) -> int:
    """Return the GPUs of the whole deployment."""
    deployment = result.scenario["deployment"]
    sizes = ("replicas", "tensor_parallel_size", "pipeline_parallel_size")
    product = 1
    for size in sizes:
        product *= int(deployment.get(size, 1))
    return product


def measured(result: RunResult) -> str:
    """Return which requests latencies are over."""
    window, duration = result.summary["simserve"]["window"], result.summary["duration"]
    if window["start_s"] is None or duration is None:
        return "no request was sent"
    requests = counted(window["requests"], "request")
    replications = num_replications(result)
    if replications > 1:
        return f"{requests} in the measured parts of {replications} runs; ± is the 95% interval"
    length = window["end_s"] - window["start_s"]
    if length >= _WHOLE * duration:
        return f"{requests}, the whole run of {format_seconds(duration)}"
    start, end = format_seconds(window["start_s"]), format_seconds(window["end_s"])
    return f"{requests} that arrived from {start} to {end}, after the warm-up"


def num_replications(result: RunResult) -> int:
    """Return how many independent runs the figures are over."""
    intervals = result.summary["simserve"]["confidence_intervals"]
    return max(int(each["replications"]) for each in intervals.values()) if intervals else 1


def throughput_lines(result: RunResult) -> list[str]:
    """Return requests and tokens a second over the measured window."""
    summary = result.summary
    good = summary["request_goodput"]
    within = "" if good is None else f", {number(good)} of them within the SLO"
    return [
        f"{number(summary['request_throughput'])} requests/s{within}",
        f"{number(summary['output_throughput'], 4)} output tokens/s, "
        f"{number(summary['total_token_throughput'], 4)} with prompts; {summary['simserve']['load']} loop",
    ]


def memory_lines(result: RunResult) -> list[str]:
    """Return weights, KV cache and how full it was."""
    simserve = result.summary["simserve"]
    memory, kv = simserve["memory"], simserve["kv"]
    draft = memory["draft_weights_bytes"]
    drafting = f" and {format_bytes(draft)} of the draft" if draft else ""
    lines = [
        f"weights {format_bytes(memory['weights_bytes'])}{drafting}, KV cache {format_bytes(memory['kv_bytes'])} "
        f"of {format_bytes(memory['total_bytes'])} a GPU"
    ]
    if kv["usage_mean"] is None:
        return [*lines, "no KV cache: every step computes its prefixes anew"]
    lines.append(f"{blocks_text(memory)}, {number(memory['max_concurrent_full_length'])} requests of full length")
    room = requests_in_kv(result.simulation)
    if room is not None:
        seats = simserve["engine_resolved"].get("max_num_seqs", UNDEFINED)
        lines.append(f"room for about {number(room, 2)} requests of this traffic at once (max_num_seqs {seats})")
    lines.append(
        f"KV use {share(kv['usage_mean'])} on average, {share(kv['usage_peak'])} at its peak; "
        f"{counted(kv['preemptions'], 'preemption')}"
    )
    return lines


def memory_arithmetic(result: RunResult) -> list[str]:
    """Return how the KV cache follows from the rest, as lines a person can check; no line that does not add up."""
    simserve = result.summary["simserve"]
    memory, engine = simserve["memory"], simserve["engine_resolved"]
    taken = {"weights": memory["weights_bytes"], "runtime": memory["non_torch_bytes"]}
    if memory["draft_weights_bytes"]:
        taken["draft weights"] = memory["draft_weights_bytes"]
    if engine.get("memory_rule") != "static_fraction":
        taken["activations"] = memory["activation_bytes"]
    if engine.get("counts_cuda_graphs"):
        taken["CUDA graphs"] = memory["cuda_graph_bytes"]
    usable, left = memory["usable_bytes"], memory["kv_bytes"]
    lines = []
    if math.isclose(usable - sum(taken.values()), left, rel_tol=1e-6):
        subtracted = "".join(f" - {format_bytes(size)} {name}" for name, size in taken.items())
        lines.append(f"{format_bytes(usable)} usable{subtracted} = {format_bytes(left)} for KV")
    if memory["num_kv_blocks"]:
        per_token = f"{memory['kv_bytes_per_token']:,.0f} B a token"
        lines.append(
            f"{format_bytes(left)} / ({per_token} x {memory['block_size']} tokens a block) = {blocks_text(memory)}"
        )
    return lines


def blocks_text(memory: Mapping[str, Any]) -> str:
    """Return the KV blocks of a replica: ``'86,011 blocks of 16 tokens = 1,376,176 tokens'``."""
    blocks, size = memory["num_kv_blocks"], memory["block_size"]
    return f"{count(blocks)} blocks of {size} tokens = {count(blocks * size)} tokens"


def cost_lines(result: RunResult) -> list[str]:
    """Return dollars an hour, a million tokens and a request."""
    cost = result.summary["simserve"]["cost"]
    if cost["usd_per_hour"] is None:
        return [f"no price: {cost['gpu_hour_source']}"]
    gpus = counted(num_gpus(result), "GPU")
    return [
        f"{dollars(cost['usd_per_million_output_tokens'])} a million output tokens, "
        f"{dollars(cost['usd_per_million_tokens'])} a million tokens with prompts, "
        f"{dollars(cost['usd_per_request'])} a request",
        f"{dollars(cost['usd_per_hour'])} an hour: {gpus} at {dollars(cost['gpu_hour_usd'])} "
        f"({cost['gpu_hour_source']})",
    ]


def step_lines(result: RunResult) -> list[str]:
    """Return where the time of the steps went, largest first, and how much of the peaks was used."""
    simserve = result.summary["simserve"]
    steps, used = simserve["steps"], simserve["utilization"]
    if not steps["count"]:
        return ["no step ran"]
    mean = sum(steps["seconds_by_part"].values()) / steps["count"]
    return [
        listed_shares(simserve["bottleneck"]["step_shares"], PART_LABELS),
        f"{counted(steps['count'], 'step')} of {format_seconds(mean)} and {number(steps['mean_batch'])} sequences "
        f"on average; {share(used['mfu'])} of peak FLOP/s, {share(used['mbu'])} of peak bandwidth",
    ]


def waiting_lines(result: RunResult) -> list[str]:
    """Return how long requests waited in the queue on average, and for what."""
    seconds = mean_wait(result)
    if seconds is None:
        return ["no request waited"]
    shares = listed_shares(result.summary["simserve"]["bottleneck"]["waiting_shares"], WAIT_LABELS)
    waited = f"{format_seconds(seconds)} before the first step on average"
    return [f"{waited}; waiting for {shares}" if shares else waited]


def mean_wait(result: RunResult) -> float | None:
    """Return the mean seconds from the scheduler's queue to the first step, None if no request waited."""
    records = result.simulation.records
    waits = records.scheduled_time - records.admitted_time
    waits = waits[np.isfinite(waits)]
    return float(waits.mean()) if waits.any() else None


def listed_shares(shares: Mapping[str, float | None], labels: Mapping[str, str]) -> str:
    """Return shares largest first, without those that are zero: ``'compute 43%, reading weights 34%'``."""
    present = [(value, name) for name, value in shares.items() if value]
    return ", ".join(f"{labels[name]} {share(value)}" for value, name in sorted(present, reverse=True))


def fidelity_lines(result: RunResult) -> list[str]:
    """Return where the step times come from and how wrong they may be."""
    simserve = result.summary["simserve"]
    fidelity, error = simserve["fidelity"], simserve["expected_error"]
    source = f"step times: {_FIDELITY.get(fidelity, fidelity)}"
    if isinstance(error, Mapping):
        return [source, *_expected_errors(error)]
    return [
        source,
        f"expected error: {error}" + ("; no measurement has checked them" if error == "unvalidated" else ""),
    ]


def _expected_errors(error: Mapping[str, Any]) -> list[str]:
    """Return the errors by metric, of what class, and where they were measured."""
    shown = [
        f"{metric.upper() if metric in _SHORT else metric} {share(each['p50'])}, 90% of "
        f"{counted(each['points'], 'server')} within {share(each['p90'])}"
        for metric, each in error.items()
        if isinstance(each, Mapping)
    ]
    if not shown:
        return ["expected error: " + ", ".join(f"{name} {value}" for name, value in error.items())]
    lines = [f"expected error (median): {'; '.join(shown)}"]
    if "class" in error:
        lines.append(f"measured on {error['class']}; {error.get('source', 'no source')}")
    return lines
