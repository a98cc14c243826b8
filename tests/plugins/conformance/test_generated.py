"""Made-up cases and making them small."""

from __future__ import annotations

from collections import Counter

import pytest
from conformance.mutants.base import Plain

from headstock.core.attention import Capabilities, Device
from headstock.core.attention.spec import AttentionSpec
from headstock.plugins.conformance import Broken, Problem, Subject, parse_problem, select
from headstock.plugins.conformance.generated import generated_cases
from headstock.plugins.conformance.ground import find_ground
from headstock.plugins.conformance.shrink import shrink, smaller

CPU = Device(platform="cpu", name="test CPU", arch="x86_64")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(name="plain", cls=Plain, device=CPU)


@pytest.fixture(scope="module")
def drawn(subject) -> list[Problem]:
    return [case.problem for case in generated_cases(find_ground(subject), 300, 0)]


def test_equal_seeds_give_equal_cases(subject, drawn):
    ground = find_ground(subject)
    assert [case.problem for case in generated_cases(ground, 20, 0)] == drawn[:20]
    assert [case.problem for case in generated_cases(ground, 20, 1)] != drawn[:20]


def test_a_cases_id_is_the_case(subject, drawn):
    (case,) = select(subject, f"mixed:{drawn[0]}")
    assert case.problem == drawn[0]


@pytest.mark.parametrize(
    "holds",
    {
        "no query": lambda p: any(q == 0 for q, _ in p.rows),
        "no key": lambda p: any(k == 0 < q for q, k in p.rows),
        "decode": lambda p: any(q == 1 < k for q, k in p.rows),
        "chunk": lambda p: any(1 < q < k for q, k in p.rows),
        "prefill": lambda p: any(q == k > 1 for q, k in p.rows),
        "more queries than keys": lambda p: any(q > k > 0 for q, k in p.rows),
        "V unlike K": lambda p: p.spec.head_size_v != p.spec.head_size,
        "ragged": lambda p: p.spec.kv_source == "ragged",
        "window": lambda p: p.spec.window is not None,
        "both sides": lambda p: p.spec.window is not None and not p.spec.causal,
        "softcap": lambda p: p.spec.softcap is not None,
        "sinks": lambda p: p.spec.sinks,
        "alibi": lambda p: p.spec.alibi,
        "lse": lambda p: p.spec.lse,
        "scales by head": lambda p: p.spec.kv_scales == "head",
        "scale": lambda p: abs(p.spec.scale - p.spec.head_size**-0.5) > 0.01,
        "padding": lambda p: p.padded_rows > 0,
        "strided": lambda p: p.strided,
        "shared cache": lambda p: p.shared,
        "upper bounds": lambda p: p.loose,
        "head major": lambda p: p.layout == "hnd",
    }.items(),
    ids=lambda item: item[0],
)
def test_they_cover(drawn, holds):
    assert sum(map(holds[1], drawn)) >= 5


def test_they_stay_within_what_is_declared(subject):
    class Little(Plain):
        @classmethod
        def capabilities(cls, device):
            everything = Plain.capabilities(device)
            return Capabilities(
                **{name: getattr(everything, name) for name in ("dtypes", "head_sizes", "group_sizes", "block_sizes")},
                kv_formats=frozenset({"fp32", "bf16"}),
                kinds=frozenset({"decoder"}),
                kv_sources=frozenset({"cache"}),
                causal=frozenset({True}),
                layouts=("hnd",),
            )

    little = Subject(name="little", cls=Little, device=CPU)
    problems = [case.problem for case in generated_cases(find_ground(little), 100, 0)]
    assert not any(little.reasons(problem) for problem in problems)
    assert Counter(p.layout for p in problems) == {"hnd": 100}


class TestMakingSmall:
    def judge(self, breaks):
        def judge(_, problem):
            if breaks(problem):
                raise Broken("it breaks")

        return judge

    def small(self, subject, text, breaks) -> str:
        problem, _ = shrink(subject, parse_problem(text), self.judge(breaks), Broken("it breaks"))
        return str(problem)

    def test_what_does_not_matter_is_left_out(self, subject):
        text = "rows=1x50+7x30+0x3,layout=hnd,seed=9,strided=yes,hq=6,hkv=3,d=40,dtype=bfloat16,softcap=2.0,sinks=yes"
        assert self.small(subject, text, lambda p: p.spec.softcap) == "rows=0x0,d=1,block=1,softcap=2.0"
        assert self.small(subject, text, lambda p: any(q > 4 for q, _ in p.rows)) == "rows=5x0,d=1,block=1"
        assert self.small(subject, text, lambda p: p.spec.num_kv_heads == 3) == "rows=0x0,hq=3,hkv=3,d=1,block=1"

    def test_what_matters_together_stays_together(self, subject):
        text = "rows=1x50+7x30,window=7:0,sinks=yes,alibi=yes"
        small = self.small(subject, text, lambda p: p.spec.sinks and p.spec.window and len(p.rows) == 2)
        assert small == "rows=0x0+0x0,d=1,block=1,window=7:0,sinks=yes"

    def test_another_failure_does_not_count(self, subject):
        def judge(_, problem):
            raise Broken("it breaks", "keys" if problem.spec.sinks else "bounds")

        problem = parse_problem("rows=1x50,sinks=yes")
        assert shrink(subject, problem, judge, Broken("it breaks", "keys"))[0].spec.sinks

    def test_every_step_is_one_down(self):
        problem = parse_problem("rows=3x9+1x4,strided=yes,hq=4,hkv=2,d=8,window=3:0")
        for step in smaller(problem):
            assert step != problem
            assert problem not in set(smaller(step))

    def test_the_plainest_has_no_smaller_one(self):
        spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=1, dtype="float32", block_size=1)
        assert list(smaller(Problem(spec=spec, rows=((0, 0),)))) == []
