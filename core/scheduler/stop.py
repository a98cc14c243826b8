"""When a request ends."""

from __future__ import annotations

from typing import NamedTuple

from .request import Request
from .status import RequestStatus


class Stop(NamedTuple):
    """A final state, and the stop token id that led to it; None for end of sequence and length."""

    status: RequestStatus
    reason: int | None = None


def check_stop(request: Request, max_total_tokens: int) -> Stop | None:
    """Whether the newest token ends the request: end of sequence, then stop token ids, then length.

    `max_total_tokens` bounds prompt and outputs together. Tokens before `min_tokens` end it by length only.
    """
    token = request.token_ids[-1]
    params = request.params
    if request.num_output_tokens >= params.min_tokens:
        if token in request.eos_token_ids and not params.ignore_eos:
            return Stop(RequestStatus.FINISHED_STOPPED)
        if token in request.stop_ids:
            return Stop(RequestStatus.FINISHED_STOPPED, token)
    if request.num_tokens >= max_total_tokens or request.num_output_tokens >= request.max_tokens:
        return Stop(RequestStatus.FINISHED_LENGTH_CAPPED)
    return None
