"""`simserve schema`."""

from __future__ import annotations

import sys
from typing import Annotated

from simserve.cli.options import option, print_json


def schema(
    _as_json: Annotated[bool, option("No effect: the schema is always JSON.", "--json")] = True,
    as_markdown: Annotated[
        bool, option("A reference page instead: type, unit, default and meaning of every key.", "--markdown")
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
