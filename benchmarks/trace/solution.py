"""A backend as a solution of FlashInfer-Trace: a function of a definition's inputs, and the document that holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...core.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Device,
    KVCache,
    KVLayout,
    LayerParams,
    Limits,
    Workspace,
    count_rows,
)
from ...core.errors import BackendError, InvalidInput
from ...plugins import Offer
from ...selector.judge import Judge, Terms
from .definitions import input_names
from .forms import DECODE, Form, read_name

PAGES = "nhd"
"""The layout of ours that holds pages as FlashInfer-Trace does; other ones get a copy at every call."""
LOG2_E = 1.4426950408889634
SOURCE = """\
from headstock.benchmarks.trace.solution import TraceAttention

attention = TraceAttention({backend!r}, {definition!r}, {options!r})


def run({arguments}):
    return attention({arguments})
"""


def solution(form: Form, backend: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The document: Python that needs headstock, and whatever the backend needs, where it runs."""
    arguments = ", ".join(input_names(form))
    source = SOURCE.format(backend=backend, definition=form.name, options=dict(options), arguments=arguments)
    return {
        "name": solution_name(form, backend),
        "definition": form.name,
        "author": "headstock",
        "description": f"Headstock's backend {backend}. A call makes the plan, too.",
        "spec": {
            "language": "python",
            "target_hardware": ["cpu", "cuda"],
            "entry_point": "main.py::run",
            "dependencies": ["headstock"],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": source}],
    }


def solution_name(form: Form, backend: str) -> str:
    """Unique in a data set."""
    return f"headstock_{backend.replace(':', '_')}_{form.name}"


def solution_spec(form: Form, scale: float) -> AttentionSpec:
    """What a backend has to be able to do to solve a definition: the log-sum-exp is one of its outputs."""
    spec = form.spec(scale, lse=True)
    return spec if form.paged else replace(spec, kv_source="ragged")


class TraceAttention:
    """Attention of one definition through one backend.

    Called with the definition's inputs in their order, it gives output, of the dtype of the queries, and float32 LSE,
    to base 2.
    """

    def __init__(self, backend: str, definition: str, options: Mapping[str, Any] | None = None) -> None:
        """Raises `InvalidInput` for a definition that is none of ours."""
        form = read_name(definition)
        if form is None:
            raise InvalidInput("definition", f"{definition!r} is not one that Headstock has written")
        self._form = form
        self._backend = backend
        self._options = dict(options or {})
        self._names = input_names(form)
        self._at: dict[tuple[torch.device, AttentionSpec], _Instance] = {}

    def __call__(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Raises `BackendError` with all reasons where the backend is unknown or cannot compute this here."""
        given = dict(zip(self._names, inputs, strict=True))
        query, form = given["q"], self._form
        batch = _paged_batch(given, form) if form.paged else _ragged_batch(given)
        instance = self._instance(query.device, solution_spec(form, float(given["sm_scale"])), batch)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
        cache = instance.cache(given["k_cache"], given["v_cache"]) if form.paged else None
        plan = instance.backend.plan(batch)
        instance.backend.prepare(plan)
        instance.backend.forward(
            instance.layer,
            query,
            key=given.get("k"),
            value=given.get("v"),
            kv_cache=cache,
            plan=plan,
            out=out,
            lse_out=lse,
        )
        return out, lse.mul_(LOG2_E)

    def _instance(self, device: torch.device, spec: AttentionSpec, batch: AttentionBatch) -> _Instance:
        """One that is large enough, made anew where none is."""
        needed = Limits(
            max_num_reqs=batch.num_reqs,
            max_num_tokens=batch.num_tokens,
            max_model_len=max(batch.max_seq_len, 1),
            max_blocks_per_req=1 if batch.block_table is None else batch.block_table.shape[1],
        )
        known = self._at.get((device, spec))
        if known is None or not known.holds(needed):
            known = _make(self._backend, self._options, device, spec, needed)
            self._at[device, spec] = known
        return known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Instance:
    """A backend for one spec on one device, and where its keys and values lie."""

    backend: AttentionBackend[Any]
    layer: LayerParams
    layout: KVLayout

    def holds(self, needed: Limits) -> bool:
        mine = self.backend.limits
        return all(
            getattr(mine, name) >= getattr(needed, name)
            for name in ("max_num_reqs", "max_num_tokens", "max_model_len", "max_blocks_per_req")
        )

    def cache(self, keys: Tensor, values: Tensor) -> KVCache:
        """Over these pages (num_pages, page_size, Hkv, D) themselves, where the layout is theirs."""
        size = keys.shape[1]
        if self.layout.name == PAGES:
            return KVCache(layout=self.layout, planes={"k": keys, "v": values}, block_size=size)
        cache = self.layout.allocate(self.layer.spec, len(keys), str(keys.device))
        slots = torch.arange(len(keys) * size, device=keys.device)
        self.layout.scatter(cache, self.layer, keys.flatten(0, 1), values.flatten(0, 1), slots)
        return cache


def find(backend: str, options: Mapping[str, Any], device: str) -> tuple[Offer, Judge]:
    """A backend of what is installed, and who knows what it can do on a device, ``"cpu"`` or ``"cuda:0"``."""
    from ...entrypoints.compose import installed_plugins
    from ...selector import Selector, read_policy

    plugins = installed_plugins()
    offer = plugins.backends.find(backend)
    policy = read_policy(attention_backend_config={backend: options} if options else None)
    return offer, Selector(plugins, policy).judge(_device(device))


@cache
def _device(name: str) -> Device:
    """The one that torch calls so."""
    from ...entrypoints.compose import installed_plugins
    from ...selector import probe

    here = probe(installed_plugins().hooks)
    found = [device for device in here if device.torch_device == name]
    if not found:
        raise BackendError(f"backends compute on {', '.join(d.torch_device for d in here)} here, not on {name}")
    return found[0]


def _make(
    name: str, options: Mapping[str, Any], device: torch.device, spec: AttentionSpec, limits: Limits
) -> _Instance:
    offer, judge = find(name, options, str(device))
    if reasons := judge.reasons(offer, spec, Terms(block_size=spec.block_size)):
        raise BackendError("\n  ".join([f'backend "{offer.label}" cannot compute this definition here:', *reasons]))
    cls, layouts = offer.load(), judge.layouts_of(offer, spec)
    assert cls is not None  # a backend that cannot be loaded has reasons
    workspace = Workspace(judge.device.torch_device)
    backend = cls(spec, judge.device, limits, workspace, judge.options(offer))
    layer = LayerParams(name="layer", spec=spec)
    backend.bind(layer)
    return _Instance(backend=backend, layer=layer, layout=judge.layouts[PAGES if PAGES in layouts else layouts[0]])


def _paged_batch(given: Mapping[str, Any], form: Form) -> AttentionBatch:
    starts, pages = given["kv_indptr"], given["kv_indices"]
    counts = (starts[1:] - starts[:-1]).to(torch.int32)
    width = max(int(counts.max()), 1)
    owned = torch.arange(width, device=starts.device)[None] < counts[:, None]
    table = torch.zeros(len(counts), width, dtype=torch.int32, device=starts.device)
    table[owned] = pages.to(torch.int32)
    lengths = counts
    if form.last_page_len:
        lengths = ((counts - 1) * form.page_size + given["kv_last_page_len"]).clamp_min(0).to(torch.int32)
    queries = given.get("qo_indptr")
    if form.kind == DECODE:
        queries = torch.arange(len(counts) + 1, dtype=torch.int32, device=starts.device)
    return _batch(queries, lengths, block_table=table)


def _ragged_batch(given: Mapping[str, Any]) -> AttentionBatch:
    starts = given["kv_indptr"].to(torch.int32)
    lengths = starts[1:] - starts[:-1]
    return _batch(given["qo_indptr"], lengths, key_start_loc=starts, max_key_len=int(lengths.max()))


def _batch(queries: Any, lengths: Tensor, **more: Any) -> AttentionBatch:
    """Rows as they come; those that are in no order count as extend."""
    starts, host, lengths_host = queries.to(torch.int32), queries.cpu().to(torch.int32), lengths.cpu()
    each = host[1:] - host[:-1]
    return AttentionBatch(
        num_reqs=len(lengths),
        num_tokens=int(host[-1]),
        counts=count_rows(each, lengths_host, 1),
        query_start_loc=starts,
        query_start_loc_cpu=host,
        max_query_len=int(each.max()),
        seq_lens=lengths,
        seq_lens_cpu=lengths_host,
        seq_lens_cpu_upper_bound=lengths_host,
        max_seq_len=int(lengths_host.max()),
        **more,
    )
