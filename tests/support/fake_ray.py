"""A cluster without Ray: as much of its interface as comparisons use. Tasks run when their results are asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """Of a task that did not end well."""


class FakeRay:
    """`nodes`: address → resources. `fails`: candidate → what is raised in its place."""

    def __init__(self, nodes: dict[str, dict[str, float]], fails: dict[str, BaseException] | None = None) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError)
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=SimpleNamespace)
        self.util = SimpleNamespace(scheduling_strategies=strategies)
        self.started: list[SimpleNamespace] = []
        self.cancelled: list[SimpleNamespace] = []
        self.together: list[list[str]] = []
        """Nodes of the tasks under way, each time somebody waited."""
        self.taken: dict[str, float] = {}
        """What others use."""
        self._nodes = nodes
        self._fails = fails or {}

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"NodeID": "dead", "Alive": False, "NodeManagerAddress": "dead", "Resources": {"CPU": 99.0, "GPU": 99.0}}
        return [
            dead,
            *(
                {"NodeID": f"id of {address}", "Alive": True, "NodeManagerAddress": address, "Resources": resources}
                for address, resources in self._nodes.items()
            ),
        ]

    def available_resources(self) -> dict[str, float]:
        """All but what `taken` says."""
        names = {name for resources in self._nodes.values() for name in resources}
        return {name: sum(n.get(name, 0.0) for n in self._nodes.values()) - self.taken.get(name, 0.0) for name in names}

    def remote(self, **settings: Any) -> Callable[[Callable[..., Any]], Any]:
        def wrapped(function: Callable[..., Any]) -> Any:
            def options(**more: Any) -> Any:
                def start(order: Any) -> SimpleNamespace:
                    ref = _Reference(function=function, order=order, options={**settings, **more})
                    self.started.append(ref)
                    return ref

                return SimpleNamespace(remote=start)

            return SimpleNamespace(options=options)

        return wrapped

    def wait(self, references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.together.append([ref.options["scheduling_strategy"].node_id for ref in references])
        return references[:num_returns], references[num_returns:]

    def get(self, reference: Any) -> Any:
        if error := self._fails.get(reference.order.arms[1]):
            raise error
        return reference.function(reference.order)

    def cancel(self, reference: Any, *, force: bool) -> None:
        assert force
        self.cancelled.append(reference)


class _Reference(SimpleNamespace):
    """Told from others by which it is."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__
