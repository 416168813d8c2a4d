"""Names under which clouds rent GPUs (``p5.48xlarge``): which GPU, how many, whose. Knows no price."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simserve.documents import read_mapping

_PREFIXES = ("standard-", "ml.")  # Azure's of every size, and Amazon SageMaker's.
_SHOWN = 3  # Most names that a remedy lists.


@dataclass(frozen=True, slots=True)
class CloudInstance:
    """What a cloud rents under one name."""

    name: str  # In small letters, with ``-`` for ``_``.
    provider: str  # As prices of hardware profiles name it.
    gpu: str  # Catalogue name.
    num_gpus: int


def instance_of(name: str) -> CloudInstance | None:
    """Return the instance of a name, in any case; None: no cloud rents GPUs under it, as far as is known here."""
    return _instances().get(_plain(name))


def instances_like(name: str) -> list[str]:
    """Return the first instances of a family (``p5``); empty if it is none."""
    family = _plain(name)
    return [each for each in _instances() if family and each.startswith((f"{family}.", f"{family}-"))][:_SHOWN]


def _plain(name: str) -> str:
    plain = name.strip().casefold().replace("_", "-").replace(" ", "-")
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    return plain


@cache
def _instances() -> dict[str, CloudInstance]:
    document = read_mapping(Path(__file__).with_name("cloud_instances.yaml"))
    return {
        name: CloudInstance(name, provider, gpu, count)
        for provider, gpus in document.items()
        for gpu, names in gpus.items()
        for name, count in names.items()
    }
