"""Which backend a layer gets. The names A01 to A14 and F01 are those of faults that users of other engines met."""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass
from types import MappingProxyType

import pytest

from headstock.core.attention import LAYOUTS, AttentionSpec, Capabilities, Device, Mismatch, Sizes, one_of
from headstock.core.attention.capabilities import RULES
from headstock.core.errors import BackendError, InvalidInput
from headstock.selector import Selector, explain, read_policy
from headstock.selector.tuned import Measured
from support.attention import CPU
from support.backends import EVERYTHING, backend, bare, layers, spec, up_to
from support.plugins import world

CARD = Device(platform="cuda", name="a card", arch="sm_90", assumed=True)
PLAIN = layers(spec(), spec())


def select(plugins, specs=PLAIN, device=CPU, block_size=None, environ=None, **policy):
    return Selector(plugins, read_policy(environ=environ or {}, **policy)).select(specs, device, block_size)


def chosen(selection):
    return [choice.backend for choice in selection.choices.values()]


def origins(selection):
    return [choice.origin for choice in selection.choices.values()]


def refusal(plugins, *arguments, **policy):
    with pytest.raises(BackendError) as error:
        select(plugins, *arguments, **policy)
    return str(error.value)


class TestOrigin:
    """A01: the start states the backend and where the choice came from."""

    def test_on_a_cpu_sdpa_is_the_automatic_choice(self):
        selection = select(world())
        assert chosen(selection) == ["sdpa", "sdpa"]
        assert origins(selection)[0] == "ranked (1 of 2 on cpu)"
        assert selection.choices[next(iter(PLAIN))].distribution.startswith("headstock ")

    def test_flag_and_environment_say_so(self):
        environ = {"HEADSTOCK_ATTENTION_BACKEND": "reference"}
        assert origins(select(world(), attention_backend="TORCH_SDPA"))[0] == "flag (TORCH_SDPA)"
        assert origins(select(world(), environ=environ))[0] == "environment (HEADSTOCK_ATTENTION_BACKEND=reference)"

    def test_the_log_has_a_line_for_each_backend_with_it(self):
        lines = select(world(), attention_policy={"1": "reference"}).summary()
        assert ["ranked (1 of 2 on cpu)" in lines[0], "layer (1)" in lines[1]] == [True, True]


class TestUnknownName:
    """A02: a misspelt name is an error."""

    @pytest.mark.parametrize(
        "said",
        [
            {"attention_backend": "spda"},
            {"environ": {"HEADSTOCK_ATTENTION_BACKEND": "spda"}},
            {"attention_policy": {"full": "spda"}},
            {"attention_policy": {"0": {"decode": "spda"}}},
            {"decode_attention_backend": "spda"},
            {"attention_policy": {"model.*": "sdpa", "full": "spda"}},
            {"attention_backend_config": {"spda": {}}},
        ],
    )
    def test_wherever_it_is_written(self, said):
        text = refusal(world(), **said)
        assert text.startswith('attention backend "spda" is not known')
        assert "did you mean: sdpa" in text

    def test_a_plugins_name_is_accepted(self):
        assert (
            chosen(select(world(by_name={"FLASH_ATN": backend()}), attention_backend="flash_atn")) == ["FLASH_ATN"] * 2
        )


class TestAdvice:
    """A03: what the message recommends would work."""

    ODD = layers(spec(head_size=40, head_size_v=32, num_kv_heads=1, latent=(32, 8)))

    def test_each_backend_is_listed_with_its_own_reasons_and_none_recommended(self):
        mla = backend("Mla", head_sizes=one_of(576), latents=frozenset({(512, 64), (32, 8)}))
        flex = backend("Flex")
        text = refusal(world({"mla_a": mla, "flex": flex}), self.ODD)
        assert "no attention backend is chosen automatically for model.layers.0.self_attn.attn" in text
        assert "mla_a: head_size: asked 40, offered 576" in text
        assert "flex: latent: asked (32, 8), offered nothing" in text
        assert "sdpa: " in text
        assert "these can" not in text

    def test_a_named_backend_that_cannot_is_told_who_can(self):
        small = backend("Small", head_sizes=up_to(256))
        text = refusal(world(by_name={"small": small}), layers(spec(head_size=512)), attention_backend="small")
        assert text.splitlines() == [
            'attention backend "small", chosen by flag (small), cannot serve model.layers.0.self_attn.attn '
            "on test CPU (cpu, x86_64):",
            "  head_size: asked 512, offered from 1 to 256",
            "  these can: sdpa, reference",
        ]

    def test_nobody_is_recommended_who_is_not_installed(self):
        gone = backend("Gone", missing=("gone-kernels",))
        small = backend("Small", head_sizes=up_to(256))
        text = refusal(
            world(by_name={"small": small, "gone": gone}), layers(spec(head_size=512)), attention_backend="small"
        )
        assert "these can: sdpa, reference" in text

    def test_nobody_is_recommended_for_another_block_size_than_was_asked(self):
        other = backend("Other", block_sizes=one_of(64))
        text = refusal(
            world(by_name={"small": backend(head_sizes=up_to(8)), "other": other}),
            block_size=32,
            attention_backend="small",
        )
        assert text.endswith("these can: sdpa, reference")

    def test_where_no_other_can_either_all_reasons_are_there(self):
        text = refusal(world(), layers(spec(latent=(512, 64), head_size=576)), attention_backend="sdpa")
        assert text.splitlines()[1:] == [
            "  latent: asked (512, 64), offered nothing",
            "  no other can:",
            "    reference: latent: asked (512, 64), offered nothing",
        ]

    def test_all_reasons_are_told_not_the_first(self):
        asked = spec(head_size=512, dtype="bfloat16", softcap=30.0, sinks=True, window=(3, 0))
        few = bare(dtypes=frozenset({"float16"}), head_sizes=up_to(256), block_sizes=one_of(16), layouts=("nhd",))
        text = refusal(world(by_name={"few": few}), layers(asked), attention_backend="few")
        for field in ("head_size", "dtype", "kv_format", "softcap", "sinks", "window", "num_heads", "kind", "causal"):
            assert f"\n  {field}: asked" in text


FEATURES = {
    "window": {"window": (3, 0)},
    "right window": {"window": (3, 3), "causal": False},
    "softcap": {"softcap": 30.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "encoder": {"kind": "encoder", "causal": False},
    "cross": {"kind": "cross", "causal": False},
    "not causal": {"causal": False},
    "fp8 cache": {"kv_format": "fp8_e4m3", "kv_scales": "tensor"},
    "scale": {"scale": 0.3},
    "other V": {"head_size_v": 32},
    "lse": {"lse": True},
    "spans": {"masks": frozenset({"spans"})},
    "latent": {"latent": (32, 32), "num_kv_heads": 1},
    "ragged": {"kv_source": "ragged"},
    "batch invariant": {"batch_invariant": True},
    "dtype": {"dtype": "bfloat16"},
}
PLAINEST = {
    "dtypes": frozenset({"float32"}),
    "kv_formats": frozenset({"fp32"}),
    "head_sizes": one_of(64),
    "group_sizes": one_of(2),
    "block_sizes": one_of(16),
    "kinds": frozenset({"decoder"}),
    "kv_sources": frozenset({"cache"}),
    "causal": frozenset({True}),
    "layouts": ("nhd",),
}
"""What a layer without any feature needs."""


class TestUndeclared:
    """A04: what is not declared is not supported."""

    def test_the_plainest_layer_goes_to_the_plainest_backend(self):
        assert chosen(select(world({"a": bare(**PLAINEST)}), layers(spec()))) == ["a"]

    @pytest.mark.parametrize("asked", FEATURES.values(), ids=FEATURES)
    def test_a_layer_with_a_feature_goes_elsewhere_or_nowhere(self, asked):
        specs = layers(spec(**asked))
        plugins = world({"a": bare(**PLAINEST)})
        refusal(plugins, specs, attention_backend="a")
        (group,) = explain(Selector(plugins), specs, CPU).groups
        (a,) = [candidate for candidate in group.candidates if candidate.backend == "a"]
        assert a.verdict == "refused"
        assert group.choice != "a"

    @pytest.mark.parametrize("given", PLAINEST)
    def test_a_declaration_less_is_a_layer_less(self, given):
        less = {name: value for name, value in PLAINEST.items() if name != given}
        refusal(world(by_name={"a": bare(**less)}), layers(spec()), attention_backend="a")

    def test_a_backend_that_declares_nothing_does_not_run_here(self):
        text = refusal(world(by_name={"a": bare()}), attention_backend="a")
        assert "\n  does not run on cpu (x86_64)\n" in text

    def test_every_field_of_a_layer_has_a_check(self):
        checked = {rule.asks for rule in RULES} | {"num_kv_heads"}  # which num_heads is held against
        assert {field.name for field in fields(AttentionSpec)} == checked


class TestDraftModel:
    """A05: a draft model's layers are layers like others."""

    SPECS = MappingProxyType({**PLAIN, "draft.layers.0.self_attn.attn": spec(head_size=128)})

    def test_they_get_what_the_user_chose(self):
        assert chosen(select(world(), self.SPECS, attention_backend="reference")) == ["reference"] * 3

    def test_unless_something_is_said_about_them(self):
        selection = select(world(), self.SPECS, attention_backend="reference", attention_policy={"draft.*": "sdpa"})
        assert chosen(selection) == ["reference", "reference", "sdpa"]

    def test_a_choice_that_does_not_suit_them_is_told_at_the_start(self):
        small = world(by_name={"small": backend(head_sizes=up_to(64))})
        text = refusal(small, self.SPECS, attention_backend="small")
        assert "cannot serve draft.layers.0.self_attn.attn" in text
        assert "model.layers" not in text


class TestBlockSize:
    """A07: backends of a model share one block size."""

    PHASES = MappingProxyType({"decode_attention_backend": "d", "prefill_attention_backend": "p"})

    @staticmethod
    def pair(prefill, decode):
        return world(by_name={"p": backend("P", block_sizes=prefill), "d": backend("D", block_sizes=decode)})

    def test_none_in_common_is_an_error_that_shows_both_sets(self):
        assert refusal(self.pair(one_of(16), one_of(64)), **self.PHASES) == (
            "the attention backends do not agree on a block size:\n"
            "  d for decode of model.layers.0.self_attn.attn and 1 more layer: 64\n"
            "  p for prefill of model.layers.0.self_attn.attn and 1 more layer: 16\n"
            "  choose others that share one, or leave a choice to auto"
        )

    def test_the_common_one_is_taken_and_told(self):
        selection = select(self.pair(one_of(16, 32), one_of(32, 64)), **self.PHASES)
        assert selection.block_size == 32
        assert selection.notes == ("the block size is 32 instead of 16: d takes 32, 64",)

    def test_one_that_was_asked_for_is_kept_and_who_cannot_is_named(self):
        text = refusal(self.pair(one_of(16, 32), one_of(32, 64)), block_size=16, **self.PHASES)
        assert text.startswith('attention backend "d", chosen by phase (decode), cannot serve')
        assert "  block_size: asked 16, offered 32, 64\n" in text
        assert '"p"' not in text

    @pytest.mark.parametrize("size", [1, 7, 16, 48, 256])
    def test_any_size_that_was_asked_for_is_kept_where_it_can_be(self, size):
        assert select(world(), block_size=size).block_size == size

    @pytest.mark.parametrize(
        ("sizes", "expected"),
        [
            ([one_of(16, 32), one_of(16, 64)], 16),
            ([one_of(128, 256), one_of(64, 256)], 256),
            ([Sizes(multiple_of=256), one_of(256, 512)], 256),
            ([Sizes(multiple_of=48), Sizes(multiple_of=32)], 96),
            ([one_of(1, 8), one_of(8, 1)], 8),
            ([one_of(24), Sizes(low=20)], 24),
            ([Sizes(low=17), Sizes(high=31)], 17),
        ],
    )
    def test_sixteen_where_all_take_it_else_the_usual_else_the_least(self, sizes, expected):
        assert select(self.pair(*sizes), **self.PHASES).block_size == expected

    def test_the_specs_own_size_is_a_wish(self):
        assert select(world(), layers(spec(block_size=8))).block_size == 8

    def test_the_automatic_choice_gives_way_to_the_named_one(self):
        plugins = world({"a": backend("A", block_sizes=one_of(16))}, {"big": backend("Big", block_sizes=one_of(64))})
        selection = select(plugins, attention_policy={"0": "big"})
        assert chosen(selection) == ["big", "sdpa"]
        assert selection.block_size == 64
        rejected = selection.choices["model.layers.1.self_attn.attn"].rejected
        assert [(r.backend, r.reasons) for r in rejected] == [("a", ("block_size: asked 64, offered 16",))]

    def test_the_best_ranked_is_not_given_up_for_sixteen(self):
        selection = select(world({"a": backend("A", block_sizes=one_of(64))}))
        assert (chosen(selection), selection.block_size) == (["a", "a"], 64)

    def test_it_is_given_up_for_a_size_that_was_asked_for(self):
        selection = select(world({"a": backend("A", block_sizes=one_of(64))}), block_size=16)
        assert chosen(selection) == ["sdpa", "sdpa"]

    def test_ragged_layers_have_no_say(self):
        specs = layers(spec(), spec(kind="encoder", causal=False, kv_source="ragged", block_size=128))
        plugins = world(by_name={"enc": backend("Enc", block_sizes=one_of(128), layouts=())})
        assert select(plugins, specs, attention_policy={"encoder": "enc"}).block_size == 16

    def test_zero_is_refused(self):
        with pytest.raises(InvalidInput, match="block_size: must be at least 1, not 0"):
            select(world(), block_size=0)


class TestLayout:
    @staticmethod
    def two(first, second):
        return world(by_name={"a": backend("A", layouts=first), "b": backend("B", layouts=second)})

    POLICY = MappingProxyType({"0": "a", "1": "b"})

    def test_the_first_that_all_read_in_the_order_of_the_first_layers_backend(self):
        plugins = self.two(("hnd", "nhd"), ("nhd", "hnd"))
        assert select(plugins, attention_policy=self.POLICY).layout is LAYOUTS["hnd"]

    def test_none_in_common_is_an_error_that_shows_both_sides(self):
        text = refusal(self.two(("hnd",), ("nhd",)), attention_policy=self.POLICY)
        assert text.splitlines()[:3] == [
            "the attention backends do not agree on a layout of the KV cache:",
            "  a for model.layers.0.self_attn.attn: hnd",
            "  b for model.layers.1.self_attn.attn: nhd",
        ]

    def test_the_automatic_choice_gives_way(self):
        plugins = world({"a": backend("A", layouts=("hnd",))}, {"b": backend("B", layouts=("nhd",))})
        selection = select(plugins, attention_policy={"0": "b"})
        assert chosen(selection) == ["b", "sdpa"]
        rejected = selection.choices["model.layers.1.self_attn.attn"].rejected
        assert [r.reasons for r in rejected] == [("layout: asked nhd, offered hnd",)]

    def test_a_layout_that_nobody_knows_counts_as_none(self):
        text = refusal(world(by_name={"a": backend(layouts=("tiled",))}), attention_backend="a")
        assert "layout: asked one of nhd, hnd, x_packed, shuffle, offered tiled" in text

    def test_one_that_cannot_hold_the_layer_is_passed_over(self):
        plugins = world(by_name={"a": backend("A", layouts=("x_packed", "nhd"))})
        for size, name in ((64, "x_packed"), (18, "nhd")):
            selection = select(plugins, layers(spec(head_size=size)), attention_backend="a")
            assert selection.layout.name == name

    def test_where_none_can_hold_it_the_reason_names_layout_and_size(self):
        plugins = world(by_name={"a": backend("A", layouts=("x_packed", "shuffle"))})
        text = refusal(plugins, layers(spec(head_size=18)), attention_backend="a")
        assert "head_size: asked 18, offered multiples of 4 in x_packed" in text
        assert "head_size: asked 18, offered multiples of 4 in shuffle" in text

    def test_a_block_size_that_the_layout_cannot_hold_is_none(self):
        plugins = world(by_name={"a": backend("A", layouts=("shuffle",))})
        assert select(plugins, layers(spec(block_size=2)), attention_backend="a").block_size == 16
        text = refusal(plugins, attention_backend="a", block_size=2)
        assert "block_size: asked 2, offered multiples of 4 in shuffle" in text

    def test_one_that_cannot_say_counts_as_one_that_cannot_hold_it(self, monkeypatch):
        class Broken(type(LAYOUTS["nhd"])):
            name = "broken"

            def refusals(self, spec):
                raise OSError("no answer")

        plugins = world(by_name={"a": backend("A", layouts=("broken", "hnd"))})
        monkeypatch.setattr(plugins.hooks, "layouts", lambda: {**LAYOUTS, "broken": Broken()})
        assert select(plugins, attention_backend="a").layout.name == "hnd"
        plugins = world(by_name={"a": backend("A", layouts=("broken",))})
        monkeypatch.setattr(plugins.hooks, "layouts", lambda: {**LAYOUTS, "broken": Broken()})
        text = refusal(plugins, attention_backend="a")
        assert "layout: asked broken, offered none, its refusals() raised OSError: no answer" in text

    def test_one_that_reads_packed_planes_only_and_one_that_does_not_are_both_shown(self):
        text = refusal(self.two(("x_packed",), ("nhd", "hnd")), attention_policy=self.POLICY)
        assert text.splitlines()[:3] == [
            "the attention backends do not agree on a layout of the KV cache:",
            "  a for model.layers.0.self_attn.attn: x_packed",
            "  b for model.layers.1.self_attn.attn: nhd, hnd",
        ]


class TestUnavailable:
    """A08, A13: what was named is used or refused; what was left open goes to the next that fits, with the reason."""

    GONE = backend("Gone", missing=("gone-kernels", "other-kernels"))

    def test_named_and_not_installed_is_an_error_with_all_reasons(self):
        text = refusal(world(by_name={"gone": self.GONE}), attention_backend="gone")
        assert 'attention backend "gone", chosen by flag (gone), cannot serve' in text
        assert "\n  package gone-kernels is not installed\n  package other-kernels is not installed\n" in text

    def test_left_open_it_is_the_next_and_the_reasons_are_kept(self):
        selection = select(world({"gone": self.GONE}))
        assert chosen(selection) == ["sdpa", "sdpa"]
        assert origins(selection)[0] == "ranked (2 of 3 on cpu)"
        (rejected,) = selection.choices[next(iter(PLAIN))].rejected
        assert rejected.backend == "gone"
        assert rejected.reasons == ("package gone-kernels is not installed", "package other-kernels is not installed")

    def test_on_a_device_that_is_not_here_its_packages_need_not_be(self):
        assert chosen(select(world(by_name={"gone": self.GONE}), device=CARD, attention_backend="gone")) == ["gone"] * 2

    def test_an_alias_is_used_told_and_reported_under_the_true_name(self):
        selection = select(world(), attention_backend="TORCH_SDPA")
        assert chosen(selection) == ["sdpa", "sdpa"]
        assert selection.notes == ("TORCH_SDPA is called sdpa here",)

    def test_a_name_in_other_case_is_no_alias(self):
        assert select(world(), attention_backend="SDPA").notes == ()

    @pytest.mark.parametrize("broken", ["availability", "capabilities", "refusals", "parse_options"])
    def test_a_backend_that_raises_when_asked_has_that_as_its_reason(self, broken):
        cls = backend("Buggy")

        def fail(*arguments):
            raise ZeroDivisionError("a bug")

        setattr(cls, broken, classmethod(fail))
        assert chosen(select(world({"buggy": cls}))) == ["sdpa", "sdpa"]
        assert "ZeroDivisionError: a bug" in refusal(world(by_name={"buggy": cls}), attention_backend="buggy")

    @pytest.mark.parametrize(
        ("method", "answer", "reason"),
        [
            ("availability", None, "availability() raised TypeError: gave None, not Availability"),
            ("availability", True, "availability() raised TypeError: gave True, not Availability"),
            ("capabilities", None, "capabilities() raised TypeError: gave None, not Capabilities"),
            ("refusals", None, "refusals() raised TypeError: 'NoneType' object is not iterable"),
            ("refusals", ["no windows"], "refusals() raised TypeError: gave 'no windows', not Mismatch"),
            (
                "capabilities",
                Capabilities(**{**EVERYTHING, "block_sizes": frozenset({16})}),
                "capabilities() are malformed: block_sizes is frozenset({16}), not Sizes",
            ),
            (
                "capabilities",
                Capabilities(**{**EVERYTHING, "dtypes": "float32"}),
                "capabilities() are malformed: dtypes is 'float32', not Set",
            ),
            (
                "capabilities",
                Capabilities(**{**EVERYTHING, "layouts": "nhd"}),
                "capabilities() are malformed: layouts is 'nhd', not tuple",
            ),
        ],
    )
    def test_a_backend_that_answers_nonsense_has_that_as_its_reason(self, method, answer, reason):
        cls = backend("Buggy")
        setattr(cls, method, classmethod(lambda cls, *arguments: answer))
        selection = select(world({"buggy": cls}))
        assert chosen(selection) == ["sdpa", "sdpa"]
        assert selection.choices[next(iter(PLAIN))].rejected[0].reasons == (reason,)
        assert reason in refusal(world(by_name={"buggy": cls}), attention_backend="buggy")

    def test_a_combination_that_it_refuses_is_a_reason(self):
        cls = backend("Picky")
        both = Mismatch(field="window", asked="with sinks", offered="either")
        cls.refusals = classmethod(lambda cls, spec, device: (both,) if spec.window and spec.sinks else ())
        plugins = world({"picky": cls})
        specs = layers(spec(window=(3, 0)), spec(sinks=True), spec(window=(3, 0), sinks=True))
        assert chosen(select(plugins, specs))[:2] == ["picky", "picky"]
        assert chosen(select(plugins, specs))[2] != "picky"
        assert "window: asked with sinks, offered either" in refusal(plugins, specs, attention_backend="picky")


class TestLastResort:
    def test_the_reference_is_chosen_where_nothing_else_fits_and_the_log_says_so(self):
        selection = select(world(), layers(spec(batch_invariant=True)))
        assert chosen(selection) == ["reference"]
        (note,) = selection.notes
        assert note == "reference computes model.layers.0.self_attn.attn, as nothing faster fits: right, but slow"

    def test_asked_for_by_name_nothing_has_to_be_said(self):
        assert select(world(), attention_backend="reference").notes == ()


class TestMixed:
    """A14, F01: layers of one model can have different backends."""

    SPECS = layers(*[spec(head_size=256, window=(3, 0)), spec(head_size=512)] * 2)

    @staticmethod
    def plugins():
        return world(by_name={"A": backend("A", head_sizes=up_to(256)), "FALLBACK": backend("Fallback")})

    def test_a_kind_that_needs_another_backend_gets_it_and_only_that(self):
        selection = select(self.plugins(), self.SPECS, attention_backend="A", attention_policy={"full": "FALLBACK"})
        assert chosen(selection) == ["A", "FALLBACK", "A", "FALLBACK"]
        assert origins(selection)[:2] == ["flag (A)", "kind (full)"]

    def test_a_global_choice_that_does_not_suit_all_is_an_error_that_names_the_layers(self):
        text = refusal(self.plugins(), self.SPECS, attention_backend="A")
        assert "cannot serve model.layers.1.self_attn.attn and 1 more layer on" in text
        assert "head_size: asked 512, offered from 1 to 256" in text
        assert "these can: sdpa, reference, FALLBACK" in text
        assert "model.layers.0" not in text

    def test_each_layer_that_cannot_be_served_has_its_paragraph(self):
        specs = layers(spec(head_size=512), spec(head_size=1024))
        text = refusal(self.plugins(), specs, attention_backend="A")
        assert text.count('attention backend "A", chosen by flag (A), cannot serve') == 2

    def test_left_open_each_layer_gets_the_best_for_it(self):
        plugins = world({"a": backend("A", head_sizes=up_to(256))})
        assert chosen(select(plugins, self.SPECS)) == ["a", "sdpa", "a", "sdpa"]

    def test_layers_with_one_pair_of_phases_share_one_class(self):
        selection = select(world(), decode_attention_backend="reference")
        assert chosen(selection) == ["decode=reference,prefill=sdpa"] * 2
        assert origins(selection)[0] == "decode: phase (decode); prefill: ranked (1 of 2 on cpu)"
        first, second = selection.choices.values()
        assert first.cls is second.cls
        assert (first.cls.decode_cls.__name__, first.cls.prefill_cls.__name__) == ("ReferenceBackend", "SdpaBackend")
        assert first.options == second.options

    def test_phases_that_come_to_the_same_are_no_composite(self):
        selection = select(world(), decode_attention_backend="sdpa")
        assert chosen(selection) == ["sdpa", "sdpa"]
        assert origins(selection)[0] == "decode: phase (decode); prefill: ranked (1 of 2 on cpu)"

    def test_a_phase_that_does_not_suit_is_named(self):
        plugins = world(by_name={"small": backend(head_sizes=up_to(8))})
        text = refusal(plugins, prefill_attention_backend="small")
        assert "cannot serve model.layers.0.self_attn.attn and 1 more layer in prefill on test CPU" in text


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Options of a test backend."""

    splits: int = 4

    def __post_init__(self):
        if self.splits < 1:
            raise InvalidInput("splits", f"must be at least 1, not {self.splits}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needy:
    path: str


class TestOptions:
    """F05: options reach the backend they are for."""

    @staticmethod
    def plugins(options=Split):
        return world({"split": backend("SplitKV", options=options)})

    @pytest.mark.parametrize("name", ["split", "SPLIT"])
    def test_they_arrive_as_the_backends_own_value(self, name):
        selection = select(self.plugins(), attention_backend_config={name: {"splits": 8}})
        assert {choice.options for choice in selection.choices.values()} == {Split(splits=8)}

    def test_without_any_it_gets_its_defaults(self):
        assert next(iter(select(self.plugins()).choices.values())).options == Split(splits=4)

    def test_an_alias_serves(self):
        config = {"TORCH_SDPA": {"k": 1}}
        with pytest.raises(InvalidInput, match=r"attention_backend_config\['sdpa'\]: option 'k': is not known"):
            select(world(), attention_backend_config=config)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"spltis": 8}, r"attention_backend_config\['split'\]: option 'spltis': is not known; known are splits"),
            ({"splits": 0}, r"attention_backend_config\['split'\]: splits: must be at least 1, not 0"),
            ({"splits": "x"}, r"attention_backend_config\['split'\]: TypeError"),
            ({"splits": [1]}, r"attention_backend_config\['split'\]: TypeError"),
        ],
    )
    def test_what_the_backend_refuses_is_an_error(self, options, text):
        with pytest.raises(InvalidInput, match=text):
            select(self.plugins(), attention_backend_config={"split": options})

    def test_for_a_backend_that_no_layer_uses_they_are_warned_of(self, warnings):
        select(self.plugins(), attention_backend="sdpa", attention_backend_config={"split": {"splits": 8}})
        assert warnings() == ["attention_backend_config has options for split, which no layer uses"]

    def test_said_twice_under_two_names_they_are_refused(self):
        with pytest.raises(InvalidInput, match="has options for sdpa twice"):
            select(world(), attention_backend_config={"sdpa": {}, "TORCH_SDPA": {}})

    def test_each_part_of_a_pair_gets_its_own(self):
        selection = select(
            self.plugins(), decode_attention_backend="split", prefill_attention_backend="sdpa",
            attention_backend_config={"split": {"splits": 2}},
        )  # fmt: skip
        options = next(iter(selection.choices.values())).options
        assert options.decode == Split(splits=2)
        assert options.prefill is not None

    def test_a_backend_that_needs_options_is_passed_over_until_it_has_them(self):
        plugins = self.plugins(Needy)
        selection = select(plugins)
        assert chosen(selection) == ["sdpa", "sdpa"]
        assert "needs options: TypeError" in next(iter(selection.choices.values())).rejected[0].reasons[0]
        assert chosen(select(plugins, attention_backend_config={"split": {"path": "x"}})) == ["split", "split"]


class TestTuned:
    """What was measured goes before the ranking and after the user."""

    @staticmethod
    def choice(name, plugins=None, specs=PLAIN, configured=None, **policy):
        names = name if isinstance(name, dict) else dict.fromkeys(("decode", "prefill"), name)

        class Tuned:
            def fastest(self, spec, device, phase):
                known = frozenset({"sdpa", "reference"})
                return names[phase] and Measured(backend=names[phase], why="tuned (measured)", known=known)

            def options(self, backend, spec, device, phase):
                return (configured or {}).get((backend, phase), {})

        selector = Selector(plugins or world(), read_policy(environ={}, **policy), tuned=Tuned())
        return next(iter(selector.select(specs, CPU).choices.values()))

    def test_it_goes_before_the_ranking(self):
        choice = self.choice("reference")
        assert (choice.backend, choice.origin) == ("reference", "tuned (measured)")

    def test_the_phases_can_have_winners_of_their_own(self):
        choice = self.choice({"decode": "reference", "prefill": "sdpa"})
        assert choice.backend == "decode=reference,prefill=sdpa"
        assert choice.origin == "decode: tuned (measured); prefill: tuned (measured)"
        assert self.choice({"decode": "sdpa", "prefill": "sdpa"}).backend == "sdpa"

    def test_a_phase_without_a_winner_is_ranked(self):
        assert self.choice({"decode": "reference", "prefill": None}).backend == "reference"

    def test_the_user_goes_before_it(self):
        assert self.choice("reference", attention_backend="sdpa").backend == "sdpa"

    def test_a_winner_that_does_not_fit_is_skipped_with_the_reason(self):
        choice = self.choice("sdpa", specs=layers(spec(batch_invariant=True)))
        assert choice.backend == "reference"
        reasons = ("batch_invariant: asked yes, offered nothing",)
        assert [(r.backend, r.reasons) for r in choice.rejected] == [("sdpa", reasons)]

    def test_what_came_later_and_would_rank_first_is_told_and_the_measured_choice_stays(self, caplog):
        plugins = world({"newcomer": backend("Newcomer")})
        for _ in range(2):
            choice = self.choice("reference", plugins)
            assert (choice.backend, choice.origin) == ("reference", "tuned (measured); not measured then: newcomer")
        (warning,) = [record.message for record in caplog.records]
        assert warning == (
            "reference is used, as headstock tune chose it when newcomer was not measured or was another version; "
            "run headstock tune again"
        )

    def test_what_came_later_and_cannot_serve_the_layer_is_no_news(self, caplog):
        plugins = world({"newcomer": backend("Newcomer", head_sizes=up_to(1))})
        assert self.choice("reference", plugins).origin == "tuned (measured)"
        assert not caplog.records

    @pytest.mark.parametrize("named", [{}, {"attention_backend": "configured"}])
    def test_a_backend_gets_the_configuration_that_was_measured_to_be_fastest(self, named):
        cls = backend("Configured")
        cls.Options = make_dataclass("Options", [("width", int, 1), ("depth", int, 1)], frozen=True)
        configured = {("configured", "decode"): {"width": 8}, ("configured", "prefill"): {"depth": 4}}
        plugins = world(by_name={"configured": cls})
        choice = self.choice("configured", plugins, configured=configured, **named)
        assert (choice.options.width, choice.options.depth) == (8, 4)
        assert choice.origin.endswith("; tuned to width=8, depth=4")
        mine = {"attention_backend_config": {"configured": {"depth": 2}}}
        choice = self.choice("configured", plugins, configured=configured, **mine)
        assert (choice.options.width, choice.options.depth) == (1, 2)
        assert "tuned to" not in choice.origin

    def test_the_phases_of_a_composite_have_configurations_of_their_own(self):
        cls = backend("Configured")
        cls.Options = make_dataclass("Options", [("width", int, 1), ("depth", int, 1)], frozen=True)
        configured = {("configured", "decode"): {"width": 8}, ("configured", "prefill"): {"depth": 4}}
        choice = self.choice(
            {"decode": "configured", "prefill": "sdpa"}, world(by_name={"configured": cls}), configured=configured
        )
        assert (choice.options.decode.width, choice.options.decode.depth) == (8, 1)
        assert choice.origin.startswith("decode: tuned (measured); tuned to width=8; prefill: ")

    def test_a_configuration_that_the_backend_refuses_is_told_and_not_used(self, caplog):
        choice = self.choice("sdpa", configured={("sdpa", "decode"): {"width": 8}})
        assert (choice.backend, choice.origin) == ("sdpa", "tuned (measured)")
        (warning,) = [record.message for record in caplog.records]
        assert "the tuned configuration is not used: " in warning
        assert "width" in warning

    @pytest.mark.parametrize("name", [None, "gone"])
    def test_without_a_winner_it_is_the_ranking(self, name):
        assert self.choice(name).backend == "sdpa"


def test_equal_questions_have_equal_answers():
    plugins = world({"a": backend("A", head_sizes=up_to(64)), "b": backend("B")})
    specs = layers(*[spec(head_size=size) for size in (32, 64, 128)] * 2)
    first, second = (select(plugins, specs, decode_attention_backend="b") for _ in range(2))
    assert chosen(first) == chosen(second) == ["decode=b,prefill=a"] * 2 + ["b"] + ["decode=b,prefill=a"] * 2 + ["b"]


def test_another_device_is_another_question():
    cls, full, nothing = backend("Cards"), Capabilities(**EVERYTHING), Capabilities()
    cls.capabilities = classmethod(lambda cls, device: full if device is CARD else nothing)
    selector = Selector(world({"cards": cls}))
    assert [chosen(selector.select(PLAIN, device))[0] for device in (CPU, CARD, CPU)] == ["sdpa", "cards", "sdpa"]


def test_a_model_without_attention_needs_no_backend():
    selection = select(world(), {})
    assert (selection.choices, selection.block_size, selection.layout) == ({}, 16, LAYOUTS["nhd"])
