"""What went wrong, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ...core.errors import CapacityError, EngineDeadError, HeadstockError, InvalidInput

LONGEST_MESSAGE = 1000
"""Characters: a message may quote what the client sent."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """Ends a request with this answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """`param` is the field of the request that is wrong; `retry_after` is in seconds."""
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + "…"
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON document."""
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """In ASCII, as a message may quote text that no encoding can represent."""
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, round(self.retry_after)))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(json.dumps(self.body()), self.status, headers, media_type="application/json")


def api_error(error: HeadstockError, names: Mapping[str, str] | None = None) -> ApiError:
    """The answer that tells of `error`. `names` gives fields the names that they have in the request."""
    if isinstance(error, InvalidInput):
        param = (names or {}).get(error.field, error.field)
        return ApiError(400, f"{param}: {error.problem}", param=param, code="invalid_value")
    if isinstance(error, CapacityError):
        param = (names or {}).get("prompt", "prompt")
        return ApiError(400, str(error), param=param, code="context_length_exceeded")
    if isinstance(error, EngineDeadError) and error.restarting:
        problem = "the engine has died and is being started again; try again later"
        return ApiError(503, problem, code="engine_restarting", retry_after=10)
    if isinstance(error, EngineDeadError):
        return ApiError(503, "the engine has ended; the server is going down", code="engine_dead", retry_after=10)
    return ApiError(500, str(error))
