"""A `Form` as a definition of FlashInfer-Trace with a reference that computes it, and other people's as a `Form`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .forms import DECODE, Form, read_name

TAG = "source:headstock"
_PAGES = ("num_pages", "page_size", "num_kv_heads", "head_dim")
_DESCRIPTIONS = {
    "q": "Queries: the last tokens of each sequence, sequence after sequence.",
    "k_cache": "Keys by page.",
    "v_cache": "Values by page.",
    "k": "Keys, sequence after sequence.",
    "v": "Values, sequence after sequence.",
    "qo_indptr": "Where each sequence's queries begin.",
    "kv_indptr": "Where each sequence's pages, or keys if there are no pages, begin.",
    "kv_indices": "Pages of each sequence, in order.",
    "kv_last_page_len": "Tokens in the last page of each sequence.",
    "sm_scale": "Multiplies q·k.",
    "output": "Attention output.",
    "lse": "The 2-based log-sum-exp of the logits.",
}
_CONSTRAINTS = {
    "batch_size": "len_indptr == batch_size + 1",
    "total_q": "total_q == qo_indptr[-1].item()",
    "num_kv_indices": "num_kv_indices == kv_indptr[-1].item()",
    "total_kv": "total_kv == kv_indptr[-1].item()",
}
"""By the axis they are about."""
_HEAD = '''\
import math

import torch


def attend(q, k, v, sm_scale):
    """float64 output and 2-based LSE of q (n, Hq, D), the last n of the m tokens of k and v (m, Hkv, D)."""
    n, num_heads, _ = q.shape
    m, num_kv_heads, _ = k.shape
    output = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full((n, num_heads), -math.inf, dtype=torch.float64, device=q.device)
    own = torch.arange(m - n, m, device=q.device)[:, None]
    keys = torch.arange(m, device=q.device)[None]
    hidden = {hidden}
    for head in range(num_heads):
        kv_head = head // (num_heads // num_kv_heads)
        logits = (q[:, head].double() @ k[:, kv_head].double().T) * sm_scale
{softcap}        logits = logits.masked_fill(hidden, -math.inf)
        sums = torch.logsumexp(logits, dim=-1)
        weights = torch.exp(logits - sums[:, None]).masked_fill(hidden, 0.0)
        output[:, head] = weights @ v[:, kv_head].double()
        lse[:, head] = sums / math.log(2.0)
    return output, lse


@torch.no_grad()
def run({arguments}):
    assert tuple(q.shape[1:]) == ({num_heads}, {head_size})
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
'''
_PAGED = """\
    assert tuple(k_cache.shape[1:]) == ({page_size}, {num_kv_heads}, {head_size})
    for row in range(kv_indptr.shape[0] - 1):
        {own}
        pages = kv_indices[int(kv_indptr[row]) : int(kv_indptr[row + 1])].long()
        length = {length}
        if first == end or length <= 0:
            continue
        k = k_cache[pages].flatten(0, 1)[:length]
        v = v_cache[pages].flatten(0, 1)[:length]
"""
_RAGGED = """\
    assert tuple(k.shape[1:]) == ({num_kv_heads}, {head_size})
    keys, values = k, v
    for row in range(kv_indptr.shape[0] - 1):
        {own}
        k = keys[int(kv_indptr[row]) : int(kv_indptr[row + 1])]
        v = values[int(kv_indptr[row]) : int(kv_indptr[row + 1])]
        if first == end or len(k) == 0:
            continue
"""
_TAIL = """\
        exact, sums = attend(q[first:end], k, v, sm_scale)
        output[first:end] = exact.to(q.dtype)
        lse[first:end] = sums.float()
    return output, lse
"""


def definition(form: Form) -> dict[str, Any]:
    """The document. What it computes in float64 is the convention of this package's float64 reference."""
    stage = "decode" if form.kind == DECODE else "prefill"
    about = ["Grouped-query attention over " + ("a paged KV cache" if form.paged else "ragged keys"), "causal"]
    about += [f"each query sees {form.window} keys"] if form.window is not None else []
    about += [f"logits capped at {form.softcap:.9g}"] if form.softcap is not None else []
    axes = axes_of(form)
    return {
        "name": form.name,
        "description": ", ".join(about) + ". Recorded by Headstock.",
        "op_type": form.op_type,
        "tags": [f"stage:{stage}", TAG],
        "axes": axes,
        "constraints": [text for axis, text in _CONSTRAINTS.items() if axis in axes],
        "inputs": _inputs(form),
        "outputs": _outputs(form),
        "reference": reference(form),
    }


def axes_of(form: Form) -> dict[str, dict[str, Any]]:
    """What its tensors' dimensions are called, in the order in which they come up; variable ones have no value."""
    tensors = (*_inputs(form).values(), *_outputs(form).values())
    return {axis: _axis(axis, form) for axis in dict.fromkeys(a for t in tensors for a in t["shape"] or ())}


def input_names(form: Form) -> tuple[str, ...]:
    """In their order."""
    starts = ("kv_indptr",) if form.kind == DECODE else ("qo_indptr", "kv_indptr")
    if not form.paged:
        return ("q", "k", "v", *starts, "sm_scale")
    last = ("kv_last_page_len",) if form.last_page_len else ()
    return ("q", "k_cache", "v_cache", *starts, "kv_indices", *last, "sm_scale")


def reference(form: Form) -> str:
    """Python source whose ``run`` takes the inputs and gives output and LSE."""
    sizes = {
        "num_heads": form.num_heads,
        "num_kv_heads": form.num_kv_heads,
        "head_size": form.head_size,
        "page_size": form.page_size,
        "arguments": ", ".join(input_names(form)),
        "hidden": "keys > own" if form.window is None else f"(keys > own) | (keys <= own - {form.window})",
        "softcap": ""
        if form.softcap is None
        else f"        logits = {form.softcap!r} * torch.tanh(logits / {form.softcap!r})\n",
        "own": "first, end = row, row + 1"
        if form.kind == DECODE
        else "first, end = int(qo_indptr[row]), int(qo_indptr[row + 1])",
        "length": f"(len(pages) - 1) * {form.page_size} + int(kv_last_page_len[row])"
        if form.last_page_len
        else "len(pages)",
    }
    return (_HEAD + (_PAGED if form.paged else _RAGGED) + _TAIL).format(**sizes)


def read_definition(document: Mapping[str, Any]) -> tuple[Form | None, tuple[str, ...]]:
    """The form that a definition of anybody's stands for, or everything that speaks against reading it as one.

    What it computes stands in its name, by the convention of the data set, and is held against its tensors. A name of
    a form that only we have has to come with our reference. Nothing of a definition is executed.
    """
    form = read_name(document["name"])
    if form is None:
        return None, ("its name is none of gqa_paged_decode_…, gqa_paged_prefill_causal_… and gqa_ragged_prefill_…",)
    against: list[str] = []
    if document["op_type"] != form.op_type:
        against.append(f"op_type is {document['op_type']}, its name means {form.op_type}")
    if not form.plain and document["reference"] != reference(form):
        against.append("its name means a window or a softcap, and its reference is not Headstock's")
    mine = _inputs(form)
    given = document["inputs"]
    if missing := [name for name in mine if name not in given]:
        against.append(f"without {', '.join(missing)} among its inputs")
    if more := [name for name in given if name not in mine]:
        against.append(f"with inputs that are not known: {', '.join(more)}")
    for name in mine:
        if name in given:
            against += _differences(name, mine[name], given[name], form, document["axes"])
    return (None, tuple(against)) if against else (form, ())


def _differences(
    name: str, mine: Mapping[str, Any], given: Mapping[str, Any], form: Form, axes: Mapping[str, Any]
) -> list[str]:
    """In what a tensor is not what the form has: its dtype, or a dimension that the form fixes."""
    found = [f"{name} is {given['dtype']}, not {mine['dtype']}"] if given["dtype"] != mine["dtype"] else []
    if mine["shape"] is None or given["shape"] is None:
        return found if mine["shape"] == given["shape"] else [*found, f"{name} is a tensor or a number, not the other"]
    if len(mine["shape"]) != len(given["shape"]):
        return [*found, f"{name} has {len(given['shape'])} dimensions, not {len(mine['shape'])}"]
    for own, other in zip(mine["shape"], given["shape"], strict=True):
        wanted, size = _axis(own, form).get("value"), axes.get(other, {}).get("value")
        if wanted is not None and wanted != size:
            found.append(f"{name} has {other} = {size}, its name means {wanted}")
    return found


def _axis(name: str, form: Form) -> dict[str, Any]:
    sizes = {
        "num_qo_heads": form.num_heads,
        "num_kv_heads": form.num_kv_heads,
        "head_dim": form.head_size,
        "page_size": form.page_size,
    }
    return {"type": "const", "value": sizes[name]} if name in sizes else {"type": "var"}


def _queries(form: Form) -> str:
    return "batch_size" if form.kind == DECODE else "total_q"


def _inputs(form: Form) -> dict[str, Any]:
    shapes: dict[str, tuple[Sequence[str] | None, str]] = {
        "q": ((_queries(form), "num_qo_heads", "head_dim"), form.dtype),
        "k_cache": (_PAGES, form.dtype),
        "v_cache": (_PAGES, form.dtype),
        "k": (("total_kv", "num_kv_heads", "head_dim"), form.dtype),
        "v": (("total_kv", "num_kv_heads", "head_dim"), form.dtype),
        "qo_indptr": (("len_indptr",), "int32"),
        "kv_indptr": (("len_indptr",), "int32"),
        "kv_indices": (("num_kv_indices",), "int32"),
        "kv_last_page_len": (("batch_size",), "int32"),
        "sm_scale": (None, "float32"),
    }
    return {name: _tensor(name, *shapes[name]) for name in input_names(form)}


def _outputs(form: Form) -> dict[str, Any]:
    rows = (_queries(form), "num_qo_heads")
    return {
        "output": _tensor("output", (*rows, "head_dim"), form.dtype),
        "lse": _tensor("lse", rows, "float32"),
    }


def _tensor(name: str, shape: Sequence[str] | None, dtype: str) -> dict[str, Any]:
    return {
        "shape": None if shape is None else list(shape),
        "dtype": dtype,
        "description": _DESCRIPTIONS[name],
    }
