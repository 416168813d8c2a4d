"""Length limits: what an engine lets requests generate, and which prompts it refuses."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simserve.engine.config import limited
from tests.builders import make_config

REQUESTS = st.lists(
    st.tuples(st.integers(1, 14), st.integers(1, 8), st.one_of(st.just(-1), st.integers(1, 8))), min_size=1, max_size=6
)


@given(requests=REQUESTS)
def test_limits_request_by_request(requests: list[tuple[int, int, int]]) -> None:
    """Ten tokens at most: what is asked for beyond is cut, and a prompt that leaves no room for one is refused.

    It makes no difference to anybody whether a limit reaches others of the run.
    """
    prompts, outputs, asked = (np.array(each) for each in zip(*requests, strict=True))

    left = limited(prompts, outputs, asked, make_config(max_model_len=10))

    for number, (prompt, output, most) in enumerate(requests):
        room = max(10 - prompt, 0)
        allowed = room if most < 0 else min(most, room)
        is_refused = prompt > 9
        assert left.max_tokens[number] == allowed
        assert left.is_too_long[number] == is_refused
        assert left.output_tokens[number] == (0 if is_refused else min(output, allowed))
        wanted = output if most < 0 else min(output, most)
        assert left.is_truncated[number] == (not is_refused and (most > room or wanted > room))


def test_a_prompt_that_is_computed_whole_fits_into_a_step() -> None:
    """Without chunked prefill, a prompt beyond the step's budget is refused."""
    config = make_config(enable_chunked_prefill=False, max_num_batched_tokens=8, max_model_len=100)

    left = limited(np.array([8, 9]), np.array([1, 1]), np.array([1, 1]), config)

    assert left.is_too_long.tolist() == [False, True]
    assert left.output_tokens.tolist() == [1, 0]
