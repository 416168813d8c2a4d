"""`simserve explore`: the page to play with, served from this machine to this machine."""

from __future__ import annotations

import ipaddress
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from simserve.cli.one_line import refuse_flags
from simserve.cli.options import QuietOption
from simserve.cli.progress import progress
from simserve.errors import InterruptedRunError, UsageError


def explore(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8484,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Serve nothing: write the page with answers computed in advance, which opens without Python.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --export: write beside other files.")] = False,
    quiet: QuietOption = False,
    public: Annotated[
        bool, typer.Option("--public", help="Allow an address that other machines reach: anybody there may ask.")
    ] = False,
) -> None:
    """Open a page to play with: a serving simulator, and what its parts do. Needs the extra ``explore``.

    It is served until Ctrl-C, to this machine alone unless --public is given.

    simserve explore --export site
    """
    if export is not None:
        _export(export, force=force, quiet=quiet)
        return
    refuse_flags({"--force": force or None, "--quiet": quiet or None}, "goes with --export")
    if not _is_loopback(host) and not public:
        raise UsageError(
            "can be reached from other machines", key="--host", value=host, remedy="add --public if that is wanted"
        )
    _check_extra()
    from simserve.explore.app import create_app
    from simserve.explore.server import server

    hosts = ("*",) if public else ("127.0.0.1", "localhost", "[::1]", host)
    listening = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    print(f"simserve: http://{name}:{listening.getsockname()[1]}/ (Ctrl-C ends it)", file=sys.stderr, flush=True)
    server(create_app(hosts=hosts)).run(sockets=[listening])


def _check_extra() -> None:
    try:
        import_module("uvicorn")
        import_module("starlette")
    except ImportError:
        raise UsageError(
            "needs starlette and uvicorn", key="explore", remedy="pip install 'simserve[explore]'"
        ) from None


def _export(folder: Path, *, force: bool, quiet: bool) -> None:
    """Write the pages.

    Raises:
        InterruptedRunError: Ctrl-C; what was computed is written.
    """
    _check_extra()
    from simserve.explore.pages import INDEX, write_pages

    with progress(is_shown=not quiet) as tell:
        told = None if tell is None else lambda done, total: tell(done, total, "computing answers")
        is_whole = write_pages(folder, force=force, tell=told)
    if not is_whole:
        raise InterruptedRunError(f"interrupted; what was computed is written to {folder}")
    if not quiet:
        print(f"simserve: {folder / INDEX}", file=sys.stderr)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as failure:
        listening.close()
        reason = failure.strerror or str(failure)
        raise UsageError(
            f"cannot be listened on: {reason}", key="--port", value=port, remedy="choose another, or 0 for a free one"
        ) from None
    return listening
