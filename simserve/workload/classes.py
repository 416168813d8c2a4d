"""Draws requests class by class: arrivals, lengths, thinking, and the system prompt or document that each request or
conversation begins with.

Classes that share the common arrivals draw from the same streams as a workload without classes. A class with its own
arrivals draws from its own streams, so changing one class does not change another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.errors import ScenarioError
from simserve.workload.arrival_spec import AllAtOnceArrivals, ClosedLoopArrivals
from simserve.workload.class_spec import ClassSpec
from simserve.workload.distributions import asked_tokens, length_distribution, start_times
from simserve.workload.length_spec import AnswerLength
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import SharedPrefixSpec
from simserve.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    from simserve.workload.prefixes import PrefixSegments

Integers = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True, slots=True)
class ClassedRequests:
    """Requests with their classes, in order of arrival; columns as in `simserve.workload.requests.RequestSpecs`.

    Attributes:
        arrival_time: Seconds; NaN in a closed loop.
        prompt_tokens: Tokens.
        output_tokens: Tokens.
        request_class: Index into the classes of the workload, int16.
    """

    arrival_time: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    request_class: NDArray[np.int16]

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_time)


def draw_classes(spec: WorkloadSpec, *, seed: int, replication: int, base_path: Path | None) -> ClassedRequests:
    """Return the requests of all classes of a workload with classes; only the first ``num_requests`` if it is set.

    Raises:
        ScenarioError: No request arrives within the duration.
    """
    classes = spec.classes or ()
    parts = []
    if any(each.share is not None for each in classes):
        parts.append(draw_shared(spec, classes, seed, replication, base_path))
    for number, each in enumerate(classes):
        if each.arrivals is not None:
            parts.append(draw_own(spec, each, number, seed, replication, base_path))
    merged = parts[0] if len(parts) == 1 else _merged(parts)
    if not len(merged):
        remedy = "lengthen it or raise the rates"
        raise ScenarioError("is over before the first request arrives", key="workload.duration", remedy=remedy)
    return merged if spec.num_requests is None else _rows(merged, np.arange(min(spec.num_requests, len(merged))))


def draw_shared(
    spec: WorkloadSpec, classes: tuple[ClassSpec, ...], seed: int, replication: int, base_path: Path | None
) -> ClassedRequests:
    """Return the single requests of the classes that share the common arrivals."""
    times = _times(spec, None, seed, replication, "")
    request_class = draw_shares(classes, len(times), seed=seed, replication=replication)
    prompts, outputs = draw_lengths(spec, request_class, seed=seed, replication=replication, base_path=base_path)
    return ClassedRequests(times, prompts, outputs, request_class)


def draw_shares(classes: tuple[ClassSpec, ...], count: int, *, seed: int, replication: int) -> NDArray[np.int16]:
    """Return the classes of ``count`` requests, or conversations, that share the common arrivals."""
    sharing = [number for number, each in enumerate(classes) if each.share is not None]
    edges = np.cumsum([classes[number].share or 0.0 for number in sharing])
    uniforms = rng.stream(seed, "classes", replication).random(count) * edges[-1]
    drawn = np.minimum(np.searchsorted(edges, uniforms, side="right"), len(sharing) - 1)
    shared: NDArray[np.int16] = np.array(sharing, dtype=np.int16)[drawn]
    return shared


def draw_lengths(
    spec: WorkloadSpec, request_class: NDArray[np.int16], *, seed: int, replication: int, base_path: Path | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return prompt and output tokens of requests with these classes, from the common streams."""
    lengths = []
    for part in ("prompt_tokens", "output_tokens"):
        tokens = np.empty(len(request_class), dtype=np.int64)
        # One uniform per request, whatever its class: with another class it would use the same one.
        for number in np.unique(request_class).tolist():
            distribution = length_distribution(_own_length(spec, (spec.classes or ())[number], part), base_path)
            own = request_class == number
            tokens[own] = distribution.sample(rng.stream(seed, part, replication), len(request_class))[own]
        lengths.append(tokens)
    return lengths[0], lengths[1]


def draw_own(
    spec: WorkloadSpec, each: ClassSpec, number: int, seed: int, replication: int, base_path: Path | None
) -> ClassedRequests:
    """Return the single requests of a class with its own arrivals."""
    times = _times(spec, each, seed, replication, f".{each.name}")
    prompts, outputs = draw_own_lengths(
        spec, each, seed=seed, replication=replication, base_path=base_path, num_requests=len(times)
    )
    return ClassedRequests(times, prompts, outputs, np.full(len(times), number, dtype=np.int16))


def draw_own_lengths(
    spec: WorkloadSpec,
    each: ClassSpec | None,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
    num_requests: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return prompt and output tokens of ``num_requests`` requests of a class, from its own streams; None: no class."""
    suffix = "" if each is None else f".{each.name}"
    prompts, outputs = (
        length_distribution(_own_length(spec, each, part), base_path).sample(
            rng.stream(seed, f"{part}{suffix}", replication), num_requests
        )
        for part in ("prompt_tokens", "output_tokens")
    )
    return prompts, outputs


def _own_length(spec: WorkloadSpec, each: ClassSpec | None, part: str) -> AnswerLength:
    """Return the ``prompt_tokens`` or ``output_tokens`` of a class: its own, else the workload's."""
    own: AnswerLength | None = None if each is None else getattr(each, part)
    common: AnswerLength | None = getattr(spec, part)
    chosen = common if own is None else own
    assert chosen is not None, "checked where the workload was read"
    return chosen


def _times(spec: WorkloadSpec, each: ClassSpec | None, seed: int, replication: int, suffix: str) -> NDArray[np.float64]:
    arrivals = spec.arrivals if each is None else each.arrivals
    count = spec.num_requests if each is None or each.num_requests is None else each.num_requests
    duration = None if isinstance(arrivals, AllAtOnceArrivals | ClosedLoopArrivals) else spec.duration
    return start_times(
        arrivals, seed=seed, replication=replication, num_requests=count, duration=duration, suffix=suffix
    )


def _merged(parts: list[ClassedRequests]) -> ClassedRequests:
    together = ClassedRequests(
        *(
            np.concatenate([getattr(part, column) for part in parts])
            for column in ("arrival_time", "prompt_tokens", "output_tokens", "request_class")
        )
    )
    return _rows(together, np.argsort(together.arrival_time, kind="stable"))


def _rows(requests: ClassedRequests, rows: NDArray[np.int64]) -> ClassedRequests:
    return ClassedRequests(
        requests.arrival_time[rows],
        requests.prompt_tokens[rows],
        requests.output_tokens[rows],
        requests.request_class[rows],
    )


def priorities(classes: Sequence[ClassSpec], request_class: NDArray[np.int16]) -> NDArray[np.int64] | None:
    """Return the priority of each request, 0 if its class sets none; None if no class sets one."""
    if all(each.priority is None for each in classes):
        return None
    return np.array([each.priority or 0 for each in classes], dtype=np.int64)[request_class]


def draw_thinking(
    spec: WorkloadSpec,
    request_class: NDArray[np.int16] | None,
    count: int,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
) -> Integers | None:
    """Return the thinking tokens of each request, within its budget; None if no request thinks.

    The stream is ``thinking_tokens``, with one uniform per request; a class with its own arrivals has its own stream.

    Args:
        spec: The workload.
        request_class: Class of each request; None without classes.
        count: Number of requests.
        seed: Seed of the run.
        replication: Replication of the run.
        base_path: Folder in which relative paths are looked up before the working folder.
    """
    if not spec.has_thinking:
        return None
    if request_class is None:
        return _sampled(spec, None, "", count, seed, replication, base_path)
    tokens = np.zeros(count, dtype=np.int64)
    for number in np.unique(request_class).tolist():
        each = (spec.classes or ())[number]
        own = request_class == number
        if each.arrivals is None:
            # One uniform per request, whatever its class.
            tokens[own] = _sampled(spec, each, "", count, seed, replication, base_path)[own]
        else:
            num_own = int(np.count_nonzero(own))
            tokens[own] = _sampled(spec, each, f".{each.name}", num_own, seed, replication, base_path)
    return tokens


def _sampled(
    spec: WorkloadSpec,
    each: ClassSpec | None,
    suffix: str,
    count: int,
    seed: int,
    replication: int,
    base_path: Path | None,
) -> Integers:
    """Return the thinking tokens of ``count`` requests of a class (None: no class), from one stream."""
    length, budget = spec.thinking_tokens, spec.thinking_token_budget
    if each is not None:
        length = each.thinking_tokens or length
        budget = each.thinking_token_budget or budget
    if length is None:
        return np.zeros(count, dtype=np.int64)
    drawn = length_distribution(length, base_path).sample(
        rng.stream(seed, f"thinking_tokens{suffix}", replication), count
    )
    return drawn if budget is None else np.minimum(drawn, budget)


def with_thinking(
    specs: RequestSpecs, spec: WorkloadSpec, *, seed: int, replication: int, base_path: Path | None
) -> RequestSpecs:
    """Return single requests with the thinking before their answers; unchanged if no request thinks."""
    drawn = draw_thinking(
        spec, specs.request_class, len(specs), seed=seed, replication=replication, base_path=base_path
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginnings:
    """The shared texts that requests, or conversations, begin with.

    Attributes:
        group: Number of the text of each; `NONE`: it begins with none; shape [N].
        tokens: Length of that text, 0 for none, shape [N].
        num_groups: Total number of texts; those of the workload come first, then those of each class.
    """

    group: Integers
    tokens: Integers
    num_groups: int

    def of_rows(self, rows: Integers) -> Beginnings:
        """Return those of some rows, in that order."""
        return replace(self, group=self.group[rows], tokens=self.tokens[rows])


def draw_beginnings(
    spec: WorkloadSpec,
    count: int,
    *,
    seed: int,
    replication: int,
    class_of: NDArray[np.int16] | None = None,
    suffix: str = "",
) -> Beginnings | None:
    """Return the texts that requests or conversations begin with; None if the workload shares none.

    A class uses its own block if it has one, else the workload's. Each draw takes one uniform, whatever the class.

    Args:
        spec: The workload.
        count: Number of requests or conversations.
        seed: Seed of the run.
        replication: Replication of the run.
        class_of: Class of each, an index into the workload's; None without classes.
        suffix: Suffix of the stream ``prefix_groups``.
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
    uniforms = rng.stream(seed, f"prefix_groups{suffix}", replication).random(count)
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
    from simserve.workload.prefixes import system_prompts

    ends = prompts + specs.output_tokens
    return system_prompts(beginnings.group, beginnings.num_groups, beginnings.tokens, ends)
