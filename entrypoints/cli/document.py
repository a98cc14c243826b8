"""What the JSON documents of several commands say alike: which model, run by whose code, with which backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..llm import LLM


def described(llm: LLM) -> dict[str, Any]:
    """The fields ``model`` and ``attention``."""
    choices: dict[str, dict[str, Any]] = {}
    for layer, choice in llm.attention.choices.items():
        entry = {"backend": choice.backend, "distribution": choice.distribution, "origin": choice.origin, "layers": []}
        choices.setdefault(f"{choice.backend}/{choice.origin}", entry)["layers"].append(layer)
    return {
        "model": {
            "name": llm.folder.name,
            "path": str(llm.folder.path),
            "origin": llm.folder.origin,
            "architecture": llm.model.architecture,
            "implementation": llm.model.implementation,
        },
        "attention": {
            "block_size": llm.attention.block_size,
            "layout": llm.attention.layout.name,
            "choices": list(choices.values()),
            "notes": list(llm.attention.notes),
        },
    }
