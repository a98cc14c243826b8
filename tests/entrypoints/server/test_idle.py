"""A thousand streams that wait cost nothing that can be measured."""

from __future__ import annotations

import asyncio
import threading
import time

import psutil
import pytest

from headstock.core.model import ModelFolder
from support.clients import post
from support.http_server import PATIENCE, served

STREAMS = 1000
IDLE = {"prompt": [5], "max_tokens": 2, "ignore_eos": True, "stream": True}


def cpu(thread: threading.Thread) -> float:
    """Seconds, in ticks of a hundredth."""
    (times,) = [t for t in psutil.Process().threads() if t.id == thread.native_id]
    return times.user_time + times.system_time


@pytest.mark.timeout(300)
def test_a_thousand_idle_streams_take_no_time_of_the_event_loop_or_the_engine(folder: ModelFolder) -> None:
    with served(folder, max_queued_requests=STREAMS) as server:
        engine = next(thread for thread in threading.enumerate() if thread.name == "headstock-engine")
        server.call(server.state.engine.client.pause("keep"))
        streams = [post(server, "/v1/completions", IDLE) for _ in range(STREAMS)]
        try:

            async def all_there() -> None:
                while server.state.engine.num_queued < STREAMS:
                    await asyncio.sleep(0.01)

            server.call(asyncio.wait_for(all_there(), 2 * PATIENCE))
            assert server.post("/v1/completions", prompt=[5]).status == 503, "there is room for a thousand"
            before, start = (cpu(server.thread), cpu(engine)), time.monotonic()
            time.sleep(2)
            elapsed = time.monotonic() - start
            assert (cpu(server.thread) - before[0]) / elapsed < 0.05
            assert (cpu(engine) - before[1]) / elapsed < 0.02
        finally:
            for connection in streams:
                connection.close()
            server.call(server.state.engine.client.resume())
        server.at_rest()
