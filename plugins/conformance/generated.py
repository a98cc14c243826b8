"""Made-up cases: ragged batches over everything that the backend declares, each from the seed and its number."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from ...core.attention import AttentionSpec, Capabilities
from .case import MIXED, Case
from .cases.numbers import formats
from .ground import Ground, samples
from .judges import by_step
from .problem import Problem, parse_problem

TRIES = 20
"""How often a problem that the backend refuses is drawn anew."""


def generated_cases(ground: Ground, count: int, seed: int) -> Iterator[Case]:
    """`count` cases; the same for equal seeds and capabilities."""
    for number in range(count):
        yield mixed_case(str(draw(ground, Random(f"{seed}/{number}"))))


def mixed_case(text: str) -> Case:
    """The case of a problem as text, which is its name; raises `InvalidInput` where it cannot be read."""
    return Case(convention=MIXED, name=text, problem=parse_problem(text), judge=by_step)


def draw(ground: Ground, rng: Random) -> Problem:
    """A problem that the backend has to solve."""
    for _ in range(TRIES):
        spec = _spec(ground, rng)
        problem = _problem(ground, spec, rng)
        if not ground.subject.reasons(problem):
            return problem
    return ground.problem(seed=rng.randrange(1000))


def _spec(ground: Ground, rng: Random) -> AttentionSpec:
    caps = ground.capabilities
    kv_heads = rng.randint(1, 3)
    values: dict[str, Any] = {
        "dtype": ground.fields["dtype"] if rng.random() < 0.6 else rng.choice(sorted(caps.dtypes)),
        "num_kv_heads": kv_heads,
        "num_heads": kv_heads * rng.choice(samples(caps.group_sizes, (1, 2, 3, 4, 5))),
        "head_size": rng.choice(samples(caps.head_sizes, (1, 8, 16, 24, 40, 64))),
        "kv_source": "cache"
        if "cache" in caps.kv_sources and rng.random() < 0.8
        else rng.choice(sorted(caps.kv_sources)),
        "kind": rng.choice(sorted(caps.kinds - {"latent"}) or ["decoder"]),
        "causal": rng.choice(sorted(caps.causal)),
        "block_size": rng.choice(samples(caps.block_sizes, (1, 2, 4, 5, 16, 32)) or [16]),
    }
    values |= {
        name: value for name, value in _features(caps, rng, causal=values["causal"]).items() if value is not None
    }
    if caps.head_sizes_v is not None and rng.random() < 0.3:
        values["head_size_v"] = rng.choice(samples(caps.head_sizes_v, (1, 5, 8, 16, 32)))
    if values["kv_source"] == "cache" and rng.random() < 0.4:
        values["kv_format"], values["kv_scales"] = rng.choice(list(formats(caps)))
    return ground.spec(**values)


def _features(caps: Capabilities, rng: Random, *, causal: bool) -> dict[str, Any]:
    """Features that are declared, each on in some of the cases; None is off."""

    def sometimes(declared: object, share: float, value: object) -> object:
        return value if declared and rng.random() < share else None

    left = rng.choice((0, 1, 2, 3, 7, 15, 40))
    right = 0 if causal else -1 if "right" not in caps.windows else rng.choice((-1, 0, 1, 5))
    return {
        "window": sometimes("left" in caps.windows, 0.4, (left, right)),
        "scale": sometimes(caps.any_scale, 0.3, round(rng.uniform(0.05, 1.2), 3)),
        "softcap": sometimes(caps.softcap, 0.25, rng.choice((0.5, 2.0, 20.0))),
        "alibi": sometimes(caps.alibi, 0.2, True),
        "sinks": sometimes(caps.sinks, 0.25, True),
        "lse": sometimes(caps.lse, 0.4, True),
    }


def _problem(ground: Ground, spec: AttentionSpec, rng: Random) -> Problem:
    caps = ground.capabilities
    cached = spec.kv_source == "cache"
    rows = [_row(rng, zero=caps.zero_length_rows) for _ in range(rng.choice((1, 2, 3, 4, 6)))]
    if rng.random() < 0.8:
        rows.sort(key=lambda row: 2 if row[0] >= row[1] else int(row[0] > caps.decode_query_len))
    layouts = [name for name in caps.layouts if name in ground.subject.layouts]
    return Problem(
        spec=spec,
        rows=tuple(rows),
        layout=rng.choice(layouts) if layouts else ground.layout,
        seed=rng.randrange(1000),
        placement=rng.choice((0, 1, 2, -1, -2)),
        padded_rows=rng.choice((1, 4)) if cached and rng.random() < 0.15 else 0,
        padded_queries=rng.randint(0, 1),
        strided=rng.random() < 0.2,
        shared=cached and rng.random() < 0.15,
        loose=not caps.exact_seq_lens and rng.random() < 0.3,
    )


def _row(rng: Random, *, zero: bool) -> tuple[int, int]:
    """A decode, an extend or a prefill, at times one of no query, of no key, or of more queries than keys."""
    keys = rng.choice((rng.randint(1, 12), rng.randint(1, 40), rng.randint(30, 90)))
    sort = rng.random()
    if zero and sort < 0.06:
        return rng.choice(((0, keys), (rng.randint(1, 3), 0), (0, 0)))
    if sort < 0.1:
        return keys % 7 + rng.randint(1, 3), keys % 7 or 1
    if sort < 0.5:
        return 1, keys
    return (min(keys, 12), min(keys, 12)) if sort > 0.8 else (min(keys, rng.randint(1, 12)), keys)
