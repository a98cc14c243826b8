"""From the fields of a request to `SamplingParams`, with the limits of a server that strangers may call."""

from __future__ import annotations

from typing import Any

from ...core.params import SamplingParams
from .errors import ApiError
from .schemas import ChatSchema, CompletionSchema, GenerationSchema, given
from .settings import ServerSettings
from .state import ServerState

MAX_STOPS = 64
"""Stop strings: each is looked for in every piece of text."""
MAX_STOP_LENGTH = 1024
MAX_SALT_LENGTH = 1024


def completion_params(body: CompletionSchema, settings: ServerSettings) -> SamplingParams:
    """Raises `ApiError` or `InvalidInput` naming the field."""
    _check(body, settings)
    values = given(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise _refusal("best_of", f"must equal n, not {body.best_of}: all answers are given")
    if body.logprobs is not None:
        values["logprobs"] = _bounded("logprobs", body.logprobs, settings)
    if body.max_tokens == 0 and body.echo:
        values["max_tokens"] = 1  # a token is computed, and left out of the answer
    if body.echo and body.logprobs is not None:
        values["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    return SamplingParams(**values)


def chat_params(body: ChatSchema, settings: ServerSettings) -> SamplingParams:
    """Without a limit of its own an answer may be as long as the model allows. Raises as `completion_params`."""
    _check(body, settings)
    values = given(body)
    if body.max_completion_tokens is not None:
        if body.max_tokens not in (None, body.max_completion_tokens):
            raise _refusal("max_tokens", "differs from max_completion_tokens; give one of them")
        values["max_tokens"] = body.max_completion_tokens
    values.setdefault("max_tokens", None)
    if body.top_logprobs is not None and not body.logprobs:
        raise _refusal("top_logprobs", "needs logprobs to be true")
    if body.logprobs:
        values["logprobs"] = _bounded("top_logprobs", body.top_logprobs or 0, settings)
    return SamplingParams(**values)


def _check(body: GenerationSchema, settings: ServerSettings) -> None:
    """What the server limits and `SamplingParams` does not."""
    if body.prompt_logprobs is not None:
        if body.stream:
            raise _refusal("prompt_logprobs", "cannot be streamed")
        _bounded("prompt_logprobs", body.prompt_logprobs, settings)
    stops = body.stop if isinstance(body.stop, list) else []
    if len(stops) > MAX_STOPS:
        raise _refusal("stop", f"holds {len(stops)} strings, more than the {MAX_STOPS} that are searched for")
    if any(len(stop) > MAX_STOP_LENGTH for stop in [*stops, body.stop if isinstance(body.stop, str) else ""]):
        raise _refusal("stop", f"holds a string of more than {MAX_STOP_LENGTH} characters")
    if body.cache_salt is not None and len(body.cache_salt) > MAX_SALT_LENGTH:
        raise _refusal("cache_salt", f"has {len(body.cache_salt)} characters, more than {MAX_SALT_LENGTH}")
    if body.stream_options is not None and not body.stream:
        raise _refusal("stream_options", "needs stream to be true")
    if body.n is not None and body.n > settings.max_queued_requests:
        raise _refusal("n", f"{body.n} is more than the {settings.max_queued_requests} answers this server queues")


def _bounded(name: str, value: int, settings: ServerSettings) -> int:
    if not 0 <= value <= settings.max_logprobs:
        raise _refusal(name, f"must be from 0 to {settings.max_logprobs}, not {value}")
    return value


def _refusal(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}", param=param, code="invalid_value")


def read_texts(field: str, value: Any, state: ServerState) -> list[str | tuple[int, ...]]:
    """What is in `field`: text, token ids, or a list of either. Raises `ApiError` naming the place.

    For a thread: there may be hundreds of thousands of token ids.
    """
    texts = _texts(field, value, state.settings.max_queued_requests)
    for text in texts:
        if isinstance(text, str):
            state.check_length(field, text)
    return texts


def _texts(field: str, value: Any, most: int) -> list[str | tuple[int, ...]]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise _refusal(field, "must be text, a list of token ids, or a list of either")
    if not value:
        raise _refusal(field, "is empty")
    if all(type(item) is int for item in value):
        return [tuple(value)]
    if len(value) > most:
        raise _refusal(field, f"holds {len(value)} texts; this server queues {most} at most")
    texts: list[str | tuple[int, ...]] = []
    for index, item in enumerate(value):
        if isinstance(item, list) and item and all(type(token) is int for token in item):
            texts.append(tuple(item))
        elif isinstance(item, str):
            texts.append(item)
        else:
            raise _refusal(f"{field}[{index}]", "must be text or a list of token ids that is not empty")
    return texts
