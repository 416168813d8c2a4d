"""`simserve compare`: what a change does, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simserve.cli.one_line import Asked, refuse_flags
from simserve.cli.options import (
    SeedOption,
    SetOption,
    Shown,
    changes_of,
    check_page,
    option,
    set_words,
    takes_flags,
    variants_of,
)
from simserve.cli.progress import progress_bar
from simserve.errors import InterruptedRunError

if TYPE_CHECKING:
    from simserve.scenario.schema import Scenario


@takes_flags()
def compare(
    asked: Asked,
    variants: Annotated[
        list[str], option("A variant: what it changes; repeats.", "--with", metavar="'NAME: KEY=VALUE, ...'")
    ],
    overrides: SetOption = None,
    replications: Annotated[int | None, option("Runs of each; 5 or more give intervals. Default: 10.", min=2)] = None,
    independent: Annotated[
        bool, option("Give each variant its own requests, instead of the same ones.", "--independent")
    ] = False,
    seed: SeedOption = None,
    film: Annotated[
        Path | None, option("Also write a page that plays a run of each variant, side by side.", metavar="FILE")
    ] = None,
    *,
    shown: Shown,
) -> None:
    """Say what a change does: the differences from the scenario as it is, with 95% intervals.

    All variants get the same requests (common random numbers), so that any difference comes from the change. If the
    interval includes zero, no difference has been shown.

    simserve compare chatbot --with 'bf16: deployment.quantization=none' --with 'two: deployment.replicas=2'
    """
    from simserve import api

    shown.check()
    if film is not None:
        check_page(film, "--film")
        refuse_flags(
            {"--film": film if independent else None}, "plays runs of the same requests", "leave --independent"
        )
    wanted = variants_of(variants)
    changes = changes_of(overrides, seed)
    loaded = asked.load(changes, quiet=shown.quiet)
    with shown.misfit_printed(loaded), progress_bar(is_shown=not shown.quiet, label="comparing", noun=" runs") as tell:
        answer = api.compare(loaded, wanted, replications=replications, independent=independent, progress=tell)
    compared = [answer.base.scenario, *(variant.scenario for variant in answer.variants)]
    shown.notes(*compared)
    if film is not None and not answer.was_interrupted:
        _write_film(["as it is", *wanted], compared, film)
    from simserve.report.compare import comparison_brief, render_comparison

    shown.answer(
        answer.summary,
        lambda: comparison_brief(answer, (*asked.words, *set_words(changes))),
        answer.to_html,
        lambda out: render_comparison(answer, out),
    )
    if answer.was_interrupted:
        done = len(answer.base.summaries)
        raise InterruptedRunError(f"interrupted; the {done} replications that were finished are compared")


def _write_film(names: Sequence[str], scenarios: Sequence[Scenario], file: Path) -> None:
    """Write a film of one run of each deployment, with the same requests, on one clock."""
    from simserve import api
    from simserve.report.film import write_film

    runs = {name: api.run(scenario, steps=True) for name, scenario in zip(names, scenarios, strict=True)}
    write_film(runs, file, f"{scenarios[0].name}: {' and '.join(names)}")
