"""InferenceX with separate prefill and decode pools: DeepSeek-R1 under SGLang and TensorRT-LLM behind NVIDIA Dynamo.

A row says how a worker is cut over GPUs, not how many workers there were, how many requests each of them took, whether
they drafted, or whether attention was data-parallel. The public recipes do (github.com/SemiAnalysisAI/InferenceX,
.github/configs/nvidia-master.yaml at 0004cf5f, and the files of ishandhanani/srt-slurm that it names), by engine, GPU,
lengths and clients. Where several recipes have the clients of a row, all of them are replayed, and the one whose TPOT
is nearest counts: then TPOT is shown, not scored.

Most of TensorRT-LLM's recipes ask for 5 to 100 % more clients than their decode workers have seats. What is over waits
with its KV in the prefill worker, and TTFT is that wait: 12 s where 6 clients share 3 seats.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import engine_name, hardware_name, model_name
from calibration.laboratory.readers.table import Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import NO_RECIPE, MeasuredPoint, Metric, PoolPair

SHORTEST_SHARE = 0.8
"""InferenceX draws lengths uniformly in [0.8 L, L] (random_range_ratio 0.8)."""

VERSIONS = {"sglang": "0.5.8", "tensorrt-llm": "1.2.0"}
"""Engine in the containers of the recipes: SGLang 0.5.8; TensorRT-LLM 1.2.0, before its release, in Dynamo's 0.8.1."""

SEATS = {"sglang": 512, "tensorrt-llm": 512}
"""Requests that a decode worker may hold; the recipes give 64 to 512, never fewer than their clients need."""

DRAFTING_SEATS = 64
"""The same of SGLang's workers that draft (max-running-requests of its recipes for MTP)."""

PREFILL_BUDGET = {"sglang": 163840, "tensorrt-llm": 8192}
"""Tokens of a step of a prefill worker; TensorRT-LLM's, of each rank of its attention."""

KV_SHARE = {"sglang": (0.82, 0.82), "tensorrt-llm": (0.6, 0.9)}
"""Share of memory of prefill and decode workers, by the engine's rule."""

Layout = Literal["tp", "tep", "dep"]
"""Attention and experts cut over all GPUs; experts placed whole; attention data-parallel too."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Workers of one recipe.

    Attributes:
        clients: Clients that it was measured with.
        prefills: Prefill workers.
        decodes: Decode workers.
        layout: Of a decode worker.
        drafts: Drafts a step of the model's MTP layer; 0: none.
    """

    clients: tuple[int, ...]
    prefills: int
    decodes: int
    layout: Layout
    drafts: int = 0


_LOW = (1, 4, 8, 16, 32, 64, 128, 256)
_HIGH = (128, 256, 512, 1024, 2048)
_TO_128 = (1, 2, 4, 8, 16, 32, 64, 128)
_RECIPES: dict[tuple[str, str, int, int], tuple[_Recipe, ...]] = {
    ("tensorrt-llm", "h200", 1024, 1024): (
        _Recipe((11, 36, 72, 144, 288, 576), 1, 9, "tep"),
        _Recipe((1152,), 1, 9, "dep"),
        _Recipe((1536,), 1, 6, "dep"),
        _Recipe((3584,), 2, 7, "dep"),
        _Recipe((13, 44, 88, 352), 1, 11, "tep", 3),
        _Recipe((144,), 1, 9, "tep", 3),
        _Recipe((512,), 1, 8, "dep", 3),
        _Recipe((896,), 1, 7, "dep", 3),
        _Recipe((1024,), 1, 4, "dep", 3),
        _Recipe((1024,), 1, 2, "dep", 1),
    ),
    ("tensorrt-llm", "h200", 8192, 1024): (
        _Recipe((9, 28), 1, 7, "tep"),
        _Recipe((48,), 1, 6, "tep"),
        _Recipe((48,), 1, 3, "tep"),
        _Recipe((160,), 2, 5, "tep"),
        _Recipe((192,), 2, 3, "dep"),
        _Recipe((128,), 1, 1, "dep"),
        _Recipe((768,), 5, 3, "dep"),
        _Recipe((512,), 3, 1, "dep"),
        _Recipe((9, 28), 1, 7, "tep", 3),
        _Recipe((48,), 1, 6, "tep", 3),
        _Recipe((48,), 1, 3, "tep", 2),
        _Recipe((160,), 3, 5, "tep", 3),
        _Recipe((64,), 1, 1, "dep", 2),
        _Recipe((128,), 2, 1, "dep", 2),
        _Recipe((256,), 3, 1, "dep", 2),
        _Recipe((512,), 3, 1, "dep", 1),
    ),
    ("tensorrt-llm", "h100", 1024, 1024): (
        _Recipe((6, 9, 30, 60), 1, 3, "tep"),
        _Recipe((231, 462, 924, 1845), 1, 3, "dep"),
        _Recipe((4916,), 2, 1, "dep"),
        _Recipe((6, 9, 30, 60, 117, 462), 1, 3, "tep", 3),
        _Recipe((231,), 1, 3, "dep", 3),
        _Recipe((615,), 1, 1, "dep", 2),
        _Recipe((1229,), 1, 1, "dep", 1),
    ),
    ("tensorrt-llm", "h100", 8192, 1024): (
        _Recipe((6, 9, 30), 1, 3, "tep"),
        _Recipe((154,), 1, 2, "tep"),
        _Recipe((308,), 2, 1, "dep"),
        _Recipe((6, 9, 30), 1, 3, "tep", 3),
        _Recipe((77,), 1, 1, "dep", 3),
        _Recipe((154,), 2, 1, "dep", 3),
    ),
    ("sglang", "h200", 1024, 1024): (
        _Recipe(_LOW, 1, 9, "tp"),
        _Recipe((512, 1024, 2048), 1, 6, "tp"),
        _Recipe(_HIGH, 1, 6, "dep"),
        _Recipe(_LOW, 1, 9, "tp", 2),
        _Recipe((512, 1024, 2048), 1, 6, "tp", 2),
        _Recipe(_HIGH, 1, 6, "dep", 2),
    ),
    ("sglang", "h200", 8192, 1024): (
        _Recipe((1, 4, 8), 1, 7, "tp"),
        _Recipe((4, 8, 16), 1, 6, "tp"),
        _Recipe((8, 16, 32), 1, 3, "tp"),
        _Recipe((32, 64, 128), 2, 3, "tp"),
        _Recipe((64, 128, 256), 1, 1, "dep"),
        _Recipe((1, 4, 8), 1, 7, "tp", 2),
        _Recipe((2, 4, 8, 16, 32), 1, 6, "tp", 2),
        _Recipe((4, 8, 16, 32, 64), 1, 3, "tp", 2),
        _Recipe((32, 64, 128), 2, 3, "tp", 2),
        _Recipe((32, 64, 128, 256, 512), 1, 1, "dep", 2),
    ),
    ("sglang", "h100", 1024, 1024): (
        _Recipe(_TO_128, 1, 2, "tp"),
        _Recipe(_TO_128[:-1], 1, 1, "dep"),
        _Recipe(_TO_128, 1, 2, "tp", 2),
        _Recipe(_TO_128[:-1], 1, 1, "dep", 2),
    ),
    ("sglang", "h100", 1024, 8192): (
        _Recipe(_TO_128[:-1], 1, 2, "tp"),
        _Recipe(_TO_128[:4], 1, 1, "dep"),
        _Recipe(_TO_128[:-1], 1, 2, "tp", 2),
        _Recipe(_TO_128[:-1], 1, 1, "dep", 2),
    ),
    ("sglang", "h100", 8192, 1024): (
        _Recipe(_TO_128, 1, 1, "tp"),
        _Recipe(_TO_128[:-1], 1, 1, "dep"),
        _Recipe(_TO_128, 1, 1, "tp", 2),
        _Recipe(_TO_128[:-1], 1, 1, "dep", 2),
    ),
}
"""Engine, GPU, prompt and output length -> recipes. TensorRT-LLM's on H200 name the clients of one decode worker."""


def read_disaggregated(folder: Path) -> list[MeasuredPoint]:
    """Return the points of ``inferencex_disagg.csv``: TPOT where one recipe alone fits, else shown; TTFT shown."""
    return [_point(row) for row in read_rows(folder / "inferencex_disagg.csv")]


def _point(row: Row) -> MeasuredPoint:
    engine, hardware = engine_name(row.text("framework")), hardware_name(row.text("hardware"))
    prompt, output, clients = row.count("isl", 0), row.count("osl", 0), row.count("load_value", 1)
    known = _RECIPES.get((engine, hardware.partition("-")[0], prompt, output), ())
    fitting = [each for each in known if clients in each.clients and _has_layout(row, each.layout)]
    model = model_name(row.text("model"))
    lengths = blocks.uniform_below(prompt, SHORTEST_SHARE), blocks.uniform_below(output, SHORTEST_SHARE)
    workload = build.closed_loop(clients, *lengths)
    unscored: tuple[Metric, ...] = ("ttft", "tpot") if len(fitting) > 1 else ("ttft",)
    return MeasuredPoint(
        source="inferencex_disagg",
        label=row.label,
        engine=engine,
        version=VERSIONS.get(engine, row.text("version")),
        hardware=hardware,
        model=model,
        load_kind="concurrency",
        load=clients,
        scenario={},
        measured=row.latencies("tpot", "ttft"),
        shown_only=frozenset(unscored),
        pools=tuple(_pools(row, each, engine, hardware, model, workload) for each in fitting),
        reason="" if fitting else NO_RECIPE,
    )


def _has_layout(row: Row, layout: Layout) -> bool:
    """Return whether the columns of a row go with a recipe: experts of a decode worker cut, or placed whole."""
    is_placed = row.count("decode_moe_ep_size", 1) > 1
    return is_placed == (layout != "tp")


def _prefill_layout(row: Row, engine: str) -> Layout:
    """Return how a prefill worker is cut: under TensorRT-LLM attention is data-parallel in every recipe."""
    if row.count("prefill_moe_ep_size", 1) == 1:
        return "tp"
    return "dep" if engine == "tensorrt-llm" else "tep"


def _pools(row: Row, recipe: _Recipe, engine: str, hardware: str, model: str, workload: dict[str, Any]) -> PoolPair:
    longest = row.count("isl", 0) + row.count("osl", 0) + blocks.LENGTH_SLACK
    prefill_share, decode_share = KV_SHARE[engine]
    common = {"name": engine, "version": VERSIONS[engine], "enable_prefix_caching": False, "max_model_len": longest}
    seats = DRAFTING_SEATS if recipe.drafts and engine == "sglang" else SEATS[engine]
    kv_cache_dtype = "fp8" if engine == "tensorrt-llm" else "auto"

    def deployed(role: str, knobs: dict[str, Any], layout: Layout) -> dict[str, Any]:
        gpus = row.count(f"{role}_tp_size", 1)
        ranks = gpus if layout == "dep" else 1
        return blocks.deployment(
            hardware,
            engine={**common, **knobs},
            tensor_parallel_size=gpus // ranks,
            data_parallel_size=ranks,
            expert_parallel_size=1 if layout == "tp" else gpus,
            quantization="fp8",
            kv_cache_dtype=kv_cache_dtype,
        )

    prefill = deployed(
        "prefill",
        {"max_num_batched_tokens": PREFILL_BUDGET[engine], "gpu_memory_utilization": prefill_share},
        _prefill_layout(row, engine),
    )
    decode = deployed("decode", {"max_num_seqs": seats, "gpu_memory_utilization": decode_share}, recipe.layout)
    return PoolPair(
        prefill=build.scenario(row.label, model, prefill, workload),
        decode=build.scenario(row.label, model, decode, workload),
        num_prefills=recipe.prefills,
        num_decodes=recipe.decodes,
        num_drafts=recipe.drafts,
    )
