"""`AsyncLLM`: a model, its backends and an engine in one object, for callers on an event loop."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ..core.engine import AsyncLLMEngine, EngineConfig, read_prompt
from ..core.model import resolve_model
from ..core.outputs import OutputKind, RequestOutput
from ..core.params import SamplingParams
from ..core.scheduler import SchedulerStats
from ..selector import find_device, read_policy
from ..selector.policy_reader import Document
from .compose import build_async_engine, installed_plugins
from .deploy import Deployment, EngineKind


class AsyncLLM:
    """Loads `model` once and answers many prompts at a time. Belongs to the event loop of its first request."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        attention_backend: str = "auto",
        decode_attention_backend: str | None = None,
        prefill_attention_backend: str | None = None,
        attention_policy: Document | None = None,
        attention_backend_config: Document | None = None,
        aiter_ops: Mapping[str, str] | Sequence[str] | None = None,
        engine: EngineKind = "inproc",
        data_parallel_size: int = 1,
        restart_engine: bool = False,
        **config: Any,
    ) -> None:
        """As `LLM`; `config` are further fields of `EngineConfig`. An engine in this process runs in its own thread.

        Waits until the engine is ready. Raises `InvalidInput`, `ModelError`, `BackendError` or `CapacityError`.
        """
        where = Deployment(engine=engine, data_parallel_size=data_parallel_size, restart_engine=restart_engine)
        policy = read_policy(
            attention_backend=attention_backend,
            decode_attention_backend=decode_attention_backend,
            prefill_attention_backend=prefill_attention_backend,
            attention_policy=attention_policy,
            attention_backend_config=attention_backend_config,
            aiter_ops=aiter_ops,
        )
        settings = EngineConfig(device=find_device(hooks=installed_plugins().hooks), **config)
        self.folder = resolve_model(model)
        self.engine: AsyncLLMEngine = build_async_engine(self.folder, settings, policy, deployment=where)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        output_kind: OutputKind = "cumulative",
    ) -> AsyncGenerator[RequestOutput]:
        """The outputs of one prompt, to the last, which has `finished`.

        A prompt is as for `LLM.generate`. Each output holds everything so far; with `output_kind` ``delta`` what is
        new since the one before, with ``final`` there is only the last. After `deadline` seconds the request ends with
        what it has and reason ``abort``. Cancellation aborts it; so does leaving the iterator, at once where it is
        closed with `contextlib.aclosing`. Raises `InvalidInput` or `CapacityError` with nothing queued, and
        `EngineDeadError`.
        """
        outputs = self.engine.generate(
            read_prompt(prompt),
            SamplingParams() if sampling_params is None else sampling_params,
            request_id=request_id,
            priority=priority,
            deadline=deadline,
            output_kind=output_kind,
        )
        async with aclosing(outputs) as each:
            async for output in each:
                yield output

    async def abort(self, request_ids: str | Iterable[str]) -> None:
        """End requests in whatever state they are; their readers get a last output. Unknown ids are ignored."""
        await self.engine.abort([request_ids] if isinstance(request_ids, str) else request_ids)

    async def stats(self) -> SchedulerStats:
        """Counts of steps, preemptions, cached tokens."""
        return await self.engine.client.stats()

    async def close(self) -> None:
        """End everything and give the memory back; readers that still wait get `EngineDeadError`."""
        await self.engine.close()
