"""Lines about the fleet and admission: changes of one moment once, refusals by their reason."""

from __future__ import annotations

from simserve import api
from simserve.report.facts import admission_lines, fleet_lines


def test_changes_of_one_moment_are_one() -> None:
    """A fleet that shrinks by three at once is written as what is left."""
    result = api.run(api.load("cold-start"))
    changes = result.summary["simserve"]["replicas"]["timeline"]

    line = fleet_lines(result)[1]

    moments = [part.rpartition(" at ")[2] for part in line.split(", and ")[0].split(", ")]
    assert len(moments) == len(set(moments)) > 2
    assert len(changes) > len(moments)
    assert line.startswith("2 ready of 2 at the start, ")


def test_what_admission_turned_away_has_its_reason() -> None:
    """And is counted over all attempts."""
    result = api.run(api.load("overload-and-shedding", ["workload.num_requests=1500"]))
    refused = result.summary["simserve"]["rejected"]["refusals"]["queue_full"]

    (line,) = admission_lines(result)

    assert line == f"{refused:,} of 1,500 attempts refused: queue full {refused:,}"
    assert "Admission turned " in result.summary["simserve"]["bottleneck"]["explanation"]
