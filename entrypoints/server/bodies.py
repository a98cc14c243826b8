"""Bodies of requests: bounded, strictly JSON, held to a schema; what is wrong is named by its field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from .errors import ApiError
from .state import ServerState
from .streams import ClientGone

LARGE = 2**18
"""Bytes that are parsed in a thread, as they would hold everybody up."""
MAX_VALUES = 2**19
"""Items of lists and objects, or twice the model's length if that is more: a thread does not help against the time
that Python takes to make them, as it holds the interpreter."""
MAX_FIELDS = 256
PER_TOKEN = ("logit_bias", "stop_token_ids", "allowed_token_ids")
"""Fields with one entry a token of the vocabulary at most."""
LONGEST_INTEGER = 400
SchemaT = TypeVar("SchemaT", bound=BaseModel)


async def read_body(request: Request, schema: type[SchemaT], state: ServerState) -> SchemaT:
    """The body as `schema`.

    Raises `ApiError`: 408 where it does not come in time, 413 where it is too large, 415 where it is not JSON as it is,
    400 else.
    Raises `ClientGone` where the client leaves before all of it has come.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        # Also keeps web pages out: a browser sends this type to other sites only where those allow it.
        raise ApiError(415, f"send the content type application/json, not {kind or 'none'!r}", param="Content-Type")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise ApiError(415, f"send the body as it is, not as {coding!r}", param="Content-Encoding")
    data = await _in_time(_bytes(request, state.settings.max_body_bytes), state.settings.request_timeout)
    most = max(MAX_VALUES, 2 * state.max_model_len)
    value = _parse(data, most) if len(data) < LARGE else await asyncio.to_thread(_parse, data, most)
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, not {_kind(value)}", code="invalid_json")
    _check_sizes(value, state.vocab_size)
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _validation_error(error) from None


def _check_sizes(document: Mapping[str, Any], vocab_size: int) -> None:
    """Raise `ApiError` 400 for more than anybody means, before each item is looked at."""
    if len(document) > MAX_FIELDS:
        problem = f"the body has {len(document)} fields, more than the {MAX_FIELDS} that are taken"
        raise ApiError(400, problem, code="invalid_value")
    for field in PER_TOKEN:
        value = document.get(field)
        if isinstance(value, (list, dict)) and len(value) > vocab_size:
            problem = f"has {len(value)} entries, more than the vocabulary's {vocab_size} tokens"
            raise ApiError(400, f"{field}: {problem}", param=field, code="invalid_value")


async def _in_time(body: Coroutine[Any, Any, bytes], limit: float | None) -> bytes:
    try:
        return await asyncio.wait_for(body, limit)
    except TimeoutError:
        raise ApiError(408, f"the body has not come within {limit:g} s", code="timeout") from None


async def _bytes(request: Request, limit: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {limit} bytes, which this server takes", code="body_too_large")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise too_large
    parts: list[bytes] = []
    total = 0
    try:
        async for part in request.stream():
            total += len(part)
            if total > limit:
                raise too_large
            parts.append(part)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(parts)


def _parse(data: bytes, most: int) -> Any:
    if exceeds_values(data, most):
        problem = f"the body holds more than {most} values, which this server takes; send fewer prompts at a time"
        raise ApiError(413, problem, code="body_too_large")
    try:
        return _loads(data)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not {error.encoding}: byte {error.start}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


def exceeds_values(data: bytes, most: int) -> bool:
    """Whether JSON holds more than `most` values: commas and opening brackets that are not inside of texts.

    Counted text by text only where there may be so many, and never in one go: others are let run meanwhile.
    """
    if _separators(data, 0, len(data)) <= most:
        return False
    found, place = 0, 0
    while found <= most and (opening := data.find(b'"', place)) >= 0:
        found += _separators(data, place, opening)
        place = _after_text(data, opening + 1)
    return found + _separators(data, place, len(data)) > most


def _separators(data: bytes, start: int, end: int) -> int:
    return sum(data.count(sign, start, end) for sign in (b",", b"[", b"{"))


def _after_text(data: bytes, place: int) -> int:
    """Behind the quote that ends the text in which `place` is, or the end."""
    while (quote := data.find(b'"', place)) >= 0:
        before = quote
        while before > place and data[before - 1] == ord("\\"):
            before -= 1
        place = quote + 1
        if (quote - before) % 2 == 0:
            return place
    return len(data)


def _loads(data: bytes) -> Any:
    """NaN and Infinity are taken: the schema and `SamplingParams` then refuse them by the field's name."""
    try:
        return json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # an integer too long for Python: one that it can hold is refused by the field's name as well
        return json.loads(data, parse_int=_integer)


def _integer(text: str) -> int:
    return int(text) if len(text) < LONGEST_INTEGER else 10**LONGEST_INTEGER


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _validation_error(error: ValidationError) -> ApiError:
    """The first complaint. Places inside a union are named by pydantic's own tags, which say nothing to a client."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _place(first["loc"])
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_type"
    return ApiError(400, f"{param}: {first['msg'][:1].lower()}{first['msg'][1:]}", param=param, code=code)


def _place(loc: Sequence[int | str]) -> str:
    name = str(loc[0]) if loc else "body"
    for part in loc[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            name += f".{part}"
    return name
