"""vLLM's kernels of a CPU, on a stand-in of its interface: called as it is, checked, and given up where it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simserve.calibrate.kernels import attention, cpu_engine, elementwise, points, products
from simserve.calibrate.kernels.cpu_engine import BLOCK, CpuEngine, Heads, engine_kernels
from simserve.calibrate.kernels.measure import measure
from simserve.calibrate.kernels.points import Point
from simserve.calibrate.kernels.torch_device import TorchDevice
from simserve.errors import UsageError
from simserve.profiles.catalog import load_model

HEADS = {"num_heads": 6, "num_key_value_heads": 2, "head_dim": 32}


class Operators:
    """Stands in for vLLM's ``_custom_ops``: keys of a block are kept turned round, as no reader could guess."""

    _supports_onednn = True

    def __init__(self, torch: Any, scale: float = 1.0) -> None:
        self.torch, self.scale = torch, scale
        self.calls: list[str] = []

    def create_onednn_mm(self, weight: Any, primitives: int) -> Any:
        """Return weights as they are."""
        assert primitives > 0
        return weight.contiguous()

    def onednn_mm(self, handler: Any, x: Any, bias: Any) -> Any:
        """Return the product."""
        assert bias is None
        self.calls.append("product")
        return x @ handler

    def cpu_attn_get_scheduler_metadata(self, *, num_reqs: int, causal: bool, isa: str, **sizes: Any) -> Any:
        """Return how many sequences there are."""
        assert causal
        assert isa == "vec"
        assert num_reqs == len(sizes["seq_lens"]) == len(sizes["query_start_loc"]) - 1
        return num_reqs

    def cpu_attn_reshape_and_cache(
        self, key: Any, value: Any, keys: Any, values: Any, slots: Any, instructions: str
    ) -> None:
        """Write new tokens to their places."""
        assert len(key) == len(value) == len(slots)
        self.calls.append("write")
        block, place = slots // BLOCK, slots % BLOCK
        keys[block, :, BLOCK - 1 - place] = key
        values[block, :, BLOCK - 1 - place] = value

    def cpu_attention_with_kv_cache(self, *, output: Any, **given: Any) -> None:
        """Attend, causal, one query and head at a time."""
        self.calls.append("read")
        starts, lengths = given["query_start_loc"].tolist(), given["seq_lens"].tolist()
        for row, length in enumerate(lengths):
            blocks = given["block_table"][row, : -(-length // BLOCK)].long()
            turned = (
                given[name][blocks].flip(2).transpose(1, 2).flatten(0, 1)[:length].double()
                for name in ("key_cache", "value_cache")
            )
            keys, values = turned
            new = starts[row + 1] - starts[row]
            for place in range(new):
                seen = length - new + place + 1
                for head in range(output.shape[1]):
                    own = head * keys.shape[1] // output.shape[1]
                    query = given["query"][starts[row] + place, head].double()
                    share = ((keys[:seen, own] @ query) * given["scale"] * self.scale).softmax(dim=0)
                    output[starts[row] + place, head] = (share @ values[:seen, own]).to(output.dtype)


def engine_of(torch: Any, scale: float = 1.0) -> CpuEngine:
    """Return the stand-in as an engine; ``scale``: how wrong its scores are."""
    backend = SimpleNamespace(_get_attn_isa=lambda dtype, block, width: "vec")
    return CpuEngine(torch, "vLLM 0.32.0", Operators(torch, scale), backend)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("table", "length", "build"),
    [(points.PREFILL, {"isl": 200}, attention.prompts), (points.DECODE, {"step": 299}, attention.decodes)],
)
def test_the_engine_s_attention_is_called_and_checked(
    cpu: TorchDevice, table: str, length: dict[str, int], build: Any, batch: int
) -> None:
    """New keys are written, blocks of any order are read, and a kernel with wrong scores is found out."""
    point = Point(table=table, sizes={"batch_size": batch, **length, **HEADS}, flops=0, num_bytes=1e6)
    cpu.engine = engine_of(cpu.torch)
    right = build(point, cpu)
    result = right.call(1 % right.copies)
    calls = list(cpu.engine.operators.calls)
    cpu.engine = engine_of(cpu.torch, scale=2.0)
    wrong = build(point, cpu)

    assert calls == ["write", "read"]
    assert result.shape == (batch * length.get("isl", 1), 6, 32)
    assert right.source.startswith("vLLM 0.32.0 CPU attention (vec)")
    assert 0.0 < right.error() <= right.tolerance
    assert wrong.error() > wrong.tolerance


def test_the_engine_s_products_are_timed_where_it_has_them(cpu: TorchDevice) -> None:
    """And PyTorch's where its build has no oneDNN."""
    sizes = {"gemm_dtype": "bfloat16", "m": 4, "n": 256, "k": 512}
    point = Point(table=points.GEMM, sizes=sizes, flops=0.0, num_bytes=0.0)
    cpu.engine = engine_of(cpu.torch)
    own = products.product(point, cpu)
    error = own.error()
    calls = list(cpu.engine.operators.calls)
    cpu.engine.operators._supports_onednn = False
    other = products.product(point, cpu)

    assert error <= own.tolerance
    assert calls == ["product"]
    assert own.source.startswith("vLLM 0.32.0 onednn_mm")
    assert other.source.startswith("torch linear")


def test_the_engine_s_sampling_is_timed_where_it_has_it(cpu: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not heed the logits is found out."""
    point = Point(
        table=points.ELEMENTWISE, sizes={"op_name": points.SAMPLING, "m": 5, "width": 64}, flops=0.0, num_bytes=1e4
    )
    cpu.engine = engine_of(cpu.torch)
    plain = elementwise.elementwise(point, cpu)
    monkeypatch.setattr(CpuEngine, "has_sampling", property(lambda _: True))
    monkeypatch.setattr(CpuEngine, "sample", lambda engine, logits, seeds: logits.argmax(dim=1, keepdim=True))
    own = elementwise.elementwise(point, cpu)
    drawn, error = own.call(0), own.error()
    monkeypatch.setattr(CpuEngine, "sample", lambda engine, logits, seeds: seeds % logits.shape[1])

    assert plain.source == "torch softmax, max"
    assert own.source == "vLLM 0.32.0 fused_gumbel_argmax"
    assert drawn.shape == (5, 1)
    assert error == 0.0
    assert own.error() > own.tolerance


def test_heads_that_the_engine_has_no_kernel_for_are_pytorch_s(cpu: TorchDevice) -> None:
    """An interface of another shape too."""
    cpu.engine = engine_of(cpu.torch)

    def refuses(**given: Any) -> Any:
        raise TypeError("unexpected keyword")

    cpu.engine.operators.cpu_attn_get_scheduler_metadata = refuses
    point = Point(table=points.DECODE, sizes={"batch_size": 2, "step": 39, **HEADS}, flops=0, num_bytes=1e4)

    assert attention.decodes(point, cpu).source.startswith("torch SDPA")


def test_slots_are_places_in_the_blocks_of_a_table(torch: Any) -> None:
    """The last tokens of each sequence, block by block."""
    table = torch.tensor([[3, 1], [2, 0]], dtype=torch.int32)

    step = engine_of(torch).step(Heads(6, 2, 32), [2, 1], [BLOCK + 1, 5], table)

    assert step.slots.tolist() == [3 * BLOCK + BLOCK - 1, BLOCK, 2 * BLOCK + 4]
    assert step.starts.tolist() == [0, 2, 3]


def test_a_run_says_whose_kernels_it_holds(cpu: TorchDevice, tmp_path: Any) -> None:
    """In its provenance, which keeps runs of other kernels out of its folder."""
    model = load_model("qwen2.5-0.5b")
    cpu.engine = engine_of(cpu.torch)
    measured = measure(tmp_path / "run", cpu, [model], deadline=0.0)
    cpu.engine = None

    assert measured.provenance["engine"] == "vLLM 0.32.0"
    with pytest.raises(UsageError):
        measure(tmp_path / "run", cpu, [model], deadline=0.0)


def test_without_vllm_a_cpu_has_pytorch_s_kernels(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quietly where nobody asked; whoever asks for vLLM's by name hears that there are none."""
    monkeypatch.setattr(cpu_engine, "find_engine", lambda _: None)

    assert engine_kernels(torch, "cpu", None) is None
    with pytest.raises(UsageError, match="--engine"):
        engine_kernels(torch, "cpu", "vllm")
    monkeypatch.setattr(cpu_engine, "find_engine", engine_of)
    assert engine_kernels(torch, "cpu", None) is not None
    assert engine_kernels(torch, "cpu", "none") is None
    assert engine_kernels(torch, "cuda", None) is None


def test_a_vllm_of_another_interface_counts_as_none(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for what is called, before anything is measured."""
    whole = {"vllm._custom_ops": Operators(torch), "vllm.v1.attention.backends.cpu_attn": SimpleNamespace()}
    modules: dict[str, Any] = {**whole, "vllm.envs": SimpleNamespace(VLLM_CPU_ATTN_SPLIT_KV=False)}
    native = SimpleNamespace(_C=SimpleNamespace(cpu_attention_with_kv_cache=None))
    fake = SimpleNamespace(ops=native)
    monkeypatch.setattr(cpu_engine.importlib.metadata, "version", lambda _: "0.32.0+cpu")
    monkeypatch.setattr(cpu_engine.importlib, "import_module", lambda name: modules[name])

    assert cpu_engine.find_engine(fake) is None
    modules["vllm.v1.attention.backends.cpu_attn"]._get_attn_isa = lambda *_: "vec"
    found = cpu_engine.find_engine(fake)

    assert found is not None
    assert found.name == "vLLM 0.32.0"
    assert not found.splits_keys
    del native._C.cpu_attention_with_kv_cache
    assert cpu_engine.find_engine(fake) is None
