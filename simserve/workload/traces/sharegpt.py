"""ShareGPT: a JSON list of conversations as text, without times and without token counts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.workload.traces.records import read_records
from simserve.workload.traces.trace import Trace

CHARACTERS_PER_TOKEN = 4
"""OpenAI's rule of thumb for English text (help.openai.com, "What are tokens"); other languages take more tokens."""


def read_sharegpt(path: Path) -> Trace:
    """Return the first prompt and the first answer of every conversation, as vLLM's benchmark takes them.

    Tokens are estimated at `CHARACTERS_PER_TOKEN` characters each. Conversations without both are left out and counted.
    There are no arrival times: a scenario needs its own ``arrivals``.

    Raises:
        TraceError: The file cannot be read, or has no conversation; with the number of the element.
    """
    records = read_records(path)
    pairs = []
    for index, row in enumerate(records.rows):
        turns = row.get("conversations", row.get("conversation"))
        if not isinstance(turns, list):
            raise records.error(index, "conversations", "is not a list of turns")
        said = [turn.get("value", turn.get("content")) for turn in turns[:2] if isinstance(turn, dict)]
        texts = [each for each in said if isinstance(each, str) and each]
        if len(texts) == 2:
            pairs.append(tuple(math.ceil(len(text) / CHARACTERS_PER_TOKEN) for text in texts))
    if not pairs:
        raise TraceError("holds no conversation with a prompt and an answer", file=path)
    lengths = np.array(pairs, dtype=np.int64)
    return Trace(
        arrival_time=np.full(len(pairs), np.nan),
        prompt_tokens=lengths[:, 0],
        output_tokens=lengths[:, 1],
        num_unserved=len(records.rows) - len(pairs),
        remark=f"lengths are estimated, {CHARACTERS_PER_TOKEN} characters a token",
    )
