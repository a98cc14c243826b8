"""`--profile`: the spans of every step, in a file that can be read back, and in a line on stderr."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise

import pytest

from headstock import LLM, SamplingParams
from headstock.core.trace import Recorder, recording
from support.cli import run_cli

STEP = ["schedule", "inputs", "plan", "model", "sample", "update"]
"""What lies right in a step, in its order."""


@pytest.fixture(scope="module")
def trace(tiny, tmp_path_factory):
    """Events of an answer of five tokens: a prefill and four decodes."""
    file = tmp_path_factory.mktemp("profile") / "trace.json"
    arguments = ("generate", tiny, "the fox", "--attention-backend", "sdpa", "--max-tokens", "5", "--ignore-eos")
    result = run_cli(*arguments, "--profile", str(file))
    assert result.code == 0, result.err
    whole = r"5 steps, \d+\.\d\d s: .*model \d+% \(attention \d+%, write KV \d+%\)"
    assert re.search(rf": {whole}", result.err)
    assert f"profile written to {file}; open it at https://ui.perfetto.dev" in result.err
    return [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]


def inside(trace, outer):
    """Events of the same thread that begin and end within `outer`."""
    end = outer["ts"] + outer["dur"]
    return [e for e in trace if e is not outer and outer["ts"] <= e["ts"] and e["ts"] + e["dur"] <= end]


def named(trace, name):
    return [event for event in trace if event["name"] == name]


def test_every_step_has_all_its_parts_in_their_order(trace):
    steps = named(trace, "step")
    assert len(steps) == 5
    for step in steps:
        assert [e["name"] for e in inside(trace, step) if e["name"] in STEP] == STEP


def test_the_model_has_a_write_and_an_attention_a_layer_with_its_backend(trace):
    for model in named(trace, "model"):
        parts = inside(trace, model)
        assert [e["name"] for e in parts] == ["write KV", "attention"] * 4
        layers = [f"model.layers.{i}.self_attn.attn" for i in range(4) for _ in range(2)]
        assert [e["args"] for e in parts] == [{"layer": layer, "backend": "sdpa"} for layer in layers]


def test_the_model_says_what_it_computed(trace):
    first, *rest = (event["args"]["rows"] for event in named(trace, "model"))
    assert (first["prefills"], first["decodes"]) == (1, 0)
    assert [(rows["decodes"], rows["decode_tokens"]) for rows in rest] == [(1, 1)] * 4


def test_outputs_are_processed_after_their_step(trace):
    steps, outputs = named(trace, "step"), named(trace, "output")
    for step, output in zip(steps, outputs, strict=False):
        assert output["ts"] >= step["ts"] + step["dur"]
    assert len(outputs) >= 5


def test_the_parts_of_a_step_do_not_overlap(trace):
    for step in named(trace, "step"):
        parts = [e for e in inside(trace, step) if e["name"] in STEP]
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(parts))


def test_answers_are_the_same_and_nothing_is_left_behind(tiny):
    llm = LLM(tiny, attention_backend="sdpa")
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with recording(Recorder()) as recorder:
        recorded = llm.generate(["the fox", "a hound"], params, use_tqdm=False)
    count = Counter(span.name for span in recorder.spans)
    assert (count["step"], count["attention"]) == (4, 16)
    llm.reset_prefix_cache()
    plain = llm.generate(["the fox", "a hound"], params, use_tqdm=False)
    assert [o.outputs for o in recorded] == [o.outputs for o in plain]
    assert Counter(span.name for span in recorder.spans) == count


def test_a_benchmark_records_one_more_turn_of_each_engine(tiny, tmp_path):
    file = tmp_path / "trace.json"
    sizes = ("--num-prompts", "2", "--input-len", "5", "--output-len", "3", "--rounds", "1", "--warmup", "0")
    result = run_cli(
        "bench", "throughput", tiny, *sizes, "--backends", "sdpa,reference", "--profile", str(file), "--json", "-"
    )
    assert result.code == 0, result.err
    assert [arm["warm_seconds"] for arm in result.json["arms"]] == [[], []]
    events = json.loads(file.read_text())["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(processes.values()) == ["reference", "sdpa"]
    for pid, name in processes.items():
        own = [event for event in events if event["pid"] == pid and event["ph"] == "X"]
        assert len(named(own, "step")) == 3
        assert {event["args"]["backend"] for event in named(own, "attention")} == {name}


@pytest.mark.parametrize("command", [("generate", "x"), ("bench", "throughput"), ("bench", "latency")])
def test_a_file_that_cannot_be_written_is_refused_at_once(command):
    name, *rest = command
    arguments = (name, "nowhere", *rest) if name == "generate" else (*command, "nowhere")
    result = run_cli(*arguments, "--profile", "/nowhere/trace.json")
    assert (result.code, result.out) == (2, "")
    assert "profile: /nowhere/trace.json cannot be written" in result.err
