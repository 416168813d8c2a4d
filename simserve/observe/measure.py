"""Loads on a live server within a budget: closed-loop clients or Poisson arrivals, each load for a share of the time.

Stays within its limits: nothing is sent after the end of the budget, beyond the allowed number of requests, or to
another address. A measured run is written in the format of ``vllm bench serve --save-result --save-detailed``, with
that tool's definitions (vllm/benchmarks/serve.py, ``calculate_metrics``): TPOT is (latency - TTFT) / (output tokens -
1) of each request with more than one token; ITL pools every gap between the pieces of an answer. Summaries are in ms,
lists in seconds. An answer that arrives in one piece has no TPOT here, where that tool writes 0: something on the way
holds answers back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import numpy as np

from simserve.errors import InputError
from simserve.observe.dialogue import Exchange, ask, learn_dialect
from simserve.observe.target import Server, find_out, is_this_machine, trusted_authorities
from simserve.rng import stream

DIGITS = 6  # Decimals of seconds in a file: microseconds.
PERCENTILES = (50, 90, 95, 99)
LENGTH_SPREAD = 0.3
"""Lengths are drawn uniformly from this share below to this share above the mean, as with ``--random-range-ratio``:
with equal lengths, the effects of steps and prompts are hard to separate."""
MOST_FAILURES = 8  # Failures in a row, in addition to one per client, after which a load is abandoned.
MOST_IN_FLIGHT = 512
"""Most requests in flight of an open loop, so that a server that does not keep up is not swamped."""
OVERTIME = 0.5
"""Time for the requests in flight at the end of a load before they are cut off, as a share of the load's time."""
TICK_SECONDS = 0.25
Tell = Callable[[int, int | None, str], None]
Send = Callable[[int, int, np.random.Generator], Awaitable[Exchange]]
"""Sends a prompt of a length for an answer of a length; the generator draws the prompt."""


def held_back(answers: Sequence[Exchange]) -> list[bool]:
    """Return which answers arrived in one piece although the server produced several: their times are not the server's.

    A server that drafts sends several tokens per step: an answer no longer than a piece of its other answers is not a
    sign.
    """
    in_pieces = [each for each in answers if len(each.pieces) > 1]
    of_a_piece = max((-(-each.output_tokens // len(each.pieces)) for each in in_pieces), default=1)
    return [len(each.pieces) == 1 and each.output_tokens > of_a_piece for each in answers]


def bench_file(
    answers: Sequence[Exchange],
    *,
    backend: str,
    model: str,
    request_rate: float | str,
    max_concurrency: int | None,
    date: str,
    failed: int = 0,
) -> dict[str, Any]:
    """Return the JSON of a run.

    Args:
        answers: At least one, in the order in which they were sent.
        model: The name under which the model is served.
        request_rate: Requests/s of Poisson arrivals, or ``"inf"`` for a closed loop.
        max_concurrency: Clients of a closed loop.
    """
    sent = np.array([each.sent for each in answers])
    last = np.array([each.pieces[-1] for each in answers])
    ttft = np.array([each.pieces[0] for each in answers]) - sent
    gaps = [np.diff(each.pieces) for each in answers]
    prompts, outputs = [each.prompt_tokens for each in answers], [each.output_tokens for each in answers]
    written = np.array(outputs)
    has_tpot = (written > 1) & ~np.array(held_back(answers))
    tpot = ((last - sent - ttft) / np.maximum(written - 1, 1))[has_tpot]
    duration = float(last.max() - sent.min())
    document: dict[str, Any] = {
        "date": date,
        "backend": backend,
        "model_id": model,
        "num_prompts": len(answers) + failed,
        "request_rate": request_rate,
        "burstiness": 1.0,
        "max_concurrency": max_concurrency,
        "duration": duration,
        "completed": len(answers),
        "failed": failed,
        "total_input_tokens": sum(prompts),
        "total_output_tokens": sum(outputs),
        "request_throughput": len(answers) / duration,
        "output_throughput": sum(outputs) / duration,
        "total_token_throughput": (sum(outputs) + sum(prompts)) / duration,
    }
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", np.concatenate(gaps)), ("e2el", last - sent)):
        document |= _summary(name, values) if len(values) else {}
    return document | {
        "input_lens": prompts,
        "output_lens": outputs,
        "start_times": [round(float(each - sent.min()), DIGITS) for each in sent],
        "ttfts": [round(float(each), DIGITS) for each in ttft],
        "itls": [[round(float(gap), DIGITS) for gap in each] for each in gaps],
        "errors": [""] * len(answers),
    }


def _summary(name: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    figures = {f"mean_{name}_ms": values.mean(), f"median_{name}_ms": np.median(values), f"std_{name}_ms": values.std()}
    figures |= {f"p{share}_{name}_ms": np.percentile(values, share) for share in PERCENTILES}
    return {key: float(value) * 1e3 for key, value in figures.items()}


@dataclass(frozen=True, slots=True)
class Load:
    """Clients in a closed loop, or Poisson arrivals."""

    concurrency: int | None = None
    """Clients, each of which sends its next request when it gets its answer; None: an open loop."""
    rate: float | None = None  # Requests/s of an open loop.

    @property
    def name(self) -> str:
        """Its name and that of its file: ``clients-8``, ``rate-2.5``."""
        return f"rate-{self.rate:g}" if self.concurrency is None else f"clients-{self.concurrency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is sent."""

    loads: Sequence[Load]  # The loads, in order.
    prompt_tokens: int  # Mean length of the prompts.
    output_tokens: int  # Mean length of the answers.
    budget: float  # Seconds in all.
    max_requests: int  # Requests in all.
    seed: int  # Seed of lengths, prompts and arrivals.


@dataclass(slots=True)
class Run:
    """The results of a load; filled while it runs."""

    load: Load  # The load.
    exchanges: list[Exchange] = field(default_factory=list)  # Finished requests, in the order in which they ended.
    cut: int = 0  # Requests that are in flight, and at the end were cut off.
    longest: float = 0.0  # Longest time of an answer, seconds.

    def may_send(self, stop: float) -> bool:
        """Return whether one more request could end before ``stop``, and the server has not only failed of late."""
        most = MOST_FAILURES + (self.load.concurrency or 0)
        is_hopeless = len(self.exchanges) >= most and all(each.error for each in self.exchanges[-most:])
        return not is_hopeless and time.perf_counter() + self.longest < stop

    @property
    def answers(self) -> list[Exchange]:
        """The answered requests, in the order in which they were sent."""
        return sorted((each for each in self.exchanges if not each.error), key=lambda each: each.sent)

    @property
    def errors(self) -> list[str]:
        """Why the others were not answered."""
        return [each.error for each in self.exchanges if each.error]


def observe(
    url: str,
    plan: Plan,
    *,
    model: str | None = None,
    api_key: str | None = None,
    tell: Tell | None = None,
    found: Callable[[Server], None],
    keep: Callable[[Run], None],
) -> None:
    """Measure a live server.

    Args:
        url: Its address, as `simserve.observe.target.address_of` returns it.
        model: Which of its models; None: the only one.
        api_key: Bearer token for the server.
        tell: Called with the used part of the budget.
        found: Called with the server, before anything is measured.
        keep: Called with each run that has ended, also if interrupted or without an answer.

    Raises:
        InputError: Nothing there answers like such a server.
        KeyboardInterrupt: The user stopped it; what has ended is kept.
    """
    asyncio.run(_Session(plan, model, tell, found, keep).measure(url, api_key))


class _Session:
    """One measurement from its first page to its last request."""

    def __init__(
        self,
        plan: Plan,
        model: str | None,
        tell: Tell | None,
        found: Callable[[Server], None],
        keep: Callable[[Run], None],
    ) -> None:
        self._plan, self._model, self._tell, self._found, self._keep = plan, model, tell, found, keep
        self._left = plan.max_requests
        self._doing = "looking at the server"

    async def measure(self, url: str, api_key: str | None) -> None:
        plan = self._plan
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        most = max([MOST_IN_FLIGHT, *(load.concurrency or 0 for load in plan.loads)])
        limits = httpx.Limits(max_connections=most + 1, max_keepalive_connections=most + 1)
        end = time.perf_counter() + plan.budget
        async with (
            httpx.AsyncClient(
                headers=headers, limits=limits, trust_env=not is_this_machine(url), verify=trusted_authorities(url)
            ) as client,
            self._shown(),
        ):
            try:
                async with asyncio.timeout(plan.budget):
                    server = await find_out(client, url, self._model)
                    self._found(server)
                    dialect = await learn_dialect(client, server, stream(plan.seed, "observe.probe"))
            except TimeoutError:
                remedy = "allow more: --budget"
                raise InputError("has not answered within the budget", file=url, remedy=remedy) from None
            for position, load in enumerate(plan.loads):
                share = (end - time.perf_counter()) / (len(plan.loads) - position)
                if share > 0 and self._left > 0:
                    send = partial(ask, client, server, dialect)
                    await self._measure_load(send, load, share, end)

    async def _measure_load(self, send: Send, load: Load, share: float, end: float) -> None:
        """Measure at one load for a share of the time, and keep the result however it ends."""
        self._doing = f"{load.concurrency} clients" if load.concurrency else f"{load.rate:g} requests/s"
        run, stop = Run(load), time.perf_counter() + share
        try:
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(min(share * (1 + OVERTIME), max(end - time.perf_counter(), 0.0))),
                    asyncio.TaskGroup() as group,
                ):
                    for _ in range(load.concurrency or 0):
                        group.create_task(self._client_of(run, send, stop))
                    if load.concurrency is None:
                        await self._arrivals(run, send, stop, group)
        finally:
            self._keep(run)

    async def _client_of(self, run: Run, send: Send, stop: float) -> None:
        """Send a request, wait for its answer, send the next."""
        is_first = True
        while (is_first or run.may_send(stop)) and self._take_turn():
            is_first = False
            pause = await self._one(run, send)
            if pause:
                # A refused client does not retry at once.
                await asyncio.sleep(min(pause, max(stop - time.perf_counter(), 0.0)))

    async def _arrivals(self, run: Run, send: Send, stop: float, group: asyncio.TaskGroup) -> None:
        """Send at random times, regardless of answers."""
        rate = run.load.rate or 1.0
        times = stream(self._plan.seed, f"observe.arrivals.{run.load.name}")
        due = time.perf_counter()
        while run.may_send(stop) and run.cut < MOST_IN_FLIGHT and self._take_turn():
            group.create_task(self._one(run, send))
            due += times.exponential(1 / rate)
            if due >= stop:
                return
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))

    async def _one(self, run: Run, send: Send) -> float:
        """Send a request, keep its result, and return how long to wait after it, seconds."""
        prompt, output, rng = self._lengths(run.load, len(run.exchanges) + run.cut)
        run.cut += 1
        exchange = await send(prompt, output, rng)
        run.cut -= 1
        run.exchanges.append(exchange)
        if not exchange.error:
            run.longest = max(run.longest, exchange.pieces[-1] - exchange.sent)
        return exchange.pause

    def _take_turn(self) -> bool:
        """Return whether one more request may be sent, and count it."""
        self._left -= 1
        return self._left >= 0

    def _lengths(self, load: Load, number: int) -> tuple[int, int, np.random.Generator]:
        """Return the lengths of a request of a load, and the generator for its prompt."""
        rng = stream(self._plan.seed, f"observe.{load.name}", number)
        shares = rng.uniform(1 - LENGTH_SPREAD, 1 + LENGTH_SPREAD, size=2)
        asked = (self._plan.prompt_tokens, self._plan.output_tokens)
        prompt, output = (max(round(tokens * part), 1) for tokens, part in zip(asked, shares, strict=True))
        return prompt, output, rng

    @asynccontextmanager
    async def _shown(self) -> AsyncIterator[None]:
        """Report the used part of the budget during a measurement."""
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        began, budget = time.perf_counter(), self._plan.budget
        while self._tell is not None:
            self._tell(min(int(time.perf_counter() - began), int(budget)), int(budget), self._doing)
            await asyncio.sleep(TICK_SECONDS)
