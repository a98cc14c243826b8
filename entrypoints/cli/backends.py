"""`headstock backends`: every attention backend that is installed, and whether it runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .console import note, print_json, print_table, show_log

if TYPE_CHECKING:
    from ...selector import Listing, PluginRow


def backends(
    device: Annotated[
        str | None, typer.Option(help="Judge for this device or profile, e.g. cuda:1 or mi300x.", metavar="NAME")
    ] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List all backends with package, version, verdict and reasons, in automatic order.

    `available` means that it runs here for some model; which backend a model
    gets is said by: headstock explain MODEL
    """
    show_log(verbose)
    from ...selector import find_device, list_backends
    from ..compose import installed_plugins, make_selector

    plugins = installed_plugins()
    listing = list_backends(make_selector(), find_device(device, plugins.hooks))
    if json:
        print_json(listing.to_dict())
    else:
        _print(listing)


def _print(listing: Listing) -> None:
    note(f"device: {listing.device.name} ({listing.device.platform}, {listing.device.arch})")
    rows = [
        (
            "" if row.rank is None else str(row.rank),
            row.name,
            row.verdict,
            f"{row.distribution} {row.version}",
            ", ".join(row.aliases),
            "; ".join(filter(None, (*row.reasons, row.note))),
        )
        for row in listing.backends
    ]
    rows += [
        ("", f"{row.name} ({row.kind})", row.verdict, f"{row.distribution} {row.version}", "", _why(row))
        for row in listing.plugins
    ]
    print_table(("rank", "backend", "verdict", "package", "also called", "why"), rows, whole="backend")


def _why(row: PluginRow) -> str:
    """What speaks against it; of a function, what it takes the place of."""
    return "; ".join(row.reasons) or (f"{row.target} takes the place of {row.name}" if row.kind == "op" else "")
