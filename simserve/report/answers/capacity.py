"""The most load as people hold it: with figures, in a notebook, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simserve.planner.capacity import answer as capacity_answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simserve.report.brief import Brief


class Capacity(capacity_answer.Capacity):
    """The most load that a deployment bears: ``.summary``, ``.plot``, and itself as a page in a notebook."""

    @property
    def plot(self) -> CapacityPlots:
        """Its figures: ``latency()`` and ``goodput()`` against the load."""
        return CapacityPlots(self)

    def to_html(self, file: str | Path, command: str = "", brief: Brief | None = None) -> None:
        """Write the answer as one page that needs nothing else.

        Args:
            file: Where to.
            command: How to reproduce it.
            brief: What opens the page; None: it is made by a run of the deployment as it is.
        """
        from simserve.report.capacity import capacity_page
        from simserve.report.page import write_page

        write_page(capacity_page(self, command, brief), file)

    def _repr_html_(self) -> str:
        from simserve.report.capacity import capacity_html

        return capacity_html(self)


@dataclass(frozen=True, slots=True)
class CapacityPlots:
    """The figures of a capacity."""

    answer: capacity_answer.Capacity

    def latency(self) -> Figure:
        """Return p95 of TTFT and TPOT against the load, with the bounds of the SLO."""
        from simserve.report.answer_plots import capacity_latency
        from simserve.report.sketch_figure import sketch_figure

        return sketch_figure(capacity_latency(self.answer))

    def goodput(self) -> Figure:
        """Return requests/s answered and within the SLO against the load, with the knee."""
        from simserve.report.answer_plots import capacity_goodput
        from simserve.report.sketch_figure import sketch_figure

        return sketch_figure(capacity_goodput(self.answer))
