"""The command line on a pretended MI300X, with functions in the place of AITER's: asked for, called, told, checked."""

from __future__ import annotations

import os

import pytest

from support.cards import mi300x
from support.cli import run_cli
from support.pages import commands, page
from support.plugins import write_distribution
from support.tiny import tiny_folder

KERNELS = """
import time
from aiter.ops.attention import paged_attention_v1

own = paged_attention_v1.__wrapped__
calls = []

def fast(**given):
    calls.append(len(given["context_lens"]))
    return own(**given)

def wrong(**given):
    own(**given)
    given["out"].mul_(1.5)
"""
TOLD = """
def told(**given):
    import os
    from pathlib import Path
    Path(os.environ["CALLED_IN"]).write_text(str(os.getpid()))
    return own(**given)
"""
ENGINE = ("--dtype", "float16", "--enforce-eager", "--kv-cache-memory", "16M", "--max-tokens", "6", "--ignore-eos")
AB = ["ab", "rocm_aiter_fa", "rocm_aiter_fa+paged_attention=my_kernels:fast"]
SHAPE = "decode:4/2/64:2x40"
FAST = ("--aiter-op", "paged_attention=my_kernels:fast")


@pytest.fixture
def card(tmp_path, monkeypatch):
    with mi300x(tmp_path / "site", monkeypatch) as site:
        (site / "my_kernels.py").write_text(KERNELS)
        yield site


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return str(tiny_folder(folder, head_dim=64, torch_dtype="float16", use_sliding_window=False).path)


def generate(model, *arguments, backend="rocm_aiter_fa"):
    return run_cli("generate", model, "the fox", "--attention-backend", backend, *ENGINE, "--json", *arguments)


@pytest.mark.usefixtures("card")
def test_a_function_that_was_asked_for_is_called_and_told(model):
    result = generate(model, *FAST)
    note = "rocm_aiter_fa calls my_kernels:fast in the place of paged_attention; why: flag (--aiter-op)"
    assert note in result.err.splitlines()
    assert result.json["attention"]["notes"] == [note]
    import my_kernels

    assert my_kernels.calls
    assert set(my_kernels.calls) == {1}
    own, other = (r.json["outputs"][0]["outputs"][0] for r in (result, generate(model, backend="sdpa")))
    assert own["token_ids"] == other["token_ids"]


@pytest.mark.usefixtures("card")
def test_it_reaches_an_engine_in_another_process(model, tmp_path, monkeypatch):
    (tmp_path / "site" / "my_kernels.py").write_text(KERNELS + TOLD)
    monkeypatch.setenv("CALLED_IN", str(tmp_path / "called-in"))
    result = generate(model, "--aiter-op", "paged_attention=my_kernels:told", "--engine", "process")
    assert result.code == 0, result.err
    assert int((tmp_path / "called-in").read_text()) != os.getpid()
    own, other = (r.json["outputs"][0]["outputs"][0] for r in (result, generate(model, backend="sdpa")))
    assert own["token_ids"] == other["token_ids"]


def test_one_of_a_package_is_called_and_its_package_told(model, card):
    write_distribution(card, "mine", "0.2", aiter_ops={"paged_attention": "my_kernels:fast"})
    result = generate(model)
    assert result.json["attention"]["notes"] == [
        "rocm_aiter_fa calls my_kernels:fast in the place of paged_attention; why: package mine 0.2"
    ]
    assert run_cli("--disable-plugins", "explain", model, "--device", "mi300x").code == 0


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(("target", "code"), [("fast", 0), ("wrong", 1)])
def test_the_kit_goes_through_it(target, code):
    op = f"paged_attention=my_kernels:{target}"
    result = run_cli("check", "rocm_aiter_fa", "--case", "dtypes:float16-mixed", "--aiter-op", op, "--json")
    assert result.code == code
    assert result.json["conforms"] is (code == 0)
    for failure in result.json["failures"]:
        assert f"--aiter-op {op} --case" in failure["command"]


@pytest.mark.usefixtures("card")
def test_one_that_is_not_there_is_told_before_weights_are_loaded(model, monkeypatch):
    from headstock.core.worker.worker import Worker

    monkeypatch.setattr(Worker, "load_model", lambda self: pytest.fail("weights were loaded"))
    result = generate(model, "--aiter-op", "paged_attention=my_kernels:slow")
    assert (result.code, result.out) == (2, "")
    assert "my_kernels:slow, put in its place, cannot be loaded" in result.err
    assert "flag (--aiter-op)" in result.err


class TestAb:
    """AITER's own takes 0.3 s more, the function in its place 0.1 s: the verdict is true by construction, and what the
    machine does meanwhile is little beside it.
    """

    @pytest.fixture
    def card(self, tmp_path, monkeypatch):
        with mi300x(tmp_path / "site", monkeypatch, delay=0.3) as site:
            (site / "my_kernels.py").write_text(KERNELS.replace("calls.append", "time.sleep(0.1), calls.append"))
            yield site

    def compare(self, words, *options):
        """What the pages' command says, and of a wrong function beside the one that it names."""
        assert words in commands(page("compare.md"))
        assert words in commands(page("try-an-amd-kernel.md"))
        wrong = words[2].replace(":fast", ":wrong")
        done = run_cli(*words[:3], wrong, *words[3:], *options, "--no-check", "--rounds", "6", "--json")
        assert done.code == 0, done.err
        fast, wrong = done.json["comparisons"]
        assert (fast["verdict"], wrong["verdict"], wrong["ratio"]) == ("faster", "wrong", None)
        assert done.json["arms"][1]["options"] == {"aiter_ops": {"paged_attention": "my_kernels:fast"}}

    @pytest.mark.usefixtures("card")
    def test_an_op_is_an_arm(self):
        self.compare(AB, "--shapes", SHAPE)

    @pytest.mark.heavy
    @pytest.mark.usefixtures("card")
    def test_an_op_is_an_arm_of_whole_engines(self, tmp_path, monkeypatch):
        shape = {"num_hidden_layers": 1, "max_window_layers": 1, "use_sliding_window": False}
        (tmp_path / "my-model").mkdir()
        tiny_folder(tmp_path / "my-model", head_dim=64, torch_dtype="float16", **shape)
        monkeypatch.chdir(tmp_path)
        self.compare(
            [*AB, "--engine", "./my-model"],
            *("--engine-dtype", "float16", "--num-prompts", "2", "--input-len", "8", "--output-len", "6"),
        )
