"""What an answer says would fit, fits: over models, GPUs and engines drawn at random, each change is made and tried."""

from __future__ import annotations

import random

import pytest

from simserve.errors import InfeasibleError, InputError
from simserve.profiles import catalog
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.hardware import load_hardware
from simserve.scenario.fit import _where, check_fit, fit_notes, leading_warnings, remedies
from simserve.scenario.formats import formats_available
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from tests.scenario.builders import make_scenario

QUICK, SLOW = 4, 300


def _drawn(seed: int) -> list[str]:
    """Return a model, a GPU and an engine that runs on it, as changes of a scenario."""
    rng = random.Random(seed)
    model, gpu = (rng.choice(catalog.names(kind)) for kind in ("model", "hardware"))
    devices = {name: load_engine(name).devices for name in catalog.names("engine")}
    maker = load_hardware(gpu).vendor
    engine = rng.choice([name for name, each in devices.items() if each is None or maker in each.makers])
    cut = "pipeline" if engine == "ollama" else "tensor"  # Ollama's GPUs share no layer
    links = load_hardware(gpu)
    is_alone = links.intra_node.gpus_per_node == 1 and links.inter_node.kind == "none"
    return [
        f"model={model}",
        f"deployment.hardware={gpu}",
        f"deployment.engine.name={engine}",
        f"deployment.{cut}_parallel_size={1 if is_alone else rng.choice((1, 1, 2))}",
    ]


def _check(seed: int) -> int:
    """Check what is offered to a deployment that was drawn; return how many changes that were."""
    drawn = _drawn(seed)
    try:
        resolved = resolve(make_scenario(drawn))
    except InputError as failure:
        return _check_formats_named(drawn, failure)
    try:
        check_fit(resolved)
        changes = remedies(resolved) if resolved.memory.shortage_bytes else []
    except InfeasibleError:
        changes = remedies(resolved)
    for change in changes:
        _check_change(drawn, change, resolved.scenario)
    return len(changes)


def _check_change(drawn: list[str], change: str, asked: Scenario) -> None:
    changed = resolve(make_scenario([*drawn, change]))
    check_fit(changed)
    assert not [note for note in fit_notes(changed) if "does not quite fit" in note], (drawn, change)
    if change.startswith("deployment.quantization="):
        lacking = [note for note in leading_warnings(asked, changed) if "are assumed to exist" in note]
        if change.endswith("=awq-int4"):  # offered where no known checkpoint is small enough, and told to be so
            assert bool(lacking) == ("if there is such a" in _where(resolve(make_scenario(drawn)), change)), drawn
        else:
            assert not lacking, (drawn, change)


def _check_formats_named(drawn: list[str], failure: InputError) -> int:
    """Check each format that an error offers in place of one that does not run here."""
    offered = [part.strip() for part in str(failure).split(";") if "deployment.quantization=" in part]
    for part in offered:
        named = part.split("deployment.quantization=")[1].split()[0]
        resolved = resolve(make_scenario([*drawn, f"deployment.quantization={named}"]))
        shape = resolved.shape
        known = [each.format for each in formats_available(shape.model, shape.engine, shape.hardware)]
        assert named in known, (drawn, named)
    return len(offered)


@pytest.mark.slow
def test_what_is_offered_fits() -> None:
    """A few of them."""
    assert sum(_check(seed) for seed in range(QUICK)) > 0


@pytest.mark.slow
def test_what_is_offered_fits_everywhere() -> None:
    """Hundreds of them."""
    assert sum(_check(seed) for seed in range(QUICK, SLOW)) > SLOW / 3


def test_formats_without_kernels_on_a_maker_s_devices_are_not_offered() -> None:
    """TPUs of the fifth generation have no arithmetic in FP8, and nothing there unpacks it: integers are offered."""
    drawn = ["model=llama-3.1-8b", "deployment.hardware=tpu-v5e-16gb", "deployment.engine.name=vllm"]

    changes = remedies(resolve(make_scenario(drawn)))

    assert "deployment.quantization=int8" in changes
    with pytest.raises(InputError, match=r"does not run under vllm .* through tpu-inference"):
        resolve(make_scenario([*drawn, "deployment.quantization=fp8"]))


def test_there_are_no_graphs_where_a_plug_in_compiles() -> None:
    """CUDA graphs and their memory are NVIDIA's and AMD's."""
    drawn = ["model=llama-3.1-8b", "deployment.engine.name=vllm"]

    taken = {
        gpu: resolve(make_scenario([*drawn, f"deployment.hardware={gpu}"])).memory.cuda_graph_bytes
        for gpu in ("tpu-v6e-32gb", "gaudi3-128gb", "trainium2-96gb", "mi300x-192gb")
    }

    assert taken.pop("mi300x-192gb") > 0
    assert set(taken.values()) == {0.0}
