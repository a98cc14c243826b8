"""Functions that packages put in the place of ops: which count, and what is said of the others."""

from __future__ import annotations

import pytest

from headstock.core.errors import BackendError
from headstock.plugins import Guard, Ops, PluginRecord

FAST = PluginRecord(group="headstock.aiter_ops", name="attend", target="fast:f", distribution="fast", version="1.0")
RIVAL = PluginRecord(group="headstock.aiter_ops", name="attend", target="quick:f", distribution="quick", version="2")
OTHER = PluginRecord(group="headstock.aiter_ops", name="gather", target="quick:g", distribution="quick", version="2")
OFF = PluginRecord(
    group="headstock.aiter_ops", name="attend", target="off:f", distribution="off", version="3", status="disabled",
    reason="off is switched off",
)  # fmt: skip
HOOKS = PluginRecord(group="headstock", name="attend", target="m", distribution="fast", version="1.0")


def test_one_that_nobody_disputes_takes_the_place(caplog):
    ops = Ops([FAST, OTHER, OFF, HOOKS])
    assert ops.targets() == {"attend": FAST, "gather": OTHER}
    assert ops.records == (FAST, OTHER, OFF)
    assert caplog.text == ""


def test_of_two_neither_is_used_and_the_message_says_how_to_choose(caplog):
    ops = Ops([FAST, RIVAL, OTHER])
    assert ops.targets() == {"gather": OTHER}
    assert [r.status for r in ops.records] == ["refused", "refused", "not loaded"]
    text = "attend is replaced by fast 1.0 (fast:f) and quick 2 (quick:f): neither is used"
    assert text in caplog.text
    assert "say which: --aiter-op attend=fast:f" in caplog.text


def test_whoever_has_decided_is_not_told(caplog):
    assert Ops([FAST, RIVAL, OTHER]).targets(decided={"attend": "mine:f"}) == {"gather": OTHER}
    assert caplog.text == ""


def test_one_that_fails_is_left_out_with_a_warning(caplog):
    ops = Ops([FAST, OTHER])
    ops.fail(FAST, "no module fast")
    assert ops.targets() == {"gather": OTHER}
    assert ops.records[0].status == "failed"
    assert caplog.text.count("a plugin of fast 1.0 is left out (failed): no module fast") == 1


def test_in_strict_mode_that_is_an_error():
    with pytest.raises(BackendError, match="no module fast"):
        Ops([FAST], Guard(strict=True)).fail(FAST, "no module fast")
