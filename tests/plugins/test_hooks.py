"""Modules of hooks: what they bring, and that one which fails takes nobody with it."""

from __future__ import annotations

import pytest

from headstock.core.attention import LAYOUTS, AttentionSelection
from headstock.core.errors import BackendError, InvalidInput
from headstock.plugins import Placement, load_plugins
from support.attention import CPU
from support.plugins import BACKEND, write_distribution

RANKS = """
from headstock.plugins import Placement, hookimpl

@hookimpl
def headstock_rank_backends(device):
    return [Placement(backend="fast", before="sdpa")]
"""
LAYOUT = """
from headstock.core.attention.layouts import TokenMajor
from headstock.plugins import hookimpl

class Mine(TokenMajor):
    name = {name!r}

@hookimpl
def headstock_kv_layouts():
    return [Mine()]
"""
BROKEN = {
    "import": ("import gone", "ModuleNotFoundError: No module named 'gone'"),
    "exit": ("raise SystemExit(1)", "SystemExit: 1"),
    "unknown hook": (
        "from headstock.plugins import hookimpl\n@hookimpl\ndef headstock_no_such_hook(): pass",
        "PluginValidationError: unknown hook 'headstock_no_such_hook'",
    ),
    "unknown argument": (
        RANKS + "\n@hookimpl\ndef headstock_kv_layouts(engine): return []",
        "PluginValidationError: Plugin 'hooked:h' for hook 'headstock_kv_layouts'",
    ),
}


def hooked(site, source, name="hooked"):
    """Install a package with a module of hooks; returns what is then found."""
    write_distribution(
        site, name, "0.7", backends={"fast": f"{name}_b:Fast"}, hooks={"h": f"{name}_h"},
        modules={f"{name}_h": source, f"{name}_b": BACKEND},
    )  # fmt: skip
    return load_plugins(environ={})


def record(plugins, name="hooked"):
    return next(r for r in plugins.hooks.records if r.distribution == name)


def test_a_module_is_not_imported_before_the_first_hook(site):
    plugins = hooked(site, "raise AssertionError")
    assert plugins.backends.find("fast").load() is not None


def test_a_package_ranks_its_backend(site):
    plugins = hooked(site, RANKS)
    ((who, placement),) = plugins.hooks.placements(CPU)
    assert (who.package, who.status) == ("hooked 0.7", "loaded")
    assert placement == Placement(backend="fast", before="sdpa")


def test_a_package_adds_a_layout(site):
    layouts = hooked(site, LAYOUT.format(name="mine")).hooks.layouts()
    assert {*LAYOUTS, "mine"} == set(layouts)
    assert list(layouts)[: len(LAYOUTS)] == list(LAYOUTS)


def test_a_package_adds_a_device(site):
    source = """
    from headstock.core.attention import Device
    from headstock.plugins import hookimpl

    @hookimpl
    def headstock_device_probes():
        return [lambda: [Device(platform="npu", name="A card", arch="n1")]]
    """
    (device,) = hooked(site, source).hooks.devices()
    assert (device.platform, device.name) == ("npu", "A card")


def test_a_package_is_told_of_the_selection(site):
    source = """
    from headstock.plugins import hookimpl
    told = []

    @hookimpl
    def headstock_selected(selection, device):
        told.append((selection.block_size, device.name))
    """
    plugins = hooked(site, source)
    selection = AttentionSelection(choices={}, block_size=16, layout=LAYOUTS["nhd"])
    plugins.hooks.selected(selection, CPU)
    import hooked_h

    assert hooked_h.told == [(16, CPU.name)]


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_module_that_fails_to_register_is_rolled_back_with_one_warning(site, warnings, source, reason):
    plugins = hooked(site, source)
    assert plugins.hooks.placements(CPU) == ()
    assert set(plugins.hooks.layouts()) == set(LAYOUTS)
    found = record(plugins)
    assert found.status == "failed"
    assert found.reason.startswith(reason)
    (warning,) = warnings()
    assert warning.startswith(f"a plugin of hooked 0.7 is left out (failed): {reason}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("yield Mine()\n    raise OSError('half way')", "OSError: half way"),
        ("return [Mine(), 7]", "gave 7, not a KVLayout"),
        ("return 7", "TypeError: 'int' object is not iterable"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_a_hook_that_fails_half_way_gives_nothing_at_all(site, warnings, body, reason):
    layout = LAYOUT.format(name="mine").replace("return [Mine()]", body)
    ranks = RANKS.replace(
        "from headstock.plugins import Placement, hookimpl", "from headstock.plugins import Placement"
    )
    plugins = hooked(site, layout + ranks)
    assert len(plugins.hooks.placements(CPU)) == 1
    assert set(plugins.hooks.layouts()) == set(LAYOUTS)
    assert plugins.hooks.placements(CPU) == ()
    assert record(plugins).reason == reason
    assert len(warnings()) == 1


def test_one_that_fails_takes_nobody_with_it(site):
    hooked(site, "import gone", "aaa")
    plugins = hooked(site, RANKS, "bbb")
    assert [who.distribution for who, _ in plugins.hooks.placements(CPU)] == ["bbb"]


def test_its_backends_can_still_be_asked_for_by_name(site):
    plugins = hooked(site, "import gone")
    assert plugins.hooks.placements(CPU) == ()
    assert plugins.backends.find("fast").load() is not None


@pytest.mark.parametrize("order", [("aaa", "bbb"), ("bbb", "aaa")])
def test_of_two_layouts_with_one_name_the_package_first_by_name_keeps_it(tmp_path, monkeypatch, site, order, warnings):
    for name in order:
        hooked(site, LAYOUT.format(name="mine"), name)
    layouts = load_plugins(environ={}).hooks.layouts()
    assert type(layouts["mine"]).__module__ == "aaa_h"
    assert warnings() == ["a plugin of bbb 0.7 is left out (failed): its KV layout 'mine' has the name of another"]


def test_a_layout_cannot_replace_one_of_ours(site):
    plugins = hooked(site, LAYOUT.format(name="nhd"))
    assert plugins.hooks.layouts() == LAYOUTS
    assert record(plugins).status == "failed"


def test_a_disabled_package_has_no_hooks(site, warnings):
    hooked(site, "raise AssertionError")
    plugins = load_plugins(environ={"HEADSTOCK_DISABLE_PLUGINS": "hooked"})
    assert plugins.hooks.placements(CPU) == ()
    assert record(plugins).status == "disabled"
    assert warnings() == []


def test_strict_mode_raises_what_a_hook_raised(site):
    hooked(site, RANKS.replace("return [", "raise OSError('half way')\n    ["))
    with pytest.raises(OSError, match="half way"):
        load_plugins(environ={"HEADSTOCK_PLUGINS_STRICT": "1"}).hooks.placements(CPU)


def test_strict_mode_raises_for_a_hook_that_gives_nonsense(site):
    hooked(site, RANKS.replace("return [", "return [7, "))
    with pytest.raises(BackendError, match="gave 7, not a Placement"):
        load_plugins(environ={"HEADSTOCK_PLUGINS_STRICT": "1"}).hooks.placements(CPU)


@pytest.mark.parametrize("both", [{}, {"before": "a", "after": "b"}])
def test_a_placement_has_one_neighbour(both):
    with pytest.raises(InvalidInput, match="either before= or after="):
        Placement(backend="fast", **both)
