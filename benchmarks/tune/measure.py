"""Backends held against each other for each kind of layer, in each phase, over batches and contexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.attention import AttentionSpec
from ...plugins import Offer
from ...plugins.sources import source_hash
from ...selector.policy import PHASES
from ...selector.tuned_file import PLAIN_BLOCK, Tried, TunedEntry
from ..ab.kernel_level import UNBOUNDED
from ..ab.verdicts import LEAST
from ..kernels.report import Row
from ..kernels.run import Settings
from ..kernels.shapes import Shape, shape
from .winners import objection, times_of, winner_of

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
    """New tokens of a chunk, at most as many as it continues."""

    def shapes(self, layer: AttentionSpec) -> list[Shape]:
        heads = (layer.num_heads, layer.num_kv_heads, layer.head_size)
        found = [shape("decode", heads, batch=b, length=c) for b in self.batches for c in self.contexts]
        found += [shape("prefill", heads, queries=c, length=c) for c in self.contexts]
        found += [shape("chunk", heads, queries=n, length=n + c) for c in self.contexts for n in (min(self.chunk, c),)]
        return [replace(one, layer=layer) for one in found]

    def of_phase(self, layer: AttentionSpec, phase: str) -> list[Shape]:
        """Those that say something of a phase."""
        return [one for one in self.shapes(layer) if PHASE[one.phase] == phase]


def measurable(specs: Iterable[AttentionSpec]) -> tuple[list[AttentionSpec], list[AttentionSpec]]:
    """The kinds of layer among `specs`, and those of them that the kernel benchmark has no data for."""
    kinds = list(dict.fromkeys(replace(spec, block_size=PLAIN_BLOCK) for spec in specs))
    plain = [s for s in kinds if s.head_size == s.head_size_v and s.latent is None and s.kv_source == "cache"]
    return plain, [spec for spec in kinds if spec not in plain]


def settings_for(spec: AttentionSpec, shapes: Sequence[Shape], rounds: int, threads: int) -> Settings:
    """Of the kernel benchmark."""
    return Settings(
        shapes=tuple(shapes),
        dtypes=(spec.dtype,),
        threads=(threads,),
        rounds=rounds,
        budget=UNBOUNDED,
        block_size=PLAIN_BLOCK,
        least_rounds=LEAST,
        overheads=False,
        paired=True,
    )


def entries_for(
    spec: AttentionSpec,
    rows: Sequence[Row],
    offers: Sequence[Offer],
    left_out: Sequence[Offer] = (),
    configured: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
) -> list[TunedEntry]:
    """The winner of each phase. `offers` is in the order of the ranking; `left_out` are here and were not measured;
    `configured` holds options by backend and phase.

    A backend counts where it was right in every regime of the phase. It takes the place of the first in the ranking
    only where it is shown to be faster: noise does not change choices. Empty for a phase nobody serves.
    """
    found: list[TunedEntry] = []
    for phase in PHASES:
        own = [row for row in rows if PHASE[row.shape.phase] == phase and not row.skipped]
        tried = {
            offer.label: _tried(offer, objection(own, offer.label), (configured or {}).get((offer.label, phase), {}))
            for offer in offers
        }
        tried |= {offer.label: _tried(offer, "left out") for offer in left_out}
        sound = [offer.label for offer in offers if not tried[offer.label].reason]
        if not own or not sound:
            continue
        backend, ratio = winner_of(own, sound)
        found.append(
            TunedEntry(
                spec=spec,
                phase=phase,
                backend=backend,
                tried=tried,
                against=sound[0],
                ratio=ratio.estimate,
                low=ratio.low,
                high=ratio.high,
                regimes=times_of(own),
            )
        )
    return found


def _tried(offer: Offer, reason: str, options: Mapping[str, Any] | None = None) -> Tried:
    cls = offer.load()
    return Tried(
        package=offer.record.package,
        source_hash=source_hash(cls) if cls else "",
        options=dict(options or {}),
        reason=reason,
    )
