"""The limits are positive and plausible."""

from __future__ import annotations

import pytest
import torch

from headstock.benchmarks.kernels.limits import gemm_limit, machine_limits, read_limit


def best(limit):
    return limit.rate(min(limit.turn(3, warm=True)))


@pytest.mark.parametrize("nbytes", [1, 2**20, 64 * 2**20])
def test_reading_is_counted_in_the_bytes_that_are_read(nbytes):
    limit = read_limit(nbytes)
    assert limit.work == max(nbytes, 4096)
    assert limit.unit == "GB/s"
    assert 0.001 < best(limit) < 10_000


def test_no_more_is_read_than_shows_the_bandwidth_of_memory():
    assert read_limit(10 * 2**30).work == 256 * 2**20
    assert read_limit(10 * 2**30).name == "read 256 MiB"


def test_a_product_takes_two_operations_a_pair():
    limit = gemm_limit("float32")
    size = int(limit.name.split()[-1].removesuffix("³"))
    assert limit.work == 2 * size**3
    assert 0.1 < best(limit) < 1e6


def test_the_machine_is_measured_on_each_number_of_threads():
    before = torch.get_num_threads()
    try:
        rows = machine_limits((1,), ("float32",), 8 * 2**20)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert [(row.name.split()[0], row.threads, row.unit) for row in rows] == [
        ("read", 1, "GB/s"),
        ("read", 1, "GB/s"),
        ("float32", 1, "GFLOP/s"),
    ]
    assert rows[1].name == "read 2 MiB", "a quarter of the cache"
    assert all(row.rate > 0 for row in rows)
