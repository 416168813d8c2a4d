"""`simserve explore`: the interactive page, served from this machine to this machine."""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simserve.cli.metrics_source import Scraping, Source
from simserve.cli.one_line import refuse_flags
from simserve.cli.options import SetOption, option, seconds_of
from simserve.cli.progress import counted, progress
from simserve.errors import InterruptedRunError, UsageError

if TYPE_CHECKING:
    from simserve.explore.queries import Check
    from simserve.explore.twin import TwinFeed

_WATCH = "5min"
_HORIZON = 86_400.0  # Seconds that the twin's forecast looks ahead.


def explore(
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("Port to listen on; 0: a free one.", min=0, max=65535)] = 8484,
    export: Annotated[
        Path | None,
        option("Write the page with precomputed answers, which needs no Python, instead of serving it.", metavar="DIR"),
    ] = None,
    force: Annotated[bool, option("With --export: write into a folder that has other files.", "--force")] = False,
    quiet: Annotated[bool, option("With --export: print errors only.", "--quiet", "-q")] = False,
    twin: Annotated[
        str | None,
        option(
            "Show a running deployment beside its simulation: saved metrics, or the address of an engine or of a "
            "Prometheus server.",
            metavar="SOURCE",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        option("With --twin: the deployment and the traffic that are expected.", "--scenario", metavar="SCENARIO"),
    ] = None,
    overrides: SetOption = None,
    watch: Annotated[
        str | None, option("With --twin and an address: repeat after this time. [default: 5min]", metavar="TIME")
    ] = None,
    interval: Annotated[
        str | None, option("With --twin and an address: time between two scrapes. [default: 15 s]", metavar="TIME")
    ] = None,
    calibrate_for: Annotated[
        str | None, option("With --twin: calibrate to this first part of what was observed.", metavar="TIME")
    ] = None,
    public: Annotated[bool, option("Allow --host to be an address that other machines can reach.", "--public")] = False,
) -> None:
    """Open the interactive page: a tour, the simulator, and what its parts do. Needs pip install 'simserve\\[explore]'.

    It is served until Ctrl-C, to this machine alone unless --public is given.

    simserve explore --export site
    """
    of_twin = {
        "--scenario": scenario,
        "--set": overrides,
        "--watch": watch,
        "--interval": interval,
        "--calibrate-for": calibrate_for,
    }
    if twin is None:
        refuse_flags(of_twin, "goes with --twin")
    elif scenario is None:
        raise UsageError("is missing", key="--scenario", remedy="name what is thought to be deployed, beside --twin")
    if export is not None:
        refuse_flags({"--watch": watch, "--interval": interval}, "is for the page that is served: leave --export out")
        feed = None if twin is None else _feed(twin, scenario or "", overrides, None, None, calibrate_for, once=True)
        _export(export, feed, force=force, quiet=quiet)
        return
    refuse_flags({"--force": force or None, "--quiet": quiet or None}, "goes with --export")
    if not _is_loopback(host) and not public:
        raise UsageError(
            "can be reached from other machines", key="--host", value=host, remedy="add --public if that is wanted"
        )
    _check_extra()
    from simserve.explore.app import create_app
    from simserve.explore.server import server

    feed = None
    if twin is not None and scenario is not None:
        feed = _feed(twin, scenario, overrides, watch, interval, calibrate_for)
    hosts = ("*",) if public else ("127.0.0.1", "localhost", "[::1]", host)
    listening = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    print(f"simserve: http://{name}:{listening.getsockname()[1]}/ (Ctrl-C ends it)", file=sys.stderr, flush=True)
    if feed is not None:
        feed.start()
    server(create_app(hosts=hosts, feed=feed)).run(sockets=[listening])


def _feed(
    source: str,
    scenario: str,
    overrides: list[str] | None,
    watch: str | None,
    interval: str | None,
    calibrate_for: str | None,
    *,
    once: bool = False,
    shown: str | None = None,
) -> TwinFeed:
    """Return the feed of a deployment: saved metrics are read once, an address repeatedly unless ``once``.

    The page shows the source as ``shown``, by default as it was given.
    """
    from simserve.cli.twin import look, looks, round_seconds
    from simserve.explore.twin import TwinFeed
    from simserve.planner.twin.answer import Twin
    from simserve.planner.twin.answer import twin as compare
    from simserve.scenario.load import load

    loaded = load(scenario, overrides or ())
    measured = 0.0 if calibrate_for is None else seconds_of(calibrate_for, "--calibrate-for")

    def what_if(last: Twin, changes: list[str], check: Check) -> Twin:
        assert last.seen is not None
        other = load(scenario, [*(overrides or ()), *changes])
        how = {"horizon": _HORIZON, "calibration": last.summary["calibration"], "progress": check}
        return compare(last.seen, source, other, **how)

    # An address may contain a password, and the page may be open to others.
    shown = shown or re.sub(r"//[^/@]*@", "//", source)
    if once or "://" not in source:
        refuse_flags({"--watch": watch, "--interval": interval}, "is for an address, not for saved metrics")
        how = Scraping(scrape_for=_WATCH if "://" in source else None)
        scrapes = Source(source, how, quiet=True).scrapes()
        only = partial(look, scrapes, source, loaded, _HORIZON, measured)
        return TwinFeed(lambda _tell: iter([only()]), source=shown, scenario=loaded.name, every=None, what_if=what_if)
    every, scraping = watch or _WATCH, Scraping() if interval is None else Scraping(interval=interval)
    seconds = round_seconds(every, scraping.interval)
    asked = partial(looks, source, every, scraping, loaded, _HORIZON, measured)
    return TwinFeed(lambda tell: asked(tell=tell), source=shown, scenario=loaded.name, every=seconds, what_if=what_if)


def _check_extra() -> None:
    try:
        import_module("uvicorn")
        import_module("starlette")
    except ImportError:
        raise UsageError(
            "needs starlette and uvicorn", key="explore", remedy="pip install 'simserve[explore]'"
        ) from None


def _export(folder: Path, feed: TwinFeed | None, *, force: bool, quiet: bool) -> None:
    """Write the pages."""
    _check_extra()
    from simserve.explore.pages import INDEX, recorded_example, write_pages

    if feed is None:
        metrics, deployed = recorded_example()
        objective = ["slo={ttft: 1 s, tpot: 100 ms}"]
        feed = _feed(str(metrics), str(deployed), objective, None, None, None, shown=metrics.parent.name)
    feed.look()

    with progress(is_shown=not quiet) as tell:
        told = (
            None if tell is None else lambda done, total: tell(done, total, "computing answers", counted(done, total))
        )
        is_whole = write_pages(folder, force=force, tell=told, twin=feed.state())
    if not is_whole:
        raise InterruptedRunError(f"interrupted; what was computed is written to {folder}")
    if not quiet:
        print(f"simserve: {folder / INDEX}", file=sys.stderr)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
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
