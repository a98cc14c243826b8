"""The twelve states of a request, the ways between them, and what a caller is told at the end."""

from __future__ import annotations

from enum import IntEnum, auto

from ..outputs import FinishReason


class RequestStatus(IntEnum):
    """Where a request stands; names are vLLM's. Everything after `PREEMPTED` is final."""

    WAITING = auto()
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = auto()
    """Its grammar is being compiled."""
    WAITING_FOR_REMOTE_KVS = auto()
    """Its KV is on the way from elsewhere."""
    WAITING_FOR_STREAMING_REQ = auto()
    """Its session waits for the next piece of input."""
    RUNNING = auto()
    PREEMPTED = auto()
    """It lost its blocks and waits to be computed again."""
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_IGNORED = auto()
    FINISHED_ERROR = auto()
    FINISHED_REPETITION = auto()

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> FinishReason | None:
        """What the caller is told; None while the request lives."""
        return FINISH_REASONS.get(self)

    def can_become(self, status: RequestStatus) -> bool:
        """Whether a request may go from here to `status`: any live one may finish, no finished one moves."""
        if self.is_finished:
            return False
        return status.is_finished or status in WAYS[self]


WAYS: dict[RequestStatus, tuple[RequestStatus, ...]] = {
    RequestStatus.WAITING: (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS),
    RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR: (RequestStatus.WAITING,),
    RequestStatus.WAITING_FOR_REMOTE_KVS: (RequestStatus.WAITING, RequestStatus.PREEMPTED),
    RequestStatus.WAITING_FOR_STREAMING_REQ: (RequestStatus.WAITING,),
    RequestStatus.RUNNING: (RequestStatus.PREEMPTED, RequestStatus.WAITING_FOR_STREAMING_REQ),
    RequestStatus.PREEMPTED: (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS),
}
"""Live state → live states that may follow."""

FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_IGNORED: "length",
    RequestStatus.FINISHED_ERROR: "error",
    RequestStatus.FINISHED_REPETITION: "stop",
}
