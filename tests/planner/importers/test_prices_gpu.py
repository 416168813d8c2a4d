"""Tests of the price lists of SkyPilot and gpuhunt, and of the profiles written with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.errors import ProfileError, UsageError
from simserve.planner.importers.prices import GpuPriceList, read_gpu_prices, write_api_profiles, write_hardware_profiles
from simserve.profiles import catalog
from simserve.profiles.api import load_api
from simserve.profiles.hardware import load_hardware

_DATE = "2026-11-20"
SKYPILOT = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu-only,,0,4,16,0.0992,north,,
gpu-h100_1gpu,H100,1,16,200,3.10,north,,1.25
gpu-h100_8gpu,H100,8,128,1600,23.60,west,"{'Gpus': [{'Name': 'H100', 'Count': 8}]}",10.40
gpu-h100-pcie,H100,1,16,200,1.90,west,,
gpu-a100-80,A100-80GB,1,16,200,1.80,west,,
tpu,TPUv5,1,16,200,1.80,west,,
"""
GPUHUNT = """instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags
cpu,north,0.1,4,16.0,0,,,False,,,
a,north,2.0,16,200.0,1,A100,40.0,False,,nvidia,
b,north,9.6,16,200.0,4,A100,80.0,False,,nvidia,
b,north,4.0,16,200.0,4,A100,80.0,True,,nvidia,
c,north,1.0,16,200.0,1,Gaudi9,128.0,False,,intel,
"""


def read(tmp_path: Path, text: str, name: str = "cloudy/vms.csv", provider: str | None = None) -> GpuPriceList:
    """Return what a price list holds."""
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return read_gpu_prices(file, _DATE, provider)


def prices(found: GpuPriceList) -> dict[tuple[str, str], float]:
    """Return dollars a GPU-hour by profile and kind."""
    return {(name, price.kind): price.usd_per_hour for name, own in found.prices.items() for price in own}


def test_skypilot_prices_are_those_of_an_instance(tmp_path: Path) -> None:
    """A GPU's share of it, the lowest of all regions, on demand and spot; the cloud is the folder."""
    found = read(tmp_path, SKYPILOT)

    assert prices(found) == {
        ("h100-sxm-80gb", "on_demand"): 2.95,
        ("h100-sxm-80gb", "spot"): 1.25,
        ("h100-pcie-80gb", "on_demand"): 1.9,
        ("a100-sxm-80gb", "on_demand"): 1.8,
    }
    assert found.skipped == ("TPUv5",)
    price = found.prices["h100-sxm-80gb"][0]
    assert (price.provider, price.date) == ("cloudy", _DATE)
    assert "gpu-h100_8gpu in west, 23.6 for 8" in price.source


@pytest.mark.parametrize(
    ("accelerator", "profile"),
    [
        ("RTX6000-Ada", "rtx-6000-ada-48gb"),
        ("RTXA5000", "rtx-a5000-24gb"),
        ("RTX5080", "rtx-5080-16gb"),
        ("Gaudi3", "gaudi3-128gb"),
    ],
)
def test_cards_are_known_as_the_lists_write_them(tmp_path: Path, accelerator: str, profile: str) -> None:
    """In their own case."""
    head = SKYPILOT.partition("\n")[0]

    assert prices(read(tmp_path, f"{head}\none,{accelerator},1,16,200,0.50,west,,\n")) == {(profile, "on_demand"): 0.5}


def test_gpuhunt_prices_are_an_offer_a_row(tmp_path: Path) -> None:
    """Memory tells one A100 from the other; the provider is the file's name, unless told."""
    found, told = read(tmp_path, GPUHUNT, "cloudy.csv"), read(tmp_path, GPUHUNT, "cloudy.csv", "Us")

    assert prices(found) == {
        ("a100-sxm-40gb", "on_demand"): 2.0,
        ("a100-sxm-80gb", "on_demand"): 2.4,
        ("a100-sxm-80gb", "spot"): 1.0,
    }
    assert found.skipped == ("Gaudi9",)
    assert {price.provider for own in found.prices.values() for price in own} == {"cloudy"}
    assert {price.provider for own in told.prices.values() for price in own} == {"Us"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "is no price list of SkyPilot"),
        ("", "is no price list of SkyPilot"),
        (SKYPILOT.replace("23.60", "cheap"), "line 4, Price: 'cheap' must be a number >= 0"),
        (SKYPILOT.replace("1.25", "-1"), "line 3, SpotPrice: '-1' must be a number >= 0"),
        (GPUHUNT.replace("True", "maybe"), "line 5, spot: 'maybe' must be True or False"),
    ],
)
def test_a_malformed_list_says_where(tmp_path: Path, text: str, said: str) -> None:
    """File, line, column and rule."""
    with pytest.raises(ProfileError) as failure:
        read(tmp_path, text)

    assert said in str(failure.value)
    assert "vms.csv" in str(failure.value)


def test_prices_become_profiles_that_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the new price, those of other providers, and everything else as it was; bundled files stay."""
    bundled = load_hardware("h100-sxm-80gb")
    found = read(tmp_path, SKYPILOT, "Nebius/vms.csv")

    write_hardware_profiles(found.prices, tmp_path / "my")
    monkeypatch.setenv(catalog.PROFILE_PATH_VARIABLE, str(tmp_path / "my"))

    own = load_hardware("h100-sxm-80gb")
    mine = [price for price in own.prices if price.provider == "Nebius"]
    assert {(price.kind, price.usd_per_hour, price.date) for price in mine} == {
        ("on_demand", 2.95, _DATE),
        ("spot", 1.25, _DATE),
    }
    assert [price for price in own.prices if price.provider != "Nebius"] == [
        price for price in bundled.prices if price.provider != "Nebius"
    ]
    assert own.model_copy(update={"prices": ()}) == bundled.model_copy(update={"prices": ()})


def test_a_profile_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    """Unless it is asked for; nothing is written beside it."""
    found = read(tmp_path, SKYPILOT)
    write_hardware_profiles({"h100-sxm-80gb": found.prices["h100-sxm-80gb"]}, tmp_path)

    with pytest.raises(UsageError, match="is there already"):
        write_hardware_profiles(found.prices, tmp_path)

    assert len(list((tmp_path / "hardware_profiles").iterdir())) == 1
    assert len(write_hardware_profiles(found.prices, tmp_path, force=True)) == 3


def test_api_profiles_survive_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiers and discounts too."""
    profiles = [load_api(name) for name in ("gemini-2.5-pro", "gpt-4")]
    renamed = [each.model_copy(update={"name": f"my-{each.name}"}) for each in profiles]

    write_api_profiles(renamed, tmp_path)
    monkeypatch.setenv(catalog.PROFILE_PATH_VARIABLE, str(tmp_path))

    assert [load_api(each.name) for each in renamed] == renamed
