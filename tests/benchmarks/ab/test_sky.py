"""The task file for SkyPilot: its commands are ours, and in the heavy group SkyPilot's own loader reads it.

SkyPilot wants an environment of its own: name its Python in SKY_PYTHON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headstock.benchmarks.results.store import Store
from support.cli import run_cli
from support.pages import page
from support.tree import ROOT

FILE = ROOT / "benchmarks/sky/ab.yaml"
TASK = yaml.safe_load(FILE.read_text())
SKY = os.environ.get("SKY_PYTHON") or (sys.executable if importlib.util.find_spec("sky") else None)
RECORDER = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done > "$HOME/called-$1"
echo '{}'
exit "${CODE:-0}"
"""


def run_script(home: Path, headstock: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The task's `run`, as a machine of SkyPilot's calls it."""
    binary = home / "headstock-env/bin/headstock"
    binary.parent.mkdir(parents=True)
    binary.write_text(headstock)
    binary.chmod(0o755)
    variables = {**os.environ, **TASK["envs"], "HOME": str(home), "SKYPILOT_TASK_ID": "t", "SKYPILOT_NODE_RANK": "1"}
    return subprocess.run(
        ["bash", "-c", TASK["run"]], env={**variables, **environ}, capture_output=True, text=True, check=False
    )


def called(home: Path, command: str) -> list[str]:
    return (home / f"called-{command}").read_text().splitlines()


def test_its_commands_are_ours(tmp_path):
    done = run_script(tmp_path, RECORDER, ARMS="""sdpa 'triton{"num_warps": 8}'""", OPTIONS="--rounds 7 --no-check")
    assert done.returncode == 0, done.stderr
    words = called(tmp_path, "ab")
    assert words == ["ab", "sdpa", 'triton{"num_warps": 8}', "--rounds", "7", "--no-check", "--json"]
    imported = called(tmp_path, "results")
    assert imported[2] == str(tmp_path / "headstock-results/ab-t-1.json")
    for line in (words, imported):  # help goes first: what is not known is refused all the same
        assert run_cli(*line, "--help").code == 0


def test_the_default_arms_can_be_compared_and_a_gate_ends_the_job(tmp_path):
    assert run_script(tmp_path, RECORDER, CODE="1").returncode == 1
    from headstock.benchmarks.ab.arms import read_arms

    assert [arm.backend for arm in read_arms(shlex.split(TASK["envs"]["ARMS"]))] == ["sdpa", "cpu"]
    assert called(tmp_path, "ab") == ["ab", "sdpa", "cpu", "--json"]


def test_its_scripts_are_shell():
    for name in ("setup", "run"):
        subprocess.run(["bash", "-n", "-c", TASK[name]], check=True)


def test_the_page_and_the_file_say_the_same_command():
    (line,) = [line for line in page("compare.md").splitlines() if line.startswith("sky launch")]
    assert f"#   {line}" in FILE.read_text().splitlines()


@pytest.mark.heavy
def test_what_it_runs_ends_in_a_store(tmp_path):
    program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m headstock "$@"\n'
    options = "--shapes decode:4/2/32:2x64 --no-check --rounds 6"
    done = run_script(tmp_path, program, ARMS="sdpa 'sdpa{}'", OPTIONS=options)
    assert done.returncode == 0, done.stderr
    with Store(tmp_path / "headstock-results/results.db") as store:
        assert [run.subjects for run in store.runs()] == [("sdpa", "sdpa{}")]


LOAD = """
import json, sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
task.update_envs({"ARMS": "flash_attn my_kernel"})
task.validate()
(resources,) = task.resources
print(json.dumps([task.name, task.num_nodes, task.envs, task.workdir, resources.cpus, task.run]))
"""


@pytest.mark.heavy
@pytest.mark.skipif(SKY is None, reason="NOT LOADED BY SKYPILOT: name a Python that has it in SKY_PYTHON")
def test_skypilot_loads_it(tmp_path):
    assert SKY is not None
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [SKY, "-c", LOAD, str(FILE)], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name, nodes, envs, workdir, cpus, run = json.loads(done.stdout.splitlines()[-1])
    assert (name, nodes, cpus, run) == ("headstock-ab", 1, "4+", TASK["run"])
    assert envs == {**TASK["envs"], "ARMS": "flash_attn my_kernel"}
    assert Path(ROOT, workdir).resolve() == ROOT.resolve()
