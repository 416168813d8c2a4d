"""Write the table of the page of start-up logs: ``python docs/write_kv_logs.py``; what stands above it is kept.

The logs are those of ``calibration/kv_logs.yaml`` and the KV rooms of ``calibration/unseen``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.units import GIB

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/kv-logs.md"
LOGS = ROOT / "calibration/kv_logs.yaml"
UNSEEN = ROOT / "calibration/unseen"

TABLE = "## Logs"
LIMIT = 0.1
"""Error of the KV room above which a log is a miss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One log beside the memory plan.

    Attributes:
        name: Which server.
        url: Where the log is.
        use: ``fitted``, ``seen`` or ``unseen``.
        served: Model, GPUs and engine, in words.
        unit: ``tokens`` or ``GiB``, as the log prints.
        printed: What the log says.
        planned: What the plan says.
        assumed: What the log does not say, and stands in for it.
    """

    name: str
    url: str
    use: str
    served: str
    unit: str
    printed: float
    planned: float
    assumed: str

    @property
    def error(self) -> float:
        """Planned over printed, less 1."""
        return self.planned / self.printed - 1.0

    @property
    def is_miss(self) -> bool:
        """Whether the plan is further off than `LIMIT`."""
        return abs(self.error) > LIMIT


def compare() -> list[Compared]:
    """Return every log beside the memory plan of its deployment."""
    found = [_compared(log, log["url"], log["use"]) for log in _read(LOGS)["logs"]]
    for path in sorted(UNSEEN.glob("*.yaml")):
        report = _read(path)
        rooms = [{**room, "name": f"{path.stem}: {room['name']}"} for room in report.get("kv_rooms", ())]
        found += [_compared(room, report["url"], "unseen") for room in rooms]
    return found


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _compared(log: Mapping[str, Any], url: str, use: str) -> Compared:
    one = {"distribution": "fixed", "value": 1}
    traffic = {"arrivals": {"process": "all_at_once"}, "prompt_tokens": one, "output_tokens": one, "num_requests": 1}
    resolved = resolve(
        from_mapping({"name": "log", "model": log["model"], "deployment": log["deployment"], "workload": traffic})
    )
    memory, shape = resolved.memory, resolved.shape
    has_tokens = "tokens" in log
    # vLLM keeps the states of linear attention in the pool whose bytes it prints.
    pool = memory.kv_bytes + (memory.states_bytes if shape.engine.name == "vllm" else 0.0)
    version = shape.engine.requested_version or shape.engine.version
    return Compared(
        name=log["name"],
        url=url,
        use=use,
        served=f"{shape.model.name} ({resolved.formats['weights']}), {shape.num_gpus} x {shape.hardware.name}, "
        f"{shape.engine.name} {version}",
        unit="tokens" if has_tokens else "GiB",
        printed=float(log["tokens"] if has_tokens else log["gib"]),
        planned=memory.logged_tokens if has_tokens else pool / GIB,
        assumed=log.get("assumed", "").strip(),
    )


def table_lines() -> list[str]:
    """Return the table, the worst last, and what stands above it."""
    rows = sorted(compare(), key=lambda each: abs(each.error))
    within = sum(not each.is_miss for each in rows)
    lines = [
        TABLE,
        "",
        f"The plan is within {LIMIT:.0%} of {within} of {len(rows)} logs; the others come last.",
        "",
        "| log | served | printed | planned | error | used | assumed |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*lines, *(_row(each) for each in rows)]


def _row(each: Compared) -> str:
    printed, planned = (
        f"{value:,.0f} tokens" if each.unit == "tokens" else f"{value:.2f} GiB"
        for value in (each.printed, each.planned)
    )
    cells = [f"[{each.name}]({each.url})", each.served, printed, planned, f"{each.error:+.1%}", each.use, each.assumed]
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """Return the page: what a person wrote above the table, and the table."""
    text = PAGE.read_text()
    return "\n".join([text[: text.index(TABLE)].rstrip("\n"), "", *table_lines()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
