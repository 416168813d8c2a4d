"""The `workload.structured_output` block: answers that must follow a grammar, and what that costs. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from simserve.units import Seconds
from simserve.validation import FrozenModel

GrammarBackend = Literal["xgrammar", "guidance", "outlines"]
MAX_SCHEMAS = 100_000


@dataclass(frozen=True, slots=True)
class GrammarCost:
    """What a grammar costs the CPU.

    Attributes:
        compile_time: Seconds from a schema to its first mask.
        mask_time: Seconds to fill the mask of one token of one sequence.
    """

    compile_time: float
    mask_time: float


GRAMMAR_COSTS: dict[GrammarBackend, GrammarCost] = {
    "xgrammar": GrammarCost(compile_time=62e-3, mask_time=24e-6),
    "guidance": GrammarCost(compile_time=1e-3, mask_time=47e-6),
    "outlines": GrammarCost(compile_time=1.33, mask_time=125e-6),
}
"""Measured by others. Compiling with xgrammar and outlines, and a mask of outlines: examples/benchmark of
zanderjiang/xgrammar (json-mode-eval, Llama-3.1 vocabulary, Ryzen 9 7950X, outlines 0.1.3): 61.9 ms, 1,333 ms, 125 us.
A mask of xgrammar: what vLLM's pull request 26866 hides behind the GPU, (36.9 - 15.9) us a sequence at a share of 1 and
27 us at 0.8, from its requests/s at 800 in flight and 128 tokens. guidance: means of MaskBench
(guidance-ai/jsonschemabench, llguidance 0.6.7, 10,163 schemas, one thread): 47 us, and a median compile of 1 ms. Hard
schemas take far longer: MaskBench has a median compile of 0.54 s for xgrammar 0.1.10, and of 7 s for outlines 0.1.13.
"""
ADVANCE_SECONDS = 16e-6
"""CPU seconds a token to take the sampled token into the grammar, which nothing hides: vLLM's pull request 26866 with
the masks hidden: Qwen3-1.7B, 800 in flight, 128 tokens, 103.2 -> 85.3 requests/s: 12.7 ms a step of 800 sequences."""


class StructuredOutputSpec(FrozenModel):
    """Answers that must follow a schema: its grammar is compiled once a replica, and masks the tokens of every step.

    A request waits for its grammar before it is scheduled; others pass it. Masks are filled on the CPU, behind the GPU
    where the engine's version does so. The steps of a run are priced at the share of constrained requests, not at how
    many are in each of them.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests whose answers are constrained."""
    num_schemas: Annotated[int, Field(ge=1, le=MAX_SCHEMAS)] = 1
    """Schemas that they have, all equally likely; each is compiled when it is first asked for."""
    backend: GrammarBackend = "xgrammar"
    """What compiles grammars and fills masks: `xgrammar`, `guidance` (llguidance) or `outlines`."""
    compile_time: Seconds | None = None
    """From a schema to its first mask. Absent: as published for simple schemas, 62 ms (xgrammar), 1 ms (guidance),
    1.33 s (outlines); hard ones take ten times as long and more."""
    mask_time: Seconds | None = None
    """CPU time to fill the mask of one token of one sequence. Absent: as published, 24 us (xgrammar), 47 us (guidance),
    125 us (outlines)."""

    @property
    def cost(self) -> GrammarCost:
        """What a grammar costs: as given, else as published for the backend."""
        known = GRAMMAR_COSTS[self.backend]
        return GrammarCost(
            compile_time=known.compile_time if self.compile_time is None else self.compile_time,
            mask_time=known.mask_time if self.mask_time is None else self.mask_time,
        )
