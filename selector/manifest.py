"""A selection as a document, which every rank of an engine holds its own against.

Ranks that chose for themselves could differ, for a variable that is set on the driver does not reach every worker
(vllm-project/vllm#14099). So the driver's choice is shipped, and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.attention import AttentionSelection, AttentionSpec
from ..core.errors import BackendError


def manifest_of(selection: AttentionSelection, specs: Mapping[str, AttentionSpec]) -> dict[str, Any]:
    """Block size, layout, and for each layer the backend, its package, options and dtypes; fit for JSON."""
    return {
        "block_size": selection.block_size,
        "layout": selection.layout.name,
        "layers": {
            name: {
                "backend": choice.backend,
                "distribution": choice.distribution,
                "options": repr(choice.options),
                "dtype": specs[name].dtype,
                "kv_format": specs[name].kv_format,
            }
            for name, choice in selection.choices.items()
        },
    }


def check_manifest(expected: Mapping[str, Any], found: Mapping[str, Any], rank: int) -> None:
    """Raise `BackendError` naming `rank` and what is different where its manifest is not the driver's."""
    theirs, ours = _flat(expected), _flat(found)
    different = [
        f"{name}: {theirs.get(name)} on the driver, {ours.get(name)} here"
        for name in (theirs | ours)
        if theirs.get(name) != ours.get(name)
    ]
    if different:
        more = f" (and {len(different) - 3} more)" if len(different) > 3 else ""
        raise BackendError(
            f"rank {rank} has another attention selection than the driver: {'; '.join(different[:3])}{more}"
        )


def _flat(document: Mapping[str, Any]) -> dict[str, str]:
    top = {name: str(value) for name, value in document.items() if name != "layers"}
    layers: Mapping[str, Mapping[str, str]] = document.get("layers", {})
    return top | {f"{layer} {name}": value for layer, entry in layers.items() for name, value in entry.items()}
