"""What is measured: servers, the loads that each is sent, and how often."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from calibration.real_server.conversations import converse
from calibration.real_server.serving import ServerError, bench, metrics, served

KV_BLOCK = 128
"""Tokens of a KV block on a CPU, as `cache_config_info` of its metrics says."""
MAX_TOKENS = 4096
"""Of a request, as the model's configuration says."""
REPEATS = 2
MOST_REPEATS = 3
"""Two of them one after the other do not show how the pace of a shared machine changes in an hour."""
OUTPUT_TOKENS = 64
FIRST_WORD = 3
"""Of the vocabulary, after its marks."""
MOST_CLIENTS, SEATS = 32, 4
"""Clients of the largest load, and seats of the server with priorities."""
PACE = "clients-04"
"""A load that every server is sent, and that asks the same of each: what a shared machine's pace was by then."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long a campaign is: less of it for a CPU that takes seconds for a prompt.

    Attributes:
        prompt_tokens: Mean length of a prompt.
        share: Of the requests of each load.
        repeats: How often each load is sent, `MOST_REPEATS` at most.
    """

    prompt_tokens: int = 256
    share: float = 1.0
    repeats: int = REPEATS

    def requests(self, count: int) -> int:
        """Return how many requests are sent where a whole campaign sends ``count``."""
        return max(8, round(count * self.share))


@dataclass(frozen=True, slots=True)
class Load:
    """What one client run sends.

    Attributes:
        name: Of its file.
        num_prompts: Requests.
        clients: At once; 0: as many as come.
        rate: Requests/s; 0: as soon as a client is free.
        prompt_tokens: Mean length, 30 % up and down.
        output_tokens: The same of the answers.
        num_prefixes: Shared beginnings, of three quarters of the prompt; 0: none. All lengths are equal then.
        turns: Of a conversation, whose prompts are all before them plus ``prompt_tokens``; 1: single requests.
        priority: The smaller the sooner; None: the server does not ask.
        words: Of which all answers consist; 0: of the whole vocabulary. Of two, drawn at random, what was answered
            before is found again and half of the guesses are right.
        beside: What another client sends to the same server in the same time.
    """

    name: str
    num_prompts: int
    clients: int = 0
    rate: float = 0.0
    prompt_tokens: int = 256
    output_tokens: int = OUTPUT_TOKENS
    num_prefixes: int = 0
    turns: int = 1
    priority: int | None = None
    words: int = 0
    beside: Load | None = None

    @property
    def parts(self) -> tuple[Load, ...]:
        """What each of the clients sends that run at once; mostly one."""
        return (self,) if self.beside is None else (self, *self.beside.parts)

    def arguments(self, seed: int) -> list[str]:
        """Return what vLLM's client is told."""
        words = ["--num-prompts", str(self.num_prompts), "--seed", str(seed)]
        words += ["--max-concurrency", str(self.clients)] if self.clients else ["--request-rate", str(self.rate)]
        if self.num_prefixes:
            own = self.prompt_tokens // 4
            shared = self.prompt_tokens - own
            lengths = {"prefix-len": shared, "suffix-len": own, "num-prefixes": self.num_prefixes}
            lengths["output-len"] = self.output_tokens
            words += ["--dataset-name", "prefix_repetition"]
            return words + [
                each for key, value in lengths.items() for each in (f"--prefix-repetition-{key}", str(value))
            ]
        words += ["--dataset-name", "random", "--random-range-ratio", "0.3"]
        words += ["--random-input-len", str(self.prompt_tokens), "--random-output-len", str(self.output_tokens)]
        asked: dict[str, object] = {} if self.priority is None else {"priority": self.priority}
        if self.words:
            asked["allowed_token_ids"] = list(range(FIRST_WORD, FIRST_WORD + self.words))
        return words + (["--extra-body", json.dumps(asked)] if asked else [])


@dataclass(frozen=True, slots=True)
class Server:
    """What is served.

    Attributes:
        name: Of its folder.
        flags: Of `vllm serve`.
        options: The same, as keys of ``deployment.engine``, drafts as ``speculative``.
        loads: What it is sent.
    """

    name: str
    loads: tuple[Load, ...]
    flags: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)


def servers(capacity: float, seats: float, size: Size = Size()) -> list[Server]:
    """Return what is measured on a machine.

    Args:
        capacity: Plain requests/s that it finishes for `MOST_CLIENTS`.
        seats: The same for as many clients as the server with priorities has seats.
        size: How long the campaign is.
    """
    prompt, many = size.prompt_tokens, size.requests
    clients = ((1, 12), (2, 20), (4, 32), (8, 56), (16, 96), (32, 128))
    plain = [
        Load(f"clients-{count:02d}", many(number), clients=count, prompt_tokens=prompt) for count, number in clients
    ]
    plain += [
        Load(
            f"poisson-{name}",
            many(max(40, round(60 * share * capacity))),
            rate=round(share * capacity, 3),
            prompt_tokens=prompt,
        )
        for name, share in ((40, 0.4), (70, 0.7), (90, 0.9))
    ]
    plain.append(Load("prefixes-08", many(80), clients=8, prompt_tokens=4 * prompt, num_prefixes=5))
    plain.append(_conversations(8, size))
    answer = max(prompt, 2 * OUTPUT_TOKENS)
    pace = Load(PACE, many(32), clients=4, prompt_tokens=prompt)
    wanted = 32 * -(-(prompt + answer) // KV_BLOCK)
    blocks = max(wanted // 2, MAX_TOKENS // KV_BLOCK + 1)  # vLLM starts with room for one request of that length
    return [
        Server("plain", tuple(plain)),
        Server(
            "short-of-kv",
            (
                pace,
                # Some 100 preemptions.
                Load("clients-32", many(160), clients=32, prompt_tokens=prompt, output_tokens=answer),
                _conversations(12, size),  # more than the cache remembers
            ),
            ("--num-gpu-blocks-override", str(blocks)),
            {"num_gpu_blocks_override": blocks},
        ),
        Server(
            f"chunks-of-{prompt}",
            (pace, Load("clients-08", many(40), clients=8, prompt_tokens=4 * prompt)),
            ("--max-num-batched-tokens", str(prompt), "--max-num-seqs", "32"),
            {"max_num_batched_tokens": prompt, "max_num_seqs": 32},
        ),
        Server(
            "n-gram",
            (
                pace,  # random words: there is nothing to find
                Load("two-words-04", many(32), clients=4, prompt_tokens=prompt, output_tokens=answer, words=2),
            ),
            ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'),
            {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        Server(
            "priorities",
            (pace, _urgent_and_patient(seats, size)),
            ("--scheduling-policy", "priority", "--max-num-seqs", str(SEATS)),
            {"scheduling_policy": "priority", "max_num_seqs": SEATS},
        ),
    ]


def _conversations(clients: int, size: Size) -> Load:
    """Return clients that hold conversations of five turns; a turn adds half a prompt."""
    turns, each = 5, max(1, round(2 * size.share))
    return Load(
        f"conversations-{clients:02d}",
        clients * turns * each,
        clients=clients,
        prompt_tokens=size.prompt_tokens // 2,
        turns=turns,
    )


def _urgent_and_patient(seats: float, size: Size) -> Load:
    """Return a third of the requests with a better priority: together three quarters of what four seats finish.

    At nearly all of it the queue says how fast the machine was at the minute, not how it is scheduled.
    """
    urgent, patient = (round(share * seats, 3) for share in (0.25, 0.5))
    prompt, many = size.prompt_tokens, size.requests
    behind = Load("patient", many(40), rate=patient, prompt_tokens=prompt, priority=1)
    return Load("urgent", many(20), rate=urgent, prompt_tokens=prompt, priority=0, beside=behind)


def measure(
    commands: Path, model: Path, out: Path, wanted: Sequence[Server], repeats: int, tell: Callable[[str], None]
) -> None:
    """Measure all that has no file yet; what a server counts before and after each load lies beside its result."""
    for server in wanted:
        folder = out / server.name
        folder.mkdir(parents=True, exist_ok=True)
        runs = [(load, turn) for turn in range(repeats) for load in server.loads]
        missing = [(load, turn) for load, turn in runs if not (folder / f"{load.name}-{turn}.json").is_file()]
        if not missing:
            continue
        tell(f"{server.name}: starting")
        try:
            _measure(commands, model, folder, server, missing, tell)
        except ServerError as error:
            tell(f"{server.name}: {error}")
            (folder / "failed.txt").write_text(f"{error}\n", encoding="utf-8")


def _measure(
    commands: Path,
    model: Path,
    folder: Path,
    server: Server,
    missing: list[tuple[Load, int]],
    tell: Callable[[str], None],
) -> None:
    with served(commands, model, server.flags, folder / "server.log") as address:
        warm = Load("warm", 6, clients=2, prompt_tokens=server.loads[0].prompt_tokens)
        bench(commands, model, address, warm.arguments(999), folder / "warm.json")
        (folder / "warm.json").unlink()
        for load, turn in missing:
            began, before = time.monotonic(), metrics(address)
            # A seed of its own: the prompts of another load would still be in the prefix cache.
            _send(commands, model, folder, load, turn, address, 1000 * turn + 10 * server.loads.index(load) + 7)
            counted = {"before": before, "after": metrics(address)}
            (folder / f"{load.name}-{turn}.metrics.json").write_text(json.dumps(counted), encoding="utf-8")
            tell(f"{server.name} {load.name} {turn}: {time.monotonic() - began:.0f} s")


def _send(commands: Path, model: Path, folder: Path, load: Load, turn: int, address: str, first_seed: int) -> None:
    """Send all parts of a load at once, each by a client of its own."""
    if load.turns > 1:
        converse(
            address,
            folder / f"{load.name}-{turn}.json",
            clients=load.clients,
            conversations=load.num_prompts // (load.clients * load.turns),
            turns=load.turns,
            new_tokens=load.prompt_tokens,
            output_tokens=load.output_tokens,
            seed=first_seed,
        )
        return
    with ThreadPoolExecutor() as clients:
        sent = [
            clients.submit(bench, commands, model, address, part.arguments(seed), folder / f"{part.name}-{turn}.json")
            for seed, part in enumerate(load.parts, start=first_seed)
        ]
    for each in sent:
        each.result()
