"""What `headstock check` and the pytest plugin share: a backend by name, as the conformance kit takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import BackendError, InvalidInput

if TYPE_CHECKING:
    from ..plugins.conformance import Case, Outcome, Subject
    from ..plugins.conformance.check import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which backend is checked, where and how. Plain values: it goes to another process."""

    backend: str
    device: str | None = None
    """As `find_device` takes it; None is the best device here."""
    config: str | None = None
    """Options of backends, as JSON or a file."""
    aiter_ops: tuple[str, ...] = ()
    """Functions in the place of AITER's, each as ``"OP=package.module:function"``."""
    level: Level = "quick"
    seed: int = 0
    case: str | None = None
    """One case, or a pattern; None is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A backend that can be checked, and its cases."""

    subject: Subject
    package: str
    """Distribution and version."""
    source_hash: str
    """Of the backend's source files."""
    device: str
    cases: tuple[Case, ...]
    failure: Outcome | None = None
    """How the backend fails before there can be any case."""


def prepare(order: Order) -> Prepared:
    """Find the backend and make its cases.

    Raises `BackendError` where nobody offers it or it cannot run here, `InvalidInput` where device, options or case
    are wrong.
    """
    from ..plugins.conformance import Broken, Outcome, Subject, cases_for, select
    from ..plugins.sources import source_hash
    from ..selector import Selector, find_device, read_policy
    from ..selector.called import require
    from .compose import installed_plugins

    plugins = installed_plugins()
    offer = plugins.backends.find(order.backend)
    device = find_device(order.device, plugins.hooks)
    if device.assumed:
        raise InvalidInput("device", f"{device.name} is a profile; a backend is checked on a device that is here")
    policy = read_policy(attention_backend_config=order.config, aiter_ops=order.aiter_ops)
    judge = Selector(plugins, policy).judge(device)
    against, _ = judge.standing(offer)
    cls = offer.load()
    if against or cls is None:
        raise BackendError(f'backend "{offer.label}" cannot be checked here: {"; ".join(against)}')
    subject = Subject(
        name=offer.label, cls=cls, device=device, options=judge.options(offer), layouts=dict(judge.layouts)
    )
    cases: tuple[Case, ...] = ()
    failure = None
    try:
        named = select(subject, order.case) if order.case else cases_for(subject, level=order.level, seed=order.seed)
        cases = tuple(named)
    except Broken as broken:
        failure = Outcome(case="declared:a-plain-layer", convention="declared", status="failed", reason=broken.problem)
    require(judge, [(offer, spec) for spec in dict.fromkeys(case.problem.spec for case in cases)])
    where = f"{device.name} ({device.torch_device}, {device.arch})"
    return Prepared(
        subject=subject,
        package=offer.record.package,
        source_hash=source_hash(cls),
        device=where,
        cases=cases,
        failure=failure,
    )
