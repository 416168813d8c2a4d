"""Fits every GEMM and expert curve of the catalogue and states their errors.

``python -m calibration.laboratory.fits.gemm_report --data FOLDER`` prints a table of errors in Markdown, and with
``--profiles`` the blocks of `hardware_profiles`. Writes no file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from calibration.laboratory.fits.gemm_fit import (
    MIN_TESTED_SECONDS,
    Benchmark,
    Device,
    GemmFit,
    fit_gemm,
    predict_seconds,
    scale_to,
)
from calibration.laboratory.fits.gemm_tables import gemm_rows
from calibration.laboratory.fits.moe_fit import (
    ExpertCalls,
    chosen_calls,
    expert_calls,
    fit_moe,
    joined,
    moe_rows,
    predict_experts,
)
from simserve.errors import InvariantError
from simserve.perf.efficiency import Array
from simserve.perf.gemm import GemmDevice
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import GemmClass, GemmCurve, GroupedGemmCurve

TRAINED, TESTED, SCALED = "h200-sxm-141gb", "h100-sxm-80gb", "a100-sxm-80gb"
"""Hardware on which curves are fitted and tested, and to which they are transferred by one factor."""

SCALE_SHARE = 0.1
"""Share of the rows of a GPU from which its factor is taken."""

BLACKWELL, BLACKWELL_TESTED = "b200-sxm-180gb", "gb200-186gb"
"""The same for Blackwell."""

L2_BYTES = {TRAINED: 50e6, TESTED: 50e6, SCALED: 40e6, BLACKWELL: 126e6, BLACKWELL_TESTED: 126e6}
"""L2 caches (NVIDIA H100, A100 and Blackwell architecture whitepapers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCase:
    """One format of one framework.

    Attributes:
        kernels: Class in a hardware profile.
        dtype: Name in the tables.
        benchmark: What the rows include.
        engines: Engines that use the curve; empty: all that no other curve of the class names.
        is_profiled: Whether it is written to profiles.
    """

    kernels: GemmClass
    dtype: str
    benchmark: Benchmark
    engines: tuple[str, ...] = ()
    is_profiled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCase:
    """Routed experts in one format of one framework.

    Attributes:
        kernels: Block of the profile.
        dtype: Format in the tables.
        framework: Framework in the tables.
        kernel: Part of the kernel's name in the tables.
        engines: Engines that run it; empty: any other.
        tile_rows: Rows of a tile.
        is_profiled: Whether it is written to profiles.
        beside: Format that runs on the same kernels and is fitted together with it.
        kept: Parameters taken from the block's curve for any engine.
        backend: `moe_backend` that runs it; empty: any.
        narrow: Rows of a tile in steps of few tokens, and most tokens of such a step; None: as in other steps.
        version: Version of the framework in the tables; a star: the newest.
        most_ranks: Most ranks that share the experts in the rows to which it is fitted; 1: every rank has a slice of
            every expert.
    """

    kernels: GemmClass
    dtype: str
    framework: str
    kernel: str
    engines: tuple[str, ...] = ()
    tile_rows: int = 64
    is_profiled: bool = True
    beside: str = ""
    kept: tuple[str, ...] = ()
    backend: str = ""
    narrow: tuple[int, int] | None = None
    version: str = "*"
    most_ranks: int | None = None


def _narrow(framework: str, max_tile_rows: int, max_splits: int) -> Benchmark:
    return Benchmark(
        framework=framework,
        is_quantising=True,
        input_bytes=1.0,
        weight_bytes=1.0,
        max_tile_rows=max_tile_rows,
        max_splits=max_splits,
    )


def _fp4(framework: str) -> Benchmark:
    return Benchmark(
        framework=framework,
        is_quantising=True,
        input_bytes=4.5 / 8,
        weight_bytes=4.5 / 8,
        max_tile_rows=128,
        max_splits=1,
    )


HOPPER_GEMMS = (
    GemmCase(kernels="bf16", dtype="bfloat16", benchmark=Benchmark(framework="vllm")),
    GemmCase(kernels="bf16", dtype="bfloat16", benchmark=Benchmark(framework="sglang"), is_profiled=False),
    GemmCase(kernels="bf16", dtype="bfloat16", benchmark=Benchmark(framework="trtllm"), is_profiled=False),
    GemmCase(kernels="fp8", dtype="fp8", benchmark=_narrow("trtllm", 64, 8)),
    GemmCase(kernels="fp8", dtype="fp8", benchmark=_narrow("vllm", 256, 1), engines=("vllm",)),
    GemmCase(kernels="fp8", dtype="fp8", benchmark=_narrow("sglang", 256, 1), engines=("sglang",)),
    GemmCase(kernels="fp8_block", dtype="fp8_block", benchmark=_narrow("sglang", 128, 1)),
    GemmCase(kernels="fp8_block", dtype="fp8_block", benchmark=_narrow("trtllm", 64, 1), engines=("tensorrt-llm",)),
)
"""For Hopper. vLLM and SGLang run CUTLASS kernels for FP8 with tiles up to 256 rows and no split reduction, SGLang
DeepGEMM for block-scaled FP8, with tiles of 64 or 128 rows; TensorRT-LLM, and all of them for 16 bit, call cuBLAS.
vLLM's FP8 block rows were timed without CUDA graphs."""

BLACKWELL_GEMMS = (
    GemmCase(kernels="bf16", dtype="bfloat16", benchmark=Benchmark(framework="vllm")),
    GemmCase(kernels="fp8_block", dtype="fp8_block", benchmark=_narrow("sglang", 128, 1)),
    GemmCase(kernels="fp8_block", dtype="fp8_block", benchmark=_narrow("trtllm", 128, 1), engines=("tensorrt-llm",)),
    GemmCase(kernels="nvfp4", dtype="nvfp4", benchmark=_fp4("trtllm")),
    GemmCase(kernels="nvfp4", dtype="nvfp4", benchmark=_fp4("vllm"), engines=("vllm",)),
    GemmCase(kernels="nvfp4", dtype="nvfp4", benchmark=_fp4("sglang"), engines=("sglang",)),
)
"""For Blackwell. FP8 with one scale keeps Hopper's curve: TensorRT-LLM's rows include 11 us of quantisation with each
product (no call takes less than 12), so that the time of a product in a decode step cannot be separated."""

AMPERE_GEMMS = (
    GemmCase(kernels="bf16", dtype="bfloat16", benchmark=Benchmark(framework="vllm")),
    GemmCase(kernels="int8", dtype="sq", benchmark=Benchmark(framework="trtllm", weight_bytes=1.0, input_bytes=1.0)),
    GemmCase(kernels="int8_weight_only", dtype="int8_wo", benchmark=Benchmark(framework="trtllm", weight_bytes=1.0)),
    GemmCase(kernels="int4_weight_only", dtype="int4_wo", benchmark=Benchmark(framework="trtllm", weight_bytes=0.5)),
)
"""For an A100."""

HOPPER_EXPERTS = (
    ExpertCase(kernels="bf16", dtype="bfloat16", framework="vllm", kernel="triton"),
    ExpertCase(kernels="bf16", dtype="bfloat16", framework="sglang", kernel="triton", engines=("sglang",)),
    ExpertCase(kernels="bf16", dtype="bfloat16", framework="trtllm", kernel="cutlass", engines=("tensorrt-llm",)),
    ExpertCase(kernels="fp8", dtype="fp8", framework="trtllm", kernel="cutlass"),
    ExpertCase(kernels="fp8", dtype="fp8", framework="vllm", kernel="flashinfer", is_profiled=False),
    ExpertCase(kernels="fp8_block", dtype="fp8_block", framework="vllm", kernel="flashinfer"),
    ExpertCase(kernels="fp8_block", dtype="fp8_block", framework="vllm", kernel="fp8moe_triton", engines=("vllm",)),
    ExpertCase(kernels="fp8_block", dtype="fp8_block", framework="sglang", kernel="triton", engines=("sglang",)),
    ExpertCase(kernels="fp8_block", dtype="fp8_block", framework="trtllm", kernel="cutlass", engines=("tensorrt-llm",)),
    ExpertCase(kernels="int4_weight_only", dtype="int4_wo", framework="vllm", kernel="marlin", tile_rows=16),
    ExpertCase(kernels="mxfp4_weight_only", dtype="w4a16_mxfp4", framework="vllm", kernel="gptoss"),
    ExpertCase(
        kernels="mxfp4_weight_only",
        dtype="w4a16_mxfp4",
        framework="trtllm",
        kernel="torch_flow",
        engines=("tensorrt-llm",),
        tile_rows=32,
        kept=("start_latency", "memory_efficiency", "overlap", "expert_latency"),
    ),
    ExpertCase(
        kernels="mxfp4_weight_only",
        dtype="w4a16_mxfp4",
        framework="vllm",
        kernel="marlin",
        engines=("vllm", "sglang"),
        tile_rows=16,
        beside="int4_wo",
        backend="marlin",
    ),
)
"""For Hopper. SGLang's table of MXFP4 is left out: its calls are Triton's, with experts written out in 16 bit (the 32
of gpt-oss-20b take 0.59 ms on an H100, the time to read 1.6 GB), which SGLang runs only under expert parallelism; its
servers call OpenAI's kernels, which vLLM's table has (server_args.py, triton_kernel). vLLM runs the same for gpt-oss,
and Marlin for other models and where told to, as SGLang does for DeepSeek-V4. TensorRT-LLM runs its own build of the
Triton kernels, which decodes faster than the table says (programmatic launches) and keeps the start of vLLM's Triton.
vLLM's FP8 kernels (FlashInfer) are left out: neither bandwidth nor peak is their bottleneck, and a fit on H200 is 30 %
off on H100."""


TRITON_NARROW = (16, 64)
"""Tiles of vLLM's Triton kernel for block-scaled FP8 experts if no file is tuned for the GPU: of 16 rows up to 64
tokens, of 64 beyond (fused_moe.py, get_default_config)."""

NODE_RANKS = 8
"""Most ranks to which FP4 experts of TensorRT-LLM's and SGLang's kernels on Blackwell are fitted: with more, a rank's
few popular experts take up to twice as long as predicted, since the kernels choose their tiles by the mean load, and a
single fit is 10 to 30 % too slow at the 1 to 8 ranks of a node."""


def _of_rc20(
    kernels: GemmClass, dtype: str, kernel: str, engines: tuple[str, ...] = (), most_ranks: int | None = None
) -> ExpertCase:
    """Return experts of TensorRT-LLM 1.3.0rc20; the tables of later candidates hold only other models'."""
    return ExpertCase(
        kernels=kernels,
        dtype=dtype,
        framework="trtllm",
        kernel=kernel,
        engines=engines,
        version="1.3.0rc20",
        most_ranks=most_ranks,
    )


def _of_sglang(kernels: GemmClass, dtype: str) -> ExpertCase:
    """Return FP4 experts of SGLang on Blackwell."""
    return ExpertCase(
        kernels=kernels,
        dtype=dtype,
        framework="sglang",
        kernel="flashinfer",
        engines=("sglang",),
        most_ranks=NODE_RANKS,
    )


BLACKWELL_EXPERTS = (
    ExpertCase(kernels="bf16", dtype="bfloat16", framework="vllm", kernel="flashinfer_trtllm"),
    ExpertCase(kernels="bf16", dtype="bfloat16", framework="sglang", kernel="flashinfer", engines=("sglang",)),
    _of_rc20("bf16", "bfloat16", "cutlass", ("tensorrt-llm",)),
    _of_rc20("fp8", "fp8", "cutlass"),
    ExpertCase(kernels="fp8_block", dtype="fp8_block", framework="sglang", kernel="flashinfer"),
    ExpertCase(
        kernels="fp8_block",
        dtype="fp8_block",
        framework="vllm",
        kernel="fused_moe",
        engines=("vllm",),
        version="0.19.0",
        narrow=TRITON_NARROW,
    ),
    ExpertCase(
        kernels="fp8_block",
        dtype="fp8_block",
        framework="vllm",
        kernel="trtllmfp8expertsmodular",
        engines=("flashinfer",),
    ),
    ExpertCase(
        kernels="fp8_block",
        dtype="fp8_block",
        framework="sglang",
        kernel="triton",
        engines=("triton",),
        version="0.5.14",
    ),
    _of_rc20("nvfp4", "nvfp4", "min_latency", most_ranks=NODE_RANKS),
    ExpertCase(kernels="nvfp4", dtype="nvfp4", framework="vllm", kernel="monolithic", engines=("vllm",)),
    _of_sglang("nvfp4", "nvfp4"),
    _of_rc20("mxfp4", "w4a8_mxfp4_mxfp8", "torch_flow", most_ranks=NODE_RANKS),
    _of_sglang("mxfp4", "w4a8_mxfp4_mxfp8"),
)
"""For Blackwell: FlashInfer's and TensorRT-LLM's kernels; vLLM's block-scaled FP8 experts ran on Triton up to 0.17.
Block-scaled FP8 experts under TensorRT-LLM are those in SGLang's table (its launch scripts ask for the backend TRTLLM;
the table of TensorRT-LLM itself holds DeepGEMM's)."""

AMPERE_EXPERTS = (
    ExpertCase(kernels="bf16", dtype="bfloat16", framework="vllm", kernel=""),
    ExpertCase(kernels="bf16", dtype="bfloat16", framework="sglang", kernel="", engines=("sglang",)),
    ExpertCase(kernels="bf16", dtype="bfloat16", framework="trtllm", kernel="", engines=("tensorrt-llm",)),
    ExpertCase(kernels="int4_weight_only", dtype="int4_wo", framework="sglang", kernel="", tile_rows=16, most_ranks=1),
)
"""For an A100. Rows of Marlin with whole experts on a rank take up to 1.6 times as long as the form that fits the
others predicts, at 8 ranks more than at 2 and at 128: a single fit is 19 % too slow if a rank has a slice of every
expert."""


CASES: Mapping[str, tuple[tuple[GemmCase, ...], tuple[ExpertCase, ...]]] = {
    TRAINED: (HOPPER_GEMMS, HOPPER_EXPERTS),
    TESTED: (HOPPER_GEMMS, HOPPER_EXPERTS),
    SCALED: (AMPERE_GEMMS, AMPERE_EXPERTS),
    BLACKWELL: (BLACKWELL_GEMMS, BLACKWELL_EXPERTS),
}
"""GPU -> the curves of its profile."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions, relative to the measured time.

    Attributes:
        num_points: Calls compared, those above 10 us.
        median: Median of the absolute error.
        mean: Mean of it.
        p90: 90th percentile of it.
        bias: Median of predicted / measured - 1.
    """

    num_points: int
    median: float
    mean: float
    p90: float
    bias: float


def errors(predicted: Array, measured: Array) -> Errors:
    """Return the errors over the calls that took at least 10 us."""
    tested = measured > MIN_TESTED_SECONDS
    ratio = predicted[tested] / measured[tested]
    off = np.abs(ratio - 1.0)
    p90 = float(np.quantile(off, 0.9))
    return Errors(len(ratio), float(np.median(off)), float(off.mean()), p90, float(np.median(ratio) - 1.0))


ARITHMETIC = {"sq": "int8", "fp8": "fp8", "fp8_block": "fp8", "w4a8_mxfp4_mxfp8": "fp8", "nvfp4": "fp4"}
"""Format of the tables -> dtype whose peak applies; 16 bit otherwise."""


def device(hardware: str, dtype: str) -> Device:
    """Return a GPU as the tables measured it, from its profile."""
    profile = load_hardware(hardware)
    name = ARITHMETIC.get(dtype, "bf16")
    peak = profile.peak_flops(name)
    if peak is None or profile.compute.num_multiprocessors is None:
        raise InvariantError(f"{hardware} must state num_multiprocessors and its {name} peak")
    return Device(
        gemm=GemmDevice(
            peak=peak,
            bandwidth=profile.memory.bandwidth,
            num_multiprocessors=profile.compute.num_multiprocessors,
        ),
        l2_bytes=L2_BYTES[hardware],
    )


def gemm_errors(fit: GemmFit, rows: pd.DataFrame, gpu: Device, scale: float = 1.0) -> Errors:
    """Return the errors of a fit, times a scale, on rows."""
    return errors(scale * predict_seconds(fit, rows, gpu), rows["seconds"].to_numpy())


def gemm_table(data: Path) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the error table of matrix products."""
    for case in HOPPER_GEMMS:
        framework = case.benchmark.framework
        trained, tested = (gemm_rows(data, name, framework, case.dtype) for name in (TRAINED, TESTED))
        fit = fit_gemm(trained, device(TRAINED, case.dtype), case.benchmark)
        label = (f"GEMM {case.dtype}", framework)
        yield (*label, "H200 -> H200", *_cells(gemm_errors(fit, trained, device(TRAINED, case.dtype))))
        yield (*label, "H200 -> H100", *_cells(gemm_errors(fit, tested, device(TESTED, case.dtype))))
        if case.dtype == "bfloat16":
            gpu, rows = device(SCALED, case.dtype), gemm_rows(data, SCALED, framework, case.dtype)
            scale = scale_to(fit, rows.sample(frac=SCALE_SHARE, random_state=0), gpu)
            yield (*label, f"H200 -> A100, x {scale:.2f}", *_cells(gemm_errors(fit, rows, gpu, scale)))
    for case in AMPERE_GEMMS:
        rows, gpu = gemm_rows(data, SCALED, case.benchmark.framework, case.dtype), device(SCALED, case.dtype)
        is_half = (rows["n"] + rows["k"]).rank(method="dense") % 2 == 0
        fit = fit_gemm(rows[is_half], gpu, case.benchmark)
        held_out = _cells(gemm_errors(fit, rows[~is_half], gpu))
        yield (f"GEMM {case.dtype}", case.benchmark.framework, "A100: half of the n + k -> the other", *held_out)


def expert_table(data: Path) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the error table of routed experts."""
    for case in HOPPER_EXPERTS:
        gpus = [device(name, case.dtype).gemm for name in (TRAINED, TESTED)]
        trained, tested = (_expert_calls(data, name, case)[0] for name in (TRAINED, TESTED))
        curve = fit_moe(trained, gpus[0], case.tile_rows, _kept(data, TRAINED, case))
        for label, calls, gpu in (("H200 -> H200", trained, gpus[0]), ("H200 -> H100", tested, gpus[1])):
            off = errors(predict_experts(curve, calls, gpu), calls.seconds)
            yield (f"experts {case.dtype}", f"{case.framework} ({case.kernel})", label, *_cells(off))
    for case in AMPERE_EXPERTS:
        if case.most_ranks == 1:
            gpu, (calls, rows) = device(SCALED, case.dtype).gemm, _expert_calls(data, SCALED, case)
            off = held_out_experts(calls, rows["num_experts"].to_numpy(), gpu, case.tile_rows)
            label = "A100: all numbers of experts but one -> that one"
            yield (f"experts {case.dtype}", case.framework, label, *_cells(off))


def held_out_experts(calls: ExpertCalls, num_experts: NDArray[np.int64], gpu: GemmDevice, tile_rows: int) -> Errors:
    """Return the errors of calls whose number of experts was left out: each is predicted from all the others."""
    predicted = np.empty_like(calls.seconds)
    for number in np.unique(num_experts):
        is_held = num_experts == number
        curve = fit_moe(chosen_calls(calls, ~is_held), gpu, tile_rows)
        predicted[is_held] = predict_experts(curve, chosen_calls(calls, is_held), gpu)
    return errors(predicted, calls.seconds)


def _expert_calls(data: Path, hardware: str, case: ExpertCase) -> tuple[ExpertCalls, pd.DataFrame]:
    """Return the calls of a case and their rows."""
    parts = []
    for dtype in (case.dtype, case.beside) if case.beside else (case.dtype,):
        rows = moe_rows(data, hardware, case.framework, dtype, case.kernel, case.version, most_ranks=case.most_ranks)
        parts.append((expert_calls(rows, dtype), rows))
    return joined(parts) if case.beside else parts[0][0], pd.concat([rows for _, rows in parts])


def _kept(data: Path, hardware: str, case: ExpertCase) -> dict[str, float]:
    """Return the parameters of a case that are not fitted: its tiles, and those of its block's curve for any engine."""
    if case.narrow is not None:
        return {"narrow_tile_rows": case.narrow[0], "narrow_tokens": case.narrow[1]}
    if not case.kept:
        return {}
    base = next(each for each in HOPPER_EXPERTS if each.kernels == case.kernels and not each.engines)
    curve = fit_moe(_expert_calls(data, hardware, base)[0], device(hardware, base.dtype).gemm, base.tile_rows)
    return {name: float(getattr(curve, name)) for name in case.kept}


def profile_blocks(data: Path, hardware: str) -> dict[str, Any]:
    """Return the blocks ``gemm_curves``, ``grouped_gemm_curves`` and ``activation_quantisation`` of a profile."""
    gemms: dict[str, list[dict[str, Any]]] = {}
    experts: dict[str, list[dict[str, Any]]] = {}
    blocks: dict[str, Any] = {"gemm_curves": gemms, "grouped_gemm_curves": experts}
    products, grouped = CASES[hardware]
    for case in products:
        if not case.is_profiled:
            continue
        rows, gpu = gemm_rows(data, hardware, case.benchmark.framework, case.dtype), device(hardware, case.dtype)
        fit = fit_gemm(rows, gpu, case.benchmark)
        off = gemm_errors(fit, rows, gpu)
        gemms.setdefault(case.kernels, []).append(
            {
                **_engines(case.engines),
                **_parameters(fit.curve),
                "fit": _fit(case.benchmark.framework, "gemm", off, rows),
            }
        )
        if "sglang" in case.engines and case.kernels == "fp8":
            blocks["activation_quantisation"] = {
                "start_latency": f"{fit.quantisation_start * 1e6:.2f} us",
                "memory_efficiency": float(f"{fit.quantisation_efficiency:.3g}"),
                "fit": _fit(case.benchmark.framework, "gemm", off, rows),
            }
    for expert in grouped:
        if not expert.is_profiled:
            continue
        calls, table = _expert_calls(data, hardware, expert)
        gemm_gpu = device(hardware, expert.dtype).gemm
        curve = fit_moe(calls, gemm_gpu, expert.tile_rows, _kept(data, hardware, expert))
        off = errors(predict_experts(curve, calls, gemm_gpu), calls.seconds)
        experts.setdefault(expert.kernels, []).append(
            {
                **_engines(expert.engines),
                **({"backend": expert.backend} if expert.backend else {}),
                **_parameters(curve),
                "fit": _fit(expert.framework, "moe", off, table),
            }
        )
    return blocks


def _engines(engines: tuple[str, ...]) -> dict[str, Any]:
    return {"engines": list(engines)} if engines else {}


def _parameters(curve: GemmCurve | GroupedGemmCurve) -> dict[str, Any]:
    """Return the parameters of a curve to three digits, seconds with their unit."""
    values: dict[str, Any] = {}
    for name, value in curve.model_dump(exclude={"engines", "fit"}, exclude_none=True).items():
        if name.endswith("latency"):
            values[name] = f"{float(value) * 1e6:.3g} us"
        else:
            values[name] = value if isinstance(value, int) else float(f"{value:.3g}")
    return values


def _fit(framework: str, family: str, off: Errors, rows: pd.DataFrame) -> dict[str, Any]:
    sizes = [name for name in ("m", "n", "k", "num_tokens", "hidden_size", "inter_size") if name in rows]
    ranges = ", ".join(f"{name} {int(rows[name].min())} to {int(rows[name].max())}" for name in sizes)
    return {
        "source": f"NVIDIA AIConfigurator {family}_perf, {framework} (Apache-2.0)",
        "num_points": off.num_points,
        "median_error": round(off.median, 3),
        "range": ranges,
    }


def _cells(off: Errors) -> tuple[str, ...]:
    shares = (off.median, off.mean, off.p90)
    return (str(off.num_points), *(f"{100 * share:.1f}" for share in shares), f"{100 * off.bias:+.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or the blocks of profiles as YAML."""
    import yaml  # needed only to print blocks

    parser = argparse.ArgumentParser(description=__doc__, prog="python -m calibration.laboratory.fits.gemm_report")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds aiconfigurator/")
    parser.add_argument("--profiles", action="store_true", help="print the blocks of hardware profiles")
    parser.add_argument("--hardware", nargs="+", choices=tuple(CASES), default=list(CASES), help="whose blocks")
    chosen = parser.parse_args(arguments)
    if chosen.profiles:
        for hardware in chosen.hardware:
            sys.stdout.write(f"# {hardware}\n")
            blocks = profile_blocks(chosen.data, hardware)
            sys.stdout.write(yaml.safe_dump(blocks, sort_keys=False, width=110, default_flow_style=None))
        return
    sys.stdout.write("| operator | framework | fitted -> tested | calls | median % | mean % | p90 % | bias % |\n")
    sys.stdout.write("|---|---|---|---:|---:|---:|---:|---:|\n")
    for row in (*gemm_table(chosen.data), *expert_table(chosen.data)):
        sys.stdout.write("| " + " | ".join(row) + " |\n")


if __name__ == "__main__":
    main()
