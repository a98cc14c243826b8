"""In which order backends are tried when nobody says which: a table per platform, and what plugins add to it."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.utils import canonicalize_name

from ..core.attention import Device
from ..plugins import Offer, Placement, PluginRecord, Plugins
from ..plugins.environment import ROCM_AITER, ROCM_AITER_MHA, ROCM_AITER_UNIFIED, read, switched_on
from ..plugins.names import key

RANKING: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu", "sdpa", "flex_attention", "reference"),
    "cuda": (
        "flash_attn_3",
        "flashinfer",
        "flash_attn_4",
        "flash_attn",
        "triton",
        "sdpa",
        "flex_attention",
        "reference",
    ),
    "rocm": ("rocm_aiter_fa", "rocm_aiter_unified", "triton", "sdpa", "flex_attention", "reference"),
}
"""Built-in backends by platform, best first; docs/selection.md says why in this order."""
SWITCHES: Mapping[str, Mapping[str, str]] = {
    "rocm_aiter_fa": {ROCM_AITER: "0", ROCM_AITER_MHA: "1"},
    "rocm_aiter_unified": {ROCM_AITER: "0", ROCM_AITER_UNIFIED: "0"},
}
"""Variables that all have to say 1 before a backend has its rank, with what counts where one is not set. A backend that
is chosen by name needs none of them."""
ANYWHERE = ("sdpa", "reference")
"""The order on a platform without a table: what runs wherever torch does."""
LAST_RESORT = frozenset({"reference"})
"""Ranked so that every model runs; the log says so where one is chosen, since they are slow."""


def ranked(device: Device, plugins: Plugins) -> tuple[Offer, ...]:
    """The automatic order on `device`. Backends that nobody ranks are not in it.

    A plugin's backend stands where its package puts it: right before or after another. Packages come in order of name,
    not of discovery; where a backend is placed more than once, the first placement whose neighbour is ranked counts.
    Raises `InvalidInput` for a switch that is neither on nor off.
    """
    table = [name for name in RANKING.get(device.platform, ANYWHERE) if _switched_on(name)]
    order = [offer for name in table if (offer := plugins.backends.get(name)) and offer.record.builtin]
    waiting = sorted(
        plugins.hooks.placements(device), key=lambda p: (canonicalize_name(p[0].distribution), key(p[1].backend))
    )
    while placed := next((p for p in waiting if _insert(order, p[1], _own(p, plugins), plugins)), None):
        own = _own(placed, plugins)
        waiting = [p for p in waiting if _own(p, plugins) is not own]
    for record, placement in waiting:
        neighbour = placement.before or placement.after
        if _own((record, placement), plugins) is None:
            plugins.guard.warn(f"{record.package} ranks {placement.backend!r}, which it does not offer")
        else:
            plugins.guard.warn(
                f"{record.package} ranks {placement.backend!r} next to {neighbour!r}, which has no rank on "
                f"{device.platform}: it is chosen only by name"
            )
    return tuple(order)


def switched_off(offer: Offer, device: Device) -> str:
    """That only a switch keeps a backend out of the order on `device`; ``""`` where that is not so."""
    name = offer.record.name
    if not offer.record.builtin or name not in RANKING.get(device.platform, ANYWHERE):
        return ""
    off = [
        f"{variable} is {read(variable) or 'not set'}"
        for variable, default in SWITCHES.get(name, {}).items()
        if not switched_on(variable, default=default)
    ]
    return f"switched off ({', '.join(off)}): not chosen automatically" if off else ""


def _switched_on(name: str) -> bool:
    switches = SWITCHES.get(name, {})
    return all(switched_on(variable, default=default) for variable, default in switches.items())


def _own(placed: tuple[PluginRecord, Placement], plugins: Plugins) -> Offer | None:
    """The backend that a package ranks: one of its own, whatever others call theirs."""
    record, placement = placed
    for offer in plugins.backends.offers:
        same_package = canonicalize_name(offer.record.distribution) == canonicalize_name(record.distribution)
        if same_package and key(offer.record.name) == key(placement.backend):
            return offer
    return None


def _insert(order: list[Offer], placement: Placement, own: Offer | None, plugins: Plugins) -> bool:
    """Put `own` where `placement` says; False where that is not possible (yet)."""
    neighbour = plugins.backends.get(placement.before or placement.after)
    if own is None or neighbour is None or neighbour not in order:
        return False
    order.insert(order.index(neighbour) + (0 if placement.before else 1), own)
    return True
