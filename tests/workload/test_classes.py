"""Classes of requests: shares, arrivals, lengths and thinking of their own, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError, ScenarioError
from simserve.validation import FrozenModel, validate
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec

POISSON = {"process": "poisson", "rate": 10.0}
CLOSED = {"process": "closed_loop", "concurrency": 2}
LONG = {"distribution": "lognormal", "mean": 900, "cv": 1.0}


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


def test_a_class_without_a_priority_has_none() -> None:
    """0, where another class has one; without any no request does."""
    specs, plain = (
        drawn(arrivals=POISSON, num_requests=50, classes=[chat(share=0.5, **changes), batch(share=0.5)])
        for changes in ({"priority": -3}, {})
    )
    assert specs.priority is not None
    assert specs.request_class is not None

    assert specs.priority.tolist() == np.where(specs.request_class == 0, -3, 0).tolist()
    assert plain.priority is None


def test_classes_that_are_alike_come_at_times_of_their_own() -> None:
    """Their names alone set their streams: arrivals and lengths of one are not those of the other."""
    own = {"arrivals": POISSON, "prompt_tokens": LONG, "output_tokens": LONG}
    specs = drawn(duration="10 s", classes=[{"name": "a", **own}, {"name": "b", **own}])

    for name in ("arrival_time", "prompt_tokens", "output_tokens"):
        first, second = (getattr(specs, name)[specs.request_class == number] for number in (0, 1))
        assert first[:20].tolist() != second[:20].tolist()


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


class Scenario(FrozenModel):
    """The part of a scenario that holds a workload."""

    workload: WorkloadSpec
    """The workload."""


def read(**changes: Any) -> WorkloadSpec:
    """Return a workload with some keys changed; None removes one."""
    keys = {
        "arrivals": {"process": "poisson", "rate": 2.0},
        "prompt_tokens": {"distribution": "lognormal", "mean": 300, "cv": 1.0},
        "output_tokens": {"distribution": "lognormal", "mean": 100, "cv": 0.5},
        "num_requests": 200,
    } | changes
    workload = {key: value for key, value in keys.items() if value is not None}
    return validate(Scenario, {"workload": workload}, file="s.yaml", error=ScenarioError).workload


def test_thinking_comes_on_top_and_moves_nothing_else() -> None:
    """Arrivals, prompts and answers are those of the same workload without thinking."""
    plain, thinking = generate(read(), seed=3), generate(read(thinking_tokens=LONG), seed=3)

    assert plain.thinking_tokens is None
    assert thinking.thinking_tokens is not None
    assert thinking.arrival_time.tolist() == plain.arrival_time.tolist()
    assert thinking.prompt_tokens.tolist() == plain.prompt_tokens.tolist()
    assert (thinking.output_tokens - thinking.thinking_tokens).tolist() == plain.output_tokens.tolist()
    assert thinking.max_tokens.tolist() == thinking.output_tokens.tolist()


def test_a_budget_cuts_long_thoughts_alone() -> None:
    """Who thinks less than the budget thinks as before; answers stay as they are."""
    free = generate(read(thinking_tokens=LONG), seed=3)
    tight = generate(read(thinking_tokens=LONG, thinking_token_budget=500), seed=3)

    assert free.thinking_tokens is not None
    assert tight.thinking_tokens is not None
    assert tight.thinking_tokens.tolist() == np.minimum(free.thinking_tokens, 500).tolist()
    assert tight.thinking_tokens.max() == 500
    answers = [each.output_tokens - each.thinking_tokens for each in (free, tight)]
    assert answers[0].tolist() == answers[1].tolist()


def test_a_number_limits_thinking_and_answer_together() -> None:
    """`max_tokens: 400` is what the client asks for, whatever it thinks."""
    specs = generate(read(thinking_tokens=LONG, max_tokens=400), seed=3)

    assert set(specs.max_tokens.tolist()) == {400}
    assert specs.output_tokens.max() > 400


def test_a_class_thinks_by_itself() -> None:
    """Of two classes that share the arrivals one thinks, of its own distribution; the other one does not."""
    classes = [
        {"name": "chat", "share": 0.5},
        {"name": "proofs", "share": 0.5, "thinking_tokens": 700, "thinking_token_budget": 650},
    ]
    specs = generate(read(classes=classes), seed=3)

    assert specs.thinking_tokens is not None
    assert specs.request_class is not None
    assert specs.thinking_tokens.tolist() == np.where(specs.request_class == 1, 650, 0).tolist()


def test_classes_with_arrivals_of_their_own_think_from_streams_of_their_own() -> None:
    """A second class that thinks moves no thought of the first."""
    own = {"arrivals": {"process": "poisson", "rate": 1.0}, "thinking_tokens": LONG}
    one = read(arrivals=None, classes=[{"name": "a", **own}])
    two = read(arrivals=None, num_requests=None, duration="100 s", classes=[{"name": "a", **own}, {"name": "b", **own}])

    alone, beside = generate(one, seed=3), generate(two, seed=3)

    assert alone.thinking_tokens is not None
    assert beside.thinking_tokens is not None
    assert beside.request_class is not None
    first, second = (beside.thinking_tokens[beside.request_class == number] for number in (0, 1))
    assert first.tolist() == alone.thinking_tokens[: len(first)].tolist()
    assert first[:20].tolist() != second[:20].tolist()


def test_a_conversation_forgets_what_was_thought() -> None:
    """Prompts grow by answers alone; what a cache holds of the turn before ends with its prompt."""
    sessions = {"turns": 3, "think_time": "1 s"}
    lengths = {"prompt_tokens": 50, "output_tokens": 20, "num_requests": 3}
    plain = generate(read(sessions=sessions, **lengths), seed=3)
    thinking = generate(read(sessions=sessions, thinking_tokens=100, **lengths), seed=3)

    assert thinking.prompt_tokens.tolist() == plain.prompt_tokens.tolist() == [50, 120, 190]
    assert thinking.output_tokens.tolist() == [120] * 3
    assert plain.prefixes is not None
    assert thinking.prefixes is not None
    assert plain.prefixes.ends.tolist() == [70, 70, 140, 70, 140, 210]
    assert thinking.prefixes.ends.tolist() == [50, 170, 50, 120, 240, 50, 120, 190, 310]


def test_an_answer_that_was_cut_is_shorter_in_the_history() -> None:
    """Of 60 tokens 50 are thought: 10 of the answer are left, and in the next prompt."""
    lengths = {"prompt_tokens": 50, "output_tokens": 20, "num_requests": 2, "max_tokens": 60}
    specs = generate(read(sessions={"turns": 2, "think_time": "1 s"}, thinking_tokens=50, **lengths), seed=3)

    assert specs.prompt_tokens.tolist() == [50, 110]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"thinking_token_budget": 5},
            "workload: has a thinking_token_budget and no thinking_tokens; give them, or leave it out",
        ),
        ({"thinking_tokens": 0}, "workload.thinking_tokens"),
        ({"thinking_tokens": 10, "thinking_token_budget": 0}, "workload.thinking_token_budget: 0 must be"),
    ],
)
def test_a_bad_thought_is_refused(changes: dict[str, Any], message: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(ScenarioError) as caught:
        read(**changes)
    assert message in str(caught.value)


def test_a_trace_holds_what_was_thought() -> None:
    """Nothing is added to the answers of a trace."""
    nothing = dict.fromkeys(("arrivals", "prompt_tokens", "output_tokens", "num_requests"))
    with pytest.raises(ScenarioError, match="answers of a trace hold what was thought"):
        read(**nothing, trace={"path": "traffic.csv"}, thinking_tokens=10)


@pytest.mark.parametrize("kind", [{"sessions": TALKS}, {"agents": {"calls": 3}}], ids=["conversations", "tasks"])
@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "ramp", "start_rate": 1e-6, "rate": 1e-5, "ramp_duration": "60 s"},
        {"process": "steps", "steps": [{"rate": 1e-6, "duration": "60 s"}]},
    ],
    ids=["ramp", "steps"],
)
def test_a_class_of_which_nothing_begins_within_the_duration_offers_nothing(
    kind: dict[str, Any], arrivals: dict[str, Any]
) -> None:
    """Its varying arrivals have no last one to divide by: the other class alone remains, as without it."""
    alone = drawn(duration="10 s", classes=[chat(arrivals=POISSON)])

    specs = drawn(duration="10 s", classes=[chat(arrivals=POISSON), batch(arrivals=arrivals, **kind)])

    assert len(specs) == len(alone) > 50
    assert set(specs.request_class) == {0}
    assert specs.arrival_time.tolist() == alone.arrival_time.tolist()
    assert specs.offered_rate == pytest.approx(len(specs) / specs.arrival_time[-1])
