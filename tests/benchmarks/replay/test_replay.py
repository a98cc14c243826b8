"""`headstock replay`: recorded batches under another backend, right and wrong, and `ab` on them."""

from __future__ import annotations

import re

import pytest

from support.cli import run_cli
from support.plugins import write_distribution
from support.recordings import record
from support.tiny import tiny_folder

WRONG = """
from headstock.backends.sdpa import SdpaBackend

class Fast(SdpaBackend):
    def forward(self, layer, query, *, out, **rest):
        super().forward(layer, query, out=out, **rest)
        out[-1] = 0
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


@pytest.fixture(scope="module")
def tapes(model, tmp_path_factory) -> dict[bool, str]:
    """A recording without, and one with vectors."""
    folder = tmp_path_factory.mktemp("tapes")
    found: dict[bool, str] = {}
    for tensors in (False, True):
        found[tensors] = str(folder / f"{tensors}.tape")
        options = ["--record-attention", found[tensors], *(["--record-tensors"] if tensors else [])]
        done = run_cli(
            "generate", model, "the fox and the hound", "a", "--max-tokens", "4", "--ignore-eos",
            "--attention-backend", "sdpa", *options,
        )  # fmt: skip
        assert done.code == 0, done.err
    return found


@pytest.mark.parametrize("tensors", [False, True], ids=["random", "recorded"])
def test_right_backends_pass(tapes, tensors):
    document = run_cli("replay", tapes[tensors], "--attention-backend", "reference", "--json").json
    assert (document["right"], document["backend"], document["cut_short"]) == (True, "reference", False)
    assert {step["step"] for step in document["steps"]} == {1, 2, 3, 4}
    assert {step["recorded_backend"] for step in document["steps"]} == {"sdpa"}
    assert {step["vectors"] for step in document["steps"]} == {"recorded" if tensors else "random"}
    assert all(step["error"] < 1e-5 for step in document["steps"])


def test_a_wrong_backend_fails(tapes, site):
    write_distribution(site, "kernels", backends={"fast": "wrong_kernels:Fast"}, modules={"wrong_kernels": WRONG})
    done = run_cli("replay", tapes[True], "--attention-backend", "fast")
    assert done.code == 1
    assert ": wrong: wrong: error" in done.out


MUTANTS = """
from dataclasses import replace
from headstock.backends.reference import ReferenceBackend

class NoWindow(ReferenceBackend):
    def forward(self, layer, query, **rest):
        super().forward(replace(layer, spec=replace(layer.spec, window=None)), query, **rest)

class NoContext(ReferenceBackend):
    def plan(self, batch):
        lengths = batch.query_start_loc[1:] - batch.query_start_loc[:-1]
        return super().plan(replace(batch, seq_lens=lengths, seq_lens_cpu=lengths))

class OtherPages(ReferenceBackend):
    def plan(self, batch):
        return super().plan(replace(batch, block_table=batch.block_table.roll(1, 0)))

class NextKey(ReferenceBackend):
    def forward(self, layer, query, **rest):
        super().forward(replace(layer, spec=replace(layer.spec, causal=False)), query, **rest)
"""
SEEN_IN = {"NoWindow": "window=5", "NoContext": "step [2-7] ", "OtherPages": "2 rows", "NextKey": "step [125] "}
"""What the label of a step says in which a mutant shows: with a window, with a context, with two rows, with chunks."""


@pytest.mark.parametrize("mutant", SEEN_IN)
@pytest.mark.parametrize("tensors", [False, True], ids=["random", "recorded"])
def test_chunks_windows_and_prefix_hits_show_who_is_wrong(site, tmp_path, mutant, tensors):
    """A recording of an engine that did all three; the right backend's verdicts are in the test below."""
    record(tmp_path / "a.tape", tensors=tensors)
    write_distribution(
        site, "mutants", backends={"mutant": f"replay_mutants:{mutant}"}, modules={"replay_mutants": MUTANTS}
    )
    done = run_cli("replay", str(tmp_path / "a.tape"), "--attention-backend", "mutant", "--json")
    assert done.code == 1
    wrong = [step["label"] for step in done.json["steps"] if step["verdict"] == "wrong"]
    assert wrong
    assert all(re.search(SEEN_IN[mutant], label) for label in wrong), wrong


@pytest.mark.parametrize("backend", ["cpu", "sdpa", "reference", "flex_attention"])
def test_chunks_windows_and_prefix_hits_are_right(tmp_path, backend):
    recording = record(tmp_path / "a.tape", tensors=True)
    rows = [step.rows(0) for step in recording.steps]
    assert ((24, 24),) in rows  # a chunk
    assert any(new > 1 and keys > new for step in rows for new, keys in step)  # the next one
    assert ((3, 43),) in rows  # 40 tokens were there
    done = run_cli("replay", str(tmp_path / "a.tape"), "--attention-backend", backend, "--json")
    assert done.code == 0, done.out
    assert len(done.json["steps"]) == 2 * len(rows)


def test_a_recorded_step_that_no_memory_holds_does_not_fit(tapes, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 2**10}))
    done = run_cli("replay", tapes[False], "--attention-backend", "reference", "--json")
    assert done.code == 1
    assert {step["verdict"] for step in done.json["steps"]} == {"does not fit"}
    assert "K and V take" in done.json["steps"][0]["reason"]


def test_steps_can_be_fewer_and_the_backend_is_the_first_of_the_ranking(tapes):
    document = run_cli("replay", tapes[False], "--limit", "2", "--json").json
    assert {step["step"] for step in document["steps"]} == {1, 4}
    assert document["backend"] in ("cpu", "sdpa")


def test_kernels_are_compared_on_chunks_windows_and_prefix_hits(tmp_path):
    record(tmp_path / "a.tape")
    words = ("ab", "cpu", "reference", "--trace", str(tmp_path / "a.tape"), "--no-check", "--rounds", "6", "--json")
    done = run_cli(*words)
    assert done.code == 0, done.err
    names = [line["name"] for line in done.json["lines"]]
    assert len(names) == 8  # of fourteen
    assert any("1 rows, 3 new of 43" in name for name in names)
    assert any("+window=5" in name for name in names)
    assert any("+window=5" not in name for name in names)
    assert all(max(line["errors"].values()) < 1e-5 for line in done.json["lines"])


def test_a_recording_chooses_the_shapes_alone(tapes):
    refused = run_cli("ab", "sdpa", "reference", "--trace", tapes[False], "--model", "smollm2")
    assert (refused.code, "trace: chooses the shapes, as --model does" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("replay", "/no/such/file"), "recording: /no/such/file cannot be read"),
        (("replay", __file__), "is no recording of attention"),
        (("replay", "TAPE", "--attention-backend", "sdqa"), "did you mean: sdpa"),
        (("replay", "TAPE", "--attention-backend-config", "{"), "is not JSON"),
        (
            ("replay", "TAPE", "--attention-backend", "sdpa", "--attention-backend-config", '{"sdpa": {"x": 1}}'),
            "option 'x': is not known",
        ),
        (("ab", "sdpa", "cpu", "--trace", "/no/such/file"), "recording: /no/such/file cannot be read"),
        (("generate", "MODEL", "x", "--record-attention", "/no/such/folder/x"), "record_attention: /no/such/folder/x"),
        (("generate", "MODEL", "x", "--record-tensors"), "record_tensors: is about a recording"),
        (("generate", "MODEL", "x", "--record-attention", "/tmp/x", "--record-limit", "lots"), "record_limit: 'lots'"),
        (
            ("generate", "MODEL", "x", "--record-attention", "/tmp/x", "--engine", "process"),
            "record_attention: takes the engine in this process",
        ),
    ],
)
def test_what_cannot_be_is_refused(model, tapes, arguments, problem):
    words = [{"MODEL": model, "TAPE": tapes[False]}.get(word, word) for word in arguments]
    done = run_cli(*words)
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split()), done.err
    assert "Traceback" not in done.err
