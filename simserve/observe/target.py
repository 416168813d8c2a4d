"""What a live server is: its address, and the model, engine, version and KV capacity that its own pages report.

Pages: ``/v1/models`` of every OpenAI-compatible server, and what engines have besides: ``/version`` and ``/metrics``
(vLLM, TensorRT-LLM), ``/get_server_info`` (SGLang), ``/props`` (llama.cpp).
"""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from simserve.errors import InputError, UsageError
from simserve.observe.scrapes import Sample, samples_of

LARGEST_PAGE = 8_000_000  # Most bytes of a page that are read.
PAGE_SECONDS = 10.0  # A page that takes longer, in seconds, counts as missing.
_PREFIXES = {"vllm:": "vllm", "sglang:": "sglang", "trtllm_": "tensorrt-llm", "llamacpp:": "llama.cpp"}
"""Prefix of the names of an engine's metrics -> the engine."""
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "tensorrt_llm": "tensorrt-llm"}
"""Owner of the model in ``/v1/models`` -> the engine."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a server reports about itself."""

    url: str  # Its address, without credentials and without ``/v1``.
    model: str  # The name under which it serves the model.
    engine: str = ""  # The engine's profile; empty if not reported.
    version: str = ""  # The engine's version; empty if not reported.
    max_model_len: int | None = None  # Longest prompt and answer together, tokens; None if not reported.
    kv: Mapping[str, Any] = field(default_factory=dict)
    """What it reports about its KV cache: ``num_gpu_blocks``, ``block_size`` and the like."""


def url_of(text: str, *, example: str, secret: str) -> httpx.URL:
    """Return the parsed address of a server.

    Args:
        example: A correct address, for the message.
        secret: Where a secret belongs, for the message.

    Raises:
        UsageError: It is not an address, or it contains a password.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError("must be the address of a server", key="URL", value=text, remedy=f"for example {example}")
    if url.userinfo:
        raise UsageError("must not hold credentials", key="URL", remedy=secret)
    return url


def address_of(text: str) -> str:
    """Return the address of a server without the path ``/v1`` and without parts that do not belong there.

    Raises:
        UsageError: It is not an address, or it contains a password.
    """
    url = url_of(
        text, example="http://localhost:8000", secret="put the key in an environment variable: --api-key-env NAME"
    )
    path = url.path.rstrip("/").removesuffix("/v1")
    return str(url.copy_with(path=path or "/", query=None, fragment=None)).rstrip("/")


def is_this_machine(url: str) -> bool:
    """Return whether an address is this machine's own, which no proxy can reach."""
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def trusted_authorities(url: str) -> ssl.SSLContext:
    """Return the trusted certificate authorities: from ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``, else the public ones.

    None are read for an address without TLS: reading the public ones takes 0.02 s.

    Raises:
        UsageError: The file contains none.
    """
    if url.startswith("http:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return httpx.create_ssl_context()
    except OSError as failure:
        value, why = os.environ.get("SSL_CERT_FILE"), failure.strerror or str(failure)
        raise UsageError(f"holds no certificates: {why}", key="SSL_CERT_FILE", value=value) from None


async def find_out(client: httpx.AsyncClient, url: str, model: str | None = None) -> Server:
    """Return what the server at an address is.

    Args:
        client: The HTTP client.
        url: Its address, as `address_of` returns it.
        model: Which of its models; None: the only one.

    Raises:
        InputError: Nothing answers there, or it does not list models, or not this one.
    """
    listed = await _models(client, url)
    names = [each["id"] for each in listed]
    if model is None and len(names) > 1:
        raise InputError(
            f"serves {len(names)} models", file=url, remedy=f"say which with --model: {', '.join(names[:5])}"
        )
    if model is not None and model not in names:
        raise InputError("is not served there", file=url, key="--model", value=model, remedy=f"{names[0]} is")
    served = listed[0] if model is None else listed[names.index(model)]
    metrics = samples_of((await page(client, f"{url}/metrics")) or "")
    engine = _engine_of(served, metrics)
    own, details = await _details(client, url, engine)
    kv = {**_cache_config(metrics), **{key: details[key] for key in ("max_total_num_tokens",) if key in details}}
    longest = served.get("max_model_len") or details.get("context_length")
    return Server(
        url=url,
        model=served["id"],
        engine=engine,
        version=own,
        max_model_len=longest if isinstance(longest, int) and longest > 0 else None,
        kv=kv,
    )


async def page(client: httpx.AsyncClient, url: str) -> str | None:
    """Return the text of a page within its bounds; None if there is none.

    Raises:
        httpx.ConnectError: No server listens there.
    """
    text, _ = await _page_or_reason(client, url)
    return text


async def _page_or_reason(client: httpx.AsyncClient, url: str) -> tuple[str | None, str]:
    """Return the text of a page, or None and what was answered instead."""
    body = b""
    try:
        async with client.stream("GET", url, timeout=PAGE_SECONDS) as response:
            if response.has_redirect_location:
                return None, f"redirects to {response.headers['Location'][:200]}"
            if response.status_code != httpx.codes.OK:
                return None, f"answers HTTP {response.status_code}"
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > LARGEST_PAGE:
                    return None, f"answers more than {LARGEST_PAGE:,} bytes"
    except httpx.ConnectError:
        raise
    except httpx.TimeoutException:
        return None, f"says nothing for {PAGE_SECONDS:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as failure:
        return None, f"breaks off ({type(failure).__name__})"
    return body.decode("utf-8", errors="replace"), ""


async def _models(client: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    remedy = "is it the address of an OpenAI-compatible server, such as http://localhost:8000?"
    try:
        text, reason = await _page_or_reason(client, f"{url}/v1/models")
    except httpx.ConnectError as failure:
        # Of the failures to connect, only those of TLS have their own reason.
        why = f": {failure}" if "SSL" in str(failure) or "certificate" in str(failure).lower() else ""
        if "CERTIFICATE_VERIFY_FAILED" in why:
            remedy = "name who signed its certificate in the environment: SSL_CERT_FILE=authority.pem"
        raise InputError(f"does not answer{why}", file=url, remedy=remedy) from None
    if reason:
        if "HTTP 401" in reason or "HTTP 403" in reason:
            remedy = "does it want a key? --api-key-env NAME"
        elif reason.startswith("redirects"):
            remedy = "give the address that it redirects to; nothing is sent to another by itself"
        raise InputError(f"{reason} at /v1/models", file=url, remedy=remedy)
    answer = _json(text)
    data = answer.get("data") if isinstance(answer, dict) else None
    entries = data if isinstance(data, list) else []
    listed = [each for each in entries if isinstance(each, dict) and _is_name(each.get("id"))]
    if not listed:
        raise InputError("lists no models at /v1/models", file=url, remedy=remedy)
    return listed


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 1_000 and value.isprintable()


def _engine_of(told: Mapping[str, Any], metrics: Sequence[Sample]) -> str:
    for prefix, engine in _PREFIXES.items():
        if any(each.name.startswith(prefix) for each in metrics):
            return engine
    return _OWNERS.get(str(told.get("owned_by")), "")


async def _details(client: httpx.AsyncClient, url: str, engine: str) -> tuple[str, Mapping[str, Any]]:
    """Return the version of an engine, empty if not reported, and what else the page with it reports."""
    version = _mapping(await page(client, f"{url}/version")).get("version")
    details: Mapping[str, Any] = {}
    if engine == "sglang":
        details = _mapping(await page(client, f"{url}/get_server_info"))
        version = details.get("version", version)
    elif engine == "llama.cpp":
        details = _mapping(await page(client, f"{url}/props"))
        version = str(details.get("build_info", "")).partition("-")[0] or version
    return version if isinstance(version, str) and _is_name(version) else "", details


def _cache_config(metrics: Sequence[Sample]) -> dict[str, str]:
    """Return the labels of vLLM's ``cache_config_info``."""
    for each in metrics:
        if each.name == "vllm:cache_config_info":
            return dict(each.labels)
    return {}


def _mapping(text: str | None) -> Mapping[str, Any]:
    found = _json(text)
    return found if isinstance(found, dict) else {}


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
