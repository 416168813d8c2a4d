"""The public functions: load a scenario, run it, ask what fits, what to deploy, compare with measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from simserve.errors import UsageError
from simserve.metrics.summary import frozen
from simserve.report.run_result import RunResult, write_folder
from simserve.scenario.folder import default_folder, staged_folder
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import Progress
from simserve.scenario.run import run as run_scenario
from simserve.scenario.schema import Scenario
from simserve.sim.acceleration import Accelerate
from simserve.sim.own_parts import OwnParts

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.planner.capacity.answer import Progress as LoadProgress
    from simserve.planner.compare import Progress as RunsProgress
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


def run(
    scenario: Scenario | str | Path,
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
    """Return what happens when the scenario's traffic meets its deployment.

    Args:
        scenario: A loaded scenario, a path, or a bundled name.
        out: Folder for `result.json`, `requests.parquet`, `timeseries.parquet`, `scenario.resolved.yaml` and
            `report.html`, written all together or not at all; None: no file is written.
        force: Whether ``out`` may hold the result of another scenario or seed, which is then replaced.
        timeline: Whether every step is kept, and written to ``out`` as `timeline.json`, which Perfetto opens.
        film: Whether every step is kept, and some seconds of them written to ``out`` as `film.html`, which plays them;
            the report shows it as well.
        steps: Whether every step is kept, for ``.steps`` of the result: the first 2,000,000 of the run.
        prometheus: Whether ``out`` also gets `metrics.prom`: what vLLM's /metrics would say at the end of the run.
        advise: Whether a run that misses what is asked is followed by runs of what would hold
            (`simserve.planner.advice`: some 60,000 requests more), for ``advice`` of the summary, which is else None.
            None: where ``out`` is given, so that files are the same whoever writes them; a loop over runs in memory
            does not pay for it.
        reference: What stands after ``simserve run`` to run the scenario; for the commands of the advice.
        progress: Called now and then with the requests done and all requests.
        accelerate: ``auto``: the kernel runs compiled where `simserve[fast]` is installed, covers the run and pays;
            ``on``: wherever it covers the run; ``off``: never. The results are the same.
        by_reference: Whether the run is made by the reference in plain SimPy instead, step by step: the same result,
            some hundreds of requests a second. What it does not cover is refused.
        router: A policy of one's own, ``router(request, replicas)``: it returns one of the replicas, or its number.
            What it sees is `simserve.sim.own_parts.RequestView` and `ReplicaView`.
        admission: Admission control of one's own, ``admission(request, replicas)``: True, False, or why not, as one of
            ``rate_limit queue_full kv_headroom load deadline``; it is asked before that of the scenario.
        autoscaler: ``autoscaler(pool)``, a `simserve.sim.own_parts.PoolView`: how many replicas the pool should have,
            instead of the metric of ``deployment.autoscaling``.
        step_seconds: ``step_seconds(prompt_tokens, decode_tokens, context_tokens)``: the seconds of a step, instead of
            those that the hardware's profile gives.

    With a part of one's own the run is interpreted, with an event an arrival; an exception of the function is raised as
    it is, behind one line on stderr that says when.

    Raises:
        UsageError: ``out`` cannot be used, known before anything is simulated; ``on``, and numba does not work; a part
            of one's own returns what it may not, or goes with nothing in the scenario.
        InfeasibleError: The model does not fit; the message carries the arithmetic and what would.
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
    """A scenario's deployment on SimPy's clock, for clients of one's own: each is a SimPy process.

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
        scenario: A loaded scenario, a path, or a bundled name. Its arrivals are not looked at; what its workload draws
            of each request (lengths, class, prefix) is that of the request submitted next.
        by_reference: Whether the reference in plain SimPy serves, as for `run`.
        steps: Whether every step is kept, as for `run`.
        router: As for `run`, and so are the next three.
        admission: Likewise.
        autoscaler: Likewise.
        step_seconds: Likewise.

    Raises:
        UsageError: The scenario has what such clients do not go with.
        InfeasibleError: The model does not fit.
        InputError: A scenario, profile or trace is missing or invalid.
    """

    def __init__(
        self,
        scenario: Scenario | str | Path,
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
        """Send a request now; the event that is returned fires when the answer is there, with what became of it.

        Args:
            prompt_tokens: None: as the scenario's workload draws it.
            output_tokens: Likewise. What the client asks for at most is then the same, unless it is given too.
            max_tokens: Likewise.

        Returns:
            An event whose value is a `simserve.sim.own_clients.Answer`: ``number status ttft e2e output_tokens
            replica_id``.

        Raises:
            UsageError: The workload has no request left, or a length is none.
        """
        return self._clients.submit(prompt_tokens=prompt_tokens, output_tokens=output_tokens, max_tokens=max_tokens)

    def run(self, until: float | None = None) -> RunResult:
        """Run until the processes begun so far are done and everything sent is answered, or for ``until`` seconds.

        Raises:
            UsageError: There is no process, or it has been run.
        """
        from simserve.report.background import background

        result = self._clients.run(until)
        shown = background(resolve(self._scenario), result, with_page=False)
        return _dressed(replace(result, background=shown), RunResult)


def _run(
    scenario: Scenario, how: dict[str, Any], advised: Sequence[str] | None, *, with_page: bool = False
) -> RunResult:
    """Return a run with what its pictures show, and with a way out where ``advised`` tells how it is called."""
    from simserve.planner.cost.month import month
    from simserve.report.background import background

    resolved = resolve(scenario)
    finishable: KnownFinishable = {}
    result = run_scenario(resolved, finishable=finishable, **how)
    told: dict[str, Any] = {"month": month(resolved, result, finishable)}
    if advised is not None:
        from simserve.planner.advice import advise  # the planner: needed by runs that write files

        told["advice"] = advise(resolved, result, reference=advised, accelerate=how["accelerate"])
    inner = {**result.summary["simserve"], **told}
    result = replace(result, summary=frozen({**result.summary, "simserve": inner}))
    return _dressed(replace(result, background=background(resolved, result, with_page=with_page)), RunResult)


def verify(
    scenario: Scenario | str | Path, *, num_requests: int | None = None, accelerate: Accelerate = "auto"
) -> Verification:
    """Return how a run of the fast plane compares with one by the reference in plain SimPy, request by request.

    Args:
        scenario: A loaded scenario, a path, or a bundled name.
        num_requests: How many requests are compared; None: all, or of a long run the first 500, or those that generate
            50,000 tokens; ``drawn`` of the answer says of how many.
        accelerate: Whether the plane runs compiled, as for `run`.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: A scenario, profile or trace is missing or invalid, or the reference does not cover it.
    """
    from simserve.scenario.verify import verify as compare_runs

    loaded = scenario if isinstance(scenario, Scenario) else load(scenario)
    return compare_runs(loaded, num_requests=num_requests, accelerate=accelerate)


def _dressed(answer: Any, page: type[PageT]) -> PageT:
    """Return a plain answer as the subclass of its class that shows itself."""
    return page(**{each.name: getattr(answer, each.name) for each in fields(answer)})


def capacity(
    scenario: Scenario | str | Path,
    *,
    highest: float | None = None,
    precision: float | None = None,
    replications: int | None = None,
    num_requests: int | None = None,
    progress: LoadProgress | None = None,
) -> Capacity:
    """Return the largest rate, or number of clients in a closed loop, at which the scenario's objective holds.

    Args:
        scenario: A loaded scenario, a path, or a bundled name.
        highest: Nothing above it is tried.
        precision: Half width of the 95 % interval over the capacity that requests are added for; None: 2 %, as far as
            a short search gets.
        replications: Runs a load, at least 2; None: 6.
        num_requests: Of one run; None: as many as it takes.
        progress: Called before each run with the runs so far and the load.

    Raises:
        InputError: There is no objective, or no load that could be raised; or a profile or trace is missing.
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
    )
    return _dressed(found, Capacity)


def compare(
    scenario: Scenario | str | Path,
    variants: Mapping[str, Overrides],
    *,
    replications: int | None = None,
    independent: bool = False,
    progress: RunsProgress | None = None,
) -> Comparison:
    """Return what each variant changes, with 95 % intervals, on common random numbers.

    Args:
        scenario: The base: a loaded scenario, a path, or a bundled name.
        variants: Name -> what it changes: a mapping of dotted keys to values, or texts ``"KEY=VALUE"``.
        replications: Runs of each, at least 2; None: 10. A trace has one, and no intervals.
        independent: Whether each deployment sees requests of its own, instead of the same ones.
        progress: Called after each run with the runs done and all runs.

    Raises:
        UsageError: There is no variant, or replications of a trace are asked for.
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
    first: str | Path,
    second: str | Path,
    *,
    tolerance: float | None = None,
    tolerances: Mapping[str, float] | None = None,
    allow: Sequence[str] = (),
) -> Diff:
    """Return what moved between two results: ``.moved``, and ``.failures`` beyond what is tolerated.

    Args:
        first: A result's folder or its `result.json`.
        second: Likewise.
        tolerance: Relative change, either way, that every watched figure may show; None: only those of ``tolerances``.
        tolerances: The same for single figures, by name.
        allow: In what the two may differ under a tolerance: ``scenario``, ``version``. Without one nothing is judged.

    Raises:
        InputError: A result is missing or is none.
        UsageError: A name is no figure.
    """
    from simserve.planner.diff import diff as find_differences
    from simserve.report.diff import Diff

    return _dressed(find_differences(first, second, tolerance=tolerance, tolerances=tolerances, allow=allow), Diff)


def memory(scenario: Scenario | str | Path) -> dict[str, Any]:
    """Return what fits: bytes of one GPU by use, KV blocks, requests of full length at once, the arithmetic.

    Args:
        scenario: A loaded scenario, a path, or a bundled name.

    Raises:
        InputError: A scenario or profile is missing or invalid.
    """
    from simserve.scenario.fit import memory_report

    return memory_report(resolve(scenario if isinstance(scenario, Scenario) else load(scenario)))


def sweep(
    scenario: Scenario | str | Path,
    grid: Mapping[str, Sequence[Any]],
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
        scenario: A loaded scenario, a path, or a bundled name.
        grid: Key -> its values; every combination is a point.
        sample: Run so many points of the grid, drawn by the scenario's seed; None: all.
        out: Parquet file of the rows; what is finished is kept beside it until all are there. None: none is written.
        force: Whether ``out`` may hold the rows of another sweep, which are then replaced.
        workers: Processes on this machine.
        backend: What runs the points: ``auto``, ``loky``, ``dask``, ``ray``.
        scheduler: Address of a Dask scheduler or Ray cluster; None: one on this machine.
        progress: Called after each point with the points done and all points.

    Raises:
        UsageError: The grid is empty or too large, ``out`` cannot be written or holds another sweep, or the backend is
            not installed.
        InputError: A scenario is missing or invalid, or no point of the grid is a scenario.
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
    scenario: Scenario | str | Path | None = None,
    *,
    api: str | ApiPrices | None = None,
    requests_per_month: float | None = None,
    today: str | None = None,
    progress: Progress | None = None,
    variants: Mapping[str, Overrides] | None = None,
    **terms: float,
) -> CostResult:
    """Return what a month costs on GPUs of one's own and at an API: ``.summary``, with the keys of `simserve cost`.

    Args:
        scenario: Whose deployment is simulated at its traffic, over a day where ``pricing.daily`` gives one; None:
            arithmetic on ``terms`` alone.
        api: Name of an API profile, or prices; None: the scenario's ``pricing.api``.
        requests_per_month: Volume; None: the scenario's traffic, round the clock or over its day.
        today: Day (YYYY-MM-DD) that prices are judged old at; None: the newest date of the catalogue.
        progress: Called now and then with the runs done and all runs.
        variants: Name -> overrides of other deployments for the scenario's traffic; ``ways`` of the summary then says
            from what volume the API, the scenario's deployment and each of them is cheapest.
        terms: Without a scenario: fields of `simserve.planner.cost.cost.CostTerms`, such as ``gpus``,
            ``gpu_hour_usd``, ``prompt_tokens``.

    Raises:
        UsageError: Terms beside a scenario, unknown ones, or too few to answer anything.
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
    scenario: Scenario | str | Path,
    *,
    hardware: Sequence[str] = (),
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
) -> PlanPage:
    """Return what to deploy for a scenario's traffic at its SLO: ``.summary`` holds what ``plan --json`` prints.

    Args:
        scenario: A loaded scenario, a path, or a bundled name.
        hardware: GPUs to choose from; empty: the scenario's, and those of the catalogue with an on-demand price.
        max_gpus: GPUs of the fleet at most; None: 256, and for ``latency`` and ``throughput`` those of the
            scenario. For ``throughput`` it may say how many there are of each of several kinds.
        objective: What is to be small: ``cost``, ``gpus``, ``latency`` (p95 of E2E) or ``energy`` (watts); or
            ``throughput``: the most output tokens a second that ``max_gpus`` GPUs give within the SLO.
        headroom: Share of extra traffic that must be sustained.
        spare_replicas: Replicas that may be lost; they are paid for.
        over: ``KEY=V1,V2``: values to search for a dotted key, in place of the default ones.
        keep: What stays as the scenario has it: ``gpus``, ``weights``, ``tensor-parallel``, ``replicas`` and so on.
        spot: Whether GPUs are bought at spot prices.
        trials: Settings of engine knobs and options that are tried on a deployment where they are too many to try each.
        confidence: Share of real servers on which the SLO must hold, 0.9; None: it must hold where it is simulated.
        horizon: Months to buy for, ``12mo`` or ``3y``: what to commit to and what to buy by the hour then stands in
            ``.summary["purchase"]``; None: nothing is bought.
        growth: Growth of the traffic over the horizon, ``5%/month`` or ``60%/year``; None: the scenario's.
        price_decline: Fall of the price of a GPU-hour, likewise; None: the scenario's.
        budget: Dollars that a month may cost, ``20k``; None: any.
        commitments: What is on offer beside hours on demand: years of a term and ``spot``, and how far below that is,
            ``1y=30%,3y=50%,spot=60%``; ``none``; None: assumed ones, and the spot price of the catalogue.
        interruptions: How spot replicas are taken back, ``mtbf=24h,mttr=10min,notice=30s``; None: every 24 hours.
        autoscaler: Whether thresholds of an autoscaler that hold the SLO at least cost are sought for a load that
            changes: they then stand in ``.summary["autoscaling"]``.
        jobs: Worker processes; the plan is the same with any number.
        reference: What stands after ``simserve run`` to run the scenario; for the commands that the plan prints.
        progress: Called now and then with the pieces of work done and all that are known.

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
        hardware=tuple(kinds) or tuple(hardware),
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
    found = find_plan(scenario, options, reference=reference, progress=progress)
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
    """Return measured servers beside what the simulator says of them: ``.summary`` and ``.points``.

    Args:
        data: Folder of measurements; None: the published figures that ship with simserve.
        sources: Names of the sources to take; empty: all that are there, and none beside ``files``.
        files: Your own measurements (docs/measurements.md).
        jobs: Worker processes.
        progress: Called now and then with the points done and all points.

    Raises:
        UsageError: A source is unknown, or ``data`` is no folder.
        InputError: A file is missing or cannot be read.
    """
    from simserve.planner.validation.validate import validate as replay_measurements  # joblib: needed here only
    from simserve.report.validation import Validation

    return _dressed(replay_measurements(data, sources, files=files, jobs=jobs, progress=progress), Validation)
