"""Scenarios out of what an engine's metrics counted, on counts made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from simserve.observe.scrapes import scrapes_of
from simserve.observe.windows import Counts, Observed, Window, observed, together
from simserve.planner.importers.metrics import import_metrics
from simserve.scenario.load import from_mapping


def counted(mean: float, count: int = 1000) -> Counts:
    """Return lengths that spread around a mean, from a quarter of it to four times."""
    buckets = {mean / 4: 0.05 * count, mean: 0.6 * count, 2 * mean: 0.25 * count, 4 * mean: 0.1 * count}
    return Counts(buckets, total=mean * count, count=count)


def seen(arrivals: Sequence[float], seconds: Sequence[float], **counters: float) -> Observed:
    """Return two engines over windows of so many arrivals and seconds, with 400 tokens a prompt and 80 an answer."""
    windows, start = [], 1_700_000_000.0
    for came, length in zip(arrivals, seconds, strict=True):
        histograms = {"prompt_tokens": counted(400.0), "output_tokens": counted(80.0)}
        windows.append(Window(start, start + length, dict(counters), {}, histograms, came))
        start += length
    return Observed(
        engine="vllm",
        model="meta-llama/Llama-3.1-8B",
        num_engines=2,
        about={},
        windows=windows,
        whole=together(windows),
        is_single=False,
        in_flight=0.0,
        num_resets=0,
        num_refused=0,
    )


def workload_of(observed: Observed) -> dict[str, Any]:
    """Return the workload of the imported scenario."""
    workload: dict[str, Any] = import_metrics(observed, "x", gpus="H100").draft.mapping["workload"]
    return workload


def test_what_the_cache_held_is_a_shared_beginning_and_the_rest_the_prompts_own() -> None:
    """A quarter of 400 tokens: with the 300 behind them prompts are as long as they were."""
    found = import_metrics(seen([300], [100], queries=400.0, hits=100.0), "x", gpus="2xH100").draft.mapping

    assert found["workload"]["shared_prefix"] == {"num_groups": 1, "tokens": 100}
    assert found["workload"]["prompt_tokens"]["mean"] == 300
    assert found["deployment"]["replicas"] == 2
    assert found["deployment"]["tensor_parallel_size"] == 2


@pytest.mark.parametrize(("apart", "process"), [(10, "poisson"), (20, "steps")])
def test_a_rate_changes_if_counts_scatter_twice_as_much_as_chance_would_have_it(apart: int, process: str) -> None:
    """Counts of 100 a window scatter by 10 if they are Poisson; 20 more and less is four times that variance."""
    counts = [100 + apart * (-1) ** place for place in range(10)]

    assert workload_of(seen(counts, [60] * 10))["arrivals"]["process"] == process


def test_each_rate_is_that_of_its_own_period() -> None:
    """Windows of unequal length: what came in each over its own seconds."""
    steps = workload_of(seen([200, 800, 300, 800], [200, 200, 300, 100]))["arrivals"]["steps"]

    assert [each["rate"] for each in steps] == [1.0, 4.0, 1.0, 8.0]
    assert [each["duration"] for each in steps] == ["200 s", "200 s", "300 s", "100 s"]


def full(running: Sequence[float], waiting: float, kv_usage: float) -> Observed:
    """Return two engines of which so many requests ran, window by window, while others waited."""
    observed = seen([300] * len(running), [100] * len(running))
    for window, number in zip(observed.windows, running, strict=True):
        window.gauges.update(running=number, waiting=waiting, kv_usage=kv_usage)
    return observed


@pytest.mark.parametrize(
    ("running", "waiting", "kv_usage", "seats"),
    [
        ([512.0] * 6 + [300.0], 40.0, 0.3, 256),
        ([512.0] * 6, 0.0, 0.3, None),
        ([512.0] * 6, 40.0, 0.97, None),
        ([300.0, 512.0, 410.0, 280.0, 350.0, 390.0], 40.0, 0.3, None),
    ],
    ids=["full", "no queue", "no KV memory", "as many as come"],
)
def test_seats_are_known_where_an_engine_was_full(
    running: Sequence[float], waiting: float, kv_usage: float, seats: int | None
) -> None:
    """Near saturation they decide, and no metric says them: as many as ran whenever others waited, of each engine."""
    draft = import_metrics(full(running, waiting, kv_usage), "x", gpus="H100").draft

    assert draft.mapping["deployment"]["engine"].get("max_num_seqs") == seats
    told = "Derived: max_num_seqs 256" if seats else "Assumed: max_num_seqs and max_num_batched_tokens as the engine"
    assert any(note.startswith(told) for note in draft.notes)


def test_what_the_engine_reports_and_the_models_name_are_written_out() -> None:
    """The note \"Told:" said nothing, and a repository with a dot in its name was cut at the dot."""
    repository = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
    observed = replace(seen([300], [100]), model=repository, about={"block_size": "16"})

    draft = import_metrics(observed, "x", gpus="4xH100").draft

    assert draft.mapping["name"] == "Llama-3.3-70B-Instruct-FP8-dynamic-as-observed"
    assert "Reported by the engine: block_size 16." in draft.notes
    assert any("as a lognormal distribution that is off the histogram by at most" in note for note in draft.notes)


def drafting_pages(drafts: int, tokens: int, accepted: tuple[int, ...]) -> str:
    """Return two scrapes of a server that drafts: drafts and their tokens in half a minute, accepted by position."""
    return "\n".join(
        f"# scraped_at {at}\n"
        f'vllm:request_success_total{{model_name="Qwen/Qwen3.5-35B-A3B"}} {10 * step}\n'
        f"vllm:prompt_tokens_total {4000 * step}\nvllm:generation_tokens_total {900 * step}\n"
        "vllm:num_requests_running 1\n"
        f"vllm:spec_decode_num_drafts_total {drafts * step}\n"
        f"vllm:spec_decode_num_draft_tokens_total {tokens * step}\n"
        + "\n".join(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count * step}'
            for place, count in enumerate(accepted)
        )
        for step, at in ((1, 1_763_876_400), (3, 1_763_876_460))
    )


def test_drafts_that_were_counted_are_in_the_scenario() -> None:
    """The scenario had none, and a server with MTP was taken for one that makes a token a step."""
    pages = drafting_pages(400, 800, (340, 250))
    seen = observed(scrapes_of(pages, "x"), "x")

    found = import_metrics(seen, "x", gpus="2xH100")

    speculative = found.draft.mapping["deployment"]["speculative"]
    assert speculative == {"method": "mtp", "num_speculative_tokens": 2, "acceptance_per_position": [0.85, 0.625]}
    assert from_mapping(found.draft.mapping).deployment.speculative is not None
    notes = [each for each in found.draft.notes if "draft" in each]
    assert notes == [
        "Derived: 2 drafts a step, of which 85.0%, 62.5% are accepted, first to last (800 steps).",
        "Assumed: the model's own layer drafts: metrics do not say what does (deployment.speculative.method).",
    ]
    without = observed(scrapes_of(pages.replace("spec_decode", "other"), "x"), "x")
    assert "speculative" not in import_metrics(without, "x", gpus="H100").draft.mapping["deployment"]


def test_no_draft_is_accepted_more_often_than_the_one_before_it() -> None:
    """Counters that were read a step apart give no share above 1, nor one that rises."""
    pages = drafting_pages(400, 1200, (404, 200, 202))

    found = import_metrics(observed(scrapes_of(pages, "x"), "x"), "x", gpus="2xH100")

    assert found.draft.mapping["deployment"]["speculative"]["acceptance_per_position"] == [1.0, 0.5, 0.5]
