"""What a plan says in lines."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.report.plan_lines import robustness_lines


def planned(borne: float) -> dict[str, Any]:
    """Return what is said of robustness in the summary of a plan for one replica."""
    lost = {"without_spares": None, "spare_usd_per_month": 1000.0}
    best = {"traffic_borne": borne, "lost_replica": lost, "replicas": 1, "spot": None, "fidelity": "measured"}
    return {"best": best, "spare_replicas": 0}


@pytest.mark.parametrize(
    ("borne", "said"),
    [
        (4.0, "It can sustain at least 4 times the traffic before the SLO breaks."),
        (1.25, "It can sustain 25% more traffic before the SLO breaks."),
        (1.0, "It has no headroom: more traffic breaks the SLO."),
        (0.8, "It can sustain only 80% of the traffic once all conversations are under way; the run ends before."),
    ],
)
def test_how_much_traffic_is_borne_is_said_first(borne: float, said: str) -> None:
    """More, no more, and of conversations less."""
    assert robustness_lines(planned(borne))[0] == said
