"""`simserve run`: the answer, the files, JSON and nothing else, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import simserve as ss
from simserve.cli import run as run_command
from tests.cli.conftest import Simserve

pytestmark = pytest.mark.usefixtures("page_alone")

_FILES = ["report.html", "requests.parquet", "result.json", "scenario.resolved.yaml", "timeseries.parquet"]
_FLAGS = {"model": "llama-3.2-1b", "hardware": "l4-24gb", "rate": "2", "prompt-tokens": "50", "output-tokens": "9"}


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a result."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flags(**values: str) -> list[str]:
    """Return the flags of a run without a scenario."""
    return [part for name, value in values.items() for part in (f"--{name}", value)]


def test_the_answer_is_printed_and_the_files_are_written(simserve: Simserve, small: str) -> None:
    """By default into results/NAME-HASH, which the answer names."""
    outcome = simserve("run", small)

    folder = Path("results") / f"small-{ss.load(small).hash}"
    assert outcome.code == 0
    assert outcome.stderr == ""
    assert folder.name in outcome.stdout.replace("\n", "")
    assert sorted(path.name for path in folder.iterdir()) == _FILES


def test_the_answer_is_14_lines_and_verbose_prints_the_rest(simserve: Simserve, small: str) -> None:
    """The brief leads both; --verbose is refused where no answer is printed."""
    brief, whole = simserve("run", small, "--out", "a"), simserve("run", small, "--out", "a", "-v")

    assert len(brief.stdout.splitlines()) <= 14
    assert max(map(len, brief.stdout.splitlines())) <= 80
    assert "Step time" not in brief.stdout
    assert whole.stdout.splitlines()[0] == brief.stdout.splitlines()[0]
    assert all(label in whole.stdout for label in ("Memory", "Energy", "Step time", "Engine", "Fidelity"))
    for flag in ("--json", "--quiet", "--check"):
        refused = simserve("run", small, "-v", flag)
        assert (refused.code, refused.stdout) == (2, "")
        assert flag in refused.stderr


def test_json_is_result_json_and_nothing_else(simserve: Simserve, small: str) -> None:
    """What is printed is what is stored."""
    outcome = simserve("run", small, "--json", "--out", "out")

    assert outcome.code == 0
    assert outcome.stdout == Path("out/result.json").read_text(encoding="utf-8")
    assert json.loads(outcome.stdout)["completed"] == 20


def test_quiet_prints_nothing(simserve: Simserve, small: str) -> None:
    """The files are the answer."""
    outcome = simserve("run", small, "--quiet", "--out", "out")

    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", "")
    assert Path("out/result.json").exists()


def test_the_same_seed_writes_the_same_bytes(simserve: Simserve, small: str) -> None:
    """No date, no elapsed time, no path: the files of two runs are equal."""
    simserve("run", small, "--out", "one", "--quiet")
    simserve("run", small, "--out", "two", "--quiet")
    simserve("run", small, "--out", "two", "--quiet")

    assert read_files(Path("one")) == read_files(Path("two"))


def test_precision_is_short_for_set_and_said(simserve: Simserve, small: str) -> None:
    """The heading of the latencies says how narrow the intervals became."""
    result = simserve("run", small, "--precision", "90%", "--max-replications", "30", "--out", "out", "-v")

    stored = yaml.safe_load(Path("out/scenario.resolved.yaml").read_text(encoding="utf-8"))
    assert (stored["run"]["precision"], stored["run"]["max_replications"]) == (0.9, 30)
    assert "at most 90% of every latency" in " ".join(result.stdout.split())


def test_a_precision_that_is_no_share_is_refused_by_its_flag(simserve: Simserve, small: str) -> None:
    """2 for 2 % is the likely slip; the scenario's key, which nobody wrote, is not what is named."""
    outcome = simserve("run", small, "--precision", "2", "--out", "out")

    assert (outcome.code, outcome.stdout) == (2, "")
    assert "--precision: '2' must be a share between 0 and 1; for example 2% or 0.02" in outcome.error_line


def test_seed_and_replications_are_short_for_set(simserve: Simserve, small: str) -> None:
    """The resolved scenario shows what was asked."""
    simserve("run", small, "--seed", "5", "--replications", "2", "--out", "out", "--quiet")

    stored = yaml.safe_load(Path("out/scenario.resolved.yaml").read_text(encoding="utf-8"))
    assert (stored["run"]["seed"], stored["run"]["replications"]) == (5, 2)


def test_the_stored_scenario_runs_again_to_the_same_result(simserve: Simserve, small: str) -> None:
    """A result carries what reproduces it."""
    simserve("run", small, "--out", "one", "--quiet")
    simserve("run", "one/scenario.resolved.yaml", "--out", "two", "--quiet")

    assert read_files(Path("one")) == read_files(Path("two"))


def test_flags_stand_in_for_a_scenario(simserve: Simserve) -> None:
    """A first answer needs no file."""
    outcome = simserve("run", *flags(**_FLAGS), "--num-requests", "15", "--json")

    assert outcome.code == 0
    assert json.loads(outcome.stdout)["completed"] == 15
    assert [path.name.rpartition("-")[0] for path in Path("results").iterdir()] == ["llama-3.2-1b-l4-24gb"]


def test_set_changes_a_run_given_by_flags(simserve: Simserve) -> None:
    """Everything a scenario holds can be set without one."""
    outcome = simserve("run", *flags(**_FLAGS), "--set", "workload.num_requests=7", "--json")

    assert json.loads(outcome.stdout)["completed"] == 7


def test_check_resolves_and_stops(simserve: Simserve, small: str, folder: Path) -> None:
    """Memory and engine knobs are printed, nothing is simulated or written."""
    outcome = simserve("run", small, "--check")

    assert outcome.code == 0
    assert "max_num_batched_tokens" in outcome.stdout
    assert "fits" in outcome.stdout
    assert [path.name for path in folder.iterdir()] == ["small.yaml"]


def test_check_json_is_the_memory_answer(simserve: Simserve, small: str) -> None:
    """`run --check --json` and `memory --json` agree."""
    assert simserve("run", small, "--check", "--json").stdout == simserve("memory", small, "--json").stdout


def test_check_of_what_does_not_fit_is_3(simserve: Simserve, small: str) -> None:
    """A gate can use it."""
    assert simserve("run", small, "--check", "--set", "model=llama-3.1-70b").code == 3


def test_a_failed_threshold_is_99_with_json(simserve: Simserve, small: str) -> None:
    """CI sees the code, a person the line, a script the JSON."""
    outcome = simserve("run", small, "--json", "--set", "thresholds={ttft_ms: ['p(95)<0.001', 'p(95)<1e9']}")

    assert outcome.code == 99
    assert len(json.loads(outcome.stdout)["simserve"]["thresholds"]) == 2
    assert outcome.stderr.startswith("simserve: threshold failed: ttft_ms p(95)<0.001: ")
    assert len(outcome.stderr.splitlines()) == 1


def test_accelerate_takes_three_words(simserve: Simserve, small: str) -> None:
    """Another one is 2, before anything is written; ``off`` gives what ``auto`` gives."""
    refused = simserve("run", small, "--accelerate", "maybe", "--out", "refused")

    assert refused.code == 2
    assert "use auto, on or off" in refused.stderr
    assert not Path("refused").exists()
    simserve("run", small, "--accelerate", "off", "--out", "one", "--quiet")
    simserve("run", small, "--out", "two", "--quiet")
    assert read_files(Path("one")) == read_files(Path("two"))


def test_a_held_threshold_is_0(simserve: Simserve, small: str) -> None:
    """Nothing is said about what holds."""
    outcome = simserve("run", small, "--quiet", "--set", "thresholds={completed: ['value==20']}")

    assert (outcome.code, outcome.stderr) == (0, "")


def test_an_interrupted_run_is_105_and_writes_what_was_finished(
    simserve: Simserve, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C loses nothing that was done."""

    @contextmanager
    def interrupting(**_: Any) -> Iterator[Any]:
        def interrupt(done: int, total: int, doing: str, detail: str = "") -> None:
            raise KeyboardInterrupt

        yield interrupt

    monkeypatch.setattr(run_command, "progress", interrupting)

    outcome = simserve("run", small, "--set", "workload.num_requests=30000", "--out", "out", "--quiet")

    stored = json.loads(Path("out/result.json").read_text(encoding="utf-8"))
    assert outcome.code == 105
    assert "interrupted" in outcome.error_line
    assert 0 < stored["completed"] < 30000


def test_an_interrupt_before_the_run_is_105(simserve: Simserve, small: str, monkeypatch: Any) -> None:
    """There is nothing to write then."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simserve.scenario.run.price", interrupt)

    outcome = simserve("run", small, "--out", "out")

    assert outcome.code == 105
    assert outcome.error_line == "interrupted"
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_fresh_process_runs_a_bundled_scenario_by_name(folder: Path) -> None:
    """`python -m simserve run chatbot` works from an empty folder."""
    command = [sys.executable, "-W", "error", "-m", "simserve", "run", "chatbot", "--json"]
    command += ["--set", "workload.num_requests=200"]
    paths = [str(Path(ss.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["completed"] == 200


def test_quality_of_the_formats_is_in_the_result_and_on_the_terminal(simserve: Simserve) -> None:
    """`simserve.quality` lists what is published; without a low-bit format it is empty."""
    run = ["run", *flags(**{**_FLAGS, "model": "llama-3.1-8b", "hardware": "l40s-48gb"}), "--num-requests", "5"]

    low = simserve(*run, "--set", "deployment.quantization=gptq-int4", "--out", "low", "--verbose")
    plain = simserve(*run, "--out", "plain", "--json")

    assert "Quality" in low.stdout
    assert "Arena-Hard -7.0%" in " ".join(low.stdout.split())
    assert json.loads(plain.stdout)["simserve"]["quality"] == []


def test_a_timeline_and_a_snapshot_are_written_where_asked(simserve: Simserve, folder: Path) -> None:
    """Beside the rest, named in the answer; the files of a result that is replaced go with it."""
    small = ("chatbot", "--set", "workload.num_requests=60", "--out", "a")

    outcome = simserve("run", *small, "--timeline", "--prometheus")

    assert outcome.code == 0, outcome.stderr
    assert "timeline.json metrics.prom" in outcome.stdout
    events = json.loads((folder / "a" / "timeline.json").read_text())["traceEvents"]
    steps = json.loads((folder / "a" / "result.json").read_text())["simserve"]["steps"]["count"]
    assert sum(each["ph"] == "X" for each in events) == steps
    assert "vllm:e2e_request_latency_seconds_count" in (folder / "a" / "metrics.prom").read_text()
    assert simserve("run", *small, "--quiet").code == 0
    assert (folder / "a" / "timeline.json").exists()
    assert simserve("run", *small, "--seed", "2", "--force", "--quiet").code == 0
    assert not (folder / "a" / "timeline.json").exists()
    assert not (folder / "a" / "metrics.prom").exists()


def test_gpt_oss_runs_on_one_gpu_as_it_is_stored(simserve: Simserve) -> None:
    """MXFP4 on one H100: a TPOT of 5 to 6.5 ms, and the context that the KV cache holds leads the answer."""
    traffic = {"--rate": "1", "--prompt-tokens": "1000", "--output-tokens": "200", "--num-requests": "100"}
    words = [word for pair in traffic.items() for word in pair]

    outcome = simserve("run", "--model", "gpt-oss-120b", "--hardware", "h100-sxm-80gb", *words, "--json")

    assert outcome.code == 0
    answer = json.loads(outcome.stdout)
    assert answer["simserve"]["formats"]["weights"] == "mxfp4"
    assert 5.0 < answer["median_tpot_ms"] < 6.5
    assert answer["simserve"]["warnings"][0].startswith("max_model_len 118,112 of 131,072: the longest that fits")
