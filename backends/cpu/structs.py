"""The plain structs that cross to C++, field by field as in kernels/abi.h, and the functions that take them."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

from ...core.errors import BackendError

ABI = 2
STORAGE = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e4m3fnuz: 4,
    torch.float8_e5m2: 5,
    torch.int8: 6,
}


class Problem(Structure):
    """What an instance bakes in."""

    _fields_ = (
        *((name, c_int64) for name in ("heads", "kv_heads", "head_size", "head_size_v", "block_size")),
        *((name, c_int64) for name in ("causal", "left", "right")),
        ("scale", c_double),
        ("softcap", c_double),
    )


class Batch(Structure):
    """One step."""

    _fields_ = (
        *((name, c_void_p) for name in ("query_start", "seq_lens", "key_start", "table")),
        ("table_stride", c_int64),
        ("rows", c_int64),
    )


class Call(Structure):
    """One layer of one step."""

    _fields_ = (
        *((name, c_void_p) for name in ("problem", "parallel", "key", "value")),
        *((name, c_int64) for name in ("storage", "key_block", "key_token", "key_head")),
        *((name, c_int64) for name in ("value_block", "value_token", "value_head")),
        *((name, c_void_p) for name in ("key_scales", "value_scales", "sinks", "slopes")),
        ("dtype", c_int64),
        *((name, c_void_p) for name in ("plan", "workspace", "query")),
        *((name, c_int64) for name in ("query_token", "query_head")),
        ("out", c_void_p),
        *((name, c_int64) for name in ("out_token", "out_head", "out_tokens")),
        ("lse", c_void_p),
        *((name, c_int64) for name in ("lse_token", "lse_head")),
    )


@cache
def load(path: Path) -> ctypes.CDLL:
    """The library at `path`, checked to be of this ABI."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(f"{path}: the compiled kernels cannot be loaded ({error})") from error
    pointer = c_void_p
    library.headstock_abi.restype = c_int64
    library.headstock_width.restype = c_int64
    library.headstock_plan_new.restype = pointer
    library.headstock_plan_free.argtypes = (pointer,)
    library.headstock_plan_fill.argtypes = (pointer, pointer, pointer, c_int64)
    library.headstock_plan_fill.restype = c_int64
    library.headstock_attend.argtypes = (pointer,)
    ours = ABI * 1_000_000 + sum(map(ctypes.sizeof, (Problem, Batch, Call)))
    if library.headstock_abi() != ours:
        raise BackendError(f"{path}: the compiled kernels have ABI {library.headstock_abi()}, not {ours}")
    return library


@cache
def parallel_region() -> int | None:
    """Address of `GOMP_parallel` in the OpenMP runtime that torch has loaded: its threads, and no second pool.

    None where torch uses another runtime; the kernels then run on the calling thread.
    """
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, c_void_p).value
    except AttributeError:
        return None
