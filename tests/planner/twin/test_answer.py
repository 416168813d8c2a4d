"""Tests of a deployment beside its simulation: scrapes of a run itself, whose load changes at noon or does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.errors import InputError
from simserve.observe.scrapes import scrapes_of
from simserve.observe.windows import Observed, observed
from simserve.planner.twin.answer import Twin, twin
from simserve.scenario.load import from_mapping
from tests.planner.twin.exporter import series

_START, _NOON = 1_700_000_120.0, 1_700_000_720.0
_CHANGED = "{process: steps, steps: [{rate: 4, duration: 720 s}, {rate: 6, duration: 1000 s}]}"


def _scenario(*changes: str) -> Any:
    mapping = {
        "name": "observed",
        "model": "llama-3.1-8b",
        "deployment": {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12"}},
        "workload": {
            "arrivals": {"process": "poisson", "rate": 4.0},
            "prompt_tokens": {"distribution": "lognormal", "mean": 400, "cv": 1.0, "max": 4000},
            "output_tokens": {"distribution": "lognormal", "mean": 80, "cv": 0.8, "max": 500},
            "duration": "23 min",
        },
        "slo": {"ttft": "1 s", "tpot": "50 ms", "attainment": 0.95},
    }
    return from_mapping(mapping, changes)


def _seen(*changes: str, seed: int = 9) -> Observed:
    result = ss.run(_scenario(f"run.seed={seed}", *changes))
    return observed(scrapes_of(series(result, begin=120.0, end=1320.0), "x"), "x")


@pytest.fixture(scope="module")
def unchanged() -> Twin:
    """Twenty minutes of what the scenario says."""
    return twin(_seen(), "x", _scenario(), horizon=0.0)


@pytest.fixture(scope="module")
def changed() -> Twin:
    """Ten minutes of it, and ten of half as much again."""
    return twin(_seen(f"workload.arrivals={_CHANGED}"), "x", _scenario(), horizon=0.0)


def test_a_deployment_that_does_as_predicted_has_no_alarm(unchanged: Twin) -> None:
    """Every figure that has an interval lies in it, and no test of traffic says anything."""
    assert not unchanged.has_drifted
    assert unchanged.summary["false_alarms"]["alarms"] == 0
    assert {"rate", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "e2e_ms"} <= set(unchanged.summary["drift"])


@pytest.mark.parametrize(("name", "within"), [("tpot_ms", 0.02), ("e2e_ms", 0.05), ("ttft_ms", 0.05)])
def test_the_replay_of_a_run_gives_its_latencies_back(unchanged: Twin, name: str, within: float) -> None:
    """What is observed is a simulation: its windows and histograms are enough to find its figures again."""
    assert unchanged.summary["drift"][name]["ratio"] == pytest.approx(1.0, abs=within)


def test_the_replay_of_runs_gives_their_running_requests_back() -> None:
    """Seen at 80 moments of each alone, which tell them to a tenth: in the mean of five runs."""
    twins = [twin(_seen(seed=seed), "x", _scenario(), horizon=0.0) for seed in range(9, 14)]

    assert np.mean([each.summary["drift"]["running"]["ratio"] for each in twins]) == pytest.approx(1.0, abs=0.1)


def test_more_requests_than_can_be_simulated_are_one_line() -> None:
    """Counters that grow by a hundred million millions a window fill no memory."""
    seen = _seen()
    seen.windows[5].arrivals = 1e14

    with pytest.raises(InputError, match="100,000,000,000,000 requests between two scrapes; 300,000 can be simulated"):
        twin(seen, "x", _scenario(), horizon=0.0)


def test_a_load_that_changes_at_noon_is_flagged_within_five_minutes(changed: Twin) -> None:
    """It is said since when, and only the rate is to blame: the deployment does what it does at such a rate."""
    row = changed.summary["drift"]["rate"]

    assert changed.has_drifted
    assert row["inside"] is False
    assert _NOON <= row["flagged_s"] <= _NOON + 300
    assert abs(row["since_s"] - _NOON) <= 60
    assert [name for name, each in changed.summary["drift"].items() if each["inside"] is False] == ["rate"]


def test_a_slower_deployment_is_told_by_its_latencies() -> None:
    """Where an L40S serves as an H100 is thought to, traffic is as predicted, and tokens are late from the start."""
    seen = _seen("deployment.hardware=l40s")

    found = twin(seen, "x", _scenario(), horizon=0.0).summary["drift"]

    assert found["rate"]["inside"]
    assert found["tpot_ms"]["inside"] is False
    assert found["tpot_ms"]["since_s"] == _START


@pytest.mark.slow
def test_replicas_to_come_follow_the_rate_and_what_one_can_sustain() -> None:
    """As many as the high end of the forecast over the rate of one replica, rounded up."""
    changes = ("workload.duration=8 min", "workload.arrivals.rate=40")
    result = ss.run(_scenario(*changes))
    seen = observed(scrapes_of(series(result, begin=60.0, end=420.0), "x"), "x")

    found = twin(seen, "x", _scenario(*changes), horizon=3600.0).summary

    hour, most = found["forecast"][0], found["per_replica_rate"]
    assert hour["rate"] == pytest.approx(40, rel=0.1)
    assert (hour["replicas"] - 1) * most < hour["high"] <= hour["replicas"] * most


@pytest.mark.parametrize(("running", "is_said"), [([20.0] * 9 + [200.0] * 3, True), ([20.0] * 12, False)])
def test_answers_that_only_seem_shorter_are_told(
    monkeypatch: pytest.MonkeyPatch, running: list[float], is_said: bool
) -> None:
    """Where the load jumps, the short ones end first: an alarm of lengths then comes with what may lie behind it."""
    seen = _seen("workload.output_tokens={distribution: fixed, value: 30}")
    for window, number in zip(seen.windows, running * len(seen.windows), strict=False):
        window.gauges.update(running=number, waiting=0.0)

    found = twin(seen, "x", _scenario(), horizon=0.0).summary

    assert found["drift"]["output_tokens"]["inside"] is False
    assert any(each.startswith("Answers are counted when they end") for each in found["notes"]) == is_said


def test_a_level_is_forecast_for_no_longer_than_was_seen() -> None:
    """An hour at least: of some minutes, the interval of a day ahead reached fourteen times the rate."""
    found = twin(_seen(), "x", _scenario(), horizon=86_400.0).summary

    assert [hour["start_s"] for hour in found["forecast"]] == [found["stretch"]["end_s"]]
    assert any(each.endswith("not hour by hour, for no longer than 60 min.") for each in found["notes"])


def test_too_few_scrapes_are_refused() -> None:
    """Two scrapes are no stretch: the line says how many are needed."""
    result = ss.run(_scenario("workload.duration=60 s"))

    with pytest.raises(InputError, match="holds 2 scrapes; needs 5"):
        twin(observed(scrapes_of(series(result, begin=15, end=30), "x"), "x"), "x", _scenario())


SGLANG = {
    "vllm:num_requests_running": "sglang:num_running_reqs",
    "vllm:num_requests_waiting": "sglang:num_queue_reqs",
    "vllm:request_success_total": "sglang:num_requests_total",
    "vllm:prefix_cache_hits_total": "sglang:cached_tokens_total",
    "vllm:request_prompt_tokens_sum": "sglang:prompt_tokens_total",
    "vllm:request_generation_tokens_sum": "sglang:generation_tokens_total",
    "vllm:time_to_first_token_seconds": "sglang:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds": "sglang:e2e_request_latency_seconds",
}
"""What SGLang tells by default, --enable-metrics alone (srt/metrics/collector.py): no histogram of lengths."""
TRTLLM = {
    "vllm:num_requests_running": "trtllm_num_requests_running",
    "vllm:num_requests_waiting": "trtllm_num_requests_waiting",
    "vllm:request_success_total": "trtllm_request_success_total",
    "vllm:time_to_first_token_seconds": "trtllm_time_to_first_token_seconds",
    "vllm:request_time_per_output_token_seconds": "trtllm_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds": "trtllm_e2e_request_latency_seconds",
}
"""What TensorRT-LLM tells (tensorrt_llm/metrics/collector.py): nothing of lengths."""


def _under_names(names: dict[str, str], text: str) -> str:
    """Return a page under an engine's own names, without what it does not tell."""
    lines = []
    for line in text.splitlines():
        found = next((name for name in names if line.startswith(name)), None)
        if found is not None or line.startswith("#"):
            lines.append(line if found is None else names[found] + line.removeprefix(found))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("engine", "names", "note"),
    [
        (
            "sglang",
            SGLANG,
            "No histogram of prompt lengths and answer lengths is told: their means are those of the count",
        ),
        (
            "tensorrt-llm",
            TRTLLM,
            "No histogram of prompt lengths and answer lengths is told: they are the scenario's, and",
        ),
    ],
)
def test_engines_that_tell_no_histogram_of_lengths_have_a_twin(engine: str, names: dict[str, str], note: str) -> None:
    """By the means of their counters, or by the scenario's lengths; the answer says which."""
    with_engine = f"deployment.engine={{name: {engine}}}"
    text = series(ss.run(_scenario("run.seed=9", with_engine)), begin=120.0, end=1320.0)
    found = twin(observed(scrapes_of(_under_names(names, text), "x"), "x"), "x", _scenario(with_engine), horizon=0.0)

    assert any(each.startswith(note) for each in found.summary["notes"])
    assert found.summary["drift"]["rate"]["inside"] is True
    assert found.summary["drift"]["e2e_ms"]["inside"] is True
    assert found.summary["predicted"]["e2e_ms"] == pytest.approx(found.summary["observed"]["e2e_ms"], rel=0.1)
    if engine == "sglang":
        assert found.summary["drift"]["output_tokens"]["inside"] is None
        assert found.summary["observed"]["output_tokens"] == pytest.approx(80, rel=0.1)
    else:
        assert "output_tokens" not in found.summary["drift"]
