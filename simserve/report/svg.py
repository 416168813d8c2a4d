"""A Matplotlib figure as SVG that stands inside a page: its colours and type follow the page, nothing is fetched."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

from simserve.report.axes import COLOR_ROLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DIGITS = 2


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as one ``<svg>`` element.

    The same figure gives the same text. Ids start with ``name``, so that several figures can share a page.

    Args:
        figure: What to draw.
        name: Unique in the page; letters, digits and dashes.
        description: What a reader who cannot see it should know.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    body = drawn.getvalue()
    viewbox = re.search(r'viewBox="([^"]+)"', body)
    start = body.index(">", body.index("<svg")) + 1
    content = _cleaned(body[start : body.rindex("</svg>")], name)
    box = viewbox[1] if viewbox else ""
    return f'<svg role="img" aria-label="{html.escape(description)}" viewBox="{box}">{content}</svg>'


def _cleaned(content: str, name: str) -> str:
    """Return the inside of an SVG without metadata, namespaces and unused ids, in the colours of the page."""
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.DOTALL)
    content = re.sub(r"<style.*?</style>", "", content, flags=re.DOTALL)
    content = re.sub(r"<!--.*?-->", "", content, flags=re.DOTALL)
    content = content.replace("xlink:href=", "href=")
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', content))
    content = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", content)
    content = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", content)
    content = re.sub(r" font-family: [^;\"]*;?", "", content)
    content = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", content)
    content = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.{_DIGITS}f}", content)
    for color, role in COLOR_ROLES.items():
        content = content.replace(color, f"var(--{role})")
    return re.sub(r"\n\s*", "\n", content).strip()
