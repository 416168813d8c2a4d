"""What joins the layers of a model beside one sum: several residual streams, inputs of layers, copies, n-grams.

Also the shapes of their matrices. Knows no seconds and no engine.
"""

from __future__ import annotations

from pydantic import PositiveInt

from simserve.profiles.model_blocks import Gemm
from simserve.validation import FrozenModel


def stream_gemms(
    hidden_size: int, num_streams: int, *, is_independent: bool = False, rank: int | None = None
) -> list[Gemm]:
    """Return the matrices that mix the residual streams of one layer, on every rank.

    One before attention and one before the MLP: weights for collapsing, expanding and, unless streams are independent,
    mixing n streams, computed from all (``DeepseekV4HyperConnection``, ``HYV4HyperConnection``). Stored in FP32.

    With a rank, weights for each channel of each stream come from a low-rank product, and the first of its two matrices
    also gives those that expand (``GatedResidual`` of vLLM's models/qwen4_exp). Stored in 16 bit.
    """
    if rank is not None:
        return [gemm for place in ("attention", "mlp") for gemm in _gated_gemms(hidden_size, num_streams, rank, place)]
    rows, width = (2 if is_independent else 2 + num_streams) * num_streams, num_streams * hidden_size
    return [Gemm(name, rows, width, "replicated", has_bias=True) for name in ("attention_streams", "mlp_streams")]


def _gated_gemms(hidden_size: int, num_streams: int, rank: int, place: str) -> list[Gemm]:
    width = num_streams * hidden_size
    return [
        Gemm(f"{place}_streams", rank + num_streams, width, "replicated"),
        Gemm(f"{place}_streams_up", width, rank, "replicated"),
    ]


def num_stream_parameters(
    hidden_size: int, num_streams: int, num_layers: int, *, is_independent: bool, rank: int | None
) -> int:
    """Return the parameters of residual streams outside the matrices of layers and the norms of one stream.

    Scales beside each matrix that mixes streams (three, two if independent), and the mixing before the head. With a
    rank: norms of the other streams, and the low-rank product before the head, which expands nothing.
    """
    if rank is not None:
        return (num_streams - 1) * hidden_size * (2 * num_layers + 1) + 2 * rank * num_streams * hidden_size
    scales = 2 if is_independent else 3
    return 2 * scales * num_layers + num_streams * num_streams * hidden_size + num_streams + 1


class NgramMemory(FrozenModel):
    """Embeddings of n-grams that some layers look up, gate by the hidden state and add to it (Qwen3.8-Flash-Next).

    ``Qwen4ExpTextPLELayer`` of transformers: each token takes one row for each head, which hash the tokens before it;
    their rows give a value and a key for each residual stream. A convolution follows. vLLM keeps the table on the
    GPUs, split over the tensor-parallel ranks, unless it is told to leave it with the host (models/qwen4_exp).
    The last inputs of the convolution, 0.2 MB a sequence, are not counted.
    """

    num_layers: PositiveInt = 1
    """Layers that look up n-grams, each in a table of its own."""
    num_rows: PositiveInt
    """Rows of a table."""
    row_width: PositiveInt
    """Width of a row."""
    num_heads: PositiveInt
    """Rows that a token takes."""
    conv_kernel: PositiveInt = 4
    """Tokens that the convolution sees."""

    def table_gemm(self, tensor_parallel_size: int = 1) -> Gemm:
        """Return a table as one rank holds it: a matrix by which nothing is multiplied."""
        rows = -(-self.num_rows // tensor_parallel_size)
        return Gemm("ngram_table", rows, self.row_width, "column", part="ngram_table")

    def gemms(self, hidden_size: int, num_streams: int) -> list[Gemm]:
        """Return the projections of looked-up rows in one layer, on every rank: keys of all streams, and the value."""
        width = self.num_heads * self.row_width
        return [
            Gemm("ngram_keys", num_streams * hidden_size, width, "replicated"),
            Gemm("ngram_values", hidden_size, width, "replicated"),
        ]

    def passes(self, num_streams: int) -> int:
        """Return the vectors of ``hidden_size`` moved per token in such a layer.

        Keys and streams read, gated values written and read, and the convolution's outputs read and added: six for
        each stream (``ple_gate`` and ``ple_conv`` of vLLM's models/qwen4_exp/nvidia/ops).
        """
        return 6 * num_streams

    def num_small_parameters(self, hidden_size: int, num_streams: int) -> int:
        """Parameters per layer outside its matrices: norms of keys, streams and the convolution's inputs, its taps."""
        return (3 + self.conv_kernel) * num_streams * hidden_size


class LayerInputs(FrozenModel):
    """An embedding with a part for each layer, which is gated by the hidden state and added to it (Gemma 4 E).

    ``Gemma4Model`` and ``Gemma4DecoderLayer`` of vLLM, which keeps the table on the GPUs, split by vocabulary.
    """

    width: PositiveInt
    """Width of one part."""
    vocab_size: PositiveInt
    """Rows of the embedding."""

    def num_embedding_parameters(self, num_layers: int) -> int:
        """Return the number of elements of the table."""
        return self.vocab_size * self.width * num_layers

    def gemms(self, hidden_size: int, num_layers: int) -> list[tuple[int, Gemm]]:
        """Return the matrices and their numbers, on every rank: one for all parts together, and those of each layer.

        vLLM splits the first over the ranks and gathers it, which is not modelled.
        """
        return [
            (1, Gemm("layer_inputs", num_layers * self.width, hidden_size, "replicated")),
            *((num_layers, gemm) for gemm in self.layer_gemms(hidden_size)),
        ]

    def layer_gemms(self, hidden_size: int) -> list[Gemm]:
        """Return the gate and the projection of one layer."""
        return [
            Gemm("layer_input_gate", self.width, hidden_size, "replicated"),
            Gemm("layer_input", hidden_size, self.width, "replicated"),
        ]


class AlternatingUpdates(FrozenModel):
    """Copies of the hidden state: a layer computes one and predicts the others; and a low-rank path (Gemma 3n).

    AltUp (arXiv 2301.13310) and LAuReL (arXiv 2411.07501): ``Gemma3nAltUp`` and ``Gemma3nLaurelBlock`` of vLLM's
    gemma3n.py. There each copy has one projection before the first layer and one after the last.
    """

    num_inputs: PositiveInt
    """Copies of the hidden state."""
    laurel_rank: PositiveInt
    """Width of the low-rank path parallel to attention."""

    def gemms(self, hidden_size: int, num_layers: int) -> list[tuple[int, Gemm]]:
        """Return the matrices and their numbers, on every rank: those of the copies, and those of each layer.

        vLLM splits the low-rank path over the ranks and adds an all-reduce, which is not modelled.
        """
        around = [(1, gemm) for gemm in self.around_gemms(hidden_size)]
        return around + [(num_layers, gemm) for gemm in self.layer_gemms(hidden_size)]

    def around_gemms(self, hidden_size: int) -> list[Gemm]:
        """Return the projections of the copies before the first layer and after the last."""
        rows = (self.num_inputs - 1) * hidden_size
        return [Gemm(name, rows, hidden_size, "replicated") for name in ("altup_copies", "altup_sums")]

    def layer_gemms(self, hidden_size: int) -> list[Gemm]:
        """Return the router of the copies and the low-rank path of one layer."""
        return [
            Gemm("altup_router", self.num_inputs, hidden_size, "replicated"),
            Gemm("laurel_in", self.laurel_rank, hidden_size, "replicated"),
            Gemm("laurel_out", hidden_size, self.laurel_rank, "replicated"),
        ]

    @property
    def passes(self) -> int:
        """Vectors of ``hidden_size`` moved per token in a layer to predict the copies, to correct them by what the
        layer computed, and to add its own input to the copies that it did not compute."""
        predicted, corrected, added = 2 * self.num_inputs + 1, 2 * self.num_inputs + 3, 2 * (self.num_inputs - 1)
        return predicted + corrected + added

    def num_small_parameters(self, hidden_size: int) -> int:
        """Parameters per layer outside its matrices: coefficients, a scale, norms of router and low-rank path."""
        return self.num_inputs**2 + self.num_inputs**3 + 3 * hidden_size
