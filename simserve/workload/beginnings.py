"""Beginnings drawn: which system prompt or document each request, or conversation, begins with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import SharedPrefixSpec
from simserve.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    from simserve.workload.prefixes import PrefixSegments

NONE = -1
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginnings:
    """What requests, or conversations, begin with.

    Attributes:
        group: Number of the text of each, `NONE` where it begins like no other, shape [N].
        tokens: Its length, 0 for none, shape [N].
        num_groups: Texts in all; those of the workload first, then those of each class.
    """

    group: Integers
    tokens: Integers
    num_groups: int

    def of_rows(self, rows: Integers) -> Beginnings:
        """Return those of some of them, in that order."""
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
    """Return what so many requests or conversations begin with; None where the workload shares nothing.

    A class goes by a block of its own, else by the workload's. One uniform each, whatever the class.

    Args:
        spec: The workload.
        count: How many.
        seed: Of the run.
        replication: Of the run.
        class_of: Class of each, an index into the workload's; None: without classes.
        suffix: Of the stream ``prefix_groups``.
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
    """Return requests whose prompts begin with these texts, which come on top; the same where there are none."""
    if beginnings is None:
        return specs
    prompts = specs.prompt_tokens + beginnings.tokens
    return replace(specs, prompt_tokens=prompts, prefixes=_prefixes(specs, prompts, beginnings))


def with_beginnings_within(specs: RequestSpecs, beginnings: Beginnings | None) -> RequestSpecs:
    """Return requests whose prompts hold these texts already; one that is shorter holds as much of it."""
    if beginnings is None:
        return specs
    held = replace(beginnings, tokens=np.minimum(beginnings.tokens, specs.prompt_tokens))
    return replace(specs, prefixes=_prefixes(specs, specs.prompt_tokens, held))


def _prefixes(specs: RequestSpecs, prompts: Integers, beginnings: Beginnings) -> PrefixSegments:
    from simserve.workload.prefixes import system_prompts

    ends = prompts + specs.output_tokens
    return system_prompts(beginnings.group, beginnings.num_groups, beginnings.tokens, ends)
