"""amd-aiter itself, on a machine without a card: ``python -m support.real_aiter WHAT`` prints one JSON document.

A process of its own, as importing AITER puts folders on the path, registers operators and wants a ROCm installation:
here it finds a `hipconfig` that only knows a version, and in the place of its compiled modules `Kernels`. Everything
that is Python is its own, Triton's kernels included, which Triton interprets.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from headstock.backends._aiter_ops import OPS, AiterOptions
from headstock.backends.rocm import AiterFlashAttention, AiterUnified
from headstock.backends.rocm.varlen import Varlen
from headstock.core.attention import AttentionSpec, Device, LayerParams, Limits, Workspace
from support.attention import ints, make_batch
from support.conforming import failed, outcomes, passed
from support.doubles import aiter as double
from support.doubles.attending import attend, require
from support.doubles.devices import pretend
from support.over_reference import OverReference

ARCH, UNITS = "gfx942", 304
ENUMS = '''
from enum import IntEnum

class ActivationType(IntEnum):
    """Members: """
    No, Silu, Gelu = -1, 0, 1

class QuantType(IntEnum):
    """Members: """
    No = 0
'''


def environment(folder: Path) -> dict[str, str]:
    """What its process needs, with fakes in `folder`; ``TOOLS`` belongs on the path."""
    tools, built = folder / "bin", folder / "built"
    for path in (tools, built):
        path.mkdir()
    (tools / "hipconfig").write_text("#!/bin/sh\necho 6.4.43482-0f2d60242\n", "utf-8")
    (tools / "hipconfig").chmod(0o755)
    (built / "module_aiter_enum.py").write_text(ENUMS, "utf-8")
    # Tables of tuned GEMMs, which it would merge into a file in /tmp.
    tables = ("A8W8_BPRESHUFFLE", "A8W8_BLOCKSCALE", "A8W8_BLOCKSCALE_BPRESHUFFLE")
    return {
        "GPU_ARCHS": ARCH,
        "CU_NUM": str(UNITS),
        "AITER_JIT_DIR": str(built),
        "TOOLS": str(tools),
        **{f"AITER_CONFIG_GEMM_{name}": str(folder / "tuned.csv") for name in tables},
    }


def loaded() -> ModuleType:
    """AITER, imported, on a card of `UNITS` compute units."""
    arch = ModuleType("aiter.ops.triton.utils._triton.arch_info")  # it asks Triton's driver, and then JAX
    arch.get_arch = lambda: ARCH  # type: ignore[attr-defined]
    sys.modules[arch.__name__] = arch
    card = SimpleNamespace(multi_processor_count=UNITS, warp_size=64)
    torch.cuda.get_device_properties = lambda *_: card
    torch.cuda.current_device = lambda: 0
    torch.cuda.current_stream = lambda *_: 0
    library = import_module("aiter")
    compiled = ModuleType("compiled")
    for name, asm in (("mha_varlen_fwd", False), ("fmha_v3_varlen_fwd", True)):
        function = partial(varlen, asm=asm)
        function.__doc__ = "Members:"  # else it reads the types of the arguments from there
        setattr(compiled, name, function)
    import_module("aiter.jit.core").get_module = lambda name: compiled
    import_module("csrc.cpp_itfs.pa.pa_v1").compile = PagedKernel
    import_module("csrc.cpp_itfs.pa.pa").compile = PackedKernel
    return library


def card(arch: str = "mi300x") -> Device:
    """The card that backends believe in."""
    return pretend(arch, libraries={"amd-aiter": metadata.version("amd-aiter")})


# What AITER is asked for.


def interface() -> dict[str, Any]:
    """Signatures of the functions that backends call, schemas of its operators, and shapes of what they give."""
    loaded()
    version = metadata.version("amd-aiter")
    signatures: dict[str, str] = {}
    for name, op in OPS.items():
        if Version(op.since) > Version(version):
            continue
        module, function = op.home(version).split(":")
        signatures[name] = str(inspect.signature(getattr(import_module(module), function)))
    operators = ("mha_varlen_fwd", "fmha_v3_varlen_fwd", "paged_attention_v1", "paged_attention_rocm")
    return {
        "version": version,
        "signatures": signatures,
        "schemas": {name: str(getattr(torch.ops.aiter, name).default._schema) for name in operators},
        "answers": {name: answered(fields) for name, fields in LAYERS.items()},
    }


LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "float16": {"dtype": "float16", "kv_format": "fp16"},
    "window": {"window": (2, 0)},
    "heads of 64": {"head_size": 64, "head_size_v": 64},
    "softcap": {"softcap": 30.0},
    "softcap, heads of 256": {"head_size": 256, "head_size_v": 256, "softcap": 30.0},
    "ALiBi": {"alibi": True},
}
LIMITS = Limits(max_num_reqs=8, max_num_tokens=64, max_model_len=256, max_blocks_per_req=16)


class Operators(TorchDispatchMode):
    """Notes which of AITER's are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aiter":
            self.called.append(func._schema.name.removeprefix("aiter::"))
        return func(*args, **kwargs or {})


def answered(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A step of prompts as the adapter calls it, without data: operators, and (shape, dtype) of each answer."""
    spec = AttentionSpec(**{"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16", **fields})
    backend = Varlen(spec, card(), LIMITS, Workspace("cpu"), AiterOptions())
    (part,) = backend.plan(make_batch([3, 4], [3, 4], ints([1, 2]).view(2, 1))).parts
    dtype, operators = getattr(torch, spec.dtype), Operators()
    with FakeTensorMode(allow_non_fake_inputs=True), operators, torch.inference_mode():
        query, key, value = (torch.empty(7, heads, spec.head_size, dtype=dtype) for heads in (8, 2, 2))
        layer = LayerParams(name="layer", spec=spec, alibi_slopes=torch.empty(8) if spec.alibi else None)
        answers = backend._call(layer, query, key, value, part, part.keys, return_lse=True)
    return {"operators": operators.called, "answers": [[list(x.shape), str(x.dtype)] for x in answers]}


# What stands where its compiled kernels would.


def varlen(*given: Any, asm: bool, **others: Any) -> list[Tensor]:
    """`mha_varlen_fwd` and `fmha_v3_varlen_fwd`, from what the library's Python hands over by position."""
    names = (
        "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "min_seqlen_q", "dropout_p",
        "softmax_scale", "logits_soft_cap", "zero_tensors", "causal", "left", "right", "return_lse", "randval",
        *(("how_v3_bf16_cvt",) if asm else ()), "out", "block_table", "bias", "alibi_slopes", "gen",
    )  # fmt: skip
    a = dict.fromkeys(names) | dict(zip(names, given, strict=False)) | others
    require(a["block_table"] is a["bias"] is None and not (asm and a["alibi_slopes"] is not None), "not asked for")
    require((a["dropout_p"], a["min_seqlen_q"], a["randval"]) == (0.0, 0, False), "not asked for")
    result = double.varlen(
        **{name: a[name] for name in (*names[:7], "softmax_scale", "causal", "out", "alibi_slopes")},
        # Its assembly kernels are not told of any.
        logits_soft_cap=0.0 if asm else a["logits_soft_cap"],
        window_size=(a["left"], a["right"]),
        return_lse=True,
    )
    return [*result, torch.empty(0), torch.empty(2, dtype=torch.int64)]


class Compiled:
    """What the template of a paged kernel is compiled to: it is given addresses, strides and counts."""

    def __init__(
        self, group: int, head_size: int, loops: int, dtype: str, kv_dtype: str, fp8: str, out_dtype: str, block: int,
        alibi: bool,
    ) -> None:  # fmt: skip
        require((kv_dtype, out_dtype, fp8) == (dtype, dtype, "auto"), "not asked for")
        require(head_size in (64, 128) and block in (1, 16, 32) and group <= 16, "not compiled for")
        self.group, self.head_size, self.loops, self.block, self.alibi = group, head_size, loops, block, alibi
        self.dtype = {"__hip_bfloat16": torch.bfloat16, "_Float16": torch.float16}[dtype]

    def attend(
        self, out: Any, query: Any, table: Any, starts: Tensor, lengths: Any, alibi: Any, scale: Any, width: Any,
        rows: Any, kv_heads: Any, heads: Any, q_step: Any, read: Callable[[int], tuple[Tensor, Tensor]],
        softcap: float = 0.0,
    ) -> None:  # fmt: skip
        """What it computes; `read` gives K and V (tokens, Hk, D) of a block."""
        rows, heads, kv_heads, width = rows.value, heads.value, kv_heads.value, width.value
        require(heads == kv_heads * self.group, "the group is a constant of the kernel")
        require(self.loops * 64 * 256 >= max(at(lengths, rows, torch.int32)), "a partition a thread")
        tables = at(table, rows * width, torch.int32).view(rows, width)
        slopes = at(alibi, heads, torch.float32).double()[:, None, None] if self.alibi else None
        for row, length in enumerate(at(lengths, rows, torch.int32).tolist()):
            start = int(starts[row])
            if starts[row + 1] - start > 1:
                continue
            blocks = [read(page) for page in tables[row, : -(-length // self.block)].tolist()]
            key, value = (torch.cat(parts) for parts in zip(*blocks, strict=True))
            q = at(query, heads * self.head_size, self.dtype, start * q_step.value).view(1, heads, -1)
            seen = torch.ones(1, length, dtype=torch.bool)
            bias = None if slopes is None else slopes * (torch.arange(length) - length + 1)
            require(bias is None or not softcap, "it adds ALiBi before the softcap")
            result, _ = attend(
                q, key[:length], value[:length], scale=scale.value, seen=seen, softcap=softcap, bias=bias
            )  # fmt: skip
            tail = (0 * value[length:].double()).sum(0).repeat_interleave(self.group, 0)
            at(out, heads * self.head_size, self.dtype, start * heads * self.head_size).view(heads, -1).copy_(
                (result[0] + tail).to(self.dtype)
            )


class PagedKernel(Compiled):
    """Of `paged_attention_v1`."""

    def __init__(self, *given: Any, **flags: Any) -> None:
        *plain, self.softcaps, partition, mtp = given
        require((partition, mtp, flags["sliding_window_enabled"]) == (256, 1, False), "not asked for")
        super().__init__(*plain)

    def __call__(
        self, out: Any, scratch: Any, query: Any, keys: Any, values: Any, table: Any, starts: Any, lengths: Any,
        alibi: Any, q_scale: Any, k_scale: Any, v_scale: Any, out_scale: Any, scale: Any, width: Any, partitions: Any,
        softcap: Any, rows: Any, kv_heads: Any, heads: Any, q_step: Any, block_step: Any, head_step: Any, key_step: Any,
        window: Any, stream: Any,
    ) -> None:  # fmt: skip
        require(window == 0, "not asked for")
        at(scratch, rows.value * heads.value * partitions.value * (self.head_size * 2 + 8), torch.uint8).fill_(255)
        require(at(k_scale, 1, torch.float32) == at(v_scale, 1, torch.float32) == 1, "not asked for")
        shape, steps = (self.block, kv_heads.value, self.head_size), (key_step.value, head_step.value, 1)
        extent = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))

        def read(page: int) -> tuple[Tensor, Tensor]:
            first, second = (at(x, extent, self.dtype, page * block_step.value) for x in (keys, values))
            return first.as_strided(shape, steps), second.as_strided(shape, steps)

        self.attend(
            out, query, table, at(starts, rows.value + 1, torch.int32), lengths, alibi, scale, width, rows, kv_heads,
            heads, q_step, read, softcap.value,
        )  # fmt: skip


class PackedKernel(Compiled):
    """Of `paged_attention_rocm`."""

    def __init__(self, *given: Any) -> None:
        *plain, alibi, mtp, quantised, shuffled = given
        require((mtp, quantised.rpartition("::")[2], shuffled) == (1, "kPerTensor", False), "not asked for")
        super().__init__(*plain, alibi == "true")

    def __call__(
        self, out: Any, sums: Any, maxima: Any, partial: Any, query: Any, keys: Any, values: Any, scale: Any,
        table: Any, lengths: Any, longest: Any, rows: Any, kv_heads: Any, heads: Any, width: Any, q_step: Any,
        block_step: Any, head_step: Any, alibi: Any, q_scale: Any, k_scale: Any, v_scale: Any, out_scale: Any,
        stream: Any,
    ) -> None:  # fmt: skip
        partials = rows.value * heads.value * -(-longest.value // 256)
        for x, each in ((sums, 4), (maxima, 4), (partial, self.head_size * 2)):
            at(x, partials * each, torch.uint8).fill_(255)
        require(longest.value <= width.value * self.block, "blocks that no table names")
        require(head_step.value == self.head_size * self.block, "one head's numbers lie together")
        x, count = 16 // self.dtype.itemsize, kv_heads.value * self.head_size * self.block

        def read(page: int) -> tuple[Tensor, Tensor]:
            first, second = (at(plane, count, self.dtype, page * block_step.value) for plane in (keys, values))
            key = first.view(kv_heads.value, -1, self.block, x).permute(2, 0, 1, 3).flatten(2)
            return key, second.view(kv_heads.value, -1, self.block).permute(2, 0, 1)

        starts = torch.arange(rows.value + 1)
        self.attend(
            out, query, table, starts, lengths, alibi, scale, width, rows, kv_heads, heads, q_step, read
        )  # fmt: skip


def at(pointer: Any, count: int, dtype: torch.dtype, offset: int = 0) -> Tensor:
    """So many numbers in memory, `offset` numbers behind a pointer."""
    address = ctypes.cast(pointer, ctypes.c_void_p).value
    assert address is not None
    data = (ctypes.c_char * (count * dtype.itemsize)).from_address(address + offset * dtype.itemsize)
    return torch.frombuffer(data, dtype=dtype)


# The conformance kit.


class InHalf(AiterUnified):
    """In float16: Triton's interpreter does not compute in bfloat16."""

    @classmethod
    def capabilities(cls, device: Device) -> Any:
        offered = super().capabilities(device)
        return replace(offered, dtypes=frozenset({"float16"}), kv_formats=offered.kv_formats - {"bf16"})


def unified(made_up: int) -> dict[str, Any]:
    """The kit over unified attention, which Triton interprets, and the kernels that were launched."""
    loaded()
    module = import_module(OPS["unified_attention"].home(metadata.version("amd-aiter")).split(":")[0])
    launched: dict[str, int] = {}
    for name in ("kernel_unified_attention_2d", "kernel_unified_attention_3d", "reduce_segments"):
        setattr(module, name, Counted(getattr(module, name), name, launched))
    return {"launched": launched, **kit(InHalf, made_up)}


class Undeclared(InHalf):
    """Does not say that it needs zeros where nobody's keys are."""

    @classmethod
    def capabilities(cls, device: Device) -> Any:
        return replace(super().capabilities(device), needs_zeroed_cache=False)


def tails() -> dict[str, Any]:
    """What the kit says of unified attention where NaN lies behind a row's last key."""
    loaded()
    found = outcomes(Undeclared, card(), only={"unowned"})
    return {"failed": failed(found), "passed": sorted(passed(found))}


class Counted:
    """A Triton kernel, and how often it is launched."""

    def __init__(self, kernel: Any, name: str, launched: dict[str, int]) -> None:
        self._kernel, self._name, self._launched = kernel, name, launched

    def __getitem__(self, grid: Any) -> Any:
        self._launched[self._name] = self._launched.get(self._name, 0) + 1
        return self._kernel[grid]


def flash(made_up: int) -> dict[str, Any]:
    """The kit over the library's Python of flash attention and paged decodes; unified attention is the double's."""
    loaded()
    pieces = AiterFlashAttention.derive("InPieces", varlen=Varlen.derive("Short", context_tokens=48))
    return kit(pieces, made_up, AiterOptions(aiter_ops={"unified_attention": "support.doubles.aiter:unified"}))


def paged(made_up: int) -> dict[str, Any]:
    """The kit over the library's Python of paged decodes, all other rows being the reference's."""
    loaded()
    return kit(OverReference, made_up)


def kit(cls: type, made_up: int, options: Any = None) -> dict[str, Any]:
    found = outcomes(cls, card(), made_up=made_up, options=options)
    return {"failed": failed(found), "passed": sorted(passed(found)), "tried": len(found)}


QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "interface": interface,
    "unified": unified,
    "tails": tails,
    "flash": flash,
    "paged": paged,
}

if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    print("\n" + json.dumps(QUESTIONS[what](*map(int, numbers))))
