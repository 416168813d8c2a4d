"""Reads the start-up logs of vLLM, SGLang, TensorRT-LLM and llama.cpp: the size of the KV cache and the settings.

Each line is read once, by itself; lines that match no pattern are counted, not kept. If a log holds several starts,
the last one counts. Sources of the lines: vllm/v1/core/kv_cache_utils.py, vllm/v1/worker/gpu_worker.py and
vllm/executor/executor_base.py; sglang/srt/mem_cache/memory_pool.py and sglang/srt/managers/scheduler.py;
tensorrt_llm's kvCacheManager.cpp and commands/serve.py; llama.cpp's src/llama-context.cpp, src/llama-kv-cache.cpp,
src/llama-model.cpp and tools/server/server-context.cpp, of b4000 (llama_new_context_with_model) to b11549 (a time and a
level in front of each line).
"""

from __future__ import annotations

import ast
import gzip
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

from simserve.errors import InfeasibleError, InputError, ScenarioError, TraceError
from simserve.perf.kv_layout import pool_block_bytes
from simserve.planner.export.flags import flags_of
from simserve.planner.importers.draft import Draft, moved
from simserve.planner.importers.llama_cpp_command import LLAMA_CPP, gguf_format
from simserve.planner.importers.model_names import find_model
from simserve.planner.importers.server import (
    ASSUMED_HARDWARE,
    Reading,
    draft_of,
    read_kv_cache_dtype,
    read_server,
    read_speculation,
    unsimulated_note,
    words_of,
)
from simserve.planner.importers.sglang_command import SGLANG
from simserve.planner.importers.vllm_command import VLLM
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.hardware import hardware_name, is_known_gpu
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.schema import Scenario

_FROM_THE_START = "log the server from its start, with its lines of level INFO"
MAX_BYTES = 64 * 2**20  # Bytes of a log that are read; the start-up comes first.
MAX_LINE = 200_000  # Characters of a line that are read.
_GIB = 2**30
_MOST = 10**15
_VERSION = r"v?(\d+(?:\.\d+)+)[^\s)]*"


@dataclass(frozen=True, slots=True)
class KVRoom:
    """Size of the KV cache of one rank. None: the log does not give it."""

    tokens: int | None = None  # Tokens that fit.
    blocks: int | None = None  # Blocks that fit.
    bytes: int | None = None  # Bytes per GPU.
    block_size: int | None = None  # Tokens per block.


@dataclass(frozen=True, slots=True)
class Served:
    """Requests that a log gives the times of (llama.cpp), those with answers of one token left out."""

    num_requests: int
    mean_prompt_tokens: float  # Computed, without those that the prefix cache had.
    mean_output_tokens: float
    mean_prompt_ms: float  # Time in which a prompt was computed.
    tpot_ms: float  # Time per output token: that of all answers over their tokens.


@dataclass(slots=True)
class EngineLog:
    """Contents of a log."""

    reading: Reading  # Engine, version, model and settings.
    kv: KVRoom  # Size of the KV cache.
    num_unread_lines: int  # Lines that match no pattern.
    was_cut: bool  # Whether the log is longer than `MAX_BYTES`.
    hardware: str | None = None  # The GPU that it names, as the driver calls it (llama.cpp); None: it names none.
    served: Served | None = None  # What it says of the requests that it served; None: nothing.

    @property
    def settings(self) -> dict[str, Any]:
        """Key of a scenario -> its value in the log."""
        reading = self.reading
        found: dict[str, Any] = {"deployment.engine.name": reading.engine}
        if reading.version is not None:
            found["deployment.engine.version"] = reading.version
        if reading.quantization is not None:
            found["deployment.quantization"] = reading.quantization
        found |= {f"deployment.{key}": value for key, value in reading.deployment.items()}
        return found | {f"deployment.engine.{key}": value for key, value in reading.options.items()}


@dataclass(slots=True)
class _Start:
    """What the lines of one start-up say: figures by name, and the arguments as printed."""

    engine: str
    version: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    prompts: list[tuple[float, int]] = field(default_factory=list)  # Milliseconds and tokens of each prompt.
    answers: list[tuple[float, int]] = field(default_factory=list)  # The same of each answer.

    def least(self, name: str, value: float) -> None:
        """Keep the smallest figure of all ranks: the one with the least room sets the limit."""
        self.figures[name] = min(self.figures.get(name, value), value)

    def set_options(self, reading: Reading, **options: str) -> None:
        """Set the engine's options that figures give: figure -> option."""
        for name, key in options.items():
            if self.figures.get(name, 0) >= 1:
                reading.options[key] = int(self.figures[name])


def read_engine_log(path: Path, version: str | None = None) -> EngineLog:
    """Read a start-up log.

    Args:
        path: The log, plain or gzip, UTF-8 or UTF-16.
        version: The engine's version; None: the version in the log.

    Raises:
        TraceError: The file cannot be read, is not text, or holds no line of a known engine.
        ScenarioError: A setting in it is invalid.
    """
    starts: list[_Start] = []
    unread = 0
    source = _Source(path)
    for line in source:
        known = False
        for engine, anchor, pattern, read in _PATTERNS:
            match = pattern.search(line) if anchor in line else None
            if match is not None:
                known = True
                _start_of(starts, engine, line)
                read(starts[-1], match)
        unread += not known and bool(line.strip())
    start = next((each for each in reversed(starts) if each.figures or each.arguments), None)
    if not starts and not unread:
        raise TraceError("is empty", file=path, remedy=_FROM_THE_START)
    if start is None:
        known_engines = "vLLM, SGLang, TensorRT-LLM or llama.cpp"
        rule = f"holds no start-up line of {known_engines} in its first {MAX_BYTES // 2**20} MiB"
        raise TraceError(rule, file=path, remedy=_FROM_THE_START)
    if version is not None:
        start.version = version
    reading = _FINISH[start.engine](start, str(path))
    kv = _room(start, reading)
    if start.engine == "llama.cpp":  # its context and slots decide how large the cache is
        return EngineLog(reading, kv, unread, source.was_cut, start.resolved.get("device"), _served(start))
    if kv.blocks is not None:
        reading.options["num_gpu_blocks_override"] = kv.blocks
    elif kv.bytes is not None:
        reading.options["kv_cache_memory_bytes"] = kv.bytes
    return EngineLog(reading, kv, unread, source.was_cut)


def _start_of(starts: list[_Start], engine: str, line: str) -> None:
    """Begin a new start at a line that marks one, or when the engine changes.

    llama.cpp prints its build and its GPU before that line.
    """
    if not starts or starts[-1].engine != engine:
        starts.append(_Start(engine))
        return
    start = starts[-1]
    has_room = not _ROOM.isdisjoint(start.figures)
    if (_BEGINS[engine] in line and (has_room or start.arguments)) or (
        _LATER_BEGIN in line and has_room and not start.arguments
    ):
        starts.append(_Start(engine))
        if engine == "llama.cpp":
            starts[-1].version = start.version
            starts[-1].resolved |= {key: value for key, value in start.resolved.items() if key == "device"}


class _Source:
    """The lines of a log, up to `MAX_BYTES`; iterating sets `was_cut`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.was_cut = False

    def __iter__(self) -> Iterator[str]:
        try:
            with self.path.open("rb") as file:
                yield from self._lines(file)
        except IsADirectoryError:
            raise TraceError("is a folder, not a file", file=self.path, remedy="name the log in it") from None
        except (OSError, EOFError, zlib.error) as failure:
            reason = getattr(failure, "strerror", None) or failure
            raise TraceError(f"cannot be read: {reason}", file=self.path) from None

    def _lines(self, file: BufferedReader) -> Iterator[str]:
        start = file.peek(4)[:4]
        source: BufferedIOBase = gzip.GzipFile(fileobj=file) if start[:2] == b"\x1f\x8b" else file
        wide = next((name for mark, name in _WIDE.items() if start.startswith(mark)), None)
        if wide is not None:
            text = source.read(MAX_BYTES).decode(wide, errors="replace")
            self.was_cut = bool(source.read(1))
            yield from (line[:MAX_LINE] for line in text.splitlines())
            return
        left, zeros = MAX_BYTES, 0
        while left > 0 and (line := source.readline(min(left, MAX_LINE))):
            left -= len(line)
            zeros += line.count(b"\0")
            if zeros > _MOST_ZEROS:
                raise TraceError("is no text: it holds zero bytes", file=self.path)
            yield _COLOURS.sub("", line.decode("utf-8", errors="replace"))
        self.was_cut = left <= 0 and bool(source.read(1))


_WIDE = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_MOST_ZEROS = 100  # Most zero bytes in a text; a crash may leave some.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of a printed object, ``a=1, b='x, y', c=[1, 2]``, as text; a repeated name keeps its first."""
    found: dict[str, str] = {}
    depth, quote, start = 0, "", 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote and text[position - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
            if depth < 0:
                text = text[:position]
                break
        elif character == "," and depth == 0:
            _field(found, text[start:position])
            start = position + 1
    _field(found, text[start:])
    return found


def _field(found: dict[str, str], text: str) -> None:
    name, equals, value = text.partition("=")
    if equals and name.strip().isidentifier():
        found.setdefault(name.strip(), value.strip())


def value_of(text: str) -> Any:
    """Return a text parsed as a Python literal, or the text itself where it is not one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # raised by text that only looks like Python
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text


def _values(text: str) -> dict[str, Any]:
    return {key: value_of(value) for key, value in fields_of(text).items()}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


Read = Callable[[_Start, re.Match[str]], None]


def _take_version(start: _Start, match: re.Match[str]) -> None:
    start.version = match[1]


def _figure(name: str) -> Read:
    return lambda start, match: start.least(name, _number(match[1]))


def _last(*names: str) -> Read:
    return lambda start, match: start.figures.update(zip(names, map(_number, match.groups()), strict=True))


def _vllm_arguments(start: _Start, match: re.Match[str]) -> None:
    found = value_of(match[1])
    if isinstance(found, Mapping):
        start.arguments |= {str(key): value for key, value in found.items()}


def _vllm_namespace(start: _Start, match: re.Match[str]) -> None:
    known = VLLM.readers
    for key, text in fields_of(match[1]).items():
        if f"--{key.replace('_', '-')}" in known and text not in ("None", "False", "'auto'"):
            start.arguments[key] = value_of(text)


def _vllm_config(start: _Start, match: re.Match[str]) -> None:
    start.version = match[1]
    start.resolved |= _values(match[2])


def _sglang_limits(start: _Start, match: re.Match[str]) -> None:
    for key, value in _values(match[0]).items():
        if isinstance(value, int) and 0 < value < _MOST:
            start.least(key, value)


def _sglang_pool(start: _Start, match: re.Match[str]) -> None:
    if "pool_tokens" not in start.figures:  # a later line is about the draft model
        start.figures["pool_tokens"] = _number(match[1])
        sizes = [float(each) for each in re.findall(rf"(?:K|V|KV) size: {_GIBS} GB", match["sizes"])]
        if sizes:
            start.figures["kv_gib"] = sum(sizes)


def _trtllm_pool(start: _Start, match: re.Match[str]) -> None:
    start.figures["tokens"] = _number(match[1])  # the last one counts: an earlier one is from the trial run
    size = re.search(rf"Allocated {_GIBS} GiB $", match.string[: match.start()])
    if size is not None:
        start.figures["kv_gib"] = float(size[1])


def _trtllm_reuse(start: _Start, match: re.Match[str]) -> None:
    start.resolved["enable_prefix_caching"] = match[1] == "enabled"


def _llama_version(start: _Start, match: re.Match[str]) -> None:
    start.version = f"b{match[1]}"


def _llama_first(*names: str) -> Read:
    """Return a reader that keeps the first: the context of a draft model prints the same lines later."""

    def read(start: _Start, match: re.Match[str]) -> None:
        for name, value in zip(names, match.groups(), strict=True):
            start.figures.setdefault(name, _number(value))

    return read


def _llama_text(name: str) -> Read:
    def read(start: _Start, match: re.Match[str]) -> None:
        (start.arguments if name == "model" else start.resolved).setdefault(name, match[1].strip())

    return read


def _llama_each(name: str) -> Read:
    return lambda start, match: start.resolved.setdefault(name, set()).add(match[1])


def _llama_cache(start: _Start, match: re.Match[str]) -> None:
    size = re.search(rf"size = +{_GIBS} MiB \( *{_COUNT}$", match.string[: match.start()])
    if size is None or "n_slots" in start.figures:  # the latter: of a draft model
        return
    start.figures["kv_gib"] = start.figures.get("kv_gib", 0.0) + float(size[1]) / 2**10
    if "tokens" not in start.figures:  # later ones are of layers with a window
        start.figures["tokens"] = _number(size[2]) * int(match[1])
        start.resolved |= {"type_k": match[2], "type_v": match[3]}


def _llama_time(start: _Start, match: re.Match[str]) -> None:
    is_prompt = match.string[: match.start()].endswith("prompt ")
    (start.prompts if is_prompt else start.answers).append((float(match[1]), int(_number(match[2]))))


_BEGINS = {
    "vllm": "vLLM API server version",
    "sglang": "server_args=ServerArgs(",
    "tensorrt-llm": "TensorRT-LLM version:",
    "llama.cpp": "load_model: loading model",
}
"""Engine -> text that marks the beginning of a start."""
_LATER_BEGIN = "LLM engine ("
"""Text that marks a start of vLLM without a server; with a server, each of its ranks prints it."""
_ROOM = {"tokens", "blocks", "kv_gib", "max_total_num_tokens", "pool_tokens"}
_COUNT = r"(\d[\d,]{0,14})"
_GIBS = r"(\d{1,9}(?:\.\d+)?)"
_POOL = rf"(?: dtype: [\w.]+,)? #tokens: {_COUNT}(?P<sizes>.{{0,200}})"
_LIMITS = rf"{_COUNT}, max_num_requests={_COUNT}, max_num_tokens={_COUNT}"
_PATTERNS: tuple[tuple[str, str, re.Pattern[str], Read], ...] = tuple(
    (engine, anchor, re.compile(anchor_pattern + pattern), read)
    for engine, anchor, pattern, read in (
        ("vllm", "vLLM API server version", rf" {_VERSION}", _take_version),
        ("vllm", "non-default args:", r" (\{.*\})", _vllm_arguments),
        ("vllm", "args: Namespace(", r"(.*)\)", _vllm_namespace),
        ("vllm", "LLM engine (", rf"{_VERSION}\) with config: (.*)", _vllm_config),
        ("vllm", "# GPU blocks:", rf" {_COUNT}", _figure("blocks")),
        ("vllm", "# cuda blocks:", rf" {_COUNT}", _figure("blocks")),
        ("vllm", "# rocm blocks:", rf" {_COUNT}", _figure("blocks")),
        ("vllm", "num_gpu_blocks is:", rf" {_COUNT}", _figure("blocks")),
        ("vllm", "GPU KV cache size:", rf" {_COUNT} tokens", _figure("tokens")),
        ("vllm", "CPU KV cache size:", rf" {_COUNT} tokens", _figure("tokens")),
        ("vllm", "Available KV cache memory:", rf" {_GIBS} GiB", _figure("kv_gib")),
        ("vllm", "memory reserved for KV Cache is", rf" {_GIBS} ?GiB", _figure("kv_gib")),
        ("vllm", "Using max model len", rf" {_COUNT}", _last("max_model_len")),
        ("vllm", "Chunked prefill is enabled with max_num_batched_tokens=", _COUNT, _last("max_num_batched_tokens")),
        ("vllm", "Setting attention block size to", rf" {_COUNT} tokens", _last("block_size")),
        (
            "sglang",
            "server_args=ServerArgs(",
            r"(.*)\)",
            lambda start, match: start.arguments.update(_values(match[1])),
        ),
        ("sglang", "KV Cache is allocated.", _POOL, _sglang_pool),
        ("sglang", "max_total_num_tokens=", r"(\d+, .*)", _sglang_limits),
        ("tensorrt-llm", "TensorRT-LLM version:", rf" {_VERSION}", _take_version),
        ("tensorrt-llm", "Number of tokens per block:", rf" {_COUNT}", _last("block_size")),
        ("tensorrt-llm", "for max tokens in paged KV cache", rf" \({_COUNT}\)", _trtllm_pool),
        ("tensorrt-llm", "max_seq_len=", _LIMITS, _last("max_seq_len", "max_batch_size", "max_num_tokens")),
        ("tensorrt-llm", "TRTGptModel maxBatchSize:", rf" {_COUNT}", _last("max_batch_size")),
        ("tensorrt-llm", "TRTGptModel maxNumTokens:", rf" {_COUNT}", _last("max_num_tokens")),
        ("tensorrt-llm", "TRTGptModel maxSequenceLen:", rf" {_COUNT}", _last("max_seq_len")),
        ("tensorrt-llm", "KV cache block reuse is", r" (enabled|disabled)", _trtllm_reuse),
        ("llama.cpp", "build_info: b", r"(\d+)-", _llama_version),
        ("llama.cpp", "build", r":? (\d+) \([0-9a-f]{6,}\)", _llama_version),
        ("llama.cpp", "load_model: loading model", r" '(.+)'", _llama_text("model")),
        ("llama.cpp", "loaded meta data with", r" .* tensors from (.+) \(version GGUF", _llama_text("model")),
        ("llama.cpp", " general.name ", r" *(?:str *)?= (.+)", _llama_text("name")),
        ("llama.cpp", "print_info: file type ", r" *= (.+)", _llama_text("file_type")),
        ("llama.cpp", "model ftype ", r" *= (.+)", _llama_text("file_type")),
        ("llama.cpp", ": using device ", r"\w+ \((.+?)\)(?: \(| - |$)", _llama_text("device")),
        ("llama.cpp", " Device 0: ", r"(.+?), ", _llama_text("device")),
        ("llama.cpp", " offloaded ", rf"{_COUNT}/{_COUNT} layers to GPU", _llama_first("layers", "of_layers")),
        ("llama.cpp", "load_tensors: ", r" *([A-Za-z]+\d+)\w* model buffer size", _llama_each("devices")),
        ("llama.cpp", "tensor blk.", r"(\d+)\.ffn_\w+_exps.* overrid+en to CPU", _llama_each("experts_on_cpu")),
        ("llama.cpp", " n_seq_max ", rf" *= {_COUNT}", _llama_first("n_seq_max")),
        ("llama.cpp", " n_slots = ", _COUNT, _llama_first("n_slots")),
        ("llama.cpp", " n_ctx ", rf" *= {_COUNT}", _llama_first("n_ctx")),
        ("llama.cpp", " new slot", rf",? n_ctx(?:_slot)? = {_COUNT}", _llama_first("slot_ctx")),
        ("llama.cpp", " n_batch ", rf" *= {_COUNT}", _llama_first("n_batch")),
        ("llama.cpp", " n_ubatch ", rf" *= {_COUNT}", _llama_first("n_ubatch")),
        ("llama.cpp", " kv_unified ", r" *= '?(true|false)", _llama_text("kv_unified")),
        ("llama.cpp", " cells, ", r".*?(?:\d+/)?(\d+) seqs\), *K \((\w+)\):.*V \((\w+)\):", _llama_cache),
        ("llama.cpp", "eval time ", rf" *= +{_GIBS} ms / +{_COUNT} (?:tokens|runs)", _llama_time),
    )
    for anchor_pattern in [re.escape(anchor)]
)
"""Engine, text that a line must contain, pattern that starts there, and the function that reads the match."""


_NO_FLAGS = ("subparser", "model_tag", "dispatch_function", "api_server_count", "config")
"""Arguments that are not flags of a server, or whose contents are printed beside them."""


def _finish_vllm(start: _Start, where: str) -> Reading:
    version = start.version or load_engine("vllm").newest.version
    given = {key: value for key, value in start.arguments.items() if key not in _NO_FLAGS}
    words = words_of(given, flags_of("vllm", version))
    reading = Reading("vllm", version, where)
    read_server(VLLM, words, reading)
    reading.version = start.version
    tag = start.arguments.get("model_tag")
    reading.model = reading.model or (tag if isinstance(tag, str) else None)
    _resolved_vllm(start, reading)
    return reading


def _resolved_vllm(start: _Start, reading: Reading) -> None:
    """Read the resolved configuration that vLLM printed."""
    resolved, options = start.resolved, reading.options
    if isinstance(resolved.get("model"), str):
        reading.model = reading.model or resolved["model"]
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        if isinstance(resolved.get(key), int):
            reading.deployment[key] = resolved[key]
    switches = {"enable_prefix_caching": "enable_prefix_caching", "chunked_prefill_enabled": "enable_chunked_prefill"}
    for key, name in switches.items():
        if isinstance(resolved.get(key), bool):
            options[name] = resolved[key]
    if resolved.get("enforce_eager") is True:
        options["enforce_eager"] = True
    if isinstance(resolved.get("kv_cache_dtype"), str) and resolved["kv_cache_dtype"] != "auto":
        read_kv_cache_dtype(reading, "kv_cache_dtype", resolved["kv_cache_dtype"])
    length = start.figures.get("max_model_len", resolved.get("max_seq_len"))
    if isinstance(length, int | float) and length >= 1:
        options["max_model_len"] = int(length)
    start.set_options(reading, max_num_batched_tokens="max_num_batched_tokens", block_size="block_size")


def _finish_sglang(start: _Start, where: str) -> Reading:
    version = start.version or load_engine("sglang").newest.version
    flags = flags_of("sglang", version)
    known = {each.removeprefix("--").replace("-", "_") for each in SGLANG.readers.keys() & flags.takes.keys()}
    given = {
        key: each for key, each in start.arguments.items() if key in known and each is not False and each != "auto"
    }
    words = words_of(given, flags)
    reading = Reading("sglang", version, where)
    read_server(SGLANG, words, reading)
    reading.version = start.version
    start.set_options(
        reading,
        context_len="max_model_len",
        max_running_requests="max_num_seqs",
        chunked_prefill_size="max_num_batched_tokens",
    )
    return reading


def _finish_trtllm(start: _Start, where: str) -> Reading:
    reading = Reading("tensorrt-llm", start.version, where)
    start.set_options(
        reading,
        max_seq_len="max_model_len",
        max_batch_size="max_num_seqs",
        max_num_tokens="max_num_batched_tokens",
        block_size="block_size",
    )
    reading.options |= start.resolved
    return reading


_GGUF_SIZES = {"Small": "_S", "Medium": "_M", "Large": "_L"}
_BLOB = re.compile(r"(?:^|[/\\])sha256[-:]")  # How Ollama calls a model's file.


def _finish_llama_cpp(start: _Start, where: str) -> Reading:
    """Read the log as the line that would have started its server."""
    version = start.version or load_engine("llama.cpp").newest.version
    reading = Reading("llama.cpp", version, where)
    figures, resolved = start.figures, start.resolved
    file = str(start.arguments.get("model", ""))
    if _BLOB.search(file) or not file:
        file = re.sub(r"\s+", "-", resolved.get("name", "")) or file
    seats = figures.get("n_slots", figures.get("n_seq_max", 1))
    is_shared = resolved.get("kv_unified") == "true"
    contexts = 1 if is_shared else seats
    words: dict[str, Any] = {
        "--model": file,
        "--parallel": seats,
        "--ctx-size": figures.get("slot_ctx", figures.get("n_ctx", 0) / contexts) * contexts,
        "--batch-size": figures.get("n_batch"),
        "--ubatch-size": figures.get("n_ubatch"),
        "--gpu-layers": figures["layers"] if figures.get("layers", 0) < figures.get("of_layers", 0) else None,
        "--n-cpu-moe": len(resolved.get("experts_on_cpu", ())),
    }
    given = [(flag, value if isinstance(value, str) else str(int(value))) for flag, value in words.items() if value]
    if resolved.get("type_k", "f16") != "f16":
        given += [("--cache-type-k", resolved["type_k"]), ("--cache-type-v", resolved["type_v"])]
    read_server(LLAMA_CPP, [word for each in given for word in each] + ["--kv-unified"] * is_shared, reading)
    if reading.quantization is None and "file_type" in resolved:
        name, _, size = resolved["file_type"].partition(" - ")
        reading.quantization, note = gguf_format(name.split()[0] + _GGUF_SIZES.get(size.split(" ")[0], ""))
        reading.notes += [] if note is None else [note]
    if len(resolved.get("devices", ())) > 1:  # --split-mode layer, the default
        reading.deployment["pipeline_parallel_size"] = len(resolved["devices"])
    reading.version = start.version
    return reading


def _served(start: _Start) -> Served | None:
    """Return what llama.cpp printed of the requests that it finished; None: nothing."""
    answers = [each for each in start.answers if each[1] > 1]
    if not answers or not start.prompts:
        return None
    milliseconds, tokens = (sum(each) for each in zip(*answers, strict=True))
    prompt_ms, prompt_tokens = (sum(each) / len(start.prompts) for each in zip(*start.prompts, strict=True))
    return Served(len(answers), prompt_tokens, tokens / len(answers), prompt_ms, milliseconds / tokens)


_FINISH: Mapping[str, Callable[[_Start, str], Reading]] = {
    "vllm": _finish_vllm,
    "sglang": _finish_sglang,
    "tensorrt-llm": _finish_trtllm,
    "llama.cpp": _finish_llama_cpp,
}
_DEFAULT_BLOCK = {"vllm": 16, "sglang": 1, "tensorrt-llm": 32, "llama.cpp": 1}
"""Engine -> tokens per block where a log does not give them."""


_CONTEXT_RANKS = "decode_context_parallel_size"


def _room(start: _Start, reading: Reading) -> KVRoom:
    """Return the size of the KV cache; where the log gives tokens, they take precedence over blocks."""
    figures = start.figures
    tokens = figures.get("tokens", figures.get("max_total_num_tokens", figures.get("pool_tokens")))
    room = KVRoom(
        tokens=None if tokens is None else int(tokens),
        blocks=int(figures["blocks"]) if "blocks" in figures else None,
        bytes=round(figures["kv_gib"] * _GIB) if "kv_gib" in figures else None,
        block_size=reading.options.get("block_size"),
    )
    if room.tokens is None and room.blocks is None:
        return room
    # Ranks that divide contexts: the log counts the tokens of all of them, and blocks that span them.
    block = (room.block_size or _DEFAULT_BLOCK[reading.engine]) * reading.deployment.get(_CONTEXT_RANKS, 1)
    if room.tokens is None and room.blocks is not None:
        return replace(room, tokens=room.blocks * block, block_size=block)
    assert room.tokens is not None
    if room.block_size is None and room.blocks and room.tokens % room.blocks == 0 and start.engine == "vllm":
        block = room.tokens // room.blocks
        if block != _DEFAULT_BLOCK["vllm"]:
            reading.options["block_size"] = block
    if room.tokens < block:
        rule = f"is less than one block of {block}"
        raise ScenarioError(rule, file=reading.where, key="KV tokens", value=room.tokens)
    return replace(room, blocks=room.tokens // block, block_size=block)


@dataclass(frozen=True, slots=True)
class LogImport:
    """A log and the scenario of its server."""

    log: EngineLog  # What was read.
    draft: Draft | None  # The scenario; None: neither the log nor the caller names the model.
    estimated_tokens: int | None
    """KV tokens per rank that simserve estimates for that scenario without the log's own figure; None: the GPU or the
    model is not known, or the scenario cannot be deployed."""
    notes: tuple[str, ...]  # Notes for the reader, in full sentences.

    @property
    def difference(self) -> float | None:
        """KV tokens in the log over the estimate, minus one; None where either is not known."""
        if not self.estimated_tokens or self.log.kv.tokens is None:
            return None
        return self.log.kv.tokens / self.estimated_tokens - 1.0


def import_log(
    path: Path,
    *,
    scenario: Scenario | None = None,
    hardware: str | None = None,
    model: str | None = None,
    version: str | None = None,
    folder: Path | None = None,
) -> LogImport:
    """Read a start-up log, and return it with the scenario of that server.

    Args:
        scenario: Scenario that receives the log's settings; None: the log's model under placeholder traffic.
        hardware: GPU it ran on; None: the scenario's, or an assumed GPU where there is no scenario.
        model: Profile to use instead of the one closest to the log's model, or the scenario's.
        version: The engine's version; None: the version in the log.
        folder: Folder that the scenario will be written to; None: the working folder.

    Raises:
        TraceError: The file holds no start-up line.
        ScenarioError: A setting is invalid by itself or in the scenario.
    """
    log = read_engine_log(path, version)
    notes = list(log.reading.notes)
    named = None if log.hardware is None else hardware_name(log.hardware)
    if hardware is None and scenario is None and named is not None and is_known_gpu(named):
        hardware = named
    if log.was_cut:
        notes.append(f"Only the first {MAX_BYTES // 2**20} MiB of the log are read.")
    if log.reading.version is None:
        notes.append(f"The log does not say {log.reading.engine}'s version; --engine-version names it.")
    if log.served is not None:
        notes.append(_served_note(log.served))
    if log.kv.tokens is None and log.kv.bytes is None and log.reading.engine != "llama.cpp":
        notes.append("The log does not say the size of the KV cache: it is estimated.")

    def drafted() -> Draft | None:
        if scenario is not None:
            return _of_scenario(log, scenario, hardware=hardware, model=model, folder=folder or Path(), notes=notes)
        if log.reading.model is not None or model is not None:
            reading = log.reading
            reading.model = reading.model or model
            reading.notes = []
            if hardware is None:
                said = (
                    "does not say its GPU" if log.hardware is None else f"names a GPU without profile, {log.hardware}"
                )
                notes.append(f"The log {said}: {ASSUMED_HARDWARE} is assumed; --gpus names yours.")
            return draft_of(reading, model, hardware=hardware, title="What does the server of this log, {}, do?")
        notes.append("The log does not say its model: --model or --scenario names it, and makes a scenario of it.")
        return None

    draft = drafted()
    blocks = None if draft is None else _pool_blocks(log, draft)
    if blocks is not None:
        log.reading.options["num_gpu_blocks_override"] = blocks
        draft = drafted()
    is_complete = draft is not None and (scenario is not None or hardware is not None)
    roomy = _without_room(draft) if is_complete and draft is not None else None
    estimated = None if roomy is None or log.reading.engine == "llama.cpp" else roomy.memory.logged_tokens
    if draft is not None:
        draft = replace(draft, notes=tuple(dict.fromkeys([*notes, *draft.notes]))).checked()
        notes = list(draft.notes)
    return LogImport(log, draft, estimated, tuple(notes))


def _served_note(served: Served) -> str:
    return (
        f"Requests served: {served.num_requests:,}. On average {served.mean_prompt_tokens:,.0f} prompt tokens were "
        f"computed in {served.mean_prompt_ms:,.0f} ms, and {served.mean_output_tokens:,.0f} output tokens took "
        f"{served.tpot_ms:.3g} ms each. To compare, run it with --concurrency N "
        f"--prompt-tokens {max(served.mean_prompt_tokens, 1):.0f} --output-tokens {served.mean_output_tokens:.0f}."
    )


def _of_scenario(
    log: EngineLog, scenario: Scenario, *, hardware: str | None, model: str | None, folder: Path, notes: list[str]
) -> Draft:
    if scenario.deployment.pools:
        rule = "has pools, and a log is of one server"
        raise ScenarioError(rule, key="deployment.pools", remedy="name a scenario of one of them")
    settings = log.settings
    if log.reading.data_parallel_size > 1 and scenario.deployment.data_parallel_size == 1:
        notes.append(f"The server had {log.reading.data_parallel_size} data-parallel ranks; the scenario's stay.")
    if hardware is not None:
        settings["deployment.hardware"] = hardware
    if model is not None:
        settings["model"] = model
    elif log.reading.model is not None and not _is_model(log.reading.model, scenario.model, log.reading.where):
        notes.append(f"The log names {log.reading.model}; the scenario's {scenario.model} is kept.")
    if log.reading.speculation:  # a log does not tell how many drafts are accepted
        reading = log.reading
        found = read_speculation(reading.speculation, reading.where)
        if found is None:
            notes.append(unsimulated_note(reading.speculation, reading.engine, reading.version))
        elif scenario.deployment.speculative is None:
            settings["deployment.speculative"], note = found
            notes.append(note)
        elif scenario.deployment.speculative.method != found[0]["method"]:
            notes.append(f"The log says speculation by {found[0]['method']}; the scenario's is kept.")
    whole = scenario.model_dump(mode="json", exclude_unset=True)
    if scenario.deployment.engine.name != log.reading.engine:
        whole["deployment"]["engine"] = {}  # options of another engine
    mapping = from_mapping(whole, settings, file="scenario of the log", folder=scenario.folder).model_dump(
        mode="json", exclude_unset=True
    )
    mapping = moved(mapping, scenario.folder or Path(), folder)
    if log.reading.not_simulated:
        notes.append("Not simulated: " + ", ".join(log.reading.not_simulated) + ".")
    return Draft(mapping, (), f"What does {scenario.name} do with the settings of {Path(log.reading.where).name}?")


def _is_model(served: str, model: str, where: str) -> bool:
    """Return whether the model that a server names is a scenario's model."""
    try:
        return find_model(served, where).model == model
    except ScenarioError:
        return False


def _pool_blocks(log: EngineLog, draft: Draft) -> int | None:
    """Return the blocks of the scenario's own pool that hold what the log says; None: as many as were read.

    Blocks are longer than the log's default where the kernel of the model's attention forces that (MLA), and where
    ranks divide contexts. In a pool shared by layers with and without a window, or with states, vLLM printed its blocks
    divided by the groups of layers. Newer releases print the tokens of as many requests of full length as fit.
    """
    resolved = _without_room(draft) if "num_gpu_blocks_override" in log.reading.options else None
    if resolved is None or log.kv.blocks is None or log.kv.block_size is None:
        return None
    block = pool_block_bytes(resolved.shape, resolved.memory.draft_kv_bytes_per_token)
    if block is None:
        size = resolved.memory.block_size
        return None if size == log.kv.block_size or log.kv.tokens is None else max(log.kv.tokens // size, 1)
    if log.kv.bytes is not None:
        return int(log.kv.bytes // block)
    windows = resolved.memory.windows
    if windows is not None and windows.logs_requests and log.kv.tokens is not None:
        a_request = windows.num_blocks / windows.max_concurrent_full_length
        return round(log.kv.tokens / resolved.memory.max_model_len * a_request)
    if windows is not None and windows.are_states:
        tokens = log.kv.blocks * log.kv.block_size if log.kv.tokens is None else log.kv.tokens
        return round(tokens / resolved.memory.block_size) * windows.log_groups
    return round(log.kv.blocks * resolved.memory.kv_bytes_per_token * log.kv.block_size / block)


def _without_room(draft: Draft) -> ResolvedScenario | None:
    """Return a scenario with the size of the KV cache estimated; None where it cannot be deployed."""
    deployment = dict(draft.mapping["deployment"])
    engine = dict(deployment["engine"])
    for key in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        engine.pop(key, None)
    try:
        return resolve(from_mapping(dict(draft.mapping) | {"deployment": deployment | {"engine": engine}}))
    except (InputError, InfeasibleError):
        return None
