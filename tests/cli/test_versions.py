"""A version of an engine that is not known: every command says first whose defaults stand in."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Simserve

_UNKNOWN = ("--set", "deployment.engine.version=0.99")
_NOTE = "vllm 0.99: defaults of 0.33, the nearest older known"


@pytest.mark.parametrize("name", ["run", "memory"])
def test_an_answer_begins_with_a_version_that_is_not_known(simserve: Simserve, small: str, name: str) -> None:
    """Before anything else on stdout; on stderr beside JSON, which stays JSON."""
    told = simserve(name, small, *_UNKNOWN)
    beside = simserve(name, small, *_UNKNOWN, "--json")
    assert told.stdout.splitlines()[0] == _NOTE
    assert beside.stderr.splitlines() == [_NOTE]
    assert json.loads(beside.stdout)


def test_a_known_version_is_not_spoken_of(simserve: Simserve, small: str) -> None:
    """Nor is a patch release of one."""
    for version in ("0.33", "0.19.1"):
        outcome = simserve("memory", small, "--set", f"deployment.engine.version={version}")

        assert "defaults of" not in outcome.stdout


def test_a_result_holds_the_note(simserve: Simserve, small: str) -> None:
    """For pages and for whoever reads the JSON."""
    result = json.loads(simserve("run", small, *_UNKNOWN, "--json").stdout)

    engine = result["simserve"]["engine_resolved"]
    assert _NOTE in engine["notes"]
    assert engine["sources"]["version"] == "defaults of 0.33, the nearest older known"
