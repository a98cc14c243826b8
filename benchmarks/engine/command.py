"""The command lines of `headstock bench throughput` and `headstock bench latency`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from ...core.errors import InvalidInput
from ...entrypoints.cli import options
from ...entrypoints.cli.console import check_writable
from ...entrypoints.cli.groups import grouped
from ...entrypoints.cli.profile import profiled, write_profile
from ..output import OUTPUT, OutputOptions, write_document

if TYPE_CHECKING:
    from ...core.model import ModelFolder
    from ...core.text import Tokenizer
    from ...entrypoints.llm import LLM
    from .report import Report
    from .workload import Workload

EXIT_FAILED = 1
MOST = 100_000
"""Requests in a workload: their prompts are made before anything is measured."""
MEASURING = "Measuring"


@dataclass(frozen=True, kw_only=True)
class ArmOptions:
    """Which engines are measured side by side."""

    backends: Annotated[
        str,
        Option(help="Attention backends, commas between: an engine each, measured in turns.", metavar="NAMES",
               rich_help_panel=options.CHOICE),
    ] = "auto"  # fmt: skip
    attention_backend_config: Annotated[
        str | None,
        Option(help="Options of backends, an object by name.", metavar="JSON|FILE", rich_help_panel=options.CHOICE),
    ] = None
    aiter_ops: options.AiterOps = None

    def names(self) -> list[str]:
        """Raises `InvalidInput` where one is empty or there twice."""
        from ...plugins.names import key

        names = [name.strip() for name in self.backends.split(",")]
        if not all(names):
            raise InvalidInput("backends", f"{self.backends!r} has an empty name")
        if len({key(name) for name in names}) < len(names):
            raise InvalidInput("backends", f"{self.backends!r} names one twice")
        return names


@dataclass(frozen=True, kw_only=True)
class EngineOutputOptions(OutputOptions):
    """The same, and where the time went."""

    profile: Annotated[
        str | None,
        Option(
            help="Write where each step's time went in one more turn, as a Chrome trace.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None

    def check(self) -> None:
        """Raise `InvalidInput` before minutes of work whose result could not be written."""
        check_writable("profile", self.profile)
        super().check()


Rounds = Annotated[int, Option(min=1, help="Turns of each engine that count.", rich_help_panel=MEASURING)]
Warmup = Annotated[int, Option(min=0, help="Turns of each engine before those.", rich_help_panel=MEASURING)]


@grouped
def throughput(
    model: options.Model,
    arms: ArmOptions,
    engine: options.EngineOptions,
    output: EngineOutputOptions,
    num_prompts: Annotated[int, Option(min=1, max=MOST, help="Requests, all at once.", rich_help_panel=MEASURING)] = 32,
    input_len: Annotated[int, Option(min=1, help="Tokens a random prompt.", rich_help_panel=MEASURING)] = 128,
    output_len: Annotated[
        int | None, Option(min=1, help="Tokens an answer (32, or as in the dataset).", rich_help_panel=MEASURING)
    ] = None,
    range_ratio: Annotated[
        float, Option(help="Random lengths vary by this share, up and down.", rich_help_panel=MEASURING)
    ] = 0.0,
    prefix_len: Annotated[
        int, Option(min=0, help="Tokens that all random prompts begin with.", rich_help_panel=MEASURING)
    ] = 0,
    dataset: Annotated[
        str | None,
        Option(help="Prompts and lengths from a file in ShareGPT's format.", metavar="FILE", rich_help_panel=MEASURING),
    ] = None,
    rounds: Rounds = 3,
    warmup: Warmup = 1,
    verbose: options.Verbose = False,
) -> None:
    """Measure how many tokens a second MODEL gives where many requests wait.

    All requests arrive at once. Each turn begins with an empty prefix cache, and
    every answer's length is checked before its time counts. Several backends
    take turns, in an order that favours nobody.

    Exit codes: 0 measured; 1 an engine failed or gave a wrong number of tokens; 2 refused.
    """
    from .workload import Lengths, random_workload, sharegpt_workload

    def workload(tokenizer: Tokenizer, vocab_size: int, limit: int) -> Workload:
        if dataset is not None:
            return sharegpt_workload(
                dataset, num_prompts, tokenizer=tokenizer, output_len=output_len, limit=limit, seed=engine.seed
            )
        lengths = Lengths(
            input_len=input_len, output_len=output_len or 32, range_ratio=range_ratio, prefix_len=prefix_len
        )
        lengths.check(limit)
        return random_workload(lengths, num_prompts, tokenizer=tokenizer, vocab_size=vocab_size, seed=engine.seed)

    _run("throughput", model, workload, arms, engine, output, rounds=rounds, warmup=warmup, verbose=verbose)


@grouped
def latency(
    model: options.Model,
    arms: ArmOptions,
    engine: options.EngineOptions,
    output: EngineOutputOptions,
    batch_size: Annotated[int, Option(min=1, max=MOST, help="Requests at once.", rich_help_panel=MEASURING)] = 1,
    input_len: Annotated[int, Option(min=1, help="Tokens a prompt, at random.", rich_help_panel=MEASURING)] = 128,
    output_len: Annotated[int, Option(min=1, help="Tokens an answer.", rich_help_panel=MEASURING)] = 32,
    rounds: Rounds = 7,
    warmup: Warmup = 1,
    verbose: options.Verbose = False,
) -> None:
    """Measure how long MODEL takes for one batch of equal requests.

    Each turn begins with an empty prefix cache, and every answer's length is
    checked before its time counts. Several backends take turns, in an order that
    favours nobody.

    Exit codes: 0 measured; 1 an engine failed or gave a wrong number of tokens; 2 refused.
    """
    from .workload import Lengths, random_workload

    def workload(tokenizer: Tokenizer, vocab_size: int, limit: int) -> Workload:
        lengths = Lengths(input_len=input_len, output_len=output_len)
        lengths.check(limit)
        return random_workload(lengths, batch_size, tokenizer=tokenizer, vocab_size=vocab_size, seed=engine.seed)

    _run("latency", model, workload, arms, engine, output, rounds=rounds, warmup=warmup, verbose=verbose)


def _run(
    kind: str,
    model: str,
    workload: Callable[[Tokenizer, int, int], Workload],
    arms: ArmOptions,
    engine: options.EngineOptions,
    output: EngineOutputOptions,
    *,
    rounds: int,
    warmup: int,
    verbose: bool,
) -> None:
    from ...entrypoints.cli.console import note, show_log

    show_log(verbose)
    names, settings = arms.names(), engine.settings()
    output.check()
    from ...core.model import describe_model, resolve_model
    from ...core.text import Tokenizer
    from ...entrypoints.compose import installed_plugins
    from ...selector import find_device
    from ..progress import progress
    from ..results.saving import keep, stored
    from .run import Plan, measure

    plugins = installed_plugins()
    for name in names:
        if name != "auto":
            plugins.backends.find(name)  # a name that nobody offers is told of before weights are read
    folder = resolve_model(model)
    config = describe_model(folder.path, settings["model_impl"])
    limit = settings["max_model_len"] or config.max_position
    asked = workload(Tokenizer.from_folder(folder.path), config.vocab_size, limit)
    store = stored(output.save)
    makers = {name: _maker(folder, name, arms, settings) for name in names}
    profile = profiled if output.profile else None
    plan = Plan(kind=kind, model=model, workload=asked, makers=makers, rounds=rounds, warmup=warmup, profile=profile)
    device = find_device(hooks=plugins.hooks)
    with progress("turns", plan.turns) as bar:
        report, recorders = measure(plan, find_device("cpu", plugins.hooks), device, plugins.guard, bar.advance)
    _show(report, output)
    if output.profile:
        for line in write_profile(output.profile, recorders):
            note(line)
    keep(store, report.to_dict())
    if report.failures:
        raise Exit(EXIT_FAILED)


def _maker(folder: ModelFolder, name: str, arms: ArmOptions, settings: dict[str, Any]) -> Callable[[], LLM]:
    from ...entrypoints.llm import LLM

    wishes = {"attention_backend_config": arms.attention_backend_config, "aiter_ops": arms.aiter_ops}
    return lambda: LLM(folder.path, attention_backend=name, **wishes, **settings)


def _show(report: Report, output: EngineOutputOptions) -> None:
    from ...entrypoints.cli.console import print_table
    from .tables import heading, markdown, remarks, table

    if write_document(output.json, report.to_dict()):
        return
    if output.markdown:
        print(markdown(report), end="")
        return
    print("\n".join(heading(report)), end="\n\n")
    print_table(*table(report))
    for line in remarks(report):
        print(line)
