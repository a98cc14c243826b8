"""AMD's cards, from trees as the kernel driver makes them."""

from __future__ import annotations

import pytest

from headstock.selector.rocm import gfx_name, rocm_nodes

CPU_NODE = "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n"
MI300X = "simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\ndrm_render_minor {minor}\nunique_id 12345\n"
HBM = "heap_type 1\nsize_in_bytes 206141652992\nflags 0\nwidth 8192\nmem_clk_max 1300\n"
HOST_MEMORY = "heap_type 0\nsize_in_bytes 1000000000000\n"


def machine(root, *nodes, product=None):
    """A tree with these nodes: text of their properties, and of their memory banks."""
    for number, (properties, banks) in enumerate(nodes):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(properties)
        for index, bank in enumerate(banks):
            (folder / f"mem_banks/{index}").mkdir(parents=True)
            (folder / f"mem_banks/{index}/properties").write_text(bank)
    if product:
        folder = root / "sys/class/drm/renderD128/device"
        folder.mkdir(parents=True)
        (folder / "product_name").write_text(product + "\n")
    return root


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (90006, "gfx906"),
        (100300, "gfx1030"),
        (110000, "gfx1100"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
    ],
)
def test_target_versions_have_the_names_of_compilers(version, name):
    assert gfx_name(version) == name


def test_cards_are_listed_and_cpus_are_not(tmp_path):
    cards = [(MI300X.format(minor=minor), [HBM]) for minor in (128, 129)]
    root = machine(tmp_path, (CPU_NODE, [HOST_MEMORY]), *cards, product="AMD Instinct MI300X OAM")
    first, second = rocm_nodes(root, {})
    assert (first.name, first.arch, first.units, first.memory_bytes) == (
        "AMD Instinct MI300X OAM",
        "gfx942",
        304,
        206_141_652_992,
    )
    assert second.name == "AMD gfx942"


def test_nodes_come_in_order_of_number(tmp_path):
    nodes = [(f"simd_count {4 * n}\nsimd_per_cu 4\ngfx_target_version 90010\n", []) for n in range(1, 13)]
    assert [node.units for node in rocm_nodes(machine(tmp_path, *nodes), {})] == list(range(1, 13))


def test_host_memory_that_a_card_can_reach_is_not_its_own(tmp_path):
    (card,) = rocm_nodes(machine(tmp_path, (MI300X.format(minor=0), [HOST_MEMORY, HBM, HBM])), {})
    assert card.memory_bytes == 2 * 206_141_652_992


def test_a_card_that_the_container_has_no_right_to_is_left_out(tmp_path):
    root = machine(tmp_path, ("", []), (MI300X.format(minor=0), [HBM]))
    assert len(rocm_nodes(root, {})) == 1


@pytest.mark.parametrize(
    ("environ", "units"),
    [
        ({}, [1, 2, 3, 4]),
        ({"ROCR_VISIBLE_DEVICES": "1,3"}, [2, 4]),
        ({"HIP_VISIBLE_DEVICES": "3,0"}, [4, 1]),
        ({"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1"}, [4]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [3]),
        ({"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "0"}, [1]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "0,9"}, [1]),
    ],
)
def test_the_environment_hides_and_reorders(tmp_path, environ, units):
    nodes = [(f"simd_count {4 * n}\nsimd_per_cu 4\ngfx_target_version 90010\n", []) for n in range(1, 5)]
    assert [node.units for node in rocm_nodes(machine(tmp_path, *nodes), environ)] == units


def test_cards_chosen_by_uuid_are_left_to_the_runtime(tmp_path):
    root = machine(tmp_path, (MI300X.format(minor=0), [HBM]))
    assert rocm_nodes(root, {"ROCR_VISIBLE_DEVICES": "GPU-deadbeef"}) is None


def test_without_the_driver_nothing_is_known(tmp_path):
    assert rocm_nodes(tmp_path, {}) is None
