"""amd-aiter itself: its Python takes what the backends give, and its Triton kernels compute what they should.

Compiled kernels are stood in for (`support.real_aiter`); what arrives there is what they would be given on a card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from headstock.backends._aiter_ops import OPS
from support.doubles.signatures import parse, recorded
from support.interpreted import interpreted
from support.real_aiter import LAYERS, environment

pytestmark = [pytest.mark.heavy, pytest.mark.real, pytest.mark.timeout(3600)]
NEEDED = "pip install --no-deps amd-aiter==0.1.7.post2.dev18 pandas python-dateutil six einops"
VERSION = "0.1.7.post2.dev18"
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A question to AITER in a process of its own."""
    try:
        version = metadata.version("amd-aiter")
    except metadata.PackageNotFoundError:
        pytest.skip(f"needs {NEEDED}")
    if version != VERSION:
        pytest.skip(f"{version} is installed; this is about {VERSION}, the release on PyPI")
    made = environment(tmp_path_factory.mktemp("rocm"))
    path = os.pathsep.join([made.pop("TOOLS"), os.environ["PATH"]])
    modules = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, **made, "PATH": path, "PYTHONPATH": modules, "PYTHONDONTWRITEBYTECODE": "1"}

    def answer(*what):
        command = [sys.executable, "-m", "support.real_aiter", *map(str, what)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return answer


@pytest.fixture(scope="module")
def told(ask):
    return ask("interface")


def test_it_has_the_recorded_signatures(told):
    signatures = recorded(f"aiter-{told['version']}")
    assert OPS.keys() - told["signatures"].keys() == {"paged_attention_common"}
    for name in told["signatures"]:
        op = OPS[name]
        found, known = parse(told["signatures"][name]), signatures[op.home(VERSION).replace(":", ".")]
        assert [(p.name, p.kind, p.default) for p in found.parameters.values()] == [
            (p.name, p.kind, p.default) for p in known.parameters.values()
        ]
        found.bind(**dict.fromkeys(op.arguments))


@pytest.mark.parametrize(
    ("operator", "op"), [("paged_attention_v1", "paged_attention"), ("paged_attention_rocm", "paged_attention_rocm")]
)
def test_its_operators_for_paged_decodes_take_what_is_given(told, operator, op):
    schema = told["schemas"][operator]
    assert all(f" {name}" in schema for name in OPS[op].arguments)


@pytest.mark.parametrize("layer", LAYERS)
def test_it_answers_in_the_shapes_that_are_expected(told, layer):
    size = LAYERS[layer].get("head_size", 128)
    dtype = LAYERS[layer].get("dtype", "bfloat16")
    assert told["answers"][layer]["answers"] == [[[7, 8, size], f"torch.{dtype}"], [[8, 7], "torch.float32"]]


def test_heads_of_128_in_bfloat16_go_to_assembly_even_with_a_softcap(told):
    # That knows none, which is why such layers are refused: see `SOFTCAP_EVERYWHERE`.
    went = {name: answer["operators"] for name, answer in told["answers"].items()}
    assembly, other = ["fmha_v3_varlen_fwd"], ["mha_varlen_fwd"]
    assert went == {name: assembly if name in ("plain", "softcap") else other for name in LAYERS}


@interpreted
def test_unified_attention_conforms_through_its_own_kernels(ask):
    found = ask("unified", 40)
    assert found["failed"] == []
    assert {"window", "softcap", "sinks", "alibi", "kv-formats", "graph", "plans", "mixed"} <= set(found["passed"])
    assert found["launched"].keys() == {"kernel_unified_attention_2d", "kernel_unified_attention_3d", "reduce_segments"}


@interpreted
def test_unified_attention_needs_a_zeroed_cache(ask):
    assert any("nan" in reason for _, reason, _ in ask("tails")["failed"])


def test_flash_attention_conforms_through_its_own_python(ask):
    found = ask("flash", 300)
    assert found["failed"] == []
    assert {"window", "softcap", "alibi", "sinks", "kv-formats", "chunks", "graph", "plans", "strides", "mixed"} <= set(
        found["passed"]
    )


def test_paged_decodes_conform_through_its_own_python(ask):
    found = ask("paged", 300)
    assert found["failed"] == []
    assert {"keys", "alibi", "graph", "plans", "strides", "mixed"} <= set(found["passed"])
