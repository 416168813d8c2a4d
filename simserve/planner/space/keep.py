"""What a plan may be told to leave as it is: names for people, and the dimensions behind them. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simserve.errors import UsageError
from simserve.planner.space.formats import KV_KEY, WEIGHTS_KEY
from simserve.planner.space.space import DATA_KEY, DIMENSIONS, DRAFTS_NAME, PIPELINE_KEY, SPLIT_NAME, TENSOR_KEY

GPUS, REPLICAS = "gpus", "replicas"

KEEPABLE: Mapping[str, tuple[str, ...]] = {
    GPUS: (),
    REPLICAS: (),
    "weights": (WEIGHTS_KEY,),
    "kv-cache": (KV_KEY,),
    "tensor-parallel": (TENSOR_KEY,),
    "pipeline-parallel": (PIPELINE_KEY,),
    "data-parallel": (DATA_KEY,),
    "expert-parallel": ("deployment.enable_expert_parallel",),
    "engine": (*(each.key for each in DIMENSIONS if each.kind == "knob"), "cache", "static"),
    "drafts": (DRAFTS_NAME,),
    "routing": ("route",),
    "pools": ("pool",),
    "disaggregation": (SPLIT_NAME,),
    "autoscaling": ("scale",),
    "offload": ("offload",),
    "response-cache": ("answers",),
    "overflow": ("overflow",),
    "admission": ("admit",),
}
"""Name -> dotted keys and names of options that it stands for. GPUs are the kind of GPU; that and replicas are not
dimensions of a space. With disaggregation kept, prefill and decode workers are sized and nothing else is offered in
their place; with pools kept they stay as they are."""


def kept_of(names: Iterable[str], hardware: Sequence[str], choices: Mapping[str, Sequence[Any]]) -> frozenset[str]:
    """Return the keys and options that some names stand for.

    Args:
        names: As they were asked for.
        hardware: GPUs that the user wants to be searched.
        choices: Dotted key -> values that the user wants to be searched.

    Raises:
        UsageError: A name is unknown, or what it keeps is to be searched, too.
    """
    found: set[str] = set()
    for name in names:
        if name not in KEEPABLE:
            remedy = "choose from " + ", ".join(KEEPABLE)
            raise UsageError("is nothing that can be kept", key="--keep", value=name, remedy=remedy)
        if name == GPUS and hardware:
            raise UsageError("does not go with --hardware", key="--keep", value=name, remedy="leave one of them away")
        for key in KEEPABLE[name]:
            if key in choices:
                raise UsageError(f"does not go with --over {key}", key="--keep", value=name, remedy="leave one away")
        found.update(KEEPABLE[name])
    return frozenset(found)
