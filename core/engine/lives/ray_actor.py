"""`EngineActor`: an engine inside a Ray actor. Only bytes, in the frames of `codec.py`, go through Ray."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import traceback
from collections.abc import Sequence

from .child import composer_of
from .codec import Ready, decode_command, encode_event, encode_word, refusal_of
from .handshake import digest, hello, read_setup
from .loop import EngineLoop
from .messages import Event
from .pulse import Beat

Message = list[bytes]


class EngineActor:
    """Its methods run in threads of the actor's: `events` in one, all others in another."""

    def __init__(self) -> None:
        self._loop: EngineLoop | None = None
        self._events: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._early: list[tuple[int, Sequence[bytes]]] = []
        """Commands that have overtaken others."""
        self._numbers = itertools.count()
        self._next = next(self._numbers)

    def hello(self) -> Message:
        """What it says first."""
        return encode_word(hello())

    def start(self, frames: Sequence[bytes]) -> Message:
        """Compose the engine of a `Setup`; a `Ready`, or the `Refusal` of it."""
        try:
            setup = read_setup(frames)
            core = composer_of(setup.composer)(setup.payload)
        except Exception as error:
            return encode_word(refusal_of(error, traceback.format_exc()))
        self._loop = EngineLoop(core, self._tell)
        threading.Thread(target=self._loop.run, name="headstock-engine", daemon=True).start()
        return encode_word(Ready(info=core.info, digest=digest(setup)))

    def send(self, number: int, frames: Sequence[bytes]) -> None:
        """A command; obeyed in the order of numbers, from 0, as Ray's threads may change it."""
        assert self._loop is not None
        heapq.heappush(self._early, (number, frames))
        while self._early and self._early[0][0] == self._next:
            command = decode_command(heapq.heappop(self._early)[1])
            self._next = next(self._numbers)
            if command is None:
                self._loop.stop()
            else:
                self._loop.send(command)

    def events(self, seconds: float) -> list[Message]:
        """Every event since the last call and a heartbeat; waits for one, but no longer than `seconds`."""
        found: list[Message] = []
        try:
            found.append(self._events.get(timeout=seconds))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            longest = 0.0 if self._loop is None else self._loop.longest_step
            return [*found, encode_word(Beat(longest_step=longest))]

    def _tell(self, event: Event) -> None:
        self._events.put(encode_event(event))
