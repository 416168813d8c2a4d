"""`simserve compare`: what a change does, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.one_line import Asked, refuse_flags, takes_one_line
from simserve.cli.options import (
    HtmlOption,
    JsonOption,
    QuietOption,
    SeedOption,
    SetOption,
    VerboseOption,
    check_page,
    check_verbose,
    given_command,
    print_json,
    print_version_notes,
    set_words,
    show_brief,
)
from simserve.cli.progress import progress
from simserve.errors import InterruptedRunError, UsageError

if TYPE_CHECKING:
    from simserve.scenario.schema import Scenario


@takes_one_line()
def compare(
    context: typer.Context,
    asked: Asked,
    variants: Annotated[
        list[str],
        typer.Option("--with", metavar="'NAME: KEY=VALUE, ...'", help="A variant: what it changes; repeats."),
    ],
    overrides: SetOption = None,
    replications: Annotated[
        int | None, typer.Option(min=2, help="Runs of each. Default: 10.", show_default=False)
    ] = None,
    independent: Annotated[
        bool, typer.Option("--independent", help="Let each see requests of its own, instead of the same ones.")
    ] = False,
    seed: SeedOption = None,
    html: HtmlOption = None,
    film: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write a page that plays a run of each, on one clock.", show_default=False
        ),
    ] = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say what a change does: the differences from the scenario as it is, with 95 % intervals.

    All variants see the same requests (common random numbers), so that what differs is the change. Where the
    interval covers zero, no difference is shown.

    simserve compare chatbot --with 'bf16: deployment.quantization=none' --with 'two: deployment.replicas=2'
    """
    from simserve import api
    from simserve.planner.compare import parse_variant

    check_verbose(verbose, {"--json": as_json, "--quiet": quiet})
    check_page(html)
    if film is not None:
        check_page(film, "--film")
        refuse_flags(
            {"--film": film if independent else None}, "plays runs of the same requests", "leave --independent"
        )
    wanted: dict[str, list[str]] = {}
    for text in variants:
        name, given = parse_variant(text)
        if name in wanted:
            raise UsageError("stands twice", key="--with", value=name, remedy="give each variant a name of its own")
        wanted[name] = given
    changes = [*(overrides or ()), *([] if seed is None else [f"run.seed={seed}"])]
    loaded = asked.load(changes)
    with progress(is_shown=not quiet) as tell:
        answer = api.compare(
            loaded,
            wanted,
            replications=replications,
            independent=independent,
            progress=None if tell is None else lambda done, total: tell(done, total, "comparing"),
        )
    compared = [answer.base.scenario, *(variant.scenario for variant in answer.variants)]
    print_version_notes(compared, as_json=as_json, quiet=quiet)
    if film is not None and not answer.was_interrupted:
        _write_film(["as it is", *wanted], compared, film)
    if as_json:
        print_json(answer.summary)
    if html is not None or not (as_json or quiet):
        from simserve.report.compare import comparison_brief, render_comparison

        brief = comparison_brief(answer, (*asked.words, *set_words(changes)))
        if html is not None:
            answer.to_html(html, given_command(context), brief)
        if not (as_json or quiet):
            show_brief(brief, html, lambda out: render_comparison(answer, out), verbose=verbose)
    if answer.was_interrupted:
        done = len(answer.base.summaries)
        raise InterruptedRunError(f"interrupted; the {done} replications that were finished are compared")


def _write_film(names: Sequence[str], scenarios: Sequence[Scenario], file: Path) -> None:
    """Play one run of each deployment, of the same requests, on one clock."""
    from simserve import api
    from simserve.report.film import write_film

    runs = {name: api.run(scenario, steps=True) for name, scenario in zip(names, scenarios, strict=True)}
    write_film(runs, file, f"{scenarios[0].name}: {' and '.join(names)}")
