"""`headstock tune`: winners from measurements, a file that the engine then follows, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headstock import LLM
from headstock.benchmarks.kernels.report import Measurement, Row
from headstock.benchmarks.tune.measure import Regimes, entries_for, measurable
from headstock.core.attention import AttentionSpec
from support.cli import run_cli
from support.plugins import world
from support.tiny import tiny_folder

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=8, dtype="float32")
OFFERS = [world().backends.find(name) for name in ("sdpa", "reference")]
NOISE = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.005, 0.995)
SMALL = ("--batches", "1", "--contexts", "32", "--rounds", "6")


def rows(**times):
    """Rows of the regimes in which a backend takes so long, or is wrong where that is None."""
    return [
        Row(
            shape=shape, dtype="float32", threads=1, kv_bytes=1, flops=1,
            measurements=tuple(
                Measurement(name=name, reason="wrong", failed=True)
                if time is None
                else Measurement(name=name, median_us=time, samples_us=tuple(time * x for x in NOISE))
                for name, time in times.items()
            ),
        )
        for shape in Regimes(batches=(1, 16), contexts=(64, 128)).shapes(SPEC)
    ]  # fmt: skip


def test_regimes_are_batches_by_contexts_prompts_and_chunks():
    labels = [shape.label for shape in Regimes(batches=(1, 16), contexts=(64, 1024)).shapes(SPEC)]
    assert labels == [
        "decode:4/2/8:1x64", "decode:4/2/8:1x1k", "decode:4/2/8:16x64", "decode:4/2/8:16x1k",
        "prefill:4/2/8:64", "prefill:4/2/8:1k", "chunk:4/2/8:64+64", "chunk:4/2/8:256+1k",
    ]  # fmt: skip


def test_the_one_that_is_shown_to_be_faster_wins():
    decode, prefill = entries_for(SPEC, rows(sdpa=10.0, reference=5.0), OFFERS)
    assert (decode.phase, decode.backend, decode.against, decode.ratio) == ("decode", "reference", "sdpa", 2.0)
    assert prefill.phase == "prefill"
    assert decode.regimes["decode:4/2/8:1x64"] == {"sdpa": 10.0, "reference": 5.0}


def test_without_a_difference_the_ranking_stands():
    decode, _ = entries_for(SPEC, rows(sdpa=10.0, reference=10.001), OFFERS)
    assert (decode.backend, decode.against, decode.ratio) == ("sdpa", "sdpa", 1.0)


def test_a_wrong_one_does_not_count_however_fast():
    decode, _ = entries_for(SPEC, rows(sdpa=10.0, reference=None), OFFERS)
    assert decode.backend == "sdpa"
    assert entries_for(SPEC, rows(sdpa=None, reference=None), OFFERS) == []


def test_layers_of_other_kinds_are_left_out_and_named():
    latent = AttentionSpec(num_heads=4, num_kv_heads=1, head_size=72, head_size_v=64, dtype="float32", latent=(64, 8))
    assert measurable([SPEC, replace(SPEC, block_size=32), latent]) == ([SPEC], [latent])


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


def test_the_tuned_choice_is_the_one_that_computes(model, tmp_path, monkeypatch):
    """The file is measured for real; its winner is then set to the slow one, so that it is known who computed."""
    path = tmp_path / "tuned.json"
    done = run_cli("tune", model, *SMALL, "--backends", "sdpa,reference", "--output", str(path), "--json")
    assert (done.code, done.json["file"]) == (0, str(path))
    document = json.loads(path.read_text())
    assert {e["phase"] for e in document["entries"]} == {"decode", "prefill"}
    assert all(set(times) == {"sdpa", "reference"} for e in document["entries"] for times in e["regimes"].values())
    reference = run_cli("tune", model, *SMALL, "--backends", "reference,sdpa", "--json", "-o", str(tmp_path / "x"))
    assert reference.code == 0
    from headstock.backends.reference import ReferenceBackend
    from headstock.plugins.sources import source_hash

    for e in document["entries"]:
        e |= {"backend": "reference", "source_hash": source_hash(ReferenceBackend)}
    path.write_text(json.dumps(document))
    monkeypatch.setenv("HEADSTOCK_TUNED", str(path))
    calls = []
    forward = ReferenceBackend.forward
    monkeypatch.setattr(ReferenceBackend, "forward", lambda *a, **k: (calls.append(a[1].name), forward(*a, **k))[1])
    llm = LLM(model)
    assert all(choice.backend == "reference" for choice in llm.attention.choices.values())
    assert "tuned (measured on this machine: " in next(iter(llm.attention.choices.values())).origin
    llm.generate("the fox", use_tqdm=False)
    assert set(calls) == set(llm.attention.choices)
    assert all(c.backend == "sdpa" for c in LLM(model, attention_backend="sdpa").attention.choices.values())


def test_windows_are_measured_as_windows(model, tmp_path):
    done = run_cli("tune", model, *SMALL, "--backends", "sdpa,reference", "-o", str(tmp_path / "t.json"))
    assert "window 5" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--batches", "0"), "batches: '0' is not a list of numbers"),
        (("--contexts", "1,x"), "contexts: '1,x' is not a list of numbers"),
        (("--contexts", ""), "contexts: '' is not a list of numbers"),
        (("--rounds", "1"), "Invalid value for '--rounds'"),
        (("--backends", "sdpa"), "backends: there is nothing to choose from: sdpa"),
        (("--backends", "sdpa,sdqa"), "did you mean: sdpa"),
        (("--output", "/proc/nothing/here.json"), "output: /proc/nothing/here.json cannot be written"),
        (("--dtype", "float7"), "dtype: 'float7'"),
    ],
)
def test_what_cannot_be_is_refused(model, arguments, problem):
    done = run_cli("tune", model, *arguments)
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split()), done.err
    assert "Traceback" not in done.err
