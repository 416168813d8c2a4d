"""RunResult: the figures of a run, the tables behind them, and the scenario. It knows no picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simserve.errors import UsageError
from simserve.metrics.latency import SLO, RequestLatencies, request_latencies, tasks_of
from simserve.metrics.tables import Column, request_columns, series_columns, task_columns
from simserve.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    import pandas as pd

    from simserve.sim.simulate import Simulation

_PANDAS_TYPES = MappingProxyType({"VARCHAR": "object", "BIGINT": "Int64", "INTEGER": "Int32", "BOOLEAN": "boolean"})


class FrozenDict(dict[str, Any]):
    """A dictionary that cannot be changed, so that a summary stays what the run gave."""

    def _refuse(self, *_arguments: Any, **_keywords: Any) -> NoReturn:
        raise TypeError("a summary is read-only; copy it with copy.deepcopy or dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: _thaw(value) for key, value in self.items()}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        summary: Exactly what `result.json` holds; read-only at every level (lists are tuples).
        scenario: The resolved scenario, as plain values.
        simulation: What happened; of several replications, the first.
        slo: The objective that ``slo_ok`` is judged by; None without one.
        background: What pictures show besides (`simserve.report.background`), as plain values; empty where nobody
            asked for pictures.
        folder: Where relative paths of the scenario start; None: the working folder.
    """

    summary: Mapping[str, Any]
    scenario: Mapping[str, Any]
    simulation: Simulation = field(repr=False)
    slo: SLO | None = None
    background: Mapping[str, Any] = field(default_factory=dict, repr=False)
    folder: Path | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", _freeze(self.summary))

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, the columns of `requests.parquet`."""
        return _frame(request_columns(self.simulation.records, self.slo))

    @cached_property
    def latencies(self) -> RequestLatencies:
        """Of every request, seconds."""
        return request_latencies(self.simulation.records)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """One row a task of agents, in order of their numbers; the dollars of all add up to the run's.

        Columns ``task_id calls arrival_s finish_s makespan_s model_s tool_s prompt_tokens output_tokens usd``. Dollars
        are those of the deployment over the run, by the tokens that had to be computed for each task.

        Raises:
            UsageError: The workload has no tasks.
        """
        tasks = tasks_of(self.simulation.records)
        if tasks is None:
            raise UsageError("are not there", key="tasks", remedy="add workload.agents")
        usd_per_hour = self.summary["simserve"]["cost"]["usd_per_hour"]
        total = math.nan if usd_per_hour is None else usd_per_hour * self.summary["duration"] / SECONDS_PER_HOUR
        return _frame(task_columns(tasks, total))

    @cached_property
    def timeseries(self) -> pd.DataFrame:
        """One row a time bin, the columns of `timeseries.parquet`."""
        return _frame(series_columns(self.simulation.totals.series))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row an engine step of the first replication, in the order in which they begin.

        Columns as of `simserve.sim.step_log.StepTable`: ``replica_id start_s seconds prompt_tokens decode_tokens
        context_tokens num_sequences num_admitted num_preempted num_finished``.

        ``attrs["num_steps_of_run"]`` is how many steps there were; the table holds the first 2,000,000 of them.

        Raises:
            UsageError: The run did not keep its steps.
        """
        import pandas as pd  # a fifth of a second, needed by notebooks only

        log = self.simulation.steps
        if log is None:
            raise UsageError("were not kept by this run", key="steps", remedy="run it with steps=True")
        table = log.table()
        frame = pd.DataFrame(table.columns)
        frame.attrs["num_steps_of_run"] = table.num_steps_of_run
        return frame

    @property
    def threshold_failures(self) -> list[str]:
        """The thresholds that failed, each as ``metric expression: value``; empty if all hold."""
        failed = [each for each in self.summary["simserve"]["thresholds"] if not each["ok"]]
        return [f"{each['metric']} {each['expression']}: {_shown(each['value'])}" for each in failed]


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.6g}"


_UNCHANGING = frozenset({str, int, float, bool})
"""Most of a summary; asked by name, since asking an abstract class takes ten times as long."""


def _freeze(value: Any) -> Any:
    if value is None or type(value) in _UNCHANGING:
        return value
    if isinstance(value, FrozenDict):
        # A result made of another: all in it has been frozen.
        return value
    if isinstance(value, Mapping):
        return FrozenDict({key: _freeze(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_freeze(each) for each in value)
    return value


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thaw(each) for key, each in value.items()}
    return [_thaw(each) for each in value] if isinstance(value, tuple) else value


def _frame(columns: Sequence[Column]) -> pd.DataFrame:
    import pandas as pd  # a fifth of a second, needed by notebooks only

    num_rows = max(len(column.cells) for column in columns if column.cells is not None)
    series: dict[str, Any] = {}
    for column in columns:
        if column.cells is None:
            series[column.name] = pd.Series([None] * num_rows, dtype=_PANDAS_TYPES[column.sql_type])
        elif column.labels:
            codes: NDArray[np.int64] = column.cells.astype(np.int64)
            series[column.name] = pd.Categorical.from_codes(codes, pd.Index(column.labels))
        elif column.is_null_below_zero and (column.cells < 0).any():
            series[column.name] = pd.Series(column.cells, dtype="Int64").mask(column.cells < 0)
        else:
            series[column.name] = column.cells
    return pd.DataFrame(series)
