"""flash-attn-4 itself: its checks and its compiler take what the adapter gives, on tensors without data."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from headstock.backends.flash_attn import FlashAttention4
from headstock.backends.flash_attn.common import Plan
from headstock.core.attention import AttentionSpec, LayerParams, Limits, Workspace
from headstock.selector.profiles import profile
from support.attention import ints, make_batch

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.timeout(900),
]
NEEDED = "flash-attn-4==4.0.0b36, with nvidia-cutlass-dsl on the path"
LIMITS = Limits(max_num_reqs=8, max_num_tokens=64, max_model_len=256, max_blocks_per_req=16)


@pytest.fixture
def _hopper(monkeypatch):
    """A card to compile for, without one: flash-attn-4 is told by the environment."""
    for name, value in {
        "FLASH_ATTENTION_ARCH": "sm_90",
        "CUTE_DSL_ARCH": "sm_90a",
        "FLASH_ATTENTION_NUM_SMS": "132",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        import flash_attn.cute  # noqa: F401
    except ImportError as error:
        pytest.skip(f"needs {NEEDED} ({error})")


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"window": (63, 0), "sinks": True, "lse": True},
        {"softcap": 30.0},
        {"kv_source": "ragged", "causal": False, "head_size": 192, "head_size_v": 128},
    ],
    ids=["plain", "window, sinks, LSE", "softcap", "ragged, V unlike K"],
)
def test_it_checks_and_compiles_what_the_adapter_gives(fields):
    spec = AttentionSpec(**{"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16", **fields})
    assert FlashAttention4.refusals(spec, profile("h100")) == ()
    backend = FlashAttention4(spec, profile("h100"), LIMITS, Workspace("cpu"))
    batch = make_batch([1, 3, 4], [20, 9, 4], ints([1, 2, 3, 0, 4, 0]).view(3, 2))
    host = backend.plan(batch)
    with FakeTensorMode():

        def there(x):
            return None if x is None else empty(*x.shape, dtype=x.dtype)

        def empty(*shape, dtype=torch.bfloat16):
            return torch.empty(*shape, dtype=dtype, device="cuda")

        plan = Plan(
            starts=there(host.starts),
            lengths=there(host.lengths),
            key_starts=there(host.key_starts),
            table=there(host.table),
            tokens=host.tokens,
            max_query_len=host.max_query_len,
            max_key_len=host.max_key_len,
        )
        keys = (33,) if spec.kv_source == "ragged" else (6, 16)
        out, lse = backend.call(  # what `forward` does around it a build of torch without CUDA cannot
            LayerParams(name="layer", spec=spec, sinks=empty(8, dtype=torch.float32) if spec.sinks else None),
            empty(8, 8, spec.head_size),
            empty(*keys, 2, spec.head_size),
            empty(*keys, 2, spec.head_size_v),
            plan,
            spec.lse,
        )
    assert (out.shape, out.dtype) == ((8, 8, spec.head_size_v), torch.bfloat16)
    assert (lse is None) is not spec.lse
    assert lse is None or (lse.shape, lse.dtype) == ((8, 8), torch.float32)
