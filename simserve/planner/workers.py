"""Processes on this machine that work through a list of tasks. Knows neither sweeps nor searches.

Where it is safe they are forked: a copy of this process has all that this one has imported, priced and drawn, and
starts in 0.01 s. Elsewhere joblib starts fresh processes, each of which imports simserve itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from simserve.errors import SimserveError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MOST_DEATHS = 3  # Times that workers may die without finishing a task in between.
START_SECONDS = 1.5
"""Fresh processes are started only if they save more than this: half of it is the import in each of them."""
FORK_SECONDS = 0.1  # Copies of this process are made for short tasks only if they save more than this.
Task = tuple[Any, ...]  # The arguments of one call.


Heard = Callable[[int, Any], None]
"""Called with the index of a task that is being worked on, and what it tells of how far it is."""


def each_result(
    function: Callable[..., Any], tasks: Sequence[Task], jobs: int, heard: Heard | None = None
) -> Iterator[Any]:
    """Yield the results of independent tasks in their order, worked on by several processes."""
    kept: dict[int, Any] = {}
    following = 0
    for place, result in results_of(function, tasks, jobs, heard=heard):
        kept[place] = result
        while following in kept:
            yield kept.pop(following)
            following += 1


def results_of(
    function: Callable[..., Any],
    tasks: Sequence[Task],
    jobs: int,
    *,
    are_alike: bool = False,
    heard: Heard | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield the index and the result of every task as it is done, in any order; raise what a task raises.

    When the caller stops asking, for Ctrl-C or otherwise, the processes end.

    Args:
        function: Does a task; defined at module level, so that a process finds it.
        tasks: The arguments of each; results must depend on nothing else.
        jobs: Number of processes; 1: this one alone.
        are_alike: Whether tasks import, load and price much the same, and may be short: this process then does the
            first, so that its copies need not, and continues alone if they would save less than they cost.
        heard: Called with what a task tells while it is worked on: the function then takes ``tell``, to which it may
            pass anything. Fresh processes tell nothing.

    Raises:
        SimserveError: Processes keep dying.
    """
    jobs = min(jobs, len(tasks))
    if jobs > 1 and can_fork() and not are_alike:
        yield from _forked(function, tasks, jobs, heard)
        return
    seconds = 0.0
    for place, task in enumerate(tasks):
        has_forks = can_fork()
        # The first of alike tasks tells nothing about the others: it imports and prices for all.
        if jobs > 1 and place > has_forks and _is_worth_starting(seconds, len(tasks) - place, jobs, has_forks):
            left = tasks[place:]
            results = _forked(function, left, jobs, heard) if has_forks else fresh(function, left, jobs)
            yield from ((place + other, result) for other, result in results)
            return
        begin = time.monotonic()
        result = function(*task) if heard is None else function(*task, tell=partial(heard, place))
        seconds = time.monotonic() - begin
        yield place, result


def can_fork() -> bool:
    """Return whether a copy of this process would work: on Linux, and with no other Python thread.

    A copy has this thread only; locks of other threads would stay locked. On macOS system libraries do not survive.
    """
    return sys.platform == "linux" and threading.active_count() == 1


def _is_worth_starting(seconds: float, num_tasks: int, jobs: int, has_forks: bool) -> bool:
    """Return whether copies of this process, or fresh ones, save time over ``num_tasks`` of ``seconds`` each."""
    return seconds * num_tasks * (1 - 1 / jobs) > (FORK_SECONDS if has_forks else START_SECONDS)


class _Worker:
    """A forked process, and the pipe to it."""

    def __init__(
        self, function: Callable[..., Any], tasks: Sequence[Task], others: Sequence[Connection], *, tells: bool
    ) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.place: int | None = None
        process = multiprocessing.get_context("fork").Process
        self.process = process(target=_serve, args=(theirs, function, tasks, [*others, self.pipe], tells), daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns about any thread. Those of numpy's BLAS wait for work, and numpy handles them in a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def give(self, place: int | None) -> None:
        """Give it a task, or end it; if it has died meanwhile, that is noticed when it is waited for."""
        self.place = place
        try:
            self.pipe.send(place)
        except OSError:
            return

    def end(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(
    pipe: Connection, function: Callable[..., Any], tasks: Sequence[Task], others: Sequence[Connection], tells: bool
) -> None:
    """Do tasks by their index until there are no more. Ctrl-C is left to the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for each in others:
        # With these open, nobody would notice that the parent process has gone.
        each.close()
    more = {"tell": lambda news: pipe.send((None, news))} if tells else {}
    try:
        while (place := pipe.recv()) is not None:
            try:
                answer = True, function(*tasks[place], **more)
            except Exception as failure:  # raised again in the parent process
                answer = False, failure
            pipe.send(answer)
    except (EOFError, BrokenPipeError):
        return


def _forked(
    function: Callable[..., Any], tasks: Sequence[Task], jobs: int, heard: Heard | None
) -> Iterator[tuple[int, Any]]:
    from multiprocessing.connection import wait  # loads sockets, which only forks need

    left = list(range(len(tasks)))[::-1]
    workers: list[_Worker] = []
    deaths = 0
    try:
        while left or workers:
            while left and len(workers) < jobs:
                pipes = [each.pipe for each in workers]
                workers.append(_Worker(function, tasks, pipes, tells=heard is not None))
                workers[-1].give(left.pop())
            ready = wait([worker.pipe for worker in workers])
            for worker in [each for each in workers if each.pipe in ready]:
                place = worker.place
                assert place is not None  # it works on something
                try:
                    is_done, result = worker.pipe.recv()
                except (EOFError, OSError):
                    # It was killed, perhaps for lack of memory: another one does its task.
                    deaths += 1
                    if deaths == MOST_DEATHS:
                        raise dying() from None
                    workers.remove(worker)
                    worker.end()
                    left.append(place)
                    continue
                if is_done is None:
                    assert heard is not None  # otherwise nothing is reported
                    heard(place, result)
                    continue
                if not is_done:
                    raise result
                deaths = 0
                if left:
                    worker.give(left.pop())
                else:
                    workers.remove(worker)
                    worker.end()
                yield place, result
    finally:
        for worker in workers:
            worker.end()


def fresh(function: Callable[..., Any], tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Any]]:
    """Yield the same as `results_of`, always from joblib's fresh processes."""
    from joblib import Parallel, delayed  # takes 0.1 s, which only fresh processes need
    from joblib.externals.loky.process_executor import BrokenProcessPool

    left = dict(enumerate(tasks))
    deaths = 0
    while left:
        pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        # Processes that an earlier call started still have the working folder of that call.
        folder = os.getcwd()
        results = pool(delayed(_at_place)(folder, function, place, task) for place, task in list(left.items()))
        try:
            for place, result in results:
                del left[place]
                deaths = 0
                yield place, result
        except BrokenProcessPool:
            deaths += 1
            if deaths == MOST_DEATHS:
                raise dying() from None
        finally:
            results.close()


def _at_place(folder: str, function: Callable[..., Any], place: int, task: Task) -> tuple[int, Any]:
    """Do a task in a fresh process, in a folder."""
    os.chdir(folder)
    leave_interrupts_to_the_parent()
    return place, function(*task)


def leave_interrupts_to_the_parent() -> None:
    """Ignore Ctrl-C in a worker: a terminal sends it to all processes, and one of them decides."""
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def dying() -> SimserveError:
    """Return the error of workers that keep dying."""
    return SimserveError(
        "worker processes keep dying, perhaps for want of memory",
        remedy="what was finished is kept: run it again with fewer --workers",
    )
