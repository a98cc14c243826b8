"""The run: every shape in every dtype on every number of threads, all contenders checked, then timed in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import psutil
import torch

from ...core.attention import Capabilities, Device
from ...plugins import Failure, Guard, Offer
from ...selector.judge import Judge, Terms
from ..interleave import ENDLESS_SECONDS, LEAST_SLOW_ROUNDS, SLOW_SECONDS, Contender, Pace, interleave
from ..load import LoadMeter
from .check import Expected, expected
from .contenders import BackendContender, KernelContender
from .data import SEED, Pool
from .limits import Limit, gemm_limit, read_limit
from .peer import Peer, PeerContender, PeerRefusal
from .report import Measurement, Row
from .rows import LIMIT, Task, about, failed, finished, new_row
from .shapes import Shape, overhead_shapes
from .watch import Checks, Watched

BLOCK_SIZES = (16, 32, 64, 128, 256, 1)
"""Tried in this order where a backend does not take the block size that was asked for."""
MEMORY_SHARE = 0.85
"""Of the free memory, all caches and one more of the kind for a backend that gathers pages may take so much."""
PROBES = 3
"""Calls after the first, the fastest of which says how many fit into a turn."""
LONG_TURN_SECONDS = 0.25
"""A turn may take so long where all are called equally often."""
HALF_PRECISION = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured, and how long."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int, ...]
    rounds: int
    """At most."""
    budget: float
    """Seconds that a contender's turns of one row should fill."""
    block_size: int
    least_rounds: int = LEAST_SLOW_ROUNDS
    """Undisturbed rounds without which the others count, too."""
    overheads: bool = True
    """Whether a call on one token is measured, too, for each head count."""
    paired: bool = False
    """Whether everybody has a turn in every round, so that all can be compared: as often as the slowest, and that at
    least `least_rounds` times, however slow it is. Else who is slow has few turns, and who is very slow just one."""

    def groups(self) -> list[list[Shape]]:
        """The shapes by head count, that of its overheads first."""
        first = {o.heads: [o] for o in overhead_shapes(self.shapes)} if self.overheads else {}
        by_heads = {heads: list(first.get(heads, ())) for heads in dict.fromkeys(s.heads for s in self.shapes)}
        for shape in self.shapes:
            if shape not in by_heads[shape.heads]:
                by_heads[shape.heads].append(shape)
        return list(by_heads.values())

    def tasks(self) -> list[Task]:
        """All rows, in the order of the run."""
        return [
            Task(shape=shape, dtype=dtype, threads=threads)
            for dtype in self.dtypes
            for group in self.groups()
            for shape in group
            for threads in self.threads
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A backend that takes part, in a configuration."""

    name: str
    offer: Offer
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    """In place of its defaults, where the user says nothing."""

    @classmethod
    def of(cls, offers: Sequence[Offer]) -> tuple[Entry, ...]:
        """Each by its label, as it is."""
        return tuple(cls(name=offer.label, offer=offer) for offer in offers)


class KernelBench:
    """Measures backends that `judge` knows, on its device, and peers."""

    def __init__(
        self, settings: Settings, entries: Sequence[Entry], peers: Sequence[Peer], judge: Judge, guard: Guard
    ) -> None:
        self._settings = settings
        self._entries = entries
        self._peers = peers
        self._judge = judge
        self._guard = guard
        self._meter = LoadMeter(peer.pid for peer in peers)
        self._gemms: dict[tuple[str, int], Limit] = {}
        self._random = Random(SEED)

    @property
    def device(self) -> Device:
        return self._judge.device

    def rows(self) -> Iterator[Row]:
        """Measure, a row for each of `Settings.tasks`, in their order."""
        settings = self._settings
        tasks = iter(settings.tasks())
        with torch.inference_mode(), kept_threads(), tempfile.TemporaryDirectory(prefix="headstock-bench-") as folder:
            for dtype in settings.dtypes:
                for group in settings.groups():
                    against = {shape: too_large(shape, dtype, self._copies, self.device) for shape in group}
                    fitting = [shape for shape in group if not against[shape]]
                    pool = Pool.of(group[0].heads, dtype, fitting) if fitting else None
                    if self._peers and pool is not None:
                        pool.write(Path(folder))
                    for shape in group:
                        todo = [next(tasks) for _ in settings.threads]
                        if pool is None or against[shape]:
                            yield from (new_row(task, skipped=against[shape]) for task in todo)
                        else:
                            yield from self._shape(shape, dtype, pool, Path(folder), todo)

    @property
    def _copies(self) -> int:
        """Of a shape's keys and values: a cache a contender, and what one may gather."""
        return len(self._entries) + len(self._peers) + 1

    def _shape(self, shape: Shape, dtype: str, pool: Pool, folder: Path, todo: Sequence[Task]) -> Iterator[Row]:
        exact = expected(shape, pool, dtype)
        entrants = dict(self._entrants(shape, dtype, pool, folder))
        try:
            for task in todo:
                yield self._measure(task, entrants, exact, pool)
        finally:
            for entrant in entrants.values():
                if not isinstance(entrant, Measurement):
                    self._guard.attempt(entrant.close)

    def _entrants(
        self, shape: Shape, dtype: str, pool: Pool, folder: Path
    ) -> Iterator[tuple[str, KernelContender | Measurement]]:
        """Each contender with its cache filled, or why it has none."""
        for entry in self._entries:
            name, offer, (_, capabilities) = entry.name, entry.offer, self._judge.standing(entry.offer)
            spec = shape.spec(dtype, fitting_block_size(self._settings.block_size, capabilities))
            terms = Terms(block_size=spec.block_size)
            if reasons := self._judge.reasons(offer, spec, terms):
                yield name, Measurement(name=name, reason="does not fit: " + "; ".join(reasons))
                continue
            cls, layout = offer.load(), self._judge.layouts[self._judge.layouts_of(offer, spec)[0]]
            assert cls is not None  # a backend that cannot be loaded has reasons
            options = self._judge.options(offer, entry.options)
            make = (name, cls, options, spec, layout, self.device, shape, pool)
            yield name, self._made(name, self._guard.attempt(lambda make=make: BackendContender(*make)))
        for peer in self._peers:
            ready = self._guard.attempt(lambda peer=peer: PeerContender(peer, shape, dtype, pool, folder))
            if isinstance(ready, Failure) and isinstance(ready.error, PeerRefusal):
                yield peer.name, Measurement(name=peer.name, reason=f"does not fit: {ready.error}")
            else:
                yield peer.name, self._made(peer.name, ready)

    def _made(self, name: str, result: KernelContender | Failure) -> KernelContender | Measurement:
        return failed(name, str(result)) if isinstance(result, Failure) else result

    def _measure(
        self, task: Task, entrants: Mapping[str, KernelContender | Measurement], exact: Expected, pool: Pool
    ) -> Row:
        torch.set_num_threads(task.threads)
        results: dict[str, Measurement] = {}
        ready: dict[str, tuple[KernelContender, float]] = {}
        for name, contender in entrants.items():
            if isinstance(contender, Measurement):
                results[name] = contender
                continue
            results[name], seconds = self._start(name, contender, task.threads, exact)
            if seconds is not None:
                ready[name] = (contender, seconds)
        single = {n: t for n, (_, t) in ready.items() if t > ENDLESS_SECONDS and not self._settings.paired}
        limit = self._limit(task)
        paces = self._paces({name: t for name, (_, t) in ready.items() if name not in single}, limit)
        checks = Checks(task.shape, pool, task.dtype, self._random, max((p.rounds for p in paces.values()), default=1))
        watched = {name: Watched(ready[name][0], self._guard, checks) for name in paces if name != LIMIT}
        runners: dict[str, Contender] = {**watched, **({LIMIT: limit} if limit else {})}
        before = {peer.name: peer.resident_bytes for peer in self._peers}
        spare = self._settings.rounds if self._settings.paired else 0
        samples = interleave(runners, paces, self._meter, self._settings.least_rounds, spare)
        grown = {peer.name: peer.resident_bytes - before[peer.name] for peer in self._peers}
        for name, (problem, error) in checks.verdicts(watched).items():
            if problem:
                results[name] = replace(results[name], reason=problem, failed=True)
                del paces[name]
            else:
                results[name] = replace(results[name], error=max(results[name].error or 0.0, error))
        results = {name: replace(m, grown_bytes=max(0, grown.get(name, 0))) for name, m in results.items()}
        return finished(task, results, samples, paces, single, limit)

    def _paces(self, seconds: Mapping[str, float], limit: Limit | None) -> dict[str, Pace]:
        """How often each is called, by the seconds of a call; the limit, too."""
        settings = self._settings
        found: dict[str, Pace] = {}
        for name, taken in seconds.items():
            rounds = settings.least_rounds if taken > ENDLESS_SECONDS else settings.rounds
            found[name] = Pace.of(taken, settings.budget, rounds)
        if settings.paired and found:
            # The median of many calls is less than that of one where calls are delayed now and then: alike for all.
            paces = found.values()
            most = max(pace.calls for pace in paces)
            calls = max(1, min(most, int(LONG_TURN_SECONDS / max(seconds.values()))))
            alike = Pace(calls=calls, rounds=min(p.rounds for p in paces), warm=any(p.warm for p in paces))
            found = dict.fromkeys(found, alike)
        if limit is not None:
            (estimate,) = limit.turn(1, warm=True)
            found[LIMIT] = Pace.of(estimate, settings.budget, settings.rounds)
        return found

    def _start(
        self, name: str, contender: KernelContender, threads: int, exact: Expected
    ) -> tuple[Measurement, float | None]:
        """What the first call says, and seconds a call; None where it is not to be timed."""
        start = self._guard.attempt(lambda: contender.start(threads))
        if isinstance(start, Failure):
            return failed(name, str(start)), None
        result = about(name, contender, start, exact)
        if result.failed:
            return result, None
        if start.first_seconds > SLOW_SECONDS:
            return result, start.first_seconds
        again = self._guard.attempt(lambda: contender.turn(PROBES, warm=False))
        if isinstance(again, Failure):
            return failed(name, str(again)), None
        return result, min(again)

    def _limit(self, task: Task) -> Limit | None:
        """What bounds CPUs in such a task; None on a card."""
        if self.device.platform != "cpu":
            return None
        if task.shape.phase == "decode":
            return read_limit(task.shape.kv_bytes(task.dtype))
        return self.gemm(task.dtype, task.threads)

    def gemm(self, dtype: str, threads: int) -> Limit:
        """What bounds arithmetic in `dtype`; in 16 bits the faster of its own and float32's, which kernels widen to."""
        if (dtype, threads) not in self._gemms:
            torch.set_num_threads(threads)
            options = [gemm_limit(dtype), *([gemm_limit("float32")] if dtype in HALF_PRECISION else [])]
            self._gemms[dtype, threads] = max(options, key=lambda limit: limit.rate(min(limit.turn(3, warm=True))))
        return self._gemms[dtype, threads]


def fitting_block_size(asked: int, capabilities: Capabilities) -> int:
    """`asked`, or the first usual size that the backend takes."""
    return next((n for n in (asked, *BLOCK_SIZES) if n in capabilities.block_sizes), asked)


def too_large(shape: Shape, dtype: str, copies: int, device: Device) -> str:
    """What speaks against holding the keys and values of `shape` so many times; empty where nothing does."""
    held = sum(length for _, length in shape.sequences) * shape.spec(dtype).bytes_per_token
    free = min(psutil.virtual_memory().available, device.memory_bytes)
    if copies * held <= MEMORY_SHARE * free:
        return ""
    return (
        f"K and V take {_gib(held)}; caches and gathered copies would take {_gib(copies * held)}, and {_gib(free)} "
        "are free"
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"


@contextmanager
def kept_threads() -> Iterator[None]:
    """Torch's number of threads is afterwards what it was."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
