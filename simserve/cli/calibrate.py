"""`simserve calibrate`: the commands that bring the model to your own GPU. Knows their names only."""

from __future__ import annotations

import typer

from simserve.cli import calibrate_check, calibrate_fit, calibrate_kernels, calibrate_loads, calibrate_serving

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
app.command("loads")(calibrate_loads.loads)
app.command("serving")(calibrate_serving.serving)
app.command("check")(calibrate_check.check)
