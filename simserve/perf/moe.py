"""Mixture-of-experts layers on one rank: the experts that a step uses, and the seconds of their grouped GEMMs.

Every rank holds a slice of every expert (tensor parallelism) or some of the experts whole; the caller decides who holds
what.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from statistics import NormalDist
from typing import Literal

import numpy as np

from simserve.perf.efficiency import FP4_OF_FP8, KERNEL_LATENCIES, NARROW_DTYPE_SHARE, Array, Machine, memory_efficiency
from simserve.perf.gemm import (
    ACTIVATION_BYTES,
    CLASS_LOOP_OVERHEAD,
    WIDE_DTYPES,
    GemmDevice,
    GemmSeconds,
    device_of,
    fp32_parts,
    gemm_class,
    grouped_gemm_seconds,
)
from simserve.perf.operators import COMPUTE, WEIGHTS, Work, bound_parts, elementwise_parts
from simserve.perf.quantization import BLACKWELL, HOPPER, PLAIN_TILE_ROWS, Precision
from simserve.perf.shape import ReplicaShape
from simserve.profiles.hardware import HardwareProfile
from simserve.profiles.kernel_curves import GemmClass, GroupedGemmCurve
from simserve.profiles.model_blocks import Gemm, MixtureOfExperts

CLASS_OVERLAP = 2.0  # Exponent of the overlap of arithmetic and memory without a fit; 1.4 to 2.4 in most fits.
CLASS_START_LATENCIES = 8.0
"""Kernel latencies of a layer's routed experts without a fit: 20 to 40 us in the fits (sorting, two GEMMs, activation,
weighted sum)."""

NARROW_BLOCK_TILES = {"narrow_tile_rows": 16, "narrow_tokens": 64}
"""Tiles of experts in FP8 by blocks without a fit: vLLM's Triton kernels take 16 rows up to 64 tokens by default (pull
request 47593, table of tiles; so on an RTX PRO 6000 too, issue 44688). An RTX 5090 takes 121, 152 and 235 us for 16, 24
and 64 tokens of 256 experts of 2048 x 256 (45379): 14 to 15 % more here, 35 to 37 with 64 rows."""

PLAIN_KERNELS: tuple[GemmClass, ...] = ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8")
"""Kernels that multiply weights as they are stored."""

INT4: GemmClass = "int4_weight_only"  # Kernels that stand in for those of MXFP4 weights: Marlin runs both.
CLASS_EXPERT_LATENCIES = 0.01
"""Kernel latencies that each expert adds without a fit: 30 ns in the median of the fits."""

CLASS_ROUTED_PASSES, CLASS_LOCAL_PASSES = 0.3, 4.0
"""Passes over the activations of a pair without a fit (TensorRT-LLM's kernels: 0.3 and 4.3)."""

CACHED_CAPABILITIES = ("8.9", "12.0")
"""CUDA compute capabilities of GPUs whose L2 cache keeps most activations between the kernels of a layer's experts: 48
to 128 MB from L4 to RTX PRO 6000, though 24 on the smallest cards (NVIDIA's Ada and RTX Blackwell whitepapers)."""

CACHED_LOCAL_PASSES = 0.3
"""`CLASS_LOCAL_PASSES` of the kernels there that do not unpack weights: vLLM's Triton kernels in FP8 on an L40S, 128
experts of 2048 x 768 and 8 a token, up to 8,192 tokens (pull request 53710), come out at -4 to 0 %, with 4.0 at up to
+73. B200, whose cache is as large, has 0.4 and 0.7 for both kinds of passes together in 16 bit (its profile)."""


ROUTING_SKEW = 0.8
"""Exponent of the experts' popularity by rank: a step uses fewer experts than with random routing, and if experts are
placed whole, one rank computes more of them. Fitted to the TPOT of 136 TensorRT-LLM servers (InferenceX and
AIConfigurator; DeepSeek-V3 and R1, Qwen3-235B, gpt-oss-120b) and tested on 91 of vLLM and SGLang. Engines differ:
DeepSeek fits 0 to 0.4 under TensorRT-LLM, and more than 0.8 under SGLang (calibration/LOG.md). Models whose routing was
counted have a ``routing_decay`` in its place."""

FP32_ROUTERS = ("minimax_m2", "minimax_m3")
"""Families whose router is a product in FP32, after a kernel that converts its inputs (vLLM 0.16 to 0.19 minimax_m2.py;
SGLang, pull request 22744). vLLM's kernel for many tokens (pull request 47973, the default since 55899) is left out."""

FP32_BYTES = 4.0  # Bytes of a weight or an input in FP32.
ROUTER_ROW_SECONDS = 0.134e-6
"""Seconds per further token of vLLM's kernel for routers in FP32: 1.722 and 1.856 us for one and two of MiniMax-M3's on
Blackwell, cuBLAS 6.9 and 13.6 (vLLM pull request 44343). MiniMax-M2's router has as many weights."""

ROUTING_PASSES = 2
"""Passes over the router's logits to choose experts: read them, write weights and choices (one fused kernel)."""

ROUTER_KERNEL_PASSES = 6
"""Passes for each further kernel of a router written in PyTorch: `torch.topk` sorts. 18.5 ns a token with 384 experts
in 6 kernels (SGLang, pull request 13374, to 4,096 tokens) and 26 with 256 in 20 (6946, to 40,000) mean 8 and 5 passes
on an H200, assumed to be the GPU of those benchmarks."""

EXACT_TOKENS = 64
"""Tokens up to which the distinct experts are computed for each number; beyond, at the same number of knots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Sizes of one expert on one rank; fields may be arrays matching the loads."""

    hidden_size: Array | float  # Width of the model.
    intermediate_size: Array | float  # Width of the expert on the rank.
    up_projections: Array | float  # 2 with a gate, 1 without.
    weight_bits: Array | float  # Bits per weight with its share of scales.
    input_bytes: float = ACTIVATION_BYTES  # Bytes of an activation element that a GEMM reads.

    @property
    def weights_bytes(self) -> Array | float:
        """Bytes of the matrices of one expert on the rank."""
        weights = (self.up_projections + 1) * self.intermediate_size * self.hidden_size
        return weights * self.weight_bits / 8

    @property
    def pair_bytes(self) -> Array | float:
        """Bytes of the activations of one token in one expert: hidden state and both sides of the activation."""
        return (self.hidden_size + (self.up_projections + 1) * self.intermediate_size) * ACTIVATION_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """The load that routing gives one rank."""

    pairs: Array  # Token-expert pairs that the rank computes.
    distinct: Array  # Experts used by them.
    routed: Array  # Pairs of all ranks, which every rank sorts.
    held: Array | float  # Experts that the rank holds.
    tokens: Array  # Tokens of the call.


def expected_distinct_experts(
    num_experts: int, num_experts_per_tok: int, tokens: Array | float, skew: float = 0.0, decay: float = 0.0
) -> Array:
    """Return the expected number of experts that at least one of ``tokens`` is routed to.

    ``sum over experts of 1 - (1 - q_i)^M``: each token chooses expert i with probability q_i, independently of the
    others. ``q_i = min(1, c i^-skew exp(-decay i/E))`` with c such that they add up to k; without either the sum is
    ``E (1 - (1 - k/E)^M)``.

    Args:
        num_experts: Experts E.
        num_experts_per_tok: Experts per token, k.
        tokens: Tokens M.
        skew: Exponent of the experts' popularity by rank; 0: all equally popular.
        decay: How steeply it falls from the first rank to the last, which is e^-decay as popular.
    """
    chance = _chances(num_experts, num_experts_per_tok, skew, decay)
    missed = np.power.outer(1.0 - chance, np.asarray(tokens, dtype=np.float64))
    return np.asarray(num_experts * (1.0 - missed.mean(axis=0)))


def _chances(num_experts: int, num_experts_per_tok: int, skew: float, decay: float = 0.0) -> Array:
    """Return the probability of each expert; a single value if all are equal."""
    if skew == 0 and decay == 0:
        return np.array([num_experts_per_tok / num_experts])
    rank = np.arange(1.0, num_experts + 1.0)
    popularity = rank**-skew * np.exp(-decay / num_experts * rank)
    chance = np.zeros(num_experts)
    for capped in range(num_experts_per_tok + 1):
        rest = popularity[capped:]
        chance = np.concatenate((np.ones(capped), (num_experts_per_tok - capped) * rest / rest.sum()))
        if chance[capped] <= 1.0:
            break
    return chance


def expert_seconds(curve: GroupedGemmCurve, device: GemmDevice, shape: ExpertShape, load: ExpertLoad) -> GemmSeconds:
    """Return the seconds of the routed experts of one layer: sorting, GEMMs, activation, weighted sum.

    ``start + held * latency + passes * bytes / bandwidth + up and gate + down``.
    """
    up = _projection(curve, device, load, shape, shape.up_projections * shape.intermediate_size, shape.hidden_size)
    down = _projection(curve, device, load, shape, shape.hidden_size, shape.intermediate_size)
    passes = curve.routed_passes * load.routed + curve.local_passes * load.pairs
    moved = passes * shape.pair_bytes / device.bandwidth
    start = curve.start_latency + curve.expert_latency * load.held
    return GemmSeconds(
        arithmetic=up.arithmetic + down.arithmetic,
        memory=up.memory + down.memory,
        total=start + moved + up.total + down.total,
    )


def shape_of_experts(up: Gemm, down: Gemm, weight_bits: float, input_bytes: float) -> ExpertShape:
    """Return the sizes of an expert from its two matrices on one rank."""
    return ExpertShape(
        hidden_size=float(down.out_features),
        intermediate_size=float(down.in_features),
        up_projections=up.out_features / down.in_features,
        weight_bits=weight_bits,
        input_bytes=input_bytes,
    )


def load_of_experts(
    moe: MixtureOfExperts,
    tokens: Array,
    num_groups: int = 1,
    num_redundant: int | None = None,
    tokens_per_sequence: int = 1,
) -> ExpertLoad:
    """Return `routed_load` of a model's experts."""
    return routed_load(
        moe.num_experts,
        moe.num_experts_per_tok,
        tokens,
        num_groups,
        moe.router_groups,
        num_redundant,
        decay=moe.routing_decay,
        repeats=moe.routing_repeats,
        tokens_per_sequence=tokens_per_sequence,
    )


def routed_load(
    num_experts: int,
    num_experts_per_tok: int,
    tokens: Array,
    num_groups: int = 1,
    router_groups: tuple[int, int] = (1, 1),
    num_redundant: int | None = None,
    *,
    decay: float | None = None,
    repeats: float = 0.0,
    tokens_per_sequence: int = 1,
) -> ExpertLoad:
    """Return the load of the slowest rank: the busiest rank's share of the pairs, and the most experts of any rank.

    Args:
        num_experts: Experts of the layer.
        num_experts_per_tok: Experts per token.
        tokens: Tokens of the step.
        num_groups: Ranks among which whole experts are distributed; 1: the rank holds a slice of every expert.
        router_groups: Groups of neighbouring experts, and number of groups from which a token's experts come.
        num_redundant: Further copies of experts if the load is balanced over ranks; None: experts are placed in order.
        decay: How steeply the popularity of the model's experts falls by rank; None: with `ROUTING_SKEW`.
        repeats: Share of its experts that a draft takes over from the tokens before it; the others are chosen as by
            tokens of other sequences.
        tokens_per_sequence: Tokens of one sequence in the step: a token and its drafts.
    """
    skew, decay = (ROUTING_SKEW, 0.0) if decay is None else (0.0, decay)
    independent = tokens * (1.0 - repeats * (1.0 - 1.0 / tokens_per_sequence))
    distinct_of = partial(_distinct_experts, num_experts, num_experts_per_tok, skew, decay)
    routed = tokens * num_experts_per_tok
    copies = num_experts + (num_redundant or 0)
    held = -(-copies // num_groups)
    share = busiest_share(
        tokens, num_experts, num_experts_per_tok, num_groups, skew, router_groups, num_redundant, decay
    )
    pairs = routed * share
    used = distinct_of(independent)
    mean = used * copies / num_experts / num_groups
    # Each of its experts is used or not: the largest of n sums of ``held`` draws. A rank with more pairs, because more
    # tokens chose its groups, gets new experts at the rate at which a further token would bring them.
    fresh = (distinct_of(independent + 1.0) - used) / num_experts_per_tok
    together = routed * (num_experts_per_tok - 1.0) * _chosen_spread(num_groups, router_groups)
    spread = np.sqrt(mean * np.maximum(1.0 - mean / held, 0.0) + np.square(fresh) * together)
    most = np.minimum(mean + _largest_of(num_groups) * spread, held)
    distinct = np.minimum(most, np.maximum(pairs, 1.0))
    return ExpertLoad(pairs=pairs, distinct=distinct, routed=routed, held=float(held), tokens=tokens)


def _distinct_experts(num_experts: int, num_experts_per_tok: int, skew: float, decay: float, tokens: Array) -> Array:
    """Return the number of experts that a step uses: exact up to 64 tokens, then between knots."""
    most = max(float(np.max(tokens)), EXACT_TOKENS + 1.0)
    knots: Array = np.concatenate((np.arange(float(EXACT_TOKENS)), np.geomspace(EXACT_TOKENS, most, EXACT_TOKENS)))
    return np.interp(tokens, knots, expected_distinct_experts(num_experts, num_experts_per_tok, knots, skew, decay))


def busiest_share(
    tokens: Array,
    num_experts: int,
    num_experts_per_tok: int,
    num_groups: int,
    skew: float = 0.0,
    router_groups: tuple[int, int] = (1, 1),
    num_redundant: int | None = None,
    decay: float = 0.0,
) -> Array:
    """Return the share of the routed pairs computed by the busiest rank, for which the others wait.

    ``1/n + m sqrt(v + 1 / (n pairs))``, m the expected largest of n standard normal values (Blom 1958). The second term
    under the root is random routing. The first is popularity, which more tokens do not even out: for experts chosen
    with shares s_i and assigned to ranks in random order, a rank's sum has the variance ``v = (sum s_i^2 - 1/E) (1/n)
    (1 - 1/n)``. At most one pair for each of a token's experts that the rank can hold. A router that first chooses
    groups sends the k experts of a token to few ranks together: the random term counts ``1 + (k - 1) n u`` times, u the
    variance of the share of a token's groups that a rank holds.

    Args:
        tokens: Tokens of the step.
        num_experts: Experts of the layer, E.
        num_experts_per_tok: Experts per token.
        num_groups: Ranks n.
        skew: Exponent of the experts' popularity by rank; 0: all equally popular.
        router_groups: Groups of neighbouring experts, and number of groups from which a token's experts come.
        num_redundant: Further copies of experts, with which `balanced_share` evens out popularity and never makes it
            worse; None: none. The spread of unbalanced ranks ignores that a single expert may exceed a rank's even
            share, as the most popular one does from 32 ranks.
        decay: As for `expected_distinct_experts`.
    """
    if num_groups == 1:
        return np.ones_like(tokens)
    held = -(-num_experts // num_groups)
    chance = np.broadcast_to(_chances(num_experts, num_experts_per_tok, skew, decay), num_experts)
    concentration = float(np.square(chance / num_experts_per_tok).sum()) - 1.0 / num_experts
    popularity = max(concentration, 0.0) / num_groups * (1.0 - 1.0 / num_groups)
    together = 1.0 + (num_experts_per_tok - 1.0) * num_groups * _chosen_spread(num_groups, router_groups)
    by_chance = together / (num_groups * tokens * num_experts_per_tok)
    share = 1.0 / num_groups + _largest_of(num_groups) * np.sqrt(popularity + by_chance)
    if num_redundant is not None:
        placed = balanced_share(num_experts, num_experts_per_tok, num_groups, num_redundant, skew, decay)
        share = np.minimum(share, placed + _largest_of(num_groups) * np.sqrt(by_chance))
        held = -(-(num_experts + num_redundant) // num_groups)
    return np.asarray(np.minimum(share, min(held / num_experts_per_tok, 1.0)))


@cache
def balanced_share(
    num_experts: int, num_experts_per_tok: int, num_groups: int, num_redundant: int, skew: float, decay: float = 0.0
) -> float:
    """Return the busiest rank's mean share of the pairs if experts are copied and placed by their load.

    Follows DeepSeek's EPLB, which vLLM and SGLang run: each further copy goes to the expert with the most load per
    copy, and copies, heaviest first, go to the least loaded rank with space.
    """
    chance = np.broadcast_to(_chances(num_experts, num_experts_per_tok, skew, decay), num_experts) / num_experts_per_tok
    copies = np.ones(num_experts)
    for _ in range(num_redundant):
        copies[np.argmax(chance / copies)] += 1.0
    room = -(-(num_experts + num_redundant) // num_groups)
    loads, counts = np.zeros(num_groups), np.zeros(num_groups)
    for load in np.sort(np.repeat(chance / copies, copies.astype(int)))[::-1]:
        rank = np.argmin(np.where(counts < room, loads, np.inf))
        loads[rank] += load
        counts[rank] += 1.0
    return float(loads.max())


def _chosen_spread(num_ranks: int, router_groups: tuple[int, int]) -> float:
    """Return the variance of the share of a token's groups that a rank holds; 0 if the router has no groups.

    Neighbouring experts are on one rank: it holds G/n of G groups, of which a token chooses t without replacement
    (hypergeometric), or a part of one group.
    """
    groups, chosen = router_groups
    if num_ranks == 1 or groups == chosen:
        return 0.0
    if num_ranks <= groups:
        rest = (groups - chosen) / (groups - 1)
        return rest / chosen * (1.0 - 1.0 / num_ranks) / num_ranks
    part = groups / (num_ranks * chosen)
    return part**2 * chosen / groups * (1.0 - chosen / groups)


def _largest_of(count: int) -> float:
    """Return the expected largest of ``count`` standard normal values (Blom 1958); 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def has_one_operator(shape: ReplicaShape, machine: Machine, precision: Precision) -> bool:
    """Return whether the host launches routed experts as one operator, so that their layers wait like dense ones.

    On Blackwell, where engines call FlashInfer's or TensorRT-LLM's, in 16 bit only on servers' GPUs; kernel by kernel
    elsewhere, and where the engine's profile assigns them to Triton. TensorRT-LLM's profile names the formats that it
    launches this way, and counts 16 bit as before.
    """
    kernels = gemm_class(precision)
    is_narrow = "fp4" in machine.peaks and precision.arithmetic in ("fp8", "fp4")
    is_plain = kernels == "bf16" and shape.hardware.compute_capability in BLACKWELL
    is_called = is_narrow or (is_plain and not shape.engine.eager_expert_formats)
    return is_called and shape.expert_maker(kernels) != "triton"


def has_fp32_router(shape: ReplicaShape, machine: Machine) -> bool:
    """Return whether the router of a family is priced in FP32: on all GPUs but Hopper, where it does not show."""
    is_hopper = shape.hardware.compute_capability == HOPPER
    return shape.model.family in FP32_ROUTERS and "fp32" in machine.peaks and not is_hopper


def wide_parts(
    shape: ReplicaShape, machine: Machine, gemm: Gemm, tokens: Array, wide: Array
) -> list[tuple[Literal["elementwise", "gemm"], Array]]:
    """Return the seconds by part of a product that stays out of the formats: ``wide``, in 16 bit, but for routers.

    A router in FP32 follows a kernel that converts its inputs, or is one kernel with inputs in 16 bit on Hopper and
    Blackwell (``gate_linear.py``, ``FP32_SUPPORTED_SHAPES``): a start-up, one pass over the weights, further tokens.
    """
    if gemm.name != "router":
        return [("gemm", wide)]
    has_own = shape.model.family in FP32_ROUTERS and shape.hardware.compute_capability in (HOPPER, *BLACKWELL)
    is_few = tokens <= (shape.engine.fp32_router_rows if has_own else 0)
    converted, product = 0.0 * wide, wide
    if has_fp32_router(shape, machine):
        converted = elementwise_parts(gemm.in_features * (ACTIVATION_BYTES + FP32_BYTES), tokens, machine)
        product = fp32_parts(machine, tokens, gemm.out_features, gemm.in_features)
    own = elementwise_parts(0.0, tokens, machine)
    own[WEIGHTS] += gemm.num_weights * FP32_BYTES / (machine.bandwidth * memory_efficiency(machine, "elementwise"))
    own[COMPUTE] += ROUTER_ROW_SECONDS * np.maximum(tokens - 1.0, 0.0)
    return [("elementwise", np.where(is_few, 0.0, converted)), ("gemm", np.where(is_few, own, product))]


def router_kernels(shape: ReplicaShape, moe: MixtureOfExperts, experts: GemmClass | None) -> tuple[int, int]:
    """Return the number of small kernels that choose a layer's experts, and their passes over the router's logits.

    ``experts``: the kernels that multiply them. TensorRT-LLM's on Blackwell also route, which is assumed to be in their
    own times; there only experts that the engine's profile assigns to Triton or CUTLASS have a separate router. GPUs of
    makers other than NVIDIA are assumed to use one kernel.
    """
    engine, family = shape.engine, shape.model.family
    if moe.num_router_groups > 1:
        return engine.num_group_router_kernels, ROUTING_PASSES
    has_own = shape.hardware.vendor == "NVIDIA"
    if shape.hardware.compute_capability in BLACKWELL:
        has_own = shape.expert_maker(experts) in ("triton", "cutlass")
    kernels = engine.router_kernels.get(family, 1) if has_own else 1
    return kernels, ROUTING_PASSES + ROUTER_KERNEL_PASSES * (kernels - 1)


def expert_curve(
    machine: Machine,
    kernels: GemmClass | None,
    dtype: str,
    compute_share: float = 1.0,
    min_tile_rows: int = PLAIN_TILE_ROWS,
    speed: float = 1.0,
    local_passes: float = CLASS_LOCAL_PASSES,
) -> GroupedGemmCurve:
    """Return how fast a GPU runs routed experts in a number format: fitted, 16-bit, or from its class.

    As `simserve.perf.gemm.gemm_curve`; only a curve of the format itself has a ``fit``. ``speed``: speed of the
    engine's own build relative to the curve. ``local_passes``: those of the class, without a fit.
    """
    curve = machine.grouped_gemm_curves.get(kernels) if kernels else None
    if curve is None and kernels == "mxfp4_weight_only" and INT4 in machine.grouped_gemm_curves:
        curve = machine.grouped_gemm_curves[INT4].model_copy(update={"fit": None})
    if curve is None and dtype in WIDE_DTYPES and "bf16" in machine.grouped_gemm_curves:
        curve = _slowed(machine.grouped_gemm_curves["bf16"], compute_share, 1.0)
        curve = curve.model_copy(update={"fit": None, "tile_rows": min(min_tile_rows, curve.tile_rows)})
    if curve is None and dtype == "fp4" and "fp8" in machine.grouped_gemm_curves:
        curve = _slowed(machine.grouped_gemm_curves["fp8"], FP4_OF_FP8, 1.0).model_copy(update={"fit": None})
    if curve is None:
        curve = _slowed(_class_curve(machine, dtype), compute_share, 1.0)
        narrow = NARROW_BLOCK_TILES if kernels == "fp8_block" else {}
        curve = curve.model_copy(update={"tile_rows": min_tile_rows, "local_passes": local_passes, **narrow})
    return _slowed(curve, machine.engine_scale * speed, machine.memory_scale)


def class_local_passes(hardware: HardwareProfile, kernels: GemmClass | None) -> float:
    """Return the passes over the pairs that a rank computes without a fit; Marlin's and GGUF's keep the class's."""
    is_cached = hardware.compute_capability in CACHED_CAPABILITIES
    return CACHED_LOCAL_PASSES if is_cached and kernels in PLAIN_KERNELS else CLASS_LOCAL_PASSES


def _class_curve(machine: Machine, dtype: str) -> GroupedGemmCurve:
    return GroupedGemmCurve.model_construct(
        start_latency=CLASS_START_LATENCIES * KERNEL_LATENCIES["gemm"] * machine.kernel_latency,
        efficiency=machine.gemm_efficiency * NARROW_DTYPE_SHARE.get(dtype, 1.0),
        loop_overhead=CLASS_LOOP_OVERHEAD,
        overlap=machine.grouped_gemm_overlap or machine.gemm_overlap or CLASS_OVERLAP,
        memory_efficiency=machine.memory_efficiency,
        expert_latency=CLASS_EXPERT_LATENCIES * machine.kernel_latency,
        routed_passes=CLASS_ROUTED_PASSES,
        local_passes=CLASS_LOCAL_PASSES,
    )


def _slowed(curve: GroupedGemmCurve, compute: float, memory: float) -> GroupedGemmCurve:
    return curve.model_copy(
        update={
            "efficiency": min(curve.efficiency * compute, 1.0),
            "memory_efficiency": min(curve.memory_efficiency * memory, 1.0),
        }
    )


def layer_parts(curve: GroupedGemmCurve, machine: Machine, dtype: str, shape: ExpertShape, load: ExpertLoad) -> Array:
    """Return the seconds of the routed experts of one layer by part."""
    call = expert_seconds(curve, device_of(machine, dtype), shape, load)
    work = expert_work(shape, load)
    return bound_parts(work, arithmetic=call.arithmetic, memory=call.memory, total=call.total)


def expert_work(shape: ExpertShape, load: ExpertLoad) -> Work:
    """Return the work of the matrix products of the routed experts of one layer on one rank."""
    weights = load.distinct * shape.weights_bytes
    inputs = (shape.hidden_size + shape.intermediate_size) * shape.input_bytes
    outputs = (shape.hidden_size + shape.up_projections * shape.intermediate_size) * ACTIVATION_BYTES
    return Work(
        flops=2.0 * load.pairs * shape.weights_bytes * 8 / shape.weight_bits,
        weight_bytes=np.asarray(weights),
        activation_bytes=np.asarray(load.pairs * (inputs + outputs)),
    )


def _projection(
    curve: GroupedGemmCurve,
    device: GemmDevice,
    load: ExpertLoad,
    shape: ExpertShape,
    out_features: Array | float,
    in_features: Array | float,
) -> GemmSeconds:
    weights = load.distinct * out_features * in_features * shape.weight_bits / 8
    activations = load.pairs * (in_features * shape.input_bytes + out_features * ACTIVATION_BYTES)
    tile_rows: Array | int = curve.tile_rows
    if curve.narrow_tile_rows is not None and curve.narrow_tokens is not None:
        tile_rows = np.where(load.tokens <= curve.narrow_tokens, curve.narrow_tile_rows, curve.tile_rows)
    return grouped_gemm_seconds(
        curve,
        device,
        tile_rows=tile_rows,
        rows=load.pairs,
        experts=load.distinct,
        out_features=out_features,
        in_features=in_features,
        num_bytes=np.asarray(weights + activations),
    )
