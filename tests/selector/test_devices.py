"""Devices of this machine and by name, with stand-ins for torch's builds."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from headstock.core.attention import DTYPE_FORMATS, KV_FORMATS, Device
from headstock.core.errors import InvalidInput
from headstock.plugins import Hooks
from headstock.selector import PROFILES, find_device, probe, profile
from headstock.selector.devices import cuda_devices, idle_accelerators, mps_devices, rocm_devices, xe_name, xpu_devices

H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, total_memory=85_045_018_624,
    memory_clock_rate=2_619_000, memory_bus_width=5120,
)  # fmt: skip
UNKNOWN = SimpleNamespace(
    name="NVIDIA L40S", major=8, minor=9, multi_processor_count=142, total_memory=47_810_936_832,
    memory_clock_rate=9_001_000, memory_bus_width=384,
)  # fmt: skip


def torch_for(*cards, cuda=None, hip=None):
    """As much of torch as probing looks at."""

    def properties(index):
        if isinstance(cards[index], Exception):
            raise cards[index]
        return cards[index]

    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda, hip=hip),
        cuda=SimpleNamespace(device_count=lambda: len(cards), get_device_properties=properties),
    )


class TestCuda:
    def test_a_card_we_know_takes_bandwidth_and_peaks_from_its_profile_and_memory_from_the_driver(self):
        (device,) = cuda_devices(torch_for(H100, cuda="13.0"))
        assert (device.platform, device.arch, device.capability) == ("cuda", "sm_90", (9, 0))
        assert (device.units, device.memory_bytes) == (132, 85_045_018_624)
        assert (device.bandwidth, device.peak_flops["bfloat16"]) == (3.35e12, 989.4e12)
        assert not device.assumed
        assert device.torch_device == "cuda:0"

    def test_of_another_the_bandwidth_follows_from_clock_and_width(self):
        (device,) = cuda_devices(torch_for(UNKNOWN, cuda="13.0"))
        assert device.bandwidth == pytest.approx(864e9, rel=1e-3)  # as NVIDIA states it
        assert device.peak_flops == {}

    def test_where_torch_tells_neither_it_is_unknown(self):
        card = SimpleNamespace(name="x", major=7, minor=5, multi_processor_count=1, total_memory=1)
        assert cuda_devices(torch_for(card, cuda="12.6"))[0].bandwidth is None

    def test_a_torch_for_cpus_is_not_asked(self):
        assert cuda_devices(torch_for(H100)) == ()

    def test_a_card_that_cannot_be_read_is_told_of_and_left_out(self, warnings):
        devices = cuda_devices(torch_for(RuntimeError("system not yet initialized"), H100, cuda="13.0"))
        assert [device.index for device in devices] == [1]
        assert warnings() == ["cuda:0 is here but cannot be used: system not yet initialized"]


class TestRocm:
    GFX942 = SimpleNamespace(
        name="AMD Instinct MI300X",
        gcnArchName="gfx942:sramecc+:xnack-",
        multi_processor_count=304,
        total_memory=2 * 10**11,
    )

    def test_the_kernels_list_is_enough(self, tmp_path, monkeypatch):
        folder = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
        folder.mkdir(parents=True)
        (folder / "properties").write_text("simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\n")
        for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        untouched = torch_for(RuntimeError("the device was initialised"), hip="7.1")
        (device,) = rocm_devices(untouched, tmp_path)
        assert (device.platform, device.arch, device.units) == ("rocm", "gfx942", 304)
        assert device.torch_device == "cuda:0"

    def test_without_it_torch_is_asked(self, tmp_path):
        (device,) = rocm_devices(torch_for(self.GFX942, hip="7.1"), tmp_path)
        assert (device.arch, device.memory_bytes) == ("gfx942", 2 * 10**11)
        assert device.bandwidth == 5.3e12

    def test_another_build_of_torch_is_not_asked(self, tmp_path):
        assert rocm_devices(torch_for(self.GFX942, cuda="13.0"), tmp_path) == ()


def torch_with_xpu(*cards):
    """As much of a torch for Intel's GPUs as probing looks at."""
    xpu = torch_for(*cards).cuda
    xpu.is_available = lambda: bool(cards)
    return SimpleNamespace(xpu=xpu)


class TestXpu:
    B580 = SimpleNamespace(
        name="Intel(R) Arc(TM) B580 Graphics", architecture=0x05004004, gpu_subslice_count=20, max_compute_units=160,
        total_memory=12_168_933_376,
    )  # fmt: skip

    def test_a_card_we_know_takes_bandwidth_and_peaks_from_its_profile(self):
        (device,) = xpu_devices(torch_with_xpu(self.B580))
        assert (device.platform, device.arch, device.units) == ("xpu", "xe_20.1", 20)
        assert (device.memory_bytes, device.bandwidth) == (12_168_933_376, 456e9)
        assert (device.torch_device, device.assumed) == ("xpu:0", False)

    def test_an_older_torch_tells_less(self):
        card = SimpleNamespace(name="Intel(R) Arc(TM) A770 Graphics", max_compute_units=512, total_memory=16 * 2**30)
        (device,) = xpu_devices(torch_with_xpu(card))
        assert (device.arch, device.units, device.bandwidth) == ("xe", 512, None)

    def test_a_card_that_cannot_be_read_is_told_of_and_left_out(self, warnings):
        devices = xpu_devices(torch_with_xpu(RuntimeError("level-zero: device lost"), self.B580))
        assert [device.index for device in devices] == [1]
        assert warnings() == ["xpu:0 is here but cannot be used: level-zero: device lost"]

    def test_the_architecture_is_major_and_minor(self):
        assert [xe_name(n) for n in (0x030F0007, 0x05004004, 0x030DC008, 0)] == [
            "xe_12.60",
            "xe_20.1",
            "xe_12.55",
            "xe",
        ]

    @pytest.mark.parametrize("torch", [SimpleNamespace(), torch_with_xpu()], ids=["no xpu", "no card"])
    def test_a_torch_without_them_has_none(self, torch):
        assert xpu_devices(torch) == ()


def torch_on_a_mac(**backend):
    return SimpleNamespace(
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True, **backend)),
        mps=SimpleNamespace(recommended_max_memory=lambda: 96 * 2**30),
    )


class TestMps:
    def test_a_chip_we_know_takes_its_bandwidth_from_its_profile(self):
        (device,) = mps_devices(torch_on_a_mac(get_name=lambda: "Apple M4 Max", get_core_count=lambda: 40))
        assert (device.platform, device.name, device.units) == ("mps", "Apple M4 Max", 40)
        assert (device.memory_bytes, device.bandwidth, device.peak_flops) == (96 * 2**30, 546e9, {})
        assert device.torch_device == "mps:0"

    def test_an_older_torch_leaves_the_name_to_the_system(self, monkeypatch):
        monkeypatch.setattr(
            "headstock.selector.host.sysctl", lambda name: {"machdep.cpu.brand_string": "Apple M1"}.get(name, "")
        )
        (device,) = mps_devices(torch_on_a_mac())
        assert (device.name, device.units, device.bandwidth) == ("Apple M1", 1, None)

    @pytest.mark.parametrize(
        "backends",
        [SimpleNamespace(), SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))],
        ids=["no mps", "no chip"],
    )
    def test_elsewhere_there_is_none(self, backends):
        assert mps_devices(SimpleNamespace(backends=backends)) == ()


class TestIdle:
    """Cards that are here and cannot be used are told of: nobody should find out by the clock."""

    def test_an_nvidia_driver_and_a_torch_for_cpus(self, tmp_path):
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 580")
        (reason,) = idle_accelerators(torch_for(), tmp_path)
        assert reason == "an NVIDIA driver is here, but torch 2.13.0 is not built for CUDA"
        (reason,) = idle_accelerators(torch_for(cuda="13.0"), tmp_path)
        assert "sees no card (CUDA_VISIBLE_DEVICES, or an old driver)" in reason
        assert idle_accelerators(torch_for(H100, cuda="13.0"), tmp_path) == ()

    def test_an_amd_card_and_a_torch_without_rocm(self, tmp_path):
        folder = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
        folder.mkdir(parents=True)
        (folder / "properties").write_text("simd_count 8\nsimd_per_cu 2\ngfx_target_version 110000\n")
        assert idle_accelerators(torch_for(), tmp_path) == (
            "an AMD card is here, but torch 2.13.0 is not built for ROCm",
        )
        assert idle_accelerators(torch_for(hip="7.1"), tmp_path) == ()

    def test_nothing_is_said_where_there_is_no_card(self, tmp_path):
        assert idle_accelerators(torch_for(), tmp_path) == ()


class Npu(Hooks):
    """Hooks of a package that brings a device."""

    def __init__(self):
        super().__init__(())

    def devices(self):
        return (Device(platform="npu", name="A card", arch="n1"), Device(platform="npu", name="B", arch="n1", index=1))


class TestByName:
    def test_none_is_the_best_here_and_cpus_are_the_last(self):
        assert find_device() == probe()[0]
        assert probe()[-1].platform == "cpu"
        assert [device.name for device in probe(Npu())[:2]] == ["A card", "B"]
        assert find_device(None, Npu()).platform == "npu"

    def test_a_platform_is_a_device_of_this_machine(self):
        assert find_device("CPU").name == probe()[-1].name
        assert find_device("npu:1", Npu()).name == "B"

    @pytest.mark.parametrize("name", ["mi300x", "MI300X", "mi-300x", " MI 300X "])
    def test_a_profile_in_any_spelling(self, name):
        assert find_device(name) is profile("mi300x")

    def test_where_something_is_to_run_a_profile_is_refused_and_none_is_advised(self):
        with pytest.raises(InvalidInput, match=r"device: AMD Instinct MI300X is a profile, .* which has .*cpu:0 "):
            find_device("mi300x", profiles=False)
        with pytest.raises(InvalidInput, match=r"'xpu' is not on this machine, which has .*cpu:0 \([^;]*$"):
            find_device("xpu", profiles=False)

    @pytest.mark.parametrize("name", ["xpu", "cpu:1", "npu:7"])
    def test_a_platform_that_is_not_here_is_no_profile(self, name):
        with pytest.raises(InvalidInput, match=r"device: '\S+' is not on this machine, which has .*cpu:0 "):
            find_device(name, Npu())

    def test_an_unknown_name_has_suggestions_and_all_names(self):
        with pytest.raises(InvalidInput) as error:
            find_device("mi300")
        assert "'mi300' is no known device. did you mean mi300x?" in str(error.value)
        assert all(p.name in str(error.value) for p in PROFILES)


class TestProfiles:
    @pytest.mark.parametrize(
        "name",
        [
            "a100", "h100", "H200", "b200", "l4", "rtx4090", "RTX 4090", "rtx5090", "mi250x", "mi300x", "mi325x",
            "mi355x", "RX 7900 XTX", "rx9070xt", "Arc B580", "max-1550", "m4-max", "M3 Ultra", "cpu-avx2", "cpu-amx",
            "epyc", "graviton3",
        ],
    )  # fmt: skip
    def test_the_cards_people_name_are_there(self, name):
        assert profile(name).assumed

    @pytest.mark.parametrize("p", PROFILES, ids=lambda p: p.name)
    def test_each_is_complete_and_says_where_its_figures_come_from(self, p):
        device = p.device
        assert device.assumed
        assert device.source
        assert device.memory_bytes >= 12 * 2**30
        assert device.bandwidth > 1e11
        assert device.libraries["torch"]
        assert device.units > 1
        storages = {f.storage for f in KV_FORMATS.values()} | set(DTYPE_FORMATS)
        assert set(device.peak_flops) <= storages
        assert "float32" in device.peak_flops or device.platform == "mps"  # Apple states none
        rates = [device.peak_flops[d] for d in ("float64", "float32", "float16") if d in device.peak_flops]
        assert rates == sorted(rates)
        assert (device.capability is not None) == (device.platform == "cuda")
        assert not p.pattern or re.fullmatch(p.pattern, device.name)

    def test_names_and_aliases_are_unique(self):
        names = [re.sub(r"[-_]", "", name) for p in PROFILES for name in (p.name, *p.aliases)]
        assert len(names) == len(set(names))

    @pytest.mark.parametrize(
        ("name", "dtype", "ridge"),
        [("a100", "bfloat16", 153), ("h100", "bfloat16", 295), ("b200", "bfloat16", 281), ("mi300x", "bfloat16", 247),
         ("h200", "bfloat16", 206), ("mi355x", "bfloat16", 315), ("l4", "bfloat16", 403)],
    )  # fmt: skip
    def test_operations_a_byte_are_those_of_the_rooflines_people_draw(self, name, dtype, ridge):
        device = profile(name)
        assert device.peak_flops[dtype] / device.bandwidth == pytest.approx(ridge, abs=1)

    def test_a_card_of_similar_name_is_not_taken_for_another(self):
        laptop = SimpleNamespace(
            name="NVIDIA GeForce RTX 4090 Laptop GPU", major=8, minor=9, multi_processor_count=76, total_memory=1
        )
        assert cuda_devices(torch_for(laptop, cuda="13.0"))[0].bandwidth is None
