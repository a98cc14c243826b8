"""CPU time of others is what the CPUs were busy for, less our own."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from headstock.benchmarks import load
from headstock.benchmarks.load import LoadMeter


class Machine:
    """Two CPUs and a clock that a test moves on."""

    def __init__(self) -> None:
        self.clock = self.user = self.stolen = self.ours = self.peer = 0.0
        self.gone = False

    def run(self, seconds: float, *, ours: float = 0.0, peer: float = 0.0, others: float = 0.0, stolen: float = 0.0):
        self.clock += seconds
        self.ours += ours
        self.peer += peer
        self.stolen += stolen
        self.user += ours + peer + others


@pytest.fixture
def machine(monkeypatch):
    it = Machine()

    def process(pid=None):
        def used():
            if pid and it.gone:
                raise psutil.NoSuchProcess(pid)
            return SimpleNamespace(user=it.peer if pid else it.ours, system=0.0)

        return SimpleNamespace(cpu_times=used)

    def cpu_times(percpu):
        assert percpu
        return [
            SimpleNamespace(user=it.user, idle=5.0, iowait=1.0, steal=it.stolen),
            SimpleNamespace(user=0.0, idle=9.0, iowait=0.0, steal=0.0),
        ]

    monkeypatch.setattr(load.psutil, "Process", process)
    monkeypatch.setattr(load.psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(load, "perf_counter", lambda: it.clock)
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    return it


def test_our_own_work_and_our_peers_is_no_disturbance(machine):
    meter = LoadMeter([7])
    machine.run(1.0, ours=1.0, peer=0.9)
    assert meter.lap() is False
    assert meter.average == 0


def test_a_peer_that_ends_takes_nothing_back(machine):
    meter = LoadMeter([7])
    machine.run(1.0, ours=1.0, peer=0.9)
    assert meter.lap() is False
    machine.gone = True
    machine.run(1.0, ours=1.0)
    assert meter.lap() is False
    assert meter.average == 0


def test_other_processes_are(machine):
    meter = LoadMeter()
    machine.run(1.0, ours=1.0, others=0.5)
    assert meter.lap() is True
    assert meter.average == pytest.approx(0.5)


def test_time_stolen_by_the_hypervisor_counts_as_others(machine):
    meter = LoadMeter()
    machine.run(1.0, ours=0.5, stolen=0.4)
    assert meter.lap() is True


def test_a_span_is_judged_when_it_is_long_enough_and_then_begins_anew(machine):
    meter = LoadMeter()
    machine.run(0.1, others=0.1)
    assert meter.lap() is None
    machine.run(0.2, others=0.2)
    assert meter.lap() is True
    machine.run(0.3, ours=0.3)
    assert meter.lap() is False


def test_the_last_span_may_be_shorter(machine):
    meter = LoadMeter()
    machine.run(0.15, others=0.1)
    assert meter.lap() is None
    assert meter.lap(final=True) is True
    machine.run(0.05, others=0.05)
    assert meter.lap(final=True) is None


def test_other_work_on_cpus_that_are_not_ours_does_not_count(machine, monkeypatch):
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda _: {1}, raising=False)
    meter = LoadMeter()
    machine.run(1.0, others=0.9)
    assert meter.lap() is False


def test_a_real_machine_can_be_read():
    meter = LoadMeter()
    assert meter.average is None, "too short ago to tell"
