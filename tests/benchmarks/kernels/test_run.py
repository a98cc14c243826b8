"""A run: who gets a time, who does not and why, and what the numbers are made of."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from headstock.backends.sdpa import SdpaBackend
from headstock.benchmarks.interleave import Pace, Samples
from headstock.benchmarks.kernels import run
from headstock.benchmarks.kernels.limits import Limit
from headstock.benchmarks.kernels.peer import Peer
from headstock.benchmarks.kernels.report import Measurement
from headstock.benchmarks.kernels.rows import LIMIT, Task, finished
from headstock.benchmarks.kernels.run import Entry, KernelBench, Settings
from headstock.benchmarks.kernels.shapes import Shape, choose
from headstock.core.attention import AttentionSpec, Sizes
from headstock.entrypoints.compose import installed_plugins
from headstock.selector import Selector, find_device
from support.attention import CPU
from support.plugins import world

SHAPES = choose("decode:2/1/16:2x40,prefill:2/1/16:20", "all", ())
DEVICE = replace(CPU, units=2, memory_bytes=2**40)


class Zeros(SdpaBackend):
    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        out.zero_()


class Hole(SdpaBackend):
    """Leaves the last token as it was."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        rest = out[-1].clone()
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out)
        out[-1] = rest


class Raises(SdpaBackend):
    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        raise RuntimeError("no kernel image")


class Large(SdpaBackend):
    """Takes blocks of 64 only, and head-major ones."""

    @classmethod
    def capabilities(cls, device):
        return replace(SdpaBackend.capabilities(device), block_sizes=Sizes(multiple_of=64), layouts=("hnd",))


class Narrow(SdpaBackend):
    @classmethod
    def capabilities(cls, device):
        return replace(SdpaBackend.capabilities(device), dtypes=frozenset({"float16"}))


BACKENDS = {"zeros": Zeros, "hole": Hole, "raises": Raises, "large": Large, "narrow": Narrow}


def settings(**changes):
    base = {
        "shapes": SHAPES,
        "dtypes": ("float32",),
        "threads": (1,),
        "rounds": 3,
        "budget": 0.01,
        "block_size": 16,
    }
    return Settings(**{**base, **changes})


def measure(*names, peers=(), **changes):
    """Rows of a run over these backends."""
    plugins = world(by_name=BACKENDS)
    offers = [plugins.backends.find(name) for name in names]
    judge = Selector(plugins).judge(DEVICE)
    return list(KernelBench(settings(**changes), Entry.of(offers), peers, judge, plugins.guard).rows())


@pytest.fixture(scope="module")
def rows():
    return measure("sdpa", *BACKENDS)


def of(rows, name):
    return [m for row in rows for m in row.measurements if m.name == name]


def test_there_is_a_row_a_task_and_overheads_come_first(rows):
    assert [row.shape.label for row in rows] == ["decode:2/1/16:1x1", "decode:2/1/16:2x40", "prefill:2/1/16:20"]
    assert [task.shape for task in settings().tasks()] == [row.shape for row in rows]
    assert {tuple(m.name for m in row.measurements) for row in rows} == {("sdpa", *BACKENDS)}


def test_a_right_backend_gets_times(rows):
    for m in of(rows, "sdpa"):
        assert m.reason == ""
        assert not m.failed
        assert m.error < 1e-5
        assert len(m.samples_us) == 3
        assert m.median_us == sorted(m.samples_us)[1] > 0
        assert m.plan_us > 0
        assert m.share.median > 0
        assert {v.name for v in m.versus} == {"large"}, "the others with a time"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zeros", "wrong: error 1.0e+00 against the float64 reference, allowed is 1e-04"),
        ("hole", "wrong: the output is not finite everywhere"),
        ("raises", "failed: RuntimeError: no kernel image"),
    ],
)
def test_a_wrong_one_gets_none_and_its_reason(rows, name, reason):
    for m in of(rows, name):
        assert (m.failed, m.reason) == (True, reason)
        assert (m.median_us, m.rate, m.share, m.samples_us, m.versus) == (None, None, None, (), ())


@pytest.mark.parametrize(
    "features",
    [{"window": (5, 0)}, {"softcap": 2.0, "scale": 0.3}, {"sinks": True}, {"alibi": True, "window": (20, 0)}],
    ids="+".join,
)
def test_layers_with_features_are_right_in_backends_that_have_them(features):
    layer = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=16, dtype="float32", **features)
    shapes = tuple(
        Shape(phase=phase, num_heads=4, num_kv_heads=2, head_size=16, layer=layer, **sizes)
        for phase, sizes in (
            ("decode", {"batch": 2, "length": 40}),
            ("prefill", {"queries": 24, "length": 24}),
            ("chunk", {"queries": 9, "length": 40}),
        )
    )
    plugins = installed_plugins()
    judge = Selector(plugins).judge(find_device("cpu"))
    settings = Settings(
        shapes=shapes, dtypes=("float32",), threads=(1,), rounds=3, budget=0.001, block_size=16, overheads=False
    )
    offers = [plugins.backends.find(name) for name in ("reference", "sdpa", "cpu")]
    measured = [
        m for row in KernelBench(settings, Entry.of(offers), (), judge, plugins.guard).rows() for m in row.measurements
    ]
    fitting = [m for m in measured if not m.reason.startswith("does not fit")]
    assert {m.name for m in fitting} >= {"reference", "cpu"}
    assert all(m.error is not None and m.error < 1e-5 and not m.failed for m in fitting), fitting


def test_one_that_does_not_fit_gets_none_and_has_not_failed(rows):
    for m in of(rows, "narrow"):
        assert not m.failed
        assert m.reason.startswith("does not fit: dtype: asked float32, offered float16")
        assert m.median_us is None


def test_a_cache_has_the_block_size_and_layout_its_backend_likes(rows):
    assert {(m.block_size, m.layout) for m in of(rows, "sdpa")} == {(16, "nhd")}
    assert {(m.block_size, m.layout) for m in of(rows, "large")} == {(64, "hnd")}


def test_decode_is_held_to_reading_and_prefill_to_arithmetic(rows):
    _, decode, prefill = rows
    assert (decode.unit, decode.limit) == ("GB/s", "read 0.00977 MiB")
    assert decode.kv_bytes == 2 * 40 * 2 * 16 * 4
    assert prefill.unit == "GFLOP/s"
    assert prefill.limit.startswith("float32 gemm")
    for row in (decode, prefill):
        work = row.kv_bytes if row.unit == "GB/s" else row.flops
        assert row.of("sdpa").rate == pytest.approx(work / row.of("sdpa").median_us / 1e3)


def test_what_does_not_fit_into_memory_is_skipped_with_the_figures(monkeypatch):
    monkeypatch.setattr(run.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**25}))
    (large,) = choose("decode:2/1/16:64x2k", "all", ())
    _, row = measure("sdpa", shapes=(large,), threads=(1,))
    assert row.skipped == (
        "K and V take 0.0156 GiB; caches and gathered copies would take 0.0312 GiB, and 0.0312 GiB are free"
    )
    assert (row.measurements, row.kv_bytes) == ((), 16 * 2**20)


def test_nothing_is_allocated_for_what_no_memory_holds_and_the_rest_is_measured():
    """A context of 2**40 tokens beside one of 64."""
    shapes = choose("decode:2/1/16:1x64,decode:2/1/16:1x1073741824k", "all", ())
    _, small, huge = measure("sdpa", shapes=shapes, threads=(1,))
    assert small.of("sdpa").median_us
    assert huge.skipped.startswith("K and V take 1.31e+05 GiB")


def test_a_peer_is_measured_beside_the_backends(fake_peer):
    with ExitStack() as stack:
        peer = Peer("plain", fake_peer)
        stack.callback(peer.close)
        rows = measure("sdpa", peers=(peer,))
        for row in rows:
            (versus,) = row.of("sdpa").versus
            assert versus.name == "plain"
            assert row.of("plain").versus[0].ratio.median == pytest.approx(1 / versus.ratio.median, rel=0.5)
            assert (row.of("plain").block_size, row.of("plain").layout) == (128, "its own")
        (refused,) = of(measure("sdpa", peers=(peer,), dtypes=("float16",), shapes=SHAPES[:1])[1:], "plain")
        assert (refused.reason, refused.failed) == ("does not fit: ValueError: no float16 here", False)


def test_threads_are_set_for_each_row_and_put_back():
    seen, before = [], torch.get_num_threads()

    class Counts(SdpaBackend):
        def forward(self, *args, **kwargs):
            seen.append(torch.get_num_threads())
            super().forward(*args, **kwargs)

    plugins = world(by_name={"counts": Counts})
    bench = KernelBench(
        settings(threads=(1, 2), shapes=SHAPES[:1]),
        Entry.of([plugins.backends.find("counts")]),
        (),
        Selector(plugins).judge(DEVICE),
        plugins.guard,
    )
    assert [row.threads for row in bench.rows()] == [1, 2, 1, 2]
    assert set(seen) == {1, 2}
    assert torch.get_num_threads() == before


def test_ratios_and_shares_are_those_of_equal_rounds():
    """Hand-made samples: b is twice as slow in every round, though the machine slows down by half in the second."""
    shape = SHAPES[0]
    seconds = {"a": {0: 1e-6, 1: 2e-6}, "b": {0: 2e-6, 1: 4e-6}, LIMIT: {0: 1e-6, 1: 2e-6}}
    samples = Samples(seconds=seconds, rounds=2, disturbed=frozenset(), kept_disturbed=False, other_load=None)
    row = finished(
        Task(shape=shape, dtype="float32", threads=1),
        {name: Measurement(name=name) for name in ("a", "b", "alone")},
        samples,
        {name: Pace(calls=1, rounds=2, warm=False) for name in seconds},
        {"alone": 9e-6},
        Limit("read", "GB/s", 2.0 * shape.kv_bytes("float32"), lambda: None),
    )
    a, b, alone = (row.of(name) for name in ("a", "b", "alone"))
    assert a.versus[0].name == "b"
    assert (a.versus[0].ratio.low, a.versus[0].ratio.high) == (2.0, 2.0)
    assert (a.share.low, a.share.high) == (0.5, 0.5), "half the bytes of the limit in the same time"
    assert b.share.median == 0.25
    assert a.median_us == pytest.approx(1.5)
    assert a.rate == pytest.approx(shape.kv_bytes("float32") / 1.5e-6 / 1e9)
    assert (alone.versus[0].name, alone.versus[0].ratio.median) == ("a", pytest.approx(1.5 / 9))
    assert alone.versus[0].ratio.coverage == 0
