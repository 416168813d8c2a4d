"""Results of SGLang's bench_serving: JSON lines, one run per line.

Definitions (python/sglang/bench_serving.py, ``calculate_metrics``): TPOT is ``(latency - ttft) / (output_len - 1)`` of
each request; ITL pools the gaps between chunks, which contain several tokens with speculative decoding
(``accept_length`` above 1). E2E is under ``e2e_latency``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.workload.benchmarks.result import BenchResult
from simserve.workload.benchmarks.vllm import arrivals_of, load_notes, server_of, share_at, summary_figures
from simserve.workload.fields import Fields

DEFINITIONS = {
    "ttft": "ttft_ms: first chunk - send",
    "tpot": "tpot_ms: (latency - ttft) / (output tokens - 1) a request",
    "itl": "itl_ms: gaps between chunks, pooled over requests",
    "e2e": "e2e_latency_ms: last chunk - send",
}
_KEYS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e_latency": "e2e"}


def is_sglang(result: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a result of SGLang's benchmark."""
    return "completed" in result and "mean_e2e_latency_ms" in result


def read_sglang(fields: Fields, label: str) -> BenchResult:
    """Return one result.

    Raises:
        TraceError: A key is missing or wrong.
    """
    num_requests = fields.count("completed")
    keys = dict(_KEYS)
    if fields.values.get("request_rate") == "trace":
        raise fields.error("request_rate", "holds no rate", "replay the trace as the scenario's workload instead")
    arrivals = arrivals_of(fields)
    notes = load_notes(fields, arrivals)
    accepted = fields.optional("accept_length")
    if accepted is not None and accepted > 1.0:
        del keys["itl"]
        notes.append(f"ITL is between chunks of {accepted:.2f} tokens (speculative decoding): left out")
    prompts, outputs = _lengths(fields, num_requests)
    return BenchResult(
        label=label,
        file=fields.file,
        tool="SGLang bench_serving",
        arrivals=arrivals,
        num_requests=num_requests,
        prompt_tokens=prompts,
        output_tokens=outputs,
        measured=summary_figures(fields, keys),
        definitions=DEFINITIONS,
        notes=notes,
        length_range=_length_range(fields),
        **server_of(fields),
    )


def _length_range(fields: Fields) -> tuple[float, float] | None:
    """Return the bounds of random lengths over their mean: they lie between the ratio times the longest, and that."""
    if not fields.text("dataset_name").startswith("random") or "random_range_ratio" not in fields:
        return None
    ratio = share_at(fields, "random_range_ratio")
    return 2.0 * ratio / (1.0 + ratio), 2.0 / (1.0 + ratio)


def _lengths(fields: Fields, num_requests: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if "input_lens" in fields and "output_lens" in fields:
        prompts, outputs = fields.numbers("input_lens"), fields.numbers("output_lens")
        if len(prompts) != len(outputs):
            raise fields.error("input_lens", f"holds {len(prompts)} requests, output_lens {len(outputs)}")
        served = (outputs >= 1) & (prompts >= 1)
        if int(served.sum()) == num_requests:
            return prompts[served], outputs[served]
    totals = [fields.number(key, "tokens") for key in ("total_input_tokens", "total_output_tokens")]
    return np.array([totals[0] / num_requests]), np.array([totals[1] / num_requests])
