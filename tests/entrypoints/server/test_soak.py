"""Minutes of traffic whose clients are killed at random: memory stays, and no token is lost or doubled."""

from __future__ import annotations

import gc
import json
import os
import random
import threading
import time
from typing import Any

import psutil
import pytest

from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from support.clients import hang_up, post
from support.http_server import Served, lines, served
from support.serving import answers
from support.tiny import tiny_engine

SECONDS = float(os.environ.get("HEADSTOCK_TEST_SOAK_SECONDS", "600"))
GROWTH = 48 * 2**20
"""Bytes by which memory may grow after the first fifth: the allocator's, not ours."""
PROMPTS = [[1 + n] * (1 + 7 * n % 50) for n in range(24)]


def body_of(number: int) -> dict[str, Any]:
    """A request that always has the same answer."""
    return {
        "prompt": PROMPTS[number % len(PROMPTS)],
        "max_tokens": 8 + number % 24,
        "temperature": 1.0,
        "seed": number % 7,
        "n": 1 + number % 3,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }


class Soak:
    """Clients, what they found, and when to stop."""

    def __init__(self, server: Served, expected: dict[int, dict[int, list[int]]]) -> None:
        self.server, self.expected = server, expected
        self.until = time.monotonic() + SECONDS
        self.problems: list[str] = []
        self.answered = self.killed = 0

    def client(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.until and not self.problems:
            number = rng.randrange(len(self.expected))
            patience = rng.randrange(12) if rng.random() < 0.4 else None
            try:
                self.one(number, patience)
            except Exception as error:  # a thread's own would be lost
                self.problems.append(f"{number}: {type(error).__name__}: {error}")

    def one(self, number: int, patience: int | None) -> None:
        """One request; killed after `patience` events, if that is a number."""
        connection = post(self.server, "/v1/completions", body_of(number))
        found: dict[int, list[int]] = {}
        for line in lines(connection):
            if patience == 0:
                self.killed += 1
                hang_up(connection)
                return
            if line == "data: [DONE]":
                break
            if line.startswith("data: "):
                patience = None if patience is None else patience - 1
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    found.setdefault(choice["index"], []).extend(choice["token_ids"])
        connection.close()
        self.answered += 1
        if found != self.expected[number]:
            self.problems.append(f"{number}: {found} is not {self.expected[number]}")


@pytest.mark.heavy
@pytest.mark.timeout(2 * SECONDS + 300)
def test_ten_minutes_of_killed_clients_leave_nothing_and_change_nothing(folder: ModelFolder) -> None:
    engine = tiny_engine(folder)
    numbers = range(2 * 3 * 4 * 7)
    names = set(SamplingParams.__dataclass_fields__)
    params = [SamplingParams(**{k: v for k, v in body_of(i).items() if k in names}) for i in numbers]
    outputs = answers(engine, [PROMPTS[i % len(PROMPTS)] for i in numbers], params)
    expected = {
        i: {c.index: list(c.token_ids) for c in output.outputs} for i, output in zip(numbers, outputs, strict=True)
    }
    with served(folder, engine={"max_num_seqs": 16, "max_num_batched_tokens": 64, "block_size": 4}) as server:
        soak = Soak(server, expected)
        clients = [threading.Thread(target=soak.client, args=(seed,)) for seed in range(12)]
        for client in clients:
            client.start()
        time.sleep(SECONDS / 5)
        gc.collect()
        settled = psutil.Process().memory_info().rss
        for client in clients:
            client.join()
        server.at_rest()
        gc.collect()
        grown = psutil.Process().memory_info().rss - settled
    print(f"{soak.answered} answered, {soak.killed} killed, memory {grown / 2**20:+.1f} MiB")
    assert soak.problems == []
    assert soak.answered > 10
    assert soak.killed > 10
    assert grown < GROWTH
