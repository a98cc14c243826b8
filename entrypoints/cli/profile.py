"""`--profile`: where the time of each step went, into a file that Perfetto shows, and in a line for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ...core.trace import Recorder, chrome_trace, recording
from .console import note

PARTS = ("schedule", "inputs", "record", "plan", "model", "sample", "update", "output")
"""Spans of a step that do not lie in each other; `output` comes after it."""


@contextmanager
def profiling(file: str | None, name: str) -> Generator[None]:
    """Record what the body computes and write it to `file`, also where it is interrupted; without a file, nothing."""
    if file is None:
        yield
        return
    with profiled() as recorder:
        try:
            yield
        finally:
            for line in write_profile(file, {name: recorder}):
                note(line)


@contextmanager
def profiled() -> Generator[Recorder]:
    """Record what the body computes, on the device that models run on."""
    from ...selector import find_device
    from ..compose import installed_plugins

    with recording(Recorder(_synchronize(find_device(hooks=installed_plugins().hooks).platform))) as recorder:
        yield recorder


def write_profile(file: str, recorders: Mapping[str, Recorder]) -> list[str]:
    """Write the trace; a line for the terminal on each of them."""
    Path(file).write_text(json.dumps(chrome_trace(recorders)) + "\n", encoding="utf-8")
    lines = [f"{name}: {_shares(recorder)}" for name, recorder in recorders.items()]
    return [*lines, f"profile written to {file}; open it at https://ui.perfetto.dev"]


def _shares(recorder: Recorder) -> str:
    """``12 steps, 0.51 s: model 81% (attention 22%, write KV 3%), sample 9%, …``, largest first."""
    totals = recorder.totals()
    whole = sum(totals.get(name, 0.0) for name in PARTS)
    steps = sum(span.name == "step" for span in recorder.spans)
    if not whole:
        return "no step was computed"

    def share(name: str) -> str:
        return f"{name} {totals.get(name, 0.0) / whole:.0%}"

    parts = sorted((name for name in PARTS if name in totals), key=lambda name: -totals[name])
    inner = f" ({share('attention')}, {share('write KV')})"
    return f"{steps} steps, {whole:.2f} s: " + ", ".join(share(n) + (inner if n == "model" else "") for n in parts)


def _synchronize(platform: str) -> Callable[[], object] | None:
    """What waits for the device; None where calls return when they are done."""
    import torch

    waits = {"cuda": torch.cuda, "rocm": torch.cuda, "xpu": torch.xpu, "mps": torch.mps}
    return waits[platform].synchronize if platform in waits else None
