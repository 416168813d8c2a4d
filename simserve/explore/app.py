"""The page as a web application: one HTML file, its scripts, and one question per tab as JSON.

Every answer to bad input is a line with a status from 400 to 499. Only files in ``page`` are read, nothing is written,
no other machine is contacted, and no other page may ask (content type, host, no cross-origin headers).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simserve.errors import InfeasibleError, InputError, SimserveError
from simserve.explore import batching, lessons, money, queries, simulator, tour, tradeoffs, wizard
from simserve.explore.exports import export
from simserve.explore.queries import BusyError, Check, TooLongError
from simserve.explore.server import MEDIA_TYPE, AnswerInParts, Runner, Tell, while_connected
from simserve.explore.twin import TwinFeed
from simserve.metrics.summary import in_json
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.hardware import load_hardware
from simserve.report.page import TEMPLATES
from simserve.units import format_bytes
from simserve.validation import FrozenModel, validate
from simserve.version import __version__

_ASKED: dict[str, type[FrozenModel]] = {
    name: getattr(queries, f"{name.capitalize()}Query")
    for name in (
        *("tour", "simulator", "film", "memory", "batching", "paging", "cost"),
        *("speculation", "parallel", "wizard", "twin"),
    )
}
_BOUNDS = {
    "choices": "enum",
    "min": "minimum",
    "max": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
}
"""Name of a bound on the page -> its name in a JSON Schema."""
Query = TypeVar("Query", bound=FrozenModel)
MAX_BODY = 16_384  # Most bytes of a question.
BODY_SECONDS = 5.0  # Most seconds for a question to arrive.
WHAT_IF_SECONDS = 60.0  # Most seconds for a question about another deployment: hours of traffic are simulated.
_PAGE = Path(__file__).parent / "page"
_FILES = {
    "": _PAGE / "index.html",
    **{each.name: each for each in (_PAGE / "style.css", *_PAGE.glob("*.js"))},
    **{name: TEMPLATES / name for name in ("common.css", "film.css", "film.js", "read.js")},
}
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@cache
def catalogue() -> dict[str, Any]:
    """Return models, GPUs, frameworks and APIs with short descriptions, the tour's stops and each query's fields."""
    return {
        "version": __version__,
        "models": [
            {"name": name, "about": f"{load_model(name).num_parameters / 1e9:.3g} B"} for name in catalog.names("model")
        ],
        "hardware": [
            {"name": name, "about": f"{format_bytes(memory.total)}, {memory.bandwidth / 1e12:.3g} TB/s"}
            for name in catalog.names("hardware")
            for memory in [load_hardware(name).memory]
        ],
        "apis": catalog.names("api"),
        "frameworks": catalog.names("engine"),
        "stops": tour.described(),
        "fields": {name: _fields(query) for name, query in _ASKED.items()},
    }


def _fields(query: type[FrozenModel]) -> dict[str, Any]:
    """Return default, description, bounds and choices of each field."""
    schema = query.model_json_schema()
    return {
        name: {
            "default": field.get("default"),
            "about": field.get("description", ""),
            **{key: field[bound] for key, bound in _BOUNDS.items() if bound in field},
        }
        for name, field in schema["properties"].items()
    }


@dataclass(frozen=True, slots=True)
class Question(Generic[Query]):
    """The question of a tab."""

    about: str  # One line about it.
    query: type[Query]  # Its inputs.
    answer: Callable[[Query, Check], dict[str, Any]]  # The function that computes the answer.
    seconds: float | None = None  # How long it may take, if longer than usual.
    first: Callable[[Query, Check], dict[str, Any] | None] | None = None
    """A function that answers sooner but less fully; called before ``answer`` if the answer may come in parts."""


QUESTIONS: Mapping[str, Question[Any]] = {
    "tour": Question("A stop of the tour: what is true there", queries.TourQuery, tour.tour, seconds=120.0),
    "film": Question("The steps of a run, beside another", queries.FilmQuery, simulator.film, seconds=10.0),
    "simulator": Question("A deployment under traffic", queries.SimulatorQuery, simulator.simulator),
    "load": Question("The load that a deployment can sustain", queries.SimulatorQuery, simulator.load, seconds=10.0),
    "memory-wall": Question("What a decode step is made of", queries.MemoryQuery, lessons.memory_wall),
    "kv-growth": Question("KV memory over context and requests", queries.MemoryQuery, lessons.kv_growth),
    "attention": Question("KV of a token by attention variant", queries.MemoryQuery, tradeoffs.attention),
    "batching": Question("Static and continuous batching by slot", queries.BatchingQuery, batching.batching),
    "paging": Question("Reserved and paged KV memory", queries.PagingQuery, batching.paging),
    "quantization": Question("Number formats", queries.MemoryQuery, lessons.quantization),
    "speculation": Question("Drafts ahead of a model", queries.SpeculationQuery, tradeoffs.speculation),
    "parallel": Question("Ways to lay a model over GPUs", queries.ParallelQuery, tradeoffs.parallel),
    "cost": Question("Frameworks and GPUs, and an API", queries.CostQuery, money.cost, seconds=15.0),
    "wizard": Question("What to deploy", queries.WizardQuery, wizard.wizard, seconds=120.0, first=wizard.first),
}


def create_app(
    *,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
    runner: Runner | None = None,
    feed: TwinFeed | None = None,
) -> Starlette:
    """Return the application.

    Args:
        hosts: Host names that it accepts, against pages that point their own name at it; ``*``: any.
        feed: The deployment that the twin of the page shows; None without one.
    """
    app = Starlette(
        routes=[
            Route("/api/catalogue", _catalogue, methods=["GET"]),
            Route("/api/twin", _twin, methods=["GET"]),
            Route("/api/twin/what-if", _what_if, methods=["POST"]),
            Route("/api/openapi.json", _openapi, methods=["GET"]),
            Route("/api/{question}", _ask, methods=["POST"]),
            Route("/api/{question}/scenario", _scenario, methods=["POST"]),
            Route("/{name}", _file, methods=["GET"]),
            Route("/", _file, methods=["GET"]),
        ],
        middleware=[Middleware(_Headers), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={SimserveError: cast("Any", _failure)},
    )
    app.state.runner = runner or Runner()
    app.state.feed = feed
    return app


class _Headers:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, with_headers)


async def _file(request: Request) -> Response:
    path = _FILES.get(request.path_params.get("name", ""))
    if path is None:
        return _error(404, "there is no such page")
    return Response(path.read_bytes(), headers={"content-type": f"{_KINDS[path.suffix]}; charset=utf-8"})


async def _catalogue(_request: Request) -> Response:
    return JSONResponse(catalogue())


async def _twin(request: Request) -> Response:
    feed: TwinFeed | None = request.app.state.feed
    return JSONResponse({"source": None} if feed is None else feed.state())


async def _what_if(request: Request) -> Response:
    feed: TwinFeed | None = request.app.state.feed
    if feed is None:
        return _error(404, "no deployment is being watched")
    query = validate(queries.TwinQuery, await _body(request))
    return await _answered(request, lambda check: JSONResponse(feed.asked(query, check)), WHAT_IF_SECONDS)


async def _ask(request: Request) -> Response:
    asked = QUESTIONS.get(request.path_params["question"])
    if asked is None:
        return _error(404, "there is no such question")
    query = validate(asked.query, await _body(request))
    if asked.first is not None and MEDIA_TYPE in request.headers.get("accept", ""):
        return _in_parts(request, asked, query)
    answer = asked.answer
    return await _answered(request, lambda check: JSONResponse(in_json(answer(query, check))), asked.seconds)


def _in_parts(request: Request, asked: Question[Any], query: FrozenModel) -> Response:
    """Return a response that starts at once and gives a first answer before the full one."""

    def work(check: Check, tell: Tell) -> dict[str, Any]:
        soon = None if asked.first is None else asked.first(query, check)
        if soon is not None:
            tell({"first": in_json(soon)})
        found: dict[str, Any] = in_json(asked.answer(query, check))
        return found

    def failed(error: Exception) -> dict[str, Any] | None:
        if isinstance(error, SimserveError):
            status, kind = _refusal(error)
            return {"error": str(error), "kind": kind, "status": status}
        return {"error": str(error), "kind": "input", "status": 422} if isinstance(error, ValueError) else None

    runner: Runner = request.app.state.runner
    client = request.client.host if request.client is not None else ""
    return AnswerInParts(lambda watched: runner.run(client, watched, asked.seconds), work, failed)


async def _scenario(request: Request) -> Response:
    name = request.path_params["question"]
    asked = QUESTIONS.get(name)
    if asked is None:
        return _error(404, "there is no such question")
    query = validate(asked.query, await _body(request))

    def write(check: Check) -> Response:
        text = export(name, query, check)
        return Response(text, media_type="application/yaml", headers={"content-disposition": "attachment"})

    return await _answered(request, write, asked.seconds)


async def _answered(request: Request, work: Callable[[Check], Response], seconds: float | None = None) -> Response:
    runner: Runner = request.app.state.runner
    client = request.client.host if request.client is not None else ""
    try:
        return await while_connected(
            request.receive, lambda has_left: runner.run(client, work, seconds, has_left=has_left)
        )
    except ValueError as error:
        return _error(422, str(error))


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object that was sent.

    Raises:
        InputError: It is too large, too slow, or not a JSON object.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise _Refused(415, "must be application/json", key="content-type")
    received = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                received += part
                if len(received) > MAX_BODY:
                    raise _Refused(413, f"is larger than {MAX_BODY:,} bytes", key="body")
    except TimeoutError:
        raise _Refused(408, "came too slowly", key="body") from None
    except ClientDisconnect:
        raise _Refused(400, "ended early", key="body") from None
    try:
        document = json.loads(bytes(received) or b"{}")
    except (ValueError, RecursionError):
        raise _Refused(400, "is no JSON", key="body") from None
    if not isinstance(document, dict):
        raise _Refused(400, "must be a JSON object", key="body")
    return document


class _Refused(InputError):
    """An invalid request."""

    def __init__(self, status: int, rule: str, *, key: str) -> None:
        super().__init__(rule, key=key)
        self.status = status


async def _failure(_request: Request, error: SimserveError) -> Response:
    status, kind = _refusal(error)
    return _error(status, str(error), kind)


def _refusal(error: SimserveError) -> tuple[int, str]:
    """Return the status and the kind of an error that a question may end with."""
    if isinstance(error, _Refused):
        return error.status, "input"
    if isinstance(error, InfeasibleError):
        return 422, "infeasible"
    if isinstance(error, BusyError):
        return 429, "input"
    return 422, "too_long" if isinstance(error, TooLongError) else "input"


def _error(status: int, text: str, kind: str = "input") -> Response:
    return JSONResponse({"error": text, "kind": kind}, status_code=status)


async def _openapi(_request: Request) -> Response:
    """Describe the questions, for machines."""
    failure = {
        "type": "object",
        "properties": {"error": {"type": "string"}, "kind": {"type": "string"}},
        "required": ["error", "kind"],
    }
    bad = {"description": "Refused", "content": {"application/json": {"schema": failure}}}
    paths: dict[str, Any] = {}
    for name, question in QUESTIONS.items():
        schema = question.query.model_json_schema(ref_template="#/components/schemas/{model}")
        # Whole, or if there is a first answer, in lines of JSON.
        ways: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
        ways |= {} if question.first is None else {MEDIA_TYPE: {"schema": {"type": "string"}}}
        for tail, about, good in (
            ("", question.about, ways),
            ("/scenario", f"{question.about}, as a scenario file", {"application/yaml": ways["application/json"]}),
        ):
            paths[f"/api/{name}{tail}"] = {
                "post": {
                    "operationId": name + tail.replace("/", "-"),
                    "summary": about,
                    "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                    "responses": {
                        "200": {"description": "The answer", "content": good},
                        **{str(status): bad for status in (400, 408, 413, 415, 422, 429)},
                    },
                }
            }
    paths["/api/catalogue"] = {
        "get": {
            "operationId": "catalogue",
            "summary": "Models, GPUs, APIs and the inputs of every question",
            "responses": {
                "200": {"description": "The answer", "content": {"application/json": {"schema": {"type": "object"}}}}
            },
        }
    }
    return JSONResponse(
        {"openapi": "3.1.0", "info": {"title": "simserve explore", "version": __version__}, "paths": paths}
    )
