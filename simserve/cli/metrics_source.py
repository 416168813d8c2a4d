"""Where the metrics of `simserve import metrics` and `simserve twin` come from: files, an engine or Prometheus."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

from simserve.cli.one_line import refuse_flags
from simserve.cli.options import option, seconds_of
from simserve.errors import InputError, UsageError
from simserve.observe.scrapes import PREFIXES, Scrape, in_order, read_scrapes, text_of

SHORTEST_INTERVAL = 0.5
DEFAULT_BACK = 3600.0  # Default seconds of history asked of a Prometheus server.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraping:
    """How an address is read: a group of flags of `simserve.cli.options.takes_flags`."""

    scrape_for: Annotated[
        str | None,
        option("How long to scrape an engine; for Prometheus, how far back to look.", "--for", metavar="TIME"),
    ] = None
    interval: Annotated[str, option("Time between two scrapes.", metavar="TIME")] = "15 s"
    prometheus: Annotated[bool, option("The address is a Prometheus server's.", "--prometheus")] = False
    match: Annotated[
        str, option("Series of a Prometheus server, such as 'namespace=\"chat\"'.", metavar="MATCHERS")
    ] = ""


class Source:
    """Metrics to be read.

    Args:
        source: A file, a folder or an address.
        how: How an address is read; without ``--for`` an engine is scraped once, and Prometheus asked for an hour.
        quiet: Whether no progress is shown.
        save: A file to which every scrape of an engine is added at once; None: they are not saved.
    """

    def __init__(self, source: str, how: Scraping, *, quiet: bool, save: Path | None = None) -> None:
        self.source = source
        self.is_address = "://" in source
        self.version: str | None = None
        self._for = None if how.scrape_for is None else seconds_of(how.scrape_for, "--for")
        self._interval = seconds_of(how.interval, "--interval", SHORTEST_INTERVAL)
        self._how, self._quiet, self._save = how, quiet, save
        self._kept: list[Scrape] = []
        self._missed: list[InputError] = []
        if not self.is_address:
            given = {"--for": how.scrape_for, "--prometheus": how.prometheus or None, "--match": how.match or None}
            refuse_flags(given, "is for an address, not for saved metrics")

    def scrapes(self) -> list[Scrape]:
        """Return the scrapes, by time; after Ctrl-C those of an engine up to then.

        Raises:
            UsageError: An address is invalid, or httpx is missing.
            InputError: There is nothing to read.
        """
        if not self.is_address:
            return read_scrapes(Path(self.source))
        try:
            import_module("httpx")
        except ImportError:
            raise UsageError("needs httpx", key="SOURCE", remedy="pip install 'simserve[observe]'") from None
        from simserve.observe import scraping

        with scraping.client_for(self.source) as client:
            if self._how.prometheus or not self._is_engine():
                back = self._for or DEFAULT_BACK
                asked = {"end": time.time(), "seconds": back, "step": self._interval}
                answered = scraping.query_prometheus(client, self.source, **asked, match=self._how.match)
                for scrape in answered:
                    self._add_to_file(scrape)
                return answered
            self.version = scraping.version_of(client, self.source)
            try:
                how_long = self._for or 0.0
                scraping.scrape_for(client, self.source, how_long, self._interval, self._keep, self._missed.append)
            except KeyboardInterrupt:
                if len(self._kept) < 2:
                    raise
                self._say("interrupted: going on with what was scraped")
            if self._missed:
                total = len(self._kept) + len(self._missed)
                print(f"simserve: {len(self._missed)} of {total} scrapes failed: {self._missed[-1]}", file=sys.stderr)
            return in_order(self._kept)

    def _is_engine(self) -> bool:
        """Return whether the address has an engine's metrics; a Prometheus server's own metrics do not count."""
        from simserve.observe import scraping

        with scraping.client_for(self.source) as client:
            base = self.source.rstrip("/")
            address = base if base.endswith("/metrics") else f"{base.removesuffix('/v1')}/metrics"
            if "/api/v1" in base:
                return False
            text = scraping.page(client, address)
            if any(line.startswith(PREFIXES) for line in text.splitlines()):
                return True
            if "prometheus_build_info" in text:
                return False
        raise InputError("holds no metrics of vLLM, SGLang or TensorRT-LLM", file=address)

    def _keep(self, scrape: Scrape) -> None:
        self._kept.append(scrape)
        self._add_to_file(scrape)
        if self._for is not None:
            self._say(f"{len(self._kept)} scrapes of {self.source}")

    def _add_to_file(self, scrape: Scrape) -> None:
        if self._save is not None:
            with self._save.open("a", encoding="utf-8") as file:
                file.write(text_of(scrape))

    def _say(self, line: str) -> None:
        if not self._quiet and sys.stderr.isatty():
            print(line, file=sys.stderr)
