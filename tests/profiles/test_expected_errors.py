"""Expected errors: classes, bands, and what a result says without them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ProfileError
from simserve.profiles.expected_errors import (
    UNVALIDATED,
    ExpectedErrors,
    band_of,
    expected_error,
    generation_of,
    load_expected_errors,
)


def shares(p50: float, points: int = 20) -> dict[str, Any]:
    """Return the errors of a metric."""
    return {"p50": p50, "p90": 2 * p50, "points": points}


def error_class(concurrency: str, **errors: dict[str, Any]) -> dict[str, Any]:
    """Return a class of dense models."""
    return {
        "engine": "vllm from 0.8",
        "hardware": "h100-sxm-80gb",
        "has_experts": False,
        "concurrency": concurrency,
        "errors": errors,
        "sources": ["a", "b"],
    }


def table() -> ExpectedErrors:
    """Return a table with one class, and one band of it without TTFT."""
    header = {"made_by": "validate", "simserve": "1", "date": "2026-11-30", "left_out": "nothing"}
    classes = [error_class("any", tpot=shares(0.05), ttft=shares(0.2)), error_class("5-16", tpot=shares(0.03, 9))]
    return ExpectedErrors.model_validate({**header, "classes": classes})


def asked(**changes: Any) -> Any:
    """Return the errors of a run of that class, with what is asked replaced."""
    run = {"engine": "vllm from 0.8", "hardware": "h100-sxm-80gb", "has_experts": False, "concurrency": 7.5}
    return expected_error(table(), **{**run, **changes})


@pytest.mark.parametrize(
    ("requests", "band"), [(0.3, "1-4"), (4, "1-4"), (4.5, "5-16"), (256, "65-256"), (257, ">256")]
)
def test_bands_hold_their_upper_end(requests: float, band: str) -> None:
    """As the tables of the validation."""
    assert band_of(requests) == band


@pytest.mark.parametrize(
    ("engine", "version", "generation"),
    [
        ("vllm", "0.12", "vllm from 0.8"),
        ("vllm", "0.8", "vllm from 0.8"),
        ("vllm", "0.7.3", "vllm before 0.8"),
        ("tgi", "2.0", "tgi"),
    ],
)
def test_an_engine_has_generations(engine: str, version: str, generation: str) -> None:
    """V0's errors say nothing of V1."""
    assert generation_of(engine, version) == generation


def test_the_band_of_the_load_counts_first() -> None:
    """TPOT is of the band, TTFT of every load as the band has too few points."""
    found = asked()

    assert found["tpot"] == {"p50": 0.03, "p90": 0.06, "points": 9, "concurrency": "5-16"}
    assert found["ttft"] == {"p50": 0.2, "p90": 0.4, "points": 20, "concurrency": "any"}
    assert found["class"] == "dense models on h100-sxm-80gb under vllm from 0.8"
    assert found["source"] == "simserve validate, 2026-11-30: a, b"


def test_an_unknown_load_takes_the_class() -> None:
    """A run that answered nothing has no load."""
    assert asked(concurrency=math.nan)["tpot"]["points"] == 20


@pytest.mark.parametrize(
    "other", [{"hardware": "b200-sxm-180gb"}, {"engine": "vllm before 0.8"}, {"has_experts": True}], ids=str
)
def test_another_class_is_unvalidated(other: dict[str, Any]) -> None:
    """Errors of one GPU, engine generation or kind of model are never taken for another's."""
    assert asked(**other) == UNVALIDATED


def test_without_a_table_everything_is_unvalidated(tmp_path: Path) -> None:
    """A wheel built without the file still runs."""
    assert load_expected_errors(tmp_path / "missing.json") is None
    assert expected_error(None, engine="x", hardware="y", has_experts=False, concurrency=1.0) == UNVALIDATED


def test_a_broken_table_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    file = tmp_path / "errors.json"
    file.write_text(json.dumps({"date": "2026-11-30"}), encoding="utf-8")

    with pytest.raises(ProfileError, match=r"errors\.json"):
        load_expected_errors(file)


def test_the_bundled_table_covers_the_measured_servers() -> None:
    """Dense models on H100 under vLLM and TensorRT-LLM at least."""
    bundled = load_expected_errors()

    assert bundled is not None
    classes = {(each.engine, each.hardware, each.has_experts) for each in bundled.classes}
    assert ("vllm from 0.8", "h200-sxm-141gb", False) in classes
    assert ("tensorrt-llm before 1.0", "h100-sxm-80gb", False) in classes
    assert all(each.p50 <= each.p90 for one in bundled.classes for each in one.errors.values())
