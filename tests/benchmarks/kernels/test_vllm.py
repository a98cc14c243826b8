"""vLLM's own kernel behind the worker: right on the shapes and dtypes that are compared."""

from __future__ import annotations

import pytest
import torch

from headstock.benchmarks.kernels.check import expected
from headstock.benchmarks.kernels.data import Pool
from headstock.benchmarks.kernels.peer import Peer, PeerContender
from headstock.benchmarks.kernels.shapes import choose
from headstock.benchmarks.peers import vllm_cpu
from support.tree import ROOT

PYTHON = ROOT / ".venv-peers/bin/python"
SHAPES = choose(
    "decode:9/3/64:3x300,decode:32/8/128:2x1k,prefill:9/3/64:130,prefill:32/8/128:64,chunk:9/3/64:40+200", "all", ()
)


@pytest.fixture(scope="module")
def peer():
    if not PYTHON.exists():
        pytest.skip("NOT TESTED: there is no vLLM here; `make bench-peers` installs it")
    it = Peer.of(f"vllm={PYTHON}")
    yield it
    it.close()


@pytest.mark.heavy
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.label)
def test_its_output_is_that_of_the_reference(peer, shape, dtype, threads, tmp_path):
    pool = Pool.of(shape.heads, dtype, [shape])
    pool.write(tmp_path)
    contender, exact = PeerContender(peer, shape, dtype, pool, tmp_path), expected(shape, pool, dtype)
    assert exact.problem(exact.error(contender.start(threads).out)) == ""
    contender.close()


@pytest.mark.parametrize(
    ("machine", "amx", "dtype", "head_size", "variant"),
    [
        ("x86_64", False, torch.float32, 64, "vec"),
        ("x86_64", True, torch.bfloat16, 128, "amx"),
        ("x86_64", True, torch.float32, 128, "vec"),
        ("x86_64", True, torch.bfloat16, 80, "vec16"),
        ("aarch64", False, torch.bfloat16, 128, "neon"),
    ],
)
def test_the_variant_is_the_one_that_vllm_would_take(monkeypatch, machine, amx, dtype, head_size, variant):
    """As `_get_attn_isa` of vLLM 0.32 has it."""
    monkeypatch.setattr(vllm_cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(vllm_cpu.torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert vllm_cpu.isa(dtype, head_size) == variant


@pytest.mark.parametrize(
    ("machine", "avx512", "bf16", "name"),
    [
        ("x86_64", False, False, "_C_AVX2"),
        ("x86_64", True, False, "_C_AVX512"),
        ("x86_64", True, True, "_C"),
        ("aarch64", False, False, "_C"),
    ],
)
def test_the_library_is_the_one_that_vllm_would_load(monkeypatch, machine, avx512, bf16, name):
    found = type("Spec", (), {"submodule_search_locations": ["/site/vllm"]})
    monkeypatch.setattr(vllm_cpu.util, "find_spec", lambda _: found)
    monkeypatch.setattr(vllm_cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(vllm_cpu.torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(vllm_cpu.torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    assert str(vllm_cpu.library()) == f"/site/vllm/{name}.abi3.so"
