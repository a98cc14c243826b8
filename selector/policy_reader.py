"""Reading a `Policy` from what people write: flags, keyword arguments, JSON, files, the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..core.errors import InvalidInput
from ..plugins import AUTO
from ..plugins.environment import ATTENTION_BACKEND, read
from ..plugins.names import key
from .policy import MASKED, PHASES, Policy, Rule, level_of

Document = Mapping[str, Any] | str | Path
"""A mapping, its JSON, or the path of a file with it."""


def read_policy(
    *,
    attention_backend: str | None = None,
    decode_attention_backend: str | None = None,
    prefill_attention_backend: str | None = None,
    attention_policy: Document | None = None,
    attention_backend_config: Document | None = None,
    aiter_ops: Mapping[str, str] | Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    """The policy that these parameters and the environment amount to; raises `InvalidInput` naming the parameter.

    `attention_policy` maps what is chosen for to a backend, or to one for each phase:
    ``{"window": "sdpa", "decode": "triton", "0,4-7": {"prefill": "sdpa"}, "model.layers.3.*": "reference"}``.
    `attention_backend_config` maps backends to their options: ``{"sdpa": {"option": 1}}``. A flag for a phase is the
    same as that phase in the policy. `aiter_ops` puts functions in the place of AITER's in all backends that call them,
    ``{"paged_attention": "package.module:function"}``, or as ``["paged_attention=package.module:function"]``.
    """
    written = _document("attention_policy", attention_policy)
    rules = [_rule(name, value) for name, value in written.items()]
    flags = {"decode": decode_attention_backend, "prefill": prefill_attention_backend}
    for phase, value in flags.items():
        if value is not None:
            rules.append(_rule(phase, _name(f"{phase}_attention_backend", value)))
    _check_unique(rules)
    return Policy(
        flag=AUTO if attention_backend is None else _name("attention_backend", attention_backend),
        environment=read(ATTENTION_BACKEND, environ),
        rules=tuple(rules),
        options=_options(attention_backend_config),
        aiter_ops=_ops(aiter_ops),
    )


def _rule(name: str, value: object) -> Rule:
    level, plain = level_of(name)
    where = f"attention_policy[{name!r}]"
    if plain in ("*", ""):
        raise InvalidInput(where, "would go before kinds and phases; for all layers there is attention_backend")
    if isinstance(value, str):
        phases = (plain,) if level == "phase" else PHASES
        return Rule(level=level, key=plain, backends=dict.fromkeys(phases, _name(where, value)))
    if level == "phase" or not isinstance(value, Mapping):
        raise InvalidInput(where, f"must be the name of a backend, not {value!r}")
    parts = cast("Mapping[str, object]", value)
    unknown = sorted(set(parts) - {*PHASES, MASKED})
    if unknown or not parts:
        raise InvalidInput(where, f"takes {', '.join(PHASES)} and {MASKED}, not {', '.join(unknown) or 'nothing'}")
    return Rule(level=level, key=plain, backends={phase: _name(where, part) for phase, part in parts.items()})


def _check_unique(rules: list[Rule]) -> None:
    """Refuse two rules about the same: ``window`` and ``sliding``, or a phase in the policy and as a flag."""
    seen: dict[tuple[str, str], Rule] = {}
    for rule in rules:
        first = seen.setdefault((rule.level, rule.key), rule)
        if first is not rule and first.backends != rule.backends:
            both = f"{', '.join(first.backends.values())} and {', '.join(rule.backends.values())}"
            raise InvalidInput("attention_policy", f"asks twice for {rule.level} {rule.key!r}: {both}")


def _options(config: Document | None) -> dict[str, Mapping[str, object]]:
    written = _document("attention_backend_config", config)
    for name, options in written.items():
        if not isinstance(options, Mapping):
            raise InvalidInput(f"attention_backend_config[{name!r}]", f"must map options to values, not be {options!r}")
        bad = [option for option in cast("Mapping[object, object]", options) if not isinstance(option, str)]
        if bad:
            raise InvalidInput(f"attention_backend_config[{name!r}]", f"option {bad[0]!r} is no name")
    return {name: cast("Mapping[str, object]", options) for name, options in written.items()}


def _ops(given: object) -> dict[str, str]:
    """By op. What is an op, and what a function's name, say the backends that call ops."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = list(cast("Mapping[object, object]", given).items())
    elif isinstance(given, list | tuple):
        pairs = [_pair(text) for text in cast("Sequence[object]", given)]
    else:
        raise InvalidInput("aiter_ops", f"must map ops to functions, not be {given!r}")
    found: dict[str, str] = {}
    for op, target in pairs:
        if not isinstance(op, str) or not isinstance(target, str):
            raise InvalidInput("aiter_ops", f"must map ops to functions, by name, not {op!r} to {target!r}")
        if found.setdefault(op, target) != target:
            raise InvalidInput("aiter_ops", f"{op} is given two functions: {found[op]} and {target}")
    return found


def _pair(text: object) -> tuple[object, object]:
    op, _, target = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not op.strip() or not target.strip():
        raise InvalidInput("aiter_ops", f"{text!r} is not OP=package.module:function, which --aiter-op takes")
    return op.strip(), target.strip()


def _name(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be the name of a backend, not {value!r}")
    if not key(value):
        raise InvalidInput(field, 'is empty; give the name of a backend, or "auto"')
    return value.strip()


def _document(field: str, source: Document | None) -> Mapping[str, object]:
    """The mapping that `source` is, holds or names; None holds nothing."""
    if not isinstance(source, str | Path):
        found: object = {} if source is None else source
    else:
        text = str(source)
        if not text.lstrip().startswith(("{", "[", '"')):
            text = _file(field, Path(source))
        try:
            found = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(field, pairs))
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidInput(field, f"is not JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise InvalidInput(field, f"must be a JSON object, not {found!r}")
    pairs = cast("Mapping[object, object]", found)
    for name in pairs:
        if not isinstance(name, str | int):
            raise InvalidInput(field, f"has the key {name!r}, which is no text")
    return {str(name): value for name, value in pairs.items()}


def _file(field: str, path: Path) -> str:
    try:
        return path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:  # the last is a home directory that nobody has
        raise InvalidInput(field, f"is neither JSON nor a readable file: {error}") from error


def _without_repeats(field: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidInput(field, f"has {name!r} twice")
        found[name] = value
    return found
