"""What the doubles compute with: attention in float64, written from the definition, and the pieces around it.

Nothing here comes from the package: a double that called the code it is to prove would prove nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    seen: Tensor,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One sequence: query (t, H, D), keys (n, Hk, D), values (n, Hk, Dv), seen bool (t, n), bias (H, t, n).

    float64 (out (t, H, Dv), natural LSE (t, H)): 0 and -inf where nothing is seen and there is no sink. What is not
    seen has no part in it, NaN included.
    """
    group = query.shape[1] // keys.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    logits = torch.einsum("thd,nhd->htn", query.double(), k) * scale
    if softcap:
        logits = softcap * (logits / softcap).tanh()
    if bias is not None:
        logits = logits + bias
    logits = torch.where(seen[None], logits, torch.tensor(float("-inf"), dtype=torch.float64))
    everything = (
        logits if sinks is None else torch.cat([logits, sinks.double()[:, None, None].expand(-1, len(query), 1)], 2)
    )
    if everything.shape[2] == 0:
        empty = torch.full((len(query), query.shape[1]), float("-inf"), dtype=torch.float64)
        return torch.zeros(*query.shape[:2], values.shape[2], dtype=torch.float64), empty
    lse = torch.logsumexp(everything, 2)
    weights = torch.exp(logits - lse.clamp_min(-1e300)[..., None])
    visible = seen.any(0)
    out = torch.einsum("htn,nhd->thd", weights[:, :, visible], v[visible])
    return out, lse.T


def window(queries: int, keys: int, left: int, right: int) -> Tensor:
    """bool (queries, keys): keys from `left` before to `right` behind each query, from the end; -1 is no bound."""
    at = torch.arange(keys - queries, keys)[:, None]
    j = torch.arange(keys)[None]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        seen &= j >= at - left
    if right >= 0:
        seen &= j <= at + right
    return seen


def distances(queries: int, keys: int) -> Tensor:
    """float64 (queries, keys): how far each key is behind each query; negative where it is ahead."""
    return (torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None]).double()


def require(condition: bool, message: str) -> None:
    """What a library checks: raise what a failed TORCH_CHECK becomes in Python."""
    if not condition:
        raise RuntimeError(message)


def require_int32(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """`x` is int32, of this shape, its last dimension contiguous."""
    require(x.dtype == torch.int32, f"{name} must have dtype torch.int32, not {x.dtype}")
    require(tuple(x.shape) == shape, f"{name} must have shape {shape}, not {tuple(x.shape)}")
    require(x.numel() == 0 or x.shape[-1] == 1 or x.stride(-1) == 1, f"{name} must be contiguous")
