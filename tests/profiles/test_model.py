"""Model profiles: parameter counts, KV bytes and matrix shapes follow from the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.errors import InputError, ProfileError
from simserve.profiles import catalog
from simserve.profiles.catalog import catalogue_models, load_model, profile_named_like, weights_name
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import Gemm
from simserve.profiles.model_names import context_of
from simserve.validation import validate

# Of the published checkpoint; where that is stored in few bits, as huggingface/transformers (5.23) builds the model
# from its configuration, with score corrections of routers and scalars of layers, which are buffers there.
EXACT_PARAMETERS = {
    "bamba-9b": 9_780_235_392,
    "beam-1.0-501b-a23b": 501_267_612_352,
    "cwm-32b": 32_581_097_472,
    "granite-4.2-30b": 29_276_770_304,
    "iquest-coder-v1-40b": 39_794_283_520,
    "kolibri-1": 78_103_074_560,
    "muse-spark-open-816b-a42b": 819_990_552_064,
    "youtu-llm-2b": 1_961_560_064,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "exaone-4.5-33b": 32_527_504_384,
    "falcon-7b": 6_921_720_704,
    "gemma-2b": 2_506_172_416,
    "gpt-neox-20b": 20_554_567_680,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "granite-4.1-30b": 28_865_728_512,
    "hy4-preview": 769_907_408_797,
    "lfm2-24b-a2b": 23_843_661_440,
    "lfm2.5-8b-a1b": 8_467_856_832,
    "ling-2.6-1t": 1_012_231_160_320,
    "mellum2-12b-a2.5b": 12_149_923_072,
    "muse-glimmer-30b": 27_854_780_928,
    "nemotron-3-nano-4b": 3_973_556_832,
    "olmo-hybrid-7b": 7_430_870_688,
    "olmo-2-1b": 1_484_916_736,
    "k2-horizon-7b": 8_999_178_240,
    "k2-horizon-32b": 34_779_304_960,
    "grok-2": 269_515_497_472,
    "opt-1.3b": 1_315_758_080,
    "opt-125m": 125_239_296,
    "opt-2.7b": 2_651_596_800,
    "opt-30b": 29_974_540_288,
    "opt-6.7b": 6_658_473_984,
    "pythia-12b": 11_846_072_320,
    "pythia-6.9b": 6_857_302_016,
    "falcon-h1-0.5b": 521_411_104,
    "falcon-h1-1.5b": 1_554_859_392,
    "falcon-h1-1.5b-deep": 1_554_872_208,
    "falcon-h1-3b": 3_149_387_264,
    "falcon-h1-7b": 7_585_654_880,
    "falcon-h1-34b": 33_642_516_224,
    "gemma-3n-e2b": 4_435_182_688,
    "gemma-3n-e4b": 6_835_235_568,
    "jamba-mini-1.7": 51_570_323_328,
    "jamba-large-1.7": 398_555_145_696,
    "longcat-flash-560b": 560_664_980_480,
    "ling-2.6-flash": 104_186_915_584,
    "minimax-text-01": 456_089_655_296,
    "granite-4.0-h-1b": 1_461_538_368,
    "granite-4.0-h-350m": 340_332_224,
    "granite-4.0-1b": 1_631_750_144,
    "granite-4.0-350m": 352_379_904,
    "granite-4.1-8b": 8_380_551_168,
    "hunyuan-0.5b": 539_010_048,
    "hunyuan-1.8b": 1_791_080_448,
    "hunyuan-4b": 4_221_757_440,
    "lfm2-700m": 742_489_344,
    "lfm2-2.6b": 2_569_272_320,
    "nemotron-nano-12b-v2": 12_310_001_152,
    "nemotron-h-8b": 8_100_852_736,
    "command-a-plus": 218_254_938_112,
    "gemma-4-e2b": 4_628_569_379,
    "gemma-4-e4b": 7_463_013_418,
    "laguna-m.1": 225_795_708_416,
    "laguna-s-2.1": 117_561_965_568,
    "laguna-xs-2.1": 33_442_607_104,
    "lfm2-1.2b": 1_170_340_608,
    "lfm2-350m": 354_483_968,
    "lfm2-8b-a1b": 8_339_930_560,
    "ling-3.0-flash": 124_414_211_552,
    "ling-3.0-tiny": 7_893_392_800,
    "mimo-v2.5-pro": 1_021_248_126_336,
    "nemotron-3.5-lightning-30b-a3b": 31_577_940_288,
    "north-mini-code-1.0": 30_484_303_872,
    "qwen3.8-2.4t-a95b": 2_419_804_697_984,
    "trinity-large-400b": 398_635_286_016,
    "trinity-mini-26b": 26_123_974_400,
    "trinity-nano-6b": 6_120_003_328,
    "a.x-k1": 518_982_633_728,
    "apertus-70b": 70_599_864_320,
    "apertus-8b": 8_053_338_112,
    "aya-expanse-8b": 8_028_033_024,
    "command-r-08-32b": 32_296_476_672,
    "command-r-35b": 34_980_831_232,
    "command-r-plus": 103_810_674_688,
    "command-r7b": 8_028_033_024,
    "dots.llm1-142b": 142_774_381_696,
    "ernie-4.5-0.3b": 360_748_032,
    "eurollm-9b": 9_152_319_488,
    "exaone-3.5-2.4b": 2_405_327_360,
    "exaone-3.5-32b": 32_003_200_000,
    "exaone-3.5-7.8b": 7_818_448_896,
    "exaone-4.0-1.2b": 1_279_391_488,
    "falcon3-1b": 1_669_408_768,
    "falcon3-3b": 3_227_655_168,
    "gemma-3-270m": 268_098_176,
    "granite-3.3-2b": 2_533_539_840,
    "hunyuan-7b": 7_504_568_320,
    "internlm2-20b": 19_861_149_696,
    "internlm3-8b": 8_804_241_408,
    "k-exaone-236b-a23b": 236_571_156_352,
    "ling-1t": 999_705_328_640,
    "ling-flash-2.0": 102_889_705_216,
    "ling-mini-2.0": 16_255_643_392,
    "moonlight-16b-a3b": 15_960_110_208,
    "olmo-2-32b": 32_234_279_936,
    "olmoe-1b-7b": 6_919_161_856,
    "phi-3-medium-14b": 13_960_238_080,
    "phi-3.5-moe": 41_873_121_280,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,
    "sarvam-105b": 106_031_767_424,
    "sarvam-30b": 32_152_650_368,
    "seed-coder-8b": 8_250_462_208,
    "smollm2-135m": 134_515_008,
    "solar-10.7b": 10_731_524_096,
    "solar-open-100b": 102_651_799_552,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "yi-6b": 6_061_035_520,
    "yi-9b": 8_829_407_232,
    "gemma-2-2b": 2_614_341_888,
    "gemma-7b": 8_537_680_896,
    "codellama-7b": 6_738_546_688,
    "codellama-13b": 13_016_028_160,
    "codellama-70b": 68_976_910_336,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-360m": 361_821_120,
    "falcon3-7b": 7_455_550_464,
    "falcon3-10b": 10_305_653_760,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "phi-2": 2_779_683_840,
    "codestral-22b": 22_247_282_688,
    "deepseek-llm-67b": 67_425_001_472,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-coder-33b": 33_342_991_360,
    "deepseek-v2-236b": 235_741_434_880,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "gemma-2-9b": 9_241_705_984,
    "glm-4.5": 352_797_829_024,
    "glm-4.6": 352_797_829_024,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "internlm-20b": 20_088_714_240,
    "internlm2-chat-7b": 7_737_708_544,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "gpt-3-175b": 174_604_259_328,
    "falcon-40b": 41_303_293_952,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "llama-4-scout": 107_769_861_120,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_419_200,
    "deepseek-r1": 671_026_419_200,
    "gemma-3-27b": 27_009_346_304,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "minimax-m2": 228_689_764_864,
    "kimi-k2": 1_026_408_232_448,
    "glm-5": 743_911_218_432,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "kimi-linear-48b-a3b": 49_122_681_728,
    "kimi-k3": 2_779_484_476_000,
    "glm-5.3-flash": 313_326_877_507,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "gpt-j-6b": 6_050_882_784,
    "opt-13b": 12_853_473_280,
    "opt-66b": 65_719_701_504,
    "opt-175b": 174_604_468_224,
    "falcon-180b": 178_557_088_768,
    "bloom-176b": 176_247_271_424,
    "codellama-34b": 33_743_970_304,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen2.5-14b": 14_770_033_664,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-large-123b": 122_610_069_504,
    "deepseek-coder-1.3b": 1_346_471_936,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-v3.2": 671_877_944_064,
    "deepseek-v4-flash": 284_332_240_471,
    "deepseek-v4-pro": 1_572_997_201_763,
    "glm-4.5-air": 106_852_251_264,
    "glm-5.1": 743_911_218_432,
    "glm-5.2": 743_377_019_904,
    "glm-5.3": 743_377_019_904,
    "kimi-k2.5": 1_026_408_232_448,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.5-122b-a10b": 122_111_526_912,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-4-26b-a4b": 25_233_141_790,
    "gemma-4-31b": 30_697_345_340,
    "mistral-small-24b": 23_572_403_200,
    "minimax-m2.7": 228_689_764_864,
    "minimax-m3": 426_174_572_928,
    "nemotron-3-nano-30b-a3b": 31_577_940_288,
    "nemotron-3-super-120b-a12b": 120_668_707_840,
    "nemotron-3-ultra-550b-a55b": 549_308_993_536,
    "step-3.7-flash": 196_956_130_368,
    "mimo-v2-flash": 308_778_780_864,
    "qwen3-vl-235b-a22b": 235_093_634_560,
    "qwen3-vl-32b": 32_762_123_264,
    "qwen3-omni-30b-a3b": 30_532_646_912,
    "voxtral-mini-3b": 4_014_136_320,
    "voxtral-small-24b": 23_572_403_200,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "llama-4-maverick": 400_711_848_960,
    "qwen2.5-vl-3b": 3_085_938_688,
    "qwen2.5-vl-7b": 7_615_616_512,
    "qwen2.5-vl-32b": 32_763_876_352,
    "qwen2.5-vl-72b": 72_706_203_648,
    "qwen3-vl-2b": 1_720_574_976,
    "qwen3-vl-4b": 4_022_468_096,
    "qwen3-vl-8b": 8_190_735_360,
    "qwen3-vl-30b-a3b": 30_532_122_624,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-2b": 1_881_825_088,
    "qwen3.5-0.8b": 752_393_024,
    "ministral-3-3b": 3_429_006_336,
    "ministral-3-8b": 8_489_553_920,
    "ministral-3-14b": 13_506_073_600,
    "devstral-2-123b": 125_025_988_608,
    "devstral-small-2-24b": 23_572_403_200,
    "mistral-large-3": 673_421_089_792,
    "mistral-small-4": 118_972_826_624,
    "pixtral-12b": 12_247_782_400,
    "ministral-8b": 8_019_808_256,
    "phi-3.5-mini": 3_821_079_552,
    "granite-4.0-h-micro": 3_191_396_096,
    "granite-4.0-h-small": 32_207_337_984,
    "granite-4.0-h-tiny": 6_939_037_248,
    "granite-4.0-micro": 3_402_836_480,
    "granite-3.3-8b": 8_170_864_640,
    "olmo-3-7b": 7_298_011_136,
    "olmo-3-32b": 32_233_522_176,
    "exaone-4.0-32b": 32_003_216_384,
    "command-a": 111_057_580_032,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "ernie-4.5-300b-a47b": 299_484_163_264,
    "hunyuan-a13b": 80_393_183_232,
    "smollm3-3b": 3_075_098_624,
    "glm-4-9b": 9_400_279_040,
    "glm-4-32b": 32_566_081_536,
    "glm-4.7-flash": 29_943_393_920,
    "glm-4.5v": 106_852_251_264,
    "glm-4.6v": 106_852_251_264,
    "internvl3-8b": 7_612_820_992,
    "internvl3-78b": 72_699_813_888,
    "starcoder2-15b": 15_957_889_024,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "yi-34b": 34_388_917_248,
    "seed-oss-36b": 36_151_104_512,
    "mimo-7b": 7_622_619_136,
    "tinyllama-1.1b": 1_100_048_384,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "step-3.5-flash": 196_956_130_368,
    "mistral-7b-v0.3": 7_248_023_552,
    "gemma-4-12b": 11_907_350_320,
    "hy3": 295_033_543_488,
    "qwen3.8-flash-next": 176_943_899_520,
    "step3": 316_294_538_240,
    "ernie-4.5-vl-28b-a3b": 28_624_635_776,
    "pixtral-large": 122_610_069_504,
    "kimi-vl-a3b": 15_960_110_208,
    "kimi-vl-a3b-thinking-2506": 15_960_110_208,
    "glm-4.1v-9b": 9_400_279_040,
    "internvl3.5-8b": 8_190_735_360,
    "internvl3.5-14b": 14_768_307_200,
    "internvl3.5-38b": 32_762_123_264,
    "internvl3.5-30b-a3b": 30_532_122_624,
    "internvl3.5-241b-a28b": 235_093_634_560,
}

# Parameters that the published checkpoint stores beside the language model of the profile: a tied head a second
# time (Falcon), a vision tower with its projector (Gemma 3, Llama 4, ERNIE 4.5 VL, and Pixtral's in Mistral Small and
# Ministral 3), a tower and the layer for multi-token prediction (Qwen3.8-Flash-Next).
STORED_BESIDE = {
    "falcon-7b": 65_024 * 4544,
    "muse-glimmer-30b": 1_921_845_760,
    "exaone-4.5-33b": 1_200_000_000,
    "falcon-40b": 65_024 * 8192,
    "falcon-180b": 65_024 * 14_848,
    "gemma-3-27b": 423_060_336,
    "gemma-3-4b": 419_816_304,
    "gemma-3-12b": 421_290_864,
    "mistral-small-24b": 438_958_080,
    "devstral-small-2-24b": 438_958_080,
    "ministral-3-3b": 420_083_712,
    "ministral-3-8b": 428_472_320,
    "ministral-3-14b": 438_958_080,
    "llama-4-scout": 871_932_416,
    "llama-4-maverick": 871_932_416,
    "glm-5.3-flash": 7_433_000_000,
    "qwen3.8-flash-next": 448_931_056 + 2_607_150_848,
    "ernie-4.5-vl-28b-a3b": 629_000_000,
}

# Published to two digits: half of the last one is more than 1 %. Kimi Linear's checkpoint has 98.2 GB in BF16. The
# sizes published for Granite 4.1 30B add up to 28.9 B.
ROUNDING = {
    "cwm-32b": 0.02,
    "deepseek-v4-pro": 0.05 / 1.6,
    "kimi-linear-48b-a3b": 0.024,
    "gemma-4-e4b": 0.012,
    "granite-4.1-8b": 0.5 / 8,
    "granite-4.1-30b": 0.04,
    "mellum2-12b-a2.5b": 0.5 / 12,
    "olmo-hybrid-7b": 0.5 / 7,
    "hunyuan-4b": 0.5 / 4,
    "trinity-nano-6b": 0.021,
    "north-mini-code-1.0": 0.017,
    "laguna-xs-2.1": 0.014,
}

# What publishers state, billions, with the tolerance of their rounding; where they leave the embedding out (gpt-oss,
# GLM-4.5 and 4.7, LongCat, Step, Kolibri, Muse Spark, MiniMax-M3 and -01, ERNIE, DeepSeek-V2, Moonlight, Sarvam), or
# the head too, it is added; for LFM2.5, whose card has the figures of LFM2, the second half of its vocabulary.
ADVERTISED_ACTIVE = {
    "kolibri-1": (3.458 + 0.328, 0.001),
    "beam-1.0-501b-a23b": (23.4, 0.005),
    "muse-spark-open-816b-a42b": (42 + 3.31, 0.02),
    "qwen3.8-flash-next": (6 + 1.27, 0.01),
    "step3": (38 + 0.92, 0.01),
    "ernie-4.5-vl-28b-a3b": (3 + 0.265, 0.03),
    "kimi-vl-a3b": (2.24 + 0.67, 0.01),
    "kimi-vl-a3b-thinking-2506": (2.24 + 0.67, 0.01),
    "internvl3.5-30b-a3b": (3.3, 0.02),
    "internvl3.5-241b-a28b": (22, 0.01),
    "grok-2": (115, 0.005),
    "hy4-preview": (49, 0.005),
    "lfm2-24b-a2b": (2.3, 0.02),
    "lfm2.5-8b-a1b": (1.5 + 0.13, 0.04),
    "ling-2.6-1t": (63, 0.01),
    "mellum2-12b-a2.5b": (2.5, 0.03),
    "jamba-mini-1.7": (12, 0.01),
    "jamba-large-1.7": (94, 0.005),
    "longcat-flash-560b": (27 + 0.81, 0.01),
    "ling-2.6-flash": (7.4, 0.01),
    "minimax-text-01": (45.9 + 2.46, 0.005),
    "ling-3.0-flash": (5.5, 0.01),
    "ling-3.0-tiny": (1.3, 0.07),
    "qwen3.8-2.4t-a95b": (95, 0.01),
    "mimo-v2.5-pro": (42, 0.01),
    "trinity-nano-6b": (1, 0.03),
    "trinity-mini-26b": (3 + 0.41, 0.02),
    "trinity-large-400b": (13, 0.03),
    "north-mini-code-1.0": (3, 0.11),
    "command-a-plus": (25, 0.01),
    "laguna-xs-2.1": (3, 0.01),
    "laguna-s-2.1": (8, 0.06),
    "laguna-m.1": (23, 0.03),
    "lfm2-8b-a1b": (1.5, 0.04),
    "nemotron-3.5-lightning-30b-a3b": (3.5, 0.03),
    "deepseek-v2-236b": (21, 0.02),
    "mixtral-8x7b": (12.9, 0.005),
    "mixtral-8x22b": (39, 0.005),
    "qwen3-30b-a3b": (3.3, 0.02),
    "qwen3-omni-30b-a3b": (3.3, 0.02),
    "qwen3-235b-a22b": (22, 0.01),
    "llama-4-scout": (17, 0.02),
    "deepseek-v3": (37, 0.02),
    "deepseek-r1": (37, 0.02),
    "kimi-k2": (32, 0.03),
    "glm-5": (40, 0.05),
    "qwen3-next-80b-a3b": (3.9, 0.01),
    "kimi-linear-48b-a3b": (3 + 0.38, 0.05),
    "kimi-k3": (104 + 1.17, 0.005),
    "glm-5.3-flash": (18, 0.05),
    "qwen3.5-397b-a17b": (17, 0.03),
    "minimax-m2": (10, 0.11),
    "gpt-oss-20b": (3.61 + 0.58, 0.005),
    "gpt-oss-120b": (5.13 + 0.58, 0.005),
    "deepseek-v3.2": (37, 0.04),
    "deepseek-v4-flash": (13 + 0.53, 0.03),
    "deepseek-v4-pro": (49, 0.02),
    "glm-4.5-air": (12 + 1.24, 0.02),
    "glm-4.5": (32 + 0.78 + 0.78, 0.01),
    "glm-4.6": (32 + 0.78 + 0.78, 0.01),
    "glm-5.1": (40, 0.05),
    "glm-5.2": (40, 0.04),
    "glm-5.3": (40, 0.04),
    "kimi-k2.5": (32, 0.03),
    "qwen3.5-35b-a3b": (3, 0.16),
    "qwen3.5-122b-a10b": (10, 0.03),
    "gemma-4-26b-a4b": (3.8, 0.01),
    "minimax-m2.7": (10, 0.11),
    "minimax-m3": (23 + 2.46, 0.03),
    "nemotron-3-nano-30b-a3b": (3.5, 0.03),
    "nemotron-3-super-120b-a12b": (12, 0.07),
    "nemotron-3-ultra-550b-a55b": (55, 0.02),
    "step-3.7-flash": (11 + 1.06, 0.01),
    "mimo-v2-flash": (15, 0.03),
    "qwen3-vl-235b-a22b": (22, 0.01),
    "qwen3-coder-480b-a35b": (35, 0.02),
    "llama-4-maverick": (17, 0.02),
    "qwen3-vl-30b-a3b": (3.3, 0.02),
    "mistral-large-3": (39, 0.03),
    "mistral-small-4": (6.5, 0.03),
    "granite-4.0-h-small": (9, 0.03),
    "granite-4.0-h-tiny": (1.47, 0.005),
    "ernie-4.5-21b-a3b": (3 + 0.265, 0.03),
    "ernie-4.5-300b-a47b": (47, 0.03),
    "hunyuan-a13b": (13, 0.03),
    "glm-4.7-flash": (3 + 0.63, 0.08),
    "glm-4.5v": (12 + 1.24, 0.02),
    "glm-4.6v": (12 + 1.24, 0.02),
    "deepseek-v2-lite": (2.4 + 0.21, 0.02),
    "step-3.5-flash": (11 + 1.06, 0.01),
    "hy3": (21, 0.02),
    "k-exaone-236b-a23b": (23, 0.03),
    "ling-mini-2.0": (1.43, 0.01),
    "ling-flash-2.0": (6.1, 0.01),
    "ling-1t": (50, 0.03),
    "dots.llm1-142b": (14, 0.01),
    "moonlight-16b-a3b": (2.24 + 0.67, 0.01),
    "olmoe-1b-7b": (1.3, 0.02),
    "phi-3.5-moe": (6.6, 0.01),
    "qwen1.5-moe-a2.7b": (2.7, 0.01),
    "qwen2-57b-a14b": (14, 0.02),
    "solar-open-100b": (12, 0.01),
    "sarvam-30b": (2.4 + 2.15, 0.01),
    "sarvam-105b": (10.3 + 2.15, 0.01),
    "a.x-k1": (33, 0.01),
}

KV_BYTES_PER_TOKEN_16_BIT = {
    "bamba-9b": 3 * 2 * 8 * 128 * 2,
    "exaone-4.5-33b": 64 * 2 * 8 * 128 * 2,
    "falcon-7b": 32 * 2 * 64 * 2,
    "gpt-neox-20b": 44 * 2 * 6144 * 2,
    "grok-2": 64 * 2 * 8 * 128 * 2,
    "k2-horizon-32b": 64 * 2 * 8 * 128 * 2,
    "k2-horizon-7b": 36 * 2 * 8 * 128 * 2,
    "olmo-2-1b": 16 * 2 * 16 * 128 * 2,
    "granite-4.1-30b": 64 * 2 * 8 * 128 * 2,
    # an indexer in 21 of 78 layers
    "hy4-preview": 78 * (512 + 64) * 2 + 21 * 132,
    "lfm2-24b-a2b": 10 * 2 * 8 * 64 * 2,
    "lfm2.5-8b-a1b": 6 * 2 * 8 * 64 * 2,
    "ling-2.6-1t": 10 * (512 + 64) * 2,
    "mellum2-12b-a2.5b": 28 * 2 * 4 * 128 * 2,
    "muse-glimmer-30b": 52 * 2 * 2 * 128 * 2,
    "nemotron-3-nano-4b": 4 * 2 * 8 * 128 * 2,
    "olmo-hybrid-7b": 8 * 2 * 30 * 128 * 2,
    "command-a-plus": 131_072,
    "gemma-4-e2b": 18_432,
    "gemma-4-e4b": 57_344,
    "laguna-m.1": 286_720,
    "laguna-s-2.1": 196_608,
    "laguna-xs-2.1": 163_840,
    "lfm2-1.2b": 12_288,
    "lfm2-350m": 12_288,
    "lfm2-8b-a1b": 12_288,
    "ling-3.0-flash": 8_064,
    "ling-3.0-tiny": 6_912,
    "mimo-v2.5-pro": 358_400,
    "nemotron-3.5-lightning-30b-a3b": 6_144,
    "north-mini-code-1.0": 100_352,
    "qwen3.8-2.4t-a95b": 94_208,
    "trinity-large-400b": 245_760,
    "trinity-mini-26b": 65_536,
    "trinity-nano-6b": 57_344,
    "llama-2-7b": 524_288,
    "llama-2-13b": 819_200,
    "llama-2-70b": 327_680,
    "llama-3-8b": 131_072,
    "llama-3-70b": 327_680,
    "llama-3.1-405b": 516_096,
    "llama-3.2-1b": 32_768,
    "mistral-7b": 131_072,
    "mixtral-8x7b": 131_072,
    "qwen2.5-7b": 57_344,
    "qwen2.5-0.5b": 12_288,
    "internlm-20b": 1_228_800,
    "qwen3-32b": 262_144,
    "gpt-3-175b": 4_718_592,
    "falcon-40b": 122_880,
    # layers x 2 x key-value heads x head_dim x 2 bytes
    "llama-3.2-3b": 28 * 2 * 8 * 128 * 2,
    "llama-3.3-70b": 327_680,
    "codellama-34b": 48 * 2 * 8 * 128 * 2,
    "qwen3-14b": 40 * 2 * 8 * 128 * 2,
    "qwen2.5-14b": 48 * 2 * 8 * 128 * 2,
    "mistral-nemo-12b": 40 * 2 * 8 * 128 * 2,
    "mistral-large-123b": 88 * 2 * 8 * 128 * 2,
    "deepseek-coder-6.7b": 32 * 2 * 32 * 128 * 2,
    "mixtral-8x22b": 56 * 2 * 8 * 128 * 2,
    "qwen2.5-32b": 64 * 2 * 8 * 128 * 2,
    "qwen2.5-72b": 80 * 2 * 8 * 128 * 2,
    "qwen3-30b-a3b": 48 * 2 * 4 * 128 * 2,
    "qwen3-235b-a22b": 94 * 2 * 4 * 128 * 2,
    "minimax-m2": 62 * 2 * 8 * 128 * 2,
    "phi-4": 40 * 2 * 10 * 128 * 2,
    "phi-4-mini": 32 * 2 * 8 * 128 * 2,
    "gpt-j-6b": 28 * 2 * 16 * 256 * 2,
    "opt-13b": 40 * 2 * 40 * 128 * 2,
    "opt-66b": 64 * 2 * 72 * 128 * 2,
    "opt-175b": 4_718_592,
    "falcon-180b": 80 * 2 * 8 * 64 * 2,
    "bloom-176b": 70 * 2 * 112 * 128 * 2,
    # hybrid: sliding layers are charged like full ones
    "gemma-3-27b": 62 * 2 * 16 * 128 * 2,
    "gpt-oss-20b": 24 * 2 * 8 * 64 * 2,
    "gpt-oss-120b": 73_728,
    "llama-4-scout": 48 * 2 * 8 * 128 * 2,
    # keys of 192, values of 128; 4 key-value heads, 8 in the layers of a window
    "mimo-v2-flash": (9 * 4 + 39 * 8) * (192 + 128) * 2,
    "step-3.7-flash": 45 * 2 * 8 * 128 * 2,
    # 5 layers of 2 heads of 512, 25 of 8 of 256; 10 of 4 of 512, 50 of 16 of 256
    "gemma-4-26b-a4b": 2 * (5 * 2 * 512 + 25 * 8 * 256) * 2,
    "gemma-4-31b": 2 * (10 * 4 * 512 + 50 * 16 * 256) * 2,
    # sparse: a BF16 index key of 128 in 57 of 60 layers
    "minimax-m3": 60 * 2 * 4 * 128 * 2 + 57 * 128 * 2,
    # compressed: 584 bytes an entry for 4 tokens with an index key of 132, or for 128
    "deepseek-v4-flash": 21 * (584 + 132) / 4 + 20 * 584 / 128,
    "deepseek-v4-pro": 30 * (584 + 132) / 4 + 31 * 584 / 128,
    # Mamba-2 and attention side by side in every layer; the first Mamba, and attention in 4 and 9 layers
    "falcon-h1-7b": 44 * 2 * 2 * 128 * 2,
    "falcon-h1-34b": 72 * 2 * 4 * 128 * 2,
    "jamba-mini-1.7": 4 * 2 * 8 * 128 * 2,
    "jamba-large-1.7": 9 * 2 * 8 * 128 * 2,
    # two latent attentions in each of 28 layers; latent attention in 4 of 32, the others a state
    "longcat-flash-560b": 2 * 28 * (512 + 64) * 2,
    "ling-2.6-flash": 4 * (512 + 64) * 2,
    "minimax-text-01": 10 * 2 * 8 * 128 * 2,
    # 20 of 30 and of 35 layers have keys of their own
    "gemma-3n-e2b": 20 * 2 * 2 * 256 * 2,
    "gemma-3n-e4b": 20 * 2 * 2 * 256 * 2,
    # Mamba-2 beside attention in 6, 8 and 12 layers
    "nemotron-3-nano-30b-a3b": 6 * 2 * 2 * 128 * 2,
    "nemotron-3-super-120b-a12b": 8 * 2 * 2 * 128 * 2,
    "nemotron-3-ultra-550b-a55b": 12 * 2 * 2 * 128 * 2,
    # latent: layers x (kv_lora_rank + qk_rope_head_dim) x 2 bytes, with the indexer 132 bytes a layer more
    "deepseek-v3": 70_272,
    "youtu-llm-2b": 32 * (512 + 64) * 2,
    "deepseek-r1": 61 * (512 + 64) * 2,
    "kimi-k2": 61 * (512 + 64) * 2,
    "glm-5": 78 * ((512 + 64) * 2 + 132),
    # an indexer in 21 of 78 layers
    "glm-5.2": 78 * (512 + 64) * 2 + 21 * 132,
    # hybrid: every fourth layer has keys and values, the others a state
    "qwen3-next-80b-a3b": 12 * 2 * 2 * 256 * 2,
    "kimi-linear-48b-a3b": 7 * (512 + 64) * 2,
    "kimi-k3": 24 * (512 + 64) * 2,
    "glm-5.3-flash": 11 * (512 * 2 + 132 / 4),
    "qwen3.5-397b-a17b": 15 * 2 * 2 * 256 * 2,
    "qwen3.5-9b": 8 * 2 * 4 * 256 * 2,
    "qwen2.5-vl-7b": 28 * 2 * 4 * 128 * 2,
    "qwen3-vl-8b": 36 * 2 * 8 * 128 * 2,
    "ministral-3-8b": 34 * 2 * 8 * 128 * 2,
    "mistral-large-3": 61 * (512 + 64) * 2,
    "mistral-small-4": 36 * (256 + 64) * 2,
    "glm-4.7-flash": 47 * (512 + 64) * 2,
    "granite-4.0-h-small": 4 * 2 * 8 * 128 * 2,
    "nemotron-nano-9b-v2": 4 * 2 * 8 * 128 * 2,
    "olmo-3-7b": 32 * 2 * 32 * 128 * 2,
    "exaone-4.0-32b": 64 * 2 * 8 * 128 * 2,
}


def make_model(**fields: Any) -> ModelProfile:
    """Return a small dense model with the fields given."""
    defaults: dict[str, Any] = {
        "name": "small",
        "family": "llama",
        "source": "test",
        "dtype": "fp16",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }
    return validate(ModelProfile, defaults | fields, error=ProfileError)


def test_parameters_are_counted_exactly() -> None:
    """The count from the architecture is that of the published checkpoint, to the last norm and bias."""
    assert {name: load_model(name).num_parameters for name in EXACT_PARAMETERS} == EXACT_PARAMETERS


def test_parameters_are_within_one_percent_of_the_advertised_size() -> None:
    """Every count agrees with the size its publisher states, which counts all that is stored."""
    for name in catalog.names("model"):
        model = load_model(name)
        stored = model.num_parameters + STORED_BESIDE.get(name, 0)

        assert model.num_parameters_advertised is not None, name
        assert stored == pytest.approx(model.num_parameters_advertised, rel=ROUNDING.get(name, 0.01)), name


def test_kv_bytes_per_token_are_golden() -> None:
    """KV bytes of one token at two bytes an element."""
    found = {name: load_model(name).kv_bytes_per_token(2) for name in KV_BYTES_PER_TOKEN_16_BIT}

    assert found == KV_BYTES_PER_TOKEN_16_BIT


def test_every_bundled_profile_is_tested() -> None:
    """A new profile needs its exact count here."""
    assert set(catalog.names("model")) <= set(EXACT_PARAMETERS)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("falcon-180b", 179_522_565_120),
        ("gemma-3-27b", 27_432_406_640),
        ("gemma-3-4b", 4_300_079_472),
        ("gemma-3-12b", 12_187_325_040),
        ("mistral-small-24b", 24_011_361_280),
        ("ministral-3-3b", 3_849_090_048),
        ("ministral-3-8b", 8_918_026_240),
        ("ministral-3-14b", 13_945_031_680),
        ("llama-4-scout", 108_641_793_536),
        ("llama-4-maverick", 401_583_781_376),
    ],
)
def test_what_checkpoints_store_beside_the_model_is_accounted_for(name: str, total: int) -> None:
    """With the second head, or the vision tower, the count is that of the published checkpoint."""
    assert load_model(name).num_parameters + STORED_BESIDE[name] == total


def test_active_parameters_are_the_advertised_ones() -> None:
    """What one token uses agrees with the publisher's figure within its rounding."""
    for name, (billions, tolerance) in ADVERTISED_ACTIVE.items():
        assert load_model(name).num_active_parameters == pytest.approx(billions * 1e9, rel=tolerance), name


def test_every_mixture_of_experts_states_what_is_active() -> None:
    """A new profile with experts needs its active size here."""
    with_experts = {name for name in EXACT_PARAMETERS if load_model(name).moe is not None}

    assert with_experts == set(ADVERTISED_ACTIVE)


def test_every_parameter_of_a_dense_model_is_active() -> None:
    """Without experts the active parameters are all parameters."""
    model = load_model("llama-3-8b")

    assert model.num_active_parameters == model.num_parameters


def test_linear_and_unquantised_parameters_add_up() -> None:
    """Llama-3-8B: embedding, head and 65 norms stay 16-bit, the other 6.98 billion weights are linear."""
    model = load_model("llama-3-8b")

    assert model.num_unquantised_parameters == 2 * 128_256 * 4096 + 65 * 4096
    assert model.num_linear_parameters + model.num_unquantised_parameters == model.num_parameters


def test_a_tied_head_is_counted_once() -> None:
    """Tying removes exactly the head's vocabulary x hidden weights."""
    tied = make_model(tie_word_embeddings=True)

    assert make_model().num_parameters - tied.num_parameters == 100 * 64
    assert tied.lm_head_gemm().num_weights == 100 * 64


def test_routers_stay_unquantised() -> None:
    """Routers are not among the linear weights of a mixture of experts."""
    model = load_model("mixtral-8x7b")

    assert model.num_unquantised_parameters == 2 * 32_000 * 4096 + 65 * 4096 + 32 * 8 * 4096


def test_learned_positions_and_biases_count() -> None:
    """GPT-3: 12 d^2 + 13 d a layer, embeddings once, 2,048 positions, one final norm."""
    hidden = 12_288
    expected = 96 * (12 * hidden**2 + 13 * hidden) + (50_257 + 2048) * hidden + 2 * hidden

    assert load_model("gpt-3-175b").num_parameters == expected


def test_a_nominal_size_replaces_the_count() -> None:
    """A worked example's "70 B model" has exactly 70e9 weights, all of them linear."""
    model = make_model(num_parameters_nominal=70e9)

    assert model.num_parameters == model.num_linear_parameters == model.num_active_parameters == 70e9
    assert model.num_unquantised_parameters == 0


@pytest.mark.parametrize(("ranks", "share"), [(1, 327_680), (2, 163_840), (8, 40_960), (16, 40_960), (64, 40_960)])
def test_kv_heads_are_replicated_when_ranks_outnumber_them(ranks: int, share: int) -> None:
    """Eight KV heads: a rank's share halves up to eight ranks, and stays one head beyond."""
    assert load_model("llama-3-70b").kv_bytes_per_token(2, ranks) == share


def test_fused_qkv_shrinks_with_ranks_but_keeps_one_kv_head() -> None:
    """Llama-3-70B: (64 + 2 x 8) heads of 128 at one rank; 4 + 2 x 1 heads at sixteen."""
    model = load_model("llama-3-70b")

    assert model.attention_gemms()[0] == Gemm("qkv", 80 * 128, 8192, "column", part="attention")
    assert model.attention_gemms(16) == [
        Gemm("qkv", 6 * 128, 8192, "column", part="attention"),
        Gemm("output", 8192, 4 * 128, "row", part="attention_output"),
    ]


def test_mlp_is_split_by_column_then_row() -> None:
    """The gated MLP of Llama-3-70B on four ranks, gate and up fused."""
    assert load_model("llama-3-70b").mlp_gemms(0, 4) == [
        Gemm("gate_up", 2 * 7168, 8192, "column", part="mlp"),
        Gemm("down", 8192, 7168, "row", part="mlp"),
    ]


def test_a_plain_mlp_has_two_matrices() -> None:
    """Falcon-40B's MLP has no gate."""
    gemms = load_model("falcon-40b").mlp_gemms()

    assert [(gemm.name, gemm.out_features) for gemm in gemms] == [("up", 32_768), ("down", 8192)]


def test_layers_with_experts_have_a_router_and_experts() -> None:
    """Mixtral: every token passes the router; an expert is a gated MLP of 14,336."""
    model = load_model("mixtral-8x7b")

    assert [gemm.name for gemm in model.mlp_gemms(0)] == ["router"]
    assert model.expert_gemms(2) == [
        Gemm("expert_gate_up", 14_336, 4096, "column", part="experts"),
        Gemm("expert_down", 4096, 7168, "row", part="experts"),
    ]
    assert load_model("llama-3-8b").expert_gemms() == []


@pytest.mark.parametrize(
    "changes", [{}, {"layer_step": 3}, {"layer_step": 3, "first_dense_layers": 4}, {"dense_layers": (2, 5, 5, 99)}]
)
def test_layers_with_experts_are_counted(changes: dict[str, Any]) -> None:
    """As many as there are, one by one; so for every model of the catalogue."""
    model = load_model("mixtral-8x7b")
    assert model.moe is not None
    changed = model.model_copy(update={"moe": model.moe.model_copy(update=changes)})

    for each in (changed, *catalogue_models().values()):
        layers = range(each.num_hidden_layers)
        assert each.num_moe_layers == (each.moe is not None) * sum(map(each.is_moe_layer, layers)), each.name
        if each.moe is not None and each.layer_pattern is None:
            routed = tuple(filter(each.is_moe_layer, layers))
            assert each.layers_with("experts") == (routed or tuple(layers)), each.name
            assert each.layers_with("mlp") == (tuple(layer for layer in layers if layer not in routed) or tuple(layers))


def test_dense_and_moe_layers_are_told_apart() -> None:
    """Two dense layers at the bottom, then every second layer with experts except a named one."""
    moe = {
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
        "num_shared_experts": 1,
        "shared_intermediate_size": 16,
        "first_dense_layers": 2,
        "layer_step": 2,
        "dense_layers": [5],
    }
    model = make_model(num_hidden_layers=8, moe=moe)

    assert [model.is_moe_layer(layer) for layer in range(8)] == [False] * 3 + [True] + [False] * 3 + [True]
    assert (model.num_dense_layers, model.num_moe_layers) == (6, 2)
    assert [gemm.name for gemm in model.mlp_gemms(3)] == ["router", "shared_gate_up", "shared_down"]
    assert model.num_parameters - model.num_active_parameters == 2 * 3 * 3 * 64 * 32


@pytest.mark.parametrize(
    ("name", "window", "num_sliding_layers"),
    [
        ("gemma-3-27b", 1024, 52),
        ("gpt-oss-20b", 128, 12),
        ("gpt-oss-120b", 128, 18),
        ("llama-4-scout", 8192, 36),
        ("phi-4-mini", None, 0),
        ("qwen2.5-72b", None, 0),
    ],
)
def test_hybrid_models_record_their_window(name: str, window: int | None, num_sliding_layers: int) -> None:
    """Window and layers as published; a window beyond the context, or one not used, is none."""
    model = load_model(name)

    assert (model.sliding_window, model.num_sliding_layers) == (window, num_sliding_layers)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1", "kimi-k2", "glm-5"])
def test_latent_caches_are_whole_on_every_rank(name: str) -> None:
    """One latent vector serves all heads, so eight ranks hold eight copies."""
    model = load_model(name)

    assert model.kv_bytes_per_token(2, 8) == model.kv_bytes_per_token(2)


def test_a_sliding_window_is_recorded() -> None:
    """Mistral-7B v0.1 sees 4,096 tokens in every layer; its KV is charged like full attention."""
    model = load_model("mistral-7b")

    assert (model.sliding_window, model.num_sliding_layers) == (4096, 32)
    assert model.kv_bytes_per_token(2) == load_model("llama-3-8b").kv_bytes_per_token(2)


@pytest.mark.parametrize(("ranks", "named"), [(3, "64 attention heads"), (0, "64 attention heads")])
def test_heads_that_do_not_divide_are_refused(ranks: int, named: str) -> None:
    """The error names the heads and the sizes that work."""
    with pytest.raises(InputError, match=named) as refused:
        load_model("llama-3-70b").attention_gemms(ranks)

    assert refused.value.remedy == "choose from 1, 2, 4, 8, 16, 32, 64"


def test_kv_heads_that_do_not_divide_are_refused() -> None:
    """Four KV heads over six ranks is what engines refuse too."""
    with pytest.raises(InputError, match="4 key-value heads"):
        load_model("qwen2.5-7b").kv_bytes_per_token(2, 6)


def test_a_profile_loads_from_a_path(tmp_path: Path) -> None:
    """A user's YAML profile by path, relative to the file that names it."""
    profile = make_model().model_dump(mode="json")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(profile))

    assert load_model("./mine.yaml", relative_to=tmp_path) == make_model()


def test_an_unknown_name_lists_the_nearest() -> None:
    """A misspelt name is answered with names that exist."""
    with pytest.raises(ProfileError, match=r"llama-3\.1-70b"):
        load_model("llama-31-70b")


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"source": None}, "source"),
        ({"hidden_sizes": 64}, "hidden_sizes"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"sliding_window": 8}, "sliding_window"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_invalid_fields_are_named(fields: dict[str, Any], key: str) -> None:
    """The error names the field that breaks a rule."""
    with pytest.raises(ProfileError, match=key):
        make_model(**fields)


def test_a_profile_must_carry_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied profile that kept its old name is refused."""
    profile = make_model().model_dump(mode="json")
    (tmp_path / "copy.yaml").write_text(yaml.safe_dump(profile))
    monkeypatch.setenv(catalog.PROFILE_PATH_VARIABLE, str(tmp_path))

    with pytest.raises(ProfileError, match="name of its file"):
        load_model("copy")


@pytest.mark.parametrize(
    ("repository", "shape", "stored"),
    [
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b", "none"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3", "fp8"),
        ("unsloth/DeepSeek-R1-Distill-Llama-70B-bnb-4bit", "llama-3.3-70b", "nf4"),
        ("zai-org/GLM-4.7-FP8", "glm-4.6", "fp8"),
        ("Qwen/Qwen3.6-35B-A3B", "qwen3.5-35b-a3b", "none"),
        ("mistralai/Devstral-Small-2507", "mistral-small-24b", "none"),
        ("microsoft/Phi-4-reasoning", "phi-4", "none"),
        ("nvidia/Llama-3.1-Nemotron-Nano-8B-v1", "llama-3.1-8b", "none"),
    ],
)
def test_weights_tuned_from_a_model_keep_their_name_and_have_none_of_its_checkpoints(
    repository: str, shape: str, stored: str
) -> None:
    """Its architecture is the model's; the model's checkpoints in other formats are other weights."""
    model = load_model(repository)

    assert (model.name, model.catalogue_name) == (repository, shape)
    assert (model.stored.repository, model.stored.format) == (repository, stored)
    theirs = {each.repository for each in load_model(shape).checkpoints}
    assert theirs.isdisjoint(each.repository for each in model.checkpoints)
    assert weights_name(repository) == repository


@pytest.mark.parametrize("repository", ["mistralai/Devstral-Small-2507", "unsloth/Devstral-Small-2507-bnb-4bit"])
def test_weights_tuned_without_the_tower_load_none(repository: str) -> None:
    """Devstral Small of 2025; Magistral kept that of Mistral Small."""
    assert load_model(repository).vision is None
    assert load_model("mistralai/Magistral-Small-2509").vision == load_model("mistral-small-24b").vision is not None


@pytest.mark.parametrize(
    ("repository", "longest"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 262_144),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", 262_144),
        ("unsloth/Qwen3-Coder-30B-A3B-Instruct", 262_144),
        ("Qwen/Qwen3-30B-A3B-FP8", 40_960),
        ("moonshotai/Kimi-K2-Thinking", 262_144),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 131_072),
        ("microsoft/Phi-4-reasoning-plus", 32_768),
        ("Qwen/QwQ-32B-AWQ", 40_960),
    ],
)
def test_weights_with_a_context_of_their_own_have_it(repository: str, longest: int) -> None:
    """A repository on record as well as one that is known by its shape, in whatever format."""
    assert load_model(repository).max_position_embeddings == longest


def test_weights_whose_name_goes_on_have_a_context_of_their_own() -> None:
    """A preview is another model."""
    assert context_of("Qwen/QwQ-32B-FP8") == 40_960
    assert context_of("Qwen/QwQ-32B-Preview") is None


@pytest.mark.parametrize(
    ("repository", "layers"),
    [
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "cross-attention"),
        ("mistralai/Mistral-Large-4", "latents that layers share"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "block_configs"),
        ("nvidia/Llama-3_1-Nemotron-Ultra-253B-v1", "block_configs"),
        ("meituan-longcat/LongCat-Flash-Lite", "embeddings of n-grams"),
        ("deepseek-ai/DeepSeek-V4.1-Flash", "a decoder that prompts do not pass"),
        ("microsoft/Phi-4-mini-flash-reasoning", "SambaY"),
        ("tiiuae/falcon-mamba-7b-instruct", "Mamba-1 in all layers"),
        ("microsoft/Phi-4-multimodal-instruct", "adapters for images"),
        ("openbmb/MiniCPM4.1-8B", "block-sparse attention"),
    ],
)
def test_a_model_without_a_formula_is_refused_for_its_layers(repository: str, layers: str) -> None:
    """Not for want of a file: what its layers do is not modelled."""
    with pytest.raises(ProfileError, match=f"no formula for: .*{layers}"):
        load_model(repository)


def test_another_tuning_of_the_same_name_keeps_the_models_checkpoints() -> None:
    """An instruction-tuned repository beside one of the base model: FP8 weights of that name are there for both."""
    model, profile = load_model("unsloth/Meta-Llama-3.1-8B-Instruct"), load_model("llama-3.1-8b")

    assert load_model("meta-llama/Llama-3.1-8B-Instruct").assumption is None
    assert model.stored.repository == "unsloth/Meta-Llama-3.1-8B-Instruct"
    assert model.checkpoints[1:] == profile.checkpoints
    assert "llama-3.1-8b and bf16 weights, by its name" in str(model.assumption)
    assert weights_name(model.name) == "llama-3.1-8b"


def test_a_profile_named_like_the_beginning_of_a_name_differs_by_its_size_alone() -> None:
    """Mistral-Small is the one of 24 B; GLM-4.5 is not GLM-4.5-Air, and no name of a family is a model."""
    assert profile_named_like("mistralai/Mistral-Small") == "mistral-small-24b"
    assert profile_named_like("zai-org/GLM-4.5-Air-FP8") == "glm-4.5-air"
    assert profile_named_like("org/glm-4") is None
    assert profile_named_like("org/minimax") is None


@pytest.mark.parametrize(
    ("repository", "stored"),
    [("amd/Llama-3.1-70B-Instruct-MXFP4", "mxfp4"), ("nvidia/Llama-3.1-70B-Instruct-FP4", "nvfp4")],
)
def test_a_name_tells_which_four_bits(repository: str, stored: str) -> None:
    """MXFP4 holds the letters of FP4, which alone is NVIDIA's."""
    assert load_model(repository).stored.format == stored
