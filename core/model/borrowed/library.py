"""transformers as a library: its version, its classes, its noise, and the names our attention has in it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import ModelError

OLDEST = (5, 0)
"""Before version 5, masks were made in each model's own way, and a trace could not tell what they are."""

ENGINE = "headstock_engine"
"""The engine's attention, under this name in `AttentionInterface`; as no mask goes by it, models make none."""
TRACE = "headstock_trace"
"""Writes down what it is called with."""
VALUES = "headstock_values"
"""Lets each token see itself alone."""


def library() -> Any:
    """The module `transformers`. Raises `ModelError` where it is too old for what is asked of it here."""
    import transformers

    version = transformers.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ModelError(
            f"running models through transformers needs version {OLDEST[0]}.{OLDEST[1]} or newer; "
            f"{version} is installed: pip install -U transformers"
        )
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' bars, warnings and advice: what matters of it is checked here, and raised."""
    from transformers.utils import logging as theirs

    level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()


def use_attention(model: Any, name: str) -> None:
    """Let `model` call the attention function registered as `name`, its parts with configs of their own too."""
    model.config._attn_implementation = name


def first_line(error: BaseException) -> str:
    """An error of transformers' in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
