"""The layer over AITER: what an op is bound to, what takes its place, and what cannot."""

from __future__ import annotations

import inspect

import pytest
from packaging.version import Version

from headstock.backends import _aiter_ops
from headstock.backends._aiter_ops import OPS, AiterOptions, bind
from headstock.backends.rocm import AiterUnified
from headstock.core.attention import AttentionSpec
from headstock.core.errors import BackendError, InvalidInput
from headstock.plugins import load_plugins
from headstock.selector import Selector, list_backends, read_policy
from headstock.selector.profiles import profile
from support.doubles import aiter
from support.doubles.install import distribution, install
from support.doubles.signatures import recorded
from support.plugins import write_distribution

MI300X = profile("mi300x")
SPEC = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=128, dtype="bfloat16")
KERNEL = """
def attend(**arguments):
    arguments["out"].fill_(7)
def few(q, k, v): ...
number = 7
"""


def options(**ops):
    return AiterOptions(aiter_ops=ops)


def chosen(**given):
    """The options that rocm_aiter_unified is chosen with."""
    policy = read_policy(attention_backend="rocm_aiter_unified", **given)
    selection = Selector(load_plugins(), policy).propose({"layer": SPEC}, MI300X)
    return dict(selection.choices["layer"].options.aiter_ops)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("release", [*aiter.OLD, *aiter.NEW])
def test_every_recorded_release_takes_what_backends_give(name, release):
    version = release.removeprefix("aiter-").replace("main-2026-08-22", "0.1.21.dev0")
    if Version(version) < Version(OPS[name].since):
        assert not any(function.endswith(name) for function in recorded(release))
        return
    home = OPS[name].home(version).replace(":", ".")
    recorded(release)[home].bind(**dict.fromkeys(OPS[name].arguments))


@pytest.mark.parametrize("releases", [aiter.OLD, aiter.NEW])
def test_an_op_is_found_where_the_release_has_it(releases, monkeypatch, tmp_path):
    distribution(monkeypatch, tmp_path, "amd-aiter", releases[0].removeprefix("aiter-"))
    install(monkeypatch, aiter.aiter(releases))
    assert "seqused_k" in inspect.signature(bind("unified_attention", AiterOptions())).parameters


def test_an_op_that_came_later_says_since_when(monkeypatch, tmp_path):
    distribution(monkeypatch, tmp_path, "amd-aiter", "0.1.6")
    with pytest.raises(BackendError, match=r"unified_attention.*is new in amd-aiter 0\.1\.7, and 0\.1\.6 is installed"):
        bind("unified_attention", AiterOptions())


def test_a_release_whose_function_changed_is_refused(monkeypatch, tmp_path):
    distribution(monkeypatch, tmp_path, "amd-aiter", "0.1.20.post1")
    double = aiter.aiter()
    double["aiter.ops.triton.attention.unified_attention"].unified_attention = lambda query, key: None
    install(monkeypatch, double)
    with pytest.raises(BackendError, match=r"does not fit.*it is called with q, k, v"):
        bind("unified_attention", AiterOptions())


def test_without_the_library_the_error_says_so():
    with pytest.raises(BackendError, match="package amd-aiter is not installed"):
        bind("unified_attention", AiterOptions())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_kernels:attend", ""),
        ("my_kernels:gone", r"put in its place, cannot be loaded.*gone"),
        ("nowhere.at_all:f", r"put in its place, cannot be loaded.*nowhere"),
        ("my_kernels:few", "does not fit"),
        ("my_kernels:number", "is no function"),
    ],
)
@pytest.mark.usefixtures("library")
def test_what_takes_the_place_of_an_op(target, message, site):
    (site / "my_kernels.py").write_text(KERNEL)
    if not message:
        assert bind("unified_attention", options(unified_attention=target)).__name__ == "attend"
        return
    with pytest.raises(BackendError, match=message):
        bind("unified_attention", options(unified_attention=target))


@pytest.mark.parametrize("given", [{"unifed": "a:b"}, {"unified_attention": "a.b"}, {"unified_attention": 3}, "a:b"])
def test_wrong_options_are_refused(given):
    with pytest.raises(InvalidInput, match="aiter_ops"):
        AiterUnified.parse_options({"aiter_ops": given})


def test_options_are_values():
    assert options(unified_attention="a:b") == AiterOptions(aiter_ops=(("unified_attention", "a:b"),))
    assert hash(options(unified_attention="a:b")) == hash(options(unified_attention="a:b"))


class TestPlugins:
    def test_an_entry_point_takes_the_place_of_an_op(self, site):
        write_distribution(site, "fast", aiter_ops={"unified_attention": "my_kernels:attend"})
        assert chosen() == {"unified_attention": "my_kernels:attend"}

    def test_what_the_user_says_goes_first(self, site):
        write_distribution(site, "fast", aiter_ops={"unified_attention": "my_kernels:attend"})
        config = {"rocm_aiter_unified": {"aiter_ops": {"unified_attention": "mine:f"}}}
        assert chosen(attention_backend_config=config) == {"unified_attention": "mine:f"}

    @pytest.mark.parametrize(("switch", "value"), [("HEADSTOCK_DISABLE_PLUGINS", "fast"), ("HEADSTOCK_PLUGINS", "x")])
    def test_a_plugin_that_is_off_replaces_nothing(self, switch, value, site, monkeypatch):
        write_distribution(site, "fast", aiter_ops={"unified_attention": "my_kernels:attend"})
        monkeypatch.setenv(switch, value)
        assert chosen() == {}

    def test_two_that_replace_the_same_are_told_of_and_neither_is_used(self, site, caplog):
        for name in ("fast", "faster"):
            write_distribution(site, name, aiter_ops={"unified_attention": f"{name}:attend"})
        assert chosen() == {}
        assert "replaced by fast 1.0 (fast:attend) and faster 1.0 (faster:attend): neither is used" in caplog.text

    def test_they_are_listed_with_the_other_plugins(self, site):
        write_distribution(site, "fast", aiter_ops={"unified_attention": "my_kernels:attend"})
        listed = list_backends(Selector(load_plugins()), MI300X).plugins
        assert [(row.name, row.distribution, row.verdict) for row in listed] == [
            ("unified_attention", "fast", "not loaded")
        ]


def test_the_layer_stays_small():
    assert len(inspect.getsource(_aiter_ops).splitlines()) < 400
