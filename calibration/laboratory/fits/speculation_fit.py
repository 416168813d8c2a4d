"""Acceptance of drafts from measured acceptance lengths: a rate and its decay by position, or one rate for all.

Reads published acceptance lengths by number of drafts and says how well a fit to few drafts predicts more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.workload.acceptance import decaying_acceptance, expected_tokens

FITTED_UP_TO = 3
"""Most drafts to which lengths are fitted; longer ones are predicted."""
GOLDEN_FILE = "specdec_inferencex_golden_al.csv"
"""Table of measured acceptance lengths by number of drafts."""


@dataclass(frozen=True, slots=True)
class AcceptanceFit:
    """Conditional acceptance ``rate * decay ** position``; without decay, of independent drafts.

    Attributes:
        rate: Acceptance of the first draft.
        decay: Factor from one position to the next.
    """

    rate: float
    decay: float = 1.0

    def length(self, num_speculative_tokens: int) -> float:
        """Return the mean acceptance length for a number of drafts."""
        return expected_tokens(decaying_acceptance(self.rate, self.decay, num_speculative_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measured mean acceptance lengths of one model and drafting method.

    Attributes:
        model: The measured model.
        method: The drafter.
        thinking: Whether the model reasoned first.
        lengths: Drafts per step -> tokens per step.
    """

    model: str
    method: str
    thinking: bool
    lengths: Mapping[int, float]

    @property
    def fitted(self) -> dict[int, float]:
        """The lengths used in the fit."""
        return {drafts: length for drafts, length in self.lengths.items() if drafts <= FITTED_UP_TO}

    def errors(self, fit: AcceptanceFit) -> dict[int, float]:
        """Return the signed relative error of a fit for each number of drafts that was left out."""
        unseen = {drafts: length for drafts, length in self.lengths.items() if drafts > FITTED_UP_TO}
        return {drafts: fit.length(drafts) / length - 1.0 for drafts, length in sorted(unseen.items())}


def read_lengths(folder: Path) -> list[Series]:
    """Return the series of ``specdec_inferencex_golden_al.csv``, in the order of the file."""
    import pandas as pd

    table = pd.read_csv(folder / GOLDEN_FILE)
    keys = ["model", "method", "thinking_mode"]
    return [
        Series(
            model=str(model),
            method=str(method).rpartition("/")[2],
            thinking=mode == "thinking_on",
            lengths=dict(zip(rows["num_speculative_tokens"], rows["mean_acceptance_length"], strict=True)),
        )
        for (model, method, mode), rows in table.groupby(keys, sort=False)
    ]


def fit_acceptance(lengths: Mapping[int, float]) -> AcceptanceFit:
    """Return the rate and the decay whose lengths come nearest: least squares of relative errors.

    Args:
        lengths: Drafts per step -> mean acceptance length; at least two numbers of drafts.
    """
    from scipy.optimize import least_squares

    def errors(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return _residuals(AcceptanceFit(float(values[0]), float(values[1])), lengths)

    found = least_squares(errors, x0=[0.8, 0.9], bounds=([0.0, 0.0], [1.0, 1.0]))
    return AcceptanceFit(float(found.x[0]), float(found.x[1]))


def fit_independent(lengths: Mapping[int, float]) -> AcceptanceFit:
    """Return the one rate of independent drafts whose lengths come nearest: least squares of relative errors."""
    from scipy.optimize import least_squares

    def errors(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return _residuals(AcceptanceFit(float(values[0])), lengths)

    found = least_squares(errors, x0=[0.8], bounds=([0.0], [1.0]))
    return AcceptanceFit(float(found.x[0]))


def _residuals(fit: AcceptanceFit, lengths: Mapping[int, float]) -> NDArray[np.float64]:
    return np.array([fit.length(drafts) / length - 1.0 for drafts, length in lengths.items()])
