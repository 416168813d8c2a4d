"""KV tiers behind the prefix cache, as flags and variables of servers say them, in keys of a scenario."""

from __future__ import annotations

from simserve.planner.importers.server import HostMemory, Reading
from simserve.units import GIB

_GB = 1e9
"""Bytes of a GB of SGLang's ``--hicache-size`` (mem_cache/memory_pool_host.py); LMCache and vLLM count GiB."""


def read_offloading_size(reading: Reading, value: object) -> None:
    """Read vLLM's ``--kv-offloading-size``: GiB over all ranks."""
    size = reading.number("--kv-offloading-size", value, "is not a number of GiB")
    reading.host_memory = HostMemory(size * GIB, is_of_rank=False, overlaps=False)


def read_offloading_backend(reading: Reading, value: object) -> None:
    """Read which connector holds it: both load what they find."""
    reading.ignored.append(f"--kv-offloading-backend {value}")


def read_lmcache_variable(reading: Reading, name: str, value: str) -> bool:
    """Read a variable of LMCache; return False if it is none of its sizes and places."""
    if name == "LMCACHE_MAX_LOCAL_CPU_SIZE":
        size = reading.number(name, value, "is not a number of GiB")
        reading.host_memory = HostMemory(size * GIB, is_of_rank=True, overlaps=False)
        return True
    if name in ("LMCACHE_LOCAL_DISK", "LMCACHE_MAX_LOCAL_DISK_SIZE", "LMCACHE_REMOTE_URL"):
        reading.notes.append(
            f"{name} is a KV tier whose bandwidth no line says: add it to deployment.engine.kv_tiers with yours."
        )
        return True
    return False


def read_hierarchical_cache(reading: Reading, value: object) -> None:
    """Read SGLang's ``--enable-hierarchical-cache``, without which the sizes mean nothing."""
    reading.switches["hierarchical_cache"] = value is True


def read_hicache_size(reading: Reading, value: object) -> None:
    """Read ``--hicache-size``: GB of each rank, of which 0 leaves it to the ratio."""
    size = reading.number("--hicache-size", value, "is not a number of GB")
    if size:
        reading.host_memory = HostMemory(size * _GB, is_of_rank=True, overlaps=True)


def read_hicache_ratio(reading: Reading, value: object) -> None:
    """Read ``--hicache-ratio``: times the KV memory of the GPU, which the line does not say."""
    reading.notes.append(
        f"--hicache-ratio {value} is a multiple of the KV memory on the GPU: put it in deployment.engine.kv_tiers as a "
        "capacity, which simserve memory helps to find."
    )


def read_hicache_storage(reading: Reading, value: object) -> None:
    """Read ``--hicache-storage-backend``: where, but not how much and how fast."""
    reading.notes.append(
        f"--hicache-storage-backend {value} is a KV tier whose capacity and bandwidth no line says: add it to "
        "deployment.engine.kv_tiers with yours."
    )


def settle_hierarchical_cache(reading: Reading) -> None:
    """Drop a size that no switch asks for."""
    if not reading.switches.get("hierarchical_cache", False):
        reading.host_memory = None
