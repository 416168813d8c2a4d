"""`simserve export`: the command or the manifests that start what was simulated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.one_line import Asked
from simserve.cli.options import PAGE, SetOption, Shown, option, takes_flags, write_all

if TYPE_CHECKING:
    from simserve.planner.export.deployment import Export
    from simserve.scenario.schema import Scenario


@takes_flags(without=PAGE)
def export(
    asked: Asked,
    target: Annotated[
        str,
        option(
            "A command: vllm, sglang, trtllm, tgi, ollama. The whole deployment: k8s, keda, lws, compose, dynamo, "
            "llm-d, kserve, production-stack.",
            "--to",
            metavar="TARGET",
        ),
    ],
    out: Annotated[
        Path | None,
        option(
            "File to write, together with the files it needs and benchmark.sh, which measures the server.",
            "--out",
            metavar="FILE",
        ),
    ] = None,
    checkpoint: Annotated[str | None, option("Weights to load instead of the model's own.", metavar="ORG/NAME")] = None,
    explicit: Annotated[bool, option("Also write settings that equal the engine's defaults.", "--explicit")] = False,
    overrides: SetOption = None,
    force: Annotated[bool, option("Replace existing files.", "--force")] = False,
    *,
    shown: Shown,
) -> None:
    """Write the command that starts the server, for its engine and version, or manifests of the whole deployment.

    simserve export chatbot --to vllm --out serve.sh

    simserve export cold-start --to k8s --out cold-start.yaml
    """
    from simserve.planner.export.export import export as export_scenario

    loaded = asked.load(overrides or (), needs_traffic=False)
    with shown.misfit_printed(loaded):
        result = export_scenario(loaded, target, explicit=explicit, checkpoint=checkpoint)
    if out is not None:
        _write(result, out, _measuring(loaded, result, out, force=force), force=force)
    document = {
        "target": result.target,
        "version": result.version,
        "formats": dict(result.formats),
        "command": result.line,
        "files": dict(result.files),
        "notes": list(result.notes),
    }

    def show() -> None:
        """Print the command, with its notes where they do not interfere, or say what was written."""
        if out is None:
            print(_text(result), end="")
        else:
            print(f"{out}: {result.target}, version {result.version}")
        for note in result.notes:
            typer.echo(f"note: {note}" if out is None else f"- {note}", err=out is None)

    shown.tell(document, show)


def _text(result: Export) -> str:
    if result.main_file is not None:
        others = (f"# {name}\n{text}" for name, text in result.files.items() if name != result.main_file)
        return "---\n".join([result.files[result.main_file], *others])
    return f"{result.lines}\n" + "".join(f"\n# {name}\n{text}" for name, text in result.files.items())


def _measuring(scenario: Scenario, result: Export, out: Path, *, force: bool) -> dict[Path, str]:
    """Return the script that compares a server with its simulation, named after the export if one exists already."""
    from simserve.planner.export.benchmark import JUDGED_BY, SCRIPT, benchmark_files

    files = benchmark_files(scenario, result.checkpoint, served_name=result.served_name, port=result.port)
    is_taken = (out.parent / SCRIPT).exists() and not force
    if is_taken:
        files = {
            f"{out.stem}.{name}": text.replace(JUDGED_BY, f"{out.stem}.{JUDGED_BY}") for name, text in files.items()
        }
    return {out.parent / name: text for name, text in files.items()}


def _write(result: Export, out: Path, measuring: Mapping[Path, str], *, force: bool) -> None:
    """Write the command as a script (or the only file), the files that it reads, and the script that measures it."""
    text = "".join(f"# {note}\n" for note in result.notes)
    if result.main_file is not None:
        text += result.files[result.main_file]
    else:
        text = f"#!/bin/sh\n{text}{result.script}"
    others = {out.parent / name: each for name, each in result.files.items() if name != result.main_file}
    write_all({out: text, **others, **measuring}, force=force)
