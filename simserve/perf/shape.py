"""ReplicaShape: everything that determines the seconds and bytes of a step of one replica.

Also what each of its GPUs holds of the model: the layers of its pipeline stage and their weights, pipeline idle time,
rounds of micro-batches. Knows profiles and parallel sizes; not how many replicas there are, nor their traffic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from simserve.errors import InputError
from simserve.perf.collectives import HOST_SKEWS, All2AllBackend, ExchangeLinks, Link
from simserve.perf.efficiency import COLLECTIVE_SKEW_KERNELS, Array, Machine
from simserve.perf.quantization import (
    BLACKWELL,
    HOPPER,
    Precision,
    format_name,
    head_bits,
    kv_element_bytes,
    part_bits,
    resolve_precision,
)
from simserve.profiles.checkpoint import WeightFormatName
from simserve.profiles.engine_options import MoeBackend, WindowedKV
from simserve.profiles.hardware import HardwareProfile
from simserve.profiles.kernel_curves import GemmClass, GemmCurve, GroupedGemmCurve, TileCurve
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import PARTS, Gemm, Part
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.units import GIB

Attention = Literal["flash", "standard"]
LoraTarget = Literal["attention", "mlp", "all"]
SpeculativeMethod = Literal["draft_model", "ngram", "eagle", "mtp"]
_Curve = TypeVar("_Curve", bound=TileCurve)
PLAIN_SPARSE_KV_CAPABILITY = 10.0
"""Compute capability from which FlashInfer's kernels of sparse latent attention run, which read plain FP8 (vLLM 0.20.2
v1/attention/backends/mla/flashinfer_mla_sparse.py)."""


def layers_per_stage(num_layers: int, stages: int, partition: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the layers of each stage: the given partition, or as vLLM assigns them.

    Each stage gets ``layers // stages``. The remaining layers go one each to the stages from the last but one
    backwards: the last also holds the LM head (vLLM distributed/utils.py, get_pp_indices; before 0.7 the last took
    all).

    Raises:
        InputError: There are more stages than layers, or the partition has another length or sum, or an empty stage.
    """
    if not 1 <= stages <= num_layers:
        rule = f"must lie between 1 and the {num_layers} layers of the model"
        raise InputError(rule, key="pipeline_parallel_size", value=stages)
    if partition is None:
        each, rest = divmod(num_layers, stages)
        return tuple(each + (stages - 1 - rest <= index < stages - 1) for index in range(stages))
    layers, key = tuple(partition), "pipeline_layer_partition"
    if len(layers) != stages:
        rule = f"must have one number for each of the {stages} stages of pipeline_parallel_size"
        raise InputError(rule, key=key, value=list(layers))
    if sum(layers) != num_layers or min(layers) < 1:
        rule = f"must be numbers of at least 1 that add up to the {num_layers} layers of the model, not {sum(layers)}"
        raise InputError(rule, key=key, value=list(layers))
    return layers


class ExpertTile(NamedTuple):
    """Multiples to which an expert's matrices in MXFP4 are padded: the expert's width on a rank, the model's width."""

    expert_width: int
    model_width: int


TRITON_TILE = ExpertTile(64, 256)
"""Triton's kernels (vLLM 0.11 quantization/mxfp4.py): 2880 becomes 2880 of the expert and 3072 of the model, which
explains the weights that vLLM reports for gpt-oss on H100 (13.47 and 64.38 GiB) to 0.3 %."""
MARLIN_TILE = ExpertTile(128, 256)
"""Marlin's kernels (the same file): 2880 over 1, 2, 4 and 8 ranks becomes 2944, 1536, 768 and 384."""
UNPADDED = ExpertTile(1, 1)  # llama.cpp's kernels, which read blocks of 32 as stored.


def checkpoint_bytes(model: ModelProfile, quantization: str = "none") -> float:
    """Return the bytes of all weights as on disk: with group scales, without padding and MTP layers.

    Raises:
        InputError: The format is unknown.
    """
    if model.num_parameters_nominal is not None:
        return model.num_parameters_nominal * part_bits(model, quantization, "mlp") / 8
    stored = sum(
        count * gemm.num_weights * part_bits(model, quantization, gemm.part)
        for count, gemm in model.all_gemms()
        if gemm.part is not None
    )
    rest = part_bits(model, quantization, None)
    head = 0 if model.tie_word_embeddings else model.lm_head_gemm().num_weights
    return (stored + model.num_unquantised_parameters * rest + head * (head_bits(model, quantization) - rest)) / 8


def weights_bytes(model: ModelProfile, quantization: str = "none", expert_tile: ExpertTile = TRITON_TILE) -> float:
    """Return the bytes of all weights in a format, including group scales and padding of MXFP4.

    Each part is as the model's checkpoint of that format stores it. Embeddings, LM head, norms, routers and biases stay
    16-bit in quantised checkpoints, except in GGUF and where ``rest_format`` says otherwise.

    Raises:
        InputError: The format is unknown.
    """
    if model.moe is None:
        return checkpoint_bytes(model, quantization)
    padded, plain = (
        _expert_weights(model, each, _ExpertRanks(1, 1, 0, expert_tile)) for each in (quantization, "none")
    )
    return checkpoint_bytes(model, quantization) + (padded - plain) * part_bits(model, quantization, "experts") / 8


def weights_bytes_per_gpu(
    model: ModelProfile,
    quantization: str = "none",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    num_redundant_experts: int = 0,
    expert_tile: ExpertTile = TRITON_TILE,
    pipeline_layer_partition: Sequence[int] | None = None,
) -> float:
    """Return the bytes of weights on the GPU that holds most.

    Matrices are split as engines split them: key-value heads are replicated when ranks outnumber them, widths that do
    not divide are padded, routers and norms are on every rank. The first stage has the embedding, the last the LM head,
    and layers are assigned as `simserve.perf.shape` says. A nominal model counts by layers alone. With expert
    parallelism a rank holds ``ceil(experts / ranks)`` whole experts per layer, and slices of everything else. Under
    data-parallel attention ``tensor x data`` ranks share the routed experts; the tensor ranks share everything else.

    Raises:
        InputError: The format is unknown, or the heads do not divide by the ranks.
    """
    layers = layers_per_stage(model.num_hidden_layers, pipeline_parallel_size, pipeline_layer_partition)
    if model.num_parameters_nominal is not None and pipeline_layer_partition is None:
        return weights_bytes(model, quantization) / (tensor_parallel_size * pipeline_parallel_size)
    if model.num_parameters_nominal is not None:
        return weights_bytes(model, quantization) * max(layers) / model.num_hidden_layers / tensor_parallel_size
    if tensor_parallel_size == pipeline_parallel_size == data_parallel_size == 1:
        return weights_bytes(model, quantization, expert_tile)
    expert_ranks = tensor_parallel_size * data_parallel_size
    groups = expert_ranks if enable_expert_parallel else 1
    ranks = _ExpertRanks(expert_ranks, groups, num_redundant_experts, expert_tile)
    held = _layer_bits(model, quantization, tensor_parallel_size, ranks)
    embedding = part_bits(model, quantization, None) * model.num_embedding_parameters / tensor_parallel_size
    tables = _table_bits(model, quantization, tensor_parallel_size)
    head = model.lm_head_gemm(tensor_parallel_size).num_parameters * head_bits(model, quantization)
    if pipeline_parallel_size == 1:
        stages = [(layers[0], embedding if model.tie_word_embeddings else embedding + head)]
    else:
        stages = [(layers[0], embedding), (layers[-1], head), (max(layers), 0.0)]
    first = (held * stages[0][0] / model.num_hidden_layers + stages[0][1] + tables) / 8
    return max(first, *((held * count / model.num_hidden_layers + end) / 8 for count, end in stages))


def _table_bits(model: ModelProfile, quantization: str, num_ranks: int) -> float:
    """Return the bits of tables of n-grams on one rank; layers near the embedding look them up."""
    return sum(
        count * gemm.num_weights * part_bits(model, quantization, gemm.part)
        for count, gemm in model.table_gemms(num_ranks)
    )


def layer_weights_bytes(
    model: ModelProfile,
    quantization: str,
    tensor_parallel_size: int = 1,
    *,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    num_redundant_experts: int = 0,
    expert_tile: ExpertTile = TRITON_TILE,
) -> float:
    """Return the bytes of all layers on one tensor-parallel rank, without embedding and LM head.

    Raises:
        InputError: The format is unknown, or the heads do not divide by the ranks.
    """
    if model.num_parameters_nominal is not None:
        return weights_bytes(model, quantization) / tensor_parallel_size
    expert_ranks = tensor_parallel_size * data_parallel_size
    groups = expert_ranks if enable_expert_parallel else 1
    ranks = _ExpertRanks(expert_ranks, groups, num_redundant_experts, expert_tile)
    return _layer_bits(model, quantization, tensor_parallel_size, ranks) / 8


class _ExpertRanks(NamedTuple):
    """Who holds the routed experts: ranks, ranks that get whole experts, further copies per layer, and the padding."""

    num_ranks: int
    num_groups: int
    num_redundant: int = 0
    tile: ExpertTile = TRITON_TILE


def _layer_bits(model: ModelProfile, quantization: str, num_ranks: int, expert_ranks: _ExpertRanks) -> float:
    """Return the bits of all layers' weights on one rank."""
    matrices = model.gemms_beside_experts(num_ranks) + model.image_gemms(expert_ranks.num_ranks)
    whole = model.gemms_beside_experts() + model.image_gemms()
    experts = _expert_weights(model, quantization, expert_ranks)
    held = experts * part_bits(model, quantization, "experts")
    held += sum(count * gemm.num_weights * part_bits(model, quantization, gemm.part) for count, gemm in matrices)
    head = 0 if model.tie_word_embeddings else model.lm_head_gemm().num_weights
    counted = sum(count * gemm.num_weights for count, gemm in (*whole, *model.table_gemms())) + _expert_weights(
        model, "none", _ExpertRanks(1, 1)
    )
    norms_and_biases = model.num_parameters - counted - head - model.num_embedding_parameters
    return held + norms_and_biases * part_bits(model, quantization, None)


def _expert_weights(model: ModelProfile, quantization: str, ranks: _ExpertRanks) -> float:
    """Return the weights of the routed experts on one rank as stored, including padding.

    Args:
        ranks: Who holds them; one group: every expert is split over the ranks.
    """
    if model.moe is None:
        return 0.0
    held = -(-(model.moe.num_experts + ranks.num_redundant) // ranks.num_groups) * model.num_moe_layers
    up, down = model.expert_gemms(ranks.num_ranks // ranks.num_groups)
    if "mxfp4" in model.formats_of("experts", format_name(quantization)):
        return float(held * _padded_weights(up, down, ranks.tile))
    return float(held * (up.num_weights + down.num_weights))


def _padded_weights(up: Gemm, down: Gemm, tile: ExpertTile) -> int:
    """Return the weights of one expert's two matrices in MXFP4, including padding."""
    width, model_width = _padded_widths(down, tile)
    return (up.out_features // down.in_features + 1) * width * model_width


def _padded_widths(down: Gemm, tile: ExpertTile) -> tuple[int, int]:
    sizes = zip((down.in_features, down.out_features), tile, strict=True)
    width, model_width = (-(-size // multiple) * multiple for size, multiple in sizes)
    return width, model_width


def marlin_padded(up: Gemm, down: Gemm) -> tuple[Gemm, Gemm]:
    """Return an expert's two matrices as vLLM's Marlin kernels multiply them in MXFP4, including zeros."""
    width, model_width = _padded_widths(down, MARLIN_TILE)
    columns = up.out_features // down.in_features * width
    return (
        replace(up, out_features=columns, in_features=model_width),
        replace(down, out_features=model_width, in_features=width),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """Cost of grammars on a replica."""

    share: float  # Share of the sequences that are constrained; steps are priced at this share.
    mask_seconds: float  # Time to fill the mask of one token.
    advance_seconds: float  # Time to advance the grammar by one sampled token.
    is_overlapped: bool  # Whether masks are filled while the GPU computes.

    @property
    def note(self) -> str:
        """What a reader of the result should know."""
        where = "while the GPU computes" if self.is_overlapped else "before the GPU can go on"
        return (
            f"grammars: {self.share:.0%} of the sequences of every step are priced as constrained, masks filled "
            f"{where}, with CPU times that others have published (estimate)"
        )


def exposed_mask_seconds(masks: Masks | None, sequences: Array, gpu_seconds: Array, tokens_each: int = 1) -> Array:
    """Return the time that masks add to a step, seconds.

    Grammars advance once tokens are known, after the GPU's work; masks filled beside that show only what is longer.

    Args:
        masks: Cost of grammars; None: nothing is constrained.
        sequences: Sequences in the step.
        gpu_seconds: Time of the GPU for the step.
        tokens_each: Tokens sampled per sequence; several with drafts.
    """
    if masks is None:
        return np.zeros_like(sequences)
    constrained = masks.share * tokens_each * sequences
    filling = masks.mask_seconds * constrained
    shown = np.maximum(filling - gpu_seconds, 0.0) if masks.is_overlapped else filling
    return np.asarray(shown + masks.advance_seconds * constrained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding of one replica: the drafter, and how far ahead it drafts."""

    method: SpeculativeMethod
    """``draft_model``, ``ngram`` (a look-up in the context), ``eagle`` or ``mtp`` (one more layer)."""
    num_speculative_tokens: int  # Drafts per step, k; the target verifies k + 1 tokens per sequence.
    draft: ReplicaShape | None  # The drafter, as a replica of its own on the same GPUs; None: ``ngram``.
    notes: tuple[str, ...] = ()  # What a reader of the result should know.

    @property
    def is_layer(self) -> bool:
        """Whether the drafter is a layer after the target that shares its embedding and LM head."""
        return self.method in ("eagle", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShape:
    """One replica: a model on ``tensor x pipeline x data parallel`` GPUs under an engine."""

    hardware: HardwareProfile  # The GPU and its links.
    model: ModelProfile  # What is served.
    engine: ResolvedEngine  # Limits, memory rule and host times, all resolved.
    tensor_parallel_size: int = 1  # Ranks that share every layer.
    pipeline_parallel_size: int = 1  # Stages that share the layers.
    pipeline_layer_partition: tuple[int, ...] | None = None  # Layers of each stage; None: as vLLM assigns them.
    decode_context_parallel_size: int = 1  # Tensor-parallel ranks that divide the tokens of each request's KV cache.
    data_parallel_size: int = 1
    """Groups of tensor-parallel ranks that each hold attention and a KV cache of their own, and share the routed
    experts (data-parallel attention)."""
    quantization: str = "none"  # Weight format, a key of `simserve.perf.quantization.WEIGHT_FORMATS`.
    kv_cache_dtype: str = "auto"  # KV format, a key of `simserve.perf.quantization.KV_BITS`.
    enable_expert_parallel: bool = False
    """Whether each routed expert is whole on one of the ranks that share the experts, instead of in slices on all of
    them."""
    all2all_backend: All2AllBackend = "allgather_reducescatter"
    """How tokens reach the ranks that hold their experts under data-parallel attention."""
    num_redundant_experts: int | None = None
    """Further copies of experts if their load is balanced over the ranks; None: it is not."""
    enable_two_batch_overlap: bool = False
    """Whether a step runs as two halves, one computing while the other's tokens travel."""
    operator_tables: Path | None = None  # Folder of measured operator tables; None: only fitted curves and rooflines.
    attention: Attention = "flash"  # ``flash`` (scores stay on the chip) or ``standard`` (scores go through memory).
    speculation: Speculation | None = None  # Speculative decoding; None: one token a step.
    lora_target: LoraTarget = "all"
    """The layers that the workload's LoRA adapters change; without adapters, all that may have one."""
    windowed_kv: WindowedKV | None = None
    """How layers with a sliding window keep only their window; None: they keep everything."""
    masks: Masks | None = None
    """Cost per step of the grammars of constrained answers; None: no answer is constrained."""
    encodes_images: bool = False  # Whether the model's vision tower, if any, is loaded too.
    encodes_audio: bool = False  # Whether its audio encoder, if any, is loaded too.
    contexts: tuple[float, ...] | None = None
    """Context lengths in tokens that decode steps of the traffic see, all equally likely; layers with a sliding
    window are priced for them. None: unknown."""
    common_prefix_tokens: int = 0  # Tokens that all prompts share, and decodes read once (cascades).

    @property
    def kv_element_bytes(self) -> float:
        """Bytes per element of the KV cache; the mean if the parts of an entry differ.

        Sparse latent attention in FP8: FlashMLA's kernels, used before Blackwell, keep the rotary part in 16 bit and
            one scale per 128 elements of the rest (vLLM 0.20.2 v1/kv_cache_interface.py, 656 bytes in ``fp8_ds_mla``;
            SGLang 0.5.23 the same). Blackwell's kernels keep one scale per tensor.
        """
        latent, capability = self.model.mla, self.hardware.compute_capability
        if latent is None or self.model.indexer is None or self.kv_cache_dtype != "fp8":
            return kv_element_bytes(self.kv_cache_dtype)
        if capability is None or float(capability) >= PLAIN_SPARSE_KV_CAPABILITY:
            return kv_element_bytes(self.kv_cache_dtype)
        return latent.packed_bytes / latent.width

    @property
    def num_gpus(self) -> int:
        """GPUs of the replica."""
        return self.expert_ranks * self.pipeline_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Ranks that share the routed experts of a layer."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def hashes_next_token(self) -> bool:
        """Whether blocks are cached with the token behind them, which the layer that drafts has read (vLLM)."""
        return self.speculation is not None and self.speculation.is_layer and self.engine.caches_results

    @property
    def num_speculative_tokens(self) -> int:
        """Drafts that a step verifies for each sequence."""
        return 0 if self.speculation is None else self.speculation.num_speculative_tokens

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a decoding sequence computes per step."""
        return 1 + self.num_speculative_tokens

    @property
    def expert_slices(self) -> int:
        """Ranks that each routed expert is split over."""
        return 1 if self.enable_expert_parallel else self.expert_ranks

    @property
    def expert_groups(self) -> int:
        """Ranks among which whole routed experts are distributed."""
        return self.expert_ranks // self.expert_slices

    @property
    def num_expert_copies(self) -> int:
        """Routed experts of a layer, including further copies."""
        return 0 if self.model.moe is None else self.model.moe.num_experts + (self.num_redundant_experts or 0)

    @property
    def exchange_links(self) -> ExchangeLinks:
        """Links over which the ranks that share the experts exchange tokens."""
        intra, inter = self.hardware.intra_node, self.hardware.inter_node
        return ExchangeLinks(
            num_ranks=self.expert_ranks,
            ranks_per_node=intra.gpus_per_node,
            local_bandwidth=intra.bandwidth,
            network_bandwidth=inter.bandwidth,
        )

    @property
    def overlaps_chunks(self) -> bool:
        """Whether chunks of a prompt follow each other through several stages."""
        return self.engine.overlaps_chunks and self.pipeline_parallel_size > 1

    @property
    def max_chunk_tokens(self) -> int:
        """Most prefill tokens of one request in a step: in a micro-batch, or in as many as overlap in the stages."""
        return self.engine.max_chunk_tokens * (self.pipeline_parallel_size if self.overlaps_chunks else 1)

    @property
    def is_on_second_runner(self) -> bool:
        """Whether the server runs on vLLM's second model runner."""
        runner, model = self.engine.second_runner, self.model
        if runner is None or (self.speculation is not None and self.speculation.method not in runner.drafters):
            return False
        is_excepted = (
            (runner.except_experts and model.moe is not None)
            or (runner.except_states and model.num_linear_layers > 0)
            or (runner.except_quantized and self.precision.weight_bits < 16)
        )
        return not is_excepted and (not runner.families or model.family in runner.families)

    @property
    def skips_padding(self) -> bool:
        """Whether rows that pad a decode step to its CUDA graph choose no experts (`skips_padding_families`).

        Not on Blackwell's data-centre GPUs, whose kernels (FlashInfer's TensorRT-LLM) route themselves and get no
        mask, nor for MXFP4 on Hopper, whose Triton kernels do too (vLLM 0.30.0 fused_moe/experts, *Monolithic).
        """
        gpu, is_listed = self.hardware, self.model.family in self.engine.skips_padding_families
        routes_itself = gpu.compute_capability in BLACKWELL or (
            gpu.compute_capability == HOPPER and self.precision.name == "mxfp4"
        )
        return is_listed and gpu.vendor == "NVIDIA" and not routes_itself and self.is_on_second_runner

    @property
    def samples_in_turn(self) -> bool:
        """Whether no pipeline stage goes on before the last one has sampled: ahead of results, in the first runner."""
        is_first = self.engine.samples_in_turn and not self.is_on_second_runner
        return is_first and self.engine.async_scheduling and self.pipeline_parallel_size > 1

    @property
    def keeps_micro_batches(self) -> bool:
        """Whether requests stay in the micro-batch of pipeline stages that completed their prompts."""
        is_kept = self.engine.keeps_micro_batches and not (self.is_on_second_runner or self.samples_in_turn)
        return is_kept and self.pipeline_parallel_size > 1

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers of each pipeline stage.

        Raises:
            InputError: There are more stages than layers, or the partition does not fit the model.
        """
        layers, stages = self.model.num_hidden_layers, self.pipeline_parallel_size
        return layers_per_stage(layers, stages, self.pipeline_layer_partition)

    @property
    def num_cpu_layers(self) -> int:
        """Layers that the CPU runs (llama.cpp, Ollama)."""
        asked = self.engine.n_gpu_layers if self.engine.n_gpu_layers is not None else self.engine.num_gpu
        return 0 if asked is None else max(self.model.num_hidden_layers - asked, 0)

    @property
    def num_cpu_expert_layers(self) -> int:
        """Layers on the GPU whose routed experts the CPU runs (llama.cpp): those of the first layers that have some."""
        asked = min(self.engine.n_cpu_moe or 0, self.model.num_hidden_layers)
        return sum(self.model.is_moe_layer(layer) for layer in range(self.num_cpu_layers, asked))

    @property
    def streamed_bytes(self) -> float:
        """Bytes of a GPU's weights that stay in host memory and are read from there in every step (vLLM, SGLang)."""
        if not self.engine.cpu_offload_gb:
            return 0.0
        share = self.num_layers_per_stage / self.model.num_hidden_layers
        held = share * layer_weights_bytes(
            self.model,
            self.quantization,
            self.tensor_parallel_size,
            data_parallel_size=self.data_parallel_size,
            enable_expert_parallel=self.enable_expert_parallel,
            num_redundant_experts=self.num_redundant_experts or 0,
            expert_tile=self.expert_tile,
        )
        return min(self.engine.cpu_offload_gb * GIB, held)

    @property
    def expert_tile(self) -> ExpertTile:
        """Multiples to which experts in MXFP4 are padded in memory, by the kernels used here."""
        if not self.engine.pads_experts:
            return UNPADDED
        return MARLIN_TILE if self.moe_backend == "marlin" else TRITON_TILE

    @property
    def moe_backend(self) -> MoeBackend:
        """Whose kernels run experts in MXFP4, and on AMD GPUs in any format: as set, or the engine's default here."""
        if self.engine.moe_backend is not None:
            return self.engine.moe_backend
        if own := self.engine.expert_backends.get(self.hardware.vendor):
            return "aiter" if self.engine.attention_backend == "aiter" else own
        families = self.engine.triton_expert_families
        if families and self.model.family not in families:
            return "marlin"
        span, capability = self.engine.triton_expert_capabilities, self.hardware.compute_capability
        if span is None or capability is None or span[0] <= float(capability) < span[1]:
            return "triton"
        return "marlin"

    @property
    def num_layers_per_stage(self) -> int:
        """Layers of the largest pipeline stage that run on the GPU."""
        return max(self.layers_per_stage) - self.num_cpu_layers

    @property
    def machine(self) -> Machine:
        """One GPU as the operators see it."""
        efficiency = self.hardware.efficiency
        return Machine(
            name=self.hardware.name,
            peaks=self._peaks,
            bandwidth=min(self.hardware.memory.bandwidth, self.engine.max_bandwidth),
            gemm_efficiency=efficiency.gemm,
            gemm_overlap=efficiency.gemm_overlap,
            grouped_gemm_overlap=efficiency.grouped_gemm_overlap,
            tile_rows=efficiency.tile_rows,
            unpacking=efficiency.unpacking,
            attention_efficiency=efficiency.attention_prefill,
            memory_efficiency=efficiency.memory,
            kernel_latency=efficiency.kernel_latency * self._kernel_starts,
            indexer_efficiency=efficiency.indexer(self.engine.has_flydsl_indexer),
            decode_efficiency=self._decode_efficiency,
            sampling_efficiency=efficiency.sampling,
            engine_scale=self.engine.compute_efficiency,
            memory_share=self.engine.memory_share,
            num_multiprocessors=self.hardware.compute.num_multiprocessors or 1,
            gemm_curves={name: self._started(curve) for name, curve in self._gemm_curves.items()},
            grouped_gemm_curves={name: self._started(curve) for name, curve in self._grouped_gemm_curves.items()},
            activation_quantisation=self.hardware.activation_quantisation,
        )

    def _started(self, curve: _Curve) -> _Curve:
        """Return a curve with only the part of its start-up that shows."""
        if self._shown_start == 1.0:
            return curve
        return curve.model_copy(update={"start_latency": curve.start_latency * self._shown_start})

    @property
    def _shown_start(self) -> float:
        """Share of a kernel's start-up that shows on this GPU."""
        is_late = float(self.hardware.compute_capability or 0.0) >= self.engine.shown_start_since
        return self.engine.shown_start if is_late else 1.0

    @property
    def _gemm_curves(self) -> dict[GemmClass, GemmCurve]:
        """Matrix products of the engine; some formats use others' kernels where it calls them."""
        curves, vendor = self.hardware.gemm_curves_of(self.engine.name), self.hardware.vendor
        blocks, wide = self.engine.block_scaled_kernels.get(vendor), self.engine.wide_kernels.get(vendor)
        makers: dict[GemmClass, str | None] = {"fp8_block": blocks, "bf16": wide, "nvfp4": self.engine.fp4_kernels}
        makers["fp8"] = self.engine.narrow_kernels.get(vendor)
        all_of = self.hardware.gemm_curves
        return curves | {key: each for key, by in makers.items() for each in all_of.get(key, ()) if by in each.engines}

    @property
    def _grouped_gemm_curves(self) -> dict[GemmClass, GroupedGemmCurve]:
        """Routed experts of the engine; some formats use others' kernels where it calls them."""
        makers = {name: self.expert_maker(name) for name in (*self.engine.expert_kernels, *self.engine.cutlass_experts)}
        if not self._has_tuned_experts:
            makers |= self.engine.default_tiles
        return self.hardware.grouped_gemm_curves_of(self.engine.name, self.moe_backend, makers)

    @property
    def _has_tuned_experts(self) -> bool:
        """Whether the engine has tiles for experts of this shape on this GPU, or always chooses such tiles."""
        moe, shapes = self.model.moe, self.engine.tuned_experts.get(self.hardware.name)
        if moe is None or shapes is None:
            return True
        held = -(-self.num_expert_copies // self.expert_groups)
        return f"{held}x{moe.moe_intermediate_size // self.expert_slices}" in shapes

    def expert_maker(self, kernels: GemmClass | None) -> str:
        """Return whose kernels run experts in a format, by the engine's profile; empty: the engine's own."""
        is_server = (self.hardware.compute_capability or "").startswith("10.")  # SGLang server_args.py: SM100
        if kernels is not None and is_server and self.model.family in self.engine.cutlass_experts.get(kernels, ()):
            return "cutlass"
        is_own = is_server and kernels is not None and self.model.family in self.engine.own_experts.get(kernels, ())
        is_sent = kernels == "fp8_block" and self.all2all_backend.startswith("deepep")  # DeepGEMM's
        return "" if kernels is None or is_own or is_sent else self.engine.expert_kernels.get(kernels, "")

    @property
    def _decode_efficiency(self) -> float | None:
        """Share of the bandwidth in decode attention for the kernels that the engine calls."""
        efficiency = self.hardware.efficiency
        backend = self.engine.attention_backend or self.engine.attention_backends.get(self.hardware.vendor)
        triton = efficiency.triton_attention_decode if backend == "triton" else None
        return efficiency.attention_decode if triton is None else triton

    @property
    def _kernel_starts(self) -> float:
        """Factor on the start-up time of kernels that the GPU's profile states."""
        own = self.engine.kernel_starts.get(self.hardware.vendor, 1.0) * self._shown_start
        return own * self.engine.kernel_start_factor

    @property
    def _peaks(self) -> dict[str, float]:
        """FLOP/s by the dtypes that the GPU has arithmetic for, up to what the engine's kernels reach."""
        peaks = {dtype: self.hardware.peak_flops(dtype) for dtype in self.hardware.supported_dtypes}
        most = min(self.engine.max_flops, self._most_of_fp16)
        return {dtype: min(peak, most) for dtype, peak in peaks.items() if peak is not None}

    @property
    def _most_of_fp16(self) -> float:
        """FLOP/s beyond which the engine's 16-bit products gain nothing; a limit of CUDA kernels and of HIP's."""
        share, gpu = self.engine.max_share_of_fp16, self.hardware
        rate = gpu.compute.fp16_accumulated or gpu.compute.fp16
        is_bound = share is not None and rate is not None and gpu.runs_cuda
        return share * rate if is_bound and share and rate else math.inf

    @property
    def precision(self) -> Precision:
        """The weight format as it runs here; for a checkpoint that mixes several, the one that it is named for.

        Raises:
            InputError: The engine does not run the format, or the GPU has no arithmetic for it.
        """
        rest = part_bits(self.model, self.quantization, None)
        return replace(self._precision(format_name(self.quantization)), other_bits=rest)

    @property
    def precisions(self) -> Mapping[Part, tuple[tuple[Precision, float], ...]]:
        """The formats that each part of the model runs in, each with its share of the layers that have the part.

        Raises:
            InputError: The engine does not run one of them, or the GPU has no arithmetic for it.
        """
        stored = {part: self.model.formats_of(part, format_name(self.quantization)) for part in PARTS}
        if "nvfp4" in (experts := stored["experts"]):
            capability = self.hardware.compute_capability
            stored["experts"] = self.engine.formats_of_experts(experts, self.model.family, capability)
        kinds = dict.fromkeys(each for shares in stored.values() for each in shares)
        known = {each: self._precision(each) for each in kinds}
        return {part: tuple((known[each], share) for each, share in shares.items()) for part, shares in stored.items()}

    def _precision(self, name: WeightFormatName) -> Precision:
        checkpoint = self.model.checkpoint(self.quantization)
        through = f" through {self.engine.plugin}" if self.engine.plugin else ""
        return resolve_precision(
            name,
            model_dtype=self.model.dtype,
            peaks=self._peaks,
            hardware_name=self.hardware.name,
            engine_name=f"{self.engine.name} {self.engine.version}{through}",
            engine_formats=self.engine.supported_quantizations,
            has_marlin=self.engine.has_marlin,
            is_marlin=name in self.engine.marlin_formats
            and not (name in self.engine.machete_formats and self.hardware.compute_capability == HOPPER),
            has_wide_inputs=self._has_wide_inputs,
            has_weight_only_floats=self.engine.has_weight_only_floats,
            has_block_scales=checkpoint is not None and checkpoint.fp8_scales == "block",
            group_size=None if checkpoint is None else checkpoint.group_size,
            compute_capability=self.hardware.compute_capability,
            unpacking=self.hardware.efficiency.unpacking,
            tile_rows=self.hardware.efficiency.tile_rows,
            is_ggml="gguf-q8_0" in self.engine.quantises_before_loading,
            runs_cuda=self.hardware.runs_cuda,
            runs_metal=self.hardware.vendor == "Apple",
            int8_flops=self._int8_of_ggml,
        )

    @property
    def _int8_of_ggml(self) -> float | None:
        """FLOP/s at which ggml's kernels multiply rows by quantised weights as stored; None: they write them out."""
        share, rate = self.engine.max_share_of_int8, self.hardware.compute.int8
        return None if share is None or rate is None else share * rate

    @property
    def _has_wide_inputs(self) -> bool:
        """Whether MXFP4 weights meet inputs in 16 bit, by the kernels that the engine chooses for GPU and model."""
        since, capability = self.engine.wide_mxfp4_since, float(self.hardware.compute_capability or 0.0)
        is_narrow = self.model.family in self.engine.narrow_mxfp4_families and self.engine.moe_backend != "marlin"
        return since is not None and capability >= since and not is_narrow

    @property
    def head_precision(self) -> Precision | None:
        """The format that the LM head runs in; None: that of embeddings, 16 bit in all but GGUF.

        Raises:
            InputError: The engine does not run it, or the GPU has no arithmetic for it.
        """
        stored = self.model.head_format(format_name(self.quantization))
        return None if stored is None else self._precision(stored)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the result should know, such as arithmetic that differs from a format's name."""
        fitted = self.hardware.calibration.note if self.hardware.calibration else ""
        on, plugin, device = self.engine.measured_on, self.engine.plugin, f"{self.hardware.vendor}'s devices"
        through = f"{self.engine.name} runs on {device} through {plugin}: its kernels are priced as a roofline"
        measured = f"calibrated: step times are scaled by factors that were measured on {on}"
        masked = "" if self.masks is None else self.masks.note
        notes = self.precision.note, through * bool(plugin), fitted, measured * bool(on), masked
        return tuple(note for note in notes if note)

    @property
    def tensor_link(self) -> Link:
        """Link between the tensor-parallel ranks: the network once they span nodes.

        Raises:
            InputError: There is no such link.
        """
        return self._link(self.tensor_parallel_size, "tensor_parallel_size")

    @property
    def expert_link(self) -> Link:
        """Link between the ranks that share the experts.

        Raises:
            InputError: There is no such link.
        """
        return self._link(self.expert_ranks, "data_parallel_size")

    @property
    def stage_link(self) -> Link:
        """Link between pipeline stages: the network once the replica spans nodes.

        Raises:
            InputError: There is no such link.
        """
        return self._link(self.num_gpus, "pipeline_parallel_size")

    def check_link(self, num_gpus: int, key: str) -> None:
        """Do nothing if that many GPUs have links to each other.

        Raises:
            InputError: They do not; ``key`` says which option needs them.
        """
        name, ranks = self.hardware.name, self.hardware.intra_node.gpus_per_node
        if num_gpus <= ranks and self.hardware.intra_node.kind == "none":
            raise self._refuse(f"needs links between GPUs, and {name} has none", key)
        if num_gpus > ranks and self.hardware.inter_node.kind == "none":
            raise self._refuse(f"needs {num_gpus} GPUs; a node of {name} has {ranks} and no network", key)

    def _link(self, num_gpus: int, key: str) -> Link:
        self.check_link(num_gpus, key)
        intra, inter = self.hardware.intra_node, self.hardware.inter_node
        kernel_latency, ranks = self.hardware.efficiency.kernel_latency, intra.gpus_per_node
        if num_gpus <= ranks:
            curves, engine = self.hardware.collective_curves, self.engine.all_reduce or self.engine.name
            fitted_skew = None if curves is None else curves.all_reduce_of(engine).skew_kernels
            skew = COLLECTIVE_SKEW_KERNELS if fitted_skew is None else fitted_skew
            return Link(
                bandwidth=min(
                    intra.bandwidth,
                    (intra.shared_bandwidth or math.inf) / num_gpus,
                    (intra.peer_bandwidth or math.inf) * max(num_gpus - 1, 1),
                ),
                latency=intra.latency,
                reference_ranks=intra.num_latency_gpus,
                skew=skew * kernel_latency,
                curves=curves if curves is None or self.engine.enable_nccl_nvls else curves.without_switch,
                engine=engine,
                is_pcie=intra.kind == "pcie",
                is_ring=intra.is_ring,
                host_from=self.engine.all_reduce_host_from if num_gpus > 2 else math.inf,
                host_bandwidth=self.hardware.host_link.bandwidth,
            )
        return Link(
            bandwidth=min(inter.bandwidth, intra.bandwidth or inter.bandwidth),
            latency=inter.latency + (intra.latency if intra.kind != "none" else 0.0),
            network_latency=inter.latency,
            reference_ranks=intra.num_latency_gpus,
            skew=COLLECTIVE_SKEW_KERNELS * kernel_latency,
            host_skew=HOST_SKEWS.get(self.engine.name, 0.0),
        )

    def _refuse(self, rule: str, key: str) -> InputError:
        sizes = f"tensor x pipeline is {self.tensor_parallel_size} x {self.pipeline_parallel_size}"
        sizes += f", data {self.data_parallel_size}" * (self.data_parallel_size > 1)
        return InputError(rule, key=key, value=getattr(self, key), remedy=f"{sizes}: make it smaller")
