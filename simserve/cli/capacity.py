"""`simserve capacity`: the highest load at which the SLO holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.one_line import Asked
from simserve.cli.options import SeedOption, SetOption, Shown, changes_of, option, set_words, share, takes_flags
from simserve.cli.progress import progress
from simserve.errors import InfeasibleError, InterruptedRunError

if TYPE_CHECKING:
    from simserve.report.brief import Brief

_DOING = "looking for the highest load"


class SoFar:
    """The range that runs have left: the highest load that holds, and the lowest above it that does not.

    A load holds if half of its longest runs held, and no longer ones failed at that load or a lower one.
    """

    def __init__(self) -> None:
        self._runs: dict[float, dict[int, list[bool]]] = {}

    def take(self, load: float, num_requests: int, is_held: bool) -> None:
        """Take a run's load, its requests, and whether the run held the objective."""
        self._runs.setdefault(load, {}).setdefault(num_requests, []).append(is_held)

    def __str__(self) -> str:
        longest = {load: max(runs) for load, runs in self._runs.items()}
        missed = {load for load, runs in self._runs.items() if 2 * sum(last := runs[longest[load]]) < len(last)}
        held = max(
            (
                load
                for load in longest.keys() - missed
                if not any(below < load and longest[below] > longest[load] for below in missed)
            ),
            default=0.0,
        )
        above = min((load for load in missed if load > held), default=None)
        told = [f"{held:.4g} held"] if held else []
        told += [] if above is None else [f"{above:.4g} missed"]
        return f"; so far {', '.join(told)}" if told else ""


@takes_flags()
def capacity(
    asked: Asked,
    overrides: SetOption = None,
    highest: Annotated[float | None, option("Highest rate (or number of clients) to try.", "--max")] = None,
    precision: Annotated[
        float | None,
        option(
            "Add requests until the interval is this narrow, such as 1%. Default: 2% in a short search.",
            metavar="SHARE",
            parser=lambda text: share(text, "--precision"),
        ),
    ] = None,
    replications: Annotated[int | None, option("Independent runs a load. Default: 8, or 6.", min=2)] = None,
    requests: Annotated[
        int | None, option("Requests a run. Default: as many as it takes.", "--requests", min=1)
    ] = None,
    seed: SeedOption = None,
    *,
    shown: Shown,
) -> None:
    """Find the highest rate, or number of clients in a closed loop, at which the SLO holds, and what breaks first.

    For steady traffic it is a rate that 95% of fresh runs meet, each of at least 30,000 requests. Every load sees the
    same requests, with the gaps between them stretched to the rate. Exits with 3 if the SLO holds at no load. Ctrl-C
    ends the search and prints what it has found so far (105).

    simserve capacity chatbot

    simserve capacity chatbot --set deployment.replicas=2 --precision 1%

    simserve capacity Qwen/Qwen3-32B --gpus 2xH100 --prompt-tokens 2k --output-tokens 500 --slo 'ttft=1.5s,tpot=50ms'
    """
    from simserve import api

    shown.check()
    changes = changes_of(overrides, seed)
    question = asked.question(changes, quiet=shown.quiet, needs_load=False)
    loaded = question.scenario
    shown.notes(loaded)
    so_far = SoFar()
    with shown.misfit_printed(loaded), progress(is_shown=not shown.quiet, label=_DOING) as tell:
        answer = api.capacity(
            loaded,
            highest=highest,
            precision=precision,
            replications=replications,
            num_requests=requests,
            progress=None
            if tell is None
            else lambda done, load: tell(done, None, _DOING, f"run {done + 1}, at {load:.4g}{so_far}"),
            tried=so_far.take,
        )
    from simserve.report.capacity import capacity_brief, render_capacity

    cut: list[KeyboardInterrupt] = []

    def brief() -> Brief:
        try:
            return capacity_brief(answer, (*asked.words, *set_words(changes)), has_load=question.has_load)
        except KeyboardInterrupt as interrupt:
            cut.append(interrupt)
            return capacity_brief(answer, is_deployed=False)

    shown.answer(answer.summary, brief, answer.to_html, lambda out: render_capacity(answer, out))
    if answer.was_interrupted:
        found = "what was found until then" if answer.found.is_complete else "what the runs until then have shown"
        raise InterruptedRunError(f"interrupted; the answer is {found}")
    if cut:
        raise InterruptedRunError("interrupted; the answer is complete, the run of the deployment is missing")
    if not answer.found.largest.value:
        raise typer.Exit(InfeasibleError.exit_code)
