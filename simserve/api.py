"""The public functions: load and run a scenario, ask what fits and what to deploy, compare with measurements."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from simserve.errors import UsageError
from simserve.metrics.summary import frozen
from simserve.report.run_result import RunResult, write_folder
from simserve.scenario.folder import default_folder, staged_folder
from simserve.scenario.load import load as load_file
from simserve.scenario.resolve import resolve
from simserve.scenario.run import Progress
from simserve.scenario.run import run as run_scenario
from simserve.scenario.schema import Scenario
from simserve.sim.acceleration import Accelerate
from simserve.sim.own_parts import OwnParts
from simserve.units import requests_per_second

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.planner.capacity.answer import Progress as LoadProgress
    from simserve.planner.capacity.answer import Tried
    from simserve.planner.compare import Progress as RunsProgress
    from simserve.planner.plan.watch import Stage
    from simserve.planner.search.member import Objective
    from simserve.report.capacity import Capacity
    from simserve.report.compare import Comparison
    from simserve.report.cost import CostResult
    from simserve.report.diff import Diff
    from simserve.report.plan import PlanPage
    from simserve.report.sweep import Sweep
    from simserve.report.validation import Validation
    from simserve.scenario.finishable import KnownFinishable
    from simserve.scenario.load import Overrides
    from simserve.scenario.verify import Verification
    from simserve.sim.own_clients import Event
    from simserve.sim.own_parts import AdmissionFunction, AutoscalerFunction, RouterFunction, StepSecondsFunction

PageT = TypeVar("PageT")
_log = logging.getLogger("simserve")

__all__ = [
    "Progress",
    "RunResult",
    "Scenario",
    "Simulation",
    "capacity",
    "compare",
    "cost",
    "default_folder",
    "diff",
    "load",
    "memory",
    "plan",
    "run",
    "sweep",
    "validate",
    "verify",
]


def load(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Overrides = (),
    *,
    gpus: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    replicas: int | None = None,
    routing: str | None = None,
    engine: str | None = None,
    quantization: str | None = None,
    rate: float | str | None = None,
    concurrency: int | None = None,
    trace: str | Path | None = None,
    columns: str | None = None,
    prompt_tokens: int | str | None = None,
    output_tokens: int | str | None = None,
    num_requests: int | None = None,
    slo: str | None = None,
    like: str | None = None,
) -> Scenario:
    """Return the scenario of a file, a bundled name, a mapping or one line, with every default filled in.

    One line is what the commands take: ``ss.load("Qwen/Qwen3-8B", gpus="2xH100", rate=3, prompt_tokens="2k",
    output_tokens=500, slo="ttft=1s")``. What it assumes is told to the log `simserve`.

    Args:
        source: A path (with a separator or a ``.yaml``, ``.yml`` or ``.json`` ending), a name that
            `simserve scenarios` lists, or what a file would hold, whose relative paths refer to the working folder;
            with keywords also a model: a profile, a Hugging Face id or a ``config.json``.
        overrides: Applied before validation, in order: texts ``"deployment.replicas=2"`` whose value is YAML (or one
            such text), or a mapping of dotted keys to values. An element of a list is addressed by its number.
        gpus: GPUs of all replicas together: ``2xH100``. This and the others mean what the flag of their name does.
        tp: Tensor-parallel size.
        pp: Pipeline-parallel size.
        replicas: Copies of the model.
        routing: How requests are shared out: ``round_robin``.
        engine: ``vllm==0.20``, or a name alone.
        quantization: Weight format.
        rate: Requests a second, Poisson: 3, ``90/min`` or ``5M/day``; infinite: all at once.
        concurrency: Clients of a closed loop.
        trace: File of recorded traffic.
        columns: Columns of the trace: ``prompt_tokens=in,output_tokens=out``.
        prompt_tokens: Tokens of every prompt: 2000 or ``2k``.
        output_tokens: Tokens of every answer.
        num_requests: Requests of a run.
        slo: ``ttft=1.5s,tpot=50ms,attainment=0.95``, or a use case.
        like: A command line that starts a server, in place of ``source``.

    Raises:
        UsageError: A model lacks GPUs or traffic, or two keywords contradict each other.
        InputError: The file, a name or an override is missing, unreadable or invalid; names file or flag, key, value,
            rule and remedy.
    """
    from simserve.planner.layout import OneLine

    flags = OneLine(
        gpus=gpus,
        tp=tp,
        pp=pp,
        replicas=replicas,
        routing=routing,
        engine=engine,
        quantization=quantization,
        rate=requests_per_second(rate) if isinstance(rate, str) else rate,
        concurrency=concurrency,
        trace=None if trace is None else str(trace),
        columns=columns,
        prompt_tokens=None if prompt_tokens is None else str(prompt_tokens),
        output_tokens=None if output_tokens is None else str(output_tokens),
        num_requests=num_requests,
        slo=slo,
        like=like,
    )
    if not flags.given and source is not None:
        return load_file(source, overrides)
    if isinstance(source, Mapping):
        raise UsageError("go with a name or a file, not with a mapping", key="keywords", remedy="put them into it")
    from simserve.planner.one_line import ask

    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    question = ask(None if source is None else str(source), flags, overrides)
    for note in question.notes:
        _log.warning(note)
    return question.scenario


def run(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    force: bool = False,
    timeline: bool = False,
    film: bool = False,
    steps: bool = False,
    prometheus: bool = False,
    advise: bool | None = None,
    reference: Sequence[str] = (),
    progress: Progress | None = None,
    accelerate: Accelerate = "auto",
    by_reference: bool = False,
    router: RouterFunction | None = None,
    admission: AdmissionFunction | None = None,
    autoscaler: AutoscalerFunction | None = None,
    step_seconds: StepSecondsFunction | None = None,
) -> RunResult:
    """Return the results of running the scenario's traffic on its deployment.

    Args:
        scenario: A loaded scenario, a path, a bundled name, or what a file would hold.
        out: Folder for `result.json`, `requests.parquet`, `timeseries.parquet`, `scenario.resolved.yaml` and
            `report.html`, written all together or not at all; None: no files.
        force: Whether to replace the result of another scenario or seed in ``out``.
        timeline: Whether to keep every step and write it to ``out`` as `timeline.json`, which Perfetto opens.
        film: Whether to keep every step and write some seconds of them to ``out`` as `film.html`, which plays them; the
            report shows it as well.
        steps: Whether to keep every step for ``.steps`` of the result: the first 2,000,000 of the run.
        prometheus: Whether to write `metrics.prom` to ``out`` too: what vLLM's /metrics would report at the end.
        advise: Whether a run that misses its objective is followed by runs that look for one that meets it
            (`simserve.planner.advice`: some 60,000 requests more), for ``advice`` of the summary, otherwise None. None:
            if ``out`` is given, so that files do not depend on who writes them, while a loop over runs in memory does
            not pay for it.
        reference: Arguments after ``simserve run`` that run the scenario, for the commands of the advice.
        progress: Called from time to time with the requests done and all requests.
        accelerate: ``auto``: the kernel runs compiled if `simserve[fast]` is installed, covers the run and pays;
            ``on``: whenever it covers the run; ``off``: never. The results are the same.
        by_reference: Whether to run the reference in plain SimPy instead, step by step: the same result, at some
            hundreds of requests a second. What it does not cover is refused.
        router: A routing policy of your own, ``router(request, replicas)``: it returns one of the replicas, or its
            number. It sees `simserve.sim.own_parts.RequestView` and `ReplicaView`.
        admission: Admission control of your own, ``admission(request, replicas)``: True, False, or the reason to
            refuse, one of ``rate_limit queue_full kv_headroom load deadline``; it is asked before the scenario's.
        autoscaler: ``autoscaler(pool)``, with a `simserve.sim.own_parts.PoolView`: the number of replicas that the pool
            should have, instead of the metric of ``deployment.autoscaling``.
        step_seconds: ``step_seconds(prompt_tokens, decode_tokens, context_tokens)``: the seconds of a step, instead of
            those from the hardware's profile.

    With parts of your own the run is interpreted, with one event per arrival; an exception of the function is raised
    unchanged, after one line on stderr that gives its time.

    Raises:
        UsageError: ``out`` cannot be used, which is checked before the simulation; ``on`` is set and numba does not
            work; a part of your own returns an invalid value, or does not fit the scenario.
        InfeasibleError: The model does not fit; the message has the arithmetic and what would fit.
        InputError: A scenario, profile or trace is missing or invalid.
    """
    if not isinstance(scenario, Scenario):
        reference = reference or (str(scenario),)
    loaded = scenario if isinstance(scenario, Scenario) else load(scenario)
    how: dict[str, Any] = {"progress": progress, "keep_steps": timeline or film or steps, "accelerate": accelerate}
    if by_reference:
        for name, is_asked in {"timeline": timeline, "film": film, "accelerate": accelerate != "auto"}.items():
            if is_asked:
                raise UsageError("is not for a run by the reference", key=name, remedy="leave one of the two out")
        how["by_reference"] = True
    own = OwnParts(router=router, admission=admission, autoscaler=autoscaler, step_seconds=step_seconds)
    if own.names:
        if advise:
            raise UsageError(
                "looks for other deployments, which parts of one's own may not fit", key="advise", remedy="leave it out"
            )
        how["own"], advise = own, False
    advised = reference if advise or (advise is None and out is not None) else None
    if out is None:
        for name, is_asked in {"prometheus": prometheus, "film": film}.items():
            if is_asked:
                raise UsageError("writes a file, and needs out=", key=name)
        return _run(loaded, how, advised)
    with staged_folder(Path(out), loaded, force=force) as folder:
        result = _run(loaded, how, advised, with_page=True)
        write_folder(result, folder, timeline=timeline, prometheus=prometheus, film=film)
    return result


class Simulation:
    """A scenario's deployment on SimPy's clock, for clients of your own: each is a SimPy process.

        sim = ss.Simulation("chatbot")

        def client(sim):
            for _ in range(10):
                answer = yield sim.submit(prompt_tokens=2000, output_tokens=100)
                yield sim.env.timeout(1.0 if answer.status == "completed" else 5.0)

        for _ in range(50):
            sim.env.process(client(sim))
        result = sim.run()

    Attributes:
        env: The SimPy environment (``timeout``, ``process``, ``event``, ``now``).

    Args:
        scenario: A loaded scenario, a path, a bundled name, or what a file would hold. Its arrivals are ignored; what
            its workload draws for each request (lengths, class, prefix) applies to the next request submitted.
        by_reference: Whether the reference in plain SimPy serves, as in `run`.
        steps: Whether to keep every step, as in `run`.
        router: As in `run`, like the next three.
        admission: Likewise.
        autoscaler: Likewise.
        step_seconds: Likewise.

    Raises:
        UsageError: The scenario has a feature that does not work with such clients.
        InfeasibleError: The model does not fit.
        InputError: A scenario, profile or trace is missing or invalid.
    """

    def __init__(
        self,
        scenario: Scenario | str | Path | Mapping[str, Any],
        *,
        by_reference: bool = False,
        steps: bool = False,
        router: RouterFunction | None = None,
        admission: AdmissionFunction | None = None,
        autoscaler: AutoscalerFunction | None = None,
        step_seconds: StepSecondsFunction | None = None,
    ) -> None:
        from simserve.scenario.own_clients import OwnClients  # SimPy and the reference

        own = OwnParts(router=router, admission=admission, autoscaler=autoscaler, step_seconds=step_seconds)
        self._scenario = scenario if isinstance(scenario, Scenario) else load(scenario)
        parts = own if own.names else None
        self._clients = OwnClients(self._scenario, by_reference=by_reference, steps=steps, own=parts)
        self.env = self._clients.env

    def submit(
        self, *, prompt_tokens: int | None = None, output_tokens: int | None = None, max_tokens: int | None = None
    ) -> Event:
        """Send a request now; the returned event fires when the answer is complete, with its outcome.

        Args:
            prompt_tokens: None: drawn by the scenario's workload.
            output_tokens: Likewise. It is also the most that the client asks for, unless ``max_tokens`` is given.
            max_tokens: Likewise.

        Returns:
            An event whose value is a `simserve.sim.own_clients.Answer`: ``number status ttft e2e output_tokens
            replica_id``.

        Raises:
            UsageError: The workload has no request left, or a length is invalid.
        """
        return self._clients.submit(prompt_tokens=prompt_tokens, output_tokens=output_tokens, max_tokens=max_tokens)

    def run(self, until: float | None = None) -> RunResult:
        """Run until the current processes are done and all requests are answered, or for ``until`` seconds.

        Raises:
            UsageError: There is no process, or it has already run.
        """
        from simserve.report.background import background

        result = self._clients.run(until)
        shown = background(resolve(self._scenario), result, with_page=False)
        return _dressed(replace(result, background=shown), RunResult)


def _run(
    scenario: Scenario, how: dict[str, Any], advised: Sequence[str] | None, *, with_page: bool = False
) -> RunResult:
    """Return a run with the content of its charts, and with advice if ``advised`` says how it is called."""
    from simserve.planner.cost.month import month
    from simserve.report.background import background

    resolved = resolve(scenario)
    finishable: KnownFinishable = {}
    result = run_scenario(resolved, finishable=finishable, **how)
    extra: dict[str, Any] = {"month": month(resolved, result, finishable)}
    if advised is not None:
        from simserve.planner.advice import advise  # the planner: needed only by runs that write files

        extra["advice"] = advise(resolved, result, reference=advised, accelerate=how["accelerate"])
    inner = {**result.summary["simserve"], **extra}
    result = replace(result, summary=frozen({**result.summary, "simserve": inner}))
    return _dressed(replace(result, background=background(resolved, result, with_page=with_page)), RunResult)


def verify(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    num_requests: int | None = None,
    accelerate: Accelerate = "auto",
) -> Verification:
    """Return how a run of the fast engine compares with one by the reference in plain SimPy, request by request.

    Args:
        scenario: A loaded scenario, a path, a bundled name, or what a file would hold.
        num_requests: Number of requests to compare; None: all, or in a long run the first 500, or those that generate
            50,000 tokens; ``drawn`` of the answer gives their total.
        accelerate: Whether the engine runs compiled, as in `run`.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: A scenario, profile or trace is missing or invalid, or the reference does not cover it.
    """
    from simserve.scenario.verify import verify as compare_runs

    loaded = scenario if isinstance(scenario, Scenario) else load(scenario)
    return compare_runs(loaded, num_requests=num_requests, accelerate=accelerate)


def _dressed(answer: Any, page: type[PageT]) -> PageT:
    """Return a plain answer as the subclass that can display itself."""
    return page(**{each.name: getattr(answer, each.name) for each in fields(answer)})


def capacity(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    highest: float | None = None,
    precision: float | None = None,
    replications: int | None = None,
    num_requests: int | None = None,
    progress: LoadProgress | None = None,
    tried: Tried | None = None,
) -> Capacity:
    """Return the largest rate, or number of clients in a closed loop, that meets the scenario's objective.

    Args:
        scenario: A loaded scenario, a path, a bundled name, or what a file would hold.
        highest: Highest load to try.
        precision: Half-width of the 95 % interval of the capacity, relative to it, until which requests are added;
            None: 2 %, as far as a short search gets.
        replications: Runs per load, at least 2; None: 8 for steady open traffic, else 6.
        num_requests: Requests per run; None: as many as needed.
        progress: Called before each run with the number of runs so far and the load.
        tried: Called after each run with its load, the requests asked of it, and whether it met the objective.

    Raises:
        InputError: There is no objective, or no load to raise; or a profile or trace is missing.
        InfeasibleError: The model does not fit.
    """
    from simserve.planner.capacity.answer import capacity as find_capacity
    from simserve.report.capacity import Capacity

    found = find_capacity(
        scenario if isinstance(scenario, Scenario) else load(scenario),
        highest=highest,
        precision=precision,
        replications=replications,
        num_requests=num_requests,
        progress=progress,
        tried=tried,
    )
    return _dressed(found, Capacity)


def compare(
    scenario: Scenario | str | Path | Mapping[str, Any],
    variants: Mapping[str, Overrides],
    *,
    replications: int | None = None,
    independent: bool = False,
    progress: RunsProgress | None = None,
) -> Comparison:
    """Return the effect of each variant, with 95 % intervals, on common random numbers.

    Args:
        scenario: The base: a loaded scenario, a path, a bundled name, or what a file would hold.
        variants: Name -> changes: a mapping of dotted keys to values, or texts ``"KEY=VALUE"``.
        replications: Runs of each, at least 2, and 5 for intervals; None: 10. A trace has one, without intervals.
        independent: Whether each deployment sees its own requests, instead of the same ones.
        progress: Called after each run with the number of runs done and of all runs.

    Raises:
        UsageError: There is no variant, or replications of a trace are requested.
        InfeasibleError: A model does not fit.
        InputError: A scenario, an override, a profile or a trace is missing or invalid.
    """
    from simserve.planner.compare import compare as run_variants
    from simserve.report.compare import Comparison

    found = run_variants(
        scenario if isinstance(scenario, Scenario) else load(scenario),
        variants,
        replications=replications,
        is_independent=independent,
        progress=progress,
    )
    return _dressed(found, Comparison)


def diff(
    first: RunResult | str | Path,
    second: RunResult | str | Path,
    *,
    tolerance: float | None = None,
    tolerances: Mapping[str, float] | None = None,
    allow: Sequence[str] = (),
) -> Diff:
    """Return the differences between two results: ``.moved``, and ``.failures`` beyond the tolerance.

    Args:
        first: A result, its folder, or its `result.json`.
        second: Likewise.
        tolerance: Allowed relative change of every watched figure, in either direction; None: only ``tolerances``.
        tolerances: The same for single figures, by name.
        allow: Differences allowed under a tolerance: ``scenario``, ``version``. Without a tolerance nothing is judged.

    Raises:
        InputError: A result is missing or invalid.
        UsageError: A name is not that of a figure.
    """
    from simserve.planner.diff import diff as find_differences
    from simserve.report.diff import Diff

    return _dressed(find_differences(first, second, tolerance=tolerance, tolerances=tolerances, allow=allow), Diff)


def memory(scenario: Scenario | str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return what fits: bytes of one GPU by use, KV blocks, full-length requests at once, the arithmetic.

    Args:
        scenario: A loaded scenario, a path, a bundled name, or what a file would hold.

    Raises:
        InputError: A scenario or profile is missing or invalid.
    """
    from simserve.scenario.fit import memory_report

    return memory_report(resolve(scenario if isinstance(scenario, Scenario) else load(scenario)))


def sweep(
    scenario: Scenario | str | Path | Mapping[str, Any],
    grid: Mapping[str, Any],
    *,
    sample: int | None = None,
    out: str | Path | None = None,
    force: bool = False,
    workers: int = 1,
    backend: str = "auto",
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run a scenario at every point of a grid, one row each: ``.points``.

    Args:
        scenario: A loaded scenario, a path, a bundled name, or what a file would hold.
        grid: Key -> its values, or its only one; every combination is a point.
        sample: Number of grid points to run, drawn by the scenario's seed; None: all.
        out: Parquet file of the rows; finished rows are kept beside it until all are there. None: no file.
        force: Whether to replace the rows of another sweep in ``out``.
        workers: Processes on this machine.
        backend: Backend that runs the points: ``auto``, ``loky``, ``dask``, ``ray``.
        scheduler: Address of a Dask scheduler or Ray cluster; None: one on this machine.
        progress: Called after each point with the number of points done and of all points.

    Raises:
        UsageError: The grid is empty or too large, ``out`` cannot be written or holds another sweep, or the backend is
            not installed.
        InputError: A scenario is missing or invalid, or no point of the grid is valid.
    """
    from simserve.planner.sweep.sweep import sweep as run_grid
    from simserve.report.sweep import Sweep

    found = run_grid(
        scenario if isinstance(scenario, Scenario) else load(scenario),
        grid,
        sample=sample,
        out=None if out is None else Path(out),
        force=force,
        workers=workers,
        backend=backend,
        scheduler=scheduler,
        progress=progress,
    )
    return _dressed(found, Sweep)


def cost(
    scenario: Scenario | str | Path | Mapping[str, Any] | None = None,
    *,
    api: str | ApiPrices | None = None,
    requests_per_month: float | None = None,
    today: str | None = None,
    progress: Progress | None = None,
    variants: Mapping[str, Overrides] | None = None,
    **terms: float,
) -> CostResult:
    """Return the monthly cost on your own GPUs and at an API: ``.summary``, with the keys of `simserve cost`.

    Args:
        scenario: Its deployment is simulated with its traffic, over a day if ``pricing.daily`` gives one; None:
            arithmetic on ``terms`` alone.
        api: Name of an API profile, or prices; None: the scenario's ``pricing.api``.
        requests_per_month: Volume; None: the scenario's traffic, round the clock or over its day.
        today: Day (YYYY-MM-DD) from which the age of prices is judged; None: the newest date of the catalogue.
        progress: Called from time to time with the number of runs done and of all runs.
        variants: Name -> overrides of other deployments for the scenario's traffic; ``ways`` of the summary then gives
            the volumes from which the API, the scenario's deployment and each of them is cheapest.
        terms: Without a scenario: fields of `simserve.planner.cost.cost.CostTerms`, such as ``gpus``,
            ``gpu_hour_usd``, ``prompt_tokens``.

    Raises:
        UsageError: Terms together with a scenario, unknown terms, or too few for an answer.
        InfeasibleError: The model does not fit.
        InputError: A scenario or profile is missing or invalid.
    """
    from simserve.planner.cost.cost import cost_summary
    from simserve.report.cost import CostResult

    summary = cost_summary(
        scenario if scenario is None or isinstance(scenario, Scenario) else load(scenario),
        api=api,
        requests_per_month=requests_per_month,
        today=today,
        progress=progress,
        terms=terms,
        variants=variants,
    )
    return CostResult(summary)


def plan(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    hardware: str | Sequence[str] = (),
    max_gpus: int | Mapping[str, int] | None = None,
    objective: Objective = "cost",
    headroom: float = 0.0,
    spare_replicas: int = 0,
    over: Sequence[str] = (),
    keep: Sequence[str] = (),
    spot: bool = False,
    trials: int = 32,
    confidence: float | None = None,
    horizon: str | None = None,
    growth: str | None = None,
    price_decline: str | None = None,
    budget: str | None = None,
    commitments: str | None = None,
    interruptions: str | None = None,
    autoscaler: bool = False,
    jobs: int = 1,
    reference: Sequence[str] = (),
    progress: Progress | None = None,
    on_stage: Stage | None = None,
) -> PlanPage:
    """Return what to deploy for a scenario's traffic at its SLO: ``.summary`` holds the output of ``plan --json``.

    Args:
        scenario: A loaded scenario, a path, a bundled name, or what a file would hold.
        hardware: GPUs to choose from, or one; empty: the scenario's, and the catalogue's that have an on-demand price.
        max_gpus: Most GPUs of the fleet; None: 256, and for ``latency`` and ``throughput`` those of the scenario. For
            ``throughput`` it may give the number of GPUs of each of several kinds.
        objective: What to minimise: ``cost``, ``gpus``, ``latency`` (p95 of E2E) or ``energy`` (watts); or
            ``throughput``: the most output tokens a second that ``max_gpus`` GPUs give within the SLO.
        headroom: Share of extra traffic that must be sustained.
        spare_replicas: Replicas that may fail; they are paid for.
        over: ``KEY=V1,V2``: values to search for a dotted key, instead of the default ones.
        keep: Properties to keep from the scenario: ``gpus``, ``weights``, ``tensor-parallel``, ``replicas`` and so on.
        spot: Whether GPUs are bought at spot prices.
        trials: Settings of engine options to try on a deployment if there are too many to try all.
        confidence: Share of real servers on which the SLO must hold, 0.9; None: it must hold in the simulation.
        horizon: Period to buy for, ``12mo`` or ``3y``: ``.summary["purchase"]`` then says what to commit to and what to
            buy by the hour; None: nothing is bought.
        growth: Growth of the traffic over the horizon, ``5%/month`` or ``60%/year``; None: the scenario's.
        price_decline: Decline of the price of a GPU-hour, likewise; None: the scenario's.
        budget: Most dollars a month, ``20k``; None: no limit.
        commitments: Offers besides on-demand hours: years of a term and ``spot``, and their discounts,
            ``1y=30%,3y=50%,spot=60%``; ``none``; None: assumed ones, and the spot price of the catalogue.
        interruptions: Interruptions of spot replicas, ``mtbf=24h,mttr=10min,notice=30s``; None: every 24 hours.
        autoscaler: Whether to search the cheapest autoscaler thresholds that meet the SLO for a load that changes: they
            are then in ``.summary["autoscaling"]``.
        jobs: Worker processes; the plan does not depend on their number.
        reference: Arguments after ``simserve run`` that run the scenario, for the commands that the plan prints.
        progress: Called from time to time with the pieces of work done and all known ones.
        on_stage: Called before it with what is being done and the best fleet so far, both in words.

    Raises:
        UsageError: An option is out of range.
        InputError: A scenario, profile or trace is missing or invalid.
    """
    from simserve.planner.plan.options import horizon_of
    from simserve.planner.plan.plan import PlanOptions  # joblib and the search: needed by this function only
    from simserve.planner.plan.plan import plan as find_plan
    from simserve.planner.space.space import parse_choices
    from simserve.profiles.hardware import hardware_name
    from simserve.report.plan import PlanPage

    kinds = {hardware_name(name): count for name, count in max_gpus.items()} if isinstance(max_gpus, Mapping) else {}
    options = PlanOptions(
        hardware=tuple(kinds) or ((hardware,) if isinstance(hardware, str) else tuple(hardware)),
        max_gpus=max_gpus if isinstance(max_gpus, int) else None,
        gpus_by_kind=kinds,
        objective=objective,
        headroom=headroom,
        spare_replicas=spare_replicas,
        choices=parse_choices(over),
        market="spot" if spot else "on_demand",
        keep=tuple(keep),
        trials=trials,
        confidence=confidence,
        horizon=horizon_of(horizon, growth, price_decline, budget, commitments, interruptions),
        autoscaler=autoscaler,
        jobs=jobs,
    )
    if not isinstance(scenario, Scenario):
        reference = reference or (str(scenario),)
        scenario = load(scenario)
    found = find_plan(scenario, options, reference=reference, progress=progress, on_stage=on_stage)
    return PlanPage(
        summary=found.summary, was_interrupted=found.was_interrupted, scenario=scenario, reference=tuple(reference)
    )


def validate(
    data: str | Path | None = None,
    sources: Sequence[str] = (),
    *,
    files: Sequence[str | Path] = (),
    jobs: int = 1,
    progress: Progress | None = None,
) -> Validation:
    """Return measured servers next to their predictions by the simulator: ``.summary`` and ``.points``.

    Args:
        data: Folder of measurements; None: the published figures that ship with simserve.
        sources: Names of the sources to use; empty: all available ones, or none if there are ``files``.
        files: Your own measurements (docs/measurements.md).
        jobs: Worker processes.
        progress: Called from time to time with the number of points done and of all points.

    Raises:
        UsageError: A source is unknown, or ``data`` is not a folder.
        InputError: A file is missing or cannot be read.
    """
    from simserve.planner.validation.validate import validate as replay_measurements  # joblib: needed here only
    from simserve.report.validation import Validation

    return _dressed(replay_measurements(data, sources, files=files, jobs=jobs, progress=progress), Validation)
