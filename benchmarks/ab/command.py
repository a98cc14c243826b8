"""`headstock ab`: the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from ...core.errors import InvalidInput
from ...entrypoints.cli import options
from ...entrypoints.cli.console import check_writable
from ...entrypoints.cli.groups import grouped
from ..output import OUTPUT, ResultOptions

if TYPE_CHECKING:
    from ..kernels.run import Settings
    from ..kernels.shapes import Shape
    from .arms import Arm
    from .report import AbReport

EXIT_GATE = 1
MOST_RECORDED = 8
"""Batches of a recording that are measured, spread evenly over it."""
KERNEL, ENGINE, VERDICT = "Kernels", "Whole engines", "Verdict"


@dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """What kernels are measured on."""

    shapes: Annotated[
        str | None,
        Option(help="Labels such as decode:9/3/64:16x4k, or patterns such as 'decode:9/*'.", metavar="SHAPES",
               rich_help_panel=KERNEL),
    ] = None  # fmt: skip
    model: Annotated[
        str | None, Option(help="The layers of this model in place of the usual ones.", rich_help_panel=KERNEL)
    ] = None
    trace: Annotated[
        str | None,
        Option(help="Batches of this recording, from --record-attention, in place of the usual shapes.",
               metavar="FILE", rich_help_panel=KERNEL),
    ] = None  # fmt: skip
    phase: Annotated[str, Option(help="decode, prefill, chunk or all.", rich_help_panel=KERNEL)] = "all"
    dtype: Annotated[str, Option(help="Of queries, keys and values; commas between.", rich_help_panel=KERNEL)] = (
        "float32"
    )
    threads: Annotated[int, Option(min=1, help="Threads of each arm.", rich_help_panel=KERNEL)] = 1
    block_size: Annotated[
        int, Option(min=1, help="Tokens a KV block, where an arm takes it.", rich_help_panel=KERNEL)
    ] = 16

    def settings(self, rounds: int) -> Settings:
        """Raises `InvalidInput` naming the option that is wrong."""
        from ...core.attention import DTYPE_FORMATS
        from ..kernels.run import Settings
        from ..kernels.shapes import choose, default_grid, quick_grid
        from .kernel_level import UNBOUNDED
        from .verdicts import LEAST

        dtypes = tuple(dict.fromkeys(word.strip() for word in self.dtype.split(",")))
        for name in dtypes:
            if name not in DTYPE_FORMATS:
                raise InvalidInput("dtype", f"{name!r} is not one of {', '.join(DTYPE_FORMATS)}")
        if self.threads > (os.cpu_count() or 1):
            raise InvalidInput("threads", f"must be at most {os.cpu_count()}, the CPUs there are, not {self.threads}")
        given = [name for name in ("shapes", "model", "trace") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInput(given[-1], f"chooses the shapes, as --{given[0]} does; give one of them")
        if self.model is not None:
            grid = _shapes_of(self.model)
        elif self.trace is not None:
            grid = _recorded(self.trace)
        else:
            grid = default_grid() if self.shapes else quick_grid()
        return Settings(
            shapes=choose(self.shapes, self.phase, grid),
            dtypes=dtypes,
            threads=(self.threads,),
            rounds=rounds,
            budget=UNBOUNDED,
            block_size=self.block_size,
            least_rounds=LEAST,
            overheads=False,
        )


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """What whole engines are measured on."""

    engine: Annotated[
        str | None,
        Option(help="Run this whole model under every arm, not kernels alone.", metavar="MODEL",
               rich_help_panel=ENGINE),
    ] = None  # fmt: skip
    num_prompts: Annotated[int, Option(min=1, help="Requests of a turn, all at once.", rich_help_panel=ENGINE)] = 8
    input_len: Annotated[int, Option(min=1, help="Tokens a random prompt.", rich_help_panel=ENGINE)] = 128
    output_len: Annotated[int, Option(min=1, help="Tokens an answer.", rich_help_panel=ENGINE)] = 32
    dataset: Annotated[
        str | None,
        Option(help="Prompts from a file in ShareGPT's format.", metavar="FILE", rich_help_panel=ENGINE),
    ] = None
    engine_dtype: Annotated[
        str, Option(help="Compute dtype of the model, or auto.", metavar="DTYPE", rich_help_panel=ENGINE)
    ] = "auto"
    max_kl: Annotated[
        float | None,
        Option(
            help="Nats that next-token distributions may be apart in the mean (1e-4; 1e-2 in 16 bits).",
            rich_help_panel=ENGINE,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class VerdictOptions:
    """How it is judged."""

    rounds: Annotated[
        int | None, Option(min=6, help="Pairs of measurements (30; 16 with --engine).", rich_help_panel=VERDICT)
    ] = None
    no_check: Annotated[
        bool,
        Option("--no-check", help="Leave out the conformance kit, which judges every arm first, some 10 s each.",
               rich_help_panel=VERDICT),
    ] = False  # fmt: skip
    fail_if_slower: Annotated[
        float | None,
        Option(help="Exit code 1 if an arm is shown to be slower than this share of the baseline.", metavar="SHARE",
               rich_help_panel=VERDICT),
    ] = None  # fmt: skip
    fail_if_wrong: Annotated[
        bool, Option("--fail-if-wrong", help="Exit code 1 if an arm is wrong.", rich_help_panel=VERDICT)
    ] = False

    def check(self) -> None:
        """Raises `InvalidInput` naming the option that is wrong."""
        share = self.fail_if_slower
        if share is not None and not 0 < share < 10:
            raise InvalidInput("fail_if_slower", f"must be a share of the baseline's speed such as 0.98, not {share:g}")

    def closed(self, report: AbReport) -> bool:
        """Whether a gate has."""
        slow = self.fail_if_slower is not None and bool(report.slower_than(self.fail_if_slower))
        return slow or (self.fail_if_wrong and bool(report.wrong))


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ResultOptions):
    """The same, for a program and for a browser."""

    html: Annotated[
        str | None,
        Option(help="Also write one HTML file that needs no network.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None
    json: Annotated[bool, Option("--json", help="Print one JSON document to stdout.", rich_help_panel=OUTPUT)] = False

    def check(self) -> None:
        """Raise `InvalidInput` before minutes of work whose result could not be written."""
        check_writable("html", self.html)


@grouped
def ab(
    arms: Annotated[
        list[str], Argument(metavar="ARM...", help="NAME[{options}][+op=pkg:fn][@ENV], the baseline first.")
    ],
    kernel: KernelOptions,
    workload: WorkloadOptions,
    verdict: VerdictOptions,
    output: ReportOptions,
    verbose: options.Verbose = False,
) -> None:
    """Hold kernels against each other, and say what the measurements carry.

    An ARM is a backend, with options in JSON where wanted, in this environment
    or in that of another Python: cpu, 'cpu{}', 'triton{"num_warps": 8}',
    fast@/venvs/new; +op=pkg:fn puts a function in the place of one AITER op.
    The first is the baseline.

    Numerics come first: an arm that breaks a convention, or whose output is
    wrong, gets no verdict on speed.

    Exit codes: 0 compared; 1 a gate of --fail-if-* has closed; 2 refused.
    """
    from ...entrypoints.cli.console import show_log

    show_log(verbose)
    from ..results.saving import keep, stored
    from .arms import read_arms
    from .showing import show

    verdict.check()
    output.check()
    wanted = read_arms(arms)
    store = stored(output.save)
    report = _kernels(wanted, kernel, verdict) if workload.engine is None else _engines(wanted, workload, verdict)
    show(report, html=output.html, markdown=output.markdown, json=output.json)
    keep(store, report.to_dict())
    if verdict.closed(report):
        raise Exit(EXIT_GATE)


def _shapes_of(model: str) -> tuple[Shape, ...]:
    """The usual small shapes for each kind of layer that the model has."""
    from ...core.model import read_config, resolve_model
    from ..kernels.shapes import model_grid

    config = read_config(resolve_model(model, weights=False).path)
    return model_grid(config.attention_specs(config.dtype).values())


def _recorded(trace: str) -> tuple[Shape, ...]:
    """Some of a recording's batches."""
    from ...core.live import read_recording
    from ..replay.shapes import recorded_shapes

    found = recorded_shapes(read_recording(trace), MOST_RECORDED)
    if not found:
        raise InvalidInput("trace", f"{trace} holds no step with a KV cache")
    return tuple(found)


def _kernels(arms: Sequence[Arm], kernel: KernelOptions, verdict: VerdictOptions) -> AbReport:
    from ...entrypoints.compose import installed_plugins
    from ...selector import Selector, find_device
    from ..progress import progress
    from .kernel_level import compare_kernels
    from .verdicts import ROUNDS

    settings = kernel.settings(verdict.rounds or ROUNDS)
    plugins = installed_plugins()
    judge = Selector(plugins).judge(find_device("cpu", plugins.hooks))
    checks = 0 if verdict.no_check else len(arms)
    with progress("starting the arms", len(settings.tasks()) + checks) as bar:
        return compare_kernels(arms, settings, judge, plugins.guard, bar, check=bool(checks))


def _engines(arms: Sequence[Arm], workload: WorkloadOptions, verdict: VerdictOptions) -> AbReport:
    from ...core.model import read_config, resolve_model
    from ...core.text import Tokenizer
    from ...entrypoints.compose import installed_plugins
    from ...selector import find_device
    from ..engine.workload import Lengths, random_workload, sharegpt_workload
    from ..progress import progress
    from .engine_level import ROUNDS, EnginePlan, compare_engines, refuse_environments
    from .kernel_level import check_arm

    refuse_environments(arms)
    plugins = installed_plugins()
    for arm in arms:
        plugins.backends.find(arm.backend)  # a name that nobody offers is told of before weights are read
    assert workload.engine is not None  # the caller has looked
    folder = resolve_model(workload.engine)
    config, tokenizer = read_config(folder.path), Tokenizer.from_folder(folder.path)
    limit = config.max_position
    if workload.dataset is not None:
        asked = sharegpt_workload(
            workload.dataset,
            workload.num_prompts,
            tokenizer=tokenizer,
            output_len=workload.output_len,
            limit=limit,
            seed=0,
        )
    else:
        lengths = Lengths(input_len=workload.input_len, output_len=workload.output_len)
        lengths.check(limit)
        asked = random_workload(
            lengths, workload.num_prompts, tokenizer=tokenizer, vocab_size=config.vocab_size, seed=0
        )
    plan = EnginePlan(
        arms=tuple(arms),
        folder=folder,
        workload=asked,
        settings={"dtype": workload.engine_dtype},
        rounds=verdict.rounds or ROUNDS,
        max_kl=workload.max_kl,
    )
    checks = 0 if verdict.no_check else len(arms)
    with progress("starting the arms", len(arms) * (plan.rounds + 2) + checks) as bar:
        problems = [bar.during(f"checking {arm.label}", lambda a=arm: check_arm(a)) if checks else "" for arm in arms]
        bar.say("measuring")
        return compare_engines(plan, problems, find_device("cpu", plugins.hooks), plugins.guard, bar.advance)
