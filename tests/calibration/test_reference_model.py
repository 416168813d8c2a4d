"""The reference server's model gives the same tokens in chunks, in batches and after preemption as in one piece."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibration.reference_server.scheduler import Limits, Request, Scheduler
from calibration.reference_server.serving import RealClock, ScheduledClients, StepRecord, serve
from simserve.profiles.catalog import load_model
from simserve.workload.benchmarks.reading import read_results

TINY = "calibration/reference_server/tiny.yaml"


@pytest.fixture(scope="module", autouse=True)
def torch() -> Any:
    """Return PyTorch on one thread; imported where these tests run, not wherever they are collected."""
    module = pytest.importorskip("torch", reason="the reference server's model needs PyTorch")
    module.set_num_threads(1)
    return module


def tiny_profile(**changes: int) -> object:
    """Return two layers of the tiny model."""
    path = Path(__file__).resolve().parents[2] / TINY
    return load_model(str(path)).model_copy(update={"num_hidden_layers": 2, "hidden_size": 64, **changes})


def generate(limits: Limits, prompts: list[list[int]], outputs: int) -> tuple[list[Request], list[StepRecord], object]:
    """Serve prompts that are all there at once."""
    from calibration.reference_server.model import PagedModel

    model = PagedModel(
        tiny_profile(),  # type: ignore[arg-type]
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        device="cpu",
        max_model_len=128,
    )
    requests = [Request(index, len(ids), outputs, token_ids=list(ids)) for index, ids in enumerate(prompts)]
    clients = ScheduledClients(requests, [0.0] * len(requests))
    records = serve(Scheduler(limits), clients, RealClock(), model.compute)
    return requests, records, model


@pytest.mark.parametrize(("num_blocks", "budget", "preempts"), [(64, 256, False), (64, 16, False), (16, 16, True)])
def test_tokens_do_not_depend_on_how_they_are_batched(num_blocks: int, budget: int, preempts: bool) -> None:
    """Whole prompts, chunks, and a cache so small that requests lose theirs: always the tokens of one piece."""
    chance = np.random.default_rng(0)
    prompts = [chance.integers(0, 2048, size).tolist() for size in (5, 23, 31, 12)]
    limits = Limits(max_num_seqs=3, max_num_batched_tokens=budget, block_size=4, num_blocks=num_blocks)

    requests, records, model = generate(limits, prompts, 8)

    assert any(record.num_preempted for record in records) == preempts
    for request, prompt in zip(requests, prompts, strict=True):
        expected = list(prompt)
        for _ in range(8):
            expected.append(model.reference(expected))  # type: ignore[attr-defined]
        assert request.token_ids == expected


def test_decode_steps_are_replayed_in_the_shapes_that_were_captured(
    monkeypatch: pytest.MonkeyPatch, torch: Any
) -> None:
    """With graphs that run the step anew: padded batches and tables give the same tokens, none is captured late."""
    from calibration.reference_server import model as module

    profile = tiny_profile()
    model = module.PagedModel(profile, num_blocks=64, block_size=4, device="cpu", max_model_len=48)  # type: ignore[arg-type]
    replayed: list[tuple[int, int]] = []

    def captured(batch: int, width: int, pool: object) -> object:
        assert pool == "one pool for all"
        static = model._spare_inputs(batch)
        result = model._decode_forward(**static, total=batch * width)

        def replay() -> None:
            replayed.append((batch, width))
            result.copy_(model._decode_forward(**static, total=batch * width))

        return SimpleNamespace(replay=replay), static, result

    monkeypatch.setattr(model, "_captured", captured)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "one pool for all")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    model.uses_graphs = True
    count = model.capture(3)
    chance = np.random.default_rng(1)
    prompts = [chance.integers(0, 2048, size).tolist() for size in (5, 23, 31)]
    requests = [Request(index, len(ids), 8, token_ids=list(ids)) for index, ids in enumerate(prompts)]
    limits = Limits(max_num_seqs=3, max_num_batched_tokens=64, block_size=4, num_blocks=64)
    serve(Scheduler(limits), ScheduledClients(requests, [0.0] * 3), RealClock(), model.compute)

    assert model.graph_widths() == list(range(4, 52, 4))
    assert (count, len(model._graphs)) == (3 * 12, 3 * 12)
    assert {batch for batch, _ in replayed} == {4}
    assert {width for _, width in replayed} == {16, 20, 24}
    for request, prompt in zip(requests, prompts, strict=True):
        expected = list(prompt)
        for _ in range(8):
            expected.append(model.reference(expected))
        assert request.token_ids == expected


def test_a_served_run_reads_as_a_detailed_result(tmp_path: Path) -> None:
    """What the server writes, the reader of ``vllm bench serve`` reads, and finds its summary in its lists."""
    from calibration.reference_server.clients import LiveClients
    from calibration.reference_server.model import PagedModel
    from calibration.reference_server.results import detailed_result

    model = PagedModel(tiny_profile(), num_blocks=64, block_size=8, device="cpu", max_model_len=64)  # type: ignore[arg-type]
    requests = [Request(index, 6, 4, token_ids=[1, 2, 3, 4, 5, index]) for index in range(6)]
    clients = LiveClients(requests, concurrency=2)
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=32, block_size=8, num_blocks=64)
    clients.start()
    serve(Scheduler(limits), clients, RealClock(), model.compute)
    file = tmp_path / "run.json"
    document = detailed_result(requests, model="tiny", request_rate="inf", max_concurrency=2, date="20261121-000000")
    file.write_text(json.dumps(document), encoding="utf-8")

    (result,) = read_results([file])

    assert result.arrivals == {"process": "closed_loop", "concurrency": 2}
    assert result.num_requests == 6
    assert result.measured["mean_itl"] > 0


def test_open_loop_clients_send_when_they_should() -> None:
    """Not before their time, and the server waits for them."""
    from calibration.reference_server.clients import LiveClients

    requests = [Request(index, 4, 1) for index in range(3)]
    clients = LiveClients(requests, offsets=[0.0, 0.02, 0.05])
    clients.start()
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=32, block_size=8, num_blocks=64)

    serve(Scheduler(limits), clients, RealClock())

    assert requests[1].sent - requests[0].sent >= 0.019
    assert requests[2].sent - requests[0].sent >= 0.049
    assert all(request.token_times[0] >= request.sent for request in requests)


def test_experts_are_refused() -> None:
    """A model of another kind is not served as something it is not."""
    from calibration.reference_server.model import PagedModel

    with pytest.raises(ValueError, match="dense gated layers"):
        PagedModel(load_model("mixtral-8x7b"), num_blocks=1, block_size=4, device="cpu", max_model_len=4)


def test_packed_decodes_pass_the_checks_of_their_kernel_on_a_gpu(torch: Any) -> None:
    """Flash attention over contexts one after another, on tensors without memory: shapes and dtypes are PyTorch's."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from calibration.reference_server.model import _varlen

    with FakeTensorMode():
        query, keys, values = (
            torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            for shape in ((3, 32, 128), (500, 8, 128), (500, 8, 128))
        )
        ends = torch.empty(4, dtype=torch.int32, device="cuda")

        found = _varlen(query, keys, values, ends, 200)

    assert (found.shape, found.dtype, found.device.type) == ((3, 32, 128), torch.bfloat16, "cuda")
