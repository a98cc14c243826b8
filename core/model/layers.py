"""The parts of a decoder: matrices laid out for the machine, RMS norm, rotary embedding, feed-forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .rope import RopeConfig, inverse_frequencies

CACHE_SET_PADDING = 16
"""Elements that keep the rows of a transposed matrix from falling into the same cache sets."""


def matrix(rows: int, columns: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised (rows, columns) weight, in the memory order that this device multiplies fastest.

    For `x @ weight.T` in float32 MKL streams a matrix best along its longer side: with SmolLM2's shapes on a Zen 3 core
    one row of `x` takes half the time, and sixteen rows three quarters, if a tall weight is stored column by column.
    """
    if device.type == "cpu" and dtype == torch.float32 and torch.backends.mkl.is_available() and rows >= columns:
        store = torch.empty(columns, rows + CACHE_SET_PADDING, dtype=dtype, device=device)
        return store[:, :rows].t()
    return torch.empty(rows, columns, dtype=dtype, device=device)


def parameter(value: Tensor) -> nn.Parameter:
    """A weight: never trained here."""
    return nn.Parameter(value, requires_grad=False)


class Linear(nn.Module):
    """`x` (T, inputs) → (T, outputs). Weights are uninitialised until loaded."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = False, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = parameter(matrix(outputs, inputs, dtype=dtype, device=device))
        self.bias = parameter(torch.empty(outputs, dtype=dtype, device=device)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """Scales the last dimension to a root mean square of 1, then by a weight. Zhang and Sennrich 2019."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = parameter(torch.empty(size, dtype=dtype, device=device))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rotary(nn.Module):
    """Turns pairs of channels (i, i + D/2) of Q and K by angles that grow with the position."""

    inverse_frequencies: Tensor

    def __init__(self, rope: RopeConfig, head_size: int, *, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("inverse_frequencies", inverse_frequencies(rope, head_size).to(device), persistent=False)
        self.attention_factor = rope.attention_factor

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine (T, 1, D) and sine (T, 1, D/2) for positions int64 (T,): made once a step for all layers.

        Angles are float32 whatever the model's `dtype`, as in training.
        """
        angles = positions.to(torch.float32)[:, None, None] * self.inverse_frequencies
        cosine, sine = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return torch.cat((cosine, cosine), -1).to(dtype), sine.to(dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`x` (T, heads, D) turned by the angles of `Rotary`."""
    half = sine.shape[-1]
    out = x * cosine
    out[..., :half].addcmul_(x[..., half:], sine, value=-1)
    out[..., half:].addcmul_(x[..., :half], sine)
    return out


class MLP(nn.Module):
    """SwiGLU feed-forward with gate and up projection in one matrix. Shazeer 2020, arXiv 2002.05202."""

    def __init__(self, hidden: int, inner: int, *, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden, 2 * inner, bias=bias, dtype=dtype, device=device)
        self.down_proj = Linear(inner, hidden, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate).mul_(up))
