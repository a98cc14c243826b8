"""Letting plugins in and keeping them out."""

from __future__ import annotations

import pytest

from headstock.core.errors import BackendError
from headstock.plugins import Switches, load_plugins
from support.plugins import BACKEND, write_distribution


@pytest.fixture
def two(site):
    """Two packages with a backend each."""
    write_distribution(site, "Alpha-Pack", backends={"alpha": "alpha_pack:Fast"}, modules={"alpha_pack": BACKEND})
    write_distribution(site, "beta", backends={"beta": "beta_pack:Fast"}, modules={"beta_pack": BACKEND})


def enabled(**environ):
    plugins = load_plugins(environ=environ)
    return {offer.label for offer in plugins.backends.offers if offer.record.status != "disabled"}


@pytest.mark.usefixtures("two")
class TestTwoPackages:
    def test_without_a_switch_all_are_in(self):
        assert {"alpha", "beta", "sdpa", "reference"} <= enabled()

    @pytest.mark.parametrize("written", ["alpha-pack", "ALPHA_PACK", " alpha.pack ,"])
    def test_the_allow_list_lets_in_what_it_names_and_the_built_ins(self, written):
        found = enabled(HEADSTOCK_PLUGINS=written)
        assert {"alpha", "sdpa", "reference"} <= found
        assert "beta" not in found

    @pytest.mark.parametrize("yes", ["1", "true", "ON"])
    def test_the_kill_switch_keeps_all_out_but_the_built_ins(self, yes):
        found = enabled(HEADSTOCK_DISABLE_PLUGINS=yes)
        assert {"sdpa", "reference"} <= found
        assert not {"alpha", "beta"} & found

    def test_the_kill_switch_for_one(self):
        found = enabled(HEADSTOCK_DISABLE_PLUGINS="beta")
        assert "alpha" in found
        assert "beta" not in found

    def test_zero_kills_nothing(self):
        assert {"alpha", "beta"} <= enabled(HEADSTOCK_DISABLE_PLUGINS="0")

    def test_switches_can_be_given_as_a_value(self):
        found = load_plugins(Switches(off=frozenset({"beta"}))).backends
        assert found.find("beta").record.status == "disabled"
        assert found.find("alpha").load() is not None

    def test_a_backend_that_is_kept_out_says_by_what(self):
        offer = load_plugins(environ={"HEADSTOCK_PLUGINS": "alpha-pack"}).backends.find("beta")
        assert offer.load() is None
        assert offer.forbids() == "HEADSTOCK_PLUGINS lets in only alpha-pack"

    def test_nothing_of_a_disabled_package_is_imported(self, site):
        (site / "beta_pack.py").write_text("raise AssertionError('imported')")
        offer = load_plugins(environ={"HEADSTOCK_DISABLE_PLUGINS": "1"}).backends.find("beta")
        assert offer.load() is None
        assert "switched off" in offer.record.reason

    @pytest.mark.parametrize("switch", ["HEADSTOCK_PLUGINS", "HEADSTOCK_DISABLE_PLUGINS"])
    def test_a_switch_that_names_nobody_is_told_of(self, switch, warnings):
        load_plugins(environ={switch: "betta"})
        (warning,) = warnings()
        assert warning == f"{switch} names betta, which is no installed plugin; installed are: alpha-pack, beta"

    def test_the_built_in_backends_cannot_be_switched_off(self, warnings):
        assert {"sdpa", "reference"} <= enabled(HEADSTOCK_DISABLE_PLUGINS="headstock")
        assert "headstock, which is no installed plugin" in warnings()[0]

    def test_switching_one_off_settles_a_clash(self, site):
        write_distribution(site, "gamma", backends={"Alpha": "gamma_pack:Fast"}, modules={"gamma_pack": BACKEND})
        with pytest.raises(BackendError, match="more than one"):
            load_plugins(environ={}).backends.find("alpha")
        found = load_plugins(environ={"HEADSTOCK_DISABLE_PLUGINS": "gamma"}).backends.find("alpha")
        assert found.record.distribution == "Alpha-Pack"
