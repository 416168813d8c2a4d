"""The `workload` block of a scenario: what arrives when, how long it is, when it ends, and which adapters it uses.

Draws only the adapter of each request. The text below a field is its entry in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from simserve.units import Seconds
from simserve.validation import FrozenModel
from simserve.workload.arrival_spec import (
    MAX_REQUESTS,
    AllAtOnceArrivals,
    Arrivals,
    ClosedLoopArrivals,
    Entry,
    PoissonArrivals,
)
from simserve.workload.class_spec import MAX_CLASSES, MAX_MAX_TOKENS, ClassSpec, check_classes
from simserve.workload.distributions import Draws
from simserve.workload.length_spec import AnswerLength, Length, NoLength, UniformLength
from simserve.workload.media_spec import AudioSpec, ImagesSpec
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import AgentsSpec, SessionsSpec, SharedPrefixSpec

MAX_ADAPTERS = 100_000  # Most adapters of a workload: each replica tracks where every one of them is.
BenchmarkClient = Literal["sglang", "sglang-0.5.5", "vllm"]
GrammarBackend = Literal["xgrammar", "guidance", "outlines"]
TraceFormat = Literal[
    "auto",
    "azure",
    "csv",
    "mooncake",
    "burstgpt",
    "bailian",
    "sharegpt",
    "vllm-bench",
    "vllm-timed",
    "otel",
    "agentic-mooncake",
    "aiperf-messages",
    "aiperf-conversations",
    "dynamo",
    "weka",
    "columns",
]
TraceColumn = Literal[
    "arrival_time",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "session",
    "num_images",
    "image_sizes",
    "audio_seconds",
]
Scale = Annotated[float, Field(gt=0, le=1e6)]
MAX_SCHEMAS = 100_000
ADVANCE_SECONDS = 16e-6
"""CPU seconds per token to advance the grammar by the sampled token, which nothing hides: vLLM's pull request 26866
with the masks hidden, Qwen3-1.7B, 800 in flight, 128 tokens, 103.2 -> 85.3 requests/s: 12.7 ms a step of 800 sequences.
"""
DEFAULT_NUM_REQUESTS = 1000  # Fewest requests of a workload that does not say when it ends.
REQUESTS_PER_CLIENT = 4  # Fewest for each client of its closed loop: with less than one, some would never ask.


class LorasSpec(FrozenModel):
    """LoRA adapters of one base model, for example one per tenant. All turns of a conversation use the same one."""

    num_adapters: Annotated[int, Field(ge=1, le=MAX_ADAPTERS)]
    """Number of adapters."""
    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    """Rank of the adapters: the inner dimension of A and B."""
    target_modules: Literal["all", "attention", "mlp"] = "all"
    """Matrices that they adapt: those of attention (q, k, v, o), of the MLP (gate, up, down; in a model with experts,
    the dense layers and shared experts), or all of them."""
    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    """Popularity: the n-th adapter is requested in proportion to n^-`zipf`; 0: all equally. Absent, and `shares` too:
    1."""
    shares: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Popularity instead of `zipf`: a weight for each adapter, on any scale."""
    base_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the requests without an adapter: they ask for the base model."""

    @model_validator(mode="after")
    def _check_popularity(self) -> Self:
        if self.shares is not None and self.zipf is not None:
            raise ValueError("has zipf and shares; keep one of the two")
        if self.shares is not None and len(self.shares) != self.num_adapters:
            raise ValueError(f"has {len(self.shares)} shares for {self.num_adapters} adapters; give one of each")
        return self

    @property
    def popularity(self) -> NDArray[np.float64]:
        """Share of each adapter among the requests with one, shape [num_adapters]."""
        if self.shares is not None:
            weights = np.array(self.shares, dtype=np.float64)
        else:
            exponent = 1.0 if self.zipf is None else self.zipf
            weights = np.arange(1, self.num_adapters + 1, dtype=np.float64) ** -exponent
        return np.asarray(weights / weights.sum())


def with_adapters(specs: RequestSpecs, loras: LorasSpec, draws: Draws) -> RequestSpecs:
    """Return requests with an adapter drawn for each, from the stream ``loras``.

    Requests with different adapters share no KV, so what their prompts share is kept apart by adapter.
    """
    uniforms = draws.stream("loras").random(len(specs))
    if specs.session is not None:
        # All turns of a conversation use the draw of its first row.
        _, first, inverse = np.unique(specs.session, return_index=True, return_inverse=True)
        has_session = specs.session >= 0
        uniforms = np.where(has_session, uniforms[first][inverse], uniforms)
    edges = loras.base_share + (1.0 - loras.base_share) * np.cumsum(loras.popularity)
    drawn = np.searchsorted(edges, uniforms, side="right")
    adapter = np.where(uniforms < loras.base_share, -1, np.minimum(drawn, loras.num_adapters - 1)).astype(np.int64)
    prefixes = specs.prefixes
    if prefixes is not None:
        owner = np.repeat(adapter, np.diff(prefixes.offsets))
        told_apart = prefixes.segments * (loras.num_adapters + 1) + owner + 1
        segments = np.unique(told_apart, return_inverse=True)[1].astype(np.int64)
        prefixes = replace(prefixes, segments=segments)
    return replace(specs, adapter=adapter, prefixes=prefixes)


@dataclass(frozen=True, slots=True)
class GrammarCost:
    """What a grammar costs the CPU."""

    compile_time: float  # Seconds from a schema to its first mask.
    mask_time: float  # Seconds to fill the mask of one token of one sequence.


GRAMMAR_COSTS: dict[GrammarBackend, GrammarCost] = {
    "xgrammar": GrammarCost(compile_time=62e-3, mask_time=24e-6),
    "guidance": GrammarCost(compile_time=1e-3, mask_time=47e-6),
    "outlines": GrammarCost(compile_time=1.33, mask_time=125e-6),
}
"""Measured by others. Compiling with xgrammar and outlines, and a mask of outlines: examples/benchmark of
zanderjiang/xgrammar (json-mode-eval, Llama-3.1 vocabulary, Ryzen 9 7950X, outlines 0.1.3): 61.9 ms, 1,333 ms, 125 us.
A mask of xgrammar: what vLLM's pull request 26866 hides behind the GPU, (36.9 - 15.9) us a sequence at a share of 1 and
27 us at 0.8, from its requests/s at 800 in flight and 128 tokens. guidance: means of MaskBench
(guidance-ai/jsonschemabench, llguidance 0.6.7, 10,163 schemas, one thread): 47 us, and a median compile of 1 ms. Hard
schemas take far longer: MaskBench has a median compile of 0.54 s for xgrammar 0.1.10, and of 7 s for outlines 0.1.13.
"""


class StructuredOutputSpec(FrozenModel):
    """Answers that must follow a schema: each replica compiles its grammar once, and masks the tokens of every step.

    A request waits for its grammar before it is scheduled; others may pass it. Masks are filled on the CPU, in parallel
    with the GPU if the engine's version does so. Steps are priced at the overall share of constrained requests, not at
    the number in each step.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests whose answers are constrained."""
    num_schemas: Annotated[int, Field(ge=1, le=MAX_SCHEMAS)] = 1
    """Number of schemas, all equally likely; each is compiled when it is first requested."""
    backend: GrammarBackend = "xgrammar"
    """What compiles grammars and fills masks: `xgrammar`, `guidance` (llguidance) or `outlines`."""
    compile_time: Seconds | None = None
    """Time from a schema to its first mask. Absent: as published for simple schemas, 62 ms (xgrammar), 1 ms (guidance),
    1.33 s (outlines); complex ones take ten times as long or more."""
    mask_time: Seconds | None = None
    """CPU time to fill the mask of one token of one sequence. Absent: as published, 24 us (xgrammar), 47 us (guidance),
    125 us (outlines)."""

    @property
    def cost(self) -> GrammarCost:
        """What a grammar costs: the given times, else those published for the backend."""
        known = GRAMMAR_COSTS[self.backend]
        return GrammarCost(
            compile_time=known.compile_time if self.compile_time is None else self.compile_time,
            mask_time=known.mask_time if self.mask_time is None else self.mask_time,
        )


class TraceSpec(FrozenModel):
    """Recorded traffic to replay."""

    path: str
    """The file, plain or gzip, or a folder of JSON files (Weka's tasks, Dynamo's shards); looked up in the scenario's
    folder, then in the working folder."""
    format: TraceFormat = "auto"
    """`auto`: detected from the first row. `azure`: TIMESTAMP, ContextTokens, GeneratedTokens; the first request
    arrives at 0; NumImages is read. `csv`: arrival_time (seconds from the start of the run), prompt_tokens,
    output_tokens, and optionally max_tokens, session (a name), num_images, image_sizes and audio_seconds. `mooncake`,
    `bailian`: JSON lines; a prefix cache finds the blocks that prompts share. `burstgpt`: failed requests are left out.
    `sharegpt`: texts, lengths estimated, no arrival times.
    `vllm-bench`: a detailed result of `vllm bench serve`. `vllm-timed`: what its `timed_trace` replays, like `mooncake`
    but in seconds and blocks of 16 tokens. `otel`: spans with gen_ai.usage attributes. `agentic-mooncake`: `mooncake`
    with wait_for, delay and tool_wait_ms. `aiperf-messages`: rows of that kind with `messages`, lengths estimated.
    `aiperf-conversations`: AIPerf's dag_jsonl and multi_turn, likewise, no arrival times. `dynamo`:
    dynamo.request.trace.v1. `weka`: the traces that AgentX replays, no arrival times. The formats from `otel` on
    identify agents' tasks: see `agents`.
    `columns`: any CSV or JSON lines, with columns named in `columns` or found by their usual names. Conversations are
    identified by `session_id` (mooncake, vllm-timed), parents (bailian), Session ID (burstgpt) and
    gen_ai.conversation.id (otel)."""
    columns: Annotated[dict[TraceColumn, str], Field(min_length=1)] | None = None
    """Names of the columns of any CSV or JSON lines: `{arrival_time: timestamp, prompt_tokens: prompt,
    output_tokens: completion}`, also `max_tokens`, `session` and, with `workload.images` or `workload.audio`, those of
    each prompt: `num_images` (a number, or in JSON lines a list of images), `image_sizes` (`1920x1080`, several
    with semicolons or as a list) and `audio_seconds` (`12.5`, likewise; a name that ends in `_ms` is milliseconds).
    Columns left out are found by their usual names (`timestamp`, `arrived_at`, `prompt`, `num_prefill_tokens`,
    `completion`, ...). A field of an object within the row has a dotted name (`usage.prompt_tokens`). Times are
    seconds, ISO 8601 or seconds (to nanoseconds) since 1970; dates count from the first request. Rows are sorted by
    them; those without tokens of a prompt or an answer are left out and counted."""
    counts_media: bool | None = None
    """Whether the lengths of its prompts include the tokens of images and recordings, as a server's counts do; these
    are then not added. Absent: yes for `azure` with NumImages, else no."""
    block_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Tokens that one of the trace's `hash_ids` stands for. Absent: 512 for `mooncake`, 16 for `bailian` and
    `vllm-timed`."""
    time_scale: Scale = 1.0
    """Multiplies the recorded times: 0.5 sends the same requests at twice the rate."""
    prompt_scale: Scale = 1.0
    """Multiplies the lengths of the prompts; they are rounded, and at least one token."""
    output_scale: Scale = 1.0
    """Multiplies the lengths of the answers (and the trace's own max_tokens)."""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.columns is not None and self.format not in ("auto", "columns"):
            raise ValueError(f"columns has no meaning in the format {self.format}, which has names of its own")
        return self


class WorkloadSpec(FrozenModel):
    """The traffic of a scenario: a trace, or arrivals with lengths."""

    arrivals: Annotated[Arrivals, Entry()] | None = None
    """When requests arrive; with a trace, these times replace its own, in the order of its rows."""
    prompt_tokens: Length | None = None
    """Lengths of the prompts."""
    output_tokens: AnswerLength | None = None
    """Lengths of the answers the model would give. `0`: none, as for embeddings and rerankers, whose request ends when
    the prompt is computed."""
    thinking_tokens: Length | None = None
    """Reasoning models: lengths of the thinking before the answer, which the client does not see. `output_tokens` are
    then those of the visible answer, and `max_tokens` limits both together. Thinking is dropped from the history of a
    conversation, and from an agent's context. Absent: none."""
    thinking_token_budget: Annotated[int, Field(ge=1, le=MAX_MAX_TOKENS)] | None = None
    """Most tokens of thinking in a request, after which the answer begins. Absent: no limit."""
    max_tokens: int | Literal["exact", "model_limit"] = "exact"
    """Most tokens the client asks for: `exact` (the trace's own column if it has one, else the length of the answer
    plus the thinking before it), a number, or `model_limit` (what the prompt leaves of the model's length)."""
    ignore_eos: bool = False
    """Whether the model generates up to `max_tokens` regardless of the end of its answer, as in benchmarks. SGLang from
    0.5.22 on expects all of them, and admits fewer requests at once. Only with `max_tokens: exact`."""
    images: ImagesSpec | None = None
    """Images in prompts; their tokens come on top of `prompt_tokens`, or of a trace's prompts. In conversations and
    agents' tasks each turn, or call, has its own, and later ones contain them too. Absent: text only."""
    audio: AudioSpec | None = None
    """Recordings in prompts, like images: on top of `prompt_tokens`, and contained in later turns and calls too.
    Absent: none."""
    structured_output: StructuredOutputSpec | None = None
    """Answers that must follow a schema. Absent: none."""
    num_requests: int | None = Field(default=None, ge=1, le=MAX_REQUESTS)
    """Number of requests; all are served to the end. Absent, and `duration` too: 1000, or 4 for each client of
    a closed loop if those are more. With a trace: use only its first this many; absent: all."""
    duration: Seconds | None = Field(default=None, gt=0)
    """Time after which no request arrives; what has arrived is served to the end, including conversations that have
    begun. Clients of a closed loop send nothing from then on."""
    client: BenchmarkClient | None = None
    """Benchmark whose own draws the requests are; `run.seed` 1 stands for its default seed. `sglang`:
    `sglang.bench_serving`: even lengths, and Poisson arrivals, of which the first comes at once. `sglang-0.5.5`: the
    same up to 0.5.5, which draws answers from 0 tokens on where the shortest is 1. `vllm`: `vllm bench serve` from 0.10
    on: Poisson arrivals, stretched so that the last comes at `num_requests` / `rate`. Absent: simserve's own
    streams."""
    trace: TraceSpec | None = None
    """Recorded traffic, instead of `arrivals` and lengths; `arrivals` beside it replace its times."""
    classes: Annotated[tuple[ClassSpec, ...], Field(min_length=1, max_length=MAX_CLASSES)] | None = None
    """Kinds of requests, each with a share of the common arrivals (or of the rows of a trace) or its own arrivals;
    absent: all requests are alike."""
    sessions: SessionsSpec | None = None
    """Conversations of several turns; each turn is sent when the one before it is answered. Absent: requests are
    independent."""
    agents: AgentsSpec | None = None
    """Agents' tasks: calls with tools between them, sub-agents and forks. With a trace that records which call waited
    for which: `{}`, and each call is sent when the call it waited for is answered and its tool has run. Absent: no
    tasks, and the calls of a trace arrive at their recorded times."""
    shared_prefix: SharedPrefixSpec | None = None
    """System prompts that requests share. Absent: no two prompts begin alike, except turns of one conversation."""

    loras: LorasSpec | None = None
    """LoRA adapters that requests use, with `deployment.engine.max_loras`. Absent: all use the base model."""

    @model_validator(mode="before")
    @classmethod
    def _end_by_default(cls, given: object) -> object:
        if not isinstance(given, Mapping) or any(
            given.get(key) is not None for key in ("num_requests", "duration", "trace")
        ):
            return given
        arrivals, clients = given.get("arrivals"), 0
        with suppress(ValidationError):  # The field's own check says what is wrong.
            if isinstance(arrivals, Mapping) and arrivals.get("process") in ("closed_loop", "users"):
                clients = getattr(TypeAdapter(Annotated[Arrivals, Entry()]).validate_python(arrivals), "concurrency", 0)
        return {**given, "num_requests": min(max(DEFAULT_NUM_REQUESTS, REQUESTS_PER_CLIENT * clients), MAX_REQUESTS)}

    @field_validator("max_tokens", mode="before")
    @classmethod
    def _check_max_tokens(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            is_valid = 1 <= value <= MAX_MAX_TOKENS and float(value).is_integer()
        else:
            is_valid = value in ("exact", "model_limit")
        if not is_valid:
            raise ValueError(f"must be exact, model_limit or a whole number from 1 to {MAX_MAX_TOKENS}")
        return value

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.ignore_eos and self.max_tokens != "exact":
            rule = f"has ignore_eos beside max_tokens: {self.max_tokens}; answers are as long as asked: exact"
            raise ValueError(rule)
        drawn = {name: getattr(self, name) for name in ("arrivals", "prompt_tokens", "output_tokens")}
        given = [name for name, part in drawn.items() if part is not None]
        missing = [name for name, part in drawn.items() if part is None]
        for sessions in (self.sessions, *(each.sessions for each in self.classes or ())):
            if sessions is not None:
                sessions.check_drawn() if self.trace is None else sessions.check_recorded()
        if self.classes is not None:
            if self.sessions is not None and all(each.arrivals is not None for each in self.classes):
                rule = "has sessions, and no class has a share of them; give the classes sessions of their own"
                raise ValueError(rule)
            check_classes(self.classes, drawn, has_trace=self.trace is not None)
            if self.trace is None:
                return self
        if self.trace is not None and given not in ([], ["arrivals"]):
            raise ValueError(f"has a trace and also {' and '.join(given)}; keep one of the two")
        if self.trace is not None and self.arrivals is not None and self.trace.time_scale != 1.0:
            raise ValueError("has arrivals instead of the trace's times and also trace.time_scale; keep one of the two")
        if self.trace is None and missing:
            rule = f"lacks {' and '.join(missing)}; give arrivals, prompt_tokens and output_tokens, or a trace"
            raise ValueError(rule)
        return self

    def of_length(self, num_requests: int) -> Self:
        """Return the traffic until so many requests, whatever ends it now."""
        return self.model_copy(update={"num_requests": num_requests, "duration": None})

    @property
    def is_mixed(self) -> bool:
        """Whether classes are of several kinds: conversations or clients of a closed loop beside other arrivals."""
        own = [each for each in self.classes or () if each.arrivals is not None]
        talks = self.sessions is not None or any(each.sessions or each.agents for each in own)
        return bool(own) and (talks or self.has_clients)

    @property
    def has_clients(self) -> bool:
        """Whether clients of a closed loop send any of the requests."""
        return any(isinstance(each, ClosedLoopArrivals) for each in self._sources)

    @property
    def _sources(self) -> list[Arrivals | None]:
        """The common arrivals and those of each class, None where there are none."""
        return [self.arrivals, *(each.arrivals for each in self.classes or ())]

    @property
    def has_sessions(self) -> bool:
        """Whether any of the requests are turns of drawn conversations, or calls of drawn tasks."""
        talks = self.sessions is not None or any(each.sessions is not None for each in self.classes or ())
        return talks or self.has_agents

    @property
    def has_agents(self) -> bool:
        """Whether any of the requests are calls of agents' tasks."""
        return self.agents is not None or any(each.agents is not None for each in self.classes or ())

    @property
    def has_thinking(self) -> bool:
        """Whether any of the requests think before they answer."""
        return self.thinking_tokens is not None or any(each.thinking_tokens is not None for each in self.classes or ())

    @property
    def has_images(self) -> bool:
        """Whether any of the requests may have images."""
        return self.images is not None or any(each.images is not None for each in self.classes or ())

    @property
    def has_audio(self) -> bool:
        """Whether any of the requests may have recordings."""
        return self.audio is not None or any(each.audio is not None for each in self.classes or ())

    @property
    def has_media(self) -> bool:
        """Whether any of the requests may have images or recordings."""
        return self.has_images or self.has_audio

    @model_validator(mode="after")
    def _check_media(self) -> Self:
        classes = self.classes or ()
        images, audio = [each.images for each in classes], [each.audio for each in classes]
        if self.trace is None and any(each and each.sizes is None for each in (self.images, *images)):
            raise ValueError("has images without sizes; give images.sizes, or a trace that says them")
        if self.trace is None and any(each and each.seconds is None for each in (self.audio, *audio)):
            raise ValueError("has audio without seconds; give audio.seconds, or a trace that says them")
        if self.trace is not None and self.trace.counts_media is not None and not self.has_media:
            raise ValueError("has trace.counts_media, and neither images nor audio; add one of them, or leave it out")
        return self

    @model_validator(mode="after")
    def _check_answers(self) -> Self:
        own = [(each.output_tokens or self.output_tokens, each.sessions, each.agents) for each in self.classes or ()]
        for length, sessions, agents in ((self.output_tokens, self.sessions, self.agents), *own):
            if not isinstance(length, NoLength):
                continue
            if (sessions or self.sessions) is not None:
                raise ValueError("has sessions, and requests without an answer; leave one of the two out")
            if (agents or self.agents) is not None:
                raise ValueError("has agents, and calls without an answer; leave one of the two out")
        return self

    @model_validator(mode="after")
    def _check_thinking(self) -> Self:
        if self.trace is not None and self.has_thinking:
            rule = "has a trace and also thinking_tokens; the answers of a trace hold what was thought: leave it out"
            raise ValueError(rule)
        own = [(each.thinking_token_budget, each.thinking_tokens) for each in self.classes or ()]
        for budget, length in ((self.thinking_token_budget, self.thinking_tokens), *own):
            if budget is not None and length is None and not self.has_thinking:
                raise ValueError("has a thinking_token_budget and no thinking_tokens; give them, or leave it out")
        return self

    @property
    def has_shared_prefix(self) -> bool:
        """Whether any of the requests begin with a drawn system prompt or document."""
        return self.shared_prefix is not None or any(each.shared_prefix is not None for each in self.classes or ())

    @property
    def common_prefix_tokens(self) -> int:
        """Tokens of the one system prompt with which all requests begin; 0: there is none, or prompts are recorded."""
        shared, own = self.shared_prefix, [each.shared_prefix for each in self.classes or ()]
        is_one = shared is not None and shared.num_groups == 1 and not any(own)
        return shared.tokens if shared and is_one and self.trace is None and self.loras is None else 0

    @model_validator(mode="after")
    def _check_agents(self) -> Self:
        if not self.has_agents:
            return self
        if self.sessions is not None or any(each.sessions is not None for each in self.classes or ()):
            raise ValueError("has agents and also sessions; keep one of the two")
        if self.agents is None:
            return self
        if self.classes is not None:
            raise ValueError("has agents and also classes; give agents to a class with arrivals of its own")
        self.agents.check_drawn() if self.trace is None else self.agents.check_recorded()
        return self

    @model_validator(mode="after")
    def _check_rounds(self) -> Self:
        own = [each for each in self.classes or () if each.arrivals is not None]
        for each in own:
            if isinstance(each.arrivals, AllAtOnceArrivals) and each.arrivals.rounds > 1:
                raise ValueError(f"has rounds in the arrivals of class {each.name}; only the workload's may have them")
        rounds = self.arrivals.rounds if isinstance(self.arrivals, AllAtOnceArrivals) else 1
        if rounds == 1:
            return self
        others = {"a trace": self.trace, "sessions": self.sessions, "agents": self.agents, "classes with arrivals": own}
        for name, given in others.items():
            if given:
                raise ValueError(f"has {rounds} rounds and {name}; leave one of the two out")
        if self.num_requests is not None and self.num_requests % rounds:
            fewer = max(self.num_requests // rounds, 1) * rounds
            raise ValueError(
                f"has {self.num_requests} requests in {rounds} rounds, which must be of one size; "
                f"make num_requests a multiple, such as {fewer}"
            )
        return self

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        if self.client is None:
            return self
        others = ("trace", "classes", "sessions", "agents", "duration")
        given = [each for each in others if getattr(self, each) is not None]
        if given:
            raise ValueError(f"has the client {self.client} and also {given[0]}; leave one of the two out")
        has_even = any(isinstance(each, UniformLength) for each in (self.prompt_tokens, self.output_tokens))
        if not isinstance(self.arrivals, PoissonArrivals) and not (has_even and self.client != "vllm"):
            raise ValueError(
                f"has the client {self.client}, of which nothing is known here; give poisson arrivals"
                f"{'' if self.client == 'vllm' else ' or uniform lengths'}, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.num_requests is not None and self.duration is not None:
            raise ValueError("has num_requests and duration; keep one of the two")
        if self.is_mixed and self.has_clients and self.duration is None:
            raise ValueError(
                "has clients in a closed loop and a class with arrivals of its own: how many requests each of them "
                'sends is not known before; give duration, such as "10 min", instead of num_requests'
            )
        if self.trace is not None and (self.arrivals is None or self.duration is None):
            return self
        if self.duration is not None and isinstance(self.arrivals, AllAtOnceArrivals):
            raise ValueError(f"cannot end {self.arrivals.process} arrivals by duration; give num_requests instead")
        rate = sum(getattr(each, "rate", 0.0) for each in self._sources)
        if self.duration is not None and rate * self.duration > MAX_REQUESTS / 2:
            raise ValueError(
                f"asks for about {rate * self.duration:.3g} requests, more than {MAX_REQUESTS // 2:,}; "
                "shorten duration or lower the rate"
            )
        return self
