"""`headstock bench`: one subcommand a kind of measurement, each imported when it runs."""

from __future__ import annotations

import typer

from .engine.command import latency, throughput
from .kernels.command import kernels
from .serve.command import serve

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(add_completion=False, no_args_is_help=True, context_settings=HELP_OPTIONS)
for command in (kernels, throughput, latency, serve):
    app.command(context_settings=HELP_OPTIONS)(command)


@app.callback()
def bench() -> None:
    """Measure attention backends: kernels against each other and the machine, whole engines, and servers."""
