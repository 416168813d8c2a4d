"""Small real runs, one for each kind of answer; each is simulated once."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

from rich.console import Console

from simserve import api
from simserve.metrics.result import RunResult
from simserve.report.html import render_report
from simserve.report.terminal import render_run

CASES: dict[str, tuple[str, ...]] = {
    "stable": ("chatbot", "workload.num_requests=300"),
    "overloaded": (
        "chatbot",
        "workload.num_requests=600",
        "workload.arrivals.rate=30",
        'thresholds={ttft_ms: ["p(95)<1000"], e2el_ms: ["avg<1000000"]}',
    ),
    "static": ("static-vs-continuous", "workload.num_requests=100"),
    "uncached": (
        "static-vs-continuous",
        "workload.num_requests=5",
        "deployment.engine.batching=continuous",
        "deployment.engine.static_batch_size=null",
        "deployment.engine.kv_allocation=none",
    ),
    "empty": ("chatbot", "workload.num_requests=20", "workload.prompt_tokens={distribution: fixed, value: 20000}"),
    "preempting": ("batch-size-sweet-spot", "workload.num_requests=200", "deployment.engine.max_num_seqs=64"),
    "replicated": ("chatbot", "workload.num_requests=1500", "run.replications=3"),
    "unsettled": ("chatbot", "workload.num_requests=150", "run.replications=3"),
    "lone-unsettled": ("chatbot", "workload.num_requests=150"),
}


@cache
def run(case: str) -> RunResult:
    """Return the result of one of `CASES`."""
    name, *overrides = CASES[case]
    return api.run(api.load(name, overrides))


@cache
def page_text(case: str) -> str:
    """Return the page of one of `CASES`."""
    return render_report(run(case))


def terminal(case: str, width: int = 80, folder: Path | None = None, *, is_verbose: bool = True) -> str:
    """Return what the terminal shows of a case, every figure or the brief alone."""
    shown = StringIO()
    render_run(run(case), Console(file=shown, width=width, highlight=False), folder, is_verbose=is_verbose)
    return shown.getvalue()


class Page(HTMLParser):
    """A page as its elements; an end tag that closes nothing, or the wrong element, is an error.

    Attributes:
        elements: Every start tag with its attributes.
        open: Elements that are still open.
        words: All text.
    """

    _VOID = frozenset({"meta", "link", "br", "wbr", "hr", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element without content."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Close an element."""
        assert self.open, f"</{tag}> closes nothing"
        last = self.open.pop()
        assert last == tag, f"</{tag}> closes <{last}>"

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text, blanks joined."""
        return " ".join(" ".join(self.words).split())

    def attributes(self, name: str) -> list[str]:
        """Return the values of an attribute, wherever it stands."""
        return [value for _, found in self.elements if (value := found.get(name)) is not None]
