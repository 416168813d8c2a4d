"""Loading: files, bundled names, and overrides by dotted path."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest
import yaml

from simserve.errors import ScenarioError
from simserve.scenario.load import Override, Overrides, from_mapping, load
from tests.scenario.builders import make_scenario, scenario_mapping


def write_scenario(folder: Path, text: str | None = None) -> Path:
    """Write the small scenario, or ``text``, and return its path."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(scenario_mapping()) if text is None else text, encoding="utf-8")
    return path


def test_a_mapping_is_loaded_as_its_file_would_be(tmp_path: Path) -> None:
    """With overrides; it was taken for the name of a file. What is wrong with it is said by key."""
    mapping = yaml.safe_load(write_scenario(tmp_path).read_text())

    assert load(mapping, {"deployment.replicas": 2}).model_dump() == (
        load(write_scenario(tmp_path), {"deployment.replicas": 2}).model_dump()
    )
    with pytest.raises(ScenarioError, match=r"workload\.arrival: is not a known key"):
        load(mapping | {"workload": {"arrival": {}}})


def test_a_file_and_its_folder_are_remembered(tmp_path: Path) -> None:
    """Relative paths inside a scenario start from its own folder."""
    assert load(write_scenario(tmp_path)).folder == tmp_path


@pytest.mark.parametrize(
    ("first", "last", "label"),
    [
        (("deployment.replicas", 2), ("deployment.replicas", 3), "--set"),
        (("deployment", {"hardware": "l4-24gb"}), ("deployment.replicas", 3), "--set"),
        (("deployment.replicas", 3), ("deployment", {"hardware": "l4-24gb"}), "--set"),
        (("deployment.replicas", 3), ("deployment.hardware", "l4-24gb"), "--replicas"),
    ],
)
def test_a_key_is_set_by_the_last_that_says_it(first: tuple[str, object], last: tuple[str, object], label: str) -> None:
    """Two flags may say the same key, or a block and a key in it; errors name the flag whose value it is."""
    overrides = [Override(*first, "--replicas"), Override(*last, "--set")]

    assert from_mapping(scenario_mapping(), overrides).set_by("deployment.replicas") == label


def test_of_two_flags_that_set_a_key_the_last_one_is_blamed() -> None:
    """Its value is the one that is refused."""
    overrides = [Override("deployment.replicas", 2, "--replicas"), Override("deployment.replicas", 0, "--set")]

    with pytest.raises(ScenarioError) as failure:
        from_mapping(scenario_mapping(), overrides)
    assert (failure.value.file, failure.value.value) == ("--set", 0)


def test_an_element_of_a_list_is_not_one_whose_number_begins_alike() -> None:
    """The flag sets class 1; the value of class 10 in the file is what is refused."""
    mapping = scenario_mapping()
    mapping["workload"]["classes"] = [{"name": f"c{number}", "share": 1 / 11} for number in range(11)]
    mapping["workload"]["classes"][10]["priority"] = "high"

    with pytest.raises(ScenarioError) as failure:
        from_mapping(mapping, [f"workload.classes.1={{name: c1, share: {1 / 11}}}"], file="my.yaml")
    assert (failure.value.file, failure.value.key) == ("my.yaml", "workload.classes.10.priority")


def test_a_flag_cannot_add_an_element_to_a_list() -> None:
    """Two classes have the numbers 0 and 1."""
    mapping = scenario_mapping()
    mapping["workload"]["classes"] = [{"name": name, "share": 0.5} for name in "ab"]

    assert from_mapping(mapping, ["workload.classes.1.priority=3"]).workload.classes[1].priority == 3  # type: ignore[index]
    with pytest.raises(ScenarioError, match="is not an element of the list; use a number from 0 to 1"):
        from_mapping(mapping, ["workload.classes.2.priority=3"])


def test_a_pipe_is_read_as_a_file(tmp_path: Path) -> None:
    """As the shell's <(...) and /dev/stdin hand one over."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=(yaml.safe_dump(scenario_mapping()),), daemon=True)
    writer.start()

    assert load(pipe).model_dump() == load(write_scenario(tmp_path)).model_dump()


def test_a_bundled_scenario_is_found_by_name() -> None:
    """No path is needed for what ships with the package."""
    assert load("chatbot").name == "chatbot"


def test_an_unknown_name_gets_the_nearest() -> None:
    """A slip of the finger is answered with what was meant."""
    with pytest.raises(ScenarioError, match="did you mean 'chatbot'"):
        load("chatbt")


def test_a_duplicate_key_is_refused_with_both_lines(tmp_path: Path) -> None:
    """The second of two equal keys would win silently."""
    path = write_scenario(tmp_path, "name: a\nmodel: b\nname: c\n")

    with pytest.raises(ScenarioError, match="name: stands twice, in lines 1 and 3"):
        load(path)


def test_broken_yaml_names_the_line(tmp_path: Path) -> None:
    """What cannot be parsed is shown where it is."""
    with pytest.raises(ScenarioError, match="line 3, column 1: not valid YAML"):
        load(write_scenario(tmp_path, "name: a\nmodel: [b\n"))


def test_an_unknown_key_names_file_key_and_nearest(tmp_path: Path) -> None:
    """File, key and remedy stand in one line."""
    path = write_scenario(tmp_path, yaml.safe_dump({**scenario_mapping(), "deploymnt": {}}))

    with pytest.raises(ScenarioError) as caught:
        load(path)

    assert str(caught.value) == f"{path}: deploymnt: is not a known key; did you mean 'deployment'?"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("deployment.replicas=3", ("deployment", "replicas"), 3),
        ("deployment.engine.max_num_seqs=8", ("deployment", "engine", "max_num_seqs"), 8),
        ("deployment.engine.version=0.10", ("deployment", "engine", "version"), "0.10"),
        ('deployment.engine.version="0.5.5"', ("deployment", "engine", "version"), "0.5.5"),
        ("deployment.engine.version=null", ("deployment", "engine", "version"), None),
        ("slo.ttft=250 ms", ("slo", "ttft"), 0.25),
        ("workload.arrivals={process: all_at_once}", ("workload", "arrivals", "process"), "all_at_once"),
        ("thresholds.ttft_ms=['p(95)<1']", ("thresholds",), {"ttft_ms": ["p(95)<1"]}),
    ],
)
def test_an_override_reaches_its_key(override: str, key: tuple[str, ...], value: object) -> None:
    """Values are YAML; a block that is absent is made."""
    found: object = make_scenario([override])
    for part in key:
        found = getattr(found, part)

    assert found == value


def test_a_list_is_indexed_by_number() -> None:
    """An element of a list is a key like any other."""
    scenario = make_scenario(["thresholds.ttft_ms.1=avg<2"], thresholds={"ttft_ms": ["p(95)<1", "avg<1"]})

    assert scenario.thresholds == {"ttft_ms": ["p(95)<1", "avg<2"]}


def test_null_removes_a_block() -> None:
    """An optional block can be switched off."""
    assert make_scenario(["slo=null"], slo={"ttft": "1 s"}).slo is None


def test_the_last_of_two_overrides_wins() -> None:
    """Overrides are applied in the order written."""
    assert make_scenario(["deployment.replicas=2", "deployment.replicas=4"]).deployment.replicas == 4


@pytest.mark.parametrize(
    ("overrides", "version"),
    [
        (["deployment.engine.name=sglang"], None),
        (["deployment.engine.version=0.5.9", "deployment.engine.name=sglang"], "0.5.9"),
        (["deployment.engine.name=vllm"], "0.12"),
        (["deployment.engine.name=sglang", "deployment.engine.name=vllm"], None),
    ],
)
def test_another_engine_does_not_keep_the_version_of_the_one_before(overrides: list[str], version: str | None) -> None:
    """It has its own newest one, unless a version is set as well."""
    mapping = scenario_mapping(deployment={"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12"}})

    assert from_mapping(mapping, overrides).deployment.engine.version == version


def test_overrides_are_applied_before_validation() -> None:
    """Two overrides may be valid only together."""
    scenario = make_scenario(["workload.num_requests=null", "workload.duration=10 s"])

    assert scenario.workload.duration == 10.0


def test_a_mapping_of_overrides_takes_values_as_they_are() -> None:
    """Python clients need no YAML."""
    from simserve.scenario.load import from_mapping

    scenario = from_mapping(scenario_mapping(), {"deployment.engine.version": "0.10", "run.seed": 7})

    assert (scenario.deployment.engine.version, scenario.run.seed) == ("0.10", 7)


@pytest.mark.parametrize("overrides", [["thresholds.ttft_ms[0]=avg<1"], {"thresholds.ttft_ms[0]": "avg<1"}])
def test_an_element_of_a_list_may_stand_in_brackets(overrides: Overrides) -> None:
    """As Python and jq write it."""
    scenario = make_scenario(overrides, thresholds={"ttft_ms": ["p(95)<1"]})

    assert scenario.thresholds == {"ttft_ms": ["avg<1"]}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a[0].b=1", "--set a.0.b: a: is not a known key"),
        ("thresholds.ttft_ms[4]=avg<1", "is not an element of the list; use a number from 0 to 0"),
        ("deployment.replicas", "--set: 'deployment.replicas' must be KEY=VALUE"),
        (".a=1", "--set: '.a=1' must be KEY=VALUE"),
        (
            "workload.arrivals={process: all_at_once, rate: 3}",
            "workload.arrivals.rate: is not a key where process is all_at_once; its keys",
        ),
        ("max_num_seqs=64", "--set max_num_seqs: is not a known key; it stands at deployment.engine.max_num_seqs"),
        ("deployment.replica=2", "--set deployment.replica: is not a known key; did you mean 'replicas'?"),
        ("deploy.replicas=2", "--set deploy.replicas: deploy: is not a known key"),
        ("deployment.replicas=-1", "--set deployment.replicas: -1 must be greater than or equal to 1"),
        ("deployment.routing=fastest", "--set deployment.routing: 'fastest' must be 'round_robin', 'random'"),
        ("workload.classes=[{name: a, share: 1.0, retries: -1}]", "workload.classes.0.retries: -1 must be greater"),
        ("name.x=3", "--set name.x: name: holds 'small' and has no keys below it"),
        ("thresholds.ttft_ms.4=avg<1", "is not an element of the list; use a number from 0 to 0"),
        ("deployment.engine=[1", "--set deployment.engine: line 2, column 1: not valid YAML"),
        ("deployment.engine.max_model_len=1e308", "must be less than or equal to 1000000000"),
        ("deployment.engine.max_num_batched_tokens=1" + 30 * "0", "must be less than or equal to 1000000000"),
        ("workload.arrivals.concurrency=4", "is not a key where process is poisson; its keys there are rate"),
        ("workload.arrivals.concurrency=4", "as in workload.arrivals='{process: closed_loop, concurrency: ...}'"),
        ("workload.arrivals.rate=-1", "--set workload.arrivals.rate: -1 must be greater than 0"),
        ("workload.prompt_tokens=0", "--set workload.prompt_tokens: 0 must be greater than or equal to 1"),
        ("workload.duration=10 min", "--set workload.duration: workload: has num_requests and duration"),
    ],
)
def test_a_bad_override_is_named_by_its_flag(override: str, message: str) -> None:
    """The line says which flag to mend, not which file."""
    with pytest.raises(ScenarioError) as caught:
        make_scenario([override], thresholds={"ttft_ms": ["p(95)<1"]})

    assert message in str(caught.value)


def test_changing_only_the_kind_of_a_union_asks_for_the_whole_block() -> None:
    """Keys of the old kind are not dropped silently."""
    with pytest.raises(ScenarioError) as caught:
        make_scenario(["workload.arrivals.process=closed_loop"])

    message = str(caught.value)
    assert message.startswith("--set workload.arrivals.process: workload.arrivals.rate: is not a key where process is")
    assert "--set 'workload.arrivals={process: closed_loop, ...}'" in message


def test_a_mistake_in_the_file_is_not_blamed_on_an_override() -> None:
    """An override beside a misspelt key is innocent."""
    deployment = {"hardware": "h100-sxm-80gb", "replica": 2}

    with pytest.raises(ScenarioError) as caught:
        make_scenario(["deployment.tensor_parallel_size=1"], deployment=deployment)

    assert str(caught.value).startswith("deployment.replica: is not a known key")


@pytest.mark.parametrize("name", ["deepseek-v3", "Qwen/Qwen3-8B"])
def test_a_model_is_no_scenario(name: str) -> None:
    """The key that takes it is named."""
    with pytest.raises(ScenarioError, match=f'is a model, not a scenario; .*ss.load."{name}", gpus='):
        load(name)


@pytest.mark.parametrize("name", [".", "{folder}", "{folder}/"])
def test_a_folder_is_no_scenario(tmp_path: Path, name: str) -> None:
    """What is there is said, not that nothing is."""
    with pytest.raises(ScenarioError, match="is a folder, not a scenario file"):
        load(name.format(folder=tmp_path))


def test_the_folder_of_a_result_names_the_scenario_in_it(tmp_path: Path) -> None:
    """Which can be loaded."""
    (tmp_path / "scenario.resolved.yaml").write_text("model: none\n", encoding="utf-8")

    with pytest.raises(ScenarioError, match=r"is a folder.*; name the scenario in it: .*scenario\.resolved\.yaml"):
        load(tmp_path)


def test_a_time_near_the_end_of_the_numbers_is_kept() -> None:
    """Its text in the resolved scenario does not overflow."""
    assert make_scenario(slo={"ttft": "1e300 s"}).as_mapping()["slo"]["ttft"] == "1e+300 s"


def test_an_alias_bomb_under_a_key_is_one_line(tmp_path: Path) -> None:
    """Whatever the schema says of it, nobody writes it out."""
    bomb = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))

    with pytest.raises(ScenarioError, match="aliases"):
        load(write_scenario(tmp_path, f"{bomb}slo: [*a11]\n"))


def test_a_block_of_aliases_is_not_written_out(tmp_path: Path) -> None:
    """The line names the key and none of the values."""
    text = yaml.safe_dump(scenario_mapping()) + "slo: [&a [1, 2], &b [*a, *a], [*b, *b]]\n"

    with pytest.raises(ScenarioError) as caught:
        load(write_scenario(tmp_path, text))

    assert "small.yaml: slo: must be a mapping of keys to values; its keys are ttft," in str(caught.value)


@pytest.mark.parametrize(
    ("short", "below", "whole"),
    [
        ("deployment.routing=random", "deployment.routing.weights=null", "deployment.routing={policy: random}"),
        ("deployment.routing=random", "deployment.routing.policy=round_robin", "deployment.routing=round_robin"),
        ("slo=chat", "slo.attainment=0.9", "slo={preset: chat, attainment: 0.9}"),
    ],
)
def test_a_key_below_a_shorthand_is_set_beside_what_it_stands_for(short: str, below: str, whole: str) -> None:
    """`routing: random` is `routing: {policy: random}`, and `slo: chat` is `slo: {preset: chat}`."""
    assert make_scenario([short, below]).model_dump() == make_scenario([whole]).model_dump()


def test_a_profile_in_place_of_an_engine_is_its_name() -> None:
    """As a user of a calibrated profile writes it first."""
    with pytest.raises(
        ScenarioError, match=r"must be a mapping of keys to values; did you mean deployment\.engine\.name\?"
    ):
        load("chatbot", ["deployment.engine=my-vllm.yaml"])
