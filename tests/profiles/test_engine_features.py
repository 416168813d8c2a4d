"""Features by version: the table of each engine profile, what it says of a version, and what it refuses to hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.engine import EngineProfile, load_engine
from simserve.profiles.engine_options import version_key
from simserve.profiles.engine_profile import FEATURES, FORMAT_FEATURES, UNSIMULATED_METHODS
from tests.profiles.test_engine import ENGINES, resolve


def has(engine: str, feature: str, version: str | None, capability: str | None = "9.0") -> bool:
    """Return whether a version has a feature on a GPU, a Hopper one unless said otherwise."""
    return feature in load_engine(engine).features_of(version, capability)


@pytest.mark.parametrize("name", ENGINES)
def test_every_range_has_a_source(name: str) -> None:
    """And names a feature that is known."""
    ranges = [each for found in load_engine(name).features.values() for each in found]

    assert set(load_engine(name).features) <= set(FEATURES)
    assert all(each.source.strip() for each in ranges)


@pytest.mark.parametrize("name", ENGINES)
def test_what_a_version_does_by_default_it_has(name: str) -> None:
    """Prefix caching, chunked prefill and the formats that the table speaks for."""
    profile = load_engine(name)
    for known in profile.versions:
        features = profile.features_of(known.version, None)

        assert not known.scheduling.enable_prefix_caching or "prefix_caching" in features
        assert not known.chunked_prefill.enable_chunked_prefill or "chunked_prefill" in features
        assert not set(FORMAT_FEATURES) & set(known.kernels.quantizations)


@pytest.mark.parametrize(
    ("version", "is_there"),
    [("0.4.0", False), ("0.4.1", True), ("0.9.2", True), ("0.10", False), ("0.14.1", False), ("0.15", True)],
)
def test_a_draft_model_left_vllm_and_came_back(version: str, is_there: bool) -> None:
    """Versions that raise NotImplementedError for it lie between two that have it."""
    assert has("vllm", "draft_model", version) is is_there


def test_a_version_that_is_not_known_has_its_own_features() -> None:
    """Defaults are those of the nearest older one; vLLM 0.10.1 has MXFP4, and 0.10.0, whose defaults hold, has not."""
    assert load_engine("vllm").nearest_version("0.10.1").version == "0.10"
    assert "mxfp4" in resolve("vllm", "0.10.1").supported_quantizations
    assert "mxfp4" not in resolve("vllm", "0.10.0").supported_quantizations


@pytest.mark.parametrize(
    ("engine", "version", "capability", "is_there"),
    [
        ("vllm", "0.8.5", "9.0", False),
        ("vllm", "0.8.5", "10.0", True),
        ("vllm", "0.12", "9.0", True),
        ("vllm", "0.12", "7.0", False),
        ("tensorrt-llm", "1.2", "9.0", False),
        ("tensorrt-llm", "1.2", "10.0", True),
        ("vllm", "0.12", None, True),
    ],
)
def test_a_format_runs_from_a_generation_of_gpus_on(
    engine: str, version: str, capability: str | None, is_there: bool
) -> None:
    """NVFP4: Blackwell first, before it where kernels unpack; other makers' GPUs have no such number."""
    assert has(engine, "nvfp4", version, capability) is is_there


@pytest.mark.parametrize(
    ("engine", "feature", "version", "words"),
    [
        (
            "vllm",
            "draft_model",
            "0.12",
            "vllm 0.12 has no speculative decoding with a draft model "
            "(versions with it: 0.4.1 to before 0.10, 0.15 and newer)",
        ),
        ("tgi", "mtp", "3.0", "tgi 3.0 has no speculative decoding with the model's own MTP layer (no version has)"),
        (
            "vllm",
            "nvfp4",
            "0.8.5",
            "vllm 0.8.5 has no NVFP4 weights on h100 (9.0): that takes compute capability 10 or",
        ),
        ("vllm", "kv_cache_int8", None, ""),
    ],
)
def test_a_lack_is_said_with_the_versions_that_have_it(
    engine: str, feature: str, version: str | None, words: str
) -> None:
    """Ranges that follow each other are said as one."""
    assert (load_engine(engine).lack(feature, version, "h100", "9.0") or "").startswith(words)


def test_what_is_named_and_not_simulated_is_in_a_recent_vllm() -> None:
    """Each has a range of its own; two went with 0.33."""
    newest = load_engine("vllm").features_of("0.33", None)

    assert set(UNSIMULATED_METHODS) - set(newest) == {"medusa", "mlp_speculator"}
    assert set(UNSIMULATED_METHODS) <= set(load_engine("vllm").features)


def test_a_calibrated_profile_has_the_features_of_its_engine(tmp_path: Path) -> None:
    """Where it states none itself."""
    text = catalog.find("engine", "orca").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("name: orca", "name: mine\nbase: vllm", 1).replace('"2022"', '"0.20"'))

    assert load_engine(str(path)).features == load_engine("vllm").features


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("{telepathy: [{since: '1', source: s}]}", "features.telepathy is not a known feature"),
        ("{mtp: [{since: '2', until: '1', source: s}]}", "ends before it begins"),
        ("{mtp: [{since: '1', source: s}, {since: '2', source: s}]}", "overlap"),
        ("{mtp: [{since: '1', until: '3', source: s}, {since: '2', source: s}]}", "overlap"),
        ("{mtp: [{since: '1'}]}", "source: is missing"),
    ],
)
def test_an_unclear_table_is_refused(tmp_path: Path, table: str, message: str) -> None:
    """The error names the file and the feature."""
    text = catalog.find("engine", "orca").read_text()
    path = tmp_path / "orca.yaml"
    path.write_text(text.replace("defaults:", f"features: {table}\n\ndefaults:", 1))

    with pytest.raises(ProfileError, match=message):
        load_engine(str(path))


def test_profiles_without_a_table_have_nothing() -> None:
    """Orca had neither drafts nor a cache of prefixes."""
    assert isinstance(load_engine("orca"), EngineProfile)
    assert load_engine("orca").features_of(None, None) == ()


@pytest.mark.parametrize("name", ENGINES)
def test_every_model_that_runs_from_a_version_on_has_a_source(name: str) -> None:
    """And a version that the engine's numbers can be compared with."""
    for code in load_engine(name).models:
        assert code.source.strip()
        assert code.until is None or version_key(code.since) < version_key(code.until)


def test_the_newest_engines_run_the_models_of_the_catalogue() -> None:
    """All but what vLLM dropped: a name misspelt in a profile or in the table would not be found there."""
    lacking = {
        (engine, name)
        for engine in ("vllm", "sglang", "tensorrt-llm")
        for name in catalog.names("model")
        if load_engine(engine).lack_of_model(load_model(name).architecture, load_model(name).moe is not None, None)
    }

    dropped = ("internlm-20b", "dots.llm1-142b", "minimax-text-01", "bamba-9b", "grok-2")
    assert lacking == {("vllm", name) for name in dropped}


@pytest.mark.parametrize(
    ("model", "engine", "version"),
    [
        ("deepseek-v4-flash", "vllm", "0.19"),
        ("deepseek-v4-flash", "sglang", "0.5.11"),
        ("deepseek-v4-flash", "tensorrt-llm", "1.2"),
        ("gemma-4-31b", "vllm", "0.18"),
        ("glm-5.2", "vllm", "0.15"),
        ("kimi-k2.5", "sglang", "0.5.8"),
        ("llama-4-scout", "vllm", "0.8.2"),
        ("mimo-v2-flash", "sglang", "0.5.6"),
        ("minimax-m2", "vllm", "0.11"),
        ("minimax-m3", "sglang", "0.5.15"),
        ("qwen3-vl-32b", "vllm", "0.10.2"),
        ("qwen3.5-27b", "vllm", "0.16"),
        ("step-3.7-flash", "vllm", "0.22"),
    ],
)
def test_models_of_these_days_are_newer_than_these_versions(model: str, engine: str, version: str) -> None:
    """The profile's class stands in the engine's table."""
    profile = load_model(model)

    assert load_engine(engine).lack_of_model(profile.architecture, profile.moe is not None, version)
    assert load_engine(engine).lack_of_model(None, True, version) is None


def test_a_class_is_named_once(tmp_path: Path) -> None:
    """Twice in the table of models is refused: which of the versions holds would be a matter of order."""
    text = catalog.find("engine", "vllm").read_text()
    twice = '  - {since: "0.12", architectures: [GptOssForCausalLM], source: nowhere}\n\ndevices:'
    file = tmp_path / "vllm.yaml"
    file.write_text(text.replace("\ndevices:", twice, 1))

    with pytest.raises(ProfileError, match="models names GptOssForCausalLM more than once"):
        load_engine(str(file))
