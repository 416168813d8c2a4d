"""Public recipes of InferenceX's separate pools: which workers served so many clients. Reads no measurement.

From github.com/SemiAnalysisAI/InferenceX, .github/configs/nvidia-master.yaml at 0004cf5f, and the files of
ishandhanani/srt-slurm that it names. A recipe is called there, or called here after the same pattern, by its prefill
workers, its decode workers, how each of those is cut over how many GPUs, the requests that one of them takes, and the
drafts a step: ``ctx1_gen9_tep8_batch256_mtp0``. With data-parallel attention (``dep``) each rank takes so many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Layout = Literal["tp", "tep", "dep"]
"""Attention and experts cut over all GPUs; experts placed whole; attention data-parallel too."""

_NAME = re.compile(r"ctx(\d+)_gen(\d+)_(tp|tep|dep)(\d+)_batch(\d+)_mtp(\d)")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Workers of one recipe.

    Attributes:
        prefills: Prefill workers.
        decodes: Decode workers.
        layout: Of a decode worker.
        num_gpus: Of a decode worker.
        seats: Requests that a decode worker takes, or each of its ranks of data-parallel attention.
        drafts: Drafts a step of the model's MTP layer; 0: none.
    """

    prefills: int
    decodes: int
    layout: Layout
    num_gpus: int
    seats: int
    drafts: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefill worker of a set of recipes.

    Attributes:
        has_ranks: Whether its attention is data-parallel.
        seats: Prompts of a step, of each rank.
        budget: Tokens of a step, of each rank.
        kv_share: Share of memory for the KV cache, by the engine's rule.
        is_placed: Whether experts lie whole on its GPUs, not cut over all.
    """

    has_ranks: bool
    seats: int
    budget: int
    kv_share: float
    is_placed: bool = True


Key = tuple[str, str, str, int, int]
"""Engine, GPU, weight format, prompt and output length."""

_LOW = (1, 4, 8, 16, 32, 64, 128, 256)
_HIGH = (128, 256, 512, 1024, 2048)
_TO_128 = (1, 2, 4, 8, 16, 32, 64, 128)

_RECIPES: dict[Key, Sequence[tuple[Sequence[int], str]]] = {
    ("tensorrt-llm", "h200", "fp8", 1024, 1024): (
        ((11,), "ctx1_gen9_tep8_batch1_mtp0"),
        ((36, 72, 144, 288, 576), "ctx1_gen9_tep8_batch256_mtp0"),
        ((1152,), "ctx1_gen9_dep8_batch512_mtp0"),
        ((1536,), "ctx1_gen6_dep8_batch512_mtp0"),
        ((3584,), "ctx2_gen7_dep8_batch512_mtp0"),
        ((13,), "ctx1_gen11_tep8_batch1_mtp3"),
        ((44, 88, 352), "ctx1_gen11_tep8_batch128_mtp3"),
        ((144,), "ctx1_gen9_tep8_batch128_mtp3"),
        ((512,), "ctx1_gen8_dep8_batch128_mtp3"),
        ((896,), "ctx1_gen7_dep8_batch128_mtp3"),
        ((1024,), "ctx1_gen4_dep8_batch128_mtp3"),
        ((1024,), "ctx1_gen2_dep8_batch256_mtp1"),
    ),
    ("tensorrt-llm", "h200", "fp8", 8192, 1024): (
        ((9,), "ctx1_gen7_tep8_batch1_mtp0"),
        ((28,), "ctx1_gen7_tep8_batch32_mtp0"),
        ((48,), "ctx1_gen6_tep8_batch16_mtp0"),
        ((48,), "ctx1_gen3_tep8_batch32_mtp0"),
        ((160,), "ctx2_gen5_tep8_batch128_mtp0"),
        ((192,), "ctx2_gen3_dep8_batch128_mtp0"),
        ((128,), "ctx1_gen1_dep8_batch256_mtp0"),
        ((768,), "ctx5_gen3_dep8_batch256_mtp0"),
        ((512,), "ctx3_gen1_dep8_batch512_mtp0"),
        ((9,), "ctx1_gen7_tep8_batch1_mtp3"),
        ((28,), "ctx1_gen7_tep8_batch32_mtp3"),
        ((48,), "ctx1_gen6_tep8_batch32_mtp3"),
        ((48,), "ctx1_gen3_tep8_batch32_mtp2"),
        ((160,), "ctx3_gen5_tep8_batch32_mtp3"),
        ((64,), "ctx1_gen1_dep8_batch32_mtp2"),
        ((128,), "ctx2_gen1_dep8_batch32_mtp2"),
        ((256,), "ctx3_gen1_dep8_batch32_mtp2"),
        ((512,), "ctx3_gen1_dep8_batch64_mtp1"),
    ),
    ("tensorrt-llm", "h100", "fp8", 1024, 1024): (
        ((6,), "ctx1_gen3_tep16_batch1_mtp0"),
        ((9,), "ctx1_gen3_tep16_batch2_mtp0"),
        ((30,), "ctx1_gen3_tep16_batch8_mtp0"),
        ((60,), "ctx1_gen3_tep16_batch16_mtp0"),
        ((231,), "ctx1_gen3_dep16_batch4_mtp0"),
        ((462,), "ctx1_gen3_dep16_batch8_mtp0"),
        ((924,), "ctx1_gen3_dep16_batch16_mtp0"),
        ((1845,), "ctx1_gen3_dep16_batch32_mtp0"),
        ((4916,), "ctx2_gen1_dep16_batch256_mtp0"),
        ((6,), "ctx1_gen3_tep16_batch1_mtp3"),
        ((9,), "ctx1_gen3_tep16_batch2_mtp3"),
        ((30,), "ctx1_gen3_tep16_batch8_mtp3"),
        ((60,), "ctx1_gen3_tep16_batch16_mtp3"),
        ((117,), "ctx1_gen3_tep16_batch32_mtp3"),
        ((462,), "ctx1_gen3_tep16_batch128_mtp3"),
        ((231,), "ctx1_gen3_dep16_batch4_mtp3"),
        ((615,), "ctx1_gen1_dep16_batch32_mtp2"),
        ((1229,), "ctx1_gen1_dep16_batch64_mtp1"),
    ),
    ("tensorrt-llm", "h100", "fp8", 8192, 1024): (
        ((6,), "ctx1_gen3_tep16_batch1_mtp0"),
        ((9,), "ctx1_gen3_tep16_batch2_mtp0"),
        ((30,), "ctx1_gen3_tep16_batch8_mtp0"),
        ((154,), "ctx1_gen2_tep16_batch64_mtp0"),
        ((308,), "ctx2_gen1_dep16_batch16_mtp0"),
        ((6,), "ctx1_gen3_tep16_batch1_mtp3"),
        ((9,), "ctx1_gen3_tep16_batch2_mtp3"),
        ((30,), "ctx1_gen3_tep16_batch8_mtp3"),
        ((77,), "ctx1_gen1_dep16_batch4_mtp3"),
        ((154,), "ctx2_gen1_dep16_batch8_mtp3"),
    ),
    ("sglang", "h200", "fp8", 1024, 1024): (
        (_LOW, "ctx1_gen9_tp8_batch256_mtp0"),
        ((512, 1024, 2048), "ctx1_gen6_tp8_batch512_mtp0"),
        (_HIGH, "ctx1_gen6_dep8_batch64_mtp0"),
        (_LOW, "ctx1_gen9_tp8_batch256_mtp2"),
        ((512, 1024, 2048), "ctx1_gen6_tp8_batch512_mtp2"),
        (_HIGH, "ctx1_gen6_dep8_batch64_mtp2"),
    ),
    ("sglang", "h200", "fp8", 8192, 1024): (
        ((1, 4, 8), "ctx1_gen7_tp8_batch128_mtp0"),
        ((4, 8, 16), "ctx1_gen6_tp8_batch128_mtp0"),
        ((8, 16, 32), "ctx1_gen3_tp8_batch128_mtp0"),
        ((32, 64, 128), "ctx2_gen3_tp8_batch128_mtp0"),
        ((64, 128, 256), "ctx1_gen1_dep8_batch64_mtp0"),
        ((1, 4, 8), "ctx1_gen7_tp8_batch128_mtp2"),
        ((2, 4, 8, 16, 32), "ctx1_gen6_tp8_batch128_mtp2"),
        ((4, 8, 16, 32, 64), "ctx1_gen3_tp8_batch128_mtp2"),
        ((32, 64, 128), "ctx2_gen3_tp8_batch128_mtp2"),
        ((32, 64, 128, 256, 512), "ctx1_gen1_dep8_batch64_mtp2"),
    ),
    ("sglang", "h100", "fp8", 1024, 1024): (
        (_TO_128, "ctx1_gen2_tp16_batch512_mtp0"),
        (_TO_128[:-1], "ctx1_gen1_dep16_batch32_mtp0"),
        (_TO_128, "ctx1_gen2_tp16_batch512_mtp2"),
        (_TO_128[:-1], "ctx1_gen1_dep16_batch32_mtp2"),
    ),
    ("sglang", "h100", "fp8", 1024, 8192): (
        (_TO_128[:-1], "ctx1_gen2_tp16_batch512_mtp0"),
        (_TO_128[:4], "ctx1_gen1_dep16_batch32_mtp0"),
        (_TO_128[:-1], "ctx1_gen2_tp16_batch512_mtp2"),
        (_TO_128[:-1], "ctx1_gen1_dep16_batch32_mtp2"),
    ),
    ("sglang", "h100", "fp8", 8192, 1024): (
        (_TO_128, "ctx1_gen1_tp16_batch512_mtp0"),
        (_TO_128[:-1], "ctx1_gen1_dep16_batch32_mtp0"),
        (_TO_128, "ctx1_gen1_tp16_batch512_mtp2"),
        (_TO_128[:-1], "ctx1_gen1_dep16_batch32_mtp2"),
    ),
}
"""Clients and recipe. Those of TensorRT-LLM on H200 name the clients of one decode worker, not of all."""

_PREFILLS: Mapping[tuple[str, str, str, int], Prefill] = {
    ("tensorrt-llm", "h200", "fp8", 1024): Prefill(True, 8, 8192, 0.6),
    ("tensorrt-llm", "h200", "fp8", 8192): Prefill(False, 2, 16640, 0.85),
    ("tensorrt-llm", "h100", "fp8", 1024): Prefill(True, 2, 2048, 0.6),
    ("tensorrt-llm", "h100", "fp8", 8192): Prefill(True, 1, 8224, 0.3),
}
"""Prefill workers by engine, GPU, format and prompt length, whatever decodes behind them."""

_SGLANG_PREFILL = {
    1024: Prefill(False, 512, 163840, 0.82, is_placed=False),
    8192: Prefill(False, 16, 32768, 0.82, is_placed=False),
}
"""By prompt length."""
_SGLANG_PREFILL_OF_RANKS = Prefill(True, 64, 32768, 0.75)


def recipes_of(key: Key, clients: int, is_placed: bool) -> list[Recipe]:
    """Return the recipes that so many clients may have been served by.

    Args:
        key: Engine, GPU, weight format and lengths.
        clients: Of the row.
        is_placed: Whether its prefill workers have their experts whole: what rows say of decode workers is a copy of
            what they say of these.
    """
    found = [recipe for served, recipe in _parsed(key) if clients in served]
    return [each for each in found if prefill_of(key, each.layout).is_placed == is_placed]


def prefill_of(key: Key, decode: Layout) -> Prefill:
    """Return the prefill worker of a recipe, by how its decode workers are cut."""
    engine, hardware, precision, prompt, _ = key
    if engine == "sglang":
        return _SGLANG_PREFILL_OF_RANKS if decode == "dep" and prompt == 1024 else _SGLANG_PREFILL[prompt]
    return _PREFILLS[(engine, hardware, precision, prompt)]


def _parsed(key: Key) -> Iterator[tuple[Sequence[int], Recipe]]:
    for clients, name in _RECIPES.get(key, ()):
        found = _NAME.fullmatch(name)
        assert found is not None, name
        prefills, decodes, num_gpus, seats, drafts = (int(found[group]) for group in (1, 2, 4, 5, 6))
        layout: Layout = "tp" if found[3] == "tp" else "tep" if found[3] == "tep" else "dep"
        yield clients, Recipe(prefills, decodes, layout, num_gpus, seats, drafts)
