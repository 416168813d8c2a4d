"""The workload block: what is accepted, and one clear line with the key path for everything else."""

import pytest

from simserve.errors import ScenarioError
from simserve.validation import FrozenModel, validate
from simserve.workload.spec import WorkloadSpec

FIXED = {"distribution": "fixed", "value": 10}
POISSON = {"process": "poisson", "rate": 1.0}
TRACE = {"path": "traffic.csv", "format": "csv"}


class Scenario(FrozenModel):
    """The part of a scenario that holds a workload."""

    workload: WorkloadSpec
    """The workload."""


def read(**changes):
    """Return a workload with some keys changed; None removes one."""
    keys = {"arrivals": POISSON, "prompt_tokens": FIXED, "output_tokens": FIXED, "num_requests": 10} | changes
    workload = {key: value for key, value in keys.items() if value is not None}
    return validate(Scenario, {"workload": workload}, file="s.yaml", error=ScenarioError).workload


def read_trace(**changes):
    """Return a workload that replays a trace."""
    nothing = dict.fromkeys(("arrivals", "prompt_tokens", "output_tokens", "num_requests"))
    return read(**nothing | {"trace": TRACE} | changes)


def assert_refused(message, reader=read, **changes):
    """Check that reading fails with one line that holds the message."""
    with pytest.raises(ScenarioError) as caught:
        reader(**changes)
    assert str(caught.value).startswith("s.yaml: workload")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ({"process": "poisson", "rate": -1}, "workload.arrivals.rate: -1 must be greater than 0"),
        ({"process": "poisson", "rate": 0}, "workload.arrivals.rate: 0 must be greater than 0"),
        ({"process": "poisson"}, "workload.arrivals.rate: is missing"),
        (
            {"process": "poisson", "raet": 1},
            "workload.arrivals.raet: is not a known key; did you mean 'rate'?",
        ),
        ({"process": "poisson", "rate": 1, "poisson": 1}, "workload.arrivals.poisson: is not a known key"),
        (
            {"process": "poison", "rate": 1},
            "arrivals.process: 'poison' is not a known process; did you mean 'poisson'?",
        ),
        ({"rate": 1}, "workload.arrivals.process: is missing; choose from all_at_once, burst, closed_loop"),
        (5, "workload.arrivals: 5 must be a mapping of keys to values"),
        (
            {"process": "gamma", "rate": 1, "cv": 0},
            "workload.arrivals.cv: 0 is no variation; for arrivals at equal intervals write process: constant",
        ),
        ({"process": "weibull", "rate": 1, "cv": 0.0}, "workload.arrivals.cv: 0.0 is no variation; for arrivals at"),
        ({"process": "gamma", "rate": 1, "cv": -1}, "workload.arrivals.cv: -1 must be greater than 0"),
        ({"process": "closed_loop", "concurrency": 0}, "workload.arrivals.concurrency: 0 must be greater"),
        (
            {"process": "closed_loop", "concurrency": 1, "think_time": 2},
            'workload.arrivals.think_time: 2 needs a unit of time; write it as a string, for example "500',
        ),
    ],
)
def test_wrong_arrivals_are_one_line_with_the_key_path(arrivals, message):
    """The tag of the union is no part of the path."""
    assert_refused(message, arrivals=arrivals)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ({"distribution": "fixed", "value": 0}, "prompt_tokens.value: 0 must be greater than or equal to 1"),
        ({"distribution": "fixed", "value": 1.5}, "prompt_tokens.value: 1.5 must be a valid integer"),
        (0, "prompt_tokens.value: 0 must be greater than or equal to 1"),
        (True, "prompt_tokens: True must be"),
        ({"distribution": "uniform", "min": 10, "max": 5}, "min 10 must not be above max 5"),
        (
            {"distribution": "lognormal", "mean": 9000, "cv": 1, "max": 8000},
            "mean 9000 must lie between min 1 and max",
        ),
        (
            {"distribution": "normal", "mean": 8000, "std": 1, "max": 8000},
            "mean 8000 must lie between min 1 and max",
        ),
        (
            {"distribution": "lognormal", "mean": 5, "cv": 1, "min": 5},
            "mean 5 must lie between min 5 and max",
        ),
        ({"distribution": "lognormal", "mean": 5, "cv": 1, "min": 9, "max": 8}, "min 9 must be below max 8"),
        (
            {"distribution": "normal", "mean": 5, "std": 0},
            "prompt_tokens.std: 0 must be at least 0.001; if all lengths",
        ),
        ({"distribution": "lognormal", "mean": 5, "cv": 0.0}, "prompt_tokens.cv: 0.0 must be at least 0.001; if all"),
        (
            {"distribution": "normal", "mean": 5, "std": -1},
            "prompt_tokens.std: -1 must be greater than or equal to 0.001",
        ),
        ({"distribution": "normal", "mean": 5, "std": 600}, "std 600 must be at most 100 times mean 5"),
        (
            {"distribution": "exponential", "mean": 80, "max": 150},
            "mean 80 must be below 75.5, the middle of min and",
        ),
        (
            {"distribution": "geometric", "mean": 80, "max": 150},
            "mean 80 must be below 75.5, the middle of min and",
        ),
        ({"distribution": "geometric", "mean": 1}, "prompt_tokens.mean: 1 must be greater than 1"),
        (
            {"distribution": "lognormal", "mean": 5, "cv": 1, "maximum": 8},
            "prompt_tokens.maximum: is not a known key",
        ),
        (
            {"distribution": "pareto", "mean": 5},
            "prompt_tokens.distribution: 'pareto' is not a known distribution",
        ),
        ({"distribution": "empirical"}, "prompt_tokens.path: is missing"),
    ],
)
def test_wrong_lengths_are_one_line_with_the_key_path(length, message):
    """A mean out of reach is refused before anything is drawn."""
    assert_refused(message, prompt_tokens=length)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrivals": None}, "lacks arrivals; give arrivals, prompt_tokens and output_tokens, or a trace"),
        ({"output_tokens": None}, "lacks output_tokens;"),
        ({"trace": TRACE}, "has a trace and also arrivals and prompt_tokens and output_tokens; keep one"),
        ({"duration": "10 s"}, "has num_requests and duration; keep one of the two"),
        ({"num_requests": 0}, "workload.num_requests: 0 must be greater than or equal to 1"),
        ({"num_requests": None, "duration": 600}, "workload.duration: 600 needs a unit of time"),
        ({"num_requests": None, "duration": "0 s"}, "workload.duration: '0 s' must be greater than 0"),
        (
            {"classes": [{"name": "flood", "arrivals": {"process": "poisson", "rate": 1e9}}], "arrivals": None}
            | {"num_requests": None, "duration": "3 s"},
            "asks for about 3e+09 requests, more than 50,000,000",
        ),
        (
            {"num_requests": None, "duration": "1000 weeks"},
            "asks for about 6.05e+08 requests, more than 50,000,000",
        ),
        (
            {"arrivals": {"process": "all_at_once"}, "num_requests": None, "duration": "9 s"},
            "cannot end all_at_once arrivals by duration; give num_requests instead",
        ),
        (
            {"max_tokens": "all"},
            "workload.max_tokens: 'all' must be exact, model_limit or a whole number from 1 to 1000000000",
        ),
        (
            {"ignore_eos": True, "max_tokens": 9},
            "has ignore_eos beside max_tokens: 9; answers are as long as asked: exact",
        ),
        ({"max_tokens": 1e19}, "workload.max_tokens: 1e+19 must be exact, model_limit or a whole number from 1 to"),
        ({"max_tokens": 0}, "workload.max_tokens: 0 must be exact, model_limit or a whole number from 1 to 1000000000"),
        (
            {"max_tokens": True},
            "workload.max_tokens: True must be exact, model_limit or a whole number from 1 to 1000000000",
        ),
        ({"rate": 4}, "workload.rate: is not a known key"),
    ],
)
def test_a_workload_that_contradicts_itself_is_refused(changes, message):
    """One source and one end, each named with the remedy."""
    assert_refused(message, **changes)


def test_a_trace_needs_no_end_and_takes_one():
    """A trace ends by itself, or earlier by number or time, not both."""
    assert read_trace().num_requests is None
    assert read_trace(num_requests=5).num_requests == 5
    assert read_trace(duration="5 s").duration == 5.0
    assert_refused("has num_requests and duration", read_trace, num_requests=5, duration="5 s")
    assert_refused("workload.trace.format: 'parquet' must be", read_trace, trace={**TRACE, "format": "parquet"})


@pytest.mark.parametrize(
    "workload",
    [
        read(),
        read(max_tokens=5, num_requests=None, duration="90 s"),
        read(arrivals={"process": "closed_loop", "concurrency": 4, "think_time": "1 s"}),
        read(prompt_tokens={"distribution": "normal", "mean": 50, "std": 5, "max": 90}),
        read_trace(),
    ],
)
def test_a_workload_reads_back_as_it_was_written(workload):
    """The resolved scenario that is stored with a result gives the same workload again."""
    written = workload.model_dump(mode="json")

    assert validate(WorkloadSpec, written) == workload


def test_every_field_is_documented():
    """Field docstrings are the reference page."""
    schema = WorkloadSpec.model_json_schema()

    for name, definition in {**schema["$defs"], "WorkloadSpec": schema}.items():
        for key, field in definition["properties"].items():
            assert field.get("description"), f"{name}.{key}"


def test_a_whole_number_may_be_written_as_a_power_of_ten():
    """YAML reads 1e3 as a float; where a count is asked for it is one."""
    workload = read(max_tokens=1e3, num_requests=1e4)

    assert (workload.max_tokens, workload.num_requests) == (1000, 10_000)
    assert_refused("workload.max_tokens: 1.5 must be exact", max_tokens=1.5)


@pytest.mark.parametrize("rate", [1e-12, 1e12])
def test_a_rate_at_which_the_clock_loses_its_digits_is_refused(rate):
    """A request in thirty thousand years, or a thousand within one nanosecond."""
    assert_refused("between 1e-6 and 1e9 requests per second", arrivals={"process": "poisson", "rate": rate})
