"""Everything that a run leaves in its folder: the files of the result, its report, and what else was asked for."""

from __future__ import annotations

from pathlib import Path

from simserve.metrics.files import write_result
from simserve.metrics.result import RunResult
from simserve.report.html import write_report


def write_folder(result: RunResult, folder: Path, *, timeline: bool, prometheus: bool) -> None:
    """Write a result's files and its report; with ``timeline`` and ``prometheus`` those of that name as well.

    Raises:
        OSError: The folder or a file cannot be written.
    """
    write_result(result, folder)
    if timeline:
        from simserve.report.timeline import write_timeline

        write_timeline(result, folder)
    if prometheus:
        from simserve.metrics.prometheus import write_prometheus

        write_prometheus(result, folder)
    write_report(result, folder)
