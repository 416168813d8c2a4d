"""Events of answers and their way through the API server, against the same written down token by token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.engine.histogram import NUM_BINS, Histogram, bin_edges, bins_of
from simserve.engine.progress import GRID
from simserve.engine.sending import Sending, send_all
from simserve.metrics.files import summary_text
from simserve.scenario.load import load
from simserve.scenario.run import run as run_scenario
from simserve.scenario.verify import verify
from simserve.sim import streaming
from simserve.sim.acceleration import CHOICES
from simserve.sim.control import Control
from simserve.sim.records import COMPLETED, RequestRecords
from simserve.sim.simulate import simulate
from simserve.sim.streaming import Clocks
from simserve.sim.streaming_spec import StreamingSpec
from simserve.validation import validate
from tests.engine.strategies import Case, cases, pressed_cases, ranked_cases, speculative_cases, swapping_cases
from tests.theory.builders import make_deployment

KINDS = {
    "any": cases,
    "pressed": pressed_cases,
    "ranked": ranked_cases,
    "speculative": speculative_cases,
    "swapping": swapping_cases,
}


@dataclass
class Expected:
    """What clients should see: first and last events, the largest gap of each answer, and all gaps."""

    first: dict[int, float]
    last: dict[int, float]
    largest: dict[int, float]
    gaps: list[float]
    num_events: int
    delay: float


def token_by_token(
    spec: StreamingSpec, records: RequestRecords, clocks: Clocks, rank: list[int], pace: list[int] | None
) -> Expected:
    """Walk through all tokens of a run of one kind of replica."""
    expected = Expected({}, {}, {}, [], 0, 0.0)
    cost = spec.cost_per_event / spec.api_servers
    for replica in set(records.replica_id[records.status == COMPLETED].tolist()):
        own = np.flatnonzero((records.status == COMPLETED) & (records.replica_id == replica)).tolist()
        ready = []
        for number in sorted({rank[index] for index in own}):
            steps, starts, until = [], [], []
            for start, count, seconds, increment, _ in clocks.get((replica, number), np.zeros((5, 0))).T.tolist():
                starts.append(start)
                steps += [start + seconds * k + increment * (k * (k - 1) * 0.5) for k in range(1, int(count) + 1)]
                until.append(len(steps))
            for index in own:
                if rank[index] == number:
                    drawn = None if pace is None else pace[index]
                    ready += _events(spec, records, index, steps, starts, until, drawn)
        free, sent = 0.0, dict[int, list[float]]()
        for number, (time, index) in enumerate(sorted(ready, key=lambda each: each[0])):
            free = max(free, time - cost * number)
            sent.setdefault(index, []).append(free + cost * (number + 1))
            expected.delay += sent[index][-1] - time - cost
        for index in own:
            times = sent[index]
            gaps = [after - before for before, after in pairwise(times)]
            expected.first[index], expected.last[index] = times[0], times[-1]
            expected.largest[index] = max(gaps, default=np.nan)
            expected.gaps += gaps
            expected.num_events += len(times)
    return expected


def _events(
    spec: StreamingSpec,
    records: RequestRecords,
    index: int,
    steps: list[float],
    starts: list[float],
    until: list[int],
    pace: int | None,
) -> list[tuple[float, int]]:
    """Return when the events of an answer were there, in their order, each with whose it is."""
    output, first = int(records.output_tokens[index]), float(records.first_token_time[index])
    last = float(records.finish_time[index])
    if not spec.stream:
        return [(last, index)]
    tokens = [*range(spec.buffer_tokens, output, spec.buffer_tokens), output]
    done = until[max(sum(each < last for each in starts) - 1, 0)] if until else 0
    back = [output - token for token in tokens]
    if pace is not None:
        behind = [-(-GRID * (token - 1) // pace) for token in (output, *tokens)]
        back = [behind[0] - each for each in behind[1:]]
        if until:
            kept = [at for at in range(len(tokens)) if at == len(tokens) - 1 or back[at + 1] != back[at]]
            tokens, back = [tokens[at] for at in kept], [back[at] for at in kept]
    times = []
    for token, each in zip(tokens, back, strict=True):
        is_spread = token == 1 or not until or records.num_preemptions[index]
        spread = first + (last - first) * (token - 1) / max(output - 1, 1)
        times.append(spread if is_spread else steps[done - each - 1])
    return [(time, index) for time in [*times[:-1], last]]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
def test_clients_see_what_a_walk_over_all_tokens_says(kind: str, data: st.DataObject) -> None:
    """Any replicas, costs and buffers, sent one by one, a few at a time or all at once: the same instants."""
    case = data.draw(KINDS[kind]().filter(_is_streamed))
    way: dict[str, Any] = {
        "network_latency": "0 s",
        "cost_per_event": data.draw(st.sampled_from(["0 s", "0.013 s", "0.37 s"])),
    }
    way |= data.draw(st.sampled_from([{}, {}, {"buffer_tokens": 2}, {"buffer_tokens": 5}, {"stream": False}]))
    spec = validate(StreamingSpec, way)
    seen: dict[str, Any] = {}
    original = streaming.client_view
    one_by_one = data.draw(st.sampled_from([None, uncompiled]))

    def noted(
        spec: StreamingSpec, records: RequestRecords, clocks: Clocks, end: float, rank: Any, *others: Any
    ) -> streaming.ClientView:
        seen.update(records=records, clocks=clocks, rank=rank.tolist())
        return original(spec, records, clocks, end, rank, *others[:2], send_all=one_by_one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "client_view", noted)
        patch.setattr(streaming, "EVENTS_AT_ONCE", data.draw(st.sampled_from([1, 7, 14_000])))
        deployment = replace(make_deployment(case.config, case.times, 2), control=Control(streaming=spec))
        run = simulate(deployment, case.specs, accelerate="off")
    expected = token_by_token(
        spec,
        seen["records"],
        seen["clocks"],
        seen["rank"],
        None if case.specs.pace is None else case.specs.pace.tolist(),
    )

    for index, first in expected.first.items():
        assert run.records.first_token_time[index] == first
        assert run.records.finish_time[index] == expected.last[index]
        np.testing.assert_equal(run.records.itl_max[index], expected.largest[index])
    bins = Histogram()
    bins.add(expected.gaps)
    assert run.totals.itl.counts.tolist() == bins.counts.tolist()
    assert run.totals.itl.total == pytest.approx(bins.total, rel=1e-9, abs=1e-9)
    assert run.totals.itl.total_squares == pytest.approx(bins.total_squares, rel=1e-9, abs=1e-9)
    np.testing.assert_equal([run.totals.itl.minimum, run.totals.itl.maximum], [bins.minimum, bins.maximum])
    assert run.stream is not None
    assert run.stream.num_events == expected.num_events
    assert run.stream.delay_seconds == pytest.approx(max(expected.delay, 0.0), rel=1e-9, abs=1e-9)


def uncompiled(sending: Sending) -> Sending:
    """Send events with the text that is compiled, as it stands."""
    send_all(sending)
    return sending


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("replicas", [1, 4])
def test_compiled_code_sends_events_as_numpy_does(replicas: int, size: int) -> None:
    """Servers that keep up and servers that fall behind, with preemptions: the same bytes."""
    for cost in ("0 s", "30 us", "400 us"):
        changes = (
            f"deployment.streaming={{cost_per_event: {cost}, buffer_tokens: {size}}}",
            f"deployment.replicas={replicas}",
            "deployment.engine={max_model_len: 8192, num_gpu_blocks_override: 900}",
            "workload.num_requests=600",
        )
        scenario = load("chatbot", changes)
        compiled, interpreted = (run_scenario(scenario, explain=False, accelerate=how) for how in CHOICES[1:])
        pd.testing.assert_frame_equal(compiled.requests, interpreted.requests, check_exact=True)
        assert summary_text(compiled.summary) == summary_text(interpreted.summary)


@pytest.mark.parametrize("way", ["{}", "{stream: false}", "{buffer_tokens: 3, cost_per_event: 5 ms}"])
def test_an_embedding_is_sent_in_one_event(way: str) -> None:
    """An answer without tokens passes the API server too, in the plane as in the reference."""
    few = (f"deployment.streaming={way}", "workload.arrivals.rate=35", "workload.num_requests=100")
    scenario = load("embeddings", few)

    assert verify(scenario).is_equal
    assert run_scenario(scenario, explain=False).summary["simserve"]["streaming"]["events"] == 100


def test_edges_of_bins_are_those_of_the_histogram() -> None:
    """The float at an edge is in the bin behind it, the one before in the bin before it."""
    edges = bin_edges()
    assert (edges[0], edges[-1], len(edges)) == (-np.inf, np.inf, NUM_BINS + 1)
    number = np.arange(1, NUM_BINS)
    assert bins_of(edges[1:-1]).tolist() == number.tolist()
    assert bins_of(np.nextafter(edges[1:-1], 0)).tolist() == (number - 1).tolist()


def _is_streamed(case: Case) -> bool:
    config = case.config
    serves = config.batching == "continuous" and config.kv_allocation != "none"
    return serves and case.specs.concurrency is None
