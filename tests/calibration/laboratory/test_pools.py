"""Separate prefill and decode workers that were measured: what their replay says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.laboratory import pools
from calibration.laboratory.pools import PoolPair
from simserve.engine.state import StepTimes
from simserve.planner.measured.point import MeasuredPoint
from simserve.planner.validation.prediction import Pricer, predict, replay_key
from tests.planner.builders import make_point
from tests.scenario.builders import scenario_mapping


def pair(**changes: Any) -> PoolPair:
    """Return one prefill and two decode workers of a small model, and 8 clients."""
    workload = {
        "arrivals": {"process": "closed_loop", "concurrency": 8},
        "prompt_tokens": {"distribution": "fixed", "value": 200},
        "output_tokens": {"distribution": "fixed", "value": 50},
        "num_requests": 40,
    }
    scenario = scenario_mapping() | {"workload": workload, "run": {"warmup": "none"}}
    fields: dict[str, Any] = {"prefill": scenario, "decode": scenario, "num_prefills": 1, "num_decodes": 2}
    return PoolPair(**(fields | changes))


def point(*pairs: PoolPair, tpot: float = 0.005) -> MeasuredPoint:
    """Return a point of separate pools."""
    return make_point(pools=pairs, scenario={}, measured={"tpot": tpot, "ttft": 0.05})


def test_workers_are_replayed() -> None:
    """All requests are served, TPOT is that of a decode step, and TTFT holds the prompt and the transfer."""
    found = predict(point(pair()), Pricer())

    assert found.is_covered
    assert 0 < found.predicted["tpot"] < found.predicted["ttft"]


def test_more_decode_workers_are_faster() -> None:
    """Fewer requests share a step."""
    one, four = (predict(point(pair(num_decodes=count)), Pricer()) for count in (1, 4))

    assert four.predicted["tpot"] < one.predicted["tpot"]


def test_the_workers_nearest_in_tpot_are_what_ran() -> None:
    """Of two recipes, whichever the measurement says."""
    pairs = pair(num_decodes=1), pair(num_decodes=4)
    alone = [predict(point(each), Pricer()).predicted["tpot"] for each in pairs]

    chosen = [predict(point(*pairs, tpot=1.001 * tpot), Pricer()).predicted["tpot"] for tpot in alone]

    assert chosen == alone


def test_equal_workers_are_replayed_once() -> None:
    """Whatever the points are called."""
    first, renamed = pair(), replace(pair(), prefill={**pair().prefill, "name": "another"})
    pricer = Pricer()

    for each in (first, renamed):
        predict(point(each), pricer)

    assert len(pricer.replayed) == 1
    assert replay_key(point(first)) == replay_key(point(renamed))


def test_drafts_shorten_the_time_a_token() -> None:
    """DeepSeek-R1 on 8 H200: a step with 3 drafts takes longer than one, and yields 2.5 tokens."""
    deployment = {
        "hardware": "h200-sxm-141gb",
        "tensor_parallel_size": 8,
        "quantization": "fp8",
        "engine": {"name": "sglang", "version": "0.5.8", "max_model_len": 2048, "max_num_seqs": 16},
    }
    worker = pair().prefill | {"model": "deepseek-r1", "deployment": deployment}
    pricer = Pricer()

    plain, drafting = (
        predict(point(pair(prefill=worker, decode=worker, num_drafts=drafts)), pricer).predicted["tpot"]
        for drafts in (0, 3)
    )

    assert plain / 2.5 < drafting < plain


def test_verifying_ranks_count_each_draft_as_a_sequence() -> None:
    """Own seconds and those of the experts are those of twice as many tokens; keys are read once a token."""
    times = StepTimes(
        decode_base=[0.0, 1.0, 2.0, 3.0, 4.0],
        decode_slope=[0.1] * 5,
        token_seconds=[0.0, 1.0],
        token_seconds_beyond=1.0,
        sequence_seconds=[0.0] * 5,
        decode_attention_base=[0.0] * 5,
        prefill_request_seconds=0.0,
        prefill_pair_seconds=0.0,
        prefill_context_seconds=0.0,
        shared_seconds=[0.0, 10.0, 20.0, 30.0, 40.0],
        shared_seconds_beyond=10.0,
    )

    found = pools._verifying(times, 2)

    assert found.decode_base == pytest.approx([0.0, 2.0, 4.0])
    assert found.decode_slope == pytest.approx([0.2, 0.2, 0.2])
    assert found.shared_seconds == pytest.approx([0.0, 20.0, 40.0])
    assert found.shared_seconds_beyond == 20.0


def test_steps_that_yield_more_tokens_are_as_much_shorter() -> None:
    """All that a decode step takes, what ranks do together included; TPOT of ranks falls with drafts."""
    deployment = {
        "hardware": "h200-sxm-141gb",
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
        "quantization": "fp8",
        "engine": {"name": "sglang", "version": "0.5.8", "max_model_len": 2048, "max_num_seqs": 16},
    }
    worker = pair().prefill | {"model": "deepseek-r1", "deployment": deployment}
    pricer = Pricer()

    plain, drafting = (
        predict(point(pair(prefill=worker, decode=worker, num_drafts=drafts)), pricer).predicted["tpot"]
        for drafts in (0, 3)
    )

    assert plain / 2.5 < drafting < plain


def test_answers_pass_no_api_server_of_the_worker() -> None:
    """SGLang's would take 50 us a token, 25 ms of a step of 512 requests; Dynamo takes the tokens from it."""
    deployment = {
        "hardware": "h200-sxm-141gb",
        "engine": {"name": "sglang", "version": "0.5.8", "max_model_len": 2048, "max_num_seqs": 512},
    }
    workload = {**pair().prefill["workload"], "arrivals": {"process": "closed_loop", "concurrency": 512}}
    worker = pair().prefill | {"deployment": deployment, "workload": workload | {"num_requests": 1024}}

    found = predict(point(pair(prefill=worker, decode=worker, num_prefills=8, num_decodes=1)), Pricer())

    assert found.predicted["tpot"] < 0.020


def test_a_slow_port_delays_the_first_token() -> None:
    """By what a cache takes through it, and by what the hand-over takes; tokens after it come as before."""
    fast, slow, late = (
        predict(point(pair(**changes)), Pricer()).predicted
        for changes in ({}, {"port_bandwidth": 1e8}, {"kv_transfer_seconds": 0.1})
    )

    assert slow["ttft"] > fast["ttft"] + 0.1
    assert late["ttft"] == pytest.approx(fast["ttft"] + 0.1, rel=0.2)


def test_the_one_rank_that_has_a_cache_sends_every_copy() -> None:
    """8 GPUs that decode together ask one rank for 8 copies; the link of all ranks is as busy as before."""
    cut, ranks = {"tensor_parallel_size": 8}, {"data_parallel_size": 8}
    found = {
        name: pools._links(pair(decode={"deployment": decode}, port_bandwidth=1e9), 36e6, prefill)
        for name, decode, prefill in (("together", cut, 1), ("copies", cut, 8), ("one", ranks, 8))
    }

    assert {name: each.transfer_bandwidth / 1e9 for name, each in found.items()} == {
        "together": 1.0,
        "copies": 1.0,
        "one": 8.0,
    }
    assert found["copies"].transfer_latency == pytest.approx(0.001 + 7 * 0.036)
    assert found["one"].transfer_latency == pytest.approx(0.001 + 7 / 8 * 0.036)


def test_workers_with_data_parallel_attention_are_replayed() -> None:
    """Qwen3-235B on 8 H200: every rank of a prefill worker takes prompts of its own."""
    deployment = {
        "hardware": "h200-sxm-141gb",
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
        "quantization": "fp8",
        "engine": {"name": "tensorrt-llm", "version": "1.2", "max_model_len": 2048, "max_num_seqs": 16},
    }
    cut = {key: value for key, value in deployment.items() if key != "data_parallel_size"} | {"tensor_parallel_size": 8}
    workers = [pair().prefill | {"model": "qwen3-235b-a22b", "deployment": each} for each in (deployment, cut)]

    ranks, together = (predict(point(pair(prefill=each, decode=workers[1])), Pricer()) for each in workers)

    assert ranks.is_covered
    assert ranks.predicted["ttft"] != pytest.approx(together.predicted["ttft"], rel=0.01)


def test_acceptance_lengths_are_the_measured_ones() -> None:
    """1.79, 2.27 and 2.49 tokens a step with 1, 2 and 3 drafts."""
    lengths = 1.0 + np.cumsum(np.cumprod(pools.MTP_ACCEPTANCE))

    assert lengths == pytest.approx([1.79, 2.27, 2.49], abs=0.01)
