"""Turns a pasted command line of any engine, or a container's description, into a scenario.

Recognizes the engine by what starts it; each engine's own module knows what its flags mean.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simserve.documents import parse_yaml
from simserve.errors import InputError, ScenarioError, UsageError
from simserve.perf.memory import is_context_cut
from simserve.planner.importers.draft import Draft
from simserve.planner.importers.llama_cpp_command import LLAMA_CPP
from simserve.planner.importers.lmdeploy_command import LMDEPLOY
from simserve.planner.importers.ollama_command import OLLAMA
from simserve.planner.importers.server import import_line
from simserve.planner.importers.sglang_command import SGLANG
from simserve.planner.importers.tgi_command import TGI
from simserve.planner.importers.trtllm_command import TRTLLM
from simserve.planner.importers.vllm_command import VLLM
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario

PROGRAMS = {each.engine: each for each in (TRTLLM, SGLANG, TGI, LMDEPLOY, LLAMA_CPP, OLLAMA, VLLM)}
"""Engine -> its server. The first one whose sign occurs in a line reads it."""
_BARE = (
    ("--model-path", "python -m sglang.launch_server", "SGLang"),
    ("--model-id", "text-generation-launcher", "TGI"),
    ("--model", "vllm serve", "vLLM"),
)
"""Flag that names the model, and the program to assume for a line that holds only arguments."""
_FITS_CONTEXT = re.compile(r"--max[-_]model[-_]len[\s=]+['\"]?(?:-1|auto)\b")
"""Settings that let vLLM choose the longest context that fits."""
_LISTED = re.compile(r"\s*(?:-\s+|\[|-?\s*(?:image|command|args|name|containers|kind|apiVersion|spec)\s*:)")
"""Beginning of a container's description."""
_MANIFESTS = (".yaml", ".yml", ".json", ".sh")  # Endings of files that describe or start servers.
_ENGINES = "vLLM, SGLang, TensorRT-LLM, TGI, LMDeploy, llama.cpp and Ollama"


def import_command(
    text: str, *, hardware: str | None = None, version: str | None = None, model: str | None = None, flag: str = ""
) -> Draft:
    """Return the scenario that a command line describes.

    Args:
        text: The line that starts a server of vLLM, SGLang, TensorRT-LLM, TGI, LMDeploy, llama.cpp or Ollama, a
            ``docker run`` or ``kubectl run`` of it, or the ``command:`` and ``args:`` of a container.
        hardware: GPU it runs on; None: an assumed GPU, with a note.
        version: The engine's version; None: the image's tag, else the newest known.
        model: Profile or configuration to use instead of the one closest to the line's model.
        flag: Flag that holds the line, for errors.

    Raises:
        UsageError: It starts no engine that is known here.
        ScenarioError: A flag is invalid, or its model has no profile.
    """
    line, note = _with_program(_of_container(text, flag))
    program = next((each for each in PROGRAMS.values() if each.table.sign.search(line)), None)
    if program is None:
        rule = f"starts no server whose lines are read ({_ENGINES})"
        remedy = "name the model instead: MODEL --gpus N --engine NAME (simserve engines lists them)"
        if text.strip().endswith(_MANIFESTS):
            remedy = f"a file is read by simserve import manifest {text.strip()} --out mine.yaml"
        raise UsageError(rule, key=flag or None, value=text, remedy=remedy)
    draft = import_line(program, line, hardware=hardware, version=version, model=model)
    return draft if note is None else replace(draft, notes=(note, *draft.notes))


def refused_note(text: str, scenario: Scenario) -> str | None:
    """Return a note that vLLM refuses a line because its KV cache cannot hold one context; None: it starts."""
    try:
        engine = resolve(scenario).shape.engine
    except InputError:  # reported as an error elsewhere
        return None
    if engine.name != "vllm" or not is_context_cut(engine) or _FITS_CONTEXT.search(text):
        return None
    return (
        f"vLLM refuses to start with this line: the KV cache has room for {engine.max_model_len:,} tokens of one "
        f"request; add --max-model-len {engine.max_model_len}, which is what is simulated."
    )


def _with_program(line: str) -> tuple[str, str | None]:
    """Return the line with its program in front, and a note if the program was inferred from the arguments."""
    if not line.lstrip().startswith("-"):
        return line, None
    found = next((each for each in _BARE if re.search(rf"{each[0]}(?=[\s=])", line)), None)
    if found is None:
        return line, None
    return f"{found[1]} {line}", f"No program is named: these are read as arguments of {found[2]}."


def _of_container(text: str, flag: str) -> str:
    """Return the line made from a container's ``image``, ``command`` and ``args``; any other text unchanged."""
    if _LISTED.match(text) is None:
        return text
    try:
        found = parse_yaml(text, "pasted text", ScenarioError)
    except ScenarioError:
        return text
    if isinstance(found, Mapping) and found.get("kind"):
        rule = "is a manifest, not a command line"
        raise UsageError(rule, key=flag or None, value=text, remedy="save it and run simserve import manifest FILE")
    words = [*_words(found)]
    return shlex.join(words) if words else text


def _words(found: Any) -> Iterator[str]:
    """Yield the words of a container, of the first one where there are several."""
    if isinstance(found, list) and found and all(not isinstance(each, Mapping | list) for each in found):
        yield from map(str, found)
    elif isinstance(found, list) and found and isinstance(found[0], Mapping) and not _is_pair(found):
        yield from _words(found[0])
    elif isinstance(found, Mapping):
        if "containers" in found:
            yield from _words(found["containers"])
            return
        if found.get("image"):
            yield str(found["image"])
        for key in ("command", "args"):
            value = found.get(key) or []
            yield from shlex.split(value) if isinstance(value, str) else map(str, value)


def _is_pair(found: list[Any]) -> bool:
    """Return whether a list's mappings are flags, such as ``- --model: x``."""
    return any(str(key).startswith("-") for key in found[0])
