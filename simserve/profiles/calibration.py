"""Which measurement a hardware profile was fitted to, and how much of it there was. Fits nothing."""

from __future__ import annotations

from pydantic import Field

from simserve.validation import FrozenModel


class Calibration(FrozenModel):
    """A run of ``simserve calibrate kernels``."""

    run: str = Field(min_length=1)
    """Name of its folder."""
    device: str = Field(min_length=1)
    """Device, as its driver names it."""
    date: str = Field(min_length=1)
    """Day of the measurement."""
    software: str = Field(min_length=1)
    """PyTorch and driver."""
    is_complete: bool
    """Whether every planned call was measured."""
    ended: str = Field(min_length=1)
    """How the measurement ended: complete, budget, interrupted, killed, out of memory, device failed."""
    num_points: int = Field(ge=0)
    """Calls that were measured."""
    num_planned: int = Field(ge=0)
    """Calls that were planned."""
    not_fitted: tuple[str, ...] = ()
    """Kinds of kernels without enough calls, which stay at class efficiencies or at the curves of the base profile."""

    @property
    def note(self) -> str:
        """What a reader of a result should know: empty for a complete measurement."""
        if self.is_complete:
            return ""
        share = f"{self.num_points} of {self.num_planned} calls"
        missing = f"; not fitted: {', '.join(self.not_fitted)}" if self.not_fitted else ""
        return f"the hardware profile was fitted to an incomplete measurement ({self.ended}, {share}){missing}"
