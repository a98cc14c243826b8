"""The reference that everything is held against: closed forms, and transformers' eager attention."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, eager_mask
from transformers.masking_utils import sliding_window_causal_mask_function as sliding
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss
from transformers.models.llama.modeling_llama import eager_attention_forward as llama

from headstock.core.attention import AttentionSpec, model_window
from headstock.plugins.conformance import Broken, Problem
from headstock.plugins.conformance.closed_forms import (
    first_key_share,
    probe_lse,
    probe_means,
    probe_with_alibi,
    probe_with_sinks,
)
from headstock.plugins.conformance.data import data_of
from headstock.plugins.conformance.oracle import expected, require_close, tolerance

SPEC = {"num_heads": 4, "num_kv_heads": 2, "head_size": 16, "dtype": "float32"}


def problem(*rows: tuple[int, int], fill: str = "normal", sink: float | None = None, **spec: object) -> Problem:
    return Problem(spec=AttentionSpec(**{**SPEC, **spec}), rows=rows, fill=fill, sink=sink, k_scale=0.25, v_scale=0.25)


def first_channel(p: Problem) -> list[float]:
    return expected(p).out[:, 0, 0].tolist()


class TestClosedForms:
    """Fill ``probe`` has v_j = j + 1: what is known of v_j = j is one more here, and 0 where nothing is seen."""

    def test_a_window_of_four_sees_four_keys(self):
        p = problem((9, 9), fill="probe", window=model_window(4))
        assert first_channel(p) == pytest.approx([1 + x for x in (0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5)])

    def test_causality_is_aligned_bottom_right(self):
        assert first_channel(problem((2, 5), fill="probe")) == pytest.approx([2.5, 3.0])

    def test_queries_without_a_key_give_zero(self):
        p = problem((5, 2), fill="probe")
        assert first_channel(p) == pytest.approx([0, 0, 0, 1, 1.5])
        assert expected(p).lse[:, 0].tolist() == pytest.approx([-math.inf] * 3 + [0, math.log(2)])

    @pytest.mark.parametrize(("sink", "share"), [(0.0, 0.75), (math.log(2), 0.6)])
    def test_a_sink_enters_once(self, sink, share):
        p = problem((1, 3), fill="heads", sinks=True, sink=sink)
        assert expected(p).out[0, :, 0].tolist() == pytest.approx([share, share, 2 * share, 2 * share])
        assert expected(p).lse[0].tolist() == pytest.approx([math.log(3 + math.exp(sink))] * 4)

    def test_a_sink_alone_is_the_lse(self):
        p = problem((1, 0), sinks=True, sink=0.5)
        assert first_channel(p) == [0]
        assert expected(p).lse[0].tolist() == pytest.approx([0.5] * 4)

    def test_the_softcap_bends_thirty_and_twenty(self):
        p = problem((1, 2), fill="steep", scale=1.0, softcap=10.0)
        assert first_channel(p) == pytest.approx([0.57695], abs=1e-5)
        assert first_channel(problem((1, 2), fill="steep", scale=1.0)) == pytest.approx([0.99995], abs=1e-5)

    def test_the_softcap_comes_before_the_mask(self):
        assert first_channel(problem((2, 2), fill="steep", scale=1.0, softcap=1.0))[0] == 1.0

    def test_query_heads_read_the_kv_head_of_their_group(self):
        assert expected(problem((1, 3), fill="heads")).out[0, :, 0].tolist() == pytest.approx([1, 1, 2, 2])

    @pytest.mark.parametrize("scales", ["tensor", "head"])
    def test_scales_are_applied_on_the_way_in_and_out(self, scales):
        p = problem((1, 2), fill="first", scale=1.0, kv_format="fp8_e4m3", kv_scales=scales)
        assert expected(p).out[0, :, 0].tolist() == pytest.approx([0.73106] * 4, abs=1e-5)

    def test_the_kits_own_closed_forms_are_the_reference(self):
        rows = ((1, 9), (3, 9), (9, 9), (5, 2), (1, 30))
        for spec in ({}, {"causal": False}, {"window": (3, 0)}, {"causal": False, "window": (2, 1)}):
            p = problem(*rows, fill="probe", **spec)
            torch.testing.assert_close(expected(p).out, probe_means(p))
            torch.testing.assert_close(expected(p).lse, probe_lse(p).expand(-1, 4))
            p = problem(*rows, fill="probe", sinks=True, **spec)
            out, lse = probe_with_sinks(p)
            torch.testing.assert_close(expected(p).out, out)
            torch.testing.assert_close(expected(p).lse, lse)
            p = problem((1, 9), (3, 9), (9, 9), fill="probe", alibi=True, **spec)
            torch.testing.assert_close(expected(p).out, probe_with_alibi(p))
        for spec in ({"scale": 0.7}, {"scale": 3.0, "softcap": 1.0}, {"scale": 2.0, "causal": False}):
            p = problem((1, 9), (3, 9), (9, 9), fill="first", **spec)
            torch.testing.assert_close(expected(p).out, first_key_share(p).expand(-1, 4, 16))


class TestEagerAttentionOfTransformers:
    def answer(self, forward, p: Problem, mask, **module: object):
        """(t, Hq, Dv) for the only row of `p`, in float64 but for the softmax."""
        data = data_of(p)
        q, k, v = (x.double().transpose(0, 1)[None] for x in (data.queries, data.keys[0], data.values[0]))
        layer = SimpleNamespace(num_key_value_groups=p.spec.group_size, training=False, **module)
        out, _ = forward(layer, q, k, v, mask, scaling=p.spec.scale, softcap=p.spec.softcap)
        return out[0]

    def mask(self, p: Problem, function=causal_mask_function):
        ((queries, keys),) = p.rows
        return eager_mask(1, queries, keys, q_offset=keys - queries, mask_function=function, dtype=torch.float64)

    @pytest.mark.parametrize("rows", [(1, 40), (7, 40), (33, 33)], ids=str)
    @pytest.mark.parametrize("scale", [0.0, 0.3])
    def test_causal_and_not(self, rows, scale):
        for causal, function in ((True, causal_mask_function), (False, bidirectional_mask_function)):
            p = problem(rows, causal=causal, scale=scale)
            self.agrees(p, self.answer(llama, p, self.mask(p, function)))

    @pytest.mark.parametrize("window", [1, 5, 40, 100])
    def test_windows(self, window):
        p = problem((7, 40), window=model_window(window))
        self.agrees(p, self.answer(llama, p, self.mask(p, sliding(window))))

    @pytest.mark.parametrize("softcap", [0.5, 20.0])
    def test_softcap(self, softcap):
        p = problem((7, 40), softcap=softcap, scale=1.3)
        self.agrees(p, self.answer(gemma, p, self.mask(p)))

    @pytest.mark.parametrize("window", [None, 5])
    def test_sinks(self, window):
        p = problem((7, 40), sinks=True, window=model_window(window))
        sinks = data_of(p).sinks
        mask = self.mask(p) if window is None else self.mask(p, sliding(window))
        self.agrees(p, self.answer(gpt_oss, p, mask, sinks=sinks.double()))

    def test_alibi(self):
        p = problem((7, 40), alibi=True)
        alibi = build_alibi_tensor(torch.ones(1, 40), 4, torch.float64)[None]
        self.agrees(p, self.answer(llama, p, self.mask(p) + alibi))

    def agrees(self, p: Problem, out) -> None:
        torch.testing.assert_close(out, expected(p).out, rtol=0, atol=2e-6)  # its softmax is in float32


class TestComparing:
    def test_what_is_close_passes(self):
        require_close("out", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.01]), 0.02)

    def test_the_worst_place_is_named(self):
        with pytest.raises(Broken, match=r"out of token 1, head 0 is 3, not 2 \(tolerance 0.1; 2 of 4 numbers are off"):
            require_close("out", torch.tensor([[1.0, 1.2], [3.0, 0]]), torch.tensor([[1.0, 1.0], [2.0, 0]]), 0.1)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_nan_and_inf_on_one_side_never_pass(self, value):
        odd, even = torch.tensor([value]), torch.tensor([1.0])
        for got, wanted in ((odd, even), (even, odd), (odd, -odd if not math.isnan(value) else even)):
            with pytest.raises(Broken):
                require_close("out", got, wanted, math.inf)

    def test_nan_and_inf_on_both_sides_pass(self):
        x = torch.tensor([math.nan, math.inf, -math.inf])
        require_close("out", x, x.clone(), 0.0)

    def test_another_shape_is_told_of(self):
        with pytest.raises(Broken, match=r"shape \(2, 3\), not \(3, 2\)"):
            require_close("LSE", torch.zeros(2, 3), torch.zeros(3, 2), 1.0)

    def test_tolerances_follow_from_dtype_length_and_logits(self):
        def out(dtype: str, keys: int = 100, logit: float = 4.0) -> float:
            return tolerance(AttentionSpec(**SPEC | {"dtype": dtype}), keys, 1.0, logit).out

        assert out("float64") < 1e-12 < 1e-6 < out("float32") < 1e-4 < out("float16") < out("bfloat16") < 0.05
        assert out("float32") < out("float32", keys=10_000)
        assert out("float32") < out("float32", logit=50.0)
