"""A model: its architecture, its published checkpoints, its parameters, and its KV bytes per token.

Knows no hardware and no engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from simserve.profiles.attention_kinds import CompressedAttention, LatentAttention, SlidingHeads, SparseIndexer
from simserve.profiles.checkpoint import WIDE_FORMATS, Checkpoint, TunedWeights, WeightFormatName
from simserve.profiles.encoders import AudioTower, VisionTower
from simserve.profiles.model_blocks import AttentionLayers, Gemm, MixtureOfExperts, Part, SharedKeys
from simserve.profiles.residual_blocks import (
    AlternatingUpdates,
    LayerInputs,
    NgramMemory,
    num_stream_parameters,
    stream_gemms,
)
from simserve.profiles.state_blocks import (
    WITH_ATTENTION,
    WITH_STATE,
    LinearAttention,
    Mamba1,
    Mamba2,
    ShortConvolution,
    check_pattern,
    layers_of,
)
from simserve.validation import FrozenModel

DType = Literal["bf16", "fp16", "fp32"]
_LETTERS: dict[Part, str] = {
    "attention": WITH_ATTENTION,
    "attention_output": WITH_ATTENTION,
    "linear_attention": WITH_STATE,
    "mlp": "-",
    "shared_experts": "E",
    "experts": "E",
}
"""Parts of a checkpoint -> the letters of layers with that part in ``layer_pattern``."""
_MLP_PREFIXES: dict[Part, str] = {"mlp": "", "shared_experts": "shared_", "experts": "expert_"}
_ELEMENT_BYTES: dict[DType, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


class ModelProfile(FrozenModel):
    """Architecture of a decoder-only transformer.

    Everything derived (parameters, KV bytes, matrix shapes) follows from these fields alone.
    """

    name: str
    """Name by which it is requested."""
    family: str
    """Architecture family, as the ``model_type`` of a Hugging Face ``config.json`` spells it."""
    architecture: str | None = None
    """Class that its ``config.json`` names first under ``architectures``, by which engines choose their code; absent:
    not on record."""
    source: str
    """Where the figures below come from."""
    shape_of: str | None = None
    """Profile from which the architecture is taken if these weights have none of their own; absent: this profile's."""
    is_named_like: bool = False
    """Whether ``shape_of`` is inferred from the name alone."""
    is_assumed: bool = False
    """Whether its architecture is unknown and assumed to be Llama's with other sizes."""
    dtype: DType
    """Type of activations, and of weights that are not quantised."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Its published weights. The first is the one that the model's name refers to (``quantization: auto``), the first
    of a format the one that the format refers to; absent: weights in ``dtype`` that are not on record."""
    tuned: tuple[TunedWeights, ...] = ()
    """Weights of the same shape that were fine-tuned from it and are also published in other formats."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_hidden_layers: PositiveInt
    """Transformer layers, without layers for multi-token prediction."""
    num_mtp_layers: NonNegativeInt = 0
    """Further layers in its checkpoint for multi-token prediction, used in speculative decoding."""
    num_attention_heads: PositiveInt
    """Query heads."""
    num_key_value_heads: PositiveInt
    """Key-value heads: as many as query heads in MHA, fewer in GQA, one in MQA."""
    head_dim: PositiveInt
    """Width of a query-key head; not always ``hidden_size / num_attention_heads``. With MLA: the rotary part plus the
    rest."""
    v_head_dim: PositiveInt | None = None
    """Width of a value head; null: as wide as keys. With MLA it is in ``mla``."""
    intermediate_size: PositiveInt
    """Width of the dense MLP."""
    vocab_size: PositiveInt
    """Rows of the embedding."""
    max_position_embeddings: PositiveInt
    """Longest context that the model supports, tokens."""
    tie_word_embeddings: bool
    """Whether the LM head is the embedding matrix."""
    is_gated_mlp: bool = True
    """Whether the MLP has a gate (SwiGLU, GeGLU: three matrices) or not (two)."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm has one weight per channel, LayerNorm a weight and a bias."""
    num_norms_per_layer: PositiveInt = 2
    """Norms of width ``hidden_size`` per layer."""
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
    has_attention_sinks: bool | Literal["sliding"] = False
    """Whether each query head has a learned sink (gpt-oss); ``sliding``: only in layers with a window (MiMo-V2)."""
    has_attention_gate: bool = False
    """Whether the output of attention is scaled by a gate as wide as the queries (Qwen3-Next, Qwen3.5), or with MLA as
    the values (Kimi-K3)."""
    has_head_gate: bool = False
    """Whether the output of attention is scaled by a gate of one number per head (Step-3.5)."""
    query_rank: PositiveInt | None = None
    """Width of a low-rank query with a norm, where keys and values have heads (Step3); null: full rank. With MLA it is
    in ``mla``."""
    has_value_projection: bool = True
    """Whether values have a projection; otherwise layers without a window use the keys before their norm (Gemma 4)."""
    has_parallel_attention: bool = False
    """Whether attention and MLP read the same input and are summed once (Falcon, GPT-J): one all-reduce per layer
    instead of two."""
    num_learned_positions: NonNegativeInt = 0
    """Rows of a learned position embedding; 0 for rotary or ALiBi."""
    sliding_window: PositiveInt | None = None
    """Tokens visible to a sliding layer (window or attention chunk)."""
    num_sliding_layers: NonNegativeInt = 0
    """Layers that see only the window."""
    sliding_heads: SlidingHeads | None = None
    """Heads of those layers if they differ; null: the same as in other layers."""
    layer_pattern: str | None = None
    """One letter per layer if each layer is attention (``*``), Mamba (``M``), both side by side (``H``), experts
    (``E``) or a dense MLP (``-``), as in Nemotron-H's ``hybrid_override_pattern``; null: every layer mixes tokens and
    has an MLP."""
    moe: MixtureOfExperts | None = None
    """Routed experts; null for a dense model."""
    mla: LatentAttention | None = None
    """Latent attention; null for MHA, GQA and MQA."""
    indexer: SparseIndexer | None = None
    """Sparse-attention indexer; null for dense attention."""
    compressed_attention: CompressedAttention | None = None
    """Compressed attention (DeepSeek-V4); null for every other kind."""
    linear_attention: LinearAttention | None = None
    """Layers with a state instead of keys and values; null if every layer has attention."""
    short_convolution: ShortConvolution | None = None
    """Layers that mix a few neighbouring tokens (LFM2); null if none."""
    shared_keys: SharedKeys | None = None
    """Layers that attend to the keys and values of other layers (Gemma 4 E); null: every layer has its own."""
    layer_inputs: LayerInputs | None = None
    """A second embedding whose parts go to the layers (Gemma 4 E); null if none."""
    vision: VisionTower | None = None
    """Encoder of images; null for a text-only model, or if its tower is not described."""
    audio: AudioTower | None = None
    """Encoder of audio; null for a model without audio input, or if its encoder is not described."""
    mamba: Mamba2 | None = None
    """The Mamba-2 layers of ``layer_pattern``; null if none."""
    mamba1: Mamba1 | None = None
    """Its ``M`` layers if they are of the first Mamba (Jamba); null: Mamba-2."""
    alternating_updates: AlternatingUpdates | None = None
    """Copies of the hidden state that layers update in turn (Gemma 3n); null: one."""
    num_residual_streams: PositiveInt = 1
    """Copies of the hidden state between layers, mixed before and after each sublayer (mHC of DeepSeek-V4)."""
    has_independent_streams: bool = False
    """Whether those copies keep their own sums and are not mixed with each other (iHC of Hy4)."""
    stream_rank: PositiveInt | None = None
    """Width of the low-rank product that weights each channel of the copies (Qwen3.8-Flash-Next); null: one weight per
    copy."""
    ngrams: NgramMemory | None = None
    """Embeddings of n-grams (Qwen3.8-Flash-Next); null: none."""
    residual_block_layers: PositiveInt | None = None
    """Layers per block whose output later sublayers attend to (attention residuals of Kimi-K3, arXiv 2603.15031); null:
    every sublayer adds to one sum."""
    num_other_parameters: NonNegativeInt = 0
    """Parameters of the whole model that no other field covers, such as scales of a router."""
    num_parameters_advertised: PositiveFloat | None = None
    """Size stated by its publisher, parameters; for comparison only."""
    num_parameters_nominal: PositiveFloat | None = None
    """Replaces the count derived from the architecture, for worked examples ("a 70 B model"); all parameters then count
    as linear weights. Dense models only."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelProfile:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"num_key_value_heads must divide num_attention_heads (={self.num_attention_heads})")
        if self.num_sliding_layers > self.num_hidden_layers:
            raise ValueError(f"num_sliding_layers must not exceed num_hidden_layers (={self.num_hidden_layers})")
        if (self.sliding_window is None) != (self.num_sliding_layers == 0):
            raise ValueError("sliding_window and num_sliding_layers go together")
        for name in ("linear_attention", "short_convolution"):
            if (linear := getattr(self, name)) is not None and linear.num_layers >= self.num_hidden_layers:
                raise ValueError(f"{name}.num_layers must be below num_hidden_layers (={self.num_hidden_layers})")
        repositories = [each.repository for each in self.checkpoints if each.repository is not None]
        if len(set(repositories)) < len(repositories):
            raise ValueError("checkpoints must name each repository once")
        if self.num_parameters_nominal is not None and self.moe is not None:
            raise ValueError("num_parameters_nominal is for dense models: leave out moe or the nominal size")
        self._check_kinds()
        return self

    def _check_kinds(self) -> None:
        kinds = (
            "mla",
            "compressed_attention",
            "linear_attention",
            "short_convolution",
            "layer_pattern",
            "sliding_window",
        )
        given = [name for name in kinds if getattr(self, name) is not None]
        if self.stream_rank is not None and self.num_residual_streams == 1:
            raise ValueError("stream_rank needs num_residual_streams above 1")
        if len(given) > 1 and given != ["mla", "linear_attention"]:
            raise ValueError(f"{given[0]} and {given[1]} do not go together: there is no formula for such a model")
        if self.query_rank is not None and (given or self.has_attention_gate or self.has_head_gate):
            raise ValueError("query_rank is for layers of plain attention, without a gate or a window")
        if self.sliding_heads is not None and self.sliding_window is None:
            raise ValueError("sliding_heads needs sliding_window")
        if self.shared_keys is not None:
            self.shared_keys.check(self.num_hidden_layers, self.num_sliding_layers, self.sliding_heads is not None)
        if self.has_attention_sinks == "sliding" and self.sliding_heads is None:
            raise ValueError("has_attention_sinks: sliding needs sliding_heads")
        if self.indexer is not None and given and given[0] not in ("mla", "compressed_attention", "linear_attention"):
            raise ValueError(f"indexer does not go with {given[0]}")
        if self.compressed_attention is not None:
            if len(self.compressed_attention.ratios) != self.num_hidden_layers:
                raise ValueError(f"compressed_attention.ratios must have one entry a layer (={self.num_hidden_layers})")
            if (self.compressed_attention.indexed_ratio in self.compressed_attention.ratios) != bool(self.indexer):
                raise ValueError("indexer and layers of compressed_attention.indexed_ratio go together")
        mambas = [each for each in (self.mamba, self.mamba1) if each is not None]
        if (pattern := self.layer_pattern) is not None or mambas:
            check_pattern(pattern or "", self.num_hidden_layers, len(mambas), has_experts=self.moe is not None)

    @property
    def catalogue_name(self) -> str:
        """Name of the profile from which its architecture comes."""
        return self.shape_of or self.name

    @property
    def stored(self) -> Checkpoint:
        """The checkpoint that the model's name refers to."""
        return self.checkpoints[0] if self.checkpoints else Checkpoint(format="none", source=self.source)

    @property
    def tuned_checkpoints(self) -> tuple[Checkpoint, ...]:
        """Published checkpoints of fine-tuned weights, in formats other than their first one."""
        return tuple(checkpoint for each in self.tuned for checkpoint in each.checkpoints)

    @property
    def huggingface_id(self) -> str | None:
        """Repository of the checkpoint that the model's name refers to; None if there is none."""
        return self.stored.repository

    def checkpoint(self, quantization: str) -> Checkpoint | None:
        """Return the first published checkpoint of a format; None if none is on record."""
        return next((each for each in self.checkpoints if each.format == quantization), None)

    def formats_of(self, part: Part, quantization: WeightFormatName) -> dict[WeightFormatName, float]:
        """Return the formats of a part when the model runs in one format, each with its share of the part's layers.

        Follows the checkpoint of that format. Without one, everything has the format, except what the stored quantised
        checkpoint keeps in 16 bit (in gpt-oss, all but the experts).
        """
        known = self.checkpoint(quantization)
        if known is not None:
            return self.formats_in(known, part)
        if part == "ngram_table" and not quantization.startswith("gguf"):
            return {"none": 1.0}  # looked up, so that no engine rounds it when it loads
        if quantization in WIDE_FORMATS or quantization.startswith("gguf") or self.stored.is_wide:
            return {quantization: 1.0}
        stored = self.formats_in(self.stored, part)
        return {quantization: 1.0} if any(each not in WIDE_FORMATS for each in stored) else {"none": 1.0}

    def formats_in(self, checkpoint: Checkpoint, part: Part) -> dict[WeightFormatName, float]:
        """Return the formats of a part in one of its checkpoints, each with its share of the layers with the part."""
        others = [each for each in checkpoint.other_formats if part in each.parts]
        if not others:
            return {checkpoint.format: 1.0}
        layers = self.layers_with(part)
        stored: dict[int, WeightFormatName] = dict.fromkeys(layers, checkpoint.format)
        for other in others:
            chosen = layers if other.layers is None else set(other.layers) & set(layers)
            stored |= dict.fromkeys(chosen, other.format)
        kinds = dict.fromkeys(stored.values())
        return {kind: sum(each == kind for each in stored.values()) / len(layers) for kind in kinds}

    def head_format(self, quantization: WeightFormatName) -> WeightFormatName | None:
        """Return the format of the LM head when the model runs in one; None: the embedding's, as of a tied head."""
        known = None if self.tie_word_embeddings else self.checkpoint(quantization)
        others = () if known is None else reversed(known.other_formats)
        return next((each.format for each in others if "lm_head" in each.parts), None)

    def mtp_format(self, quantization: str) -> str:
        """Return the format of the layers for multi-token prediction when the model runs in a given format."""
        known = self.checkpoint(quantization)
        return quantization if known is None else known.mtp_format

    def layers_with(self, part: Part) -> tuple[int, ...]:
        """Return the layers, counted from 0, that have a part; all layers if the model does not say."""
        layers = range(self.num_hidden_layers)
        if self.layer_pattern is not None:
            letters = _LETTERS.get(part, "")
            return tuple(layer for layer in layers if self.layer_pattern[layer] in letters) or tuple(layers)
        if part == "indexer" and self.indexer is not None:
            return tuple(layers[self.indexer.num_unsparse_layers :])
        if self.moe is None:
            return tuple(layers)
        if part not in ("experts", "shared_experts", "mlp"):
            return tuple(layers)
        # As `is_moe_layer` for each layer, which is too slow for searches.
        step = self.moe.layer_step
        first = -(-(self.moe.first_dense_layers + 1) // step) * step - 1
        routed = [layer for layer in layers[first::step] if layer not in self.moe.dense_layers]
        return tuple(sorted(set(layers).difference(routed)) if part == "mlp" else routed) or tuple(layers)

    def is_moe_layer(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has experts."""
        moe = self.moe
        if self.layer_pattern is not None:
            return self.layer_pattern[layer] == "E"
        if moe is None or layer < moe.first_dense_layers or layer in moe.dense_layers:
            return False
        return (layer + 1) % moe.layer_step == 0

    @property
    def num_moe_layers(self) -> int:
        """Layers that have experts: a count of `is_moe_layer`, which itself is too slow for searches."""
        moe, count = self.moe, self.num_hidden_layers
        if moe is None or self.layer_pattern is not None:
            return 0 if moe is None or self.layer_pattern is None else self.layer_pattern.count("E")
        first = min(moe.first_dense_layers, count)
        dense = [each for each in set(moe.dense_layers) if first <= each < count and (each + 1) % moe.layer_step == 0]
        return count // moe.layer_step - first // moe.layer_step - len(dense)

    @property
    def num_dense_layers(self) -> int:
        """Layers that have a dense MLP."""
        if self.layer_pattern is not None:
            return self.layer_pattern.count("-")
        return self.num_hidden_layers - self.num_moe_layers

    @property
    def num_linear_layers(self) -> int:
        """Layers with a state instead of keys and values: linear attention, Mamba-2 or convolutions."""
        if self.layer_pattern is not None:
            return layers_of(self.layer_pattern, WITH_STATE)
        linear = self.linear_attention or self.short_convolution
        return 0 if linear is None else linear.num_layers

    @property
    def num_attention_layers(self) -> int:
        """Layers with attention, that is, with keys and values."""
        if self.layer_pattern is not None:
            return layers_of(self.layer_pattern, WITH_ATTENTION)
        return self.num_hidden_layers - self.num_linear_layers

    @property
    def attention_share(self) -> float:
        """Share of the layers that have attention."""
        return self.num_attention_layers / self.num_hidden_layers

    @property
    def linear_share(self) -> float:
        """Share of the layers that have a state instead of keys and values."""
        if self.layer_pattern is None:
            return 1.0 - self.attention_share
        return self.num_linear_layers / self.num_hidden_layers

    @property
    def assumption(self) -> str | None:
        """What a reader must know first if the architecture is assumed; None if it is known."""
        if self.is_named_like:
            stored = self.dtype if self.stored.format == "none" else self.stored.format
            return f"{self.name} is taken to have the architecture of {self.shape_of} and {stored} weights, by its name"
        if not self.is_assumed:
            return None
        return (
            f"the architecture {self.family!r} of {self.name} is not known: it is read as a Llama with other sizes, "
            "and its memory and times may be far off"
        )

    @property
    def rare_layers(self) -> str:
        """Layer types that few measured models have, in words; empty: none."""
        if self.is_assumed:
            return "models whose architecture is assumed"
        if self.mamba is not None or self.mamba1 is not None:
            return f"models with Mamba-{1 if self.mamba is None else 2} layers"
        if self.linear_attention is not None and self.linear_attention.has_channel_decay:
            return "models with Kimi Delta Attention"
        if self.linear_attention is not None and self.linear_attention.has_fixed_decay:
            return "models with lightning attention"
        if self.short_convolution is not None or self.layer_inputs is not None:
            return "models made for small devices"
        return "models with sparse attention" if self.indexer is not None and self.mla is None else ""

    @property
    def has_states(self) -> bool:
        """Whether a sequence keeps data of fixed size: states, or the window of compressed attention."""
        return self.num_linear_layers > 0 or self.compressed_attention is not None

    @property
    def has_split_layers(self) -> bool:
        """Whether each layer is either a token mixer or an MLP: one sublayer, one norm, one all-reduce."""
        return self.layer_pattern is not None

    @property
    def reductions_per_layer(self) -> float:
        """Sums over the ranks per layer: after attention and after MLP; one in split layers, two if side by side."""
        if self.layer_pattern is not None:
            return 1.0 + self.layer_pattern.count("H") / self.num_hidden_layers
        return 1.0 if self.has_parallel_attention else 2.0

    @property
    def attention_layers(self) -> tuple[AttentionLayers, ...]:
        """Groups of identical layers with attention, the group with the heads of this profile first."""
        heads = AttentionLayers(
            num_layers=self.num_attention_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim or self.head_dim,
            num_sliding_layers=self.num_sliding_layers,
            sliding_window=self.sliding_window,
            has_qkv_bias=self.has_qkv_bias,
            has_output_bias=self.has_output_bias,
            has_gate=self.has_attention_gate,
            has_head_gate=self.has_head_gate,
            has_value_projection=self.has_value_projection,
            has_sinks=self.has_attention_sinks is True,
            query_rank=self.query_rank,
            mla=self.mla,
            compressed=self.compressed_attention,
        )
        if self.compressed_attention is not None:
            return heads.by_ratio(self.compressed_attention, self.indexer)
        if self.sliding_heads is not None:
            return self._sliding_layers(heads, self.sliding_heads)
        heads = self._with_head_norms(heads)
        return (heads,) if self.indexer is None else heads.by_choice(self.indexer)

    def _with_head_norms(self, layers: AttentionLayers) -> AttentionLayers:
        normed = 1 if layers.shares_keys else 2
        heads = {"none": 0, "per_head": normed, "full": layers.num_heads + layers.num_kv_heads}[self.qk_norm]
        return replace(layers, head_norm_width=heads * layers.head_dim)

    def _sliding_layers(self, heads: AttentionLayers, sliding: SlidingHeads) -> tuple[AttentionLayers, ...]:
        windowed = replace(
            heads,
            num_layers=self.num_sliding_layers,
            num_heads=sliding.num_attention_heads,
            num_kv_heads=sliding.num_key_value_heads,
            head_dim=sliding.head_dim,
            v_head_dim=sliding.v_head_dim or sliding.head_dim,
            has_value_projection=True,
            has_sinks=bool(self.has_attention_sinks),
        )
        others = self.num_attention_layers - self.num_sliding_layers
        whole = replace(heads, num_layers=others, num_sliding_layers=0, sliding_window=None)
        groups: tuple[AttentionLayers, ...] = (whole, windowed) if others else (windowed,)
        groups = groups if self.shared_keys is None else self.shared_keys.parted(groups)
        return tuple(map(self._with_head_norms, groups))

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one element of ``dtype``."""
        return _ELEMENT_BYTES[self.dtype]

    def attention_gemms(self, tensor_parallel_size: int = 1, layers: AttentionLayers | None = None) -> list[Gemm]:
        """Return the projections of attention on one rank; KV heads are replicated when ranks outnumber them.

        Args:
            layers: Which of `attention_layers`; None: the first.

        Raises:
            InputError: The heads do not divide by the ranks.
        """
        return (layers or self.attention_layers[0]).gemms(tensor_parallel_size)

    @property
    def state_layers(self) -> LinearAttention | Mamba2 | Mamba1 | ShortConvolution | None:
        """Description of its layers with a state; None if there are none."""
        return self.linear_attention or self.mamba or self.mamba1 or self.short_convolution

    def linear_attention_gemms(self, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of a layer with a state on one rank; empty if there is none."""
        kind = self.state_layers
        return [] if kind is None else kind.gemms(self.hidden_size, tensor_parallel_size)

    def mixing_gemms(self, tensor_parallel_size: int = 1) -> list[tuple[int, Gemm]]:
        """Return the projections of attention, linear attention and Mamba-2 on one rank, with numbers of layers."""
        attention = [
            (layers.num_layers, gemm)
            for layers in self.attention_layers
            for gemm in self.attention_gemms(tensor_parallel_size, layers)
        ]
        linear = [(self.num_linear_layers, gemm) for gemm in self.linear_attention_gemms(tensor_parallel_size)]
        streams = [(self.num_hidden_layers, gemm) for gemm in self.stream_gemms()]
        inputs = [] if self.layer_inputs is None else self.layer_inputs.gemms(self.hidden_size, self.num_hidden_layers)
        copies = self.alternating_updates
        updates = [] if copies is None else copies.gemms(self.hidden_size, self.num_hidden_layers)
        ngrams: list[tuple[int, Gemm]] = []
        if self.ngrams is not None:
            own = self.ngrams.gemms(self.hidden_size, self.num_residual_streams)
            ngrams = [(self.ngrams.num_layers, gemm) for gemm in own]
        return attention + linear + streams + inputs + updates + ngrams

    def stream_gemms(self) -> list[Gemm]:
        """Return the matrices that mix the residual streams of one layer, on every rank; empty with one stream."""
        if self.num_residual_streams == 1:
            return []
        independent, rank = self.has_independent_streams, self.stream_rank
        return stream_gemms(self.hidden_size, self.num_residual_streams, is_independent=independent, rank=rank)

    @property
    def residual_passes(self) -> float:
        """Vectors of ``hidden_size`` moved per token to mix residuals around a sublayer; 0: one sum, as usual.

        For n streams 3 n + 2: read for the weights and for their sum, which is written, and read and written with the
        output; n more with a rank, as they are written after their norm. For blocks, the mean number of blocks before a
        layer, which the norm's kernel reads besides the running sum (vLLM, models/kimi_k3/nvidia/ops/attn_res.py).
        """
        if self.residual_block_layers is not None:
            return (-(-self.num_hidden_layers // self.residual_block_layers) + 1) / 2
        passes = 3.0 if self.stream_rank is None else 4.0
        return 0.0 if self.num_residual_streams == 1 else passes * self.num_residual_streams + 2

    def state_bytes(self, tensor_parallel_size: int = 1) -> float:
        """Return the bytes that one sequence keeps on one rank in all layers, independent of its length.

        Linear attention: a matrix per value head; Mamba-2: one per head; both: the convolution's last inputs in
        ``dtype`` (vLLM, ``MambaStateShapeCalculator``). Compressed attention: its window, on every rank.
        """
        kept = sum(layers.num_layers * layers.state_bytes for layers in self.attention_layers)
        linear = self.state_layers
        if linear is None:
            return kept
        seen = linear.mixed_width * (linear.conv_kernel - 1) * self.bytes_per_element
        layer = linear.state_elements * linear.state_element_bytes + seen
        return self.num_linear_layers * layer / tensor_parallel_size

    def mlp_gemms(self, layer: int = 0, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the matrices that every token passes in one layer, on one rank.

        The MLP of a dense layer; in a layer with experts the router and the shared expert (all shared experts as one).
        Routed experts are in `expert_gemms`.
        """
        moe = self.moe
        if not self._has_mlp(layer):
            return []
        if moe is None or not self.is_moe_layer(layer):
            wide = self.shared_keys.mlp_width(layer, self.num_hidden_layers) if self.shared_keys else None
            return self._mlp(wide or self.intermediate_size, self.has_mlp_bias, tensor_parallel_size, "mlp")
        router = Gemm("router", moe.num_choices, self.hidden_size, "replicated", moe.has_router_bias)
        latent = [] if moe.latent_size is None else self._latent_gemms(moe.latent_size)
        if not moe.num_shared_experts:
            return [router, *latent]
        width = moe.num_shared_experts * moe.shared_intermediate_size
        shared = self._mlp(width, False, tensor_parallel_size, "shared_experts")
        gate = [Gemm("shared_gate", 1, self.hidden_size, "replicated")]
        return [router, *latent, *shared, *(gate if moe.has_shared_expert_gate else [])]

    def _latent_gemms(self, width: int) -> list[Gemm]:
        """Return the projections to and from the width of routed experts, on every rank (SGLang, ``nemotron_h.py``)."""
        return [
            Gemm("latent_in", width, self.hidden_size, "replicated", part="shared_experts"),
            Gemm("latent_out", self.hidden_size, width, "replicated", part="shared_experts"),
        ]

    def expert_gemms(self, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the matrices of one routed expert on one rank; empty for a dense model."""
        if self.moe is None:
            return []
        width, has_bias = self.moe.moe_intermediate_size, self.moe.has_expert_bias
        return self._mlp(width, has_bias, tensor_parallel_size, "experts", self.moe.latent_size)

    def _mlp(
        self, width: int, has_bias: bool, tensor_parallel_size: int, part: Part, hidden_size: int | None = None
    ) -> list[Gemm]:
        """Return the two matrices of one MLP or expert on one rank: fused ``gate_up`` (or ``up``) and ``down``.

        Names mark the matrices of experts and shared experts. A width that the ranks do not divide is padded, as in
        engines.
        """
        prefix, outer = _MLP_PREFIXES[part], hidden_size or self.hidden_size
        own = -(-width // tensor_parallel_size)
        name, first = ("gate_up", 2 * own) if self.is_gated_mlp else ("up", own)
        return [
            Gemm(prefix + name, first, outer, "column", has_bias, part=part),
            Gemm(prefix + "down", outer, own, "row", has_bias, part=part),
        ]

    def lm_head_gemm(self, tensor_parallel_size: int = 1) -> Gemm:
        """Return the LM head on one rank; if tied, its weights are the embedding's."""
        rows = -(-self.vocab_size // tensor_parallel_size)
        return Gemm("lm_head", rows, self.hidden_size, "column", self.has_lm_head_bias)

    @property
    def num_parameters(self) -> float:
        """All parameters: embeddings, head, attention, MLPs, experts, routers, norms and biases.

        An exact integer, unless ``num_parameters_nominal`` replaces it.
        """
        if self.num_parameters_nominal is not None:
            return self.num_parameters_nominal
        gemms = sum(count * gemm.num_parameters for count, gemm in self.all_gemms())
        head = 0 if self.tie_word_embeddings else self.lm_head_gemm().num_weights
        head_bias = self.vocab_size if self.has_lm_head_bias else 0
        return gemms + self.num_embedding_parameters + head + head_bias + self._num_norm_parameters

    @property
    def num_active_parameters(self) -> float:
        """Parameters that one token uses, with embeddings: all but the routed experts that it does not visit.

        And but tables of n-grams, and experts for images.
        """
        idle = (*self.table_gemms(), *self.image_gemms())
        used = self.num_parameters - sum(count * gemm.num_parameters for count, gemm in idle)
        if self.moe is None:
            return used
        unused = self.moe.num_experts - self.moe.num_experts_per_tok
        expert = sum(gemm.num_parameters for gemm in self.expert_gemms())
        return used - self.num_moe_layers * unused * expert

    @property
    def num_linear_parameters(self) -> float:
        """Weights of attention, MLPs and experts: what quantised checkpoints may store below 16 bit."""
        if self.num_parameters_nominal is not None:
            return self.num_parameters_nominal
        return sum(count * gemm.num_weights for count, gemm in self.all_gemms() if gemm.part is not None)

    @property
    def num_unquantised_parameters(self) -> float:
        """Parameters that every quantisation except GGUF keeps in 16 bit: embeddings, head, norms, routers, biases."""
        return self.num_parameters - self.num_linear_parameters

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of the token embedding, the embedding of layer inputs, and learned positions."""
        inputs = 0 if self.layer_inputs is None else self.layer_inputs.num_embedding_parameters(self.num_hidden_layers)
        return (self.vocab_size + self.num_learned_positions) * self.hidden_size + inputs

    def gemms_beside_experts(self, tensor_parallel_size: int = 1) -> list[tuple[int, Gemm]]:
        """Return every matrix of the layers except routed experts, on one rank, each with its number of layers."""
        counted = self.mixing_gemms(tensor_parallel_size)
        for layer, count in self.mlp_kinds():
            counted += [(count, gemm) for gemm in self.mlp_gemms(layer, tensor_parallel_size)]
        return counted

    def table_gemms(self, tensor_parallel_size: int = 1) -> list[tuple[int, Gemm]]:
        """Return the tables of n-grams on one rank, with their number; empty if there are none."""
        return [] if self.ngrams is None else [(self.ngrams.num_layers, self.ngrams.table_gemm(tensor_parallel_size))]

    def image_gemms(self, tensor_parallel_size: int = 1) -> list[tuple[int, Gemm]]:
        """Return the matrices that only tokens of images visit, on one rank, and how often each occurs."""
        moe, layers = self.moe, self.num_moe_layers
        if moe is None or moe.image_intermediate_size is None:
            return []
        router = Gemm("image_router", moe.num_choices, self.hidden_size, "replicated", moe.has_router_bias)
        expert = self._mlp(moe.image_intermediate_size, moe.has_expert_bias, tensor_parallel_size, "experts")
        return [(layers, router), *((layers * moe.num_experts, gemm) for gemm in expert)]

    def mlp_kinds(self) -> list[tuple[int, int]]:
        """Return one layer of each kind of MLP (dense, with experts) and the number of such layers."""
        counts = ((False, self.num_dense_layers), (True, self.num_moe_layers))
        layers = range(self.num_hidden_layers)
        if self.shared_keys is not None and self.shared_keys.intermediate_size is not None:
            return [(0, layers[-1] + 1 - self.shared_keys.num_layers), (layers[-1], self.shared_keys.num_layers)]
        return [
            (next(layer for layer in layers if self._has_mlp(layer) and self.is_moe_layer(layer) is is_moe), count)
            for is_moe, count in counts
            if count
        ]

    def _has_mlp(self, layer: int) -> bool:
        return self.layer_pattern is None or self.layer_pattern[layer] in "E-"

    def all_gemms(self) -> list[tuple[int, Gemm]]:
        """Return every matrix of the layers with the number of times it occurs."""
        num_experts = self.moe.num_experts if self.moe else 0
        experts = [(self.num_moe_layers * num_experts, gemm) for gemm in self.expert_gemms()]
        return self.gemms_beside_experts() + self.table_gemms() + self.image_gemms() + experts

    @property
    def _num_norm_parameters(self) -> int:
        """Norms, and everything else that is neither matrix, bias, embedding nor head."""
        wide = self.num_hidden_layers * self.num_norms_per_layer + 1 + self.has_embedding_norm
        count = wide * self.hidden_size * (2 if self.norm == "layer" else 1)
        count += sum(layers.num_layers * layers.num_small_parameters for layers in self.attention_layers)
        linear = self.state_layers
        if linear is not None:
            count += self.num_linear_layers * linear.num_small_parameters
        if self.num_residual_streams > 1:
            count += num_stream_parameters(
                self.hidden_size,
                self.num_residual_streams,
                self.num_hidden_layers,
                is_independent=self.has_independent_streams,
                rank=self.stream_rank,
            )
        if self.residual_block_layers is not None:
            count += (2 * self.num_hidden_layers + 1) * 2 * self.hidden_size  # a norm and a vector, and before the head
        if self.layer_inputs is not None:
            # A norm per layer, as wide as the layer, and one for the inputs.
            count += self.num_hidden_layers * self.hidden_size + self.layer_inputs.width
        if self.ngrams is not None:
            small = self.ngrams.num_small_parameters(self.hidden_size, self.num_residual_streams)
            count += self.ngrams.num_layers * small
        if (copies := self.alternating_updates) is not None:
            count += self.num_hidden_layers * copies.num_small_parameters(self.hidden_size)
        return count + self.num_other_parameters

    def kv_bytes_per_token_per_layer(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the KV bytes of one token in one layer on one rank; the mean if layers differ.

        See `AttentionLayers.kv_bytes_per_token` for layers of one kind.

        Args:
            bytes_per_element: Bytes of one cached element: 2 for FP16, 1 for FP8, 0.5 for INT4.
            tensor_parallel_size: Ranks; 1 gives the whole model.

        Raises:
            InputError: The key-value heads do not divide by the ranks.
        """
        groups = self.attention_layers
        if len(groups) == 1:
            return groups[0].kv_bytes_per_token(bytes_per_element, tensor_parallel_size)
        return self.kv_bytes_per_token(bytes_per_element, tensor_parallel_size) / self.num_attention_layers

    def kv_bytes_per_token(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the KV bytes of one token in all layers on one rank; arguments as for one layer."""
        return sum(
            layers.num_layers * layers.kv_bytes_per_token(bytes_per_element, tensor_parallel_size)
            for layers in self.attention_layers
        )
