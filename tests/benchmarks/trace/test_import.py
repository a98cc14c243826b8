"""`headstock trace import`: data sets of anybody's become recordings, and what is none does no harm."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headstock.benchmarks.trace.dataset import read_dataset
from headstock.benchmarks.trace.definitions import definition
from headstock.benchmarks.trace.forms import read_name
from headstock.benchmarks.trace.importing import read_steps
from headstock.core.live import read_recording
from support.cli import run_cli
from support.recordings import record, tiny_tape

DECODE = "gqa_paged_decode_h4_kv2_d8_ps4_fp32"
PREFILL = "gqa_paged_prefill_causal_h4_kv2_d8_ps1"
RAGGED = "gqa_ragged_prefill_causal_h4_kv2_d8_fp32"
GEMM = {
    "name": "gemm_n8_k8",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 8}},
    "inputs": {"A": {"shape": ["M", "N"], "dtype": "float16"}},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
    "reference": "def run(A): return A",
}


def foreign(name: str) -> dict:
    """As others write it: with a reference of their own, and nothing of ours."""
    form = read_name(name)
    assert form is not None
    document = definition(form) | {"reference": "def run(*inputs):\n    raise SystemExit('executed')\n"}
    del document["tags"], document["description"]
    return document


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


class DataSet:
    """A folder in which a test writes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def define(self, document: dict) -> None:
        path = self.root / "definitions" / document["op_type"] / f"{document['name']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))

    def add(
        self, name: str, axes: dict[str, int], tensors: dict[str, torch.Tensor], scale: object = 0.5, **more
    ) -> Path:
        """A workload; `more` replaces inputs. Gives the path of its file."""
        op_type = "gqa_ragged" if "ragged" in name else "gqa_paged"
        lines = self.root / "workloads" / op_type / f"{name}.jsonl"
        lines.parent.mkdir(parents=True, exist_ok=True)
        number = len(lines.read_text().splitlines()) if lines.exists() else 0
        blob = f"blob/{name}_{number}.safetensors"
        (self.root / "blob").mkdir(exist_ok=True)
        save_file(tensors, self.root / blob)
        inputs = {key: {"type": "random"} for key in foreign(name)["inputs"]}
        inputs |= {key: {"type": "safetensors", "path": blob, "tensor_key": key} for key in tensors}
        inputs |= {"sm_scale": {"type": "scalar", "value": scale}} | more
        document = {"definition": name, "workload": {"uuid": f"{name}-{number}", "axes": axes, "inputs": inputs}}
        with lines.open("a") as file:
            file.write(json.dumps(document | {"solution": None, "evaluation": None}) + "\n")
        return self.root / blob


AXES = {"batch_size": 2, "num_pages": 9, "len_indptr": 3, "num_kv_indices": 4}
TENSORS = {"kv_indptr": ints(0, 3, 4), "kv_indices": ints(8, 0, 5, 0), "kv_last_page_len": ints(1, 4)}


@pytest.fixture
def dataset(tmp_path) -> DataSet:
    found = DataSet(tmp_path / "set")
    for name in (DECODE, PREFILL, RAGGED):
        found.define(foreign(name))
    found.define(GEMM)
    return found


def imported(dataset: DataSet, tmp_path: Path, *words: str):
    done = run_cli("trace", "import", str(dataset.root), str(tmp_path / "a.tape"), "--json", *words)
    return done, read_recording(tmp_path / "a.tape") if (tmp_path / "a.tape").exists() else None


def test_pages_become_rows_and_block_tables(dataset, tmp_path):
    dataset.add(DECODE, AXES, TENSORS)
    done, recording = imported(dataset, tmp_path)
    assert (done.code, done.json["not_attention"], done.json["left_out"]) == (0, ["gemm_n8_k8"], [])
    (step,) = recording.steps
    assert step.rows(0) == ((1, 9), (1, 4))
    assert step.block_tables[0].tolist() == [[8, 0, 5], [0, 0, 0]]
    (group,) = step.groups
    assert (group.spec.scale, group.spec.block_size, group.spec.dtype) == (0.5, 4, "float32")
    assert (group.backend, group.layers) == ("flashinfer-trace", (DECODE,))
    assert done.json["steps"] == [
        {"step": 1, "definition": DECODE, "workload": f"{DECODE}-0", "rows": 2, "vectors": "random"}
    ]


def test_pages_of_one_token_and_chunks(dataset, tmp_path):
    """The rows without queries fall away, as a padded batch has them."""
    tensors = {"qo_indptr": ints(0, 2, 2, 5), "kv_indptr": ints(0, 4, 4, 7), "kv_indices": ints(*range(7))}
    axes = {"total_q": 5, "num_pages": 7, "len_indptr": 4, "num_kv_indices": 7}
    dataset.add(PREFILL, axes, tensors, 0.35355338454246521)
    done, recording = imported(dataset, tmp_path)
    assert done.code == 0
    (step,) = recording.steps
    assert step.rows(0) == ((2, 4), (3, 3))
    assert step.block_tables[0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 0]]
    assert step.groups[0].spec.dtype == "bfloat16"
    assert step.groups[0].spec.scale == 1 / math.sqrt(8)  # the same float32 number, said otherwise


def test_vectors_come_along_where_all_are_there(dataset, tmp_path):
    q, k, v = torch.randn(5, 4, 8), torch.randn(24, 2, 8), torch.randn(24, 2, 8)
    tensors = {"qo_indptr": ints(0, 2, 5), "kv_indptr": ints(0, 20, 24), "q": q, "k": k, "v": v}
    axes = {"total_q": 5, "total_kv": 24, "len_indptr": 3}
    dataset.add(RAGGED, axes, tensors)
    dataset.add(RAGGED, axes, {name: tensor for name, tensor in tensors.items() if name != "v"})
    cache = torch.randn(9, 4, 2, 8), torch.randn(9, 4, 2, 8)
    query = torch.randn(2, 4, 8)
    dataset.add(DECODE, AXES, {**TENSORS, "q": query, "k_cache": cache[0], "v_cache": cache[1]})
    done, recording = imported(dataset, tmp_path)
    assert [step["vectors"] for step in done.json["steps"]] == ["recorded", "recorded", "random"]
    paged, whole, partly = recording.steps
    assert torch.equal(paged.tensors[0].query, query)
    assert torch.equal(paged.tensors[0].key[:8], cache[0][[8, 0]].flatten(0, 1))
    assert torch.equal(paged.tensors[0].value[8:9], cache[1][5, :1])
    assert whole.rows(0) == ((2, 20), (3, 4))
    assert torch.equal(whole.tensors[0].key, k)
    assert torch.equal(whole.tensors[0].value, v)
    assert partly.tensors == []
    replayed = run_cli("replay", str(tmp_path / "a.tape"), "--attention-backend", "reference", "--json")
    assert (replayed.code, len(replayed.json["steps"])) == (0, 3)


def test_a_row_without_queries_takes_its_ragged_keys_with_it(dataset, tmp_path):
    k = torch.randn(9, 2, 8)
    tensors = {"qo_indptr": ints(0, 0, 2), "kv_indptr": ints(0, 3, 9), "q": torch.randn(2, 4, 8), "k": k, "v": k + 1}
    dataset.add(RAGGED, {"total_q": 2, "total_kv": 9, "len_indptr": 3}, tensors)
    _, recording = imported(dataset, tmp_path)
    assert recording.steps[0].rows(0) == ((2, 6),)
    assert torch.equal(recording.steps[0].tensors[0].key, k[3:])


def test_what_is_exported_comes_back(tmp_path):
    """Rows, specs and vectors, whatever way the steps went."""
    first = read_recording(tiny_tape(tmp_path))
    assert run_cli("trace", "export", str(tmp_path / "attention.tape"), str(tmp_path / "set")).code == 0
    assert run_cli("trace", "import", str(tmp_path / "set"), str(tmp_path / "again.tape")).code == 0
    again = read_recording(tmp_path / "again.tape")

    def parts(recording):
        found = []
        for step in recording.steps:
            for tensors in step.tensors:
                group = step.groups[tensors.group]
                spec = (group.spec.window, group.spec.num_heads, group.spec.dtype, round(group.spec.scale, 6))
                sums = [round(float(x.double().sum()), 9) for x in (tensors.query, tensors.key, tensors.value)]
                found.append((step.rows(group.kv_group), str(spec), sums))
        return sorted(found)

    assert parts(first) == parts(again)
    assert len(parts(first)) == 14


def test_other_ops_may_have_what_is_not_known_here(dataset, tmp_path):
    """Axes that are computed, inputs of new kinds: later versions of the schema have them."""
    dataset.define(GEMM | {"axes": GEMM["axes"] | {"K": {"type": "expr", "expression": "2 * N"}}})
    dataset.add(DECODE, AXES, TENSORS)
    lines = dataset.root / "workloads" / "gemm.jsonl"
    inputs = {"A": {"type": "made", "by": "a rule"}, "B": {"type": "scalar", "value": [1, "x"]}}
    workload = {"uuid": "g", "axes": {"M": 1}, "inputs": inputs}
    lines.write_text(json.dumps({"definition": "gemm_n8_k8", "workload": workload}) + "\n")
    done, recording = imported(dataset, tmp_path)
    assert (done.code, len(recording.steps)) == (0, 1)


def test_only_what_is_asked_for(dataset, tmp_path):
    for _ in range(5):
        dataset.add(DECODE, AXES, TENSORS)
    tensors = {"qo_indptr": ints(0, 1), "kv_indptr": ints(0, 1)}
    dataset.add(RAGGED, {"total_q": 1, "total_kv": 1, "len_indptr": 2}, tensors)
    done, recording = imported(dataset, tmp_path, "--definition", "*paged*", "--limit", "3")
    assert done.code == 0
    assert [step["workload"] for step in done.json["steps"]] == [f"{DECODE}-{n}" for n in (0, 2, 4)]
    assert len(recording.steps) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_indptr": ints(0, 3, 2)}, "kv_indptr does not ascend from 0"),
        ({"kv_indptr": ints(1, 3, 4)}, "kv_indptr does not ascend from 0"),
        ({"kv_indptr": ints(0, 3, 5)}, "kv_indices names 4 pages, kv_indptr means 5"),
        ({"kv_indptr": ints(0, 4)}, "kv_indptr is [2] in its file, and [3] in the workload"),
        ({"kv_indptr": torch.tensor([0, 3, 4])}, "kv_indptr is I64 in its file, and int32 in the definition"),
        ({"kv_indices": ints(8, 0, 9, 0)}, "kv_indices names pages that are not among the 9"),
        ({"kv_indices": ints(8, 0, -1, 0)}, "kv_indices names pages that are not among the 9"),
        ({"kv_last_page_len": ints(0, 4)}, "kv_last_page_len is not between 1 and 4"),
        ({"kv_last_page_len": ints(1, 5)}, "kv_last_page_len is not between 1 and 4"),
        ({"kv_indptr": ints(0, 4, 4)}, "a sequence has more queries than keys"),
        ({"q": torch.zeros(2, 4, 8), "k_cache": torch.zeros(9, 4, 2, 8), "v_cache": torch.zeros(9, 4, 2, 9)},
         "v_cache is [9, 4, 2, 9] in its file, and [9, 4, 2, 8] in the workload"),
    ],
)  # fmt: skip
def test_a_workload_that_is_no_step_is_left_out_with_the_reason(dataset, tmp_path, change, reason):
    dataset.add(DECODE, AXES, TENSORS)
    dataset.add(DECODE, AXES, TENSORS | change)
    done, recording = imported(dataset, tmp_path)
    assert done.code == 1
    assert len(recording.steps) == 1
    (left,) = done.json["left_out"]
    assert left["workload"] == f"{DECODE}-1"
    assert reason in left["reasons"][0]
    assert reason in done.err


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sm_scale": {"type": "random"}}, "sm_scale is None"),
        ({"sm_scale": {"type": "scalar", "value": -1}}, "sm_scale is -1"),
        ({"sm_scale": {"type": "scalar", "value": True}}, "sm_scale is True"),
        ({"kv_indptr": {"type": "random"}}, "kv_indptr is random, and has to come from a file"),
        ({"kv_indptr": {"type": "safetensors", "path": "blob/none.safetensors", "tensor_key": "x"}}, "is missing"),
        ({"kv_indptr": {"type": "safetensors", "path": "blob", "tensor_key": "x"}}, "blob cannot be read"),
        ({"kv_indptr": {"type": "safetensors", "path": f"blob/{DECODE}_0.safetensors", "tensor_key": "x"}},
         "holds no 'x'"),
    ],
)  # fmt: skip
def test_inputs_from_elsewhere_are_left_out_with_the_reason(dataset, tmp_path, more, reason):
    dataset.add(DECODE, AXES, TENSORS, **more)
    done, recording = imported(dataset, tmp_path)
    assert (done.code, done.out, recording) == (2, "", None)
    assert "holds no attention workload that can be imported" in done.err
    assert reason in done.err


def test_files_that_are_cut_short_or_were_not_fetched(dataset, tmp_path):
    whole, short, pointer = (dataset.add(DECODE, AXES, TENSORS) for _ in range(3))
    short.write_bytes(whole.read_bytes()[:-4])
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    done, recording = imported(dataset, tmp_path)
    assert done.code == 1
    assert len(recording.steps) == 1
    reasons = [left["reasons"][0] for left in done.json["left_out"]]
    assert all("cannot be read" in reason for reason in reasons)
    assert [("git lfs pull" in reason) for reason in reasons] == [False, True]


def test_counts_that_nothing_could_hold_are_left_out_before_anything_is_allocated(dataset):
    huge = "gqa_paged_decode_h4_kv2_d8_ps999999_fp32"
    dataset.define(foreign(huge))
    pages = 4000
    dataset.add(
        huge,
        {"batch_size": 1, "num_pages": 10**15, "len_indptr": 2, "num_kv_indices": pages},
        {"kv_indptr": ints(0, pages), "kv_indices": ints(*range(pages)), "kv_last_page_len": ints(1)},
    )
    rows = 2**15
    one = "gqa_paged_decode_h4_kv2_d8_ps1_fp32"
    dataset.define(foreign(one))
    starts = torch.cat([torch.arange(rows), torch.tensor([2 * rows - 1])]).int()
    dataset.add(
        one,
        {"batch_size": rows, "num_pages": 1, "len_indptr": rows + 1, "num_kv_indices": 2 * rows - 1},
        {"kv_indptr": starts, "kv_indices": torch.zeros(2 * rows - 1, dtype=torch.int32)},
    )
    contents = read_dataset(str(dataset.root), "*")
    assert read_steps(contents) == []
    reasons = {skipped.definition: skipped.reasons[0] for skipped in contents.skipped}
    assert reasons[huge] == "a sequence has 3998996002 keys, more than fit into int32"
    assert "block table of 32768 x 32768 is too large" in reasons[one]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "gqa_paged_decode_special"}, "its name is none of"),
        ({"name": f"{DECODE.removesuffix('_fp32')}_w8_fp32"}, "its reference is not Headstock's"),
        ({"name": DECODE.replace("h4", "h8")}, "q has num_qo_heads = 4, its name means 8"),
        ({"name": DECODE.removesuffix("_fp32")}, "q is float32, not bfloat16"),
        ({"op_type": "gqa_ragged"}, "op_type is gqa_ragged, its name means gqa_paged"),
        ({"inputs": {**foreign(DECODE)["inputs"], "sinks": {"shape": ["num_qo_heads"], "dtype": "float32"}}},
         "with inputs that are not known: sinks"),
        ({"inputs": {k: v for k, v in foreign(DECODE)["inputs"].items() if k != "kv_last_page_len"}},
         "without kv_last_page_len among its inputs"),
        ({"inputs": foreign(DECODE)["inputs"] | {"q": {"shape": ["batch_size"], "dtype": "float32"}}},
         "q has 1 dimensions, not 3"),
        ({"inputs": foreign(DECODE)["inputs"] | {"sm_scale": {"shape": [], "dtype": "float32"}}},
         "sm_scale is a tensor or a number, not the other"),
    ],
)  # fmt: skip
def test_definitions_of_other_attention_are_left_out_with_all_reasons(tmp_path, change, reason):
    dataset = DataSet(tmp_path / "set")
    dataset.define(foreign(DECODE) | change)
    contents = read_dataset(str(dataset.root), "*")
    (skipped,) = contents.skipped
    assert reason in "; ".join(skipped.reasons)


def test_workloads_of_definitions_that_are_not_there_are_told(dataset, tmp_path):
    dataset.add(DECODE, AXES, TENSORS)
    other = "gqa_paged_decode_h8_kv2_d8_ps4_fp32"
    dataset.add(other, AXES, TENSORS)
    done, _ = imported(dataset, tmp_path)
    assert done.code == 1
    assert f"{other}: its definition is not in the data set" in done.err


@pytest.mark.parametrize("path", ["/etc/x.safetensors", "../x.safetensors", "blob/../../x", "C:\\x", "..\\x", "a\0b"])
def test_a_path_that_leads_out_of_the_folder_ends_it(dataset, tmp_path, path):
    dataset.add(DECODE, AXES, TENSORS)
    dataset.add(DECODE, AXES, TENSORS, kv_indptr={"type": "safetensors", "path": path, "tensor_key": "kv_indptr"})
    done, recording = imported(dataset, tmp_path)
    assert (done.code, recording) == (2, None)
    assert "line 2: the path" in done.err
    assert "leads out of the data set" in done.err


BAD = {
    "not JSON": "{",
    "a list": "[]",
    "without op_type": json.dumps({k: v for k, v in foreign(DECODE).items() if k != "op_type"}),
    "axes as numbers": json.dumps(foreign(DECODE) | {"axes": {"batch_size": 1}}),
    "nested": "[" * 100_000,
    "a size below 0": json.dumps(foreign(DECODE) | {"axes": {"head_dim": {"type": "const", "value": -1}}}),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_definitions_of_another_schema_end_in_one_message(dataset, tmp_path, text):
    (dataset.root / "definitions" / "gqa_paged" / "bad.json").write_text(text)
    done, recording = imported(dataset, tmp_path)
    assert (done.code, done.out, recording) == (2, "", None)
    assert "definitions/gqa_paged/bad.json is not as FlashInfer-Trace has it, or of another version of it" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("line", ["{", '{"definition": "x"}', '{"definition": 1, "workload": {}}', "\xff"])
def test_lines_of_another_schema_end_in_one_message(dataset, tmp_path, line):
    dataset.add(DECODE, AXES, TENSORS)
    path = dataset.root / "workloads" / "gqa_paged" / f"{DECODE}.jsonl"
    path.write_bytes(path.read_bytes() + b"\n" + line.encode("latin-1") + b"\n")
    done, recording = imported(dataset, tmp_path)
    assert (done.code, recording) == (2, None)
    assert f"workloads/gqa_paged/{DECODE}.jsonl, line 3 is not as FlashInfer-Trace has it" in done.err


def test_nothing_is_written_over_and_nothing_half_is_left(dataset, tmp_path, monkeypatch):
    dataset.add(DECODE, AXES, TENSORS)
    (tmp_path / "there.tape").write_text("mine")
    done = run_cli("trace", "import", str(dataset.root), str(tmp_path / "there.tape"))
    assert (done.code, (tmp_path / "there.tape").read_text()) == (2, "mine")
    assert "there.tape is there already; name a new file" in done.err
    monkeypatch.setattr("headstock.core.live.tape.Tape.step", lambda *args: False)  # as on a full disk
    done = run_cli("trace", "import", str(dataset.root), str(tmp_path / "new.tape"))
    assert done.code == 2
    assert "cannot be written to its end" in done.err
    assert not (tmp_path / "new.tape").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("/no/such/folder", "TAPE"), "has no folder definitions"),
        ((__file__, "TAPE"), "has no folder definitions"),
        (("x" * 5000, "TAPE"), "has no folder definitions"),
        (("~nobody-of-this-name/x", "TAPE"), "has no folder definitions"),
        (("SET", "TAPE", "--definition", "gqa_x*"), "none of"),
        (("SET", "TAPE", "--definition", "gemm_n8_k8"), "gemm_n8_k8: its name is none of"),
        (("SET", "TAPE"), "holds no attention workload that can be imported"),
    ],
)
def test_what_cannot_be_imported_is_refused(dataset, tmp_path, arguments, problem):
    places = {"SET": str(dataset.root), "TAPE": str(tmp_path / "a.tape")}
    done = run_cli("trace", "import", *(places.get(word, word) for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split()), done.err
    assert not (tmp_path / "a.tape").exists()


@pytest.mark.parametrize("place", ["/no/such/folder/x", "x" * 5000, "~nobody-of-this-name/x"])
def test_a_place_where_no_file_can_be_is_refused_by_its_name(dataset, place):
    dataset.add(DECODE, AXES, TENSORS)
    done = run_cli("trace", "import", str(dataset.root), place)
    assert (done.code, done.out) == (2, "")
    assert f"recording: {place} cannot be written" in " ".join(done.err.split())


def test_the_length_of_the_last_page_may_have_an_axis_that_nobody_defines(dataset, tmp_path):
    """As in FlashInfer's own prefills over pages of 64."""
    name = "gqa_paged_prefill_causal_h4_kv2_d8_ps4_fp32"
    document = foreign(name)
    del document["axes"]["batch_size"]
    dataset.define(document)
    axes = {"total_q": 3, "num_pages": 9, "len_indptr": 3, "num_kv_indices": 4}
    dataset.add(name, axes, TENSORS | {"qo_indptr": ints(0, 2, 3)})
    done, recording = imported(dataset, tmp_path)
    assert done.code == 0
    assert recording.steps[0].rows(0) == ((2, 9), (1, 4))


def test_a_metadata_recording_goes_both_ways(tmp_path):
    record(tmp_path / "a.tape")
    assert run_cli("trace", "export", str(tmp_path / "a.tape"), str(tmp_path / "set")).code == 0
    done = run_cli("trace", "import", str(tmp_path / "set"), str(tmp_path / "b.tape"))
    assert done.code == 0
    assert "b.tape: 14 steps, 0 of them with vectors" in done.out
