"""How many files a change touches: those that CONTRIBUTING counts are those of a change that was made for real."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simserve.errors import SimserveError

ROOT = Path(__file__).resolve().parent.parent
PATCHES = sorted((ROOT / "tests" / "touch_points").glob("*.patch"))
PROBES = {
    "gpu": """
run = ss.run(ss.load("single-gpu-7b", ["deployment.hardware=example", "workload.num_requests=50"]), accelerate="off")
assert run.summary["completed"] == 50
""",
    "metric": """
summary = ss.run(ss.load("chatbot", ["workload.num_requests=50"]), accelerate="off").summary
assert summary["mean_output_tokens"] == summary["total_output_tokens"] / 50
""",
    "engine-option": """
scenario = ss.load("chatbot", ["workload.num_requests=5", "deployment.engine.max_prompt_chunk=64"])
steps = ss.run(scenario, accelerate="off", steps=True).steps
assert 0 < (steps["prompt_tokens"] / steps["num_sequences"]).max() <= 64
""",
    "operator": """
steps = ss.run(ss.load("chatbot", ["workload.num_requests=50"]), accelerate="off").summary["simserve"]["steps"]
seconds = steps["seconds_by_operator"]
assert seconds["embedding"] > 0
assert abs(sum(seconds.values()) / sum(steps["seconds_by_part"].values()) - 1) < 1e-9
""",
    "routing-policy": """
scenario = ss.load("chatbot", ["workload.num_requests=50", "deployment.replicas=3", "deployment.routing=fill"])
assert set(ss.run(scenario, accelerate="off").requests["replica_id"]) == {0}
assert verify(scenario, accelerate="off").is_equal
""",
    "scheduler-rule": """
overrides = ["workload.arrivals={process: all_at_once}", "workload.num_requests=40", "deployment.engine.max_num_seqs=2"]
scenario = ss.load("chatbot", [*overrides, "deployment.engine.scheduling_policy=shortest_first"])
assert verify(scenario, accelerate="off").is_equal
requests = ss.run(scenario, accelerate="off").requests.sort_values("scheduled_s", kind="stable")
assert requests["prompt_tokens"].iloc[2:].is_monotonic_increasing
""",
}
"""What each change does, shown in a copy that has it; none of them runs without."""


_HEAD = "import simserve as ss\nfrom simserve.api import verify\n"


def touched(patch: Path) -> list[str]:
    """Return the files of a patch."""
    return re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda each: each.stem)
def test_contributing_counts_the_files_of_a_change(patch: Path) -> None:
    """Its row says how many files, and names each."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [row for row in text.splitlines() if f"tests/touch_points/{patch.name}" in row]
    files = touched(patch)

    assert len(rows) == 1
    assert rows[0].split("|")[2].strip() == str(len(files))
    assert all(f"`{file}`" in rows[0] or file.startswith("hardware_profiles/") for file in files)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git, to look whether the patch applies")
@pytest.mark.parametrize("patch", PATCHES, ids=lambda each: each.stem)
def test_the_change_fits_the_files_as_they_are(patch: Path) -> None:
    """A line that moved beneath it is found here, not first where the change is made and run."""
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_change_has_a_probe() -> None:
    """The test below holds all of them."""
    assert [each.stem for each in PATCHES] == sorted(PROBES)


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES, ids=lambda each: each.stem)
def test_a_change_of_these_files_is_enough(patch: Path, tmp_path: Path) -> None:
    """Applied to a copy, it works there, and does not without."""
    if shutil.which("git") is None:
        pytest.skip("needs git, to apply the patch")
    for name in ("simserve", "hardware_profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("model_profiles", "engine_profiles", "api_profiles", "scenarios", "calibration"):
        (tmp_path / name).symlink_to(ROOT / name)
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)

    script = f"{_HEAD}assert ss.__file__.startswith({str(tmp_path)!r})\n{PROBES[patch.stem]}"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises((AssertionError, KeyError, SimserveError)):
        exec(_HEAD + PROBES[patch.stem], {})
