"""`headstock ab --ray`: who is compared where. The cluster is a double, or in heavy tests Ray's own on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headstock.benchmarks.ab.order import Order
from headstock.benchmarks.results.store import Store
from headstock.core.engine.lives import ray_cluster
from headstock.core.errors import BackendError
from support.ab import RATIO, ab_report
from support.cli import run_cli
from support.fake_ray import FakeRay, RayError
from support.tiny import tiny_folder

PLAIN = {"CPU": 4.0, "memory": 1e9, "node:10.0.0.1": 1.0}
CARDS = {"CPU": 16.0, "GPU": 4.0, "accelerator_type:H100": 1.0, "memory": 1e9}
SLOWER = type(RATIO)(estimate=0.5, low=0.4, high=0.6, pairs=30)


@pytest.fixture
def orders(monkeypatch):
    """What would have run: every comparison ends in a report made up, slower for the candidate `slow`."""
    ran: list[Order] = []

    def run(order: Order):
        ran.append(order)
        if order.arms[1] == "refused":
            raise BackendError("no backend fits,\n  for a reason")
        return ab_report(
            *order.arms[1:],
            baseline=order.arms[0],
            ratio=SLOWER if order.arms[1] == "slow" else RATIO,
            command=order.command,
        )

    monkeypatch.setattr(Order, "run", run)
    return ran


@pytest.fixture
def cluster(monkeypatch, orders):
    """Call with the cluster's nodes: `headstock ab --ray` runs on it."""

    def made(nodes, **fails):
        ray = FakeRay(nodes, fails)
        monkeypatch.setattr(ray_cluster, "connect", lambda asker: ray)
        return ray

    return made


def test_every_candidate_is_compared_with_the_baseline_beside_it(cluster, orders):
    ray = cluster({"10.0.0.1": PLAIN})
    done = run_cli("ab", "base", "x", "y{}", "z", "--ray", "--json", "--rounds", "12", "--threads", "2")
    assert done.code == 0, done.err
    assert [order.arms for order in orders] == [("base", "x"), ("base", "y{}"), ("base", "z")]
    assert {order.verdict.rounds for order in orders} == {12}
    assert {order.command for order in orders} == {"headstock ab base x 'y{}' z --ray --json --rounds 12 --threads 2"}
    (options,) = {json.dumps({**s.options, "scheduling_strategy": "", "name": ""}) for s in ray.started}
    asked = json.loads(options)
    assert (asked["num_cpus"], asked["num_gpus"], asked["max_calls"], asked["max_retries"]) == (2.0, 0.0, 1, 0)
    document = done.json
    assert (document["schema"], document["verdict"], document["baseline"]) == ("headstock.ab.ray/1", "faster", "base")
    assert [c["arm"] for c in document["comparisons"]] == ["x", "y{}", "z"]
    assert {c["node"] for c in document["comparisons"]} == {"10.0.0.1"}
    assert document["comparisons"][0]["document"]["schema"] == "headstock.ab/1"


def test_a_machine_has_one_comparison_at_a_time_and_all_machines_are_used(cluster):
    ray = cluster({"10.0.0.1": PLAIN, "10.0.0.2": PLAIN})
    assert run_cli("ab", "base", "v", "w", "x", "y", "z", "--ray").code == 0
    assert all(len(nodes) == len(set(nodes)) for nodes in ray.together)
    assert len(ray.together[0]) == 2
    assert len(ray.started) == 5
    assert not any(s.options["scheduling_strategy"].soft for s in ray.started)


def test_cards_are_shared_out_and_kinds_are_kept_apart(cluster):
    other = {**CARDS, "GPU": 1.0, "accelerator_type:A100": 1.0}
    del other["accelerator_type:H100"]
    ray = cluster({"10.0.0.1": CARDS, "10.0.0.2": other, "10.0.0.3": PLAIN})
    kinds = ("--ray-accelerator", "H100", "--ray-accelerator", "A100")
    done = run_cli("ab", "base", "x", "y", "z", "--ray", *kinds, "--ray-gpus", "2", "--json")
    assert (done.code, done.out) == (2, "")  # the other machine has one card
    assert "no machine of the cluster has 2 CPU" not in done.err
    assert "no machine of the cluster has 1 CPU, 2 GPU, accelerator_type:A100; it has" in " ".join(done.err.split())
    assert "10.0.0.2: 16 CPU, 1 GPU, accelerator_type:A100" in done.err
    done = run_cli("ab", "base", "x", "y", "z", "--ray", *kinds, "--json")
    assert done.code == 0, done.err
    assert ray.together[0].count("id of 10.0.0.1") == 3  # four cards, three candidates
    assert ray.together[0].count("id of 10.0.0.2") == 1
    assert [c["request"] for c in done.json["comparisons"]].count("1 CPU, 1 GPU, accelerator_type:A100") == 3


def test_it_is_said_when_others_have_taken_what_a_task_wants(cluster):
    ray = cluster({"10.0.0.1": CARDS})
    ray.taken = {"GPU": 4.0}
    done = run_cli("ab", "base", "x", "--ray", "--ray-gpus", "1")
    assert done.code == 0
    assert "a task wants 1 CPU, 1 GPU, and of all that the cluster has 16 CPU, 0 GPU" in " ".join(done.err.split())
    assert "a task wants" not in run_cli("ab", "base", "x", "--ray").err


def test_every_machine_can_be_asked(cluster):
    cluster({"10.0.0.1": PLAIN, "10.0.0.2": PLAIN, "10.0.0.3": {"CPU": 1.0}})
    done = run_cli("ab", "base", "x", "--ray", "--ray-every-node", "--ray-cpus", "2", "--json")
    assert [c["node"] for c in done.json["comparisons"]] == ["10.0.0.1", "10.0.0.2"]
    done = run_cli("ab", "base", "x", "--ray", "--ray-resource", "node:10.0.0.1=0.01", "--json")
    assert [c["node"] for c in done.json["comparisons"]] == ["10.0.0.1"]


def test_what_came_home_is_kept_by_who_asked_and_can_be_imported(cluster, tmp_path):
    cluster({"10.0.0.1": PLAIN}, y=RayError("The worker died\nsignal 11"))
    db, page = tmp_path / "r.db", tmp_path / "r.html"
    options = ("--ray", "--save", "--json", "--html", str(page))
    done = run_cli("ab", "base", "x", "y", "refused", "z", *options, environ={"HEADSTOCK_DB": str(db)})
    assert done.code == 1
    with Store(db) as store:
        runs = store.runs()
    assert sorted(r.subjects for r in runs) == [("base", "x"), ("base", "z")]
    assert all(r.machine["cpu"] for r in runs)
    by_arm = {c["arm"]: c for c in done.json["comparisons"]}
    assert (by_arm["y"]["document"], by_arm["y"]["error"]) == (None, "RayError: signal 11")
    assert by_arm["refused"]["error"] == "no backend fits,\n  for a reason"
    assert "y on 10.0.0.1 (1 CPU) was not compared: RayError: signal 11" in done.err
    shown = page.read_text()
    assert re.findall("<h1>(.*?)</h1>", shown) == ["base against x", "base against z"]
    again = run_cli("results", "import", "-", "--db", str(tmp_path / "other.db"), stdin=done.out.encode())
    assert "2 new runs" in again.err


def test_gates_hold_for_each_comparison(cluster):
    cluster({"10.0.0.1": PLAIN})
    done = run_cli("ab", "base", "x", "slow", "--ray", "--fail-if-slower", "0.9", "--markdown")
    assert done.code == 1
    assert "**slow** against **base**: slower ×0.5 [0.4, 0.6]" in done.out  # noqa: RUF001
    assert run_cli("ab", "base", "x", "slow", "--ray", "--fail-if-slower", "0.3").code == 0


def test_an_interrupt_cancels_what_is_under_way_and_keeps_what_has_come(cluster, tmp_path):
    ray = cluster({"10.0.0.1": PLAIN, "10.0.0.2": PLAIN}, y=KeyboardInterrupt())
    environ = {"HEADSTOCK_DB": str(tmp_path / "r.db")}
    assert run_cli("ab", "base", "x", "y", "z", "--ray", "--save", environ=environ).code == 130
    assert [ref.order.arms[1] for ref in ray.cancelled] == ["z"]
    with Store(tmp_path / "r.db") as store:
        assert [r.subjects for r in store.runs()] == [("base", "x")]


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = run_cli("ab", "sdpa", "cpu", "--ray")
    assert (done.code, done.out) == (2, "")
    assert "--ray needs Ray" in done.err
    assert "pip install 'headstock[ray]'" in done.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--ray-gpus", "1"), "ray_gpus: says where on a cluster; add --ray"),
        (("--ray-every-node",), "ray_every_node: says where on a cluster; add --ray"),
        (("--ray", "--ray-address", "127.0.0.1:1"), "no Ray cluster can be joined: nobody answers at 127.0.0.1:1"),
        (("--ray", "--ray-gpus", "1.5"), "ray: 1.5 GPU cannot be asked for"),
        (("--ray", "--ray-cpus", "-1"), "ray: -1 CPU cannot be asked for"),
        (("--ray", "--ray-cpus", "nan"), "ray: nan CPU cannot be asked for"),
        (("--ray", "--ray-resource", "GPU=1"), "ray_resource: 'GPU=1': --ray-gpus says that"),
        (("--ray", "--ray-resource", "fast"), "ray_resource: 'fast': write NAME=AMOUNT"),
        (("--ray", "--ray-resource", "fast=many"), "ray_resource: 'fast=many': write NAME=AMOUNT"),
        (("--ray", "--ray-accelerator", ""), "ray_accelerator: names no kind of card"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(arguments, problem):
    done = run_cli("ab", "sdpa", "cpu", *arguments)
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split()), done.err
    assert "Traceback" not in done.err


@pytest.mark.heavy
@pytest.mark.timeout(600)
class TestOnRay:
    """With a cluster that Ray starts on this machine."""

    COMMAND = (sys.executable, "-m", "headstock", "ab")
    SMALL = ("--shapes", "decode:4/2/32:2x64", "--no-check", "--ray")

    def call(self, *arguments: str, **rest) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.COMMAND, *arguments], capture_output=True, text=True, check=False, **rest)

    def test_it_compares_and_keeps(self, tmp_path: Path):
        environ = {**os.environ, "HEADSTOCK_DB": str(tmp_path / "r.db")}
        options = (*self.SMALL, "--rounds", "8", "--json", "--save")
        done = self.call("sdpa", "sdpa{}", 'sdpa{"no": 1}', *options, env=environ)
        assert done.returncode == 1, done.stderr
        first, second = sorted(json.loads(done.stdout)["comparisons"], key=lambda c: c["arm"], reverse=True)
        assert first["document"]["comparisons"][0]["ratio"]["pairs"] <= 8
        assert first["document"]["command"].startswith("headstock ab sdpa 'sdpa{}'")
        assert "option 'no': is not known" in second["error"]
        with Store(tmp_path / "r.db") as store:
            assert [r.subjects for r in store.runs()] == [("sdpa", "sdpa{}")]

    def test_what_the_cluster_has_not_is_refused_at_once(self):
        done = self.call("sdpa", "cpu", *self.SMALL, "--ray-accelerator", "H100")
        assert (done.returncode, done.stdout) == (2, "")
        assert "no machine of the cluster has 1 CPU, 1 GPU, accelerator_type:H100; it has\n" in done.stderr
        assert re.search(r"^  [\d.]+: \d+ CPU$", done.stderr, re.MULTILINE)

    def test_kinds_of_cards_are_found_on_the_machines_that_have_them(self, monkeypatch: pytest.MonkeyPatch):
        """Three nodes, two of which say that they have cards; the code comes to them as a wheel's contents."""
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster_utils = pytest.importorskip("ray.cluster_utils")
        few = {"num_cpus": 1, "object_store_memory": 2**27}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=few)
        try:
            for kind in ("H100", "MI300X"):
                cluster.add_node(**few, num_gpus=2, resources={f"accelerator_type:{kind}": 1})
            options = ("--ray-accelerator", "H100", "--ray-accelerator", "MI300X", "--device", "cpu", "--rounds", "6")
            done = self.call("sdpa", "sdpa{}", *self.SMALL, *options, "--json", "--ray-address", cluster.address)
        finally:
            cluster.shutdown()
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["comparisons"]
        assert sorted(c["request"] for c in found) == [
            "1 CPU, 1 GPU, accelerator_type:H100",
            "1 CPU, 1 GPU, accelerator_type:MI300X",
        ]
        assert all(c["document"]["lines"][0]["values"].keys() == {"sdpa", "sdpa{}"} for c in found)

    def test_whole_engines_are_compared_on_it_too(self, tmp_path: Path):
        model = str(tiny_folder(tmp_path).path)
        workload = ("--num-prompts", "2", "--input-len", "20", "--output-len", "4", "--rounds", "6", "--no-check")
        done = self.call("sdpa", "reference", "--engine", model, *workload, "--ray", "--ray-cpus", "2", "--json")
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)["comparisons"]
        assert found["document"]["numerics"]["reference"]["token agreement"] == 1.0

    def test_an_interrupt_ends_the_task_and_its_arms(self, tmp_path: Path):
        mark = f"mark{os.getpid()}"
        environ = {**os.environ, "HEADSTOCK_PLUGINS": mark}  # goes along to the node, and tells its processes apart
        command = [*self.COMMAND, "sdpa", "sdpa{}", *self.SMALL, "--rounds", "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
            while process.poll() is None and not ours(mark):
                pass
            assert process.poll() is None, process.stderr.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
        assert not psutil.wait_procs(ours(mark), timeout=30)[1]


def ours(mark: str) -> list[psutil.Process]:
    """Worker processes of arms whose environment has `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if "headstock.benchmarks.ab.worker" in process.cmdline() and mark in process.environ().values():
                found.append(process)
        except psutil.Error:
            continue
    return found
