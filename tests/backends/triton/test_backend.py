"""What the triton backend offers where, and how it plans. Its kernels run in the interpreter in the other files."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headstock.backends.triton import TritonBackend, environment
from headstock.backends.triton.tuning import FAMILIES, TritonOptions, Tuning, family_of, shared_bytes
from headstock.core.attention import Capabilities, Device
from headstock.core.errors import InvalidInput
from headstock.selector.profiles import PROFILES
from support.attention import CPU, uniform_spec

H100 = Device(platform="cuda", name="H100", arch="sm_90", capability=(9, 0), units=132)
MI300X = Device(platform="rocm", name="MI300X", arch="gfx942", units=304)


def test_every_profile_of_a_card_that_triton_compiles_for_is_offered_something():
    for device in (profile.device for profile in PROFILES):
        known = device.platform == "cpu" or device.arch.startswith(tuple(FAMILIES))
        assert (TritonBackend.capabilities(device) != Capabilities()) == known, device.arch


@pytest.mark.parametrize(
    ("device", "offered"),
    [
        (replace(H100, arch="sm_80", capability=(8, 0)), {"fp8_e5m2"}),
        (replace(H100, arch="sm_89", capability=(8, 9)), {"fp8_e4m3", "fp8_e5m2"}),
        (H100, {"fp8_e4m3", "fp8_e5m2"}),
        (MI300X, {"fp8_e4m3fnuz"}),
        (replace(MI300X, arch="gfx90a"), set()),
        (replace(MI300X, arch="gfx950"), {"fp8_e4m3", "fp8_e5m2"}),
        (replace(MI300X, arch="gfx1201"), {"fp8_e4m3", "fp8_e5m2"}),
    ],
    ids=lambda value: getattr(value, "arch", ""),
)
def test_8_bit_floats_are_those_of_the_card(device, offered):
    formats = TritonBackend.capabilities(device).kv_formats
    assert {name for name in formats if name.startswith("fp8")} == offered
    assert {"int8_per_tensor", "int8_per_head", "bf16"} <= formats


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "gfx906", "gfx1030", "unheard-of"])
def test_older_cards_are_offered_nothing(arch):
    platform = "cuda" if arch.startswith("sm") else "rocm"
    device = Device(platform=platform, name=arch, arch=arch, capability=(7, 0))
    assert TritonBackend.capabilities(device) == Capabilities()


def test_a_cpu_is_refused_unless_the_variable_is_set_and_a_card_if_it_is(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert TritonBackend.refusals(uniform_spec(), H100) == ()
    (reason,) = TritonBackend.refusals(uniform_spec(), CPU)
    assert str(reason).startswith("device: asked cpu, offered cuda and rocm; the cpu where TRITON_INTERPRET=1 is set")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert TritonBackend.refusals(uniform_spec(), CPU) == ()
    (reason,) = TritonBackend.refusals(uniform_spec(), H100)
    assert "unset it" in str(reason)


class TestAvailability:
    @pytest.fixture(autouse=True)
    def no_card(self, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.9.0"))
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def test_without_a_card_the_reason_names_the_variable(self):
        (reason,) = TritonBackend.availability().reasons
        assert "set TRITON_INTERPRET=1" in reason

    def test_with_the_variable_or_a_card_it_is_available(self, monkeypatch):
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        assert TritonBackend.availability().available
        monkeypatch.delenv("TRITON_INTERPRET")
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        assert TritonBackend.availability().available

    @pytest.mark.parametrize(("version", "old"), [("3.1.0", True), ("3.2.0+git1234", False), ("4.0", False)])
    def test_an_old_triton_is_refused_with_both_versions(self, monkeypatch, version, old):
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
        reasons = TritonBackend.availability().reasons
        assert reasons == ((f"triton is {version}, needed is {environment.OLDEST} or newer",) if old else ())

    def test_without_triton_the_reason_says_where_it_comes_from(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "triton", None)
        (reason,) = TritonBackend.availability().reasons
        assert reason.startswith("module triton cannot be imported")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("decode_keys", 8),
        ("prefill_rows", 48),
        ("prefill_keys", -16),
        ("prefill_warps", 3),
        ("decode_stages", 1.5),
        ("prefill_stages", True),
        ("splits", 500),
        ("splits", "2"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(option, value):
    with pytest.raises(InvalidInput, match=option):
        TritonBackend.parse_options({option: value})


class TestTuning:
    def of(self, device=H100, options=None, **changes):
        return Tuning.of(uniform_spec(**changes), device, options or TritonOptions())

    @pytest.mark.parametrize("arch", sorted(FAMILIES.keys() - {"interpreter"}))
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("head_size", [16, 64, 128, 192, 256])
    @pytest.mark.parametrize("group", [1, 3, 8, 128])
    def test_tiles_fit_into_the_shared_memory_of_every_family(self, arch, dtype, head_size, group):
        platform = "cuda" if arch.startswith("sm") else "rocm"
        device = Device(platform=platform, name=arch, arch=arch, units=100)
        spec = uniform_spec(dtype=dtype, head_size=head_size, num_heads=group)
        tuning, family = Tuning.of(spec, device, TritonOptions()), family_of(device)
        for tile in (tuning.prefill, tuning.decode):
            assert shared_bytes(tile, spec) <= family.shared_bytes
            assert tile.tokens(group) >= 1

    def test_a_tile_that_was_asked_for_and_does_not_fit_is_refused(self):
        with pytest.raises(InvalidInput, match="decode_keys: tiles of this size need"):
            self.of(options=TritonOptions(decode_keys=4096), head_size=256)

    @pytest.mark.parametrize("programs", [1, 4, 20, 100, 131])
    def test_splits_fill_the_card(self, programs):
        splits = self.of().num_splits(programs, 100_000)
        last = programs * splits % 132 or 132
        whole = programs * splits // 132
        assert (programs * splits) / ((whole + (last != 132)) * 132) > 0.7

    def test_there_are_no_splits_where_the_card_is_full_or_rows_are_short(self):
        assert self.of().num_splits(132, 100_000) == 1
        assert self.of().num_splits(1, 300) == 1
        assert self.of().num_splits(0, 0) == 1

    def test_a_longer_row_never_has_fewer_splits(self):
        tuning = self.of()
        for programs in range(1, 140):
            found = [tuning.num_splits(programs, 256 * n) for n in range(1, 140, 7)]
            assert found == sorted(found)
