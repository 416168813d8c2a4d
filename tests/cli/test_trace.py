"""`simserve trace`: what is printed, the JSON, and the scenario it writes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Simserve
from tests.workload.test_trace_formats import BAILIAN, BURSTGPT, MOONCAKE, SHAREGPT

CSV = "arrival_time,prompt_tokens,output_tokens\n" + "".join(
    f"{i * 0.5},{100 + i % 7},{10 + i % 3}\n" for i in range(400)
)


@pytest.fixture(autouse=True)
def traces(folder: Path) -> None:
    """Write small traces into the working folder."""
    for name, text in (
        ("a.csv", CSV),
        ("m.jsonl", MOONCAKE),
        ("b.csv", BURSTGPT),
        ("s.json", SHAREGPT),
        ("q.jsonl", BAILIAN),
    ):
        (folder / name).write_text(text, encoding="utf-8")


def test_the_answer_comes_first(simserve: Simserve) -> None:
    """Number, span, rate and peak, then burstiness, lengths and totals."""
    done = simserve("trace", "a.csv")

    lines = done.stdout.splitlines()
    assert done.code == 0
    assert lines[0] == "400 requests over 3.32 min: 2 a second on average, 2 in the busiest minute"
    assert lines[1].startswith("Burstiness: times between requests have a cv of 0 (Poisson: 1)")
    assert "prompt tokens" in lines[3]
    assert lines[5] == "41,197 prompt tokens and 4,399 output tokens in all; format csv"


def test_what_else_a_format_knows_is_said(simserve: Simserve) -> None:
    """Shared prefixes, conversations, requests that failed, estimates."""
    assert "42.9% of 7 prefix blocks of 512 tokens were there before" in simserve("trace", "m.jsonl").stdout
    assert "2 conversations" in simserve("trace", "q.jsonl").stdout
    assert "1 further row is left out: nothing was served" in simserve("trace", "b.csv").stdout
    sharegpt = simserve("trace", "s.json").stdout
    assert "no arrival times" in sharegpt
    assert "lengths are estimated, 4 characters a token" in sharegpt


def test_the_command_that_replays_a_trace_names_its_columns(simserve: Simserve, folder: Path) -> None:
    """The line can be pasted: without the columns the trace could not be read."""
    (folder / "named.csv").write_text(CSV.replace("prompt_tokens,output_tokens", "sent,got"), encoding="utf-8")
    columns = "prompt_tokens=sent,output_tokens=got"

    lines = simserve("trace", "named.csv", "--columns", columns).stdout.splitlines()

    assert lines[-2] == f"To replay it: simserve run MODEL --gpus GPU --trace named.csv --columns {columns}"
    assert lines[-1] == "At twice its load: --set workload.trace.time_scale=0.5"
    assert simserve("trace", "a.csv").stdout.splitlines()[-2].endswith("--trace a.csv")


def test_json_holds_every_figure(simserve: Simserve) -> None:
    """One object; null where the format does not say."""
    answer = json.loads(simserve("trace", "m.jsonl", "--json").stdout)

    assert (answer["format"], answer["requests"], answer["unserved"]) == ("mooncake", 3, 0)
    assert answer["arrivals"]["span_s"] == 0.5
    assert answer["arrivals"]["dispersion_index"] is None
    assert answer["prompt_tokens"]["total"] == 2800
    assert answer["prefixes"] == {
        "block_tokens": 512,
        "blocks": 7,
        "distinct_blocks": 4,
        "reuse": pytest.approx(3 / 7),
    }
    assert json.loads(simserve("trace", "s.json", "--json").stdout)["arrivals"] is None


def test_a_format_can_be_said(simserve: Simserve) -> None:
    """A wrong one names what is missing; one that is none is a usage error."""
    assert simserve("trace", "a.csv", "--format", "csv").code == 0
    wrong = simserve("trace", "a.csv", "--format", "burstgpt")
    none = simserve("trace", "a.csv", "--format", "tsv")

    assert (wrong.code, none.code) == (104, 2)
    assert "Timestamp: is missing" in wrong.error_line
    assert "--format: 'tsv' is not a known format" in none.error_line


def test_a_scenario_like_the_trace_runs(simserve: Simserve, folder: Path) -> None:
    """Its notes are its comments; nothing is replaced."""
    options = ("--scenario", "like.yaml", "--model", "llama-3.2-1b", "--hardware", "l4-24gb")
    done = simserve("trace", "a.csv", *options)
    again = simserve("trace", "a.csv", *options)
    run = simserve("run", "like.yaml", "--set", "workload.num_requests=20", "--out", "r", "--json")

    assert done.code == 0
    assert "like.yaml: traffic like it" in done.stdout
    assert "# - Requests come at equal distances." in (folder / "like.yaml").read_text(encoding="utf-8")
    assert again.code == 2
    assert "is there already" in again.error_line
    assert simserve("trace", "a.csv", *options, "--force", "--quiet").stdout == ""
    assert json.loads(run.stdout)["completed"] == 20


def test_options_of_the_scenario_need_it(simserve: Simserve) -> None:
    """They would do nothing."""
    done = simserve("trace", "a.csv", "--model", "llama-3.2-1b")

    assert done.code == 2
    assert "--model: has no effect without --scenario" in done.error_line


def test_a_missing_trace_ends_with_104(simserve: Simserve) -> None:
    """And nothing on stdout."""
    done = simserve("trace", "none.csv")

    assert (done.code, done.stdout) == (104, "")
    assert "none.csv: no such file" in done.error_line


def test_images_and_recordings_are_counted(simserve: Simserve, folder: Path) -> None:
    """With how large they are, in words and in the JSON."""
    head = "arrival_time,prompt_tokens,output_tokens,image_sizes,audio_seconds\n"
    (folder / "media.csv").write_text(head + "0,90,9,1000x1000; 2000x1000,\n1,90,9,,4.5\n", encoding="utf-8")
    done, told = simserve("trace", "media.csv"), simserve("trace", "media.csv", "--json")

    assert "2 images in 1 request, of 1.5 megapixels in the mean" in done.stdout
    assert "1 recording in 1 request, of 4.5 s in the mean" in done.stdout
    assert json.loads(told.stdout)["images"] == {"requests": 1, "pieces": 2, "mean_megapixels": 1.5}
    assert json.loads(told.stdout)["audio"] == {"requests": 1, "pieces": 1, "mean_seconds": 4.5}


def test_an_export_of_usage_gives_the_command_that_prices_it(simserve: Simserve, tmp_path: Path) -> None:
    """Its month, its mean lengths and its day; as it is printed, the command is read."""
    file = tmp_path / "usage.csv"
    rows = "".join(
        f"2026-10-01,{hour},{100 + hour},{100_000 + 1000 * hour},{10_000 + 100 * hour}\n" for hour in range(24)
    )
    file.write_text(f"date,hour,requests,input_tokens,output_tokens\n{rows}", encoding="utf-8")

    found = json.loads(simserve("trace", str(file), "--json").stdout)
    text = simserve("trace", str(file)).stdout

    assert (found["format"], found["requests"], found["requests_per_month"]) == ("usage", 2676, 2676 * 30)
    assert "each row is a sum, not a request" in text
    assert "2.7 M and 267,600 in all" in text
    words = shlex.split(
        found["command"].replace("MODEL", "llama-3.1-8b").replace("GPU", "L4").replace("API ", "gpt-4o ")
    )
    priced = json.loads(simserve(*words[1:], "--json").stdout)
    assert priced["day"]["requests_per_month"] == pytest.approx(2676 * 30)
    assert priced["day"]["hourly_over_mean"][23] == pytest.approx(123 * 24 / 2676, rel=1e-3)
    assert simserve("trace", str(file), "--scenario", str(tmp_path / "s.yaml")).code == 2


def test_usage_of_several_models_says_so(simserve: Simserve, tmp_path: Path) -> None:
    """The sum of a large and a small model's requests is priced as neither; what was cached is cheaper than listed."""
    file = tmp_path / "usage.csv"
    file.write_text(
        "start_time,num_model_requests,model,input_tokens,output_tokens,input_cached_tokens\n"
        "1790812800,300,gpt-4o-mini,300000,30000,60000\n1790812800,100,gpt-4o,100000,10000,40000\n",
        encoding="utf-8",
    )

    text, found = simserve("trace", str(file)).stdout, json.loads(simserve("trace", str(file), "--json").stdout)

    assert "25% of the prompt tokens were found in the API's cache, and cost less" in text
    assert "Of several models, gpt-4o-mini 75%, gpt-4o 25%: price each from its own rows alone" in text
    assert (found["cached_share"], found["models"]) == (0.25, {"gpt-4o-mini": 300, "gpt-4o": 100})


def test_cached_tokens_that_an_export_does_not_know_are_none(simserve: Simserve, tmp_path: Path) -> None:
    """A dash, an empty cell or JSON's null is no reason to refuse the rest."""
    names = "start_time,num_model_requests,input_tokens,output_tokens,input_cached_tokens"
    rows = ("1790812800,3,3000,300,-", "1790816400,3,3000,300,", "1790820000,4,4000,400,1000")
    (tmp_path / "usage.csv").write_text("\n".join((names, *rows)), encoding="utf-8")
    sums = {"num_model_requests": 3, "input_tokens": 4000, "output_tokens": 300}
    results = [{**sums, "input_cached_tokens": None}, {**sums, "input_cached_tokens": 800}]
    page = {"data": [{"start_time": 1790812800, "results": results}]}
    (tmp_path / "usage.json").write_text(json.dumps(page), encoding="utf-8")

    shares = [
        json.loads(simserve("trace", str(tmp_path / name), "--json").stdout)["cached_share"]
        for name in ("usage.csv", "usage.json")
    ]

    assert shares == [0.1, 0.1]


def test_a_run_of_a_log_says_what_it_left_out_and_how_it_was_read(simserve: Simserve, folder: Path) -> None:
    """As `simserve trace` does: requests that failed, columns that were guessed, rows that were sorted, models."""
    rows = [
        {"received_at": 3 - at, "model": model, "usage": None if at == 1 else {"prompt_tokens": 50, "output_tokens": 9}}
        for at, model in enumerate(("large", "large", "small"))
    ]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    done = simserve("run", "llama-3.1-8b", "--gpus", "h100", "--trace", "log.jsonl", "--check")

    assert done.code == 0
    assert "simserve: 1 row is left out: nothing was served." in done.stderr
    assert "prompt_tokens in usage.prompt_tokens" in done.stderr
    assert "the rows are sorted by received_at" in done.stderr
    assert "model names 2 models (small 50%, large 50%)" in done.stderr


def test_a_single_request_has_no_rate(simserve: Simserve) -> None:
    """It was "1 requests over 0 s: - a second"."""
    Path("t.csv").write_text("timestamp,prompt_tokens,output_tokens\n0,100,20\n", encoding="utf-8")

    lines = simserve("trace", "t.csv").stdout.splitlines()

    assert lines[:2] == ["1 request at one moment", "That is too little for a rate or burstiness"]
