"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...core.engine import Prompt, chat_prompt
from ...core.outputs import CompletionOutput, RequestOutput
from ...core.text.messages import plain
from .bodies import read_body
from .errors import ApiError
from .generation import Job, respond
from .logprobs import chat_logprobs, prompt_logprobs
from .sampling import chat_params
from .schemas import ChatSchema
from .state import ServerState, exceeds

NAMES = {"prompt": "messages", "prompt_token_ids": "messages", "logprobs": "top_logprobs"}
TAKEN = ("messages", "tools", "documents", "add_generation_prompt", "name", "self", "template", "tokenizer")
"""Variables of a template that have fields of their own, or none."""
MAX_VARIABLES = 64


async def chat_completions(request: Request, state: ServerState) -> Response:
    """Answer a conversation."""
    body = await read_body(request, ChatSchema, state)
    state.check_model(body.model)
    params = chat_params(body, state.settings)
    prompt = await conversation(
        state, body.messages, body.chat_template_kwargs, add_generation_prompt=body.add_generation_prompt is not False
    )
    job = Job(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        prompts=(replace(prompt, cache_salt=body.cache_salt),),
        params=params,
        body=body,
        names=NAMES,
    )
    return await respond(request, state, job, ChatFormat(job, body, state.model_name))


async def conversation(
    state: ServerState, messages: Any, variables: Mapping[str, Any] | None, *, add_generation_prompt: bool
) -> Prompt:
    """The prompt of a conversation, through the model's own chat template. In a thread, as messages may be long."""
    template = state.template
    if template is None:
        problem = f"{state.model_name} has no chat template; use /v1/completions"
        raise ApiError(400, f"messages: {problem}", param="messages", code="no_chat_template")
    given = variables or {}

    def render() -> Prompt:
        check_variables(given, state.most_characters)
        plain("chat_template_kwargs", given)
        state.check_messages(messages)
        return chat_prompt(template, state.tokenizer, messages, add_generation_prompt=add_generation_prompt, **given)

    return await asyncio.to_thread(render)


def check_variables(variables: Mapping[str, Any], most_characters: int) -> None:
    """Raise `ApiError` 400 naming the variable of the template that cannot be had."""
    param, problem = "chat_template_kwargs", ""
    if len(variables) > MAX_VARIABLES:
        problem = f"has {len(variables)} variables, more than the {MAX_VARIABLES} that are taken"
    elif exceeds(variables, most_characters):
        problem = f"has more than {most_characters} characters, far more than fit"
    elif taken := [name for name in variables if name in TAKEN]:
        param, problem = f"{param}.{taken[0]}", "is not a variable to set"
    if problem:
        raise ApiError(400, f"{param}: {problem}", param=param, code="invalid_value")


class ChatFormat:
    """Answers in the shape of chat completions."""

    def __init__(self, job: Job, body: ChatSchema, model: str) -> None:
        self._created = int(time.time())
        self._id, self._model = job.id, model
        self._body = body
        self._n = job.params.n

    def document(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        document: dict[str, Any] = {
            **self._envelope("chat.completion"),
            "choices": [self._whole(completion) for completion in output.outputs],
        }
        if self._body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            document["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if self._body.return_token_ids:
            document["prompt_token_ids"] = list(output.prompt_token_ids)
        return document

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self._n)]

    def chunks(self, place: int, output: RequestOutput) -> list[dict[str, Any]]:
        return [
            self._chunk(completion.index, {"content": completion.text} if completion.text else {}, completion)
            for completion in output.outputs
            if completion.text or completion.finish_reason or completion.logprobs or self._body.return_token_ids
        ]

    def usage_chunk(self) -> dict[str, Any]:
        return {**self._envelope("chat.completion.chunk"), "choices": []}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _whole(self, completion: CompletionOutput) -> dict[str, Any]:
        message = {"role": "assistant", "content": completion.text, "refusal": None}
        return {"index": completion.index, "message": message, **self._end(completion)}

    def _chunk(self, index: int, delta: dict[str, Any], completion: CompletionOutput | None = None) -> dict[str, Any]:
        end = {"logprobs": None, "finish_reason": None} if completion is None else self._end(completion)
        return {
            **self._envelope("chat.completion.chunk"),
            "choices": [{"index": index, "delta": delta, **end}],
        }

    def _end(self, completion: CompletionOutput) -> dict[str, Any]:
        """What stands beside the text."""
        end: dict[str, Any] = {
            "logprobs": None
            if completion.logprobs is None
            else chat_logprobs(completion.logprobs, self._body.top_logprobs or 0),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._body.return_token_ids:
            end["token_ids"] = list(completion.token_ids)
        return end
