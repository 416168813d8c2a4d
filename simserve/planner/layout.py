"""The flags of one line, and how they lay a model out on the GPUs of ``--gpus``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simserve.errors import UsageError
from simserve.profiles.hardware import counted_gpu
from simserve.scenario.load import Override, parse_override
from simserve.workload.arrival_spec import ClosedLoopArrivals

if TYPE_CHECKING:
    from simserve.scenario.deployment_spec import DeploymentSpec
    from simserve.scenario.schema import Scenario

LAYER_ENGINES = ("llama", "ollama")  # Beginnings of the names of engines that give each GPU its own layers.
_SPLIT = re.compile(r"(?:-sm|--split-mode)[= ](?:row|tensor)\b")  # Every layer is divided among the GPUs.
_SERVER_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "replicas")
"""What a command line says about its server's GPUs; replicas: data parallelism of a model without experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLine:
    """The flags of one line; None: not given. The names are those of the flags."""

    like: str | None = None  # A command line that starts a server, as pasted.
    gpus: str | None = None  # ``2xH100``: how many of which.
    tp: int | None = None  # GPUs that share every layer.
    pp: int | None = None  # Groups of GPUs that hold consecutive layers.
    replicas: int | None = None  # Copies of the model.
    routing: str | None = None  # Which replica takes a request: ``round_robin``.
    engine: str | None = None  # ``vllm==0.20``, or a name alone.
    quantization: str | None = None  # Format of the weights.
    rate: float | None = None  # Requests a second, Poisson; infinite: all at once.
    concurrency: int | None = None  # Clients of a closed loop.
    trace: str | None = None  # A file of recorded traffic.
    columns: str | None = None  # ``arrival_time=timestamp,...``: which column of the trace holds what.
    prompt_tokens: str | None = None  # Length of every prompt.
    output_tokens: str | None = None  # Length of every answer.
    num_requests: int | None = None  # Requests of a run.
    slo: str | None = None  # ``ttft=1.5s,tpot=50ms,attainment=0.95``, or a use case.

    @property
    def given(self) -> dict[str, Any]:
        """The flags that were given, by their names on the command line."""
        values = {f"--{name.replace('_', '-')}": getattr(self, name) for name in self.__slots__}
        return {flag: value for flag, value in values.items() if value is not None}


def laid_out(flags: OneLine, deployment: Mapping[str, Any], gpu: str | None, count: int | None) -> list[Override]:
    """Return the GPU and the layout on all of them: with ``--tp`` the rest are replicas, else tensor parallelism.

    For llama.cpp and Ollama the rest are groups of layers, as both split a model by layers unless told to split tensors
    (llama.cpp's tools/server/README.md, ``--split-mode`` layer).

    Args:
        deployment: The scenario's own keys, and what ``--set`` says about data parallelism.
        gpu: The GPU; None: not given.
        count: How many of it; None: not given.

    Raises:
        UsageError: The sizes do not make that number, or the scenario has pools.
    """
    sizes = {
        "tensor_parallel_size": (flags.tp, "--tp"),
        "pipeline_parallel_size": (flags.pp, "--pp"),
        "replicas": (flags.replicas, "--replicas"),
    }
    given = {key: size for key, (size, _) in sizes.items() if size is not None}
    if deployment.get("pools") and (gpu is not None or given):
        flag = "--gpus" if gpu is not None else next(label for size, label in sizes.values() if size is not None)
        remedy = "change a pool with --set deployment.pools.0.KEY=VALUE"
        raise UsageError("cannot say which of the scenario's pools it means", key=flag, remedy=remedy)
    found = [] if gpu is None else [Override("deployment.hardware", gpu, "--gpus")]
    found += [Override(f"deployment.{key}", size, sizes[key][1]) for key, size in given.items()]
    if count is None:
        return found
    if flags.like is not None and any(key in deployment for key in _SERVER_SIZES):
        return [*found, *_servers(flags, given, deployment, count)]
    others = {"data_parallel_size": 1, "pipeline_parallel_size": 1, "replicas": 1}
    parts = {key: given.get(key, deployment.get(key, least)) for key, least in others.items()}
    if not all(isinstance(part, int) and part > 0 for part in parts.values()):
        return found  # the scenario is invalid, and its own check says how
    if _cuts_layers(flags, deployment):
        stages, rest = divmod(count, parts["data_parallel_size"] * parts["replicas"])
        if not rest:
            return [*found, Override("deployment.pipeline_parallel_size", stages, "--gpus")]
    layers = parts["data_parallel_size"] * parts["pipeline_parallel_size"]
    if "tensor_parallel_size" in given and "replicas" not in given:  # the rest of the GPUs are more replicas
        parts["replicas"] = max(count // (layers * given["tensor_parallel_size"]), 1)
        found += [Override("deployment.replicas", parts["replicas"], "--gpus")]
    product = layers * parts["replicas"]
    tensor, rest = divmod(count, product)
    if rest or given.get("tensor_parallel_size", tensor) != tensor:
        rule = f"are {count} GPUs, which {_product({**parts, **given})} does not make"
        remedy = "the number of GPUs is that of all replicas together; leave out --tp, or change the number"
        raise UsageError(rule, key="--gpus", value=flags.gpus, remedy=remedy)
    return [*found, Override("deployment.tensor_parallel_size", tensor, "--gpus")]


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{key} {size}" for key, size in sizes.items() if size > 1) or "one GPU"


def _cuts_layers(flags: OneLine, deployment: Mapping[str, Any]) -> bool:
    """Return whether the engine gives each GPU its own layers, and nothing says how many GPUs share one."""
    engine = deployment.get("engine")
    named = flags.engine or (engine.get("name") if isinstance(engine, Mapping) else None) or ""
    is_said = flags.tp or flags.pp or {"tensor_parallel_size", "pipeline_parallel_size"} & deployment.keys()
    is_split = flags.like is not None and _SPLIT.search(flags.like) is not None
    return re.sub(r"[^a-z]", "", named.casefold()).startswith(LAYER_ENGINES) and not (is_said or is_split)


def _servers(flags: OneLine, given: Mapping[str, int], deployment: Mapping[str, Any], count: int) -> list[Override]:
    """Return how many servers, each laid out as in a pasted line, make up ``count`` GPUs."""
    sizes = {key: given.get(key, deployment.get(key, 1)) for key in _SERVER_SIZES if key != "replicas"}
    replica = math.prod(sizes.values())
    one = replica * deployment.get("replicas", 1)
    if count == replica * given.get("replicas", 0):
        return []
    if "replicas" not in given and count % one == 0:
        return [Override("deployment.replicas", count // replica, "--gpus")]
    whole = {**sizes, "replicas": given.get("replicas", deployment.get("replicas", 1))}
    needed = replica * whole["replicas"]
    multiple = "" if "replicas" in given else " or a multiple of it for more replicas, "
    rule = f"says {count}, and the server of the command line ({_product(whole)}) takes {needed}"
    remedy = f"write {needed}x{counted_gpu(flags.gpus or '')[1]},{multiple or ' '}or change the line"
    raise UsageError(rule, key="--gpus", value=flags.gpus, remedy=remedy)


def set_groups(changes: Sequence[str]) -> dict[str, Any]:
    """Return what ``--set`` says about data parallelism and the engine; it divides ``--gpus`` as a file's keys do."""
    found = dict(map(parse_override, changes))
    groups, engine = found.get("deployment.data_parallel_size"), found.get("deployment.engine.name")
    return {
        **({} if groups is None else {"data_parallel_size": groups}),
        **({} if engine is None else {"engine": {"name": str(engine)}}),
    }


def count_notes(deployment: DeploymentSpec, count: int) -> Iterator[str]:
    """Yield a note if a deployment has another number of GPUs than ``--gpus`` because its keys were changed."""
    num_gpus = deployment.gpus_per_replica * deployment.replicas
    if not deployment.pools and num_gpus != count:
        yield f"--gpus says {count:,}, and what --set changes makes it {num_gpus:,}."


def client_notes(scenario: Scenario) -> Iterator[str]:
    """Yield what the clients of ``--concurrency`` do that people do not: begin together, and ask without a pause."""
    clients = scenario.workload.arrivals
    if not isinstance(clients, ClosedLoopArrivals) or clients.concurrency == 1 or clients.ramp_up is not None:
        return
    begin = f"{clients.concurrency:,} clients all begin at the same time"
    if clients.think_time:
        yield f"{begin}, as in a benchmark; for people: --set workload.arrivals.ramp_up={clients.think_time:g}s."
    else:
        people = f"{{process: users, users: {clients.concurrency}, think_time: 30 s}}"
        yield (
            f"{begin} and ask again as soon as they are answered, as in a benchmark; for people who pause, in place of "
            f"--concurrency: --set 'workload.arrivals={people}'."
        )
