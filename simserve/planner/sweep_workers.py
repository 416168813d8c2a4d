"""What runs the points of a sweep: this process, loky on this machine, Dask or Ray on many. Knows no grid, no file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from simserve.errors import SimserveError, UsageError
from simserve.planner.sweep_point import Row, Task, run_task

BACKENDS = ("loky", "dask", "ray")
MOST_DEATHS = 3
"""Times that workers may die without a point being finished in between."""
_PACKAGES = {"dask": "distributed", "ray": "ray"}


def check_backend(backend: str, scheduler: str | None) -> None:
    """Do nothing where a backend can be used.

    Raises:
        UsageError: It is unknown or not installed, or takes no scheduler.
    """
    if backend not in BACKENDS:
        remedy = "choose from " + ", ".join(BACKENDS)
        raise UsageError("is not a known backend", key="--backend", value=backend, remedy=remedy)
    if backend == "loky":
        if scheduler is not None:
            raise UsageError("has no meaning for loky", key="--scheduler", remedy="--backend dask or ray")
        return
    if importlib.util.find_spec(_PACKAGES[backend]) is None:
        raise UsageError(
            "is not installed", key="--backend", value=backend, remedy=f"pip install 'simserve[{backend}]'"
        )


def rows_of(tasks: Sequence[Task], *, workers: int, backend: str, scheduler: str | None = None) -> Iterator[Row]:
    """Yield the row of every task as it is done, in any order.

    Args:
        tasks: What to run.
        workers: Processes on this machine; a cluster has its own.
        backend: What runs them; `check_backend` has passed.
        scheduler: Address of a cluster; None: one on this machine, for the time of the sweep.

    Raises:
        SimserveError: Workers keep dying.
    """
    if not tasks:
        return
    if backend == "dask":
        yield from _on_dask(tasks, workers, scheduler)
    elif backend == "ray":
        yield from _on_ray(tasks, workers, scheduler)
    elif workers == 1:
        yield from map(run_task, tasks)
    else:
        yield from _on_loky(tasks, workers)


def _on_loky(tasks: Sequence[Task], workers: int) -> Iterator[Row]:
    from joblib import Parallel, delayed  # a tenth of a second, needed by workers only
    from joblib.externals.loky.process_executor import BrokenProcessPool

    left = {task[0]: task for task in tasks}
    deaths = 0
    while left:
        pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
        rows = pool(delayed(run_task)(task) for task in list(left.values()))
        try:
            for row in rows:
                del left[row["point"]]
                deaths = 0
                yield row
        except BrokenProcessPool:
            deaths += 1
            if deaths == MOST_DEATHS:
                raise _dying() from None
        finally:
            rows.close()


def _on_dask(tasks: Sequence[Task], workers: int, scheduler: str | None) -> Iterator[Row]:
    from distributed import Client, KilledWorker, as_completed

    local: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = Client(**local) if scheduler is None else Client(scheduler, timeout="10 s")
    except (OSError, ValueError) as failure:
        raise _unreachable(scheduler, failure) from None
    with client:
        futures = client.map(run_task, list(tasks), pure=False, retries=MOST_DEATHS)
        try:
            for future in as_completed(futures):
                yield future.result()
        except KilledWorker:
            raise _dying() from None
        finally:
            client.cancel(futures)


def _on_ray(tasks: Sequence[Task], workers: int, scheduler: str | None) -> Iterator[Row]:
    import ray

    own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if scheduler is None else {}
    try:
        ray.init(address=scheduler or "local", log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, ValueError, RuntimeError) as failure:
        raise _unreachable(scheduler, failure) from None
    try:
        remote: Callable[..., Any] = ray.remote(max_retries=MOST_DEATHS)(run_task).remote
        pending = [remote(task) for task in tasks]
        while pending:
            done, pending = ray.wait(pending, num_returns=1)
            yield from ray.get(done)
    except ray.exceptions.WorkerCrashedError:
        raise _dying() from None
    finally:
        with suppress(RuntimeError):
            ray.shutdown()


def _dying() -> SimserveError:
    return SimserveError(
        "worker processes keep dying, perhaps for want of memory",
        remedy="what was finished is kept: run it again with fewer --workers",
    )


def _unreachable(scheduler: str | None, failure: Exception) -> UsageError:
    reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
    return UsageError(f"cannot be reached: {reason}", key="--scheduler", value=scheduler or "a local one")
