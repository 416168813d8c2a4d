"""What a twin found, as gauges in Prometheus' text format 0.0.4, for dashboards and alerts. Serves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PREFIX = "simserve_twin_"


def gauges_of(summary: Mapping[str, Any]) -> str:
    """Return a twin's summary as text; figures that are not defined are left out.

    ``observed predicted inside`` have a label ``figure``; ``inside`` is 1 where a figure is as predicted. ``drifted``
    is 1 where any is not. ``stretch_end_seconds`` is when the last scrape was, seconds since 1970.
    """
    drift = summary["drift"]
    inside = {name: row["inside"] for name, row in drift.items()}
    hours = summary["forecast"]
    lines = [
        *_by_figure("observed", "What the engine's metrics tell.", summary["observed"]),
        *_by_figure("predicted", "What the simulation says.", summary["predicted"]),
        *_by_figure("inside", "1: as predicted, 0: outside.", inside),
        *_single("drifted", "1: a figure is outside, or the traffic has changed.", summary["has_drifted"]),
        *_single("stretch_end_seconds", "Time of the last scrape, since 1970.", summary["stretch"]["end_s"]),
        *_single("replica_rate", "Requests/s that one replica sustains.", summary["per_replica_rate"]),
        *_single("next_hour_rate", "Requests/s forecast for the next hour.", hours[0]["rate"] if hours else None),
        *_single("next_hour_replicas", "Replicas that it needs.", hours[0]["replicas"] if hours else None),
    ]
    return "\n".join(lines) + "\n"


def _by_figure(name: str, about: str, values: Mapping[str, float | None]) -> Iterator[str]:
    yield from _head(name, about)
    for figure, value in values.items():
        if value is not None:
            yield f'{_PREFIX}{name}{{figure="{figure}"}} {float(value)!r}'


def _single(name: str, about: str, value: float | None) -> Iterator[str]:
    if value is not None:
        yield from _head(name, about)
        yield f"{_PREFIX}{name} {float(value)!r}"


def _head(name: str, about: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {about}"
    yield f"# TYPE {_PREFIX}{name} gauge"
