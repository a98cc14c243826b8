"""An engine that is started again, as its clients see it."""

from __future__ import annotations

import asyncio
import threading

from headstock.core.engine import AsyncEngineClient, EngineCore, EnginePort, LoopPort, RestartingPort, ThreadCarrier
from headstock.core.errors import EngineDeadError
from headstock.core.model import ModelFolder
from support.http_server import PATIENCE, served
from support.tiny import tiny_core

GOOD = {"prompt": [5, 9], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


async def alive(client: AsyncEngineClient) -> None:
    """Until the engine answers again."""
    while True:
        try:
            client.check_health()
        except EngineDeadError:
            await asyncio.sleep(0.01)
        else:
            return


def test_whoever_comes_meanwhile_is_told_to_come_again(folder: ModelFolder) -> None:
    made: list[LoopPort[ThreadCarrier]] = []
    let = threading.Event()

    def port(core: EngineCore) -> EnginePort:
        def make() -> EnginePort:
            if made:
                let.wait(PATIENCE)
            made.append(LoopPort(ThreadCarrier(tiny_core(folder) if made else core)))
            return made[-1]

        return RestartingPort(make)

    with served(folder, port=port) as server:
        expected = server.post("/v1/completions", **GOOD).json["choices"]
        made[0].carrier.desk.end(EngineDeadError("the engine has died: by fire"))
        for reply in (
            server.post("/v1/completions", **GOOD),
            server.post("/v1/completions", **GOOD | {"prompt": [5] * 5000}),
            server.send("GET", "/health"),
        ):
            assert (reply.status, reply.error["code"]) == (503, "engine_restarting")
            assert "is being started again" in reply.error["message"]
            assert int(reply.headers["retry-after"]) >= 1
        assert b'engine_alive{engine="0",model_name="tiny"} 0.0' in server.send("GET", "/metrics").body
        let.set()
        server.call(asyncio.wait_for(alive(server.state.llm.client), PATIENCE))
        assert server.post("/v1/completions", **GOOD).json["choices"] == expected
        assert b'engine_alive{engine="0",model_name="tiny"} 1.0' in server.send("GET", "/metrics").body
