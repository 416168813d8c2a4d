"""The page on speculative decoding: fitted and predicted acceptance, and speed-ups at batch 1 next to measured ones.

    python -m calibration.laboratory.fits.speculation_report FOLDER > calibration/speculation.md

FOLDER holds ``specdec_inferencex_golden_al.csv`` and ``specdec_specbench.csv``.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from calibration.laboratory.fits.speculation_fit import (
    FITTED_UP_TO,
    Series,
    fit_acceptance,
    fit_independent,
    read_lengths,
)
from simserve.perf.shape import ReplicaShape, Speculation, SpeculativeMethod
from simserve.perf.speculation import decode_speedup, draft_shape, layer_shape
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from simserve.profiles.engine import load_engine, resolve_engine
from simserve.profiles.engine_options import EngineOptions
from simserve.profiles.hardware import load_hardware
from simserve.profiles.model import ModelProfile

EAGER_SECONDS_PER_LAYER = 20e-3 / 32
"""Time to launch a layer's kernels from Python: at least 20 ms for eager launches of a 32-layer model
(engine_profiles/transformers.yaml)."""
CONTEXT_TOKENS = 400
"""Mean tokens in the KV cache: Spec-Bench prompts of some hundred tokens, answers of up to 1,024."""

_SPECBENCH = "specdec_specbench.csv"
_TARGETS = {"Vicuna-7B-v1.3": "llama-2-7b", "Vicuna-13B-v1.3": "llama-2-13b", "Vicuna-33B-v1.3": None}
_ACCEPTED, _OVERALL = "#Mean Accepted Tokens", "Overall"


@dataclass(frozen=True, slots=True)
class Drafter:
    """A method of Spec-Bench that the simulator can run as a chain of drafts.

    Attributes:
        method: Name in a scenario.
        num_speculative_tokens: Longest chain that it drafts.
    """

    method: SpeculativeMethod
    num_speculative_tokens: int


_DRAFTERS = {
    "PLD": Drafter("ngram", 10),
    "SpS": Drafter("draft_model", 5),
    "EAGLE": Drafter("eagle", 5),
    "EAGLE2": Drafter("eagle", 6),
    "EAGLE3": Drafter("eagle", 8),
}
"""Spec-Bench's settings: prompt look-up of 10 tokens, vicuna-68m drafting 5, trees of depth 5, 6 and 8."""


def length_rows(series: list[Series]) -> Iterator[str]:
    """Yield one row per series: both fits, and the errors at each number of drafts left out."""
    for each in series:
        decaying, independent = fit_acceptance(each.fitted), fit_independent(each.fitted)
        ours, theirs = each.errors(decaying), each.errors(independent)
        mode = "on" if each.thinking else "off"
        cells = [each.model, each.method, mode, f"{decaying.rate:.3f}", f"{decaying.decay:.3f}"]
        cells += [f"{error:+.1%}" for error in ours.values()]
        cells += [f"{independent.rate:.3f}", f"{max(map(abs, theirs.values())):.1%}"]
        yield _row(cells)


def length_errors(series: list[Series]) -> tuple[np.ndarray, np.ndarray]:
    """Return the absolute errors of both fits over all predicted lengths: with decay, and of independent drafts."""
    both = [
        [abs(error) for each in series for error in each.errors(fit(each.fitted)).values()]
        for fit in (fit_acceptance, fit_independent)
    ]
    return np.array(both[0]), np.array(both[1])


def length_summary(folder: Path) -> dict[str, float | int]:
    """Return how well fits to few drafts predict more: with a decay, and with independent drafts.

    Returns:
        ``fitted_up_to series points median largest independent_median independent_largest``; errors are shares,
        absolute.

    Raises:
        OSError: The table is not in ``folder``.
    """
    series = read_lengths(folder)
    ours, theirs = length_errors(series)
    return {
        "fitted_up_to": FITTED_UP_TO,
        "series": len(series),
        "points": len(ours),
        "median": float(np.median(ours)),
        "largest": float(ours.max()),
        "independent_median": float(np.median(theirs)),
        "independent_largest": float(theirs.max()),
    }


def speedup_rows(folder: Path) -> Iterator[str]:
    """Yield one row per model and method: measured and simulated wall-clock speed-up of one sequence."""
    import pandas as pd

    table = pd.read_csv(folder / _SPECBENCH)
    for (model, method), rows in table.groupby(["target_model", "method"], sort=False):
        values = dict(zip(rows["task"], rows["value"], strict=True))
        if method not in _DRAFTERS or model not in _TARGETS:
            continue
        accepted, measured = float(values[_ACCEPTED]), float(values[_OVERALL])
        simulated = [
            simulated_speedup(target_of(str(model)), _DRAFTERS[str(method)], accepted, is_eager=is_eager)
            for is_eager in (True, False)
        ]
        cells = [str(model), str(method), f"{accepted:.2f}", f"{measured:.2f}"]
        cells += [cell for each in simulated for cell in (f"{each:.2f}", f"{each / measured - 1:+.0%}")]
        yield _row(cells)


def target_of(name: str) -> ModelProfile:
    """Return a Vicuna: a Llama of the first generation, whose 7B and 13B have the shapes of the second."""
    profile = _TARGETS[name]
    if profile is not None:
        return load_model(profile)
    wide = {"hidden_size": 6656, "num_hidden_layers": 60, "num_attention_heads": 52, "num_key_value_heads": 52}
    return load_model("llama-2-13b").model_copy(update={"name": "llama-33b", "intermediate_size": 17920, **wide})


def small_draft() -> ModelProfile:
    """Return vicuna-68m (config.json of double7/vicuna-68m): two layers of width 768."""
    narrow = {"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12, "num_key_value_heads": 12}
    changes = {"name": "vicuna-68m", "head_dim": 64, "intermediate_size": 3072, **narrow}
    return load_model("llama-2-7b").model_copy(update=changes)


def simulated_speedup(model: ModelProfile, drafter: Drafter, tokens: float, *, is_eager: bool) -> float:
    """Return the simulated speed-up of decoding one sequence on an A100 with ``tokens`` per step.

    Args:
        model: The target, FP16.
        drafter: The drafter.
        tokens: Measured tokens per step.
        is_eager: Whether Python launches every kernel, as in Spec-Bench, or CUDA graphs, as in servers.
    """
    plain = _replica(model, is_eager=is_eager)
    draft = None
    if drafter.method == "draft_model":
        draft = draft_shape(plain, small_draft(), "none", 1)
    elif drafter.method == "eagle":
        draft = layer_shape(plain, "none", is_dense=True)
    speculation = Speculation(method=drafter.method, num_speculative_tokens=drafter.num_speculative_tokens, draft=draft)
    priced = price(replace(plain, speculation=speculation))
    return float(decode_speedup(priced, price(plain), tokens, np.ones(1), CONTEXT_TOKENS)[0])


def _replica(model: ModelProfile, *, is_eager: bool) -> ReplicaShape:
    hardware = load_hardware("a100-sxm-80gb")
    engine = resolve_engine(
        load_engine("vllm"),
        version="0.12",
        gpu_memory_bytes=hardware.memory.total,
        gpu_name=hardware.name,
        model_max_len=model.max_position_embeddings,
        options=EngineOptions(max_num_seqs=8),
    )
    if is_eager:
        without_graphs = {
            "cuda_graph_sizes": (),
            "cuda_graph_max_batch": 0,
            "cuda_graph_max_prompt_tokens": 0,
            "eager_seconds_per_layer": EAGER_SECONDS_PER_LAYER,
        }
        engine = engine.model_copy(update=without_graphs)
    return ReplicaShape(hardware=hardware, model=model, engine=engine)


def page(folder: Path, date: datetime.date) -> str:
    """Return the whole page."""
    series = read_lengths(folder)
    lengths = ("model", "drafts by", "thinking", "rate", "decay", "k=4", "k=5", "k=6", "k=7", "k=8")
    speedups = ("target", "method", "tokens a step", "measured", "eager", "error", "CUDA graphs", "error")
    lines = [
        _introduction(date, series),
        *_header(*lengths, "one rate", "its largest error"),
        *length_rows(series),
        "",
        _speedup_introduction(),
        *_header(*speedups),
        *speedup_rows(folder),
    ]
    return "\n".join(lines) + "\n"


def _introduction(date: datetime.date, series: list[Series]) -> str:
    ours, theirs = length_errors(series)
    falling = sum(any(later < earlier for earlier, later in pairwise(each.lengths.values())) for each in series)
    return f"""\
# Speculative decoding: acceptance and speed-up against measurements

{date.isoformat()}. Written by `python -m calibration.laboratory.fits.speculation_report FOLDER`.

## Acceptance by number of drafts

Mean acceptance lengths of {len(series)} pairs of model and drafter (InferenceX golden_al_distribution, commit 843c6254;
SPEED-Bench Qualitative coding, B300, vLLM). Draft i is accepted, given that all before it were, with probability
`rate * decay ** (i - 1)`: scenario keys `acceptance_rate` and `acceptance_decay`. Both are fitted to k = 1 to
{FITTED_UP_TO}, and k = 4 to 8 are predicted: signed errors of the acceptance length. The last two columns: one rate for
all positions (independent drafts), fitted to the same lengths, and its largest error.

Over {len(ours)} predicted lengths: median error {np.median(ours):.1%}, largest {ours.max():.1%}; independent drafts
{np.median(theirs):.1%} and {theirs.max():.1%}.

The form and the measure of the fit (relative errors) were chosen with these errors in view: with absolute ones the
largest is 16.1 %. In {falling} series some length falls with one draft more, so the source has noise of its own, which
no form with one decay follows.
"""


def _speedup_introduction() -> str:
    return f"""\
## Speed-up of one sequence

Spec-Bench leaderboard (commit fd2c1cd7d220; A100 80 GB, FP16, greedy, batch 1): wall-clock speed-up over decoding
token by token, all tasks. Simulated with the measured tokens a step, so only seconds are tested, of the methods that a
chain of drafts describes, at {CONTEXT_TOKENS} tokens of context. Eager: Python launches every kernel, as in
Spec-Bench's PyTorch code, {EAGER_SECONDS_PER_LAYER * 1e3:.3g} ms a layer at least. CUDA graphs: what a server would
see. No constant was fitted to these rows.

What is worst: EAGLE comes out too fast by a quarter to a half. It drafts and verifies a tree there (26 to 61 tokens),
which Python builds, sorts and checks in every step; here it is a chain, and none of that is counted.
"""


def _header(*titles: str) -> list[str]:
    return [_row(list(titles)), _row(["---"] * len(titles))]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> None:
    """Print the page."""
    print(page(Path(arguments[0]), datetime.date.today()), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
