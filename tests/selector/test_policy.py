"""What the user wants, by layer."""

from __future__ import annotations

import json

import pytest

from headstock.core.errors import InvalidInput
from headstock.selector import Wish, read_policy
from support.backends import layers, spec

FULL, WINDOW = spec(), spec(window=(3, 0))
FOUR = layers(FULL, WINDOW, FULL, WINDOW)
NAMES = list(FOUR)


def wishes(specs=FOUR, environ=None, **policy):
    """(decode, prefill) backend by layer number."""
    found = read_policy(environ=environ or {}, **policy).wishes(specs)
    return [tuple(wish and wish.backend for wish in three[:2]) for three in found.values()]


def origins(specs=FOUR, environ=None, **policy):
    found = read_policy(environ=environ or {}, **policy).wishes(specs)
    return [pair[0] and pair[0].origin for pair in found.values()]


def test_nothing_said_is_nothing_wished():
    assert wishes() == [(None, None)] * 4


def test_the_flag_is_for_all_layers_and_both_phases():
    assert wishes(attention_backend="a") == [("a", "a")] * 4


def test_the_environment_counts_where_the_flag_says_nothing():
    environ = {"HEADSTOCK_ATTENTION_BACKEND": "e"}
    assert wishes(environ=environ) == [("e", "e")] * 4
    assert wishes(environ=environ, attention_backend="auto") == [("e", "e")] * 4
    assert wishes(environ=environ, attention_backend="a") == [("a", "a")] * 4


@pytest.mark.parametrize("auto", ["auto", "AUTO", None])
def test_auto_is_no_wish(auto):
    assert wishes(attention_backend=auto) == [(None, None)] * 4


@pytest.mark.parametrize("kind", ["window", "sliding", "sliding_window", "sliding_attention", "Sliding-Attention"])
def test_layers_with_a_window_by_any_of_its_names(kind):
    assert wishes(attention_policy={kind: "w"}) == [(None, None), ("w", "w")] * 2


@pytest.mark.parametrize("policy", [{"masked": "m"}, {"full": {"masked": "m"}}])
def test_rows_with_a_mask_are_a_phase_of_layers_that_may_have_one(policy):
    specs = layers(spec(), spec(masks=frozenset({"spans"})))
    found = read_policy(environ={}, attention_backend="a", attention_policy=policy).wishes(specs)
    assert [three[2] and three[2].backend for three in found.values()] == [None, "m"]
    assert [three[0].backend for three in found.values()] == ["a", "a"]


def test_a_backend_for_masks_that_no_layer_has_is_refused():
    with pytest.raises(InvalidInput, match="'masked' is for layers with an extra mask, and no layer has one"):
        wishes(attention_policy={"masked": "m"})


def test_a_kind_of_the_spec():
    specs = layers(spec(), spec(kind="cross", causal=False))
    assert wishes(specs, attention_policy={"cross": "c"}) == [(None, None), ("c", "c")]


@pytest.mark.parametrize(
    ("key", "numbers"),
    [
        ("2", {2}),
        ("1-2", {1, 2}),
        ("0,2-3", {0, 2, 3}),
        ("model.layers.*", {0, 1, 2, 3}),
        ("model.layers.[01].*", {0, 1}),
        ("*.3.*", {3}),
        ("model.layers.1.self_attn.attn", {1}),
    ],
)
def test_layers_by_number_pattern_and_name(key, numbers):
    assert wishes(attention_policy={key: "x"}) == [("x", "x") if n in numbers else (None, None) for n in range(4)]


def test_a_number_is_the_one_in_the_name_not_the_position():
    specs = {"model.layers.7.attn": FULL, "model.layers.9.attn": FULL}
    assert wishes(specs, attention_policy={"9": "x"}) == [(None, None), ("x", "x")]


def test_layers_without_numbers_are_counted():
    assert wishes({"first": FULL, "second": FULL}, attention_policy={1: "x"}) == [(None, None), ("x", "x")]


def test_phases():
    assert wishes(attention_policy={"decode": "d"}, attention_backend="a") == [("d", "a")] * 4
    assert wishes(decode_attention_backend="d", prefill_attention_backend="p") == [("d", "p")] * 4


def test_a_phase_of_a_kind_or_layer():
    policy = {"window": {"decode": "d"}, "0": {"prefill": "p"}}
    assert wishes(attention_policy=policy, attention_backend="a") == [("a", "p"), ("d", "a"), ("a", "a"), ("d", "a")]


def test_precedence_is_layer_kind_phase_flag_environment():
    said = {
        "environ": {"HEADSTOCK_ATTENTION_BACKEND": "environment"},
        "attention_backend": "flag",
        "decode_attention_backend": "phase",
        "attention_policy": {"window": "kind", "3": "layer"},
    }
    assert wishes(**said) == [("phase", "flag"), ("kind", "kind"), ("phase", "flag"), ("layer", "layer")]
    assert origins(**said) == ["phase (decode)", "kind (window)", "phase (decode)", "layer (3)"]
    del said["attention_policy"], said["decode_attention_backend"]
    assert origins(**said) == ["flag (flag)"] * 4
    del said["attention_backend"]
    assert origins(**said) == ["environment (HEADSTOCK_ATTENTION_BACKEND=environment)"] * 4


def test_the_order_in_which_levels_are_written_does_not_matter():
    policy = {"window": "kind", "decode": "phase", "3": "layer"}
    backwards = dict(reversed(policy.items()))
    assert wishes(attention_policy=policy) == wishes(attention_policy=backwards)


def test_what_a_layer_sees_goes_before_what_it_is_for():
    assert wishes(attention_policy={"decoder": "d", "window": "w"}) == [("d", "d"), ("w", "w")] * 2


def test_a_name_goes_before_patterns_and_of_patterns_the_first():
    policy = {"model.*": "first", "*.attn": "second", NAMES[2]: "name"}
    assert [decode for decode, _ in wishes(attention_policy=policy)] == ["first", "first", "name", "first"]


def test_auto_in_a_rule_takes_layers_out_of_the_flag():
    assert wishes(attention_policy={"window": "auto"}, attention_backend="a") == [("a", "a"), (None, None)] * 2


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (
            "wnidow",
            "'wnidow' is no kind or phase, and matches no layer. did you mean window? Kinds here: decoder, full",
        ),
        ("encoder", "'encoder' is a kind that no layer has. Kinds here: decoder, full, window"),
        ("vision.*", "'vision.*' is no kind or phase, and matches no layer."),
        ("4-7", "'4-7' is no kind or phase, and matches no layer."),
        ("9" * 5000, "is no kind or phase, and matches no layer."),
        ("model.layers.1.self_attn.atn", "did you mean model.layers.1.self_attn.attn?"),
    ],
)
def test_a_rule_that_speaks_of_no_layer_is_an_error(key, text):
    with pytest.raises(InvalidInput) as error:
        read_policy(attention_policy={key: "x"}, environ={}).wishes(FOUR)
    assert text in str(error.value)
    assert "layers: model.layers.0.self_attn.attn, …, model.layers.3.self_attn.attn" in str(error.value)


def test_numbers_beyond_the_last_layer_are_an_error():
    with pytest.raises(InvalidInput, match=r"attention_policy: '0,2-30' names layer 30; the last is 3"):
        read_policy(attention_policy={"0,2-30": "x"}, environ={}).wishes(FOUR)


class TestReading:
    def test_a_mapping_its_json_and_a_file_are_the_same(self, tmp_path):
        path, policy = tmp_path / "policy.json", {"window": "w", "decode": "d"}
        path.write_text(json.dumps(policy))
        forms = (policy, json.dumps(policy), path, str(path))
        first, *others = [read_policy(attention_policy=form, environ={}) for form in forms]
        assert all(other == first for other in others)

    @pytest.mark.parametrize(
        ("written", "text"),
        [
            ("{", "attention_policy: is not JSON: Expecting property name"),
            ('["sdpa"]', "attention_policy: must be a JSON object, not ['sdpa']"),
            ("/no/such/file", "attention_policy: is neither JSON nor a readable file: [Errno 2]"),
            ("[" * 100_000, "attention_policy: is not JSON"),
            ("~nosuchuser/policy", "attention_policy: is neither JSON nor a readable file: Could not determine home"),
            ("/", "attention_policy: is neither JSON nor a readable file: [Errno 21]"),
            ('{"window": "a", "window": "b"}', "attention_policy: has 'window' twice"),
            ({"window": "a", "sliding": "b"}, "attention_policy: asks twice for kind 'window': a and b, b"),
            ({"window": 7}, "attention_policy['window']: must be the name of a backend, not 7"),
            ({"window": ""}, "attention_policy['window']: is empty"),
            (
                {"window": {"decoding": "a"}},
                "attention_policy['window']: takes decode, prefill and masked, not decoding",
            ),
            ({"window": {}}, "attention_policy['window']: takes decode, prefill and masked, not nothing"),
            ({"decode": {"decode": "a"}}, "attention_policy['decode']: must be the name of a backend"),
            ({"*": "a"}, "attention_policy['*']: would go before kinds and phases; for all layers there is"),
            ({None: "a"}, "attention_policy: has the key None, which is no text"),
            (7, "attention_policy: must be a JSON object, not 7"),
        ],
    )
    def test_what_is_wrong_is_named(self, written, text):
        with pytest.raises(InvalidInput) as error:
            read_policy(attention_policy=written, environ={})
        assert text.split(": a and b, b")[0] in str(error.value)

    @pytest.mark.parametrize("name", ["", "  "])
    def test_an_empty_flag_is_refused(self, name):
        with pytest.raises(InvalidInput, match="attention_backend: is empty"):
            read_policy(attention_backend=name, environ={})

    def test_a_phase_said_twice_is_refused_unless_it_is_the_same(self):
        with pytest.raises(InvalidInput, match="asks twice for phase 'decode': d and other"):
            read_policy(attention_policy={"decode": "d"}, decode_attention_backend="other", environ={})
        read_policy(attention_policy={"decode": "d"}, decode_attention_backend="d", environ={})

    @pytest.mark.parametrize(
        ("config", "text"),
        [
            ({"sdpa": 7}, r"attention_backend_config\['sdpa'\]: must map options to values, not be 7"),
            ({"sdpa": {7: 1}}, r"attention_backend_config\['sdpa'\]: option 7 is no name"),
            ('{"sdpa": ', "attention_backend_config: is not JSON"),
        ],
    )
    def test_options_that_are_no_mapping_are_refused(self, config, text):
        with pytest.raises(InvalidInput, match=text):
            read_policy(attention_backend_config=config, environ={})

    def test_a_wish_is_kept_as_it_was_written(self):
        policy = read_policy(attention_backend=" TORCH_SDPA ", environ={})
        assert policy.wishes(layers(FULL))[NAMES[0]][0] == Wish(backend="TORCH_SDPA", origin="flag (TORCH_SDPA)")
