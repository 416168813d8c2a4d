"""Writes `docs/reference-walk.md`: prose, and excerpts of `simserve/reference/` as they are now.

``python docs/write_reference_walk.py`` replaces each block behind a line ``<!-- simserve.reference.MODULE:NAME -->``.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent

PAGE = Path(__file__).with_name("reference-walk.md")
_EXCERPT = re.compile(r"<!-- ([\w.]+):([\w.]+) -->\n```python\n.*?^```$", re.M | re.S)


def excerpt(module: str, name: str) -> str:
    """Return the source of a function or method, flush left."""
    found = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return dedent(inspect.getsource(found)).rstrip()


def written(text: str) -> str:
    """Return the page with every excerpt as the source is now."""
    return _EXCERPT.sub(
        lambda match: f"<!-- {match[1]}:{match[2]} -->\n```python\n{excerpt(match[1], match[2])}\n```", text
    )


def main() -> int:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
