"""Public recipes of InferenceX's separate pools: the workers that served a number of clients. Reads no measurement.

From github.com/SemiAnalysisAI/InferenceX, .github/configs/nvidia-master.yaml at 0004cf5f, and the files of
ishandhanani/srt-slurm that it names. A recipe's name there, or here by the same pattern, gives its prefill workers, its
decode workers, how each of those is split over how many GPUs, the requests per decode worker, and the drafts per step:
``ctx1_gen9_tep8_batch256_mtp0``. With data-parallel attention (``dep``) the requests are per rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Layout = Literal["tp", "tep", "dep"]
"""Attention and experts split over all GPUs; experts placed whole; data-parallel attention too."""

_NAME = re.compile(r"ctx(\d+)_gen(\d+)_(tp|tep|dep)(\d+)_batch(\d+)_mtp(\d)")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Workers of one recipe.

    Attributes:
        prefills: Prefill workers.
        decodes: Decode workers.
        layout: Layout of a decode worker.
        num_gpus: GPUs of a decode worker.
        seats: Requests per decode worker, or per rank of its data-parallel attention.
        drafts: Drafts per step of the model's MTP layer; 0: none.
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
        seats: Prompts per step and rank.
        budget: Tokens per step and rank.
        kv_share: Share of memory for the KV cache, by the engine's rule.
        is_placed: Whether experts are whole on its GPUs, rather than split over all.
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
    ("tensorrt-llm", "b200", "fp4", 1024, 1024): (
        ((1214,), "ctx1_gen2_dep8_batch64_mtp2"),
        ((875,), "ctx1_gen5_dep8_batch16_mtp3"),
        ((6,), "ctx1_gen5_tep8_batch1_mtp3"),
        ((10, 15, 25, 45, 90, 180), "ctx1_gen5_tep8_batch32_mtp3"),
        ((4968,), "ctx3_gen4_dep8_batch128_mtp1"),
        ((10860,), "ctx3_gen5_dep4_batch512_mtp1"),
        ((4096,), "ctx1_gen1_dep8_batch512_mtp0"),
        ((2192,), "ctx1_gen2_dep8_batch128_mtp0"),
        ((1365,), "ctx1_gen5_dep8_batch32_mtp0"),
        ((6,), "ctx1_gen5_tep8_batch1_mtp0"),
        ((10, 15, 25, 45, 90, 180), "ctx1_gen5_tep8_batch32_mtp0"),
        ((450,), "ctx1_gen6_tep8_batch64_mtp0"),
    ),
    ("tensorrt-llm", "b200", "fp4", 8192, 1024): (
        ((90,), "ctx1_gen1_dep8_batch8_mtp3"),
        ((66,), "ctx1_gen3_tep8_batch16_mtp3"),
        ((6,), "ctx1_gen5_tep8_batch1_mtp3"),
        ((10, 15, 30, 60), "ctx1_gen5_tep8_batch8_mtp3"),
        ((548,), "ctx3_gen1_dep8_batch64_mtp3"),
        ((1096, 1691), "ctx5_gen1_dep8_batch192_mtp1"),
        ((658,), "ctx5_gen2_dep8_batch32_mtp3"),
        ((6,), "ctx1_gen5_tep8_batch1_mtp0"),
        ((10, 15, 25, 50, 100), "ctx1_gen5_tep8_batch8_mtp0"),
        ((370,), "ctx2_gen5_tep8_batch64_mtp0"),
        ((1606,), "ctx4_gen1_dep8_batch192_mtp0"),
        ((837,), "ctx4_gen3_dep8_batch32_mtp0"),
        ((2222,), "ctx7_gen2_dep8_batch128_mtp0"),
    ),
    ("tensorrt-llm", "b200", "fp8", 1024, 1024): (
        ((8,), "ctx1_gen8_tp8_batch1_mtp3"),
        ((32,), "ctx1_gen8_tp8_batch4_mtp3"),
        ((64,), "ctx1_gen8_tp8_batch8_mtp3"),
        ((256,), "ctx1_gen8_tp8_batch32_mtp3"),
        ((896,), "ctx1_gen7_dep8_batch128_mtp3"),
        ((1024,), "ctx1_gen4_dep8_batch256_mtp3"),
        ((1184,), "ctx1_gen3_dep8_batch384_mtp3"),
        ((1600,), "ctx1_gen2_dep8_batch768_mtp2"),
        ((4, 32, 128), "ctx1_gen3_tp8_batch1024_mtp0"),
        ((1920,), "ctx1_gen5_dep8_batch48_mtp0"),
        ((4096,), "ctx1_gen1_dep8_batch512_mtp0"),
        ((5152,), "ctx2_gen5_dep8_batch128_mtp0"),
    ),
    ("tensorrt-llm", "b200", "fp8", 8192, 1024): (
        ((8, 48), "ctx1_gen6_tp8_batch8_mtp3"),
        ((8,), "ctx1_gen2_tp8_batch32_mtp3"),
        ((64,), "ctx1_gen4_tp8_batch16_mtp3"),
        ((224,), "ctx2_gen3_dep8_batch8_mtp3"),
        ((288,), "ctx2_gen1_dep8_batch32_mtp3"),
        ((1088,), "ctx4_gen1_dep8_batch128_mtp2"),
        ((1,), "ctx1_gen1_tp8_batch1_mtp0"),
        ((32, 128), "ctx1_gen4_tp8_batch32_mtp0"),
        ((96,), "ctx1_gen6_tp8_batch16_mtp0"),
        ((128,), "ctx1_gen1_dep8_batch128_mtp0"),
        ((128,), "ctx1_gen2_dep8_batch64_mtp0"),
        ((256,), "ctx1_gen1_dep8_batch256_mtp0"),
        ((640,), "ctx2_gen1_dep8_batch640_mtp0"),
    ),
    ("tensorrt-llm", "gb200", "fp4", 1024, 1024): (
        ((180,), "ctx1_gen1_dep32_batch4_mtp3"),
        ((4, 8, 12, 24, 48), "ctx1_gen4_tep8_batch8_mtp3"),
        ((4301,), "ctx2_gen1_dep16_batch256_mtp1"),
        ((2253,), "ctx3_gen1_dep32_batch64_mtp1"),
        ((16130,), "ctx3_gen5_dep4_batch768_mtp1"),
        ((4301,), "ctx1_gen1_dep8_batch512_mtp0"),
        ((666,), "ctx1_gen1_dep32_batch16_mtp0"),
        ((6144,), "ctx1_gen2_dep4_batch768_mtp0"),
        ((12, 24, 48, 96, 192), "ctx1_gen4_tep8_batch32_mtp0"),
        ((5,), "ctx1_gen4_tep8_batch1_mtp0"),
        ((4301,), "ctx2_gen1_dep16_batch256_mtp0"),
        ((2253,), "ctx2_gen1_dep32_batch64_mtp0"),
    ),
    ("tensorrt-llm", "gb200", "fp4", 1024, 8192): (
        ((4, 8, 12, 24, 28, 48), "ctx1_gen7_tep8_batch4_mtp3"),
        ((7,), "ctx1_gen7_tep8_batch1_mtp3"),
        ((128,), "ctx1_gen1_dep32_batch4_mtp3"),
        ((512,), "ctx1_gen1_dep32_batch16_mtp3"),
        ((3072,), "ctx1_gen3_dep16_batch64_mtp3"),
        ((6144,), "ctx1_gen3_dep16_batch128_mtp1"),
        ((8192,), "ctx1_gen1_dep32_batch256_mtp1"),
        ((5,), "ctx1_gen7_tep8_batch1_mtp0"),
        ((60,), "ctx1_gen15_tep4_batch4_mtp0"),
        ((135,), "ctx1_gen15_tep4_batch8_mtp0"),
        ((563,), "ctx1_gen1_dep32_batch16_mtp0"),
        ((2048,), "ctx1_gen1_dep32_batch64_mtp0"),
        ((4096,), "ctx1_gen1_dep32_batch128_mtp0"),
        ((8192,), "ctx1_gen1_dep32_batch256_mtp0"),
    ),
    ("tensorrt-llm", "gb200", "fp4", 8192, 1024): (
        ((4, 8, 12, 24, 48), "ctx1_gen4_tep8_batch8_mtp3"),
        ((180,), "ctx3_gen1_dep32_batch4_mtp3"),
        ((1229,), "ctx7_gen1_dep16_batch64_mtp1"),
        ((666,), "ctx8_gen1_dep32_batch16_mtp3"),
        ((4301,), "ctx11_gen1_dep16_batch256_mtp1"),
        ((12, 44, 76), "ctx1_gen4_tep8_batch16_mtp0"),
        ((5,), "ctx1_gen4_tep8_batch1_mtp0"),
        ((333,), "ctx2_gen1_dep32_batch8_mtp0"),
        ((1229,), "ctx7_gen1_dep32_batch32_mtp0"),
        ((2253,), "ctx8_gen1_dep16_batch128_mtp0"),
        ((4096,), "ctx10_gen1_dep16_batch256_mtp0"),
    ),
    ("tensorrt-llm", "gb200", "fp8", 1024, 1024): (
        ((4301,), "ctx1_gen1_dep8_batch512_mtp1"),
        ((2151,), "ctx1_gen1_dep8_batch256_mtp1"),
        ((1229,), "ctx1_gen1_dep16_batch64_mtp1"),
        ((615,), "ctx1_gen1_dep32_batch16_mtp3"),
        ((36,), "ctx1_gen3_tep8_batch8_mtp3"),
        ((18,), "ctx1_gen3_tep8_batch4_mtp3"),
        ((9,), "ctx1_gen3_tep8_batch2_mtp3"),
        ((6144,), "ctx1_gen1_dep8_batch768_mtp0"),
        ((4301,), "ctx1_gen1_dep8_batch512_mtp0"),
        ((2151,), "ctx1_gen1_dep16_batch128_mtp0"),
        ((1127,), "ctx1_gen1_dep32_batch32_mtp0"),
        ((256,), "ctx1_gen1_dep32_batch8_mtp0"),
        ((27,), "ctx1_gen3_tep8_batch8_mtp0"),
        ((3,), "ctx1_gen3_tep8_batch1_mtp0"),
    ),
    ("tensorrt-llm", "gb200", "fp8", 1024, 8192): (
        ((8192,), "ctx1_gen2_dep16_batch256_mtp1"),
        ((2152,), "ctx1_gen2_dep16_batch64_mtp1"),
        ((564,), "ctx1_gen1_dep32_batch16_mtp3"),
        ((72,), "ctx1_gen1_dep32_batch2_mtp3"),
        ((4, 8), "ctx1_gen4_tep8_batch2_mtp3"),
        ((8192,), "ctx1_gen2_dep16_batch256_mtp0"),
        ((2048,), "ctx1_gen1_dep32_batch64_mtp0"),
        ((564,), "ctx1_gen1_dep32_batch16_mtp0"),
        ((36,), "ctx1_gen4_tep8_batch8_mtp0"),
        ((4,), "ctx1_gen4_tep8_batch1_mtp0"),
    ),
    ("tensorrt-llm", "gb200", "fp8", 8192, 1024): (
        ((666,), "ctx3_gen1_dep8_batch64_mtp3"),
        ((666,), "ctx5_gen1_dep16_batch32_mtp3"),
        ((333,), "ctx3_gen1_dep16_batch16_mtp3"),
        ((333,), "ctx4_gen1_dep32_batch8_mtp3"),
        ((90,), "ctx2_gen1_dep32_batch2_mtp3"),
        ((15,), "ctx1_gen3_tep8_batch4_mtp3"),
        ((6,), "ctx1_gen3_tep8_batch2_mtp3"),
        ((1229,), "ctx5_gen1_dep16_batch64_mtp0"),
        ((666,), "ctx4_gen1_dep32_batch16_mtp0"),
        ((615,), "ctx3_gen1_dep16_batch32_mtp0"),
        ((333,), "ctx2_gen1_dep32_batch8_mtp0"),
        ((63,), "ctx1_gen3_tep8_batch16_mtp0"),
        ((18,), "ctx1_gen3_tep8_batch4_mtp0"),
        ((6,), "ctx1_gen3_tep8_batch1_mtp0"),
    ),
    ("sglang", "b200", "fp4", 1024, 1024): (
        ((16, 128), "ctx1_gen5_tep8_batch512_mtp0"),
        ((32, 64, 256), "ctx1_gen6_tep8_batch512_mtp0"),
        ((512,), "ctx1_gen1_dep8_batch128_mtp0"),
        ((512,), "ctx1_gen2_dep8_batch128_mtp0"),
        ((16, 512), "ctx1_gen5_tep8_batch512_mtp2"),
        ((32, 64, 256, 512), "ctx1_gen6_tep8_batch512_mtp2"),
        ((512, 1024), "ctx1_gen1_dep8_batch128_mtp2"),
        ((512,), "ctx1_gen2_dep8_batch128_mtp2"),
    ),
    ("sglang", "b200", "fp4", 8192, 1024): (
        ((64, 128), "ctx1_gen1_tep8_batch512_mtp0"),
        ((8,), "ctx1_gen5_tep8_batch512_mtp0"),
        ((4, 128), "ctx2_gen5_tep8_batch512_mtp0"),
        ((4, 8, 16, 64), "ctx1_gen1_tp8_batch512_mtp0"),
        ((1024, 2048), "ctx7_gen2_dep8_batch128_mtp0"),
        ((64, 128), "ctx1_gen1_tep8_batch512_mtp2"),
        ((8,), "ctx1_gen5_tep8_batch512_mtp2"),
        ((4, 128), "ctx2_gen5_tep8_batch512_mtp2"),
        ((4, 8, 16, 64), "ctx1_gen1_tp8_batch512_mtp2"),
    ),
    ("sglang", "b200", "fp8", 1024, 1024): (
        ((4,), "ctx1_gen1_tep8_batch512_mtp0"),
        ((16, 32, 64, 128, 256), "ctx1_gen3_tep8_batch512_mtp0"),
        ((1024, 2048, 4096), "ctx1_gen5_dep8_batch128_mtp0"),
        ((2048, 4096), "ctx2_gen5_dep8_batch128_mtp0"),
        ((4, 64), "ctx1_gen1_tep8_batch512_mtp2"),
        ((4, 8, 16, 32, 128), "ctx1_gen3_tep8_batch512_mtp2"),
        ((512, 4096), "ctx1_gen5_dep8_batch128_mtp2"),
        ((1024, 2048, 4096), "ctx2_gen5_dep8_batch128_mtp2"),
        ((512, 1024, 2048), "ctx1_gen2_dep8_batch128_mtp2"),
    ),
    ("sglang", "b200", "fp8", 8192, 1024): (
        ((4, 32, 64, 512), "ctx1_gen1_tep8_batch512_mtp0"),
        ((64, 512), "ctx1_gen4_tep8_batch512_mtp0"),
        ((32,), "ctx1_gen6_tep8_batch512_mtp0"),
        ((128, 512, 1024), "ctx1_gen1_dep8_batch128_mtp0"),
        ((256, 512, 1024), "ctx2_gen1_dep8_batch128_mtp0"),
        ((16, 32, 64), "ctx1_gen1_tep8_batch512_mtp2"),
        ((8, 256), "ctx1_gen4_tep8_batch512_mtp2"),
        ((4, 8, 16, 256), "ctx1_gen6_tep8_batch512_mtp2"),
        ((256,), "ctx1_gen1_dep8_batch128_mtp2"),
        ((128, 512), "ctx2_gen1_dep8_batch128_mtp2"),
    ),
    ("sglang", "gb200", "fp8", 1024, 1024): (
        ((4, 8), "ctx1_gen1_tp4_batch512_mtp0"),
        ((1024, 2048, 4096), "ctx3_gen1_dep48_batch512_mtp0"),
        ((1024, 2048, 4096, 6144), "ctx2_gen1_dep32_batch512_mtp0"),
        ((4096,), "ctx1_gen1_dep8_batch512_mtp0"),
    ),
    ("sglang", "gb200", "fp8", 8192, 1024): (
        ((4, 8, 16), "ctx1_gen1_tp8_batch512_mtp0"),
        ((512, 1024, 2048, 6144), "ctx5_gen1_dep32_batch512_mtp0"),
        ((2048, 4096, 6144), "ctx6_gen1_dep24_batch512_mtp0"),
    ),
    ("sglang", "gb200", "fp4", 1024, 1024): (
        ((4, 8, 32), "ctx1_gen2_tp4_batch512_mtp0"),
        ((512, 2048, 4096, 8192), "ctx4_gen1_dep32_batch512_mtp0"),
        ((2048, 4096), "ctx4_gen1_dep48_batch512_mtp0"),
    ),
    ("sglang", "gb200", "fp4", 8192, 1024): (
        ((4, 8), "ctx1_gen4_tp4_batch512_mtp0"),
        ((512, 2048, 4096), "ctx6_gen1_dep48_batch512_mtp0"),
        ((2048,), "ctx10_gen1_dep32_batch512_mtp0"),
    ),
}
"""Clients and recipe. Those of TensorRT-LLM on H200 give the clients of one decode worker, not of all."""

_PREFILLS: Mapping[tuple[str, str, str, int], Prefill] = {
    ("tensorrt-llm", "h200", "fp8", 1024): Prefill(True, 8, 8192, 0.6),
    ("tensorrt-llm", "h200", "fp8", 8192): Prefill(False, 2, 16640, 0.85),
    ("tensorrt-llm", "h100", "fp8", 1024): Prefill(True, 2, 2048, 0.6),
    ("tensorrt-llm", "h100", "fp8", 8192): Prefill(True, 1, 8224, 0.3),
    ("tensorrt-llm", "b200", "fp8", 1024): Prefill(True, 16, 16384, 0.4),
    ("tensorrt-llm", "b200", "fp8", 8192): Prefill(True, 1, 8320, 0.2),
    ("tensorrt-llm", "b200", "fp4", 1024): Prefill(True, 16, 16384, 0.6),
    ("tensorrt-llm", "b200", "fp4", 8192): Prefill(True, 2, 16640, 0.6),
    ("tensorrt-llm", "gb200", "fp8", 1024): Prefill(True, 16, 16384, 0.4),
    ("tensorrt-llm", "gb200", "fp8", 8192): Prefill(True, 1, 8320, 0.2),
    ("tensorrt-llm", "gb200", "fp4", 1024): Prefill(True, 16, 16384, 0.6),
    ("tensorrt-llm", "gb200", "fp4", 8192): Prefill(True, 2, 16640, 0.6),
}
"""Prefill workers by engine, GPU, format and prompt length, for any decode workers. NVFP4 on B200 as on GB200, FP8 on
GB200 as on B200: those files are not public."""

_SGLANG_PREFILL = {
    1024: Prefill(False, 512, 163840, 0.82, is_placed=False),
    8192: Prefill(False, 16, 32768, 0.82, is_placed=False),
}
"""By prompt length."""
_SGLANG_PREFILL_OF_RANKS = Prefill(True, 64, 32768, 0.75)

_SGLANG_B200_RANKS = {"fp4": 4, "fp8": 8}
"""Ranks of a prefill worker on B200 by format, which share `max-running-requests` and `chunked-prefill-size`
(recipes/b200-fp4 and b200-fp8 of srt-slurm at 1e31270; SGLang server_args.py divides both by `dp_size` under DP
attention)."""


_SGLANG_GB200_LOW: Mapping[tuple[str, int], tuple[int, int]] = {
    ("fp4", 1024): (8192, 8192),
    ("fp4", 8192): (32768, 24576),
    ("fp8", 8192): (32768, 24576),
}
"""Tokens that a prefill worker without ranks on GB200 holds, and tokens per step (``max-total-tokens`` and
``chunked-prefill-size`` of low-latency.yaml), by format and prompt; that of FP8 and 1,024 was not looked up."""


def recipes_of(key: Key, clients: int, is_placed: bool | None) -> list[Recipe]:
    """Return the recipes that may have served a number of clients.

    Args:
        key: Engine, GPU, weight format and lengths.
        clients: Clients of the row.
        is_placed: Whether its prefill workers have whole experts: rows copy this from prefill to decode workers; None:
            they contradict each other.
    """
    found = [recipe for served, recipe in _parsed(key) if clients in served]
    return [each for each in found if is_placed in (None, prefill_of(key, each.layout).is_placed)]


def prefill_of(key: Key, decode: Layout) -> Prefill:
    """Return the prefill worker of a recipe, by the layout of its decode workers."""
    engine, hardware, precision, prompt, _ = key
    if engine == "sglang" and hardware in ("b200", "gb200"):
        return _sglang_on_blackwell(key, decode)
    if engine == "sglang":
        return _SGLANG_PREFILL_OF_RANKS if decode == "dep" and prompt == 1024 else _SGLANG_PREFILL[prompt]
    return _PREFILLS[(engine, hardware, precision, prompt)]


def _sglang_on_blackwell(key: Key, decode: Layout) -> Prefill:
    """Return the prefill worker: with ranks if decode has ranks, and on B200 in NVFP4 always if experts are placed."""
    _, hardware, precision, prompt, _ = key
    has_ranks = decode == "dep" and (hardware, precision, prompt) != ("gb200", "fp4", 8192)
    has_ranks = has_ranks or (decode == "tep" and precision == "fp4")
    if hardware == "b200":
        ranks = _SGLANG_B200_RANKS[precision] if has_ranks else 1
        return Prefill(has_ranks, 128 if has_ranks else 512, 32768 // ranks, 0.85, is_placed=decode != "tp")
    if decode == "tp" and (precision, prompt) in _SGLANG_GB200_LOW:
        held, budget = _SGLANG_GB200_LOW[precision, prompt]
        return Prefill(False, max(held // prompt, 1), budget, 0.75, is_placed=False)
    return Prefill(has_ranks, 16, 32768, 0.75, is_placed=decode != "tp")


def _parsed(key: Key) -> Iterator[tuple[Sequence[int], Recipe]]:
    for clients, name in _RECIPES.get(key, ()):
        found = _NAME.fullmatch(name)
        assert found is not None, name
        prefills, decodes, num_gpus, seats, drafts = (int(found[group]) for group in (1, 2, 4, 5, 6))
        layout: Layout = "tp" if found[3] == "tp" else "tep" if found[3] == "tep" else "dep"
        yield clients, Recipe(prefills, decodes, layout, num_gpus, seats, drafts)
