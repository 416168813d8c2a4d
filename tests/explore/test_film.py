"""The film tab: what is set beside the run, and what the film then shows."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from simserve.explore.film import film
from simserve.explore.queries import Against, FilmQuery


def _never(_finished: int, _all: int) -> None:
    """Let a run take as long as it takes."""


def shown(**values: Any) -> dict[str, Any]:
    """Return the answer of the tab."""
    return film(FilmQuery(num_requests=60, **values), _never)


def test_pipeline_stages_play_beside_tensor_parallelism() -> None:
    """On the same GPUs: one has rounds by stage, the other has none."""
    found = shown(gpus=2, tensor_parallel_size=2, against="pipeline stages")
    tensor, pipeline = (scene["replicas"][0]["pipeline"] for scene in found["film"]["scenes"])

    assert tensor is None
    assert len(pipeline["layers"]) == 2
    assert len(pipeline["rounds"]) > 10


def test_pipeline_stages_take_all_gpus_where_a_replica_has_one() -> None:
    """And a pipeline can be watched alone."""
    other = FilmQuery(gpus=4, against="pipeline stages").other()
    assert other is not None
    alone = FilmQuery(gpus=2, tensor_parallel_size=2, pipeline=True, against="nothing").scenario()

    assert other.scenario().deployment.pipeline_parallel_size == 4
    assert (alone.deployment.pipeline_parallel_size, alone.deployment.tensor_parallel_size) == (2, 1)


def test_one_gpu_is_no_pipeline() -> None:
    """The answer says what to change."""
    with pytest.raises(ValueError, match="2 or more"):
        shown(gpus=1, against="pipeline stages")


def test_drafts_are_accepted_in_one_of_two_films() -> None:
    """Of the run with drafts."""
    found = shown(against="drafts", rate=2.0)
    plain, drafted = (scene["replicas"][0]["drafts"] for scene in found["film"]["scenes"])

    assert plain is None
    assert sum(drafted["accepted"]) > 0


@pytest.mark.parametrize("against", [each for each in get_args(Against) if each not in ("nothing", "pipeline stages")])
def test_everything_that_can_be_set_beside_it_differs(against: str) -> None:
    """In the scenario that runs."""
    query = FilmQuery(against=against)
    other = query.other()

    assert other is not None
    assert other.scenario() != query.scenario()
