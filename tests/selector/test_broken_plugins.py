"""A08, A10: broken packages beside a sound engine: they are listed, naming one is an error, all else works."""

from __future__ import annotations

import pytest

from headstock.core.errors import BackendError
from headstock.plugins import load_plugins
from headstock.selector import Selector, list_backends, read_policy
from support.attention import CPU
from support.backends import layers, spec
from support.plugins import BACKEND, forget_modules, write_distribution

RANKS_FIRST = """
from headstock.plugins import Placement, hookimpl

@hookimpl
def headstock_rank_backends(device):
    return [Placement(backend={name!r}, before="sdpa")]
"""
BROKEN = {
    "importing": (
        "import a_module_that_is_gone",
        "failed",
        "ModuleNotFoundError: No module named 'a_module_that_is_gone'",
    ),
    "exiting": ("raise SystemExit(7)", "failed", "SystemExit: 7"),
    "misspelt": ("clas Fast: pass", "failed", "SyntaxError: invalid syntax"),
    "halved": (BACKEND + "raise RuntimeError('half way')", "failed", "RuntimeError: half way"),
    "muddled": (
        BACKEND + "    @classmethod\n    def ops(cls, spec, device, options):\n        return 1 / 0",
        "available",
        "ops() raised ZeroDivisionError: division by zero",
    ),
    "ahead": (BACKEND + "Fast.api_version = 99", "refused", "ahead_b:Fast is written for version 99"),
    "future": (BACKEND, "refused", "future 1.0 needs headstock >=99"),
}


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """All of them installed at once, each ranking itself first, and two that share a name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, (source, _, _) in BROKEN.items():
        write_distribution(
            tmp_path, name, backends={name: f"{name}_b:Fast"}, hooks={name: f"{name}_h"},
            modules={f"{name}_b": source, f"{name}_h": RANKS_FIRST.format(name=name)},
            requires=["headstock>=99"] if name == "future" else [],
        )  # fmt: skip
    for name in ("twin1", "twin2"):
        write_distribution(tmp_path, name, backends={"TWIN": f"{name}_b:Fast"}, modules={f"{name}_b": BACKEND})
    write_distribution(tmp_path, "hookless", hooks={"h": "hookless_h"}, modules={"hookless_h": "import gone"})
    yield load_plugins(environ={})
    forget_modules(tmp_path)


def test_the_automatic_choice_is_the_next_that_works_and_keeps_the_reasons(plugins):
    choice = Selector(plugins).select(layers(spec()), CPU).choices["model.layers.0.self_attn.attn"]
    assert choice.backend == "sdpa"
    reasons = {rejected.backend: rejected.reasons for rejected in choice.rejected}
    assert set(reasons) == set(BROKEN) - {"future"}  # its hooks are refused with the rest of it
    for name, found in reasons.items():
        assert BROKEN[name][2] in found[0]


@pytest.mark.parametrize("name", BROKEN)
def test_one_that_is_asked_for_is_an_error_with_its_reason(plugins, name):
    with pytest.raises(BackendError) as error:
        Selector(plugins, read_policy(attention_backend=name, environ={})).select(layers(spec()), CPU)
    assert f'attention backend "{name}", chosen by flag ({name}), cannot serve' in str(error.value)
    assert BROKEN[name][2] in str(error.value)


def test_the_listing_shows_every_one_with_verdict_and_reason(plugins):
    listing = list_backends(Selector(plugins), CPU)
    rows = {row.name: row for row in listing.backends}
    for name, (_, verdict, reason) in BROKEN.items():
        assert rows[name].verdict == verdict
        assert verdict == "available" or rows[name].reasons[0].startswith(reason)
    assert rows["sdpa"].verdict == "available"
    assert rows["twin1:TWIN"].verdict == rows["twin2:TWIN"].verdict == "available"
    hooks = {row.distribution: (row.verdict, row.reasons) for row in listing.plugins}
    assert hooks["hookless"] == ("failed", ("ModuleNotFoundError: No module named 'gone'",))
    assert hooks["future"][0] == "refused"


def test_each_package_is_warned_of_once(plugins, warnings):
    selector = Selector(plugins)
    for _ in range(2):
        selector.select(layers(spec()), CPU)
        list_backends(selector, CPU)
    for name in ("importing", "exiting", "misspelt", "halved", "ahead"):
        assert len([text for text in warnings() if f" of {name} 1.0 " in text]) == 1, name


def test_a_name_that_two_claim_is_an_error_that_names_both(plugins):
    with pytest.raises(BackendError, match=r"twin1:TWIN is [^$]* of twin1 1.0[^$]*twin2:TWIN is [^$]* of twin2 1.0"):
        Selector(plugins, read_policy(attention_backend="twin", environ={})).select(layers(spec()), CPU)
    selection = Selector(plugins, read_policy(attention_backend="twin2:twin", environ={})).select(layers(spec()), CPU)
    (choice,) = selection.choices.values()
    assert (choice.backend, choice.distribution, choice.cls.__module__) == ("twin2:TWIN", "twin2 1.0", "twin2_b")


def test_a_package_that_takes_the_place_of_a_built_in_backend_is_told_of(tmp_path, plugins):
    write_distribution(tmp_path, "p3", backends={"SDPA": "twin1_b:Fast"})
    selector = Selector(load_plugins(environ={}), read_policy(attention_backend="p3:sdpa", environ={}))
    selection = selector.select(layers(spec()), CPU)
    assert selection.notes == ("p3:SDPA of p3 1.0 takes the place of the built-in backend, as asked",)
