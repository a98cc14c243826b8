"""Finding a backend for every layer such that all agree on one block size and one layout of the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from ..core.attention import AttentionSpec, Rejection, Sizes
from ..core.errors import BackendError
from ..plugins import Offer
from .judge import Judge, Terms

PREFERRED = (16, 32, 64, 128, 256, 512, 1024, 8, 4, 2, 1)
"""Block sizes in the order in which they are tried: small ones make long tables, large ones waste memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Layers that need one backend for one phase: their specs and the wishes for them are equal."""

    layers: tuple[str, ...]
    spec: AttentionSpec
    phase: str
    """``"decode"``, ``"prefill"``, or ``""`` for both."""
    named: Offer | None
    """The backend that was asked for; None leaves it to the ranking."""
    asked: tuple[str, ...] = ()
    """What it was called."""
    origin: str = ""
    """Who asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A task and its backend."""

    task: Task
    offer: Offer
    origin: str
    rejected: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A task without a backend, under the terms that were asked."""

    task: Task
    terms: Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A backend for every task, and what they agree on."""

    picks: tuple[Pick, ...]
    block_size: int
    layout: str


Complain = Callable[[Sequence[Refusal]], str]
Dispute = Callable[[Sequence[Pick]], str]


class Settler:
    """Picks by rank, and again under closer terms where the first picks do not agree."""

    def __init__(
        self, judge: Judge, ranking: Sequence[Offer], tuned: Callable[[Task], tuple[Offer, str] | None]
    ) -> None:
        self._judge = judge
        self._ranking = ranking
        self._tuned = tuned

    def settle(self, tasks: Sequence[Task], block_size: int | None, complain: Complain, dispute: Dispute) -> Settlement:
        """Raises `BackendError`: with `complain` where a task has no backend, `dispute` where they cannot agree."""
        picks, refusals = self._pick_all(tasks, Terms(block_size=block_size))
        if refusals:
            raise BackendError(complain(refusals))
        settlement = self._agree(picks, block_size)
        if settlement is None and any(task.named is None for task in tasks):
            settlement = self._pick_again(tasks, block_size)
        if settlement is None:
            raise BackendError(dispute(picks))
        return settlement

    def _pick_all(self, tasks: Sequence[Task], terms: Terms) -> tuple[list[Pick], list[Refusal]]:
        picks: list[Pick] = []
        refusals: list[Refusal] = []
        for task in tasks:
            found = self._pick(task, terms)
            if found is None:
                refusals.append(Refusal(task=task, terms=terms))
            else:
                picks.append(found)
        return picks, refusals

    def _pick(self, task: Task, terms: Terms) -> Pick | None:
        """The backend that was named or none; else the measured one or the first that fits."""
        if task.named is not None:
            fits = not self._judge.reasons(task.named, task.spec, terms)
            return Pick(task=task, offer=task.named, origin=task.origin) if fits else None
        rejected: list[Rejection] = []
        for offer, origin in self._candidates(task):
            reasons = self._judge.reasons(offer, task.spec, terms)
            if not reasons:
                return Pick(task=task, offer=offer, origin=origin, rejected=tuple(rejected))
            rejected.append(Rejection(backend=offer.label, reasons=reasons))
        return None

    def _candidates(self, task: Task) -> Iterator[tuple[Offer, str]]:
        measured = self._tuned(task)
        if measured is not None:
            yield measured
        tuned = measured[0] if measured else None
        for place, offer in enumerate(self._ranking, 1):
            if offer is not tuned:
                yield offer, f"ranked ({place} of {len(self._ranking)} on {self._judge.device.platform})"

    def _agree(self, picks: Sequence[Pick], block_size: int | None) -> Settlement | None:
        """The first block size and layout that suit all picks."""
        cached = [p for p in picks if p.task.spec.kv_source == "cache"]
        if not cached:
            wish = picks[0].task.spec.block_size if picks else PREFERRED[0]
            return Settlement(picks=tuple(picks), block_size=block_size or wish, layout=next(iter(self._judge.layouts)))
        for size in self._sizes(cached[0].task.spec, [p.offer for p in cached], block_size):
            for layout in self._judge.layouts_of(cached[0].offer):
                terms = Terms(block_size=size, layout=layout)
                if not any(self._judge.reasons(p.offer, p.task.spec, terms) for p in cached):
                    return Settlement(picks=tuple(picks), block_size=size, layout=layout)
        return None

    def _pick_again(self, tasks: Sequence[Task], block_size: int | None) -> Settlement | None:
        """What the ranking has to give up so that all agree: the first terms under which every task has a backend."""
        offers = [task.named for task in tasks if task.named is not None] + list(self._ranking)
        wish = next(task.spec for task in tasks if task.spec.kv_source == "cache")
        for size in self._sizes(wish, offers, block_size):
            for layout in self._judge.layouts:
                picks, refusals = self._pick_all(tasks, Terms(block_size=size, layout=layout))
                if not refusals:
                    return Settlement(picks=tuple(picks), block_size=size, layout=layout)
        return None

    def _sizes(self, wish: AttentionSpec, offers: Sequence[Offer], block_size: int | None) -> list[int]:
        """Block sizes worth trying: the one asked for; else the layers' own, the usual ones, the backends' least."""
        if block_size is not None:
            return [block_size]
        sets = [self._judge.standing(offer)[1].block_sizes for offer in offers]
        common = reduce(lambda a, b: a & b, sets)
        least = sorted({n for s in (*sets, common) for n in _least(s)})
        return list(dict.fromkeys([wish.block_size, *PREFERRED, *least]))


def _least(sizes: Sizes) -> list[int]:
    """Members of a set of sizes: all of a listed one, the smallest of a range."""
    if sizes.only is not None:
        return [n for n in sizes.only if n in sizes]
    first = -(-sizes.low // sizes.multiple_of) * sizes.multiple_of
    return [first] if first in sizes else []
