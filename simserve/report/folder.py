"""Everything that a run leaves in its folder: the files of the result, its report, and what else was asked for."""

from __future__ import annotations

from pathlib import Path

from simserve.metrics.files import write_result
from simserve.metrics.result import RunResult
from simserve.report.html import write_report
from simserve.report.page import write_whole


def write_folder(result: RunResult, folder: Path, *, timeline: bool, prometheus: bool, film: bool = False) -> None:
    """Write a result's files and its report; with ``timeline``, ``prometheus`` and ``film`` those of that name as well.

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
    if film:
        from simserve.report.film import FILM_FILE, film_of, film_page

        name = result.summary["simserve"]["scenario_name"]
        shown = film_of({name: result})
        write_whole(folder / FILM_FILE, film_page(shown, name))
        write_report(result, folder, shown)
    else:
        write_report(result, folder)
