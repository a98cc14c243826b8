"""Waiting requests, in the order in which they are admitted."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from .config import Policy
from .request import Request

Rank = tuple[int, float, int]


def rank(request: Request) -> Rank:
    """Place of a request under the priority policy, lower first; no two are equal."""
    return request.priority, request.arrival_time, request.order


class RequestQueue(Protocol):
    """Waiting requests. A request id is in it at most once."""

    def add(self, request: Request) -> None:
        """Queue a new request."""
        ...

    def restore(self, request: Request) -> None:
        """Queue a preempted one again."""
        ...

    def peek(self) -> Request:
        """The next one; `LookupError` where there is none."""
        ...

    def pop(self) -> Request:
        """Take the next one; `LookupError` where there is none."""
        ...

    def remove(self, request_id: str) -> None:
        """Take one out, wherever it is; `KeyError` where it is not here."""
        ...

    def __contains__(self, request_id: str) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """In the order of admission."""
        ...


class FCFSQueue:
    """First come, first served; preempted requests come first. All operations are O(1)."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def restore(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def peek(self) -> Request:
        if not self._requests:
            raise LookupError("no request is waiting")
        return next(iter(self._requests.values()))

    def pop(self) -> Request:
        request = self.peek()
        del self._requests[request.request_id]
        return request

    def remove(self, request_id: str) -> None:
        del self._requests[request_id]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())


class PriorityQueue:
    """Lowest `rank` first; add and pop are O(log n), removal leaves its heap entry to be skipped later."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        self._heap: list[tuple[Rank, Request]] = []

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request
        heapq.heappush(self._heap, (rank(request), request))

    def restore(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        self._skip_removed()
        if not self._heap:
            raise LookupError("no request is waiting")
        return self._heap[0][1]

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._requests[request.request_id]
        return request

    def remove(self, request_id: str) -> None:
        del self._requests[request_id]
        if len(self._heap) > 2 * len(self._requests) + 64:
            self._heap = [(rank(request), request) for request in self._requests.values()]
            heapq.heapify(self._heap)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._requests.values(), key=rank))

    def _skip_removed(self) -> None:
        while self._heap:
            request = self._heap[0][1]
            if self._requests.get(request.request_id) is request:
                return
            heapq.heappop(self._heap)


QUEUES: dict[Policy, Callable[[], RequestQueue]] = {"fcfs": FCFSQueue, "priority": PriorityQueue}
"""Policy → its queue."""
