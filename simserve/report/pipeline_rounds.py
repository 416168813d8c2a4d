"""Rounds of a pipeline as a film shows them: micro-batches, how long each works at a stage, and what stages idle.

A round is one recorded step of a replica with p stages: every micro-batch passes every stage once. It is cut into
slots, in each of which a stage works on one micro-batch at most; a slot is as long as the slowest micro-batch takes.
What a shorter one takes is read off the deployment's own table of step times, by its tokens. Filling and draining are
not part of a round: rounds follow each other as in steady flow. Transfers between stages count as work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simserve.engine.state import Replica
from simserve.perf.parallelism import num_micro_batches, rounds
from simserve.sim.step_log import Steps

_SHARE_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    Attributes:
        slots: How many slots it is long.
        groups: Micro-batches in order: how many alike, tokens of each, share of a slot that each works at the stage
            with the most layers.
        idle: Share of the time of all stages in which they do nothing.
    """

    slots: float
    groups: tuple[tuple[int, int, float], ...]
    idle: float


def pipeline_rounds(replica: Replica, steps: Steps, layers: Sequence[int], piece: int | None) -> Iterator[Round]:
    """Yield the round of each step of a replica.

    Args:
        replica: The scheduler; its ``times`` price its micro-batches.
        steps: Its steps, or some of them.
        layers: Layers of each stage.
        piece: Tokens of a prompt that go through the stages at once (llama.cpp's ``n_ubatch``); None: whole chunks.
    """
    columns = (steps.num_decoding, steps.num_prefilling, steps.prefill_tokens, steps.priced_tokens)
    known: dict[tuple[int, ...], Round] = {}
    for key in zip(*(column.tolist() for column in columns), strict=True):
        if key not in known:
            known[key] = _round(replica, layers, piece, *key)
        yield known[key]


def _round(
    replica: Replica, layers: Sequence[int], piece: int | None, decoding: int, prefilling: int, tokens: int, priced: int
) -> Round:
    stages, width = len(layers), replica.tokens_per_decode
    if not prefilling:
        # Priced are also those that are done and decode once more, since the scheduler is a step ahead.
        decoding = max(priced // width, 1)
        count = int(num_micro_batches(np.array(float(decoding)), stages))
        slots = float(rounds(np.array(float(count)), layers))
        base = replica.times.decode_base
        each, rest = divmod(decoding, count)
        longest = base[min(stages * (each + (rest > 0)), len(base) - 1)]
        shorter = base[min(stages * each, len(base) - 1)] / longest
        groups = [(rest, width * (each + 1), 1.0), (count - rest, width * each, shorter if rest else 1.0)]
    elif piece is not None:
        # All that is priced travels together, cut into pieces that fill and drain the stages.
        count = max(math.ceil(priced / stages / piece), 1)
        slots, groups = float(count + stages - 1), [(count, round(priced / stages / count), 1.0)]
    else:
        slots, groups = float(stages), _with_prompts(replica, stages, decoding, prefilling, tokens, priced)
    groups = [group for group in groups if group[0]]
    busy = sum(count * share for count, _, share in groups) * sum(layers) / max(layers)
    alike = tuple((count, each, round(share, _SHARE_DIGITS)) for count, each, share in groups)
    return Round(slots, alike, round(max(1.0 - busy / (slots * stages), 0.0), _SHARE_DIGITS))


def _with_prompts(
    replica: Replica, stages: int, decoding: int, prefilling: int, tokens: int, priced: int
) -> list[tuple[int, int, float]]:
    """Return the micro-batches of a round with prompts: alike, or one with the largest chunk and the rest alike."""
    whole = decoding * replica.tokens_per_decode + tokens
    count = min(decoding + prefilling, stages)
    largest = priced // stages
    if priced <= whole:
        return [(count, round(whole / count), 1.0)]
    left, others = max(whole - largest, 0), count - 1
    if not (others and left):
        return [(1, largest, 1.0)]
    each = left / others
    share = _seconds(replica, stages * each) / _seconds(replica, priced)
    return [(1, largest, 1.0), (others, round(each), min(share, 1.0))]


def _seconds(replica: Replica, tokens: float) -> float:
    """Return what the tokens of a round take, attention left out."""
    table = replica.times.token_seconds
    last = len(table) - 1
    return table[min(math.ceil(tokens), last)] + replica.times.token_seconds_beyond * max(tokens - last, 0.0)
