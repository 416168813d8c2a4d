"""The film: what it shows is what the run recorded, over the moment that it says."""

from __future__ import annotations

import html
import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.engine.state import EVICTED
from simserve.errors import InvariantError, UsageError
from simserve.metrics.result import RunResult
from simserve.perf.pipeline import pipeline_bubble
from simserve.profiles import catalog
from simserve.report.film import MOST_REPLICAS, MOST_STEPS, film_of, film_page, pipeline_rounds, worst_moment
from simserve.sim.step_log import StepLog
from tests.scenario.builders import make_scenario


@cache
def ran(**changes: Any) -> RunResult:
    """Return a run of some seconds that kept its steps."""
    return ss.run(make_scenario(**{each: json.loads(value) for each, value in changes.items()}), steps=True)


def plain() -> RunResult:
    """Return a run with a queue."""
    engine = {"name": "vllm", "version": "0.12", "max_num_seqs": 8, "max_model_len": 4096}
    deployment = {"hardware": "h100-sxm-80gb", "engine": engine}
    workload = {
        "arrivals": {"process": "poisson", "rate": 60},
        "prompt_tokens": {"distribution": "uniform", "min": 50, "max": 900},
        "output_tokens": {"distribution": "uniform", "min": 2, "max": 60},
        "num_requests": 60,
    }
    return ran(model=json.dumps("llama-3.1-8b"), deployment=json.dumps(deployment), workload=json.dumps(workload))


def short_of_kv() -> RunResult:
    """Return a run in which requests are preempted."""
    engine = {"name": "vllm", "version": "0.12", "max_model_len": 1024, "num_gpu_blocks_override": 80}
    deployment = {"hardware": "h100-sxm-80gb", "engine": engine}
    workload = {
        "arrivals": {"process": "poisson", "rate": 30},
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "fixed", "value": 200},
        "num_requests": 40,
    }
    return ran(model=json.dumps("llama-3.1-8b"), deployment=json.dumps(deployment), workload=json.dumps(workload))


@cache
def drafting() -> RunResult:
    """Return a run that decodes speculatively."""
    return ss.run(ss.load("speculative-decoding", ["workload.num_requests=60"]), steps=True)


@cache
def piped(version: str = "0.33") -> RunResult:
    """Return a run on four pipeline stages; that version of vLLM spreads requests over them."""
    overrides = [
        f'deployment.engine.version="{version}"',
        "deployment.tensor_parallel_size=1",
        "deployment.pipeline_parallel_size=4",
        "deployment.quantization=none",
    ]
    shorter = ["model=llama-3.1-8b", "workload.num_requests=40", "workload.arrivals.rate=1"]
    return ss.run(ss.load("chatbot", [*overrides, *shorter]), steps=True)


def tokens(replica: dict[str, Any], request: dict[str, Any], at: float) -> int:
    """Return the tokens that a request has at a time, as the player counts them."""
    ends = np.array([step[1] for step in replica["steps"]])
    made, last = request["made"], ""
    for name, start, end in request["phases"]:
        if name == "decode":
            made += last != "preempted" and 0 < start <= at
            since, until = max(start, 0.0), min(end, at)
            steps = request["begun"] if start <= 0 <= until else 0
            steps += int(((ends > since) & (ends <= until)).sum()) if until > since else 0
            made += int(request["pace"] * steps)
        last = name
    return int(min(made, request["output"]))


def test_every_request_has_all_its_tokens_when_it_leaves() -> None:
    """Counted as the player counts: one with the prompt, one a step from then on."""
    result = plain()
    film = film_of({"run": result})
    (replica,) = film["scenes"][0]["replicas"]
    finish = result.simulation.records.finish_time - film["start"]
    there = [each for each in replica["requests"] if 0 < finish[each["id"]] < film["end"] - film["start"]]

    counted = {each["id"]: tokens(replica, each, float(finish[each["id"]]) + 1e-6) for each in there}

    assert len(there) > 20
    assert counted == {each["id"]: each["output"] for each in there}


def test_a_seat_of_a_static_batch_makes_its_tokens_and_then_waits_for_the_longest() -> None:
    """Though all its answers are handed over at once: only the longest of a batch never waits."""
    engine = {"name": "vllm", "version": "0.12", "max_num_seqs": 4, "max_model_len": 4096}
    engine |= {"batching": "static", "static_batch_size": 4}
    deployment = {"hardware": "h100-sxm-80gb", "engine": engine}
    workload = {
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "uniform", "min": 2, "max": 60},
        "num_requests": 8,
    }
    result = ran(model=json.dumps("llama-3.1-8b"), deployment=json.dumps(deployment), workload=json.dumps(workload))

    film = film_of({"run": result})

    (replica,) = film["scenes"][0]["replicas"]
    finish = result.simulation.records.finish_time - film["start"]
    there = [each for each in replica["requests"] if 0 < finish[each["id"]] < film["end"] - film["start"]]
    counted = {each["id"]: tokens(replica, each, float(finish[each["id"]]) + 1e-6) for each in there}
    kinds = {each["id"]: [name for name, _, _ in each["phases"] if name != "queue"] for each in there}
    assert len(there) >= 4
    assert counted == {each["id"]: each["output"] for each in there}
    for when in set(finish):
        batch = [each for each in there if finish[each["id"]] == when]
        longest = max((each["output"] for each in batch), default=0)
        assert all(
            kinds[each["id"]] == ["prefill", "decode", *(["held"] if each["output"] < longest else [])]
            for each in batch
        )


def test_drafts_give_several_tokens_a_step() -> None:
    """Each request at the rate drawn for it, so that it has all its tokens when it leaves; without drafts it is one."""
    result = drafting()
    film = film_of({"run": result})
    (replica,) = film["scenes"][0]["replicas"]
    finish = result.simulation.records.finish_time - film["start"]
    there = [each for each in replica["requests"] if 0 < finish[each["id"]] < film["end"] - film["start"]]

    counted = {each["id"]: tokens(replica, each, float(finish[each["id"]]) + 1e-6) for each in there}

    assert len(there) > 5
    assert counted == {each["id"]: each["output"] for each in there}
    assert float(np.mean([each["pace"] for each in there])) > 1.5
    assert {each["pace"] for each in film_of({"run": plain()})["scenes"][0]["replicas"][0]["requests"]} == {1.0}


def test_accepted_drafts_are_those_of_the_run() -> None:
    """Step by step no more than are verified, and over the run the share that its result says."""
    result = drafting()
    replica = film_of({"run": result})["scenes"][0]["replicas"][0]
    decoding = np.array([step[2] for step in replica["steps"]])
    verified, accepted = replica["drafts"]["ahead"] * decoding, np.array(replica["drafts"]["accepted"])
    log = result.simulation.steps
    assert isinstance(log, StepLog)
    steps = log.steps(log.replicas[0])
    whole = (steps.gained_tokens - steps.num_decoding).sum() / (replica["drafts"]["ahead"] * steps.num_decoding.sum())

    assert len(accepted) == len(replica["steps"])
    assert (accepted <= verified + 0.05).all()
    assert accepted.sum() > 0
    assert whole == pytest.approx(result.summary["simserve"]["speculation"]["acceptance_rate"], rel=0.03)
    assert film_of({"run": plain()})["scenes"][0]["replicas"][0]["drafts"] is None


def test_a_film_of_a_pipeline_shows_rounds_by_stage_and_micro_batch() -> None:
    """One a step: fewer sequences than stages leave bubbles, and beside a long prompt the other micro-batches wait."""
    replica = film_of({"run": piped()})["scenes"][0]["replicas"][0]
    pipeline = replica["pipeline"]
    rounds = list(zip(replica["steps"], pipeline["rounds"], strict=True))
    decoding = [(step[2], found) for step, found in rounds if not step[3]]
    mixed = [(step, found) for step, found in rounds if step[2] and step[3] == 1]

    assert (len(pipeline["layers"]), sum(pipeline["layers"])) == (4, 32)
    assert {sequences for sequences, _ in decoding} >= {2, 3, 4}
    for sequences, (slots, idle, *groups) in decoding:
        assert (slots, idle, groups) == (4.0, 1.0 - sequences / 4, [(sequences, 1, 1.0)])
    for step, (_, idle, first, *others) in mixed:
        assert first == (1, step[4], 1.0)
        assert sum(count for count, _, _ in others) == min(step[2], 3)
        assert all(0.0 < share < 1.0 for _, _, share in others)
        assert idle == pytest.approx(1.0 - sum(count * share for count, _, share in (first, *others)) / 4, abs=2e-3)
    assert mixed
    assert 0.0 < pipeline["idle"] < 0.5
    assert film_of({"run": plain()})["scenes"][0]["replicas"][0]["pipeline"] is None


def test_a_film_shows_requests_that_stay_in_one_micro_batch() -> None:
    """Under vLLM 0.12, which keeps those together that it found together: one stage works while three wait."""
    replica = film_of({"run": piped("0.12")})["scenes"][0]["replicas"][0]
    rounds = list(zip(replica["steps"], replica["pipeline"]["rounds"], strict=True))
    decoding = [(step[2], found) for step, found in rounds if not step[3] and step[2] > 1]

    assert decoding
    for sequences, (slots, idle, *groups) in decoding:
        assert (slots, idle, groups) == (4.0, 0.75, [(1, sequences, 1.0)])


def test_a_film_of_a_pipeline_finds_what_lies_beside_the_scenario(tmp_path: Path) -> None:
    """Profiles whose paths start in the folder of the scenario file, wherever the film is asked for."""
    profile = catalog.find("model", "llama-3.1-8b").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(profile.replace("llama-3.1-8b", "mine", 1), encoding="utf-8")
    (tmp_path / "scenario.yaml").write_text(
        "name: mine\nmodel: mine.yaml\n"
        "deployment: {hardware: h100-sxm-80gb, pipeline_parallel_size: 2}\n"
        "workload: {arrivals: {process: poisson, rate: 2}, prompt_tokens: 200, output_tokens: 20, num_requests: 10}\n",
        encoding="utf-8",
    )

    film = film_of({"run": ss.run(ss.load(tmp_path / "scenario.yaml"), steps=True)})

    assert film["scenes"][0]["replicas"][0]["pipeline"]["layers"] == (16, 16)


def test_every_micro_batch_passes_every_stage_in_a_round() -> None:
    """Whatever the layers: what stages do and what they idle is the whole round, of the sequences that there are."""
    log = piped().simulation.steps
    assert isinstance(log, StepLog)
    replica, steps = log.replicas[0], log.steps(log.replicas[0])
    for layers, piece in (((8, 8, 8, 8), None), ((4, 12, 8, 8), None), ((8, 8, 8, 8), 64)):
        for place, found in enumerate(pipeline_rounds(replica, steps, layers, piece)):
            busy = sum(count * share for count, _, share in found.groups) * sum(layers) / max(layers)
            batches = sum(count for count, _, _ in found.groups)
            most = int(steps.num_decoding[place] + steps.num_prefilling[place])

            assert busy / (found.slots * 4) + found.idle == pytest.approx(1.0, abs=2e-3)
            assert found.slots >= batches
            if piece is None or not steps.num_prefilling[place]:
                assert batches <= min(most, 4)
            else:
                assert found.idle == pytest.approx(pipeline_bubble(4, batches), abs=1e-3)


@pytest.mark.slow
def test_preemptions_are_told_of_whom_they_befell() -> None:
    """Also where requests are sent in another order than they were drawn in."""
    engine = ["deployment.engine.num_gpu_blocks_override=1100", "workload.arrivals.rate=4"]
    result = ss.run(ss.load("multi-turn", ["workload.num_requests=300", *engine]), steps=True)
    log, records = result.simulation.steps, result.simulation.records
    assert isinstance(log, StepLog)
    events = log.evictions(log.replicas[0])
    counted = np.bincount(events[events[:, 2] == EVICTED, 0].astype(np.int64), minlength=len(records))

    assert counted.sum() > 20
    assert counted.tolist() == records.num_preemptions.tolist()


def test_steps_are_those_of_the_step_log() -> None:
    """Every step that overlaps the film, with its times and what it computes."""
    result = plain()
    film = film_of({"run": result})
    table = result.steps
    kept = (table.start_s + table.seconds > film["start"] + 1e-9) & (table.start_s < film["end"] - 1e-9)
    shown = np.array(film["scenes"][0]["replicas"][0]["steps"])

    np.testing.assert_allclose(shown[:, 0], table.start_s[kept] - film["start"], atol=2e-6)
    np.testing.assert_allclose(shown[:, 1] - shown[:, 0], table.seconds[kept], atol=2e-6)
    assert shown[:, 4].tolist() == table.prompt_tokens[kept].tolist()
    assert (shown[:, 2] + shown[:, 3]).tolist() == table.num_sequences[kept].tolist()


def test_nobody_shares_a_seat() -> None:
    """Who runs has a row of its own, and no more rows than seats are needed."""
    (replica,) = film_of({"run": plain()})["scenes"][0]["replicas"]
    waiting = ("queue", "preempted")
    spans: dict[int, list[tuple[float, float]]] = {}
    for each in replica["requests"]:
        own = [(start, end) for name, start, end in each["phases"] if name not in waiting]
        if own:
            spans.setdefault(each["seat"], []).append((own[0][0], own[-1][1]))

    assert max(spans) + 1 <= replica["seats"] == 8
    for rows in spans.values():
        ordered = sorted(rows)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ordered))


def test_the_moment_is_the_longest_queue_or_the_first_preemption() -> None:
    """And says which; a run in which nobody waits shows its fullest batch."""
    queued, preempted = worst_moment(plain()), film_of({"run": short_of_kv()})

    assert "longest queue" in queued.why
    assert preempted["why"] == "the first preemption"
    assert len(film_page(preempted, "preempted")) > 10_000
    names = {phase[0] for each in preempted["scenes"][0]["replicas"][0]["requests"] for phase in each["phases"]}
    assert {"preempted", "recompute"} <= names


@pytest.mark.parametrize("delay", ["8 s", "20 s"], ids=["starts at the moment", "starts after it"])
def test_a_replica_that_starts_late_does_not_lengthen_the_film(delay: str) -> None:
    """It has the most steps of all, but none before the moment: the film was the whole run until then."""
    spike = "[{rate: 2, duration: 4 s}, {rate: 160, duration: 12 s}, {rate: 4, duration: 110 s}]"
    startup = f"{{schedule: {delay}, image: 1 s, load_bandwidth: 20 GB/s, engine: 1 s}}"
    scaling = f"{{metric: queue_depth, target: 2, max_replicas: 3, interval: 1 s, startup: {startup}}}"
    changes = [f"workload.arrivals={{process: steps, steps: {spike}}}", "workload.duration=126 s"]
    fleet = ["deployment.replicas=1", f"deployment.autoscaling={scaling}"]

    result = ss.run(ss.load("cold-start", [*changes, *fleet]), steps=True)
    moment, log = worst_moment(result), result.simulation.steps

    assert "longest queue" in moment.why
    assert moment.start < 16 < moment.end + 1, "the queue is longest when the spike ends"
    assert isinstance(log, StepLog)
    shown = [log.steps(each).between(moment.start, moment.end) for each in log.replicas]
    assert max(len(each.start_time) for each in shown) <= MOST_STEPS + 1


def test_a_film_is_bounded() -> None:
    """A run of thousands of requests on more replicas than are shown."""
    result = ss.run(ss.load("chatbot", ["deployment.replicas=6", "workload.num_requests=3000"]), steps=True)
    film = film_of({"run": result})
    (scene,) = film["scenes"]

    assert (len(scene["replicas"]), scene["hidden"]) == (MOST_REPLICAS, 2)
    assert max(len(each["steps"]) for each in scene["replicas"]) <= 2 * MOST_STEPS
    assert len(film_page(film, "x")) < 2_000_000


def test_a_page_fetches_nothing_and_is_the_same_again() -> None:
    """No address of another machine; the data cannot end its script."""
    pages = [film_page(film_of({"a </script><b>": plain()}), "<b>") for _ in range(2)]

    assert pages[0] == pages[1]
    assert not re.search(r"https?://|url\(|@import", pages[0])
    assert pages[0].count("</script>") == 2
    assert "<b>" not in pages[0]


def test_two_runs_share_a_clock() -> None:
    """Of the same arrivals: the moment is the first one's."""
    film = film_of({"queued": plain(), "short": short_of_kv()})

    assert [scene["name"] for scene in film["scenes"]] == ["queued", "short"]
    assert film["why"] == worst_moment(plain()).why


def test_a_notebook_plays_it_in_a_frame_of_its_own() -> None:
    """Escaped, so that it cannot end the frame; a run without steps is refused by its name."""
    film = plain().film(short=short_of_kv())
    shown = film._repr_html_()

    assert shown.startswith("<iframe")
    assert shown.count('"') == 6
    assert html.unescape(shown.split('srcdoc="')[1].split('"')[0]) == film.page
    with pytest.raises(UsageError, match="steps=True"):
        plain().film(other=ss.run(make_scenario()))


def test_a_run_without_steps_has_no_film() -> None:
    """It is a defect to ask."""
    with pytest.raises(InvariantError, match="kept its steps"):
        film_of({"run": ss.run(make_scenario())})
