"""Cases of what the class says of itself: the contract of its methods, and capabilities held to their word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....core.attention import KV_FORMATS, AttentionSpec, Availability, Device, Sizes
from ....core.attention.spec import KINDS, KV_SOURCES, MASKS
from ..broken import Broken, Skipped
from ..case import Draft
from ..ground import DTYPES, GROUPS, Ground, least
from ..judges import PHASES, by_reference
from ..problem import Problem, Rows
from ..rig import Rig
from ..subject import Subject, ask, call

ELSEWHERE = (
    Device(platform="cuda", name="an assumed H100", arch="sm_90", capability=(9, 0), assumed=True),
    Device(platform="rocm", name="an assumed MI300X", arch="gfx942", assumed=True),
    Device(platform="cpu", name="an assumed Arm CPU", arch="aarch64", assumed=True),
    Device(platform="another", name="a device nobody knows", arch="unheard-of", assumed=True),
)
"""Devices that are not here: what a backend can do on them is asked by whoever plans for them."""
LARGEST = 1024
"""Sizes beyond are declared by those who have no limit."""


def contract(ground: Ground, full: bool) -> Iterator[Draft]:
    """Methods of the class."""
    problem = ground.problem()
    yield "capabilities-are-pure", _pure, problem
    yield "capabilities-of-other-devices", _elsewhere, problem
    yield "availability-never-raises", _availability, problem
    yield "options-of-no-options", _options, problem
    yield "refusals-are-mismatches", _refusals, problem


def declared(ground: Ground, full: bool) -> Iterator[Draft]:
    """A sample of each declared value works; what is not declared is refused."""
    caps = ground.capabilities
    mixed = PHASES["mixed"]
    for kind in sorted(caps.kinds & set(KINDS) - {"latent"}):
        for causal in sorted(caps.causal):
            for source in sorted(caps.kv_sources & set(KV_SOURCES)):
                spec = {"kind": kind, "causal": causal, "kv_source": source}
                yield f"{kind}-{'causal' if causal else 'all'}-{source}", by_reference, ground.problem(mixed, spec=spec)
    for layout in caps.layouts:
        yield f"layout-{layout}", by_reference, ground.problem(mixed, spec={"kv_source": "cache"}, layout=layout)
    for name, sizes in {"head_size": caps.head_sizes, "block_size": caps.block_sizes}.items():
        for size in _ends(sizes):
            yield f"{name}-{size}", by_reference, ground.problem(mixed, spec={name: size})
    for size in _ends(caps.group_sizes):
        if size <= GROUPS[-1]:
            yield f"group-{size}", by_reference, ground.problem(mixed, spec={"num_heads": 2 * size})
    queries = caps.decode_query_len
    rows: Rows = ((1, 9), (queries, queries + 7), (queries, 3 * queries + 1), (queries + 1, queries + 20), (6, 6))
    yield f"decode_query_len-{queries}", by_reference, ground.problem(rows, spec={"kv_source": "cache"})
    yield "rows-in-any-order", by_reference, ground.problem(((6, 6), (1, 9), (3, 8), (1, 4)), spec={"causal": True})
    yield "it-stays-declared", _stays, ground.problem()
    yield "the-rest-is-refused", _refuses, ground.problem()
    yield "sizes-mean-what-they-state", _states, ground.problem()
    yield "masks-and-latents", _unchecked, ground.problem()


def _pure(subject: Subject, problem: Problem) -> None:
    if subject.capabilities_on(replace(subject.device)) != subject.capabilities:
        raise Broken("capabilities() of an equal device gave something else the second time")


def _stays(subject: Subject, problem: Problem) -> None:
    Rig(subject, problem).solve(problem)
    if subject.capabilities_on(subject.device) != subject.capabilities:
        raise Broken("capabilities() gives something else now that the backend was used")


def _elsewhere(subject: Subject, _: Problem) -> None:
    for device in ELSEWHERE:
        subject.capabilities_on(device)


def _availability(subject: Subject, _: Problem) -> None:
    ask("availability()", subject.cls.availability, Availability)


def _options(subject: Subject, _: Problem) -> None:
    if subject.options is None:
        hash(call("parse_options", lambda: subject.cls.parse_options({})))


def _refusals(subject: Subject, problem: Problem) -> None:
    for changes in ({}, {"causal": False}, {"window": (7, 0)}, {"softcap": 5.0}, {"sinks": True}, {"alibi": True}):
        subject.objections(replace(problem.spec, **changes))


def _refuses(subject: Subject, problem: Problem) -> None:
    """The vocabulary of specs, value by value: what capabilities leave out is objected to."""
    caps, spec = subject.capabilities, problem.spec
    asked: list[tuple[str, AttentionSpec]] = []
    for dtype in DTYPES:
        if dtype not in caps.dtypes:
            asked.append((f"dtype {dtype}", replace(spec, dtype=dtype)))
    for name in KV_FORMATS.keys() - caps.kv_formats:
        asked.append((f"KV format {name}", replace(spec, kv_format=name, kv_scales="none")))
    for kind in set(KINDS) - caps.kinds:
        asked.append((f"kind {kind}", replace(spec, kind=kind)))
    for source in set(KV_SOURCES) - caps.kv_sources:
        asked.append((f"kv_source {source}", replace(spec, kv_source=source)))
    for mask in set(MASKS) - caps.masks:
        asked.append((f"mask {mask}", replace(spec, masks=frozenset({mask}))))
    flags = {"softcap": 5.0, "alibi": True, "sinks": True, "lse": True, "batch_invariant": True}
    asked += [(name, replace(spec, **{name: value})) for name, value in flags.items() if not getattr(caps, name)]
    if not caps.any_scale:
        asked.append(("a scale of 0.777", replace(spec, scale=0.777)))
    if "left" not in caps.windows:
        asked.append(("a window", replace(spec, window=(3, 0))))
    for causal in {True, False} - caps.causal:
        asked.append((f"causal {causal}", replace(spec, causal=causal)))
    for what, unwanted in asked:
        if not subject.objections(unwanted):
            raise Broken(f"{what} is not declared, and yet nothing objects to it")


def _states(subject: Subject, _: Problem) -> None:
    """`Sizes` hold what their own fields say, since that is what people are told."""
    caps = subject.capabilities
    for name in ("head_sizes", "head_sizes_v", "group_sizes", "block_sizes"):
        sizes: Sizes | None = getattr(caps, name)
        if sizes is None:
            continue
        plain = Sizes(low=sizes.low, high=sizes.high, multiple_of=sizes.multiple_of, only=sizes.only)
        for n in (*range(1, 300), 512, 576, 1000, 1024, 4096):
            if (n in sizes) != (n in plain):
                raise Broken(f"{name} states {plain}, and yet {n} is {'taken' if n in sizes else 'refused'}")


def _unchecked(subject: Subject, _: Problem) -> None:
    caps = subject.capabilities
    beyond = [*(f"mask {m}" for m in sorted(caps.masks)), *(f"latent {pair}" for pair in sorted(caps.latents))]
    if beyond:
        raise Skipped(f"declared, but beyond what this kit can check: {', '.join(beyond)}")


def _ends(sizes: Sizes) -> list[int]:
    """The least declared size and the largest, as far as it is worth a run."""
    most = min(sizes.high or LARGEST, max(sizes.only, default=LARGEST) if sizes.only is not None else LARGEST, LARGEST)
    largest = next((n for n in range(most, 0, -1) if n in sizes), None)
    endless = sizes.high is None and sizes.only is None
    return sorted({*least(sizes), *([] if largest is None or endless else [largest])})
