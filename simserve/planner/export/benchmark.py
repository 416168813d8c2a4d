"""The script that measures a deployed endpoint with the scenario's traffic, and compares it with what was promised."""

from __future__ import annotations

import math
import shlex

from simserve.documents import yaml_text
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import ClosedLoopArrivals, ConstantArrivals, GammaArrivals, PoissonArrivals
from simserve.workload.generate import generate

_CONSTANT_BURSTINESS = 1e4  # Burstiness of vLLM's client, 1/cv^2, at which its gamma times are practically constant.
_MOST_RATIO = 0.99  # Largest `--random-range-ratio`, which must stay below 1.
_TOLERANCE = "25%"
_UNSENT = ("images", "audio", "structured_output")
"""Blocks of a workload that the client's random prompts cannot include."""
SCRIPT = "benchmark.sh"
JUDGED_BY = "benchmark.scenario.yaml"


def benchmark_files(
    scenario: Scenario, checkpoint: str, *, served_name: str | None = None, port: int = 8000
) -> dict[str, str]:
    """Return the script, and the scenario with which its results are compared.

    vLLM's client sends random prompts at the scenario's rate, or from as many clients, with the scenario's mean
    lengths, uniformly spread as widely as the scenario's prompts. Traffic that the client cannot send (traces,
    conversations, rates that change) is measured by `simserve observe` at a few loads with those lengths. ``URL`` is
    the address of the server, ``TOLERANCE`` how much slower than promised it may be. Images, audio and schemas are left
    out of both files.

    Args:
        scenario: What was simulated.
        checkpoint: Repository or path of the model, whose tokenizer the client uses.
        served_name: Name under which the server knows it; None: the same.
        port: Port of the server on this host, for which ``URL`` stands unless it is given.

    Raises:
        InputError: The traffic cannot be drawn.
    """
    unsent = [name for name in _UNSENT if getattr(scenario.workload, name) is not None]
    if unsent:
        text = scenario.workload.model_copy(update=dict.fromkeys(unsent))
        scenario = scenario.model_copy(update={"workload": text})
    specs = generate(scenario.workload, seed=scenario.run.seed, base_path=scenario.folder)
    prompt, output = float(specs.prompt_tokens.mean()), float(specs.output_tokens.mean())
    load, measured = _load_words(scenario), "measured.json"
    if load is None:
        measured = "measured/*.json"
        words = [
            *("simserve", "observe", "$URL", "--out", "measured", "--budget", "5min", "--force"),
            *("--prompt-tokens", f"{max(prompt, 4):.0f}", "--output-tokens", f"{max(output, 4):.0f}"),
        ]
    else:
        spread = float(specs.prompt_tokens.std() / specs.prompt_tokens.mean())
        ratio = min(math.sqrt(3.0) * spread, _MOST_RATIO)
        words = [
            *("vllm", "bench", "serve", "--base-url", "$URL", "--model", checkpoint),
            *(() if served_name is None else ("--served-model-name", served_name)),
            *("--dataset-name", "random"),
            *("--random-input-len", f"{prompt:.0f}", "--random-output-len", f"{output:.0f}"),
            *("--random-range-ratio", f"{ratio:.2f}", "--ignore-eos", "--num-prompts", f"{len(specs)}", *load),
            *("--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-filename", measured),
        ]
    check = f"simserve calibrate check {shlex.quote(scenario.deployment.engine.name)}"
    each = f'set --\nfor file in {measured}; do set -- "$@" --against "$file"; done\n'
    without = f"# Text alone is sent, and judged: without the scenario's {' and '.join(unsent)}.\n" if unsent else ""
    script = (
        "#!/bin/sh\n# Sends the traffic that was simulated to a server; exit 99 where it is slower than promised by "
        f'more than TOLERANCE.\n{without}set -eu\ncd "$(dirname "$0")"\nURL=${{URL:-http://localhost:{port}}}\n{_joined(words)}\n{each}'
        f'{check} "$@" --scenario {JUDGED_BY} --may-be-faster '
        f'--tolerance "${{TOLERANCE:-{_TOLERANCE}}}"\n'
    )
    return {SCRIPT: script, JUDGED_BY: yaml_text(scenario.as_mapping(), width=110)}


def _load_words(scenario: Scenario) -> list[str] | None:
    """Return the client's flags for the arrivals; None where it cannot send them."""
    workload = scenario.workload
    if workload.trace is not None or workload.classes or workload.has_sessions or workload.has_shared_prefix:
        return None
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoopArrivals):
        is_plain = arrivals.concurrency is not None and not arrivals.think_time
        return ["--request-rate", "inf", "--max-concurrency", f"{arrivals.concurrency}"] if is_plain else None
    if isinstance(arrivals, PoissonArrivals):
        return ["--request-rate", f"{arrivals.rate:g}"]
    if isinstance(arrivals, GammaArrivals | ConstantArrivals):
        burstiness = arrivals.cv**-2 if isinstance(arrivals, GammaArrivals) else _CONSTANT_BURSTINESS
        return ["--request-rate", f"{arrivals.rate:g}", "--burstiness", f"{burstiness:g}"]
    return None


def _joined(words: list[str]) -> str:
    """Return a command quoted for a shell, except for the script's own variables."""
    return " ".join(f'"{word}"' if word.startswith("$") else shlex.quote(word) for word in words)
