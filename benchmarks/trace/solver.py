"""`Solver`: the backend that an export offers as a solution, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from ...core.errors import BackendError
from ...core.version import __version__
from ...entrypoints.compose import installed_plugins
from ...selector import find_device, read_policy
from ...selector.called import require
from ...selector.judge import Terms
from .evaluation import Evaluated, evaluate
from .forms import Form
from .solution import TraceAttention, find, solution_spec
from .workloads import Workload


def _libraries() -> dict[str, str]:
    return {"headstock": __version__, "torch": version("torch")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """A backend on the CPU of this machine."""

    backend: str
    """Its true name."""
    options: Mapping[str, object]
    hardware: str
    libraries: Mapping[str, str] = field(default_factory=_libraries)

    def evaluate(self, workload: Workload) -> Evaluated:
        """What comes of it, as the solution that is exported."""
        run = TraceAttention(self.backend, workload.form.name, self.options)
        return evaluate(workload, run, installed_plugins().guard)


def find_solver(forms: Sequence[tuple[Form, float]], backend: str, config: str | None) -> Solver:
    """For definitions and their softmax scales; `config` is as ``--attention-backend-config`` has it.

    Raises `BackendError` with all reasons, definition by definition, where the backend cannot solve them, and
    `InvalidInput` for options that it refuses.
    """
    policy, backends = read_policy(attention_backend_config=config), installed_plugins().backends
    wanted = backends.find(backend)
    given = [options for name, options in policy.options.items() if backends.find(name) == wanted]
    options = given[0] if given else {}
    offer, judge = find(backend, options, "cpu")
    against: list[str] = []
    for form, scale in forms:
        spec = solution_spec(form, scale)
        if reasons := judge.reasons(offer, spec, Terms(block_size=spec.block_size)):
            against.append(f"{form.name}: {'; '.join(reasons)}")
    if against:
        raise BackendError("\n  ".join([f'backend "{offer.label}" is no solution:', *against]))
    judge.options(offer)
    require(judge, [(offer, solution_spec(form, scale)) for form, scale in forms])
    return Solver(backend=offer.label, options=options, hardware=find_device("cpu").name)
