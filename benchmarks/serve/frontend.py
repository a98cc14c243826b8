"""What a server costs beside its engine: CPU time a step, told apart by thread.

Run it with ``python -m headstock.benchmarks.serve.frontend MODEL``. The same workload is computed by an engine in this
thread, and served by one behind HTTP to a client in another process, in turns. CPU time is not disturbed by others on
the machine as the clock's is, so the ratio of CPU a step is what to look at: it is the share of the throughput that
is left where front end and engine have one core between them. With a core of its own the front end takes nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import psutil
import typer

from ...core.engine import AsyncLLMEngine, EngineConfig, LLMEngine, Prompt
from ...core.model import ModelFolder, resolve_model
from ...core.params import SamplingParams
from ...entrypoints.compose import build_async_engine, build_engine, installed_plugins
from ...entrypoints.server.app import build_app
from ...entrypoints.server.listen import Address
from ...entrypoints.server.metrics import Metrics
from ...entrypoints.server.run import HttpServer
from ...entrypoints.server.serve import text_state
from ...entrypoints.server.settings import ServerSettings
from ...entrypoints.server.state import ServerState
from ...selector import find_device, read_policy
from ..engine.workload import Lengths, Workload, random_workload

ENGINE_THREAD = "headstock-engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One turn, in seconds."""

    steps: int
    wall: float
    engine: float
    """CPU of the thread that computes."""
    front: float = 0.0
    """CPU of the event loop's thread."""


def compute(engine: LLMEngine, workload: Workload) -> Cost:
    """The workload in this thread, detokenised as it is served."""
    engine.client.reset_prefix_cache()
    steps, wall, cpu = engine.client.stats().num_steps, time.perf_counter(), time.thread_time()
    for request in workload.requests:
        params = SamplingParams(temperature=0, max_tokens=request.output_len, ignore_eos=True)
        engine.add_request(Prompt(token_ids=request.token_ids), params, output_kind="delta")
    while engine.has_unfinished_requests():
        engine.step()
    return Cost(
        steps=engine.client.stats().num_steps - steps,
        wall=time.perf_counter() - wall,
        engine=time.thread_time() - cpu,
    )


@dataclass(slots=True, kw_only=True)
class Served:
    """A server in a thread of this process."""

    state: ServerState
    loop: Any
    thread: threading.Thread
    port: int

    def call(self, work: Any) -> Any:
        import asyncio

        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def turn(self, model: str, options: list[str]) -> Cost:
        """The workload from a client in another process."""
        client = self.state.llm.client
        self.call(client.reset_prefix_cache())
        engine = next(thread for thread in threading.enumerate() if thread.name == ENGINE_THREAD)
        before = self.call(client.stats()).num_steps, _cpu(engine), _cpu(self.thread)
        command = [
            sys.executable,
            "-m",
            "headstock",
            "bench",
            "serve",
            model,
            "--base-url",
            f"http://127.0.0.1:{self.port}",
        ]
        run = subprocess.run([*command, *options, "--warmups", "0", "--json", "-"], stdout=subprocess.PIPE, check=True)
        return Cost(
            steps=self.call(client.stats()).num_steps - before[0],
            wall=json.loads(run.stdout)["elapsed_seconds"],
            engine=_cpu(engine) - before[1],
            front=_cpu(self.thread) - before[2],
        )


@contextmanager
def served(engine: AsyncLLMEngine, metrics: Metrics, name: str) -> Generator[Served]:
    """Everything as `headstock serve` has it."""
    import asyncio

    state = text_state(engine, None, ServerSettings(model_names=(name,), shutdown_timeout=0))
    address, loop = Address(port=0), asyncio.new_event_loop()
    server = HttpServer(build_app(state, metrics), state, address)
    with address.open() as listening:
        port = listening.getsockname()[1]
        listening.listen()
        thread = threading.Thread(target=loop.run_until_complete, args=(server.run_until_told(listening),))
        thread.start()
        try:
            yield Served(state=state, loop=loop, thread=thread, port=port)
        finally:
            server.begin_drain("measured")
            thread.join()


def _cpu(thread: threading.Thread) -> float:
    """CPU seconds of a thread, in the system's ticks of a hundredth."""
    (times,) = [t for t in psutil.Process().threads() if t.id == thread.native_id]
    return times.user_time + times.system_time


def measure(
    model: Annotated[str, typer.Argument(help="smollm2, a folder, a .gguf file or a Hub name.")],
    streams: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 32,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens a prompt.")] = 32,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens an answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of either.")] = 3,
) -> None:
    """Compare a served workload with the engine alone."""
    import torch

    torch.set_num_threads(1)  # so that the engine's thread is all of the engine
    folder = resolve_model(model)
    config = EngineConfig(device=find_device(hooks=installed_plugins().hooks), kv_cache_memory_bytes=2**28)
    policy = read_policy()
    alone = build_engine(folder, config, policy)
    metrics = Metrics("vllm", model)
    lengths = Lengths(input_len=input_len, output_len=output_len)
    workload = random_workload(
        lengths, streams, tokenizer=alone.inputs.tokenizer, vocab_size=alone.client.info.vocab_size, seed=0
    )
    options = ["--num-prompts", str(streams), "--input-len", str(input_len), "--output-len", str(output_len)]
    compute(alone, workload)  # warm
    with served(build_async_engine(folder, config, policy, metrics), metrics, model) as server:
        server.turn(model, options)
        turns = [(compute(alone, workload), server.turn(model, options)) for _ in range(rounds)]
    _show(folder, streams, turns)


def _show(folder: ModelFolder, streams: int, turns: list[tuple[Cost, Cost]]) -> None:
    print(f"{folder.name}, {streams} streams, {len(turns)} rounds; medians, milliseconds a step")
    for name, costs in (("alone", [a for a, _ in turns]), ("served", [s for _, s in turns])):
        engine, front = (median(getattr(c, part) / c.steps for c in costs) * 1e3 for part in ("engine", "front"))
        print(f"{name:>7}: engine {engine:.2f} CPU, front end {front:.2f} CPU, {costs[0].steps} steps, "
              f"clock {median(c.wall / c.steps for c in costs) * 1e3:.2f}")  # fmt: skip
    shares = [served.engine / (served.engine + served.front) for _, served in turns]
    print(f"the engine's share of the server's CPU: {median(shares):.1%} ({', '.join(f'{s:.1%}' for s in shares)})")
    clocks = [alone.wall / served.wall for alone, served in turns]
    print(f"served by the clock: {median(clocks):.1%} ({', '.join(f'{s:.1%}' for s in clocks)})")


if __name__ == "__main__":
    typer.run(measure)
