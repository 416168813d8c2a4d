"""What the page can choose from, and the defaults and bounds of its controls: read from the queries themselves."""

from __future__ import annotations

from functools import cache
from typing import Any

from simserve.explore import queries, tour
from simserve.profiles import catalog
from simserve.profiles.hardware import load_hardware
from simserve.profiles.model import load_model
from simserve.units import format_bytes
from simserve.validation import FrozenModel
from simserve.version import __version__

_ASKED: dict[str, type[FrozenModel]] = {
    "tour": queries.TourQuery,
    "simulator": queries.SimulatorQuery,
    "film": queries.FilmQuery,
    "memory": queries.MemoryQuery,
    "batching": queries.BatchingQuery,
    "paging": queries.PagingQuery,
    "cost": queries.CostQuery,
    "speculation": queries.SpeculationQuery,
    "parallel": queries.ParallelQuery,
    "wizard": queries.WizardQuery,
    "twin": queries.TwinQuery,
}


@cache
def catalogue() -> dict[str, Any]:
    """Return models, GPUs, frameworks and APIs with a word about each, the tour's stops and each query's fields."""
    return {
        "version": __version__,
        "models": [{"name": name, "about": _model(name)} for name in catalog.names("model")],
        "hardware": [{"name": name, "about": _hardware(name)} for name in catalog.names("hardware")],
        "apis": catalog.names("api"),
        "frameworks": catalog.names("engine"),
        "stops": tour.described(),
        "fields": {name: _fields(query) for name, query in _ASKED.items()},
    }


def _model(name: str) -> str:
    return f"{load_model(name).num_parameters / 1e9:.3g} B"


def _hardware(name: str) -> str:
    memory = load_hardware(name).memory
    return f"{format_bytes(memory.total)}, {memory.bandwidth / 1e12:.3g} TB/s"


def _fields(query: type[FrozenModel]) -> dict[str, Any]:
    """Return default, description, bounds and choices of each field."""
    schema = query.model_json_schema()
    return {
        name: {
            "default": field.get("default"),
            "about": field.get("description", ""),
            **({"choices": field["enum"]} if "enum" in field else {}),
            **{
                key: field[bound]
                for key, bound in (
                    ("min", "minimum"),
                    ("max", "maximum"),
                    ("above", "exclusiveMinimum"),
                    ("below", "exclusiveMaximum"),
                )
                if bound in field
            },
        }
        for name, field in schema["properties"].items()
    }
