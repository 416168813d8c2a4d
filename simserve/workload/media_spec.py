"""The `workload.images` and `workload.audio` blocks: images, videos and recordings in prompts. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simserve.units import Seconds
from simserve.validation import FrozenModel
from simserve.workload.length_spec import FixedLength, Length

Pixels = Annotated[int, Field(ge=1, le=100_000)]
PREPROCESS_SECONDS = 65e-3
"""CPU seconds to scale and cut a megapixel: for a 1920 x 1080 image, one trace of vLLM 0.19.1 with Qwen2.5-VL-7B on an
H100 shows 167 ms before the prompt is computed (vllm-project/vllm issue 41267), of which the tower takes some 30 ms by
a roofline. A single trace: an estimate."""
AUDIO_PREPROCESS_SECONDS = 240e-6
"""CPU seconds to compute the spectrogram of a second of audio: 7.1 ms for 30 s at 16,000 samples a second in NumPy on
one core of an AMD EPYC server. Excludes decoding and resampling: a low estimate."""


class ImageSize(FrozenModel):
    """A size of images, or of videos."""

    width: Pixels
    """Pixels."""
    height: Pixels
    """Pixels."""
    frames: Annotated[int, Field(ge=2, le=10_000)] | None = None
    """For a video: frames that the engine takes from it; Qwen3-VL's processor takes two a second. Absent: an image."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Relative frequency of this size."""


class ImagesSpec(FrozenModel):
    """Images in prompts: tokens by the rule of the model, and an encoder that runs on the same GPUs.

    The model's profile (`vision`) says what an image becomes. Its tokens come on top of `prompt_tokens`. A CPU scales
    it first; the step that admits its request encodes it.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests that have images. Leave it out with a trace that has the number of images."""
    count: Length = FixedLength(value=1)
    """Images of each of those requests. Leave it out with a trace that has the number of images."""
    sizes: Annotated[tuple[ImageSize, ...], Field(min_length=1, max_length=100)] | None = None
    """Sizes of images: `[{width: 1920, height: 1080}]`; with several, each image's size is drawn by weight. Absent:
    from the trace. A size with `frames` is a video, for models that take videos (Qwen3-VL, Qwen3.5)."""
    cached_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the images whose embedding is still in the engine's encoder cache, so that nothing encodes them."""
    preprocess_time: Seconds | None = None
    """CPU time to scale and cut a megapixel, before the prompt reaches the router. Absent: 65 ms, from one published
    trace (estimate); 0 if the client does it."""

    @property
    def preprocess_seconds(self) -> float:
        """CPU seconds a megapixel."""
        return PREPROCESS_SECONDS if self.preprocess_time is None else self.preprocess_time


class AudioSpec(FrozenModel):
    """Recordings in prompts: tokens by the rule of the model, and an encoder that runs on the same GPUs.

    The model's profile (`audio`) says what a recording becomes. Its tokens come on top of `prompt_tokens`. A CPU
    computes its spectrogram first; the step that admits its request encodes it.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests that have recordings. Leave it out with a trace that has them."""
    count: Length = FixedLength(value=1)
    """Recordings of each of those requests. Leave it out with a trace that has them."""
    seconds: Length | None = None
    """Length of a recording in whole seconds: `20`, or a distribution as in `prompt_tokens`. Absent: the trace's."""
    cached_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the recordings whose embedding is still in the engine's encoder cache, so that nothing encodes them."""
    preprocess_time: Seconds | None = None
    """CPU time per second of audio, before the prompt reaches the router. Absent: 240 us, only the spectrogram
    (estimate, without decoding and resampling)."""

    @property
    def preprocess_seconds(self) -> float:
        """CPU seconds a second of audio."""
        return AUDIO_PREPROCESS_SECONDS if self.preprocess_time is None else self.preprocess_time
