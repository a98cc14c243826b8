"""What `headstock backends` lists: every backend, where it comes from, and whether it runs here, whatever the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.attention import Device
from ..plugins import ALIASES
from ..plugins.names import key
from .plain import plain
from .ranking import ranked
from .selector import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRow:
    """One backend."""

    name: str
    version: str
    """Of the distribution."""
    distribution: str
    verdict: str
    """``"available"``, ``"unavailable"`` (here), ``"failed"``, ``"refused"`` or ``"disabled"``."""
    reasons: tuple[str, ...]
    """All of them; empty where available."""
    rank: int | None
    """Place in the automatic order, from 1; None is chosen by name only."""
    aliases: tuple[str, ...]
    """Names it has in other engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One module of hooks, or a function in the place of an op of AITER's."""

    name: str
    version: str
    distribution: str
    verdict: str
    """``"loaded"``, ``"failed"``, ``"refused"`` or ``"disabled"``; a function is ``"not loaded"``."""
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Everything that is installed, as it stands on one device."""

    device: Device
    backends: tuple[BackendRow, ...]
    """The automatic order first, the others by name."""
    plugins: tuple[PluginRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON; its shape is kept, new fields may come."""
        return plain(self)


def list_backends(selector: Selector, device: Device) -> Listing:
    """Load everything and say how each fares on `device`. In strict mode raises what a broken plugin raises."""
    judge, ranking = selector.judge(device), ranked(device, selector.plugins)
    rows: list[BackendRow] = []
    for offer in selector.offers(ranking):
        reasons, _ = judge.standing(offer)
        record = offer.record
        verdict = record.status if record.status != "loaded" else "unavailable" if reasons else "available"
        rows.append(
            BackendRow(
                name=offer.label,
                version=record.version,
                distribution=record.distribution,
                verdict=verdict,
                reasons=reasons if record.status == "loaded" else (record.reason,),
                rank=ranking.index(offer) + 1 if offer in ranking else None,
                aliases=tuple(alias for alias, true in ALIASES.items() if true == key(offer.label)),
            )
        )
    return Listing(
        device=device,
        backends=tuple(rows),
        plugins=tuple(
            PluginRow(
                name=record.name,
                version=record.version,
                distribution=record.distribution,
                verdict=record.status,
                reasons=(record.reason,) if record.reason else (),
            )
            for record in (*selector.plugins.hooks.records, *selector.plugins.ops)
        ),
    )
