"""What was measured is used while it holds: on this machine, with these versions, for these layers; else it is told."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace

import pytest

from headstock.core.attention import Device, read_spec, spec_document
from headstock.plugins.sources import source_hash
from headstock.selector import Selector, explain, installed_tuning, profile, read_policy
from headstock.selector.tuned import Measured, TunedTable
from headstock.selector.tuned_file import (
    MOST_BYTES,
    Tried,
    TunedEntry,
    default_path,
    fingerprint,
    read_tuned,
    write_tuned,
)
from support.attention import CPU
from support.backends import backend, layers, spec
from support.plugins import world

PLUGINS = world()


def tried(name, plugins=PLUGINS, **changes) -> Tried:
    offer = plugins.backends.find(name)
    cls = offer.load()
    assert cls is not None
    return Tried(**{"package": offer.record.package, "source_hash": source_hash(cls), **changes})


def entry(backend="reference", phase="decode", **changes) -> TunedEntry:
    values = {
        "spec": replace(spec(), block_size=16),
        "phase": phase,
        "backend": backend,
        "tried": {name: tried(name) for name in ("sdpa", "reference")},
        "against": "sdpa",
        "ratio": 1.8,
        "low": 1.7,
        "high": 1.9,
        "regimes": {"decode:1x1k": {"sdpa": 1.8, "reference": 1.0}},
    }
    return TunedEntry(**{**values, **changes})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuned.json"


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.message for record in caplog.records]


def write(path, *entries, device=CPU, plugins=None):
    write_tuned(path, fingerprint(device), entries)
    return TunedTable(plugins or world(), path)


def choice_by(table, plugins=None):
    selector = Selector(plugins or world(), read_policy(environ={}), tuned=table)
    return next(iter(selector.select(layers(spec()), CPU).choices.values()))


def test_a_winner_is_found_for_its_layers_and_phase(path):
    table = write(path, entry())
    why = "tuned (measured on this machine: 1.80 times as fast as sdpa)"
    known = frozenset({"sdpa", "reference"})
    assert table.fastest(spec(), CPU, "decode") == Measured(backend="reference", why=why, known=known)
    assert table.fastest(spec(block_size=64), CPU, "decode") is not None  # the choice does not depend on it
    assert table.fastest(spec(), CPU, "prefill") is None
    assert table.fastest(spec(head_size=32), CPU, "decode") is None
    assert table.fastest(spec(), profile("h100"), "decode") is None


def test_the_selector_takes_it_and_says_so(path):
    table = write(path, entry(), entry(phase="prefill", backend="sdpa"))
    choice = choice_by(table)
    assert choice.backend == "decode=reference,prefill=sdpa"
    assert choice.origin == (
        "decode: tuned (measured on this machine: 1.80 times as fast as sdpa); "
        "prefill: tuned (measured on this machine: as ranked)"
    )


def test_explaining_and_its_json_say_so(path):
    selector = Selector(world(), read_policy(environ={}), tuned=write(path, entry(), entry(phase="prefill")))
    (group,) = explain(selector, layers(spec()), CPU).to_dict()["groups"]
    assert group["choice"] == "reference"
    assert group["origin"].startswith("tuned (measured on this machine: 1.80 times as fast as sdpa)")
    assert [c["verdict"] for c in group["candidates"]] == ["fits", "chosen"]


def test_a_backend_that_was_not_there_is_not_known_and_one_that_has_changed_neither(path, warnings):
    plugins = world({"newcomer": backend("Newcomer"), "updated": backend("Updated")})
    before = {**entry().tried, "updated": tried("updated", plugins, package="updated 0.1")}
    table = write(path, *(entry(phase=p, tried=before) for p in ("decode", "prefill")), plugins=plugins)
    measured = table.fastest(spec(), CPU, "decode")
    assert measured is not None
    assert measured.known == {"sdpa", "reference"}
    choice = choice_by(table, plugins)
    assert choice.backend == "reference"
    assert choice.origin.endswith("; not measured then: newcomer, updated")
    (warning,) = warnings()
    assert "newcomer, updated was not measured or was another version; run headstock tune again" in warning


def test_one_that_was_left_out_on_purpose_is_no_news(path, warnings):
    plugins = world({"left": backend("Left")})
    before = {**entry().tried, "left": tried("left", plugins, reason="left out")}
    table = write(path, *(entry(phase=p, tried=before) for p in ("decode", "prefill")), plugins=plugins)
    assert choice_by(table, plugins).backend == "reference"
    assert warnings() == []


def test_a_configuration_is_that_of_its_backend_and_phase_while_it_is_the_same(path):
    options = {"width": 8}
    table = write(path, entry(tried={**entry().tried, "sdpa": tried("sdpa", options=options)}))
    assert table.options("sdpa", spec(), CPU, "decode") == options
    assert table.options("sdpa", spec(), CPU, "prefill") == {}
    assert table.options("reference", spec(), CPU, "decode") == {}
    assert table.options("gone", spec(), CPU, "decode") == {}
    table = write(path, entry(tried={**entry().tried, "sdpa": tried("sdpa", options=options, source_hash="0" * 12)}))
    assert table.options("sdpa", spec(), CPU, "decode") == {}


def test_a_file_takes_new_winners_and_keeps_the_others(path):
    write(path, entry(), entry(phase="prefill"))
    write(path, entry(ratio=3.0))
    assert {e.phase: e.ratio for e in read_tuned(path)[1]} == {"decode": 3.0, "prefill": 1.8}
    write(path, entry(), device=replace(CPU, name="another"))
    assert len(read_tuned(path)[1]) == 1
    path.write_text("{")
    write(path, entry())
    assert read_tuned(path)[1] == (entry(),)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"name": "another"}, "name was 'another' and is "),
        ({"libraries": {"torch": "1.0"}}, "torch was 1.0 and is not installed"),
        ({"units": 99}, "units was 99 and is "),
    ],
)
def test_a_file_of_another_machine_or_version_is_told_once(path, warnings, changes, what):
    table = write(path, entry(), device=replace(CPU, **changes))
    assert table.fastest(spec(), CPU, "decode") is table.fastest(spec(), CPU, "prefill") is None
    (warning,) = warnings()
    assert f"{path} is not used: it is of another machine or version: " in warning
    assert what in warning
    assert "run headstock tune again" in warning


def test_a_library_that_came_later_makes_no_file_stale_and_a_new_version_does(path):
    table = write(path, entry(), device=replace(CPU, libraries={"torch": "2"}))
    assert table.fastest(spec(), replace(CPU, libraries={"torch": "2", "flash-attn": "3"}), "decode") is not None
    table = TunedTable(world(), path)
    assert table.fastest(spec(), replace(CPU, libraries={"torch": "3"}), "decode") is None


def damaged(**changes) -> str:
    """A file whose only entry has a field that is none."""
    values = {**entry().to_dict(), **changes}
    document = {"schema": "headstock.tuned/2", "fingerprint": fingerprint(CPU), "entries": [values]}
    return json.dumps(document, default=str)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"schema": "other/1"}',
        '{"schema": "headstock.tuned/2"}',
        '{"schema": "headstock.tuned/2", "fingerprint": [], "entries": []}',
        "[" * 10**5,
        damaged(ratio="fast"),
        damaged(low=None),
        damaged(phase="both"),
        damaged(backend=5),
        damaged(backend="never tried"),
        damaged(tried=[]),
        damaged(tried={"reference": {"package": 5, "source_hash": ""}}),
        damaged(tried={"reference": {"speed": 5}}),
        damaged(spec={}),
        damaged(regimes={"x": {"sdpa": "1"}}),
        "\x00\xff",
    ],
)
def test_a_broken_file_is_told_once_and_the_ranking_decides(path, warnings, content):
    path.write_text(content, encoding="latin-1")
    choice = choice_by(TunedTable(world(), path))
    assert (choice.backend, choice.origin.split(" ")[0]) == ("sdpa", "ranked")
    (warning,) = warnings()
    assert f"{path} is not used: it cannot be read (" in warning


def test_a_file_of_a_newer_headstock_is_said_to_be_one(path, warnings):
    path.write_text('{"schema": "headstock.tuned/3", "entries": {}}')
    assert choice_by(TunedTable(world(), path)).backend == "sdpa"
    (warning,) = warnings()
    assert "its schema is 'headstock.tuned/3', of a newer Headstock" in warning


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.mkdir(), "it is no plain file"),
        (os.mkfifo, "it is no plain file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
    ids=["folder", "pipe", "loop"],
)
def test_what_is_no_file_is_told_and_not_waited_for(path, warnings, make, what):
    make(path)
    assert choice_by(TunedTable(world(), path)).backend == "sdpa"
    (warning,) = warnings()
    assert what in warning


def test_a_huge_file_is_not_read(path, warnings):
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert choice_by(TunedTable(world(), path)).backend == "sdpa"
    (warning,) = warnings()
    assert "it has 16 MiB, and no such file has more than 16" in warning


def test_no_file_is_no_news(path, warnings):
    assert TunedTable(world(), path).fastest(spec(), CPU, "decode") is None
    assert warnings() == []
    assert TunedTable(world(), path, named=True).fastest(spec(), CPU, "decode") is None
    assert "does not exist" in warnings()[0]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"source_hash": "0" * 12}, "its choice reference does not count: measured it as headstock"),
        ({"package": "headstock 0.0.1"}, "measured it as headstock 0.0.1, and it has changed since"),
    ],
)
def test_a_winner_that_is_another_by_now_is_told_and_not_used(path, warnings, changes, what):
    table = write(path, entry(tried={**entry().tried, "reference": tried("reference", **changes)}))
    assert table.fastest(spec(), CPU, "decode") is None
    assert what in warnings()[0]


def test_a_winner_that_is_gone_is_told_and_not_used(path, warnings):
    table = write(path, entry("gone", tried={**entry().tried, "gone": tried("sdpa")}))
    assert table.fastest(spec(), CPU, "decode") is None
    assert "its choice gone does not count: it is not here any more" in warnings()[0]


def test_layers_go_through_json():
    for one in (spec(), spec(window=(5, 0), softcap=3.0, sinks=True, masks=frozenset({"tree"}))):
        assert read_spec(json.loads(json.dumps(spec_document(one)))) == one


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "headstock/tuned.json"
    monkeypatch.setenv("HEADSTOCK_TUNED", "0")
    assert installed_tuning(PLUGINS) is None
    monkeypatch.setenv("HEADSTOCK_TUNED", str(tmp_path / "mine.json"))
    write(tmp_path / "mine.json", entry())
    table = installed_tuning(PLUGINS)
    assert table is not None
    assert table.fastest(spec(), CPU, "decode") is not None


def test_a_fingerprint_is_of_the_device_and_the_versions():
    marks = fingerprint(Device(platform="cuda", name="card", arch="sm_90", units=7, libraries={"torch": "2"}))
    assert {"platform", "name", "arch", "units", "driver", "libraries", "headstock"} == set(marks)
