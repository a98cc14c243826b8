"""When an engine process counts as dead, by ticks of half a second."""

from __future__ import annotations

import pytest

from headstock.core.engine.lives.pulse import Beat, Pulse, Vigil


def verdict_after(ticks: int, *, stopped: bool = False, started: bool = True, longest: float = 0.0) -> str | None:
    pulse = Pulse(Vigil())
    pulse.beat(Beat(longest_step=longest))
    for _ in range(ticks):
        pulse.tick()
    return pulse.verdict(stopped=stopped, started=started)


def test_a_stopped_process_is_dead_after_three_seconds() -> None:
    assert verdict_after(5, stopped=True) is None
    assert "stopped" in (verdict_after(6, stopped=True) or "")


@pytest.mark.parametrize(("longest", "limit"), [(0.0, 60.0), (11.0, 60.0), (20.0, 100.0)])
def test_one_that_is_only_silent_has_the_time_of_five_steps(longest: float, limit: float) -> None:
    ticks = int(2 * limit)
    assert verdict_after(ticks, longest=longest) is None
    assert f"limit {limit:.0f} s" in (verdict_after(ticks + 1, longest=longest) or "")


def test_while_it_starts_only_the_time_for_that_counts() -> None:
    assert verdict_after(1700, started=False) is None
    assert verdict_after(1801, started=False) is not None
    assert verdict_after(6, started=False, stopped=True) is not None


def test_anything_heard_counts() -> None:
    pulse = Pulse(Vigil())
    for _ in range(100):
        pulse.tick()
    pulse.beat()
    assert not pulse.suspicious
    assert pulse.verdict(stopped=True, started=True) is None
