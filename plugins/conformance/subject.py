"""`Subject`: the backend that is checked, on one device."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ...core.attention import (
    LAYOUTS,
    AttentionBackend,
    AttentionSpec,
    Capabilities,
    Device,
    KVLayout,
    Limits,
    Mismatch,
    Workspace,
    mismatches,
)
from .broken import Broken
from .problem import Problem

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """A backend class and where it is to run. Raises `Broken` where its `capabilities` do."""

    name: str
    """What it is called: the name of its entry point."""
    cls: type[AttentionBackend[Any]]
    device: Device
    options: Any = None
    layouts: Mapping[str, KVLayout] = field(default_factory=lambda: dict(LAYOUTS))
    """Known layouts, those of plugins included."""
    capabilities: Capabilities = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "capabilities", self.capabilities_on(self.device))

    @property
    def torch_device(self) -> str:
        return self.device.torch_device

    def capabilities_on(self, device: Device) -> Capabilities:
        """What the class answers for `device`, asked anew."""
        return ask(f"capabilities() of {device.name}", lambda: self.cls.capabilities(device), Capabilities)

    def run(self, what: str, function: Callable[[], T]) -> T:
        """The result of the backend's own code, once the device is done with it; whatever goes wrong is `Broken`."""

        def settled() -> T:
            result = function()
            if self.torch_device != "cpu":
                self._ask_the_device()
            return result

        return call(what, settled)

    @property
    def lost(self) -> bool:
        """Whether the device answers no more, as a CUDA device does after a kernel has read where nothing is."""
        try:
            self._ask_the_device()
        except RuntimeError:
            return True
        return False

    def _ask_the_device(self) -> None:
        torch.zeros(1, device=self.torch_device).item()

    def make(self, spec: AttentionSpec, limits: Limits, workspace: Workspace) -> AttentionBackend[Any]:
        """An instance; what its constructor raises becomes `Broken`."""
        return self.run("__init__", lambda: self.cls(spec, self.device, limits, workspace, self.options))

    def layout_of(self, problem: Problem) -> KVLayout | None:
        """The layout of the problem's cache, or None where it has none."""
        return self.layouts[problem.layout] if problem.spec.kv_source == "cache" else None

    def objections(self, spec: AttentionSpec) -> tuple[Mismatch, ...]:
        """Why the backend does not offer layers like `spec`: fields it does not declare, and its own refusals."""
        found = mismatches(spec, self.capabilities)
        refused = call("refusals()", lambda: tuple(self.cls.refusals(spec, self.device)))
        return (*found, *(ask("refusals()", lambda item=item: item, Mismatch) for item in refused))

    def reasons(self, problem: Problem) -> tuple[str, ...]:
        """Why the backend, by its own word, need not solve `problem`; empty means that it has to."""
        found = list(self.objections(problem.spec))
        caps = self.capabilities
        known = tuple(name for name in caps.layouts if name in self.layouts)
        if problem.spec.kv_source == "cache" and problem.layout not in known:
            found.append(Mismatch(field="layout", asked=problem.layout, offered=", ".join(known) or None))
        elif problem.spec.kv_source == "cache":
            layout = self.layouts[problem.layout]
            found += call("the layout's refusals()", lambda: layout.refusals(problem.spec))
        if not caps.zero_length_rows and any(0 in row for row in problem.rows):
            found.append(Mismatch(field="zero_length_rows", asked=True, offered=None))
        if problem.poison not in ("any", "zero") and caps.needs_zeroed_cache:
            found.append(Mismatch(field="poison", asked=problem.poison, offered="a zeroed cache (needs_zeroed_cache)"))
        if problem.loose and caps.exact_seq_lens:
            found.append(Mismatch(field="seq_lens_cpu", asked=None, offered="exact lengths (exact_seq_lens)"))
        return tuple(map(str, found))


def ask(what: str, function: Callable[[], object], kind: type[T]) -> T:
    """The answer of the backend's own code, where the result has to be a `kind`."""
    answer = call(what, function)
    if not isinstance(answer, kind):
        raise Broken(f"{what} gave {answer!r}, not {kind.__name__}", "contract")
    return answer


def call(what: str, function: Callable[[], T]) -> T:
    """The result of the backend's own code; whatever it raises becomes `Broken`, with the place where it did."""
    try:
        return function()
    except (KeyboardInterrupt, Broken):
        raise
    except BaseException as error:  # SystemExit and panics of native code are a backend's failures too
        text = " ".join(str(error).split())
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise Broken(f"{what} raised {type(error).__name__}: {text} ({place.filename}:{place.lineno})") from error
