"""Nodes with fewer GPUs than usual: which links collectives, experts and KV transfers cross, and what a plan tries."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import InputError
from simserve.perf.tables import price
from simserve.planner.importers.command import import_command
from simserve.planner.overrides import with_overrides
from simserve.planner.plan import roles
from simserve.planner.space.links import domain_of
from simserve.planner.space.roles import NODES, roles_of
from simserve.planner.space.space import NODE_KEY, other_hardware, space_on
from simserve.planner.space.traffic import traffic_of
from simserve.profiles.hardware import in_nodes, load_hardware
from simserve.scenario.replication import replicas_per_node
from simserve.scenario.resolve import engine_of, resolve
from simserve.scenario.schema import Scenario
from tests.scenario.builders import make_scenario


def on_nodes(gpus_per_node: int | None, tensor: int = 8, *overrides: str, **changes: Any) -> Scenario:
    """Return a scenario with a replica of several H100, on nodes of some size."""
    node = [] if gpus_per_node is None else [f"deployment.gpus_per_node={gpus_per_node}"]
    size = f"deployment.tensor_parallel_size={tensor}"
    return make_scenario([*node, size, *overrides], model="llama-3.1-70b", **changes)


def test_a_replica_larger_than_a_node_reduces_over_the_network() -> None:
    """Eight ranks on two boxes of four take the network between them; four ranks stay inside one, at the same price as
    in a box of eight."""
    usual, small = (resolve(on_nodes(each)).shape for each in (None, 4))
    inside, both = (resolve(on_nodes(each, 4)).shape for each in (None, 4))

    assert usual.tensor_link.network_latency == 0
    assert small.tensor_link.network_latency > 0
    assert small.tensor_link.bandwidth == usual.hardware.inter_node.bandwidth
    assert small.tensor_link.reference_ranks == usual.tensor_link.reference_ranks
    slow, fast = (price(each).step_times.sequence_seconds[8] for each in (small, usual))
    assert slow > fast
    assert price(both).step_times == price(inside).step_times


def test_the_usual_number_changes_nothing() -> None:
    """It is the GPU's own profile."""
    profile = load_hardware("h100")

    assert in_nodes(profile, 8) is profile
    assert in_nodes(profile, None) is profile
    assert in_nodes(profile, 4) is in_nodes(profile, 4)


@pytest.mark.parametrize(
    ("gpu", "size", "said"),
    [
        ("h100", 16, r"deployment\.gpus_per_node.*at most 8, the GPUs that a node of h100-sxm-80gb joins"),
        ("gb200", 6, r"deployment\.gpus_per_node.*multiple of 4, the GPUs of a host"),
    ],
)
def test_a_node_that_does_not_exist_is_refused(gpu: str, size: int, said: str) -> None:
    """With its key."""
    scenario = on_nodes(size, 1, f"deployment.hardware={gpu}")

    for read in (resolve, engine_of):
        with pytest.raises(InputError, match=said):
            read(scenario)


def test_hosts_are_no_larger_than_their_nodes() -> None:
    """A GB200 box of four is one host; eight on one NVLink are two hosts of four."""
    four, eight = (in_nodes(load_hardware("gb200"), each).intra_node for each in (4, 8))

    assert (four.gpus_per_node, four.num_host_gpus, four.num_latency_gpus) == (4, 4, 72)
    assert (eight.gpus_per_node, eight.num_host_gpus) == (8, 4)


def test_a_failed_node_takes_fewer_replicas_with_it() -> None:
    """Two of two GPUs fill a box of four, four a box of eight."""
    assert [replicas_per_node(resolve(on_nodes(each, 2))) for each in (None, 4)] == [4, 2]


def test_a_plan_tries_no_rank_beyond_a_node() -> None:
    """Tensor parallelism up to the node; on another kind of GPU up to its usual node."""
    scenario = on_nodes(4, 4)
    spaces = [space_on(scenario, gpu, {}, {}, traffic_of(scenario)) for gpu in ("h100-sxm-80gb", "h200-sxm-141gb")]

    sizes = [max(space.dimensions["deployment.tensor_parallel_size"]) for space in spaces]
    assert sizes == [4, 8]
    assert other_hardware(scenario, "h100-sxm-80gb") == {}
    assert other_hardware(scenario, "h200-sxm-141gb")[NODE_KEY] is None
    assert other_hardware(on_nodes(None), "h200-sxm-141gb") == {"deployment.hardware": "h200-sxm-141gb"}


_SPLIT = "deployment.pools=[{name: prefill, role: prefill, replicas: 1}, {name: decode, role: decode, replicas: 1}]"


def test_pools_beyond_a_node_hand_over_by_the_network() -> None:
    """A prefill and a decode worker of four GPUs each share a box of eight and its NVLink, but no box of four."""
    found = {}
    for size in (8, 4):
        sides = list(roles._sides(on_nodes(size, 4, _SPLIT, "deployment.disaggregation={}")))
        found[size] = domain_of(sides)

    assert found[8] is not None
    assert found[4] is None


def test_a_search_of_roles_knows_the_nodes_of_its_gpus() -> None:
    """They decide which link joins two workers."""
    found = roles_of(on_nodes(4, 4), {}, 8)

    assert found is not None
    workers = [(found.prefill[0], 1), (found.decode[0], 1), ({**found.decode[0], NODES: 2}, 1)]
    assert [each.hardware.intra_node.gpus_per_node for each in found._sides(workers)] == [4, 4, 2]


def test_a_pool_has_nodes_of_its_own() -> None:
    """Those of the deployment where it has its GPU, else its own or the usual ones."""
    own = "{name: a, replicas: 1}, {name: b, hardware: h200, replicas: 1}, {name: c, gpus_per_node: 2, replicas: 1}"
    scenario = on_nodes(4, 1, f"deployment.pools=[{own}]")

    assert [pool.shape.hardware.intra_node.gpus_per_node for pool in resolve(scenario).pools] == [4, 8, 2]


@pytest.mark.parametrize(
    ("line", "gpus_per_node"),
    [
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8 --nnodes 2", 4),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 16 --nnodes 2", None),
        ("vllm serve Qwen/Qwen3-235B-A22B --tensor-parallel-size 8 --nnodes 2 --node-rank 0", 4),
        ("vllm serve Qwen/Qwen3-235B-A22B --tensor-parallel-size 8 --nnodes $NODES", None),
        ("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 4 --data-parallel-size 2 --nnodes 2", None),
        ("trtllm-serve Qwen/Qwen3-235B-A22B --tp_size 8 --gpus_per_node 4", 4),
        ("trtllm-serve Qwen/Qwen3-235B-A22B --tp_size 8 --gpus_per_node 8", None),
    ],
)
def test_a_pasted_line_says_over_how_many_nodes_it_runs(line: str, gpus_per_node: int | None) -> None:
    """Where they have fewer of its GPUs than a usual node; replicas have nodes of their own."""
    draft = import_command(line, hardware="h100-sxm-80gb")

    assert draft.mapping["deployment"].get("gpus_per_node") == gpus_per_node
    assert any("of its GPUs" in note for note in draft.notes) == (gpus_per_node is not None and "--nnodes" in line)


@pytest.mark.parametrize(
    ("line", "gpus_per_node"),
    [
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8 --nnodes 2", None),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8 --nnodes 4", 2),
        ("trtllm-serve Qwen/Qwen3-235B-A22B --tp_size 8 --gpus_per_node 4", None),
    ],
)
def test_hosts_that_one_nvlink_joins_are_no_nodes_of_their_own(line: str, gpus_per_node: int | None) -> None:
    """Two hosts of four GB200 reduce over the NVLink of their rack, as two full ones of its usual hosts."""
    draft = import_command(line, hardware="gb200")

    assert draft.mapping["deployment"].get("gpus_per_node") == gpus_per_node


def test_experts_over_small_nodes_stay_with_what_the_line_says() -> None:
    """DeepEP is a scenario's default across nodes; the line does not ask for it."""
    line = "python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8 --dp 8 --ep 8 --enable-dp-attention"

    spread, whole = (import_command(f"{line}{nodes}", hardware="h100").mapping for nodes in (" --nnodes 2", ""))

    assert spread["deployment"]["all2all_backend"] == "allgather_reducescatter"
    assert "all2all_backend" not in whole["deployment"]


def test_overrides_reach_it() -> None:
    """As any key."""
    assert with_overrides(on_nodes(None), {NODE_KEY: 2}).deployment.gpus_per_node == 2
