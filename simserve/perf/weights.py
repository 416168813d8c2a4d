"""What a GPU of a replica holds of a model: the layers of its pipeline stage, and the bytes of their weights.

Also what stages idle, and rounds of micro-batches. Knows no hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simserve.errors import InputError
from simserve.perf.efficiency import Array
from simserve.perf.quantization import format_name, part_bits
from simserve.profiles.model import Gemm, ModelProfile


def pipeline_bubble(stages: int, micro_batches: int) -> float:
    """Return the share of time that stages idle, ``(p - 1) / (m + p - 1)`` (GPipe, Huang et al. 2019).

    Args:
        stages: Pipeline stages p.
        micro_batches: Micro-batches m that pass once, one behind the other.

    Raises:
        InputError: Either is below 1.
    """
    for key, value in (("stages", stages), ("micro_batches", micro_batches)):
        if value < 1:
            raise InputError("must be >= 1", key=key, value=value)
    return (stages - 1) / (micro_batches + stages - 1)


def layers_per_stage(num_layers: int, stages: int, partition: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the layers of each stage: as asked, else as vLLM deals them.

    vLLM gives each stage ``layers // stages`` and one more to as many as remain, from the last but one backwards:
    the last holds the LM head too (vLLM distributed/utils.py, get_pp_indices; before 0.7 the last took them all).

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


def rounds(groups: Array, layers: Sequence[int]) -> Array:
    """Return how long a round of decoding takes, in times of the stage with the most layers.

    ``max(all layers, groups * most layers) / most layers``: a group passes every stage, and the slowest stage serves
    every group.

    Args:
        groups: Groups in flight.
        layers: Layers of each stage.
    """
    return np.maximum(float(sum(layers)), groups * float(max(layers))) / max(layers)


def exposed_head(head_seconds: Array, stage_seconds: Array, layers: Sequence[int]) -> Array:
    """Return the share of the LM head's time that a pipeline waits for.

    The head stands behind the layers of the last stage. Where that has fewer than the fullest, the head fills the
    difference, and only what is longer shows.

    Args:
        head_seconds: Of LM head and sampling.
        stage_seconds: Of the stage with the most layers.
        layers: Layers of each stage.
    """
    slack = stage_seconds * (1.0 - layers[-1] / max(layers))
    return np.asarray(np.maximum(head_seconds - slack, 0.0) / np.maximum(head_seconds, np.finfo(float).tiny))


def micro_batch(total: Array, stages: int) -> Array:
    """Return the tokens of one micro-batch when ``total`` are spread over ``stages``, at least one."""
    return np.maximum(total / stages, 1.0)


def num_micro_batches(sequences: Array, stages: int) -> Array:
    """Return how many of the ``stages`` groups in flight hold a sequence."""
    return np.minimum(sequences, float(stages))


class ExpertTile(NamedTuple):
    """Multiples to which an expert's matrices in MXFP4 are padded: the expert's width on a rank, the model's."""

    expert_width: int
    model_width: int


TRITON_TILE = ExpertTile(64, 256)
"""Of Triton's kernels (vLLM 0.11 quantization/mxfp4.py): 2880 becomes 2880 of the expert and 3072 of the model, which
explains the weights that vLLM reports of gpt-oss on H100 (13.47 and 64.38 GiB) to 0.3 %."""
MARLIN_TILE = ExpertTile(128, 256)
"""Of Marlin's (the same file): 2880 over 1, 2, 4 and 8 ranks becomes 2944, 1536, 768 and 384."""
UNPADDED = ExpertTile(1, 1)
"""Of llama.cpp's, which read blocks of 32 as they are stored."""


def checkpoint_bytes(model: ModelProfile, quantization: str = "none") -> float:
    """Return the bytes of all weights as they lie on disk: group scales included, no padding, no MTP layers.

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
    return (stored + model.num_unquantised_parameters * part_bits(model, quantization, None)) / 8


def weights_bytes(model: ModelProfile, quantization: str = "none", expert_tile: ExpertTile = TRITON_TILE) -> float:
    """Return the bytes of all weights in a format, group scales and padding of MXFP4 included.

    Each part as the model's checkpoint of that format stores it. Embeddings, LM head, norms, routers and biases stay
    16-bit in quantised checkpoints, except GGUF.

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
    """Return the bytes of weights on the fullest GPU.

    Matrices are split as engines split them: key-value heads are replicated when ranks outnumber them, widths
    that do not divide are padded, routers and norms are on every rank. The first stage has the embedding, the
    last the LM head, and layers are dealt as `simserve.perf.weights` says. A nominal model counts by layers
    alone. With expert parallelism a rank holds ``ceil(experts / ranks)`` whole experts a layer, and slices of all
    else. Under data-parallel attention the routed experts are shared by ``tensor x data`` ranks, all else by the
    tensor ranks.

    Raises:
        InputError: The format is unknown, or the heads do not divide over the ranks.
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
    embedding = model.num_embedding_parameters / tensor_parallel_size
    head = model.lm_head_gemm(tensor_parallel_size).num_parameters
    if pipeline_parallel_size == 1:
        stages = [(layers[0], embedding if model.tie_word_embeddings else embedding + head)]
    else:
        stages = [(layers[0], embedding), (layers[-1], head), (max(layers), 0.0)]
    other = part_bits(model, quantization, None)
    return max((held * count / model.num_hidden_layers + end * other) / 8 for count, end in stages)


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
    """Return the bytes of all layers on one tensor-parallel rank: no embedding, no LM head.

    Raises:
        InputError: The format is unknown, or the heads do not divide over the ranks.
    """
    if model.num_parameters_nominal is not None:
        return weights_bytes(model, quantization) / tensor_parallel_size
    expert_ranks = tensor_parallel_size * data_parallel_size
    groups = expert_ranks if enable_expert_parallel else 1
    ranks = _ExpertRanks(expert_ranks, groups, num_redundant_experts, expert_tile)
    return _layer_bits(model, quantization, tensor_parallel_size, ranks) / 8


class _ExpertRanks(NamedTuple):
    """Who holds the routed experts: ranks, those that whole experts are dealt to, further copies a layer, and padded
    to what."""

    num_ranks: int
    num_groups: int
    num_redundant: int = 0
    tile: ExpertTile = TRITON_TILE


def _layer_bits(model: ModelProfile, quantization: str, num_ranks: int, expert_ranks: _ExpertRanks) -> float:
    """Return the bits of the weights of all layers on one rank."""
    matrices, whole = model.gemms_beside_experts(num_ranks), model.gemms_beside_experts()
    experts = _expert_weights(model, quantization, expert_ranks)
    held = experts * part_bits(model, quantization, "experts")
    held += sum(count * gemm.num_weights * part_bits(model, quantization, gemm.part) for count, gemm in matrices)
    head = 0 if model.tie_word_embeddings else model.lm_head_gemm().num_weights
    counted = sum(count * gemm.num_weights for count, gemm in whole) + _expert_weights(
        model, "none", _ExpertRanks(1, 1)
    )
    norms_and_biases = model.num_parameters - counted - head - model.num_embedding_parameters
    return held + norms_and_biases * part_bits(model, quantization, None)


def _expert_weights(model: ModelProfile, quantization: str, ranks: _ExpertRanks) -> float:
    """Return the weights of the routed experts on one rank as they are stored, padding included.

    Args:
        model: The model.
        quantization: Weight format.
        ranks: Who holds them; one group: every expert is cut over the ranks.
    """
    if model.moe is None:
        return 0.0
    held = -(-(model.moe.num_experts + ranks.num_redundant) // ranks.num_groups) * model.num_moe_layers
    up, down = model.expert_gemms(ranks.num_ranks // ranks.num_groups)
    if "mxfp4" in model.formats_of("experts", format_name(quantization)):
        return float(held * _padded_weights(up, down, ranks.tile))
    return float(held * (up.num_weights + down.num_weights))


def _padded_weights(up: Gemm, down: Gemm, tile: ExpertTile) -> int:
    """Return the weights of one expert's two matrices in MXFP4, padding included."""
    width, model_width = _padded_widths(down, tile)
    return (up.out_features // down.in_features + 1) * width * model_width


def _padded_widths(down: Gemm, tile: ExpertTile) -> tuple[int, int]:
    sizes = zip((down.in_features, down.out_features), tile, strict=True)
    width, model_width = (-(-size // multiple) * multiple for size, multiple in sizes)
    return width, model_width


def marlin_padded(up: Gemm, down: Gemm) -> tuple[Gemm, Gemm]:
    """Return an expert's two matrices as vLLM's Marlin kernels multiply them in MXFP4, zeros included."""
    width, model_width = _padded_widths(down, MARLIN_TILE)
    columns = up.out_features // down.in_features * width
    return (
        replace(up, out_features=columns, in_features=model_width),
        replace(down, out_features=model_width, in_features=width),
    )


def launched_gemms(gemms: list[Gemm]) -> list[Gemm]:
    """Return the projections of attention as engines launch them.

    MLA's down-projections of queries and of keys and values read the same input and are one product
    (``fused_qkv_a_proj_with_mqa`` of SGLang, ``fused_qkv_a_proj`` of vLLM, ``kv_a_proj_with_mqa`` of TensorRT-LLM).
    """
    down = {gemm.name: gemm for gemm in gemms if gemm.name in ("q_a", "kv_a")}
    if len(down) < 2:
        return gemms
    width = sum(gemm.out_features for gemm in down.values())
    rest = [gemm for gemm in gemms if gemm.name not in down]
    return [replace(down["q_a"], name="qkv_a", out_features=width), *rest]
