"""Ten minutes of traffic with callers that go away at any moment, against answers computed beforehand."""

from __future__ import annotations

import itertools
import random
import time

import psutil
import pytest

from headstock.core.engine import EngineClient, InprocClient, LoopPort, ProcessCarrier, RemoteClient
from headstock.core.model import ModelFolder
from headstock.core.scheduler import EngineRequest
from support.lives import Fates, gather, launch, request, run
from support.tiny import tiny_core, tiny_folder

SECONDS = 600.0
WARM = 0.1
"""Share of the time after which memory has to be flat."""
SLACK = 48 * 2**20
CONFIG = {"max_num_batched_tokens": 32, "block_size": 4, "kv_cache_memory_bytes": 2**18}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def question(number: int, name: str) -> EngineRequest:
    """One of a hundred questions, under any name."""
    rng = random.Random(number)
    prompt = [rng.randrange(250) for _ in range(rng.choice([1, 7, 40, 120]))]
    sampling = {"temperature": 1.0, "seed": number} if number % 3 else {}
    return request(name, prompt, max_tokens=rng.randrange(1, 24), **sampling)


@pytest.mark.heavy
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "async"])
def test_no_token_is_lost_or_doubled_and_memory_is_flat(folder: ModelFolder, overlapped: bool) -> None:
    alone = InprocClient(tiny_core(folder))
    expected = [run(alone, [question(i, str(i))])[str(i)] for i in range(100)]
    port = LoopPort(ProcessCarrier(launch(folder, async_scheduling=overlapped, **CONFIG)))
    client, process = RemoteClient(port), psutil.Process(port.carrier.pid)
    try:
        begun, warm = time.monotonic(), 0
        seconds = SECONDS / 2
        traffic = Traffic(client)
        while (spent := time.monotonic() - begun) < seconds:
            traffic.turn()
            if not warm and spent > WARM * seconds:
                warm = process.memory_info().rss
        traffic.finish()
        assert traffic.finished > 100
        assert all(traffic.fates[name] == expected[int(name.partition("-")[0])] for name in traffic.ended)
        assert client.stats().kv_usage == 0
        assert process.memory_info().rss < warm + SLACK
    finally:
        client.close()


class Traffic:
    """Up to twenty requests at a time, some of which are given up in the middle."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._rng = random.Random(11)
        self._turns = itertools.count()
        self._live: set[str] = set()
        self.fates: Fates = {}
        self.ended: list[str] = []

    @property
    def finished(self) -> int:
        return len(self.ended)

    def turn(self) -> None:
        number = next(self._turns)
        if len(self._live) < 20:
            name = f"{self._rng.randrange(100)}-{number}"
            self._client.add_request(question(int(name.partition("-")[0]), name))
            self._live.add(name)
        if self._rng.random() < 0.02:
            gone = self._rng.choice(sorted(self._live))
            self._live.discard(gone)
            self._client.abort_requests([gone])
            self.fates.pop(gone, None)
        self._take()

    def finish(self) -> None:
        while self._live:
            self._take()

    def _take(self) -> None:
        if not self._live:
            return
        outputs = self._client.get_outputs()
        gather(outputs, self.fates)
        done = [output.request_id for output in outputs if output.finish_reason is not None]
        self._live.difference_update(done)
        self.ended += done
