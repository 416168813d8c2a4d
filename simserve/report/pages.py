"""The answers as people hold them: results that draw themselves, show themselves in a notebook, and write a page.

Each is the plain answer of a lower layer with ``.plot``, ``_repr_html_`` and ``to_html``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from simserve.metrics import result
from simserve.planner import compare, diff
from simserve.planner.capacity import answer as capacity_answer
from simserve.planner.sweep import sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    def _repr_html_(self) -> str:
        from simserve.report.run_html import run_html

        return run_html(self)


class Capacity(capacity_answer.Capacity):
    """The most load that a deployment bears: ``.summary``, ``.plot``, and itself as a page in a notebook."""

    @property
    def plot(self) -> CapacityPlots:
        """Its figures: ``latency()`` and ``goodput()`` against the load."""
        return CapacityPlots(self)

    def to_html(self, file: str | Path, command: str = "") -> None:
        """Write the answer as one page that needs nothing else; ``command`` says how to reproduce it."""
        from simserve.report.capacity import capacity_page
        from simserve.report.page import write_page

        write_page(capacity_page(self, command), file)

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


class Comparison(compare.Comparison):
    """A base and its variants: ``.summary``, ``.plot``, and itself as a page in a notebook."""

    @property
    def plot(self) -> ComparisonPlots:
        """Its figure: ``differences()``."""
        return ComparisonPlots(self)

    def to_html(self, file: str | Path, command: str = "") -> None:
        """Write the answer as one page that needs nothing else; ``command`` says how to reproduce it."""
        from simserve.report.compare import comparison_page
        from simserve.report.page import write_page

        write_page(comparison_page(self, command), file)

    def _repr_html_(self) -> str:
        from simserve.report.compare import comparison_html

        return comparison_html(self)


@dataclass(frozen=True, slots=True)
class ComparisonPlots:
    """The figure of a comparison."""

    answer: compare.Comparison

    def differences(self) -> Figure:
        """Return what each variant changes, in percent of the base, with 95 % intervals."""
        from simserve.report.answer_plots import differences
        from simserve.report.sketch_figure import sketch_figure

        return sketch_figure(differences(self.answer))


class Diff(diff.Diff):
    """Two results side by side: ``.summary``, and itself as a page in a notebook."""

    def _repr_html_(self) -> str:
        from simserve.report.diff import diff_html

        return diff_html(self)


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


class WritesPage(Protocol):
    """An answer that writes itself as a page."""

    def to_html(self, file: str | Path, command: str = "") -> None:
        """Write the page; ``command`` says how to reproduce it."""
