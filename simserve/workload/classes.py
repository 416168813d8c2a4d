"""Draws requests class by class: arrivals, lengths, thinking, and the system prompt or document that each request or
conversation begins with.

Classes that share the common arrivals draw from the same streams as a workload without classes. A class with its own
arrivals draws from its own streams, so changing one class does not change another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError
from simserve.workload.arrival_spec import AllAtOnceArrivals, ClosedLoopArrivals
from simserve.workload.class_spec import ClassSpec
from simserve.workload.distributions import Draws, asked_tokens, start_times
from simserve.workload.length_spec import AnswerLength
from simserve.workload.prefixes import NONE, Beginnings, PrefixSegments, system_prompts
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import SharedPrefixSpec
from simserve.workload.spec import WorkloadSpec

Integers = NDArray[np.int64]


class Rows(NamedTuple):
    """Single requests in order of arrival; columns as in `simserve.workload.requests.RequestSpecs`."""

    arrival_time: NDArray[np.float64]
    prompt_tokens: Integers
    output_tokens: Integers
    request_class: NDArray[np.int16] | None


def draw_single(spec: WorkloadSpec, draws: Draws) -> Rows:
    """Return the single requests of a workload with classes, only the first ``num_requests`` of all if it is set.

    Raises:
        ScenarioError: No request arrives within the duration.
    """
    classes = spec.classes or ()
    numbers: list[int | None] = [None] if any(each.share is not None for each in classes) else []
    numbers += [number for number, each in enumerate(classes) if each.arrivals is not None]
    parts = [draw_rows(spec, number, draws) for number in numbers]
    merged = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(merged[0], kind="stable")[: spec.num_requests]
    if not len(order):
        remedy = "lengthen it or raise the rates"
        raise ScenarioError("is over before the first request arrives", key="workload.duration", remedy=remedy)
    return Rows(*(column[order] for column in merged))


def draw_rows(spec: WorkloadSpec, number: int | None, draws: Draws) -> Rows:
    """Return the single requests of a class with its own arrivals; None: of those that share the common arrivals."""
    classes = spec.classes or ()
    each = None if number is None else classes[number]
    own = draws if each is None else draws.own(each.name)
    arrivals = spec.arrivals if each is None else each.arrivals
    count = spec.num_requests if each is None or each.num_requests is None else each.num_requests
    duration = None if isinstance(arrivals, AllAtOnceArrivals | ClosedLoopArrivals) else spec.duration
    times = start_times(arrivals, own, num_requests=count, duration=duration)
    if each is None:
        request_class = draw_shares(classes, len(times), draws)
        return Rows(times, *draw_lengths(spec, request_class, draws), request_class)
    numbers = np.full(len(times), number, dtype=np.int16)
    return Rows(times, *draw_own_lengths(spec, each, len(times), own), numbers)


def draw_shares(classes: tuple[ClassSpec, ...], count: int, draws: Draws) -> NDArray[np.int16]:
    """Return the classes of ``count`` requests, or conversations, that share the common arrivals."""
    sharing = [number for number, each in enumerate(classes) if each.share is not None]
    edges = np.cumsum([classes[number].share or 0.0 for number in sharing])
    uniforms = draws.stream("classes").random(count) * edges[-1]
    drawn = np.minimum(np.searchsorted(edges, uniforms, side="right"), len(sharing) - 1)
    shared: NDArray[np.int16] = np.array(sharing, dtype=np.int16)[drawn]
    return shared


def draw_lengths(spec: WorkloadSpec, request_class: NDArray[np.int16], draws: Draws) -> tuple[Integers, Integers]:
    """Return prompt and output tokens of requests with these classes, from the common streams."""
    lengths = []
    for part in ("prompt_tokens", "output_tokens"):
        tokens = np.empty(len(request_class), dtype=np.int64)
        # One uniform per request, whatever its class: with another class it would use the same one.
        for number in np.unique(request_class).tolist():
            own = request_class == number
            length = _own_length(spec, (spec.classes or ())[number], part)
            tokens[own] = draws.lengths(length, part, len(request_class))[own]
        lengths.append(tokens)
    return lengths[0], lengths[1]


def draw_own_lengths(spec: WorkloadSpec, each: ClassSpec | None, count: int, draws: Draws) -> tuple[Integers, Integers]:
    """Return prompt and output tokens of ``count`` requests of a class, from its own streams; None: no class."""
    prompts, outputs = (
        draws.lengths(_own_length(spec, each, part), part, count) for part in ("prompt_tokens", "output_tokens")
    )
    return prompts, outputs


def _own_length(spec: WorkloadSpec, each: ClassSpec | None, part: str) -> AnswerLength:
    """Return the ``prompt_tokens`` or ``output_tokens`` of a class: its own, else the workload's."""
    own: AnswerLength | None = None if each is None else getattr(each, part)
    common: AnswerLength | None = getattr(spec, part)
    chosen = common if own is None else own
    assert chosen is not None, "checked where the workload was read"
    return chosen


def draw_thinking(
    spec: WorkloadSpec, request_class: NDArray[np.int16] | None, count: int, draws: Draws
) -> Integers | None:
    """Return the thinking tokens of each request, within its budget; None if no request thinks.

    The stream is ``thinking_tokens``, with one uniform per request; a class with its own arrivals has its own stream.

    Args:
        request_class: Class of each request; None without classes.
    """
    if not spec.has_thinking:
        return None
    if request_class is None:
        return _sampled(spec, None, count, draws)
    tokens = np.zeros(count, dtype=np.int64)
    for number in np.unique(request_class).tolist():
        each = (spec.classes or ())[number]
        own = request_class == number
        if each.arrivals is None:
            # One uniform per request, whatever its class.
            tokens[own] = _sampled(spec, each, count, draws)[own]
        else:
            tokens[own] = _sampled(spec, each, int(np.count_nonzero(own)), draws.own(each.name))
    return tokens


def _sampled(spec: WorkloadSpec, each: ClassSpec | None, count: int, draws: Draws) -> Integers:
    """Return the thinking tokens of ``count`` requests of a class (None: no class), from one stream."""
    length, budget = spec.thinking_tokens, spec.thinking_token_budget
    if each is not None:
        length = each.thinking_tokens or length
        budget = each.thinking_token_budget or budget
    if length is None:
        return np.zeros(count, dtype=np.int64)
    drawn = draws.lengths(length, "thinking_tokens", count)
    return drawn if budget is None else np.minimum(drawn, budget)


def with_thinking(specs: RequestSpecs, spec: WorkloadSpec, draws: Draws) -> RequestSpecs:
    """Return single requests with the thinking before their answers; unchanged if no request thinks."""
    drawn = draw_thinking(spec, specs.request_class, len(specs), draws)
    if drawn is None:
        return specs
    # A request without an answer does not think either.
    drawn = np.where(specs.output_tokens == 0, 0, drawn)
    output_tokens = specs.output_tokens + drawn
    return replace(
        specs,
        output_tokens=output_tokens,
        max_tokens=asked_tokens(spec.max_tokens, output_tokens),
        thinking_tokens=drawn,
    )


def draw_beginnings(
    spec: WorkloadSpec, count: int, draws: Draws, class_of: NDArray[np.int16] | None = None
) -> Beginnings | None:
    """Return the texts that requests or conversations begin with; None if the workload shares none.

    A class uses its own block if it has one, else the workload's. Each draw takes one uniform, whatever the class.

    Args:
        draws: The run's draws: the stream is ``prefix_groups``.
        class_of: Class of each, an index into the workload's; None without classes.
    """
    kinds: list[tuple[SharedPrefixSpec, int]] = []
    num_groups = 0

    def known(block: SharedPrefixSpec | None) -> int:
        nonlocal num_groups
        if block is None:
            return NONE
        kinds.append((block, num_groups))
        num_groups += block.num_groups
        return len(kinds) - 1

    common = known(spec.shared_prefix)
    of_class = [common if each.shared_prefix is None else known(each.shared_prefix) for each in spec.classes or ()]
    if not kinds:
        return None
    uniforms = draws.stream("prefix_groups").random(count)
    kind = np.full(count, common) if class_of is None else np.array(of_class, dtype=np.int64)[class_of]
    group, tokens = np.full(count, NONE, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for number, (block, first) in enumerate(kinds):
        own = kind == number
        drawn = np.minimum(uniforms[own] * block.num_groups, block.num_groups - 1).astype(np.int64)
        group[own], tokens[own] = first + drawn, block.tokens
    return Beginnings(group=group, tokens=tokens, num_groups=num_groups)


def with_beginnings(specs: RequestSpecs, beginnings: Beginnings | None) -> RequestSpecs:
    """Return requests with these texts added in front of their prompts; unchanged if there are none."""
    if beginnings is None:
        return specs
    prompts = specs.prompt_tokens + beginnings.tokens
    return replace(specs, prompt_tokens=prompts, prefixes=_prefixes(specs, prompts, beginnings))


def with_beginnings_within(specs: RequestSpecs, beginnings: Beginnings | None) -> RequestSpecs:
    """Return requests whose prompts already contain these texts; a shorter prompt contains only its part of one."""
    if beginnings is None:
        return specs
    held = replace(beginnings, tokens=np.minimum(beginnings.tokens, specs.prompt_tokens))
    return replace(specs, prefixes=_prefixes(specs, specs.prompt_tokens, held))


def _prefixes(specs: RequestSpecs, prompts: Integers, beginnings: Beginnings) -> PrefixSegments:
    return system_prompts(beginnings.group, beginnings.num_groups, beginnings.tokens, prompts + specs.output_tokens)
