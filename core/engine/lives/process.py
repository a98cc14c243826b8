"""`ProcessPort`: an engine in a child process, over ZeroMQ."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from ...errors import EngineDeadError, HeadstockError
from ...scheduler.output import EngineRequest
from ...version import __version__
from ..info import EngineInfo
from .child_process import ChildProcess
from .codec import Hello, Ready, Refusal, Setup, decode_event, encode_command, encode_word, error_of
from .desk import Desk
from .handshake import check_hello, check_ready
from .messages import Abort, Add, Call, Command, Died, Method, News, Reply
from .port import Listener
from .pulse import Beat, Pulse, Vigil
from .sockets import socket_pair

LAST_EVENTS = 200
"""Milliseconds after the end of a process in which its last events may still come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What an engine process is to run."""

    composer: str
    """``module:function``, called in the process with `payload`; gives the `EngineCore`."""
    payload: bytes = b""
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables beside ours."""
    vigil: Vigil = field(default_factory=Vigil)


class ProcessPort:
    """An `EnginePort`. Making one returns when the engine is ready, or raises what kept it from that.

    Raises what the engine refuses its configuration for, and `EngineDeadError` with its traceback where it crashes.
    """

    def __init__(self, launch: Launch) -> None:
        self._desk = Desk()
        self._link = _Link(launch, self._desk)
        self._close = weakref.finalize(self, self._link.close)
        try:
            self.info: EngineInfo = self._link.started.result()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._link.child.pid

    @property
    def dead(self) -> EngineDeadError | None:
        return self._desk.dead

    def listen(self, listener: Listener) -> None:
        self._desk.listen(listener)

    def add(self, request: EngineRequest) -> None:
        self._link.send(Add(request=request))

    def ask(self, request: EngineRequest) -> Future[None]:
        number, future = self._desk.open_call()
        self._link.send(Add(request=request, number=number))
        return future

    def abort(self, request_ids: tuple[str, ...]) -> None:
        self._link.send(Abort(request_ids=request_ids))

    def call(self, method: Method, *args: Any) -> Future[Any]:
        number, future = self._desk.open_call()
        self._link.send(Call(number=number, method=method, args=args))
        return future

    def close(self) -> None:
        self._close()


class _Link:
    """Sockets, process, and the thread that listens to both. It does not know the port, which can so be collected."""

    def __init__(self, launch: Launch, desk: Desk) -> None:
        self._vigil = launch.vigil
        self._desk = desk
        self._setup = Setup(version=__version__, composer=launch.composer, payload=launch.payload)
        self._paths = socket_pair()
        self._context = zmq.Context()
        self._commands, self._events = self._socket(zmq.PUSH, self._paths[0]), self._socket(zmq.PULL, self._paths[1])
        self._commands.sndtimeo = int(launch.vigil.close * 1000)
        self._sending = threading.Lock()
        self._closing = False
        self._owner = os.getpid()
        self.started: Future[EngineInfo] = Future()
        order = {"commands": self._paths[0], "events": self._paths[1], "parent": os.getpid()}
        try:
            self.child = ChildProcess([msgspec.json.encode({**order, "vigil": launch.vigil}).decode()], launch.environ)
        except BaseException:
            self._drop_sockets()
            raise
        self._thread = threading.Thread(target=self._listen, name="headstock-engine-io", daemon=True)
        self._thread.start()

    def _socket(self, kind: int, path: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)  # nothing is dropped, and no sender waits for a slow reader
        socket.linger = 0
        socket.bind(f"ipc://{path}")
        return socket

    def send(self, command: Command | None) -> None:
        """From any thread; nothing where the engine is dead, of which everybody is told another way."""
        frames = encode_command(command)
        with self._sending:
            if self._desk.dead is None:
                # Again: nobody is at the other end any more. Large frames are not copied, and never written to again.
                with suppress(zmq.Again):
                    self._commands.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def close(self) -> None:
        """End the process: politely if it is ready and listens. In a fork of its owner, do nothing."""
        if os.getpid() != self._owner:
            return
        self._closing = True
        if self.started.done():
            self.send(None)
            if self._thread.is_alive():
                self.child.wait(self._vigil.close)
        if self._thread.is_alive():
            self.child.kill()
            self._thread.join()

    def _listen(self) -> None:
        """The thread: until the process has ended, or counts as dead."""
        try:
            error = self._follow()
        except HeadstockError as refusal:
            error = refusal
        except Exception as problem:  # nobody would be told otherwise, and all would wait for ever
            error = EngineDeadError(f"the engine was lost: {type(problem).__name__}: {problem}")
        self.child.kill()
        while self.child.forward():
            pass
        if self._closing:
            error = EngineDeadError("the engine has been closed")
        with self._sending:
            self._desk.end(error if isinstance(error, EngineDeadError) else EngineDeadError(str(error)))
            self._drop_sockets()
        if not self.started.done():
            self.started.set_exception(error)
        self.child.release()

    def _follow(self) -> HeadstockError:
        """Take in what comes; why nothing comes any more. Raises what the engine was refused for."""
        pulse, begun = Pulse(self._vigil), time.monotonic()
        next_tick = begun
        poller = zmq.Poller()
        for source in (self._events, self.child.output, self.child.ended):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(int(self._vigil.beat * 1000)))
            self._take_all(pulse, 0)
            if self.child.output in ready and not self.child.forward():
                poller.unregister(self.child.output)
            if self.child.ended in ready:
                self._take_all(pulse, LAST_EVENTS)
                return self._death(f"its process {self.child.fate()}")
            if time.monotonic() < next_tick:
                continue
            next_tick = time.monotonic() + self._vigil.beat
            pulse.tick()
            started = self.started.done()
            verdict = pulse.verdict(stopped=pulse.suspicious and self.child.stopped, started=started)
            if verdict is None and not started and time.monotonic() - begun > self._vigil.start:
                verdict = f"it has not started within {self._vigil.start:.0f} s"
            if verdict is not None:
                return self._death(verdict)

    def _death(self, reason: str) -> EngineDeadError:
        what = "the engine has died" if self.started.done() else "the engine did not start"
        return EngineDeadError(f"{what}: {reason}", details=self.child.last_words)

    def _take_all(self, pulse: Pulse, patience: int) -> None:
        """Every event that has come, or comes within `patience` milliseconds of the last."""
        while self._events.poll(patience):
            frames = self._events.recv_multipart(copy=False)
            match decode_event([frame.buffer for frame in frames]):
                case Beat() as beat:
                    pulse.beat(beat)
                    continue
                case Hello() as said:
                    check_hello(said)
                    self._commands.send_multipart(encode_word(self._setup))
                case Ready() as said:
                    check_ready(self._setup, said)
                    self._remove_paths()  # both are connected, and nobody else has to find them
                    self.started.set_result(said.info)
                case Refusal() as refusal:
                    error = error_of(refusal)
                    if isinstance(error, EngineDeadError):
                        error = EngineDeadError(f"the engine did not start: {error.reason}", details=error.details)
                    raise error
                case News() | Reply() | Died() as event:
                    self._desk.take(event)
                case Setup():
                    raise ValueError("an engine process does not send a set-up")
            pulse.beat()

    def _remove_paths(self) -> None:
        for path in self._paths:
            Path(path).unlink(missing_ok=True)

    def _drop_sockets(self) -> None:
        self._context.destroy(linger=0)
        self._remove_paths()
