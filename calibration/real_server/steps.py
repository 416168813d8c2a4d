"""``python -m calibration.real_server.steps CONFIG --out FILE``: steps that only decode, of a vLLM in this process.

Needs a GPU and an installed vLLM (0.12 and later); the checkpoint is its ``config.json`` alone, weights are random.
Each batch is answered twice, once with few tokens and once with more, prompts new each time: what the longer answers
take beyond the shorter ones, over the tokens that they have more, is the time of a step that only decodes, its host
included. Sizes around the largest CUDA graph tell what steps cost that no graph covers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibration.real_server import model

SHORT, LONG = 9, 73
"""Tokens of an answer."""

ROUNDS = 2
SIZES = (1, 64, 256, 448, 512, 576, 768, 1024)

Answer = Callable[[list[list[int]], int], float]
"""Answers prompts with so many tokens each, and returns the seconds from the first prompt to the last token."""


def step_seconds(answer: Answer, num_sequences: int, prompt_tokens: int, vocabulary: int, seed: int) -> dict[str, Any]:
    """Return how long a step takes in which ``num_sequences`` decode, seconds, and the answers that say so.

    The least of `ROUNDS` answers of a length counts: kernels that are compiled at first sight make one longer.
    """
    chance = np.random.default_rng((seed, num_sequences))

    def seconds(tokens: int) -> float:
        return answer(chance.integers(3, vocabulary, (num_sequences, prompt_tokens)).tolist(), tokens)

    seconds(SHORT)
    pairs = [(seconds(SHORT), seconds(LONG)) for _ in range(ROUNDS)]
    short, long = (min(each) for each in zip(*pairs, strict=True))
    return {
        "sequences": num_sequences,
        "prompt": prompt_tokens,
        "seconds_per_step": (long - short) / (LONG - SHORT),
        "short": [each for each, _ in pairs],
        "long": [each for _, each in pairs],
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m calibration.real_server.steps", description=__doc__)
    parser.add_argument("config", type=Path, help="config.json of a model")
    parser.add_argument("--out", type=Path, required=True, help="JSON file, written after each size")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="sequences of a step")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds after which no further size begins")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    arguments = parser.parse_args(words)
    begin = time.monotonic()
    config = json.loads(arguments.config.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        answer, facts = _engine(model.write(Path(folder), config), max(arguments.sizes), arguments.max_model_len)
        facts |= {"config": arguments.config.name, "date": arguments.date}
        rows: list[dict[str, Any]] = []
        for size in arguments.sizes:
            if time.monotonic() - begin > arguments.budget:
                print(f"{arguments.budget:.0f} s are spent before {size} sequences", file=sys.stderr)
                break
            rows.append(step_seconds(answer, size, arguments.prompt_tokens, int(config["vocab_size"]), seed=1))
            print(f"{size} sequences: {rows[-1]['seconds_per_step'] * 1e3:.3f} ms a step", flush=True)
            arguments.out.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def _engine(folder: Path, max_num_seqs: int, max_model_len: int) -> tuple[Answer, dict[str, Any]]:
    """Return how a vLLM of this process answers, and how it has set itself up."""
    import torch
    import vllm

    engine = vllm.LLM(
        model=str(folder), load_format="dummy", max_num_seqs=max_num_seqs, max_model_len=max_model_len, seed=1
    )
    settings = engine.llm_engine.vllm_config
    facts = {
        "vllm": vllm.__version__,
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(),
        "async_scheduling": bool(settings.scheduler_config.async_scheduling),
        "max_num_batched_tokens": settings.scheduler_config.max_num_batched_tokens,
        "max_cudagraph_capture_size": settings.compilation_config.max_cudagraph_capture_size,
        "cudagraph_mode": str(settings.compilation_config.cudagraph_mode),
        "num_gpu_blocks": settings.cache_config.num_gpu_blocks,
    }

    def answer(prompts: list[list[int]], tokens: int) -> float:
        asked = [{"prompt_token_ids": each} for each in prompts]
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        engine.generate(asked, sampling, use_tqdm=False)
        return time.perf_counter() - begin

    return answer, facts


if __name__ == "__main__":
    sys.exit(main())
