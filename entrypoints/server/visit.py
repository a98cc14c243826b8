"""`Visit`: one HTTP request as the log and the limits see it."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(slots=True, kw_only=True)
class Visit:
    """Made by the gate, kept in the ASGI scope under `SCOPE_KEY`."""

    request_id: str
    """For logs and the header; never the engine's, since clients choose it."""
    client: str = ""
    """Which API key it came with, by number; empty where there are none."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Counts for the log: no text of anybody."""


SCOPE_KEY = "headstock.visit"


def visit_of(request: Request) -> Visit:
    """The visit that this request is."""
    return request.scope[SCOPE_KEY]


def safe_request_id(given: str) -> str:
    """The client's id if it can stand in a log as it is, else one of ours."""
    return given if SAFE_ID.fullmatch(given) else uuid.uuid4().hex
