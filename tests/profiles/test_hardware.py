"""Hardware profiles: the catalogue holds what data sheets say, bad files are refused in one line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.hardware import DTYPES, HardwareProfile, load_hardware

BUNDLED = (
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
    "h20-96gb",
    "m2-max-96gb",
    "mi300x-192gb",
    "mi325x-256gb",
    "rtx-3090-24gb",
    "rtx-5090-32gb",
    "rtx-6000-ada-48gb",
    "rtx-a6000-48gb",
    "rtx-pro-6000-96gb",
    "t4-16gb",
    "v100s-32gb",
)
WITHOUT_BF16 = ("m2-max-96gb", "t4-16gb", "v100s-32gb")
WITHOUT_PRICE = (
    "h20-96gb",
    "h100-nvl-94gb",
    "h200-nvl-141gb",
    "m2-max-96gb",
    "mi325x-256gb",
    "rtx-5090-32gb",
    "rtx-6000-ada-48gb",
    "v100s-32gb",
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

    assert set(BUNDLED) <= set(catalog.names("hardware"))


@pytest.mark.parametrize("name", catalog.names("hardware"))
def test_every_profile_is_complete(name: str) -> None:
    """Every file loads, carries its own name, and names a source for each block and price."""
    profile = load_hardware(name)

    assert profile.name == name
    assert all(len(getattr(profile, block).source) > 20 for block in BLOCKS)
    assert all(price.source for price in profile.prices)


@pytest.mark.parametrize("name", BUNDLED)
def test_peaks_are_ordered_by_width(name: str) -> None:
    """Narrower dtypes are never slower, and both 16-bit dtypes have one peak where both exist."""
    profile = load_hardware(name)
    fp16 = profile.peak_flops("fp16")
    assert fp16 is not None

    assert profile.peak_flops("bf16") == (None if name in WITHOUT_BF16 else fp16)
    for narrow, wide in (
        ("fp8", "fp16"),
        ("int8", "fp16"),
        ("int4", "int8"),
        ("fp16", "tf32"),
        ("tf32", "fp32"),
    ):
        peak, wider = profile.peak_flops(narrow), profile.peak_flops(wide)
        assert peak is None or wider is None or peak >= wider, (narrow, wide)


@pytest.mark.parametrize("name", [name for name in BUNDLED if name != "m2-max-96gb"])
def test_memory_is_what_cuda_shows_not_what_the_box_says(name: str) -> None:
    """The total lies a little below the advertised size read as GiB: driver and ECC take their part."""
    advertised = float(name.rsplit("-", 1)[1].removesuffix("gb"))
    total = load_hardware(name).memory.total / GIB

    assert 0.90 * advertised < total < advertised


def test_unified_memory_leaves_a_quarter_to_the_rest_of_the_machine() -> None:
    """Metal recommends three quarters of what CPU and GPU share."""
    assert load_hardware("m2-max-96gb").memory.total == 0.75 * 96 * GIB


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
        ("h20-96gb", "fp8", 296e12),
        ("rtx-5090-32gb", "bf16", 209.5e12),
        ("m2-max-96gb", "fp32", 13.6e12),
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
        ("h20-96gb", 4.0),
        ("rtx-5090-32gb", 1.792),
        ("m2-max-96gb", 0.4),
    ],
)
def test_bandwidth_is_that_of_the_data_sheet(name: str, terabytes: float) -> None:
    """Memory bandwidth in TB/s, decimal."""
    assert load_hardware(name).memory.bandwidth == pytest.approx(terabytes * 1e12)


def test_unsupported_dtypes_are_absent() -> None:
    """Ampere has no FP8, Hopper's tensor cores no INT4, Ada both, Blackwell alone FP4."""
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
            "intra_node.kind: 'nvlnk' must be 'nvlink', 'infinity_fabric', 'pcie' or 'none'",
        ),
        (
            {"intra_node.latency": None},
            "intra_node: must have a bandwidth and a latency above 0 where kind is nvlink",
        ),
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
