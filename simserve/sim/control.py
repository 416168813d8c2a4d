"""Control: the `deployment` blocks for decisions during a run, from routing to faults. Makes no decisions itself.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from simserve.profiles.engine_options import PLAIN_TRANSFER
from simserve.units import PositiveBytesPerSecond, PositiveSeconds, Seconds
from simserve.validation import NAME_PATTERN, FrozenModel

Count = Annotated[int, Field(ge=0, le=10_000)]
RoutingPolicy = Literal[
    "round_robin", "random", "least_outstanding", "least_tokens", "power_of_two", "session", "prefix", "lora"
]
Share = Annotated[float, Field(ge=0, le=1)]
Region = Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
Role = Literal["both", "prefill", "decode"]
ClassNames = Annotated[tuple[str, ...], Field(min_length=1)]
Place = Annotated[int, Field(ge=0)]
SHARES = ("kv_usage", "busy", "slo")  # Metrics whose target is a share.
BLIND_POLICIES = ("round_robin", "random")  # Policies that use no signal.
TOKEN_POLICIES = ("least_tokens", "prefix")  # Policies that measure load in tokens, not requests.
API_POOL = "api"  # Name of the API of `deployment.overflow` among the pools of a rule.
OF_GATEWAY = attrgetter("overflow", "response_cache", "fairness", "routing.rules")
"""Fields of a `Control` that answer requests in front of the replicas, or decide whose turn it is."""
OF_FLEET = attrgetter("autoscaling", "encoder_scaling", "faults", "updates", "liveness")
"""Fields of it that make replicas, or encoder workers, come and go, or break."""
OF_REQUESTS = attrgetter("admission", "disaggregation", "streaming")
"""Fields of it for other decisions about single requests."""


class StartupSpec(FrozenModel):
    """The phases from the decision to add a replica to its first request; the GPUs are paid for from the start."""

    schedule: Seconds = 20.0
    """Time to find or boot a node."""
    image: Seconds = 60.0
    """Time to pull the container image."""
    load_bandwidth: PositiveBytesPerSecond = 2e9
    """Bandwidth at which the weights of the whole replica are read from storage."""
    engine: Seconds = 40.0
    """Time to start the engine: profiling, CUDA graphs, compilation, warm-up."""

    def seconds(self, weights_bytes: float) -> float:
        """Return the seconds of a start that loads ``weights_bytes`` of weights."""
        return self.schedule + self.image + weights_bytes / self.load_bandwidth + self.engine


class HorizontalScaling(FrozenModel):
    """Fields shared by the scaling of replicas and of encoder workers."""

    metric: str
    """The metric to follow."""
    target: Annotated[float, Field(gt=0)]
    """Target value of the metric: requests per replica, or a share for kv_usage, busy and slo."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Fewest replicas; 0: none while there are no requests, and the first request waits for a start."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)]
    """Most replicas."""
    interval: PositiveSeconds = 15.0
    """Time between two readings of the metric."""
    stabilization: Seconds = 300.0
    """How long a lower load must last before replicas are given back."""
    startup: StartupSpec = StartupSpec()
    """Startup phases of a new replica."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} must not be above max_replicas {self.max_replicas}")
        if self.metric in SHARES and self.target > 1:
            raise ValueError(f"target {self.target:g} of {self.metric} is a share; it must be at most 1")
        return self


class AutoscalingSpec(HorizontalScaling):
    """Horizontal autoscaling like Kubernetes' HPA: `replicas x metric / target`, rounded up, at every interval.

    It scales up at once, and down to the largest number asked for within the stabilization window; changes of less than
    10 % are ignored. The run starts with `deployment.replicas`.
    """

    metric: Literal["queue_depth", "running", "kv_usage", "busy", "slo"] = "queue_depth"
    """`queue_depth`: waiting requests per replica; `running`: requests being served per replica; `kv_usage`: share of
    KV memory in use; `busy`: share of the interval with a step running; `slo`: of the requests that
    ended in the interval, the share that met the objective, or the same share of agents' tasks, whichever is smaller.
    With `slo` a replica is added while the share is below the target, and one is removed when all met the objective and
    the others would each have at most 90 % of the requests that replicas had at the last miss."""
    grace_period: Seconds = 30.0
    """How long a replica that is removed may take to answer its requests; those left are then cut off."""


class EncoderAutoscalingSpec(HorizontalScaling):
    """How the number of encoder workers follows the load: the rule of `deployment.autoscaling`, on metrics of images.

    A new worker takes images once it is ready; images already assigned to others stay there. A worker that is removed
    takes no more images, and is paid for until it has encoded those assigned to it.
    """

    metric: Literal["queue_depth", "busy"] = "queue_depth"
    """`queue_depth`: waiting images and recordings per worker; `busy`: share of the interval in which a worker
    encodes."""
    target: Annotated[float, Field(gt=0)]
    """Target value of the metric: images per worker, or a share for busy."""
    min_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Fewest workers."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)]
    """Most workers."""
    stabilization: Seconds = 300.0
    """How long a lower load must last before workers are given back."""
    startup: StartupSpec = StartupSpec()
    """Startup phases of a new worker, which loads only the encoder."""


class TokenBucketSpec(FrozenModel):
    """A bucket that fills at a constant rate; every admitted request takes one token from it."""

    rate: Annotated[float, Field(gt=0)]
    """Requests a second in the long run."""
    burst: Annotated[float, Field(ge=1)]
    """Requests that a full bucket admits at once."""


class AdmissionSpec(FrozenModel):
    """When a request is answered with 503 and Retry-After instead of being queued. The first rule that refuses is the
    reason; each rule looks at the replica that the router has chosen."""

    token_bucket: TokenBucketSpec | None = None
    """Limit on the rate, in front of all replicas. Reason: `rate_limit`."""
    max_queue: Annotated[int, Field(ge=0)] | None = None
    """Most waiting requests at a replica (or, while none is ready, in front of all). Reason: `queue_full`."""
    kv_headroom: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a replica's KV memory that must be free. Reason: `kv_headroom`."""
    probabilistic_from: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Load above which requests are refused at random, with a probability that grows to 1 at load 1; the load of a
    replica is the larger of its KV use and its unanswered requests over `max_num_seqs`. Reason: `load`."""
    deadline_aware: bool = False
    """Whether to refuse a request whose first token would come too late: when the waiting requests of the replica times
    its mean time between two finishes exceed the TTFT limit (or, without one, the client's timeout).
    Reason: `deadline`."""
    retry_after: Seconds = 1.0
    """How long the refusal tells the client to wait."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        rules = (self.token_bucket, self.max_queue, self.kv_headroom, self.probabilistic_from)
        if not self.deadline_aware and all(rule is None for rule in rules):
            raise ValueError(
                "refuses nobody; give max_queue, kv_headroom, probabilistic_from, token_bucket or deadline_aware"
            )
        return self


class UpdateSpec(FrozenModel):
    """A rolling update: every replica present at its time is drained and replaced by a new one.

    Up to `max_unavailable` replicas at a time are drained first, and the new ones then start on their GPUs, so capacity
    is missing meanwhile. Up to `max_surge` new replicas at a time start on extra GPUs first, which are paid for until
    the old replica has drained.
    """

    at: Seconds
    """When it begins, from the start of the run."""
    max_unavailable: Count = 1
    """Most replicas that are missing at a time (Kubernetes' `maxUnavailable`)."""
    max_surge: Count = 0
    """Most extra replicas at a time (`maxSurge`)."""
    grace_period: Seconds = 30.0
    """How long a replica may take to answer its requests; those left are then cut off
    (`terminationGracePeriodSeconds`)."""
    startup: StartupSpec = StartupSpec()
    """Startup phases of a new replica, until its first request."""
    pool: str | None = None
    """With `deployment.pools`: the pool that is updated; absent: all, one after another."""

    @model_validator(mode="after")
    def _check_pace(self) -> Self:
        if not self.max_unavailable and not self.max_surge:
            raise ValueError("never goes on with max_unavailable 0 and max_surge 0; set one of them to 1")
        return self


class StreamingSpec(FrozenModel):
    """How tokens reach the client: server-sent events through an API server and a network.

    Time to first token, gaps and end-to-end times are then as the client sees them. This path does not slow the engine
    down, except that clients who wait for answers send their next request later.
    """

    stream: bool = True
    """Whether tokens are sent as they are generated; if not, the whole answer is sent at its end."""
    buffer_tokens: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Tokens sent together in one event; the last event may have fewer."""
    stream_interval: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Tokens per event after the first token, which is sent at once, instead of `buffer_tokens`, which holds it back
    too: vLLM's and SGLang's `--stream-interval`, TensorRT-LLM's `stream_interval`. Absent: `buffer_tokens`."""
    network_latency: Seconds = 0.0
    """Network time each way: from client to server, and from server to client."""
    cost_per_event: Seconds = 30e-6
    """CPU time of one event on an API-server core: detokenising, JSON, the socket. Absent: the engine's own figure if
    it has one (SGLang does)."""
    api_servers: Annotated[int, Field(ge=1, le=1024)] = 1
    """API-server cores of a replica, which share its events evenly (vLLM's `--api-server-count`)."""
    http_timeout: PositiveSeconds | None = None
    """How long a proxy or client waits before it closes the connection, which drops the request: for the whole answer
    without streaming, for the first token with streaming, counted where it leaves the server. Absent: for ever."""

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if not self.stream and self.buffer_tokens != 1:
            raise ValueError("sends whole answers; buffer_tokens has no effect with stream: false")
        if not self.stream and self.stream_interval is not None:
            raise ValueError("sends whole answers; stream_interval has no effect with stream: false")
        if self.buffer_tokens != 1 and self.stream_interval is not None:
            raise ValueError("has buffer_tokens and also stream_interval; keep one of the two")
        return self

    @property
    def tokens_per_event(self) -> int:
        """Tokens sent together."""
        return self.stream_interval or self.buffer_tokens

    @property
    def sends_first(self) -> bool:
        """Whether the first token is sent at once, and alone."""
        return self.tokens_per_event == 1 or self.stream_interval is not None

    @property
    def timeouts(self) -> tuple[float | None, float | None]:
        """Return the seconds that a client waits for a whole answer, and for the first token of a stream."""
        return (None, self.http_timeout) if self.stream else (self.http_timeout, None)


class RuleSpec(FrozenModel):
    """Which requests go to a pool, and how often its answer is not good enough."""

    pool: str
    """The pool of `deployment.pools`, or `api`: the one of `deployment.overflow`."""
    classes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Classes that the rule applies to; absent: all whose class does not name a pool itself."""
    min_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Shortest prompt that the rule applies to."""
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest prompt that the rule applies to."""
    misclassified: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of these requests for which the pool's answer is not good enough: when it is complete, the request is sent
    to `retry_pool`. Both answers are computed and paid; the client's first token is that of the second one."""
    retry_pool: str | None = None
    """The pool that misclassified requests are sent to, or `api`."""

    @model_validator(mode="after")
    def _check_retry(self) -> Self:
        if (self.misclassified is None) != (self.retry_pool is None):
            raise ValueError("needs both misclassified and retry_pool, or none of them")
        if self.retry_pool == self.pool:
            raise ValueError(f"asks the pool {self.pool} again, whose answer did not do; name another retry_pool")
        shortest, longest = self.min_prompt_tokens, self.max_prompt_tokens
        if shortest is not None and longest is not None and shortest > longest:
            raise ValueError(f"is about no prompt: min_prompt_tokens {shortest} is above max_prompt_tokens {longest}")
        return self


class RoutingSpec(FrozenModel):
    """How requests are spread over the replicas."""

    policy: RoutingPolicy = "least_outstanding"
    """`round_robin`; `random`; `least_outstanding`: the replica with the fewest unanswered requests; `least_tokens`:
    the one whose unanswered requests have the fewest tokens, counting prompts and the most they may generate;
    `power_of_two`: the less loaded of two drawn at random; `session`: the replica of the session's last turn; `prefix`:
    the one that last served the longest part of the prompt, if that part is large enough (`cache_threshold`), else the
    one with the fewest tokens to do; `lora`: the replica that last served the request's LoRA adapter; requests without
    an adapter go where the fewest unanswered requests are. Ties go to the lowest replica."""
    update_interval: Seconds = 0.0
    """Time between updates of the router's view of the replicas; what was routed since the last one is not in it.
    `0 s`: always up to date."""
    imbalance_guard: Annotated[float, Field(ge=1)] | None = None
    """`session`, `prefix` and `lora`: a replica with more than this many times the mean load is passed over for the
    least loaded one, if it exceeds that one by more than four requests (`session`, `lora`), or by more than the tokens
    that it need not compute (`prefix`, whose load is the tokens of unanswered requests). Absent: 1.5."""
    cache_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """`prefix`: least share of the prompt that a replica must have cached for the request to go there; below it, the
    least loaded replica is chosen. Absent: 0.5."""
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Share of the traffic by pool, on any scale, as for a rollout: `{stable: 95, canary: 5}`; the policy then chooses
    within the pool. Absent: the policy chooses among the replicas of all pools."""
    rules: Annotated[tuple[RuleSpec, ...], Field(min_length=1)] | None = None
    """Which requests go to which pool; the first rule that matches decides, and the policy chooses within its pool. A
    request that matches no rule goes to any pool, or to that of its class. Absent: no rules."""


class ResponseCacheSpec(FrozenModel):
    """A cache of whole answers in front of the router, exact or semantic: a hit costs no GPU time.

    With a measured hit rate, give `hit_share` alone. To see a cache fill up and its answers expire, also give the
    number of distinct questions among the repeated requests (`questions`).
    """

    hit_share: Share | dict[str, Share]
    """Share of the requests that it answers, or such a share by class (none for a class left out). With `questions`:
    the share of the requests that ask one of them; a hit is then one whose answer is cached and has not expired."""
    latency: Seconds = 0.005
    """Time from the gateway to the whole answer: embedding and look-up."""
    questions: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Number of distinct repeated questions (of each class), the k-th most popular one in proportion to k^-`zipf`; the
    cache starts empty. Absent: every one of those requests is a hit, as in a cache that has long been full."""
    zipf: Annotated[float, Field(ge=0, le=10)] = 1.0
    """`questions`: how uneven their popularity is; 0: all equally popular."""
    expiry: PositiveSeconds | None = None
    """`questions`: how long an answer may be reused after it was generated; the first request after that goes to a
    model and renews it. Absent: for ever."""

    @model_validator(mode="after")
    def _check_questions(self) -> Self:
        if self.questions is None and self.expiry is not None:
            raise ValueError(
                "has expiry without questions: whether an answer is too old depends on how often its question comes "
                "again; give questions, or the measured hit_share alone"
            )
        if self.questions is None and self.zipf != type(self).model_fields["zipf"].default:
            raise ValueError("has zipf without questions, which it divides the requests over; add questions")
        if not self._shares or not any(self._shares):
            raise ValueError("hits nothing: hit_share is 0; leave the block out")
        return self

    @property
    def _shares(self) -> list[float]:
        return list(self.hit_share.values()) if isinstance(self.hit_share, dict) else [self.hit_share]

    def share_of(self, name: str | None) -> float:
        """Return the share of a class; None: of requests without a class."""
        return self.hit_share.get(name or "", 0.0) if isinstance(self.hit_share, dict) else self.hit_share


class RegionsSpec(FrozenModel):
    """Pools in regions (`region` of each pool), and clients that are nearer to some regions than to others.

    A request goes to the nearest region with a ready pool that may serve it. The way there and the way of the answer
    back are part of TTFT and E2E, as the client sees them, on top of `streaming.network_latency`. KV caches do not
    leave their region: a region with a prefill pool has a decode pool. (Time limits of clients run until the replica
    has answered, not until the answer has arrived.)
    """

    clients: dict[Region, Annotated[float, Field(gt=0, le=1)]] = Field(default={})
    """Share of the clients in each region; the shares add up to 1. A class with its own `region` needs none."""
    latency: dict[Region, dict[Region, Seconds]] = Field(default={})
    """One-way time between two regions, network and gateways; if given in one direction, it holds for both."""
    within: Seconds = 0.002
    """One-way time between a client and a pool of its own region."""
    spill_above: Annotated[float, Field(gt=0)] | None = None
    """Unanswered requests per ready replica, averaged over a region's pools, above which a request goes to the next
    nearest region; if all regions are above, it goes to the one with the fewest. Absent: it stays in the nearest."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.clients and abs(sum(self.clients.values()) - 1) > 1e-6:
            raise ValueError(
                f"clients have shares that add up to {sum(self.clients.values()):g}; they must add up to 1"
            )
        for here, there, seconds in self._links():
            if here == there:
                raise ValueError(f"latency of {here} to itself is `within`")
            back = self.latency.get(there, {}).get(here, seconds)
            if back != seconds:
                raise ValueError(f"latency between {here} and {there} is given twice, as {seconds:g} s and {back:g} s")
        return self

    def one_way(self, here: str, there: str) -> float | None:
        """Return the one-way seconds from a client's region to a pool's; None if the block does not say."""
        if here == there:
            return self.within
        return self.latency.get(here, {}).get(there, self.latency.get(there, {}).get(here))

    def _links(self) -> Iterator[tuple[str, str, float]]:
        for here, others in self.latency.items():
            for there, seconds in others.items():
                yield here, there, seconds


class DisaggregationSpec(FrozenModel):
    """How KV caches get from prefill replicas to decode replicas: every prefill replica has its own link, and sends one
    cache after the other at full bandwidth.

    The first token reaches the client when the decode replica has received the KV cache, so the transfer and the wait
    for a seat there are part of TTFT: SGLang and TensorRT-LLM send the token along with the cache. A decode server of
    vLLM from 0.9 on recomputes the last token of the prompt instead, so the first token comes one decode step later.

    Under more load than they can finish, more prefill workers may finish less. The decode workers then fill all seats:
    a batch just larger than one with a CUDA graph takes up to twice as long, and vLLM preempts. `max_num_seqs` of the
    decode pool at a size with a graph (256, 512) prevents it. SGLang's decode workers take a request only if 512 tokens
    stay free for each one that runs.
    """

    transfer_bandwidth: PositiveBytesPerSecond = 50e9
    """Bandwidth of the link of one prefill replica, all its GPUs together: eight GPUs with a 400 Gbit/s card each
    (50 GB/s) send 400 GB/s. Where each GPU holds the whole cache (latent attention under tensor parallelism), they send
    copies of it side by side, and the bandwidth is that of one card."""
    transfer_latency: Seconds | None = None
    """Time from the last byte sent to the decode replica's scheduler. Absent: 90 ms with SGLang, whose servers agree on
    a transfer by polling (fitted to ten measured servers), and 1 ms with others (an assumption); with vLLM from 0.9 on
    also the time in the API server of the decode server (`frontend_latency`, the tokens of the prompt), to which a
    proxy sends the request once its prompt is computed."""
    usd_per_gpu_hour: Annotated[float, Field(ge=0)] | None = None
    """Dollars an hour for the link, per GPU of the prefill and decode workers, if it is billed separately (an RDMA
    network that costs more than the plain one). Absent: it is included in the GPU's price."""
    max_in_transfer: Annotated[int, Field(ge=1)] = 64
    """Most KV caches of one prefill replica in transfer, including those that have arrived and wait for a seat; at this
    number the replica starts no further step (back-pressure)."""

    @property
    def landing_seconds(self) -> float:
        """Time from the last byte sent to the decode replica's scheduler, unless the engine has its own."""
        return PLAIN_TRANSFER.latency if self.transfer_latency is None else self.transfer_latency


class OverflowSpec(FrozenModel):
    """When a request goes to an API instead of a queue, and how fast the API answers. The run pays its dollars too."""

    api: str
    """API: a name that `simserve apis` lists, or the path of a profile file; its list price is paid."""
    max_queue: Annotated[int, Field(ge=0)] | None = None
    """Most waiting requests at a replica (or, while none is ready, in front of all); further ones go to the API."""
    above_rate: TokenBucketSpec | None = None
    """Rate that the replicas serve, with the burst they take at once; requests above it go to the API."""
    always: ClassNames | None = None
    """Classes that always go to the API, including prompts that no replica could take (unless a 429 makes them
    `stay`)."""
    never: ClassNames | None = None
    """Classes that must not leave, for example for data residency: they wait for a replica."""
    ttft: PositiveSeconds = 0.5
    """Mean time to first token of the API. If this or one of the next two is absent: the measured value of the API's
    profile (`latency`, which `simserve apis --json` prints with its date and source), else this default."""
    ttft_cv: Annotated[float, Field(ge=0, le=10)] = 0.5
    """Standard deviation over mean of that time; lognormal."""
    tokens_per_second: Annotated[float, Field(gt=0)] = 80.0
    """Tokens a second of one answer after the first token."""
    tokens_per_second_cv: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Standard deviation over mean of the time per token, drawn once per answer; lognormal. 0: all are equally fast."""
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Most requests a minute that the API accepts; absent: no limit."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Most tokens a minute, prompts and `max_tokens`, as OpenAI counts them; absent: no limit."""
    when_limited: Literal["stay", "wait", "refuse"] | None = None
    """What happens on a 429 of the API: `stay`: the request waits for a replica after all (if a routing rule sends it
    to the API alone, it waits for the API); `wait`: the gateway sends it again, in order, as soon as the limit allows;
    `refuse`: the client gets the 429, with Retry-After, and may try again as its class does (reason `api_limit`).
    Absent: `stay`."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        both = set(self.always or ()) & set(self.never or ())
        if both:
            raise ValueError(f"names {', '.join(sorted(both))} in always and in never; keep one of the two")
        if self.when_limited is not None and not self.is_limited:
            raise ValueError("has when_limited without a limit; give requests_per_minute or tokens_per_minute")
        return self

    @property
    def never_stays(self) -> bool:
        """Whether a request sent to the API never ends at a replica."""
        return not self.is_limited or self.when_limited in ("wait", "refuse")

    @property
    def is_limited(self) -> bool:
        """Whether the API can answer 429."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


class LivenessSpec(FrozenModel):
    """A liveness probe that asks every replica for a token, and restarts one that is late too often.

    The probe's request queues behind everything that waits, so an overloaded replica looks as dead as one that hangs:
    it is killed with all its requests, and its load moves to the others. (The probe's own token costs nothing here. A
    probe that only asks whether the process is alive never restarts a replica: leave the block out.)
    """

    period: PositiveSeconds = 10.0
    """Time between two probes (Kubernetes' `periodSeconds`)."""
    timeout: PositiveSeconds = 1.0
    """How long the replica may take to begin with the probe's request (`timeoutSeconds`)."""
    threshold: Annotated[int, Field(ge=1)] = 3
    """Late probes in a row that cause a restart (`failureThreshold`)."""
    restart: PositiveSeconds = 60.0
    """Time from the kill to the first request: the engine starts again and loads its weights."""
    in_flight: Literal["lost", "retry"] = "lost"
    """What happens to its requests: `lost`: clients see an error; `retry`: the router tries another replica, until a
    request was lost ten times."""

    @model_validator(mode="after")
    def _check_timeout(self) -> Self:
        if self.timeout > self.period:
            raise ValueError(f"timeout {self.timeout:g} s must not be longer than period {self.period:g} s")
        return self


class _Timed(FrozenModel):
    """A fault at a given time, or at random times."""

    at: Seconds | None = None
    """When, from the start of the run."""
    duration: PositiveSeconds | None = None
    """With `at`: how long the fault lasts, including a restart and loading the weights."""
    mtbf: PositiveSeconds | None = None
    """Instead of `at`: mean time between two faults of one replica (or node), exponential."""
    mttr: PositiveSeconds | None = None
    """With `mtbf`: mean duration of a fault, exponential."""
    pool: str | None = None
    """With `deployment.pools`: the pool that it affects; `replica` and `node` then count within the pool. Absent: they
    count over all pools in order."""

    @model_validator(mode="after")
    def _check_time(self) -> Self:
        if (self.at is None) == (self.mtbf is None):
            raise ValueError("needs either at, with a duration, or mtbf and mttr")
        if self.at is not None and (self.duration is None or self.mttr is not None):
            raise ValueError("has a time at which it happens: give duration, not mttr")
        if self.mtbf is not None and (self.mttr is None or self.duration is not None):
            raise ValueError("happens at random: give mttr, not duration")
        return self


class _Losing(_Timed):
    in_flight: Literal["lost", "retry"] = "lost"
    """What happens to its requests: `lost`: clients see an error, and may try again; `retry`: the router sends them to
    another replica, where they start over, until a request was lost ten times."""


class ReplicaFault(_Losing):
    """A replica crashes, and comes back."""

    kind: Literal["replica"] = "replica"
    """`replica`."""
    replica: Place = 0
    """With `at`: which replica, from 0."""


class NodeFault(_Losing):
    """A node is lost with all replicas on it; nodes are filled with replicas in order."""

    kind: Literal["node"] = "node"
    """`node`."""
    node: Place = 0
    """With `at`: which node, from 0."""


class SpotFault(_Losing):
    """A spot instance is taken back after a notice: it gets no more requests, and those left at the end are cut off."""

    kind: Literal["spot"] = "spot"
    """`spot`."""
    replica: Place = 0
    """With `at`: which replica, from 0."""
    notice: Seconds = 120.0
    """Warning before the instance is taken (AWS gives two minutes). `duration` (or `mttr`) runs from then until its
    replacement takes requests. The replacement is paid for from its launch: `deployment.autoscaling.startup` before it
    is ready, or without autoscaling the defaults of that block."""


class SlowFault(_Timed):
    """A replica whose steps take longer: a hot GPU, a noisy neighbour, a bad link."""

    kind: Literal["slow"] = "slow"
    """`slow`."""
    replica: Place = 0
    """With `at`: which replica, from 0."""
    factor: Annotated[float, Field(gt=1)] = 2.0
    """How many times as long every step takes."""


class LinkFault(_Timed):
    """The link on which a prefill replica sends its KV caches is slow, or down."""

    kind: Literal["link"] = "link"
    """`link`; with `deployment.disaggregation`."""
    replica: Place = 0
    """With `at`: which prefill replica, from 0."""
    factor: Annotated[float, Field(gt=1)] | None = None
    """How many times as long a transfer takes. Absent: the link is down; caches on it and new ones wait until it is
    back, and back-pressure stops the prefill replica."""


class ProbeSpec(FrozenModel):
    """How an orchestrator notices that a replica hangs."""

    depth: Literal["deep", "shallow"] = "deep"
    """`deep`: the probe asks for a token; `shallow`: it asks whether the process is alive, and never notices."""
    period: PositiveSeconds = 10.0
    """Time between two probes."""
    threshold: Annotated[int, Field(ge=1)] = 3
    """Failed probes in a row that cause a restart (Kubernetes' `failureThreshold`)."""


class BlackHoleFault(_Losing):
    """A replica that accepts requests and never answers. It is restarted when its probe notices."""

    kind: Literal["black_hole"] = "black_hole"
    """`black_hole`. `duration` (or `mttr`) is how long the restart takes once the fault is noticed; unnoticed, it
    hangs that long and then goes on."""
    replica: Place = 0
    """With `at`: which replica, from 0."""
    probe: ProbeSpec = ProbeSpec()
    """The probe that notices."""


FaultSpec = Annotated[
    ReplicaFault | NodeFault | SpotFault | SlowFault | BlackHoleFault | LinkFault, Field(discriminator="kind")
]


class FairnessSpec(FrozenModel):
    """Tenants take turns by their shares: requests wait in front of the replicas, in one queue per class.

    When a replica has room, the class with the least service relative to its share goes first. Service is prompt tokens
    plus twice the generated tokens, counted as they are spent (the virtual token counter of Sheng et al., "Fairness in
    Serving Large Language Models", OSDI 2024). A class that was idle does not save up turns. Room that a class does
    not use goes to the others.
    """

    shares: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=2)]
    """Share of the service by class, on any scale, while all classes have requests waiting: `{gold: 3, free: 1}`."""
    max_outstanding: Annotated[int, Field(ge=1)] | None = None
    """Most unanswered requests of a replica; further ones wait in front, where classes take turns. A lower number makes
    turns fairer and batches smaller. Absent: its `max_num_seqs`."""


class Limits(NamedTuple):
    """The objective of a class: the limit on each latency of a request, seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    ttfvt: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The blocks that decide during a run."""

    routing: RoutingSpec = field(default_factory=RoutingSpec)  # How requests are spread.
    admission: AdmissionSpec | None = None  # Which requests are refused; None: none.
    limits: tuple[Limits, ...] = (Limits(),)  # Objective of each class; one entry if it is for all requests.
    task_limit: float | None = None  # Limit on the duration of an agent's task, seconds; None: no limit.
    autoscaling: AutoscalingSpec | None = None  # How the number of replicas follows the load; None: it is fixed.
    startup_seconds: float = 0.0  # From the launch of a replica to its first request.
    encoder_scaling: EncoderAutoscalingSpec | None = None
    """How the number of encoder workers follows the load; None: it is fixed, or there are none."""
    encoder_startup_seconds: float = 0.0  # From the launch of such a worker to its first image.
    faults: tuple[FaultSpec, ...] = ()  # What goes wrong.
    liveness: LivenessSpec | None = None  # The probe that restarts replicas; None: no probe.
    updates: tuple[UpdateSpec, ...] = ()  # Rolling updates.
    regions: RegionsSpec | None = None  # Where clients and pools are; None: regions do not matter.
    replicas_per_node: int = 1  # How many replicas fill a node.
    weights_bytes: float = 0.0  # Weights of one replica over all its GPUs, which a start loads.
    disaggregation: DisaggregationSpec | None = None
    """How KV caches get from prefill to decode pools; None: every replica does both."""
    kv_bytes_per_token: float = 0.0  # Of the whole model, for those KV caches.
    landing_seconds_per_token: float = 0.0  # Seconds that each prompt token adds to their ``transfer_latency``.
    overflow: OverflowSpec | None = None  # When requests go to an API; None: never.
    streaming: StreamingSpec | None = None  # How tokens reach the client; None: at once.
    response_cache: ResponseCacheSpec | None = None  # Which requests are answered without a model; None: none.
    fairness: FairnessSpec | None = None  # Whose turn it is; None: first come, first served.
    allowed: tuple[tuple[int, ...], ...] = ()
    """Indices of the pools that may serve each class; empty: all pools for all classes."""

    @property
    def changes_fleet(self) -> bool:
        """Whether replicas, or encoder workers, come and go, or break; pools may also have their own autoscalers."""
        return any(OF_FLEET(self))

    @property
    def rules(self) -> tuple[RuleSpec, ...]:
        """The router's rules, after one for the classes that never go to a replica."""
        own, api = self.routing.rules or (), self.overflow
        if api is None or api.always is None or not api.never_stays:
            return own
        return (RuleSpec(pool=API_POOL, classes=api.always), *own)

    @property
    def has_gateway(self) -> bool:
        """Whether anything in front of the replicas answers requests, or decides whose turn it is."""
        return any(OF_GATEWAY(self))
