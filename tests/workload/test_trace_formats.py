"""The formats besides Azure and CSV: what is read, what is left out, how a broken file is named, telling them apart."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import ScenarioError, TraceError, UsageError
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import TraceSpec, WorkloadSpec
from simserve.workload.traces.formats import READERS, check_format, detect, read_trace
from simserve.workload.traces.trace import Trace
from tests.workload.test_agentic_traces import AGENTIC_MOONCAKE, DYNAMO, WEKA

MOONCAKE_FILE = Path(__file__).resolve().parents[2] / "../shared/data/traces/mooncake/conversation_trace.jsonl.gz"

MOONCAKE = (
    '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 500, "input_length": 700, "output_length": 6, "hash_ids": [0, 2]}\n'
    '{"timestamp": 500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 2, 3]}\n'
)
VLLM_TIMED = (
    '{"timestamp": 0.25, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
    '{"timestamp": 1.5, "input_length": 40, "output_length": 6, "hash_ids": [1, 2, 4]}\n'
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,0,1087,API log\n"
    "118,GPT-4,417,276,693,Conversation log\n"
)
BAILIAN = (
    '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 4, "type": "text", '
    '"turn": 1, "hash_ids": [7, 8]}\n'
    '{"chat_id": 2, "parent_chat_id": -1, "timestamp": 1.0, "input_length": 9, "output_length": 3, "type": "text", '
    '"turn": 1, "hash_ids": [9]}\n'
    '{"chat_id": 3, "parent_chat_id": 1, "timestamp": 2.25, "input_length": 40, "output_length": 2, "type": "text", '
    '"turn": 2, "hash_ids": [7, 8, 10]}\n'
)
SHAREGPT = json.dumps(
    [
        {"id": "a", "conversations": [{"from": "human", "value": "x" * 41}, {"from": "gpt", "value": "y" * 8}]},
        {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
        {"id": "c", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "z" * 400}]},
    ]
)
VLLM_BENCH = json.dumps(
    {
        "request_throughput": 1.0,
        "input_lens": [10, 20, 30, 40],
        "output_lens": [5, 0, 6, 7],
        "start_times": [101.0, 100.0, 100.5, 104.0],
    }
)
OTEL = (
    '{"name": "chat", "start_time": "2026-01-01T00:00:02Z", "attributes": {"gen_ai.usage.input_tokens": 30, '
    '"gen_ai.usage.output_tokens": 3}}\n'
    '{"name": "tool", "start_time": "2026-01-01T00:00:01Z", "attributes": {"http.method": "GET"}}\n'
    '{"name": "chat", "start_time": "2026-01-01T00:00:00.5Z", "attributes": {"gen_ai.usage.prompt_tokens": 10, '
    '"gen_ai.usage.completion_tokens": 1}}\n'
)
_OTLP_SPAN = {
    "startTimeUnixNano": "1700000000500000000",
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "4"}},
    ],
}
OTLP = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [_OTLP_SPAN]}]}]})

AIPERF_MESSAGES = (
    '{"messages": [{"role": "user", "content": "Hello"}], "output_length": 5, "timestamp": 0}\n'
    '{"messages": [{"role": "user", "content": "Hello again"}], "output_length": 6, "timestamp": 1500}\n'
)
AIPERF_CONVERSATIONS = (
    '{"session_id": "a", "turns": [{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}]}\n'
)
EXAMPLES = {
    "aiperf-messages": AIPERF_MESSAGES,
    "aiperf-conversations": AIPERF_CONVERSATIONS,
    "columns": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,12,3\n1.5,20,4\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,5,6\n",
    "csv": "arrival_time,prompt_tokens,output_tokens\n0,5,6\n",
    "mooncake": MOONCAKE,
    "agentic-mooncake": AGENTIC_MOONCAKE,
    "dynamo": DYNAMO,
    "weka": WEKA,
    "burstgpt": BURSTGPT,
    "bailian": BAILIAN,
    "sharegpt": SHAREGPT,
    "vllm-bench": VLLM_BENCH,
    "vllm-timed": VLLM_TIMED,
    "otel": OTEL,
}


def read(folder: Path, text: str, trace_format: str = "auto") -> Trace:
    """Write a trace and read it."""
    (folder / "trace").write_text(text, encoding="utf-8")
    return read_trace(folder / "trace", trace_format)


def replay(folder: Path, text: str, trace: dict[str, Any] | None = None, **workload: Any) -> RequestSpecs:
    """Write a trace and return the requests of a workload that replays it."""
    (folder / "trace").write_text(text, encoding="utf-8")
    spec = WorkloadSpec.model_validate({"trace": {"path": "trace", **(trace or {})}, **workload})
    return generate(spec, seed=1, base_path=folder)


def test_mooncake_is_milliseconds_and_blocks(tmp_path: Path) -> None:
    """Equal ids are equal prefixes: four of seven blocks are new."""
    trace = read(tmp_path, MOONCAKE)

    assert trace.arrival_time.tolist() == [0.0, 0.5, 0.5]
    assert trace.prompt_tokens.tolist() == [1000, 700, 1100]
    assert trace.output_tokens.tolist() == [5, 6, 7]
    assert trace.prefix_blocks is not None
    assert trace.prefix_blocks.block_tokens == 512
    assert trace.prefix_blocks.counts.tolist() == [2, 2, 3]
    assert trace.prefix_blocks.reuse == pytest.approx(3 / 7)


def test_timed_traces_of_vllm_are_seconds_and_small_blocks(tmp_path: Path) -> None:
    """Mooncake's fields; 32 of 40 tokens are shared, and with blocks of 10 tokens 20 of them."""
    trace = read(tmp_path, VLLM_TIMED, "vllm-timed")

    assert trace.arrival_time.tolist() == [0.25, 1.5]
    assert trace.prefix_blocks is not None
    assert trace.prefix_blocks.block_tokens == 16
    for size, shared in ((None, 32), (10, 20)):
        specs = replay(tmp_path, VLLM_TIMED, {} if size is None else {"block_size": size})
        assert specs.prefixes is not None
        begins = specs.prefixes.offsets[:2]
        assert len(set(specs.prefixes.segments[begins].tolist())) == 1
        assert specs.prefixes.ends[begins].tolist() == [shared, shared]


def test_a_block_size_needs_blocks(tmp_path: Path) -> None:
    """Of a trace that names none it would mean nothing."""
    with pytest.raises(TraceError, match=r"workload\.trace\.block_size: holds no hash_ids; leave it out"):
        replay(tmp_path, EXAMPLES["csv"], {"block_size": 16})


def test_the_real_mooncake_trace_is_read_whole() -> None:
    """Rows, means, span and reuse are those published beside it."""
    if not MOONCAKE_FILE.is_file():
        pytest.skip(f"{MOONCAKE_FILE} is not there")

    trace = read_trace(MOONCAKE_FILE)
    assert len(trace.prompt_tokens) == 12_031
    assert trace.prompt_tokens.mean() == pytest.approx(12035.1, abs=0.05)
    assert trace.output_tokens.mean() == pytest.approx(342.6, abs=0.05)
    assert trace.arrival_time[-1] == pytest.approx(3537.0, abs=0.1)
    assert trace.prefix_blocks is not None
    assert trace.prefix_blocks.reuse == pytest.approx(0.3664, abs=5e-5)


def test_burstgpt_leaves_failed_requests_out_and_counts_them(tmp_path: Path) -> None:
    """A response of no tokens is none."""
    trace = read(tmp_path, BURSTGPT)

    assert trace.arrival_time.tolist() == [5.0, 118.0]
    assert trace.prompt_tokens.tolist() == [472, 417]
    assert trace.output_tokens.tolist() == [18, 276]
    assert trace.num_unserved == 1


def test_bailian_knows_conversations(tmp_path: Path) -> None:
    """A request belongs to that of its parent."""
    trace = read(tmp_path, BAILIAN)

    assert trace.arrival_time.tolist() == [0.5, 1.0, 2.25]
    assert trace.session is not None
    assert trace.session.tolist() == [0, 1, 0]
    assert trace.prefix_blocks is not None
    assert (trace.prefix_blocks.block_tokens, trace.prefix_blocks.num_distinct) == (16, 4)


def test_sharegpt_lengths_are_estimated_from_characters(tmp_path: Path) -> None:
    """The first prompt and answer of each conversation, said to be an estimate; no times."""
    trace = read(tmp_path, SHAREGPT)

    assert trace.prompt_tokens.tolist() == [11, 1]
    assert trace.output_tokens.tolist() == [2, 100]
    assert not trace.has_arrival_times
    assert trace.num_unserved == 1
    assert trace.remark == "lengths are estimated, 4 characters a token"


def test_a_benchmark_is_sorted_by_its_start_times(tmp_path: Path) -> None:
    """The first served request arrives at 0; failed ones are left out."""
    trace = read(tmp_path, VLLM_BENCH)

    assert trace.arrival_time.tolist() == [0.0, 0.5, 3.5]
    assert trace.prompt_tokens.tolist() == [30, 10, 40]
    assert trace.output_tokens.tolist() == [6, 5, 7]
    assert trace.num_unserved == 1


def test_an_old_benchmark_has_no_times(tmp_path: Path) -> None:
    """start_times came with vLLM 0.17."""
    trace = read(tmp_path, '{"input_lens": [1, 2], "output_lens": [3, 4]}')

    assert not trace.has_arrival_times
    assert trace.prompt_tokens.tolist() == [1, 2]


@pytest.mark.parametrize("layout", ["one line", "many lines"])
def test_spans_are_calls_in_order_of_their_start(tmp_path: Path, layout: str) -> None:
    """Today's and earlier attribute names; spans without usage are no calls."""
    spans = [json.loads(line) for line in OTEL.splitlines()]
    trace = read(tmp_path, OTEL if layout == "many lines" else json.dumps(spans), "otel")

    assert trace.arrival_time.tolist() == [0.0, 1.5]
    assert trace.prompt_tokens.tolist() == [10, 30]
    assert trace.output_tokens.tolist() == [1, 3]


def test_otlp_batches_are_unpacked(tmp_path: Path) -> None:
    """Attributes as a list of typed values, times in nanoseconds as text."""
    later = json.loads(OTLP)
    later["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["startTimeUnixNano"] = "1700000002500000000"
    trace = read(tmp_path, OTLP + "\n" + json.dumps(later))

    assert trace.arrival_time.tolist() == [0.0, 2.0]
    assert trace.prompt_tokens.tolist() == [12, 12]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_every_format_is_told_by_its_first_row(tmp_path: Path, name: str, compress: Any) -> None:
    """Plain and gzip; read by name it gives the same."""
    (tmp_path / "trace").write_bytes(compress(EXAMPLES[name].encode()))

    assert detect(tmp_path / "trace") == name
    told, named = read_trace(tmp_path / "trace"), read_trace(tmp_path / "trace", name)
    assert told.prompt_tokens.tolist() == named.prompt_tokens.tolist()
    assert set(EXAMPLES) == set(READERS)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", '{"a": 1}\n', "[1, 2]", "[", "{"])
def test_what_is_of_no_format_is_refused_with_the_formats(tmp_path: Path, text: str) -> None:
    """And a format that is none with the nearest."""
    (tmp_path / "trace").write_text(text, encoding="utf-8")

    with pytest.raises(TraceError, match=r"of no format that its first row tells.*or the format with --format: azure"):
        detect(tmp_path / "trace")
    with pytest.raises(UsageError, match="--format: 'moncake' is not a known format; did you mean 'mooncake'"):
        check_format("moncake")


@pytest.mark.parametrize(
    ("trace_format", "text", "message"),
    [
        (
            "mooncake",
            MOONCAKE + '{"timestamp": 400, "input_length": 1, "output_length": 1, "hash_ids": []}\n',
            "row 4, t",
        ),
        (
            "mooncake",
            MOONCAKE.replace("1100", "0"),
            "row 3, input_length: 0 must be >= 1; correct the row or remove it",
        ),
        ("mooncake", MOONCAKE.replace("1100", "1.5"), "row 3, input_length: 1.5 is not a whole number"),
        ("mooncake", MOONCAKE.replace("1100", '"x"'), "row 3, input_length: 'x' is not a number"),
        ("mooncake", MOONCAKE.replace("1100", "true"), "row 3, input_length: True is not a number"),
        ("mooncake", MOONCAKE.replace("1100", "NaN"), "row 3, input_length: nan is not a number"),
        ("mooncake", MOONCAKE.replace('"output_length": 6, ', ""), "row 2, output_length: is missing"),
        ("mooncake", MOONCAKE.replace("[0, 2]", '["a"]'), "row 2, hash_ids: ['a'] is not a list of whole numbers"),
        (
            "mooncake",
            MOONCAKE.replace("500", "1700000000000000", 1),
            "row 2, timestamp: 1700000000000000 must be a time",
        ),
        ("mooncake", MOONCAKE + "{broken\n", "row 4: is not valid JSON"),
        ("mooncake", MOONCAKE + "\n\n3\n", "row 6: is not a JSON object"),
        ("mooncake", "[]", "holds no rows"),
        ("burstgpt", BURSTGPT.replace("417", "x"), "row 4, Request tokens: 'x' is not a whole number"),
        ("burstgpt", BURSTGPT.replace("417", "0"), "row 4, Request tokens: '0' must be >= 1 where a response came"),
        ("burstgpt", BURSTGPT.replace("Response tokens", "Answer"), "Response tokens: is missing; the columns are"),
        ("bailian", BAILIAN.replace('"chat_id": 2, ', ""), "row 2, chat_id: is missing"),
        ("sharegpt", '[{"conversations": 3}]', "row 1, conversations: 3 is not a list of turns"),
        ("sharegpt", '[{"conversations": []}]', "holds no conversation with a prompt and an answer"),
        (
            "vllm-bench",
            '{"request_throughput": 1}',
            "input_lens: is missing; run vllm bench serve with --save-detailed",
        ),
        ("vllm-bench", VLLM_BENCH.replace("[10, ", "["), "hold 3, 4 and 4 requests"),
        ("vllm-bench", VLLM_BENCH.replace("[10, ", '["a", '), "input_lens: is not a list of numbers"),
        ("vllm-bench", f"{VLLM_BENCH}\n{VLLM_BENCH}", "holds 2 results, one a line; keep the line of one run"),
        ("otel", OTEL.replace(": 3}", ": -3}"), "row 1, gen_ai.usage.output_tokens: -3 is not a whole number >= 0"),
        ("otel", OTEL.replace("2026-01-01T00:00:02Z", "soon"), "row 1, start_time: 'soon' is not a time"),
        ("otel", OTEL.replace('"start_time": "2026-01-01T00:00:02Z", ', ""), "row 1, startTimeUnixNano: is missing"),
        ("otel", '{"attributes": {"http.method": "GET"}}', "holds no span with gen_ai.usage.input_tokens"),
    ],
)
def test_a_broken_row_is_one_clear_line(tmp_path: Path, trace_format: str, text: str, message: str) -> None:
    """The file, the row, the field, the value and the rule."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, text, trace_format)

    assert str(caught.value).startswith(str(tmp_path / "trace"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scales_multiply_times_and_lengths(tmp_path: Path) -> None:
    """Lengths are rounded and never 0; what clients ask for grows with the answers."""
    text = "arrival_time,prompt_tokens,output_tokens,max_tokens\n1,10,1,4\n3,15,8,8\n"

    plain = replay(tmp_path, text)
    scaled = replay(tmp_path, text, {"time_scale": 0.5, "prompt_scale": 2, "output_scale": 0.25})
    assert plain.arrival_time.tolist() == [1, 3]
    assert scaled.arrival_time.tolist() == [0.5, 1.5]
    assert scaled.prompt_tokens.tolist() == [20, 30]
    assert scaled.output_tokens.tolist() == [1, 2]
    assert scaled.max_tokens.tolist() == [1, 2]
    assert scaled.offered_rate == 2 * plain.offered_rate


@pytest.mark.parametrize("scale", ["time_scale", "prompt_scale", "output_scale"])
def test_a_scale_is_positive(scale: str) -> None:
    """Zero would make every request the same instant, or nothing."""
    with pytest.raises(ValueError, match="greater than 0"):
        TraceSpec.model_validate({"path": "trace", scale: 0})


def test_arrivals_may_replace_the_times_of_a_trace(tmp_path: Path) -> None:
    """The lengths stay, in the order of the rows; times are drawn, or a closed loop asks."""
    arrivals = {"process": "poisson", "rate": 2.0}

    drawn = replay(tmp_path, SHAREGPT, arrivals=arrivals)
    again = replay(tmp_path, SHAREGPT, arrivals=arrivals)
    assert drawn.prompt_tokens.tolist() == [11, 1]
    assert (np.diff(drawn.arrival_time, prepend=0.0) > 0).all()
    assert drawn.arrival_time.tolist() == again.arrival_time.tolist()
    assert (drawn.offered_rate, drawn.is_stationary) == (2.0, True)
    closed = replay(tmp_path, MOONCAKE, arrivals={"process": "closed_loop", "concurrency": 2, "think_time": "1 s"})
    assert closed.concurrency == 2
    assert closed.think_time.tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(closed.arrival_time).all()
    first = replay(tmp_path, MOONCAKE, arrivals=arrivals, num_requests=2)
    assert first.output_tokens.tolist() == [5, 6]
    short = replay(tmp_path, MOONCAKE, arrivals={"process": "constant", "rate": 1.0}, duration="2.5 s")
    assert short.arrival_time.tolist() == [1.0, 2.0]
    whole = replay(tmp_path, MOONCAKE, arrivals={"process": "constant", "rate": 1.0}, duration="60 s")
    assert len(whole) == 3


def test_a_trace_without_times_needs_arrivals(tmp_path: Path) -> None:
    """Named with the remedy; a time scale beside arrivals would do nothing."""
    with pytest.raises(TraceError, match=r"holds no arrival times; add workload\.arrivals beside the trace"):
        replay(tmp_path, SHAREGPT)
    with pytest.raises(ValueError, match=r"also trace\.time_scale; keep one of the two"):
        replay(tmp_path, SHAREGPT, {"time_scale": 2.0}, arrivals={"process": "poisson", "rate": 1.0})
    assert not issubclass(TraceError, ScenarioError)
