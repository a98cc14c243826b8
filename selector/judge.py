"""`Judge`: whether a backend can serve a layer on one device, and everything that speaks against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from ..core.attention import (
    AttentionSpec,
    Availability,
    Capabilities,
    Device,
    KVLayout,
    Mismatch,
    Sizes,
    kernel_block,
    mismatches,
)
from ..core.attention.subdivided import LAYOUT as DIVISIBLE
from ..core.errors import BackendError, InvalidInput
from ..plugins import Failure, Guard, Offer
from .replacement import OPTION, Replacement, takes_ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all layers of a model have to agree on; None is still open."""

    block_size: int | None = None
    layout: str | None = None


class Judge:
    """Asks backends, each thing once, for one selection on one device."""

    def __init__(
        self,
        device: Device,
        layouts: Mapping[str, KVLayout],
        options: Mapping[Offer, Mapping[str, object]],
        guard: Guard,
        unbuilt: Mapping[Offer, str],
        block_size: int | None = None,
        ops: Mapping[str, Replacement] | None = None,
    ) -> None:
        self.device = device
        self.layouts = layouts
        self._asked_options = options
        self._guard = guard
        self._unbuilt = unbuilt
        """Why some could not be built on this machine."""
        self._block_size = block_size
        """What was asked for: a backend may read it in smaller blocks."""
        self.ops = ops or {}
        """Functions in the place of ops, for every backend that calls those."""
        self._standing: dict[Offer, tuple[tuple[str, ...], Capabilities]] = {}
        self._reasons: dict[tuple[Offer, AttentionSpec, Terms], tuple[str, ...]] = {}
        self._options: dict[tuple[Offer, str], Any] = {}

    def standing(self, offer: Offer) -> tuple[tuple[str, ...], Capabilities]:
        """What speaks against a backend on this device whatever the layer; and what it can do, where nothing does.

        Whether its libraries are installed is of no matter for a device that is not here.
        """
        if offer not in self._standing:
            self._standing[offer] = self._ask(offer)
        return self._standing[offer]

    def reasons(self, offer: Offer, spec: AttentionSpec, terms: Terms) -> tuple[str, ...]:
        """Everything that speaks against giving `offer` a layer like `spec` under `terms`; empty means it fits."""
        found = self._reasons.get((offer, spec, terms))
        if found is None:
            found = self._reasons[offer, spec, terms] = self._weigh(offer, spec, terms)
        return found

    def options(self, offer: Offer, tuned: Mapping[str, Any] | None = None) -> Any:
        """The options a backend gets: the user's, then `tuned` ones; raises `InvalidInput` where it refuses them."""
        asked = (offer, repr(tuned))
        if asked not in self._options:
            parsed = self._parsed_options(offer, tuned or {})
            if isinstance(parsed, Failure):
                raise InvalidInput(f"attention_backend_config[{offer.label!r}]", _text(parsed))
            self._options[asked] = parsed
        return self._options[asked]

    def layouts_of(self, offer: Offer, spec: AttentionSpec | None = None) -> tuple[str, ...]:
        """The layouts it reads and we know, best first; of those, the ones that hold layers like `spec`."""
        known = tuple(name for name in self.standing(offer)[1].layouts if name in self.layouts)
        return known if spec is None else tuple(name for name in known if not self._unheld(name, spec))

    def kernel_block(self, offer: Offer, block_size: int) -> int:
        """Blocks that a backend reads where the cache's are of `block_size`: smaller ones only of a size asked for."""
        offered = self.standing(offer)[1]
        if block_size != self._block_size or block_size in offered.block_sizes or DIVISIBLE not in offered.layouts:
            return block_size
        return kernel_block(block_size, offered.block_sizes) or block_size

    def replacements(self, offer: Offer) -> tuple[Replacement, ...]:
        """The functions that the user or a package puts in the place of ops that it may call, and who says so.

        Raises `BackendError` where its options do not tell.
        """
        if (cls := offer.load()) is None or not takes_ops(cls):
            return ()
        options, origin = self.options(offer), f"option of {offer.label}"
        targets = self._guard.attempt(lambda: dict(getattr(options, OPTION)))
        if isinstance(targets, Failure):
            raise BackendError(f"option {OPTION} of {offer.label} does not map ops to functions: {targets}")
        own = dict(cast("Any", self._asked_options.get(offer, {}).get(OPTION, ())))
        return tuple(
            Replacement(op=op, target=target, origin=origin) if op in own else self.ops[op]
            for op, target in targets.items()
            if op in own or op in self.ops
        )

    def called(self, offer: Offer, spec: AttentionSpec) -> tuple[str, ...]:
        """The ops that it may call for such a layer; raises `BackendError` where it does not tell."""
        cls = offer.load()
        assert cls is not None  # only what was found to fit is asked
        options = self.options(offer)
        found = self._guard.attempt(lambda: tuple(cls.ops(spec, self.device, options)))
        if isinstance(found, Failure):
            raise BackendError(f"ops() raised {found}")
        return found

    def unusable(self, offer: Offer, replacement: Replacement) -> str:
        """Why a function cannot take the place of an op that the backend calls; empty where it can."""
        cls = offer.load()
        assert cls is not None
        loaded = self._guard.attempt(lambda: cls.check_op(replacement.op, replacement.target))
        if not isinstance(loaded, Failure):
            return ""
        return _text(loaded) if isinstance(loaded.error, BackendError) else f"{replacement.target} raised {loaded}"

    def _ask(self, offer: Offer) -> tuple[tuple[str, ...], Capabilities]:
        nothing = Capabilities()
        cls = offer.load()
        if cls is None:
            return (offer.forbids(),), nothing
        missing: tuple[str, ...] = ()
        if not self.device.assumed:
            if offer in self._unbuilt:
                return (self._unbuilt[offer],), nothing
            available = self._guard.ask(cls.availability, Availability)
            if isinstance(available, Failure):
                return (f"availability() raised {available}",), nothing
            missing = available.reasons
        offered = self._guard.ask(lambda: cls.capabilities(self.device), Capabilities)
        if isinstance(offered, Failure):
            return (*missing, f"capabilities() raised {offered}"), nothing
        if wrong := _malformed(offered):
            return (*missing, f"capabilities() are malformed: {wrong}"), nothing
        if offered == nothing:
            return (*missing, f"does not run on {self.device.platform} ({self.device.arch})"), nothing
        if missing:
            return missing, nothing
        if offer not in self._asked_options and isinstance(needed := self._parsed_options(offer, {}), Failure):
            return (f"needs options: {_text(needed)}",), offered
        return (), offered

    def _weigh(self, offer: Offer, spec: AttentionSpec, terms: Terms) -> tuple[str, ...]:
        against, offered = self.standing(offer)
        if against:
            return against
        cls = offer.load()
        assert cls is not None  # standing has loaded it
        asked, divided = spec, False
        if terms.block_size is not None:
            asked = replace(spec, block_size=self.kernel_block(offer, terms.block_size))
            divided = asked.block_size != terms.block_size
        refused = self._guard.attempt(lambda: _mismatches(cls.refusals(asked, self.device)))
        if isinstance(refused, Failure):
            return (f"refusals() raised {refused}",)
        found = [*mismatches(asked, offered), *refused, *self._layout_mismatches(offer, spec, terms, divided)]
        against = tuple(str(m) for m in found if terms.block_size is not None or m.field != "block_size")
        return against or self._ops_trouble(offer, asked)

    def _ops_trouble(self, offer: Offer, spec: AttentionSpec) -> tuple[str, ...]:
        """What goes wrong where a backend is asked which ops it calls."""
        try:
            self.called(offer, spec)
            self.replacements(offer)
        except BackendError as error:
            return (str(error),)
        except InvalidInput:
            return ()  # its options are refused where it is chosen
        return ()

    def _layout_mismatches(self, offer: Offer, spec: AttentionSpec, terms: Terms, divided: bool) -> list[Mismatch]:
        if spec.kv_source != "cache":
            return []
        known = (DIVISIBLE,) if divided else self.layouts_of(offer)
        wanted = [name for name in known if terms.layout in (None, name)]
        if not wanted:
            asked = terms.layout or f"one of {', '.join(self.layouts)}"
            offered = known if divided else self.standing(offer)[1].layouts
            return [Mismatch(field="layout", asked=asked, offered=", ".join(offered) or None)]
        asked = spec if terms.block_size is None else replace(spec, block_size=terms.block_size)
        sized = terms.block_size is not None
        refused = [[m for m in self._unheld(name, asked) if sized or m.field != "block_size"] for name in wanted]
        return [] if not all(refused) else [m for each in refused for m in each]

    def _unheld(self, layout: str, spec: AttentionSpec) -> tuple[Mismatch, ...]:
        """Why the layout cannot hold the K and V of such layers."""
        refused = self._guard.attempt(lambda: _mismatches(self.layouts[layout].refusals(spec)))
        if isinstance(refused, Failure):
            return (Mismatch(field="layout", asked=layout, offered=f"none, its refusals() raised {refused}"),)
        return refused

    def _parsed_options(self, offer: Offer, tuned: Mapping[str, Any]) -> Any:
        cls = offer.load()
        assert cls is not None  # only what can be loaded is asked for options

        def parse() -> object:
            given = dict(tuned) | dict(self._asked_options.get(offer, {}))
            if self.ops and takes_ops(cls) and isinstance(own := given.get(OPTION, {}), Mapping | tuple):
                targets = {op: replacement.target for op, replacement in self.ops.items()}
                given[OPTION] = targets | dict(cast("Mapping[str, str]", own))
            parsed = cls.parse_options(given)
            hash(parsed)  # layers whose backend, spec and options are equal share an instance
            return parsed

        return self._guard.attempt(parse)


def _mismatches(given: Iterable[object]) -> tuple[Mismatch, ...]:
    """What `refusals` gave; raises `TypeError` where it is something else."""
    found: list[Mismatch] = []
    for item in given:
        if not isinstance(item, Mismatch):
            raise TypeError(f"gave {item!r}, not Mismatch")
        found.append(item)
    return tuple(found)


def _malformed(offered: Capabilities) -> str:
    """The first field that has not the type of its default, in words; a plain set will do for a frozen one."""
    for field in fields(Capabilities):
        value: object = getattr(offered, field.name)
        kind = Sizes if field.name == "head_sizes_v" else cast("type[Any]", type(field.default))
        kind = AbstractSet if kind is frozenset else kind
        if not isinstance(value, kind) and not (value is None and field.default is None):
            return f"{field.name} is {value!r}, not {kind.__name__}"
    return ""


def _text(failure: Failure) -> str:
    return str(failure.error) if isinstance(failure.error, InvalidInput | BackendError) else str(failure)
