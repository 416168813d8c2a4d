"""Links that KV caches may cross, from the profiles of the GPUs."""

from __future__ import annotations

import pytest

from simserve.planner.space.links import Side, links_between
from simserve.profiles.hardware import load_hardware


def side(name: str, gpus: int, number: int) -> Side:
    """Return workers of a bundled GPU."""
    return Side(load_hardware(name), gpus, number)


@pytest.mark.parametrize(
    ("sides", "links"),
    [
        ([("h200-sxm-141gb", 1, 4), ("h200-sxm-141gb", 2, 2)], [("NVLink", 450), ("InfiniBand", 50), ("TCP", 5)]),
        ([("h200-sxm-141gb", 1, 5), ("h200-sxm-141gb", 2, 2)], [("InfiniBand", 50), ("TCP", 5)]),
        ([("gb200-186gb", 4, 9), ("gb200-186gb", 4, 9)], [("NVLink", 3600), ("InfiniBand", 50), ("TCP", 20)]),
        ([("h100-sxm-80gb", 1, 1), ("h200-sxm-141gb", 1, 1)], [("InfiniBand", 50), ("TCP", 5)]),
        ([("a100-sxm-80gb", 1, 4), ("a100-sxm-80gb", 1, 5)], [("InfiniBand", 25), ("TCP", 5)]),
        ([("l40s-48gb", 1, 1), ("l40s-48gb", 1, 1)], [("Ethernet with RDMA", 6.25), ("TCP", 5)]),
        ([("rtx-4090-24gb", 1, 1), ("rtx-4090-24gb", 1, 1)], [("Ethernet with RDMA", 0.15625)]),
    ],
)
def test_each_link_is_slower_than_the_one_before(
    sides: list[tuple[str, int, int]], links: list[tuple[str, float]]
) -> None:
    """NVLink where one domain holds all workers, ports as the profile has them, TCP at 5 GB/s a GPU at most."""
    found = links_between([side(*each) for each in sides])

    assert [(link.name, link.bandwidth / 1e9) for link in found] == [(name, pytest.approx(gb)) for name, gb in links]
