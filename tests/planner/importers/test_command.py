"""Pasted lines of any engine: whose they are, what TGI's, LMDeploy's, llama.cpp's and Ollama's say, containers."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import ScenarioError, UsageError
from simserve.perf.memory import mapped_bytes
from simserve.planner.export.export import export
from simserve.planner.importers.command import import_command
from simserve.planner.importers.llama_cpp_command import gguf_format
from simserve.scenario.resolve import resolve
from tests.planner.importers.test_vllm_command import resolved_part
from tests.scenario.builders import make_scenario

TGI = "docker run --gpus all -p 8080:80 ghcr.io/huggingface/text-generation-inference:3.0.1"
LLAMA = "llama-server -m /models/Qwen3-8B-Q4_K_M.gguf"


def deployment_of(text: str) -> dict[str, Any]:
    """Return the deployment of a line on one H100."""
    return dict(import_command(text, hardware="h100-sxm-80gb").mapping["deployment"])


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("vllm serve Qwen/Qwen3-8B", "vllm"),
        ("kubectl run q --image=vllm/vllm-openai:v0.11.0 -- --model Qwen/Qwen3-8B", "vllm"),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B", "sglang"),
        ("trtllm-serve Qwen/Qwen3-8B", "tensorrt-llm"),
        (f"{TGI} --model-id meta-llama/Llama-3.1-8B", "tgi"),
        ("lmdeploy serve api_server Qwen/Qwen3-8B", "lmdeploy"),
        (LLAMA, "llama.cpp"),
        ("docker run ghcr.io/ggml-org/llama.cpp:server-cuda -hf unsloth/Qwen3-8B-GGUF", "llama.cpp"),
        ("ollama run qwen3:8b", "ollama"),
        ("docker exec -it ollama ollama run qwen3:8b", "ollama"),
        ("--model Qwen/Qwen3-8B --max-num-seqs 64", "vllm"),
        ("--model-path Qwen/Qwen3-8B", "sglang"),
        ("--model-id=meta-llama/Llama-3.1-8B", "tgi"),
        ("- --model=Qwen/Qwen3-8B\n- --max-num-seqs=64", "vllm"),
        ('args: ["--model", "Qwen/Qwen3-8B"]', "vllm"),
        (
            "image: lmsysorg/sglang:v0.5.5\ncommand: [python3, -m, sglang.launch_server, --model, Qwen/Qwen3-8B]",
            "sglang",
        ),
        ("containers:\n- image: vllm/vllm-openai:v0.11.0\n  args:\n  - --model=Qwen/Qwen3-8B", "vllm"),
    ],
)
def test_a_line_is_read_as_that_of_its_engine(line: str, engine: str) -> None:
    """Programs, images, arguments alone, and what a container is described by."""
    made = import_command(line, hardware="h100-sxm-80gb")

    assert made.mapping["deployment"]["engine"]["name"] == engine
    assert made.scenario.deployment.engine.name == engine


def test_arguments_alone_say_whose_they_are_taken_to_be() -> None:
    """And their values count."""
    made = import_command("--model Qwen/Qwen3-8B --max-num-seqs 64", hardware="l4-24gb")

    assert made.notes[0] == "No program is named: these are read as arguments of vLLM."
    assert made.mapping["deployment"]["engine"]["max_num_seqs"] == 64


@pytest.mark.parametrize(("flag", "value"), [("-kvu", True), ("--no-kv-unified", False)])
def test_one_buffer_of_all_slots_is_kept(flag: str, value: bool) -> None:
    """Either way; where the line says neither, the server's own choice stays."""
    said, unsaid = (import_command(f"{LLAMA} -np 8 {word}", hardware="l4-24gb").mapping for word in (flag, ""))

    assert said["deployment"]["engine"]["kv_unified"] is value
    assert "kv_unified" not in unsaid["deployment"]["engine"]


@pytest.mark.parametrize(
    ("flags", "version", "seats", "context"),
    [
        ("-c 8192", None, 4, 8192),  # issue 23652: four slots with n_ctx = 1024 of -c 1024
        ("-c 8192 -np 4", None, 4, 2048),  # and with -np 4 n_ctx = 256
        ("-c 8192 -np 4 -kvu", None, 4, 8192),
        ("-c 8192", "b4000", 1, 8192),
        ("-c 8192 -np 2", "b4000", 2, 4096),
    ],
)
def test_a_slot_has_the_context_that_llama_cpp_gives_it(
    flags: str, version: str | None, seats: int, context: int
) -> None:
    """All of one buffer where the number of slots is its own choice, else its share."""
    line = f"llama-server -m Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf {flags}"
    made = import_command(line, hardware="rtx-4090-24gb", version=version)

    engine = resolve(made.scenario).shape.engine
    assert (engine.max_num_seqs, engine.max_model_len) == (seats, context)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("python train.py", "--gpus N --engine NAME"),
        ("kind: Deployment\nspec: {}", "simserve import manifest FILE"),
    ],
)
def test_what_starts_no_known_server_is_refused_with_what_to_do(text: str, remedy: str) -> None:
    """In one line that names the flag."""
    with pytest.raises(UsageError, match="--like") as refused:
        import_command(text, flag="--like")

    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("OLLAMA_NUM_PARALLEL=4 ollama serve", "ollama run"),
        ("llama-server -c 4096", "-m FILE.gguf"),
        (TGI, "--model-id"),
        ("lmdeploy serve api_server", "ORG/NAME"),
    ],
)
def test_a_line_without_a_model_says_how_to_name_one(line: str, remedy: str) -> None:
    """In the words of its engine."""
    with pytest.raises(ScenarioError, match="names no model") as refused:
        import_command(line)

    assert remedy in str(refused.value)


def test_an_exported_tgi_command_comes_back_as_the_same_deployment() -> None:
    """Limits, shards and formats."""
    asked = ["deployment.engine={name: tgi, version: '3.0'}", "deployment.tensor_parallel_size=2"]
    scenario = make_scenario([*asked, "deployment.engine.max_model_len=8192", "deployment.engine.max_num_seqs=32"])

    exported = export(scenario, "tgi")
    back = import_command(exported.lines, hardware=scenario.deployment.hardware, version="3.0")

    assert resolved_part(back.scenario) == resolved_part(scenario)


def test_variables_of_tgi_are_its_flags() -> None:
    """As its launcher reads them; a flag goes before its variable."""
    line = TGI.replace("ghcr", "-e MODEL_ID=meta-llama/Llama-3.1-8B -e NUM_SHARD=2 -e MAX_TOTAL_TOKENS=4096 ghcr")
    found = deployment_of(f"{line} --max-total-tokens 8192 --quantize eetq --kv-cache-dtype fp8_e4m3fn")

    assert found["tensor_parallel_size"] == 2
    assert (found["quantization"], found["kv_cache_dtype"]) == ("int8-wo", "fp8")
    assert (found["engine"]["max_model_len"], found["engine"]["version"]) == (8192, "3.0.1")


def test_seats_of_tgi_are_the_smaller_limit() -> None:
    """Of the router and of the batch."""
    line = "text-generation-launcher --model-id meta-llama/Llama-3.1-8B"

    assert deployment_of(f"{line} --max-concurrent-requests 64 --max-batch-size 16")["engine"]["max_num_seqs"] == 16
    assert deployment_of(f"{line} --max-batch-size 96 --max-concurrent-requests 64")["engine"]["max_num_seqs"] == 64


def test_flags_of_lmdeploy_are_read() -> None:
    """Lengths, seats, memory and the bits of the KV cache."""
    flags = "--tp 2 --session-len 8192 --max-batch-size 64 --cache-max-entry-count 0.7 --quant-policy 8"
    found = deployment_of(f"lmdeploy serve api_server Qwen/Qwen3-8B {flags} --enable-prefix-caching")

    engine = found["engine"]
    assert (found["tensor_parallel_size"], found["kv_cache_dtype"]) == (2, "int8")
    assert (engine["max_model_len"], engine["max_num_seqs"], engine["gpu_memory_utilization"]) == (8192, 64, 0.7)
    assert engine["enable_prefix_caching"] is True


@pytest.mark.parametrize(("policy", "stored"), [("4", "int4"), ("8", "int8"), ("0", None)])
def test_the_quantization_policy_of_lmdeploy_is_the_bits_of_its_cache(policy: str, stored: str | None) -> None:
    """0 is none."""
    found = deployment_of(f"lmdeploy serve api_server Qwen/Qwen3-8B --quant-policy {policy}")

    assert found.get("kv_cache_dtype") == stored


@pytest.mark.parametrize(
    ("line", "seats"),
    [
        ("vllm serve Qwen/Qwen3-8B --enable-lora", 1),
        ("vllm serve Qwen/Qwen3-8B --max-loras 3 --enable-lora", 3),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-lora", 8),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-lora --max-loras-per-batch 2", 2),
    ],
)
def test_adapters_have_as_many_seats_as_the_server_has_without_a_number(line: str, seats: int) -> None:
    """vLLM's config/lora.py and SGLang's server_args.py; what another flag says comes first, wherever it stands."""
    assert deployment_of(line)["engine"]["max_loras"] == seats


def test_slots_of_llama_cpp_share_its_context() -> None:
    """--ctx-size is that of all slots together; layers count where some stay on the CPU."""
    found = deployment_of(f"{LLAMA} -c 32768 -np 8 -ngl 20 -b 1024 -ub 256 -ctk q8_0 -ctv q8_0 -fa on --jinja")

    assert (found["quantization"], found["kv_cache_dtype"]) == ("gguf-q4_k_m", "int8")
    engine = found["engine"]
    assert (engine["max_num_seqs"], engine["max_model_len"], engine["max_num_batched_tokens"]) == (8, 4096, 1024)
    assert (engine["n_gpu_layers"], engine["ubatch_size"]) == (20, 256)
    assert "n_gpu_layers" not in deployment_of(f"{LLAMA} -ngl 99")["engine"]
    assert "n_gpu_layers" not in deployment_of(f"{LLAMA} -ngl -1")["engine"]


@pytest.mark.parametrize(
    ("flags", "drafts"),
    [
        ("--spec-type draft-mtp", 3),
        ("--spec-type draft-mtp --spec-draft-n-max 5", 5),
        ("--spec-draft-n-max 5", None),
        ("--spec-type none", None),
    ],
)
def test_a_gguf_file_with_its_drafting_layer_is_found_by_name(flags: str, drafts: int | None) -> None:
    """Three tokens ahead unless it says how many; nothing where no type is set."""
    found = deployment_of(f"llama-server -hf unsloth/Qwen3.5-27B-MTP-GGUF:Q4_K_M {flags}")

    assert found["quantization"] == "gguf-q4_k_m"
    assert found.get("speculative", {}).get("num_speculative_tokens") == drafts
    assert found.get("speculative", {}).get("method") == (drafts and "mtp")


def test_drafting_that_llama_cpp_alone_has_is_named() -> None:
    """N-grams of its own kinds."""
    made = import_command(f"{LLAMA} --spec-type ngram-mod", hardware="h100-sxm-80gb")

    assert "speculative" not in made.mapping["deployment"]
    assert any("--spec-type ngram-mod" in each for each in made.notes)


GPT_OSS = "llama-server -hf ggml-org/gpt-oss-120b-GGUF -ngl 99"
"""36 layers, all with experts."""


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ("--n-cpu-moe 26", 26),
        ("-ncmoe 0", None),
        ("--cpu-moe", 36),
        ("-cmoe", 36),
        (r"-ot '.ffn_.*_exps.=CPU'", 36),
        (r"-ot 'blk\.(?:[0-9]|1[0-9])\.ffn_(gate|up|down)_exps.*=CPU'", 20),
        (r"-ot 'blk\.3[0-5]\.ffn_.*_exps=CPU,blk\.2[0-9]\.ffn_.*_exps=CPU'", 16),
    ],
)
def test_experts_that_llama_cpp_leaves_to_the_cpu_are_read(flags: str, layers: int | None) -> None:
    """By number, all of them, or by patterns of tensors, where it does not matter which layers they are."""
    assert deployment_of(f"{GPT_OSS} {flags}")["engine"].get("n_cpu_moe") == layers


@pytest.mark.parametrize(
    "flags",
    [
        "-ot 'blk.*=CPU'",
        "-ot 'ffn_.*=CPU'",
        "-ot 'ffn_up_exps=CPU'",
        "-ot 'exps=CUDA0'",
        "-ot '[=CPU'",
        "-ot 'exps=CPU,blk.0=CUDA0'",
    ],
)
def test_other_tensors_on_the_cpu_are_not_simulated(flags: str) -> None:
    """Whole layers, a third of the experts' matrices, another GPU, no pattern at all, or some of it on another GPU."""
    draft = import_command(f"{GPT_OSS} {flags}", hardware="h100-sxm-80gb")

    assert "n_cpu_moe" not in draft.mapping["deployment"]["engine"]
    assert any("--override-tensor" in each for each in draft.notes)


def test_a_model_without_experts_leaves_none() -> None:
    """Said, and left out."""
    draft = import_command(f"{LLAMA} --n-cpu-moe 4", hardware="h100-sxm-80gb")

    assert "n_cpu_moe" not in draft.mapping["deployment"]["engine"]
    assert any("has no experts" in each for each in draft.notes)


def test_what_of_llama_cpp_is_not_simulated_is_named() -> None:
    """Drafts in slots, and caches of unlike types."""
    made = import_command(f"{LLAMA} -md draft.gguf -ctk q8_0 -ctv f16 --no-such-flag 3")

    notes = " ".join(made.notes)
    assert "--model-draft draft.gguf" in notes
    assert "--cache-type-v f16" in notes
    assert "has no --no-such-flag" in notes


@pytest.mark.parametrize(
    ("name", "known", "stands_in"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "gguf-q4_k_m", False),
        ("Q8_0", "gguf-q8_0", False),
        ("UD-Q4_K_XL", "gguf-q4_k_m", True),
        ("Qwen3-8B-Q6_K.gguf", "gguf-q6_k", False),
        ("Q5_K_M", "gguf-q5_k_m", False),
        ("Q3_K_M", "gguf-q3_k_m", False),
        ("IQ4_XS", "gguf-iq4_xs", False),
        ("q8", "gguf-q8_0", False),
        ("Q4_K", "gguf-q4_k_m", False),
        ("MXFP4", "mxfp4", False),
        ("MXFP4_MOE", "mxfp4", True),
        ("Q5_0", "gguf-q5_k_m", True),
        ("Q4_1", "gguf-q4_k_m", True),
        ("Q3_K_L", "gguf-iq4_xs", True),
        ("Q2_K_S", "gguf-q2_k", True),
        ("8b-instruct-fp16", "fp16", False),
        ("IQ2_XXS", "gguf-q2_k", True),
        ("model-f16.gguf", "fp16", False),
        ("BF16", "bf16", False),
        ("Qwen3-8B", None, False),
    ],
)
def test_names_of_gguf_files_say_their_format(name: str, known: str | None, stands_in: bool) -> None:
    """One that is not simulated is the nearest in size, with a note that says so."""
    found, note = gguf_format(name)

    assert found == known
    assert (note is not None) is stands_in
    assert note is None or "the nearest in size that is simulated" in note


def test_one_file_of_several_and_a_tag_of_a_repository_name_the_model() -> None:
    """The part's number and the format are no part of the name."""
    split = import_command("llama-server -m Qwen3-235B-A22B-Q4_K_M-00001-of-00003.gguf", hardware="h200-sxm-141gb")
    tagged = import_command("llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0", hardware="l4-24gb")

    assert split.mapping["model"] == "qwen3-235b-a22b"
    assert (tagged.mapping["model"], tagged.mapping["deployment"]["quantization"]) == ("llama-3.1-8b", "gguf-q8_0")


@pytest.mark.parametrize("tag", ["", ":MXFP4"])
def test_a_repository_with_one_file_on_record_is_read_as_that_file(tag: str) -> None:
    """gpt-oss in MXFP4: llama.cpp takes the file that is there, and Q4_K_M is not."""
    made = import_command(f"llama-server -hf ggml-org/gpt-oss-20b-GGUF{tag} -c 0", hardware="gb10-128gb")

    assert made.mapping["model"] == "ggml-org/gpt-oss-20b-GGUF"
    assert "quantization" not in made.mapping["deployment"]
    assert any("weights mxfp4, as stored in ggml-org/gpt-oss-20b-GGUF" in note for note in made.notes)


@pytest.mark.parametrize(
    ("line", "published"),
    [
        ("llama-server -hf unsloth/gpt-oss-20b-GGUF:Q8_0", 12.1e9),
        ("llama-server -m openai_gpt-oss-20b-Q6_K.gguf", 12.04e9),
        ("ollama run hf.co/unsloth/gpt-oss-20b-GGUF:F16", 13.8e9),
    ],
)
def test_experts_stored_in_mxfp4_stay_so_in_every_gguf_file(line: str, published: float) -> None:
    """Sizes of the files on huggingface.co (cards of unsloth's and bartowski's gpt-oss-20b-GGUF)."""
    made = import_command(line, hardware="rtx-4090-24gb")

    memory = resolve(made.scenario).memory
    assert memory.weights_bytes + mapped_bytes(memory.shape) == pytest.approx(published, rel=0.02)
    assert any("MXFP4 in every GGUF file" in note for note in made.notes)


def test_a_gguf_repository_without_a_tag_keeps_experts_in_mxfp4() -> None:
    """unsloth/gpt-oss-20b-GGUF was read as Q4_K_M, "by its name"."""
    made = import_command("llama-server -hf unsloth/gpt-oss-20b-GGUF -c 8192", hardware="rtx-4090-24gb")

    assert resolve(made.scenario).formats["weights"] == "mxfp4"


def test_a_gguf_file_in_16_bits_of_a_model_stored_in_mxfp4_is_not_three_times_as_large() -> None:
    """13.8 GB on huggingface.co, not the 42 GB of as many parameters in 16 bits."""
    made = import_command("llama-server -hf unsloth/gpt-oss-20b-GGUF:F16", hardware="rtx-4090-24gb")

    assert resolve(made.scenario).memory.parts["weights"] < 13.8e9


def test_variables_of_ollama_say_its_slots() -> None:
    """In front of the server, whose model a second line loads; the KV type needs flash attention."""
    line = (
        "OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve\nollama run qwen3:8b"
    )
    found = deployment_of(line)
    without = import_command(f"OLLAMA_FLASH_ATTENTION=0 {line}", hardware="l4-24gb")

    assert (found["engine"]["max_num_seqs"], found["engine"]["max_model_len"]) == (4, 8192)
    assert (found["quantization"], found["kv_cache_dtype"]) == ("gguf-q4_k_m", "int8")
    assert "kv_cache_dtype" not in without.mapping["deployment"]
    assert any("has no effect without OLLAMA_FLASH_ATTENTION=1" in note for note in without.notes)


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("llama3.1:8b-instruct-q8_0", "gguf-q8_0"),
        ("hf.co/unsloth/Qwen3-8B-GGUF:Q8_0", "gguf-q8_0"),
        ("gpt-oss:20b", None),
    ],
)
def test_tags_of_ollama_say_the_format(name: str, quantization: str | None) -> None:
    """What is stored in four bits stays so."""
    assert deployment_of(f"ollama run {name}").get("quantization") == quantization


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("vllm serve Qwen/Qwen3-8B --dtype float8", "--dtype float8"),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --dtype float8", "--dtype float8"),
        (f"{TGI} --model-id meta-llama/Llama-3.1-8B --dtype float8", "--dtype float8"),
        ("lmdeploy serve api_server Qwen/Qwen3-8B --quant-policy 42", "--quant-policy 42"),
        (f"{LLAMA} -ctk Q8_0", "--cache-type-k Q8_0"),
    ],
)
def test_a_value_that_is_not_known_is_noted(line: str, noted: str) -> None:
    """It is not simulated, and not passed over in silence."""
    notes = import_command(line, hardware="h100-sxm-80gb").notes

    assert any(note.startswith("Not simulated") and noted in note for note in notes)


def test_the_program_behind_its_own_image_is_understood() -> None:
    """``llama-server`` after llama.cpp's image is no argument of the server."""
    draft = import_command(
        "docker run ghcr.io/ggml-org/llama.cpp:server-cuda llama-server -hf unsloth/Qwen3-8B-GGUF",
        hardware="h100-sxm-80gb",
    )

    assert not any("llama-server" in note for note in draft.notes)
