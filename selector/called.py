"""Functions in the place of ops, held against the layers that would call them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ..core.attention import AttentionSpec
from ..core.errors import BackendError, InvalidInput
from ..plugins import Offer
from .judge import Judge, Terms
from .replacement import FLAG, Replacement

Served = tuple[Offer, AttentionSpec]
"""A backend, and a layer that it computes."""


def replaced(judge: Judge, served: Iterable[Served]) -> dict[tuple[Offer, str], Replacement]:
    """The functions that these layers will call, by backend and op."""
    found: dict[tuple[Offer, str], Replacement] = {}
    for offer, spec in served:
        own = {r.op: r for r in judge.replacements(offer)}
        found |= {(offer, op): own[op] for op in judge.called(offer, spec) if op in own}
    return found


def noted(judge: Judge, served: Iterable[Served]) -> tuple[str, ...]:
    """What the log should say of them."""
    return tuple(
        f"{offer.label} calls {r.target} in the place of {r.op}; why: {r.origin}"
        for (offer, _), r in replaced(judge, served).items()
    )


def check_called(judge: Judge, served: Sequence[Served], others: Iterable[Offer] = ()) -> None:
    """Raise `BackendError` for a function that the user asked for and that no layer would call.

    Those of `others` that would are named.
    """
    calls: dict[Offer, set[str]] = {}
    for offer, spec in served:
        calls.setdefault(offer, set()).update(judge.called(offer, spec))
    wanted = [(r, calls) for r in judge.ops.values() if r.origin == FLAG]
    wanted += [
        (r, {offer: ops})
        for offer, ops in calls.items()
        for r in judge.replacements(offer)
        if r.record is None and r.origin != FLAG
    ]
    for replacement, callers in wanted:
        if not any(replacement.op in ops for ops in callers.values()):
            raise BackendError(_uncalled(replacement, callers) + _advice(judge, served, others, replacement.op))


def first_broken(judge: Judge, served: Iterable[Served]) -> tuple[Replacement, str] | None:
    """Load the functions that these layers will call: the first that cannot be used, and why."""
    for (offer, _), replacement in replaced(judge, served).items():
        if problem := judge.unusable(offer, replacement):
            return replacement, f"{problem} (why: {replacement.origin})"
    return None


def require(judge: Judge, served: Sequence[Served]) -> None:
    """Raise `BackendError` for a function that was asked for and is not called, or is called and cannot be used."""
    check_called(judge, served)
    if found := first_broken(judge, served):
        raise BackendError(found[1])


def _uncalled(replacement: Replacement, callers: Mapping[Offer, AbstractSet[str]]) -> str:
    does = "; ".join(f"{offer.label} calls {', '.join(sorted(ops)) or 'no op'}" for offer, ops in callers.items())
    return (
        f"{replacement.target}, asked for in the place of {replacement.op} by {replacement.origin}, would never be "
        f"called: {does or 'there is no layer'}"
    )


def _advice(judge: Judge, served: Iterable[Served], others: Iterable[Offer], op: str) -> str:
    specs = dict.fromkeys(spec for _, spec in served)
    could = [other.label for other in others if any(_would_call(judge, other, spec, op) for spec in specs)]
    return f"\n  these call {op}, where they are chosen: {', '.join(could)}" if could else ""


def _would_call(judge: Judge, offer: Offer, spec: AttentionSpec, op: str) -> bool:
    if judge.reasons(offer, spec, Terms()):
        return False
    try:
        return op in judge.called(offer, spec)
    except InvalidInput:  # its options are wrong, and nobody chose it
        return False
