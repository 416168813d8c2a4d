"""The figures of a run as lines of text, the same on the terminal and on the page: each names its denominator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simserve.metrics.replications import ATTAINMENT_HALF_WIDTH
from simserve.metrics.result import RunResult
from simserve.metrics.statistics import BEYOND_PERCENTILE, needed_requests
from simserve.metrics.throughput import requests_in_kv
from simserve.perf.operators import OPERATORS
from simserve.profiles.checkpoint import WIDE_FORMATS
from simserve.profiles.expected_errors import CALIBRATED, QUEUED
from simserve.report.quantities import UNDEFINED, count, counted, dollars, latency_unit, listed, number, share
from simserve.report.tables import LATENCY_LABELS
from simserve.scenario.formats import formats_line
from simserve.units import SECONDS_PER_HOUR, format_bytes, format_seconds
from simserve.workload.arrival_spec import STATIONARY

PART_LABELS = {
    "compute": "compute",
    "weights": "reading weights",
    "kv": "reading KV",
    "communication": "communication",
    "host": "CPU and kernel launches",
    "draft": "drafting",
}
WAIT_LABELS = {
    "seats": "a seat (max_num_seqs)",
    "blocks": "KV memory",
    "budget": "the step's token budget",
    "loras": "a seat for its adapter (max_loras)",
    "prefix": "another prompt that begins alike",
    "step": "the running step to end",
}
_WHOLE = 0.999  # A window of at least this share of the run counts as the whole run: no warm-up was cut.
_STEADY = tuple(kind.model_fields["process"].default for kind in STATIONARY)
"""Arrival processes for which a warm-up is detected."""
_BEYOND_LAST = 0.01  # Share of the requests that lie beyond p99.
_NOTICEABLE_WAIT = 0.05  # Least share of a wait that is mentioned.
_NOTICEABLE_OPERATOR = 0.005  # Least share of the seconds of all steps for an operator to be named.
CANNOT_KEEP_UP = "the slowest of them cannot keep up with this load: how long requests queue there cannot be told"
_SHORT = ("tpot", "ttft")
_NARROW_ARITHMETIC = ("fp8", "int8")  # Weight formats that multiply in 8 bit if the GPU can.
_FIDELITY = {
    "roofline": "roofline, from datasheet peaks and typical efficiencies",
    "fitted": "curves fitted to measurements",
    "measured": "measured operator by operator",
}
_MOST_LISTED = 6  # Most classes with their own arrivals that are listed one by one.
LOOPS = {"open": "open loop", "closed": "closed loop", "mixed": "open loop, and clients in a closed loop"}
"""The values of ``simserve.load`` in words."""
_CHANGES_SHOWN = 6


def heading(result: RunResult) -> str:
    """Return what was deployed: ``'gpt-oss-20b on 1 x h100-sxm-80gb; weights mxfp4, as stored ...'``."""
    return f"{fleet_title(result.scenario)}; {formats_line(result.summary['simserve']['formats'])}"


def fleet_title(scenario: Mapping[str, Any]) -> str:
    """Return the model, its GPUs and its layout: ``'llama-3.1-70b on 8 x h100-sxm-80gb, 2 replicas of TP 4'``."""
    deployment = scenario["deployment"]
    pools = deployment.get("pools")
    if pools:
        parts = [_pool_title(deployment, pool) for pool in pools]
        return f"{scenario['model']} on {', '.join(parts)}"
    replicas, scaling = deployment.get("replicas", 1), deployment.get("autoscaling")
    if scaling is not None:
        per_replica, few, many = _num_gpus(deployment) // replicas, scaling["min_replicas"], scaling["max_replicas"]
        layout = _prefixed(", ", _sizes(deployment))
        return f"{scenario['model']} on {few} to {many} replicas of {per_replica} x {deployment['hardware']}{layout}"
    layout = _prefixed(", ", _layout(deployment))
    return f"{scenario['model']} on {_num_gpus(deployment)} x {deployment['hardware']}{layout}"


def _layout(deployment: Mapping[str, Any]) -> str:
    """Return how a model is laid out on its GPUs: ``'2 replicas of TP 8 x PP 2'``; empty on one GPU."""
    replicas, sizes = deployment.get("replicas", 1), _sizes(deployment)
    return f"{replicas} replicas{_prefixed(' of ', sizes)}" if replicas > 1 else sizes


def _sizes(deployment: Mapping[str, Any]) -> str:
    """Return the parallelism of one replica: ``'TP 4 x DP 2 with EP, nodes of 4'``; empty without any."""
    named = (("TP", "tensor"), ("DCP", "decode_context"), ("PP", "pipeline"), ("DP", "data"))
    sizes = [(name, deployment.get(f"{key}_parallel_size", 1)) for name, key in named]
    cut = " x ".join(f"{name} {size}" for name, size in sizes if size > 1)
    nodes = f"nodes of {deployment['gpus_per_node']}" if deployment.get("gpus_per_node") else ""
    cut = f"{cut} with EP" if cut and deployment.get("enable_expert_parallel") else cut
    return ", ".join(filter(None, [cut, nodes]))


def _prefixed(before: str, text: str) -> str:
    return before + text if text else ""


def _pool_title(deployment: Mapping[str, Any], pool: Mapping[str, Any]) -> str:
    whole = {**{key: value for key, value in deployment.items() if key not in ("replicas", "pools")}, **pool}
    own = [str(pool[key]) for key in ("model", "quantization") if key in pool]
    model = f"{' '.join(own)} on " if own else ""
    layout = _layout(whole)
    return f"{pool['name']}: {model}{_num_gpus(whole)} x {whole['hardware']}{f' ({layout})' if layout else ''}"


def num_gpus(result: RunResult) -> int:
    """Return the GPUs of the whole deployment, those that encode images included."""
    return _num_gpus(result.scenario["deployment"]) + num_encoders(result)


def gpus_text(result: RunResult, count: int) -> str:
    """Return the GPUs that are paid for: ``'4 GPUs'``, or for a fleet that changed ``'5.2 GPUs on average'``."""
    replicas, seconds = result.summary["simserve"]["replicas"], result.summary["duration"]
    if len(replicas["timeline"]) <= 1 or not seconds:
        return counted(count, "GPU")
    mean = number(replicas["gpu_hours"] * SECONDS_PER_HOUR / seconds)
    # A replica that is lost for a while is paid for all the same.
    return counted(count, "GPU") if float(mean.replace(",", "")) == count else f"{mean} GPUs on average"


def num_encoders(result: RunResult) -> int:
    """Return the GPUs of the encoder pool; 0 without one."""
    pool = result.scenario["deployment"].get("encoder_disaggregation")
    return 0 if pool is None else int(pool.get("replicas", 1))


def _num_gpus(deployment: Mapping[str, Any]) -> int:
    if deployment.get("pools"):
        keys = {key: value for key, value in deployment.items() if key not in ("replicas", "pools")}
        return sum(_num_gpus({**keys, **pool}) for pool in deployment["pools"])
    sizes = ("replicas", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    product = 1
    for size in sizes:
        product *= int(deployment.get(size, 1))
    return product


def measured(result: RunResult) -> str:
    """Return which requests the latencies cover, and a note if they are too few for the last percentile."""
    window, duration = result.summary["simserve"]["window"], result.summary["duration"]
    if window["start_s"] is None or duration is None:
        return "no request was sent"
    requests = counted(window["requests"], "request")
    replications = num_replications(result)
    few = _not_settled(result) + _too_few(window["requests"], is_each=replications > 1)
    if replications > 1:
        text = f"{requests} a run in the measured parts of {replications} runs"
        interval = "" if result.summary["simserve"]["settled"] is False else "; ± is the 95% interval"
        return f"{text}{interval}{precision_reached(result.summary['simserve']['replications'])}{few}"
    length = window["end_s"] - window["start_s"]
    if length >= _WHOLE * duration:
        return f"{requests}, the whole run of {format_seconds(duration)}{_why_whole(result)}{few}"
    start, end = format_seconds(window["start_s"]), format_seconds(window["end_s"])
    return f"{requests} that arrived from {start} to {end}, after the warm-up{few}"


def _not_settled(result: RunResult) -> str:
    """Return a note if a run is too short to measure what a longer one would; else nothing."""
    inner = result.summary["simserve"]
    if inner["settled"] is not False:
        return ""
    lacks = "no 95% interval, since " if num_replications(result) > 1 else ""
    if inner["stability"] == "overloaded":
        return f"; {lacks}an overloaded run never settles: the longer it is, the later its requests" if lacks else ""
    longer = "" if result.scenario["run"].get("precision") is not None else ": --precision 0.05 lengthens it"
    return f"; {lacks}at load {inner['load_ratio']:.2f} a run of this length has not settled{longer}"


def _why_whole(result: RunResult) -> str:
    """Return why no warm-up was cut if one would be expected: the fleet changes; else nothing."""
    deployment, workload = result.scenario["deployment"], result.scenario["workload"]
    sources = [each.get("arrivals") for each in (workload, *(workload.get("classes") or ()))]
    changes = any(deployment.get(key) for key in ("autoscaling", "faults", "updates", "liveness"))
    parts = (*(deployment.get("pools") or ()), deployment.get("encoder_disaggregation") or {})
    changes = changes or any(part.get("autoscaling") for part in parts)
    is_steady = all(each["process"] in _STEADY for each in sources if each) and any(sources)
    is_looked_for = result.scenario["run"]["warmup"] == "auto" and is_steady
    return "; no warm-up is cut, since the fleet changes as it goes" if changes and is_looked_for else ""


def _too_few(requests: float, *, is_each: bool) -> str:
    """Return how many requests lie beyond p99 if they are fewer than ten; else nothing."""
    beyond = round(_BEYOND_LAST * requests)
    if beyond >= BEYOND_PERCENTILE or not requests:
        return ""
    slowest = f"only {beyond} requests are" if beyond > 1 else "only one request is"
    each = " in each run" if is_each else ""
    needed = count(needed_requests(1 - _BEYOND_LAST))
    return f"; {slowest} slower than p99{each}: use at least {needed} requests to rely on it"


def precision_reached(replications: Mapping[str, Any]) -> str:
    """Return whether the precision asked for was reached, and by how much the widest interval misses it."""
    if replications["precision"] is None:
        return ""
    asked, width = f"{100 * replications['precision']:.3g}%", replications["widest"]
    if replications["reached"]:
        return f", at most {asked} of every latency{_by_share(replications['by_share'], asked)}"
    if width["half_width"] is None:
        return f"; {width['metric']} is defined in fewer than two of them"
    if width["metric"] == "slo_attainment":  # a share is held to points, whatever the precision
        points = f"{100 * width['half_width']:.3g} percentage points, {100 * ATTAINMENT_HALF_WIDTH:.3g} was asked"
        return f"; slo_attainment is known to {points}"
    needed = replications["needed_requests"]
    more = f", which takes some {count(float(f'{needed:.1g}'))} requests" if needed else ""
    return f"; {width['metric']} is known to {100 * width['half_width']:.3g}%, {asked} was asked{more}"


def _by_share(names: Sequence[str], asked: str) -> str:
    """Return a note on percentiles with few values around them, of which the share above is known instead."""
    if not names:
        return ""
    verb, it = ("lie", "them") if len(names) > 1 else ("lies", "it")
    return f"; {' and '.join(names)} {verb} where there are few values: the share above {it} is known to {asked}"


def num_replications(result: RunResult) -> int:
    """Return the number of independent runs behind the figures."""
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
        f"{number(summary['total_token_throughput'], 4)} with prompts; {LOOPS[summary['simserve']['load']]}",
    ]


def memory_lines(result: RunResult) -> list[str]:
    """Return weights, KV cache and its usage."""
    simserve = result.summary["simserve"]
    memory, kv = simserve["memory"], simserve["kv"]
    pools = result.scenario["deployment"].get("pools")
    whose = f"a replica of the pool {pools[0]['name']}: " if pools else ""
    lines = [f"{whose}{_weights_text(memory)}"]
    if kv["usage_mean"] is None:
        return [*lines, "no KV cache: every step computes its prefixes anew"]
    lines.append(f"{_blocks_text(memory)}, {number(memory['max_concurrent_full_length'])} requests of full length")
    lines += [
        f"a replica of the pool {name}: {_weights_text(own)}; {_blocks_text(own)}, "
        f"{number(own['max_concurrent_full_length'])} requests of full length"
        for name, each in [*simserve["pools"].items()][1:]
        if (own := each.get("memory")) is not None
    ]
    room = requests_in_kv(result.simulation)
    if room is not None:
        seats = simserve["engine_resolved"].get("max_num_seqs", UNDEFINED)
        lines.append(
            f"the KV cache holds about {number(room, 2)} requests of this traffic at once (max_num_seqs {seats})"
        )
    swapped = result.simulation.totals.swapped_blocks
    if swapped:
        size = format_bytes(swapped * memory["block_size"] * memory["kv_bytes_per_token"])
        lines.append(f"{count(swapped)} blocks ({size} a GPU) went to host memory or came back")
    if kv["prefix_hit_rate"]:
        lines.append(f"{share(kv['prefix_hit_rate'])} of the prompt tokens came from the prefix cache")
    lines += [*_offload_lines(result), *lora_lines(result)]
    lines.append(
        f"KV use {share(kv['usage_mean'])} on average, {share(kv['usage_peak'])} at its peak; "
        f"{counted(kv['preemptions'], 'preemption')}"
    )
    return lines


def _weights_text(memory: Mapping[str, Any]) -> str:
    """Return weights, states and KV cache of one GPU in words."""
    draft = memory["draft_weights_bytes"]
    more = f" and {format_bytes(draft)} of the draft" if draft else ""
    if memory["states_bytes"]:
        more += f", states of sequences {format_bytes(memory['states_bytes'])}"
    if memory.get("lora_bytes"):
        more += f", slots of LoRA adapters {format_bytes(memory['lora_bytes'])}"
    return (
        f"weights {format_bytes(memory['weights_bytes'])}{more}, KV cache {format_bytes(memory['kv_bytes'])} of "
        f"{format_bytes(memory['total_bytes'])} a GPU"
    )


def _offload_lines(result: RunResult) -> list[str]:
    """Return what came from the KV tiers behind the prefix cache, and how long steps waited; empty without tiers."""
    simserve = result.summary["simserve"]
    offload, hits = simserve["offload"], simserve["kv"]["offload_hit_rate"]
    if offload["num_blocks"] is None:
        return []
    tiers = simserve["kv"]["tiers"]
    if len(tiers) > 1 or any(each["shared"] for each in tiers):
        return [_tier_line(each) for each in tiers]
    return [
        f"{share(hits or 0.0)} of the prompt tokens were loaded from the tier behind it, "
        f"{format_bytes(offload['loaded_bytes'])}, for which steps waited {format_seconds(offload['load_seconds'])}; "
        f"it holds {count(offload['num_blocks'])} blocks a replica and was {share(offload['peak_usage'])} full at most"
    ]


def lora_lines(result: RunResult) -> list[str]:
    """Return how often requests found their LoRA adapter on the GPU, and the time of loads; empty without adapters."""
    loras = result.summary["simserve"].get("loras")
    if loras is None or loras["swaps"] is None:
        return []
    return [
        f"{share(loras['hit_rate'] or 0.0)} of the admissions found their adapter on the GPU; "
        f"{counted(loras['swaps'], 'load')}, {count(loras['disk_loads'])} of them from disk, for which steps waited "
        f"{format_seconds(loras['load_seconds'])}; computing adapters took {format_seconds(loras['step_seconds'])}"
    ]


def _tier_line(tier: Mapping[str, Any]) -> str:
    """Return the line about one of several tiers."""
    owner = "shared by the replicas" if tier["shared"] else "of each replica"
    found = f"{share(tier['hit_rate'] or 0.0)} of the prompt tokens came from the {tier['tier']} tier"
    waited = f"{format_bytes(tier['loaded_bytes'])}, for which steps waited {format_seconds(tier['load_seconds'])}"
    declined = tier["recomputed_bytes"]
    computed = f"; {format_bytes(declined)} more lay there and were computed, as that was faster" if declined else ""
    held = f"{format_bytes(tier['capacity_bytes'])} {owner}, {share(tier['peak_usage'])} full at most"
    return f"{found}, {waited}{computed} ({held})"


def memory_arithmetic(result: RunResult) -> list[str]:
    """Return how the size of the KV cache follows from the rest, as lines to check; none that does not add up."""
    simserve = result.summary["simserve"]
    memory, engine = simserve["memory"], simserve["engine_resolved"]
    taken = {"weights": memory["weights_bytes"], "runtime": memory["non_torch_bytes"]}
    if memory["draft_weights_bytes"]:
        taken["draft weights"] = memory["draft_weights_bytes"]
    if memory["states_bytes"]:
        taken["states of sequences"] = memory["states_bytes"]
    if memory.get("lora_bytes"):
        taken["slots of LoRA adapters"] = memory["lora_bytes"]
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
            f"{format_bytes(left)} / ({per_token} x {memory['block_size']} tokens a block) = {_blocks_text(memory)}"
        )
    return lines


def _blocks_text(memory: Mapping[str, Any]) -> str:
    """Return the KV blocks of a replica: ``'86,011 blocks of 16 tokens = 1,376,176 tokens'``."""
    blocks, size = memory["num_kv_blocks"], memory["block_size"]
    return f"{count(blocks)} blocks of {size} tokens = {count(blocks * size)} tokens"


def cost_lines(result: RunResult) -> list[str]:
    """Return dollars an hour, a million tokens and a request."""
    cost = result.summary["simserve"]["cost"]
    if cost["usd_per_hour"] is None:
        return [f"no price: {cost['gpu_hour_source']}"]
    overflow = result.summary["simserve"]["overflow"]
    api = overflow["usd_per_hour"] or 0.0
    elsewhere = f", and {dollars(api)} of {overflow['api']}" if overflow["api"] else ""
    encoders = num_encoders(result)
    if encoders:
        elsewhere = f", and {counted(encoders, 'GPU')} that encode images{elsewhere}"
    gpus = gpus_text(result, num_gpus(result) - encoders)
    return [
        f"{dollars(cost['usd_per_million_output_tokens'])} a million output tokens, "
        f"{dollars(cost['usd_per_million_tokens'])} a million tokens with prompts, "
        f"{dollars(cost['usd_per_request'])} a request, at the rate of this run",
        f"{dollars(cost['usd_per_hour'])} an hour: {gpus} at {dollars(cost['gpu_hour_usd'])} "
        f"({cost['gpu_hour_source']}){elsewhere}",
    ]


def energy_lines(result: RunResult) -> list[str]:
    """Return power, energy a token and CO2: an estimate from how busy the GPUs were and with what."""
    used = result.summary["simserve"]["energy"]
    if used["joules_per_token"] is None:
        return [f"{number(used['watts_mean'])} W; no token was served"]
    return [
        f"{number(used['watts_per_gpu'])} W a GPU; a thousand tokens take {number(used['joules_per_token'] * 1000)} J "
        f"and {number(used['grams_co2_per_thousand_tokens'])} g of CO2 (estimated; PUE {used['pue']:g}, "
        f"{number(used['carbon_g_per_kwh'])} g/kWh)"
    ]


def step_lines(result: RunResult) -> list[str]:
    """Return where the time of the steps went, largest part first, and how much of the peaks was used."""
    simserve = result.summary["simserve"]
    steps, used = simserve["steps"], simserve["utilization"]
    if not steps["count"]:
        return ["no step ran"]
    mean = sum(steps["seconds_by_part"].values()) / steps["count"]
    return [
        listed_shares(simserve["bottleneck"]["step_shares"], PART_LABELS),
        *_operator_lines(steps),
        *_format_lines(result),
        f"{counted(steps['count'], 'step')} of {format_seconds(mean)} and {number(steps['mean_batch'])} sequences "
        f"on average; {share(used['mfu'])} of peak FLOP/s, {share(used['mbu'])} of peak bandwidth",
    ]


def _operator_lines(steps: Mapping[str, Any]) -> list[str]:
    """Return the seconds of the steps by operator; nothing for older results, which lack them."""
    seconds = steps.get("seconds_by_operator") or {}
    total = sum(seconds.values())
    if not total:
        return []
    noticed = {name: value / total for name, value in seconds.items() if value / total >= _NOTICEABLE_OPERATOR}
    rest = 1.0 - sum(noticed.values())
    text = listed_shares(noticed, OPERATORS)
    return [f"by operator: {text}" + (f", others {share(rest)}" if rest >= _NOTICEABLE_OPERATOR else "")]


def _format_lines(result: RunResult) -> list[str]:
    """Return which parts of a step a low-bit weight format does not shorten; nothing at 16 bit or more."""
    name = result.summary["simserve"]["formats"]["weights"]
    if name in WIDE_FORMATS:
        return []
    shares = result.summary["simserve"]["bottleneck"]["step_shares"]
    is_weight_only = any("8-bit weights" in note for note in result.summary["simserve"]["engine_resolved"]["notes"])
    shortened = ("weights", "compute") if name in _NARROW_ARITHMETIC and not is_weight_only else ("weights",)
    rest = {part: value for part, value in shares.items() if part not in shortened}
    left = share(sum(value or 0.0 for value in rest.values()))
    parts = " and ".join(PART_LABELS[part] for part in shortened)
    return [f"{name} shortens {parts}; not the other {left} of a step: {listed_shares(rest, PART_LABELS)}"]


def waiting_lines(result: RunResult) -> list[str]:
    """Return how long requests waited in the queue on average, and for what."""
    records = result.simulation.records
    waits = records.scheduled_time - records.admitted_time
    waits = waits[np.isfinite(waits)]
    seconds = float(waits.mean()) if waits.any() else None
    if seconds is None:
        return ["no request waited"]
    shares = listed_shares(result.summary["simserve"]["bottleneck"]["waiting_shares"], WAIT_LABELS)
    waited = f"{format_seconds(seconds)} before the first step on average"
    in_front = _wait_for_turns(result, seconds)
    if in_front:
        waited += f", {format_seconds(in_front)} of it in front of the replicas for their turn"
        return [f"{waited}; then waiting for {shares}" if shares else waited]
    return [f"{waited}; waiting for {shares}" if shares else waited]


def _wait_for_turns(result: RunResult, seconds: float) -> float:
    """Return how much of a mean wait was in front of the replicas, under fair turns; 0 if that is a small part."""
    if not result.scenario["deployment"].get("fairness"):
        return 0.0
    records = result.simulation.records
    num_waits = int(np.isfinite(records.scheduled_time - records.admitted_time).sum())
    in_front = seconds - sum(result.simulation.totals.blocked_seconds.values()) / num_waits
    return in_front if in_front > _NOTICEABLE_WAIT * seconds else 0.0


def listed_shares(shares: Mapping[str, float | None], labels: Mapping[str, str]) -> str:
    """Return shares, largest first, without zeros: ``'compute 43%, reading weights 34%'``."""
    present = [(value, name) for name, value in shares.items() if value]
    return ", ".join(f"{labels[name]} {share(value)}" for value, name in sorted(present, reverse=True))


def fidelity_lines(result: RunResult) -> list[str]:
    """Return where the step times come from and how large their errors may be."""
    simserve = result.summary["simserve"]
    fidelity = simserve["fidelity"]
    source = f"step times: {_FIDELITY.get(fidelity, fidelity)}{_measured_operators(simserve)}"
    return [source, *error_lines(simserve["expected_error"])]


def real_server_lines(result: RunResult) -> list[str]:
    """Return the prediction intervals of a real server's means over requests; nothing for results without them."""
    found = result.summary["simserve"].get("prediction_interval")
    if found is None:
        return []
    queues = found.get("queues", False)
    shown = [
        f"{label} {_latency_range(*ends, is_open=queues and name in QUEUED)}"
        for name, label in LATENCY_LABELS.items()
        if (ends := found["metrics"].get(f"mean_{name}"))
    ]
    rate = found["metrics"].get("output_throughput")
    if rate:
        shown.append(f"{number(rate[0], 3)} to {number(rate[1], 3)} output tokens a second")
    price = found["metrics"].get("usd_per_million_output_tokens")
    if price:
        shown.append(f"{dollars(price[0])} to {dollars(price[1])} a million of them")
    lines = [f"{found['level']:.0%} of real servers, means: {', '.join(shown)}", f"basis: {found['basis']}"]
    if queues:
        lines.insert(1, CANNOT_KEEP_UP)
    if not found["basis"].startswith(CALIBRATED) and not result.scenario["deployment"].get("pools"):
        lines.append("narrower after two measurements: simserve calibrate loads SCENARIO names them")
    return lines


def _latency_range(low: float, high: float, *, is_open: bool = False) -> str:
    """Return two latencies in one unit, ``'19.1 to 23.0 ms'``; only the low one if there is no high end."""
    if is_open:
        unit, factor = latency_unit(low)
        return f"from {number(low / factor)} {unit}"
    unit, factor = latency_unit(high)
    return f"{number(low / factor)} to {number(high / factor)} {unit}"


def _measured_operators(simserve: Mapping[str, Any]) -> str:
    """Return which operators are timed by the user's tables, if not all are."""
    operators = simserve.get("fidelity_by_operator") or {}
    measured = [name.replace("_", "-") for name, source in operators.items() if source == "measured"]
    if not measured or len(measured) == len(operators):
        return ""
    return f"; measured by your operator tables: {', '.join(measured)}"


def error_lines(error: Mapping[str, Any]) -> list[str]:
    """Return the error by metric for a server that was not calibrated: the median, and what 9 in 10 stay within."""
    shown = [
        f"{metric.upper() if metric in _SHORT else metric} {share(each['p50'])}, 90% within {each['p90']:.0%}"
        for metric, each in error.items()
        if isinstance(each, Mapping)
    ]
    return [f"expected error (median): {'; '.join(shown)}"]


def traffic(result: RunResult) -> str:
    """Return the traffic: ``'5,000 requests, poisson (rate 5.5)'``, and mean lengths."""
    workload, summary = result.scenario["workload"], result.summary
    sent = counted(summary["simserve"]["requests"]["submitted"], "request")
    text = f"{sent}, {_sources(workload)}"
    completed = summary["completed"]
    if not completed:
        return text
    prompt, output = summary["total_input_tokens"] / completed, summary["total_output_tokens"] / completed
    return f"{text}; {number(prompt)} prompt and {number(output)} output tokens on average"


def _sources(workload: Mapping[str, Any]) -> str:
    """Return the arrival processes: the common one, and those of classes with their own."""
    classes: Sequence[Mapping[str, Any]] = workload.get("classes") or ()
    own = [each for each in classes if each.get("arrivals")]
    unnamed = "arrivals by class" if workload.get("trace") is None else "trace"
    common = _process(workload, unnamed)
    if not own:
        return common
    if len(own) > _MOST_LISTED:
        return common if workload.get("arrivals") is None else f"{common}, and arrivals by class"
    named = [f"{each['name']}: {_process(each, unnamed)}" for each in own]
    if workload.get("arrivals") is not None:
        names = listed([each["name"] for each in classes if each.get("share")])
        named.insert(0, f"{names}: {common}")
    return "; ".join(named)


_ROUNDS = ("rounds", "training_time", "weight_update")  # Keys of a batch that say how it is sent again.


def _process(source: Mapping[str, Any], unnamed: str) -> str:
    """Return one arrival process with its settings: ``'gamma (rate 2.0, cv 2.0), in conversations'``."""
    arrivals = dict(source.get("arrivals") or {})
    steps = arrivals.pop("steps", ())
    if len(steps) > _MOST_LISTED:
        rates = [step["rate"] for step in steps]
        arrivals["rate"] = f"{number(min(rates))} to {number(max(rates))} in {len(steps)} steps"
    elif steps:
        arrivals["rate"] = " then ".join(f"{number(step['rate'])} for {step['duration']}" for step in steps)
    if arrivals.get("rounds") == 1:  # a single round has no training between rounds
        arrivals = {key: value for key, value in arrivals.items() if key not in _ROUNDS}
    process = str(arrivals.pop("process", unnamed)).replace("_", " ")
    settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in arrivals.items())
    if source.get("num_requests") and "share" not in source and source.get("name"):
        settings = counted(source["num_requests"], "request")  # a batch of one class
    talks = ", in conversations" if source.get("sessions") else ", in agents' tasks" if source.get("agents") else ""
    return f"{process} ({settings}){talks}" if settings else f"{process}{talks}"


def fleet_lines(result: RunResult) -> list[str]:
    """Return the number of replicas over time, and their GPU-hours; empty if the number never changed."""
    pools = pool_lines(result)
    replicas = result.summary["simserve"]["replicas"]
    changes = replicas["timeline"]
    if len(changes) < 2:
        return [*pools, *region_lines(result)]
    pools += region_lines(result)
    lines = [
        f"{number(replicas['mean'])} replicas on average, {count(replicas['peak'])} at most, "
        f"{number(replicas['gpu_hours'])} GPU-hours from launch to the end"
    ]
    # Of changes at the same printed time, the last.
    later = [_moment(row["time_s"]) for row in changes[1:]] + [""]
    changes = [row for row, following in zip(changes, later, strict=True) if _moment(row["time_s"]) != following]
    shown = changes[:_CHANGES_SHOWN]
    steps = [f"{row['ready']} ready of {row['launched']} {_moment(row['time_s'])}" for row in shown]
    more = f", and {counted(len(changes) - len(shown), 'more change')}" if len(changes) > len(shown) else ""
    return [*pools, *lines, f"{', '.join(steps)}{more}", *_event_lines(replicas)]


def _moment(seconds: float) -> str:
    return f"at {format_seconds(seconds)}" if seconds > 0 else "at the start"


def _event_lines(replicas: Mapping[str, Any]) -> list[str]:
    """Return what rolling updates and the liveness probe did to the replicas."""
    lines = [
        f"rolling update from {format_seconds(each['start_s'])} "
        + (f"to {format_seconds(each['end_s'])}" if each["end_s"] is not None else "on, not over when the run was")
        + f": at least {counted(each['fewest_ready'], 'replica')} ready of {count(each['ready_before'])} before"
        for each in replicas["updates"]
    ]
    if replicas["killed"]:
        lines.append(f"the liveness probe restarted a replica {counted(replicas['killed'], 'time')}")
    return lines


def pool_lines(result: RunResult) -> list[str]:
    """Return a line for each pool, and one about the links between them; empty if all replicas are alike."""
    simserve = result.summary["simserve"]
    lines = [
        f"{name} ({each['role']}): {counted(each['replicas'], 'replica')}, {counted(each['gpus'], 'GPU')}; "
        f"busy {share(each['busy'])}, KV {share(each['kv_usage_mean'])} on average and {share(each['kv_usage_peak'])} "
        f"at its peak, {number(each['mean_batch'])} sequences a step{_answered(each)}"
        for name, each in simserve["pools"].items()
    ]
    transfers = simserve["transfers"]
    if transfers["count"]:
        mean = transfers["link_seconds"] / transfers["count"]
        waited = transfers["waited_seconds"] / transfers["count"]
        stalled = format_seconds(transfers["stalled_seconds"])
        lines.append(
            f"{count(transfers['count'])} KV caches handed over, {format_seconds(mean)} on the link each after "
            f"{format_seconds(waited)} of waiting for it; prefill stood still {stalled} in all"
        )
    return lines


def region_lines(result: RunResult) -> list[str]:
    """Return a line for each region of the clients; empty without regions."""
    return [
        f"clients in {name}: {counted(each['requests'], 'request')}, {share(each['served_elsewhere'] or 0.0)} served "
        f"elsewhere; TTFT {number(each['mean_ttft_ms'] or 0.0)} ms on average, "
        f"{number(each['p95_ttft_ms'] or 0.0)} ms p95"
        + ("" if each["attainment"] is None else f"; {share(each['attainment'])} within the SLO")
        for name, each in result.summary["simserve"]["regions"].items()
    ]


def _answered(pool: Mapping[str, Any]) -> str:
    """Return what a pool answered and what it costs, to follow its other figures; empty if it answers no requests."""
    costs = "" if pool["usd_per_hour"] is None else f"; {dollars(pool['usd_per_hour'])} an hour"
    if not pool["requests"]:
        return costs
    met = "" if pool["attainment"] is None else f", {share(pool['attainment'])} within the SLO"
    a_million = pool["usd_per_million_output_tokens"]
    rate = "" if a_million is None or pool["role"] != "both" else f", {dollars(a_million)} a million output tokens"
    return f"; {counted(pool['requests'], 'request')} answered{met}{costs}{rate}"


def stream_lines(result: RunResult) -> list[str]:
    """Return how many events were sent and what they cost; empty if streaming is not simulated."""
    stream = result.summary["simserve"]["streaming"]
    if stream["events"] is None:
        return []
    return [
        f"{count(stream['events'])} events of {number(stream['tokens_per_event'])} tokens; the busiest API server "
        f"works {share(stream['api_server_busy'])} of the time, and an event waits "
        f"{format_seconds((stream['mean_event_delay_ms'] or 0.0) / 1000)} for it"
    ]


def admission_lines(result: RunResult) -> list[str]:
    """Return how many attempts were refused and why, and how many requests were retried; empty without either."""
    simserve = result.summary["simserve"]
    refusals, resent = simserve["rejected"]["refusals"], simserve["requests"]["resent"]
    lines = []
    if refusals:
        reasons = listed([f"{name.replace('_', ' ')} {count(each)}" for name, each in refusals.items()])
        attempts = simserve["requests"]["submitted"] + resent
        lines.append(f"{count(sum(refusals.values()))} of {count(attempts)} attempts refused: {reasons}")
    if resent:
        per_request = 1 + resent / simserve["requests"]["submitted"]
        lines.append(f"clients sent {counted(resent, 'request')} again: {number(per_request, 4)} attempts a request")
    return lines


def gateway_lines(result: RunResult) -> list[str]:
    """Return a line for each mechanism in front of the replicas: cache, API, second answers, fair turns."""
    simserve = result.summary["simserve"]
    return [*_cache_lines(simserve), *_api_lines(simserve), *_second_lines(simserve), *_fairness_lines(simserve)]


def user_lines(result: RunResult) -> list[str]:
    """Return the figures of the users of a scenario; empty if it states no users."""
    users = result.summary["simserve"]["users"]
    if users["users"] is None or users["request_rate"] is None:
        return []
    clients = "" if users["clients"] is None else f"{count(users['clients'])} clients in a closed loop, "
    return [
        f"{count(users['users'])} users: {clients}{number(users['request_rate'])} requests/s; "
        f"{count(round(users['waiting']))} of them ({share(users['waiting_share'])}) wait for an answer at any moment",
        f"each asks {number(users['requests_per_user_hour'])} times an hour, "
        f"{format_seconds(users['pause_s'])} after an answer",
    ]


def _cache_lines(simserve: Mapping[str, Any]) -> list[str]:
    cache = simserve["response_cache"]
    if cache["requests"] is None:
        return []
    by_class = listed([f"{name} {share(each)}" for name, each in cache["by_class"].items()])
    line = f"response cache: {count(cache['requests'])} answers given again, {share(cache['hit_share'])} of all"
    lines = [f"{line} ({by_class})" if by_class else line]
    if cache["asked_first"] or cache["expired"]:
        lines.append(
            f"{count(cache['asked_first'])} requests came before any answer to their question, and "
            f"{count(cache['expired'])} found an answer that had expired: a model answered those"
        )
    return lines


def _api_lines(simserve: Mapping[str, Any]) -> list[str]:
    api = simserve["overflow"]
    if api["requests"] is None:
        return []
    late = "" if api["p95_ttft_ms"] is None else f", p95 TTFT at the client {format_seconds(api['p95_ttft_ms'] / 1000)}"
    limited = f"; {counted(api['limited'], 'call')} met its rate limit (429)" if api["limited"] else ""
    usd = "" if api["usd_per_hour"] is None else f" for {dollars(api['usd_per_hour'])} an hour"
    answered = f"{count(api['requests'])} requests, {share(api['share'])} of all"
    return [f"{api['api']} answered {answered},{usd}{late}{limited}".replace(",,", ",")]


def _second_lines(simserve: Mapping[str, Any]) -> list[str]:
    second = simserve["asked_again"]
    if second["requests"] is None:
        return []
    return [
        f"{counted(second['requests'], 'request')} asked again of a second pool, {share(second['share'])} of all; "
        f"{count(second['discarded_output_tokens'])} tokens of first answers thrown away"
    ]


def _fairness_lines(simserve: Mapping[str, Any]) -> list[str]:
    classes = simserve["fairness"]
    if not classes:
        return []
    parts = [
        f"{name} {share(each['service_share'])}"
        + ("" if each["mean_wait_s"] is None else f" after {format_seconds(each['mean_wait_s'])}")
        for name, each in classes.items()
    ]
    return [f"service by class (prompt tokens and twice the generated ones), and mean wait: {listed(parts)}"]
