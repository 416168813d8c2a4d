"""`simserve explore --export`: the page with its answers computed in advance, which opens from a file without Python.

It is the served page with one change: instead of asking the server, it looks up the answers stored beside it. Controls
only offer what was computed, so that everything shown comes from a run.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from simserve.errors import InfeasibleError, SimserveError, UsageError
from simserve.explore.app import QUESTIONS, catalogue
from simserve.explore.queries import Against
from simserve.explore.tour import LONG_TAIL, STOPS
from simserve.metrics.summary import in_json
from simserve.profiles.catalog import bundled_file
from simserve.report.page import TEMPLATES
from simserve.unfinished import write_text
from simserve.validation import validate

Options = Mapping[str, Sequence[Any]]  # Input -> the values offered, the initial one first.
Tell = Callable[[int, int], None]

_RECORDED, _SCRAPES = "calibration/runs/vllm-cpu-2026-11-24-scrapes", "scrapes.prom.gz"
INDEX, ANSWERS = "index.html", "answers.js"
_MODELS = ("qwen3-32b", "llama-3.1-8b", "llama-3.1-70b", "gpt-oss-120b")
_GPUS = ("h200-sxm-141gb", "h100-sxm-80gb", "a100-sxm-80gb", "l40s-48gb")
_CONTEXTS = (2000, 500, 8000, 32_000)
_STEPS: Options = {"model": _MODELS, "hardware": _GPUS, "batch": (16, 1, 4, 64, 256), "context_tokens": _CONTEXTS}
_MIXED = (10, 34, 6, 22, 8, 40, 12, 5, 18, 7, 26, 9, 14, 38, 6, 11, 20, 8, 30, 5, 16, 9, 12, 7)
GRIDS: Mapping[str, Options] = {
    "tour": {"stop": tuple(stop.id for stop in STOPS)},
    "film": {"rate": (4.0, 8.0), "against": get_args(Against)[:6]},
    "simulator": {
        "model": _MODELS[:1],
        "hardware": _GPUS[:2],
        "gpus": (1, 2),
        "rate": (8.0, 2.0, 4.0, 16.0, 32.0),
        "continuous_batching": (True, False),
        "paged_kv": (True, False),
        "quantization": ("auto", "fp8"),
        "max_num_seqs": (64, 256),
        "num_requests": (600,),
    },
    "memory-wall": _STEPS,
    "kv-growth": _STEPS,
    "attention": {"model": (*_MODELS, "deepseek-v3"), "hardware": _GPUS[:1], "context_tokens": _CONTEXTS},
    "batching": {"lengths": (_MIXED, LONG_TAIL, 3 * LONG_TAIL, (20,) * 24), "slots": (8, 2, 4, 16)},
    "paging": {
        "model": ("qwen3-8b", "llama-3.1-8b"),
        "hardware": ("l40s-48gb",),
        "max_model_len": (4096, 2048, 16_384),
        "prompt_tokens": (300, 100, 1000),
        "output_tokens": (200, 50, 800),
    },
    "quantization": {**_STEPS, "model": _MODELS[:3], "context_tokens": _CONTEXTS[:3]},
    "speculation": {
        "model": ("llama-3.1-70b",),
        "num_speculative_tokens": (4, 1, 2, 3, 6, 8),
        "acceptance_rate": (0.7, 0.5, 0.6, 0.8, 0.9),
        "context_tokens": (1000, 8000),
    },
    "parallel": {
        "model": ("llama-3.1-70b", "qwen3-32b"),
        "hardware": ("h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb"),
        "gpus": (8, 2, 4, 16),
        "batch": (16, 1, 64),
        "prompt_tokens": (1000, 4000),
    },
    "cost": {"model": ("llama-3.1-8b",), "requests_per_month": (1e7, 1e6, 1e8)},
    "wizard": {"model": ("llama-3.1-8b",), "rate": (10.0, 40.0), "slo_tpot_ms": (50.0, 20.0)},
}
"""Question -> its inputs, of which all combinations are computed."""


def count(grids: Mapping[str, Options] = GRIDS) -> int:
    """Return the number of answers."""
    return sum(len(list(_combinations(options))) for options in grids.values())


def recorded_example() -> tuple[Path, Path]:
    """Return metrics of a real server that ship with simserve, and the scenario of its deployment."""
    folder = bundled_file(f"{_RECORDED}/{_SCRAPES}").parent
    return folder / _SCRAPES, folder / "scenario.yaml"


def write_pages(
    folder: Path,
    *,
    force: bool = False,
    grids: Mapping[str, Options] = GRIDS,
    tell: Tell | None = None,
    twin: Mapping[str, Any] | None = None,
) -> bool:
    """Write the page and its answers; the same version gives the same bytes.

    Args:
        folder: Created if needed.
        force: Whether other files in the folder are kept and pages there are replaced, instead of an error.
        tell: Called with the number of finished answers and of all.
        twin: The `TwinFeed.state` of a deployment; None: the page has no twin.

    Returns:
        Whether all answers are there: Ctrl-C stops the computation, and what is finished is written.

    Raises:
        UsageError: The folder cannot be written, or holds something else.
    """
    check_folder(folder, force=force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as failure:
        raise _unwritable(folder, failure) from failure
    answers: dict[str, dict[str, Any]] = {name: {} for name in grids}
    total, done, is_whole = count(grids), 0, True
    try:
        for name, options in grids.items():
            for key, values in _combinations(options):
                answers[name][key] = answer(name, values)
                done += 1
                if tell is not None:
                    tell(done, total)
    except KeyboardInterrupt:
        is_whole = False
    offered = {name: {key: list(values) for key, values in options.items()} for name, options in grids.items()}
    data = {"catalogue": {**catalogue(), "offered": offered}, "answers": answers, "twin": twin}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    try:
        write_text(folder / ANSWERS, f"window.SIMSERVE={text};\n")
        write_text(folder / INDEX, page())
    except OSError as failure:
        raise _unwritable(folder, failure) from failure
    return is_whole


def _unwritable(folder: Path, failure: OSError) -> UsageError:
    return UsageError(f"cannot be written: {failure.strerror}", key="--export", value=str(folder))


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder with anything but an exported page.

    Raises:
        UsageError: It has other files, or is not a folder.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError("is a file, not a folder", key="--export", value=str(folder))
    held = {each.name for each in folder.iterdir()} - {INDEX, ANSWERS} if folder.is_dir() else set()
    is_foreign = bool(held) or (folder.is_dir() and any(folder.iterdir()) and not (folder / ANSWERS).is_file())
    if is_foreign and not force:
        remedy = "choose another folder, or --force to write beside what is there"
        raise UsageError("holds other files", key="--export", value=str(folder), remedy=remedy)


def answer(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the server would answer, or its refusal."""
    asked = QUESTIONS[name]
    try:
        found: dict[str, Any] = in_json(asked.answer(validate(asked.query, dict(values)), lambda _done, _total: None))
    except InfeasibleError as error:
        return {"error": str(error), "kind": "infeasible"}
    except (SimserveError, ValueError) as error:
        return {"error": str(error), "kind": "input"}
    return found


def page() -> str:
    """Return the page as one file with its scripts and styles, for a browser to open from disk."""
    folder = Path(__file__).parent / "page"
    text = (folder / "index.html").read_text(encoding="utf-8")
    sheets = (TEMPLATES / "common.css", TEMPLATES / "film.css", folder / "style.css")
    styles = "\n".join(each.read_text(encoding="utf-8") for each in sheets)
    # Browsers do not load modules from disk: they are embedded in the page under bare names.
    modules = {}
    for each in (*sorted(folder.glob("*.js")), TEMPLATES / "film.js", TEMPLATES / "read.js"):
        bare = re.sub(r'(from|import) "\./(\w+)\.js"', r'\1 "\2"', each.read_text(encoding="utf-8"))
        modules[each.stem] = "data:text/javascript;base64," + base64.b64encode(bare.encode()).decode()
    imports = json.dumps({"imports": modules}, separators=(",", ":"))
    text = text.replace('<link rel="stylesheet" href="common.css">\n', f"<style>\n{styles}</style>\n")
    for name in ("film.css", "style.css"):
        text = text.replace(f'<link rel="stylesheet" href="{name}">\n', "")
    scripts = f'<script src="{ANSWERS}"></script>\n<script type="importmap">{imports}</script>\n'
    return text.replace(
        '<script type="module" src="tabs.js"></script>', scripts + '<script type="module">import "tabs";</script>'
    )


def _combinations(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every combination with a key of the positions of its values, as the page looks it up."""
    for places in itertools.product(*(range(len(values)) for values in options.values())):
        chosen = zip(options.items(), places, strict=True)
        yield ".".join(map(str, places)), {name: values[place] for (name, values), place in chosen}
