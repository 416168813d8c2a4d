"""Weight and KV formats: bits per element, the arithmetic in which they run, and what the GPU must support.

Knows bits and dtypes, and which parts of a model have which format; no matrix shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from simserve.errors import InputError, nearest
from simserve.perf.efficiency import Array
from simserve.profiles.checkpoint import WeightFormatName
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import Part

DTYPE_BITS: Mapping[str, float] = {"fp32": 32.0, "fp16": 16.0, "bf16": 16.0}

PLAIN_TILE_ROWS = 64  # Rows of the smallest tile of a plain product (CUTLASS; Hopper wgmma m64).
MARLIN_TILE_ROWS = 16
"""Rows of the smallest tile of weight-only kernels (Marlin, Frantar et al. 2024: tensor-core tiles of 16 rows, so that
a batch of 16 costs the same as one). The experts of vLLM's Marlin tables fit 16 too (calibration/operators.md)."""

GGUF_TILE_ROWS = 8
"""Most rows that llama.cpp multiplies by matrix-vector kernels (ggml-cuda mmvq.cuh, MMVQ_MAX_BATCH_SIZE)."""

VECTOR_SHARE = 0.18
"""Share of a GPU's FP32 rate at which those kernels multiply each row beyond the first: integer dot products, after
which the FP32 cores apply the scales. Set by Q4_0 on an RTX 3090 (llama.cpp pull request 15802: 6.4 to 13.7 ms for one
to eight rows of Llama-3-8B). Rows of Q2_K there (5434) and of Q4_K on an RX 6800 (5351, an early build) give 0.14 to
0.16, those of Q2_K on a V100 0.26 (28912), 16 of Q4_K in 8.2 ms on an RTX 4090 (7860) at least 0.2 for eight."""

METAL_VECTOR_SHARE = 0.14
"""The same on Apple's GPUs, whose kernels unpack the weights for every row again (ggml-metal-ops.cpp, mul_mv_ext):
eight rows take 1.1 to 1.5 times as long as the tile of 32 that multiplies nine. Geometric mean of four: M1 Pro, Q8_0
and Q4_0 0.18 (llama.cpp pull request 10581: LLaMA 7B in Q8_0 42, 54, 60, 112 ms for 1, 2, 4, 8 rows), M1 Max 0.11 and
M4 Pro 0.17, Q3_K (20250), a Max of 2026, Q8_0 0.12 (29110)."""

METAL_TILE_ROWS = 32
"""Rows of a tile of their kernels for more than eight rows (there, mul_mm: 122 ms for five to eight rows of that model
before mul_mv_ext, the time of 32 prompt tokens; 27441: ten rows take as long as 32 on M3 and M4)."""

K_QUANT_UNPACKING_ROWS = 7
"""Cost of unpacking k-quants in rows of arithmetic, if rows are multiplied one by one (Apple's GPUs): fitted to Llama
3.1 8B in Q4_K_M on M2 Pro and M4 of 2026, tested on other models and chips (calibration/LOG.md)."""

GROUP_SIZE = 128  # Weights that share a scale in the usual GPTQ and AWQ checkpoints.

SCALE_BITS: Mapping[str, float] = {
    "int8-wo": 16.0,
    "int4": 16.0,
    "gptq-int4": 16.0,
    "awq-int4": 20.0,
    "awq-int4-gemm": 20.0,
    "int3": 16.0,
}
"""Bits that integer formats add per group of weights: an FP16 scale, and AWQ's 4-bit zero point."""

INT4_SCALED_BITS = 4.0 + 16.0 / GROUP_SIZE  # 4.125: 4-bit codes and an FP16 scale per group (GPTQ, symmetric).
INT4_ZERO_POINT_BITS = INT4_SCALED_BITS + 4.0 / GROUP_SIZE  # 4.156: with a 4-bit zero point per group as well (AWQ).
INT3_SCALED_BITS = 3.0 + 16.0 / GROUP_SIZE
"""3.125: 3-bit codes, 32 of them in three words, and an FP16 scale per group (GPTQ)."""

NF4_BITS = 4.0 + 8.0 / 64 + 32.0 / (64 * 256)
"""4.127: 4-bit NormalFloat with an 8-bit scale per 64 weights, and an FP32 scale per 256 of those: double quantisation,
0.127 bit per weight (QLoRA, Dettmers et al. 2023, section 3)."""

NF4_UNPACKED_FROM_ROWS = 2
"""Rows from which bitsandbytes writes the weights out in 16 bit and multiplies by the plain kernel; a single row has a
matrix-vector kernel (bitsandbytes autograd/_functions.py, matmul_4bit)."""

GPTQ_UNPACKED_FROM_ROWS = 51
"""Rows from which the GPTQ kernels before Marlin do the same (vLLM csrc/quantization/gptq/q_gemm.cu, MAX_Q_GEMM_ROWS
50); 3 bits have no other kernels."""

AWQ_UNPACKED_FROM_ROWS = 256
"""Rows from which AWQ's own kernels do the same (vLLM layers/quantization/awq.py, FP16_MATMUL_HEURISTIC_CONDITION)."""

MARLIN_CAPABILITY = 8.0  # CUDA compute capability from which GPUs can run Marlin (Ampere).
MARLIN_LOSS, MARLIN_UNPACKING = 0.071, 0.0373
"""Tensor-core time of Marlin's products beyond a plain one, as a share of it: a constant, and for unpacking, which the
ordinary cores do, times the ratio of tensor-core FLOP/s to theirs. From two GPUs: 0.60 of the plain rate on an A100, 16
to 1 (141 TFLOP/s from 64 to 4,000 rows where cuBLAS has 235, vLLM pull request 2497, 2024-01-24; the same share of its
sustained rate in AIConfigurator's table of Marlin's experts), and 0.82 on an RTX 6000 Ada, 4 to 1 (16,384 rows,
IST-DASLab/marlin issue 21, 2024-04-09)."""

MARLIN_OVERLAP = 3.0
"""Exponent of the overlap of arithmetic and memory in Marlin's products: there 0.14 ms for the weights, 0.18 ms with 32
rows and 0.29 ms with 64, whose arithmetic alone takes 0.145 and 0.29 ms."""

MARLIN_ON_HOPPER = 0.63
"""Share of Hopper's tensor-core FLOP/s reached by instructions of Ampere, which Marlin uses (Luo et al., "Benchmarking
and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024)."""

BLACKWELL_TENSOR_CORES = 2.0
"""How many times Hopper's a multiprocessor's peak is on Blackwell's data-centre GPUs (2,250 TFLOP/s of 148
multiprocessors at 1.85 GHz, 989 of 132 at 1.83; data sheets), whose multiprocessors are assumed to run Ampere's
instructions, and to unpack, as fast as Hopper's."""

BLACKWELL = ("10.0", "10.3")
"""CUDA compute capabilities of B200, B300, GB200 and GB300; GPUs of 12.0 have only Ampere's instructions."""

HOPPER = "9.0"  # CUDA compute capability for which Machete is made, and for which Marlin's instructions are too old.
GGUF_UNPACKED_FROM_ROWS = 33
"""Rows from which llama.cpp does the same on GPUs with tensor cores (ggml-cuda mmq.cuh, MMQ_MAX_BATCH_SIZE 32 in the
builds of spring 2024 and 64 later)."""

GGUF_UNPACKED_ROWS = 512
"""Rows after which llama.cpp unpacks weights again. Builds of spring 2024 wrote them out for each micro-batch, of 512;
later ones unpack tile by tile, and dense models gain nothing from larger micro-batches: Qwen2.5-Coder-7B in Q8_0 takes
0.424 s for 1,024 tokens in one and 0.880 s for 2,048 (llama.cpp benches/dgx-spark.md, b6918)."""

GGUF_INT8_RATES: Mapping[str, float] = {"7.5": 1, "8.0": 1 / 2, "8.6": 1, "8.7": 1, "8.9": 1, "9.0": 1 / 4, "12.0": 1}
"""CUDA compute capability -> 2,048 operations a clock and multiprocessor over those of its INT8 tensor cores. What
ggml's kernels reach is alike for each multiprocessor and clock (`KernelTraits.max_share_of_int8`), with A100 and H100,
whose tensor cores do two and four times as much. Not of 12.1: a GB10 reaches half of it (llama.cpp
benches/dgx-spark.md), and is priced as before."""

MXFP4_BITS = 4.0 + 8.0 / 32  # 4.25: 4-bit floats and an 8-bit exponent per 32 of them (OCP Microscaling formats 1.0).
NVFP4_BITS = 4.0 + 8.0 / 16  # 4.5: 4-bit floats and an FP8 scale per 16 of them (NVIDIA, "Introducing NVFP4", 2025).
Arithmetic = Literal["model", "fp32", "fp16", "bf16", "fp8", "fp4", "int8"]

INPUT_BYTES: Mapping[str, float] = {"fp8": 1.0, "int8": 1.0, "fp4": NVFP4_BITS / 8}
"""Bytes of an activation element by the arithmetic for which steps round it; 2 in 16 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the weights of linear layers are stored and multiplied."""

    bits: float | None
    """Bits per weight with its share of group scales; None: the model's own dtype. Scales per output channel or per
    tensor (fp8, int8, int4) are below 0.01 bit per weight and left out."""
    arithmetic: Arithmetic  # Dtype of the multiplication; ``model``: the model's 16-bit dtype.
    is_everything_stored_so: bool = False  # Whether embeddings and LM head are in the format too.
    weight_only_share: float | None = None
    """`compute_share` on GPUs without its dtype, with a fallback to 16-bit arithmetic; None: no fallback."""
    blackwell_arithmetic: Arithmetic | None = None
    """Dtype of the multiplication on GPUs with FP4 arithmetic; None: as elsewhere."""
    compute_share: float = 1.0
    """Share of a plain GEMM's FLOP/s left after unpacking weights inside the kernel, other than Marlin
    (`marlin_share`): an assumption; GGUF kernels of llama.cpp lose about half."""
    min_tile_rows: int = PLAIN_TILE_ROWS  # Rows of the smallest tile of its kernels.
    vector_unpacking_rows: int = 1  # Cost of unpacking in rows of arithmetic, if rows are multiplied one by one.
    vector_share: float | None = None
    """Share of the FP32 rate at which GPUs multiply up to `min_tile_rows` rows one by one; None: they do not."""
    unpacked_from_rows: int | None = None
    """Rows from which weights are first written out in 16 bit, which is slower than 16-bit weights; None: never."""
    unpacked_rows: int | None = None  # Rows after which they are written out again; None: once per step.


def _marlin(bits: float) -> WeightFormat:
    """Return 4-bit weights that Marlin unpacks inside the kernel."""
    return WeightFormat(bits=bits, arithmetic="model", compute_share=0.8, min_tile_rows=MARLIN_TILE_ROWS)


def _before_marlin(bits: float, unpacked_from_rows: int) -> WeightFormat:
    """Return weights for the kernels of GPTQ and AWQ before Marlin."""
    return WeightFormat(
        bits=bits,
        arithmetic="model",
        compute_share=0.5,
        min_tile_rows=MARLIN_TILE_ROWS,
        unpacked_from_rows=unpacked_from_rows,
    )


def _gguf(bits: float, vector_unpacking_rows: int = 1) -> WeightFormat:
    """Return GGUF weights of llama.cpp, whose files also store embeddings and LM head below 16 bit."""
    return WeightFormat(
        bits=bits,
        arithmetic="model",
        is_everything_stored_so=True,
        compute_share=0.5,
        min_tile_rows=GGUF_TILE_ROWS,
        vector_unpacking_rows=vector_unpacking_rows,
        vector_share=VECTOR_SHARE,
        unpacked_from_rows=GGUF_UNPACKED_FROM_ROWS,
        unpacked_rows=GGUF_UNPACKED_ROWS,
    )


WEIGHT_FORMATS: Mapping[WeightFormatName, WeightFormat] = {
    "none": WeightFormat(bits=None, arithmetic="model", is_everything_stored_so=True),
    "fp32": WeightFormat(bits=32.0, arithmetic="fp32", is_everything_stored_so=True),
    "fp16": WeightFormat(bits=16.0, arithmetic="fp16", is_everything_stored_so=True),
    "bf16": WeightFormat(bits=16.0, arithmetic="bf16", is_everything_stored_so=True),
    "fp8": WeightFormat(bits=8.0, arithmetic="fp8", weight_only_share=0.9),
    "int8": WeightFormat(bits=8.0, arithmetic="int8"),
    "int8-wo": WeightFormat(bits=8.0, arithmetic="model", compute_share=0.9, min_tile_rows=MARLIN_TILE_ROWS),
    "int4": _marlin(4.0),
    "gptq-int4": _marlin(INT4_SCALED_BITS),
    "gptq-int4-exllama": _before_marlin(INT4_SCALED_BITS, GPTQ_UNPACKED_FROM_ROWS),
    "awq-int4": _marlin(INT4_ZERO_POINT_BITS),
    "awq-int4-gemm": _before_marlin(INT4_ZERO_POINT_BITS, AWQ_UNPACKED_FROM_ROWS),
    "int3": _before_marlin(INT3_SCALED_BITS, GPTQ_UNPACKED_FROM_ROWS),
    "nf4": WeightFormat(
        bits=NF4_BITS,
        arithmetic="model",
        min_tile_rows=MARLIN_TILE_ROWS,
        unpacked_from_rows=NF4_UNPACKED_FROM_ROWS,
    ),
    "gguf-q8_0": _gguf(8.5),
    "gguf-q6_k": _gguf(6.56, K_QUANT_UNPACKING_ROWS),
    "gguf-q5_k_m": _gguf(5.7, K_QUANT_UNPACKING_ROWS),
    "gguf-q4_k_m": _gguf(4.8, K_QUANT_UNPACKING_ROWS),
    "gguf-q4_0": _gguf(4.5),
    "gguf-iq4_xs": _gguf(4.46, K_QUANT_UNPACKING_ROWS),
    "gguf-q3_k_m": _gguf(4.0, K_QUANT_UNPACKING_ROWS),
    "gguf-q2_k": _gguf(2.6, K_QUANT_UNPACKING_ROWS),
    "mxfp4": replace(_marlin(MXFP4_BITS), blackwell_arithmetic="fp8"),  # with MXFP8 activations, as gpt-oss is served
    "nvfp4": WeightFormat(bits=NVFP4_BITS, arithmetic="fp4", weight_only_share=0.8),
    "nvfp4-wo": _marlin(NVFP4_BITS),
}
"""Formats of the scenario key ``quantization``. Bits of llama.cpp's k-quants are the mean over the tensors of a model
(Q6_K, Q5_K_M and IQ4_XS: Llama 3.1 8B in llama.cpp's tools/quantize/README.md; Q3_K_M: 3.74 GiB of Llama 3 8B in its
quantize.cpp); Q8_0 and Q4_0 are codes of 8 and 4 bits with an FP16 scale per 32 of them. IQ4_XS is unpacked like a
k-quant, an assumption. ``nvfp4-wo``: checkpoints without scales for inputs (ModelOpt's ``W4A16_NVFP4``, NVFP4A16 of
compressed-tensors), which engines unpack on every GPU, also on those that multiply in 4 bit (sglang pull request 33543:
Marlin, as in vLLM)."""

KV_BITS: Mapping[str, float] = {
    "auto": 16.0,
    "fp16": 16.0,
    "bf16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "int4": INT4_SCALED_BITS,
}
"""Bits per KV element for the scenario key ``kv_cache_dtype``; FP8 and INT8 with one scale per tensor, INT4 with an
FP16 scale per 128 elements (one head)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A weight format as it runs for one model on one GPU under one engine."""

    name: str  # The format as asked for.
    weight_bits: float  # Bits per weight of a linear layer.
    other_bits: float  # Bits per weight of embeddings, LM head, norms and routers.
    arithmetic: str  # Dtype of linear layers.
    wide_arithmetic: str  # 16-bit (or FP32) dtype of attention, LM head and routers.
    input_bytes: float  # Bytes of an activation element that a linear layer reads.
    is_quantizing_activations: bool  # Whether a step quantises activations before every linear layer.
    compute_share: float  # Share of a plain GEMM's FLOP/s left after unpacking weights.
    min_tile_rows: int = PLAIN_TILE_ROWS  # Rows of the smallest tile of the kernels that unpack weights.
    overlap: float = 1.0  # Least exponent of the overlap of arithmetic and memory in those kernels.
    vector_flops: float | None = None
    """FLOP/s of the kernels that multiply fewer rows than a tile one by one; None: no such kernels."""
    matrix_tile_rows: int | None = None
    """Rows of a tile beyond `GGUF_TILE_ROWS` rows, which are multiplied one by one; None: as with fewer."""
    unpacked_from_rows: int | None = None  # Rows from which weights are first written out in 16 bit; None: never.
    unpacked_rows: int | None = None  # Rows after which they are written out again; None: once per step.
    stored_flops: float | None = None
    """FLOP/s at which kernels multiply weights as stored from `unpacked_from_rows` on, other than routed experts; None:
    they are written out there."""
    is_block_scaled: bool = False
    """Whether FP8 weights have a scale per 128 x 128 of them, which has kernels of its own."""
    note: str  # How it differs from what its name says, or "".

    @property
    def unpacked_bits(self) -> float:
        """Bits of a weight written out for a plain product."""
        return DTYPE_BITS[self.wide_arithmetic]

    @property
    def kernels_of_rows(self) -> dict[str, float | int | None]:
        """What the curve of its products says of kernels that multiply rows one by one."""
        return {"vector_flops": self.vector_flops, "matrix_tile_rows": self.matrix_tile_rows}

    @property
    def has_packed_experts(self) -> bool:
        """Whether a kernel multiplies routed experts as stored; also for GGUF (ggml-cuda, mul_mat_id)."""
        return self.unpacked_from_rows is None or self.unpacked_rows is not None


def format_name(name: str) -> WeightFormatName:
    """Return the name of a weight format, checked.

    Raises:
        InputError: There is no such format; names the nearest.
    """
    if name not in WEIGHT_FORMATS:
        rule, remedy = "is not a known weight format", nearest(name, WEIGHT_FORMATS)
        raise InputError(rule, key="quantization", value=name, remedy=remedy)
    return cast("WeightFormatName", name)


def weight_format(name: str) -> WeightFormat:
    """Return a weight format by the name a scenario uses.

    Raises:
        InputError: There is no such format; names the nearest.
    """
    return WEIGHT_FORMATS[format_name(name)]


def weight_bits(name: str, model_dtype: str, group_size: int | None = None) -> tuple[float, float]:
    """Return bits per weight of linear layers, and of embeddings, LM head, norms and routers.

    The latter stay 16-bit in quantised checkpoints, except GGUF.

    Args:
        model_dtype: ``bf16``, ``fp16`` or ``fp32``.
        group_size: Weights that share a scale in an integer format; None: as usual for the format.
    """
    chosen = weight_format(name)
    bits = DTYPE_BITS[model_dtype] if chosen.bits is None else chosen.bits
    if group_size is not None and name in SCALE_BITS:
        bits = int(bits) + SCALE_BITS[name] / group_size
    return bits, bits if chosen.is_everything_stored_so else 16.0


def part_bits(model: ModelProfile, quantization: str, part: Part | None) -> float:
    """Return the mean bits per weight of a part of a model that runs in a format; None as part: of everything else.

    Follows the checkpoint of that format, see `ModelProfile.formats_of`.
    """
    name = format_name(quantization)
    other = weight_bits(name, model.dtype)[1]
    checkpoint = model.checkpoint(name)
    if part is None:
        rest = None if checkpoint is None else checkpoint.rest_format
        return other if rest is None else weight_bits(rest, model.dtype)[0]
    group = None if checkpoint is None else checkpoint.group_size
    return sum(
        share * (other if each == "none" else weight_bits(each, model.dtype, group)[0])
        for each, share in model.formats_of(part, name).items()
    )


def head_bits(model: ModelProfile, quantization: str) -> float:
    """Return the bits per weight of the LM head when the model runs in a format."""
    name = format_name(quantization)
    stored, checkpoint = model.head_format(name), model.checkpoint(name)
    if stored is None or checkpoint is None:
        return part_bits(model, quantization, None)
    return weight_bits(stored, model.dtype, checkpoint.group_size)[0]


def kv_element_bytes(name: str) -> float:
    """Return the bytes of a KV element.

    Raises:
        InputError: There is no such format; names the nearest.
    """
    if name not in KV_BITS:
        raise InputError("is not a known KV format", key="kv_cache_dtype", value=name, remedy=nearest(name, KV_BITS))
    return KV_BITS[name] / 8


def resolve_precision(
    name: str,
    *,
    model_dtype: str,
    peaks: Mapping[str, float],
    hardware_name: str,
    engine_name: str,
    engine_formats: Sequence[str],
    has_marlin: bool = True,
    is_marlin: bool = False,
    has_wide_inputs: bool = False,
    has_weight_only_floats: bool = True,
    has_block_scales: bool = False,
    group_size: int | None = None,
    compute_capability: str | None = None,
    unpacking: float | None = None,
    tile_rows: int | None = None,
    is_ggml: bool = False,
    runs_cuda: bool = False,
    runs_metal: bool = False,
    int8_flops: float | None = None,
) -> Precision:
    """Return how a weight format runs on a GPU under an engine.

    FP8 and NVFP4 on a GPU without their arithmetic are 8-bit and 4-bit weights with 16-bit arithmetic, as in vLLM and
    SGLang (Marlin); TensorRT-LLM refuses them. A BF16 model on a GPU without BF16 runs in FP16, as in vLLM and
    llama.cpp, unless ``bf16`` is asked for; an FP16 model on a device without FP16 runs in BF16.

    Args:
        name: Weight format, a key of `WEIGHT_FORMATS`.
        model_dtype: ``bf16``, ``fp16`` or ``fp32``.
        peaks: FLOP/s of the GPU by supported dtype.
        hardware_name: For messages.
        engine_name: Engine and version, for messages.
        engine_formats: Weight formats that the engine runs.
        has_marlin: Whether the engine's kernels that unpack weights have Marlin's small tiles.
        is_marlin: Whether kernels that unpack this format are Marlin's.
        has_wide_inputs: Whether MXFP4 weights meet inputs in 16 bit even where the GPU multiplies narrower ones.
        has_weight_only_floats: Whether the engine runs FP8 and NVFP4 weights on a GPU without arithmetic for them.
        has_block_scales: Whether the model's FP8 checkpoint has a scale per 128 x 128 weights.
        group_size: Weights that share a scale in its checkpoint, as for `weight_bits`.
        compute_capability: CUDA compute capability of the GPU; None for other makers.
        unpacking: Share of a 16-bit product's FLOP/s left if kernels unpack weights at any number of rows; None: as the
            format says.
        tile_rows: Rows of the smallest tile of such kernels.
        is_ggml: Whether the engine uses the kernels of its GGUF formats for every format.
        runs_cuda: Whether the GPU runs CUDA kernels, directly or by HIP.
        runs_metal: Whether it is one of Apple's.
        int8_flops: FLOP/s at which ggml's kernels multiply many rows by quantised weights as stored; None: weights are
            written out in 16 bit first.

    Raises:
        InputError: The format is unknown, the engine does not run it, or the GPU has no arithmetic for it;
            names what they support.
    """
    chosen = weight_format(name)
    if is_ggml and chosen.blackwell_arithmetic is not None:
        chosen = replace(_gguf(MXFP4_BITS), is_everything_stored_so=False)
    is_old = compute_capability is not None and float(compute_capability) < MARLIN_CAPABILITY
    if name == "gptq-int4" and is_old and has_marlin:
        chosen = WEIGHT_FORMATS["gptq-int4-exllama"]
    if name not in engine_formats:
        remedy = _remedy(engine_formats, model_dtype, peaks)
        if name.startswith("gguf"):
            remedy = f"llama.cpp and Ollama run it (deployment.engine.name=llama.cpp); for this engine {remedy}"
        raise InputError(f"does not run under {engine_name}", key="quantization", value=name, remedy=remedy)
    wide = _wide_dtype(name, model_dtype, peaks)
    arithmetic = wide if chosen.arithmetic == "model" else chosen.arithmetic
    share, smallest = chosen.compute_share, chosen.min_tile_rows
    note = _conversion_note(wide, _wide_dtype(name, model_dtype), hardware_name)
    bits, other_bits = weight_bits(name, model_dtype, group_size)
    only = chosen.weight_only_share if has_weight_only_floats else None
    if arithmetic not in peaks and only is not None:
        note = f"{hardware_name} has no {arithmetic} arithmetic: {int(bits)}-bit weights, {wide} arithmetic"
        arithmetic, share, smallest = wide, only, MARLIN_TILE_ROWS
    if chosen.blackwell_arithmetic is not None and "fp4" in peaks and not has_wide_inputs:
        arithmetic, share, smallest = chosen.blackwell_arithmetic, 1.0, PLAIN_TILE_ROWS
        note = f"{hardware_name} multiplies {name} weights with activations in {arithmetic}"
    if arithmetic == "fp4" and "fp4" in peaks and compute_capability is None:
        rule = f"has scales for 16 weights, which NVIDIA's GPUs multiply; the FP4 of {hardware_name} is MXFP4"
        raise InputError(rule, key="quantization", value=name, remedy="choose mxfp4 or fp8")
    overlap = 1.0
    is_unpacked = arithmetic == wide and smallest == MARLIN_TILE_ROWS
    if is_marlin and is_unpacked and not is_old and {wide, "fp32"} <= peaks.keys():
        share, overlap = marlin_share(peaks[wide] / peaks["fp32"], compute_capability), MARLIN_OVERLAP
    if not has_marlin:
        smallest = PLAIN_TILE_ROWS
    unpacked_from, unpacked_rows = chosen.unpacked_from_rows, chosen.unpacked_rows
    if unpacking is not None and arithmetic == wide and bits < DTYPE_BITS[wide]:
        smallest = max(tile_rows or smallest, chosen.vector_unpacking_rows)
        share, unpacked_from, unpacked_rows = unpacking, None, None
    rate = GGUF_INT8_RATES.get(compute_capability or "") if unpacked_rows is not None else None
    vector_share = chosen.vector_share if unpacking is None and runs_cuda else None
    if runs_metal:
        vector_share = METAL_VECTOR_SHARE
    has_vectors = is_ggml and chosen.vector_share is not None and "fp32" in peaks
    for dtype in (arithmetic, wide):
        if dtype not in peaks:
            rule = f"needs {dtype} arithmetic under {engine_name}, and {hardware_name} has {', '.join(peaks)}"
            remedy = _remedy(engine_formats, model_dtype, peaks)
            raise InputError(rule, key="quantization", value=name, remedy=remedy)
    return Precision(
        name=name,
        weight_bits=bits,
        other_bits=other_bits,
        arithmetic=arithmetic,
        wide_arithmetic=wide,
        input_bytes=INPUT_BYTES.get(arithmetic, 2.0),
        is_quantizing_activations=arithmetic in INPUT_BYTES,
        compute_share=share,
        min_tile_rows=smallest,
        overlap=overlap,
        vector_flops=vector_share * peaks["fp32"] if has_vectors and vector_share is not None else None,
        matrix_tile_rows=METAL_TILE_ROWS if has_vectors and runs_metal else None,
        unpacked_from_rows=unpacked_from,
        unpacked_rows=unpacked_rows,
        stored_flops=None if rate is None or int8_flops is None else rate * int8_flops,
        is_block_scaled=name == "fp8" and arithmetic == "fp8" and has_block_scales,
        note=note,
    )


def marlin_share(tensor_cores: float, compute_capability: str | None) -> float:
    """Return the share of a plain product's FLOP/s that Marlin's kernels reach.

    Args:
        tensor_cores: Ratio of tensor-core FLOP/s to those of the ordinary cores, which unpack.
        compute_capability: CUDA compute capability of the GPU.
    """
    beyond_hopper = BLACKWELL_TENSOR_CORES if compute_capability in BLACKWELL else 1.0
    share = 1.0 / (1.0 + MARLIN_LOSS + MARLIN_UNPACKING * tensor_cores / beyond_hopper)
    return share * MARLIN_ON_HOPPER / beyond_hopper if compute_capability in (HOPPER, *BLACKWELL) else share


def _wide_dtype(name: str, model_dtype: str, peaks: Mapping[str, float] | None = None) -> str:
    """Return the dtype of unquantised parts: the model's, 16-bit in quantised checkpoints.

    With ``peaks``, FP16 replaces a BF16 that the GPU lacks, and BF16 an FP16 (TPU).
    """
    arithmetic = weight_format(name).arithmetic
    if arithmetic in DTYPE_BITS:
        return arithmetic
    wide = "fp16" if model_dtype == "fp32" and name != "none" else model_dtype
    other = {"bf16": "fp16", "fp16": "bf16"}.get(wide, wide)
    return other if peaks is not None and wide not in peaks and other in peaks else wide


def _conversion_note(wide: str, stored: str, hardware_name: str) -> str:
    return "" if wide == stored else f"{hardware_name} has no {stored} arithmetic: converted to {wide}"


def _remedy(engine_formats: Sequence[str], model_dtype: str, peaks: Mapping[str, float]) -> str:
    usable = [each for each in WEIGHT_FORMATS if each in engine_formats and _has_arithmetic(each, model_dtype, peaks)]
    return "choose from " + ", ".join(usable)


def _has_arithmetic(name: str, model_dtype: str, peaks: Mapping[str, float]) -> bool:
    arithmetic, wide = weight_format(name).arithmetic, _wide_dtype(name, model_dtype, peaks)
    return wide in peaks and (arithmetic == "model" or arithmetic in peaks)


@dataclass(frozen=True, slots=True)
class QuantizedValues:
    """Values rounded to signed integers with one scale."""

    scale: float  # Value of one code step.
    codes: tuple[int, ...]  # Integers.
    largest_error: float  # Largest absolute difference between a value and ``code * scale``.


def quantize_symmetric(values: Sequence[float], bits: int) -> QuantizedValues:
    """Return ``values`` rounded to signed integers with ``scale = max |value| / (2^(bits-1) - 1)``."""
    array: Array = np.asarray(values, dtype=np.float64)
    largest_code = 2 ** (bits - 1) - 1
    scale = float(np.max(np.abs(array))) / largest_code or 1.0
    codes = np.rint(array / scale)
    return QuantizedValues(scale, tuple(int(code) for code in codes), float(np.max(np.abs(array - codes * scale))))
