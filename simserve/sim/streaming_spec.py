"""The `deployment.streaming` block: how tokens reach the client. Delays nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from simserve.units import PositiveSeconds, Seconds
from simserve.validation import FrozenModel


class StreamingSpec(FrozenModel):
    """How tokens reach the client: server-sent events through an API server and a network.

    Time to first token, gaps and end-to-end times are then those that the client sees. What happens on this way does
    not slow the engine down, except that clients who wait for answers send their next request later.
    """

    stream: bool = True
    """Whether tokens are sent as they come; if not, the whole answer is sent at its end."""
    buffer_tokens: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Tokens that are sent together in one event; the last one may have fewer."""
    network_latency: Seconds = 0.0
    """Time from client to server, and from server to client: each way."""
    cost_per_event: Seconds = 30e-6
    """CPU time of one event on an API-server core: detokenising, JSON, the socket. Where it is left out, the engine's
    own figure if there is one (SGLang's)."""
    api_servers: Annotated[int, Field(ge=1, le=1024)] = 1
    """API-server cores of a replica, which share its events evenly (vLLM's `--api-server-count`)."""
    http_timeout: PositiveSeconds | None = None
    """How long a proxy or client waits before it closes the connection, which drops the request: without streaming for
    the answer, with streaming for the first token, counted where it leaves the server. Absent: for ever."""

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if not self.stream and self.buffer_tokens != 1:
            raise ValueError("sends whole answers; buffer_tokens has no effect with stream: false")
        return self

    @property
    def timeouts(self) -> tuple[float | None, float | None]:
        """Return the seconds that a client waits for a whole answer, and for the first token of a stream."""
        return (None, self.http_timeout) if self.stream else (self.http_timeout, None)
