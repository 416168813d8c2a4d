"""Factors of a server come back from benchmarks that the simulator wrote, and what files do not tell stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml

import simserve as ss
from simserve.calibrate import serving_factors as module
from simserve.calibrate.factors import PRIORS, FactorFit, FactorSearch, Priors
from simserve.calibrate.serving_factors import FactorCalibration, ServerFactors, as_mapping, loads_of, misfit
from simserve.calibrate.serving_profile import factors_text
from simserve.calibrate.simulated import ServingModel, replay_of, slowed
from simserve.cli.calibrate_serving import _render_factors
from simserve.errors import InputError
from simserve.profiles.engine_options import FACTORS
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.workload.benchmarks.reading import read_results
from tests.calibrate.builders import CHAT, LOADS, chat, simulated_document

WIDE = Priors(widths=dict.fromkeys(FACTORS, 0.5), misfit={"tpot": 0.002, "ttft": 0.005})
"""Nearly no prior and no misfit: what the files hold is what comes back."""
TRUTH = {"gpu": 1.2, "host": 1.0, "prompts": 1.1, "batch": 1.15, "frontend": 1.5}


def write_runs(folder: Path, loads: tuple[int, ...], truth: dict[str, float]) -> list[Path]:
    """Write results of a server that takes so many times as long as the profile says."""
    model = ServingModel(chat())
    model.resolved = slowed(model.resolved, truth)
    files = []
    for number in loads:
        document = dict(LOADS[number]) | {"model_id": "llama", "backend": "vllm", "num_prompts": 60}
        document |= {"date": "20260314-101500"}
        document |= simulated_document(model, document, model.stated)
        files.append(folder / f"run{number}.json")
        files[-1].write_text(json.dumps(document), encoding="utf-8")
    return files


@pytest.mark.slow
def test_known_factors_come_back_from_two_runs(tmp_path: Path) -> None:
    """One client and 48 tell the GPU's factor, the prompts' and the frontend's, where the prior leaves them free."""
    files = write_runs(tmp_path, (1, 2), TRUTH)

    found = FactorCalibration(ServingModel(chat()), priors=WIDE).fit(read_results(files)).fit_.fit

    for name in ("gpu", "prompts", "batch", "frontend"):
        low, high = found.interval(name)
        assert low <= TRUTH[name] <= high
    assert found.factors["gpu"] == pytest.approx(1.2, rel=0.06)
    assert found.factors["frontend"] == pytest.approx(1.5, rel=0.25)


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> ServerFactors:
    """What one run of one client says of a server whose GPU takes 1.3 times as long."""
    files = write_runs(tmp_path_factory.mktemp("one"), (1,), {"gpu": 1.3})
    return FactorCalibration(ServingModel(chat(max_num_seqs=16))).fit(read_results(files)).fit_


def test_one_run_moves_what_it_tells_alone(one_run: ServerFactors) -> None:
    """A slower GPU shows in one client's TPOT: its factor moves, and the host's hardly; no run is held out."""
    server = one_run

    assert server.fit.factors["gpu"] > 1.1
    assert abs(server.fit.factors["host"] - 1.0) < 0.05
    assert not server.fit.is_told("host")
    assert server.fit.deviation("host") > 0.8 * server.fit.priors.widths["host"]
    assert server.runs[0].held_out == {}
    assert as_mapping(server)["parameters"]["host"]["state"] != "fitted"


def test_a_factor_far_from_one_is_not_called_near(one_run: ServerFactors) -> None:
    """Files may tell a factor little and move it far all the same."""
    far = one_run.fit.log_factors.copy()
    far[FACTORS.index("host")] = np.log(0.2)
    moved = replace(one_run, fit=replace(one_run.fit, log_factors=far))

    assert one_run.state_of("host").endswith("near the profile's value")
    assert moved.state_of("host") == "the files tell it little: the brackets are all that is known"


@pytest.mark.slow
def test_a_server_as_the_profile_says_moves_nothing(tmp_path: Path) -> None:
    """Files that the profile predicts leave every factor at 1."""
    files = write_runs(tmp_path, (0, 1), {})

    factors = FactorCalibration(ServingModel(chat())).fit(read_results(files)).fit_.fit.factors

    assert factors == pytest.approx(dict.fromkeys(FACTORS, 1.0), abs=1e-3)


def test_the_next_load_is_one_that_was_not_measured(one_run: ServerFactors) -> None:
    """Its command is one of vLLM's client, with lengths like those of the files."""
    proposed = one_run.next_load

    assert proposed is not None
    assert proposed.num_clients > 1
    assert f"--max-concurrency {proposed.num_clients} " in proposed.command
    assert proposed.command.startswith("vllm bench serve --model llama ")
    assert proposed.deviations["tpot"] > 0.0


@pytest.mark.slow
def test_the_profile_changes_a_run_as_the_fit_says(tmp_path: Path) -> None:
    """A scenario that names the written file takes longer and says what it was calibrated on; the day is the files'."""
    files = write_runs(tmp_path, (1, 2), TRUTH)
    model = ServingModel(chat())
    server = FactorCalibration(model).fit(read_results(files)).fit_
    profile = tmp_path / "mine.yaml"
    profile.write_text(factors_text(server, chat(), "mine"), encoding="utf-8")
    calibrated = from_mapping(CHAT, [f"deployment.engine.name={profile}"])

    before, after = ss.run(chat()), ss.run(calibrated)

    assert after.summary["mean_tpot_ms"] > 1.05 * before.summary["mean_tpot_ms"]
    assert any("calibrated" in note and "2 runs" in note for note in resolve(calibrated).shape.notes)
    assert "date: '2026-03-14'" in profile.read_text(encoding="utf-8")
    replayed = ServingModel(calibrated).predict(server.runs[0].replay)
    assert replayed["median_tpot"] == pytest.approx(server.fit.after[0]["median_tpot"], rel=1e-4)


@pytest.mark.slow
def test_calibrating_again_multiplies(tmp_path: Path) -> None:
    """Factors on a calibrated profile stand on those that it has."""
    files = write_runs(tmp_path, (1,), {"gpu": 1.3})
    first = FactorCalibration(ServingModel(chat())).fit(read_results(files)).fit_
    profile = tmp_path / "mine.yaml"
    profile.write_text(factors_text(first, chat(), "mine"), encoding="utf-8")
    again = from_mapping(CHAT, [f"deployment.engine.name={profile}"])

    second = FactorCalibration(ServingModel(again)).fit(read_results(files)).fit_
    profile.write_text(factors_text(second, again, "mine"), encoding="utf-8")

    gpu = resolve(from_mapping(CHAT, [f"deployment.engine.name={profile}"])).shape.engine.gpu_time_factor
    assert gpu == pytest.approx(first.fit.factors["gpu"] * second.fit.factors["gpu"], rel=1e-4)


def test_three_runs_are_each_predicted_from_the_others() -> None:
    """A server whose every figure is 1.2 times the profile's: the others tell nearly all of it."""
    measured = [{"median_tpot": 0.012}] * 3

    found = FactorSearch(measured, lambda run, factors: {"median_tpot": 0.010 * factors["gpu"]}, WIDE).fit()

    assert [each["median_tpot"] for each in found.held_out] == pytest.approx([0.012] * 3, rel=0.01)
    assert found.factors["gpu"] == pytest.approx(1.2, rel=0.01)


def _gpu_factor(shares: Sequence[float], loads: Sequence[int] = ()) -> float:
    """Return the factor that runs whose TPOT is so many times the profile's give under the priors in use."""
    measured = [{"median_tpot": 0.010 * share} for share in shares]
    return FactorSearch(measured, lambda run, f: {"median_tpot": 0.010 * f["gpu"]}, PRIORS, loads).fit().factors["gpu"]


def test_a_repeated_load_counts_once() -> None:
    """What the model leaves out is the same in each repeat: four of one load say little more than one run."""
    shares = [1.2] * 4
    once, repeated, four = _gpu_factor([1.2]), _gpu_factor(shares, [0] * 4), _gpu_factor(shares)

    assert once < repeated < four
    assert repeated - once < 0.5 * (four - once)


def test_repeats_that_differ_say_less() -> None:
    """Two repeats a third apart move the factor less than two that agree on their mean, and by that mean alone."""
    mean = float(np.sqrt(1.1 * 1.5))
    apart, agreed = _gpu_factor([1.1, 1.5], [0, 0]), _gpu_factor([mean, mean], [0, 0])

    assert 1.0 < apart < agreed < mean


def test_repeats_are_known_by_how_they_were_sent(tmp_path: Path) -> None:
    """The same clients and lengths; other clients, or prompts twice or half as long, are a load of their own."""
    results = [result for path in write_runs(tmp_path, (1, 1, 2), {}) for result in read_results([path])]
    longer = replace(results[0], prompt_tokens=2.0 * results[0].prompt_tokens)
    shorter = replace(results[0], prompt_tokens=0.5 * results[0].prompt_tokens)

    assert loads_of([*results, longer, results[2], shorter]) == [0, 0, 2, 3, 2, 5]


def test_what_noise_alone_would_gain_hardly_moves_a_factor() -> None:
    """Of 3 % in two runs less than half is taken; of 30 % nearly all, and of a difference of nothing nothing."""
    few, many = _gpu_factor([1.03, 1.03]), _gpu_factor([1.3, 1.3])

    assert 1.0 < few < 1.015
    assert 1.26 < many < 1.3
    assert _gpu_factor([1.0, 1.0]) == 1.0


def test_one_odd_run_does_not_steer_the_fit() -> None:
    """Two runs as the profile says outvote one that took nearly twice as long."""
    assert _gpu_factor([1.0, 1.0, 1.9]) == pytest.approx(1.0, abs=0.02)


def test_what_is_held_out_is_taken_by_its_own_share() -> None:
    """One that two ask nothing for has the profile's own figure; it hardly moves what it and another say of one."""
    measured = [{"median_tpot": 0.010}, {"median_tpot": 0.010}, {"median_tpot": 0.013}]

    found = FactorSearch(measured, lambda run, f: {"median_tpot": 0.010 * f["gpu"]}, PRIORS).fit()

    assert found.held_out[2]["median_tpot"] == pytest.approx(0.010, rel=1e-6)
    assert found.held_out[0]["median_tpot"] < 0.0102


@pytest.mark.parametrize(
    ("shares", "is_kept"),
    [([1.12, 1.12, 0.9], False), ([1.12, 1.12, 1.09], True), ([1.12, 1.12], True), ([1.0, 1.0, 1.0], True)],
)
def test_the_profile_stays_where_loads_do_not_foretell_one_another(shares: Sequence[float], *, is_kept: bool) -> None:
    """Two slow loads make the third, fast one worse: nothing is taken; two loads alone are taken at their word."""
    measured = [{"median_tpot": 0.010 * share} for share in shares]

    found = FactorSearch(measured, lambda run, f: {"median_tpot": 0.010 * f["gpu"]}, PRIORS).fit()

    assert found.is_kept == is_kept
    assert (found.factors["gpu"] == 1.0) == (not is_kept or max(shares) == 1.0)
    assert found.after == (found.before if not is_kept else found.after)
    assert len(found.held_out) == (len(shares) if len(shares) > 2 else 0)


def test_agreement_weighs_figures_by_what_the_model_leaves_out() -> None:
    """A TTFT that the others make a little worse does not outweigh TPOTs that they bring much nearer."""
    measured = [{"median_tpot": 0.013, "median_ttft": 1.3}] * 2 + [{"median_tpot": 0.013, "median_ttft": 1.1}]

    found = FactorSearch(
        measured, lambda run, f: {"median_tpot": 0.010 * f["gpu"], "median_ttft": f["gpu"] * f["prompts"]}, PRIORS
    ).fit()

    assert abs(np.log(found.held_out[2]["median_ttft"] / 1.1)) > abs(np.log(found.before[2]["median_ttft"] / 1.1))
    assert found.is_kept


def test_repeats_of_a_load_are_held_out_together() -> None:
    """A load of two runs is predicted from the other load alone; repeats of one load are not predicted at all."""
    measured = [{"median_tpot": 0.013}, {"median_tpot": 0.013}, {"median_tpot": 0.010}]

    def found(loads: Sequence[int]) -> FactorFit:
        return FactorSearch(measured, lambda run, f: {"median_tpot": 0.010 * f["gpu"]}, PRIORS, loads).fit()

    assert found([0, 0, 2]).held_out[0]["median_tpot"] == pytest.approx(0.010, rel=1e-6)
    assert found([0, 1, 2]).held_out[0]["median_tpot"] > 0.01005
    assert found([0, 0, 0]).held_out == ()


def test_a_queue_weighs_less_than_a_step() -> None:
    """A TTFT that moves ten times as much as steps do carries ten times their misfit."""
    measured = [{"median_tpot": 0.010, "median_ttft": 1.0}]
    priors = Priors(widths=dict.fromkeys(FACTORS, 0.2), misfit={"tpot": 0.05, "ttft": 0.1})

    search = FactorSearch(
        measured, lambda run, f: {"median_tpot": 0.010 * f["gpu"], "median_ttft": f["gpu"] ** 10}, priors
    )
    noise = search.linear_at(np.zeros(len(FACTORS))).noise(priors)

    assert noise[1] > 8 * noise[0]


def test_files_without_a_latency_are_refused(tmp_path: Path) -> None:
    """At a given rate throughput says that the server kept up, and nothing else."""
    file = write_runs(tmp_path, (0,), {})[0]
    document = json.loads(file.read_text(encoding="utf-8"))
    plain = {key: value for key, value in document.items() if not key.endswith("_ms")}
    file.write_text(json.dumps(plain), encoding="utf-8")

    with pytest.raises(InputError, match="hold neither TTFT nor TPOT"):
        FactorCalibration(ServingModel(chat())).fit(read_results([file]))


def test_other_mean_lengths_keep_the_scenarios_spread(tmp_path: Path) -> None:
    """Prompts twice as long on average are spread twice as far, not one length for all."""
    file = write_runs(tmp_path, (0,), {})[0]
    document = json.loads(file.read_text(encoding="utf-8"))
    document["total_input_tokens"] *= 2
    file.write_text(json.dumps(document), encoding="utf-8")

    specs = replay_of(read_results([file])[0], chat()).specs

    assert specs.prompt_tokens.mean() == pytest.approx(document["total_input_tokens"] / 60, rel=0.01)
    assert specs.prompt_tokens.std() > 300


def test_a_range_in_the_file_says_the_lengths(tmp_path: Path) -> None:
    """Saved with its range ratio, lengths are uniform around the mean; a word is refused."""
    file = write_runs(tmp_path, (0,), {})[0]
    document = json.loads(file.read_text(encoding="utf-8")) | {"random_range_ratio": "0.1"}
    file.write_text(json.dumps(document), encoding="utf-8")

    prompts = replay_of(read_results([file])[0], chat()).specs.prompt_tokens

    mean = document["total_input_tokens"] / 60
    assert prompts.min() >= 0.9 * mean - 1
    assert prompts.max() <= 1.1 * mean + 1
    assert prompts.std() == pytest.approx(0.1 * mean / 3**0.5, rel=0.1)
    file.write_text(json.dumps(document | {"random_range_ratio": "wide"}), encoding="utf-8")
    with pytest.raises(InputError, match="must be a number from 0 to 1"):
        read_results([file])


def test_recorded_lengths_are_replayed_as_they_were(tmp_path: Path) -> None:
    """A detailed file's lists are its requests, whatever the scenario's lengths are."""
    file = write_runs(tmp_path, (1,), {})[0]
    lengths = [100 + 7 * number for number in range(60)]
    document = json.loads(file.read_text(encoding="utf-8")) | {"input_lens": lengths, "output_lens": [40] * 60}
    file.write_text(json.dumps(document), encoding="utf-8")

    specs = replay_of(read_results([file])[0], chat()).specs

    assert specs.prompt_tokens.tolist() == lengths
    assert specs.output_tokens.tolist() == [40] * 60


@pytest.mark.parametrize(
    ("changes", "is_expected"),
    [
        ((), True),
        (("deployment.hardware=h200-sxm-141gb",), False),
        (("model=qwen3-8b",), False),
        (("deployment.tensor_parallel_size=2",), False),
    ],
)
def test_a_calibrated_server_is_expected_to_err_as_calibrated_servers_do(
    one_run: ServerFactors, tmp_path: Path, changes: tuple[str, ...], is_expected: bool
) -> None:
    """From two loads up, and for that very server: another model, GPU or layout is as foreign as it was."""
    once, twice = tmp_path / "once.yaml", tmp_path / "twice.yaml"
    once.write_text(factors_text(one_run, chat(), "once"), encoding="utf-8")
    twice.write_text(factors_text(one_run, chat(), "twice").replace("runs: 1\n", "runs: 2\n"), encoding="utf-8")

    plain, little, enough = (
        ss.run(from_mapping(CHAT, [*changes, *name])).summary["simserve"]["prediction_interval"]
        for name in ((), *([f"deployment.engine.name={file}"] for file in (once, twice)))
    )

    assert little["basis"] == plain["basis"]
    assert enough["basis"].startswith("calibrated on 2 loads of 2026-03-14 of this server") == is_expected
    low, high = enough["metrics"]["mean_tpot_ms"]
    wide_low, wide_high = little["metrics"]["mean_tpot_ms"]
    assert (high / low < 0.95 * wide_high / wide_low) == is_expected


def test_a_run_states_no_narrower_range_than_its_calibration_missed(one_run: ServerFactors, tmp_path: Path) -> None:
    """The profile holds what its own loads are off; one that is off by a factor of e shows it."""
    text = factors_text(one_run, chat(), "mine")
    document = yaml.safe_load(text)
    stated = document["defaults"]["measured_factors"]["own_errors"]
    document["defaults"]["measured_factors"]["own_errors"] = {**stated, "tpot": 1.0}
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "off.yaml").write_text(yaml.safe_dump({**document, "name": "off"}), encoding="utf-8")

    near, off = (
        ss.run(from_mapping(CHAT, [f"deployment.engine.name={tmp_path / name}"])).summary["simserve"][
            "prediction_interval"
        ]
        for name in ("mine.yaml", "off.yaml")
    )

    assert stated == pytest.approx(one_run.own_errors, rel=1e-3, abs=1e-4)
    assert stated.keys() >= {"ttft", "tpot"}
    low, high = off["metrics"]["mean_tpot_ms"]
    assert high / low > np.e**2 * 0.99
    assert off["basis"] == f"{near['basis']}; TPOT as far off as the calibration is at its own loads"


@pytest.mark.parametrize(("errors", "held"), [((0.2, -0.5), np.log(2.0)), ((0.0, 0.0), None)])
def test_own_errors_hold_nine_in_ten(errors: tuple[float, ...], held: float | None) -> None:
    """Of up to ten figures the largest, above or below; one of eleven may lie outside; none where all are met."""
    runs: Any = [
        SimpleNamespace(measured={"median_tpot": 1.0}, error=lambda which, figure, each=each: each) for each in errors
    ]
    odd: Any = [SimpleNamespace(measured={"median_tpot": 1.0}, error=lambda which, figure: 3.0)]

    assert module.Explained(runs=runs).own_errors.get("tpot") == (None if held is None else pytest.approx(held))
    assert module.Explained(runs=[*runs[:1] * 10, *odd]).own_errors.get("tpot", 0.0) < 0.2


@pytest.mark.parametrize(("ratios", "said"), [((7.0, 1 / 7), "still 7 times off"), ((4.0, 1 / 4), None)])
def test_files_of_another_server_are_told_whichever_way_they_are_off(
    ratios: tuple[float, ...], said: str | None
) -> None:
    """Seven times too slow and seven times too fast are no mean of right."""
    runs: Any = [
        SimpleNamespace(measured={"median_tpot": 1.0}, error=lambda _which, _figure, ratio=ratio: ratio - 1.0)
        for ratio in ratios
    ]

    told = misfit(runs)

    assert (told is None) if said is None else (told is not None and f"TPOT is {said}" in told)


def test_a_latency_that_the_scenario_sets_is_no_servers_to_scale() -> None:
    """The factor is on the engine's own time before the scheduler; another one that replaces it stays."""
    own = ServingModel(chat()).resolved
    known = replace(own, engine=replace(own.engine, frontend_latency=0.123))
    factors = {**dict.fromkeys(FACTORS, 1.0), "frontend": 2.0}

    assert slowed(own, factors).engine.frontend_latency == pytest.approx(2.0 * own.engine.frontend_latency)
    assert slowed(known, factors).engine.frontend_latency == 0.123


@pytest.mark.parametrize(("measured", "proposed"), [((16,), 1), ((1, 16), 64), ((1, 3, 16, 50), None)])
def test_the_next_load_is_far_from_those_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, measured: tuple[int, ...], proposed: int | None
) -> None:
    """Of 1, 4, 16 and 64 clients, more than 1.5 times as many or as few; of these the one that is least certain."""
    certain = {1: 0.4, 4: 0.1, 16: 9.0, 64: 0.3}
    monkeypatch.setattr(module, "client_counts", lambda _model: list(certain))
    monkeypatch.setattr(module, "closed_loop", lambda _model, _specs, clients: clients)
    monkeypatch.setattr(module, "benchmark_command", lambda _name, _specs, clients: f"{clients} clients")
    monkeypatch.setattr(module, "slopes_of", lambda _model, replays, *_: _Slopes(replays))
    monkeypatch.setattr(module, "deviations", lambda _figures, clients, _covariance: {"tpot": certain[clients]})
    model: Any = SimpleNamespace(
        resolved=SimpleNamespace(shape=SimpleNamespace(hardware=SimpleNamespace(is_cpu=False)))
    )
    search = FactorCalibration(model)
    results = [SimpleNamespace(arrivals={"concurrency": clients}, model="m") for clients in measured]
    search._replays = [cast("Any", SimpleNamespace(result=each, specs=None)) for each in results]
    found: Any = SimpleNamespace(log_factors=None, covariance=None)

    load = search._next_load(found)

    assert (None if load is None else load.num_clients) == proposed


class _Slopes:
    """Numbers of clients in place of slopes."""

    def __init__(self, clients: list[int]) -> None:
        self.clients = np.array(clients)
        self.runs = np.arange(len(clients))

    def of(self, chosen: Any) -> Any:
        """Return those of the chosen run."""
        return SimpleNamespace(slopes=int(self.clients[chosen][0]))


def test_the_command_says_that_the_profile_stays(one_run: ServerFactors, capsys: pytest.CaptureFixture[str]) -> None:
    """Each factor says why it is 1, and a line says what to do; a fit that is kept says neither."""
    runs = [replace(run, held_out=run.before) for run in one_run.runs]
    left = replace(one_run, runs=runs, fit=replace(one_run.fit, log_factors=np.zeros(len(FACTORS)), is_kept=False))

    _render_factors(left, [], None)
    said = " ".join(capsys.readouterr().out.split())
    _render_factors(replace(one_run, runs=runs), [], None)
    kept = " ".join(capsys.readouterr().out.split())

    assert said.count("the profile's value: the loads show no better one)") == len(FACTORS)
    assert "the profile predicts each load at least as well as factors of the others do, so its values stay" in said
    assert "its values stay" not in kept
    assert "the loads do not agree in TTFT, TPOT" in kept
    assert (as_mapping(left)["is_kept"], as_mapping(one_run)["is_kept"]) == (False, True)
