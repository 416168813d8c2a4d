"""Control: the blocks of `deployment` that decide while a run goes on, from routing to faults. Decides nothing.

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
SHARES = ("kv_usage", "busy", "slo")
"""Metrics whose target is a share."""
BLIND_POLICIES = ("round_robin", "random")
"""Policies that look at no signal."""
TOKEN_POLICIES = ("least_tokens", "prefix")
"""Policies whose load is tokens, not requests."""
API_POOL = "api"
"""Name of the API of `deployment.overflow` among the pools of a rule."""
OF_GATEWAY = attrgetter("overflow", "response_cache", "fairness", "routing.rules")
"""What of a `Control` answers requests in front of the replicas, or says whose turn it is."""
OF_FLEET = attrgetter("autoscaling", "encoder_scaling", "faults", "updates", "liveness")
"""What of it lets replicas, or encoder workers, come and go, or break."""
OF_REQUESTS = attrgetter("admission", "disaggregation", "streaming")
"""What of it decides about single requests besides."""


class StartupSpec(FrozenModel):
    """What passes between the decision to add a replica and its first request; the GPUs are paid for from the start."""

    schedule: Seconds = 20.0
    """A node is found, or booted."""
    image: Seconds = 60.0
    """The container image is pulled."""
    load_bandwidth: PositiveBytesPerSecond = 2e9
    """Bandwidth at which the weights of the whole replica are read from storage."""
    engine: Seconds = 40.0
    """The engine starts: profiling, CUDA graphs, compilation, warm-up."""

    def seconds(self, weights_bytes: float) -> float:
        """Return the seconds of a start with so many bytes of weights."""
        return self.schedule + self.image + weights_bytes / self.load_bandwidth + self.engine


class HorizontalScaling(FrozenModel):
    """What the scaling of replicas and that of encoder workers have in common."""

    metric: str
    """What is looked at."""
    target: Annotated[float, Field(gt=0)]
    """What the metric should be: a number of requests a replica, or for kv_usage, busy and slo a share."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Fewest replicas; 0: none while nothing is asked for, and the first request waits for a start."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)]
    """Most replicas."""
    interval: PositiveSeconds = 15.0
    """How often the metric is looked at."""
    stabilization: Seconds = 300.0
    """How long a lower load must last before replicas are given back."""
    startup: StartupSpec = StartupSpec()
    """How long a new replica takes."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} must not be above max_replicas {self.max_replicas}")
        if self.metric in SHARES and self.target > 1:
            raise ValueError(f"target {self.target:g} of {self.metric} is a share; it must be at most 1")
        return self


class AutoscalingSpec(HorizontalScaling):
    """Horizontal autoscaling as Kubernetes' HPA does it: `replicas x metric / target`, rounded up, at every interval.

    It grows at once and shrinks to the largest number asked for within the stabilization window; a change of less than
    a tenth is left alone. `deployment.replicas` are there at the start.
    """

    metric: Literal["queue_depth", "running", "kv_usage", "busy", "slo"] = "queue_depth"
    """`queue_depth`: requests that wait, of a replica; `running`: requests being served, of a replica; `kv_usage`:
    share of KV memory in use; `busy`: share of the interval with a step running; `slo`: share of the requests ended in
    the interval that met the objective, or of the agents' tasks ended in it, whichever is smaller: one replica more
    while it is below the target, one less when all met it and the others would have at most nine tenths of the requests
    each that replicas had at the last miss."""
    grace_period: Seconds = 30.0
    """How long a replica that is given back may take to answer what it has; then its requests are cut off."""


class EncoderAutoscalingSpec(HorizontalScaling):
    """How the workers of an encoder pool follow the load: the rule of `deployment.autoscaling`, on metrics of images.

    A worker that is added takes images from when it is ready; what others were given stays with them. One that is given
    back takes no more, and is paid for until it has encoded what it was given.
    """

    metric: Literal["queue_depth", "busy"] = "queue_depth"
    """`queue_depth`: images and recordings that wait for their turn, of a worker; `busy`: share of the interval in
    which a worker encodes."""
    target: Annotated[float, Field(gt=0)]
    """What the metric should be: a number of images a worker, or for busy a share."""
    min_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Fewest workers."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)]
    """Most workers."""
    stabilization: Seconds = 300.0
    """How long a lower load must last before workers are given back."""
    startup: StartupSpec = StartupSpec()
    """How long a new worker takes, which loads the encoder alone."""


class TokenBucketSpec(FrozenModel):
    """A bucket that fills at a rate and that every admitted request takes one token from."""

    rate: Annotated[float, Field(gt=0)]
    """Requests a second in the long run."""
    burst: Annotated[float, Field(ge=1)]
    """Requests that an unused bucket lets in at once."""


class AdmissionSpec(FrozenModel):
    """When a request is answered with 503 and Retry-After instead of being queued. The first rule that refuses is the
    reason; each looks at the replica that the router has chosen."""

    token_bucket: TokenBucketSpec | None = None
    """Limit on the rate, in front of all replicas. Reason: `rate_limit`."""
    max_queue: Annotated[int, Field(ge=0)] | None = None
    """Most requests that wait at a replica (or, while none is ready, in front of all). Reason: `queue_full`."""
    kv_headroom: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a replica's KV memory that must be free. Reason: `kv_headroom`."""
    probabilistic_from: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Load from which requests are refused at random, more and more of them up to all at load 1; the load of a replica
    is the larger of its KV use and its unanswered requests over `max_num_seqs`. Reason: `load`."""
    deadline_aware: bool = False
    """Whether a request is refused whose first token would come too late: the requests that wait at the replica times
    its mean time between two finishes is more than the TTFT limit (or, without one, than the client's timeout).
    Reason: `deadline`."""
    retry_after: Seconds = 1.0
    """What the refusal tells the client to wait."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        rules = (self.token_bucket, self.max_queue, self.kv_headroom, self.probabilistic_from)
        if not self.deadline_aware and all(rule is None for rule in rules):
            raise ValueError(
                "refuses nobody; give max_queue, kv_headroom, probabilistic_from, token_bucket or deadline_aware"
            )
        return self


class UpdateSpec(FrozenModel):
    """A rolling update: every replica that is there at its time is drained and replaced by a new one.

    Of `max_unavailable` replicas at a time each is drained first, and its GPUs then start the new one: capacity is
    missing. Of `max_surge` at a time a new one is started on further GPUs first, which are paid for until the old one
    has drained.
    """

    at: Seconds
    """When it begins, from the start of the run."""
    max_unavailable: Count = 1
    """Most replicas that are missing at a time (Kubernetes' `maxUnavailable`)."""
    max_surge: Count = 0
    """Most replicas beyond the number there is (`maxSurge`)."""
    grace_period: Seconds = 30.0
    """How long a replica may take to answer what it has; then its requests are cut off
    (`terminationGracePeriodSeconds`)."""
    startup: StartupSpec = StartupSpec()
    """How long a new replica takes from its start to its first request."""
    pool: str | None = None
    """With `deployment.pools`: the pool that is updated; absent: all, one after another."""

    @model_validator(mode="after")
    def _check_pace(self) -> Self:
        if not self.max_unavailable and not self.max_surge:
            raise ValueError("never goes on with max_unavailable 0 and max_surge 0; set one of them to 1")
        return self


class StreamingSpec(FrozenModel):
    """How tokens reach the client: server-sent events through an API server and a network.

    Time to first token, gaps and end-to-end times are then those that the client sees. What happens on this way does
    not slow the engine down, except that clients who wait for answers send their next request later.
    """

    stream: bool = True
    """Whether tokens are sent as they come; if not, the whole answer is sent at its end."""
    buffer_tokens: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Tokens that are sent together in one event; the last one may have fewer."""
    network_latency: Seconds = 0.0
    """Time from client to server, and from server to client: each way."""
    cost_per_event: Seconds = 30e-6
    """CPU time of one event on an API-server core: detokenising, JSON, the socket. Where it is left out, the engine's
    own figure if there is one (SGLang's)."""
    api_servers: Annotated[int, Field(ge=1, le=1024)] = 1
    """API-server cores of a replica, which share its events evenly (vLLM's `--api-server-count`)."""
    http_timeout: PositiveSeconds | None = None
    """How long a proxy or client waits before it closes the connection, which drops the request: without streaming for
    the answer, with streaming for the first token, counted where it leaves the server. Absent: for ever."""

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if not self.stream and self.buffer_tokens != 1:
            raise ValueError("sends whole answers; buffer_tokens has no effect with stream: false")
        return self

    @property
    def timeouts(self) -> tuple[float | None, float | None]:
        """Return the seconds that a client waits for a whole answer, and for the first token of a stream."""
        return (None, self.http_timeout) if self.stream else (self.http_timeout, None)


class RuleSpec(FrozenModel):
    """Which requests go to a pool, and how often its answer does not do."""

    pool: str
    """The pool of `deployment.pools`, or `api`: the one of `deployment.overflow`."""
    classes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Classes that it is about; absent: all whose class names no pool itself."""
    min_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Shortest prompt that it is about."""
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest prompt that it is about."""
    misclassified: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of these requests that the pool's answer does not do for: when it is complete, they are asked again of
    `retry_pool`. Both answers are computed and paid; the client's first token is that of the second one."""
    retry_pool: str | None = None
    """The pool that misclassified requests are asked again of, or `api`."""

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
    the one whose unanswered requests have the fewest tokens, prompts and the most they may generate; `power_of_two`:
    the less loaded of two drawn at random; `session`: where the session's last turn went; `prefix`: where the longest
    part of the prompt was served last, if that is much of it (`cache_threshold`), else the one with the fewest tokens
    to do; `lora`: where the request's LoRA adapter went last, requests without one to the fewest unanswered requests.
    Ties go to the lowest replica."""
    update_interval: Seconds = 0.0
    """How old the router's view of the replicas gets: it is renewed so often, and what was routed since is not in it.
    `0 s`: always up to date."""
    imbalance_guard: Annotated[float, Field(ge=1)] | None = None
    """`session`, `prefix` and `lora`: a replica with more than this many times the mean load of all is passed over for
    the least loaded one, if it has more to do than that one by four requests (`session`, `lora`), or by the tokens that
    it need not compute (`prefix`, whose load is the tokens of unanswered requests). Absent: 1.5."""
    cache_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """`prefix`: the share of the prompt that a replica must know for the request to go there; below it, the least
    loaded one is chosen. Absent: 0.5."""
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Share of the traffic by pool, any scale, as for a roll-out: `{stable: 95, canary: 5}`; the policy then chooses
    within the pool. Absent: the policy chooses among the replicas of all pools."""
    rules: Annotated[tuple[RuleSpec, ...], Field(min_length=1)] | None = None
    """Which requests go to which pool; the first rule that fits counts, and the policy then chooses within its pool.
    What fits none goes to any pool, or to that of its class. Absent: no rules."""


class ResponseCacheSpec(FrozenModel):
    """A cache of whole answers in front of the router, exact or semantic: what it holds costs no GPU.

    With a measured hit rate, give `hit_share` alone. To see a cache fill up and its answers expire, say how many
    questions the repeated requests ask (`questions`).
    """

    hit_share: Share | dict[str, Share]
    """Share of the requests that it answers, or such a share by class (a class left out: none). With `questions`: the
    share of the requests that ask one of them; a hit is then one whose answer is held and has not expired."""
    latency: Seconds = 0.005
    """Time from the gateway to the whole answer: embedding, look-up."""
    questions: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Different questions that come again (of each class), the k-th most popular one in proportion to k^-`zipf`; the
    cache is empty at first. Absent: each of those requests is a hit, as in a cache that has long been full."""
    zipf: Annotated[float, Field(ge=0, le=10)] = 1.0
    """`questions`: how unequal they are; 0: all alike."""
    expiry: PositiveSeconds | None = None
    """`questions`: how long an answer may be given again, from when it was made; the first request after that goes to
    a model and renews it. Absent: for ever."""

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
        """Return the share of a class; of requests without one for None."""
        if isinstance(self.hit_share, dict):
            return self.hit_share.get(name or "", 0.0)
        return self.hit_share


class RegionsSpec(FrozenModel):
    """Pools in regions (`region` of each pool), and clients that are nearer to some than to others.

    A request goes to the nearest region with a pool that may serve it and is ready. Its way there and the way of its
    answer back are part of TTFT and E2E, as its client sees them, beside `streaming.network_latency`. KV caches do not
    leave their region: one with a prefill pool has a decode pool. (Time limits of clients run until the replica has
    answered, not until the answer has arrived.)
    """

    clients: dict[Region, Annotated[float, Field(gt=0, le=1)]] = Field(default={})
    """Share of the clients in each region; they add up to 1. A class with a `region` of its own needs none."""
    latency: dict[Region, dict[Region, Seconds]] = Field(default={})
    """One way between two regions, network and gateways; given one way round, it is that of the other too."""
    within: Seconds = 0.002
    """One way between a client and a pool of its own region."""
    spill_above: Annotated[float, Field(gt=0)] | None = None
    """Requests a ready replica, on average over a region's pools, above which a request goes on to the next nearest
    region; where all are above, to the one with the fewest. Absent: it stays in the nearest."""

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
        """Return the seconds from a client's region to a pool's; None where the block does not say."""
        if here == there:
            return self.within
        return self.latency.get(here, {}).get(there, self.latency.get(there, {}).get(here))

    def _links(self) -> Iterator[tuple[str, str, float]]:
        for here, others in self.latency.items():
            for there, seconds in others.items():
                yield here, there, seconds


class DisaggregationSpec(FrozenModel):
    """How KV caches get from prefill replicas to decode replicas: every prefill replica has a link of its own, and
    sends one cache after the other at full bandwidth.

    The first token reaches the client when the decode replica has taken the KV cache in, so the transfer and the wait
    for a seat there are part of TTFT: SGLang and TensorRT-LLM send it along with the cache. A decode server of vLLM
    from 0.9 on computes the last token of the prompt again instead, and the first token comes one decode step later.
    """

    transfer_bandwidth: PositiveBytesPerSecond = 50e9
    """Bandwidth of the link of one prefill replica."""
    transfer_latency: Seconds | None = None
    """Time from the last byte sent to the decode replica's scheduler. Absent: 90 ms with SGLang, whose servers agree on
    a transfer by polling (fitted to ten measured servers), and 1 ms with others, an assumption; with vLLM from 0.9 on
    also the way through the API server of the decode server (`frontend_latency`, the tokens of the prompt), to which a
    proxy sends the request once its prompt is computed."""
    usd_per_gpu_hour: Annotated[float, Field(ge=0)] | None = None
    """Dollars an hour of the link, for each GPU of the prefill and decode workers, where it is billed apart (a network
    with RDMA that costs more than the plain one). Absent: the GPU's own price has it."""
    max_in_transfer: Annotated[int, Field(ge=1)] = 64
    """Most caches of one prefill replica on their way, those included that have arrived and wait for a seat; while so
    many are, the replica starts no further step (back-pressure)."""

    @property
    def landing_seconds(self) -> float:
        """Time from the last byte sent to the decode replica's scheduler, where no engine says another."""
        return PLAIN_TRANSFER.latency if self.transfer_latency is None else self.transfer_latency


class OverflowSpec(FrozenModel):
    """When a request goes to an API instead of a queue, and how fast that answers. The run pays its dollars too."""

    api: str
    """API: a name that `simserve apis` lists, or the path of a profile file; its list price is paid."""
    max_queue: Annotated[int, Field(ge=0)] | None = None
    """Most requests that wait at a replica (or, while none is ready, in front of all); one more goes to the API."""
    above_rate: TokenBucketSpec | None = None
    """Rate that the replicas serve, with the burst they take at once: what comes above it goes to the API."""
    always: ClassNames | None = None
    """Classes that go to the API whatever the replicas do, prompts that no replica could take included (unless a 429
    makes them `stay`)."""
    never: ClassNames | None = None
    """Classes whose text must not leave, as data residency asks: they wait for a replica."""
    ttft: PositiveSeconds = 0.5
    """Mean time to first token of the API. Absent, as the next two: what the API's profile has as measured (`latency`,
    which `simserve apis --json` prints with its date and source), else this."""
    ttft_cv: Annotated[float, Field(ge=0, le=10)] = 0.5
    """Standard deviation over mean of that time; lognormal."""
    tokens_per_second: Annotated[float, Field(gt=0)] = 80.0
    """Tokens a second of one answer after the first."""
    tokens_per_second_cv: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Standard deviation over mean of the time a token, one draw an answer; lognormal. 0: every answer is as fast."""
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Most requests a minute that the API takes; absent: any number."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Most tokens a minute, prompts and `max_tokens`, as OpenAI counts them; absent: any number."""
    when_limited: Literal["stay", "wait", "refuse"] | None = None
    """What a 429 of the API leads to: `stay`: the request waits for a replica after all (except where a routing rule
    sends it to the API alone: it waits for that); `wait`: the gateway sends it
    again as soon as the limit lets it in, in order; `refuse`: the client gets the 429, with Retry-After, and may try
    again as its class does (reason `api_limit`). Absent: `stay`."""

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
        """Whether what is sent to the API never ends at a replica."""
        return not self.is_limited or self.when_limited in ("wait", "refuse")

    @property
    def is_limited(self) -> bool:
        """Whether the API ever answers 429."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


class LivenessSpec(FrozenModel):
    """A liveness probe that asks every replica for a token, and restarts the one that is late too often.

    The probe's request takes its place in the queue, behind everything that waits, so a replica that is overloaded
    looks as dead as one that hangs: it is killed with all it holds, and its load moves to the others. (The probe's own
    token costs nothing here. A probe that only asks whether the process is alive restarts nobody: leave the block out.)
    """

    period: PositiveSeconds = 10.0
    """Time from one probe to the next (Kubernetes' `periodSeconds`)."""
    timeout: PositiveSeconds = 1.0
    """How long the replica may take to begin with the probe's request (`timeoutSeconds`)."""
    threshold: Annotated[int, Field(ge=1)] = 3
    """Probes in a row that must be late (`failureThreshold`)."""
    restart: PositiveSeconds = 60.0
    """From the kill to the first request: the engine starts again and loads its weights."""
    in_flight: Literal["lost", "retry"] = "lost"
    """What becomes of the requests on it: `lost` to their clients, or `retry`: the router tries another replica,
    until a request was lost ten times."""

    @model_validator(mode="after")
    def _check_timeout(self) -> Self:
        if self.timeout > self.period:
            raise ValueError(f"timeout {self.timeout:g} s must not be longer than period {self.period:g} s")
        return self


class _Timed(FrozenModel):
    """A fault at a time, or at random times."""

    at: Seconds | None = None
    """When, from the start of the run."""
    duration: PositiveSeconds | None = None
    """With `at`: how long until it is over, a restart and loading of weights included."""
    mtbf: PositiveSeconds | None = None
    """Instead of `at`: mean time between two faults of one replica (or node), exponential."""
    mttr: PositiveSeconds | None = None
    """With `mtbf`: mean time until it is over, exponential."""
    pool: str | None = None
    """With `deployment.pools`: the pool it strikes; `replica` and `node` then count within it. Absent: they count over
    all pools in their order."""

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
    """What becomes of the requests on it: `lost` (their clients see an error, and may try again), or `retry`: the
    router sends them to another replica, where they start over, until a request was lost ten times."""


class ReplicaFault(_Losing):
    """A replica crashes, and comes back."""

    kind: Literal["replica"] = "replica"
    """`replica`."""
    replica: Place = 0
    """With `at`: which one, from 0."""


class NodeFault(_Losing):
    """A node is lost with all replicas on it; replicas fill nodes in their order."""

    kind: Literal["node"] = "node"
    """`node`."""
    node: Place = 0
    """With `at`: which one, from 0."""


class SpotFault(_Losing):
    """A spot instance is taken back after a notice: it gets no more requests, and what is left is cut off."""

    kind: Literal["spot"] = "spot"
    """`spot`."""
    replica: Place = 0
    """With `at`: which one, from 0."""
    notice: Seconds = 120.0
    """Warning before it is taken (AWS gives two minutes). `duration` (or `mttr`) runs from there until the instance
    that replaces it takes requests. That is paid for from its launch: `deployment.autoscaling.startup` before it is
    ready, or without autoscaling the defaults of that block."""


class SlowFault(_Timed):
    """A replica whose steps take longer: a hot GPU, a noisy neighbour, a bad link."""

    kind: Literal["slow"] = "slow"
    """`slow`."""
    replica: Place = 0
    """With `at`: which one, from 0."""
    factor: Annotated[float, Field(gt=1)] = 2.0
    """How many times as long every step takes."""


class LinkFault(_Timed):
    """The link over which a prefill replica sends its KV caches is slow, or down."""

    kind: Literal["link"] = "link"
    """`link`; with `deployment.disaggregation`."""
    replica: Place = 0
    """With `at`: which prefill replica's, from 0."""
    factor: Annotated[float, Field(gt=1)] | None = None
    """How many times as long a transfer takes. Absent: the link is down; what is on it, and what comes, waits until it
    is back, and back-pressure holds the prefill replica."""


class ProbeSpec(FrozenModel):
    """How an orchestrator notices that a replica hangs."""

    depth: Literal["deep", "shallow"] = "deep"
    """`deep`: it asks for a token; `shallow`: it asks whether the process is alive, and never notices."""
    period: PositiveSeconds = 10.0
    """Time between two probes."""
    threshold: Annotated[int, Field(ge=1)] = 3
    """Probes in a row that must fail (Kubernetes' `failureThreshold`)."""


class BlackHoleFault(_Losing):
    """A replica that accepts requests and never answers. It is restarted when its probe notices."""

    kind: Literal["black_hole"] = "black_hole"
    """`black_hole`. `duration` (or `mttr`) is how long the restart takes once it was noticed; unnoticed, it hangs that
    long and then goes on."""
    replica: Place = 0
    """With `at`: which one, from 0."""
    probe: ProbeSpec = ProbeSpec()
    """What notices."""


FaultSpec = Annotated[
    ReplicaFault | NodeFault | SpotFault | SlowFault | BlackHoleFault | LinkFault,
    Field(discriminator="kind"),
]


class FairnessSpec(FrozenModel):
    """Tenants take turns by their shares: requests wait in front of the replicas, in a queue for each class.

    When a replica has room, the class goes first that has had the least service for its share: prompt tokens plus
    twice the generated ones, counted as they are spent (the virtual token counter of Sheng et al., "Fairness in
    Serving Large Language Models", OSDI 2024). A class that was away does not save up turns. Room that a class does
    not use goes to the others.
    """

    shares: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=2)]
    """Share of the service by class, any scale, as long as all of them have something waiting: `{gold: 3, free: 1}`."""
    max_outstanding: Annotated[int, Field(ge=1)] | None = None
    """Most unanswered requests of a replica; more wait in front, where turns are taken. Fewer make turns fairer and
    batches smaller. Absent: its `max_num_seqs`."""


class Limits(NamedTuple):
    """The objective of a class: the most seconds of each latency of a request; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    ttfvt: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What decides in a run.

    Attributes:
        routing: How requests are spread.
        admission: Who is turned away; None: nobody.
        limits: Objective of each class; of all requests: one entry.
        task_limit: The most seconds of an agent's task; None: no limit.
        autoscaling: How the number of replicas follows the load; None: it does not.
        startup_seconds: From the launch of a replica to its first request.
        encoder_scaling: How the workers of an encoder pool follow the load; None: they do not, or there are none.
        encoder_startup_seconds: From the launch of such a worker to its first image.
        faults: What goes wrong.
        liveness: The probe that restarts replicas; None: there is none.
        updates: When replicas are replaced one after another.
        regions: Where clients and pools are; None: it does not matter.
        replicas_per_node: How many replicas fill a node.
        weights_bytes: Of one replica, over all its GPUs: what a start loads.
        disaggregation: How KV caches get from prefill to decode pools; None: every replica does both.
        kv_bytes_per_token: Of the whole model, for them.
        landing_seconds_per_token: What a token of the prompt adds to their ``transfer_latency``.
        overflow: When requests go to an API; None: never.
        streaming: How tokens reach the client; None: at once.
        response_cache: Which requests are answered without a model; None: none.
        fairness: Whose turn it is; None: who comes first.
        allowed: Indices of the pools that may serve each class; empty: all, for all.
    """

    routing: RoutingSpec = field(default_factory=RoutingSpec)
    admission: AdmissionSpec | None = None
    limits: tuple[Limits, ...] = (Limits(),)
    task_limit: float | None = None
    autoscaling: AutoscalingSpec | None = None
    startup_seconds: float = 0.0
    encoder_scaling: EncoderAutoscalingSpec | None = None
    encoder_startup_seconds: float = 0.0
    faults: tuple[FaultSpec, ...] = ()
    liveness: LivenessSpec | None = None
    updates: tuple[UpdateSpec, ...] = ()
    regions: RegionsSpec | None = None
    replicas_per_node: int = 1
    weights_bytes: float = 0.0
    disaggregation: DisaggregationSpec | None = None
    kv_bytes_per_token: float = 0.0
    landing_seconds_per_token: float = 0.0
    overflow: OverflowSpec | None = None
    streaming: StreamingSpec | None = None
    response_cache: ResponseCacheSpec | None = None
    fairness: FairnessSpec | None = None
    allowed: tuple[tuple[int, ...], ...] = ()

    @property
    def changes_fleet(self) -> bool:
        """Whether replicas, or encoder workers, come and go, or break; pools may besides have autoscalers."""
        return any(OF_FLEET(self))

    @property
    def rules(self) -> tuple[RuleSpec, ...]:
        """The router's rules, before them that of the classes which never see a replica."""
        own, api = self.routing.rules or (), self.overflow
        if api is None or api.always is None or not api.never_stays:
            return own
        return (RuleSpec(pool=API_POOL, classes=api.always), *own)

    @property
    def has_gateway(self) -> bool:
        """Whether anything in front of the replicas answers requests, or says whose turn it is."""
        return any(OF_GATEWAY(self))
