"""``python -m calibration.reference_server --out calibration/runs/NAME``: the end-to-end proof on this machine.

Measures steps of a small real engine, fits, serves four loads in real time, simulates them, and writes the runs as
``vllm bench serve`` JSON beside ``comparison.json``, ``comparison.md``, the fitted tables and the provenance.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

import simserve
from calibration.reference_server.model import PagedModel
from calibration.reference_server.proof import COMPARED, Comparison, Proof, Server, Traffic
from calibration.reference_server.scheduler import Limits
from calibration.reference_server.steps import StepFit
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile

TINY = Path(__file__).with_name("tiny.yaml")
GPU_MEMORY_SHARE = 0.85
"""Share of what is free after the weights that the KV cache takes; the rest holds gathered contexts and graphs."""

CLOCKS = {"wall": "the wall's", "processor": "the processor time of the serving thread"}
BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is run on a kind of device unless flags say otherwise."""

    model: str
    max_num_seqs: int
    max_num_batched_tokens: int
    prompts: tuple[int, int]
    outputs: tuple[int, int]
    num_requests: int


DEFAULTS = {
    "cpu": Defaults(str(TINY), 16, 128, (32, 256), (16, 48), 100),
    "cuda": Defaults("llama-3.1-8b", 128, 2048, (200, 1500), (50, 250), 400),
}


def main() -> int:
    """Run the proof."""
    arguments = parse()
    device, defaults = arguments.device, DEFAULTS[arguments.device]
    out = Path(arguments.out)
    if out.exists() and any(out.iterdir()) and not arguments.force:
        print(f"{out}: holds something already; name another folder, or --force", file=sys.stderr)
        return 2
    if device == "cuda" and not torch.cuda.is_available():
        print("--device cuda: PyTorch sees no GPU here", file=sys.stderr)
        return 2
    if arguments.clock == "processor" and (device != "cpu" or arguments.threads != 1):
        print("--clock processor: needs --device cpu --threads 1, as kernels must run on one thread", file=sys.stderr)
        return 2
    if device == "cpu":
        torch.set_num_threads(arguments.threads)
    profile = load_model(arguments.model or defaults.model)
    if arguments.layers:
        profile = profile.model_copy(update={"num_hidden_layers": arguments.layers})
    prompts, outputs = lengths(arguments.prompts, defaults.prompts), lengths(arguments.outputs, defaults.outputs)
    longest = prompts[1] + outputs[1]
    limits = Limits(
        max_num_seqs=arguments.max_num_seqs or defaults.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens or defaults.max_num_batched_tokens,
        block_size=arguments.block_size,
        num_blocks=arguments.num_blocks or num_blocks(profile, device, arguments, longest),
        enable_chunked_prefill=not arguments.no_chunked_prefill,
    )
    model = PagedModel(
        profile,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        device=device,
        max_model_len=longest + 1,
        dtype=arguments.dtype,
    )
    captured = model.capture(limits.max_num_seqs)
    if captured:
        say(f"{captured} CUDA graphs captured")
    traffic = Traffic(
        prompts=prompts,
        outputs=outputs,
        num_requests=arguments.requests or defaults.num_requests,
        vocab_size=profile.vocab_size,
    )
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    date = arguments.date or started
    server = Server(limits, model.compute, is_wall_clock=arguments.clock == "wall")

    def keep(fit: StepFit, comparisons: list[Comparison]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        write(out, provenance(arguments, profile, limits, traffic, fit, date), fit, comparisons)

    proof = Proof(
        server=server, traffic=traffic, model=profile.name, date=date, seed=arguments.seed, say=say, keep=keep
    )
    proof.run()
    print((out / "comparison.md").read_text(encoding="utf-8"))
    return 0


def parse() -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(prog="python -m calibration.reference_server", description=__doc__)
    parser.add_argument("--out", required=True, help="folder of the run")
    parser.add_argument("--device", choices=sorted(DEFAULTS), default="cpu")
    parser.add_argument("--model", help="model profile or path; default: a tiny one on cpu, llama-3.1-8b on cuda")
    parser.add_argument("--layers", type=int, help="take only so many of its layers, such as of a 70B model")
    parser.add_argument("--dtype", choices=sorted(BYTES), help="of weights, activations and KV; default: by device")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--num-blocks", type=int, help="KV blocks; default: what the memory or the seats ask for")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--no-chunked-prefill", action="store_true", help="never split a prompt")
    parser.add_argument("--prompts", help="FROM:TO tokens, uniform")
    parser.add_argument("--outputs", help="FROM:TO tokens, uniform")
    parser.add_argument("--requests", type=int, help="requests a load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch on cpu")
    parser.add_argument(
        "--clock",
        choices=("wall", "processor"),
        default="wall",
        help="processor: the time of the serving thread alone, for a shared machine (cpu, one thread)",
    )
    parser.add_argument("--date", help="date that the files carry; default: now")
    parser.add_argument("--force", action="store_true", help="write into a folder that is not empty")
    return parser.parse_args()


def lengths(text: str | None, default: tuple[int, int]) -> tuple[int, int]:
    """Return a range of lengths written as ``FROM:TO``."""
    if text is None:
        return default
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def num_blocks(profile: ModelProfile, device: str, arguments: argparse.Namespace, longest: int) -> int:
    """Return the KV blocks: on a GPU what is left beside the weights, on a CPU room for every seat."""
    size, seats = arguments.block_size, arguments.max_num_seqs or DEFAULTS[device].max_num_seqs
    wanted = seats * -(-longest // size)
    if device == "cpu":
        return wanted
    element = BYTES[arguments.dtype or "bf16"]
    token = 2 * profile.num_hidden_layers * profile.num_key_value_heads * profile.head_dim * element
    free = torch.cuda.mem_get_info()[0] - profile.num_parameters * element
    return max(min(wanted, int(GPU_MEMORY_SHARE * free / (token * size))), 1)


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def provenance(
    arguments: argparse.Namespace, profile: ModelProfile, limits: Limits, traffic: Traffic, fit: StepFit, date: str
) -> dict[str, Any]:
    """Return what the run is: device, versions, settings, how well the steps fit."""
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else cpu_name()
    flags = [
        f"--{key.replace('_', '-')} {value}" for key, value in vars(arguments).items() if value not in (None, False)
    ]
    return {
        "date": date,
        "command": "python -m calibration.reference_server " + " ".join(flags),
        "device": name,
        "clock": arguments.clock,
        "dtype": arguments.dtype or ("fp32" if arguments.device == "cpu" else "bf16"),
        "threads": torch.get_num_threads() if arguments.device == "cpu" else None,
        "cuda": torch.version.cuda if arguments.device == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "simserve": simserve.__version__,
        "model": {
            key: getattr(profile, key)
            for key in (
                "name",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "intermediate_size",
                "vocab_size",
            )
        },
        "limits": asdict(limits),
        "traffic": asdict(traffic),
        "steps": {key: value for key, value in asdict(fit).items() if key != "times"},
    }


def cpu_name() -> str:
    """Return the processor as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def write(out: Path, facts: dict[str, Any], fit: StepFit, comparisons: list[Comparison]) -> None:
    """Write the run."""
    for each in comparisons:
        save(out / f"{each.load.name}.json", each.document, indent=None)
    save(out / "provenance.json", facts)
    save(out / "step_times.json", rounded(asdict(fit.times)), indent=None)
    rows = [
        {
            "load": each.load.name,
            "rate": each.load.rate,
            "concurrency": each.load.concurrency or None,
            "requests": each.document["completed"],
            "decode_batch": each.decode_batch,
            "preemptions": each.preemptions,
            "measured": each.measured,
            "simulated": each.simulated,
            "error": {name: each.error(name) for name in COMPARED},
        }
        for each in comparisons
    ]
    save(out / "comparison.json", {"loads": rows})
    (out / "comparison.md").write_text(table(facts, fit, comparisons), encoding="utf-8")


def save(file: Path, document: Any, indent: int | None = 1) -> None:
    """Write JSON."""
    file.write_text(json.dumps(document, indent=indent) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Return numbers with six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def table(facts: dict[str, Any], fit: StepFit, comparisons: list[Comparison]) -> str:
    """Return the comparison as Markdown."""
    chunked = "chunked" if facts["limits"]["enable_chunked_prefill"] else "unchunked"
    lines = [
        f"{facts['model']['name']} in {facts['dtype']} on {facts['device']}, {facts['date']}, torch {facts['torch']}, "
        f"{chunked} prefill. Time is {CLOCKS[facts['clock']]}. {fit.num_steps} steps measured before and after each "
        f"load ({fit.num_dropped} disturbed ones left out); one fit of all: median error {fit.median_error:.1%}, "
        f"{fit.held_out_error:.1%} on batches left out. Each load is simulated with the steps around it; no load came "
        "into a fit.",
        "",
        "| load | requests | mean batch | TTFT median, ms | error | TTFT mean | TPOT median, ms | error | TPOT mean "
        "| tokens/s | error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in comparisons:
        load = f"{each.load.rate:g}/s" if each.load.rate is not None else f"{each.load.concurrency} clients"
        seconds = {name: f"{value * 1e3:.1f}" for name, value in each.measured.items()}
        cells = [
            f"{each.load.name}, {load}",
            str(each.document["completed"]),
            f"{each.decode_batch:.1f}",
            seconds["median_ttft"],
            f"{each.error('median_ttft'):+.1%}",
            f"{each.error('mean_ttft'):+.1%}",
            seconds["median_tpot"],
            f"{each.error('median_tpot'):+.1%}",
            f"{each.error('mean_tpot'):+.1%}",
            f"{each.measured['output_throughput']:.0f}",
            f"{each.error('output_throughput'):+.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
