"""The top-level command: version, plugin switches, error messages and exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated

import typer

from ...core.errors import EngineDeadError, HeadstockError
from .lazy import HELP_OPTIONS, LazyGroup

EXIT_REFUSED = 2
"""What was asked cannot be done as asked: wrong input, unknown model, a backend that does not fit."""

EXIT_FAILED = 1
EXIT_FAILED = 1
"""It was begun and failed."""

EXIT_INTERRUPTED = 130

app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from ...core.version import __version__

        typer.echo(f"headstock {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    disable_plugins: Annotated[
        bool, typer.Option("--disable-plugins", help="Load no third-party package in this run; built-ins stay.")
    ] = False,
) -> None:
    """Attention backends as plugins, and an engine that serves real models through them.

    Start with: headstock generate smollm2 "The capital of France is"
    """
    if disable_plugins:
        os.environ["HEADSTOCK_DISABLE_PLUGINS"] = "1"


def main() -> None:
    """Run the command line. Errors raised on purpose are printed without a traceback and end in exit code 2."""
    # Before torch is imported: OpenMP threads that spin while they wait slow to a crawl beside another busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an answer may hold characters that the terminal's encoding lacks
    if sys.stdout is None:  # closed by the caller, who wants no answer
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        try:
            app(prog_name="headstock")
        finally:
            sys.stdout.flush()
    except EngineDeadError as error:
        _fail(str(error), EXIT_FAILED)
    except HeadstockError as error:
        _fail(str(error))
    except MemoryError as error:
        _fail(f"not enough memory: {error}")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer has nowhere to go
        _fail(f"the output cannot be written: {error.strerror}", EXIT_FAILED)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)


def _fail(message: str, code: int = EXIT_REFUSED) -> None:
    print(f"headstock: {message}", file=sys.stderr)
    raise SystemExit(code)
