"""An arm in a process of its own, maybe of another environment. The protocol is that of `peers/vllm_cpu.py`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...core.attention import read_spec
from ...core.errors import BackendError
from ...plugins import Offer
from ...plugins.sources import source_hash
from ...selector.called import check_called
from ...selector.judge import Judge, Terms
from ..clock import seconds_of
from ..kernels.contenders import BackendContender
from ..kernels.data import Pool
from ..kernels.draws import Draw
from ..kernels.run import fitting_block_size
from ..kernels.shapes import Shape
from ..peers.vllm_cpu import Answers, Case, Server, serve


class ArmKernel:
    """A backend behind the protocol."""

    def __init__(self, backend: str, config: str | None, block_size: int, device: str) -> None:
        """Raises `BackendError` or `InvalidInput` where it cannot run here as asked."""
        from ...entrypoints.compose import installed_plugins
        from ...selector import Selector, find_device, read_policy

        plugins = installed_plugins()
        self._offer: Offer = plugins.backends.find(backend)
        self.device = find_device(device, plugins.hooks)
        self._judge: Judge = Selector(plugins, read_policy(attention_backend_config=config)).judge(self.device)
        against, capabilities = self._judge.standing(self._offer)
        cls = self._offer.load()
        if against or cls is None:
            raise BackendError(f'backend "{self._offer.label}" cannot run here: {"; ".join(against)}')
        self._options = self._judge.options(self._offer)
        for replacement in self._judge.replacements(self._offer):
            if problem := self._judge.unusable(self._offer, replacement):
                raise BackendError(problem)
        self._cls = cls
        self.name = self._offer.label
        self.version = self._offer.record.package
        self.source_hash = source_hash(cls)
        self.block_size = fitting_block_size(block_size, capabilities)

    def prepare(self, case: Case) -> None:
        rows = tuple(zip(case.query_lens, case.seq_lens, strict=True))
        shape = Shape(
            phase="chunk",
            num_heads=case.num_heads,
            num_kv_heads=case.num_kv_heads,
            head_size=case.head_size,
            batch=len(rows),
            queries=max(case.query_lens),
            length=max(case.seq_lens),
            rows=rows,
            layer=read_spec(case.layer) if case.layer else None,
        )
        spec = shape.spec(case.dtype, self.block_size)
        if reasons := self._judge.reasons(self._offer, spec, Terms(block_size=spec.block_size)):
            raise BackendError("; ".join(reasons))
        check_called(self._judge, [(self._offer, spec)])
        layout = self._judge.layouts[self._judge.layouts_of(self._offer, spec)[0]]
        pool = Pool.read(Path(case.folder), shape.heads, case.dtype, case.pool_tokens, case.query_tokens)
        made = (self.name, self._cls, self._options, spec, layout, self.device, shape, pool)
        self._contender = BackendContender(*made)
        self._threads = 0

    def plan(self) -> None:
        if self._threads != torch.get_num_threads():
            self._threads = torch.get_num_threads()
            self._contender.open()
        self._contender.plan()

    def renew(self, query: float, key: float, value: float) -> None:
        self._contender.renew(Draw(query=query, key=key, value=value))

    def call(self) -> torch.Tensor:
        return self._contender.call()

    def fault(self) -> str:
        return self._contender.fault()

    def release(self) -> None:
        del self._contender


class ArmServer(Server):
    """Says also what the arm is made from."""

    def __init__(self, kernel: ArmKernel) -> None:
        super().__init__(kernel, lambda call: seconds_of(call, kernel.device.torch_device))
        self._made_from = kernel.source_hash

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            return super().answer(request)

    def _hello(self) -> dict[str, Any]:
        return {**super()._hello(), "source_hash": self._made_from, "python": sys.version.split()[0]}


def run_worker(make: Callable[[], Answers]) -> None:
    """Serve what `make` gives on this process' stdin and stdout; what it raises is the answer to the first question."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        server = make()
    except Exception as error:  # the parent asks first of all who is there, and gets this for an answer
        sys.stdin.readline()
        print(json.dumps({"ok": False, "error": str(error)}), file=answers, flush=True)
        return
    serve(server, sys.stdin, answers)


if __name__ == "__main__":
    run_worker(lambda: ArmServer(ArmKernel(**json.loads(sys.argv[1]))))
