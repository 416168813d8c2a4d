"""How far servers are from their engine profiles, as replayed measurements say: the prior of `calibrate serving`."""

from __future__ import annotations

from simserve.calibrate.factors import Priors

PRIORS = Priors(
    widths={"gpu": 0.074, "host": 0.066, "prompts": 0.131, "batch": 0.237, "frontend": 0.221},
    misfit={"tpot": 0.057, "ttft": 0.113},
)
"""Empirical Bayes over 89 replayed servers of eight sources (docs/calibrated-servers.md, which also has the widths with
each source left out); unseen reports are not among them."""
