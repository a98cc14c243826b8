"""`RayCarrier`: an engine in a Ray actor, on any node of a cluster."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from ...errors import EngineClosedError, EngineDeadError
from ..info import EngineInfo
from .codec import Hello, Ready, Refusal, decode_event, encode_command, encode_word, error_of
from .desk import Desk
from .handshake import check_hello, check_ready
from .launch import Launch
from .messages import Command, Died, News, Reply
from .pulse import Beat, Pulse
from .ray_actor import EngineActor
from .ray_cluster import connect, node_environment


class RayCarrier:
    """A `Carrier`: the actor, and a thread that asks it for events.

    Joins the cluster that Ray is connected to, or that ``RAY_ADDRESS`` names, or starts one on this machine.
    """

    def __init__(self, launch: Launch, *, num_gpus: float = 0) -> None:
        self.desk = Desk()
        self._ray = connect()
        self._vigil = launch.vigil
        self._setup = launch.setup
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.pid = 0
        """Process id of the actor, on its node."""
        self.path = ""
        """Where the actor has imported Headstock from."""
        environ = node_environment() | dict(launch.environ)
        actor_class = self._ray.remote(concurrency_groups={"out": 1})(EngineActor)
        options = actor_class.options(num_cpus=1, num_gpus=num_gpus, runtime_env={"env_vars": environ})
        self._actor = options.remote()

    def ready(self) -> EngineInfo:
        try:
            said = decode_event(self._ask(self._actor.hello.remote()))
            assert isinstance(said, Hello)
            check_hello(said)
            self.pid, self.path = said.pid, said.path
            answer = decode_event(self._ask(self._actor.start.remote(encode_word(self._setup))))
        except (self._ray.exceptions.RayError, AssertionError) as error:
            raise EngineDeadError("the engine did not start: its actor failed", details=str(error)) from error
        if isinstance(answer, Refusal):
            raise error_of(answer)
        assert isinstance(answer, Ready)
        check_ready(self._setup, answer)
        self._thread = threading.Thread(target=self._listen, name="headstock-engine-ray", daemon=True)
        self._thread.start()
        return answer.info

    def _ask(self, reference: Any) -> Any:
        return self._ray.get(reference, timeout=self._vigil.start)

    def send(self, command: Command | None) -> None:
        """None has the engine end."""
        frames = [bytes(frame) for frame in encode_command(command)]
        with self._sending:
            if self.desk.dead is None:
                self._actor.send.remote(next(self._numbers), frames)

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self.send(None)
            if self._thread is not threading.current_thread():  # the last to hold the port may be who tells it news
                self._thread.join(self._vigil.close)
        if self._ray.is_initialized():
            self._ray.kill(self._actor)
        self.desk.end(EngineClosedError())

    def _listen(self) -> None:
        try:
            self._follow()
        except Exception as problem:  # nobody would be told otherwise, and all would wait for ever
            reason = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
            self.desk.end(EngineDeadError(f"the engine has died: {reason}", details=str(problem)))

    def _follow(self) -> None:
        pulse = Pulse(self._vigil)
        while not self._closing.is_set() and self.desk.dead is None:
            reference = self._actor.events.options(concurrency_group="out").remote(self._vigil.beat)
            while not self._ray.wait([reference], timeout=2 * self._vigil.beat)[0]:
                pulse.tick()
                if (verdict := pulse.verdict(stopped=False, started=True)) is not None:
                    self.desk.end(EngineDeadError(f"the engine has died: {verdict}"))
                    return
            for frames in self._ray.get(reference):
                match decode_event(frames):
                    case Beat() as beat:
                        pulse.beat(beat)
                    case News() | Reply() | Died() as event:
                        self.desk.take(event)
                    case other:
                        raise ValueError(f"an engine that runs does not say {other!r}")
