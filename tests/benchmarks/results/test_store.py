"""The results file: kept whole, found again, shared by several writers, and told apart from what is none."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headstock.benchmarks.results.records import Measurement, Run
from headstock.benchmarks.results.schema import MIGRATIONS
from headstock.benchmarks.results.store import Store
from headstock.core.errors import HeadstockError, InvalidInput

TIME = Measurement(
    subject="fast",
    workload="decode:9/3/64:1x1k float32 1 thread",
    metric="time",
    unit="us",
    value=2.0,
    better="lower",
    samples=(1.0, 2.0, 3.0),
    right=True,
    package="kernels 1.0",
    source_hash="abc",
)


def run(when: str = "2026-01-01T00:00:00+00:00", *measurements: Measurement, kind: str = "kernels", **rest) -> Run:
    rest = {"machine": {"cpu": "a CPU", "cpus": 2}, "versions": {"torch": "2"}, **rest}
    return Run.of(kind=kind, source="headstock", when=when, command="x", measurements=measurements or (TIME,), **rest)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "deep" / "results.db") as store:
        yield store


def test_a_run_comes_back_as_it_was_kept(store):
    kept = run()
    assert store.add(kept)
    assert store.runs() == [store.find("last")] == [store.find(kept.id[:4])] == [kept]


def test_the_same_run_is_kept_once(store):
    assert [store.add(run()), store.add(run())] == [True, False]
    assert len(store.runs()) == 1
    assert len(store.find("last").measurements) == 1


def test_the_latest_is_first_and_can_be_asked_for_by_kind_and_subject(store):
    old, new = run("2026-01-01T00:00:00+00:00"), run("2026-01-02T00:00:00+00:00", replace(TIME, subject="slow"))
    check = run("2026-01-03T00:00:00+00:00", kind="check")
    for each in (new, old, check):
        store.add(each)
    assert store.runs() == [check, new, old]
    assert store.runs(kind="kernels") == [new, old]
    assert store.runs(subject="fast", limit=1) == [check]


@pytest.mark.parametrize("name", ["", "zz", "%", "_"])
def test_an_unknown_run_is_refused(store, name):
    store.add(run())
    with pytest.raises(InvalidInput, match=r"run: .* is not in"):
        store.find(name)


def test_a_start_of_several_ids_is_refused_with_them(store):
    runs = {(r := run(f"2026-01-01T00:00:{n:02}+00:00")).id: r for n in range(40)}
    for each in runs.values():
        store.add(each)
    first = next(i[0] for i in runs if sum(j[0] == i[0] for j in runs) > 1)
    with pytest.raises(InvalidInput, match=f"run: '{first}' is the start of several: "):
        store.find(first)


def test_an_empty_store_says_so(store):
    with pytest.raises(InvalidInput, match="there are no runs in"):
        store.find("last")


def test_machines_are_told_apart_by_what_they_are_not_by_their_versions():
    same = run(machine={"cpu": "a CPU", "cpus": 2, "torch": "2.9"})
    assert run().machine_id == same.machine_id != run(machine={"cpu": "a CPU", "cpus": 4}).machine_id
    assert run(machine={}).machine_id == ""


WRITER = """
import sys
from headstock.benchmarks.results.records import Measurement, Run
from headstock.benchmarks.results.store import Store
with Store(sys.argv[1]) as store:
    for n in range(25):
        m = Measurement(subject=sys.argv[2], workload="w", metric="m", unit="s", value=n, better="lower")
        assert store.add(Run.of(kind="k", source="headstock", when=f"{n:04}", measurements=(m,) * 20))
"""


def test_several_processes_write_at_once_from_the_first_moment_on(tmp_path):
    path = tmp_path / "new.db"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"writer {n}"]) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    with Store(path) as store:
        found = store.runs()
    assert len(found) == 100
    assert all(len(r.measurements) == 20 for r in found)


def test_a_run_that_cannot_be_kept_whole_leaves_nothing(store):
    bad = replace(TIME, better="sideways")  # pyright: ignore[reportArgumentType]
    with pytest.raises(Exception, match="cannot be written"):
        store.add(run("2026-01-01T00:00:00+00:00", TIME, bad))
    assert store.runs() == []
    assert store.add(run())


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be taken for one " * 50)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match=r"HEADSTOCK_DB: the results file .*notes.txt cannot be used"):
        Store(path)
    assert path.read_bytes() == before


def test_a_file_from_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "new.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(InvalidInput, match="was made by a newer Headstock"):
        Store(path)


LATER = ("ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT 'none'",)


def test_an_older_file_is_brought_up_to_date_with_what_it_holds(tmp_path, monkeypatch):
    path, kept = tmp_path / "old.db", run()
    with Store(path) as store:
        store.add(kept)
    monkeypatch.setattr("headstock.benchmarks.results.store.MIGRATIONS", (*MIGRATIONS, LATER))
    with Store(path) as store:
        assert store.find("last") == kept
        assert store.add(run("2026-01-02T00:00:00+00:00"))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT note FROM runs").fetchall() == [("none",), ("none",)]
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    db.close()


def test_a_step_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "old.db"
    with Store(path) as store:
        store.add(run())
    broken = (*LATER, "ALTER TABLE no_such_table ADD COLUMN x")
    with monkeypatch.context() as patch:
        patch.setattr("headstock.benchmarks.results.store.MIGRATIONS", (*MIGRATIONS, broken))
        with pytest.raises(HeadstockError, match="no such table"):
            Store(path)
    with Store(path) as store:  # the former version still reads it
        assert store.runs() == [run()]


OPENER = """
import sys
from headstock.benchmarks.results import store
store.MIGRATIONS = (*store.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT 'none'",))
with store.Store(sys.argv[1]) as opened:
    assert len(opened.runs()) == 1
"""


def test_several_processes_can_be_the_first_to_bring_it_up_to_date(tmp_path):
    path = tmp_path / "old.db"
    with Store(path) as store:
        store.add(run())
    openers = [subprocess.Popen([sys.executable, "-c", OPENER, str(path)]) for _ in range(4)]
    assert [opener.wait() for opener in openers] == [0] * 4


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADSTOCK_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with Store() as store:
        assert store.path == tmp_path / "data/headstock/results.db"
    monkeypatch.setenv("HEADSTOCK_DB", str(tmp_path / "mine.db"))
    with Store() as store:
        assert store.path == tmp_path / "mine.db"
    monkeypatch.setenv("HEADSTOCK_DB", "/proc/no/such/place.db")
    with pytest.raises(InvalidInput, match="HEADSTOCK_DB"):
        Store()


def test_the_hash_of_a_backends_source_changes_with_it(tmp_path: Path, monkeypatch):
    from headstock.backends.cpu import CpuBackend
    from headstock.backends.sdpa import SdpaBackend
    from headstock.plugins.sources import source_hash

    assert len(source_hash(SdpaBackend)) == len(source_hash(CpuBackend)) == 12
    assert source_hash(SdpaBackend) != source_hash(CpuBackend)
    package = tmp_path / "own_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("class Backend: ...")
    (package / "kernel.cu").write_text("1")
    monkeypatch.syspath_prepend(str(tmp_path))
    from own_kernels import Backend  # pyright: ignore[reportMissingImports]

    first = source_hash(Backend)
    (package / "kernel.cu").write_text("2")
    assert source_hash(Backend) != first
    sys.modules.pop("own_kernels")
    assert source_hash(type("Loose", (), {"__module__": "no_such_module"})) == ""
