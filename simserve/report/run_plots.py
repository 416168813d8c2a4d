"""`result.plot`: the figures of a run by name. Each returns a Matplotlib figure, which a notebook shows by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.errors import UsageError
from simserve.metrics.result import RunResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simserve.report.sketch import Sketch


class RunPlots:
    """The figures of one run.

    Args:
        result: The run.
    """

    def __init__(self, result: RunResult) -> None:
        self._result = result

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def latency(self) -> Figure:
        """Return the cumulative curves of TTFT and E2E, with the bounds of the SLO."""
        from simserve.report.plots import request_latency

        return _figure(request_latency(self._result))

    def token_latency(self) -> Figure:
        """Return the cumulative curves of TPOT and ITL, with the bound of the SLO."""
        from simserve.report.plots import token_latency

        return _figure(token_latency(self._result))

    def requests(self) -> Figure:
        """Return running and waiting requests over time."""
        from simserve.report.plots import requests_over_time

        return _figure(requests_over_time(self._result))

    def kv(self) -> Figure:
        """Return the share of KV memory that is reserved, over time."""
        from simserve.report.plots import kv_over_time

        return _figure(kv_over_time(self._result))

    def step_time(self) -> Figure:
        """Return what the time of the steps went into."""
        from simserve.report.plots import step_time

        return _figure(step_time(self._result))

    def waiting(self) -> Figure:
        """Return what the requests in the queue waited for."""
        from simserve.report.plots import waiting_time

        return _figure(waiting_time(self._result))

    def memory(self) -> Figure:
        """Return where the memory of a GPU goes."""
        from simserve.report.deployment_plots import memory_bar

        return _figure(memory_bar(self._result.summary))

    def roofline(self) -> Figure:
        """Return the operators of the deployment on the roofline of its GPU.

        Raises:
            UsageError: No request was completed, so there is no step to show.
        """
        from simserve.report.deployment_plots import roofline

        found = self._result.background.get("roofline")
        if found is None:
            raise UsageError("has no roofline: no request was completed", key="plot.roofline")
        return _figure(roofline(found))

    def seats(self) -> Figure:
        """Return throughput against ``max_num_seqs``, as a run with preemptions finds it.

        Raises:
            UsageError: The run had no preemptions, so nothing was tried.
        """
        from simserve.report.curves import turning_point
        from simserve.report.plots import throughput_curve
        from simserve.report.preemption import seats_points

        points = seats_points(self._result)
        if not points:
            raise UsageError("is known for runs with preemptions only", key="plot.seats")
        return _figure(throughput_curve(points, turning_point(points)))


def _figure(sketch: Sketch) -> Figure:
    """Return a picture as Matplotlib draws it."""
    from simserve.report import sketch_figure as matplotlib_drawing  # half a second

    return matplotlib_drawing.sketch_figure(sketch)
