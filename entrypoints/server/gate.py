"""`Gate`: around the whole application, who may come in, and a line in the log for whoever came."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .logs import log_with
from .metrics import Metrics
from .visit import SCOPE_KEY, Visit, safe_request_id

logger = logging.getLogger(__name__)

OPEN_PATHS = ("/health",)
"""Need no API key: load balancers have none."""
QUIET_PATHS = ("/health", "/metrics")
"""Asked all day long; not in the log."""


class Keys:
    """API keys, kept as digests. Comparing takes the same time whichever key comes, right or wrong."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, given: str) -> int | None:
        """The place of the key; None where it is none of ours."""
        digest, found = _digest(given), None
        for place, known in enumerate(self._digests):
            if hmac.compare_digest(digest, known):
                found = place
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str], handlers: Sequence[str], metrics: Metrics) -> None:
        """`handlers` are the paths that metrics name; all others are one."""
        self._app = app
        self._keys = Keys(api_keys)
        self._handlers = frozenset(handlers)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        visit = scope[SCOPE_KEY] = Visit(request_id=safe_request_id(headers.get("x-request-id", "")))
        started = time.monotonic()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = visit.request_id
            await send(message)

        try:
            if (refused := self._refusal(scope, headers, visit)) is not None:
                await refused.response()(scope, receive, sending)
            else:
                await self._app(scope, receive, sending)
        except Exception:  # the application has answered with 500 already, where it still could
            logger.exception("request %s failed", visit.request_id)
        finally:
            self._tell(scope, visit, status, time.monotonic() - started)

    def _refusal(self, scope: Scope, headers: Headers, visit: Visit) -> ApiError | None:
        if not self._keys or scope["path"] in OPEN_PATHS:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        place = self._keys.find(given.strip())
        if kind.lower() != "bearer" or place is None:
            problem = "give an API key: Authorization: Bearer KEY" if not given else "the API key is not known"
            return ApiError(401, problem, code="invalid_api_key")
        visit.client = str(place)
        return None

    def _tell(self, scope: Scope, visit: Visit, status: int, seconds: float) -> None:
        path, method = scope["path"], scope["method"]
        known = path in self._handlers
        status = visit.notes.pop("status", status)
        self._metrics.count_http(path if known else "other", method if known else "other", status)
        if path not in QUIET_PATHS or status >= 500:
            log_with(
                logger,
                logging.INFO,
                "request",
                request_id=visit.request_id,
                method=method,
                path=path[:200],
                status=status,
                seconds=round(seconds, 4),
                **visit.notes,
            )
