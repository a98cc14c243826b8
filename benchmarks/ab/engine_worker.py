"""A whole engine as an arm, in a process of its own, maybe of another environment.

The protocol is that of `peers/vllm_cpu.py`, with other operations:

- ``{"op": "hello"}`` → name, version, torch, headstock
- ``{"op": "load", "model": folder, "settings": {…}, "requests": [[ids, tokens], …]}`` → the engine is there
- ``{"op": "turn"}`` → the workload computed once: the fields of `Turn`
- ``{"op": "score", "sequences": [ids, …]}`` → log probabilities by token, position and sequence
- ``{"op": "answers", "prompts": [ids, …], "lengths": [tokens, …]}`` → the same by token of each answer, with the token
- ``{"op": "attention_time"}`` → what attention takes in a turn
- ``{"op": "memory"}`` → peaks since the process began

An engine that fails says so in ``"failure"``; what was asked wrongly is a ``"refusal"``.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from ...core.errors import HeadstockError
from ...core.trace import Recorder, recording
from ...core.version import __version__
from ...entrypoints.compose import installed_plugins
from ...entrypoints.llm import LLM
from ...plugins.sources import source_hash
from ...selector import find_device
from ..engine.arm import Arm
from ..engine.workload import Request, Workload
from ..peers.vllm_cpu import answer
from .numerics import answers, score
from .worker import run_worker


class EngineServer:
    """Answers requests about one engine."""

    def __init__(self, backend: str, config: str | None) -> None:
        self._backend = backend
        self._config = config
        self._arm: Arm | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        operations: dict[str, Callable[..., dict[str, Any]]] = {
            "hello": self._hello,
            "load": self._load,
            "turn": self._turn,
            "score": self._score,
            "answers": self._answers,
            "attention_time": self._attention_time,
            "memory": self._memory,
        }
        return answer(operations, request)

    def _hello(self) -> dict[str, Any]:
        return {"name": self._backend, "version": "", "torch": torch.__version__, "headstock": __version__}

    def _load(self, model: str, settings: dict[str, Any], requests: list[tuple[list[int], int]]) -> dict[str, Any]:
        asked = tuple(Request(token_ids=tuple(ids), output_len=tokens) for ids, tokens in requests)
        arm = Arm(self._backend, Workload(name="", requests=asked), installed_plugins().guard, lambda: None)
        wishes = {"attention_backend": self._backend, "attention_backend_config": self._config}
        try:
            arm.load(lambda: LLM(model, **wishes, **settings))
        except HeadstockError as error:
            return {"refusal": str(error)}
        self._arm = arm
        if arm.llm is None:
            return {"failure": arm.failure}
        choice = next(iter(arm.llm.attention.choices.values()))
        return {"dtype": arm.dtype, "package": choice.distribution, "source_hash": source_hash(choice.cls)}

    @property
    def _engine(self) -> tuple[Arm, LLM]:
        assert self._arm is not None, "load comes first"
        assert self._arm.llm is not None, self._arm.failure
        return self._arm, self._arm.llm

    def _turn(self) -> dict[str, Any]:
        arm, _ = self._engine
        arm.turn(1, warm=False)
        return {"failure": arm.failure} if arm.failure else asdict(arm.turns[-1])

    def _score(self, sequences: list[list[int]]) -> dict[str, Any]:
        """JSON has no numbers for keys."""
        _, llm = self._engine
        return {"scores": [[list(d.items()) for d in positions] for positions in score(llm, sequences)]}

    def _answers(self, prompts: list[list[int]], lengths: list[int]) -> dict[str, Any]:
        _, llm = self._engine
        return {"answers": [[(t, list(d.items())) for t, d in own] for own in answers(llm, prompts, lengths)]}

    def _attention_time(self) -> dict[str, Any]:
        arm, _ = self._engine
        with recording(Recorder()) as recorder:
            arm.run_uncounted(1)
        return {"milliseconds": 1e3 * recorder.totals().get("attention", 0.0)}

    def _memory(self) -> dict[str, Any]:
        """Bytes: of the process, and where the model runs on a card, of what torch had allocated there."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        device = find_device(hooks=installed_plugins().hooks)  # as `LLM` chooses it
        if device.platform not in ("cuda", "rocm", "xpu"):
            return {"process": peak, "device": None}
        card = torch.xpu if device.platform == "xpu" else torch.cuda
        return {"process": peak, "device": card.max_memory_allocated(device.torch_device)}


if __name__ == "__main__":
    run_worker(lambda: EngineServer(**json.loads(sys.argv[1])))
