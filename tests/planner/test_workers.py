"""Processes that work through tasks: every task once, in whatever order, whatever becomes of a process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve.errors import SimserveError, UsageError
from simserve.planner import workers
from simserve.planner.workers import can_fork, each_result, fresh, results_of


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork whatever threads other tests have left: none of them holds what a task here needs."""
    if sys.platform != "linux":
        pytest.skip("forks on Linux only")
    monkeypatch.setattr(workers, "can_fork", lambda: True)


def square(number: int) -> tuple[int, int]:
    """Return a square, and who computed it."""
    return number * number, os.getpid()


def refuse(number: int) -> int:
    """Do what a task with a bad scenario does."""
    if number == 2:
        raise UsageError("is refused", key="number", value=number)
    return number


def die_once(mark: str, number: int) -> int:
    """End the process at one of the tasks, the first time."""
    if number == 3 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(number: int) -> None:
    """End the process, whatever the task."""
    assert multiprocessing.parent_process() is not None
    os.kill(os.getpid(), signal.SIGKILL)


def left_behind() -> list[str]:
    """Return the processes of a pool that are still there; those of joblib, which other tests leave, count not."""
    return [each.name for each in multiprocessing.active_children() if not each.name.startswith("LokyProcess")]


@pytest.mark.usefixtures("forking")
def test_results_come_in_the_order_of_the_tasks_from_several_processes() -> None:
    """None of which is this one."""
    found = list(each_result(square, [(number,) for number in range(20)], 2))

    assert [result for result, _ in found] == [number * number for number in range(20)]
    assert os.getpid() not in {process for _, process in found}
    assert not left_behind()


def test_one_job_is_done_here() -> None:
    """And so is a single task."""
    for tasks, jobs in (([(1,), (2,)], 1), ([(1,)], 4)):
        assert {process for _, (_, process) in results_of(square, tasks, jobs)} == {os.getpid()}


def count_to(number: int, tell: Callable[[int], None]) -> int:
    """Tell every number on the way."""
    for each in range(number):
        tell(each)
    return number


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_task_tells_how_far_it_is(jobs: int) -> None:
    """From another process as from this one, in its order, and before its result."""
    heard: dict[int, list[int]] = {0: [], 1: [], 2: []}

    found = dict(results_of(count_to, [(2,), (3,), (4,)], jobs, heard=lambda place, each: heard[place].append(each)))

    assert found == {0: 2, 1: 3, 2: 4}
    assert heard == {0: [0, 1], 1: [0, 1, 2], 2: [0, 1, 2, 3]}


@pytest.mark.usefixtures("forking")
def test_what_a_task_raises_is_raised() -> None:
    """With its key, and no process is left behind."""
    with pytest.raises(UsageError, match="number"):
        list(results_of(refuse, [(number,) for number in range(9)], 2))

    assert not left_behind()


@pytest.mark.usefixtures("forking")
def test_the_task_of_a_killed_process_is_done_by_another(tmp_path: Path) -> None:
    """And no other one twice."""
    tasks = [(str(tmp_path / "mark"), number) for number in range(9)]

    assert sorted(results_of(die_once, tasks, 2)) == [(number, number) for number in range(9)]
    assert (tmp_path / "mark").exists()


@pytest.mark.usefixtures("forking")
def test_processes_that_keep_dying_are_an_error() -> None:
    """Not a search for ever."""
    with pytest.raises(SimserveError, match="keep dying"):
        list(results_of(die, [(1,), (2,)], 2))


@pytest.mark.usefixtures("forking")
def test_who_stops_asking_ends_the_processes() -> None:
    """As a Ctrl-C does."""
    found = results_of(square, [(number,) for number in range(50)], 2)
    next(found)

    found.close()  # type: ignore[attr-defined]

    assert not left_behind()


@pytest.mark.usefixtures("forking")
def test_alike_tasks_are_forked_only_where_that_saves_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is done here, so that its copies have what it has loaded; the second tells how long the others are."""
    tasks = [(number,) for number in range(6)]

    short = sorted(results_of(square, tasks, 2, are_alike=True))
    monkeypatch.setattr(workers, "FORK_SECONDS", 0.0)
    forked = sorted(results_of(square, tasks, 2, are_alike=True))

    assert {process for _, (_, process) in short} == {os.getpid()}
    assert [place for place, (_, process) in forked if process == os.getpid()] == [0, 1]
    assert [result for _, (result, _) in forked] == [result for _, (result, _) in short] == [0, 1, 4, 9, 16, 25]


def test_a_process_with_threads_is_not_forked() -> None:
    """What they have locked would stay locked."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        is_over.set()
        thread.join()


def test_fresh_processes_are_started_only_where_they_save_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two short tasks are done sooner than a process has imported anything; the first tells how long they are."""
    monkeypatch.setattr(workers, "can_fork", lambda: False)
    asked: list[int] = []
    monkeypatch.setattr(workers, "fresh", lambda function, tasks, jobs: asked.append(len(tasks)) or iter(()))
    tasks = [(number,) for number in range(5)]

    here = list(results_of(square, tasks, 2))
    monkeypatch.setattr(workers, "START_SECONDS", 0.0)
    first = list(results_of(square, tasks, 2))

    assert ([result for _, (result, _) in here], len(first)) == ([0, 1, 4, 9, 16], 1)
    assert asked == [4]


def test_fresh_processes_give_the_same() -> None:
    """By joblib, each with an interpreter of its own."""
    found = dict(fresh(square, [(number,) for number in range(6)], 2))

    assert {place: result for place, (result, _) in found.items()} == {number: number * number for number in range(6)}
    assert os.getpid() not in {process for _, process in found.values()}


def read(name: str) -> str:
    """Return the text of a file named as a scenario names one: from the folder that one stands in."""
    return Path(name).read_text()


def test_fresh_processes_stand_where_this_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joblib keeps them from call to call, and a notebook may have gone to another folder in between."""
    found = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "note").write_text(name)
        monkeypatch.chdir(folder)
        found.append({result for _, result in fresh(read, [("note",)] * 4, 2)})

    assert found == [{"here"}, {"there"}]
