"""RunResult: the figures of a run, the tables behind them (requests and time series, as columns), and the scenario.

Knows no plots, no files and no exit codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import UsageError
from simserve.metrics.latency import MS, SLO, RequestLatencies, request_latencies, requests_meeting, tasks_of
from simserve.metrics.summary import FrozenDict
from simserve.sim.records import COMPLETED, SERVERS, STATUSES, RequestRecords
from simserve.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    import pandas as pd

    from simserve.sim.recorder import TimeSeries
    from simserve.sim.simulate import Simulation


_PANDAS_TYPES = MappingProxyType({"VARCHAR": "object", "BIGINT": "Int64", "INTEGER": "Int32", "BOOLEAN": "boolean"})


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str  # As in the file; the unit is in the name.
    cells: NDArray[Any] | None  # Shape [rows]; NaN is null. None: null throughout.
    sql_type: str  # Its type in the file.
    labels: tuple[str, ...] = ()  # What the integers in ``cells`` stand for; empty for plain integers.
    is_null_below_zero: bool = False  # Whether a negative integer is null.


def request_columns(records: RequestRecords, slo: SLO | None) -> list[Column]:
    """Return the columns of ``requests.parquet``, one row a request, in order of arrival.

    ``class session_id turn`` are null without classes and sessions, the latter two also for single requests beside
    conversations; ``slo_ok`` is null without an SLO. ``served_by`` is ``replica``, ``api`` or ``cache`` for completed
    requests, and null for the others. ``ttft_ms`` is set once there is a first token; ``tpot_ms e2el_ms`` only for
    completed requests. With disaggregation the times of the KV transfer follow; with agents' tasks ``task_id``; if
    requests think, the thinking tokens and when the answers began; with LoRA adapters the number of each request's
    adapter, null for the base model.
    """
    latencies = request_latencies(records)
    visible = latencies.thinking_ttfvt
    optional = (
        Column("prefill_replica_id", records.prefill_replica_id, "INTEGER"),
        Column("prefill_end_s", records.prefill_end_time, "DOUBLE"),
        Column("transfer_start_s", records.transfer_start_time, "DOUBLE"),
        Column("transfer_end_s", records.transfer_end_time, "DOUBLE"),
        Column("task_id", records.task, "BIGINT", is_null_below_zero=True),
        Column("thinking_tokens", records.thinking_tokens, "BIGINT"),
        Column("answer_s", records.answer_time, "DOUBLE"),
        Column("ttfvt_ms", None if visible is None else visible * MS, "DOUBLE"),
        Column("adapter", records.adapter, "BIGINT", is_null_below_zero=True),
        Column("region", records.client_region, "VARCHAR", records.region_names),
    )
    turns = records.turn
    if turns is not None and records.session is not None:  # a single request beside conversations has none
        turns = np.where(records.session < 0, -1, turns)
    servers = np.zeros(len(records), dtype=np.int8) if records.served_by is None else records.served_by
    answered: NDArray[np.int8] = np.where(records.status == COMPLETED, servers, -1).astype(np.int8)
    return [
        Column("request_id", np.arange(len(records)), "BIGINT"),
        Column("class", records.request_class, "VARCHAR", records.class_names),
        Column("session_id", records.session, "BIGINT", is_null_below_zero=True),
        Column("turn", turns, "INTEGER", is_null_below_zero=True),
        Column("replica_id", records.replica_id, "INTEGER"),
        Column("status", records.status, "VARCHAR", STATUSES),
        Column("arrival_s", records.arrival_time, "DOUBLE"),
        Column("admitted_s", records.admitted_time, "DOUBLE"),
        Column("scheduled_s", records.scheduled_time, "DOUBLE"),
        Column("first_token_s", records.first_token_time, "DOUBLE"),
        Column("finish_s", records.finish_time, "DOUBLE"),
        Column("prompt_tokens", records.prompt_tokens, "BIGINT"),
        Column("cached_tokens", records.cached_tokens, "BIGINT"),
        Column("output_tokens", records.output_tokens, "BIGINT"),
        Column("ttft_ms", latencies.ttft * MS, "DOUBLE"),
        Column("tpot_ms", latencies.tpot * MS, "DOUBLE"),
        Column("itl_max_ms", records.itl_max * MS, "DOUBLE"),
        Column("e2el_ms", latencies.e2e * MS, "DOUBLE"),
        Column("num_preemptions", records.num_preemptions, "INTEGER"),
        Column("slo_ok", None if slo is None else requests_meeting(latencies, slo), "BOOLEAN"),
        Column("served_by", answered, "VARCHAR", SERVERS),
        *(each for each in optional if each.cells is not None),
    ]


def series_columns(series: TimeSeries) -> list[Column]:
    """Return the columns of ``timeseries.parquet``, one row a bin: its edges, and means over it.

    The numbers of replicas are included if the fleet can change during the run.
    """
    means = {each.name: getattr(series, each.name) for each in fields(series) if each.name != "edges"}
    return [
        Column("start_s", series.edges[:-1], "DOUBLE"),
        Column("end_s", series.edges[1:], "DOUBLE"),
        *(Column(name, cells, "DOUBLE") for name, cells in means.items() if cells is not None),
    ]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run."""

    summary: FrozenDict
    """Exactly what `result.json` holds; read-only at every level (`simserve.metrics.summary.frozen`)."""
    scenario: Mapping[str, Any]  # The resolved scenario, as plain values.
    simulation: Simulation = field(repr=False)  # What happened; of several replications, the first.
    slo: SLO | None = None  # The objective that ``slo_ok`` is judged by; None without one.
    background: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further values that plots show (`simserve.report.background`), as plain values; empty if no plots were asked
    for."""
    folder: Path | None = field(default=None, repr=False, compare=False)
    """Where relative paths of the scenario start; None: the working folder."""

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, the columns of `requests.parquet`."""
        return _frame(request_columns(self.simulation.records, self.slo))

    @cached_property
    def latencies(self) -> RequestLatencies:
        """Latencies of every request, seconds."""
        return request_latencies(self.simulation.records)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """One row per agents' task, by number; the dollars of all tasks add up to those of the run.

        Columns ``task_id calls arrival_s finish_s makespan_s model_s tool_s prompt_tokens output_tokens usd``. Dollars
        are those of the deployment over the run, divided by the tokens computed for each task.

        Raises:
            UsageError: The workload has no tasks.
        """
        import pandas as pd  # a fifth of a second, needed by notebooks only

        tasks = tasks_of(self.simulation.records)
        if tasks is None:
            raise UsageError("are not there", key="tasks", remedy="add workload.agents")
        usd_per_hour = self.summary["simserve"]["cost"]["usd_per_hour"]
        total = math.nan if usd_per_hour is None else usd_per_hour * self.summary["duration"] / SECONDS_PER_HOUR
        return pd.DataFrame(
            {
                "task_id": tasks.task,
                "calls": tasks.calls,
                "arrival_s": tasks.begin,
                "finish_s": tasks.end,
                "makespan_s": tasks.makespan,
                "model_s": tasks.model,
                "tool_s": tasks.tool,
                "prompt_tokens": tasks.input_tokens,
                "output_tokens": tasks.output_tokens,
                "usd": tasks.usd(total),
            }
        )

    @cached_property
    def timeseries(self) -> pd.DataFrame:
        """One row a time bin, the columns of `timeseries.parquet`."""
        return _frame(series_columns(self.simulation.totals.series))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per engine step of the first replication, in order of start.

        Columns are those of `simserve.sim.step_log.StepTable`: ``replica_id start_s seconds prompt_tokens decode_tokens
        context_tokens num_sequences num_admitted num_preempted num_finished``.

        ``attrs["num_steps_of_run"]`` is the number of steps; the table holds the first 2,000,000 of them.

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
