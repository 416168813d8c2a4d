"""One request and its streamed answer: how prompts of a length are made, and when each piece of an answer arrived.

Protocol: OpenAI's completions and chat completions with ``stream``, as engines serve them. Prompts are token ids if the
server accepts them, which is exact for any model; else words.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import numpy as np

from simserve.errors import InputError
from simserve.observe.target import Server

LARGEST_EVENT = 1_000_000  # Most bytes of one event of a stream.
ANSWER_SECONDS = 60.0  # Longest silence within an answer, seconds.
PAUSE_SECONDS = 1.0  # How long a refused client waits if the server does not say, seconds.
LONGEST_PAUSE = 60.0  # Longest such wait, whatever the server says, seconds.
_IS_BUSY = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)
_MOST_PIECES = 10  # An answer with more pieces than this per token asked for is taken to be endless.
_ID_RANGES = ((1_000, 20_000), (100, 1_000), (10, 100))
"""Ranges of ids for prompts, of which the first that a server accepts is used: small ids are often special tokens."""
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "school", "state", "family")
_PROBES = (16, 48)  # Words of the prompts from which the tokens per word and around the words are found.


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to send requests to a server."""

    path: str  # Path of completions or chat completions.
    ids: tuple[int, int] | None  # Lowest and highest token id of prompts; None: prompts are words.
    ignores_eos: bool = True  # Whether it is asked to continue to the length asked for.
    counts: bool = True  # Whether its answers end with the number of tokens.
    tokens_per_word: float = 1.0  # Tokens per word, for prompts of words.
    extra_tokens: float = 0.0  # Tokens around a prompt of words.


@dataclass(slots=True)
class Exchange:
    """One request and its result."""

    prompt_tokens: int  # As counted by the server, or as asked if it does not count them.
    asked_tokens: int  # Length of the answer asked for.
    sent: float = 0.0  # When it was sent, seconds of `time.perf_counter`.
    pieces: list[float] = field(default_factory=list)  # When each piece of the answer arrived, on the same clock.
    output_tokens: int = 0  # As counted by the server, or the pieces if it does not count them.
    error: str = ""  # Why there is no answer; empty if there is one.
    is_busy: bool = False  # Whether the server says that it is overloaded.
    has_ended: bool = False  # Whether the server has said that the answer is complete.
    pause: float = 0.0  # Seconds to wait before the next request.


async def learn_dialect(client: httpx.AsyncClient, server: Server, rng: np.random.Generator) -> Dialect:
    """Return how to send requests to a server, after a few requests of two tokens each.

    Raises:
        InputError: It answers none of them.
    """
    error = ""
    for dialect in _candidates():
        answer = await ask(client, server, dialect, _PROBES[0], 2, rng)
        if not answer.error and answer.pieces:
            return await _sized(client, server, dialect, rng) if dialect.ids is None else dialect
        error = answer.error or error
        if answer.is_busy:
            # This does not depend on how it is asked.
            break
    raise InputError(f"answers no request: {error[:200]}", file=server.url, remedy="try it with curl first")


def _candidates() -> Iterator[Dialect]:
    for path, ways in (("/v1/completions", (*_ID_RANGES, None)), ("/v1/chat/completions", (None,))):
        for ids in ways:
            for ignores_eos, counts in ((True, True), (False, True), (False, False)):
                yield Dialect(path, ids, ignores_eos, counts)


async def _sized(client: httpx.AsyncClient, server: Server, dialect: Dialect, rng: np.random.Generator) -> Dialect:
    """Return the dialect with the tokens per word as counted by the server."""
    if not dialect.counts:
        return dialect
    few, many = [(await ask(client, server, dialect, words, 2, rng)).prompt_tokens for words in _PROBES]
    slope = (many - few) / (_PROBES[1] - _PROBES[0])
    if slope <= 0:
        return replace(dialect, counts=False)
    return replace(dialect, tokens_per_word=slope, extra_tokens=few - slope * _PROBES[0])


async def ask(
    client: httpx.AsyncClient,
    server: Server,
    dialect: Dialect,
    prompt_tokens: int,
    output_tokens: int,
    rng: np.random.Generator,
) -> Exchange:
    """Send one request and return its exchange; failures are in its ``error``.

    Args:
        client: The HTTP client.
        server: The server.
        dialect: How to send requests to it.
        prompt_tokens: Length of the prompt, whose beginning is unique, so that no prefix cache holds it.
        output_tokens: Length of the answer.
        rng: Generator for the prompt.
    """
    exchange = Exchange(prompt_tokens, output_tokens)
    body = _body(server, dialect, prompt_tokens, output_tokens, rng)
    await send(client, server.url + dialect.path, body, exchange)
    return exchange


async def send(
    client: httpx.AsyncClient,
    url: str,
    body: Mapping[str, Any],
    exchange: Exchange,
    seen: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Send a request and fill its exchange; failures are in its ``error``.

    Args:
        client: The HTTP client.
        url: Where completions or chat completions are served.
        body: The request.
        exchange: What is filled.
        seen: Called with each event of the answer.
    """
    kind = ""
    exchange.sent = time.perf_counter()
    try:
        async with client.stream("POST", url, json=body, timeout=ANSWER_SECONDS) as response:
            if response.status_code != httpx.codes.OK:
                exchange.is_busy = response.status_code in _IS_BUSY
                exchange.pause = _pause(response)
                exchange.error = f"HTTP {response.status_code}: {await _beginning(response)}"
                return
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
            async for event in _events(response):
                _take(exchange, event, time.perf_counter())
                if exchange.error:
                    return
                if seen is not None:
                    seen(event)
    except httpx.HTTPError as failure:
        exchange.pause = PAUSE_SECONDS
        if not exchange.has_ended:
            exchange.error = f"{type(failure).__name__}: {failure}".rstrip(": ")
    if not exchange.error and not exchange.pieces:
        exchange.error = "an answer without tokens"
        if kind not in ("", "text/event-stream"):
            exchange.error = f"an answer of {kind[:80]} that is no stream of events"
    elif not exchange.error and not exchange.has_ended:
        exchange.error = "an answer that breaks off"
    exchange.output_tokens = exchange.output_tokens or len(exchange.pieces)


def _body(
    server: Server, dialect: Dialect, prompt_tokens: int, output_tokens: int, rng: np.random.Generator
) -> dict[str, Any]:
    body: dict[str, Any] = {"model": server.model, "max_tokens": output_tokens, "temperature": 0.0, "stream": True}
    if dialect.counts:
        body["stream_options"] = {"include_usage": True}
    if dialect.ignores_eos:
        body["ignore_eos"] = True
    if dialect.ids is not None:
        return body | {"prompt": rng.integers(*dialect.ids, size=prompt_tokens).tolist()}
    words = max(round((prompt_tokens - dialect.extra_tokens) / dialect.tokens_per_word), 1)
    text = " ".join(rng.choice(_WORDS, size=words))
    if dialect.path.endswith("chat/completions"):
        return body | {"messages": [{"role": "user", "content": text}]}
    return body | {"prompt": text}


def _pause(response: httpx.Response) -> float:
    """Return how long to wait after a refusal: the seconds that the server states, within bounds."""
    try:
        asked = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return PAUSE_SECONDS
    return min(max(asked, PAUSE_SECONDS), LONGEST_PAUSE) if asked == asked else PAUSE_SECONDS


async def _beginning(response: httpx.Response) -> str:
    """Return the first words of a response without an answer."""
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > 1_000:
            break
    return " ".join(body[:1_000].decode("utf-8", errors="replace").split())


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a stream of server-sent events, to its end or ``[DONE]``.

    Raises:
        httpx.DecodingError: An event is too large, or not a JSON object.
    """
    kept = b""
    async for piece in response.aiter_bytes():
        *lines, kept = (kept + piece).split(b"\n")
        if len(kept) > LARGEST_EVENT:
            raise httpx.DecodingError(f"an event of more than {LARGEST_EVENT:,} bytes")
        for line in lines:
            name, _, data = line.strip().partition(b":")
            if name != b"data":
                continue
            if data.strip() == b"[DONE]":
                yield {"choices": [{"finish_reason": "done"}]}
                return
            try:
                event = json.loads(data)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict):
                raise httpx.DecodingError("an event that is no JSON object")
            yield event


def _take(exchange: Exchange, event: dict[str, Any], now: float) -> None:
    """Add an event of a stream to its exchange."""
    if event.get("error"):
        exchange.error = str(event["error"])[:200]
        return
    usage = event.get("usage")
    if isinstance(usage, dict):
        exchange.prompt_tokens = _count(usage.get("prompt_tokens"), exchange.prompt_tokens)
        exchange.output_tokens = _count(usage.get("completion_tokens"), exchange.output_tokens)
    choices = event.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        return
    exchange.has_ended = exchange.has_ended or bool(choices[0].get("finish_reason"))
    if _is_piece(choices[0]):
        exchange.pieces.append(now)
        if len(exchange.pieces) > _MOST_PIECES * max(exchange.asked_tokens, 10):
            exchange.error = (
                f"no end: more than {len(exchange.pieces) - 1:,} pieces for {exchange.asked_tokens:,} tokens"
            )


def _is_piece(choice: dict[str, Any]) -> bool:
    """Return whether a choice contains tokens, unlike the role at the start of a chat or an empty end."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(choice.get("text")) or choice.get("finish_reason") is None
    return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 < value < 10**9 else otherwise
