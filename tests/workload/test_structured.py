"""Grammars: who waits for which, for how long, and that nobody else does."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.scenario.replication import grammar_waits, with_grammars
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import GRAMMAR_COSTS, StructuredOutputSpec
from tests.builders import make_closed_loop, make_specs


def waits(schema: list[int], times: list[float], replicas: int = 1) -> list[float]:
    """Return how long requests wait for grammars that take a second."""
    return grammar_waits(np.array(schema), np.array(times), 1.0, replicas).tolist()


def constrained(specs: RequestSpecs, replicas: int = 1, **keys: object) -> RequestSpecs:
    """Return requests, all of one schema unless ``keys`` say otherwise."""
    spec = validate(StructuredOutputSpec, {"compile_time": "1 s", **keys})
    return with_grammars(specs, spec, replicas, seed=1, replication=0).in_order_of_readiness()


def test_the_first_of_a_schema_waits_and_who_comes_meanwhile_waits_for_the_rest() -> None:
    """A second for the first, 0.7 s for the next, nothing for those behind; another schema has a wait of its own."""
    assert waits([0, 0, 0, 1, 0], [0.0, 0.3, 1.5, 2.0, 2.1]) == pytest.approx([1.0, 0.7, 0.0, 1.0, 0.0])


def test_every_replica_compiles_for_itself() -> None:
    """Of two replicas each compiles with the first request that it gets, for whose rest the third or fourth waits."""
    assert waits([0, 0, 0, 0], [0.0, 0.1, 0.4, 5.0], replicas=2) == pytest.approx([1.0, 1.0, 0.6, 0.0])
    assert waits([0, 0, 0, 0], [0.0, 0.3, 0.4, 0.5], replicas=2) == pytest.approx([1.0, 1.0, 0.6, 0.8])


def test_unconstrained_requests_wait_for_nobody() -> None:
    """They pass those that wait, in the rows as well."""
    assert waits([-1, 0, -1], [0.0, 0.1, 0.2]) == [0.0, 1.0, 0.0]
    specs = constrained(make_specs([0.0, 0.5, 3.0], [1, 2, 3], 5), share=0.5)

    assert specs.own_wait is not None
    ready = specs.arrival_time + specs.own_wait
    assert (np.diff(ready) >= 0).all()
    assert sorted(specs.prompt_tokens.tolist()) == [1, 2, 3]


def test_schemas_are_drawn_apart() -> None:
    """The share of constrained requests is as asked; of many schemas each is compiled once."""
    specs = constrained(make_specs(np.arange(4000) * 10.0, 5, 5), share=0.25, num_schemas=7)

    assert specs.own_wait is not None
    assert np.count_nonzero(specs.own_wait) == 7


def test_only_the_constrained_share_waits() -> None:
    """Of 4,000 that come at once a quarter has the schema, within four standard errors, and waits all of the time."""
    specs = constrained(make_specs([0.0] * 4000, 5, 5), share=0.25)

    assert specs.own_wait is not None
    assert set(specs.own_wait.tolist()) == {0.0, 1.0}
    assert np.count_nonzero(specs.own_wait) == pytest.approx(1000, abs=4 * (4000 * 0.25 * 0.75) ** 0.5)


def test_clients_who_wait_for_answers_compile_once_a_replica() -> None:
    """When they come is not known beforehand: only the first request on each of two replicas waits."""
    specs = constrained(make_closed_loop(3, [5] * 6, 5), replicas=2)

    assert specs.own_wait is not None
    assert specs.own_wait.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_costs_are_as_published_unless_they_are_given() -> None:
    """Each of the two alone."""
    given = validate(StructuredOutputSpec, {"backend": "outlines", "mask_time": "1 ms"})

    assert given.cost.mask_time == 1e-3
    assert given.cost.compile_time == GRAMMAR_COSTS["outlines"].compile_time
