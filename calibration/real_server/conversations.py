"""Conversations sent to a server: a turn's prompt is all before it plus new words, and waits for the answer before it.

vLLM's own client sends single requests alone. The server says the token ids of its answers (``return_token_ids``), so
that the next prompt has them as they stand in its cache.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from calibration.real_server.model import CONFIG
from calibration.real_server.serving import MODEL, ServerError
from simserve.observe.dialogue import Exchange, send
from simserve.observe.measure import bench_file

SPREAD = 0.3
"""Lengths are drawn evenly from this share below to this share above their mean, as vLLM's client draws them."""
_FIRST_WORD = 3


def bounds(mean: int) -> tuple[int, int]:
    """Return the shortest and the longest of lengths with a mean."""
    return round(mean * (1 - SPREAD)), round(mean * (1 + SPREAD))


def converse(
    address: str,
    out: Path,
    *,
    clients: int,
    conversations: int,
    turns: int,
    new_tokens: int,
    output_tokens: int,
    seed: int,
) -> None:
    """Let clients hold one conversation after another, and write what they saw as ``vllm bench serve`` does.

    Args:
        address: Of the server.
        out: The file.
        clients: At once.
        conversations: Of each client.
        turns: Of a conversation.
        new_tokens: Mean length of what a turn adds.
        output_tokens: Mean length of an answer.
        seed: Of lengths and words.

    Raises:
        ServerError: A request is not answered.
    """
    rng = np.random.default_rng(seed)
    shape = (clients, conversations, turns)
    news, answers = (
        rng.integers(low, high, size=shape, endpoint=True) for low, high in map(bounds, (new_tokens, output_tokens))
    )
    words = [[[_words(rng, int(count)) for count in each] for each in of_client] for of_client in news]
    exchanges = asyncio.run(_all(address, words, answers.tolist()))
    if failed := [each.error for each in exchanges if each.error]:
        raise ServerError(f"{len(failed)} turns were not answered: {failed[0]}")
    document = bench_file(
        sorted(exchanges, key=lambda each: each.sent),
        backend="openai",
        model=MODEL,
        request_rate="inf",
        max_concurrency=clients,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S"),
    )
    out.write_text(json.dumps(document), encoding="utf-8")


def _words(rng: np.random.Generator, count: int) -> list[int]:
    drawn: list[int] = rng.integers(_FIRST_WORD, CONFIG["vocab_size"], size=count).tolist()
    return drawn


async def _all(
    address: str, words: Sequence[Sequence[Sequence[list[int]]]], answers: Sequence[Sequence[Sequence[int]]]
) -> list[Exchange]:
    """Return the exchanges of all clients."""
    limits = httpx.Limits(max_connections=len(words) + 1)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:

        async def of_client(texts: Sequence[Sequence[list[int]]], lengths: Sequence[Sequence[int]]) -> list[Exchange]:
            held = [
                await _conversation(client, address, news, asked) for news, asked in zip(texts, lengths, strict=True)
            ]
            return [each for of_conversation in held for each in of_conversation]

        of_all = await asyncio.gather(*map(of_client, words, answers))
    return [each for of_one in of_all for each in of_one]


async def _conversation(
    client: httpx.AsyncClient, address: str, news: Sequence[list[int]], asked: Sequence[int]
) -> list[Exchange]:
    """Return the exchanges of a conversation; it ends with a turn that is not answered."""
    context: list[int] = []
    exchanges = []

    def seen(event: dict[str, Any]) -> None:
        for choice in event.get("choices", ()):
            context.extend(choice.get("token_ids") or ())

    for new, tokens in zip(news, asked, strict=True):
        context.extend(new)
        exchange, before = Exchange(len(context), tokens), len(context)
        body = {"model": MODEL, "prompt": list(context), "max_tokens": tokens, "ignore_eos": True, "stream": True}
        body |= {"stream_options": {"include_usage": True}, "return_token_ids": True}
        await send(client, f"{address}/v1/completions", body, exchange, seen)
        if not exchange.error and len(context) - before != tokens:
            exchange.error = f"the ids of {len(context) - before} tokens of {tokens} were said"
        exchanges.append(exchange)
        if exchange.error:
            break
    return exchanges
