"""Scenarios out of traces: replayed, and drawn to be like them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simserve.planner.importers.trace import fit_workload, fitted_scenario, replay_scenario
from simserve.scenario.load import from_mapping, load
from simserve.scenario.run import run
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec
from simserve.workload.traces.formats import read_trace
from simserve.workload.traces.media import RecordedMedia
from simserve.workload.traces.trace import PrefixBlocks, Trace


def drawn_trace(cv: float = 1.0, num_requests: int = 20_000) -> Trace:
    """Return a trace of gamma arrivals at 4 a second and lognormal lengths."""
    generator = np.random.default_rng(3)
    shape = 1 / cv**2
    lengths = np.rint(generator.lognormal(6.0, 0.7, num_requests)).astype(np.int64)
    return Trace(
        arrival_time=np.cumsum(generator.gamma(shape, 0.25 / shape, num_requests)),
        prompt_tokens=lengths,
        output_tokens=np.maximum(lengths // 4, 1),
    )


def redrawn(trace: Trace, folder: Path) -> tuple[WorkloadSpec, object]:
    """Return the fitted workload and requests drawn of it."""
    fit = fit_workload(trace, "like")
    for name, text in fit.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    spec = WorkloadSpec.model_validate(fit.workload)
    return spec, generate(spec, seed=5, base_path=folder)


@pytest.mark.parametrize("cv", [1.0, 3.0])
def test_fitted_traffic_is_like_the_trace(tmp_path: Path, cv: float) -> None:
    """Rate, burstiness and lengths of what is drawn are those of the trace within a few percent."""
    trace = drawn_trace(cv)

    spec, requests = redrawn(trace, tmp_path)
    assert spec.arrivals is not None
    assert spec.arrivals.process == ("poisson" if cv == 1.0 else "gamma")
    gaps = np.diff(requests.arrival_time)  # type: ignore[attr-defined]
    assert 1 / gaps.mean() == pytest.approx(4.0, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    for key in ("prompt_tokens", "output_tokens"):
        assert getattr(requests, key).mean() == pytest.approx(getattr(trace, key).mean(), rel=0.03)
        assert np.median(getattr(requests, key)) == pytest.approx(np.median(getattr(trace, key)), rel=0.1)


def test_lognormal_lengths_are_fitted_and_others_kept(tmp_path: Path) -> None:
    """Two kinds of prompts are no lognormal: they are drawn from the trace's own."""
    fitted = fit_workload(drawn_trace(), "like")
    mixed = np.array([100, 5000] * 500, dtype=np.int64)
    trace = Trace(arrival_time=np.arange(1000.0), prompt_tokens=mixed, output_tokens=np.full(1000, 7))

    kept = fit_workload(trace, "like")
    assert fitted.files == {}
    assert fitted.workload["prompt_tokens"]["distribution"] == "lognormal"
    assert kept.workload["prompt_tokens"] == {
        "distribution": "empirical",
        "path": "like.prompt_tokens.csv",
        "column": "prompt_tokens",
    }
    assert kept.workload["output_tokens"] == {"distribution": "fixed", "value": 7}
    assert kept.workload["arrivals"] == {"process": "constant", "rate": 1.0}
    assert any("No lognormal is near the prompts" in note for note in kept.notes)
    _, requests = redrawn(trace, tmp_path)
    assert set(requests.prompt_tokens.tolist()) == {100, 5000}  # type: ignore[attr-defined]


def test_what_a_fit_loses_is_said() -> None:
    """A rate that changes over minutes, shared prefixes, requests that failed."""
    times = np.concatenate([np.linspace(0, 300, 100), np.linspace(301, 600, 1000)])
    ones = np.full(1100, 10, dtype=np.int64)
    blocks = PrefixBlocks(block_tokens=512, ids=np.array([1, 1, 2, 3]), counts=np.array([4]))
    trace = Trace(
        arrival_time=times,
        prompt_tokens=ones,
        output_tokens=ones,
        num_unserved=3,
        prefix_blocks=blocks,
        remark="a guess",
    )

    draft, _ = fitted_scenario(Path("t.csv"), trace, model=None, hardware="l4-24gb", name="like")
    notes = " ".join(draft.notes)
    assert "Its rate changes over minutes" in notes
    assert "3 rows are left out: nothing was served." in notes
    assert "Of the prefix blocks 25.0% were there before" in notes
    assert "A guess." in notes
    assert "model llama-3.1-8b is assumed" in notes
    assert draft.scenario.deployment.hardware == "l4-24gb"
    assert draft.scenario.deployment.engine.max_model_len == 2048


def test_bursts_of_a_steady_rate_are_no_change_of_it() -> None:
    """Counts of renewal arrivals vary as cv squared: nine times as much as Poisson for a cv of 3."""
    fit = fit_workload(drawn_trace(3.0), "like")

    assert fit.workload["arrivals"]["process"] == "gamma"
    assert not any("changes over minutes" in note for note in fit.notes)


def test_the_20_most_frequent_sizes_of_images_are_kept() -> None:
    """Of 25, each of which comes once more often than the next larger one."""
    widths = np.repeat(np.arange(1, 26), np.arange(25, 0, -1)) * 32
    sizes = np.stack([widths, np.full(len(widths), 64), np.zeros(len(widths))], axis=1).astype(np.float64)
    ones = np.full(len(widths), 500, dtype=np.int64)
    images = RecordedMedia(counts=np.ones(len(widths), dtype=np.int64), sizes=sizes)
    trace = Trace(arrival_time=np.arange(len(widths)) * 1.0, prompt_tokens=ones, output_tokens=ones, images=images)

    draft, _ = fitted_scenario(Path("t.csv"), trace, model="qwen3-vl-32b", hardware=None, name="like")

    kept = draft.mapping["workload"]["images"]["sizes"]
    assert [(each["width"], each["height"], each["weight"]) for each in kept] == [
        (32 * (place + 1), 64, 25 - place) for place in range(20)
    ]


@pytest.mark.parametrize(("prompt", "context"), [(3996, 4096), (3997, 8192)])
def test_the_context_is_the_next_power_of_two(prompt: int, context: int) -> None:
    """With an answer of 100 tokens."""
    ones = np.ones(1, dtype=np.int64)
    trace = Trace(arrival_time=np.zeros(1), prompt_tokens=prompt * ones, output_tokens=100 * ones)

    draft, _ = fitted_scenario(Path("t.csv"), trace, model=None, hardware=None, name="like")

    assert draft.mapping["deployment"]["engine"]["max_model_len"] == context


def test_a_trace_without_times_is_fitted_with_a_placeholder() -> None:
    """One request a second, said so."""
    ones = np.full(3, 10, dtype=np.int64)
    trace = Trace(arrival_time=np.full(3, np.nan), prompt_tokens=ones, output_tokens=ones)

    fit = fit_workload(trace, "like")
    assert fit.workload["arrivals"] == {"process": "poisson", "rate": 1.0}
    assert "placeholder" in fit.notes[0]


def test_a_replay_names_the_file_and_its_format(tmp_path: Path) -> None:
    """The format is told; the context holds the longest request."""
    file = tmp_path / "day one.csv"
    file.write_text("arrival_time,prompt_tokens,output_tokens\n0,5000,100\n1,20,30\n", encoding="utf-8")

    draft = replay_scenario(file, "auto", model="llama-3.1-8b", hardware=None, shown="day one.csv")
    scenario = from_mapping(draft.mapping, folder=tmp_path)
    assert scenario.name == "day-one"
    assert scenario.workload.trace is not None
    assert (scenario.workload.trace.path, scenario.workload.trace.format) == ("day one.csv", "csv")
    assert scenario.deployment.engine.max_model_len == 8192
    assert "hardware h100-sxm-80gb is assumed" in draft.notes[0]
    assert len(generate(scenario.workload, seed=1, base_path=tmp_path)) == 2


def test_a_request_longer_than_the_model_is_said(tmp_path: Path) -> None:
    """The simulation cuts or fails it."""
    file = tmp_path / "long.csv"
    file.write_text("arrival_time,prompt_tokens,output_tokens\n0,500000,100\n", encoding="utf-8")

    draft = replay_scenario(file, "csv", model="llama-3.1-8b", hardware=None, shown="long.csv")
    assert draft.scenario.deployment.engine.max_model_len == 131072
    assert "500,100 tokens, more than the model takes" in draft.notes[-1]


MEDIA = (
    "arrival_time,prompt_tokens,output_tokens,image_sizes,audio_seconds\n"
    "0,100,10,512x512; 1024x512,\n1,90,12,512x512,12\n2,80,14,,30\n4,70,9,,\n"
)


def test_images_and_recordings_of_a_trace_are_drawn_and_replayed(tmp_path: Path) -> None:
    """By a model that takes both; each size as often as it comes, and the scenario loads and runs."""
    path = tmp_path / "m.csv"
    path.write_text(MEDIA, encoding="utf-8")
    draft, files = fitted_scenario(path, read_trace(path), model="qwen3-omni-30b-a3b", hardware=None, name="m")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    replay = replay_scenario(path, "auto", model="qwen3-omni-30b-a3b", hardware=None, shown=str(path))
    (tmp_path / "drawn.yaml").write_text(draft.text, encoding="utf-8")
    (tmp_path / "replay.yaml").write_text(replay.text, encoding="utf-8")

    images, audio = draft.mapping["workload"]["images"], draft.mapping["workload"]["audio"]
    assert images["share"] == audio["share"] == 0.5
    assert {(each["width"], each["weight"]) for each in images["sizes"]} == {(512, 2), (1024, 1)}
    assert audio["seconds"] == {"distribution": "fixed", "value": 21}
    replayed = run(load(tmp_path / "replay.yaml")).summary["simserve"]
    assert replayed["images"]["images"] == 3
    assert replayed["audio"]["recordings"] == 2
    assert run(load(tmp_path / "drawn.yaml")).summary["completed"] == 4


def test_what_a_model_does_not_take_is_said(tmp_path: Path) -> None:
    """Recordings beside a model with eyes alone, and images of nobody knows which size."""
    path = tmp_path / "m.csv"
    path.write_text(
        "ts,prompt_tokens,output_tokens,num_images,audio_seconds\n0,90,9,2,3\n1,80,9,0,\n", encoding="utf-8"
    )
    draft, _ = fitted_scenario(path, read_trace(path), model="qwen3-vl-32b", hardware=None, name="m")

    assert "audio" not in draft.mapping["workload"]
    assert draft.mapping["workload"]["images"]["sizes"] == [{"width": 1024, "height": 1024}]
    assert "The trace has recordings, which qwen3-vl-32b does not take: they are left out." in draft.notes
    assert "The trace does not say how large its images are: 1024 x 1024 is assumed." in draft.notes
