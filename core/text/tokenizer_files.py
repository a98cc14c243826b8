"""What the JSON files beside a tokenizer say: named special tokens and the ends of a sequence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The special tokens of a model folder."""

    named: Mapping[str, str]
    """Role (`bos_token`, `eos_token`…) → text; chat templates see these as variables."""
    special: frozenset[str]
    """Texts of all tokens declared special."""
    eos_token_ids: tuple[int, ...]
    """From `generation_config.json`, else from `config.json`."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file; `ModelError` where it is not a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"cannot read {path}: it holds a {type(value).__name__}, not a JSON object")
    return value


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read the special tokens of `folder`; `tokenizer_config.json` wins over the older `special_tokens_map.json`."""
    config = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    named = {name: _text(config[name]) for name in NAMES if config.get(name)}
    special = set(named.values())
    for name in LISTS:
        values = config.get(name) or ()
        special.update(_text(value) for value in (values.values() if isinstance(values, dict) else values))
    for token in (config.get("added_tokens_decoder") or {}).values():
        if token.get("special"):
            special.add(_text(token))
    eos = _ids(read_json(folder / "generation_config.json")) or _ids(read_json(folder / "config.json"))
    return TokenizerFiles(named=named, special=frozenset(special), eos_token_ids=eos)


def _text(token: str | Mapping[str, Any]) -> str:
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        raise ModelError(f"a special token of the tokenizer's files must be text, not {token!r}")
    return text


def _ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
