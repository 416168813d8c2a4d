"""`simserve diff`: what changed between two results, and whether it changed too much."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from simserve.cli.options import PAGE, Shown, argument, console, option, print_json, share, takes_flags
from simserve.errors import EXIT_DONE, EXIT_THRESHOLD_FAILED, UsageError


@takes_flags(without=PAGE)
def diff(
    first: Annotated[str, argument("A result's folder, or its result.json.", metavar="A")],
    second: Annotated[str, argument("The other result's.", metavar="B")],
    tolerance: Annotated[
        list[str] | None,
        option(
            "Most that figures may move, either way: all of them (5%), or one (p99_ttft_ms=10%); repeats.",
            metavar="SHARE|METRIC=SHARE",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        option(
            "With --tolerance: accept results that differ in this, instead of exiting with 99; repeats.",
            metavar="scenario|version",
        ),
    ] = None,
    output: Annotated[str, option("Format of the output.", "--format", metavar="text|md|json")] = "text",
    *,
    shown: Shown,
) -> None:
    """Say what moved between two results; with --tolerance, exit with 99 if a figure moved further, up or down.

    Where both results have confidence intervals, a figure must also have moved beyond them. Results of different
    scenarios, seeds or versions of simserve do not pass unless that is allowed.

    simserve diff results/before results/after --tolerance 5% --tolerance p99_ttft_ms=10%
    """
    from simserve import api

    chosen = _choice("--format", output, ("text", "md", "json"))
    allowed = [_choice("--allow", each, ("scenario", "version")) for each in allow or ()]
    overall, single = _tolerances(tolerance or ())
    found = api.diff(first, second, tolerance=overall, tolerances=single, allow=allowed)
    if shown.as_json or chosen == "json":
        print_json(found.summary)
    elif shown.is_printed:
        from simserve.report.diff import diff_markdown, render_diff

        if chosen == "md":
            sys.stdout.write(diff_markdown(found))
        else:
            render_diff(found, console())
    raise typer.Exit(EXIT_THRESHOLD_FAILED if found.has_failed else EXIT_DONE)


def _choice(key: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError("is not a choice", key=key, value=value, remedy="choose from " + ", ".join(choices))
    return value


def _tolerances(texts: list[str] | tuple[()]) -> tuple[float | None, dict[str, float]]:
    overall: float | None = None
    single: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals:
            single[name.strip()] = share(value, "--tolerance")
        else:
            overall = share(text, "--tolerance")
    return overall, single
