"""The exceptions a user can meet."""

from __future__ import annotations

import inspect

import pytest

from simserve import errors
from simserve.errors import InfeasibleError, InputError, ScenarioError, SimserveError, UsageError, nearest


def test_a_message_is_where_what_and_what_to_do() -> None:
    """File, key, value and rule, remedy."""
    error = InputError("must be > 0", file="s.yaml", key="workload.rate", value=-1, remedy="leave it out")

    assert str(error) == "s.yaml: workload.rate: -1 must be > 0; leave it out"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SimserveError("went wrong"), "went wrong"),
        (UsageError("needs a value", key="--out"), "--out: needs a value"),
        (ScenarioError("is unknown", value="x"), "'x' is unknown"),
        (InfeasibleError("does not fit", value=0), "0 does not fit"),
    ],
)
def test_what_is_absent_leaves_no_trace(error: SimserveError, message: str) -> None:
    """Parts that are not given take their separators with them; a value of 0 is a value."""
    assert str(error) == message


def test_a_long_value_is_cut() -> None:
    """A message stays one readable line."""
    message = str(InputError("is too much", value="x" * 500))

    assert len(message) < 100
    assert "..." in message


def test_exit_codes_are_those_of_the_drawing() -> None:
    """The tree at the top of the module is what the classes say."""
    drawing = inspect.getdoc(errors) or ""
    codes = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, SimserveError)
    }

    assert codes["UsageError"] == 2
    assert codes["InfeasibleError"] == 3
    assert codes["ScenarioError"] == codes["ProfileError"] == codes["TraceError"] == codes["InputError"] == 104
    assert codes["InterruptedRunError"] == 105
    assert codes["SimserveError"] == codes["InvariantError"] == 1
    drawn = {word for line in drawing.splitlines() for word in line.split() if word in codes}
    assert drawn == set(codes)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("llama-3", "did you mean 'llama-3-70b' or 'llama-3-8b'?"),
        ("llama-70b", "did you mean 'llama-3-70b'?"),
        ("LLAMA-3-8c", "did you mean 'llama-3-8b' or 'llama-3-70b'?"),
        ("gtp-3-175b", "did you mean 'gpt-3-175b'?"),
        ("qwen", "choose from gpt-3-175b, llama-3-70b, llama-3-8b"),
    ],
)
def test_the_nearest_names(name: str, remedy: str) -> None:
    """Those that resemble it, best first; else all of them."""
    assert nearest(name, ["llama-3-8b", "gpt-3-175b", "llama-3-70b"]) == remedy


def test_words_written_together_are_found() -> None:
    """What begins with them comes before what is only like them."""
    assert (
        nearest("gemma4", ["gemma-3-4b", "gemma-4-12b", "gemma-4-31b"])
        == "did you mean 'gemma-4-12b' or 'gemma-4-31b'?"
    )


def test_of_many_none_is_named_that_is_unlike() -> None:
    """Their number stands for them."""
    many = [f"llama-{number}" for number in range(30)]

    assert nearest("zyx", many) == "there are 30, none like it"
    assert nearest("lab", many).startswith("there are 30, such as llama-")


def test_nothing_to_choose_from() -> None:
    """An empty list says so."""
    assert nearest("x", []) == "there is nothing to choose from"


@pytest.mark.parametrize("value", [1 << 100_000, ["x" * 1000] * 1000, {"a": {"b": ["c"] * 1000}}], ids=type)
def test_a_value_too_large_to_be_written_out_is_cut(value: object) -> None:
    """Cut on the way, not after: writing it out may take all memory, or be impossible."""
    assert len(str(InputError("is too much", value=value))) < 120


def test_a_value_that_expands_without_end_is_cut() -> None:
    """Lists that hold one list ten times over are written in a moment."""
    value: list[object] = [1]
    for _ in range(12):
        value = [value] * 10

    assert len(str(InputError("is too much", value=value))) < 120
