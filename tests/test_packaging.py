"""What is promised of the environment: the oldest dependencies that are stated are those that are tried."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_oldest_versions_that_are_stated_are_those_that_are_tried() -> None:
    """`.ci/oldest.txt`, with which .ci/run installs the wheel, pins exactly the lower bounds of pyproject.toml.

    Those of the page and of `observe` too.
    """
    extras = _PROJECT["project"]["optional-dependencies"]
    needed = [*_PROJECT["project"]["dependencies"], *extras["explore"], *extras["observe"]]
    stated = dict(re.findall(r"^([a-z0-9-]+)>=([0-9.]+)", "\n".join(needed), re.M))
    tried = dict(re.findall(r"^([a-z0-9-]+)==([0-9.]+)$", (_ROOT / ".ci/oldest.txt").read_text("utf-8"), re.M))

    assert {name: version.split(".") for name, version in stated.items()} == {
        name: version.split(".")[: len(stated[name].split("."))] for name, version in tried.items()
    }
    assert len(stated) == len(needed)
    assert all(not rest.strip(".0") for rest in (tried[name][len(stated[name]) :] for name in stated))


def test_the_source_distribution_can_be_built_on() -> None:
    """With how to do so, and the command that does."""
    included = _PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]

    assert {"/Makefile", "/CONTRIBUTING.md", "/.ci", "/tests"} <= set(included)
    assert all((_ROOT / name.lstrip("/")).exists() for name in included)
