"""A roofline plot: FLOP/s reached by calls against arithmetic intensity, under the roof of a device. Fits nothing."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION, canvas
from simserve.units import format_bandwidth, format_compute

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simserve.calibrate.fit_report import RooflineSeries

_COLORS = (BLUE, VERMILION, GREEN, ORANGE, SKY, INK, GREY)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DOTS_PER_INCH = 200
ENDINGS = (".svg", ".png")


def roofline(series: Sequence[RooflineSeries], peaks: Mapping[str, float], bandwidth: float, title: str) -> Figure:
    """Return the plot.

    Args:
        series: Measured (filled) and fitted (small, dark) calls by kind.
        peaks: FLOP/s by dtype: one roof each.
        bandwidth: Bytes/s of the slope.
    """
    figure, axes = canvas(height=4.2, bottom=0.25, top=0.92)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for number, each in enumerate(series):
        color, marker = _COLORS[number % len(_COLORS)], _MARKERS[number % len(_MARKERS)]
        axes.plot(
            each.intensity, each.measured, marker, color=color, markersize=4, alpha=0.55, mec="none", label=each.name
        )
        axes.plot(each.intensity, each.fitted, ".", color=INK, markersize=1.6, alpha=0.8)
    values = np.concatenate([each.intensity for each in series]) if series else np.array([1.0])
    reach = np.geomspace(min(float(values.min()), 0.5), max(float(values.max()), 2.0), 200)
    for dtype, peak in peaks.items():
        axes.plot(reach, np.minimum(peak, reach * bandwidth), color=GREY, linewidth=1.0)
        axes.annotate(
            f"{dtype} {format_compute(peak)}", (reach[-1], peak), ha="right", va="bottom", fontsize=7, color=INK
        )
    axes.set_xlabel("arithmetic intensity, FLOP a byte")
    axes.set_ylabel("FLOP/s")
    axes.set_title(f"{title}: {format_bandwidth(bandwidth)}", fontsize=9, color=INK, loc="left")
    axes.plot([], [], ".", color=INK, markersize=3, label="fitted")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower left", ncols=3, frameon=False, fontsize=7.5, labelcolor=INK)
    return figure


def write_figure(figure: Figure, file: Path) -> None:
    """Write a figure as SVG or PNG, by the ending of the file; the same figure gives the same bytes.

    Raises:
        OSError: The file cannot be written.
    """
    import matplotlib

    figure.set_facecolor("white")
    kind = file.suffix.removeprefix(".")
    no_date = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    drawn = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none"}):
        figure.savefig(drawn, format=kind, dpi=_DOTS_PER_INCH, metadata=no_date)
    file.write_bytes(drawn.getvalue())
