"""Backends by name: unknown ones, broken ones, and names that two packages claim."""

from __future__ import annotations

import pytest

from headstock.core.errors import BackendError
from headstock.plugins import BackendRegistry, load_plugins
from support.backends import backend
from support.plugins import BACKEND, only_two, write_distribution

BREAKS = {
    "ImportError": ("import a_module_that_is_gone", "ModuleNotFoundError: No module named 'a_module_that_is_gone'"),
    "moved internals": (
        "from headstock.core.moved import x",
        "ModuleNotFoundError: No module named 'headstock.core.moved'",
    ),
    "SystemExit": ("raise SystemExit('no licence')", "SystemExit: no licence"),
    "SyntaxError": ("def (:", "SyntaxError: invalid syntax"),
    "RuntimeError": ("raise RuntimeError('CUDA driver\\n is too old')", "RuntimeError: CUDA driver is too old"),
    "half of it": (BACKEND + "\nraise ValueError('half way')", "ValueError: half way"),
    "no such class": ("Other = 1", "AttributeError: module 'broken_pack' has no attribute 'Fast'"),
}
"""Ways to fail at import: source of the module and the reason that is told."""


def registry() -> BackendRegistry:
    return load_plugins(environ={}).backends


@pytest.fixture(params=BREAKS)
def broken(request, site):
    """A package that fails to import, and why."""
    source, reason = BREAKS[request.param]
    write_distribution(site, "broken", "0.3", backends={"broken": "broken_pack:Fast"}, modules={"broken_pack": source})
    return reason


class TestBroken:
    def test_is_a_failed_backend_with_type_and_text(self, broken):
        offer = registry().find("broken")
        assert offer.load() is None
        assert offer.record.status == "failed"
        assert offer.record.reason.startswith(broken)

    def test_leaves_the_others_alone(self, broken):
        found = registry()
        assert found.find("broken").load() is None
        assert found.find("sdpa").load() is not None

    def test_warns_once_with_package_version_and_reason(self, broken, warnings):
        found = registry()
        for _ in range(3):
            found.find("broken").load()
        (warning,) = warnings()
        assert warning.startswith(f"a plugin of broken 0.3 is left out (failed): {broken}")

    def test_is_known_with_its_reason_to_somebody_who_misspells_another(self, broken):
        with pytest.raises(BackendError) as error:
            registry().find("sdqa")
        assert f"broken (unavailable: failed to load: {broken}" in str(error.value)


def test_strict_mode_raises_what_the_plugin_raised(site):
    modules = {"broken_pack": "raise OSError('no licence')"}
    write_distribution(site, "broken", backends={"broken": "broken_pack:Fast"}, modules=modules)
    with pytest.raises(OSError, match="no licence"):
        load_plugins(environ={"HEADSTOCK_PLUGINS_STRICT": "1"}).backends.find("broken").load()


def test_strict_mode_raises_for_a_package_that_is_refused(site):
    write_distribution(site, "future", backends={"f": "future_pack:Fast"}, requires=["headstock>=99"])
    with pytest.raises(BackendError, match=r"future 1\.0 needs headstock >=99"):
        load_plugins(environ={"HEADSTOCK_PLUGINS_STRICT": "1"}).backends.find("f").load()


def test_the_interrupt_of_the_user_passes(site):
    modules = {"slow_pack": "raise KeyboardInterrupt"}
    write_distribution(site, "slow", backends={"slow": "slow_pack:Fast"}, modules=modules)
    with pytest.raises(KeyboardInterrupt):
        registry().find("slow").load()


def test_what_a_plugin_prints_goes_to_stderr(site, capfd):
    modules = {"loud_pack": "print('hello from a plugin')\n" + BACKEND}
    write_distribution(site, "loud", backends={"loud": "loud_pack:Fast"}, modules=modules)
    assert registry().find("loud").load() is not None
    out, err = capfd.readouterr()
    assert (out, err.strip()) == ("", "hello from a plugin")


def test_two_backends_that_fail_for_one_reason_are_one_warning(site, warnings):
    points = {"one": "broken_pack:One", "two": "broken_pack:Two"}
    write_distribution(site, "broken", backends=points, modules={"broken_pack": "import gone"})
    for offer in registry().offers:
        offer.load()
    assert len(warnings()) == 1


def test_of_one_package_the_sound_backend_survives_the_broken_one(site):
    modules = {"sound_mod": BACKEND, "broken_mod": "import gone"}
    write_distribution(site, "mixed", backends={"sound": "sound_mod:Fast", "bad": "broken_mod:Fast"}, modules=modules)
    found = registry()
    assert found.find("bad").load() is None
    assert found.find("sound").load() is not None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("Fast = 7", "pack:Fast is 7, not a subclass of headstock.AttentionBackend"),
        ("class Fast: pass", "not a subclass of headstock.AttentionBackend"),
        (BACKEND.replace("def forward", "def forwards"), "pack:Fast does not implement forward"),
        (BACKEND + "\nFast.api_version = 99", "is written for version 99 of the backend contract, and headstock"),
        (BACKEND + "\nFast.api_version = '1'", "is written for version '1' of the backend contract"),
        (BACKEND + "\nFast.api_version = None", "is written for version None of the backend contract"),
        (BACKEND + "\nFast.Options = dict", "has Options that are no frozen dataclass"),
    ],
)
def test_what_is_no_backend_is_refused_with_the_reason(site, source, reason):
    write_distribution(site, "odd", backends={"odd": "pack:Fast"}, modules={"pack": source})
    offer = registry().find("odd")
    assert offer.load() is None
    assert offer.record.status == "refused"
    assert reason in offer.record.reason


@pytest.mark.parametrize(("step", "loads"), [(1, False), (0, True), (-1, True), (-2, False)])
def test_versions_n_and_n_minus_one_of_the_contract_load(site, step, loads):
    source = f"{BACKEND}\nfrom headstock.core.attention import API_VERSION\nFast.api_version = API_VERSION + {step}"
    write_distribution(site, "aged", backends={"aged": "aged_pack:Fast"}, modules={"aged_pack": source})
    assert (registry().find("aged").load() is not None) == loads


class TestUnknown:
    def test_error_says_what_was_meant_what_is_known_and_how_to_list_it(self):
        with pytest.raises(BackendError) as error:
            only_two(load_plugins(environ={})).backends.find("spda")
        assert str(error.value) == (
            'attention backend "spda" is not known: no installed package offers it.\n'
            "  did you mean: sdpa\n"
            "  known here: reference, sdpa\n"
            "  list them with: headstock backends"
        )

    def test_a_known_one_whose_package_is_missing_says_so(self, site):
        source = BACKEND + (
            "\nfrom headstock.core.attention import Requirement"
            "\nFast.requires = (Requirement(package='no-such-kernels', versions='>=2.8'),)"
        )
        write_distribution(site, "bf", backends={"blitz": "bf_pack:Fast"}, modules={"bf_pack": source})
        with pytest.raises(BackendError) as error:
            registry().find("BLTZ")
        assert "did you mean: blitz\n" in str(error.value)
        assert "known here: blitz (unavailable: package no-such-kernels is not installed), cpu" in str(error.value)

    def test_a_name_is_known_while_its_plugin_is_installed_and_unknown_after(self, site):
        folder = write_distribution(site, "fast", backends={"FAST": "fast_pack:Fast"}, modules={"fast_pack": BACKEND})
        assert registry().find("fast").load() is not None
        (folder / "entry_points.txt").write_text("")
        with pytest.raises(BackendError, match='"fast" is not known: no installed package offers it'):
            registry().find("fast")

    @pytest.mark.parametrize("name", ["headstock:nothing", "nobody:sdpa", ":", "sdpa:", ""])
    def test_a_package_and_name_that_do_not_exist_are_unknown(self, name):
        with pytest.raises(BackendError, match="is not known"):
            registry().find(name)

    def test_without_any_backend_it_is_our_install_that_is_broken(self):
        with pytest.raises(BackendError, match=r"known here: none[^$]*reinstall it: pip install headstock"):
            BackendRegistry(()).find("sdpa")


class TestClash:
    """Two packages offer FAST; one of them offers FAST_MLA as well."""

    @pytest.fixture(autouse=True)
    def _two(self, site):
        points = {"FAST": "p1_pack:Fast", "FAST_MLA": "p1_pack:Fast"}
        write_distribution(site, "P1", backends=points, modules={"p1_pack": BACKEND})
        write_distribution(site, "p2", "2.0", backends={"fast": "p2_pack:Fast"}, modules={"p2_pack": BACKEND})

    def test_the_name_alone_is_an_error_that_names_both(self):
        with pytest.raises(BackendError) as error:
            registry().find("Fast")
        assert str(error.value) == (
            'attention backend "Fast" is offered by more than one:\n'
            "  p1:FAST is p1_pack:Fast of P1 1.0\n"
            "  p2:fast is p2_pack:Fast of p2 2.0\n"
            "  say which, e.g. p1:FAST, or switch one off: HEADSTOCK_DISABLE_PLUGINS=PACKAGE"
        )

    @pytest.mark.parametrize(
        ("name", "module"), [("p1:FAST", "p1_pack"), ("P1:fast", "p1_pack"), ("p2:Fast", "p2_pack")]
    )
    def test_package_and_name_say_which(self, name, module):
        assert registry().find(name).load().__module__ == module

    def test_other_names_are_not_touched(self):
        found = registry()
        assert found.find("fast_mla").label == "FAST_MLA"
        assert found.find("sdpa").load() is not None

    def test_loading_twice_changes_nothing(self):
        first, second = registry(), registry()
        assert first.find("p1:fast").load() is second.find("p1:fast").load()
        assert [o.label for o in first.offers] == [o.label for o in second.offers]


def test_one_package_that_offers_a_name_twice_has_to_be_repaired(site):
    points = {"FAST": "p1_pack:Fast", "fast": "p1_pack:Other"}
    write_distribution(site, "p1", backends=points, modules={"p1_pack": BACKEND})
    with pytest.raises(BackendError, match="the package offers it twice"):
        registry().find("p1:fast")


def test_one_package_that_offers_the_same_object_under_two_spellings_is_no_clash(site):
    points = {"FAST": "p1_pack:Fast", "fast": "p1_pack:Fast"}
    write_distribution(site, "p1", backends=points, modules={"p1_pack": BACKEND})
    assert registry().find("fast").load() is not None


class TestBuiltInName:
    @pytest.fixture(autouse=True)
    def _rival(self, site):
        write_distribution(site, "p3", "3.1", backends={"SDPA": "p3_pack:Fast"}, modules={"p3_pack": BACKEND})

    def test_the_name_stays_with_the_built_in_backend_and_that_is_told(self, warnings):
        assert registry().find("sdpa").record.distribution == "headstock"
        (warning,) = warnings()
        assert "p3 3.1 offers a backend under the built-in name" in warning
        assert "only when asked for as p3:SDPA" in warning

    def test_an_alias_of_it_stays_too(self):
        assert registry().find("TORCH_SDPA").record.distribution == "headstock"

    def test_the_package_has_to_be_named_to_replace_it(self):
        assert registry().find("p3:sdpa").label == "p3:SDPA"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Auto", "which stands for the automatic choice"), ("headstock:sdpa", "has a colon, which stands between")],
)
def test_some_names_cannot_be_had(site, name, reason):
    write_distribution(site, "p4", backends={name: "p4_pack:Fast"}, modules={"p4_pack": BACKEND})
    (offer,) = [offer for offer in registry().offers if offer.record.distribution == "p4"]
    assert offer.load() is None
    assert (offer.record.status, reason in offer.record.reason) == ("refused", True)


class TestRegister:
    """Classes of the running program."""

    def test_a_class_can_be_offered_without_a_package(self):
        mine = backend("Mine")
        found = registry()
        found.register("mine", mine)
        assert found.find("MINE").load() is mine

    def test_doing_it_again_changes_nothing(self):
        mine, found = backend("Mine"), registry()
        assert found.register("mine", mine) is found.register("Mine", mine)
        assert len([o for o in found.offers if o.label == "mine"]) == 1

    def test_another_class_under_the_name_is_refused(self):
        found = registry()
        found.register("mine", backend("Mine"))
        with pytest.raises(BackendError, match=r'"mine" is taken: this program offers .*Mine under it'):
            found.register("mine", backend("Other"))
        with pytest.raises(BackendError, match='"sdpa" is taken: headstock'):
            found.register("sdpa", backend("Other"))

    def test_a_class_that_is_no_backend_is_refused(self):
        with pytest.raises(BackendError, match='"mine" cannot be registered'):
            registry().register("mine", int)
