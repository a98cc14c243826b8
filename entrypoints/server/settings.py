"""`ServerSettings`: everything about the server that is not the engine's."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from ...core.errors import InvalidInput

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
"""As browsers send it."""
USUAL_PORTS = re.compile(r"http://.*:80|https://.*:443")
"""Of origins with a port that browsers leave out."""
COUNTS = (
    "max_body_bytes",
    "max_queued_requests",
    "max_queued_tokens",
    "max_requests_per_key",
    "max_logprobs",
)
SECONDS = ("request_timeout", "shutdown_timeout", "retry_after")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Raises `InvalidInput` naming the field."""

    model_names: tuple[str, ...]
    """What requests may call the model; the first is what answers call it."""
    api_keys: tuple[str, ...] = ()
    """Any of them opens everything; without one everything is open."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages of these origins may call from a browser, of all with ``*``; none by default."""
    max_body_bytes: int = 16 * 2**20
    """Longer bodies are refused with 413."""
    max_queued_requests: int = 1024
    """Completions without a first token; beyond them, 503."""
    max_queued_tokens: int | None = None
    """Tokens of their prompts; beyond them, 503. None is no limit."""
    max_requests_per_key: int | None = None
    """Requests of one API key (without keys: of everybody together) at a time; beyond them, 429. None is no limit."""
    max_logprobs: int = 20
    """Likeliest tokens that a request may ask for at each position."""
    request_timeout: float | None = None
    """Seconds after which a request ends with 504; None is never."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests have to finish once the server is told to end."""
    retry_after: float = 1.0
    """Seconds, told to clients that are refused for lack of room."""
    metrics_prefix: str = "vllm"
    """Before the colon of metric names."""

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise InvalidInput("served_model_name", "must not be empty")
        if not all(key and key.isascii() and key.isprintable() and " " not in key for key in self.api_keys):
            raise InvalidInput("api_key", "must be printable ASCII without spaces, and not empty")
        for origin in self.allowed_origins:
            if origin != "*" and (not ORIGIN.fullmatch(origin) or USUAL_PORTS.fullmatch(origin)):
                raise InvalidInput(
                    "allowed_origin",
                    f"{origin!r} is nothing that a browser sends; give https://example.com or http://localhost:3000, "
                    "in lower case, without path and without the usual port, or * for all",
                )
        if not self.metrics_prefix.isidentifier() or not self.metrics_prefix.isascii():
            raise InvalidInput("metrics_prefix", f"must be letters, digits and _, not {self.metrics_prefix!r}")
        optional = {f.name for f in fields(self) if f.default is None}
        for name in (*COUNTS, *SECONDS):
            value: float | None = getattr(self, name)
            if value is None:
                if name in optional:
                    continue
                raise InvalidInput(name, "must be a number")
            least = 0 if name in ("max_logprobs", "shutdown_timeout") else 1e-9 if name in SECONDS else 1
            if not least <= value < float("inf"):
                raise InvalidInput(
                    name, f"must be {'at least' if least != 1e-9 else 'above'} {int(least)}, not {value}"
                )
