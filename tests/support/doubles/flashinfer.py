"""A double of flashinfer 0.7.4: the two wrappers for paged caches.

As there: `plan` takes the query to be float16 unless told; what was planned is kept until the next plan; `run` refuses
other dtypes and other numbers of tokens; softcap, scale and window belong to the plan; the LSE is of base 2 unless the
prefill wrapper is asked for another; `out` is written as if it were contiguous; the templates ("auto") take sinks and
do nothing with them, the kernels of "trtllm-gen" apply them. Results are from `attending`.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .attending import attend, require, require_int32, window
from .install import modules
from .signatures import recorded

RELEASE = "flashinfer-python-0.7.4"
DECODE, PREFILL = (
    "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper",
    "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper",
)
HEAD_SIZES = (64, 128, 256)


def flashinfer() -> dict[str, ModuleType]:
    """The package, with the wrappers at its top."""
    wrappers = {cls.__name__: cls for cls in (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper)}
    return modules("flashinfer", __version__="0.7.4", **wrappers)


def bound(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments of a recorded method by name, defaults applied; TypeError where they do not fit."""
    found = recorded(RELEASE)[name].bind(*args, **kwargs)
    found.apply_defaults()
    return dict(found.arguments)


class _Wrapper:
    """What both have in common."""

    name = ""

    def _begin(self, given: dict[str, Any]) -> None:
        require(given["float_workspace_buffer"].dtype == torch.uint8, "the workspace is made of bytes")
        if given["kv_layout"] not in ("NHD", "HND"):
            raise KeyError(f"Invalid kv_layout {given['kv_layout']}")
        self._kernels = given["backend"]
        self._layout = given["kv_layout"]
        self._planned: dict[str, Any] | None = None

    def _plan(self, given: dict[str, Any], head_dim: int, query_starts: Tensor, causal: bool) -> None:
        indptr, last = given["indptr"], given["last"]
        rows = len(last)
        require_int32("indptr", indptr, (rows + 1,))
        require_int32("last_page_len", last, (rows,))
        require_int32("indices", given["indices"], (len(given["indices"]),))
        require_int32("qo_indptr", query_starts, (rows + 1,))
        page = given["page_size"]
        require(head_dim in HEAD_SIZES, f"Unsupported head_dim: {head_dim}")
        require(given["num_qo_heads"] % given["num_kv_heads"] == 0, "num_qo_heads must be a multiple of num_kv_heads")
        require(bool(((last >= 1) & (last <= page)).all()), "last_page_len is from 1 to page_size")
        require(int(indptr[-1]) == len(given["indices"]), "indices are as many as indptr says")
        if self._kernels == "trtllm-gen":
            if not causal and given["window_left"] >= 0:
                raise NotImplementedError("Sliding-window non-causal attention is not supported for trtllm-gen")
            assert (given["logits_soft_cap"] or 0.0) == 0.0, "logits_soft_cap must be 0.0 for trtllm-gen"
            require(page in (16, 32, 64), "trtllm-gen reads pages of 16, 32 and 64")
        dtype = given["q_data_type"]
        self._planned = given | {
            "dtype": getattr(torch, dtype) if isinstance(dtype, str) else dtype,
            "head_dim": head_dim,
            "query_starts": query_starts.clone(),
            "causal": causal,
            "pages": self._pages(indptr, given["indices"], last),
        }

    def _pages(self, indptr: Tensor, indices: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return indptr.clone(), indices.clone(), last.clone()

    def _run(self, given: dict[str, Any], base: str) -> Any:
        planned, q = self._planned, given["q"]
        if planned is None:
            raise RuntimeError("plan() comes before run()")
        keys, values = (x if self._layout == "NHD" else x.transpose(1, 2) for x in given["paged_kv_cache"])
        if q.dtype != planned["dtype"]:
            raise ValueError(f"The dtype of q {q.dtype} does not match the q_data_type {planned['dtype']}")
        stored = planned["kv_data_type"] or planned["dtype"]
        if keys.dtype != stored:
            raise ValueError(f"The dtype of k {keys.dtype} does not match the kv_data_type {stored}")
        require(keys.shape[1] == planned["page_size"], "the cache has other pages than planned")
        starts = planned["query_starts"].tolist()
        if len(q) != starts[-1]:
            raise ValueError(f"q.shape[0] ({len(q)}) does not match qo_indptr[-1] ({starts[-1]})")
        assert given["window_left"] in (None, planned["window_left"])
        sinks = given["sinks"] if self._kernels == "trtllm-gen" else None
        out, lse = self._attend(q, keys, values, planned, starts, sinks, given["k_scale"])
        out = out.to(q.dtype)
        if given["v_scale"] is not None:
            out = out * given["v_scale"]
        target = given["out"]
        if target is not None:
            require(target.shape == q.shape and target.dtype == q.dtype, "out has another shape or dtype")
            target.as_strided(out.shape, out.stride()).copy_(out)
            out = target
        if not given["return_lse"]:
            return out
        return out, (lse / math.log(2.0) if base == "log2" else lse).float()

    def _attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        planned: dict[str, Any],
        starts: list[int],
        sinks: Tensor | None,
        k_scale: float | None,
    ) -> tuple[Tensor, Tensor]:
        indptr, indices, last = planned["pages"]
        out = torch.zeros(q.shape, dtype=torch.float64)
        lse = torch.zeros(q.shape[:2], dtype=torch.float64)
        scale = (planned["sm_scale"] or q.shape[-1] ** -0.5) * (1.0 if k_scale is None else k_scale)
        for row in range(len(starts) - 1):
            rows, pages = slice(starts[row], starts[row + 1]), indices[indptr[row] : indptr[row + 1]].long()
            n = (len(pages) - 1) * planned["page_size"] + int(last[row])
            k, v = (_floats(x[pages]).flatten(0, 1)[:n] for x in (keys, values))
            seen = window(rows.stop - rows.start, n, planned["window_left"], 0 if planned["causal"] else -1)
            out[rows], lse[rows] = attend(
                q[rows], k, v, scale=scale, seen=seen, softcap=planned["logits_soft_cap"] or 0.0, sinks=sinks
            )
        return out, lse


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """Rows of one query token."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = bound(f"{DECODE}.__init__", self, *args, **kwargs)
        self._begin(given)
        self._graph = given["use_cuda_graph"]
        names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
        self._buffers = [given[name] for name in names]
        if self._graph:
            for name, buffer in zip(names, self._buffers, strict=True):
                if buffer is None:
                    raise ValueError(f"{name} should be a torch.Tensor in cudagraph mode")
            if len(self._buffers[0]) != len(self._buffers[2]) + 1:
                raise ValueError("The size of paged_kv_indptr_buffer should be batch_size + 1")
        self._tensor_cores = given["use_tensor_cores"]

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """The public signature takes anything; it is `_plan_impl` that has to fit."""
        given = bound(f"{DECODE}._plan_impl", self, *args, **kwargs)
        group = given["num_qo_heads"] // given["num_kv_heads"]
        require(self._tensor_cores or group in (1, 2, 4, 8), f"Unsupported group_size: {group}")
        given |= {"last": given["last_page_len"]}
        rows = len(given["last"])
        if self._graph:
            if rows != len(self._buffers[2]):
                raise ValueError("The batch size should be fixed in cudagraph mode")
            if len(given["indices"]) > len(self._buffers[1]):
                raise ValueError("The size of indices should be less than or equal to the allocated buffer")
        self._plan(given, given["head_dim"], torch.arange(rows + 1, dtype=torch.int32), causal=True)

    def _pages(self, indptr: Tensor, indices: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self._graph:
            return super()._pages(indptr, indices, last)
        for buffer, fresh in zip(self._buffers, (indptr, indices, last), strict=True):
            buffer[: len(fresh)].copy_(fresh)
        return tuple(self._buffers)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(bound(f"{DECODE}.run", self, *args, **kwargs), "log2")


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Rows of any number of query tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = bound(f"{PREFILL}.__init__", self, *args, **kwargs)
        require(not given["use_cuda_graph"], "the double's prefill wrapper knows no graphs")
        self._begin(given)

    def plan(self, *args: Any, **kwargs: Any) -> None:
        given = bound(f"{PREFILL}.plan", self, *args, **kwargs)
        renamed = {"indptr": "paged_kv_indptr", "indices": "paged_kv_indices", "last": "paged_kv_last_page_len"}
        given |= {short: given[long] for short, long in renamed.items()}
        self._plan(given, given["head_dim_qk"], given["qo_indptr"], given["causal"])

    def run(self, *args: Any, **kwargs: Any) -> Any:
        given = bound(f"{PREFILL}.run", self, *args, **kwargs)
        if given["lse_base"] not in ("log2", "ln"):
            raise ValueError(f"lse_base must be one of ('log2', 'ln'), got {given['lse_base']!r}")
        return self._run(given, given["lse_base"])


def _floats(x: Tensor) -> Tensor:
    return x if x.element_size() > 1 else x.to(torch.float32)


for _cls, _name in ((BatchDecodeWithPagedKVCacheWrapper, DECODE), (BatchPrefillWithPagedKVCacheWrapper, PREFILL)):
    for _method in ("__init__", "plan", "run"):
        getattr(_cls, _method).__signature__ = recorded(RELEASE)[f"{_name}.{_method}"]
