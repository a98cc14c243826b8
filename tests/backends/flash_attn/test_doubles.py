"""The doubles refuse what the libraries refuse: every documented check, violated once."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from support.doubles import dao
from support.doubles.checks import unviolated
from support.doubles.signatures import parse, recorded, standing_in

HALF = torch.bfloat16


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def two_rows(page, **changes):
    """Two rows of 2 queries, 5 and 3 keys, in pages 1 and 2."""
    cache = torch.randn(3, page, 2, 16, dtype=HALF)
    arguments = {"q": torch.randn(4, 4, 16, dtype=HALF), "k": cache, "v": cache, "max_seqlen_q": 2}
    return arguments | {"cu_seqlens_q": ints(0, 2, 4)} | changes


def fa2(**changes):
    call = dao.flash_attn_2()["flash_attn"].flash_attn_varlen_func
    pages = {"cu_seqlens_k": ints(0, 5, 8), "max_seqlen_k": 5, "block_table": ints(1, 2).view(2, 1)}
    return call(**two_rows(256, **pages) | changes)


def fa3(**changes):
    call = dao.flash_attn_3()["flash_attn_interface"].flash_attn_with_kvcache
    arguments = two_rows(4, cache_seqlens=ints(5, 3), page_table=ints(1, 0, 2, 0).view(2, 2))
    renamed = {{"k": "k_cache", "v": "v_cache"}.get(name, name): value for name, value in arguments.items()}
    return call(**renamed | changes)


def fa4(arch=90, **changes):
    call = dao.flash_attn_4(arch)["flash_attn.cute"].flash_attn_varlen_func
    pages = {"seqused_k": ints(5, 3), "max_seqlen_k": 5, "page_table": ints(1, 0, 2, 0).view(2, 2)}
    return call(**two_rows(4, **pages) | changes)


def wide(size):
    cache = torch.zeros(3, 256, 2, size, dtype=HALF)
    return {"q": torch.zeros(4, 4, size, dtype=HALF), "k": cache, "v": cache}


FA2_REFUSED = [
    (
        {"k": torch.zeros(3, 128, 2, 16, dtype=HALF), "v": torch.zeros(3, 128, 2, 16, dtype=HALF)},
        "divisible by 256",
    ),
    ({"q": torch.zeros(4, 4, 16)}, "fp16 and bf16"),
    ({"q": torch.zeros(4, 4, 16, dtype=torch.float16)}, "same dtype"),
    ({"q": torch.zeros(4, 3, 16, dtype=HALF)}, "must divide"),
    ({"q": torch.zeros(4, 16, 4, dtype=HALF).transpose(1, 2)}, "contiguous last dimension"),
    ({"cu_seqlens_q": ints(0, 2, 4).long()}, "cu_seqlens_q must have dtype"),
    ({"cu_seqlens_k": ints(0, 5)}, "cu_seqlens_k must have shape"),
    ({"block_table": torch.ones(2, 1, dtype=torch.int64)}, "block_table must have dtype"),
    ({"block_table": torch.ones(3, 2, dtype=torch.int32).T}, "block_table must be contiguous"),
    ({"cu_seqlens_q": ints(0)}, "batch size must be positive"),
    ({"alibi_slopes": torch.ones(4, dtype=HALF)}, "fp32"),
    ({"alibi_slopes": torch.ones(3)}, "must be"),
    ({"max_seqlen_k": 4}, "max_seqlen_k"),
    ({"q": torch.zeros(4, 4, 24, dtype=HALF)}, "query and key must have one head dimension"),
    ({"v": torch.zeros(3, 256, 2, 24, dtype=HALF)}, "q, k and v must have one head dimension"),
    (wide(12), "multiple of 8"),
    (wide(264), "at most 256"),
]


@pytest.mark.parametrize(("changes", "message"), FA2_REFUSED)
def test_flash_attn_checks(changes, message):
    with pytest.raises(RuntimeError, match=message):
        fa2(**changes)


FA3_REFUSED = [
    ({"cache_seqlens": ints(5, 3).long()}, "seqused_k must have dtype"),
    ({"page_table": torch.ones(2, 2, dtype=torch.int64)}, "page_table must have dtype"),
    ({"k_cache": torch.zeros(3, 4, 16, 2, dtype=HALF).transpose(2, 3)}, "contiguous last dimension"),
    ({"num_splits": 257}, "at most 256"),
    ({"cu_seqlens_q": ints(0, 2, 4).long()}, "cu_seqlens_q must have dtype"),
    ({"q": wide(264)["q"], "k_cache": wide(264)["k"], "v_cache": wide(264)["v"]}, "multiple of 8 up to 256"),
]


@pytest.mark.parametrize(("changes", "message"), FA3_REFUSED)
def test_flash_attn_3_checks(changes, message):
    with pytest.raises(RuntimeError, match=message):
        fa3(**changes)


FA4_REFUSED = [
    (80, {}, "paged KV not supported"),
    (120, {}, "paged KV not supported"),
    (75, {}, "Unsupported compute capability"),
    (90, {"cu_seqlens_k": ints(0, 5, 8)}, "not supported with cu_seqlens_k"),
    (90, {"num_splits": 2}, "SplitKV"),
    (90, {"page_table": torch.ones(2, 2, dtype=torch.int64)}, "page_table must have dtype"),
    (90, {"learnable_sink": torch.zeros(3)}, "learnable_sink"),
    (90, {"window_size": (-1, None), "causal": False, "max_seqlen_k": 3}, "max_seqlen_k"),
    (90, {"window_size": (-1, 0)}, "None or a number"),
    (100, wide(136), "not supported on SM100"),
    (90, wide(264), "not supported on SM90"),
    (90, {"cu_seqlens_q": ints(0, 2, 4).long()}, "cu_seqlens_q must have dtype"),
    (90, {"seqused_k": ints(5, 3).long()}, "seqused_k must have dtype"),
    (90, {"page_table": None, "seqused_k": None, "cu_seqlens_k": ints(0, 5, 8).long()}, "cu_seqlens_k must have dtype"),
]


@pytest.mark.parametrize(("arch", "changes", "message"), FA4_REFUSED)
def test_flash_attn_4_checks(arch, changes, message):
    with pytest.raises(RuntimeError, match=message):
        fa4(arch, **changes)


def test_the_paged_function_of_the_third_is_the_only_one_with_pages():
    varlen = dao.flash_attn_3()["flash_attn_interface"].flash_attn_varlen_func
    with pytest.raises(TypeError, match="page_table"):
        varlen(**two_rows(4), cu_seqlens_k=ints(0, 5, 8), max_seqlen_k=5, page_table=ints(1, 2))


def test_the_fourth_argument_of_the_fourth_is_not_the_offsets():
    """By position one gives qv, which the double does not know."""
    call = dao.flash_attn_4()["flash_attn.cute"].flash_attn_varlen_func
    with pytest.raises(NotImplementedError, match="qv"):
        call(torch.zeros(4, 4, 16), torch.zeros(4, 4, 16), torch.zeros(4, 4, 16), ints(0, 2, 4))


def test_lse_of_rows_without_a_key():
    """Queries before the first key see none: +inf in the second generation, -inf in the later ones."""
    short = {"cu_seqlens_q": ints(0, 4), "q": torch.randn(4, 4, 16, dtype=HALF), "max_seqlen_q": 4, "causal": True}
    one = {"block_table": ints(1).view(1, 1), "cu_seqlens_k": ints(0, 2), "max_seqlen_k": 2}
    out, lse, _ = fa2(**short, **one, return_attn_probs=True)
    assert lse.shape == (4, 4)
    assert (lse[:, :2] == float("inf")).all()
    assert (out[:2] == 0).all()
    for call, extra in (
        (fa3, {"cache_seqlens": ints(2), "page_table": ints(1).view(1, 1), "return_softmax_lse": True}),
        (fa4, {"seqused_k": ints(2), "page_table": ints(1).view(1, 1), "return_lse": True}),
    ):
        out, lse, *_ = call(**short, **extra)
        assert (lse[:, :2] == float("-inf")).all()
        assert lse[:, 2:].isfinite().all()


def paged_on_amd():
    pages, rows = torch.zeros(1, 256, 2, 16, dtype=HALF), ints(0, 3)
    dao.flash_attn_2(triton_amd=True)["flash_attn"].flash_attn_varlen_func(
        pages[0, :3], pages, pages, rows, rows, 3, 3, causal=True, block_table=ints(0).view(1, 1)
    )


def test_the_build_for_amd_ignores_window_and_softcap():
    library = dao.flash_attn_2(triton_amd=True)["flash_attn"]
    q, k = torch.randn(3, 2, 16, dtype=HALF), torch.randn(3, 2, 16, dtype=HALF)
    rows = {"cu_seqlens_q": ints(0, 3), "cu_seqlens_k": ints(0, 3), "max_seqlen_q": 3, "max_seqlen_k": 3}
    plain = library.flash_attn_varlen_func(q=q, k=k, v=k, causal=True, **rows)
    strange = library.flash_attn_varlen_func(q=q, k=k, v=k, causal=True, window_size=(0, 0), softcap=0.1, **rows)
    assert torch.equal(plain, strange)
    with pytest.raises(RuntimeError, match="too many values"):
        paged_on_amd()


def test_pages_are_loaded_whole_by_the_later_ones():
    dirty = two_rows(4)["k"]
    dirty[1:, :, :, :] = 1.0
    dirty[2, 3] = float("nan")
    for call, names in ((fa3, ("k_cache", "v_cache")), (fa4, ("k", "v"))):
        out = call(**dict.fromkeys(names, dirty), causal=True)
        out = out[0] if isinstance(out, tuple) else out
        assert out[:2].isfinite().all(), "row 0 ends within page 1 and page 0"
        assert out[2:].isnan().all(), "row 1 has 3 keys in page 2, whose fourth is NaN"


def test_signatures_are_read_as_recorded():
    text = "(q, k=1, *args, out=None, scale='x', **rest)"
    assert str(parse(text)) == text
    for release in ("flash-attn-2.8.3.post2", *dao.FA3_RELEASES, "flash-attn-4-4.0.0b36", "flashinfer-python-0.7.4"):
        assert all("q" in s.parameters or s.parameters for s in recorded(release).values())


def test_a_call_has_to_fit_every_release():
    name = "flash_attn_interface.flash_attn_varlen_func"
    call = standing_in(name, dao.FA3_RELEASES, lambda *, q, k, v, return_attn_probs: None)
    with pytest.raises(TypeError, match=r"flash-attn-3-at-2.8.3.*return_attn_probs"):
        call(1, 2, 3, 4, 5, 6, 7, return_attn_probs=True)


def fa3_ragged(**changes):
    call = dao.flash_attn_3()["flash_attn_interface"].flash_attn_varlen_func
    keys = torch.randn(8, 2, 16, dtype=HALF)
    return call(**two_rows(4, cu_seqlens_k=ints(0, 5, 8), max_seqlen_k=5) | {"k": keys, "v": keys} | changes)


def test_rows_longer_than_the_longest_are_refused_by_the_third():
    with pytest.raises(RuntimeError, match="max_seqlen_k is too small"):
        fa3_ragged(max_seqlen_k=4)


def test_every_check_is_violated():
    calls = [partial(fa2, **changes) for changes, _ in FA2_REFUSED]
    calls += [partial(fa3, **changes) for changes, _ in FA3_REFUSED]
    calls += [partial(fa3_ragged, max_seqlen_k=4), paged_on_amd]
    calls += [partial(fa4, arch, **changes) for arch, changes, _ in FA4_REFUSED]
    assert unviolated([dao], calls) == []
