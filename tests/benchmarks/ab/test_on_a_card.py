"""`headstock ab` on a pretended card: kernels by themselves, with functions of a user's in the place of AITER's."""

from __future__ import annotations

import pytest

from headstock.benchmarks.ab.lines import notes_on_card
from headstock.selector import profile
from support.attention import CPU
from support.cards import mi300x
from support.cli import run_cli

KERNELS = """
from aiter.ops.attention import paged_attention_v1

def fast(**given):
    paged_attention_v1(**given)

def wrong(**given):
    paged_attention_v1(**given)
    given["out"].mul_(1.5)
"""
pytestmark = pytest.mark.timeout(600)  # a process an arm, on a machine that may be loaded
SMALL = ("--shapes", "decode:4/2/64:2x40", "--rounds", "6", "--no-check")


@pytest.fixture
def card(tmp_path, monkeypatch):
    with mi300x(tmp_path / "site", monkeypatch) as site:
        (site / "my_kernels.py").write_text(KERNELS)
        yield site


@pytest.mark.usefixtures("card")
def test_the_best_device_is_where_kernels_are_compared():
    arms = ("rocm_aiter_fa", *(f"rocm_aiter_fa+paged_attention=my_kernels:{name}" for name in ("fast", "wrong")))
    done = run_cli("ab", *arms, *SMALL, "--json")
    assert done.code == 0, done.err
    document = done.json
    assert document["machine"]["gpu"] == "AMD Instinct MI300X"
    assert document["machine"]["gpu_memory_bytes"] == 2**32
    (line,) = document["lines"]
    assert line["name"] == "decode:4/2/64:2x40 bfloat16"  # threads are those of CPUs
    fast, wrong = document["comparisons"]
    assert fast["ratio"] is not None
    assert (wrong["verdict"], wrong["ratio"]) == ("wrong", None)
    assert document["clocks"] == [None, None]
    assert "at which clock the card ran is not known" in document["notes"][-1]


@pytest.mark.usefixtures("card")
def test_cpus_can_be_asked_for_all_the_same():
    document = run_cli("ab", "sdpa", "sdpa{}", *SMALL, "--device", "cpu", "--json").json
    assert document["machine"]["gpu"] == ""
    assert document["lines"][0]["name"] == "decode:4/2/64:2x40 float32 1 thread"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--device", "h100"), "device: NVIDIA H100 80GB HBM3 is a profile, and no device of this machine"),
        (("--device", "cuda:3"), "device: 'cuda:3' is not on this machine"),
        (("--device", ""), "device: "),
        (("--device", "cpu", "--engine", "m"), "device: says how kernels are measured alone"),
    ],
)
def test_a_device_that_is_not_here_is_refused(arguments, problem):
    done = run_cli("ab", "sdpa", "sdpa{}", *arguments)
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split())


def test_a_clock_that_changes_is_told():
    card = profile("h100")
    assert notes_on_card(CPU, (None, None)) == ()
    assert notes_on_card(card, (1980, 1935)) == ("the card ran at 1980 MHz before and 1935 MHz after",)
    (told,) = notes_on_card(card, (1980, 1410))
    assert told.endswith("1410 MHz after; pin its clock and measure again where that matters")
    (unknown,) = notes_on_card(card, (None, None))
    assert unknown == "at which clock the card ran is not known: nvidia-ml-py or amdsmi would tell"
