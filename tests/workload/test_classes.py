"""Classes of requests: shares, arrivals and lengths of their own, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.validation import validate
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec


def drawn(seed: int = 1, **workload: Any) -> RequestSpecs:
    """Return the requests of a workload."""
    return generate(validate(WorkloadSpec, workload), seed=seed)


def fixed(tokens: int) -> dict[str, Any]:
    """Return a length that is always the same."""
    return {"distribution": "fixed", "value": tokens}


def chat(**more: Any) -> dict[str, Any]:
    """Return a class of short requests."""
    return {"name": "chat", "prompt_tokens": fixed(10), "output_tokens": fixed(5), **more}


def batch(**more: Any) -> dict[str, Any]:
    """Return a class of long requests."""
    return {"name": "batch", "prompt_tokens": fixed(900), "output_tokens": fixed(50), **more}


POISSON = {"process": "poisson", "rate": 10.0}
CLOSED = {"process": "closed_loop", "concurrency": 2}
TALKS = {"turns": fixed(3), "think_time": "4 s"}


def test_shares_divide_the_common_arrivals() -> None:
    """Three in ten of the requests are batch ones, within four standard errors, each with the lengths of its class."""
    specs = drawn(arrivals=POISSON, num_requests=5000, classes=[chat(share=0.7), batch(share=0.3)])

    share = float(np.mean(specs.request_class == 1))
    assert share == pytest.approx(0.3, abs=4 * (0.21 / 5000) ** 0.5)
    assert set(specs.prompt_tokens[specs.request_class == 1]) == {900}
    assert set(specs.output_tokens[specs.request_class == 0]) == {5}
    assert [each.name for each in specs.classes] == ["chat", "batch"]


def test_one_class_of_all_requests_draws_what_a_plain_workload_draws() -> None:
    """The common streams are the same: a class that shares everything moves nothing."""
    lengths = {
        "prompt_tokens": {"distribution": "lognormal", "mean": 100, "cv": 1.0},
        "output_tokens": {"distribution": "geometric", "mean": 20},
    }
    plain = drawn(arrivals=POISSON, num_requests=200, **lengths)
    classed = drawn(arrivals=POISSON, num_requests=200, classes=[{"name": "all", "share": 1.0, **lengths}])

    for column in ("arrival_time", "prompt_tokens", "output_tokens", "max_tokens"):
        assert getattr(classed, column).tolist() == getattr(plain, column).tolist()
    assert classed.is_stationary
    assert classed.offered_rate == plain.offered_rate == 10.0


def test_lengths_that_a_class_leaves_out_are_the_workloads() -> None:
    """Only the answers differ."""
    specs = drawn(
        arrivals=POISSON,
        num_requests=100,
        prompt_tokens=fixed(7),
        output_tokens=fixed(3),
        classes=[{"name": "short", "share": 0.5}, {"name": "long", "share": 0.5, "output_tokens": fixed(90)}],
    )

    assert set(specs.prompt_tokens) == {7}
    assert set(specs.output_tokens[specs.request_class == 1]) == {90}


def test_arrivals_of_their_own_are_merged_in_order() -> None:
    """Both rates are met, nobody is out of order, and one class's rate moves nothing of the other."""
    slow, fast = (
        drawn(
            duration="200 s",
            classes=[chat(arrivals=POISSON), batch(arrivals={"process": "constant", "rate": rate})],
        )
        for rate in (1.0, 3.0)
    )

    assert np.all(np.diff(fast.arrival_time) >= 0)
    assert np.count_nonzero(fast.request_class == 1) == 600
    chats = [specs.arrival_time[specs.request_class == 0].tolist() for specs in (slow, fast)]
    assert chats[0] == chats[1]
    assert fast.offered_rate == 13.0


def test_the_number_of_requests_is_that_of_all_classes() -> None:
    """The first so many of the merged arrivals, so the rates decide the shares."""
    specs = drawn(
        num_requests=4000, classes=[chat(arrivals=POISSON), batch(arrivals={"process": "poisson", "rate": 30.0})]
    )

    assert len(specs) == 4000
    assert float(np.mean(specs.request_class == 1)) == pytest.approx(0.75, abs=0.03)


def test_a_closed_loop_has_classes_by_share() -> None:
    """Which class a client sends next is drawn."""
    specs = drawn(
        arrivals={"process": "closed_loop", "concurrency": 4},
        num_requests=50,
        classes=[chat(share=0.5), batch(share=0.5)],
    )

    assert specs.concurrency == 4
    assert set(specs.request_class) == {0, 1}


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"arrivals": POISSON, "classes": [chat(share=0.5), batch(share=0.6)]}, "add up to 1.1"),
        ({"arrivals": POISSON, "classes": [chat(share=0.5), chat(share=0.5)]}, "two classes of one name"),
        ({"arrivals": POISSON, "classes": [chat(arrivals=POISSON)]}, "no class has a share of"),
        ({"classes": [chat(share=1.0)]}, "no arrivals to share"),
        ({"classes": [chat(arrivals=POISSON, share=1.0)]}, "needs either share"),
        ({"classes": [chat()]}, "needs either share"),
        ({"arrivals": POISSON, "classes": [{"name": "chat", "share": 1.0}]}, "lacks prompt_tokens"),
        (
            {
                "arrivals": {"process": "closed_loop", "concurrency": 2},
                "classes": [chat(share=1.0), batch(arrivals=POISSON)],
            },
            "give duration",
        ),
        ({"classes": [chat(arrivals={"process": "closed_loop", "concurrency": 2})]}, "give duration"),
        ({"classes": [chat(arrivals={"process": "all_at_once"})]}, "give it num_requests"),
        ({"classes": [chat(arrivals=POISSON, num_requests=5)]}, "all_at_once"),
        ({"arrivals": POISSON, "classes": [chat(share=1.0, sessions=TALKS)]}, "give workload.sessions"),
        ({"sessions": TALKS, "classes": [chat(arrivals=POISSON)]}, "give the classes sessions of their own"),
        ({"trace": {"path": "x.csv"}, "classes": [chat(arrivals=POISSON)]}, "give the class a share of its rows"),
    ],
)
def test_what_makes_no_sense_is_refused(workload: dict[str, Any], words: str) -> None:
    """One line says what is wrong."""
    with pytest.raises(InputError, match=words):
        validate(WorkloadSpec, {"num_requests": 10, **workload})


def test_the_rows_of_a_trace_are_shared_out(tmp_path: Path) -> None:
    """A quarter of them to one class, whose clients hang up; times and lengths are the trace's."""
    file = tmp_path / "rows.csv"
    rows = "".join(f"{0.1 * index},{10 + index % 7},5\n" for index in range(400))
    file.write_text("arrival_time,prompt_tokens,output_tokens\n" + rows, encoding="utf-8")
    hasty = {"name": "hasty", "share": 0.25, "timeout": "3 s", "retries": 2}
    spec = validate(WorkloadSpec, {"trace": {"path": str(file)}, "classes": [hasty, {"name": "calm", "share": 0.75}]})

    specs = generate(spec, seed=1)
    alone = generate(validate(WorkloadSpec, {"trace": {"path": str(file)}}), seed=1)

    assert specs.request_class is not None
    assert np.mean(specs.request_class == 0) == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 400) ** 0.5)
    assert specs.arrival_time.tolist() == alone.arrival_time.tolist()
    assert specs.prompt_tokens.tolist() == alone.prompt_tokens.tolist()
    assert [each.timeout for each in specs.classes] == [3.0, None]
