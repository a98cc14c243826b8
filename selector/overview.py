"""What would be chosen where: every profile and a dozen models, as the table of docs/selection.md.

``python -m headstock.selector.overview docs/selection.md`` writes it between the page's marks; a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..core.attention import AttentionSpec, Device, model_window
from ..core.errors import BackendError
from ..plugins import load_plugins
from .profiles import PROFILES
from .selector import Selector

BEGIN, END = "<!-- overview -->", "<!-- end of overview -->"
USUAL_BLOCK = 16


def _layer(heads: int, kv_heads: int, size: int, **others: object) -> AttentionSpec:
    fields: dict[str, object] = {"num_heads": heads, "num_kv_heads": kv_heads, "head_size": size, "dtype": "bfloat16"}
    return AttentionSpec(**{**fields, **others})  # pyright: ignore[reportArgumentType] - the tests build every model


MODELS: Mapping[str, tuple[AttentionSpec, ...]] = {
    "SmolLM2 135M": (_layer(9, 3, 64),),
    "Llama 3.1 8B": (_layer(32, 8, 128),),
    "Phi-3 mini (D 96)": (_layer(32, 32, 96),),
    "Gemma 7B (D 256)": (_layer(16, 16, 256),),
    "Mistral 7B v0.1 (window)": (_layer(32, 8, 128, window=model_window(4096)),),
    "Gemma 3 27B (windows, full)": (
        _layer(32, 16, 128, scale=168**-0.5, window=model_window(1024)),
        _layer(32, 16, 128, scale=168**-0.5),
    ),
    "Gemma 2 9B (softcap, D 256)": (
        _layer(16, 8, 256, softcap=50.0, window=model_window(4096)),
        _layer(16, 8, 256, softcap=50.0),
    ),
    "GPT-OSS 20B (sinks)": (
        _layer(64, 8, 64, sinks=True, window=model_window(128)),
        _layer(64, 8, 64, sinks=True),
    ),
    "MPT 7B (ALiBi)": (_layer(32, 32, 128, alibi=True),),
    "Llama 3.1 8B, 8-bit KV": (_layer(32, 8, 128, kv_format="fp8_e4m3", kv_scales="tensor"),),
    "Images in the prompt (spans)": (_layer(32, 8, 128, masks=frozenset({"spans"})),),
    "A vision encoder (no cache, D 80)": (_layer(16, 16, 80, kind="encoder", kv_source="ragged", causal=False),),
    "DeepSeek V3 (MLA's latent form)": (
        _layer(128, 1, 576, head_size_v=512, kind="latent", latent=(512, 64), scale=192**-0.5),
    ),
}
"""Layers that differ, by model, as one card of one sees them; figures from the models' published configurations."""


def chosen(selector: Selector, specs: Iterable[AttentionSpec], device: Device) -> str:
    """The backends of a model's layers, and the block size where it is an unusual one; or ``none``."""
    layers = {f"model.layers.{i}.self_attn.attn": spec for i, spec in enumerate(specs)}
    try:
        selection = selector.propose(layers, device)
    except BackendError:
        return "none"
    names = ", ".join(dict.fromkeys(f"`{choice.backend}`" for choice in selection.choices.values()))
    cached = any(spec.kv_source == "cache" for spec in layers.values())
    return f"{names}, blocks of {selection.block_size}" if cached and selection.block_size != USUAL_BLOCK else names


def overview() -> str:
    """The table: a row a model, a column for all profiles that choose alike."""
    selector = Selector(load_plugins(environ={"HEADSTOCK_PLUGINS": "headstock"}))
    columns: dict[tuple[str, ...], list[str]] = {}
    for profile in PROFILES:
        answers = tuple(chosen(selector, specs, profile.device) for specs in MODELS.values())
        columns.setdefault(answers, []).append(profile.name)
    heads = [", ".join(names) for names in columns.values()]
    lines = [["model", *heads], ["---"] * (1 + len(heads))]
    lines += [[model, *(answers[row] for answers in columns)] for row, model in enumerate(MODELS)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def written(page: str) -> str:
    """`page` with the table of today between its marks; raises `ValueError` where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: it is between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{overview()}\n\n{END}{after}"


def main(paths: list[str]) -> int:
    """Write the table into the pages named, or to stdout where none is."""
    if not paths:
        print(overview())
    for path in map(Path, paths):
        try:
            path.write_text(written(path.read_text("utf-8")), "utf-8")
        except (OSError, ValueError) as error:
            print(f"overview: {path}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
