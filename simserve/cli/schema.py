"""`simserve schema`."""

from __future__ import annotations

from typing import Annotated

import typer

from simserve.cli.options import print_json


def schema(
    _as_json: Annotated[bool, typer.Option("--json", help="The schema is JSON with or without this.")] = True,
) -> None:
    """Print the JSON Schema of a scenario file, for editors and checks."""
    from simserve.scenario.schema import json_schema

    print_json(json_schema())
