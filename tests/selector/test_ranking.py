"""The automatic order, and how packages enter it."""

from __future__ import annotations

import pytest

from headstock.core.attention import Device
from headstock.plugins import load_plugins
from headstock.selector import Selector
from headstock.selector.ranking import ANYWHERE, RANKING, ranked
from support.attention import CPU
from support.plugins import BACKEND, forget_modules, write_distribution


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget_modules(tmp_path)


def package(site, name, *placements):
    """Install a package with a backend of its own name, ranked by these keyword arguments of `Placement`."""
    hooks = "from headstock.plugins import Placement, hookimpl\n@hookimpl\ndef headstock_rank_backends(device):\n"
    hooks += f"    return [{', '.join(f'Placement({p})' for p in placements)}]\n"
    write_distribution(
        site, name, backends={name: f"{name}_b:Fast"}, hooks={name: f"{name}_h"},
        modules={f"{name}_b": BACKEND, f"{name}_h": hooks},
    )  # fmt: skip


def order(platform="cpu"):
    device = Device(platform=platform, name="test", arch="test")
    return [offer.label for offer in ranked(device, load_plugins(environ={}))]


@pytest.mark.parametrize("table", [*RANKING.values(), ANYWHERE])
def test_the_reference_is_the_last_resort_everywhere(table):
    assert table[-1] == "reference"
    built_in = {offer.label for offer in load_plugins(environ={}).backends.offers if offer.record.builtin}
    assert set(table) <= built_in


def test_a_platform_without_a_table_has_what_runs_wherever_torch_does():
    assert order("something else") == ["sdpa", "reference"]


def test_a_package_that_ranks_nothing_is_chosen_by_name_only(site):
    package(site, "mine")
    assert order() == ["sdpa", "reference"]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ('before="sdpa"', ["mine", "sdpa", "reference"]),
        ('after="sdpa"', ["sdpa", "mine", "reference"]),
        ('before="reference"', ["sdpa", "mine", "reference"]),
        ('after="reference"', ["sdpa", "reference", "mine"]),
        ('before="TORCH_SDPA"', ["mine", "sdpa", "reference"]),
    ],
)
def test_a_package_puts_its_backend_beside_another(site, placement, expected):
    package(site, "mine", f'backend="MINE", {placement}')
    assert order() == expected


@pytest.mark.parametrize("names", [("aaa", "bbb"), ("bbb", "aaa")])
def test_packages_come_in_order_of_name_not_of_discovery(site, names):
    for name in names:
        package(site, name, f'backend="{name}", before="sdpa"')
    assert order() == ["aaa", "bbb", "sdpa", "reference"]


def test_a_package_can_stand_beside_another_packages_backend(site):
    package(site, "aaa", 'backend="aaa", before="zzz"')
    package(site, "zzz", 'backend="zzz", before="sdpa"')
    assert order() == ["aaa", "zzz", "sdpa", "reference"]


def test_the_first_neighbour_that_is_ranked_counts(site):
    package(site, "mine", 'backend="mine", before="flash_attn"', 'backend="mine", after="sdpa"')
    assert order() == ["sdpa", "mine", "reference"]


def test_without_its_neighbour_it_has_no_rank_and_that_is_told(site, warnings):
    package(site, "mine", 'backend="mine", before="flash_attn"')
    assert order() == ["sdpa", "reference"]
    (warning,) = warnings()
    assert warning == "mine 1.0 ranks 'mine' next to 'flash_attn', which has no rank on cpu: it is chosen only by name"


def test_only_ones_own_backends_can_be_ranked(site, warnings):
    package(site, "mine", 'backend="reference", before="sdpa"')
    assert order() == ["sdpa", "reference"]
    assert warnings() == ["mine 1.0 ranks 'reference', which it does not offer"]


def test_two_that_want_to_stand_beside_each_other_stand_nowhere(site):
    package(site, "aaa", 'backend="aaa", before="bbb"')
    package(site, "bbb", 'backend="bbb", before="aaa"')
    assert order() == ["sdpa", "reference"]


def test_a_clash_of_names_does_not_keep_a_package_from_ranking_its_own(site):
    package(site, "aaa", 'backend="aaa", before="sdpa"')
    write_distribution(site, "rival", backends={"AAA": "aaa_b:Fast"})
    assert order() == ["aaa:aaa", "sdpa", "reference"]


def test_a_broken_plugin_is_warned_of_at_the_start_though_nobody_asked_for_it(site, warnings):
    """A08: a plugin that cannot load is told of, and the start goes on."""
    from support.backends import layers, spec

    write_distribution(site, "stale", "0.9", backends={"s": "stale_b:Fast"}, modules={"stale_b": "import gone"})
    plugins = load_plugins(environ={})
    for _ in range(2):
        choice = Selector(plugins).select(layers(spec()), CPU).choices["model.layers.0.self_attn.attn"]
        assert choice.backend == "sdpa"
    assert warnings() == ["a plugin of stale 0.9 is left out (failed): ModuleNotFoundError: No module named 'gone'"]
