"""How experts are placed and what hides the way to them, as the engines' flags say it."""

from __future__ import annotations

from simserve.planner.export.deployment import Deployment
from simserve.planner.export.flags import Flags


def overlap_words(deployment: Deployment, flags: Flags, flag: str) -> list[str]:
    """Return the switch that overlaps two micro-batches, where they are."""
    deployment.take("enable_two_batch_overlap")
    if not deployment.resolved.shape.enable_two_batch_overlap:
        return []
    return flags.render(flag, True, key="deployment.enable_two_batch_overlap")


def balancing_words(flags: Flags, flag: str, copies: int | str) -> list[str]:
    """Return that experts are placed by their load, with so many copies."""
    key = "deployment.num_redundant_experts"
    return flags.render("--enable-eplb", True, key=key) + flags.render(flag, copies, key=key)
