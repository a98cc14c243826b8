"""Fences and scenes: what is laid out, where poison lies, and what is noticed."""

from __future__ import annotations

import math

import pytest
import torch

from headstock.core.attention import LAYOUTS, AttentionSpec
from headstock.core.attention.cache import slots_of
from headstock.plugins.conformance import Problem
from headstock.plugins.conformance.data import data_of
from headstock.plugins.conformance.fence import Fenced, byte_code
from headstock.plugins.conformance.scene import NULL_GARBAGE, POISON, num_blocks, scene_of

ROWS = ((1, 5), (1, 9), (3, 7), (4, 4))


def problem(rows=ROWS, **own) -> Problem:
    spec = {"num_heads": 4, "num_kv_heads": 2, "head_size": 16, "dtype": "float32", "block_size": 4}
    return Problem(spec=AttentionSpec(**spec | own.pop("spec", {})), rows=rows, **own)


class TestFences:
    @pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.float64], ids=str)
    def fenced(self, request) -> Fenced:
        return Fenced.around((3, 2, 5), request.param, strides=(20, 5, 1))

    def test_nothing_written_is_nothing_found(self, fenced):
        assert fenced.touched() == ""

    def test_what_is_written_inside_is_found(self, fenced):
        fenced.tensor[2, 1, 4] = 1
        assert fenced.touched() == "inside"

    @pytest.mark.parametrize("place", ["before", "behind", "between rows"])
    def test_what_is_written_outside_is_found(self, fenced, place):
        t = fenced.tensor
        offset = {"before": -1, "behind": 2 * 20 + 10, "between rows": 12}[place]
        fenced.tensor[0, 0, 0] = 1
        t.as_strided((1,), (1,), t.storage_offset() + offset).view(torch.uint8)[0] ^= 1
        assert fenced.touched() == "outside"

    def test_a_copy_is_another_piece_of_memory(self, fenced):
        copy = fenced.copy("cpu")
        copy.tensor[0] = 1
        assert (copy.touched(), fenced.touched()) == ("inside", "")

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2], ids=str)
    def test_bytes_of_8_bit_floats_are_what_they_stand_for(self, dtype):
        def value(x: float) -> float:
            return float(torch.tensor([byte_code(dtype, x)], dtype=torch.uint8).view(dtype).float())

        assert math.isnan(value(math.nan))
        assert not math.isfinite(value(math.inf))
        assert (value(0.0), value(2.0), value(-2.0)) == (0, 2, -2)


@pytest.mark.parametrize("layout", LAYOUTS)
class TestScenes:
    def gathered(self, scene, slots):
        return scene.cache.layout.gather(scene.cache, scene.layer, slots, torch.float32)

    def owned(self, scene) -> list[torch.Tensor]:
        table = scene.batch.block_table
        return [slots_of(table[row], keys, 4) for row, (_, keys) in enumerate(scene.problem.rows)]

    def test_rows_lie_where_their_block_table_says(self, layout):
        scene = scene_of(problem(), LAYOUTS[layout])
        for row, slots in enumerate(self.owned(scene)):
            keys, values = self.gathered(scene, slots)
            assert torch.equal(keys, scene.data.keys[row])
            assert torch.equal(values, scene.data.values[row])

    @pytest.mark.parametrize("poison", ["nan", "inf", "-inf", "zero"])
    def test_every_slot_that_no_row_owns_is_poisoned_the_null_block_too(self, layout, poison):
        p = problem(poison=poison)
        scene = scene_of(p, LAYOUTS[layout])
        owned = torch.cat(self.owned(scene))
        others = torch.tensor(sorted(set(range(num_blocks(p) * 4)) - set(owned.tolist())))
        assert {0, 1, 2, 3} <= set(others.tolist())
        for x in self.gathered(scene, others):
            assert (x.isnan() if poison == "nan" else x == POISON[poison]).all()

    def test_beside_padding_the_null_block_is_finite(self, layout):
        scene = scene_of(problem(padded_rows=2), LAYOUTS[layout], padded_seq_len=1)
        assert (self.gathered(scene, torch.arange(4))[0] == NULL_GARBAGE).all()
        assert scene.batch.block_table[4:].eq(0).all()
        assert scene.batch.seq_lens.tolist() == [5, 9, 7, 4, 1, 1]
        assert (scene.batch.num_reqs, scene.batch.num_tokens) == (4, 9)

    def test_only_the_context_is_written_where_that_is_asked(self, layout):
        scene = scene_of(problem(), LAYOUTS[layout], written="context")
        for (queries, keys), slots in zip(ROWS, self.owned(scene), strict=True):
            written = ~self.gathered(scene, slots)[0].isnan().any(-1).any(-1)
            assert written.tolist() == [j < keys - queries for j in range(keys)]

    def test_scenes_of_one_problem_share_no_memory(self, layout):
        one, other = (scene_of(problem(), LAYOUTS[layout]) for _ in range(2))
        one.cache.k.zero_()
        one.query.zero_()
        one.batch.seq_lens.zero_()
        assert other.cache.k.nan_to_num().any()
        assert other.query.any()
        assert other.batch.seq_lens.all()


def test_a_rows_data_are_its_own():
    whole, first = data_of(problem()), data_of(problem(ROWS[:1]))
    moved = data_of(problem(placement=3, layout="hnd", strided=True))
    assert torch.equal(whole.keys[0], first.keys[0])
    assert torch.equal(whole.queries[:1], first.queries)
    assert torch.equal(moved.values[2], whole.values[2])


@pytest.mark.parametrize("placement", [0, 1, -1, -2])
def test_no_block_is_handed_out_twice(placement):
    p = problem(placement=placement)
    table = scene_of(p, LAYOUTS["nhd"]).batch.block_table
    used = table[table > 0].tolist()
    assert len(used) == len(set(used)) == 2 + 3 + 2 + 1
    assert max(used) < num_blocks(p)


def test_batches_are_sorted_into_decode_extend_and_prefill():
    batch = scene_of(problem(), LAYOUTS["nhd"]).batch
    assert (batch.counts.decodes, batch.counts.extends, batch.counts.prefills) == (2, 1, 1)
    batch = scene_of(problem(((4, 4), (1, 5))), LAYOUTS["nhd"]).batch
    assert batch.counts.extends == 2


def test_ragged_rows_have_offsets_and_no_cache():
    scene = scene_of(problem(spec={"kv_source": "ragged"}), None)
    assert scene.cache is None
    assert scene.batch.key_start_loc.tolist() == [0, 5, 14, 21, 25]
    assert len(scene.key) == 25


def test_strided_inputs_lie_in_the_middle_of_nan():
    query = scene_of(problem(strided=True), LAYOUTS["nhd"]).query
    assert not query.is_contiguous()
    assert query.stride(-1) == 1
    around = query.as_strided((len(query), 3 * 4, 16), query.stride(), query.storage_offset() - 4 * 16)
    assert around[:, :4].isnan().all()
    assert around[:, 8:].isnan().all()
