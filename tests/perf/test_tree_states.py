"""States beside SGLang's radix tree: how many, and where prompts and answers leave them."""

from __future__ import annotations

import pytest

from simserve.perf.memory import state_slots
from simserve.perf.tree_states import tree_fields
from tests.perf.shapes import make_shape


def fields_of(model: str = "qwen3.5-9b", version: str = "0.5.23", **served: object) -> dict[str, int]:
    """Return the fields of a server on an H200."""
    return tree_fields(make_shape("h200-sxm-141gb", model, engine="sglang", version=version, **served))


def test_a_request_has_two_more_states_where_steps_are_scheduled_ahead() -> None:
    """From 0.5.14 on prompts leave states every 64 tokens, answers every 256; before, both at their end."""
    ahead, alone, before = fields_of(), fields_of(async_scheduling=False), fields_of(version="0.5.13")

    assert [each.get("seat_states", 1) for each in (ahead, alone, before)] == [3, 1, 1]
    assert (ahead["state_grid"], ahead["state_interval"]) == (64, 256)
    assert set(alone) == set(before) == {"tree_states"}


def test_pages_make_the_grid_coarser() -> None:
    """A chunk of 64 and pages of 128 tokens; without steps ahead a request then has one state more."""
    fields = fields_of(block_size=128, async_scheduling=False)

    assert (fields["state_grid"], fields["state_interval"], fields["seat_states"]) == (128, 256, 2)


def test_layers_of_mamba_have_chunks_of_their_own() -> None:
    """Nemotron 3 Nano: 128 tokens, by its configuration."""
    assert fields_of("nemotron-3-nano-30b-a3b")["state_grid"] == 128


def test_all_states_but_those_of_padding_are_shared() -> None:
    """Whole seats of five each; without a prefix cache there is nobody to share them with."""
    shape = make_shape("h200-sxm-141gb", "qwen3.5-9b", engine="sglang", version="0.5.23")

    assert tree_fields(shape)["tree_states"] == pytest.approx(state_slots(shape), abs=6)
    assert fields_of(enable_prefix_caching=False) == {}
