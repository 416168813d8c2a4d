"""The measured points to which serving constants were fitted, and those left out. Fits and runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.planner.measured.point import MeasuredPoint, Metric
from simserve.planner.measured.shipped import PUBLISHED
from simserve.planner.validation.prediction import Prediction
from simserve.planner.validation.scoring import relative_error

_ROUTED = ("deepseek", "glm", "minimax", "qwen3-235b", "gpt-oss")
_SERVERS = ("inferencex_agg", "nvidia_aic_inhouse_agg")

SHORT_PROMPT = 1024
"""Nominal length of InferenceX's shorter prompts."""

Chosen = Callable[[MeasuredPoint], bool]


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """One constant, the points to which it was fitted, and those on which it is tested.

    Attributes:
        name: Its name and value.
        fitted_to: The points to which it was fitted.
        fitted_metrics: The metrics of those points that were used.
        tests: Name -> points and metric, none of them used in the fit.
    """

    name: str
    fitted_to: Chosen
    fitted_metrics: tuple[Metric, ...]
    tests: tuple[tuple[str, Chosen, Metric], ...]


def _is_70b(point: MeasuredPoint, hardware: str) -> bool:
    return (point.source, point.engine, point.model, point.hardware) == (
        "inferencex_agg",
        "vllm",
        "llama-3.1-70b",
        hardware,
    )


def _is_splitwise(point: MeasuredPoint, model: str) -> bool:
    return (point.source, point.model) == ("splitwise_iterations", model)


def _is_tp8(point: MeasuredPoint) -> bool:
    return point.source == "apex_plus" and point.label.endswith("_8TP")


def _is_served(point: MeasuredPoint, engine: str, model: str, hardware: str = "") -> bool:
    """Return whether InferenceX measured a point: an engine, models by name prefix, one GPU or any."""
    is_here = point.source == "inferencex_agg" and not point.shown_only
    return is_here and point.engine == engine and point.model.startswith(model) and hardware in ("", point.hardware)


def _is_routed(point: MeasuredPoint) -> bool:
    return point.source in _SERVERS and point.model.startswith(_ROUTED)


def _is_early_static(point: MeasuredPoint, model: str, hardware: str) -> bool:
    return (point.source, point.model, point.hardware) == ("trtllm_static_batch", model, hardware) and (
        point.version.startswith(("0.5", "0.6", "0.7"))
    )


def _has_unshared_groups(point: MeasuredPoint) -> bool:
    return point.source == "trtllm_static_batch" and point.model in ("mistral-7b", "falcon-180b")


def _is_accelmark(point: MeasuredPoint, hardware: tuple[str, ...]) -> bool:
    return point.source == "accelmark" and point.version == "0.7.3" and point.hardware.startswith(hardware)


def _ranks(point: MeasuredPoint) -> int:
    return int(point.scenario.get("deployment", {}).get("tensor_parallel_size", 1))


def _is_swept(point: MeasuredPoint, engine: str, model: str) -> bool:
    """Return whether NVIDIA's own sweep measured a point: an engine and a model."""
    return (point.source, point.engine, point.model) == ("nvidia_aic_inhouse_agg", engine, model)


def _is_offline_split(point: MeasuredPoint, hardware: str) -> bool:
    is_old = point.source == "trtllm_perf_overview" and point.version.startswith("0.")
    return is_old and point.hardware == hardware and _ranks(point) > 1


def _is_llama_cpp(point: MeasuredPoint, hardware: tuple[str, ...]) -> bool:
    return point.source == "llama_cpp" and point.hardware.startswith(hardware)


def _is_apple(point: MeasuredPoint, chips: tuple[str, ...]) -> bool:
    return point.source == PUBLISHED and point.label.startswith("llama-cpp-apple") and point.hardware.startswith(chips)


def _is_single(point: MeasuredPoint, engine: str) -> bool:
    return point.source == "single_stream" and point.engine == engine


def _is_offline(point: MeasuredPoint, hardware: tuple[str, ...]) -> bool:
    return point.source == "mlperf_official" and point.load_kind == "offline" and point.hardware.startswith(hardware)


def _longest_prompt(point: MeasuredPoint) -> int:
    """Return the nominal length of a point's prompts, 0 if its workload has none."""
    return int(point.scenario.get("workload", {}).get("prompt_tokens", {}).get("max", 0))


def _is_separate(point: MeasuredPoint, engine: str, hardware: str, prompt: int = 0) -> bool:
    """Return whether InferenceX measured separate workers: an engine, one GPU, one nominal prompt length or any."""
    if point.source != "inferencex_disagg" or not point.pools:
        return False
    length = int(point.pools[0].prefill["workload"]["prompt_tokens"]["max"])
    return point.engine == engine and point.hardware.startswith(hardware) and prompt in (0, length)


CONSTANTS = (
    FittedConstant(
        "workers that only prefill: 0.8 of the rate of their kernels (prompts of 8,192), and caches that leave at "
        "1 GB/s (prompts of 1,024); TensorRT-LLM, H200, separate workers",
        lambda point: _is_separate(point, "tensorrt-llm", "h200"),
        ("ttft",),
        (
            ("TensorRT-LLM, H100", lambda point: _is_separate(point, "tensorrt-llm", "h100"), "ttft"),
            ("SGLang, H200", lambda point: _is_separate(point, "sglang", "h200"), "ttft"),
        ),
    ),
    FittedConstant(
        "SGLang, separate workers: 90 ms from a prompt to the decode worker; H100, prompts of 1,024",
        lambda point: _is_separate(point, "sglang", "h100", SHORT_PROMPT),
        ("ttft",),
        (
            ("prompts of 8,192", lambda point: _is_separate(point, "sglang", "h100", 8192), "ttft"),
            ("H200", lambda point: _is_separate(point, "sglang", "h200"), "ttft"),
        ),
    ),
    FittedConstant(
        "SGLang, fresh: 1.1 s longer for the first prompts; InferenceX DeepSeek-R1, prompts of 1,024",
        lambda point: _is_served(point, "sglang", "deepseek-r1") and _longest_prompt(point) == SHORT_PROMPT,
        ("ttft",),
        (
            (
                "DeepSeek-R1, prompts of 8,192",
                lambda point: _is_served(point, "sglang", "deepseek-r1") and _longest_prompt(point) > SHORT_PROMPT,
                "ttft",
            ),
            ("DeepSeek-V3", lambda point: _is_served(point, "sglang", "deepseek-v3"), "ttft"),
            ("GLM-5", lambda point: _is_served(point, "sglang", "glm-5"), "ttft"),
        ),
    ),
    FittedConstant(
        "TensorRT-LLM 1.1 with DeepSeek, fresh: first prompts 1.4 s and 0.08 s a client longer; InferenceX DeepSeek-R1",
        lambda point: _is_served(point, "tensorrt-llm", "deepseek-r1"),
        ("ttft",),
        (("DeepSeek-V3", lambda point: _is_served(point, "tensorrt-llm", "deepseek-v3"), "ttft"),),
    ),
    FittedConstant(
        "llama.cpp on Apple: 0.92 of the bandwidth (two chips: 0.83), kernel starts of 14 us in 2023; M2 family",
        lambda point: _is_apple(point, ("m2",)),
        ("tpot",),
        (
            ("M1, M3 and M4", lambda point: _is_apple(point, ("m1", "m3", "m4")), "tpot"),
            ("XiongjieDai's Macs", lambda point: _is_llama_cpp(point, ("m1", "m2", "m3")), "tpot"),
        ),
    ),
    FittedConstant(
        "llama.cpp on Apple: prompts at 0.77 of the FP32 peak, 0.9 of that where unpacked; M2 family",
        lambda point: _is_apple(point, ("m2",)),
        ("ttft",),
        (
            ("M1, M3 and M4", lambda point: _is_apple(point, ("m1", "m3", "m4")), "ttft"),
            ("XiongjieDai's Macs", lambda point: _is_llama_cpp(point, ("m1", "m2", "m3")), "ttft"),
        ),
    ),
    FittedConstant(
        "llama.cpp: no more than 1.6 TB/s; XiongjieDai's tables, A100 and H100",
        lambda point: _is_llama_cpp(point, ("a100", "h100")),
        ("tpot",),
        (
            ("RTX and A40", lambda point: _is_llama_cpp(point, ("rtx", "a40")), "tpot"),
            ("tables of single streams elsewhere", lambda point: _is_single(point, "llama.cpp"), "tpot"),
        ),
    ),
    FittedConstant(
        "products of MI325X reach 0.70 of the peak; MLPerf v5.0 offline",
        lambda point: _is_offline(point, ("mi325x",)),
        ("throughput",),
        (
            (
                "other GPUs of class efficiencies",
                lambda point: _is_offline(point, ("h100-nvl", "h100-pcie", "h200-nvl", "mi300x")),
                "throughput",
            ),
        ),
    ),
    FittedConstant(
        "vLLM 0.8.5 to 0.13: 50 us to sort a request's logits for top-k and top-p; AIConfigurator Qwen3-32B, TP 2",
        lambda point: _is_swept(point, "vllm", "qwen3-32b") and _ranks(point) == 2,
        ("tpot",),
        (
            (
                "AIConfigurator Qwen3-32B, TP 4 and 8",
                lambda point: _is_swept(point, "vllm", "qwen3-32b") and _ranks(point) > 2,
                "tpot",
            ),
        ),
    ),
    FittedConstant(
        "vLLM 0.8.5 to 0.18: 1.5 times as long for a key of FP8; InferenceX MiniMax-M2, H200",
        lambda point: _is_served(point, "vllm", "minimax", "h200-sxm-141gb"),
        ("tpot",),
        (("InferenceX Llama-3.1-70B, H200", lambda point: _is_70b(point, "h200-sxm-141gb"), "tpot"),),
    ),
    FittedConstant(
        "TensorRT-LLM from 1.0: 0.25 ms of gaps a layer outside CUDA graphs; AIConfigurator Llama-3.1-8B",
        lambda point: _is_swept(point, "tensorrt-llm", "llama-3.1-8b"),
        ("tpot",),
        (("AIConfigurator Qwen3-32B", lambda point: _is_swept(point, "tensorrt-llm", "qwen3-32b"), "tpot"),),
    ),
    FittedConstant(
        "SGLang from 0.4: 0.15 ms of gaps a layer outside CUDA graphs; AIConfigurator Llama-3.1-8B, TP 1",
        lambda point: _is_swept(point, "sglang", "llama-3.1-8b") and _ranks(point) == 1,
        ("tpot",),
        (
            (
                "AIConfigurator Llama-3.1-8B, TP 2 to 8",
                lambda point: _is_swept(point, "sglang", "llama-3.1-8b") and _ranks(point) > 1,
                "tpot",
            ),
        ),
    ),
    FittedConstant(
        "TensorRT-LLM before 1.0: 3 ms a step for ranks to agree; offline, H100",
        lambda point: _is_offline_split(point, "h100-sxm-80gb"),
        ("throughput",),
        (
            ("Offline, A100", lambda point: _is_offline_split(point, "a100-sxm-80gb"), "throughput"),
            (
                "Served Llama-3.1-70B",
                lambda point: point.source == "trtllm_online_serving" and _ranks(point) > 1,
                "tpot",
            ),
            (
                "Static batches, more than one rank",
                lambda point: point.source == "trtllm_static_batch" and _ranks(point) > 1,
                "throughput",
            ),
        ),
    ),
    FittedConstant(
        "vLLM 0.6.6 to 0.7: 30 us of host time a request and step, 22 us to stream it, 0.15 ms of gaps a layer of a "
        "prompt, and slower hosts; AccelMark's H100, A100 and RTX 4090 nodes",
        lambda point: _is_accelmark(point, ("h100-sxm", "a100-sxm", "rtx-4090")),
        ("tpot", "ttft", "throughput"),
        (
            ("its V100S and L4 nodes", lambda point: _is_accelmark(point, ("v100s", "l4")), "tpot"),
            ("its V100S and L4 nodes", lambda point: _is_accelmark(point, ("v100s", "l4")), "ttft"),
            ("its V100S and L4 nodes", lambda point: _is_accelmark(point, ("v100s", "l4")), "throughput"),
            (
                "AccelMark's A100 node, vLLM 0.20.1",
                lambda point: point.source == "accelmark" and not point.version.startswith("0.7"),
                "tpot",
            ),
        ),
    ),
    FittedConstant(
        "TensorRT-LLM before 0.8: each query head reads its keys, at 3.7 TB/s; static batches, Llama-2-70B, H100",
        lambda point: _is_early_static(point, "llama-2-70b", "h100-sxm-80gb"),
        ("throughput",),
        (
            (
                "Llama-2-70B, A100",
                lambda point: _is_early_static(point, "llama-2-70b", "a100-sxm-80gb"),
                "throughput",
            ),
            ("Mistral 7B and Falcon 180B", _has_unshared_groups, "throughput"),
        ),
    ),
    FittedConstant(
        "vLLM before 0.5.5: 0.36 ms to launch a layer, 0.6 ms with prompts, 120 us of host time a request and step, "
        "0.68 of today's arithmetic and 0.88 of its bandwidth; hosts of A100 1.4 times as slow; Splitwise, Llama-2-70B",
        lambda point: _is_splitwise(point, "llama-2-70b"),
        ("tpot", "ttft"),
        (
            ("Splitwise, BLOOM-176B", lambda point: _is_splitwise(point, "bloom-176b"), "tpot"),
            ("Splitwise, BLOOM-176B", lambda point: _is_splitwise(point, "bloom-176b"), "ttft"),
            ("tables of single streams", lambda point: _is_single(point, "vllm"), "tpot"),
            ("KAITO, A100", lambda point: point.source == "kaito", "tpot"),
        ),
    ),
    FittedConstant(
        "vLLM 0.5.5 to 0.6.5: 3 ms of host time a step, 0.25 ms to launch a layer, 0.9 of today's kernels; APEX+, TP 4",
        lambda point: point.source == "apex_plus" and not _is_tp8(point),
        ("tpot", "ttft"),
        (
            ("APEX+, TP 8", _is_tp8, "tpot"),
            ("APEX+, TP 8", _is_tp8, "ttft"),
            ("APEX+, TP 8, end to end", _is_tp8, "e2e"),
        ),
    ),
    FittedConstant(
        "ranks reach a collective 0.8 kernel latencies apart a doubling; InferenceX Llama-3.1-70B, H100",
        lambda point: _is_70b(point, "h100-sxm-80gb"),
        ("tpot",),
        (("InferenceX Llama-3.1-70B, H200", lambda point: _is_70b(point, "h200-sxm-141gb"), "tpot"),),
    ),
    FittedConstant(
        "experts' popularity falls as rank^-0.8; TensorRT-LLM",
        lambda point: _is_routed(point) and point.engine == "tensorrt-llm",
        ("tpot",),
        (
            ("vLLM", lambda point: _is_routed(point) and point.engine == "vllm", "tpot"),
            ("SGLang", lambda point: _is_routed(point) and point.engine == "sglang", "tpot"),
        ),
    ),
    FittedConstant(
        "vLLM from 0.8.5: 1.0 ms to launch a layer with experts outside CUDA graphs; InferenceX MiniMax-M2, H100",
        lambda point: _is_served(point, "vllm", "minimax", "h100-sxm-80gb"),
        ("ttft",),
        (
            (
                "InferenceX MiniMax-M2, H200",
                lambda point: _is_served(point, "vllm", "minimax", "h200-sxm-141gb"),
                "ttft",
            ),
            ("InferenceX gpt-oss-120b, H200", lambda point: _is_served(point, "vllm", "gpt-oss"), "ttft"),
        ),
    ),
    FittedConstant(
        "vLLM 0.8.5 to 0.13: 50 us a step and request whose tokens are drawn at random; AIConfigurator's sweep, TP 2",
        lambda point: _is_swept(point, "vllm", "qwen3-32b") and _ranks(point) == 2,
        ("tpot",),
        (
            ("the same, TP 4 and 8", lambda point: _is_swept(point, "vllm", "qwen3-32b") and _ranks(point) > 2, "tpot"),
            ("KAITO, A100", lambda point: point.source == "kaito", "tpot"),
        ),
    ),
    FittedConstant(
        "InferenceX's H200 nodes: 8 ms further from their clients; Llama-3.1-70B, vLLM",
        lambda point: _is_70b(point, "h200-sxm-141gb"),
        ("ttft",),
        (
            ("gpt-oss, vLLM", lambda point: _is_served(point, "vllm", "gpt-oss", "h200-sxm-141gb"), "ttft"),
            ("MiniMax-M2, vLLM", lambda point: _is_served(point, "vllm", "minimax", "h200-sxm-141gb"), "ttft"),
            ("gpt-oss, TensorRT-LLM", lambda point: _is_served(point, "tensorrt-llm", "gpt-oss"), "ttft"),
        ),
    ),
    FittedConstant(
        "Triton experts: 1.7 ms a layer, 3 us to tokenise a token; InferenceX gpt-oss-120b, TensorRT-LLM",
        lambda point: _is_served(point, "tensorrt-llm", "gpt-oss"),
        ("ttft",),
        (
            ("InferenceX DeepSeek, SGLang", lambda point: _is_served(point, "sglang", "deepseek"), "ttft"),
            ("InferenceX gpt-oss-120b, vLLM", lambda point: _is_served(point, "vllm", "gpt-oss"), "ttft"),
            ("InferenceX Llama-3.1-70B, vLLM", lambda point: _is_served(point, "vllm", "llama"), "ttft"),
        ),
    ),
)


def fitted_metrics(point: MeasuredPoint) -> frozenset[Metric]:
    """Return the figures of the point to which a constant was fitted."""
    return frozenset(
        metric for constant in CONSTANTS if constant.fitted_to(point) for metric in constant.fitted_metrics
    )


def held_out_rows(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return one row per constant and test: ``constant metric fitted in_sample test points out_of_sample``.

    Errors are medians of the absolute relative error over the available points; tests without points are left out.
    """
    rows = []
    for constant in CONSTANTS:
        for name, chosen, metric in constant.tests:
            inside = _errors(predictions, constant.fitted_to, metric) if metric in constant.fitted_metrics else []
            outside = _errors(predictions, chosen, metric)
            if outside:
                rows.append(
                    {
                        "constant": constant.name,
                        "metric": metric,
                        "fitted": len(inside),
                        "in_sample": float(np.median(inside)) if inside else None,
                        "test": name,
                        "points": len(outside),
                        "out_of_sample": float(np.median(outside)),
                    }
                )
    return rows


def sample_rows(predictions: Sequence[Prediction], name_of: Callable[[MeasuredPoint], str]) -> list[dict[str, Any]]:
    """Return the errors of a GPU, a model or an engine on figures used to fit a constant, and on the others.

    Args:
        predictions: Of every source.
        name_of: Name by which points are grouped.

    Returns:
        ``name points metrics``, most points first; ``metrics`` is metric -> ``in_sample out_of_sample`` of (median
        absolute error, figures), None without any. Figures that are only shown are in neither; the published ones are
        in their sources.
    """
    found: dict[str, dict[Metric, tuple[list[float], list[float]]]] = {}
    counts: Counter[str] = Counter()
    for each in predictions:
        if each.point.source == PUBLISHED or not each.is_covered:
            continue
        name = name_of(each.point)
        counts[name] += 1
        fitted = fitted_metrics(each.point)
        for metric, value in each.predicted.items():
            if metric not in each.point.shown_only:
                samples = found.setdefault(name, {}).setdefault(metric, ([], []))
                samples[0 if metric in fitted else 1].append(abs(relative_error(value, each.point.measured[metric])))
    return [
        {
            "name": name,
            "points": count,
            "metrics": {
                metric: {"in_sample": _median(inside), "out_of_sample": _median(outside)}
                for metric, (inside, outside) in found[name].items()
            },
        }
        for name, count in counts.most_common()
        if name in found
    ]


def _median(errors: Sequence[float]) -> tuple[float, int] | None:
    return (float(np.median(errors)), len(errors)) if errors else None


def _errors(predictions: Sequence[Prediction], chosen: Chosen, metric: Metric) -> list[float]:
    return [
        abs(relative_error(each.predicted[metric], each.point.measured[metric]))
        for each in predictions
        if metric in each.predicted and metric not in each.point.shown_only and chosen(each.point)
    ]
