"""One step's inputs against the worked example of the field: scheduled [2, 5, 3] over what is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headstock.core.attention import GraphKey, RowCounts
from headstock.core.params import SamplingParams
from headstock.core.scheduler.output import NewRequestData
from headstock.core.worker.block_tables import BlockTable
from headstock.core.worker.inputs import BufferSizes, InputBuilder, StepInputs
from headstock.core.worker.states import RequestStates


def request(name: str, tokens: int, computed: int) -> NewRequestData:
    start = 100 * (ord(name) - ord("a") + 1)
    return NewRequestData(
        request_id=name,
        token_ids=tuple(range(start, start + tokens)),
        num_prompt_tokens=tokens,
        params=SamplingParams(),
        eos_token_ids=(),
        block_ids=(),
        num_computed_tokens=computed,
    )


SIZES = BufferSizes(max_num_seqs=8, max_num_tokens=64, max_model_len=64, widths=(16,))
Given = list[tuple[str, int, int, list[int]]]
"""Requests as (name, known tokens, computed tokens, blocks of 4)."""


def build(requests: Given, scheduled: dict[str, int], builder: InputBuilder | None = None) -> StepInputs:
    states, table = RequestStates(8, 64), BlockTable(8, 64, 4)
    for name, tokens, computed, blocks in requests:
        table.append(states.add(request(name, tokens, computed)), blocks)
    builder = builder or InputBuilder(SIZES, "cpu", decode_query_len=1)
    return builder.build(states, [table], scheduled)


def test_rows_are_flattened_in_the_order_decode_extend_prefill() -> None:
    inputs = build([("a", 3, 0, [9]), ("b", 11, 6, [7, 2, 5]), ("c", 6, 5, [3, 1])], {"a": 3, "b": 5, "c": 1})
    assert inputs.request_ids == ("c", "b", "a")
    (batch,) = inputs.batches
    assert batch.query_start_loc.tolist() == [0, 1, 6, 9]
    assert batch.seq_lens.tolist() == [6, 11, 3]
    assert inputs.positions.tolist() == [5, 6, 7, 8, 9, 10, 0, 1, 2]
    assert inputs.input_ids.tolist() == [305, 206, 207, 208, 209, 210, 100, 101, 102]
    assert batch.slot_mapping is not None
    assert batch.slot_mapping.tolist() == [5, 10, 11, 20, 21, 22, 36, 37, 38]
    assert batch.block_table is not None
    assert batch.block_table[:, :3].tolist() == [[3, 1, 0], [7, 2, 5], [9, 0, 0]]
    assert batch.counts == RowCounts(
        decodes=1, decode_tokens=1, extends=1, extend_tokens=5, prefills=1, prefill_tokens=3
    )
    assert (batch.max_query_len, batch.max_seq_len) == (5, 11)
    assert inputs.logits_rows.tolist() == [0, 5, 8]


def test_only_requests_with_nothing_left_to_compute_get_a_token() -> None:
    inputs = build([("a", 8, 0, [1, 2]), ("b", 8, 4, [3, 4])], {"a": 4, "b": 4})
    assert [inputs.request_ids[i] for i in inputs.complete] == ["b"]


THREE: Given = [("a", 9, 8, [9, 4, 6]), ("b", 6, 5, [7, 2]), ("c", 2, 1, [3])]


@pytest.mark.parametrize("padded_seq_len", [0, 1])
def test_a_step_of_single_tokens_is_padded_to_the_next_graph(padded_seq_len: int) -> None:
    sizes = replace(SIZES, graph_sizes=(1, 2, 4, 8))
    builder = InputBuilder(sizes, "cpu", decode_query_len=1, padded_seq_len=padded_seq_len)
    build([("z", 40, 39, list(range(30, 40)))], {"z": 1}, builder)  # something that stood in the buffers before
    blank = builder.blank(4)
    inputs = build(THREE, {"a": 1, "b": 1, "c": 1}, builder)
    assert inputs.graph == GraphKey(padded_reqs=4, padded_tokens=4, capturing=False)
    (batch,) = inputs.batches
    assert (batch.num_reqs, batch.num_tokens, batch.graph) == (3, 3, inputs.graph)
    assert batch.counts == RowCounts(decodes=3, decode_tokens=3)
    assert inputs.input_ids.tolist() == [108, 205, 301, 0]
    assert inputs.positions.tolist() == [8, 5, 1, 0]
    assert batch.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert batch.seq_lens.tolist() == [9, 6, 2, padded_seq_len]
    assert batch.slot_mapping is not None
    assert batch.slot_mapping.tolist() == [24, 9, 13, -1]
    assert batch.block_table is not None
    assert batch.block_table[:, :3].tolist() == [[9, 4, 6], [7, 2, 0], [3, 0, 0], [0, 0, 0]]
    assert [len(inputs.logits_rows), len(inputs.complete), len(inputs.request_ids)] == [3, 3, 3]
    addresses = [(t.data_ptr(), t.shape, t.dtype) for t in inputs.buffers()]
    assert addresses == [(t.data_ptr(), t.shape, t.dtype) for t in blank.buffers()]


@pytest.mark.parametrize(
    ("requests", "scheduled"),
    [
        ([("a", 9, 7, [9, 4, 6])], {"a": 2}),
        ([*THREE, ("d", 1, 0, [5])], {"a": 1, "b": 1, "c": 1, "d": 1}),
        (THREE, {"a": 1, "b": 1, "c": 1}),
    ],
    ids=["two tokens", "a prompt of one token", "more rows than the largest"],
)
def test_other_steps_are_not_padded(requests: Given, scheduled: dict[str, int]) -> None:
    builder = InputBuilder(replace(SIZES, graph_sizes=(1, 2)), "cpu", decode_query_len=4)
    inputs = build(requests, scheduled, builder)
    assert inputs.graph is None
    assert inputs.batches[0].graph is None
    assert len(inputs.positions) == sum(scheduled.values())


def test_a_blank_step_reads_the_null_block_and_writes_nothing() -> None:
    inputs = InputBuilder(SIZES, "cpu", decode_query_len=1).blank(3)
    (batch,) = inputs.batches
    assert batch.graph == GraphKey(padded_reqs=3, padded_tokens=3, capturing=True)
    assert batch.block_table is not None
    assert not batch.block_table.any()
    assert batch.slot_mapping is not None
    assert batch.slot_mapping.tolist() == [-1] * 3
    assert (batch.num_reqs, batch.max_seq_len, batch.seq_lens.tolist()) == (3, 64, [1, 1, 1])


def test_dtypes_are_those_of_the_contract() -> None:
    inputs = build([("a", 3, 0, [9])], {"a": 3})
    (batch,) = inputs.batches
    assert batch.query_start_loc.dtype == batch.seq_lens.dtype == torch.int32
    assert batch.block_table is not None
    assert batch.block_table.dtype == torch.int32
    assert batch.slot_mapping is not None
    assert batch.slot_mapping.dtype == inputs.positions.dtype == torch.int64


def test_slots_of_high_blocks_do_not_wrap() -> None:
    table = BlockTable(1, 10**6, 1039680)
    table.append(0, [2066])
    assert table.slot_mapping(np.array([0]), np.array([5])).tolist() == [2066 * 1039680 + 5]


def test_blocks_outside_of_the_window_become_the_null_block_once_and_for_all() -> None:
    table = BlockTable(3, 64, 4, reach=5)
    table.append(0, [1, 2, 3, 4, 5])
    table.append(2, [6, 7, 8, 9])
    slots = np.array([2, 0])
    # The next token at 13 sees from 8 on; the one at 9 from 4 on.
    assert table.rows(slots, np.array([13, 9]))[:, :5].tolist() == [[0, 0, 8, 9, 0], [0, 2, 3, 4, 5]]
    assert table.rows(slots, np.array([0, 0]))[:, :5].tolist() == [[0, 0, 8, 9, 0], [0, 2, 3, 4, 5]]
    table.clear(2)
    table.append(2, [1])
    assert table.rows(slots, np.array([0, 0]))[0, :5].tolist() == [1, 0, 0, 0, 0]


def test_a_slot_is_given_back_and_used_again_without_traces() -> None:
    states, table = RequestStates(1, 64), BlockTable(1, 64, 4)
    slot = states.add(request("a", 9, 0))
    table.append(slot, [4, 5, 6])
    assert states.remove("a") == slot
    table.clear(slot)
    assert states.remove("a") is None
    assert states.add(request("b", 2, 0)) == slot
    assert table.ids[slot].tolist() == [0] * 16
    assert len(states) == 1


def test_sampled_tokens_are_appended_by_slot() -> None:
    states = RequestStates(3, 4)
    slots = np.array([states.add(request(name, 4, 0)) for name in "ab"])
    states.append(slots[::-1], np.array([7, 8]))
    assert states.token_ids[slots, 4].tolist() == [8, 7]
    assert states.num_tokens[slots].tolist() == [5, 5]


def test_buffers_are_filled_again_only_when_the_device_has_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # Steps of prompts give no token that anybody waits for, so the host may be several of them ahead of a card.
    events: list[tuple[str, list[int]]] = []

    class Event:
        def __init__(self, device: str) -> None:
            self.record, self.synchronize = (
                lambda what=what: events.append((what, builder._input_ids.host(3).tolist()))
                for what in ("record", "synchronize")
            )

    zeros = torch.zeros

    def unpinned(*shape, pin_memory=False, **options):
        return zeros(*shape, **options)

    monkeypatch.setattr(torch, "zeros", unpinned)
    monkeypatch.setattr(torch, "Event", Event)
    builder = InputBuilder(SIZES, "meta", decode_query_len=1)
    for name in "ab":
        build([(name, 3, 0, [1])], {name: 3}, builder)
    first, second = [100, 101, 102], [200, 201, 202]
    assert events == [("synchronize", [0, 0, 0]), ("record", first), ("synchronize", first), ("record", second)]
