"""The bounds are bounds: no schedule of the simulator beats them, and what they drop does not hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.engine.state import RequestTable
from simserve.metrics.latency import SLO, attainment, request_latencies
from simserve.perf.tables import price
from simserve.planner.search.bound import (
    NO_BOUND,
    Steps,
    _best_prices,
    _prices,
    first_token_seconds,
    fleet_bound,
    further_token_seconds,
    is_covered,
    least_replica_seconds,
)
from simserve.planner.search.trial import try_fleet
from simserve.scenario.load import load
from simserve.scenario.media import with_media
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.sim.records import COMPLETED
from simserve.sim.simulate import replay
from simserve.workload.generate import generate
from tests.builders import make_specs
from tests.engine.strategies import Case, cases, pressed_cases, speculative_cases
from tests.fuzzing import examples
from tests.scenario.builders import make_scenario

few = settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
fewer = settings(few, max_examples=examples(40))
TOLERANCE = 1 - 1e-9


def is_bounded(case: Case) -> bool:
    """Return whether the proofs speak of this replica."""
    return case.config.batching == "continuous" and case.config.kv_allocation != "none"


def lengths(case: Case) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return prompts and answers as the engine cuts them."""
    specs = case.specs
    table = RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, case.config, specs.pace)
    return np.array(table.prompt_tokens, dtype=np.float64), np.array(table.output_tokens, dtype=np.float64)


@given(st.one_of(cases(), pressed_cases(), speculative_cases()))
@few
def test_no_request_beats_the_bounds_on_its_latencies(case: Case) -> None:
    """Whatever the scheduler does: chunks, preemptions, pipelines, other requests."""
    assume(is_bounded(case))
    records = replay(case.config, case.times, case.specs).records
    prompt, output = lengths(case)
    done = records.status == COMPLETED
    # A first token that is handed over late may come with what the second step gives.
    steps = np.ceil((output[done] - 1) / (1 + case.config.num_speculative_tokens))
    gaps = np.maximum(steps - case.config.async_output, 0)

    ttft = (records.first_token_time - records.arrival_time)[done]
    decoding = (records.finish_time - records.first_token_time)[done]

    assert np.all(first_token_seconds(prompt, case.config, case.times)[done] * TOLERANCE <= ttft)
    assert np.all(further_token_seconds(prompt, case.config, case.times)[done] * gaps * TOLERANCE <= decoding + 1e-12)


@given(st.one_of(cases(), pressed_cases()))
@fewer
def test_no_prices_give_more_work_than_those_chosen(case: Case) -> None:
    """What sums over all requests choose is best request by request too; no price of a further token is too high."""
    assume(is_bounded(case))
    prompt, output = lengths(case)
    steps, gaps = Steps(case.config, case.times), np.maximum(output - 1, 0.0)
    contexts = gaps * prompt + gaps * np.maximum(gaps - 1, 0.0) / 2

    def work(token: float, memory: float, pace: float) -> float:
        further = steps.further_token_price(token, memory, pace) if gaps.any() else 0.0
        each = np.minimum(further, (token - memory) * (prompt + 1))
        return float((token * prompt + each * gaps + memory * contexts).sum())

    found = _best_prices(steps, prompt, gaps, (0.0, float(prompt.sum()), float(contexts.sum()), 0.0), None)

    most = max(work(*prices) for prices in _prices(steps, has_gaps=bool(gaps.any()), typical_gap=None))
    assert (0.0 if found is None else work(*found[0])) >= max(most, 0.0) * TOLERANCE


@pytest.mark.slow
@given(st.one_of(cases(), pressed_cases()), st.floats(0.0, 3.0))
@few
def test_a_replica_works_at_least_as_long_as_the_bound(case: Case, slack: float) -> None:
    """Without limits on the pace; and with the pace that the requests really had, where no first token was late."""
    assume(is_bounded(case) and not case.config.async_output)
    outcome = replay(case.config, case.times, case.specs)
    records = outcome.records
    prompt, output = lengths(case)
    done = records.status == COMPLETED
    assume(done.any())
    decoding = np.where(done, records.finish_time - records.first_token_time, 0.0) * (1.0 + slack)

    steps = Steps(case.config, case.times)
    free, _ = least_replica_seconds(prompt[done], output[done], None, steps)
    paced, _ = least_replica_seconds(prompt[done], output[done], decoding[done], steps)

    assert free.sum() * TOLERANCE <= outcome.totals.busy_seconds
    assert paced.sum() <= outcome.totals.busy_seconds * (1 + 1e-9) + 1e-12


@pytest.mark.slow
@given(
    st.one_of(cases(), pressed_cases(), speculative_cases()),
    st.tuples(*(st.sampled_from([None, 0.3, 0.6, 0.9, 1.0, 1.2]) for _ in range(3))),
    st.sampled_from([0.5, 0.8, 0.95, 1.0]),
)
@few
def test_what_is_dropped_does_not_hold(case: Case, factors: tuple[float | None, ...], share: float) -> None:
    """Limits near the latencies that were reached: where the bound says no, the run says no."""
    assume(is_bounded(case) and any(factors))
    records = replay(case.config, case.times, case.specs).records
    latencies = request_latencies(records)
    limits = {}
    for term, factor in zip(("ttft", "tpot", "e2e"), factors, strict=True):
        values = getattr(latencies, term)[np.isfinite(getattr(latencies, term))]
        if factor is not None and len(values) and np.quantile(values, share) * factor > 0:
            limits[term] = float(np.quantile(values, share)) * factor
    assume(limits)
    slo = SLO(**{term: limits.get(term) for term in ("ttft", "tpot", "e2e")}, attainment=share)
    scenario = asked(limits, share)

    bound = fleet_bound(scenario, case.config, case.times, case.specs)

    reached = attainment(latencies, slo, np.ones(len(records), dtype=bool)).all_terms
    if bound.out_of_reach is not None or bound.least_replicas > 1:
        assert reached < share


def asked(limits: dict[str, float], share: float) -> Scenario:
    """Return a scenario with exactly these limits, in seconds."""
    scenario = make_scenario(slo={"ttft": "1 s"})
    assert scenario.slo is not None
    cleared = {"ttft": None, "tpot": None, "e2e": None, **limits, "attainment": share}
    return scenario.model_copy(update={"slo": scenario.slo.model_copy(update=cleared)})


@given(
    rate=st.sampled_from([2.0, 20.0, 80.0, 300.0]),
    output=st.sampled_from([1, 8, 60, 200]),
    prompt=st.sampled_from([20, 400, 3000]),
    seats=st.sampled_from([1, 8, 256]),
    ttft=st.sampled_from([None, 0.01, 0.05, 0.3, 2.0]),
    tpot=st.sampled_from([None, 0.004, 0.008, 0.02]),
    e2e=st.sampled_from([None, 0.05, 0.5, 3.0]),
    share=st.sampled_from([0.5, 0.9, 0.99]),
    process=st.sampled_from(["poisson", "gamma", "all_at_once", "spike", "steps", "closed_loop"]),
    memory=st.sampled_from([0.9, 0.25]),
    option=st.sampled_from([None, "classes", "admission", "faults", "priority", "drafts"]),
    version=st.sampled_from(["0.12", "0.20"]),
)
@fewer
def test_fewer_replicas_than_the_bound_do_not_hold(
    rate: float,
    output: int,
    prompt: int,
    seats: int,
    ttft: float | None,
    tpot: float | None,
    e2e: float | None,
    share: float,
    process: str,
    memory: float,
    option: str | None,
    version: str,
) -> None:
    """Random small scenarios, priced as real ones: every fleet that the bound drops is simulated, and misses."""
    assume(ttft or tpot or e2e)
    limits = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    slo = {term: f"{limit} s" for term, limit in limits.items() if limit} | {"attainment": share}
    arrivals: dict[str, Any] = {"process": process}
    arrivals |= {} if process in ("all_at_once", "closed_loop") else {"rate": rate}
    if process == "closed_loop":
        arrivals |= {"concurrency": 30 if seats == 8 else 120}
        arrivals |= {"think_time": "0.3 s", "think_time_cv": 1.0} if rate == 20.0 else {}
        arrivals |= {"ramp_up": "0.5 s"} if rate == 80.0 else {}
    arrivals |= {"cv": 3.0} if process == "gamma" else {}
    arrivals |= {"factor": 5, "at": f"{20 / rate} s", "spike_duration": f"{15 / rate} s"} if process == "spike" else {}
    if process == "steps":
        arrivals = {
            "process": "steps",
            "steps": [{"rate": rate, "duration": f"{60 / rate} s"}, {"rate": rate / 8, "duration": "1 s"}],
        }
    engine = {"name": "vllm", "version": version, "max_num_seqs": seats, "max_model_len": 4096}
    beside: dict[str, Any] = {}
    classes = [{"name": "one", "share": 0.6, "slo": {**slo, "ttft": "1 s"}}, {"name": "two", "share": 0.4}]
    if option == "admission":
        beside["admission"] = {"max_queue": 4}
    if option == "drafts":
        beside["speculative"] = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.7}
    if option == "faults":
        beside["faults"] = [{"kind": "slow", "at": "0.1 s", "duration": "1 s"}]
    if option == "priority":
        engine["scheduling_policy"] = "priority"
        classes = [{**each, "priority": place} for place, each in enumerate(reversed(classes))]
    scenario = make_scenario(
        deployment={"hardware": "l4-24gb", "engine": {**engine, "gpu_memory_utilization": memory}, **beside},
        workload={
            **({"classes": classes} if option in ("classes", "priority") else {}),
            "arrivals": arrivals,
            "prompt_tokens": {"distribution": "lognormal", "mean": prompt, "cv": 0.5, "max": 3800},
            "output_tokens": {"distribution": "lognormal", "mean": output + 0.5, "cv": 0.5, "max": 290},
            "num_requests": 150,
        },
        slo=slo,
    )
    resolved = resolve(scenario)
    assume(resolved.memory.fits)
    specs = generate(scenario.workload, seed=scenario.run.seed)

    bound = fleet_bound(scenario, resolved.engine, price(resolved.shape).step_times, specs)

    if bound.out_of_reach is not None:
        assert not try_fleet(scenario, {}, 8).holds
    elif bound.least_replicas > 1:
        assert not try_fleet(scenario, {}, min(bound.least_replicas - 1, 40)).holds


def least_and_needed(arrivals: dict[str, Any], **length: Any) -> tuple[int, int]:
    """Return the replicas that the bound asks for at least, and those that chat traffic on L4 cards needs."""
    scenario = make_scenario(
        workload={
            "arrivals": arrivals,
            "prompt_tokens": {"distribution": "fixed", "value": 500},
            "output_tokens": {"distribution": "fixed", "value": 100},
            **length,
        },
        deployment={"hardware": "l4-24gb", "engine": {"name": "vllm", "version": "0.12"}},
        slo={"ttft": "1 s", "tpot": "50 ms"},
    )
    resolved = resolve(scenario)
    specs = generate(scenario.workload, seed=scenario.run.seed)
    bound = fleet_bound(scenario, resolved.engine, price(resolved.shape).step_times, specs)
    needed = next(replicas for replicas in range(1, 20) if try_fleet(scenario, {}, replicas).holds)
    return bound.least_replicas, needed


def test_the_bounds_are_not_idle() -> None:
    """They reach most of what is really needed, so that they drop something."""
    least, needed = least_and_needed({"process": "poisson", "rate": 60.0}, num_requests=1000)

    assert needed >= 3
    assert needed / 2 <= least <= needed


def test_a_spike_is_bounded_by_its_busiest_stretch() -> None:
    """The mean of the whole run would ask for a third of the replicas."""
    spike = {"process": "spike", "rate": 4.0, "factor": 15, "at": "60 s", "spike_duration": "30 s"}
    least, needed = least_and_needed(spike, duration="180 s", num_requests=None)

    assert needed >= 3
    assert needed / 2 <= least <= needed


def test_losses_before_a_late_window_are_not_bounded() -> None:
    """Under steady arrivals the warm-up may hide any number of refused requests."""
    specs = make_specs([0.0, 1.0], 100, 20)
    lossy = make_scenario(["deployment.admission={max_queue: 1}"], slo={"ttft": "1 ms"})

    steady = replace(specs, is_stationary=True)

    assert is_covered(lossy, replace(specs, is_stationary=False))
    assert not is_covered(lossy, steady)
    assert is_covered(make_scenario(slo={"ttft": "1 ms"}), steady)


def test_a_feature_that_the_proofs_do_not_know_switches_them_off() -> None:
    """Nothing is dropped by a bound that might not hold."""
    specs = make_specs([0.0, 1.0], 100, 20)
    known = make_scenario(slo={"ttft": "1 ms"})
    static = make_scenario(
        ["deployment.engine.batching=static", "deployment.engine.static_batch_size=2"], slo={"ttft": "1 ms"}
    )
    resolved = resolve(static)

    assert is_covered(known, specs)
    assert not is_covered(static, specs)
    assert fleet_bound(static, resolved.engine, price(resolved.shape).step_times, specs) is NO_BOUND


@pytest.mark.parametrize(
    ("name", "rate", "num_requests", "least"),
    [("images", 200, 1000, 2), ("encoder-pool", 25, 150, 1), ("voice-assistant", 1000, 3000, 2)],
)
def test_images_and_recordings_are_bounded_by_their_tokens(name: str, rate: int, num_requests: int, least: int) -> None:
    """No request beats the bounds, and one replica fewer does not hold; without their tokens nothing is proven."""
    traffic = [f"workload.arrivals.rate={rate}", f"workload.num_requests={num_requests}"]
    scenario = load(name, [*traffic, "slo.ttft=500 ms"])
    resolved, times = resolve(scenario), price(resolve(scenario).shape).step_times
    text = generate(scenario.workload, seed=scenario.run.seed)
    specs = with_media(text, scenario, 0)
    bound = fleet_bound(scenario, resolved.engine, times, specs)
    found = try_fleet(scenario, {}, max(bound.least_replicas - 1, 1))

    assert bound.is_proven
    assert bound.least_replicas >= least
    assert bound.e2e > fleet_bound(scenario, resolved.engine, times, text).e2e == 0.0
    for term, figure in (("ttft", "p95_ttft_ms"), ("tpot", "p95_tpot_ms"), ("e2e", "p95_e2el_ms")):
        assert bound.of(term) * 1e3 <= (found.latencies[figure] or math.inf)
    assert least == 1 or not found.holds


def test_a_prompt_that_no_step_computes_in_time_is_out_of_reach() -> None:
    """The bound names the term, and how far it is at least."""
    scenario = make_scenario(["deployment.hardware=l4-24gb"], slo={"ttft": "5 ms", "e2e": "10 s"})
    resolved = resolve(scenario)
    specs = make_specs([0.0], 4000, 2)

    bound = fleet_bound(scenario, resolved.engine, price(resolved.shape).step_times, specs)

    assert bound.out_of_reach == "ttft"
    assert bound.ttft > 0.005
    assert math.isclose(bound.e2e, bound.ttft + bound.tpot)
