"""Layers that keep a state of fixed size instead of keys and values: linear attention, Mamba, convolutions.

Also the shapes of their matrices. Knows no seconds and no engine.
"""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt, model_validator

from simserve.profiles.model_blocks import Gemm, heads_per_rank
from simserve.validation import FrozenModel

WITH_ATTENTION, WITH_STATE = "*H", "MH"
"""Letters of `ModelProfile.layer_pattern` for layers with attention, and for layers with a state."""


def layers_of(pattern: str, letters: str) -> int:
    """Return how many layers of a pattern have one of the letters."""
    return sum(letter in letters for letter in pattern)


def check_pattern(pattern: str, num_layers: int, num_mambas: int, *, has_experts: bool) -> None:
    """Raise ValueError if a layer pattern does not match its model's layers and kinds of Mamba."""
    if bool(layers_of(pattern, WITH_STATE)) != bool(num_mambas) or num_mambas > 1:
        raise ValueError("mamba and layers M or H of layer_pattern go together")
    if len(pattern) != num_layers or set(pattern) - set("M*HE-"):
        raise ValueError(f"layer_pattern must be {num_layers} letters of M, *, H, E and -")
    if not layers_of(pattern, WITH_ATTENTION):
        raise ValueError("layer_pattern must have a layer of attention (* or H)")
    if ("E" in pattern) != has_experts:
        raise ValueError("moe and layers E of layer_pattern go together")


class Mamba2(FrozenModel):
    """Layers of a selective state space (Mamba-2, arXiv 2405.21060): a state of fixed size per sequence."""

    num_heads: PositiveInt
    """Heads, each with its own state."""
    head_dim: PositiveInt
    """Width of a head."""
    state_size: PositiveInt
    """Elements of the state for each channel."""
    num_groups: PositiveInt = 1
    """Groups of heads that share the input and output matrices of their states."""
    conv_kernel: PositiveInt = 4
    """Tokens that the convolution sees."""
    has_conv_bias: bool = True
    """Whether the convolution has biases."""
    has_gated_norm: bool = True
    """Whether the output is normalised with its gate, with separate weights (not in Falcon-H1 0.5B)."""
    chunk_size: PositiveInt = 128
    """Tokens of a prompt that the scan processes at once."""
    state_element_bytes: PositiveFloat = 4.0
    """Bytes of an element of the state."""

    @model_validator(mode="after")
    def _consistent(self) -> Mamba2:
        if self.num_heads % self.num_groups:
            raise ValueError(f"num_groups must divide num_heads (={self.num_heads})")
        return self

    @property
    def inner_width(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def mixed_width(self) -> int:
        """Width of the convolution's input: the heads, and the matrices of the groups."""
        return self.inner_width + 2 * self.num_groups * self.state_size

    @property
    def state_elements(self) -> int:
        """Elements of the state of one sequence in one layer."""
        return self.inner_width * self.state_size

    def gemms(self, hidden_size: int, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of one layer on one rank (``NemotronHMamba2Mixer`` of transformers).

        ``mamba_in`` gives the gate, the heads, the matrices of the groups and a time step per head. A rank holds at
        least one group (vLLM and SGLang copy groups if ranks outnumber them); small widths are rounded up.

        Raises:
            InputError: The heads do not divide by the ranks.
        """
        heads, width = heads_per_rank(self.num_heads, tensor_parallel_size), self.inner_width // tensor_parallel_size
        groups = -(-2 * self.num_groups * self.state_size // tensor_parallel_size)
        return [
            Gemm("mamba_in", 2 * width + groups + heads, hidden_size, "column", part="linear_attention"),
            Gemm("mamba_out", hidden_size, width, "row", part="linear_attention"),
        ]

    @property
    def num_small_parameters(self) -> int:
        """Parameters outside the matrices: convolution, decay, time step and skip per head, the gated norm."""
        norm = self.inner_width if self.has_gated_norm else 0
        return self.mixed_width * (self.conv_kernel + self.has_conv_bias) + 3 * self.num_heads + norm


class Mamba1(FrozenModel):
    """Layers of a selective state space with a state for every channel (Mamba, arXiv 2312.00752; used in Jamba).

    ``MambaMixer`` of vLLM's layers/mamba/mamba_mixer.py, with the norms that Jamba adds (``JambaMambaMixer`` of
    transformers): an input and a gate are projected, the input is convolved and yields a low-rank time step and the
    input and output matrices, the same for all channels.
    """

    inner_width: PositiveInt
    """Channels."""
    state_size: PositiveInt
    """Elements of the state for each channel."""
    time_step_rank: PositiveInt
    """Width of the low-rank time step."""
    conv_kernel: PositiveInt = 4
    """Tokens that the convolution sees."""
    has_conv_bias: bool = True
    """Whether the convolution has biases."""
    state_element_bytes: PositiveFloat = 4.0
    """Bytes of an element of the state."""

    @property
    def mixed_width(self) -> int:
        """Width of the convolution's input: the input, without its gate."""
        return self.inner_width

    @property
    def state_elements(self) -> int:
        """Elements of the state of one sequence in one layer."""
        return self.inner_width * self.state_size

    def gemms(self, hidden_size: int, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of one layer on one rank; channels that the ranks do not divide are rounded up."""
        width, parameters = -(-self.inner_width // tensor_parallel_size), self.time_step_rank + 2 * self.state_size
        return [
            Gemm("mamba_in", 2 * width, hidden_size, "column", part="linear_attention"),
            Gemm("mamba_parameters", parameters, width, "row", part="linear_attention"),
            Gemm("mamba_time_step", width, self.time_step_rank, "column", has_bias=True, part="linear_attention"),
            Gemm("mamba_out", hidden_size, width, "row", part="linear_attention"),
        ]

    @property
    def num_small_parameters(self) -> int:
        """Parameters outside the matrices: convolution, a decay per element of the state, skips, three norms."""
        convolution = self.inner_width * (self.conv_kernel + self.has_conv_bias)
        return convolution + self.state_elements + self.inner_width + self.time_step_rank + 2 * self.state_size


class LinearAttention(FrozenModel):
    """Layers of a gated delta rule (Gated DeltaNet): a fixed-size state per sequence instead of keys and values."""

    num_layers: PositiveInt
    """Layers of this kind; the others keep keys and values."""
    num_key_heads: PositiveInt
    """Heads of queries and keys."""
    num_value_heads: PositiveInt
    """Heads of values, outputs and states; a multiple of the key heads."""
    key_head_dim: PositiveInt
    """Width of a query and key head."""
    value_head_dim: PositiveInt
    """Width of a value head."""
    conv_kernel: PositiveInt = 4
    """Tokens that the convolution over queries, keys and values sees."""
    state_element_bytes: PositiveFloat = 4.0
    """Bytes of an element of the state: FP32, as in SGLang and in the configuration of Qwen3.5."""
    decay_rank: PositiveInt | None = None
    """Width of the low-rank projection of a decay for every channel of a key (Kimi Delta Attention, arXiv 2510.26692);
    null: a decay per head (Gated DeltaNet)."""
    has_low_rank_gate: bool = False
    """Whether the output gate also has a low-rank projection of that width (Kimi Linear), instead of one matrix."""
    has_full_rank_decay: bool = False
    """Whether there is a decay per channel, projected by one matrix (Ling 3)."""
    has_fixed_decay: bool = False
    """Whether each head has a token-independent decay, and no convolution (lightning attention, arXiv 2401.04658, in
    Ling 2.5 and MiniMax-01)."""
    has_bounded_decay: bool = False
    """Whether the decay has a lower bound, which the kernel FlashKDA requires (Kimi-K3, GLM-5.3-Flash)."""

    @model_validator(mode="after")
    def _consistent(self) -> LinearAttention:
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(f"num_key_heads must divide num_value_heads (={self.num_value_heads})")
        if self.decay_rank is None and self.has_low_rank_gate:
            raise ValueError("has_low_rank_gate needs decay_rank")
        if self.decay_rank is not None and self.has_full_rank_decay:
            raise ValueError("decay_rank and has_full_rank_decay do not go together")
        if self.has_fixed_decay and (self.has_channel_decay or self.conv_kernel > 1):
            raise ValueError("has_fixed_decay needs conv_kernel: 1, and no other decay")
        if self.has_bounded_decay and not self.has_channel_decay:
            raise ValueError("has_bounded_decay needs decay_rank or has_full_rank_decay")
        return self

    @property
    def has_channel_decay(self) -> bool:
        """Whether every channel of a key has a decay (Kimi Delta Attention), rather than every head."""
        return self.decay_rank is not None or self.has_full_rank_decay

    @property
    def mixed_width(self) -> int:
        """Width of queries, keys and values of all heads together, the convolution's input."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim

    @property
    def state_elements(self) -> int:
        """Elements of the state of one sequence in one layer: a matrix per value head."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim

    def gemms(self, hidden_size: int, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of one layer on one rank (``Qwen3NextGatedDeltaNet`` of transformers).

        ``linear_qkvz`` gives queries, keys, values and the gate of the output, ``linear_ba`` two numbers per value
        head, which low-bit checkpoints keep in 16 bit. Kimi Delta Attention has one number per head (``linear_b``) and
        a decay per channel, low-rank (as its gate may be; ``KimiDeltaAttention`` of vLLM's layers/kda.py) or from one
        matrix (``bailing_moe_v3.py`` of vLLM).

        Raises:
            InputError: The heads do not divide by the ranks.
        """
        heads = heads_per_rank(self.num_value_heads, tensor_parallel_size)
        width = heads * self.value_head_dim
        mixed = self.mixed_width // tensor_parallel_size + (0 if self.has_low_rank_gate else width)
        small: list[Gemm] = []
        if self.has_full_rank_decay:
            small = [
                Gemm("linear_b", heads, hidden_size, "column"),
                Gemm("linear_decay", width, hidden_size, "column", part="linear_attention"),
            ]
        elif self.decay_rank is not None:
            gates = 2 if self.has_low_rank_gate else 1
            small = [
                Gemm("linear_b", heads, hidden_size, "column"),
                Gemm("linear_gates_in", gates * self.decay_rank, hidden_size, "replicated"),
                Gemm("linear_gates", gates * width, self.decay_rank, "column"),
            ]
        elif not self.has_fixed_decay:
            small = [Gemm("linear_ba", 2 * heads, hidden_size, "column")]
        return [
            Gemm("linear_qkvz", mixed, hidden_size, "column", part="linear_attention"),
            *small,
            Gemm("linear_output", hidden_size, width, "row", part="linear_attention"),
        ]

    @property
    def num_small_parameters(self) -> int:
        """Parameters per layer outside its matrices: the convolution, decay and time step per head, the gated norm.

        Kimi Delta Attention has a time step per channel; lightning attention only the norm, as wide as all heads.
        """
        if self.has_fixed_decay:
            return self.num_value_heads * self.value_head_dim
        steps = self.num_value_heads * (self.key_head_dim if self.has_channel_decay else 1)
        return self.mixed_width * self.conv_kernel + self.num_value_heads + steps + self.value_head_dim


class ShortConvolution(FrozenModel):
    """Layers that only mix a few neighbouring tokens: a gated convolution as wide as the layer (LFM2).

    ``Lfm2ShortConv`` of transformers and vLLM's layers/mamba/short_conv.py: the hidden state is projected to two gates
    and the convolution's input, of which the last ``kernel - 1`` values are the state.
    """

    num_layers: PositiveInt
    """Layers of this kind; the others keep keys and values."""
    width: PositiveInt
    """Channels of the convolution: the width of the layer."""
    conv_kernel: PositiveInt = 3
    """Tokens that the convolution sees."""
    has_bias: bool = False
    """Whether the convolution and both projections have biases."""

    @property
    def mixed_width(self) -> int:
        """Channels of the convolution's input."""
        return self.width

    @property
    def state_elements(self) -> int:
        """Elements of a state besides the convolution's last inputs: none."""
        return 0

    @property
    def state_element_bytes(self) -> float:
        """Bytes of an element of such a state."""
        return 0.0

    def gemms(self, hidden_size: int, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of one layer on one rank; channels that the ranks do not divide are rounded up."""
        own = -(-self.width // tensor_parallel_size)
        return [
            Gemm("conv_in", 3 * own, hidden_size, "column", self.has_bias, part="linear_attention"),
            Gemm("conv_out", hidden_size, own, "row", self.has_bias, part="linear_attention"),
        ]

    @property
    def num_small_parameters(self) -> int:
        """Parameters per layer outside its matrices: the convolution."""
        return self.width * (self.conv_kernel + self.has_bias)
