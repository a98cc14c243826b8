"""`headstock trace export`: data sets that keep the schema, whose references compute what an engine attended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from headstock.benchmarks.trace.definitions import definition
from headstock.benchmarks.trace.evaluation import inputs_of, reference_run
from headstock.benchmarks.trace.export import workloads_of
from headstock.benchmarks.trace.forms import Form, form_of, inexpressible, read_name
from headstock.core.attention import AttentionSpec
from headstock.core.attention.reference import attend_sequence
from headstock.core.live import read_recording
from support.cli import run_cli
from support.plugins import write_distribution
from support.recordings import record, tiny_tape
from support.tree import ROOT

SCHEMAS = json.loads((ROOT / "tests/support/schemas/flashinfer-bench-0.1.2.json").read_text())
WRONG = """
from headstock.backends.reference import ReferenceBackend

class Fast(ReferenceBackend):
    def forward(self, layer, query, *, out, **rest):
        super().forward(layer, query, out=out, **rest)
        out[-1] *= 1.5

class OtherSums(ReferenceBackend):
    def forward(self, layer, query, *, lse_out, **rest):
        super().forward(layer, query, lse_out=lse_out, **rest)
        lse_out.mul_(1.1)

class Broken(ReferenceBackend):
    def forward(self, layer, query, **rest):
        raise RuntimeError("no kernel image")
"""


@pytest.fixture(scope="module")
def tape(tmp_path_factory) -> str:
    """Chunks, a window, prefix hits, and the vectors of all steps."""
    return str(tiny_tape(tmp_path_factory.mktemp("tape")))


@pytest.fixture(scope="module")
def metadata(tmp_path_factory) -> str:
    """The same without vectors."""
    path = tmp_path_factory.mktemp("tape") / "metadata.tape"
    record(path)
    return str(path)


@pytest.fixture(scope="module")
def solved(tape, tmp_path_factory) -> Path:
    """Exported, with a backend as the solution."""
    folder = tmp_path_factory.mktemp("solved") / "set"
    done = run_cli("trace", "export", tape, str(folder), "--attention-backend", "reference")
    assert done.code == 0, done.err
    return folder


def documents(folder: Path, kind: str) -> list[dict]:
    """All of a kind, those of JSON lines one by one."""
    found = [json.loads(path.read_text()) for path in sorted((folder / kind).rglob("*.json"))]
    return found + [json.loads(line) for p in sorted((folder / kind).rglob("*.jsonl")) for line in p.open()]


def strict(schema):
    """The same, in which nothing may stand that the schema does not name."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema and schema.get("type") == "object" else {}
    return {name: strict(part) for name, part in schema.items()} | closed


MODELS = {"definitions": "Definition", "solutions": "Solution", "workloads": "Trace", "traces": "Trace"}


@pytest.mark.parametrize("kind", MODELS)
def test_every_document_keeps_the_schema(solved, kind):
    found = documents(solved, kind)
    assert len(found) >= 5
    for document in found:
        jsonschema.validate(document, strict(SCHEMAS[MODELS[kind]]))


def test_steps_become_decodes_chunks_and_ragged_prefills_of_each_group(solved):
    counts = {d["name"]: len([w for w in documents(solved, "workloads") if w["definition"] == d["name"]])
              for d in documents(solved, "definitions")}  # fmt: skip
    heads = "h4_kv2_d8"
    assert counts == {
        f"gqa_ragged_prefill_causal_{heads}_fp32": 1,
        f"gqa_ragged_prefill_causal_{heads}_w5_fp32": 1,
        f"gqa_paged_prefill_causal_{heads}_ps8_fp32": 2,
        f"gqa_paged_prefill_causal_{heads}_ps8_w5_fp32": 2,
        f"gqa_paged_decode_{heads}_ps8_fp32": 4,
        f"gqa_paged_decode_{heads}_ps8_w5_fp32": 4,
    }


def test_files_hold_what_workloads_say(solved):
    constants = {d["name"]: {k: a.get("value") for k, a in d["axes"].items()} for d in documents(solved, "definitions")}
    shapes = {d["name"]: d["inputs"] for d in documents(solved, "definitions")}
    for document in documents(solved, "workloads"):
        workload, name = document["workload"], document["definition"]
        assert list(workload["inputs"]) == list(shapes[name])
        sizes = constants[name] | workload["axes"]
        for key, given in workload["inputs"].items():
            if given["type"] != "safetensors":
                assert (key, given["value"]) == ("sm_scale", pytest.approx(8**-0.5))
                continue
            tensor = load_file(solved / given["path"])[given["tensor_key"]]
            assert list(tensor.shape) == [sizes[axis] for axis in shapes[name][key]["shape"]]
            assert str(tensor.dtype) == f"torch.{shapes[name][key]['dtype']}"


def test_references_compute_what_the_recorded_layers_are(tape):
    """Against the float64 reference of the kit, over the vectors as they were recorded."""
    recording = read_recording(tape)
    steps = {step.number: step for step in recording.steps}
    for workload in workloads_of(recording):
        step = steps[workload.step]
        group = step.groups[workload.group]
        (vectors,) = [t for t in step.tensors if t.group == workload.group]
        output, lse = reference_run(workload)(*inputs_of(workload))
        first = keys = 0
        for new, length in step.rows(group.kv_group):
            rows, seen = slice(first, first + new), slice(keys, keys + length)
            exact, sums = attend_sequence(vectors.query[rows], vectors.key[seen], vectors.value[seen], group.spec)
            assert torch.allclose(output[rows].double(), exact, rtol=1e-6, atol=1e-7)
            assert torch.allclose(lse[rows].double() * torch.tensor(2.0).double().log(), sums, rtol=1e-6)
            first, keys = first + new, keys + length


def test_a_softcap_is_in_the_name_and_in_the_reference():
    form = Form(
        kind="gqa_ragged_prefill_causal", num_heads=2, num_kv_heads=1, head_size=4, dtype="float32", softcap=2.5
    )
    assert form.name == "gqa_ragged_prefill_causal_h2_kv1_d4_cap2.5_fp32"
    assert read_name(form.name) == form
    names: dict = {}
    exec(definition(form)["reference"], names)
    q, k, v = torch.randn(3, 2, 4), torch.randn(5, 1, 4), torch.randn(5, 1, 4)
    output, _ = names["run"](q, k, v, torch.tensor([0, 3]), torch.tensor([0, 5]), 3.0)
    exact, _ = attend_sequence(q, k, v, form.spec(3.0))
    plain, _ = attend_sequence(q, k, v, replace(form, softcap=None).spec(3.0))
    assert torch.allclose(output.double(), exact, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(exact, plain, atol=1e-2)


def test_queries_without_keys_give_zero_and_minus_infinity():
    form = Form(kind="gqa_paged_decode", num_heads=2, num_kv_heads=1, head_size=4, page_size=2, dtype="float32")
    names: dict = {}
    exec(definition(form)["reference"], names)
    cache = torch.randn(2, 2, 1, 4)
    offsets, pages, last = torch.tensor([0, 0, 1]), torch.tensor([1]), torch.tensor([0, 1])
    output, lse = names["run"](torch.randn(2, 2, 4), cache, cache, offsets, pages, last, 1.0)
    assert torch.equal(output[0], torch.zeros(2, 4))
    assert torch.equal(lse[0], torch.full((2,), -float("inf")))
    assert torch.equal(output[1], cache[1, 0].expand(2, 4))


def test_traces_say_what_came_of_the_solution(solved):
    evaluations = [document["evaluation"] for document in documents(solved, "traces")]
    assert {e["status"] for e in evaluations} == {"PASSED"}
    assert all(e["correctness"]["max_absolute_error"] < 1e-5 for e in evaluations)
    assert all(e["performance"]["latency_ms"] > 0 for e in evaluations)
    source = documents(solved, "solutions")[0]["sources"][0]["content"]
    assert "TraceAttention('reference', 'gqa_paged_decode" in source


@pytest.mark.parametrize(("backend", "status", "correctness"), [
    ("fast", "INCORRECT_NUMERICAL", True), ("sums", "INCORRECT_NUMERICAL", True), ("broken", "RUNTIME_ERROR", False),
])  # fmt: skip
def test_a_wrong_backend_gets_no_speed(tape, site, tmp_path, backend, status, correctness):
    write_distribution(
        site,
        "kernels",
        backends={"fast": "trace_kernels:Fast", "sums": "trace_kernels:OtherSums", "broken": "trace_kernels:Broken"},
        modules={"trace_kernels": WRONG},
    )
    done = run_cli("trace", "export", tape, str(tmp_path / "set"), "--attention-backend", backend, "--limit", "1")
    assert done.code == 1
    assert status in done.out
    for document in documents(tmp_path / "set", "traces"):
        jsonschema.validate(document, SCHEMAS["Trace"])
        assert document["evaluation"]["status"] == status
        assert (document["evaluation"]["correctness"] is not None) == correctness
        assert document["evaluation"]["performance"] is None


MAJOR = """
from dataclasses import dataclass, replace
from headstock.backends.reference import ReferenceBackend

@dataclass(frozen=True, kw_only=True)
class Options:
    factor: int = 1

class HeadMajor(ReferenceBackend):
    Options = Options

    @classmethod
    def capabilities(cls, device):
        return replace(super().capabilities(device), layouts=("hnd",))

    def forward(self, layer, query, *, out, **rest):
        super().forward(layer, query, out=out, **rest)
        out.mul_(self.options.factor - 1)
"""


def test_a_backend_with_another_layout_and_with_options_is_a_solution(tape, site, tmp_path):
    """Pages are copied into its layout; with the options it was exported with it is right, without it would be 0."""
    write_distribution(site, "major", backends={"major": "trace_major:HeadMajor"}, modules={"trace_major": MAJOR})
    words = ("trace", "export", tape, str(tmp_path / "set"), "--attention-backend", "major", "--limit", "3")
    done = run_cli(*words, "--attention-backend-config", '{"Major": {"factor": 2}}')
    assert done.code == 0, done.out + done.err
    sources = [document["sources"][0]["content"] for document in documents(tmp_path / "set", "solutions")]
    assert all("TraceAttention('major'," in source and "{'factor': 2})" in source for source in sources)


def test_without_vectors_the_inputs_are_random_and_the_solution_is_tried_on_some(metadata, tmp_path):
    document = run_cli(
        "trace", "export", metadata, str(tmp_path / "set"), "--attention-backend", "cpu", "--limit", "2", "--json"
    ).json
    assert {w["vectors"] for w in document["workloads"]} == {"random"}
    assert {w["step"] for w in document["workloads"]} == {1, 7}
    assert {w["evaluation"]["status"] for w in document["workloads"]} == {"PASSED"}
    inputs = [w["workload"]["inputs"] for w in documents(tmp_path / "set", "workloads")]
    assert {given["type"] for one in inputs for given in one.values()} == {"random", "safetensors", "scalar"}


PLAIN = {"num_heads": 4, "num_kv_heads": 2, "head_size": 8, "dtype": "float32"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sinks": True}, "it has sinks, whose values are not recorded"),
        ({"alibi": True}, "it has alibi, whose values are not recorded"),
        ({"causal": False}, "it is not causal"),
        ({"head_size_v": 4}, "heads of keys and values differ"),
        ({"latent": (6, 2), "head_size_v": 6, "num_kv_heads": 1}, "heads of keys and values differ"),
        ({"kv_format": "fp8_e4m3", "kv_scales": "tensor"}, "the cache holds fp8_e4m3"),
        ({"window": (4, 1)}, "its window sees 1 keys ahead"),
        ({"masks": frozenset({"spans"})}, "it may have masks"),
        ({"dtype": "float64"}, "dtype is float64"),
        ({"kind": "cross"}, "kind is cross"),
        ({"kv_source": "ragged"}, "its keys are in no cache"),
    ],
)
def test_what_no_definition_says_is_told_with_the_reason(change, reason):
    assert inexpressible(AttentionSpec(**PLAIN)) == ()
    assert reason in "; ".join(inexpressible(AttentionSpec(**(PLAIN | change))))
    both = inexpressible(AttentionSpec(**(PLAIN | {"sinks": True, "causal": False})))
    assert len(both) == 2


@pytest.mark.parametrize(
    ("spec", "rows", "name"),
    [
        ({}, ((1, 5), (1, 1)), "gqa_paged_decode_h4_kv2_d8_ps16_fp32"),
        ({"dtype": "bfloat16", "block_size": 1}, ((1, 5),), "gqa_paged_decode_h4_kv2_d8_ps1"),
        ({"dtype": "float16"}, ((2, 5), (1, 7)), "gqa_paged_prefill_causal_h4_kv2_d8_ps16_fp16"),
        ({"window": (127, 0)}, ((5, 5), (3, 3)), "gqa_ragged_prefill_causal_h4_kv2_d8_w128_fp32"),
        ({"softcap": 50.0, "window": (-1, 0)}, ((2, 3),), "gqa_paged_prefill_causal_h4_kv2_d8_ps16_cap50_fp32"),
    ],
)
def test_names_are_those_of_flashinfer_and_lead_back(spec, rows, name):
    form = form_of(AttentionSpec(**(PLAIN | spec)), rows)
    assert form.name == name
    assert read_name(name) == form


ORDER = {
    "gqa_paged_decode_h32_kv8_d128_ps1": "q k_cache v_cache kv_indptr kv_indices sm_scale",
    "gqa_paged_decode_h32_kv8_d128_ps64": "q k_cache v_cache kv_indptr kv_indices kv_last_page_len sm_scale",
    "gqa_paged_prefill_causal_h32_kv8_d128_ps64": (
        "q k_cache v_cache qo_indptr kv_indptr kv_indices kv_last_page_len sm_scale"
    ),
    "gqa_ragged_prefill_causal_h32_kv8_d128": "q k v qo_indptr kv_indptr sm_scale",
}
"""Inputs of definitions in FlashInfer's own data set."""


@pytest.mark.parametrize("name", ORDER)
def test_inputs_stand_in_the_order_of_flashinfers_data_set(name):
    form = read_name(name)
    assert form is not None
    document = definition(form)
    assert list(document["inputs"]) == ORDER[name].split()
    assert list(document["outputs"]) == ["output", "lse"]
    assert {tensor["dtype"] for tensor in document["inputs"].values()} == {"bfloat16", "int32", "float32"}


def test_layers_that_cannot_be_said_are_left_out_and_told(tape, tmp_path, monkeypatch):
    """Half of a model with sinks: the rest is exported, and the exit code says that it is not all."""
    from headstock.benchmarks.trace import export

    monkeypatch.setattr(export, "inexpressible", lambda spec: ("it has sinks",) if spec.window else ())
    done = run_cli("trace", "export", tape, str(tmp_path / "set"))
    assert done.code == 1
    assert "left out: model.layers.2.self_attn.attn and 1 more layers: it has sinks" in done.err
    assert all("_w5" not in d["name"] for d in documents(tmp_path / "set", "definitions"))


def test_an_empty_folder_that_is_there_stays_the_same_one(metadata, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    assert run_cli("trace", "export", metadata, ".", "--limit", "1").code == 0
    assert tmp_path.stat().st_ino == before
    assert {path.name for path in tmp_path.iterdir()} == {"definitions", "workloads", "blob"}


def test_a_full_disk_leaves_nothing(metadata, tmp_path, monkeypatch):
    def full(*args):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("headstock.benchmarks.trace.export.save_file", full)
    done = run_cli("trace", "export", metadata, str(tmp_path / "set"))
    assert done.code == 2
    assert "cannot be written: I/O error: No space left on device" in " ".join(done.err.split())
    assert list(tmp_path.iterdir()) == []


SOLVED = ("TAPE", "SET", "--attention-backend", "reference")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("/no/such/tape", "SET"), "recording: /no/such/tape cannot be read"),
        ((__file__, "SET"), "is no recording of attention"),
        (("TAPE", "FULL"), "is there already; name a new folder"),
        (("TAPE", __file__), "is there already; name a new folder"),
        (("TAPE", "/proc/none/set"), "cannot be written"),
        (("TAPE", "SET", "--attention-backend", "sdpa"), "gqa_paged_decode_h4_kv2_d8_ps8_fp32: lse: asked yes"),
        (("TAPE", "SET", "--attention-backend", "spda"), "did you mean: sdpa"),
        ((*SOLVED, "--attention-backend-config", '{"reference": {"x": 1}}'), "option 'x': is not known"),
        ((*SOLVED, "--attention-backend-config", "{"), "is not JSON"),
        (("TAPE", "SET", "--limit", "0"), "'--limit'"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(tape, tmp_path, arguments, problem):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    places = {"TAPE": tape, "SET": str(tmp_path / "set"), "FULL": str(tmp_path / "full")}
    done = run_cli("trace", "export", *(places.get(word, word) for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split()), done.err
    assert "Traceback" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
