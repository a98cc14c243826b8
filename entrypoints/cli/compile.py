"""`headstock compile`: build ahead of time what backends would build at their first use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ...core.errors import BackendError
from .console import note, show_log


def compile_kernels(
    backend: Annotated[str, Argument(metavar="BACKEND", help="A backend that compiles kernels.")] = "cpu",
    output: Annotated[
        Path | None,
        Option(help="Folder for other machines; HEADSTOCK_KERNELS names it there.", metavar="DIR", show_default=False),
    ] = None,
) -> None:
    """Build the kernels of BACKEND now instead of at their first use. Prints the path of the library.

    They go into this machine's cache, or with --output into a folder, for
    images and for machines without a compiler. That folder can be read-only
    where it is used, and serves this version of Headstock on this
    architecture. What failed to compile before is tried again.

    Exit codes: 0 built, or there already; 2 refused, with the reason.
    """
    show_log(False)
    from ..compose import installed_plugins

    offer = installed_plugins().backends.find(backend)
    cls = offer.load()
    if cls is None:
        raise BackendError(f"backend {offer.label} cannot be loaded: {offer.forbids()}")
    built = cls.build() if output is None else cls.prebuild(output.absolute())
    if built is None:
        raise BackendError(f"backend {offer.label} compiles nothing, so there is nothing to build ahead of time")
    if output is not None:
        note(f"use it with HEADSTOCK_KERNELS={output.absolute()}")
    print(built)
