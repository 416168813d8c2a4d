"""Flags as other tools call them, in words of this one. Knows no command."""

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
"""What other tools call a flag -> the words that say the same here, where a command has no flag of that name. Behind an
equals sign the flag's value follows."""
MEANT = {
    **{flag: " ".join(words).replace("=true", "=true, without a number,") for flag, words in _SAME.items()},
    "--num-gpus": "--gpus 2xH100",
    "-tp": "--tp",
    "-pp": "--pp",
    **dict.fromkeys(("--ttft", "--tpot"), "--slo 'ttft=1s,tpot=50ms'"),
    "--dtype": "--quantization",
    "--model": "the first word: simserve COMMAND MODEL",
}
"""What other tools call a flag -> what says the same here, for the line that refuses it."""


def said_here(words: Sequence[str], refused: str | None) -> list[str]:
    """Return a command line whose flags of other tools are those of this one, or the line as it is.

    Args:
        words: The line behind ``simserve``.
        refused: The flag that its command does not have; None: something else was wrong with it.
    """
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
