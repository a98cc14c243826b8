"""FlashInfer keeps every convention, over a double that keeps its library's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headstock.backends.flashinfer import FlashInfer
from headstock.core.attention import AttentionSpec, LayerParams, Limits, Workspace, one_of
from support.attention import Scene, make_batch
from support.conforming import failed, outcomes, passed
from support.doubles.devices import pretend

pytestmark = pytest.mark.timeout(600)  # the kit is long on a loaded machine


class OnSmallPages(FlashInfer):
    """Blocks as the kernels with sinks read them."""

    @classmethod
    def capabilities(cls, device):
        return replace(super().capabilities(device), block_sizes=one_of(16, 32, 64), head_sizes=one_of(64, 128))


def test_it_conforms():
    found = outcomes(FlashInfer, pretend("a100"), made_up=60)
    assert failed(found) == []
    expected = {"keys", "window", "lse", "softcap", "kv-formats", "unowned", "graph", "plans", "padding", "chunks"}
    assert passed(found) >= expected | {"strides", "layers"}


def test_it_conforms_with_sinks_where_there_are_kernels_for_them():
    found = outcomes(OnSmallPages, pretend("b200"), only={"sinks", "layers", "window", "mixed"}, made_up=40)
    assert failed(found) == []
    assert passed(found) >= {"sinks", "layers", "mixed"}


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("cls", "card"), [(FlashInfer, "a100"), (FlashInfer, "h100"), (OnSmallPages, "b200")])
def test_it_conforms_at_level_full(cls, card, seed):
    assert failed(outcomes(cls, pretend(card), level="full", seed=seed)) == []


class InBaseTwo(FlashInfer):
    """Hands on the LSE of decodes as it comes."""

    def _run(self, part, layer, query, planes, out, lse_out):
        super()._run(part, layer, query, planes, out, lse_out)
        if part.decodes and lse_out is not None:
            lse_out[part.tokens] /= torch.log(torch.tensor(2.0))


class OneWrapper(FlashInfer):
    """Plans every step with the same wrapper."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        wrapper = self._wrappers.prefill()
        self._wrappers.prefill = lambda: wrapper


@pytest.mark.parametrize(("cls", "convention"), [(InBaseTwo, "lse"), (OneWrapper, "plans")])
def test_the_kit_catches_adapters_that_take_the_library_for_another(cls, convention):
    found = outcomes(cls, pretend("a100"), only={convention})
    assert convention in {o.convention for o in found if o.status == "failed"}


class Counting:
    """Counts plans and runs of every wrapper."""

    def __init__(self, monkeypatch):
        import flashinfer

        self.plans, self.runs, self.made = [], [], []
        for cls in (flashinfer.BatchDecodeWithPagedKVCacheWrapper, flashinfer.BatchPrefillWithPagedKVCacheWrapper):
            self._watch(cls, "__init__", self.made, monkeypatch)
            self._watch(cls, "plan", self.plans, monkeypatch)
            self._watch(cls, "run", self.runs, monkeypatch)

    def _watch(self, cls, name, seen, monkeypatch):
        method = getattr(cls, name)

        def watched(wrapper, *args, **kwargs):
            seen.append((wrapper, kwargs))
            return method(wrapper, *args, **kwargs)

        monkeypatch.setattr(cls, name, watched)


@pytest.fixture
def counting(monkeypatch):
    return Counting(monkeypatch)


SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=64, dtype="bfloat16", softcap=20.0, scale=0.3)
LIMITS = Limits(max_num_reqs=8, max_num_tokens=64, max_model_len=256, max_blocks_per_req=16)


def test_wrappers_are_planned_once_a_step_and_shared_by_the_layers(counting):
    backend = FlashInfer(SPEC, pretend("h100"), LIMITS, Workspace("cpu"))
    scene = Scene(spec=SPEC, seq_lens=[20, 33, 5], layout="hnd", poison=0.0)
    for row, n in enumerate(scene.seq_lens):
        scene.write(backend, row, 0, n)
    batch = make_batch([1, 4, 5], scene.seq_lens, scene.block_table)
    plan = backend.plan(batch)
    assert len(counting.plans) == 2, "decodes and the others"
    query = torch.randn(10, 4, 64).bfloat16()
    for layer in ("one", "two", "three"):
        params = LayerParams(name=layer, spec=SPEC)
        backend.forward(
            params, query, key=None, value=None, kv_cache=scene.cache, plan=plan, out=torch.empty_like(query)
        )
    assert (len(counting.plans), len(counting.runs)) == (2, 6)
    assert {id(wrapper) for wrapper, _ in counting.runs} == {id(wrapper) for wrapper, _ in counting.plans}
    for _, said in counting.plans:
        assert said["q_data_type"] == said["kv_data_type"] == torch.bfloat16
        assert (said["sm_scale"], said["logits_soft_cap"]) == (SPEC.scale, 20.0)


def test_wrappers_are_made_for_plans_in_flight_and_then_no_more(counting):
    backend = FlashInfer(SPEC, pretend("h100"), replace(LIMITS, plans_in_flight=2), Workspace("cpu"))
    scene = Scene(spec=SPEC, seq_lens=[20, 33], poison=0.0)
    for _ in range(6):
        backend.plan(make_batch([1, 4], scene.seq_lens, scene.block_table))
    assert len(counting.made) == 2 * 3


def test_the_scratch_is_the_streams_and_as_large_as_asked():
    workspace = Workspace("cpu")
    options = FlashInfer.parse_options({"workspace_mib": 3})
    for _ in range(2):
        FlashInfer(SPEC, pretend("h100"), LIMITS, workspace, options)
    assert workspace.nbytes == 3 * 2**20
