"""What `headstock backends` lists: every backend, where it comes from, and whether it runs here, whatever the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..core.attention import Device
from ..plugins import ALIASES, Offer, PluginRecord
from ..plugins.names import key
from .plain import plain
from .ranking import ranked, switched_off
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
    note: str
    """That a switch keeps it out of the automatic order, and that its name works; empty where neither is so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One module of hooks, or a function in the place of an op of AITER's."""

    kind: Literal["hooks", "op"]
    name: str
    """As the entry point has it: of a function, the op."""
    target: str
    """The module, or the function."""
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
                note=_note(offer, device, works=verdict == "available"),
            )
        )
    plugins = selector.plugins
    return Listing(
        device=device,
        backends=tuple(rows),
        plugins=(
            *(_plugin("hooks", record) for record in plugins.hooks.records),
            *(_plugin("op", record) for record in plugins.ops.records(device)),
        ),
    )


def _note(offer: Offer, device: Device, *, works: bool) -> str:
    off = switched_off(offer, device)
    return f"{off}; --attention-backend {offer.label} works" if off and works else off


def _plugin(kind: Literal["hooks", "op"], record: PluginRecord) -> PluginRow:
    return PluginRow(
        kind=kind,
        name=record.name,
        target=record.target,
        version=record.version,
        distribution=record.distribution,
        verdict=record.status,
        reasons=(record.reason,) if record.reason else (),
    )
