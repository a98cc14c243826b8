"""Other people's packages: made by hand in a folder on the path, or really installed with pip."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import dedent

from headstock.plugins import BackendRegistry, Guard, Hooks, Ops, Placement, PluginRecord, Plugins, load_plugins

from .tree import ROOT
from .wheels import metadata_text, run

SAMPLE = ROOT / "tests/plugins/sample_distribution"
BACKEND = """
from headstock.core.attention import ANY, AttentionBackend, Capabilities

class Fast(AttentionBackend):
    @classmethod
    def capabilities(cls, device):
        return Capabilities(
            dtypes=frozenset({"float32"}), kv_formats=frozenset({"fp32"}), head_sizes=ANY, group_sizes=ANY,
            block_sizes=ANY, kinds=frozenset({"decoder"}), kv_sources=frozenset({"cache"}),
            causal=frozenset({True}), layouts=("nhd",),
        )

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        out.zero_()
"""
"""A module with a backend `Fast` for float32 decoders without windows."""


def write_distribution(
    site: Path,
    name: str,
    version: str = "1.0",
    *,
    backends: Mapping[str, str] | None = None,
    hooks: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
    aiter_ops: Mapping[str, str] | None = None,
    modules: Mapping[str, str] | None = None,
    requires: Iterable[str] = (),
    info: str = "",
) -> Path:
    """Put a distribution into `site` as pip would leave it; returns its metadata folder, which `info` can name.

    `backends`, `hooks`, `commands` and `aiter_ops` are entry points, name → target; `modules` are sources by name.
    """
    folder = site / (info or f"{name.replace('-', '_')}-{version}.dist-info")
    folder.mkdir(parents=True)
    text = metadata_text(name, version, requires)
    (folder / ("PKG-INFO" if folder.suffix == ".egg-info" else "METADATA")).write_text(text)
    groups = {
        "headstock.backends": backends or {},
        "headstock": hooks or {},
        "headstock.commands": commands or {},
        "headstock.aiter_ops": aiter_ops or {},
    }
    lines = [
        line for group, points in groups.items() if points for line in (f"[{group}]", *map(" = ".join, points.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join([*lines, ""]))
    for module, source in (modules or {}).items():
        (site / f"{module}.py").write_text(dedent(source))
    importlib.invalidate_caches()
    return folder


def forget_modules(folder: Path) -> None:
    """Unload what was imported from `folder`, so that the next test starts anew."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


def install_sample(target: Path) -> Path:
    """Install the sample distribution into `target` with pip, offline; returns `target`, to be put on the path."""
    source = target.with_name(target.name + "-source")  # pip builds in the tree and leaves its traces there
    shutil.copytree(SAMPLE, source)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--target", target, source)
    return target


TWO = ("sdpa", "reference")
"""The built-in backends that tests of selection count on; what else is built in does not change them."""


def only_two(plugins: Plugins) -> Plugins:
    """These plugins without the built-in backends that are none of `TWO`."""
    records = [offer.record for offer in plugins.backends.offers]
    kept = [record for record in records if not record.builtin or record.name in TWO]
    return Plugins(
        backends=BackendRegistry(kept, plugins.guard), hooks=plugins.hooks, ops=plugins.ops, guard=plugins.guard
    )


class Ranks(Hooks):
    """Hooks of a package that ranks backends of the running program, in this order, before all others."""

    def __init__(self, *names: str) -> None:
        super().__init__(())
        self._names = names

    def placements(self, device):
        record = PluginRecord(group="headstock", name="ranks", target="", distribution="this program", version="")
        return tuple((record, Placement(backend=name, before="sdpa")) for name in sorted(self._names))


def world(ranked: Mapping[str, type] | None = None, by_name: Mapping[str, type] | None = None) -> Plugins:
    """Plugins with classes of a test in place of installed packages, beside the built-in `TWO`.

    Those in `ranked` come before `sdpa` in the automatic order, sorted by name.
    """
    backends = only_two(load_plugins(environ={})).backends
    plugins = Plugins(backends=backends, hooks=Ranks(*(ranked or {})), ops=Ops((), Hooks(())), guard=Guard())
    for name, cls in {**(ranked or {}), **(by_name or {})}.items():
        plugins.backends.register(name, cls)
    return plugins
