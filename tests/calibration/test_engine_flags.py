"""The reader of a release's parser: the ways in which engines register flags, and the file it writes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from calibration import engine_flags as reader
from simserve.planner.export.flags import load_flags
from simserve.profiles.engine_profile import load_engine

_CALLS = """
class Refused(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        raise argparse.ArgumentError(self, "gone")

class Silent(argparse.Action):
    def __init__(self, option_strings, dest, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)
    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, True)

FORMATS = ["awq", "fp8"]

def add_cli_args(parser):
    parser.add_argument("--tp-size", "--tp", type=int)
    parser.add_argument("--quantization", choices=FORMATS + ["gguf"])
    parser.add_argument("--lora-paths", nargs="*")
    parser.add_argument("--token", nargs="?")
    parser.add_argument("--disable-radix-cache", action="store_true")
    parser.add_argument("--old-name", action=Refused)
    parser.add_argument("--old-switch", action=Silent)
"""
_FIELDS = """
class Schedule:
    _NS_PATH = "schedule"
    page_size: A[Optional[int], "help"] = None
    kv_cache_dtype: A[str, Arg(help="", choices=["auto", "fp8_e4m3"])] = "auto"
    capture: A[Optional[List[int]], Arg(help="")] = None
    parsed: A[Optional[List[int]], Arg(help="", type_parser=json_list)] = None
    enable_metrics: A[bool, "help"] = False
    renamed: A[int, Arg(help="", cli_name="--tp-size", aliases=["--tensor-parallel-size"])] = 1
    hidden: A[bool, Arg(help="", no_cli=True)] = False
    derived: int = 0
"""
_REGISTERS = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        parser.add_argument("--config", type=str)
"""
_CONFIG = """
CacheDType = Literal["auto", "fp8"]

class CacheConfig:
    block_size: int = None
    cache_dtype: CacheDType = "auto"
    enable_prefix_caching: bool | None = None
    sizes: list[int] | None = None
    token: bool | str | None = None

SpeculativeMethod = Literal["ngram", EagleTypes]
EagleTypes = Literal["eagle", "mtp"]
"""
_ENGINE_ARGS = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        cache_kwargs = get_kwargs(CacheConfig)
        group = parser.add_argument_group()
        group.add_argument("--block-size", **cache_kwargs["block_size"])
        group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        group.add_argument("--enable-prefix-caching", **{**cache_kwargs["enable_prefix_caching"], "default": None})
        group.add_argument("--sizes", **cache_kwargs["sizes"])
        group.add_argument("--token", **cache_kwargs["token"])
        group.add_argument("--speculative-config", "-sc", type=json.loads)
"""
_FRONTEND = """
class BaseArgs:
    chat_template: str | None = None

    @classmethod
    def customized(cls, frontend_kwargs):
        del frontend_kwargs["middleware"]["nargs"]
        return frontend_kwargs

    @classmethod
    def add_cli_args(cls, parser):
        frontend_kwargs = get_kwargs(cls)
        frontend_kwargs = cls.customized(frontend_kwargs)
        for key, value in frontend_kwargs.items():
            parser.add_argument(f"--{key.replace('_', '-')}", **value)

class FrontendArgs(BaseArgs):
    middleware: list[str] = []
    ssl_refresh: bool = False
"""
_CLICK = """
@click.command("serve")
@click.argument("model")
@click.option("--tensor_parallel_size", "--tp_size", type=int)
@click.option("--trust_remote_code", is_flag=True)
@click.option("--custom_module_dirs", multiple=True)
def serve(model): ...

@click.command("other")
@click.option("--not_of_serve", type=int)
def other(): ...
"""


def read(tmp_path: Path, engine: str, **files: str) -> reader.Release:
    """Return what the reader finds in a release of those files, named by their place with underscores."""
    for place, text in files.items():
        file = tmp_path / place.replace("__", "/")
        file = file.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return reader.read_release(engine, tmp_path)


def test_calls_are_read_with_what_they_take(tmp_path: Path) -> None:
    """Values, lists, switches; an action that only raises is no flag."""
    release = read(tmp_path, "sglang", sglang__srt__server_args=_CALLS)

    assert release.takes == {
        "--tp-size": "value",
        "--tp": "value",
        "--quantization": "value",
        "--lora-paths": "values",
        "--token": "optional",
        "--disable-radix-cache": "switch",
        "--old-switch": "switch",
    }
    assert release.choices == {"--quantization": ("awq", "fp8", "gguf")}


def test_annotated_fields_are_read_from_every_namespace(tmp_path: Path) -> None:
    """By type, with other names and without those that are no flags."""
    release = read(
        tmp_path, "sglang", sglang__srt__server_args=_REGISTERS, sglang__srt__arg_groups__fields__schedule=_FIELDS
    )

    assert release.takes == {
        "--page-size": "value",
        "--kv-cache-dtype": "value",
        "--capture": "values",
        "--parsed": "value",
        "--enable-metrics": "switch",
        "--tp-size": "value",
        "--tensor-parallel-size": "value",
        "--config": "value",
    }
    assert release.choices == {"--kv-cache-dtype": ("auto", "fp8_e4m3")}


def test_flags_made_from_fields_of_a_configuration_take_what_their_types_say(tmp_path: Path) -> None:
    """Switches of vLLM have an opposite; the loop over a class registers those of the class that is used."""
    release = read(
        tmp_path,
        "vllm",
        vllm__engine__arg_utils=_ENGINE_ARGS,
        vllm__config__cache=_CONFIG,
        vllm__entrypoints__openai__cli_args=_FRONTEND,
    )

    assert release.takes == {
        "--block-size": "value",
        "--kv-cache-dtype": "value",
        "--enable-prefix-caching": "toggle",
        "--sizes": "values",
        "--token": "optional",
        "--speculative-config": "value",
        "-sc": "value",
        "--chat-template": "value",
        "--middleware": "value",
        "--ssl-refresh": "toggle",
    }
    assert release.choices["--kv-cache-dtype"] == ("auto", "fp8")
    assert release.choices[reader.SPECULATIVE_METHOD] == ("ngram", "eagle", "mtp")


def test_options_of_trtllm_serve_are_those_of_its_command(tmp_path: Path) -> None:
    """Not those of the other commands of the file."""
    release = read(tmp_path, "tensorrt-llm", tensorrt_llm__commands__serve=_CLICK)

    assert release.takes == {
        "--tensor_parallel_size": "value",
        "--tp_size": "value",
        "--trust_remote_code": "switch",
        "--custom_module_dirs": "values",
    }


def test_a_folder_that_holds_no_parser_is_named(tmp_path: Path) -> None:
    """With the files that were looked for."""
    with pytest.raises(FileNotFoundError, match=r"holds none of vllm/engine/arg_utils\.py"):
        reader.read_release("vllm", tmp_path)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_file_is_what_the_script_writes(engine: str) -> None:
    """Expanded release by release and written again it is the same text, so that it is never edited by hand."""
    path = reader.FOLDER / f"{engine}.yaml"
    text, listed = path.read_text(encoding="utf-8"), load_flags(engine)
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))

    assert reader.written(engine, header, listed.versions, reader.expanded(listed)) == text


def ranges(versions: Sequence[str]) -> str:
    """Return versions in words, three and more in a row as a range: ``0.9, 0.11 to 0.33``."""
    runs: list[list[str]] = [[versions[0]]]
    for before, after in pairwise(versions):
        stem, last = before.rsplit(".", 1)
        if after == f"{stem}.{int(last) + 1}":
            runs[-1].append(after)
        else:
            runs.append([after])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "vllm"])
def test_the_page_of_engines_lists_the_versions_that_were_read(engine: str) -> None:
    """Of defaults and of flags."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")

    known = ranges([each.version for each in load_engine(engine).versions])
    read = ranges([each.version for each in load_flags(engine).versions])
    assert f"| {engine} | {known} | {read} |" in page
