"""Kernels that are right at first sight: what they do later, between the checks, or from memory, shows all the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch

from headstock.backends.sdpa import SdpaBackend
from headstock.benchmarks.kernels.check import expected, suspects
from headstock.benchmarks.kernels.contenders import BackendContender
from headstock.benchmarks.kernels.data import Pool
from headstock.benchmarks.kernels.draws import PLAIN, draws
from headstock.benchmarks.kernels.run import Entry, KernelBench, Settings
from headstock.benchmarks.kernels.shapes import choose
from headstock.core.attention import LAYOUTS, NoOptions
from headstock.selector import Selector
from support.attention import CPU
from support.plugins import world

DEVICE = replace(CPU, memory_bytes=2**40)
DECODE = choose("decode:4/2/16:3x200", "all", ())
PREFILL = choose("prefill:4/2/16:40", "all", ())


class Counting(SdpaBackend):
    """Counts its calls."""

    def __init__(self, *args):
        super().__init__(*args)
        self.calls = 0

    def forward(self, layer, query, *, out, **rest):
        self.calls += 1
        super().forward(layer, query, out=out, **rest)
        self.spoil(out)

    def spoil(self, out):
        pass


class Later(Counting):
    """Wrong from the tenth call on."""

    def spoil(self, out):
        if self.calls >= 10:
            out.mul_(1.5)


class Raising(Counting):
    def spoil(self, out):
        if self.calls >= 10:
            raise RuntimeError("an illegal memory access was encountered")


class Silent(Counting):
    """Leaves a row as it was, every third call."""

    def spoil(self, out):
        if self.calls % 3 == 0:
            out[-1] = float("nan")


class Outside(Counting):
    """Writes a number behind its output."""

    def spoil(self, out):
        torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(0.0)


class OneRow(Counting):
    """Wrong for the second of three sequences, which the first check does not look at."""

    def spoil(self, out):
        if len(out) == 3:
            out[1].mul_(1.5)


class Remembering(SdpaBackend):
    """Answers from memory where the queries look as before: by their place and shape, as a graph would."""

    def __init__(self, *args):
        super().__init__(*args)
        self.known = {}

    def key(self, query):
        return (query.data_ptr(), query.shape)

    def forward(self, layer, query, *, out, **rest):
        key = self.key(query)
        if key not in self.known:
            super().forward(layer, query, out=out, **rest)
            self.known[key] = out.clone()
        out.copy_(self.known[key])


class Comparing(Remembering):
    """By their content to two digits: queries that are but scaled a little would do."""

    def key(self, query):
        return tuple((query / query.abs().max()).flatten()[:8].mul(100).round().tolist())


class Stale(SdpaBackend):
    """Gathers K and V once and keeps them: nobody writes into the cache while it is measured, it thinks."""

    def __init__(self, *args):
        super().__init__(*args)
        self.kept = None

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        if self.kept is None:
            self.kept = type(kv_cache)(**{f: getattr(kv_cache, f) for f in kv_cache.__dataclass_fields__})
            object.__setattr__(self.kept, "planes", {name: p.clone() for name, p in kv_cache.planes.items()})
        super().forward(layer, query, key=None, value=None, kv_cache=self.kept, plan=plan, out=out)


def measured(cls, shapes=DECODE, rounds=6, **changes):
    plugins = world(by_name={"x": cls})
    offers = [plugins.backends.find(name) for name in ("sdpa", "x")]
    values = {"shapes": shapes, "dtypes": ("float32",), "threads": (1,), "rounds": rounds, "budget": 1e9}
    settings = Settings(**values, block_size=16, overheads=False, paired=True, **changes)
    (row,) = KernelBench(settings, Entry.of(offers), (), Selector(plugins).judge(DEVICE), plugins.guard).rows()
    assert row.of("sdpa") is not None, "the other one is measured, whatever happens"
    return next(m for m in row.measurements if m.name == "x")


@pytest.mark.parametrize("shapes", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_a_right_one_stays_right_in_all_its_calls(shapes):
    found = measured(Counting, shapes)
    assert (found.reason, found.failed) == ("", False)
    assert found.error < 1e-5


@pytest.mark.parametrize("shapes", [DECODE, PREFILL], ids=["decode", "prefill"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_call_has_an_answer_of_its_own(shapes, dtype):
    (shape,) = shapes
    pool = Pool.of(shape.heads, dtype, [shape])
    spec = shape.spec(dtype, 16)
    contender = BackendContender("x", SdpaBackend, NoOptions(), spec, LAYOUTS["nhd"], CPU, shape, pool)
    contender.start(1)
    before = expected(shape, pool, dtype)
    for draw in islice(draws(shape, 5), 4):
        exact, out = expected(shape, pool, dtype, draw), contender.check(draw)
        assert exact.problem(exact.error(out)) == ""
        assert before.problem(before.error(out)) != "", "what was right before is wrong now"
        before = exact


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Later, "wrong: error 5.0e-01 against the float64 reference, allowed is 1e-04, in a later call"),
        (Silent, "wrong: an output is not finite everywhere, in a later call"),
        (Outside, "wrong: it writes outside of its output, in a later call"),
        (OneRow, "against the float64 reference, allowed is 1e-04, in a later call"),
        (Remembering, "against the float64 reference, allowed is 1e-04, in a later call"),
        (Comparing, "against the float64 reference, allowed is 1e-04, in a later call"),
        (Stale, "against the float64 reference, allowed is 1e-04, in a later call"),
        (Raising, "failed: RuntimeError: an illegal memory access was encountered"),
    ],
)
def test_what_goes_wrong_after_the_first_call_takes_the_time_away(cls, reason):
    found = measured(cls)
    assert reason in found.reason
    assert (found.failed, found.median_us, found.samples_us) == (True, None, ())


def test_one_that_keeps_k_and_v_is_found_in_prompts_and_16_bits_too():
    assert "in a later call" in measured(Stale, PREFILL).reason
    plugins = world(by_name={"x": Stale})
    settings = Settings(
        shapes=DECODE, dtypes=("bfloat16",), threads=(1,), rounds=6, budget=1e9, block_size=16, overheads=False
    )
    entries = Entry.of([plugins.backends.find("x")])
    (row,) = KernelBench(settings, entries, (), Selector(plugins).judge(DEVICE), plugins.guard).rows()
    assert "allowed is 3e-02, in a later call" in row.measurements[0].reason


def test_no_two_calls_have_the_same_inputs():
    (shape,) = DECODE
    some = list(islice(draws(shape, 1), 50))
    assert len({draw.factors for draw in some}) == 50
    assert PLAIN not in some
    assert all(0.49 < draw.query < 2.02 and 0.49 * 200**0.5 < draw.value < 2.02 * 200**0.5 for draw in some)


def test_outputs_are_held_against_each_other_in_every_row():
    one, two = torch.zeros(5, 2, 3), torch.zeros(5, 2, 3)
    two[3, 1, 0] = 1.0
    assert suspects([one, two]) == {3}
    assert suspects([one]) == set()


def test_everybody_has_as_many_turns_as_the_slowest_where_all_are_to_be_compared(monkeypatch):
    from headstock.benchmarks.kernels import run

    monkeypatch.setattr(run, "ENDLESS_SECONDS", 0.0)
    quiet = SimpleNamespace(start=lambda: None, lap=lambda final=False: False, average=0.0)
    monkeypatch.setattr(run, "LoadMeter", lambda pids: quiet)
    found = measured(Counting, rounds=9, least_rounds=7)
    assert len(found.samples_us) == 7


class Slower(SdpaBackend):
    def forward(self, layer, query, **rest):
        super().forward(layer, query, **rest)
        end = perf_counter() + 0.003
        while perf_counter() < end:
            pass


def test_and_as_many_calls_a_turn_as_the_others():
    """Delays weigh more in the median of few calls, and would make a slow one slower than it is."""
    plugins = world(by_name={"slower": Slower})
    settings = Settings(
        shapes=DECODE,
        dtypes=("float32",),
        threads=(1,),
        rounds=6,
        budget=1e9,
        block_size=16,
        overheads=False,
        paired=True,
    )
    entries = Entry.of([plugins.backends.find(name) for name in ("sdpa", "slower")])
    (row,) = KernelBench(settings, entries, (), Selector(plugins).judge(DEVICE), plugins.guard).rows()
    one, two = row.measurements
    assert one.calls == two.calls > 1
