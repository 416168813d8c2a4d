"""``python -m calibration.real_server.recording --out DIR``: scrapes of a vLLM whose load changes, for the twin.

Sends Poisson traffic of stretches at one rate each to a small model that is served on this machine, and saves its
``/metrics`` every 15 seconds. Kernels and loads for its calibration are measured before.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

from calibration.real_server.model import VOCABULARY
from calibration.real_server.serving import ADDRESS, MODEL, PORT, metrics

INTERVAL = 15.0
"""Seconds between two scrapes."""
STRETCHES = ((600.0, 1.0), (600.0, 1.6))
"""Seconds, requests/s."""
NUM_GROUPS, SHARED_TOKENS = 4, 256
"""Beginnings that prompts share: two KV blocks of a CPU."""
OWN_TOKENS, OUTPUT_TOKENS = (64.0, 0.6, 500), (16.0, 0.5, 80)
"""Log-normal: mean, coefficient of variation, most."""
_TIMEOUT = 120.0


def main() -> int:
    """Send and scrape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--seed", type=int, default=1, help="of the traffic")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    send_and_scrape(f"http://{ADDRESS}:{PORT}", out, np.random.default_rng(arguments.seed))
    return 0


def send_and_scrape(address: str, out: Path, generator: np.random.Generator) -> None:
    """Send all stretches; pages of metrics go to ``scrapes.prom``, what was sent to ``sent.json``."""
    prefixes = generator.integers(3, VOCABULARY, (NUM_GROUPS, SHARED_TOKENS)).tolist()
    begin = time.time()
    stop = threading.Event()
    scraper = threading.Thread(target=scrape, args=(address, out / "scrapes.prom", begin, stop))
    scraper.start()
    sent: list[dict[str, float]] = []
    threads: list[threading.Thread] = []
    start = begin
    for number, (seconds, rate) in enumerate(STRETCHES):
        times = start + np.cumsum(generator.exponential(1.0 / rate, int(seconds * rate * 2)))
        for when in times[times < start + seconds].tolist():
            own, answer = lognormal(generator, *OWN_TOKENS), lognormal(generator, *OUTPUT_TOKENS)
            tokens = prefixes[generator.integers(NUM_GROUPS)] + generator.integers(3, VOCABULARY, own).tolist()
            time.sleep(max(when - time.time(), 0.0))
            threads.append(threading.Thread(target=ask, args=(tokens, answer)))
            threads[-1].start()
            row = {"time": round(when, 3), "prompt_tokens": len(tokens), "output_tokens": answer, "stretch": number}
            sent.append(row)
        start += seconds
        time.sleep(max(start - time.time(), 0.0))
        (out / "sent.json").write_text(json.dumps({"begin": begin, "rows": sent}), encoding="utf-8")
    time.sleep(INTERVAL)
    stop.set()
    for thread in [*threads, scraper]:
        thread.join(_TIMEOUT)


def lognormal(generator: np.random.Generator, mean: float, cv: float, most: int) -> int:
    """Return a length."""
    variance = np.log1p(cv**2)
    drawn = float(generator.lognormal(np.log(mean) - variance / 2, np.sqrt(variance)))
    return max(min(round(drawn), most), 2)


def scrape(address: str, file: Path, begin: float, stop: threading.Event) -> None:
    """Append a page every `INTERVAL` until told to stop."""
    number = 0
    while not stop.wait(max(begin + number * INTERVAL - time.time(), 0.0)):
        now = time.time()
        lines = [line for line in metrics(address).splitlines() if line.startswith("vllm:")]
        with file.open("a", encoding="utf-8") as written:
            written.write("\n".join([f"# scraped_at {now:.3f}", *lines]) + "\n")
        number += 1


def ask(tokens: list[int], answer: int) -> None:
    """Send a request and read its stream to the end."""
    body = {"model": MODEL, "prompt": tokens, "max_tokens": answer, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection(ADDRESS, PORT, timeout=_TIMEOUT)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        connection.getresponse().read()
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
