"""Commands that are imported when they run, and listed without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ...core.errors import HeadstockError

GROUP = "headstock.commands"
"""Entry-point group of commands: name → a function with typer's annotations, or a `typer.Typer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command before it is imported."""

    help: str
    load: Callable[[], Any]
    """The function or `typer.Typer`; raises `HeadstockError` where it cannot be had."""


BUILT_IN = {
    "generate": ("headstock.entrypoints.cli.generate:generate", "Let a model answer prompts."),
    "chat": ("headstock.entrypoints.cli.chat:chat", "Talk with a model."),
    "serve": ("headstock.entrypoints.cli.serve:serve", "Serve a model over HTTP, with OpenAI's interface."),
    "embed": ("headstock.entrypoints.cli.embed:embed", "Give texts vectors."),
    "backends": ("headstock.entrypoints.cli.backends:backends", "List attention backends and whether they run here."),
    "explain": ("headstock.entrypoints.cli.explain:explain", "Say which backend a model gets on a device, and why."),
    "check": ("headstock.entrypoints.cli.check:check", "Prove that a backend keeps the contract, case by case."),
    "compile": ("headstock.entrypoints.cli.compile:compile_kernels", "Build kernels ahead of their first use."),
}
OWN = {
    "bench": "Measure attention backends against each other and against the machine.",
    "ab": "Hold kernels against each other, and say what the measurements carry.",
    "tune": "Measure the backends of this machine for a model's layers, so that the fastest right one is chosen.",
    "replay": "Compute the attention of a recording again, and check it.",
    "trace": "Carry recordings to FlashInfer-Trace, the data sets of flashinfer-bench, and back.",
    "results": "Keep results of benchmarks and checks, and compare them.",
}
"""Commands of floors above this one: they come in by the road of other packages, but their names cannot be taken."""


def find_commands() -> dict[str, Entry]:
    """Built-in commands and those of the entry-point group, by name. A built-in name cannot be taken."""
    offered: defaultdict[str, list[metadata.EntryPoint]] = defaultdict(list)
    for point in _entry_points():
        offered[point.name].append(point)
    found = {name: _own(name, points) or _third_party(name, points) for name, points in offered.items()}
    for name, (target, text) in BUILT_IN.items():
        module, _, attribute = target.partition(":")
        found[name] = Entry(help=text, load=_loader(module, attribute))
    return found


def _loader(module: str, attribute: str) -> Callable[[], Any]:
    return lambda: getattr(import_module(module), attribute)


def _entry_points() -> Iterator[metadata.EntryPoint]:
    """Those of the group, each distribution read once. A package with broken metadata offers nothing here."""
    seen: set[str] = set()
    for dist in metadata.distributions():
        try:
            text = dist.read_text("entry_points.txt") or ""
            if GROUP not in text or dist.name in seen:
                continue
            points = [point for point in dist.entry_points if point.group == GROUP]
        except Exception:  # other people's files can be broken in any way, and the help is needed most then
            continue
        seen.add(dist.name)
        yield from points


def _own(name: str, points: list[metadata.EntryPoint]) -> Entry | None:
    """Our own command of that name, where we have one."""
    ours = [point for point in points if point.dist and point.dist.name == "headstock"]
    return Entry(help=OWN[name], load=ours[0].load) if ours and name in OWN else None


def _third_party(name: str, points: list[metadata.EntryPoint]) -> Entry:
    packages = sorted(_package(point) for point in points)
    if len(points) > 1:
        both = " and ".join(packages)
        return Entry(help=f"Offered by {both}.", load=_refuse(f'command "{name}" is offered by {both}; uninstall one'))
    (point,) = points
    about = ((point.dist.metadata["Summary"] if point.dist else "") or "").rstrip(".")
    return Entry(help=f"{about} ({packages[0]}).".lstrip(), load=lambda: _load(point))


def _package(point: metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _refuse(problem: str) -> Callable[[], Any]:
    def refuse() -> None:
        raise HeadstockError(problem)

    return refuse


def _load(point: metadata.EntryPoint) -> Any:
    """Import another package's command, unless the user keeps that package out."""
    from ...plugins import Failure, Guard, read_switches

    switches = read_switches()
    what = f'command "{point.name}" of {_package(point)}'
    if objection := switches.objection(point.dist.name if point.dist else ""):
        raise HeadstockError(f"{what} is not run: {objection}")
    loaded = Guard(strict=switches.strict).attempt(point.load)
    if isinstance(loaded, Failure):
        raise HeadstockError(f"{what} cannot be loaded: {loaded}")
    return loaded


class LazyCommand(TyperCommand):
    """Stands for a command in listings and hands over to it when it is called."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help, short_help=entry.help)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self._real().make_context(info_name, args, parent=parent, **extra)

    def _real(self) -> Any:
        target = self._entry.load()
        if not callable(target):
            raise HeadstockError(f'command "{self.name}" is {target!r}, neither a function nor a typer.Typer')
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
