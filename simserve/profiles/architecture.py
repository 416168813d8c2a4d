"""What a model is: its architecture, how many parameters follow from it, and how many KV bytes a token takes.

Knows no bytes per weight, no hardware and no engine.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from simserve.profiles import model_shapes
from simserve.profiles.checkpoint import WIDE_FORMATS, Checkpoint, Part, WeightFormatName
from simserve.profiles.model_blocks import LatentAttention, LinearAttention, MixtureOfExperts, SparseIndexer
from simserve.profiles.model_shapes import Gemm
from simserve.validation import FrozenModel

DType = Literal["bf16", "fp16", "fp32"]
_ELEMENT_BYTES: dict[DType, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


class ModelProfile(FrozenModel):
    """Architecture of a decoder-only transformer.

    Everything derived (parameters, KV bytes, matrix shapes) follows from these fields alone.
    """

    name: str
    """Name it is asked for by."""
    family: str
    """Architecture family, as the ``model_type`` of a Hugging Face ``config.json`` spells it."""
    source: str
    """Where the figures below come from."""
    dtype: DType
    """Type of activations, and of weights that are not quantised."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Its published weights. The first is what the model's name stands for (``quantization: auto``), the first of a
    format what that format stands for; absent: weights in ``dtype`` that are nowhere on record."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_hidden_layers: PositiveInt
    """Transformer layers, without multi-token-prediction layers."""
    num_mtp_layers: NonNegativeInt = 0
    """Multi-token-prediction layers that its checkpoint holds beside them, for speculative decoding."""
    num_attention_heads: PositiveInt
    """Query heads."""
    num_key_value_heads: PositiveInt
    """Key-value heads: as many as query heads in MHA, fewer in GQA, one in MQA."""
    head_dim: PositiveInt
    """Width of a query-key head; not always ``hidden_size / num_attention_heads``. With MLA the sum of the
    rotary part and the rest."""
    intermediate_size: PositiveInt
    """Width of the dense MLP."""
    vocab_size: PositiveInt
    """Rows of the embedding."""
    max_position_embeddings: PositiveInt
    """Longest context the model is made for, tokens."""
    tie_word_embeddings: bool
    """Whether the LM head is the embedding matrix."""
    is_gated_mlp: bool = True
    """Whether the MLP has a gate (SwiGLU, GeGLU: three matrices) or not (two)."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm has a weight a channel, LayerNorm a weight and a bias."""
    num_norms_per_layer: PositiveInt = 2
    """Norms of width ``hidden_size`` in a layer."""
    has_embedding_norm: bool = False
    """Whether the embedding is normalised (BLOOM)."""
    qk_norm: Literal["none", "per_head", "full"] = "none"
    """Weights of query and key norms: none, one head wide (Qwen3), or as wide as all heads (MiniMax)."""
    has_qkv_bias: bool = False
    """Whether query, key and value projections have biases."""
    has_output_bias: bool = False
    """Whether the output projection of attention has a bias."""
    has_mlp_bias: bool = False
    """Whether the matrices of the dense MLP have biases."""
    has_lm_head_bias: bool = False
    """Whether the LM head has a bias."""
    has_attention_sinks: bool = False
    """Whether each query head has a learned sink (gpt-oss)."""
    has_attention_gate: bool = False
    """Whether the output of attention is scaled by a gate as wide as the queries (Qwen3-Next, Qwen3.5)."""
    has_parallel_attention: bool = False
    """Whether attention and MLP read the same input and are summed once (Falcon, GPT-J): one all-reduce a
    layer instead of two."""
    num_learned_positions: NonNegativeInt = 0
    """Rows of a learned position embedding; 0 for rotary or ALiBi."""
    sliding_window: PositiveInt | None = None
    """Tokens a sliding layer sees (window or attention chunk)."""
    num_sliding_layers: NonNegativeInt = 0
    """Layers that see only the window."""
    moe: MixtureOfExperts | None = None
    """Routed experts; null for a dense model."""
    mla: LatentAttention | None = None
    """Latent attention; null for MHA, GQA and MQA."""
    indexer: SparseIndexer | None = None
    """Sparse-attention indexer; null for dense attention."""
    linear_attention: LinearAttention | None = None
    """Layers with a state instead of keys and values; null where every layer has attention."""
    num_parameters_advertised: PositiveFloat | None = None
    """Size as its publisher states it, parameters; for comparison only."""
    num_parameters_nominal: PositiveFloat | None = None
    """Replaces the count derived from the architecture, for worked examples ("a 70 B model"); all of it
    counts as linear weights. Dense models only."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelProfile:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"num_key_value_heads must divide num_attention_heads (={self.num_attention_heads})")
        if self.num_sliding_layers > self.num_hidden_layers:
            raise ValueError(f"num_sliding_layers must not exceed num_hidden_layers (={self.num_hidden_layers})")
        if (self.sliding_window is None) != (self.num_sliding_layers == 0):
            raise ValueError("sliding_window and num_sliding_layers go together")
        if self.linear_attention is not None and self.linear_attention.num_layers >= self.num_hidden_layers:
            raise ValueError(f"linear_attention.num_layers must be below num_hidden_layers (={self.num_hidden_layers})")
        if self.linear_attention is not None and (self.mla is not None or self.num_sliding_layers):
            raise ValueError("linear_attention goes with neither mla nor sliding layers")
        if self.indexer is not None and self.mla is None:
            raise ValueError("indexer needs mla, whose low-rank query it reads")
        repositories = [each.repository for each in self.checkpoints if each.repository is not None]
        if len(set(repositories)) < len(repositories):
            raise ValueError("checkpoints must name each repository once")
        if self.num_parameters_nominal is not None and self.moe is not None:
            raise ValueError("num_parameters_nominal is for dense models: leave out moe or the nominal size")
        return self

    @property
    def stored(self) -> Checkpoint:
        """The checkpoint that the model's name stands for."""
        return self.checkpoints[0] if self.checkpoints else Checkpoint(format="none", source=self.source)

    @property
    def huggingface_id(self) -> str | None:
        """Repository of the checkpoint that the model's name stands for, None where there is none."""
        return self.stored.repository

    def checkpoint(self, quantization: str) -> Checkpoint | None:
        """Return the first published checkpoint of a format; None where none is on record."""
        return next((each for each in self.checkpoints if each.format == quantization), None)

    def formats_of(self, part: Part, quantization: WeightFormatName) -> dict[WeightFormatName, float]:
        """Return the formats that a part has when the model runs in one, each with its share of the part's layers.

        As the checkpoint of that format stores it. Where there is none, all of it in the format, but what the stored
        checkpoint keeps in 16 bit although it is quantised (of gpt-oss all but the experts).
        """
        known = self.checkpoint(quantization)
        if known is not None:
            return known.formats(part, self.layers_with(part))
        if quantization in WIDE_FORMATS or quantization.startswith("gguf") or self.stored.is_wide:
            return {quantization: 1.0}
        stored = self.stored.formats(part, self.layers_with(part))
        return {quantization: 1.0} if any(each not in WIDE_FORMATS for each in stored) else {"none": 1.0}

    def mtp_format(self, quantization: str) -> str:
        """Return the format of the layers for multi-token prediction where the model runs in one."""
        known = self.checkpoint(quantization)
        return quantization if known is None else known.mtp_format

    def layers_with(self, part: Part) -> tuple[int, ...]:
        """Return the layers, counted from 0, that have a part; all where the model does not say which."""
        layers = range(self.num_hidden_layers)
        if part in ("experts", "shared_experts"):
            return tuple(layer for layer in layers if self.is_moe_layer(layer)) or tuple(layers)
        if part == "mlp":
            return tuple(layer for layer in layers if not self.is_moe_layer(layer)) or tuple(layers)
        return tuple(layers)

    def is_moe_layer(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has experts."""
        moe = self.moe
        if moe is None or layer < moe.first_dense_layers or layer in moe.dense_layers:
            return False
        return (layer + 1) % moe.layer_step == 0

    @property
    def num_moe_layers(self) -> int:
        """Layers that have experts."""
        return 0 if self.moe is None else sum(map(self.is_moe_layer, range(self.num_hidden_layers)))

    @property
    def num_dense_layers(self) -> int:
        """Layers that have a dense MLP."""
        return self.num_hidden_layers - self.num_moe_layers

    @property
    def num_linear_layers(self) -> int:
        """Layers with a state instead of keys and values."""
        return 0 if self.linear_attention is None else self.linear_attention.num_layers

    @property
    def num_attention_layers(self) -> int:
        """Layers with attention: those that have keys and values."""
        return self.num_hidden_layers - self.num_linear_layers

    @property
    def attention_share(self) -> float:
        """Share of the layers that have attention."""
        return self.num_attention_layers / self.num_hidden_layers

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one element of ``dtype``."""
        return _ELEMENT_BYTES[self.dtype]

    def attention_gemms(self, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of attention on one rank; KV heads are replicated when ranks outnumber them.

        Raises:
            InputError: The heads do not divide over the ranks.
        """
        return self._attention_gemms(tensor_parallel_size)

    def linear_attention_gemms(self, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of a linear-attention layer on one rank; empty where there is none.

        Raises:
            InputError: The heads do not divide over the ranks.
        """
        linear = self.linear_attention
        if linear is None:
            return []
        return model_shapes.linear_attention_gemms(
            hidden_size=self.hidden_size,
            mixed_width=linear.mixed_width,
            num_value_heads=linear.num_value_heads,
            value_head_dim=linear.value_head_dim,
            tensor_parallel_size=tensor_parallel_size,
        )

    def mixing_gemms(self, tensor_parallel_size: int = 1) -> list[tuple[int, Gemm]]:
        """Return the projections of attention and of linear attention on one rank, each with its layers."""
        full = [(self.num_attention_layers, gemm) for gemm in self.attention_gemms(tensor_parallel_size)]
        linear = [(self.num_linear_layers, gemm) for gemm in self.linear_attention_gemms(tensor_parallel_size)]
        return full + linear

    def state_bytes(self, tensor_parallel_size: int = 1) -> float:
        """Return the bytes that one sequence keeps on one rank in all linear-attention layers, whatever its length.

        A matrix a value head, and the convolution's last inputs in ``dtype`` (vLLM, ``MambaStateShapeCalculator``).
        """
        linear = self.linear_attention
        if linear is None:
            return 0.0
        seen = linear.mixed_width * (linear.conv_kernel - 1) * self.bytes_per_element
        layer = linear.state_elements * linear.state_element_bytes + seen
        return linear.num_layers * layer / tensor_parallel_size

    def _attention_gemms(self, tensor_parallel_size: int) -> list[Gemm]:
        if self.mla is None:
            return model_shapes.attention_gemms(
                hidden_size=self.hidden_size,
                num_heads=self.num_attention_heads,
                num_kv_heads=self.num_key_value_heads,
                head_dim=self.head_dim,
                has_qkv_bias=self.has_qkv_bias,
                has_output_bias=self.has_output_bias,
                has_gate=self.has_attention_gate,
                tensor_parallel_size=tensor_parallel_size,
            )
        gemms = model_shapes.latent_attention_gemms(
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            tensor_parallel_size=tensor_parallel_size,
            **self.mla.model_dump(),
        )
        if self.indexer is not None:
            gemms += model_shapes.indexer_gemms(
                hidden_size=self.hidden_size,
                query_width=self.mla.q_lora_rank or self.hidden_size,
                num_heads=self.indexer.num_heads,
                head_dim=self.indexer.head_dim,
            )
        return gemms

    def mlp_gemms(self, layer: int = 0, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the matrices that every token passes in one layer, on one rank.

        The MLP of a dense layer; the router and the shared expert (all shared experts as one) of a layer with
        experts, whose routed experts are `expert_gemms`.
        """
        moe = self.moe
        if moe is None or not self.is_moe_layer(layer):
            return self._mlp(self.intermediate_size, self.has_mlp_bias, tensor_parallel_size, "mlp")
        router = Gemm("router", moe.num_experts, self.hidden_size, "replicated", moe.has_router_bias)
        if not moe.num_shared_experts:
            return [router]
        width = moe.num_shared_experts * moe.shared_intermediate_size
        shared = self._mlp(width, False, tensor_parallel_size, "shared_experts")
        gate = [Gemm("shared_gate", 1, self.hidden_size, "replicated")]
        return [router, *shared, *(gate if moe.has_shared_expert_gate else [])]

    def expert_gemms(self, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the matrices of one routed expert on one rank; empty for a dense model."""
        if self.moe is None:
            return []
        width, has_bias = self.moe.moe_intermediate_size, self.moe.has_expert_bias
        return self._mlp(width, has_bias, tensor_parallel_size, "experts")

    def _mlp(self, width: int, has_bias: bool, tensor_parallel_size: int, part: Part) -> list[Gemm]:
        return model_shapes.mlp_gemms(
            hidden_size=self.hidden_size,
            intermediate_size=width,
            is_gated=self.is_gated_mlp,
            part=part,
            has_bias=has_bias,
            tensor_parallel_size=tensor_parallel_size,
        )

    def lm_head_gemm(self, tensor_parallel_size: int = 1) -> Gemm:
        """Return the LM head on one rank; its weights are the embedding's when they are tied."""
        rows = -(-self.vocab_size // tensor_parallel_size)
        return Gemm("lm_head", rows, self.hidden_size, "column", self.has_lm_head_bias)

    @property
    def num_parameters(self) -> float:
        """All parameters: embeddings, head, attention, MLPs, experts, routers, norms and biases.

        Exact, an integer, unless ``num_parameters_nominal`` replaces it.
        """
        if self.num_parameters_nominal is not None:
            return self.num_parameters_nominal
        gemms = sum(count * gemm.num_parameters for count, gemm in self.all_gemms())
        head = 0 if self.tie_word_embeddings else self.lm_head_gemm().num_weights
        head_bias = self.vocab_size if self.has_lm_head_bias else 0
        return gemms + self.num_embedding_parameters + head + head_bias + self._num_norm_parameters

    @property
    def num_active_parameters(self) -> float:
        """Parameters that one token uses: all but the routed experts it does not visit; with embeddings."""
        if self.moe is None:
            return self.num_parameters
        unused = self.moe.num_experts - self.moe.num_experts_per_tok
        expert = sum(gemm.num_parameters for gemm in self.expert_gemms())
        return self.num_parameters - self.num_moe_layers * unused * expert

    @property
    def num_linear_parameters(self) -> float:
        """Weights of attention, MLPs and experts: what quantised checkpoints may store in few bits."""
        if self.num_parameters_nominal is not None:
            return self.num_parameters_nominal
        return sum(count * gemm.num_weights for count, gemm in self.all_gemms() if gemm.part is not None)

    @property
    def num_unquantised_parameters(self) -> float:
        """Parameters that every quantisation but GGUF leaves 16-bit: embeddings, head, norms, routers, biases."""
        return self.num_parameters - self.num_linear_parameters

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of the token embedding and of learned positions."""
        return (self.vocab_size + self.num_learned_positions) * self.hidden_size

    def gemms_beside_experts(self, tensor_parallel_size: int = 1) -> list[tuple[int, Gemm]]:
        """Return every matrix of the layers but the routed experts, on one rank, with how many layers hold it."""
        counted = self.mixing_gemms(tensor_parallel_size)
        num_moe = self.num_moe_layers
        for count, is_moe in ((self.num_hidden_layers - num_moe, False), (num_moe, True)):
            if not count:
                continue
            layer = next(each for each in range(self.num_hidden_layers) if self.is_moe_layer(each) is is_moe)
            counted += [(count, gemm) for gemm in self.mlp_gemms(layer, tensor_parallel_size)]
        return counted

    def all_gemms(self) -> list[tuple[int, Gemm]]:
        """Return every matrix of the layers with how often the model holds it."""
        num_experts = self.moe.num_experts if self.moe else 0
        return self.gemms_beside_experts() + [(self.num_moe_layers * num_experts, gemm) for gemm in self.expert_gemms()]

    @property
    def _num_norm_parameters(self) -> int:
        wide = self.num_hidden_layers * self.num_norms_per_layer + 1 + self.has_embedding_norm
        layer = 0
        if self.qk_norm == "per_head":
            layer += 2 * self.head_dim
        elif self.qk_norm == "full":
            layer += (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        if self.mla is not None:
            layer += self.mla.kv_lora_rank + (self.mla.q_lora_rank or 0)
        if self.indexer is not None:
            layer += 2 * self.indexer.head_dim
        if self.has_attention_sinks:
            layer += self.num_attention_heads
        if self.linear_attention is not None:
            layer_states = self.num_linear_layers * self.linear_attention.num_small_parameters
            return wide * self.hidden_size + self.num_attention_layers * layer + layer_states
        return wide * self.hidden_size * (2 if self.norm == "layer" else 1) + self.num_hidden_layers * layer

    def kv_bytes_per_token_per_layer(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the KV bytes of one token in one layer on one rank.

        ``2 * heads * head_dim * bytes``, key-value heads replicated when ranks outnumber them. MLA caches
        ``(kv_lora_rank + qk_rope_head_dim) * bytes`` on every rank. A sliding layer counts
        like a full one.

        Args:
            bytes_per_element: Bytes of one cached element: 2 for FP16, 1 for FP8, 0.5 for INT4.
            tensor_parallel_size: Ranks; 1 gives the whole model.

        Raises:
            InputError: The key-value heads do not divide over the ranks.
        """
        if self.mla is None:
            heads = model_shapes.kv_heads_per_rank(self.num_key_value_heads, tensor_parallel_size)
            return 2 * heads * self.head_dim * bytes_per_element
        latent = (self.mla.kv_lora_rank + self.mla.qk_rope_head_dim) * bytes_per_element
        return latent + (model_shapes.indexer_key_bytes(self.indexer.head_dim) if self.indexer else 0)

    def kv_bytes_per_token(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the KV bytes of one token in all layers on one rank; arguments as one layer's."""
        return self.num_attention_layers * self.kv_bytes_per_token_per_layer(bytes_per_element, tensor_parallel_size)
