"""Agentic Mooncake rows of the second version: what each call waits for, against a walker of the rows themselves."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.errors import TraceError
from simserve.scenario.verify import verify
from simserve.workload.traces.formats import detect, read_trace

pytestmark = pytest.mark.usefixtures("run_alone")

HEADER = {
    "schema": "dynamo.agentic_mooncake",
    "version": 2,
    "block_size": 64,
    "hash_id_scope": "local",
    "source": {"format": "weka", "digest": "0"},
}


def call(name: str, play: str = "p", *waits: tuple[str, str, float], **more: Any) -> dict[str, Any]:
    """Return a row that waits for others: name, trigger, milliseconds."""
    return {
        "request_id": name,
        "play_id": play,
        "session_id": f"{play}-main",
        "model": "m",
        "input_length": 100,
        "output_length": 5,
        "not_before_ms": 0,
        "dependencies": [
            {"request_id": each, "trigger": trigger, "delay_ms": delay, "relation": "sequence"}
            for each, trigger, delay in waits
        ],
    } | more


def written(folder: Path, rows: list[dict[str, Any]], header: dict[str, Any] = HEADER) -> Path:
    """Return a file with these rows behind a header."""
    path = folder / "agentic.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
    return path


def run_of(path: Path, **more: Any) -> ss.RunResult:
    """Return a run of the tasks in a file on one GPU with room."""
    return ss.run(scenario_of(path, **more), advise=False)


def scenario_of(path: Path, **more: Any) -> ss.Scenario:
    """Return the scenario of that run."""
    workload = {"trace": {"path": str(path)}, "agents": {}, "arrivals": {"process": "constant", "rate": 2.0}}
    return ss.load("single-gpu-7b", {"workload": workload | more})


def drawn_rows(seed: int) -> list[dict[str, Any]]:
    """Return the calls of four random graphs; those of a call have one pause, as several would be an estimate."""
    chance, rows = random.Random(seed), []
    for play in range(4):
        for each in range(12):
            named = chance.sample(range(each), min(each, chance.randint(1, 3)))
            pause = chance.choice([0.0, 30.0, 400.0])
            trigger = "dispatch" if len(named) == 1 and chance.random() < 0.3 else "completion"
            rows.append(
                call(
                    f"{play}.{each}",
                    f"play{play}",
                    *((f"{play}.{parent}", trigger, pause) for parent in named),
                    input_length=chance.randint(20, 400),
                    output_length=chance.randint(1, 40),
                    not_before_ms=chance.choice([0, 0, 900.0]) if each else 0,
                )
            )
    chance.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_calls_are_sent_when_the_rows_say(tmp_path: Path, seed: int) -> None:
    """By the times of the answers, each row's own words give the time at which it was sent."""
    rows = drawn_rows(seed)

    table = run_of(written(tmp_path, rows)).requests

    by_play: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_play.setdefault(row["play_id"], []).append(row)
    sizes = {(row["input_length"], row["output_length"]): row["request_id"] for row in rows}
    assert len(sizes) == len(rows)
    found = {sizes[each.prompt_tokens, each.output_tokens]: each for each in table.itertuples()}
    for own in by_play.values():
        begin = min(found[row["request_id"]].arrival_s for row in own)
        for row in own:
            earliest = [begin + row["not_before_ms"] / 1e3]
            for wait in row["dependencies"]:
                before = found[wait["request_id"]]
                moment = before.finish_s if wait["trigger"] == "completion" else before.arrival_s
                earliest.append(moment + wait["delay_ms"] / 1e3)
            assert found[row["request_id"]].arrival_s == pytest.approx(max(earliest), abs=1e-9)


def test_the_reference_sends_them_alike(tmp_path: Path) -> None:
    """Floors on times and pauses, in the plain simulator."""
    found = verify(scenario_of(written(tmp_path, drawn_rows(9))))

    assert found.is_equal
    assert found.largest_difference < 1e-9


def test_what_is_sent_with_another_waits_for_what_that_one_waits_for(tmp_path: Path) -> None:
    """Also beside a call that waits for none."""
    rows = [call("a"), call("b", "p", ("a", "dispatch", 250.0), output_length=7)]

    sent = run_of(written(tmp_path, rows)).requests.set_index("output_tokens")["arrival_s"]

    assert sent[7] - sent[5] == pytest.approx(0.25, abs=1e-9)


def test_blocks_hold_within_a_task(tmp_path: Path) -> None:
    """The same ids in another play are other tokens."""
    prompt = {"input_length": 640, "hash_ids": list(range(10))}
    rows = [call("a", "p", **prompt), call("b", "p", ("a", "completion", 0.0), **prompt), call("c", "q", **prompt)]

    cached = run_of(written(tmp_path, rows)).requests.sort_values("arrival_s")["cached_tokens"].tolist()

    assert sorted(cached)[:2] == [0, 0]
    assert sorted(cached)[2] >= 576


def test_the_format_is_told_and_counted(tmp_path: Path) -> None:
    """By its header; plays are tasks."""
    path = written(tmp_path, drawn_rows(1))

    assert detect(path) == "agentic-mooncake"
    assert len(set(read_trace(path).session.tolist())) == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rows", "header", "says"),
    [
        ([call("a", "p", ("a", "completion", 0.0))], HEADER, "waits for itself"),
        ([call("a", "p", ("b", "completion", 0)), call("b", "p", ("a", "completion", 0))], HEADER, "waits for itself"),
        ([call("a", "p", ("x", "completion", 0.0))], HEADER, "'x', which is no request_id of its play_id"),
        ([call("a"), call("b", "q", ("a", "completion", 0.0))], HEADER, "'a', which is no request_id of its play_id"),
        ([call("a"), call("a")], HEADER, "is already used by an earlier row"),
        ([call("a"), call("b", "p", ("a", "completion", -1.0))], HEADER, "delay_ms of -1.0"),
        ([call("a"), call("b", "p", ("a", "completion", float("nan")))], HEADER, "delay_ms of nan"),
        ([call("a"), call("b", "p", ("a", "sometime", 0.0))], HEADER, "'sometime'; it is completion or dispatch"),
        ([call("a", not_before_ms=-5)], HEADER, "not_before_ms: -5 is not a number of milliseconds"),
        ([call("a", dependencies="b")], HEADER, "is not a list of objects"),
        ([call("a", request_id=None)], HEADER, "request_id: is missing"),
        ([call("a", input_length=0)], HEADER, "input_length: 0.* must be >= 1"),
        ([call("a", hash_ids=["x"])], HEADER, "is not a list of whole numbers"),
        ([], HEADER, "holds no calls"),
        ([call("a")], HEADER | {"version": 3}, "must be 2"),
        ([call("a")], HEADER | {"block_size": 0}, "must be a whole number >= 1"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named(
    tmp_path: Path, rows: list[dict[str, Any]], header: dict[str, Any], says: str
) -> None:
    """One line with its place, never a hang."""
    with pytest.raises(TraceError, match=says):
        read_trace(written(tmp_path, rows, header))


def test_of_several_pauses_the_longest_is_taken(tmp_path: Path) -> None:
    """After two answers with 30 and 400 ms, in either order of the row: 0.4 s behind the last."""
    rows = [call("a"), call("b"), call("c", "p", ("a", "completion", 400.0), ("b", "completion", 30.0))]
    rows.append(call("d", "p", ("a", "completion", 30.0), ("b", "completion", 400.0)))

    tasks = read_trace(written(tmp_path, rows)).tasks

    assert tasks is not None
    assert tasks.tool_time.tolist() == [0.0, 0.0, 0.4, 0.4]
