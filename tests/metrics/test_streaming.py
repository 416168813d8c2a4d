"""When an API server is what binds, by a block of the scenario or by the engine's own figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simserve.metrics.gateway import API_SERVER, name_api_server
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.sim.streaming import StreamTotals
from tests.metrics.builders import make_records, make_simulation

BUSY: dict[str, Any] = {
    "name": "busy",
    "model": "llama-3.1-8b",
    "deployment": {
        "hardware": "h200-sxm-141gb",
        "tensor_parallel_size": 8,
        "quantization": "fp8",
        "engine": {"name": "sglang", "max_model_len": 4096},
    },
    "workload": {
        "arrivals": {"process": "closed_loop", "concurrency": 512},
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "fixed", "value": 500},
        "num_requests": 1536,
    },
}


def named(token_seconds: float) -> dict[str, str]:
    """Return the bottleneck of two requests of five tokens that are done after 4 s."""
    found = {"binding": "compute", "explanation": "A step runs."}
    simulation = replace(make_simulation(make_records([0.0, 1.0])), end_time=4.0, api_token_seconds=token_seconds)
    name_api_server(found, simulation)
    return found


@pytest.mark.parametrize(("token_seconds", "binding"), [(0.0, "compute"), (0.33, "compute"), (0.35, API_SERVER)])
def test_a_server_at_work_for_most_of_the_run_binds(token_seconds: float, binding: str) -> None:
    """Ten tokens of 0.35 s each are 3.5 of 4 s; the sentence says the most that it sends."""
    found = named(token_seconds)

    assert found["binding"] == binding
    assert ("sends 3 tokens/s at most" in found["explanation"]) == (binding == API_SERVER)


@pytest.mark.parametrize(("share", "binding"), [(0.9, "compute"), (0.97, API_SERVER)])
def test_streams_bind_where_their_cores_never_rest(share: float, binding: str) -> None:
    """A tenth of the run to spare is more than its start and end."""
    found = {"binding": "compute", "explanation": "A step runs."}
    totals = StreamTotals(num_events=1, num_tokens=1, busy_seconds=1.0, delay_seconds=0.0, busiest_share=share)
    name_api_server(found, replace(make_simulation(make_records([0.0, 1.0])), end_time=4.0, stream=totals))

    assert found["binding"] == binding


def test_sglang_sends_twenty_thousand_tokens_a_second() -> None:
    """512 clients of a small model on eight GPUs: its API server binds, and no GPU would help; two servers do."""
    bound = run(from_mapping(BUSY)).summary
    streaming = {"api_servers": 4, "cost_per_event": "50 us"}
    freed = run(from_mapping({**BUSY, "deployment": BUSY["deployment"] | {"streaming": streaming}})).summary

    assert bound["simserve"]["bottleneck"]["binding"] == API_SERVER
    assert 17_000 < bound["output_throughput"] < 20_000
    assert bound["median_itl_ms"] == pytest.approx(512 * 0.05, rel=0.02)
    assert freed["output_throughput"] > 1.5 * bound["output_throughput"]
