"""`simserve report`: the page of a run, from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from simserve.cli.options import PAGE, Shown, argument, check_page, option, print_lines, takes_flags
from simserve.errors import UsageError


@takes_flags(without=PAGE)
def report(
    folder: Annotated[Path, argument("Folder that a run wrote.", metavar="DIR", readable=False)],
    html: Annotated[
        Path | None, option("File of the page. Default: DIR/report.html.", "--html", metavar="FILE")
    ] = None,
    *,
    shown: Shown,
) -> None:
    """Write the report of a run again from its files: the same page that the run wrote.

    simserve report results/before
    """
    from simserve.metrics.files import read_result
    from simserve.report.answer import answer
    from simserve.report.html import REPORT_FILE, render_report
    from simserve.unfinished import write_text
    from simserve.version import __version__

    check_page(html)
    result = read_result(folder)
    path = html if html is not None else folder / REPORT_FILE
    try:
        write_text(path, render_report(result))
    except OSError as failure:
        raise UsageError(f"cannot be written: {failure.strerror or failure}", file=path) from None
    written_by = result.summary["simserve"]["version"]
    note = "" if written_by == __version__ else f"written by simserve {written_by}, this is {__version__}"
    shown.tell(
        {"report": str(path), "answer": answer(result), "version": written_by},
        lambda: print_lines([str(path), answer(result), *([note] if note else [])]),
    )
