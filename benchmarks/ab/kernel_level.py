"""Kernels against each other: every arm in a process of its own, equal shapes and data, in turns."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter

from ...core.attention import Device
from ...core.errors import BackendError
from ...plugins import Guard
from ...selector import find_device
from ...selector.judge import Judge
from ..clock import clock_rate
from ..kernels.peer import Peer
from ..kernels.report import Row
from ..kernels.run import KernelBench, Settings
from ..machine import describe
from ..progress import Bar
from .arms import Arm
from .lines import kernel_comparison, kernel_line, notes_on, notes_on_arms, notes_on_card, with_problems
from .report import AbReport, ArmReport

CHECK_SECONDS = 900
ANSWER_SECONDS = 600.0
"""For a start or a turn, by default."""
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


def start_arms(stack: ExitStack, arms: Sequence[Arm], block_size: int, device: Device, seconds: float) -> list[Peer]:
    """A process for each, that has `seconds` for an answer. Raises `BackendError` naming the arm that cannot run."""
    peers: list[Peer] = []
    for arm in arms:
        order = {"backend": arm.backend, "config": arm.config, "block_size": block_size, "device": named(device)}
        command = [arm.python, "-m", "headstock.benchmarks.ab.worker", json.dumps(order)]
        try:
            peer = Peer(arm.label, command, answer_seconds=seconds)
        except BackendError as error:
            advice = "" if arm.here else f"\n  does {arm.python} have this version of headstock?"
            raise BackendError(f"arm {arm.label!r} cannot take part: {error}{advice}") from error
        stack.callback(peer.close)
        peers.append(peer)
    return peers


def named(device: Device) -> str:
    """As ``--device`` takes it."""
    return f"{device.platform}:{device.index}"


def check_arm(arm: Arm, device: Device) -> str:
    """What the conformance kit, at level quick, has against an arm on `device`; empty where it conforms."""
    words = ["check", arm.backend, "--device", named(device), "--json"]
    words += ["--attention-backend-config", arm.config] if arm.config else []
    command = [arm.python, "-m", "headstock", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"headstock check {arm.backend} has not ended in {CHECK_SECONDS} s"
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


def compare_kernels(
    arms: Sequence[Arm],
    settings: Settings,
    judge: Judge,
    guard: Guard,
    bar: Bar,
    *,
    check: bool,
    seconds: float,
    command: str,
) -> AbReport:
    """Start, check, measure, judge; an arm has `seconds` for each answer. An interrupt ends it early: rows that are
    whole by then count."""
    device, start = judge.device, perf_counter()
    machine, before = describe(find_device("cpu"), measured=device), clock_rate(device, guard)
    rows: list[Row] = []
    notes: list[str] = []
    with ExitStack() as stack:
        peers = start_arms(stack, arms, settings.block_size, device, seconds)
        against = [
            bar.during(f"checking {arm.label}", lambda a=arm: check_arm(a, device)) if check else "" for arm in arms
        ]
        found = [about(arm, peer, problem) for arm, peer, problem in zip(arms, peers, against, strict=True)]
        sound = [peer for peer, arm in zip(peers, found, strict=True) if not arm.problems]
        try:
            if len(sound) > 1:
                for row in bar.each("measuring", KernelBench(settings, (), sound, judge, guard).rows()):
                    rows.append(row)
        except KeyboardInterrupt:
            if not rows:
                raise
            notes.append(f"interrupted: {len(rows)} of {len(settings.tasks())} lines were measured")
    reports = with_problems(found, rows)
    baseline, others = reports[0], reports[1:]
    lines = tuple(kernel_line(row, device, baseline.label, [arm.label for arm in others]) for row in rows)
    clocks = (before, clock_rate(device, guard))
    left_out = sum(row.disturbed for row in rows if not row.kept_disturbed)
    return AbReport(
        level="kernel",
        command=command,
        machine=machine,
        seconds=perf_counter() - start,
        rounds=settings.rounds,
        arms=reports,
        lines=lines,
        comparisons=tuple(kernel_comparison(arm, baseline, rows) for arm in others),
        notes=(*notes, *notes_on(lines, left_out), *notes_on_arms(reports, rows), *notes_on_card(device, clocks)),
        clocks=clocks,
        interrupted=bool(notes),
    )
