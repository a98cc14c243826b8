"""flash-attn's build for AMD itself, in Triton's interpreter: what it ignores, and that the rest is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from support.interpreted import interpreted

pytestmark = [pytest.mark.heavy, pytest.mark.real, pytest.mark.timeout(3600), interpreted]
NEEDED = (
    "FLASH_ATTENTION_FORCE_BUILD=TRUE FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE "
    "pip install --no-deps --no-build-isolation flash-attn==2.8.3.post2 einops"
)


@pytest.fixture(scope="module")
def ask():
    """A question to the library in a process of its own."""
    try:
        version = metadata.version("flash-attn")
    except metadata.PackageNotFoundError:
        pytest.skip(f"needs {NEEDED}")
    if not version.startswith("2.8."):
        pytest.skip(f"flash-attn {version} is installed; this is about 2.8")
    modules = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])

    def answer(*what):
        command = [sys.executable, "-m", "support.real_flash_attn", *map(str, what)]
        env = {**os.environ, "PYTHONPATH": modules}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return answer


def test_window_and_softcap_are_ignored_and_pages_fail(ask):
    found = ask("ignored")
    assert found["differences"]["nothing"]["off"] < 2e-3
    for name in ("window", "softcap"):
        assert found["differences"][name]["moved"] == 0.0
        assert found["differences"][name]["off"] > 0.5
    assert found["paging"] == "ValueError"


def test_what_is_offered_there_conforms(ask):
    found = ask("kit", 40)
    assert found["failed"] == []
    assert {"keys", "ragged", "causal", "lse", "dtypes", "plans", "mixed"} <= set(found["passed"])
