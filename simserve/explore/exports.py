"""The content of each tab as a scenario for `simserve run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simserve.errors import InputError
from simserve.explore import money
from simserve.explore.batching import way_mapping
from simserve.explore.queries import (
    BatchingQuery,
    Check,
    DeploymentQuery,
    MemoryQuery,
    PagingQuery,
    ParallelQuery,
    SpeculationQuery,
    TourQuery,
    WizardQuery,
    fixed,
    lognormal,
    scenario_of,
)
from simserve.explore.tour import STOPS
from simserve.explore.tradeoffs import best_layout
from simserve.metrics.files import scenario_text
from simserve.scenario.load import from_mapping
from simserve.validation import FrozenModel
from simserve.version import __version__

Export = Callable[[Any, Check], tuple[str, dict[str, Any]]]
_ANSWER = 128  # Tokens of an answer short enough for a sequence to stay near the length asked for.


def export(question: str, query: FrozenModel, check: Check) -> str:
    """Return the text of a scenario file for a question of the page, with instructions at the top.

    Raises:
        InputError: The question is not a valid scenario.
        TooLongError: It took too long.
    """
    words, mapping = EXPORTS[question](query, check)
    from_mapping(mapping)
    return f"# {words}\n# Made with simserve explore {__version__}.\n{scenario_text(mapping)}"


def _tour(query: TourQuery, check: Check) -> tuple[str, dict[str, Any]]:
    stop = next(each for each in STOPS if each.id == query.stop)
    asked: dict[str, type[FrozenModel]] = {
        **dict.fromkeys(("memory-wall", "kv-growth"), MemoryQuery),
        "batching": BatchingQuery,
        "paging": PagingQuery,
        "parallel": ParallelQuery,
        "wizard": WizardQuery,
    }
    return EXPORTS[stop.tab](asked[stop.tab](**stop.values), check)


def _step(query: MemoryQuery, _check: Check) -> tuple[str, dict[str, Any]]:
    if query.billion_parameters:
        rule = "is a free size, which no scenario file has; set it to 0 and choose a model"
        raise InputError(rule, key="billion_parameters", value=query.billion_parameters)
    return (
        "A batch of sequences of about this length, kept full. simserve run explore.yaml; simserve memory explore.yaml",
        _kept_full(query, query.batch, query.context_tokens),
    )


def _speculation(query: SpeculationQuery, _check: Check) -> tuple[str, dict[str, Any]]:
    drafts = {
        "method": "eagle",
        "num_speculative_tokens": query.num_speculative_tokens,
        "acceptance_rate": query.acceptance_rate,
    }
    return (
        "One request at a time with drafts; --set deployment.speculative=null runs it without.",
        _kept_full(query, 1, query.context_tokens, speculative=drafts),
    )


def _parallel(query: ParallelQuery, _check: Check) -> tuple[str, dict[str, Any]]:
    layout = best_layout(query)
    if layout is None:
        raise InputError("does not fit these GPUs in any layout", key="model", value=query.model)
    return (
        "The layout with the most tokens a second, its batches kept full. simserve run explore.yaml",
        _kept_full(query, query.batch * layout["replicas"], query.context_tokens, **layout),
    )


def _kept_full(query: DeploymentQuery, sequences: int, context: int, **deployment: Any) -> dict[str, Any]:
    """Return a closed loop of ``sequences`` sequences, whose mean length while they decode is about ``context``."""
    answer = min(_ANSWER, max(context - 1, 1))
    prompt = max(context - answer // 2, 1)
    engine = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    asked = {**query.deployment(engine), **deployment}
    asked["engine"]["max_model_len"] = max(query.max_model_len, prompt + answer)
    arrivals = {"process": "closed_loop", "concurrency": sequences}
    return scenario_of(query.model, asked, arrivals, (fixed(prompt), fixed(answer)), 4 * sequences)


def _batching(query: BatchingQuery, _check: Check) -> tuple[str, dict[str, Any]]:
    lengths = np.array(query.lengths, dtype=np.float64)
    spread = float(lengths.std() / lengths.mean())
    is_spread = spread > 0 and lengths.max() > lengths.mean() + 1
    answers = lognormal(float(lengths.mean()), spread, int(lengths.max())) if is_spread else fixed(int(lengths[0]))
    engine = {"name": "vllm", "max_model_len": 2048, "batching": "static", "static_batch_size": query.slots}
    deployment = {"hardware": "a100-sxm-80gb", "engine": {**engine, "max_num_seqs": query.slots}}
    return (
        "Static batches of answers spread like these; --set deployment.engine.batching=continuous runs the other form.",
        scenario_of(
            "llama-2-7b", deployment, {"process": "all_at_once"}, (fixed(1), answers), max(200, len(query.lengths))
        ),
    )


def _wizard(query: WizardQuery, _check: Check) -> tuple[str, dict[str, Any]]:
    asked = f"simserve plan explore.yaml --hardware {','.join(query.hardware)}"
    if query.keep:
        asked += f" --keep {','.join(query.keep)}"
    if query.is_scaled:
        asked += " --autoscaler --out best.yaml"
    if query.throughput:
        question = "How much can these GPUs do?"
        return f"{question} {asked} --objective throughput --max-gpus {query.max_gpus}", query.mapping()
    return f"What should be deployed for this traffic? {asked}", query.mapping()


_RUN = "What does this deployment do under this traffic? simserve run explore.yaml"
_PAGED = "Paged KV memory; --set deployment.engine.kv_allocation=static reserves the longest sequence for each request."
_PRICED = "One replica, kept full, at this price. simserve run explore.yaml; simserve cost for the month"
EXPORTS: Mapping[str, Export] = {
    "tour": _tour,
    **dict.fromkeys(("simulator", "load", "film"), lambda query, _check: (_RUN, query.mapping())),
    **dict.fromkeys(("memory-wall", "kv-growth", "attention", "quantization"), _step),
    "batching": _batching,
    "paging": lambda query, _check: (_PAGED, way_mapping(query, "paged")),
    "speculation": _speculation,
    "parallel": _parallel,
    "cost": lambda query, check: (_PRICED, money.chosen_replica(query, check)),
    "wizard": _wizard,
}
