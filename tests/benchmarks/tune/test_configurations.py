"""Configurations of a backend: the fastest right one is found, written down, and what instances get."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from headstock import LLM, SamplingParams
from headstock.backends.sdpa import SdpaBackend
from headstock.backends.triton import TritonBackend, configurations
from headstock.backends.triton.backend import run_kernel
from headstock.benchmarks.kernels import contenders
from headstock.benchmarks.tune import configurations as races
from headstock.benchmarks.tune.configurations import Race, configurations_of
from headstock.benchmarks.tune.measure import Regimes, settings_for
from headstock.core.attention import AttentionSpec
from headstock.selector import Selector
from support.attention import CPU
from support.cli import run_cli
from support.interpreted import interpreted
from support.plugins import world
from support.tiny import tiny_folder

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=8, dtype="float32")
DEVICE = replace(CPU, memory_bytes=2**40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    width: int = 1


class Wide(SdpaBackend):
    """Faster the wider, by a fake clock; wrong at 8, and too wide at 16."""

    Options = Width
    now = 0
    widths = (2, 3, 4, 8, 16)

    @classmethod
    def configurations(cls, spec, device, phase):
        return tuple({"width": width} for width in cls.widths)

    def __init__(self, *args):
        super().__init__(*args)
        if self.options.width == 16:
            raise RuntimeError("out of resource: shared memory")

    def forward(self, layer, query, *, out, **rest):
        super().forward(layer, query, out=out, **rest)
        Wide.now = self.options.width
        if self.options.width == 8:
            out.mul_(1.5)


@pytest.fixture
def clock(monkeypatch):
    """A call takes 10 ms by the width; in the middle of the run every second call takes twice as long."""

    def seconds_of(call, device="cpu"):
        call()
        return 0.01 / Wide.now

    monkeypatch.setattr(contenders, "seconds_of", seconds_of)


def race(cls, **changes):
    plugins = world(by_name={"wide": cls})
    judge, offer = Selector(plugins).judge(DEVICE), plugins.backends.find("wide")
    shapes = Regimes(batches=(1,), contexts=(32,), chunk=8).of_phase(SPEC, "decode")
    found = configurations_of(offer, SPEC, "decode", judge, plugins.guard)
    return Race(offer, found, replace(settings_for(SPEC, shapes, 8, 1), **changes), judge, plugins.guard)


@pytest.mark.usefixtures("clock")
class TestRace:
    @pytest.mark.parametrize("together", [2, 3, 8])
    def test_the_fastest_right_one_wins_and_what_is_wrong_or_does_not_fit_is_dropped(self, monkeypatch, together):
        monkeypatch.setattr(races, "TOGETHER", together)
        it = race(Wide)
        rows = list(it.run())
        assert it.options == {"width": 4}
        assert len(rows) == it.steps
        wrong, failed = it.reasons['wide{"width": 8}'], it.reasons['wide{"width": 16}']
        assert wrong.startswith("wrong: error 5.0e-01 against the float64 reference")
        assert failed == "failed: RuntimeError: out of resource: shared memory"

    def test_the_defaults_stand_where_nothing_is_faster(self):
        it = race(type("Slower", (Wide,), {"widths": (1,)}))
        list(it.run())
        assert it.options == {}

    def test_where_the_defaults_do_not_run_the_fastest_of_the_others_wins(self):
        class Picky(Wide):
            def __init__(self, *args):
                super().__init__(*args)
                if self.options.width == 1:
                    raise RuntimeError("out of resource: registers")

        it = race(Picky)
        list(it.run())
        assert it.options == {"width": 4}

    def test_a_backend_without_configurations_has_no_race(self):
        it = race(SdpaBackend)
        assert (it.steps, list(it.run()), it.options) == (0, [], {})


@pytest.mark.parametrize(
    ("offered", "warning"),
    [
        (lambda *_: 1 / 0, "wide: configurations() raised ZeroDivisionError"),
        (lambda *_: [{"width": 2}], "wide: configurations() raised TypeError: gave [{'width': 2}], not tuple"),
        (lambda *_: ({"depth": 2},), "wide offers a configuration that it refuses: option 'depth': is not known"),
        (lambda *_: (5,), "wide offers a configuration that it refuses"),
    ],
)
def test_what_a_plugin_gets_wrong_is_told_and_it_has_no_configuration(caplog, offered, warning):
    plugins = world(by_name={"wide": type("Odd", (Wide,), {"configurations": classmethod(offered)})})
    offer, judge = plugins.backends.find("wide"), Selector(plugins).judge(DEVICE)
    assert configurations_of(offer, SPEC, "decode", judge, plugins.guard) == []
    assert warning in caplog.text


@interpreted
class TestTriton:
    """Our kernels in the interpreter, by a fake clock that counts the launches' tiles."""

    @pytest.fixture
    def launched(self, monkeypatch):
        """Constants of every launch of the attending kernel; fewer configurations than there are, since each takes
        seconds here."""
        found = []

        def launch(kernel, grid, *args, **constants):
            if "KEYS" in constants and constants["KEYS"] == 128:
                raise RuntimeError("out of resource: registers")
            run_kernel(kernel, grid, *args, **constants)
            if "KEYS" in constants:
                found.append(constants)
                if constants["KEYS"] == 16:
                    args[0].mul_(1.5)  # the output

        monkeypatch.setattr(TritonBackend, "launch", staticmethod(launch))
        monkeypatch.setattr(contenders, "PLAN_CALLS", 1)
        monkeypatch.setattr(configurations, "ROWS", (32, 64))
        monkeypatch.setattr(configurations, "KEYS", (16, 32, 128))
        return found

    @pytest.fixture
    def clock(self, monkeypatch, launched):
        """Tiles of 16 keys would be fastest, were they right; then those of 32, and of prompts those of 64 rows."""

        def seconds_of(call, device="cpu"):
            launched.clear()
            call()
            if not launched:
                return 0.4  # it is another backend's
            tile = launched[-1]
            return tile["KEYS"] / 500 * (2 if tile["ROWS"] == 32 else 1)

        monkeypatch.setattr(contenders, "seconds_of", seconds_of)

    @pytest.mark.usefixtures("clock")
    def test_the_configuration_that_was_measured_to_be_fastest_is_the_one_that_is_launched(
        self, launched, tmp_path, monkeypatch
    ):
        model, path = str(tiny_folder(tmp_path, max_window_layers=4).path), tmp_path / "tuned.json"
        few = SamplingParams(max_tokens=2)
        small = ("--batches", "1", "--contexts", "17", "--rounds", "6", "--device", "cpu")
        done = run_cli("tune", model, *small, "--backends", "triton,sdpa", "-o", str(path), "--json")
        assert done.code == 0, done.err
        assert 'triton{"decode_keys": 16, "decode_warps": 1, "decode_stages": 1} was dropped: wrong: ' in done.err
        assert 'triton{"decode_keys": 128, "decode_warps": 1, "decode_stages": 1} was dropped: failed: ' in done.err
        options = {e["phase"]: e["tried"]["triton"]["options"] for e in json.loads(path.read_text())["entries"]}
        assert options == {
            "decode": {"decode_keys": 32, "decode_warps": 1, "decode_stages": 1},
            "prefill": {"prefill_rows": 64, "prefill_keys": 32, "prefill_warps": 1, "prefill_stages": 1},
        }
        assert {e["backend"] for e in done.json["entries"]} == {"triton"}
        monkeypatch.setenv("HEADSTOCK_TUNED", str(path))
        for chosen in (None, "triton"):
            launched.clear()
            llm = LLM(model, attention_backend=chosen)
            llm.generate("the fox", few, use_tqdm=False)
            assert {c["KEYS"] for c in launched} == {32}
            assert {c["ROWS"] for c in launched if not c["TILE_IS_ROW"]} <= {64}
            origin = next(iter(llm.attention.choices.values())).origin
            assert "tuned to decode_keys=32" in origin
        launched.clear()
        llm = LLM(model, attention_backend="triton", attention_backend_config={"triton": {"decode_keys": 64}})
        llm.generate("the fox", few, use_tqdm=False)
        assert {c["KEYS"] for c in launched} == {64}, "the user's options go in place of all that was tuned"
