"""`headstock backends`: what is installed, and whether it runs here."""

from __future__ import annotations

import re

from headstock.core.version import __version__
from support.cli import run_cli
from support.plugins import BACKEND, write_distribution


def rows(result):
    return {row["name"]: row for row in result.json["backends"]}


def test_all_are_listed_with_rank_verdict_package_and_other_names():
    result = run_cli("backends", environ={"COLUMNS": "200"})
    assert result.code == 0
    assert re.match(r"rank +backend +verdict +package +also called +why", result.out)
    assert re.search(rf"^\d +sdpa +available +headstock {__version__} +torch_sdpa, torch_native", result.out, re.M)
    assert re.search(rf"^\d +reference +available +headstock {__version__} ", result.out, re.M)
    assert re.fullmatch(r"device: .+ \(\w+, \w+\)\n", result.err)


def test_as_json_it_is_one_document():
    result = run_cli("backends", "--json")
    assert result.err == ""
    assert result.json.keys() == {"device", "backends", "plugins"}
    sdpa = rows(result)["sdpa"]
    assert sdpa | {"rank": 0} == {
        "name": "sdpa",
        "version": __version__,
        "distribution": "headstock",
        "verdict": "available",
        "reasons": [],
        "rank": 0,
        "aliases": ["torch_sdpa", "torch_native"],
        "note": "",
    }


def test_broken_ones_are_listed_with_their_reasons_and_the_others_stay(site):
    modules = {"good": BACKEND, "stale": "print('noise')\nimport no_such_module"}
    write_distribution(site, "good", "1.5", backends={"good": "good:Fast"}, modules=modules)
    write_distribution(site, "stale", "0.9", backends={"stale": "stale:Fast"})
    write_distribution(site, "future", "2.0", backends={"future": "good:Fast"}, requires=["headstock>=99"])
    result = run_cli("backends", "--json")
    listed = rows(result)
    assert (listed["good"]["verdict"], listed["good"]["rank"], listed["good"]["version"]) == ("available", None, "1.5")
    assert listed["stale"]["verdict"] == "failed"
    assert listed["stale"]["reasons"] == ["ModuleNotFoundError: No module named 'no_such_module'"]
    assert listed["future"]["verdict"] == "refused"
    assert "needs headstock >=99" in listed["future"]["reasons"][0]
    assert listed["sdpa"]["verdict"] == "available"
    assert result.err.count("WARNING: ") == 2


def test_brackets_in_a_reason_are_no_markup(site):
    modules = {"stale": "raise OSError('[bold]needs kernels[cuda]')"}
    write_distribution(site, "stale", backends={"stale": "stale:Fast"}, modules=modules)
    assert "OSError: [bold]needs kernels[cuda]" in run_cli("backends", environ={"COLUMNS": "200"}).out


def test_plugins_that_are_switched_off_are_listed_so(site):
    write_distribution(site, "good", backends={"good": "good:Fast"}, modules={"good": "raise SystemExit('imported')"})
    switches = (
        (("--disable-plugins",), {}),
        ((), {"HEADSTOCK_DISABLE_PLUGINS": "1"}),
        ((), {"HEADSTOCK_DISABLE_PLUGINS": "good"}),
        ((), {"HEADSTOCK_PLUGINS": "headstock"}),
    )
    for flags, environ in switches:
        listed = rows(run_cli(*flags, "backends", "--json", environ=environ))
        assert (listed["good"]["verdict"], len(listed["good"]["reasons"])) == ("disabled", 1)
        assert listed["sdpa"]["verdict"] == "available"


def test_a_device_that_is_not_here_is_judged_by_its_profile():
    result = run_cli("backends", "--json", "--device", "MI300X")
    assert (result.json["device"]["arch"], result.json["device"]["assumed"]) == ("gfx942", True)
    assert rows(result)["sdpa"]["verdict"] == "available"


def test_a_switch_and_a_function_in_the_place_of_an_op_are_told(site):
    write_distribution(site, "fast", aiter_ops={"unified_attention": "my_kernels:attend"})
    result = run_cli("backends", "--device", "mi300x", environ={"COLUMNS": "400"})
    assert (
        "switched off (HEADSTOCK_ROCM_AITER is not set): not chosen automatically; "
        "--attention-backend rocm_aiter_fa works"
    ) in result.out
    assert re.search(
        r"^ +unified_attention \(op\) +not loaded +fast 1\.0 +my_kernels:attend takes the place of unified_attention",
        result.out,
        re.M,
    )


def test_variables_that_nothing_reads_are_told_of_once():
    result = run_cli("backends", environ={"HEADSTOCK_ATTENTION_BACKND": "sdpa", "VLLM_ATTENTION_BACKEND": "X"})
    assert result.code == 0
    assert result.err.count("HEADSTOCK_ATTENTION_BACKND is set, but nothing reads it") == 1
    assert result.err.count("VLLM_ATTENTION_BACKEND is set, but Headstock does not read it") == 1
