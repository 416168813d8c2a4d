"""What a run says of its pools: what the way between them adds to the first token."""

from __future__ import annotations

from simserve.metrics.gateway import pool_sentences
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
