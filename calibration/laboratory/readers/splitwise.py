"""Splitwise: batches of equal requests, with the time of their prompt phase and of a token."""

from __future__ import annotations

from pathlib import Path

from calibration.laboratory.protocol import Protocol
from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import hardware_name, model_name
from calibration.laboratory.readers.table import Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import COMPUTED, MeasuredPoint, Metric

SPLITWISE_VERSION = "0.2.1"
"""The release nearest to the vLLM of autumn 2023 that Splitwise forked: its paper is from November 2023, and CUDA
graphs came with 0.2.6 in December."""

CLOSURE_TOLERANCE = 0.10
"""Share by which E2E may differ from the sum of its parts."""

_CLOSURE: tuple[Metric, ...] = ("ttft", "tpot", "e2e")


def read_splitwise(folder: Path) -> list[MeasuredPoint]:
    """Return Splitwise's iteration times: the prompt phase of the whole batch, and a token after it."""
    return [_splitwise_point(row) for row in read_rows(folder / "splitwise_iteration_times.csv")]


def _splitwise_point(row: Row) -> MeasuredPoint:
    prompt, output, batch = row.count("isl", 1), row.count("osl", 1), row.count("load_value", 1)
    deployed = blocks.deployment(
        hardware_name(row.text("hardware")),
        engine={
            "name": "vllm",
            "version": SPLITWISE_VERSION,
            "max_num_seqs": batch,
            "max_num_batched_tokens": max(batch * prompt, prompt + output),
            "max_model_len": prompt + output,
        },
        tensor_parallel_size=row.count("tp", 1),
    )
    workload = build.all_at_once(batch, build.fixed(prompt), build.fixed(output))
    model = model_name(row.text("model"))
    measured = row.latencies("ttft", "tpot", "e2e")
    return MeasuredPoint(
        source="splitwise_iterations",
        label=row.label,
        engine="vllm",
        version=SPLITWISE_VERSION,
        hardware=hardware_name(row.text("hardware")),
        model=model,
        load_kind="batch",
        load=batch,
        scenario=build.scenario(row.label, model, deployed, workload),
        measured=measured,
        shown_only=_contradicted(measured, output),
        protocol=Protocol(is_server_side=True, is_batch_time=True),
        reason=COMPUTED if row.text("hardware").endswith("-pcap") else "",
    )


def _contradicted(measured: dict[Metric, float], output: int) -> frozenset[Metric]:
    """Return the figures of a row whose E2E is not TTFT + (tokens - 1) TPOT.

    A shorter E2E means that answers ended before their nominal length; a longer one that the batch ran in several
    parts, of which TTFT is the first's.
    """
    if len(measured) < len(_CLOSURE):
        return frozenset()
    ratio = measured["e2e"] / (measured["ttft"] + (output - 1) * measured["tpot"])
    if ratio > 1 + CLOSURE_TOLERANCE:
        return frozenset(_CLOSURE)
    return frozenset({"e2e"}) if ratio < 1 - CLOSURE_TOLERANCE else frozenset()
