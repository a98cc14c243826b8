"""flash-attn's build for AMD, whose kernels are Triton's: ``python -m support.real_flash_attn WHAT`` prints JSON.

A process of its own, as the library decides at its import which build it is, and registers operators. Its Python and
its kernels, which Triton interprets, are its own; it is told that the card is a gfx942.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor

from headstock.backends.flash_attn import FlashAttention2
from headstock.core.attention import Device
from support.attention import ints
from support.conforming import failed, outcomes, passed
from support.doubles.attending import attend, window
from support.doubles.devices import pretend

SWITCH = "FLASH_ATTENTION_TRITON_AMD_ENABLE"


def loaded() -> Any:
    """The library's interface, which takes tensors of CPUs."""
    os.environ[SWITCH] = "TRUE"
    target = SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend="hip", arch="gfx942", warp_size=64))
    triton.runtime.driver.set_active(target)
    tuned = triton.autotune

    def autotune(configs: Any, key: list[str], **_: Any) -> Callable[..., Any]:
        """Triton 3.9 refuses keys that are no arguments of the kernel, and these have some."""
        return lambda kernel: tuned(configs, key=[name for name in key if name in kernel.arg_names])(kernel)

    triton.autotune = autotune
    from flash_attn import flash_attn_interface as library

    # Registered for CUDA alone; the function inside is the same.
    library._wrapped_flash_attn_varlen_forward = library._flash_attn_varlen_forward._init_fn
    return library


def ignored() -> dict[str, Any]:
    """How far answers are from the right ones, and from that of a call without the argument; and what pages do."""
    varlen = loaded().flash_attn_varlen_func
    rng = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(n, heads, 64, generator=rng).half() for n, heads in ((24, 4), (24, 2), (24, 2)))
    query *= 4  # for logits that a softcap bends
    plain = {"cu_seqlens_q": ints([0, 24]), "cu_seqlens_k": ints([0, 24]), "max_seqlen_q": 24, "max_seqlen_k": 24}

    def call(k: Tensor = key, v: Tensor = value, **arguments: Any) -> Tensor:
        return varlen(query, k, v, **plain, softmax_scale=0.125, causal=True, **arguments).double()

    def right(left: int = -1, softcap: float = 0.0) -> Tensor:
        return attend(query, key, value, scale=0.125, seen=window(24, 24, left, 0), softcap=softcap)[0]

    def apart(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max())

    plainly = call()
    found = {
        "nothing": (plainly, right()),
        "window": (call(window_size=(3, 0)), right(left=3)),
        "softcap": (call(softcap=2.0), right(softcap=2.0)),
    }
    pages = [torch.cat([x, torch.zeros(232, 2, 64).half()]).view(1, 256, 2, 64) for x in (key, value)]
    try:
        call(*pages, block_table=ints([[0]]))
        paging = "taken"
    except Exception as error:
        paging = type(error).__name__
    differences = {name: {"off": apart(a, b), "moved": apart(a, plainly)} for name, (a, b) in found.items()}
    return {"differences": differences, "paging": paging}


class InHalf(FlashAttention2):
    """In float16: Triton's interpreter does not compute in bfloat16."""

    @classmethod
    def capabilities(cls, device: Device) -> Any:
        offered = super().capabilities(device)
        return replace(offered, dtypes=frozenset({"float16"}), kv_formats=frozenset({"fp16"}))


def kit(made_up: int) -> dict[str, Any]:
    loaded()
    found = outcomes(InHalf, pretend("mi300x"), made_up=made_up)
    return {"failed": failed(found), "passed": sorted(passed(found))}


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    print("\n" + json.dumps({"ignored": ignored, "kit": kit}[what](*map(int, numbers))))
