"""`RouterPort`: several engines behind one port, each with the whole model (data parallel)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ...errors import EngineDeadError, HeadstockError
from ...scheduler.output import EngineRequest
from ...scheduler.stats import SchedulerStats
from ..info import EngineInfo
from .messages import Method
from .port import EnginePort, Listener, Tidings, weakly
from .routing import Balance


class RouterPort:
    """An `EnginePort` to many. Engines never wait for each other; the death of one is the death of all."""

    def __init__(self, ports: Sequence[EnginePort]) -> None:
        """Takes the ports over. Raises `HeadstockError` where the engines are not alike."""
        self.ports = tuple(ports)
        self.info = _common(self.ports)
        self._balance = Balance(len(self.ports))
        self._listener: Listener | None = None
        self._lock = threading.Lock()
        self._told = False

    @classmethod
    def open(cls, makers: Sequence[Callable[[], EnginePort]]) -> RouterPort:
        """Start engines side by side; where one does not start, the others are ended, and its error is raised."""
        with ThreadPoolExecutor(len(makers)) as pool:
            futures = [pool.submit(make) for make in makers]
        failed = [error for future in futures if (error := future.exception()) is not None]
        if failed:
            for future in futures:
                if future.exception() is None:
                    future.result().close()
            raise failed[0]
        return cls([future.result() for future in futures])

    @property
    def dead(self) -> EngineDeadError | None:
        return next((port.dead for port in self.ports if port.dead is not None), None)

    def listen(self, listener: Listener) -> None:
        self._listener, self._told = listener, False
        for index, port in enumerate(self.ports):
            port.listen(partial(weakly(self._hear), index))

    def add(self, request: EngineRequest) -> None:
        self.ports[self._balance.place(request)].add(request)

    def ask(self, request: EngineRequest) -> Future[None]:
        future = self.ports[self._balance.place(request)].ask(request)
        future.add_done_callback(lambda done: self._refused(request.request_id, done))
        return future

    def abort(self, request_ids: tuple[str, ...]) -> None:
        for index, ids in self._balance.drop(request_ids).items():
            self.ports[index].abort(ids)

    def call(self, method: Method, *args: Any) -> Future[Any]:
        """Of all engines; ends when all have answered, with the first error where there is one."""
        return _gather([port.call(method, *args) for port in self.ports], self._combine)

    def close(self) -> None:
        with ThreadPoolExecutor(len(self.ports)) as pool:
            for future in [pool.submit(port.close) for port in self.ports]:
                future.result()

    def _refused(self, request_id: str, answer: Future[None]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._balance.drop([request_id])

    def _hear(self, index: int, tidings: Tidings) -> None:
        """In a thread of the port's."""
        assert self._listener is not None
        if not isinstance(tidings, EngineDeadError):
            self._balance.release(tidings)
            self._listener(tidings)
            return
        with self._lock:
            told, self._told = self._told, True
        if not told:
            which = f"engine {index} of {len(self.ports)}: {tidings.reason}"
            self._listener(EngineDeadError(which, details=tidings.details))

    def _combine(self, answers: Sequence[Any]) -> Any:
        first = answers[0]
        if isinstance(first, SchedulerStats):
            return _total(answers, [port.info.num_blocks for port in self.ports])
        return all(answers) if isinstance(first, bool) else first


def _common(ports: Sequence[EnginePort]) -> EngineInfo:
    """What holds for all engines."""
    infos = [port.info for port in ports]
    first = infos[0]
    for name in ("version", "model", "dtype", "vocab_size", "eos_token_ids"):
        values = [getattr(info, name) for info in infos]
        if any(value != values[0] for value in values):
            raise HeadstockError(f"the engines differ in {name}: {', '.join(map(str, values))}")
    return replace(
        first,
        num_engines=len(infos),
        num_blocks=sum(info.num_blocks for info in infos),
        max_num_seqs=sum(info.max_num_seqs for info in infos),
        max_model_len=min(info.max_model_len for info in infos),
    )


def _total(stats: Sequence[SchedulerStats], num_blocks: Sequence[int]) -> SchedulerStats:
    """Counts summed; the usage of the cache is that of all blocks together."""
    usage = sum(one.kv_usage * count for one, count in zip(stats, num_blocks, strict=True)) / sum(num_blocks)
    caches = [one.prefix_cache for one in stats]
    lost = [cache.num_lost_tokens for cache in caches if cache.num_lost_tokens]
    summed = {f.name: sum(getattr(c, f.name) for c in caches) for f in fields(caches[0]) if f.name != "num_lost_tokens"}
    cache = replace(caches[0], num_lost_tokens=tuple(map(sum, zip(*lost, strict=True))), **summed)
    others = [f.name for f in fields(stats[0]) if f.name not in ("kv_usage", "prefix_cache")]
    counts = {name: sum(getattr(one, name) for one in stats) for name in others}
    return replace(stats[0], kv_usage=usage, prefix_cache=cache, **counts)


def _gather(futures: Sequence[Future[Any]], combine: Callable[[Sequence[Any]], Any]) -> Future[Any]:
    """A future of all results together."""
    whole: Future[Any] = Future()
    lock, left = threading.Lock(), [len(futures)]

    def count(_: Future[Any]) -> None:
        with lock:
            left[0] -= 1
            if left[0]:
                return
        if not whole.set_running_or_notify_cancel():
            return
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            whole.set_exception(errors[0])
        else:
            whole.set_result(combine([future.result() for future in futures]))

    for future in futures:
        future.add_done_callback(count)
    return whole
