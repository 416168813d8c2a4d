"""`simserve calibrate`: the commands that bring the model to your own GPU. Knows their names only."""

from __future__ import annotations

import typer

from simserve.cli import calibrate_fit, calibrate_kernels

app = typer.Typer(
    help="Bring the model to your own GPU: measure kernels, fit curves, compare with servers, gate drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _calibrate() -> None:
    pass


app.command("kernels")(calibrate_kernels.kernels)
app.command("fit")(calibrate_fit.fit)
# One line a command, each from a module of its own: app.command("NAME")(calibrate_NAME.NAME)
