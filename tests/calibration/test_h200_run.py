"""What the page of the run on an H200 says, against the files beside it and the simulator as it is."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.calibrate.simulated import ServingModel, replay_of
from simserve.scenario.load import from_mapping, load
from simserve.workload.benchmarks.reading import read_results

RUN = Path(__file__).resolve().parents[2] / "calibration" / "runs" / "h200-2026-11-26"
SEQUENCES = (64, 256, 448, 512, 576, 768, 1024)


@cache
def page_rows(run: Path = RUN) -> list[list[str]]:
    """Return the cells of the tables of a page, without their titles."""
    lines = (run / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if any(cell[:1].isdigit() for cell in row)]


def measured() -> dict[int, float]:
    """Return the seconds of a step that decodes so many sequences."""
    rows = json.loads((RUN / "steps-qwen3-30b-a3b.json").read_text(encoding="utf-8"))["rows"]
    return {row["sequences"]: row["seconds_per_step"] for row in rows}


def simulated(count: int) -> float:
    """Return the same of the simulator: the median step of those that only decode."""
    engine = {"name": "vllm", "version": "0.24.0", "max_num_seqs": 1024, "max_model_len": 4096}
    workload: dict[str, Any] = {"arrivals": {"process": "closed_loop", "concurrency": count}, "num_requests": count}
    workload |= {"prompt_tokens": 64, "output_tokens": 73}
    deployment = {"hardware": "h200-sxm-141gb", "engine": engine}
    mapping = {"name": "steps", "model": "qwen3-30b-a3b", "deployment": deployment, "workload": workload}
    steps = ss.run(from_mapping(mapping), steps=True).steps
    own = steps[(steps.prompt_tokens == 0) & (steps.num_sequences == count)]
    return float(own.seconds.median())


@pytest.mark.parametrize("count", SEQUENCES)
def test_steps_are_as_the_page_says(count: int) -> None:
    """Measured as in the file, simulated as today; on CUDA graphs near, beyond them no faster than on them."""
    row = next(each for each in page_rows() if each[0] == f"{count:,}")
    found, there = simulated(count), measured()

    assert row[1] == f"{there[count] * 1e3:.1f}"
    assert row[3] == f"{found * 1e3:.1f}"
    if count <= 512:
        assert found == pytest.approx(there[count], rel=0.15)
    else:
        assert 1.5 * there[512] < found < there[count]


@pytest.mark.parametrize(
    ("title", "file"),
    [
        ("1 client, 200 tokens", "answers-200-clients-1"),
        ("32 clients, 200 tokens", "answers-200-clients-32"),
        ("1 client, 16 tokens", "answers-16-clients-1"),
        ("4 requests/s, 16 tokens", "answers-16-rate-4"),
    ],
)
def test_requests_are_as_the_page_says(title: str, file: str) -> None:
    """Medians of the file, and how far the simulator is off that knows nothing of it."""
    row = next(each for each in page_rows() if each[0] == title)
    scenario = load(RUN / "server" / "scenario.yaml")
    (result,) = read_results([RUN / "server" / f"{file}.json"])
    found = ServingModel(scenario).predict(replay_of(result, scenario))
    there = json.loads((RUN / "server" / f"{file}.json").read_text(encoding="utf-8"))

    for place, figure in ((1, "ttft"), (3, "tpot")):
        seconds = there[f"median_{figure}_ms"] * 1e-3
        assert float(row[place]) == pytest.approx(seconds * 1e3, rel=2e-3)
        assert row[place + 1] == f"{found[f'median_{figure}'] / seconds - 1:+.0%}".replace("%", " %")


LATER = RUN.with_name("h200-2026-11-27")
SLOW_HOST = 2.5
SERVERS = ("asynchronous", "synchronous", "fp8")


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_loads_of_the_second_run_are_as_its_page_says(server: str) -> None:
    """Medians of the files, and how far the simulator is off, as it is and told of a slow host."""
    rows = [row for row in page_rows(LATER) if row[0] == server and row[1].startswith("answers")]
    scenario = load(LATER / server / "scenario.yaml")
    slow = load(LATER / server / "scenario.yaml", [f"deployment.engine.host_slowdown={SLOW_HOST}"])

    assert {row[1] for row in rows} == {file.stem for file in (LATER / server).glob("*.json")}
    for row in rows:
        file = LATER / server / f"{row[1]}.json"
        (result,) = read_results([file])
        there = json.loads(file.read_text(encoding="utf-8"))
        measured_there = {
            "median_ttft": there["median_ttft_ms"] * 1e-3,
            "median_tpot": there["median_tpot_ms"] * 1e-3,
            "output_throughput": there["output_throughput"],
        }
        for place, (figure, value) in zip((2, 5, 8), measured_there.items(), strict=True):
            shown = float(row[place]) * (1e-3 if figure.startswith("median") else 1.0)
            assert shown == pytest.approx(value, rel=5e-3)
            for column, each in ((place + 1, scenario), (place + 2, slow)):
                found = ServingModel(each).predict(replay_of(result, each))[figure]
                assert row[column] == f"{found / value - 1:+.0%}".replace("%", " %")
