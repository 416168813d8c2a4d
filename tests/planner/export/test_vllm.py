"""vLLM commands: the flags of the version, nothing but them, and refusals with their reason."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from simserve.errors import InfeasibleError, InputError, ScenarioError
from simserve.planner.export import deployment as module
from simserve.planner.export.deployment import Export
from simserve.planner.export.export import export
from simserve.planner.export.flags import flags_of, read_words
from simserve.profiles.engine_profile import load_engine
from simserve.scenario.deployment_spec import DeploymentSpec, EngineSpec
from simserve.scenario.load import load, scenario_names
from tests.scenario.builders import make_scenario


def command(*overrides: str, explicit: bool = False, checkpoint: str | None = None, **changes: Any) -> str:
    """Return the command of the small scenario on one line."""
    return export(make_scenario(overrides, **changes), "vllm", explicit=explicit, checkpoint=checkpoint).line


def refusal(*overrides: str) -> str:
    """Return why the small scenario cannot be exported."""
    with pytest.raises(ScenarioError) as caught:
        export(make_scenario(overrides), "vllm")
    return str(caught.value)


def assert_parses(result: Export) -> None:
    """Every word is a flag of that version of vLLM, with a value where it takes one and of its choices."""
    flags = flags_of("vllm", result.version)
    words, loose = read_words(flags, result.command)
    unknown = [word.flag for word in words if not word.is_known and word.flag not in ("-m",)]
    assert not unknown
    assert all(flags.has(word.flag, word.value) for word in words if isinstance(word.value, str) and word.is_known)
    assert loose[0] in ("vllm", "python")


_KNOBS: Sequence[tuple[str, ...]] = (
    (),
    ("deployment.engine.max_num_seqs=64", "deployment.engine.max_num_batched_tokens=8192"),
    ("deployment.engine.enable_prefix_caching=true",),
    ("deployment.tensor_parallel_size=2", "deployment.pipeline_parallel_size=2"),
    ("deployment.engine.max_model_len=4096", "deployment.engine.gpu_memory_utilization=0.8"),
    ("deployment.engine.enable_chunked_prefill=true", "deployment.engine.block_size=32"),
    ("deployment.quantization=fp8", "deployment.kv_cache_dtype=fp8", "deployment.engine.max_model_len=4096"),
    ("deployment.engine.swap_space=0 GiB", "deployment.engine.preemption_mode=recompute"),
    ("model=mixtral-8x7b", "deployment.tensor_parallel_size=4", "deployment.enable_expert_parallel=true"),
)


_FEW_KNOBS = _KNOBS[::3]
"""With every knob said, what the scenario sets makes less of a difference."""


def test_a_block_is_that_of_one_gpu_where_gpus_divide_contexts() -> None:
    """As the scenario sets it; a block that is counted has the tokens of all of them."""
    ranks = ["deployment.tensor_parallel_size=8", "deployment.decode_context_parallel_size=2"]
    model = ["model=deepseek-v3", "deployment.hardware=h200-sxm-141gb", "deployment.engine.max_model_len=4096"]

    assert command(*model, *ranks, "deployment.engine.block_size=64").endswith("--block-size 64")


def test_what_is_stored_in_few_bits_is_not_quantised_again() -> None:
    """The engine makes FP8 of 16-bit weights alone."""
    why = refusal("model=gpt-oss-20b", "deployment.quantization=fp8")

    assert "it is stored in mxfp4, and vLLM quantises 16-bit weights only" in why


def test_what_describes_the_host_is_named_as_no_flag() -> None:
    """Each of the two."""
    host = ["deployment.engine.frontend_latency=5 ms", "deployment.engine.host_slowdown=2"]
    notes = export(make_scenario(host), "vllm").notes

    assert [note.split()[0] for note in notes if note.endswith("describes the host and is no flag")] == [
        "deployment.engine.frontend_latency",
        "deployment.engine.host_slowdown",
    ]


@pytest.mark.parametrize("version", [each.version for each in load_engine("vllm").versions] + ["0.19.1"])
@pytest.mark.parametrize(
    ("explicit", "knobs", "least"),
    [(False, _KNOBS, 4), (True, _FEW_KNOBS, 2), pytest.param(True, _KNOBS, 4, marks=pytest.mark.slow)],
    ids=["few flags", "all flags", "all flags of all"],
)
def test_a_command_parses_with_the_flags_of_its_version(
    version: str, explicit: bool, knobs: Sequence[tuple[str, ...]], least: int
) -> None:
    """Or the scenario is refused because that version lacks the feature; never a flag that is not there."""
    exported = 0
    for overrides in knobs:
        try:
            result = export(
                make_scenario([f"deployment.engine.version={version}", *overrides]), "vllm", explicit=explicit
            )
        except (InputError, InfeasibleError):
            continue
        assert_parses(result)
        exported += 1
    assert exported >= least


_NOT_OF_VLLM = {
    "static-vs-continuous": "'static' cannot be exported: vllm 0.12 knows continuous only",
    **{
        name: rf"deployment.pools: '{pools}' cannot be exported as one command: each pool has servers of its own; use"
        for name, pools in (
            ("canary", "stable, canary"),
            ("halve-the-api-bill", "small, large"),
            ("small-model-first", "small, large"),
            ("two-pools", "small, large"),
            ("two-regions", "europe, america"),
        )
    },
}


@pytest.mark.parametrize("name", sorted({*scenario_names()} - {*_NOT_OF_VLLM}))
def test_bundled_scenarios_are_exported(name: str) -> None:
    """With the flags of their version; of pools, those of every server that is started."""
    result = export(load(name), "vllm")

    started = re.findall(r"vllm serve .*(?= &)", result.files.get("start_servers.sh", ""))
    for words in [shlex.split(line) for line in started] or [list(result.command)]:
        assert_parses(dataclasses.replace(result, command=tuple(words)))


@pytest.mark.parametrize("name", _NOT_OF_VLLM)
def test_bundled_scenarios_that_no_server_can_do_say_why(name: str) -> None:
    """By key, value and reason."""
    with pytest.raises(ScenarioError, match=_NOT_OF_VLLM[name]):
        export(load(name), "vllm")


def test_knobs_that_equal_the_default_are_left_out() -> None:
    """They can be said all the same."""
    knobs = ("deployment.engine.max_num_seqs=1024", "deployment.engine.gpu_memory_utilization=0.9")

    assert command(*knobs) == "vllm serve meta-llama/Llama-3.2-1B"
    explicit = command(*knobs, explicit=True)
    assert "--max-num-seqs 1024 --max-num-batched-tokens 8192 --block-size 16" in explicit
    assert "--enable-chunked-prefill --enable-prefix-caching --no-async-scheduling" in explicit


@pytest.mark.parametrize(
    ("target", "changes", "defaults"),
    [
        # cache config, gpu_memory_utilization = 0.9 until 0.19; V1 chunks unless told not to
        (
            "vllm",
            {"engine": {"name": "vllm", "version": "0.11.0"}, "hardware": "h200-sxm-141gb"},
            {"gpu_memory_utilization": 0.9, "enable_chunked_prefill": True},
        ),
        # engine/arg_utils.py, API server on less than 70 GiB
        (
            "vllm",
            {"engine": {"name": "vllm", "version": "0.12.0"}, "hardware": "r9700-32gb"},
            {"max_num_batched_tokens": 2048},
        ),
        # TensorRT-LLM 1.0 llmapi/llm_args.py, max_num_tokens
        (
            "trtllm",
            {"engine": {"name": "tensorrt-llm", "version": "1.0"}, "hardware": "a100-pcie-80gb"},
            {"max_num_batched_tokens": 8192, "enable_chunked_prefill": False},
        ),
        # SGLang server_args.py, chunked_prefill_size with 160 GB and more
        (
            "sglang",
            {"engine": {"name": "sglang", "version": "0.5.10"}, "hardware": "b300-sxm-270gb"},
            {"max_num_batched_tokens": 16384},
        ),
    ],
)
def test_what_each_engine_does_by_itself_is_no_flag(
    target: str, changes: dict[str, Any], defaults: dict[str, Any]
) -> None:
    """Whatever of its engine depends on its kernels, graphs and GPU; another value is a flag."""
    plain = make_scenario(model="llama-3.1-8b", deployment=changes)
    said = [f"deployment.engine.{key}={str(value).lower()}" for key, value in defaults.items()]
    other = f"deployment.engine.{next(iter(defaults))}={0.8 if target == 'vllm' and len(defaults) == 2 else 4096}"

    told = export(make_scenario(said, model="llama-3.1-8b", deployment=changes), target)

    assert (told.line, told.files) == ((bare := export(plain, target)).line, bare.files)
    moved = export(make_scenario([other], model="llama-3.1-8b", deployment=changes), target)
    assert (moved.line, moved.files) != (bare.line, bare.files)


def test_a_default_that_another_knob_moves_is_said() -> None:
    """2048 is V0's usual budget, but a context of 4096 would raise it."""
    knobs = ("deployment.engine.version=0.6.6", "deployment.engine.max_model_len=4096")

    assert "--max-num-batched-tokens" not in command(*knobs, "deployment.engine.max_num_batched_tokens=4096")
    assert "--max-num-batched-tokens 8000" in command(*knobs, "deployment.engine.max_num_batched_tokens=8000")


def test_a_version_whose_defaults_are_not_known_says_every_knob() -> None:
    """The simulation took those of the nearest older version."""
    result = export(make_scenario(["deployment.engine.version=0.40"]), "vllm")

    assert "--max-num-seqs 1024" in result.line
    assert result.version == "0.40"
    assert any("taken from 0.33" in note for note in result.notes)


def test_old_versions_are_started_as_a_module() -> None:
    """`vllm serve` was not there yet."""
    line = command("deployment.engine.version=0.2.7", "deployment.engine.max_model_len=2048")

    assert line == ("python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.2-1B --max-model-len 2048")


def test_parallel_sizes_and_formats_are_said() -> None:
    """As vLLM spells them."""
    assert command("deployment.tensor_parallel_size=2").endswith("--tensor-parallel-size 2")
    assert command("deployment.pipeline_parallel_size=2").endswith("--pipeline-parallel-size 2")
    assert command("deployment.quantization=fp16").endswith("--dtype float16")
    assert command("deployment.kv_cache_dtype=fp8").endswith("--kv-cache-dtype fp8")
    assert command("deployment.kv_cache_dtype=bf16") == command()
    large = ("model=deepseek-v4-flash", "deployment.hardware=h200-sxm-141gb", "deployment.tensor_parallel_size=8")
    assert "--kv-cache-dtype fp8" in command(*large, "deployment.engine.version=0.24")
    assert "--quantization fp8" in command("model=llama-2-7b", "deployment.quantization=fp8")
    assert command("deployment.quantization=fp8") == "vllm serve RedHatAI/Llama-3.2-1B-Instruct-FP8"
    experts = ("model=mixtral-8x7b", "deployment.tensor_parallel_size=4", "deployment.enable_expert_parallel=true")
    assert command(*experts).endswith("--tensor-parallel-size 4 --enable-expert-parallel")


def test_switches_are_negated_as_the_version_does() -> None:
    """A prefix in V1, a word in V0."""
    off = "deployment.engine.enable_prefix_caching=false"

    assert command(off).endswith("--no-enable-prefix-caching")
    assert "prefix" not in command(off, "deployment.engine.version=0.5.5")
    budget = "deployment.engine.max_num_batched_tokens=131072"
    assert "--no-enable-chunked-prefill" in command("deployment.engine.enable_chunked_prefill=false", budget)
    v0 = ("deployment.engine.version=0.6.6", "deployment.engine.enable_chunked_prefill=false", budget)
    assert "--enable-chunked-prefill False" in command(*v0)


def test_low_bit_kv_depends_on_the_version() -> None:
    """int8 and int4 came late."""
    assert "versions with it: 0.25 and newer" in refusal("deployment.kv_cache_dtype=int4")
    newest = "deployment.engine.version=0.33"
    assert "--kv-cache-dtype int4_per_token_head" in command("deployment.kv_cache_dtype=int4", newest)
    assert "--kv-cache-dtype int8_per_token_head" in command("deployment.kv_cache_dtype=int8", newest)


def test_a_format_that_is_made_beforehand_needs_its_checkpoint() -> None:
    """The 16-bit weights would be another deployment."""
    awq = "deployment.quantization=awq-int4"

    assert "name one: --checkpoint ORG/NAME" in refusal(awq)
    assert command(awq, checkpoint="org/Llama-3.2-1B-AWQ") == "vllm serve org/Llama-3.2-1B-AWQ"
    gguf = "deployment.quantization=gguf-q4_k_m"
    with pytest.raises(InputError, match=r"does not run under vllm 0\.33"):
        command(gguf, "deployment.engine.version=0.33")
    assert "vLLM takes one GGUF file" in refusal(gguf, "deployment.engine.version=0.23")


def test_a_checkpoint_that_is_stored_so_needs_no_flag() -> None:
    """gpt-oss is published in MXFP4; a 16-bit one would be another checkpoint."""
    model = "model=gpt-oss-20b"

    assert command(model, "deployment.quantization=mxfp4") == command(model) == "vllm serve openai/gpt-oss-20b"
    assert command(model, "deployment.quantization=none") == "vllm serve unsloth/gpt-oss-20b-BF16"
    assert "it is stored in fp8" in refusal(
        "model=deepseek-r1",
        "deployment.quantization=none",
        "deployment.hardware=h200-sxm-141gb",
        "deployment.tensor_parallel_size=16",
    )


def test_int8_weights_are_quantised_on_loading_where_vllm_can() -> None:
    """From 0.20 on."""
    newest = "deployment.engine.version=0.33"

    assert "--quantization int8_per_channel_weight_only" in command("deployment.quantization=int8-wo", newest)
    assert "--checkpoint" in refusal("deployment.quantization=int8-wo")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("deployment.engine.batching=static", "'static' cannot be exported: vllm 0.12 knows continuous only"),
        ("deployment.engine.kv_allocation=pow2", "'pow2' cannot be exported: vllm 0.12 knows paged only"),
        ("deployment.engine.kv_allocation=none", "'none' cannot be exported: vllm 0.12 knows paged only"),
        ("deployment.engine.scheduler=prefill_first", "vllm 0.12 knows mixed only"),
        ("deployment.engine.admission=reserve", "vllm 0.12 knows on_demand only"),
        ("deployment.attention=standard", "computes attention with fused kernels"),
        ("deployment.engine.block_size=24", "24 is not accepted by --block-size of vllm 0.12"),
    ],
)
def test_what_no_server_does_is_refused(override: str, reason: str) -> None:
    """With the key and the reason."""
    assert reason in refusal(override)
    assert override.partition("=")[0] in refusal(override)


def test_what_does_not_fit_is_not_exported() -> None:
    """The server would not start."""
    with pytest.raises(InfeasibleError):
        export(make_scenario(model="llama-3.1-405b"), "vllm")


def test_replicas_are_a_note() -> None:
    """One command starts one of them."""
    result = export(make_scenario(["deployment.replicas=3"]), "vllm")

    assert any("one of 3 replicas" in note for note in result.notes)


def test_a_key_that_no_export_knows_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mechanism that is simulated and not written down is not lost in silence."""
    scenario = make_scenario(["deployment.replicas=2", "deployment.engine.max_num_seqs=8"])
    known = export(scenario, "vllm").notes
    monkeypatch.setattr(module, "_SAID", module._SAID - {"replicas"})
    monkeypatch.setattr(module, "_SAID_OF_ENGINE", module._SAID_OF_ENGINE - {"max_num_seqs"})

    assert not any("set it up by hand" in note for note in known)
    assert export(scenario, "vllm").notes[-2:] == (
        "deployment.engine.max_num_seqs is not in what is written here: set it up by hand",
        "deployment.replicas is not in what is written here: set it up by hand",
    )


_SPECULATIVE = "speculative" in DeploymentSpec.model_fields


@pytest.mark.skipif(not _SPECULATIVE, reason="the schema has no speculative decoding")
@pytest.mark.parametrize(
    ("version", "speculative", "words"),
    [
        (
            "0.12",
            "{method: ngram, num_speculative_tokens: 3, acceptance_rate: 0.5}",
            '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}',
        ),
        (
            "0.20",
            "{method: draft_model, draft_model: llama-3.2-1b, num_speculative_tokens: 3, acceptance_rate: 0.5}",
            '"num_speculative_tokens": 3, "model": "meta-llama/Llama-3.2-1B"',
        ),
        (
            "0.6.6",
            "{method: ngram, num_speculative_tokens: 3, acceptance_rate: 0.5}",
            "--speculative-model '[ngram]' --num-speculative-tokens 3 --ngram-prompt-lookup-max 4",
        ),
    ],
)
def test_speculation_is_said(version: str, speculative: str, words: str) -> None:
    """As JSON, or before 0.8 as flags of their own."""
    scenario = make_scenario(
        [f"deployment.engine.version={version}", f"deployment.speculative={speculative}"], model="llama-3.1-8b"
    )

    result = export(scenario, "vllm")
    assert words in result.line
    assert_parses(result)


@pytest.mark.skipif("enforce_eager" not in EngineSpec.model_fields, reason="the schema has no enforce_eager")
@pytest.mark.parametrize(
    ("engine", "target", "words"),
    [
        ("vllm", "vllm", "--enforce-eager"),
        ("sglang", "sglang", "--disable-cuda-graph"),
        ("tgi", "tgi", "--cuda-graphs 0"),
    ],
)
def test_eager_execution_is_said(engine: str, target: str, words: str) -> None:
    """Under the name of each engine."""
    overrides = [
        f"deployment.engine.name={engine}",
        "deployment.engine.version=null",
        "deployment.engine.enforce_eager=true",
    ]
    result = export(make_scenario([*overrides, "deployment.engine.max_model_len=4096"]), target)

    assert words in result.line


@pytest.mark.parametrize(
    ("engine", "version", "target", "words"),
    [
        ("vllm", "0.33", "vllm", "--language-model-only"),
        ("vllm", "0.12", "vllm", '--limit-mm-per-prompt \'{"image": 0, "video": 0, "audio": 0}\''),
        ("sglang", "0.5.23", "sglang", "--language-model-only"),
    ],
)
def test_encoders_that_are_left_out_are_said(engine: str, version: str, target: str, words: str) -> None:
    """A switch, or no image a prompt where vLLM has none yet; older releases are refused."""
    named = [f"deployment.engine.name={engine}", f"deployment.engine.version='{version}'"]
    asked = ["deployment.engine.language_model_only=true", "deployment.engine.max_model_len=4096"]
    lines = export(make_scenario([*named, *asked], model="gemma-3-4b"), target).line

    assert words in lines
    with pytest.raises(ScenarioError, match=r"has no way to leave out the encoders.*0\.10\.1 and newer"):
        export(make_scenario(["deployment.engine.version='0.10.0'", *asked], model="gemma-3-4b"), "vllm")


@pytest.mark.parametrize(
    ("engine", "version", "words"),
    [("vllm", "0.32", "--mm-encoder-tp-mode data"), ("sglang", "0.5.10", "--mm-enable-dp-encoder")],
)
def test_towers_whole_on_each_rank_are_asked_for(engine: str, version: str, words: str) -> None:
    """And read again; refused where the engine cuts the model's tower all the same, or has no such switch yet."""
    named = [f"deployment.engine.name={engine}", f"deployment.engine.version='{version}'"]
    asked = [
        *("deployment.engine.mm_encoder_tp_mode=data", "deployment.engine.max_model_len=4096"),
        "deployment.tensor_parallel_size=2",
    ]
    line = export(make_scenario([*named, *asked], model="qwen3-vl-4b"), engine).line

    assert words in line
    for model, rule in (("gemma-3-4b", "splits its vision tower"), ("qwen3-8b", "has no vision tower")):
        with pytest.raises(ScenarioError, match=rule):
            export(make_scenario([*named, *asked], model=model), engine)
    with pytest.raises(ScenarioError, match=r"has no choice of how encoders use the ranks.*0\.10\.2 and newer"):
        export(make_scenario(["deployment.engine.version='0.10.0'", *asked], model="qwen2.5-vl-7b"), "vllm")


@pytest.mark.parametrize(
    ("engine", "version", "pooling", "grammars"),
    [
        ("vllm", "0.32", "--runner pooling", """--structured-outputs-config '{"backend": "guidance"}'"""),
        ("vllm", "0.10.0", "--task embed", "--guided-decoding-backend guidance"),
        ("sglang", "0.5.10", "--is-embedding", "--grammar-backend llguidance"),
    ],
)
def test_kinds_of_requests_are_said_to_the_server(engine: str, version: str, pooling: str, grammars: str) -> None:
    """Embeddings run on another runner; grammars are compiled by who was simulated, where it is not the usual one."""
    named = [f"deployment.engine.name={engine}", f"deployment.engine.version='{version}'"]

    def written(*overrides: str) -> str:
        result = export(make_scenario([*named, "deployment.engine.max_model_len=4096", *overrides]), engine)
        return result.line + " ".join(result.notes)

    assert pooling in written("workload.output_tokens=0")
    assert grammars in written("workload.structured_output={backend: guidance}")
    for each in (pooling, grammars.split()[0]):
        assert each not in written("workload.structured_output={backend: xgrammar}")
    mixed = "workload.classes=[{name: a, share: 0.5}, {name: b, share: 0.5, output_tokens: 0}]"
    assert (
        f"embeddings: they need a server of their own, with {'--runner pooling' if engine == 'vllm' else pooling}"
        in (written(mixed))
    )


def test_another_engines_scenario_is_written_with_a_note() -> None:
    """It was not simulated under this one."""
    result = export(make_scenario(["deployment.engine.name=sglang", "deployment.engine.version=0.5.4"]), "vllm")

    assert result.version == "0.33"
    assert "weights bf16, as stored in meta-llama/Llama-3.2-1B" in result.notes[0]
    assert "simulates sglang 0.5.4" in result.notes[1]


def test_tiers_behind_host_memory_are_those_of_lmcache() -> None:
    """Its backend, its variables as notes; host memory alone is vLLM's own connector's."""
    alone = "deployment.engine.kv_tiers=[{tier: host, capacity: 64 GiB}]"
    several, one = export(load("kv-tiers"), "vllm"), export(load("kv-tiers", [alone]), "vllm")
    store = "deployment.engine.kv_tiers=[{tier: remote, capacity: 1 TB, bandwidth: 5 GB/s}]"
    none = export(load("kv-tiers", [store]), "vllm")

    assert several.line.endswith("--kv-offloading-size 32 --kv-offloading-backend lmcache")
    assert_parses(several)
    assert any("LMCACHE_MAX_LOCAL_DISK_SIZE=186.265" in note for note in several.notes)
    assert any("LMCACHE_REMOTE_URL" in note for note in several.notes)
    assert one.line.endswith("--kv-offloading-size 64 --kv-offloading-backend native")
    assert "--kv-offloading" not in none.line
    assert any("engine.kv_tiers" in note for note in none.notes)


def test_a_disk_is_shared_out_to_the_ranks() -> None:
    """LMCache runs in each: of 200 GiB four have 50 each; the memory of the host is counted for all of them."""
    tiers = "[{tier: host, capacity: 64 GiB}, {tier: disk, capacity: 200 GiB, bandwidth: 5 GB/s}]"
    spread = export(
        load("kv-tiers", [f"deployment.engine.kv_tiers={tiers}", "deployment.tensor_parallel_size=4"]), "vllm"
    )

    assert "--kv-offloading-size 64 " in spread.line
    assert any("LMCACHE_MAX_LOCAL_DISK_SIZE=50" in note for note in spread.notes)


@pytest.mark.parametrize(("capacity", "size", "is_small"), [("800 GB", 200, False), ("40 GB", 10, True)])
def test_sglang_has_so_much_host_memory_of_each_rank(capacity: str, size: int, is_small: bool) -> None:
    """Four ranks; SGLang refuses less than the KV cache of a rank on its GPU, which is 60 GB here or so."""
    changes = ["deployment.engine={name: sglang}", "deployment.tensor_parallel_size=4"]
    tiers = f"deployment.engine.kv_tiers=[{{tier: host, capacity: {capacity}}}]"
    spread = export(load("kv-tiers", [*changes, tiers]), "sglang")

    assert f"--enable-hierarchical-cache --hicache-size {size}" in spread.line
    assert any("wants more host memory of a rank" in note for note in spread.notes) is is_small


def test_a_second_kv_tier_is_said_where_the_version_has_one() -> None:
    """64 GiB for vLLM's own connector; an older version gets a note."""
    new = export(load("kv-offload"), "vllm")
    old = export(load("kv-offload", ['deployment.engine.version="0.8.5"']), "vllm")

    assert new.line.endswith("--kv-offloading-size 64 --kv-offloading-backend native")
    assert_parses(new)
    assert "--kv-offloading" not in old.line
    assert any("engine.kv_offload" in note for note in old.notes)


def test_a_length_beyond_the_model_is_allowed_by_its_variable() -> None:
    """vLLM refuses a --max-model-len above the model's own unless VLLM_ALLOW_LONG_MAX_MODEL_LEN is set."""
    shape = ("model=llama-2-7b", "deployment.hardware=h100-sxm-80gb", "deployment.tensor_parallel_size=1")

    assert command(*shape, "deployment.engine.max_model_len=8192").startswith("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm")
    assert "ALLOW_LONG" not in command(*shape, "deployment.engine.max_model_len=4096")


def test_a_context_that_was_cut_is_in_the_command() -> None:
    """vLLM would not start at the model's own length; the note says why."""
    scenario = make_scenario(["deployment.engine.version='0.20.2'"], model="gpt-oss-120b")

    written = export(scenario, "vllm")

    length = written.command[written.command.index("--max-model-len") + 1]
    assert any(note.startswith(f"max_model_len {int(length):,} of 131,072: the longest") for note in written.notes)
