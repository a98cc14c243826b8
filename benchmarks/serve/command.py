"""The command line of `headstock bench serve`."""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from ...core.errors import InvalidInput
from ...entrypoints.cli import options
from ...entrypoints.cli.extras import require_extra
from ...entrypoints.cli.groups import grouped
from ..engine.command import EXIT_FAILED, MEASURING
from ..output import OUTPUT, OutputOptions, write_document

if TYPE_CHECKING:
    from ...core.text import Tokenizer
    from ..engine.workload import Workload
    from .arrivals import Arrivals
    from .client import Ask, Target
    from .report import Report

SERVER, ARRIVALS, WORKLOAD = "Server", "Arrivals", "Workload"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Who is asked."""

    base_url: Annotated[str, Option(help="Of the server, without /v1.", metavar="URL", rich_help_panel=SERVER)] = (
        "http://127.0.0.1:8000"
    )
    served_model_name: Annotated[
        str | None,
        Option(help="What it calls the model (the first that it names).", metavar="NAME", rich_help_panel=SERVER),
    ] = None
    api_key: Annotated[
        str | None, Option(help="Its key; better in HEADSTOCK_API_KEY.", metavar="KEY", rich_help_panel=SERVER)
    ] = None
    chat: Annotated[bool, Option("--chat", help="Ask for chats, not completions.", rich_help_panel=SERVER)] = False
    no_ignore_eos: Annotated[
        bool,
        Option("--no-ignore-eos", help="Let answers end when they like; for servers that do not know ignore_eos.",
               rich_help_panel=SERVER),
    ] = False  # fmt: skip
    temperature: Annotated[float, Option(help="Of sampling.", rich_help_panel=SERVER)] = 0.0
    timeout: Annotated[float, Option(help="Seconds a request may take.", rich_help_panel=SERVER)] = 600.0


@dataclass(frozen=True, kw_only=True)
class ArrivalOptions:
    """When requests come."""

    request_rate: Annotated[
        float, Option(help="Requests a second; inf sends all at once.", rich_help_panel=ARRIVALS)
    ] = math.inf
    burstiness: Annotated[
        float, Option(help="1 is Poisson; below it requests come in bursts.", rich_help_panel=ARRIVALS)
    ] = 1.0
    max_concurrency: Annotated[
        int | None, Option(min=1, help="Requests under way at a time (no limit).", rich_help_panel=ARRIVALS)
    ] = None


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """What is asked."""

    num_prompts: Annotated[int, Option(min=1, help="Requests.", rich_help_panel=WORKLOAD)] = 100
    input_len: Annotated[int, Option(min=1, help="Tokens a random prompt.", rich_help_panel=WORKLOAD)] = 128
    output_len: Annotated[
        int | None, Option(min=1, help="Tokens an answer (32, or as in the dataset).", rich_help_panel=WORKLOAD)
    ] = None
    range_ratio: Annotated[
        float, Option(help="Random lengths vary by this share, up and down.", rich_help_panel=WORKLOAD)
    ] = 0.0
    prefix_len: Annotated[
        int, Option(min=0, help="Tokens that all random prompts begin with.", rich_help_panel=WORKLOAD)
    ] = 0
    dataset: Annotated[
        str | None,
        Option(help="Prompts and lengths from a file in ShareGPT's format.", metavar="FILE", rich_help_panel=WORKLOAD),
    ] = None
    seed: Annotated[int, Option(help="Of prompts, lengths and arrivals.", rich_help_panel=WORKLOAD)] = 0

    def draw(self, tokenizer: Tokenizer, vocab_size: int) -> Workload:
        """Raises `InvalidInput`."""
        from ..engine.workload import Lengths, random_workload, sharegpt_workload

        if self.dataset is not None:
            return sharegpt_workload(
                self.dataset, self.num_prompts, tokenizer=tokenizer, output_len=self.output_len, seed=self.seed
            )
        lengths = Lengths(
            input_len=self.input_len,
            output_len=self.output_len or 32,
            range_ratio=self.range_ratio,
            prefix_len=self.prefix_len,
        )
        return random_workload(lengths, self.num_prompts, tokenizer=tokenizer, vocab_size=vocab_size, seed=self.seed)


@grouped
def serve(
    model: options.Model,
    server: ServerOptions,
    arrival: ArrivalOptions,
    work: WorkloadOptions,
    output: OutputOptions,
    goodput: Annotated[
        list[str] | None,
        Option(help="Count requests that keep this: ttft:500, tpot:50, e2el:9000 (ms); may be repeated.",
               metavar="NAME:MS", rich_help_panel=MEASURING),
    ] = None,
    warmups: Annotated[
        int, Option(min=0, help="Requests before those that count.", rich_help_panel=MEASURING)
    ] = 1,
    plot: Annotated[
        str | None,
        Option(help="Draw it, as .svg, .png or .pdf.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
) -> None:  # fmt: skip
    """Measure what clients of a running server wait for.

    The server may be any with OpenAI's interface and streams: headstock serve,
    vLLM, SGLang. MODEL is the same model here, for its tokenizer. Definitions
    are those of vLLM's bench serve.

    Exit codes: 0 measured; 1 a request failed; 2 refused.
    """
    require_extra("headstock bench serve", "bench", ("aiohttp",))
    from ...core.model import read_config, resolve_model
    from ...core.text import Tokenizer
    from ...plugins.environment import API_KEY
    from ..results.saving import keep, stored
    from .arrivals import Arrivals
    from .client import Target
    from .goodput import read_promises
    from .plot import check_plot, draw

    if not server.base_url.startswith(("http://", "https://")):
        raise InvalidInput("base_url", f"must begin with http:// or https://, not {server.base_url!r}")
    if "@" in server.base_url.split("://", 1)[1].split("/", 1)[0]:  # the report and the store keep the address
        raise InvalidInput("base_url", "holds a name or a password; give the key with --api-key")
    if not server.timeout > 0:
        raise InvalidInput("timeout", f"must be above 0, not {server.timeout}")
    arrivals = Arrivals(request_rate=arrival.request_rate, burstiness=arrival.burstiness)
    promises = read_promises(goodput or ())
    output.check()
    check_plot(plot)
    folder = resolve_model(model)
    tokenizer = Tokenizer.from_folder(folder.path)
    workload = work.draw(tokenizer, read_config(folder.path).vocab_size)
    store = stored(output.save)
    target = Target(
        base_url=server.base_url.removesuffix("/").removesuffix("/v1"),
        model=server.served_model_name or "",
        chat=server.chat,
        api_key=server.api_key or os.environ.get(API_KEY, "").partition(",")[0] or None,
        ignore_eos=not server.no_ignore_eos,
        temperature=server.temperature,
        timeout=server.timeout,
    )
    asks = _asks(workload, tokenizer, chat=server.chat)
    report = asyncio.run(_measure(target, asks, arrivals, arrival.max_concurrency, work, warmups, workload, promises))
    _show(report, output)
    if plot is not None:
        draw(report, plot)
    keep(store, report.to_dict())
    if report.errors:
        raise Exit(EXIT_FAILED)


def _asks(workload: Workload, tokenizer: Tokenizer, *, chat: bool) -> list[Ask]:
    from .client import Ask

    return [
        Ask(
            prompt=tokenizer.decode(request.token_ids) if chat else list(request.token_ids),
            num_prompt_tokens=len(request.token_ids),
            output_len=request.output_len,
        )
        for request in workload.requests
    ]


async def _measure(
    target: Target,
    asks: list[Ask],
    arrivals: Arrivals,
    max_concurrency: int | None,
    work: WorkloadOptions,
    warmups: int,
    workload: Workload,
    promises: dict[str, float],
) -> Report:
    from ...selector import find_device
    from ..machine import describe
    from ..progress import progress
    from .client import find_model, session
    from .report import Report
    from .run import Run, execute

    async with session(target) as client:
        target = replace(target, model=target.model or await find_model(client, target))
        run = Run(
            target=target,
            asks=asks,
            offsets=arrivals.offsets(len(asks), work.seed),
            max_concurrency=max_concurrency,
            warmups=warmups,
        )
        with progress("requests", len(asks)) as bar:
            outcomes, elapsed = await execute(run, client, bar.advance)
    return Report(
        command=shlex.join(["headstock", *_without_secrets(sys.argv[1:])]),
        base_url=target.base_url,
        model=target.model,
        chat=target.chat,
        workload=workload.name,
        arrivals=str(arrivals),
        max_concurrency=max_concurrency,
        elapsed=elapsed,
        outcomes=tuple(outcomes),
        promises=promises,
        client=describe(find_device("cpu")),
    )


def _without_secrets(words: list[str]) -> list[str]:
    """The command line as it may be kept."""
    shown: list[str] = []
    for word in words:
        if shown and shown[-1] == "--api-key":
            shown.append("…")
        else:
            shown.append("--api-key=…" if word.startswith("--api-key=") else word)
    return shown


def _show(report: Report, output: OutputOptions) -> None:
    from ...entrypoints.cli.console import print_table
    from .report import heading, markdown, remarks, table

    if write_document(output.json, report.to_dict()):
        return
    if output.markdown:
        print(markdown(report), end="")
        return
    print("\n".join(heading(report)), end="\n\n")
    print_table(*table(report))
    for line in remarks(report):
        print(line)
