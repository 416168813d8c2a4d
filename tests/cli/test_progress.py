"""What a long command shows: on a terminal one bar that only moves forward, elsewhere lines."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from simserve.cli import progress as shown
from simserve.cli import run as running
from simserve.cli.progress import Steps, counted, progress
from simserve.workload.traces import formats
from tests.cli.conftest import Simserve


def test_the_bar_never_moves_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second part that begins at nothing, or one with more to do, leaves it where it was; what is done is said."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Progress, "update", lambda _bar, _task, **told: seen.append(told))
    monkeypatch.setattr(shown, "AFTER_SECONDS", -1.0)

    with progress(is_shown=True) as tell:
        assert tell is not None
        tell(0, None, "reading")
        for done, total, doing in (
            (1, 4, "search"),
            (3, 4, "search"),
            (0, 2, "confirm"),
            (2, 8, "confirm"),
            (2, 2, "end"),
        ):
            tell(done, total, doing)

    assert [each["completed"] for each in seen] == [0.0, 0.25, 0.75, 0.75, 0.75, 1.0]
    assert [each["total"] for each in seen] == [None, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [each["description"] for each in seen][-3:] == ["confirm", "confirm", "end"]
    assert seen[0]["visible"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that lines go by, seconds, as the one entry of a list."""
    now = [100.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(shown, "AFTER_SECONDS", 2.0)
    monkeypatch.setattr(shown, "TICK_SECONDS", 3600.0)
    return now


def test_a_log_has_a_line_per_activity_and_one_every_ten_seconds(
    clock: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    """None in the first two seconds, nor two within two; they go to stderr, and stdout stays empty."""
    with progress(is_shown=True, label="planning") as tell:
        assert tell is not None
        for seconds, done, doing in (
            (1.0, 0, "deployments"),
            (2.5, 1, "deployments"),
            (9.0, 2, "deployments"),
            (12.5, 3, "deployments"),
            (13.0, 3, "engine settings"),
            (14.6, 4, "engine settings"),
            (16.0, 5, "engine settings"),
        ):
            clock[0] = 100.0 + seconds
            tell(done, 2000, doing, counted(done, 2000))

    assert capfd.readouterr() == (
        "",
        "simserve: 2 s: deployments, 1 of 2,000\n"
        "simserve: 12 s: deployments, 3 of 2,000\n"
        "simserve: 15 s: engine settings, 4 of 2,000\n",
    )


def test_a_log_has_lines_while_a_command_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One long piece of work without a word gets them, too, and the timer is gone afterwards."""
    monkeypatch.setattr(shown, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(shown, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(shown, "TICK_SECONDS", 0.02)
    before, lines = signal.getsignal(signal.SIGALRM), list[str]()

    with progress(is_shown=True, label="replaying"):
        end = time.monotonic() + 20.0
        while len(lines) < 3 and time.monotonic() < end:
            lines += capfd.readouterr().err.splitlines()

    assert [re.sub(r"\d+", "N", line) for line in lines[:3]] == ["simserve: N s: replaying"] * 3
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_log_has_no_line_where_none_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As under ``--quiet``."""
    monkeypatch.setattr(shown, "AFTER_SECONDS", 0.0)
    with progress(is_shown=False) as tell:
        pass

    assert tell is None
    assert capfd.readouterr() == ("", "")


def test_stages_count_their_own_parts() -> None:
    """The bar shows what is done of all that is known, the words what is done of the stage."""
    told: list[tuple[Any, ...]] = []
    steps = Steps(lambda *each: told.append(each))
    for doing, done, known in (("shapes", 0, 2), ("shapes", 2, 2), ("settings", 2, 5), ("settings", 4, 5)):
        steps.begin(doing, "best: 1")
        steps.count(done, known)

    assert told == [
        (0, 2, "shapes", "0 of 2; best: 1"),
        (2, 2, "shapes", "2 of 2; best: 1"),
        (2, 5, "settings", "0 of 3; best: 1"),
        (4, 5, "settings", "2 of 3; best: 1"),
    ]


@pytest.mark.parametrize(
    ("command", "begins", "options"),
    [
        ("run", "(simulating|weighing what to change)", ()),
        ("plan", "(planning|deployments on h100-sxm-80gb)", ("--hardware", "h100-sxm-80gb", "--trials", "0")),
        ("capacity", "looking for the highest load", ("--slo", "ttft=1s,tpot=50ms", "--requests", "300")),
        ("sweep", "sweep", ("--grid", "deployment.replicas=1,2", "--out", "found.parquet", "--force")),
        ("compare", "comparing", ("--with", "two: deployment.replicas=2", "--replications", "2")),
    ],
)
def test_long_commands_say_in_a_log_what_they_do(
    command: str, begins: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, simserve: Simserve, small: str
) -> None:
    """In whole lines on stderr; with ``--quiet`` in none."""
    monkeypatch.setattr(shown, "AFTER_SECONDS", 0.0)
    told = simserve(command, small, *options)
    quiet = simserve(command, small, *options, "--quiet")

    assert told.code == quiet.code == 0, told.stderr
    assert re.match(rf"simserve: \d+ s: {begins}", told.stderr), told.stderr
    assert quiet.stderr == ""


def test_a_run_says_what_it_does_after_its_last_request() -> None:
    """The search for changes took ten seconds, all of them "simulating, 5,000 of 5,000"."""
    told: list[str] = []
    say = running._told(lambda done, total, doing, detail="": told.append(f"{doing} {detail}"))

    say(4, 5)
    say(5, 5)

    assert told == ["simulating 4 of 5", "weighing what to change, and writing the report "]


def test_reading_a_long_trace_is_shown(monkeypatch: pytest.MonkeyPatch, simserve: Simserve, tmp_path: Path) -> None:
    """Before anything is simulated: the first run over one was silent until all of it was read."""
    rows = "".join(f"{each / 10},100,5\n" for each in range(20))
    file = tmp_path / "traffic.csv"
    file.write_text(f"arrival_time,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    real, looks = formats.read_csv, list[int]()
    show = shown._Lines.show_if_due

    def looked_at(lines: Any) -> None:
        show(lines)
        looks.append(1)

    def slow(path: Path) -> Any:
        looks.clear()
        end = time.monotonic() + 20.0
        while not looks and time.monotonic() < end:
            time.sleep(0.01)
        return real(path)

    monkeypatch.setattr(shown, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(shown, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(shown._Lines, "show_if_due", looked_at)
    monkeypatch.setitem(formats.READERS, "csv", slow)
    formats._read.cache_clear()

    run = simserve("run", "llama-3.2-1b", "--gpus", "L4", "--trace", str(file))
    formats._read.cache_clear()
    looked = simserve("trace", str(file))

    assert re.match(r"simserve: \d+ s: reading the traffic\n", run.stderr), run.stderr
    assert re.match(r"simserve: \d+ s: reading\n", looked.stderr), looked.stderr


def test_a_terminal_shows_what_is_done_before_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar without an end, after two seconds, for work that counts nothing."""
    seen = list[dict[str, Any]]()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Progress, "update", lambda _bar, _task, **told: seen.append(told))
    monkeypatch.setattr(shown, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(shown, "TICK_SECONDS", 0.02)

    with progress(is_shown=True, label="reading"):
        end = time.monotonic() + 20.0
        while not seen and time.monotonic() < end:
            time.sleep(0.01)

    assert seen[0] == {"visible": True, "refresh": True}
