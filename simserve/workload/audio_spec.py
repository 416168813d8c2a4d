"""The `workload.audio` block: recordings in prompts. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simserve.units import Seconds
from simserve.validation import FrozenModel
from simserve.workload.length_spec import FixedLength, Length

PREPROCESS_SECONDS = 240e-6
"""CPU seconds to make the spectrogram of a second of audio: 7.1 ms of 30 s of 16,000 samples a second in NumPy on one
core of an AMD EPYC server. Decoding and resampling are not in it: an estimate from below."""


class AudioSpec(FrozenModel):
    """Recordings in prompts: tokens by the rule of the model, and an encoder that runs on the same GPUs.

    What a recording becomes stands in the model's profile (`audio`). Its tokens come on top of `prompt_tokens`. A CPU
    makes its spectrogram first; the step that admits its request encodes it.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests that have recordings. Beside a trace that says it: leave it out."""
    count: Length = FixedLength(value=1)
    """Recordings of each of those. Beside a trace that says it: leave it out."""
    seconds: Length | None = None
    """How long a recording is, whole seconds: `20`, or a distribution as of `prompt_tokens`. Absent: as a trace says
    it."""
    cached_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the recordings whose embedding the engine's encoder cache still has, so that nothing encodes them."""
    preprocess_time: Seconds | None = None
    """CPU time for a second of audio, before the prompt reaches the router. Absent: 240 us, the spectrogram alone
    (estimate, without decoding and resampling)."""

    @property
    def preprocess_seconds(self) -> float:
        """CPU seconds a second of audio."""
        return PREPROCESS_SECONDS if self.preprocess_time is None else self.preprocess_time
