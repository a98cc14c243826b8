"""The double of AITER refuses what the library refuses: every documented check, violated once."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from support.doubles import aiter, aiter_paged
from support.doubles.checks import unviolated

HALF = torch.bfloat16
DOUBLE = aiter.aiter()


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def randoms(*shape, dtype=HALF):
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def varlen(**changes):
    """Two rows of 2 queries, 5 and 3 keys."""
    keys = randoms(8, 2, 64)
    arguments = {
        "q": randoms(4, 4, 64), "k": keys, "v": keys, "cu_seqlens_q": ints(0, 2, 4), "cu_seqlens_k": ints(0, 5, 8),
        "max_seqlen_q": 2, "max_seqlen_k": 5, "causal": True, "return_lse": True,
    }  # fmt: skip
    return DOUBLE["aiter.ops.mha"].flash_attn_varlen_func(**arguments | changes)


def pages(size, **changes):
    """The same keys in pages of `size`."""
    planes = randoms(3, size, 2, 64)
    return {"k": planes, "v": planes, "block_table": ints(1, 0, 2, 0).view(2, 2), **changes}


def unified(**changes):
    """The same rows, in pages of 16."""
    arguments = {
        "q": randoms(4, 4, 64), "k": randoms(3, 16, 2, 64), "v": randoms(3, 16, 2, 64), "out": randoms(4, 4, 64),
        "cu_seqlens_q": ints(0, 2, 4), "max_seqlen_q": 2, "seqused_k": ints(5, 3), "max_seqlen_k": 5,
        "softmax_scale": 0.125, "causal": True, "window_size": (-1, -1), "block_table": ints(1, 0, 2, 0).view(2, 2),
        "softcap": 0.0, "q_descale": None, "k_descale": None, "v_descale": None,
    }  # fmt: skip
    return DOUBLE["aiter.ops.triton.attention.unified_attention"].unified_attention(**arguments | changes)


def decodes(size=64, block=16, heads=4, kv_heads=2, **changes):
    """Two decodes over pages of `block`."""
    planes = randoms(3, block, kv_heads, size)
    arguments = {
        "out": randoms(2, heads, size), "workspace_buffer": torch.zeros(2 * heads * (size * 2 + 8), dtype=torch.uint8),
        "query": randoms(2, heads, size), "key_cache": planes, "value_cache": planes, "scale": 0.125,
        "block_tables": ints(1, 0, 2, 0).view(2, 2), "cu_query_lens": ints(0, 1, 2), "context_lens": ints(5, 3),
        "max_context_len": 5, "alibi_slopes": None, "kv_cache_dtype": "auto", "kv_cache_layout": "NHD",
        "logits_soft_cap": 0.0, "k_scale": torch.ones(1), "v_scale": torch.ones(1),
    }  # fmt: skip
    return DOUBLE["aiter.ops.attention"].paged_attention_v1(**arguments | changes)


def packed(size=64, block=16, heads=4, kv_heads=2, dtype=HALF, longest=5, **changes):
    """The same decodes over packed planes."""
    parts, x = (2, heads, -(-longest // 256)), 16 // dtype.itemsize
    arguments = {
        "out": randoms(2, heads, size), "exp_sums": torch.zeros(parts), "max_logits": torch.zeros(parts),
        "tmp_out": randoms(*parts, size), "query": randoms(2, heads, size),
        "key_cache": torch.ones(3, kv_heads, size // x, block, x).to(dtype),
        "value_cache": torch.ones(3, kv_heads, size, block).to(dtype), "num_kv_heads": kv_heads, "scale": 0.125,
        "block_tables": ints(1, 0, 2, 0).view(2, 2), "context_lens": ints(5, 3), "block_size": block,
        "max_context_len": longest, "alibi_slopes": None, "kv_cache_dtype": "auto", "k_scale": torch.ones(1),
        "v_scale": torch.ones(1),
    }  # fmt: skip
    return DOUBLE["aiter.ops.attention"].paged_attention_rocm(**arguments | changes)


def shuffled(size=128, block=16, heads=4, kv_heads=2, dtype=HALF, **changes):
    """The same decodes over shuffled planes: more heads than the card has use for, so the assembly kernel has them."""
    parts, x = (2, heads, 1), 16 // dtype.itemsize
    arguments = {
        "Q": randoms(2, heads, size), "K": torch.ones(3, kv_heads, size // x, block, x).to(dtype),
        "V": torch.ones(3, kv_heads, block // x, size, x).to(dtype), "exp_sums": torch.zeros(parts),
        "max_logits": torch.zeros(parts), "tmp_out": randoms(*parts, size),
        "block_tables": ints(1, 0, 2, 0).view(2, 2), "context_lens": ints(5, 3), "block_tables_stride0": 2,
        "scale": 128**-0.5, "max_qlen": 1, "max_seq_len": 5, "out_": randoms(2, heads, size), "kv_cache_dtype": "auto",
        "K_QScale_hip": torch.ones(1), "V_QScale_hip": torch.ones(1),
    }  # fmt: skip
    return DOUBLE["aiter.ops.attention"].paged_attention_common(**arguments | changes)


def wide(size):
    return {"q": randoms(4, 4, size), "k": randoms(8, 2, size), "v": randoms(8, 2, size)}


EIGHT_BITS = {"k": torch.zeros(3, 16, 2, 64).to(torch.float8_e4m3fnuz), "k_descale": None}
REFUSED = [
    (varlen, {"q": randoms(4, 4, 64, dtype=torch.float32)}, "fp16 and bf16"),
    (varlen, {"k": randoms(8, 2, 64, dtype=torch.float16)}, "fp16 and bf16"),
    (varlen, {"q": randoms(4, 64, 4).transpose(1, 2)}, "contiguous last dimension"),
    (varlen, wide(264), "at most 256"),
    (varlen, wide(68), "multiple of 8"),
    (varlen, {"q": randoms(4, 3, 64)}, "must divide"),
    (varlen, {"q": randoms(4, 4, 128)}, "one head dimension"),
    (varlen, {"cu_seqlens_q": ints(0, 2, 4).long()}, "cu_seqlens_q must have dtype"),
    (varlen, {"cu_seqlens_k": ints(0, 5, 8).long()}, "cu_seqlens_k must have dtype"),
    (varlen, {"cu_seqlens_k": ints(0, 5)}, "cu_seqlens_k must have shape"),
    (varlen, {"window_size": (3, 0, 4)}, "sinks, which are none"),
    (varlen, {"max_seqlen_k": 4}, "longer than the longest"),
    (varlen, {"max_seqlen_q": 1}, "longer than the longest"),
    (varlen, {"out": randoms(4, 4, 64, dtype=torch.float16)}, "like the query"),
    (varlen, {"alibi_slopes": torch.zeros(4).double()}, "must have dtype fp32"),
    (varlen, {"alibi_slopes": torch.zeros(2)}, "one a head"),
    (varlen, pages(16), "divisible by 128"),
    (varlen, pages(192), "divisible by 128"),
    (varlen, pages(128, block_table=torch.ones(2, 2, dtype=torch.int64)), "block_table must have dtype"),
    (unified, {"causal": False}, "Only causal"),
    (unified, {"q_descale": torch.ones(1)}, "Q scales not supported"),
    (unified, {"sinks": torch.zeros(3)}, "num_query_heads"),
    (unified, EIGHT_BITS, "through one scale"),
    (unified, EIGHT_BITS | {"k_descale": torch.ones(2)}, "through one scale"),
    (
        unified,
        {
            "q": randoms(2, 4, 64), "out": randoms(2, 4, 64), "cu_seqlens_q": ints(0, 1, 2), "max_seqlen_q": 1,
            "k": randoms(3, 24, 2, 64), "v": randoms(3, 24, 2, 64),
        },
        "must be a power of 2, not 24",
    ),
    (decodes, {"kv_cache_dtype": "fp8"}, "Unsupported data type"),
    (decodes, {"kv_cache_layout": "HND"}, "Unsupported kv cache layout"),
    (decodes, {"size": 96}, "Unsupported head size"),
    (decodes, {"size": 256}, "Unsupported head size"),
    (decodes, {"block": 64}, "Unsupported block size"),
    (decodes, {"heads": 34}, "Unsupported gqa ratio"),
    (decodes, {"heads": 3}, "Unsupported gqa ratio"),
    (decodes, {"context_lens": ints(5, 3).long()}, "context_lens must have dtype"),
    (decodes, {"cu_query_lens": ints(0, 1, 2).long()}, "cu_query_lens must have dtype"),
    (decodes, {"block_tables": torch.ones(2, 2, dtype=torch.int64)}, "block_tables must have dtype"),
    (decodes, {"k_scale": torch.ones(2)}, "one scale a tensor"),
    (decodes, {"workspace_buffer": torch.zeros(8, dtype=torch.uint8)}, "the workspace is too small"),
    (decodes, {"max_context_len": 4}, "longer than the longest"),
    (packed, {"tmp_out": randoms(2, 4)}, "tmp_out must have shape"),
    (packed, {"exp_sums": torch.zeros(2, 4)}, "exp_sums must have shape"),
    (packed, {"longest": 300, "max_logits": torch.zeros(2, 4, 1)}, r"max_logits.size\(2\)=1 is too small"),
    (packed, {"block_tables": ints(1, 2)}, "must be 2D"),
    (packed, {"max_context_len": 33}, r"block_tables.size\(1\)=2 is too small"),
    (packed, {"context_lens": ints(5)}, "must match block_tables"),
    (packed, {"dtype": torch.float8_e4m3fnuz}, "Unsupported dtype"),
    (packed, {"kv_cache_dtype": "fp8"}, "Unsupported dtype"),
    (packed, {"size": 96}, "Unsupported head size"),
    (packed, {"block": 8}, "Unsupported block size"),
    (packed, {"heads": 34}, "Unsupported gqa ratio"),
    (packed, {"context_lens": ints(5, 3).long()}, "context_lens must have dtype"),
    (packed, {"block_tables": torch.ones(2, 2, dtype=torch.int64)}, "block_tables must have dtype"),
    (packed, {"v_scale": torch.ones(2)}, "one scale a tensor"),
    (packed, {"max_context_len": 4}, "longer than the longest"),
    (shuffled, {"Q": randoms(2, 4, 128, dtype=torch.float32)}, "unsupport Q dtype"),
    (shuffled, {"dtype": torch.int8}, "unsupport K dtype"),
    (shuffled, {"block": 32}, "cannot get heuristic kernel"),
    (shuffled, {"heads": 34}, "cannot get heuristic kernel"),
    (shuffled, {"context_lens": ints(5, 3).long()}, "context_lens must have dtype"),
    (shuffled, {"block_tables": torch.ones(2, 2, dtype=torch.int64)}, "block_tables must have dtype"),
    (shuffled, {"size": 64, "heads": 2, "block": 8}, "Unsupported block size"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "changes", "message"), REFUSED)
def test_the_double_checks_what_the_library_checks(call, changes, message):
    with pytest.raises(RuntimeError, match=message):
        call(**changes)


def test_every_check_is_violated():
    assert unviolated([aiter, aiter_paged], [partial(call, **changes) for call, changes, _ in REFUSED]) == []


@pytest.mark.parametrize("call", [varlen, unified, decodes, packed, shuffled, partial(varlen, **pages(128))])
def test_what_is_right_is_answered(call):
    call()


@pytest.mark.parametrize(("call", "argument"), [(unified, "shuffled_kv_cache"), (decodes, "fp8_out_scale")])
def test_arguments_that_a_release_lacks_or_the_double_does_not_know_are_refused(call, argument):
    with pytest.raises((TypeError, NotImplementedError), match=argument):
        call(**{argument: None})


class TestWindows:
    """W keys are the current one and W - 1 before it for all but paged_attention_v1, which is not given any."""

    def test_varlen_counts_those_before(self):
        keys, values = torch.zeros(8, 2, 64, dtype=HALF), torch.arange(8.0).to(HALF)[:, None, None].expand(8, 2, 64)
        out, _ = varlen(k=keys, v=values.contiguous(), window_size=(1, 0))
        assert out[:, 0, 0].tolist() == [2.5, 3.5, 5.5, 6.5]  # keys 2 and 3, 3 and 4; then 5 and 6, 6 and 7

    def test_unified_does_and_ignores_the_right_side(self):
        values = torch.zeros(3, 16, 2, 64, dtype=HALF)
        values[1, :5] = torch.arange(5.0).to(HALF)[:, None, None]
        values[2, :3] = torch.arange(5.0, 8.0).to(HALF)[:, None, None]
        for right in (0, 5, -1):
            out = unified(k=torch.zeros(3, 16, 2, 64, dtype=HALF), v=values, window_size=(1, right))
            assert out[:, 0, 0].tolist() == [2.5, 3.5, 5.5, 6.5]


def test_the_scale_of_varlen_is_the_usual_one_where_none_is_given():
    torch.manual_seed(0)
    own = varlen()[0]
    torch.manual_seed(0)
    assert torch.equal(own, varlen(softmax_scale=64**-0.5)[0])


def test_lse_is_natural_and_minus_infinity_without_a_key():
    keys = torch.zeros(8, 2, 64, dtype=HALF)
    _, lse = varlen(k=keys, v=keys, cu_seqlens_k=ints(0, 1, 8), max_seqlen_k=7)
    assert lse.shape == (4, 4)
    assert lse[:, 0].tolist() == [float("-inf")] * 4
    assert torch.allclose(lse[0, 1:], torch.tensor([1.0, 6.0, 7.0]).log())


def test_the_scale_of_the_assembly_kernel_is_its_own():
    key = randoms(3, 2, 16, 16, 8)
    value = randoms(3, 2, 2, 128, 8)
    query = randoms(2, 4, 128)
    asm, same = (shuffled(Q=query, K=key, V=value, scale=scale) for scale in (0.5, 0.25))
    assert torch.equal(asm, same)
    few = {"Q": query[:, :2], "K": key, "V": value, "heads": 2}
    assert not torch.equal(shuffled(**few, scale=0.5), shuffled(**few, scale=0.25))


def test_a_block_is_read_whole_by_decodes():
    dirty = torch.ones(3, 16, 2, 64, dtype=HALF)
    dirty[1, 7] = float("nan")
    decoded = decodes(key_cache=dirty, value_cache=dirty)
    assert decoded[0].isnan().all()
    assert decoded[1].isfinite().all()
