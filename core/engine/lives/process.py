"""`ProcessCarrier`: an engine in a child process, over ZeroMQ."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import msgspec
import zmq

from ...errors import EngineClosedError, EngineDeadError, HeadstockError
from ..info import EngineInfo
from .child_process import ChildProcess
from .codec import Hello, Ready, Refusal, Setup, decode_event, encode_command, encode_word, error_of
from .desk import Desk
from .handshake import check_hello, check_ready
from .launch import Launch
from .messages import Command, Died, News, Reply
from .pulse import Beat, Pulse
from .sockets import socket_pair

LAST_EVENTS = 200
"""Milliseconds after the end of a process in which its last events may still come."""


class ProcessCarrier:
    """A `Carrier`: sockets, the process, and a thread that listens to both."""

    def __init__(self, launch: Launch) -> None:
        self.desk = Desk()
        self._vigil = launch.vigil
        self._setup = launch.setup
        self._paths = socket_pair()
        self._context = zmq.Context()
        self._commands, self._events = self._socket(zmq.PUSH, self._paths[0]), self._socket(zmq.PULL, self._paths[1])
        self._commands.sndtimeo = int(launch.vigil.close * 1000)
        self._sending = threading.Lock()
        self._closing = False
        self._owner = os.getpid()
        self._started: Future[EngineInfo] = Future()
        order = {"commands": self._paths[0], "events": self._paths[1], "parent": os.getpid()}
        try:
            self._child = ChildProcess([msgspec.json.encode({**order, "vigil": launch.vigil}).decode()], launch.environ)
        except BaseException:
            self._drop_sockets()
            raise
        self._thread = threading.Thread(target=self._listen, name="headstock-engine-io", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._child.pid

    def ready(self) -> EngineInfo:
        return self._started.result()

    def _socket(self, kind: int, path: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)  # nothing is dropped, and no sender waits for a slow reader
        socket.linger = 0
        socket.bind(f"ipc://{path}")
        return socket

    def send(self, command: Command | None) -> None:
        """None has the process end."""
        frames = encode_command(command)
        with self._sending:
            if self.desk.dead is None:
                # Again: nobody is at the other end any more. Large frames are not copied, and never written to again.
                with suppress(zmq.Again):
                    self._commands.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def close(self) -> None:
        """End the process: politely if it is ready and listens. In a fork of its owner, do nothing."""
        if os.getpid() != self._owner:
            return
        self._closing = True
        if self._started.done():
            self.send(None)
            if self._thread.is_alive():
                self._child.wait(self._vigil.close)
        if self._thread.is_alive():
            self._child.kill()
            if self._thread is not threading.current_thread():  # the last to hold the port may be who tells it news
                self._thread.join()

    def _listen(self) -> None:
        """The thread: until the process has ended, or counts as dead."""
        try:
            error = self._follow()
        except HeadstockError as refusal:
            error = refusal
        except Exception as problem:  # nobody would be told otherwise, and all would wait for ever
            error = EngineDeadError(f"the engine was lost: {type(problem).__name__}: {problem}")
        self._child.kill()
        while self._child.forward():
            pass
        if self._closing:
            error = EngineClosedError()
        with self._sending:
            self.desk.end(error if isinstance(error, EngineDeadError) else EngineDeadError(str(error)))
            self._drop_sockets()
        if not self._started.done():
            self._started.set_exception(error)
        self._child.release()

    def _follow(self) -> HeadstockError:
        """Take in what comes; why nothing comes any more. Raises what the engine was refused for."""
        pulse, begun = Pulse(self._vigil), time.monotonic()
        next_tick = begun
        poller = zmq.Poller()
        for source in (self._events, self._child.output, self._child.ended):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(int(self._vigil.beat * 1000)))
            self._take_all(pulse, 0)
            if self._child.output in ready and not self._child.forward():
                poller.unregister(self._child.output)
            if self._child.ended in ready:
                self._take_all(pulse, LAST_EVENTS)
                return self._death(f"its process {self._child.fate()}")
            if time.monotonic() < next_tick:
                continue
            next_tick = time.monotonic() + self._vigil.beat
            pulse.tick()
            started = self._started.done()
            verdict = pulse.verdict(stopped=pulse.suspicious and self._child.stopped, started=started)
            if verdict is None and not started and time.monotonic() - begun > self._vigil.start:
                verdict = f"it has not started within {self._vigil.start:.0f} s"
            if verdict is not None:
                return self._death(verdict)

    def _death(self, reason: str) -> EngineDeadError:
        what = "the engine has died" if self._started.done() else "the engine did not start"
        return EngineDeadError(f"{what}: {reason}", details=self._child.last_words)

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
                    self._started.set_result(said.info)
                case Refusal() as refusal:
                    error = error_of(refusal)
                    if isinstance(error, EngineDeadError):
                        error = EngineDeadError(f"the engine did not start: {error.reason}", details=error.details)
                    raise error
                case News() | Reply() | Died() as event:
                    self.desk.take(event)
                case Setup():
                    raise ValueError("an engine process does not send a set-up")
            pulse.beat()

    def _remove_paths(self) -> None:
        for path in self._paths:
            Path(path).unlink(missing_ok=True)

    def _drop_sockets(self) -> None:
        self._context.destroy(linger=0)
        self._remove_paths()
