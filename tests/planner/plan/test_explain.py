"""Commands of fleets in words that can be pasted."""

from __future__ import annotations

import shlex

import pytest

from simserve.planner.plan.explain import command, describe, plan_command
from tests.scenario.builders import make_scenario

_LINE = ("Qwen/Qwen3-32B", "--gpus", "h100", "--rate", "3")


def test_a_single_replica_has_no_routing_to_name() -> None:
    """A router has nothing to choose; with two, with ranks of its own or with an autoscaler it has."""
    scaled = "deployment.autoscaling={metric: running, target: 8, max_replicas: 3}"
    more = (["deployment.replicas=2"], [scaled], ["deployment.data_parallel_size=2"])

    one, *several = [describe(make_scenario(["deployment.routing=session", *each])) for each in ([], *more)]

    assert "routing" not in one
    assert all("routing session" in each for each in several)


def test_one_line_keeps_its_own_flags() -> None:
    """Another GPU and another format take the place of those that were named; one replica of one GPU is not told."""
    reference = (*_LINE, "--quantization", "none")
    changes = {"deployment.hardware": "l4-24gb", "deployment.quantization": "fp8", "deployment.replicas": 1}

    told = shlex.split(command(reference, changes))

    assert told == ["simserve", "run", "Qwen/Qwen3-32B", "--gpus", "l4-24gb", "--rate", "3", "--quantization", "fp8"]


def test_replicas_are_told_where_the_line_says_another_number() -> None:
    """Several GPUs are a layout, and so are replicas that were asked for."""
    one = {"deployment.replicas": 1}

    assert command((*_LINE[:2], "2xH100"), one).endswith("--set deployment.replicas=1")
    assert command((*_LINE, "--replicas", "2"), one).endswith("--set deployment.replicas=1")
    assert command(_LINE, {"deployment.replicas": 2}).endswith("--set deployment.replicas=2")


def test_a_change_of_the_gpu_keeps_their_number() -> None:
    """Eight of another kind, not one: the layout is what the line says, unless it is a plan that lays it out."""
    line, changes = (*_LINE[:2], "8xH200", "--replicas", "2"), {"deployment.hardware": "b200-sxm-180gb"}

    assert "8xb200-sxm-180gb" in shlex.split(command(line, changes, keeps_layout=True))
    assert "b200-sxm-180gb" in shlex.split(command(line, changes))


def test_a_scenario_is_changed_key_by_key() -> None:
    """There are no flags whose place could be taken."""
    told = command(("chatbot",), {"deployment.quantization": "fp8", "deployment.replicas": 1})

    assert told == "simserve run chatbot --set deployment.quantization=fp8 --set deployment.replicas=1"


def test_a_plan_is_asked_for_without_its_answer() -> None:
    """Flags that lay a deployment out are none of a plan; too few GPUs are no limit of what is looked for."""
    line = ["Qwen/Qwen3-8B", "--gpus", "2xL4", "--replicas", "2", "--tp", "1", "--rate", "20"]

    assert plan_command(line) == "simserve plan Qwen/Qwen3-8B --gpus 2xL4 --rate 20"
    assert plan_command(line, needs_more=True) == "simserve plan Qwen/Qwen3-8B --gpus L4 --rate 20"
    assert plan_command(["my chat.yaml"], needs_more=True) == "simserve plan 'my chat.yaml'"


@pytest.mark.parametrize(
    ("gpus", "name"),
    [
        ("5060 Ti", "'5060 Ti'"),
        ("2x5060 Ti", "'5060 Ti'"),
        ("7900xtx", "7900xtx"),
        ("2 h100", "h100"),
        ("H100:2", "H100"),
    ],
)
def test_a_plan_for_more_gpus_keeps_the_name_of_the_gpu(gpus: str, name: str) -> None:
    """Numbers of the name are no number of GPUs."""
    told = plan_command(["qwen3-8b", "--gpus", gpus, "--slo", "chat"], needs_more=True)

    assert told == f"simserve plan qwen3-8b --gpus {name} --slo chat"


def test_other_gpus_are_looked_at_where_that_is_said() -> None:
    """``--gpus H100`` keeps a plan to that kind; a card without a price stays, as nothing could be cheaper than it."""
    line = ["qwen3-8b", "--gpus", "2xH100", "--rate", "3"]

    assert plan_command(line, takes_others=True) == "simserve plan qwen3-8b --rate 3"
    assert plan_command(["qwen3-8b", "--gpus", "m4-max"], takes_others=True) == "simserve plan qwen3-8b --gpus m4-max"
