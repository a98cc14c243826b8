"""Chat messages, checked: every complaint names the message and the field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidInput, check_unicode

MARK = "\ue000 here the model continues \ue000 "
"""Stands in a rendered conversation where its last message ends; its first character is private to programs. The space
at its end tells whether a template trims: then what stood before the mark would have been trimmed, too (after
transformers)."""


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """`messages` as plain JSON objects, without the fields that are None; `InvalidInput` for anything else.

    A message needs a non-empty `role` and, unless it carries other fields such as `tool_calls`, a `content`: text, or a
    list of parts that are text: `{"type": "text", "text": …}`.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidInput("messages", f"must be a list of messages, not {type(messages).__name__}")
    if not messages:
        raise InvalidInput("messages", "is empty; give at least one message")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def plain(field: str, value: Any) -> Any:
    """A copy of `value` made of JSON types only; `InvalidInput` naming the place of anything else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(field, str.__str__(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(field, f"{value} is not a JSON number")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidInput(field, f"key {key!r} is not text")
        return {_text(field, str(key)): plain(f"{field}.{key}", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(f"{field}[{index}]", item) for index, item in enumerate(value)]
    raise InvalidInput(field, f"must be JSON data, not {type(value).__name__}")


def joined(message: Mapping[str, Any]) -> dict[str, Any]:
    """`message` with parts made into one text, a line each, for templates that know texts only (after vLLM)."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    parts: list[Any] = content
    return {**message, "content": "\n".join(part["text"] for part in parts)}


def marked(message: Mapping[str, Any]) -> dict[str, Any]:
    """`message` with `MARK` after its text, or after its last part that is text; `InvalidInput` where it has none."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + MARK}
    parts: list[Any] = list(content or [])
    for index in reversed(range(len(parts))):
        if isinstance(parts[index].get("text"), str):
            parts[index] = {**parts[index], "text": parts[index]["text"] + MARK}
            return {**message, "content": parts}
    raise InvalidInput("continue_final_message", "the last message has no text to continue")


def before_mark(text: str) -> str:
    """What a template made of a conversation up to `MARK`. Templates may trim a text, and the mark's end with it."""
    found = text.rfind(MARK.strip())
    if found < 0:
        raise InvalidInput("continue_final_message", "the chat template does not show the last message as it is")
    whole = text.startswith(MARK, found)
    return text[:found] if whole else text[:found].rstrip()


def _message(field: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidInput(field, f"must be an object with role and content, not {type(message).__name__}")
    clean = {key: item for key, item in plain(field, message).items() if item is not None}
    role = clean.get("role")
    if role is None:
        raise InvalidInput(f"{field}.role", "is missing")
    if not isinstance(role, str) or not role:
        raise InvalidInput(f"{field}.role", f"must be text such as 'user', not {role!r}")
    content = clean.get("content")
    if content is None and clean.keys() <= {"role", "content", "name"}:
        raise InvalidInput(f"{field}.content", "is missing")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(f"{field}.content[{index}]", part)
    elif content is not None and not isinstance(content, str):
        raise InvalidInput(f"{field}.content", f"must be text or a list of parts, not {type(content).__name__}")
    return clean


def _check_part(field: str, part: Any) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidInput(field, "must be an object with a type, such as 'text'")
    if part["type"] != "text":
        raise InvalidInput(f"{field}.type", f"{part['type']!r} is not offered: models take text only")
    if not isinstance(part.get("text"), str):
        raise InvalidInput(f"{field}.text", "must be text")


def _text(field: str, text: str) -> str:
    check_unicode(field, text)
    return text
