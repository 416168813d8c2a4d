"""StepTimes: the arrays of seconds that the engine reads. `perf` fills them; the engine never asks why.

Every entry is seconds of one step of one replica (all its tensor- and pipeline-parallel ranks together).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of a step, by what is in it.

    A step that only decodes ``n`` sequences, whose tokens already in the KV cache sum to ``S``, takes::

        decode_base[n] + decode_slope[n] * S

    A step with ``c`` prefill tokens of ``r`` requests beside ``n`` decoding ones (``n`` may be 0) takes::

        token_seconds(x) + sequence_seconds[n + r] + decode_attention_base[n]
          + decode_slope[n] * mixed_decode_factor * S
          + prefill_request_seconds * r + prefill_pair_seconds * P + prefill_context_seconds * C

    ``x = max(n + c, p * largest chunk)`` with ``p`` the pipeline size (for ``p = 1`` that is ``n + c``).
    ``P`` sums the attended pairs of the chunks, ``c_i * done_i + c_i * (c_i + 1) / 2``; ``C`` sums the keys
    they read, ``done_i + c_i``; ``done_i`` are the tokens of request i computed before. With ``p > 1``, P and C
    are ``max(sum / p, largest of one chunk)``.

    Where the batch has requests with LoRA adapters, a step takes besides::

        lora_step_seconds + lora_adapter_seconds * a + lora_token_seconds * t

    ``a`` adapters are in the batch (in a step of prompts alone: among those), ``t`` tokens of the step are of requests
    with one.

    Ranks that step together (`simserve.engine.data_parallel`) each take that long, and all of them ``shared_seconds``
    of the x of every rank together.

    Attributes:
        decode_base: Index n = 0..max_num_seqs, ``decode_base[0] == 0``.
        decode_slope: Index n = 0..max_num_seqs; seconds a context token.
        token_seconds: Index x = 0..len-1, everything that depends on the tokens of a step, host time included;
            beyond the last entry, ``token_seconds[-1] + token_seconds_beyond * (x - (len - 1))``.
        token_seconds_beyond: Seconds a token beyond the table.
        sequence_seconds: Index 0..max_num_seqs, LM head, sampling, host time a request.
        decode_attention_base: Index n = 0..max_num_seqs; the part of decode attention that does not depend
            on the contexts; 0 at n = 0.
        mixed_decode_factor: Times as long that a context token takes in a step that prefills too.
        prefill_request_seconds: Seconds a prefilling request in the step.
        prefill_pair_seconds: Seconds an attended pair.
        prefill_context_seconds: Seconds a key read.
        swap_block_seconds: Seconds that copying a KV block to or from host memory adds to the step that does it.
        lora_step_seconds: Seconds that adapters add to a step with any.
        lora_adapter_seconds: Seconds of each adapter.
        lora_token_seconds: Seconds of each token that passes one.
        shared_seconds: Index x = 0..len-1, what ranks in lockstep do together: routed experts and the collectives
            around them; empty without such ranks.
        shared_seconds_beyond: Seconds a token beyond that table.
    """

    decode_base: Sequence[float]
    decode_slope: Sequence[float]
    token_seconds: Sequence[float]
    token_seconds_beyond: float
    sequence_seconds: Sequence[float]
    decode_attention_base: Sequence[float]
    prefill_request_seconds: float
    prefill_pair_seconds: float
    prefill_context_seconds: float
    mixed_decode_factor: float = 1.0
    swap_block_seconds: float = 0.0
    lora_step_seconds: float = 0.0
    lora_adapter_seconds: float = 0.0
    lora_token_seconds: float = 0.0
    shared_seconds: Sequence[float] = ()
    shared_seconds_beyond: float = 0.0

    def as_lists(self) -> StepTimes:
        """Return the same with plain lists of floats, which the interpreted kernel reads fastest."""
        return replace(
            self,
            decode_base=_floats(self.decode_base),
            decode_slope=_floats(self.decode_slope),
            token_seconds=_floats(self.token_seconds),
            sequence_seconds=_floats(self.sequence_seconds),
            decode_attention_base=_floats(self.decode_attention_base),
            shared_seconds=_floats(self.shared_seconds),
        )


def _floats(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values]
