"""The rows of a sweep as people hold them: with a figure, in a notebook, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simserve.planner.sweep import sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Sweep(sweep.Sweep):
    """The rows of a sweep: ``.points`` as a table, ``.summary``, ``.plot``, and itself as a page in a notebook."""

    @property
    def plot(self) -> SweepPlots:
        """Its figure: ``curve(figure)``."""
        return SweepPlots(self)

    def to_html(self, file: str | Path, command: str = "") -> None:
        """Write the answer as one page that needs nothing else; ``command`` says how to reproduce it."""
        from simserve.report.page import write_page
        from simserve.report.sweep import sweep_page

        write_page(sweep_page(self, command), file)

    def _repr_html_(self) -> str:
        from simserve.report.sweep import sweep_html

        return sweep_html(self)


@dataclass(frozen=True, slots=True)
class SweepPlots:
    """The figure of a sweep."""

    answer: sweep.Sweep

    def curve(self, figure: str = "p95_ttft_ms") -> Figure | None:
        """Return a figure of the points (a column of the table) against the first key with numbers.

        None where no key has two numbers, or the figure is undefined throughout.
        """
        from simserve.report.answer_plots import sweep_curves
        from simserve.report.sketch_figure import figure_or_none

        return figure_or_none(sweep_curves(self.answer, figure, figure))
