"""`simserve twin`: a running deployment beside its simulation, and the hours to come."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from simserve.cli.metrics_source import Scraping, Source
from simserve.cli.options import (
    PAGE,
    SetOption,
    Shown,
    argument,
    make_folder,
    option,
    print_lines,
    print_table,
    seconds_of,
    takes_flags,
)
from simserve.errors import EXIT_THRESHOLD_FAILED, InputError, InterruptedRunError, UsageError

if TYPE_CHECKING:
    from simserve.observe.scrapes import Scrape
    from simserve.planner.twin.answer import Twin
    from simserve.scenario.schema import Scenario

_SHORTEST_ROUND = 5.0
_FEWEST_SCRAPES = 5
_SCRAPES = "scrapes.prom"
_KEPT_SECONDS = 86_400.0 * 3  # How far back `--watch` keeps scrapes, seconds.
_CLIENT_SECONDS = 10.0  # How long a client may take to send its request, seconds.
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"
_LARGEST_PORT = 65_535
LOOPBACK = "127.0.0.1"


@takes_flags(without=PAGE)
def twin(
    source: Annotated[
        str,
        argument(
            "Saved scrapes, a file or a folder; the answer of a Prometheus server; or the address of an engine "
            "or of a Prometheus server.",
            metavar="SOURCE",
        ),
    ],
    scenario: Annotated[
        str, option("The deployment and the traffic that are expected.", "--scenario", metavar="SCENARIO")
    ],
    overrides: SetOption = None,
    *,
    scraping: Scraping,
    horizon: Annotated[str, option("How far ahead to forecast; 0: not at all.", metavar="TIME")] = "24 h",
    calibrate_for: Annotated[
        str | None,
        option("Calibrate to this first part of what was observed, and compare the rest with that.", metavar="TIME"),
    ] = None,
    once: Annotated[
        bool, option("Exit with 99 if it has drifted; with --watch, in the first round in which it has.", "--once")
    ] = False,
    watch: Annotated[
        str | None, option("Repeat after this time, one line a round, until Ctrl-C.", metavar="TIME")
    ] = None,
    metrics_address: Annotated[
        str | None,
        option(
            "With --watch: serve the last round's figures at /metrics, for Prometheus. Without HOST, to this "
            "machine alone.",
            metavar="[HOST:]PORT",
        ),
    ] = None,
    out: Annotated[Path | None, option("Folder for twin.json, and for what is scraped.", metavar="DIR")] = None,
    force: Annotated[bool, option("Replace existing files.", "--force")] = False,
    shown: Shown,
) -> None:
    """Compare a running deployment with its simulation, figure by figure, and say what the coming hours need.

    Simulates the scenario's deployment under the traffic that came, and tests whether that is still the traffic of the
    scenario: a false alarm comes no more often than once in 30 days on average. An address needs pip install
    'simserve\\[observe]'; a server that asks for a key gets the environment's SIMSERVE_METRICS_TOKEN.

    simserve twin http://localhost:8000/metrics --scenario observed.yaml --for 10min --once
    """
    from simserve.scenario.load import load

    if metrics_address is not None and watch is None:
        raise UsageError(
            "serves what --watch finds", key="--metrics-address", remedy="add --watch, such as --watch 5min"
        )
    measured = 0.0 if calibrate_for is None else seconds_of(calibrate_for, "--calibrate-for")
    ahead = 0.0 if horizon.strip() in ("0", "0s", "0 s") else seconds_of(horizon, "--horizon")
    loaded = load(scenario, overrides or ())
    if out is not None:
        make_folder(out, ["twin.json", *([_SCRAPES] if "://" in source else [])], force=force)
    if watch is not None:
        if shown.as_json:
            raise UsageError("prints one object", key="--json", remedy="use it without --watch")
        rounds = looks(source, watch, scraping, loaded, ahead, measured, save=_scrapes_file(out, source))
        with contextlib.ExitStack() as stack:
            page = None
            if metrics_address is not None:
                page = stack.enter_context(MetricsEndpoint(metrics_address))
                print_lines([f"metrics at {page.url}"])
            _watch(rounds, page, out, until_drift=once)
        return
    found = Source(source, scraping, quiet=not shown.is_printed, save=_scrapes_file(out, source))
    with shown.misfit_printed(loaded):
        answer = look(found.scrapes(), source, loaded, ahead, measured)
    if out is not None:
        _write(out, answer)
    shown.tell(answer.summary, lambda: _render(answer))
    if once and answer.has_drifted:
        raise typer.Exit(EXIT_THRESHOLD_FAILED)


def look(scrapes: list[Scrape], source: str, scenario: Scenario, horizon: float, measured: float) -> Twin:
    """Return how scrapes compare with the scenario."""
    from simserve.observe.windows import observed
    from simserve.planner.twin.answer import twin as compare

    seen = observed(scrapes, source)
    return compare(seen, source, scenario, horizon=horizon, calibrate_for=measured)


def _scrapes_file(out: Path | None, source: str) -> Path | None:
    """Return the file to which scrapes of an address are added, emptied; None if none are kept."""
    if out is None or "://" not in source:
        return None
    file = out / _SCRAPES
    file.write_text("", encoding="utf-8")
    return file


def _write(out: Path, answer: Twin) -> None:
    from simserve.metrics.summary import in_json

    text = json.dumps(in_json(answer.summary), indent=2, allow_nan=False) + "\n"
    (out / "twin.json").write_text(text, encoding="utf-8")


def _watch(looks: Iterator[Twin], page: MetricsEndpoint | None, out: Path | None, *, until_drift: bool) -> None:
    """Print a line per round, serve its figures on a page, and write the last answer.

    Raises:
        InterruptedRunError: On Ctrl-C.
        Exit: With code 99 at the first drift, if asked for.
    """
    from simserve.planner.twin.answer import gauges_of

    try:
        for answer in looks:
            print(_line(answer), flush=True)
            if out is not None:
                _write(out, answer)
            if page is not None:
                page.show(gauges_of(answer.summary))
            if until_drift and answer.has_drifted:
                raise typer.Exit(EXIT_THRESHOLD_FAILED)
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted") from None


def round_seconds(every: str, interval: str) -> float:
    """Return how long a round of ``--watch`` lasts.

    Raises:
        UsageError: It is too short for the scrapes that one comparison needs.
    """
    seconds = seconds_of(every, "--watch", _SHORTEST_ROUND)
    if seconds < _FEWEST_SCRAPES * seconds_of(interval, "--interval"):
        rule = f"must be at least {_FEWEST_SCRAPES} times --interval"
        raise UsageError(rule, key="--watch", value=every, remedy=f"for example --interval '{seconds / 10:g} s'")
    return seconds


def _on_stderr(words: str) -> None:
    typer.echo(f"simserve: {words}", err=True)


def looks(
    source: str,
    every: str,
    scraping: Scraping,
    scenario: Scenario,
    horizon: float,
    measured: float,
    *,
    save: Path | None = None,
    tell: Callable[[str], None] = _on_stderr,
) -> Iterator[Twin]:
    """Return comparisons, one ``every`` so often, without end; earlier scrapes of an engine are kept.

    A round in which the source does not answer is reported, by default on stderr, and skipped; only in the first round
    is that an error.

    Raises:
        UsageError: ``every`` is too short for the scrapes that one comparison needs.
    """
    seconds = round_seconds(every, scraping.interval)
    how = replace(scraping, scrape_for=every if "://" in source else None)

    def each_round() -> Iterator[Twin]:
        from simserve.observe.scrapes import in_order

        kept: list[Scrape] = []
        while True:
            start = time.monotonic()
            found = Source(source, how, quiet=True, save=save)
            try:
                scrapes = found.scrapes()
            except InputError as failure:
                if not kept:
                    raise
                tell(str(failure))
            else:
                kept = in_order([*kept, *scrapes]) if found.is_address else scrapes
                last = kept[-1].time or 0.0
                kept = [each for each in kept if (each.time or 0.0) >= last - _KEPT_SECONDS]
                yield look(kept, source, scenario, horizon, measured)
            time.sleep(max(start + seconds - time.monotonic(), 0.0))

    return each_round()


def _line(answer: Twin) -> str:
    summary = answer.summary
    outside = [name for name, row in summary["drift"].items() if row["inside"] is False]
    rate = summary["observed"]["rate"]
    hours = [row for row in summary["forecast"] if row["replicas"] is not None]
    needs = f"; {hours[0]['replicas']} replicas in the next hour" if hours else ""
    state = f"drift: {', '.join(outside)}" if outside else "as predicted"
    return f"{_clock(summary['stretch']['end_s'])} {rate:.4g} requests/s, {state}{needs}"


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _render(answer: Twin) -> None:
    from simserve.scenario.formats import formats_line

    summary = answer.summary
    stretch = summary["stretch"]
    print_lines(
        [
            _verdict(summary),
            f"{_clock(stretch['start_s'])} to {_clock(stretch['end_s'])}, {stretch['windows']} windows",
            f"simulated with {formats_line(summary['formats'])}",
        ]
    )
    rows = [
        (
            name,
            _figure(summary["observed"][name]),
            _figure(summary["predicted"][name]),
            _figure(row["ratio"]),
            "-"
            if row["interval"] is None
            else " to ".join((f"{end:,.0f}" if end >= 1000 else f"{end:.3g}") for end in row["interval"]),
            {True: "yes", False: "NO", None: "-"}[row["inside"]],
            "-" if row["since_s"] is None else _clock(row["since_s"]),
        )
        for name, row in summary["drift"].items()
    ]
    header = ("figure", "observed", "predicted", "ratio", "expected within", "as predicted", "differs since")
    note = (
        "Traffic is predicted by the scenario, the rest by its deployment under the traffic that came. While traffic "
        "is as the scenario says, a false alarm comes no more often than once in "
        f"{summary['false_alarms']['mean_days_between']:.0f} days on average."
    )
    print_table(header, rows, note)
    if summary["calibration"]:
        factors = ", ".join(f"{name} x {_figure(factor)}" for name, factor in summary["calibration"]["factors"].items())
        until = _clock(summary["calibration"]["end_s"])
        before = "compared with the simulation times the factors seen before"
        print_lines([f"Latencies are those after {until}, {before}: {factors}."])
    if summary["forecast"]:
        print_lines(["Forecast:"])
        hours = [
            (
                _clock(row["start_s"]),
                _figure(row["rate"]),
                f"{_figure(row['low'])} to {_figure(row['high'])}",
                _figure(row["replicas"]),
            )
            for before, row in zip([None, *summary["forecast"]], summary["forecast"], strict=False)
            if before is None or row["replicas"] != before["replicas"]
        ]
        columns = ("from", "requests/s", "90 % within", "replicas")
        print_table(columns, hours, "Hours that need the same number of replicas share a line.")
    print_lines(summary["notes"])


def _verdict(summary: Mapping[str, Any]) -> str:
    """Return what is not as predicted, with both figures, or that everything judged is."""
    outside = [
        f"{name} ({_figure(summary['observed'][name])} observed, {_figure(summary['predicted'][name])} predicted)"
        for name, row in summary["drift"].items()
        if row["inside"] is False
    ]
    return f"Not as predicted: {', '.join(outside)}." if outside else "Every figure that is judged is as predicted."


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class MetricsEndpoint:
    """Serves one page from its own thread while the block runs; the page is empty until the first `show`.

    Args:
        address: ``PORT`` or ``HOST:PORT``; without a host, only for this machine. Port 0 is any free port.

    Raises:
        UsageError: The address is invalid, or its port cannot be opened.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > _LARGEST_PORT:
            rule = "must be PORT or HOST:PORT"
            raise UsageError(rule, key="--metrics-address", value=address, remedy="for example 9464")
        endpoint = self
        self._page = b""

        class Handler(BaseHTTPRequestHandler):
            timeout = _CLIENT_SECONDS

            def do_GET(self) -> None:
                is_there = self.path.partition("?")[0] == "/metrics"
                body = endpoint._page if is_there else b""
                self.send_response(HTTPStatus.OK if is_there else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", _CONTENT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing: there is only one line per round."""

        try:
            self._server = ThreadingHTTPServer((host.strip("[]") or LOOPBACK, int(port)), Handler)
        except OSError as failure:
            rule = f"cannot be listened at: {failure.strerror}"
            raise UsageError(rule, key="--metrics-address", value=address, remedy="choose another port") from None
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def show(self, text: str) -> None:
        """Put a text on the page."""
        self._page = text.encode()

    def __enter__(self) -> Self:
        """Start to serve."""
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop to serve."""
        self._server.shutdown()
        self._server.server_close()
