"""Texts: prompts that a trace gives as text, as estimated tokens, and their common beginnings, as blocks.

A context is the content of a prompt: messages and answers, one after another. It knows no file and no format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simserve.workload.traces.sharegpt import CHARACTERS_PER_TOKEN
from simserve.workload.traces.trace import PrefixBlocks

BLOCK_TOKENS = 16  # Tokens of the blocks by which prompts are compared: vLLM's block size.
MOST_BLOCKS = 20_000_000  # Most blocks of all prompts together: 320 million tokens.
REMARK = f"lengths are estimated, {CHARACTERS_PER_TOKEN} characters a token, and answers are as long as they may be"
_TOLD_AGAIN = 50
"""Blocks that a message counts as if it is processed again after other tools: the work that this takes."""
_TEXTS, _IMAGES, _AUDIO = ("text", "input_text"), ("image_url", "input_image", "image"), ("input_audio", "audio_url")


class TooLongError(ValueError):
    """All prompts together have more than `MOST_BLOCKS` blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The content of a prompt."""

    number: int  # Number of the context.
    blocks: tuple[int, ...] = ()  # Ids of its full blocks.
    tail: tuple[tuple[object, int, int], ...] = ()
    """What follows them: pieces of texts, or ranges of tokens of answers."""
    tokens: int = 0  # Estimated number of tokens.
    images: int = 0  # Number of images.
    recordings: int = 0  # Number of recordings.


class Contexts:
    """The contexts of a trace: contexts with the same content are the same object.

    Attributes:
        empty: The context of an empty prompt.
    """

    def __init__(self) -> None:
        self.empty = Context(0)
        self._next: dict[tuple[int, object], Context] = {}
        self._ids: dict[tuple[object, ...], int] = {}
        self._num_contexts = 1
        self._num_blocks = 0

    def charge(self, blocks: int) -> None:
        """Count work as blocks of prompts.

        Raises:
            TooLongError: The total exceeds `MOST_BLOCKS`.
        """
        self._num_blocks += blocks
        if self._num_blocks > MOST_BLOCKS:
            raise TooLongError

    def with_messages(self, context: Context, messages: Sequence[Mapping[str, object]]) -> Context:
        """Return a context with messages appended.

        Raises:
            TooLongError: The total exceeds `MOST_BLOCKS`.
        """
        for message in messages:
            text, images, recordings = _message_text(message)
            context = self._with(context, text, math.ceil(len(text) / CHARACTERS_PER_TOKEN), images, recordings)
        return context

    def with_answer(self, context: Context, call: int, tokens: int) -> Context:
        """Return a context with the answer to a call appended, which equals no other answer.

        Raises:
            TooLongError: The total exceeds `MOST_BLOCKS`.
        """
        return self._with(context, call, tokens)

    def with_tools(self, tools: object) -> Context:
        """Return the context of a prompt that begins with the definitions of tools."""
        text = json.dumps(tools, sort_keys=True)
        return self._with(self.empty, text, math.ceil(len(text) / CHARACTERS_PER_TOKEN))

    def _with(self, context: Context, piece: object, tokens: int, images: int = 0, recordings: int = 0) -> Context:
        key = (context.number, (piece, tokens, images, recordings))
        self._num_blocks += 1
        if key not in self._next:
            self.charge(len(context.blocks) + tokens // BLOCK_TOKENS)
            blocks, tail, at = list(context.blocks), list(context.tail), 0
            filled = context.tokens % BLOCK_TOKENS
            while at < tokens:
                taken = min(BLOCK_TOKENS - filled, tokens - at)
                if isinstance(piece, str):  # its characters, which other texts may contain too
                    characters = piece[at * CHARACTERS_PER_TOKEN : (at + taken) * CHARACTERS_PER_TOKEN]
                    tail.append((characters, 0, taken))
                else:
                    tail.append((piece, at, at + taken))
                at, filled = at + taken, filled + taken
                if filled == BLOCK_TOKENS:
                    end = (blocks[-1] if blocks else -1, *tail)
                    blocks.append(self._ids.setdefault(end, len(self._ids)))
                    tail, filled = [], 0
            self._next[key] = Context(
                number=self._num_contexts,
                blocks=tuple(blocks),
                tail=tuple(tail),
                tokens=context.tokens + tokens,
                images=context.images + images,
                recordings=context.recordings + recordings,
            )
            self._num_contexts += 1
        return self._next[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A conversation so far: the definitions of its tools, and what came after them."""

    contexts: Contexts  # The contexts of the trace.
    context: Context  # The context of a prompt that contains all of it.
    tools: object = None  # The definitions of tools; None: there are none.
    pieces: tuple[Any, Any] | None = None
    """(All pieces before the last, the last), a piece being messages, or the call and the tokens of an answer; None:
    empty."""

    @classmethod
    def new(cls, contexts: Contexts) -> History:
        """Return an empty history."""
        return cls(contexts=contexts, context=contexts.empty)

    def with_tools(self, tools: object) -> History:
        """Return the same with other tools, whose definitions come first in prompts; None: unchanged."""
        if not tools or tools == self.tools:
            return self
        pieces, found = [], self.pieces
        while found is not None:
            found, piece = found
            pieces.append(piece)
        self.contexts.charge(_TOLD_AGAIN * len(pieces))
        again = History(contexts=self.contexts, context=self.contexts.with_tools(tools), tools=tools)
        for piece in reversed(pieces):
            again = again.with_piece(piece)
        return again

    def with_piece(self, piece: Any) -> History:
        """Return it with messages, or with the call and the tokens of an answer, appended.

        Raises:
            TooLongError: The total exceeds `MOST_BLOCKS`.
        """
        if isinstance(piece, tuple):
            context = self.contexts.with_answer(self.context, *piece)
        else:
            context = self.contexts.with_messages(self.context, piece)
        return replace(self, context=context, pieces=(self.pieces, piece))


def _message_text(message: Mapping[str, object]) -> tuple[str, int, int]:
    """Return the text of a message, with its tool calls, and its numbers of images and recordings."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts: list[str] = []
    images = recordings = 0
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _TEXTS and isinstance(part.get("text"), str):
            texts.append(str(part["text"]))
        images += kind in _IMAGES
        recordings += kind in _AUDIO
    if message.get("tool_calls"):
        texts.append(json.dumps(message["tool_calls"], sort_keys=True))
    return "".join(texts), images, recordings


def blocks_of(contexts: Sequence[Context]) -> PrefixBlocks:
    """Return the full blocks of some prompts."""
    return PrefixBlocks.of(BLOCK_TOKENS, [context.blocks for context in contexts])
