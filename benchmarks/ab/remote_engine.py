"""`RemoteEngine`: an engine in a worker process, as a contender of `interleave`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import msgspec

from ...core.errors import BackendError
from ..engine.arm import Turn
from ..engine.workload import Workload
from ..kernels.peer import Peer, PeerRefusal
from .arms import Arm
from .numerics import Answer, Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The most that an arm took at a time, in bytes."""

    process: int
    """Resident memory of its process: weights, KV cache and libraries too."""
    device: int | None
    """What torch had allocated on the card; None where the model runs on CPUs."""


class RemoteEngine:
    """Owner of a worker. What goes wrong in it is its `failure`, its death too; the other arms go on."""

    def __init__(self, arm: Arm, workload: Workload, on_turn: Callable[[], object], seconds: float) -> None:
        """Starts it. Raises `BackendError` where there is nobody to talk to. `on_turn` is told of every turn; one that
        takes more than `seconds`, or loading that does, is taken for death."""
        order = {"backend": arm.backend, "config": arm.config}
        command = [arm.python, "-m", "headstock.benchmarks.ab.engine_worker", json.dumps(order)]
        self.arm = arm
        self.workload = workload
        self.failure = ""
        self.turns: list[Turn] = []
        """Those of the rounds, in their order."""
        self.about: Mapping[str, Any] = {}
        """Once it is loaded: dtype, package and source hash."""
        self._on_turn = on_turn
        try:
            self._peer = Peer(arm.label, command, answer_seconds=seconds)
        except BackendError as error:
            advice = "" if arm.here else f"\n  does {arm.python} have this version of headstock?"
            raise BackendError(f"arm {arm.label!r} cannot take part: {error}{advice}") from error

    @property
    def pid(self) -> int:
        return self._peer.pid

    @property
    def torch(self) -> str:
        """Version in its environment."""
        return self._peer.about["torch"]

    def load(self, model: str, settings: Mapping[str, Any]) -> None:
        """Make the engine. Raises `BackendError` where it refuses what was asked for."""
        requests = [(request.token_ids, request.output_len) for request in self.workload.requests]
        answer = self._ask("load", model=model, settings=settings, requests=requests)
        if answer is not None and "refusal" in answer:
            raise BackendError(f"arm {self.arm.label!r} cannot take part: {answer['refusal']}")
        self.about = answer or {}

    def warm_up(self) -> None:
        """A turn that does not count: kernels get compiled, pages touched."""
        self._compute()
        self._on_turn()

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        """Seconds of one turn, whatever is asked; not a number from the failure on."""
        del calls, warm
        done = self._compute()
        if done is not None:
            self.turns.append(done)
        self._on_turn()
        return [nan if done is None else done.elapsed]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[Distribution]]:
        """The distributions at every position of `sequences` but the first; empty where it has failed."""
        answer = self._ask("score", sequences=[list(sequence) for sequence in sequences])
        return [[{int(t): p for t, p in d} for d in positions] for positions in answer["scores"]] if answer else []

    def answers(self, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[Answer]:
        """What it answers, and the distribution of each token; empty where it has failed."""
        answer = self._ask("answers", prompts=[list(prompt) for prompt in prompts], lengths=list(lengths))
        found = answer["answers"] if answer else []
        return [[(token, {int(t): p for t, p in d}) for token, d in tokens] for tokens in found]

    def attention_milliseconds(self) -> float:
        """What all layers' attention takes in one turn, taken down span by span; the turn does not count."""
        answer = self._ask("attention_time")
        return answer["milliseconds"] if answer else 0.0

    def memory(self) -> Memory | None:
        """None where it has failed."""
        answer = self._ask("memory")
        return Memory(**answer) if answer else None

    def close(self) -> None:
        self._peer.close()

    def _compute(self) -> Turn | None:
        answer = self._ask("turn")
        return None if answer is None else msgspec.convert(answer, Turn)

    def _ask(self, operation: str, **values: Any) -> dict[str, Any] | None:
        """None from the failure on."""
        if self.failure:
            return None
        try:
            answer = self._peer.ask(operation, **values)
        except PeerRefusal as error:
            answer = {"failure": str(error)}
        except BackendError as error:  # it has died
            answer = {"failure": str(error)}
        self.failure = answer.get("failure", "")
        return None if self.failure else answer
