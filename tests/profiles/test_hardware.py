"""Hardware profiles: the catalogue holds what data sheets say, bad files are refused in one line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.hardware import (
    DTYPES,
    HardwareProfile,
    counted_gpu,
    hardware_name,
    hardware_names,
    is_known_gpu,
    load_hardware,
    slice_of,
)

LAPTOPS = (
    "rtx-3060-laptop-6gb",
    "rtx-3070-laptop-8gb",
    "rtx-3070-ti-laptop-8gb",
    "rtx-3080-laptop-16gb",
    "rtx-3080-ti-laptop-16gb",
    "rtx-4050-laptop-6gb",
    "rtx-4060-laptop-8gb",
    "rtx-4070-laptop-8gb",
    "rtx-4080-laptop-12gb",
    "rtx-4090-laptop-16gb",
    "rtx-5050-laptop-8gb",
    "rtx-5060-laptop-8gb",
    "rtx-5070-laptop-8gb",
    "rtx-5070-ti-laptop-12gb",
    "rtx-5080-laptop-16gb",
    "rtx-5090-laptop-24gb",
)
"""GPUs of laptops, whose names those of desktops are the beginning of."""

RENTED = (
    "a10-24gb",
    "a10g-24gb",
    "a100-pcie-80gb",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "h100-nvl-94gb",
    "h100-pcie-80gb",
    "h100-sxm-80gb",
    "h200-nvl-141gb",
    "h200-sxm-141gb",
    "l4-24gb",
    "l40s-48gb",
    "rtx-4090-24gb",
    "a40-48gb",
    "b200-sxm-180gb",
    "gh200-96gb",
    "gh200-nvl4-96gb",
    "h20-96gb",
    "mi300x-192gb",
    "mi325x-256gb",
    "rtx-3090-24gb",
    "rtx-5090-32gb",
    "rtx-6000-ada-48gb",
    "rtx-a6000-48gb",
    "rtx-pro-6000-96gb",
    "t4-16gb",
    "v100s-32gb",
    "a800-sxm-80gb",
    "b300-sxm-270gb",
    "gb200-186gb",
    "gb300-279gb",
    "mi350x-288gb",
    "mi355x-288gb",
    "rtx-4000-ada-20gb",
    "rtx-5000-ada-32gb",
    "tpu-v5e-16gb",
    "tpu-v6e-32gb",
    "trainium2-96gb",
    "gaudi3-128gb",
    "gb10-128gb",
    "h800-sxm-80gb",
    "l20-48gb",
    "v100-sxm-32gb",
    "a800-pcie-80gb",
    "gaudi2-96gb",
    "l2-24gb",
    "rtx-6000d-84gb",
)
OWNED = (
    "a16-16gb",
    "a2-16gb",
    "a30-24gb",
    "arc-b580-12gb",
    "arc-pro-b60-24gb",
    "arc-pro-b70-32gb",
    "gtx-1650-4gb",
    "h20-141gb",
    "jetson-agx-orin-64gb",
    "jetson-orin-nano-8gb",
    "jetson-thor-128gb",
    "l40-48gb",
    "mi210-64gb",
    "mi250x-64gb",
    "p40-24gb",
    "quadro-rtx-8000-48gb",
    "r9700-32gb",
    "rtx-2000-ada-16gb",
    "rtx-2080-ti-11gb",
    "rtx-3060-12gb",
    "rtx-3060-ti-8gb",
    "rtx-3070-8gb",
    "rtx-3080-10gb",
    "rtx-3080-ti-12gb",
    "rtx-3090-ti-24gb",
    "rtx-4060-8gb",
    "rtx-4060-ti-16gb",
    "rtx-4070-12gb",
    "rtx-4070-super-12gb",
    "rtx-4070-ti-12gb",
    "rtx-4070-ti-super-16gb",
    "rtx-4080-16gb",
    "rtx-4080-super-16gb",
    "rtx-4090d-24gb",
    "rtx-5090d-32gb",
    "rtx-5090d-v2-24gb",
    "rtx-4500-ada-24gb",
    "rtx-5050-8gb",
    "rtx-5060-8gb",
    "rtx-5060-ti-16gb",
    "rtx-5070-12gb",
    "rtx-5070-ti-16gb",
    "rtx-5080-16gb",
    "rtx-5880-ada-48gb",
    "rtx-a4000-16gb",
    "rtx-a5000-24gb",
    "rtx-pro-4000-24gb",
    "rtx-pro-4500-32gb",
    "rtx-pro-5000-48gb",
    "rtx-pro-6000-maxq-96gb",
    "rtx-pro-6000-ws-96gb",
    "rx-7900-xt-20gb",
    "rx-7900-xtx-24gb",
    "rx-9070-16gb",
    "rx-9070-xt-16gb",
    "w7900-48gb",
)
"""Cards that people own; none has a price by the hour, so that plans look at them only where they are named."""
STRIX_HALO = "ryzen-ai-max-395-128gb"
MACS = (
    "m1-16gb",
    "m1-pro-32gb",
    "m1-max-64gb",
    "m1-ultra-128gb",
    "m2-24gb",
    "m2-pro-32gb",
    "m2-max-96gb",
    "m2-ultra-192gb",
    "m3-24gb",
    "m3-pro-36gb",
    "m3-max-96gb",
    "m3-max-128gb",
    "m3-ultra-512gb",
    "m4-32gb",
    "m4-pro-64gb",
    "m4-max-36gb",
    "m4-max-128gb",
    "m5-32gb",
    "m5-pro-64gb",
    "m5-max-36gb",
    "m5-max-128gb",
    "m5-ultra-512gb",
)
BUNDLED = (*RENTED, *OWNED)
WITHOUT_BF16 = (
    *MACS,
    "gtx-1650-4gb",
    "p40-24gb",
    "quadro-rtx-8000-48gb",
    "rtx-2080-ti-11gb",
    "t4-16gb",
    "v100s-32gb",
    "v100-sxm-32gb",
)
WITHOUT_FP16 = ("tpu-v5e-16gb", "tpu-v6e-32gb")
WITH_LITTLE_INT8 = ("b300-sxm-270gb", "gb300-279gb")
WITHOUT_PRICE = (
    *MACS,
    *OWNED,
    STRIX_HALO,
    "a800-sxm-80gb",
    "mi350x-288gb",
    "rtx-4000-ada-20gb",
    "rtx-5000-ada-32gb",
    "tpu-v5e-16gb",
    "tpu-v6e-32gb",
    "trainium2-96gb",
    "gaudi3-128gb",
    "h20-96gb",
    "h200-nvl-141gb",
    "gh200-nvl4-96gb",
    "mi325x-256gb",
    "rtx-5090-32gb",
    "rtx-6000-ada-48gb",
    "v100s-32gb",
    "gb10-128gb",
    "h800-sxm-80gb",
    "l20-48gb",
    "v100-sxm-32gb",
    "a800-pcie-80gb",
    "gaudi2-96gb",
    "l2-24gb",
    "rtx-6000d-84gb",
)
BLOCKS = ("memory", "compute", "intra_node", "inter_node", "host_link", "power", "efficiency")
GIB = 2.0**30


def make_document(**changes: Any) -> dict[str, Any]:
    """Return a valid document; ``changes`` replace values by dotted path, ``None`` deletes the key."""
    document: dict[str, Any] = {
        "name": "my-gpu",
        "vendor": "ACME",
        "description": "a GPU for tests",
        "memory": {"total": "80 GB", "bandwidth": "2.0 TB/s", "source": "test"},
        "compute": {"fp16": "312 TFLOP/s", "bf16": "312 TFLOP/s", "source": "test"},
        "intra_node": {
            "kind": "nvlink",
            "bandwidth": "300 GB/s",
            "latency": "5 us",
            "gpus_per_node": 8,
            "source": "test",
        },
        "inter_node": {"kind": "none", "source": "test"},
        "host_link": {"kind": "pcie", "bandwidth": "32 GB/s", "source": "test"},
        "power": {"board": "400 W", "idle": "50 W", "source": "test"},
        "efficiency": {
            "gemm": 0.8,
            "attention_prefill": 0.5,
            "memory": 0.8,
            "kernel_latency": "3 us",
            "source": "test",
        },
    }
    for path, value in changes.items():
        *parents, last = path.split(".")
        block = document
        for parent in parents:
            block = block[parent]
        if value is None:
            del block[last]
        else:
            block[last] = copy.deepcopy(value)
    return document


def write_profile(folder: Path, changes: dict[str, Any] | None = None, stem: str = "my-gpu") -> Path:
    """Write a profile file and return its path."""
    path = folder / f"{stem}.yaml"
    path.write_text(yaml.safe_dump(make_document(**(changes or {}))), encoding="utf-8")
    return path


def make_profile(**changes: Any) -> HardwareProfile:
    """Return a profile built without a file."""
    return HardwareProfile.model_validate(make_document(**changes))


def price(usd: float, kind: str = "on_demand") -> dict[str, Any]:
    """Return one price entry."""
    return {"usd_per_hour": usd, "provider": "ACME Cloud", "kind": kind, "date": "2026-07", "source": "test"}


# The bundled catalogue


def test_the_catalogue_holds_the_bundled_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """All GPUs can be asked for by name."""
    monkeypatch.delenv(catalog.PROFILE_PATH_VARIABLE, raising=False)

    assert {*BUNDLED, *LAPTOPS, *MACS, STRIX_HALO} == set(catalog.names("hardware"))


@pytest.mark.parametrize("name", catalog.names("hardware"))
def test_every_profile_is_complete(name: str) -> None:
    """Every file loads, carries its own name, and names a source for each block and price."""
    profile = load_hardware(name)

    assert profile.name == name
    assert all(len(getattr(profile, block).source) > 20 for block in BLOCKS)
    assert all(price.source for price in profile.prices)


@pytest.mark.parametrize("name", [*BUNDLED, *MACS, STRIX_HALO])
def test_peaks_are_ordered_by_width(name: str) -> None:
    """Narrower dtypes are never slower, and both 16-bit dtypes have one peak where both exist."""
    profile = load_hardware(name)
    fp16, bf16 = profile.peak_flops("fp16"), profile.peak_flops("bf16")

    assert (bf16 is None) == (name in WITHOUT_BF16)
    assert (fp16 is None) == (name in WITHOUT_FP16)
    assert fp16 is None or bf16 is None or fp16 == bf16
    for narrow, wide in (
        ("fp4", "fp8"),
        ("fp8", "bf16"),
        *([] if name in WITH_LITTLE_INT8 else [("int8", "bf16")]),
        ("int4", "int8"),
        ("fp16", "tf32"),
        ("tf32", "fp32"),
    ):
        peak, wider = profile.peak_flops(narrow), profile.peak_flops(wide)
        assert peak is None or wider is None or peak >= wider, (narrow, wide)


@pytest.mark.parametrize("name", BUNDLED)
def test_memory_is_what_cuda_shows_not_what_the_box_says(name: str) -> None:
    """The total lies a little below the advertised size read as GiB: driver and ECC take their part."""
    advertised = float(name.rsplit("-", 1)[1].removesuffix("gb"))
    total = load_hardware(name).memory.total / GIB

    assert 0.90 * advertised < total < advertised


@pytest.mark.parametrize("name", MACS)
def test_unified_memory_leaves_a_part_to_the_rest_of_the_machine(name: str) -> None:
    """Metal recommends 74 to 84 % of what CPU and GPU share, the more the larger it is; of every size that is sold."""
    profile = load_hardware(name)
    steps = {8: 2 / 3, 16: 0.74, 32: 0.78, 64: 0.81, 128: 0.84}

    for each in (name, *profile.sizes):
        advertised = float(each.rsplit("-", 1)[1].removesuffix("gb"))
        share = steps[max(size for size in steps if size <= advertised)]
        assert load_hardware(each).memory.total == pytest.approx(share * advertised * GIB, rel=1e-3)


def test_strix_halo_gives_its_gpu_what_the_firmware_sets_aside() -> None:
    """AMD lets three quarters of the 128 GB be the GPU's own."""
    hardware = load_hardware(STRIX_HALO)

    assert hardware.memory.total == 96 * GIB
    assert hardware.host_link.kind == "unified"


@pytest.mark.parametrize("name", OWNED)
def test_geforce_runs_16_bit_products_at_half_of_its_rate(name: str) -> None:
    """Accumulated in FP32, as engines do; workstation and server cards run them at the full rate."""
    hardware = load_hardware(name)
    halved = hardware.compute.fp16_accumulated

    assert (halved is not None) == ("GeForce" in hardware.description)
    assert halved is None or halved == pytest.approx(2.0 * (hardware.peak_flops("fp16") or 0.0), rel=1e-2)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("2xH100", (2, "H100")),
        ("H100:2", (2, "H100")),
        ("2x8xH100", (16, "H100")),
        ("7900xtx", (None, "7900xtx")),
        ("2 x 7900xtx", (2, "7900xtx")),
        ("5060 Ti", (None, "5060 Ti")),
        ("Ryzen AI Max+ 395", (None, "Ryzen AI Max+ 395")),
        ("2xnone", (2, "none")),
        ("2x", (None, "2x")),
    ],
)
def test_a_number_of_gpus_is_told_from_their_name(text: str, counted: tuple[int | None, str]) -> None:
    """A name known as a whole has no number in it."""
    assert counted_gpu(text) == counted


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("Mac Studio M4 Max", "m4-max-128gb"),
        ("MacBook Pro (M4 Max, 64 GB)", "m4-max-64gb"),
        ("M3 Max MacBook Pro 36GB", "m3-max-36gb"),
        ("mac mini m4 pro 48gb", "m4-pro-48gb"),
        ("macbook air m3", "m3-24gb"),
    ],
)
def test_a_mac_may_be_named_with_its_chip(name: str, profile: str) -> None:
    """As people name what they own; such names were like no other."""
    assert hardware_name(name) == profile
    assert is_known_gpu(profile)


@pytest.mark.parametrize("name", ["Moore Threads S4000", "Rubin", "Cerebras", "K80", "GTX 970"])
def test_a_gpu_like_no_other_is_to_be_described(name: str) -> None:
    """No name is suggested that has some letters in common by chance."""
    with pytest.raises(ProfileError, match="none is like it; describe it in a YAML file") as refused:
        load_hardware(name)

    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize("name", ["RTX 5000 Ada Laptop", "NVIDIA RTX 5000 Ada Laptop GPU", "rtx-a5000 mobile"])
def test_a_laptops_gpu_is_not_taken_for_the_desktops(name: str) -> None:
    """ "None is like it" stood there of the RTX 4090 that a student owns."""
    with pytest.raises(ProfileError, match=r"another, slower chip than rtx-.*: describe it in a YAML file"):
        load_hardware(name)


@pytest.mark.parametrize("name", [each for each in LAPTOPS if "4050" not in each and "3070-ti" not in each])
def test_a_laptops_gpu_is_the_lesser_of_its_name(name: str) -> None:
    """The driver's name, the usual short ones, and no more arithmetic or power than the desktop's of the number."""
    model = name.removeprefix("rtx-").partition("-laptop")[0]
    words = model.replace("-ti", " Ti")
    laptop, desktop = load_hardware(f"NVIDIA GeForce RTX {words} Laptop GPU"), load_hardware(f"RTX {words}")

    assert {laptop.name} == {name, load_hardware(f"RTX {words} Mobile").name, load_hardware(f"{model}m").name}
    assert laptop.compute_capability == desktop.compute_capability
    assert laptop.power.board <= desktop.power.board
    assert (laptop.peak_flops("bf16") or 0.0) < 1.05 * (desktop.peak_flops("bf16") or 0.0)
    assert laptop.intra_node.gpus_per_node == 1


def test_a_laptops_memory_is_what_its_bus_gives() -> None:
    """GB/s of three that NVIDIA or reviewers state."""
    laptops = {"RTX 4090 Laptop": 576e9, "RTX 5090 Laptop": 896e9, "RTX 4070 Laptop": 256e9}

    assert {name: load_hardware(name).memory.bandwidth for name in laptops} == laptops


@pytest.mark.parametrize(
    ("name", "near"),
    [("H1000", "'h100'"), ("mi308x", "'mi300x'"), ("RTX PRO 600", "'rtx-pro-6000'"), ("b20", "'b200'")],
)
def test_a_gpu_with_a_slip_has_near_ones(name: str, near: str) -> None:
    """The nearest first."""
    with pytest.raises(ProfileError, match=f"did you mean {near}"):
        load_hardware(name)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("h100", "h100-sxm-80gb"),
        ("H100", "h100-sxm-80gb"),
        ("A100", "a100-sxm-80gb"),
        ("b300", "b300-sxm-270gb"),
        ("GB200", "gb200-186gb"),
        ("mi355x", "mi355x-288gb"),
        ("m4-max", "m4-max-128gb"),
        ("M4-Max-64GB", "m4-max-64gb"),
        ("tpu-v6e", "tpu-v6e-32gb"),
        ("4090", "rtx-4090-24gb"),
        ("H100-SXM-80GB", "h100-sxm-80gb"),
        ("h100pcie", "h100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090-24gb"),
        ("Tesla T4", "t4-16gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"),
        ("Apple M2 Max", "m2-max-96gb"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060-12gb"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti-11gb"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super-16gb"),
        ("NVIDIA GeForce RTX 4080 SUPER", "rtx-4080-super-16gb"),
        ("NVIDIA GeForce RTX 5060 Ti", "rtx-5060-ti-16gb"),
        ("rtx5070ti", "rtx-5070-ti-16gb"),
        ("RTX_5080", "rtx-5080-16gb"),
        ("NVIDIA RTX A5000", "rtx-a5000-24gb"),
        ("NVIDIA RTX PRO 4500 Blackwell", "rtx-pro-4500-32gb"),
        ("NVIDIA RTX PRO 5000 Blackwell", "rtx-pro-5000-48gb"),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", "rtx-pro-5000-72gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-96gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-ws-96gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-maxq-96gb"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 120GB", "gh200-nvl4-96gb"),
        ("NVIDIA A30", "a30-24gb"),
        ("NVIDIA H20-3e", "h20-141gb"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx-24gb"),
        ("AMD Radeon AI PRO R9700", "r9700-32gb"),
        ("AMD Radeon PRO W7900", "w7900-48gb"),
        ("AMD Instinct MI210", "mi210-64gb"),
        ("AMD Ryzen AI Max+ 395", "ryzen-ai-max-395-128gb"),
        ("AI Max 395", "ryzen-ai-max-395-128gb"),
        ("Strix Halo 128 GB", "ryzen-ai-max-395-128gb"),
        ("Framework Desktop", "ryzen-ai-max-395-128gb"),
        ("Radeon 8060S Graphics", "ryzen-ai-max-395-128gb"),
        ("NVIDIA L40", "l40-48gb"),
        ("A2", "a2-16gb"),
        ("NVIDIA A16", "a16-16gb"),
        ("Tesla P40", "p40-24gb"),
        ("NVIDIA GeForce RTX 4070", "rtx-4070-12gb"),
        ("4070 Super", "rtx-4070-super-12gb"),
        ("NVIDIA GeForce RTX 3060 Ti", "rtx-3060-ti-8gb"),
        ("rtx5050", "rtx-5050-8gb"),
        ("NVIDIA RTX 4500 Ada Generation", "rtx-4500-ada-24gb"),
        ("AMD Radeon RX 9070 XT", "rx-9070-xt-16gb"),
        ("9070XT", "rx-9070-xt-16gb"),
        ("7900xt", "rx-7900-xt-20gb"),
        ("AMD Instinct MI250X", "mi250x-64gb"),
        ("Intel(R) Arc(TM) B580 Graphics", "arc-b580-12gb"),
        ("Intel Arc Pro B60", "arc-pro-b60-24gb"),
        ("Intel Arc Pro B70", "arc-pro-b70-32gb"),
        ("Jetson AGX Orin", "jetson-agx-orin-64gb"),
        ("NVIDIA Thor", "jetson-thor-128gb"),
        ("NVIDIA RTX 6000D", "rtx-6000d-84gb"),
        ("NVIDIA RTX PRO 6000D Blackwell Server Edition", "rtx-6000d-84gb"),
        ("Quadro RTX 8000", "quadro-rtx-8000-48gb"),
        ("NVIDIA GeForce GTX 1650", "gtx-1650-4gb"),
        ("Jetson Orin Nano", "jetson-orin-nano-8gb"),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090d-24gb"),
        ("RTX 4090 48GB", "rtx-4090-48gb"),
        ("RTX 4090D 48GB", "rtx-4090d-48gb"),
        ("NVIDIA GeForce RTX 5090 D", "rtx-5090d-32gb"),
        ("NVIDIA GeForce RTX 5090 D v2", "rtx-5090d-v2-24gb"),
        ("5090", "rtx-5090-32gb"),
        ("B40", "rtx-6000d-84gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A800 80GB PCIe", "a800-pcie-80gb"),
        ("NVIDIA L2", "l2-24gb"),
        ("NVIDIA RTX 5880 Ada Generation", "rtx-5880-ada-48gb"),
        ("Gaudi 2", "gaudi2-96gb"),
    ],
)
def test_a_short_name_in_any_case_means_the_usual_variant(asked: str, meant: str) -> None:
    """Aliases, memory sizes and names are found whatever their case, and the profile carries the full name."""
    assert load_hardware(asked).name == meant
    assert hardware_name(asked) == meant


def test_no_short_name_means_two_gpus() -> None:
    """Aliases and sizes of all profiles and their names are all different."""
    profiles = [load_hardware(name) for name in catalog.names("hardware")]
    names = [name for each in profiles for name in (each.name, *each.aliases, *each.sizes)]

    assert len(names) == len({name.casefold() for name in names})


def test_a_size_differs_in_memory_alone() -> None:
    """The same GPU with less memory: bandwidth, peaks and efficiencies stay."""
    largest, smaller = load_hardware("m4-max-128gb"), load_hardware("m4-max-64gb")

    assert smaller.memory.total == 51.84 * GIB
    assert smaller.memory.bandwidth == largest.memory.bandwidth
    assert smaller.efficiency == largest.efficiency


def test_an_unknown_name_is_left_to_the_search_for_near_ones() -> None:
    """What no alias means stays as it is written, and so does a path."""
    assert hardware_name("h1000") == "h1000"
    assert hardware_name("./h100.yaml") == "./h100.yaml"
    assert hardware_name("NVIDIA A100-PCIE-40GB") == "NVIDIA A100-PCIE-40GB"


@pytest.mark.slow
def test_no_two_gpus_differ_only_in_words_that_are_left_out() -> None:
    """Names without vendor, blanks and hyphens still mean one GPU each."""
    meant: dict[str, set[str]] = {}
    for name in hardware_names():
        meant.setdefault("".join(each for each in name if each.isalnum()), set()).add(load_hardware(name).name)

    assert all(len(each) == 1 for each in meant.values())


def test_class_efficiencies_come_from_the_gpu_whose_kernels_it_borrows(tmp_path: Path) -> None:
    """A file without an efficiency block takes that of ``kernels_of``; without either it is refused."""
    borrowed = write_profile(tmp_path, {"efficiency": None, "kernels_of": "h100-sxm-80gb"})
    bare = write_profile(tmp_path, {"efficiency": None}, stem="bare")

    assert load_hardware(str(borrowed)).efficiency == load_hardware("h100-sxm-80gb").efficiency
    with pytest.raises(ProfileError, match="efficiency: is missing"):
        load_hardware(str(bare))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("a10g-24gb", 462e9, 484e9),
        ("a10-24gb", 468e9, 479e9),
        ("a40-48gb", 557e9, 571e9),
        ("l4-24gb", 232e9, 261e9),
        ("l40s-48gb", 683e9, 744e9),
        ("t4-16gb", 217e9, 240e9),
    ],
)
def test_gddr6_with_ecc_streams_what_kernels_measured_alone_do(name: str, least: float, most: float) -> None:
    """Copies, triads, reads and products of few rows outside any server, bytes/s; the sources are in the profiles."""
    profile = load_hardware(name)

    assert least <= profile.efficiency.memory * profile.memory.bandwidth <= most


def test_an_nvlink_domain_spans_hosts() -> None:
    """72 GPUs of a rack talk over NVLink; an operating system sees four of them."""
    link = load_hardware("gb200").intra_node

    assert (link.gpus_per_node, link.num_host_gpus) == (72, 4)
    assert load_hardware("h100").intra_node.num_host_gpus == 8


def test_blackwell_ultra_trades_int8_for_fp4() -> None:
    """HGX B300: 108 PFLOP/s of dense FP4 over 8 GPUs; GB300 NVL72: 1,080 over 72; INT8 is all but gone."""
    b300, gb300 = load_hardware("b300"), load_hardware("gb300")

    assert (b300.peak_flops("fp4"), gb300.peak_flops("fp4")) == (13.5e15, 15e15)
    assert all((each.peak_flops("int8") or 0) < 0.1 * (each.peak_flops("fp8") or 0) for each in (b300, gb300))


@pytest.mark.parametrize(
    ("name", "dtype", "flops"),
    [
        ("h100-sxm-80gb", "bf16", 989.4e12),
        ("h100-sxm-80gb", "fp8", 1978.9e12),
        ("h100-pcie-80gb", "bf16", 756e12),
        ("h100-nvl-94gb", "bf16", 835.5e12),
        ("h200-nvl-141gb", "fp8", 1670.5e12),
        ("h200-sxm-141gb", "bf16", 989.4e12),
        ("a100-sxm-80gb", "bf16", 312e12),
        ("a100-pcie-80gb", "int8", 624e12),
        ("l40s-48gb", "fp8", 733e12),
        ("l4-24gb", "bf16", 121e12),
        ("a10-24gb", "bf16", 125e12),
        ("rtx-4090-24gb", "bf16", 165.2e12),
        ("t4-16gb", "fp16", 65e12),
        ("v100s-32gb", "fp16", 130e12),
        ("rtx-3090-24gb", "bf16", 71e12),
        ("a40-48gb", "bf16", 149.7e12),
        ("rtx-pro-6000-96gb", "fp8", 935.6e12),
        ("b200-sxm-180gb", "bf16", 2250e12),
        ("b200-sxm-180gb", "fp8", 4500e12),
        ("mi300x-192gb", "bf16", 1307.4e12),
        ("mi300x-192gb", "fp8", 2614.9e12),
        ("gh200-96gb", "bf16", 989.4e12),
        ("gh200-nvl4-96gb", "bf16", 989.4e12),
        ("h20-96gb", "fp8", 296e12),
        ("rtx-5090-32gb", "bf16", 237.8e12),
        ("m2-max-96gb", "fp32", 13.6e12),
        ("gb200-186gb", "bf16", 2500e12),
        ("mi355x-288gb", "fp4", 10066.3e12),
        ("mi350x-288gb", "bf16", 2306.9e12),
        ("a800-sxm-80gb", "bf16", 312e12),
        ("h800-sxm-80gb", "fp8", 1978.9e12),
        ("gb10-128gb", "fp4", 500e12),
        ("l20-48gb", "bf16", 119.5e12),
        ("v100-sxm-32gb", "fp16", 125e12),
        ("rtx-4000-ada-20gb", "fp8", 213.8e12),
        ("rtx-5000-ada-32gb", "bf16", 261.1e12),
        ("tpu-v5e-16gb", "bf16", 197e12),
        ("tpu-v6e-32gb", "int8", 1836e12),
        ("trainium2-96gb", "fp8", 1299e12),
        ("gaudi3-128gb", "fp8", 1835e12),
        ("rtx-2080-ti-11gb", "fp16", 53.8e12),
        ("rtx-3060-12gb", "bf16", 25.5e12),
        ("rtx-3080-10gb", "bf16", 59.5e12),
        ("rtx-4060-ti-16gb", "bf16", 44.1e12),
        ("rtx-4070-ti-super-16gb", "bf16", 88.2e12),
        ("rtx-4080-16gb", "bf16", 97.5e12),
        ("rtx-4080-super-16gb", "fp8", 208.9e12),
        ("rtx-5060-ti-16gb", "fp4", 379.3e12),
        ("rtx-5070-12gb", "bf16", 61.7e12),
        ("rtx-5070-ti-16gb", "fp4", 703e12),
        ("rtx-5080-16gb", "fp4", 900.4e12),
        ("rtx-a4000-16gb", "bf16", 76.7e12),
        ("rtx-a5000-24gb", "bf16", 111.1e12),
        ("rtx-pro-4000-24gb", "fp4", 589e12),
        ("rtx-pro-4500-32gb", "fp8", 421.8e12),
        ("rtx-pro-5000-48gb", "bf16", 258e12),
        ("rtx-pro-6000-maxq-96gb", "bf16", 438.9e12),
        ("rtx-pro-6000-ws-96gb", "bf16", 503.8e12),
        ("a30-24gb", "bf16", 165e12),
        ("h20-141gb", "fp8", 296e12),
        ("mi210-64gb", "fp16", 181e12),
        ("rx-7900-xtx-24gb", "fp16", 122.8e12),
        ("w7900-48gb", "fp16", 122.6e12),
        ("r9700-32gb", "fp8", 383e12),
        ("ryzen-ai-max-395-128gb", "fp16", 59.4e12),
        ("l40-48gb", "fp8", 362e12),
        ("l40-48gb", "bf16", 181.05e12),
        ("a2-16gb", "bf16", 18e12),
        ("a16-16gb", "int8", 36e12),
        ("p40-24gb", "int8", 47e12),
        ("rtx-4070-12gb", "bf16", 58.3e12),
        ("rtx-4070-super-12gb", "fp8", 141.9e12),
        ("rtx-4070-ti-12gb", "bf16", 80.2e12),
        ("rtx-4060-8gb", "bf16", 30.2e12),
        ("rtx-3060-ti-8gb", "bf16", 32.4e12),
        ("rtx-3070-8gb", "bf16", 40.6e12),
        ("rtx-3080-ti-12gb", "bf16", 68.2e12),
        ("rtx-3090-ti-24gb", "bf16", 80e12),
        ("rtx-5060-8gb", "fp4", 306.8e12),
        ("rtx-5050-8gb", "fp4", 210.7e12),
        ("rtx-4500-ada-24gb", "fp8", 317e12),
        ("rtx-2000-ada-16gb", "fp8", 96e12),
        ("rx-9070-xt-16gb", "fp8", 389e12),
        ("rx-9070-16gb", "fp16", 145e12),
        ("rx-7900-xt-20gb", "fp16", 103.2e12),
        ("mi250x-64gb", "bf16", 191.5e12),
        ("arc-b580-12gb", "int8", 233e12),
        ("arc-pro-b60-24gb", "int8", 197e12),
        ("arc-pro-b70-32gb", "int8", 367e12),
        ("jetson-agx-orin-64gb", "int8", 85e12),
        ("jetson-thor-128gb", "fp4", 1035e12),
        ("rtx-6000d-84gb", "bf16", 148e12),
        ("rtx-6000d-84gb", "fp8", 296e12),
        ("quadro-rtx-8000-48gb", "fp16", 130.5e12),
        ("gtx-1650-4gb", "fp16", 2.98e12),
        ("jetson-orin-nano-8gb", "int8", 33.4e12),
        ("rtx-4090d-24gb", "bf16", 147.1e12),
        ("rtx-5090d-32gb", "bf16", 237.8e12),
        ("rtx-5090d-32gb", "fp4", 1347e12),
        ("rtx-4090-48gb", "bf16", 165.2e12),
        ("a800-pcie-80gb", "bf16", 312e12),
        ("l2-24gb", "bf16", 96.5e12),
        ("rtx-5880-ada-48gb", "fp8", 554.2e12),
        ("gaudi2-96gb", "fp8", 865e12),
    ],
)
def test_peaks_are_dense(name: str, dtype: str, flops: float) -> None:
    """Peaks are half of what data sheets print with sparsity."""
    assert load_hardware(name).peak_flops(dtype) == pytest.approx(flops)


@pytest.mark.parametrize(
    ("name", "terabytes"),
    [
        ("h100-sxm-80gb", 3.35),
        ("h100-pcie-80gb", 2.039),
        ("h100-nvl-94gb", 3.9),
        ("h200-nvl-141gb", 4.8),
        ("h200-sxm-141gb", 4.8),
        ("a100-sxm-80gb", 2.039),
        ("a100-sxm-40gb", 1.555),
        ("a100-pcie-80gb", 1.935),
        ("l40s-48gb", 0.864),
        ("l4-24gb", 0.3),
        ("a10-24gb", 0.6),
        ("rtx-4090-24gb", 1.008),
        ("t4-16gb", 0.32),
        ("v100s-32gb", 1.134),
        ("rtx-3090-24gb", 0.936),
        ("a40-48gb", 0.696),
        ("rtx-pro-6000-96gb", 1.792),
        ("b200-sxm-180gb", 7.7),
        ("mi300x-192gb", 5.3),
        ("gh200-96gb", 4.0),
        ("gh200-nvl4-96gb", 4.0),
        ("h20-96gb", 4.0),
        ("rtx-5090-32gb", 1.792),
        ("m2-max-96gb", 0.4),
        ("b300-sxm-270gb", 7.7),
        ("gb300-279gb", 8.0),
        ("mi355x-288gb", 8.0),
        ("rtx-4000-ada-20gb", 0.36),
        ("rtx-5000-ada-32gb", 0.576),
        ("tpu-v5e-16gb", 0.819),
        ("tpu-v6e-32gb", 1.64),
        ("trainium2-96gb", 2.9),
        ("gaudi3-128gb", 3.67),
        ("m4-max-128gb", 0.546),
        ("rtx-2080-ti-11gb", 0.616),
        ("rtx-3060-12gb", 0.36),
        ("rtx-3080-10gb", 0.76),
        ("rtx-4060-ti-16gb", 0.288),
        ("rtx-4070-ti-super-16gb", 0.672),
        ("rtx-4080-16gb", 0.7168),
        ("rtx-4080-super-16gb", 0.736),
        ("rtx-5060-ti-16gb", 0.448),
        ("rtx-5070-12gb", 0.672),
        ("rtx-5070-ti-16gb", 0.896),
        ("rtx-5080-16gb", 0.96),
        ("rtx-a4000-16gb", 0.448),
        ("rtx-a5000-24gb", 0.768),
        ("rtx-pro-4000-24gb", 0.672),
        ("rtx-pro-4500-32gb", 0.896),
        ("rtx-pro-5000-72gb", 1.344),
        ("rtx-pro-6000-maxq-96gb", 1.792),
        ("rtx-pro-6000-ws-96gb", 1.792),
        ("a30-24gb", 0.933),
        ("h20-141gb", 4.8),
        ("mi210-64gb", 1.638),
        ("rx-7900-xtx-24gb", 0.96),
        ("w7900-48gb", 0.864),
        ("r9700-32gb", 0.64),
        ("ryzen-ai-max-395-128gb", 0.256),
        ("l40-48gb", 0.864),
        ("a2-16gb", 0.2),
        ("a16-16gb", 0.2),
        ("p40-24gb", 0.3471),
        ("rtx-4070-12gb", 0.504),
        ("rtx-4070-super-12gb", 0.504),
        ("rtx-4070-ti-12gb", 0.504),
        ("rtx-4060-8gb", 0.272),
        ("rtx-3060-ti-8gb", 0.448),
        ("rtx-3070-8gb", 0.448),
        ("rtx-3080-ti-12gb", 0.912),
        ("rtx-3090-ti-24gb", 1.008),
        ("rtx-5060-8gb", 0.448),
        ("rtx-5050-8gb", 0.32),
        ("rtx-4500-ada-24gb", 0.432),
        ("rtx-2000-ada-16gb", 0.224),
        ("rx-9070-xt-16gb", 0.64),
        ("rx-9070-16gb", 0.64),
        ("rx-7900-xt-20gb", 0.8),
        ("mi250x-64gb", 1.638),
        ("arc-b580-12gb", 0.456),
        ("arc-pro-b60-24gb", 0.456),
        ("arc-pro-b70-32gb", 0.608),
        ("jetson-agx-orin-64gb", 0.2048),
        ("jetson-thor-128gb", 0.273),
        ("rtx-6000d-84gb", 1.398),
        ("quadro-rtx-8000-48gb", 0.672),
        ("gtx-1650-4gb", 0.192),
        ("jetson-orin-nano-8gb", 0.1024),
        ("rtx-4090d-24gb", 1.008),
        ("rtx-5090d-v2-24gb", 1.344),
        ("rtx-4090-48gb", 1.008),
        ("a800-pcie-80gb", 1.935),
        ("l2-24gb", 0.3),
        ("rtx-5880-ada-48gb", 0.96),
        ("gaudi2-96gb", 2.46),
    ],
)
def test_bandwidth_is_that_of_the_data_sheet(name: str, terabytes: float) -> None:
    """Memory bandwidth in TB/s, decimal."""
    assert load_hardware(name).memory.bandwidth == pytest.approx(terabytes * 1e12)


def test_unsupported_dtypes_are_absent() -> None:
    """Ampere has no FP8, Hopper's tensor cores no INT4, Ada both, of NVIDIA's Blackwell alone FP4."""
    assert load_hardware("a100-sxm-80gb").peak_flops("fp8") is None
    assert load_hardware("a10-24gb").peak_flops("fp8") is None
    assert load_hardware("h100-sxm-80gb").peak_flops("int4") is None
    assert set(DTYPES) - set(load_hardware("l4-24gb").supported_dtypes) == {"fp4"}
    assert load_hardware("b200-sxm-180gb").peak_flops("fp4") == 9e15


def test_turing_and_volta_multiply_in_fp16_only() -> None:
    """The T4 has integer tensor cores besides, the V100S nothing else."""
    assert load_hardware("t4-16gb").supported_dtypes == ("fp32", "fp16", "int8", "int4")
    assert load_hardware("v100s-32gb").supported_dtypes == ("fp32", "fp16")


def test_links_are_of_the_makers_kind() -> None:
    """Infinity Fabric between MI300X, NVLink-C2C to Grace, and no copy at all on unified memory."""
    assert load_hardware("mi300x-192gb").intra_node.kind == "infinity_fabric"
    assert load_hardware("gh200-96gb").host_link.kind == "nvlink_c2c"
    assert load_hardware("m2-max-96gb").host_link.kind == "unified"
    assert load_hardware("mi300x-192gb").compute_capability is None


@pytest.mark.parametrize("name", [name for name in BUNDLED if name not in WITHOUT_PRICE])
def test_every_gpu_on_offer_has_a_price(name: str) -> None:
    """At specialised clouds: at most a quarter above the dearest that was seen, whoever asked it."""
    profile = load_hardware(name)
    on_demand = [price.usd_per_hour for price in profile.prices if price.kind == "on_demand"]
    assert profile.default_price is not None

    assert 0 < profile.default_price <= 1.25 * max(on_demand)


@pytest.mark.parametrize("name", WITHOUT_PRICE)
def test_a_gpu_that_nobody_was_seen_to_rent_out_has_no_price(name: str) -> None:
    """Undefined, not 0 and not a guess."""
    assert load_hardware(name).default_price is None


# What a profile answers


def test_an_unknown_dtype_is_an_error_that_names_the_nearest() -> None:
    """A typing error is not taken for an unsupported dtype."""
    with pytest.raises(ProfileError, match="'fp88' is not a known dtype; did you mean 'fp8'"):
        make_profile().peak_flops("fp88")


def test_default_price_is_of_the_on_demand_prices() -> None:
    """Spot and reserved prices do not move it."""
    profile = make_profile(prices=[price(1.0), price(2.0), price(9.0), price(0.1, "spot"), price(0.5, "reserved")])

    assert profile.default_price == 2.0


def test_default_price_is_undefined_without_an_on_demand_price() -> None:
    """A spot price alone is no price to plan with."""
    assert make_profile().default_price is None
    assert make_profile(prices=[price(1.0, "spot")]).default_price is None


def test_a_profile_survives_its_own_json() -> None:
    """Written as JSON with units and read back, nothing changes."""
    profile = load_hardware("h100-sxm-80gb")

    assert HardwareProfile.model_validate(profile.model_dump(mode="json")) == profile


# A user's own profile


def test_a_profile_loads_by_path(tmp_path: Path) -> None:
    """A path needs neither the catalogue nor a matching name."""
    path = write_profile(tmp_path, stem="somewhere-else")

    assert load_hardware(str(path)).name == "my-gpu"
    assert load_hardware("somewhere-else.yaml", relative_to=tmp_path).name == "my-gpu"


def test_a_profile_loads_by_name_from_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``SIMSERVE_PROFILE_PATH`` adds names."""
    (tmp_path / "hardware_profiles").mkdir()
    write_profile(tmp_path / "hardware_profiles")
    monkeypatch.setenv(catalog.PROFILE_PATH_VARIABLE, str(tmp_path))

    assert load_hardware("my-gpu").memory.total == 80e9


def test_an_unquoted_date_is_read(tmp_path: Path) -> None:
    """YAML makes a date of 2026-08-06; the profile keeps the text."""
    path = write_profile(tmp_path, {"prices": [price(1.0)]})
    path.write_text(path.read_text().replace("2026-07", "2026-08-06").replace("'", ""))

    assert load_hardware(str(path)).prices[0].date == "2026-08-06"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"memory.total": 80},
            'memory.total: 80 needs a unit of bytes; write it as a string, for example "80 GB"',
        ),
        (
            {"memory.bandwidth": "2 TB"},
            "memory.bandwidth: '2 TB' has the unit \"TB\", which is not one of bandwidth",
        ),
        ({"power.board": "-400 W"}, "power.board: '-400 W' must be finite and not negative"),
        ({"memory.total": "0 GB"}, "memory.total: '0 GB' must be greater than 0"),
        ({"compute.bf16": "0 TFLOP/s"}, "compute.bf16: '0 TFLOP/s' must be greater than 0"),
        ({"compute.fp61": "1 TFLOP/s"}, "compute.fp61: is not a known key; did you mean 'fp16'"),
        ({"memory.bandwith": "1 TB/s"}, "memory.bandwith: is not a known key; did you mean 'bandwidth'?"),
        ({"memory.source": None}, "memory.source: is missing"),
        ({"memory.source": ""}, "memory.source: '' "),
        ({"efficiency.gemm": 1.2}, "efficiency.gemm: 1.2 must be less than or equal to 1"),
        ({"efficiency.gemm": 0}, "efficiency.gemm: 0 must be greater than 0"),
        (
            {"intra_node.kind": "nvlnk"},
            "intra_node.kind: 'nvlnk' must be 'nvlink', 'infinity_fabric', 'ici', 'neuronlink', 'ethernet', 'pcie' or",
        ),
        (
            {"intra_node.latency": None},
            "intra_node: must have a bandwidth and a latency above 0 where kind is nvlink",
        ),
        (
            {"intra_node.gpus_per_host": 3},
            "intra_node: must have gpus_per_node as a multiple of gpus_per_host",
        ),
        ({"efficiency.tile_rows": 0}, "efficiency.tile_rows: 0 must be greater than or equal to 1"),
        (
            {"inter_node.bandwidth": "1 GB/s"},
            "inter_node: must have no bandwidth and no latency where kind is none",
        ),
        ({"power.idle": "500 W"}, "power: must have an idle power at most as high as the board power"),
        ({"compute": {"source": "test"}}, "compute: must give the peak of at least one dtype"),
        ({"prices": [price(-1.0)]}, "prices.0.usd_per_hour: -1.0 must be greater than 0"),
        ({"prices": [price(1.0) | {"date": "July"}]}, "prices.0.date: 'July' "),
        ({"compute_capability": 9.0}, "compute_capability: 9.0 must be a valid string"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    """The message names file, key, value and rule, and ends the command with 104."""
    path = write_profile(tmp_path, changes)

    with pytest.raises(ProfileError) as caught:
        load_hardware(str(path))

    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert "\n" not in message
    assert caught.value.exit_code == 104


def test_a_name_that_differs_from_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by name, a profile must carry that name: results print it."""
    path = write_profile(tmp_path, stem="other-gpu")
    monkeypatch.setenv(catalog.PROFILE_PATH_VARIABLE, str(tmp_path))

    with pytest.raises(ProfileError) as caught:
        load_hardware("other-gpu")

    assert str(caught.value) == (f"{path}: name: 'my-gpu' must equal the name of the file; write other-gpu")


def test_a_key_written_twice_is_refused(tmp_path: Path) -> None:
    """Neither value wins silently."""
    path = write_profile(tmp_path)
    path.write_text(path.read_text() + "vendor: Other\n")

    with pytest.raises(ProfileError, match=r"vendor: stands twice, in lines \d+ and \d+"):
        load_hardware(str(path))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("v6e-8", ("tpu-v6e-32gb", 8)),
        ("v5litepod-4", ("tpu-v5e-16gb", 4)),
        ("TPU-v5e-256", ("tpu-v5e-16gb", 256)),
        ("v6e", None),
        ("h100-8", None),
    ],
)
def test_a_slice_is_so_many_of_its_chips(name: str, meant: tuple[str, int] | None) -> None:
    """As Google's accelerator types name them; of no other GPU is a number behind it a count."""
    assert slice_of(name) == meant


@pytest.mark.parametrize(("compute_capability", "slowdown"), [("8.0", 1.4), ("8.6", 1.4), ("9.0", 1.0)])
def test_hosts_are_as_old_as_their_cards(compute_capability: str, slowdown: float) -> None:
    """Workstation cards of the A100's generation sit in hosts of its age: an RTX 3090's is as slow as an A100's."""
    cards = [card for card in map(load_hardware, hardware_names()) if card.compute_capability == compute_capability]

    assert len(cards) > 3
    assert {card.host_slowdown for card in cards} == {slowdown}
