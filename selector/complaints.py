"""What to say where no selection can be made: what was asked, every reason against it, and only such advice as holds.

The form is that of xformers' dispatch, which lists each operator's own reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.attention import Device
from ..plugins import Offer
from .judge import Judge
from .settle import Pick, Refusal


def named(layers: Sequence[str]) -> str:
    """``"model.layers.0.attn"``, or that and how many more."""
    more = len(layers) - 1
    return layers[0] if not more else f"{layers[0]} and {more} more layer{'s' if more > 1 else ''}"


def place(device: Device) -> str:
    """Where it would run, and whether that is only assumed."""
    return f"{device.name} ({device.platform}, {device.arch}{', a profile' if device.assumed else ''})"


def refused(refusals: Iterable[Refusal], judge: Judge, offers: Sequence[Offer], ranking: Sequence[Offer]) -> str:
    """A paragraph for each refusal. `offers` are all backends; those in `ranking` are chosen automatically."""
    return "\n".join(
        line
        for refusal in refusals
        for line in (
            _named_refused(refusal, refusal.task.named, judge, offers)
            if refusal.task.named
            else _none_fits(refusal, judge, offers, ranking)
        )
    )


def disputed(picks: Sequence[Pick], judge: Judge) -> str:
    """The picks do not agree on a block size or layout: both sides."""
    sizes = {pick: judge.standing(pick.offer)[1].block_sizes for pick in picks if pick.task.spec.kv_source == "cache"}
    layouts = {pick: judge.layouts_of(pick.offer, pick.task.spec) for pick in sizes}
    if not any(all(name in layouts[pick] for pick in sizes) for name in judge.layouts):
        what, offer = "layout of the KV cache", {pick: ", ".join(names) for pick, names in layouts.items()}
    else:
        what, offer = "block size", {p: str(s) for p, s in sizes.items()}
    lines = [f"the attention backends do not agree on a {what}:"]
    lines += [f"  {_part(pick)}: {offer[pick]}" for pick in sizes]
    return "\n".join([*lines, "  choose others that share one, or leave a choice to auto"])


def _part(pick: Pick) -> str:
    phase = f"{pick.task.phase} of " if pick.task.phase else ""
    return f"{pick.offer.label} for {phase}{named(pick.task.layers)}"


def _named_refused(refusal: Refusal, asked: Offer, judge: Judge, offers: Sequence[Offer]) -> list[str]:
    task = refusal.task
    phase = f" in {task.phase}" if task.phase else ""
    lines = [f'attention backend "{asked.label}", chosen by {task.origin}, cannot serve {named(task.layers)}{phase}']
    lines[0] += f" on {place(judge.device)}:"
    lines += [f"  {reason}" for reason in judge.reasons(asked, task.spec, refusal.terms)]
    others = {o: judge.reasons(o, task.spec, refusal.terms) for o in offers if o is not asked}
    fitting = [o.label for o, reasons in others.items() if not reasons]
    if fitting:
        return [*lines, f"  these can: {', '.join(fitting)}"]
    if others:
        lines.append("  no other can:")
    return lines + [f"    {o.label}: {'; '.join(reasons)}" for o, reasons in others.items()]


def _none_fits(refusal: Refusal, judge: Judge, offers: Sequence[Offer], ranking: Sequence[Offer]) -> list[str]:
    task = refusal.task
    lines = [f"no attention backend is chosen automatically for {named(task.layers)} on {place(judge.device)}:"]
    others = [o for o in offers if o not in ranking]
    by_name: list[str] = []
    for offer in (*ranking, *others):
        reasons = judge.reasons(offer, task.spec, refusal.terms)
        if reasons:
            lines.append(f"  {offer.label}: {'; '.join(reasons)}")
        else:
            by_name.append(offer.label)
    if by_name:
        lines.append(f"  these can, when asked for by name: {', '.join(by_name)}")
    return lines
