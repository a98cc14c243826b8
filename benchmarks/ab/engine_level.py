"""Whole engines against each other: one model under every arm's backend, the same requests, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from time import perf_counter
from typing import Any

from ...core.attention import Device
from ...core.errors import InvalidInput
from ...core.model import ModelFolder
from ...core.trace import Recorder, recording
from ...entrypoints.llm import LLM
from ...plugins import Guard
from ...plugins.sources import source_hash
from ..engine.arm import Arm as EngineArm
from ..engine.arm import Turn, agreement
from ..engine.metrics import METRICS
from ..engine.workload import Workload
from ..interleave import Pace, Samples, interleave
from ..load import LoadMeter
from ..machine import describe
from .arms import Arm
from .lines import not_compared, notes_on, numerics_first
from .numerics import SCORED, divergences, first_difference, score
from .report import AbReport, ArmReport, Comparison, Line
from .verdicts import LEAST, Ratio, drift, paired_ratio

SHOWN = ("output_throughput", "ttft_median", "tpot_median", "itl_p99")
DECISIVE = "output_throughput"
"""The metric that the verdict is about."""
ROUNDS = 16
"""By default: a turn of a whole engine takes seconds, and is steadier than a call."""
MAX_KL = {"float64": 1e-4, "float32": 1e-4, "bfloat16": 1e-2, "float16": 1e-2}
"""Nats by compute dtype. Between right kernels in float32 the mean is some 1e-11; rounding to 16 bits alone can give
1e-3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """What is compared."""

    arms: tuple[Arm, ...]
    folder: ModelFolder
    workload: Workload
    settings: Mapping[str, Any]
    """Of `LLM`, equal for all."""
    rounds: int
    max_kl: float | None
    """An arm whose mean divergence from the baseline is above is wrong; None is `MAX_KL` of the compute dtype."""
    command: str
    """What the user called."""


def refuse_environments(arms: Sequence[Arm]) -> None:
    """Whole engines run in this process."""
    for arm in arms:
        if not arm.here:
            raise InvalidInput("arms", f"{arm.label!r}: with --engine all arms run in this environment")


def compare_engines(
    plan: EnginePlan, problems: Sequence[str], cpu: Device, guard: Guard, on_turn: Callable[[], object]
) -> AbReport:
    """Run `plan`. `problems` is what the conformance kit has against each arm; such an arm is not run."""
    start = perf_counter()
    engines = {
        arm.label: EngineArm(arm.label, plan.workload, guard, on_turn)
        for arm, problem in zip(plan.arms, problems, strict=True)
        if not problem
    }
    try:
        for arm in plan.arms:
            if arm.label in engines:
                engines[arm.label].load(_maker(plan, arm))
                engines[arm.label].run_uncounted(1)
        ready = {name: engine for name, engine in engines.items() if not engine.failure}
        paces = dict.fromkeys(ready, Pace(calls=1, rounds=plan.rounds, warm=False))
        samples = interleave(ready, paces, LoadMeter(), LEAST)
        reports = tuple(
            _about(arm, engines.get(arm.label), problem) for arm, problem in zip(plan.arms, problems, strict=True)
        )
        numerics = _numerics(plan.arms[0].label, ready)
        kernel_times = {name: _kernel_milliseconds(engine) for name, engine in ready.items()}
        dtype = next((engine.dtype for engine in ready.values()), "float32")
        allowed = MAX_KL[dtype] if plan.max_kl is None else plan.max_kl
    finally:
        for engine in engines.values():
            engine.close()
    reports = tuple(_judged(report, numerics.get(report.label, {}), allowed) for report in reports)
    turns = {name: [engine.turns[r] for r in sorted(samples.seconds[name])] for name, engine in ready.items()}
    lines = (*(_line(plan, metric, turns, samples) for metric in SHOWN), _kernel_line(plan, kernel_times))
    return AbReport(
        level="engine",
        command=plan.command,
        machine=describe(cpu),
        seconds=perf_counter() - start,
        rounds=plan.rounds,
        arms=reports,
        lines=lines,
        comparisons=tuple(_comparison(report, reports[0], lines) for report in reports[1:]),
        numerics=numerics,
        notes=notes_on(lines[:1], 0 if samples.kept_disturbed else len(samples.disturbed)),
    )


def _maker(plan: EnginePlan, arm: Arm) -> Callable[[], LLM]:
    return lambda: LLM(
        plan.folder.path, attention_backend=arm.backend, attention_backend_config=arm.config, **plan.settings
    )


def _about(arm: Arm, engine: EngineArm | None, problem: str) -> ArmReport:
    import torch

    choices = list(engine.llm.attention.choices.values()) if engine is not None and engine.llm is not None else []
    failure = f"failed: {engine.failure}" if engine is not None and engine.failure else ""
    return ArmReport(
        label=arm.label,
        backend=arm.backend,
        options=dict(arm.options),
        python=arm.python,
        package=choices[0].distribution if choices else "",
        torch=torch.__version__,
        source_hash=source_hash(choices[0].cls) if choices else "",
        problems=tuple(filter(None, (problem, failure))),
    )


def _numerics(baseline: str, engines: Mapping[str, EngineArm]) -> dict[str, dict[str, float]]:
    """What each arm's answers and distributions are like beside the baseline's, which are taken for given."""
    if baseline not in engines or not engines[baseline].turns:
        return {}
    first = engines[baseline]
    sequences = [
        (*request.token_ids, *answer) for request, answer in zip(first.requests, first.turns[0].token_ids, strict=True)
    ][:SCORED]
    assert first.llm is not None  # it has had turns
    scores = score(first.llm, sequences)
    found: dict[str, dict[str, float]] = {}
    for name, engine in engines.items():
        if name == baseline or engine.llm is None or not engine.turns:
            continue
        apart = divergences(scores, score(engine.llm, sequences))
        found[name] = {
            "token agreement": agreement(first.turns[0], engine.turns[0]),
            "mean KL": mean(apart),
            "largest KL": max(apart),
        }
        place = first_difference(first.turns[0].token_ids, engine.turns[0].token_ids)
        if place is not None:
            found[name]["first divergence, token"] = float(place)
    return found


def _kernel_milliseconds(engine: EngineArm) -> float:
    """What all layers' attention takes in one turn, taken down span by span; the turn does not count."""
    with recording(Recorder()) as recorder:
        engine.run_uncounted(1)
    return 1e3 * recorder.totals().get("attention", 0.0)


def _kernel_line(plan: EnginePlan, times: Mapping[str, float]) -> Line:
    """Beside the others, without a verdict: it is measured once."""
    name = f"{plan.folder.name} {plan.workload.name}"
    return Line(name=name, metric="attention_time", unit="ms a turn", values={n: t for n, t in times.items() if t})


def _judged(report: ArmReport, numerics: Mapping[str, float], max_kl: float) -> ArmReport:
    if numerics.get("mean KL", 0.0) <= max_kl:
        return report
    problem = (
        f"wrong: the distributions of the next token are {numerics['mean KL']:.3g} nats from the baseline's in the "
        f"mean, allowed are {max_kl:g}"
    )
    return replace(report, problems=(*report.problems, problem))


def _line(plan: EnginePlan, metric: str, turns: Mapping[str, Sequence[Turn]], samples: Samples) -> Line:
    kind, baseline = METRICS[metric], plan.arms[0].label
    values = {
        name: tuple(turn.metrics[metric] for turn in own)
        for name, own in turns.items()
        if own and metric in own[0].metrics
    }
    base = values.get(baseline, ())
    return Line(
        name=f"{plan.folder.name} {plan.workload.name}",
        metric=metric,
        unit=kind.unit,
        better=kind.better,
        values={name: median(own) for name, own in values.items()},
        samples=values,
        ratios={
            name: paired_ratio([own], [base]) if kind.better == "higher" else paired_ratio([base], [own])
            for name, own in values.items()
            if base and name != baseline
        },
        drift=drift([1 / x for x in base] if kind.better == "higher" else base) if base else 1.0,
        other_load=samples.other_load,
    )


def _comparison(arm: ArmReport, baseline: ArmReport, lines: Sequence[Line]) -> Comparison:
    if blocked := numerics_first(arm, baseline):
        return blocked
    ratio: Ratio | None = next((line.ratios.get(arm.label) for line in lines if line.metric == DECISIVE), None)
    if ratio is None:
        return not_compared(arm, "there are no rounds in which both had their turn")
    return Comparison(arm=arm.label, verdict=ratio.word, ratio=ratio)
