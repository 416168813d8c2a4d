"""The compiled kernel against the interpreted one: the same bits, whatever comes; and what happens without numba."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.engine.compiled.cache import read, write
from simserve.engine.compiled.fields import AFFINITY, CONVERSATIONS, PLANE, REPLICA, REQUESTS, ROUTER
from simserve.engine.compiled.run import reason_against
from simserve.engine.conversations import Conversations
from simserve.engine.plane_state import Affinity, DataPlane, Router
from simserve.engine.state import Replica, RequestTable
from simserve.errors import InvariantError, UsageError
from simserve.scenario.schema import Scenario
from simserve.sim import acceleration
from simserve.sim.control import RoutingPolicy
from simserve.sim.simulate import Replay, replay
from tests.agreement import on_both_kernels
from tests.builders import affine_step_times, constant_step_times, make_config, make_specs
from tests.engine.strategies import (
    Case,
    adapted_cases,
    cases,
    offloading_cases,
    ordered_cases,
    passing_cases,
    pressed_cases,
    ranked_cases,
    routings,
    shared_cases,
    speculative_cases,
    suspending_cases,
    swapping_cases,
    thinking_cases,
    tiered_cases,
    windowed_cases,
)
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")


def is_covered(case: Case) -> bool:
    """Return whether the case runs compiled."""
    return reason_against(case.config) is None


KINDS = {
    "adapted": adapted_cases,
    "any": cases,
    "pressed": pressed_cases,
    "ranked": ranked_cases,
    "offloading": offloading_cases,
    "ordered": ordered_cases,
    "passing": passing_cases,
    "shared": shared_cases,
    "speculative": speculative_cases,
    "suspending": suspending_cases,
    "swapping": swapping_cases,
    "tiered": tiered_cases,
    "thinking": thinking_cases,
    "windowed": windowed_cases,
}


@needs_numba
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_compiled_equals_interpreted(kind: str, data: st.DataObject) -> None:
    """Any replicas, router and workload: every record and every total is the same, to the bit."""
    compare(kind, data)


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=examples(250), deadline=None, database=None, print_blob=True, suppress_health_check=CHECKS)
def test_compiled_equals_interpreted_at_length(kind: str, data: st.DataObject) -> None:
    """The same with more examples, other ones every time."""
    compare(kind, data)


def compare(kind: str, data: st.DataObject) -> None:
    """Run a case of a kind both ways."""
    case = data.draw(KINDS[kind]().filter(is_covered))
    is_async = data.draw(st.booleans())
    config = dataclasses.replace(
        case.config,
        async_scheduling=is_async,
        releases_late=is_async and case.config.admission == "on_demand",
        overlaps_results=data.draw(st.booleans()),
    )
    cluster: dict[str, Any] = {
        "num_replicas": data.draw(st.integers(1, 3)),
        "routing": data.draw(routings()),
    }
    runs = [replay(config, case.times, case.specs, accelerate=each, **cluster) for each in ("off", "on")]

    assert_same(*runs)


def assert_same(expected: Replay, actual: Replay) -> None:
    """Assert that two runs are the same to the bit."""
    for part in ("records", "totals"):
        one, other = getattr(expected, part), getattr(actual, part)
        for field in dataclasses.fields(one):
            assert_same_values(field.name, getattr(one, field.name), getattr(other, field.name))


def assert_same_values(name: str, expected: Any, actual: Any) -> None:
    """Assert the same arrays, numbers, or objects that hold such."""
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(actual, expected, err_msg=name)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same_values(field.name, getattr(expected, field.name), getattr(actual, field.name))
    elif isinstance(expected, tuple):
        for one, other in zip(expected, actual, strict=True):
            assert_same_values(name, one, other)
    elif hasattr(expected, "upper_edges"):
        for each in expected.__slots__:
            np.testing.assert_array_equal(getattr(actual, each), getattr(expected, each), err_msg=each)
    else:
        assert actual == expected, name


def test_every_field_has_a_place_in_flat_memory() -> None:
    """What these objects have, compiled code sees; but for free ranges, which it does not serve."""
    assert set(Replica.__slots__) - set(REPLICA.fields) == {"batch_rows", "free_ranges"}
    for record, kind in (
        (REQUESTS, RequestTable),
        (PLANE, DataPlane),
        (ROUTER, Router),
        (AFFINITY, Affinity),
        (CONVERSATIONS, Conversations),
    ):
        # A user's own parts are asked by what is interpreted.
        assert set(record.fields) == set(kind.__slots__) - {"judge"}


TOGETHER = {
    "sessions": {
        "turns": {"distribution": "geometric", "mean": 4, "max": 9},
        "think_time": "5 s",
        "think_time_cv": 1,
    },
    "shared_prefix": {"num_groups": 3, "tokens": 400},
    "classes": [
        {"name": "chat", "share": 0.8},
        {"name": "long", "share": 0.2, "prompt_tokens": {"distribution": "fixed", "value": 900}},
    ],
    "prompt_tokens": {"distribution": "lognormal", "mean": 120, "cv": 1.0, "max": 2000},
    "output_tokens": {"distribution": "lognormal", "mean": 100, "cv": 1.0, "max": 500},
    "num_requests": 2000,
}


@needs_numba
@pytest.mark.parametrize(
    ("routing", "load"),
    [
        *((policy, {"arrivals": {"process": "poisson", "rate": 100}}) for policy in get_args(RoutingPolicy)),
        ({"policy": "prefix", "update_interval": "0.5 s"}, {"arrivals": {"process": "poisson", "rate": 300}}),
        ("prefix", {"arrivals": {"process": "closed_loop", "concurrency": 100, "think_time": "2 s"}}),
    ],
)
def test_conversations_of_two_classes_run_compiled_behind_any_router(
    routing: Any, load: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """With prefix caching on four replicas, where memory is short: nothing falls back, and every byte is the same."""
    engine = {"name": "vllm", "version": "0.12", "max_model_len": 16384, "gpu_memory_utilization": 0.3}
    deployment = {"hardware": "h100-sxm-80gb", "replicas": 4, "routing": routing, "engine": engine}
    scenario = Scenario.model_validate(
        {"name": "together", "model": "llama-3.1-8b", "deployment": deployment, "workload": TOGETHER | load}
    )
    with caplog.at_level(logging.WARNING):
        runs = on_both_kernels(scenario)

    assert not [message for message in caplog.messages if "interpreted" in message]
    assert json.dumps(dict(runs[0].summary)) == json.dumps(dict(runs[1].summary))
    assert runs[0].requests.equals(runs[1].requests)


TASKS = {
    "calls": {"distribution": "geometric", "mean": 6, "max": 20},
    "tool_time": "1 s",
    "tool_time_cv": 1,
    "subagent_share": 0.3,
    "subagents": {"distribution": "uniform", "min": 1, "max": 3},
    "fork_share": 0.5,
}


@needs_numba
@pytest.mark.parametrize(
    "load",
    [
        {"arrivals": {"process": "poisson", "rate": 60}},
        {"arrivals": {"process": "closed_loop", "concurrency": 40, "think_time": "2 s"}},
    ],
)
@pytest.mark.parametrize("front", [{}, {"admission": {"max_queue": 4}}])
def test_tasks_of_agents_run_compiled(load: dict[str, Any], front: dict[str, Any]) -> None:
    """Graphs of calls on four replicas, on both event loops: every byte is the same."""
    engine = {"name": "vllm", "version": "0.12", "max_model_len": 16384, "gpu_memory_utilization": 0.3}
    deployment = {"hardware": "h100-sxm-80gb", "replicas": 4, "routing": "prefix", "engine": engine, **front}
    lengths = {"prompt_tokens": 200, "output_tokens": 50, "num_requests": 1500, "agents": TASKS}
    scenario = Scenario.model_validate(
        {"name": "tasks", "model": "llama-3.1-8b", "deployment": deployment, "workload": lengths | load}
    )
    runs = on_both_kernels(scenario)

    assert json.dumps(dict(runs[0].summary)) == json.dumps(dict(runs[1].summary))
    assert runs[0].requests.equals(runs[1].requests)


@needs_numba
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_long_run_is_the_same_to_the_bit(async_scheduling: bool) -> None:
    """Ten thousand requests, more leaps than are added up at a time, blocks short, three replicas."""
    generator = np.random.default_rng(1)
    num_requests = 10_000
    arrivals = np.cumsum(generator.exponential(0.12, num_requests))
    prompts, outputs = generator.integers(1, 60, num_requests), generator.integers(1, 40, num_requests)
    config = make_config(
        max_num_seqs=8, num_blocks=40, max_model_len=128, max_num_batched_tokens=32, async_scheduling=async_scheduling
    )
    specs = make_specs(arrivals.tolist(), prompts.tolist(), outputs.tolist())
    times = affine_step_times(step_seconds=0.02, decode_context_seconds=1e-5, token_seconds=1e-3)
    runs = [
        replay(config, times, specs, num_replicas=3, routing="least_outstanding", accelerate=accelerate)
        for accelerate in ("off", "on")
    ]

    assert runs[0].records.num_preemptions.sum() > 100
    assert_same(*runs)


@needs_numba
def test_an_invariant_that_breaks_in_compiled_code_raises() -> None:
    """A request that never fits an empty replica is a defect of its configuration, compiled or not."""
    config = make_config(num_blocks=2, max_model_len=64)
    specs = make_specs([0.0], [40], [4])
    for accelerate in ("off", "on"):
        with pytest.raises(InvariantError, match="wait at an empty replica"):
            replay(config, constant_step_times(), specs, accelerate=accelerate)


@needs_numba
def test_compiled_code_is_read_back_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is as good as none."""
    path = tmp_path / "folder" / "some.kernel"
    write(path, b"code")

    assert read(path) == b"code"

    path.write_bytes(path.read_bytes()[:-1])
    assert read(path) is None
    assert read(tmp_path / "absent") is None


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    """Nothing is raised, nothing is kept."""
    (tmp_path / "file").write_text("in the way")
    write(tmp_path / "file" / "some.kernel", b"code")

    assert read(tmp_path / "file" / "some.kernel") is None


def break_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loader fail as an incompatible numba does."""
    monkeypatch.setattr(acceleration, "find_spec", lambda name: object())
    monkeypatch.setattr(acceleration, "is_warm", lambda: True)
    monkeypatch.setitem(sys.modules, "simserve.engine.compiled.loader", None)


@pytest.mark.usefixtures("fresh_acceleration")
def test_a_broken_numba_falls_back_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on interpreted; a second one is silent."""
    break_numba(monkeypatch)

    with caplog.at_level(logging.WARNING):
        kernels = [acceleration.compiled_for("auto", 10**6, None) for _ in range(2)]

    assert kernels == [None, None]
    assert len(caplog.messages) == 1
    assert "runs interpreted, since numba does not work here" in caplog.messages[0]


@pytest.mark.usefixtures("fresh_acceleration")
def test_on_with_a_broken_numba_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, exit code 2."""
    break_numba(monkeypatch)

    with pytest.raises(UsageError, match="cannot compile") as caught:
        acceleration.compiled_for("on", 10, None)

    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("fresh_acceleration")
def test_on_without_numba_is_a_usage_error_and_auto_is_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The remedy is the command that installs it."""
    monkeypatch.setattr(acceleration, "find_spec", lambda name: None)

    assert acceleration.compiled_for("auto", 10**7, None) is None
    assert not caplog.messages
    with pytest.raises(UsageError, match=r"pip install 'simserve\[fast\]'"):
        acceleration.compiled_for("on", 10, None)


@pytest.mark.usefixtures("fresh_acceleration")
def test_on_says_what_is_not_compiled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Such a run goes through the interpreted kernel, and the line says why."""
    monkeypatch.setattr(acceleration, "find_spec", lambda name: object())

    assert acceleration.compiled_for("on", 10, "static batching") is None
    assert caplog.messages == ["simserve: accelerate: runs interpreted, since static batching is not compiled"]


@pytest.mark.usefixtures("fresh_acceleration")
def test_off_and_small_runs_are_interpreted() -> None:
    """And a small one loads no kernel."""
    assert acceleration.compiled_for("off", 10**9, None) is None
    assert acceleration.compiled_for("auto", acceleration.LEAST_REQUESTS - 1, None) is None
    assert not acceleration._load.cache_info().currsize


@needs_numba
@pytest.mark.usefixtures("fresh_acceleration")
def test_a_kernel_that_is_loaded_serves_small_runs_too() -> None:
    """Loading it is what they cannot earn back; the very smallest are over before flat memory is laid out."""
    least = acceleration.LEAST_REQUESTS_ONCE_LOADED

    drive = acceleration.compiled_for("on", 10, None)

    assert acceleration.compiled_for("auto", least, None) is drive is not None
    assert acceleration.compiled_for("auto", least - 1, None) is None
    assert acceleration.compiled_for("auto", least, "static batching") is None


def test_another_word_is_refused() -> None:
    """And the choices are named."""
    with pytest.raises(UsageError, match="use auto, on or off"):
        acceleration.compiled_for("yes", 10, None)  # type: ignore[arg-type]


TRACES = Path(__file__).resolve().parents[2] / "../shared/data/traces"
RECORDED = {
    "azure": {"path": str(TRACES / "azure2023/AzureLLMInferenceTrace_conv.csv.gz"), "format": "azure"},
    "mooncake": {"path": str(TRACES / "mooncake/conversation_trace.jsonl.gz"), "format": "mooncake"},
}


@needs_numba
@pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/data is not there")
@pytest.mark.parametrize("version", ["0.12", "0.33"])
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_traffic_is_the_same_to_the_bit(name: str, version: str) -> None:
    """Real arrivals and lengths, with Mooncake's the prefixes that its requests share; 0.33 schedules ahead."""
    scenario = Scenario.model_validate(
        {
            "name": name,
            "model": "llama-3.1-8b",
            "deployment": {
                "hardware": "h100-sxm-80gb",
                "replicas": 4,
                "engine": {"name": "vllm", "version": version, "max_model_len": 131072},
            },
            "workload": {"trace": RECORDED[name], "num_requests": 4000},
        }
    )
    summaries = [json.dumps(dict(each.summary)) for each in on_both_kernels(scenario)]

    assert summaries[0] == summaries[1]
