"""`simserve frameworks`: the table, the ratios with their sources, and JSON alone on stdout."""

from __future__ import annotations

import json

from tests.cli.conftest import Simserve

_FEW = ("--set", "workload.num_requests=60")


def test_the_answer_comes_first(simserve: Simserve) -> None:
    """How many published ratios are met, then the frameworks, then why."""
    outcome = simserve("frameworks", *_FEW)

    assert outcome.code == 0
    assert "of 5 published ratios are met by llama-2-13b" in outcome.stdout.splitlines()[0]
    assert "useful tokens a step against" in " ".join(outcome.stdout.split())


def test_json_is_one_object(simserve: Simserve) -> None:
    """With every framework and ratio."""
    outcome = simserve("frameworks", *_FEW, "--json")

    found = json.loads(outcome.stdout)
    assert len(found["frameworks"]) == 9
    assert len(found["ratios"]) == 5


def test_what_does_not_fit_ends_with_3(simserve: Simserve) -> None:
    """70 B on 40 GB: one line, no traceback."""
    outcome = simserve("frameworks", *_FEW, "--set", "model=llama-2-70b")

    assert outcome.code == 3
    assert "does not fit" in outcome.error_line
