"""Scrapes of a live server or of a Prometheus server, only by GET, bounded in bytes and in time.

A key is taken from the environment (`TOKEN_VARIABLE`), sent as a bearer token only to the given address, and never
written: redirects are not followed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from simserve.errors import InputError
from simserve.observe.scrapes import MOST_SCRAPES, Scrape, in_order, scrapes_of
from simserve.observe.target import LARGEST_PAGE, PAGE_SECONDS, is_this_machine, trusted_authorities, url_of
from simserve.observe.windows import COUNTERS, GAUGES, HISTOGRAMS

TOKEN_VARIABLE = "SIMSERVE_METRICS_TOKEN"  # Environment variable with the bearer token of a server that requires one.
LARGEST_ANSWER = 64_000_000  # Most bytes of an answer of Prometheus that are read.
ANSWER_SECONDS = 60.0

SHORTEST_STEP = 1.0
_STEPS_A_QUERY = 400
"""Steps per query: Prometheus refuses more than 11,000 points per series; fewer keep an answer small."""


@contextmanager
def client_for(url: str) -> Iterator[httpx.Client]:
    """Yield an HTTP client for a server.

    Raises:
        UsageError: It is not an address, or it contains a password.
    """
    url_of(url, example="http://localhost:8000/metrics", secret=f"put the token into {TOKEN_VARIABLE}")
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(
        headers=headers, trust_env=not is_this_machine(url), timeout=PAGE_SECONDS, verify=trusted_authorities(url)
    ) as client:
        yield client


def page(
    client: httpx.Client,
    url: str,
    params: dict[str, str] | None = None,
    *,
    most: int = LARGEST_PAGE,
    seconds: float = PAGE_SECONDS,
) -> str:
    """Return the text of a page.

    Raises:
        InputError: There is no answer, or it is late, too large, or an error.
    """
    body = bytearray()
    until = time.monotonic() + seconds
    try:
        with client.stream("GET", url, params=params) as response:
            if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise InputError("asks for a key", file=url, remedy=f"put a bearer token into {TOKEN_VARIABLE}")
            is_told = url.endswith("query_range") and response.status_code < httpx.codes.INTERNAL_SERVER_ERROR
            if response.status_code != httpx.codes.OK and not is_told:
                raise InputError(f"answers {response.status_code}", file=url)
            for piece in response.iter_bytes():
                body += piece
                if len(body) > most:
                    raise InputError(f"answers with more than {most // 10**6} MB", file=url)
                if time.monotonic() > until:
                    raise InputError(f"has not ended its answer after {seconds:.0f} s", file=url)
    except httpx.TimeoutException:
        raise InputError(f"does not answer within {PAGE_SECONDS:.0f} s", file=url) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as failure:
        raise InputError(f"does not answer: {type(failure).__name__}", file=url) from None
    return body.decode("utf-8", errors="replace")


def scrape_now(client: httpx.Client, url: str) -> Scrape:
    """Return the current content of a server's page; ``/metrics`` is appended to an address that lacks it.

    Raises:
        InputError: It does not answer, or has no metrics of an engine.
    """
    now = time.time()
    address = (
        url.rstrip("/") if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/').removesuffix('/v1')}/metrics"
    )
    return scrapes_of(page(client, address), address, now)[-1]


def scrape_for(
    client: httpx.Client,
    url: str,
    seconds: float,
    interval: float,
    keep: Callable[[Scrape], None],
    miss: Callable[[InputError], None],
) -> None:
    """Scrape a server for a time, to its end whatever it answers meanwhile: later counters include what was missed.

    Args:
        interval: Between two scrapes, seconds.
        keep: Called with every scrape.
        miss: Called with the reason of a failed scrape; what it raises ends the scraping.

    Raises:
        InputError: The first scrape failed.
    """
    start = time.monotonic()
    count = 0
    while True:
        try:
            keep(scrape_now(client, url))
        except InputError as failure:
            if not count:
                raise
            miss(failure)
        # Slow answers and slow failures do not extend the total time.
        count = max(count + 1, math.ceil((time.monotonic() - start) / interval))
        if count * interval > seconds or count > MOST_SCRAPES:
            return
        time.sleep(max(start + count * interval - time.monotonic(), 0.0))


def version_of(client: httpx.Client, url: str) -> str | None:
    """Return the version that vLLM reports at ``/version`` beside a page of metrics; None if it reports none."""
    base = url.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    try:
        text = page(client, f"{base}/version")
    except InputError:
        return None
    found = text.partition('"version"')[2].split('"')
    return found[1] if len(found) > 2 and found[1].isprintable() and 0 < len(found[1]) < 100 else None


def query_prometheus(
    client: httpx.Client, url: str, *, end: float, seconds: float, step: float, match: str = ""
) -> list[Scrape]:
    """Return a Prometheus server's data on an engine's metrics, by ``/api/v1/query_range``.

    Args:
        end: Last time, seconds since 1970.
        seconds: How far back to go.
        step: Seconds between two figures.
        match: Further matchers for the series, such as ``namespace="chat"``.

    Raises:
        InputError: It does not answer, refuses, or has no such metrics.
    """
    step = max(step, SHORTEST_STEP, seconds / MOST_SCRAPES)
    address = f"{url.rstrip('/').removesuffix('/api/v1')}/api/v1/query_range"
    matchers = f'__name__=~"{_names()}"' + (f",{match}" if match else "")
    found: list[Scrape] = []
    at = end - seconds
    while at <= end:
        last = min(at + step * (_STEPS_A_QUERY - 1), end)
        params = {"query": f"{{{matchers}}}", "start": f"{at:.3f}", "end": f"{last:.3f}", "step": f"{step:.3f}"}
        text = page(client, address, params, most=LARGEST_ANSWER, seconds=ANSWER_SECONDS)
        if '"result":[]' not in text.replace(" ", ""):
            found += scrapes_of(text, address)
        at += step * _STEPS_A_QUERY
    if not found:
        raise InputError("has no metrics of vLLM, SGLang or TensorRT-LLM in this time", file=url)
    return in_order(found)


def _names() -> str:
    """Return the pattern of all series that are read."""
    ends = "(_total|_created)?"
    plain = [name for names in (*COUNTERS.values(), *GAUGES.values()) for name in names]
    plain += ["vllm:cache_config_info", "sglang:max_total_num_tokens"]
    histograms = [name for names in HISTOGRAMS.values() for name in names]
    return f"({'|'.join(plain)}){ends}|({'|'.join(histograms)})_(bucket|sum|count)"
