"""What an engine's version lacks is refused with the versions that have it; what it has by a detour is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.perf.collectives import all_reduce_seconds
from simserve.perf.tables import price
from simserve.profiles.engine_options import EngineOptions
from simserve.scenario.combinations import feature_notes, model_lack_of, without_effect
from simserve.scenario.fit import leading_warnings
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario

VLLM = "deployment.engine.version={}"
NGRAM = "{method: ngram, num_speculative_tokens: 3, acceptance_rate: 0.5}"
LLAMA_SIZES = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
AITER = ", attention_backend: aiter"
SGLANG_B200 = ["deployment.engine={name: sglang, version: '0.5.9'}", "deployment.hardware=b200-sxm-180gb"]
_EIGHT_H100 = [
    "deployment.engine={name: sglang, version: '0.5.9'}",
    "deployment.hardware=h100-sxm-80gb",
    "deployment.tensor_parallel_size=8",
]
EXPERTS = ["model=mixtral-8x7b", "deployment.quantization=none"]


def _config_of(folder: Path, architecture: str) -> Path:
    """Write the config.json of a Llama under another class."""
    file = folder / "config.json"
    file.write_text(json.dumps({"architectures": [architecture], "model_type": "llama", **LLAMA_SIZES}))
    return file


def on(version: str, *overrides: str) -> list[str]:
    """Return overrides on a version of vLLM."""
    return [f"deployment.engine.version='{version}'", *overrides]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            on(
                "0.10",
                f"deployment.speculative={NGRAM.replace('ngram', 'draft_model')[:-1]}, draft_model: llama-3.2-1b}}",
            ),
            r"speculative.method: 'draft_model' does not run: vllm 0.10 has no .* \(versions with it: 0.4.1 to "
            r"before 0.10, 0.15 and newer\); set deployment.engine.version",
        ),
        (on("0.4.0", f"deployment.speculative={NGRAM}"), "vllm 0.4.0 has no speculative decoding by n-grams"),
        (
            on("0.12", "deployment.engine.preemption_mode=swap"),
            "engine.preemption_mode: 'swap' .* 0.5.1 to before 0.11",
        ),
        (
            on("0.6.0", "deployment.engine.scheduling_policy=priority"),
            "scheduling_policy: 'priority' .* 0.6.3 and newer",
        ),
        *(
            (
                [f"deployment.engine={{name: {engine}, scheduling_policy: priority}}"],
                f"scheduling_policy: 'priority' does not run: {engine} .* has no queue by priority .no version has",
            )
            for engine in ("tgi", "llama.cpp")
        ),
        (
            ["deployment.engine={name: tensorrt-llm, version: '1.2', scheduling_policy: priority}"],
            "tensorrt-llm 1.2 has no queue by priority .that of 1.3 and newer is not simulated.; leave it out",
        ),
        (
            ["deployment.engine={name: tensorrt-llm, scheduling_policy: priority}"],
            "tensorrt-llm 1.3 orders by priority .* no seat yet, .* which is not simulated; leave it out",
        ),
        (on("0.12", "deployment.kv_cache_dtype=int8"), "kv_cache_dtype: 'int8' .* vllm 0.12 has no INT8 KV cache"),
        (on("0.2.7", "deployment.engine.enable_prefix_caching=true"), "vllm 0.2.7 has no prefix caching"),
        (on("0.2.7", "deployment.engine.enable_chunked_prefill=true"), "vllm 0.2.7 has no chunked prefill"),
        (on("0.10.1", "deployment.engine.kv_cache_memory_bytes=1000000000"), "0.10.2 and newer"),
        (on("0.8.0", "deployment.engine.long_prefill_token_threshold=512"), "0.8.3 and newer"),
        (on("0.6.6", *EXPERTS, "deployment.enable_expert_parallel=true"), "vllm 0.6.6 has no expert parallelism"),
        (on("0.8.0", *EXPERTS, "deployment.data_parallel_size=2"), "vllm 0.8.0 has no data-parallel attention"),
        (on("0.5.0", "deployment.engine.cpu_offload_gb=4"), "vllm 0.5.0 has no weights kept in host memory"),
        (
            ["deployment.engine={name: llama.cpp}", "deployment.engine.cpu_offload_gb=4"],
            "cpu_offload_gb.* llama.cpp b11549 has no .* write deployment.engine.n_gpu_layers",
        ),
        (["deployment.engine.n_gpu_layers=4"], "vllm 0.12 has no choice .* write deployment.engine.cpu_offload_gb"),
        (
            ["deployment.engine={name: tgi, version: '3.0'}", "deployment.engine.num_gpu_blocks_override=4"],
            r"tgi 3.0 has no number of KV blocks set by hand \(no version has\); leave it out",
        ),
        (
            on(
                "0.6.0",
                "deployment.pools=[{name: p, role: prefill}, {name: d, role: decode}]",
                "deployment.disaggregation={}",
            ),
            "pools.0.role: 'prefill' does not run: vllm 0.6.0 has no hand-over of KV caches",
        ),
        (["model=mixtral-8x7b", *on("0.10", "deployment.quantization=mxfp4")], "vllm 0.10 has no MXFP4 weights"),
        (
            ["model=deepseek-v3.2", *on("0.10.2")],
            r"engine.version: '0.10.2' does not run: vllm 0.10.2 has no code for deepseek-v3.2 "
            r"\(DeepseekV32ForCausalLM; versions with it: 0.11 and newer\); set deployment.engine.version",
        ),
        (["model=gpt-oss-20b", *on("0.10")], "no code for gpt-oss-20b .* 0.10.1 and newer"),
        (["model=nemotron-3-nano-30b-a3b", *on("0.10.2")], "no code for nemotron.* 0.11.1 and newer"),
        (["model=internlm-20b", *on("0.24")], r"no code for internlm-20b .* those before 0.24\)"),
        (
            ["model=glm-5", "deployment.engine={name: sglang, version: 0.5.8}"],
            "sglang 0.5.8 has no code for glm-5 .* 0.5.9 and newer",
        ),
        (
            ["model=qwen3-next-80b-a3b", "deployment.engine={name: tensorrt-llm, version: '1.1'}"],
            "tensorrt-llm 1.1 has no code for qwen3-next-80b-a3b .* 1.2 and newer",
        ),
        (["model=qwen3-8b", *on("0.7.1")], "vllm 0.7.1 has no code for qwen3-8b .* 0.8.4 and newer"),
        (["model=qwen3-30b-a3b", *on("0.8.3")], "vllm 0.8.3 has no code for qwen3-30b-a3b .* 0.8.4 and newer"),
        *(
            ([f"model={model}", f"deployment.engine={{name: {engine}, version: {version}}}"], message)
            for model, engine, version, message in (
                ("qwen3-8b", "lmdeploy", "'0.5'", "lmdeploy 0.5 has no code for qwen3-8b .* 0.7.3 and newer"),
                ("qwen3-8b", "ollama", "0.6.5", "ollama 0.6.5 has no code for qwen3-8b .* 0.6.6 and newer"),
                ("qwen3-8b", "llama.cpp", "b4000", "llama.cpp b4000 has no code for qwen3-8b .* b5092 and newer"),
                ("gemma-3-12b", "llama.cpp", "b4874", "no code for gemma-3-12b .* b4875 and newer"),
            )
        ),
        (
            on(
                "0.8.2",
                f"deployment.speculative={NGRAM.replace('ngram', 'draft_model')[:-1]}, draft_model: gemma-4-31b}}",
            ),
            r"vllm 0.8.2 has no code for gemma-4-31b .*; set .* to one that has it, or choose another draft_model",
        ),
        (
            ["model=gpt-oss-20b", "deployment.hardware=v100s-32gb", *on("0.12", "deployment.quantization=mxfp4")],
            r"vllm 0.12 has no MXFP4 weights on v100s-32gb \(7.0\): that takes compute capability 8 or newer",
        ),
    ],
)
def test_what_the_version_lacks_is_refused(overrides: Sequence[str], message: str) -> None:
    """One line: the key, the value, the version, the versions that have it, and what to do."""
    with pytest.raises(InputError, match=message) as caught:
        resolve(make_scenario(overrides))

    assert "\n" not in str(caught.value)


def test_what_a_version_has_runs_though_its_defaults_are_an_older_ones() -> None:
    """vLLM 0.40 runs MXFP4, and the answer says whose defaults hold."""
    scenario = make_scenario(["model=gpt-oss-20b", *on("0.40", "deployment.quantization=mxfp4")])

    notes = run(scenario).summary["simserve"]["engine_resolved"]["notes"]
    assert "vllm 0.40: defaults of 0.33, the nearest older known" in notes


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=internlm-20b", *on("0.23")],
        ["model=llama-3.1-8b", *on("0.2.7")],
        ["model=gpt-3-175b", "deployment.tensor_parallel_size=8", *on("0.9")],
    ],
)
def test_of_models_that_no_fact_is_known_of_nothing_is_said(overrides: Sequence[str]) -> None:
    """Or whose versions hold the one asked for: an old class, one that is gone later, one of no published class."""
    scenario = make_scenario(overrides)

    assert resolve(scenario).shape.engine.name == "vllm"
    assert model_lack_of(scenario, scenario.deployment.engine.version) is None


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.7.2"), ("vllm", "0.8.3"), ("sglang", "0.4.7")])
def test_a_dense_model_without_code_of_its_own_runs_through_transformers(
    tmp_path: Path, engine: str, version: str
) -> None:
    """A warning that leads the answer says so, with the library's version; own code says nothing."""
    model = "model=qwen3-8b" if engine == "vllm" else f"model={_config_of(tmp_path, 'SmolLM3ForCausalLM')}"
    deployment = f"deployment.engine={{name: {engine}, version: '{version}'}}"
    scenario = make_scenario([model, deployment])
    newer = make_scenario([model, "deployment.engine={name: vllm, version: '0.12'}"])

    told = [each for each in leading_warnings(scenario) if "transformers" in each]
    assert len(told) == 1
    assert "has no code of its own" in told[0]
    assert "transformers 4.5" in told[0]
    assert model_lack_of(scenario, version) is None
    assert [each for each in leading_warnings(newer) if "transformers" in each] == []


@pytest.mark.parametrize(
    ("model", "engine", "is_told"),
    [
        ("mistral-small-24b", "ollama", True),
        ("qwen3-8b", "tgi", True),
        ("llama-3.1-8b", "tgi", False),
        ("llama-3.1-8b", "llama.cpp", False),
        ("gemma-3-12b", "lmdeploy", True),
        ("qwen3-8b", "lmdeploy", False),
        ("gpt-3-175b", "tgi", False),
        ("mimo-v2-flash", "tensorrt-llm", True),
        ("glm-4.6", "tensorrt-llm", False),
        ("llama-3.1-8b", "tensorrt-llm", False),
    ],
)
def test_what_is_not_known_of_an_engine_is_said(model: str, engine: str, is_told: bool) -> None:
    """In one line, of engines whose tables name what they run."""
    scenario = make_scenario(
        [f"model={model}", f"deployment.engine={{name: {engine}}}", "deployment.tensor_parallel_size=8"]
    )

    told = [each for each in leading_warnings(scenario) if "is not checked" in each]
    assert len(told) == is_told


def test_the_kernels_of_experts_decide_how_much_memory_they_take() -> None:
    """Marlin's tiles are 1.4 GB more of gpt-oss-120b than Triton's, which vLLM takes on Hopper by itself."""

    def weights(*more: str) -> float:
        return resolve(make_scenario(["model=gpt-oss-120b", *on("0.11"), *more])).memory.weights_bytes

    marlin, triton = (weights(f"deployment.engine.moe_backend={name}") for name in ("marlin", "triton"))

    assert weights() == triton
    assert marlin - triton == pytest.approx(1.44e9, rel=0.01)
    with pytest.raises(InputError, match=r"moe_backend: 'triton' takes compute capability 9 to before 11, .* has 8.0"):
        weights("deployment.engine.moe_backend=triton", "deployment.hardware=a100-sxm-80gb")
    with pytest.raises(InputError, match=r"moe_backend: .* vllm 0.10 has no choice of the kernels of experts"):
        weights(*on("0.10"), "model=mixtral-8x7b", "deployment.engine.moe_backend=marlin")


def test_flashinfers_products_take_longer_for_prompts_of_weights_by_blocks_on_blackwell() -> None:
    """DeepSeek in FP8: products a sixth as quick for long prompts as DeepGEMM's; elsewhere refused."""

    def prompt_seconds(*more: str) -> float:
        rest = ["deployment.tensor_parallel_size=8", "deployment.quantization=fp8", *more]
        scenario = make_scenario(["model=deepseek-v3", *SGLANG_B200, *rest])
        return float(price(resolve(scenario).shape, 4096).parts.token[:, -1].sum())

    other = "deployment.engine.fp8_gemm_backend=flashinfer_trtllm"
    usual, named = prompt_seconds(), prompt_seconds("deployment.engine.fp8_gemm_backend=deep_gemm")
    told = "deployment.engine.fp8_gemm_backend has no effect: the model has no FP8 weights with scales by blocks"

    assert named == usual
    assert 1.2 * usual < prompt_seconds(other) < 2.0 * usual
    assert told in without_effect(make_scenario([*SGLANG_B200, other]), None)
    assert told not in without_effect(
        make_scenario(["model=deepseek-v3", *SGLANG_B200, "deployment.quantization=fp8", other]), None
    )
    with pytest.raises(InputError, match=r"fp8_gemm_backend: 'flashinfer_trtllm' takes compute capability 10, .* 9.0"):
        prompt_seconds(other, "deployment.hardware=h200-sxm-141gb")
    with pytest.raises(
        InputError, match=r"fp8_gemm_backend: .* vllm 0.18 has no choice of the kernels of FP8 products"
    ):
        resolve(make_scenario([*on("0.18"), other]))


def test_sglang_reduces_in_a_ring_unless_nvls_is_asked_for() -> None:
    """Over eight GPUs; an all-reduce takes 1,023 and 844 us on H100 (sglang pull request 3502). vLLM leaves NVLS on."""

    def reduction_seconds(*more: str) -> float:
        scenario = make_scenario(["model=deepseek-v3", "deployment.quantization=fp8", *_EIGHT_H100, *more])
        return float(all_reduce_seconds(np.array([2.0**28]), 8, resolve(scenario).shape.tensor_link)[0])

    asked, told = "deployment.engine.enable_nccl_nvls=true", "deployment.engine.enable_nccl_nvls has no effect"
    usual = reduction_seconds()

    assert 1.15 < usual / reduction_seconds(asked) < 1.4
    assert reduction_seconds("deployment.engine={name: vllm, version: '0.20.2'}") < 0.9 * usual
    assert not any(told in each for each in without_effect(make_scenario([*_EIGHT_H100, asked]), None))
    fewer = make_scenario([*_EIGHT_H100, "deployment.tensor_parallel_size=4", asked])
    assert any(told in each for each in without_effect(fewer, None))
    with pytest.raises(InputError, match=r"enable_nccl_nvls: .* has no choice of reductions in the NVSwitch"):
        resolve(make_scenario([*on("0.18"), asked]))


def test_tritons_attention_reads_the_cache_at_half_the_rate_on_amd() -> None:
    """On GPUs that have a rate for it; prompts take as long. vLLM 0.9 to 0.18 run it where nobody says another."""
    sglang, triton = "deployment.engine={name: sglang, version: '0.5.9'}", "deployment.engine.attention_backend=triton"
    mi300x = ["deployment.hardware=mi300x-192gb", "deployment.quantization=none", "model=llama-3.1-8b", sglang]

    def seconds(*more: str) -> tuple[float, float]:
        priced = price(resolve(make_scenario([*mi300x, *more])).shape, 4096)
        return float(priced.step_times.decode_slope[8]), float(priced.parts.token[:, -1].sum())

    (usual, prompt), (slow, same) = seconds(), seconds(triton)
    told = "deployment.engine.attention_backend has no effect: {} has one rate for all kernels of attention"

    assert seconds("deployment.engine.attention_backend=aiter") == (usual, prompt)
    assert 1.8 * usual < slow < 2.8 * usual
    assert same == prompt
    assert told.format("h100-sxm-80gb") in without_effect(make_scenario([sglang, triton]), None)
    assert told.format("mi300x-192gb") not in without_effect(make_scenario([*mi300x, triton]), None)
    wider = ["deployment.hardware=mi355x-288gb", "model=qwen3.5-27b", sglang, triton]  # heads of 256
    assert not any("attention_backend" in each for each in without_effect(make_scenario(wider), None))
    assert told.format("mi355x-288gb") in without_effect(make_scenario([*wider, "model=llama-3.1-8b"]), None)
    # Latent attention has another pace by Triton's kernel; sparse attention has kernels of its own.
    latent, sparse = (
        without_effect(make_scenario([*wider, f"model={each}"]), None) for each in ("deepseek-v3", "glm-5")
    )
    assert told.format("mi355x-288gb") not in latent
    assert told.format("mi355x-288gb") in sparse
    with pytest.raises(InputError, match=r"attention_backend: .* vllm 0.8 has no choice of the kernels of attention"):
        resolve(make_scenario([*on("0.8"), triton]))
    for version, backend in (("0.12", "triton"), ("0.18", "triton"), ("0.19", "")):
        own, asked = (
            seconds(f"deployment.engine={{name: vllm, version: '{version}'{more}}}")[0] for more in ("", AITER)
        )
        assert (own > asked) == (backend == "triton"), version


def test_experts_on_amd_are_tritons_where_the_engine_leaves_aiter_off() -> None:
    """vLLM without its switch, SGLang before 0.4.6; AMD's attention brings AMD's experts, and either can be named."""
    moe = ["model=qwen3-30b-a3b", "deployment.hardware=mi300x-192gb", "deployment.quantization=fp8"]

    def seconds(engine: str, *more: str) -> float:
        shape = resolve(make_scenario([*moe, f"deployment.engine={{{engine}}}", *more])).shape
        return float(price(shape, 4096).parts.token[:, 128].sum())

    vllm, sglang = "name: vllm, version: '0.14'", "name: sglang, version: '{}'"
    aiter, triton = (seconds(f"{vllm}, moe_backend: {name}") for name in ("aiter", "triton"))
    only_experts = seconds(f"{vllm}{AITER}, moe_backend: triton")  # AMD's products in FP8 by blocks beside them

    assert only_experts - aiter == pytest.approx(48 * 106e-6, rel=0.05)
    assert seconds(vllm) == triton > only_experts
    assert seconds(vllm + AITER) == aiter
    early, late = (
        resolve(make_scenario([*moe, f"deployment.engine={{{sglang.format(each)}}}"])) for each in ("0.4.5", "0.4.6")
    )
    assert (early.shape.moe_backend, late.shape.moe_backend) == ("triton", "aiter")
    with pytest.raises(InputError, match=r"moe_backend: 'aiter' takes AMD GPUs"):
        seconds(f"{vllm}, moe_backend: aiter", "deployment.hardware=h100-sxm-80gb")
    told = "deployment.engine.moe_backend has no effect: the model has no experts in MXFP4"
    scenario = make_scenario([*moe, f"deployment.engine={{{vllm}, moe_backend: aiter}}"])
    assert told not in without_effect(scenario, None)
    assert told in without_effect(scenario.model_copy(update={"model": "llama-3.1-8b"}), None)


@pytest.mark.parametrize(
    ("hardware", "quantization", "reason"),
    [
        ("mi300x-192gb", "auto", ""),
        ("mi300x-192gb", "fp8", ""),
        ("mi300x-192gb", "awq-int4", "experts in INT4 are Triton's with and without AITER"),
        ("mi325x-256gb", "auto", ""),
        ("mi355x-288gb", "auto", "mi355x-288gb has one rate for all kernels of experts in this format"),
    ],
)
def test_a_choice_of_experts_on_amd_without_effect_says_why(hardware: str, quantization: str, reason: str) -> None:
    """An MI300X has times of both in 16 and 8 bits, an MI325X its in 16; INT4 is Triton's whatever is asked for."""
    moe = ["model=qwen3-30b-a3b", f"deployment.hardware={hardware}", f"deployment.quantization={quantization}"]
    found = [
        each
        for each in without_effect(make_scenario([*moe, *on("0.21"), "deployment.engine.moe_backend=aiter"]), None)
        if "moe_backend" in each
    ]
    prices = [
        resolve(make_scenario([*moe, *on("0.21"), f"deployment.engine.moe_backend={name}"])).shape.machine
        for name in ("aiter", "triton")
    ]

    assert found == ([f"deployment.engine.moe_backend has no effect: {reason}"] if reason else [])
    name = "fp8" if quantization == "fp8" else "bf16" if quantization == "auto" else "int4_weight_only"
    first, second = (each.grouped_gemm_curves.get(name) for each in prices)
    assert (first == second) == bool(reason)


@pytest.mark.parametrize(
    ("hardware", "quantization", "has_effect"),
    [("mi325x-256gb", "fp8", True), ("mi325x-256gb", "auto", True), ("mi355x-288gb", "fp8", False)],
)
def test_amds_products_by_blocks_are_an_effect_of_asking_for_its_experts(
    hardware: str, quantization: str, has_effect: bool
) -> None:
    """One switch brings AMD's experts and products; in 8 bits an MI325X has times of the latter alone."""
    given = ["model=qwen3-30b-a3b", f"deployment.hardware={hardware}", f"deployment.quantization={quantization}"]
    asked, plain = ([*given, *on("0.21"), *more] for more in (["deployment.engine.moe_backend=aiter"], []))
    times = [
        float(price(resolve(make_scenario(each)).shape, 4096).step_times.decode_base[1]) for each in (asked, plain)
    ]

    told = any("moe_backend has no effect" in each for each in without_effect(make_scenario(asked), None))
    assert told != has_effect
    assert (times[0] < times[1]) == has_effect


def test_kernels_of_experts_change_nothing_without_experts_in_mxfp4() -> None:
    """Said beside the result, as of every setting without effect."""
    told = "deployment.engine.moe_backend has no effect: the model has no experts in MXFP4"
    plain = make_scenario(on("0.33", "deployment.engine.moe_backend=marlin"))
    experts = make_scenario(["model=gpt-oss-20b", *on("0.33", "deployment.engine.moe_backend=marlin")])

    assert told in without_effect(plain, None)
    assert told not in without_effect(experts, None)


@pytest.mark.parametrize(
    ("hardware", "backend", "has_effect"),
    [("b200-sxm-180gb", "marlin", True), ("h100-sxm-80gb", "marlin", False), ("b200-sxm-180gb", "triton", False)],
)
def test_marlin_changes_experts_in_nvfp4_where_the_gpu_multiplies_in_4_bit(
    hardware: str, backend: str, has_effect: bool
) -> None:
    """Elsewhere their inputs are in 16 bit anyway."""
    told = "deployment.engine.moe_backend has no effect"
    keys = [f"deployment.hardware={hardware}", "deployment.quantization=nvfp4", "model=qwen3-30b-a3b"]
    scenario = make_scenario([*keys, *on("0.24", f"deployment.engine.moe_backend={backend}")])

    assert any(each.startswith(told) for each in without_effect(scenario, None)) != has_effect


def test_what_runs_on_another_engine_of_the_version_is_noted() -> None:
    """vLLM 0.9.2 swaps on V0, which is simulated on V1's scheduler."""
    swapping = make_scenario(on("0.9.2", "deployment.engine.preemption_mode=swap"))

    assert any("engine V0 alone" in note for note in feature_notes(swapping))
    assert feature_notes(make_scenario(on("0.6.6", "deployment.engine.preemption_mode=swap"))) == []


_SGLANG_RANKS = [
    *EXPERTS,
    "deployment.engine={name: sglang, version: '0.5.15'}",
    "deployment.data_parallel_size=2",
]
_DELAYING = [*_SGLANG_RANKS, "deployment.engine.enable_prefill_delayer=true"]
_SGLANG_WINDOWS = ["model=gpt-oss-20b", "deployment.engine={name: sglang, version: '0.5.12'}"]
_SGLANG_STATES = ["model=qwen3.5-9b", "deployment.engine={name: sglang, version: '0.5.15'}"]
SAMPLES: dict[str, tuple[Any, list[str]]] = {
    "batching": ("static", []),
    "scheduler": ("prefill_first", []),
    "admission": ("reserve", []),
    "scheduling_policy": ("shortest_first", []),
    "priority_ageing": ("5 s", ["deployment.engine.scheduling_policy=priority"]),
    "priority_preemption": ("true", ["deployment.engine.scheduling_policy=priority"]),
    "preemption_mode": ("swap", on("0.6.6")),
    "swap_space": ("8 GiB", on("0.6.6", "deployment.engine.preemption_mode=swap")),
    "kv_allocation": ("static", []),
    "max_num_seqs": (7, []),
    "max_num_batched_tokens": (1500, []),
    "enable_chunked_prefill": ("false", []),
    "long_prefill_token_threshold": (100, []),
    "enable_prefix_caching": ("false", []),
    "gpu_memory_utilization": (0.5, []),
    "num_gpu_blocks_override": (3000, []),
    "kv_cache_memory_bytes": (10**10, []),
    "swa_full_tokens_ratio": (0.2, _SGLANG_WINDOWS),
    "disable_hybrid_kv_cache_manager": ("true", _SGLANG_WINDOWS),
    "max_loras": (4, []),
    "max_lora_rank": (64, ["deployment.engine.max_loras=2"]),
    "max_cpu_loras": (9, ["deployment.engine.max_loras=2", "workload.loras={num_adapters: 20}"]),
    "block_size": (32, []),
    "max_model_len": (4000, []),
    "async_scheduling": ("true", []),
    "attention_dp_timeout_iters": (
        10,
        [*EXPERTS, "deployment.engine={name: tensorrt-llm, version: '1.2'}", "deployment.data_parallel_size=2"],
    ),
    "schedule_conservativeness": (0.5, ["deployment.engine={name: sglang, version: '0.5.15'}"]),
    "enable_prefill_delayer": ("true", _SGLANG_RANKS),
    "prefill_delayer_max_delay_passes": (10, _DELAYING),
    "prefill_delayer_token_usage_low_watermark": (0.2, _DELAYING),
    "sampling": ("nucleus", []),
    "endpoint": ("chat", on("0.11.0")),
    "enforce_eager": ("true", []),
    "cudagraph_mode": ("FULL_DECODE_ONLY", []),
    "max_cudagraph_capture_size": (64, []),
    "piecewise_cuda_graph_max_tokens": (4096, ["deployment.engine={name: tensorrt-llm, version: '1.2'}"]),
    "cuda_graph_padding": ("false", ["deployment.engine={name: tensorrt-llm, version: '1.2'}"]),
    "moe_backend": ("marlin", ["model=gpt-oss-20b"]),
    "mamba_ssm_cache_dtype": ("bfloat16", ["model=nemotron-3-nano-30b-a3b"]),
    "mamba_full_memory_ratio": (0.3, _SGLANG_STATES),
    "max_mamba_cache_size": (64, _SGLANG_STATES),
    "enable_nccl_nvls": ("true", ["deployment.engine={name: sglang}", "deployment.tensor_parallel_size=8"]),
    "fp8_gemm_backend": ("flashinfer_trtllm", SGLANG_B200),
    "attention_backend": ("triton", ["deployment.engine={name: sglang}", "deployment.hardware=mi300x-192gb"]),
    "flashinfer_sampler": ("false", on("0.11.0")),
    "disable_cascade_attn": ("true", on("0.12.0", "workload.shared_prefix={num_groups: 1, tokens: 1000}")),
    "frontend_latency": ("9 ms", []),
    "host_slowdown": (2.0, []),
    "static_batch_size": (3, ["deployment.engine.batching=static"]),
    "static_max_wait": ("2 s", ["deployment.engine.batching=static"]),
    "cpu_offload_gb": (4, []),
    "n_gpu_layers": (8, ["deployment.engine={name: llama.cpp}"]),
    "n_cpu_moe": (8, ["deployment.engine={name: llama.cpp}", "model=qwen3-30b-a3b"]),
    "kv_unified": ("true", ["deployment.engine={name: llama.cpp, max_num_seqs: 8}"]),
    "similar_prompts": ("true", ["deployment.engine={name: llama.cpp, max_num_seqs: 8}"]),
    "ubatch_size": (128, ["deployment.engine={name: llama.cpp}"]),
    "num_gpu": (8, ["deployment.engine={name: ollama}"]),
    "language_model_only": ("true", ["model=gemma-3-4b"]),
    "mm_encoder_tp_mode": ("data", ["model=qwen3-vl-4b", "deployment.tensor_parallel_size=2"]),
}
"""Option -> a value that is no default, and what it goes with."""


def test_windows_without_effect_say_why() -> None:
    """No layer with a window, a release or a family that keeps everything, and one pool for all."""
    told = "deployment.engine.swa_full_tokens_ratio has no effect: "

    def why(model: str, engine: str) -> list[str]:
        scenario = make_scenario([f"model={model}", f"deployment.engine={{name: sglang, {engine}}}"])
        found = [each.removeprefix(told) for each in without_effect(scenario, None) if told in each]
        return [each.partition(" ")[0] for each in found]

    assert why("gpt-oss-20b", "version: '0.5.12', swa_full_tokens_ratio: 0.2") == []
    assert why("llama-3.1-8b", "version: '0.5.12', swa_full_tokens_ratio: 0.2") == ["no"]
    assert why("gemma-3-27b", "version: '0.5.12', swa_full_tokens_ratio: 0.2") == ["its"]
    assert why("gpt-oss-20b", "version: '0.5.4', swa_full_tokens_ratio: 0.2") == ["its"]
    both = "version: '0.5.12', swa_full_tokens_ratio: 0.2, disable_hybrid_kv_cache_manager: true"
    assert why("gpt-oss-20b", both) == ["with"]


def test_every_option_has_a_sample() -> None:
    """A new option cannot be left out of the test below."""
    assert SAMPLES.keys() == EngineOptions.model_fields.keys()


@pytest.mark.parametrize("option", SAMPLES)
def test_every_option_changes_something_besides_itself(option: str) -> None:
    """What the scheduler obeys, the memory, or what the engine is priced by."""
    value, rest = SAMPLES[option]
    found = [resolve(make_scenario([*rest, *more])) for more in ([], [f"deployment.engine.{option}={value}"])]
    kept = [
        (
            each.engine,
            each.memory,
            each.shape.machine,
            each.shape.common_prefix_tokens,
            each.shape.engine.model_dump(exclude={option, "sources", "max_model_len"}),
        )
        for each in found
    ]

    assert found[1].shape.engine.sources[option] == "scenario"
    assert kept[0] != kept[1]


def test_states_in_sixteen_bits_take_half_the_memory() -> None:
    """SGLang's --mamba-ssm-dtype: twice the seats find room beside a prefix cache; models without states say so."""
    asked = {"model": "qwen3.5-27b", "deployment.engine": "{name: sglang, version: 0.5.9}"}
    named = [f"{key}={value}" for key, value in asked.items()]
    wide, narrow = (
        resolve(make_scenario([*named, *more])) for more in ([], ["deployment.engine.mamba_ssm_cache_dtype=bfloat16"])
    )
    without = make_scenario(["deployment.engine={name: vllm, version: 0.33.0, mamba_ssm_cache_dtype: bfloat16}"])

    sizes = [each.shape.model.state_bytes() for each in (wide, narrow)]
    linear = wide.shape.model.linear_attention
    assert linear is not None
    halved = wide.shape.model.num_linear_layers * linear.state_elements * 2
    assert sizes[0] - sizes[1] == pytest.approx(halved)
    assert narrow.shape.engine.max_num_seqs > 1.8 * wide.shape.engine.max_num_seqs
    assert any("mamba_ssm_cache_dtype has no effect" in note for note in without_effect(without, None))


def test_a_limit_on_a_long_prompt_lets_short_ones_pass() -> None:
    """With 256 of 2,048 tokens a step for a prompt, those that come beside long ones have their first token sooner."""
    load = {
        "classes": [
            {"name": "long", "share": 0.2, "prompt_tokens": {"distribution": "fixed", "value": 16000}},
            {"name": "short", "share": 0.8, "prompt_tokens": {"distribution": "fixed", "value": 100}},
        ],
        "arrivals": {"process": "poisson", "rate": 4.0},
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "fixed", "value": 20},
        "num_requests": 60,
    }
    budget = "deployment.engine.max_num_batched_tokens=2048"
    limit = "deployment.engine.long_prefill_token_threshold=256"
    found = [run(make_scenario(["model=llama-3.1-8b", budget, *more], workload=load)) for more in ([], [limit])]
    short = [result.requests[result.requests["class"] == "short"]["ttft_ms"].mean() for result in found]

    assert found[1].simulation.end_time > 0
    assert short[1] < short[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["deployment.engine.enable_chunked_prefill=false"], "needs continuous batching and chunked prefill"),
        (["deployment.engine.batching=static"], "needs continuous batching and chunked prefill"),
        (["deployment.engine.max_model_len=200"], r"must be at most max_model_len \(200\)"),
    ],
)
def test_a_limit_on_long_prompts_needs_prompts_that_are_split(more: list[str], message: str) -> None:
    """Nothing is accepted that does nothing."""
    with pytest.raises(InputError, match=f"long_prefill_token_threshold: 512 {message}"):
        resolve(make_scenario(["deployment.engine.long_prefill_token_threshold=512", *more]))


_LATENT = ["model=deepseek-v3", "deployment.quantization=fp8", "deployment.tensor_parallel_size=8"]
_GROUPED = ["deployment.data_parallel_size=2", "deployment.enable_expert_parallel=true"]


def _sglang(version: str) -> str:
    """Return a setting for a release of SGLang."""
    return f"deployment.engine={{name: sglang, version: {version}}}"


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ([], 8192),
        (["deployment.engine={name: sglang, version: 0.5.9}"], 0),
        (["deployment.engine={name: sglang, version: 0.5.10, enforce_eager: true}"], 0),
        (["deployment.data_parallel_size=2", "deployment.enable_expert_parallel=true"], 0),
        (["deployment.pipeline_parallel_size=2"], 0),
        (["deployment.engine={name: sglang, version: 0.5.10, cudagraph_mode: FULL_DECODE_ONLY}"], 0),
        (["deployment.speculative={method: eagle, num_speculative_tokens: 2, acceptance_rate: 0.7}"], 0),
        (["deployment.hardware=mi300x-192gb"], 0),
        (["model=qwen3-next-80b-a3b"], 0),
        ([*_LATENT, _sglang("0.5.10")], 2048),
        ([*_LATENT, _sglang("0.5.14")], 2048),
        ([*_LATENT, _sglang("0.5.15")], 0),
        ([*_LATENT, _sglang("0.5.17")], 0),
        ([*_LATENT, _sglang("0.5.18")], 2048),
        ([*_LATENT, _sglang("0.5.23")], 8192),
        ([*_LATENT, "model=deepseek-v3.2", _sglang("0.5.13")], 0),
        ([*_LATENT, "model=deepseek-v3.2", _sglang("0.5.14")], 2048),
        ([*_LATENT, "model=deepseek-v3.2", _sglang("0.5.17")], 2048),
        (
            [
                _sglang("0.5.11"),
                "deployment.speculative={method: eagle, num_speculative_tokens: 2, acceptance_rate: 0.7}",
            ],
            8192,
        ),
        ([_sglang("0.5.16"), *_GROUPED], 0),
        ([_sglang("0.5.17"), *_GROUPED], 4096),
        ([_sglang("0.5.18"), "deployment.pipeline_parallel_size=2"], 8192),
        ([_sglang("0.5.19"), "deployment.pipeline_parallel_size=2"], 0),
        ([_sglang("0.5.15"), "model=qwen3.5-397b-a17b", "deployment.tensor_parallel_size=8"], 0),
        ([_sglang("0.5.16"), "model=qwen3.5-397b-a17b", "deployment.tensor_parallel_size=8"], 8192),
        ([_sglang("0.5.21"), "model=glm-5.3-flash", "deployment.tensor_parallel_size=8"], 0),
        ([_sglang("0.5.22"), "model=glm-5.3-flash", "deployment.tensor_parallel_size=8"], 2048),
    ],
)
def test_sglang_captures_prompts_from_0_5_10_on(settings: list[str], tokens: int) -> None:
    """Up to a chunk, unless the server has what server_args.py, or from 0.5.19 on cuda_graph_hook.py, lists."""
    base = [
        "model=qwen3-30b-a3b",
        "deployment.hardware=h200-sxm-141gb",
        "deployment.tensor_parallel_size=2",
        "deployment.engine={name: sglang, version: 0.5.10}",
    ]
    scenario = make_scenario([*base, *settings])

    assert resolve(scenario).shape.engine.cuda_graph_max_expert_tokens == tokens


def test_tritons_latent_decodes_compute_no_faster_on_nvidia() -> None:
    """GLM-4.7-Flash on B200: 20 heads as two blocks of 16, 2 ns a key and layer; one sequence fills 16 of 148."""
    told = "deployment.engine.attention_backend has no effect"
    base = ["model=glm-4.7-flash", "deployment.hardware=b200-sxm-180gb", "deployment.quantization=none"]
    own, triton = (
        make_scenario([*base, f"deployment.engine={{name: sglang, version: '0.5.8'{more}}}"])
        for more in ("", ", attention_backend: triton")
    )
    usual, slow = (price(resolve(each).shape, 64).step_times.decode_slope for each in (own, triton))

    assert slow[16] == pytest.approx(47 * 32 * (576 + 512) * 2 / 35e12, rel=0.01)
    assert slow[1] == pytest.approx(148 / 16 * slow[16], rel=0.01)
    assert slow[16] > 2.0 * usual[16]
    assert not [each for each in without_effect(triton, None) if told in each]
