"""`LLMEngine`: prompts in, texts out, over an engine that may live anywhere."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import HeadstockError
from ..outputs import OutputKind, RequestOutput
from ..params import SamplingParams
from ..trace import span
from .client import EngineClient
from .core import EngineCore
from .inproc import InprocClient
from .inputs import InputProcessor
from .outputs import OutputProcessor
from .prompts import Prompt


class LLMEngine:
    """Synchronous front end: `add_request`, then `step` until `has_unfinished_requests` is false."""

    def __init__(self, client: EngineClient, inputs: InputProcessor) -> None:
        self.client = client
        self.inputs = inputs
        self._outputs = OutputProcessor(inputs.tokenizer)

    @property
    def core(self) -> EngineCore:
        """The core itself, where it lives in this process and thread; else raises `HeadstockError`."""
        if not isinstance(self.client, InprocClient):
            raise HeadstockError("the engine does not live in this process: use LLMEngine.client")
        return self.client.core

    def add_request(
        self, prompt: Prompt, params: SamplingParams, *, priority: int = 0, output_kind: OutputKind = "final"
    ) -> str:
        """Check and queue one prompt; returns its request id. Raises `InvalidInput` with nothing kept of it."""
        prepared = self.inputs.prepare(prompt, params, priority=priority)
        self._outputs.add(prepared, output_kind)
        try:
            for request in prepared.requests:
                self.client.add_request(request)
        except BaseException:
            self.client.abort_requests(prepared.engine_ids)
            self._outputs.drop(prepared.engine_ids)
            raise
        return prepared.request_id

    def step(self) -> list[RequestOutput]:
        """Compute one step, or wait for one; news of the requests that have any, each of the kind it was added with."""
        news = self.client.get_outputs()
        with span("output"):
            outputs, stopped = self._outputs.process(news)
        if stopped:
            self.client.abort_requests(stopped)
        return outputs

    def abort_request(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests; their last outputs. Unknown or ended ids are ignored."""
        ids = self._outputs.engine_ids(request_ids)
        outputs, _ = self._outputs.process(self.client.abort_requests(ids))
        self._outputs.drop(ids)  # an interrupt may have kept the news of their end from coming here
        return outputs

    def has_unfinished_requests(self) -> bool:
        return self.client.has_unfinished_requests()
