"""`ACCURACY.md`: what each part says of hand-made predictions."""

from __future__ import annotations

from typing import Any

from calibration.laboratory.scoring.accuracy import accuracy_page
from calibration.laboratory.scoring.held_out import sample_rows
from simserve.planner.validation.validate import Validation, replay
from tests.planner.builders import make_point, make_prediction

SEEN = {"source": "apex_plus", "label": "a_4TP"}
UNSEEN = {"source": "apex_plus", "label": "a_8TP"}


def _operator(**changes: Any) -> dict[str, Any]:
    return {
        "operator": "GEMM fp8",
        "framework": "vllm",
        "fitted": "h200-sxm-141gb",
        "tested": "h100-sxm-80gb",
        "scale": None,
        "points": 1000,
        "median_ape": 0.05,
        "mean_ape": 0.07,
        "p90_ape": 0.2,
        "bias": -0.01,
        "limit": 0.1,
        **changes,
    }


def test_figures_that_a_constant_was_fitted_to_are_told_from_the_others() -> None:
    """vLLM's host time was fitted to TPOT and TTFT at TP 4, so that those are in sample, and TP 8 and E2E are not."""
    predictions = [
        make_prediction({"tpot": 0.011}, **SEEN),
        make_prediction({"tpot": 0.012}, **UNSEEN),
        make_prediction({"e2e": 0.13}, measured={"e2e": 0.1}, hardware="h200-sxm-141gb", **SEEN),
    ]

    h100, h200 = sample_rows(predictions, lambda point: point.hardware)

    tpot = h100["metrics"]["tpot"]
    assert (h100["name"], h100["points"]) == ("h100-sxm-80gb", 2)
    assert [round(tpot[sample][0], 6) for sample in ("in_sample", "out_of_sample")] == [0.1, 0.2]
    assert h200["metrics"]["e2e"]["out_of_sample"][1] == 1
    assert h200["metrics"]["e2e"]["in_sample"] is None


def test_the_page_leaves_gpus_models_and_engines_out() -> None:
    """A table each; names with few points have no row."""
    predictions = (
        *(make_prediction({"tpot": 0.011}, **SEEN) for _ in range(3)),
        *(make_prediction({"tpot": 0.012}, **UNSEEN) for _ in range(2)),
        make_prediction({"tpot": 0.012}, model="llama-2-7b"),
    )

    page = accuracy_page(Validation(predictions=predictions), "2026-11-30")

    assert "| h100-sxm-80gb | 6 | 10.0 % (3) | 20.0 % (3) |" in page
    assert "| llama-3.2-1b | 5 | 10.0 % (3) | 20.0 % (2) |" in page
    assert "| llama-2-7b | 1 | " not in page.partition("## In and out of sample")[2].partition("## Operators")[0]
    assert "| vllm from 0.8 | 6 |" in page


def test_operators_show_their_goal_and_what_missed_it() -> None:
    """And the scale that carried one to another GPU."""
    rows = [_operator(), _operator(tested="a100-sxm-80gb", scale=1.2, median_ape=0.11)]

    page = accuracy_page(Validation(predictions=(make_prediction({"tpot": 0.01}),)), "2026-11-30", operators=rows)

    assert "1 of 2 are within the goal" in page
    assert "| GEMM fp8 | vllm | H200 -> H100 | 1000 | 5.0 % | 7.0 % | 20.0 % | -1.0 % | 10 % |" in page
    assert "| H200 -> A100, x 1.20 | 1000 | 11.0 % | 7.0 % | 20.0 % | -1.0 % | 10 %: missed |" in page


def test_acceptance_lengths_are_beside_independent_drafts() -> None:
    """Without measured lengths the page names the one that holds them."""
    validation = Validation(predictions=(make_prediction({"tpot": 0.01}),))
    found = {
        "fitted_up_to": 3,
        "series": 2,
        "points": 10,
        "median": 0.03,
        "largest": 0.15,
        "independent_median": 0.09,
        "independent_largest": 0.5,
    }

    page = accuracy_page(validation, "2026-11-30", acceptance=found)

    assert "median error of 3.0 %, at most 15.0 %; independent drafts: 9.0 % and 50.0 %" in page
    assert "`speculation.md` holds the last run" in accuracy_page(validation, "2026-11-30")


def test_the_accuracy_page_carries_date_tables_and_causes() -> None:
    """No clock: the date is an argument."""
    validation = replay([make_point(), make_point(), make_point(), make_point(reason="too odd")])

    page = accuracy_page(validation, "2026-11-30")

    assert "2026-11-30" in page
    assert "3 of 4 measured points" in page
    assert "| made_up | vllm | h100-sxm-80gb | llama-3.2-1b | 4 | 3 |" in page
    assert "None of the points that serving constants were fitted to" in page
    assert "- 1 of made_up: too odd." in page
    assert page == accuracy_page(validation, "2026-11-30")


def test_an_empty_validation_has_a_page() -> None:
    """Nothing to say is said."""
    assert "0 of 0" in accuracy_page(Validation(predictions=()), "2026-11-30")
