"""Write the tables of the page of models: ``python docs/write_models.py``; what stands above them is kept.

The catalogue is that of the checkout. The configurations are ``config.json`` files of public checkpoints, in
``../shared/data/model_configs``; without them their table stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile

PAGE = Path(__file__).parent / "models.md"
CONFIGS = Path(__file__).resolve().parents[2] / "shared/data/model_configs"

CATALOGUE = "## Catalogue"
CONFIGURATIONS = "## Configurations that were read"

PUBLISHED = {
    "Nemotron-H-56B-Base-8K": 56e9,
    "MiMo-7B-Base": 7.62e9,
    "Step-3.7-Flash": 196e9,
    "Step-3.7-Flash-FP8": 196e9,
}
"""Text parameters of configurations whose language model the catalogue does not have, as their publishers state them:
sizes in names and model cards; MiMo-7B's checkpoint of 7.83 B without its layer for multi-token prediction (0.21 B)."""


def catalogue_lines() -> list[str]:
    """Return the table of the catalogue."""
    rows = [_row(name, load_model(name), load_model(name).num_parameters_advertised) for name in catalog.names("model")]
    return [CATALOGUE, "", *_table(("model", *_COLUMNS), rows)]


def configuration_lines(folder: Path) -> list[str]:
    """Return the table of the configurations in a folder, and those that were refused."""
    known = {load_model(name).num_parameters: load_model(name) for name in catalog.names("model")}
    rows, refused = [], []
    for path in sorted(folder.glob("*_config.json")):
        if path.name.endswith("hf_quant_config.json"):
            continue
        repository = path.name.removesuffix("_config.json").replace("--", "/")
        try:
            model = load_model(str(path))
        except ProfileError as error:
            refused.append((repository, f"`{error.key}`: {error.rule}"))
            continue
        rows.append(_row(repository, model, published(model, known)))
    lines = [
        CONFIGURATIONS,
        "",
        f"{len(rows)} `config.json` files of public checkpoints, read as they are; {len(refused) or 'none'} refused.",
        "",
        *_table(("checkpoint", *_COLUMNS), rows),
    ]
    return [*lines, "", *_table(("refused", "why"), refused)] if refused else lines


def published(model: ModelProfile, known: dict[float, ModelProfile]) -> float | None:
    """Return the published size of a configuration's language model: its own, or of the catalogue model that it is."""
    own = PUBLISHED.get(model.name)
    same = known.get(model.num_parameters)
    return own if own is not None or same is None else same.num_parameters_advertised


_COLUMNS = (
    "parameters",
    "published",
    "active",
    "layers with a cache or state",
    "KV bytes a token",
    "state a sequence",
    "stored",
    "context",
)


def _row(name: str, model: ModelProfile, size: float | None) -> tuple[str, ...]:
    return (
        name,
        _billions(model.num_parameters),
        "" if size is None else _billions(size),
        _billions(model.num_active_parameters),
        _layers(model),
        f"{model.kv_bytes_per_token(2):,.0f}",
        f"{model.state_bytes() / 1e6:,.1f} MB" if model.has_states else "",
        _stored(model),
        f"{model.max_position_embeddings:,}",
    )


def _layers(model: ModelProfile) -> str:
    """Return the layers of each kind: ``'9 full, 39 sliding (128)'``."""
    told = []
    for layers in model.attention_layers:
        whole = layers.num_layers - layers.num_sliding_layers
        if whole:
            indexed = " with an indexer" if layers.indexer is not None and layers.mla is not None else ""
            told.append(f"{whole} {layers.name}{indexed}")
        if layers.num_sliding_layers:
            told.append(f"{layers.num_sliding_layers} sliding ({layers.sliding_window:,})")
    if model.num_linear_layers:
        kind = "Mamba-2" if model.mamba is not None else "Mamba" if model.mamba1 is not None else "linear"
        told.append(f"{model.num_linear_layers} {kind}")
    return ", ".join(told)


def _stored(model: ModelProfile) -> str:
    """Return the format of the checkpoint, and the parts in another one: ``'mxfp4 (fp8: attention ...)'``."""
    named = {"none": model.dtype}
    others: dict[str, list[str]] = {}
    for each in model.stored.other_formats:
        others.setdefault(named.get(each.format, each.format), []).extend(part.replace("_", " ") for part in each.parts)
    told = [f"{kind}: {', '.join(dict.fromkeys(parts))}" for kind, parts in others.items()]
    return named.get(model.stored.format, model.stored.format) + (f" ({'; '.join(told)})" if told else "")


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.4g} B"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def page(folder: Path = CONFIGS) -> str:
    """Return the page; the table of configurations is the written one where there is no such folder."""
    lines = PAGE.read_text().splitlines()
    introduction, last = lines[: lines.index(CATALOGUE)], lines[lines.index(CONFIGURATIONS) :]
    read = configuration_lines(folder) if folder.is_dir() else last
    return "\n".join([*introduction, *catalogue_lines(), "", *read]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
