"""What preemption costs, and the turning point named from one run."""

from __future__ import annotations

import re
from dataclasses import replace

from simserve import api
from simserve.metrics.throughput import requests_in_kv
from simserve.report.preemption import preemption_statement, seats_points
from tests.report.builders import run


def test_a_run_without_preemption_computes_nothing_again() -> None:
    """There is nothing to say then."""
    assert preemption_statement(run("stable")) is None


def test_what_is_computed_again_is_what_was_prefilled_beyond_the_prompts() -> None:
    """Every preempted request had a prompt to prefill again, and at most a full-length request."""
    result = run("preempting")

    statement = preemption_statement(result)

    assert statement is not None
    found = re.search(r"([\d,]+) preemptions?; ([\d,]+) tokens were computed again", statement)
    assert found is not None
    preemptions, tokens = (int(each.replace(",", "")) for each in found.groups())
    assert preemptions == result.summary["simserve"]["kv"]["preemptions"] > 0
    assert 64 * preemptions <= tokens <= 2048 * preemptions


def test_an_interrupted_run_cannot_tell() -> None:
    """Prompts that were cut short would count as computed again."""
    result = run("preempting")

    cut_short = replace(result, simulation=replace(result.simulation, was_interrupted=True))

    assert preemption_statement(cut_short) is None


def test_the_turning_point_lies_where_kv_memory_is_full() -> None:
    """A run with few seats tells how many requests KV memory would hold; with more, requests are preempted."""
    few = api.run(api.load("batch-size-sweet-spot", ["workload.num_requests=200", "deployment.engine.max_num_seqs=8"]))
    room = requests_in_kv(few.simulation)
    assert room is not None
    below, above = round(room / 2), round(1.5 * room)

    costs = [
        api.run(
            api.load("batch-size-sweet-spot", ["workload.num_requests=200", f"deployment.engine.max_num_seqs={seats}"])
        ).summary["simserve"]["kv"]["preemptions"]
        for seats in (below, above)
    ]

    assert costs[0] == 0 < costs[1]


def test_the_statement_names_the_turning_point() -> None:
    """The best batch of the short runs is named, and what this run's batch gives beside it."""
    result = run("preempting")
    curve = result.summary["simserve"]["bottleneck"]["seats_curve"]

    statement = preemption_statement(result)

    assert statement is not None
    assert f"output is highest at max_num_seqs {curve['best_max_num_seqs']}" in statement
    assert seats_points(run("stable")) == []
