"""The LM head with the sampling behind it: seconds by the sequences that are sampled. Knows no layer."""

from __future__ import annotations

from simserve.perf.collectives import all_gather_seconds
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import COMMUNICATION, elementwise_parts
from simserve.perf.stage import LOGIT_BYTES, Stage, wide_projection

SAMPLING_PASSES = 4
"""Times sampling moves the logits: cast, softmax, cumulate, pick."""


def head_parts(stage: Stage, sequences: Array) -> Array:
    """Return the seconds by part of LM head, gathering of logits and sampling, by sequences sampled."""
    model, num_ranks = stage.shape.model, stage.shape.tensor_parallel_size
    parts = wide_projection(stage, model.lm_head_gemm(num_ranks), sequences)
    logits = model.vocab_size * LOGIT_BYTES
    parts += elementwise_parts(SAMPLING_PASSES * logits, sequences, stage.machine, SAMPLING_PASSES)
    if num_ranks > 1:
        gathered = sequences * model.vocab_size * ACTIVATION_BYTES
        parts[COMMUNICATION] += all_gather_seconds(gathered, num_ranks, stage.shape.tensor_link)
    return parts
