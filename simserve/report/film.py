"""The film of a run: its steps, requests, seats and KV memory over a few seconds, on the engine's own clock.

It shows what the run recorded (`simserve.report.timeline`): the player in the page moves a clock over it and simulates
nothing. Several runs of the same requests are shown below each other on one clock.

For a pipeline a film shows rounds. A round is one recorded step of a replica with p stages: every micro-batch passes
every stage once. It is cut into slots, in each of which a stage works on at most one micro-batch; a slot is as long as
the slowest micro-batch takes. The time of a shorter one comes from the deployment's own table of step times, by its
tokens. Filling and draining are not part of a round: rounds follow each other as in steady flow. Transfers between
stages count as work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import LEAP_FIELDS, Replica
from simserve.errors import InvariantError, UsageError
from simserve.metrics.result import RunResult
from simserve.perf.pipeline import num_micro_batches, rounds
from simserve.report.page import TEMPLATES
from simserve.report.quantities import counted
from simserve.report.timeline import Life, interruptions, lives, process_names
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.sim.step_log import StepLog, Steps
from simserve.unfinished import write_text

Floats = NDArray[np.float64]
FILM_FILE = "film.html"
MOST_STEPS = 400  # Steps of the busiest replica in a film whose length is not given.
MOST_REPLICAS = 4  # Most replicas shown of one run: those with the most requests.
MOST_PIPELINE_STAGES = 16  # Most stages of a pipeline that are drawn, one row each.
MOST_REQUESTS = 1_500  # Most requests shown of one run: a longer queue is cut, and its rest counted.
BEFORE = 0.6  # Share of a film before its moment.
_MICRO = 6  # Decimal places kept of seconds.
_WAITING = ("queue", "preempted", "link queue", "transfer", "seat queue")
_SHARE_DIGITS = 3  # Decimal places kept of shares of a round.


@dataclass(frozen=True, slots=True)
class Moment:
    """The part of a run that a film shows."""

    start: float  # Seconds of the run.
    end: float  # Likewise.
    why: str  # Why it is shown, in words.


class Film:
    """A film for users: it plays in a notebook, and writes itself as a page.

    Args:
        runs: Name -> a run that kept its steps; several of the same requests.

    Raises:
        UsageError: One of them did not keep its steps.
    """

    def __init__(self, runs: Mapping[str, RunResult]) -> None:
        for name, result in runs.items():
            if not isinstance(result.simulation.steps, StepLog):
                raise UsageError("kept no steps", key=name, remedy="run it with steps=True")
        self.page = film_page(film_of(runs), " and ".join(runs))

    def to_html(self, file: str | Path) -> None:
        """Write it as a self-contained page.

        Raises:
            OSError: The file cannot be written.
        """
        write_text(Path(file), self.page)

    def _repr_html_(self) -> str:
        # In a frame, so that styles and scripts do not mix with those of the notebook.
        return f'<iframe title="film" srcdoc="{escape(self.page)}" style="border:0;width:100%;height:36rem"></iframe>'


def worst_moment(result: RunResult) -> Moment:
    """Return the seconds around the deepest queue of a run that kept its steps, or else around its fullest batch.

    Raises:
        InvariantError: The run did not keep its steps.
    """
    log, records = _log(result), result.simulation.records
    waited = _peak(records.admitted_time, records.scheduled_time)
    running = _peak(records.scheduled_time, records.finish_time)
    preempted = min((float(each[0][1]) for each in map(log.evictions, log.replicas) if len(each)), default=math.nan)
    if math.isfinite(preempted):
        at, why = preempted, "the first preemption"
    elif waited[1] > 1:
        at, why = waited[0], f"the longest queue: {counted(waited[1], 'request')} waiting"
    else:
        at, why = running[0], f"the most requests in hand: {running[1]:,}"
    of_all = [log.steps(replica).start_time for replica in log.replicas]
    # One that started later has no steps before the moment: its film would be the whole run until then.
    starts = max([each for each in of_all if len(each) and each[0] <= at] or of_all, key=len)
    if not len(starts):
        return Moment(0.0, max(result.simulation.end_time, 1e-3), "the whole run")
    place = int(np.searchsorted(starts, at))
    first = max(0, min(place - int(BEFORE * MOST_STEPS), len(starts) - MOST_STEPS))
    last = first + MOST_STEPS
    end = float(starts[last]) if last < len(starts) else result.simulation.end_time
    is_first = starts[0] == min(float(each[0]) for each in of_all if len(each))
    begin = float(starts[first])
    if first == 0 and is_first:
        begin = min(begin, float(np.nanmin(records.arrival_time)))
    return Moment(begin, max(end, begin + 1e-3), why)


def film_of(runs: Mapping[str, RunResult]) -> dict[str, Any]:
    """Return what the player shows: the moment of the first run, and the replicas and requests of every run.

    Args:
        runs: Name -> a run that kept its steps; several of the same requests.

    Raises:
        InvariantError: One of them did not keep its steps.
    """
    moment = worst_moment(next(iter(runs.values())))
    return {
        "start": round(moment.start, _MICRO),
        "end": round(moment.end, _MICRO),
        "why": moment.why,
        "scenes": [_scene(name, result, moment) for name, result in runs.items()],
    }


def film_fragment(film: Mapping[str, Any]) -> str:
    """Return the film as a part of a page: its frame, its style, its data and its player. It fetches nothing."""
    data = json.dumps(film, separators=(",", ":")).replace("<", "\\u003c")
    style = (TEMPLATES / "film.css").read_text(encoding="utf-8")
    player = (TEMPLATES / "film.js").read_text(encoding="utf-8")
    caption = f"{film['end'] - film['start']:.3g} seconds of the run, as it was recorded, around {film['why']}."
    return (
        f'<div class="film"><style>{style}</style><p class="quiet">{escape(caption)}</p>'
        f'<script type="application/json">{data}</script></div><script>{player}</script>'
    )


def film_page(film: Mapping[str, Any], title: str) -> str:
    """Return the film as a page; the same film gives the same bytes."""
    style = (TEMPLATES / "common.css").read_text(encoding="utf-8")
    head = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">'
    shown = f"<main>\n<h1>{escape(title)}</h1>\n{film_fragment(film)}\n</main>"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n<title>{escape(title)}: simserve film</title>\n'
        f'<style>{style}</style>\n</head>\n<body class="film-page">\n{shown}\n</body>\n</html>\n'
    )


def write_film(runs: Mapping[str, RunResult], path: Path, title: str) -> None:
    """Write the film of one run, or of several of the same requests, as a page, whole or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    write_text(path, film_page(film_of(runs), title))


def _log(result: RunResult) -> StepLog:
    log = result.simulation.steps
    if not isinstance(log, StepLog):
        raise InvariantError("a film needs a run that kept its steps")
    return log


def _peak(since: Floats, until: Floats) -> tuple[float, int]:
    """Return when the most intervals overlap, and how many do; an interval whose end is NaN never ends."""
    begun = np.sort(since[np.isfinite(since)])
    ended = np.sort(until[np.isfinite(since) & np.isfinite(until)])
    if not len(begun):
        return 0.0, 0
    count = np.arange(1, len(begun) + 1) - np.searchsorted(ended, begun, side="right")
    place = int(np.argmax(count))
    return float(begun[place]), int(count[place])


def _scene(name: str, result: RunResult, moment: Moment) -> dict[str, Any]:
    log = _log(result)
    names = process_names(log.replicas)
    there = list(lives(result, log, moment.end, moment.start))
    held: dict[int, int] = {}
    for life in there:
        for process in {life.process, life.sender}:
            held[process] = held.get(process, 0) + 1
    order = sorted(range(len(log.replicas)), key=lambda number: -held.get(number, 0))
    shown = sorted(order[:MOST_REPLICAS])
    is_piped = any(replica.config.pipeline_parallel_size > 1 for replica in log.replicas)
    resolved = resolve(from_mapping(result.scenario, folder=result.folder)) if is_piped else None
    shapes = [] if resolved is None else list(resolved.pools or (resolved,))
    return {
        "name": name,
        "replicas": [_replica(names[number], log, number, there, moment, shapes) for number in shown],
        "hidden": len(log.replicas) - len(shown),
    }


def _replica(
    name: str, log: StepLog, number: int, there: Sequence[Life], moment: Moment, shapes: Sequence[ResolvedScenario]
) -> dict[str, Any]:
    replica = log.replicas[number]
    steps = log.steps(replica, moment.end)
    own = [part for life in there for part in _parts(life, number)]
    config = replica.config
    if config.batching == "static":
        own = [_in_a_static_batch(life, steps) for life in own]
    paces = log.paces if config.num_speculative_tokens else None
    spans = [_request(life, steps, moment, paces) for life in own[:MOST_REQUESTS]]
    # Each request gets the lowest row that is free while it runs.
    free_at: list[float] = []
    for span in sorted(spans, key=lambda each: (_running(each)[0], each["id"])):
        start, end = _running(span)
        if math.isinf(start):
            span["seat"] = -1
            continue
        row = next((place for place, free in enumerate(free_at) if free <= start), len(free_at))
        free_at[row : row + 1] = [end]
        span["seat"] = row
    shown = steps.between(moment.start, moment.end)
    stages, drafts = config.pipeline_parallel_size, None
    if paces is not None:  # verified per sequence in a step, and the total accepted in each step
        accepted = np.maximum(shown.gained_tokens - shown.num_decoding, 0.0)
        drafts = {"ahead": config.num_speculative_tokens, "accepted": np.round(accepted, 1).tolist()}
    return {
        "name": name,
        "seats": config.static_batch_size if config.batching == "static" else config.max_num_seqs,
        "kv_tokens": config.num_blocks * config.block_size if config.kv_allocation != "none" else 0,
        "steps": list(_steps(shown, moment)),
        "drafts": drafts,
        "pipeline": _pipeline(replica, shown, shapes) if 1 < stages <= MOST_PIPELINE_STAGES else None,
        "kv": list(_kv(log, replica, moment)),
        "requests": spans,
        "hidden": len(own) - len(spans),
    }


def _parts(life: Life, number: int) -> Iterator[Life]:
    """Yield the part of a request that a replica handled: after a KV transfer, its prefill or the rest."""
    if life.sender == life.process:
        if life.process == number:
            yield life
        return
    is_first = [name in ("queue", "prefill") for name, _, _ in life.phases]
    for process, wanted in ((life.sender, True), (life.process, False)):
        phases = [phase for phase, first in zip(life.phases, is_first, strict=True) if first is wanted]
        if process == number and phases:
            yield replace(life, phases=phases)


def _in_a_static_batch(life: Life, steps: Steps) -> Life:
    """Return a request with the phases in its batch before its answer is delivered at once: prompt, tokens, waiting.

    A static batch delivers all answers when the longest is done, so that a request's first token arrives with its last.
    Its tokens are computed in the steps after that of its prompt, and it then keeps its seat until the batch ends.
    """
    phases: list[tuple[str, float, float]] = []
    for name, start, end in life.phases:
        edges = np.searchsorted(steps.start_time, [start, end])
        with_prompts = np.flatnonzero(steps.num_prefilling[edges[0] : edges[1]])
        if name != "prefill" or not len(with_prompts):
            phases.append((name, start, end))
            continue
        first = int(edges[0]) + int(with_prompts[-1])
        last = min(first + int(life.about["output_tokens"]) - 1, int(edges[1]) - 1)
        cuts = (start, float(steps.end_time[first]), float(steps.end_time[last]), end)
        parts = zip(("prefill", "decode", "held"), pairwise(cuts), strict=True)
        phases += [(part, since, until) for part, (since, until) in parts if until > since]
    return replace(life, phases=phases)


def _steps(steps: Steps, moment: Moment) -> Iterator[list[float]]:
    """Yield start, end, sequences that decode, prompts with a chunk and tokens of the chunks of every step."""
    columns = (steps.start_time, steps.end_time, steps.num_decoding, steps.num_prefilling, steps.prefill_tokens)
    for begin, end, *counts in zip(*(column.tolist() for column in columns), strict=True):
        yield [_since(begin, moment), _since(end, moment), *counts]


def _pipeline(replica: Replica, steps: Steps, shapes: Sequence[ResolvedScenario]) -> dict[str, Any]:
    """Return the layers of each stage, and the round of every step."""
    shape = next((own.shape for own in shapes if own.engine == replica.config), shapes[0].shape)
    layers = shape.layers_per_stage
    found = list(pipeline_rounds(replica, steps, layers, shape.engine.ubatch_size))
    idle = float(np.dot([each.idle for each in found], steps.seconds) / steps.seconds.sum()) if found else 0.0
    return {
        "layers": layers,
        "rounds": [[round(each.slots, 3), each.idle, *each.groups] for each in found],
        "idle": round(idle, 3),
    }


def _kv(log: StepLog, replica: Replica, moment: Moment) -> Iterator[list[float]]:
    """Yield the times at which the tokens reserved in the KV cache change, and their new number."""
    rows = dict(zip(LEAP_FIELDS, log.step_runs(replica), strict=True))
    starts, used = rows["start_time"], rows["used_after"].astype(np.int64)
    first = max(int(np.searchsorted(starts, moment.start, side="right")) - 1, 0)
    last = -1
    for start, tokens in zip(starts[first:].tolist(), used[first:].tolist(), strict=True):
        if start >= moment.end:
            return
        if tokens != last:
            last = tokens
            yield [_since(start, moment), tokens]


def _request(life: Life, steps: Steps, moment: Moment, paces: Floats | None) -> dict[str, Any]:
    """Return a request: its phases, the tokens it had at the start of decoding, and its decode steps before the film.

    Args:
        paces: Tokens per decode step of every request, if drafts are accepted; None: one.
    """
    phases: list[list[Any]] = []
    for name, start, end in life.phases:
        cuts = list(interruptions(life.evictions, start, end))
        at = start
        for inner, since, until in cuts:
            if since > at:
                phases.append([name, at, since])
            phases.append([inner, since, until])
            at = until
        if end > at:
            phases.append([name, at, end])
    pace = 1.0 if paces is None else float(paces[life.about["request"]])
    made, begun, last = 0, 0, ""
    for name, start, end in phases:
        if name == "decode":
            # Computing a prompt, or recomputing it, yields a token; a request that kept its KV memory continues without
            # one.
            made += int(start <= moment.start and last != "preempted")
            begun = _ended(steps, start, min(end, moment.start))
            if end <= moment.start:
                made, begun = made + math.floor(pace * begun), 0
        last = name
    return {
        "id": life.about["request"],
        "prompt": life.about["prompt_tokens"],
        "output": life.about["output_tokens"],
        "status": life.about["status"],
        "preemptions": life.about["num_preemptions"],
        "made": made,
        "begun": begun,
        "pace": pace,
        "phases": [[name, _since(start, moment), _since(end, moment)] for name, start, end in phases],
    }


def _ended(steps: Steps, since: float, until: float) -> int:
    """Return how many steps ended after ``since``, up to ``until``."""
    if until <= since:
        return 0
    edges = np.searchsorted(steps.end_time, [since, until], side="right")
    return int(edges[1] - edges[0])


def _running(span: Mapping[str, Any]) -> tuple[float, float]:
    own = [(start, end) for name, start, end in span["phases"] if name not in _WAITING]
    return (own[0][0], own[-1][1]) if own else (math.inf, math.inf)


def _since(seconds: float, moment: Moment) -> float:
    return round(seconds - moment.start, _MICRO)


@dataclass(frozen=True, slots=True)
class Round:
    """One round."""

    slots: float  # Its length in slots.
    groups: tuple[tuple[int, int, float], ...]
    """Micro-batches in order: how many equal ones, tokens of each, share of a slot that each takes at the stage with
    the most layers."""
    idle: float  # Idle share of the time of all stages.


def pipeline_rounds(replica: Replica, steps: Steps, layers: Sequence[int], piece: int | None) -> Iterator[Round]:
    """Yield the round of each step of a replica.

    Args:
        replica: The scheduler; its ``times`` give the time of its micro-batches.
        layers: Layers of each stage.
        piece: Tokens of a prompt that pass through the stages at once (llama.cpp's ``n_ubatch``); None: whole chunks.
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
    limit = replica.config.max_chunk_tokens // stages if replica.config.overlaps_chunks else tokens
    if not prefilling and decoding < priced // width and replica.config.pipeline_parallel_size > 1:
        # The largest micro-batch sets the pace; the others are shown as equally large, as far as requests suffice.
        largest = priced // stages // width
        count, rest = divmod(decoding, largest)
        base = replica.times.decode_base
        slots = float(stages)
        groups = [(count, width * largest, 1.0), (rest > 0, width * rest, base[stages * rest] / base[priced // width])]
    elif not prefilling:
        # The priced tokens include finished requests that decode once more, since the scheduler is a step ahead.
        decoding = max(priced // width, 1)
        count = int(num_micro_batches(np.array(float(decoding)), stages))
        slots = float(rounds(np.array(float(count)), layers))
        base = replica.times.decode_base
        each, rest = divmod(decoding, count)
        longest = base[min(stages * (each + (rest > 0)), len(base) - 1)]
        shorter = base[min(stages * each, len(base) - 1)] / longest
        groups = [(rest, width * (each + 1), 1.0), (count - rest, width * each, shorter if rest else 1.0)]
    elif piece is not None:
        # All priced tokens pass together, cut into pieces that fill and drain the stages.
        count = max(math.ceil(priced / stages / piece), 1)
        slots, groups = float(count + stages - 1), [(count, round(priced / stages / count), 1.0)]
    elif tokens > limit and priced > width * decoding + tokens:
        # The last micro-batches of a prompt: what follows waits until they have left the stages.
        count = math.ceil(tokens / limit)
        slots, groups = float(count + stages - 1), [(count, round(tokens / count), 1.0)]
    else:
        slots, groups = float(stages), _with_prompts(replica, stages, decoding, prefilling, tokens, priced)
    groups = [group for group in groups if group[0]]
    busy = sum(count * share for count, _, share in groups) * sum(layers) / max(layers)
    alike = tuple((count, each, round(share, _SHARE_DIGITS)) for count, each, share in groups)
    return Round(slots, alike, round(max(1.0 - busy / (slots * stages), 0.0), _SHARE_DIGITS))


def _with_prompts(
    replica: Replica, stages: int, decoding: int, prefilling: int, tokens: int, priced: int
) -> list[tuple[int, int, float]]:
    """Return the micro-batches of a round with prompts: all equal, or one with the largest chunk and the rest equal."""
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
    """Return the seconds for the tokens of a round, without attention."""
    table = replica.times.token_seconds
    last = len(table) - 1
    return table[min(math.ceil(tokens), last)] + replica.times.token_seconds_beyond * max(tokens - last, 0.0)
