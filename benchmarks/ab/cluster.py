"""Comparisons on the machines of a Ray cluster.

A task is one comparison, baseline and candidate in turns on one machine: times of different machines say nothing about
two kernels. A machine has one task of ours at a time, or one for each share of its cards that a task asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from ...core.engine.lives.ray_cluster import node_environment
from ...core.errors import HeadstockError, InvalidInput
from ..progress import Bar
from .order import Order

CARD = "accelerator_type:"
"""Prefix of the resource by which Ray tells kinds of cards apart."""
CARD_SHARE = 0.001
"""Of that resource, what Ray takes for a task that wants the kind."""
BEAT_SECONDS = 1.0
SHOWN = 20
"""Nodes that a message lists at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a comparison asks of a node."""

    cpus: float
    gpus: float = 0.0
    accelerator: str | None = None
    """Ray's name of a kind of card, e.g. ``"H100"``."""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """Others, by the names that the cluster gives them."""

    def needs(self) -> dict[str, float]:
        """Amounts by Ray's names."""
        card = {CARD + self.accelerator: CARD_SHARE} if self.accelerator else {}
        asked = {"CPU": self.cpus, "GPU": self.gpus, **card, **self.resources}
        return {name: amount for name, amount in asked.items() if amount}

    def __post_init__(self) -> None:
        for name, amount in self.needs().items():
            if not 0 < amount < inf or (amount > 1 and amount % 1):
                raise InvalidInput("ray", f"{amount:g} {name} cannot be asked for: above 1 it has to be a whole number")

    def __str__(self) -> str:
        return show_resources(self.needs())


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster."""

    id: str
    address: str
    resources: Mapping[str, float]
    """All it has, free or not."""

    def offers(self, needs: Mapping[str, float]) -> bool:
        return all(self.resources.get(name, 0.0) >= amount for name, amount in needs.items())

    def room(self, request: Request) -> int:
        """How many comparisons can run on it and not disturb each other: one, or as many as cards allow."""
        return max(1, int(self.resources.get("GPU", 0.0) // request.gpus)) if request.gpus else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A comparison, and where it may run."""

    order: Order
    """Of two arms."""
    request: Request
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came home of an errand."""

    arm: str
    request: str
    """In words."""
    node: str
    """Address of the machine."""
    document: Mapping[str, Any] | None
    """Of the report; None where there is none."""
    error: str = ""


def find_nodes(ray: Any) -> list[Node]:
    """The machines that are there now."""
    return [
        Node(id=node["NodeID"], address=node["NodeManagerAddress"], resources=node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def plan(order: Order, requests: Sequence[Request], nodes: Sequence[Node], *, every_node: bool) -> list[Errand]:
    """An errand for each candidate and request, and with `every_node` for each machine that has what is asked for.

    Raises `InvalidInput` where none has, with what there is: nothing waits for a machine that may never come.
    """
    errands: list[Errand] = []
    for request in requests:
        fitting = [node for node in nodes if node.offers(request.needs())]
        if not fitting:
            there = "\n  ".join(f"{node.address}: {show_resources(node.resources)}" for node in nodes[:SHOWN])
            more = f"\n  and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
            raise InvalidInput("ray", f"no machine of the cluster has {request}; it has\n  {there or 'none'}{more}")
        for arm in order.arms[1:]:
            pair = replace(order, arms=(order.arms[0], arm))
            places = [(node,) for node in fitting] if every_node else [tuple(fitting)]
            errands += [Errand(order=pair, request=request, nodes=place) for place in places]
    return errands


def taken(ray: Any, requests: Sequence[Request]) -> list[str]:
    """What is there and others use just now, so that tasks will wait for it."""
    free: Mapping[str, float] = ray.available_resources()
    return [
        f"a task wants {request}, and of all that the cluster has {show_resources(free)} is free now: it waits"
        for request in requests
        if any(free.get(name, 0.0) < amount for name, amount in request.needs().items())
    ]


def run(ray: Any, errands: Sequence[Errand], bar: Bar) -> Iterator[Outcome]:
    """Outcomes as they come home. Whatever ends the iteration cancels the tasks that are under way."""
    task = ray.remote(max_calls=1)(compare)  # a process of its own for each, which ends with it
    waiting, busy = list(errands), Counter[str]()
    running: dict[Any, tuple[Errand, Node]] = {}
    try:
        while waiting or running:
            for errand in list(waiting):
                node = next((n for n in errand.nodes if busy[n.id] < n.room(errand.request)), None)
                if node is not None:
                    waiting.remove(errand)
                    busy[node.id] += 1
                    running[_start(ray, task, errand, node)] = errand, node
            bar.say(f"{len(running)} running, {len(waiting)} waiting")
            ready, _ = ray.wait(list(running), num_returns=1, timeout=BEAT_SECONDS)
            for reference in ready:
                errand, node = running.pop(reference)
                busy[node.id] -= 1
                yield _outcome(ray, reference, errand, node)
                bar.advance()
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def compare(order: Order) -> tuple[dict[str, Any] | None, str]:
    """The task: the report's document, or why there is none."""
    try:
        return order.run().to_dict(), ""
    except HeadstockError as error:
        return None, str(error)


def show_resources(resources: Mapping[str, float]) -> str:
    """``2 CPU, 1 GPU, accelerator_type:H100``; what Ray keeps for itself is left out."""
    shown: list[str] = []
    for name, amount in sorted(resources.items()):
        if name.startswith(CARD):
            shown.append(name)
        elif not name.startswith("node:") and name not in ("memory", "object_store_memory"):
            shown.append(f"{amount:g} {name}")
    return ", ".join(shown) or "nothing"


def _start(ray: Any, task: Any, errand: Errand, node: Node) -> Any:
    request = errand.request
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
    options = {
        "num_cpus": request.cpus,
        "num_gpus": request.gpus,
        "resources": dict(request.resources),
        "accelerator_type": request.accelerator,
        "scheduling_strategy": strategy,
        "runtime_env": {"env_vars": node_environment()},
        "max_retries": 0,  # it would be another measurement
        "name": f"headstock ab: {errand.order.arms[1]}",
    }
    return task.options(**options).remote(errand.order)


def _outcome(ray: Any, reference: Any, errand: Errand, node: Node) -> Outcome:
    try:
        document, error = ray.get(reference)
    except ray.exceptions.RayError as problem:  # it raised, or its process or machine died
        lines = str(problem).strip().splitlines() or ["nothing was said"]
        document, error = None, f"{type(problem).__name__}: {lines[-1].strip()}"
    return Outcome(
        arm=errand.order.arms[1],
        request=str(errand.request),
        node=node.address,
        document=document,
        error=error,
    )
