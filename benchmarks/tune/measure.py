"""Backends held against each other for each kind of layer, in each phase, over batches and contexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from ...core.attention import AttentionSpec
from ...plugins import Guard, Offer
from ...plugins.sources import source_hash
from ...selector.judge import Judge
from ...selector.tuned_file import PLAIN_BLOCK, Tried, TunedEntry
from ..ab.kernel_level import UNBOUNDED
from ..ab.verdicts import Ratio, paired_ratio
from ..kernels.report import Row
from ..kernels.run import KernelBench, Settings
from ..kernels.shapes import Shape, shape

PHASE = {"decode": "decode", "prefill": "prefill", "chunk": "prefill"}
"""Phase of a shape → phase of a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regimes:
    """What a layer is measured on."""

    batches: tuple[int, ...]
    """Sequences of a decode."""
    contexts: tuple[int, ...]
    """Tokens of a decode's sequences, of a prompt, and of what a chunk continues."""
    chunk: int = 256
    """New tokens of a chunk."""

    def shapes(self, layer: AttentionSpec) -> list[Shape]:
        heads = (layer.num_heads, layer.num_kv_heads, layer.head_size)
        found = [shape("decode", heads, batch=b, length=c) for b in self.batches for c in self.contexts]
        found += [shape("prefill", heads, queries=c, length=c) for c in self.contexts]
        found += [shape("chunk", heads, queries=self.chunk, length=self.chunk + c) for c in self.contexts]
        return [replace(one, layer=layer) for one in found]


def measurable(specs: Iterable[AttentionSpec]) -> tuple[list[AttentionSpec], list[AttentionSpec]]:
    """The kinds of layer among `specs`, and those of them that the kernel benchmark has no data for."""
    kinds = list(dict.fromkeys(replace(spec, block_size=PLAIN_BLOCK) for spec in specs))
    plain = [s for s in kinds if s.head_size == s.head_size_v and s.latent is None and s.kv_source == "cache"]
    return plain, [spec for spec in kinds if spec not in plain]


def settings_for(spec: AttentionSpec, regimes: Regimes, rounds: int, threads: int) -> Settings:
    """Of the kernel benchmark."""
    return Settings(
        shapes=tuple(regimes.shapes(spec)),
        dtypes=(spec.dtype,),
        threads=(threads,),
        rounds=rounds,
        budget=UNBOUNDED,
        block_size=PLAIN_BLOCK,
        overheads=False,
    )


def rows_for(settings: Settings, offers: Sequence[Offer], judge: Judge, guard: Guard) -> Iterable[Row]:
    """The measurements; each output is checked before its time counts."""
    return KernelBench(settings, offers, (), judge, guard).rows()


def entries_for(
    spec: AttentionSpec, rows: Sequence[Row], offers: Sequence[Offer], left_out: Sequence[Offer] = ()
) -> list[TunedEntry]:
    """The winner of each phase. `offers` is in the order of the ranking; `left_out` are here and were not measured.

    A backend counts where it was right in every regime of the phase. It takes the place of the first in the ranking
    only where it is shown to be faster: noise does not change choices. Empty for a phase nobody serves.
    """
    found: list[TunedEntry] = []
    for phase in ("decode", "prefill"):
        own = [row for row in rows if PHASE[row.shape.phase] == phase and not row.skipped]
        tried = {offer.label: _tried(offer, _objection(offer.label, own)) for offer in offers}
        tried |= {offer.label: _tried(offer, "left out") for offer in left_out}
        sound = [offer.label for offer in offers if not tried[offer.label].reason]
        if own and sound:
            found.append(_entry(spec, phase, own, sound, tried))
    return found


def _tried(offer: Offer, reason: str) -> Tried:
    cls = offer.load()
    return Tried(package=offer.record.package, source_hash=source_hash(cls) if cls else "", reason=reason)


def _objection(name: str, rows: Sequence[Row]) -> str:
    """Why a backend does not count; empty where it has a time in every row."""
    return next((m.reason for row in rows for m in row.measurements if m.name == name and m.median_us is None), "")


def _entry(
    spec: AttentionSpec, phase: str, rows: Sequence[Row], sound: Sequence[str], tried: Mapping[str, Tried]
) -> TunedEntry:
    first, times = sound[0], _times(rows)
    ratios = {name: _ratio(rows, first, name) for name in sound[1:]}
    faster = [name for name, ratio in ratios.items() if ratio.word == "faster"]
    winner = min(faster, key=lambda name: geometric_mean(t[name] for t in times.values()), default=first)
    ratio = ratios.get(winner, Ratio(estimate=1.0, low=1.0, high=1.0, pairs=0))
    return TunedEntry(
        spec=spec,
        phase=phase,
        backend=winner,
        tried=tried,
        against=first,
        ratio=ratio.estimate,
        low=ratio.low,
        high=ratio.high,
        regimes=times,
    )


def _times(rows: Sequence[Row]) -> dict[str, Mapping[str, float]]:
    """Microseconds by shape and backend."""
    return {row.shape.label: {m.name: m.median_us for m in row.measurements if m.median_us is not None} for row in rows}


def _ratio(rows: Sequence[Row], first: str, other: str) -> Ratio:
    both = [(a.samples_us, b.samples_us) for row in rows if (a := row.of(first)) and (b := row.of(other))]
    return paired_ratio([a for a, _ in both], [b for _, b in both])
