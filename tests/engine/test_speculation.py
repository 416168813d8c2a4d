"""Steps that bring several tokens: by hand, against the walker, and against a walker that draws every step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from simserve import rng
from simserve.engine.config import EngineConfig
from simserve.engine.progress import GRID, Progress
from simserve.engine.state import RequestTable, StepTimes
from simserve.errors import InvariantError
from simserve.reference.request import Request
from simserve.reference.scheduler import ContinuousScheduler
from simserve.sim.simulate import replay
from simserve.workload.acceptance import decaying_acceptance, draw_paces, token_shares
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import affine_step_times, constant_step_times, make_config, make_specs
from tests.engine.test_prefix_cache import with_paths
from tests.walker import Outcome, Walk

SECOND = constant_step_times(1.0)


def paced(specs: RequestSpecs, tokens: float | list[float]) -> RequestSpecs:
    """Return requests that gain ``tokens`` a decode step."""
    pace = np.broadcast_to(np.rint(np.asarray(tokens) * GRID).astype(np.int64), len(specs)).copy()
    return replace(specs, pace=pace)


class DrawingScheduler(ContinuousScheduler):
    """One that draws what every step brings every request, as a real engine would see it."""

    def __init__(self, config: EngineConfig, times: StepTimes, shares: np.ndarray, seed: int) -> None:
        super().__init__(config, times)
        generator = rng.stream(seed, "every step")
        self.drawn = iter(generator.choice(np.arange(1, len(shares) + 1), p=shares, size=200_000).tolist())

    def tokens_gained(self, request: Request) -> float:
        """Return what this very step brings."""
        return next(self.drawn)


def test_a_pace_of_three_tokens_takes_a_third_of_the_steps() -> None:
    """One token comes with the prefill, nine more in three steps; each step is one gap."""
    config = make_config(num_speculative_tokens=4)
    result = assert_agrees(config, SECOND, paced(make_specs([0.0], 8, 10), 3.0))

    assert result.records.finish_time.tolist() == [4.0]
    assert result.totals.itl.count == 3
    assert result.totals.num_steps == 4


def test_scheduled_ahead_drafts_that_end_an_answer_cost_a_step() -> None:
    """Of ten tokens the last three come at once, which is not known as the next step is scheduled: 1 + 3 + 1 steps.

    At one token a step the end is known in advance, and nothing is computed beyond it.
    """
    ahead = make_config(num_speculative_tokens=4, async_scheduling=True, releases_late=True)
    result = assert_agrees(ahead, SECOND, paced(make_specs([0.0, 4.0], 8, 10), 3.0))
    steady = assert_agrees(ahead, SECOND, paced(make_specs([0.0], 8, 4), 1.0))

    assert result.records.finish_time.tolist() == [4.0, 9.0]
    assert result.totals.num_steps == 10
    assert steady.totals.num_steps == 4


@pytest.mark.parametrize(("is_ahead", "fewest"), [(False, 6), (True, 7)])
def test_drafts_under_way_take_slots_as_if_they_held(is_ahead: bool, fewest: int) -> None:
    """Two of four drafts hold. Its last step needs slots for 16 + 5 tokens; the one beyond it for 16 + 5 + 5."""
    config = make_config(num_speculative_tokens=4, block_size=4, async_scheduling=is_ahead, releases_late=True)
    specs = paced(make_specs([0.0], 8, 12), 3.0)
    num_preemptions = [
        int(assert_agrees(replace(config, num_blocks=num), SECOND, specs).records.num_preemptions[0]) for num in (6, 7)
    ]

    assert num_preemptions == [int(fewest > 6), 0]


def test_a_fraction_of_a_token_is_saved_for_later_steps() -> None:
    """At 1.5 tokens a step three more tokens take two steps, and four take three."""
    config = make_config(num_speculative_tokens=1)
    result = assert_agrees(config, SECOND, paced(make_specs([0.0, 0.0], 4, [4, 5]), 1.5))

    assert result.records.finish_time.tolist() == [3.0, 4.0]


def test_a_pace_of_one_is_the_plain_engine() -> None:
    """Where no draft is ever accepted and memory is ample, every time is that of the engine without drafts."""
    specs = make_specs([0.0, 0.5, 3.25], [8, 20, 5], [30, 10, 20])
    times = affine_step_times(decode_context_seconds=0.01, prefill_pair_seconds=0.001)
    plain = replay(make_config(), times, specs).records
    drafting = replay(make_config(num_speculative_tokens=2), times, paced(specs, 1.0)).records

    assert drafting.finish_time.tolist() == plain.finish_time.tolist()
    assert drafting.itl_max.tolist() == plain.itl_max.tolist()


def test_contexts_grow_by_the_pace() -> None:
    """Steps over 8, 10.5 and 13 tokens of context, a tenth of a second a token."""
    times = affine_step_times(decode_context_seconds=0.125)
    result = assert_agrees(make_config(num_speculative_tokens=3), times, paced(make_specs([0.0], 8, 8), 2.5))

    assert result.records.finish_time.tolist() == [1 + 3 + 0.125 * (8 + 10.5 + 13)]


def test_drafts_take_tokens_of_the_budget() -> None:
    """Of 8 tokens a step a decode with three drafts takes four: the newcomer's prompt of 8 takes two steps."""
    specs = make_specs([0.0, 0.5], 8, [9, 1])

    def first_token(drafts: int) -> float:
        config = make_config(max_num_batched_tokens=8, num_speculative_tokens=drafts)
        return float(assert_agrees(config, SECOND, paced(specs, 1.0)).records.first_token_time[1])

    assert first_token(1) == 3.0
    assert first_token(3) == 3.0
    assert first_token(6) == 9.0


@pytest.mark.parametrize("pads_lone_token", [True, False])
def test_a_lone_token_is_padded_beside_those_that_decode(pads_lone_token: bool) -> None:
    """The second prompt is a single token: with three drafts it computes four, beside the first's four, for one more.

    The third prompt has two tokens, and is computed as it is.
    """
    config = make_config(
        num_speculative_tokens=3, block_size=2, num_blocks=9, max_model_len=16, pads_lone_token=pads_lone_token
    )
    specs = paced(make_specs([0.0, 0.5, 0.5], [2, 1, 2], [3, 1, 1]), 1.0)
    result = assert_agrees(config, affine_step_times(token_seconds=1.0, step_seconds=1.0), specs)

    tokens = [4 + 4 + 2, 4 + 1 + 2]
    assert result.records.finish_time[1] == 3.0 + 1.0 + tokens[not pads_lone_token]
    assert result.records.output_tokens.tolist() == [3, 1, 1]


@pytest.mark.parametrize("reserve_full_prompt", [True, False])
def test_a_padded_token_waits_for_the_blocks_of_all_that_it_computes(reserve_full_prompt: bool) -> None:
    """Beside a request that decodes three of eight blocks are free, and a lone token with its drafts computes four."""
    config = make_config(
        num_speculative_tokens=3,
        block_size=1,
        num_blocks=8,
        max_model_len=8,
        pads_lone_token=True,
        reserve_full_prompt=reserve_full_prompt,
    )
    specs = paced(make_specs([0.0, 0.5], [1, 1], [4, 1]), 1.0)

    assert assert_agrees(config, SECOND, specs).records.scheduled_time.tolist() == [0.0, 4.0]


def test_drafts_take_slots() -> None:
    """Two requests of 6 tokens in four blocks of 4 have room for two more each, but not for two drafts besides."""
    specs = paced(make_specs([0.0, 0.0], 6, 3), 1.0)

    def preemptions(drafts: int) -> list[int]:
        config = make_config(num_blocks=4, max_model_len=12, num_speculative_tokens=drafts)
        return assert_agrees(config, SECOND, specs).records.num_preemptions.tolist()

    assert replay(make_config(num_blocks=4, max_model_len=12), SECOND, specs).records.num_preemptions.tolist() == [0, 0]
    assert preemptions(1) == [0, 1]
    assert preemptions(2) == [0, 1]


def test_drafts_need_no_room_of_their_own_in_a_slot() -> None:
    """Two slots of 12 tokens, whatever is drafted: nobody is preempted, and two tokens a step halve the steps."""
    specs = paced(make_specs([0.0, 0.0], 6, 5), 2.0)
    config = make_config(num_blocks=6, max_model_len=12, kv_allocation="static", num_speculative_tokens=3)

    records = assert_agrees(config, SECOND, specs).records

    assert records.num_preemptions.tolist() == [0, 0]
    assert records.finish_time.tolist() == [3.0, 3.0]


def test_reserving_counts_the_last_drafts() -> None:
    """All of the prompt and max_tokens fit twice in four blocks; with a draft behind them only once."""
    specs = paced(make_specs([0.0, 0.0], 4, 4), 1.0)

    def scheduled(drafts: int) -> float:
        config = make_config(num_blocks=5, max_model_len=16, admission="reserve", num_speculative_tokens=drafts)
        return float(assert_agrees(config, SECOND, specs).records.scheduled_time[1])

    plain = make_config(num_blocks=5, max_model_len=16, admission="reserve")
    assert replay(plain, SECOND, specs).records.scheduled_time[1] == 0.0
    assert scheduled(1) > 0.0


def test_an_engine_that_speculates_needs_paces() -> None:
    """Chance is drawn before the engine sees a request; without it there is nothing to run."""
    specs = make_specs([0.0], 4, 4)

    with pytest.raises(InvariantError, match="no pace was drawn"):
        RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, make_config(num_speculative_tokens=1))


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_progress_counts_the_blocks_of_every_request(block_size: int) -> None:
    """Growth over any number of steps, and what comes back, are those of each request looked at alone."""
    generator = rng.stream(7, "test")
    drafts, step = 4, 5
    progress = Progress(drafts, block_size)
    rows = [
        (int(c), int(p)) for c, p in zip(generator.integers(1, 99, 40), generator.integers(16, 81, 40), strict=True)
    ]
    for context, pace in rows:
        progress.join(GRID * context - pace * step, pace, step)

    def held(context: int, pace: int, num_steps: int) -> int:
        slots = (GRID * context + pace * (num_steps - 1)) // GRID + drafts + 1
        return -(-slots // block_size)

    started = sum(-(-context // block_size) for context, _ in rows)
    for num_steps in (1, 2, 7, 50):
        assert progress.growth(step, num_steps) == sum(held(*row, num_steps) for row in rows) - started
    free = progress.growth(step, 9)
    affordable = progress.affordable_steps(step, 40, free)
    assert progress.growth(step, affordable) <= free < progress.growth(step, affordable + 1)
    progress.take(step, 7)
    for context, pace in rows:
        assert progress.leave(GRID * context - pace * step, pace, step + 7, step) == held(context, pace, 7)
    assert progress.total == progress.growth(step + 7, 3) == 0


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_mean_progress_is_unbiased(rate: float) -> None:
    """Against a walker that draws every step, mean E2E, TPOT and the run's length differ by less than 2 %.

    Under load: four seats, arrivals that queue, contexts that cost, memory for three requests.
    """
    drafts, count = 4, 60
    conditional = decaying_acceptance(rate, 0.95, drafts)
    config = make_config(
        max_num_seqs=4, num_speculative_tokens=drafts, max_model_len=256, num_blocks=160, max_num_batched_tokens=64
    )
    times = affine_step_times(decode_sequence_seconds=0.2, decode_context_seconds=0.002, token_seconds=0.01)
    figures = []
    for seed in range(12):
        generator = rng.stream(seed, "test")
        arrivals = np.cumsum(generator.exponential(14.0 / expected(rate), count))
        prompts, outputs = generator.integers(5, 60, count), generator.integers(20, 150, count)
        specs = make_specs(arrivals.tolist(), prompts.tolist(), outputs.tolist())
        make = partial(DrawingScheduler, shares=token_shares(conditional), seed=seed)
        drawn: Outcome = Walk(config, times, specs, make).outcome()
        paces = draw_paces(outputs, conditional, rng.stream(seed, "speculation"), GRID)
        mean = replay(config, times, replace(specs, pace=paces)).records
        figures.append((summary(mean, outputs), summary(drawn, outputs)))
    ours, theirs = np.array(figures).mean(axis=0)

    assert ours == pytest.approx(theirs, rel=0.02)


def expected(rate: float) -> float:
    """Return a load that keeps the seats busy: more requests come where more is accepted."""
    return 0.6 if rate < 0.5 else 1.1


def summary(run: object, outputs: np.ndarray) -> tuple[float, float, float]:
    """Return mean E2E, mean TPOT and the end of a run, seconds."""
    arrival, first, finish = (getattr(run, name) for name in ("arrival_time", "first_token_time", "finish_time"))
    return (
        float(np.mean(finish - arrival)),
        float(np.mean((finish - first) / (outputs - 1))),
        float(np.max(finish)),
    )


@pytest.mark.parametrize(("max_model_len", "tokens"), [(64, 4), (17, 4), (16, 1)])
def test_a_lone_token_behind_a_found_prefix_is_padded_where_its_context_has_room(
    max_model_len: int, tokens: int
) -> None:
    """12 of 13 tokens are found; with three drafts they would be 16, which must be below the longest context."""
    config = make_config(
        num_speculative_tokens=3, pads_lone_token=True, enable_prefix_caching=True, max_model_len=max_model_len
    )
    specs = paced(with_paths(make_specs([0.0, 40.0], 13, 1), [[(1, 12)], [(1, 12)]]), 1.0)
    records = assert_agrees(config, affine_step_times(token_seconds=1.0, step_seconds=1.0), specs).records

    assert records.cached_tokens.tolist() == [0, 12]
    assert (records.finish_time - records.scheduled_time).tolist() == [1.0 + 13, 1.0 + tokens]
