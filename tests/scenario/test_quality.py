"""The catalogue of published quality: what is said of a format and a model size, and what is not."""

from __future__ import annotations

from simserve.scenario.formats import load_quality, published_quality, quality_lines


def losses(quantization: str, model_size_b: float) -> list[float]:
    """Return the shares of the 16-bit score that studies of a weight format say are lost."""
    return [fact["loss"] for fact in published_quality(quantization, "auto", model_size_b)]


def test_int4_costs_a_small_model_more_than_a_large_one() -> None:
    """Of 8 B up to 7.0 % (Arena-Hard), of 70 B up to 4.2 % (perplexity, round to nearest): the range narrows."""
    small, large = losses("int4", 8.0), losses("int4", 70.6)

    assert max(small) > max(large)
    assert min(small) > min(large)
    assert sum(small) / len(small) > sum(large) / len(large)


def test_perplexity_rises_more_in_the_smaller_model() -> None:
    """In every study of both sizes, in points; in per cent AWQ's 70 B is no better than its 7 B."""
    for name in ("int4", "gptq-int4", "awq-int4", "int3", "gguf-q4_k_m", "gguf-q2_k"):
        small, large = (
            [fact["delta"] for fact in published_quality(name, "auto", size) if "perplexity" in fact["metric"]]
            for size in (6.0, 69.0)
        )

        assert max(small) > max(large) > 0, name


def test_fewer_bits_cost_more() -> None:
    """3 bits above 4 and Q2_K above Q4_K_M, at 8 B."""
    assert max(losses("int3", 8.0)) > max(losses("gptq-int4", 8.0))
    assert max(losses("gguf-q2_k", 8.0)) > max(losses("gguf-q4_k_m", 8.0))


def test_sixteen_bit_and_sizes_nobody_studied_say_nothing() -> None:
    """Empty, never a guess: 1 B models lose more than any listed, and 16 bit loses nothing."""
    assert published_quality("none", "auto", 8.0) == []
    assert published_quality("gptq-int4", "auto", 1.2) == []
    assert quality_lines([]) == []


def test_perplexity_rises_and_scores_fall_where_quality_is_lost() -> None:
    """`delta` is in the metric's unit, `loss` is positive for the worse."""
    facts = published_quality("gptq-int4", "int4", 8.0)
    perplexity = next(fact for fact in facts if fact["metric"] == "wikitext2_perplexity")
    arena = next(fact for fact in facts if fact["metric"] == "arena_hard_recovery")

    assert perplexity["delta"] > 0
    assert arena["delta"] == -7.0
    assert perplexity["loss"] > 0 < arena["loss"]
    assert {fact["quantises"] for fact in facts} == {"weights", "kv_cache"}


def test_the_line_shows_both_ends_with_their_source() -> None:
    """Studies disagree: the mildest and the worst figure, each with model and source; KV apart."""
    weights, kv = quality_lines(published_quality("gptq-int4", "int8", 8.0))

    assert weights.startswith("gptq-int4 weights: OpenLLM v1 -1.1% (llama-3.1-8b, Neural Magic) to Arena-Hard -7.0%")
    assert weights.endswith("published figures of about this size")
    assert kv.startswith("int8 KV cache: ")


def test_every_study_names_its_source() -> None:
    """A paper, a model card or a documentation page, with where in it."""
    for study in load_quality().studies:
        assert len(study.source) > 20, study
