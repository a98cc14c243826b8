"""What was measured is used while it holds: on this machine, with these versions, for these layers; else it is told."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from headstock.core.attention import Device, read_spec, spec_document
from headstock.plugins.sources import source_hash
from headstock.selector import Selector, installed_tuning, profile, read_policy
from headstock.selector.tuned import (
    Measured,
    TunedEntry,
    TunedTable,
    default_path,
    fingerprint,
    read_tuned,
    write_tuned,
)
from support.attention import CPU
from support.backends import layers, spec
from support.plugins import world

PLUGINS = world()


def entry(backend="reference", phase="decode", plugins=PLUGINS, **changes) -> TunedEntry:
    offer = plugins.backends.find(backend)
    cls = offer.load()
    assert cls is not None
    values = {
        "spec": replace(spec(), block_size=16),
        "phase": phase,
        "backend": backend,
        "package": offer.record.package,
        "source_hash": source_hash(cls),
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


def write(path, *entries, device=CPU):
    write_tuned(path, fingerprint(device), entries)
    return TunedTable(world(), path)


def test_a_winner_is_found_for_its_layers_and_phase(path):
    table = write(path, entry())
    why = "tuned (measured on this machine: 1.80 times as fast as sdpa)"
    assert table(spec(), CPU, "decode") == Measured(backend="reference", why=why)
    assert table(spec(block_size=64), CPU, "decode") is not None  # the choice does not depend on it
    assert table(spec(), CPU, "prefill") is None
    assert table(spec(head_size=32), CPU, "decode") is None
    assert table(spec(), profile("h100"), "decode") is None


def test_the_selector_takes_it_and_says_so(path):
    table = write(path, entry(), entry(phase="prefill", backend="sdpa"))
    selector = Selector(world(), read_policy(environ={}), tuned=table)
    choice = next(iter(selector.select(layers(spec()), CPU).choices.values()))
    assert choice.backend == "decode=reference,prefill=sdpa"
    assert choice.origin == (
        "decode: tuned (measured on this machine: 1.80 times as fast as sdpa); "
        "prefill: tuned (measured on this machine: as ranked)"
    )


def test_a_file_takes_new_winners_and_keeps_the_others(path):
    write(path, entry(), entry(phase="prefill"))
    write(path, entry(ratio=3.0))
    found = {e.phase: e.ratio for e in read_tuned(path)["entries"]}
    assert found == {"decode": 3.0, "prefill": 1.8}
    write(path, entry(), device=replace(CPU, name="another"))
    assert len(read_tuned(path)["entries"]) == 1
    path.write_text("{")
    write(path, entry())
    assert len(read_tuned(path)["entries"]) == 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"name": "another"}, "name was"), ({"libraries": {"torch": "1.0"}}, "torch was"), ({"units": 99}, "units was")],
)
def test_a_file_of_another_machine_or_version_is_told_once(path, warnings, changes, what):
    table = write(path, entry(), device=replace(CPU, **changes))
    assert table(spec(), CPU, "decode") is table(spec(), CPU, "prefill") is None
    (warning,) = warnings()
    assert f"{path} is not used: it is of another machine or version: " in warning
    assert what in warning
    assert "run headstock tune again" in warning


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": "other/1"}', '{"schema": "headstock.tuned/1"}', "[" * 10**5]
)
def test_a_broken_file_is_told_and_the_ranking_decides(path, warnings, content):
    path.write_text(content)
    table = TunedTable(world(), path)
    selector = Selector(world(), read_policy(environ={}), tuned=table)
    choice = next(iter(selector.select(layers(spec()), CPU).choices.values()))
    assert (choice.backend, choice.origin.split(" ")[0]) == ("sdpa", "ranked")
    assert "cannot be read" in warnings()[0]


def test_no_file_is_no_news(path, warnings):
    assert TunedTable(world(), path)(spec(), CPU, "decode") is None
    assert warnings() == []
    assert TunedTable(world(), path, named=True)(spec(), CPU, "decode") is None
    assert "does not exist" in warnings()[0]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"source_hash": "0" * 12}, "measured reference of headstock"),
        ({"package": "headstock 0.0.1"}, "measured reference of headstock 0.0.1, which has changed since"),
        ({"backend": "gone"}, "chose gone, which is not here any more"),
    ],
)
def test_a_winner_that_is_another_by_now_is_told_and_not_used(path, warnings, changes, what):
    table = write(path, replace(entry(), **changes))
    assert table(spec(), CPU, "decode") is None
    assert what in warnings()[0]


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
    assert table(spec(), CPU, "decode") is not None


def test_a_fingerprint_is_of_the_device_and_the_versions():
    marks = fingerprint(Device(platform="cuda", name="card", arch="sm_90", units=7, libraries={"torch": "2"}))
    assert {"platform", "name", "arch", "units", "driver", "torch", "headstock"} == set(marks)
