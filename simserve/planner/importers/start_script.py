"""A script that starts servers: its commands, the hosts and ports of the servers, and the router in front of them.

Also the start of a batch job under Slurm, whose directives name the job and its GPUs.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simserve.planner.export.role_servers import ENCODER_PROXY, FRONT_POLICIES, ROLES
from simserve.planner.export.trtllm import GROUPS

_ON_HOST = re.compile(r"#\s*on\s+([\w.-]+)(?::\s*(\S+))?\s*$")
"""Comment in a start script above the commands for one host, with the kind of its GPUs."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def engine_of(words: Sequence[str]) -> str | None:
    """Return the engine whose server a command starts; None: no engine that can be read."""
    text = " ".join(words)
    if "vllm serve" in text or "vllm.entrypoints" in text:
        return "vllm"
    if "sglang.launch_server" in text or "sglang serve" in text:
        return "sglang"
    return next((engine for program, engine in _PROGRAMS.items() if program in text), None)


_PROGRAMS = {
    "trtllm-serve": "trtllm",
    "llama-server": "llama.cpp",
    "text-generation-launcher": "tgi",
    "lmdeploy serve api_server": "lmdeploy",
}
"""What starts a server -> its engine."""


def is_script(text: str) -> bool:
    """Return whether a text is a script rather than documents, which may hold commands too."""
    if text.startswith("#!"):
        return True
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(("#", "---")))
    if _KEY.match(next(lines, "")):
        return False
    started = (split_variables(words)[1] for _, words in commands_of(text))
    return any(words[:1] and words[0] in _STARTED_BY and (engine_of(words) or is_front(words)) for words in started)


_KEY = re.compile(r"[\w.-]+:(\s|$)")  # Beginning of the first line of a document.
_STARTED_BY = ("vllm", "vllm-router", "python", "python3", "trtllm-serve")
"""First words of commands that start servers."""


def split_variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables in front of a command, and the command."""
    place = next((place for place, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    return dict(word.split("=", 1) for word in words[:place]), list(words[place:])


def commands_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a script, each after the host comment above it, without `exec` and trailing `&`."""
    above = ""
    for line in text.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("#"):
            above = line.strip() if _ON_HOST.match(line.strip()) else above
            continue
        try:
            words = shlex.split(line)
        except ValueError:  # not a command
            continue
        while words and words[-1] == "&":
            words.pop()
        yield above, words[1:] if words[:1] == ["exec"] else words


def parts_of(line: str) -> Iterator[list[str]]:
    """Yield the commands of a shell's line, which `;`, `&&` or a pipe separate."""
    words = shlex.shlex(line, posix=True, punctuation_chars=_SEPARATORS)
    words.whitespace_split, words.commenters = True, ""
    for is_between, part in itertools.groupby(words, key=lambda word: set(word) <= set(_SEPARATORS)):
        if not is_between:
            yield list(part)


_SEPARATORS = ";&|"


def is_front(words: Sequence[str]) -> bool:
    """Return whether a command starts a router or proxy in front of servers."""
    is_proxy = tuple(words[:2]) == ENCODER_PROXY
    is_proxy |= list(words[:2]) == ["trtllm-serve", "disaggregated"]
    return is_proxy or "vllm-router" in words[:1] or "sglang_router.launch_router" in words[:3]


def front_policy(scripts: Sequence[str]) -> str | None:
    """Return the policy of the router that scripts start; None: no router, or a policy that is not simulated."""
    for text in scripts:
        for _, words in commands_of(text):
            if is_front(words) and "--policy" in words:
                asked = words[words.index("--policy") + 1]
                return next((policy for policy, name in FRONT_POLICIES.items() if name == asked), None)
    return None


def roles_by_address(fronts: Sequence[Sequence[str]], documents: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return host and port of each server behind a router -> its role."""
    found: dict[str, str] = {}
    for words in fronts:
        for role in ROLES:
            places = [place for place, word in enumerate(words) if word == f"--{role}"]
            found |= {words[place + 1].removeprefix("http://"): role for place in places}
        if "--prefill-servers-urls" in words and "disable" not in words:  # vLLM's proxy in front of encoders
            for role in ROLES:
                urls = words[words.index(f"--{role}-servers-urls") + 1].split(",")
                found |= {url.removeprefix("http://"): role for url in urls}
    for document in documents:
        for role, group in GROUPS.items():
            found |= dict.fromkeys((document.get(group) or {}).get("urls", ()), role)
    return found


def host_of(above: str) -> tuple[str, str | None]:
    """Return the host named by the comment above a command, and the kind of its GPUs; None: not named."""
    found = _ON_HOST.match(above)
    return ("localhost", None) if found is None else (found[1], found[2])


_JOB = re.compile(r"^#SBATCH\s+(?:--job-name[=\s]|-J\s*)\s*(\S+)", re.MULTILINE)
_JOB_GPU = re.compile(
    r"^#SBATCH\s+(?:--gres[=\s]gpu:|--gpus(?:-per-(?:node|task|socket))?[=\s]|-G\s*)([A-Za-z][\w.-]*)(?::\d+)?",
    re.MULTILINE,
)
"""Directives of a batch job: its name, and the type of its GPUs (slurm.schedmd.com/sbatch.html)."""


def slurm_job(text: str) -> tuple[str | None, str | None]:
    """Return the name of a batch job, and the type of its GPUs as the cluster calls it; None: not given."""
    name, gpu = _JOB.search(text), _JOB_GPU.search(text)
    return None if name is None else name[1], None if gpu is None else gpu[1]
