"""The tour: six stops that ask for a prediction, and what simserve computes for each of them.

The questions are texts of ``tour.yaml``; the answers are computed on request by the functions behind the tabs.
Each stop leads to a tab with exactly the settings that it used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simserve.documents import read_document
from simserve.explore.batching import batching, paging
from simserve.explore.lessons import decode_ms, kv_growth, memory_wall, resolved_query
from simserve.explore.queries import (
    BatchingQuery,
    Check,
    DeploymentQuery,
    FilmQuery,
    MemoryQuery,
    PagingQuery,
    SimulatorQuery,
    TooLongError,
    TourQuery,
    WizardQuery,
)
from simserve.explore.simulator import film, load
from simserve.perf.operators import PART_NAMES, PricedDeployment
from simserve.perf.tables import price
from simserve.report.facts import PART_LABELS
from simserve.report.quantities import number, share
from simserve.units import HOURS_PER_MONTH, format_bytes

_SMALL, _LARGE = "llama-3.1-8b", "llama-3.1-70b"
_H100, _L40S = "h100-sxm-80gb", "l40s-48gb"
_CONTEXT = 2000  # Tokens of each sequence unless a stop says otherwise.
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LONG_TAIL = (*(50,) * 7, 500)  # Seven short answers and a long one.
_SLOTS = 8
_FLEET_RATE = 40.0
_HEADROOM = 0.2  # Share of additional traffic that a fleet must be able to sustain, as in the tab.


@dataclass(frozen=True, slots=True)
class Stop:
    """The text of a stop before anything is computed."""

    id: str  # Its name in links.
    title: str  # Title of its chapter.
    setting: str  # What is known.
    ask: str  # The question.
    tab: str  # The tab that continues the stop.
    values: Mapping[str, Any]  # The settings there that differ from the defaults of the tab.
    choices: tuple[str, ...] = ()  # Possible answers; empty: a number.
    unit: str = ""  # Unit of the number.
    low: float = 1.0  # Left end of the slider, which is logarithmic.
    high: float = 100.0  # Right end.
    start: float = 10.0  # Initial position of the slider.


_FORMATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("4 GPUs, 16-bit", {"gpus": 4, "tensor_parallel_size": 4}),
    ("8 GPUs, 16-bit", {"gpus": 8, "tensor_parallel_size": 8}),
    ("4 GPUs, FP8", {"gpus": 4, "tensor_parallel_size": 4, "quantization": "fp8"}),
    ("4 GPUs, 4-bit AWQ", {"gpus": 4, "tensor_parallel_size": 4, "quantization": "awq-int4"}),
)
_FLEETS = (("L40S", _L40S), ("A100", "a100-sxm-80gb"), ("H100", _H100))
_RATES = (2.0, 5.0, 10.0, 20.0, 40.0, 80.0)

_VALUES: Mapping[str, Mapping[str, Any]] = {
    "decoding": {"model": _SMALL, "hardware": _H100, "batch": 1},
    "kv-cache": {"model": _SMALL, "hardware": _H100, "context_tokens": 8000},
    "batching": {"lengths": 3 * LONG_TAIL, "slots": _SLOTS},
    "paging": {"model": _SMALL, "hardware": _L40S, "max_model_len": 16_384},
    "formats": {"batch": 1},
    "fleet": {"rate": _FLEET_RATE},
}
_CHOICES = {"formats": tuple(name for name, _ in _FORMATS[1:]), "fleet": tuple(name for name, _ in _FLEETS)}
STOPS = tuple(
    Stop(**text, values=_VALUES[text["id"]], choices=_CHOICES.get(text["id"], ()))
    for text in read_document(Path(__file__).with_suffix(".yaml"))
)


def described() -> list[dict[str, Any]]:
    """Return the stops as the page shows them."""
    return [asdict(stop) for stop in STOPS]


def tour(query: TourQuery, check: Check) -> dict[str, Any]:
    """Return the solution of a stop: ``truth``, ``answer``, ``lines``, what to ``play`` and the equations.

    Raises:
        TooLongError: It took too long.
    """
    return {"stop": query.stop, **_ANSWERS[query.stop](check)}


def _decoding(check: Check) -> dict[str, Any]:
    found = memory_wall(MemoryQuery(model=_SMALL, hardware=_H100, batch=1), check)
    priced = price(resolved_query(MemoryQuery(model=_SMALL, hardware=_H100)).shape)
    steps = {batch: decode_ms(priced, batch, _CONTEXT) for batch in _BATCHES}
    lone, many = sum(steps[1].values()), sum(steps[64].values())
    most = sum(steps[_BATCHES[-1]].values())
    weights = found["memory"]["weights"]
    return {
        "truth": found["step_ms"],
        "answer": f"A token takes {number(found['step_ms'])} ms: the GPU reads all {format_bytes(weights)} of weights "
        "for it.",
        "lines": [
            f"A step does {number(found['intensity'])} FLOP for each byte that it reads. This GPU can do "
            f"{number(found['ridge'])} in the time of reading one, so most of its arithmetic units are idle: memory "
            "bandwidth is the bottleneck.",
            f"Weights are read once a step, however many requests are in it. A step of 64 requests takes "
            f"{number(many)} ms, {number(many / lone)} times as long, and brings 64 tokens in place of one.",
            "Modelled step times of simserve; the equation below is the bound that no engine can beat.",
        ],
        "play": {
            "kind": "frames",
            "label": "Requests in the batch",
            "title": "One step",
            "format": "ms",
            "parts": [PART_LABELS[name] for name in PART_NAMES],
            "most": most,
            "frames": [_batch_frame(batch, step) for batch, step in steps.items()],
        },
        "equations": found["equations"],
    }


def _batch_frame(batch: int, step: Mapping[str, float]) -> dict[str, Any]:
    milliseconds = sum(step.values())
    rate = 1e3 * batch / milliseconds
    each = number(rate / batch)
    return {
        "name": f"{batch} request{'s' if batch > 1 else ''}",
        "says": f"{number(rate)} tokens a second in all, {each} for each request",
        "rows": [_row("a step", list(step.values()), f"{number(milliseconds)} ms")],
    }


def _row(name: str, parts: Sequence[float], note: str, *, is_best: bool = False) -> dict[str, Any]:
    return {"name": name, "parts": list(parts), "note": note, "chosen": is_best}


def _kv_cache(check: Check) -> dict[str, Any]:
    asked = MemoryQuery(model=_SMALL, hardware=_H100, context_tokens=8000)
    found = kv_growth(asked, check)
    memory, per_token = found["memory"], found["kv_bytes_per_token"]
    count = found["most_requests"]
    return {
        "truth": count,
        "answer": f"{count} requests fit: each takes {format_bytes(8000 * per_token)}.",
        "lines": [
            f"A token holds {per_token:,.0f} bytes: a key and a value for each of 8 KV heads in each of 32 layers.",
            f"Weights and the runtime leave {format_bytes(found['room'])}. One sequence of "
            f"{found['weights_crossing_tokens']:,.0f} tokens would be as large as all the weights.",
            "Memory, not arithmetic, decides how many requests a GPU can serve at once, and their length counts as "
            "much as their number.",
        ],
        "play": {
            "kind": "frames",
            "label": "Tokens of each of 16 requests",
            "title": "Memory of one GPU",
            "format": "bytes",
            "parts": ["weights", "runtime and reserve", "KV of 16 requests"],
            "most": 2 * memory["total"],
            "mark": memory["total"],
            "note": "dashed: what the GPU has",
            "frames": [_context_frame(memory, per_token, 500 * 2**power) for power in range(9)],
        },
        "equations": found["equations"],
    }


def _context_frame(memory: Mapping[str, float], per_token: float, context: int) -> dict[str, Any]:
    kv = 16 * per_token * context
    fits = kv <= memory["kv_room"]
    most = memory["kv_room"] / (per_token * context)
    return {
        "name": f"{context:,} tokens",
        "says": f"{'fits' if fits else 'does not fit'}; at most {math.floor(most):,} such requests do",
        "rows": [_row("one GPU", [memory["weights"], memory["other"], kv], f"KV {format_bytes(kv)}")],
    }


def _batching(check: Check) -> dict[str, Any]:
    query = BatchingQuery(lengths=3 * LONG_TAIL, slots=_SLOTS)
    found = batching(query, check)
    static, continuous = found["forms"]["static"], found["forms"]["continuous"]
    return {
        "truth": found["gain"],
        "answer": f"Continuous batching is {number(found['gain'])} times as fast: {continuous['steps']:,} steps in "
        f"place of {static['steps']:,}.",
        "lines": [
            f"In the static batches {share(static['idle'])} of the slots are idle: their answers are done, and "
            "seven of eight slots wait for the long one.",
            f"Under continuous batching it is {share(continuous['idle'])}, all of it at the end, when only long "
            "answers are left.",
            "Had all answers the same length, both would take the same number of steps.",
        ],
        "play": {"kind": "slots", "slots": query.slots, "forms": found["forms"]},
        "equations": found["equations"],
    }


def _paging(check: Check) -> dict[str, Any]:
    found = paging(PagingQuery(model=_SMALL, hardware=_L40S, max_model_len=16_384), check)
    paged, reserved = found["ways"]["paged"], found["ways"]["static"]
    shown = film(
        FilmQuery(
            model=_SMALL,
            hardware=_L40S,
            max_model_len=16_384,
            prompt_tokens=300,
            max_num_seqs=64,
            rate=6.0,
            num_requests=200,
            against="reserved KV memory",
        ),
        check,
    )
    return {
        "truth": found["gain"],
        "answer": f"Blocks on demand bring {number(found['gain'])} times the tokens a second.",
        "lines": [
            f"Reserving 16,384 tokens for each leaves {share(reserved['internal_waste'])} of the reserved memory "
            f"empty, and room for {number(reserved['mean_batch'])} requests at once; paging runs "
            f"{number(paged['mean_batch'])}.",
            "A larger batch shares each reading of the weights, which is where the speed comes from.",
            "The film shows both engines with the same arrivals, 6 requests a second: below, requests queue while most "
            "of the reserved memory is empty.",
        ],
        "play": {"kind": "film", "film": shown["film"]},
        "equations": found["equations"],
    }


def _formats(check: Check) -> dict[str, Any]:
    check(0, 1)
    query = DeploymentQuery(model=_LARGE, hardware=_H100)
    layouts = {name: price(resolved_query(query.model_copy(update=changes)).shape) for name, changes in _FORMATS}
    alone = {name: sum(decode_ms(priced, 1, _CONTEXT).values()) for name, priced in layouts.items()}
    base, *others = alone
    right = min(others, key=lambda name: alone[name])
    gains = "; ".join(f"{name}: {number(alone[base] / alone[name])} times as fast" for name in others)
    return {
        "truth": right,
        "answer": f"{right}: {number(alone[right])} ms a token in place of {number(alone[base])} ms.",
        "lines": [
            f"{gains}.",
            "Fewer bits shorten what is read. More GPUs share the reading, and add communication: after each half of a "
            "layer they must exchange their results. Neither shortens the work of the host.",
            "Twice the GPUs cost twice as much; fewer bits may cost quality. In a large batch arithmetic and KV reads "
            "count, and the order changes: move the slider.",
        ],
        "play": {
            "kind": "frames",
            "label": "Requests in the batch",
            "title": "One step",
            "format": "ms",
            "parts": [PART_LABELS[name] for name in PART_NAMES],
            "frames": [_layouts_frame(batch, layouts) for batch in _BATCHES],
        },
        "equations": [
            {
                "name": "Speed-up",
                "formula": "milliseconds of a step with 16-bit weights on 4 GPUs / milliseconds after the change",
                "numbers": f"{number(alone[base])} / {number(alone[right])} = {number(alone[base] / alone[right])}",
            }
        ],
    }


def _layouts_frame(batch: int, layouts: Mapping[str, PricedDeployment]) -> dict[str, Any]:
    steps = {name: decode_ms(priced, batch, _CONTEXT) for name, priced in layouts.items()}
    total = {name: sum(step.values()) for name, step in steps.items()}
    best = min(total, key=lambda name: total[name])
    rows = [
        _row(name, list(step.values()), f"{number(total[name])} ms", is_best=name == best)
        for name, step in steps.items()
    ]
    return {"name": f"{batch} request{'s' if batch > 1 else ''}", "says": f"fastest: {best}", "rows": rows}


def _fleet(check: Check) -> dict[str, Any]:
    loads = {name: _most(hardware, check) for name, hardware in _FLEETS}
    right, (replicas, usd) = _cheapest(_FLEET_RATE, loads)
    most, hourly = loads[right]
    held = "; ".join(f"{name} {number(each)} requests/s for ${hour:.2f}" for name, (each, hour) in loads.items())
    cheapest_hour = min(loads, key=lambda name: loads[name][1])
    return {
        "truth": right,
        "answer": f"{replicas} x {right} for ${usd:,.0f} a month.",
        "lines": [
            f"What one GPU can sustain within the SLO, and what it costs an hour: {held}.",
            f"By the hour the {cheapest_hour} is the cheapest. What counts is dollars a request, and GPUs come whole:"
            f" at {_RATES[0]:g} requests a second it is the {_cheapest(_RATES[0], loads)[0]}. Move the slider.",
            "All of this with 16-bit weights. With fewer bits another GPU may win: the tab tries the formats, and "
            "confirms what it promises on fresh traffic.",
        ],
        "play": {
            "kind": "frames",
            "label": "Requests a second",
            "title": "Dollars a month",
            "format": "dollars",
            "parts": ["dollars a month"],
            "frames": [_rate_frame(rate, loads) for rate in _RATES],
        },
        "equations": [
            {
                "name": f"{right} needed",
                "formula": "requests a second x (1 + headroom) / what one GPU can sustain, rounded up",
                "numbers": f"{_FLEET_RATE:g} x {1 + _HEADROOM:g} / {number(most)} = "
                f"{number(_FLEET_RATE * (1 + _HEADROOM) / most)}, so {replicas}; "
                f"x ${hourly:.2f} x {HOURS_PER_MONTH} hours = ${usd:,.0f}",
            }
        ],
    }


def _most(hardware: str, check: Check) -> tuple[float, float]:
    """Return the requests a second that one GPU can sustain within the SLO, and its dollars an hour."""
    traffic = WizardQuery(rate=_FLEET_RATE)
    query = SimulatorQuery(
        model=traffic.model,
        hardware=hardware,
        gpus=1,
        rate=_FLEET_RATE / 4,
        prompt_tokens=traffic.prompt_tokens,
        output_tokens=traffic.output_tokens,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
    )
    most = load(query, check)["most"]
    if most is None:
        raise TooLongError(f"the search for the load of {hardware} takes too long", remedy="ask again")
    return float(most), float(resolved_query(query).gpu_hour_usd or math.nan)


def _bills(rate: float, loads: Mapping[str, tuple[float, float]]) -> dict[str, tuple[int, float]]:
    """Return how many GPUs of each kind the traffic needs, and their dollars a month."""
    needed = {name: math.ceil(rate * (1 + _HEADROOM) / most) for name, (most, _) in loads.items()}
    return {name: (count, count * loads[name][1] * HOURS_PER_MONTH) for name, count in needed.items()}


def _cheapest(rate: float, loads: Mapping[str, tuple[float, float]]) -> tuple[str, tuple[int, float]]:
    return min(_bills(rate, loads).items(), key=lambda each: each[1][1])


def _rate_frame(rate: float, loads: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    bills = _bills(rate, loads)
    best, _ = _cheapest(rate, loads)
    rows = [
        _row(f"{count} x {name}", [usd], f"${usd:,.0f}", is_best=name == best) for name, (count, usd) in bills.items()
    ]
    return {"name": f"{rate:g} requests a second", "says": f"cheapest: {best}", "rows": rows}


_ANSWERS: Mapping[str, Callable[[Check], dict[str, Any]]] = {
    "decoding": _decoding,
    "kv-cache": _kv_cache,
    "batching": _batching,
    "paging": _paging,
    "formats": _formats,
    "fleet": _fleet,
}
