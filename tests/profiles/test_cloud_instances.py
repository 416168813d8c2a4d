"""Names under which clouds rent GPUs: each is a GPU of the catalogue, and is read wherever ``--gpus`` is."""

from __future__ import annotations

import pytest

from simserve.errors import ProfileError
from simserve.planner.layout import OneLine
from simserve.planner.one_line import _instance_notes, ask
from simserve.profiles import catalog
from simserve.profiles.cloud_instances import _instances, instance_of
from simserve.profiles.hardware import counted_gpu, load_hardware


def test_every_instance_is_of_a_gpu_that_has_a_profile() -> None:
    """No instance has more than two nodes of eight GPUs, and no name is also that of a GPU."""
    known = catalog.names("hardware")

    for name, instance in _instances().items():
        assert instance.gpu in known
        assert 1 <= instance.num_gpus <= max(load_hardware(instance.gpu).intra_node.gpus_per_node, 8) * 2
        assert name not in known


@pytest.mark.parametrize(
    ("text", "count", "gpu"),
    [
        ("p5.48xlarge", 8, "h100-sxm-80gb"),
        ("2xp5en.48xlarge", 16, "h200-sxm-141gb"),
        ("ml.g6e.12xlarge", 4, "l40s-48gb"),
        ("a3-ultragpu-8g", 8, "h200-sxm-141gb"),
        ("a4-highgpu-8g", 8, "b200-sxm-180gb"),
        ("Standard_ND96isr_H100_v5", 8, "h100-sxm-80gb"),
        ("ND96isr H200 v5", 8, "h200-sxm-141gb"),
        ("3 x BM.GPU.MI300X.8", 24, "mi300x-192gb"),
        ("2 p5.48xlarge", 16, "h100-sxm-80gb"),
        ("p5.48xlarge:2", 16, "h100-sxm-80gb"),
        ("gpu_8x_h100_sxm5 x 2", 16, "h100-sxm-80gb"),
        ("gpu_8x_h100_sxm5", 8, "h100-sxm-80gb"),
        ("2xh100", 2, "h100"),
    ],
)
def test_what_a_cloud_rents_has_its_gpus(text: str, count: int, gpu: str) -> None:
    """In any case, several of them, with the prefix of a size or of a service."""
    assert counted_gpu(text) == (count, gpu)


def test_a_family_is_not_guessed() -> None:
    """p5 has sizes with one GPU and with eight; in a scenario the GPU itself is named."""
    with pytest.raises(ProfileError, match=r"did you mean 'p5\.4xlarge' or 'p5\.48xlarge'\?"):
        load_hardware("p5")
    with pytest.raises(ProfileError, match="AWS rents 8 x h200-sxm-141gb under it: write h200-sxm-141gb"):
        load_hardware("p5en.48xlarge")


def test_one_line_says_what_is_rented_and_whose_price_counts() -> None:
    """The price is that of specialised clouds until the scenario names a provider."""
    named = OneLine(gpus="p5.48xlarge", rate=1.0, prompt_tokens="1000", output_tokens="100")
    note = "p5.48xlarge of AWS is 8 x h100-sxm-80gb"

    found = ask("llama-3.1-70b", named)
    priced = ask("llama-3.1-70b", named, ["pricing.provider=AWS"])

    assert found.scenario.deployment.num_gpus == 8
    assert f"{note}; its price here is that of specialised clouds: --set 'pricing.provider=AWS'." in found.notes
    assert f"{note}." in priced.notes
    instance = instance_of("p5.48xlarge")
    assert instance is not None
    assert (instance.provider, instance.num_gpus) == ("AWS", 8)


@pytest.mark.parametrize("text", ["2xp5.48xlarge", "2 p5.48xlarge", "p5.48xlarge:2"])
def test_several_instances_are_noted_as_one_is(text: str) -> None:
    """However their number is written; a provider in the scenario says whose price counts."""
    several = OneLine(gpus=text, rate=1.0, prompt_tokens="1000", output_tokens="100")

    found = ask("llama-3.1-70b", several)
    priced = ask("llama-3.1-70b", several, ["pricing={provider: AWS}"])

    assert any(note.startswith("p5.48xlarge of AWS is 8 x h100-sxm-80gb; its price") for note in found.notes)
    assert "p5.48xlarge of AWS is 8 x h100-sxm-80gb." in priced.notes
    assert _instance_notes(text, scenario_provider="AWS", changes=[]) == ["p5.48xlarge of AWS is 8 x h100-sxm-80gb."]
