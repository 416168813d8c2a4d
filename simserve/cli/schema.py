"""`simserve schema`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from simserve.cli.options import print_json


def schema(
    _as_json: Annotated[bool, typer.Option("--json", help="No effect: the schema is always JSON.")] = True,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="A reference page instead: type, unit, default and meaning of every key.")
    ] = False,
) -> None:
    """Print the JSON Schema of a scenario file, for editors and checks.

    simserve schema --markdown
    """
    if as_markdown:
        from simserve.scenario.reference import markdown

        sys.stdout.write(markdown())
        return
    from simserve.scenario.schema import json_schema

    print_json(json_schema())
