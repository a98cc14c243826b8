"""Commands that are imported when they run, and listed without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

GROUP = "headstock.commands"
"""Entry-point group of commands: name → a function with typer's annotations, or a `typer.Typer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command before it is imported."""

    help: str
    load: Callable[[], Any]


BUILT_IN = {
    "generate": ("headstock.entrypoints.cli.generate:generate", "Let a model answer prompts."),
    "backends": ("headstock.entrypoints.cli.backends:backends", "List attention backends and whether they run here."),
    "explain": ("headstock.entrypoints.cli.explain:explain", "Say which backend a model gets on a device, and why."),
}


def find_commands() -> dict[str, Entry]:
    """Built-in commands and those of the entry-point group, by name. A built-in name cannot be taken."""
    found = {e.name: Entry(help=_summary(e), load=e.load) for e in metadata.entry_points(group=GROUP)}
    for name, (target, text) in BUILT_IN.items():
        module, _, attribute = target.partition(":")
        found[name] = Entry(help=text, load=_loader(module, attribute))
    return found


def _loader(module: str, attribute: str) -> Callable[[], Any]:
    return lambda: getattr(import_module(module), attribute)


def _summary(entry: metadata.EntryPoint) -> str:
    """What the package says of itself; its code is not run for a help text."""
    if entry.dist is None:
        return entry.value
    about = (entry.dist.metadata["Summary"] or "").rstrip(".")
    return f"{about} ({entry.dist.name} {entry.dist.version}).".lstrip()


class LazyCommand(TyperCommand):
    """Stands for a command in listings and hands over to it when it is called."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help, short_help=entry.help)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self._real().make_context(info_name, args, parent=parent, **extra)

    def _real(self) -> Any:
        target = self._entry.load()
        if not isinstance(target, typer.Typer):
            app = typer.Typer(add_completion=False, context_settings=HELP_OPTIONS)
            app.command()(target)
            target = app
        return typer.main.get_command(target)


HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """The top level."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._entries())

    def get_command(self, ctx: Any, cmd_name: str) -> LazyCommand | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        entry = self._entries().get(cmd_name)
        return None if entry is None else LazyCommand(cmd_name, entry)

    def _entries(self) -> dict[str, Entry]:
        if not hasattr(self, "_found"):
            self._found = dict(_in_order(find_commands()))
        return self._found


def _in_order(found: dict[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """Built-in ones first, as they are listed above."""
    names = [*BUILT_IN, *sorted(found.keys() - BUILT_IN.keys())]
    return ((name, found[name]) for name in names)
