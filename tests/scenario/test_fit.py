"""Whether a deployment fits, what is said where it hardly does, and what would make it fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simserve.errors import InfeasibleError, InputError
from simserve.perf.memory import is_left_to_cpu
from simserve.planner.overrides import with_overrides
from simserve.scenario import fit
from simserve.scenario.fit import check_fit, leading_warnings, memory_report, open_limits, remedies
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from tests.builders import make_specs
from tests.scenario.builders import make_scenario

_GPT_OSS = {"model": "gpt-oss-120b"}
_UNTIL_0_16 = ["deployment.engine.version='0.11.2'"]
_NEWEST = ["deployment.engine.version='0.33'"]
WIDE_OPEN = "limits-wide-open"


@pytest.mark.parametrize("key", ["pricing.api", "deployment.overflow.api"])
def test_an_api_that_is_no_longer_served_leads_the_answer(key: str) -> None:
    """Whether a scenario is compared with it or sends requests there."""
    overflow = ["deployment.overflow={api: x, max_queue: 8, ttft: 400 ms, tokens_per_second: 100}"]
    changes = overflow * (key != "pricing.api")

    def told(api: str) -> list[str]:
        return [line for line in leading_warnings(make_scenario([*changes, f"{key}={api}"])) if "longer served" in line]

    assert told("deepinfra-llama-3.1-8b") == []
    (line,) = told("together-llama-3.1-8b")
    assert line.startswith(
        "together-llama-3.1-8b is no longer served: Together AI withdrew it on 2026-03-06; the same "
    )


@pytest.mark.parametrize("key", ["max_num_seqs", "max_num_batched_tokens"])
def test_a_limit_that_leaves_no_memory_is_named(key: str) -> None:
    """Activations grow with what the scenario sets; the largest power of two that fits is offered."""
    resolved = resolve(make_scenario([f"deployment.engine.{key}=1e9"]))

    with pytest.raises(InfeasibleError, match=f"--set deployment.engine.{key}="):
        check_fit(resolved)

    change = next(each for each in remedies(resolved) if key in each)
    check_fit(resolve(make_scenario([change])))


def test_a_limit_that_the_scenario_does_not_set_is_left_alone() -> None:
    """A default is not to blame for a model that is too large."""
    changes = remedies(resolve(make_scenario(["model=llama-3.1-70b"])))

    assert changes
    assert not [change for change in changes if "max_num" in change]


def test_a_cache_too_large_for_the_gpu_comes_with_the_largest_that_fits() -> None:
    """In the option that the scenario set."""
    asked = make_scenario(["deployment.engine.num_gpu_blocks_override=100000000"])
    found = remedies(resolve(asked))

    (change,) = [each for each in found if "num_gpu_blocks_override" in each]
    assert resolve(make_scenario([change])).memory.fits


def _with_traffic(prompt: int, output: int, **more: object) -> dict[str, object]:
    return {
        "prompt_tokens": {"distribution": "fixed", "value": prompt},
        "output_tokens": {"distribution": "fixed", "value": output},
        "arrivals": {"process": "poisson", "rate": 1.0},
        "num_requests": 20,
        **more,
    }


def test_a_context_that_is_cut_leads_the_answer() -> None:
    """Where nobody sets max_model_len it is what the KV cache holds; sources and warnings say so."""
    scenario = make_scenario(_NEWEST, **_GPT_OSS)

    resolved = resolve(scenario)

    check_fit(resolved)
    (warning,) = leading_warnings(scenario)
    cut = resolved.memory.max_model_len
    assert warning == f"max_model_len {cut:,} of 131,072: the longest that fits in the KV cache"
    assert "the longest that fits" in resolved.shape.engine.sources["max_model_len"]
    assert memory_report(resolved)["warnings"] == [warning]
    assert list(run(scenario, finishable=None, explain=False).summary["simserve"]["warnings"]) == [warning]


def test_a_context_that_is_set_is_not_cut() -> None:
    """It has to fit: the refusal says the longest that does."""
    resolved = resolve(make_scenario([*_NEWEST, "deployment.engine.max_model_len=131072"], **_GPT_OSS))

    with pytest.raises(InfeasibleError, match=f"the longest that fits is {resolved.memory.longest_sequence:,}"):
        check_fit(resolved)

    assert remedies(resolved)[0] == f"deployment.engine.max_model_len={resolved.memory.longest_sequence}"


def test_requests_beyond_a_cut_context_are_counted() -> None:
    """Half of the prompts are beyond what is left; the first line says how many of the run fail."""
    prompts = {"distribution": "uniform", "min": 1000, "max": 26_000}
    scenario = make_scenario(_UNTIL_0_16, **_GPT_OSS, workload=_with_traffic(1, 100, prompt_tokens=prompts))

    result = run(scenario, finishable=None, explain=False)

    (failed,) = [line for line in result.summary["simserve"]["warnings"] if "prompt_too_long" in line]
    count = result.summary["simserve"]["rejected"]["by_reason"]["prompt_too_long"]
    assert 0 < count < 20
    assert f"of 20 requests {count} fail (prompt_too_long)" in failed


def test_a_kv_cache_below_the_mean_request_is_refused() -> None:
    """No context is then worth a simulation; each remedy serves the longest request."""
    changes = {**_GPT_OSS, "workload": _with_traffic(60_000, 100)}
    resolved = resolve(make_scenario(_UNTIL_0_16, **changes))

    with pytest.raises(InfeasibleError, match="smaller than one request of 60,100 tokens, the mean of the traffic"):
        check_fit(resolved)

    assert not memory_report(resolved)["fits"]
    offered = remedies(resolved)
    assert offered
    assert resolve(make_scenario([*_UNTIL_0_16, offered[0]], **changes)).memory.max_model_len >= 60_100


def test_a_small_shortage_leads_the_answer_with_what_would_fit() -> None:
    """gpt-oss-120b lacks 1 % of an H100 at the defaults of vLLM 0.11.2, whose sampler sorts; fewer seats cost least."""
    scenario = make_scenario(_UNTIL_0_16, **_GPT_OSS)

    first = leading_warnings(scenario)[0]

    check_fit(resolve(scenario))
    assert first.startswith("does not quite fit: 866 MB lack on each GPU")
    change = first.partition("--set ")[2]
    assert change == "deployment.engine.max_num_seqs=512"
    assert resolve(make_scenario([*_UNTIL_0_16, change], **_GPT_OSS)).memory.shortage_bytes == 0.0


def test_remedies_come_in_the_order_of_what_they_cost() -> None:
    """Length, seats and budget, share of the memory, another checkpoint, more GPUs; no format without a checkpoint."""
    changes = [*_UNTIL_0_16, "deployment.engine.max_model_len=65536"]

    keys = [
        each.partition("=")[0].removeprefix("deployment.")
        for each in remedies(resolve(make_scenario(changes, **_GPT_OSS)))
    ]

    order = [
        "engine.max_model_len",
        "engine.max_num_seqs",
        "engine.max_num_batched_tokens",
        "engine.gpu_memory_utilization",
        "tensor_parallel_size",
        "pipeline_parallel_size",
    ]
    assert keys == [key for key in order if key in keys]
    assert "engine.max_num_seqs" in keys
    assert "tensor_parallel_size" in keys


@pytest.mark.parametrize(("prompt", "is_said"), [(4000, False), (8192, True)])
def test_prompts_that_fill_an_unsplit_budget_are_said(prompt: int, *, is_said: bool) -> None:
    """TensorRT-LLM without chunked prefill runs a prompt of its token budget alone; the knob is named."""
    overrides = ["deployment.engine.name=tensorrt-llm", "deployment.engine.version='1.1'"]
    scenario = make_scenario(overrides, model="llama-3.1-8b", workload=_with_traffic(prompt, 20))
    chunked = make_scenario(
        [*overrides, "deployment.engine.enable_chunked_prefill=true"],
        model="llama-3.1-8b",
        workload=_with_traffic(prompt, 20),
    )

    found = leading_warnings(scenario)

    assert [("token budget of 8,192 run one at a time" in each) for each in found] == [True] * is_said
    assert leading_warnings(chunked) == []


@pytest.mark.parametrize(
    ("model", "stages", "longest"), [("deepseek-r1", 1, 163_840), ("glm-5", 1, 202_752), ("kimi-k2", 2, 131_072)]
)
def test_public_deployments_fit(model: str, stages: int, longest: int) -> None:
    """DeepSeek-R1 and GLM-5 on 8 H200, Kimi-K2 on 16, as stored and at their full context."""
    deployment = {"hardware": "h200-sxm-141gb", "tensor_parallel_size": 8, "pipeline_parallel_size": stages}

    resolved = resolve(make_scenario(model=model, deployment=deployment))

    check_fit(resolved)
    assert (resolved.memory.max_model_len, resolved.memory.shortage_bytes) == (longest, 0.0)


def test_kimi_k2_on_eight_gpus_says_its_longest_context() -> None:
    """121 GiB of weights a GPU leave room for some 40,000 tokens."""
    scenario = make_scenario(model="kimi-k2", deployment={"hardware": "h200-sxm-141gb", "tensor_parallel_size": 8})

    (warning,) = leading_warnings(scenario)

    assert warning.startswith("max_model_len 41,568 of 131,072: the longest")


def test_llama_405b_as_stored_in_fp8_holds_some_190_000_tokens_on_8_h100() -> None:
    """Attention stays in 16 bit: 203,000 tokens before 2.1 GiB of runtime a GPU, and 343,000 if all were FP8."""
    deployment = {"hardware": "h100-sxm-80gb", "tensor_parallel_size": 8, "quantization": "fp8"}

    memory = resolve(make_scenario(model="llama-3.1-405b", deployment=deployment)).memory

    assert memory.num_kv_blocks * memory.block_size == pytest.approx(195_000, rel=0.05)


def test_a_smaller_format_is_named_before_layers_on_the_cpu() -> None:
    """Which take as many times longer as host memory is slower; more GPUs come last."""
    deployment = {"hardware": "rtx-5090-32gb", "engine": {"name": "llama.cpp", "version": "b6000"}}
    found = remedies(resolve(make_scenario(model="mistral-small-24b", deployment=deployment)))

    kinds = [change.partition("=")[0].removeprefix("deployment.") for change in found]
    assert kinds.index("quantization") < kinds.index("engine.n_gpu_layers") < kinds.index("pipeline_parallel_size")


def test_each_limit_is_named_with_its_figure() -> None:
    """Question 6 of the texts: 95 % of the memory, 32,768 tokens a step, no maximum length."""
    said = open_limits(resolve(load(WIDE_OPEN)))

    assert said is not None
    assert "a step of 32,768 prompt tokens takes" in said
    assert "may take 131,072 tokens, 17.18 GB a GPU" in said
    assert "95% of the memory leaves 4.255 GB" in said


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ("deployment.engine.max_num_batched_tokens=4096", "a step of"),
        ("deployment.engine.max_model_len=16384", "without a maximum length"),
        ("deployment.engine.gpu_memory_utilization=0.9", "of the memory leaves"),
    ],
)
def test_what_is_advised_mends_it(change: str, gone: str) -> None:
    """Each advice alone takes its own complaint away and leaves the others."""
    before, after = open_limits(resolve(load(WIDE_OPEN))), open_limits(resolve(load(WIDE_OPEN, [change])))

    assert before is not None
    assert after is not None
    assert f"--set {change}" in before
    assert gone in before
    assert gone not in after
    assert after.count(";") == before.count(";") - 1


def test_ordinary_limits_are_no_news() -> None:
    """A scenario that sets them says nothing."""
    assert open_limits(resolve(load("chatbot"))) is None


def test_a_length_beyond_the_model_is_simulated_and_said() -> None:
    """Question 4 of the texts asks for 16,384 tokens of a model of 4,096: a quarter as many requests fit."""
    shape = ["model=llama-2-13b", "deployment.hardware=a100-sxm-80gb", "deployment.tensor_parallel_size=1"]
    shape += ["deployment.quantization=none", "deployment.kv_cache_dtype=auto"]
    usual = resolve(load("chatbot", [*shape, "deployment.engine.max_model_len=4096"]))
    beyond = resolve(load("chatbot", [*shape, "deployment.engine.max_model_len=16384"]))

    assert usual.memory.max_concurrent_full_length is not None
    assert beyond.memory.max_concurrent_full_length == pytest.approx(usual.memory.max_concurrent_full_length / 4)
    assert "trained on 4,096 positions" in (open_limits(beyond) or "")
    assert "trained on" not in (open_limits(usual) or "")


def test_a_budget_beyond_the_table_has_its_step_too() -> None:
    """vLLM before chunked prefill takes max_model_len as its budget, 131,072 here: more than is tabulated."""
    changes = ["deployment.quantization=none", "deployment.kv_cache_dtype=auto"]
    changes += ["deployment.engine={name: vllm, version: '0.2.7'}", "deployment.hardware=h200-sxm-141gb"]

    said = open_limits(resolve(load("chatbot", changes)))

    assert said is not None
    assert "a step of 131,072 prompt tokens takes" in said
    assert said.count("--set") == 1
    advice = said.rsplit("--set ", 1)[1].removesuffix(".")
    assert advice.startswith("deployment.engine.max_model_len=")
    assert "a step of" not in (open_limits(resolve(load("chatbot", [*changes, advice]))) or "")


def test_the_length_that_is_advised_is_one_that_people_set() -> None:
    """A power of two, also where the longest that fits is an odd number of tokens."""
    resolved = resolve(
        make_scenario(["model=llama-3.1-8b", "deployment.hardware=l4-24gb", "deployment.engine.version=0.33"])
    )

    advice = open_limits(resolved) or ""

    assert resolved.memory.max_model_len % 1024
    assert advice.endswith("--set deployment.engine.max_model_len=2048")


@pytest.mark.parametrize(
    ("engine", "is_moved"), [("llama.cpp", True), ("ollama", True), ("llama.cpp, version: b6000", False)]
)
def test_engines_that_take_no_share_of_the_memory_are_not_told_one(engine: str, is_moved: bool) -> None:
    """Their slots take what their context needs: a shorter one or smaller weights make room, or layers on the CPU."""
    changes = ["model=qwen3-30b-a3b", "deployment.hardware=rtx-5090-32gb", f"deployment.engine={{name: {engine}}}"]
    changes += ["deployment.engine.max_num_seqs=8", "deployment.engine.max_model_len=32768"]
    small, large = (
        resolve(make_scenario([*changes, f"deployment.quantization={each}"])) for each in ("gguf-q6_k", "gguf-q8_0")
    )

    said = next(each for each in leading_warnings(small) if "slots" in each)
    assert said.startswith("8 slots of 32,768 tokens take")
    assert said.endswith("--set deployment.engine.max_model_len=8192")
    assert not any("slots" in each for each in leading_warnings(make_scenario([*changes[:-2]])))
    found = [each.partition("=")[0] for each in remedies(large)]
    assert {"deployment.engine.max_model_len", "deployment.quantization"} <= {*found}
    assert ("deployment.engine.n_gpu_layers" in found) != is_moved
    assert not any("gpu_memory_utilization" in each for each in (said, *found))


def test_a_large_mixture_of_experts_is_told_to_leave_experts_to_the_cpu() -> None:
    """Before whole layers, which cost more of its speed; a dense model has none to leave."""
    engine = {"name": "llama.cpp", "version": "b7000", "max_model_len": 8192}
    deployment = {"hardware": "rtx-4090-24gb", "engine": engine}
    found = [
        [each.partition("=")[0].removeprefix("deployment.engine.") for each in remedies(resolve(scenario))]
        for scenario in (
            make_scenario(model="gpt-oss-120b", deployment=deployment),
            make_scenario(model="qwen2.5-72b", deployment={**deployment, "quantization": "gguf-q4_k_m"}),
        )
    ]

    assert found[0].index("n_cpu_moe") < found[0].index("n_gpu_layers")
    assert "n_cpu_moe" not in found[1]
    assert "n_gpu_layers" in found[1]


@pytest.mark.parametrize(
    ("model", "engine", "is_told"),
    [("glm-4.7-flash", "vllm", True), ("qwen3-32b", "vllm", False), ("glm-4.7-flash", "llama.cpp", False)],
)
def test_weights_in_four_bits_are_told_where_no_known_checkpoint_is_small_enough(
    model: str, engine: str, is_told: bool
) -> None:
    """Before more GPUs: only these were told. Where a known checkpoint fits, or the engine makes one, that is told."""
    version = {"llama.cpp": {"version": "b7000"}}.get(engine, {})
    deployment = {"hardware": "rtx-5090-32gb", "engine": {"name": engine, **version}, "quantization": "none"}

    with pytest.raises(InfeasibleError) as refused:
        check_fit(resolve(make_scenario(model=model, deployment=deployment, workload=_with_traffic(2000, 200))))

    first = (refused.value.remedy or "").partition(" or ")[0]
    assert "deployment.quantization=" in first
    assert first.endswith("=awq-int4 (if there is such a checkpoint)") == is_told


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (["model=qwen3-8b"], "needs a model with experts, and qwen3-8b has none"),
        (["model=qwen3-30b-a3b", "deployment.pipeline_parallel_size=2"], "needs one GPU, not 2"),
        (["model=qwen3-30b-a3b", "deployment.engine.name=vllm"], "has no choice of the layers whose experts"),
    ],
)
def test_experts_on_the_cpu_need_experts_and_one_gpu(changes: list[str], rule: str) -> None:
    """Under llama.cpp alone."""
    asked = ["deployment.engine={name: llama.cpp, n_cpu_moe: 8}", "deployment.hardware=rtx-4090-24gb", *changes]

    with pytest.raises(InputError, match=rule):
        resolve(make_scenario(asked))


@pytest.mark.parametrize(("prompt", "slots", "is_told"), [(6000, 4, True), (1000, 4, False), (6000, 1, False)])
def test_slots_that_ask_for_more_than_their_buffer_are_told(prompt: int, slots: int, is_told: bool) -> None:
    """llama.cpp ends requests there, which is not simulated."""
    engine = {"name": "llama.cpp", "max_model_len": 8192, "max_num_seqs": slots, "kv_unified": True}
    deployment = {"hardware": "rtx-4090-24gb", "quantization": "gguf-q4_k_m", "engine": engine}
    asked = make_scenario(model="qwen3-8b", deployment=deployment, workload=_with_traffic(prompt, 200))

    found = [each for each in leading_warnings(asked) if "share one KV buffer of 8,192 tokens" in each]
    assert len(found) == is_told


@pytest.mark.parametrize(
    ("arrivals", "whole"),
    [
        ("{process: daily, rate: 2, peak_hour: 14}", 2 * 86_400),
        ("{process: daily, rate: 2, hours: [1,1,1,1,1,1,1,1,1,1,1,1,9,1,1,1,1,1,1,1,1,1,1,1]}", 2 * 86_400),
        ("{process: spike, rate: 2, factor: 10, at: 1 h, spike_duration: 1 min}", 2 * 3600 + 20 * 60 + 2),
    ],
)
def test_traffic_that_ends_before_its_busiest_time_is_named(arrivals: str, whole: int) -> None:
    """With the number of requests that cover the whole curve: its integral."""
    changes = [f"workload.arrivals={arrivals}", "workload.num_requests=2000"]
    (note,) = (each for each in leading_warnings(load("chatbot", changes)) if "busiest" in each)
    named = int(note.rpartition("=")[2])

    assert named == pytest.approx(whole, abs=1)
    assert not any(
        "busiest" in each for each in leading_warnings(load("chatbot", [*changes, f"workload.num_requests={named}"]))
    )


def test_a_day_by_its_duration_is_named_by_its_duration() -> None:
    """Where the scenario says how long and not how many."""
    base = ["workload.num_requests=null", "workload.arrivals={process: daily, rate: 2, start_hour: 3}"]
    short, whole = (leading_warnings(load("chatbot", [*base, f"workload.duration={each}"])) for each in ("2h", "1d"))

    assert any("busiest" in each and "workload.duration=" in each for each in short)
    assert not any("busiest" in each for each in whole)


def test_ollama_moves_layers_where_its_context_does_not_fit() -> None:
    """It never shortens the context: all layers that fit beside it stay, and one more does not fit."""
    there = make_scenario(
        ["deployment.engine={name: ollama, version: 0.15.5}", "deployment.quantization=gguf-q4_k_m"],
        model="qwen3-32b",
        deployment={"hardware": "rtx-4090-24gb"},
    )
    resolved = resolve(there)
    layers = resolved.shape.engine.num_gpu
    (note,) = (each for each in leading_warnings(there) if "CPU" in each)
    assert layers is not None
    asked, more = (
        resolve(with_overrides(there, {"deployment.engine.num_gpu": each})).memory for each in (layers, layers + 1)
    )

    assert note.startswith(f"1 x rtx-4090-24gb holds {layers} of 64 layers of qwen3-32b: ollama leaves the rest")
    assert (asked.max_model_len, asked.num_kv_blocks) == (32_768, resolved.memory.num_kv_blocks)
    assert more.max_model_len < 32_768


@pytest.mark.parametrize(
    ("model", "engine", "length", "key"),
    [
        ("gpt-oss-120b", "{name: llama.cpp}", 4096, "n_cpu_moe"),
        ("qwen2.5-72b", "{name: llama.cpp}", 4096, "n_gpu_layers"),
        ("qwen2.5-72b", "{name: llama.cpp, max_model_len: 8192}", 8192, "n_gpu_layers"),
        ("qwen2.5-72b", "{name: ollama}", 32_768, "num_gpu"),
    ],
)
def test_what_does_not_fit_goes_to_the_cpu_as_the_engine_does_it(
    model: str, engine: str, length: int, key: str
) -> None:
    """As if the number had been set, with one step less not fitting; experts before layers."""
    changes = [f"deployment.engine={engine}", "deployment.quantization=auto", "deployment.hardware=rtx-4090-24gb"]
    changes += [] if model.startswith("gpt") else ["deployment.quantization=gguf-q4_k_m"]
    resolved = resolve(make_scenario([f"model={model}", *changes]))
    number = getattr(resolved.shape.engine, key)
    less = number - 1 if key == "n_cpu_moe" else number + 1
    told = [f"model={model}", *changes, f"deployment.engine.max_model_len={length}"]
    same, short = (resolve(make_scenario([*told, f"deployment.engine.{key}={each}"])) for each in (number, less))

    assert resolved.memory.fits
    assert resolved.memory.max_model_len == length
    assert same.memory.parts == resolved.memory.parts
    assert not short.memory.fits
    assert is_left_to_cpu(resolved.shape.engine)
    assert not is_left_to_cpu(same.shape.engine)


@pytest.mark.parametrize(
    "changes",
    [
        ["deployment.engine={name: llama.cpp, version: b7000}", "deployment.hardware=rtx-4090-24gb"],
        ["deployment.engine={name: vllm}", "deployment.hardware=rtx-4090-24gb", "deployment.quantization=awq-int4"],
        ["deployment.engine={name: ollama}", "deployment.hardware=m3-max-48gb"],
        ["deployment.engine={name: ollama, num_gpu: 70}", "deployment.hardware=rtx-4090-24gb"],
    ],
)
def test_nothing_goes_to_the_cpu_by_itself_elsewhere(changes: list[str]) -> None:
    """Older builds, engines without it, memory that CPU and GPU share, and a number that is set."""
    there = ["model=qwen2.5-72b", "deployment.quantization=gguf-q4_k_m", *changes]
    assert not resolve(make_scenario(there)).memory.fits


def test_llama_cpp_shortens_the_context_itself() -> None:
    """Its own fitting takes the context first (common/fit.cpp)."""
    there = make_scenario(
        ["deployment.engine={name: llama.cpp}", "deployment.quantization=gguf-q4_k_m"],
        model="qwen3-32b",
        deployment={"hardware": "rtx-4090-24gb"},
    )

    assert not any("on the CPU" in each for each in leading_warnings(there))


def test_prompts_of_exactly_the_budget_run_alone_and_longer_ones_fail() -> None:
    """Whole prompts in a budget of 100 tokens: one that fills it is told, and none of those that fit fails."""
    config = {"batching": "continuous", "kv_allocation": "paged", "enable_chunked_prefill": False}
    engine = SimpleNamespace(**config, max_num_batched_tokens=100, max_model_len=400)
    resolved: Any = SimpleNamespace(engine=engine)

    def told(*prompts: int) -> list[str]:
        return fit._whole_prompt_notes(resolved, make_specs([0.0] * len(prompts), prompts, 1))

    assert told(99, 50) == []
    assert "fail" not in told(100, 50)[0]
    assert "1 of 2 requests are longer and fail" in told(101, 100)[0]


def test_a_remedy_must_hold_the_longest_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 tokens are needed: 999 are too few, 1,000 are enough; a shortage and layers on the CPU do not count."""
    plans = {
        1: _memory(max_model_len=999),
        2: _memory(shortage_bytes=5.0),
        3: _memory(fits=False),
        4: None,
        5: _memory(engine="moved"),
        6: _memory(max_model_len=1000),
    }
    monkeypatch.setattr(fit, "_plan", lambda _scenario, _key, value: plans[value])
    monkeypatch.setattr(fit, "is_left_to_cpu", lambda engine: engine == "moved")

    assert list(fit._fitting(make_scenario(), [("replicas", each) for each in plans], 1000)) == [
        "deployment.replicas=6"
    ]


def _memory(engine: str = "", **changes: Any) -> SimpleNamespace:
    plan = {"fits": True, "shortage_bytes": 0.0, "max_model_len": 4000} | changes
    return SimpleNamespace(**plan, shape=SimpleNamespace(engine=engine))


@pytest.mark.parametrize(("ranks", "nodes"), [(8, ""), (12, " (2 nodes)"), (16, " (2 nodes)"), (32, " (4 nodes)")])
def test_more_gpus_than_a_node_has_are_counted_in_nodes(ranks: int, nodes: str) -> None:
    """Eight a node; a part of a node is one."""
    hardware = SimpleNamespace(intra_node=SimpleNamespace(gpus_per_node=8))
    resolved: Any = SimpleNamespace(shape=SimpleNamespace(num_gpus=2, tensor_parallel_size=2, hardware=hardware))

    assert fit._where(resolved, f"deployment.tensor_parallel_size={ranks}") == nodes
