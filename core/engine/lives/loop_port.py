"""`LoopPort`: the port to one engine, by any carrier."""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from ...errors import EngineDeadError
from ...scheduler.output import EngineRequest
from ..info import EngineInfo
from .carrier import Carrier
from .messages import Abort, Add, Call, Method
from .port import Listener

CarrierT = TypeVar("CarrierT", bound=Carrier)


class LoopPort(Generic[CarrierT]):
    """An `EnginePort`. Making one returns when the engine is ready, or raises what kept it from that."""

    def __init__(self, carrier: CarrierT) -> None:
        self.carrier = carrier
        # At the interpreter's end as well: an engine must not outlive it. Carriers do not know the port.
        self._close = weakref.finalize(self, carrier.close)
        try:
            self.info: EngineInfo = carrier.ready()
        except BaseException:
            self.close()
            raise

    @property
    def dead(self) -> EngineDeadError | None:
        return self.carrier.desk.dead

    def listen(self, listener: Listener) -> None:
        self.carrier.desk.listen(listener)

    def add(self, request: EngineRequest) -> None:
        self.carrier.send(Add(request=request))

    def ask(self, request: EngineRequest) -> Future[None]:
        number, answer = self.carrier.desk.open_call()
        self.carrier.send(Add(request=request, number=number))
        return answer

    def abort(self, request_ids: tuple[str, ...]) -> None:
        self.carrier.send(Abort(request_ids=request_ids))

    def call(self, method: Method, *args: Any) -> Future[Any]:
        number, answer = self.carrier.desk.open_call()
        self.carrier.send(Call(number=number, method=method, args=args))
        return answer

    def close(self) -> None:
        self._close()
