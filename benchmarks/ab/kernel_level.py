"""Kernels against each other: every arm in a process of its own, equal shapes and data, in turns."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from ...core.errors import BackendError
from ...plugins import Guard
from ...selector.judge import Judge
from ..kernels.peer import Peer
from ..kernels.report import Row
from ..kernels.run import KernelBench, Settings
from .arms import Arm
from .report import ArmReport

CHECK_SECONDS = 900
UNBOUNDED = 1e9
"""Budget of a row's turns, in seconds: every arm has its turn in every round, however slow it is."""


def about(arm: Arm, peer: Peer, check: str) -> ArmReport:
    """What is known of an arm before anything is timed; `check` is what the conformance kit has against it."""
    return ArmReport(
        label=arm.label,
        backend=peer.about["name"],
        options=dict(arm.options),
        python=arm.python,
        package=peer.about["version"],
        torch=peer.about["torch"],
        source_hash=peer.about["source_hash"],
        problems=(check,) if check else (),
    )


def start_arms(stack: ExitStack, arms: Sequence[Arm], block_size: int) -> list[Peer]:
    """A process for each. Raises `BackendError` naming the arm that cannot run."""
    peers: list[Peer] = []
    for arm in arms:
        order = {"backend": arm.backend, "config": arm.config, "block_size": block_size}
        command = [arm.python, "-m", "headstock.benchmarks.ab.worker", json.dumps(order)]
        try:
            peer = Peer(arm.label, command)
        except BackendError as error:
            advice = "" if arm.here else f"\n  does {arm.python} have this version of headstock?"
            raise BackendError(f"arm {arm.label!r} cannot take part: {error}{advice}") from error
        stack.callback(peer.close)
        peers.append(peer)
    return peers


def check_arm(arm: Arm) -> str:
    """What the conformance kit, at level quick, has against an arm; empty where it conforms."""
    words = ["check", arm.backend, "--device", "cpu", "--json"]
    words += ["--attention-backend-config", arm.config] if arm.config else []
    done = subprocess.run(
        [arm.python, "-m", "headstock", *words], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
    )
    try:
        document = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or ["nothing"]
        return f"headstock check ended with code {done.returncode}: {said[-1]}"
    if document["conforms"]:
        return ""
    broken = [c["name"] for c in document["conventions"] if c["verdict"] == "failed"]
    return (
        f"breaks {', '.join(broken) or 'nothing, but no case could be run'}: {len(document['failures'])} cases of the "
        f"conformance kit fail; see headstock check {arm.backend}"
    )


def measure(settings: Settings, peers: Sequence[Peer], judge: Judge, guard: Guard) -> Iterator[Row]:
    """A row for each of the settings' tasks, overheads among them."""
    return KernelBench(settings, (), peers, judge, guard).rows()
