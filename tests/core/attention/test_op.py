"""A decoder that is compiled has no break at attention, and computes what it did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headstock.core.attention import Attention, AttentionSpec, BoundLayer, ForwardContext, LayerParams, forward_context
from headstock.core.attention.op import attention_op
from headstock.core.params import SamplingParams
from support.attention import make
from support.model import TINY, WholeTexts, attention_over, load, write_model
from support.serving import answers, tokens
from support.tiny import tiny_engine, tiny_folder

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_the_whole_decoder_is_one_graph_with_the_operator_in_it(tmp_path: Path) -> None:
    write_model(tmp_path, TINY)
    model = load(tmp_path)
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=keep, fullgraph=True, dynamic=True)
    for length in (5, 9, 2):
        ids, positions = torch.arange(length), torch.arange(length)
        with attention_over(model, [length]):
            torch.testing.assert_close(compiled(ids, positions), model(ids, positions))
    assert len(graphs) == 1
    calls = [node for node in graphs[0].graph.nodes if "headstock" in str(node.target)]
    assert [node.args[4] for node in calls] == [f"model.layers.{i}.self_attn.attn" for i in range(2)]


def test_a_compiled_engine_gives_the_same_tokens_over_a_paged_cache(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    prompts = [[5, 9, 13], [7] * 20, list(range(30, 63))]
    engine = tiny_engine(folder, block_size=4, max_num_batched_tokens=16)
    expected = tokens(answers(engine, prompts, GREEDY))
    engine = tiny_engine(folder, block_size=4, max_num_batched_tokens=16)
    runner = engine.core.worker.runner
    runner._model.forward = torch.compile(runner._model.forward, backend="eager", fullgraph=True, dynamic=True)
    assert tokens(answers(engine, prompts, GREEDY)) == expected


def test_the_operator_passes_torchs_own_checks() -> None:
    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_size=4, dtype="float32")
    layer = BoundLayer(params=LayerParams(name="a", spec=spec), backend=make(WholeTexts, spec), kv_cache=None, group=0)
    context = ForwardContext(layers={"a": layer}, plans=((3,),), slot_mappings=(torch.full((3,), -1),))
    query, key = torch.randn(3, 2, 4), torch.randn(3, 1, 4)
    with forward_context(context):
        torch.library.opcheck(attention_op, (query, key, key, torch.empty(3, 2, 4), "a"))
        out = torch.empty(3, 2, 4)
        attention_op(query, key, key, out, "a")
        assert torch.equal(out, Attention("a", spec)(query, key, key))


def test_a_layer_that_shares_anothers_cache_is_traced_too() -> None:
    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_size=4, dtype="float32")
    wrote: list[str] = []

    class Backend(WholeTexts):
        def write_kv(self, layer, key, value, kv_cache, slot_mapping):
            wrote.append(layer.name)

        def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
            assert (key is None) == (value is None)
            out.copy_(query)

    params = LayerParams(name="a", spec=spec, kv_layer="b")
    layer = BoundLayer(params=params, backend=make(Backend, spec), kv_cache=object(), group=0)  # pyright: ignore
    module = torch.compile(Attention("a", spec), backend="eager", fullgraph=True)
    query = torch.randn(3, 2, 4)
    with forward_context(ForwardContext(layers={"a": layer}, plans=(None,), slot_mappings=(torch.arange(3),))):
        assert torch.equal(module(query, None, None), query)
        assert wrote == []
        assert torch.equal(module(query, query[:, :1], query[:, :1]), query)
        assert wrote == ["a"]
