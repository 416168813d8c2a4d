"""Flags of other tools, translated into those of simserve. Knows no command."""

from __future__ import annotations

from collections.abc import Sequence

_EXPERT_PARALLEL = ("--set", "deployment.enable_expert_parallel=true")
_SAME: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--gpu", "--hardware"), ("--gpus",)),
    **dict.fromkeys(("--input-len", "--input-tokens", "--random-input-len", "--isl"), ("--prompt-tokens",)),
    **dict.fromkeys(("--output-len", "--random-output-len", "--osl"), ("--output-tokens",)),
    **dict.fromkeys(("--request-rate", "--qps", "--rps"), ("--rate",)),
    **dict.fromkeys(("--users", "--clients", "--max-concurrency"), ("--concurrency",)),
    **dict.fromkeys(("--num-prompts", "--requests"), ("--num-requests",)),
    **dict.fromkeys(("--tensor-parallel-size", "--tensor-parallel"), ("--tp",)),
    **dict.fromkeys(("--pipeline-parallel-size", "--pipeline-parallel"), ("--pp",)),
    "--quant": ("--quantization",),
    **dict.fromkeys(("--dp", "--data-parallel-size"), ("--set", "deployment.data_parallel_size=")),
    **dict.fromkeys(("--ep", "--enable-expert-parallel"), _EXPERT_PARALLEL),
}
"""A flag of other tools -> the words that mean the same here, if a command has no flag of that name. After an equals
sign the flag's value follows."""
MEANT = {
    **{flag: " ".join(words).replace("=true", "=true, without a number,") for flag, words in _SAME.items()},
    "--num-gpus": "--gpus 2xH100",
    "-tp": "--tp",
    "-pp": "--pp",
    **dict.fromkeys(("--ttft", "--tpot"), "--slo 'ttft=1s,tpot=50ms'"),
    "--dtype": "--quantization",
    "--model": "the first word: simserve COMMAND MODEL",
    "--engine-version": "--engine NAME==VERSION, such as vllm==0.20",
}
"""A flag of other tools -> what means the same here, for the error message."""


def said_here(words: Sequence[str], refused: str | None) -> list[str]:
    """Return a command line with flags of other tools translated, or the line unchanged.

    Args:
        words: The words after ``simserve``.
        refused: The flag that its command does not have; None if something else was wrong.
    """
    if refused == "--model" and words[1:] and words[1].startswith("-"):
        named = next(place for place, word in enumerate(words) if word.partition("=")[0] == refused)
        _, equals, value = words[named].partition("=")
        return [*words[:named], *([value] if equals else []), *words[named + 1 :]]
    if refused not in _SAME or words[:1] == ["import"]:
        return list(words)
    found: list[str] = []
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        behind = words[place + 1] if place + 1 < len(words) else ""
        same = _SAME.get(flag)
        if found and found[-1].endswith("data_parallel_size="):
            found[-1] += word
        elif same is None or (same == _EXPERT_PARALLEL and (equals or behind.isdecimal())):
            found.append(word)
        else:
            joint = same[-1].endswith("=")
            found += [*same[:-1], same[-1] + value] if joint or not equals else [*same, value]
    return found
