"""`BackendRegistry`: attention backends by name, whoever offers them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from ..core.errors import BackendError
from .guard import Failure, Guard
from .names import ALIASES, key, nearest
from .offer import Offer, objection
from .record import BACKENDS, PluginRecord

if TYPE_CHECKING:
    from ..core.attention import AttentionBackend

HOW_TO_LIST = "list them with: headstock backends"


class BackendRegistry:
    """All backends on offer, in an order that does not depend on who was found first.

    A name means the backend that has it, whatever case and ``-`` or ``_``; else the one it is an alias of. Where two
    packages offer it, using the name alone is an error: ``package:name`` says which. A built-in backend keeps its name.
    """

    def __init__(self, records: Iterable[PluginRecord], guard: Guard | None = None) -> None:
        self._guard = guard or Guard()
        ours = [r for r in records if r.group == BACKENDS]
        owners: defaultdict[str, list[PluginRecord]] = defaultdict(list)
        for record in ours:
            owners[key(record.name)].append(record)
        self._offers = [Offer(r, _label(r, owners[key(r.name)]), self._guard) for r in ours]

    @property
    def offers(self) -> tuple[Offer, ...]:
        return tuple(self._offers)

    def register(self, name: str, cls: type[AttentionBackend[Any]]) -> Offer:
        """Offer a class of the running program, without a package. Doing it again with the same class changes nothing.

        Raises `BackendError` where the name is taken or the class is no backend.
        """
        target = f"{cls.__module__}:{cls.__qualname__}"
        for offer in self._offers:
            if key(offer.record.name) == key(name):
                if offer.load() is cls:
                    return offer
                raise BackendError(f'"{name}" is taken: {offer.record.package} offers {offer.record.target} under it.')
        record = PluginRecord(group=BACKENDS, name=name, target=target, distribution="this program", version="")
        if problem := objection(cls, record):
            raise BackendError(f'"{name}" cannot be registered: {problem}.')
        self._offers.append(Offer(record, name, self._guard, lambda: cls))
        return self._offers[-1]

    def find(self, name: str) -> Offer:
        """The backend called `name`, not necessarily one that can run.

        Raises `BackendError` where it is offered twice, or not known: with suggestions, and why others are unavailable.
        """
        matches = self._matches(name)
        if len(matches) > 1:
            raise BackendError(_offered_twice(name, matches))
        if not matches:
            raise BackendError(self._unknown(name))
        (offer,) = matches
        for rival in self._offers:
            if offer.record.builtin and not rival.record.builtin and key(rival.record.name) == key(offer.record.name):
                self._guard.warn(
                    f'{rival.record.package} offers a backend under the built-in name "{offer.label}"; '
                    f"it is used only when asked for as {rival.label}"
                )
        return offer

    def get(self, name: str) -> Offer | None:
        """The backend called `name`, or None where that is not known or not clear."""
        matches = self._matches(name)
        return matches[0] if len(matches) == 1 else None

    def _matches(self, name: str) -> list[Offer]:
        """The offers that `name` can mean; a disabled one only where there is no other."""
        wanted = key(name)
        found = [o for o in self._offers if key(o.record.name) == wanted]
        if not found and ":" in wanted:
            package, _, rest = wanted.partition(":")
            home = canonicalize_name(package)
            wanted_here = (rest, ALIASES.get(rest))
            found = [
                o
                for o in self._offers
                if canonicalize_name(o.record.distribution) == home and key(o.record.name) in wanted_here
            ]
        if not found and wanted in ALIASES:
            return self._matches(ALIASES[wanted])
        enabled = [o for o in found if o.record.status != "disabled"] or found
        return [o for o in enabled if o.record.builtin] or enabled

    def _unknown(self, name: str) -> str:
        """What to say to somebody who wrote `name`."""
        by_label = {offer.label: offer for offer in self._offers}
        lines = [f'attention backend "{name}" is not known: no installed package offers it.']
        alias = ALIASES.get(key(name))
        if alias:
            lines.append(f'it is another name of "{alias}", which is not installed.')
        elif near := nearest(name, [*by_label, *(a for a in ALIASES if self.get(a))]):
            meant = [offer.label for n in near if (offer := self.get(n))]
            lines.append(f"did you mean: {', '.join(dict.fromkeys(meant))}")
        known = [f"{label}{self._unavailable(offer)}" for label, offer in sorted(by_label.items())]
        lines.append(f"known here: {', '.join(known) or 'none'}")
        if not any(offer.record.builtin for offer in self._offers):
            lines.append("headstock's own backends are missing from its metadata; reinstall it: pip install headstock")
        return "\n  ".join([*lines, HOW_TO_LIST])

    def _unavailable(self, offer: Offer) -> str:
        cls = offer.load()
        if cls is None:
            return f" (unavailable: {offer.forbids()})"
        from ..core.attention import Availability

        here = self._guard.ask(cls.availability, Availability)
        reasons = (str(here),) if isinstance(here, Failure) else here.reasons
        return f" (unavailable: {'; '.join(reasons)})" if reasons else ""


def _label(record: PluginRecord, owners: list[PluginRecord]) -> str:
    """The name alone where it is clear who is meant by it."""
    if record.builtin or len(owners) == 1:
        return record.name
    return f"{canonicalize_name(record.distribution)}:{record.name}"


def _offered_twice(name: str, matches: list[Offer]) -> str:
    lines = [f'attention backend "{name}" is offered by more than one:']
    lines += [f"{o.label} is {o.record.target} of {o.record.package}" for o in matches]
    if len({key(o.label) for o in matches}) == len(matches):
        lines.append(f"say which, e.g. {matches[0].label}, or switch one off: HEADSTOCK_DISABLE_PLUGINS=PACKAGE")
    else:
        lines.append("the package offers it twice under names that differ only in case, - or _; it has to be repaired")
    return "\n  ".join(lines)
