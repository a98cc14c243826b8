"""A kernel of another project, in a process of its own, as a contender. The protocol is that of `peers/vllm_cpu.py`."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Self

import psutil
import torch

from ...core.attention import spec_document
from ...core.errors import BackendError, InvalidInput
from .contenders import Start
from .data import SEED, Pool
from .draws import Draw, draws
from .shapes import Shape

PEERS = {"vllm": Path(__file__).parent.parent / "peers" / "vllm_cpu.py"}
"""Name → the script that serves it, run by a Python that has the project installed."""
ANSWER_SECONDS = 600.0
"""A worker that takes longer for one answer is taken for dead."""


class PeerRefusal(BackendError):
    """The worker answers, but cannot do what it was asked."""


class Peer:
    """Owner of a worker process."""

    def __init__(self, name: str, command: Sequence[str], *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.name = name
        self._command = command[0]
        self._seconds = max(answer_seconds, ANSWER_SECONDS)  # to come up: what is measured has not begun
        self._unread = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            # In a group of its own: the terminal's interrupt is for us, and no failure of the peer.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, process_group=0
            )
        except OSError as error:
            raise InvalidInput("peer", f"{command[0]} cannot be run: {error.strerror}") from error
        try:
            self.about = self.ask("hello")
            """Its name, version, torch and block size."""
            self._seconds = answer_seconds
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, word: str) -> Self:
        """From ``NAME=PYTHON``; raises `InvalidInput` for a name that no script of ours serves."""
        name, _, python = word.partition("=")
        if name not in PEERS or not python:
            raise InvalidInput("peer", f"{word!r} is not NAME=PYTHON with NAME one of {', '.join(PEERS)}")
        return cls(name, [python, str(PEERS[name])])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """Memory of the process; 0 where it has ended."""
        try:
            return psutil.Process(self.pid).memory_info().rss
        except psutil.Error:
            return 0

    def ask(self, operation: str, **values: Any) -> dict[str, Any]:
        """The answer; raises `PeerRefusal` with the worker's reason, and `BackendError` where it has died."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"op": operation, **values}).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise self._dead("has ended") from None
        answer = self._read()
        if not answer.pop("ok", False):
            raise PeerRefusal(answer.get("error", "no reason given"))
        return answer

    def close(self) -> None:
        """End the process; its stdin is closed, and if that does not end it, it is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent yet cannot be any more
                    pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not ready.select(self._seconds):
                    raise self._dead(f"has not answered for {self._seconds:g} s")
                piece = os.read(stdout.fileno(), 65536)
                if not piece:
                    raise self._dead("has ended")
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._dead(f"answered {line[:80]!r}")
        return answer

    def _dead(self, what: str) -> BackendError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-5:]
        told = "the last it said:" if last else f"it said nothing: is {self._command} a Python with {self.name}?"
        return BackendError("\n  ".join([f"the worker of peer {self.name} {what}; {told}", *last]))


class PeerContender:
    """A peer with one shape prepared."""

    def __init__(self, peer: Peer, shape: Shape, dtype: str, pool: Pool, folder: Path) -> None:
        self.name = peer.name
        self.block_size = int(peer.about["block_size"])
        self.layout = "its own"
        self.problem = ""
        self._peer = peer
        self._out = folder / "out"
        self._draws = draws(shape, SEED)
        self._shape = (shape.tokens, shape.num_heads, shape.head_size)
        self._dtype = getattr(torch, dtype)
        layer = {} if shape.layer is None else {"layer": spec_document(shape.layer)}
        peer.ask(
            "prepare",
            case={
                **layer,
                "folder": str(folder),
                "dtype": dtype,
                "num_heads": shape.num_heads,
                "num_kv_heads": shape.num_kv_heads,
                "head_size": shape.head_size,
                "pool_tokens": len(pool.keys),
                "query_tokens": len(pool.queries),
                "query_lens": [queries for queries, _ in shape.sequences],
                "seq_lens": [length for _, length in shape.sequences],
                "offsets": [pool.offset(row) for row in range(shape.batch)],
                "scale": shape.spec(dtype).scale,
                "seed": SEED,
            },
        )

    def start(self, threads: int) -> Start:
        answer = self._peer.ask("start", threads=threads, out=str(self._out))
        return Start(
            plan_seconds=answer["plan_seconds"], first_seconds=answer["first_seconds"], out=self._read_output()
        )

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        anew = [draw.factors for draw in islice(self._draws, calls + warm)]
        answer = self._peer.ask("turn", draws=anew)
        self.problem = self.problem or answer["problem"]
        return answer["seconds"][int(warm) :]

    def check(self, draw: Draw) -> torch.Tensor:
        self._peer.ask("check", draw=draw.factors, out=str(self._out))
        return self._read_output()

    def _read_output(self) -> torch.Tensor:
        tokens, heads, size = self._shape
        out = torch.from_file(str(self._out), shared=False, size=tokens * heads * size, dtype=self._dtype)
        return out.view(self._shape).clone()

    def close(self) -> None:
        self._peer.ask("release")
