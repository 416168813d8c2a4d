"""What an engine version costs in time: its host work, and how good its kernels are. Blocks of an engine profile."""

from __future__ import annotations

from pydantic import Field

from simserve.units import BytesPerSecond, FlopsPerSecond, Seconds
from simserve.validation import FrozenModel


class Host(FrozenModel):
    """Time of the CPU side that a step and a request cost."""

    seconds_per_step: Seconds
    """Scheduling and input preparation of a step, seconds."""
    seconds_per_parallel_step: Seconds = Field(default=0.0, ge=0)
    """What that takes longer where several ranks have to agree on the step, seconds."""
    seconds_per_request: Seconds
    """Bookkeeping, sampling and output a request of a step, seconds."""
    seconds_per_nucleus_request: Seconds = Field(default=0.0, ge=0)
    """What a request adds that samples by top-k or top-p, seconds: its logits are sorted."""
    overlap: float = Field(ge=0, le=1)
    """Share of both that asynchronous scheduling hides behind the GPU; 0: the engine has none."""
    eager_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """Least time of a layer in a step outside CUDA graphs, seconds: the host launches its kernels no faster."""
    eager_gap_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """How long a layer without routed experts leaves the GPU idle in such a step, seconds: gaps between many short
    kernels. Long kernels of experts hide them."""
    eager_seconds_per_expert_layer: Seconds = Field(default=0.0, ge=0)
    """What routed experts add to that, seconds, where their many small kernels are launched one by one (Triton)."""
    eager_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are launched so; empty: all."""
    frontend_latency: Seconds = Field(gt=0)
    """From arrival to the scheduler: HTTP, queue hand-over, seconds."""
    tokenization_per_token: Seconds = Field(default=0.0, ge=0)
    """What a token of the prompt adds to that: splitting text into tokens, seconds."""
    enforced_eager_seconds_per_layer: Seconds | None = Field(default=None, ge=0)
    """`eager_seconds_per_layer` with `enforce_eager`, which switches compilation off too; absent: as without."""
    source: str
    """Where the figures come from."""


class Kernels(FrozenModel):
    """How good the engine's kernels are, and which weight formats they run."""

    compute_efficiency: float = Field(gt=0, le=1.5)
    """Scale on the hardware profile's kernel efficiencies; 1: as there."""
    shared_decode_groups: tuple[int, ...] | None = None
    """Query heads a key-value head for which a decode step reads keys once for all of them; absent: any number."""
    fuses_activation_quantisation: bool = False
    """Whether norms and activation functions write 8-bit products' inputs themselves, where weights have one scale a
    tensor or a channel; otherwise a kernel of its own does."""
    narrow_kv_slowdown: float = Field(default=1.0, ge=1)
    """Times as long a decode step takes a key of an 8-bit KV cache as the fitted kernels, which are newer."""
    max_bandwidth: BytesPerSecond | None = Field(default=None, gt=0)
    """Memory bandwidth beyond which the kernels gain nothing; absent: the GPU's."""
    max_flops: FlopsPerSecond | None = Field(default=None, gt=0)
    """FLOP/s of 16-bit products beyond which the kernels gain nothing; absent: the GPU's."""
    quantizations: tuple[str, ...]
    """Weight formats the version can run."""
    source: str
    """Where scale and formats come from."""
