"""Names of backends: what counts as the same name, and what other engines call them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

AUTO = "auto"
"""The name that stands for "choose for me"; no backend can have it."""

ALIASES: Mapping[str, str] = {
    # vLLM. FLASH_ATTN, FLASHINFER, FLEX_ATTENTION, ROCM_ATTN and ROCM_AITER_FA differ from ours in case alone.
    "torch_sdpa": "sdpa",
    "triton_attn": "triton",
    "cpu_attn": "cpu",
    "rocm_aiter_unified_attn": "rocm_aiter_unified",
    # SGLang. flashinfer, triton and flex_attention are the same there.
    "torch_native": "sdpa",
    "fa3": "flash_attn_3",
    "fa4": "flash_attn_4",
    "aiter": "rocm_aiter_fa",
    # transformers
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_3",
}
"""Name elsewhere → name here, both in the form of `key`. One counts only where the true name is known."""


def key(name: str) -> str:
    """The form in which names are compared: case does not matter, nor whether it is ``-`` or ``_``."""
    return name.strip().casefold().replace("-", "_")


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """Up to three of `known` that look like `name`, best first, in their own spelling."""
    spelling = {key(k): k for k in sorted(known, reverse=True)}
    return [spelling[k] for k in difflib.get_close_matches(key(name), sorted(spelling), n=3, cutoff=cutoff)]
