"""Whole engines against each other: one model under every arm's backend, the same requests, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import mean, median
from time import perf_counter
from typing import Any

from ...core.attention import Device
from ...core.model import ModelFolder
from ..engine.arm import Turn, agreement
from ..engine.metrics import METRICS
from ..engine.workload import Workload
from ..interleave import Pace, Samples, interleave
from ..load import LoadMeter
from ..machine import describe
from ..progress import Bar
from .arms import Arm
from .kernel_level import check_arm
from .lines import not_compared, notes_on, numerics_first
from .numerics import SCORED, answer_divergences, divergences, first_difference
from .remote_engine import Memory, RemoteEngine
from .report import AbReport, ArmReport, Comparison, Line
from .verdicts import LEAST, Ratio, drift, paired_ratio

SHOWN = ("output_throughput", "ttft_median", "tpot_median", "itl_p99")
DECISIVE = "output_throughput"
"""The metric that the verdict is about."""
ANSWER_SECONDS = 3600.0
"""For loading or one turn, by default."""
ROUNDS = 16
"""By default: a turn of a whole engine takes seconds, and is steadier than a call."""
CUT_SHORT = "it was interrupted before the answers were held against each other"
MAX_KL = {"float64": 1e-4, "float32": 1e-4, "bfloat16": 1e-2, "float16": 1e-2}
"""Nats by compute dtype. Between right kernels in float32 the mean is some 1e-11; rounding to 16 bits alone can give
1e-3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """What is compared."""

    arms: tuple[Arm, ...]
    folder: ModelFolder
    device: Device
    """Where `LLM` runs it."""
    workload: Workload
    settings: Mapping[str, Any]
    """Of `LLM`, equal for all."""
    rounds: int
    max_kl: float | None
    """An arm whose mean divergence from the baseline is above is wrong; None is `MAX_KL` of the compute dtype."""
    command: str
    """What the user called."""
    seconds: float
    """That an arm has for loading, or for a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the arms gave."""

    engines: Mapping[str, RemoteEngine]
    """All of them; they have ended."""
    problems: Mapping[str, str]
    """What the conformance kit has against an arm; such an arm has no turns."""
    ready: tuple[str, ...]
    """Those that had turns."""
    samples: Samples
    interrupted: bool
    """By the user: what comes after the rounds is empty."""
    memory: Mapping[str, Memory | None]
    numerics: Mapping[str, Mapping[str, float]]
    attention: Mapping[str, float]
    """Milliseconds a turn."""


def compare_engines(plan: EnginePlan, cpu: Device, bar: Bar, *, check: bool) -> AbReport:
    """Start, check, measure, judge; every arm in a process of its own. An interrupt ends it early: what is whole by
    then is shown, without a verdict, as numerics come last.

    Raises `BackendError` naming the arm that cannot take part, before anything is checked.
    """
    start = perf_counter()
    found = _measure(plan, bar, check=check)
    engines, samples = found.engines, found.samples
    dtype = next((engines[name].about["dtype"] for name in found.ready), "float32")
    allowed = MAX_KL[dtype] if plan.max_kl is None else plan.max_kl
    reports = tuple(
        _judged(_about(engine, found.problems[name]), found.numerics.get(name, {}), allowed)
        for name, engine in engines.items()
    )
    turns = {
        name: [engines[name].turns[r] for r in sorted(samples.seconds[name]) if r < len(engines[name].turns)]
        for name in found.ready
    }
    lines = (
        *(_line(plan, metric, turns, samples) for metric in SHOWN),
        _once(plan, "attention_time", "ms a turn", found.attention),
        *_memory_lines(plan, found.memory),
    )
    return AbReport(
        level="engine",
        command=plan.command,
        machine=describe(cpu, measured=plan.device),
        seconds=perf_counter() - start,
        rounds=plan.rounds,
        arms=reports,
        lines=lines,
        comparisons=tuple(
            not_compared(report, CUT_SHORT) if found.interrupted else _comparison(report, reports[0], lines)
            for report in reports[1:]
        ),
        numerics=found.numerics,
        interrupted=found.interrupted,
        notes=notes_on(lines[:1], 0 if samples.kept_disturbed else len(samples.disturbed)),
    )


def _measure(plan: EnginePlan, bar: Bar, *, check: bool) -> Measured:
    with ExitStack() as stack:
        engines: dict[str, RemoteEngine] = {}
        for arm in plan.arms:
            bar.say(f"loading {arm.label}")
            engines[arm.label] = RemoteEngine(arm, plan.workload, bar.advance, plan.seconds)
            stack.callback(engines[arm.label].close)
            engines[arm.label].load(str(plan.folder.path), plan.settings)
        problems = {
            arm.label: bar.during(f"checking {arm.label}", lambda a=arm: check_arm(a, plan.device)) if check else ""
            for arm in plan.arms
        }
        bar.say("measuring")
        sound = [engine for name, engine in engines.items() if not problems[name]]
        for engine in sound:
            engine.warm_up()
        ready = {engine.arm.label: engine for engine in sound if not engine.failure}
        samples, interrupted = _rounds(ready, plan.rounds)
        asked = {} if interrupted else ready
        return Measured(
            engines=engines,
            problems=problems,
            ready=tuple(ready),
            samples=samples,
            interrupted=interrupted,
            memory={name: engine.memory() for name, engine in asked.items()},
            numerics=_numerics(plan.arms[0].label, asked),
            attention={name: engine.attention_milliseconds() for name, engine in asked.items()},
        )


def _rounds(ready: Mapping[str, RemoteEngine], rounds: int) -> tuple[Samples, bool]:
    """What they gave, and whether the user ended them early; raises `KeyboardInterrupt` where none is whole by then."""
    paces = dict.fromkeys(ready, Pace(calls=1, rounds=rounds, warm=False))
    try:
        return interleave(ready, paces, LoadMeter(engine.pid for engine in ready.values()), LEAST), False
    except KeyboardInterrupt:
        whole = min((len(engine.turns) for engine in ready.values()), default=0)
        if not whole:
            raise
    samples = Samples(
        seconds={name: {r: engine.turns[r].elapsed for r in range(whole)} for name, engine in ready.items()},
        rounds=whole,
        disturbed=frozenset(),
        kept_disturbed=False,
        other_load=None,
    )
    return samples, True


def _about(engine: RemoteEngine, problem: str) -> ArmReport:
    arm, about = engine.arm, engine.about
    failure = f"failed: {engine.failure}" if engine.failure else ""
    return ArmReport(
        label=arm.label,
        backend=arm.backend,
        options=dict(arm.options),
        python=arm.python,
        package=about.get("package", ""),
        torch=engine.torch,
        source_hash=about.get("source_hash", ""),
        problems=tuple(filter(None, (problem, failure))),
    )


def _numerics(baseline: str, engines: Mapping[str, RemoteEngine]) -> dict[str, dict[str, float]]:
    """What each arm's answers and distributions are like beside the baseline's, which are taken for given."""
    if baseline not in engines or not engines[baseline].turns:
        return {}
    first = engines[baseline]
    own = first.turns[0]
    prompts = [request.token_ids for request in first.workload.requests]
    sequences = [(*prompt, *answer) for prompt, answer in zip(prompts, own.token_ids, strict=True)][:SCORED]
    scores = first.score(sequences)
    asked = prompts[:SCORED], [len(answer) for answer in own.token_ids[:SCORED]]
    answers = first.answers(*asked)
    found: dict[str, dict[str, float]] = {}
    for name, engine in engines.items():
        if name == baseline or not engine.turns or not (scores and answers):
            continue
        given, drawn = engine.score(sequences), engine.answers(*asked)
        if not (given and drawn):
            continue
        apart, decoding = divergences(scores, given), answer_divergences(answers, drawn)
        found[name] = {
            "token agreement": agreement(own, engine.turns[0]),
            "mean KL": mean(apart),
            "largest KL": max(apart),
            "mean KL, decoding": mean(decoding),
        }
        place = first_difference(own.token_ids, engine.turns[0].token_ids)
        if place is not None:
            found[name]["first divergence, token"] = float(place)
    return found


def _memory_lines(plan: EnginePlan, memory: Mapping[str, Memory | None]) -> Iterator[Line]:
    found = {name: one for name, one in memory.items() if one is not None}
    yield _once(plan, "peak_memory", "MiB", {name: one.process / 2**20 for name, one in found.items()})
    if any(one.device for one in found.values()):
        on_card = {name: (one.device or 0) / 2**20 for name, one in found.items()}
        yield _once(plan, "peak_device_memory", "MiB", on_card)


def _once(plan: EnginePlan, metric: str, unit: str, values: Mapping[str, float]) -> Line:
    """Beside the others, without a verdict: it is measured once."""
    name = f"{plan.folder.name} {plan.workload.name}"
    return Line(name=name, metric=metric, unit=unit, values={n: value for n, value in values.items() if value})


def _judged(report: ArmReport, numerics: Mapping[str, float], max_kl: float) -> ArmReport:
    problems = tuple(
        f"wrong: the distributions of the next token are {numerics[name]:.3g} nats from the baseline's in the "
        f"mean{where}, allowed are {max_kl:g}"
        for name, where in (("mean KL", ""), ("mean KL, decoding", " while decoding"))
        if numerics.get(name, 0.0) > max_kl
    )
    return replace(report, problems=(*report.problems, *problems))


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
            name: paired_ratio(
                *(([own], [base]) if kind.better == "higher" else ([base], [own])), disturbed=samples.kept_disturbed
            )
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
