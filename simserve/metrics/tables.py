"""The two tables of a result, requests and time series, as columns. Knows neither pandas nor files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import MS, SLO, RequestLatencies, Tasks, request_latencies, requests_meeting
from simserve.sim.records import COMPLETED, SERVERS, STATUSES, RequestRecords

if TYPE_CHECKING:
    from simserve.sim.recorder import TimeSeries


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        name: As in the file; the unit is in the name.
        cells: Shape [rows]; NaN is null. None: null throughout.
        sql_type: Its type in the file.
        labels: What the integers in ``cells`` stand for; empty if for themselves.
        is_null_below_zero: Whether a negative integer is null.
    """

    name: str
    cells: NDArray[Any] | None
    sql_type: str
    labels: tuple[str, ...] = ()
    is_null_below_zero: bool = False


def request_columns(records: RequestRecords, slo: SLO | None) -> list[Column]:
    """Return the columns of ``requests.parquet``, one row a request, in order of arrival.

    ``class session_id turn`` are null without classes and sessions, the latter two also for requests that stand alone
    beside conversations; ``slo_ok`` without an SLO. ``served_by`` is
    ``replica``, ``api`` or ``cache`` for completed requests, and null for the others. ``ttft_ms`` is
    there as soon as a first token is; ``tpot_ms e2el_ms`` only for completed requests. With disaggregation the times
    of the transfer follow, with agents' tasks ``task_id``; where requests think, what they thought and when
    their answers began; with LoRA adapters the number of each request's, null for the base model.
    """
    latencies = request_latencies(records)
    return [
        Column("request_id", np.arange(len(records)), "BIGINT"),
        Column("class", records.request_class, "VARCHAR", records.class_names),
        Column("session_id", records.session, "BIGINT", is_null_below_zero=True),
        Column("turn", _turns(records), "INTEGER", is_null_below_zero=True),
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
        Column("served_by", _served_by(records), "VARCHAR", SERVERS),
        *_transfer_columns(records),
        *([] if records.task is None else [Column("task_id", records.task, "BIGINT", is_null_below_zero=True)]),
        *_answer_columns(records, latencies),
        *_adapter_column(records),
        *([Column("region", records.client_region, "VARCHAR", records.region_names)] if records.region_names else []),
    ]


def task_columns(tasks: Tasks, usd: float) -> list[Column]:
    """Return the columns of the table of tasks, one row a task.

    Args:
        tasks: They.
        usd: Dollars of the run, which are shared out among them.
    """
    return [
        Column("task_id", tasks.task, "BIGINT"),
        Column("calls", tasks.calls, "BIGINT"),
        Column("arrival_s", tasks.begin, "DOUBLE"),
        Column("finish_s", tasks.end, "DOUBLE"),
        Column("makespan_s", tasks.makespan, "DOUBLE"),
        Column("model_s", tasks.model, "DOUBLE"),
        Column("tool_s", tasks.tool, "DOUBLE"),
        Column("prompt_tokens", tasks.input_tokens, "BIGINT"),
        Column("output_tokens", tasks.output_tokens, "BIGINT"),
        Column("usd", tasks.usd(usd), "DOUBLE"),
    ]


def _turns(records: RequestRecords) -> NDArray[np.int64] | None:
    """Return the turn of each request, -1 where it stands alone beside conversations."""
    if records.turn is None or records.session is None:
        return records.turn
    return np.where(records.session < 0, -1, records.turn)


def _transfer_columns(records: RequestRecords) -> list[Column]:
    if records.transfer_start_time is None:
        return []
    return [
        Column("prefill_replica_id", records.prefill_replica_id, "INTEGER"),
        Column("prefill_end_s", records.prefill_end_time, "DOUBLE"),
        Column("transfer_start_s", records.transfer_start_time, "DOUBLE"),
        Column("transfer_end_s", records.transfer_end_time, "DOUBLE"),
    ]


def _answer_columns(records: RequestRecords, latencies: RequestLatencies) -> list[Column]:
    if records.answer_time is None:
        return []
    return [
        Column("thinking_tokens", records.thinking_tokens, "BIGINT"),
        Column("answer_s", records.answer_time, "DOUBLE"),
        Column("ttfvt_ms", latencies.ttfvt * MS, "DOUBLE"),
    ]


def _adapter_column(records: RequestRecords) -> list[Column]:
    if records.adapter is None:
        return []
    return [Column("adapter", records.adapter, "BIGINT", is_null_below_zero=True)]


def _served_by(records: RequestRecords) -> NDArray[np.int8]:
    """Return who answered each request; -1, which becomes null, where nobody did."""
    servers = np.zeros(len(records), dtype=np.int8) if records.served_by is None else records.served_by
    answered: NDArray[np.int8] = np.where(records.status == COMPLETED, servers, -1).astype(np.int8)
    return answered


def series_columns(series: TimeSeries) -> list[Column]:
    """Return the columns of ``timeseries.parquet``, one row a bin: its edges, and means over it.

    The numbers of replicas are there where something decides in the run.
    """
    replicas = {"replicas_launched": series.replicas_launched, "replicas_ready": series.replicas_ready}
    return [
        Column("start_s", series.edges[:-1], "DOUBLE"),
        Column("end_s", series.edges[1:], "DOUBLE"),
        Column("running", series.running, "DOUBLE"),
        Column("waiting", series.waiting, "DOUBLE"),
        Column("kv_usage", series.kv_usage, "DOUBLE"),
        Column("busy", series.busy, "DOUBLE"),
        Column("prefill_tokens_per_s", series.prefill_tokens_per_s, "DOUBLE"),
        Column("decode_tokens_per_s", series.decode_tokens_per_s, "DOUBLE"),
        *(Column(name, cells, "DOUBLE") for name, cells in replicas.items() if cells is not None),
    ]
