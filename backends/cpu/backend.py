"""`CpuBackend`: paged attention in place, on the CPU's vector units."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.attention import (
    ANY,
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Availability,
    Capabilities,
    Device,
    KVCache,
    LayerParams,
    Limits,
    Sizes,
    Workspace,
)
from . import store
from .structs import STORAGE, Batch, Call, Problem, load, parallel_region

KV_FORMATS = frozenset(
    {"fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "int8_per_tensor", "int8_per_head"}
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A step cut into tasks on the C++ side; the tensors are those that it points into."""

    handle: int
    workspace_bytes: int
    holds: tuple[Tensor | None, ...]


class CpuBackend(AttentionBackend[Plan]):
    """Our own C++ kernels: flash-style tiles for prompts, streams over K and V for decodes.

    Pages are attended where they lie. The query heads of a KV head share every read of K and V. A row's result depends
    on nothing but the row: splits have fixed sizes, whatever the batch and the number of threads. The online softmax is
    FlashAttention's (Dao et al., arXiv 2205.14135), the split Flash-Decoding's.
    """

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        avx2 = device.arch == "x86_64" and {"avx2", "fma", "f16c"} <= device.features
        if device.platform != "cpu" or not (avx2 or device.arch == "aarch64"):
            return Capabilities()
        return Capabilities(
            dtypes=frozenset({"float32", "bfloat16", "float16"}),
            kv_formats=KV_FORMATS,
            kv_scales=frozenset({"tensor", "head"}),
            head_sizes=Sizes(high=256),
            head_sizes_v=Sizes(high=256),
            group_sizes=ANY,
            block_sizes=ANY,
            kinds=frozenset({"decoder", "encoder", "cross"}),
            kv_sources=frozenset({"cache", "ragged"}),
            causal=frozenset({True, False}),
            windows=frozenset({"left", "right"}),
            any_scale=True,
            softcap=True,
            alibi=True,
            sinks=True,
            lse=True,
            batch_invariant=True,
            layouts=("hnd", "nhd"),
            zero_length_rows=True,
            exact_seq_lens=True,
            max_cache_elements=2**62,
        )

    @classmethod
    def availability(cls) -> Availability:
        """Runs nothing: says whether kernels are there, or a compiler that has not failed on them."""
        reason = store.obstacle()
        return Availability(reasons=(reason,) if reason else ())

    @classmethod
    def build(cls) -> Path:
        return store.build()

    @classmethod
    def prebuild(cls, folder: Path) -> Path:
        return store.build(folder)

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._library = load(store.library())
        left, right = spec.window or (-1, -1)
        self._problem = Problem(
            spec.num_heads, spec.num_kv_heads, spec.head_size, spec.head_size_v, spec.block_size,
            spec.causal, left, right, spec.scale, spec.softcap or 0.0,
        )  # fmt: skip
        count = limits.plans_in_flight + 1
        self._handles = deque(self._library.headstock_plan_new() for _ in range(count))
        self._calls: dict[str, tuple[Call, int, tuple[Tensor | None, ...]]] = {}

    def __del__(self) -> None:
        for handle in getattr(self, "_handles", ()):
            self._library.headstock_plan_free(handle)

    def plan(self, batch: AttentionBatch) -> Plan:
        handle = self._handles[0]
        self._handles.rotate(-1)
        lengths = batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu
        table = batch.block_table
        if table is not None and table.numel() and table.stride(1) != 1:
            table = table.contiguous()
        starts, keys = batch.query_start_loc_cpu.contiguous(), batch.key_start_loc
        lengths, keys = lengths.contiguous(), None if keys is None else keys.contiguous()
        step = Batch(
            starts.data_ptr(),
            lengths.data_ptr(),
            None if keys is None else keys.data_ptr(),
            None if table is None else table.data_ptr(),
            0 if table is None else table.stride(0),
            batch.num_reqs,
        )
        threads = torch.get_num_threads() if parallel_region() else 1
        nbytes = self._library.headstock_plan_fill(
            handle, ctypes.addressof(self._problem), ctypes.addressof(step), threads
        )
        return Plan(handle=handle, workspace_bytes=nbytes, holds=(starts, lengths, keys, table))

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: Plan,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        if kv_cache is not None:
            call = self._cached_call(layer, kv_cache)
        elif key is not None and value is not None:
            call = self._call(layer, key, value, (0, *key.stride()[:2]), (0, *value.stride()[:2]))[0]
        else:
            raise ValueError("neither a cache nor this step's key and value were given")
        call.plan = plan.handle
        call.workspace = self.workspace.get(plan.workspace_bytes).data_ptr()
        call.query = query.data_ptr()
        call.query_token, call.query_head, _ = query.stride()
        call.out = out.data_ptr()
        call.out_token, call.out_head, _ = out.stride()
        call.out_tokens = out.shape[0]
        call.lse = None
        if lse_out is not None:
            call.lse = lse_out.data_ptr()
            call.lse_token, call.lse_head = lse_out.stride()
        self._library.headstock_attend(ctypes.addressof(call))

    def _cached_call(self, layer: LayerParams, cache: KVCache) -> Call:
        """The struct of a layer over its cache, made once; a cache that moved makes it anew."""
        known = self._calls.get(layer.name)
        if known is None or known[1] != cache.k.data_ptr():
            order = (0, 2, 1) if cache.layout.name == "hnd" else (0, 1, 2)
            k, v = cache.k.stride(), cache.v.stride()
            call, holds = self._call(layer, cache.k, cache.v, tuple(k[i] for i in order), tuple(v[i] for i in order))
            known = self._calls[layer.name] = (call, cache.k.data_ptr(), holds)
        return known[0]

    def _call(
        self, layer: LayerParams, key: Tensor, value: Tensor, k: tuple[int, ...], v: tuple[int, ...]
    ) -> tuple[Call, tuple[Tensor | None, ...]]:
        """A struct with everything that stays; `k` and `v` are strides of block, token and head in elements."""
        holds = (
            _per_head(layer.k_scale, self.spec.num_kv_heads),
            _per_head(layer.v_scale, self.spec.num_kv_heads),
            _per_head(layer.sinks, self.spec.num_heads),
            _per_head(layer.alibi_slopes, self.spec.num_heads),
        )
        call = Call(problem=ctypes.addressof(self._problem), parallel=parallel_region())
        call.key, call.value, call.storage = key.data_ptr(), value.data_ptr(), STORAGE[key.dtype]
        call.key_block, call.key_token, call.key_head = (n * key.element_size() for n in k)
        call.value_block, call.value_token, call.value_head = (n * value.element_size() for n in v)
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in holds]
        call.key_scales, call.value_scales, call.sinks, call.slopes = pointers
        call.dtype = STORAGE[getattr(torch, self.spec.dtype)]
        return call, (*holds, key, value)


def _per_head(value: Tensor | None, heads: int) -> Tensor | None:
    """float32 (heads,), contiguous, from one value a head or one for all."""
    return None if value is None else value.float().reshape(-1).expand(heads).contiguous()
