"""What `headstock ab` can be asked for, in groups of options."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ...core.errors import InvalidInput
from ...entrypoints.cli.console import check_writable
from ..output import LONGEST_BLOCK, OUTPUT, ResultOptions

if TYPE_CHECKING:
    from ...core.attention import Device
    from ..kernels.run import Settings
    from ..kernels.shapes import Shape
    from .cluster import Request
    from .report import AbReport

MOST_RECORDED = 8
"""Batches of a recording that are measured, spread evenly over it."""
KERNEL, ENGINE, VERDICT, CLUSTER = "Kernels", "Whole engines", "Verdict", "Many machines"


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
    dtype: Annotated[
        str | None,
        Option(help="Of queries, keys and values; commas between (float32; bfloat16 on a card).",
               rich_help_panel=KERNEL),
    ] = None  # fmt: skip
    device: Annotated[
        str | None, Option(help="Where: cpu, cuda:0, rocm:0 (the best device here).", rich_help_panel=KERNEL)
    ] = None
    threads: Annotated[int, Option(min=1, help="Threads of each arm.", rich_help_panel=KERNEL)] = 1
    block_size: Annotated[
        int, Option(min=1, max=LONGEST_BLOCK, help="Tokens a KV block, where an arm takes it.", rich_help_panel=KERNEL)
    ] = 16

    def settings(self, rounds: int, device: Device) -> Settings:
        """Raises `InvalidInput` naming the option that is wrong."""
        from ..kernels.run import Settings
        from ..kernels.shapes import choose, choose_dtypes, default_grid, quick_grid
        from .kernel_level import UNBOUNDED
        from .verdicts import LEAST

        asked = self.dtype if self.dtype is not None else "float32" if device.platform == "cpu" else "bfloat16"
        dtypes = choose_dtypes(asked)
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
            paired=True,
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

    def check(self) -> None:
        """Raises `InvalidInput` naming the option that is wrong, or that means nothing without ``--engine``."""
        if self.engine is None and (given := changed(self)):
            raise InvalidInput(given[0], "is for whole engines; add --engine MODEL")
        if self.max_kl is not None and not 0 <= self.max_kl < 1e6:
            raise InvalidInput("max_kl", f"must be a number of nats from 0, not {self.max_kl:g}")


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
    time_limit: Annotated[
        float | None,
        Option(min=1, help="For an arm's answer, a start or a turn; who takes longer has failed (600; 3600).",
               metavar="SECONDS", rich_help_panel=VERDICT),
    ] = None  # fmt: skip
    fail_if_slower: Annotated[
        float | None,
        Option(help="Exit code 1 if an arm is shown to be slower than this share of the baseline.", metavar="SHARE",
               rich_help_panel=VERDICT),
    ] = None  # fmt: skip
    fail_if_wrong: Annotated[
        bool,
        Option("--fail-if-wrong", help="Exit code 1 if an arm is wrong, or none of its outputs could be checked.",
               rich_help_panel=VERDICT),
    ] = False  # fmt: skip

    def check(self) -> None:
        """Raises `InvalidInput` naming the option that is wrong."""
        if self.time_limit is not None and not self.time_limit < 1e6:
            raise InvalidInput("time_limit", f"must be a number of seconds, not {self.time_limit:g}")
        share = self.fail_if_slower
        if share is not None and not 0 < share < 10:
            raise InvalidInput("fail_if_slower", f"must be a share of the baseline's speed such as 0.98, not {share:g}")

    def closed(self, report: AbReport) -> bool:
        """Whether a gate has."""
        slow = self.fail_if_slower is not None and bool(report.slower_than(self.fail_if_slower))
        return slow or (self.fail_if_wrong and bool(report.wrong or report.unchecked))


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
        if self.json and self.markdown:
            raise InvalidInput("markdown", "stdout takes one of --json and --markdown")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """On which machines it is compared."""

    ray: Annotated[
        bool,
        Option("--ray", help="Compare on a Ray cluster: a task a candidate, each with the baseline beside it.",
               rich_help_panel=CLUSTER),
    ] = False  # fmt: skip
    ray_address: Annotated[
        str | None,
        Option(help="Of the cluster; else RAY_ADDRESS, or a cluster of this machine alone.", metavar="ADDRESS",
               rich_help_panel=CLUSTER),
    ] = None  # fmt: skip
    ray_cpus: Annotated[
        float | None, Option(help="CPUs of a task (as many as --threads).", metavar="NUMBER", rich_help_panel=CLUSTER)
    ] = None
    ray_gpus: Annotated[
        float | None,
        Option(help="Cards of a task (0; 1 with --ray-accelerator).", metavar="NUMBER", rich_help_panel=CLUSTER),
    ] = None
    ray_accelerator: Annotated[
        list[str] | None,
        Option(help="Kind of card by Ray's name, as H100; repeated, all is compared on each.", metavar="NAME",
               rich_help_panel=CLUSTER),
    ] = None  # fmt: skip
    ray_resource: Annotated[
        list[str] | None,
        Option(help="Another resource of a task; may be repeated.", metavar="NAME=AMOUNT", rich_help_panel=CLUSTER),
    ] = None
    ray_every_node: Annotated[
        bool,
        Option("--ray-every-node", help="Compare on every machine that has what is asked for.",
               rich_help_panel=CLUSTER),
    ] = False  # fmt: skip

    def check(self) -> None:
        """Raises `InvalidInput` for an option that means nothing without another."""
        if not self.ray and (given := changed(self)):
            raise InvalidInput(given[0], "says where on a cluster; add --ray")

    def requests(self, threads: int) -> list[Request]:
        """What the tasks ask for, one for each kind of card. Raises `InvalidInput` naming the option that is wrong."""
        from .cluster import Request

        if "" in (self.ray_accelerator or ()):
            raise InvalidInput("ray_accelerator", "names no kind of card")
        kinds = list(dict.fromkeys(self.ray_accelerator or [None]))
        cards = self.ray_gpus if self.ray_gpus is not None else float(kinds != [None])
        resources = dict(map(_resource, self.ray_resource or ()))
        cpus = float(threads) if self.ray_cpus is None else self.ray_cpus
        return [Request(cpus=cpus, gpus=cards, accelerator=kind, resources=resources) for kind in kinds]


def changed(options: KernelOptions | WorkloadOptions | ClusterOptions) -> list[str]:
    """The names of options that are not at their defaults."""
    return [f.name for f in fields(options) if getattr(options, f.name) != f.default]


def _resource(word: str) -> tuple[str, float]:
    """``NAME=AMOUNT``."""
    name, _, amount = word.rpartition("=")
    try:
        if name in ("", "CPU", "GPU"):
            raise ValueError
        return name, float(amount)
    except ValueError:
        advice = {"CPU": "--ray-cpus says that", "GPU": "--ray-gpus says that"}.get(name, "write NAME=AMOUNT")
        raise InvalidInput("ray_resource", f"{word!r}: {advice}") from None


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
