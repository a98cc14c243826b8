"""Backends that are good for being selected, and for nothing else."""

from __future__ import annotations

from headstock.core.attention import ANY, AttentionBackend, AttentionSpec, Availability, Capabilities, Device, Sizes

EVERYTHING = {
    "dtypes": frozenset({"float32", "bfloat16", "float16"}),
    "kv_formats": frozenset({"fp32", "bf16", "fp16", "fp8_e4m3"}),
    "kv_scales": frozenset({"tensor", "head"}),
    "head_sizes": ANY,
    "head_sizes_v": ANY,
    "group_sizes": ANY,
    "block_sizes": ANY,
    "kinds": frozenset({"decoder", "encoder", "cross"}),
    "kv_sources": frozenset({"cache", "ragged"}),
    "causal": frozenset({True, False}),
    "windows": frozenset({"left", "right"}),
    "any_scale": True,
    "softcap": True,
    "alibi": True,
    "sinks": True,
    "lse": True,
    "layouts": ("nhd", "hnd"),
}
"""Capabilities without a gap, but for masks, latents and batch invariance."""


def backend(
    name: str = "Able", *, missing: tuple[str, ...] = (), options: type | None = None, **capabilities: object
) -> type:
    """A class that declares `EVERYTHING`, with these capabilities instead. Its packages `missing` are not installed."""
    offered = Capabilities(**{**EVERYTHING, **capabilities})
    return _backend(name, offered, missing, options)


def bare(name: str = "Bare", **capabilities: object) -> type:
    """A class that declares these capabilities and nothing else."""
    return _backend(name, Capabilities(**capabilities), (), None)


def _backend(name: str, offered: Capabilities, missing: tuple[str, ...], options: type | None) -> type:
    class Made(AttentionBackend):
        @classmethod
        def capabilities(cls, device: Device) -> Capabilities:
            return offered

        @classmethod
        def availability(cls) -> Availability:
            return Availability(reasons=tuple(f"package {package} is not installed" for package in missing))

        def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None) -> None:
            out.zero_()

    if options is not None:
        Made.Options = options
    Made.__name__ = Made.__qualname__ = name
    return Made


def up_to(high: int) -> Sizes:
    return Sizes(high=high)


def layers(*specs: AttentionSpec) -> dict[str, AttentionSpec]:
    """A model of these layers, named as a model's are."""
    return {f"model.layers.{i}.self_attn.attn": spec for i, spec in enumerate(specs)}


def spec(**fields: object) -> AttentionSpec:
    """A plain layer of a float32 decoder, with these fields instead."""
    return AttentionSpec(**{"num_heads": 4, "num_kv_heads": 2, "head_size": 64, "dtype": "float32", **fields})
