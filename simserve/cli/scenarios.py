"""`simserve scenarios`: list the bundled scenarios, or print one to start from."""

from __future__ import annotations

import sys
from typing import Annotated

from simserve.cli.options import JsonOption, argument, print_json, print_table


def scenarios(
    name: Annotated[str | None, argument("Print this scenario instead of the list.", metavar="[NAME]")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the scenarios that can be run by name, or print one to start from.

    simserve scenarios chatbot > mine.yaml; simserve run mine.yaml
    """
    from simserve.scenario.load import question, scenario_names, text

    if name is not None:
        if as_json:
            print_json({"name": name, "question": question(name), "yaml": text(name)})
        else:
            sys.stdout.write(text(name))
        return
    rows = [(each, question(each)) for each in scenario_names()]
    if as_json:
        print_json({"scenarios": [{"name": each, "question": asked} for each, asked in rows]})
        return
    print_table(("scenario", "the question it answers"), rows)
