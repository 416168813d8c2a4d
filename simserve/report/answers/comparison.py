"""A comparison as people hold it: with its figure, in a notebook, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simserve.planner import compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simserve.report.brief import Brief


class Comparison(compare.Comparison):
    """A base and its variants: ``.summary``, ``.plot``, and itself as a page in a notebook."""

    @property
    def plot(self) -> ComparisonPlots:
        """Its figure: ``differences()``."""
        return ComparisonPlots(self)

    def to_html(self, file: str | Path, command: str = "", brief: Brief | None = None) -> None:
        """Write the answer as one page that needs nothing else.

        Args:
            file: Where to.
            command: How to reproduce it.
            brief: What opens the page; None: it is made by a run of the deployment as it is.
        """
        from simserve.report.compare import comparison_page
        from simserve.report.page import write_page

        write_page(comparison_page(self, command, brief), file)

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
