"""`Problem`: one attention problem as a value, from which every tensor follows; and its form as a line of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from ...core.attention import AttentionSpec
from ...core.errors import InvalidInput
from .fills import FILLS

Rows = tuple[tuple[int, int], ...]
POISON = {"any": float("nan"), "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "zero": 0.0}
"""What may lie where no sequence's data do, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A layer, a batch for it, and how their data lie in memory. Equal problems have equal data."""

    spec: AttentionSpec
    rows: Rows
    """(queries, keys) of each row; the queries are the last of the keys' tokens."""
    fill: str = "normal"
    """What q, k and v hold: a name in `fills.FILLS`."""
    layout: str = "nhd"
    seed: int = 0
    placement: int = 0
    """Seed of the order in which blocks are handed out; -1 is consecutive, -2 consecutive from the end."""
    poison: str = "any"
    """What lies in slots that no sequence owns: ``nan``, ``inf``, ``-inf`` or ``zero``; ``any`` is NaN, or zero for a
    backend that needs a zeroed cache."""
    padded_rows: int = 0
    """Rows past `num_reqs`, as a graph's batch has them."""
    padded_queries: int = 0
    """Query tokens of each of those: 0 or 1."""
    strided: bool = False
    """q, k, v and out are parts of wider tensors."""
    shared: bool = False
    """The layer reads another's cache: `key` and `value` are None."""
    loose: bool = False
    """The host knows only upper bounds of the lengths."""
    sink: float | None = None
    """The sink logit of every head; None draws one for each."""
    k_scale: float = 0.043
    """Scale of K, of the first head where there is one a head; later heads have other ones."""
    v_scale: float = 0.061

    @property
    def num_tokens(self) -> int:
        """Query tokens that are real."""
        return sum(q for q, _ in self.rows)

    @property
    def padded_tokens(self) -> int:
        """Query tokens of padding."""
        return self.padded_rows * max(self.padded_queries, 1)

    def __str__(self) -> str:
        """As `parse_problem` reads it: what differs from the defaults, comma-separated."""
        words = [f"{key}={show(getattr(self, name))}" for key, (name, _, show) in OWN.items() if name in _changed(self)]
        spec = _changed(self.spec)
        return ",".join(
            words + [f"{key}={show(getattr(self.spec, n))}" for key, (n, _, show) in SPEC.items() if n in spec]
        )


def parse_problem(text: str) -> Problem:
    """The problem that `text` stands for; raises `InvalidInput` naming what cannot be read."""
    spec: dict[str, Any] = dict(SMALL)
    own: dict[str, Any] = {"rows": ((1, 1),)}
    for item in text.split(","):
        key, equals, value = item.partition("=")
        if not equals or key not in OWN | SPEC:
            raise InvalidInput("case", f"{item!r} is no part of a problem; known are {', '.join([*OWN, *SPEC])}")
        name, parse, _ = (OWN | SPEC)[key]
        try:
            (own if key in OWN else spec)[name] = parse(value)
        except ValueError as error:
            raise InvalidInput("case", f"{item!r} cannot be read: {error}") from error
    return Problem(spec=AttentionSpec(**spec), **own)


def _changed(value: Problem | AttentionSpec) -> set[str]:
    """Names of the fields that are not as they would be if nothing had been said."""
    if isinstance(value, Problem):
        silent: dict[str, Any] = {f.name: f.default for f in fields(Problem)}
    else:
        plain = AttentionSpec(**SMALL | {name: getattr(value, name) for name in SMALL})
        silent = {f.name: getattr(plain, f.name) for f in fields(AttentionSpec)} | SMALL
    return {name for name, default in silent.items() if getattr(value, name) != default}


def _rows(text: str) -> Rows:
    pairs = [part.split("x") for part in text.split("+")]
    rows = tuple((int(queries), int(keys)) for queries, keys in pairs)
    if min(map(min, rows)) < 0:
        raise ValueError("a row is QUERIESxKEYS")
    return rows


def _one_of(known: Iterable[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"{text!r} is not one of {', '.join(known)}")
        return text

    return parse


def _flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("it is yes or no")
    return text == "yes"


def _window(text: str) -> tuple[int, int]:
    left, right = text.split(":")
    return int(left), int(right)


def _show_rows(rows: Rows) -> str:
    return "+".join(f"{queries}x{keys}" for queries, keys in rows)


def _show_flag(value: bool) -> str:
    return "yes" if value else "no"


def _show_window(window: tuple[int, int]) -> str:
    return f"{window[0]}:{window[1]}"


SMALL: dict[str, Any] = {"num_heads": 1, "num_kv_heads": 1, "head_size": 16, "dtype": "float32"}
"""What a line of text means that does not say otherwise."""
Words = dict[str, tuple[str, Callable[[str], Any], Callable[[Any], str]]]
"""Key in the text → field, how it is read, how it is written."""
OWN: Words = {
    "rows": ("rows", _rows, _show_rows),
    "fill": ("fill", _one_of(FILLS), str),
    "layout": ("layout", str, str),
    "seed": ("seed", int, str),
    "placement": ("placement", int, str),
    "poison": ("poison", _one_of(POISON), str),
    "pad": ("padded_rows", int, str),
    "padq": ("padded_queries", int, str),
    "strided": ("strided", _flag, _show_flag),
    "shared": ("shared", _flag, _show_flag),
    "loose": ("loose", _flag, _show_flag),
    "sink": ("sink", float, repr),
    "kscale": ("k_scale", float, repr),
    "vscale": ("v_scale", float, repr),
}
SPEC: Words = {
    "hq": ("num_heads", int, str),
    "hkv": ("num_kv_heads", int, str),
    "d": ("head_size", int, str),
    "dv": ("head_size_v", int, str),
    "dtype": ("dtype", str, str),
    "kv": ("kv_format", str, str),
    "scales": ("kv_scales", str, str),
    "block": ("block_size", int, str),
    "kind": ("kind", str, str),
    "source": ("kv_source", str, str),
    "causal": ("causal", _flag, _show_flag),
    "window": ("window", _window, _show_window),
    "scale": ("scale", float, repr),
    "softcap": ("softcap", float, repr),
    "alibi": ("alibi", _flag, _show_flag),
    "sinks": ("sinks", _flag, _show_flag),
    "lse": ("lse", _flag, _show_flag),
    "invariant": ("batch_invariant", _flag, _show_flag),
}
