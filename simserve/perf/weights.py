"""Bytes of a model's weights: in all, and on the fullest GPU of a replica."""

from __future__ import annotations

from simserve.perf.quantization import weight_bits
from simserve.profiles.model import ModelProfile


def weights_bytes(model: ModelProfile, quantization: str = "none") -> float:
    """Return the bytes of all weights in a format, group scales included.

    Embeddings, LM head, norms, routers and biases stay 16-bit in quantised checkpoints, except GGUF.

    Raises:
        InputError: The format is unknown.
    """
    bits, other_bits = weight_bits(quantization, model.dtype)
    return (model.num_linear_parameters * bits + model.num_unquantised_parameters * other_bits) / 8


def weights_bytes_per_gpu(
    model: ModelProfile,
    quantization: str = "none",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> float:
    """Return the bytes of weights on the fullest GPU.

    Matrices are split as engines split them: key-value heads are replicated when ranks outnumber them, widths
    that do not divide are padded, routers and norms are on every rank. The fullest stage has
    ``ceil(layers / stages)`` layers and the embedding or the LM head. A nominal model divides evenly.

    Raises:
        InputError: The format is unknown, or the heads do not divide over the ranks.
    """
    if model.num_parameters_nominal is not None:
        return weights_bytes(model, quantization) / (tensor_parallel_size * pipeline_parallel_size)
    if tensor_parallel_size == pipeline_parallel_size == 1:
        return weights_bytes(model, quantization)
    bits, other_bits = weight_bits(quantization, model.dtype)
    low, other = _layer_weights(model, tensor_parallel_size)
    share = -(-model.num_hidden_layers // pipeline_parallel_size) / model.num_hidden_layers
    embedding = model.num_embedding_parameters / tensor_parallel_size
    head = model.lm_head_gemm(tensor_parallel_size).num_parameters
    if pipeline_parallel_size > 1:
        ends = max(embedding, head)
    else:
        ends = embedding if model.tie_word_embeddings else embedding + head
    return (low * share * bits + (other * share + ends) * other_bits) / 8


def _layer_weights(model: ModelProfile, num_ranks: int) -> tuple[float, float]:
    """Return the parameters of all layers on one rank: those in the low-bit format, and the others."""
    low = other = whole = 0.0
    for size in (num_ranks, 1):
        matrices = [gemm for layer in range(model.num_hidden_layers) for gemm in model.mlp_gemms(layer, size)]
        matrices += model.attention_gemms(size) * model.num_hidden_layers
        num_experts = model.moe.num_experts * model.num_moe_layers if model.moe else 0
        experts = num_experts * sum(gemm.num_weights for gemm in model.expert_gemms(size))
        if size == num_ranks:
            low = experts + sum(gemm.num_weights for gemm in matrices if gemm.is_quantised)
            other = sum(gemm.num_weights for gemm in matrices if not gemm.is_quantised)
        whole = experts + sum(gemm.num_weights for gemm in matrices)
    head = 0 if model.tie_word_embeddings else model.lm_head_gemm().num_weights
    norms_and_biases = model.num_parameters - whole - head - model.num_embedding_parameters
    return low, other + norms_and_biases
