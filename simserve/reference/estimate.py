"""What SGLang's ``estimate`` expects requests to take, in tokens. It knows no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simserve.reference.request import MAX_ESTIMATED_TOKENS, Request, estimated_tokens, new_tokens

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig


def page_reserve(config: EngineConfig) -> int:
    """Return the tokens that admission asks for beyond those of a request."""
    return config.block_size if config.reserves_page else 0


def prefilling_tokens(requests: Sequence[Request], chunks: Sequence[tuple[Request, int]], reserve: int) -> int:
    """Return what requests that do not decode yet may take beyond the chunks of a step, each ``reserve`` more."""
    chunk_of = {request.index: chunk for request, chunk in chunks}
    return sum(
        min(one.max_tokens, MAX_ESTIMATED_TOKENS) + one.target - one.computed - chunk_of.get(one.index, 0) + reserve
        for one in requests
        if not one.is_decoding
    )


def batch_tokens(requests: Sequence[Request], in_flight: Sequence[Request], departing: Sequence[Request]) -> float:
    """Return the new tokens of those that decode at most, those counted that are had and not known (``in_flight``)."""
    decoding = sum(estimated_tokens(request) for request in requests if request.is_decoding)
    decoding += sum(one.max_tokens <= MAX_ESTIMATED_TOKENS for one in in_flight if one not in departing)
    return decoding + sum(min(new_tokens(one) + 1, MAX_ESTIMATED_TOKENS) for one in departing)
