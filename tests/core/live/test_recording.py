"""Recordings: what an engine computed comes back, whenever the process ended, and nothing else is taken for one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.numpy import save

from headstock.core.attention import AttentionBatch, AttentionSpec, count_rows
from headstock.core.errors import InvalidInput
from headstock.core.live import Tape, TapedGroup, current_tape, read_recording, taping
from headstock.core.live.tape import LENGTH
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from support.serving import answers, tokens
from support.tiny import tiny_engine, tiny_folder

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
PROMPTS = [list(range(10, 30)), [1, 2, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attention.tape"


def record(folder: ModelFolder, path: Path, **options):
    engine = tiny_engine(folder)
    with taping(Tape(path, **options)):
        outputs = answers(engine, PROMPTS, GREEDY)
    return read_recording(path), outputs


def test_rows_and_lengths_of_every_step_come_back(folder: ModelFolder, path: Path) -> None:
    recording, outputs = record(folder, path)
    assert not recording.cut_short
    assert [step.number for step in recording.steps] == [1, 2, 3, 4]
    first, *others = recording.steps
    assert sorted(first.rows(0)) == [(3, 3), (20, 20)]
    for number, step in enumerate(others, 1):
        assert sorted(step.rows(0)) == [(1, 3 + number), (1, 20 + number)]
    assert {name for group in first.groups for name in group.layers} == {
        f"model.layers.{index}.self_attn.attn" for index in range(4)
    }
    assert tokens(outputs) == tokens(answers(tiny_engine(folder), PROMPTS, GREEDY))  # it changes nothing
    assert current_tape() is None


def test_vectors_are_kept_only_where_asked_for_and_give_the_attention_that_was_computed(
    folder: ModelFolder, path: Path
) -> None:
    recording, _ = record(folder, path)
    assert all(not step.tensors for step in recording.steps)
    recording, _ = record(folder, path, tensors=True)
    for step in recording.steps:
        for recorded in step.tensors:
            rows = step.rows(step.groups[recorded.group].kv_group)
            assert recorded.query.shape == (sum(new for new, _ in rows), 4, 8)
            assert recorded.key.shape == recorded.value.shape == (sum(keys for _, keys in rows), 2, 8)
            assert recorded.query.dtype == torch.float32
            assert torch.isfinite(recorded.query).all()
    last = recording.steps[-1]
    full = next(i for i, group in enumerate(last.groups) if group.spec.window is None)
    earlier, later = (next(t for t in step.tensors if t.group == full) for step in (recording.steps[-2], last))
    longest = max(keys for _, keys in recording.steps[-2].rows(last.groups[full].kv_group))
    order = [keys for _, keys in recording.steps[-2].rows(last.groups[full].kv_group)]
    if order[0] == longest:  # the cache's own keys, one longer each step
        assert torch.equal(earlier.key[:longest], later.key[:longest])


def test_each_nth_step_and_no_more_than_the_limit(folder: ModelFolder, path: Path) -> None:
    recording, _ = record(folder, path, every=3)
    assert [step.number for step in recording.steps] == [1, 4]
    size = path.stat().st_size
    recording, outputs = record(folder, path, limit=size)
    assert path.stat().st_size <= size
    assert 0 < len(recording.steps) < 4
    assert all(len(o.outputs[0].token_ids) == 4 for o in outputs)


def test_a_file_that_ends_anywhere_gives_the_whole_steps_before(folder: ModelFolder, path: Path) -> None:
    whole, _ = record(folder, path)
    data = path.read_bytes()
    (first,) = LENGTH.unpack(data[: LENGTH.size])
    for end in range(first + LENGTH.size, len(data), 211):
        path.write_bytes(data[:end])
        recording = read_recording(path)
        assert len(recording.steps) <= len(whole.steps)
        assert [s.rows(0) for s in recording.steps] == [s.rows(0) for s in whole.steps[: len(recording.steps)]]


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from headstock.core.live import Tape, taping
from headstock.core.params import SamplingParams
from support.serving import answers
from support.tiny import tiny_engine, tiny_folder
engine = tiny_engine(tiny_folder(Path(sys.argv[3])))
with taping(Tape(sys.argv[1])):
    answers(engine, [[1, 2, 3]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    print("computed", flush=True)
    sys.stdin.readline()
"""


def test_a_killed_process_leaves_all_its_steps(path: Path, tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", PROGRAM, str(path), tests, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "computed\n"
        os.kill(process.pid, signal.SIGKILL)
    assert len(read_recording(path).steps) == 5


def test_whatever_bytes_are_wrong_ends_in_one_message_or_in_fewer_steps(folder: ModelFolder, path: Path) -> None:
    """Each of some bytes, and lengths that no file has: nothing is allocated for them."""
    record(folder, path, tensors=True)
    data = path.read_bytes()
    refused: list[str] = []
    for place in range(0, len(data), 131):
        for value in (0, 255, data[place] ^ 1):
            path.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
            try:
                read_recording(path)
            except InvalidInput as error:
                refused.append(error.field)
    assert len(refused) > 20
    assert set(refused) == {"recording"}
    (first,) = LENGTH.unpack(data[: LENGTH.size])
    path.write_bytes(data[: first + LENGTH.size] + LENGTH.pack(2**62))
    assert read_recording(path).cut_short


@pytest.mark.parametrize("every", [1, 2])
def test_blocks_of_every_row_come_back(folder: ModelFolder, path: Path, every: int) -> None:
    recording, _ = record(folder, path, every=every)
    for step in recording.steps:
        for group in step.groups:
            table, rows = step.block_tables[group.kv_group], step.rows(group.kv_group)
            assert table is not None
            assert table.shape == (len(rows), -(-max(keys for _, keys in rows) // group.spec.block_size))
            last = [int(table[row, -(-keys // group.spec.block_size) - 1]) for row, (_, keys) in enumerate(rows)]
            assert len(set(last)) == len(rows)
            assert 0 not in last  # the null block


def test_a_full_disk_ends_the_recording_and_not_the_engine(
    folder: ModelFolder, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three frames fit, and half of the fourth."""
    real, calls = os.write, []

    def write(file: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) > 4:
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2] if len(calls) == 4 else data)

    monkeypatch.setattr("headstock.core.live.tape.os.write", write)
    recording, outputs = record(folder, path)
    assert len(calls) == 5
    assert recording.cut_short
    assert len(recording.steps) == 1
    assert all(len(o.outputs[0].token_ids) == 4 for o in outputs)
    assert "the recording ends here: No space left on device" in caplog.text


def test_no_step_waits_for_the_device(path: Path) -> None:
    """On which nothing can be read here."""
    starts, lengths = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([6, 3], dtype=torch.int32)
    batch = AttentionBatch(
        num_reqs=2,
        num_tokens=3,
        counts=count_rows(starts[1:] - starts[:-1], lengths, 1),
        query_start_loc=starts.to("meta"),
        query_start_loc_cpu=starts,
        max_query_len=2,
        seq_lens=lengths.to("meta"),
        seq_lens_cpu=lengths,
        seq_lens_cpu_upper_bound=lengths,
        max_seq_len=6,
        block_table=torch.zeros(2, 9, dtype=torch.int32, device="meta"),
        slot_mapping=torch.zeros(3, dtype=torch.int64, device="meta"),
    )
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=8, dtype="float32", block_size=4)
    group = TapedGroup(kv_group=0, spec=spec, backend="cpu", layers=("layer",))
    tape = Tape(path)
    assert tape.step((group,), (batch,), (torch.arange(18, dtype=torch.int32).view(2, 9),))
    tape.close()
    (step,) = read_recording(path).steps
    assert step.rows(0) == ((2, 6), (1, 3))
    assert step.block_tables[0].tolist() == [[0, 1], [9, 10]]


def frame(**about) -> bytes:
    import json

    import numpy as np

    data = save({"none": np.zeros(1, np.uint8)}, metadata={"frame": json.dumps(about)})
    return LENGTH.pack(len(data)) + data


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is no recording of attention"),
        (b"hello, this is a text of some length", "is no recording of attention"),
        (b"\xff" * 64, "is no recording of attention"),
        (frame(frame="file", kind="something else", version=1), "is no recording of attention"),
        (
            frame(frame="file", kind="headstock attention recording", version=9, headstock="9.9"),
            r"was written by a newer Headstock \(9.9\)",
        ),
        (
            frame(frame="file", kind="headstock attention recording", version=1) + frame(frame="step", step=1),
            "is damaged: KeyError",
        ),
    ],
)
def test_what_is_no_recording_is_refused(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=problem):
        read_recording(path)


@pytest.mark.parametrize(
    ("options", "field"),
    [({"every": 0}, "record_every"), ({"limit": 0}, "record_limit"), ({"every": True}, "record_every")],
)
def test_wrong_options_are_refused_by_name(path: Path, options, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Tape(path, **options)
    assert refused.value.field == field
    with pytest.raises(InvalidInput, match="record_attention: /no/such/folder/x cannot be written"):
        Tape("/no/such/folder/x")
    with pytest.raises(InvalidInput, match="recording: /no/such/file cannot be read"):
        read_recording("/no/such/file")


def test_only_the_user_may_read_it(path: Path) -> None:
    Tape(path, tensors=True).close()
    assert path.stat().st_mode & 0o777 == 0o600
