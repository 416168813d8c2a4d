"""Read for which models releases of an engine have code of their own, and print the facts for its profile.

    python calibration/engine_models.py vllm ~/releases --source "model_executor/models/registry.py" --first 0.4

reads `~/releases/vllm-0.10.1` and its neighbours, unpacked wheels or source trees, and prints the block `models` of
`engine_profiles/vllm.yaml`. Post releases count as the release that they mend. Nothing of a release is imported or run.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.profiles.engine_options import version_key

_REGISTRIES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm/model_executor/models/registry.py", "vllm/model_executor/models/__init__.py"),
    "sglang": ("sglang/srt/models/**/*.py",),
    "lmdeploy": ("lmdeploy/turbomind/supported_models.py",),
}
"""Engine -> the files that register models, as they are called in its releases."""
_ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""How the classes of models that answer with text end."""
_HELPERS = ("Eagle", "MTP", "DFlash", "DSpark", "Medusa", "OCR", "ASR", "Speech", "Diffusion")
"""Parts of the names of classes that draft for another, or do not answer prompts of text."""
_REMOVED = "_PREVIOUSLY_SUPPORTED_MODELS"
"""vLLM's list of the classes that it no longer has."""
_WIDTH = 116


def registered(engine: str, folder: Path) -> tuple[set[str], set[str]]:
    """Return the classes that a release has code for, and those that it says it no longer has."""
    found, removed = set[str](), set[str]()
    for pattern in _REGISTRIES[engine]:
        for file in folder.glob(pattern):
            tree = ast.parse(file.read_text(encoding="utf-8-sig"))
            names, gone = _of_vllm(tree) if engine == "vllm" else (_READERS[engine](tree), set[str]())
            found |= names
            removed |= gone
    return {each for each in found if _answers(each)}, removed


def _answers(name: str) -> bool:
    return name.endswith(_ENDINGS) and not any(part in name for part in _HELPERS)


def _of_vllm(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the keys of its tables of (module, class), and those of its list of what was removed."""
    found, removed = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            pairs = list(zip(node.value.keys, node.value.values, strict=True))
            found |= {str(key.value) for key, value in pairs if isinstance(key, ast.Constant) and _is_place(value)}
            if any(isinstance(each, ast.Name) and each.id == _REMOVED for each in node.targets):
                removed |= {str(key.value) for key, _ in pairs if isinstance(key, ast.Constant)}
    return found, removed


def _is_place(value: ast.expr) -> bool:
    return isinstance(value, ast.Tuple) and len(value.elts) >= 2


def _of_sglang(tree: ast.Module) -> set[str]:
    """Return the classes that a module names in its ``EntryClass``."""
    entries = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == "EntryClass" for each in node.targets)
    )
    return {each.id for value in entries for each in ast.walk(value) if isinstance(each, ast.Name)}


def _of_lmdeploy(tree: ast.Module) -> set[str]:
    """Return the classes of its list of what TurboMind runs, without those that it says it does not."""
    lists = (
        node.value.keywords
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(isinstance(each, ast.Name) and each.id.endswith("SUPPORTED_ARCHS") for each in node.targets)
    )
    return {
        str(each.arg)
        for keywords in lists
        for each in keywords
        if not (isinstance(each.value, ast.Constant) and each.value.value is False)
    }


_READERS = {"sglang": _of_sglang, "lmdeploy": _of_lmdeploy}
"""Engine -> what reads a file of classes without a list of what was removed."""


def model_code(
    engine: str, folders: Mapping[str, Path], first: str, *, keeps_oldest: bool = False
) -> list[dict[str, Any]]:
    """Return the classes by the first version that has them, and the first without them again.

    What vanished without the release saying that it was removed is left out: its class has another name since.

    Args:
        engine: Its name.
        folders: Version -> unpacked release.
        first: Version from which the profile knows the engine; what came before is left out.
        keeps_oldest: Whether what the oldest release has is named too, with "0": since when is not known.
    """
    has: dict[str, set[str]] = {}
    removed = set[str]()
    for version in sorted(folders, key=version_key):
        names, removed = registered(engine, folders[version])
        has.setdefault(version.split(".post")[0], set()).update(names)
    versions = sorted(has, key=version_key)
    groups: dict[tuple[str, str | None], list[str]] = {}
    for name in sorted(set().union(*has.values())):
        where = [number for number, version in enumerate(versions) if name in has[versions[number]]]
        is_gone = where[-1] + 1 < len(versions)
        since = versions[where[0]]
        is_old = where[0] == 0 or version_key(since) <= version_key(first)
        if (is_gone and name not in removed) or (is_old and not is_gone and not keeps_oldest):
            continue
        until = versions[where[-1] + 1] if is_gone else None
        groups.setdefault(("0" if is_old else since, until), []).append(name)
    return [
        {"since": _short(since), "until": _short(until), "architectures": names}
        for (since, until), names in sorted(
            groups.items(), key=lambda each: (version_key(each[0][0]), each[0][1] or "")
        )
    ]


def _short(version: str | None) -> str | None:
    """Return a version as profiles write it: ``0.10.0`` is 0.10."""
    return None if version is None else version.removesuffix(".0")


def _lines(groups: Sequence[Mapping[str, Any]], source: str) -> Iterator[str]:
    for group in groups:
        yield f'  - since: "{group["since"]}"'
        if group["until"] is not None:
            yield f'    until: "{group["until"]}"'
        line = "    architectures: ["
        for number, name in enumerate(group["architectures"]):
            part = name + ("]" if number + 1 == len(group["architectures"]) else ",")
            if len(line) + len(part) > _WIDTH:
                yield line.rstrip()
                line = "      "
            line += part + " "
        yield line.rstrip()
        yield f"    source: {source}"


def main() -> None:
    """Print the block for the releases in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(_REGISTRIES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", required=True, help="what every group says of its source")
    parser.add_argument("--first", default="0", help="the oldest version that the profile knows")
    parser.add_argument("--oldest", action="store_true", help="name what the oldest release has too")
    given = parser.parse_args()
    folders = {each.name.removeprefix(f"{given.engine}-"): each for each in given.folder.glob(f"{given.engine}-*")}
    code = model_code(given.engine, folders, given.first, keeps_oldest=given.oldest)
    print("models:")
    print("\n".join(_lines(code, given.source)))


if __name__ == "__main__":
    main()
