"""Reading what is installed, before any of it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headstock.core.version import __version__
from headstock.plugins import discovery, load_plugins
from support.plugins import BACKEND, write_distribution

EXPLODES = "raise AssertionError('imported')"


def records(name):
    """Status and reason of everything that a package offers."""
    found = [r for r in load_plugins(environ={}).records if r.distribution == name]
    return {r.name: (r.status, r.reason) for r in found}


def test_the_built_in_backends_take_the_same_road():
    found = {r.name: (r.distribution, r.version, r.target) for r in load_plugins(environ={}).records if r.builtin}
    assert found["sdpa"] == ("headstock", __version__, "headstock.backends.sdpa:SdpaBackend")
    assert found["reference"] == ("headstock", __version__, "headstock.backends.reference:ReferenceBackend")


def test_discovery_imports_neither_torch_nor_a_plugin(site):
    write_distribution(site, "loud", backends={"loud": "loud_pack:Fast"}, modules={"loud_pack": EXPLODES})
    code = (
        "import sys; from headstock.plugins import load_plugins; p = load_plugins();"
        "print({'loud', 'sdpa'} <= {o.label for o in p.backends.offers}, 'torch' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "True False\n"


@pytest.mark.parametrize(
    ("requires", "status"),
    [
        ("headstock>=99", "refused"),
        ("headstock<0.0.1", "refused"),
        ("Headstock >=99,<100 ; python_version >= '3'", "refused"),
        ("headstock>=99; python_version < '3'", "not loaded"),
        ("headstock>=99; extra == 'dev'", "not loaded"),
        ("headstock>=0.0.1", "not loaded"),
        ("headstock-other>=99", "not loaded"),
        ("headstock", "not loaded"),
    ],
)
def test_a_package_made_for_another_headstock_is_refused_before_import(site, requires, status):
    modules = {"future_pack": EXPLODES}
    write_distribution(site, "future", backends={"f": "future_pack:Fast"}, modules=modules, requires=[requires])
    assert records("future")["f"][0] == status


def test_the_refusal_says_who_needs_what_and_what_is_here(site):
    write_distribution(
        site,
        "future",
        "2.5",
        backends={"f": "future_pack:Fast"},
        hooks={"f": "future_pack"},
        requires=["headstock>=99"],
    )
    expected = (
        f"future 2.5 needs headstock >=99, and this is headstock {__version__}; install a version of future for it"
    )
    plugins = load_plugins(environ={})
    for record in plugins.records:
        if record.distribution == "future":
            assert record.status == "refused"
            assert record.reason.startswith(expected)


@pytest.mark.parametrize("text", ["[headstock.backends]\nno equals sign\n", "[headstock.backends\n="])
def test_entry_points_that_cannot_be_read_harm_nobody_else(site, text):
    folder = write_distribution(site, "garbled")
    (folder / "entry_points.txt").write_text(text)
    assert [r.status for r in load_plugins(environ={}).records if r.distribution == "garbled"] in ([], ["failed"])
    assert load_plugins(environ={}).backends.find("sdpa").load() is not None


def test_a_package_with_half_its_metadata_gone_is_listed_as_failed(site, warnings):
    folder = write_distribution(site, "halved", backends={"h": "halved_pack:Fast"}, modules={"halved_pack": BACKEND})
    (folder / "METADATA").unlink()
    plugins = load_plugins(environ={})
    (record,) = [r for r in plugins.records if r.distribution == "halved"]
    assert record.status in ("failed", "not loaded")
    assert plugins.backends.find("sdpa").load() is not None


def test_what_pip_left_of_an_uninstall_is_no_plugin(site):
    write_distribution(site, "fast", backends={"fast": "fast_pack:Fast"}, info="~ast-1.0.dist-info")
    assert load_plugins(environ={}).backends.get("fast") is None


def test_of_two_installed_copies_the_first_on_the_path_counts(tmp_path, site, monkeypatch):
    other = tmp_path / "other"
    write_distribution(other, "copied", "1.0", backends={"old": "copied_pack:Fast"}, modules={"copied_pack": BACKEND})
    monkeypatch.syspath_prepend(str(other))
    write_distribution(site, "copied", "2.0", backends={"new": "copied_pack:Fast"}, modules={"copied_pack": BACKEND})
    assert set(records("copied")) == {"old"}


def test_one_copy_seen_twice_is_no_clash(site, monkeypatch):
    write_distribution(site, "seen", backends={"seen": "seen_pack:Fast"}, modules={"seen_pack": BACKEND})
    monkeypatch.syspath_prepend(str(site / "."))
    assert load_plugins(environ={}).backends.find("seen").load() is not None


def test_the_order_on_the_path_changes_nothing(tmp_path, monkeypatch):
    for name in ("aaa", "zzz"):
        write_distribution(tmp_path / name, name, backends={name: f"{name}_pack:Fast", "both": f"{name}_pack:Fast"})
    orders = []
    for order in (("aaa", "zzz"), ("zzz", "aaa")):
        with monkeypatch.context() as patch:
            for name in order:
                patch.syspath_prepend(str(tmp_path / name))
            orders.append([(o.label, o.record.package) for o in load_plugins(environ={}).backends.offers])
    assert orders[0] == orders[1]
    assert ("aaa:both", "aaa 1.0") in orders[0]


class TestStaleInstall:
    """A checkout in which more is declared than the installed metadata know."""

    def test_egg_info_in_the_checkout_does_not_shadow_what_is_installed(self, site):
        stale = {"gone": "headstock.backends.gone:Gone"}
        write_distribution(site, "headstock", "0.0.1", backends=stale, info="headstock.egg-info")
        found = load_plugins(environ={}).backends
        assert found.find("sdpa").load() is not None
        assert found.get("gone") is None

    def test_a_backend_that_the_metadata_lack_says_reinstall(self, tmp_path, monkeypatch):
        pyproject = tmp_path / "pyproject.toml"
        pyproject.write_text(
            '[project]\nname = "headstock"\n[project.entry-points."headstock.backends"]\n'
            'sdpa = "headstock.backends.sdpa:SdpaBackend"\nfresh = "headstock.backends.fresh:Fresh"\n'
        )
        monkeypatch.setattr(discovery, "CHECKOUT", pyproject)
        found = load_plugins(environ={}).backends
        assert found.find("sdpa").load() is not None
        assert "reinstall: pip install -e ." in found.find("fresh").forbids()

    def test_another_projects_file_beside_the_package_is_not_ours(self, tmp_path, monkeypatch):
        pyproject = tmp_path / "pyproject.toml"
        pyproject.write_text('[project]\nname = "mine"\n[project.entry-points."headstock.backends"]\nx = "m:X"\n')
        monkeypatch.setattr(discovery, "CHECKOUT", pyproject)
        assert load_plugins(environ={}).backends.get("x") is None

    def test_the_checkout_declares_what_is_installed(self):
        assert [r.reason for r in load_plugins(environ={}).records if r.builtin and r.status == "failed"] == []
