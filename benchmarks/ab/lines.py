"""From the rows of the kernel benchmark to lines, and from lines to verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.attention import Device
from ..kernels.report import Row, threads_text
from .report import ArmReport, Comparison, Line
from .verdicts import Ratio, drift, paired_ratio

DRIFTED = 1.1
LOADED = 0.1
"""CPUs kept busy by others from which it is said."""
STEADY = 0.05
"""Share by which a card's clock may change before it is said that it was not steady."""
LEAKED_BYTES = 64 * 2**20
"""Memory that an arm takes on during the rounds of a line, from which it is said: its buffers are made by then."""


def kernel_line(row: Row, device: Device, baseline: str, others: Sequence[str]) -> Line:
    """One row as a line; threads are those of CPUs."""
    base = row.of(baseline)
    timed = {m.name: m for m in row.measurements if m.median_us is not None}
    return Line(
        name=f"{row.shape.label} {row.dtype}" + (f" {threads_text(row.threads)}" if device.platform == "cpu" else ""),
        unit="us",
        values={name: m.median_us for name, m in timed.items() if m.median_us is not None},
        samples={name: m.samples_us for name, m in timed.items()},
        errors={name: m.error for name, m in timed.items() if m.error is not None},
        ratios={
            name: paired_ratio([base.samples_us], [timed[name].samples_us], disturbed=row.kept_disturbed)
            for name in others
            if base is not None and name in timed
        },
        reasons={m.name: m.reason for m in row.measurements if m.reason}
        | ({baseline: row.skipped} if row.skipped else {}),
        drift=drift(base.samples_us) if base is not None else 1.0,
        other_load=row.other_load,
    )


def with_problems(arms: Sequence[ArmReport], rows: Sequence[Row]) -> tuple[ArmReport, ...]:
    """The arms, each with what the rows have against it, too."""
    found: list[ArmReport] = []
    for arm in arms:
        own = [
            f"{row.shape.label} {row.dtype}: {m.reason}"
            for row in rows
            for m in row.measurements
            if m.name == arm.label and m.failed
        ]
        found.append(replace(arm, problems=(*arm.problems, *dict.fromkeys(own))))
    return tuple(found)


def kernel_comparison(arm: ArmReport, baseline: ArmReport, rows: Sequence[Row]) -> Comparison:
    """Over all shapes that both serve."""
    if blocked := numerics_first(arm, baseline):
        return blocked
    common = [row for row in rows if row.of(baseline.label) and row.of(arm.label)]
    if not common:
        return not_compared(arm, f"there is no shape that both {baseline.label} and {arm.label} serve")
    ratio = ratio_over(common, baseline.label, arm.label)
    return Comparison(arm=arm.label, verdict=ratio.word, ratio=ratio)


def ratio_over(rows: Sequence[Row], baseline: str, other: str) -> Ratio:
    """Of rows in which both have a time."""
    both = [(b, a) for row in rows if (b := row.of(baseline)) and (a := row.of(other))]
    disturbed = any(row.kept_disturbed for row in rows)
    return paired_ratio([b.samples_us for b, _ in both], [a.samples_us for _, a in both], disturbed=disturbed)


def numerics_first(arm: ArmReport, baseline: ArmReport) -> Comparison | None:
    """A wrong arm, or one that is held against a wrong one, gets no verdict on speed; None where both are right."""
    if arm.problems:
        only_failed = all("failed: " in problem for problem in arm.problems)
        return Comparison(arm=arm.label, verdict="failed" if only_failed else "wrong", ratio=None, reasons=arm.problems)
    if baseline.problems:
        return not_compared(arm, f"the baseline {baseline.label} is wrong: {baseline.problems[0]}")
    return None


def not_compared(arm: ArmReport, reason: str) -> Comparison:
    return Comparison(arm=arm.label, verdict="not compared", ratio=None, reasons=(reason,))


def notes_on_card(device: Device, clocks: tuple[int | None, int | None]) -> tuple[str, ...]:
    """At which clock a card ran, where the run was on one."""
    if device.platform == "cpu":
        return ()
    before, after = clocks
    if before is None or after is None:
        return ("at which clock the card ran is not known: nvidia-ml-py or amdsmi would tell",)
    steady = abs(after - before) <= STEADY * before
    advice = "" if steady else "; pin its clock and measure again where that matters"
    return (f"the card ran at {before} MHz before and {after} MHz after{advice}",)


def notes_on(lines: Sequence[Line], left_out: int) -> tuple[str, ...]:
    """What lessens the trust in the numbers; `left_out` is the number of disturbed rounds that do not count."""
    notes: list[str] = []
    loaded = [load for line in lines if (load := line.other_load or 0.0) > LOADED]
    if loaded:
        notes.append(
            f"others kept up to {max(loaded):.1f} CPUs busy in {len(loaded)} of {len(lines)} lines: measure again on "
            "a quiet machine"
        )
    drifted = [line for line in lines if not 1 / DRIFTED < line.drift < DRIFTED]
    if drifted:
        worst = max(drifted, key=lambda line: max(line.drift, 1 / line.drift))
        notes.append(
            f"the baseline's time changed by a factor of {worst.drift:.2f} over the rounds of {worst.name}; the arms "
            "had their turns in the same rounds"
        )
    if left_out:
        notes.append(f"{left_out} disturbed rounds were left out")
    return tuple(notes)


def notes_on_arms(arms: Sequence[ArmReport], rows: Sequence[Row]) -> list[str]:
    """Lines in which a right arm has no time, and memory that is not given back."""
    notes: list[str] = []
    for label in (arm.label for arm in arms if not arm.problems):
        without = sum(row.of(label) is None for row in rows)
        if 0 < without < len(rows):
            notes.append(f"{label} has no time in {without} of {len(rows)} lines, which count for nothing")
        grown = max((m.grown_bytes for row in rows for m in row.measurements if m.name == label), default=0)
        if grown > LEAKED_BYTES:
            notes.append(f"the process of {label} grew by {grown / 2**20:.0f} MiB in the rounds of a line: a leak?")
    return notes
