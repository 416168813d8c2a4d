"""Read the command-line flags that a release of an engine knows from its own parser, and add them to the facts.

    python calibration/engine_flags.py vllm 0.21 ~/vllm-0.21.0 --source "vllm 0.21.0 on PyPI"

reads the unpacked wheel or source tree and rewrites `simserve/planner/export/engine_flags/ENGINE.yaml`. Nothing of the
release is imported or run: the parser's calls are read as text, with the type of the field where a flag is made from
one. What a value means is not read.
"""

from __future__ import annotations

import argparse
import ast
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from simserve.planner.export.flags import FlagFile, ReadVersion, load_flags
from simserve.profiles.engine_options import version_key

FOLDER = Path(__file__).resolve().parents[1] / "simserve" / "planner" / "export" / "engine_flags"
PARSERS: Mapping[str, tuple[str, ...]] = {
    "vllm": (
        "vllm/engine/arg_utils.py",
        "vllm/entrypoints/openai/cli_args.py",
        "vllm/entrypoints/common/cli_args.py",
        "vllm/entrypoints/cli/serve.py",
    ),
    "sglang": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields/*.py"),
    "tensorrt-llm": ("tensorrt_llm/commands/serve.py",),
}
"""Engine -> the files of its parser, as they are called in its releases."""
_TYPES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm/config.py", "vllm/config/*.py", "vllm/model_executor/layers/quantization/__init__.py"),
    "sglang": ("sglang/srt/arg_groups/*.py",),
    "tensorrt-llm": (),
}
"""Engine -> the files that hold the classes and lists which its parser uses."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("--kv-cache-dtype", "--quantization", "--block-size", "--scheduling-policy", "--dtype"),
    "sglang": (
        "--kv-cache-dtype",
        "--moe-runner-backend",
        "--quantization",
        "--schedule-policy",
        "--speculative-algorithm",
        "--dtype",
    ),
    "tensorrt-llm": ("--backend",),
}
"""Engine -> the flags whose accepted values are kept."""
SPECULATIVE_METHOD = "--speculative-config.method"
"""vLLM's drafters: a key of the JSON of `--speculative-config`, which its parser also takes by this dotted name."""
_SEQUENCES = frozenset({"list", "List", "tuple", "Tuple", "set", "Set", "Sequence"})


@dataclass(slots=True)
class Release:
    """What one release's parser knows.

    Attributes:
        takes: Flag -> what it takes, as `simserve.planner.export.flags.Takes`.
        choices: Flag -> the values it accepts, of those whose values are kept.
    """

    takes: dict[str, str] = field(default_factory=dict)
    choices: dict[str, tuple[str | int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Sources:
    """The classes, lists and aliases of a release, by name."""

    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)

    def add(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._keep(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self._keep(node.target.id, node.value)

    def _keep(self, name: str, value: ast.expr) -> None:
        """Keep the first meaning of a name that says something: `Methods = str` stands in for a type not imported."""
        if name not in self.values or isinstance(self.values[name], ast.Name):
            self.values[name] = value

    def derived(self, name: str) -> str:
        """Return the class that is made from another in the end: whose fields `cls` of its methods stands for."""
        heirs = [each for each, node in self.classes.items() if name in map(_tail, node.bases) and name]
        return self.derived(heirs[0]) if heirs else name

    def fields(self, name: str) -> dict[str, ast.AnnAssign]:
        """Return the annotated fields of a class, those of its bases first."""
        node = self.classes.get(name)
        if node is None:
            return {}
        found: dict[str, ast.AnnAssign] = {}
        for base in node.bases:
            found |= self.fields(_tail(base))
        own = (each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name))
        return found | {each.target.id: each for each in own if isinstance(each.target, ast.Name)}

    def constants(self, node: ast.expr | None) -> list[Any] | None:
        """Return the texts and numbers of a list that the source writes out; None: it is made otherwise."""
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            parts = [self.constants(each) for each in node.elts]
            return None if None in parts else [value for part in parts if part is not None for value in part]
        if isinstance(node, ast.Constant):
            return [] if node.value is None else [node.value]
        if isinstance(node, ast.Starred):
            return self.constants(node.value)
        if isinstance(node, ast.Dict):
            return self.constants(ast.List(elts=[key for key in node.keys if key is not None]))
        if isinstance(node, ast.Name) and node.id in self.values:
            return self.constants(self.values[node.id])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.constants(ast.List(elts=[node.left, node.right]))
        if isinstance(node, ast.Subscript) and _tail(node.value) == "Literal":
            return self.constants(node.slice)
        if isinstance(node, ast.Call) and _tail(node.func) in ("list", "get_args", "sorted", "tuple", "set", "cast"):
            return self.constants(node.args[-1])
        return None


def _tail(node: ast.expr) -> str:
    """Return the last name of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _members(sources: _Sources, node: ast.expr | None) -> Iterator[ast.expr]:
    """Yield the types of a union: `A | B`, `Optional[A]`, `Union[A, B]` and aliases of those."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _members(sources, node.left)
        yield from _members(sources, node.right)
    elif isinstance(node, ast.Subscript) and _tail(node.value) in ("Optional", "Union", "SkipValidation", "InitVar"):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            yield from _members(sources, part)
    elif isinstance(node, ast.Subscript) and _tail(node.value) in ("Annotated", "A"):
        yield from _members(sources, node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice)
    elif isinstance(node, ast.Name) and isinstance(sources.values.get(node.id), ast.Subscript | ast.BinOp):
        yield from _members(sources, sources.values[node.id])
    elif node is not None:
        yield node


def _field_keywords(sources: _Sources, annotation: ast.expr) -> dict[str, Any]:
    """Return what vLLM hands to its parser for a field of that type (`get_kwargs` of arg_utils.py)."""
    members = list(_members(sources, annotation))
    names = {_tail(each.value) if isinstance(each, ast.Subscript) else _tail(each) for each in members} - {""}
    literals = [sources.constants(each) for each in members if _is_literal(each)]
    if names == {"bool", "str"}:
        return {"nargs": "?"}
    if "bool" in names:
        return {"action": "BooleanOptionalAction"}
    if literals:
        values = [value for literal in literals for value in literal or []]
        return {"choices": values} if "list" not in names else {"nargs": "+", "choices": values}
    return {"nargs": "+"} if names & _SEQUENCES else {}


def _is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and _tail(node.value) == "Literal"


class _Reader(ast.NodeVisitor):
    """Walks the functions that fill a parser, in their order."""

    def __init__(self, sources: _Sources) -> None:
        self.sources = sources
        self.flags: dict[str, dict[str, Any]] = {}
        self._fields: dict[str, dict[str, dict[str, Any]]] = {}
        self._class = ""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Remember which class's fields `cls` stands for."""
        outer, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        """Follow `kwargs = get_kwargs(Config)` and `kwargs["field"]["nargs"] = ...`."""
        target, value = node.targets[0], node.value
        is_made = isinstance(value, ast.Call) and _tail(value.func) == "get_kwargs"
        if is_made and isinstance(target, ast.Name) and target.id not in self._fields:
            name = _tail(value.args[0])
            fields = self.sources.fields(self.sources.derived(self._class) if name == "cls" else name)
            self._fields[target.id] = {
                key: _field_keywords(self.sources, each.annotation) for key, each in fields.items()
            }
        keywords, key = self._setting(target)
        if keywords is not None:
            keywords[key] = self._constant(key, value)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        """Follow `del kwargs["field"]["nargs"]`."""
        for target in node.targets:
            keywords, key = self._setting(target)
            if keywords is not None:
                keywords.pop(key, None)

    def visit_For(self, node: ast.For) -> None:
        """Follow the loop that registers every field of a class."""
        source = node.iter.func.value if isinstance(node.iter, ast.Call) and _tail(node.iter.func) == "items" else None
        fields = self._fields.get(_tail(source)) if source is not None else None
        calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
        if fields is not None and any(_tail(call.func) == "add_argument" for call in calls):
            for name, keywords in fields.items():
                self._add(["--" + name.replace("_", "-")], keywords)
            return
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Follow `add_argument` with names written out, and `kwargs["field"].pop("nargs")`."""
        if _tail(node.func) == "add_argument":
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
            self._add([name for name in names if str(name).startswith("-")], self._keywords(node))
        elif _tail(node.func) == "add_cli_args_from_dataclass":
            self._add_annotated(_tail(node.args[1]))
        elif _tail(node.func) == "pop" and isinstance(node.func, ast.Attribute) and node.args:
            keywords, key = self._setting(ast.Subscript(value=node.func.value, slice=node.args[0]))
            if keywords is not None:
                keywords.pop(key, None)
        self.generic_visit(node)

    def _setting(self, target: ast.expr) -> tuple[dict[str, Any] | None, str]:
        """Return the keywords that `kwargs["field"]["key"]` belongs to, and the key."""
        if not (isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)):
            return None, ""
        inner = target.value
        if not (isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant)):
            return None, ""
        fields = self._fields.get(_tail(inner.value), {})
        return fields.get(str(inner.slice.value)), str(target.slice.value)

    def _keywords(self, node: ast.Call) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                found[keyword.arg] = self._constant(keyword.arg, keyword.value)
            else:
                merged = keyword.value.values if isinstance(keyword.value, ast.Dict) else [keyword.value]
                for part in merged:
                    if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant):
                        found |= self._fields.get(_tail(part.value), {}).get(str(part.slice.value), {})
        return found

    def _constant(self, key: str, value: ast.expr) -> Any:
        if key == "choices":
            return self.sources.constants(value)
        return value.value if isinstance(value, ast.Constant) else _tail(value)

    def _add_annotated(self, name: str) -> None:
        """Add what SGLang makes from fields annotated with their help or with `Arg(...)`."""
        fields = dict(self.sources.fields(name))
        if not any(_annotation(each) for each in fields.values()):  # assembled from the classes of its namespaces
            for each, node in self.sources.classes.items():
                if any(isinstance(part, ast.Assign) and _tail(part.targets[0]) == "_NS_PATH" for part in node.body):
                    fields |= self.sources.fields(each)
        for key, each in fields.items():
            annotation = _annotation(each)
            if annotation is None:
                continue
            kind, words = annotation
            settings = {word.arg: self._constant(str(word.arg), word.value) for word in words}
            if settings.get("no_cli"):
                continue
            aliases = next((self.sources.constants(word.value) for word in words if word.arg == "aliases"), None)
            names = [settings.get("cli_name") or "--" + key.replace("_", "-"), *(aliases or [])]
            self._add(names, _annotated_keywords(self.sources, kind, settings))

    def _add(self, names: Iterable[str], keywords: Mapping[str, Any]) -> None:
        for name in names:
            self.flags[name] = dict(keywords)


def _annotation(node: ast.AnnAssign) -> tuple[ast.expr, list[ast.keyword]] | None:
    """Return the type of `x: A[type, "help"]` or `A[type, Arg(...)]` with the keywords; None: no flag."""
    mark = node.annotation
    if not (isinstance(mark, ast.Subscript) and _tail(mark.value) in ("A", "Annotated")):
        return None
    parts = mark.slice.elts if isinstance(mark.slice, ast.Tuple) else [mark.slice]
    for part in parts[1:]:
        if isinstance(part, ast.Call) and _tail(part.func) == "Arg":
            return parts[0], part.keywords
        if isinstance(part, ast.Constant | ast.JoinedStr | ast.BinOp):
            return parts[0], []
    return None


def _annotated_keywords(sources: _Sources, kind: ast.expr, settings: Mapping[str | None, Any]) -> dict[str, Any]:
    """Return what SGLang hands to its parser for an annotated field (`add_cli_args_from_dataclass`)."""
    given = {str(key): value for key, value in settings.items() if key in ("action", "nargs", "choices")}
    if given.get("action"):
        return given
    members = list(_members(sources, kind))
    literals = [sources.constants(each) for each in members if _is_literal(each)]
    if literals:
        return {"choices": given.get("choices") or literals[0]}
    names = {_tail(each.value) if isinstance(each, ast.Subscript) else _tail(each) for each in members}
    if names & {"list", "List"} and "type_parser" not in settings:
        return {"nargs": "+", **given}
    return {"action": "store_true"} if "bool" in names else given


def _takes(sources: _Sources, keywords: Mapping[str, Any]) -> str | None:
    """Return what a flag takes by the keywords of its registration; None: its only effect is an error."""
    action, nargs = str(keywords.get("action") or ""), keywords.get("nargs", "absent")
    custom = sources.classes.get(action)
    if custom is not None and _is_refusal(custom):
        return None
    if action == "BooleanOptionalAction":
        return "toggle"
    if action == "StoreBoolean":
        return "boolean"
    if action in ("store_true", "store_false", "store_const", "count", "version", "help"):
        return "switch"
    if nargs == "absent" and custom is not None:
        nargs = _own_nargs(custom)
    if nargs == 0:
        return "switch"
    if nargs == "?":
        return "optional"
    return "values" if nargs in ("+", "*") or isinstance(nargs, int) else "value"


def _is_refusal(action: ast.ClassDef) -> bool:
    """Return whether an action does nothing but raise."""
    call = next((each for each in action.body if isinstance(each, ast.FunctionDef) and each.name == "__call__"), None)
    return call is not None and isinstance(call.body[0], ast.Raise)


def _own_nargs(action: ast.ClassDef) -> Any:
    """Return the default of ``nargs`` in an action's constructor."""
    for each in action.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            named = each.args.args[len(each.args.args) - len(each.args.defaults) :]
            found = dict(zip([arg.arg for arg in named], each.args.defaults, strict=True)).get("nargs")
            return found.value if isinstance(found, ast.Constant) else "absent"
    return "absent"


def _read_options(tree: ast.Module, function: str) -> dict[str, dict[str, Any]]:
    """Return the options of a function decorated by click, in the words of `argparse`."""
    flags: dict[str, dict[str, Any]] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.FunctionDef) and node.name == function):
            continue
        for call in (each for each in node.decorator_list if isinstance(each, ast.Call)):
            if not _tail(call.func).endswith("option"):
                continue
            words = {word.arg: word.value for word in call.keywords}
            is_flag = isinstance(words.get("is_flag"), ast.Constant)
            is_multiple = isinstance(words.get("multiple"), ast.Constant)
            keywords: dict[str, Any] = {"action": "store_true"} if is_flag else {"nargs": "+"} if is_multiple else {}
            choice = words.get("type")
            if isinstance(choice, ast.Call) and _tail(choice.func) in ("Choice", "ChoiceWithAlias"):
                keywords["choices"] = _Sources().constants(choice.args[0])
            for arg in call.args:
                if isinstance(arg, ast.Constant) and str(arg.value).startswith("-"):
                    flags[str(arg.value)] = keywords
    return flags


def read_release(engine: str, root: Path) -> Release:
    """Return the flags of a release.

    Args:
        engine: ``vllm``, ``sglang`` or ``tensorrt-llm``.
        root: Unpacked wheel or source tree: the folder that holds the package.

    Raises:
        FileNotFoundError: None of the files of the parser is there.
    """
    files = [file for pattern in PARSERS[engine] for file in sorted(root.glob(pattern))]
    if not files:
        raise FileNotFoundError(f"{root} holds none of {', '.join(PARSERS[engine])}")
    sources = _Sources()
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    others = [file for pattern in _TYPES[engine] for file in sorted(root.glob(pattern))]
    for tree in [*trees, *(ast.parse(file.read_text(encoding="utf-8")) for file in others)]:
        sources.add(tree)
    if engine == "tensorrt-llm":
        flags = _read_options(trees[0], "serve")
    else:
        reader = _Reader(sources)
        for _ in range(2):  # a method that changes keywords may stand above the one that makes them
            for tree in trees:
                reader.visit(tree)
        flags = reader.flags
    return _release(engine, sources, flags)


def _release(engine: str, sources: _Sources, flags: Mapping[str, Mapping[str, Any]]) -> Release:
    found = Release()
    for name, keywords in flags.items():
        takes = _takes(sources, keywords)
        if takes is None or name in ("-h", "--help"):
            continue
        found.takes[name] = takes
        values = keywords.get("choices")
        if values and name in CHOICES[engine]:
            found.choices[name] = tuple(dict.fromkeys(values))
    if engine == "vllm" and "--speculative-config" in found.takes:
        methods = sources.constants(sources.values.get("SpeculativeMethod"))
        if methods:
            found.choices[SPECULATIVE_METHOD] = tuple(dict.fromkeys(methods))
    return found


def expanded(listed: FlagFile) -> dict[str, Release]:
    """Return the facts version by version."""
    found: dict[str, Release] = {}
    for read in listed.versions:
        key = version_key(read.version)

        def holds(since: str, until: str | None, key: tuple[int, ...] = key) -> bool:
            return version_key(since) <= key and (until is None or key < version_key(until))

        found[read.version] = Release(
            {name: group.takes for group in listed.flags if holds(group.since, group.until) for name in group.names},
            {
                flag: each.values
                for flag, ranges in listed.choices.items()
                for each in ranges
                if holds(each.since, each.until)
            },
        )
    return found


def _ranges(values: Mapping[str, Any]) -> list[tuple[str, str | None, Any]]:
    """Return the runs of equal values over the versions, oldest first: since, until, value; None: absent."""
    found: list[tuple[str, str | None, Any]] = []
    start, current = "", None
    for version, value in values.items():
        if value != current:
            if current is not None:
                found.append((start, version, current))
            start, current = version, value
    return [*found, (start, None, current)] if current is not None else found


def written(engine: str, header: str, read: Iterable[ReadVersion], releases: Mapping[str, Release]) -> str:
    """Return the facts as the YAML text of their file."""
    lines = [header.rstrip(), f"engine: {engine}", "versions:"]
    lines += [f'  - {{version: "{each.version}", source: "{each.source}"}}' for each in read]
    groups: dict[tuple[int, int, str, str, str | None], list[str]] = {}
    order = [*releases, None]
    for name in sorted({name for release in releases.values() for name in release.takes}):
        for since, until, takes in _ranges({key: each.takes.get(name) for key, each in releases.items()}):
            rank = (order.index(since), order.index(until), takes, since, until)
            groups.setdefault(rank, []).append(f'"{name}"')
    lines.append("flags:")
    for (_, _, takes, since, until), names in sorted(groups.items(), key=lambda item: item[0][:3]):
        end = f', until: "{until}"' if until else ""
        lines += _wrapped(f'  - {{takes: {takes}, since: "{since}"{end}, names: [' + ", ".join(names) + "]}", 5)
    lines.append("choices:")
    for flag in dict.fromkeys(flag for release in releases.values() for flag in release.choices):
        lines.append(f'  "{flag}":')
        for since, until, values in _ranges({key: each.choices.get(flag) for key, each in releases.items()}):
            end = f', until: "{until}"' if until else ""
            texts = ", ".join(str(yaml.safe_dump(value, default_flow_style=True)).split("\n")[0] for value in values)
            lines += _wrapped(f'    - {{since: "{since}"{end}, values: [{texts}]}}', 7)
    return "\n".join(lines) + "\n"


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(
        line, 118, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False, drop_whitespace=True
    )


def main() -> None:
    """Add a release to the facts of its engine, or replace it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("engine", choices=sorted(PARSERS))
    parser.add_argument("version", help="as the scenario names it: 0.21")
    parser.add_argument("root", type=Path, help="unpacked wheel or source tree")
    parser.add_argument("--source", required=True, help='where it is from: "vllm 0.21.0 on PyPI"')
    asked = parser.parse_args()
    listed = load_flags(asked.engine)
    releases = expanded(listed) | {asked.version: read_release(asked.engine, asked.root)}
    files = [pattern for pattern in PARSERS[asked.engine] if list(asked.root.glob(pattern))]
    read = {each.version: each for each in listed.versions}
    read[asked.version] = ReadVersion(version=asked.version, source=f"{asked.source}: {', '.join(files)}")
    order = sorted(read, key=version_key)
    path = FOLDER / f"{asked.engine}.yaml"
    header = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    text = written(asked.engine, header, [read[key] for key in order], {key: releases[key] for key in order})
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
