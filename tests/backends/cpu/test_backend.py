"""The cpu backend beyond the shared conventions: invariance, threads, plans in flight, devices, other vector widths."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from headstock.backends.cpu import CpuBackend, backend
from headstock.backends.cpu.compiler import FLAGS, find_compiler, flags_here
from headstock.backends.cpu.structs import load
from headstock.backends.reference import ReferenceBackend
from headstock.core.attention import AttentionSpec, Capabilities
from support.attention import CPU, LIMITS, Scene, make, make_batch, run, uniform_spec


def spec(**changes: object) -> AttentionSpec:
    base = {"num_heads": 8, "num_kv_heads": 2, "head_size": 64, "dtype": "float32", "block_size": 16}
    return AttentionSpec(**{**base, **changes})  # type: ignore[arg-type]


def queries(shape: AttentionSpec, counts: list[int], seed: int = 0) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    return [torch.randn(n, shape.num_heads, shape.head_size, generator=rng).to(dtype) for n in counts]


def test_it_offers_nothing_where_it_was_not_made_to_run() -> None:
    able = replace(CPU, features=frozenset({"avx2", "fma", "f16c"}))
    assert CpuBackend.capabilities(able).alibi
    assert CpuBackend.capabilities(replace(able, features=frozenset())) == Capabilities()
    assert CpuBackend.capabilities(replace(able, platform="cuda")) == Capabilities()
    assert CpuBackend.capabilities(replace(CPU, arch="aarch64")).sinks


@pytest.mark.parametrize("count", [1, 5])
def test_neighbours_and_threads_change_no_bit(count: int) -> None:
    shape = spec()
    lengths = [700, 3, 5000, 64, 900]
    asked = queries(shape, [count if n >= count else n for n in lengths])
    scene = Scene(spec=shape, seq_lens=lengths)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together = scene.attend(make(CpuBackend, shape), asked)
        torch.set_num_threads(1)
        assert torch.equal(together, scene.attend(make(CpuBackend, shape), asked))
    finally:
        torch.set_num_threads(threads)
    assert scene.keys is not None
    assert scene.values is not None
    starts = [0]
    for query in asked:
        starts.append(starts[-1] + len(query))
    for row, (start, end) in enumerate(pairwise(starts)):
        alone = Scene(spec=shape, seq_lens=lengths[row : row + 1], keys=[scene.keys[row]], values=[scene.values[row]])
        assert torch.equal(alone.attend(make(CpuBackend, shape), [asked[row]]), together[start:end])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 2e-2), ("float16", 2e-3)])
@pytest.mark.parametrize("head_size", [64, 128, 80, 256])
def test_long_prompts_chunks_and_decodes_agree_with_the_reference(dtype: str, tolerance: float, head_size: int) -> None:
    shape = spec(dtype=dtype, head_size=head_size)
    asked = queries(shape, [1, 1, 60, 130])
    outs = [
        Scene(spec=shape, seq_lens=[1500, 33, 200, 130], layout="hnd").attend(make(cls, shape), asked)
        for cls in (CpuBackend, ReferenceBackend)
    ]
    torch.testing.assert_close(*outs, rtol=0, atol=tolerance)


def test_a_plan_stays_good_while_the_next_is_made() -> None:
    shape = spec()
    scene = Scene(spec=shape, seq_lens=[40, 90])
    backend_ = make(CpuBackend, shape)
    asked = queries(shape, [1, 1])
    expected = scene.attend(backend_, asked)
    assert LIMITS.plans_in_flight == 1
    first = backend_.plan(make_batch([1, 1], [40, 90], scene.block_table))
    backend_.plan(make_batch([1], [40], scene.block_table[:1]))
    out = torch.empty_like(expected)
    assert scene.layer is not None
    backend_.forward(scene.layer, torch.cat(asked), key=None, value=None, kv_cache=scene.cache, plan=first, out=out)
    assert torch.equal(out, expected)


def test_rows_of_padding_come_out_finite() -> None:
    shape = uniform_spec()
    scene = Scene(spec=shape, seq_lens=[9])
    backend_ = make(CpuBackend, shape)
    scene.write(backend_, 0, 0, 9)
    batch = make_batch([1], [9], scene.block_table, 4)
    assert scene.layer is not None
    out = run(backend_, scene.layer, torch.zeros(3, 2, 64), batch, scene.cache, None, None)
    assert torch.isfinite(out).all()
    assert (out[1:] == 0).all()


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("width", [4, 16])
def test_other_vector_widths_compute_the_same(width: int, tmp_path, monkeypatch) -> None:
    """The 512-bit and 128-bit instantiations of the same source, compiled for the instructions there are here."""
    compiler = find_compiler()
    assert compiler is not None
    target = tmp_path / "kernels.so"
    compiler.build(target, (*flags_here(), f"-DHEADSTOCK_WIDTH={width}"))
    library = load(target)
    assert isinstance(library, ctypes.CDLL)
    assert library.headstock_width() == width
    monkeypatch.setattr(backend, "load", lambda _: library)
    for changes in ({}, {"head_size": 80, "softcap": 20.0}, {"dtype": "bfloat16"}, {"kv_format": "fp8_e4m3"}):
        shape = spec(**changes)
        asked = queries(shape, [1, 60, 130])
        outs = [
            Scene(spec=shape, seq_lens=[1500, 200, 130], poison=0.0).attend(make(cls, shape), asked)
            for cls in (CpuBackend, ReferenceBackend)
        ]
        torch.testing.assert_close(*outs, rtol=0, atol=2e-2 if shape.dtype == "bfloat16" else 5e-5)


def test_the_kernels_bring_no_openmp_runtime_of_their_own() -> None:
    script = (
        "import torch\n"
        "from headstock.backends.cpu import store, structs\n"
        "runtimes = lambda: {l.split()[-1] for l in open('/proc/self/maps') if 'omp' in l.rpartition('/')[2]}\n"
        "before = runtimes()\n"
        "structs.load(store.library())\n"
        "assert runtimes() == before, runtimes()\n"
        "assert structs.parallel_region(), 'torch has no OpenMP here that the kernels could use'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)
    assert "-fopenmp" not in FLAGS


@pytest.mark.parametrize("block_size", [3, 17])
def test_odd_blocks_and_many_keys_agree_with_the_reference(block_size: int) -> None:
    shape = spec(block_size=block_size)
    asked = queries(shape, [1, 2, 1])
    outs = [
        Scene(spec=shape, seq_lens=[4999, 1023, 258], layout="hnd").attend(make(cls, shape), asked)
        for cls in (CpuBackend, ReferenceBackend)
    ]
    torch.testing.assert_close(*outs, rtol=0, atol=2e-5)
