"""Requests as the clients of benchmarks draw them."""

import re

import numpy as np
import pytest

from simserve.workload.arrival_spec import AllAtOnceArrivals
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec

EVEN = {"distribution": "uniform", "min": 1, "max": 1024}


def drawn(client: str, seed: int = 1, replication: int = 0, **changes: object) -> RequestSpecs:
    """Return the requests of a client: even lengths up to 1,024, at 1 request/s."""
    workload = {"arrivals": {"process": "poisson", "rate": 1.0}, "prompt_tokens": EVEN, "output_tokens": EVEN}
    spec = WorkloadSpec.model_validate({**workload, "num_requests": 300, "client": client, **changes})
    return generate(spec, seed=seed, replication=replication)


@pytest.mark.parametrize(
    ("rate", "count", "prompts", "outputs"),
    [(1.0, 300, 152_612, 160_347), (4.0, 1200, 615_860, 607_936), (16.0, 3200, 1_629_242, 1_642_637)],
)
def test_sglangs_client_sends_the_tokens_that_its_log_prints(
    rate: float, count: int, prompts: int, outputs: int
) -> None:
    """Sums of datacrunch-research/h200-benchmarks, sglang/outputs; answers of 0 tokens have one here."""
    specs = drawn("sglang-0.5.5", arrivals={"process": "poisson", "rate": rate}, num_requests=count)

    assert specs.prompt_tokens.sum() == prompts
    assert outputs <= specs.output_tokens.sum() <= outputs + 4


def test_later_clients_of_sglang_draw_answers_from_one_token_on() -> None:
    """Means of ten requests up to 1,000 tokens in SGLang's cookbook: 610 and 422."""
    even = {**EVEN, "max": 1000}
    loop = {"process": "closed_loop", "concurrency": 1}
    specs = drawn("sglang", arrivals=loop, prompt_tokens=even, output_tokens=even, num_requests=10)

    assert specs.prompt_tokens.mean() == pytest.approx(610.1)
    assert specs.output_tokens.mean() == pytest.approx(422.0)


def test_first_request_of_sglangs_client_comes_at_once() -> None:
    """Its last one of 1,200 at 4 requests/s comes after 282.6 s, not 300."""
    times = drawn("sglang-0.5.5", arrivals={"process": "poisson", "rate": 4.0}, num_requests=1200).arrival_time

    assert times[0] == 0.0
    assert times[-1] == pytest.approx(282.6376, abs=1e-3)


def test_vllms_client_sends_its_last_request_in_time() -> None:
    """Its times are stretched to the number of requests over the rate."""
    times = drawn("vllm", arrivals={"process": "poisson", "rate": 2.0}, num_requests=100).arrival_time

    assert times[-1] == pytest.approx(50.0)
    assert np.all(np.diff(times) > 0.0)


@pytest.mark.parametrize("client", ["sglang", "sglang-0.5.5", "vllm"])
@pytest.mark.parametrize("other", [{"seed": 2}, {"replication": 1}, {"seed": 2**40}, {"seed": 0}])
def test_fresh_runs_of_a_client_are_fresh(client: str, other: dict[str, int]) -> None:
    """What `capacity` promises of fresh seeds, and an interval over replications, rests on draws that differ."""
    first, again, second = drawn(client), drawn(client), drawn(client, **other)

    assert np.array_equal(first.arrival_time, again.arrival_time)
    assert not np.array_equal(first.arrival_time, second.arrival_time)
    assert not np.array_equal(first.prompt_tokens, second.prompt_tokens)


def test_a_seed_is_that_of_sglangs_client() -> None:
    """``--seed 5`` there is `run.seed` 5 here."""
    specs = drawn("sglang", seed=5, output_tokens=7)

    assert np.array_equal(specs.prompt_tokens, np.random.RandomState(5).randint(1, 1025, size=300))


def test_vllms_client_draws_nothing_where_all_requests_come_at_once() -> None:
    """Searches take a workload's requests and send them together."""
    spec = WorkloadSpec.model_validate(
        {"arrivals": {"process": "poisson", "rate": 2.0}, "prompt_tokens": 9, "output_tokens": 9, "client": "vllm"}
    )
    together = spec.model_copy(update={"arrivals": AllAtOnceArrivals()})

    assert set(generate(together, seed=1).arrival_time) == {0.0}


def test_fixed_lengths_take_no_draws_of_a_client() -> None:
    """As NumPy draws none for a range of one number."""
    fixed = drawn("sglang", prompt_tokens=1024, output_tokens=1024)
    expected = np.cumsum(np.random.RandomState(1).exponential(1.0, size=300))[:-1]

    assert np.allclose(fixed.arrival_time[1:], expected)
    assert set(fixed.prompt_tokens) == {1024}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_requests": None, "duration": "60 s"}, "has the client sglang and also duration"),
        ({"sessions": {"turns": 2, "think_time": "1 s"}}, "has the client sglang and also sessions"),
        (
            {"arrivals": {"process": "closed_loop", "concurrency": 2}, "prompt_tokens": 5, "output_tokens": 5},
            "give poisson arrivals or uniform lengths",
        ),
        (
            {"arrivals": {"process": "constant", "rate": 1.0}, "client": "vllm"},
            "give poisson arrivals, or leave it out",
        ),
    ],
)
def test_a_client_is_refused_where_its_draws_are_not_known(changes: dict[str, object], rule: str) -> None:
    """The message says what else to give."""
    with pytest.raises(ValueError, match=re.escape(rule)):
        drawn(**{"client": "sglang", **changes})  # type: ignore[arg-type]
