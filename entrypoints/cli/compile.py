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
        Path, Option(help="Folder to build into; HEADSTOCK_KERNELS names it where it is used.", metavar="DIR")
    ] = Path("headstock-kernels"),
) -> None:
    """Build the kernels of BACKEND into a folder, for images and for machines without a compiler.

    The folder can be read-only where it is used, and serves this version of Headstock on this architecture. Prints the
    path of the library.

    Exit codes: 0 built, or there already; 2 refused, with the reason.
    """
    show_log(False)
    from ..compose import installed_plugins

    offer = installed_plugins().backends.find(backend)
    cls = offer.load()
    if cls is None:
        raise BackendError(f"backend {offer.label} cannot be loaded: {offer.forbids()}")
    built = cls.prebuild(output.absolute())
    if built is None:
        raise BackendError(f"backend {offer.label} compiles nothing, so there is nothing to build ahead of time")
    note(f"use it with HEADSTOCK_KERNELS={output.absolute()}")
    print(built)
