"""A step under construction: who computes how many tokens, and what is left of the budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..kv import BlockIds
from .output import CachedRequestData, NewRequestData, SchedulerOutput
from .request import Request


class Row(NamedTuple):
    """One request's part of the step."""

    request: Request
    num_tokens: int
    block_ids: BlockIds
    """Blocks the worker does not know yet: additions for a running request, the whole table for an admitted one."""

    @property
    def completes(self) -> bool:
        """Whether all tokens of the request are computed after it, those included that are not known yet."""
        request = self.request
        return request.num_computed_tokens + self.num_tokens == request.num_tokens + request.num_placeholders


class Step:
    """Rows of one step; `output` makes the value that leaves the scheduler."""

    def __init__(self, budget: int, number: int = 0) -> None:
        self.number = number
        self.budget = budget
        """Tokens that can still be placed."""
        self.running: dict[str, Row] = {}
        """Rows of requests that the worker holds."""
        self.admitted: dict[str, Row] = {}
        """Rows of requests that it does not hold."""
        self.preempted: list[str] = []

    def rows(self) -> Iterator[Row]:
        yield from self.running.values()
        yield from self.admitted.values()

    def place(self, request: Request, num_tokens: int, new_block_ids: BlockIds) -> None:
        """Let a running request compute `num_tokens`."""
        self.running[request.request_id] = Row(request, num_tokens, new_block_ids)
        self.budget -= num_tokens

    def admit(self, request: Request, num_tokens: int, block_ids: BlockIds) -> None:
        """Let a request that starts or resumes compute `num_tokens`."""
        self.admitted[request.request_id] = Row(request, num_tokens, block_ids)
        self.budget -= num_tokens

    def preempt(self, request: Request) -> None:
        """Take out a running request, placed already or not; its share of the budget is free again."""
        row = self.running.pop(request.request_id, None)
        if row is not None:
            self.budget += row.num_tokens
        self.preempted.append(request.request_id)

    @property
    def is_mixed(self) -> bool:
        """Whether decode rows and longer ones stand side by side."""
        num_decodes = sum([row.num_tokens == 1 and row.request.num_computed_tokens > 0 for row in self.rows()])
        return 0 < num_decodes < len(self.running) + len(self.admitted)

    def output(self, finished: Iterable[str]) -> SchedulerOutput:
        """The step as a value; requests still count as computed what they had before it."""
        return SchedulerOutput(
            new_requests=tuple([_new(row) for row in self.admitted.values()]),
            cached_requests=tuple([_cached(row) for row in self.running.values()]),
            num_scheduled_tokens={row.request.request_id: row.num_tokens for row in self.rows()},
            number=self.number,
            finished_request_ids=tuple(finished),
            preempted_request_ids=tuple(self.preempted),
        )


def _new(row: Row) -> NewRequestData:
    request = row.request
    return NewRequestData(
        request_id=request.request_id,
        token_ids=tuple(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        params=request.params,
        eos_token_ids=request.eos_token_ids,
        block_ids=row.block_ids,
        num_computed_tokens=request.num_computed_tokens,
    )


def _cached(row: Row) -> CachedRequestData:
    return CachedRequestData(
        request_id=row.request.request_id,
        new_block_ids=row.block_ids,
        num_computed_tokens=row.request.num_computed_tokens,
    )
