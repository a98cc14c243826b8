"""A package that is none of ours, installed by pip: listed, ranked first, chosen, and answering with the real model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import automatic
from support.parity import RECORDS
from support.plugins import install_sample, write_distribution

TOKENS = 6


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample package, and beside it two that are broken: what they break is only themselves."""
    site = install_sample(tmp_path_factory.mktemp("third") / "site")
    write_distribution(
        site,
        "torn",
        backends={"torn": "torn_kernels:Torn"},
        modules={"torn_kernels": "import no_such_module"},
    )
    write_distribution(
        site,
        "leaver",
        backends={"leaver": "leaver_kernels:Leaver"},
        modules={"leaver_kernels": "print('noise on stdout')\nraise SystemExit(0)"},
    )
    return site


def headstock(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "headstock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=110, check=False, cwd=site)


def answer(done: subprocess.CompletedProcess[str]) -> list[int]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["outputs"][0]["outputs"][0]["token_ids"]


def test_it_is_listed_with_its_version_and_the_broken_ones_with_their_reasons(site: Path) -> None:
    done = headstock(site, "backends", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["backends"]}
    assert (rows["sample"]["verdict"], rows["sample"]["version"], rows["sample"]["rank"]) == ("available", "1.2.3", 1)
    assert rows["sdpa"]["verdict"] == "available"
    assert rows["torn"]["verdict"] == rows["leaver"]["verdict"] == "failed"
    assert "ModuleNotFoundError: No module named 'no_such_module'" in rows["torn"]["reasons"][0]
    assert "SystemExit" in rows["leaver"]["reasons"][0]


@pytest.mark.parametrize("choice", [(), ("--attention-backend", "Sample")], ids=["auto", "by name"])
def test_the_model_answers_through_it(site: Path, choice: tuple[str, ...]) -> None:
    done = headstock(
        site, "generate", "smollm2", "The capital of France is", "--max-tokens", str(TOKENS), "--json", *choice
    )
    assert answer(done) == RECORDS[0]["output_token_ids"][:TOKENS]
    (chosen,) = json.loads(done.stdout)["attention"]["choices"]
    assert (chosen["backend"], chosen["distribution"]) == ("sample", "headstock-sample 1.2.3")
    assert chosen["origin"].startswith("flag" if choice else "ranked")
    if not choice:
        assert "torn" in done.stderr
        assert "leaver" in done.stderr


def test_a_broken_one_asked_for_by_name_is_an_error_and_no_other_is_used(site: Path) -> None:
    done = headstock(site, "generate", "smollm2", "Hi", "--attention-backend", "torn")
    assert done.returncode == 2
    assert "no_such_module" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_with_plugins_switched_off_the_built_in_answers(site: Path) -> None:
    done = headstock(
        site, "--disable-plugins", "generate", "smollm2", "The capital of France is", "--max-tokens", "6", "--json"
    )
    assert answer(done) == RECORDS[0]["output_token_ids"][:TOKENS]
    assert json.loads(done.stdout)["attention"]["choices"][0]["backend"] == automatic.BACKEND
    assert "torn" not in done.stderr
