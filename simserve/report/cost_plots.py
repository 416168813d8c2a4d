"""`cost.plot`: the figures of a cost comparison by name, for a notebook; None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class CostPlots:
    """The figures of a cost comparison; None where there is nothing to draw."""

    summary: Mapping[str, Any]

    def break_even(self) -> Figure | None:
        """Return dollars a month of both sides against the requests of a month."""
        from simserve.report.dollar_plots import break_even
        from simserve.report.sketch_figure import figure_or_none

        return figure_or_none(break_even(self.summary))

    def tornado(self) -> Figure | None:
        """Return by how much each input moves the saving of self-hosting."""
        from simserve.report.dollar_plots import tornado
        from simserve.report.sketch_figure import figure_or_none

        return figure_or_none(tornado(self.summary))
