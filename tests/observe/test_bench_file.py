"""Files of measured runs: figures by the definitions, and readable by what reads such files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.observe.dialogue import Exchange
from simserve.observe.measure import bench_file, held_back
from simserve.workload.benchmarks.reading import read_results


def answered(sent: float, pieces: list[float], prompt_tokens: int, output_tokens: int) -> Exchange:
    """Return a request whose answer is complete."""
    return Exchange(prompt_tokens, output_tokens, sent, pieces, output_tokens)


ANSWERS = [answered(10.0, [10.5, 10.6, 10.8], 100, 4), answered(11.0, [11.25], 50, 1)]


def test_figures_are_those_of_the_definitions() -> None:
    """TPOT over the tokens after the first, of answers that have them; rates over the whole time."""
    found = bench_file(ANSWERS, backend="vllm", model="m", request_rate="inf", max_concurrency=2, date="d", failed=1)

    assert found["mean_ttft_ms"] == pytest.approx(375.0)
    assert found["mean_tpot_ms"] == pytest.approx(100.0)
    assert found["mean_itl_ms"] == pytest.approx(150.0)
    assert found["mean_e2el_ms"] == pytest.approx(525.0)
    assert found["duration"] == pytest.approx(1.25)
    assert (found["completed"], found["failed"], found["num_prompts"]) == (2, 1, 3)
    assert found["output_throughput"] == pytest.approx(5 / 1.25)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """By what reads results of ``vllm bench serve``: engine, load, lengths and figures."""
    file = tmp_path / "run.json"
    document = bench_file(ANSWERS, backend="sglang", model="m", request_rate="inf", max_concurrency=2, date="d")
    file.write_text(json.dumps(document))
    (found,) = read_results([file])

    assert (found.engine, found.model, found.num_failed) == ("sglang", "m", 0)
    assert found.arrivals == {"process": "closed_loop", "concurrency": 2}
    assert list(found.prompt_tokens) == [100, 50]
    assert list(found.output_tokens) == [4, 1]
    assert found.measured["mean_ttft"] == pytest.approx(0.375)


def test_answers_of_one_token_have_no_gaps() -> None:
    """Where no answer has a second token there is no TPOT, not a zero."""
    found = bench_file(ANSWERS[1:], backend="vllm", model="m", request_rate=2.0, max_concurrency=None, date="d")

    assert "mean_tpot_ms" not in found
    assert "mean_itl_ms" not in found


@pytest.mark.parametrize(
    ("longer", "is_held_back"), [([5.0, 5.1, 5.2], False), ([5.0, 5.1, 5.2, 5.3, 5.4, 5.5], True), ([5.0], True)]
)
def test_as_many_tokens_as_a_step_brings_may_come_in_one_piece(longer: list[float], is_held_back: bool) -> None:
    """Two tokens in one piece: a server that drafts brings six in three pieces; of one that does not they are late."""
    answers = [answered(0.0, longer, 8, 6), answered(0.0, [1.0], 8, 2)]

    assert held_back(answers)[1] is is_held_back
