"""Answers as events, worked out by hand, on the plane and on the reference alike; every step takes a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.reference.request import Request
from simserve.reference.streaming import Delivery, Event, busy_share, events_of, send
from simserve.scenario.reference_run import by_reference
from simserve.scenario.verify import compared
from simserve.sim.control import Control, DisaggregationSpec, StreamingSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.records import REASONS, STATUSES, RequestRecords
from simserve.sim.simulate import Deployment, simulate
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import affine_step_times, constant_step_times, make_closed_loop, make_config, make_specs
from tests.theory.builders import make_deployment


def spec_of(**own: Any) -> StreamingSpec:
    """Return how tokens are sent."""
    return validate(StreamingSpec, {"cost_per_event": "0 s", **own})


def both(specs: RequestSpecs, streaming: StreamingSpec, **limits: Any) -> RequestRecords:
    """Return what clients see, which is the same on the plane and on the reference."""
    deployment = make_deployment(make_config(**limits), constant_step_times(1.0), 1)
    return both_of(replace(deployment, control=Control(streaming=streaming)), specs)


def both_of(deployment: Deployment, specs: RequestSpecs) -> RequestRecords:
    """Return the same of any deployment."""
    records = simulate(deployment, specs).records
    assert compared(by_reference(deployment, specs), records).differing == {}
    return records


def test_events_of_one_step_leave_one_after_the_other() -> None:
    """Two answers of two tokens, 0.25 s an event: tokens at 1 and 2 s leave at 1.25 and 1.5, 2.25 and 2.5 s."""
    records = both(make_specs([0.0, 0.0], 4, 2), spec_of(cost_per_event="0.25 s"))

    assert records.first_token_time.tolist() == [1.25, 1.5]
    assert records.finish_time.tolist() == [2.25, 2.5]


def test_a_server_that_falls_behind_sends_later_and_later() -> None:
    """One answer of three tokens, 1.5 s an event: ready at 1, 2, 3 s, sent at 2.5, 4, 5.5 s; two servers keep up."""
    behind = both(make_specs([0.0], 4, 3), spec_of(cost_per_event="1.5 s"))
    shared = both(make_specs([0.0], 4, 3), spec_of(cost_per_event="1.5 s", api_servers=2))

    assert (behind.first_token_time[0], behind.finish_time[0]) == (2.5, 5.5)
    assert (shared.first_token_time[0], shared.finish_time[0]) == (1.75, 3.75)


def test_an_interval_begins_after_the_first_token() -> None:
    """Tokens 1, 3, 5 and 6 of six at intervals of two, on the plane as here."""
    records = both(make_specs([0.0], 4, 6), spec_of(stream_interval=2, network_latency="0.5 s"))

    assert (records.first_token_time[0], records.finish_time[0]) == (2.0, 7.0)
    assert records.itl_max[0] == 2.0


def test_a_buffer_is_sent_when_it_is_full_or_the_answer_ends() -> None:
    """Five tokens by twos: the events come with the second, the fourth and the last; the network takes 0.5 s."""
    records = both(make_specs([0.0], 4, 5), spec_of(buffer_tokens=2, network_latency="0.5 s"))

    # Half a second to the server, and half a second back.
    assert (records.first_token_time[0], records.finish_time[0], records.itl_max[0]) == (3.0, 6.0, 2.0)


def test_a_whole_answer_is_one_event() -> None:
    """Its first token is its last, so it has no gaps."""
    records = both(make_specs([0.0], 4, 5), spec_of(stream=False, cost_per_event="0.25 s"))

    assert records.first_token_time.tolist() == records.finish_time.tolist() == [5.25]
    assert np.isnan(records.itl_max[0])


def test_a_first_token_in_time_is_enough_where_answers_are_streamed() -> None:
    """The second waits for the only seat until 3 s; its connection is closed at 2.75 s, the first one's is not."""
    records = both(make_specs([0.0, 0.25], 4, 3), spec_of(http_timeout="2.5 s"), max_num_seqs=1)

    assert [STATUSES[each] for each in records.status] == ["completed", "timed_out"]
    assert (REASONS[records.reason[1]], records.finish_time[1]) == ("timeout", 2.75)


def test_a_whole_answer_must_come_in_time() -> None:
    """Three steps are longer than 2.5 s."""
    records = both(make_specs([0.0], 4, 3), spec_of(stream=False, http_timeout="2.5 s"))

    assert STATUSES[records.status[0]] == "timed_out"


def test_a_client_sends_on_when_it_has_heard() -> None:
    """Two tokens end at 2 s; half of the last step's work (0.125 s) and its own event (0.25 s) are before the network.

    So the client hears at 3.375 s and the next request is a second on its way: it is there at 4.375 s.
    """
    specs = make_closed_loop(1, [4, 4], 2)

    records = both(specs, spec_of(cost_per_event="0.25 s", network_latency="1 s"))

    assert records.arrival_time.tolist() == [0.0, 4.375]


def test_a_server_goes_on_sending_between_two_steps() -> None:
    """At 2 s two seconds of work are left, and the client hears at 8.5 s; by then all is sent, and so it goes again."""
    records = both(make_closed_loop(1, [4, 4, 4], 2), spec_of(cost_per_event="3 s"))

    assert records.arrival_time.tolist() == [0.0, 8.5, 17.0]


def test_whole_answers_that_end_together_are_heard_one_after_the_other() -> None:
    """The second of two waits for the event of the first: they are heard at 2.25 and 2.5 s."""
    records = both(make_closed_loop(2, [4, 4, 4, 4], 2), spec_of(stream=False, cost_per_event="0.25 s"))

    assert records.arrival_time.tolist() == [0.0, 0.0, 2.25, 2.5]


def test_events_of_the_first_rank_leave_first() -> None:
    """Requests go to ranks 0, 1 and 0: of the tokens of one step the third one's leaves before the second one's."""
    ranks = {"data_parallel_size": 2}
    records = both(make_specs([0.0, 0.0, 0.0], 4, 1), spec_of(cost_per_event="0.25 s"), **ranks)
    whole = both(make_specs([0.0, 0.0, 0.0], 4, 1), spec_of(cost_per_event="0.25 s", stream=False), **ranks)

    assert records.finish_time.tolist() == whole.finish_time.tolist() == [1.25, 1.75, 1.5]


def test_tokens_of_whoever_was_preempted_are_spread_evenly() -> None:
    """Of its tokens the first and the last are known: eight between 1 and 15 s are two seconds apart."""
    request = Request(0, 4, 8, 8, num_preemptions=1, generated=8, finish=15.0, status="completed")
    request.token_times = [1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 14.0, 15.0]

    assert events_of(request, spec_of(buffer_tokens=3)) == [Event(5.0, 3), Event(11.0, 6), Event(15.0, 8)]


def test_tokens_that_drafts_bring_in_one_step_are_one_event() -> None:
    """At two and a half tokens a step the tokens behind the first come in steps 1, 1, 2, 2, 2: 3, 6 complete them."""
    request = Request(0, 4, 6, 6, pace=40, generated=6, finish=3.0, status="completed", token_times=[1.0, 2.0, 3.0])

    assert events_of(request, spec_of()) == [Event(1.0, 1), Event(2.0, 3), Event(3.0, 6)]


def test_a_first_token_of_a_decode_step_comes_with_its_drafts() -> None:
    """At two and a half tokens a step, three steps bring two, three and two."""
    request = Request(0, 4, 6, 6, pace=40, generated=6, finish=3.0, status="completed", token_times=[1.0, 2.0, 3.0])
    request.first_decodes = True

    assert events_of(request, spec_of()) == [Event(1.0, 2), Event(2.0, 5), Event(3.0, 6)]


def test_delays_and_the_share_of_a_busy_server_are_those_of_its_events() -> None:
    """Two events at one instant, 0.25 s each: the second waits 0.25 s; half a second of the two-second run is work."""
    requests = [Request(each, 4, 1, 1, generated=1, finish=1.0, status="completed") for each in range(2)]
    for request in requests:
        request.token_times = [1.0]
    spec = spec_of(cost_per_event="0.25 s")

    sent = send(requests, spec)

    assert [sent[each].delay for each in requests] == [0.0, 0.25]
    assert busy_share(list(sent.values()), spec, 2.0) == 0.25


@pytest.mark.parametrize(("status", "expected"), [("timed_out", 0.0), ("rejected", 0.5), ("completed", 0.75)])
def test_who_has_hung_up_needs_no_network_to_know(status: str, expected: float) -> None:
    """A refusal crosses it, and an answer takes its event besides."""
    delivery = Delivery(spec_of(cost_per_event="0.25 s", network_latency="0.5 s"))

    assert delivery.seconds_to_client(Request(0, 4, 1, 1, status=status, replica=0)) == expected


def test_tokens_of_a_decode_replica_come_with_its_steps_whatever_rank_computed_the_prompt() -> None:
    """Two decode together for 2 s a step until the first is done, then the second alone for 1.5 s a step."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    times = affine_step_times(step_seconds=1.0, decode_sequence_seconds=0.5)
    first = PoolSetup(
        name="p",
        engine=make_config(data_parallel_size=2),
        step_times=times,
        priced=None,
        num_replicas=1,
        role="prefill",
    )
    pools = (first, replace(first, name="d", engine=make_config(), role="decode"))
    deployment = replace(make_deployment(make_config(), times, 1), pools=pools)
    control = Control(disaggregation=link, kv_bytes_per_token=1.0, streaming=spec_of())

    records = both_of(replace(deployment, control=control), make_specs([0.0, 0.0], 4, [3, 9]))

    assert records.itl_max == pytest.approx([2.0, 2.0], abs=1e-6)


def test_a_decode_replica_of_one_scheduler_sends_by_request_and_not_by_the_rank_of_before() -> None:
    """Ranks 0, 1 and 0 computed the prompts; the first cache lands a step earlier, requests 1 and 2 end together."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    first = PoolSetup(
        name="p",
        engine=make_config(data_parallel_size=2),
        step_times=constant_step_times(1.0),
        priced=None,
        num_replicas=1,
        role="prefill",
    )
    pools = (first, replace(first, name="d", engine=make_config(), role="decode"))
    streaming = spec_of(cost_per_event="0.25 s", buffer_tokens=8)
    control = Control(disaggregation=link, kv_bytes_per_token=1.0, streaming=streaming)
    deployment = replace(make_deployment(make_config(), constant_step_times(1.0), 1), pools=pools, control=control)

    records = both_of(deployment, make_specs([0.0, 0.0, 0.0], 4, 3))

    assert np.diff(records.finish_time) == pytest.approx([1.0, 0.25])
