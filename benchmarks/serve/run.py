"""Sends a workload to a server as it is told, and keeps what came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter

import aiohttp

from .client import Ask, Outcome, Target, ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to send, and when."""

    target: Target
    asks: Sequence[Ask]
    offsets: Sequence[float]
    """Seconds from the start, one a request, in order."""
    max_concurrency: int | None = None
    """Requests under way at a time; those that arrive meanwhile wait in the client, and their times begin when sent."""
    warmups: int = 1
    """Requests before the run, which do not count."""


async def execute(
    run: Run, client: aiohttp.ClientSession, advance: Callable[[], object]
) -> tuple[list[Outcome], float]:
    """Every request's outcome, in order, and the seconds from the start to the last token."""
    for one in run.asks[: run.warmups]:
        await ask(client, run.target, one, perf_counter())
    places = asyncio.Semaphore(run.max_concurrency) if run.max_concurrency else None
    start = perf_counter()

    async def serve(one: Ask, offset: float) -> Outcome:
        await asyncio.sleep(max(0.0, start + offset - perf_counter()))
        async with AsyncExitStack() as stack:
            if places is not None:
                await stack.enter_async_context(places)
            outcome = await ask(client, run.target, one, start)
        advance()
        return outcome

    outcomes = await asyncio.gather(*[serve(one, at) for one, at in zip(run.asks, run.offsets, strict=True)])
    ends = [outcome.ended for outcome in outcomes if outcome.ended is not None]
    return list(outcomes), max(ends, default=perf_counter() - start)
