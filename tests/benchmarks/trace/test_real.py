"""flashinfer-bench itself reads what is exported, and what it writes is imported.

Its requirements bring libraries for cards; what is tested here needs two packages:
``pip install --no-deps flashinfer-bench docstring-parser``.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from headstock.core.live import read_recording
from support.cli import run_cli
from support.recordings import record, tiny_tape

pytestmark = [pytest.mark.heavy, pytest.mark.real]


@pytest.fixture(scope="module")
def fib(tmp_path_factory):
    """The package, with its cache in a folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.mktemp("fib")))
        reason = "pip install --no-deps flashinfer-bench docstring-parser"
        data = pytest.importorskip("flashinfer_bench.data", reason=reason)
        from flashinfer_bench.bench.utils import compute_error_stats, gen_inputs, load_safetensors
        from flashinfer_bench.compile import BuilderRegistry

        yield SimpleNamespace(
            data=data,
            builders=BuilderRegistry.get_instance(),
            load=load_safetensors,
            inputs=gen_inputs,
            errors=compute_error_stats,
        )


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """A windowed model's steps with vectors, with a backend as their solution."""
    folder = tmp_path_factory.mktemp("exported")
    tape = tiny_tape(folder)
    done = run_cli("trace", "export", str(tape), str(folder / "set"), "--attention-backend", "reference")
    assert done.code == 0, done.err
    return folder / "set"


def test_it_loads_what_is_exported_and_finds_all_of_it(fib, exported):
    found = fib.data.TraceSet.from_path(str(exported))
    assert len(found.definitions) >= 4
    assert found.definitions.keys() == found.workloads.keys() == found.solutions.keys() == found.traces.keys()
    for name, traces in found.traces.items():
        assert [t.workload for t in traces] == [t.workload for t in found.workloads[name]]
        assert all(t.is_successful() for t in traces)
        assert {t.solution for t in traces} == {s.name for s in found.solutions[name]}
        assert found.get_best_trace(name, max_rel_error=1.0) is not None


def test_the_reference_and_the_solution_agree_through_its_builders(fib, exported):
    found = fib.data.TraceSet.from_path(str(exported))
    for name, definition in found.definitions.items():
        reference = fib.builders.build_reference(definition)
        (solution,) = found.solutions[name]
        runnable = fib.builders.build(definition, solution)
        for trace in found.workloads[name]:
            tensors = fib.load(definition, trace.workload, exported)
            inputs = fib.inputs(definition, trace.workload, "cpu", tensors)
            assert definition.get_axes_values_from_inputs(inputs) == trace.workload.axes
            for own, exact in zip(runnable(*inputs), reference(*inputs), strict=True):
                assert own.dtype == exact.dtype
                assert torch.allclose(own.double(), exact.double(), rtol=1e-5, atol=1e-6)


def test_the_reference_on_a_workload_is_what_the_engine_attended(fib, exported, tmp_path):
    """The recorded vectors go through the engine's own float64 reference, and through the definition's."""
    from headstock.core.attention.reference import attend_sequence

    tape = tmp_path / "again.tape"
    assert run_cli("trace", "import", str(exported), str(tape)).code == 0
    found = fib.data.TraceSet.from_path(str(exported))
    recording = read_recording(tape)
    traces = {t.workload.uuid: t for traces in found.workloads.values() for t in traces}
    assert len(recording.steps) == len(traces)
    ordered = [t for name in sorted(found.workloads) for t in found.workloads[name]]
    for step, trace in zip(recording.steps, ordered, strict=True):
        definition = found.definitions[trace.definition]
        tensors = fib.load(definition, trace.workload, exported)
        output, _ = fib.builders.build_reference(definition)(*fib.inputs(definition, trace.workload, "cpu", tensors))
        (vectors,), spec = step.tensors, step.groups[0].spec
        assert step.groups[0].layers == (trace.definition,)
        first = keys = 0
        for new, length in step.rows(0):
            rows, seen = slice(first, first + new), slice(keys, keys + length)
            exact, _ = attend_sequence(vectors.query[rows], vectors.key[seen], vectors.value[seen], spec)
            assert torch.allclose(output[rows].double(), exact, rtol=1e-6, atol=1e-7)
            first, keys = first + new, keys + length


def test_a_data_set_that_it_writes_is_imported_and_replayed(fib, exported, tmp_path):
    """Definitions of ours without our tags and descriptions, workloads and files through its own objects."""
    source = fib.data.TraceSet.from_path(str(exported))
    name = next(n for n in source.definitions if n.startswith("gqa_paged_decode") and "_w" not in n)
    definition = source.definitions[name].model_copy(update={"tags": [], "description": None})
    root = tmp_path / "theirs"
    fib.data.save_json_file(definition, root / "definitions" / "gqa_paged" / f"{name}.json")
    written = fib.data.TraceSet.from_path(str(root))
    (root / "blob").mkdir()
    save_file(
        {"kv_indptr": torch.tensor([0, 2, 3], dtype=torch.int32), "kv_indices": torch.tensor([4, 1, 0]).int()},
        root / "blob" / "pages.safetensors",
    )
    save_file({"last": torch.tensor([3, 8], dtype=torch.int32)}, root / "blob" / "last.safetensors")
    at = {key: fib.data.SafetensorsInput(path="./blob/pages.safetensors", tensor_key=key)
          for key in ("kv_indptr", "kv_indices")}  # fmt: skip
    inputs = {key: fib.data.RandomInput() for key in ("q", "k_cache", "v_cache")} | at
    inputs["kv_last_page_len"] = fib.data.SafetensorsInput(path="blob/last.safetensors", tensor_key="last")
    inputs["sm_scale"] = fib.data.ScalarInput(value=0.25)
    axes = {"batch_size": 2, "num_pages": 5, "len_indptr": 3, "num_kv_indices": 3}
    workload = fib.data.Workload(axes=axes, inputs=inputs, uuid="one")
    written.add_workload_traces([fib.data.Trace(definition=name, workload=workload)])
    tape = tmp_path / "theirs.tape"
    done = run_cli("trace", "import", str(root), str(tape), "--json")
    assert done.code == 0, done.err
    (step,) = read_recording(tape).steps
    assert step.rows(0) == ((1, 11), (1, 8))
    assert step.groups[0].spec.scale == 0.25
    assert step.block_tables[0].tolist() == [[4, 1], [0, 0]]
    assert run_cli("replay", str(tape), "--attention-backend", "reference").code == 0


def test_recordings_of_the_same_steps_are_the_same_workloads(fib, exported, tmp_path):
    record(tmp_path / "b.tape", tensors=True)
    done = run_cli("trace", "export", str(tmp_path / "b.tape"), str(tmp_path / "set"))
    assert done.code == 0
    first, second = (fib.data.TraceSet.from_path(str(path)) for path in (exported, tmp_path / "set"))
    assert first.workloads == second.workloads
