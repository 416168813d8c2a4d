"""Builds the site: ``python docs/build_site.py SITE [--notebooks DIR]``, or ``make docs``. Needs ``simserve[docs]``.

The pages are those of the repository, gathered into one folder with their links turned; names of results and the
Python API are written from the code. MkDocs builds them in strict mode and fetches nothing; neither do the pages.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from simserve.scenario.load import load, scenario_names
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run

ROOT = Path(__file__).resolve().parent.parent
NAV: list[dict[str, Any]] = [
    {"Start": "README.md"},
    {
        "Quick starts": [
            {"Engineer": "docs/quickstart-engineer.md"},
            {"Student": "docs/quickstart-student.md"},
            {"Manager": "docs/quickstart-manager.md"},
        ]
    },
    {
        "Guides": [
            {"Simulation practice": "docs/simulation-practice.md"},
            {"Promises": "docs/promises.md"},
            {"What to buy": "docs/purchase.md"},
            {"How to scale over a day": "docs/autoscaler.md"},
            {"Deploy it": "docs/exports.md"},
            {"The twin": "docs/twin.md"},
            {"The page and its tour": "docs/explore.md"},
            {"Calibrate": "calibration/README.md"},
            {"Your own measurements": "docs/measurements.md"},
            {"A gate in CI": "docs/ci-gate.md"},
            {"Notebooks": "notebooks/README.md"},
        ]
    },
    {
        "How far to trust it": [
            {"Accuracy": "calibration/ACCURACY.md"},
            {"KV rooms of start-up logs": "docs/kv-logs.md"},
            {"Calibrated servers": "docs/calibrated-servers.md"},
            {"Unseen reports": "calibration/unseen/README.md"},
            {"Operators": "calibration/operators.md"},
            {"Attention and all-reduce": "calibration/attention_collectives.md"},
            {"Speculation": "calibration/speculation.md"},
            {"Proof of plans": "docs/plan-proof.md"},
            {"Prefill and decode workers of plans": "docs/plan-pools.md"},
            {"Real schedulers": "tests/real_engines/README.md"},
            {"Benchmarks": "benchmarks/RESULTS.md"},
            {"Log of calibration": "calibration/LOG.md"},
        ]
    },
    {
        "Reference": [
            {"Scenario keys": "docs/scenario-keys.md"},
            {"Commands": "docs/commands.md"},
            {"Names of results": "generated/results.md"},
            {"Python": "generated/python.md"},
            {"Models": "docs/models.md"},
            {"Engines": "docs/engines.md"},
            {"Glossary": "docs/glossary.md"},
        ]
    },
    {
        "Inside": [
            {"The plain simulator": "docs/reference-walk.md"},
            {"Contributing": "CONTRIBUTING.md"},
            {"Changes": "CHANGELOG.md"},
            {"All pages": "docs/README.md"},
        ]
    },
]
STYLE = "site.css"
_STYLES = """.md-typeset pre > code { white-space: pre-wrap; overflow-wrap: anywhere }
.md-typeset table:not([class]) code { overflow-wrap: anywhere }
.md-typeset table.dataframe { border-collapse: collapse; font-size: .65rem; border: 0 }
.md-typeset table.dataframe :is(td, th) { padding: .2rem .6rem; text-align: right }
"""
"""A command is read whole, not scrolled."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.M | re.S)


def pages(nav: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the pages of a navigation, in its order."""
    for entry in nav:
        for value in entry.values():
            if isinstance(value, list):
                yield from pages(value)
            else:
                yield value


def turned(text: str, page: str, known: set[str]) -> str:
    """Return a page with the links that lead out of the site taken away: their words stay.

    A link to a folder leads to its README.
    """
    folder = (ROOT / page).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match[3]).resolve()
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        if f"{name}/README.md" in known:
            return f"{match[1]}[{match[2]}]({match[3].rstrip('/')}/README.md{match[4] or ''})"
        if name.endswith(".ipynb") and f"{name[:-6]}.md" in known:
            return f"{match[1]}[{match[2]}]({match[3][:-6]}.md)"
        if name in known or target.suffix in (".png", ".svg") or name.startswith("docs/recipes/"):
            return match[0]
        return match[2]

    parts = _CODE.split(text)
    return "".join(part if place % 2 else _LINK.sub(link, part) for place, part in enumerate(parts))


def results() -> str:
    """Return the page of the names of `result.json`, with what a run of `chatbot` says for each."""
    scenario = load(
        scenario_names()[0] if "chatbot" not in scenario_names() else "chatbot", ["workload.num_requests=200"]
    )
    summary = run(resolve(scenario)).summary
    lines = [
        "# Names of results",
        "",
        "Every name in `result.json`, and its value in a run of 200 requests of `chatbot`.",
        "",
    ]
    lines += ["| name | value |", "|---|---|"]
    lines += [f"| `{name}` | {value} |" for name, value in _flat(summary, "")]
    return "\n".join(lines) + "\n"


def _flat(values: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and len(name.split(".")) < 4:
            yield from _flat(value, f"{name}.")
        else:
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            yield name, f"`{text[:80].replace('|', '/')}`" if text else ""


def python() -> str:
    """Return the page of the Python API, which mkdocstrings fills from the docstrings."""
    return "# Python\n\n`import simserve as ss` gives all of these.\n\n::: simserve.api\n"


def lesson(notebook: Path) -> str:
    """Return a notebook as a page: its text, its code, and what that put out where it was run."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        shown = [block for output in cell.get("outputs", ()) for block in _shown(output, source)]
        parts += dict.fromkeys(shown)  # a figure that a cell returns and closes is put out twice
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any], source: str) -> Iterator[str]:
    """Yield what an output shows, figures with the line that drew them as their text."""
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    alt = html.escape(source.strip().splitlines()[-1])
    if "image/svg+xml" in data:
        drawing = base64.b64encode(data["image/svg+xml"].encode()).decode()
        yield f'<img alt="{alt}" src="data:image/svg+xml;base64,{drawing}">'
    elif "image/png" in data:
        yield f'<img alt="{alt}" src="data:image/png;base64,{data["image/png"].strip()}">'
    elif "text/html" in data:
        yield "<div>" + data["text/html"] + "</div>"
    else:
        text = "".join(output.get("text", data.get("text/plain", "")))
        if text.strip():
            yield f"```text\n{text.rstrip()}\n```"


def gather(folder: Path, notebooks: Path | None) -> list[dict[str, Any]]:
    """Fill a folder with all pages, and return the navigation."""
    nav = [dict(entry) for entry in NAV]
    names = list(pages(nav))
    books = sorted((notebooks or ROOT / "notebooks").glob("*.ipynb"))
    nav.insert(
        3, {"Lessons": [{each.stem.replace("-", " ").capitalize(): f"notebooks/{each.stem}.md"} for each in books]}
    )
    known = {*names, *(f"notebooks/{each.stem}.md" for each in books)}
    written = {"generated/results.md": results, "generated/python.md": python}
    for name in names:
        target = folder / ("index.md" if name == "README.md" else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = written[name]() if name in written else (ROOT / name).read_text(encoding="utf-8")
        text = turned(text, name, known)
        target.write_text(
            re.sub(r"\((?:\.\./)+README\.md", lambda m: m[0].replace("README", "index"), text), encoding="utf-8"
        )
    for each in books:
        (folder / "notebooks" / f"{each.stem}.md").write_text(lesson(each), encoding="utf-8")
    for each in ("pictures", "recipes"):
        shutil.copytree(ROOT / "docs" / each, folder / "docs" / each)
    (folder / STYLE).write_text(_STYLES, encoding="utf-8")
    return [{"Start": "index.md"}, *nav[1:]]


def main() -> int:
    """Build the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder of the site")
    parser.add_argument("--notebooks", type=Path, help="folder of notebooks that were run; else they have no outputs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "pages"
        settings = {
            "site_name": "simserve",
            "docs_dir": str(folder),
            "site_dir": str(arguments.site.resolve()),
            "use_directory_urls": False,
            "strict": True,
            "theme": {
                "name": "material",
                "font": False,
                "features": ["navigation.tabs", "navigation.indexes", "content.code.copy", "search.suggest"],
                "palette": [
                    {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "blue grey"},
                    {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "blue grey"},
                ],
            },
            "plugins": [
                "search",
                {"mkdocstrings": {"handlers": {"python": {"options": {"show_source": False, "heading_level": 2}}}}},
            ],
            "markdown_extensions": ["tables", "toc", "pymdownx.superfences", "pymdownx.highlight"],
            "extra_css": [STYLE],
            "nav": gather(folder, arguments.notebooks),
        }
        file = Path(scratch) / "mkdocs.yml"
        file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(file)]
        # Material's notes on what comes after it.
        return subprocess.run(command, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
