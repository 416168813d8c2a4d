"""An answer as HTML: a fragment for a notebook, or a full page. Everything shown is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.report.panels import Panel, brief_panel
from simserve.report.quantities import capital, text_columns
from simserve.unfinished import write_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from simserve.report.brief import Brief
_CODE = re.compile(r"((?<=: )simserve .+$|(?<![\w-])--[a-z][a-z-]*(?: [a-z\d]+=[^\s;]+| \d[\d.]*%?(?:/[a-z]+)?)?)")
"""A command at the end of a sentence, and an option with its number (possibly per month) or with the key it sets."""
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=m?s\b)")  # Space between a time and its unit, at which no line may break.
_PARTS = re.compile(r"[^._/]*[._/]+|[^._/]+")  # Parts of a long name, each with the sign that ends it.
_LONGEST_WORD = 12  # Letters of a word up to which it is never broken.
_NAMES = ("simserve", "vllm", "sglang", "tgi", "lmdeploy", "ollama")
"""Words that keep their spelling at the start of a line."""
TEMPLATES = Path(__file__).parent / "templates"
"""Pages and style sheets; ``common.css`` is shared with `simserve explore`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page."""

    title: str = ""  # What it is about.
    lines: Sequence[str] = ()  # Sentences; commands of simserve are set as code.
    header: Sequence[str] = ()  # Titles of a table's columns; empty: no table.
    rows: Sequence[Sequence[str]] = ()  # Its cells; the first of each row is its name.
    panels: Sequence[Panel] = ()  # Plots.
    notes: Sequence[str] = ()  # What limits it, in small print.

    @property
    def is_text(self) -> tuple[bool, ...]:
        """For each column of the table, whether it holds words."""
        return text_columns(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer as a full page."""

    name: str  # Command and scenario.
    answer: str = ""  # The answer in one sentence; empty where the brief holds it.
    lines: Sequence[str] = ()  # Further lines at the top.
    sections: Sequence[Section] = ()  # The rest, in reading order.
    command: str = ""  # The command that reproduces it; empty if unknown.
    brief: Brief | None = None  # The brief at the top, which includes the answer; None: the answer alone.


def render_page(page: Page) -> str:
    """Return the page as one file that fetches nothing; the same page gives the same bytes."""
    picture = None if page.brief is None else brief_panel(page.brief.latencies)
    return environment().get_template("answer.html").render(page=page, picture=picture)


def write_page(page: Page, file: str | Path) -> None:
    """Write a page, whole or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    write_text(Path(file), render_page(page))


class Paged:
    """An answer that writes itself as a page; its class says what is on it."""

    def _page(self, command: str, brief: Brief | None) -> Page:
        raise NotImplementedError

    def to_html(self, file: str | Path, command: str = "", brief: Brief | None = None) -> None:
        """Write the answer as one self-contained page.

        Args:
            brief: The brief at the top of the page; None: it is made here.
        """
        write_page(self._page(command, brief), file)


@cache
def environment() -> Environment:
    """Return the templates; values are escaped, and undefined ones are an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["capitalize_first"] = begun
    found.filters["as_sentence"] = as_sentence
    found.filters["marked"] = marked
    found.filters["command"] = command
    found.filters["joined"] = lambda text: _BEFORE_UNIT.sub("\u00a0", text)
    found.filters["breakable"] = breakable
    return found


def breakable(text: str) -> Markup:
    """Return words that may break after a dot, an underscore or a slash inside long ones: names of keys and files."""
    from markupsafe import Markup

    words = (_PARTS.findall(word) if len(word) > _LONGEST_WORD else [word] for word in text.split(" "))
    return Markup(" ").join(Markup("<wbr>").join(parts) for parts in words)


def begun(text: str) -> str:
    """Return a line with a capital first letter, unless its first word is a name: it has digits, or is an engine's."""
    first = text.split(" ", 1)[0].rstrip(",;:")
    return capital(text) if first.replace("-", "").isalpha() and first not in _NAMES else text


def as_sentence(text: str) -> str:
    """Return a line as a full sentence: begun as one (`begun`), and with a full stop."""
    line = begun(text)
    return f"{line}." if line[-1:].isalnum() or line[-1:] in (")", "%", "'") else line


def marked(text: str) -> Markup:
    """Return prose with options and commands of simserve, up to the end of their line, set as code."""
    from markupsafe import Markup

    parts = _CODE.split(text)
    option, whole = Markup('<code class="option">{}</code>'), Markup("<code>{}</code>")
    return Markup("").join(
        (option.format(part) if part.startswith("-") else whole.format(command(part))) if place % 2 else part
        for place, part in enumerate(parts)
    )


def command(text: str) -> Markup:
    """Return a command whose words are not broken at hyphens: lines break between words if these fit."""
    from markupsafe import Markup

    word = Markup("<span>{}</span>")
    return Markup(" ").join(word.format(each) if "-" in each else each for each in text.split(" "))


def brief_html(brief: Brief) -> str:
    """Return a brief as a fragment of HTML, for the top of a page."""
    module: Any = environment().get_template("brief.html").module
    return str(module.show(brief))


def html_sections(lines: Sequence[str], sections: Iterable[Section]) -> str:
    """Return an answer as a fragment of HTML, for a notebook: sentences, the first in bold, then its sections.

    Args:
        sections: Its parts: title, lines with commands set as code, table, notes in small print; plots are left out.
    """
    parts = [f"<p><b>{escape(line)}</b></p>" if not at else f"<p>{escape(line)}</p>" for at, line in enumerate(lines)]
    for section in sections:
        parts += [f"<h4>{escape(section.title)}</h4>"] if section.title else []
        for line in section.lines:
            text = escape(line)
            parts.append(f"<p><code>{text}</code></p>" if line.startswith("simserve ") else f"<p>{text}</p>")
        parts += [html_cells(section.header, section.rows)] if section.rows else []
        parts += [f"<p><small>{escape(note)}</small></p>" for note in section.notes]
    return "".join(parts)


def html_table(
    lines: Sequence[str], header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Return an answer of one table, as `html_sections` does."""
    return html_sections(lines, [Section(header=header, rows=rows, notes=notes)])


def html_cells(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, words flush left and figures flush right on one line, whatever the styles of the page."""
    is_text = text_columns(rows) or (True,) * len(header)
    styles = ["text-align:left" if words else "text-align:right;white-space:nowrap" for words in is_text]

    def row(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(cells, styles, strict=True)
        return "<tr>" + "".join(f'<{tag} style="{style}">{escape(cell)}</{tag}>' for cell, style in pairs) + "</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return f"<table><thead>{row('th', header)}</thead><tbody>{body}</tbody></table>"
