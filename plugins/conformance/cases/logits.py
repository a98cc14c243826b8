"""Cases of what happens to a logit: scale, range, softcap, ALiBi."""

from __future__ import annotations

from collections.abc import Iterator

from ..case import Draft
from ..closed_forms import first_key_share, probe_means, probe_with_alibi
from ..ground import Ground
from ..judges import IN_SPLITS, PHASES, by_closed_form, by_reference, closed, constant, phases
from ..problem import Rows

BY_SHARE = by_closed_form(first_key_share)
LONG: Rows = ((1, 70), (1, 33), (4, 40), (21, 21))


def scale(ground: Ground, full: bool) -> Iterator[Draft]:
    """A first key whose logit is the scale among keys whose logits are 0."""
    for name, value in {"usual": 0.0, "one": 1.0, "small": 0.07, "large": 2.5}.items():
        for phase, problem in phases(ground, "first", causal=True, scale=value):
            yield f"{name}-{phase}", BY_SHARE, problem


def range_(ground: Ground, full: bool) -> Iterator[Draft]:
    """All logits are ±1024, and the weights equal all the same."""
    for phase, problem in phases(ground, "huge", causal=True):
        yield phase, by_closed_form(probe_means), problem
    # q·k is 102400, beyond float16, and the logit again 1024.
    for phase, problem in phases(ground, "huge", causal=True, dtype="float16", scale=0.01):
        yield f"before-the-scale-{phase}", by_closed_form(probe_means), problem
    yield "spread", by_reference, ground.problem(LONG, spec={"scale": 20.0})


def softcap(ground: Ground, full: bool) -> Iterator[Draft]:
    """Caps near the logits; before the mask, which a cap would turn into a weight; off where it is 0."""
    for phase, problem in phases(ground, "first", causal=True, scale=3.0, softcap=1.0):
        yield f"bends-{phase}", BY_SHARE, problem
    for phase, problem in phases(ground, causal=True, softcap=1.0):
        yield f"before-the-mask-{phase}", by_closed_form(probe_means), problem
    # Logits 30 and 20 under a cap of 10: sigmoid(10 tanh 3 - 10 tanh 2).
    yield (
        "thirty-and-twenty",
        by_closed_form(constant(0.576947)),
        closed(ground, ((1, 2),), "steep", causal=True, scale=1.0, softcap=10.0),
    )
    yield (
        "off",
        by_closed_form(constant(0.999955)),
        closed(ground, ((1, 2),), "steep", causal=True, scale=1.0, softcap=0.0),
    )
    for value in (0.5, 30.0):
        yield f"random-{value:g}", by_reference, ground.problem(LONG, spec={"softcap": value, "scale": 0.9})
    yield (
        "with-a-window",
        by_reference,
        ground.problem(LONG, spec={"softcap": 1.0, "causal": True, "window": (6, 0), "scale": 0.9}),
    )


def alibi(ground: Ground, full: bool) -> Iterator[Draft]:
    """Weights e^(-slope * distance) over a uniform probe, in both directions."""
    for phase, problem in phases(ground, causal=True, alibi=True):
        yield f"causal-{phase}", by_closed_form(probe_with_alibi), problem
    for phase, rows in PHASES.items():
        problem = closed(ground, rows, causal=False, alibi=True, kv_source="cache")
        yield f"both-sides-{phase}", by_closed_form(probe_with_alibi), problem
    in_splits = closed(ground, IN_SPLITS, causal=True, alibi=True)
    yield "in-splits", by_closed_form(probe_with_alibi), in_splits
    yield "random", by_reference, ground.problem(LONG, spec={"alibi": True})
    yield "with-a-window", by_reference, ground.problem(LONG, spec={"alibi": True, "causal": True, "window": (6, 0)})
    yield "after-the-softcap", by_reference, ground.problem(LONG, spec={"alibi": True, "softcap": 1.0, "scale": 0.9})
