"""`simserve sweep`: a table over a grid."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from simserve.cli.one_line import Asked
from simserve.cli.options import SeedOption, SetOption, Shown, changes_of, console, option, print_json, takes_flags
from simserve.cli.progress import progress_bar
from simserve.errors import InterruptedRunError, UsageError


@takes_flags(without=("verbose",))
def sweep(
    asked: Asked,
    grid: Annotated[
        list[str],
        option(
            "A key and its values, or a range FIRST:LAST:STEP; repeats: every combination is run.",
            "--grid",
            metavar="KEY=V1,V2",
        ),
    ],
    out: Annotated[Path, option("File of the table: Parquet, or CSV (X.csv).", "--out", metavar="X.parquet")],
    overrides: SetOption = None,
    sample: Annotated[int | None, option("Run only this many points of the grid, drawn at random.", min=1)] = None,
    workers: Annotated[int | None, option("Processes on this machine. Default: one a core.", min=1)] = None,
    backend: Annotated[
        str, option("Where the points run: on this machine, or on a cluster.", metavar="auto|loky|dask|ray")
    ] = "auto",
    scheduler: Annotated[str | None, option("Address of the Dask scheduler or Ray cluster.", metavar="ADDRESS")] = None,
    seed: SeedOption = None,
    force: Annotated[bool, option("Replace the table of another sweep.", "--force")] = False,
    *,
    shown: Shown,
) -> None:
    """Run every combination of the given values, and write a table with a row each: the figures, or why there are none.

    Finished points are kept beside the table, and the same command continues where an interrupted one stopped. The
    table is the same to the byte on any number of workers and on every backend.

    simserve sweep chatbot --grid workload.arrivals.rate=4,8,12 --grid deployment.replicas=1,2 --out chatbot.parquet

    simserve sweep chatbot --grid workload.arrivals.rate=1:12:0.5 --out rates.parquet
    """
    from simserve import api
    from simserve.planner.sweep.sweep import parse_grid

    shown.check()
    if scheduler is not None and workers is not None:
        raise UsageError("has no meaning with --scheduler: a cluster has its own", key="--workers")
    loaded = asked.load(changes_of(overrides, seed), quiet=shown.quiet)
    shown.notes(loaded)
    with progress_bar(is_shown=not shown.quiet, label="sweep", noun=" points") as tell:
        answer = api.sweep(
            loaded,
            parse_grid(grid),
            sample=sample,
            out=out,
            force=force,
            workers=workers or os.cpu_count() or 1,
            backend=backend,
            scheduler=scheduler,
            progress=tell,
        )
    shown.write_page(answer.to_html)
    if shown.as_json:
        print_json(answer.summary)
    elif not shown.quiet:
        from simserve.report.sweep import render_sweep

        render_sweep(answer, console(), out)
    if answer.was_interrupted:
        kept = f"{len(answer.rows)} of {answer.num_points} points are kept in {out}.partial"
        raise InterruptedRunError("interrupted", remedy=f"{kept}; the same command goes on from there")
