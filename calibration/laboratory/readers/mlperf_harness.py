"""How MLPerf submissions configure their servers, by round, model and GPU. Knows no figures.

Layout, seats and budget are those of NVIDIA's harness (mlcommons/inference_results_v4.1 at a2f5d66 and
inference_results_v5.0 at 6069beb, closed/NVIDIA/configs; Apache-2.0), which nearly all submitters of NVIDIA GPUs run.
What those files do not contain is marked as assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TENSORRT_LLM: dict[str, str] = {"v4.1": "0.11.0", "v5.0": "0.17.0", "v5.1": "1.0.0", "v6.0": "1.2.0"}
"""Round -> the release at its deadline (July 2024, January and July 2025, January 2026)."""

FREE_SHARE = 0.90
"""Share of the free memory for KV, kvcache_free_gpu_mem_frac (0.95 on H100 in v5.0)."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One MLPerf benchmark.

    Attributes:
        model: Profile.
        lengths: File of prompt lengths.
        longest: Longest answer, tokens.
        mean: Mean answer, tokens, if a row does not state it: the logs' tokens per sample.
        cv: Coefficient of variation of the answers around their mean.
        beam_width: Beams of the decoding; 1 is greedy.
        longest_prompt: Tokens reserved for the prompt besides the longest answer.
    """

    model: str
    lengths: str
    longest: int
    mean: float
    cv: float
    beam_width: int = 1
    longest_prompt: int = 2048


BENCHMARKS = {
    "llama2-70b": Benchmark("llama-2-70b", "llama2-70b-99_openorca.csv.gz", 1024, 294.45, 0.8),
    "mixtral-8x7b": Benchmark("mixtral-8x7b", "mixtral-8x7b.csv.gz", 1024, 145.0, 0.8),
    "gptj": Benchmark("gpt-j-6b", "llama3-1-8b-datacenter_cnn_dailymail.csv.gz", 128, 69.0, 0.3, beam_width=4),
    "llama3.1-405b": Benchmark("llama-3.1-405b", "llama3-1-405b.csv.gz", 2000, 650.0, 0.4, longest_prompt=18_480),
    "llama3.1-8b": Benchmark(
        "llama-3.1-8b", "llama3-1-8b-datacenter_cnn_dailymail.csv.gz", 128, 128.0, 0.0, longest_prompt=2560
    ),
    "deepseek-r1": Benchmark("deepseek-r1", "deepseek-r1.csv.gz", 20_000, 3830.0, 1.1, longest_prompt=3200),
}
"""Prefix of a benchmark's name -> its definition. Spreads: OpenOrca's 0.8; the others are from the data sets' output
columns; Llama-3.1-8B answers with 128 tokens each. GPT-J summarises CNN/DailyMail, whose lengths are in the file of
Llama-3.1-8B."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a replica is split, and its limits.

    Attributes:
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline stages.
        server_seats: gpu_batch_size of the Poisson scenario.
        offline_seats: gpu_batch_size of the offline scenario.
        budget: max_num_tokens.
        admission: ``on_demand`` for batch_scheduler_policy max_util.
        data: Ranks of data-parallel attention, with whole experts.
    """

    tensor: int
    pipeline: int
    server_seats: int
    offline_seats: int
    budget: int = 8192
    admission: Literal["on_demand", "reserve"] = "on_demand"
    data: int = 1


_V41: dict[tuple[str, str], Layout] = {
    ("llama2-70b", "h100-sxm"): Layout(2, 1, 1024, 896),
    ("llama2-70b", "h100-nvl"): Layout(2, 1, 640, 1300),
    ("llama2-70b", "h100-pcie"): Layout(2, 1, 896, 896),  # HPE's, offline
    ("llama2-70b", "h200"): Layout(1, 1, 896, 806),
    ("llama2-70b", ""): Layout(1, 1, 896, 896),  # assumed
    ("mixtral-8x7b", "h200"): Layout(1, 1, 1200, 3072),  # Giga Computing's
    ("mixtral-8x7b", ""): Layout(1, 1, 896, 896),
    ("gptj", "h200"): Layout(1, 1, 396, 396),
    ("gptj", "h100-pcie"): Layout(1, 1, 128, 128),
    ("gptj", ""): Layout(1, 1, 256, 256),
}
_V50: dict[tuple[str, str], Layout] = {
    ("llama2-70b", "h100-sxm"): Layout(1, 2, 1024, 1024, 1024),
    ("llama2-70b", "h100-pcie"): Layout(1, 2, 1024, 1024, 1024),  # assumed: as H100 SXM
    ("llama2-70b", "h100-nvl"): Layout(2, 1, 640, 1300),
    ("llama2-70b", ""): Layout(1, 1, 2048, 2048, 1536),
    ("mixtral-8x7b", "h200"): Layout(1, 1, 1200, 3072, 16384),
    ("mixtral-8x7b", ""): Layout(1, 1, 896, 896, 16384),
    ("gptj", "h200"): Layout(1, 1, 396, 396),
    ("gptj", "h100-pcie"): Layout(1, 1, 128, 128),
    ("gptj", ""): Layout(1, 1, 256, 256),
    ("llama3.1-405b", "b200"): Layout(4, 1, 512, 512, admission="reserve"),  # assumed
    ("llama3.1-405b", ""): Layout(8, 1, 512, 512, admission="reserve"),  # assumed
}
_V51: dict[tuple[str, str], Layout] = {
    **_V50,
    ("llama3.1-8b", ""): Layout(1, 1, 2048, 2048),
    ("deepseek-r1", ""): Layout(1, 1, 256, 512, data=8),
}
"""All assumed: as in v5.0 if that had the benchmark."""
_LAYOUTS: dict[str, dict[tuple[str, str], Layout]] = {"v4.1": _V41, "v5.0": _V50, "v5.1": _V51, "v6.0": _V51}

FP4_BENCHMARKS = ("llama2-70b", "llama3.1-405b", "llama3.1-8b", "deepseek-r1")
"""Benchmarks that submitters run in NVFP4 on Blackwell; others run in FP8."""


def benchmark_of(name: str) -> str:
    """Return the key of `BENCHMARKS` with which a benchmark's name begins, "" if there is none."""
    return next((key for key in BENCHMARKS if name.startswith(key)), "")


def layout_of(round_name: str, benchmark: str, hardware: str) -> Layout:
    """Return how submissions of a round split a benchmark on a GPU; on other GPUs the model's usual way.

    Args:
        round_name: Key of `TENSORRT_LLM`.
        benchmark: Key of `BENCHMARKS` in that round.
        hardware: Hardware profile.
    """
    known = _LAYOUTS[round_name]
    starts = (start for name, start in known if name == benchmark and hardware.startswith(start))
    return known[benchmark, max(starts, key=len)]
