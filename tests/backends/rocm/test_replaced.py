"""Functions in the place of AITER's, from whoever asks for them to the backends that call them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from headstock.backends import _aiter_ops
from headstock.backends.rocm import AiterFlashAttention, AiterUnified, RocmAttention, ShuffledFlashAttention
from headstock.backends.triton import environment
from headstock.core.attention import AttentionSpec, Limits, Workspace, mismatches
from headstock.core.errors import BackendError, InvalidInput
from headstock.plugins import load_plugins
from headstock.selector import Selector, explain, list_backends, read_policy
from headstock.selector.policy import Policy
from headstock.selector.profiles import profile
from support.doubles.devices import pretend
from support.plugins import write_distribution

MI300X = profile("mi300x")
HERE = replace(MI300X, assumed=False)
SPEC = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=128, dtype="bfloat16")
WIDE = replace(SPEC, head_size=256, head_size_v=256)
KERNELS = """
def attend(**arguments): ...
def few(q, k, v): ...
"""
LIMITS = Limits(max_num_reqs=4, max_num_tokens=64, max_model_len=256, max_blocks_per_req=16)


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    """Triton compiles for cards, as it does outside of these tests."""
    monkeypatch.setattr(environment, "offered_instead", lambda device: "")


@pytest.fixture
def kernels(site):
    (site / "my_kernels.py").write_text(KERNELS)
    return site


@pytest.fixture
def package(kernels):
    """An installed package that replaces the op of `rocm_aiter_unified`."""
    write_distribution(kernels, "fast", aiter_ops={"unified_attention": "my_kernels:attend"})


def selector(backend="rocm_aiter_unified", **wishes):
    return Selector(load_plugins(), read_policy(attention_backend=backend, environ={}, **wishes))


def propose(backend="rocm_aiter_unified", spec=SPEC, **wishes):
    return selector(backend, **wishes).propose({"layer": spec}, MI300X)


def chosen(*args, **wishes):
    return dict(propose(*args, **wishes).choices["layer"].options.aiter_ops)


class TestWho:
    @pytest.mark.parametrize(
        ("backend", "op"), [("rocm_aiter_fa", "paged_attention"), ("rocm_attn", "paged_attention_rocm")]
    )
    def test_the_flag_reaches_every_backend_that_calls_the_op(self, backend, op):
        assert chosen(backend, aiter_ops=[f"{op}=mine:f"]) == {op: "mine:f"}
        assert chosen(backend, aiter_ops={op: "mine:f"}) == {op: "mine:f"}

    @pytest.mark.usefixtures("package")
    def test_it_goes_before_packages_and_after_the_backends_own_option(self):
        assert chosen() == {"unified_attention": "my_kernels:attend"}
        assert chosen(aiter_ops={"unified_attention": "mine:f"}) == {"unified_attention": "mine:f"}
        config = {"rocm_aiter_unified": {"aiter_ops": {"unified_attention": "own:f"}}}
        found = chosen(aiter_ops={"unified_attention": "mine:f"}, attention_backend_config=config)
        assert found == {"unified_attention": "own:f"}

    @pytest.mark.usefixtures("package")
    def test_they_are_merged_op_by_op(self):
        config = {"rocm_aiter_fa": {"aiter_ops": {"paged_attention": "own:f"}}}
        found = chosen("rocm_aiter_fa", aiter_ops={"flash_attn_varlen_func": "mine:f"}, attention_backend_config=config)
        assert found == {
            "unified_attention": "my_kernels:attend",
            "flash_attn_varlen_func": "mine:f",
            "paged_attention": "own:f",
        }

    def test_the_choice_between_packages_is_the_flags(self, kernels, caplog):
        for name in ("fast", "faster"):
            write_distribution(kernels, name, aiter_ops={"unified_attention": f"{name}:attend"})
        assert chosen(aiter_ops={"unified_attention": "faster:attend"}) == {"unified_attention": "faster:attend"}
        assert caplog.text == ""

    def test_it_goes_to_other_processes_with_the_policy(self):
        policy = read_policy(aiter_ops=["paged_attention=mine:f"], environ={})
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=Policy)
        assert sent.aiter_ops == {"paged_attention": "mine:f"}


class TestSaid:
    @pytest.mark.usefixtures("package")
    def test_who_took_which_place_is_in_the_notes(self):
        assert propose().notes == (
            "rocm_aiter_unified calls my_kernels:attend in the place of unified_attention; why: package fast 1.0",
        )
        assert propose(aiter_ops={"unified_attention": "mine:f"}).notes == (
            "rocm_aiter_unified calls mine:f in the place of unified_attention; why: flag (--aiter-op)",
        )
        config = {"rocm_aiter_fa": {"aiter_ops": {"paged_attention": "own:f"}}}
        assert propose("rocm_aiter_fa", attention_backend_config=config).notes == (
            "rocm_aiter_fa calls own:f in the place of paged_attention; why: option of rocm_aiter_fa",
        )

    @pytest.mark.usefixtures("package")
    def test_a_layer_that_does_not_call_it_is_not_said_to(self):
        assert propose("rocm_aiter_fa").notes == ()
        (note,) = propose("rocm_aiter_fa", WIDE).notes
        assert note.startswith("rocm_aiter_fa calls my_kernels:attend in the place of unified_attention")

    @pytest.mark.usefixtures("package")
    def test_the_listing_has_the_function_and_its_package(self):
        (row,) = list_backends(selector(), MI300X).to_dict()["plugins"]
        assert row == {
            "kind": "op",
            "name": "unified_attention",
            "target": "my_kernels:attend",
            "version": "1.0",
            "distribution": "fast",
            "verdict": "not loaded",
            "reasons": [],
        }

    def test_explain_has_it(self):
        found = explain(selector(aiter_ops={"unified_attention": "mine:f"}), {"layer": SPEC}, MI300X)
        assert [note.partition(" calls ")[2].partition(" ")[0] for note in found.notes] == ["mine:f"]


class TestRefused:
    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            (["unifed=mine:f"], "'unifed' is no op; known are .*; --aiter-op takes OP=package.module:function"),
            (["unified_attention=mine"], "unified_attention is 'mine', not package.module:function; --aiter-op"),
            (["unified_attention"], "'unified_attention' is not OP=package.module:function"),
            (["=mine:f"], "is not OP="),
            (["unified_attention="], "is not OP="),
            (["unified_attention=a:f", "unified_attention=b:f"], "is given two functions: a:f and b:f"),
            ("unified_attention=a:f", "must map ops to functions"),
            ({"unified_attention": 3}, "must map ops to functions, by name"),
            ({3: "a:f"}, "must map ops to functions, by name"),
            (7, "must map ops to functions"),
        ],
    )
    def test_what_is_written_wrong(self, given, problem):
        with pytest.raises(InvalidInput, match=problem) as refused:
            propose(aiter_ops=given)
        assert refused.value.field == "aiter_ops"

    def test_a_backend_that_calls_no_op(self):
        with pytest.raises(BackendError) as refused:
            propose("sdpa", aiter_ops={"paged_attention": "mine:f"})
        first, advice = str(refused.value).splitlines()
        assert first == (
            "mine:f, asked for in the place of paged_attention by flag (--aiter-op), would never be called: "
            "sdpa calls no op"
        )
        assert advice == "  these call paged_attention, where they are chosen: rocm_aiter_fa"

    def test_a_layer_that_does_not_call_it(self):
        with pytest.raises(BackendError, match="rocm_aiter_fa calls flash_attn_varlen_func, unified_attention") as e:
            propose("rocm_aiter_fa", WIDE, aiter_ops={"paged_attention": "mine:f"})
        assert len(str(e.value).splitlines()) == 1  # nobody else calls it for such a layer

    def test_an_option_for_an_op_of_another_backend(self):
        config = {"rocm_aiter_unified": {"aiter_ops": {"paged_attention": "own:f"}}}
        with pytest.raises(BackendError, match=r"own:f, .* by option of rocm_aiter_unified, would never be called"):
            propose(attention_backend_config=config)

    def test_one_of_several_layers_is_enough(self):
        wishes = {"attention_policy": {"window": "sdpa"}, "aiter_ops": {"unified_attention": "mine:f"}}
        window = replace(SPEC, window=(7, 0))
        found = selector(**wishes).propose({"full": SPEC, "window": window}, MI300X)
        assert [choice.backend for choice in found.choices.values()] == ["rocm_aiter_unified", "sdpa"]

    @pytest.mark.usefixtures("library")
    @pytest.mark.parametrize(
        ("target", "problem"),
        [
            ("nowhere.at_all:f", "put in its place, cannot be loaded: No module named 'nowhere'; .* on PYTHONPATH"),
            ("my_kernels:gone", "cannot be loaded.*gone"),
            ("my_kernels:few", "does not fit"),
            ("breaks:f", "breaks:f raised ZeroDivisionError"),
        ],
    )
    def test_a_function_that_cannot_be_used_is_told_of_before_weights_are_loaded(self, target, problem, kernels):
        (kernels / "breaks.py").write_text("1 / 0")
        with pytest.raises(BackendError, match=problem) as refused:
            selector(aiter_ops={"unified_attention": target}).select({"layer": SPEC}, HERE)
        assert "flag (--aiter-op)" in str(refused.value)

    def test_nothing_is_loaded_for_a_card_that_is_not_here(self):
        assert chosen(aiter_ops={"unified_attention": "nowhere:f"}) == {"unified_attention": "nowhere:f"}


@pytest.mark.usefixtures("library")
class TestPackages:
    @pytest.mark.parametrize(
        ("op", "target", "problem"),
        [
            ("unified_attention", "nowhere:f", "No module named 'nowhere'"),
            ("unified_attention", "my_kernels:few", "does not fit"),
            ("unifed_attention", "my_kernels:attend", "is no op"),
        ],
    )
    def test_one_that_errs_is_left_out_and_aiters_own_is_called(self, op, target, problem, kernels, caplog):
        write_distribution(kernels, "fast", aiter_ops={op: target})
        found = selector()
        selection = found.select({"layer": SPEC}, HERE)
        assert selection.choices["layer"].options.aiter_ops == ()
        assert selection.notes == ()
        assert "a plugin of fast 1.0 is left out (failed)" in caplog.text
        assert problem in caplog.text
        (row,) = list_backends(found, HERE).plugins
        assert (row.verdict, len(row.reasons)) == ("failed", 1)

    def test_in_strict_mode_it_is_an_error(self, kernels, monkeypatch):
        monkeypatch.setenv("HEADSTOCK_PLUGINS_STRICT", "1")
        write_distribution(kernels, "fast", aiter_ops={"unified_attention": "nowhere:f"})
        with pytest.raises(BackendError, match="nowhere"):
            selector().select({"layer": SPEC}, HERE)

    @pytest.mark.usefixtures("package")
    def test_one_that_fits_is_called(self):
        notes = selector().select({"layer": SPEC}, HERE).notes
        assert notes[0].endswith("why: package fast 1.0")


LAYERS = (
    {},
    {"head_size": 64, "block_size": 32},
    {"head_size": 256, "head_size_v": 256},
    {"window": (7, 0)},
    {"sinks": True},
    {"alibi": True},
    {"num_heads": 34},
    {"block_size": 64},
    {"dtype": "float32", "kv_format": "fp32"},
    {"kv_format": "fp8_e4m3fnuz", "kv_scales": "tensor"},
)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("cls", [AiterFlashAttention, ShuffledFlashAttention, AiterUnified, RocmAttention])
def test_what_is_bound_is_what_a_backend_says_it_calls(cls, monkeypatch):
    bound, load, device = [], _aiter_ops.load, pretend("mi300x")
    monkeypatch.setattr(_aiter_ops, "load", lambda target: bound.append(target) or load(target))
    for fields in LAYERS:
        spec = replace(SPEC, **fields)
        if mismatches(spec, cls.capabilities(device)) or cls.refusals(spec, device):
            continue
        bound.clear()
        cls(spec, device, LIMITS, Workspace("cpu"))
        ops = cls.ops(spec, device, cls.Options())
        assert sorted(bound) == sorted(_aiter_ops.OPS[op].home("0.1.20.post1") for op in ops), fields
