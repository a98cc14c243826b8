"""`explain`: which backend a model would get on a device, why that one, and why none of the others. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.attention import AttentionChoice, AttentionSelection, AttentionSpec, Device
from ..core.errors import BackendError
from .figures import Estimate, ModelFigures, estimate
from .judge import Judge, Terms
from .plain import plain
from .policy import kinds_of
from .ranking import ranked, switched_off
from .selector import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One backend, held against the layers of a group."""

    backend: str
    distribution: str
    """Package and version."""
    rank: int | None
    """Place in the automatic order of the device, from 1; None is chosen by name only."""
    verdict: str
    """``"chosen"``, ``"fits"`` or ``"refused"``."""
    reasons: tuple[str, ...]
    """All that speak against it; empty unless refused."""
    note: str
    """That a switch keeps it out of the automatic order; empty where none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that are alike and get the same backend."""

    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    spec: AttentionSpec
    candidates: tuple[Candidate, ...]
    """Every backend there is, the automatic order first."""
    choice: str | None
    """None where nothing could be selected."""
    origin: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The whole answer."""

    device: Device
    groups: tuple[LayerGroup, ...]
    block_size: int | None
    layout: str | None
    notes: tuple[str, ...]
    error: str | None
    """Why nothing could be selected."""
    estimate: Estimate | None
    """Where the model's figures were given."""

    @property
    def fits(self) -> bool:
        """Whether every layer gets a backend and the model goes into the memory; `headstock explain` exits with 0 or 1
        by it."""
        return self.error is None and (self.estimate is None or self.estimate.fits)

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON; its shape is kept, new fields may come."""
        return plain(self) | {"fits": self.fits}


def explain(
    selector: Selector,
    specs: Mapping[str, AttentionSpec],
    device: Device,
    *,
    block_size: int | None = None,
    model: ModelFigures | None = None,
    context: int = 1024,
    utilisation: float = 0.9,
) -> Explanation:
    """What `selector.select` would answer, with all that was weighed. That nothing can be selected is an answer, too.

    Raises `InvalidInput` for a wrong policy, as `select` does.
    """
    selection, error = None, None
    try:
        selection = selector.propose(specs, device, block_size)
    except BackendError as refusal:
        error = str(refusal)
    size = selection.block_size if selection else block_size
    figures = None
    if model is not None:
        wish = next(iter(specs.values())).block_size if specs else 1
        figures = estimate(model, specs, device, block_size=size or wish, context=context, utilisation=utilisation)
    return Explanation(
        device=device,
        groups=_groups(selector, specs, device, selection, block_size),
        block_size=selection.block_size if selection else None,
        layout=selection.layout.name if selection else None,
        notes=selection.notes if selection else (),
        error=error,
        estimate=figures,
    )


def _groups(
    selector: Selector,
    specs: Mapping[str, AttentionSpec],
    device: Device,
    selection: AttentionSelection | None,
    block_size: int | None,
) -> tuple[LayerGroup, ...]:
    judge, terms = selector.judge(device, block_size), Terms(block_size=block_size)
    alike: dict[tuple[AttentionSpec, str | None, str | None], list[str]] = {}
    for name, spec in specs.items():
        choice = selection.choices[name] if selection else None
        key = (spec, choice and choice.backend, choice and choice.origin)
        alike.setdefault(key, []).append(name)
    return tuple(
        LayerGroup(
            layers=tuple(names),
            kinds=kinds_of(spec),
            spec=spec,
            candidates=_candidates(selector, judge, spec, terms, selection and selection.choices[names[0]]),
            choice=backend,
            origin=origin,
        )
        for (spec, backend, origin), names in alike.items()
    )


def _candidates(
    selector: Selector, judge: Judge, spec: AttentionSpec, terms: Terms, choice: AttentionChoice | None
) -> tuple[Candidate, ...]:
    ranking = ranked(judge.device, selector.plugins)
    taken = {part.partition("=")[2] or part for part in (choice.backend if choice else "").split(",")}
    passed_over = {rejection.backend: rejection.reasons for rejection in (choice.rejected if choice else ())}
    found: list[Candidate] = []
    for offer in selector.offers(ranking):
        reasons = passed_over.get(offer.label, ()) or judge.reasons(offer, spec, terms)
        verdict = "refused" if reasons else "chosen" if offer.label in taken else "fits"
        found.append(
            Candidate(
                backend=offer.label,
                distribution=offer.record.package,
                rank=ranking.index(offer) + 1 if offer in ranking else None,
                verdict=verdict,
                reasons=reasons,
                note=switched_off(offer, judge.device),
            )
        )
    return tuple(found)
