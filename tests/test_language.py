"""Plain English: phrases that must not come back, and answers whose words the glossary explains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simserve.report.brief import brief_of_run
from tests.report.builders import CASES, Page, page_text, run, terminal

ROOT = Path(__file__).resolve().parent.parent
PHRASES = (
    "host and kernel starts",
    "A step is running 100%",
    "of at most 256 sequences",
    "adds a twentieth",
    "is beaten in dollars",
    "at the end of its capacity",
    "sized anew",
    "would make it ten",
    "p99 rests on",
    "room for KV",
)
"""None of them stands anywhere in what is shipped."""
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS, REPLACED = (
    [word.strip() for row in re.findall(r"^\| ([^|]+) \|", part, re.M)[1:] for word in row.split(",")]
    for part in GLOSSARY.split("## One word for one idea")
)
"""Words that the glossary explains, and those that it has another word for."""
WORDS = re.compile(rf"\b({'|'.join(REPLACED)}|bear|twentieth|whilst|just|simply|robust|powerful)\b|^Mind$", re.M)
"""None of them stands in an answer: the field says can sustain, bottleneck, 5%, more expensive."""
_ANSWERING = ("simserve/report", "simserve/metrics", "simserve/planner/plan", "simserve/planner/cost")
_TERMS = ("TTFT", "TPOT", "ITL", "E2E", "SLO", "p95", "stable", "backlogged", "overloaded", "bottleneck", "sustain")


def shipped() -> Iterator[Path]:
    """Yield every file with words for a user, but for the history of changes."""
    yield ROOT / "README.md"
    for folder, kinds in {
        "simserve": ("py", "html", "js"),
        "docs": ("md",),
        "notebooks": ("ipynb", "md"),
        "scenarios": ("yaml",),
    }.items():
        for kind in kinds:
            yield from sorted((ROOT / folder).rglob(f"*.{kind}"))


def literals(path: Path) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def test_no_phrase_that_was_mended_comes_back() -> None:
    """In code, templates, docs, README, notebooks and scenarios."""
    found = [
        f"{path.relative_to(ROOT)}: {phrase}"
        for path in shipped()
        for text in [path.read_text(encoding="utf-8")]
        for phrase in PHRASES
        if phrase in text
    ]

    assert found == []


@pytest.mark.parametrize("folder", _ANSWERING)
def test_no_text_of_an_answer_uses_a_foreign_word(folder: str) -> None:
    """Every literal of the modules that word answers, shown by a test or not."""
    said = [
        f"{path.name}: {text}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in literals(path)
        if " " in text and WORDS.search(text)
    ]

    assert said == []


@pytest.mark.parametrize("case", CASES)
def test_no_answer_uses_a_foreign_word(case: str) -> None:
    """The terminal with everything, and the page."""
    shown = f"{terminal(case)}\n{Page(page_text(case)).text}"

    assert WORDS.search(shown) is None
    assert not [phrase for phrase in PHRASES if phrase in shown]


@pytest.mark.parametrize("case", CASES)
def test_the_glossary_explains_the_words_of_a_brief(case: str) -> None:
    """Every word of the field that a brief uses has a line."""
    brief = brief_of_run(run(case))
    told = " ".join([brief.answer, *(each.label for each in brief.latencies), *(each.text for each in brief.facts)])

    used = {term for term in _TERMS if re.search(rf"\b{term}\b", told)}

    assert used or case == "empty"
    assert used <= set(TERMS)


def test_the_glossary_says_each_word_once() -> None:
    """In the order of the alphabet; no word is explained and replaced at once."""
    assert len(TERMS) > 60
    assert len(REPLACED) > 15
    assert sorted(TERMS, key=str.lower) == sorted(set(TERMS), key=str.lower)
    assert not {word.lower() for word in TERMS} & {word.lower() for word in REPLACED}
