"""Tests of scrapes as they are written down, and of what an engine did between them."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from simserve.errors import InputError
from simserve.observe.scrapes import in_order, read_scrapes, scrapes_of, text_of
from simserve.observe.windows import observed


def _page(finished: float, prompts: float = 0.0, *, running: float = 0, prefix: str = "vllm:", more: str = "") -> str:
    """Return a page on which requests have 100 tokens each, as far as they are told."""
    count = prompts or finished
    return (
        f'{prefix}request_success_total{{finished_reason="stop",model_name="m"}} {finished}\n'
        f'{prefix}num_requests_running{{model_name="m"}} {running}\n'
        f'{prefix}request_prompt_tokens_bucket{{le="50.0",model_name="m"}} 0\n'
        f'{prefix}request_prompt_tokens_bucket{{le="200.0",model_name="m"}} {count}\n'
        f'{prefix}request_prompt_tokens_bucket{{le="+Inf",model_name="m"}} {count}\n'
        f'{prefix}request_prompt_tokens_sum{{model_name="m"}} {100 * count}\n'
        f'{prefix}request_prompt_tokens_count{{model_name="m"}} {count}\n{more}'
    )


def _series(*pages: str) -> str:
    return "".join(f"# scraped_at {1_700_000_000 + 15 * index}\n{page}" for index, page in enumerate(pages))


def test_what_is_written_is_read_again() -> None:
    """Times, names, labels and figures of scrapes survive a file."""
    scrapes = scrapes_of(_series(_page(3), _page(7)), "x")

    assert scrapes_of("".join(map(text_of, scrapes)), "x") == scrapes


def test_arrivals_are_what_finished_and_what_is_more_in_flight() -> None:
    """Ten finished, and four more run than before: fourteen came."""
    seen = observed(scrapes_of(_series(_page(5, running=1), _page(15, running=5)), "x"), "x")

    assert seen.whole.arrivals == 14
    assert seen.rate == pytest.approx(14 / 15)
    assert seen.whole.histograms["prompt_tokens"].mean == 100


def test_a_counter_that_falls_was_reset() -> None:
    """After a restart what it shows is what came since; nothing is negative."""
    seen = observed(scrapes_of(_series(_page(100), _page(110), _page(4), _page(9)), "x"), "x")

    assert seen.whole.arrivals == 10 + 4 + 5
    assert seen.whole.histograms["prompt_tokens"].count == 19
    assert seen.num_resets > 0


@pytest.mark.parametrize("broken", [_page(math.nan, running=3), _page(12).splitlines()[1] + "\n", "garbage\n"])
def test_a_page_that_tells_less_than_the_one_before_is_passed_over(broken: str) -> None:
    """Nothing that was counted meanwhile is lost, and the window around it is as long as it was."""
    seen = observed(scrapes_of(_series(_page(5), _page(11), broken, _page(17), broken), "x"), "x")

    assert seen.whole.arrivals == 12
    assert seen.whole.histograms["prompt_tokens"].count == 12
    assert [window.seconds for window in seen.windows] == [15, 30]


def test_pages_that_tell_ever_less_are_one_line() -> None:
    """Where no page tells what the first one did, nothing is known of the time between."""
    with pytest.raises(InputError, match="x: has no two scrapes that tell the same counters"):
        observed(scrapes_of(_series(_page(5), _page(math.nan)), "x"), "x")


@pytest.mark.parametrize("value", ["NaN", "-5", "+Inf", "-Inf", "1e300", "abc", ""])
def test_figures_that_can_be_none_are_left_out(value: str) -> None:
    """A negative, infinite, huge or missing counter changes nothing beside it."""
    bad = f'vllm:request_success_total{{finished_reason="length",model_name="m"}} {value}\n'
    seen = observed(scrapes_of(_series(_page(5, more=bad), _page(15, more=bad)), "x"), "x")

    assert seen.whole.arrivals == 10
    assert math.isfinite(seen.rate)


def test_buckets_that_contradict_their_count_stay_within_it() -> None:
    """A histogram whose buckets fall and whose sum jumps back holds no more values than it counts."""
    wild = _page(8).replace('le="50.0",model_name="m"} 0', 'le="50.0",model_name="m"} 900')
    seen = observed(scrapes_of(_series(_page(5), wild), "x"), "x")

    assert sum(seen.whole.histograms["prompt_tokens"].buckets.values()) == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_a_histogram_without_its_sum_has_the_mean_of_its_buckets(is_there: bool) -> None:
    """Values between 50 and 200 tokens lie at 125; a sum that is no number is no mean of 0."""
    pages = []
    for finished in (1, 5):
        lines = [line for line in _page(finished).splitlines() if is_there or "_bucket" not in line]
        pages.append("\n".join(line.replace(f" {100 * finished}", " NaN") for line in lines) + "\n")
    found = observed(scrapes_of(_series(*pages), "x"), "x").whole.histograms["prompt_tokens"]

    assert found.count == 4
    assert found.mean == pytest.approx(125 if is_there else math.nan, nan_ok=True)


def test_pages_saved_under_windows_are_read_as_they_are_elsewhere() -> None:
    """Lines end with a carriage return too, those with times among them."""
    text = _series(_page(3), _page(7))

    assert scrapes_of(text.replace("\n", "\r\n"), "x") == scrapes_of(text, "x")


def test_engines_side_by_side_are_added() -> None:
    """Two instances of a Prometheus server's answer count together, and one restarts alone."""
    rows = []
    for instance, values in (("a", [10, 20, 30]), ("b", [50, 60, 3])):
        points = [[1_700_000_000 + 15 * index, str(value)] for index, value in enumerate(values)]
        for name in ("vllm:request_success_total", "vllm:num_requests_running"):
            metric = {"__name__": name, "instance": instance, "model_name": "m"}
            rows.append(
                {"metric": metric, "values": points if name.endswith("total") else [[t, "0"] for t, _ in points]}
            )
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": rows}})

    seen = observed(scrapes_of(text, "x"), "x")

    assert seen.num_engines == 2
    assert seen.whole.arrivals == 20 + 10 + 3


@pytest.mark.parametrize(
    ("prefix", "engine"), [("vllm:", "vllm"), ("trtllm_", "tensorrt-llm"), ("trtllm:", "tensorrt-llm")]
)
def test_engines_are_told_by_their_names(prefix: str, engine: str) -> None:
    """TensorRT-LLM's names have either separator."""
    assert observed(scrapes_of(_series(_page(1, prefix=prefix), _page(5, prefix=prefix)), "x"), "x").engine == engine


def test_sglang_has_names_of_its_own() -> None:
    """Requests, queue, use and hit rate of SGLang are read under its names."""

    def page(count: int) -> str:
        return (
            f'sglang:num_requests_total{{model_name="m"}} {count}\nsglang:num_running_reqs{{model_name="m"}} 2\n'
            f'sglang:num_queue_reqs{{model_name="m"}} 1\nsglang:token_usage{{model_name="m"}} 0.28\n'
            f'sglang:cache_hit_rate{{model_name="m"}} 0.4\n'
        )

    seen = observed(scrapes_of(_series(page(1), page(6)), "x"), "x")

    assert seen.engine == "sglang"
    assert (seen.whole.arrivals, seen.hit_rate, seen.whole.gauges["kv_usage"]) == (5, 0.4, 0.28)
    assert (seen.whole.gauges["running"], seen.whole.gauges["waiting"]) == (2, 1)


def test_a_folder_has_its_times_in_the_names_of_its_files(tmp_path: Path) -> None:
    """Pages saved as metrics-SECONDS.prom are in order of their times."""
    for at, count in ((1_700_000_030, 9), (1_700_000_000, 1)):
        (tmp_path / f"metrics-{at}.prom").write_text(_page(count))

    assert [scrape.time for scrape in read_scrapes(tmp_path)] == [1_700_000_000, 1_700_000_030]


def test_an_empty_page_is_named_and_so_is_what_is_no_file(tmp_path: Path) -> None:
    """Of a folder, the file that is empty."""
    (tmp_path / "metrics-1700000000.prom").write_text(_page(1))
    (tmp_path / "metrics-1700000030.prom").write_text(" \n")

    with pytest.raises(InputError, match=r"metrics-1700000030\.prom.*is empty; save the page"):
        read_scrapes(tmp_path)
    with pytest.raises(InputError, match="no such file or folder"):
        read_scrapes(tmp_path / "none")


def test_files_may_be_compressed(tmp_path: Path) -> None:
    """As the recording of a real server in this repository is; a damaged one is one line."""
    page = b"# scraped_at 1700000000\nvllm:num_requests_running 3\n"
    whole, cut = tmp_path / "a.prom.gz", tmp_path / "b.prom.gz"
    whole.write_bytes(gzip.compress(page))
    cut.write_bytes(gzip.compress(page)[:-9])

    assert read_scrapes(whole)[0].time == 1_700_000_000.0
    with pytest.raises(InputError, match="truncated or damaged gzip"):
        read_scrapes(cut)


def test_a_small_file_of_endless_zeros_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it decompresses to is bounded as files are."""
    monkeypatch.setattr("simserve.observe.scrapes.LARGEST_FILE", 100_000)
    bomb = tmp_path / "a.prom.gz"
    bomb.write_bytes(gzip.compress(bytes(10_000_000)))

    with pytest.raises(InputError, match="has more than"):
        read_scrapes(bomb)


def test_samples_may_carry_their_times() -> None:
    """A page of samples with times in milliseconds is as many scrapes as it has times."""
    lines = [f'vllm:request_success_total{{model_name="m"}} {n} {1_700_000_000_000 + 15_000 * n}' for n in range(3)]

    assert [scrape.time for scrape in in_order(scrapes_of("\n".join(lines), "x"))] == [
        1_700_000_000 + 15 * n for n in range(3)
    ]


@pytest.mark.parametrize(
    "text",
    ["", "garbage\x00\xff", "{", '{"status": "success"}', '{"status":"success","data":{"result":[1,null]}}', "[" * 99],
)
def test_what_holds_no_metrics_is_one_line(text: str) -> None:
    """Nothing, noise and answers that are none are refused."""
    with pytest.raises(InputError):
        scrapes_of(text, "x")


def test_a_refusal_of_prometheus_is_passed_on() -> None:
    """Its own words stand in the line."""
    with pytest.raises(InputError, match="bad_data: parse error"):
        scrapes_of('{"status":"error","error":"bad_data: parse error"}', "x")


def test_several_pages_without_times_are_refused(tmp_path: Path) -> None:
    """Which came first cannot be known: the line says how to say it."""
    for name in "ab":
        (tmp_path / f"{name}.prom").write_text(_page(1))

    with pytest.raises(InputError, match="not when each was made"):
        observed(read_scrapes(tmp_path), tmp_path)


def test_sglang_tells_prefix_hits_by_tokens_of_prompts() -> None:
    """It has no counter of queries: 300 of 1,200 tokens between the scrapes were in its cache."""
    pages = (
        f'sglang:num_requests_total{{model_name="m"}} {requests}\n'
        f'sglang:prompt_tokens_total{{model_name="m"}} {prompts}\n'
        f'sglang:cached_tokens_total{{model_name="m"}} {cached}\n'
        for requests, prompts, cached in ((2, 500, 100), (5, 900, 250), (8, 1700, 400))
    )

    assert observed(scrapes_of(_series(*pages), "x"), "x").hit_rate == pytest.approx(0.25)
