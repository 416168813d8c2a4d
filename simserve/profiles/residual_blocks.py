"""What joins the layers of a model beside one sum: several residual streams, inputs of layers, copies in turn.

Also the shapes of their matrices. Knows no seconds and no engine.
"""

from __future__ import annotations

from pydantic import PositiveInt

from simserve.profiles.model_blocks import Gemm
from simserve.validation import FrozenModel


def stream_gemms(hidden_size: int, num_streams: int, *, is_independent: bool = False) -> list[Gemm]:
    """Return the matrices that mix the residual streams of one layer, on every rank.

    One before attention and one before the MLP: weights for collapsing, expanding and, unless streams are independent,
    mixing n streams, computed from all (``DeepseekV4HyperConnection``, ``HYV4HyperConnection``). Stored in FP32.
    """
    rows, width = (2 if is_independent else 2 + num_streams) * num_streams, num_streams * hidden_size
    return [Gemm(name, rows, width, "replicated", has_bias=True) for name in ("attention_streams", "mlp_streams")]


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
