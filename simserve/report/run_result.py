"""The result of a run for users: it draws its plots, shows itself in a notebook, and writes its page or folder.

`result.plot` has its plots by name. Each returns a Matplotlib figure, which a notebook displays.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simserve.errors import UsageError
from simserve.metrics import result
from simserve.report import plots
from simserve.report.answer import answer
from simserve.report.curves import turning_point
from simserve.report.preemption import seats_points
from simserve.report.sketch_figure import sketch_figure
from simserve.unfinished import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simserve.report.film import Film


class RunResult(result.RunResult):
    """The result of a run: ``.summary``, ``.requests``, ``.timeseries``, ``.plot``, and a page in a notebook.

    Attributes:
        plot: Its plots, such as ``result.plot.latency()``; each is a Matplotlib figure.
    """

    @property
    def plot(self) -> RunPlots:
        """Its plots."""
        return RunPlots(self)

    def to_html(self, file: str | Path) -> None:
        """Write the report as one self-contained page."""
        from simserve.report.html import render_report

        write_text(Path(file), render_report(self))

    def film(self, **others: RunResult) -> Film:
        """Return some seconds of the run as a film, which plays in a notebook, beside other runs of the same requests.

        Args:
            **others: Name -> a run; all of them with ``steps=True``.

        Raises:
            UsageError: One of them did not keep its steps.
        """
        from simserve.report.film import Film

        return Film({self.summary["simserve"]["scenario_name"]: self, **others})

    def __repr__(self) -> str:
        return f"<RunResult of {self.summary['simserve']['scenario_name']}: {answer(self)}>"

    def _repr_html_(self) -> str:
        from simserve.report.html import run_html

        return run_html(self)


def write_folder(found: RunResult, folder: Path, *, timeline: bool, prometheus: bool, film: bool = False) -> None:
    """Write a result's files and its report; with ``timeline``, ``prometheus`` and ``film`` also these files.

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
    shown = None
    if film:
        from simserve.report.film import FILM_FILE, film_of, film_page

        name = found.summary["simserve"]["scenario_name"]
        shown = film_of({name: found})
        write_text(folder / FILM_FILE, film_page(shown, name))
    write_report(found, folder, shown)


class RunPlots:
    """The plots of one run."""

    def __init__(self, result: RunResult) -> None:
        self._result = result

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def latency(self) -> Figure:
        """Return the cumulative curves of TTFT and E2E, with the bounds of the SLO."""
        return sketch_figure(plots.request_latency(self._result))

    def token_latency(self) -> Figure:
        """Return the cumulative curves of TPOT and ITL, with the bound of the SLO."""
        return sketch_figure(plots.token_latency(self._result))

    def requests(self) -> Figure:
        """Return running and waiting requests over time."""
        return sketch_figure(plots.requests_over_time(self._result))

    def kv(self) -> Figure:
        """Return the share of KV memory reserved over time."""
        return sketch_figure(plots.kv_over_time(self._result))

    def step_time(self) -> Figure:
        """Return where the time of the steps went."""
        return sketch_figure(plots.step_time(self._result))

    def waiting(self) -> Figure:
        """Return what the requests in the queue waited for."""
        return sketch_figure(plots.waiting_time(self._result))

    def memory(self) -> Figure:
        """Return where the memory of a GPU goes."""
        return sketch_figure(plots.memory_bar(self._result.summary))

    def roofline(self) -> Figure:
        """Return the operators of the deployment on the roofline of its GPU.

        Raises:
            UsageError: No request was completed, so there is no step to show.
        """
        found = self._result.background.get("roofline")
        if found is None:
            raise UsageError("has no roofline: no request was completed", key="plot.roofline")
        return sketch_figure(plots.roofline(found))

    def seats(self) -> Figure:
        """Return throughput against ``max_num_seqs``, as tried by a run with preemptions.

        Raises:
            UsageError: The run had no preemptions, so nothing was tried.
        """
        points = seats_points(self._result)
        if not points:
            raise UsageError("is known for runs with preemptions only", key="plot.seats")
        return sketch_figure(plots.throughput_curve(points, turning_point(points)))
