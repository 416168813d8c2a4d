"""What runs the points of a sweep: processes on this machine, or Dask or Ray on many. Knows no grid and no file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from simserve.errors import UsageError
from simserve.planner.sweep.point import Row, Task, run_task
from simserve.planner.workers import MOST_DEATHS, dying, fresh, results_of

BACKENDS = ("auto", "loky", "dask", "ray")
"""``auto``: what is fastest on this machine (`simserve.planner.workers`); ``loky``: joblib's fresh processes."""
_PACKAGES = {"dask": "distributed", "ray": "ray"}


def check_backend(backend: str, scheduler: str | None) -> None:
    """Check that a backend can be used.

    Raises:
        UsageError: It is unknown or not installed, or takes no scheduler.
    """
    if backend not in BACKENDS:
        remedy = "choose from " + ", ".join(BACKENDS)
        raise UsageError("is not a known backend", key="--backend", value=backend, remedy=remedy)
    if backend not in _PACKAGES:
        if scheduler is not None:
            raise UsageError("has no meaning on this machine alone", key="--scheduler", remedy="--backend dask or ray")
        return
    if importlib.util.find_spec(_PACKAGES[backend]) is None:
        raise UsageError(
            "is not installed", key="--backend", value=backend, remedy=f"pip install 'simserve[{backend}]'"
        )


def rows_of(tasks: Sequence[Task], *, workers: int, backend: str, scheduler: str | None = None) -> Iterator[Row]:
    """Yield the row of every task as it is done, in any order.

    Args:
        workers: Number of processes on this machine; a cluster has its own.
        backend: What runs them; `check_backend` has passed.
        scheduler: Address of a cluster; None: one on this machine, for the duration of the sweep.

    Raises:
        SimserveError: Workers keep dying.
    """
    if not tasks:
        return
    if backend == "dask":
        yield from _on_dask(tasks, workers, scheduler)
    elif backend == "ray":
        yield from _on_ray(tasks, workers, scheduler)
    elif backend == "loky" and workers > 1:
        yield from (row for _, row in fresh(run_task, [(task,) for task in tasks], workers))
    else:
        yield from (row for _, row in results_of(run_task, [(task,) for task in tasks], workers, are_alike=True))


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
            raise dying() from None
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
        raise dying() from None
    finally:
        with suppress(RuntimeError):
            ray.shutdown()


def _unreachable(scheduler: str | None, failure: Exception) -> UsageError:
    reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
    return UsageError(f"cannot be reached: {reason}", key="--scheduler", value=scheduler or "a local one")
