"""Another pace for a replica: the same tables, every entry longer by one factor."""

from __future__ import annotations

from dataclasses import replace

from simserve.engine.state import Replica
from simserve.engine.tables import StepTimes


def slowed(times: StepTimes, factor: float) -> StepTimes:
    """Return step times that are ``factor`` times as long, as lists."""
    return replace(
        times,
        decode_base=[factor * each for each in times.decode_base],
        decode_slope=[factor * each for each in times.decode_slope],
        token_seconds=[factor * each for each in times.token_seconds],
        token_seconds_beyond=factor * times.token_seconds_beyond,
        sequence_seconds=[factor * each for each in times.sequence_seconds],
        decode_attention_base=[factor * each for each in times.decode_attention_base],
        prefill_request_seconds=factor * times.prefill_request_seconds,
        prefill_pair_seconds=factor * times.prefill_pair_seconds,
        prefill_context_seconds=factor * times.prefill_context_seconds,
        lora_step_seconds=factor * times.lora_step_seconds,
        lora_adapter_seconds=factor * times.lora_adapter_seconds,
        lora_token_seconds=factor * times.lora_token_seconds,
        shared_seconds=[factor * each for each in times.shared_seconds],
        shared_seconds_beyond=factor * times.shared_seconds_beyond,
    )


def use_times(replica: Replica, times: StepTimes) -> None:
    """Let the steps of a replica take ``times`` from the next one on; between `complete` and `plan` only."""
    replica.times = times
    replica.decode_base = times.decode_base
    replica.decode_slope = times.decode_slope
    replica.token_seconds = times.token_seconds
    replica.sequence_seconds = times.sequence_seconds
    replica.decode_attention_base = times.decode_attention_base
    replica.shared_seconds = times.shared_seconds
