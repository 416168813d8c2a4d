"""The stack of DESIGN section 2: imports point down only, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).resolve().parents[1] / "simserve"
_LEVELS = (
    ("version", "errors", "units", "rng", "documents", "unfinished", "validation"),
    ("profiles", "workload", "engine", "observe"),
    ("perf",),
    ("sim", "reference"),
    ("metrics",),
    ("scenario",),
    ("planner", "calibrate"),
    ("report",),
    ("api",),
    ("explore",),
    ("cli",),
)
"""Bottom first; packages on one level do not know each other, except on the lowest."""
_LEVEL = {name: level for level, names in enumerate(_LEVELS) for name in names}
_HOME = {
    "simpy": {"sim", "reference"},
    "matplotlib": {"report"},
    "typer": {"cli"},
    "torch": {"calibrate"},
    "starlette": {"explore"},
    "httpx": {"observe"},
}
_RANDOM = {"random", "numpy.random", "simserve.rng"}

_MODULES = sorted(_PACKAGE.rglob("*.py"))
_COMPONENTS = {each.name.removesuffix(".py") for each in _PACKAGE.iterdir()}


def component(path: Path) -> str:
    """Return the part of the stack that a module belongs to; "" for the package's own two files."""
    first = path.relative_to(_PACKAGE).parts[0].removesuffix(".py")
    return "" if first in ("__init__", "__main__") else first


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return every module or name that a file imports, dotted, wherever in the file it does."""
    return tuple(_imports(path))


_IMPORT = re.compile(r"^[ \t]*((?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(?:\([^)]*\)|.*))$", re.MULTILINE)
"""An import as it is formatted here: it begins a line, and names in brackets may take several."""
_TEXT = re.compile(r'"""(?:.*?)"""', re.DOTALL)
"""A docstring, whose examples import as well."""


def _imports(path: Path) -> Iterator[str]:
    """Yield what is imported; the rest of the file is not parsed, which would take ten times as long."""
    text = "\n".join(_IMPORT.findall(_TEXT.sub("", path.read_text(encoding="utf-8"))))
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_components(path: Path) -> set[str]:
    """Return the parts of the stack that a module imports."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("simserve.")} & _COMPONENTS


def test_every_module_has_a_level() -> None:
    """A new package is placed in the stack before anything may import it."""
    assert {component(path) for path in _MODULES} - {""} <= set(_LEVEL)


def test_imports_point_down() -> None:
    """No module knows what stands above or beside it."""
    wrong = {}
    for path in filter(component, _MODULES):
        home = component(path)
        level = _LEVEL[home]
        # What a run is asked for is written down beside the plane; the reference names it in annotations alone.
        known = {"sim"} if home == "reference" else set()
        for other in imported_components(path) - {home} - known:
            if _LEVEL[other] > level or (_LEVEL[other] == level and level > 0):
                wrong.setdefault(str(path.relative_to(_PACKAGE)), set()).add(other)

    assert not wrong


def test_nothing_of_the_package_imports_what_is_not_installed_with_it() -> None:
    """Calibration, benchmarks, docs and tests stand beside it; `validate` looks for the laboratory by its file."""
    outside = {"calibration", "benchmarks", "docs", "tests"}

    assert not [path for path in _MODULES if outside & {name.split(".")[0] for name in imports(path)}]


def test_no_circle_of_imports() -> None:
    """A module can be read before those that import it: lazy imports, and those for annotations alone, count too."""
    root = _PACKAGE.parent
    paths = [path for folder in ("simserve", "calibration", "benchmarks") for path in (root / folder).rglob("*.py")]
    modules = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}

    def module_of(name: str) -> str | None:
        parts = name.split(".")
        return next((each for end in range(len(parts), 0, -1) if (each := ".".join(parts[:end])) in modules), None)

    graph = {name: {module_of(each) for each in imports(path)} - {name, None} for name, path in modules.items()}

    # Raises `CycleError` with the modules of the circle.
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(("package", "home"), _HOME.items())
def test_a_package_is_imported_in_its_home_only(package: str, home: set[str]) -> None:
    """SimPy is the clock of `sim` and of the reference, typer the face of `cli`, and so on."""
    users = {component(path) for path in _MODULES if package in {name.split(".")[0] for name in imports(path)}}

    assert users <= home


def test_the_reference_calls_nothing_of_the_plane() -> None:
    """It has a text of its own of every rule: no module of `sim` or of the scheduler's kernel is there when it runs."""
    script = (
        "import sys, pkgutil, importlib, simserve.reference as reference\n"
        "for each in pkgutil.iter_modules(reference.__path__):\n"
        "    importlib.import_module(f'simserve.reference.{each.name}')\n"
        "print(*sorted(name for name in sys.modules if name.startswith('simserve.')))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = {name.split(".")[1] for name in output.split()}

    assert loaded == {"reference", "rng", "version"}


def test_engine_knows_no_randomness() -> None:
    """All chance is drawn before the engine sees a request."""
    modules = [path for path in _MODULES if component(path) == "engine"]

    for path in modules:
        assert not [name for name in imports(path) if any(name.startswith(each) for each in _RANDOM)], path


def test_no_module_passes_the_stop_sign() -> None:
    """A module is as long as its noun; 800 lines are a stop sign, and the kernel is where longer may be clearer."""
    long = {str(path.relative_to(_PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in _MODULES}

    assert [name for name, lines in long.items() if lines > 800 and name != "engine/kernel.py"] == []
