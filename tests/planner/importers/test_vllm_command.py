"""Pasted `vllm serve` lines: what is understood, what is named as not, and the way back from an export."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ScenarioError, SimserveError
from simserve.planner.export.export import export
from simserve.planner.importers.draft import Draft
from simserve.planner.importers.server import import_line
from simserve.planner.importers.sglang_command import SGLANG
from simserve.planner.importers.vllm_command import VLLM
from simserve.profiles.catalog import load_model
from simserve.scenario.load import load, scenario_names
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import AllAtOnceArrivals
from tests.fuzzing import examples
from tests.scenario.builders import make_scenario

GPU = "h100-sxm-80gb"


def imported(text: str, version: str | None = "0.12", model: str | None = None) -> Draft:
    """Return the draft of a line on one H100."""
    return import_line(VLLM, text, hardware=GPU, version=version, model=model)


def resolved_part(scenario: Scenario) -> tuple[object, ...]:
    """Return everything that decides what one replica does, but for its traffic; of the checkpoints the one loaded."""
    shape = resolve(scenario).shape
    engine = shape.engine.model_copy(update={"sources": {}, "requested_version": None})
    loaded = shape.model.checkpoint(shape.quantization) or shape.model.stored
    model = shape.model.model_copy(update={"checkpoints": (loaded,)})
    return engine, dataclasses.replace(shape, model=model, engine=engine, contexts=None, common_prefix_tokens=0)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("deployment.tensor_parallel_size=2", "deployment.pipeline_parallel_size=2"),
        ("deployment.engine.max_num_seqs=64", "deployment.engine.max_num_batched_tokens=4096"),
        ("deployment.quantization=fp8", "deployment.kv_cache_dtype=fp8", "deployment.engine.max_model_len=4096"),
        ("deployment.quantization=fp16",),
        ("deployment.engine.version=0.6.6", "deployment.engine.enable_chunked_prefill=true"),
        ("deployment.engine.version=0.5.5", "deployment.engine.enable_prefix_caching=true"),
        ("deployment.engine.version=0.2.7", "deployment.engine.max_model_len=2048"),
        ("deployment.engine.version=0.33", "deployment.engine.async_scheduling=false"),
        ("deployment.engine.version=0.12", "deployment.engine.disable_cascade_attn=true"),
        ("deployment.engine.version=0.20", "deployment.engine.disable_cascade_attn=false"),
        ("deployment.engine.enable_prefix_caching=false", "deployment.engine.block_size=32"),
        ("deployment.engine.gpu_memory_utilization=0.55",),
        (
            "model=deepseek-v2-lite",
            "deployment.quantization=none",
            "deployment.tensor_parallel_size=4",
            "deployment.decode_context_parallel_size=4",
            "deployment.engine.version=0.12",
            "deployment.engine.block_size=64",
        ),
        (
            "model=gpt-oss-20b",
            "deployment.engine.version=0.12",
            "deployment.engine.disable_hybrid_kv_cache_manager=true",
        ),
        ("model=qwen3.5-9b", "deployment.engine.version=0.33", "deployment.engine.mamba_ssm_cache_dtype=float16"),
        ("model=mixtral-8x7b", "deployment.tensor_parallel_size=4", "deployment.enable_expert_parallel=true"),
        ("model=gpt-oss-20b", "deployment.quantization=mxfp4"),
    ],
)
@pytest.mark.parametrize("explicit", [False, True])
def test_an_exported_command_comes_back_as_the_same_deployment(overrides: tuple[str, ...], explicit: bool) -> None:
    """Every resolved knob, the model, its formats and its parallel sizes."""
    scenario = make_scenario(overrides)
    line = export(scenario, "vllm", explicit=explicit)

    back = imported(line.lines, version=line.version)
    assert resolved_part(back.scenario) == resolved_part(scenario)


_NOT_OF_VLLM = (
    *("batch-size-sweet-spot", "disaggregation", "static-vs-continuous"),
    *("canary", "encoder-pool", "halve-the-api-bill", "small-model-first", "two-pools", "two-regions"),
)
"""No vLLM server does what these ask for alone, or no checkpoint is known that holds it."""


@pytest.mark.parametrize("name", sorted({*scenario_names()} - {*_NOT_OF_VLLM}))
def test_the_command_of_a_bundled_scenario_comes_back(name: str) -> None:
    """The same replica, but for what no flag says: media, grammars, and requests that are all there at once."""
    scenario = load(name, ["deployment.engine.priority_preemption=false"])
    line = export(scenario, "vllm")

    back = import_line(VLLM, line.lines, hardware=resolve(scenario).shape.hardware.name, version=line.version)
    served, traffic = back.scenario, scenario.workload
    unsaid = {
        "images": traffic.images,
        "audio": traffic.audio,
        "structured_output": traffic.structured_output,
    }
    if isinstance(traffic.arrivals, AllAtOnceArrivals):
        unsaid["arrivals"] = traffic.arrivals
    served = served.model_copy(update={"workload": served.workload.model_copy(update=unsaid)})
    assert resolved_part(served) == resolved_part(scenario)


_RANKS = ("model=deepseek-v3", "deployment.quantization=fp8", "deployment.hardware=h200-sxm-141gb")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("deployment.engine.enforce_eager=true",), "--enforce-eager"),
        (("deployment.engine.max_cudagraph_capture_size=2048",), "--max-cudagraph-capture-size 2048"),
        (("deployment.engine.cpu_offload_gb=1",), "--cpu-offload-gb 1"),
        (("deployment.speculative={method: ngram, num_speculative_tokens: 4, acceptance_rate: 0.41}",), '"ngram"'),
        (
            (
                "deployment.speculative={method: draft_model, draft_model: llama-3.2-1b, num_speculative_tokens: 5, "
                "acceptance_rate: 0.6}",
                "deployment.engine.version='0.20'",
            ),
            '"model": "meta-llama/Llama-3.2-1B"',
        ),
        (
            (*_RANKS, "deployment.data_parallel_size=8", "deployment.enable_expert_parallel=true"),
            "--data-parallel-size 8 --enable-expert-parallel",
        ),
    ],
)
def test_rare_keys_come_back_too(overrides: tuple[str, ...], words: str) -> None:
    """Weights in host memory, ranks, drafts."""
    scenario = make_scenario([*overrides, "deployment.engine.max_model_len=4096"])

    line = export(scenario, "vllm")
    assert words in line.line
    back = import_line(VLLM, line.line, hardware=scenario.deployment.hardware, version=line.version)
    assert resolved_part(back.scenario) == resolved_part(scenario)
    assert back.scenario.deployment.speculative == scenario.deployment.speculative


@pytest.mark.parametrize(
    ("words", "version", "method"),
    [
        (
            '--speculative-config \'{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}\'',
            "0.12",
            "eagle",
        ),
        ('--speculative-config \'{"model": "org/EAGLE-head", "num_speculative_tokens": 3}\'', "0.12", "eagle"),
        ("--speculative-model [ngram] --num-speculative-tokens 3 --ngram-prompt-lookup-max 4", "0.6.6", "ngram"),
        ("--speculative-model meta-llama/Llama-3.2-1B --num-speculative-tokens 3", "0.6.6", "draft_model"),
    ],
)
def test_drafts_come_with_a_placeholder_for_their_acceptance(words: str, version: str, method: str) -> None:
    """The line does not say how many are accepted; a note does."""
    draft = imported(f"vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 {words}", version=version)

    found = draft.scenario.deployment.speculative
    assert found is not None
    assert (found.method, found.num_speculative_tokens) == (method, 3)
    assert any("accepted is a placeholder" in note for note in draft.notes)
    assert not any("Not simulated" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "--speculative-config: '{' is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"method": "ngram"}', "num_speculative_tokens: must be a whole number"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "0 must be a whole number from 1"),
        ('{"model": "org/unheard-of", "num_speculative_tokens": 2}', "'org/unheard-of' is no model"),
    ],
)
def test_drafts_that_cannot_be_read_are_refused(config: str, said: str) -> None:
    """With what was expected."""
    with pytest.raises(ScenarioError, match=re.escape(said)):
        imported(f"vllm serve meta-llama/Llama-3.1-8B --speculative-config '{config}'")


def test_an_exported_bundled_scenario_comes_back() -> None:
    """The chatbot with its name, through the line with a flag a row."""
    scenario = load("chatbot")

    back = imported(export(scenario, "vllm").lines)
    assert resolved_part(back.scenario) == resolved_part(scenario)


def test_flags_become_keys() -> None:
    """Short forms, underscores, equals signs and human-readable numbers."""
    draft = imported(
        "vllm serve meta-llama/Llama-3.1-8B -tp 2 -pp=2 --max_num_seqs=64 --max-model-len 16k "
        "--max-num-batched-tokens 4K --gpu-memory-utilization .8 --no-enable-prefix-caching --async-scheduling"
    )

    deployment = draft.scenario.deployment
    assert (deployment.tensor_parallel_size, deployment.pipeline_parallel_size) == (2, 2)
    assert deployment.engine.overrides() == {
        "max_num_seqs": 64,
        "max_model_len": 16_000,
        "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.8,
        "enable_prefix_caching": False,
        "async_scheduling": True,
    }


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 8",
        "$ VLLM_USE_V1=1 vllm serve meta-llama/Llama-3.1-8B \\\n    --max-num-seqs 8 \\\n",
        "#!/bin/sh\n# a note\nexec vllm serve 'meta-llama/Llama-3.1-8B' --max-num-seqs=8\n",
        "python3 -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-8B --max-num-seqs 8",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.12.0 --model meta-llama/Llama-3.1-8B --max-num-seqs 8",
        "docker run --rm vllm/vllm-openai:latest vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 8",
    ],
)
def test_the_forms_of_a_command_are_understood(text: str) -> None:
    """A prompt, variables, continued lines, comments, the module, a container."""
    scenario = imported(text).scenario

    assert scenario.model == "llama-3.1-8b"
    assert scenario.deployment.engine.max_num_seqs == 8


def test_the_version_is_that_of_the_option_the_image_or_the_newest() -> None:
    """The last with a note."""
    image = "docker run vllm/vllm-openai:v0.10.2 --model meta-llama/Llama-3.1-8B"
    line = "vllm serve meta-llama/Llama-3.1-8B"

    assert imported(image, version=None).scenario.deployment.engine.version == "0.10.2"
    assert imported(image, version="0.17").scenario.deployment.engine.version == "0.17"
    newest = imported(line, version=None)
    assert newest.scenario.deployment.engine.version == "0.33"
    assert any("read as vllm 0.33" in note for note in newest.notes)


@pytest.mark.parametrize("version", ["0.8.5", "0.20.2", "0.32", "0.33"])
def test_flags_of_the_front_end_are_known_to_every_release(version: str) -> None:
    """Whether or not they were read of it with the engine's own: no release lacks an address."""
    draft = imported("vllm serve meta-llama/Llama-3.1-8B --host 0.0.0.0 --port 8000 --api-key x", version=version)

    assert not any("has no" in note for note in draft.notes)
    assert any("Without effect on the simulation: --host, --port, --api-key." in note for note in draft.notes)


def test_what_vllm_does_anyway_is_not_called_left_out() -> None:
    """A flag at its default, which is what is simulated."""
    flags = "--scheduler-reserve-full-isl --stream-interval 1 --watermark 0.0 --prefill-schedule-interval 1"
    draft = imported(f"vllm serve meta-llama/Llama-3.1-8B {flags}", version="0.33")

    assert not any(note.startswith("Not simulated") for note in draft.notes)


def test_a_switch_that_is_turned_off_is_named_so() -> None:
    """What is not simulated is named as it was given, not as its opposite."""
    draft = imported(
        "vllm serve meta-llama/Llama-3.1-8B --no-scheduler-reserve-full-isl --no-enable-prompt-embeds "
        "--dcp-comm-backend a2a --watermark 0.05",
        version="0.33",
    )

    said = next(note for note in draft.notes if note.startswith("Not simulated"))
    for flag in ("--no-scheduler-reserve-full-isl", "--no-enable-prompt-embeds", "--dcp-comm-backend a2a"):
        assert flag in said
    assert "--watermark 0.05" in said


def test_nothing_is_lost_in_silence() -> None:
    """Unknown, not simulated and without effect are named apart."""
    draft = imported(
        "vllm serve meta-llama/Llama-3.1-8B extra --frobnicate 3 --enable-expert-paralel --enable-prompt-embeds "
        "--port 8000 --scheduling-policy lottery --quantization quark --swap-space 8"
    )

    notes = "\n".join(draft.notes)
    assert "has no --frobnicate: --frobnicate 3 is left out." in notes
    assert "did you mean --enable-expert-parallel?" in notes
    assert (
        "Not simulated: --enable-prompt-embeds, --scheduling-policy lottery, --quantization quark, "
        "--swap-space 8." in notes
    )
    assert "Without effect on the simulation: --port." in notes
    assert "Not understood: extra." in notes
    assert "traffic is a placeholder" in notes
    assert all(note.split()[0] in draft.text for note in draft.notes)


@pytest.mark.parametrize(
    ("served", "model", "quantization"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b", "auto"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b", "auto"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b", "auto"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b", "auto"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b", "fp8"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", "int8"),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "llama-3.1-8b", "awq-int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", "gptq-int4"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b", "fp8"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3", "auto"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", "auto"),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "auto"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1", "auto"),
        ("google/gemma-3-27b-it", "gemma-3-27b", "auto"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", "qwen3-30b-a3b", "fp8"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-14b", "auto"),
        ("neuralmagic/DeepSeek-R1-Distill-Llama-70B-quantized.w8a8", "llama-3.3-70b", "int8"),
        ("unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "llama-3.3-70b", "nf4"),
        ("zai-org/GLM-5", "glm-5", "none"),
        ("zai-org/GLM-5-FP8", "glm-5", "auto"),
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b", "none"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3", "auto"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3", "auto"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2", "auto"),
    ],
)
def test_published_weights_find_their_profile_and_format(served: str, model: str, quantization: str) -> None:
    """By repository, then by the name without tuning and number format; what runs is what was named."""
    scenario = imported(f"vllm serve {served} -tp 8").scenario
    profile = load_model(scenario.model)

    own = load_model(model).stored.format
    assert profile.catalogue_name == model
    assert profile.stored.repository == served
    assert scenario.deployment.quantization == "auto"
    assert profile.stored.format == (own if quantization == "auto" else quantization)


@pytest.mark.parametrize("served", ["zai-org/GLM-4", "zai-org/GLM-4-Flash"])
def test_another_version_is_another_model(served: str) -> None:
    """GLM-4 is not GLM-4.5."""
    with pytest.raises(ScenarioError, match="is no model that has a profile"):
        imported(f"vllm serve {served} -tp 8")


@pytest.mark.parametrize("tag", ["latest", "nightly", "v0.12.0"])
def test_an_image_of_any_tag_starts_a_server(tag: str) -> None:
    """What follows it are the flags; only a release says a version."""
    draft = import_line(
        VLLM,
        f"docker run --gpus all -p 8000:8000 -e HF_HUB_OFFLINE=1 vllm/vllm-openai:{tag} meta-llama/Llama-3.1-8B -tp 2",
    )

    assert (draft.scenario.model, draft.scenario.deployment.tensor_parallel_size) == ("llama-3.1-8b", 2)
    assert (draft.scenario.deployment.engine.version == "0.12.0") == (tag == "v0.12.0")


def test_another_models_profile_can_be_said(tmp_path: Path) -> None:
    """Where no profile is near."""
    assert imported("vllm serve org/unheard-of", model="llama-3.1-8b").scenario.model == "llama-3.1-8b"
    with pytest.raises(ScenarioError, match="'org/unheard-of' is no model that has a profile; say which with --model"):
        imported("vllm serve org/unheard-of")


def test_data_parallel_ranks_are_replicas() -> None:
    """Each has a scheduler of its own."""
    draft = imported("vllm serve meta-llama/Llama-3.1-8B -dp 4")

    assert draft.scenario.deployment.replicas == 4
    assert any("4 replicas" in note for note in draft.notes)


def test_the_gpu_is_assumed_with_a_note() -> None:
    """The line cannot say it."""
    draft = import_line(VLLM, "vllm serve meta-llama/Llama-3.1-8B", version="0.12")

    assert draft.scenario.deployment.hardware == "h100-sxm-80gb"
    assert "--gpus names yours" in draft.notes[0]


def test_a_deployment_that_does_not_fit_is_written_with_a_note() -> None:
    """The user may want to change it."""
    draft = imported("vllm serve meta-llama/Llama-3.1-405B")

    assert "It cannot be run as it is: llama-3.1-405b does not fit" in draft.notes[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("llama-server -m x", "holds no vllm serve"),
        ("python -m sglang.launch_server --model-path x", "this is a line for simserve import sglang-command"),
        ("trtllm-serve x --tp_size 2", "this is a line for simserve import trtllm-command"),
        ("vllm serve 'unclosed", "is no command line: No closing quotation"),
        ("vllm serve", "names no model"),
        ("vllm serve meta-llama/Llama-3.1-8B --max-num-seqs", "--max-num-seqs: lacks its value"),
        ("vllm serve meta-llama/Llama-3.1-8B --max-num-seqs many", "--max-num-seqs: 'many' is not a whole number"),
        ("vllm serve meta-llama/Llama-3.1-8B --gpu-memory-utilization x", "'x' is not a share"),
    ],
)
def test_what_is_no_command_is_refused(text: str, message: str) -> None:
    """On one line."""
    with pytest.raises(ScenarioError, match=message):
        imported(text)


LLAMA = "vllm serve meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    "text",
    [
        f"{LLAMA} \\ -tp 2 \\ --max-num-seqs 8 \\ --port 8000",
        f"{LLAMA} \\\\ --tensor-parallel-size 2 \\\\ --max-num-seqs 8",
        f"{LLAMA} --tensor-parallel-size=2\\--max-num-seqs 8",
        f"{LLAMA} --tensor-parallel-size 2--max-num-seqs 8--port 8000",
        f"{LLAMA}\n  --tensor-parallel-size 2\n  --max-num-seqs 8\ncurl -H 'a: b' localhost:8000",
        f"{LLAMA} \\n --tensor_parallel_size 2 \\n --max_num_seqs 8",
        f"{LLAMA} \u2013tensor-parallel-size 2 \u2014max-num-seqs 8",
        f"{LLAMA} -tp=2 --max-num-seqs 8 > vllm.log 2>&1 &",
        f"nohup uv run {LLAMA} -tp 2 --max-num-seqs 8 | tee log",
        "export MODEL=meta-llama/Llama-3.1-8B TP=2\nvllm serve $MODEL -tp ${TP} --max-num-seqs ${SEATS:-8}",
        f'docker run -e HF_TOKEN=x --gpus all vllm/vllm-openai bash -c "{LLAMA} -tp 2 --max-num-seqs 8"',
        "cd /models; vllm serve --model meta-llama/Llama-3.1-8B -tp 2 --max-num-seqs 8; echo done",
    ],
)
def test_a_line_is_understood_as_it_was_pasted(text: str) -> None:
    """Without its line breaks or its backslashes, with typographic dashes, variables, and what follows the command."""
    draft = imported(text)

    deployment = draft.scenario.deployment
    assert deployment.tensor_parallel_size == 2
    assert deployment.engine.overrides() == {"max_num_seqs": 8}
    assert not [note for note in draft.notes if note.startswith(("Not understood", "vllm 0.12 has no"))]


@pytest.mark.parametrize(
    ("word", "tokens"),
    [("16384", 16384), ("16_384", 16384), ("16k", 16000), ("16K", 16384), ("0.5K", 512), ("1m", 10**6)],
)
def test_numbers_are_read_as_vllm_reads_them(word: str, tokens: int) -> None:
    """Small suffixes are decimal, capital ones binary; underscores group digits."""
    engine = imported(f"{LLAMA} --max-num-batched-tokens={word}").scenario.deployment.engine

    assert engine.max_num_batched_tokens == tokens


@pytest.mark.parametrize(
    ("words", "version", "length"),
    [
        ("""--hf-overrides '{"max_position_embeddings": 65536}'""", "0.12", 65_536),
        ("--hf-overrides.max_position_embeddings 65536", "0.33", 65_536),
        (
            """--hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 32768}}'""",
            "0.12",
            131_072,
        ),
        ('--hf-overrides {"rope_parameters":{"factor":2,"original_max_position_embeddings":32768}}', "0.33", 65_536),
        (
            "--hf-overrides.rope_scaling.factor=4 --hf-overrides.rope_scaling.original_max_position_embeddings=32768",
            "0.33",
            131_072,
        ),
        (
            """--rope-scaling '{"type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'""",
            "0.6.6",
            131_072,
        ),
        ("""--hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}'""", "0.12", 2 * 40_960),
        ("""--hf-overrides '{"max_position_embeddings": 65536}' --max-model-len 9000""", "0.12", 9000),
        ("""--hf-overrides '{"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}'""", "0.12", None),
    ],
)
def test_an_overridden_configuration_changes_the_longest_sequence(words: str, version: str, length: int | None) -> None:
    """The factor of a scaled position embedding multiplies the original length, as vLLM derives it."""
    draft = imported(f"vllm serve Qwen/Qwen3-8B {words}", version=version)

    assert draft.scenario.deployment.engine.max_model_len == length
    assert not any("Not simulated" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("words", "version", "options"),
    [
        ("-O0", "0.33", {"enforce_eager": True}),
        ("-O=2", "0.33", {}),
        ("-O3", "0.10.2", {}),
        ("-O.level=3", "0.12", {}),
        ("-O.cudagraph_mode=NONE", "0.12", {"enforce_eager": True}),
        ("-O.cudagraph_mode=FULL_DECODE_ONLY", "0.12", {"cudagraph_mode": "FULL_DECODE_ONLY"}),
        (
            """--compilation-config '{"cudagraph_capture_sizes": [1, 2, 64]}'""",
            "0.12",
            {"max_cudagraph_capture_size": 64},
        ),
        ("-cc.max_cudagraph_capture_size 1024", "0.33", {"max_cudagraph_capture_size": 1024}),
    ],
)
def test_compilation_is_read_in_every_spelling(words: str, version: str, options: dict[str, object]) -> None:
    """Levels that are the default have no effect; graphs that are switched off or bounded have one."""
    draft = imported(f"{LLAMA} {words}", version=version)

    assert draft.scenario.deployment.engine.overrides() == options
    assert not [note for note in draft.notes if "has no -" in note or "Not simulated" in note]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--language-model-only", {"language_model_only": True}),
        ("--limit-mm-per-prompt.image 0 --limit-mm-per-prompt.video 0", {"language_model_only": True}),
        ("""--limit-mm-per-prompt '{"image": 0, "video": 0}'""", {"language_model_only": True}),
        ("--limit-mm-per-prompt image=0,video=0", {"language_model_only": True}),
        ("""--limit-mm-per-prompt '{"image": 2, "audio": 0}'""", {}),
        ("--mm-encoder-tp-mode data", {"mm_encoder_tp_mode": "data"}),
    ],
)
def test_encoders_are_read_in_every_spelling(words: str, options: dict[str, object]) -> None:
    """No image, video or recording a prompt: their encoders are not loaded."""
    draft = imported(f"vllm serve Qwen/Qwen3.5-27B {words}", version="0.33")

    assert draft.scenario.deployment.engine.overrides() == options
    assert not any("Not simulated" in note for note in draft.notes)


@pytest.mark.parametrize(("words", "version"), [("--runner pooling", "0.33"), ("--task embed", "0.10.0")])
def test_a_server_of_embeddings_has_requests_without_answers(words: str, version: str) -> None:
    """The placeholder of the traffic says so, and its own export names the runner again."""
    draft = imported(f"vllm serve Qwen/Qwen3-8B {words}", version=version)

    assert any("requests have no output tokens" in note for note in draft.notes)
    assert not any("Not simulated" in note for note in draft.notes)
    assert words in export(draft.scenario, "vllm").line


def test_compilation_that_is_not_simulated_is_named() -> None:
    """Key by key."""
    draft = imported(f"{LLAMA} -O1 --compilation-config.pass_config.fuse_norm_quant true", version="0.33")

    assert any(
        "Not simulated: -O1, --compilation-config pass_config {'fuse_norm_quant': True}." in note
        for note in draft.notes
    )


def test_dotted_settings_are_one_json_value() -> None:
    """Also of drafts."""
    draft = imported(
        f"{LLAMA} --max-model-len 8192 --speculative-config.method ngram -sc.num_speculative_tokens=4", version="0.33"
    )

    found = draft.scenario.deployment.speculative
    assert found is not None
    assert (found.method, found.num_speculative_tokens) == ("ngram", 4)


def test_a_config_file_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves the tilde of ``--config=~/serve.yaml`` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "serve.yaml").write_text("max-num-seqs: 7\n", encoding="utf-8")

    assert imported(f"{LLAMA} --config=~/serve.yaml").scenario.deployment.engine.max_num_seqs == 7


def test_a_config_file_gives_way_to_the_line(tmp_path: Path) -> None:
    """Keys with dashes or underscores, switches with their opposite, nested settings, the model."""
    config = tmp_path / "serve.yaml"
    config.write_text(
        "model: meta-llama/Llama-3.1-8B\nmax_num_seqs: 8\nmax-model-len: 4096\nenable-prefix-caching: false\n"
        "enforce-eager: true\nspeculative_config: {method: ngram, num_speculative_tokens: 3}\n",
        encoding="utf-8",
    )

    draft = imported(f"vllm serve --config {config} --max-num-seqs 16")
    deployment = draft.scenario.deployment
    assert deployment.engine.overrides() == {
        "max_num_seqs": 16,
        "max_model_len": 4096,
        "enable_prefix_caching": False,
        "enforce_eager": True,
    }
    assert deployment.speculative is not None
    missing = imported(f"{LLAMA} --config elsewhere.yaml")
    assert any("--config elsewhere.yaml is not here" in note for note in missing.notes)


def test_variables_are_named_or_read() -> None:
    """Layers of pipeline stages count; a backend is not simulated; a token has no effect."""
    draft = imported(
        "VLLM_PP_LAYER_PARTITION=15,17 VLLM_ATTENTION_BACKEND=FLASHINFER HF_TOKEN=x VLLM_LOGGING_LEVEL=DEBUG "
        f"{LLAMA} -pp 2"
    )

    assert draft.scenario.deployment.pipeline_layer_partition == [15, 17]
    assert "Not simulated: VLLM_ATTENTION_BACKEND=FLASHINFER." in draft.notes
    assert "Without effect on the simulation: HF_TOKEN, VLLM_LOGGING_LEVEL." in draft.notes


@pytest.mark.parametrize("version", ["0.11.0", "0.14"])
def test_the_kernels_of_attention_on_amd_come_back(version: str) -> None:
    """By flag where there is one, by variable before; AITER's by its switch, which a named backend outweighs."""
    for backend in ("triton", "aiter"):
        scenario = make_scenario(
            [
                f"deployment.engine={{version: '{version}', attention_backend: {backend}, max_model_len: 4096}}",
                "deployment.hardware=mi300x-192gb",
            ]
        )
        line = export(scenario, "vllm").lines
        back = import_line(VLLM, line, hardware="mi300x-192gb", version=version).scenario
        assert resolved_part(back) == resolved_part(scenario), line
    both = imported(f"VLLM_ATTENTION_BACKEND=TRITON_ATTN VLLM_ROCM_USE_AITER=1 {LLAMA}", version=version)
    assert both.scenario.deployment.engine.attention_backend == "triton"


@pytest.mark.parametrize("version", ["0.11.0", "0.14", "0.33"])
@pytest.mark.parametrize(
    "options",
    [
        "attention_backend: aiter",
        "moe_backend: aiter, attention_backend: triton",
        "moe_backend: triton, attention_backend: aiter",
        "moe_backend: triton",
    ],
)
def test_the_kernels_of_experts_on_amd_come_back(version: str, options: str) -> None:
    """AITER's go with its switch, of which both can be left out; a named backend of attention has none of it."""
    scenario = make_scenario(
        [
            "model=qwen3-30b-a3b",
            f"deployment.engine={{version: '{version}', {options}, max_model_len: 4096}}",
            "deployment.hardware=mi300x-192gb",
        ]
    )
    back = import_line(VLLM, export(scenario, "vllm").lines, hardware="mi300x-192gb", version=version).scenario

    assert resolved_part(back) == resolved_part(scenario)
    served = "vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507"
    hip = imported(f"{served} --attention-backend ROCM_ATTN", version="0.33").scenario.deployment.engine
    assert (hip.attention_backend, hip.moe_backend) == ("aiter", "triton")


def test_experts_that_a_model_lacks_have_no_effect() -> None:
    """vLLM takes the flag of any model."""
    draft = imported(f"{LLAMA} --enable-expert-parallel")

    assert draft.scenario.deployment.enable_expert_parallel is False
    assert any("llama-3.1-8b has no experts" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--hf-overrides '{'", "--hf-overrides: '{' is not JSON"),
        ("--compilation-config '[]'", "--compilation-config: '[]' must be a JSON object"),
        ("--cpu-offload-gb nan", "--cpu-offload-gb: 'nan' is not a number of GiB"),
        ("--swap-space -1", "--swap-space: '-1' is not a number of GiB"),
        (f"--kv-cache-memory-bytes {'9' * 400}", "9' is not a number of bytes"),
        ("""--hf-overrides '{"rope_scaling": {"factor": "x"}}'""", "--hf-overrides rope_scaling factor: 'x'"),
    ],
)
def test_settings_that_cannot_be_read_are_refused(words: str, message: str) -> None:
    """With the flag and its value."""
    with pytest.raises(ScenarioError, match=re.escape(message)):
        imported(f"{LLAMA} {words}")


_PIECES = (
    *LLAMA.split(),
    *("-tp", "2", "-O.level=3", "--config", "=", "\\", "'", '"', "{", "}", "$A", "A=1", ";", "", "-1", "9" * 400),
    *("--hf-overrides", "--max-model-len", "--speculative-config", '{"method": "ngram"}', "\n", "docker", "bash", "-c"),
    *("--kv-cache-memory-bytes", "vllm/vllm-openai:v0.12.0", "--rope-scaling", "\u2013x", "--swap-space", "--model"),
    *("--block-size", "--data-parallel-size", "--compilation-config", '{"cudagraph_capture_sizes": [{}]}', "16k"),
)


def is_answered(text: str) -> bool:
    """Return whether a text becomes a scenario or one line that says why not."""
    try:
        draft = imported(text)
    except SimserveError as failure:
        return "\n" not in str(failure)
    return draft.text.startswith("# What does this vLLM server of")


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from(_PIECES)), st.text())
def test_no_line_ends_in_a_traceback(pieces: list[str], noise: str) -> None:
    """A mutated line is a scenario or one error."""
    assert is_answered(" ".join(pieces))
    assert is_answered(f"{LLAMA} {' '.join(pieces)}")
    assert is_answered(f"{LLAMA} {noise}")


@pytest.mark.slow
@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=20), st.text())
def test_no_line_of_thousands_ends_in_a_traceback(pieces: list[str], noise: str) -> None:
    """As above, longer."""
    assert is_answered(f"{LLAMA} {' '.join(pieces)} {noise}")


@pytest.mark.parametrize(
    ("config", "version", "note"),
    [
        (
            '{"method": "suffix", "num_speculative_tokens": 3}',
            "0.33",
            "vllm 0.33 knows speculative decoding by suffixes",
        ),
        (
            '{"method": "draft_model", "model": "org/pard", "parallel_drafting": true, "num_speculative_tokens": 3}',
            "0.33",
            "(PARD) (method draft_model), which is not simulated",
        ),
        ('{"method": "dflash", "num_speculative_tokens": 3}', "0.12", "versions with it: 0.20 and newer"),
        ('{"method": "telepathy", "num_speculative_tokens": 3}', "0.33", "Method telepathy of speculative decoding"),
    ],
)
def test_drafts_that_nothing_simulates_are_named(config: str, version: str, note: str) -> None:
    """Whether that vLLM knows them is said; the scenario comes without."""
    draft = imported(f"vllm serve meta-llama/Llama-3.1-8B --speculative-config '{config}'", version=version)

    assert draft.scenario.deployment.speculative is None
    assert any(note in each for each in draft.notes)


def test_limits_by_hand_are_read() -> None:
    """KV blocks, KV bytes, and the prompt tokens of one request in a step."""
    line = "vllm serve meta-llama/Llama-3.1-8B --num-gpu-blocks-override 4000 --long-prefill-token-threshold 512"
    engine = imported(f"{line} --kv-cache-memory-bytes 20000000000").scenario.deployment.engine

    assert (engine.num_gpu_blocks_override, engine.long_prefill_token_threshold) == (4000, 512)
    assert engine.kv_cache_memory_bytes == 20_000_000_000


@pytest.mark.parametrize(
    ("size", "num_bytes"), [("20g", 20e9), ("20G", 20 * 2**30), ("20GiB", 20 * 2**30), ("20giB", 20 * 2**30)]
)
def test_bytes_are_decimal_or_binary_as_vllm_reads_them(size: str, num_bytes: float) -> None:
    """Lower-case suffixes are powers of ten, upper-case ones of two; ``iB`` says two in any case."""
    engine = imported(f"{LLAMA} --kv-cache-memory-bytes {size}").scenario.deployment.engine

    assert engine.kv_cache_memory_bytes == num_bytes


@pytest.mark.parametrize(("ranks", "backend"), [(8, None), (16, "allgather_reducescatter")])
def test_experts_across_nodes_use_vllms_own_default(ranks: int, backend: str | None) -> None:
    """A node has eight H100: experts on eight ranks lie within one, those on 16 on two."""
    draft = imported(f"vllm serve deepseek-ai/DeepSeek-V3 -dp {ranks} -ep", version="0.20")

    assert draft.mapping["deployment"].get("all2all_backend") == backend


@pytest.mark.parametrize(
    ("line", "capacity"),
    [
        (f"{LLAMA} -tp 2 --kv-offloading-size 64 --kv-offloading-backend native", "64 GiB"),
        (f"LMCACHE_MAX_LOCAL_CPU_SIZE=20 {LLAMA} -tp 2", "40 GiB"),
        (f"LMCACHE_MAX_LOCAL_CPU_SIZE=20 {LLAMA} -tp 2 -pp 3", "120 GiB"),
    ],
)
def test_host_memory_behind_the_prefix_cache_is_read(line: str, capacity: str) -> None:
    """vLLM counts all ranks, LMCache each; the placeholder traffic has no use for it, so it is a note."""
    draft = imported(line)

    assert draft.scenario.deployment.engine.kv_tiers is None
    assert any(f'"tier": "host", "capacity": "{capacity}"' in note for note in draft.notes)


def test_lmcache_places_without_a_bandwidth_are_named() -> None:
    """A disk and a remote store are added by hand."""
    draft = imported(f"LMCACHE_REMOTE_URL=lm://store:65432 {LLAMA}")

    assert any("LMCACHE_REMOTE_URL is a KV tier" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("line", "version", "options"),
    [
        ("vllm serve openai/gpt-oss-20b --moe-backend Marlin", "0.33", {"moe_backend": "marlin"}),
        ("vllm serve openai/gpt-oss-20b --moe-backend auto", "0.33", {}),
        ("VLLM_MXFP4_USE_MARLIN=1 vllm serve openai/gpt-oss-20b", "0.11", {"moe_backend": "marlin"}),
        ("VLLM_MXFP4_USE_MARLIN=false vllm serve openai/gpt-oss-20b", "0.11", {"moe_backend": "triton"}),
    ],
)
def test_the_kernels_of_experts_are_read_and_written_again(line: str, version: str, options: dict[str, str]) -> None:
    """As the flag of newer versions, and as the variable of older ones."""
    draft = imported(line, version=version)

    written = export(draft.scenario, target="vllm")
    variables = " ".join(f"{name}={value}" for name, value in written.environment.items())
    again = imported(f"{variables} {shlex.join(written.command)}", version=version)
    assert draft.scenario.deployment.engine.overrides() == options
    assert again.scenario.deployment.engine.moe_backend == options.get("moe_backend")


@pytest.mark.parametrize(
    ("model", "quantization"),
    [
        ("nvidia/Qwen3.6-27B-NVFP4", "nvfp4-wo"),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "nvfp4-wo"),
        ("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "nvfp4-wo"),
        ("RedHatAI/Qwen3-8B-NVFP4A16", "nvfp4-wo"),
        ("nvidia/Gemma-4-26B-A4B-NVFP4", "nvfp4"),
        ("Qwen/Qwen3-8B", "nvfp4"),
    ],
)
def test_one_flag_names_nvfp4_with_and_without_inputs_in_4_bit(model: str, quantization: str) -> None:
    """The checkpoint says which; nothing else does."""
    line = f"vllm serve {model} --quantization modelopt_fp4"
    draft = import_line(VLLM, line, hardware="b200-sxm-180gb", version="0.26")

    assert resolve(draft.scenario).shape.precision.name == quantization


@pytest.mark.parametrize(("value", "fused"), [("1", True), ("0", False), ("true", True)])
def test_the_variable_of_the_sampler_is_read_and_written_again(value: str, fused: bool) -> None:
    """VLLM_USE_FLASHINFER_SAMPLER, which decides on the memory that is left to the KV cache."""
    draft = imported(f"VLLM_USE_FLASHINFER_SAMPLER={value} vllm serve Qwen/Qwen3-8B", version="0.12")

    written = export(draft.scenario, target="vllm")
    assert draft.scenario.deployment.engine.flashinfer_sampler is fused
    assert written.environment == {"VLLM_USE_FLASHINFER_SAMPLER": str(int(fused))}


def test_the_variable_of_the_sampler_says_nothing_of_versions_without_a_choice() -> None:
    """From 0.17 on both samplers take alike, and a pasted command still runs."""
    draft = imported("VLLM_USE_FLASHINFER_SAMPLER=1 vllm serve Qwen/Qwen3-8B", version="0.20")

    assert draft.scenario.deployment.engine.flashinfer_sampler is None


def test_kernels_of_experts_that_are_not_simulated_are_named() -> None:
    """Their layouts in memory are not known."""
    draft = imported("vllm serve openai/gpt-oss-20b --moe-backend deep-gemm", version="0.33")

    assert draft.scenario.deployment.engine.moe_backend is None
    assert "Not simulated: --moe-backend deep-gemm." in draft.notes


def test_ranks_that_divide_contexts_are_read() -> None:
    """Also in short; how tokens alternate among them has no effect."""
    line = "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 -dcp 8 --cp-kv-cache-interleave-size 64 --dcp-comm-backend ag_rs"
    draft = imported(line, version="0.33")

    assert draft.scenario.deployment.decode_context_parallel_size == 8
    assert not any("Not simulated" in note for note in draft.notes)
    told = imported(f"{line.rpartition(' ')[0]} a2a", version="0.33").notes
    assert any("Not simulated: --dcp-comm-backend a2a." in note for note in told)


def test_ranks_that_split_prompts_are_refused() -> None:
    """They are GPUs besides those of tensor parallelism; one of them is what is simulated."""
    line = "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --prefill-context-parallel-size"

    with pytest.raises(ScenarioError, match=r"--prefill-context-parallel-size: 2 adds GPUs that split prompts"):
        imported(f"{line} 2", version="0.33")
    assert imported(f"{line} 1", version="0.33").scenario.deployment.tensor_parallel_size == 8


@pytest.mark.parametrize(("engine", "cost"), [("vllm", {"cost_per_event": "0 s"}), ("sglang", {})])
def test_tokens_that_are_sent_together_come_back(engine: str, cost: dict[str, str]) -> None:
    """With SGLang an event costs what its server takes for a token; with vLLM no cost is known."""
    version = "0.33" if engine == "vllm" else "0.5.15"
    program, start = (VLLM, "vllm serve") if engine == "vllm" else (SGLANG, "sglang serve --model-path")
    draft = import_line(program, f"{start} meta-llama/Llama-3.1-8B --stream-interval 10", hardware=GPU, version=version)

    assert draft.mapping["deployment"]["streaming"] == {"stream_interval": 10, **cost}
    exported = export(draft.scenario, engine)
    assert "--stream-interval 10" in exported.line
    assert not any("deployment.streaming" in note for note in exported.notes)
    once = import_line(program, f"{start} meta-llama/Llama-3.1-8B --stream-interval 1", hardware=GPU, version=version)
    assert "streaming" not in once.mapping["deployment"]
    never = import_line(program, f"{start} meta-llama/Llama-3.1-8B --stream-interval 0", hardware=GPU, version=version)
    with pytest.raises(ScenarioError, match=r"stream_interval: 0 must be greater than or equal to 1"):
        assert never.scenario


@pytest.mark.parametrize(
    ("model", "size", "is_kept"),
    [
        ("moonshotai/Kimi-K2.5", 8, True),
        ("zai-org/GLM-4.1V-9B-Thinking", 2, True),
        ("OpenGVLab/InternVL3_5-8B", 2, True),
        ("google/gemma-3-4b-it", 2, False),
        ("Qwen/Qwen3-8B", 2, False),
    ],
)
def test_a_tower_whole_on_each_rank_is_read_where_the_model_can(model: str, size: int, is_kept: bool) -> None:
    """Others start all the same, and divide it: a recipe is not refused for it."""
    draft = import_line(
        VLLM, f"vllm serve {model} -tp {size} --mm-encoder-tp-mode data", hardware="h200-sxm-141gb", version="0.32"
    )

    assert draft.scenario.deployment.engine.mm_encoder_tp_mode == ("data" if is_kept else None)
    assert any(note.startswith("Simulated with") for note in draft.notes)
    assert any("tower whole on each GPU is left out" in note for note in draft.notes) is not is_kept
