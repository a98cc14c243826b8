"""`Policy`: what the user wants, as a value, and what that means for each layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from ..core.attention import AttentionSpec
from ..core.attention.spec import KINDS
from ..core.errors import InvalidInput
from ..plugins.environment import ATTENTION_BACKEND
from ..plugins.names import AUTO, key, nearest

Level = Literal["layer", "kind", "phase"]
LEVELS: tuple[Level, ...] = ("layer", "kind", "phase")
"""Which goes first; after them come the flag and the environment."""
PHASES = ("decode", "prefill")
MASKED = "masked"
"""A further phase, of layers with extra masks: the rows that have one. Others give it to the backend of the rest."""
Wishes = tuple["Wish | None", "Wish | None", "Wish | None"]
"""For decode rows, for other rows, and for rows with an extra mask."""
REACH = ("full", "window")
"""Kinds of layer by what they see."""
KIND_ALIASES = {
    "full_attention": "full",
    "sliding": "window",
    "sliding_window": "window",
    "sliding_attention": "window",
}
"""What model configurations call them."""
INDICES = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A backend that was asked for."""

    backend: str
    """As the user wrote it."""
    origin: str
    """Who asked: ``"flag (sdpa)"``, ``"kind (window)"``…"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of a policy: backends for the layers that its key names."""

    level: Level
    key: str
    """A layer's name or a pattern (``model.layers.*``), layer numbers (``0,4-7``), a kind, or a phase."""
    backends: Mapping[str, str]
    """Backend by phase; a phase that is not in it is left to other rules."""

    def matches(self, layer: str, position: int, spec: AttentionSpec) -> bool:
        """Whether it speaks of this layer: the `position`-th of the model, unless its name has a number."""
        if self.level == "phase":
            return self.key != MASKED or bool(spec.masks)
        if self.level == "kind":
            return self.key in kinds_of(spec)
        if INDICES.fullmatch(self.key):
            return any(low <= _number(layer, position) <= high for low, high in _ranges(self.key))
        return self.key == layer or fnmatchcase(layer, self.key)

    def narrowness(self, layer: str) -> int:
        """Of rules at one level the lowest goes first; of equals, the one written first."""
        return int(self.key != layer if self.level == "layer" else self.key not in REACH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Precedence: layer, kind, phase, flag, environment. What none of them says is left to the ranking."""

    flag: str = AUTO
    """``--attention-backend``, for all layers."""
    environment: str = ""
    """The same, from `HEADSTOCK_ATTENTION_BACKEND`."""
    rules: tuple[Rule, ...] = ()
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    """Options by backend, as the user wrote both."""
    aiter_ops: Mapping[str, str] = field(default_factory=dict[str, str])
    """Functions in the place of ops, of every backend that calls those: op → ``"package.module:function"``."""

    def wishes(self, specs: Mapping[str, AttentionSpec]) -> dict[str, Wishes]:
        """What is asked for each layer's decode rows, its other rows, and those with an extra mask; None is nothing.

        Raises `InvalidInput` for a rule that speaks of no layer, or of layers beyond the last.
        """
        layers = [(name, position, spec) for position, (name, spec) in enumerate(specs.items())]
        last = max((_number(name, position) for name, position, _ in layers), default=0)
        for rule in self.rules:
            if not any(rule.matches(*layer) for layer in layers):
                raise InvalidInput("attention_policy", _unmatched(rule, specs))
            numbers = _ranges(rule.key) if rule.level == "layer" and INDICES.fullmatch(rule.key) else []
            if beyond := [high for _, high in numbers if high > last]:
                raise InvalidInput("attention_policy", f"{rule.key!r} names layer {max(beyond)}; the last is {last}")
        found: dict[str, Wishes] = {}
        for name, position, spec in layers:
            rules = [rule for rule in self.rules if rule.matches(name, position, spec)]
            rules.sort(key=lambda rule: (LEVELS.index(rule.level), rule.narrowness(name)))
            masked = [rule for rule in rules if MASKED in rule.backends] if spec.masks else []
            found[name] = (
                self._wish(rules, "decode"),
                self._wish(rules, "prefill"),
                self._wish(masked, MASKED) if masked else None,
            )
        return found

    def _wish(self, rules: Iterable[Rule], phase: str) -> Wish | None:
        """The first that says something about `phase`; ``auto`` in a rule ends the search, too."""
        for rule in rules:
            if backend := rule.backends.get(phase):
                return None if key(backend) == AUTO else Wish(backend=backend, origin=f"{rule.level} ({rule.key})")
        if key(self.flag) != AUTO:
            return Wish(backend=self.flag, origin=f"flag ({self.flag})")
        if self.environment and key(self.environment) != AUTO:
            return Wish(backend=self.environment, origin=f"environment ({ATTENTION_BACKEND}={self.environment})")
        return None


def kinds_of(spec: AttentionSpec) -> tuple[str, str]:
    """The kinds a layer is of: ``full`` or ``window``, and `AttentionSpec.kind`."""
    return ("full" if spec.window is None else "window"), spec.kind


def level_of(name: str) -> tuple[Level, str]:
    """What a policy's key is, and its plain form: a phase, a kind, or else a layer's name, numbers or pattern."""
    plain = KIND_ALIASES.get(key(name), key(name))
    if plain in (*PHASES, MASKED):
        return "phase", plain
    return ("kind", plain) if plain in (*REACH, *KINDS) else ("layer", name.strip())


def _number(layer: str, position: int) -> int:
    """The number in a layer's name, or its place in the model."""
    return next((int(part) for part in layer.split(".") if part.isdigit()), position)


def _ranges(text: str) -> list[tuple[int, int]]:
    """``"0,4-7"`` → [(0, 0), (4, 7)]."""
    bounds = [part.partition("-") for part in text.split(",")]
    return [(int(low), int(high or low)) for low, _, high in bounds]


def _unmatched(rule: Rule, specs: Mapping[str, AttentionSpec]) -> str:
    kinds = sorted({kind for spec in specs.values() for kind in kinds_of(spec)})
    names = list(specs)
    near = nearest(rule.key, [*REACH, *KINDS, *PHASES, MASKED, *names])
    advice = f" did you mean {near[0]}?" if near and near[0] != rule.key else ""
    layers = ", ".join(names if len(names) < 4 else [names[0], "…", names[-1]])
    if rule.level == "phase":
        return f"{rule.key!r} is for layers with an extra mask, and no layer has one"
    what = "is a kind that no layer has" if rule.level == "kind" else "is no kind or phase, and matches no layer"
    return f"{rule.key!r} {what}.{advice} Kinds here: {', '.join(kinds)}; layers: {layers}"
