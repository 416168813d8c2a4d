"""Commands offer what the API offers: the same names and defaults, and each of them handed on."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from importlib import import_module

import pytest

from simserve import api

PYTHON_ALONE = {"progress", "on_stage", "reference", "steps", "router", "admission", "step_seconds", "advise", "tried"}
"""What means something in Python alone: functions of one's own, objects that a caller keeps, words for an answer."""
OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "run": {"autoscaler": ""},
    "verify": {},
    "capacity": {"num_requests": "requests"},
    "compare": {"variants": "variants"},
    "sweep": {"grid": "grid", "workers": "workers", "out": "out"},
    "cost": {"variants": "variants"},
    "plan": {"headroom": "headroom", "jobs": "jobs", "hardware": "hardware", "keep": "keep", "over": "over"},
}
"""Command of a function of the API -> parameters that a command line writes in words, and the option that does it; "":
none, as it is a function of one's own."""


def asked_of(command: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of the API's function that a command line can give."""
    known = inspect.signature(getattr(api, command)).parameters
    left_out = PYTHON_ALONE | {"scenario"} | {name for name, option in OTHERWISE[command].items() if not option}
    return {
        name: each
        for name, each in known.items()
        if name not in left_out and each.kind is not inspect.Parameter.VAR_KEYWORD
    }


@pytest.mark.parametrize("command", OTHERWISE)
def test_every_parameter_of_the_api_is_an_option(command: str) -> None:
    """Of the same name and with the same default, but for those that are written in words."""
    options = inspect.signature(getattr(import_module(f"simserve.cli.{command}"), command)).parameters
    otherwise = OTHERWISE[command]

    for name, each in asked_of(command).items():
        assert otherwise.get(name, name) in options, name
        if name not in otherwise:
            assert options[name].default == each.default, name


@pytest.mark.parametrize("command", [each for each in OTHERWISE if each not in ("run", "cost")])
def test_every_option_is_handed_on(command: str) -> None:
    """The call of the API names every parameter; `run` and `cost` hand on a mapping, which their own tests look at."""
    tree = ast.parse(inspect.getsource(import_module(f"simserve.cli.{command}")))
    calls = [
        each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func) == f"api.{command}"
    ]
    (call,) = calls

    named = {each.arg for each in call.keywords}
    positional = [name for name in asked_of(command) if name not in named]
    assert len(positional) == len(call.args) - 1
