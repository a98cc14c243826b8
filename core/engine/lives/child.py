"""The engine process, from the inside: handshake, then the loop; a thread of its own listens and sends heartbeats.

It composes its engine itself, by a function that it is told the name of, and nothing is pickled on the way.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import cast

import msgspec
import zmq

from ..core import EngineCore
from .child_process import EXIT_STUCK
from .codec import Ready, decode_command, encode_event, encode_word, refusal_of
from .handshake import digest, hello, read_setup
from .loop import EngineLoop
from .messages import Event
from .pulse import Beat, Vigil

PR_SET_PDEATHSIG = 1
LINGER = 4000
"""Milliseconds in which the last events are still sent."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, as JSON."""

    commands: str
    """Path of the socket that commands come from."""
    events: str
    parent: int
    """Process id of who has started this."""
    vigil: Vigil


def main(arguments: list[str]) -> None:
    """Serve until told to end; the exit code is 0 then, and 1 where the engine has failed or died."""
    order = msgspec.json.decode(arguments[0], type=Order)
    _die_with(order.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which will say what to do
    faulthandler.enable()
    sys.exit(_Child(order).run())


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, where it can (Linux); heartbeats look after it as well."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class _Child:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._context = zmq.Context()
        self._commands = self._socket(zmq.PULL, order.commands)
        self._events = self._socket(zmq.PUSH, order.events)
        self._beats = self._socket(zmq.PUSH, order.events)
        self._loop: EngineLoop | None = None
        self._over = threading.Event()

    def _socket(self, kind: int, path: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.linger = LINGER
        socket.connect(f"ipc://{path}")
        return socket

    def run(self) -> int:
        """Everything; the exit code."""
        thread = threading.Thread(target=self._listen, name="headstock-engine-io", daemon=True)
        self._events.send_multipart(encode_word(hello()))
        try:
            setup = read_setup([frame.buffer for frame in self._commands.recv_multipart(copy=False)])
            thread.start()
            core = composer_of(setup.composer)(setup.payload)
        except BaseException as error:
            self._events.send_multipart(encode_word(refusal_of(error, traceback.format_exc())))
            self._context.destroy(linger=LINGER)
            return 1
        self._loop = EngineLoop(core, self._tell)
        gc.collect()
        gc.freeze()  # what is here now stays, and need not be looked through again
        self._events.send_multipart(encode_word(Ready(info=core.info, digest=digest(setup))))
        fine = self._loop.run()
        self._over.set()
        thread.join()
        self._context.destroy(linger=LINGER)  # waits until the last events are sent
        return 0 if fine else 1

    def _tell(self, event: Event) -> None:
        self._events.send_multipart(encode_event(event), copy=False)

    def _listen(self) -> None:
        """The thread: commands in, heartbeats out, whatever the engine is at."""
        beat = self._order.vigil.beat
        next_beat = 0.0
        while not self._over.is_set():
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + beat
                self._beat()
            if not self._commands.poll(max(1, int((next_beat - time.monotonic()) * 1000))):
                continue
            command = decode_command([frame.buffer for frame in self._commands.recv_multipart(copy=False)])
            assert self._loop is not None  # nobody sends before `Ready`
            if command is None:
                self._loop.stop()
                return
            self._loop.send(command)

    def _beat(self) -> None:
        if os.getppid() != self._order.parent:
            os._exit(1)
        longest = 0.0 if self._loop is None else self._loop.longest_step
        if self._loop is not None and (started := self._loop.step_started) is not None:
            took, limit = time.monotonic() - started, self._order.vigil.step_limit(longest)
            if took > limit:
                self._give_up(f"a step has taken {took:.0f} s so far (limit {limit:.0f} s)")
        self._beats.send_multipart(encode_word(Beat(longest_step=longest)))

    def _give_up(self, reason: str) -> None:
        """The loop is stuck: say where, in words that the parent keeps, and end."""
        sys.stderr.write(f"{reason}. All threads:\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        os._exit(EXIT_STUCK)


def composer_of(name: str) -> Callable[[bytes], EngineCore]:
    """The function called ``module:function``."""
    module, _, function = name.partition(":")
    return cast("Callable[[bytes], EngineCore]", getattr(importlib.import_module(module), function))
