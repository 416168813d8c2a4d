"""Turns an engine's ``/metrics`` into a scenario: settings, and the traffic in its counters and histograms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simserve.errors import InputError, UsageError
from simserve.observe.windows import Observed, together
from simserve.planner.importers.draft import Draft, Imported, scenario_name
from simserve.planner.importers.lengths import WORST_DISTANCE, drawn_text, fitted_block, lognormal
from simserve.planner.importers.model_names import find_model
from simserve.planner.one_line import gpu_and_count
from simserve.profiles.catalog import load_model
from simserve.profiles.model_names import KV_CACHE_DTYPES
from simserve.scenario.speculative import MAX_SPECULATIVE_TOKENS

MOST_STEPS = 96  # Most rates over time in a scenario: one per quarter of an hour in a day.
FEWEST_A_STEP = 50  # Fewest requests in a period; with fewer, its rate is mostly chance.
_FEWEST_WINDOWS = 3
_FEWEST_FULL = 5
"""Fewest windows in which an engine was full for its seats to be known; and they are half of those with a queue."""
_AS_MANY, _KV_FREE = 0.995, 0.9
"""Share of the most requests that ever ran which counts as that number, and of KV memory below which it is free."""
_DEFAULT_RATE = 1.0
_MOST_RATE = 1e6
_TRUE = {"true": True, "false": False}


@dataclass(slots=True)
class _Notes:
    told: list[str] = field(default_factory=list)
    derived: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def lines(self) -> tuple[str, ...]:
        """Return the notes, grouped by origin."""
        kinds = {"Reported by the engine": self.told, "Derived": self.derived, "Assumed": self.assumed}
        return tuple(f"{kind}: {note}" for kind, notes in kinds.items() for note in notes)


def import_metrics(
    seen: Observed,
    where: str,
    *,
    gpus: str | None,
    model: str | None = None,
    version: str | None = None,
    stem: str | None = None,
) -> Imported:
    """Return a scenario with the engine and the traffic that metrics show.

    Args:
        where: Name of the metrics in errors and in the scenario.
        gpus: GPUs of an engine, such as ``2xH100``; metrics do not name them.
        model: Profile or config.json; None: from the name that the server reports.
        version: The engine's version; None: not known.
        stem: Prefix of the names of files of lengths; None: no files are written.

    Raises:
        UsageError: No GPU or no model is given.
        InputError: No request was served, or the lengths are not known.
    """
    if gpus is None:
        rule = "is missing: metrics do not say what the engine runs on"
        raise UsageError(rule, key="--gpus", remedy="write --gpus H100")
    gpu, count = gpu_and_count(gpus)
    if model is None and not seen.model:
        raise UsageError("is missing: these metrics do not say what is served", key="--model")
    named = find_model(model or seen.model, where)
    notes = _Notes()
    deployment = _deployment(seen, notes, gpu, count, version)
    drafts = _speculative(seen, notes, has_own_layer=bool(load_model(named.model).num_mtp_layers))
    if drafts is not None:
        deployment["speculative"] = drafts
    if named.quantization is not None:
        deployment["quantization"] = named.quantization
        notes.derived.append(f"the format of the weights, {named.quantization}, from the name of the model.")
    workload, files = _workload(seen, notes, where, stem)
    mapping = {
        "name": scenario_name(f"{_short(named.model)}-as-observed"),
        "model": named.model,
        "deployment": deployment,
        "workload": workload,
    }
    title = f"What does this deployment do under the traffic that {seen.engine} counted?"
    draft = Draft(mapping, notes.lines(), title)
    return Imported(draft, files, _measured(seen))


def _short(model: str) -> str:
    """Return the last part of a repository or path, without the ending of a file that describes a model."""
    name = Path(model).name
    return name.removesuffix(Path(name).suffix) if Path(name).suffix in (".json", ".yaml", ".yml") else name


def _deployment(seen: Observed, notes: _Notes, gpu: str, count: int | None, version: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {"name": seen.engine}
    if version is None:
        notes.assumed.append(f"the newest known version of {seen.engine}: metrics do not say it (--engine-version).")
    else:
        options["version"] = version
    about = seen.about
    reported = []
    for label, key, kind in (
        ("block_size", "block_size", int),
        ("gpu_memory_utilization", "gpu_memory_utilization", float),
        ("num_gpu_blocks", "num_gpu_blocks_override", int),
    ):
        value = _number(about.get(label), kind)
        if value is not None:
            options[key] = value
            reported.append(f"{label} {value:g}")
    if "num_gpu_blocks_override" not in options and seen.engine == "sglang":
        tokens = _number(about.get("max_total_num_tokens"), int)
        if tokens is not None:
            options["block_size"] = 1
            options["num_gpu_blocks_override"] = tokens
            reported.append(f"max_total_num_tokens {tokens:,}")
    caches = _TRUE.get(about.get("enable_prefix_caching", "").lower())
    if caches is not None:
        options["enable_prefix_caching"] = caches
        reported.append(f"enable_prefix_caching {str(caches).lower()}")
    deployment: dict[str, Any] = {"hardware": gpu, "tensor_parallel_size": count or 1, "replicas": seen.num_engines}
    dtype = KV_CACHE_DTYPES.get(about.get("cache_dtype", ""))
    if dtype is not None:
        deployment["kv_cache_dtype"] = dtype
        reported.append(f"cache_dtype {about['cache_dtype']}")
    deployment["engine"] = options
    seats, full = _seats(seen)
    if seats is None:
        notes.assumed.append(
            "max_num_seqs and max_num_batched_tokens as the engine sets them: metrics do not say them."
        )
    else:
        options["max_num_seqs"] = seats
        notes.derived.append(
            f"max_num_seqs {seats:,}: no more ran at once while requests waited and KV memory was not full, in {full} "
            f"of {len(seen.windows)} windows."
        )
    if reported:
        notes.told.append(f"{', '.join(reported)}.")
    how = "as --gpus says" if count else "one GPU an engine: --gpus says no number"
    engines = "1 engine" if seen.num_engines == 1 else f"{seen.num_engines} engines"
    notes.assumed.append(f"{engines} on {count or 1} x {gpu}, {how}.")
    return deployment


def _speculative(seen: Observed, notes: _Notes, *, has_own_layer: bool) -> dict[str, Any] | None:
    """Return how the engine drafts and how many drafts it accepts, by position; None: it counts no drafts.

    Args:
        has_own_layer: Whether the model has layers that predict several tokens.
    """
    counters = seen.whole.counters
    drafts, tokens = counters.get("drafts", 0.0), counters.get("draft_tokens", 0.0)
    if not drafts or not tokens:
        return None
    length = min(max(round(tokens / drafts), 1), MAX_SPECULATIVE_TOKENS)
    if "accepted_at_0" not in counters:
        notes.assumed.append(f"no drafts: {length} a step were counted, and not how many are accepted by position.")
        return None
    shares, most = [], 1.0
    for place in range(length):
        most = min(most, counters.get(f"accepted_at_{place}", 0.0) / drafts)
        shares.append(float(f"{most:.4g}"))
    method, what = ("mtp", "the model's own layer") if has_own_layer else ("eagle", "an EAGLE layer")
    accepted = ", ".join(f"{each:.1%}" for each in shares)
    notes.derived.append(
        f"{length} drafts a step, of which {accepted} are accepted, first to last ({drafts:,.0f} steps)."
    )
    notes.assumed.append(f"{what} drafts: metrics do not say what does (deployment.speculative.method).")
    return {"method": method, "num_speculative_tokens": length, "acceptance_per_position": shares}


def _seats(seen: Observed) -> tuple[int | None, int]:
    """Return the most requests that an engine runs at once, if it was ever full, and in how many windows it was.

    It is full when requests wait although KV memory is free, and no more ever ran.
    """
    gauges = [window.gauges for window in seen.windows]
    if any(each.keys() < {"running", "waiting", "kv_usage"} for each in gauges):
        return None, 0
    most = max((each["running"] for each in gauges), default=0.0)
    queued = [each for each in gauges if each["waiting"] >= seen.num_engines]
    full = [each for each in queued if each["running"] >= _AS_MANY * most and each["kv_usage"] < _KV_FREE]
    if len(full) < max(_FEWEST_FULL, len(queued) / 2):
        return None, 0
    return math.ceil(most / seen.num_engines), len(full)


def _workload(seen: Observed, notes: _Notes, where: str, stem: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    files: dict[str, str] = {}
    workload: dict[str, Any] = {"arrivals": _arrivals(seen, notes)}
    hit = seen.hit_rate
    for name, what in (("prompt_tokens", "prompts"), ("output_tokens", "answers")):
        workload[name] = _lengths(seen, notes, where, name, what, stem, files)
    prompts = seen.whole.histograms.get("prompt_tokens")
    if hit >= 0.005 and prompts is not None and prompts.count:
        shared = int(hit * prompts.mean)
        own = workload["prompt_tokens"]
        if shared >= 1 and own.get("mean", own.get("value", 0)) > shared + 1 and own["distribution"] == "lognormal":
            own["mean"] = float(f"{own['mean'] - shared:.5g}")
            workload["shared_prefix"] = {"num_groups": 1, "tokens": shared}
            notes.assumed.append(
                f"the prefix cache held {hit:.1%} of prompt tokens, as if all prompts began with the same {shared:,} "
                "tokens; who shares what with whom is not told."
            )
        else:
            notes.derived.append(f"the prefix cache held {hit:.1%} of prompt tokens; the scenario does not share any.")
    finished = seen.whole.counters.get("finished", 0.0)
    workload["num_requests"] = int(min(max(finished, 200), 20_000))
    return workload, files


def _arrivals(seen: Observed, notes: _Notes) -> dict[str, Any]:
    rate = seen.rate
    if not 0 < rate <= _MOST_RATE:
        why = "one scrape does not say over which time it counted" if seen.is_single else "nothing arrived"
        notes.assumed.append(f"{_DEFAULT_RATE:g} request a second is a placeholder: {why}.")
        return {"process": "poisson", "rate": _DEFAULT_RATE}
    if seen.is_single:
        notes.derived.append(f"the rate is the mean since the server's start, {seen.whole.seconds:,.0f} s before.")
        return {"process": "poisson", "rate": float(f"{rate:.4g}")}
    steps = _steps(seen)
    changes = [each["rate"] for each in steps]
    expected = rate * seen.whole.seconds / max(len(steps), 1)
    spread = sum((each - rate) ** 2 for each in changes) / rate**2 * expected / max(len(steps) - 1, 1)
    if len(steps) < _FEWEST_WINDOWS or spread < 2.0 or not steps[-1]["rate"]:
        notes.derived.append(f"the rate is the mean over {seen.whole.seconds:,.0f} s; arrivals are taken as Poisson.")
        return {"process": "poisson", "rate": float(f"{rate:.4g}")}
    notes.derived.append(
        f"{len(steps)} rates over {seen.whole.seconds:,.0f} s: they differ {spread:.3g} times as much as chance would "
        "have it. Arrivals are taken as Poisson within each; the last goes on."
    )
    return {"process": "steps", "steps": steps}


def _steps(seen: Observed) -> list[dict[str, Any]]:
    """Return rates over periods of equal length with enough requests in each."""
    whole = seen.whole
    most = min(MOST_STEPS, len(seen.windows), int(whole.arrivals / FEWEST_A_STEP))
    if most < 1:
        return []
    found = []
    length = whole.seconds / most
    part = []
    for window in seen.windows:
        part.append(window)
        if window.end - part[0].start >= length * (1 - 1e-9) or window is seen.windows[-1]:
            joined = together(part)
            rate = float(f"{joined.arrivals / joined.seconds:.4g}")
            found.append({"rate": rate, "duration": f"{joined.seconds:.6g} s"})
            part = []
    return found


def _lengths(
    seen: Observed, notes: _Notes, where: str, name: str, what: str, stem: str | None, files: dict[str, str]
) -> dict[str, Any]:
    counts = seen.whole.histograms.get(name)
    if counts is None or not counts.count or not math.isfinite(counts.mean):
        tokens = seen.whole.counters.get("prompt" if name == "prompt_tokens" else "generated", 0.0)
        finished = seen.whole.counters.get("finished", 0.0)
        if not tokens or not finished:
            rule = f"does not say how long {what} are: no request was counted"
            raise InputError(rule, file=where, remedy="scrape a server that has served some")
        mean = max(tokens / finished, 1.0)
        notes.assumed.append(f"{what} have the mean {mean:,.4g} tokens that counters tell, and a cv of 1.")
        return lognormal(float(f"{mean:.5g}"), 1.0, int(20 * mean) + 2)
    block, distance = fitted_block(counts)
    if distance > WORST_DISTANCE and stem is not None:
        file = f"{stem}.{name}.csv"
        files[file] = drawn_text(counts, name)
        notes.derived.append(f"no lognormal is near the {what} ({distance:.0%} off): they are drawn from {file}.")
        return {"distribution": "empirical", "path": file, "column": name}
    off = f"by at most {distance:.1%} of its {counts.count:,.0f} requests"
    kind = "one length" if block["distribution"] == "fixed" else "a lognormal distribution"
    beyond = "; --out writes the histogram itself" if distance > WORST_DISTANCE else ""
    notes.derived.append(
        f"{what} of {counts.mean:,.5g} tokens in the mean, as {kind} that is off the histogram {off}{beyond}."
    )
    return block


def _measured(seen: Observed) -> dict[str, float]:
    whole = seen.whole
    figures: dict[str, float] = {
        "rate": seen.rate,
        "seconds": whole.seconds,
        "prefix_hit_rate": seen.hit_rate,
        "preemptions": whole.counters.get("preemptions", math.nan),
        **{name: whole.gauges[name] for name in ("running", "waiting", "kv_usage") if name in whole.gauges},
    }
    figures |= {
        f"mean_{name}_ms": counts.mean * 1e3
        for name, counts in whole.histograms.items()
        if name in ("ttft", "itl", "tpot", "e2e")
    }
    figures |= {"resets": seen.num_resets, "refused_figures": seen.num_refused}
    return figures


def _number(text: str | None, kind: type[int] | type[float]) -> int | float | None:
    """Return a label as a number above 0; None: it is not one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    if not 0 < value < 1e15:
        return None
    return int(value) if kind is int else value
