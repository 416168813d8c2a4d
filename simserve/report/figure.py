"""A Matplotlib figure that a notebook displays, whether or not pyplot was imported. Imports Matplotlib."""

from __future__ import annotations

import io

import matplotlib
from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that a notebook shows as SVG, on white so that it is readable in any theme."""

    def _repr_svg_(self) -> str:
        drawn = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": "simserve", "svg.fonttype": "none"}):
            self.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None})
        return drawn.getvalue()
