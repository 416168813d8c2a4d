"""An environment that holds a real engine's scheduler: its wheel without dependencies, and what importing it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

SOURCE_OF_TRTLLM = "SIMSERVE_TENSORRT_LLM"
"""Folder of a checkout or of an unpacked wheel of TensorRT-LLM; no registry has it."""
VARIABLE = "SIMSERVE_REAL_ENGINES"
"""Folder of the environments; without it a folder in the user's cache."""
PACKAGES = (
    *("torch==2.13.0", "numpy", "transformers", "pydantic", "cloudpickle", "msgspec", "regex", "cachetools", "psutil"),
    *("pyzmq", "blake3", "py-cpuinfo", "cbor2", "urllib3", "aiohttp", "requests", "openai_harmony", "openai", "pillow"),
    *("pybase64", "uvloop", "prometheus-client", "fastapi", "partial_json_parser", "llguidance", "einops"),
    *("gguf", "diskcache"),
)
"""What the scheduler's modules import."""

OF_ENGINE = {"vllm": ("xgrammar",), "sglang": ("dill", "orjson", "triton")}
"""What those of one engine import besides; SGLang's do without xgrammar (`tests.real_engines.sglang_absent`)."""


def folder_of(version: str, engine: str = "vllm") -> Path:
    """Return where the environment of a release lies, or would."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(VARIABLE) or cache / "simserve" / "real-engines") / f"{engine}-{version}"


def python_of(version: str, engine: str = "vllm") -> Path | None:
    """Return the interpreter of an environment that is complete; None: there is none."""
    folder = folder_of(version, engine)
    return folder / "bin" / "python" if (folder / ".complete").is_file() else None


def make(version: str, engine: str = "vllm") -> Path:
    """Make the environment of a release if there is none, and return its interpreter.

    Raises:
        subprocess.CalledProcessError: A package is not to be had.
    """
    folder = folder_of(version, engine)
    python = folder / "bin" / "python"
    if python_of(version, engine) is None:
        print(f"making {folder}: the engine's wheel and torch", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *PACKAGES, *OF_ENGINE[engine]], check=True)
        subprocess.run([*install, "--no-deps", f"{engine}=={version}"], check=True)
        (folder / ".complete").touch()
    return python
