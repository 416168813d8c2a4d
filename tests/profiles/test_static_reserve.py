"""The memory that SGLang keeps free, against the arithmetic of its own source."""

from __future__ import annotations

import pytest

from simserve.profiles.engine import load_engine
from simserve.profiles.static_reserve import ServerTraits, StaticReserve
from simserve.profiles.tiers import Tier

MIB, GIB = 2.0**20, 2.0**30


def sglang_share(gpu_mib: float, chunk: int, graph: int, ranks: int, groups: int) -> float:
    """Return ``mem_fraction_static`` of SGLang 0.5.3 (``server_args.py``, pull request 10975), in its MiB."""
    reserved = 512 + max(chunk, 2048) * 1.5 + graph * 2 + ranks / 8 * 1024
    if groups > 1:
        reserved += graph * groups * 3
        if graph > 300:
            reserved += graph * groups * 1.5
    if gpu_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((gpu_mib - reserved) / gpu_mib, 3)


@pytest.mark.parametrize("gpu_mib", [24 * 1024, 60 * 1024, 80 * 1024, 141 * 1024])
@pytest.mark.parametrize("chunk", [512, 2048, 8192, 16384])
@pytest.mark.parametrize("graph", [8, 300, 304, 512])
@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (8, 1), (8, 8)])
def test_the_share_is_that_of_the_source(gpu_mib: int, chunk: int, graph: int, ranks: int, groups: int) -> None:
    """Chunks count from 2,048 tokens, large graphs above 300 sequences, and the least reserve above 60 GiB."""
    reserve = load_engine("sglang").nearest_version("0.5.3").memory.reserve(gpu_mib * MIB)
    case = ServerTraits(chunk_tokens=chunk, graph_sequences=graph, ranks=ranks, groups=groups)

    assert reserve.share(gpu_mib * MIB, case) == sglang_share(gpu_mib, chunk, graph, ranks, groups)


def test_deepep_takes_memory_of_servers_that_decode() -> None:
    """One that only prefills has no buffers for it, where the release knows its role."""
    reserve = StaticReserve(base="10 GiB", deepep="10 GiB", knows_roles=True)
    shares = {
        role: reserve.share(100 * GIB, ServerTraits(role=role, exchange="deepep_low_latency"))
        for role in ("both", "prefill", "decode")
    }

    assert shares == {"both": 0.8, "prefill": 0.9, "decode": 0.8}


def test_a_row_of_defaults_holds_from_its_least_memory_and_ranks_on() -> None:
    """Both ends included: SGLang asks for ``gpu_mem < 35 * 1024``, vLLM for ``>= 70 * GiB_bytes``."""
    tier = Tier(memory_at_least="70 GiB", tensor_parallel_at_least=4, value=1)
    fits = [tier.fits(memory * GIB, "h100", ranks) for memory, ranks in ((70, 4), (69.9, 4), (70, 3))]

    assert fits == [True, False, False]
