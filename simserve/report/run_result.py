"""The result of a run as people hold it: it draws itself, shows itself in a notebook, and writes its page or folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simserve.metrics import result

if TYPE_CHECKING:
    from simserve.report.film import Film
    from simserve.report.run_plots import RunPlots


class RunResult(result.RunResult):
    """The result of a run: ``.summary``, ``.requests``, ``.timeseries``, ``.plot``, and itself as a page in a notebook.

    Attributes:
        plot: Its figures, such as ``result.plot.latency()``; each is a Matplotlib figure.
    """

    @property
    def plot(self) -> RunPlots:
        """Its figures."""
        from simserve.report.run_plots import RunPlots

        return RunPlots(self)

    def to_html(self, file: str | Path) -> None:
        """Write the report as one page that needs nothing else."""
        from simserve.report.html import render_report
        from simserve.report.page import write_whole

        write_whole(Path(file), render_report(self))

    def film(self, **others: RunResult) -> Film:
        """Return some seconds of the run as a film, which plays in a notebook; others of the same requests beside it.

        Args:
            **others: Name -> a run; all of them with ``steps=True``.

        Raises:
            UsageError: One of them kept no steps.
        """
        from simserve.report.film import Film

        return Film({self.summary["simserve"]["scenario_name"]: self, **others})

    def _repr_html_(self) -> str:
        from simserve.report.html import run_html

        return run_html(self)


def write_folder(found: RunResult, folder: Path, *, timeline: bool, prometheus: bool, film: bool = False) -> None:
    """Write a result's files and its report; with ``timeline``, ``prometheus`` and ``film`` those of that name as well.

    Raises:
        OSError: The folder or a file cannot be written.
    """
    from simserve.metrics.files import write_result
    from simserve.report.html import write_report

    write_result(found, folder)
    if timeline:
        from simserve.report.timeline import write_timeline

        write_timeline(found, folder)
    if prometheus:
        from simserve.metrics.prometheus import write_prometheus

        write_prometheus(found, folder)
    if film:
        from simserve.report.film import FILM_FILE, film_of, film_page
        from simserve.report.page import write_whole

        name = found.summary["simserve"]["scenario_name"]
        shown = film_of({name: found})
        write_whole(folder / FILM_FILE, film_page(shown, name))
        write_report(found, folder, shown)
    else:
        write_report(found, folder)
