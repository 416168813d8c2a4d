"""What the client sees: events, buffers, the API server's core, the network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from simserve.engine.progress import GRID
from simserve.engine.sending import Sending, send_all
from simserve.metrics.files import summary_text
from simserve.scenario.load import load
from simserve.scenario.run import run as run_scenario
from simserve.scenario.verify import verify
from simserve.sim import streaming
from simserve.sim.acceleration import CHOICES
from simserve.sim.control import Control, FaultSpec, OverflowSpec, StreamingSpec
from simserve.sim.records import COMPLETED, NUM_BINS, TIMED_OUT, Histogram, RequestRecords, bin_edges, bins_of
from simserve.sim.simulate import Simulation, simulate
from simserve.sim.streaming import Clocks
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.engine.strategies import Case, cases, pressed_cases, ranked_cases, speculative_cases, swapping_cases
from tests.fuzzing import examples
from tests.theory.builders import make_deployment
from tests.walker import Walk

FREE: dict[str, Any] = {"cost_per_event": "0 s"}
KINDS = {
    "any": cases,
    "pressed": pressed_cases,
    "ranked": ranked_cases,
    "speculative": speculative_cases,
    "swapping": swapping_cases,
}


def streamed(specs: RequestSpecs, config: Any = None, times: Any = None, **spec: Any) -> Simulation:
    """Return a run as its clients see it; every step takes a second."""
    control = Control(streaming=validate(StreamingSpec, {**FREE, **spec}))
    deployment = make_deployment(config or make_config(), times or constant_step_times(1.0), 1)
    return simulate(replace(deployment, control=control), specs)


@given(cases(), st.integers(1, 6))
@settings(max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_every_event_leaves_when_its_last_token_is_there(case: Case, size: int) -> None:
    """Against the walker's times of every token, where nobody was preempted; gaps and largest gaps likewise."""
    check_events(case, size)


@given(ranked_cases().filter(lambda case: not case.config.num_speculative_tokens), st.integers(1, 3))
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
def test_events_of_ranks_leave_when_their_last_token_is_there(case: Case, size: int) -> None:
    """The same with data-parallel attention: every rank has a clock of its own."""
    check_events(case, size)


def check_events(case: Case, size: int) -> None:
    """Assert that clients see every token when the walker says it was there."""
    assume(case.config.batching == "continuous")
    assume(case.config.kv_allocation != "none")
    assume(case.specs.concurrency is None)
    walker = Walk(case.config, case.times, case.specs)
    outcome = walker.outcome()
    assume(not outcome.num_preemptions.any())

    run = streamed(case.specs, case.config, case.times, buffer_tokens=size)

    gaps = []
    for index, request in enumerate(walker.requests):
        if request.status != "completed":
            continue
        times = [request.first_token, *request.token_times[1:]]
        events = [*times[size - 1 : -1 : size], times[-1]]
        assert run.records.first_token_time[index] == pytest.approx(events[0], rel=1e-9)
        assert run.records.finish_time[index] == pytest.approx(events[-1], rel=1e-9)
        if len(events) > 1:
            assert run.records.itl_max[index] == pytest.approx(max(np.diff(events)), rel=1e-9, abs=1e-9)
        gaps += np.diff(events).tolist()
    assert run.totals.itl.count == len(gaps)
    assert run.totals.itl.total == pytest.approx(sum(gaps), rel=1e-9, abs=1e-9)


def test_the_network_lies_on_both_ways() -> None:
    """0.25 s there and 0.25 s back."""
    records = streamed(make_specs([0.0], 4, 3), network_latency="250 ms").records

    assert records.admitted_time[0] == 0.25
    assert records.first_token_time[0] == 1.5
    assert records.finish_time[0] == 3.5


def test_a_core_sends_one_event_after_the_other() -> None:
    """Four tokens come in every step, each costs 0.2 s: the last is sent 0.8 s after the step."""
    run = streamed(make_specs([0.0] * 4, 1, 5), cost_per_event="0.2 s")

    assert sorted(run.records.first_token_time) == pytest.approx([1.2, 1.4, 1.6, 1.8])
    assert run.stream is not None
    assert run.stream.num_events == 20
    assert run.stream.busiest_share == pytest.approx(20 * 0.2 / 5.8)
    assert run.stream.delay_seconds == pytest.approx(5 * (0.2 + 0.4 + 0.6))


def test_a_full_core_falls_behind_and_more_cores_do_not() -> None:
    """At 0.5 s an event two seconds of work come with every step of one; four cores share them."""
    specs = make_specs([0.0] * 4, 1, 10)
    one, four = (streamed(specs, cost_per_event="0.5 s", api_servers=count) for count in (1, 4))

    assert one.records.finish_time.max() == pytest.approx(1 + 40 * 0.5)
    assert four.records.finish_time.max() == pytest.approx(10.5)


def test_whole_answers_have_no_first_token() -> None:
    """One event, when the answer ends; no gaps."""
    run = streamed(make_specs([0.0, 0.0], 4, [3, 6]), stream=False)

    assert run.records.first_token_time.tolist() == run.records.finish_time.tolist() == [3.0, 6.0]
    assert run.totals.itl.count == 0
    assert run.stream is not None
    assert run.stream.num_events == 2


def test_a_proxy_cuts_long_answers() -> None:
    """At 4.5 s the answer of six tokens is dropped; the seat is free at 5."""
    specs = make_specs([0.0, 0.0, 1.0], 4, [3, 6, 2])
    run = streamed(specs, make_config(max_num_seqs=2), stream=False, http_timeout="4.5 s")

    assert run.records.status.tolist() == [COMPLETED, TIMED_OUT, COMPLETED]
    assert run.records.finish_time[1] == 4.5


def test_a_proxy_cuts_streams_that_do_not_begin() -> None:
    """The third waits for a seat until 3 s and is dropped at 3.5; the others stream for longer than that, and stay."""
    specs = make_specs([0.0, 0.0, 1.0], 4, [3, 6, 2])
    run = streamed(specs, make_config(max_num_seqs=2), http_timeout="2.5 s")

    assert run.records.status.tolist() == [COMPLETED, COMPLETED, TIMED_OUT]
    assert run.records.finish_time.tolist()[1:] == [6.0, 3.5]


def test_a_first_token_in_time_is_enough() -> None:
    """At 3 s the seat is free, at 4 s the first token is there: 3 s after it was asked for, to the instant."""
    specs = make_specs([0.0, 0.0, 1.0], 4, [3, 6, 2])
    run = streamed(specs, make_config(max_num_seqs=2), http_timeout="3 s")

    assert run.records.status.tolist() == [COMPLETED] * 3


def test_a_step_that_outlasts_the_last_client_is_not_more_than_all_of_the_run() -> None:
    """One request, dropped at 2.5 s while its third step runs to 3 s: a step was running throughout."""
    run = streamed(make_specs([0.0], 4, [6]), make_config(max_num_seqs=2), stream=False, http_timeout="2.5 s")

    assert run.end_time == 2.5
    assert run.totals.busy_seconds == 3.0
    assert run.busy_share == 1.0


def test_a_client_that_waits_sends_its_next_request_later() -> None:
    """A quarter of a second there and back, and an event's cost: 3 + 0.5 + 0.1 s a request instead of 3."""
    run = streamed(make_closed_loop(1, [4] * 5, 3), network_latency="250 ms", cost_per_event="0.1 s")

    sent = run.records.arrival_time
    assert np.diff(sent) == pytest.approx([3.0 + 0.5 + 0.1 + 0.05] * 4)
    assert (run.records.finish_time[:-1] <= sent[1:] + 1e-9).all()


def test_a_full_core_slows_a_closed_loop_down() -> None:
    """Four clients, tokens at a second each, 0.5 s an event: one core sends two a second, and they ask no faster."""
    specs = make_closed_loop(4, [4] * 40, 10)
    free, full = streamed(specs), streamed(specs, cost_per_event="0.5 s")

    assert free.end_time == pytest.approx(100.0)
    assert full.end_time == pytest.approx(40 * 10 * 0.5, rel=0.1)
    assert full.stream is not None
    assert full.stream.busiest_share > 0.9


def test_conversations_wait_for_the_network_too() -> None:
    """Three turns of one conversation, each half a second later."""
    turns = np.arange(1, 4)
    specs = replace(
        make_specs([0.0, np.nan, np.nan], 4, 3), session=np.zeros(3, dtype=np.int64), turn=turns, think_time=np.zeros(3)
    )
    run = streamed(specs, network_latency="250 ms")

    assert run.records.arrival_time.tolist() == [0.0, 3.5, 7.0]
    assert run.records.finish_time.tolist() == [3.5, 7.0, 10.5]


def test_a_replica_that_comes_back_keeps_its_clock() -> None:
    """Lost in its fifth step and back at 20 s: what it then answers has a token every second, as before."""
    faults = TypeAdapter(tuple[FaultSpec, ...]).validate_python(
        [{"kind": "replica", "replica": 0, "at": "4.5 s", "duration": "15.5 s", "in_flight": "retry"}]
    )
    control = Control(faults=faults, streaming=validate(StreamingSpec, {**FREE, "buffer_tokens": 2}))
    deployment = make_deployment(make_config(), constant_step_times(1.0), 1)
    records = simulate(replace(deployment, control=control), make_specs([0.0, 30.0], 4, [8, 7])).records

    assert records.first_token_time.tolist() == [22.0, 32.0]
    assert records.finish_time.tolist() == [28.0, 37.0]
    assert records.itl_max.tolist() == [2.0, 2.0]


def test_answers_of_an_api_pass_no_api_server_of_ours() -> None:
    """It answers the second request; the network lies before it, the events are its own."""
    api = validate(OverflowSpec, {"api": "any", "max_queue": 0, "ttft": "2 s", "ttft_cv": 0, "tokens_per_second": 4})
    spec = validate(StreamingSpec, {"cost_per_event": "0.2 s", "network_latency": "250 ms"})
    deployment = make_deployment(make_config(max_num_seqs=1), constant_step_times(1.0), 1)
    run = simulate(
        replace(deployment, control=Control(overflow=api, streaming=spec)), make_specs([0.0, 0.5], 4, [3, 5])
    )

    assert run.records.replica_id.tolist() == [0, -1]
    assert run.records.first_token_time[1] == pytest.approx(0.5 + 0.25 + 2.0 + 0.25)
    assert run.records.itl_max[1] == 0.25
    assert run.stream is not None
    assert (run.stream.num_events, run.stream.num_tokens) == (3, 3)


def test_an_interval_sends_the_first_token_at_once() -> None:
    """Ten tokens, a second each, four an event: 1, 5, 9 and 10; gaps of four seconds, the mean per token unchanged."""
    run, plain = (streamed(make_specs([0.0], 4, 10), **way) for way in ({"stream_interval": 4}, {}))

    assert run.stream is not None
    assert run.stream.num_events == 4
    assert run.records.first_token_time[0] == plain.records.first_token_time[0] == 1.0
    assert run.records.finish_time[0] == plain.records.finish_time[0] == 10.0
    assert run.records.itl_max[0] == 4.0
    assert run.totals.itl.count == 3


def test_an_interval_takes_load_off_the_api_server() -> None:
    """1.5 s an event: ten tokens are sent by 16 s; in four events the last leaves 1.5 s after it is there."""
    run, plain = (
        streamed(make_specs([0.0], 4, 10), cost_per_event="1.5 s", **way) for way in ({"stream_interval": 4}, {})
    )

    assert plain.records.finish_time[0] == 16.0
    assert run.records.finish_time[0] == 12.0


def test_drafted_tokens_of_a_step_are_one_event() -> None:
    """Two and a half tokens a step: nine tokens after the first come in four steps, so five events, not ten."""
    specs = replace(make_specs([0.0], 4, 10), pace=np.array([5 * GRID // 2], dtype=np.int64))
    run = streamed(specs, make_config(num_speculative_tokens=4))
    buffered = streamed(specs, make_config(num_speculative_tokens=4), buffer_tokens=4)

    assert run.stream is not None
    assert run.stream.num_events == 5
    assert run.records.first_token_time[0] == 1.0
    assert run.records.finish_time[0] == 5.0
    assert run.records.itl_max[0] == 1.0
    # Tokens 4, 8 and 10 are there after 1 + ceil(3 / 2.5), 1 + ceil(7 / 2.5) and 5 steps.
    assert buffered.stream is not None
    assert buffered.stream.num_events == 3
    assert buffered.records.first_token_time[0] == 3.0


def test_ranks_send_through_the_api_server_of_their_replica() -> None:
    """One request on each of two ranks: their tokens are there at one instant, and leave one after the other."""
    config = make_config(data_parallel_size=2)

    run = streamed(make_specs([0.0, 0.0], 4, [3, 2]), config, cost_per_event="0.1 s")

    assert run.records.first_token_time.tolist() == pytest.approx([1.1, 1.2])
    assert run.records.finish_time.tolist() == pytest.approx([3.1, 2.2])
    assert run.stream is not None
    assert run.stream.num_events == 5


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
    size, begin = spec.stream_interval or spec.buffer_tokens, 1 if spec.stream_interval else spec.buffer_tokens
    tokens = [*range(begin, output, size), output]
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
@settings(max_examples=examples(36), deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
def test_clients_see_what_a_walk_over_all_tokens_says(kind: str, data: st.DataObject) -> None:
    """Any replicas, costs and buffers, sent one by one, a few at a time or all at once: the same instants."""
    case = data.draw(KINDS[kind]().filter(_is_streamed))
    way: dict[str, Any] = {
        "network_latency": "0 s",
        "cost_per_event": data.draw(st.sampled_from(["0 s", "0.013 s", "0.37 s"])),
    }
    ways = [{}, {"buffer_tokens": 2}, {"buffer_tokens": 5}, {"stream_interval": 2}, {"stream_interval": 5}]
    way |= data.draw(st.sampled_from([*ways, {"stream": False}]))
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


@pytest.mark.parametrize("way", ["buffer_tokens: 1", "buffer_tokens: 3", "stream_interval: 4"])
@pytest.mark.parametrize("replicas", [1, 4])
def test_compiled_code_sends_events_as_numpy_does(replicas: int, way: str) -> None:
    """Servers that keep up and servers that fall behind, with preemptions: the same bytes."""
    for cost in ("0 s", "30 us", "400 us"):
        changes = (
            f"deployment.streaming={{cost_per_event: {cost}, {way}}}",
            f"deployment.replicas={replicas}",
            "deployment.engine={max_model_len: 8192, num_gpu_blocks_override: 900}",
            "workload.num_requests=300",
        )
        scenario = load("chatbot", changes)
        compiled, interpreted = (
            run_scenario(scenario, explain=False, accelerate=how, finishable=None) for how in CHOICES[1:]
        )
        pd.testing.assert_frame_equal(compiled.requests, interpreted.requests, check_exact=True)
        assert summary_text(compiled.summary) == summary_text(interpreted.summary)


@pytest.mark.parametrize(
    "way", ["{}", "{stream: false}", "{buffer_tokens: 3, cost_per_event: 5 ms}", "{stream_interval: 3}"]
)
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
