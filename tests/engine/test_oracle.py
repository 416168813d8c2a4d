"""Walker and kernel, held to cases worked out by hand, with times that are exact in binary."""

from __future__ import annotations

import math

from tests.agreement import walk_alike as walk
from tests.builders import affine_step_times, constant_step_times, make_closed_loop, make_config, make_specs
from tests.walker import Outcome, mixed_seconds, uncached_seconds

SECOND = constant_step_times(1.0)


def batches(outcome: Outcome) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return what every step held, without its start."""
    return [(decoding, prefill, tuple(sorted(indices))) for _, decoding, prefill, indices in outcome.batches]


def test_one_request_prefills_once_and_decodes_the_rest() -> None:
    """Three tokens take one prefill step and two decode steps; the first token ends the prefill."""
    outcome = walk(make_config(), SECOND, make_specs([2.0], 10, 3))

    assert batches(outcome) == [(0, 10, (0,)), (1, 0, (0,)), (1, 0, (0,))]
    assert outcome.scheduled_time.tolist() == [2.0]
    assert outcome.first_token_time.tolist() == [3.0]
    assert outcome.finish_time.tolist() == [5.0]
    assert outcome.gaps == [1.0, 1.0]
    assert outcome.itl_max.tolist() == [1.0]
    assert outcome.num_steps == 3
    assert outcome.generated_tokens.tolist() == [3]


def test_a_single_token_has_no_gap() -> None:
    """A request of one token ends with its prefill; its ITL is undefined."""
    outcome = walk(make_config(), SECOND, make_specs([0.0], 10, 1))

    assert outcome.finish_time.tolist() == [1.0]
    assert math.isnan(outcome.itl_max[0])
    assert outcome.gaps == []


def test_simultaneous_arrivals_are_planned_together() -> None:
    """Two requests that reach an idle replica at one instant share its first step."""
    outcome = walk(make_config(), SECOND, make_specs([4.0, 4.0], [10, 6], 2))

    assert batches(outcome) == [(0, 16, (0, 1)), (2, 0, (0, 1))]
    assert outcome.finish_time.tolist() == [6.0, 6.0]


def test_an_arrival_waits_for_the_end_of_the_running_step() -> None:
    """A request that comes in mid-step is scheduled at the end of the step, beside the decode."""
    outcome = walk(make_config(), SECOND, make_specs([0.0, 0.5], 8, 2))

    assert outcome.scheduled_time.tolist() == [0.0, 1.0]
    assert batches(outcome) == [(0, 8, (0,)), (1, 8, (0, 1)), (1, 0, (1,))]


def test_an_arrival_at_the_end_of_a_step_is_planned_with_the_next_one() -> None:
    """Ties go finish, arrival, plan: what arrives as a step ends joins the next step."""
    outcome = walk(make_config(max_num_seqs=1), SECOND, make_specs([0.0, 1.0], 8, 1))

    assert outcome.scheduled_time.tolist() == [0.0, 1.0]


def test_the_frontend_delays_the_scheduler_only() -> None:
    """The frontend latency comes before the queue and moves everything after it."""
    outcome = walk(make_config(frontend_latency=0.25), SECOND, make_specs([1.0], 8, 1))

    assert outcome.ready_time.tolist() == [1.25]
    assert outcome.finish_time.tolist() == [2.25]


def test_a_long_prompt_is_chunked() -> None:
    """A prompt of 20 tokens takes three chunks of at most 8, and only the last one gives a token."""
    outcome = walk(make_config(max_chunk_tokens=8), SECOND, make_specs([0.0], 20, 2))

    assert batches(outcome) == [(0, 8, (0,)), (0, 8, (0,)), (0, 4, (0,)), (1, 0, (0,))]
    assert outcome.first_token_time.tolist() == [3.0]


def test_decodes_and_chunks_share_the_budget() -> None:
    """Of 8 tokens a step the decode takes one first, and the chunk what is left."""
    config = make_config(max_num_batched_tokens=8)
    outcome = walk(config, SECOND, make_specs([0.0, 0.5], [8, 10], 3))

    assert batches(outcome) == [(0, 8, (0,)), (1, 7, (0, 1)), (1, 3, (0, 1)), (1, 0, (1,)), (1, 0, (1,))]


def test_the_budget_left_by_a_chunk_admits_the_next_request() -> None:
    """Prompts are packed: the second one gets what the first one leaves, and goes on in the next step."""
    outcome = walk(make_config(max_num_batched_tokens=8), SECOND, make_specs([0.0, 0.0], [6, 6], 1))

    assert batches(outcome) == [(0, 8, (0, 1)), (0, 4, (1,))]


def test_prompts_end_a_chunk_at_each_checkpoint_and_give_their_first_tokens_together() -> None:
    """Four prompts of 16 tokens leave 8 and 2 to further steps: three steps for all, where each took two prompts."""
    specs = make_specs([0.0] * 4, 16, 1)
    plain = walk(make_config(), SECOND, specs)
    kept = walk(make_config(checkpoint_tokens=8, last_checkpoint_tokens=2), SECOND, specs)

    assert plain.first_token_time.tolist() == [1.0, 1.0, 2.0, 2.0]
    assert batches(kept) == [(0, tokens, (0, 1, 2, 3)) for tokens in (32, 24, 8)]
    assert kept.first_token_time.tolist() == [3.0] * 4


def test_a_prompt_no_longer_than_a_checkpoint_passes_it() -> None:
    """At 8 and 2 tokens before the end: prompts of 9, 8, 3 and 2 tokens take three, two, two and one step."""
    config = make_config(checkpoint_tokens=8, last_checkpoint_tokens=2)
    outcome = walk(config, SECOND, make_specs([0.0] * 4, [9, 8, 3, 2], 1))

    assert outcome.first_token_time.tolist() == [3.0, 2.0, 2.0, 1.0]
    assert batches(outcome)[0] == (0, 1 + 6 + 1 + 2, (0, 1, 2, 3))


def test_others_have_what_a_checkpoint_leaves_of_the_budget() -> None:
    """Of 10 tokens a step the first prompt takes 5 of 9, up to its checkpoint, and the second the rest."""
    config = make_config(max_num_batched_tokens=10, checkpoint_tokens=4, last_checkpoint_tokens=4)
    outcome = walk(config, SECOND, make_specs([0.0, 0.0], 9, 1))

    assert batches(outcome) == [(0, 10, (0, 1)), (0, 8, (0, 1))]


def test_without_chunking_a_prompt_waits_for_a_whole_budget() -> None:
    """Chunking off: 6 of 8 tokens are taken, so the next prompt of 6 waits a step."""
    config = make_config(max_num_batched_tokens=8, max_model_len=8, enable_chunked_prefill=False)
    outcome = walk(config, SECOND, make_specs([0.0, 0.0], [6, 6], 1))

    assert batches(outcome) == [(0, 6, (0,)), (0, 6, (1,))]


def test_seats_limit_the_batch() -> None:
    """With one seat requests are served one after the other, first come first served."""
    outcome = walk(make_config(max_num_seqs=1), SECOND, make_specs([0.0, 0.0, 0.0], 4, 2))

    assert outcome.scheduled_time.tolist() == [0.0, 2.0, 4.0]
    assert outcome.finish_time.tolist() == [2.0, 4.0, 6.0]


def test_prefill_first_stalls_the_decodes() -> None:
    """Prefill wins: the decoding request skips the step in which the newcomer prefills."""
    config = make_config(scheduler="prefill_first")
    outcome = walk(config, SECOND, make_specs([0.0, 1.5], 8, 4))

    assert batches(outcome)[:4] == [(0, 8, (0,)), (1, 0, (0,)), (0, 8, (1,)), (2, 0, (0, 1))]
    assert outcome.itl_max.tolist() == [2.0, 1.0]


def test_on_demand_preempts_the_last_admitted_and_readmits_it_first() -> None:
    """The pool of 4 blocks runs dry when both requests need a third one: the newer goes back to the head."""
    config = make_config(num_blocks=4, max_model_len=16)
    outcome = walk(config, SECOND, make_specs([0.0, 0.0, 0.5], [7, 7, 4], [4, 4, 1]))

    assert outcome.num_preemptions.tolist() == [0, 1, 0]
    assert batches(outcome) == [
        (0, 14, (0, 1)),  # 2 blocks each
        (2, 0, (0, 1)),  # the eighth token of each; both blocks are full now
        (1, 0, (0,)),  # request 1 is preempted, and nothing is admitted in a step that preempts
        (1, 0, (0,)),  # 3 blocks held, 1 free: the head, 9 tokens to compute, does not fit
        (0, 13, (1, 2)),
        (1, 0, (1,)),
    ]
    assert outcome.finish_time.tolist() == [4.0, 6.0, 5.0]
    assert outcome.first_token_time.tolist() == [1.0, 1.0, 5.0]
    assert outcome.itl_max[1] == 3.0


def test_estimate_preempts_a_decode_and_queues_it_last() -> None:
    """Request 1, admitted last, still prefills when the pool runs dry, so the decode goes, to the tail."""
    config = make_config(
        num_blocks=8,
        max_model_len=32,
        max_chunk_tokens=1,
        admission="estimate",
        new_token_ratio_initial=0.0,
        new_token_ratio_minimum=0.0,
    )
    outcome = walk(config, SECOND, make_specs([0.0, 4.5, 4.5], [4, 20, 30], [28, 1, 1]))

    assert outcome.num_preemptions.tolist() == [1, 0, 0]
    assert batches(outcome)[16:18] == [(1, 1, (0, 1)), (0, 1, (1,))]
    assert outcome.scheduled_time.tolist() == [0.0, 5.0, 25.0]
    assert outcome.finish_time.argsort().tolist() == [1, 2, 0]


def test_estimate_breaks_ties_by_the_longest_prompt() -> None:
    """Requests 1 and 2 have as many tokens; 1 has the longer prompt, so it goes although 2 came last."""
    config = make_config(
        num_blocks=15,
        max_model_len=60,
        admission="estimate",
        new_token_ratio_initial=0.0,
        new_token_ratio_minimum=0.0,
    )
    outcome = walk(config, SECOND, make_specs([0.0, 0.5, 0.5], [8, 7, 4], [40, 16, 16]))

    assert outcome.num_preemptions.tolist() == [0, 1, 0]
    assert batches(outcome)[13:15] == [(3, 0, (0, 1, 2)), (2, 0, (0, 2))]


def test_estimate_expects_more_after_a_preemption() -> None:
    """The ratio rises from 0 to (13 + 20) / (28 + 1), cut to 1: of 12 free tokens 5 are not given."""
    config = make_config(
        num_blocks=8,
        max_model_len=32,
        admission="estimate",
        new_token_ratio_initial=0.0,
        new_token_ratio_minimum=0.0,
    )
    outcome = walk(config, SECOND, make_specs([0.0, 0.5, 12.5], [4, 4, 4], [28, 14, 1]))

    assert outcome.num_preemptions.tolist() == [0, 1, 0]
    assert outcome.finish_time[0] == 28.0
    assert outcome.scheduled_time[2] == 28.0


def test_who_was_refused_is_asked_again_when_somebody_has_left() -> None:
    """However much room the falling ratio makes beside it: SGLang's batch is full until it shrinks."""
    config = make_config(
        num_blocks=8,
        max_model_len=32,
        admission="estimate",
        new_token_ratio_initial=1.0,
        new_token_ratio_minimum=0.0,
        new_token_ratio_decay=0.125,
    )
    specs = make_specs([0.0, 0.5, 64.0, 64.5], [4, 4, 4, 4], [17, 1, 17, 1], [21, 4, 21, 4])
    scheduled = walk(config, SECOND, specs).scheduled_time

    # After k decode steps 8 < 4 x (8 - 1 - ceil((k + 1) / 4)) - (1 - k / 8) x (20 - k) first holds at k = 2, at 3 s;
    # the one that runs is there until 17 s, and nobody decodes then.
    assert scheduled.tolist() == [0.0, 17.0, 64.0, 81.0]


def test_who_ends_with_a_decode_step_keeps_its_seat_until_the_next_one() -> None:
    """SGLang's batch strikes request 0 at 3 s, when it decodes again, so that request 2 starts a step later."""
    config = make_config(
        num_blocks=32, max_model_len=32, admission="estimate", scheduler="prefill_first", max_num_seqs=2
    )
    scheduled = walk(config, SECOND, make_specs([0.0, 0.0, 0.5], 4, [3, 8, 1])).scheduled_time

    assert scheduled.tolist() == [0.0, 0.0, 4.0]


def test_a_batch_of_those_that_ended_is_gone_at_once() -> None:
    """Nobody is left to decode: the seat is free for request 1 at the instant at which request 0 ends."""
    config = make_config(
        num_blocks=32, max_model_len=32, admission="estimate", scheduler="prefill_first", max_num_seqs=1
    )

    assert walk(config, SECOND, make_specs([0.0, 0.5], 4, 3)).scheduled_time.tolist() == [0.0, 3.0]


def test_a_chunk_takes_what_the_estimate_leaves() -> None:
    """Each step beside it a decode takes a token and gives back half of one: of the last 3 only 2 are left room for."""
    config = make_config(
        num_blocks=32,
        block_size=1,
        max_model_len=32,
        max_num_batched_tokens=4,
        max_chunk_tokens=4,
        admission="estimate",
        new_token_ratio_initial=0.5,
        new_token_ratio_minimum=0.5,
    )
    outcome = walk(config, SECOND, make_specs([0.0, 0.5], [4, 18], [16, 1], [16, 1]))

    assert [chunk for _, chunk, _ in batches(outcome)][:9] == [4, 3, 3, 3, 3, 3, 2, 1, 0]


def test_estimate_admits_within_the_expected_tokens() -> None:
    """Half of what the running request may still say is set aside for it, so 8 tokens fit and 9 do not."""
    config = make_config(
        num_blocks=8,
        max_model_len=32,
        admission="estimate",
        scheduler="prefill_first",
        new_token_ratio_initial=0.5,
        new_token_ratio_minimum=0.5,
    )

    def scheduled(prompt: int) -> float:
        specs = make_specs([0.0, 0.5], [8, prompt], [17, 1], [17, 3])
        return float(walk(config, SECOND, specs).scheduled_time[1])

    assert scheduled(12) == 1.0  # 12 + 3 < 24 - 8
    assert scheduled(13) > 1.0  # 13 + 3 is not


def test_reserve_never_preempts() -> None:
    """All of the prompt and max_tokens is taken at admission, so the second request waits instead."""
    config = make_config(num_blocks=4, max_model_len=16, admission="reserve")
    outcome = walk(config, SECOND, make_specs([0.0, 0.0], 7, 4))

    assert outcome.num_preemptions.tolist() == [0, 0]
    assert outcome.scheduled_time.tolist() == [0.0, 4.0]


def test_the_watermark_keeps_blocks_free() -> None:
    """Two blocks are free and one is asked for; a watermark of two blocks makes the request wait."""
    specs = make_specs([0.0, 0.0], [8, 4], [2, 1])

    def scheduled(watermark: int) -> float:
        config = make_config(num_blocks=4, max_model_len=16, watermark_blocks=watermark)
        return float(walk(config, SECOND, specs).scheduled_time[1])

    assert scheduled(1) == 0.0
    assert scheduled(2) == 2.0


def test_reserve_full_prompt_checks_every_block_of_the_prompt() -> None:
    """A first chunk would fit beside the running request; the whole prompt does not."""
    specs = make_specs([0.0, 0.5], [4, 12], [3, 1])

    def scheduled(is_full: bool) -> float:
        config = make_config(
            num_blocks=4, max_model_len=16, max_chunk_tokens=4, reserve_full_prompt=is_full, max_num_seqs=2
        )
        return float(walk(config, SECOND, specs).scheduled_time[1])

    assert scheduled(False) == 1.0
    assert scheduled(True) == 3.0


def test_static_slots_hold_a_full_length_each() -> None:
    """Two slots of 16 tokens fit in 44: the third request waits although its 5 tokens would fit."""
    config = make_config(num_blocks=11, max_model_len=16, kv_allocation="static")
    outcome = walk(config, SECOND, make_specs([0.0, 0.0, 0.0], 4, [3, 2, 1]))

    assert outcome.scheduled_time.tolist() == [0.0, 0.0, 2.0]


def test_pow2_suffers_from_fragmentation() -> None:
    """16 tokens are free in two holes of 8: a range of 12 waits until two holes have merged."""
    config = make_config(num_blocks=8, max_model_len=32, kv_allocation="pow2")
    prompts, outputs = [4, 4, 4, 4, 4], [2, 4, 2, 4, 5]
    specs = make_specs([0.0, 0.0, 0.0, 0.0, 0.5], prompts, outputs, [4, 4, 4, 4, 5])
    outcome = walk(config, SECOND, specs)

    assert outcome.finish_time.tolist()[:4] == [2.0, 4.0, 2.0, 4.0]
    assert outcome.scheduled_time[4] == 4.0
    assert walk(make_config(num_blocks=8, max_model_len=32), SECOND, specs).scheduled_time[4] == 2.0


def test_pow2_takes_the_lowest_hole() -> None:
    """First fit: the small request takes the front of the first hole, and what is left is too small."""
    config = make_config(num_blocks=8, max_model_len=32, kv_allocation="pow2", max_num_seqs=5)
    specs = make_specs([0.0, 0.0, 0.0, 0.5, 0.5], [4, 4, 12, 4, 4], [1, 3, 4, 4, 4], [4, 4, 4, 4, 4])
    outcome = walk(config, SECOND, specs)

    assert outcome.scheduled_time.tolist() == [0.0, 0.0, 0.0, 1.0, 3.0]


def test_ranges_beside_each_other_are_one_hole() -> None:
    """The first of three ranges of 16 tokens is given back, then the second: a request of 32 fits below the third."""
    config = make_config(kv_allocation="oracle", num_blocks=12)
    outcome = walk(config, SECOND, make_specs([0.0, 0.0, 0.0, 0.5], [14, 13, 4, 20], [2, 3, 12, 12]))

    assert outcome.finish_time.tolist()[:3] == [2.0, 3.0, 12.0]
    assert outcome.scheduled_time.tolist()[3] == 3.0


def test_oracle_allocation_knows_the_true_length() -> None:
    """The true output of 4 tokens is taken, not the 16 of max_tokens: two requests fit in 16 tokens."""
    config = make_config(num_blocks=4, max_model_len=16, kv_allocation="oracle")
    specs = make_specs([0.0, 0.0], 4, 4, 12)

    assert walk(config, SECOND, specs).scheduled_time.tolist() == [0.0, 0.0]
    reserving = make_config(num_blocks=4, max_model_len=16, admission="reserve")
    assert walk(reserving, SECOND, specs).scheduled_time.tolist() == [0.0, 4.0]


def test_prompts_and_outputs_are_cut_by_the_model() -> None:
    """A prompt that leaves no room fails; max_tokens beyond the model is cut, with or without effect."""
    config = make_config(max_model_len=16)
    outcome = walk(config, SECOND, make_specs([0.0] * 5, [16, 15, 8, 8, 8], [1, 9, 2, 9, 9], [1, 9, 9, 2, -1]))

    assert outcome.status == ["failed", "completed", "completed", "completed", "completed"]
    assert outcome.generated_tokens.tolist() == [0, 1, 2, 2, 8]
    assert outcome.is_truncated.tolist() == [False, True, True, False, True]
    assert math.isnan(outcome.finish_time[0])


def test_a_prompt_above_an_unchunked_budget_fails() -> None:
    """Chunking off: a prompt of more tokens than a step holds could never run."""
    config = make_config(max_num_batched_tokens=8, enable_chunked_prefill=False, admission="reserve")

    assert walk(config, SECOND, make_specs([0.0, 0.0], [9, 8], 1)).status == ["failed", "completed"]
    without_cache = make_config(max_num_batched_tokens=8, enable_chunked_prefill=False, kv_allocation="none")
    assert walk(without_cache, SECOND, make_specs([0.0], 9, 1)).status == ["completed"]


def test_a_closed_loop_keeps_its_concurrency() -> None:
    """Two clients, five requests: each answer lets the next one go after its think time."""
    specs = make_closed_loop(2, [4] * 5, [1, 3, 1, 1, 1], [9.0, 9.0, 0.25, 0.0, 0.0])
    outcome = walk(make_config(), SECOND, specs)

    assert outcome.arrival_time.tolist() == [0.0, 0.0, 1.25, 3.0, 3.0]
    assert outcome.finish_time.tolist() == [1.0, 3.0, 3.0, 4.0, 4.0]


def test_a_failed_request_lets_its_client_go_on() -> None:
    """A client whose prompt is too long is told at once, and sends the next request."""
    specs = make_closed_loop(1, [99, 4], 1, 0.5)
    outcome = walk(make_config(frontend_latency=0.25), SECOND, specs)

    assert outcome.status == ["failed", "completed"]
    assert outcome.arrival_time.tolist() == [0.0, 0.75]
    assert outcome.scheduled_time[1] == 1.0


def test_the_mixed_formula_adds_every_part() -> None:
    """Two decodes of 5 and 7 tokens beside chunks of 3 after 2 and of 4 after 0, in powers of ten."""
    times = affine_step_times(
        step_seconds=0.0,
        token_seconds=1.0,
        sequence_seconds=100.0,
        decode_attention_seconds=1e4,
        decode_context_seconds=1e6,
        prefill_request_seconds=1e8,
        prefill_pair_seconds=1e10,
        prefill_context_seconds=1e12,
        num_table_tokens=6,
    )

    assert mixed_seconds(times, [5, 7], [(2, 3), (0, 4)], 1) == (
        9 + 4e2 + 2e4 + 12e6 + 2e8 + (3 * 2 + 6 + 10) * 1e10 + (5 + 4) * 1e12
    )
    assert mixed_seconds(times, [5, 7], [(2, 3), (0, 4)], 4) == (
        16 + 4e2 + 2e4 + 12e6 + 2e8 + 12e10 + 5e12  # the largest chunk has every stage to itself
    )
    assert uncached_seconds(times, [5, 7]) == 12 + 2e2 + 2e8 + (15 + 28) * 1e10 + 12e12


def test_a_pipeline_multiplies_the_budget_not_the_chunk() -> None:
    """Two stages: 16 tokens a step in all, at most 8 of one request."""
    config = make_config(max_num_batched_tokens=8, pipeline_parallel_size=2)
    outcome = walk(config, SECOND, make_specs([0.0, 0.0], 12, 1))

    assert batches(outcome) == [(0, 16, (0, 1)), (0, 8, (0, 1))]


def test_without_a_cache_everything_is_computed_again() -> None:
    """100 tokens cost 5,050 token computations without a KV cache, and 100 with one."""
    times = affine_step_times(step_seconds=0.0, token_seconds=1.0, decode_sequence_seconds=1.0)
    specs = make_specs([0.0], 1, 100)

    def seconds(kv_allocation: str) -> float:
        config = make_config(max_model_len=128, kv_allocation=kv_allocation)
        return float(walk(config, times, specs).finish_time[0])

    assert seconds("none") == 5050.0
    assert seconds("paged") == 100.0


def test_without_a_cache_only_seats_limit() -> None:
    """Neither blocks nor the budget hold back a request, and the new one is computed beside the old."""
    config = make_config(kv_allocation="none", num_blocks=1, max_num_batched_tokens=4, max_num_seqs=2)
    outcome = walk(config, SECOND, make_specs([0.0, 0.0, 0.0], 20, [3, 1, 1]))

    assert batches(outcome) == [(0, 40, (0, 1)), (1, 20, (0, 2)), (1, 0, (0,))]


def test_one_that_has_just_ended_still_holds_the_next_to_the_chunk_limit() -> None:
    """Scheduled ahead, it keeps its seat for a step: the other computes 8 tokens, and the rest of 20 when alone."""
    ahead = {"async_scheduling": True, "releases_late": True}
    config = make_config(lifts_chunk_limit=True, max_chunk_tokens=8, **ahead)
    outcome = walk(config, SECOND, make_specs([0.0, 0.5], [4, 20], [2, 1]))

    assert batches(outcome) == [(0, 4, (0,)), (1, 0, (0,)), (0, 8, (1,)), (0, 12, (1,))]
