"""InferenceX with separate prefill and decode pools: DeepSeek-R1 under SGLang and TensorRT-LLM behind NVIDIA Dynamo.

A row states how a worker is split over GPUs, not the number of workers, the requests per worker, whether they drafted,
or whether attention was data-parallel. The public recipes do (github.com/SemiAnalysisAI/InferenceX,
.github/configs/nvidia-master.yaml at 0004cf5f, and the files of ishandhanani/srt-slurm that it names), by engine, GPU,
lengths and clients. If several recipes have the clients of a row, all of them are replayed, and the one with the
nearest TPOT counts: TPOT is then shown, not scored. TTFT is only shown: intervals of servers without pools would
otherwise be learnt from waits that those do not have. Throughput follows from the two, and is shown.

Most of TensorRT-LLM's recipes ask for 5 to 100 % more clients than their decode workers have seats. The excess waits
with its KV in the prefill worker, and TTFT is that wait: 12 s where 6 clients share 3 seats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibration.laboratory.pools import PoolPair
from calibration.laboratory.protocol import Protocol, closed_loop_throughput
from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.disaggregated_recipes import Key, Prefill, Recipe, prefill_of, recipes_of
from calibration.laboratory.readers.names import engine_name, hardware_name, model_name, quantization_name
from calibration.laboratory.readers.recipes import FLASHINFER_GEMM
from calibration.laboratory.readers.table import Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import NO_RECIPE, MeasuredPoint, Metric

SHORTEST_SHARE = 0.8
"""InferenceX draws lengths uniformly in [0.8 L, L] (random_range_ratio 0.8)."""

VERSIONS = {"sglang": "0.5.8", "tensorrt-llm": "1.2.0"}
"""Engine in the recipes' containers: SGLang 0.5.8; TensorRT-LLM 1.2.0, before its release, in Dynamo's 0.8.1."""

RECIPE_VERSIONS = {"sglang": "0.5.8", "tensorrt-llm": "0.8.1"}
"""SGLang's, and of Dynamo's containers with TensorRT-LLM: other rows of B200 and GB200 ran older recipes."""

PORT_BANDWIDTH = {("tensorrt-llm", "h200"): 1e9}
"""Bytes/s of a GPU's port by engine and cluster; others: 25 GB/s, 400 Gbit/s at half its rate, which decides nothing.

TensorRT-LLM sends caches between nodes through host memory unless GPU direct RDMA is turned on (its pull request 6024).
Fitted to prompts of 1,024 tokens on H200, whose first tokens take 0.4 s more than computing. Those of 8,192 send as
many bytes through each port, as no rank sends copies there, and were not fitted."""

HANDOVER = {"sglang": 0.09}
"""Seconds from a computed prompt to the decode worker's scheduler: SGLang's two workers agree on a transfer by polling
once per step. Fitted to the 10 servers of H100 with prompts and answers of 1,024 tokens."""

POLLED_STEPS = 10
"""Decode steps between two polls for new requests by SGLang's decode workers without ranks on GB200, which then ask for
their caches (``scheduler-recv-interval``; srt-slurm, recipes/gb200-fp4 and gb200-fp8, low-latency.yaml)."""

WIDE_EXPERTS = {"num_redundant_experts": 32, "enable_two_batch_overlap": False}
"""Of SGLang's ranks on GB200, which exchange tokens by DeepEP (srt-slurm, recipes/gb200-fp8/1k1k/mid-curve.yaml)."""

WIDEEP_FROM, NVLINK_EXCHANGE = 16, "nvlink_two_sided"
"""Ranks from which TensorRT-LLM's decode workers run WIDEEP's experts, and how those get their tokens on GB200
(examples/disaggregated/slurm/benchmark/gen_worker_config.py, gen_moe_backend)."""

DECODE_KV_SHARE = {"sglang": 0.82, "tensorrt-llm": 0.9}
"""Share of memory of decode workers, by the engine's rule."""


def read_disaggregated(folder: Path) -> list[MeasuredPoint]:
    """Return the points of ``inferencex_disagg.csv``; TPOT is scored if only one recipe fits."""
    return [_point(row, "inferencex_disagg") for row in read_rows(folder / "inferencex_disagg.csv")]


def read_disaggregated_blackwell(folder: Path) -> list[MeasuredPoint]:
    """Return the points of ``inferencex_disagg_blackwell.csv``: B200 and GB200, likewise."""
    file = "inferencex_disagg_blackwell"
    return [_point(row, file) for row in read_rows(folder / f"{file}.csv")]


def _point(row: Row, source: str) -> MeasuredPoint:
    engine, hardware = engine_name(row.text("framework")), hardware_name(row.text("hardware"))
    prompt, output, clients = row.count("isl", 0), row.count("osl", 0), row.count("load_value", 1)
    key = (engine, hardware.partition("-")[0], row.text("precision"), prompt, output)
    is_blackwell = "b200" in hardware
    is_known = not is_blackwell or row.text("version").startswith(RECIPE_VERSIONS[engine])
    is_placed = None if is_blackwell else row.count("prefill_moe_ep_size", 1) > 1
    fitting = recipes_of(key, clients, is_placed) if is_known else []
    model = model_name(row.text("model"))
    lengths = blocks.uniform_below(prompt, SHORTEST_SHARE), blocks.uniform_below(output, SHORTEST_SHARE)
    workload = build.closed_loop(clients, *lengths)
    unscored: tuple[Metric, ...] = ("ttft", "tpot", "throughput") if len(fitting) > 1 else ("ttft", "throughput")
    times = row.latencies("tpot", "ttft")
    mean_output = output * (1.0 + SHORTEST_SHARE) / 2.0
    tokens = closed_loop_throughput(clients, mean_output, times["ttft"], times["tpot"])
    return MeasuredPoint(
        source=source,
        label=row.label,
        engine=engine,
        version=VERSIONS.get(engine, row.text("version")),
        hardware=hardware,
        model=model,
        load_kind="concurrency",
        load=clients,
        scenario={},
        measured={**times, "throughput": tokens},
        protocol=Protocol(is_steady_throughput=True, polled_tokens=_polled_tokens(key, fitting)),
        shown_only=frozenset(unscored),
        pools=tuple(_pools(row, each, prefill_of(key, each.layout), hardware, model, workload) for each in fitting),
        reason="" if fitting else NO_RECIPE,
    )


def _polled_tokens(key: Key, fitting: list[Recipe]) -> float:
    """Return the tokens that a request decodes between two polls for new ones; 0 if every step polls."""
    is_rare = key[:2] == ("sglang", "gb200") and all(each.layout == "tp" for each in fitting)
    return POLLED_STEPS if is_rare and fitting else 0.0


def _pools(
    row: Row, recipe: Recipe, prefilling: Prefill, hardware: str, model: str, workload: dict[str, Any]
) -> PoolPair:
    engine = engine_name(row.text("framework"))
    longest = row.count("isl", 0) + row.count("osl", 0) + blocks.LENGTH_SLACK
    common = {"name": engine, "version": VERSIONS[engine], "enable_prefix_caching": False, "max_model_len": longest}
    is_exchanging = hardware.startswith("gb200") and recipe.layout == "dep"
    if engine == "sglang" and "b200" in hardware and row.text("precision") == "fp8" and not is_exchanging:
        common["fp8_gemm_backend"] = FLASHINFER_GEMM  # only DeepEP's workers on GB200 keep DeepGEMM (mid-curve.yaml)
    kv_cache_dtype = "fp8" if engine == "tensorrt-llm" or "b200" in hardware else "auto"

    def deployed(num_gpus: int, has_ranks: bool, is_placed: bool, knobs: dict[str, Any]) -> dict[str, Any]:
        ranks = num_gpus if has_ranks else 1
        return blocks.deployment(
            hardware,
            engine={**common, **knobs},
            tensor_parallel_size=num_gpus // ranks,
            data_parallel_size=ranks,
            expert_parallel_size=num_gpus if is_placed else 1,
            quantization=quantization_name(row.text("precision"), hardware),
            kv_cache_dtype=kv_cache_dtype,
        )

    prefill = deployed(
        row.count("prefill_tp_size", 1) * row.count("prefill_attention_dp_size", 1),
        prefilling.has_ranks,
        prefilling.is_placed,
        {
            "max_num_seqs": prefilling.seats,
            "max_num_batched_tokens": prefilling.budget,
            "gpu_memory_utilization": prefilling.kv_share,
        },
    )
    decode = deployed(
        recipe.num_gpus,
        recipe.layout == "dep",
        recipe.layout != "tp",
        {"max_num_seqs": recipe.seats, "gpu_memory_utilization": DECODE_KV_SHARE[engine]},
    )
    if engine == "tensorrt-llm" and is_exchanging:
        decode |= {"all2all_backend": NVLINK_EXCHANGE} if recipe.num_gpus >= WIDEEP_FROM else {}
    if engine == "sglang" and is_exchanging:
        decode |= WIDE_EXPERTS | {"all2all_backend": "deepep_low_latency"}
        if prefilling.has_ranks:
            prefill |= WIDE_EXPERTS | {"all2all_backend": "deepep_high_throughput"}
    return PoolPair(
        prefill=build.scenario(row.label, model, prefill, workload),
        decode=build.scenario(row.label, model, decode, workload),
        num_prefills=recipe.prefills,
        num_decodes=recipe.decodes,
        num_drafts=recipe.drafts,
        port_bandwidth=PORT_BANDWIDTH.get((engine, hardware.partition("-")[0]), 25e9),
        kv_transfer_seconds=HANDOVER.get(engine, 0.001),
    )
