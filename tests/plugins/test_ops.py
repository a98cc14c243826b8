"""Functions that packages put in the place of ops: which count, and what is said of the others."""

from __future__ import annotations

import pytest

from headstock.core.errors import BackendError
from headstock.plugins import Guard, Hooks, Ops, PluginRecord, load_plugins
from headstock.selector.profiles import profile
from support.attention import CPU
from support.plugins import write_distribution

FAST = PluginRecord(group="headstock.aiter_ops", name="attend", target="fast:f", distribution="fast", version="1.0")
RIVAL = PluginRecord(group="headstock.aiter_ops", name="attend", target="quick:f", distribution="quick", version="2")
OTHER = PluginRecord(group="headstock.aiter_ops", name="gather", target="quick:g", distribution="quick", version="2")
OFF = PluginRecord(
    group="headstock.aiter_ops", name="attend", target="off:f", distribution="off", version="3", status="disabled",
    reason="off is switched off",
)  # fmt: skip
HOOKS = PluginRecord(group="headstock", name="attend", target="m", distribution="fast", version="1.0")


def made(*records, strict=False):
    return Ops(records, Hooks(()), Guard(strict=strict))


def test_one_that_nobody_disputes_takes_the_place(caplog):
    ops = made(FAST, OTHER, OFF, HOOKS)
    assert ops.targets(CPU) == {"attend": FAST, "gather": OTHER}
    assert ops.records(CPU) == (FAST, OTHER, OFF)
    assert caplog.text == ""


def test_of_two_neither_is_used_and_the_message_says_how_to_choose(caplog):
    ops = made(FAST, RIVAL, OTHER)
    assert ops.targets(CPU) == {"gather": OTHER}
    assert [r.status for r in ops.records(CPU)] == ["refused", "refused", "not loaded"]
    text = "attend is replaced by fast 1.0 (fast:f) and quick 2 (quick:f): neither is used"
    assert text in caplog.text
    assert "say which: --aiter-op attend=fast:f" in caplog.text


def test_whoever_has_decided_is_not_told(caplog):
    assert made(FAST, RIVAL, OTHER).targets(CPU, decided={"attend": "mine:f"}) == {"gather": OTHER}
    assert caplog.text == ""


def test_one_that_fails_is_left_out_with_a_warning(caplog):
    ops = made(FAST, OTHER)
    ops.fail(FAST, "no module fast")
    assert ops.targets(CPU) == {"gather": OTHER}
    assert ops.records(CPU)[0].status == "failed"
    assert caplog.text.count("a plugin of fast 1.0 is left out (failed): no module fast") == 1


def test_in_strict_mode_that_is_an_error():
    with pytest.raises(BackendError, match="no module fast"):
        made(FAST, strict=True).fail(FAST, "no module fast")


HOOK = """
from headstock.plugins import hookimpl

@hookimpl
def headstock_aiter_ops(device):
    return {"attend": "hooked:new"} if device.arch == "gfx950" else {}
"""


class TestHook:
    def test_it_can_be_for_some_devices_alone(self, site):
        write_distribution(site, "hooked", "0.7", hooks={"h": "hooked_h"}, modules={"hooked_h": HOOK})
        ops = load_plugins().ops
        assert ops.targets(profile("mi300x")) == {}
        (record,) = ops.targets(profile("mi355x")).values()
        assert (record.name, record.target, record.package) == ("attend", "hooked:new", "hooked 0.7")
        ops.fail(record, "no module hooked")
        assert ops.targets(profile("mi355x")) == {}

    def test_it_disputes_with_entry_points(self, site, caplog):
        write_distribution(site, "hooked", "0.7", hooks={"h": "hooked_h"}, modules={"hooked_h": HOOK})
        write_distribution(site, "fast", aiter_ops={"attend": "fast:f"})
        ops = load_plugins().ops
        assert set(ops.targets(profile("mi300x"))) == {"attend"}
        assert ops.targets(profile("mi355x")) == {}
        assert "attend is replaced by fast 1.0 (fast:f) and hooked 0.7 (hooked:new): neither is used" in caplog.text

    def test_one_that_gives_something_else_is_left_out_with_all_its_hooks(self, site, caplog):
        source = HOOK.replace('{"attend": "hooked:new"} if device.arch == "gfx950" else {}', '["attend"]')
        write_distribution(site, "hooked", "0.7", hooks={"h": "hooked_h"}, modules={"hooked_h": source})
        plugins = load_plugins()
        assert plugins.ops.targets(CPU) == {}
        assert "a plugin of hooked 0.7 is left out (failed)" in caplog.text
        assert plugins.hooks.records[0].status == "failed"
