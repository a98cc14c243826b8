"""A14: the choice is made once, and every rank has to have the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from headstock.core.errors import BackendError
from headstock.selector import Selector, check_manifest, manifest_of, read_policy
from support.attention import CPU
from support.backends import layers, spec
from support.plugins import world

SPECS = layers(*[spec(window=(3, 0)), spec(window=(3, 0)), spec(), spec()])


def made(plugins=None, specs=SPECS, block_size=None, **policy):
    selection = Selector(plugins or world(), read_policy(environ={}, **policy)).select(specs, CPU, block_size)
    return manifest_of(selection, specs)


def test_it_says_of_each_layer_what_computes_it():
    document = made(attention_policy={"full": "reference"})
    assert json.loads(json.dumps(document)) == document
    assert (document["block_size"], document["layout"]) == (16, "nhd")
    backends = [entry["backend"] for entry in document["layers"].values()]
    assert backends == ["sdpa", "sdpa", "reference", "reference"]
    assert document["layers"]["model.layers.0.self_attn.attn"] == {
        "backend": "sdpa",
        "distribution": "headstock 0.1.0",
        "options": "NoOptions()",
        "dtype": "float32",
        "kv_format": "fp32",
    }


def test_the_same_choice_passes():
    check_manifest(made(), json.loads(json.dumps(made())), rank=1)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            {"attention_backend": "reference"},
            "model.layers.0.self_attn.attn backend: sdpa on the driver, reference here",
        ),
        ({"block_size": 32}, "block_size: 16 on the driver, 32 here"),
        ({"specs": layers(*[spec(dtype="float64")] * 4)}, "dtype: float32 on the driver, float64 here"),
        ({"specs": layers(spec())}, "model.layers.1.self_attn.attn backend: sdpa on the driver, None here"),
    ],
)
def test_another_fails_naming_the_rank_and_the_difference(other, difference):
    with pytest.raises(BackendError) as error:
        check_manifest(made(), made(**other), rank=3)
    assert str(error.value).startswith("rank 3 has another attention selection than the driver: ")
    assert difference in str(error.value)


WORKER = """
import json, sys
from headstock.plugins import load_plugins
from headstock.selector import Selector, check_manifest, manifest_of, read_policy
from support.attention import CPU
from support.backends import layers, spec
specs = layers(spec())
mine = manifest_of(Selector(load_plugins(), read_policy()).select(specs, CPU), specs)
check_manifest(json.loads(sys.argv[1]), mine, rank=1)
"""


def test_a_variable_that_reaches_only_the_driver_is_found_out():
    specs = layers(spec())
    environ = {"HEADSTOCK_ATTENTION_BACKEND": "reference"}
    driver = manifest_of(Selector(world(), read_policy(environ=environ)).select(specs, CPU), specs)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADSTOCK_")}
    clean["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path.endswith("tests"))
    command = [sys.executable, "-c", WORKER, json.dumps(driver)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "rank 1 has another attention selection than the driver" in done.stderr
    assert "backend: reference on the driver, sdpa here" in done.stderr
