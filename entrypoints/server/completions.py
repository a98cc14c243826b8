"""`POST /v1/completions`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...core.engine import Prompt
from ...core.outputs import CompletionOutput, RequestOutput
from ...core.text import Tokenizer
from .bodies import read_body
from .generation import Job, respond
from .logprobs import CompletionLogprobs, Position, prompt_logprobs
from .sampling import completion_params, read_texts
from .schemas import CompletionSchema
from .state import ServerState

NAMES = {"prompt_token_ids": "prompt"}


async def completions(request: Request, state: ServerState) -> Response:
    """Continue prompts."""
    body = await read_body(request, CompletionSchema, state)
    state.check_model(body.model)
    params = completion_params(body, state.settings)
    prompts = await asyncio.to_thread(_prompts, state, body)
    job = Job(
        id=f"cmpl-{uuid.uuid4().hex}",
        prompts=tuple(prompts),
        params=params,
        body=body,
        show_answers=body.max_tokens != 0,
        names=NAMES,
    )
    return await respond(request, state, job, CompletionFormat(job, body, state.model_name, state.tokenizer))


def _prompts(state: ServerState, body: CompletionSchema) -> list[Prompt]:
    prompts: list[Prompt] = []
    for value in read_texts("prompt", body.prompt, state):
        if isinstance(value, tuple):
            prompts.append(Prompt(token_ids=value, cache_salt=body.cache_salt))
            continue
        ids = None
        if value and body.add_special_tokens is False:
            ids = tuple(state.tokenizer.encode(value, add_special_tokens=False))
        prompts.append(Prompt(text=value, token_ids=ids, cache_salt=body.cache_salt))
    return prompts


class CompletionFormat:
    """Answers in the shape of completions. Choices are numbered through: those of the first prompt first."""

    def __init__(self, job: Job, body: CompletionSchema, model: str, tokenizer: Tokenizer) -> None:
        self._envelope = {"id": job.id, "object": "text_completion", "created": int(time.time()), "model": model}
        self._body = body
        self._n = job.params.n
        self._tokenizer = tokenizer
        self._scored: dict[int, Sequence[Position | None]] = {}
        """Log probabilities of prompts, by place, once they are known."""
        self._writers: dict[int, CompletionLogprobs] = {}
        """By choice; there from its first piece on."""

    def document(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices = [
            {**self._choice(place, output, completion), **self._extras(output, completion)}
            for place, output in enumerate(outputs)
            for completion in output.outputs
        ]
        return {**self._envelope, "choices": choices}

    def opening(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, place: int, output: RequestOutput) -> list[dict[str, Any]]:
        choices = [
            self._choice(place, output, completion)
            for completion in output.outputs
            if completion.text or completion.finish_reason or completion.logprobs or self._body.return_token_ids
        ]
        return [{**self._envelope, "choices": [choice]} for choice in choices]

    def usage_chunk(self) -> dict[str, Any]:
        return {**self._envelope, "choices": []}

    def _choice(self, place: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        """One completion, or a piece of it; the first piece begins with the prompt where that is wanted."""
        index = place * self._n + completion.index
        first = index not in self._writers
        writer = self._writers.setdefault(index, CompletionLogprobs())
        if output.prompt_logprobs is not None:
            self._scored[place] = output.prompt_logprobs
        text, token_ids, positions = completion.text, completion.token_ids, completion.logprobs
        opening = ""
        if first and self._body.echo:
            opening = self._tokenizer.token_text(output.prompt_token_ids[0])
            text = self._prompt_text(output) + text
            token_ids = output.prompt_token_ids + token_ids
            positions = None if positions is None else (*self._scored[place], *positions)
        choice = {
            "index": index,
            "text": text,
            "logprobs": None if positions is None else writer.push(token_ids, positions, opening),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = list(completion.token_ids)
            if first:
                choice["prompt_token_ids"] = list(output.prompt_token_ids)
        return choice

    def _extras(self, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        if self._body.prompt_logprobs is None or output.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(output.prompt_logprobs)}

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self._tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)
