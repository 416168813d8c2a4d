"""``python -m calibration.real_server.llama_cpp --env DIR --out DIR``: llama.cpp's server on this CPU, beside simserve.

Builds ``llama-server`` from the sources that the package ``llama-cpp-python`` holds (outside the checkout, some eight
minutes of two cores, once), writes a model of 0.25 B random parameters in Q8_0, asks ``llama-bench`` for four speeds
(a prompt, eight tokens at once, single tokens without and with a context), and makes a hardware profile of them. Then
``simserve observe`` measures the server, each load twice; ``simserve calibrate serving`` is given two of the loads, and
all are simulated. What is in ``--out`` already is kept. Takes a quarter of an hour of two cores that nobody else uses.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from calibration.real_server import page
from calibration.real_server.model import CONFIG
from calibration.real_server.replay import COMPARED, Row
from simserve.calibrate.simulated import Replay, ServingModel, replay_of
from simserve.scenario.load import from_mapping
from simserve.workload.benchmarks.reading import read_results
from simserve.workload.benchmarks.result import BenchResult

PACKAGE = "llama-cpp-python==0.3.36"
COMMIT = "0c1e57098"
"""Of llama.cpp, as the changelog of that release says."""
VERSION = "b8000"
"""The newest build that simserve knows; the sources are later."""
ADDRESS = "http://127.0.0.1:8124"
SLOTS, CONTEXT = 8, 8192
PROMPT, OUTPUT = 128, 48
CLIENTS = (1, 2, 4, 8, 16)
FITTED = (2, 8)
"""Clients of the loads that are given to `calibrate serving`: the rule of `calibrate loads`, for up to 16 (2 and 9)."""
SHARES = (0.4, 0.7, 0.9)
"""Of what 8 clients get: the rates of the open loops."""
SECONDS = 50.0
"""Of each load."""
REPEATS = 2
BENCH_PROMPT, BENCH_ROWS, BENCH_OUTPUT = 512, 8, 64
OVERLAPS = (1.0, 1.5, 2.0, 3.0)
"""Exponents of the overlap of loads and arithmetic in products, one of which is chosen, as `calibrate fit` does."""
_START_SECONDS = 120.0


def main() -> int:
    """Build, measure, simulate and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True, help="folder of the sources and the build; made if missing")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="day that provenance names")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    commands, sources = build(arguments.env.resolve())
    model = write_model(out, sources)
    speeds = bench(commands, model, out)
    write_profile(out, speeds, arguments.date)
    measure(commands, model, out)
    rows = compare(out)
    provenance = {
        "what": f"llama.cpp {COMMIT} on one thread, a Llama of 0.25 B in Q8_0, {arguments.date}.",
        "date": arguments.date,
        "command": "python -m calibration.real_server.llama_cpp",
        "llama-bench, tokens/s": speeds,
    }
    (out / "comparison.json").write_text(json.dumps(page.as_mapping(rows, provenance), indent=1) + "\n", "utf-8")
    text = page.as_markdown(rows, provenance)
    (out / "comparison.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def build(folder: Path) -> tuple[Path, Path]:
    """Return the folders of the commands and of the sources, built if they are not there.

    Raises:
        subprocess.CalledProcessError: The package is not to be had, or does not build.
    """
    sources, commands = folder / "sources", folder / "build" / "bin"
    if not (commands / "llama-server").is_file():
        tell(f"building llama-server of {PACKAGE} in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        only_sources = ["--no-deps", "--no-binary", ":all:", "--dest", str(folder), PACKAGE]
        subprocess.run([*pip, "download", *only_sources], check=True)
        archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp").rename(sources)
        options = ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_OPENSSL", "LLAMA_BUILD_UI", "BUILD_SHARED_LIBS")
        off = [f"-D{name}=OFF" for name in options]
        made = ["cmake", "-B", str(folder / "build"), "-S", str(sources), "-DCMAKE_BUILD_TYPE=Release"]
        subprocess.run([*made, *off, "-DGGML_NATIVE=ON"], check=True, stdout=subprocess.DEVNULL)
        targets = ["--target", "llama-server", "llama-bench", "-j", str(os.cpu_count())]
        subprocess.run(["cmake", "--build", str(folder / "build"), *targets], check=True, stdout=subprocess.DEVNULL)
    return commands, sources


def write_model(out: Path, sources: Path) -> Path:
    """Write the model's ``config.json`` and its random weights in Q8_0, and return the latter's file."""
    file = out / "model.gguf"
    (out / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    if file.is_file():
        return file
    sys.path.insert(0, str(sources / "gguf-py"))
    import gguf

    tell("writing the model")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(str(file), "llama")
    _write_settings(writer, gguf.LlamaFileType.MOSTLY_Q8_0)
    rng = np.random.default_rng(0)
    for name, shape in tensors(CONFIG).items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
            continue
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_settings(writer: Any, file_type: int) -> None:
    """Write what the model is, and a tokenizer: bytes, and words that nobody's text has."""
    config = CONFIG
    writer.add_file_type(file_type)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    printable = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    others = [chr(256 + number) for number in range(256 - len(printable))]
    marks = ["<unk>", "<s>", "</s>"]
    words = [f"w{number}" for number in range(config["vocab_size"] - 256 - len(marks))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*marks, *printable, *others, *words])
    writer.add_token_types([3, 3, 3, *[1] * (config["vocab_size"] - len(marks))])
    writer.add_token_merges(["w 0"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a Llama's tensors by the names that GGUF has for them, rows first."""
    hidden, wide, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (query, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, query),
        "ffn_norm": (hidden,),
        "ffn_gate": (wide, hidden),
        "ffn_up": (wide, hidden),
        "ffn_down": (hidden, wide),
    }
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, hidden)}
    for number in range(config["num_hidden_layers"]):
        found |= {f"blk.{number}.{name}.weight": shape for name, shape in layer.items()}
    return found | {"output_norm.weight": (hidden,), "output.weight": (vocabulary, hidden)}


def bench(commands: Path, model: Path, out: Path) -> dict[str, float]:
    """Return tokens/s on one thread as ``llama-bench`` measures them: ``pp512 pp8 tg64 tg64@d512``."""
    file = out / "llama-bench.json"
    if not file.is_file():
        tell("llama-bench")
        sizes = ["-p", f"{BENCH_ROWS},{BENCH_PROMPT}", "-n", str(BENCH_OUTPUT), "-d", f"0,{BENCH_PROMPT}"]
        asked = ["-m", str(model), "-t", "1", *sizes, "-o", "json"]
        done = subprocess.run([str(commands / "llama-bench"), *asked], check=True, capture_output=True, text=True)
        file.write_text(done.stdout, encoding="utf-8")
    speeds = {}
    for row in json.loads(file.read_text(encoding="utf-8")):
        name = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        speeds[name + (f"@d{row['n_depth']}" if row["n_depth"] else "")] = float(row["avg_ts"])
    return speeds


def write_profile(out: Path, speeds: Mapping[str, float], date: str) -> None:
    """Write a hardware profile with which simserve gives these speeds: FLOP/s, bytes/s, those of keys, and overlap."""
    prompt, rows = BENCH_PROMPT / speeds[f"pp{BENCH_PROMPT}"], BENCH_ROWS / speeds[f"pp{BENCH_ROWS}"]
    short, deep = 1 / speeds[f"tg{BENCH_OUTPUT}"], 1 / speeds[f"tg{BENCH_OUTPUT}@d{BENCH_PROMPT}"]
    found = []
    for overlap in OVERLAPS:
        rates = {"flops": 1e11, "bandwidth": 1e10, "keys": 1e10, "overlap": overlap}
        for _ in range(12):
            _write_hardware(out, rates, date)
            first, few = (alone(out, tokens) for tokens in (BENCH_PROMPT, 1))
            rates["flops"] *= first["mean_ttft"] / prompt
            rates["bandwidth"] *= few["mean_tpot"] / short
            rates["keys"] *= (first["mean_tpot"] - few["mean_tpot"]) / (deep - short)
        found.append((abs(alone(out, BENCH_ROWS)["mean_ttft"] / rows - 1), rates))
    _write_hardware(out, min(found, key=lambda each: each[0])[1], date)


def alone(out: Path, prompt_tokens: int) -> dict[str, float]:
    """Return the figures of two requests, one after the other, as the kernels alone take them."""
    model = ServingModel(scenario_of(out, "llama.cpp", clients=1))
    result = BenchResult(
        label="alone",
        file="",
        tool="",
        arrivals={"process": "closed_loop", "concurrency": 1},
        num_requests=2,
        prompt_tokens=np.full(2, float(prompt_tokens)),
        output_tokens=np.full(2, float(BENCH_OUTPUT)),
        measured={},
    )
    nothing = {"frontend_latency": 0.0, "host_seconds_per_step": 0.0, "host_seconds_per_request": 0.0}
    return model.predict(replay_of(result, model.scenario), replace(model.stated, **nothing))


def _write_hardware(out: Path, rates: Mapping[str, float], date: str) -> None:
    source = f"llama-bench on one thread, {date}: what gives its tokens/s."
    bandwidth, flops = f"{rates['bandwidth'] / 1e6:.0f} MB/s", f"{rates['flops'] / 1e6:.0f} MOPS"
    none = {"kind": "none", "source": "One CPU."}
    profile = {
        "name": "this-cpu",
        "vendor": "AMD",
        "description": "One core of this CPU, by llama-bench",
        "memory": {"total": "8 GiB", "bandwidth": bandwidth, "source": source},
        "compute": {"fp32": flops, "fp16": flops, "int8": flops, "source": source},
        "is_cpu": True,
        "intra_node": {**none, "gpus_per_node": 1},
        "inter_node": none,
        "host_link": {"kind": "unified", "bandwidth": bandwidth, "source": source},
        "power": {"board": "300 W", "idle": "50 W", "source": "An assumption."},
        "efficiency": {
            "gemm": 1.0,
            "attention_prefill": 1.0,
            "attention_decode": min(rates["keys"] / rates["bandwidth"], 1.0),
            "memory": 1.0,
            "gemm_overlap": rates["overlap"],
            "tile_rows": 1,
            "unpacking": 1.0,
            "kernel_latency": "5 us",
            "source": f"{source} Rates are what is reached in Q8_0, not a data sheet's; rows are multiplied one by "
            "one. Starts: of products on another EPYC (runs/vllm-cpu-2026-11-27).",
        },
    }
    (out / "hardware.yaml").write_text(yaml.safe_dump(profile, sort_keys=False), encoding="utf-8")


def scenario_of(out: Path, engine: str, clients: int) -> Any:
    """Return the server as it was started."""
    mapping = {
        "name": "llama-server",
        "model": str(out / "config.json"),
        "deployment": {
            "hardware": str(out / "hardware.yaml"),
            "quantization": "gguf-q8_0",
            "engine": {"name": engine, "version": VERSION, "max_num_seqs": SLOTS, "max_model_len": CONTEXT},
        },
        "workload": {
            "arrivals": {"process": "closed_loop", "concurrency": clients},
            "prompt_tokens": PROMPT,
            "output_tokens": OUTPUT,
            "num_requests": 50,
        },
    }
    (out / "scenario.yaml").write_text(yaml.safe_dump(mapping, sort_keys=False), encoding="utf-8")
    return from_mapping(mapping)


def measure(commands: Path, model: Path, out: Path) -> None:
    """Observe the server under all loads that have no file yet."""
    for turn in range(REPEATS):
        folder = out / f"observed-{turn}"
        if (folder / "done").is_file():
            continue
        with served(commands, model, out / f"server-{turn}.log"):
            _observe(folder, [each for count in CLIENTS for each in ("--concurrency", str(count))], len(CLIENTS), turn)
            kept = max((read(file) for file in folder.glob("*.json")), key=lambda each: _clients(each) == SLOTS)
            capacity = kept.measured["request_throughput"]
            rates = [each for share in SHARES for each in ("--rate", f"{share * capacity:.3f}")]
            _observe(folder, rates, len(SHARES), turn)
        (folder / "done").touch()


def _observe(folder: Path, loads: list[str], count: int, turn: int) -> None:
    tell(f"observe {turn}: {' '.join(loads)}")
    asked = ["--out", str(folder), "--budget", f"{SECONDS * count:.0f}s", *loads, "--seed", str(100 * turn + 7)]
    asked += ["--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT), "--max-requests", "5000", "--quiet"]
    subprocess.run([sys.executable, "-m", "simserve", "observe", ADDRESS, *asked], check=True)


@contextmanager
def served(commands: Path, model: Path, log: Path) -> Iterator[None]:
    """Serve the model on one thread while the block runs."""
    flags = ["-m", str(model), "--host", "127.0.0.1", "--port", ADDRESS.rpartition(":")[2], "--metrics"]
    flags += ["-np", str(SLOTS), "-c", str(CONTEXT), "-t", "1", "-tb", "1", "--cache-ram", "0", "--no-webui"]
    with log.open("wb") as written:
        server = subprocess.Popen([str(commands / "llama-server"), *flags], stdout=written, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and server.poll() is None:
            try:
                with urllib.request.urlopen(f"{ADDRESS}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        yield
    finally:
        server.terminate()
        server.wait(30)


def read(file: Path) -> BenchResult:
    """Return the run of a file."""
    return read_results([file])[0]


def _clients(result: BenchResult) -> int:
    return int(result.arrivals.get("concurrency", 0))


def compare(out: Path) -> list[Row]:
    """Return every load, simulated by llama-bench alone and as calibrated on two of them."""
    turns = [sorted((out / f"observed-{turn}").glob("*.json")) for turn in range(REPEATS)]
    results = [[read(file) for file in files] for files in turns]
    plain = ServingModel(scenario_of(out, "llama.cpp", clients=1))
    profile = out / "engine.yaml"
    given = [str(each) for files in turns for each in files if _clients(read(each)) in FITTED]
    command = [sys.executable, "-m", "simserve", "calibrate", "serving", *given, "--out", str(profile), "--force"]
    command += ["--scenario", str(out / "scenario.yaml"), "--statistic", "mean"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (out / "calibrate-serving.txt").write_text(done.stdout, encoding="utf-8")
    fitted = ServingModel(scenario_of(out, str(profile), clients=1))
    found = []
    for load in zip(*results, strict=True):
        simulated = {
            name: [model.predict(Replay(result=each, specs=replay_of(each, model.scenario).specs)) for each in load]
            for name, model in (("kernels", plain), ("fitted", fitted))
        }
        means = {key: float(np.mean([each.measured[key] for each in load])) for key in COMPARED}
        clients = _clients(load[0])
        found.append(
            Row(
                server="llama.cpp",
                load=f"{clients} clients" if clients else f"{load[0].arrivals['rate']:.2g}/s",
                is_fitted=clients in FITTED,
                is_open=not clients,
                measured=means,
                spread={key: float(np.ptp([each.measured[key] for each in load])) / means[key] for key in COMPARED},
                counts={},
                **{
                    name: {key: float(np.mean([each[key] for each in runs])) for key in COMPARED}
                    for name, runs in simulated.items()
                },
            )
        )
    return found


def tell(text: str) -> None:
    """Say what is done now."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
