"""Turns a pasted `lmdeploy serve api_server` line into a scenario: what LMDeploy's flags mean."""

from __future__ import annotations

from typing import Any

from simserve.planner.importers.server import Program, Reading, read_dtype

_FORMATS = {"awq": "awq-int4", "gptq": "gptq-int4", "fp8": "fp8", "mxfp4": "mxfp4"}
"""LMDeploy's ``--model-format`` -> the scenario's; all others are 16-bit."""


def _format(reading: Reading, _: str, value: Any) -> None:
    reading.quantization = _FORMATS.get(str(value))


LMDEPLOY = Program(engine="lmdeploy", own={"--model-format": _format, "--dtype": read_dtype})
"""``lmdeploy serve api_server MODEL ...``, or a ``docker run`` of it."""
