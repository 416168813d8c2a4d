"""The `deployment.fairness` block: whose turn it is where classes are tenants. Decides nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simserve.validation import FrozenModel


class FairnessSpec(FrozenModel):
    """Tenants take turns by their shares: requests wait in front of the replicas, in a queue for each class.

    When a replica has room, the class goes first that has had the least service for its share: prompt tokens plus
    twice the generated ones, counted as they are spent (the virtual token counter of Sheng et al., "Fairness in
    Serving Large Language Models", OSDI 2024). A class that was away does not save up turns. Room that a class does
    not use goes to the others.
    """

    shares: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=2)]
    """Share of the service by class, any scale, as long as all of them have something waiting: `{gold: 3, free: 1}`."""
    max_outstanding: Annotated[int, Field(ge=1)] | None = None
    """Most unanswered requests of a replica; more wait in front, where turns are taken. Fewer make turns fairer and
    batches smaller. Absent: its `max_num_seqs`."""
