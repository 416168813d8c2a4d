"""Results of fleets with pools, streaming, scaling and faults are written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.api import run
from simserve.metrics.files import read_result
from simserve.report.html import render_report
from simserve.scenario.load import load

CASES = {
    "disaggregation": ["workload.num_requests=60"],
    "streaming": ["workload.num_requests=60"],
    "cold-start": ["workload.num_requests=60", "workload.duration=null"],
    "lost-replica": ["workload.num_requests=60", "workload.duration=null"],
    "prefix-routing": ["workload.num_requests=60", "deployment.replicas=2", "workload.arrivals.rate=7.5"],
    "two-pools": ["workload.num_requests=60"],
    "halve-the-api-bill": ["workload.num_requests=60"],
    "fair-tenants": ["workload.num_requests=60", "workload.duration=null"],
    "two-regions": ["workload.num_requests=60", "workload.duration=null"],
    "kv-offload": ["workload.num_requests=60"],
    "overload-and-shedding": ["workload.num_requests=300", "workload.duration=null"],  # refused: served by nobody
    "rolling-update": ["workload.num_requests=6000", "workload.duration=null", "deployment.updates.0.at=5 s"],
}


ADVISED = ("overload-and-shedding",)
"""Those that are followed by runs of what would hold, which take longer than their own."""


AT_OTHER_LOADS = ("disaggregation", "streaming")
"""Those whose page shows them at other loads too; of the others those runs take longer than their own."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_fleet_comes_back_from_its_folder(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The page rendered from the folder is the page that the run wrote."""
    if name not in AT_OTHER_LOADS:
        request.getfixturevalue("page_alone")

    written = run(load(name, CASES[name]), out=tmp_path / "result", advise=name in ADVISED)

    stored = read_result(tmp_path / "result")

    assert stored.summary["simserve"]["pools"] == written.summary["simserve"]["pools"]
    assert render_report(stored) == (tmp_path / "result" / "report.html").read_text(encoding="utf-8")
