"""`LLM`: a model, its backends and an engine in one object, for offline use. Names and meanings are vLLM's."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..core.attention import AttentionSelection
from ..core.engine import EmbeddingEngine, EngineConfig, LLMEngine, Prompt, chat_prompt, read_prompts
from ..core.errors import EngineClosedError, InvalidInput
from ..core.model import Described, Pooling, resolve_model, resolve_runner
from ..core.outputs import EmbeddingRequestOutput, OutputKind, RequestOutput
from ..core.params import SamplingParams
from ..core.scheduler import SchedulerStats
from ..core.scheduler.config import DEFAULT_NUM_SEQS, Policy
from ..core.text import ChatTemplate, Tokenizer
from ..selector import find_device, read_policy
from ..selector.policy_reader import Document
from .compose import (
    build_embedding_engine,
    build_engine,
    connect_engine,
    installed_plugins,
    make_selector,
    select_attention,
)
from .deploy import Deployment, EngineKind

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """Loads `model` once and answers prompts with it."""

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
        block_size: int | None = None,
        enable_prefix_caching: bool = True,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int = DEFAULT_NUM_SEQS,
        max_model_len: int | None = None,
        dtype: str = "auto",
        seed: int = 0,
        kv_cache_memory_bytes: int | None = None,
        memory_utilization: float = 0.9,
        scheduling_policy: Policy = "fcfs",
        long_prefill_token_threshold: int = 0,
        enforce_eager: bool = False,
        async_scheduling: bool = False,
        model_impl: str = "auto",
        runner: str = "auto",
        engine: EngineKind = "inproc",
        data_parallel_size: int = 1,
        restart_engine: bool = False,
    ) -> None:
        """Find the model, choose a backend for every layer, load the weights, size the KV cache.

        `model` is ``smollm2``, a Hugging Face folder, a GGUF file or a name on the Hub. `attention_backend` is a name
        (``headstock backends`` lists them) or ``auto``, and can be narrowed by phase; `attention_policy` says more, by
        layer, kind and phase (`headstock.selector.read_policy`); `attention_backend_config` maps a backend's name to
        its options. `aiter_ops` puts functions in the place of AITER's in every backend that calls them: op to
        ``"package.module:function"``. `model_impl` says whose code runs the model: ``headstock``'s own decoder,
        ``transformers``' modelling code, or ``auto``, the first of them that knows it. `block_size` None is 16, or the
        first size that all chosen backends take. `runner` says what for: ``generate``, ``pooling`` (see `embed`), or
        ``auto``, which pools for encoders and where the folder says how. The other parameters are those of
        `EngineConfig`, and of `Deployment`: `engine` is ``inproc``, ``process`` or ``ray``, and `data_parallel_size`
        engines, each with the whole model, share the requests out among them.

        Raises `InvalidInput`, `ModelError`, `BackendError` or `CapacityError`, each saying what to do. An engine that
        is not in this process ends with `close`, or with this object; it can die, and whatever waits for it then ends
        with `EngineDeadError`.
        """
        deployment = Deployment(engine=engine, data_parallel_size=data_parallel_size, restart_engine=restart_engine)
        policy = read_policy(
            attention_backend=attention_backend,
            decode_attention_backend=decode_attention_backend,
            prefill_attention_backend=prefill_attention_backend,
            attention_policy=attention_policy,
            attention_backend_config=attention_backend_config,
            aiter_ops=aiter_ops,
        )
        config = EngineConfig(
            device=find_device(hooks=installed_plugins().hooks),
            dtype=dtype,
            block_size=block_size,
            enable_prefix_caching=enable_prefix_caching,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            memory_utilization=memory_utilization,
            scheduling_policy=scheduling_policy,
            long_prefill_token_threshold=long_prefill_token_threshold,
            enforce_eager=enforce_eager,
            async_scheduling=async_scheduling,
            model_impl=model_impl,
            seed=seed,
        )
        self.folder = resolve_model(model)
        self._selection: AttentionSelection | None = None
        """What was chosen here, where the engine is elsewhere."""
        self._closed = False
        self._engine: LLMEngine | None = None
        self._embedding: EmbeddingEngine | None = None
        if resolve_runner(runner, self.folder.path) == "pooling":
            if deployment.engine != "inproc":
                raise InvalidInput("engine", f"models that embed run in this process, not as {deployment.engine!r}")
            self._embedding = build_embedding_engine(self.folder, config, policy)
        elif deployment.engine == "inproc":
            self._engine = build_engine(self.folder, config, policy)
        else:
            self._selection = select_attention(self.folder, config, policy)
            self._engine = connect_engine(self.folder, config, policy, self._selection, deployment)
        self._news: dict[str, RequestOutput] = {}
        """Outputs that a step gave and nobody has read."""

    @property
    def engine(self) -> LLMEngine:
        """What generates text. Raises `InvalidInput` where the model was loaded to embed it."""
        if self._engine is None:
            self._require_open()
            raise InvalidInput(
                "runner", f"{self.folder.name} was loaded to embed text and generates none; use LLM.embed"
            )
        return self._engine

    @property
    def model(self) -> Described:
        """What the model is, and whose code runs it."""
        return self._embedding.model if self._embedding is not None else self.engine.client.info

    @property
    def pooling(self) -> Pooling:
        """How texts become vectors. Raises `InvalidInput` where the model was loaded to generate text."""
        return self._embedder.pooling

    @property
    def _embedder(self) -> EmbeddingEngine:
        if self._embedding is None:
            self._require_open()
            problem = f"{self.folder.name} was loaded to generate text; to embed, load it with runner='pooling'"
            raise InvalidInput("runner", problem)
        return self._embedding

    @property
    def attention(self) -> AttentionSelection:
        """The backend of every layer, and why."""
        if self._embedding is not None:
            return self._embedding.selection
        return self._selection or self.engine.core.selection

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosedError

    def close(self) -> None:
        """End the engine and give its memory back; what is asked then raises `EngineDeadError`. May be called again."""
        self._closed = True
        if self._engine is not None:
            self._engine.client.close()
        self._embedding = None

    def set_attention(
        self,
        *,
        attention_backend: str = "auto",
        decode_attention_backend: str | None = None,
        prefill_attention_backend: str | None = None,
        attention_policy: Document | None = None,
        attention_backend_config: Document | None = None,
        aiter_ops: Mapping[str, str] | Sequence[str] | None = None,
    ) -> None:
        """Choose backends anew, over the same weights; the KV cache begins empty. Nothing may run meanwhile.

        The parameters are those of the constructor, and nothing of the former choice is kept. Raises as the constructor
        does, and then the former backends go on.
        """
        policy = read_policy(
            attention_backend=attention_backend,
            decode_attention_backend=decode_attention_backend,
            prefill_attention_backend=prefill_attention_backend,
            attention_policy=attention_policy,
            attention_backend_config=attention_backend_config,
            aiter_ops=aiter_ops,
        )
        self.engine.core.set_attention(make_selector(policy))

    def generate(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers to `prompts`, in their order.

        A prompt is text, a list of token ids, or a mapping with ``prompt`` or ``prompt_token_ids`` and, if wanted,
        ``cache_salt``; `prompts` is one or a list of them. `sampling_params` is one for all or one for each. Every
        prompt is checked before the first is computed: `InvalidInput` and `CapacityError` leave nothing behind.
        `priority` is one for all or one for each, the lower the sooner; it needs ``scheduling_policy="priority"``.
        """
        ids = self._add(prompts, sampling_params, priority, "final")
        done: dict[str, RequestOutput] = {}
        with _progress(len(ids), use_tqdm) as bar:
            for output in self._run(ids):
                done[output.request_id] = output
                bar.update()
        return [done[i] for i in ids]

    def embed(self, prompts: Any, *, use_tqdm: bool = True) -> list[EmbeddingRequestOutput]:
        """A vector for each of `prompts`, in their order, pooled as the model's files say.

        Prompts are as for `generate`; a ``cache_salt`` means nothing here. Every prompt is checked before the first is
        computed. Raises `InvalidInput` for wrong prompts, and where the model was loaded to generate text.
        """
        engine = self._embedder
        read, done = read_prompts(prompts), list[EmbeddingRequestOutput]()
        with _progress(len(read), use_tqdm) as bar:
            for outputs in engine.embed(read):
                done.extend(outputs)
                bar.update(len(outputs))
        return done

    def stream(self, prompt: Any, sampling_params: SamplingParams | None = None) -> Generator[RequestOutput]:
        """The answer to one prompt as it grows: each output holds everything so far. Closing the iterator aborts."""
        ids = self._add([prompt], sampling_params, None, "cumulative")
        yield from self._run(ids)

    def chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """What the assistant says next in each conversation, in their order.

        `messages` is a list of messages (mappings with ``role`` and ``content``), or a list of such lists. The rest is
        as for `generate` and `chat_prompt`. Every conversation is checked before the first is computed.
        """
        prompts = [
            self.chat_prompt(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in _conversations(messages)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """One conversation as a prompt for `generate` or `stream`.

        `chat_template` is a Jinja template instead of the model's own. The prompt ends where the assistant is to speak,
        or with the unfinished last message where `continue_final_message` is set and `add_generation_prompt` is not.
        `tools` are JSON objects, `chat_template_kwargs` further variables that the template understands. Raises
        `ModelError` where the model has no template, and `InvalidInput` for what the template refuses.
        """
        own = None if chat_template is None else ChatTemplate({"default": chat_template}, self.tokenizer.special_tokens)
        return chat_prompt(
            own or self._chat_template,
            self.tokenizer,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            **(chat_template_kwargs or {}),
        )

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return ChatTemplate.from_folder(self.folder.path)

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model."""
        return self._embedding.inputs.tokenizer if self._embedding is not None else self.engine.inputs.tokenizer

    def stats(self) -> SchedulerStats:
        """Counts of steps, preemptions, cached tokens."""
        return self.engine.client.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, with nothing done, while requests run."""
        return self.engine.client.reset_prefix_cache()

    def _add(self, prompts: Any, params: Params, priority: Sequence[int] | None, kind: OutputKind) -> list[str]:
        """Queue all prompts, or none."""
        read = read_prompts(prompts)
        each = _one_each("sampling_params", params if params is not None else SamplingParams(), len(read))
        priorities = _one_each("priority", 0 if priority is None else priority, len(read))
        engine = self.engine
        ids: list[str] = []
        try:
            for prompt, own, rank in zip(read, each, priorities, strict=True):
                ids.append(engine.add_request(prompt, own, priority=rank, output_kind=kind))
        except BaseException:
            engine.abort_request(ids)
            raise
        return ids

    def _run(self, ids: Sequence[str]) -> Iterator[RequestOutput]:
        """The news of these requests until they are finished; whatever ends the iteration early ends them too.

        Several streams may be read in turn: each steps the engine, and keeps for the others what is theirs.
        """
        waiting = set(ids)
        try:
            while waiting:
                ready = waiting & self._news.keys()
                for request_id in ready:
                    output = self._news.pop(request_id)
                    if output.finished:
                        waiting.discard(request_id)
                    yield output
                if not ready:
                    if not self.engine.has_unfinished_requests():
                        return  # somebody else has ended them
                    self._news.update((output.request_id, output) for output in self.engine.step())
        finally:
            self.engine.abort_request(waiting)
            for request_id in waiting:
                self._news.pop(request_id, None)


def _conversations(messages: Any) -> Sequence[Any]:
    """One conversation or a list of them."""
    several = isinstance(messages, Sequence) and messages and not isinstance(messages, str)
    if several and all(isinstance(item, Sequence) and not isinstance(item, str) for item in messages):
        return messages
    return [messages]


def _one_each(name: str, value: Any, count: int) -> list[Any]:
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise InvalidInput(name, f"{len(value)} given for {count} prompts")
    return list(value)


def _progress(total: int, wanted: bool) -> Any:
    """A bar over requests on stderr, where that is a terminal."""
    from tqdm import tqdm

    return tqdm(total=total, desc="prompts", unit="prompt", disable=not (wanted and sys.stderr.isatty()))
