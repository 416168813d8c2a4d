"""What a run says of its pools and its gateway: the way to a first token, and who was asked twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from simserve.metrics.gateway import gateway_figures, pool_sentences
from simserve.sim.gateway import FrontTotals
from tests.builders import make_specs
from tests.sim.test_disaggregation import in_company


def test_the_way_to_a_decode_replica_is_told_beside_ttft() -> None:
    """A step of prefill, then 1 s of link for ten tokens: half of TTFT; a request of one token goes no way."""
    pools = [("p", "prefill", {}), ("d", "decode", {})]
    run = in_company(make_specs([0.0, 9.0], [10, 10], [3, 1]), pools)

    assert pool_sentences(run)[-1] == (
        "Between the end of a prompt and its first token lies the way to a decode replica: 1 s of a TTFT of 2 s on "
        "average."
    )


def test_those_asked_again_are_a_share_of_what_was_sent() -> None:
    """One of five calls waited for one that failed, and was never sent."""
    records: Any = SimpleNamespace(arrival_time=np.array([0.0, 1.0, 1.0, np.nan, 2.0]), request_class=None)
    front = FrontTotals(asked_again=1, discarded_tokens=10)

    asked = gateway_figures(front, records)["asked_again"]

    assert asked == {"requests": 1, "share": 0.25, "discarded_output_tokens": 10}
