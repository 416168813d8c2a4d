"""The families of measurements by name: reader and files of each. Knows no figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from calibration.laboratory.readers import (
    community,
    disaggregated,
    inferencex,
    lmdeploy,
    mlperf,
    replays,
    single_stream,
    splitwise,
    tensorrt_llm,
)
from calibration.laboratory.readers.memory_logs import MEMORY, PLANNER_FILE, REPLAYS_FILE, read_memory
from calibration.laboratory.scoring.held_out import fitted_metrics
from simserve.errors import InputError, UsageError, nearest
from simserve.planner.measured.point import MeasuredMemory, MeasuredPoint
from simserve.planner.measured.shipped import SHIPPED, read_shipped, read_shipped_memory


@dataclass(frozen=True, slots=True)
class Source:
    """A family of measurements.

    Attributes:
        files: Files that the folder must hold.
        read: Function that reads the points in that folder.
    """

    files: tuple[str, ...]
    read: Callable[[Path], list[MeasuredPoint]]


_SOURCES = {
    "inferencex_agg": Source(("inferencex_agg.csv",), inferencex.read_inferencex),
    "nvidia_aic_inhouse_agg": Source(("nvidia_aic_inhouse_agg.csv",), inferencex.read_inhouse),
    "inferencex_disagg": Source(("inferencex_disagg.csv",), disaggregated.read_disaggregated),
    "apex_plus": Source(("apex_plus_vllm_sglang_h100.csv", "apex_plus_replay_requests.csv.gz"), replays.read_apex),
    "llmservingsim": Source(("llmservingsim_vllm_summary.csv",), replays.read_llmservingsim),
    "trtllm_perf_overview": Source(("trtllm_perf_overview_throughput.csv",), tensorrt_llm.read_offline),
    "trtllm_online_serving": Source(("trtllm_online_serving_v0.14.csv",), tensorrt_llm.read_online),
    "trtllm_static_batch": Source(("trtllm_static_batch_v0.5-0.9.csv",), tensorrt_llm.read_static),
    "splitwise_iterations": Source(("splitwise_iteration_times.csv",), splitwise.read_splitwise),
    "lmdeploy": Source(("lmdeploy_a100_4090.csv",), lmdeploy.read_lmdeploy),
    "accelmark": Source(("accelmark_results.csv",), community.read_accelmark),
    "mlperf": Source(("mlperf_v4.1_v5.1_llm_logs.csv",), mlperf.read_mlperf),
    "mlperf_official": Source(("mlperf_official_v5.0_v5.1_v6.0_llm.csv",), mlperf.read_official),
    "single_stream": Source(("quantization_and_single_stream_tables.csv",), single_stream.read_single_stream),
    "llama_cpp": Source(("llamacpp_xiongjiedai_llama3.csv",), single_stream.read_llama_cpp),
    "vllm_itl": Source(("vllm_itl_linear_fits.csv",), single_stream.read_itl_fits),
    "kaito": Source(("kaito_a10_a100_phi4mini.csv",), community.read_kaito),
}

_ON_REQUEST = {
    "inferencex_agg_blackwell": Source(("inferencex_agg_blackwell.csv",), inferencex.read_inferencex_blackwell),
    "inferencex_disagg_blackwell": Source(
        ("inferencex_disagg_blackwell.csv",), disaggregated.read_disaggregated_blackwell
    ),
}
"""Read only if requested by name: nothing is fitted to them, and no interval is learnt from them."""


def source_names() -> list[str]:
    """Return the names that can be requested, the published figures first."""
    return [*SHIPPED, *_SOURCES, *_ON_REQUEST, MEMORY]


def read_points(data: Path | None, sources: Sequence[str] = ()) -> list[MeasuredPoint]:
    """Return the points of the requested sources.

    Args:
        data: Folder of measurements, or one that holds them below ``measured``; None: only what ships.
        sources: Names; empty: all with files, except the reports to which nothing may be fitted.

    Raises:
        UsageError: A name is unknown, or ``data`` is not a folder.
        InputError: A source requested by name has no files, or a file cannot be read.
    """
    for name in sources:
        if name not in source_names():
            raise UsageError("is not a known source", key="--source", value=name, remedy=_remedy(name))
    folder = None if data is None else _measured_folder(data)
    points = read_shipped(sources)
    for name, source in (_SOURCES | _ON_REQUEST).items():
        if name not in (sources or _SOURCES):
            continue
        missing = list(source.files) if folder is None else [f for f in source.files if not (folder / f).is_file()]
        if folder is not None and not missing:
            points.extend(source.read(folder))
        elif sources:
            raise InputError(
                f"needs {' and '.join(missing)}",
                file=folder,
                key=f"--source {name}",
                remedy="name the folder that holds them with --data",
            )
    return [replace(each, fitted=fitted_metrics(each)) for each in points]


def read_memory_logs(data: Path | None, sources: Sequence[str] = ()) -> list[MeasuredMemory]:
    """Return the measured KV memory; none if the folder has none or other sources were requested.

    Raises:
        UsageError: ``data`` is not a folder.
        InputError: They were requested by name, and there are none.
        TraceError: A file cannot be read.
    """
    shipped = read_shipped_memory(sources)
    if sources and MEMORY not in sources:
        return shipped
    found = [] if data is None else read_memory(_measured_folder(data))
    if sources and not found:
        raise InputError(
            f"needs {PLANNER_FILE} or {REPLAYS_FILE}",
            file=data,
            key=f"--source {MEMORY}",
            remedy="name the folder that holds them with --data",
        )
    return [*found, *shipped]


def _remedy(name: str) -> str:
    names, meant = ", ".join(source_names()), nearest(name, source_names())
    return f"{meant} known: {names}" if meant.endswith("?") else f"choose from {names}"


def _measured_folder(data: Path) -> Path:
    if not data.is_dir():
        raise UsageError("is not a folder", file=data, key="--data")
    return data / "measured" if (data / "measured").is_dir() else data
