"""`simserve verify`: the fast plane against the reference, on the same requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.one_line import Asked
from simserve.cli.options import PAGE, SetOption, Shown, option, takes_flags
from simserve.errors import EXIT_DONE, EXIT_THRESHOLD_FAILED

if TYPE_CHECKING:
    from simserve.scenario.verify import Verification

_MOST_LINES = 5


@takes_flags(without=("num_requests", *PAGE))
def verify(
    asked: Asked,
    num_requests: Annotated[
        int | None,
        option("Requests to compare. Absent: all, or the first 500, or those that generate 50,000 tokens.", min=1),
    ] = None,
    overrides: SetOption = None,
    accelerate: Annotated[
        str, option("Whether the kernel runs compiled; needs simserve\\[fast].", metavar="auto|on|off")
    ] = "auto",
    *,
    shown: Shown,
) -> None:
    """Run a scenario twice, fast and step by step in plain SimPy, and compare every request.

    Exits with 0 if every request got the same times, to a billionth, and with 99 if any did not. A scenario that plain
    SimPy does not cover is refused. Of a long run only the first requests are compared, in whole conversations; the
    first line says how many.

    simserve verify chatbot --num-requests 300
    """
    from simserve import api

    loaded = asked.load(overrides or (), quiet=shown.quiet)
    with shown.misfit_printed(loaded):
        found = api.verify(loaded, num_requests=num_requests, accelerate=accelerate)  # type: ignore[arg-type]
    shown.tell(found.figures, lambda: _render(found))
    raise typer.Exit(EXIT_DONE if found.is_equal else EXIT_THRESHOLD_FAILED)


def _render(found: Verification) -> None:
    from simserve.scenario.formats import formats_line

    gap = found.largest_difference
    apart = f"{gap:.2g} s" if math.isfinite(gap) else "an undefined amount: one of the two has none"
    if found.requests < found.drawn:
        print(f"compared the first {found.requests:,} of {found.drawn:,} requests; --num-requests N compares others")
    count = f"{found.requests - len(found.differing):,} of {found.requests:,} requests are the same in both"
    print(f"{count}; times differ by at most {apart}")
    print(formats_line(found.formats))
    for index, columns in list(found.differing.items())[:_MOST_LINES]:
        print(f"  request {index}: {', '.join(columns)}")
