"""The run: every arm loaded and warmed up, its answers counted, then all of them in turns."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from ...core.attention import Device
from ...core.trace import Recorder
from ...entrypoints.llm import LLM
from ...plugins import Guard
from ...plugins.sources import source_hash
from ..interleave import Pace, Samples, interleave
from ..load import LoadMeter
from ..machine import describe, load_average
from ..statistics import paired_ratio
from .arm import Arm, Turn, agreement
from .metrics import METRICS
from .report import ArmResult, Report, Series
from .workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, and how often."""

    kind: str
    """``"throughput"`` or ``"latency"``."""
    model: str
    workload: Workload
    makers: Mapping[str, Callable[[], LLM]]
    """Arms by name."""
    rounds: int
    warmup: int
    """Turns of each arm that do not count."""
    profile: Callable[[], AbstractContextManager[Recorder]] | None = None
    """What one more turn of each arm is recorded by."""

    @property
    def turns(self) -> int:
        """Of all arms together."""
        return len(self.makers) * (self.rounds + self.warmup + (self.profile is not None))


def measure(
    plan: Plan, cpu: Device, device: Device, guard: Guard, on_turn: Callable[[], object]
) -> tuple[Report, dict[str, Recorder]]:
    """Run `plan`: the report, and the recorded turns by arm, which count nowhere.

    `on_turn` is told of every turn that is over. `cpu` is the machine, `device` where models run.
    """
    before, start = load_average(), perf_counter()
    arms = {name: Arm(name, plan.workload, guard, on_turn) for name in plan.makers}
    try:
        for name, make in plan.makers.items():
            arms[name].load(make)
            arms[name].run_uncounted(plan.warmup)
        ready = {name: arm for name, arm in arms.items() if not arm.failure}
        paces = dict.fromkeys(ready, Pace(calls=1, rounds=plan.rounds, warm=False))
        samples = interleave(ready, paces, LoadMeter())
        results = _results(arms, samples)
        dtype = next((arm.dtype for arm in arms.values() if arm.dtype), "")
        recorders = dict(_profiles(plan, arms))
    finally:
        for arm in arms.values():
            arm.close()
    report = Report(
        kind=plan.kind,
        machine=describe(cpu),
        command=shlex.join(["headstock", *sys.argv[1:]]),
        model=plan.model,
        dtype=dtype,
        device=f"{device.name} ({device.platform})",
        threads=torch.get_num_threads(),
        workload=plan.workload.name,
        num_requests=len(plan.workload.requests),
        num_prompt_tokens=plan.workload.num_prompt_tokens,
        num_output_tokens=plan.workload.num_output_tokens,
        rounds=samples.rounds,
        disturbed=len(samples.disturbed),
        kept_disturbed=samples.kept_disturbed,
        other_load=samples.other_load,
        load_before=before,
        load_after=load_average(),
        seconds=perf_counter() - start,
        arms=results,
    )
    return report, recorders


def _profiles(plan: Plan, arms: Mapping[str, Arm]) -> Iterator[tuple[str, Recorder]]:
    """One more turn of each arm that has numbers."""
    for name, arm in arms.items():
        if plan.profile is not None and not arm.failure:
            with plan.profile() as recorder:
                arm.run_uncounted(1)
            yield name, recorder


def _results(arms: Mapping[str, Arm], samples: Samples) -> tuple[ArmResult, ...]:
    first = next(iter(arms))
    found: list[ArmResult] = []
    for name, arm in arms.items():
        about = _about(arm)
        if arm.failure:
            found.append(ArmResult(name=name, failure=arm.failure, **about))
            continue
        other = name != first and not arms[first].failure
        found.append(
            ArmResult(
                name=name,
                **about,
                metrics=_metrics([arm.turns[number] for number in sorted(samples.seconds[name])]),
                num_cached_tokens=arm.turns[0].num_cached_tokens,
                num_preemptions=arm.turns[0].num_preemptions,
                agreement=agreement(arms[first].turns[0], arm.turns[0]) if other else None,
                ratio=paired_ratio(samples.seconds[first], samples.seconds[name]) if other else None,
            )
        )
    return tuple(found)


def _about(arm: Arm) -> dict[str, Any]:
    """What is known of an arm whether it has numbers or not."""
    if arm.llm is None:
        return {}
    selection, info = arm.llm.attention, arm.llm.engine.client.info
    choices = {choice.cls: choice for choice in selection.choices.values()}
    alone = next(iter(choices.values())) if len(choices) == 1 else None
    return {
        "attention": selection.summary(),
        "package": alone.distribution if alone else "",
        "source_hash": source_hash(alone.cls) if alone else "",
        "block_size": selection.block_size,
        "layout": selection.layout.name,
        "num_blocks": info.num_blocks,
        "load_seconds": arm.load_seconds,
        "warm_seconds": arm.warm_seconds,
    }


def _metrics(turns: Sequence[Turn]) -> dict[str, Series]:
    rounds = [turn.metrics for turn in turns]
    return {name: Series.of(name, tuple(r[name] for r in rounds)) for name in METRICS if name in rounds[0]}
