"""The reference page: every key of the schema, as a file would say it, and the committed page is what is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.scenario.reference import markdown
from simserve.scenario.schema import json_schema

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "scenario-keys.md"


def section(title: str) -> dict[str, list[str]]:
    """Return the rows under a heading, by key."""
    part = markdown().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in part.splitlines() if "| " in line]
    return {cells[0].strip("`"): cells[1:] for cells in rows if len(cells) == 4}


def test_the_committed_page_is_what_is_printed() -> None:
    """Written anew with: simserve schema --markdown > docs/scenario-keys.md"""
    assert _PAGE.read_text(encoding="utf-8") == markdown()


def test_every_key_of_the_schema_is_there() -> None:
    """Each definition has a section with just its keys, and each key says what it means."""
    schema = json_schema()
    page = markdown()
    tables = [
        {cells.split("`")[1] for cells in part.splitlines() if cells.startswith("| `")} for part in page.split("\n## ")
    ]

    for definition in (schema, *schema["$defs"].values()):
        assert set(definition["properties"]) in tables, definition["title"]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert all(not line.endswith("|  |") for line in rows)
    assert len(rows) == sum(len(each["properties"]) for each in (schema, *schema["$defs"].values()))


@pytest.mark.parametrize(
    ("title", "key", "kind", "default"),
    [
        ("`deployment`", "replicas", "integer, from 1 to 10,000", "`1`"),
        ("`deployment`", "hardware", "text", "required"),
        ("`deployment.autoscaling.startup`", "load_bandwidth", "text: bandwidth", '`"2 GB/s"`'),
        ("`deployment.autoscaling`", "stabilization", "text: time", '`"300 s"`'),
        ("`workload.arrivals, process: poisson`", "rate", "number, above 0", "required"),
        ("`deployment.engine`", "swap_space", "text: bytes", "absent"),
        ("`slo`", "attainment", "number, above 0 to 1", "`0.95`"),
        ("`deployment.engine`", "batching", "`continuous`, `static`", "absent"),
    ],
)
def test_a_row_says_type_unit_and_default(title: str, key: str, kind: str, default: str) -> None:
    """As the file would say them."""
    assert section(title)[key][:2] == [kind, default]


def test_links_lead_to_a_heading() -> None:
    """As GitHub names the anchors of headings."""
    page = markdown()
    headings = re.findall(r"^## (.*)$", page, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    links: list[Any] = re.findall(r"\]\(#([^)]*)\)", page)

    assert len(links) > 40
    assert set(links) <= anchors
    assert len(set(headings)) == len(headings)


def test_an_example_shows_keys_of_its_section() -> None:
    """Most sections have one, of their own kind."""
    shown = 0
    for part in markdown().split("\n## ")[2:]:
        path, _, tag = part.splitlines()[0].strip("`").partition(", ")
        example = re.search(r"^From `[a-z0-9-]+`:\n\n```yaml\n(.*?)```", part, re.M | re.S)
        value = at(yaml.safe_load(example[1]), path) if example else None
        if value is None:  # none, or of another place where the mapping may stand
            continue
        shown += 1
        assert set(value) <= {line.split("`")[1] for line in part.splitlines() if line.startswith("| `")}
        assert not tag or value[tag.split(": ")[0]] == tag.split(": ")[1]

    assert shown > 35


def at(value: Any, path: str) -> Any:
    """Return what stands at a path of an example; None where nothing does."""
    for step in re.findall(r"\[\]|[^.\[\]]+", path):
        value = (value or [None])[0] if step == "[]" else (value or {}).get(step)
    return value
