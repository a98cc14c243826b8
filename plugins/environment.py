"""Every environment variable Headstock reads, as data: the documentation and the check for misspelt ones share it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InvalidInput
from .names import nearest

PREFIX = "HEADSTOCK_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable. Empty is the same as not set."""

    name: str
    meaning: str
    flag: str = ""
    """The flag that says the same and goes first."""
    successor: str = ""
    """The variable is retired: what it holds counts as the value of this one, with a warning."""


ATTENTION_BACKEND = "HEADSTOCK_ATTENTION_BACKEND"
PLUGINS = "HEADSTOCK_PLUGINS"
DISABLE_PLUGINS = "HEADSTOCK_DISABLE_PLUGINS"
PLUGINS_STRICT = "HEADSTOCK_PLUGINS_STRICT"
ENV_STRICT = "HEADSTOCK_ENV_STRICT"
KERNELS = "HEADSTOCK_KERNELS"
DATABASE = "HEADSTOCK_DB"
TUNED = "HEADSTOCK_TUNED"
API_KEY = "HEADSTOCK_API_KEY"
ROCM_AITER = "HEADSTOCK_ROCM_AITER"
ROCM_AITER_MHA = "HEADSTOCK_ROCM_AITER_MHA"
ROCM_AITER_UNIFIED = "HEADSTOCK_ROCM_AITER_UNIFIED"

VARIABLES = (
    Variable(
        name=ATTENTION_BACKEND,
        flag="--attention-backend",
        meaning="Attention backend of all layers, unless the flag or a policy says otherwise.",
    ),
    Variable(name=PLUGINS, meaning="Distributions, comma-separated, whose plugins are used; all others are not."),
    Variable(
        name=DISABLE_PLUGINS,
        flag="--disable-plugins",
        meaning="1 switches off all plugins but the built-in backends; or the distributions to switch off.",
    ),
    Variable(
        name=PLUGINS_STRICT, meaning="1 makes a plugin that fails an error with its own traceback, not a warning."
    ),
    Variable(
        name=KERNELS, meaning="Folder made by headstock compile; without it kernels are compiled at their first use."
    ),
    Variable(name=DATABASE, flag="--db", meaning="File that results are kept in; else one in the user's data folder."),
    Variable(name=API_KEY, flag="--api-key", meaning="Keys, comma-separated, that headstock serve asks of requests."),
    Variable(
        name=TUNED, meaning="File that headstock tune wrote; else the one in the user's data folder; 0 uses none."
    ),
    Variable(
        name=ROCM_AITER,
        meaning="1 lets backends over AITER take part in the automatic choice; by name they need no switch.",
    ),
    Variable(name=ROCM_AITER_MHA, meaning="0 leaves rocm_aiter_fa out of it."),
    Variable(name=ROCM_AITER_UNIFIED, meaning=f"1, with {ROCM_AITER}, lets rocm_aiter_unified take part, too."),
    Variable(name=ENV_STRICT, meaning=f"1 makes an unknown or retired {PREFIX}* variable an error, not a warning."),
)
"""All of them. Whoever reads another adds it here, or its users are told that nothing reads it."""

FOREIGN: Mapping[str, str] = {"VLLM_ATTENTION_BACKEND": ATTENTION_BACKEND}
"""Variables of other engines that people expect to work → ours that does."""


def data_folder() -> Path:
    """``$XDG_DATA_HOME/headstock``, or below ``~/.local/share`` where that is unset or not absolute."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local/share") / "headstock"


def read(name: str, environ: Mapping[str, str] | None = None, variables: Iterable[Variable] = VARIABLES) -> str:
    """The value of `name`, or of a retired variable that it succeeds; ``""`` where none is set.

    Raises `InvalidInput` where both are set and differ.
    """
    environ = os.environ if environ is None else environ
    names = [name, *(v.name for v in variables if v.successor == name)]
    found = {n: value for n in names if (value := environ.get(n, "").strip())}
    if len(set(found.values())) > 1:
        raise InvalidInput(name, f"is said twice: {', '.join(f'{n}={v}' for n, v in found.items())}; remove one")
    return next(iter(found.values()), "")


def switched_on(name: str, environ: Mapping[str, str] | None = None, *, default: str = "") -> bool:
    """Whether the variable `name`, or `default` where it is not set, says yes; raises `InvalidInput` where it says
    neither yes nor no."""
    value = read(name, environ) or default
    answer = truth(value)
    if answer is None:
        raise InvalidInput(name, f"is {value!r}, neither 1 nor 0")
    return answer


def truth(value: str) -> bool | None:
    """What a switch's value means: true for 1, yes, true, on; false for 0, no, false, off and nothing; else None."""
    word = value.strip().casefold()
    if word in ("1", "yes", "true", "on"):
        return True
    return False if word in ("", "0", "no", "false", "off") else None


def check_environment(
    environ: Mapping[str, str] | None = None, variables: Iterable[Variable] = VARIABLES
) -> tuple[str, ...]:
    """A warning for each variable that was set in the belief that it is read, and is not (vllm-project/vllm#50292).

    Raises `InvalidInput` instead where `HEADSTOCK_ENV_STRICT` is on and the variable has our prefix.
    """
    environ = os.environ if environ is None else environ
    known = {v.name: v for v in variables}
    ours: list[tuple[str, str]] = []
    for name in sorted(environ):
        if name.upper().startswith(PREFIX) and name not in known:
            ours.append((name, f"is set, but nothing reads it; {_advice(name, known)}"))
        elif name in known and (successor := known[name].successor):
            ours.append((name, f"is retired and counts as {successor}; set that instead"))
    strict = switched_on(ENV_STRICT, environ)
    if ours and strict:
        raise InvalidInput(*ours[0])
    foreign = [
        f"{name} is set, but Headstock does not read it; set {instead} or use {known[instead].flag}"
        for name, instead in FOREIGN.items()
        if environ.get(name, "").strip() and not environ.get(instead, "").strip()
    ]
    foreign += [
        f"{name} is set, but nothing here reads it; did you mean {near[0]}?"
        for name in sorted(environ)
        if not name.upper().startswith(PREFIX) and (near := nearest(name, known, cutoff=0.9))
    ]
    return (*(f"{name} {problem}" for name, problem in ours), *foreign)


def _advice(name: str, known: Mapping[str, Variable]) -> str:
    """The variable that was probably meant, with its flag; all of them where none is near."""
    near = nearest(name[len(PREFIX) :], (k.removeprefix(PREFIX) for k in known), cutoff=0.5)
    if not near:
        return f"known are {', '.join(sorted(known))}"
    meant = known[PREFIX + near[0]]
    return f"did you mean {meant.name}{f' (or the flag {meant.flag})' if meant.flag else ''}?"
