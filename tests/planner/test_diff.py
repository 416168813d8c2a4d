"""Two results side by side: what moved, what moved too far, and which pairs are no pair."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import InputError, UsageError
from simserve.metrics.files import write_result
from simserve.planner.diff import Move, diff
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario


def result_file(path: Path, changes: Mapping[str, float | None], half_width: float | None = None, **inner: Any) -> Path:
    """Write a small result with figures replaced; with a half width, each of them has an interval."""
    summary = json.loads(json.dumps(run(make_scenario()).summary))
    summary |= changes
    if half_width is not None:
        summary["simserve"]["confidence_intervals"] = {name: {"half_width": half_width} for name in changes}
    summary["simserve"] |= inner
    path.write_text(json.dumps(summary), encoding="utf-8")
    return path


def pair(folder: Path, before: float | None, after: float | None, half_width: float | None = None) -> tuple[Path, Path]:
    """Return two results of one scenario whose p99 TTFT is given."""
    name = "p99_ttft_ms"
    return (
        result_file(folder / "a.json", {name: before}, half_width),
        result_file(folder / "b.json", {name: after}, half_width),
    )


def test_a_result_has_not_moved_from_itself(tmp_path: Path) -> None:
    """Folders and files both name a result."""
    write_result(run(make_scenario()), tmp_path / "out")

    found = diff(tmp_path / "out", tmp_path / "out" / "result.json", tolerance=0.001)

    assert (found.moved, found.failures, found.differs_in) == ([], [], ())


@pytest.mark.parametrize(
    ("after", "fails"), [(104.9, False), (105.1, True), (94.9, True), (95.1, False), (100.0, False)]
)
def test_the_gate_has_two_sides(tmp_path: Path, after: float, fails: bool) -> None:
    """A figure that improves by more than is tolerated is a change of the model too."""
    found = diff(*pair(tmp_path, 100.0, after), tolerance=0.05)

    assert [each.name for each in found.failures] == (["p99_ttft_ms"] if fails else [])


def test_a_figure_must_also_leave_its_interval(tmp_path: Path) -> None:
    """10 % beyond a tolerance of 5 %: noise where the difference of the two is known to 14, none where to 7."""
    wide = diff(*pair(tmp_path, 100.0, 110.0, half_width=10.0), tolerance=0.05)
    narrow = diff(*pair(tmp_path, 100.0, 110.0, half_width=5.0), tolerance=0.05)

    assert not wide.failures
    assert next(each for each in wide.moved if each.name == "p99_ttft_ms").is_noise
    assert [each.name for each in narrow.failures] == ["p99_ttft_ms"]


def test_single_tolerances_come_before_the_overall_one(tmp_path: Path) -> None:
    """Alone, they are all that is watched."""
    files = pair(tmp_path, 100.0, 110.0)

    assert not diff(*files, tolerance=0.05, tolerances={"p99_ttft_ms": 0.2}).failures
    assert diff(*files, tolerances={"p99_ttft_ms": 0.05}).failures
    assert not diff(*files, tolerances={"mean_ttft_ms": 0.05}).failures
    assert not diff(*files).failures


def test_a_figure_that_vanishes_has_moved(tmp_path: Path) -> None:
    """And one that appears."""
    assert diff(*pair(tmp_path, 100.0, None), tolerance=0.5).failures
    assert diff(*pair(tmp_path, None, 100.0), tolerance=0.5).failures
    assert not diff(*pair(tmp_path, None, None), tolerance=0.5).moved


def test_moves_from_nothing_are_infinite() -> None:
    """No tolerance covers them; no change is no move."""
    move = Move(name="failed", before=0.0, after=3.0, tolerance=0.5)

    assert math.isinf(move.relative)
    assert move.is_beyond
    assert Move(name="failed", before=0.0, after=0.0).relative == 0


def test_results_of_different_scenarios_fail_a_gate_with_what_differs(tmp_path: Path) -> None:
    """Unless that is allowed; without a tolerance they are compared, and nothing is judged."""
    write_result(run(make_scenario()), tmp_path / "one")
    write_result(run(make_scenario(["run.seed=2"])), tmp_path / "two")

    gate = diff(tmp_path / "one", tmp_path / "two", tolerance=10.0)
    assert re.search(r"run\.seed: 1 against 2.*--allow scenario", gate.unlike or "")
    assert (gate.failures, gate.has_failed) == ([], True)
    assert not diff(tmp_path / "one", tmp_path / "two", tolerance=10.0, allow=["scenario"]).has_failed

    found = diff(tmp_path / "one", tmp_path / "two")
    assert not found.has_failed
    assert (found.differs_in, found.changed_keys) == (("scenario",), {"run.seed": (1, 2)})


def test_results_of_different_versions_fail_a_gate(tmp_path: Path) -> None:
    """Unless the version is what is being compared."""
    files = result_file(tmp_path / "a.json", {}), result_file(tmp_path / "b.json", {}, version="0.0.1")

    assert re.search(r"against 0\.0\.1\); .*--allow version", diff(*files, tolerance=0.1).unlike or "")
    assert diff(*files, tolerance=0.1, allow=["version"]).unlike is None
    assert diff(*files).differs_in == ("version",)


@pytest.mark.parametrize(("text", "said"), [(None, "no such file"), ("{", "is not JSON"), ("{}", "no result")])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    """With the file's name."""
    if text is not None:
        (tmp_path / "a.json").write_text(text, encoding="utf-8")

    with pytest.raises(InputError, match=rf"a\.json: .*{said}"):
        diff(tmp_path / "a.json", tmp_path / "a.json")


def test_a_tolerance_of_no_figure_is_refused(tmp_path: Path) -> None:
    """With the nearest that there is."""
    with pytest.raises(UsageError, match="did you mean 'p99_ttft_ms'"):
        diff(*pair(tmp_path, 1.0, 1.0), tolerances={"p99_ttft": 0.1})


def test_results_in_memory_are_compared_like_files(tmp_path: Path) -> None:
    """What a notebook holds need not be written first."""
    first, second = (run(make_scenario({"workload.arrivals.rate": rate})) for rate in (1.0, 2.0))
    write_result(first, tmp_path / "a")
    write_result(second, tmp_path / "b")

    found, filed = diff(first, second, tolerance=0.05), diff(tmp_path / "a", tmp_path / "b", tolerance=0.05)

    assert found.changed_keys == {"workload.arrivals.rate": (1.0, 2.0)} == filed.changed_keys
    assert [each.name for each in found.failures] == [each.name for each in filed.failures]
    assert found.failures
    assert found.summary["metrics"] == filed.summary["metrics"]
